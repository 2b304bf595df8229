"""Brings a column to a snapshot in the two steps of a rowset: `resolve`, then `patch`."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from nyala.delta.applier import patch, resolve
from nyala.delta.run import DeltaRun


def applied(
    base: pa.Array, lower: int, undo: Sequence[DeltaRun], redo: Sequence[DeltaRun], snapshot: int
) -> pa.Array:
    """Return the rows from `lower` on at `snapshot`; `base` holds just these rows.

    undo: newest first; redo: oldest first (D5).
    """
    rowids, values = resolve(undo, redo, snapshot, lower, lower + len(base))
    return base if values is None else patch(base, rowids - lower, values)
