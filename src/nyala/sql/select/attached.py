"""Rewrites the names of tables of attached stores in a SELECT: `FROM other.t`.

A scan of the table is registered in DuckDB under a new name, and the text gets this name: `FROM other.t` becomes
`FROM "other.t@store" AS "t"`, and a column `other.t.k` becomes `"t".k`. If the statement also reads a table `t` of
its own store, the alias is "other.t".

Source: docs/how-to/sql.md, "Other stores".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from nyala.errors import TableNotFoundError
from nyala.sql.names import spelled
from nyala.sql.select.moments import NO_NAMES
from nyala.sql.tokens import Token, quoted, replaced, tokens
from nyala.suggestion import nearest

if TYPE_CHECKING:
    from nyala.api.database import Database
    from nyala.api.engine_scan import EngineScan

__all__ = ["read_attached"]

_BEFORE_TABLE: Final = frozenset(
    ("FROM", "JOIN", "USING", "TABLE", "SUMMARIZE", "DESCRIBE", "PIVOT", "UNPIVOT")
)
_MAYBE_TABLE: Final = frozenset((",", "("))


def read_attached(attached: Mapping[str, Database], text: str) -> tuple[str, dict[str, EngineScan]]:
    """Return (the rewritten statement, the scans by their names in it).

    attached: the other stores by name.
    Raises: TableNotFoundError.
    """
    found = tokens(text)
    own = {
        token.name.lower()
        for place, token in enumerate(found)
        if token.is_identifier
        and _keyword(found, place - 1) in _BEFORE_TABLE | {","}
        and _keyword(found, place + 1) != "."
    }
    aliases = {
        token.name.lower()
        for place, token in enumerate(found)
        if token.is_identifier and _keyword(found, place + 1) != "." and _follows_table(found, place)
    }
    edits: list[tuple[int, int, str]] = []
    scans: dict[str, EngineScan] = {}
    for place, token in enumerate(found[:-2]):
        store = token.name.lower() if token.is_identifier else ""
        following = found[place + 2]
        if store not in attached or _keyword(found, place + 1) != "." or not following.is_identifier:
            continue
        before, after = _keyword(found, place - 1), _keyword(found, place + 3)
        if before == "." or after == "(":
            continue
        names = attached[store].list_tables()
        table = spelled(following.name, names)
        is_column = after == "."
        if table not in names:
            if before not in _BEFORE_TABLE or is_column:
                continue
            hint = nearest(following.name, names)
            raise TableNotFoundError(
                f"the attached store {token.name!r} has no table {following.name!r}"
                + (f": did you mean {hint!r}?" if hint else "")
            )
        alias = quoted(f"{store}.{table}" if table.lower() in own else table)
        if is_column:
            edits.append((token.begin, following.end, alias))
        elif before in _BEFORE_TABLE or (before in _MAYBE_TABLE and store not in aliases):
            made = f"{store}.{table}@store"
            if made not in scans:
                scans[made] = attached[store]._snapshot(None)[table].scan()._engine()
            given = "" if _has_alias(found, place + 3) else f" AS {alias}"
            edits.append((token.begin, following.end, quoted(made) + given))
    return replaced(text, edits), scans


def _follows_table(found: Sequence[Token], place: int) -> bool:
    """Whether the token may be an alias: it is behind AS, a name, or a closing parenthesis."""
    before = found[place - 1] if place else None
    return before is not None and (before.keyword in ("AS", ")") or before.is_identifier)


def _keyword(found: Sequence[Token], place: int) -> str:
    return found[place].keyword if 0 <= place < len(found) else ""


def _has_alias(found: Sequence[Token], place: int) -> bool:
    if place >= len(found):
        return False
    return found[place].keyword == "AS" or (
        found[place].is_identifier and found[place].keyword not in NO_NAMES
    )
