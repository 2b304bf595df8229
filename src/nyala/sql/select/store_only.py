"""Refuses functions that reach outside the store, in SQL that does not come from the program (`StoreAccess`).

The DuckDB of such SQL has no access to files and locked settings. This check comes before it. It refuses every table
function except those in `_ALLOWED`, so a function that a later DuckDB adds is refused too. Functions that run SQL
from a text are refused, because the check does not see into texts.

Source: DuckDB, "Securing DuckDB"; docs/how-to/sql.md, "What is refused".
"""

from __future__ import annotations

import contextlib
import functools
from typing import Final

from nyala.errors import InvalidArgumentError
from nyala.sql.tokens import tokens

__all__ = ["check_store_only"]

_ALLOWED: Final = frozenset(
    "duckdb_columns duckdb_constraints duckdb_databases duckdb_functions duckdb_indexes duckdb_keywords duckdb_schemas "
    "duckdb_sequences duckdb_tables duckdb_types duckdb_views generate_series histogram histogram_values "
    "icu_calendar_names json_each json_tree pg_timezone_names range repeat repeat_row summary unnest".split()
)
_SCALARS: Final = frozenset(("current_setting", "getenv", "getvariable", "write_log"))
_VIEWS: Final = frozenset(("duckdb_logs", "duckdb_settings", "pg_settings"))


def check_store_only(text: str) -> None:
    """Check that the statement calls no function that reaches outside. Raises: InvalidArgumentError."""
    found = tokens(text)
    refused = _functions()
    ends = [0, *(token.end for token in found)]
    begins = [*(token.begin for token in found), len(text)]
    for end, begin in zip(ends, begins, strict=True):
        if text.count("/*", end, begin) > text.count("*/", end, begin):
            # DuckDB nests comments and `tokens` does not, so they would disagree about what is a text.
            raise InvalidArgumentError(
                "comments inside of comments are not allowed here: remove the inner /*"
            )
    for place, token in enumerate(found):
        if not token.is_identifier:
            continue
        name = token.name.lower()
        is_call = place + 1 < len(found) and found[place + 1].text == "("
        if name in _VIEWS or (is_call and name in refused):
            raise InvalidArgumentError(
                f"{token.name} is not allowed here: this session reaches only the tables of its store"
            )


@functools.cache
def _functions() -> frozenset[str]:
    """Return the names of refused functions in lower case. Cost: a statement, once a process."""
    import duckdb

    with contextlib.closing(duckdb.connect(":memory:")) as asked:
        rows = asked.execute(
            "SELECT DISTINCT lower(function_name) FROM duckdb_functions() "
            "WHERE function_type IN ('table', 'table_macro')"
        ).fetchall()
    return frozenset(name for (name,) in rows) - _ALLOWED | _SCALARS
