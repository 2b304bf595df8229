"""Delta compactions: fewer runs, or none, and the same values at every snapshot.

    minor    REDO 1 + REDO 2 + REDO 3              ->  REDO 1-3                         (`merge_redo`)
    major    base   + REDO 1                       ->  UNDO 1 + base as of REDO 1's end (`redo_to_undo`)

`redo_to_undo` turns each change around: what was "from t on: v" becomes "before t: what stood there before".

    INSERT@1 val=1, UPDATE@2 val=2, DELETE@3, INSERT@4 val=3, in the columns val and LIVENESS:

              base    REDO                                 new base   UNDO
    val       1       (2: 2) (4: 3)                  ->    3          (4: 2) (2: 1)
    LIVENESS  True    (3: False) (4: True)           ->    True       (4: False) (3: True)     and (1: False),
                                                                                   which the insertion gave

Pure but for `merge_delta_files`, which is a function from files to a file: it reads immutable inputs and writes a
new, synced output; its caller installs it.
Left out: choosing what to compact (`compaction.policy`).
Source: Kudu tablet design, "Types of Delta Compaction"; the example is its "Historical MVCC in
DiskRowSets", where "Before Tx 2: SET row=1" means val=1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nyala.delta.applier import patch
from nyala.delta.delta_file import DeltaFile, WrittenDelta, write_delta_file
from nyala.delta.run import LIVENESS, DeltaRun, build_run, merge_runs, take, without_history
from nyala.errors import InvalidArgumentError

if TYPE_CHECKING:
    from nyala.env import Files
    from nyala.schema.types import ColumnType

__all__ = ["insertion_undo", "join_undo", "merge_delta_files", "merge_redo", "merge_undo", "redo_to_undo"]


def merge_redo(runs: Sequence[DeltaRun]) -> DeltaRun:
    """Minor delta compaction of one column: one run with the records of all. Nothing is dropped."""
    assert all(run.kind == "redo" for run in runs), "merge_redo takes REDO runs"
    return merge_runs(runs)


def merge_undo(runs: Sequence[DeltaRun]) -> DeltaRun:
    """The same for UNDO."""
    assert all(run.kind == "undo" for run in runs), "merge_undo takes UNDO runs"
    return merge_runs(runs)


def redo_to_undo(base: pa.Array, redo: DeltaRun, lower: int = 0) -> tuple[pa.Array, DeltaRun]:
    """Move the base to the state after all of `redo`: (new base, UNDO with the values before each change).

    Shape: base covers the rows [lower, lower + len(base)), and redo changes no other.
    Cost:  O(records), and one copy of the base.
    """
    assert redo.kind == "redo"
    count = len(redo)
    if not count:
        return base, DeltaRun("undo", redo.rowids, redo.timestamps, redo.values)
    rows, latest = redo.latest
    positions = rows - lower if lower else rows
    first = np.append(True, redo.rowids[1:] != redo.rowids[:-1])
    begin = np.flatnonzero(first)
    size = np.diff(np.append(begin, count))
    # UNDO stands in descending time per row (D1): record i of the row's block [b, e) goes to b + e - 1 - i.
    turned = np.repeat(2 * begin + size - 1, size) - np.arange(count)
    # The value before a record is the previous record's, and before the first of a row the base's.
    before = np.arange(-1, count - 1)
    before[begin] = np.arange(count, count + len(begin))
    values = take(pa.concat_arrays([redo.values, take(base, positions)]), before[turned])
    return patch(base, positions, latest), DeltaRun("undo", redo.rowids, redo.timestamps[turned], values)


def merge_delta_files(
    files: Files,
    path: str,
    inputs: Sequence[DeltaFile],
    types: Mapping[int, ColumnType],
    cut: int = 0,
) -> WrittenDelta:
    """Minor delta compaction: one delta file at `path` with the records of all `inputs`, of one kind.

    cut: records that only snapshots before it need are left out.

    types: of every column to keep, by id; a column that is not in it was dropped, and so are its records.
    The file is synced, its directory is not: the caller syncs it before the catalogue names the file.
    Raises: CorruptionError from an input; StorageError, and then there is no file that counts;
            InvalidArgumentError when no column is left (then the inputs can go without a successor).
    """
    kind = inputs[0].kind
    assert all(file.kind == kind for file in inputs), "REDO and UNDO do not mix"
    kept = {*types, LIVENESS}
    column_ids = sorted({column_id for file in inputs for column_id in file.column_ids} & kept)
    if not column_ids:
        raise InvalidArgumentError("no column of the delta files is in the schema: drop them instead")
    runs: dict[int, DeltaRun] = {}
    for column_id in column_ids:
        found = (file.run(column_id) for file in inputs)
        runs[column_id] = merge_runs([run for run in found if run is not None])
    return write_delta_file(files, path, kind, without_history(runs, cut), types)


def join_undo(older: DeltaRun | None, newer: DeltaRun | None) -> DeltaRun | None:
    """One UNDO run of two, either of which may be missing."""
    if older is None or newer is None:
        return newer if older is None else older
    return merge_undo([newer, older])


def insertion_undo(rowids: np.ndarray, timestamps: np.ndarray) -> DeltaRun:
    """The UNDO of insertions: before its timestamp, row `rowids[i]` was not there."""
    return build_run("undo", rowids, timestamps, pa.array(np.zeros(len(rowids), np.bool_)))
