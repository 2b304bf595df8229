"""Binds a tree to a table: checks names, converts literals to column types, and builds objects that
evaluate the tree.

    bind_node             tree -> tree         checks names, converts literals to the types of their columns
    build_condition       tree -> Bound        pushes NOT down; a Bound computes which rows are TRUE (`evaluate`)
    build_value           tree -> Value        a Value computes an expression such as n + 1 (`values`)
    derive_constraints    Bound -> Constraint  for each column, a condition that all selected rows satisfy

Invariants
    B1  A comparison with a literal that the column cannot hold becomes a comparison with a literal
        that it can hold, or a constant. For an int8, n < 300 becomes n IS NOT NULL, n = 300 becomes
        FALSE, and n < 2.5 becomes n <= 2.
    B2  For one column, all literals of the same value become the same canonical literal. So binding
        the text of a bound tree returns the same tree.
    B3  A row in which a condition is TRUE satisfies all its constraints.

Source: SQL:2016 part 2, 8.2 and 8.4. De Morgan's laws, by which NOT moves into AND and OR, hold for
NULL too.
"""

from __future__ import annotations

import decimal
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from nyala import compute as pc
from nyala.errors import ColumnNotFoundError, InvalidArgumentError, SchemaError
from nyala.schema.expressions import evaluate, literals, value_lists
from nyala.schema.expressions.arrow_tree import tree_of
from nyala.schema.expressions.evaluate import (
    Bound,
    BoundAnd,
    BoundArrow,
    BoundCompare,
    BoundCompareColumns,
    BoundConstant,
    BoundIn,
    BoundLike,
    BoundNot,
    BoundNull,
    BoundOr,
    BoundRowIn,
)
from nyala.schema.expressions.functions import FUNCTIONS, build_cast, concatenation, negation
from nyala.schema.expressions.like import parse_like, text_after_prefix
from nyala.schema.expressions.literals import (
    bytes_of_literal,
    float_of_literal,
    floor_of_literal,
    text_of_literal,
)
from nyala.schema.expressions.nodes import (
    LEVELS,
    OPERATORS,
    And,
    ArrowExpression,
    Call,
    Case,
    Cast,
    Column,
    Compare,
    InList,
    IsNull,
    IsTrue,
    Like,
    Literal,
    Node,
    Not,
    Or,
    Row,
    RowIn,
    all_of,
    any_of,
    column_names_in,
    compare,
    map_children,
)
from nyala.schema.expressions.values import (
    BoundCompareValues,
    BoundOnValue,
    CaseValue,
    ColumnValue,
    Condition,
    ConstantValue,
    Value,
    arithmetic,
    column_like,
    literal_scalar,
    unify,
)
from nyala.schema.predicates.constraint import ANY, EMPTY, NULL_ONLY, Constraint
from nyala.schema.schema import ColumnSchema, Schema
from nyala.schema.types import from_canonical

__all__ = ["bind_condition", "bind_node", "build_condition", "build_value", "derive_constraints"]

_NEGATED: Final = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
# Words that the parser takes for column names although users mean something else, and what to write
# in their place.
_ADVICE_ON_NAMES: Final = {
    "none": "nothing equals NULL; write IS NULL or IS NOT NULL",
    "nan": "write 'NaN', in quotes",
    "inf": "write 'Infinity', in quotes",
    "infinity": "write 'Infinity', in quotes",
}
_TRUE: Final = BoundConstant(True)
_FALSE: Final = BoundConstant(False)


# --- names and literals -----------------------------------------------------------------------------


