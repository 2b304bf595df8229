"""Checks one DiskRowSet: each of its files, and whether the files agree with one another.

    files     Blocks, footers, CRCs, counts, zone maps and key indexes are right
              (`CFileReader.check`).
    keys      Keys ascend, are in the bloom filter and the key index, and match the key columns. The
              least and greatest key are those of the catalogue.
    deltas    Records are in order, refer to existing rows, and match the catalogue's timestamps and
              counts. Delta files and memory of a column do not overlap in time. No record is newer
              than `deltas_durable`.
    lives     Insertions and deletions of a row alternate. A row that was deleted on disk has no
              later changes.

A finding is *derived* if all rows are intact and only computed data is wrong: a zone map, a bloom
filter, an index, or bounds. Then `tablet.repair` can rewrite the rowset from its rows.

Rows and records are read in ranges (`cfile.memory.row_ranges`). So the check needs memory for one
range, the bloom filter and the footers. Partitions, and keys that are in several rowsets, are
checked by `tablet.check`.
Source: docs/design/rules.md, R2, R4 and R5; docs/reliability.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from nyala.cfile.blocks.read_stats import Access
from nyala.cfile.column import BASE
from nyala.cfile.errors import KeysError, SummaryError, TrailingBytesError
from nyala.cfile.memory import row_ranges
from nyala.delta.delta_file import DeltaFile, RunBounds
from nyala.delta.run import LIVENESS, MAX_TIMESTAMP, DeltaRun, Rowids, Timestamps, merge_runs
from nyala.errors import CorruptionError, StorageError
from nyala.rowset.mem_rowset import MemRowSet

if TYPE_CHECKING:
    from nyala.rowset.disk_rowset import DiskRowSet


Bools = npt.NDArray[np.bool_]
_FileBounds: TypeAlias = dict[tuple[int, int], RunBounds]
"""Bounds of the rowids and timestamps of a run, by (`DeltaFile.serial`, column id)."""


@dataclass(frozen=True)
class Finding:
    """One problem of a rowset.

    derived: True: all rows are intact, and only data computed from them is damaged, such as an
        index. Rewriting the rows repairs it. False: rows or changes may be damaged.
    """

    error: CorruptionError | StorageError
    derived: bool = False

    @property
    def trailing(self) -> bool:
        """Whether the file is intact, and only extra bytes follow it."""
        return isinstance(self.error, TrailingBytesError)

    @property
    def keyless(self) -> bool:
        """Whether the encoded keys cannot be read, so no row can be found by key."""
        return isinstance(self.error, KeysError)


def findings(rowset: DiskRowSet, history_start: int = MAX_TIMESTAMP) -> Iterator[Finding]:
    """Yield the problems of a rowset. A check that needs a damaged file is skipped.

    history_start: the beginning of the table's history. Earlier insertions and deletions are not
        checked, because a vacuum may have removed some of them. With the default, only
        insertions and deletions in REDO are checked.
    Raises: AssertionError if the DeltaMemStores are inconsistent, which is a bug.
    Cost: reads and decodes all files in ranges, without filling the block cache.
    """
    base = list(_check_base(rowset))
    yield from base
    bounds: _FileBounds = {}
    files = (*rowset.undo, *rowset.redo)
    deltas = [finding for file in files for finding in _check_delta_file(rowset, file, bounds)]
    yield from deltas
    if all(finding.derived or finding.trailing for finding in base):
        if not any(finding.keyless for finding in base):
            # A damaged bloom filter is found here again.
            reported = {_identity(finding) for finding in base}
            yield from (finding for finding in _check_keys(rowset) if _identity(finding) not in reported)
        if all(finding.trailing for finding in deltas):
            yield from _check_order(rowset, bounds)
            yield from _check_lives(rowset, history_start)
    _assert_memory(rowset)


# ── files ────────────────────────────────────────────────────────────────────────────────────────


def _caught(check: Callable[[], object]) -> Iterator[Finding]:
    """Call `check`. If it raises an error, yield the error as a finding."""
    try:
        check()
    except SummaryError as error:
        yield Finding(error, derived=True)
    except (CorruptionError, StorageError) as error:
        yield Finding(error)


def _identity(finding: Finding) -> tuple[object, ...]:
    """Return a value that is equal for two findings of the same problem."""
    return type(finding.error), str(finding.error), finding.derived


def _check_base(rowset: DiskRowSet) -> Iterator[Finding]:
    yield from _caught(lambda: rowset.changes.check_order(rowset.id))
    yield from _caught(rowset.reader.check)
    for part in rowset.parts:
        yield from _caught(part.reader.check)
    column_ids = {
        key.column_id
        for key in (*rowset.meta.places, *(place.key for part in rowset.parts for place in part.entry.places))
        if key.role == BASE
    }
    for column_id in sorted(column_ids):
        yield from _caught(lambda column_id=column_id: rowset.base_column(column_id))  # type: ignore[misc]


def _check_delta_file(rowset: DiskRowSet, file: DeltaFile, bounds: _FileBounds) -> Iterator[Finding]:
    """Check one delta file, and yield the problems.

    Also add an item to the dict `bounds` for each column of the file. The key is (number of the
    file, column id). The value has the greatest rowid, and the least and greatest timestamp.
    """
    damaged = list(_caught(file.reader.check))
    yield from damaged
    runs: dict[int, RunBounds] = {}

    def read() -> None:
        for column_id in sorted(file.column_ids):
            run = file.check_run(column_id)
            if run is not None:
                runs[column_id] = bounds[file.serial, column_id] = run

    unread = list(_caught(read))
    reported = {_identity(finding) for finding in damaged}  # reading finds the same damage again
    yield from (finding for finding in unread if _identity(finding) not in reported)
    if unread:
        return
    path = file.reader.path
    for column_id, run in runs.items():
        if run.rowid_max >= rowset.row_count:
            yield Finding(
                CorruptionError(
                    f"found a change of row {run.rowid_max} in column {column_id}, but the rowset has only "
                    f"{rowset.row_count} rows",
                    path,
                )
            )
    if not runs:
        yield Finding(CorruptionError("expected records in the delta file, found none", path))
        return
    named = file.timestamp_min, file.timestamp_max
    found = min(run.timestamp_min for run in runs.values()), max(run.timestamp_max for run in runs.values())
    if named != found:
        yield Finding(
            CorruptionError(
                f"expected timestamps from {named[0]} to {named[1]}, as the catalogue says, "
                f"found {found[0]} to {found[1]}",
                path,
            )
        )
    if file.timestamp_max > rowset.meta.deltas_durable:
        yield Finding(
            CorruptionError(
                f"found changes up to timestamp {file.timestamp_max}, but the catalogue says that changes of rowset "
                f"{rowset.id} are on disk up to {rowset.meta.deltas_durable}",
                path,
            )
        )


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────


def _check_keys(rowset: DiskRowSet) -> Iterator[Finding]:
    unread = list(_caught(rowset.keys.check))
    yield from unread
    if any(not finding.derived or finding.keyless for finding in unread):
        return
    bounds = rowset.keys.read(0, 1).at(0), rowset.keys.read(rowset.row_count - 1, rowset.row_count).at(0)
    if bounds != (rowset.meta.key_min, rowset.meta.key_max):
        yield Finding(
            CorruptionError(
                f"expected keys from {rowset.meta.key_min.hex()} to {rowset.meta.key_max.hex()}, as the catalogue "
                f"says, found {bounds[0].hex()} to {bounds[1].hex()}",
                rowset.reader.path,
            ),
            derived=True,
        )


# ── deltas ───────────────────────────────────────────────────────────────────────────────────────


def _in_memory(rowset: DiskRowSet, column_id: int) -> list[DeltaRun]:
    """Return the column's REDO runs in memory, oldest first."""
    stores = (*rowset.frozen, rowset.deltas)
    return [run for store in stores for run in store.levels(column_id) if len(run)]


