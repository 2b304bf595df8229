"""Executes compactions, while others read and write the store, in three steps.

    begin     under the flush lock: reserve the input rowsets; for a merge, also flush their
              DeltaMemStores as of a moment S
    run       without a lock: a job from files to files (`file_jobs`), here or in a worker process
    install   under the commit lock: move late changes, which the inputs got after S, to the outputs by
              key; one change of the catalogue names the outputs and drops the inputs; one new root

A scan continues with the root with which it began. Writers wait only for the install. Its cost
depends on the number of late changes.

Invariants
    C1  A read of any readable moment returns the same rows before and after a compaction.
    C2  A merge's outputs have `deltas_durable` = S, which says that all changes up to S are in
        files. Later changes of the inputs are in memory and in the log. A replay of the log finds
        their rows in the outputs by key (rules R1 and R2).
    C3  While a merge runs, its inputs' DeltaMemStores are not flushed, so the log keeps their
        changes (rule R3).
    C4  A compaction changes nothing and leaves no file if it fails, if its table is dropped, or if
        more urgent work revokes its reservation. After a crash the next open removes its files.
    C5  A major delta compaction moves all REDO of its columns into base and UNDO. So for each
        column, UNDO stays older than REDO. REDO files that were flushed during the job come after
        the REDO that the job writes.

Source: docs/design/compaction.md, "Files to files"; docs/design/rules.md, R1 to R5;
docs/design/kudu.md, "Write path and flush" and "Delta compactions". Difference from Kudu: no
DuplicatingRowSet applies each change to inputs and outputs. Late changes are moved once, at the
end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa

from nyala.catalog.model import CatalogChange, DeltaEntry, PartEntry, RowSetEntry
from nyala.delta.delta_file import DeltaFile, WrittenDelta
from nyala.delta.run import Rowids
from nyala.env.interrupts import Uninterrupted
from nyala.errors import StorageError
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.rowset_tree import RowSetTree
from nyala.tablet.compaction import file_jobs
from nyala.tablet.compaction.file_jobs import Job, MajorJob, MergeJob, MinorJob, Output, Progress, UndoJob
from nyala.tablet.compaction.measurement import all_expired, note_text_bytes
from nyala.tablet.compaction.plans import ExpirePlan, MajorPlan, MergePlan, MinorPlan, Plan
from nyala.tablet.compaction.text_limit import limit_text, slice_bounds, text_bytes
from nyala.tablet.flush.lifecycle import Phase, flush_deltas, no_phase
from nyala.tablet.state import store_folder as layout
from nyala.tablet.state.entries import RowSetFiles
from nyala.tablet.state.history import note_cut
from nyala.tablet.state.opening import delta_entry, entry_of, part_entry_of
from nyala.tablet.state.reservations import Reservation
from nyala.tablet.state.root import Root, TableState
from nyala.tablet.workers.process import JobCancelled

if TYPE_CHECKING:
    from nyala.tablet.store import Store

logger = logging.getLogger("nyala.compaction")

# Besides the output of a compaction, output / SPARE_SHARE of the disk must be free for the log and a flush.
SPARE_SHARE: Final = 4

Runner: TypeAlias = "Callable[[Job, Reservation], Output]"
"""Runs a job, in any process. It may raise JobCancelled after the reservation was revoked."""


@dataclass(frozen=True)
class CompactionReport:
    """The result of a compaction.

    bytes_before: the bytes of the removed files.
    bytes_after:  the bytes of the new files.
    rowset_ids:   the ids of the new rowsets.
    """

    plan: Plan
    bytes_before: int
    bytes_after: int
    rowset_ids: tuple[int, ...] = ()


def lack_of_space(store: Store, table: TableState, tablet_id: int, plan: Plan) -> str:
    """Return why the disk has too little space for the plan's output; "" if it has enough."""
    if isinstance(plan, ExpirePlan):
        return ""
    rowset_ids = plan.rowsets if isinstance(plan, MergePlan) else (plan.rowset,)
    tablet = table.tablet(tablet_id)
    assert tablet is not None, "the plan is for a tablet of this table"
    needed = _space_for(sum(rowset.size_bytes for rowset in tablet.rowsets if rowset.id in rowset_ids))
    free = store.env.files.free_bytes(store.root_path)
    if free >= needed:
        return ""
    return f"it needs {needed / 1e6:.1f} MB of disk space, and {free / 1e6:.1f} MB are free"


def _space_for(input_bytes: int) -> int:
    return input_bytes + input_bytes // SPARE_SHARE


