"""Executes INSERT, UPSERT, UPDATE, DELETE, TRUNCATE and MERGE.

DuckDB's parser checks the whole statement first. Then its clauses are cut out, and SELECTs compute
the rows to write (`change.change`).

Source: docs/reference/sql.md.
"""

from __future__ import annotations

from collections.abc import Callable
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
from nyala.sql.select.statement import shortened
from nyala.sql.tokens import replaced, tokens, with_first_rows, with_names

__all__ = ["execute", "plan_of"]

_REMEMBERED_CHARS: Final = 4096
_PLANS: Final = {
    "INSERT": plan_insert,
    "UPSERT": plan_insert,
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
    _check(replaced(text, [(main.begin, main.end, "INSERT")]) if word == "UPSERT" else text)
    statement = make(context, text[: main.begin] if place else "", text)
    text = text[main.begin :]
    plan = _PLANS[word](statement, without_schemas(text))
    return word, plan, is_checked(text) if word in ("INSERT", "UPSERT") else True


def _check(text: str) -> None:
    """Check that DuckDB's parser accepts the statement. Raises: InvalidArgumentError."""
    short = shortened(parsable(with_first_rows(text)))
    (_parse if len(short) <= _REMEMBERED_CHARS else _parse.__wrapped__)(short)


@lru_cache(maxsize=64)
def _parse(text: str) -> None:
    import duckdb

    try:
        duckdb.extract_statements(text)
    except duckdb.Error as error:
        raise InvalidArgumentError(f"the statement does not parse: {error}") from error
