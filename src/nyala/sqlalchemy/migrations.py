"""What Alembic emits for a store. Each change of a table is committed by itself.

Source: docs/reference/sqlalchemy.md, "Alembic".
"""

from __future__ import annotations

from alembic.ddl.impl import DefaultImpl

__all__ = ["NyalaImpl"]


class NyalaImpl(DefaultImpl):
    """Alembic's implementation for the dialect `nyala`."""

    __dialect__ = "nyala"
    transactional_ddl = False
