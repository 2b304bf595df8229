"""Writes that select their rows by a predicate, and look-ups by key.

`update(set=…, where=…)` and `delete(where=…)` read and write under the commit lock, so no other
write can change the rows in between. They read at the applied timestamp, which includes every
earlier batch.

Source: docs/how-to/expressions.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from nyala.errors import InvalidArgumentError, InvalidValueError
from nyala.keys.encoded_keys import EncodedKeys
from nyala.schema.arrow_values import python_value_at
from nyala.schema.conversion.convert import convert
from nyala.schema.conversion.long_column import row_slices
from nyala.schema.conversion.row_errors import RowErrors
from nyala.schema.predicates.assignment import Assigned, Expression, TooMuchText, parse_assignment
from nyala.schema.predicates.predicate import bind
from nyala.schema.schema import ColumnSchema
from nyala.schema.types import MAX_CELL_BYTES
from nyala.tablet.scan import read_path
from nyala.tablet.scan.read_path import ScanCounters, ScanSpec
from nyala.tablet.state.history import check_purged_keys
from nyala.tablet.state.result import Ticket, WriteResult
from nyala.tablet.state.root import TableState
from nyala.tablet.write.prepare import encode_keys, prepare, route_keys
from nyala.tablet.write.write_path import Request, commit, once, resolve_requests, results_of

if TYPE_CHECKING:
    from nyala.tablet.store import Store


@dataclass(frozen=True)
class ToDelete:
    """Selects the rows of a delete: a call returns the keys of the rows that satisfy `where`."""

    where: Any

    def __call__(self, table: TableState, snapshot: int) -> tuple[pa.Table, RowErrors]:
        key = [column.name for column in table.schema.key_columns]
        return _select(table, snapshot, key, self.where), RowErrors()


@dataclass(frozen=True)
class ToUpdate:
    """Selects the rows of an update: a call returns the rows' keys and new values.

    where:       only the rows that satisfy this predicate; None: all rows.
    assignments: the new value of each column, a constant or an expression.
    Raises: InvalidArgumentError for a key column; ColumnNotFoundError; InvalidValueError if a value
            does not fit its column.
    """

    assignments: Mapping[str, Any]
    where: Any

    def __call__(self, table: TableState, snapshot: int) -> tuple[pa.Table, RowErrors]:
        schema = table.schema
        keys = [column.name for column in schema.key_columns]
        for column in self.assignments:
            if schema.by_name(column).name in keys:
                raise InvalidArgumentError(
                    f"column {column!r} is part of the key of {table.name!r} and cannot be updated: delete the row and "
                    "insert it with the new key"
                )
        parsed: dict[str, Expression] = {
            column: parse_assignment(value, schema, schema.by_name(column), table.limits)
            for column, value in self.assignments.items()
        }
        needed = list(
            dict.fromkeys(
                [*keys, *(used for expression in parsed.values() for used in sorted(expression.columns))]
            )
        )
        rows = _select(table, snapshot, needed, self.where)
        out = rows.select(keys)
        errors = RowErrors()
        for column, expression in parsed.items():
            parts = []
            begin = 0
            for count, (array, failed) in _evaluated(expression, rows):
                parts.append(array)
                errors.extend(failed, begin)
                begin += count
            values = pa.chunked_array(parts) if parts else pa.nulls(0, schema.by_name(column).type.arrow)
            out = out.append_column(column, values)
        return out, errors


Select: TypeAlias = ToDelete | ToUpdate
"""Called with a table and a snapshot. Returns the rows to write, and the errors of other rows.

