"""Runs scans of a table at one timestamp, and looks up single keys.

A scan has three phases:

    plan     Chooses the tablets that can match the predicate (partition pruning). Then chooses the
             rowsets whose keys can match, and in each rowset the rowids between the key bounds.
             Reads no columns.
    split    Cuts each rowset into splits of at most `SPLIT_ROWS` rows, or fewer if columns are wide
             (`scan_memory`). Leaves out rows that zone maps and changes exclude (Z1). `split.py`
             reads one split. If the predicate is a short list of keys, they are looked up instead.
    batch    A pool of threads reads splits ahead and returns their results in order (`parallel`).
             Batches are merged by key only if the scan requests key order.

Invariants
    Z1  A row is skipped only if the zone map proves that its base value cannot match, and no
        changed value at the snapshot can match either (`rowset/skipping.py`).
    V1  The result of a scan depends only on its root and its timestamp. Running the scan again
        returns the same rows.

Source: ARCHITECTURE.md, "The life of a scan"; docs/design/rules.md, Z1; Kudu tablet design,
"Historical MVCC in DiskRowSets".
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from nyala.cfile.physical import narrow_decimal
from nyala.keys.encoded_keys import EncodedKeys
from nyala.partition.pruning import prune
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.mem_rowset import MemRowSet
from nyala.rowset.read_ahead import expect_bounds, expect_footers, expect_keys, expect_rows
from nyala.rowset.skipping import candidate_ranges
from nyala.rowset.stats import RowSetStats
from nyala.schema.plain_arrays import array_of_numbers
from nyala.schema.schema import ColumnSchema
from nyala.schema.types import MAX_CELL_BYTES
from nyala.tablet.scan.key_merge import KeyedRows, aligned_heads, least_key, merged_batches
from nyala.tablet.scan.parallel import AHEAD_MAX, in_parallel
from nyala.tablet.scan.scan_memory import (
    SplitSizer,
    overlap_depth,
    share_bytes,
    splits_that_fit,
)
from nyala.tablet.scan.split import ScanCounters, ScanSpec, ScanUnit, count_split, in_type, read_split
from nyala.tablet.state.history import check_purged
from nyala.tablet.state.locate import equal_ranges, expect_slices
from nyala.tablet.state.root import AnyRowSet, TableState

__all__ = ["ScanCounters", "ScanSpec", "ScanUnit", "count_split", "read_split"]

# The most rows that are decoded and filtered at a time.
SPLIT_ROWS: Final = 1 << 18
# Excluded rows in the middle of a split are skipped only in runs of at least this length. To read
# a shorter run costs less than to read one more split.
GAP_ROWS: Final = 1 << 12
# How much of remote files is fetched ahead: the rows of at least two splits and of up to 64 MiB,
# which a fast network delivers during one request of 100 ms; and the footers of 16 rowsets.
_AHEAD_BYTES: Final = 64 << 20
_SPLITS_AHEAD_MIN: Final = 2
_UNITS_AHEAD: Final = 16
# A scan of at most this many rows finishes before another thread has started.
_INLINE_ROWS: Final = GAP_ROWS
# A list of keys is looked up if it has at most LISTED_MAX keys, and if a scan would read at least
# _ROWS_PER_LISTED rows per key.
LISTED_MAX: Final = 1 << 13
_ROWS_PER_LISTED: Final = 32


def plan(table: TableState, spec: ScanSpec, counters: ScanCounters, *, guess: bool = False) -> list[ScanUnit]:
    """Return the units of the scan: for each rowset, the rows that may match by their keys.

    Cost: reads at most key indexes.
    guess:  whether the caller only makes an estimate. Then no HistoryExpiredError is raised.
    Raises: HistoryExpiredError if the scan needs rows of a range partition that was dropped later.
    """
    counters.tablets_total = len(table.tablets)
    if not spec.can_match or spec.key_range.is_empty:
        every = (rowset for tablet in table.tablets for rowset in tablet.all_rowsets())
        counters.rowsets_total = sum(1 for rowset in every if rowset.row_count)
        return []
    if not guess and not spec.without_dropped:
        check_purged(table, spec.snapshot, spec.constraints)
    keep = prune(spec.constraints, table.entry.partition_schema, table.partitions, table.schema)
    units: list[ScanUnit] = []
    if table.is_remote and not guess:
        kept = (tablet for tablet, is_kept in zip(table.tablets, keep, strict=True) if is_kept)
        rowsets = [rowset for tablet in kept for rowset in tablet.tree.in_range(spec.key_range)]
        expect_footers(rowsets[:_UNITS_AHEAD], spec.read_ids(spec.columns), spec.snapshot)
        expect_bounds(rowsets, spec.key_range)
    for ordinal, tablet in enumerate(table.tablets):
        memories = [memory for memory in (*tablet.frozen, tablet.memory) if memory.row_count]
        counters.rowsets_total += len(tablet.rowsets) + len(memories)
        if not keep[ordinal]:
            continue
        counters.tablets_read += 1
        for rowset in tablet.rowsets if spec.key_range.is_all else tablet.tree.in_range(spec.key_range):
            lower, upper = rowset.rowid_range(spec.key_range)
            if lower < upper:
                units.append(ScanUnit(rowset, ordinal, lower, upper))
        for memory in memories:
            count = memory.row_count
            rowids = memory.rowids_in(spec.key_range)
            if isinstance(rowids, slice):
                units.append(ScanUnit(memory, ordinal, 0, count))
            elif len(rowids):
                units.append(ScanUnit(memory, ordinal, 0, count, rowids))
    counters.rowsets_read = len(units)
    counters.rows_in_range = sum(unit.upper - unit.lower for unit in units)
    return units


def block_count(table: TableState, spec: ScanSpec) -> int:
    """Return the number of blocks of the scan's columns in all rowsets on disk."""
    return sum(
        reader.block_count
        for tablet in table.tablets
        for rowset in tablet.rowsets
        for column_id in spec.read_ids(spec.columns)
        if (reader := rowset.base_column(column_id)) is not None
    )


