"""Has Spark evaluate constant expressions of a statement, such as `at >= now() - INTERVAL 7 DAYS`.

    at >= now() - INTERVAL 7 DAYS      OpenTerm("at", ">=", "NOW() - INTERVAL '7' DAYS")     constant_of, here
    day < DATE '1994-01-01' + INTERVAL 1 YEAR
                    │  one statement for all of them, answered without a job
                    ▼
    at >= 1795392000000000, day < DATE '1995-01-01'                                          valued, here

The value of a time's text depends on the session's time zone, the sum of a date and an interval on types, and overflow
on a setting. So Spark computes every value. Spark also evaluates the term itself again; the scan only skips rows early.

Invariants
    C1  An expression consists of literals, arithmetic, casts to dates and times, intervals and a few date functions.
        Two evaluations can differ only by the present moment. Texts must begin with a digit, because 'now' and 'today'
        mean the present moment too.
    C2  The present moment is allowed only under `>` and `>=`, and only if a later moment raises the value or lowers it
        by less than SLACK_US. The value is computed before the statement runs. The scan uses the value minus the slack,
        so it has every row that the statement needs. (A month before March 30th, 23:00, is February 29th, 23:00; two
        hours later it is February 29th, 1:00. Days with clock changes do the same.) So an expression has at most one
        calendar step, and nothing that enlarges its error: no second calendar step, no function of the result.
    C3  The value has the column's type, or a type that Spark converts to it without another interpretation: a date for
        a timestamp, a text for either, a narrower number for a number.

Source: Spark's ComputeCurrentTime (one moment for each statement), its type coercion of comparisons.
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

__all__ = ["SLACK_US", "Constant", "OpenTerm", "can_be_open", "constant_of", "valued"]

Node: TypeAlias = Any
"""A node of sqlglot's syntax tree. Its class is recognised by name, so that this module does not import sqlglot."""

