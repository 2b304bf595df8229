"""Makes a table of a store from the text of a CREATE TABLE, which DuckDB reads.

For scripts that begin before Nyala's own CREATE TABLE exists; `sql_runner` says when.
"""

from __future__ import annotations

import duckdb

import nyala
from nyala.api.database import Database
from nyala.errors import InvalidArgumentError

_TYPES = {
    "TINYINT": "int8",
    "SMALLINT": "int16",
    "INTEGER": "int32",
    "BIGINT": "int64",
    "FLOAT": "float",
    "DOUBLE": "double",
    "VARCHAR": "string",
    "BLOB": "binary",
    "BOOLEAN": "bool",
    "TIMESTAMP WITH TIME ZONE": "timestamp",
}


def create_table(db: Database, text: str) -> None:
    """Create the table. Raises: InvalidArgumentError, if DuckDB refuses the statement."""
    with duckdb.connect(":memory:") as scratch:
        try:
            scratch.execute(text)
        except duckdb.Error as error:
            raise InvalidArgumentError(str(error)) from error
        ((name, keys),) = scratch.execute(
            "SELECT table_name, constraint_column_names FROM duckdb_constraints() "
            "WHERE constraint_type = 'PRIMARY KEY'"
        ).fetchall()
        columns = {}
        for column, type, nullable, default in scratch.execute(
            "SELECT column_name, data_type, is_nullable, column_default FROM duckdb_columns() "
            "WHERE NOT internal ORDER BY column_index"
        ).fetchall():
            given = {}
            if default is not None:
                given["default"] = scratch.execute(f"SELECT CAST({default} AS {type})").fetchall()[0][0]
            columns[column] = nyala.column(
                _TYPES.get(type, type.lower()), nullable=nullable and column not in keys, **given
            )
        db.create_table(name, columns, keys)
