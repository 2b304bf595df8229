"""Finds keys: the rowset in which each key is live, and its row there.

A key is live in at most one rowset. MemRowSets are searched first. Then the rowset tree
selects DiskRowSets by their key bounds, and each of these is searched by its bloom filter and its
key index. Dead rows (ghosts) in the MemRowSet that takes inserts are found too, because an insert
can give them new values.

Cost: O(touched rowsets) calls; all keys of a tablet are looked up together.
Source: docs/design/keys-and-look-ups.md, "How a key is found"; docs/design/kudu.md, "Write path and
flush".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Final

import numpy as np

from nyala.delta.run import LIVENESS, MAX_TIMESTAMP
from nyala.keys.encoded_keys import EncodedKeys
from nyala.rowset.mem_rowset import MemRowSet
from nyala.rowset.read_ahead import expect_keys
from nyala.tablet.state.root import AnyRowSet, TableState

ABSENT: Final = -1


@dataclass
class Located:
    """Where each key was found. Arrays have one element per key.

    codes:   the index of the key's rowset in `rowsets`; ABSENT if the key is not live
    rowids:  the position of the key's row in that rowset; -1 if the key is not live
    ghosts:  the position of the key's dead row in the tablet's `memory`; -1: no such row
    rowsets: (index of its tablet in `TableState.tablets`, rowset) of each rowset with a found key
    """

    codes: np.ndarray
    rowids: np.ndarray
    ghosts: np.ndarray
    rowsets: list[tuple[int, AnyRowSet]]


def equal_ranges(values: np.ndarray) -> list[tuple[int, int, int]]:
    """Return (value, begin, end) of each run of equal values; `values` must ascend."""
    count = len(values)
    if not count:
        return []
    if values[0] == values[-1]:
        return [(int(values[0]), 0, count)]
    starts = [0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist()]
    return list(zip(values[starts].tolist(), starts, [*starts[1:], count], strict=True))


def expect_slices(
    table: TableState,
    keys: EncodedKeys,
    slices: Sequence[tuple[int, int, int]],
    column_ids: Collection[int],
    snapshot: int,
) -> None:
    """Read ahead, from a bucket, the blocks that look-ups of these keys need in all tablets.

    Does nothing if the files are local.
    slices: (tablet index, begin, end): keys[begin:end] are in this tablet.
    column_ids, snapshot: the columns that will be read for the found rows, and the moment.
    """
    if not table.is_remote:
        return
    searches = []
    for ordinal, begin, end in slices:
        part = keys.slice(begin, end - begin)
        candidates = table.tablets[ordinal].tree.candidates(part)
        searches += [(disk, part.slice(lower, upper - lower)) for disk, lower, upper in candidates]
    expect_keys(searches, column_ids, snapshot)


def locate(
    table: TableState,
    keys: EncodedKeys,
    tablets: np.ndarray,
    newer_than: np.ndarray | None = None,
    at: int | None = None,
) -> Located:
    """Find the rowset in which each key is live: now, or at the moment `at`.

    keys: in (tablet, key) order; equal keys may repeat.
    tablets: the index of each key's tablet in `table.tablets`.
    newer_than: only for the replay of the log: the timestamp of each key's logged change. A row
        is not found if it was inserted after this change, or if the files of its rowset already
        have the change.
    at: the moment at which the key must be live; None: now. Only a transaction passes a moment.
        Then `table` is its private copy, which also has the transaction's own writes. All rows in
        each tablet's `memory` must have been inserted at this moment or before.
    Cost: per touched tablet one look-up in memory, and one in each DiskRowSet whose key range has
        one of the keys.
    """
    count = len(keys)
    if count == 1 and newer_than is None:
        return _locate_one(table, keys, int(tablets[0]), at)
    slices = equal_ranges(tablets)
    if all(table.tablets[ordinal].is_empty for ordinal, _, _ in slices):
        # At the first load of a table, broadcasting saves three large arrays of equal values.
        nowhere = np.broadcast_to(np.int64(-1), count)
        return Located(np.broadcast_to(np.int32(ABSENT), count), nowhere, nowhere, [])
    found = Located(
        np.full(count, ABSENT, np.int32), np.full(count, -1, np.int64), np.full(count, -1, np.int64), []
    )
    _look_in_tails(found, table, keys, slices)
    keys.prepare_search()
    expect_slices(table, keys, slices, (), MAX_TIMESTAMP)
    for ordinal, begin, end in slices:
        tablet = table.tablets[ordinal]
        key_runs = tablet.memory.key_runs
        if not tablet.rowsets and not tablet.frozen and not key_runs.has_runs:
            continue
        part = keys if begin == 0 and end == count else keys.slice(begin, end - begin)
        part.prepare_slices()
        if key_runs.has_runs:
            _look_in(found, tablet.memory, part, begin, ordinal, rowids=key_runs.find_in_runs(part))
        for frozen in tablet.frozen:
            _look_in(found, frozen, part, begin, ordinal, rowids=frozen.find(part), at=at)
        if not tablet.rowsets:
            continue
        for disk, lower, upper in tablet.tree.candidates(part):
            inside = part if lower == 0 and upper == end - begin else part.slice(lower, upper - lower)
            eligible = None
            if newer_than is not None:
                eligible = newer_than[begin + lower : begin + upper] > disk.meta.deltas_durable
                if not eligible.any():
                    continue
            rowids = disk.find(inside)
            _look_in(found, disk, inside, begin + lower, ordinal, rowids=rowids, eligible=eligible, at=at)
    if newer_than is not None:
        _forget_younger(found, newer_than)
    return found


def _forget_younger(found: Located, newer_than: np.ndarray) -> None:
    """Set the result for a key to "absent" if its row was inserted after the key's logged change.

    The change cannot be a change of this row. Only rows in memory are checked.

    newer_than: the timestamp of each key's change.
    """
    # Such a row is a later insert of the same key. A dead row that became alive again counts with
    # the time of its first insert. This is correct: only a direct commit can delete a row without a
    # log record, and it first flushes the memory of its tablets. So no dead row in memory becomes
    # alive after a direct commit.
    for code, (_, rowset) in enumerate(found.rowsets):
        if isinstance(rowset, MemRowSet):
            at = np.flatnonzero(found.codes == code)
            younger = at[rowset.insertion_times_at(found.rowids[at]) >= newer_than[at]]
            found.codes[younger], found.rowids[younger] = ABSENT, -1


def _locate_one(table: TableState, key: EncodedKeys, ordinal: int, at: int | None) -> Located:
    """Find the rowset in which one key is live. Faster than `locate` for a single key.

    ordinal: the index of the key's tablet in `table.tablets`.
    at:      the moment at which the key must be live; None: now.
    """
    found = Located(np.array([ABSENT], np.int32), np.array([-1]), np.array([-1]), [])
    tablet = table.tablets[ordinal]
    for memory in (tablet.memory, *tablet.frozen):
        rowid = memory.find_one(key)
        if rowid >= 0:
            _look_in(found, memory, key, 0, ordinal, rowids=np.array([rowid]), at=at)
    if tablet.rowsets and found.codes[0] == ABSENT:
        canonical = key.at(0)
        holding = tablet.tree.holding(canonical)
        if holding and holding[0].reader.is_remote:
            expect_keys([(disk, key) for disk in holding], (), MAX_TIMESTAMP)
        for disk in holding:
            rowid = disk.keys.find_one(key, canonical)
            if rowid >= 0:
                _look_in(found, disk, key, 0, ordinal, rowids=np.array([rowid]), at=at)
    return found


def find_ghosts(table: TableState, keys: EncodedKeys, tablets: np.ndarray) -> np.ndarray:
    """Return the position of each key's dead row in the MemRowSet of its tablet; -1: no such row.

    Requires: none of the keys is live in this MemRowSet.
    Cost: nothing if no row of the MemRowSet was ever deleted.
    """
    ghosts = np.full(len(keys), -1, np.int64)
    for ordinal, begin, end in equal_ranges(tablets):
        memory = table.tablets[ordinal].memory
        if LIVENESS in memory.deltas.column_ids:
            ghosts[begin:end] = memory.find(keys.slice(begin, end - begin))
    return ghosts


def _look_in_tails(
    found: Located, table: TableState, keys: EncodedKeys, slices: Sequence[tuple[int, int, int]]
) -> None:
    """Look up all keys in the tails of the MemRowSets, and record what was found in `found`.

    A tail is a dictionary with the newest keys of a MemRowSet.

    slices: (tablet index, begin, end): keys[begin:end] are in this tablet.
    """
    memories = [table.tablets[ordinal].memory for ordinal, _, _ in slices]
    occupied = [
        (slice_, memory, tail)
        for slice_, memory in zip(slices, memories, strict=True)
        if (tail := memory.key_runs.tail)
    ]
    if not occupied:
        return
    hashable = keys.to_hashable()
    lookups = [map(tail.get, hashable[begin:end], repeat(-1)) for (_, begin, end), _, tail in occupied]
    rowids = np.fromiter(chain.from_iterable(lookups), np.int64)
    ranges = [range(begin, end) for (_, begin, end), _, _ in occupied]
    places = np.fromiter(chain.from_iterable(ranges), np.int64)
    hit = np.flatnonzero(rowids >= 0)
    if not len(hit):
        return
    number = np.repeat(np.arange(len(occupied)), list(map(len, ranges)))[hit]
    rowids, at = rowids[hit], places[hit]
    alive = np.ones(len(hit), np.bool_)
    for index, (_, memory, _) in enumerate(occupied):
        if LIVENESS in memory.deltas.column_ids:
            mine = np.flatnonzero(number == index)
            alive[mine] = memory.live(rowids[mine])
    found.codes[at[alive]] = number[alive] + len(found.rowsets)
    found.rowids[at[alive]] = rowids[alive]
    found.ghosts[at[~alive]] = rowids[~alive]
    found.rowsets += [(ordinal, memory) for (ordinal, _, _), memory, _ in occupied]


def _look_in(
    found: Located,
    rowset: AnyRowSet,
    keys: EncodedKeys,
    begin: int,
    ordinal: int,
    *,
    rowids: np.ndarray,
    eligible: np.ndarray | None = None,
    at: int | None = None,
) -> None:
    """Record in `found` which of these keys are live in `rowset`.

    begin:    the index of the first key in the arrays of `found`.
    ordinal:  the index of the rowset's tablet in `TableState.tablets`.
    rowids:   the position of each key in the rowset, or -1.
    eligible: a mask of the keys that may be found here; None: all.
    at:       the moment at which the keys must be live; None: now.
    """
    hit = (rowids >= 0 if eligible is None else (rowids >= 0) & eligible).nonzero()[0]
    if not len(hit):
        return
    rowids = rowids[hit]
    live: np.ndarray | None = None
    if at is not None and (rowset.timestamp_max or 0) > at:
        live = rowset.gather_liveness(at, rowids)
    elif rowset.may_have_dead:
        live = rowset.live(rowids)
    if live is not None and not live.all():
        if isinstance(rowset, MemRowSet) and rowset.frozen_at is None:
            dead = ~live
            found.ghosts[begin + hit[dead]] = rowids[dead]
        hit, rowids = hit[live], rowids[live]
        if not len(hit):
            return
    found.codes[begin + hit] = len(found.rowsets)
    found.rowids[begin + hit] = rowids
    found.rowsets.append((ordinal, rowset))
