"""Settles a batch: resolves it against the stored rows and folds it to one effect per key.

To settle a batch means to look up each of its keys and to decide, row by row, between insert,
update, delete, no change and error.

    operations in order         all keys                   effects (at most one per key)
    insert  k1 k2 k2     ──►    k1 absent        ──►       insert k1
    upsert  k3 k4               k2 absent                  (second k2: duplicate key)
    delete  k4                  k3 live in rowset 7        update k3
                                k4 absent                  nothing: inserted and deleted here (W4)

`prepare` has converted, routed and sorted the rows. `settle` runs under the commit lock, looks up
each key once (`locate`) and decides. It changes no stored state.

A single operation is folded without a loop over repeated keys, because all its rows have the same
columns: the first row of a key wins for an insert, the last for an upsert or update, the first for
a delete. Several operations on one table (`db.batch()`) are overlaid in their order.

Invariants
    S1  A key has at most one effect in a batch (W4), so (rowid, timestamp) is unique in each delta
        store.
    S2  delete + insert of a live key is an update of *all* columns outside the key; insert + delete
        of an absent key is nothing.
    S3  Rows of an effect are in tablet order and, within a tablet, in key order.
    S4  Failed, ignored and no-op rows have no effect (W5); counts report the requested operations.

Cost: O(columns + touched rowsets) Arrow and NumPy calls, never their product.
Source: docs/design/writes-and-batches.md, "Resolving a batch in closed form"; docs/design/rules.md,
W3 to W5 and R5; docs/design/kudu.md, "Outcomes of operations".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from nyala.delta.batch import held_bytes
from nyala.delta.run import LIVENESS
from nyala.errors import (
    ALREADY_PRESENT,
    MISSING_COLUMN,
    NOT_FOUND,
)
from nyala.keys.encoded_keys import EncodedKeys
from nyala.schema.conversion.convert import default_array, default_column
from nyala.schema.conversion.long_column import Column, joined
from nyala.schema.conversion.ready import ReadyData
from nyala.schema.conversion.row_errors import RowErrors
from nyala.schema.plain_arrays import array_of_numbers
from nyala.schema.schema import ColumnSchema
from nyala.tablet.state.idempotency import COUNTS, FAILED
from nyala.tablet.state.locate import ABSENT, Located, locate
from nyala.tablet.state.root import AnyRowSet, TableState
from nyala.tablet.write.prepare import PreparedOperation, group_starts, missing_text, tablet_key_order


@dataclass
class Effect:
    """One kind of change to some keys of one table: logged as one group, then applied to memory."""

    kind: str  # "insert" | "update" | "delete"
    keys: EncodedKeys
    tablets: np.ndarray  # ordinal of the tablet, per row
    columns: Mapping[int, Column]  # key columns first; then the values
    codes: np.ndarray  # index into Settlement.rowsets; ABSENT for an insert
    # The row's position in that rowset. For an insert: the ghost in the MemRowSet to revive, or -1.
    rowids: np.ndarray
    batch: pa.RecordBatch | None = None  # the columns as the log stores them, if they are one batch
    message: pa.Buffer | None = None  # the batch's IPC message, if it is already encoded

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        return held_bytes(self.columns.values()) if self.message is None else self.message.size

    def new_values(self, key_ids: Collection[int]) -> dict[int, Column]:
        """The columns that an update or a delete writes: those outside the key, or the liveness."""
        if self.kind == "delete":
            return {LIVENESS: array_of_numbers(np.zeros(len(self.codes), np.bool_))}
        return {number: column for number, column in self.columns.items() if number not in key_ids}


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


def row_counts(settlements: Sequence[Settlement]) -> dict[str, int]:
    """The row counts that are recorded under a batch's idempotency key."""
    counts = {
        name: sum(getattr(counts, name) for settlement in settlements for counts in settlement.counts)
        for name in COUNTS
    }
    counts[FAILED] = sum(len(errors) for settlement in settlements for errors in settlement.errors)
    return counts


def _copy(errors: RowErrors) -> RowErrors:
    fresh = RowErrors()
    fresh.extend(errors)
    return fresh


