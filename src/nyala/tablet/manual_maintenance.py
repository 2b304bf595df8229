"""Maintenance on request: the work of the background threads, at once and to the end.

    compact_table    flushes, then compacts until rowsets do not overlap and have no REDO
    vacuum_table     frees disk space: expired history, dead rows, unneeded files

Writers and scans continue. The functions wait for running background compactions. But they do not
wait for jobs (loads and staged batches of other processes), because a job may take hours. Rowsets
that a job holds are left out (`jobs.held_rowsets`): the report counts them, and the logger names
the jobs.
Source: docs/how-to/maintenance.md.
"""

from __future__ import annotations

import datetime
import errno
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nyala.catalog.job_leases import open_job_lease
from nyala.env import is_full
from nyala.env.interrupts import Uninterrupted
from nyala.errors import Error, InvalidArgumentError, StorageError
from nyala.tablet.compaction.file_jobs import Job, Output
from nyala.tablet.compaction.lifecycle import (
    Runner,
    compact,
    compact_together,
    lack_of_space,
    run_here,
    shrink_to_disk,
)
from nyala.tablet.compaction.measurement import Layouts
from nyala.tablet.compaction.plans import ExpirePlan, MergePlan, Plan, RowSetLayout
from nyala.tablet.compaction.policy import choose_expire, plan_full
from nyala.tablet.flush.lifecycle import flush
from nyala.tablet.state.root import Root, TableState
from nyala.tablet.workers.process import JobCancelled

if TYPE_CHECKING:
    from nyala.tablet.store import Store

logger = logging.getLogger("nyala.compaction")

# Writers may add rows during each round. The last round leaves them to the background.
ROUNDS_MAX: Final = 4
WAIT_S: Final = 600.0
# A longer wait is logged.
_PATIENCE_S: Final = 5.0


@dataclass
class MaintenanceReport:
    """What `compact_table` did.

    bytes_before, bytes_after: the sizes of the replaced and of the new files
    rowsets_left_out:          the number of rowsets that were not compacted, because jobs hold them
    """

    compactions: int = 0
    rowsets_rewritten: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    rowsets_left_out: int = 0


Choose = Callable[[list[RowSetLayout]], list[Plan]]
"""Returns the compaction plans for the rowsets of a tablet."""

Step = Callable[[int, int], None]
"""Called with the number of finished plans, and of all plans in this round, to show progress."""


def compact_table(
    store: Store, name: str, runner: Runner | None = None, step: Step = lambda done, total: None
) -> MaintenanceReport:
    """Flush the table and compact it until its rowsets do not overlap and have no REDO.

    The work is done in rounds, because one compaction can make another one necessary. Rows that are
    written during the call may stay uncompacted. Rowsets that jobs hold are left out.
    runner: runs each compaction; None: in this thread.
    step:   called before each compaction of a round: with the number of finished ones, and of all.
    Raises: TableNotFoundError, StorageError, CorruptionError; finished compactions are kept.
    """
    report = MaintenanceReport()

    def rounds() -> None:
        for table, plans in _rounds(store, store.root.table(name).id):
            _run_plans(store, table.id, plans, runner, report, step)

    with _not_nested(store):
        store.reserve.use(rounds)
        report.rowsets_left_out = _left_out(store, name, _everything(store))
        store.collect_garbage()
    return report


_at_work = threading.local()


@contextmanager
def _not_nested(store: Store) -> Iterator[None]:
    """Context manager: forbid a compaction inside the progress function of another compaction.

    Raises InvalidArgumentError for the inner compaction, which would wait for the outer one.
    """
    if getattr(_at_work, "store", None) is store:
        raise InvalidArgumentError(
            "compact() and vacuum() cannot be called from the progress function of compact(): call them after it "
            "returns"
        )
    before, _at_work.store = getattr(_at_work, "store", None), store
    try:
        yield
    finally:
        _at_work.store = before


