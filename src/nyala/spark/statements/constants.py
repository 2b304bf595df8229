"""Lets Spark evaluate constant expressions of a statement, such as `at >= now() - INTERVAL 7 DAYS`.

A *pending term* is a comparison of a column with a constant expression whose value is not known
yet. `constant_of` recognises such an expression. `with_values` lets Spark compute the values of all
pending terms of a statement at once:

    at >= now() - INTERVAL 7 DAYS               becomes    at >= 1795392000000000
    day < DATE '1994-01-01' + INTERVAL 1 YEAR   becomes    day < DATE '1995-01-01'

Spark computes the values because they depend on its time zone, its types and its settings. The scan
uses the terms only to skip rows early; Spark evaluates them again.

Invariants
    C1  An expression has only literals, arithmetic, casts to dates and times, intervals and some
        date functions. So two evaluations can differ only by the present moment. Text literals must
        begin with a digit, because 'now' and 'today' mean the present moment too.
    C2  The present moment is allowed only in comparisons with `>` and `>=`. Spark computes such an
        expression twice: first for the scan, and a little later when the statement runs. The second
        value is usually greater. Then the scan, which uses the first value, returns all rows that
        the statement needs, and perhaps more. With a calendar step (an interval in days, months or
        longer units) the second value can also be smaller: one month before March 30th, 23:00 is
        February 29th, 23:00, but one month before March 31st, 1:00 is February 29th, 1:00. With one
        step, it is smaller by less than SLACK_US. So the scan uses the first value minus SLACK_US.
        An expression has at most one calendar step, and no function is applied to its result.
    C3  The value has the type of the column, or a type that Spark converts to it exactly: a date
        for a timestamp, a text for a date or timestamp, a narrower number for a wider one.

Source: Spark's ComputeCurrentTime (one moment for each statement), its type coercion of
comparisons.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException

from nyala.schema.expressions.nodes import Node as Predicate
from nyala.schema.expressions.nodes import compare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SLACK_US", "Constant", "PendingTerm", "can_be_pending", "constant_of", "with_values"]

Node: TypeAlias = Any
"""A node of sqlglot's syntax tree.