class _Overlay:
    """The state of all keys of a batch, one array element per key, updated by each operation."""

    def __init__(self, existed: np.ndarray, value_ids: Sequence[int], several: bool) -> None:
        self.existed = existed
        self.alive = existed.copy()
        self.touched = np.zeros(len(existed), np.bool_)
        self.value_ids = list(value_ids)
        # The columns that each key's effect carries. Needed only if operations overlay one another.
        self.given = np.zeros((len(existed), len(value_ids)), np.bool_) if several else None


def settle(table: TableState, operations: Sequence[PreparedOperation], at: int | None = None) -> Settlement:
    """Decide each row of `operations`, all on `table`. Call under the commit lock.

    at: for a transaction's private table, the moment at which keys are looked up; None: now.
    """
    # Errors are copied because a batch that is too large for the log is settled twice.
    settlement = Settlement(
        table, operations=operations, errors=[_copy(operation.errors) for operation in operations]
    )
    if len(operations) == 1:
        keys, tablets = operations[0].keys, operations[0].tablets
        places = [np.arange(len(keys))]
    else:
        keys, tablets, places = _distinct_keys(table, operations)
    located = locate(table, keys, tablets, at=at)
    settlement.rowsets = located.rowsets
    if len(keys) == 1 and len(operations) == 1 and _settle_one(settlement, located):
        return settlement
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


def _settle_one(settlement: Settlement, located: Located) -> bool:
    """Settle one row that simply succeeds as an insert, upsert or update; otherwise return False.

    A shortcut: the general way makes two dozen NumPy calls for vectors of length one. A test checks
    that both give the same result.
    """
    table, (operation,) = settlement.table, settlement.operations
    if operation.row_count != 1:
        return False
    existed = int(located.codes[0]) != ABSENT
    columns, given = operation.columns, table.schema.columns
    if existed:
        if operation.name not in ("upsert", "update"):
            return False
        kind, places, counts = "update", located.rowids, OperationCounts(updated=1)
        given = tuple([column for column in given if column.id in columns])
        has_effect = len(given) > table.schema.key_count
    else:
        if operation.name not in ("insert", "upsert") or operation.missing:
            return False
        kind, places, counts, has_effect = "insert", located.ghosts, OperationCounts(inserted=1), True
    settlement.counts = [counts]
    if has_effect:
        whole = len(columns) == len(given)
        settlement.effects.append(
            Effect(
                kind,
                operation.keys,
                operation.tablets,
                columns if whole else {column.id: _value_or_default(columns, column) for column in given},
                located.codes,
                places,
                *_logged(operation.ready if whole else None),
            )
        )
    return True


def _logged(ready: ReadyData | None) -> tuple[pa.RecordBatch | None, pa.Buffer | None]:
    return (None, None) if ready is None else (ready.batch, ready.message)


def _value_or_default(columns: Mapping[int, Column], column: ColumnSchema) -> Column:
    """The column of a one-row operation, or its default."""
    array = columns.get(column.id)
    return default_array(column, 1) if array is None else array


def _distinct_keys(
    table: TableState, operations: Sequence[PreparedOperation]
) -> tuple[EncodedKeys, np.ndarray, list[np.ndarray]]:
    """The distinct keys in (tablet, key) order, their tablets, and each operation's positions."""
    parts = [operation for operation in operations if len(operation.keys)]
    if not parts:
        return operations[0].keys, operations[0].tablets, [np.empty(0, np.int64) for _ in operations]
    keys = EncodedKeys.concat([operation.keys for operation in parts])
    tablets = np.concatenate([operation.tablets for operation in parts])
    order = tablet_key_order(keys, tablets, len(table.tablets))
    if order is None:
        order = np.arange(len(keys))
    sorted_keys = keys.take(order)
    starts = group_starts(sorted_keys)
    place = np.empty(len(keys), np.int64)
    place[order] = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    places, begin = [], 0
    for operation in operations:
        places.append(place[begin : begin + len(operation.keys)])
        begin += len(operation.keys)
    return sorted_keys.take(starts[:-1]), tablets[order][starts[:-1]], places


