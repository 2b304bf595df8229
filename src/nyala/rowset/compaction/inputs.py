"""Reads a rowset's files for a compaction: values after all REDO, and UNDO for the history.

Changes that are only in memory are ignored. The compaction flushes them before it reads, and moves
later changes to its output. These reads do not fill the block cache.
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


def image(
    rowset: DiskRowSet, schema: Schema, lower: int, upper: int, cut: int = 0, keys: EncodedKeys | None = None
) -> RowSetImage:
    """Return the rows [lower, upper) with the values after all REDO in files, and their history.

    cut: UNDO records that only snapshots before this timestamp need are dropped; all rows stay.
    keys: the keys of these rows, for a file whose stored keys cannot be read; None: read them.
    Cost: decodes these rows and their records in every delta file, without filling the cache.
    """
    count = upper - lower
    values: dict[int, pa.Array] = {}
    undo: dict[int, DeltaRun] = {}
    for column in (*schema.columns, None):
        column_id = LIVENESS if column is None else column.id
        values[column_id], past = _compacted(rowset, column, lower, upper)
        older = _runs_of_rows(rowset.undo, column_id, lower, upper)
        if older:
            past = join_undo(_typed(merge_runs(older), column), past)
        if past is not None and len(past := past.between(cut, MAX_TIMESTAMP)):
            undo[column_id] = past
    liveness = values.pop(LIVENESS)
    return RowSetImage(
        rowset.keys.read(lower, upper) if keys is None else keys,
        values,
        None if liveness.true_count == count else liveness,
        undo,
        np.arange(count),
    )


def compacted_column(
    rowset: DiskRowSet, column: ColumnSchema | None, cut: int = 0
) -> tuple[pa.Array, DeltaRun | None]:
    """Return a column's values after all changes in REDO files, and UNDO records of these changes.

    The UNDO records say which values the changes replaced. They are None if there are no changes.
    Existing UNDO files are not included.
    column: None for LIVENESS, which says whether each row is alive.
    cut: UNDO records that only snapshots before this timestamp need are dropped.
    """
    values, past = _compacted(rowset, column, 0, rowset.row_count)
    return values, None if past is None else past.between(cut, MAX_TIMESTAMP)


def _compacted(
    rowset: DiskRowSet, column: ColumnSchema | None, lower: int, upper: int
) -> tuple[pa.Array, DeltaRun | None]:
    """Return a column's values after all changes in REDO files, and UNDO records of these changes.

    Both are for the rows [lower, upper). The UNDO records say which values the changes replaced;
    their rowids are counted from `lower`. They are None if there are no changes.
    column: None for LIVENESS, which says whether each row is alive.
    """
    column_id = LIVENESS if column is None else column.id
    reader = rowset.base_column(column_id)
    if reader is not None:
        base = reader.decode(lower, upper)
        base = base if column is None else adapt(base, column.type.arrow)
    elif column is None:
        base = pa.array(np.ones(upper - lower, np.bool_))
    else:
        base = default_array(column, upper - lower, "read")
    redo = _runs_of_rows(rowset.redo, column_id, lower, upper)
    return redo_to_undo(base, _typed(merge_runs(redo), column)) if redo else (base, None)


def _runs_of_rows(files: Sequence[DeltaFile], column_id: int, lower: int, upper: int) -> list[DeltaRun]:
    runs = (file.run_of_rows(column_id, lower, upper) for file in files if column_id in file.column_ids)
    return [run for run in runs if run is not None and len(run)]


def _typed(run: DeltaRun, column: ColumnSchema | None) -> DeltaRun:
    """Return the run with its values in the column's present type. column: None for LIVENESS."""
    if column is None or run.values.type == column.type.arrow:
        return run
    return DeltaRun(run.kind, run.rowids, run.timestamps, adapt(run.values, column.type.arrow))