def shrink_to_disk(store: Store, table: TableState, tablet_id: int, plan: Plan) -> Plan | None:
    """Return a merge of the plan's smallest rowsets that fits on the disk; None if no merge fits.

    This merge may free space for the other rowsets.
    """
    if not isinstance(plan, MergePlan):
        return None
    tablet = table.tablets[table.ordinal_of[tablet_id]]
    rowsets = [rowset for rowset in tablet.rowsets if rowset.id in plan.rowsets]
    free, total, chosen = store.env.files.free_bytes(store.root_path), 0, []
    for rowset in sorted(rowsets, key=lambda rowset: rowset.size_bytes):
        total += rowset.size_bytes
        if _space_for(total) > free:
            break
        chosen.append(rowset.id)
    return MergePlan(tuple(chosen), plan.gain) if len(chosen) > 1 else None


def run_here(store: Store, progress: Progress = lambda done, total: None) -> Runner:
    """Return a function that runs compactions in the thread that calls it.

    progress: called with the number of rows done, and of rows in total.
    """
    return lambda job, reservation: file_jobs.run(store.env, job, progress)


def compact(
    store: Store, table_id: int, tablet_id: int, plan: Plan, runner: Runner, *, phase: Phase = no_phase
) -> CompactionReport | None:
    """Execute the compaction `plan` of one tablet, and return a report.

    Returns None if the plan's rowsets have changed, or are reserved by others.

    runner: runs the plan's job, in this thread or another process, and returns its output.
    phase:  for tests: called without a lock as "reserved" (before the job runs) and "written"
            (before the output replaces the inputs).
    Raises: StorageError, CorruptionError; JobCancelled if the store is closing. Nothing changes
            then.
    """
    if isinstance(plan, ExpirePlan):
        return store.reserve.use(lambda: _expire(store, table_id, tablet_id, plan))
    with _started(store, table_id, tablet_id, plan) as started:
        if started is None:
            return None
        phase("reserved")
        try:
            output = runner(started.job, started.reservation)
        except BaseException as error:
            # A killed worker could not remove its files.
            store.discard_files(_written_so_far(store, started.job))
            if isinstance(error, JobCancelled) and started.reservation.revoked.is_set():
                return None
            raise
        try:
            phase("written")
            (report,) = _install(store, [_finished(store, started, output)])
        except BaseException:
            store.discard_files(output.paths)
            raise
    if report is None:
        store.discard_files(output.paths)
        logger.info(
            "a compaction of rowsets %s gave up: its rowsets were changed or revoked",
            [rowset.id for rowset in started.inputs],
        )
    return report


def compact_together(
    store: Store,
    table_id: int,
    plans: Sequence[tuple[int, Plan]],
    run_all: Callable[[Sequence[Job]], Sequence[Output]],
) -> list[CompactionReport]:
    """Execute plans (tablet id, plan) of several tablets, and replace their inputs together.

    An `ExpirePlan` only drops expired rowsets and files. Each of these plans is executed first, by
    its own change of the catalogue. Then `run_all` executes the other plans, and one change
    replaces all their inputs by the outputs.
    Leaves out plans whose rowsets are reserved by others, or whose reservation was revoked.

    run_all: runs the jobs anywhere and returns their outputs in order; raises if one failed.
    Raises:  the errors of `compact`. Then no input of the jobs is replaced, and the files of all
             jobs are removed. The changes of `ExpirePlan`s stay.
    """
    reports = [
        report
        for tablet_id, plan in plans
        if isinstance(plan, ExpirePlan) and (report := _expire(store, table_id, tablet_id, plan)) is not None
    ]
    with contextlib.ExitStack() as reserved:
        started = [
            one
            for tablet_id, plan in plans
            if not isinstance(plan, ExpirePlan)
            and (one := reserved.enter_context(_started(store, table_id, tablet_id, plan))) is not None
        ]
        if not started:
            return reports
        jobs = [one.job for one in started]
        try:
            outputs = run_all(jobs)
            installed = _install(
                store, [_finished(store, *pair) for pair in zip(started, outputs, strict=True)]
            )
        except BaseException:
            store.discard_files([path for job in jobs for path in _written_so_far(store, job)])
            raise
        for output, report in zip(outputs, installed, strict=True):
            if report is None:
                store.discard_files(output.paths)
            else:
                reports.append(report)
        # Spark may run a task twice. Then its job has written its files twice, but returned one output.
        store.discard_files([path for job in jobs for path in _written_so_far(store, job)])
    return reports


