"""The description of a table: everything that `create_table(like=…)` needs to create an equal table."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nyala.keys.codec import KeyCodec
from nyala.partition.describe import describe_schema
from nyala.partition.levels import HashSpec, RangeSpec
from nyala.schema.schema import NO_DEFAULT, ColumnSpec, Schema, column
from nyala.schema.types import from_canonical
from nyala.tablet.scan.column_stats import column_stats
from nyala.tablet.state.root import TableState


@dataclass(frozen=True)
class ColumnDescription:
    """One column of a table."""

    name: str
    type: str
    """The type's name, for instance `"int64"`, `"varchar(40)"` or `"decimal(15,2)"`."""
    nullable: bool
    default: Any
    """The value of a row that is inserted without this column. None: NULL; a NOT NULL column is then required."""
    encoding: str
    """The encoding that was requested: `"auto"` lets each file choose."""
    stored_as: Mapping[str, int] = field(compare=False)
    """The number of rows in files by their encoding. Not compared by `==`."""
    compression: str
    """The compression that was requested."""
    block_size: int | None
    """The requested size of a block before encoding in bytes; None: the default."""
    comment: str
    immutable: bool = False
    """Whether only an insert sets the column."""

    def spec(self) -> ColumnSpec:
        """Return the column in the form of `nyala.column(…)`, for the `schema` of `create_table`."""
        return column(
            self.type,
            self.nullable,
            self.default,
            self.encoding,
            self.compression,
            self.block_size,
            self.comment,
            self.immutable,
        )


@dataclass(frozen=True)
class TableDescription:
    """Columns, key, partitioning and history of a table, from `Table.description`.

    Examples
    --------
    >>> copy = db.create_table("metrics_copy", like=db["metrics"].description)
    >>> copy.description.columns == db["metrics"].description.columns
    True
    """

    name: str
    columns: tuple[ColumnDescription, ...]
    """The key columns first, in the key's order."""
    primary_key: tuple[str, ...]
    """The key columns. With `unique=False` the last one is `auto_incrementing_id`."""
    partition_by: tuple[HashSpec | RangeSpec, ...]
    """The hash and range partitions as for `create_table`; the present ranges are the `bounds`."""
    partition_text: str
    """The partitions as text, for instance `HASH (host) BUCKETS 4, RANGE (time)`."""
    tablets: int
    history: dt.timedelta | Literal["forever"]
    """How far back the table can be read."""
    comment: str
    unique: bool = True
    """Whether the user's key is unique; False: the store adds `auto_incrementing_id` to the key."""


def describe_table(table: TableState) -> TableDescription:
    """Describe a table. Reads the footers of its columns. Raises: CorruptionError for a damaged footer."""
    rowsets = [rowset for tablet in table.tablets for rowset in tablet.rowsets]
    stored = {found["name"]: found["stored_as"] for found in column_stats(table.schema.columns, rowsets)}
    columns = tuple(
        ColumnDescription(
            each.name,
            str(each.type),
            each.nullable,
            None if each.write_default is NO_DEFAULT else each.write_default,
            each.encoding,
            stored[each.name],
            each.compression,
            each.block_size_bytes,
            each.comment,
            each.immutable,
        )
        for each in table.schema.columns
    )
    history_us = table.entry.history_us
    return TableDescription(
        table.name,
        columns,
        tuple(table.schema.key_names),
        partition_levels(table, table.schema),
        describe_schema(table.entry.partition_schema, table.schema),
        len(table.tablets),
        "forever" if history_us is None else dt.timedelta(microseconds=history_us),
        table.entry.comment,
        table.schema.auto_increment is None,
    )


def partition_levels(table: TableState, schema: Schema) -> tuple[HashSpec | RangeSpec, ...]:
    """Return the table's present partitions in the form that `partition_by` of `create_table` takes."""
    partitions = table.entry.partition_schema
    levels: list[HashSpec | RangeSpec] = [
        HashSpec(
            tuple(each.name for each in partitions.hash_columns(level, schema)), level.buckets, level.seed
        )
        for level in partitions.hash_levels
    ]
    if partitions.range_column_ids:
        columns = partitions.range_columns(schema)
        codec = KeyCodec([each.type for each in columns])

        def values(bound: bytes | None) -> Any:
            if bound is None:
                return None
            row = tuple(
                from_canonical(each.type, value)
                for each, value in zip(columns, codec.decode_row(bound), strict=True)
            )
            return row[0] if len(row) == 1 else row

        ranges = dict.fromkeys((part.range_lower, part.range_upper) for part in table.partitions)
        bounds = tuple((values(lower), values(upper)) for lower, upper in ranges)
        levels.append(RangeSpec(tuple(each.name for each in columns), (), bounds))
    return tuple(levels)
