"""Checks that a text is one SELECT, and finds the tables and columns that it names.

As in DuckDB, statements that begin with WITH, FROM, VALUES, DESCRIBE, SUMMARIZE or SHOW also count
as SELECT.

Source: docs/how-to/sql.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from nyala.errors import InvalidArgumentError
from nyala.sql.tokens import cached_for_short, tokens, with_short_lists


def check_statement(text: object) -> tuple[str, str, Any]:
    """Return (statement, shortened statement, shortened statement as DuckDB parsed it).

    The shortened statement has one value of each long IN list. It names the same tables and
    columns, and parses and binds faster: DuckDB takes half a second for 50,000 values. It is only
    for analysis, because a PIVOT takes column names from such a list.

    Raises: InvalidArgumentError for a text that does not parse, or is not one SELECT.
    """
    if not isinstance(text, str):
        raise InvalidArgumentError(f"sql takes the text of a SELECT, not {text!r}")
    return _parsed(text)


@cached_for_short
def _parsed(text: str) -> tuple[str, str, Any]:
    """Check that the text is one SELECT. Returns (statement, shortened statement, parsed statement).

    `check_statement` explains the three values. They are cached for short texts, because parsing
    takes a tenth of the time of a small statement.
    """
    import duckdb

    text = text.strip().rstrip(";").rstrip()
    shortened = with_short_lists(text)
    # Only errors of the parser are possible here.
    try:
        statements = duckdb.extract_statements(shortened)
    except duckdb.Error as error:
        raise InvalidArgumentError(f"the statement does not parse: {error}") from error
    kinds = [statement.type.name for statement in statements]
    refused = next((kind for kind in kinds if kind != "SELECT"), None)
    if re.match(r"\s*pivot\b", text, re.IGNORECASE) and refused in ("CREATE", "MULTI"):
        raise InvalidArgumentError(
            "PIVOT must say which values become columns: PIVOT t ON column IN (value, …), or db.sql(…).to_pandas() "
            "and pivot there"
        )
    if refused is not None:
        raise InvalidArgumentError(f"a SELECT is needed here, and this is {refused.replace('_', ' ')}")
    if not kinds:
        raise InvalidArgumentError("a SELECT is needed here, and the text is empty")
    if len(kinds) != 1:
        raise InvalidArgumentError(
            f"one SELECT is needed here, and the text has {len(kinds)} statements: call sql() once for each, on one "
            "db.snapshot() if they are to see one moment"
        )
    return text, shortened, statements[0]


_CATALOGUE: Final = re.compile(
    r"\b(?:information_schema|pg_\w+|duckdb_\w+|pragma_\w+|sqlite_\w+|describe|desc|show)\b", re.IGNORECASE
)
_CATALOGUE_SCHEMAS: Final = frozenset(("information_schema", "pg_catalog"))
_CATALOGUE_NAMES: Final = frozenset(
    "duckdb_columns duckdb_constraints duckdb_databases duckdb_indexes duckdb_schemas duckdb_tables duckdb_views "
    "pragma_show pragma_table_info sqlite_master sqlite_schema sqlite_temp_master sqlite_temp_schema "
    "pg_am pg_attrdef pg_attribute pg_class pg_collation pg_constraint pg_database pg_depend pg_description pg_enum "
    "pg_index pg_indexes pg_namespace pg_proc pg_sequence pg_sequences pg_settings pg_tables pg_tablespace pg_type "
    "pg_views".split()
)


def reads_catalogue(text: str) -> bool:
    """Whether a SELECT reads descriptions of tables, as in `information_schema.tables` or `(DESCRIBE t)`."""
    return bool(_CATALOGUE.search(text)) and _names_catalogue(text)


@cached_for_short
def _names_catalogue(text: str) -> bool:
    found = tokens(text)
    for place, token in enumerate(found):
        before = found[place - 1].text if place else ""
        after = found[place + 1].text if place + 1 < len(found) else ""
        if token.keyword in ("DESCRIBE", "DESC", "SHOW") and before == "(":
            return True
        if not token.is_identifier:
            continue
        name = token.name.lower()
        if name in _CATALOGUE_SCHEMAS and after == ".":
            return True
        if (
            name in _CATALOGUE_NAMES
            and after != "."
            and (before != "." or found[place - 2].name.lower() == "main")
        ):
            return True
    return False


_SHOW: Final = re.compile(r"\b(show|information_schema|duckdb_\w+|pg_\w+)\b", re.IGNORECASE)


def tables_named(text: str, tables: Iterable[str]) -> list[str]:
    """Return the tables whose names occur in the text. All tables that the statement reads are among them.

    For a statement over the catalogue, such as SHOW TABLES, the result has all tables. DuckDB
    ignores case in names. So if the store has two tables `T` and `t`, the result has only the one
    whose exact spelling occurs.
    Raises: InvalidArgumentError if both spellings occur.
    """
    tables = list(tables)
    if _SHOW.search(text):
        lowered = [name.lower() for name in tables]
        return [name for name in tables if lowered.count(name.lower()) == 1 or _occurs_in(name, text)]
    folded = text.lower()
    groups: dict[str, list[str]] = {}
    for name in tables:
        if _occurs_in(name.lower(), folded):
            groups.setdefault(name.lower(), []).append(name)
    out = []
    for alike in groups.values():
        exact = alike if len(alike) == 1 else [name for name in alike if _occurs_in(name, text)]
        if len(exact) != 1:
            raise InvalidArgumentError(
                f"the table name {alike[0]!r} is ambiguous: the store has {' and '.join(map(repr, alike))}, and a "
                "statement can read only one of them. Write its exact name, or rename one with db.rename_table"
            )
        out += exact
    return out


_ALL: Final = re.compile(r"(\bselect|\bdistinct|\ball|,|\.)\s*\*|\bcolumns\s*\(", re.IGNORECASE)
_SELECT: Final = re.compile(r"\bselect\b", re.IGNORECASE)
_WORD: Final = re.compile(r"\w+")


def columns_named(text: str, columns: Iterable[str]) -> set[str]:
    """Return the columns whose names occur in the text; all columns for `SELECT *`.

    The result is a guess of the columns that the statement reads. A wrong guess costs only time: a
    natural join, for example, also reads columns that the text does not name.
    """
    if _ALL.search(text) or not _SELECT.search(text):
        return set(columns)
    folded = text.lower()
    words = set(_WORD.findall(folded))
    return {
        name
        for name in columns
        if (name.lower() in words if _WORD.fullmatch(name) else _occurs_in(name.lower(), folded))
    }


def _occurs_in(name: str, text: str) -> bool:
    quoted = name.replace('"', '""')
    return re.search(rf"(?<!\w){re.escape(quoted)}(?!\w)", text) is not None
