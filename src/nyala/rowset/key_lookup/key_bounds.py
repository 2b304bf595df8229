"""What the columns of a composite key span in a base file: a key outside of it is not there, whatever else is unknown.

    key (sensor, time), file of September     sensor 1 … 900     said by the rowset's least and greatest key
                                              time   1. … 30.    said here: October's keys lie between those two as well

Feeds append by time and have it last in their keys, so all rowsets of such a table lie over each other, and a new key
would be looked for in each. Two comparisons with the zone of the column, which is in the footer, tell at once.

Taken are the columns behind the first, and behind the last text, where they stand at a fixed distance from the key's
end, of at most 8 bytes. Immutable; any thread may ask.
Source: our own. Kudu asks the bloom filter of each rowset whose key range holds the key (docs/design/kudu.md, "Write
path and flush").
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
    """One column, by its encoded bytes as an integer, which ascends as its values do. Both bounds belong to it."""

    behind: int  # bytes of the key behind this column
    width: int  # bytes
    least: int
    greatest: int


class KeyBounds:
    """Of one base file."""

    __slots__ = ("_spans",)

    def __init__(self, codec: KeyCodec, bounds: Mapping[int, tuple[int, int] | None]) -> None:
        """bounds: the least and greatest value of columns of the key, by their place in it; None: not known."""
        self._spans = []
        for index, behind, width in codec.fixed_tail:
            known, half = bounds.get(index), 1 << (8 * width - 1)
            if known is not None:
                self._spans.append(_Span(behind, width, known[0] + half, known[1] + half))

    def excluded(self, keys: EncodedKeys) -> npt.NDArray[np.bool_] | None:
        """Of each key whether it is surely absent; None: of none that can be said. Cost: four calls a column."""
        found: npt.NDArray[np.bool_] | None = None
        for span in self._spans:
            words = keys.words(span.behind, span.width)
            # What lies below wraps round, and above all.
            outside = words - np.uint64(span.least) > np.uint64(span.greatest - span.least)
            if outside.any():
                found = outside if found is None else found | outside
        return found

    def excludes_one(self, key: bytes) -> bool:
        """Whether the key of these canonical bytes is surely absent."""
        for behind, width, least, greatest in self._spans:
            end = len(key) - behind
            if not least <= int.from_bytes(key[end - width : end], "big") <= greatest:
                return True
        return False
