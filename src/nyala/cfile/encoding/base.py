"""The interface that every encoding implements.

An encoding turns the values of one block into bytes and back. `blocks.block` handles NULLs,
compression and checksums.

To add an encoding, write its module, add one line to the table of `encoding/__init__.py`, and name
it in `allowed_encodings` of `nyala.schema.schema`. The module has a subclass of `Encoding` with:

    prepare             creates the encoder of a column, or refuses its values
    decode or block     `decode` decodes the bytes to an Arrow array, `block` returns a `ColumnBlock`
                        that keeps them encoded; each has a default that calls the other
    candidates          returns what 'auto' may choose; by default nothing

`tests/unit/cfile/toy_encodings.py` has two small examples.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.compression import compress, effective_compression
from nyala.cfile.forms.column_block import ArrowBlock, ColumnBlock
from nyala.cfile.physical import Physical, narrowest

_QUARTERS: Final = 4


@dataclass(frozen=True)
class EncodedValues:
    """The input of a decoder: the unchecked bytes of a block's values, and the checked row count."""

    data: pa.Buffer
    row_count: int  # without NULLs
    dictionary: pa.Array | None  # the column's dictionary, if it has one


class Candidate(NamedTuple):
    """An encoding and a compression that 'auto' may choose for a column, and the resulting size."""

    encoding: int  # format.ENCODING_*
    compression: int  # format.COMPRESSION_*
    row_bytes: float
    cost: int
    """The rank by decode speed: 0 is the fastest. See the table in `choice`."""
    size_factor: float = 1.25
    """To be chosen before a faster candidate, this one must be smaller by this factor."""
    slack_bytes: float = 0.0
    """It must also be smaller by this number of bytes per row."""


@dataclass(frozen=True, eq=False)
class ColumnSample:
    """What 'auto' uses to choose an encoding: the values of a column, and a sample of them."""

    form: Physical
    values: pa.Array
    sample: pa.Array | None  # None for a short column
    block_rows: int
    schema_compression: int  # format.COMPRESSION_*


class BlockEncoder(abc.ABC):
    """The encoder of one column. `Encoding.prepare` creates it from all values of the column."""

    dictionary: pa.Array | None = None
    """The distinct values of the column, stored once as a plain block. None for most encodings."""

    @abc.abstractmethod
    def encode(self, lower: int, upper: int) -> pa.Buffer:
        """Return the bytes of the block with the values at the positions [lower, upper).

        Positions are those in the array that `prepare` received. It has no NULLs.
        """

    def bounds(self, lower: int, upper: int) -> pa.Array | None:
        """Return the least and the greatest of the values at the positions [lower, upper).

        Positions are those in the array that `prepare` received. It has no NULLs.
        Return None if the encoding cannot find them faster than by comparing all values.
        """
        return None


class Encoding(abc.ABC):
    """A way to encode the values of a block. It has no state, so any thread may use it."""

    code: ClassVar[int]
    """The code that files store for the encoding (`format.ENCODING_*`)."""
    name: ClassVar[str]
    compresses: ClassVar[bool] = False
    """Whether the bytes are already compressed. Then compression "default" adds none."""
    uses_dictionary: ClassVar[bool] = False
    """Whether columns with this encoding have a dictionary."""

    def handles(self, form: Physical) -> bool:
        """Whether columns of this type may have this encoding."""
        return self.name in form.encodings

    @abc.abstractmethod
    def prepare(self, form: Physical, values: pa.Array) -> BlockEncoder | None:
        """Return an encoder for a whole column, or None if the encoding refuses these values.

        values: in their stored form (`Physical.stored_array`), without NULLs.
        """

    def decode(self, form: Physical, block: EncodedValues) -> pa.Array:
        """Decode the bytes of one block to an Arrow array.

        An implementation must be safe for any bytes: it reads no memory outside of them, and
        allocates no more than the limits of the format.
        Raises: ValueError (what was expected, what was found) for bytes that no encoder writes.
        """
        return self.block(form, block).decode(0, block.row_count, form.arrow)

    def block(self, form: Physical, block: EncodedValues) -> ColumnBlock:
        """Return the block as the object that the block cache keeps, encoded or decoded.

        Raises: ValueError (what was expected, what was found) for bytes that no encoder writes.
        """
        return ArrowBlock(self.decode(narrowest(form), block))

    def gathers_single_values(self, form: Physical) -> bool:
        """Whether a reader can gather one value at constant cost, without decoding its block."""
        return False

    def candidates(self, column: ColumnSample) -> Sequence[Candidate]:
        """Return the ways to store the column that this encoding offers to 'auto'.

        Each candidate has a compression and an estimated size. 'auto' compares the candidates of
        all encodings. By default an encoding offers none.
        """
        return ()

    def header(self, form: Physical, data: bytes) -> format.Layout | None:
        """Return the layout of the header that a block's values begin with; None without header.

        `nyala.cfile.dump` uses it.
        """
        return None

    def sampled(
        self, column: ColumnSample, cost: int, size_factor: float = 1.25, compression: int | None = None
    ) -> Sequence[Candidate]:
        """Return this encoding as the only candidate that 'auto' may choose for the column.

        The candidate's size is computed by encoding the column's sample.

        cost: the rank of the encoding by decode speed; 0 is the fastest.
        size_factor: 'auto' chooses this candidate before a faster one only if it is smaller by this
        factor.
        compression: the compression of the candidate. None: the schema's, or the default of the
        encoding.
        Returns: no candidate if the column has no sample, or if the encoding refuses the sample.
        """
        if column.sample is None or (encoder := self.prepare(column.form, column.sample)) is None:
            return ()
        if compression is None:
            compression = effective_compression(column.schema_compression, self.compresses)
        count = len(column.sample)
        size = compress(compression, encoder.encode(0, count))[1].size
        return (Candidate(self.code, compression, size / count, cost, size_factor),)


def middles(count: int) -> list[int]:
    """Return four row numbers of a column with `count` rows: the middle of each quarter.

    Samples of the column are taken there.
    """
    return [(2 * quarter + 1) * count // (2 * _QUARTERS) for quarter in range(_QUARTERS)]
