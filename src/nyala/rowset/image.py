"""Rows on their way to disk: what a flush takes out of a MemRowSet, and a compaction out of its inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile.physical import binary_offsets, is_large
from nyala.delta.run import LIVENESS, DeltaRun, Rowids, take, without_history
from nyala.keys.encoded_keys import EncodedKeys
from nyala.rowset.meta import NO_ROWID
from nyala.schema.conversion.long_column import Column, LongColumn
from nyala.schema.plain_arrays import booleans_of

__all__ = ["RowSetImage", "most_text", "one_array", "whole_column"]

# What offsets of 32 bits address.
_TEXT_BYTES_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True, eq=False)
class RowSetImage:
    """Rows in key order, as of one moment: base values, and UNDO to all moments before.

    keys:      strictly ascending; row i of the image has key i.
    columns:   by column id, key columns among them; values as of that moment. Text of more than 2 GiB has offsets of 64
               bits, or is a `LongColumn`; in a `piece` it is an array with offsets of 32 bits.
    liveness:  bool per row as of that moment; None when all are there.
    undo:      by column id, LIVENESS among them; rowids are places in the image.
    positions: for each row of the source its place here, or -1: changes newer than the image follow it. Several rows of
               one key, merged, have one place.
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
        """Bytes of keys, columns and UNDO in memory: an upper bound, mostly, of what the files will take."""
        columns = sum(array.nbytes for array in self.columns.values())
        return int(columns + self.keys.nbytes + sum(run.nbytes for run in self.undo.values()))

    def slice(self, lower: int, upper: int) -> RowSetImage:
        """The rows [lower, upper) as an image of their own. Cost: a pass over all positions; see `piece`."""
        inside = (self.positions >= lower) & (self.positions < upper)
        positions = np.where(inside, self.positions - lower, NO_ROWID)
        return dataclasses.replace(self.piece(lower, upper), positions=positions)

    def piece(self, lower: int, upper: int) -> RowSetImage:
        """The rows [lower, upper) to be written: a flush of much makes several rowsets. It has no positions."""
        if (lower, upper) == (0, self.row_count) and all(
            isinstance(array, pa.Array) and not is_large(array.type) for array in self.columns.values()
        ):
            return self
        liveness = None if self.liveness is None else self.liveness.slice(lower, upper - lower)
        if liveness is not None and liveness.true_count == upper - lower:
            liveness = None
        undo = {column_id: run.window(lower, upper) for column_id, run in self.undo.items()}
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
        """How much text the rows [lower, upper) have in the column, or the UNDO of a column, that has most."""
        most = most_text(self.columns, lower, upper)
        for run in self.undo.values():
            most = max(most, text_bytes(run.values, *np.searchsorted(run.rowids, (lower, upper)).tolist()))
        return most

    def alive(self) -> npt.NDArray[np.bool_]:
        """Per row whether it is there at the image's moment."""
        if self.liveness is None:
            return np.ones(self.row_count, np.bool_)
        alive: npt.NDArray[np.bool_] = booleans_of(self.liveness)
        return alive

    def without_history(self, cut: int) -> RowSetImage:
        """The image as snapshots from `cut` on need it: no older UNDO, no rows that were dead already.

        Cost: nothing when there is nothing to leave out; otherwise a pass over the UNDO, and over all columns when
              rows go.
        """
        image = dataclasses.replace(self, undo=without_history(self.undo, cut))
        if self.liveness is None:
            return image
        needed = image.alive()
        past = image.undo.get(LIVENESS)
        if past is not None:
            needed[past.rowids] = True  # dead now, and there at some moment after the cut
        return image if needed.all() else image._only(np.flatnonzero(needed))

    def _only(self, rows: npt.NDArray[np.int64]) -> RowSetImage:
        place = np.full(self.row_count, NO_ROWID, np.int64)
        place[rows] = np.arange(len(rows))
        undo = {column_id: run.moved(place) for column_id, run in self.undo.items()}
        liveness = None if self.liveness is None else take(self.liveness, rows)
        return RowSetImage(
            self.keys.take(rows),
            {column_id: take(array, rows) for column_id, array in self.columns.items()},
            None if liveness is None or liveness.true_count == len(rows) else liveness,
            {column_id: run for column_id, run in undo.items() if len(run)},
            np.where(self.positions >= 0, place[self.positions], NO_ROWID),
        )

    def check(self) -> None:
        """Assert what the fields promise."""
        count = self.row_count
        assert self.keys.is_strictly_ascending(), "keys ascend, and each stands once"
        assert all(len(array) == count for array in self.columns.values()), "columns are as long as keys"
        assert self.liveness is None or len(self.liveness) == count, "liveness is as long as keys"
        for run in self.undo.values():
            run.check()
            assert run.kind == "undo" and len(run), "UNDO, and not empty"
            assert run.rowids[-1] < count, "UNDO is of rows of the image"
        placed = np.unique(self.positions[self.positions >= 0])
        assert np.array_equal(placed, np.arange(count)), (
            "each row of the image comes from a row of the source"
        )


def whole_column(parts: Sequence[pa.Array]) -> pa.Array:
    """Parts of a column, one at least, as one array for an image: text and binary with offsets of 64 bits where those
    of 32 do not reach."""
    type = parts[0].type
    is_text = type == pa.string()
    if (is_text or type == pa.binary()) and sum(part.nbytes for part in parts) > _TEXT_BYTES_MAX:
        parts = [part.cast(pa.large_string() if is_text else pa.large_binary()) for part in parts]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def most_text(columns: Mapping[int, Column], lower: int, upper: int) -> int:
    """Bytes of text in the rows [lower, upper) of the column that has most."""
    return max((text_bytes(column, lower, upper) for column in columns.values()), default=0)


def text_bytes(column: Column, lower: int, upper: int) -> int:
    """Bytes of text in the rows [lower, upper); 0: the column has another type."""
    if isinstance(column, LongColumn):
        return column.text_bytes(lower, upper)
    if lower >= upper or not (is_large(column.type) or column.type in (pa.string(), pa.binary())):
        return 0
    ends = binary_offsets(column)
    return int(ends[upper]) - int(ends[lower])


def one_array(array: Column) -> pa.Array:
    """The column in its type's Arrow form: text with offsets of 32 bits. It has less than 2 GiB of text."""
    if isinstance(array, LongColumn):
        return array.array()
    if not is_large(array.type):
        return array
    # Offsets count from the array's beginning: that of the image, unless it is copied.
    copied = pa.concat_arrays([array.slice(0, 0), array])
    return copied.cast(pa.string() if pa.types.is_large_string(array.type) else pa.binary())