def bind_node(node: Node, schema: Schema) -> Node:
    """Check all names and types of a tree, and convert its literals to the types of their columns.

    Raises: ColumnNotFoundError, SchemaError for a literal of another type than its column,
    InvalidArgumentError for an invalid literal.
    """
    match node:
        case And(parts):
            return And(tuple([bind_condition(part, schema) for part in parts]))
        case Or(parts):
            return Or(tuple([bind_condition(part, schema) for part in parts]))
        case Not(part) | IsTrue(part):
            return replace(node, part=bind_condition(part, schema))
        case Compare(Column(left), op, Column(right)):
            _check_op(op)
            a, b = _compared_column(left, right, schema), _compared_column(right, left, schema)
            if not evaluate.comparable(a.type, b.type):
                raise SchemaError(
                    f"cannot compare column {left!r} of type {a.type} with column {right!r} of type {b.type}"
                )
            return node
        case Compare(part, op, Literal(value)):
            _check_op(op)
            part = part if isinstance(part, Column) else bind_node(part, schema)
            if (column := _column_of(part, schema)) is None:
                return Literal(None)
            return compare(part, op, _canonical_literal(column, value))
        case Compare(_, op, _):
            _check_op(op)
            node = map_children(node, lambda part: bind_node(part, schema))
            build_value(node, schema)
            return node
        case InList(part, values):
            part = bind_node(part, schema)
            column = _column_of(part, schema)
            return Literal(None) if column is None else InList(part, _canonical_list(column, values))
        case RowIn(parts, rows):
            parts = tuple(bind_node(part, schema) for part in parts)
            columns = [_column_of(part, schema, null="bool") for part in parts]
            canonical = (tuple(map(_canonical_literal, columns, row)) for row in rows)
            return RowIn(parts, tuple(canonical)) if rows else Literal(False)
        case Like(part, pattern, _, escape):
            part = bind_node(part, schema)
            if (column := _column_of(part, schema)) is None:
                return Literal(None)
            if not column.type.is_text:
                raise SchemaError(f"column {column.name!r} has type {column.type}; LIKE compares text only")
            literals.check_unicode(pattern, f"column {column.name!r}: ")
            parse_like(pattern, escape, f"column {column.name!r}: ").compile(f"column {column.name!r}: ")
            return replace(node, part=part)
        case Row():
            raise InvalidArgumentError(
                f"{literals.quote(str(node))}: a row of values is only allowed before IN, or compared with another row"
            )
        case ArrowExpression(expression):
            _arrow_columns(expression, schema)  # raises for an invalid expression
            return node
        case Column() | Literal():
            return node
        case IsNull() | Call() | Case() | Cast():
            node = map_children(node, lambda part: bind_node(part, schema))
            build_value(node, schema)
            return node
    raise InvalidArgumentError(f"expected a predicate, got {type(node).__name__}")


def bind_condition(node: Node, schema: Schema) -> Node:
    """Check that a tree is a valid condition, and return it with converted literals.

    Each literal is converted to the type of the column that it is compared with.
    Raises: SchemaError for a value such as n + 1, and all errors of `bind_node`.
    """
    bound = bind_node(node, schema)
    if isinstance(bound, Column):
        _canonical_literal(schema.by_name(bound.name), True)  # raises if the column is not bool
    elif isinstance(bound, Literal):
        if not isinstance(bound.value, bool | None):
            raise SchemaError(f"{literals.quote(bound.value)} is a value, not a condition")
    elif isinstance(bound, Call | Case | Cast):
        _canonical_literal(_column_of(bound, schema, null="bool"), True)
    return bound


def _column_of(node: Node, schema: Schema, null: str | None = None) -> Any:
    """Return the column that a node names, or a description of a computed value as a column.

    The caller converts the literals that the node is compared with to the type of this column. For
    a computed value, such as `a + 1`, the result is in no table: it has only the value's type, and
    its text as a name for error messages.

    null: what to return for the literal NULL, which has no type. With None, the function returns
        None. With "bool", it returns a new column of type bool.
    """
    if isinstance(node, Column):
        return schema.by_quoted_name(node.name) if node.quoted else schema.by_name(node.name)
    value = build_value(node, schema)
    return None if value.is_null and null is None else column_like(value, literals.quote(str(node)))


def build_value(node: Node, schema: Schema) -> Value:
    """Return a `Value` that computes the tree. Raises: ColumnNotFoundError, SchemaError,
    InvalidArgumentError.
    """
    match node:
        case Literal(value):
            return ConstantValue(literal_scalar(value))
        case Column():
            return ColumnValue(_column_of(node, schema))
        case Call("||", (left, right)):
            return concatenation(build_value(left, schema), build_value(right, schema))
        case Call("-", (part,)):
            return negation(build_value(part, schema))
        case Call(op, (left, right)) if op in LEVELS:
            return arithmetic(op, build_value(left, schema), build_value(right, schema))
        case Call(name, arguments) if name in FUNCTIONS:
            return FUNCTIONS[name].build(*(build_value(argument, schema) for argument in arguments))
        case Case(conditions, values, otherwise):
            return CaseValue(
                [build_condition(condition, schema) for condition in conditions],
                [build_value(value, schema) for value in values],
                build_value(otherwise, schema),
            )
        case Cast(part, spec):
            return build_cast(build_value(part, schema), spec)
        case Call(name):
            raise InvalidArgumentError(f"unknown function {name[:40]!r}")
    return Condition(build_condition(node, schema), build_condition(node, schema, negated=True))


