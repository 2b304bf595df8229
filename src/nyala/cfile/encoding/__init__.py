"""The table of encodings. To add an encoding, write its module and add a line here (see `base`)."""

from __future__ import annotations

from typing import Final

from nyala.cfile.encoding.alp import Alp
from nyala.cfile.encoding.base import Encoding
from nyala.cfile.encoding.bitshuffle import Bitshuffle
from nyala.cfile.encoding.dictionary import Dictionary
from nyala.cfile.encoding.frame_of_reference import FrameOfReference
from nyala.cfile.encoding.plain import Plain
from nyala.cfile.encoding.prefix import Prefix
from nyala.cfile.encoding.run_length import RunLength

ENCODINGS: Final[list[Encoding]] = [
    Plain(),
    Prefix(),
    RunLength(),
    Dictionary(),
    Bitshuffle(),
    FrameOfReference(),
    Alp(),
]
PLAIN: Final = ENCODINGS[0]
"""The encoding of dictionaries and bloom filters, and of values that no other encoding accepts."""


def encoding_by_code(code: int) -> Encoding | None:
    """Return the encoding with this code in files, or None for an unknown code."""
    return next((encoding for encoding in ENCODINGS if encoding.code == code), None)
