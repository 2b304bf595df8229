"""SQL over the tables of a store: `db.sql("…")`, `tx.sql("…")`.

    session.py     cuts a text into statements, and gives each to the package that executes it
        |
        |  select/     one SELECT by DuckDB over Nyala's scans, or a look-up by key
        |  change/     INSERT, UPDATE, DELETE, MERGE: SELECTs whose rows are written as one batch
        |  define/     CREATE, ALTER and DROP TABLE
        |  describe/   DESCRIBE, SHOW and information_schema, by a copy of the catalogue
        |  files/      COPY, files, objects of the program, other stores
        v
    result.py      the rows in every form

DuckDB's parser says what is valid, `tokens.py` finds the clauses, and DuckDB evaluates the
expressions. Nyala reads and writes the rows.

Source: docs/how-to/sql.md; docs/design/sql-and-polars.md.
"""