def compact_table_together(
    store: Store,
    name: str,
    run_all: Callable[[Sequence[Job]], Sequence[Output]],
    step: Step = lambda done, total: None,
) -> MaintenanceReport:
    """Compact the table like `compact_table`, but replace the rowsets in few large commits.

    The table is compacted in rounds, because the outputs of one round may need further compaction.
    Each round runs all compactions that are possible at its start. One commit installs their
    outputs.

    run_all: runs the compactions of a round, and returns their outputs.
    step:    called with the number of finished compactions, and of all compactions of the round.
    """
    report = MaintenanceReport()
    for table, plans in _rounds(store, store.root.table(name).id):
        for tablet_id, plan in plans:
            lack = lack_of_space(store, table, tablet_id, plan)
            if lack:
                raise StorageError(
                    f"table {table.name!r} cannot be compacted: {lack}",
                    path=store.root_path,
                    errno=errno.ENOSPC,
                )
        step(0, len(plans))
        made = compact_together(store, table.id, plans, run_all)
        step(len(plans), len(plans))
        if not made:
            break
        for one in made:
            report.compactions += 1
            report.rowsets_rewritten += len(_rowsets(one.plan)) if isinstance(one.plan, MergePlan) else 0
            report.bytes_before += one.bytes_before
            report.bytes_after += one.bytes_after
    report.rowsets_left_out = _left_out(store, name, _everything(store))
    store.collect_garbage()
    return report


def _rounds(store: Store, table_id: int) -> Iterator[tuple[TableState, list[tuple[int, Plan]]]]:
    """Yield, once per round, the table and the compactions to run now as (tablet id, plan).

    Each round first flushes the table. The rounds end when nothing is left to compact or the table
    is dropped, and after `ROUNDS_MAX` rounds.
    """
    for _ in range(ROUNDS_MAX):
        table = store.root.tables.get(table_id)
        if table is None:
            return
        wait_for_others(store, table)
        flush(store, {tablet.id for tablet in table.tablets})
        plans = _plans(store, store.root, table_id, _everything(store))
        if not plans:
            return
        yield table, plans


def _everything(store: Store) -> Choose:
    return lambda layouts: plan_full(layouts, target_bytes=store.options.rowset_target_bytes)


