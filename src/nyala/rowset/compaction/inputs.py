"""Reads a rowset's files for a compaction: the base after all REDO, and UNDO for everything before.

Changes that are only in memory are not included: a compaction flushes them first and moves later
ones to its output. The block cache keeps nothing of these reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nyala.delta.compaction import join_undo, redo_to_undo
from nyala.delta.delta_file import DeltaFile
from nyala.delta.run import LIVENESS, MAX_TIMESTAMP, DeltaRun, merge_runs
from nyala.keys.encoded_keys import EncodedKeys
from nyala.rowset.image import RowSetImage
from nyala.schema.adapter import adapt
from nyala.schema.conversion.convert import default_array
from nyala.schema.schema import ColumnSchema, Schema

if TYPE_CHECKING:
    from nyala.rowset.disk_rowset import DiskRowSet

__all__ = ["compacted_column", "image"]


def image(
    rowset: DiskRowSet, schema: Schema, lower: int, upper: int, cut: int = 0, keys: EncodedKeys | None = None
) -> RowSetImage:
    """Return the rows [lower, upper) as their files have them: the base after all REDO files, and
    all UNDO.

    cut: UNDO records that only snapshots before this timestamp need are dropped; all rows stay.
    keys: of these rows, from callers that cannot read the file's own keys.
    Cost: decodes these rows and their records in every delta file, without filling the cache.
    """
    count = upper - lower
    columns: dict[int, pa.Array] = {}
    undo: dict[int, DeltaRun] = {}
    for column in schema.columns:
        reader = rowset.base_column(column.id)
        if reader is None:
            base = default_array(column, count, "read")
        else:
            base = adapt(reader.decode(lower, upper), column.type.arrow)
        columns[column.id], past = _compacted(rowset, column.id, base, lower, upper, cut, column)
        if past is not None:
            undo[column.id] = past
    reader = rowset.base_column(LIVENESS)
    base = pa.array(np.ones(count, np.bool_)) if reader is None else reader.decode(lower, upper)
    liveness, past = _compacted(rowset, LIVENESS, base, lower, upper, cut, None)
    if past is not None:
        undo[LIVENESS] = past
    return RowSetImage(
        rowset.keys.read(lower, upper) if keys is None else keys,
        columns,
        None if liveness.true_count == count else liveness,
        undo,
        np.arange(count),
    )


def compacted_column(
    rowset: DiskRowSet, column_id: int, column: ColumnSchema | None, cut: int = 0
) -> tuple[pa.Array, DeltaRun | None]:
    """Return one column after a major delta compaction: (base after all REDO files, UNDO of these
    changes).

    column: its schema; None for LIVENESS. The result has no UNDO that is in UNDO files already.
    """
    count = rowset.row_count
    reader = rowset.base_column(column_id)
    if column is None:
        base = pa.array(np.ones(count, np.bool_)) if reader is None else reader.decode(0, count)
    elif reader is None:
        base = default_array(column, count, "read")
    else:
        base = adapt(reader.decode(0, count), column.type.arrow)
    redo = _runs_of(rowset.redo, column_id)
    if not redo:
        return base, None
    base, past = redo_to_undo(base, _typed(merge_runs(redo), column))
    return base, past.between(cut, MAX_TIMESTAMP)


def _compacted(
    rowset: DiskRowSet,
    column_id: int,
    base: pa.Array,
    lower: int,
    upper: int,
    cut: int,
    column: ColumnSchema | None,
) -> tuple[pa.Array, DeltaRun | None]:
    redo = _runs_of_rows(rowset.redo, column_id, lower, upper)
    past: DeltaRun | None = None
    if redo:
        base, past = redo_to_undo(base, _typed(merge_runs(redo), column))
    undo = _runs_of_rows(rowset.undo, column_id, lower, upper)
    if undo:
        past = join_undo(_typed(merge_runs(undo), column), past)
    if past is not None:
        past = past.between(cut, MAX_TIMESTAMP)
    return base, past if past is not None and len(past) else None


def _runs_of(files: Sequence[DeltaFile], column_id: int) -> list[DeltaRun]:
    runs = (file.run(column_id) for file in files if column_id in file.column_ids)
    return [run for run in runs if run is not None and len(run)]


def _runs_of_rows(files: Sequence[DeltaFile], column_id: int, lower: int, upper: int) -> list[DeltaRun]:
    runs = (file.run_of_rows(column_id, lower, upper) for file in files if column_id in file.column_ids)
    return [run for run in runs if run is not None and len(run)]


def _typed(run: DeltaRun, column: ColumnSchema | None) -> DeltaRun:
    """Convert the run's values to the column's present type; None means LIVENESS."""
    if column is None or run.values.type == column.type.arrow:
        return run
    return DeltaRun(run.kind, run.rowids, run.timestamps, adapt(run.values, column.type.arrow))
