"""Rewrites the names of tables of attached stores in a SELECT: `FROM other.t`.

A scan of the table is registered in DuckDB under a new name, and the text gets this name: `FROM
other.t` becomes `FROM "other.t@store" AS "t"`, and a column `other.t.k` becomes `"t".k`. If the
statement also reads a table `t` of its own store, the alias is "other.t".

Source: docs/how-to/sql.md, "Other stores".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nyala.errors import TableNotFoundError
from nyala.sql.names import spelled
from nyala.sql.select.moments import tables_in
from nyala.sql.tokens import quoted, replaced, tokens
from nyala.suggestion import nearest

if TYPE_CHECKING:
    from nyala.api.database import Database
    from nyala.api.engine_scan import EngineScan


def read_attached(attached: Mapping[str, Database], text: str) -> tuple[str, dict[str, EngineScan]]:
    """Replace the tables of attached stores in a statement by new names.

    Returns (the new text, the scans of these tables by their new names).
    attached: the other stores by name.
    Raises: TableNotFoundError.
    """
    named = tables_in(text)
    own = {each.names[0].lower() for each in named if len(each.names) == 1}
    edits: list[tuple[int, int, str]] = []
    scans: dict[str, EngineScan] = {}
    aliases: dict[tuple[str, str], str] = {}
    for each in named:
        store = each.names[0].lower()
        if len(each.names) != 2 or store not in attached:
            continue
        names = attached[store].list_tables()
        table = spelled(each.names[1], names)
        if table not in names:
            hint = nearest(table, names)
            raise TableNotFoundError(
                f"the attached store {each.names[0]!r} has no table {table!r}"
                + (f": did you mean {hint!r}?" if hint else "")
            )
        alias = quoted(f"{store}.{table}" if table.lower() in own else table)
        aliases[store, table.lower()] = alias
        made = f"{store}.{table}@store"
        if made not in scans:
            scans[made] = attached[store]._snapshot(None)[table].scan()._engine()
        edits.append((each.begin, each.end, quoted(made) + ("" if each.has_alias else f" AS {alias}")))
    found = tokens(text)
    for place in range(len(found) - 3):  # store . table . column
        store_token, table_token = found[place], found[place + 2]
        alias = aliases.get((store_token.name.lower(), table_token.name.lower()), "")
        is_column = found[place + 1].text == found[place + 3].text == "."
        if alias and is_column and not (place and found[place - 1].text == "."):
            edits.append((store_token.begin, table_token.end, alias))
    return replaced(text, edits), scans
