"""Delta compactions: replace runs by fewer runs, with the same values at every snapshot.

    minor    REDO 1 + REDO 2 + REDO 3              ->  REDO 1-3                         (`merge_delta_files`)
    major    base   + REDO 1                       ->  UNDO 1 + base as of REDO 1's end (`redo_to_undo`)

`redo_to_undo` inverts each change: "from t on the value is v" becomes "before t the value was w",
where w is the previous value. For example, one row has these changes:

    INSERT at 1 of val=1, UPDATE at 2 to val=2, DELETE at 3, INSERT at 4 of val=3

Then its columns val and LIVENESS have these records (timestamp: value):

              base    REDO                                 new base   UNDO
    val       1       (2: 2) (4: 3)                  ->    3          (4: 2) (2: 1)
    LIVENESS  True    (3: False) (4: True)           ->    True       (4: False) (3: True)

The insertion itself adds the UNDO record (1: False) of LIVENESS (`insertion_undo`).

Only `merge_delta_files` uses files: it reads immutable files, and writes and syncs a new one. Its
caller adds the new file to the catalogue. `tablet.compaction.policy` chooses what to compact.
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


def redo_to_undo(base: pa.Array, redo: DeltaRun, lower: int = 0) -> tuple[pa.Array, DeltaRun]:
    """Apply `redo` to `base`. Return (the new base, the UNDO run that leads back to the old base).

    lower: `base` has the rows [lower, lower + len(base)), and `redo` changes only these rows.
    Cost: O(records), and one copy of the base.
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
    # UNDO descends in time per row (D1). If a row has the records [b, e), its record i moves to b +
    # e - 1 - i.
    turned = np.repeat(2 * begin + size - 1, size) - np.arange(count)
    # The value before a record is that of the row's previous record. For the first record it is the
    # base value.
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
    """Minor delta compaction: write one delta file at `path` with the records of all `inputs`.

    The file is synced, but its folder is not: the caller syncs the folder before the catalogue
    names the file.

    inputs: files of one kind.
    types:  the types of the columns to keep, by id. Columns that were dropped from the table are
            left out.
    cut:    a timestamp. Records that only snapshots before `cut` need are left out.
    Raises: CorruptionError if an input is damaged. StorageError if writing fails; then no valid
            file remains. InvalidArgumentError if no column remains; then the caller deletes the
            inputs.
    """
    kind = inputs[0].kind
    assert all(file.kind == kind for file in inputs), "REDO and UNDO must not be mixed"
    kept = {*types, LIVENESS}
    column_ids = sorted({column_id for file in inputs for column_id in file.column_ids} & kept)
    if not column_ids:
        raise InvalidArgumentError("no column of the delta files is in the schema: delete the files instead")
    runs: dict[int, DeltaRun] = {}
    for column_id in column_ids:
        inputs_of_column = (file.run(column_id) for file in inputs)
        runs[column_id] = merge_runs([run for run in inputs_of_column if run is not None])
    return write_delta_file(files, path, kind, without_history(runs, cut), types)


def join_undo(older: DeltaRun | None, newer: DeltaRun | None) -> DeltaRun | None:
    """Return one UNDO run with the records of both runs. Either run may be None."""
    if older is None or newer is None:
        return newer if older is None else older
    return merge_runs([newer, older])


def insertion_undo(rowids: np.ndarray, timestamps: np.ndarray) -> DeltaRun:
    """Return the UNDO run of insertions: before `timestamps[i]`, row `rowids[i]` was not alive."""
    return build_run("undo", rowids, timestamps, pa.array(np.zeros(len(rowids), np.bool_)))