_JobPlan: TypeAlias = MergePlan | MajorPlan | MinorPlan


@dataclass(frozen=True)
class _Started:
    """A job whose inputs are reserved.

    root: keeps the inputs' files, even if the table is dropped.
    """

    reservation: Reservation
    plan: _JobPlan
    root: Root
    table: TableState
    inputs: Sequence[DiskRowSet]
    job: Job


@contextlib.contextmanager
def _started(store: Store, table_id: int, tablet_id: int, plan: _JobPlan) -> Iterator[_Started | None]:
    """Context manager that reserves the rowsets of `plan`, and yields the plan's job.

    Yields None if the rowsets have changed or are reserved by others.
    """
    plan = _limit_text(store, table_id, tablet_id, plan)
    merging = isinstance(plan, MergePlan)
    rowset_ids = plan.rowsets if isinstance(plan, MergePlan) else (plan.rowset,)
    reservation, started, snapshot = None, None, 0
    try:
        with store.flush_lock:
            store.check_writable()
            with Uninterrupted():  # otherwise, after Ctrl-C here, nobody would release the rowsets
                reservation = store.reservations.take(rowset_ids, holds_deltas=merging)
            if reservation is not None and merging:
                snapshot = flush_deltas(store, rowset_ids)
        root = store.root
        found = _find(root, table_id, tablet_id, rowset_ids)
        if reservation is not None and found is not None:
            table, rowsets = found
            job = _job(store, table, tablet_id, rowsets, plan, snapshot)
            started = None if job is None else _Started(reservation, plan, root, table, rowsets, job)
        yield started
    finally:
        if reservation is not None:
            store.reservations.release(reservation)


def _limit_text(store: Store, table_id: int, tablet_id: int, plan: _JobPlan) -> _JobPlan:
    """Return `plan`, or a rewrite of its rowset if the plan needs too much memory for text.

    Only a delta compaction, which works on a single rowset, is replaced. A rewrite can write
    several rowsets, one after the other, so it needs less memory.
    """
    if isinstance(plan, MergePlan):
        return plan
    found = _find(store.root, table_id, tablet_id, (plan.rowset,))
    if found is None:
        return plan
    table, (rowset,) = found
    return limit_text(rowset, table.stored_schema(), plan)


def _find(
    root: Root, table_id: int, tablet_id: int, rowset_ids: Sequence[int]
) -> tuple[TableState, list[DiskRowSet]] | None:
    """Return the table and these rowsets of its tablet; None if one of them no longer exists."""
    table = root.tables.get(table_id)
    tablet = None if table is None else table.tablet(tablet_id)
    if table is None or tablet is None:
        return None
    there = {rowset.id: rowset for rowset in tablet.rowsets}
    if any(number not in there for number in rowset_ids):
        return None
    return table, [there[number] for number in rowset_ids]


def _job(
    store: Store,
    table: TableState,
    tablet_id: int,
    rowsets: Sequence[DiskRowSet],
    plan: _JobPlan,
    snapshot: int,
) -> Job | None:
    """Return the compaction job that carries out `plan`.

    rowsets:  the rowsets to compact.
    snapshot: all changes up to this timestamp are in the rowsets' files. Only a merge uses it.
    Returns: None if the plan's delta files do not exist any more, because another compaction has
             merged them.
    """
    store.tablet_directory(tablet_id)
    token = store.env.randomness.token_hex(8)
    cut = store.history_cut(table.entry)
    whole, schema = table.stored_schema(), table.stored_schema(cut)
    dropped = {column.id for column in whole.columns if not schema.has_id(column.id)}
    if not any(
        file.timestamp_min <= cut for rowset in rowsets for file in (*rowset.undo, *rowset.redo)
    ) and not any(dropped & rowset.column_ids for rowset in rowsets):
        cut, schema = 0, whole  # no file has history that old
    if isinstance(plan, MergePlan):
        bounds = slice_bounds(rowsets, schema, plan.output_count)
        count = plan.output_count if bounds is None else len(bounds) + 1
        return MergeJob(
            store.root_path, tablet_id, schema, tuple(map(RowSetFiles.of, rowsets)), snapshot, cut,
            tuple(store.allocate("rowset") for _ in range(count)), token,
            None if bounds is None else tuple(bound.hex() for bound in bounds), plan.purged, plan.purged_until,
        )  # fmt: skip
    (rowset,) = rowsets
    files = RowSetFiles.of(rowset)
    if isinstance(plan, MajorPlan):
        if not rowset.redo:
            return None
        return MajorJob(store.root_path, tablet_id, schema, files, cut, token, plan.columns)
    chosen = (rowset.redo if plan.kind == "redo" else rowset.undo[::-1])[plan.files]
    if len(chosen) < 2:
        return None
    if plan.kind == "redo":
        ids = tuple(file.id for file in chosen)
        return MinorJob(store.root_path, tablet_id, whole, files, cut, token, ids)
    ids = tuple(file.id for file in _with_overlapping(chosen, rowset.undo))
    return UndoJob(store.root_path, tablet_id, whole, files, cut, token, ids)


