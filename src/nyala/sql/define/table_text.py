"""Writes the CREATE TABLE statement of an existing table, for SHOW CREATE TABLE.

Source: docs/reference/sql.md.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from nyala.partition.hashing import DEFAULT_SEED
from nyala.partition.levels import HashSpec, RangeSpec
from nyala.schema.schema import AUTO_INCREMENT
from nyala.schema.types import ColumnType, parse_type
from nyala.sql.tokens import quoted, quoted_text
from nyala.sql.types import literal, sql_type
from nyala.tablet.state.history import DEFAULT_HISTORY

if TYPE_CHECKING:
    from nyala.api.description import TableDescription
    from nyala.api.table import Table

_UNITS: Final = (
    (dt.timedelta(days=1), "d"),
    (dt.timedelta(hours=1), "h"),
    (dt.timedelta(minutes=1), "m"),
    (dt.timedelta(seconds=1), "s"),
)


def create_table_text(table: Table) -> str:
    """Return the CREATE TABLE statement that creates an equal, empty table."""
    described = table.description
    types = {each.name: parse_type(each.type) for each in described.columns}
    lines = []
    for each in described.columns:
        if each.name == AUTO_INCREMENT:
            continue
        kind = types[each.name]
        words = [quoted(each.name), sql_type(kind)]
        if not each.nullable:
            words.append("NOT NULL")
        if each.default is not None:
            words.append(f"DEFAULT {literal(each.default, kind)}")
        if each.encoding != "auto":
            words.append(f"ENCODING {each.encoding}")
        if each.compression != "default":
            words.append(f"COMPRESSION {each.compression}")
        if each.block_size is not None:
            words.append(f"BLOCK_SIZE {each.block_size}")
        if each.comment:
            words.append(f"COMMENT {quoted_text(each.comment)}")
        if each.immutable:
            words.append("IMMUTABLE")
        lines.append(" ".join(words))
    key = [name for name in described.primary_key if name != AUTO_INCREMENT or described.unique]
    if key:
        unique = "" if described.unique else "NON UNIQUE "
        lines.append(f"{unique}PRIMARY KEY ({', '.join(map(quoted, key))})")
    parts = [f"CREATE TABLE {quoted(described.name)} (\n  " + ",\n  ".join(lines) + "\n)"]
    if described.partition_by:
        parts.append("PARTITION BY " + partitions_text(described))
    if described.comment:
        parts.append(f"COMMENT {quoted_text(described.comment)}")
    if described.history != DEFAULT_HISTORY:
        parts.append(f"WITH ('nyala.history' = {quoted_text(history_text(described.history))})")
    return "\n".join(parts)


def partitions_text(described: TableDescription) -> str:
    """Return the text after PARTITION BY; "" for a table with one partition."""
    types = {each.name: parse_type(each.type) for each in described.columns}
    return ",\n  ".join(_level(each, types) for each in described.partition_by)


def _level(level: HashSpec | RangeSpec, types: dict[str, ColumnType]) -> str:
    names = ", ".join(map(quoted, level.columns))
    if isinstance(level, HashSpec):
        seed = "" if level.seed == DEFAULT_SEED else f" SEED {level.seed}"
        return f"HASH ({names}) PARTITIONS {level.buckets}{seed}"
    bounds = [] if level.bounds is None else [_bound(each, level.columns, types) for each in level.bounds]
    return f"RANGE ({names}) ({', '.join(bounds)})"


def _bound(bound: tuple[Any, Any], columns: Sequence[str], types: dict[str, ColumnType]) -> str:
    lower, upper = bound
    if lower is None and upper is None:
        return "PARTITION UNBOUNDED"
    above = "" if lower is None else f"{_value(lower, columns, types)} <= "
    below = "" if upper is None else f" < {_value(upper, columns, types)}"
    return f"PARTITION {above}VALUES{below}"


def _value(value: Any, columns: Sequence[str], types: dict[str, ColumnType]) -> str:
    values = value if isinstance(value, tuple) else (value,)
    texts = [literal(each, types[name]) for each, name in zip(values, columns, strict=False)]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def history_text(history: dt.timedelta | str) -> str:
    """Return the length of a history as text, such as 30d."""
    if isinstance(history, str):
        return history
    for unit, letter in _UNITS:
        if history % unit == dt.timedelta(0):
            return f"{history // unit}{letter}"
    return f"{history.total_seconds():f}s"