def _compared_column(name: str, other: str, schema: Schema) -> ColumnSchema:
    """Return the column `name`, which a condition compares with the name `other`.

    If there is no column `name`, the user may have meant a text, a number or NULL. Then the error
    says how to write these.
    """
    if name not in schema and (meant := _ADVICE_ON_NAMES.get(name.lower())) is not None:
        raise ColumnNotFoundError(f"no column {name!r}; {meant}")
    if name not in schema and literals.is_number_like(name):
        raise ColumnNotFoundError(f"no column {name!r}; write a number without quotes")
    if other in schema and schema.by_name(other).type.name in ("string", "varchar", "date", "timestamp"):
        return schema.by_quoted_name(name)
    return schema.by_name(name)


def _check_op(op: str) -> None:
    if op not in OPERATORS:
        raise InvalidArgumentError(f"unknown comparison {op!r}; use one of {' '.join(OPERATORS)}")


def _canonical_literal(column: ColumnSchema, literal: literals.Literal) -> literals.Literal:
    """Convert a literal that is compared with `column`, so that equal literals have one form.

    For an int column, for example, 5 and 5.0 both become 5.
    """
    if literal is None:
        return None
    type = column.type
    if type.name == "bool":
        if not isinstance(literal, bool):
            raise SchemaError(
                f"cannot compare column {column.name!r} of type bool with {literals.quote(literal)}; use TRUE or FALSE"
            )
        return literal
    if type.is_text:
        return text_of_literal(column, literal)
    if type.name == "binary":
        return bytes_of_literal(column, literal)
    if type.is_floating:
        nearest = float_of_literal(column, literal)
        if nearest.beyond:
            return literal  # beyond all finite values of the type, but not infinite
        if not math.isfinite(nearest.value):
            return nearest.value
        shortest = str(np.float32(nearest.value)) if type.name == "float" else repr(nearest.value)
        return decimal.Decimal(shortest)
    floor, exact = floor_of_literal(column, literal)
    in_range = (
        type.value_min is not None
        and type.value_max is not None
        and (type.value_min <= floor <= type.value_max)
    )
    if exact and in_range:
        return from_canonical(type, floor)  # type: ignore[no-any-return]
    if isinstance(literal, float):
        # Compared with this column, an infinity is the same as a number that is too large for it.
        return decimal.Decimal("-1E+9999" if literal < 0 else "1E+9999")
    return literal


def _canonical_list(
    column: ColumnSchema, values: tuple[literals.Literal, ...] | pa.Array
) -> tuple[literals.Literal, ...] | pa.Array:
    """Convert the literals of an IN list, so that equal literals have one form.

    For a long list, returns an array of the column's type if `value_lists` supports the list.
    """
    placed = _values_for_column(column, values)
    if placed is not None:
        return placed
    items = values if isinstance(values, tuple) else value_lists.literals_of(values)
    canonical = tuple(_canonical_literal(column, literal) for literal in items)
    placed = _values_for_column(column, canonical)  # they may have one type now, as an array needs
    return canonical if placed is None else placed


def _values_for_column(
    column: ColumnSchema, values: tuple[literals.Literal, ...] | pa.Array
) -> pa.Array | None:
    """Convert the values of a long IN list to an array of the column's type.

    The values in the array are distinct and ascending. If the list has NULLs, one NULL is at the
    end. Values that the column's type cannot hold are dropped. Returns None if the list is short,
    if `value_lists` cannot convert it, or if the type can hold none of its values.
    """
    array = value_lists.as_array(values)
    placed = None if array is None else value_lists.values_for_column(column, array.drop_null())
    if array is None or not placed:
        return None
    return pa.concat_arrays([placed, pa.nulls(1, placed.type)]) if array.null_count else placed


