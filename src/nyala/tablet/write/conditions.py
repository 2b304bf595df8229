"""Conditional writes: a row is written only if it passes a comparison with the stored row.

    when="new.n > old.n"    an existing row is updated only if the condition is TRUE
    newest_by="seq"         a row is written only if its `seq` is greater than all earlier values
                            of `seq` for its key

`choose` runs under the commit lock, before the batch is resolved. It reads the stored rows of the
batch's keys, and leaves out the rows that fail the comparison; they are counted as ignored. If a
batch has several rows with one key, the second row is compared with the result of the first.

`newest_by` also compares with deleted rows. A delete stores its sequence (its value of `seq`) in
the dead row. A delete of an unknown key stores a row that was never alive (a tombstone). So a late
event does not bring back a row that a newer delete removed. Dead rows are kept for the table's
history.

Source: docs/how-to/change-events.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from nyala import compute as pc
from nyala.errors import NULL, InvalidArgumentError
from nyala.rowset.mem_rowset import MemRowSet
from nyala.schema.conversion.convert import default_array
from nyala.schema.conversion.long_column import Column, LongColumn
from nyala.schema.expressions.nodes import Node, column_names_in
from nyala.schema.schema import FIRST_COLUMN_ID, ColumnId, ColumnSchema, Schema
from nyala.tablet.state.locate import equal_ranges
from nyala.tablet.state.root import AnyRowSet, TableState
from nyala.tablet.write.prepare import PreparedOperation, turns

# Imported at the first use, so that a store opens quickly.
if TYPE_CHECKING:
    from nyala.schema.expressions.parser import Parameters
    from nyala.schema.predicates.predicate import BoundPredicate

OLD, NEW = "old.", "new."
_BY_SEQUENCE: Final = ("upsert", "delete", "delete-ignore")


@dataclass(frozen=True)
class NewestBy:
    """The argument `newest_by` of a write: it writes only rows that are newer than those before.

    A row is newer if its value in `column` is greater than all earlier values of its key. These are
    the value of the stored row, or of the deleted row, and those of earlier rows of the batch.
    """

    column: str


@dataclass(frozen=True)
class When:
    """The argument `when` of an upsert: existing rows are updated only if the comparison is TRUE."""

    tree: Node


Condition = NewestBy | When


def condition_of(when: str | None, params: Parameters, newest_by: str | None) -> Condition | None:
    """Return the condition that the arguments of a write describe; None: no condition.

    Raises: InvalidArgumentError if the arguments contradict each other or have a wrong type.
    """
    if when is not None and newest_by is not None:
        raise InvalidArgumentError("upsert takes either when= or newest_by=, not both")
    if newest_by is not None:
        if not isinstance(newest_by, str):
            raise InvalidArgumentError(f"newest_by takes the name of a column, not {newest_by!r}")
        return NewestBy(newest_by)
    if when is None:
        if params is not None:
            raise InvalidArgumentError('params= needs a when= text: when="new.n > ?", params=[5]')
        return None
    if not isinstance(when, str):
        raise InvalidArgumentError(f'when takes a text such as "new.seq > old.seq", not {when!r}')
    from nyala.schema.expressions.parser import parse_predicate

    return When(parse_predicate(when, params, qualifiers=("old", "new")))


def check_operation(condition: Condition, operation: str) -> None:
    """Raise InvalidArgumentError if `operation`, such as "insert", cannot have this condition."""
    argument, allowed = ("when", ("upsert",)) if isinstance(condition, When) else ("newest_by", _BY_SEQUENCE)
    if operation not in allowed:
        raise InvalidArgumentError(
            f"{argument} goes with operation {' or '.join(allowed)}, not with {operation!r}"
        )


def check_condition(
    table: TableState, operation: PreparedOperation, condition: Condition
) -> PreparedOperation:
    """Check that the table and the operation's data have the columns that the condition needs.

    Requires no lock.
    Returns: the operation. With `newest_by`, rows whose value in that column is NULL or NaN are
             left out and get row errors.
    Raises: InvalidArgumentError, ColumnNotFoundError, SchemaError.
    """
    if isinstance(condition, When):
        _bound(table.schema, condition)
        if not operation.columns:  # an empty list
            return operation
        for name in sorted(column_names_in(condition.tree)):
            if name.startswith(NEW):
                _given(table, operation, name.removeprefix(NEW), f"when= names {name}")
        return operation
    column = table.schema.by_name(condition.column)
    if table.schema.is_key(column.name):
        raise InvalidArgumentError(
            f"newest_by={column.name!r} is part of the key of table {table.name!r}; name a column that grows with "
            "each change of a row"
        )
    if column.immutable:
        raise InvalidArgumentError(
            f"newest_by={column.name!r} is an immutable column of table {table.name!r}, so no update can give it "
            "a greater value; name a column that grows with each change of a row"
        )
    operation = dataclasses.replace(operation, sequence=column.id)
    if not operation.columns:
        return operation
    values = _given(table, operation, column.name, f"newest_by={column.name!r}")
    # NaN would be greater than every later value.
    empty = np.flatnonzero(values.is_null(nan_is_null=True).to_numpy(zero_copy_only=False))
    if not len(empty):
        return operation
    operation.errors.add(
        empty, NULL, f"column {column.name!r}: NULL or NaN, but newest_by needs a value in each row"
    )
    return _kept(operation, ~np.isin(operation.rows, empty))


def choose(
    table: TableState, operation: PreparedOperation, condition: Condition, snapshot: int
) -> PreparedOperation:
    """Return the operation with only the rows that pass their comparison with the stored rows.

    Requires the commit lock.
    snapshot: the moment at which stored rows are read; it includes every batch before this one.
    """
    if not len(operation.rows):
        return operation
    if isinstance(condition, NewestBy):
        wins = _newest(table, operation, table.schema.by_name(condition.column), snapshot)
    else:
        wins = _satisfied(table, operation, condition, snapshot)
    if wins.all():
        return operation
    lost = operation.rows[~wins]
    kept = _kept(operation, wins)
    return dataclasses.replace(kept, ignored_rows=np.concatenate([operation.ignored_rows, lost]))


def _given(table: TableState, operation: PreparedOperation, name: str, why: str) -> pa.Array:
    """Return the values that the operation's rows give for the column `name`.

    why: the beginning of the error message.
    Raises: InvalidArgumentError if not all rows give the column.
    """
    column = table.schema.by_name(name)
    array = operation.columns.get(column.id)
    if array is None or column.id in operation.given:
        some = "has no column" if array is None else "has rows without the column"
        raise InvalidArgumentError(f"{why}, but the data {some} {name!r}: give it in each row")
    return _plain(array, why)


def _plain(array: Column, why: str) -> pa.Array:
    if isinstance(array, LongColumn):
        raise InvalidArgumentError(
            f"{why}: more than 2 GiB of text cannot be compared in one call; write in parts"
        )
    return array


def _kept(operation: PreparedOperation, kept: np.ndarray) -> PreparedOperation:
    """Return the operation with only the rows for which the mask `kept` is True."""
    group = np.repeat(np.arange(len(operation.keys)), operation.group_sizes)
    sizes = np.bincount(group[kept], minlength=len(operation.keys))
    groups = np.flatnonzero(sizes)
    return dataclasses.replace(
        operation,
        rows=operation.rows[kept],
        starts=np.concatenate(([0], np.cumsum(sizes[groups]))),
        keys=operation.keys.take(groups),
        tablets=operation.tablets[groups],
    )


# ------------------------------------------------------------------------------------------------
# newest_by


def _newest(
    table: TableState, operation: PreparedOperation, column: ColumnSchema, snapshot: int
) -> np.ndarray:
    """Return a mask of the rows that pass `newest_by` for this column.

    A row passes if its value is greater than the stored value of its key and than the values of all
    earlier rows of the batch with this key.
    """
    new = _plain(operation.columns[column.id], f"newest_by={column.name!r}").take(pa.array(operation.rows))
    stored = list(_stored(table, operation, column, snapshot))
    keys = np.concatenate([np.empty(0, np.int64), *(places for places, _, _ in stored)])
    alive = np.concatenate([np.empty(0, np.bool_), *(alive for _, _, alive in stored)])
    ranks = _ranks(pa.concat_arrays([new, *(values for _, values, _ in stored)]))
    count = len(new)
    known = np.zeros(len(operation.keys), np.int64)  # each key's greatest stored rank; 0: none
    np.maximum.at(known, keys, ranks[count:])
    # If the key has a live row, dead rows do not count: the live row is newer, also if a write
    # without a sequence created it.
    known[keys[alive]] = ranks[count:][alive]
    group = np.repeat(np.arange(len(operation.keys)), operation.group_sizes)
    # One running maximum serves all keys: `step` makes the numbers of a key greater than all
    # numbers of the keys before it.
    step = int(ranks.max()) + 1
    seen, own = known[group] + group * step, ranks[:count] + group * step
    running = np.maximum.accumulate(np.maximum(seen, own))
    before = np.maximum(np.concatenate(([-1], running[:-1])), seen)
    wins: np.ndarray = own > before
    return wins


def _ranks(values: pa.Array) -> np.ndarray:
    """Return each value's rank among the distinct values: 1 for the least, 0 for NULL."""
    found: np.ndarray = pc.rank(values, "ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    return np.where(values.is_null().to_numpy(zero_copy_only=False), 0, found) if values.null_count else found


def _stored(
    table: TableState, operation: PreparedOperation, column: ColumnSchema, snapshot: int
) -> Iterator[tuple[np.ndarray, pa.Array, np.ndarray]]:
    """Find the stored rows with the operation's keys, dead rows included.

    Yields three arrays for each rowset with such rows: the index of each row's key in
    `operation.keys`, its value in `column`, and whether the row is alive.
    """
    keys, tablets = operation.keys, operation.tablets
    keys.prepare_search()
    for ordinal, begin, end in equal_ranges(tablets):
        tablet = table.tablets[ordinal]
        part = keys.slice(begin, end - begin)
        part.prepare_slices()
        candidates: list[tuple[AnyRowSet, int, int]] = [
            (memory, 0, end - begin) for memory in (tablet.memory, *tablet.frozen) if memory.row_count
        ]
        candidates += tablet.tree.candidates(part) if tablet.rowsets else []
        for rowset, lower, upper in candidates:
            rowids = rowset.find(part.slice(lower, upper - lower))
            hit = np.flatnonzero(rowids >= 0)
            if isinstance(rowset, MemRowSet) and (rowset.timestamp_max or 0) > snapshot:
                # A transaction's copy of memory may have rows that others inserted after its
                # snapshot.
                hit = hit[rowset.insertion_times_at(rowids[hit]) <= snapshot]
            if len(hit):
                rowids = rowids[hit]
                values = rowset.rows((column,), snapshot, rowids)[0]
                yield begin + lower + hit, values, rowset.gather_liveness(snapshot, rowids)


# ------------------------------------------------------------------------------------------------
# when


def _bound(schema: Schema, condition: When) -> BoundPredicate:
    """Return the predicate of `when`, for rows with the columns `new.…` and `old.…` of this schema."""
    columns = [
        *(dataclasses.replace(column, name=NEW + column.name) for column in schema.columns),
        *(dataclasses.replace(column, name=OLD + column.name, nullable=True) for column in schema.columns),
    ]
    numbered = tuple(
        dataclasses.replace(column, id=ColumnId(FIRST_COLUMN_ID + index))
        for index, column in enumerate(columns)
    )
    both = Schema(numbered, schema.key_count, next_column_id=FIRST_COLUMN_ID + len(numbered))
    from nyala.schema.predicates.predicate import BoundPredicate

    return BoundPredicate(condition.tree, both)


def _satisfied(table: TableState, operation: PreparedOperation, condition: When, snapshot: int) -> np.ndarray:
    """Return a mask of the rows of an upsert with `when=` that take effect.

    A row takes effect if its key is new, or if the condition is TRUE. The condition can compare the
    row with the existing row of the same key.

    condition: the argument `when`.
    """
    predicate = _bound(table.schema, condition)
    names = [name.removeprefix(OLD) for name in sorted(predicate.columns) if name.startswith(OLD)]
    current = _Current(table, operation, [table.schema.by_name(name) for name in names], snapshot)
    new = {
        name: _plain(operation.columns[table.schema.by_name(name.removeprefix(NEW)).id], "when=")
        for name in sorted(predicate.columns)
        if name.startswith(NEW)
    }
    wins = np.zeros(len(operation.rows), np.bool_)
    key_of = np.repeat(np.arange(len(operation.keys)), operation.group_sizes)
    for positions in turns(operation.group_sizes):
        rows, keys = operation.rows[positions], key_of[positions]
        there = current.exists[keys]
        accepted = ~there
        if there.any():
            old_rows = pa.array(rows[there])
            arrays = {name: array.take(old_rows) for name, array in new.items()}
            arrays |= {OLD + name: values for name, values in current.values(keys[there]).items()}
            accepted[there] = predicate.evaluate(arrays, int(there.sum()))
        wins[positions] = accepted
        current.note(keys[accepted], rows[accepted])
    return wins


class _Current:
    """The values with which `when` compares the next row of each key.

    These are the values of the stored row. If the batch has several rows with one key, each row
    that passes the comparison replaces the values for the next row.
    """

    def __init__(
        self, table: TableState, operation: PreparedOperation, columns: Sequence[ColumnSchema], snapshot: int
    ) -> None:
        count = len(operation.keys)
        from nyala.tablet.scan.read_path import get_many

        found, arrays = get_many(table, operation.keys, operation.tablets, columns, snapshot)
        place = np.full(count, -1, np.int64)
        place[found] = np.arange(len(found))
        self.exists = place >= 0
        self._columns = columns
        self._operation = operation
        self._parts: dict[str, pa.Array] = {}
        self._source: dict[str, np.ndarray] = {}
        self._rows_at: dict[str, int] = {}
        for column, stored in zip(columns, arrays, strict=True):
            given = operation.columns.get(column.id)
            parts = [stored, default_array(column, 1, "read")]
            if given is not None:
                parts.append(_plain(given, f"when= names {OLD}{column.name}"))
            self._parts[column.name] = pa.concat_arrays(parts)
            self._source[column.name] = place.copy()
            self._rows_at[column.name] = len(stored) + 1

    def values(self, keys: np.ndarray) -> dict[str, pa.Array]:
        return {name: self._parts[name].take(pa.array(source[keys])) for name, source in self._source.items()}

    def note(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """Note that these rows take effect, because their keys were new or the condition was TRUE.

        So the condition of a later row with the same key compares with the values of this row.

        keys: the indices of the rows' keys in the operation; each at most once.
        rows: the rows' positions in the user's data, one for each key.
        """
        made = keys[~self.exists[keys]]
        for column in self._columns:
            name = column.name
            self._source[name][made] = self._rows_at[name] - 1  # the default
            if column.id in self._operation.columns:
                mask = self._operation.given.get(column.id)
                gives = slice(None) if mask is None else mask[rows]
                self._source[name][keys[gives]] = self._rows_at[name] + rows[gives]
        self.exists[keys] = True
