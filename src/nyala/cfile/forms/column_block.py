"""A block of a column in memory, in the form that its encoding keeps, and the three operations of a scan over it.

    decode    rows [lower, upper) as an Arrow array
    filter    which of these rows satisfy a test; without decoding them where the form allows it
    gather    single rows as an Arrow array

    form             of                             keeps                         filters
    ArrowBlock       any encoding                   the decoded array             its values
    FrameBlock       frame of reference             packed differences            packed differences
    CodeBlock        dictionary                     packed dictionary codes       packed dictionary codes
    RunBlock         run length                     a value and an end per run    a value per run
    NullableBlock    one of the last three          the block of the values and   the block of the values
                     in a block with NULLs          the validity bitmap
    NullBlock        a block of NULLs only          nothing                       NULLs

An encoding without a form of its own inherits `ArrowBlock`: it decodes once, and the operations work on the array. The
cache keeps blocks in these forms, so a block takes about as much memory as it takes in the file.

Encodings and their forms never see a NULL: a block stores its values without NULLs, and `with_nulls` adds the bitmap.

A block is immutable; any thread may use it.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nyala.cfile import kernels
from nyala.cfile.forms.number_set import NumberSet
from nyala.cfile.forms.validity import Validity
from nyala.cfile.memory import pool, scratch
from nyala.schema.arrow_values import python_at
from nyala.schema.plain_arrays import array_of_numbers
from nyala.schema.predicates.column_test import ColumnTest

__all__ = ["ArrowBlock", "ColumnBlock", "NullBlock", "NullableBlock", "Rows", "Wanted", "gathered", "rows_in"]

Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]
# Where fewer rows are left, a costly test looks at these alone.
_FEW_SHARE: Final = 1 / 8


@dataclass(frozen=True, eq=False)
class Wanted:
    """A test of one column of one file.

    numbers: the stored numbers that satisfy the test: values of a frame of reference, dictionary codes. None: only
             values tell.
    """

    test: ColumnTest
    type: pa.DataType
    """The column's `cheap_type`."""
    numbers: NumberSet | None


class ColumnBlock(abc.ABC):
    """See the module. A form implements `decode`, and overrides the operations that it can do at less cost."""

    row_count: int
    null_count: int = 0

    @property
    @abc.abstractmethod
    def nbytes(self) -> int:
        """What it keeps in memory, without a dictionary, which the column shares."""

    @abc.abstractmethod
    def decode(self, lower: int, upper: int, type: pa.DataType) -> pa.Array:
        """The rows [lower, upper), maybe none: as `type` where the form has that at no more cost, else in the block's
        own type."""

    @abc.abstractmethod
    def owning(self) -> ColumnBlock:
        """The same without references into memory that it was read to."""

    def with_nulls(self, validity: Validity) -> ColumnBlock:
        """The block of rows with and without a value, whose values are this block's rows."""
        return NullableBlock(self, validity)

    def filter(self, wanted: Wanted, lower: int, upper: int, among: Bools | None) -> Bools:
        """A fresh mask of the rows [lower, upper) that satisfy a test.

        among: the rows that matter, counted from `lower`; of others the answer may be anything. None: all.
        """
        array, test = self.decode(lower, upper, wanted.type), wanted.test
        if among is None or not test.is_costly:
            return test.mask(array)
        rows = rows_in(among)
        if len(rows) > len(array) * _FEW_SHARE:
            return test.mask(array)
        mask = np.zeros(len(array), np.bool_)
        mask[rows] = test.mask(array.take(array_of_numbers(rows)))
        return mask

    def gather(self, rows: Rows, type: pa.DataType) -> pa.Array:
        """These rows, in their order; types as of `decode`."""
        array = self.decode(0, self.row_count, type)
        return pc.take(array, array_of_numbers(rows), boundscheck=False, memory_pool=pool())

    @classmethod
    def gather_all(
        cls, blocks: Sequence[ColumnBlock], rows: Sequence[Rows], type: pa.DataType
    ) -> list[pa.Array]:
        """`gather` of several blocks of this class, in one array or in more."""
        return [block.gather(of, type) for block, of in zip(blocks, rows, strict=True)]

    @classmethod
    def decode_all(
        cls, blocks: Sequence[ColumnBlock], ranges: Sequence[tuple[int, int]], type: pa.DataType
    ) -> list[pa.Array]:
        """`decode` of [lower, upper) of several blocks of this class, in one array or in more."""
        return [block.decode(*rows, type) for block, rows in zip(blocks, ranges, strict=True)]

    def value(self, row: int) -> Any:
        """One row as the Python value that Arrow gives for it. Raises: CorruptionError for what is no value."""
        return python_at(self.decode(row, row + 1, _ANY), 0)


