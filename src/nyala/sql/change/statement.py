"""Executes INSERT, UPSERT, UPDATE, DELETE, TRUNCATE and MERGE.

DuckDB's parser checks the whole statement first. Then its clauses are cut out, and SELECTs compute
the rows to write (`change.change`).

Source: docs/reference/sql.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from nyala.errors import InvalidArgumentError
from nyala.sql.change.change import Plan, commit
from nyala.sql.change.insert import is_checked, plan_insert
from nyala.sql.change.merge import plan_merge
from nyala.sql.change.target import Statement
from nyala.sql.change.update import plan_delete, plan_update
from nyala.sql.context import Context
from nyala.sql.names import without_schemas
from nyala.sql.result import FixedResult
from nyala.sql.select.moments import parsable
from nyala.sql.tokens import Token, replaced, tokens, with_first_rows, with_names, with_short_lists

__all__ = ["execute", "plan_of"]

_REMEMBERED_CHARS: Final = 4096
_PLANS: Final = {
    "INSERT": plan_insert,
    "UPSERT": plan_insert,
    "REPLACE": plan_insert,
    "UPDATE": plan_update,
    "DELETE": plan_delete,
    "TRUNCATE": plan_delete,
    "MERGE": plan_merge,
}


def execute(context: Context, text: str) -> FixedResult:
    """Execute a statement that changes rows. Raises: as `Database.sql`."""
    word, plan, checked = plan_of(context, text)
    context.check_writable(word)
    return commit(context, word, plan, checked=checked)


def plan_of(
    context: Context, text: str, make: Callable[[Context, str, str], Statement] = Statement
) -> tuple[str, Plan, bool]:
    """Return the statement's first keyword, its plan, and whether its rows depend on those in the table.

    make: makes the statement, which runs the SELECTs, of the context, the WITH clause and the statement.
    Raises: InvalidArgumentError if it does not parse.
    """
    found = tokens(text)
    _, place = with_names(found)
    main = found[place]
    word = main.keyword
    _check(_as_known(text, found, place))
    statement = make(context, text[: main.begin] if place else "", text)
    text = text[main.begin :]
    plan = _PLANS[word](statement, without_schemas(text))
    return word, plan, is_checked(text, context.objects) if _PLANS[word] is plan_insert else True


def _as_known(text: str, found: Sequence[Token], place: int) -> str:
    """Return the statement in words that DuckDB's parser knows.

    place: of the first keyword after the WITH clause.
    """
    main = found[place]
    known = {"UPSERT": "INSERT", "REPLACE": "INSERT OR REPLACE"}.get(main.keyword)
    edits = [(main.begin, main.end, known)] if known else []
    if main.keyword in ("INSERT", "UPSERT", "REPLACE"):  # INSERT INTO TABLE t, as in Spark and Impala
        table = next((at for at in range(place, len(found) - 1) if found[at].keyword == "INTO"), place) + 1
        if (
            found[table].keyword == "TABLE"
            and found[table + 1 : table + 2]
            and found[table + 1].is_identifier
        ):
            edits.append((found[table].begin, found[table].end, ""))
    return replaced(text, edits)


def _check(text: str) -> None:
    """Check that DuckDB's parser accepts the statement. Raises: InvalidArgumentError."""
    short = with_short_lists(parsable(with_first_rows(text)))
    (_parse if len(short) <= _REMEMBERED_CHARS else _parse.__wrapped__)(short)


@lru_cache(maxsize=64)
def _parse(text: str) -> None:
    import duckdb

    try:
        try:
            duckdb.extract_statements(text)
        except duckdb.Error:
            # It does not know `SET t.v = 1` and `INSERT (t.v)`; which table is named is checked later.
            unqualified = _without_qualifiers(text)
            if unqualified == text:
                raise
            duckdb.extract_statements(unqualified)
    except duckdb.Error as error:
        raise InvalidArgumentError(f"the statement does not parse: {error}") from error


def _without_qualifiers(text: str) -> str:
    """Return the text with `v` in place of `t.v`, where it is an item of a list, or the first name in one."""
    found = tokens(text)
    edits = []
    for before, table, point, column, after in zip(
        found, found[1:], found[2:], found[3:], found[4:], strict=False
    ):
        if (
            before.keyword in ("SET", ",", "(")
            and table.is_identifier
            and point.text == "."
            and column.is_identifier
            and after.text in ("=", ",", ")")
        ):
            edits.append((table.begin, column.begin, ""))
    return replaced(text, edits)
