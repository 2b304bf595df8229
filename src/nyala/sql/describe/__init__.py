"""DESCRIBE, SHOW and EXPLAIN, and SELECT over `information_schema`.

    statement.py    executes these statements
    listings.py     SHOW: lists tables, commits, tags, partitions and more
    explain.py      EXPLAIN

`sql/select/catalogue.py` answers DESCRIBE and `information_schema`: an empty DuckDB has tables with
the same definitions as the store's tables.

Source: docs/how-to/sql.md.
"""