def _arrow_columns(expression: pc.Expression, schema: Schema) -> tuple[str, ...]:
    """Return the columns that an Arrow expression reads, in the order of the schema.

    Arrow has no function for this. So the expression is evaluated on empty tables, each without one
    column: if this fails, the expression reads the column.
    Raises: ColumnNotFoundError, InvalidArgumentError if Arrow cannot evaluate it on this schema.
    """
    empty = schema.arrow_schema().empty_table()
    try:
        result = evaluate.evaluate_expression(empty, expression)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError) as error:
        if "No match for FieldRef" in str(error):
            reason = str(error).splitlines()[0]
            raise ColumnNotFoundError(f"the pyarrow expression {expression}: {reason}") from None
        raise InvalidArgumentError(
            f"Arrow cannot evaluate the pyarrow expression {expression} on this table: {error}"
        ) from None
    if result.type != pa.bool_():
        raise InvalidArgumentError(f"the pyarrow expression {expression} gives {result.type}, not bool")
    if "FieldPath(" in str(expression):  # it refers to a column by its position, so no column may be missing
        return schema.names
    return tuple(name for name in schema.names if _needs_column(expression, empty, name))


def _needs_column(expression: pc.Expression, empty: pa.Table, name: str) -> bool:
    try:
        evaluate.evaluate_expression(empty.drop_columns([name]), expression)
    except pa.ArrowInvalid:
        return True
    return False


# --- building conditions ----------------------------------------------------------------------------


def build_condition(node: Node, schema: Schema, negated: bool = False) -> Bound:
    """Return the condition that selects the rows in which `node` is TRUE, or FALSE if `negated`.

    node: a result of `bind_node`.
    """
    match node:
        case And(parts):
            bound = [build_condition(part, schema, negated) for part in parts]
            return _or_of(bound) if negated else _and_of(bound)
        case Or(parts):
            bound = [build_condition(part, schema, negated) for part in parts]
            return _and_of(bound) if negated else _or_of(bound)
        case Not(part):
            return build_condition(part, schema, not negated)
        case Literal(value):
            return BoundConstant(value is not None and value != negated)
        case Compare(Column(left), op, Column(right)):
            op = _NEGATED[op] if negated else op
            return BoundCompareColumns(schema.by_name(left), op, schema.by_name(right))
        case Compare(part, op, Literal(value)):
            column, over = _operand(part, schema)
            return over(_condition_of_compare(column, _NEGATED[op] if negated else op, value))
        case Compare(left, op, right):
            text = literals.quote(str(node))
            a, b = unify((build_value(left, schema), build_value(right, schema)), text)
            return _FALSE if a.is_null else BoundCompareValues(a, _NEGATED[op] if negated else op, b, text)
        case InList(part, values):
            column, over = _operand(part, schema)
            return over(_condition_of_in(column, values, negated))
        case RowIn(parts, rows):
            return _condition_of_rows(parts, rows, schema, negated)
        case IsNull(part, is_not):
            column, over = _operand(part, schema)
            return over(BoundNull(column, is_not != negated))
        case IsTrue(part, wanted):
            return _condition_of_is_true(part, schema, wanted, negated)
        case Like(part, pattern, is_not, escape, any_case):
            column, over = _operand(part, schema)
            return over(_condition_of_like(column, pattern, escape, any_case, is_not != negated))
        case ArrowExpression(expression):
            return _condition_of_arrow(expression, schema, negated)
    column, over = _operand(node, schema)
    return over(_condition_of_compare(column, "<>" if negated else "=", True))


def _operand(node: Node, schema: Schema) -> tuple[ColumnSchema, Callable[[Bound], Bound]]:
    """Return a column, and a function `over`, by which the caller binds a condition on `node`.

    The caller binds its test (such as `> 5`) to the returned column. Then it passes the result to
    `over`, which returns the final condition.

    If `node` is a column, this column is returned, and `over` changes nothing. If `node` is a
    computed value, such as `a + b`, the returned column is not in the table: it only has the type
    of the value. Then `over` returns a condition that computes the value and tests it.
    """
    if isinstance(node, Column):
        return schema.by_name(node.name), lambda bound: bound
    value = build_value(node, schema)
    column = column_like(value, str(node))
    return (
        column,
        lambda bound: bound if isinstance(bound, BoundConstant) else BoundOnValue(value, bound, column.name),
    )


