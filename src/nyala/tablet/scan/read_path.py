"""The life of a scan, from (root, timestamp) to Arrow batches.

    plan       tablets that the predicate leaves (partition pruning), in them the rowsets whose keys can match, in them
               the rowids between the key bounds                                             nothing is read yet
    window     `WINDOW_ROWS` rows of one rowset, aligned so that whole blocks are decoded once, fewer where the columns
               are wide (`scan_memory`); without the rows that zone maps and deltas exclude (rule Z1); read as `window`
               says
               a list of whole keys, few beside the rows, is looked up instead
    batch      a pool of threads reads windows ahead, and they are given out in order (`parallel`); merged by key only
               when that is asked for

Invariants
    Z1  Rows are skipped by a predicate only if the base's zone map and every delta of that column that the snapshot
        may apply exclude them (`rowset/skipping.py`).
    V1  What a scan returns depends on its root and its timestamp only: it may be run again and gives the
        same rows.

Source: ARCHITECTURE.md, "The life of a scan"; docs/design/rules.md, Z1; Kudu tablet design, "Historical MVCC in
DiskRowSets".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from nyala.cfile.physical import narrow_decimal
from nyala.keys.encoded_keys import EncodedKeys
from nyala.partition.pruning import prune
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.mem_rowset import MemRowSet
from nyala.rowset.skipping import candidate_ranges
from nyala.rowset.stats import RowSetStats
from nyala.schema.plain_arrays import array_of_numbers
from nyala.schema.schema import ColumnSchema
from nyala.schema.types import MAX_CELL_BYTES
from nyala.tablet.scan.key_merge import KeyedRows, aligned_heads, merged_batches
from nyala.tablet.scan.parallel import AHEAD_MAX, in_parallel
from nyala.tablet.scan.scan_memory import Fitting, fit_together, most_at_once, share_bytes, windows_that_fit
from nyala.tablet.scan.window import ScanCounters, ScanSpec, ScanUnit, count_window, in_type, read_window
from nyala.tablet.state.history import check_dropped
from nyala.tablet.state.locate import tablet_slices
from nyala.tablet.state.root import AnyRowSet, TableState

__all__ = ["GAP_ROWS", "WINDOW_ROWS", "ScanCounters", "ScanSpec", "ScanUnit"]
__all__ += [
    "block_count",
    "count",
    "count_window",
    "get_many",
    "get_row",
    "narrower_types",
    "parts_left",
    "pieces",
    "plan",
]
__all__ += [
    "read_window",
    "rows_without_columns",
    "run",
    "types_asked",
    "windows",
]

# Rows decoded and filtered at a time: blocks of all columns nest in it, and C time outweighs Python time.
WINDOW_ROWS: Final = 1 << 18
# Rows that are left out of the middle of a window: fewer cost less to read than another piece does.
GAP_ROWS: Final = 1 << 12
# A scan of so few rows is over before another thread has begun with them.
_INLINE_ROWS: Final = GAP_ROWS
# A list of more keys than this is not looked up, nor one in a table with fewer rows than 32 for each key.
LISTED_MAX: Final = 1 << 13
_ROWS_PER_LISTED: Final = 32


def plan(table: TableState, spec: ScanSpec, counters: ScanCounters, *, guess: bool = False) -> list[ScanUnit]:
    """The rowsets that the scan has to look into. Reads key indexes at most, no data.

    guess:  the rows themselves are not asked for, so it does not matter if some of them are gone.
    Raises: HistoryExpiredError when it needs a range partition that was there then and was dropped since.
    """
    counters.tablets_total = len(table.tablets)
    if not spec.can_match or spec.key_range.is_empty:
        every = (rowset for tablet in table.tablets for rowset in tablet.all_rowsets())
        counters.rowsets_total = sum(1 for rowset in every if rowset.row_count)
        return []
    if not guess and not spec.without_dropped:
        check_dropped(table, spec.snapshot, spec.constraints)
    keep = prune(spec.constraints, table.entry.partition_schema, table.partitions, table.schema)
    units: list[ScanUnit] = []
    for ordinal, tablet in enumerate(table.tablets):
        memories = [memory for memory in (*tablet.frozen, tablet.memory) if memory.row_count]
        counters.rowsets_total += len(tablet.rowsets) + len(memories)
        if not keep[ordinal]:
            continue
        counters.tablets_read += 1
        disk: Iterable[DiskRowSet] = (
            tablet.rowsets if spec.key_range.is_all else tablet.tree.in_range(spec.key_range)
        )
        for rowset in disk:
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
    """Blocks that the columns of the scan have in all rowsets on disk: what it would read if nothing could
    be skipped."""
    names = {column.name for column in spec.columns}
    if spec.predicate is not None:
        names |= spec.predicate.columns
    columns = [spec.schema.by_name(name) for name in sorted(names)]
    return sum(
        reader.block_count
        for tablet in table.tablets
        for rowset in tablet.rowsets
        for column in columns
        if (reader := rowset.base_column(column.id)) is not None
    )


# ------------------------------------------------------------------------------------------------ one window


def windows(lower: int, end: int, rows: int) -> Iterator[tuple[int, int]]:
    """[lower, end) cut at multiples of `rows`."""
    while lower < end:
        upper = min((lower // rows + 1) * rows, end)
        yield lower, upper
        lower = upper


def parts_left(unit: ScanUnit, spec: ScanSpec) -> list[tuple[int, int]]:
    """The rows of the unit that zone maps and deltas do not exclude (Z1)."""
    if not isinstance(unit.rowset, DiskRowSet) or not spec.constraints:
        return [(unit.lower, unit.upper)]
    constraints = [(spec.schema.by_name(name), constraint) for name, constraint in spec.constraints.items()]
    return candidate_ranges(unit.rowset, constraints, spec.snapshot, unit.lower, unit.upper)


def pieces(
    unit: ScanUnit,
    spec: ScanSpec,
    counters: ScanCounters,
    columns: Collection[ColumnSchema] = (),
    window_bytes: int | None = None,
    at_once: int = 1,
) -> Iterator[tuple[int, int]]:
    """What is to be read of the unit: its windows, without the rows that zone maps and deltas exclude (Z1).

    Rows are left out of the middle of a window only where they are many: each piece is read by itself.
    columns, window_bytes, at_once: what is decoded besides the predicate's columns, what a window may take, and how
    many rowsets have one at once (`scan_memory`). It is asked when the scan comes to it.
    """
    rowset = unit.rowset
    whole = [piece for lower, upper in parts_left(unit, spec) for piece in windows(lower, upper, WINDOW_ROWS)]
    if not whole:
        return
    fitting = None
    if window_bytes is not None and isinstance(rowset, DiskRowSet):
        fitting = Fitting(rowset, spec, columns, window_bytes, at_once)
    groups = [list(group) for _, group in itertools.groupby(whole, key=lambda piece: piece[0] // WINDOW_ROWS)]
    if _is_little(spec):
        # Of the first window the rows that are asked for, before what the others take is asked.
        (lower, upper), middle = whole[0], whole[0][0] + max(spec.limit or 0, 1)
        if middle < upper:
            groups[:1] = [[(lower, middle)], [(middle, upper)]]
    last = -1
    for parts in groups:
        rows = WINDOW_ROWS
        if fitting is not None:
            for lower, upper in _joined(parts, rows):
                rows = fitting.rows(lower, upper, rows)
        for lower, upper in _joined(parts, rows):
            for piece in windows(lower, upper, rows):
                # Counted as whole ones, however they are cut.
                window = piece[0] // WINDOW_ROWS
                counters.came_to(window != last, piece[1] - piece[0])
                last = window
                yield piece


def _joined(parts: Sequence[tuple[int, int]], rows: int) -> Iterator[tuple[int, int]]:
    """Parts of a window, with the few rows between them that are in one of `rows`."""
    begin, end = parts[0]
    for lower, upper in parts[1:]:
        if lower - end >= GAP_ROWS or lower // rows != (end - 1) // rows:
            yield begin, end
            begin = lower
        end = upper
    yield begin, end


def _is_little(spec: ScanSpec) -> bool:
    """Whether few rows are wanted, and the first are as good as others."""
    return spec.predicate is None and spec.limit is not None and spec.limit <= _INLINE_ROWS


def narrower_types(table: TableState, columns: Sequence[ColumnSchema]) -> dict[str, pa.DataType]:
    """Types in which an engine that knows them takes columns at less cost: decimals of 4 and 8 bytes, and
    dictionaries for text that every rowset on disk has one for. Opens footers.

    What is in memory only, and text that was changed, has its dictionary made when it is read; that is worth it as long
    as it is little.
    """
    rowsets = [rowset for tablet in table.tablets for rowset in tablet.rowsets]
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


def words_held(table: TableState, column: ColumnSchema) -> int:
    """How many words the largest dictionary of a column on disk has. Opens footers."""
    readers = (rowset.base_column(column.id) for tablet in table.tablets for rowset in tablet.rowsets)
    return max((reader.footer.dictionary_count for reader in readers if reader is not None), default=0)


def types_asked(asked: pa.Schema, columns: Sequence[ColumnSchema]) -> dict[str, pa.DataType]:
    """Those types of `asked`, a schema of these columns, in which a scan can read them without another look at them."""
    if asked.names != [column.name for column in columns]:
        return {}
    return {
        column.name: field.type
        for field, column in zip(asked, columns, strict=True)
        if field.type == narrow_decimal(column.type)
        or (column.type.is_variable and field.type == pa.dictionary(pa.int32(), column.type.arrow))
    }


# ------------------------------------------------------------------------------------------------ many windows

_Out = TypeVar("_Out")


def run(
    units: Sequence[ScanUnit],
    spec: ScanSpec,
    counters: ScanCounters,
    make: Callable[[pa.RecordBatch], Any] | None = None,
) -> Iterator[Any]:
    """The rows of the scan as record batches; in key order if the spec says so.

    make: gives what is yielded in the place of each batch; threads that read call it, several at once.

    Without order a batch has at most `WINDOW_ROWS` rows; of a merge it has at most the share of memory, besides what is
    in memory only.
    """
    # Rows without columns are all alike: there is nothing to bring into order, and nothing to merge them by.
    if spec.limit is None and not (spec.order_by_key and spec.columns):
        return _unordered(units, spec, counters, make or _as_it_is)
    ordered = spec.order_by_key and spec.columns
    batches = _ordered(units, spec, counters) if ordered else _unordered(units, spec, counters, _as_it_is)
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
        selected, arrays = read_window(unit, spec, lower, upper, spec.columns, counters)
        if selected is not None and not len(selected):
            return None
        count = upper - lower if selected is None else len(selected)
        return make(_batch(arrays, spec, count))

    if _are_looked_up(units, spec):
        return map(make, _listed_rows(units, spec, counters))
    on_disk: list[ScanUnit] = []
    if spec.is_key_range and spec.columns and not spec.types and _are_few(units):
        on_disk = [unit for unit in units if isinstance(unit.rowset, DiskRowSet)]
        if fit_together(on_disk, spec):
            units = [unit for unit in units if not isinstance(unit.rowset, DiskRowSet)]
        else:
            on_disk = []
    picked = [_picked_range(on_disk, spec, counters)] if on_disk else []
    first = (make(batch) for batch in picked if batch is not None)
    each = _each_piece(units, spec, counters, work, spec.columns)
    return itertools.chain(first, (made for made in each if made is not None))


def _as_it_is(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _row_bytes(spec: ScanSpec) -> int:
    """About how many bytes of Arrow's memory a row takes; of text the offset only."""
    fields = zip(spec.arrow_schema, spec.columns, strict=True)
    return sum(4 if column.type.is_variable else field.type.bit_width // 8 for field, column in fields)


def _are_few(units: Sequence[ScanUnit]) -> bool:
    return sum(unit.upper - unit.lower for unit in units) <= _INLINE_ROWS


def _each_piece(
    units: Sequence[ScanUnit],
    spec: ScanSpec,
    counters: ScanCounters,
    work: Callable[[tuple[ScanUnit, int, int]], _Out],
    columns: Collection[ColumnSchema],
) -> Iterator[_Out]:
    """`work`, which decodes these columns and the predicate's, on all pieces in their order; by several threads, as
    many windows ahead as fit the share of memory."""
    if _are_few(units) or _is_little(spec):
        return map(work, _all_pieces(units, spec, counters, columns, share_bytes(units)))
    # Of a limited number of rows the first window may have enough.
    most = AHEAD_MAX if spec.limit is None else 1
    ahead = windows_that_fit(units, spec, WINDOW_ROWS, most)
    # Those of another rowset than the largest may take twice as much, before they are cut.
    share = share_bytes(units)
    return in_parallel(
        _all_pieces(units, spec, counters, columns, min(share, 2 * share // ahead)), work, ahead
    )


def _picked_range(units: Sequence[ScanUnit], spec: ScanSpec, counters: ScanCounters) -> pa.RecordBatch | None:
    """The few rows of a key range that lie on disk, in one batch; None: there are none.

    Each is in the range, so nothing is asked of them but whether they are there. Cost: some calls for each column of a
    rowset; what comes from several rowsets is joined once a column.
    """
    stats = RowSetStats()
    found: list[list[pa.Array]] = []
    count = 0
    try:
        for unit in units:
            rowset, lower, upper = unit.rowset, unit.lower, unit.upper
            assert isinstance(rowset, DiskRowSet)
            counters.came_to((upper - 1) // WINDOW_ROWS + 1 - lower // WINDOW_ROWS, upper - lower)
            alive = rowset.liveness(spec.snapshot, lower, upper, stats)
            rowids = np.arange(lower, upper) if alive is None else np.flatnonzero(alive) + lower
            if len(rowids):
                found.append(rowset.rows(spec.columns, spec.snapshot, rowids, stats))
                count += len(rowids)
    finally:
        counters.add(stats)
    if not found:
        return None
    return _batch(_end_to_end(found), spec, count)


def _are_looked_up(units: Sequence[ScanUnit], spec: ScanSpec) -> bool:
    """Whether the predicate is a list of keys, and to look each up costs less than to scan."""
    count = spec.listed_count
    if not spec.columns or count is None or count > LISTED_MAX:
        return False
    return count * _ROWS_PER_LISTED <= sum(unit.upper - unit.lower for unit in units)


def _listed_rows(
    units: Sequence[ScanUnit], spec: ScanSpec, counters: ScanCounters
) -> Iterator[pa.RecordBatch]:
    """The rows whose keys the predicate lists, in batches that fit the share of memory.

    Cost: some calls for each rowset, and for each column of one that has some of the keys. No value of the key is
    compared with the predicate.
    """
    row_bytes = max(1, _row_bytes(spec) + sum(MAX_CELL_BYTES for c in spec.columns if c.type.is_variable))
    keys, at_once = spec.listed_keys, max(1, share_bytes(units) // row_bytes)
    pending = [keys.slice(begin, min(at_once, len(keys) - begin)) for begin in range(0, len(keys), at_once)]
    pending.reverse()
    while pending:
        part = pending.pop()
        try:
            batch = _rows_of_keys(part, units, spec, counters)
        except pa.ArrowInvalid as error:
            half = len(part) // 2
            if not half or "overflow" not in str(error):
                raise
            # A store may allow larger cells, so that the text of these rows does not fit one array.
            pending += [part.slice(half, len(part) - half), part.slice(0, half)]
        else:
            if batch is not None:
                yield batch


def _rows_of_keys(
    keys: EncodedKeys, units: Sequence[ScanUnit], spec: ScanSpec, counters: ScanCounters
) -> pa.RecordBatch | None:
    """The rows with these keys; None: there are none. Raises: ArrowInvalid for more text than an array holds."""
    keys.prepare_search()
    found: list[list[pa.Array]] = []
    count = 0
    stats = RowSetStats()
    for unit in units:
        rowset = unit.rowset
        rowids = rowset.find(keys)
        rowids = rowids[(rowids >= unit.lower) & (rowids < unit.upper)]
        if len(rowids):
            counters.came_to(len(np.unique(rowids // WINDOW_ROWS)), len(rowids))
            rowids = rowids[rowset.gather_liveness(spec.snapshot, rowids)]
        if len(rowids):
            found.append(rowset.rows(spec.columns, spec.snapshot, rowids, stats))
            count += len(rowids)
    counters.add(stats)
    if not found:
        return None
    arrays = _end_to_end(found)
    return _batch([in_type(a, c, spec) for a, c in zip(arrays, spec.columns, strict=True)], spec, count)


def _all_pieces(
    units: Sequence[ScanUnit],
    spec: ScanSpec,
    counters: ScanCounters,
    columns: Collection[ColumnSchema],
    limit: int,
) -> Iterator[tuple[ScanUnit, int, int]]:
    each = ((unit, pieces(unit, spec, counters, columns, limit)) for unit in units)
    return ((unit, lower, upper) for unit, found in each for lower, upper in found)


def _end_to_end(parts: Sequence[Sequence[pa.Array]]) -> list[pa.Array]:
    """The columns of several parts, joined. Raises: ArrowInvalid for more text than an array holds."""
    if len(parts) == 1:
        return list(parts[0])
    return [pa.concat_arrays(column) for column in zip(*parts, strict=True)]


def _batch(arrays: Sequence[pa.Array], spec: ScanSpec, count: int) -> pa.RecordBatch:
    if not spec.columns:
        return rows_without_columns(count)
    return pa.RecordBatch.from_arrays(list(arrays), schema=spec.arrow_schema)


def rows_without_columns(count: int) -> pa.RecordBatch:
    """A batch that has rows, and knows how many, but no columns."""
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), count, [None]))


def count(units: Sequence[ScanUnit], spec: ScanSpec, counters: ScanCounters) -> int:
    """How many rows the scan has; reads no column that the predicate does not name."""
    work = partial(_count_piece, spec=spec, counters=counters)
    if spec.limit is None:
        return sum(_each_piece(units, spec, counters, work, ()))
    total = 0
    if spec.limit > 0:
        for found in _each_piece(units, spec, counters, work, ()):
            total += found
            if total >= spec.limit:
                break
    return min(total, max(spec.limit, 0))


def _count_piece(item: tuple[ScanUnit, int, int], spec: ScanSpec, counters: ScanCounters) -> int:
    unit, lower, upper = item
    return count_window(unit, spec, lower, upper, counters)


# ------------------------------------------------------------------------------------------------ key order


def _ordered(units: Sequence[ScanUnit], spec: ScanSpec, counters: ScanCounters) -> Iterator[pa.RecordBatch]:
    """Merge by key. Keys are unique across live rows at one snapshot (T1), so equal keys never meet.

    Cost: each row is sorted once within its window.
    """
    at_once = most_at_once(units)
    window_bytes = share_bytes(units) // at_once
    begin = partial(_sorted_windows, spec=spec, counters=counters, window_bytes=window_bytes, at_once=at_once)
    sources = [(_unit_key_min(unit, spec), partial(begin, unit)) for unit in units]
    for heads in aligned_heads(sources):
        if len(heads) == 1:
            yield heads[0][1]
            continue
        order = EncodedKeys.concat([head[0] for head in heads]).sort_indices()
        yield from merged_batches([head[1] for head in heads], order, share_bytes(units))


def _unit_key_min(unit: ScanUnit, spec: ScanSpec) -> bytes:
    if isinstance(unit.rowset, DiskRowSet):
        return unit.rowset.meta.key_min
    return b""


def _sorted_windows(
    unit: ScanUnit, spec: ScanSpec, counters: ScanCounters, window_bytes: int, at_once: int
) -> Iterator[KeyedRows]:
    keys_of: Callable[[np.ndarray], EncodedKeys] = unit.rowset.keys_of
    if isinstance(unit.rowset, MemRowSet):
        # Rows lie in order of arrival: select first, then sort what is left. It fits in memory, where it is.
        parts: list[tuple[np.ndarray, pa.RecordBatch]] = []
        for lower, upper in pieces(unit, spec, counters):
            selected, arrays = read_window(unit, spec, lower, upper, spec.columns, counters)
            rowids = np.arange(lower, upper) if selected is None else selected + lower
            if len(rowids):
                parts.append((rowids, _batch(arrays, spec, len(rowids))))
        if not parts:
            return
        keys = keys_of(np.concatenate([part[0] for part in parts]))
        order = keys.sort_indices()
        rows = (
            pa.Table.from_batches([part[1] for part in parts]).take(array_of_numbers(order)).combine_chunks()
        )
        yield keys.take(order), _only_batch(rows)
        return
    for lower, upper in pieces(unit, spec, counters, spec.columns, window_bytes, at_once):
        selected, arrays = read_window(unit, spec, lower, upper, spec.columns, counters)
        rowids = np.arange(lower, upper) if selected is None else selected + lower
        if len(rowids):
            yield keys_of(rowids), _batch(arrays, spec, len(rowids))


def _only_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.to_batches()
    if len(batches) == 1:
        return batches[0]
    arrays = [
        pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
        for column in table.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema)


# ------------------------------------------------------------------------------------------------ single rows


def get_many(
    table: TableState, keys: EncodedKeys, tablets: np.ndarray, columns: Sequence[ColumnSchema], snapshot: int
) -> tuple[np.ndarray, list[pa.Array]]:
    """Rows by key at a snapshot. `keys` stand in (tablet, key) order, each once.

    Returns: places in `keys` that were found, ascending, and the columns' values for them.
    Cost: key columns cost no look into any file: a row that was found has the key that was asked for.
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
    """The row of one key, which the tablet `ordinal` houses, as Python values; None when there is none.

    Columns are outside the key. Cost: no array is made of what lies in a block in a place of its own.
    """
    tablet = table.tablets[ordinal]
    for memory in (tablet.memory, *tablet.frozen):
        if memory.row_count:
            rowid = memory.find_one(key)
            if rowid >= 0 and memory.is_live(snapshot, rowid):
                return memory.row(columns, snapshot, rowid)
    if tablet.rowsets:
        canonical = key.at(0)
        for rowset in tablet.tree.holding(canonical):
            rowid = rowset.keys.find_one(key, canonical)
            if rowid >= 0 and rowset.is_live(snapshot, rowid):
                return rowset.row(columns, snapshot, rowid)
    return None


def _get_values(
    table: TableState, keys: EncodedKeys, tablets: np.ndarray, columns: Sequence[ColumnSchema], snapshot: int
) -> tuple[np.ndarray, list[pa.Array]]:
    """`get_many` of columns outside the key."""
    places: list[np.ndarray] = []
    pieces: list[list[pa.Array]] = []
    keys.prepare_search()
    ordinals, offsets = tablet_slices(tablets)
    for ordinal, begin, end in zip(
        ordinals.tolist(), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True
    ):
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
            rowids = rowids[hit]
            alive = rowset.gather_liveness(snapshot, rowids)
            if not alive.all():
                hit, rowids = hit[alive], rowids[alive]
                if not len(hit):
                    continue
            places.append(begin + lower + hit)
            pieces.append(rowset.rows(columns, snapshot, rowids))
    if not places:
        return np.empty(0, np.int64), [pa.nulls(0, column.type.arrow) for column in columns]
    arrays = _end_to_end(pieces)
    if not columns:
        return np.sort(np.concatenate(places)), []
    if len(places) == 1:
        return places[0], arrays
    found = np.concatenate(places)
    if (found[1:] > found[:-1]).all():
        return found, arrays
    order = np.argsort(found, kind="stable")
    return found[order], [array.take(array_of_numbers(order)) for array in arrays]
