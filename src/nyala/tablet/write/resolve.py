"""Resolves a batch: looks up its keys, and decides for each row what happens.

A row is an insert, an update, a delete, no change or an error. The decisions of all rows of one key
are then combined to one *effect*, which is logged and applied:

    rows of the batch           stored rows                effects
    insert  k1, k2, k2   ──►    k1 does not exist   ──►    insert k1
                                k2 does not exist          insert k2 (error: k2 is given twice)
    upsert  k3, k4              k3 is in rowset 7          update k3
    delete  k4                  k4 does not exist          none: the upsert creates k4 and the
                                                           delete removes it (W4)

`prepare` has converted, routed and sorted the rows. `resolve` runs under the commit lock. It looks
up each key once (`locate`), and changes no stored state.

In a single operation, all rows have the same columns. So one row decides for its key: the first row
of an insert or a delete, the last row of an upsert or an update. Several operations on one table,
and rows with different columns, are resolved by `resolve_rows`, which takes up to twice as long.

Invariants
    S1  A key has at most one effect in a batch (W4), or several updates of different columns. So
        (rowid, timestamp) is unique for each column of a delta store.
    S2  A delete and a later insert of a live key become one update of *all* columns outside the
        key. An insert and a later delete of an absent key have no effect.
    S3  Rows of an effect are in tablet order and, within a tablet, in key order.
    S4  Rows that failed, were ignored or change nothing have no effect (W5). The counts report the
        operations as the caller gave them.

Cost: O(columns + touched rowsets) Arrow and NumPy calls.
Source: docs/design/writes-and-batches.md, "Resolving a batch without a loop"; docs/design/rules.md,
W3 to W5 and R5; docs/design/kudu.md, "Outcomes of operations".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from nyala.errors import ALREADY_PRESENT, MISSING_COLUMN, NOT_FOUND
from nyala.schema.conversion.convert import default_array, default_column
from nyala.schema.conversion.long_column import Column
from nyala.schema.conversion.row_errors import RowErrors
from nyala.schema.schema import ColumnSchema
from nyala.tablet.state.locate import ABSENT, Located, locate
from nyala.tablet.state.root import TableState
from nyala.tablet.write.effects import (
    Effect,
    OperationCounts,
    ResolvedBatch,
    missing_row_text,
    present_text,
    repeated_text,
)
from nyala.tablet.write.prepare import PreparedOperation, missing_text
from nyala.tablet.write.resolve_rows import resolve_rows


def _copy(errors: RowErrors) -> RowErrors:
    fresh = RowErrors()
    fresh.extend(errors)
    return fresh


@dataclass
class _Keys:
    """What the operation does to its keys; one array element per key.

    existed: whether the key is live before the operation
    alive:   whether the key is live after the operation
    touched: whether the operation inserts, updates or deletes the key
    """

    existed: np.ndarray
    alive: np.ndarray
    touched: np.ndarray


def resolve(
    table: TableState, operations: Sequence[PreparedOperation], at: int | None = None
) -> ResolvedBatch:
    """Resolve `operations`, all on `table`: decide what each row does. Requires the commit lock.

    at: the moment at which keys are looked up; None: now. Only a transaction passes a moment. Then
        `table` is its private copy, which also has the transaction's own writes.
    """
    # This function adds errors to copies, because a batch that is too large for the log is resolved
    # twice.
    resolved = ResolvedBatch(
        table, operations=operations, errors=[_copy(operation.errors) for operation in operations]
    )
    if len(operations) > 1 or not _is_uniform(operations[0]):
        resolve_rows(table, operations, resolved, at)
        return resolved
    (operation,) = operations
    located = locate(table, operation.keys, operation.tablets, at=at)
    resolved.rowsets = located.rowsets
    if len(operation.keys) == 1 and _resolve_one(resolved, located):
        return resolved
    existed = located.codes != ABSENT
    state = _Keys(existed, existed.copy(), np.zeros(len(existed), np.bool_))
    counts, winners = _decide(table, operation, state, resolved.errors[0])
    resolved.counts = [counts]
    _fold(resolved, operation, winners, state, located)
    return resolved


def _is_uniform(operation: PreparedOperation) -> bool:
    """Whether one row of each key alone decides what happens to the key.

    This is the first or the last row of the key, depending on the operation. If the result is
    False, several rows of a key can matter, and the caller must use the slower `resolve_rows`.
    """
    remembers = operation.sequence is not None and operation.name == "delete"
    # Of several upserts of a new key, the first sets immutable columns, and the last the others.
    mixed = operation.name == "upsert" and not operation.is_distinct and bool(operation.schema.immutable_ids)
    return operation.codes is None and not operation.given and not remembers and not mixed


def _resolve_one(resolved: ResolvedBatch, located: Located) -> bool:
    """Resolve an operation with a single row quickly, if the row inserts or updates without error.

    Returns False, and changes nothing, in all other cases: then use the general code of `resolve`,
    which is slower and gives the same results.
    """
    table, (operation,) = resolved.table, resolved.operations
    if operation.row_count != 1:
        return False
    existed = int(located.codes[0]) != ABSENT
    columns, given = operation.columns, table.schema.columns
    if existed:
        if operation.name not in ("upsert", "update"):
            return False
        kind, places, counts = "update", located.rowids, OperationCounts(updated=1)
        given = tuple([column for column in given if column.id in columns and _may_change(operation, column)])
        has_effect = len(given) > table.schema.key_count
    else:
        if operation.name not in ("insert", "upsert") or operation.missing:
            return False
        kind, places, counts, has_effect = "insert", located.ghosts, OperationCounts(inserted=1), True
    resolved.counts = [counts]
    if has_effect:
        whole = len(columns) == len(given)
        ready = operation.ready if whole else None
        resolved.effects.append(
            Effect(
                kind,
                operation.keys,
                operation.tablets,
                columns if whole else {column.id: _value_or_default(columns, column) for column in given},
                located.codes,
                places,
                None if ready is None else ready.batch,
                None if ready is None else ready.message,
            )
        )
    return True


def _may_change(operation: PreparedOperation, column: ColumnSchema) -> bool:
    """Whether the operation may set this column in rows that exist."""
    return not column.immutable or operation.sets_immutable


def _value_or_default(columns: Mapping[int, Column], column: ColumnSchema) -> Column:
    """Return a column of a batch that has a single row, as an array of length one.

    If the batch does not give the column, the array has the column's default.

    columns: the given columns by id.
    """
    array = columns.get(column.id)
    return default_array(column, 1) if array is None else array


def _decide(
    table: TableState, operation: PreparedOperation, state: _Keys, errors: RowErrors
) -> tuple[OperationCounts, np.ndarray]:
    """Decide for each row of the operation whether it changes its key, is ignored or fails.

    state:  gets the states of the keys after the operation.
    errors: gets an error for each row that fails.
    Returns: (the counts of the operation; for each key, the number of the row that supplies its
             values, or -1).
    """
    counts = OperationCounts(ignored=operation.ignored)
    alive = state.existed
    sizes, first, last = operation.group_sizes, operation.first_rows, operation.last_rows
    if operation.name == "insert" and not alive.any():
        # A bulk insert of new keys needs fewer large arrays than the general case.
        counts.inserted = len(alive)
        if not operation.is_distinct:
            twice = sizes - 1
            if operation.ignore:
                counts.ignored += int(twice.sum())
            else:
                _fail_duplicates(errors, operation, twice)
        state.alive[:] = state.touched[:] = True
        return counts, first
    winner = np.full(len(alive), -1, np.int64)
    if operation.name == "insert":
        fresh = ~alive
        winner[fresh] = first[fresh]
        counts.inserted = int(fresh.sum())
        losers = int(sizes.sum()) - counts.inserted
        if operation.ignore:
            counts.ignored += losers
        elif losers:
            _fail(errors, operation, np.where(fresh, 0, sizes), ALREADY_PRESENT, present_text(table))
            _fail_duplicates(errors, operation, np.where(fresh, sizes - 1, 0))
        state.alive[:] = True
        state.touched = fresh
    elif operation.name == "upsert":
        able = alive if operation.missing else np.ones(len(alive), np.bool_)
        if not able.all():
            text = missing_text(operation.missing, table)
            _fail(errors, operation, np.where(able, 0, sizes), MISSING_COLUMN, text)
        counts.inserted = int((able & ~alive).sum())
        counts.updated = int(sizes[able].sum()) - counts.inserted
        winner[able] = last[able]
        state.alive = alive | able
        state.touched = able
    elif operation.name == "update":
        winner[alive] = last[alive]
        counts.updated = int(sizes[alive].sum())
        _fail_missing(errors, operation, table, counts, np.where(alive, 0, sizes))
        state.touched = alive
    else:
        winner[alive] = first[alive]
        counts.deleted = int(alive.sum())
        _fail_missing(errors, operation, table, counts, np.where(alive, sizes - 1, sizes))
        state.alive = np.zeros(len(alive), np.bool_)
        state.touched = alive
    return counts, winner


def _fail_missing(
    errors: RowErrors,
    operation: PreparedOperation,
    table: TableState,
    counts: OperationCounts,
    losing: np.ndarray,
) -> None:
    """Add a "missing key" error for each row that fails, or count these rows as ignored.

    losing: for each key, a number n: the last n rows of the key fail.
    """
    if operation.ignore:
        counts.ignored += int(losing.sum())
    elif losing.any():
        _fail(errors, operation, losing, NOT_FOUND, missing_row_text(table, operation.name))


def _fail(
    errors: RowErrors, operation: PreparedOperation, losing: np.ndarray, code: str, message: str
) -> None:
    """Add an error with this code and message for each row that fails.

    losing: for each key, a number n: the last n rows of the key fail.
    """
    lost, _ = _last_rows(operation, losing)
    errors.add(np.sort(operation.rows[lost]), code, message)


def _fail_duplicates(errors: RowErrors, operation: PreparedOperation, losing: np.ndarray) -> None:
    """Add a "duplicate key" error for each row that fails.

    losing: for each key, a number n: the last n rows of the key fail.
    """
    lost, group = _last_rows(operation, losing)
    rows, firsts = operation.rows[lost], operation.rows[operation.starts[:-1][group[lost]]]
    messages = [repeated_text(first, row) for first, row in zip(firsts.tolist(), rows.tolist(), strict=True)]
    errors.add(rows, ALREADY_PRESENT, messages)


def _last_rows(operation: PreparedOperation, losing: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the rows that fail: the last n rows of each key.

    losing: for each key, a number n: the last n rows of the key fail.
    Returns: the positions of these rows in `operation.rows`; and for each row in `operation.rows`
             the index of its key.
    """
    sizes = operation.group_sizes
    group = np.repeat(np.arange(len(sizes)), sizes)
    from_end = operation.starts[1:][group] - np.arange(len(group))  # 1 for the last row of its key
    return np.flatnonzero(from_end <= losing[group]), group


