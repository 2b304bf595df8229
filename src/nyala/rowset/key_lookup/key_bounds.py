"""Excludes keys that are absent from a base file, by the value bounds of its later key columns.

Example: sensors append rows with the key (sensor, time). The rowset of September has the keys from
(1, September 1) to (900, September 30). A new key (5, October 3) is between these two, so the least
and greatest key do not exclude it. The bounds of the time column do: they are in the file's footer.

Without these bounds, a look-up of a new key would search every such rowset. A column has bounds
here if it is not the first, takes at most 8 bytes, and no text column follows it. Then it has a
fixed distance from the end of the key. Immutable; any thread may use these bounds.
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


class _Span(NamedTuple):
    """Inclusive bounds of a column: its least and greatest value, as encoded in the key."""

    suffix_bytes: int  # bytes of the key after this column
    width: int  # bytes
    least: int
    greatest: int


class KeyBounds:
    """The least and greatest values of single key columns in one base file."""

    __slots__ = ("_spans",)

    def __init__(self, codec: KeyCodec, bounds: Mapping[int, tuple[int, int] | None]) -> None:
        """bounds: (least, greatest) value by the column's index in the key; None: unknown."""
        self._spans = []
        for index, suffix_bytes, width in codec.fixed_tail:
            known, half = bounds.get(index), 1 << (8 * width - 1)
            if known is not None:
                self._spans.append(_Span(suffix_bytes, width, known[0] + half, known[1] + half))

    def excluded(self, keys: EncodedKeys) -> npt.NDArray[np.bool_] | None:
        """Return a mask of the keys that are surely absent from the file; None: no key is."""
        excluded: npt.NDArray[np.bool_] | None = None
        for span in self._spans:
            numbers = keys.integers(span.suffix_bytes, span.width)
            # The difference of a number below `least` wraps around and is above the range too.
            outside = numbers - np.uint64(span.least) > np.uint64(span.greatest - span.least)
            if outside.any():
                excluded = outside if excluded is None else excluded | outside
        return excluded

    def excludes_one(self, key: bytes) -> bool:
        """Whether one encoded key is surely absent from the file."""
        for suffix_bytes, width, least, greatest in self._spans:
            end = len(key) - suffix_bytes
            if not least <= int.from_bytes(key[end - width : end], "big") <= greatest:
                return True
        return False
