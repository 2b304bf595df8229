"""sqlglot, which is imported when the first statement is looked at, and the scopes of its trees."""

from __future__ import annotations

from typing import Any, TypeAlias

__all__ = ["Node", "scopes_of", "sqlglot"]

Node: TypeAlias = Any
"""A node of sqlglot's syntax tree: it is imported only when it is needed."""


def sqlglot() -> Any:
    """The package, with the parts that are used here. Raises: ImportError, which says what to install."""
    try:
        import sqlglot as found
        import sqlglot.errors
        import sqlglot.optimizer.pushdown_projections
        import sqlglot.optimizer.qualify
        import sqlglot.optimizer.scope
    except ImportError as error:
        raise ImportError("nyala.spark.sql needs sqlglot: pip install 'nyala[spark]'") from error
    return found


def scopes_of(tree: Node) -> list[Any]:
    """Each SELECT of it with its tables and columns, inner ones first."""
    return list(sqlglot().optimizer.scope.traverse_scope(tree))
