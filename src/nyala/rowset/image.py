"""Rows to be written: the output of a MemRowSet for a flush, and of the inputs of a compaction."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile.physical import binary_offsets, is_large
from nyala.delta.run import LIVENESS, MAX_TIMESTAMP, DeltaRun, Rowids, take, without_history
from nyala.keys.encoded_keys import EncodedKeys
from nyala.rowset.meta import NO_ROWID
from nyala.schema.conversion.long_column import Column, LongColumn
from nyala.schema.plain_arrays import booleans_of

__all__ = ["RowSetImage", "most_text", "one_array", "whole_column"]

# The most bytes that 32-bit offsets can address.
_TEXT_BYTES_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True, eq=False)
class RowSetImage:
    """Rows in key order as of one moment: base values, and UNDO records for all earlier moments.

    keys:      strictly ascending; row i of the image has key i.
    columns:   by column id, including key columns; values as of the moment. Text above 2 GiB has 64-bit offsets or is
               a `LongColumn`; in a `piece` it is an array with 32-bit offsets.
    liveness:  one bool per row as of the moment; None if all rows are alive.
    undo:      by column id, including LIVENESS; rowids are positions in the image.
    positions: for each row of the source, its position in the image, or -1. Changes newer than the image are moved by
               it. Several merged rows of one key have the same position.
    """

    keys: EncodedKeys
    columns: Mapping[int, Column]
    liveness: pa.Array | None
    undo: Mapping[int, DeltaRun]
    positions: Rowids

    @property
    def row_count(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """Bytes of keys, columns and UNDO in memory: mostly an upper bound of the file sizes."""
        columns = sum(array.nbytes for array in self.columns.values())
        return int(columns + self.keys.nbytes + sum(run.nbytes for run in self.undo.values()))

    def slice(self, lower: int, upper: int) -> RowSetImage:
        """Return the rows [lower, upper) as an image.

        Cost: a pass over all positions; see `piece`.
        """
        inside = (self.positions >= lower) & (self.positions < upper)
        positions = np.where(inside, self.positions - lower, NO_ROWID)
        return dataclasses.replace(self.piece(lower, upper), positions=positions)

    def piece(self, lower: int, upper: int) -> RowSetImage:
        """Return rows [lower, upper) as an image without positions, to write as a rowset."""
        if (lower, upper) == (0, self.row_count) and all(
            isinstance(array, pa.Array) and not is_large(array.type) for array in self.columns.values()
        ):
            return self
        liveness = None if self.liveness is None else self.liveness.slice(lower, upper - lower)
        if liveness is not None and liveness.true_count == upper - lower:
            liveness = None
        undo = {column_id: run.of_rows(lower, upper) for column_id, run in self.undo.items()}
        return RowSetImage(
            self.keys.slice(lower, upper - lower),
            {
                column_id: one_array(array.slice(lower, upper - lower))
                for column_id, array in self.columns.items()
            },
            liveness,
            {
                column_id: dataclasses.replace(run, values=one_array(run.values))
                for column_id, run in undo.items()
                if len(run)
            },
            np.empty(0, np.int64),
        )

    def text_bytes(self, lower: int, upper: int) -> int:
        """Return the bytes of text of the rows [lower, upper) in the column, or UNDO of a column,
        with the most text.
        """
        most = most_text(self.columns, lower, upper)
        for run in self.undo.values():
            most = max(most, text_bytes(run.values, *np.searchsorted(run.rowids, (lower, upper)).tolist()))
        return most

    def alive(self) -> npt.NDArray[np.bool_]:
        """Return one bool per row: whether it is alive at the image's moment."""
        if self.liveness is None:
            return np.ones(self.row_count, np.bool_)
        alive: npt.NDArray[np.bool_] = booleans_of(self.liveness)
        return alive

    def without_history(self, cut: int) -> RowSetImage:
        """Return the image without UNDO and dead rows that no snapshot from `cut` on needs.

        Cost: none if nothing is dropped. Otherwise a pass over the UNDO, and over all columns if
        rows are dropped.
        """
        image = dataclasses.replace(self, undo=without_history(self.undo, cut))
        if self.liveness is None:
            return image
        needed = image.alive()
        past = image.undo.get(LIVENESS)
        if past is not None:
            needed[past.rowids] = True  # dead now, but alive at some moment after the cut
        return image if needed.all() else image._only(np.flatnonzero(needed))

    def without_past_of(self, rows: Rowids, until: int) -> RowSetImage:
        """Return the image without what these rows were up to `until`, at which they were dead.

        A row that is dead since then is left out. A row that was born again after `until` keeps what it
        was since that birth. MAX_TIMESTAMP: the rows are left out, alive or dead.
        """
        mine = np.zeros(self.row_count, np.bool_)
        mine[rows] = True
        born = np.full(self.row_count, MAX_TIMESTAMP, np.int64)
        past = self.undo.get(LIVENESS)
        if past is not None:
            later = past.timestamps > until
            np.minimum.at(born, past.rowids[later], past.timestamps[later])
        undo = {}
        for column_id, run in self.undo.items():
            # A record at the birth has the last value of the life before it.
            after = until if column_id == LIVENESS else born[run.rowids]
            undo[column_id] = run.filter(~mine[run.rowids] | (run.timestamps > after))
        image = dataclasses.replace(self, undo={number: run for number, run in undo.items() if len(run)})
        # A living row without a record of its birth was born after `until`, and the record has expired.
        kept = np.flatnonzero(~mine | (born < MAX_TIMESTAMP) | (self.alive() & (until < MAX_TIMESTAMP)))
        return image if len(kept) == self.row_count else image._only(kept)

    def _only(self, rows: npt.NDArray[np.int64]) -> RowSetImage:
        position = np.full(self.row_count, NO_ROWID, np.int64)
        position[rows] = np.arange(len(rows))
        undo = {column_id: run.moved(position) for column_id, run in self.undo.items()}
        liveness = None if self.liveness is None else take(self.liveness, rows)
        return RowSetImage(
            self.keys.take(rows),
            {column_id: take(array, rows) for column_id, array in self.columns.items()},
            None if liveness is None or liveness.true_count == len(rows) else liveness,
            {column_id: run for column_id, run in undo.items() if len(run)},
            np.where(self.positions >= 0, position[self.positions], NO_ROWID),
        )

    def check(self) -> None:
        """Assert the invariants of the fields."""
        count = self.row_count
        assert self.keys.is_strictly_ascending(), "keys must ascend strictly"
        assert all(len(array) == count for array in self.columns.values()), "columns must be as long as keys"
        assert self.liveness is None or len(self.liveness) == count, "liveness must be as long as keys"
        for run in self.undo.values():
            run.check()
            assert run.kind == "undo" and len(run), "runs must be UNDO and not empty"
            assert run.rowids[-1] < count, "UNDO must refer to rows of the image"
        used = np.unique(self.positions[self.positions >= 0])
        assert np.array_equal(used, np.arange(count)), (
            "each row of the image must come from a row of the source"
        )


