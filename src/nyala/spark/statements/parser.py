"""Imports sqlglot when the first statement needs it."""

from __future__ import annotations

from typing import Any, TypeAlias

__all__ = ["Node", "scopes_of", "sqlglot"]

Node: TypeAlias = Any
"""A node of sqlglot's syntax tree. The alias is `Any`, because sqlglot is imported late."""


def sqlglot() -> Any:
    """Return the module sqlglot, with its submodules. Raises ImportError, which says what to install."""
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
    """Return the scopes of the tree: each SELECT with its tables and columns, inner ones first."""
    return list(sqlglot().optimizer.scope.traverse_scope(tree))
