"""Refuses functions that reach outside the store, in SQL that does not come from the program (`StoreRights`).

The DuckDB of such SQL has no access to files, and its settings are locked. This check is a second
barrier. It refuses all table functions and functions with side effects, except those in `_ALLOWED`.
So a function that a later DuckDB adds is refused, too. Functions that execute SQL from a text are
refused, because the check does not read this text.

DuckDB's own tokenizer finds the names. If `tokens` and DuckDB disagree where string literals begin,
the statement is refused, because Nyala and DuckDB would read different clauses.

Source: DuckDB, "Securing DuckDB"; docs/how-to/sql.md, "What is guaranteed".
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Sequence
from typing import Final

from nyala.errors import InvalidArgumentError
from nyala.sql.tokens import begins_of_texts, tokens

_ALLOWED: Final = frozenset(
    "current_connection_id current_query current_query_id current_transaction_id duckdb_columns duckdb_constraints "
    "duckdb_databases duckdb_functions duckdb_indexes duckdb_keywords duckdb_schemas duckdb_sequences duckdb_tables "
    "duckdb_types duckdb_views error gen_random_uuid generate_series histogram histogram_values icu_calendar_names "
    "json_each json_tree pg_timezone_names random range repeat repeat_row setseed stats summary unnest uuid uuidv4 "
    "uuidv7 vector_type".split()
)
_SCALARS: Final = frozenset(("current_setting", "getenv", "getvariable"))
_VIEWS: Final = frozenset(("duckdb_logs", "duckdb_settings", "pg_settings"))
_CALL: Final = re.compile(r'"?(\w+)"?\(')


def check_store_only(text: str) -> None:
    """Check that the statement calls no function that reaches outside the store. Raises: InvalidArgumentError."""
    found = _tokens_of_duckdb(text)
    by_duckdb = [begin for begin, kind, _ in found if kind == "string_const"]
    by_nyala = list(begins_of_texts(tokens(text)))
    if by_duckdb != (by_nyala if text.isascii() else _offsets(text, by_nyala)):
        raise InvalidArgumentError(
            "the statement cannot be checked, because it is not clear where its strings begin and end: write strings "
            "in single quotes, with a space before each, and no comment inside of a comment"
        )
    refused = _functions()
    for place, (_, kind, word) in enumerate(found):
        if kind not in ("identifier", "keyword"):
            continue
        name = word.strip('"').replace('""', '"').lower()
        is_call = place + 1 < len(found) and found[place + 1][2][:1] == "("
        if name in _VIEWS or (is_call and name in refused):
            raise InvalidArgumentError(
                f"{word} is not allowed here: this session reaches only the tables of its store"
            )


def _tokens_of_duckdb(text: str) -> list[tuple[int, str, str]]:
    """Divide a statement into tokens with DuckDB's tokenizer, and leave out the comments.

    Returns (offset in the UTF-8 bytes of `text`, DuckDB's name for the kind of token, its text).
    """
    import duckdb

    encoded = text.encode()
    found = [(place, kind.name) for place, kind in duckdb.tokenize(text)]
    ends = [*(place for place, _ in found[1:]), len(encoded)]
    return [
        (begin, kind, encoded[begin:end].decode("utf-8", "replace").strip())
        for (begin, kind), end in zip(found, ends, strict=True)
        if kind != "comment"
    ]


def _offsets(text: str, places: Sequence[int]) -> list[int]:
    """Convert indexes of characters in the text to offsets in its UTF-8 bytes. places: the indexes, ascending."""
    steps = [len(text[begin:end].encode()) for begin, end in itertools.pairwise([0, *places])]
    return list(itertools.accumulate(steps))


@functools.cache
def _functions() -> frozenset[str]:
    """Return the names, in lower case, of functions that may reach outside the store, such as `read_csv`.

    `check_store_only` refuses these functions. Cost: one query of DuckDB for each process.
    """
    import duckdb

    with contextlib.closing(duckdb.connect(":memory:")) as connection:
        rows = connection.execute(
            "SELECT DISTINCT lower(function_name), function_type IN ('table', 'table_macro') "
            "OR stability = 'VOLATILE' OR has_side_effects, macro_definition FROM duckdb_functions()"
        ).fetchall()
    refused = {name for name, reaches_out, _ in rows if reaches_out} - _ALLOWED | _SCALARS
    macros = {name for name, _, definition in rows if refused.intersection(_CALL.findall(definition or ""))}
    return frozenset(refused | macros - _ALLOWED)
