"""Predicates: the condition of `where=`, checked against a table and ready to be evaluated.

    "host = 'a' AND n < 2.5"  or  (col("host") == "a") & (col("n") < 2.5)
        |  parser.py, nodes.py       reads the text, or takes the tree that Python operators built
        v
    bind(where, schema)              checks names, converts literals to column types (binding.py, literals.py)
        |
        |- .evaluate(arrays, n)      a mask of the rows in which it is TRUE (evaluate.py, like.py, values.py)
        |- .constraints()            the values that it allows per column, to skip blocks (constraint.py)
        |- .column_tests, .rest      one filter per column, and the terms that need several columns (column_test.py)
        '- str(), .to_json()         text for another process (nodes.py, nodes_json.py)

Invariants
    P1  A predicate selects exactly the rows in which it is TRUE. A comparison with NULL is not
        TRUE.
    P2  A zone of rows, such as a block, that the constraints exclude contains no selected row.
    P3  bind(str(p), schema) == p and BoundPredicate.from_json(p.to_json(), schema) == p for every
        predicate p without a pyarrow expression.

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
from nyala.schema.expressions.evaluate import Arrays, Bound, BoundAnd, has_arrow
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
    """Return `where` unchanged if `params` is None; otherwise parse the text with these parameters.

    Raises: InvalidArgumentError for invalid text or parameters, and for `params` with a `where`
    that is not text.
    """
    if params is None:
        return where
    if not isinstance(where, str):
        raise InvalidArgumentError("params= needs a where= text: where=\"host = ?\", params=['a']")
    return parse_predicate(where, params)


def bind(where: str | Node | Expr | pc.Expression | None, schema: Schema) -> BoundPredicate | None:
    """Check a user's `where` against a schema, and return the predicate; None stays None.

    Raises: InvalidArgumentError for an invalid text or literal, ColumnNotFoundError, SchemaError
    for a literal of another type than its column.
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
    """A predicate on the columns of one schema. Immutable, thread-safe; equal if the texts are
    equal.

    columns: the names of the columns that `evaluate` reads.
    tree:    the syntax tree, with literals in their canonical form.
    """

    def __init__(self, tree: Node, schema: Schema) -> None:
        nodes.check_depth(tree)
        self.tree = binding.bind_condition(tree, schema)
        self._bound: Bound = binding.build_condition(self.tree, schema)
        self.columns: frozenset[str] = self._bound.columns
        self._columns = tuple(schema.by_name(name) for name in sorted(self.columns))
        self._types = tuple((column.name, column.type) for column in self._columns)

    def evaluate(self, arrays: Arrays, n: int) -> Mask:
        """Return a new mask of the n rows in which the predicate is TRUE.

        arrays: at least the `columns`, by name, as Arrow arrays of n values in their canonical type
                or dictionary-encoded. A column is looked up when it is needed, so the mapping may
                decode it then.
        Cost:   one or two NumPy or Arrow calls per comparison.
        """
        mask = self._bound.mask(arrays, n)
        assert len(mask) == n, f"arrays of {len(mask)} rows where n is {n}"
        return mask

    def constraints(self) -> Mapping[str, Constraint]:
        """Return the constraints by column name, without columns that may have any value.

        If the predicate selects no row at all, all its columns have the empty constraint.
        """
        return self._constraints

    @lazy_value
    def _constraints(self) -> dict[str, Constraint]:
        found = self._derived
        return dict.fromkeys(sorted(nodes.column_names_in(self.tree)), EMPTY) if found is None else found

    @lazy_value
    def has_exact_constraints(self) -> bool:
        """Whether the constraints together mean the same as the predicate: an AND of ranges and IN
        lists.
        """
        return all(map(has_exact_constraint, self._terms))

    @property
    def column_tests(self) -> tuple[ColumnTest, ...]:
        """The conditions of the predicate that use only one column each, the cheapest first.

        A row satisfies the predicate if it satisfies all of them, and `rest`.
        """
        return self._split[0]

    @property
    def rest(self) -> Bound | None:
        """The AND of the terms that are not in `column_tests`: they use several columns, or may fail."""
        return self._split[1]

    @lazy_value
    def _split(self) -> tuple[tuple[ColumnTest, ...], Bound | None]:
        return split_by_column(self._terms, self._constraints, self._columns)

    @property
    def _terms(self) -> tuple[Bound, ...]:
        return self._bound.parts if isinstance(self._bound, BoundAnd) else (self._bound,)

    @property
    def selects_none(self) -> bool:
        """Whether it is known that the predicate selects no row, such as a < 1 AND a > 2."""
        return self._derived is None

    @lazy_value
    def _derived(self) -> dict[str, Constraint] | None:
        return binding.derive_constraints(self._bound)

    @property
    def null_note(self) -> str:
        """Advice for a user who compares a column with NULL, which selects no row; otherwise an
        empty text.
        """
        column = next(_compared_with_null(self.tree), None)
        return "" if column is None else f"nothing equals NULL; use {column} IS NULL to find NULLs"

    @property
    def prunes(self) -> bool:
        """Whether the predicate has constraints, by which scans can skip data."""
        return self.selects_none or bool(self._constraints)

    @property
    def has_arrow_expression(self) -> bool:
        """Whether a part is a pyarrow expression, which has no constraints and no text."""
        return has_arrow(self._bound)

    def to_json(self) -> str:
        """Return one line of JSON that `from_json` reads. Raises: InvalidArgumentError for a
        pyarrow expression.
        """
        return to_json(self.tree)

    @staticmethod
    def from_json(text: str, schema: Schema) -> BoundPredicate:
        """Read the text of `to_json`. Raises: InvalidArgumentError for any other text, and the
        errors of `bind`.
        """
        return BoundPredicate(from_json(text), schema)

    def __str__(self) -> str:
        return str(self.tree)

    def __repr__(self) -> str:
        return f"BoundPredicate({str(self)!r})"

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, BoundPredicate):
            return NotImplemented
        # Texts are compared and not trees, so that predicates with NaN are equal.
        same = str(self) == str(other) and self._types == other._types
        return same and (not self.has_arrow_expression or self.tree == other.tree)

    def __hash__(self) -> int:
        return hash((str(self), self._types))


def _compared_with_null(node: Node) -> Iterator[str]:
    """Yield the text of each operand that the tree compares with NULL."""
    if isinstance(node, nodes.Compare) and node.right == Literal(None):
        yield str(node.left)
    if isinstance(node, nodes.And | nodes.Or | nodes.Not):
        for part in nodes.children_of(node):
            yield from _compared_with_null(part)
