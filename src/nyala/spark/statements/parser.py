"""Imports sqlglot with the first statement, and returns the scopes of its trees."""

from __future__ import annotations

from typing import Any, TypeAlias

__all__ = ["Node", "scopes_of", "sqlglot"]

Node: TypeAlias = Any
"""A node of sqlglot's syntax tree. sqlglot is imported only when needed, so the alias is `Any`."""


def sqlglot() -> Any:
    """Return sqlglot with its used submodules imported. Raises: ImportError that says what to install."""
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
    """Return each SELECT of the tree with its tables and columns, inner ones first."""
    return list(sqlglot().optimizer.scope.traverse_scope(tree))