def _check_order(rowset: DiskRowSet, bounds: _FileBounds) -> Iterator[Finding]:
    """Check that the delta files of each column do not overlap in time."""
    for column_id in sorted({number for file in (*rowset.undo, *rowset.redo) for number in file.column_ids}):
        reached = -1
        undo, redo = (
            [
                (run.timestamp_min, run.timestamp_max)
                for file in files
                if (run := bounds.get((file.serial, column_id))) is not None
            ]
            for files in (rowset.undo, rowset.redo)
        )
        memory = [(run.timestamp_min, run.timestamp_max) for run in _in_memory(rowset, column_id)]
        for timestamp_min, timestamp_max in (*sorted(undo), *redo, *memory):
            if timestamp_min < reached:
                yield Finding(
                    CorruptionError(
                        f"found changes of column {column_id} from timestamp {timestamp_min} on in rowset "
                        f"{rowset.id}, but changes that should be older reach up to {reached}",
                        rowset.reader.path,
                    )
                )
            reached = max(reached, timestamp_max)


def _assert_memory(rowset: DiskRowSet) -> None:
    last = max((file.timestamp_max for file in rowset.redo), default=-1)
    for store in (*rowset.frozen, rowset.deltas):
        store.check()
        if store.timestamp_min is not None:
            assert store.timestamp_min >= last, "X2: stores follow one another in time"
            last = store.timestamp_max or last


