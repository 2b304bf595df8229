"""The functions of `pyarrow.compute`, imported when the first of them is used.

Importing `pyarrow.compute` builds several hundred functions. Opening a small store calls none of them, and would
spend a fifth of its CPU on them.

    from nyala import compute as pc
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    import pyarrow.compute

    # Kept, so that the next use finds it at once.
    value = globals()[name] = getattr(pyarrow.compute, name)
    return value