def _condition_of_arrow(expression: pc.Expression, schema: Schema, negated: bool) -> Bound:
    names = _arrow_columns(expression, schema)
    floating = tuple(name for name in names if schema.by_name(name).type.is_floating)
    tree = tree_of(expression, schema) if floating else None
    meaning = None if tree is None else build_condition(bind_condition(tree, schema), schema, negated)
    return BoundArrow(expression, names, negated, floating, meaning)


def _condition_of_is_true(part: Node, schema: Schema, wanted: bool, negated: bool) -> Bound:
    found = build_condition(part, schema, not wanted)
    if not negated:
        return found
    match part:
        case Column() | Compare(Column(), _, Literal()) | Like(Column()):
            # The part is NULL exactly where the column is NULL. This condition has a constraint, a
            # BoundNot has none.
            name = next(iter(column_names_in(part)))
            return _or_of(
                [build_condition(part, schema, wanted), BoundNull(schema.by_name(name), negated=False)]
            )
    return BoundNot(found) if not isinstance(found, BoundConstant) else BoundConstant(not found.value)


def _condition_of_rows(
    parts: tuple[Node, ...], rows: tuple[tuple[Any, ...], ...], schema: Schema, negated: bool
) -> Bound:
    """Build the condition `(a, b) IN (list of tuples)`, or NOT IN if `negated`.

    If a and b are columns, the condition usually looks up the values of each table row in the list.
    Otherwise it is an OR of comparisons, one per tuple.

    parts: the left side, here a and b: columns or computed values.
    rows: the tuples of the list.
    """
    columns = [schema.by_name(part.name) for part in parts if isinstance(part, Column)]
    whole = [row for row in rows if None not in row]  # rows with NULL are never equal to another row
    never_null = len(whole) == len(rows) and not any(column.nullable for column in columns)
    countable = all(not column.type.is_floating and column.type.name != "bool" for column in columns)
    if whole and len(columns) == len(parts) and countable and (never_null or not negated):
        lists, positions = zip(
            *(
                _positions_of(column, values)
                for column, values in zip(columns, zip(*whole, strict=True), strict=True)
            ),
            strict=True,
        )
        kept = [row for row in zip(*positions, strict=True) if None not in row]
        if not kept:
            return BoundConstant(negated)
        if math.prod(map(len, lists)) < 2**62:
            codes = np.zeros(len(kept), np.int64)
            for number, ordered in enumerate(lists):
                codes = codes * len(ordered) + np.array([row[number] for row in kept])
            looked_up = tuple(BoundIn(c, ordered, False) for c, ordered in zip(columns, lists, strict=True))
            found = BoundRowIn(looked_up, tuple(np.unique(codes).tolist()))
            return (
                BoundNot(found)
                if negated
                else _and_of(
                    [
                        *(
                            _in_condition(part.column, Constraint.of_ascending(part.values))
                            for part in looked_up
                        ),
                        found,
                    ]
                )
            )
    return build_condition(
        any_of(
            all_of(compare(part, "=", value) for part, value in zip(parts, row, strict=True)) for row in rows
        ),
        schema,
        negated,
    )


def _positions_of(column: ColumnSchema, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[int | None]]:
    """Return (the distinct items of `values` that the column can hold, ascending; positions).

    Positions: for each item of `values` its index in the first result; None if the column cannot
    hold the item.
    """
    bound = [_condition_of_compare(column, "=", value) for value in values]
    held = [one.value if isinstance(one, BoundCompare) else None for one in bound]
    ordered = Constraint.one_of([value for value in held if value is not None]).values or ()
    position = {value: number for number, value in enumerate(ordered)}
    return ordered, [position.get(value) for value in held]