# ── lives ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Lives:
    """The insertions and deletions of rows from `lower` on, as events sorted by (rowid, timestamp).

    rowids, timestamps: the row and the moment of each event. Events before the history are missing.
    born:  for each event: True: an insertion; False: a deletion.
    first: whether each row was alive before its first event, beginning with row `lower`.
    """

    lower: int
    rowids: Rowids
    timestamps: Timestamps
    born: Bools
    first: Bools

    def of(self, rowids: Rowids) -> tuple[npt.NDArray[np.int64], Timestamps, Bools, Bools]:
        """Return when these rows were inserted and deleted, as four arrays.

        Three arrays have one value per insertion or deletion: the index of its row in `rowids`, its
        timestamp, and whether it is an insertion. The fourth has one value per row: whether the row
        was alive before its first insertion or deletion.
        """
        begin = np.searchsorted(self.rowids, rowids, side="left")
        count = np.searchsorted(self.rowids, rowids, side="right") - begin
        owner = np.repeat(np.arange(len(rowids)), count)
        at = np.arange(len(owner)) + np.repeat(begin - (np.cumsum(count) - count), count)
        return owner, self.timestamps[at], self.born[at], self.first[rowids - self.lower]


def lives_of(rowset: DiskRowSet | MemRowSet, history_start: int, lower: int, upper: int) -> Lives:
    """Return the insertions and deletions of the rows [lower, upper) of a rowset.

    For a MemRowSet, the result has the events of all its rows. `Lives.of` selects single rows.
    history_start: earlier events of a DiskRowSet are left out.
    Cost: reads LIVENESS of these rows; for a MemRowSet that of all rows.
    """
    if isinstance(rowset, MemRowSet):
        count = rowset.row_count
        changes = [run for run in rowset.deltas.levels(LIVENESS) if len(run)]
        rowids, times = np.arange(count), rowset.insertion_times(0, count)
        born = np.ones(count, np.bool_)
        if changes:
            redo = merge_runs(changes)
            within = redo.rowids < count
            rowids = np.concatenate([rowids, redo.rowids[within]])
            times = np.concatenate([times, redo.timestamps[within]])
            born = np.concatenate([born, _values(redo)[within]])
        order = np.lexsort((times, rowids))
        return Lives(0, rowids[order], times[order], born[order], np.zeros(count, np.bool_))
    lives, _, _ = _disk_lives(rowset, history_start, lower, upper)
    return lives


_NOTHING: Final = np.empty(0, np.int64)


def _disk_lives(rowset: DiskRowSet, history_start: int, lower: int, upper: int) -> tuple[Lives, Bools, Bools]:
    """Return when the rows [lower, upper) were inserted and deleted, as a tuple of three values.

    * The insertions and deletions.
    * One bool per row: whether the row is alive according to the base file, without the changes in
      UNDO and REDO files.
    * One bool per insertion or deletion: whether it is from an UNDO record.

    history_start: UNDO records with this timestamp or an earlier one are left out.
    """
    undo, redo = (
        [run for file in files if (run := file.run_of_rows(LIVENESS, lower, upper)) is not None and len(run)]
        for files in (rowset.undo, rowset.redo)
    )
    undo.sort(key=lambda run: run.timestamp_min)
    redo += [part for run in _in_memory(rowset, LIVENESS) if len(part := run.of_rows(lower, upper))]
    base = _base_liveness(rowset, lower, upper)
    past = merge_runs(undo).between(history_start, MAX_TIMESTAMP) if undo else None
    coming = merge_runs(redo) if redo else None
    parts = [run for run in (past, coming) if run is not None]
    rowids = np.concatenate([_NOTHING, *(run.rowids for run in parts)])
    times = np.concatenate([_NOTHING, *(run.timestamps for run in parts)])
    # A REDO record has the value after the event. An UNDO record has the value before it.
    born = np.concatenate(
        [np.empty(0, np.bool_), *(~_values(run) if run.kind == "undo" else _values(run) for run in parts)]
    )
    from_undo = np.zeros(len(rowids), np.bool_)
    from_undo[: 0 if past is None else len(past)] = True
    order = np.lexsort((times, rowids))
    rowids, times, born, from_undo = rowids[order], times[order], born[order], from_undo[order]
    first = base.copy()
    starts = np.flatnonzero(np.diff(rowids, prepend=-1))
    first[rowids[starts]] = ~born[starts]
    return Lives(lower, rowids + lower, times, born, first), base, from_undo


