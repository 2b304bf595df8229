"""Says to remote files what a scan or a look-up will read, so that it takes few rounds of requests.

    round 1    footers of the base, of its parts, and of the delta files that may apply
    round 2    look-ups only: pages of the bloom filter, blocks of stored first keys
    round 3    blocks: of the rows, or of those near the keys; in all files at the same time

Without these hints each block of each column would be a round of its own. With them, a request for
the next round is made only after bytes of the last one have arrived; all requests of a round run at
the same time. Files on a local disk need no hints, and every function returns at once.

A hint never fails: what is wrong with a file is found, and reported, by the reader of the data.
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

__all__ = ["expect_bounds", "expect_footers", "expect_keys", "expect_rows"]


class _Wanted:
    """Places to read, by file."""

    def __init__(self) -> None:
        self._places: dict[CFileReader, list[tuple[int, int]]] = {}

    def add(self, column: ColumnReader, lower: int, upper: int) -> None:
        self._places.setdefault(column.file, []).extend(column.places(lower, upper))

    def add_all(self, parts: Iterable[tuple[ColumnReader, int, int]]) -> None:
        for column, lower, upper in parts:
            self.add(column, lower, upper)

    def fetch(self) -> int:
        """Begin to fetch the places; return their bytes."""
        for file, places in self._places.items():
            file.ensure(places)
        return sum(length for places in self._places.values() for _, length in places)


def expect_footers(
    rowsets: Iterable[DiskRowSet], column_ids: Collection[int] | None = None, snapshot: int | None = None
) -> None:
    """Begin to fetch the footers of the base columns; with `column_ids`, also those of the changes
    of these columns that `snapshot` applies (None: all).
    """
    with contextlib.suppress(Error):
        for rowset in rowsets:
            if rowset.reader.is_remote:
                for part in rowset.parts:
                    part.reader.ensure_footers()
                rowset.reader.ensure_footers()
                deltas = () if column_ids is None else _deltas(rowset, column_ids, snapshot)
                for file in deltas:
                    file.reader.ensure_footers()


def expect_rows(
    rowset: DiskRowSet, column_ids: Collection[int], snapshot: int | None, lower: int, upper: int
) -> int:
    """Begin to fetch the rows [lower, upper) of these columns, their liveness, and the changes that
    `snapshot` applies; None: all changes, of exactly these rows, for a compaction.

    Returns: the bytes of all this on disk; 0 for local files.
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
                wanted.add_all(file.parts_of_rows(number, rows))
        return wanted.fetch()
    return 0


def expect_keys(
    searches: Sequence[tuple[DiskRowSet, EncodedKeys]], column_ids: Collection[int], snapshot: int
) -> None:
    """Begin to fetch what a look-up of these keys in these rowsets reads; the keys ascend.

    Waits for two rounds: the third depends on them.
    """
    searches = [(rowset, keys) for rowset, keys in searches if rowset.reader.is_remote]
    if not searches:
        return
    with contextlib.suppress(Error):
        expect_footers([rowset for rowset, _ in searches], column_ids, snapshot)
        wanted = _Wanted()
        for rowset, keys in searches:
            wanted.add_all(rowset.keys.parts_of_search(keys))
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
                # A look-up reads and keeps whole runs, because others follow.
                for number in file.column_ids & {*column_ids, LIVENESS}:
                    wanted.add_all(file.parts_of_rows(number, None))
        wanted.fetch()


def expect_bounds(rowsets: Iterable[DiskRowSet], key_range: KeyRange) -> None:
    """Begin to fetch what `rowid_range` of this range reads in these rowsets."""
    bounds = [bound for bound in (key_range.lower, key_range.upper) if bound is not None]
    remote = [rowset for rowset in rowsets if rowset.reader.is_remote]
    if not bounds or not remote:
        return
    with contextlib.suppress(Error):
        for rowset in remote:
            rowset.reader.ensure_footers()
        first, then = _Wanted(), _Wanted()
        for rowset in remote:
            for bound in bounds:
                first.add_all(rowset.keys.parts_of_bound(bound))
        first.fetch()
        for rowset in remote:
            for bound in bounds:
                then.add_all(rowset.keys.parts_of_segment(bound))
        then.fetch()


def _want_base(
    wanted: _Wanted, rowset: DiskRowSet, column_ids: Collection[int], ranges: Sequence[tuple[int, int]]
) -> None:
    for number in {*column_ids, LIVENESS}:
        column = rowset.base_column(number)
        if column is not None:
            for lower, upper in ranges:
                wanted.add(column, lower, upper)


def _deltas(rowset: DiskRowSet, column_ids: Collection[int], snapshot: int | None) -> list[DeltaFile]:
    """The files with changes of these columns or of the liveness that `snapshot` may apply."""
    ids = {*column_ids, LIVENESS}
    return [
        file
        for file in (*rowset.undo, *rowset.redo)
        if (snapshot is None or file.relevant(snapshot)) and not ids.isdisjoint(file.column_ids)
    ]
