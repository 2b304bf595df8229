"""Measures times, percentiles, and what the operating system knows about bytes and memory.

Without /proc, as on macOS, byte counts and memory are None, and the report prints a dash.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

# After this many scans, the block cache has all blocks that it will keep (`nyala.cfile.blocks.source`).
SCANS_UNTIL_KEPT = 2


def timed(action: Callable[..., Any], *arguments: Any) -> float:
    """Return the seconds of one call."""
    begun = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - begun


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile: the smallest value that is not exceeded by this share (0
    to 1) of the values.
    """
    ordered = sorted(values)
    assert ordered and 0 < share <= 1
    rank = -(-len(ordered) * share // 1)
    return ordered[max(0, int(rank) - 1)]


@dataclass(frozen=True)
class Summary:
    """Latencies of one kind of operation in one time window, in seconds."""

    count: int
    p50_s: float
    p99_s: float
    worst_s: float

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


def summary(latencies_s: Sequence[float]) -> Summary | None:
    """Return the summary of latencies, or None if there are none."""
    if not latencies_s:
        return None
    return Summary(
        len(latencies_s),
        percentile(latencies_s, 0.5),
        percentile(latencies_s, 0.99),
        max(latencies_s),
    )


@dataclass(frozen=True)
class Paired:
    """Two things that were timed in turns: medians, and the median of the ratios of neighbouring
    times.

    The speed of the machine may drift during a run, but it is nearly the same for two neighbours.
    """

    first_s: float
    second_s: float
    ratio: float
    ratio_min: float
    ratio_max: float


def in_turns(
    first: Callable[[], Any],
    second: Callable[[], Any],
    repeats: int,
    enough_s: float = 1.0,
    unmeasured: int = 1,
) -> Paired:
    """Time two calls in the order a b, b a, a b, …, after some calls that are not counted.

    Runs at least `repeats` rounds. Short calls, whose ratios scatter most, run until `enough_s` or
    20 × `repeats` rounds.
    """
    for _ in range(unmeasured):
        first()
        second()
    firsts: list[float] = []
    seconds: list[float] = []
    for repeat in range(20 * repeats):
        if repeat >= repeats and sum(firsts) + sum(seconds) >= enough_s:
            break
        if repeat % 2:
            seconds.append(timed(second))
            firsts.append(timed(first))
        else:
            firsts.append(timed(first))
            seconds.append(timed(second))
    return paired(firsts, seconds)


def paired(firsts: Sequence[float], seconds: Sequence[float]) -> Paired:
    """Return the result for times that were measured in turns."""
    ratios = [b / a for a, b in zip(firsts, seconds, strict=True)]
    return Paired(median(firsts), median(seconds), median(ratios), min(ratios), max(ratios))


def in_rounds(
    ways: Mapping[str, Callable[[int], Any]],
    rounds: int,
    warm: int = 1,
    first: int = 0,
    enough_s: float = 0.0,
) -> dict[str, list[float]]:
    """Time several calls in turns. Each round begins with another one. Return the seconds of each
    call by round.

    Runs at least `rounds` rounds. Short calls, whose ratios scatter most, run until `enough_s` or
    20 × `rounds` rounds. Each call gets the number of its round, from `first` on. The first `warm`
    rounds are not counted. If a call returns a float, this is its time.
    """
    names = list(ways)
    took: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(warm + 20 * rounds):
        if turn >= warm + rounds and sum(map(sum, took.values())) >= enough_s:
            break
        begin = turn % len(names)
        for name in names[begin:] + names[:begin]:
            begun = time.perf_counter()
            own = ways[name](first + turn)
            took_s = own if isinstance(own, float) else time.perf_counter() - begun
            if turn >= warm:
                took[name].append(took_s)
    return took


# ── calls at intervals


@dataclass
class Samples:
    """Latencies of one kind of operation during a run: (begin, duration), in seconds.

    While an operation takes longer than its interval, others are due. Each of them is entered with
    the time that it would have waited (HdrHistogram's correction for coordinated omission), and
    counted in `held_up`. Otherwise a store that stops for a second would show one slow operation,
    and not twenty.
    """

    points: list[tuple[float, float]] = field(default_factory=list)
    made: int = 0
    held_up: int = 0
    errors: int = 0
    last_error: str = ""

    def add(self, at_s: float, took_s: float, interval_s: float) -> int:
        """Enter one operation. held_up: how many others were due while it ran."""
        self.points.append((at_s, took_s))
        self.made += 1
        late_s, missed = took_s - interval_s, 0
        while late_s > 0:
            self.points.append((at_s, late_s))
            late_s -= interval_s
            missed += 1
        self.held_up += missed
        return missed

    def between(self, lower_s: float, upper_s: float) -> list[float]:
        """Return the latencies of operations that began in [lower_s, upper_s)."""
        return [took for at, took in self.points if lower_s <= at < upper_s]


def run_paced(
    stop: threading.Event,
    zero_s: float,
    interval_s: float,
    action: Callable[[], float | None],
    samples: Samples,
) -> None:
    """Call `action` every `interval_s` until `stop`. The time of a call is measured, or is the
    float that it returns.

    Exceptions are counted and not raised, so that a store that deletes files under its readers does
    not end the run.
    """
    tick = 0
    begun_s = time.perf_counter()
    while not stop.wait(max(0.0, begun_s + tick * interval_s - time.perf_counter())):
        at_s = time.perf_counter()
        try:
            took_s = action()
        except Exception as error:
            samples.errors += 1
            samples.last_error = f"{type(error).__name__}: {error}"[:200]
            tick += 1
            continue
        if took_s is None:
            took_s = time.perf_counter() - at_s
        tick += 1 + samples.add(at_s - zero_s, took_s, interval_s)
        # If the action took longer than the time that it returned, because of its maintenance, the missed
        # calls are not made up for.
        tick = max(tick, int((time.perf_counter() - begun_s) / interval_s))


# ── the system


def written_bytes() -> int | None:
    """Return the bytes that this process, its threads and its ended children have written to disk
    (dirty pages).
    """
    try:
        text = Path("/proc/self/io").read_text()
    except OSError:
        return None
    return int(dict(line.split(": ") for line in text.splitlines())["write_bytes"])


def folder_bytes(folder: str | os.PathLike[str]) -> int:
    """Return the disk space of the files in a folder. Files that vanish meanwhile count as nothing."""
    total = 0
    pending = [os.fspath(folder)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def resident_bytes() -> int | None:
    """Return the resident memory of this process and of all processes below it."""
    if not os.path.isdir("/proc/self/task"):
        return None
    total, pending = 0, [str(os.getpid())]
    while pending:
        process = Path("/proc") / pending.pop()
        try:
            status = (process / "status").read_text()
            for task in (process / "task").iterdir():
                pending += (task / "children").read_text().split()
        except OSError:  # the process has ended
            continue
        found = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        total += int(found[0].split()[1]) * 1024 if found else 0
    return total


@dataclass
class Watch:
    """A thread that records disk space, memory, and the time of a synced append, once per second."""

    folder: str
    zero_s: float
    interval_s: float = 1.0
    times_s: list[float] = field(default_factory=list)
    sync_s: list[float] = field(default_factory=list)
    disk_bytes: list[int] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)

    def look(self) -> None:
        self.times_s.append(round(time.perf_counter() - self.zero_s, 2))
        self.disk_bytes.append(folder_bytes(self.folder))
        self.memory_bytes.append(resident_bytes() or 0)
        self.sync_s.append(synced_append_s(os.path.dirname(self.folder)))

    @contextmanager
    def running(self) -> Iterator[None]:
        stop = threading.Event()

        def loop() -> None:
            while not stop.wait(self.interval_s):
                self.look()

        self.look()
        thread = threading.Thread(target=loop, name="bench-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.look()


def synced_append_s(folder: str) -> float:
    """Return the seconds to append 4 KB to a new file in the folder and to sync the file."""
    with tempfile.TemporaryFile(dir=folder) as file:
        begun = time.perf_counter()
        os.write(file.fileno(), b"n" * 4096)
        os.fsync(file.fileno())
        return time.perf_counter() - begun


class Durable:
    """Syncs the files that a store wrote without a sync: new files and their folders, after each
    commit.

    delta-rs and Lance never sync on a local disk, and have no setting for it. The time of the syncs
    counts as theirs. The time to find new files does not, because a store would know its files.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._known: dict[str, tuple[int, set[str]]] = {}
        self.sync()

    def sync(self) -> float:
        """Sync new files. Return the seconds that it took to find them."""
        begun = time.perf_counter()
        files, folders = [], []
        pending = [self._folder]
        while pending:
            folder = pending.pop()
            try:
                changed_ns = os.stat(folder).st_mtime_ns
                before = self._known.get(folder)
                entries = list(os.scandir(folder))
            except FileNotFoundError:
                self._known.pop(folder, None)
                continue
            pending += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
            if before is not None and before[0] == changed_ns:
                continue
            names = {entry.path for entry in entries if entry.is_file(follow_symlinks=False)}
            files += sorted(names if before is None else names - before[1])
            folders.append(folder)
            self._known[folder] = (changed_ns, names)
        search_s = time.perf_counter() - begun
        for path in [*files, *folders]:
            try:
                descriptor = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                continue
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        return search_s
