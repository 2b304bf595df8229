"""Progress lines of long Spark jobs, and leases that live as long as their driver.

    with watching(spark, "load of t"):      every two seconds: load of t: 12 of 40 tasks done, 2 running
        frame.collect()

The lines go to stderr if that is a terminal, in a notebook to one line below its cell, else to the logger
`nyala.spark` at level INFO (`nyala.presentation.progress`). A Connect server reports the progress of all jobs of the
session to a handler.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from nyala.env import SYSTEM
from nyala.errors import Error
from nyala.handover import commits as handover
from nyala.objects.address import Address
from nyala.presentation.progress import line_writer
from nyala.spark.cluster import is_classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["renewing", "watching"]

EVERY_S: Final = 2.0
# Thread property with the job group of the thread's jobs (`SparkContext.setJobGroup`).
_GROUP: Final = "spark.jobGroup.id"


@contextlib.contextmanager
def watching(spark: SparkSession, what: str, show: Callable[[str], None] | None = None) -> Iterator[None]:
    """Report how many tasks of the jobs in the body are done. show: receives each line; default: see the module."""
    lines = _Lines(what, show or line_writer("nyala.spark"))
    with _watching_classic(spark, lines) if is_classic(spark) else _watching_connect(spark, lines):
        yield


class _Lines:
    """Shows a line whenever it differs from the last one."""

    def __init__(self, what: str, show: Callable[[str], None]) -> None:
        self._what, self._show, self._last = what, show, ""

    def tell(self, done: int, total: int, running: int) -> None:
        line = f"{self._what}: {done} of {total} tasks done, {running} running"
        if total and line != self._last:
            self._show(line)
            self._last = line


@contextlib.contextmanager
def _watching_classic(spark: SparkSession, lines: _Lines) -> Iterator[None]:
    context: Any = spark.sparkContext
    status = context.statusTracker()
    # Keep the program's own group, because the program may cancel its jobs by it.
    own_group = context.getLocalProperty(_GROUP)
    group = own_group or f"nyala-{SYSTEM.randomness.token_hex(6)}"
    earlier = set(status.getJobIdsForGroup(group))
    context.setLocalProperty(_GROUP, group)

    def look() -> None:
        while not SYSTEM.clock.wait(stopped, EVERY_S):
            with contextlib.suppress(Exception):  # the session may be stopping
                done = running = total = 0
                for job in set(status.getJobIdsForGroup(group)) - earlier:
                    info = status.getJobInfo(job)
                    for stage_id in info.stageIds if info is not None else ():
                        stage = status.getStageInfo(stage_id)
                        if stage is not None:
                            done += stage.numCompletedTasks
                            running += stage.numActiveTasks
                            total += stage.numTasks
                lines.tell(done, total, running)

    stopped = threading.Event()
    watcher = threading.Thread(target=look, name="nyala-spark-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stopped.set()
        watcher.join()
        with contextlib.suppress(Exception):
            context.setLocalProperty(_GROUP, own_group)


@contextlib.contextmanager
def _watching_connect(spark: Any, lines: _Lines) -> Iterator[None]:
    next_s = SYSTEM.clock.monotonic_s() + EVERY_S

    def on_progress(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        nonlocal next_s
        now_s = SYSTEM.clock.monotonic_s()
        if stages and now_s >= next_s:
            next_s = now_s + EVERY_S
            finished = sum(stage.num_completed_tasks for stage in stages)
            lines.tell(finished, sum(stage.num_tasks for stage in stages), inflight_tasks)

    spark.registerProgressHandler(on_progress)
    try:
        yield
    finally:
        spark.removeProgressHandler(on_progress)


@contextlib.contextmanager
def renewing(address: Address, lease: str, ttl_s: float) -> Iterator[None]:
    """Renew a lease while the body runs, also while its tasks wait to start."""
    stopped = threading.Event()

    def keep() -> None:
        while not SYSTEM.clock.wait(stopped, ttl_s / 4):
            with contextlib.suppress(Error):  # the tasks and the commit detect an expired lease and raise
                handover.renew_lease(address.path, lease, ttl_s, address.env)

    keeper = threading.Thread(target=keep, name="nyala-spark-lease", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        stopped.set()
        keeper.join()
