"""The key index of a MemRowSet: a dictionary for the newest keys, and sorted runs for the others.

    insert   tail (a dict)        sorted runs (keys, rowids), each more than twice as long as the next
    ...      {k: 41, j: 42}       [ 70,000 ][ 20,000 ][ 5,000 ]
    full     {}                   [ 70,000 ][ 20,000 ][ 9,096 ] -> [ 70,000 ][ 29,096 ] ...

When the tail is full, it becomes a run, which is merged with shorter runs. So a small insert costs
one pass in C over its keys, and each key takes part in O(log keys) merges.

Invariants
    I1  Every key is once in the tail or in one run, with the rowid of its insertion.
    I2  Keys of a run ascend strictly. Each run is more than twice as long as the next one.
    I3  An index changes only in its tail. New keys there belong to rows that readers may not see
        yet, so `find` ignores them. When the tail is full, a new index is created.

Source: docs/design/memory-and-rowsets.md, "MemRowSet"; the logarithmic method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from nyala.delta.run import Rowids
from nyala.keys.encoded_keys import EncodedKeys
from nyala.keys.key_range import KeyRange
from nyala.lazy_values import LazyValues, lazy_value
from nyala.rowset.meta import NO_ROWID

# A key in the tail costs about 150 bytes, and 0.2 us to insert or find. So a full tail takes 0.6 MB.
TAIL_KEYS_MAX: Final = 4096
_TAIL_KEY_BYTES: Final = 150


@dataclass(frozen=True, eq=False)
class SharedKeys(LazyValues):
    """The keys of one batch. All tablets that get rows of the batch share this object."""

    keys: EncodedKeys

    @lazy_value
    def hashable(self) -> list[Any]:
        """The keys as Python objects for a `dict`. They are converted once for all tablets."""
        return self.keys.to_hashable()


@dataclass(frozen=True, eq=False)
class KeyRun:
    """Strictly ascending keys with their rowids."""

    keys: EncodedKeys
    rowids: Rowids

    def __len__(self) -> int:
        return len(self.rowids)

    @staticmethod
    def sort(keys: EncodedKeys, rowids: Rowids) -> KeyRun:
        if keys.is_ascending():
            return KeyRun(keys, rowids)
        order = keys.sort_indices()
        return KeyRun(keys.take(order), rowids[order])

    def merge(self, other: KeyRun) -> KeyRun:
        """Return both runs as one. Fastest if `other` is the shorter one."""
        if not len(other) or not len(self):
            return self if len(self) else other
        count = len(self) + len(other)
        other.keys.prepare_slices()  # searches keys with a common prefix as integers
        positions = self.keys.search(other.keys) + np.arange(len(other))
        order = np.empty(count, np.int64)
        of_self = np.ones(count, np.bool_)
        of_self[positions] = False
        order[of_self] = np.arange(len(self))
        order[positions] = np.arange(len(self), count)
        keys = EncodedKeys.concat([self.keys, other.keys]).take(order)
        return KeyRun(keys, np.concatenate([self.rowids, other.rowids])[order])


class _TailPart(NamedTuple):
    """The newest keys of one call of `insert`: `keys[offset:offset + length]`.

    Their rowids begin at `first_rowid`. The part does not refer to the SharedKeys object that
    `insert` got. So that object, which also has the keys as Python objects, can be freed early.
    """

    keys: EncodedKeys
    offset: int
    length: int
    first_rowid: int


class KeyRuns:
    """The key index of a MemRowSet: the newest keys in a dict, the others in sorted runs.

    Only the holder of the commit lock calls `insert`. Any thread may call all other methods.
    """

    def __init__(self, empty: EncodedKeys, runs: tuple[KeyRun, ...] = ()) -> None:
        self._empty = empty
        self._runs = runs
        self.has_runs: Final = bool(runs)
        """Whether some keys are in runs."""
        self._tail: dict[Any, int] = {}
        self.tail: Final[Mapping[Any, int]] = self._tail
        """The newest keys with their rowids, for callers that search many tails in one pass."""
        self._tail_parts: list[_TailPart] = []  # only ever grows

    def insert(self, shared: SharedKeys, offset: int, length: int, first_rowid: int) -> KeyRuns:
        """Add the ascending keys [offset, offset + length) of `shared`, and return the index.

        first_rowid: the rowid of the first of these keys. The other keys have the next rowids.
        Returns: this index; or a new index, if this one's dict of the newest keys is full. In the
        second case this index stays as it was.
        """
        part = _TailPart(shared.keys, offset, length, first_rowid)
        if len(self._tail) + length <= TAIL_KEYS_MAX:
            rowids = range(first_rowid, first_rowid + length)
            self._tail.update(zip(shared.hashable[offset : offset + length], rowids, strict=True))
            self._tail_parts.append(part)
            return self
        run = _run_of([*self._tail_parts, part])
        runs = list(self._runs)
        while runs and len(runs[-1]) <= 2 * len(run):
            last = runs.pop()
            run = last.merge(run) if len(last) >= len(run) else run.merge(last)
        return KeyRuns(self._empty, (*runs, run))

    def find(self, keys: EncodedKeys, row_count: int) -> Rowids:
        """Return the rowid of each key; -1 if the index does not have the key.

        keys: in any order.
        row_count: the number of rows that the caller may see. Rows from this rowid on were inserted
            later, so -1 is returned for their keys, too.
        """
        rowids = self.find_in_runs(keys)
        if self._tail and len(keys):
            found = np.fromiter(
                map(self._tail.get, keys.to_hashable(), repeat(NO_ROWID)), np.int64, count=len(keys)
            )
            np.maximum(rowids, found, out=rowids)
            rowids[rowids >= row_count] = NO_ROWID
        return rowids

    def find_one(self, key: EncodedKeys, row_count: int) -> int:
        """Return the rowid of one key; -1 if the index does not have the key.

        row_count: the number of rows that the caller may see. Rows from this rowid on were inserted
            later, so -1 is returned for their keys, too.
        Cost: one look-up in a dict for the newest keys. A binary search per sorted run for others.
        """
        if self._tail:
            rowid = self._tail.get(key.to_hashable()[0], NO_ROWID)
            if rowid != NO_ROWID:
                return rowid if rowid < row_count else NO_ROWID
        for run in self._runs:
            at = int(run.keys.find(key)[0])
            if at >= 0:
                return int(run.rowids[at])
        return NO_ROWID

    def find_in_runs(self, keys: EncodedKeys) -> Rowids:
        """Return the rowid of each key that is in a sorted run; -1 for all others.

        Does not search the dict of the newest keys.
        """
        rowids = np.full(len(keys), NO_ROWID, np.int64)
        for run in self._runs if len(keys) else ():
            at = run.keys.find(keys)
            hit = np.flatnonzero(at >= 0)
            if len(hit):
                rowids[hit] = run.rowids[at[hit]]
        return rowids

    def rowids_in(self, key_range: KeyRange, row_count: int) -> Rowids:
        """Return the rowids of the keys in the range, ascending.

        row_count: the number of rows that the caller may see. Rows from this rowid on are left out.
        """
        parts = [np.empty(0, np.int64)]
        for run in self._all_runs(row_count):
            lower, upper = key_range.positions(run.keys)
            parts.append(run.rowids[lower:upper])
        return np.sort(np.concatenate(parts))

    def sorted(self, row_count: int) -> KeyRun:
        """Return the keys of the first `row_count` rows as one sorted run."""
        merged = KeyRun(self._empty, np.empty(0, np.int64))
        for run in reversed(self._all_runs(row_count)):  # shortest first
            merged = run.merge(merged) if len(run) >= len(merged) else merged.merge(run)
        return merged

    def _all_runs(self, row_count: int) -> list[KeyRun]:
        """Return the sorted runs, and the newest keys as one more run.

        row_count: the number of rows that the caller may see. Keys of later rows are left out.
        """
        parts = [
            part._replace(length=min(part.length, row_count - part.first_rowid))
            for part in self._tail_parts
            if part.first_rowid < row_count
        ]
        return [*self._runs, _run_of(parts)] if parts else list(self._runs)

    @property
    def nbytes(self) -> int:
        runs = sum(run.keys.nbytes + run.rowids.nbytes for run in self._runs)
        return runs + _TAIL_KEY_BYTES * len(self._tail)

    def check(self, row_count: int) -> None:
        """Assert that this index is valid.

        It has each rowid below `row_count` once, and no key twice. The keys of each sorted run
        ascend. Each run has less than half as many keys as the run before it.
        """
        for run in self._runs:
            assert run.keys.is_strictly_ascending(), "I2: runs must ascend"
        for longer, shorter in pairwise(self._runs):
            assert len(longer) > 2 * len(shorter), "I2: runs must shrink geometrically"
        whole = self.sorted(row_count)
        assert whole.keys.is_strictly_ascending(), "I1: a key must not repeat"
        assert (np.sort(whole.rowids) == np.arange(row_count)).all(), "I1: every row must be in the index"


def _run_of(parts: list[_TailPart]) -> KeyRun:
    rowids: npt.NDArray[np.int64] = np.concatenate(
        [np.arange(part.first_rowid, part.first_rowid + part.length) for part in parts]
    )
    keys = EncodedKeys.concat([part.keys.slice(part.offset, part.length) for part in parts])
    return KeyRun.sort(keys, rowids)
