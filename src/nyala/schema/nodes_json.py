"""Predicates as JSON: how they travel in scan tokens, without pickle and without a parser's ambiguity.

    n < 2.5 AND host IS NULL      ["and",[["compare","n","<",{"decimal":"2.5"}],["is_null","host",false]]]

A node is [kind, field, …]. A literal that JSON does not have is {"kind": "text"}. What comes from outside is checked
as it is read: from_json gives a tree that the parser could have given, or an error.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
from typing import Any

from nyala.errors import InvalidArgumentError
from nyala.schema.literals import Literal, iso_text, normalise, parse_timestamp, quote
from nyala.schema.nodes import (
    OPERATORS,
    TREE_DEPTH_MAX,
    And,
    Compare,
    CompareColumns,
    Constant,
    InList,
    IsNull,
    Like,
    Not,
    Or,
    Predicate,
    check_depth,
)

__all__ = ["from_json", "to_json"]


def to_json(predicate: Predicate) -> str:
    """One line of JSON, read back by `from_json`. Raises: InvalidArgumentError for an ArrowExpression."""
    check_depth(predicate)
    return json.dumps(_node_to_json(predicate), separators=(",", ":"))


def from_json(text: str) -> Predicate:
    """The inverse of `to_json`. Raises: InvalidArgumentError for any other text."""
    try:
        return _node_from_json(json.loads(text))
    except InvalidArgumentError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError, ArithmeticError) as error:
        raise InvalidArgumentError(f"no predicate in JSON ({error}): {quote(text)}") from None


def _node_to_json(node: Predicate) -> list[Any]:
    match node:
        case Compare(column, op, value):
            return ["compare", column, op, _literal_to_json(value)]
        case CompareColumns(left, op, right):
            return ["compare_columns", left, op, right]
        case InList(column):
            return ["in", column, [_literal_to_json(value) for value in node.literals]]
        case IsNull(column, negated):
            return ["is_null", column, negated]
        case Like(column, pattern, negated, escape):
            return ["like", column, pattern, negated, escape]
        case Constant(value):
            return ["constant", value]
        case And(parts) | Or(parts):
            return ["and" if isinstance(node, And) else "or", [_node_to_json(part) for part in parts]]
        case Not(part):
            return ["not", _node_to_json(part)]
    raise InvalidArgumentError(
        f"{node} cannot be sent to another process; write the condition as text or with nyala.col(...)"
    )


def _node_from_json(data: Any, depth: int = 0) -> Predicate:
    if depth > TREE_DEPTH_MAX:
        raise InvalidArgumentError(f"the predicate nests more than {TREE_DEPTH_MAX} levels deep")
    match data:
        case ["compare", str(column), str(op), value] if op in OPERATORS:
            return Compare(column, op, _literal_from_json(value))
        case ["compare_columns", str(left), str(op), str(right)] if op in OPERATORS:
            return CompareColumns(left, op, right)
        case ["in", str(column), list(values)]:
            return InList(column, tuple(_literal_from_json(value) for value in values))
        case ["is_null", str(column), bool(negated)]:
            return IsNull(column, negated)
        case ["like", str(column), str(pattern), bool(negated), (str() | None) as escape]:
            return Like(column, pattern, negated, escape)
        case ["constant", (bool() | None) as value]:
            return Constant(value)
        case ["and", list(parts)]:
            return And(tuple(_node_from_json(part, depth + 1) for part in parts))
        case ["or", list(parts)]:
            return Or(tuple(_node_from_json(part, depth + 1) for part in parts))
        case ["not", part]:
            return Not(_node_from_json(part, depth + 1))
    raise InvalidArgumentError(f"no predicate in JSON: {quote(str(data))}")


def _literal_to_json(value: Literal) -> Any:
    if isinstance(value, decimal.Decimal):
        return {"decimal": str(value)}
    if isinstance(value, float):
        return {"float": str(value)}
    if isinstance(value, bytes):
        return {"binary": value.hex()}
    if isinstance(value, dt.datetime):
        return {"timestamp": iso_text(value)}
    if isinstance(value, dt.date):
        return {"date": value.isoformat()}
    return value


def _literal_from_json(data: Any) -> Literal:
    match data:
        case None | bool() | int() | str():
            return normalise(data)
        case {"decimal": str(text), **rest} if not rest:
            return normalise(decimal.Decimal(text))
        case {"float": ("nan" | "inf" | "-inf") as text, **rest} if not rest:
            return math.nan if text == "nan" else float(text)
        case {"binary": str(text), **rest} if not rest:
            return bytes.fromhex(text)
        case {"timestamp": str(text), **rest} if not rest and isinstance(parse_timestamp(text), dt.datetime):
            return parse_timestamp(text)
        case {"date": str(text), **rest} if not rest:
            return dt.date.fromisoformat(text)
    raise InvalidArgumentError(f"no literal of a predicate in JSON: {quote(str(data))}")
