"""Writes and look-ups that find their rows by predicate or by key list.

`update(set=…, where=…)` and `delete(where=…)` are read and applied under one lock, so that no other write
comes between: the rows are selected at `applied`, which every earlier batch is part of, and the changes are
settled against the same state.

Source: docs/how-to/expressions.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from nyala.errors import InvalidArgumentError, InvalidValueError
from nyala.keys.encoded_keys import EncodedKeys
from nyala.schema.arrow_values import python_at
from nyala.schema.conversion.convert import convert
from nyala.schema.conversion.long_column import row_slices
from nyala.schema.conversion.row_errors import RowErrors
from nyala.schema.predicates.assignment import Assigned, Expression, TooMuchText, parse_assignment
from nyala.schema.predicates.predicate import bind
from nyala.schema.schema import ColumnSchema
from nyala.schema.types import MAX_CELL_BYTES
from nyala.tablet.scan import read_path
from nyala.tablet.scan.read_path import ScanCounters, ScanSpec
from nyala.tablet.state.history import check_dropped_keys
from nyala.tablet.state.result import Ticket, WriteResult
from nyala.tablet.state.root import TableState
from nyala.tablet.write.prepare import encode_keys, prepare, route_keys
from nyala.tablet.write.write_path import Request, commit, locked, results_of, settle_requests

if TYPE_CHECKING:
    from nyala.tablet.store import Store


def delete_where(store: Store, name: str, where: Any) -> WriteResult:
    """Delete the rows that `where` selects. Raises: what the predicate raises; StorageError."""
    store.check_writable()

    def select(table: TableState) -> tuple[pa.Table, RowErrors]:
        key = [column.name for column in table.schema.key_columns]
        return _select(store, table, key, where), RowErrors()

    return _write_selected(store, name, "delete", select)


def update_where(
    store: Store, name: str, assignments: Mapping[str, Any], where: Any, *, collect: bool
) -> WriteResult:
    """Set columns of the rows that `where` selects (None: all) to constants or expressions over the row.

    Raises: InvalidArgumentError for a key column; ColumnNotFoundError; InvalidValueError when a value does
    not fit.
    """
    store.check_writable()
    if not isinstance(assignments, Mapping):
        raise InvalidArgumentError(
            f"update takes set={{column: value or expression}}, not set={assignments!r}"
        )
    if not assignments:
        raise InvalidArgumentError("update(set={}) names no column to change")

    def select(table: TableState) -> tuple[pa.Table, RowErrors]:
        schema = table.schema
        keys = [column.name for column in schema.key_columns]
        for column in assignments:
            if schema.by_name(column).name in keys:
                raise InvalidArgumentError(
                    f"column {column!r} is part of the key of {name!r} and cannot be updated: delete the row and "
                    "insert it anew"
                )
        parsed: dict[str, Expression] = {
            column: parse_assignment(value, schema, schema.by_name(column), table.limits)
            for column, value in assignments.items()
        }
        needed = list(
            dict.fromkeys(
                [*keys, *(used for expression in parsed.values() for used in sorted(expression.columns))]
            )
        )
        rows = _select(store, table, needed, where)
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

    return _write_selected(store, name, "update", select, collect=collect)


def _evaluated(expression: Expression, rows: pa.Table) -> Iterator[tuple[int, Assigned]]:
    """The expression over the rows, batch by batch; over parts of a batch where its text is too much for one array."""
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


def _select(store: Store, table: TableState, columns: Sequence[str], where: Any) -> pa.Table:
    spec = ScanSpec(
        table.schema, table.schema.project(columns), store.marks.applied, bind(where, table.schema)
    )
    batches = read_path.run(read_path.plan(table, spec, ScanCounters()), spec, ScanCounters())
    return pa.Table.from_batches(list(batches), schema=spec.arrow_schema)


def _write_selected(
    store: Store,
    name: str,
    operation: str,
    select: Callable[[TableState], tuple[pa.Table, RowErrors]],
    *,
    collect: bool = False,
) -> WriteResult:
    request = Request(name, operation, None)

    def under_lock() -> tuple[Any, Ticket]:
        table = store.root.table(name)
        rows, errors = select(table)
        prepared = [(table, prepare(table, operation, rows, ignore=False, errors=errors))]
        settlements = settle_requests(store, [request], prepared, collect=collect)
        return settlements, commit(store, [settlement for settlement, _ in settlements])

    settlements, ticket = locked(store, under_lock)
    return results_of([request], settlements, ticket.timestamp)[0]


def look_up(table: TableState, keys: Any, columns: Sequence[str] | None, snapshot: int) -> pa.Table:
    """Rows by key in the order of the keys, missing ones left out.

    Raises: InvalidArgumentError for a key column left out; InvalidValueError for a NULL or a value out of range;
    SchemaError, ColumnNotFoundError; HistoryExpiredError where a key lay in a range partition that was dropped since.
    """
    wanted = table.schema.columns if columns is None else table.schema.project(columns)
    encoded, tablets = read_keys(table, keys, "get", snapshot)
    schema = table.schema.arrow_schema(columns)
    batches = [
        pa.RecordBatch.from_arrays(values, schema=schema) if wanted else read_path.rows_without_columns(count)
        for count, values in _find(table, encoded, tablets, wanted, snapshot)
    ]
    return pa.Table.from_batches(batches) if batches else schema.empty_table()


def look_up_row(
    table: TableState, key: Mapping[str, Any], columns: Sequence[str] | None, snapshot: int
) -> dict[str, Any] | None:
    """One row by its whole key, as Python values; None when there is none. Raises: as `look_up`."""
    wanted = table.schema.columns if columns is None else table.schema.project(columns)
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
    values = [column for column in wanted if column.id not in key_ids]
    row = read_path.get_row(table, encoded, ordinal, values, snapshot)
    if row is None:
        return None
    found = {column.name: value for column, value in zip(values, row, strict=True)}
    if len(values) < len(wanted):  # of the key, which was found as it was asked for
        if plain is not None:
            found |= key
        else:
            of_key = zip(key_columns, table.codec.decode(encoded), strict=True)
            found |= {column.name: python_at(array, 0) for column, array in of_key}
    return {column.name: found[column.name] for column in wanted}


def _plain_key(table: TableState, key: Mapping[str, Any]) -> tuple[EncodedKeys, int] | None:
    """(encoded, ordinal of the tablet that houses it) of one key in which nothing is to be converted or checked; None:
    there is, or may be, or no tablet does.

    Making one-row arrays of two integers, only to take them apart again, would cost as much as finding the row.
    """
    columns = table.schema.key_columns
    if len(key) != len(columns) or table.entry.dropped:
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
    wanted: Sequence[ColumnSchema],
    snapshot: int,
) -> Iterator[tuple[int, list[pa.Array]]]:
    """How many rows were found, one at least, and their values in the order of the keys; of more text than one array
    can hold, in several parts."""
    housed = np.flatnonzero(tablets >= 0)
    by_key = encoded.take(housed).sort_indices()
    order = housed[by_key]
    order = order[np.argsort(tablets[order], kind="stable")]
    if not len(order):
        return
    try:
        found, values = read_path.get_many(table, encoded.take(order), tablets[order], wanted, snapshot)
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
    # How much text there will be, nobody knows before; so little is asked for more often than once.
    yield from _find(table, encoded.slice(0, half), tablets[:half], wanted, snapshot)
    yield from _find(table, encoded.slice(half, len(encoded) - half), tablets[half:], wanted, snapshot)


def read_keys(
    table: TableState, keys: Any, operation: str, snapshot: int | None = None
) -> tuple[EncodedKeys, np.ndarray]:
    """Keys as a user gives them: (encoded, ordinal of the tablet that houses each, or -1).

    operation: the word for messages. snapshot: the moment at which they are to be read, or from which on.
    Raises: as `look_up`.
    """
    schema = table.schema
    converted = convert(keys, schema, columns="key", operation=operation, limits=table.limits)
    if not converted.row_count:
        return table.codec.empty(), np.empty(0, np.int32)
    left_out = [column.name for column in schema.key_columns if column.name not in converted.columns]
    if left_out:
        raise InvalidArgumentError(
            f"{operation} needs the whole key of {table.name!r} ({', '.join(c.name for c in schema.key_columns)}); "
            f"{left_out[0]!r} is not given"
            + ("; scan(where=…) finds rows by a part of it" if operation == "get" else "")
        )
    if converted.errors:
        raise InvalidValueError(
            f"row {int(converted.errors.rows[0])} of the keys for {table.name!r} is no key: "
            f"{converted.errors.messages[0]}"
        )
    by_name = {column.name: converted.columns[column.name] for column in schema.key_columns}
    if snapshot is not None and table.entry.dropped:
        for lower, upper, part in row_slices(by_name, converted.row_count):
            check_dropped_keys(table, part, upper - lower, snapshot)
    tablets = route_keys(table, by_name, converted.row_count)
    if converted.too_long is not None:  # no row can have such a key
        tablets[converted.too_long.rows] = -1
    return encode_keys(table, by_name, converted.row_count), tablets