This module compares the names of its classes, and does not import sqlglot.
"""

# Texts without backslashes, whose meaning depends on a setting, and without words for the present moment.
_PLAIN: Final = re.compile(r"[+-]?\d[\w :.,+\-/]*", re.ASCII)
_TIMES: Final = frozenset(["DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"])
_ARITHMETIC: Final = frozenset(["Add", "Sub", "Mul"])
_PRESENT: Final = frozenset(["CurrentDate", "CurrentTimestamp"])
_DATE_FUNCTIONS: Final = frozenset(["TsOrDsAdd", "DateAdd", "DateSub", "AddMonths", "TimestampTrunc"])
# Units of intervals that always have the same length. Days and longer units may not, because clocks change.
_CLOCK_UNITS: Final = frozenset(
    unit + many for unit in ("HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND") for many in ("", "S")
)
# A day, plus the largest clock change.
SLACK_US: Final = 30 * 3_600_000_000
_READ_AS_TIME: Final = frozenset(["timestamp", "timestamp_ntz", "date", "string"])
# Integer types, and the digits of the decimals to which Spark converts them.
_WHOLE: Final = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}
_DIGITS_MAX: Final = 38
_TOO_MANY: Final = _DIGITS_MAX + 1
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
# With this setting, Spark compares a time with a text as two texts.
_TIMES_AS_TEXTS: Final = "spark.sql.legacy.typeCoercion.datetimeToString.enabled"
_EPOCH_ORDINAL: Final = dt.date(1970, 1, 1).toordinal()


@dataclass(frozen=True)
class PendingTerm:
    """A comparison `column op value` of a statement, whose value Spark must still compute.

    text:     the SQL expression of the value.
    type:     the column's type.
    slack_us: the scan compares the column with the computed timestamp minus this number of
        microseconds. The statement computes the timestamp again, a little later, and the result may
        be earlier by less than `slack_us`. For example, `now() - INTERVAL 1 MONTH` gives February
        29th, 23:00 on March 30th, 23:00, but February 29th, 1:00 on March 31st, 1:00. Because of
        the subtraction, the scan still returns all rows that the statement needs.
    """

    column: str
    op: str
    text: str
    type: pa.DataType
    slack_us: int = 0


@dataclass(frozen=True)
class Constant:
    """An expression without columns.

    text:     its SQL.
    present:  whether it contains the present moment, such as `now()`.
    slack_us: a margin in microseconds. If the expression is computed again later, the result may be
        earlier than the first result, but by less than the margin. The reason is that months differ
        in length and clocks change. 0: the later result is never earlier.
    """

    text: str
    present: bool
    slack_us: int = 0


def can_be_pending(type: pa.DataType) -> bool:
    """Whether a column of this type may be compared with a value that Spark computes for Nyala.

    For example, Spark computes the value of `now() - INTERVAL 7 DAYS` before a scan uses it. True
    for timestamps, dates, integers and decimals.
    """
    return bool(
        pa.types.is_timestamp(type)
        or pa.types.is_date(type)
        or pa.types.is_integer(type)
        or pa.types.is_decimal(type)
    )


def constant_of(node: Node) -> Constant | None:
    """Return the expression as a `Constant`, which Spark can compute before the statement runs.

    Return None if the value must not be computed before. For example, the expression contains a
    column or a random function, or adds two or more intervals of days or longer to the present
    moment. With such an interval, a later computation may give an earlier result, because days and
    months vary in length. The margin SLACK_US of the result is large enough for one interval only.
    """
    present = _present(node)
    steps = _calendar_steps(node) if present else 0
    if present is None or steps > 1:
        return None
    return Constant(node.sql(dialect="spark"), present, SLACK_US * steps)


def _present(node: Node) -> bool | None:
    """Return whether a constant expression contains the present moment, such as `now()`.

    Return None if the expression must not be computed before the statement runs, for example
    because it has a column.
    """
    kind = type(node).__name__
    if kind == "Literal":
        return False if not node.is_string or _is_plain(node) else None
    if kind in _PRESENT or (kind == "Anonymous" and node.name.upper() == "NOW"):
        return None if node.expressions or node.args.get("this") not in (None, "", node.name) else True
    if kind == "Paren":
        return _present(node.this)
    if kind == "Neg":
        return _constant(node.this)
    if kind in ("Cast", "TryCast"):
        return _present_in_argument(node.this) if node.to.sql(dialect="spark").upper() in _TIMES else None
    if kind in _ARITHMETIC:
        if not _parses_back(node):
            return None
        left, right = _present(node.left), _constant(node.right)
        return None if left is None or right is None or (left and kind == "Mul") else left
    if kind == "Interval":
        units = [part for part in node.walk() if type(part).__name__ not in ("Interval", "Literal")]
        whole = node.this is not None and _constant(node.this) is not None
        return (
            False if whole and all(type(part).__name__ in ("Var", "IntervalSpan") for part in units) else None
        )
    if kind in _DATE_FUNCTIONS:
        rest = [part for name, part in node.args.items() if name not in ("this", "unit", "zone") and part]
        if node.args.get("zone") or type(node.args.get("unit")).__name__ not in ("Var", "NoneType"):
            return None
        if any(isinstance(part, str | list | bool) or _constant(part) is None for part in rest):
            return None
        return _present_in_argument(node.this)
    return None


def _present_in_argument(node: Node) -> bool | None:
    """Return whether an argument of a cast or function contains the present moment, as `now()` does.

    Return None if the argument must not be computed before the statement runs. Such an argument has
    a column, for example, or is the present moment plus or minus days or longer units, as in
    `now() - INTERVAL 1 MONTH`.
    """
    found = _present(node)
    return None if found and _calendar_steps(node) else found


def _calendar_steps(node: Node) -> int:
    """Return the number of intervals in the expression that are not in hours or shorter units."""
    units = [str(part.args.get("unit")).upper() for part in node.walk() if type(part).__name__ == "Interval"]
    return sum(unit not in _CLOCK_UNITS for unit in units)


def _parses_back(node: Node) -> bool:
    """Whether the SQL that sqlglot writes for this arithmetic has the same meaning.

    sqlglot writes no parentheses, so `a - (b + c)` would become `a - b + c`. Such a sum also comes
    from an interval: in `x - INTERVAL 1 DAY 2 HOURS`, the right side is a sum.
    """
    of_sums = type(node).__name__ != "Mul"
    left, right = type(node.left).__name__, type(node.right).__name__
    return right not in (("Add", "Sub") if of_sums else _ARITHMETIC) and (
        of_sums or left not in ("Add", "Sub")
    )


def _constant(node: Node) -> bool | None:
    """Return False if the expression is a constant without the present moment, otherwise None.

    The result answers the question of `_present`: does the constant contain the present moment? So
    it is False for 5. It is None for `now()`, and for an expression with a column.
    """
    return False if _present(node) is False else None


def _is_plain(node: Node) -> bool:
    """Whether a text literal has a fixed meaning: it begins with a digit, and has no escapes.

    Other texts may mean the present moment, as 'now' does.
    """
    text, meta = str(node.this), node.meta
    as_written = "start" not in meta or meta["end"] - meta["start"] == len(text) + 1
    return as_written and _PLAIN.fullmatch(text) is not None


def with_values(spark: SparkSession, terms: Sequence[PendingTerm]) -> list[Predicate | None]:
    """Let Spark compute the values of the terms, and return each term as a predicate.

    A predicate is None if the value does not have a type that Spark compares with the column
    exactly, or if Spark cannot compute it. The scan then does not use this term.

    Cost: about 20 ms for one Spark statement, which computes all terms and starts no Spark job.
    """
    if not terms:
        return []
    if spark.conf.get(_TIMES_AS_TEXTS, "false") == "true":
        return [None] * len(terms)
    items = ", ".join(f"typeof({term.text}), {_as_number(term)}" for term in terms)
    try:
        # With VALUES, Spark needs no job. A SELECT without FROM would start one.
        (row,) = spark.sql(f"SELECT {items} FROM VALUES (0)").collect()
    except PySparkException:  # the statement itself raises this error again, if it evaluates the expression
        return [None] * len(terms)
    return [_with_value(term, *row[2 * number : 2 * number + 2]) for number, term in enumerate(terms)]


def _as_number(term: PendingTerm) -> str:
    """Return the SQL expression of the term's value, in which dates and times become numbers.

    The value arrives as a number, because Python would convert a time to its own time zone.
    """
    if pa.types.is_timestamp(term.type):
        return f"unix_micros(CAST({term.text} AS TIMESTAMP_LTZ))"
    if pa.types.is_date(term.type):
        return f"unix_date(CAST({term.text} AS DATE))"
    return f"({term.text})"


def _with_value(term: PendingTerm, kind: str, value: Any) -> Predicate | None:
    """Return the term as a predicate with the computed value.

    kind: Spark's type of the value.
    Returns: None for NULL, for a value outside the column's range, and for a type that Spark does
        not convert exactly to the column's type.
    """
    if value is None:
        return None
    if pa.types.is_timestamp(term.type):
        return compare(term.column, term.op, value - term.slack_us) if kind in _READ_AS_TIME else None
    if pa.types.is_date(term.type):
        # Spark compares a date with a timestamp as two timestamps, so such a value is not used.
        ordinal = value + _EPOCH_ORDINAL
        if kind not in ("date", "string") or not 1 <= ordinal <= dt.date.max.toordinal():
            return None
        return compare(term.column, term.op, dt.date.fromordinal(ordinal))
    if pa.types.is_integer(term.type):
        limit = 2 ** (term.type.bit_width - 1)
        return compare(term.column, term.op, value) if kind in _WHOLE and -limit <= value < limit else None
    found = _DECIMAL.fullmatch(kind)
    whole, scale = (
        (int(found[1]) - int(found[2]), int(found[2])) if found else (_WHOLE.get(kind, _TOO_MANY), 0)
    )
    # Spark compares decimals exactly if their digits fit into 38. Otherwise it rounds one of them.
    digits = max(whole, term.type.precision - term.type.scale) + max(scale, term.type.scale)
    return compare(term.column, term.op, value) if digits <= _DIGITS_MAX else None
