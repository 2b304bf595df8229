"""The text of an expression as a tree of typed nodes, in two steps: what it says, then what it means here.

    "n + 1"  --parse-->  Operation("+", Name("n"), Literal(1))  --build(schema)-->  ExactNode

The grammar stands in `nyala.schema.expression`. The first step needs no schema, so that a text can be looked at
without one: is it an expression of text, or a text?
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from nyala.errors import InvalidArgumentError, SchemaError
from nyala.schema.expression_nodes import (
    DEPTH_MAX,
    AbsNode,
    CaseNode,
    CoalesceNode,
    ColumnNode,
    ConcatNode,
    ConditionNode,
    ConstantNode,
    FunctionNode,
    Node,
    arithmetic,
    decimal_scalar,
    is_decimal,
    is_number,
    widened,
)
from nyala.schema.nodes import RESERVED, Compare, Predicate, negate
from nyala.schema.parser import PredicateParser, parse_literal
from nyala.schema.predicate import BoundPredicate
from nyala.schema.schema import Schema
from nyala.schema.tokens import TokenStream

__all__ = ["Tree", "build", "condition_node", "literal_scalar", "parse_tree"]

FUNCTIONS: Final = ("abs", "ceil", "coalesce", "floor", "length", "lower", "round", "upper")
_ROUND_DIGITS_MAX: Final = 38
_INT64: Final = range(-(2**63), 2**63)


# --- what it says -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tree:
    """A parsed expression whose names are not resolved."""

    depth: int


@dataclass(frozen=True)
class LiteralTree(Tree):
    value: Any
    is_double: bool  # a number with an exponent


@dataclass(frozen=True)
class NameTree(Tree):
    name: str
    quoted: bool


@dataclass(frozen=True)
class OperationTree(Tree):
    op: str  # + - * / % ||
    left: Tree
    right: Tree


@dataclass(frozen=True)
class NegationTree(Tree):
    part: Tree


@dataclass(frozen=True)
class CallTree(Tree):
    function: str
    arguments: tuple[Tree, ...]


@dataclass(frozen=True)
class CaseTree(Tree):
    conditions: tuple[Predicate, ...]
    values: tuple[Tree, ...]
    otherwise: Tree


def parse_tree(text: str) -> Tree:
    """What the text of an expression says.

    Raises: InvalidArgumentError with a caret below the place, and what was expected there.
    """
    stream = TokenStream(text)
    tree = _Parser(stream).sum()
    if stream.token.kind != "end":
        stream.fail("an operator or the end")
    return tree


class _Parser:
    def __init__(self, stream: TokenStream) -> None:
        self._stream = stream

    def _above(self, *parts: Tree) -> int:
        depth = 1 + max((part.depth for part in parts), default=0)
        if depth > DEPTH_MAX:
            raise InvalidArgumentError(f"the expression has more than {DEPTH_MAX} steps in a row; shorten it")
        return depth

    def sum(self) -> Tree:
        tree = self._term()
        while token := self._stream.accept_op("+", "-", "||"):
            right = self._term()
            tree = OperationTree(self._above(tree, right), token.text, tree, right)
        return tree

    def _term(self) -> Tree:
        tree = self._factor()
        while token := self._stream.accept_op("*", "/", "%"):
            right = self._factor()
            tree = OperationTree(self._above(tree, right), token.text, tree, right)
        return tree

    def _factor(self) -> Tree:
        stream = self._stream
        minuses = 0
        # A minus before a number belongs to it, or -9223372036854775808 would not be one.
        while stream.token.is_op("-", "+") and stream.peek().kind != "number":
            minuses += stream.advance().text == "-"
        tree = self._primary()
        return NegationTree(self._above(tree), tree) if minuses % 2 else tree

    def _primary(self) -> Tree:
        stream = self._stream
        token = stream.token
        if stream.accept_op("("):
            return self._closed("')' or an operator")
        if token.is_keyword("CASE"):
            return self._case()
        if token.kind == "quoted":
            stream.advance()
            return NameTree(1, str(token.value), quoted=True)
        is_word = token.is_keyword("TRUE", "FALSE", "NULL")
        is_typed = token.is_keyword("DATE", "TIMESTAMP") and stream.peek().kind == "string"
        if token.kind == "name" and not is_word and not is_typed:
            if stream.peek().is_op("("):
                return self._call()
            if token.text.upper() in RESERVED:
                stream.fail(f'a value (a column of that name is written "{token.text}")')
            stream.advance()
            return NameTree(1, token.text, quoted=False)
        number = stream.peek() if token.kind == "op" else token
        is_double = number.kind == "number" and "e" in number.text.lower()
        return LiteralTree(1, parse_literal(stream, "a value"), is_double)

    def _closed(self, expected: str) -> Tree:
        self._stream.enter()
        tree = self.sum()
        self._stream.expect_op(")", expected)
        self._stream.leave()
        return tree

    def _call(self) -> Tree:
        stream = self._stream
        function = stream.token.text.lower()
        if function not in FUNCTIONS:
            stream.fail(f"one of the functions {', '.join(FUNCTIONS)}")
        stream.advance()
        stream.expect_op("(", "'('")
        stream.enter()
        arguments = [self.sum()]
        while stream.accept_op(","):
            arguments.append(self.sum())
        stream.expect_op(")", "',' or ')'")
        stream.leave()
        wanted = {"coalesce": range(1, 301), "round": range(1, 3)}.get(function, range(1, 2))
        if len(arguments) not in wanted:
            raise InvalidArgumentError(
                f"{function}() takes {wanted[0]} to {wanted[-1]} arguments, not {len(arguments)}"
                if len(wanted) > 1
                else f"{function}() takes one argument, not {len(arguments)}"
            )
        return CallTree(self._above(*arguments), function, tuple(arguments))

    def _case(self) -> Tree:
        stream = self._stream
        stream.advance()
        stream.enter()
        column: str | None = None
        if not stream.token.is_keyword("WHEN"):
            if stream.token.kind not in ("name", "quoted"):
                stream.fail("WHEN, or a column and WHEN")
            column = str(stream.advance().value)
        if not stream.token.is_keyword("WHEN"):
            stream.fail("WHEN")
        conditions: list[Predicate] = []
        values: list[Tree] = []
        while stream.accept_keyword("WHEN"):
            if column is None:
                conditions.append(PredicateParser(stream).condition())
            else:
                conditions.append(Compare(column, "=", parse_literal(stream, "a literal after WHEN")))
            stream.expect_keyword("THEN", "THEN")
            values.append(self.sum())
        otherwise: Tree = LiteralTree(1, None, is_double=False)
        if stream.accept_keyword("ELSE"):
            otherwise = self.sum()
        stream.expect_keyword("END", "WHEN, ELSE or END")
        stream.leave()
        return CaseTree(self._above(*values, otherwise), tuple(conditions), tuple(values), otherwise)


# --- what it means ----------------------------------------------------------------------------------


def build(tree: Tree, schema: Schema) -> Node:
    """The typed nodes of a tree. Raises: ColumnNotFoundError, SchemaError, InvalidArgumentError."""
    match tree:
        case LiteralTree(_, value, is_double):
            return ConstantNode(literal_scalar(value, is_double))
        case NameTree(_, name, quoted):
            return ColumnNode(schema.by_quoted_name(name) if quoted else schema.by_name(name))
        case OperationTree(_, "||", left, right):
            return ConcatNode(build(left, schema), build(right, schema))
        case OperationTree(_, op, left, right):
            return arithmetic(op, build(left, schema), build(right, schema))
        case NegationTree(_, part):
            return _negation(build(part, schema))
        case CallTree(_, function, arguments):
            return _call(function, [build(argument, schema) for argument in arguments])
        case CaseTree(_, conditions, values, otherwise):
            return CaseNode(
                [BoundPredicate(condition, schema) for condition in conditions],
                [build(value, schema) for value in values],
                build(otherwise, schema),
            )
    raise AssertionError(f"no tree of the parser: {tree!r}")


def condition_node(predicate: Predicate, schema: Schema) -> Node:
    """A predicate as a value."""
    return ConditionNode(BoundPredicate(predicate, schema), BoundPredicate(negate(predicate), schema))


def literal_scalar(value: Any, is_double: bool = False) -> pa.Scalar:
    """A literal in the type that expressions compute with. Raises: InvalidArgumentError beyond 76 digits."""
    if isinstance(value, bool) or value is None:
        return pa.scalar(value)
    if isinstance(value, int | decimal.Decimal):
        if is_double:
            return pa.scalar(float(value), pa.float64())
        if isinstance(value, int) and value in _INT64:
            return pa.scalar(value, pa.int64())
        return decimal_scalar(decimal.Decimal(value))
    if isinstance(value, dt.datetime):
        return pa.scalar(value, pa.timestamp("us", tz="UTC"))
    return pa.scalar(value)


def _negation(node: Node) -> Node:
    if node.type == pa.int64():
        return arithmetic("-", ConstantNode(pa.scalar(0, pa.int64())), node)
    if not is_number(node):
        _check_kinds("-", node, "a number")
        return node
    return FunctionNode(pc.negate, node, node.type)


def _check_kinds(function: str, node: Node, wanted: str) -> None:
    """Raises: SchemaError unless the argument is NULL."""
    if not pa.types.is_null(node.type):
        raise SchemaError(f"{function} takes {wanted}, not {node.kind}")


def _call(function: str, arguments: Sequence[Node]) -> Node:
    node = arguments[0]
    if function == "coalesce":
        return CoalesceNode(arguments)
    if function in ("lower", "upper", "length"):
        is_text = node.type == pa.string()
        if not is_text and not (function == "length" and node.type == pa.binary()):
            _check_kinds(f"{function}()", node, "text or binary" if function == "length" else "text")
            return node
        if function == "length":
            return FunctionNode(pc.utf8_length if is_text else pc.binary_length, node, pa.int64())
        return FunctionNode(pc.utf8_lower if function == "lower" else pc.utf8_upper, node, node.type)
    if not is_number(node):
        _check_kinds(f"{function}()", node, "a number")
        return node
    if function == "abs":
        return AbsNode(node)
    return _rounding(function, node, _digits(arguments[1]) if len(arguments) > 1 else 0)


def _digits(node: Node) -> int:
    digits = node.scalar.as_py() if isinstance(node, ConstantNode) and node.type == pa.int64() else None
    if digits is None or not 0 <= digits <= _ROUND_DIGITS_MAX:
        raise InvalidArgumentError(
            f"round() takes a number of digits in 0..{_ROUND_DIGITS_MAX} after the point"
        )
    return int(digits)


def _rounding(function: str, node: Node, digits: int) -> Node:
    if node.type == pa.int64() or (is_decimal(node.type) and digits >= node.type.scale):
        return node  # nothing after the point, or not as much

    def rounded(array: pa.Array) -> pa.Array:
        # Half away from zero, as in SQL; Python and Arrow round half to even.
        return pc.round(array, digits, round_mode="half_towards_infinity")

    node = widened(node)
    functions = {"ceil": pc.ceil, "floor": pc.floor, "round": rounded}
    return FunctionNode(functions[function], node, node.type)
