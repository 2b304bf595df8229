"""A run-length block in memory: the value and the end of each run."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import kernels
from nyala.cfile.forms.column_block import BlockPredicate, ColumnBlock, Rows
from nyala.cfile.memory import scratch
from nyala.cfile.physical import BITS, Physical

Bools = npt.NDArray[np.bool_]


class RunBlock(ColumnBlock):
    """A block that is kept as runs of equal values."""

    __slots__ = ("_ends", "_form", "_values", "row_count")

    def __init__(self, form: Physical, values: npt.NDArray[Any], ends: Rows) -> None:
        """values: the stored value of each run; for bool one byte each.
        ends: the row after each run, ascending. The last end is the row count.
        """
        self._form: Final = form
        self._values: Final = values
        self._ends: Final = ends
        self.row_count = int(ends[-1])

    @property
    def nbytes(self) -> int:
        return self._values.nbytes + self._ends.nbytes

    def decode(self, lower: int, upper: int, type: pa.DataType) -> pa.Array:
        values, ends = self._runs(lower, upper)
        rows = scratch(values.dtype, upper - lower)
        if len(values) == 1:
            rows.fill(values[0])
        elif len(values):
            kernels.repeat_runs(pa.py_buffer(values), values.itemsize, ends, pa.py_buffer(rows))
        return self._array(rows)

    def filter(self, predicate: BlockPredicate, lower: int, upper: int, among: Bools | None) -> Bools:
        values, ends = self._runs(lower, upper)
        return np.repeat(predicate.test.mask(self._array(values)), np.diff(ends, prepend=0))

    def gather(self, rows: Rows, type: pa.DataType) -> pa.Array:
        return self._array(self._values[self._ends.searchsorted(rows, side="right")])

    def owning(self) -> RunBlock:
        return self

    def _runs(self, lower: int, upper: int) -> tuple[npt.NDArray[Any], Rows]:
        """Return (values, ends) of the runs that overlap the rows [lower, upper).

        Ends are counted from `lower`.
        """
        first = int(self._ends.searchsorted(lower, side="right"))
        last = int(self._ends.searchsorted(upper - 1, side="right")) + 1 if lower < upper else first
        return self._values[first:last], np.minimum(self._ends[first:last], upper) - lower

    def _array(self, values: npt.NDArray[Any]) -> pa.Array:
        if self._form.kind == BITS:
            data = pa.py_buffer(np.packbits(values, bitorder="little"))
            return pa.Array.from_buffers(self._form.arrow, len(values), [None, data], 0)
        return self._form.fixed_array(pa.py_buffer(values), len(values))
