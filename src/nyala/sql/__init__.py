"""SQL over the tables of a store, by DuckDB: `db.sql("SELECT …")`, `snapshot.sql(…)`.

    run(snapshot, text)
        |  statement.py    one SELECT and nothing else; which tables it names
        |  connection.py   a private DuckDB in memory that can reach no file and whose settings are locked
        |  closing.py      when cursors of it are closed that nobody has any more
        v
    Result                 result.py: runs the statement, whenever its rows are asked for, always at one moment
        |
        |  partners.py     which tables a statement joins by which columns
        |  source.py       DuckDB asks each table for columns and predicates; Nyala's scan answers with Arrow batches
        v
    errors.py              what DuckDB says against a statement, in our errors

DuckDB parses, plans and joins; Nyala reads. What DuckDB pushes into a table's scan, partitions, key bounds, zone maps
and column choice work on as they do for `table.scan(columns=…, where=…)`.

Source: docs/how-to/sql.md; docs/design/sql-and-polars.md, "DuckDB plans, Nyala reads".
"""

from __future__ import annotations

from nyala.sql.result import Result, run

__all__ = ["Result", "run"]
