"""A frame-of-reference block in memory: packed integers, which filters compare without decoding."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import kernels
from nyala.cfile.forms.column_block import BlockPredicate, ColumnBlock, Rows
from nyala.cfile.forms.frame import Frame, output
from nyala.cfile.physical import Physical
from nyala.schema.arrow_values import python_converter

Bools = npt.NDArray[np.bool_]
# If a larger share of the rows is gathered, decoding the whole block and copying from it costs
# less.
_GATHER_SHARE: Final = 1 / 8


class FrameBlock(ColumnBlock):
    """A block of numbers that stores each number as its difference from a line through the block.

    The line has the value base + step · row in each row (see `Frame`).

    form: how the column's values are stored, and to which Arrow type they decode.
    narrow: like `form`, but decimals of 4 or 8 bytes decode to Arrow's decimal32 or decimal64. For
    other types it equals `form`.
    """

    __slots__ = ("_form", "_frame", "_narrow", "row_count")

    def __init__(self, frame: Frame, form: Physical, narrow: Physical) -> None:
        self._frame: Final = frame
        self._form: Final = form
        self._narrow: Final = narrow
        self.row_count = frame.row_count

    @property
    def nbytes(self) -> int:
        return self._frame.nbytes

    def decode(self, lower: int, upper: int, type: pa.DataType) -> pa.Array:
        form = self._narrow if type == self._narrow.arrow else self._form
        out, width = output(form, upper - lower)
        kernels.fill([self._frame.decode_into(out, 0, width, lower, upper)])
        return pa.Array.from_buffers(form.arrow, upper - lower, [None, out], 0)

    def filter(self, predicate: BlockPredicate, lower: int, upper: int, among: Bools | None) -> Bools:
        if predicate.numbers is None:
            return predicate.test.mask(self.decode(lower, upper, self._narrow.arrow))
        return self._frame.matches(predicate.numbers, lower, upper)

    def gather(self, rows: Rows, type: pa.DataType) -> pa.Array:
        if len(rows) > self.row_count * _GATHER_SHARE:
            return super().gather(rows, type)
        form = self._narrow if type == self._narrow.arrow else self._form
        out, width = output(form, len(rows))
        kernels.fill([self._frame.gather_into(out, 0, width, rows)])
        return pa.Array.from_buffers(form.arrow, len(rows), [None, out], 0)

    def value(self, row: int) -> Any:
        return python_converter(self._form.type)(self._frame.number(row))

    def owning(self) -> FrameBlock:
        return FrameBlock(self._frame.owning(), self._form, self._narrow)
