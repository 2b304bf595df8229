"""Checks the arguments of a scan, and converts them to a `ScanSpec`."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa

from nyala.errors import InvalidArgumentError, SchemaError
from nyala.schema.alteration import widens
from nyala.schema.predicates.predicate import BoundPredicate, bind
from nyala.schema.schema import ColumnSchema
from nyala.schema.sizes import whole_number
from nyala.schema.types import parse_type
from nyala.tablet.scan.read_path import ScanSpec
from nyala.tablet.state.root import TableState


def resolve_columns(table: TableState, columns: Sequence[str] | None) -> tuple[ColumnSchema, ...]:
    """Return the named columns; None: all. Raises: ColumnNotFoundError, InvalidArgumentError."""
    if columns is None:
        return table.schema.columns
    if isinstance(columns, str):
        names = [name.strip() for name in columns.split(",")]
        meant = f"where={columns!r}" if any(sign in columns for sign in "=<>") else f"columns={names!r}"
        raise InvalidArgumentError(f"columns takes a list of names, not the text {columns!r}: write {meant}")
    given: Any = columns
    if not isinstance(given, Collection) or not all(isinstance(name, str) for name in given):
        raise InvalidArgumentError(f"columns takes a list of names, not {columns!r}")
    if len(set(columns)) != len(columns):
        raise InvalidArgumentError(f"columns names a column twice: {list(columns)}")
    return table.schema.project(columns)


def requested_types(
    columns: Sequence[ColumnSchema], requested: pa.Schema
) -> tuple[tuple[ColumnSchema, ...], dict[str, pa.DataType]]:
    """Return (columns, types) for a scan that returns rows in the Arrow schema `requested`.

    columns: the given columns, nullable if their field in `requested` is nullable.
    types: the requested type of each column that is not read in its own type, by name.

    A requested type may be the column's own, a wider one, or a dictionary of text or binary values.
    Arrow types are understood as in `create_table`, so `large_string` is `string`.

    Raises: SchemaError for any other type, and for NOT NULL on a nullable column.
    """
    shown, types = [], {}
    for column, field in zip(columns, requested, strict=True):
        type = parse_type(field.type)
        if not widens(column.type, type):
            raise SchemaError(
                f"column {column.name!r} is {column.type} and cannot be read as {type}: request its own type or a "
                "wider one, and cast the result"
            )
        if column.nullable and not field.nullable:
            raise SchemaError(
                f"column {column.name!r} may hold NULL and cannot be read as NOT NULL: request it with nullable=True"
            )
        if pa.types.is_dictionary(field.type):
            types[column.name] = _dictionary_type(column, field.type)
        elif type.arrow != column.type.arrow:
            types[column.name] = type.arrow
        shown.append(dataclasses.replace(column, nullable=True) if field.nullable else column)
    return tuple(shown), types


def _dictionary_type(column: ColumnSchema, requested: pa.DataType) -> pa.DataType:
    """Return the dictionary type that a scan can read. Raises: SchemaError if `requested` is another one."""
    if not column.type.is_variable:
        raise SchemaError(
            f"column {column.name!r} is {column.type} and cannot be read as {requested}: only text and binary columns "
            "can be read as dictionaries"
        )
    given = pa.dictionary(pa.int32(), column.type.arrow)
    if requested != given:
        raise SchemaError(
            f"column {column.name!r} cannot be read as {requested}: request pa.dictionary(pa.int32(), "
            f"pa.{column.type.arrow}()), as with_dictionaries({column.name!r}) does, and cast the result"
        )
    return given


def make_spec(
    table: TableState,
    snapshot: int,
    columns: Sequence[str] | pa.Schema | None,
    where: Any,
    limit: int | None,
    order_by_key: bool,
) -> ScanSpec:
    """Check a scan's arguments and bind them to the table.

    Raises: ColumnNotFoundError, InvalidArgumentError, SchemaError.
    """
    if limit is not None:
        limit = row_limit("limit", limit)
    predicate: BoundPredicate | None = bind(where, table.schema)
    projection = resolve_columns(table, columns.names if isinstance(columns, pa.Schema) else columns)
    types: dict[str, pa.DataType] = {}
    if isinstance(columns, pa.Schema):
        projection, types = requested_types(projection, columns)
    return ScanSpec(table.schema, projection, snapshot, predicate, limit, order_by_key, types)


def row_limit(argument: str, given: object) -> int:
    """Return an argument that must be a number of rows. Raises: InvalidArgumentError for another value."""
    count = whole_number(given)
    if count is None or count < 0:
        raise InvalidArgumentError(f"{argument} takes a number of rows, 0 or more, not {given!r}")
    return count
