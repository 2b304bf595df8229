"""PARTITION BY clauses: HASH (columns) PARTITIONS n, RANGE (columns) (PARTITION …).

    PARTITION VALUES < 10             below 10
    PARTITION 10 <= VALUES < 20       [10, 20)
    PARTITION VALUE = 'a'             one value
    PARTITION 20 <= VALUES            from 20 on
    PARTITION (1, 'a') <= VALUES < (2, 'b')

Source: Apache Kudu schema design, "Partitioning"; Apache Impala, "CREATE TABLE", PARTITION BY.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nyala.errors import InvalidArgumentError
from nyala.partition.levels import HashSpec, RangeSpec, hash_partition, range_partition
from nyala.partition.ranges import RangeBound
from nyala.sql.define.columns import constant
from nyala.sql.tokens import TokenReader

__all__ = ["read_bound", "read_partitions"]


def read_partitions(reader: TokenReader, key: Sequence[str]) -> list[HashSpec | RangeSpec]:
    """Read what follows PARTITION BY. Raises: InvalidArgumentError."""
    out: list[HashSpec | RangeSpec] = []
    while True:
        if reader.take("HASH"):
            columns = reader.names() if reader.at("(") else list(key)
            reader.need("PARTITIONS") if not reader.take("BUCKETS") else None
            out.append(hash_partition(*columns, buckets=_count(reader)))
        elif reader.take("RANGE"):
            columns = reader.names() if _names_columns(reader) else list(key)
            bounds = None
            if reader.at("("):
                inside = reader.parenthesised()
                items = TokenReader(inside).listed() if inside.strip() else []
                bounds = [read_bound(TokenReader(item)) for item in items]
            out.append(range_partition(*columns, bounds=bounds))
        else:
            raise reader.error("expected HASH (columns) PARTITIONS n, or RANGE (columns) (PARTITION …)")
        if not reader.take(","):
            return out


def _names_columns(reader: TokenReader) -> bool:
    following = reader.peek(1)
    return reader.at("(") and following is not None and following.keyword != "PARTITION"


def _count(reader: TokenReader) -> int:
    token = reader.next()
    if not token.text.isdecimal():
        raise InvalidArgumentError(f"PARTITIONS takes a number, not {token.text}")
    return int(token.text)


def read_bound(reader: TokenReader) -> RangeBound:
    """Read `[PARTITION] …` of one range. Raises: InvalidArgumentError."""
    reader.take("PARTITION")
    if reader.take("VALUE"):
        reader.need("=")
        value = _value(reader.rest())
        return RangeBound(value, value, True, True)
    lower: Any = None
    upper: Any = None
    lower_inclusive, upper_inclusive = True, False
    if not reader.at("VALUES"):
        lower = _value(reader.until(("<",), ("<=",)))
        lower_inclusive = reader.take("<=")
        if not lower_inclusive:
            reader.need("<")
    reader.need("VALUES")
    if reader.take("<="):
        upper, upper_inclusive = _value(reader.rest()), True
    elif reader.take("<"):
        upper = _value(reader.rest())
    reader.finish()
    if lower is None and upper is None:
        raise InvalidArgumentError("a range partition needs a lower bound, an upper bound, or VALUE = …")
    return RangeBound(lower, upper, lower_inclusive, upper_inclusive)


def _value(text: str) -> Any:
    reader = TokenReader(text)
    if reader.at("("):
        inside = reader.parenthesised()
        items = TokenReader(inside).listed()
        if reader.ended and len(items) > 1:
            return tuple(constant(item) for item in items)
    return constant(text)
