"""Finds the DiskRowSets that can contain a key, by their sorted bounds.

    rowsets by key_min         [a..e]  [c....z]  [f.g]  [k.m]
    greatest key_max so far        e         z      z      z

Two binary searches limit the candidates for a key to a range of this list. Before the range, all
rowsets end below the key, because the greatest key_max so far is less than the key. After the
range, all rowsets begin above the key. The rowsets in the range are compared with the key one by
one. They are few, because rowsets seldom overlap after compaction. The tree is immutable; a tablet
whose rowsets change creates a new one.

Invariants
    T1  Bounds are inclusive on both sides.
    T2  A rowset is a candidate for a key if and only if key_min <= key <= key_max.

Source: docs/design/kudu.md, "Rowset tree". Kudu has an interval tree. Here, a rowset with a wide
range of keys makes look-ups compare more rowsets. Each comparison costs some nanoseconds.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

from nyala.keys.encoded_keys import EncodedKeys
from nyala.keys.key_range import KeyRange
from nyala.lazy_values import LazyValues, lazy_value
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.schema.plain_arrays import array_of_bytes


class RowSetTree(LazyValues):
    """The rowsets of one tablet, found by key. Any thread may use it."""

    def __init__(self, rowsets: Sequence[DiskRowSet]) -> None:
        self.rowsets: tuple[DiskRowSet, ...] = ()
        if not rowsets:
            return
        codec = rowsets[0].codec
        mins = codec.from_binary(array_of_bytes([r.meta.key_min for r in rowsets]))
        order = mins.sort_indices()
        self.rowsets = tuple(rowsets[index] for index in order.tolist())
        self._mins = mins.take(order)
        self._maxs = codec.from_binary(array_of_bytes([r.meta.key_max for r in self.rowsets]))
        # The greatest key_max so far. NumPy cannot accumulate keys, so it accumulates their ranks.
        by_max = self._maxs.sort_indices()
        rank = np.empty(len(by_max), np.int64)
        rank[by_max] = np.arange(len(by_max))
        self._reach = self._maxs.take(by_max[np.maximum.accumulate(rank)])

    def candidates(self, keys: EncodedKeys) -> list[tuple[DiskRowSet, int, int]]:
        """Return (rowset, lower, upper) for each rowset that can contain some of the keys.

        keys: in ascending order. Only the keys at positions [lower, upper) can be in the rowset.
        Cost: four searches for any number of rowsets and keys.
        """
        if not self.rowsets or not len(keys):
            return []
        first = int(self._reach.search(keys.slice(0, 1), side="left")[0])
        last = int(self._mins.search(keys.slice(len(keys) - 1, 1), side="right")[0])
        if first >= last:
            return []
        lower = keys.search(self._mins.slice(first, last - first), side="left")
        upper = keys.search(self._maxs.slice(first, last - first), side="right")
        return [
            (self.rowsets[first + index], int(lower[index]), int(upper[index]))
            for index in np.flatnonzero(lower < upper).tolist()
        ]

    def holding(self, key: bytes) -> list[DiskRowSet]:
        """Return the rowsets whose bounds contain one encoded key. Cost: two searches."""
        reach, mins = self._bounds
        first, last = bisect_left(reach, key), bisect_right(mins, key)
        return [rowset for rowset in self.rowsets[first:last] if key <= rowset.meta.key_max]

    @lazy_value
    def _bounds(self) -> tuple[list[bytes], list[bytes]]:
        """Two lists of encoded keys, for a binary search of the rowsets that may contain a key.

        The rowsets are in the order of their least keys. Item i of the first list is the greatest
        key of the rowsets 0 to i. Item i of the second list is the least key of rowset i.
        """
        mins = [rowset.meta.key_min for rowset in self.rowsets]
        return list(itertools.accumulate((rowset.meta.key_max for rowset in self.rowsets), max)), mins

    def in_range(self, key_range: KeyRange) -> list[DiskRowSet]:
        """Return the rowsets whose keys may overlap the range, in the order of key_min."""
        if not self.rowsets or key_range.is_empty:
            return []
        first = 0 if key_range.lower is None else self._reach.lower_bound(key_range.lower)
        last = len(self.rowsets) if key_range.upper is None else self._mins.lower_bound(key_range.upper)
        return [
            rowset
            for rowset in self.rowsets[first:last]
            if key_range.overlaps(rowset.meta.key_min, rowset.meta.key_max)
        ]

    def check(self) -> None:
        """Assert that the rowsets are in the order of their least keys."""
        if self.rowsets:
            assert self._mins.is_ascending() and self._reach.is_ascending()
            assert all(rowset.meta.key_min <= rowset.meta.key_max for rowset in self.rowsets), "T1"