@dataclass(frozen=True)
class _Decision:
    """The outcome of one operation; arrays have one element per key of the operation."""

    counts: OperationCounts
    winner: np.ndarray  # the row (in the user's order) that supplies the values; -1: none
    made: np.ndarray  # the operation created the row: columns that it does not name get defaults


def _decide(
    table: TableState, operation: PreparedOperation, at: np.ndarray, overlay: _Overlay, errors: RowErrors
) -> _Decision:
    """Decide one operation on top of the earlier ones, and update the overlay."""
    counts = OperationCounts(ignored=operation.ignored)
    alive = overlay.alive[at]
    if operation.name == "insert" and not alive.any():
        # A bulk insert of new keys: avoid the batch-long vectors of the general case.
        counts.inserted = len(at)
        if not operation.is_distinct:
            twice = operation.group_sizes - 1
            if operation.ignore:
                counts.ignored += int(twice.sum())
            else:
                _fail_duplicates(errors, operation, twice)
        whole = slice(None) if len(at) == len(overlay.alive) else at
        overlay.alive[whole] = True
        _mark_given(overlay, whole, None)
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
                counts.ignored += losers
            else:
                _fail(errors, operation, np.where(fresh, 0, sizes), ALREADY_PRESENT, _present_text(table))
                _fail_duplicates(errors, operation, np.where(fresh, sizes - 1, 0))
        overlay.alive[at] = True
        _mark_given(overlay, at[fresh], None)
    elif operation.name == "upsert":
        able = alive if operation.missing else np.ones(len(at), np.bool_)
        if not able.all():
            _fail(
                errors,
                operation,
                np.where(able, 0, sizes),
                MISSING_COLUMN,
                missing_text(operation.missing, table),
            )
        made = fresh = able & ~alive
        counts.inserted = int(fresh.sum())
        counts.updated = int(sizes[able].sum()) - counts.inserted
        winner[able] = last[able]
        _mark_given(overlay, at[fresh], None)
        _mark_given(overlay, at[able & alive], operation)
        overlay.alive[at[able]] = True
    elif operation.name == "update":
        winner[alive] = last[alive]
        counts.updated = int(sizes[alive].sum())
        _fail_missing(errors, operation, table, counts, np.where(alive, 0, sizes))
        _mark_given(overlay, at[alive], operation)
    else:
        winner[alive] = first[alive]
        counts.deleted = int(alive.sum())
        _fail_missing(errors, operation, table, counts, np.where(alive, sizes - 1, sizes))
        overlay.alive[at[alive]] = False
        overlay.touched[at[alive]] = True
        if overlay.given is not None:
            overlay.given[at[alive]] = False
    return _Decision(counts, winner, made)


def _mark_given(overlay: _Overlay, at: np.ndarray | slice, operation: PreparedOperation | None) -> None:
    """Note that the keys at `at` get the columns of `operation`; None (an insert): all columns."""
    if overlay.given is None:
        overlay.touched[at] = True
        return
    if operation is None:
        overlay.given[at] = True
        overlay.touched[at] = True
        return
    assert not isinstance(at, slice), "only an insert passes a slice"
    columns = [index for index, column in enumerate(overlay.value_ids) if column in operation.columns]
    if columns:
        overlay.given[np.ix_(at, np.array(columns))] = True
        overlay.touched[at] = True


