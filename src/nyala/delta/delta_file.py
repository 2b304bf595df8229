"""A delta file: the REDO or UNDO records of one rowset, by column, in one column file.

Columns that were changed by the same writes have the same rowids and timestamps. Such columns form
a group, and the file stores their rowids and timestamps once:

    group 0   DELTA_ROWID  DELTA_TIMESTAMP   DELTA_VALUE val   DELTA_VALUE status
    group 1   DELTA_ROWID  DELTA_TIMESTAMP   DELTA_VALUE LIVENESS

To read a column, a reader decodes only the column's values, and the rowids and timestamps of its
group. The file's entry in the catalogue (`DeltaDescription`) says which columns and timestamps the
file has. So a scan opens only the files that it needs.

Invariants
    F1  The records of each group are in the order of a run (D1–D3 of `run`); checked before writing
        and after reading.
    F2  Every timestamp is in [timestamp_min, timestamp_max] of the file's entry in the catalogue.
    F3  No group is empty, and no two groups of a file have the same rowids and timestamps.
    F4  If timestamp_min = timestamp_max, every record has this timestamp. The timestamps in the
        file are ignored then: a job writes its files before it knows the timestamp of its commit.

Files are immutable; any thread may use a DeltaFile. Format: docs/format/delta.md. Source:
docs/design/kudu.md, "Delta files". Kudu stores lists of changes by row, and not columns.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile.blocks.cache import BlockCache, new_owner
from nyala.cfile.blocks.read_stats import Access, ReadStats
from nyala.cfile.column import (
    DELTA_ROWID,
    DELTA_TIMESTAMP,
    DELTA_VALUE,
    ColumnKey,
    ColumnPlace,
    ColumnWriteSpec,
    WrittenFile,
)
from nyala.cfile.memory import row_ranges
from nyala.cfile.physical import narrow_decimal
from nyala.cfile.reader import CFileReader
from nyala.delta.run import (
    LIVENESS,
    MAX_TIMESTAMP,
    DeltaKind,
    DeltaRun,
    Rowids,
    Timestamps,
    last_of_row,
    take,
)
from nyala.env.files import Files
from nyala.errors import CorruptionError
from nyala.schema.adapter import adapt
from nyala.schema.limits import LARGEST
from nyala.schema.types import ColumnType

if TYPE_CHECKING:
    from nyala.cfile.column_reader import ColumnReader
    from nyala.cfile.index.zone_map import Zone


LIVENESS_TYPE: Final = ColumnType("bool")
_VECTOR_TYPE: Final = ColumnType("int64")
# An estimate: the bytes of a rowid, a timestamp and a value of medium width.
_RECORD_BYTES: Final = 32
LITTLE_TEXT_BYTES: Final = 1 << 28
"""The most text that is read into one Arrow array, which can hold 2 GiB. More text is read in parts."""
# The bytes of a rowid and a timestamp.
_RECORD_KEY_BYTES: Final = 16
# For up to this many rows, `changed_after` reads the records of each row by itself.
_SINGLE_ROWS_MAX: Final = 16
_NOTHING: Final = np.empty(0, np.int64)


class DeltaDescription(Protocol):
    """The catalogue's entry of a delta file, with which a reader can open the file or skip it."""

    @property
    def id(self) -> int: ...
    @property
    def kind(self) -> DeltaKind: ...
    @property
    def path(self) -> str: ...
    @property
    def file_id(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def timestamp_min(self) -> int: ...
    @property
    def timestamp_max(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    @property
    def column_ids(self) -> Sequence[int]: ...
    @property
    def places(self) -> Sequence[ColumnPlace]: ...


@dataclass(frozen=True)
class WrittenDelta:
    """A finished delta file, with what the catalogue stores about it.

    record_count: the number of changes. Changes of several columns that were written together count
    once per row.
    """

    file: WrittenFile
    kind: DeltaKind
    timestamp_min: int
    timestamp_max: int
    record_count: int
    column_ids: tuple[int, ...]


@dataclass(frozen=True)
class RunBounds:
    """The bounds of a column's records: the greatest rowid, the least and greatest timestamp."""

    rowid_max: int
    timestamp_min: int
    timestamp_max: int


class _RangeKeys(NamedTuple):
    """The checked rowids and timestamps of the changes in a range of rows.

    Columns that were changed together share them. Rowids are counted from the range's first row.
    """

    key: tuple[int, int, int]  # group, lower, upper
    begin: int  # position of the first record in the group
    rowids: Rowids
    timestamps: Timestamps


class DeltaFile:
    """An open delta file.

    All records of a column are read at their first use. The block cache keeps them while it has
    space.
    """

    def __init__(self, reader: CFileReader, entry: DeltaDescription, cache: BlockCache | None = None) -> None:
        self.reader = reader
        self.entry = entry
        self.id = entry.id
        self.kind: DeltaKind = entry.kind
        self.path = entry.path
        self.size_bytes = entry.size_bytes
        self.timestamp_min = entry.timestamp_min
        self.timestamp_max = entry.timestamp_max
        self.record_count = entry.record_count
        self.column_ids = frozenset(entry.column_ids)
        self._groups = {
            place.key.column_id: place.key.group for place in entry.places if place.key.role == DELTA_VALUE
        }
        # The last one that was read, because the columns of a group need it one after another.
        self._range_keys: _RangeKeys | None = None
        self._cache = cache
        self._owner = self.serial = new_owner()
        # A scan uses the same run for many splits. While it holds the run, the run is not built
        # again.
        self._alive: weakref.WeakValueDictionary[int, DeltaRun] = weakref.WeakValueDictionary()

    @staticmethod
    def open(
        files: Files,
        root: str,
        entry: DeltaDescription,
        cache: BlockCache | None = None,
        types: Mapping[int, pa.DataType] | None = None,
    ) -> DeltaFile:
        """Return a DeltaFile for the catalogue's `entry`. The file is opened at its first use.

        root: the folder of the store.
        types: the expected Arrow types of the columns by id. A column of another type raises
        CorruptionError.
        """
        path = os.path.join(root, entry.path)
        reader = CFileReader(files, path, cache, entry.places, types, entry.size_bytes, entry.file_id)
        return DeltaFile(reader, entry, cache)

    def relevant(self, snapshot: int) -> bool:
        """Whether the file may have a record that changes a value at `snapshot`.

        Such records are REDO up to `snapshot`, or UNDO after it. Without such a record, the file
        need not be read.
        """
        if self.kind == "redo":
            return self.timestamp_min <= snapshot
        return self.timestamp_max > snapshot

    def run(self, column_id: int, stats: ReadStats | None = None) -> DeltaRun | None:
        """Return the column's records; None if the file has no record of the column.

        Raises: CorruptionError if records are not sorted by row and time, or their timestamps are
        outside the bounds in the catalogue.
        """
        if column_id not in self.column_ids:
            return None
        cached: DeltaRun | None = None
        if self._cache is not None:
            cached = self._cache.get(self._owner, column_id)
        run = cached or self._alive.get(column_id)
        if run is None:
            count = self._values(column_id).row_count
            # The cache keeps the run, so it need not keep the blocks.
            run = self._alive[column_id] = self._read_run(column_id, 0, count, Access.ONCE, stats)
        if self._cache is not None and cached is None:
            # Twice its size, because `latest`, which the run computes at first use, is at most as
            # large as the run.
            self._cache.put(self._owner, column_id, run, 2 * run.nbytes, costly=True)
        return run

    def run_in(
        self,
        column_id: int,
        lower: int,
        upper: int,
        stats: ReadStats | None = None,
        *,
        whole: bool,
    ) -> DeltaRun | None:
        """Return the column's records of the rows [lower, upper).

        The result may also have records of other rows, because blocks are read as a whole. The
        caller must ignore them.

        whole: True: return all records of the column, and cache them. False: read only the blocks
        with records of these rows. But if all records are in memory already, return all.
        Returns: None if the file has no record of the column.
        Raises: CorruptionError if records are not sorted by row and time, or their timestamps are
        outside the bounds in the catalogue.
        """
        if column_id not in self.column_ids:
            return None
        if whole or column_id in self._alive:
            return self.run(column_id, stats)
        begin, end = self._records_to_read(column_id, lower, upper)
        return self._read_run(column_id, begin, end, Access.SCAN, stats)

    def newest(
        self, column_id: int, lower: int, upper: int, stats: ReadStats | None = None
    ) -> tuple[Rowids, pa.Array] | None:
        """Return the newest value of the column for each changed row in [lower, upper).

        Only for a REDO file, and for a reader whose snapshot is not before the newest record.
        Returns: (strictly ascending rowids, values); None without records. Decimals of up to 18
        digits have an Arrow type of 4 or 8 bytes.
        Cost: reads rowids and values, but no timestamps: the last record of a row is its newest.
        Raises: CorruptionError if rowids do not ascend, or timestamps are outside the bounds in the
        catalogue.
        """
        assert self.kind == "redo", "the last record of UNDO is the oldest"
        if column_id not in self.column_ids:
            return None
        run = self._alive.get(column_id)
        if run is not None:
            rowids, values = run.latest
        else:
            begin, end = self._records_to_read(column_id, lower, upper)
            self._check_counts(column_id)
            self._check_times(column_id)
            column = self._values(column_id)
            access = Access.SCAN if end - begin < column.row_count else Access.ONCE
            rowids = self._vector(self._rowids(column_id), begin, end, access, stats)
            if begin == end:
                return None
            if rowids[0] < 0 or (wrong := rowids[1:] < rowids[:-1]).any():
                at = 0 if rowids[0] < 0 else int(np.argmax(wrong)) + 1
                raise CorruptionError(
                    f"record {at} of column {column_id} (rowid {rowids[at]}) is not in the order of REDO records",
                    self.path,
                )
            values = column.decode(begin, end, narrow_decimal(column.type), access=access, stats=stats)
        first, last = np.searchsorted(rowids, (lower, upper)).tolist()
        rowids, values = rowids[first:last], values.slice(first, last - first)
        newest = last_of_row(rowids)
        return (rowids, values) if newest is None else (rowids[newest], take(values, np.flatnonzero(newest)))

    @property
    def run_bytes(self) -> int:
        """Estimate how many bytes all records of the file would take in the cache.

        Counts them twice, because the cache also keeps the last record of each row
        (`DeltaRun.latest`). Does not open the file.
        """
        return 2 * _RECORD_BYTES * self.record_count

    @property
    def cache_bytes(self) -> int:
        """The size limit of the cache that keeps the records, in bytes; 0 without a cache."""
        return 0 if self._cache is None else self._cache.limit_bytes

    def run_of_rows(self, column_id: int, lower: int, upper: int) -> DeltaRun | None:
        """Return the column's records of the rows [lower, upper), with rowids counted from `lower`.

        For compactions, which read a file once, range by range. Reads only the blocks with these
        rows, and caches no blocks. If the caller reads several columns that changed together, their
        rowids and timestamps are read and checked once per range.
        Returns: None if the file has no record of the column.
        Raises: CorruptionError if records are not sorted by row and time, or their timestamps are
        outside the bounds in the catalogue.
        """
        if column_id not in self.column_ids:
            return None
        self._check_counts(column_id)
        column = self._values(column_id)
        keys = self._range_keys
        if keys is None or keys.key != (self._group(column_id), lower, upper):
            keys = self._range_keys = self._read_range_keys(column_id, lower, upper)
        values = column.decode(keys.begin, keys.begin + len(keys.rowids), access=Access.ONCE)
        return DeltaRun(self.kind, keys.rowids, keys.timestamps, values)

    def _read_range_keys(self, column_id: int, lower: int, upper: int) -> _RangeKeys:
        """Read and check the rowids and timestamps of the column's changes in rows [lower, upper).

        Raises: CorruptionError if records are not sorted by row and time, or their timestamps are
        outside the bounds in the catalogue.
        """
        begin, end = self._records_of(column_id, lower, upper)
        rowids, timestamps = self._record_keys(column_id, begin, end)
        # Order and bounds do not depend on values.
        run = DeltaRun(self.kind, rowids, timestamps, pa.nulls(0))
        if (wrong := self._disorder(column_id, run, begin)) is not None:
            raise wrong
        if len(run):
            self._expect_times(column_id, run.timestamp_min, run.timestamp_max)
        first, last = np.searchsorted(rowids, (lower, upper)).tolist()
        key = self._group(column_id), lower, upper
        return _RangeKeys(key, begin + first, rowids[first:last] - lower, timestamps[first:last])

    def text_bytes(self, column_id: int, lower: int, upper: int) -> int:
        """Estimate the size of the column's changed text in the rows [lower, upper), in bytes.

        0 if the file has no record of the column. Cost: reads the rowids of these rows.
        """
        if column_id not in self.column_ids:
            return 0
        values = self._values(column_id)
        return values.text_bytes(*self._records_at(column_id, lower, upper))

    def value_bytes(self, column_id: int) -> float:
        """Return the average size of the column's text or binary values, in bytes.

        The result is 0 for columns of other types. It is also 0 if the file has so few records that
        their values cannot exceed `LITTLE_TEXT_BYTES` together, even if each value has the greatest
        allowed size. Then the file is not opened.
        """
        if (
            column_id not in self.column_ids
            or self.record_count * LARGEST.max_cell_bytes <= LITTLE_TEXT_BYTES
        ):
            return 0.0
        values = self._values(column_id)
        return values.row_bytes if values.type.is_variable else 0.0

    def all_text_bytes(self, column_id: int) -> int:
        """Return the size of all decoded text of the column in this file, in bytes.

        0 if the file has no such column, or its type is not text or binary.
        """
        if column_id not in self.column_ids:
            return 0
        values = self._values(column_id)
        return values.footer.text_bytes

    def record_keys(self, column_id: int, lower: int, upper: int) -> tuple[Rowids, Timestamps]:
        """Return (rowids, timestamps) of the column's records of the rows [lower, upper).

        Does not check order and timestamps, because the caller has checked the file.
        """
        if column_id not in self.column_ids:
            return _NOTHING, _NOTHING
        rowids, timestamps = self._record_keys(column_id, *self._records_of(column_id, lower, upper))
        first, last = np.searchsorted(rowids, (lower, upper)).tolist()
        return rowids[first:last], timestamps[first:last]

    def changed_after(self, rowids: Rowids, timestamp: int) -> npt.NDArray[np.bool_]:
        """Return one bool per rowid: whether the row has a record newer than `timestamp`.

        rowids: ascending.
        Cost: reads the rowids and timestamps of columns with newer records. Columns that were
        changed together share them. For up to 16 rows it reads only the blocks of these rows. For
        more rows it reads all blocks from the first row to the last.
        Raises: CorruptionError if records are not sorted by row and time, or their timestamps are
        outside the bounds in the catalogue.
        """
        changed = np.zeros(len(rowids), np.bool_)
        if self.timestamp_max <= timestamp or not len(rowids):
            return changed
        if len(rowids) > _SINGLE_ROWS_MAX:
            ranges = [(int(rowids[0]), int(rowids[-1]) + 1)]
        else:
            ranges = [(row, row + 1) for row in rowids.tolist()]
        one_of_each_group = {group: column_id for column_id, group in self._groups.items()}
        for column_id in one_of_each_group.values():
            if self._newest_of(column_id) <= timestamp:
                continue
            for lower, upper in ranges:
                records = self._read_range_keys(column_id, lower, upper)
                newer = records.rowids[records.timestamps > timestamp] + lower
                changed |= np.isin(rowids, newer)
        return changed

    def _newest_of(self, column_id: int) -> int:
        """Return the greatest timestamp of the column's records. Reads only the zone map."""
        if self.timestamp_min == self.timestamp_max:  # F4: the stored timestamps do not count
            return self.timestamp_max
        newest = self._timestamps(column_id).column_zone().max
        return self.timestamp_max if newest is None else int(newest)

    def check_run(self, column_id: int) -> RunBounds | None:
        """Check all records of the column. Does not fill the cache.

        Returns: the greatest rowid, and the least and greatest timestamp, of the records; None if
        the file has no record of the column.
        Raises: CorruptionError if records cannot be read, are not sorted by row and time, or have
        timestamps outside the bounds in the catalogue. If there are several problems, the first one
        in this list is raised.
        """
        if column_id not in self.column_ids:
            return None
        self._check_counts(column_id)
        column = self._values(column_id)
        wrong: CorruptionError | None = None
        rowids = timestamps = _NOTHING  # of the previous part
        least, greatest = MAX_TIMESTAMP, -1
        for lower, upper in row_ranges(column.row_count, column.row_bytes + _RECORD_KEY_BYTES):
            last_rowid, last_timestamp = rowids[-1:], timestamps[-1:]
            run = self._read_records(column_id, lower, upper)
            rowids, timestamps = run.rowids, run.timestamps
            least, greatest = min(least, run.timestamp_min), max(greatest, run.timestamp_max)
            if wrong is None:  # in this part, or between the previous part and this one
                joined = DeltaRun(
                    run.kind,
                    np.concatenate([last_rowid, rowids]),
                    np.concatenate([last_timestamp, timestamps]),
                    run.values,
                )
                wrong = self._disorder(column_id, joined, lower - len(last_rowid))
        if wrong is not None:
            raise wrong
        if not len(rowids):
            return None
        self._expect_times(column_id, least, greatest)
        return RunBounds(int(rowids[-1]), least, greatest)

    def _records_of(self, column_id: int, lower: int, upper: int) -> tuple[int, int]:
        """Return the positions [begin, end) of all records in blocks with these rows.

        The first and the last block may also have records of other rows.
        """
        rowids = self._rowids(column_id)
        if rowids.block_count <= 1:
            return 0, rowids.row_count
        # Rowids ascend over the blocks (F1), so these blocks are adjacent.
        zones = rowids.zones
        first = next((n for n, zone in enumerate(zones) if zone.max is None or zone.max >= lower), len(zones))
        last = next(
            (n for n, zone in enumerate(zones) if zone.min is not None and zone.min >= upper), len(zones)
        )
        step = rowids.rows_per_block
        begin, end = min(first * step, rowids.row_count), min(last * step, rowids.row_count)
        return begin, max(begin, end)

    def _records_at(self, column_id: int, lower: int, upper: int) -> tuple[int, int]:
        """Return the positions [begin, end) of exactly the records of the rows [lower, upper).

        Cost: reads the blocks with their rowids.
        """
        begin, end = self._records_of(column_id, lower, upper)
        rowids = self._vector(self._rowids(column_id), begin, end)
        first, last = np.searchsorted(rowids, (lower, upper)).tolist()
        return begin + first, begin + last

    def _records_to_read(self, column_id: int, lower: int, upper: int) -> tuple[int, int]:
        """Return the positions [begin, end) of the records to read for the rows [lower, upper).

        For a column with much text, these are exactly the records of the rows. For other columns,
        they are all records of the blocks that may have a record of the rows. The least and the
        greatest rowid of each block show this, so no rowids are searched.
        """
        find = self._records_at if self.value_bytes(column_id) else self._records_of
        return find(column_id, lower, upper)

    def ordinals_of_rows(
        self, column_id: int, rows: tuple[int, int] | None
    ) -> list[tuple[ColumnReader, int, int]]:
        """Return the ranges of stored values that a read of this column needs, for prefetching.

        Each item is (stored column, lower, upper), with positions [lower, upper) in the stored
        column. The stored columns are the rowids, the values and, unless all records have one
        timestamp, the timestamps.

        column_id: a column that the file has.
        rows: the rows to read, as (lower, upper). None: all rows.
        Cost: reads footers only.
        """
        columns = [self._rowids(column_id), self._values(column_id)]
        if self.timestamp_min != self.timestamp_max:  # F4
            columns.append(self._timestamps(column_id))
        begin, end = (0, columns[0].row_count) if rows is None else self._records_of(column_id, *rows)
        return [(column, begin, end) for column in columns]

    def column_zone(self, column_id: int) -> Zone | None:
        """Return the zone map of the column's values; None if the file has no such column."""
        if column_id not in self.column_ids:
            return None
        return self._values(column_id).column_zone()

    def close(self) -> None:
        """Close the file, and remove its entries from the cache."""
        if self._cache is not None:
            self._cache.drop_owner(self._owner)
        self.reader.close()

    def check(self) -> None:
        """Read and check the whole file. Raises CorruptionError."""
        self.reader.check()
        for column_id in self.column_ids:
            self.check_run(column_id)

    def _group(self, column_id: int) -> int:
        group = self._groups.get(column_id)
        if group is None:
            raise CorruptionError(
                f"the delta file has no values of column {column_id}, but the catalogue says that it has",
                self.path,
            )
        return group

    def _column(self, key: ColumnKey) -> ColumnReader:
        column = self.reader.column(key)
        if column is None:
            raise CorruptionError(f"the delta file lacks {key.in_words}", self.path)
        return column

    def _rowids(self, column_id: int) -> ColumnReader:
        return self._column(ColumnKey(DELTA_ROWID, self._group(column_id)))

    def _timestamps(self, column_id: int) -> ColumnReader:
        return self._column(ColumnKey(DELTA_TIMESTAMP, self._group(column_id)))

    def _values(self, column_id: int) -> ColumnReader:
        return self._column(ColumnKey(DELTA_VALUE, self._group(column_id), column_id))

    def _check_counts(self, column_id: int) -> None:
        """Raise CorruptionError unless the column has as many rowids and timestamps as values."""
        columns = (self._rowids(column_id), self._timestamps(column_id), self._values(column_id))
        counts = {column.row_count for column in columns}
        if len(counts) != 1:
            raise CorruptionError(
                f"expected equal numbers of rowids, timestamps and values of column {column_id}, found "
                f"{sorted(counts)}: restore the table from a backup",
                self.path,
            )

    def _check_times(self, column_id: int) -> None:
        """Raise CorruptionError if the column's timestamps are outside the catalogue's bounds.

        Reads only their zone map (least and greatest value), for callers that do not read the
        timestamps.
        """
        if self.timestamp_min != self.timestamp_max:  # F4
            zone = self._timestamps(column_id).column_zone()
            self._expect_times(column_id, zone.min, zone.max)

    def _vector(
        self,
        column: ColumnReader,
        begin: int,
        end: int,
        access: Access = Access.ONCE,
        stats: ReadStats | None = None,
    ) -> npt.NDArray[np.int64]:
        array = column.decode(begin, end, access=access, stats=stats)
        if array.type != pa.int64() or array.null_count:
            raise CorruptionError(
                f"expected {column.key.in_words} as int64 without NULL, found {array.type} with "
                f"{array.null_count} NULLs",
                self.path,
            )
        # `to_numpy` would import pandas, which takes longer than a whole task of Spark.
        data = array.buffers()[1] or b""
        vector: npt.NDArray[np.int64] = np.frombuffer(data, np.int64, len(array), 8 * array.offset)
        return vector

    def _record_keys(
        self,
        column_id: int,
        begin: int,
        end: int,
        access: Access = Access.ONCE,
        stats: ReadStats | None = None,
    ) -> tuple[Rowids, Timestamps]:
        """Return rowids and timestamps of the column's records at the positions [begin, end)."""
        rowids = self._vector(self._rowids(column_id), begin, end, access, stats)
        if self.timestamp_min == self.timestamp_max:  # F4
            return rowids, np.full(len(rowids), self.timestamp_min, np.int64)
        return rowids, self._vector(self._timestamps(column_id), begin, end, access, stats)

    def _read_records(
        self,
        column_id: int,
        begin: int,
        end: int,
        access: Access = Access.ONCE,
        stats: ReadStats | None = None,
    ) -> DeltaRun:
        """Return the column's records at the positions [begin, end), without checking them."""
        self._check_counts(column_id)
        rowids, timestamps = self._record_keys(column_id, begin, end, access, stats)
        values = self._values(column_id).decode(begin, end, access=access, stats=stats)
        return DeltaRun(self.kind, rowids, timestamps, values)

    def _read_run(
        self, column_id: int, begin: int, end: int, access: Access, stats: ReadStats | None
    ) -> DeltaRun:
        """Return the column's records at the positions [begin, end). Check order and timestamps."""
        run = self._read_records(column_id, begin, end, access, stats)
        wrong = self._disorder(column_id, run, begin)
        if wrong is not None:
            raise wrong
        if len(run):
            self._expect_times(column_id, run.timestamp_min, run.timestamp_max)
        return run

    def _disorder(self, column_id: int, run: DeltaRun, begin: int) -> CorruptionError | None:
        """Return an error if the records of `run` are not sorted by row and time, else None.

        Within a row, the timestamps of REDO records ascend, and those of UNDO records descend.

        begin: the position of the run's first record in the column, for the message.
        """
        wrong = run.disorder()
        if wrong is None:
            return None
        return CorruptionError(
            f"record {begin + wrong} of column {column_id} (rowid {run.rowids[wrong]}, timestamp "
            f"{run.timestamps[wrong]}) is not in the order of {self.kind.upper()} records",
            self.path,
        )

    def _expect_times(self, column_id: int, least: int | None, greatest: int | None) -> None:
        """Raise CorruptionError if a column's timestamps are outside the catalogue's bounds.

        least, greatest: the least and greatest timestamp of the column.
        """
        if (
            least is None
            or greatest is None
            or not self.timestamp_min <= least <= greatest <= self.timestamp_max
        ):
            raise CorruptionError(
                f"expected timestamps of column {column_id} from {self.timestamp_min} to {self.timestamp_max}, found "
                f"{least} to {greatest}",
                self.path,
            )


def write_delta_file(
    files: Files,
    path: str,
    kind: DeltaKind,
    runs: Mapping[int, DeltaRun],
    types: Mapping[int, ColumnType],
) -> WrittenDelta:
    """Write the sorted changes of a rowset's columns to a new delta file.

    The file is synced, but its folder is not: the caller syncs the folder before the catalogue
    names the file.

    kind: "redo" or "undo", the kind of all changes.
    runs: the changes of each column, by column id. At least one column must have changes; columns
    without changes are left out.
    types: the present types of the columns, by column id, except LIVENESS. If a column's type was
    widened, its older values are converted.
    Raises: StorageError if writing fails; then no valid file remains.
    """
    groups: list[tuple[DeltaRun, list[int]]] = []
    for column_id, run in runs.items():
        if not len(run):
            continue
        assert run.kind == kind, f"a {run.kind} run cannot be in a file of {kind} records"
        for first, members in groups:
            if np.array_equal(first.rowids, run.rowids) and np.array_equal(first.timestamps, run.timestamps):
                assert len(run.values) == len(run), "the vectors of a run must have equal lengths"
                members.append(column_id)
                break
        else:
            run.check()
            groups.append((run, [column_id]))
    assert groups, "F3: a delta file must have records"
    from nyala.cfile.writer import CFileWriter

    writer = CFileWriter(files, path)
    try:
        for group, (first, members) in enumerate(groups):
            for role, vector in ((DELTA_ROWID, first.rowids), (DELTA_TIMESTAMP, first.timestamps)):
                # Rowids and timestamps suit frames of reference or runs, so no other encoding is
                # tried.
                spec = ColumnWriteSpec(ColumnKey(role, group), _VECTOR_TYPE, single_values=True)
                writer.append_column(spec, pa.array(vector))
            for column_id in members:
                type = LIVENESS_TYPE if column_id == LIVENESS else types[column_id]
                spec = ColumnWriteSpec(ColumnKey(DELTA_VALUE, group, column_id), type)
                writer.append_column(spec, adapt(runs[column_id].values, type.arrow))
        written = writer.finish(sync=True)
    except BaseException:
        writer.abort()
        raise
    return WrittenDelta(
        written,
        kind,
        min(run.timestamp_min for run, _ in groups),
        max(run.timestamp_max for run, _ in groups),
        sum(len(run) for run, _ in groups),
        tuple(sorted(column_id for _, members in groups for column_id in members)),
    )
