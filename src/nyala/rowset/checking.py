"""Everything that must hold of one DiskRowSet, looked at: its files, and what they say of one another.

    files     every block, footer and CRC; counts, zone maps, value indexes                    `CFileReader.check`
    keys      ascend; each is in the bloom filter and under the value index; bounds are those of the catalogue;
              the encoded key is that of the key columns
    deltas    in order; of rows that there are; within the timestamps and counts that the catalogue names; for each
              column one store after the other (X2); none newer than `deltas_durable` (R2)
    lives     LIVENESS alternates: nobody dies twice, or is born while he lives; who is dead on disk is changed no
              more (R5)

A finding is *derived* when the rows themselves are whole and only what was calculated from them is wrong: a zone map, a
bloom filter, an index, bounds. Then the rowset can be written anew from its own rows (`tablet.repair`).

All of it a window of rows or records at a time (`cfile.memory.row_ranges`): a check of a rowset of any size takes the
memory of one window, its bloom filter and the footers.

Left out: what takes several rowsets to see (a key that lives twice), and the table's partitions: `tablet.check`.
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

__all__ = ["Finding", "Lives", "findings", "first_of", "lives_of"]

Bools = npt.NDArray[np.bool_]
_FileBounds: TypeAlias = dict[tuple[int, int], RunBounds]
"""Of each column that a delta file has records of, by the file's number (`DeltaFile.serial`) and the column's."""


@dataclass(frozen=True)
class Finding:
    """One thing that does not hold. `derived`: the rows are whole, see the module. `surplus`: all that was written is,
    and there is more. `keyless`: of the rows nothing can be found by its key."""

    error: CorruptionError | StorageError
    derived: bool = False

    @property
    def surplus(self) -> bool:
        return isinstance(self.error, TrailingBytesError)

    @property
    def keyless(self) -> bool:
        return isinstance(self.error, KeysError)


def findings(rowset: DiskRowSet, history_start: int = MAX_TIMESTAMP) -> Iterator[Finding]:
    """What does not hold of the rowset, files first: what rests on a damaged file is not looked at.

    history_start: what its table's history begins with; what came before may be gone in part, and is not looked at.
                   By itself only what is coming (REDO) is.
    Raises: AssertionError for what is wrong in memory: our own mistake.
    Cost: reads and decodes all its files, past the cache for blocks; a window of rows or records at a time in memory.
    """
    base = list(_of_base(rowset))
    yield from base
    bounds: _FileBounds = {}
    files = (*rowset.undo, *rowset.redo)
    deltas = [finding for file in files for finding in _of_delta_file(rowset, file, bounds)]
    yield from deltas
    if all(finding.derived or finding.surplus for finding in base):
        if not any(finding.keyless for finding in base):
            # Of the bloom filter the keys' own check says what that of the file said.
            told = {(str(finding.error), finding.derived, finding.keyless) for finding in base}
            for finding in _of_keys(rowset):
                if (str(finding.error), finding.derived, finding.keyless) not in told:
                    yield finding
        if all(finding.surplus for finding in deltas):
            yield from _of_deltas(rowset, bounds)
            yield from _of_lives(rowset, history_start)
    _assert_memory(rowset)


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _caught(check: Callable[[], object]) -> Iterator[Finding]:
    try:
        check()
    except SummaryError as error:
        yield Finding(error, derived=True)
    except (CorruptionError, StorageError) as error:
        yield Finding(error)


def _of_base(rowset: DiskRowSet) -> Iterator[Finding]:
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


def _of_delta_file(rowset: DiskRowSet, file: DeltaFile, bounds: _FileBounds) -> Iterator[Finding]:
    """Puts the bounds of its columns into `bounds`."""
    damaged = list(_caught(file.reader.check))
    yield from damaged
    runs: dict[int, RunBounds] = {}

    def read() -> None:
        for column_id in sorted(file.column_ids):
            run = file.check_run(column_id)
            if run is not None:
                runs[column_id] = bounds[file.serial, column_id] = run

    unread = list(_caught(read))
    told = {(type(one.error), str(one.error)) for one in damaged}  # the reading meets the same block again
    yield from (one for one in unread if (type(one.error), str(one.error)) not in told)
    if unread:
        return
    path = file.reader.path
    for column_id, run in runs.items():
        if run.rowid_max >= rowset.row_count:
            yield Finding(
                CorruptionError(
                    f"a change of row {run.rowid_max} of column {column_id}, the rowset has {rowset.row_count}",
                    path,
                )
            )
    if not runs:
        yield Finding(CorruptionError("a delta file without records (F3)", path))
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
                f"changes up to {file.timestamp_max}, but rowset {rowset.id} is said to be on disk up to "
                f"{rowset.meta.deltas_durable} (R2)",
                path,
            )
        )


# ── keys ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_keys(rowset: DiskRowSet) -> Iterator[Finding]:
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


# ── deltas ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _in_memory(rowset: DiskRowSet, column_id: int) -> list[DeltaRun]:
    """REDO of the column that is in no file, oldest first."""
    stores = (*rowset.frozen, rowset.deltas)
    return [run for store in stores for run in store.levels(column_id) if len(run)]


def _of_deltas(rowset: DiskRowSet, bounds: _FileBounds) -> Iterator[Finding]:
    """X2: for each column, one store after the other in time."""
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
                        f"changes of column {column_id} from {timestamp_min} on in one delta store of rowset "
                        f"{rowset.id}, and up to {reached} in an older one (X2)",
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


# ── lives ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Lives:
    """When rows of a rowset came and went, those from `lower` on: events by (rowid, timestamp), ascending.

    born[i]: whether event i is a birth (else a death). first[r]: whether row lower + r was there before its first
    event. UNDO of before the history's beginning is left out: some of it may be gone, so the rest leads nowhere.
    """

    lower: int
    rowids: Rowids
    timestamps: Timestamps
    born: Bools
    first: Bools

    def of(self, rowids: Rowids) -> tuple[npt.NDArray[np.int64], Timestamps, Bools, Bools]:
        """The events of these rows: (index into `rowids`, timestamp, born) of each, and `first` of each row."""
        begin = np.searchsorted(self.rowids, rowids, side="left")
        count = np.searchsorted(self.rowids, rowids, side="right") - begin
        owner = np.repeat(np.arange(len(rowids)), count)
        at = np.arange(len(owner)) + np.repeat(begin - (np.cumsum(count) - count), count)
        return owner, self.timestamps[at], self.born[at], self.first[rowids - self.lower]


def lives_of(rowset: DiskRowSet | MemRowSet, history_start: int, lower: int, upper: int) -> Lives:
    """Of the rows [lower, upper) at least; right for every moment from `history_start` on.

    Cost: LIVENESS of these rows, base and changes; of a MemRowSet that of all.
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
    """The lives of the rows [lower, upper), their base, and which of the events come from UNDO."""
    undo, redo = (
        [run for file in files if (run := file.window(LIVENESS, lower, upper)) is not None and len(run)]
        for files in (rowset.undo, rowset.redo)
    )
    undo.sort(key=lambda run: run.timestamp_min)
    redo += [part for run in _in_memory(rowset, LIVENESS) if len(part := run.window(lower, upper))]
    base = _base_liveness(rowset, lower, upper)
    past = merge_runs(undo).between(history_start, MAX_TIMESTAMP) if undo else None
    coming = merge_runs(redo) if redo else None
    parts = [run for run in (past, coming) if run is not None]
    rowids = np.concatenate([_NOTHING, *(run.rowids for run in parts)])
    times = np.concatenate([_NOTHING, *(run.timestamps for run in parts)])
    # UNDO says what was before its moment, and so what came with it is the other; REDO says what came.
    born = np.concatenate(
        [np.empty(0, np.bool_), *(~_values(run) if run.kind == "undo" else _values(run) for run in parts)]
    )
    of_undo = np.zeros(len(rowids), np.bool_)
    of_undo[: 0 if past is None else len(past)] = True
    order = np.lexsort((times, rowids))
    rowids, times, born, of_undo = rowids[order], times[order], born[order], of_undo[order]
    first = base.copy()
    starts = np.flatnonzero(np.diff(rowids, prepend=-1))
    first[rowids[starts]] = ~born[starts]
    return Lives(lower, rowids + lower, times, born, first), base, of_undo


