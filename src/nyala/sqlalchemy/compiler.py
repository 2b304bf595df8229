"""Compiles SQLAlchemy's statements, table definitions and types to the SQL of a store.

Source: docs/reference/sql.md; docs/reference/sqlalchemy.md.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import bindparam, exc, types
from sqlalchemy.dialects.postgresql.base import RESERVED_WORDS
from sqlalchemy.dialects.sqlite import dml
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.sql import compiler

from nyala.schema.schema import AUTO_INCREMENT
from nyala.sql.tokens import quoted_text
from nyala.sqlalchemy.counting import with_values

# Reserved words of DuckDB and of the store's SQL that PostgreSQL does not reserve.
_WORDS: Final = frozenset(
    "anti asof at by collation concurrently describe excluded generated glob identity lambda lateral pivot "
    "pivot_longer pivot_wider positional qualify recursive returning semi show summarize tablesample unpack "
    "unpivot".split()
)


class Insert(dml.Insert):
    """An INSERT with `on_conflict_do_nothing` and `on_conflict_do_update`, as in SQLAlchemy's SQLite dialect."""

    stringify_dialect = "nyala"
    inherit_cache = dml.Insert.inherit_cache  # SQLAlchemy 2.0 cannot cache ON CONFLICT


def insert(table: Any) -> Insert:
    """Return an INSERT that may have ON CONFLICT.

    Examples
    --------
    >>> import sqlalchemy as sa
    >>> from nyala.sqlalchemy import insert
    >>> t = sa.Table("t", sa.MetaData(), sa.Column("id", sa.BigInteger, primary_key=True), sa.Column("n", sa.Text))
    >>> rows = insert(t).values(id=1, n="a")
    >>> print(rows.on_conflict_do_update(index_elements=["id"], set_={"n": rows.excluded.n}))
    INSERT INTO t (id, n) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET n = excluded.n
    """
    return Insert(table)


def counted_column(table: Any) -> Any:
    """Return the integer key column that gets new values if an INSERT does not give its values.

    The new values continue after the greatest value of the column. None: the table has no such column.
    """
    column = getattr(table, "_autoincrement_column", None)
    if column is None or (column.default is not None and not column.default.is_sequence):
        return None
    return column if column.server_default is None or column.identity is not None else None


