"""Images: the rows and their history that a flush or a compaction writes as a new rowset."""

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

# The most bytes that 32-bit offsets can address.
_TEXT_BYTES_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True, eq=False)
class RowSetImage:
    """Rows in key order as of one moment: base values, and UNDO records for all earlier moments.

    keys:      strictly ascending; key i belongs to row i.
    columns:   the values at the moment, by column id, with the key columns. Text above 2 GiB has
               64-bit offsets or is a `LongColumn`. A result of `piece` has 32-bit offsets only.
    liveness:  whether each row is alive at the moment; None if all rows are.
    undo:      the UNDO records by column id, with LIVENESS; their rowids are rows of the image.
    positions: the image's row for each source row, or -1 if the image leaves the source row out.
               The caller needs it to copy newer changes (made after the moment) to the new
               rowset. Source rows with the same key have the same position.
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
        """The size of keys, columns and UNDO in memory, in bytes. The files are usually smaller."""
        columns = sum(array.nbytes for array in self.columns.values())
        return int(columns + self.keys.nbytes + sum(run.nbytes for run in self.undo.values()))

    def piece(self, lower: int, upper: int) -> RowSetImage:
        """Return the rows [lower, upper) as an image of their own, for `write_rowset`.

        `positions` (where the source rows are in the image) is not adapted. Use that of the whole
        image.
        """
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
        """Return the most bytes of text that any one array has in the rows [lower, upper).

        Each column has up to two arrays: one of its base values, and one of its UNDO values.
        """
        most = most_text(self.columns, lower, upper)
        for run in self.undo.values():
            most = max(most, text_bytes(run.values, *np.searchsorted(run.rowids, (lower, upper)).tolist()))
        return most

    def alive(self) -> npt.NDArray[np.bool_]:
        """Return whether each row is alive at the image's moment."""
        if self.liveness is None:
            return np.ones(self.row_count, np.bool_)
        alive: npt.NDArray[np.bool_] = booleans_of(self.liveness)
        return alive

    def without_history(self, cut: int) -> RowSetImage:
        """Return the image without the UNDO and dead rows that only snapshots before `cut` need."""
        image = dataclasses.replace(self, undo=without_history(self.undo, cut))
        if self.liveness is None:
            return image
        needed = image.alive()
        past = image.undo.get(LIVENESS)
        if past is not None:
            needed[past.rowids] = True  # dead now, but alive at some moment after the cut
        return image if needed.all() else image._only(np.flatnonzero(needed))

    def without_past_of(self, rows: Rowids, until: int) -> RowSetImage:
        """Return the image without the history of these rows up to the timestamp `until`.

        until: a timestamp at which all these rows were dead. MAX_TIMESTAMP: leave out all of them.

        A row that is still dead is left out. A row that was inserted again after `until` keeps its
        values from that insertion on.
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
            # A value record at the moment of the insertion holds the value before the delete.
            after = until if column_id == LIVENESS else born[run.rowids]
            undo[column_id] = run.filter(~mine[run.rowids] | (run.timestamps > after))
        image = dataclasses.replace(self, undo={number: run for number, run in undo.items() if len(run)})
        # A live row without a record of its insertion: it was inserted after `until`, and the
        # record has expired.
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
        """Assert that the fields of this object fit together.

        Keys ascend. Columns and `liveness` are as long as the keys. UNDO records refer only to rows
        of the image. `positions` has every row of the image.
        """
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
    """Concatenate arrays of a column; text above 2 GiB gets 64-bit offsets."""
    type = parts[0].type
    is_text = type == pa.string()
    if (is_text or type == pa.binary()) and sum(part.nbytes for part in parts) > _TEXT_BYTES_MAX:
        parts = [part.cast(pa.large_string() if is_text else pa.large_binary()) for part in parts]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def most_text(columns: Mapping[int, Column], lower: int, upper: int) -> int:
    """Return the most text that one column has in the rows [lower, upper), in bytes."""
    return max((text_bytes(column, lower, upper) for column in columns.values()), default=0)


def text_bytes(column: Column, lower: int, upper: int) -> int:
    """Return the size of the text in a column's rows [lower, upper), in bytes.

    0 if the column's type is not text or binary.
    """
    if isinstance(column, LongColumn):
        return column.text_bytes(lower, upper)
    if lower >= upper or not (is_large(column.type) or column.type in (pa.string(), pa.binary())):
        return 0
    ends = binary_offsets(column)
    return int(ends[upper]) - int(ends[lower])


def one_array(array: Column) -> pa.Array:
    """Return a column with less than 2 GiB of text as one array with 32-bit offsets."""
    if isinstance(array, LongColumn):
        return array.array()
    if not is_large(array.type):
        return array
    # Copied, because the offsets of a slice count from the start of the whole image.
    copied = pa.concat_arrays([array.slice(0, 0), array])
    return copied.cast(pa.string() if pa.types.is_large_string(array.type) else pa.binary())
