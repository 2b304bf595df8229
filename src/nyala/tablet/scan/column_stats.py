"""Computes the size and encoding of the columns in files, for `Table.column_stats`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from nyala.rowset.disk_rowset import DiskRowSet
from nyala.schema.schema import ColumnSchema


def column_stats(columns: Iterable[ColumnSchema], rowsets: Iterable[DiskRowSet]) -> list[dict[str, Any]]:
    """Return one dict per column, with the fields of `Table.column_stats`.

    Raises: CorruptionError if a footer is damaged.
    Cost: reads the column's footer in each rowset, and no block.
    """
    files = list(rowsets)
    return [_stats_of(column, files) for column in columns]


def _stats_of(column: ColumnSchema, rowsets: Iterable[DiskRowSet]) -> dict[str, Any]:
    stored: Counter[str] = Counter()
    nulls = size = 0
    for rowset in rowsets:
        reader = rowset.base_column(column.id)
        if reader is not None:  # None: the rowset is older than the column
            stored[reader.encoding] += reader.row_count
            nulls += reader.null_count
            size += reader.size_bytes
    return {
        "name": column.name,
        "type": str(column.type),
        "encoding": column.encoding,
        "compression": column.compression,
        "block_size": column.block_size_bytes,
        "stored_as": dict(stored.most_common()),
        "rows": stored.total(),
        "nulls": nulls,
        "bytes": size,
    }
