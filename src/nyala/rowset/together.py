"""Columns of a rowset that a window of a scan reads by one call for all of them: see `nyala.cfile.together`.

Those that nothing has changed since they were written, that lie as that can read them, in the type that the schema has,
and that the cache is not to keep yet. All others are read one by one, as they are by who reads little.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from nyala.cfile import together
from nyala.cfile.block_source import BlockForm
from nyala.cfile.column_reader import ColumnReader
from nyala.cfile.encoded_rows import EncodedRows
from nyala.rowset.stats import RowSetStats
from nyala.rowset.version import RowSetVersion
from nyala.schema.schema import ColumnSchema

__all__ = ["encoded_columns", "whole_columns"]


def whole_columns(
    rowset: RowSetVersion,
    wanted: Iterable[tuple[ColumnSchema, BlockForm]],
    lower: int,
    upper: int,
    stats: RowSetStats,
) -> dict[str, pa.Array]:
    """The rows [lower, upper), at least one, of columns in these forms, by name; fewer than were asked for.

    Raises: CorruptionError.
    """
    names, asked = [], []
    for column, form in wanted:
        reader = _untouched(rowset, column)
        if reader is not None and reader.fills(form) and reader.is_new(form, lower, upper):
            names.append(column.name)
            asked.append((reader, form))
    return dict(zip(names, together.arrays_together(asked, lower, upper, stats), strict=True))


def encoded_columns(
    rowset: RowSetVersion, columns: Iterable[ColumnSchema], lower: int, upper: int, stats: RowSetStats
) -> dict[str, EncodedRows]:
    """The same as they lie, of columns that tell so what satisfies a constraint, and no more of them than may lie in
    memory at once. Raises: CorruptionError."""
    readers: dict[str, ColumnReader] = {}
    size = 0
    for column in columns:
        reader = _untouched(rowset, column)
        if reader is not None and reader.tells:
            size += reader.stored_bytes(lower, upper)
            if readers and size > together.FETCHED_BYTES_MAX:
                break
            readers[column.name] = reader
    found = together.encoded_together(list(readers.values()), lower, upper, stats)
    return dict(zip(readers, found, strict=True))


def _untouched(rowset: RowSetVersion, column: ColumnSchema) -> ColumnReader | None:
    if column.id in rowset.changes.touched:
        return None
    reader = rowset.base_column(column.id)
    return reader if reader is not None and reader.type == column.type else None
