"""Compactions in the background: chooses a plan, runs it, and counts the results.

When files were added or removed (`store.changed`), or some time has passed, the background thread

    plans     computes the best plan of every tablet whose rowsets changed (`compaction.policy`)
    chooses   takes the plan with the greatest gain, of all tablets without a recent failure
    checks    whether the disk has enough space for the plan's output
    runs      small jobs in this thread, others in a worker process; one at a time, so that at most
              one core is busy
    repeats   these steps at once, until no plan is worth its cost

Invariants
    N1  While compactions are paused, none runs. `pause` returns after the running compaction has
        ended.
    N2  After a failure nothing in the tablet is compacted for some time, which doubles with each
        failure. So a damaged file or a full disk does not keep a core busy. Other tablets are
        compacted as usual.
    N3  User calls wait only while the result of a compaction is installed. Computing plans and
        running jobs hold no lock.

Source: docs/design/kudu.md, "Maintenance manager". Difference from Kudu: kinds of compaction have
no fixed order, because the gains of all plans are compared (`compaction.policy`).
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from nyala.mvcc.timestamp import from_physical
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.tablet.compaction import file_jobs
from nyala.tablet.compaction.file_jobs import Job, MergeJob, Output
from nyala.tablet.compaction.lifecycle import Runner, compact, lack_of_space
from nyala.tablet.compaction.measurement import Layouts
from nyala.tablet.compaction.plans import ExpirePlan, MajorPlan, MergePlan, MinorPlan, Plan
from nyala.tablet.compaction.policy import best_plan
from nyala.tablet.compaction.reports import FinishedCompaction, RunningCompaction
from nyala.tablet.state.reservations import Reservation
from nyala.tablet.state.root import TableState, TabletState
from nyala.tablet.workers.process import JobCancelled, NoWorkerError, Worker
from nyala.tablet.workers.protocol import placed

if TYPE_CHECKING:
    from nyala.tablet.store import Store

logger = logging.getLogger("nyala.compaction")

# A plan is computed again after this time even if no file has changed, because more history has expired.
REPLAN_S: Final = 30.0
# A tablet without writes for this time counts as quiet.
QUIET_S: Final = 60.0
# Delay of a tablet whose plan gave up.
SOON_S: Final = 1.0
# A job with fewer bytes and rows runs in this process: sending it to another one would take as long.
INLINE_BYTES: Final = 1 << 20
INLINE_ROWS: Final = 1 << 18
# Delay of a tablet whose plan failed. It doubles each time, up to an hour.
DELAY_S: Final = 10.0
DELAY_MAX_S: Final = 3600.0
HISTORY_LENGTH: Final = 8


@dataclass
class CompactionCounters:
    """How many compactions have run since the store was opened, by kind.

    bytes_compacted, bytes_written: bytes of the files that were replaced, and of the new files.
    given_up: compactions that ended without a result.
    """

    delta_compactions: int = 0
    major_delta_compactions: int = 0
    merging_compactions: int = 0
    expiries: int = 0
    bytes_compacted: int = 0
    bytes_written: int = 0
    given_up: int = 0


@dataclass(frozen=True)
class _Planned:
    """The best plan of a tablet, and the state of the tablet for which the plan was computed."""

    rowsets: tuple[DiskRowSet, ...]
    quiet: bool
    at_s: float
    plan: Plan | None


class Compactor:
    """Runs compactions in the background. One thread calls `run_once`; any thread may call the rest."""

    def __init__(self, store: Store) -> None:
        self._store = weakref.ref(store)
        self._layouts = Layouts()
        self._planned: dict[int, _Planned] = {}
        self._delayed: dict[int, tuple[float, float]] = {}  # tablet: (until, length of the delay)
        self._worker = Worker()
        self.counters = CompactionCounters()
        # The running compaction and its start, in one attribute: `status` reads both from another thread.
        self.running: tuple[RunningCompaction, float] | None = None
        self.waiting = ""
        """Why a useful compaction does not run; "" if it runs."""
        self._waiting_until_s = 0.0
        self.recent: deque[FinishedCompaction] = deque(maxlen=HISTORY_LENGTH)

    # ------------------------------------------------------------------------------------------ choosing

    def next(self, store: Store) -> tuple[TableState, int, Plan] | None:
        """Return the best plan of all tablets, as (table, tablet id, plan); None: no plan.

        Raises: CorruptionError, StorageError if a tablet's file cannot be read. The tablet is then
                left out for some time.
        """
        now_s = store.env.clock.monotonic_s()
        best: tuple[TableState, int, Plan] | None = None
        alive = set()
        for table, tablet in store.root.live_tablets():
            alive.add(tablet.id)
            until_s, _ = self._delayed.get(tablet.id, (0.0, 0.0))
            if not tablet.rowsets or until_s > now_s:
                continue
            try:
                plan = self._plan(store, table, tablet, now_s)
            except Exception:
                self._delay_longer(tablet.id, now_s)
                raise
            if plan is not None and (best is None or plan.gain > best[2].gain):
                best = table, tablet.id, plan
        for gone in self._planned.keys() - alive:
            del self._planned[gone]
        return best

    def _plan(self, store: Store, table: TableState, tablet: TabletState, now_s: float) -> Plan | None:
        quiet = is_quiet(tablet, store.env.clock.now_us())
        known = self._planned.get(tablet.id)
        if (
            known is not None
            and known.quiet == quiet
            and now_s - known.at_s < REPLAN_S
            and len(known.rowsets) == len(tablet.rowsets)
            and all(
                old is new or old.paths == new.paths
                for old, new in zip(known.rowsets, tablet.rowsets, strict=True)
            )
        ):
            return known.plan
        cut = store.history_cut(table.entry)
        layouts = self._layouts.of_tablet(tablet, cut, store.reservations, table.stored_schema(cut))
        plan = best_plan(layouts, target_bytes=store.options.rowset_target_bytes, quiet=quiet)
        self._planned[tablet.id] = _Planned(tablet.rowsets, quiet, now_s, plan)
        return plan

    # ------------------------------------------------------------------------------------------ running

    def run_once(self, store: Store) -> bool:
        """Run the best plan of all tablets. Return False if no plan is due or the store is closing.

        After an error the plan's tablet is left out for some time.
        """
        found = self.next(store)
        now_s = store.env.clock.monotonic_s()
        if found is None:
            if now_s >= self._waiting_until_s:
                self.waiting = ""
            return False
        table, tablet_id, plan = found
        self._planned.pop(tablet_id, None)
        lack = lack_of_space(store, table, tablet_id, plan)
        if lack:
            self.waiting = f"{operation_of(plan)} of table {table.name!r} waits: {lack}"
            self._waiting_until_s = now_s + DELAY_S
            self._delayed[tablet_id] = (now_s + DELAY_S, DELAY_S)
            return True
        self.running = RunningCompaction(operation_of(plan), table.name, tablet_id, 0.0, 0, 0), now_s
        try:
            report = compact(store, table.id, tablet_id, plan, self.runner(store, self._progress))
        except JobCancelled:
            self.counters.given_up += 1
            return False
        except BaseException:
            self._delay_longer(tablet_id, store.env.clock.monotonic_s())
            raise
        finally:
            self.running = None
        if now_s >= self._waiting_until_s:
            self.waiting = ""
        self._delayed.pop(tablet_id, None)
        if report is None:
            self.counters.given_up += 1
            # Its rowsets have changed or were revoked. A short delay avoids a busy loop.
            self._delayed[tablet_id] = (store.env.clock.monotonic_s() + SOON_S, DELAY_S / 2)
            return True
        self._count(plan, report.bytes_before, report.bytes_after)
        self.recent.append(
            FinishedCompaction(
                operation=operation_of(plan),
                table=table.name,
                tablet=tablet_id,
                rowsets=tuple(plan.rowsets) if isinstance(plan, MergePlan | ExpirePlan) else (plan.rowset,),
                bytes_before=report.bytes_before,
                bytes_after=report.bytes_after,
                seconds=round(store.env.clock.monotonic_s() - now_s, 3),
            )
        )
        return True

    def _progress(self, done: int, total: int) -> None:
        if self.running is not None:
            running, started_s = self.running
            self.running = replace(running, rows_done=done, rows_total=total), started_s

    def _delay_longer(self, tablet_id: int, now_s: float) -> None:
        """After a failure, do not compact this tablet for a time that doubles with each failure."""
        _, for_s = self._delayed.get(tablet_id, (0.0, DELAY_S / 2))
        for_s = min(2 * for_s, DELAY_MAX_S)
        self._delayed[tablet_id] = (now_s + for_s, for_s)

    def _count(self, plan: Plan, before: int, after: int) -> None:
        counters = self.counters
        counters.bytes_compacted += before
        counters.bytes_written += after
        if isinstance(plan, MergePlan):
            counters.merging_compactions += 1
        elif isinstance(plan, MajorPlan):
            counters.major_delta_compactions += 1
        elif isinstance(plan, MinorPlan):
            counters.delta_compactions += 1
        else:
            counters.expiries += 1

    # ------------------------------------------------------------------------------------------ where

    def runner(self, store: Store, on_progress: file_jobs.Progress = lambda done, total: None) -> Runner:
        """Return a function that runs small jobs in this thread, and others in a worker process.

        on_progress: called in this thread with (rows done, rows of the whole job).
        """
        clock = store.env.clock

        def run(job: Job, reservation: Reservation) -> Output:
            # A worker always uses the system's files and clock, but tests may use others.
            if not store.env.is_system or _is_small(job):
                return file_jobs.run(store.env, job, on_progress)
            kind, arguments = file_jobs.encode_job(job)
            started_s = clock.monotonic_s()
            try:
                answer = self._worker.run(
                    kind,
                    placed(arguments, store.env.files, store.root_path),
                    reservation.revoked.is_set,
                    lambda fields: on_progress(fields["done"], fields["total"]),
                )
            except NoWorkerError as error:
                logger.warning(
                    "no worker process, so a compaction runs in this process and may slow down queries: %s",
                    error,
                )
                return file_jobs.run(store.env, job, on_progress)
            logger.debug("%s in a worker took %.2f s", kind, clock.monotonic_s() - started_s)
            return file_jobs.decode_output(answer)

        return run

    def stop(self) -> None:
        """End the worker process and its job. A job in a thread of this process runs to its end."""
        self._worker.close()

    def status(self, now_s: float) -> dict[str, Any]:
        """Return the fields of `MaintenanceStatus` that describe compactions."""
        running = None
        if (current := self.running) is not None:
            running = replace(current[0], seconds=round(now_s - current[1], 3))
        return {
            **asdict(self.counters),
            "compaction": running,
            "waiting": self.waiting,
            "recent": tuple(self.recent),
        }


def is_quiet(tablet: TabletState, now_us: int) -> bool:
    """Return whether nobody has written to the tablet for `QUIET_S` seconds. Opens no file."""
    newest = max(
        (
            tablet.memory.timestamp_max or 0,
            *(rowset.meta.deltas_durable for rowset in tablet.rowsets),
            *(rowset.deltas.timestamp_max or 0 for rowset in tablet.rowsets),
        )
    )
    return newest < from_physical(max(now_us - int(QUIET_S * 1e6), 0))


def operation_of(plan: Plan) -> str:
    """Return the name of the plan's operation, as users see it in `status`."""
    if isinstance(plan, MergePlan):
        return "merging compaction" if len(plan.rowsets) > 1 else "rewrite"
    if isinstance(plan, MajorPlan):
        return "major delta compaction"
    if isinstance(plan, MinorPlan):
        return "minor delta compaction" if plan.kind == "redo" else "UNDO compaction"
    return "expiry"


def _is_small(job: Job) -> bool:
    """Return whether the job is small enough to run in this process, by its rows and its bytes."""
    inputs = job.inputs if isinstance(job, MergeJob) else (job.input,)
    rows = sum(files.rowset.row_count + sum(delta.record_count for delta in files.deltas) for files in inputs)
    return rows < INLINE_ROWS and input_bytes(job) < INLINE_BYTES


def input_bytes(job: Job) -> int:
    """Return an upper bound of the bytes that the job reads from files."""
    inputs = job.inputs if isinstance(job, MergeJob) else (job.input,)
    return sum(
        files.rowset.size_bytes
        + sum(part.size_bytes for part in files.parts)
        + sum(delta.size_bytes for delta in files.deltas)
        for files in inputs
    )
