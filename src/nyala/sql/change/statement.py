"""Executes INSERT, UPSERT, REPLACE, UPDATE, DELETE, TRUNCATE and MERGE.

DuckDB's parser checks the whole statement. Then one or more SELECTs compute the rows to write. They
are built from clauses of the statement, such as its WHERE and the expressions of its SET.

Source: docs/reference/sql.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from nyala.errors import InvalidArgumentError
from nyala.sql.change.change import Change, Plan, commit
from nyala.sql.change.insert import compute_insert, depends_on_stored_rows
from nyala.sql.change.merge import compute_merge
from nyala.sql.change.target import Statement
from nyala.sql.change.update import compute_delete, compute_update
from nyala.sql.context import Context, Source
from nyala.sql.names import without_schemas
from nyala.sql.result import FixedResult
from nyala.sql.select.moments import parsable
from nyala.sql.tokens import (
    Token,
    cached_for_short,
    replaced,
    tokens,
    with_first_rows,
    with_names,
    with_short_lists,
)

_COMPUTED: Final = {
    "INSERT": compute_insert,
    "UPSERT": compute_insert,
    "REPLACE": compute_insert,
    "UPDATE": compute_update,
    "DELETE": compute_delete,
    "TRUNCATE": compute_delete,
    "MERGE": compute_merge,
}


def execute(context: Context, text: str) -> FixedResult:
    """Execute a statement that changes rows. Raises: as `Database.sql`."""
    word, plan, checked = plan_of(context, text)
    context.check_writable(word)
    return commit(context, word, plan, checked=checked)


def plan_of(
    context: Context, text: str, make: Callable[[Context, Source, str, str], Statement] = Statement
) -> tuple[str, Plan, bool]:
    """Return (first keyword, plan, checked) of a statement that changes rows.

    plan: a function that computes what the statement writes, from a snapshot or transaction.
    checked: whether the written rows depend on stored rows, which another writer can change before the commit.
    make: makes the `Statement` whose SELECTs compute the written rows.
    Raises: InvalidArgumentError if the text does not parse.
    """
    found = tokens(text)
    _, place = with_names(found)
    main = found[place]
    word = main.keyword
    _check(_in_words_of_duckdb(text, found, place))
    with_clause, statement = text[: main.begin] if place else "", text[main.begin :]
    without = without_schemas(statement)

    def plan(source: Source) -> Change:
        return _COMPUTED[word](make(context, source, with_clause, text), without)

    checked = _COMPUTED[word] is not compute_insert or depends_on_stored_rows(statement, context.objects)
    return word, plan, checked


def _in_words_of_duckdb(text: str, found: Sequence[Token], place: int) -> str:
    """Translate a statement for DuckDB's parser: UPSERT and REPLACE become INSERT, and INTO TABLE t becomes INTO t.

    place: the index of the first keyword after the WITH clause.
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
    _parse(with_short_lists(parsable(with_first_rows(text))))


@cached_for_short
def _parse(text: str) -> None:
    import duckdb

    try:
        try:
            duckdb.extract_statements(text)
        except duckdb.Error:
            # DuckDB's parser refuses the `t.` of `SET t.v = 1` and `INSERT (t.v)`. `read_column` checks it later.
            unqualified = _without_qualifiers(text)
            if unqualified == text:
                raise
            duckdb.extract_statements(unqualified)
    except duckdb.Error as error:
        raise InvalidArgumentError(f"the statement does not parse: {error}") from error


def _without_qualifiers(text: str) -> str:
    """Return the text with `v` in place of `t.v` in lists of columns and on the left side of assignments."""
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