class NyalaExecutionContext(DefaultExecutionContext):
    """Adds new key values to the parameters of an INSERT that does not give values of the integer key.

    The new values are greater than every value that the key column has or was given before.
    """

    @classmethod
    def _init_compiled(
        cls,
        dialect: Any,
        connection: Any,
        dbapi_connection: Any,
        execution_options: Any,
        compiled: Any,
        parameters: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if compiled.counted is not None:
            rows = [dict(row) for row in parameters] or [{}]
            names = compiled.counted_names or [compiled.counted.key]
            parameters = with_values(dbapi_connection.driver_connection, compiled.counted, names, rows)
        return super()._init_compiled(
            dialect, connection, dbapi_connection, execution_options, compiled, parameters, *args, **kwargs
        )


class NyalaCompiler(compiler.SQLCompiler):
    """Compiles SELECT, INSERT, UPDATE and DELETE."""

    counted: Any = None
    """The key column whose values `NyalaExecutionContext` adds to the parameters; None: no such column."""
    counted_names: Any = None
    """The names of these parameters, one for each row, if the INSERT has several rows of VALUES."""

    visit_on_conflict_do_nothing = SQLiteCompiler.visit_on_conflict_do_nothing
    visit_on_conflict_do_update = SQLiteCompiler.visit_on_conflict_do_update
    _on_conflict_target = SQLiteCompiler._on_conflict_target

    def visit_insert(self, insert_stmt: Any, *args: Any, **kw: Any) -> Any:
        column = None if self.stack else counted_column(insert_stmt.table)
        # The store itself gives the values of AUTO_INCREMENT, and RETURNING returns them.
        if column is not None and column.name != AUTO_INCREMENT:
            if self.column_keys is not None and not insert_stmt._select_names:
                insert_stmt = self._with_key_parameters(column, insert_stmt)
        return super().visit_insert(insert_stmt, *args, **kw)

    def _with_key_parameters(self, column: Any, insert_stmt: Any) -> Any:
        """Return an INSERT with a further parameter in each row for the key column, if no row gives its value.

        `NyalaExecutionContext` then sets these parameters to the next values of the key.
        column: the key column. If the INSERT gives its values, the INSERT is returned unchanged.
        """
        rows = [row for each in insert_stmt._multi_values for row in each]
        given = rows[0] if rows else insert_stmt._values or ()
        keys = {getattr(key, "key", key) for key in given} | set(self.column_keys or ())
        if column.key in keys or (rows and not all(isinstance(row, dict) for row in rows)):
            return insert_stmt
        self.counted = column
        if not rows:
            self.column_keys = [*(self.column_keys or ()), column.key]
            return insert_stmt
        self.counted_names = [f"nyala_key_{place}" for place in range(len(rows))]
        counted = insert_stmt._clone()
        counted._multi_values = (
            [
                {column: bindparam(name, type_=column.type), **row}
                for name, row in zip(self.counted_names, rows, strict=True)
            ],
        )
        return counted

    def get_select_precolumns(self, select: Any, **kw: Any) -> str:
        if columns := getattr(select, "_distinct_on", ()):
            return f"DISTINCT ON ({', '.join(self.process(each, **kw) for each in columns)}) "
        return "DISTINCT " if select._distinct else ""

    def visit_bitwise_xor_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        return f"xor({self.process(binary.left, **kw)}, {self.process(binary.right, **kw)})"

    def visit_floordiv_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        sides = (binary.left, binary.right)
        if not all(each.type._type_affinity is types.Integer for each in sides):
            text: str = super().visit_floordiv_binary(binary, operator, **kw)
            return text
        # DuckDB's // rounds towards 0, and SQLAlchemy's downwards. FLOOR(a / b) would lose digits above 53 bits.
        a, b = (self.process(each, **kw) for each in sides)
        return f"({a} // {b} - CASE WHEN {a} % {b} <> 0 AND ({a} < 0) <> ({b} < 0) THEN 1 ELSE 0 END)"

    def visit_json_getitem_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        arguments = f"{self.process(binary.left, **kw)}, {self.process(binary.right, **kw)}"
        if isinstance(binary.type, types.JSON):
            return f"json_extract({arguments})"
        kind = self.dialect.type_compiler_instance.process(binary.type)
        return f"CAST(json_extract_string({arguments}) AS {kind})"

    visit_json_path_getitem_op_binary = visit_json_getitem_op_binary

    def limit_clause(self, select: Any, **kw: Any) -> str:
        text = ""
        if select._limit_clause is not None:
            text += "\n LIMIT " + self.process(select._limit_clause, **kw)
        if select._offset_clause is not None:
            text += "\n OFFSET " + self.process(select._offset_clause, **kw)
        return text

    def for_update_clause(self, select: Any, **kw: Any) -> str:
        return ""  # a store locks no rows: a commit finds conflicts on the written keys

    def visit_empty_set_expr(self, element_types: Any, **kw: Any) -> str:
        nulls = ", ".join(
            f"CAST(NULL AS {self.dialect.type_compiler_instance.process(each)})"
            if not each._isnull
            else "NULL"
            for each in element_types
        )
        return f"SELECT {nulls or 'NULL'} WHERE 1 != 1"

    def visit_regexp_match_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        return self._regexp("regexp_matches", binary, **kw)

    def visit_not_regexp_match_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        return "NOT " + self._regexp("regexp_matches", binary, **kw)

    def visit_regexp_replace_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        return self._regexp("regexp_replace", binary, **kw)

    def _regexp(self, function: str, binary: Any, **kw: Any) -> str:
        arguments = [self.process(binary.left, **kw), self.process(binary.right, **kw)]
        if flags := binary.modifiers.get("flags"):
            arguments.append(quoted_text(flags))
        return f"{function}({', '.join(arguments)})"

    def update_from_clause(
        self, update_stmt: Any, from_table: Any, extra_froms: Any, from_hints: Any, **kw: Any
    ) -> str:
        kw["asfrom"] = True
        return "FROM " + ", ".join(
            each._compiler_dispatch(self, fromhints=from_hints, **kw) for each in extra_froms
        )

    def delete_extra_from_clause(
        self, delete_stmt: Any, from_table: Any, extra_froms: Any, from_hints: Any, **kw: Any
    ) -> str:
        kw["asfrom"] = True
        return "USING " + ", ".join(
            each._compiler_dispatch(self, fromhints=from_hints, **kw) for each in extra_froms
        )


class NyalaDDLCompiler(compiler.DDLCompiler):
    """Compiles CREATE TABLE, ALTER TABLE and DROP TABLE. Foreign keys and indexes compile to nothing."""

    def get_column_specification(self, column: Any, **kw: Any) -> str:
        if column.computed is not None:
            raise _no("a computed column", "compute the value in the program or in SELECT")
        kind = self.dialect.type_compiler_instance.process(column.type, type_expression=column)
        parts = [self.preparer.format_column(column), kind]
        default = self.get_column_default_string(column)
        if default is not None:
            parts.append(f"DEFAULT {default}")
        if not column.nullable:
            parts.append("NOT NULL")
        if column.comment:
            parts.append(f"COMMENT {quoted_text(column.comment)}")
        options = column.dialect_options["nyala"]
        for name in ("encoding", "compression", "block_size"):
            if options[name] is not None:
                parts.append(f"{name.upper()} {options[name]}")
        if options["immutable"]:
            parts.append("IMMUTABLE")
        return " ".join(parts)

    def visit_create_table(self, create: Any, **kw: Any) -> str:
        names = [column.name for column in create.element.primary_key]
        if names and names != [AUTO_INCREMENT] and AUTO_INCREMENT in names:
            raise exc.CompileError(
                f"SQLAlchemy cannot create a key of {AUTO_INCREMENT!r} and other columns: make the table with "
                "db.create_table(…, unique=False)"
            )
        # In a store, the key columns are the first columns of the table.
        key = list(create.element.primary_key.columns_autoinc_first)
        create.columns.sort(key=lambda each: key.index(each.element) if each.element in key else len(key))
        text: str = super().visit_create_table(create, **kw)
        return text

    def visit_create_column(self, create: Any, first_pk: bool = False, **kw: Any) -> str | None:
        if create.element.name == AUTO_INCREMENT:
            return None  # the store adds this column to a table without a key
        text: str | None = super().visit_create_column(create, **kw)
        return text

    def visit_primary_key_constraint(self, constraint: Any, **kw: Any) -> Any:
        names = [each for each in constraint.columns_autoinc_first if each.name != AUTO_INCREMENT]
        if not names:
            return None
        return f"PRIMARY KEY ({', '.join(self.preparer.format_column(each) for each in names)})"

    def visit_foreign_key_constraint(self, constraint: Any, **kw: Any) -> Any:
        return None

    def visit_unique_constraint(self, constraint: Any, **kw: Any) -> str:
        raise _no("UNIQUE", "make the columns the primary key")

    def visit_check_constraint(self, constraint: Any, **kw: Any) -> str:
        raise _no("CHECK", "check the values in the program")

    def visit_create_index(self, create: Any, *args: Any, **kw: Any) -> str:
        if create.element.unique:
            raise _no("a unique index", "make the columns the primary key")
        return ""  # the key is the only index of a table

    def visit_drop_index(self, drop: Any, **kw: Any) -> str:
        return ""

    def visit_add_constraint(self, create: Any, **kw: Any) -> str:
        text: str = self.process(create.element)
        return text or ""

    def visit_drop_constraint(self, drop: Any, **kw: Any) -> str:
        return ""

    def post_create_table(self, table: Any) -> str:
        options = table.dialect_options["nyala"]
        parts = []
        if options["partition_by"]:
            parts.append(f"PARTITION BY {options['partition_by']}")
        if table.comment:
            parts.append(f"COMMENT {quoted_text(table.comment)}")
        if options["history"]:
            parts.append(f"WITH ('nyala.history' = {quoted_text(str(options['history']))})")
        return "".join(f"\n{part}" for part in parts)


def _no(what: str, instead: str) -> exc.CompileError:
    return exc.CompileError(f"a store has no {what.removeprefix('a ')}: {instead}")


class NyalaTypeCompiler(compiler.GenericTypeCompiler):
    """Translates SQLAlchemy's types to the names of types in a store, such as DOUBLE.

    Times of day, JSON and UUIDs become VARCHAR, because a store has no types for them.
    """

    def visit_INTEGER(self, type_: Any, **kw: Any) -> str:
        return "INTEGER"

    def visit_DOUBLE(self, type_: Any, **kw: Any) -> str:
        return "DOUBLE"

    visit_DOUBLE_PRECISION = visit_DOUBLE

    def visit_FLOAT(self, type_: Any, **kw: Any) -> str:
        return "DOUBLE"

    def visit_REAL(self, type_: Any, **kw: Any) -> str:
        return "REAL"

    def visit_NUMERIC(self, type_: Any, **kw: Any) -> str:
        precision = 38 if type_.precision is None else type_.precision
        scale = (10 if type_.precision is None else 0) if type_.scale is None else type_.scale
        return f"DECIMAL({precision}, {scale})"

    visit_DECIMAL = visit_NUMERIC

    def visit_VARCHAR(self, type_: Any, **kw: Any) -> str:
        return f"VARCHAR({type_.length})" if type_.length else "VARCHAR"

    visit_CHAR = visit_NCHAR = visit_NVARCHAR = visit_VARCHAR

    def visit_TEXT(self, type_: Any, **kw: Any) -> str:
        return "VARCHAR"

    visit_enum = visit_TEXT  # VARCHAR(n) would cut longer names that the program adds to the enum later

    def visit_uuid(self, type_: Any, **kw: Any) -> str:
        return "VARCHAR(32)"

    visit_CLOB = visit_NCLOB = visit_JSON = visit_TIME = visit_TEXT

    def visit_DATETIME(self, type_: Any, **kw: Any) -> str:
        return "TIMESTAMP WITH TIME ZONE"

    visit_TIMESTAMP = visit_DATETIME

    def visit_BLOB(self, type_: Any, **kw: Any) -> str:
        return "BLOB"

    visit_BINARY = visit_VARBINARY = visit_BLOB


class NyalaIdentifierPreparer(compiler.IdentifierPreparer):
    """Quotes names that are reserved words of PostgreSQL, DuckDB or the store."""

    reserved_words = RESERVED_WORDS | _WORDS