def _base_liveness(rowset: DiskRowSet, lower: int, upper: int) -> Bools:
    reader = rowset.base_column(LIVENESS)
    if reader is None:
        return np.ones(upper - lower, np.bool_)
    values: Bools = reader.decode(lower, upper, access=Access.ONCE).to_numpy(zero_copy_only=False)
    return values.copy()


def _values(run: DeltaRun) -> Bools:
    values: Bools = run.values.to_numpy(zero_copy_only=False)
    return values.astype(np.bool_)


def _check_lives(rowset: DiskRowSet, history_start: int) -> Iterator[Finding]:
    chain: Finding | None = None  # the first event that does not follow from the one before it
    late: dict[tuple[int, int], int] = {}  # by (column, store): the first row changed after its deletion
    for lower, upper in row_ranges(rowset.row_count):
        lives, base, from_undo = _disk_lives(rowset, history_start, lower, upper)
        chain = chain or _broken_chain(rowset, lives, base, from_undo)
        deaths = ~from_undo & ~lives.born
        if deaths.any():
            for column_store, row in _late_changes(rowset, lives.rowids[deaths], lives.timestamps[deaths]):
                late.setdefault(column_store, row)
    if chain is not None:
        yield chain
    for (column_id, _), row in sorted(late.items()):
        yield Finding(
            CorruptionError(
                f"found a change of row {row} of rowset {rowset.id} in column {column_id} after the row was deleted",
                rowset.reader.path,
            )
        )


def _broken_chain(rowset: DiskRowSet, lives: Lives, base: Bools, from_undo: Bools) -> Finding | None:
    """Check that no live row is inserted again, and that no dead row is deleted.

    Returns: a finding about the first insertion or deletion that is wrong; None if all are right.
    lives: the insertions and deletions of each row (the events), in the order of time.
    base: for each row from `lives.lower` on, whether it is alive in the base data.
    from_undo: for each event of `lives`, whether it comes from an UNDO file.
    """
    if not len(lives.rowids):
        return None
    same = lives.rowids[1:] == lives.rowids[:-1]
    twice = same & (lives.born[1:] == lives.born[:-1])
    # The base must be the state after a row's newest UNDO event and before its oldest REDO event.
    ends = np.append(~same, True)
    starts = np.append(True, ~same)
    next_is_redo = np.append(same & from_undo[:-1] & ~from_undo[1:], False) | (ends & from_undo)
    after_undo = np.insert(same & from_undo[:-1] & ~from_undo[1:], 0, False) | (starts & ~from_undo)
    broken = np.zeros(len(lives.rowids), np.bool_)
    broken[1:] |= twice
    base_of_event = base[lives.rowids - lives.lower]
    broken |= next_is_redo & (lives.born != base_of_event)
    broken |= after_undo & (lives.born == base_of_event)
    if not broken.any():
        return None
    at = int(np.argmax(broken))
    event, state = ("inserted", "alive") if lives.born[at] else ("deleted", "dead")
    return Finding(
        CorruptionError(
            f"row {lives.rowids[at]} of rowset {rowset.id} is {event} at timestamp {lives.timestamps[at]}, but it was "
            f"{state} before: the chain of changes is broken",
            rowset.reader.path,
        )
    )


def _late_changes(
    rowset: DiskRowSet, dead_rows: Rowids, died: Timestamps
) -> Iterator[tuple[tuple[int, int], int]]:
    """Find rows that were changed after their deletion.

    Changes of a column are in REDO files, and in sorted runs in memory. For each column, every file
    and run with such changes is reported once.
    dead_rows, died: the rows with a deletion in REDO, ascending, and the timestamps of the
    deletions.
    Yields: ((column id, number), row). `number` identifies the file or run: the REDO files are 0,
    1, 2, …, and the runs have the next numbers. `row` is the first row that was changed too late.
    """
    lower, upper = int(dead_rows[0]), int(dead_rows[-1]) + 1
    for column_id in {number for file in rowset.redo for number in file.column_ids} - {LIVENESS}:
        redo = [file.record_keys(column_id, lower, upper) for file in rowset.redo]
        redo += [(run.rowids, run.timestamps) for run in _in_memory(rowset, column_id)]
        for store, (rowids, timestamps) in enumerate(redo):
            death = np.minimum(np.searchsorted(dead_rows, rowids), len(dead_rows) - 1)
            late = (dead_rows[death] == rowids) & (timestamps > died[death])
            if late.any():
                yield (column_id, store), int(rowids[np.argmax(late)])