def _condition_of_compare(column: ColumnSchema, op: str, literal: literals.Literal) -> Bound:
    if literal is None:
        return _FALSE
    type = column.type
    not_null = BoundNull(column, negated=True)
    if type.name == "bool":
        allowed = [flag for flag in (False, True) if literals.compare_literals(flag, op, literal)]
        return not_null if len(allowed) == 2 else _in_condition(column, Constraint.one_of(allowed))
    if type.is_text:
        return BoundCompare(column, op, text_of_literal(column, literal))
    if type.name == "binary":
        return BoundCompare(column, op, bytes_of_literal(column, literal))
    if type.is_floating:
        value, beyond = float_of_literal(column, literal)
        if not beyond:
            return BoundCompare(column, op, value)
        if op in ("=", "<>"):
            return not_null if op == "<>" else _FALSE
        # `value` is an infinity. Beyond the finite values, the column can hold only it, and NaN
        # above the positive one.
        if beyond > 0:
            return BoundCompare(column, "<" if op in ("<", "<=") else ">=", value)
        return BoundCompare(column, "<=" if op in ("<", "<=") else ">", value)
    floor, exact = floor_of_literal(column, literal)
    if not exact:
        if op in ("=", "<>"):
            return not_null if op == "<>" else _FALSE
        op, floor = ("<=", floor) if op in ("<", "<=") else (">=", floor + 1)
    assert type.value_min is not None and type.value_max is not None
    if floor > type.value_max:
        return not_null if op in ("<", "<=", "<>") else _FALSE
    if floor < type.value_min:
        return not_null if op in (">", ">=", "<>") else _FALSE
    return BoundCompare(column, op, floor)


def _condition_of_in(
    column: ColumnSchema, values: tuple[literals.Literal, ...] | pa.Array, negated: bool
) -> Bound:
    if isinstance(values, pa.Array):
        if negated and values.null_count:
            return _FALSE
        return _in_condition(
            column, Constraint.of_ascending(value_lists.canonical(column.type, values.drop_null())), negated
        )
    if not values:
        return BoundConstant(negated)  # in every row, even where the column is NULL
    if negated and None in values:
        return _FALSE  # NOT IN is never TRUE: no value is known to differ from NULL
    found: list[Any] = []
    for value in values:
        bound = _condition_of_compare(column, "=", value)  # drops NULL and values that the column cannot hold
        if isinstance(bound, BoundCompare):
            found.append(bound.value)
        elif isinstance(bound, BoundIn):
            found.extend(bound.values)
    return _in_condition(column, Constraint.one_of(found), negated)


def _in_condition(column: ColumnSchema, allowed: Constraint, negated: bool = False) -> Bound:
    """Build `column IN (values)`, or NOT IN if `negated`.

    allowed: the values, as a constraint. It is `EMPTY` if there are no values.
    """
    ordered = allowed.values
    if ordered is None:
        return BoundNull(column, negated=True) if negated else _FALSE
    if len(ordered) == 1 and column.type.name != "bool":
        return BoundCompare(column, "<>" if negated else "=", ordered[0])
    return BoundIn(column, ordered, negated)


def _condition_of_like(
    column: ColumnSchema, pattern: str, escape: str | None, any_case: bool, negated: bool
) -> Bound:
    parsed = parse_like(pattern, escape, f"column {column.name!r}: ", any_case)
    if parsed.exact is not None and not any_case:
        return BoundCompare(column, "<>" if negated else "=", parsed.exact)
    if parsed.matches_all:
        return _FALSE if negated else BoundNull(column, negated=True)
    return BoundLike(column, parsed, negated)


def _and_of(parts: list[Bound]) -> Bound:
    if _FALSE in parts:
        return _FALSE
    flat = _flat(BoundAnd, parts, _TRUE)
    return flat[0] if len(flat) == 1 else BoundAnd(tuple(flat)) if flat else _TRUE


def _or_of(parts: list[Bound]) -> Bound:
    if _TRUE in parts:
        return _TRUE
    flat = _merge_equalities(_flat(BoundOr, parts, _FALSE))
    return flat[0] if len(flat) == 1 else BoundOr(tuple(flat)) if flat else _FALSE


def _flat(kind: type[BoundAnd] | type[BoundOr], parts: list[Bound], neutral: Bound) -> list[Bound]:
    """Flatten nested conditions: replace each part that is itself a `kind` by its own parts.

    neutral: the constant that changes nothing (TRUE in AND, FALSE in OR); it is left out.
    """
    inner = itertools.chain(*(part.parts if isinstance(part, kind) else (part,) for part in parts))
    return [part for part in inner if part != neutral]


