"""A block of a column in memory, with the three operations of a scan.

    decode    rows [lower, upper) as an Arrow array
    filter    a mask of the rows that satisfy a predicate, without decoding if the form allows it
    gather    single rows as an Arrow array

Each encoding has a form in memory, a class that implements the operations:

    form             encoding                      keeps                         filters by
    ArrowBlock       any                           the decoded array             values
    FrameBlock       frame of reference            packed integers               packed integers
    CodeBlock        dictionary                    packed dictionary codes       packed dictionary codes
    RunBlock         run length                    a value and an end per run    one value per run
    NullableBlock    as FrameBlock, CodeBlock      the block of the values and   the block of the values
                     or RunBlock, with some NULLs  the validity bitmap
    NullBlock        any, all rows NULL            nothing                       NULLs

An encoding without its own form uses `ArrowBlock`: the block is decoded once, and the operations
work on the array. The cache keeps blocks in these forms, so most blocks take about as much memory
as in the file.

The forms of encodings contain no NULLs: a block in the file stores only its values that are not
NULL, and `with_nulls` adds the bitmap. A block is immutable; any thread may use it.
"""

from __future__ import annotations

import abc
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
from nyala.schema.arrow_values import python_value_at
from nyala.schema.plain_arrays import array_of_numbers
from nyala.schema.predicates.column_test import ColumnTest

Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]
# If a smaller share of the rows is selected, a costly test is evaluated on these rows only.
_FEW_SHARE: Final = 1 / 8


@dataclass(frozen=True, eq=False)
class BlockPredicate:
    """A predicate on one column, prepared for the blocks of one column file.

    numbers: the integers that satisfy the test: dictionary codes, or values that a block stores as
        packed integers, such as dates. None: values must be decoded to be tested.
    """

    test: ColumnTest
    type: pa.DataType
    """The `cheap_type` of the column."""
    numbers: NumberSet | None


class ColumnBlock(abc.ABC):
    """The base class of blocks in memory. It has one subclass, called a form, per encoding.

    A form must implement `decode`. It overrides the other operations if it can do them faster.
    """

    row_count: int
    null_count: int = 0

    @property
    @abc.abstractmethod
    def nbytes(self) -> int:
        """The size in memory, in bytes, without the dictionary, which the column's blocks share."""

    @abc.abstractmethod
    def decode(self, lower: int, upper: int, type: pa.DataType) -> pa.Array:
        """Return the values of the rows [lower, upper) as an Arrow array. The range may be empty.

        type: the preferred type of the result. If the form cannot decode to this type directly, the
        result has the block's own type.
        """

    @abc.abstractmethod
    def owning(self) -> ColumnBlock:
        """Return a copy of the block in its own memory, not in a slice of a larger buffer."""

    def with_nulls(self, validity: Validity) -> ColumnBlock:
        """Return a block of more rows: NULL where `validity` says so, elsewhere this block's values."""
        return NullableBlock(self, validity)

    def filter(self, predicate: BlockPredicate, lower: int, upper: int, among: Bools | None) -> Bools:
        """Return a new mask of the rows [lower, upper): True for rows that satisfy the predicate.

        among: a mask of the same rows. For rows that are False in it, the result is undefined.
        None: all rows matter.
        """
        array, test = self.decode(lower, upper, predicate.type), predicate.test
        if among is None or not test.is_costly:
            return test.mask(array)
        rows = rows_in(among)
        if len(rows) > len(array) * _FEW_SHARE:
            return test.mask(array)
        mask = np.zeros(len(array), np.bool_)
        mask[rows] = test.mask(array.take(array_of_numbers(rows)))
        return mask

    def gather(self, rows: Rows, type: pa.DataType) -> pa.Array:
        """Return the values of these rows as an Arrow array, in the order of `rows`.

        type: the preferred type of the result. If the block cannot give this type directly, the
        result has the block's own type.
        """
        array = self.decode(0, self.row_count, type)
        return pc.take(array, array_of_numbers(rows), boundscheck=False, memory_pool=pool())

    def value(self, row: int) -> Any:
        """Return the value of one row as a Python object.

        Raises: CorruptionError if the value is not valid for the type.
        """
        return python_value_at(self.decode(row, row + 1, pa.null()), 0)  # in the block's own type


class ArrowBlock(ColumnBlock):
    """A block kept as a decoded array. Decimals of 4 or 8 bytes are decimal32 or decimal64."""

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
        return ArrowBlock(validity.scatter(self.array))


class NullBlock(ColumnBlock):
    """A block whose rows are all NULL.

    dictionary: the column's dictionary, if it has one.
    """

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
    """A block with some NULLs.

    validity: says which rows have a value.
    values: the block of these values.
    """

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
        return part.scatter(self._values.decode(first, last, type))

    def filter(self, predicate: BlockPredicate, lower: int, upper: int, among: Bools | None) -> Bools:
        part, first, last = self._validity.part(lower, upper)
        among_values = None if among is None else among[part.bits()]
        mask = part.scatter_mask(self._values.filter(predicate, first, last, among_values))
        return mask | ~part.bits() if predicate.test.admits_null else mask

    def gather(self, rows: Rows, type: pa.DataType) -> pa.Array:
        part, positions = self._validity.take(rows)
        return part.scatter(self._values.gather(positions, type))

    def value(self, row: int) -> Any:
        part, position, _ = self._validity.part(row, row + 1)
        return self._values.value(position) if part.bits()[0] else None

    def owning(self) -> NullableBlock:
        return NullableBlock(self._values.owning(), self._validity.owning())


def rows_in(mask: Bools) -> Rows:
    """Return the positions of the True values of a contiguous mask, in ascending order.

    The result uses memory from `cfile.memory`, which is faster than new memory.
    """
    out = scratch(np.int64, len(mask) + 1)
    return out[: kernels.mask_positions(mask.view(np.uint8), out)]
