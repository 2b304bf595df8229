"""A dialect of SQLAlchemy 2 for stores: `create_engine("nyala:///path")`.

    dialect.py       connections, options of the URL, reflection from the descriptions of tables
    compiler.py      text of statements, of CREATE TABLE and of types
    migrations.py    what Alembic needs, imported if Alembic is installed
    counting.py      keys that count up: the next numbers of a table
    types.py         values that a store has no type for: moments without a zone, times of day

Source: docs/reference/sqlalchemy.md.
"""

from __future__ import annotations

from nyala.sqlalchemy.compiler import Insert, insert
from nyala.sqlalchemy.dialect import NyalaDialect

__all__ = ["Insert", "NyalaDialect", "insert"]