Raises: errors of the predicate or an assignment; StorageError.
"""


def to_update(assignments: Any, where: Any) -> ToUpdate:
    """Return a function that finds the rows of `update(set=…, where=…)` and their new values.

    assignments: the argument `set`.
    Raises: InvalidArgumentError if the assignments are not a dict, or are empty.
    """
    if not isinstance(assignments, Mapping):
        raise InvalidArgumentError(
            f"update takes set={{column: value or expression}}, not set={assignments!r}"
        )
    if not assignments:
        raise InvalidArgumentError("update(set={}) changes no column: give at least one column and its value")
    return ToUpdate(assignments, where)


def _evaluated(expression: Expression, rows: pa.Table) -> Iterator[tuple[int, Assigned]]:
    """Evaluate the expression for `rows`. Yield, batch by batch, the row count and the values.

    If the text of a batch is too large for one Arrow array, the batch is halved.
    """
    waiting = rows.to_batches()[::-1]
    while waiting:
        batch = waiting.pop()
        count = batch.num_rows
        try:
            values = expression.evaluate(dict(zip(rows.column_names, batch.columns, strict=True)), count)
        except TooMuchText:
            if count < 2:
                raise
            waiting += [batch.slice(count // 2), batch.slice(0, count // 2)]
        else:
            yield count, values


def _select(table: TableState, snapshot: int, columns: Sequence[str], where: Any) -> pa.Table:
    spec = ScanSpec(table.schema, table.schema.project(columns), snapshot, bind(where, table.schema))
    batches = read_path.run(read_path.plan(table, spec, ScanCounters()), spec, ScanCounters())
    return pa.Table.from_batches(list(batches), schema=spec.arrow_schema)


def write_selected(
    store: Store,
    name: str,
    operation: str,
    select: Select,
    *,
    collect: bool = False,
    message: str | None = None,
    idempotency_key: str | None = None,
) -> WriteResult:
    """Select rows and write them as one batch, both under the commit lock.

    operation: the operation for the selected rows, such as "update".
    select:    returns the rows to write (`ToUpdate`, `ToDelete`).
    Raises:    the errors of `select` and of `write_path.write`.
    """
    store.check_writable()
    request = Request(name, operation, None)

    def under_lock() -> tuple[Any, Ticket]:
        table = store.root.table(name)
        rows, errors = select(table, store.marks.applied)
        prepared = [(table, prepare(table, operation, rows, ignore=False, errors=errors))]
        resolved_batches = resolve_requests(store, [request], prepared, collect=collect)
        resolved = [resolved for resolved, _ in resolved_batches]
        return resolved_batches, commit(store, resolved, idempotency_key, message)

    return once(
        store,
        idempotency_key,
        under_lock,
        lambda resolved_batches, timestamp: results_of([request], resolved_batches, timestamp)[0],
    )


def look_up(table: TableState, keys: Any, columns: Sequence[str] | None, snapshot: int) -> pa.Table:
    """Return the rows with these keys, in the order of `keys`. Keys that do not exist are left out.

    keys:     as in `Table.get_many`.
    columns:  the columns to return; None: all.
    snapshot: the moment of the read.
    Raises: InvalidArgumentError for a missing key column; InvalidValueError for a NULL or a value
            out of range; SchemaError; ColumnNotFoundError; HistoryExpiredError if a key was in a
            range partition that was dropped after `snapshot`.
    """
    projection = table.schema.columns if columns is None else table.schema.project(columns)
    encoded, tablets = read_keys(table, keys, "get", snapshot)
    schema = table.schema.arrow_schema(columns)
    batches = [
        pa.RecordBatch.from_arrays(values, schema=schema)
        if projection
        else read_path.rows_without_columns(count)
        for count, values in _find(table, encoded, tablets, projection, snapshot)
    ]
    return pa.Table.from_batches(batches) if batches else schema.empty_table()


def look_up_row(
    table: TableState, key: Mapping[str, Any], columns: Sequence[str] | None, snapshot: int
) -> dict[str, Any] | None:
    """Return the row with this key as Python values; None: no such row.

    Parameters and errors: as `look_up`.
    """
    projection = table.schema.columns if columns is None else table.schema.project(columns)
    plain = _plain_key(table, key)
    if plain is None:
        encoded, tablets = read_keys(table, [key], "get", snapshot)
        ordinal = int(tablets[0])
    else:
        encoded, ordinal = plain
    if ordinal < 0:
        return None
    key_columns = table.schema.key_columns
    key_ids = {column.id for column in key_columns}
    values = [column for column in projection if column.id not in key_ids]
    row = read_path.get_row(table, encoded, ordinal, values, snapshot)
    if row is None:
        return None
    found = {column.name: value for column, value in zip(values, row, strict=True)}
    if len(values) < len(projection):  # the projection has key columns
        if plain is not None:
            found |= key
        else:
            key_values = zip(key_columns, table.codec.decode(encoded), strict=True)
            found |= {column.name: python_value_at(array, 0) for column, array in key_values}
    return {column.name: found[column.name] for column in projection}


def _plain_key(table: TableState, key: Mapping[str, Any]) -> tuple[EncodedKeys, int] | None:
    """Return the encoded key, and the index of its tablet in `table.tablets`.

    Only for a key of plain ints and ASCII text: there it is faster than `read_keys`, which converts
    through Arrow arrays. Returns None for other keys, and if no tablet covers the key.
    """
    columns = table.schema.key_columns
    if len(key) != len(columns) or table.entry.purged:
        return None
    values: list[Any] = []
    for column in columns:
        value: Any = key.get(column.name)
        type = column.type
        if value.__class__ is int and type.is_integer:
            least, greatest = type.value_min, type.value_max
            assert least is not None and greatest is not None
            if not least <= value <= greatest:
                return None
        elif value.__class__ is not str or type.name != "string":
            return None
        elif not value.isascii() or len(value) > MAX_CELL_BYTES:
            return None
        values.append(value)
    ordinal = table.router.route_one(key)
    return None if ordinal < 0 else (table.codec.encode_one(values), ordinal)


def _find(
    table: TableState,
    encoded: EncodedKeys,
    tablets: np.ndarray,
    projection: Sequence[ColumnSchema],
    snapshot: int,
) -> Iterator[tuple[int, list[pa.Array]]]:
    """Yield the found rows in the order of the keys, as (row count, one array per column).

    There is one such pair. If the values of a text column are too large for one Arrow array, there
    are several pairs.
    """
    covered = np.flatnonzero(tablets >= 0)
    by_key = encoded.take(covered).sort_indices()
    order = covered[by_key]
    order = order[np.argsort(tablets[order], kind="stable")]
    if not len(order):
        return
    try:
        found, values = read_path.get_many(table, encoded.take(order), tablets[order], projection, snapshot)
        back = pa.array(np.argsort(order[found], kind="stable"))
        values = [array.take(back) for array in values]
    except pa.ArrowInvalid as error:
        half = len(encoded) // 2
        if not half or "overflow" not in str(error):
            raise
    else:
        if len(found):
            yield len(found), values
        return
    # The size of the text is known only after reading, so few rows are read twice.
    yield from _find(table, encoded.slice(0, half), tablets[:half], projection, snapshot)
    yield from _find(table, encoded.slice(half, len(encoded) - half), tablets[half:], projection, snapshot)


def read_keys(
    table: TableState, keys: Any, operation: str, snapshot: int | None = None
) -> tuple[EncodedKeys, np.ndarray]:
    """Convert a user's keys. Return the encoded keys, and the index of each key's tablet.

    The index is the position in `table.tablets`; -1: no row can have the key.
    operation: the operation's name, for messages.
    snapshot:  the earliest moment of the read, to detect dropped partitions; None: do not check.
    Raises: the errors of `look_up`.
    """
    schema = table.schema
    converted = convert(keys, schema, columns="key", operation=operation, limits=table.limits)
    if not converted.row_count:
        return table.codec.empty(), np.empty(0, np.int32)
    left_out = [column.name for column in schema.key_columns if column.name not in converted.columns]
    if left_out:
        raise InvalidArgumentError(
            f"{operation} needs all key columns of {table.name!r} ({', '.join(c.name for c in schema.key_columns)}): "
            f"{left_out[0]!r} is missing"
            + ("; scan(where=…) finds rows by a part of the key" if operation == "get" else "")
        )
    if converted.errors:
        raise InvalidValueError(
            f"row {int(converted.errors.rows[0])} of the keys for {table.name!r} is not a valid key: "
            f"{converted.errors.messages[0]}"
        )
    by_name = {column.name: converted.columns[column.name] for column in schema.key_columns}
    if snapshot is not None and table.entry.purged:
        for lower, upper, part in row_slices(by_name, converted.row_count):
            check_purged_keys(table, part, upper - lower, snapshot)
    tablets = route_keys(table, by_name, converted.row_count)
    if converted.too_long is not None:  # no row can have a key that is too long for its varchar
        tablets[converted.too_long.rows] = -1
    return encode_keys(table, by_name, converted.row_count), tablets
