"""A dialect of SQLAlchemy 2 for stores: `create_engine("nyala:///path")`.

    dialect.py       connections, options of the URL, reflection of tables
    compiler.py      compiles statements, CREATE TABLE and types to SQL
    migrations.py    operations of Alembic; imported if Alembic is installed
    counting.py      the next values of an integer key, for inserts without a key
    types.py         types that a store does not have: moments without a zone, times of day

Source: docs/reference/sqlalchemy.md.
"""

from __future__ import annotations

from nyala.sqlalchemy.compiler import Insert, insert
from nyala.sqlalchemy.dialect import NyalaDialect

__all__ = ["Insert", "NyalaDialect", "insert"]