_ANY: Final = pa.null()


class ArrowBlock(ColumnBlock):
    """A decoded array: of a decimal that is stored in 4 or 8 bytes the narrow one."""

    __slots__ = ("array", "null_count", "row_count")

    def __init__(self, array: pa.Array) -> None:
        self.array: Final = array
        self.row_count = len(array)
        self.null_count = array.null_count

    @property
    def nbytes(self) -> int:
        return sum(buffer.size for buffer in self.array.buffers() if buffer is not None)

    def decode(self, lower: int, upper: int, type: pa.DataType) -> pa.Array:
        return self.array.slice(lower, upper - lower)

    def owning(self) -> ArrowBlock:
        buffers: list[Any] = [
            None if buffer is None else pa.py_buffer(buffer.to_pybytes()) for buffer in self.array.buffers()
        ]
        array = self.array
        return ArrowBlock(
            pa.Array.from_buffers(array.type, len(array), buffers, array.null_count, array.offset)
        )

    def with_nulls(self, validity: Validity) -> ColumnBlock:
        return ArrowBlock(validity.spread(self.array))


class NullBlock(ColumnBlock):
    """Rows that are all NULL. dictionary: of a column that has one."""

    __slots__ = ("_dictionary", "_type", "null_count", "row_count")

    def __init__(self, type: pa.DataType, dictionary: pa.Array | None, row_count: int) -> None:
        self._type: Final = type
        self._dictionary: Final = dictionary
        self.row_count = self.null_count = row_count

    @property
    def nbytes(self) -> int:
        return 0

    def decode(self, lower: int, upper: int, type: pa.DataType) -> pa.Array:
        if self._dictionary is None:
            return pa.nulls(upper - lower, self._type)
        codes = pa.nulls(upper - lower, pa.int32())
        return pa.DictionaryArray.from_arrays(codes, self._dictionary, safe=False)

    def owning(self) -> NullBlock:
        return self


class NullableBlock(ColumnBlock):
    """A block with NULLs, over the block of its values. validity: has as many ones as `values` has rows."""

    __slots__ = ("_validity", "_values", "null_count", "row_count")

    def __init__(self, values: ColumnBlock, validity: Validity) -> None:
        self._values: Final = values
        self._validity: Final = validity
        self.row_count = validity.row_count
        self.null_count = validity.row_count - values.row_count

    @property
    def nbytes(self) -> int:
        return self._values.nbytes + self._validity.nbytes

    def decode(self, lower: int, upper: int, type: pa.DataType) -> pa.Array:
        part, first, last = self._validity.part(lower, upper)
        return part.spread(self._values.decode(first, last, type))

    def filter(self, wanted: Wanted, lower: int, upper: int, among: Bools | None) -> Bools:
        part, first, last = self._validity.part(lower, upper)
        of_values = None if among is None else among[part.bits()]
        mask = part.spread_mask(self._values.filter(wanted, first, last, of_values))
        return mask | ~part.bits() if wanted.test.admits_null else mask

    def gather(self, rows: Rows, type: pa.DataType) -> pa.Array:
        part, places = self._validity.take(rows)
        return part.spread(self._values.gather(places, type))

    def value(self, row: int) -> Any:
        part, place, _ = self._validity.part(row, row + 1)
        return self._values.value(place) if part.bits()[0] else None

    def owning(self) -> NullableBlock:
        return NullableBlock(self._values.owning(), self._validity.owning())


def decoded(
    blocks: Sequence[ColumnBlock], ranges: Sequence[tuple[int, int]], type: pa.DataType
) -> list[pa.Array]:
    """`ColumnBlock.decode` of several blocks of one column, in one array or in more."""
    kind = blocks[0].__class__
    if all(block.__class__ is kind for block in blocks):
        return kind.decode_all(blocks, ranges, type)
    return [block.decode(*rows, type) for block, rows in zip(blocks, ranges, strict=True)]


def gathered(blocks: Sequence[ColumnBlock], rows: Sequence[Rows], type: pa.DataType) -> list[pa.Array]:
    """`ColumnBlock.gather` of several blocks of one column, in one array or in more."""
    kind = blocks[0].__class__
    if all(block.__class__ is kind for block in blocks):
        return kind.gather_all(blocks, rows, type)
    return [block.gather(of, type) for block, of in zip(blocks, rows, strict=True)]


def rows_in(mask: Bools) -> Rows:
    """The numbers of the rows that a contiguous mask has; ascending.

    Cost: as `np.flatnonzero`, but in memory that is used again: it would have that of eight bytes a row cleared.
    """
    out = scratch(np.int64, len(mask) + 1)
    return out[: kernels.places(mask.view(np.uint8), out)]
