"""Converts conditions and expressions to JSON and back, to send them to another process.

    n < 2.5 AND b      ["and",[["compare",["column","n"],"<",["literal",{"decimal":"2.5"}]],["column","b"]]]

A node is a list of its kind and its fields (`_FIELDS`). A literal that JSON has no type for is an
object with its kind and text. `from_json` accepts only trees that the parser could have built, so
data from outside is safe, unlike pickle. JSON is parsed faster than SQL text, and has no limit of
its length.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import json
import math
from typing import Any, Final

from nyala.errors import InvalidArgumentError
from nyala.schema.expressions import nodes
from nyala.schema.expressions.literals import Literal, iso_text, parse_timestamp, quote, to_literal
from nyala.schema.expressions.nodes import TREE_DEPTH_MAX, Node, check_depth

__all__ = ["from_json", "to_json"]


def to_json(predicate: Node) -> str:
    """Convert the tree to one line of JSON. Raises: InvalidArgumentError for an ArrowExpression."""
    check_depth(predicate)
    return json.dumps(_node_to_json(predicate), separators=(",", ":"))


def from_json(text: str) -> Node:
    """Read the text of `to_json`. Raises: InvalidArgumentError for any other text."""
    try:
        return _node_from_json(json.loads(text))
    except InvalidArgumentError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError, ArithmeticError) as error:
        raise InvalidArgumentError(f"invalid JSON of a predicate ({error}): {quote(text)}") from None


# For each kind of node, one letter per field: n node, N list of nodes, v literal, V list of
# literals, R list of rows of literals, s text, o text or null, b bool.
_FIELDS: Final[dict[type[Node], str]] = {
    nodes.Column: "s",
    nodes.Literal: "v",
    nodes.Compare: "nsn",
    nodes.InList: "nV",
    nodes.RowIn: "NR",
    nodes.IsNull: "nb",
    nodes.IsTrue: "nb",
    nodes.Like: "nsbob",
    nodes.And: "N",
    nodes.Or: "N",
    nodes.Not: "n",
    nodes.Call: "sN",
    nodes.Case: "NNn",
    nodes.Cast: "ns",
}
_KINDS: Final = {kind.__name__.lower(): kind for kind in _FIELDS}
_PLAIN: Final[dict[str, Any]] = {"s": str, "o": str | None, "b": bool}


def _node_to_json(node: Node) -> list[Any]:
    forms = _FIELDS.get(type(node))
    if forms is None:
        raise InvalidArgumentError(
            f"{quote(str(node))} cannot be sent to another process; write the condition as text or with nyala.col(...)"
        )
    names = [field.name for field in dataclasses.fields(node)]  # type: ignore[arg-type]
    if isinstance(node, nodes.InList):
        node = nodes.InList(node.part, node.literals)
    return [
        type(node).__name__.lower(),
        *(_to_json(getattr(node, name), form) for name, form in zip(names, forms, strict=False)),
    ]


def _to_json(value: Any, form: str) -> Any:
    if form == "n":
        return _node_to_json(value)
    if form == "v":
        return _literal_to_json(value)
    if form.isupper():
        return [_to_json(part, "V" if form == "R" else form.lower()) for part in value]
    return value


def _node_from_json(data: Any, depth: int = 0) -> Node:
    if depth > TREE_DEPTH_MAX:
        raise InvalidArgumentError(f"the predicate nests more than {TREE_DEPTH_MAX} levels deep")
    match data:
        case [str(word), *values] if word in _KINDS and len(values) == len(_FIELDS[_KINDS[word]]):
            kind = _KINDS[word]
            return kind(
                *(_from_json(value, form, depth) for value, form in zip(values, _FIELDS[kind], strict=True))
            )
    raise InvalidArgumentError(f"invalid JSON of a predicate: {quote(str(data))}")


def _from_json(data: Any, form: str, depth: int) -> Any:
    if form == "n":
        return _node_from_json(data, depth + 1)
    if form == "v":
        return _literal_from_json(data)
    if form.isupper() and isinstance(data, list):
        return tuple([_from_json(part, "V" if form == "R" else form.lower(), depth) for part in data])
    if form in _PLAIN and isinstance(data, _PLAIN[form]):
        return data
    raise InvalidArgumentError(f"invalid JSON of a predicate: {quote(str(data))}")


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
            return to_literal(data)
        case {"decimal": str(text), **rest} if not rest:
            return to_literal(decimal.Decimal(text))
        case {"float": ("nan" | "inf" | "-inf") as text, **rest} if not rest:
            return math.nan if text == "nan" else float(text)
        case {"binary": str(text), **rest} if not rest:
            return bytes.fromhex(text)
        case {"timestamp": str(text), **rest} if not rest and isinstance(parse_timestamp(text), dt.datetime):
            return parse_timestamp(text)
        case {"date": str(text), **rest} if not rest:
            return dt.date.fromisoformat(text)
    raise InvalidArgumentError(f"invalid literal in the JSON of a predicate: {quote(str(data))}")