# ------------------------------------------------------------------------------------------------ splits


def aligned_ranges(lower: int, end: int, rows: int) -> Iterator[tuple[int, int]]:
    """Cut [lower, end) at multiples of `rows`, and yield the resulting ranges."""
    while lower < end:
        upper = min((lower // rows + 1) * rows, end)
        yield lower, upper
        lower = upper


def unskipped_ranges(unit: ScanUnit, spec: ScanSpec) -> list[tuple[int, int]]:
    """Return the ranges of rows of one rowset that a scan must read.

    A block of rows is left out if no row in it can match the predicate. Its zone map (least and
    greatest value) shows this for the base data. Changes of these rows must not match either.
    """
    if not isinstance(unit.rowset, DiskRowSet) or not spec.constraints:
        return [(unit.lower, unit.upper)]
    constraints = [(spec.schema.by_name(name), constraint) for name, constraint in spec.constraints.items()]
    if unit.rowset.reader.is_remote:
        expect_footers((unit.rowset,), [column.id for column, _ in constraints], spec.snapshot)
    return candidate_ranges(unit.rowset, constraints, spec.snapshot, unit.lower, unit.upper)


def splits(
    unit: ScanUnit,
    spec: ScanSpec,
    counters: ScanCounters,
    columns: Collection[ColumnSchema] = (),
    split_bytes: int | None = None,
    overlap: int = 1,
) -> Iterator[tuple[int, int]]:
    """Yield the row ranges of the unit (one rowset) that the scan must read.

    Rows that cannot match are left out, except for gaps of fewer than `GAP_ROWS` rows.

    columns:     the columns that are decoded, besides those of the predicate.
    split_bytes: the limit for one split; None: no limit.
    overlap:     the number of rowsets that have a split in memory at once (`scan_memory`).
    """
    rowset = unit.rowset
    whole = [
        part
        for lower, upper in unskipped_ranges(unit, spec)
        for part in aligned_ranges(lower, upper, SPLIT_ROWS)
    ]
    if not whole:
        return
    sizer = None
    if split_bytes is not None and isinstance(rowset, DiskRowSet):
        sizer = SplitSizer(rowset, spec, columns, split_bytes, overlap)
    groups = [list(group) for _, group in itertools.groupby(whole, key=lambda part: part[0] // SPLIT_ROWS)]
    if _is_small(spec):
        # First only the requested rows; the rest of the split is seldom needed.
        (lower, upper), middle = whole[0], whole[0][0] + max(spec.limit or 0, 1)
        if middle < upper:
            groups[:1] = [[(lower, middle)], [(middle, upper)]]
    last = -1
    for parts in groups:
        rows = SPLIT_ROWS
        if sizer is not None:
            for lower, upper in _joined(parts, rows):
                rows = sizer.rows(lower, upper, rows)
        for lower, upper in _joined(parts, rows):
            for part in aligned_ranges(lower, upper, rows):
                # Counters count parts of the same `SPLIT_ROWS` rows as one split.
                split = part[0] // SPLIT_ROWS
                counters.add_splits(split != last, part[1] - part[0])
                last = split
                yield part


def _joined(parts: Sequence[tuple[int, int]], rows: int) -> Iterator[tuple[int, int]]:
    """Join neighbouring ranges of rowids if the gap between them has fewer than `GAP_ROWS` rows.

    rows: the number of rows per split. Ranges of different splits are not joined.
    """
    begin, end = parts[0]
    for lower, upper in parts[1:]:
        if lower - end >= GAP_ROWS or lower // rows != (end - 1) // rows:
            yield begin, end
            begin = lower
        end = upper
    yield begin, end


def _is_small(spec: ScanSpec) -> bool:
    """Whether the scan has no predicate, and returns only a few rows because of its limit."""
    return spec.predicate is None and spec.limit is not None and spec.limit <= _INLINE_ROWS


def narrower_types(table: TableState, columns: Sequence[ColumnSchema]) -> dict[str, pa.DataType]:
    """Return Arrow types, by column name, that cost less to read than the columns' own types.

    A decimal of up to 18 digits is read with 4 or 8 bytes. Text is read as dictionary if
    every rowset on disk has a dictionary for it, and few rows are in memory.
    Cost: reads the footers of the table's files on disk.
    """
    rowsets = [rowset for tablet in table.tablets for rowset in tablet.rowsets]
    if table.is_remote:
        expect_footers(rowsets)
    on_disk = sum(rowset.row_count for rowset in rowsets)
    in_memory = sum(
        memory.row_count for tablet in table.tablets for memory in (*tablet.frozen, tablet.memory)
    )
    types: dict[str, pa.DataType] = {}
    for column in columns:
        narrow = narrow_decimal(column.type)
        if narrow is not None:
            types[column.name] = narrow
        elif column.type.is_text and rowsets and in_memory * 8 <= on_disk:
            readers = [rowset.base_column(column.id) for rowset in rowsets]
            if all(reader is not None and reader.has_dictionary for reader in readers):
                types[column.name] = pa.dictionary(pa.int32(), column.type.arrow)
    return types


def dictionary_size(table: TableState, column: ColumnSchema) -> int:
    """Return the size of the column's largest dictionary on disk, in entries. Opens footers."""
    readers = (rowset.base_column(column.id) for tablet in table.tablets for rowset in tablet.rowsets)
    return max((reader.footer.dictionary_count for reader in readers if reader is not None), default=0)


def readable_types(requested: pa.Schema, columns: Sequence[ColumnSchema]) -> dict[str, pa.DataType]:
    """Return the types of the schema `requested` that a scan can return without a cast.

    These are dictionaries, and decimals of 4 or 8 bytes. The result maps column names to types; the
    caller casts the values of all other columns. The result is empty if the names of `requested`
    are not those of `columns`.
    """
    if requested.names != [column.name for column in columns]:
        return {}
    return {
        column.name: field.type
        for field, column in zip(requested, columns, strict=True)
        if field.type == narrow_decimal(column.type)
        or (column.type.is_variable and field.type == pa.dictionary(pa.int32(), column.type.arrow))
    }


# ------------------------------------------------------------------------------------------------ batches

_Out = TypeVar("_Out")


def run(
    units: Sequence[ScanUnit],
    spec: ScanSpec,
    counters: ScanCounters,
    make: Callable[[pa.RecordBatch], Any] | None = None,
) -> Iterator[Any]:
    """Yield the rows of the scan as record batches, in key order if the spec requests it.

    make: converts each batch; its results are yielded instead. Several reading threads may call
          it at once.

    Without key order a batch has at most `SPLIT_ROWS` rows. In key order a batch takes at most the
    scan's share of memory, not counting rows that are in memory only.
    """
    ordered = spec.order_by_key and spec.columns  # without columns, all rows are equal
    if spec.limit is None and not ordered:
        return _unordered(units, spec, counters, make or _unchanged)
    batches = _ordered(units, spec, counters) if ordered else _unordered(units, spec, counters, _unchanged)
    if spec.limit is not None:
        batches = _limited(batches, spec.limit)
    return batches if make is None else map(make, batches)


def _limited(batches: Iterator[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    left = limit
    if left <= 0:
        return
    for batch in batches:
        if batch.num_rows >= left:
            yield batch.slice(0, left)
            return
        left -= batch.num_rows
        yield batch


def _unordered(
    units: Sequence[ScanUnit],
    spec: ScanSpec,
    counters: ScanCounters,
    make: Callable[[pa.RecordBatch], _Out],
) -> Iterator[_Out]:
    def work(item: tuple[ScanUnit, int, int]) -> _Out | None:
        unit, lower, upper = item
        selected, arrays = read_split(unit, spec, lower, upper, spec.columns, counters)
        if selected is not None and not len(selected):
            return None
        count = upper - lower if selected is None else len(selected)
        return make(_batch(arrays, spec, count))

    if _are_looked_up(units, spec):
        return map(make, _listed_rows(units, spec, counters))
    each = _map_splits(units, spec, counters, work, spec.columns)
    return (made for made in each if made is not None)


def _unchanged(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _row_bytes(spec: ScanSpec) -> int:
    """Return about how many bytes a row takes in Arrow. Text is not counted."""
    fields = zip(spec.arrow_schema, spec.columns, strict=True)
    return sum(4 if column.type.is_variable else field.type.bit_width // 8 for field, column in fields)


def _are_few(units: Sequence[ScanUnit]) -> bool:
    return sum(unit.upper - unit.lower for unit in units) <= _INLINE_ROWS


def _map_splits(
    units: Sequence[ScanUnit],
    spec: ScanSpec,
    counters: ScanCounters,
    work: Callable[[tuple[ScanUnit, int, int]], _Out],
    columns: Collection[ColumnSchema],
) -> Iterator[_Out]:
    """Yield the results of `work` for all splits, in order.

    Several threads work on as many splits ahead as fit the scan's share of memory.
    columns: the columns that `work` decodes, besides those of the predicate.
    """
    _expect_units(units, spec, columns)
    if _are_few(units) or _is_small(spec):
        return map(work, _all_splits(units, spec, counters, columns, share_bytes(units)))
    # With a limit, the first split may have enough rows.
    most = AHEAD_MAX if spec.limit is None else 1
    ahead = splits_that_fit(units, spec, SPLIT_ROWS, most)
    # Splits may take twice their part of the share, because `ahead` is for the largest rowset.
    share = share_bytes(units)
    return in_parallel(
        _all_splits(units, spec, counters, columns, min(share, 2 * share // ahead)), work, ahead
    )


def _are_looked_up(units: Sequence[ScanUnit], spec: ScanSpec) -> bool:
    """Whether the predicate lists keys, and looking them up costs less than a scan."""
    count = spec.listed_count
    if not spec.columns or count is None or count > LISTED_MAX:
        return False
    return count * _ROWS_PER_LISTED <= sum(unit.upper - unit.lower for unit in units)


def _listed_rows(
    units: Sequence[ScanUnit], spec: ScanSpec, counters: ScanCounters
) -> Iterator[pa.RecordBatch]:
    """Look up the keys that the predicate lists, in batches that fit the scan's share of memory."""
    row_bytes = max(1, _row_bytes(spec) + sum(MAX_CELL_BYTES for c in spec.columns if c.type.is_variable))
    keys, batch_keys = spec.listed_keys, max(1, share_bytes(units) // row_bytes)
    pending = [
        keys.slice(begin, min(batch_keys, len(keys) - begin)) for begin in range(0, len(keys), batch_keys)
    ]
    pending.reverse()
    while pending:
        part = pending.pop()
        try:
            batch = _rows_of_keys(part, units, spec, counters)
        except pa.ArrowInvalid as error:
            half = len(part) // 2
            if not half or "overflow" not in str(error):
                raise
            # Cells can be so large that the text of these rows does not fit one array.
            pending += [part.slice(half, len(part) - half), part.slice(0, half)]
        else:
            if batch is not None:
                yield batch


def _rows_of_keys(
    keys: EncodedKeys, units: Sequence[ScanUnit], spec: ScanSpec, counters: ScanCounters
) -> pa.RecordBatch | None:
    """Return the rows with these keys as a batch; None if there are none.

    Raises: ArrowInvalid if one column has more text than an array can hold.
    """
    keys.prepare_search()
    found: list[list[pa.Array]] = []
    count = 0
    stats = RowSetStats()
    if _are_remote(units):
        disks = [unit.rowset for unit in units if isinstance(unit.rowset, DiskRowSet)]
        expect_keys([(rowset, keys) for rowset in disks], spec.read_ids(spec.columns), spec.snapshot)
    for unit in units:
        rowset = unit.rowset
        rowids = rowset.find(keys)
        rowids = rowids[(rowids >= unit.lower) & (rowids < unit.upper)]
        if len(rowids):
            counters.add_splits(len(np.unique(rowids // SPLIT_ROWS)), len(rowids))
            rowids = rowids[rowset.gather_liveness(spec.snapshot, rowids)]
        if len(rowids):
            found.append(rowset.rows(spec.columns, spec.snapshot, rowids, stats))
            count += len(rowids)
    counters.add(stats)
    if not found:
        return None
    arrays = _concat_columns(found)
    return _batch([in_type(a, c, spec) for a, c in zip(arrays, spec.columns, strict=True)], spec, count)


def _all_splits(
    units: Sequence[ScanUnit],
    spec: ScanSpec,
    counters: ScanCounters,
    columns: Collection[ColumnSchema],
    limit: int,
) -> Iterator[tuple[ScanUnit, int, int]]:
    """Yield (unit, lower, upper) for all splits. For remote files, begin to fetch later splits."""
    remote = _are_remote(units)
    reached = _expected(units, spec, columns) if remote else units
    each = ((unit, splits(unit, spec, counters, columns, limit)) for unit in reached)
    items = ((unit, lower, upper) for unit, found in each for lower, upper in found)
    return _read_ahead(items, spec, columns) if remote else items


def _are_remote(units: Sequence[ScanUnit]) -> bool:
    return any(isinstance(unit.rowset, DiskRowSet) and unit.rowset.reader.is_remote for unit in units)


def _expect_units(units: Sequence[ScanUnit], spec: ScanSpec, columns: Collection[ColumnSchema]) -> None:
    """Begin to fetch the footers of the first few units."""
    if _are_remote(units):
        disks = [unit.rowset for unit in units[:_UNITS_AHEAD] if isinstance(unit.rowset, DiskRowSet)]
        expect_footers(disks, spec.read_ids(columns), spec.snapshot)


def _expected(
    units: Sequence[ScanUnit], spec: ScanSpec, columns: Collection[ColumnSchema]
) -> Iterator[ScanUnit]:
    """Yield the units (one per rowset), and fetch the footers of later units in the background."""
    for reached, unit in enumerate(units):
        later = reached + _UNITS_AHEAD
        _expect_units(units[later : later + 1], spec, columns)
        yield unit


def _read_ahead(
    items: Iterator[tuple[ScanUnit, int, int]], spec: ScanSpec, columns: Collection[ColumnSchema]
) -> Iterator[tuple[ScanUnit, int, int]]:
    """Yield the same splits as `items`, and fetch the rows of later splits in the background.

    Fetches up to `_AHEAD_BYTES` ahead, but always at least `_SPLITS_AHEAD_MIN` splits.

    items: the splits to read, each as (unit, lower, upper): the rows [lower, upper) of one rowset.
    """
    ids = spec.read_ids(columns)
    waiting: deque[tuple[tuple[ScanUnit, int, int], int]] = deque()
    ahead_bytes = 0
    for item in items:
        unit, lower, upper = item
        size = 0
        if isinstance(unit.rowset, DiskRowSet):
            size = expect_rows(unit.rowset, ids, spec.snapshot, lower, upper)
        waiting.append((item, size))
        ahead_bytes += size
        while len(waiting) > _SPLITS_AHEAD_MIN and ahead_bytes > _AHEAD_BYTES:
            first, size = waiting.popleft()
            ahead_bytes -= size
            yield first
    yield from (item for item, _ in waiting)


def _concat_columns(parts: Sequence[Sequence[pa.Array]]) -> list[pa.Array]:
    """Concatenate the parts of each column.

    Raises: ArrowInvalid if one column has more text than an array can hold.
    """
    if len(parts) == 1:
        return list(parts[0])
    return [pa.concat_arrays(column) for column in zip(*parts, strict=True)]


def _batch(arrays: Sequence[pa.Array], spec: ScanSpec, count: int) -> pa.RecordBatch:
    if not spec.columns:
        return rows_without_columns(count)
    return pa.RecordBatch.from_arrays(list(arrays), schema=spec.arrow_schema)


def rows_without_columns(count: int) -> pa.RecordBatch:
    """Return a batch with `count` rows and no columns."""
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), count, [None]))


def count(units: Sequence[ScanUnit], spec: ScanSpec, counters: ScanCounters) -> int:
    """Count the rows of the scan. Reads only columns that the predicate names."""

    def work(item: tuple[ScanUnit, int, int]) -> int:
        unit, lower, upper = item
        return count_split(unit, spec, lower, upper, counters)

    if spec.limit is None:
        return sum(_map_splits(units, spec, counters, work, ()))
    total = 0
    if spec.limit > 0:
        for found in _map_splits(units, spec, counters, work, ()):
            total += found
            if total >= spec.limit:
                break
    return min(total, max(spec.limit, 0))


# ------------------------------------------------------------------------------------------------ key order


def _ordered(units: Sequence[ScanUnit], spec: ScanSpec, counters: ScanCounters) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all units, merged by key.

    At one snapshot a key has at most one live row, so no two keys are equal.
    """
    _expect_units(units, spec, spec.columns)
    overlap = overlap_depth(units)
    split_bytes = share_bytes(units) // overlap
    begin = partial(_sorted_splits, spec=spec, counters=counters, split_bytes=split_bytes, overlap=overlap)
    sources = [(least_key(unit.rowset), partial(begin, unit)) for unit in units]
    for heads in aligned_heads(sources):
        if len(heads) == 1:
            yield heads[0][1]
            continue
        order = EncodedKeys.concat([head[0] for head in heads]).sort_indices()
        yield from merged_batches([head[1] for head in heads], order, share_bytes(units))


def _sorted_splits(
    unit: ScanUnit, spec: ScanSpec, counters: ScanCounters, split_bytes: int, overlap: int
) -> Iterator[KeyedRows]:
    """Yield the selected rows of one rowset in key order, as (keys, batch).

    A DiskRowSet gives one batch per split. A MemRowSet gives all rows in one batch.

    unit:        the rowset, as part of the scan.
    split_bytes: the limit for the size of one split.
    overlap:     the number of rowsets that have a split in memory at once, because they are merged.
    """
    keys_of: Callable[[np.ndarray], EncodedKeys] = unit.rowset.keys_of
    ranges = splits(unit, spec, counters, spec.columns, split_bytes, overlap)
    items: Iterator[tuple[ScanUnit, int, int]] = ((unit, lower, upper) for lower, upper in ranges)
    if _are_remote((unit,)):
        items = _read_ahead(items, spec, spec.columns)
    in_memory: list[tuple[np.ndarray, pa.RecordBatch]] = []
    for _, lower, upper in items:
        selected, arrays = read_split(unit, spec, lower, upper, spec.columns, counters)
        rowids = np.arange(lower, upper) if selected is None else selected + lower
        if len(rowids):
            batch = _batch(arrays, spec, len(rowids))
            if isinstance(unit.rowset, MemRowSet):  # its rows are in the order of arrival
                in_memory.append((rowids, batch))
            else:
                yield keys_of(rowids), batch
    if in_memory:
        keys = keys_of(np.concatenate([rowids for rowids, _ in in_memory]))
        order = keys.sort_indices()
        rows = pa.concat_batches([batch for _, batch in in_memory])
        yield keys.take(order), rows.take(array_of_numbers(order))


# ------------------------------------------------------------------------------------------------ single rows


def get_many(
    table: TableState, keys: EncodedKeys, tablets: np.ndarray, columns: Sequence[ColumnSchema], snapshot: int
) -> tuple[np.ndarray, list[pa.Array]]:
    """Look up rows by key at a snapshot.

    keys:    distinct keys, sorted by (tablet, key).
    tablets: for each key, the position of its tablet in the table.
    Returns: the positions in `keys` that were found, ascending, and the columns' values for them.
    """
    key_ids = {column.id: index for index, column in enumerate(table.schema.key_columns)}
    values = [column for column in columns if column.id not in key_ids]
    found, arrays = _get_values(table, keys, tablets, values, snapshot)
    if len(values) == len(columns):
        return found, arrays
    of_keys = table.codec.decode(keys if len(found) == len(keys) else keys.take(found))
    of_values = iter(arrays)
    return found, [
        of_keys[key_ids[column.id]] if column.id in key_ids else next(of_values) for column in columns
    ]


def get_row(
    table: TableState, key: EncodedKeys, ordinal: int, columns: Sequence[ColumnSchema], snapshot: int
) -> list[Any] | None:
    """Look up one key, and return the values of its row as Python objects; None: no such row.

    ordinal: the position of the key's tablet in the table. columns: columns outside the key.
    """
    tablet = table.tablets[ordinal]
    for memory in (tablet.memory, *tablet.frozen):
        if memory.row_count:
            rowid = memory.find_one(key)
            if rowid >= 0 and memory.is_live(snapshot, rowid):
                return memory.row(columns, snapshot, rowid)
    if tablet.rowsets:
        canonical = key.at(0)
        holding = tablet.tree.holding(canonical)
        if holding and holding[0].reader.is_remote:
            expect_keys([(rowset, key) for rowset in holding], [c.id for c in columns], snapshot)
        for rowset in holding:
            rowid = rowset.keys.find_one(key, canonical)
            if rowid >= 0 and rowset.is_live(snapshot, rowid):
                return rowset.row(columns, snapshot, rowid)
    return None


def _get_values(
    table: TableState, keys: EncodedKeys, tablets: np.ndarray, columns: Sequence[ColumnSchema], snapshot: int
) -> tuple[np.ndarray, list[pa.Array]]:
    """Look up rows by key at a snapshot, and return their values in columns outside the key.

    The parameters are those of `get_many`. Returns the positions in `keys` that were found,
    ascending, and the values of each column for them. Missing keys are left out.
    """
    places: list[np.ndarray] = []
    values: list[list[pa.Array]] = []
    keys.prepare_search()
    slices = equal_ranges(tablets)
    expect_slices(table, keys, slices, [column.id for column in columns], snapshot)
    for ordinal, begin, end in slices:
        tablet = table.tablets[ordinal]
        part = keys if end - begin == len(keys) else keys.slice(begin, end - begin)
        part.prepare_slices()
        candidates: list[tuple[AnyRowSet, int, int]] = [
            (memory, 0, end - begin) for memory in (tablet.memory, *tablet.frozen) if memory.row_count
        ]
        if tablet.rowsets:
            candidates += tablet.tree.candidates(part)
        for rowset, lower, upper in candidates:
            rowids = rowset.find(part if upper - lower == len(part) else part.slice(lower, upper - lower))
            hit = np.flatnonzero(rowids >= 0)
            if not len(hit):
                continue
            alive = rowset.gather_liveness(snapshot, rowids[hit])
            hit = hit[alive]
            if len(hit):
                places.append(begin + lower + hit)
                values.append(rowset.rows(columns, snapshot, rowids[hit]))
    if not places:
        return np.empty(0, np.int64), [pa.nulls(0, column.type.arrow) for column in columns]
    found, arrays = np.concatenate(places), _concat_columns(values)
    if len(places) == 1:
        return found, arrays
    order = np.argsort(found, kind="stable")
    return found[order], [array.take(array_of_numbers(order)) for array in arrays]
