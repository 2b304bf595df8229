"""Predicates: binds a `where=` condition to a table, evaluates it, and derives constraints for pruning.

    "host = 'a' AND n < 2.5"  or  (col("host") == "a") & (col("n") < 2.5)
        |  parser.py, nodes.py       the syntax tree, the same as that of expressions
        v
    bind(where, schema)              resolves names, converts literals to column types (binding.py, literals.py)
        |
        |- .evaluate(arrays, n)      a mask of the rows that are TRUE (evaluate.py, like.py, values.py)
        |- .constraints()            conditions for skipping partitions, rowsets and blocks (constraint.py)
        |- .column_tests, .rest      filters of single columns, and the rest (column_test.py)
        '- str(), .to_json()         text for another process (nodes.py, nodes_json.py)

Invariants
    P1  A row is selected if and only if the predicate is TRUE: a comparison with NULL never selects a row.
    P2  A zone that `constraints()` exclude contains no selected row.
    P3  bind(str(p), schema) == p and BoundPredicate.from_json(p.to_json(), schema) == p, unless p holds a
        pyarrow expression.

Source: docs/how-to/expressions.md; Kudu's ColumnPredicate and ScanSpec.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nyala import compute as pc
from nyala.errors import InvalidArgumentError
from nyala.lazy_values import LazyValues, lazy_value
from nyala.schema.arrow_values import Mask
from nyala.schema.expressions import nodes
from nyala.schema.expressions.evaluate import Arrays, Bound, BoundAnd, BoundConstant, has_arrow
from nyala.schema.expressions.literals import quote
from nyala.schema.expressions.nodes import Expr, Literal, Node, col
from nyala.schema.expressions.nodes_json import from_json, to_json
from nyala.schema.expressions.parser import Parameters, expr, parse_predicate
from nyala.schema.predicates import binding
from nyala.schema.predicates.column_test import ColumnTest, has_exact_constraint, split_by_column
from nyala.schema.predicates.constraint import EMPTY, Constraint
from nyala.schema.schema import Schema

__all__ = ["BoundPredicate", "Constraint", "bind", "col", "expr", "from_json", "parse_where", "to_json"]


def parse_where(where: Any, params: Parameters) -> Any:
    """Return `where` with the values of `params` filled in.

    Raises: InvalidArgumentError, also when `params` is given and `where` is not text.
    """
    if params is None:
        return where
    if not isinstance(where, str):
        raise InvalidArgumentError("params= needs a where= text: where=\"host = ?\", params=['a']")
    return parse_predicate(where, params)


def bind(where: str | Node | Expr | pc.Expression | None, schema: Schema) -> BoundPredicate | None:
    """Bind a user's `where` to a schema; None gives None.

    Raises: InvalidArgumentError for invalid text or a malformed literal, ColumnNotFoundError,
    SchemaError for a literal of another type than its column.
    """
    if where is None:
        return None
    if isinstance(where, str):
        where = parse_predicate(where)
    if not isinstance(where, Node | Expr | pc.Expression):
        raise InvalidArgumentError(
            "where must be text such as \"host = 'a' AND time >= 5\", a condition made with nyala.col(...), or a "
            f"pyarrow.compute.Expression, got {quote(where)}"
        )
    return BoundPredicate(nodes.as_node(where), schema)


class BoundPredicate(LazyValues):
    """A predicate bound to one schema. Immutable, thread-safe; equal if the canonical texts are equal.

    `columns` are the columns that `evaluate` reads; `tree` is the syntax tree with canonical literals.
    """

    def __init__(self, tree: Node, schema: Schema) -> None:
        nodes.check_depth(tree)
        self.tree = binding.bind_condition(tree, schema)
        self._bound: Bound = binding.build_condition(self.tree, schema)
        self.columns: frozenset[str] = self._bound.columns
        self._columns = tuple(schema.by_name(name) for name in sorted(self.columns))
        self._types = tuple((column.name, column.type) for column in self._columns)

    def evaluate(self, arrays: Arrays, n: int) -> Mask:
        """Return a new mask of the n rows that are TRUE.

        arrays: column name to Arrow array of n canonical or dictionary-encoded values, at least for `columns`.
                Arrays are looked up when needed, so the mapping may decode lazily.
        Cost:   one or two NumPy or Arrow calls per comparison.
        """
        mask = self._bound.mask(arrays, n)
        assert len(mask) == n, f"arrays of {len(mask)} rows where n is {n}"
        return mask

    def constraints(self) -> Mapping[str, Constraint]:
        """Return the constraint of each column that has one.

        If no row can be selected (`empty`), every column of the predicate has the empty constraint.
        """
        return self._constraints

    @lazy_value
    def _constraints(self) -> dict[str, Constraint]:
        found = self._derived
        return dict.fromkeys(sorted(nodes.column_names_in(self.tree)), EMPTY) if found is None else found

    @lazy_value
    def has_exact_constraints(self) -> bool:
        """Whether the predicate equals its constraints: an AND of ranges and value lists of single columns."""
        return all(map(has_exact_constraint, self._terms))

    @property
    def column_tests(self) -> tuple[ColumnTest, ...]:
        """The tests of single columns, cheapest first."""
        return self._split[0]

    @property
    def rest(self) -> Bound | None:
        """The terms beyond `column_tests`: those that use several columns, or functions that may fail."""
        return self._split[1]

    @lazy_value
    def _split(self) -> tuple[tuple[ColumnTest, ...], Bound | None]:
        return split_by_column(self._terms, self._constraints, self._columns)

    @property
    def _terms(self) -> tuple[Bound, ...]:
        """The terms of the AND."""
        return self._bound.parts if isinstance(self._bound, BoundAnd) else (self._bound,)

    @property
    def selects_none(self) -> bool:
        """Whether no row of any table can be selected."""
        return self._derived is None

    @lazy_value
    def _derived(self) -> dict[str, Constraint] | None:
        return binding.derive_constraints(self._bound)

    @property
    def selects_all(self) -> bool:
        """Whether every row is selected."""
        return self._bound == BoundConstant(True)

    @property
    def null_note(self) -> str:
        """Advice if the predicate compares a column with NULL, which never matches; otherwise empty."""
        column = next(_compared_with_null(self.tree), None)
        return "" if column is None else f"nothing equals NULL; use {column} IS NULL to find NULLs"

    @property
    def prunes(self) -> bool:
        """Whether a scan can skip data with it."""
        return self.selects_none or bool(self._constraints)

    @property
    def has_arrow_expression(self) -> bool:
        """Whether a part is a pyarrow expression, which cannot prune and has no text form."""
        return has_arrow(self._bound)

    def to_json(self) -> str:
        """Return one line of JSON; `from_json` reads it. Raises: InvalidArgumentError for a pyarrow expression."""
        return to_json(self.tree)

    @staticmethod
    def from_json(text: str, schema: Schema) -> BoundPredicate:
        """Read the text of `to_json`. Raises: as `bind`, and InvalidArgumentError for any other text."""
        return BoundPredicate(from_json(text), schema)

    def __str__(self) -> str:
        return str(self.tree)

    def __repr__(self) -> str:
        return f"BoundPredicate({str(self)!r})"

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, BoundPredicate):
            return NotImplemented
        # Compares the texts, not the trees, so that NaN literals are equal (E3).
        same = str(self) == str(other) and self._types == other._types
        return same and (not self.has_arrow_expression or self.tree == other.tree)

    def __hash__(self) -> int:
        return hash((str(self), self._types))


def _compared_with_null(node: Node) -> Iterator[str]:
    """Yield the texts of operands that are compared with NULL."""
    if isinstance(node, nodes.Compare) and node.right == Literal(None):
        yield str(node.left)
    if isinstance(node, nodes.And | nodes.Or | nodes.Not):
        for part in nodes.children_of(node):
            yield from _compared_with_null(part)