def _merge_equalities(parts: list[Bound]) -> list[Bound]:
    """Merge x = 1 OR x = 2 OR x IN (3, 4) into one IN list. Programs write such chains with
    thousands of terms.
    """
    values: dict[str, list[Any]] = {}
    columns: dict[str, ColumnSchema] = {}
    merged: list[Bound] = []
    for part in parts:
        if isinstance(part, BoundIn) and not part.negated:
            found: tuple[Any, ...] = part.values
        elif isinstance(part, BoundCompare) and part.op == "=":
            found = (part.value,)
        else:
            merged.append(part)
            continue
        values.setdefault(part.column.name, []).extend(found)
        columns[part.column.name] = part.column
    return [
        *(_in_condition(columns[name], Constraint.one_of(found)) for name, found in values.items()),
        *merged,
    ]


# --- constraints ------------------------------------------------------------------------------------


def derive_constraints(bound: Bound) -> dict[str, Constraint] | None:
    """Return, by column name, the ranges or lists of values that a condition allows.

    Scans skip blocks without such values. A column that may have any value is left out. The result
    is None if the condition is TRUE in no row.

    bound: the condition, checked against a schema.
    """
    if isinstance(bound, BoundConstant):
        return {} if bound.value else None
    if isinstance(bound, BoundAnd):
        return _derive_all(bound.parts)
    if isinstance(bound, BoundOr):
        return _derive_any(bound.parts)
    if isinstance(bound, BoundCompareColumns):
        return _without_trivial({c: Constraint(null="none") for c in (bound.left, bound.right)})
    if isinstance(bound, BoundNull):
        if not bound.negated and not bound.column.nullable:
            return None
        return _without_trivial({bound.column: Constraint(null="none") if bound.negated else NULL_ONLY})
    if isinstance(bound, BoundCompare):
        constraint = _constraint_of_compare(bound)
        return None if constraint.empty else _without_trivial({bound.column: constraint})
    if isinstance(bound, BoundIn):
        constraint = Constraint(null="none") if bound.negated else Constraint.of_ascending(bound.values)
        return _without_trivial({bound.column: constraint})
    if isinstance(bound, BoundLike):
        prefix = "" if bound.negated or bound.pattern.any_case else bound.pattern.prefix
        constraint = Constraint(null="none")
        if prefix:
            after = text_after_prefix(prefix)
            constraint = Constraint.between(bound.column.type, prefix, after, upper_inclusive=after is None)
        return _without_trivial({bound.column: constraint})
    return {}  # computed values and pyarrow expressions give no constraint


def _without_trivial(constraints: dict[ColumnSchema, Constraint]) -> dict[str, Constraint]:
    """Return the constraints by column name, without those that only exclude NULL from a NOT NULL
    column.
    """
    not_null = Constraint(null="none")
    return {c.name: found for c, found in constraints.items() if c.nullable or found != not_null}


def _constraint_of_compare(bound: BoundCompare) -> Constraint:
    type, op, value = bound.column.type, bound.op, bound.value
    if op == "=":
        return Constraint.one_of((value,))
    if op == "<>":
        return Constraint(null="none")
    if op in ("<", "<="):
        return Constraint.between(type, upper=value, upper_inclusive=op == "<=")
    return Constraint.between(type, lower=value, lower_inclusive=op == ">=")


def _derive_all(parts: Iterable[Bound]) -> dict[str, Constraint] | None:
    merged: dict[str, Constraint] = {}
    for part in parts:
        found = derive_constraints(part)
        if found is None:
            return None
        for name, constraint in found.items():
            merged[name] = merged.get(name, ANY).intersect(constraint)
            if merged[name] == EMPTY:
                return None
    return merged


def _derive_any(parts: Iterable[Bound]) -> dict[str, Constraint] | None:
    possible = [found for found in map(derive_constraints, parts) if found is not None]
    if not possible:
        return None
    merged = possible[0]
    for found in possible[1:]:
        merged = {name: c.union(found[name]) for name, c in merged.items() if name in found}
    return {name: constraint for name, constraint in merged.items() if constraint != ANY}
