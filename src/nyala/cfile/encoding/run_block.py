"""A block of runs as the cache keeps it: a value and an end for each run."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import kernels
from nyala.cfile.encoding.column_block import ColumnBlock, Rows, Wanted, bits_of, with_nulls
from nyala.cfile.memory import scratch
from nyala.cfile.physical import BITS, Physical, slice_bitmap

__all__ = ["RunBlock"]

Bools = npt.NDArray[np.bool_]


class RunBlock(ColumnBlock):
    """Runs of equal values. validity: of a block with NULLs, which continue the run before them."""

    __slots__ = ("_ends", "_form", "_validity", "_values", "null_count", "row_count")

    def __init__(
        self,
        form: Physical,
        values: npt.NDArray[Any],
        ends: Rows,
        validity: pa.Buffer | None,
        null_count: int,
    ) -> None:
        """values: as they are stored, one for each run; of bool one byte each. ends: ascending, the last one the row
        count."""
        self._form: Final = form
        self._values: Final = values
        self._ends: Final = ends
        self._validity: Final = validity
        self.row_count = int(ends[-1])
        self.null_count = null_count

    @property
    def nbytes(self) -> int:
        size = self._values.nbytes + self._ends.nbytes
        return size if self._validity is None else size + self._validity.size

    def decode(self, lower: int, upper: int, type: pa.DataType) -> pa.Array:
        values, ends = self._runs(lower, upper)
        rows = scratch(values.dtype, upper - lower)
        if len(values) == 1:
            rows.fill(values[0])
        else:
            kernels.repeat(pa.py_buffer(values), values.itemsize, ends, pa.py_buffer(rows))
        bitmap = None
        if self._validity is not None:
            bitmap = pa.py_buffer(slice_bitmap(self._validity, lower, upper - lower))
        return self._array(rows, bitmap)

    def filter(self, wanted: Wanted, lower: int, upper: int, among: Bools | None) -> Bools:
        values, ends = self._runs(lower, upper)
        of_runs = wanted.test.mask(self._array(values, None))
        mask = np.repeat(of_runs, np.diff(ends, prepend=0))
        valid = None if self._validity is None else bits_of(self._validity, lower, upper)
        return with_nulls(mask, valid, wanted.test.admits_null)

    def gather(self, rows: Rows, type: pa.DataType) -> pa.Array:
        bitmap = None
        if self._validity is not None:
            valid = bits_of(self._validity, 0, self.row_count)[rows]
            bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
        return self._array(self._values[self._ends.searchsorted(rows, side="right")], bitmap)

    def owning(self) -> RunBlock:
        return self

    def _runs(self, lower: int, upper: int) -> tuple[npt.NDArray[Any], Rows]:
        """(values, ends) of the runs of these rows, counted from `lower`."""
        first = int(self._ends.searchsorted(lower, side="right"))
        last = int(self._ends.searchsorted(upper - 1, side="right")) + 1
        return self._values[first:last], np.minimum(self._ends[first:last], upper) - lower

    def _array(self, values: npt.NDArray[Any], bitmap: pa.Buffer | None) -> pa.Array:
        null_count = 0 if bitmap is None else -1
        if self._form.kind == BITS:
            data = pa.py_buffer(np.packbits(values, bitorder="little"))
            return pa.Array.from_buffers(self._form.arrow, len(values), [bitmap, data], null_count)
        return self._form.fixed_array(pa.py_buffer(values), len(values), bitmap, null_count)
