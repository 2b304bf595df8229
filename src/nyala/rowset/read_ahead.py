"""Fetches what a scan or a look-up will read from remote files, in few rounds of parallel requests.

    round 1    footers of the base, of its parts, and of delta files
    round 2    look-ups only: pages of the bloom filter, blocks of stored first keys
    round 3    blocks with the rows of the scan, or with the rows near the keys

All requests of a round run at the same time. Without this module each block of each column would
need its own request, one after the other. For files on a local disk, every function returns at
once.

Errors are ignored here: the later read of the same data raises them again.
Source: docs/design/object-storage.md, "Data files and the cache".
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from nyala.delta.run import LIVENESS
from nyala.errors import Error

if TYPE_CHECKING:
    from nyala.cfile.column_reader import ColumnReader
    from nyala.cfile.reader import CFileReader
    from nyala.delta.delta_file import DeltaFile
    from nyala.keys.encoded_keys import EncodedKeys
    from nyala.keys.key_range import KeyRange
    from nyala.rowset.disk_rowset import DiskRowSet


class _Wanted:
    """The byte ranges to read, by file."""

    def __init__(self) -> None:
        self._places: dict[CFileReader, list[tuple[int, int]]] = {}

    def add(self, column: ColumnReader, lower: int, upper: int) -> None:
        """Add the blocks with the positions [lower, upper) of `column` to the ranges to read."""
        self._places.setdefault(column.file, []).extend(column.places(lower, upper))

    def add_all(self, ranges: Iterable[tuple[ColumnReader, int, int]]) -> None:
        for column, lower, upper in ranges:
            self.add(column, lower, upper)

    def fetch(self) -> int:
        """Begin to fetch all ranges; return their total bytes."""
        for file, places in self._places.items():
            file.prefetch(places)
        return sum(length for places in self._places.values() for _, length in places)


def expect_footers(
    rowsets: Iterable[DiskRowSet], column_ids: Collection[int] | None = None, snapshot: int | None = None
) -> None:
    """Begin to fetch the footers of base files, and of delta files that have these columns.

    column_ids: None: only base files.
    snapshot:   leave out delta files that change no value at this moment. None: fetch all.
    """
    with contextlib.suppress(Error):
        for rowset in rowsets:
            if rowset.reader.is_remote:
                for part in rowset.parts:
                    part.reader.prefetch_footers()
                rowset.reader.prefetch_footers()
                deltas = () if column_ids is None else _deltas(rowset, column_ids, snapshot)
                for file in deltas:
                    file.reader.prefetch_footers()


def expect_rows(
    rowset: DiskRowSet, column_ids: Collection[int], snapshot: int | None, lower: int, upper: int
) -> int:
    """Begin to fetch the rows [lower, upper) of these columns, with liveness and changes.

    snapshot: the moment of a scan; None: a compaction, which reads all changes of these rows.
    Returns: the number of bytes that will be fetched; 0 for local files.
    """
    if not rowset.reader.is_remote:
        return 0
    with contextlib.suppress(Error):
        expect_footers((rowset,), column_ids, snapshot)
        wanted = _Wanted()
        _want_base(wanted, rowset, column_ids, [(lower, upper)])
        for file in _deltas(rowset, column_ids, snapshot):
            for number in file.column_ids & {*column_ids, LIVENESS}:
                rows: tuple[int, int] | None = lower, upper
                if snapshot is not None and rowset.changes.keeps_runs(file, number, snapshot):
                    rows = None
                elif snapshot is not None and file.kind == "redo":
                    rows = rowset.changes.redo_range(number, snapshot, lower, upper, rowset.row_count)
                wanted.add_all(file.ordinals_of_rows(number, rows))
        return wanted.fetch()
    return 0


def expect_keys(
    searches: Sequence[tuple[DiskRowSet, EncodedKeys]], column_ids: Collection[int], snapshot: int
) -> None:
    """Begin to fetch the data that a look-up of these ascending keys reads in each rowset.

    Waits for footers, bloom filters and key indexes, because they show which blocks to fetch.
    """
    searches = [(rowset, keys) for rowset, keys in searches if rowset.reader.is_remote]
    if not searches:
        return
    with contextlib.suppress(Error):
        expect_footers([rowset for rowset, _ in searches], column_ids, snapshot)
        wanted = _Wanted()
        for rowset, keys in searches:
            wanted.add_all(rowset.keys.ordinals_of_search(keys))
        wanted.fetch()
        wanted = _Wanted()
        for rowset, keys in searches:
            ranges = rowset.keys.rows_near(keys)
            if not ranges:
                continue
            for column in rowset.keys.columns:
                for lower, upper in ranges:
                    wanted.add(column, lower, upper)
            _want_base(wanted, rowset, column_ids, ranges)
            for file in _deltas(rowset, column_ids, snapshot):
                # A look-up caches whole runs, because more look-ups usually follow.
                for number in file.column_ids & {*column_ids, LIVENESS}:
                    wanted.add_all(file.ordinals_of_rows(number, None))
        wanted.fetch()


def expect_bounds(rowsets: Iterable[DiskRowSet], key_range: KeyRange) -> None:
    """Begin to fetch the data that `rowid_range` reads to find this key range in each rowset."""
    bounds = [bound for bound in (key_range.lower, key_range.upper) if bound is not None]
    remote = [rowset for rowset in rowsets if rowset.reader.is_remote]
    if not bounds or not remote:
        return
    with contextlib.suppress(Error):
        for rowset in remote:
            rowset.reader.prefetch_footers()
        first, then = _Wanted(), _Wanted()
        for rowset in remote:
            for bound in bounds:
                first.add_all(rowset.keys.ordinals_of_bound(bound))
        first.fetch()
        for rowset in remote:
            for bound in bounds:
                then.add_all(rowset.keys.ordinals_of_segment(bound))
        then.fetch()


def _want_base(
    wanted: _Wanted, rowset: DiskRowSet, column_ids: Collection[int], ranges: Sequence[tuple[int, int]]
) -> None:
    """Add the rows of these ranges to `wanted`, for the base columns and LIVENESS."""
    for number in {*column_ids, LIVENESS}:
        column = rowset.base_column(number)
        if column is not None:
            for lower, upper in ranges:
                wanted.add(column, lower, upper)


def _deltas(rowset: DiskRowSet, column_ids: Collection[int], snapshot: int | None) -> list[DeltaFile]:
    """Return the delta files with changes of these columns, or of LIVENESS (whether rows live).

    snapshot: leave out files that change no value at this moment. None: return all.
    """
    ids = {*column_ids, LIVENESS}
    return [
        file
        for file in (*rowset.undo, *rowset.redo)
        if (snapshot is None or file.relevant(snapshot)) and not ids.isdisjoint(file.column_ids)
    ]
