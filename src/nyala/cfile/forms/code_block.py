"""A block of dictionary codes in memory. Filters compare the codes and do not look up values."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile.forms.column_block import BlockPredicate, ColumnBlock, Rows
from nyala.cfile.forms.frame import Frame
from nyala.cfile.forms.frame_block import FrameBlock
from nyala.cfile.forms.text import text_of
from nyala.cfile.physical import physical
from nyala.schema.arrow_values import python_value_at
from nyala.schema.types import ColumnType

Bools = npt.NDArray[np.bool_]
# The form of dictionary codes: int32, as the indices of an Arrow dictionary array.
CODES: Final = physical(ColumnType("int32"))


class CodeBlock(ColumnBlock):
    """Packed codes that refer to the entries of the column's dictionary."""

    __slots__ = ("_codes", "_dictionary", "row_count")

    def __init__(self, codes: FrameBlock, dictionary: pa.Array) -> None:
        self._codes: Final = codes
        self._dictionary: Final = dictionary
        self.row_count = codes.row_count

    @staticmethod
    def of(frame: Frame, dictionary: pa.Array) -> CodeBlock:
        """Create a block of dictionary codes. Code i has the value at position i of `dictionary`.

        frame: the int32 codes of all rows, as packed integers.
        """
        return CodeBlock(FrameBlock(frame, CODES, CODES), dictionary)

    @property
    def nbytes(self) -> int:
        return self._codes.nbytes

    def decode(self, lower: int, upper: int, type: pa.DataType) -> pa.Array:
        return self._in_type(self._codes.decode(lower, upper, CODES.arrow), type)

    def filter(self, predicate: BlockPredicate, lower: int, upper: int, among: Bools | None) -> Bools:
        return self._codes.filter(predicate, lower, upper, among)

    def gather(self, rows: Rows, type: pa.DataType) -> pa.Array:
        return self._in_type(self._codes.gather(rows, CODES.arrow), type)

    def value(self, row: int) -> Any:
        return python_value_at(self._dictionary, self._codes.value(row))

    def owning(self) -> CodeBlock:
        return CodeBlock(self._codes.owning(), self._dictionary)

    def _in_type(self, codes: pa.Array, type: pa.DataType) -> pa.Array:
        array = pa.DictionaryArray.from_arrays(codes, self._dictionary, safe=False)
        return array if pa.types.is_dictionary(type) else text_of(array)
