"""Temporary names of tables that a long job fills in several commits.

The job creates the table as "t [restoring <process mark>-<8 digits>]", fills it, and renames it to
"t" by one catalogue change. So only the complete table gets its name.

A killed job leaves its table under the temporary name. The next open drops the table if the job's
process has certainly ended (`env.is_gone`). Where this cannot be known, as on macOS, a user has to
drop it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from nyala.env import Env, is_gone, process_mark

_NAME: Final = re.compile(r".+ \[restoring ([0-9a-f]{40})-[0-9a-f]{8}\]", re.DOTALL)
# With the suffix, well within the 256 bytes of a name.
_NAME_CHARS: Final = 40


def unfinished_name(env: Env, name: str) -> str:
    """Return a temporary name for the table `name`. It identifies this process."""
    owner = process_mark() or "by an unknown process"
    return f"{name[:_NAME_CHARS]} [restoring {owner}-{env.randomness.token_hex(4)}]"


def abandoned(names: Iterable[str]) -> list[str]:
    """Return those of `names` that are temporary names of a process that has ended."""
    return [name for name in names if (found := _NAME.fullmatch(name)) is not None and is_gone(found[1])]
