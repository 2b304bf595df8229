"""The protocol of encodings.

An encoding turns the values of one block into bytes and back. It never sees a NULL: `block` stores the validity bitmap
beside the values. Compression, checksums and files are not its affair either.

To add an encoding, write its module and add one line to the table of `encoding/__init__.py`:

    prepare             makes the encoder of a column, or refuses the values
    decode or block     makes an Arrow array, or a `ColumnBlock` of the encoding's own form; either has a default that
                        calls the other
    candidates          what `auto` may take; by default nothing

`tests/unit/cfile/toy_encodings.py` has two small examples.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple

import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.compression import compress
from nyala.cfile.forms.column_block import ArrowBlock, ColumnBlock
from nyala.cfile.physical import Physical, narrowest

__all__ = ["BlockEncoder", "Candidate", "ColumnSample", "EncodedValues", "Encoding", "middles"]

_QUARTERS: Final = 4


@dataclass(frozen=True)
class EncodedValues:
    """What a decoder is given: checked counts, unchecked bytes."""

    data: pa.Buffer
    row_count: int  # of values, none of them NULL
    dictionary: pa.Array | None  # the column's dictionary, if it has one


class Candidate(NamedTuple):
    """An encoding and compression that `auto` may take for a column, and how large that is."""

    encoding: int  # format.ENCODING_*
    compression: int  # format.COMPRESSION_*
    row_bytes: float
    cost: int
    """The rank by decode speed, the fastest first: see the table in `choice`."""
    size_factor: float = 1.25
    """A faster candidate is taken unless it is so many times larger."""
    slack_bytes: float = 0.0
    """... and larger by so many bytes a row."""


@dataclass(frozen=True, eq=False)
class ColumnSample:
    """What `auto` knows of a column. sample: some of its values; None: the column is too short for a sample."""

    form: Physical
    values: pa.Array
    sample: pa.Array | None
    block_rows: int
    schema_compression: int  # format.COMPRESSION_*

    @property
    def compression(self) -> int:
        """Of encodings that do not compress."""
        return (
            format.COMPRESSION_LZ4
            if self.schema_compression == format.COMPRESSION_DEFAULT
            else self.schema_compression
        )

    @property
    def light_compression(self) -> int:
        """Of encodings that are small already."""
        return (
            format.COMPRESSION_NONE
            if self.schema_compression == format.COMPRESSION_DEFAULT
            else self.schema_compression
        )


class BlockEncoder(abc.ABC):
    """The encoder of one column, made by `Encoding.prepare` after it saw all of the column's values."""

    dictionary: pa.Array | None = None
    """Distinct values that all blocks refer to; stored once, as a plain block. None for most encodings."""

    @abc.abstractmethod
    def encode(self, lower: int, upper: int) -> pa.Buffer:
        """The values [lower, upper), at least one, of those it was prepared with, as bytes."""

    def ends(self, lower: int, upper: int) -> pa.Array | None:
        """The least and the greatest of these values; None: the encoder knows no cheaper way than to compare all."""
        return None


class Encoding(abc.ABC):
    """A way to write the values of a block. Stateless, so any thread may use it."""

    code: ClassVar[int]
    """Its number on disk."""
    name: ClassVar[str]
    compresses: ClassVar[bool] = False
    """Whether the bytes are compressed already, so that compression "default" adds nothing."""
    uses_dictionary: ClassVar[bool] = False
    """Whether its columns have a dictionary."""

    @abc.abstractmethod
    def handles(self, form: Physical) -> bool:
        """Whether columns of this type may be encoded so."""

    @abc.abstractmethod
    def prepare(self, form: Physical, values: pa.Array) -> BlockEncoder | None:
        """An encoder for a whole column, or None when these values are not worth it (the column goes plain).

        Takes: `values` in their stored form (`Physical.stored_array`), without NULLs.
        """

    def decode(self, form: Physical, block: EncodedValues) -> pa.Array:
        """The Arrow array of one block.

        Raises: ValueError, saying what was expected and found, for bytes that no encoder can have written. Whatever the
        bytes claim, nothing outside of them is read, and no memory beyond the format's limits is taken.
        """
        return self.block(form, block).decode(0, block.row_count, form.arrow)

    def block(self, form: Physical, block: EncodedValues) -> ColumnBlock:
        """The block in the form that the cache keeps. Raises: as `decode`."""
        return ArrowBlock(self.decode(narrowest(form), block))

    def gathers_single_values(self, form: Physical) -> bool:
        """Whether gathering one value costs the same wherever it is, and does not decode its block."""
        return False

    def candidates(self, column: ColumnSample) -> Sequence[Candidate]:
        """What `auto` may take of this encoding for a column."""
        return ()

    def header(self, form: Physical, data: bytes) -> format.Layout | None:
        """The fixed structure with which the bytes of a block begin, for `dump`; None if there is none."""
        return None

    def sampled(
        self, column: ColumnSample, compression: int, cost: int, size_factor: float = 1.25
    ) -> Sequence[Candidate]:
        """The candidate that encodes and compresses the sample; none without a sample."""
        if column.sample is None or (encoder := self.prepare(column.form, column.sample)) is None:
            return ()
        count = len(column.sample)
        size = compress(compression, encoder.encode(0, count))[1].size
        return (Candidate(self.code, compression, size / count, cost, size_factor),)


def middles(count: int) -> list[int]:
    """The rows in the middles of a column's quarters."""
    return [(2 * quarter + 1) * count // (2 * _QUARTERS) for quarter in range(_QUARTERS)]
