"""The encodings, in one table, and which of them a column gets.

To add one: its module, and its line in `_ENCODINGS`; `_AUTO` if it should be taken unasked.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.encoding.base import BlockEncoder, EncodedValues, Encoding
from nyala.cfile.encoding.bitshuffle import Bitshuffle
from nyala.cfile.encoding.dictionary import Dictionary
from nyala.cfile.encoding.plain import Plain
from nyala.cfile.physical import BITS, BYTES, FIXED, Physical

__all__ = ["PLAIN", "BlockEncoder", "EncodedValues", "Encoding", "choose_encoding", "encoding_by_code"]

PLAIN: Final[Encoding] = Plain()
_ENCODINGS: Final[tuple[Encoding, ...]] = (PLAIN, Bitshuffle(), Dictionary())

_AUTO: Final = {
    BITS: format.ENCODING_PLAIN,
    FIXED: format.ENCODING_BITSHUFFLE,
    BYTES: format.ENCODING_DICTIONARY,
}
_BY_CODE: Final = {encoding.code: encoding for encoding in _ENCODINGS}
_BY_NAME: Final = {encoding.name: encoding for encoding in _ENCODINGS}


def encoding_by_code(code: int) -> Encoding | None:
    """The encoding of a number found on disk, None when this version does not know it."""
    return _BY_CODE.get(code)


def choose_encoding(
    name: str, form: Physical, values: pa.Array, null_count: int
) -> tuple[Encoding, BlockEncoder]:
    """The encoding called `name` if it exists, fits the type and is worth it for these values.

    'auto', and names of encodings that do not exist yet, take the type's default; what declines goes plain.
    """
    encoding = _BY_NAME.get(name)
    if encoding is None or not encoding.handles(form):
        encoding = _BY_CODE[_AUTO[form.kind]]
    encoder = encoding.prepare(form, values, null_count)
    if encoder is None:
        encoding, encoder = PLAIN, PLAIN.prepare(form, values, null_count)
    assert encoder is not None
    return encoding, encoder
