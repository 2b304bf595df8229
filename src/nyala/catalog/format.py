"""The names of a store's files, and the version of its format. They are on disk: never change them.

Source: docs/format/store.md.
"""

from __future__ import annotations

from typing import Final

IDENTITY_NAME: Final = "nyala.json"
CHECKPOINTS_NAME: Final = "checkpoints"
LOCK_NAME: Final = "lock"
LEASES_NAME: Final = "leases"
SOCKET_NAME: Final = "writer.sock"

FORMAT_VERSION: Final = 5  # in `nyala.json` and in every checkpoint
