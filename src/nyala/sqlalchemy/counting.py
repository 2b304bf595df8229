"""Gives the next values of an integer key, for inserts without a key.

A store gives values only to its own column `auto_incrementing_id`. For any other integer key, the
first call reads the greatest value that the transaction sees, and returns the values after it. Later
calls only check whether a greater value exists, which costs less. All connections of a process get
different values. Two processes that insert into one table at the same time can get the same value.
Then the second commit raises an error, and the program must run that transaction again.

Source: docs/reference/sqlalchemy.md, "Autoincrement keys".
"""

from __future__ import annotations

import threading
from typing import Any, Final

from nyala.dbapi import Connection
from nyala.sql.tokens import quoted

_LOCK: Final = threading.Lock()
# The last value that was given, by the ids of store and table.
_LAST: Final[dict[tuple[str, int], int]] = {}


def take(connection: Connection, table: str, column: str, count: int) -> range:
    """Reserve and return `count` new values for an integer key column.

    The values are greater than every value that exists in the column or was reserved before.
    """
    database = connection.database
    key = database._store.store_id, database._root().table(table).id
    greatest = _LAST.get(key)
    if greatest is None or connection._has_greater(table, column, greatest):
        found = connection.execute(f"SELECT max({quoted(column)}) FROM {quoted(table)}").fetchone()
        greatest = (found[0] if found else None) or 0
    with _LOCK:
        first = max(greatest, _LAST.get(key, 0)) + 1
        _LAST[key] = first + count - 1
    return range(first, first + count)


def with_values(
    connection: Connection, column: Any, names: list[str], rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the rows of parameters with values for missing integer keys.

    The new values are greater than every value that exists in the key column or was given before.

    connection: used to read the greatest stored value of the key.
    column: the key column.
    names: the names of the parameters for the key. There are several names if one INSERT has several
        rows of VALUES: one for each row. A value is missing if it is None or not in the parameters.
    rows: the parameters of each execution, by name.
    """
    missing = sum(row.get(name) is None for row in rows for name in names)
    values = iter(take(connection, column.table.name, column.name, missing))
    return [row | {name: next(values) for name in names if row.get(name) is None} for row in rows]
