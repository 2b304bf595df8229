"""Finds the table or column that a name in SQL means.

SQL ignores case in names, and a table's name can have a schema before it: t, T, main.t, public.t
and nyala.main.t are the table t of the store.

Source: docs/reference/sql.md.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

from nyala.errors import InvalidArgumentError
from nyala.sql.tokens import TokenReader, replaced, tokens

_SCHEMA: Final = re.compile(r'\b(?:main|public|nyala)\b"?\s*\.', re.IGNORECASE)
_SCHEMAS: Final = frozenset(((), ("main",), ("public",), ("nyala",), ("nyala", "main")))


def table_name(reader: TokenReader) -> str:
    """Read the name of a table, with or without a schema. Raises: InvalidArgumentError."""
    return of_store(reader.qualified())


def of_store(names: Sequence[str]) -> str:
    """Return the table's name, the last of `names`.

    Raises: InvalidArgumentError if the names before it are not a schema of the store.
    """
    if tuple(each.lower() for each in names[:-1]) not in _SCHEMAS:
        raise InvalidArgumentError(
            f"there is no schema {'.'.join(names[:-1])!r}: the tables of the store are in nyala.main, and only SELECT "
            "reads tables of attached stores"
        )
    return names[-1]


def without_schemas(text: str) -> str:
    """Return the text of a statement with `t.column` in place of `main.t.column`."""
    if not _SCHEMA.search(text):
        return text
    found = tokens(text)
    edits = []
    place = 0
    while place < len(found):
        begin = place
        while found[place + 1 : place + 3] and found[place].is_identifier and found[place + 1].text == ".":
            place += 2
        path = [token.name.lower() for token in found[begin : place + 1 : 2]]
        if len(path) > 2 and path[:-2] and tuple(path[:-2]) in _SCHEMAS:
            edits.append((found[begin].begin, found[place - 2].begin, ""))
        place += 1
    return replaced(text, edits)


def spelled(name: str, names: Collection[str]) -> str:
    """Return the table in `names` that equals `name` if case is ignored; `name` itself if no table does.

    Raises: InvalidArgumentError if two of `names` differ from `name` only in case.
    """
    if name in names:
        return name
    alike = [each for each in names if each.lower() == name.lower()]
    if len(alike) > 1:
        raise InvalidArgumentError(
            f"the table name {name!r} is ambiguous: the store has {' and '.join(map(repr, sorted(alike)))}. Write the "
            "exact name, or rename one with db.rename_table"
        )
    return alike[0] if alike else name


def spelled_column(name: str, names: Collection[str]) -> str:
    """Return the column in `names` that equals `name` if case is ignored; `name` itself if no column does."""
    return name if name in names else next((each for each in names if each.lower() == name.lower()), name)