def _fail_missing(
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
        counts.ignored += lost
        return
    advice = "use upsert(), or pass" if operation.name == "update" else "pass"
    message = f'no row of table {table.name!r} has this key; {advice} on_missing="ignore"'
    _fail(errors, operation, losing, NOT_FOUND, message)


def _present_text(table: TableState) -> str:
    return (
        f"duplicate key: table {table.name!r} already has a row with this key; use upsert(), or pass "
        'on_conflict="ignore"'
    )


def _fail(
    errors: RowErrors, operation: PreparedOperation, losing: np.ndarray, code: str, message: str
) -> None:
    """Record an error for the last `losing[g]` rows of each key g."""
    lost, _ = _last_rows(operation, losing)
    errors.add(np.sort(operation.rows[lost]), code, message)


def _fail_duplicates(errors: RowErrors, operation: PreparedOperation, losing: np.ndarray) -> None:
    """Record an error for the last `losing[g]` rows of each key g: they repeat a key."""
    lost, group = _last_rows(operation, losing)
    rows, firsts = operation.rows[lost], operation.rows[operation.starts[:-1][group[lost]]]
    messages = [
        f"duplicate key in this batch: rows {first} and {row} have the same key; remove one, or use upsert(), where "
        "the later row wins"
        for first, row in zip(firsts.tolist(), rows.tolist(), strict=True)
    ]
    errors.add(rows, ALREADY_PRESENT, messages)


def _last_rows(operation: PreparedOperation, losing: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The positions in `operation.rows` of each key g's last `losing[g]` rows, and their keys."""
    sizes = operation.group_sizes
    group = np.repeat(np.arange(len(sizes)), sizes)
    from_end = operation.starts[1:][group] - np.arange(len(group))  # 1 for the last row of its key
    return np.flatnonzero(from_end <= losing[group]), group


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
    chooser = _Chooser(settlement.table, operations, places, decisions, len(keys))

    def add(kind: str, at: np.ndarray, value_ids: Sequence[int]) -> None:
        if not len(at):
            return
        whole = len(at) == len(keys)
        places = located.ghosts if kind == "insert" else located.rowids
        columns, batch, message = chooser.columns(at, value_ids)
        settlement.effects.append(
            Effect(
                kind,
                keys if whole else keys.take(at),
                tablets if whole else tablets[at],
                columns,
                located.codes if whole else located.codes[at],
                places if whole else places[at],
                batch,
                message,
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
    """Finds the array and the row that supply each column's value, for keys of the batch."""

    def __init__(
        self,
        table: TableState,
        operations: Sequence[PreparedOperation],
        places: Sequence[np.ndarray],
        decisions: Sequence[_Decision],
        key_count: int,
    ) -> None:
        self._schema = table.schema
        self._limits = table.limits
        self._operations = operations
        self._places = places
        self._decisions = decisions
        self._key_count = key_count

    def columns(
        self, at: np.ndarray, value_ids: Sequence[int]
    ) -> tuple[dict[int, Column], pa.RecordBatch | None, pa.Buffer | None]:
        """The key columns and the columns `value_ids` of the keys at `at`.

        Also returns them as one batch, if the data came as one, and the batch's IPC message, if
        `at` is all rows in their order.
        """
        needed = [*self._schema.key_columns, *map(self._schema.by_id, value_ids)]
        if len(self._operations) > 1:
            return {column.id: self._of_several(column, at) for column in needed}, None, None
        # Rows of a delete have no winner for values; any row with the key supplies the key columns.
        winner, given = self._decisions[0].winner, self._operations[0].columns
        rows = winner if len(at) == self._key_count else winner[at]
        pick = None if _is_identity(rows, self._operations[0].row_count) else pa.array(rows)
        ready = self._operations[0].ready
        if ready is not None and ready.ids == tuple([column.id for column in needed]):
            if pick is None:
                return {column.id: given[column.id] for column in needed}, ready.batch, ready.message
            # One call for all columns takes half the time for sixteen columns and some hundred
            # rows.
            batch = ready.batch.take(pick)
            return dict(zip(ready.ids, batch.columns, strict=True)), batch, None
        columns: dict[int, Column] = {}
        for column in needed:
            source = given.get(column.id)
            if source is None:
                columns[column.id] = default_column(column, len(at), self._limits)
            else:
                columns[column.id] = source if pick is None else source.take(pick)
        return columns, None, None

    def _of_several(self, column: ColumnSchema, at: np.ndarray) -> Column:
        """Concatenate the rows of all operations that write the column; later operations win."""
        parts: list[Column] = []
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
            parts.append(source)
            begin += len(source)
        if not column.type.is_variable:
            return pa.concat_arrays(parts).take(pa.array(pick[at]))
        whole = joined(parts, column.type, self._limits).take(pick[at])
        return whole if whole.nbytes > self._limits.max_slice_bytes else whole.array()


def _is_identity(rows: np.ndarray, length: int) -> bool:
    return len(rows) == length and bool((rows == np.arange(length)).all())