def _with_overlapping(chosen: Sequence[DeltaFile], undo: Sequence[DeltaFile]) -> list[DeltaFile]:
    """Return the chosen UNDO files, and all others that overlap them in time in a common column.

    If a merge left out such a file, its output would overlap the file in time.
    """
    taken = list(chosen)
    while True:
        span: dict[int, tuple[int, int]] = {}
        for file in taken:
            for number in file.column_ids:
                first, last = span.get(number, (file.timestamp_min, file.timestamp_max))
                span[number] = min(first, file.timestamp_min), max(last, file.timestamp_max)
        between = [
            file
            for file in undo
            if file not in taken
            and any(
                file.timestamp_min < span[number][1] and file.timestamp_max > span[number][0]
                for number in file.column_ids
                if number in span
            )
        ]
        if not between:
            return taken
        taken += between


def _written_so_far(store: Store, job: Job) -> list[str]:
    """Return the files that a job has written so far, finished or not."""
    directory = layout.tablet_directory(job.tablet_id)
    try:
        names = store.env.files.list_dir(store.path(directory))
    except StorageError:
        return []
    return [f"{directory}/{name}" for name in names if job.token in name]


# ------------------------------------------------------------------------------------------------ install


@dataclass(frozen=True)
class _Finished:
    """A finished job, whose output files can now replace its inputs.

    late:    only for a merge: the changes that its inputs got while it ran.
    entries: only for a merge: the catalogue entries of the UNDO files that it wrote.
    """

    started: _Started
    output: Output
    late: _LateChanges | None
    entries: Sequence[DeltaEntry]


def _finished(store: Store, started: _Started, output: Output) -> _Finished:
    """Prepare the replacement of a finished job's inputs by its output.

    For a merge, open the rowsets that it wrote, and look up the rows that were changed while it
    ran. For a delta compaction, do nothing.

    Needs no commit lock, unlike the replacement itself.
    """
    late, entries, job = None, [], started.job
    if isinstance(job, MergeJob):
        fresh = []
        for result in output.rowsets:
            rowset, rowset_entries = store.adopt_rowset(result, started.table.schema)
            fresh.append(rowset)
            entries += rowset_entries
            if job.bounds is not None:
                note_text_bytes(rowset, text_bytes(rowset, job.schema.columns))
        late = _LateChanges(fresh)
        late.look_up(started.inputs)
    return _Finished(started, output, late, entries)


def _install(store: Store, finished: Sequence[_Finished]) -> list[CompactionReport | None]:
    """Replace the inputs of jobs by their outputs, by one change of the catalogue.

    Returns one report per job; None if its result could not be used. Reasons: an input rowset
    no longer exists, more urgent work revoked the job's reservation, or a new tag needs history
    that the job left out.
    """
    reports: list[CompactionReport | None] = []
    with Uninterrupted(), store.commit_lock:
        store.check_writable()
        after = store.root
        change = CatalogChange(timestamp=store.clock.latest)
        for one in finished:
            made = _installed(store, one, after, change)
            if made is None:
                reports.append(None)
                continue
            after, before = made
            made_ids = tuple(rowset.meta.id for rowset in one.output.rowsets)
            reports.append(CompactionReport(one.started.plan, before, one.output.size_bytes, made_ids))
        if any(reports):
            store.transact(change, after.at_version)
    for one, report in zip(finished, reports, strict=True):
        if report is not None:
            logger.info(
                "%s of %s: %d bytes became %d",
                type(report.plan).__name__,
                [rowset.id for rowset in one.started.inputs],
                report.bytes_before,
                report.bytes_after,
            )
    return reports


