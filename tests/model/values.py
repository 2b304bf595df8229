"""Column types with values for tests, and predicates as data.

A predicate is a tuple that prints as code, such as ("and", ("=", "a", 3), ("is null", "b")). `text`
returns it as text for `where=`, and `holds` evaluates it for a row in SQL's three-valued logic:
True, False or None.
"""

from __future__ import annotations

import datetime as dt
import random
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

UTC = dt.UTC
NAN = float("nan")

# For each type its least and greatest values, and values that are hard for encodings.
VALUES: Mapping[str, Sequence[Any]] = {
    "int8": [-128, 0, 1, 2, 127],
    "int16": [-(2**15), 0, 1, 2, 2**15 - 1],
    "int32": [-(2**31), 0, 1, 2, 2**31 - 1],
    "int64": [-(2**63), 0, 1, 2, 2**63 - 1],
    "float": [0.0, 1.5, float("-inf"), NAN],
    "double": [0.0, 1.5, 0.1, float("-inf"), NAN],
    "decimal(4,1)": [Decimal("-999.9"), Decimal("0.0"), Decimal("0.1"), Decimal("999.9")],
    "decimal(12,1)": [Decimal("-99999999999.9"), Decimal("0.1"), Decimal("7.0")],
    "decimal(38,1)": [Decimal(-(10**36)), Decimal("0.1")],
    "varchar(2)": ["", "a", "ab", "é"],
    "varchar(40)": ["", "a", "ab", "abc", "x" * 40],
    "string": ["", "a", "a\0", "abc", "日本", "y" * 70],
    "binary": [b"", b"a", b"a\0", b"\xff\xff"],
    "bool": [False, True],
    "date": [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)],
    "timestamp": [dt.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), dt.datetime(2026, 3, 1, tzinfo=UTC)],
}
WIDER: Mapping[str, Sequence[str]] = {
    "int8": ["int16", "int32", "int64"],
    "int16": ["int32", "int64"],
    "int32": ["int64"],
    "float": ["double"],
    "decimal(4,1)": ["decimal(12,1)", "decimal(38,1)"],
    "decimal(12,1)": ["decimal(38,1)"],
    "varchar(2)": ["varchar(40)", "string"],
    "varchar(40)": ["string"],
}
_NUMBERS = ("auto", "plain", "bitshuffle", "rle", "for")
_TEXT = ("auto", "plain", "prefix", "dictionary")
COMPRESSIONS = ("none", "lz4", "snappy", "zlib", "zstd", "default")


def encodings(type: str) -> tuple[str, ...]:
    family = type.partition("(")[0]
    if family in ("string", "varchar", "binary"):
        return _TEXT
    if family == "bool":
        return ("auto", "plain", "rle")
    if family in ("float", "double"):
        return ("auto", "plain", "bitshuffle", "alp")
    if family == "decimal":
        return ("auto", "plain", "bitshuffle", "for")
    return _NUMBERS


def column_of(type: str, chance: random.Random) -> Callable[[int], Any]:
    """Return a function from a row number to a value, which makes columns as they are in practice.

    The values are random, all equal, a few distinct ones, close together, or rising. Each of these
    is encoded in another way.
    """
    form = chance.choice(["any", "any", "one", "few", "near", "near", "line", "line"])
    few = list(VALUES[type]) if form == "any" else chance.choices(VALUES[type], k=1 if form == "one" else 2)
    if form in ("any", "one", "few"):
        return lambda n: chance.choice(few)
    step = chance.choice([1, 1, 3, 1000, -1]) if form == "line" else 0
    spread = chance.choice([0, 0, 20]) if form == "line" else chance.choice([1, 10, 300, 70_000])
    first = chance.choice([0, -500, 2**31 - 100, 2**53, -(2**63), 2**63 - 1000])
    return lambda n: _nth(type, first, step * n + chance.randint(0, spread))


