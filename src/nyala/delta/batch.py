"""Batches of rows that were written together. The tablets that get the rows share the columns.

    one write of 1,000 rows x 16 columns over 64 tablets

    SharedBatch   | host | time | value | ...   one array per column, created once
                    [0,16)  -> tablet 1's MemRowSet   each MemRowSet keeps (batch, offset, length),
                    [16,31) -> tablet 2's MemRowSet   and slices a column when a reader needs it
                    ...

DeltaMemStores (the changes of one DiskRowSet in memory) share the columns of a batch likewise. So a
write of c columns to t tablets makes about c + t NumPy and Arrow calls, and not c x t.
Source: docs/design/writes-and-batches.md, "Cost is counted in calls".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from nyala.delta.run import Rowids, Timestamps, take
from nyala.lazy_values import LazyValues, lazy_value
from nyala.schema.conversion.long_column import Column, LongColumn


def held_bytes(arrays: Iterable[Column]) -> int:
    """Return the total size of the buffers of `arrays`, in bytes. The arrays must not be slices.

    For a `LongColumn` (a column that may have more than 2 GiB of text), the size that it would have
    as one array counts. This function is ten times as fast as Arrow's `nbytes`.
    """
    total = 0
    for array in arrays:
        if isinstance(array, LongColumn):
            total += array.nbytes
            continue
        for buffer in array.buffers():
            if buffer is not None:
                total += buffer.size
    return total


@dataclass(frozen=True, eq=False)
class SharedBatch(LazyValues):
    """The columns of one write, by column id. Several MemRowSets or DeltaMemStores share them.

    Each of these owners uses a range of the rows, and counts only the bytes of its own rows. The
    columns are immutable, have equal length and own their memory. The memory is freed when no owner
    refers to the batch any more.
    """

    columns: Mapping[int, pa.Array]
    nbytes: int | None = None
    """The size of the columns in bytes; None if the creator does not know it."""
    column_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "column_ids", frozenset(self.columns))

    @lazy_value
    def row_count(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    @lazy_value
    def bytes_per_row(self) -> float:
        """The average size of a row, in bytes. It is computed once, at the first use."""
        total = held_bytes(self.columns.values()) if self.nbytes is None else self.nbytes
        return total / max(1, self.row_count)


@dataclass(frozen=True, eq=False)
class DeltaBatch:
    """Changes of some rows. All columns have the same rowids and timestamps.

    Rowids may have any order. A row may repeat with different timestamps.
    """

    rowids: Rowids
    timestamps: Timestamps
    columns: Mapping[int, pa.Array]

    def __len__(self) -> int:
        return len(self.rowids)

    def moved(self, positions: Rowids) -> DeltaBatch:
        """Return the changes with other rowids: row r becomes row `positions[r]`.

        If `positions[r]` is -1, the changes of row r are dropped. A flush or compaction uses this
        to move changes from its inputs to its output.
        """
        rowids = positions[self.rowids]
        keep = rowids >= 0
        if keep.all():
            return DeltaBatch(rowids, self.timestamps, self.columns)
        at = np.flatnonzero(keep)
        columns = {column_id: take(array, at) for column_id, array in self.columns.items()}
        return DeltaBatch(rowids[at], self.timestamps[at], columns)