def _installed(store: Store, one: _Finished, root: Root, change: CatalogChange) -> tuple[Root, int] | None:
    """Add the result of a compaction to `change`, and return the next root.

    Also returns the total size of the replaced files, in bytes. Returns None if the result cannot
    be used any more: the compaction was revoked, its rowsets no longer exist, or it left out
    history that a new tag needs. The caller holds the commit lock.
    """
    started, job = one.started, one.started.job
    if started.reservation.revoked.is_set():
        return None
    found = _find(root, started.table.id, job.tablet_id, [rowset.id for rowset in started.inputs])
    if found is None:
        return None
    current_table, current = found
    if job.cut > store.history_cut(current_table.entry):  # a new tag needs history that the job left out
        return None
    tablet = current_table.tablet(job.tablet_id)
    assert tablet is not None, "its rowsets were found"
    if one.late is not None:
        assert isinstance(job, MergeJob)
        unchanged = all(
            now.redo == old.redo and not now.frozen for now, old in zip(current, started.inputs, strict=True)
        )
        assert unchanged, "C3: the inputs' files stay as they are"
        one.late.carry(current)
        before = _drop(change, current)
        change.put_rowsets += [RowSetEntry.from_meta(rowset.meta) for rowset in one.late.rowsets]
        change.put_deltas += one.entries
        gone = {rowset.id for rowset in current}
        rowsets = (*(rowset for rowset in tablet.rowsets if rowset.id not in gone), *one.late.rowsets)
    else:
        assert not isinstance(job, MergeJob)
        (now,) = current
        replaced, before = _replaced(store, job, started.inputs[0], now, one.output, change)
        rowsets = tuple(replaced if rowset is now else rowset for rowset in tablet.rowsets)
    after = root.with_tablets({tablet.id: dataclasses.replace(tablet, rowsets=rowsets)})
    return note_cut(change, after, started.table.id, job.cut), before


def _drop(change: CatalogChange, rowsets: Sequence[DiskRowSet]) -> int:
    """Add the removal of these rowsets and their files to `change`; return the size of the files."""
    for rowset in rowsets:
        change.drop_rowsets.append(rowset.id)
        change.drop_parts += [part.id for part in rowset.parts]
        change.drop_deltas += [file.id for file in (*rowset.undo, *rowset.redo)]
        change.garbage += rowset.paths
    return sum(rowset.size_bytes for rowset in rowsets)


def _replaced(
    store: Store,
    job: MajorJob | MinorJob | UndoJob,
    old: DiskRowSet,
    now: DiskRowSet,
    output: Output,
    change: CatalogChange,
) -> tuple[DiskRowSet, int]:
    """Add a delta compaction's result to `change`; return (new rowset, bytes of removed files).

    old: the rowset when the job began.
    now: its present version.
    """
    undo, redo = (_adopt_delta(store, now.id, made, change) for made in (output.undo, output.redo))
    gone_parts = []
    if isinstance(job, MajorJob):
        part = None
        if output.part is not None:
            places = output.part.file.columns
            entry = PartEntry(
                store.allocate("delta"),
                now.id,
                output.part.path,
                output.part.file.file_id,
                output.part.file.size_bytes,
                tuple(places),
            )
            change.put_parts.append(entry)
            part = store.open_part(entry)
        fresh = now.with_major_compaction(old.redo, redo, part, undo)
        gone = list(old.redo)
        gone_parts = [part for part in now.parts if part not in fresh.parts]
    elif isinstance(job, MinorJob):
        gone = [file for file in now.redo if file.id in job.file_ids]
        fresh = now.with_merged_redo(gone, redo)
    else:
        gone = [file for file in now.undo if file.id in job.file_ids]
        fresh = now.with_undo(gone, undo)
    change.drop_deltas += [entry_of(file).id for file in gone]
    change.drop_parts += [part_entry_of(part).id for part in gone_parts]
    change.garbage += [entry_of(file).path for file in gone] + [part.path for part in gone_parts]
    before = sum(file.size_bytes for file in gone) + sum(part.size_bytes for part in gone_parts)
    return fresh, before


def _adopt_delta(
    store: Store, rowset_id: int, made: tuple[str, WrittenDelta] | None, change: CatalogChange
) -> DeltaFile | None:
    if made is None:
        return None
    path, written = made
    entry = delta_entry(store.allocate("delta"), rowset_id, path, written)
    change.put_deltas.append(entry)
    return store.open_delta(entry)


