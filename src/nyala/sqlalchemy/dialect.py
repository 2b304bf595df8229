"""The dialect `nyala`. It connects by `nyala.dbapi`, and reflects tables from `Table.description`.

    nyala:///relative/folder      nyala:////absolute/folder      nyala:///s3://bucket/prefix
    nyala:///folder?read_only=true&memory_limit=4GB

Source: docs/reference/sqlalchemy.md.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

from sqlalchemy import Column, Table, exc, types
from sqlalchemy.dialects.sqlite.json import JSONIndexType, JSONPathType
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.engine.reflection import cache
from sqlalchemy.pool import QueuePool
from sqlalchemy.sql.compiler import InsertmanyvaluesSentinelOpts

import nyala
from nyala.api.description import ColumnDescription
from nyala.schema.schema import AUTO_INCREMENT
from nyala.schema.types import ColumnType, parse_type
from nyala.sql.define.table_text import history_text, partitions_text
from nyala.sql.types import literal
from nyala.sqlalchemy.compiler import (
    NyalaCompiler,
    NyalaDDLCompiler,
    NyalaExecutionContext,
    NyalaIdentifierPreparer,
    NyalaTypeCompiler,
)
from nyala.sqlalchemy.types import NyalaDateTime, NyalaNumeric, NyalaTime
from nyala.tablet.state.history import DEFAULT_HISTORY

try:
    import nyala.sqlalchemy.migrations  # registers the dialect with Alembic
except ModuleNotFoundError as _error:
    if not str(_error.name).startswith("alembic"):  # Alembic is optional
        raise

_TYPES: Final[dict[str, Any]] = {
    "bool": types.BOOLEAN,
    "int8": types.SMALLINT,
    "int16": types.SMALLINT,
    "int32": types.INTEGER,
    "int64": types.BIGINT,
    "float": types.REAL,
    "double": types.DOUBLE,
    "string": types.VARCHAR,
    "binary": types.BLOB,
    "date": types.DATE,
}
# The name of the only schema.
_SCHEMA: Final = "main"
_SNAPSHOT, _AUTOCOMMIT = "SNAPSHOT", "AUTOCOMMIT"


class NyalaDialect(DefaultDialect):
    """SQLAlchemy's dialect for stores. Attributes that are not set here have SQLAlchemy's defaults."""

    name = "nyala"
    driver = "dbapi"
    statement_compiler = NyalaCompiler
    ddl_compiler = NyalaDDLCompiler
    type_compiler_cls = NyalaTypeCompiler
    preparer = NyalaIdentifierPreparer
    execution_ctx_cls = NyalaExecutionContext
    colspecs = {  # noqa: RUF012
        types.DateTime: NyalaDateTime,
        types.Float: types.Float,  # Float is a Numeric, but must not become a NyalaNumeric
        types.JSON.JSONIndexType: JSONIndexType,
        types.JSON.JSONPathType: JSONPathType,
        types.Numeric: NyalaNumeric,
        types.Time: NyalaTime,
    }

    construct_arguments = [  # noqa: RUF012
        (Table, {"partition_by": None, "history": None}),
        (Column, {"encoding": None, "compression": None, "block_size": None, "immutable": False}),
    ]

    default_paramstyle = "qmark"
    max_identifier_length = 128
    supports_statement_cache = True
    supports_native_boolean = True
    supports_native_decimal = True
    supports_comments = True
    inline_comments = True
    supports_default_values = True
    supports_default_metavalue = True
    supports_empty_insert = False
    supports_multivalues_insert = True
    insert_returning = True
    update_returning = True
    delete_returning = True
    update_returning_multifrom = True
    delete_returning_multifrom = True
    use_insertmanyvalues = True
    # The rows of an INSERT get their keys in the order of the rows.
    insertmanyvalues_implicit_sentinel = InsertmanyvaluesSentinelOpts.ANY_AUTOINCREMENT
    postfetch_lastrowid = False
    div_is_floordiv = False
    default_schema_name: Any = _SCHEMA
    default_isolation_level: Any = _SNAPSHOT

    def __init__(self, json_serializer: Any = None, json_deserializer: Any = None, **options: Any) -> None:
        super().__init__(**options)
        self._json_serializer = json_serializer
        self._json_deserializer = json_deserializer

    @classmethod
    def import_dbapi(cls) -> Any:
        from nyala import dbapi

        return dbapi

    @classmethod
    def get_pool_class(cls, url: Any) -> Any:
        return QueuePool

    # ---------------------------------------------------------------------------------------- connections

    def create_connect_args(self, url: Any) -> Any:
        """Return ((path,), the options of the URL as keyword arguments of `nyala.connect`)."""
        path = url.database
        if not path or url.host:
            raise exc.ArgumentError(
                "the URL of a store is nyala:///folder, with three slashes, or four for an absolute path"
            )
        known = inspect.signature(nyala.connect).parameters
        options = {}
        for name, text in url.query.items():
            if name not in known:
                raise exc.ArgumentError(f"{name!r} in the URL of a store is not an option of nyala.connect")
            options[name] = _option(name, str(text), known[name].default)
        return (path,), options

    def get_isolation_level_values(self, dbapi_connection: Any) -> list[Any]:
        return [_SNAPSHOT, _AUTOCOMMIT]

    def get_isolation_level(self, dbapi_connection: Any) -> Any:
        return _AUTOCOMMIT if dbapi_connection.autocommit else _SNAPSHOT

    def set_isolation_level(self, dbapi_connection: Any, level: Any) -> None:
        dbapi_connection.autocommit = level == _AUTOCOMMIT

    def detect_autocommit_setting(self, dbapi_connection: Any) -> bool:
        return bool(dbapi_connection.autocommit)

    def do_ping(self, dbapi_connection: Any) -> bool:
        dbapi_connection.database.now()
        return True

    def do_commit(self, dbapi_connection: Any) -> None:
        try:
            dbapi_connection.commit()
        except Exception:
            dbapi_connection.rollback()  # after a failed commit SQLAlchemy would not call it
            raise

    def is_disconnect(self, e: Any, connection: Any, cursor: Any) -> bool:
        return isinstance(e, self.loaded_dbapi.InterfaceError) and "connection is closed" in str(e)

    def do_execute(self, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        if statement.strip():  # CREATE INDEX compiles to an empty text
            cursor.execute(statement, parameters)

    def do_execute_no_params(self, cursor: Any, statement: str, context: Any = None) -> None:
        self.do_execute(cursor, statement, None)

    def do_savepoint(self, connection: Any, name: str) -> None:
        raise exc.NotSupportedError("SAVEPOINT", None, Exception("a transaction has no savepoints"))

    # ---------------------------------------------------------------------------------------- reflection

    def _get_default_schema_name(self, connection: Any) -> Any:
        return _SCHEMA

    def _get_server_version_info(self, connection: Any) -> tuple[int, ...]:
        return tuple(int(part) for part in nyala.__version__.split(".") if part.isdigit())

    def _description(self, connection: Any, table_name: str, schema: str | None) -> Any:
        database = _database(connection)
        if schema not in (None, _SCHEMA) or table_name not in database:
            name = table_name if schema is None else f"{schema}.{table_name}"
            raise exc.NoSuchTableError(
                f"no table {name!r} in this store: inspect(engine).get_table_names() lists its tables"
            )
        return database[table_name].description

    @cache
    def has_table(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> bool:
        return schema in (None, _SCHEMA) and table_name in _database(connection)

    def has_index(self, *args: Any, **kw: Any) -> bool:
        return False

    def has_sequence(self, *args: Any, **kw: Any) -> bool:
        return False

    def get_schema_names(self, connection: Any, **kw: Any) -> list[str]:
        return [_SCHEMA]

    def get_table_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        return _database(connection).list_tables() if schema in (None, _SCHEMA) else []

    def get_view_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        return []

    get_temp_table_names = get_temp_view_names = get_materialized_view_names = get_sequence_names = (
        get_view_names
    )

    def get_view_definition(
        self, connection: Any, view_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        raise exc.NoSuchTableError(f"no view {view_name!r}: a store has no views, only tables")

    @cache
    def get_columns(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        found = self._description(connection, table_name, schema)
        return [
            {
                "name": each.name,
                "type": _type_of(parse_type(each.type)),
                "nullable": each.nullable,
                "default": None if each.default is None else literal(each.default, parse_type(each.type)),
                "comment": each.comment or None,
                **_storage(each),
            }
            for each in found.columns
            if list(found.primary_key) != [AUTO_INCREMENT] or each.name != AUTO_INCREMENT
        ]

    @cache
    def get_pk_constraint(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        key = list(self._description(connection, table_name, schema).primary_key)
        return {"constrained_columns": [] if key == [AUTO_INCREMENT] else key, "name": None}

    @cache
    def get_table_comment(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        return {"text": self._description(connection, table_name, schema).comment or None}

    @cache
    def get_table_options(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> dict[str, Any]:
        found = self._description(connection, table_name, schema)
        options = {}
        if found.partition_by:
            options["nyala_partition_by"] = partitions_text(found)
        if found.history != DEFAULT_HISTORY:
            options["nyala_history"] = history_text(found.history)
        return options

    @cache
    def get_foreign_keys(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        self._description(connection, table_name, schema)
        return []

    get_indexes = get_unique_constraints = get_check_constraints = get_foreign_keys


def _database(connection: Any) -> nyala.Database:
    database: nyala.Database = connection.connection.driver_connection.database
    return database


def _option(name: str, text: str, default: Any) -> Any:
    """Convert the text of an option in a store's URL to a bool, a number or a text.

    name: the option's name. It is also a parameter of `nyala.connect`.
    default: the default of this parameter. The result has the same type.
    Raises: ArgumentError.
    """
    if name in ("storage_options", "limits"):
        raise exc.ArgumentError(
            f"{name!r} cannot be in the URL of a store: pass connect_args={{{name!r}: …}}"
        )
    if isinstance(default, bool):
        if text.lower() not in ("true", "false", "1", "0"):
            raise exc.ArgumentError(f"{name}={text!r} in the URL of a store is not true or false")
        return text.lower() in ("true", "1")
    if isinstance(default, int | float) or name == "not_before":
        try:
            return int(text) if name == "not_before" else float(text)
        except ValueError:
            raise exc.ArgumentError(f"{name}={text!r} in the URL of a store is not a number") from None
    return text


def _storage(column: ColumnDescription) -> dict[str, Any]:
    """Return a column's encoding, compression, block size and `immutable` as `dialect_options`, without defaults."""
    options: dict[str, Any] = {
        "nyala_encoding": None if column.encoding == "auto" else column.encoding,
        "nyala_compression": None if column.compression == "default" else column.compression,
        "nyala_block_size": column.block_size,
        "nyala_immutable": column.immutable or None,
    }
    given = {name: value for name, value in options.items() if value is not None}
    return {"dialect_options": given} if given else {}


def _type_of(type: ColumnType) -> Any:
    if type.name == "decimal":
        return types.NUMERIC(type.precision, type.scale)
    if type.name == "varchar":
        return types.VARCHAR(type.length)
    if type.name == "timestamp":
        return types.TIMESTAMP(timezone=True)
    return _TYPES[type.name]()
