"""SQL over the tables of a store: `db.sql("…")`, `tx.sql("…")`.

    session.py     divides a text into statements; the package for its first keyword executes each
        |
        |  select/     one SELECT: DuckDB runs it over Nyala's scans, or the rows are looked up by key
        |  change/     INSERT, UPDATE, DELETE, MERGE: SELECTs whose rows are written as one batch
        |  define/     CREATE, ALTER and DROP TABLE
        |  describe/   DESCRIBE, SHOW, EXPLAIN and information_schema
        |  files/      COPY, ATTACH and DETACH
        v
    result.py      the rows, as tuples, Arrow, pandas or polars

DuckDB's parser decides what is valid, `tokens.py` finds the clauses, and DuckDB evaluates the
expressions. Nyala reads and writes the rows.

Source: docs/how-to/sql.md; docs/design/sql-and-polars.md.
"""
