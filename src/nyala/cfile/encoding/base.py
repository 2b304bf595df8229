"""What an encoding promises, and what it is given.

An encoding turns the values of one block into bytes and back. Where a NULL is, unless values are dense and it is given
none (`nyala.cfile.dense`), it writes what costs it least (`physical` tells what the others write); validity,
compression, checksums and files are not its affair: `block` does these for all of them.

To add one: a module with its `Encoding`, and one line in the table of `encoding/__init__.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from nyala.cfile.physical import Physical

__all__ = ["BlockEncoder", "EncodedValues", "Encoding"]


class BlockEncoder(Protocol):
    """One column's encoder, made by `Encoding.prepare` after it saw all of the column's values."""

    @property
    def dictionary(self) -> pa.Array | None:
        """Distinct words that all blocks refer to; stored once, as a plain block. None for most encodings."""
        ...

    def encode(self, lower: int, upper: int) -> pa.Buffer:
        """The values [lower, upper) of those it was prepared with, as bytes: those of these ordinals, or dense ones.
        Never called for none, or for NULLs only."""
        ...


class Encoding(Protocol):
    """A way to write the values of a block. Stateless, so free of threads' concerns."""

    @property
    def code(self) -> int: ...  # format.ENCODING_*

    @property
    def name(self) -> str: ...

    @property
    def compresses(self) -> bool:
        """Whether the bytes are compressed already, so that compression "default" adds nothing."""
        ...

    def handles(self, form: Physical) -> bool:
        """Whether columns of this type may be encoded so."""
        ...

    def prepare(self, form: Physical, values: pa.Array) -> BlockEncoder | None:
        """An encoder for a whole column, or None when these values are not worth it (the column goes plain).

        Takes: `values` in their stored form (`Physical.stored_array`), with their NULLs.
        """
        ...

    def decode(self, form: Physical, block: EncodedValues) -> pa.Array:
        """The Arrow array of one block.

        Raises: ValueError, saying what was expected and found, for bytes that no encoder can have written;
        whatever they claim, nothing outside of them is read and no memory beyond the format's limits taken.
        """
        ...


@dataclass(frozen=True)
class EncodedValues:
    """What a decoder is given: checked lengths and counts, unchecked bytes."""

    data: pa.Buffer
    row_count: int  # of values: of dense ones fewer than the block has rows
    validity: pa.Buffer | None  # exactly row_count bits, or None without NULLs
    null_count: int
    dictionary: pa.Array | None  # the column's dictionary, if it has one
