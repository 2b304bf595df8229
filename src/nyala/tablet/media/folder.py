"""The checkpoints and leases of a store in a folder of this machine.

Invariant K3: a segment of the log is removed only after a durable checkpoint has its changes.
"""

from __future__ import annotations

from collections.abc import Collection

from nyala.catalog.checkpoint import checkpoint_path, checkpoint_versions, write_checkpoint
from nyala.catalog.leases import oldest_needed
from nyala.catalog.model import CatalogState
from nyala.env import Env, Reserve
from nyala.tablet.state import store_folder as layout


class FolderCheckpoints:
    """Implements `Checkpoints` with files in the store's folder. One thread at a time uses it."""

    def __init__(self, env: Env, folder: str, reserve: Reserve, wal_start: int) -> None:
        """Prepare to write checkpoints after the newest one.

        wal_start: the number of the first log segment that the newest checkpoint does not cover.
        """
        self._files = env.files
        self._folder = folder
        self._reserve = reserve
        # This segment and later ones may have changes that no durable checkpoint has.
        self._wal_start = wal_start

    def is_due(self, unneeded: Collection[str]) -> bool:
        return any(layout.segment_of(path) >= self._wal_start for path in unneeded)

    def border(self) -> int:
        return 0

    def write(self, state: CatalogState, border: int, memory_timestamp_min: int | None) -> None:
        written = self._reserve.use(lambda: write_checkpoint(self._files, self._folder, state))
        self._wal_start = state.wal_start
        for version in checkpoint_versions(self._files, self._folder):
            if (path := checkpoint_path(self._folder, version)) != written:
                self._files.unlink(path, missing_ok=True)


class FolderLeases:
    """Implements `Leases` with files in the store's folder, for reader processes and jobs."""

    holders = "readers in other processes, or jobs"

    def __init__(self, env: Env, folder: str) -> None:
        self._env = env
        self._folder = folder

    def note_version(self, version: int) -> None:
        pass

    def oldest_needed(self) -> int | None:
        """Return the smallest version of the catalogue that a reader may need. Remove ended leases.

        0: a reader may need any version; None: there are no readers.
        """
        return oldest_needed(self._env, self._folder, self._env.clock.now_us())
