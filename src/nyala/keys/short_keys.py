"""Keys of more than 8 bytes as integers, for a file whose keys differ only in their last 8 bytes.

    8 bytes of l_orderkey      4 of l_linenumber
    80 00 00 00 | 00 0a 3f 11  80 00 00 02
    80 00 00 00 | 00 0a 3f 12  80 00 00 01        head: the same in every key of the file
    head          tail         ...                tail: an integer of 8 bytes, in the order of the keys

NumPy compares byte strings ten times as slowly as integers, and a byte string takes one byte more
than its key. The keys of a rowset are close together, so in most rowsets all keys have one head.
If the heads of a rowset's keys differ, its keys are not converted.

All keys of a table must have the same length, and more than 8 bytes (layout "fixed" of
`encoded_keys`). Keys of at most 8 bytes need no conversion, because `encoded_keys` stores them as
integers. Immutable; any thread may read.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.errors import CorruptionError
from nyala.keys.arrow_memory import binary_view
from nyala.keys.encoded_keys import TAIL_WIDTH, EncodedKeys, NumpyKeys
from nyala.keys.word_search import find_integers, sample_of


class ShortKeys:
    """Strictly ascending keys of `width` bytes that differ only in their last 8 bytes.

    head:  the bytes before the last 8; the same in all keys.
    tails: the last 8 bytes of each key, as an integer.
    """

    __slots__ = ("_sample", "head", "tails", "width")

    def __init__(self, head: bytes, tails: npt.NDArray[np.uint64]) -> None:
        self.head: Final = head
        self.tails: Final = tails
        self.width: Final = len(head) + TAIL_WIDTH
        self._sample: Final = sample_of(tails)

    @staticmethod
    def of(keys: EncodedKeys) -> ShortKeys | None:
        """Convert strictly ascending keys that differ only in their last 8 bytes.

        Returns: None if the keys differ in other bytes, have at most 8 bytes, or have variable
                 length; also None if there is no key.
        """
        if keys.layout != "fixed" or not len(keys):
            return None
        assert isinstance(keys, NumpyKeys)
        head = keys.head(0)
        return ShortKeys(head, keys.tails) if head == keys.head(-1) else None

    @staticmethod
    def from_binary(array: pa.Array, width: int | None) -> ShortKeys | None:
        """Convert strictly ascending keys, as read from disk; None if this class cannot hold them.

        The class holds keys of one width above 8 bytes that are equal except in their last 8 bytes.
        It holds at least one key, and no NULL. Other classes hold keys of at most 8 bytes.

        width: the number of bytes of each key; None: keys have variable length.
        Raises: CorruptionError if a key does not have `width` bytes.
        """
        if width is None or width <= TAIL_WIDTH or not len(array) or array.null_count:
            return None
        offsets, data = binary_view(array)
        if offsets[-1] - offsets[0] != width * len(array) or not bool((np.diff(offsets) == width).all()):
            raise CorruptionError(f"expected encoded keys of {width} bytes, found another length")
        matrix = data[offsets[0] : offsets[-1]].reshape(-1, width)
        head = matrix[0, :-TAIL_WIDTH].tobytes()
        if head != matrix[-1, :-TAIL_WIDTH].tobytes():
            return None
        tails = np.ascontiguousarray(matrix[:, -TAIL_WIDTH:]).view(">u8").reshape(-1).astype(np.uint64)
        return ShortKeys(head, tails)

    def __len__(self) -> int:
        return len(self.tails)

    def at(self, index: int) -> bytes:
        """Return one key as encoded bytes, as on disk."""
        return self.head + int(self.tails[index]).to_bytes(TAIL_WIDTH, "big")

    @property
    def nbytes(self) -> int:
        return int(self.tails.nbytes + (0 if self._sample is None else self._sample.nbytes))

    def find(self, probes: EncodedKeys) -> npt.NDArray[np.int64]:
        """Return the position of each probe, -1 if absent. Probes must ascend."""
        assert isinstance(probes, NumpyKeys) and probes.width == self.width, "K1: keys of different layouts"
        if not len(probes):
            return np.empty(0, np.int64)
        if probes.common_head == self.head:
            return find_integers(self.tails, self._sample, probes.tails)
        found = np.full(len(probes), -1, np.int64)
        lower, upper = probes.lower_bound(self.head), probes.first_beyond(self.head)
        if lower < upper:
            found[lower:upper] = find_integers(self.tails, self._sample, probes.tails[lower:upper])
        return found

    def floor(self, probes: EncodedKeys) -> npt.NDArray[np.int64]:
        """Return, for each probe, the position of the last key <= the probe; -1 if all are greater.

        Probes must ascend.
        """
        assert isinstance(probes, NumpyKeys) and probes.width == self.width, "K1: keys of different layouts"
        if not len(probes):
            return np.empty(0, np.int64)
        if probes.common_head == self.head:
            return self.tails.searchsorted(probes.tails, side="right") - 1
        lower, upper = probes.lower_bound(self.head), probes.first_beyond(self.head)
        found = np.full(len(probes), -1, np.int64)
        found[lower:upper] = self.tails.searchsorted(probes.tails[lower:upper], side="right") - 1
        found[upper:] = len(self.tails) - 1
        return found

    def lower_bound(self, bound: bytes) -> int:
        """Return the position of the first key whose bytes are >= `bound`.

        bound: a key as encoded bytes, or a prefix of them.
        """
        # A shorter bound is padded with zeros, and a longer one is cut.
        side: Any = "left" if len(bound) <= self.width else "right"
        probe = bound[: self.width].ljust(self.width, b"\0")
        head = probe[:-TAIL_WIDTH]
        if head != self.head:
            return 0 if head < self.head else len(self.tails)
        return int(self.tails.searchsorted(np.uint64(int.from_bytes(probe[-TAIL_WIDTH:], "big")), side=side))
