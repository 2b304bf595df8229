"""Prepares a list in which each row has its own operation and its own columns (`Table.apply`).

    [("insert", {"id": 1, "n": 1}), ("update", {"id": 1, "note": "x"}), ("delete-ignore", 7)]

All rows are converted together, column by column. Each column has a mask of the rows that give it,
and each row has a code for its operation. `resolve_rows` resolves the rows in their order.

Cost: one step per row and column name in Python, as for any list of dicts; then O(columns) calls.
Source: docs/design/writes-and-batches.md; docs/design/kudu.md, "Outcomes of operations".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from nyala.errors import (
    MISSING_COLUMN,
    NOT_FOUND,
    VALUE_TOO_LARGE,
    InvalidArgumentError,
    SchemaError,
)
from nyala.schema.conversion.convert import InputColumns, convert, read_input
from nyala.schema.conversion.long_column import Column
from nyala.schema.conversion.python_rows import named_key
from nyala.schema.conversion.row_errors import RowErrors
from nyala.schema.schema import AUTO_INCREMENT, Schema
from nyala.tablet.state.root import TableState
from nyala.tablet.write.prepare import (
    LONG_KEY_ADVICE,
    OPERATION_NAMES,
    PreparedOperation,
    add_immutable,
    add_too_large,
    check_auto_column,
    check_changes,
    encode_keys,
    keyless_text,
    missing_text,
    required_but_missing,
    routed_groups,
    spread,
    too_large,
    with_auto_ids,
)

_CODES: Final = {name: code for code, name in enumerate(OPERATION_NAMES)}
_IGNORING: Final = np.array([name.endswith("-ignore") for name in OPERATION_NAMES])
_INSERTS: Final = [_CODES["insert"], _CODES["insert-ignore"]]
_UPDATES: Final = [_CODES["update"], _CODES["update-ignore"]]
_DELETES: Final = [_CODES["delete"], _CODES["delete-ignore"]]
_MAKING: Final = [*_INSERTS, _CODES["upsert"]]


class MixedRows(NamedTuple):
    """The input of `prepare_rows` as columns: rows, and the operation of each row."""

    operations: tuple[str, ...]  # some of OPERATION_NAMES
    codes: Sequence[int]  # each row's index in `operations`
    rows: InputColumns
    errors: RowErrors  # for rows with values that could not be read


def prepare_rows(table: TableState, data: Sequence[tuple[str, Any]] | MixedRows) -> PreparedOperation:
    """Prepare a list of pairs (operation, row), or for deletes (operation, key).

    operation: one of OPERATION_NAMES.
    row: a dict, a dataclass, or a tuple in the order of the table's columns. Rows may give
         different columns. A key is as in `Table.get`.
    Raises: the errors of `prepare`; InvalidArgumentError for an item that is not such a pair.
    """
    schema = table.schema
    codes, given_rows = _row_operations(data, schema)
    converted = convert(given_rows, schema, operation="apply", limits=table.limits)
    errors, count = RowErrors(), converted.row_count
    if isinstance(data, MixedRows):
        errors.extend(data.errors)
    errors.extend(converted.errors)
    by_name = converted.columns
    columns: dict[int, Column] = {schema.by_name(name).id: array for name, array in by_name.items()}
    partly: dict[int, np.ndarray] = {schema.by_name(name).id: rows for name, rows in converted.given.items()}
    makes = np.isin(codes, _MAKING)
    ignored = np.zeros(count, np.bool_)
    if converted.too_long is not None:
        for row, message in zip(converted.too_long.rows.tolist(), converted.too_long.messages, strict=True):
            if makes[row]:
                errors.add([row], VALUE_TOO_LARGE, f"{message}: {LONG_KEY_ADVICE}")
            elif _IGNORING[codes[row]]:
                ignored[row] = True
            else:
                errors.add([row], NOT_FOUND, f"{message}, so no row of table {table.name!r} has this key")
    inserts = np.isin(codes, _INSERTS)
    keyless = [column.name for column in schema.key_columns if column.id not in columns]
    if keyless:
        errors.add(np.arange(count), MISSING_COLUMN, keyless_text(table, keyless[0], "apply"))
    for column, lacking in required_but_missing(table, columns, partly, count):
        errors.add(np.flatnonzero(lacking & inserts), MISSING_COLUMN, missing_text((column,), table))
    for number in schema.immutable_ids & columns.keys():  # update-ignore does not change the column
        changing = codes == _CODES["update"]
        add_immutable(schema.by_id(number), changing & partly.get(number, True), errors)
    changing_columns = {number: columns[number] for number in columns.keys() - schema.immutable_ids}
    check_changes(table, np.isin(codes, _UPDATES), changing_columns, partly, errors)
    rows = np.flatnonzero(~(errors.failed_mask(count) | ignored))
    keys, tablets, starts = table.codec.empty(), np.empty(0, np.int32), np.zeros(1, np.int64)
    if len(rows) and not keyless:
        some = pa.array(rows)
        key_columns = {name: by_name[name].take(some) for name in schema.key_names}
        if schema.auto_increment is not None:
            _give_auto_ids(table, key_columns, inserts[rows], np.isin(codes[rows], [_CODES["upsert"]]))
            columns[schema.auto_increment.id] = spread(key_columns[AUTO_INCREMENT], rows, count)
        keys = encode_keys(table, key_columns, len(rows))
        bad = too_large(table, keys)
        if bad is not None:
            bad &= makes[rows]
            add_too_large(table, rows[bad], keys.sizes()[bad], errors)
        rows, keys, tablets, starts = routed_groups(table, rows, keys, key_columns, errors, bad)
    else:
        rows = np.empty(0, np.int64)
    return PreparedOperation(
        "apply", False, columns, count, errors, keys, tablets, rows, starts, (), schema, converted.borrowed,
        ignored_rows=np.flatnonzero(ignored), given=partly, codes=codes,
    )  # fmt: skip


def _give_auto_ids(
    table: TableState, keys: dict[str, Column], inserts: np.ndarray, upserts: np.ndarray
) -> None:
    """Give inserted rows their auto-incrementing keys, in the order of the user's list.

    Upserts give this key themselves. A later insert in the list gets a greater key than they have.

    keys: the key columns of all rows; the auto-incrementing column is replaced.
    inserts, upserts: masks of the rows with these operations.
    """
    column = keys[AUTO_INCREMENT]
    assert isinstance(column, pa.Array), "only text columns are long"
    ids = column.to_numpy().copy()
    places = np.flatnonzero(inserts | upserts)
    some = pa.array(places)
    others = {name: array.take(some) for name, array in keys.items() if name != AUTO_INCREMENT}
    given = np.where(inserts, 0, np.maximum(ids, 1))[places]
    found = with_auto_ids(table, others, len(places), given).to_numpy()
    new = inserts[places]
    ids[places[new]] = found[new]
    keys[AUTO_INCREMENT] = pa.array(ids)


def _row_operations(data: Any, schema: Schema) -> tuple[np.ndarray, InputColumns]:
    """Return each item's operation as an index in OPERATION_NAMES, and the rows as columns.

    Raises: InvalidArgumentError.
    """
    if isinstance(data, MixedRows):
        known = np.array([_CODES[name] for name in data.operations], np.uint8)
        return known[np.asarray(data.codes, np.int64)], data.rows
    if not isinstance(data, list | tuple):
        raise InvalidArgumentError(
            f"apply takes a list of (operation, row) pairs, such as [('upsert', {{'id': 1}})], not "
            f"{type(data).__name__}"
        )
    codes, rows = [], []
    for place, item in enumerate(data):
        if not isinstance(item, tuple | list) or len(item) != 2 or item[0] not in _CODES:
            raise InvalidArgumentError(
                f"apply: item {place} is {item!r}, but each item is a pair of an operation and a row; the operations "
                f"are {', '.join(OPERATION_NAMES)}"
            )
        operation, row = item
        code = _CODES[operation]
        codes.append(code)
        plain = type(row) is dict and code not in _DELETES
        named = row if plain else _named_row(row, schema, operation, place)
        if schema.auto_increment is not None and code in _INSERTS:
            check_auto_column(schema, operation, AUTO_INCREMENT in named)
            named = {**named, AUTO_INCREMENT: 0}  # replaced after routing
        rows.append(named)
    return np.array(codes, np.uint8), read_input(rows)


def _named_row(row: Any, schema: Schema, operation: str, place: int) -> Mapping[str, Any]:
    """Return the row or key of item number `place` as a mapping.

    Raises: InvalidArgumentError, SchemaError.
    """
    if operation.startswith("delete"):
        key = named_key(row, schema.key_names, operation)
        extra = next((name for name in key if not schema.is_key(name)), None)
        if extra is not None:
            raise SchemaError(
                f"apply: item {place}: {operation} takes the key columns ({', '.join(schema.key_names)}) only; remove "
                f"{extra!r}"
            )
        return key
    if isinstance(row, Mapping):
        return row
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        return {each.name: getattr(row, each.name) for each in dataclasses.fields(row)}
    if isinstance(row, tuple):
        names = getattr(
            row, "_fields", schema.insert_names if operation.startswith("insert") else schema.names
        )
        if len(row) == len(names):
            return dict(zip(names, row, strict=True))
    raise InvalidArgumentError(
        f"apply: item {place}: {operation} takes a row as a dict, a dataclass, or a tuple of {len(schema.names)} "
        f"values ({', '.join(schema.names)}), not {row!r}"
    )
