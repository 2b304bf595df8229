"""The functions of `pyarrow.compute`, imported when one is first used.

Importing `pyarrow.compute` creates several hundred functions. Opening a small store uses none of
them, and the import would take a fifth of its CPU time.

    from nyala import compute as pc
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    import pyarrow.compute

    # Stored as an attribute, so that the next use finds it without this function.
    value = globals()[name] = getattr(pyarrow.compute, name)
    return value
