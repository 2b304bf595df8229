"""COPY reads and writes files; ATTACH and DETACH let a SELECT read the tables of another store.

Source: docs/how-to/sql.md, "Files".
"""
