"""A block of a dictionary as the cache keeps it: packed codewords, which filters compare without unpacking words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile.encoding.column_block import ColumnBlock, Rows, Wanted
from nyala.cfile.encoding.dictionary import CODEWORDS
from nyala.cfile.encoding.frame_block import FrameBlock
from nyala.cfile.encoding.words import text_of
from nyala.schema.arrow_values import python_at

__all__ = ["CodeBlock"]

Bools = npt.NDArray[np.bool_]


class CodeBlock(ColumnBlock):
    """Codewords into the column's dictionary."""

    __slots__ = ("_codes", "_words", "null_count", "row_count")

    def __init__(self, codes: FrameBlock, words: pa.Array) -> None:
        """codes: of the form `CODEWORDS`."""
        self._codes: Final = codes
        self._words: Final = words
        self.row_count = codes.row_count
        self.null_count = codes.null_count

    @property
    def nbytes(self) -> int:
        return self._codes.nbytes

    def decode(self, lower: int, upper: int, type: pa.DataType) -> pa.Array:
        return self._in_type(self._codes.decode(lower, upper, CODEWORDS.arrow), type)

    def filter(self, wanted: Wanted, lower: int, upper: int, among: Bools | None) -> Bools:
        return self._codes.filter(wanted, lower, upper, among)

    def gather(self, rows: Rows, type: pa.DataType) -> pa.Array:
        return self._in_type(self._codes.gather(rows, CODEWORDS.arrow), type)

    @classmethod
    def gather_all(
        cls, blocks: Sequence[ColumnBlock], rows: Sequence[Rows], type: pa.DataType
    ) -> list[pa.Array]:
        first = blocks[0]
        assert isinstance(first, CodeBlock)
        codes = [block._codes for block in blocks if isinstance(block, CodeBlock)]
        return [first._in_type(array, type) for array in FrameBlock.gather_all(codes, rows, CODEWORDS.arrow)]

    def value(self, row: int) -> Any:
        code = self._codes.value(row)
        return None if code is None else python_at(self._words, code)

    def owning(self) -> CodeBlock:
        return CodeBlock(self._codes.owning(), self._words)

    def _in_type(self, codes: pa.Array, type: pa.DataType) -> pa.Array:
        made = pa.DictionaryArray.from_arrays(codes, self._words, safe=False)
        return made if pa.types.is_dictionary(type) else text_of(made)
