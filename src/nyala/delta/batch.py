"""Rows that were written together: columns that several stores share, and changes on their way.

    one write of 1,000 rows x 16 columns over 64 tablets

    SharedBatch   | host | time | value | ...      one array per column, made once
                    [0,16)  -> tablet 1's store     each store keeps (batch, offset, length) and slices a
                    [16,31) -> tablet 2's store     column when somebody reads it
                    ...

Source: docs/design/writes-and-batches.md, "Cost is counted in calls": calls are O(columns + tablets), never the
product.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from nyala.delta.run import Rowids, Timestamps, take
from nyala.lazy_values import LazyValues, lazy_value
from nyala.schema.conversion.long_column import Column, LongColumn

__all__ = ["DeltaBatch", "SharedBatch", "held_bytes"]


def held_bytes(arrays: Iterable[Column]) -> int:
    """Bytes of all buffers of arrays that own their memory; of long columns the bytes that they will have.

    Arrow's `nbytes`, which asks whose memory it is, costs ten times as much: more than a small batch's log record.
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
    """Columns by column id, all of one length, that own their memory and are never changed.

    It lives as long as one of the stores that hold a part of it; each counts its own rows' share.
    """

    columns: Mapping[int, pa.Array]
    nbytes: int | None = None
    """What the columns hold, if whoever made it knows."""
    batch: pa.RecordBatch | None = None
    """The same columns under their ids, if whoever made it has them so."""
    column_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "column_ids", frozenset(self.columns))

    @lazy_value
    def row_count(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    @lazy_value
    def bytes_per_row(self) -> float:
        """Average bytes of a row; asked once per batch, whatever the number of its stores."""
        total = held_bytes(self.columns.values()) if self.nbytes is None else self.nbytes
        return total / max(1, self.row_count)


@dataclass(frozen=True, eq=False)
class DeltaBatch:
    """Changes of some rows: one vector of rowids and one of timestamps, shared by the columns written together.

    rowids come in any order; a row may stand several times, with different timestamps.
    """

    rowids: Rowids
    timestamps: Timestamps
    columns: Mapping[int, pa.Array]

    def __len__(self) -> int:
        return len(self.rowids)

    def moved(self, positions: Rowids) -> DeltaBatch:
        """The same changes where row r is now row `positions[r]`; those of rows gone to -1 are left out.

        This carries changes from the inputs of a flush or compaction over to its output.
        """
        rowids = positions[self.rowids]
        keep = rowids >= 0
        if keep.all():
            return DeltaBatch(rowids, self.timestamps, self.columns)
        at = np.flatnonzero(keep)
        columns = {column_id: take(array, at) for column_id, array in self.columns.items()}
        return DeltaBatch(rowids[at], self.timestamps[at], columns)
