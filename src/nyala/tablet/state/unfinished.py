"""Tables in the making: what a long job fills, in several commits, under a name that is not yet the table's own.

    unfinished_name("t", mark)    "t [restoring <mark of the process>-<8 digits>]"
    … made, filled …
    renamed to "t"                one catalogue transaction: the table is there, whole

A killed job leaves its table under that name. It goes at the next open, when its process has certainly ended
(`env.is_gone`); where that cannot be known, as on macOS, it stays until somebody drops it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from nyala.env import Env, is_gone, process_mark

__all__ = ["abandoned", "unfinished_name"]

_NAME: Final = re.compile(r".+ \[restoring ([0-9a-f]{40})-[0-9a-f]{8}\]", re.DOTALL)
# With what stands behind it, well within the 256 bytes of a name.
_WANTED_CHARS: Final = 40


def unfinished_name(env: Env, wanted: str) -> str:
    """A name for the table that will be called `wanted`; it belongs to this process."""
    owner = process_mark() or "by an unknown process"
    return f"{wanted[:_WANTED_CHARS]} [restoring {owner}-{env.randomness.token_hex(4)}]"


def abandoned(names: Iterable[str]) -> list[str]:
    """Of these tables those that a process that has ended left unfinished."""
    return [name for name in names if (found := _NAME.fullmatch(name)) is not None and is_gone(found[1])]
