"""Two encodings as an engineer would add them: one module, and one line in the table of encodings.

`Flipped` decodes to Arrow and inherits the rest. `Reversed` has its own form, which inherits
`filter` and `gather`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from nyala.cfile.encoding import PLAIN
from nyala.cfile.encoding.base import BlockEncoder, EncodedValues, Encoding
from nyala.cfile.forms.column_block import ColumnBlock
from nyala.cfile.physical import Physical, narrowest


def flipped(data: pa.Buffer) -> pa.Buffer:
    return pa.py_buffer(np.frombuffer(data, np.uint8) ^ np.uint8(0x5A))


@dataclass(frozen=True)
class FlippedEncoder(BlockEncoder):
    plain: BlockEncoder

    def encode(self, lower: int, upper: int) -> pa.Buffer:
        return flipped(self.plain.encode(lower, upper))


class Flipped(Encoding):
    """Plain values with some bits of each byte flipped."""

    code = 200
    name = "flipped"

    def handles(self, form: Physical) -> bool:
        return True

    def prepare(self, form: Physical, values: pa.Array) -> BlockEncoder | None:
        plain = PLAIN.prepare(form, values)
        assert plain is not None
        return FlippedEncoder(plain)

    def decode(self, form: Physical, block: EncodedValues) -> pa.Array:
        return PLAIN.decode(form, EncodedValues(flipped(block.data), block.row_count, None))


@dataclass(frozen=True)
class ReversedEncoder(BlockEncoder):
    form: Physical
    values: pa.Array

    def encode(self, lower: int, upper: int) -> pa.Buffer:
        plain = PLAIN.prepare(self.form, self.values.take(pa.array(np.arange(upper - 1, lower - 1, -1))))
        assert plain is not None
        return plain.encode(0, upper - lower)


class ReversedBlock(ColumnBlock):
    def __init__(self, array: pa.Array) -> None:
        self.array = array
        self.row_count = len(array)

    @property
    def nbytes(self) -> int:
        size: int = self.array.nbytes
        return size

    def decode(self, lower: int, upper: int, type: pa.DataType) -> pa.Array:
        rows = np.arange(self.row_count - 1 - lower, self.row_count - 1 - upper, -1)
        return self.array.take(pa.array(rows, pa.int64()))

    def owning(self) -> ColumnBlock:
        return ReversedBlock(pa.concat_arrays([self.array, self.array.slice(0, 0)]))


class Reversed(Encoding):
    """Plain values, the last one first."""

    code = 201
    name = "reversed"

    def handles(self, form: Physical) -> bool:
        return True

    def prepare(self, form: Physical, values: pa.Array) -> BlockEncoder | None:
        return ReversedEncoder(form, values)

    def block(self, form: Physical, block: EncodedValues) -> ColumnBlock:
        return ReversedBlock(PLAIN.decode(narrowest(form), block))