# Texts whose meaning depends neither on Spark's reading of backslashes nor on the present moment.
_PLAIN: Final = re.compile(r"[+-]?\d[\w :.,+\-/]*", re.ASCII)
_TIMES: Final = frozenset(["DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"])
_ARITHMETIC: Final = frozenset(["Add", "Sub", "Mul"])
_PRESENT: Final = frozenset(["CurrentDate", "CurrentTimestamp"])
_OF_DATES: Final = frozenset(["TsOrDsAdd", "DateAdd", "DateSub", "AddMonths", "TimestampTrunc"])
# Units of intervals that have the same length at any date and in any time zone.
_BY_THE_CLOCK: Final = frozenset(
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
# With this setting, Spark compares a time and a text as texts.
_TIMES_AS_TEXTS: Final = "spark.sql.legacy.typeCoercion.datetimeToString.enabled"
_EPOCH_ORDINAL: Final = dt.date(1970, 1, 1).toordinal()


@dataclass(frozen=True)
class OpenTerm:
    """A comparison `column op value`; `text` is the expression of the value.

    type:     the column's type.
    slack_us: subtracted from a timestamp (C2). Nothing is subtracted from a date.
    """

    column: str
    op: str
    text: str
    type: pa.DataType
    slack_us: int = 0


@dataclass(frozen=True)
class Constant:
    """An expression without columns.

    present:  whether it contains the present moment.
    slack_us: by how much a later moment can lower its value (C2).
    """

    text: str
    present: bool
    slack_us: int = 0


def can_be_open(type: pa.DataType) -> bool:
    """Whether a column of this type can be compared with a value that Spark computes."""
    return bool(
        pa.types.is_timestamp(type)
        or pa.types.is_date(type)
        or pa.types.is_integer(type)
        or pa.types.is_decimal(type)
    )


def constant_of(node: Node) -> Constant | None:
    """Return the expression as a constant; None if Spark cannot evaluate it in advance (C1, C2)."""
    present = _present(node)
    steps = _steps_by_calendar(node) if present else 0
    if present is None or steps > 1:
        return None
    return Constant(node.sql(dialect="spark"), present, SLACK_US * steps)


def _present(node: Node) -> bool | None:
    """Whether the expression contains the present moment; None if it is not allowed (C1, C2)."""
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
        return _present_once(node.this) if node.to.sql(dialect="spark").upper() in _TIMES else None
    if kind in _ARITHMETIC:
        if not _is_written_as_read(node):
            return None
        left, right = _present(node.left), _constant(node.right)
        return None if left is None or right is None or (left and kind == "Mul") else left
    if kind == "Interval":
        units = [part for part in node.walk() if type(part).__name__ not in ("Interval", "Literal")]
        whole = node.this is not None and _constant(node.this) is not None
        return (
            False if whole and all(type(part).__name__ in ("Var", "IntervalSpan") for part in units) else None
        )
    if kind in _OF_DATES:
        rest = [part for name, part in node.args.items() if name not in ("this", "unit", "zone") and part]
        if node.args.get("zone") or type(node.args.get("unit")).__name__ not in ("Var", "NoneType"):
            return None
        if any(isinstance(part, str | list | bool) or _constant(part) is None for part in rest):
            return None
        return _present_once(node.this)
    return None


def _present_once(node: Node) -> bool | None:
    """Like `_present`, for the argument of a cast or function, which may lower it by more than SLACK_US (C2)."""
    found = _present(node)
    return None if found and _steps_by_calendar(node) else found


def _steps_by_calendar(node: Node) -> int:
    """Count the intervals of days or longer units in the expression."""
    units = [str(part.args.get("unit")).upper() for part in node.walk() if type(part).__name__ == "Interval"]
    return sum(unit not in _BY_THE_CLOCK for unit in units)


def _is_written_as_read(node: Node) -> bool:
    """Whether the expression's text parses as the same sums and products again.

    sqlglot's text has no parentheses, and `x - INTERVAL 1 DAY 2 HOURS` subtracts a sum.
    """
    of_sums = type(node).__name__ != "Mul"
    left, right = type(node.left).__name__, type(node.right).__name__
    return right not in (("Add", "Sub") if of_sums else _ARITHMETIC) and (
        of_sums or left not in ("Add", "Sub")
    )


def _constant(node: Node) -> bool | None:
    """Like `_present`, but return None if the expression contains the present moment."""
    return False if _present(node) is False else None


def _is_plain(node: Node) -> bool:
    """Whether a text literal has no escapes and matches `_PLAIN`."""
    text, meta = str(node.this), node.meta
    as_written = "start" not in meta or meta["end"] - meta["start"] == len(text) + 1
    return as_written and _PLAIN.fullmatch(text) is not None


def valued(spark: SparkSession, terms: Sequence[OpenTerm]) -> list[Predicate | None]:
    """Return the terms with values that Spark computed; None for a value that the scan may not use (C3).

    Cost: one Spark statement without a job for all terms, about 20 ms.
    """
    if not terms:
        return []
    if spark.conf.get(_TIMES_AS_TEXTS, "false") == "true":
        return [None] * len(terms)
    items = ", ".join(f"typeof({term.text}), {_as_number(term)}" for term in terms)
    try:
        # VALUES avoids the job that a SELECT without FROM would start.
        (row,) = spark.sql(f"SELECT {items} FROM VALUES (0)").collect()
    except PySparkException:  # if the statement needs the value, Spark raises the error again
        return [None] * len(terms)
    return [_with_value(term, *row[2 * number : 2 * number + 2]) for number, term in enumerate(terms)]


def _as_number(term: OpenTerm) -> str:
    """Return the SQL for the value. Times are numbers, because Python would convert them to its own time zone."""
    if pa.types.is_timestamp(term.type):
        return f"unix_micros(CAST({term.text} AS TIMESTAMP_LTZ))"
    if pa.types.is_date(term.type):
        return f"unix_date(CAST({term.text} AS DATE))"
    return f"({term.text})"


def _with_value(term: OpenTerm, kind: str, value: Any) -> Predicate | None:
    if value is None:
        return None
    if pa.types.is_timestamp(term.type):
        return compare(term.column, term.op, value - term.slack_us) if kind in _READ_AS_TIME else None
    if pa.types.is_date(term.type):
        # If the value has a time of day, Spark compares timestamps.
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
    # Spark compares decimals with the digits that both need, up to 38. Beyond that it rounds one of them.
    digits = max(whole, term.type.precision - term.type.scale) + max(scale, term.type.scale)
    return compare(term.column, term.op, value) if digits <= _DIGITS_MAX else None
