"""INSERT, UPSERT and REPLACE: a SELECT computes the rows, and a write stores them.

    statement                                   SELECT that computes the rows        write
    INSERT INTO t (a, b) VALUES (1, DEFAULT)    VALUES (CAST(1 AS …), default of b)  insert
    INSERT INTO t SELECT …                      the SELECT with casts                insert
    INSERT OR IGNORE, ON CONFLICT DO NOTHING    the same                             insert, skip existing keys
    INSERT OR REPLACE, REPLACE, UPSERT          the same                             upsert
    ON CONFLICT DO UPDATE SET …                 a join of the new rows with t        update and insert

A column that the statement does not give takes its default. An upsert leaves such a column of an
existing row as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from nyala.errors import DuplicateKeyError, InvalidArgumentError
from nyala.schema.schema import AUTO_INCREMENT
from nyala.sql.change.assigned import Assigned, in_order
from nyala.sql.change.change import Change
from nyala.sql.change.per_row import check_no_window
from nyala.sql.change.target import (
    Statement,
    Target,
    as_stored,
    assignments,
    default_of,
    find_target,
    returned,
    with_new_keys,
)
from nyala.sql.change.values import rows_of_values
from nyala.sql.context import Source
from nyala.sql.tokens import TokenReader, quoted, replaced, tokens, with_neighbours
from nyala.sql.types import cast_to
from nyala.tablet.write.write_path import Request

Mode: TypeAlias = Literal["insert", "ignore", "upsert"]

_SOURCE_WORDS: Final = ("VALUES", "SELECT", "WITH", "FROM", "TABLE", "BY", "DEFAULT", "(")
# ON CONFLICT counts only with the token that follows, because a table may be called `conflict`.
_ENDS: Final = (("ON", "CONFLICT", "("), ("ON", "CONFLICT", "DO"), ("RETURNING",))
_AFTER_ROWS: Final = (
    ("UNION",),
    ("INTERSECT",),
    ("EXCEPT",),
    ("ORDER", "BY"),
    ("LIMIT",),
    ("OFFSET",),
    ("FETCH",),
)
# A query without these words reads no table.
_READING_WORDS: Final = frozenset(("FROM", "TABLE", "PIVOT", "UNPIVOT", "SUMMARIZE", "DESCRIBE", "SHOW"))


@dataclass(frozen=True)
class _Insert:
    """The clauses of an INSERT before VALUES or its query."""

    target: Target
    mode: Mode
    columns: list[str] | None
    by_name: bool


def depends_on_stored_rows(text: str, objects: Collection[str]) -> bool:
    """Whether the rows that an INSERT writes or returns can depend on rows that the store contains.

    If so, the commit must check that no other writer has changed these rows meanwhile.

    text: the statement without its WITH clause.
    objects: names of tables outside of the store, whose rows do not change.
    """
    reader = TokenReader(text)
    source = reader.until(*_ENDS)
    reads = any(token.keyword in _READING_WORDS for token in reader.tokens[: reader.index])
    if reads and not source.endswith(tuple(f"FROM {name}" for name in objects)):
        return True
    if reader.take("ON", "CONFLICT"):
        reader.until(("DO",))
        if reader.at("DO", "UPDATE"):
            return True
        reader.until(("RETURNING",))
    return reader.at("RETURNING")


def compute_insert(statement: Statement, text: str) -> Change:
    """Return the `Change` of an INSERT, UPSERT or REPLACE: the write operations, and the rows of RETURNING.

    statement: the whole statement, with the snapshot or transaction that it reads.
    text: the statement without its WITH clause, and without schemas before table names.
    """
    reader = TokenReader(text)
    head = _head(reader, statement.source)
    target = head.target
    rows = _source_rows(statement, head, reader.until(*_ENDS))
    sets: dict[str, str] | None = None
    where, mode = "", head.mode
    if reader.take("ON", "CONFLICT"):
        if mode != "insert":
            raise InvalidArgumentError("ON CONFLICT and INSERT OR … are two ways to say the same: use one")
        sets, where = _conflict_clause(reader, target)
        if sets is not None and target.alias.lower() == "excluded":
            raise InvalidArgumentError(
                "in ON CONFLICT DO UPDATE, the name `excluded` means the new row: give the table another name, as in "
                f"INSERT INTO {quoted(target.table)} AS t"
            )
        mode = "ignore" if sets is None else "insert"
    returning = reader.rest() if reader.take("RETURNING") else None
    if target.schema.auto_increment is not None and mode != "upsert":
        sets, mode = None, "insert"  # the store gives each row a new key, so no key exists already
    if sets is not None:
        return _update_or_insert(statement, target, rows, sets, where, returning)
    if mode == "ignore" and returning is not None:
        rows = _new_rows(statement, target, rows)
    operation = "upsert" if mode == "upsert" else "insert"
    request = Request(target.table, operation, rows, ignore=mode == "ignore")
    if returning is None:
        return Change([request])
    if mode == "insert":
        request, rows = with_new_keys(statement, target, request, rows)
    else:
        rows = _one_per_key(statement, target, rows, mode)
    stored = _stored(statement, target, rows, mode)
    return Change([request], returning=returned(statement, target, returning, stored))


def _head(reader: TokenReader, source: Source) -> _Insert:
    """Read `INSERT [OR …] INTO [TABLE] t [AS a] [BY NAME] [(columns)]`. Raises: InvalidArgumentError."""
    mode: Mode = "insert"
    if reader.take("UPSERT") or reader.take("REPLACE"):
        mode = "upsert"
    else:
        reader.need("INSERT")
        if reader.take("OR", "REPLACE"):
            mode = "upsert"
        elif reader.take("OR", "IGNORE"):
            mode = "ignore"
    reader.need("INTO")
    reader.take("TABLE")
    target = find_target(reader, source, _SOURCE_WORDS)
    columns = None
    if reader.at("(") and not _is_query(reader):
        columns = target.read_insert_columns(reader)
    by_name = reader.take("BY", "NAME")
    if not by_name:
        reader.take("BY", "POSITION")
    if by_name and columns is not None:
        raise InvalidArgumentError(
            "BY NAME takes the columns from the names of the SELECT: leave out the list of columns"
        )
    return _Insert(target, mode, columns, by_name)


def _is_query(reader: TokenReader) -> bool:
    following = reader.peek(1)
    return following is not None and following.keyword in ("SELECT", "WITH", "VALUES", "FROM", "(", "TABLE")


def _is_combined(reader: TokenReader) -> bool:
    """Whether a VALUES list is part of a larger query, such as a UNION."""
    ahead = TokenReader(reader.text)
    ahead.until(*_AFTER_ROWS)
    return not ahead.ended


def _source_rows(statement: Statement, insert: _Insert, query: str) -> pa.Table:
    """Return the rows to insert, with the columns that the statement names. Raises: InvalidArgumentError."""
    target = insert.target
    names = insert.columns if insert.columns is not None else target.insert_columns
    reader = TokenReader(query)
    if reader.at("VALUES") and _is_combined(reader):
        query = f"FROM (\n{query}\n)"
        reader = TokenReader(query)
    if reader.take("DEFAULT", "VALUES"):
        reader.finish()
        values = ", ".join(
            f"{default_of(target.column(name))} AS {quoted(name)}" for name in target.insert_columns
        )
        return statement.rows(f"SELECT {values}")
    if reader.at("VALUES") and not insert.by_name:
        columns = [target.column(name) for name in names]
        return rows_of_values(
            statement, reader, columns, lambda given: _count_error(insert, len(columns), given)
        )
    given = statement.unused("given")
    bound = statement.context.select(
        statement.source, f"{statement.with_clause}FROM (\n{query}\n)" if statement.with_clause else query
    )
    found = bound.schema.names
    kept = list(range(len(found)))
    if target.schema.auto_increment is not None and (insert.by_name or len(found) == len(names) + 1):
        # SELECT * of a table with an auto-incrementing key returns the key too, but the new rows get new keys.
        kept = [place for place in kept if found[place].lower() != AUTO_INCREMENT]
    if insert.by_name:
        names = [target.column(found[place]).name for place in kept]
    elif len(kept) != len(names):
        raise _count_error(insert, len(names), len(kept))
    listed = ", ".join(
        f"{cast_to(f'{given}.c{place}', target.column(name).type)} AS {quoted(name)}"
        for place, name in zip(kept, names, strict=True)
    )
    places = ", ".join(f"c{place}" for place in range(len(found)))
    return statement.rows(f"SELECT {listed}\nFROM (\n{query}\n) AS {given}({places})")


def _count_error(insert: _Insert, expected: int, given: int) -> InvalidArgumentError:
    listed = insert.target.insert_columns if insert.columns is None else insert.columns
    return InvalidArgumentError(
        f"INSERT INTO {insert.target.table} ({', '.join(listed)}): expected {expected} "
        f"value{'s' if expected != 1 else ''} per row, got {given}"
    )


def _conflict_clause(reader: TokenReader, target: Target) -> tuple[dict[str, str] | None, str]:
    """Read the clause after ON CONFLICT. Returns its assignments (None for DO NOTHING) and its WHERE.

    Raises: InvalidArgumentError.
    """
    if reader.at("("):
        named = [target.column(name).name for name in reader.names()]
        if set(named) != set(target.keys):
            raise InvalidArgumentError(
                f"ON CONFLICT ({', '.join(named)}) must name the primary key of {target.table!r}: "
                f"{', '.join(target.keys)}"
            )
    reader.need("DO")
    if reader.take("NOTHING"):
        return None, ""
    reader.need("UPDATE", "SET")
    sets = assignments(reader, target, ("WHERE",), ("RETURNING",))
    for name, expression in sets.items():
        check_no_window(expression, f"SET {name} of ON CONFLICT")
    return sets, reader.until(("RETURNING",)) if reader.take("WHERE") else ""


def _update_or_insert(
    statement: Statement,
    target: Target,
    rows: pa.Table,
    sets: dict[str, str],
    where: str,
    returning: str | None,
) -> Change:
    """Return what ON CONFLICT DO UPDATE writes: updates of the rows whose keys exist, and inserts of the others."""
    keys = target.keys
    rows = as_stored(target, _completed(statement, target, rows))
    if not statement.are_distinct(rows, keys):
        raise DuplicateKeyError(
            "ON CONFLICT DO UPDATE: two of the inserted rows have the same key, and the result would depend on their "
            "order: insert one row for each key"
        )
    given = statement.unused("given")
    # `excluded` is one column with fields, so that in `SET v = v + excluded.v` the first `v` is the table's.
    excluded = statement.unused("excluded")
    packed = ", ".join(f"{quoted(name)} := {quoted(name)}" for name in rows.column_names)
    packed_source = f"(SELECT struct_pack({packed}) AS {excluded} FROM {given}) AS {given}"
    same = " AND ".join(f"{target.alias_of(key)} = {excluded}.{quoted(key)}" for key in keys)
    sets = {name: _with_excluded(expression, excluded) for name, expression in sets.items()}
    assigned = Assigned(target, sets, returning is not None)
    condition = f" WHERE {_with_excluded(where, excluded)}\n" if where else ""
    updated = statement.rows(
        f"SELECT {assigned.listed}\nFROM {statement.clause(target)} JOIN {packed_source} ON {same}{condition}",
        {given: rows},
    )
    new = _new_rows(statement, target, rows)

    requests = in_order([*assigned.requests(statement, updated), Request(target.table, "insert", new)])
    count = updated.num_rows + new.num_rows
    if returning is None:
        return Change(requests, count)
    names = assigned.names
    changed = pa.concat_tables([updated.select(names), new.select(names)], promote_options="permissive")
    return Change(requests, count, returned(statement, target, returning, changed))


def _with_excluded(expression: str, name: str) -> str:
    """Return the expression with `name.column` in place of `excluded.column`."""
    return replaced(
        expression,
        [
            (token.begin, token.end, name)
            for before, token, after in with_neighbours(tokens(expression))
            if token.name.lower() == "excluded" and after.text == "." and before.text != "."
        ],
    )


def _new_rows(statement: Statement, target: Target, rows: pa.Table) -> pa.Table:
    """Return the rows whose keys the table does not have."""
    given = statement.unused("given")
    same = " AND ".join(f"{given}.{quoted(key)} = {target.alias_of(key)}" for key in target.keys)
    return statement.rows(
        f"SELECT {given}.* FROM {given} ANTI JOIN {statement.clause(target)} ON {same}",
        {given: rows},
    )


def _completed(statement: Statement, target: Target, rows: pa.Table) -> pa.Table:
    """Return the rows with all columns of the table; missing columns have their defaults."""
    missing = [name for name in target.insert_columns if name not in rows.column_names]
    if not missing:
        return rows
    listed = [quoted(name) for name in rows.column_names]
    listed += [f"{default_of(target.column(name))} AS {quoted(name)}" for name in missing]
    given = statement.unused("given")
    return statement.rows(f"SELECT {', '.join(listed)} FROM {given}", {given: rows})


def _one_per_key(statement: Statement, target: Target, rows: pa.Table, mode: Mode) -> pa.Table:
    """Return one row for each key.

    mode: "ignore" keeps the first row of a key. Other modes keep the last value of each column, but
        the first value of an immutable column.
    """
    if statement.are_distinct(rows, target.keys):
        return rows
    given, number = statement.unused("given"), target.unused("number")
    listed = []
    for name in rows.column_names:
        kept = "first" if mode == "ignore" or target.column(name).immutable else "last"
        listed.append(f"{kept}({quoted(name)} ORDER BY {quoted(number)}) AS {quoted(name)}")
    numbered_rows = rows.append_column(number, pa.array(np.arange(rows.num_rows)))
    keys = ", ".join(map(quoted, target.keys))
    text = f"SELECT {', '.join(listed)} FROM {given} GROUP BY {keys} ORDER BY max({quoted(number)})"
    return statement.rows(text, {given: numbered_rows})


def _stored(statement: Statement, target: Target, rows: pa.Table, mode: Mode) -> pa.Table:
    """Return the rows with all columns, as the table has them after the statement.

    An upsert of an existing row changes neither immutable columns nor columns that the statement
    does not name.
    """
    given = [name for name in rows.column_names if not target.column(name).immutable]
    if mode != "upsert" or len(given) == len(target.insert_columns):
        return _completed(statement, target, rows)
    new_row = statement.unused("given")
    same = " AND ".join(f"{new_row}.{quoted(key)} = {target.alias_of(key)}" for key in target.keys)
    first = target.alias_of(target.keys[0])
    listed = [f"{new_row}.{quoted(name)}" for name in given]
    for name in target.insert_columns:
        if name not in given:
            is_given = name in rows.column_names
            new = f"{new_row}.{quoted(name)}" if is_given else default_of(target.column(name))
            listed.append(
                f"CASE WHEN {first} IS NULL THEN {new} ELSE {target.alias_of(name)} END AS {quoted(name)}"
            )
    return statement.rows(
        f"SELECT {', '.join(listed)} FROM {new_row} LEFT JOIN {statement.clause(target)} ON {same}",
        {new_row: rows},
    )
