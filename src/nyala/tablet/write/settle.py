"""What a batch comes to: every operation resolved, key by key, against what is there, and folded per key.

    operations in order         universe of keys           effects (at most one per key)
    insert  k1 k2 k2     ──►    k1 absent        ──►       insert k1
    upsert  k3 k4               k2 absent                  (second k2: already-present)
    delete  k4                  k3 live in rowset 7        update k3
                                k4 absent                  nothing: inserted and deleted here (W4)

`prepare` has converted, routed and sorted the rows. `settle` runs under the commit lock: it looks every key up once
(`locate`) and decides. Neither changes anything.

A single operation is folded in closed form, without rounds over repeated keys, because all its rows have the same
columns: of an insert the first row of a key wins, of an upsert or update the last, of a delete the first. Several
operations on one table (`db.batch()`) are laid over one another in their order.

Invariants
    S1  A key has at most one effect in a batch (W4), so (rowid, timestamp) is unique in every delta store.
    S2  delete + insert of a live key is an update of *all* columns outside the key; insert + delete of an
        absent key is nothing.
    S3  Rows of an effect stand in tablet order and, within a tablet, in key order.
    S4  Failed, ignored and no-op rows are in no effect (W5); counts report what was asked.

Cost: O(columns + touched rowsets) Arrow and NumPy calls, never their product.
Source: docs/design/writes-and-batches.md, "Resolving a batch in closed form"; docs/design/rules.md, W3 to W5 and R5;
docs/design/kudu.md, "Outcomes of operations".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from nyala.delta.batch import held_bytes
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
from nyala.schema.schema import ColumnSchema
from nyala.tablet.state.idempotency import COUNTS, FAILED
from nyala.tablet.state.locate import ABSENT, Located, locate
from nyala.tablet.state.root import AnyRowSet, TableState
from nyala.tablet.write.prepare import PreparedOperation, group_starts, missing_text, tablet_key_order


@dataclass
class Effect:
    """What one kind of change does to some keys of one table: one log group, and what is applied to memory."""

    kind: str  # "insert" | "update" | "delete"
    keys: EncodedKeys
    tablets: np.ndarray  # ordinal of the tablet, per row
    columns: Mapping[int, Column]  # key columns first; then the values
    codes: np.ndarray  # index into Settlement.rowsets; ABSENT for an insert
    rowids: (
        np.ndarray
    )  # place in that rowset; for an insert the dead row of the MemRowSet to bring back, or -1
    batch: pa.RecordBatch | None = None  # the columns as the log has them, where they are one batch
    message: pa.Buffer | None = None  # the batch's, if it has one already

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        return held_bytes(self.columns.values()) if self.message is None else self.message.size


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


def told_of(settlements: Sequence[Settlement]) -> dict[str, int]:
    """What is recorded under its key of a batch of these settlements: what became of the rows, counted."""
    told = {
        name: sum(getattr(counts, name) for settlement in settlements for counts in settlement.counts)
        for name in COUNTS
    }
    told[FAILED] = sum(len(errors) for settlement in settlements for errors in settlement.errors)
    return told


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
    """Settle an insert, upsert or update of one row that does what it says; False: it is to be settled as any batch.

    The same as of many rows (a test compares the two), without two dozen calls of NumPy for vectors of one.
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
                columns if whole else {column.id: _given(columns, column) for column in given},
                located.codes,
                places,
                *_logged(operation.ready if whole else None),
            )
        )
    return True


def _logged(ready: ReadyData | None) -> tuple[pa.RecordBatch | None, pa.Buffer | None]:
    return (None, None) if ready is None else (ready.batch, ready.message)


def _given(columns: Mapping[int, Column], column: ColumnSchema) -> Column:
    """The column of one row, or its default."""
    array = columns.get(column.id)
    return default_array(column, 1) if array is None else array


def _universe(
    table: TableState, operations: Sequence[PreparedOperation]
) -> tuple[EncodedKeys, np.ndarray, list[np.ndarray]]:
    """All distinct keys of the operations in (tablet, key) order, and where each operation's keys stand in it."""
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
    """What one operation came to, per key of its own."""

    counts: OperationCounts
    winner: np.ndarray  # row (in the user's order) whose values count; -1: none of them
    made: np.ndarray  # the operation made the row: columns that it does not name take their defaults


def _decide(
    table: TableState, operation: PreparedOperation, at: np.ndarray, overlay: _Overlay, errors: RowErrors
) -> _Decision:
    """One operation over the state so far; moves the overlay on."""
    counts = OperationCounts(ignored=operation.ignored)
    alive = overlay.alive[at]
    if operation.name == "insert" and not alive.any():
        # A load: nothing to be told apart, and no vector as long as the batch that is not needed.
        counts.inserted = len(at)
        if not operation.is_distinct:
            twice = operation.group_sizes - 1
            if operation.ignore:
                counts.ignored += int(twice.sum())
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
                counts.ignored += losers
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
                missing_text(operation.missing, table),
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
        counts.ignored += lost
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
    """Finds, for keys of the universe, the array and the row from which each column's value comes."""

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
        """Values of the key columns and of `value_ids` for the keys at `at`; the same as one batch, if they came so,
        and its message, if they are all of them as they came."""
        wanted = [*self._schema.key_columns, *map(self._schema.by_id, value_ids)]
        if len(self._operations) > 1:
            return {column.id: self._of_several(column, at) for column in wanted}, None, None
        # The rows of a delete carry the key only, and any row with the key will do for it.
        winner, given = self._decisions[0].winner, self._operations[0].columns
        rows = winner if len(at) == self._key_count else winner[at]
        pick = None if _is_identity(rows, self._operations[0].row_count) else pa.array(rows)
        ready = self._operations[0].ready
        if ready is not None and ready.ids == tuple([column.id for column in wanted]):
            if pick is None:
                return {column.id: given[column.id] for column in wanted}, ready.batch, ready.message
            # By one call: of sixteen columns and some hundred rows in half of the time.
            batch = ready.batch.take(pick)
            return dict(zip(ready.ids, batch.columns, strict=True)), batch, None
        columns: dict[int, Column] = {}
        for column in wanted:
            source = given.get(column.id)
            if source is None:
                columns[column.id] = default_column(column, len(at), self._limits)
            else:
                columns[column.id] = source if pick is None else source.take(pick)
        return columns, None, None

    def _of_several(self, column: ColumnSchema, at: np.ndarray) -> Column:
        """Rows of all operations that write the column, laid end to end; later operations win."""
        pieces: list[Column] = []
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
        if not column.type.is_variable:
            return pa.concat_arrays(pieces).take(pa.array(pick[at]))
        whole = joined(pieces, column.type, self._limits).take(pick[at])
        return whole if whole.nbytes > self._limits.max_slice_bytes else whole.array()


def _is_identity(rows: np.ndarray, length: int) -> bool:
    return len(rows) == length and bool((rows == np.arange(length)).all())
