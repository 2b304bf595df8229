"""Turns the assignments of SET into a SELECT that computes the changed rows, and into the writes of these rows.

    SET v = …       SELECT key, v                     then update
    SET key = …     SELECT old key, all columns       rows whose key changes: delete, then insert
                                                      rows whose key stays: update

All keys change at once, so a row can take the key that another row gives up.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from nyala import compute as pc
from nyala.sql.change.target import Statement, Target
from nyala.sql.tokens import quoted
from nyala.tablet.write.write_path import Request

_ORDER = ("delete", "update", "insert", "upsert")


@dataclass(frozen=True)
class Assigned:
    """The assignments of SET on one table.

    sets: expressions by column.
    all_columns: also compute the columns that do not change, for RETURNING.
    """

    target: Target
    sets: Mapping[str, str]
    all_columns: bool

    @property
    def moves(self) -> bool:
        """Whether SET changes a key column."""
        return any(key in self.sets for key in self.target.keys)

    @property
    def names(self) -> list[str]:
        """The names of the columns whose new values the SELECT computes."""
        return self.target.columns if self.moves or self.all_columns else [*self.target.keys, *self.sets]

    @property
    def listed(self) -> str:
        """The text between SELECT and FROM, which computes the new values of the columns in `names`.

        If SET changes a key column, the text also computes the old keys, which identify the stored rows.
        """
        target = self.target
        items = [
            f"{self.sets[name]} AS {quoted(name)}" if name in self.sets else target.alias_of(name)
            for name in self.names
        ]
        if self.moves:
            items += [f"{target.alias_of(key)} AS {quoted(self._old(key))}" for key in target.keys]
        return ", ".join(items)

    def old_keys(self, rows: pa.Table) -> pa.Table:
        """Return the keys that the rows had before the change."""
        keys = self.target.keys
        if not self.moves:
            return rows.select(keys)
        return rows.select([self._old(key) for key in keys]).rename_columns(keys)

    def _old(self, key: str) -> str:
        """Return the name of the column for the old values of a key column.

        The SELECT that computes the new values of the changed rows also returns this column.
        key: the name of the key column.
        """
        return self.target.unused(f"old {key}")

    def requests(self, statement: Statement, rows: pa.Table) -> list[Request]:
        """Return the operations that write the computed rows, deletes first."""
        target = self.target
        values = [name for name in self.sets if name not in target.keys]
        if not self.moves:
            return [Request(target.table, "update", rows.select([*target.keys, *values]))]
        stays = functools.reduce(
            pc.and_, [pc.equal(rows.column(key), rows.column(self._old(key))) for key in target.keys]
        )
        stays = pc.fill_null(stays, False)
        some_stay = bool(pc.any(stays).as_py())
        moved = rows.filter(pc.invert(stays)) if some_stay else rows
        requests = self._moved(statement, moved)
        if some_stay and values:
            kept = rows.filter(stays).select([*target.keys, *values])
            requests.append(Request(target.table, "update", kept))
        return in_order(requests)

    def _moved(self, statement: Statement, rows: pa.Table) -> list[Request]:
        """Return the delete, update and insert operations that move rows to their new keys.

        A few rows are deleted by their old keys, and inserted with their new keys.

        Many rows are committed in parts, which allows only one operation on each key. Assume that
        row A moves from key 1 to key 2, and row B from key 2 to key 3. Then the operations are:
        delete key 1, update key 2 to the values of A, and insert B with key 3.
        """
        target, keys = self.target, self.target.keys
        in_parts = target.schema.auto_increment is None and statement.are_many(rows)
        if not (in_parts and statement.are_distinct(rows, keys)):
            return [
                Request(target.table, "delete", self.old_keys(rows)),
                Request(target.table, "insert", rows.select(target.insert_columns)),
            ]
        name = target.unused("moved")
        same = " AND ".join(f"new.{quoted(key)} = old.{quoted(self._old(key))}" for key in keys)
        old = ", ".join(f"old.{quoted(self._old(key))} AS {quoted(key)}" for key in keys)
        new = ", ".join(f"new.{quoted(column)}" for column in target.columns)

        def pairs(listed: str, first: str, join: str, second: str) -> pa.Table:
            text = f"SELECT {listed} FROM {name} AS {first} {join} JOIN {name} AS {second} ON {same}"
            return statement.rows_of_objects(text, {name: rows})

        return [
            Request(target.table, "delete", pairs(old, "old", "ANTI", "new")),
            Request(target.table, "update", pairs(new, "new", "SEMI", "old"), sets_immutable=True),
            Request(target.table, "insert", pairs(new, "new", "ANTI", "old")),
        ]


def in_order(requests: Iterable[Request]) -> list[Request]:
    """Return the operations with deletes first, so that an insert can use a key that another clause deletes."""
    return sorted(requests, key=lambda request: _ORDER.index(request.operation))
