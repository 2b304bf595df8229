"""DESCRIBE, SHOW and EXPLAIN, and SELECT over `information_schema`.

    statement.py    chooses what answers a statement
    listings.py     SHOW: what the store itself knows, such as commits, tags and partitions
    catalogue.py    DESCRIBE and `information_schema`: an empty DuckDB with the tables' true definitions
    explain.py      EXPLAIN

Source: docs/how-to/sql.md.
"""
