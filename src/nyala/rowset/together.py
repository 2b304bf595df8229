"""Columns of a rowset that a window of a scan reads by one call for all of them: see `nyala.cfile.together`.

Those to which the snapshot applies no change, that lie as that can read them, in the type that the schema has, and that
the cache is not to keep yet, or cannot: where the blocks of one window are more than it holds, none would be there when
it is asked for again. All others are read one by one, as they are by who reads little.

    whole_columns, picked_columns    values, of all rows or of some
    encoded_columns                  as they lie
    sieved_rows                      which rows satisfy what is asked of columns, told as they are read
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import straight, together
from nyala.cfile.block_source import BlockForm
from nyala.cfile.column_reader import ColumnReader
from nyala.cfile.encoded_rows import EncodedRows
from nyala.cfile.straight import Sieved
from nyala.rowset.stats import RowSetStats
from nyala.rowset.version import RowSetVersion
from nyala.schema.schema import ColumnSchema
from nyala.schema.word_test import Demanded

__all__ = ["encoded_columns", "picked_columns", "sieved_rows", "whole_columns"]


def whole_columns(
    rowset: RowSetVersion,
    wanted: Iterable[tuple[ColumnSchema, BlockForm]],
    snapshot: int,
    lower: int,
    upper: int,
    stats: RowSetStats,
) -> dict[str, pa.Array]:
    """The rows [lower, upper), at least one, of columns in these forms, by name; fewer than were asked for.

    Raises: CorruptionError.
    """
    asked: dict[str, straight.Asked] = {}
    for column, form in wanted:
        reader = _unchanged(rowset, column, snapshot)
        if reader is not None and reader.fills(form):
            asked[column.name] = reader, form
    size = sum(reader.filled_bytes(form, lower, upper) for reader, form in asked.values())
    if size <= (rowset.cache_limit_bytes or 0):
        asked = {name: of for name, of in asked.items() if of[0].is_new(of[1], lower, upper)}
    made = together.arrays_together(list(asked.values()), lower, upper, stats)
    return dict(zip(asked, made, strict=True))


def encoded_columns(
    rowset: RowSetVersion,
    columns: Iterable[ColumnSchema],
    snapshot: int,
    lower: int,
    upper: int,
    stats: RowSetStats,
) -> dict[str, EncodedRows]:
    """The same as they lie, of columns that tell so what satisfies a constraint, and no more of them than may lie in
    memory at once. Raises: CorruptionError."""
    readers: dict[str, ColumnReader] = {}
    size = 0
    for column in columns:
        reader = _unchanged(rowset, column, snapshot)
        if reader is not None and reader.tells:
            size += reader.stored_bytes(lower, upper)
            if readers and size > together.FETCHED_BYTES_MAX:
                break
            readers[column.name] = reader
    found = together.encoded_together(list(readers.values()), lower, upper, stats)
    return dict(zip(readers, found, strict=True))


def sieved_rows(
    rowset: RowSetVersion,
    asked: Sequence[tuple[ColumnSchema, Demanded]],
    wanted: Collection[str],
    snapshot: int,
    lower: int,
    upper: int,
    mask: npt.NDArray[np.bool_] | None,
    stats: RowSetStats,
) -> tuple[Sieved, set[str]] | None:
    """Which of the rows [lower, upper), of these those of the mask, satisfy what is asked of columns, and of which of
    these that is told; None: of none. wanted: the columns whose values are wanted of them, by name.

    Raises: CorruptionError.
    """
    names: set[str] = set()
    kept: set[ColumnReader] = set()
    of: list[tuple[ColumnReader, Demanded]] = []
    for column, demanded in asked:
        reader = _straight(rowset, column, snapshot, lower, upper)
        if reader is not None:
            names.add(column.name)
            of.append((reader, demanded))
            if column.name in wanted:
                kept.add(reader)
    if not of:
        return None
    found = straight.sieved(of, kept, lower, upper, mask, stats)
    return None if found is None else (found, names)


def picked_columns(
    rowset: RowSetVersion,
    columns: Iterable[ColumnSchema],
    narrow: Collection[str],
    snapshot: int,
    lower: int,
    upper: int,
    rows: npt.NDArray[np.int64],
    known: Sieved | None,
    stats: RowSetStats,
) -> dict[str, pa.Array]:
    """Columns at some of the rows [lower, upper), counted from `lower`, ascending, by name; fewer than were asked for.

    narrow: those that come in the narrow form of their type, where it has one. known: what told of these rows.
    Raises: CorruptionError.
    """
    names: list[str] = []
    asked: list[straight.Asked] = []
    for column in columns:
        reader = _straight(rowset, column, snapshot, lower, upper)
        if reader is not None:
            names.append(column.name)
            is_narrow = column.name in narrow and reader.fills("narrow")
            asked.append((reader, "codes" if reader.has_dictionary else "narrow" if is_narrow else "plain"))
    if not asked or not len(rows):
        return {}
    found = straight.picked(asked, lower, upper, rows, known, stats)
    return {name: array for name, array in zip(names, found, strict=True) if array is not None}


def _straight(
    rowset: RowSetVersion, column: ColumnSchema, snapshot: int, lower: int, upper: int
) -> ColumnReader | None:
    reader = _unchanged(rowset, column, snapshot)
    if reader is None or not reader.goes_straight(lower, upper) or not reader.is_new("frames", lower, upper):
        return None
    return reader if reader.fills("plain") else None


def _unchanged(rowset: RowSetVersion, column: ColumnSchema, snapshot: int) -> ColumnReader | None:
    if rowset.changes.touch(column.id, snapshot):
        return None
    reader = rowset.base_column(column.id)
    return reader if reader is not None and reader.type == column.type else None