def _base_liveness(rowset: DiskRowSet, lower: int, upper: int) -> Bools:
    reader = rowset.base_column(LIVENESS)
    if reader is None:
        return np.ones(upper - lower, np.bool_)
    values: Bools = reader.decode(lower, upper, access=Access.ONCE).to_numpy(zero_copy_only=False)
    return values.copy()


def _values(run: DeltaRun) -> Bools:
    values: Bools = run.values.to_numpy(zero_copy_only=False)
    return values.astype(np.bool_)


def _of_lives(rowset: DiskRowSet, history_start: int) -> Iterator[Finding]:
    chain: Finding | None = None  # of the first row with a broken one
    late: dict[tuple[int, int], int] = {}  # by (column, store): the first row that is changed after its death
    for lower, upper in row_ranges(rowset.row_count):
        lives, base, of_undo = _disk_lives(rowset, history_start, lower, upper)
        chain = chain or _broken_chain(rowset, lives, base, of_undo)
        deaths = ~of_undo & ~lives.born
        if deaths.any():
            for place, row in _late_changes(rowset, lives.rowids[deaths], lives.timestamps[deaths]):
                late.setdefault(place, row)
    if chain is not None:
        yield chain
    for (column_id, _), row in sorted(late.items()):
        yield Finding(
            CorruptionError(
                f"row {row} of rowset {rowset.id} is changed (column {column_id}) after it was deleted (R5)",
                rowset.reader.path,
            )
        )


