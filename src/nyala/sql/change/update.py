"""UPDATE, DELETE and TRUNCATE.

    UPDATE t SET v = v + 1 FROM f WHERE w   ──►  SELECT key, v + 1 FROM t, f WHERE w   ──►  update
    … SET key = …                           ──►  SELECT old key, all new columns       ──►  delete, insert
    DELETE FROM t USING u WHERE w           ──►  SELECT DISTINCT key FROM t, u WHERE w ──►  delete

If several rows of FROM match one row of the table, one of them is used, as in PostgreSQL and DuckDB.
"""

from __future__ import annotations

from nyala.sql.change.assigned import Assigned
from nyala.sql.change.change import Change, Plan
from nyala.sql.change.matching import change_by_source, selected
from nyala.sql.change.per_row import check_no_window
from nyala.sql.change.target import Statement, assignments, find_target, returned
from nyala.sql.context import Source
from nyala.sql.tokens import TokenReader
from nyala.tablet.write.write_path import Request

__all__ = ["plan_delete", "plan_update"]


def plan_update(statement: Statement, text: str) -> Plan:
    """Return the plan of `UPDATE t [AS a] SET … [FROM …] [WHERE …] [RETURNING …]`."""

    def plan(source: Source) -> Change:
        reader = TokenReader(text)
        reader.need("UPDATE")
        target = find_target(reader, source, ("SET",))
        reader.need("SET")
        values = assignments(reader, target, ("FROM",), ("WHERE",), ("RETURNING",))
        others = reader.until(("WHERE",), ("RETURNING",)) if reader.take("FROM") else ""
        for name in values if others else ():
            check_no_window(values[name], f"SET {name} of UPDATE … FROM")
        where = reader.until(("RETURNING",)) if reader.take("WHERE") else ""
        returning = reader.rest() if reader.take("RETURNING") else None
        if returning is None and not any(key in values for key in target.keys):
            found = change_by_source(statement, source, target, values, others, where)
            if found is not None:
                return found
        assigned = Assigned(target, values, returning is not None)
        rows = selected(statement, source, target, assigned.listed, others, where)
        new = rows.select(assigned.names)
        return Change(
            assigned.requests(statement, source, rows),
            rows.num_rows,
            returned(statement, source, target, returning, new),
        )

    return plan


def plan_delete(statement: Statement, text: str) -> Plan:
    """Return the plan of `DELETE FROM t [AS a] [USING …] [WHERE …] [RETURNING …]` and of `TRUNCATE [TABLE] t`."""

    def plan(source: Source) -> Change:
        reader = TokenReader(text)
        if reader.take("TRUNCATE"):
            reader.take("TABLE")
        else:
            reader.need("DELETE", "FROM")
        target = find_target(reader, source, ("USING", "WHERE", "RETURNING"))
        others = reader.until(("WHERE",), ("RETURNING",)) if reader.take("USING") else ""
        where = reader.until(("RETURNING",)) if reader.take("WHERE") else ""
        returning = reader.rest() if reader.take("RETURNING") else None
        reader.finish()
        if returning is None:
            found = change_by_source(statement, source, target, {}, others, where)
            if found is not None:
                return found
        names = target.keys if returning is None else target.columns
        rows = selected(statement, source, target, target.of_alias(names), others, where)
        return Change(
            [Request(target.table, "delete", rows.select(target.keys))],
            rows.num_rows,
            returned(statement, source, target, returning, rows),
        )

    return plan
