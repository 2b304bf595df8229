"""Translates terms of a statement for Spark into Nyala predicates. A term is a condition of WHERE
or ON that is joined to others by AND.

    translate       translates a whole term, such as a.k > 5 AND a.s IN ('x', 'y'), or returns None
    implied_parts   for other terms: yields predicates that follow from the term. For example, from
                    (a.k > 5 AND u.k = 1) OR a.k < 0 follows a.k > 5 OR a.k < 0

A term is translated only if it means the same in Spark and Nyala: a column is compared with a
literal that its type holds exactly. A comparison with a constant expression, such as a.day >=
current_date() - 7, is a pending term, whose value Spark computes (`constants`).
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from nyala.schema.expressions.nodes import Column, InList, IsNull, all_of, any_of, compare, negate
from nyala.schema.expressions.nodes import Node as Predicate
from nyala.spark.statements.constants import PendingTerm, can_be_pending, constant_of
from nyala.spark.statements.parser import Node, sqlglot

__all__ = ["implied_parts", "translate"]

_COMPARISONS: Final = {"EQ": "=", "NEQ": "<>", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
_MIRRORED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def translate(node: Node, alias: str, schema: pa.Schema) -> Predicate | None:
    """Return the condition `node` as a Nyala predicate; None if no predicate has the same meaning.

    It can be translated if it compares columns of the scanned table with literals that the columns'
    types hold exactly, also with IN, BETWEEN, IS NULL, AND, OR and NOT.

    alias, schema: the name of the scanned table in the statement, and its schema.
    """
    exp = sqlglot().exp
    node = node.unnest()
    if isinstance(node, exp.And | exp.Or):
        parts = [translate(part, alias, schema) for part in node.flatten()]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return all_of(known) if isinstance(node, exp.And) else any_of(known)
    if isinstance(node, exp.Not):
        part = translate(node.this, alias, schema)
        return None if part is None else negate(part)
    if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
        name = _column(node.this, alias, schema)
        return None if name is None else IsNull(Column(name))
    if isinstance(node, exp.Between):
        if node.args.get("symmetric"):
            return None
        parts = [
            _compare(node.this, op, node.args[bound], alias, schema)
            for op, bound in ((">=", "low"), ("<=", "high"))
        ]
        return None if None in parts else all_of(part for part in parts if part is not None)
    if isinstance(node, exp.In) and node.expressions and not node.args.get("query"):
        name = _column(node.this, alias, schema)
        if name is None:
            return None
        values = [_value(part, schema.field(name).type) for part in node.expressions]
        return None if None in values else InList(Column(name), tuple(values))
    op = _COMPARISONS.get(type(node).__name__)
    if op is None:
        return None
    found = _compare(node.left, op, node.right, alias, schema)
    return _compare(node.right, _MIRRORED[op], node.left, alias, schema) if found is None else found


def implied_parts(node: Node, alias: str, schema: pa.Schema) -> Iterator[Predicate | PendingTerm]:
    """Yield conditions that are true for all rows for which `node` is true.

    For a `node` that `translate` cannot translate: the scan can use the yielded conditions in its
    place. Each is a predicate, or a PendingTerm if Spark must compute its value.

    alias, schema: the name of the scanned table in the statement, and its schema.
    """
    exp = sqlglot().exp
    node = node.unnest()
    if isinstance(node, exp.Or):
        implied = _implied(node, alias, schema)
        if implied is not None:
            yield implied
        return
    if isinstance(node, exp.Between):
        sides = [(node.this, ">=", node.args["low"]), (node.this, "<=", node.args["high"])]
        if node.args.get("symmetric"):
            return
    elif (op := _COMPARISONS.get(type(node).__name__)) is not None:
        sides = [(node.left, op, node.right), (node.right, _MIRRORED[op], node.left)]
    else:
        return
    for left, op, right in sides:
        name = _column(left, alias, schema)
        if name is None or not can_be_pending(schema.field(name).type):
            continue
        closed = _compare(left, op, right, alias, schema)
        if closed is not None:
            yield closed
        elif (found := constant_of(right)) is not None and (op in (">", ">=") or not found.present):
            yield PendingTerm(name, op, found.text, schema.field(name).type, found.slack_us)


def _implied(node: Node, alias: str, schema: pa.Schema) -> Predicate | None:
    """Return a predicate that is true for all rows for which `node` is true, or None.

    The scan can use it in place of a condition that cannot be translated as a whole. For an AND,
    the result is the AND of those parts that can be translated. For an OR, every branch must give a
    predicate, and the result is the OR of these.

    alias, schema: the name of the scanned table in the statement, and its schema.
    """
    exp = sqlglot().exp
    node = node.unnest()
    whole = translate(node, alias, schema)
    if whole is not None or not isinstance(node, exp.And | exp.Or):
        return whole
    parts = [_implied(part, alias, schema) for part in node.flatten()]
    known = [part for part in parts if part is not None]
    if isinstance(node, exp.And):
        return all_of(known) if known else None
    return any_of(known) if len(known) == len(parts) else None


def _compare(left: Node, op: str, right: Node, alias: str, schema: pa.Schema) -> Predicate | None:
    name = _column(left, alias, schema)
    if name is None:
        return None
    value = _value(right, schema.field(name).type)
    return None if value is None else compare(name, op, value)


def _column(node: Node, alias: str, schema: pa.Schema) -> str | None:
    exp = sqlglot().exp
    node = node.unnest()
    if not isinstance(node, exp.Column) or node.table != alias:
        return None
    return next((name for name in schema.names if name.lower() == node.name.lower()), None)


def _value(node: Node, type: pa.DataType) -> Any:
    """Return the literal as a value of the column's type, or None if Spark might convert it
    differently.

    Returns None for a timestamp, because the meaning of its text depends on the time zone. Returns
    None for a float, because Spark compares it as double.
    """
    exp = sqlglot().exp
    node = node.unnest()
    sign = 1
    if isinstance(node, exp.Neg):
        sign, node = -1, node.this
        if not isinstance(node, exp.Literal) or node.is_string:
            return None
    if isinstance(node, exp.Cast) and node.to.sql().upper() == "DATE":
        node, dated = node.this, True
    else:
        dated = False
    if not isinstance(node, exp.Literal):
        return None
    text = str(node.this)
    if node.is_string:
        if node.meta.get("end", -1) - node.meta.get("start", 0) != len(text) + 1:
            return None  # the meaning of a backslash depends on Spark's settings
        if pa.types.is_date32(type):
            if not _DAY.fullmatch(text):
                return None  # Python's fromisoformat also accepts other formats
            try:
                return dt.date.fromisoformat(text)
            except ValueError:
                return None
        return text if pa.types.is_string(type) and not dated else None
    if "e" in text.lower() and not pa.types.is_float64(type):
        return None  # Spark reads this literal as a double
    try:
        number = decimal.Decimal(text) * sign
    except decimal.InvalidOperation:
        return None
    if pa.types.is_integer(type):
        limit = 2 ** (type.bit_width - 1)
        return int(number) if number == int(number) and -limit <= number < limit else None
    if pa.types.is_float64(type):
        return number
    if pa.types.is_decimal(type):
        whole = number.scaleb(type.scale)
        return number if whole == int(whole) and abs(whole) < 10**type.precision else None
    return None
