"""Rows that were written together: columns shared by several stores, and batches of changes.

    one write of 1,000 rows x 16 columns over 64 tablets

    SharedBatch   | host | time | value | ...      one array per column, created once
                    [0,16)  -> tablet 1's store     each store keeps (batch, offset, length) and slices a
                    [16,31) -> tablet 2's store     column when a reader needs it
                    ...

Source: docs/design/writes-and-batches.md, "Cost is counted in calls": calls are O(columns +
tablets), never the product.
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
    """Return the bytes of all buffers of arrays that own their memory; for long columns the bytes
    they will have.

    Arrow's `nbytes` also checks who owns the memory and costs ten times as much: more than the log
    record of a small batch.
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
    """Immutable columns of equal length by column id, which own their memory.

    It lives as long as a store holds a part of it. Each store counts the bytes of its own rows.
    """

    columns: Mapping[int, pa.Array]
    nbytes: int | None = None
    """The bytes of the columns, if the creator knows them."""
    column_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "column_ids", frozenset(self.columns))

    @lazy_value
    def row_count(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    @lazy_value
    def bytes_per_row(self) -> float:
        """Average bytes of a row, computed once per batch for all stores."""
        total = held_bytes(self.columns.values()) if self.nbytes is None else self.nbytes
        return total / max(1, self.row_count)


@dataclass(frozen=True, eq=False)
class DeltaBatch:
    """Changes of some rows: rowids and timestamps, shared by the columns that were written
    together.

    rowids may have any order. A row may repeat with different timestamps.
    """

    rowids: Rowids
    timestamps: Timestamps
    columns: Mapping[int, pa.Array]

    def __len__(self) -> int:
        return len(self.rowids)

    def moved(self, positions: Rowids) -> DeltaBatch:
        """Return the changes with row r replaced by `positions[r]`; changes of rows with position
        -1 are dropped.

        This moves changes from the inputs of a flush or compaction to its output.
        """
        rowids = positions[self.rowids]
        keep = rowids >= 0
        if keep.all():
            return DeltaBatch(rowids, self.timestamps, self.columns)
        at = np.flatnonzero(keep)
        columns = {column_id: take(array, at) for column_id, array in self.columns.items()}
        return DeltaBatch(rowids[at], self.timestamps[at], columns)