class _LateChanges:
    """Copies late changes, which the inputs of a merge got while it ran, to its outputs.

    rowsets: the outputs of the merge.
    """

    def __init__(self, rowsets: Sequence[DiskRowSet]) -> None:
        self.rowsets = list(rowsets)
        self._tree = RowSetTree(self.rowsets)
        self._index = {rowset.id: index for index, rowset in enumerate(self.rowsets)}
        # By input: (changed rowids, the index of each row's output, its rowid there).
        self._known: dict[int, tuple[Rowids, Rowids, Rowids]] = {}

    def look_up(self, inputs: Sequence[DiskRowSet]) -> None:
        """Find the output and the rowid to which the merge moved each changed row of `inputs`.

        The results are kept for `carry`, which calls this again under the commit lock. The second
        call looks up only rows that were changed after the first one.
        """
        for rowset in inputs:
            store = rowset.deltas
            runs = [run for number in store.column_ids for run in store.levels(number)]
            if not runs:
                continue
            rows = np.unique(np.concatenate([run.rowids for run in runs]))
            known = self._known.get(rowset.id)
            if known is not None:
                rows = np.setdiff1d(rows, known[0], assume_unique=True)
                if not len(rows):
                    continue
            keys = rowset.keys_of(rows)
            which = np.full(len(rows), -1, np.int64)
            places = np.full(len(rows), -1, np.int64)
            for output, lower, upper in self._tree.candidates(keys):
                found = output.find(keys.slice(lower, upper - lower))
                hit = np.flatnonzero(found >= 0)
                which[lower + hit] = self._index[output.id]
                places[lower + hit] = found[hit]
            assert (which >= 0).all(), "R5: only live rows are changed, and a merge keeps all live rows"
            fresh = (rows, which, places)
            if known is not None:
                together = np.argsort(np.concatenate([known[0], rows]), kind="stable")
                fresh = tuple(
                    np.concatenate([old, new])[together] for old, new in zip(known, fresh, strict=True)
                )  # type: ignore[assignment]
            self._known[rowset.id] = fresh

    def carry(self, inputs: Sequence[DiskRowSet]) -> None:
        """Add the changes in the DeltaMemStores of `inputs` to those of the outputs.

        Call it under the commit lock.
        """
        self.look_up(inputs)
        for rowset in inputs:
            for batch in rowset.deltas.batches_after(-1):
                rows, which, places = self._known[rowset.id]
                at = np.searchsorted(rows, batch.rowids)
                for index in np.unique(which[at]).tolist():
                    mine = np.flatnonzero(which[at] == index)
                    rowids = places[at[mine]]
                    order = np.argsort(rowids, kind="stable")
                    self.rowsets[index].deltas.append(
                        rowids[order],
                        batch.timestamps[mine[order]],
                        {
                            number: array.take(pa.array(mine[order]))
                            for number, array in batch.columns.items()
                        },
                    )


# ------------------------------------------------------------------------------------------------ expiry


def _expire(store: Store, table_id: int, tablet_id: int, plan: ExpirePlan) -> CompactionReport | None:
    """Drop UNDO files and dead rowsets that no readable moment needs, by one catalogue change."""
    root = store.root
    found = _find(root, table_id, tablet_id, plan.rowsets)
    if found is None:
        return None
    table, rowsets = found
    cut = store.history_cut(table.entry)
    dead = {rowset for rowset in rowsets if all_expired(rowset, cut)}  # reads files, so before the lock
    with Uninterrupted(), store.commit_lock:
        store.check_writable()
        root = store.root
        again = _find(root, table_id, tablet_id, plan.rowsets)
        if again is None:
            return None
        table, current = again
        if cut > store.history_cut(table.entry):  # a new tag needs it
            return None
        tablet = table.tablet(tablet_id)
        assert tablet is not None, "its rowsets were found"
        change = CatalogChange(timestamp=store.clock.latest)
        before = 0
        replaced: dict[int, DiskRowSet | None] = {}
        for rowset in current:
            if store.reservations.taken(rowset.id):
                continue
            if rowset in dead and not rowset.nbytes:
                before += _drop(change, [rowset])
                replaced[rowset.id] = None
                continue
            gone = [file for file in rowset.undo if file.timestamp_max <= cut]
            if gone:
                replaced[rowset.id] = rowset.with_undo(gone, None)
                change.drop_deltas += [file.id for file in gone]
                change.garbage += [entry_of(file).path for file in gone]
                before += sum(file.size_bytes for file in gone)
        if not replaced:
            return None
        kept = [replaced.get(rowset.id, rowset) for rowset in tablet.rowsets]
        state = dataclasses.replace(tablet, rowsets=tuple(rowset for rowset in kept if rowset is not None))
        after = note_cut(change, root.with_tablets({tablet.id: state}), table_id, cut)
        store.transact(change, after.at_version)
    return CompactionReport(plan, before, 0)
