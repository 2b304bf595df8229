"""The encodings, in one table, and which of them a column gets.

To add one: its module, and its line in `_ENCODINGS`; its place in `auto` if it should be taken unasked.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.compression import effective_compression
from nyala.cfile.encoding.alp import Alp
from nyala.cfile.encoding.auto import Choice, fastest, is_small, sizes
from nyala.cfile.encoding.base import BlockEncoder, EncodedValues, Encoding
from nyala.cfile.encoding.bitshuffle import Bitshuffle
from nyala.cfile.encoding.dictionary import Dictionary
from nyala.cfile.encoding.frame_of_reference import FrameOfReference
from nyala.cfile.encoding.plain import Plain
from nyala.cfile.encoding.prefix import Prefix
from nyala.cfile.encoding.rle import RunLength
from nyala.cfile.physical import BYTES, FIXED, Physical

__all__ = [
    "FRAMES",
    "PLAIN",
    "BlockEncoder",
    "EncodedValues",
    "Encoding",
    "choose_encoding",
    "encoding_by_code",
]
__all__ += ["key_stretch_log2", "picks_single_values"]

PLAIN: Final[Encoding] = Plain()
FRAMES: Final = FrameOfReference()
_DICTIONARY: Final[Encoding] = Dictionary()
_ENCODINGS: Final[tuple[Encoding, ...]] = (
    PLAIN,
    Prefix(),
    RunLength(),
    _DICTIONARY,
    Bitshuffle(),
    FRAMES,
    Alp(),
)
_BY_CODE: Final = {encoding.code: encoding for encoding in _ENCODINGS}
_BY_NAME: Final = {encoding.name: encoding for encoding in _ENCODINGS}


def encoding_by_code(code: int) -> Encoding | None:
    """The encoding of a number found on disk, None when this version does not know it."""
    return _BY_CODE.get(code)


def picks_single_values(encoding: int, form: Physical, null_count: int) -> bool:
    """Whether a look-up takes single values from the blocks of such a column as they lie: frames and runs of numbers,
    codewords of text, none with NULL."""
    if null_count:
        return False
    if form.kind == BYTES:
        return encoding == format.ENCODING_DICTIONARY
    known = encoding in (format.ENCODING_FOR, format.ENCODING_RLE)
    return known and form.kind == FIXED and form.code != format.TYPE_DECIMAL128


def key_stretch_log2(encoding: int, form: Physical, null_count: int) -> int:
    """Of a column of a composite key: how long, as a power of two, stretches of rows may be of which only the first key
    is stored, and look-ups make the others of their columns. 0: all keys are stored.

    Shorter for text, whose keys take longer to make than two or three numbers do: docs/decisions/0054.
    """
    if form.kind == BYTES and not null_count:
        return format.SPARSE_TEXT_KEY_ROWS_LOG2
    return format.SPARSE_KEY_ROWS_LOG2 if picks_single_values(encoding, form, null_count) else 0


def choose_encoding(
    name: str,
    form: Physical,
    values: pa.Array,
    compression: int = format.COMPRESSION_DEFAULT,
    *,
    single_values: bool = False,
    is_index: bool = False,
    is_sample: bool = False,
    block_rows: int = 1 << format.ROWS_PER_BLOCK_LOG2_MAX,
) -> tuple[Encoding, BlockEncoder, int]:
    """The encoding called `name` for a column; what its type or its values do not allow is stored otherwise.

    'auto', and names that are not for this type (the schema refuses them), take what `auto` says; a dictionary
    of too many distinct values goes plain.
    single_values: what is taken by 'auto' shall be one of those from which look-ups take single values
             (`picks_single_values`), where the type has any.
    is_index: text that is taken by 'auto' shall be decoded quickly in small blocks.
    is_sample: the values are a sample of a column that is not small, and are encoded as that will be.
    block_rows: how many rows a block will have at the most.
    Takes:   `values` in their stored form, with NULLs; the `compression` that was asked for.
    Returns: encoding, its encoder, and the compression that blocks shall have.
    """
    named = _BY_NAME.get(name)
    asked = named if named is not None and named.handles(form) else None
    is_index = is_index and form.kind == BYTES
    first = asked or (_DICTIONARY if _DICTIONARY.handles(form) and not is_index else None)
    if asked is None and not is_sample and is_small(form, values):
        is_frame = single_values and FRAMES.handles(form) and not values.null_count
        first = FRAMES if is_frame else PLAIN
    encoder = None if first is None else first.prepare(form, values)
    if first is not None and encoder is not None:
        return first, encoder, effective_compression(compression, first.compresses)
    if asked is not None:
        taken = Choice(PLAIN.code, effective_compression(compression, PLAIN.compresses))
    else:
        allowed = [one.code for one in _ENCODINGS if one.handles(form)]
        if single_values and form.kind == FIXED:
            allowed = [one for one in allowed if picks_single_values(one, form, values.null_count)] or allowed
        if is_index:  # each look-up decodes a block: prefix would take ten times as long
            allowed = [PLAIN.code]
        known = sizes(form, values, compression, block_rows, allowed, encoding_by_code, is_sample=is_sample)
        taken = fastest(known)
    encoding = _BY_CODE[taken.encoding]
    encoder = encoding.prepare(form, values)
    assert encoder is not None
    return encoding, encoder, taken.compression if compression == format.COMPRESSION_DEFAULT else compression