def _nth(type: str, first: int, n: int) -> Any:
    family, _, parameters = type.partition("(")
    match family:
        case "int8" | "int16" | "int32" | "int64":
            most = 2 ** (int(family[3:]) - 1)
            return max(-most, min(most - 1, first + n))
        case "decimal":
            precision, scale = map(int, parameters.rstrip(")").split(","))
            most = 10**precision - 1
            digits = tuple(map(int, str(abs(value := max(-most, min(most, first + n))))))
            return Decimal((int(value < 0), digits, -scale))
        case "float" | "double":
            return n / 2
        case "bool":
            return n % 3 == 0
        case "date":
            return dt.date(2000, 1, 1) + dt.timedelta(n % 10_000)
        case "timestamp":
            return dt.datetime(2026, 3, 1, tzinfo=UTC) + dt.timedelta(microseconds=n)
        case "binary":
            return f"w{n}".encode()
        case _:
            return f"{n % 50:02d}" if type == "varchar(2)" else f"w{n}"


def plain(found: Any) -> Any:
    """Return the value with "NaN" in place of NaN, which does not equal itself."""
    if isinstance(found, float) and found != found:
        return "NaN"
    if isinstance(found, dict):
        return {name: plain(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [plain(value) for value in found]
    return found


def same(found: Any, wanted: Any) -> bool:
    return bool(found == wanted) or plain(found) == plain(wanted)


# ── predicates ────────────────────────────────────────────────────────────────────────────────────

Predicate = tuple[Any, ...]


def literals(type: str) -> list[Any]:
    """Return the values of the type that can be literals in a predicate's text."""
    return [value for value in VALUES[type] if nameable(value)]


def nameable(value: Any) -> bool:
    if isinstance(value, float):
        return value == value and abs(value) != float("inf")
    return (
        value is not None and not isinstance(value, bytes) and not (isinstance(value, str) and "\0" in value)
    )


def text(predicate: Predicate) -> str:
    word, *rest = predicate
    if word in ("and", "or"):
        return f" {word.upper()} ".join(f"({text(part)})" for part in rest)
    if word == "not":
        return f"NOT ({text(rest[0])})"
    column = '"' + rest[0].replace('"', '""') + '"'
    if word in ("is null", "is not null"):
        return f"{column} {word.upper()}"
    if word == "in":
        return f"{column} IN ({', '.join(map(_literal, rest[1]))})"
    if word == "between":
        return f"{column} BETWEEN {_literal(rest[1])} AND {_literal(rest[2])}"
    return f"{column} {word.upper()} {_literal(rest[1])}"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, dt.datetime | dt.date):
        return f"'{value.isoformat()}'"
    return format(value, "f") if isinstance(value, Decimal) else repr(value)


def columns_of(predicate: Predicate) -> set[str]:
    word, *rest = predicate
    if word in ("and", "or", "not"):
        return set().union(*map(columns_of, rest))
    return {rest[0]}


def holds(predicate: Predicate, row: Mapping[str, Any]) -> bool | None:
    word, *rest = predicate
    if word == "and":
        parts = [holds(part, row) for part in rest]
        return False if False in parts else None if None in parts else True
    if word == "or":
        parts = [holds(part, row) for part in rest]
        return True if True in parts else None if None in parts else False
    if word == "not":
        inner = holds(rest[0], row)
        return None if inner is None else not inner
    value = row[rest[0]]
    if word in ("is null", "is not null"):
        return (value is None) == (word == "is null")
    if value is None:
        return None
    if word == "in":
        return value in rest[1]
    if word == "between":
        return _compare(">=", value, rest[1]) and _compare("<=", value, rest[2])
    if word == "like":
        pattern = "".join(".*" if c == "%" else "." if c == "_" else re.escape(c) for c in rest[1])
        return re.fullmatch(pattern, value, re.DOTALL) is not None
    return _compare(word, value, rest[1])


def _compare(word: str, value: Any, other: Any) -> bool:
    if isinstance(value, float) and value != value:  # NaN is greater than all other values
        return word in (">", ">=", "<>")
    match word:
        case "=":
            return bool(value == other)
        case "<>":
            return bool(value != other)
        case "<":
            return bool(value < other)
        case "<=":
            return bool(value <= other)
        case ">":
            return bool(value > other)
        case _:
            return bool(value >= other)
