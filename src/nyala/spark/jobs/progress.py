"""Shows the progress of long Spark jobs, and renews leases while they run.

    with showing_progress(spark, "load of t"):      # every two seconds: load of t: 12 of 40 tasks
                                                    done, 2 running
        frame.collect()

The line goes to a terminal or below the cell of a notebook, and otherwise to the logger
`nyala.spark` at level INFO (`nyala.presentation.progress`).
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

__all__ = ["renewing_lease", "showing_progress"]

EVERY_S: Final = 2.0
# The thread property that has the job group of a thread's jobs (`SparkContext.setJobGroup`).
_GROUP: Final = "spark.jobGroup.id"


@contextlib.contextmanager
def showing_progress(
    spark: SparkSession, what: str, show: Callable[[str], None] | None = None
) -> Iterator[None]:
    """Show how many tasks of the Spark jobs in the block are done, every two seconds.

    what: the beginning of each line. show: a function that shows a line. Default: the terminal,
    notebook or logger.
    """
    lines = _Lines(what, show or line_writer("nyala.spark"))
    with _showing_classic(spark, lines) if is_classic(spark) else _showing_connect(spark, lines):
        yield


class _Lines:
    """Shows progress lines, and leaves out a line that repeats the last one."""

    def __init__(self, what: str, show: Callable[[str], None]) -> None:
        self._what, self._show, self._last = what, show, ""

    def show(self, done: int, total: int, running: int) -> None:
        line = f"{self._what}: {done} of {total} tasks done, {running} running"
        if total and line != self._last:
            self._show(line)
            self._last = line


@contextlib.contextmanager
def _showing_classic(spark: SparkSession, lines: _Lines) -> Iterator[None]:
    context: Any = spark.sparkContext
    status = context.statusTracker()
    # Keep a job group of the program, which may use it to cancel its jobs.
    own_group = context.getLocalProperty(_GROUP)
    group = own_group or f"nyala-{SYSTEM.randomness.token_hex(6)}"
    earlier = set(status.getJobIdsForGroup(group))
    context.setLocalProperty(_GROUP, group)

    def report() -> None:
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
                lines.show(done, total, running)

    stopped = threading.Event()
    watcher = threading.Thread(target=report, name="nyala-spark-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stopped.set()
        watcher.join()
        with contextlib.suppress(Exception):
            context.setLocalProperty(_GROUP, own_group)


@contextlib.contextmanager
def _showing_connect(spark: Any, lines: _Lines) -> Iterator[None]:
    """Show the tasks of the jobs in the block, for a session of Spark Connect.

    The server reports the jobs of the whole session, so the lines include jobs of other threads.
    """
    next_s = SYSTEM.clock.monotonic_s() + EVERY_S

    def on_progress(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        nonlocal next_s
        now_s = SYSTEM.clock.monotonic_s()
        if stages and now_s >= next_s:
            next_s = now_s + EVERY_S
            finished = sum(stage.num_completed_tasks for stage in stages)
            lines.show(finished, sum(stage.num_tasks for stage in stages), inflight_tasks)

    spark.registerProgressHandler(on_progress)
    try:
        yield
    finally:
        spark.removeProgressHandler(on_progress)


@contextlib.contextmanager
def renewing_lease(address: Address, lease: str, ttl_s: float) -> Iterator[None]:
    """Renew a lease while the block runs, because tasks that have not started cannot renew it."""
    stopped = threading.Event()

    def keep() -> None:
        while not SYSTEM.clock.wait(stopped, ttl_s / 4):
            with contextlib.suppress(
                Error
            ):  # the tasks and the commit raise an error if the lease has expired
                handover.renew_lease(address.path, lease, ttl_s, address.env)

    keeper = threading.Thread(target=keep, name="nyala-spark-lease", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        stopped.set()
        keeper.join()
