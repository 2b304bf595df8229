"""Decides what the rows of a batch do, if the batch has several operations or its rows have
different columns.

`resolve` handles a single operation with the same columns in all rows, and this module all other
batches. Rows take effect in the order of the batch. The rows are sorted by key, and step n decides
the n-th row of every key:

    rows by key, in the order of the batch     decided in step 1      in step 2
    k1  insert(a, b)  update(b)                insert k1              update k1
    k2  upsert(a)                              upsert k2
    k3  delete                                 delete k3

Then the rows of a key are combined to one change: here, an insert of k1 with the b of the update.
The last row that gives a column supplies its value. If a row creates the key again after a delete,
the rows before it no longer count. If neither this row nor a later row gives a column, the column
gets its default.

Cost: O(columns) Arrow and NumPy calls, and some NumPy calls per step.
Invariants: those of `resolve`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from nyala.errors import ALREADY_PRESENT, MISSING_COLUMN, NOT_FOUND
from nyala.keys.encoded_keys import EncodedKeys
from nyala.schema.conversion.convert import default_array
from nyala.schema.conversion.long_column import Column, joined
from nyala.schema.schema import ColumnSchema
from nyala.tablet.state.locate import ABSENT, Located, locate
from nyala.tablet.state.root import TableState
from nyala.tablet.write.effects import (
    DELETED,
    FAILED,
    IGNORED,
    INSERTED,
    UPDATED,
    Effect,
    OperationCounts,
    ResolvedBatch,
    missing_row_text,
    present_text,
    repeated_text,
)
from nyala.tablet.write.prepare import (
    OPERATION_NAMES,
    PreparedOperation,
    group_starts,
    missing_text,
    required_but_missing,
    tablet_key_order,
    turns,
)

INSERT, UPSERT, UPDATE, DELETE = range(4)
_NAMES: Final = ("insert", "upsert", "update", "delete")
_KIND_OF_CODE: Final = np.array([_NAMES.index(name.partition("-")[0]) for name in OPERATION_NAMES], np.int8)
_IGNORES: Final = np.array([name.endswith("-ignore") for name in OPERATION_NAMES])


@dataclass
class _Rows:
    """The rows of all operations, by key and then in the order of the batch; one element per row.

    key:       the index of the row's key
    operation: the index of the row's operation
    row:       the row number in the operation's data
    kind:      INSERT, UPSERT, UPDATE or DELETE
    ignore:    whether the row is ignored instead of failing
    made:      whether the row created its key
    maker:     for a failed insert, the earlier row that created the key; otherwise -1
    outcome:   INSERTED, UPDATED, DELETED, IGNORED or FAILED
    sequence:  for a delete with `newest_by`, the id of that column: the deleted row keeps the
               delete's value of this column; otherwise -1
    """

    key: np.ndarray
    operation: np.ndarray
    row: np.ndarray
    kind: np.ndarray
    ignore: np.ndarray
    outcome: np.ndarray
    made: np.ndarray
    maker: np.ndarray
    sequence: np.ndarray

    def __len__(self) -> int:
        return len(self.key)


class _Keys:
    """The state of the batch's keys after the rows that are decided so far; one element per key.

    existed: whether the key was live before the batch.
    alive:   whether the key is live now.
    """

    def __init__(self, existed: np.ndarray) -> None:
        self.existed = existed
        self.alive = existed.copy()
        self.maker = np.full(len(existed), -1, np.int64)  # the last row that created the key
        self.deleter = np.full(len(existed), -1, np.int64)  # the last delete with a sequence


def resolve_rows(
    table: TableState, operations: Sequence[PreparedOperation], resolved: ResolvedBatch, at: int | None
) -> None:
    """Resolve `operations` in their order, and add effects, counts and errors to `resolved`.

    at: the moment at which keys are looked up; None: now. Only a transaction passes a moment. Then
        `table` is its private copy, which also has the transaction's own writes.
    """
    keys, tablets, rows = _combined(table, operations)
    located = locate(table, keys, tablets, at=at)
    resolved.rowsets = located.rowsets
    state = _Keys(located.codes != ABSENT)
    needs = _needs(table, operations, rows)
    for positions in turns(np.bincount(rows.key)):
        _decide(positions, rows, state, needs)
    _report(table, operations, resolved, rows, needs)
    _fold(resolved, operations, rows, state, keys, tablets, located)


def distinct_keys(
    table: TableState, operations: Sequence[PreparedOperation]
) -> tuple[EncodedKeys, np.ndarray, list[np.ndarray]]:
    """Return the distinct keys of all operations in (tablet, key) order, and each key's tablet.

    A tablet is given by its index in `table.tablets`. The third result has, for each operation, the
    positions of its keys among the distinct keys.
    operations: at least one.
    """
    if len(operations) == 1:
        only = operations[0]
        return only.keys, only.tablets, [np.arange(len(only.keys))]
    keys = EncodedKeys.concat([operation.keys for operation in operations])
    tablets = np.concatenate([operation.tablets for operation in operations])
    order = tablet_key_order(keys, tablets, len(table.tablets))
    if order is None:
        order = np.arange(len(keys))
    keys, tablets = keys.take(order), tablets[order]
    starts = group_starts(keys)
    place = np.empty(len(keys), np.int64)
    place[order] = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    ends = np.cumsum([len(operation.keys) for operation in operations])
    return keys.take(starts[:-1]), tablets[starts[:-1]], np.split(place, ends[:-1])


def _combined(
    table: TableState, operations: Sequence[PreparedOperation]
) -> tuple[EncodedKeys, np.ndarray, _Rows]:
    """Merge the rows of several operations into one list, sorted by key.

    Returns: (the distinct keys in (tablet, key) order, the index of each key's tablet, the rows).
             Rows with equal keys stay in the order of the batch.
    """
    parts = [operation for operation in operations if len(operation.keys)]
    if not parts:
        nothing = np.empty(0, np.int64)
        empty = _Rows(*(nothing,) * 9)
        return table.codec.empty(), np.empty(0, np.int32), empty
    keys, tablets, places = distinct_keys(table, parts)
    numbers = [index for index, operation in enumerate(operations) if len(operation.keys)]
    key = np.concatenate(
        [np.repeat(at, operation.group_sizes) for at, operation in zip(places, parts, strict=True)]
    )
    number = np.concatenate([np.full(len(op.rows), index) for index, op in zip(numbers, parts, strict=True)])
    row = np.concatenate([operation.rows for operation in parts])
    code = np.concatenate([_codes(operation)[operation.rows] for operation in parts])
    kind, ignore = _KIND_OF_CODE[code], _IGNORES[code]
    # A delete with a sequence is stored, whether its key exists or not.
    of_operation = np.array([-1 if op.sequence is None else op.sequence for op in operations], np.int64)
    sequence = np.where(kind == DELETE, of_operation[number], -1)
    ignore |= sequence >= 0
    order = np.lexsort((row, number, key))
    key, number, row = key[order], number[order], row[order]
    count = len(key)
    return keys, tablets, _Rows(
        key, number, row, kind[order], ignore[order],
        np.full(count, FAILED, np.int8), np.zeros(count, np.bool_), np.full(count, -1, np.int64),
        sequence[order],
    )  # fmt: skip


def _codes(operation: PreparedOperation) -> np.ndarray:
    """Return the operation of each row of the data, as an index in OPERATION_NAMES."""
    if operation.codes is not None:
        return operation.codes
    name = operation.name + ("-ignore" if operation.ignore and operation.name != "upsert" else "")
    return np.full(operation.row_count, OPERATION_NAMES.index(name), np.uint8)


def _needs(
    table: TableState, operations: Sequence[PreparedOperation], rows: _Rows
) -> list[tuple[str, np.ndarray]]:
    """Return the columns that new rows need, each with a mask of the rows that do not give it."""
    found: dict[str, np.ndarray] = {}
    for index, operation in enumerate(operations):
        for column, lacking in required_but_missing(
            table, operation.columns, operation.given, operation.row_count
        ):
            mask = found.setdefault(column, np.zeros(len(rows), np.bool_))
            mine = rows.operation == index
            mask[mine] = lacking[rows.row[mine]]
    return list(found.items())


def _decide(at: np.ndarray, rows: _Rows, state: _Keys, needs: Sequence[tuple[str, np.ndarray]]) -> None:
    """Decide for some rows whether they insert, update, delete, are ignored or fail.

    The outcomes are set in `rows`, and the keys' new states in `state`.

    at:    the positions of the rows to decide; at most one row of each key.
    needs: the columns that new rows need, each with a mask of the rows that do not give it.
    """
    key, kind = rows.key[at], rows.kind[at]
    alive = state.alive[key]
    insert, upsert, delete = kind == INSERT, kind == UPSERT, kind == DELETE
    made = (insert | upsert) & ~alive
    for _, lacking in needs:
        made &= ~lacking[at]
    changed = alive & (upsert | (kind == UPDATE))
    gone = alive & delete
    lost = ~(made | changed | gone)
    rows.made[at] = made
    rows.maker[at] = np.where(insert & alive, state.maker[key], -1)
    outcome = np.select([made, changed, gone], [INSERTED, UPDATED, DELETED], FAILED)
    rows.outcome[at] = np.where(lost & rows.ignore[at], IGNORED, outcome)
    state.alive[key] = (alive | made) & ~gone
    state.maker[key[made]] = at[made]
    remembered = rows.sequence[at] >= 0
    state.deleter[key[remembered]] = at[remembered]


def _report(
    table: TableState,
    operations: Sequence[PreparedOperation],
    resolved: ResolvedBatch,
    rows: _Rows,
    needs: Sequence[tuple[str, np.ndarray]],
) -> None:
    """Add the results of all operations to `resolved`: counts, the outcome of each row, and errors.

    rows:  the decided rows of all operations.
    needs: the columns that new rows need, each with a mask of the rows that do not give it.
    """
    for index, operation in enumerate(operations):
        mine = rows.operation == index
        number = rows.row[mine]
        outcome = np.full(operation.row_count, FAILED, np.int8)
        outcome[operation.ignored_rows] = IGNORED
        outcome[number] = rows.outcome[mine]
        resolved.outcomes[index] = outcome
        counted = np.bincount(outcome, minlength=FAILED + 1).tolist()
        resolved.counts.append(
            OperationCounts(counted[INSERTED], counted[UPDATED], counted[DELETED], counted[IGNORED])
        )
        failed = np.flatnonzero(mine & (rows.outcome == FAILED))
        if len(failed):
            _add_errors(table, resolved, index, rows, failed, needs)


def _add_errors(
    table: TableState,
    resolved: ResolvedBatch,
    index: int,
    rows: _Rows,
    failed: np.ndarray,
    needs: Sequence[tuple[str, np.ndarray]],
) -> None:
    """Add an error for each failed row of an operation: missing key or column, or duplicate key.

    index:  the index of the operation in the batch.
    failed: the positions in `rows` of its failed rows.
    needs:  the columns that new rows need, each with a mask of the rows that do not give it.
    """
    errors, kind = resolved.errors[index], rows.kind[failed]
    for update, name in ((True, "update"), (False, "delete")):
        lost = failed[kind == (UPDATE if update else DELETE)]
        errors.add(rows.row[lost], NOT_FOUND, missing_row_text(table, name))
    inserts = failed[kind <= UPSERT]
    for column, lacking in needs:
        errors.add(rows.row[inserts[lacking[inserts]]], MISSING_COLUMN, missing_text((column,), table))
    inserts = failed[kind == INSERT]
    maker = rows.maker[inserts]
    same = (maker >= 0) & (rows.operation[maker] == index)
    repeated = inserts[same]
    messages = [
        repeated_text(first, row)
        for first, row in zip(rows.row[maker[same]].tolist(), rows.row[repeated].tolist(), strict=True)
    ]
    errors.add(rows.row[repeated], ALREADY_PRESENT, messages)
    errors.add(rows.row[inserts[~same]], ALREADY_PRESENT, present_text(table))


# ------------------------------------------------------------------------------------------------
# effects


def _fold(
    resolved: ResolvedBatch,
    operations: Sequence[PreparedOperation],
    rows: _Rows,
    state: _Keys,
    keys: EncodedKeys,
    tablets: np.ndarray,
    located: Located,
) -> None:
    """Add the inserts, updates and deletes that the batch causes to `resolved.effects`.

    rows:    the decided rows of all operations.
    state:   whether each key is live before and after the batch.
    keys, tablets: the distinct keys, and the index of each key's tablet.
    located: where each key was found.
    """
    if not len(keys):
        return
    table = resolved.table
    applied = (rows.outcome == INSERTED) | (rows.outcome == UPDATED)
    # Rows before the last creation of their key supply no values.
    applied &= np.arange(len(rows)) >= state.maker[rows.key]
    rewriting = np.array([operation.sets_immutable for operation in operations])[rows.operation]

    def may_set(column: ColumnSchema) -> np.ndarray | bool:
        """Return a mask of the rows that may set the column; True: all rows may.

        Only a row that creates its key may set an immutable column.
        """
        return rows.made | rewriting if column.immutable else True

    values: dict[int, _Values] = {
        column.id: found
        for column in table.schema.value_columns
        if (found := _Values.of(column, operations, rows, applied & may_set(column), len(keys))) is not None
    }
    first_rows = np.flatnonzero(np.append(True, rows.key[1:] != rows.key[:-1]))
    for column in table.schema.key_columns:
        found = _Values.of(column, operations, rows, np.ones(len(rows), np.bool_), len(keys), first_rows)
        assert found is not None, "a row with a key gives all key columns"
        values[column.id] = found

    def add(kind: str, at: np.ndarray, columns: Sequence[ColumnSchema]) -> None:
        if not len(at):
            return
        needed = (*table.schema.key_columns, *columns)
        places = located.ghosts if kind in ("insert", "tombstone") else located.rowids
        resolved.effects.append(
            Effect(
                kind,
                keys.take(at),
                tablets[at],
                {column.id: _column(table, column, values.get(column.id), at) for column in needed},
                located.codes[at],
                places[at],
            )
        )

    every = table.schema.value_columns
    add("insert", np.flatnonzero(state.alive & ~state.existed), every)
    updated = state.alive & state.existed
    again = updated & (state.maker >= 0)
    add("update", np.flatnonzero(again), every)
    for at, columns in _by_columns(np.flatnonzero(updated & ~again), every, values):
        add("update", at, columns)
    deleted = np.flatnonzero(~state.alive & (state.deleter >= 0))
    forgotten = state.existed & ~state.alive
    forgotten[deleted] = False
    add("delete", np.flatnonzero(forgotten), ())
    # A deleted row keeps the sequence of its delete, and no other values.
    remembered = rows.sequence[state.deleter[deleted]]
    for sequence in np.unique(remembered).tolist():
        column, part = table.schema.by_id(sequence), deleted[remembered == sequence]
        chosen, all_rows = state.deleter[part], np.ones(len(rows), np.bool_)
        found = _Values.of(column, operations, rows, all_rows, len(keys), chosen)
        assert found is not None, "a delete with a sequence gives it"
        for other in every:
            values[other.id] = _Values.nothing(other, len(keys))
        values[sequence] = found
        add("delete", part[state.existed[part]], (column,))
        add("tombstone", part[~state.existed[part]], every)


def _by_columns(
    at: np.ndarray, every: Sequence[ColumnSchema], values: Mapping[int, _Values]
) -> Iterator[tuple[np.ndarray, list[ColumnSchema]]]:
    """Group updated keys by the columns that change. Yield (keys, columns) of each group.

    at:    the indices of the updated keys.
    every: all columns that an update may change. If there would be more groups than columns, each
           group has one column instead, and a key may be in several groups.
    """
    columns = [column for column in every if column.id in values]
    if not len(at) or not columns:
        return
    given = np.stack([values[column.id].pick[at] >= 0 for column in columns])
    patterns, group = np.unique(np.packbits(given, axis=0), axis=1, return_inverse=True)
    group = group.reshape(-1)
    if patterns.shape[1] > len(columns):
        for column, has in zip(columns, given, strict=True):
            yield at[has], [column]
        return
    for number in range(patterns.shape[1]):
        members = np.flatnonzero(group == number)
        some = [column for column, has in zip(columns, given[:, members[0]], strict=True) if has]
        if some:
            yield at[members], some


@dataclass(frozen=True)
class _Values:
    """The value that each key gets in one column.

    parts: the column's array of each operation
    pick:  the index of each key's value in the concatenated parts; -1: the key gets no value
    """

    parts: list[Column]
    pick: np.ndarray

    @staticmethod
    def nothing(column: ColumnSchema, key_count: int) -> _Values:
        """Return a meaningless value for each key: NULL, or 0 or "" if the column is NOT NULL.

        They are needed for rows that no reader ever sees. Such a row only keeps the value of a
        delete in the column that `newest_by` names. Its other columns get these values.
        """
        none = pa.nulls(1, column.type.arrow)
        if not column.nullable:
            zeros = pa.py_buffer(bytes(64))
            buffers = [None, zeros, zeros] if column.type.is_variable else [None, zeros]
            none = pa.Array.from_buffers(column.type.arrow, 1, buffers)
        return _Values([none], np.zeros(key_count, np.int64))

    @staticmethod
    def of(
        column: ColumnSchema,
        operations: Sequence[PreparedOperation],
        rows: _Rows,
        applied: np.ndarray,
        key_count: int,
        chosen: np.ndarray | None = None,
    ) -> _Values | None:
        """Return the value of each key: from its last row that gives the column.

        applied: a mask of the rows to use; the others are ignored.
        chosen:  the indexes of the rows that give the values instead of the last rows, at most one
                 row of each key. None: the last rows.
        Returns: None if no operation gives the column.
        """
        parts: list[Column] = []
        source = np.full(len(rows), -1, np.int64)
        begin = 0
        for index, operation in enumerate(operations):
            array = operation.columns.get(column.id)
            if array is None:
                continue
            mine = applied & (rows.operation == index)
            given = operation.given.get(column.id)
            if given is not None:
                mine[mine] = given[rows.row[mine]]
            source[mine] = begin + rows.row[mine]
            parts.append(array)
            begin += len(array)
        if not parts:
            return None
        giving = np.flatnonzero(source >= 0) if chosen is None else chosen
        pick = np.full(key_count, -1, np.int64)
        pick[rows.key[giving]] = source[giving]  # NumPy keeps the last value for a repeated key
        return _Values(parts, pick)


def _column(table: TableState, column: ColumnSchema, values: _Values | None, at: np.ndarray) -> Column:
    """Return the column's values for the keys at `at`; the default for keys without a value."""
    parts = [] if values is None else list(values.parts)
    pick = np.full(len(at), -1, np.int64) if values is None else values.pick[at]
    if (pick < 0).any():
        pick = np.where(pick < 0, sum(len(part) for part in parts), pick)
        parts.append(default_array(column, 1))
    if not column.type.is_variable:
        whole = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        return whole.take(pa.array(pick))
    text = joined(parts, column.type, table.limits).take(pick)
    return text if text.nbytes > table.limits.max_slice_bytes else text.array()
