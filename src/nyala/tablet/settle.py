"""What a batch comes to: every operation resolved, key by key, against what is there, and folded per key.

    operations in order         universe of keys           effects (at most one per key)
    insert  k1 k2 k2     ──►    k1 absent        ──►       insert k1
    upsert  k3 k4               k2 absent                  (second k2: already-present)
    delete  k4                  k3 live in rowset 7        update k3
                                k4 absent                  nothing: inserted and deleted here (W4)

`prepare` does all that can be done without the lock and can fail for the user's reasons: convert, encode, route,
sort, group. `settle` runs under the commit lock: it looks every key up once and decides. Neither changes anything.

A single operation is folded in closed form, without rounds over repeated keys, because all its rows have the same
columns: of an insert the first row of a key wins, of an upsert or update the last, of a delete the first. Several
operations on one table (`db.batch()`) are laid over one another in their order.

Invariants
    S1  A key has at most one effect in a batch (W4), so (rowid, timestamp) is unique in every delta store.
    S2  delete + insert of a live key is an update of *all* columns outside the key; insert + delete of an
        absent key is nothing.
    S3  Rows of an effect stand in tablet order and, within a tablet, in key order.
    S4  Failed, ignored and no-op rows are in no effect (W5); counts report what was asked.

Cost: O(columns + touched rowsets) Arrow and NumPy calls, never their product (design §3).
Source: design §4 and §6 (W3–W5, R5); Kudu facts §7.1 for the outcome of each case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa

from nyala.delta.batch import held_bytes
from nyala.delta.run import LIVENESS
from nyala.errors import (
    ALREADY_PRESENT,
    KEY_TOO_LARGE,
    MISSING_COLUMN,
    NO_PARTITION,
    NOT_FOUND,
    InvalidArgumentError,
)
from nyala.keys.encoded_keys import EncodedKeys
from nyala.rowset.mem_rowset import MemRowSet
from nyala.schema.convert import convert, default_array
from nyala.schema.row_errors import RowErrors
from nyala.schema.schema import NO_DEFAULT, ColumnSchema, Schema
from nyala.tablet.root import AnyRowSet, TableState

OPERATIONS: Final = ("insert", "upsert", "update", "delete")
ABSENT: Final = -1


@dataclass
class PreparedOperation:
    """One user operation on one table: converted, checked, routed, sorted; nothing looked up yet.

    `rows[starts[g]:starts[g+1]]` are the rows (by their place in the user's data, in their order) of key `g`.
    """

    name: str
    ignore: bool
    columns: Mapping[int, pa.Array]  # by column id, in the user's row order: the key and what was given
    row_count: int
    errors: RowErrors
    keys: EncodedKeys
    tablets: np.ndarray
    rows: np.ndarray
    starts: np.ndarray
    missing: tuple[str, ...]  # columns that an insert would need and that were not given
    schema: Schema

    @property
    def group_sizes(self) -> np.ndarray:
        return np.diff(self.starts)

    @property
    def is_distinct(self) -> bool:
        """Whether no key stands twice."""
        return len(self.starts) == len(self.rows) + 1

    @property
    def first_rows(self) -> np.ndarray:
        """The first row of each key."""
        return self.rows if self.is_distinct else self.rows[self.starts[:-1]]

    @property
    def last_rows(self) -> np.ndarray:
        """The last row of each key."""
        return self.rows if self.is_distinct else self.rows[self.starts[1:] - 1]

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the columns given."""
        return held_bytes(self.columns.values())


@dataclass
class Effect:
    """What one kind of change does to some keys of one table: one log group, and what is applied to memory."""

    kind: str  # "insert" | "update" | "delete"
    keys: EncodedKeys
    tablets: np.ndarray  # ordinal of the tablet, per row
    columns: dict[int, pa.Array]  # key columns first; then the values
    codes: np.ndarray  # index into Settlement.rowsets; ABSENT for an insert
    rowids: (
        np.ndarray
    )  # place in that rowset; for an insert the dead row of the MemRowSet to bring back, or -1

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        return held_bytes(self.columns.values())


@dataclass
class OperationCounts:
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    ignored: int = 0


@dataclass
class Settlement:
    """The outcome for one table: effects to log and apply, counts and errors per operation."""

    table: TableState
    effects: list[Effect] = field(default_factory=list)
    rowsets: list[tuple[int, AnyRowSet]] = field(default_factory=list)  # (tablet ordinal, rowset)
    counts: list[OperationCounts] = field(default_factory=list)
    errors: list[RowErrors] = field(default_factory=list)
    operations: Sequence[PreparedOperation] = ()

    @property
    def failed(self) -> bool:
        return any(bool(errors) for errors in self.errors)


# ------------------------------------------------------------------------------------------------ prepare


def prepare(
    table: TableState,
    name: str,
    data: Any,
    *,
    ignore: bool,
    errors: RowErrors | None = None,
    homes: np.ndarray | None = None,
) -> PreparedOperation:
    """Everything about one operation that does not depend on what the table holds.

    errors: rows that failed before, while their values were computed.
    homes:  of each row the id of its tablet, where another process has routed it, or -1; see `homes_of`.

    Raises: ColumnNotFoundError, SchemaError, InvalidArgumentError for faults of the whole operation; faults
    of single rows go into `.errors`.
    """
    schema = table.schema
    converted = convert(
        data, schema, columns="key" if name == "delete" else "all", operation=name, limits=table.limits
    )
    if errors is None:
        errors = converted.errors
    else:
        errors.extend(converted.errors)
    count = converted.row_count
    columns: dict[int, pa.Array] = {
        schema.by_name(column).id: array for column, array in converted.columns.items()
    }
    if name == "update" and count and len(columns) <= schema.key_count:
        given = set(columns)
        if all(column.id in given for column in schema.key_columns):
            raise InvalidArgumentError(
                f"update of {table.name!r} names no column to change: give at least one column besides the key "
                f"({_names(schema.key_columns)})"
            )
    keyless = [column.name for column in schema.key_columns if column.id not in columns]
    if keyless:
        errors.add(
            np.arange(count),
            MISSING_COLUMN,
            f"key column {keyless[0]!r} of table {table.name!r} is not in the data; every {name} needs the whole key",
        )
    missing = tuple(
        column.name
        for column in schema.value_columns
        if column.id not in columns and not column.nullable and column.write_default is NO_DEFAULT
    )
    if missing and name == "insert":
        errors.add(np.arange(count), MISSING_COLUMN, _missing_text(missing, table))

    rows = np.flatnonzero(~errors.failed_mask(count)) if errors else np.arange(count)
    if keyless or not len(rows):
        return PreparedOperation(
            name, ignore, columns, count, errors, _no_keys(table), np.empty(0, np.int32),
            np.empty(0, np.int64), np.zeros(1, np.int64), missing, schema,
        )  # fmt: skip
    key_arrays = [columns[column.id] for column in schema.key_columns]
    if len(rows) != count:
        key_arrays = [array.take(pa.array(rows)) for array in key_arrays]
    keys = table.codec.encode(key_arrays)
    bad = np.zeros(len(rows), np.bool_)
    if name in ("insert", "upsert") and table.codec.width is None and schema.key_count > 1:
        sizes = table.codec.sizes(keys)
        bad = sizes > table.limits.max_key_bytes
        if bad.any():
            errors.add(
                rows[bad], KEY_TOO_LARGE,
                [
                    f"the encoded key has {size} bytes, more than the {table.limits.max_key_bytes} that the key of "
                    f"{table.name!r} may have (max_key_bytes)"
                    for size in sizes[bad].tolist()
                ],
            )  # fmt: skip
    names = [column.name for column in schema.key_columns]
    by_name = dict(zip(names, key_arrays, strict=True))
    if homes is None:
        tablets = table.router.route(by_name, len(rows))
    else:
        tablets = homes_of(table, homes[rows], by_name)
    homeless = (tablets < 0) & ~bad
    if homeless.any():
        errors.add(
            rows[homeless], NO_PARTITION,
            f"no range partition of {table.name!r} covers this row; add one, or mend the row",
        )  # fmt: skip
        bad |= homeless
    if bad.any():
        good = np.flatnonzero(~bad)
        rows, keys, tablets = rows[good], keys.take(good), tablets[good]
    if len(table.tablets) == 1 and keys.is_strictly_ascending():  # as the keys of a load do
        starts = np.arange(len(rows) + 1)
    else:
        order = _tablet_key_order(keys, tablets, len(table.tablets))
        if order is not None:
            rows, keys, tablets = rows[order], keys.take(order), tablets[order]
        starts = _group_starts(keys)
        if len(starts) - 1 != len(rows):
            keys, tablets = keys.take(starts[:-1]), tablets[starts[:-1]]
    return PreparedOperation(
        name, ignore, columns, count, errors, keys, tablets, rows, starts, missing, schema
    )


def homes_of(table: TableState, homes: np.ndarray, keys: Mapping[str, pa.Array]) -> np.ndarray:
    """The ordinals of rows' tablets, of which another process has said the ids; -1 where no partition covers a row.

    What that process could not tell, or said of tablets that are gone since, is routed here; so is everything, when one
    of the samples, the first row of each run of equal ids, is not where it was said to be.
    Cost: as the number of such runs; the rows that are routed besides.
    """
    count = len(homes)
    starts = np.flatnonzero(np.append(True, homes[1:] != homes[:-1]))
    said = np.array([table.ordinal_of.get(number, -1) for number in homes[starts].tolist()], np.int32)
    samples = {name: array.take(pa.array(starts)) for name, array in keys.items()}
    if not np.array_equal(table.router.route(samples, len(starts))[said >= 0], said[said >= 0]):
        return table.router.route(keys, count)
    ordinals = np.repeat(said, np.diff(np.append(starts, count)))
    unknown = np.flatnonzero(ordinals < 0)
    if len(unknown):
        some = {name: array.take(pa.array(unknown)) for name, array in keys.items()}
        ordinals[unknown] = table.router.route(some, len(unknown))
    return ordinals


def _tablet_key_order(keys: EncodedKeys, tablets: np.ndarray, tablet_count: int) -> np.ndarray | None:
    """Stable order by (tablet, key); None when the rows stand so already."""
    if len(keys) < 2:
        return None
    by_key = keys.sort_indices()
    narrow = tablets.astype(np.int16) if tablet_count < 2**15 else tablets  # int16: NumPy's radix sort
    order: np.ndarray = by_key if tablet_count == 1 else by_key[np.argsort(narrow[by_key], kind="stable")]
    return None if bool((order[1:] > order[:-1]).all()) else order


def _group_starts(keys: EncodedKeys) -> np.ndarray:
    """Where each run of equal keys begins, and the row count at the end."""
    count = len(keys)
    if count < 2:
        return np.arange(count + 1)
    return np.concatenate(([0], np.flatnonzero(~keys.equal_neighbours()) + 1, [count]))


def _no_keys(table: TableState) -> EncodedKeys:
    return table.codec.empty()


def _names(columns: Sequence[ColumnSchema]) -> str:
    return ", ".join(column.name for column in columns)


def _missing_text(missing: Sequence[str], table: TableState) -> str:
    return (
        f"column {missing[0]!r} of table {table.name!r} is NOT NULL, has no default and is not in the data: "
        "a new row needs a value for it"
    )


# ------------------------------------------------------------------------------------------------ locate


@dataclass
class Located:
    """Where each key is live, and which keys lie dead in the MemRowSet that takes inserts."""

    codes: np.ndarray
    rowids: np.ndarray
    ghosts: np.ndarray  # rowid in the tablet's `memory` where the key is dead; -1 otherwise
    rowsets: list[tuple[int, AnyRowSet]]


def tablet_slices(tablets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(ordinals, offsets): rows [offsets[i], offsets[i+1]) belong to tablet ordinals[i]. `tablets` ascends."""
    count = len(tablets)
    if not count:
        return np.empty(0, np.int64), np.zeros(1, np.int64)
    if tablets[0] == tablets[-1]:
        return tablets[:1], np.array((0, count))
    starts = np.concatenate(([0], np.flatnonzero(tablets[1:] != tablets[:-1]) + 1))
    return tablets[starts], np.append(starts, count)


def locate(
    table: TableState,
    keys: EncodedKeys,
    tablets: np.ndarray,
    newer_than: np.ndarray | None = None,
) -> Located:
    """Find the one rowset in which each key is live now.

    `keys` stand in (tablet, key) order; equal keys may repeat. With `newer_than` (replay, R1) a DiskRowSet is
    only a candidate for row i when its `deltas_durable` < newer_than[i].
    Cost: per touched tablet one look-up in memory and one per DiskRowSet whose key range holds one of the keys.
    """
    count = len(keys)
    found = Located(
        np.full(count, ABSENT, np.int32), np.full(count, -1, np.int64), np.full(count, -1, np.int64), []
    )
    ordinals, offsets = tablet_slices(tablets)
    slices = list(zip(ordinals.tolist(), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
    _look_in_tails(found, table, keys, slices)
    for ordinal, begin, end in slices:
        tablet = table.tablets[ordinal]
        key_runs = tablet.memory.key_runs
        if not tablet.rowsets and not tablet.frozen and not key_runs.has_runs:
            continue
        part = keys if begin == 0 and end == count else keys.slice(begin, end - begin)
        if key_runs.has_runs:
            _look_in(found, tablet.memory, part, begin, ordinal, rowids=key_runs.find_in_runs(part))
        for frozen in tablet.frozen:
            _look_in(found, frozen, part, begin, ordinal, rowids=frozen.find(part))
        if not tablet.rowsets:
            continue
        for disk, lower, upper in tablet.tree.candidates(part):
            inside = part if lower == 0 and upper == end - begin else part.slice(lower, upper - lower)
            eligible = None
            if newer_than is not None:
                eligible = newer_than[begin + lower : begin + upper] > disk.meta.deltas_durable
                if not eligible.any():
                    continue
            _look_in(found, disk, inside, begin + lower, ordinal, rowids=disk.find(inside), eligible=eligible)
    return found


def find_ghosts(table: TableState, keys: EncodedKeys, tablets: np.ndarray) -> np.ndarray:
    """For each key the rowid under which it lies dead in its tablet's `memory`, or -1. None of them is live there.

    Cost: nothing where no row of the MemRowSet was ever deleted.
    """
    ghosts = np.full(len(keys), -1, np.int64)
    ordinals, offsets = tablet_slices(tablets)
    for ordinal, begin, end in zip(
        ordinals.tolist(), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True
    ):
        memory = table.tablets[ordinal].memory
        if LIVENESS in memory.deltas.column_ids:
            ghosts[begin:end] = memory.find(keys.slice(begin, end - begin))
    return ghosts


def _look_in_tails(
    found: Located, table: TableState, keys: EncodedKeys, slices: Sequence[tuple[int, int, int]]
) -> None:
    """The newest keys of all touched MemRowSets, which stand in dictionaries: one pass of C over the batch."""
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
) -> None:
    """Note where `keys` (rows of the batch from `begin` on) are live, given the rowids at which they stand, or -1."""
    hit = np.flatnonzero(rowids >= 0 if eligible is None else (rowids >= 0) & eligible)
    if not len(hit):
        return
    rowids = rowids[hit]
    live = rowset.live(rowids)
    if not live.all():
        if isinstance(rowset, MemRowSet) and rowset.frozen_at is None:
            dead = ~live
            found.ghosts[begin + hit[dead]] = rowids[dead]
        hit, rowids = hit[live], rowids[live]
        if not len(hit):
            return
    found.codes[begin + hit] = len(found.rowsets)
    found.rowids[begin + hit] = rowids
    found.rowsets.append((ordinal, rowset))


# ------------------------------------------------------------------------------------------------ settle


def _copy(errors: RowErrors) -> RowErrors:
    fresh = RowErrors()
    fresh.extend(errors)
    return fresh


class _Overlay:
    """The state of every key of a batch, operation by operation (arrays over the universe of keys)."""

    def __init__(self, existed: np.ndarray, value_ids: Sequence[int], several: bool) -> None:
        self.existed = existed
        self.alive = existed.copy()
        self.touched = np.zeros(len(existed), np.bool_)
        self.value_ids = list(value_ids)
        # Which columns an effect carries and from where; kept per column only when operations overlay one another.
        self.given = np.zeros((len(existed), len(value_ids)), np.bool_) if several else None


def settle(table: TableState, operations: Sequence[PreparedOperation]) -> Settlement:
    """Decide every row of `operations` (all on `table`) against the table's applied state. Under the commit
    lock."""
    # Copies: a batch may be settled more than once (it turned out too large for the log).
    settlement = Settlement(
        table, operations=operations, errors=[_copy(operation.errors) for operation in operations]
    )
    if len(operations) == 1:
        keys, tablets = operations[0].keys, operations[0].tablets
        places = [np.arange(len(keys))]
    else:
        keys, tablets, places = _universe(table, operations)
    located = locate(table, keys, tablets)
    settlement.rowsets = located.rowsets
    overlay = _Overlay(
        located.codes != ABSENT,
        [column.id for column in table.schema.value_columns],
        several=len(operations) > 1,
    )
    decisions = [
        _decide(table, operation, at, overlay, errors)
        for operation, at, errors in zip(operations, places, settlement.errors, strict=True)
    ]
    settlement.counts = [decision.counts for decision in decisions]
    _fold(settlement, operations, places, decisions, overlay, keys, tablets, located)
    return settlement


def _universe(
    table: TableState, operations: Sequence[PreparedOperation]
) -> tuple[EncodedKeys, np.ndarray, list[np.ndarray]]:
    """All distinct keys of the operations in (tablet, key) order, and where each operation's keys stand in it."""
    parts = [operation for operation in operations if len(operation.keys)]
    if not parts:
        return operations[0].keys, operations[0].tablets, [np.empty(0, np.int64) for _ in operations]
    keys = EncodedKeys.concat([operation.keys for operation in parts])
    tablets = np.concatenate([operation.tablets for operation in parts])
    order = _tablet_key_order(keys, tablets, len(table.tablets))
    if order is None:
        order = np.arange(len(keys))
    sorted_keys = keys.take(order)
    starts = _group_starts(sorted_keys)
    place = np.empty(len(keys), np.int64)
    place[order] = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    places, begin = [], 0
    for operation in operations:
        places.append(place[begin : begin + len(operation.keys)])
        begin += len(operation.keys)
    return sorted_keys.take(starts[:-1]), tablets[order][starts[:-1]], places


@dataclass(frozen=True)
class _Decision:
    """What one operation came to, per key of its own."""

    counts: OperationCounts
    winner: np.ndarray  # row (in the user's order) whose values count; -1: none of them
    made: np.ndarray  # the operation made the row: columns that it does not name take their defaults


def _decide(
    table: TableState, operation: PreparedOperation, at: np.ndarray, overlay: _Overlay, errors: RowErrors
) -> _Decision:
    """One operation over the state so far; moves the overlay on."""
    counts = OperationCounts()
    alive = overlay.alive[at]
    if operation.name == "insert" and not alive.any():
        # A load: nothing to be told apart, and no vector as long as the batch that is not needed.
        counts.inserted = len(at)
        if not operation.is_distinct:
            twice = operation.group_sizes - 1
            if operation.ignore:
                counts.ignored = int(twice.sum())
            else:
                _fail_twice(errors, operation, twice)
        whole = slice(None) if len(at) == len(overlay.alive) else at
        overlay.alive[whole] = True
        _give(overlay, whole, None)
        return _Decision(counts, operation.first_rows, np.ones(len(at), np.bool_))
    made = np.zeros(len(at), np.bool_)
    sizes = operation.group_sizes
    first, last = operation.first_rows, operation.last_rows
    winner = np.full(len(at), -1, np.int64)
    if operation.name == "insert":
        made = fresh = ~alive
        winner[fresh] = first[fresh]
        losers = int(sizes.sum()) - int(fresh.sum())
        counts.inserted = int(fresh.sum())
        if losers:
            if operation.ignore:
                counts.ignored = losers
            else:
                _fail(errors, operation, np.where(fresh, 0, sizes), ALREADY_PRESENT, _present_text(table))
                _fail_twice(errors, operation, np.where(fresh, sizes - 1, 0))
        overlay.alive[at] = True
        _give(overlay, at[fresh], None)
    elif operation.name == "upsert":
        able = alive if operation.missing else np.ones(len(at), np.bool_)
        if not able.all():
            _fail(
                errors,
                operation,
                np.where(able, 0, sizes),
                MISSING_COLUMN,
                _missing_text(operation.missing, table),
            )
        made = fresh = able & ~alive
        counts.inserted = int(fresh.sum())
        counts.updated = int(sizes[able].sum()) - counts.inserted
        winner[able] = last[able]
        _give(overlay, at[fresh], None)
        _give(overlay, at[able & alive], operation)
        overlay.alive[at[able]] = True
    elif operation.name == "update":
        winner[alive] = last[alive]
        counts.updated = int(sizes[alive].sum())
        _lose(errors, operation, table, counts, np.where(alive, 0, sizes))
        _give(overlay, at[alive], operation)
    else:
        winner[alive] = first[alive]
        counts.deleted = int(alive.sum())
        _lose(errors, operation, table, counts, np.where(alive, sizes - 1, sizes))
        overlay.alive[at[alive]] = False
        overlay.touched[at[alive]] = True
        if overlay.given is not None:
            overlay.given[at[alive]] = False
    return _Decision(counts, winner, made)


def _give(overlay: _Overlay, at: np.ndarray | slice, operation: PreparedOperation | None) -> None:
    """Note that the keys at `at` get the columns of `operation`, or all columns (an insert: operation None)."""
    if overlay.given is None:
        overlay.touched[at] = True
        return
    if operation is None:
        overlay.given[at] = True
        overlay.touched[at] = True
        return
    assert not isinstance(at, slice), "a slice is of an insert"
    columns = [index for index, column in enumerate(overlay.value_ids) if column in operation.columns]
    if columns:
        overlay.given[np.ix_(at, np.array(columns))] = True
        overlay.touched[at] = True


def _lose(
    errors: RowErrors,
    operation: PreparedOperation,
    table: TableState,
    counts: OperationCounts,
    losing: np.ndarray,
) -> None:
    lost = int(losing.sum())
    if not lost:
        return
    if operation.ignore:
        counts.ignored = lost
        return
    advice = "use upsert(), or pass" if operation.name == "update" else "pass"
    message = f'no row of table {table.name!r} has this key; {advice} on_missing="ignore"'
    _fail(errors, operation, losing, NOT_FOUND, message)


def _present_text(table: TableState) -> str:
    return f'the key is taken in table {table.name!r}; use upsert(), or pass on_conflict="ignore"'


def _fail(
    errors: RowErrors, operation: PreparedOperation, losing: np.ndarray, code: str, message: str
) -> None:
    """The last `losing[g]` rows of each key fail."""
    lost, _ = _last_rows(operation, losing)
    errors.add(np.sort(operation.rows[lost]), code, message)


def _fail_twice(errors: RowErrors, operation: PreparedOperation, losing: np.ndarray) -> None:
    """The last `losing[g]` rows of each key fail, because the first row of their batch with it made the row."""
    lost, group = _last_rows(operation, losing)
    rows, firsts = operation.rows[lost], operation.rows[operation.starts[:-1][group[lost]]]
    messages = [
        f"the key stands twice in this batch, in rows {first} and {row}; leave one out, or use upsert(), where the "
        "later row wins"
        for first, row in zip(firsts.tolist(), rows.tolist(), strict=True)
    ]
    errors.add(rows, ALREADY_PRESENT, messages)


def _last_rows(operation: PreparedOperation, losing: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(places in `operation.rows` of the last `losing[g]` rows of each key g, the key of each place)"""
    sizes = operation.group_sizes
    group = np.repeat(np.arange(len(sizes)), sizes)
    behind = operation.starts[1:][group] - np.arange(len(group))  # 1 for the last row of its key
    return np.flatnonzero(behind <= losing[group]), group


def _fold(
    settlement: Settlement,
    operations: Sequence[PreparedOperation],
    places: Sequence[np.ndarray],
    decisions: Sequence[_Decision],
    overlay: _Overlay,
    keys: EncodedKeys,
    tablets: np.ndarray,
    located: Located,
) -> None:
    """Turn the final state of every key into effects (S1, S2)."""
    existed, alive, touched = overlay.existed, overlay.alive, overlay.touched
    chooser = _Chooser(settlement.table.schema, operations, places, decisions, len(keys))

    def add(kind: str, at: np.ndarray, value_ids: Sequence[int]) -> None:
        if not len(at):
            return
        whole = len(at) == len(keys)
        places = located.ghosts if kind == "insert" else located.rowids
        settlement.effects.append(
            Effect(
                kind,
                keys if whole else keys.take(at),
                tablets if whole else tablets[at],
                chooser.columns(at, value_ids),
                located.codes if whole else located.codes[at],
                places if whole else places[at],
            )
        )

    add("insert", np.flatnonzero(alive & ~existed), overlay.value_ids)
    updates = np.flatnonzero(alive & existed & touched)
    if overlay.given is None:
        given = [column for column in overlay.value_ids if column in operations[0].columns]
        if given and operations[0].name != "insert":
            add("update", updates, given)
    elif len(updates):
        bits = np.packbits(overlay.given[updates], axis=1)
        _, group = np.unique(bits, axis=0, return_inverse=True)
        group = group.reshape(-1)
        for number in range(int(group.max()) + 1):
            members = updates[group == number]
            ids = [
                column for index, column in enumerate(overlay.value_ids) if overlay.given[members[0], index]
            ]
            if ids:
                add("update", members, ids)
    add("delete", np.flatnonzero(existed & ~alive), ())


class _Chooser:
    """Finds, for keys of the universe, the array and the row from which each column's value comes."""

    def __init__(
        self,
        schema: Schema,
        operations: Sequence[PreparedOperation],
        places: Sequence[np.ndarray],
        decisions: Sequence[_Decision],
        key_count: int,
    ) -> None:
        self._schema = schema
        self._operations = operations
        self._places = places
        self._decisions = decisions
        self._key_count = key_count
        # Of a single operation: which of its rows are at `at`; None: all, as they stand.
        self._rows: tuple[np.ndarray, pa.Array | None] | None = None

    def columns(self, at: np.ndarray, value_ids: Sequence[int]) -> dict[int, pa.Array]:
        """Values of the key columns and of `value_ids` for the keys at `at`."""
        choose = self._of_one if len(self._operations) == 1 else self._of_several
        values = (self._schema.by_id(number) for number in value_ids)
        return {column.id: choose(column, at) for column in (*self._schema.key_columns, *values)}

    def _of_one(self, column: ColumnSchema, at: np.ndarray) -> pa.Array:
        source = self._operations[0].columns.get(column.id)
        if source is None:
            return default_array(column, len(at))
        # The rows of a delete carry the key only, and any row with the key will do for it.
        if self._rows is None or self._rows[0] is not at:
            winner = self._decisions[0].winner
            rows = winner if len(at) == self._key_count else winner[at]
            identical = _is_identity(rows, self._operations[0].row_count)
            self._rows = at, None if identical else pa.array(rows)
        pick = self._rows[1]
        return source if pick is None else source.take(pick)

    def _of_several(self, column: ColumnSchema, at: np.ndarray) -> pa.Array:
        """Rows of all operations that write the column, laid end to end; later operations win."""
        pieces: list[pa.Array] = []
        pick = np.full(self._key_count, -1, np.int64)
        begin = 0
        is_key = column in self._schema.key_columns
        for operation, place, decision in zip(self._operations, self._places, self._decisions, strict=True):
            source = operation.columns.get(column.id)
            if is_key:
                if source is None:
                    continue
                pick[place] = begin + operation.rows[operation.starts[:-1]]
            elif source is not None:
                won = decision.winner >= 0
                pick[place[won]] = begin + decision.winner[won]
            elif decision.made.any():
                source = default_array(column, 1)
                pick[place[decision.made]] = begin
            else:
                continue
            pieces.append(source)
            begin += len(source)
        return pa.concat_arrays(pieces).take(pa.array(pick[at]))


def _is_identity(rows: np.ndarray, length: int) -> bool:
    return len(rows) == length and bool((rows == np.arange(length)).all())