def _fold(
    resolved: ResolvedBatch,
    operation: PreparedOperation,
    winners: np.ndarray,
    state: _Keys,
    located: Located,
) -> None:
    """Add the inserts, updates and deletes that the operation causes to `resolved.effects`.

    winners: for each key, the number of the row that supplies its values.
    state:   whether each key is live before and after the operation.
    located: where each key was found.
    """
    table, keys, tablets = resolved.table, operation.keys, operation.tablets
    existed, alive = state.existed, state.alive

    def add(kind: str, at: np.ndarray, columns: Sequence[ColumnSchema]) -> None:
        if not len(at):
            return
        whole = len(at) == len(keys)
        places = located.ghosts if kind == "insert" else located.rowids
        rows = winners if whole else winners[at]
        values, batch, message = _columns(table, operation, rows, (*table.schema.key_columns, *columns))
        resolved.effects.append(
            Effect(
                kind,
                keys if whole else keys.take(at),
                tablets if whole else tablets[at],
                values,
                located.codes if whole else located.codes[at],
                places if whole else places[at],
                batch,
                message,
            )
        )

    every = table.schema.value_columns
    add("insert", np.flatnonzero(alive & ~existed), every)
    given = [column for column in every if column.id in operation.columns and _may_change(operation, column)]
    if given and operation.name in ("upsert", "update"):
        add("update", np.flatnonzero(alive & existed & state.touched), given)
    add("delete", np.flatnonzero(existed & ~alive), ())


