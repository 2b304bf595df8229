"""The background's compactions: which tablet next, where the work is done, and what came of it.

    files came or went (`store.changed`), or a while has passed
      plan      every tablet whose rowsets changed is asked for its best plan (`compaction.policy`)
      choose    the plan of the greatest gain, of a tablet that is not put off
      room      the disk must hold what the plan writes, besides a reserve
      run       small work here, other work in a worker process; one at a time, so a core at most is taken
      again     at once, until nothing pays

Invariants
    N1  Nothing is done while paused, and `pause` returns when nothing runs any more.
    N2  What failed is put off, for longer each time, so that a damaged file or a full disk does not keep a core busy;
        other tablets go on.
    N3  The foreground waits for the installs only: planning, reading and writing happen without a lock.

Source: docs/design/kudu.md, "Maintenance manager". Departure: one currency for all work (`compaction.policy`), so no
order of kinds.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from nyala.mvcc.timestamp import from_physical
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.tablet.compaction import file_jobs
from nyala.tablet.compaction.file_jobs import Job, MergeJob, Output
from nyala.tablet.compaction.lifecycle import Runner, compact, missing_room
from nyala.tablet.compaction.measurement import Layouts
from nyala.tablet.compaction.plans import ExpirePlan, MajorPlan, MergePlan, MinorPlan, Plan
from nyala.tablet.compaction.policy import PolicyOptions, best_plan
from nyala.tablet.state.reservations import Reservation
from nyala.tablet.state.root import TableState, TabletState
from nyala.tablet.workers.process import JobCancelled, NoWorkerError, Worker
from nyala.tablet.workers.protocol import placed

if TYPE_CHECKING:
    from nyala.tablet.store import Store

logger = logging.getLogger("nyala.compaction")

# Also without changes of files: history passes the mark, and tablets fall quiet.
REPLAN_S: Final = 30.0
QUIET_S: Final = 60.0
# A plan that could not begin is tried again after this.
SOON_S: Final = 1.0
# Below this a job is done in a few hundredths of a second, which its way to another process would take as well.
INLINE_BYTES: Final = 1 << 20
# A plan that failed is tried again after this, twice as long each time, an hour at most.
PUT_OFF_S: Final = 10.0
PUT_OFF_MAX_S: Final = 3600.0
HISTORY_LENGTH: Final = 8


@dataclass
class CompactionCounters:
    """Since the store was opened. Bytes of files."""

    delta_compactions: int = 0
    major_delta_compactions: int = 0
    merging_compactions: int = 0
    expiries: int = 0
    bytes_compacted: int = 0
    bytes_written: int = 0
    given_up: int = 0


@dataclass(frozen=True)
class _Planned:
    """What a tablet was asked for, and what it answered."""

    rowsets: tuple[DiskRowSet, ...]
    quiet: bool
    at_s: float
    plan: Plan | None


@dataclass
class Running:
    """A piece of work that is going on; its rows are counted as it goes."""

    operation: str
    table: str
    tablet: int
    since_s: float
    rows_done: int = 0
    rows_total: int = 0


class Compactor:
    """See the module. `run_once` by one thread; the rest from any."""

    def __init__(self, store: Store) -> None:
        self._store = weakref.ref(store)
        self._layouts = Layouts()
        self._planned: dict[int, _Planned] = {}
        self._put_off: dict[int, tuple[float, float]] = {}  # tablet: (until, for how long)
        self._worker = Worker()
        self.counters = CompactionCounters()
        self.running: Running | None = None
        self.waiting = ""
        """Why work that would pay is not done; empty when there is none."""
        self._waiting_until_s = 0.0
        self.recent: deque[dict[str, Any]] = deque(maxlen=HISTORY_LENGTH)

    # ------------------------------------------------------------------------------------------ choosing

    def next(self, store: Store) -> tuple[TableState, int, Plan] | None:
        """The best next work of all tablets, as (table, tablet id, plan).

        Raises: CorruptionError, StorageError, as a damaged file is looked at; its tablet is put off then.
        """
        now_s = store.env.clock.monotonic_s()
        best: tuple[TableState, int, Plan] | None = None
        alive = set()
        for table, tablet in store.root.tablets():
            alive.add(tablet.id)
            until_s, _ = self._put_off.get(tablet.id, (0.0, 0.0))
            if not tablet.rowsets or until_s > now_s:
                continue
            try:
                plan = self._plan(store, table, tablet, now_s)
            except Exception:
                self._put_off_longer(tablet.id, now_s)
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
        options = PolicyOptions(target_bytes=store.options.rowset_target_bytes, quiet=quiet)
        plan = best_plan(layouts, options)
        self._planned[tablet.id] = _Planned(tablet.rowsets, quiet, now_s, plan)
        return plan

    # ------------------------------------------------------------------------------------------ doing

    def run_once(self, store: Store) -> bool:
        """Do the best next work; whether there was any. Raises: what the work raises; it is put off then."""
        found = self.next(store)
        now_s = store.env.clock.monotonic_s()
        if found is None:
            if now_s >= self._waiting_until_s:
                self.waiting = ""
            return False
        table, tablet_id, plan = found
        self._planned.pop(tablet_id, None)
        room = missing_room(store, table, tablet_id, plan)
        if room:
            self.waiting = f"{operation_of(plan)} of table {table.name!r} waits: {room}"
            self._waiting_until_s = now_s + PUT_OFF_S
            self._put_off[tablet_id] = (now_s + PUT_OFF_S, PUT_OFF_S)
            return True
        self.running = Running(operation_of(plan), table.name, tablet_id, now_s)
        try:
            report = compact(store, table.id, tablet_id, plan, self.runner(store, self.running))
        except JobCancelled:
            self.counters.given_up += 1
            return False
        except BaseException:
            self._put_off_longer(tablet_id, store.env.clock.monotonic_s())
            raise
        finally:
            self.running = None
        if now_s >= self._waiting_until_s:
            self.waiting = ""
        self._put_off.pop(tablet_id, None)
        if report is None:
            self.counters.given_up += 1
            # What it was to work on has changed; a moment, so that this is no busy loop.
            self._put_off[tablet_id] = (store.env.clock.monotonic_s() + SOON_S, PUT_OFF_S / 2)
            return True
        self._count(plan, report.bytes_before, report.bytes_after)
        self.recent.append(
            {
                "operation": operation_of(plan),
                "table": table.name,
                "tablet": tablet_id,
                "rowsets": list(plan.rowsets) if isinstance(plan, MergePlan | ExpirePlan) else [plan.rowset],
                "bytes_before": report.bytes_before,
                "bytes_after": report.bytes_after,
                "seconds": round(store.env.clock.monotonic_s() - now_s, 3),
            }
        )
        return True

    def _put_off_longer(self, tablet_id: int, now_s: float) -> None:
        """N2."""
        _, for_s = self._put_off.get(tablet_id, (0.0, PUT_OFF_S / 2))
        for_s = min(2 * for_s, PUT_OFF_MAX_S)
        self._put_off[tablet_id] = (now_s + for_s, for_s)

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

    def runner(
        self,
        store: Store,
        running: Running | None = None,
        told: file_jobs.Progress = lambda done, total: None,
    ) -> Runner:
        """Small jobs in this thread, others in a worker process. running: what `status` shows of it meanwhile.

        told: called in this thread with the rows that are done, and those of the whole job.
        """
        clock = store.env.clock

        def run(job: Job, reservation: Reservation) -> Output:
            def progress(done: int, total: int) -> None:
                if running is not None:
                    running.rows_done, running.rows_total = done, total
                told(done, total)

            # A worker has the system's files and clock, so with others (in tests) it is no use.
            if not store.env.is_system or input_bytes(job) < INLINE_BYTES:
                return file_jobs.run(store.env, job, progress)
            kind, arguments = file_jobs.encode_job(job)
            started_s = clock.monotonic_s()
            try:
                answer = self._worker.run(
                    kind,
                    placed(arguments, store.env.files, store.root_path),
                    reservation.revoked.is_set,
                    lambda fields: progress(fields["done"], fields["total"]),
                )
            except NoWorkerError as error:
                logger.warning(
                    "a compaction runs in this process, and queries may be slower meanwhile: %s", error
                )
                return file_jobs.run(store.env, job, progress)
            logger.debug("%s in a worker took %.2f s", kind, clock.monotonic_s() - started_s)
            return file_jobs.decode_output(answer)

        return run

    def stop(self) -> None:
        """End what runs in a worker, and the workers. What runs in a thread of this process ends by itself."""
        self._worker.close()

    def status(self, now_s: float) -> dict[str, Any]:
        """Counters, what runs and what was done last."""
        running = self.running
        going_on = None
        if running is not None:
            going_on = {
                "operation": running.operation,
                "table": running.table,
                "tablet": running.tablet,
                "seconds": round(now_s - running.since_s, 3),
                "rows_done": running.rows_done,
                "rows_total": running.rows_total,
            }
        return {
            **asdict(self.counters),
            "compaction": going_on,
            "waiting": self.waiting,
            "recent": list(self.recent),
        }


def is_quiet(tablet: TabletState, now_us: int) -> bool:
    """Whether nobody has written to the tablet for `QUIET_S`. Opens no file."""
    newest = max(
        (
            tablet.memory.timestamp_max or 0,
            *(rowset.meta.deltas_durable for rowset in tablet.rowsets),
            *(rowset.deltas.timestamp_max or 0 for rowset in tablet.rowsets),
        )
    )
    return newest < from_physical(max(now_us - int(QUIET_S * 1e6), 0))


def operation_of(plan: Plan) -> str:
    """What a person calls it."""
    if isinstance(plan, MergePlan):
        return "merging compaction" if len(plan.rowsets) > 1 else "rewrite"
    if isinstance(plan, MajorPlan):
        return "major delta compaction"
    if isinstance(plan, MinorPlan):
        return "minor delta compaction" if plan.kind == "redo" else "UNDO compaction"
    return "expiry"


def input_bytes(job: Job) -> int:
    """Bytes of the files that the job reads, at most."""
    inputs = job.inputs if isinstance(job, MergeJob) else (job.input,)
    return sum(
        files.rowset.size_bytes
        + sum(part.size_bytes for part in files.parts)
        + sum(delta.size_bytes for delta in files.deltas)
        for files in inputs
    )