def _broken_chain(rowset: DiskRowSet, lives: Lives, base: Bools, of_undo: Bools) -> Finding | None:
    """The first of these events that does not follow from the one before. base, of_undo: as of `_disk_lives`."""
    if not len(lives.rowids):
        return None
    same = lives.rowids[1:] == lives.rowids[:-1]
    twice = same & (lives.born[1:] == lives.born[:-1])
    # What the newest UNDO leads to, and what the oldest REDO starts from, is the base.
    ends = np.append(~same, True)
    starts = np.append(True, ~same)
    next_is_redo = np.append(same & of_undo[:-1] & ~of_undo[1:], False) | (ends & of_undo)
    after_undo = np.insert(same & of_undo[:-1] & ~of_undo[1:], 0, False) | (starts & ~of_undo)
    broken = np.zeros(len(lives.rowids), np.bool_)
    broken[1:] |= twice
    base_of_event = base[lives.rowids - lives.lower]
    broken |= next_is_redo & (lives.born != base_of_event)
    broken |= after_undo & (lives.born == base_of_event)
    if not broken.any():
        return None
    at = int(np.argmax(broken))
    word = "born" if lives.born[at] else "deleted"
    return Finding(
        CorruptionError(
            f"row {lives.rowids[at]} of rowset {rowset.id} is {word} at {lives.timestamps[at]}, and was so "
            "already: a broken chain of changes",
            rowset.reader.path,
        )
    )


def _late_changes(
    rowset: DiskRowSet, dead_rows: Rowids, died: Timestamps
) -> Iterator[tuple[tuple[int, int], int]]:
    """((column, number of the store), row): for each column and store the first of these rows that is changed after it
    died. The rows ascend; a row may stand several times, its first death first."""
    lower, upper = int(dead_rows[0]), int(dead_rows[-1]) + 1
    for column_id in {number for file in rowset.redo for number in file.column_ids} - {LIVENESS}:
        redo = [file.moments(column_id, lower, upper) for file in rowset.redo]
        redo += [(run.rowids, run.timestamps) for run in _in_memory(rowset, column_id)]
        for store, (rowids, timestamps) in enumerate(redo):
            death = np.minimum(np.searchsorted(dead_rows, rowids), len(dead_rows) - 1)
            late = (dead_rows[death] == rowids) & (timestamps > died[death])
            if late.any():
                yield (column_id, store), int(rowids[np.argmax(late)])


def first_of(found: Iterator[Finding]) -> None:
    """Raise the first finding's error, if there is one."""
    for finding in found:
        raise finding.error
