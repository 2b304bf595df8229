"""Completes the word before the cursor to a dot command, a keyword, a table or a column.

Source: docs/how-to/shell.md, "Keys".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from nyala.shell.dot_commands import DOT_COMMANDS
from nyala.sql.tokens import quoted, tokens

__all__ = ["KEYWORDS", "ShellCompleter", "candidates"]

Catalogue: TypeAlias = Mapping[str, Sequence[str]]
"""The columns of each table."""

KEYWORDS: Final = tuple(
    """
    ADD ALL ALTER AND AS ASC AT BEGIN BETWEEN BY CASE CAST CLONE COLUMN COMMENT COMMIT CONFLICT COPY CREATE CROSS
    DEFAULT DELETE DESC DESCRIBE DISTINCT DO DROP ELSE END EXCEPT EXISTS EXPLAIN FROM FULL GROUP HAVING IF IGNORE ILIKE
    IN INNER INSERT INTERSECT INTERVAL INTO IS JOIN KEY LEFT LIKE LIMIT MATCHED MERGE NOT NOTHING NULL OFFSET ON OR
    ORDER OVER PARTITION PRIMARY QUALIFY RANGE RENAME REPLACE RETURNING RIGHT ROLLBACK SELECT SET SHOW SUMMARIZE TABLE
    TABLES THEN TIMESTAMP TO TRUNCATE UNDROP UNION UPDATE UPSERT USING VALUES WHEN WHERE WINDOW WITH
    """.split()
)
_WORD: Final = re.compile(r"(?:(?P<table>\w+|\"[^\"]+\")\.)?(?P<word>\"?\w*)$")
_PLAIN: Final = re.compile(r"[a-z_]\w*", re.IGNORECASE)


class ShellCompleter(Completer):
    """Completes the word before the cursor, for prompt_toolkit.

    catalogue: a function that returns the present tables and their columns.
    """

    def __init__(self, catalogue: Callable[[], Catalogue]) -> None:
        self._catalogue = catalogue

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        word, found = candidates(document.text, document.cursor_position, self._catalogue)
        for text in found:
            yield Completion(text, -len(word))


def candidates(text: str, cursor: int, catalogue: Callable[[], Catalogue]) -> tuple[str, list[str]]:
    """Return the word before the cursor, and the texts that can replace it, best first."""
    before = text[:cursor]
    if before.lstrip().startswith("."):
        return _dot_candidates(before.lstrip(), catalogue)
    match = _WORD.search(before)
    assert match is not None
    word = match["word"]
    tables = catalogue()
    if match["table"] is not None:
        columns = tables.get(_table_of(match["table"].strip('"'), text, tables), ())
        return word, _names(word, columns)
    named = {token.name for token in tokens(text) if token.is_identifier} & tables.keys()
    columns = sorted({column for name in (named or tables) for column in tables[name]})
    keywords = KEYWORDS if word[:1].isupper() or not word else [keyword.lower() for keyword in KEYWORDS]
    found = _names(word, [*columns, *sorted(tables)])
    return word, list(dict.fromkeys([*found, *(_matching(word, keywords) if word else ())]))


def _dot_candidates(line: str, catalogue: Callable[[], Catalogue]) -> tuple[str, list[str]]:
    name, space, rest = line.partition(" ")
    if not space:
        return name, _matching(name, DOT_COMMANDS)
    command = DOT_COMMANDS.get(name)
    *given, word = rest.split(" ")
    if command is None or given:
        return word, []
    usage = command.usage.partition(" ")[0]
    choices = catalogue() if "TABLE" in usage else usage.split("|") if usage.islower() else ()
    return word, _matching(word, choices)


def _table_of(name: str, text: str, tables: Catalogue) -> str:
    """Return the table with this name or alias in the statement; "" if there is no such table."""
    if name in tables:
        return name
    found = tokens(text)
    for index, table in enumerate(found):
        after = [token for token in found[index + 1 : index + 3] if token.keyword != "AS"]
        if table.name in tables and after and after[0].name == name:
            return table.name
    return ""


def _matching(word: str, choices: Iterable[str]) -> list[str]:
    return [choice for choice in choices if choice.lower().startswith(word.lower())]


def _names(word: str, names: Iterable[str]) -> list[str]:
    """Return the names that begin with `word`. Names that need quotes in SQL get quotes."""
    found = _matching(word.strip('"'), names)
    return [name if _PLAIN.fullmatch(name) else quoted(name) for name in found]
