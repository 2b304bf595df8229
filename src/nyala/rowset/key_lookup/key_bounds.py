"""Excludes keys by the bounds of single columns of a composite key in a base file.

    key (sensor, time)     sensor 1 … 900     known from the rowset's least and greatest key
    file of September      time   1. … 30.    known here; October's keys are between those two as well

Feeds append by time, and time is the last column of their keys. So all rowsets of such a table
overlap, and a new key would be searched in each. Two comparisons with the zone of the time column,
which is in the footer, exclude it.

Only columns after the first one and after the last text column are used, of at most 8 bytes: their
distance from the key's end is fixed. Immutable; usable from any thread.
Source: our own. Kudu reads the bloom filter of each rowset whose key range contains the key
(docs/design/kudu.md, "Write path and flush").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nyala.keys.codec import KeyCodec
from nyala.keys.encoded_keys import EncodedKeys

__all__ = ["KeyBounds"]


class _Span(NamedTuple):
    """Inclusive bounds of a column, as integers of encoded bytes, which sort as its values do."""

    suffix_bytes: int  # bytes of the key after this column
    width: int  # bytes
    least: int
    greatest: int


class KeyBounds:
    """The column bounds of one base file."""

    __slots__ = ("_spans",)

    def __init__(self, codec: KeyCodec, bounds: Mapping[int, tuple[int, int] | None]) -> None:
        """bounds: least and greatest values of key columns, by index in the key; None: unknown."""
        self._spans = []
        for index, suffix_bytes, width in codec.fixed_tail:
            known, half = bounds.get(index), 1 << (8 * width - 1)
            if known is not None:
                self._spans.append(_Span(suffix_bytes, width, known[0] + half, known[1] + half))

    def excluded(self, keys: EncodedKeys) -> npt.NDArray[np.bool_] | None:
        """Return one bool per key: whether it is surely absent.

        None: no key is. Cost: four calls per column.
        """
        excluded: npt.NDArray[np.bool_] | None = None
        for span in self._spans:
            numbers = keys.integers(span.suffix_bytes, span.width)
            # The difference of a number below `least` wraps around and is above the range too.
            outside = numbers - np.uint64(span.least) > np.uint64(span.greatest - span.least)
            if outside.any():
                excluded = outside if excluded is None else excluded | outside
        return excluded

    def excludes_one(self, key: bytes) -> bool:
        """Whether a key in canonical bytes is surely absent."""
        for suffix_bytes, width, least, greatest in self._spans:
            end = len(key) - suffix_bytes
            if not least <= int.from_bytes(key[end - width : end], "big") <= greatest:
                return True
        return False
