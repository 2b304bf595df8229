"""Applies one change to a schema, and returns the next schema or raises an error.

    add_column(schema, "unit", column("string", default="ms"))     a new id, at the end
    drop_column(schema, "old")                                     its id is never reused
    rename_column(schema, "val", "value")                          the same id; key columns too
    change_column(schema, "value", default=0, type="int64")        the same id

The functions change nothing in place: each checks one change and returns a new schema. A user's
alteration applies several of them and then calls `next_version`. `Schema.layout_version` changes
only if the alteration changes how files are written. New names, defaults and comments do not.

Invariants
    S2  An id is never used again, as in `nyala.schema.schema`.
    S4  `read_default` is the default that the column had when it was added. It never changes.
    A1  A type may only become wider, and a NOT NULL column may only become nullable. So all stored
        values stay valid.

Source: Kudu schema design, "Schema Alterations" and "Known Limitations"; docs/design/kudu.md,
"Schema alteration".
Difference from Kudu: Kudu changes neither types nor NOT NULL.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from nyala.errors import InvalidArgumentError, SchemaError
from nyala.schema.conversion.cast import cast_value
from nyala.schema.limits import DEFAULT_LIMITS, Limits
from nyala.schema.schema import (
    NO_DEFAULT,
    ColumnSchema,
    ColumnSpec,
    Schema,
    build_column,
    check_block_size,
    check_comment,
    check_compression,
    check_encoding,
    check_identifier,
    check_immutable,
    check_not_reserved,
    check_nullable,
)
from nyala.schema.types import ColumnType, parse_type

__all__ = [
    "UNCHANGED",
    "Unchanged",
    "add_column",
    "change_column",
    "drop_column",
    "next_version",
    "rename_column",
    "stored_schema",
    "widens",
]


class Unchanged(enum.Enum):
    """The type of UNCHANGED: an argument with this default leaves a property as it is.

    None cannot be the default, because None is a valid value of some arguments.
    """

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged.UNCHANGED

_INTEGERS: Final = ("int8", "int16", "int32", "int64")


def add_column(schema: Schema, name: str, spec: ColumnSpec, limits: Limits = DEFAULT_LIMITS) -> Schema:
    """Return the schema with a new column at the end. Existing rows get its default in scans.

    Raises: SchemaError for an existing name, NOT NULL without a default, too many columns, or an
    invalid column.
    """
    _check_free(schema, name)
    check_not_reserved(name)
    if len(schema) + 1 > limits.max_columns:
        raise SchemaError(
            f"{len(schema) + 1} columns exceed the limit of {limits.max_columns} per table (max_columns): drop one "
            f"before you add {name!r}"
        )
    column = build_column(schema.next_column_id, name, spec, in_key=False, limits=limits)
    if column.required:
        raise SchemaError(
            f"column {name!r} is NOT NULL and has no default, but existing rows need a value: give default=…, or "
            "make it nullable"
        )
    return dataclasses.replace(
        schema, columns=(*schema.columns, column), next_column_id=schema.next_column_id + 1
    )


def drop_column(schema: Schema, name: str) -> Schema:
    """Return the schema without a column.

    Raises: ColumnNotFoundError; SchemaError for a key column.
    """
    column = _column(schema, name)
    if schema.is_key(name):
        raise SchemaError(
            f"column {name!r} is part of the primary key ({', '.join(schema.key_names)}) and cannot be dropped; to "
            "use another key, copy the rows into a new table"
        )
    return dataclasses.replace(schema, columns=tuple(c for c in schema.columns if c is not column))


def rename_column(schema: Schema, old: str, new: str, limits: Limits = DEFAULT_LIMITS) -> Schema:
    """Return the schema with a renamed column.

    Raises: ColumnNotFoundError; SchemaError for an existing or invalid new name.
    """
    column = _column(schema, old)
    _check_free(schema, new)
    check_identifier(new, "column name", limits)
    check_not_reserved(old, new)
    return _replaced(schema, column, dataclasses.replace(column, name=new))


def change_column(
    schema: Schema,
    name: str,
    *,
    type: str | pa.DataType | ColumnType | Unchanged = UNCHANGED,
    nullable: bool | Unchanged = UNCHANGED,
    default: Any = UNCHANGED,
    encoding: str | Unchanged = UNCHANGED,
    compression: str | Unchanged = UNCHANGED,
    block_size: int | str | Unchanged | None = UNCHANGED,
    comment: str | Unchanged = UNCHANGED,
    immutable: bool | Unchanged = UNCHANGED,
    limits: Limits = DEFAULT_LIMITS,
) -> Schema:
    """Return the schema with changed properties of a column.

    Arguments that are left out change nothing.

    default: the default for rows that are inserted from now on; None removes the default.
    type:    the same or a wider type.
    Raises:  ColumnNotFoundError; InvalidArgumentError if nothing is to change; SchemaError for an
             invalid change.
    """
    column = _column(schema, name)
    where = f"column {name!r}: "
    arguments = (type, nullable, default, encoding, compression, block_size, comment, immutable)
    if all(value is UNCHANGED for value in arguments):
        raise InvalidArgumentError(
            f"alter_column({name!r}) got nothing to change: give type, nullable, default, encoding, compression, "
            "block_size, comment or immutable"
        )
    changed = column
    if type is not UNCHANGED:
        changed = dataclasses.replace(changed, type=_wider(schema, column, type))
    if nullable is not UNCHANGED:
        changed = dataclasses.replace(changed, nullable=_nullable(schema, column, nullable))
    if default is not UNCHANGED:
        try:
            value = cast_value(default, changed.type, limits.max_cell_bytes)
        except SchemaError as error:
            raise SchemaError(f"{where}invalid default: {error}") from None
        changed = dataclasses.replace(changed, write_default=NO_DEFAULT if value is None else value)
    if encoding is not UNCHANGED:
        changed = dataclasses.replace(changed, encoding=encoding)
    check_encoding(changed.encoding, changed.type, where)
    if compression is not UNCHANGED:
        check_compression(compression, where)
        changed = dataclasses.replace(changed, compression=compression)
    if block_size is not UNCHANGED:
        changed = dataclasses.replace(changed, block_size_bytes=check_block_size(block_size, where))
    if comment is not UNCHANGED:
        check_comment(comment, where, limits)
        changed = dataclasses.replace(changed, comment=comment)
    if immutable is not UNCHANGED:
        if check_immutable(immutable) and schema.is_key(name):
            raise SchemaError(f"{where}a key column never changes: leave immutable=True out")
        changed = dataclasses.replace(changed, immutable=immutable)
    return _replaced(schema, column, changed)


def next_version(before: Schema, after: Schema) -> Schema:
    """Return the altered schema `after` with the version number that follows that of `before`."""
    version = before.version + 1
    same = [_layout_of(column) for column in before.columns] == [
        _layout_of(column) for column in after.columns
    ]
    return dataclasses.replace(
        after, version=version, layout_version=before.layout_version if same else version
    )


def _layout_of(column: ColumnSchema) -> tuple[Any, ...]:
    """Return the properties of a column that decide how files store it."""
    return column.id, column.type, column.encoding, column.compression, column.block_size_bytes


def stored_schema(current: Schema, earlier: Sequence[Schema]) -> Schema:
    """Return the schema for writing files: the current columns, and dropped columns that snapshots
    can still read.

    earlier: the versions of the schema that snapshots can still read, oldest first. In the result,
    a dropped column has a name that no user can give. It is nullable, because newer rows have no
    value for it.
    """
    dropped: dict[int, ColumnSchema] = {}
    for schema in earlier:
        dropped.update({column.id: column for column in schema.columns if not current.has_id(column.id)})
    if not dropped:
        return current
    kept = tuple(
        dataclasses.replace(dropped[id], name=f"{dropped[id].name}\0{id}", nullable=True)
        for id in sorted(dropped)
    )
    return dataclasses.replace(current, columns=(*current.columns, *kept))


def widens(old: ColumnType, new: ColumnType) -> bool:
    """Whether a column may change from type `old` to `new`: `new` holds every value of `old`."""
    if old == new:
        return True
    if old.name in _INTEGERS and new.name in _INTEGERS:
        return _INTEGERS.index(old.name) < _INTEGERS.index(new.name)
    if old.name == "varchar":
        return new.name == "string" or (new.name == "varchar" and (old.length or 0) < (new.length or 0))
    if old.name == "decimal" and new.name == "decimal":
        return old.scale == new.scale and (old.precision or 0) < (new.precision or 0)
    return (old.name, new.name) == ("float", "double")


def _wider(schema: Schema, column: ColumnSchema, spec: Any) -> ColumnType:
    try:
        wanted = parse_type(spec)
    except SchemaError as error:
        raise SchemaError(f"column {column.name!r}: {error}") from None
    if wanted == column.type:
        return wanted
    if schema.is_key(column.name):
        raise SchemaError(
            f"column {column.name!r} is part of the primary key ({', '.join(schema.key_names)}), so its type "
            f"{column.type} cannot change"
        )
    if not widens(column.type, wanted):
        raise SchemaError(
            f"column {column.name!r} of type {column.type} cannot become {wanted}: a type can only become wider "
            f"({_widening(column.type)}); for another type add a column, and fill it with update(set=…)"
        )
    return wanted


def _widening(type: ColumnType) -> str:
    """Return the wider types of `type` as text for a message."""
    if type.name in _INTEGERS[:-1]:
        return f"{type} to {', '.join(_INTEGERS[_INTEGERS.index(type.name) + 1 :])}"
    if type.name == "float":
        return "float to double"
    if type.name == "decimal":
        return f"{type} to a higher precision at the same scale, decimal(p,{type.scale})"
    if type.name == "varchar":
        return f"{type} to a longer varchar, or to string"
    return f"{type} has no wider type"


def _nullable(schema: Schema, column: ColumnSchema, wanted: Any) -> bool:
    nullable = check_nullable(wanted)
    if nullable and schema.is_key(column.name):
        raise SchemaError(
            f"column {column.name!r} cannot become nullable, because it is part of the primary key "
            f"({', '.join(schema.key_names)})"
        )
    if column.nullable and not nullable:
        raise SchemaError(
            f"column {column.name!r} is nullable and cannot become NOT NULL, because existing rows may contain NULL; "
            "add a column with a default, and fill it with update(set=…)"
        )
    return nullable


def _column(schema: Schema, name: Any) -> ColumnSchema:
    """Return the column `name`. Raises: ColumnNotFoundError; SchemaError if `name` is not text."""
    if not isinstance(name, str):
        raise SchemaError(f"column name {name!r} is not text; use a str, and one call per column")
    return schema.by_name(name)


def _check_free(schema: Schema, name: Any) -> None:
    if isinstance(name, str) and name in schema:
        raise SchemaError(
            f"column {name!r} already exists; use another name, or drop or rename that column first"
        )


def _replaced(schema: Schema, old: ColumnSchema, new: ColumnSchema) -> Schema:
    return dataclasses.replace(schema, columns=tuple(new if c is old else c for c in schema.columns))
