"""UPDATE, DELETE and TRUNCATE: a SELECT finds the rows, and a write by key changes them.

    UPDATE t SET v = v + 1 FROM f WHERE w       SELECT key, v + 1 FROM t, f WHERE w       then update
    UPDATE t SET key = … WHERE w                SELECT old key, all columns … WHERE w     then delete and insert
    DELETE FROM t USING u WHERE w               SELECT DISTINCT key FROM t, u WHERE w     then delete

If several rows of FROM match one row of the table, one of them is used, as in PostgreSQL and
DuckDB.
"""

from __future__ import annotations

from nyala.sql.change.assigned import Assigned
from nyala.sql.change.change import Change
from nyala.sql.change.matching import change_by_source, selected
from nyala.sql.change.per_row import check_no_window
from nyala.sql.change.target import Statement, assignments, find_target, returned
from nyala.sql.tokens import TokenReader
from nyala.tablet.write.write_path import Request


def compute_update(statement: Statement, text: str) -> Change:
    """Return the `Change` of `UPDATE t [AS a] SET … [FROM …] [WHERE …] [RETURNING …]`.

    statement: the whole statement, with the snapshot or transaction that it reads.
    text: the statement without its WITH clause, and without schemas before table names.
    """
    reader = TokenReader(text)
    reader.need("UPDATE")
    target = find_target(reader, statement.source, ("SET",))
    reader.need("SET")
    values = assignments(reader, target, ("FROM",), ("WHERE",), ("RETURNING",))
    others = reader.until(("WHERE",), ("RETURNING",)) if reader.take("FROM") else ""
    for name in values if others else ():
        check_no_window(values[name], f"SET {name} of UPDATE … FROM")
    where = reader.until(("RETURNING",)) if reader.take("WHERE") else ""
    returning = reader.rest() if reader.take("RETURNING") else None
    assigned = Assigned(target, values, returning is not None)
    if returning is None and not assigned.moves:
        found = change_by_source(statement, target, values, others, where)
        if found is not None:
            return found
    rows = selected(statement, target, assigned.listed, others, where)
    return Change(
        assigned.requests(statement, rows),
        rows.num_rows,
        returned(statement, target, returning, rows.select(assigned.names)),
    )


def compute_delete(statement: Statement, text: str) -> Change:
    """Return the `Change` of `DELETE FROM t [AS a] [USING …] [WHERE …] [RETURNING …]` or `TRUNCATE [TABLE] t`.

    statement: the whole statement, with the snapshot or transaction that it reads.
    text: the statement without its WITH clause, and without schemas before table names.
    """
    reader = TokenReader(text)
    if reader.take("TRUNCATE"):
        reader.take("TABLE")
    else:
        reader.need("DELETE", "FROM")
    target = find_target(reader, statement.source, ("USING", "WHERE", "RETURNING"))
    others = reader.until(("WHERE",), ("RETURNING",)) if reader.take("USING") else ""
    where = reader.until(("RETURNING",)) if reader.take("WHERE") else ""
    returning = reader.rest() if reader.take("RETURNING") else None
    reader.finish()
    if returning is None:
        found = change_by_source(statement, target, {}, others, where)
        if found is not None:
            return found
    names = target.keys if returning is None else target.columns
    rows = selected(statement, target, target.aliases_of(names), others, where)
    return Change(
        [Request(target.table, "delete", rows.select(target.keys))],
        rows.num_rows,
        returned(statement, target, returning, rows),
    )
