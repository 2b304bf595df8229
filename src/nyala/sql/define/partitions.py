"""Reads PARTITION BY HASH (columns) PARTITIONS n [SEED n] and PARTITION BY RANGE (columns) (PARTITION …, …).

    PARTITION VALUES < 10                      values below 10
    PARTITION 10 <= VALUES < 20                values from 10 to below 20
    PARTITION VALUE = 'a'                      one value
    PARTITION 20 <= VALUES                     values from 20 on
    PARTITION (1, 'a') <= VALUES < (2, 'b')    the same for two columns
    PARTITION UNBOUNDED                        all values

Source: Apache Kudu schema design, "Partitioning"; Apache Impala, "CREATE TABLE", PARTITION BY.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nyala.errors import InvalidArgumentError
from nyala.partition.hashing import DEFAULT_SEED
from nyala.partition.levels import HashSpec, RangeSpec, hash_partition, range_partition
from nyala.partition.ranges import RangeBound
from nyala.sql.define.columns import constant
from nyala.sql.tokens import TokenReader


def read_partitions(reader: TokenReader, key: Sequence[str]) -> list[HashSpec | RangeSpec]:
    """Read what follows PARTITION BY. key: the columns if the text names none. Raises: InvalidArgumentError."""
    out: list[HashSpec | RangeSpec] = []
    while True:
        if reader.take("HASH"):
            columns = reader.names() if reader.at("(") else list(key)
            if not reader.take("BUCKETS"):
                reader.need("PARTITIONS")
            buckets = _count(reader, "PARTITIONS")
            seed = DEFAULT_SEED
            if reader.take("SEED"):
                seed = -_count(reader, "SEED") if reader.take("-") else _count(reader, "SEED")
            out.append(hash_partition(*columns, buckets=buckets, seed=seed))
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


def _count(reader: TokenReader, word: str) -> int:
    token = reader.next()
    if not token.text.isdecimal():
        raise InvalidArgumentError(f"{word} takes a number, not {token.text}")
    return int(token.text)


def read_bound(reader: TokenReader) -> RangeBound:
    """Read one range: `[PARTITION] 10 <= VALUES < 20`. Raises: InvalidArgumentError."""
    reader.take("PARTITION")
    if reader.take("VALUE", "="):
        value = _value(reader.rest())
        return RangeBound(value, value, True, True)
    if reader.take("UNBOUNDED"):
        reader.finish()
        return RangeBound()
    lower: Any = None
    upper: Any = None
    lower_inclusive, upper_inclusive = True, False
    if not reader.at("VALUES"):
        text = reader.until(("<", "VALUES"), ("<=", "VALUES"))
        if not text or reader.ended:
            raise _no_range(reader)
        lower_inclusive = reader.take("<=") or not reader.take("<")
        lower = _value(text)
    reader.need("VALUES")
    if not reader.ended:
        upper_inclusive = reader.take("<=")
        if (not upper_inclusive and not reader.take("<")) or reader.ended:
            raise _no_range(reader)
        upper = _value(reader.rest())
    if lower is None and upper is None:
        raise _no_range(reader)
    return RangeBound(lower, upper, lower_inclusive, upper_inclusive)


def _no_range(reader: TokenReader) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{' '.join(reader.text.split())!r} is not a range: write 10 <= VALUES < 20, VALUES < 10, 20 <= VALUES or "
        "VALUE = 10, with constants of the range's columns"
    )


def _value(text: str) -> Any:
    """Return a bound: one value, or a tuple with one value for each column. Raises: InvalidArgumentError."""
    reader = TokenReader(text)
    items = [text]
    if reader.at("("):
        inside = reader.parenthesised()
        items = TokenReader(inside).listed() if reader.ended else items
    values = tuple(constant(item) for item in items)
    if None in values:
        raise InvalidArgumentError(
            f"a bound of a range cannot be NULL: for a range without this bound, leave out {text}"
        )
    return values if len(values) > 1 else values[0]