def whole_column(parts: Sequence[pa.Array]) -> pa.Array:
    """Join parts of a column, at least one, to one array; text above 2 GiB gets 64-bit offsets."""
    type = parts[0].type
    is_text = type == pa.string()
    if (is_text or type == pa.binary()) and sum(part.nbytes for part in parts) > _TEXT_BYTES_MAX:
        parts = [part.cast(pa.large_string() if is_text else pa.large_binary()) for part in parts]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def most_text(columns: Mapping[int, Column], lower: int, upper: int) -> int:
    """Return the bytes of text in the rows [lower, upper) of the column with the most text."""
    return max((text_bytes(column, lower, upper) for column in columns.values()), default=0)


def text_bytes(column: Column, lower: int, upper: int) -> int:
    """Return the bytes of text in the rows [lower, upper) of a column; 0 for other types."""
    if isinstance(column, LongColumn):
        return column.text_bytes(lower, upper)
    if lower >= upper or not (is_large(column.type) or column.type in (pa.string(), pa.binary())):
        return 0
    ends = binary_offsets(column)
    return int(ends[upper]) - int(ends[lower])


def one_array(array: Column) -> pa.Array:
    """Return the column in its type's Arrow form, with 32-bit offsets.

    It must have less than 2 GiB of text.
    """
    if isinstance(array, LongColumn):
        return array.array()
    if not is_large(array.type):
        return array
    # Offsets of a slice count from the beginning of the whole image, unless it is copied.
    copied = pa.concat_arrays([array.slice(0, 0), array])
    return copied.cast(pa.string() if pa.types.is_large_string(array.type) else pa.binary())
