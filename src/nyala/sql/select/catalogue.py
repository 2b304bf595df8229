"""Executes statements that describe tables: DESCRIBE, `information_schema`, `duckdb_tables()`, `pg_catalog`.

DuckDB sees Nyala's tables as views, which are nullable and have no keys. So a second DuckDB, the
catalogue, has an empty table for each table of the store: with its types, NOT NULL, primary key,
defaults and comments. Its database is called `nyala`, and its schema `main`.

Invariants
    C1  A catalogue does not change after it was built, so any number of threads may read it.
    C2  Four catalogues at most are kept.
    C3  A statement that also reads rows of a table is refused, because the tables of the catalogue
        have no rows.

If the names of two tables differ only in case, the catalogue has the one that the statement spells
exactly. A table with two such columns is not in the catalogue.

Source: docs/how-to/sql.md; SQL:2011 part 11 (information schema); DuckDB, "Metadata functions".
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from nyala.errors import InvalidArgumentError
from nyala.schema.schema import NO_DEFAULT, ColumnSchema
from nyala.sql.select.closing import UnusedCursors, close_all
from nyala.sql.select.connection import SMALL
from nyala.sql.select.errors import our_error
from nyala.sql.select.statement import check_statement, tables_named
from nyala.sql.tokens import Token, parameters, quoted, quoted_text, replaced, tokens
from nyala.sql.types import literal, sql_type
from nyala.tablet.state.root import TableState

if TYPE_CHECKING:
    from nyala.sql.context import Source

_DESCRIBING: Final = frozenset(("DESCRIBE", "DESC", "SHOW"))


class _Catalogue:
    """A DuckDB database that has an empty table for each table of the store, to describe these tables.

    It answers DESCRIBE and SELECTs of `information_schema`. It does not change after it was made, so
    any number of threads may read it.
    """

    def __init__(self, definitions: Iterable[str]) -> None:
        """Make a DuckDB that describes tables. definitions: the CREATE TABLE and COMMENT statements of these tables."""
        import duckdb

        opened = duckdb.connect(":memory:", config=SMALL)
        weakref.finalize(self, close_all, [opened], UnusedCursors())
        self._opened = opened
        opened.execute("ATTACH ':memory:' AS nyala")
        opened.execute("USE nyala")
        opened.execute("DETACH memory")
        opened.execute("BEGIN")
        for text in definitions:
            opened.execute(text)
        opened.execute("COMMIT")
        opened.execute("SET GLOBAL TimeZone = 'UTC'")
        opened.execute("SET GLOBAL enable_external_access = false")
        opened.execute("SET GLOBAL lock_configuration = true")

    @contextlib.contextmanager
    def cursor(self) -> Any:
        with contextlib.closing(self._opened.cursor()) as cursor:
            cursor.execute("USE nyala")
            yield cursor


@lru_cache(maxsize=4)
def _catalogue(definitions: tuple[str, ...]) -> _Catalogue:
    """Return a DuckDB database with empty tables, for DESCRIBE and `information_schema`.

    definitions: CREATE TABLE and COMMENT statements, which make an empty copy of each table to describe.
    The four databases that were used last are cached.
    """
    return _Catalogue(definitions)


# ------------------------------------------------------------------------------------------------ answers


def answer(source: Source, text: str, parameters: Mapping[str, Any]) -> pa.Table:
    """Return the rows of a statement that describes tables: DESCRIBE, or a SELECT of `information_schema`.

    source: the snapshot or transaction whose tables are described.
    parameters: the values of `$name` in the statement.
    Raises: InvalidArgumentError for a statement that also reads rows of tables; as `Database.sql`.
    """
    statement, shortened, _ = check_statement(text)
    states = states_of(source)
    chosen = {name: states[name] for name in tables_named("SHOW " + shortened, states)}
    with _catalogue(_definitions(chosen)).cursor() as cursor:
        _check_no_rows(cursor, statement, states)
        return _rows(cursor, statement, parameters, states)


def describe(state: TableState) -> pa.Table:
    """Return the rows of `DESCRIBE table`. Raises: InvalidArgumentError for columns that differ only in case."""
    from nyala.sql.select.source import check_distinct_names

    check_distinct_names(state.name, state.schema.names)
    with _catalogue(_definitions({state.name: state})).cursor() as cursor:
        return _rows(cursor, f"DESCRIBE {quoted(state.name)}", {}, {state.name: state})


def describe_storage(state: TableState) -> pa.Table:
    """Return the rows of `DESCRIBE EXTENDED table`, which include encodings, compression and comments."""
    columns = state.schema.columns
    rows = describe(state)
    types = pa.array([sql_type(each.type) for each in columns], pa.string())
    return pa.table(
        {
            **{name: types if name == "column_type" else rows[name] for name in rows.column_names},
            "encoding": pa.array([each.encoding for each in columns], pa.string()),
            "compression": pa.array([each.compression for each in columns], pa.string()),
            "block_size": pa.array([each.block_size_bytes for each in columns], pa.int64()),
            "immutable": pa.array([each.immutable for each in columns], pa.bool_()),
            "comment": pa.array([each.comment or None for each in columns], pa.string()),
        }
    )


def states_of(source: Source) -> dict[str, TableState]:
    """Return the tables of a snapshot or transaction by name, with their schemas at its moment."""
    return {name: source[name]._view(None)[1] for name in source.list_tables()}


def _rows(
    cursor: Any, text: str, parameters: Mapping[str, Any], states: Mapping[str, TableState]
) -> pa.Table:
    import duckdb

    try:
        return cursor.sql(text, **({"params": dict(parameters)} if parameters else {})).to_arrow_table()
    except duckdb.Error as error:
        columns = [name for state in states.values() for name in state.schema.names]
        raise our_error(error, [], list(states), columns, 0) from error


def _check_no_rows(cursor: Any, statement: str, states: Mapping[str, TableState]) -> None:
    """Check that the statement reads no rows of the store's tables: it may name them only in DESCRIBE.

    Raises: InvalidArgumentError.
    """
    known = {name.lower() for name in states}
    named = {
        name.rsplit(".", 1)[-1].strip('"') for name in cursor.get_table_names(_without_describe(statement))
    }
    if rows := sorted(name for name in named if name.lower() in known):
        raise InvalidArgumentError(
            "a statement reads either rows or descriptions of tables (DESCRIBE, information_schema), and this one "
            f"also reads rows of {rows[0]!r}: write two statements"
        )


def _without_describe(statement: str) -> str:
    """Return the statement in a form that DuckDB's search for table names accepts.

    `(SELECT 1)` replaces each `(DESCRIBE …)` and `(SHOW …)`, and NULL replaces each parameter.
    """
    found = tokens(statement)
    edits = [(token.begin, token.end, "NULL") for token in parameters(found)]
    for place, token in enumerate(found[:-1]):
        if token.text == "(" and found[place + 1].keyword in _DESCRIBING:
            end = _closing(found, place).begin
            edits = [edit for edit in edits if not token.end <= edit[0] < end]
            edits.append((token.end, end, "SELECT 1"))
    return replaced(statement, edits) if edits else statement


def _closing(found: Sequence[Token], opening: int) -> Token:
    depth = 0
    for token in found[opening:]:
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0:
            return token
    return found[-1]


# ------------------------------------------------------------------------------------------------ definitions


def _definitions(states: Mapping[str, TableState]) -> tuple[str, ...]:
    """Return the CREATE TABLE and COMMENT statements that make empty tables like these in DuckDB.

    Leaves out a table if two of its columns, or it and an earlier table, differ only in case.
    """
    out: list[str] = []
    seen: set[str] = set()
    for name, state in states.items():
        columns = state.schema.columns
        if name.lower() in seen or len({each.name.lower() for each in columns}) < len(columns):
            continue
        seen.add(name.lower())
        keys = ", ".join(map(quoted, state.schema.key_names))
        listed = ", ".join([*map(_column, columns), f"PRIMARY KEY ({keys})"])
        out.append(f"CREATE TABLE {quoted(name)} ({listed})")
        if state.entry.comment:
            out.append(f"COMMENT ON TABLE {quoted(name)} IS {quoted_text(state.entry.comment)}")
        for each in columns:
            if each.comment:
                place = f"{quoted(name)}.{quoted(each.name)}"
                out.append(f"COMMENT ON COLUMN {place} IS {quoted_text(each.comment)}")
    return tuple(out)


def _column(column: ColumnSchema) -> str:
    null = "" if column.nullable else " NOT NULL"
    default = column.write_default
    given = "" if default is NO_DEFAULT else f" DEFAULT {literal(default, column.type)}"
    return f"{quoted(column.name)} {sql_type(column.type)}{null}{given}"