def _columns(
    table: TableState, operation: PreparedOperation, rows: np.ndarray, needed: Sequence[ColumnSchema]
) -> tuple[dict[int, Column], pa.RecordBatch | None, pa.Buffer | None]:
    """Return the values that `rows` write to the columns `needed`.

    Returns: the columns by id, with default values for those that the user did not give; the same
             columns as the Arrow batch that the log stores; and the IPC message of this batch. The
             batch and the message may be None, if the preparation of the operation did not make
             them. Then they are made later.
    """
    given, ready = operation.columns, operation.ready
    pick = None if _is_identity(rows, operation.row_count) else pa.array(rows)
    if ready is not None and ready.ids == tuple([column.id for column in needed]):
        if pick is None:
            return {column.id: given[column.id] for column in needed}, ready.batch, ready.message
        # One call for all columns takes half the time for sixteen columns and some hundred rows.
        batch = ready.batch.take(pick)
        return dict(zip(ready.ids, batch.columns, strict=True)), batch, None
    columns: dict[int, Column] = {}
    for column in needed:
        source = given.get(column.id)
        if source is None:
            columns[column.id] = default_column(column, len(rows), table.limits)
        else:
            columns[column.id] = source if pick is None else source.take(pick)
    return columns, None, None


def _is_identity(rows: np.ndarray, length: int) -> bool:
    return len(rows) == length and bool((rows == np.arange(length)).all())