def vacuum_table(
    store: Store, name: str, *, dry_run: bool = False, runner: Runner | None = None
) -> dict[str, Any]:
    """Free the disk space of expired history, of dead rows, and of files that nobody needs.

    This includes old files of the log.

    dry_run: only estimate what would be freed.
    runner:  runs each compaction; None: in this thread.
    Returns: `files` and `bytes` that were freed; `rowsets_rewritten`; `oldest_readable`;
             `waiting_files`, the garbage files that scans, snapshots or reader processes still use;
             and `rowsets_left_out`, the number of rowsets that could not be freed of expired
             history and dead rows, because jobs of other processes are changing them.
    Raises:  the errors of `compact_table`.
    """
    if not dry_run:
        with _not_nested(store):
            wait_for_others(store, store.root.table(name))
        try:
            # All tables are flushed, because each of them may keep the log, which also has old rows
            # of this table.
            store.reserve.use(lambda: flush(store))
        except StorageError as error:
            if not is_full(error):
                raise
            logger.warning("vacuum goes on without a flush: %s", error)
    root = store.root  # one root for all steps, because background work may change the table
    table = root.table(name)
    table_id = table.id
    before = _files_and_bytes(table)
    garbage = set(store.state.garbage)
    expire = _plans(store, root, table_id, _expiring)
    rewrite = _plans(store, root, table_id, _rewriting)
    answer: dict[str, Any] = {
        "dry_run": dry_run,
        "files": 0,
        "bytes": 0,
        "rowsets_rewritten": sum(len(plan.rowsets) for _, plan in rewrite if isinstance(plan, MergePlan)),
        "oldest_readable": store.history_cut(table.entry),
        "waiting_files": len(garbage),
        "rowsets_left_out": 0,
    }
    if dry_run:
        answer["rowsets_left_out"] = _left_out(store, name, _freeing)
        expired = {(tablet, number) for tablet, plan in expire for number in _rowsets(plan)}
        rewritten = {(tablet, number) for tablet, plan in rewrite for number in _rowsets(plan)}
        cut = store.history_cut(table.entry)
        layouts = {
            (tablet.id, layout.id): layout
            for tablet in table.tablets
            for layout in Layouts().of_tablet(tablet, cut, None, table.stored_schema(cut))
        }
        answer["bytes"] = sum(layouts[place].expired_bytes for place in expired | rewritten)
        answer["files"] = sum(
            layouts[place].expired_undo_files + 2 * layouts[place].all_expired for place in expired
        ) + len(rewritten)
        return answer
    del root  # so that its files can be removed
    report = MaintenanceReport()
    with _not_nested(store):
        wait_for_others(store, table)

        def free() -> None:
            for choose in (_expiring, _rewriting):
                plans = _plans(store, store.root, table_id, choose)
                _run_plans(store, table_id, plans, runner, report, lambda done, total: None)

        store.reserve.use(free)
    answer["rowsets_left_out"] = _left_out(store, name, _freeing)
    store.collect_garbage()
    after_table = store.root.tables.get(table_id)
    after = (0, 0) if after_table is None else _files_and_bytes(after_table)
    answer["rowsets_rewritten"] = report.rowsets_rewritten
    answer["files"], answer["bytes"] = max(before[0] - after[0], 0), max(before[1] - after[1], 0)
    answer["waiting_files"] = len(store.state.garbage)
    return answer


def _expiring(layouts: list[RowSetLayout]) -> list[Plan]:
    plan = choose_expire(layouts, manual=True)
    return [] if plan is None else [plan]


def _rewriting(layouts: list[RowSetLayout]) -> list[Plan]:
    """Return plans that rewrite rowsets to free expired data.

    If the expired data of a rowset fills whole files, no plan is needed: such files are deleted.
    """
    return [
        MergePlan((layout.id,), 0.0)
        for layout in layouts
        if layout.available
        and not layout.all_expired
        and layout.expired_bytes > 0
        and (
            layout.expired_rows
            or layout.superseded_bytes
            or layout.expired_undo_bytes > layout.expired_file_bytes
        )
    ]


def _freeing(layouts: list[RowSetLayout]) -> list[Plan]:
    return [*_expiring(layouts), *_rewriting(layouts)]


def _plans(
    store: Store, root: Root, table_id: int, choose: Choose, *, also_held: bool = False
) -> list[tuple[int, Plan]]:
    """Return the compactions that `choose` selects in all tablets of the table: (tablet id, plan).

    root:      the state to plan for. While the caller holds it, its files are not deleted.
    also_held: also plan for rowsets that other compactions or jobs hold.
    """
    table = root.tables.get(table_id)
    if table is None:
        return []
    measure, cut = Layouts(), store.history_cut(table.entry)
    schema, reservations = table.stored_schema(cut), None if also_held else store.reservations
    return [
        (tablet.id, plan)
        for tablet in table.tablets
        for plan in choose(measure.of_tablet(tablet, cut, reservations, schema))
    ]


