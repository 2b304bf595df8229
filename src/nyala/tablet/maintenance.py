"""The background work of an open store: two threads.

The thread nyala-flush runs every 2 seconds, or at once when a write sets `Store.pressure`:

    memory or log is full   flush the largest tablets, or all tablets that keep the log
    old data in memory      flush it after `FLUSH_AGE_S`, if it has at least `FLUSH_AGE_MIN_BYTES`
    garbage                 delete files that no scan, snapshot or reader needs

The thread nyala-compaction runs when files were added or removed, and every second
(`compaction.background`). Flushes never wait for compactions, because writers may wait for the
memory that a flush frees.

Source: Kudu tablet design, "Overall picture"; docs/design/kudu.md, "Maintenance manager".
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from nyala.delta.run import MAX_TIMESTAMP
from nyala.env.interrupts import Uninterrupted
from nyala.errors import Error
from nyala.mvcc.timestamp import physical_us
from nyala.tablet.jobs.staging import remove_expired_staging

if TYPE_CHECKING:
    from nyala.tablet.compaction.background import Compactor
    from nyala.tablet.compaction.reports import FinishedCompaction, RunningCompaction
    from nyala.tablet.flush.in_worker import FlushWorker
    from nyala.tablet.store import Store

logger = logging.getLogger("nyala.maintenance")

TICK_S: Final = 0.1
COMPACTION_TICK_S: Final = 1.0
FLUSH_AGE_S: Final = 120.0  # Kudu's flush_threshold_secs
# Less old data stays in memory and in the log, because each flush writes several files.
FLUSH_AGE_MIN_BYTES: Final = 1 << 20
# A merge keeps changes in memory, so the log cannot be shortened. The merge is stopped when writes
# have waited for a shorter log for this many seconds.
GIVES_WAY_S: Final = 5.0


@dataclass(frozen=True)
class TabletMemory:
    """The memory that a flush of one tablet would free.

    Excludes changes that a running merge keeps in memory.

    bytes:         the number of bytes that the flush would free.
    timestamp_min: the timestamp of the oldest change that is only in this memory; None: the memory
                   is empty.
    """

    tablet_id: int
    bytes: int
    timestamp_min: int | None


@dataclass(frozen=True)
class Pressure:
    """The input of `choose_flush`: how full memory and log are, by tablet.

    kept_since: the timestamp of the oldest change that a running merge keeps in memory. The log is
                needed from this timestamp on. None: no merge keeps changes.
    """

    memory_bytes: int
    memory_limit_bytes: int
    log_bytes: int
    log_limit_bytes: int
    now_us: int
    tablets: Sequence[TabletMemory]
    kept_since: int | None = None


def choose_flush(pressure: Pressure) -> set[int]:
    """Return the ids of the tablets to flush now.

    Memory: if unflushed data takes more than half of the limit, the largest tablets, until the
            other tablets take at most a quarter of the limit.
    Log:    if it is above its limit, every tablet with unflushed rows. A tablet is left out if a
            running merge needs the log from an earlier moment: its flush would write small files,
            but not shorten the log.
    Age:    every tablet with old data in memory, if the old data is large enough.
    """
    chosen: set[int] = set()
    held = [tablet for tablet in pressure.tablets if tablet.timestamp_min is not None]
    if pressure.memory_bytes > pressure.memory_limit_bytes // 2:
        left = pressure.memory_bytes
        for tablet in sorted(held, key=lambda tablet: -tablet.bytes):
            if left <= pressure.memory_limit_bytes // 4:
                break
            chosen.add(tablet.tablet_id)
            left -= tablet.bytes
    if pressure.log_bytes > pressure.log_limit_bytes:
        kept_since = MAX_TIMESTAMP if pressure.kept_since is None else pressure.kept_since
        chosen |= {t.tablet_id for t in held if t.timestamp_min is not None and t.timestamp_min < kept_since}
    oldest_us = pressure.now_us - int(FLUSH_AGE_S * 1e6)
    aged = [t for t in held if t.timestamp_min is not None and physical_us(t.timestamp_min) < oldest_us]
    if sum(tablet.bytes for tablet in aged) >= FLUSH_AGE_MIN_BYTES:
        chosen |= {tablet.tablet_id for tablet in aged}
    return chosen


def pressure_of(store: Store) -> Pressure:
    tablets = []
    kept: list[int] = []
    for _, tablet in store.root.tablets():
        free = tablet
        held = [rowset for rowset in tablet.rowsets if store.reservations.holds_deltas(rowset.id)]
        if held:
            free = replace(tablet, rowsets=tuple(rowset for rowset in tablet.rowsets if rowset not in held))
            kept += [oldest for rowset in held if (oldest := rowset.timestamp_min) is not None]
        tablets.append(TabletMemory(tablet.id, free.memory_bytes(), free.memory_timestamp_min()))
    return Pressure(
        memory_bytes=sum(tablet.bytes for tablet in tablets),
        memory_limit_bytes=store.options.memory_limit_bytes,
        log_bytes=store.log.size_bytes,
        log_limit_bytes=store.options.log_limit_bytes,
        now_us=store.env.clock.now_us(),
        tablets=tablets,
        kept_since=min(kept, default=None),
    )


@dataclass
class FlushCounters:
    """Counters of flushes and deleted files, since the store was opened."""

    flushes: int = 0
    rows_flushed: int = 0
    files_collected: int = 0
    failures: int = 0
    running: str = field(default="")


@dataclass(frozen=True)
class MaintenanceStatus:
    """The background work of a store (`db.maintenance.status()`). Counters begin at the open."""

    paused: bool
    running: str
    """The flush or collection that runs; "" if none does."""
    compaction: RunningCompaction | None
    """The running compaction; None if none runs."""
    waiting: str
    """Why the next compaction waits; "" if none does."""
    recent: tuple[FinishedCompaction, ...]
    """The last eight compactions, oldest first."""
    flushes: int
    rows_flushed: int
    delta_compactions: int
    """Minor delta compactions."""
    major_delta_compactions: int
    merging_compactions: int
    expiries: int
    """Removals of expired history."""
    bytes_compacted: int
    """Bytes that compactions read."""
    bytes_written: int
    """Bytes that compactions wrote."""
    given_up: int
    """Compactions whose result was discarded because the rowsets had changed."""
    files_collected: int
    """Garbage files that were removed."""
    failures: int
    last_error: str
    """The last errors of the background work; "" if there was none."""


def status_of_fields(fields: Mapping[str, Any]) -> MaintenanceStatus:
    """Return the MaintenanceStatus from which `dataclasses.asdict` made `fields`."""
    from nyala.tablet.compaction.reports import FinishedCompaction, RunningCompaction

    running = fields["compaction"]
    return MaintenanceStatus(
        **{
            **fields,
            "compaction": running and RunningCompaction(**running),
            "recent": tuple(
                FinishedCompaction(**{**each, "rowsets": tuple(each["rowsets"])}) for each in fields["recent"]
            ),
        }
    )


class Maintenance:
    """The background work of one store. `status()`, `pause()` and `resume()` are for users."""

    # Without pressure, `run_once` is called every 20 ticks.
    _IDLE_TICKS: Final = 20

    def __init__(self, store: Store, every_tick: Callable[[], None] = lambda: None) -> None:
        self._store = weakref.ref(store)
        self._clock = store.env.clock
        self._every_tick = every_tick
        self._wake = store.pressure
        self._changed = store.changed
        self._stop = threading.Event()
        self._paused = False
        self._log_full_since_s: float | None = None
        self._busy = threading.Lock()
        self._compacting = threading.Lock()
        self.counters = FlushCounters()
        self._env = store.env
        self._making = threading.Lock()
        self._compactor: Compactor | None = None
        self._flush_worker: FlushWorker | None = None
        self._errors: dict[str, str] = {}  # current errors, by thread
        self._threads = [
            threading.Thread(target=self._flush_loop, name="nyala-flush", daemon=True),
            threading.Thread(target=self._compaction_loop, name="nyala-compaction", daemon=True),
        ]

    # The compactor and the flush worker are imported and created at the first use, because many
    # programs end before they need them.

    @property
    def compactor(self) -> Compactor:
        with self._making:
            if self._compactor is None:
                from nyala.tablet.compaction.background import Compactor

                store = self._store()
                assert store is not None, "a caller that compacts has the store"
                self._compactor = Compactor(store)
                if self._stop.is_set():
                    self._compactor.stop()
            return self._compactor

    @property
    def flush_worker(self) -> FlushWorker:
        with self._making:
            if self._flush_worker is None:
                from nyala.tablet.flush.in_worker import FlushWorker

                self._flush_worker = FlushWorker(self._env)
                if self._stop.is_set():
                    self._flush_worker.stop()
            return self._flush_worker

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the flush thread, the compaction thread and all worker processes.

        Running flushes and compactions fail.
        """
        self._stop.set()
        self._wake.set()
        self._changed.set()
        with self._making:
            made = [worker for worker in (self._compactor, self._flush_worker) if worker is not None]
        for worker in made:
            worker.stop()
        for thread in self._threads:
            if thread.is_alive() and threading.current_thread() is not thread:
                thread.join()

    def pause(self) -> None:
        """Stop background work until `resume`. Return when running work has ended.

        `flush()`, `compact()` and `vacuum()` still work.
        """
        self._pause(True)
        with self._busy, self._compacting:
            pass

    def resume(self) -> None:
        """Continue background work."""
        self._pause(False)
        self._wake.set()
        self._changed.set()

    def _pause(self, paused: bool) -> None:
        self._paused = paused
        if (store := self._store()) is not None:
            store.pause(paused)

    def status(self) -> MaintenanceStatus:
        """Return the running work, the last work, and counters since the store was opened."""
        return MaintenanceStatus(
            paused=self._paused,
            **asdict(self.counters),
            last_error="; ".join(self._errors.values()),
            **self.compactor.status(self._clock.monotonic_s()),
        )

    # ── the threads

    def _flush_loop(self) -> None:
        tick = 0
        while not self._stop.is_set():
            store = self._store()
            if store is None or store.closed:
                return
            pressed = self._clock.wait(self._wake, TICK_S)
            if self._stop.is_set():
                return
            tick += 1
            if pressed:
                # Before the work, so that a signal during the work is not lost. Also while paused,
                # so that this loop waits.
                self._wake.clear()
            try:
                with self._busy:
                    if not self._paused and (pressed or tick % self._IDLE_TICKS == 0):
                        self.run_once(store)
            except Exception as error:  # the thread must continue after any error
                self.counters.running = ""
                self._failed("flush", error)
            del store

    def _compaction_loop(self) -> None:
        while not self._stop.is_set():
            store = self._store()
            if store is None or store.closed:
                return
            self._clock.wait(self._changed, COMPACTION_TICK_S)
            if self._stop.is_set():
                return
            self._changed.clear()
            try:
                with self._compacting:
                    self.compact_once(store)
            except Exception as error:
                self._failed("compaction", error)
            del store

    def _failed(self, thread: str, error: Exception) -> None:
        if self._stop.is_set():
            return  # errors are expected while the store closes
        self.counters.failures += 1
        if self._errors.get(thread) != str(error):
            # A repeated error, such as a full disk, is logged once.
            trace = None if isinstance(error, Error) else error
            logger.warning("background work failed and will be tried again: %s", error, exc_info=trace)
        self._errors[thread] = str(error)

    def run_once(self, store: Store) -> None:
        """Do the flush that is due, then delete unneeded files. Raises: the errors of both."""
        try:
            chosen = choose_flush(pressure_of(store))
            if chosen:
                from nyala.tablet.flush.lifecycle import flush

                self.counters.running = f"flush of {len(chosen)} tablets"
                report = flush(store, chosen, write=self.flush_worker.write)
                self.counters.flushes += 1
                self.counters.rows_flushed += report.rows
                store.grow_reserve()
            if store.memory_is_full() or self._log_stays_full(store):
                # Writers wait for memory that merges keep. The merges are stopped and run again
                # later.
                with Uninterrupted(), store.commit_lock:
                    revoked = store.reservations.revoke_delta_holders()
                if revoked:
                    from nyala.tablet.flush.lifecycle import flush

                    flush(store, write=self.flush_worker.write)
        finally:
            # This also runs after a failed flush, because it may free the disk space that was
            # missing.
            self.counters.running = "collection"
            self._every_tick()
            self.counters.files_collected += store.collect_garbage()
            store.reserve.fill()
            if store.env.is_local:
                remove_expired_staging(store.env, store.root_path)
            with Uninterrupted(), store.commit_lock:
                store.job_reservations.release_expired(store)
        self.counters.running = ""
        self._errors.pop("flush", None)

    def _log_stays_full(self, store: Store) -> bool:
        """Whether the log has been full for `GIVES_WAY_S`, so that a running merge must end."""
        now_s = self._clock.monotonic_s()
        if not store.log_is_full():
            self._log_full_since_s = None
        elif self._log_full_since_s is None:
            self._log_full_since_s = now_s
        return self._log_full_since_s is not None and now_s - self._log_full_since_s >= GIVES_WAY_S

    def compact_once(self, store: Store) -> None:
        """Run compactions until none is worth its cost, or until maintenance is paused.

        Raises: the error of a compaction that failed.
        """
        while not self._paused and not self._stop.is_set() and self.compactor.run_once(store):
            if not self.compactor.waiting:
                self._errors.pop("compaction", None)
