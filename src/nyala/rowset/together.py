"""Columns of a rowset that a window of a scan reads by one call for all of them: see `nyala.cfile.together`.

Those that lie as that can read them, in the type that the schema has, and that the cache is not to keep yet, or cannot:
where the blocks of one window are more than it holds, none would be there when it is asked for again. What the snapshot
applies of changes is told beside, and laid over numbers. Whole columns and other values that have some are read one by
one, as all are by who reads little.

    whole_columns, picked_columns    values, of all rows or of some
    encoded_columns                  as they lie
    sieved_rows                      which rows satisfy what is asked of columns, told as they are read
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import straight, together
from nyala.cfile.block_source import BlockForm
from nyala.cfile.column_reader import ColumnReader
from nyala.cfile.encoded_rows import EncodedRows
from nyala.cfile.kernels import Answers, lay
from nyala.cfile.straight import Sieved
from nyala.rowset.patches import Patch, PatchedRows, find_patch
from nyala.rowset.stats import RowSetStats
from nyala.rowset.version import RowSetVersion
from nyala.schema.schema import ColumnSchema
from nyala.schema.word_test import Demanded

__all__ = ["Told", "encoded_columns", "picked_columns", "sieved_rows", "whole_columns"]


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
        reader = _as_written(rowset, column)
        if reader is not None and reader.fills(form) and not rowset.changes.touch(column.id, snapshot):
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
    readers: list[ColumnReader] = []
    patches: dict[str, Patch | None] = {}
    size = 0
    for column in columns:
        reader = _as_written(rowset, column)
        if reader is None or not reader.tells:
            continue
        patch = _patch(rowset, column, snapshot, lower, upper, stats)
        if patch is None or patch.tells:
            size += reader.stored_bytes(lower, upper)
            if readers and size > together.FETCHED_BYTES_MAX:
                break
            readers.append(reader)
            patches[column.name] = patch
    stats.deltas_applied += sum(len(patch) for patch in patches.values() if patch is not None)
    found = together.encoded_together(readers, lower, upper, stats)
    return {
        name: encoded if patch is None else PatchedRows(encoded, patch, upper - lower)
        for (name, patch), encoded in zip(patches.items(), found, strict=True)
    }


def sieved_rows(
    rowset: RowSetVersion,
    asked: Sequence[tuple[ColumnSchema, Demanded]],
    wanted: Collection[str],
    snapshot: int,
    lower: int,
    upper: int,
    mask: npt.NDArray[np.bool_] | None,
    stats: RowSetStats,
) -> Told | None:
    """Which of the rows [lower, upper), of these those of the mask, satisfy what is asked of columns; None where that
    is told of none of these. wanted: the columns whose values are wanted of them, by name.

    Raises: CorruptionError.
    """
    told: dict[str, _Straight] = {}
    kept: set[ColumnReader] = set()
    of: list[tuple[ColumnReader, Demanded, Answers | None]] = []
    for column, demanded in asked:
        found = _straight(rowset, column, snapshot, lower, upper, stats)
        if found is None or (found.patch is not None and not found.patch.tells):
            continue
        told[column.name] = found
        answers = None
        if found.patch is not None:
            answers = found.patch.answers(demanded)
            stats.deltas_applied += len(found.patch)
        of.append((found.reader, demanded, answers))
        if column.name in wanted and found.has_numbers:
            kept.add(found.reader)
    if not of:
        return None
    sieved = straight.sieved(of, kept, lower, upper, mask, stats)
    return None if sieved is None else Told(sieved, told)


def picked_columns(
    rowset: RowSetVersion,
    columns: Iterable[ColumnSchema],
    narrow: Collection[str],
    snapshot: int,
    lower: int,
    upper: int,
    rows: npt.NDArray[np.int64],
    known: Told | None,
    stats: RowSetStats,
) -> dict[str, pa.Array]:
    """Columns at some of the rows [lower, upper), counted from `lower`, ascending, by name; fewer than were asked for.

    narrow: those that come in the narrow form of their type, where it has one. known: what told of these rows.
    Raises: CorruptionError.
    """
    columns_of: list[tuple[str, Patch | None]] = []
    asked: list[straight.Asked] = []
    for column in columns if len(rows) else ():
        found = None if known is None else known.columns.get(column.name)
        if found is None:
            found = _straight(rowset, column, snapshot, lower, upper, stats)
            if found is not None and found.patch is not None and found.has_numbers:
                stats.deltas_applied += len(found.patch)
        if found is None or not found.has_numbers:
            continue
        reader, patch = found
        columns_of.append((column.name, patch))
        is_narrow = column.name in narrow and reader.fills("narrow")
        asked.append((reader, "codes" if reader.has_dictionary else "narrow" if is_narrow else "plain"))
    if not asked:
        return {}
    sieved = None if known is None else known.sieved
    made = straight.picked(asked, lower, upper, rows, sieved, stats)
    found_of = [(*of, array) for of, array in zip(columns_of, made, strict=True) if array is not None]
    lays = [patch.over(rows, array) for _, patch, array in found_of if patch is not None]
    if lays:
        lay(lays)
    return {name: array for name, _, array in found_of}


class Told(NamedTuple):
    """Rows of a window that satisfy what was asked of columns, and these columns, by name."""

    sieved: Sieved
    columns: dict[str, _Straight]


class _Straight(NamedTuple):
    """A column whose base is read straight, and what has changed of its rows."""

    reader: ColumnReader
    patch: Patch | None

    @property
    def has_numbers(self) -> bool:
        """Whether values that are picked of the base can be changed as they lie there."""
        return self.patch is None or (self.patch.is_numbers and not self.reader.has_dictionary)


def _straight(
    rowset: RowSetVersion, column: ColumnSchema, snapshot: int, lower: int, upper: int, stats: RowSetStats
) -> _Straight | None:
    reader = _as_written(rowset, column)
    if reader is None or not reader.fills("plain"):
        return None
    if not reader.goes_straight(lower, upper) or not reader.is_new("frames", lower, upper):
        return None
    return _Straight(reader, _patch(rowset, column, snapshot, lower, upper, stats))


def _patch(
    rowset: RowSetVersion, column: ColumnSchema, snapshot: int, lower: int, upper: int, stats: RowSetStats
) -> Patch | None:
    rows = (lower, upper)
    return find_patch(rowset.changes, column, snapshot, rows, rowset.row_count, stats, scanning=True)


def _as_written(rowset: RowSetVersion, column: ColumnSchema) -> ColumnReader | None:
    """The column's base, if it is there, in the type that the schema has."""
    reader = rowset.base_column(column.id)
    return reader if reader is not None and reader.type == column.type else None