def _run_plans(
    store: Store,
    table_id: int,
    plans: list[tuple[int, Plan]],
    runner: Runner | None,
    report: MaintenanceReport,
    step: Step,
) -> None:
    for done, (tablet_id, plan) in enumerate(plans):
        step(done, len(plans))
        table = store.root.tables.get(table_id)
        if table is None or tablet_id not in table.ordinal_of:
            continue
        lack = lack_of_space(store, table, tablet_id, plan)
        if lack:
            store.collect_garbage()  # removes files that the earlier plans replaced
            lack = lack_of_space(store, table, tablet_id, plan)
        if lack and (part := shrink_to_disk(store, table, tablet_id, plan)) is not None:
            plan, lack = part, ""  # the next round takes the rest
        if lack:
            raise StorageError(
                f"table {table.name!r} cannot be compacted further: {lack}. The compactions so far are kept. Free some "
                "space, or drop a range or a table",
                path=store.root_path,
                errno=errno.ENOSPC,
            )
        try:
            made = compact(store, table_id, tablet_id, plan, runner or run_here(store))
        except JobCancelled as error:
            raise StorageError(
                "the store was closed during the compaction. Nothing is lost, and the compactions so far are kept"
            ) from error
        if made is not None:
            report.compactions += 1
            report.rowsets_rewritten += len(_rowsets(plan)) if isinstance(plan, MergePlan) else 0
            report.bytes_before += made.bytes_before
            report.bytes_after += made.bytes_after
    step(len(plans), len(plans))


def wait_for_others(store: Store, table: TableState) -> None:
    """Wait until no background compaction has a rowset of the table.

    Raises: StorageError after ten minutes.
    """
    with Uninterrupted(), store.commit_lock:
        store.job_reservations.release_expired(store)
    ids = [rowset.id for tablet in table.tablets for rowset in tablet.rowsets]
    patience_s = min(_PATIENCE_S, WAIT_S)
    if store.reservations.wait_free(ids, patience_s):
        return
    logger.warning(
        "table %r: waiting for a background compaction of its rowsets (up to %.0f minutes): see "
        "db.maintenance.status()",
        table.name,
        WAIT_S / 60,
    )
    if not store.reservations.wait_free(ids, WAIT_S - patience_s):
        raise StorageError(
            f"a background compaction of table {table.name!r} has been running for {WAIT_S / 60:.0f} minutes: see "
            "db.maintenance.status(), and try again when it has ended"
        )


def _left_out(store: Store, name: str, choose: Choose) -> int:
    """Return the number of rowsets that are left out only because jobs hold them. Log these jobs.

    choose: selects the compactions, as in `_plans`.
    """
    with Uninterrupted(), store.commit_lock:
        store.job_reservations.release_expired(store)
    root = store.root
    table = root.by_name.get(name)
    if table is None:
        return 0
    ids = [rowset.id for tablet in table.tablets for rowset in tablet.rowsets]
    holders = store.job_reservations.holders(ids)
    if not holders:
        return 0
    chosen = {
        number
        for _, plan in _plans(store, root, table.id, choose, also_held=True)
        for number in _rowsets(plan)
    }
    for job in holders:
        if count := len(chosen & job.rowset_ids):
            logger.warning(
                "table %r: %d of %d rowsets are left out, because %s may have changes for them (lease %s, since %s, "
                "until %s unless renewed): call again when it has ended",
                name,
                count,
                len(ids),
                job.holder,
                job.lease,
                _time(job.since_us),
                _end_of(store, job.lease),
            )
    return len(chosen & {number for job in holders for number in job.rowset_ids})


def _end_of(store: Store, lease: str) -> str:
    try:
        left_s = open_job_lease(store.env, store.root_path, lease).left_s()
    except Error:
        return "now"
    return _time(store.env.clock.now_us() + int(left_s * 1e6))


def _time(moment_us: int) -> str:
    return datetime.datetime.fromtimestamp(moment_us // 1_000_000, datetime.UTC).isoformat()


def _rowsets(plan: Plan) -> tuple[int, ...]:
    return plan.rowsets if isinstance(plan, MergePlan | ExpirePlan) else (plan.rowset,)


def _files_and_bytes(table: TableState) -> tuple[int, int]:
    rowsets = [rowset for tablet in table.every_tablet for rowset in tablet.rowsets]
    return sum(len(rowset.paths) for rowset in rowsets), sum(rowset.size_bytes for rowset in rowsets)
