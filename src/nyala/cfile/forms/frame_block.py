"""A frame-of-reference block in memory: packed integers, which filters compare without decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import kernels
from nyala.cfile.forms.column_block import BoundPredicate, ColumnBlock, Rows
from nyala.cfile.forms.frame import Frame, output
from nyala.cfile.kernels import Fill
from nyala.cfile.physical import Physical
from nyala.schema.arrow_values import python_converter

__all__ = ["FrameBlock"]

Bools = npt.NDArray[np.bool_]
# If a larger share of a block's rows is gathered, decoding the block and copying costs less.
_GATHER_SHARE: Final = 1 / 8


class FrameBlock(ColumnBlock):
    """Numbers in a frame of reference. form: the column's. narrow: the narrow form, or `form`."""

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

    def filter(self, predicate: BoundPredicate, lower: int, upper: int, among: Bools | None) -> Bools:
        if predicate.numbers is None:
            return predicate.test.mask(self.decode(lower, upper, self._narrow.arrow))
        return self._frame.matches(predicate.numbers, lower, upper)

    def gather(self, rows: Rows, type: pa.DataType) -> pa.Array:
        if len(rows) > self.row_count * _GATHER_SHARE:
            return super().gather(rows, type)
        return self.gather_all((self,), (rows,), type)[0]

    @classmethod
    def gather_all(
        cls, blocks: Sequence[ColumnBlock], rows: Sequence[Rows], type: pa.DataType
    ) -> list[pa.Array]:
        """Gather into one array by one kernel call, unless many rows of a block are gathered."""
        first, count = blocks[0], sum(map(len, rows))
        assert isinstance(first, FrameBlock)
        if len(blocks) > 1 and count > _GATHER_SHARE * sum(block.row_count for block in blocks):
            return [block.gather(part, type) for block, part in zip(blocks, rows, strict=True)]
        form = first._narrow if type == first._narrow.arrow else first._form
        out, width = output(form, count)
        jobs: list[Fill] = []
        at = 0
        for block, part in zip(blocks, rows, strict=True):
            assert isinstance(block, FrameBlock)
            jobs.append(block._frame.gather_into(out, at, width, part))
            at += len(part)
        kernels.fill(jobs)
        return [pa.Array.from_buffers(form.arrow, count, [None, out], 0)]

    def value(self, row: int) -> Any:
        return python_converter(self._form.type)(self._frame.number(row))

    def owning(self) -> FrameBlock:
        return FrameBlock(self._frame.owning(), self._form, self._narrow)
