"""What each column takes in files, and how it lies there: what `Table.column_stats` says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from nyala.rowset.disk_rowset import DiskRowSet
from nyala.schema.schema import ColumnSchema

__all__ = ["column_stats"]


def column_stats(columns: Iterable[ColumnSchema], rowsets: Iterable[DiskRowSet]) -> list[dict[str, Any]]:
    """A dict per column, as `Table.column_stats` says.

    Raises: CorruptionError, for a footer that is damaged.
    Cost: the column's footer in each rowset; no block is read.
    """
    of_files = list(rowsets)
    return [_of_column(column, of_files) for column in columns]


def _of_column(column: ColumnSchema, rowsets: Iterable[DiskRowSet]) -> dict[str, Any]:
    stored: Counter[str] = Counter()
    nulls = size = 0
    for rowset in rowsets:
        reader = rowset.base_column(column.id)
        if reader is not None:  # a rowset older than the column has none of it
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
