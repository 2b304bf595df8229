"""Converts a pyarrow expression to a tree of Nyala, so that NaN is compared as in every other
condition.

    pc.field("x") > 1  --to_substrait-->  protobuf  --tree_of-->  Compare(Column("x"), ">",
    Literal(1))

Arrow has no function that returns the parts of an expression. But it can write an expression as a
Substrait message, which has the binary format protobuf. This module reads comparisons, isin,
is_null, is_valid, is_nan, AND, OR and NOT of columns and constants. Arrow itself evaluates all
other expressions.
Source: Substrait, proto/substrait/algebra.proto and extended_expression.proto; protobuf's wire
format.
"""

from __future__ import annotations

import datetime as dt
import decimal
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from nyala import compute as pc
from nyala.schema.expressions.literals import to_literal
from nyala.schema.expressions.nodes import (
    Column,
    InList,
    IsNull,
    IsTrue,
    Literal,
    Node,
    all_of,
    any_of,
    children_of,
    compare,
    negate,
)
from nyala.schema.schema import Schema

__all__ = ["tree_of"]

_OPERATORS: Final = {"equal": "=", "not_equal": "<>", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_INTEGERS: Final = (2, 3, 5, 7)  # fields of Literal: i8, i16, i32, i64


class _UnknownError(Exception):
    """The expression has a part that this module does not support."""


def tree_of(expression: pc.Expression, schema: Schema) -> Node | None:
    """Convert a pyarrow condition on columns of the schema to a tree of Nyala.

    Returns None if the condition has a part that this module does not support.
    """
    # If an integer column is compared with a double, Arrow casts the column, but its Substrait
    # message lacks this cast. With integers declared as doubles no cast is needed. 64-bit integers
    # are only tried last: a double may round them.
    for integer_bits in (32, 64):
        widened = [
            field.with_type(pa.float64()) if _is_number(field.type, integer_bits) else field
            for field in schema.arrow_schema()
        ]
        try:
            message = list(_fields(memoryview(bytes(expression.to_substrait(pa.schema(widened))))))
            return _condition(message, schema.names, exact_doubles=integer_bits == 64)
        except (
            pa.ArrowException,
            _UnknownError,
            KeyError,
            ValueError,
            IndexError,
            OverflowError,
            struct.error,
        ):
            pass
    return None


def _is_number(type: pa.DataType, integer_bits: int) -> bool:
    """Whether the type is a float, or an integer of at most `integer_bits` bits."""
    types = pa.types
    return bool(types.is_floating(type) or (types.is_integer(type) and type.bit_width <= integer_bits))


def _condition(message: list[tuple[int, Any]], names: Sequence[str], *, exact_doubles: bool) -> Node:
    functions = {}
    for declaration in _all(message, 2):
        for function in _all(_fields(declaration), 3):
            parts = dict(_fields(function))
            functions[parts.get(2, 0)] = bytes(parts[3]).decode()
    (referred,) = _all(message, 3)
    tree = _node(_one(referred, 1), functions, names)
    if exact_doubles and any(abs(number) >= 2**53 for number in _numbers(tree)):
        raise _UnknownError  # several integers have the same double
    return tree


def _numbers(node: Node) -> Iterator[decimal.Decimal]:
    values = [node.value] if isinstance(node, Literal) else node.literals if isinstance(node, InList) else ()
    yield from (value for value in values if isinstance(value, decimal.Decimal))
    for part in children_of(node):
        yield from _numbers(part)


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a protobuf message as (number of the field, int or bytes)."""
    position = 0

    def number() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while position < len(data):
        key = number()
        kind = key & 7
        if kind == 0:
            yield key >> 3, number()
            continue
        if kind not in (1, 2, 5):
            raise _UnknownError
        size = {1: 8, 5: 4}.get(kind) or (number() if kind == 2 else 0)
        yield key >> 3, data[position : position + size]
        position += size


def _all(fields: Any, wanted: int) -> list[Any]:
    return [value for field, value in fields if field == wanted]


def _one(message: Any, wanted: int) -> Any:
    (found,) = _all(_fields(message), wanted)
    return found


def _node(message: Any, functions: dict[int, str], names: Sequence[str]) -> Node:
    ((kind, content),) = _fields(message)
    if kind == 1:
        return Literal(_literal(content))
    if kind == 2:
        segment = dict(_fields(_one(_one(content, 1), 2)))
        return Column(names[segment.get(1, 0)])
    if kind == 8:
        fields = list(_fields(content))
        part = _node(_all(fields, 1)[0], functions, names)
        values = [_literal(_one(option, 1)) for option in _all(fields, 2)]
        # Arrow's isin is never NULL, and NULL in the list matches NULL.
        listed: Node = IsTrue(InList(part, tuple(value for value in values if value is not None)))
        return any_of((listed, IsNull(part))) if None in values else listed
    if kind != 3:
        raise _UnknownError
    fields = list(_fields(content))
    function = functions[dict(fields).get(1, 0)]
    parts = [_node(_one(argument, 3), functions, names) for argument in _all(fields, 4)]
    match function, parts:
        case "and", _:
            return all_of(parts)
        case "or", _:
            return any_of(parts)
        case "not", [part]:
            return negate(part)
        case (("is_null" | "is_not_null"), [part]):
            return IsNull(part, function == "is_not_null")
        case "is_nan", [part]:
            return compare(part, "=", Literal(to_literal(float("nan"))))
        case _, [left, right] if function in _OPERATORS:
            return compare(left, _OPERATORS[function], right)
    raise _UnknownError


def _literal(message: Any) -> Any:
    found = [(kind, value) for kind, value in _fields(message) if kind not in (50, 51)]  # nullable, variation
    ((kind, value),) = found
    if kind == 1:
        return bool(value)
    if kind in _INTEGERS:
        return value - (1 << 64) if value >= 1 << 63 else value
    if kind in (10, 11):
        return to_literal(struct.unpack("<f" if kind == 10 else "<d", value)[0])
    if kind == 12:
        return bytes(value).decode()
    if kind == 13:
        return bytes(value)
    if kind == 14:
        return _EPOCH + dt.timedelta(microseconds=value - (1 << 64) if value >= 1 << 63 else value)
    if kind == 16:
        return (_EPOCH + dt.timedelta(days=value - (1 << 64) if value >= 1 << 63 else value)).date()
    if kind == 24:
        fields = dict(_fields(value))
        unscaled = int.from_bytes(fields[1], "little", signed=True)
        return decimal.Decimal(unscaled).scaleb(-fields.get(3, 0), decimal.Context(prec=80))
    if kind == 29:
        return None
    raise _UnknownError
