"""Clocks, percentiles, and what the operating system knows about bytes and memory.

Where the system does not say (no /proc: macOS) the answer is None and the report prints a dash.
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

# The block cache keeps what this many scans read: `nyala.cfile.blocks.source`.
SCANS_UNTIL_KEPT = 2


def timed(action: Callable[..., Any], *arguments: Any) -> float:
    """Seconds that one call takes."""
    begun = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - begun


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile: the smallest value that `share` (0 to 1) of all values do not exceed."""
    ordered = sorted(values)
    assert ordered and 0 < share <= 1
    rank = -(-len(ordered) * share // 1)
    return ordered[max(0, int(rank) - 1)]


@dataclass(frozen=True)
class Summary:
    """Latencies of one kind of operation in one window, in seconds."""

    count: int
    p50_s: float
    p99_s: float
    worst_s: float

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


def summary(latencies_s: Sequence[float]) -> Summary | None:
    """None when nothing was measured."""
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
    """Two things timed in turns: medians, and the median of the ratios of neighbours (machine drift cancels)."""

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
    """Time both, a b, b a, a b …, after so many unmeasured calls of each.

    At least `repeats` times, and short ones, whose ratios scatter most, until `enough_s` have gone or 20 × `repeats`.
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
    """Of seconds that were measured in turns."""
    ratios = [b / a for a, b in zip(firsts, seconds, strict=True)]
    return Paired(median(firsts), median(seconds), median(ratios), min(ratios), max(ratios))


def in_rounds(
    ways: Mapping[str, Callable[[int], Any]],
    rounds: int,
    warm: int = 1,
    first: int = 0,
    enough_s: float = 0.0,
) -> dict[str, list[float]]:
    """Time several things in turns; each round begins with another of them. Seconds of each, by round.

    At least `rounds` times, and short ones, whose ratios scatter most, until `enough_s` have gone or 20 × `rounds`.

    Each is called with the number of its round, from `first` on; the first `warm` rounds do not count. One that returns
    a float has measured itself.
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


# ------------------------------------------------------------------------------------------- paced load


@dataclass
class Samples:
    """Latencies of one kind of operation over a run: (when it began, how long it took), in seconds.

    An operation that takes longer than the pace holds up those that were due meanwhile: each of them is entered
    with the time it would have waited (as HdrHistogram's correction for coordinated omission does), and counted
    in `held_up`. Without that a store that stops for a second would show one slow operation, not twenty.
    """

    points: list[tuple[float, float]] = field(default_factory=list)
    made: int = 0
    held_up: int = 0
    errors: int = 0
    last_error: str = ""

    def add(self, at_s: float, took_s: float, interval_s: float) -> int:
        """Enter one operation; how many more were due while it ran."""
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
        """Latencies of what began in [lower_s, upper_s)."""
        return [took for at, took in self.points if lower_s <= at < upper_s]


def run_paced(
    stop: threading.Event,
    zero_s: float,
    interval_s: float,
    action: Callable[[], float | None],
    samples: Samples,
) -> None:
    """Call `action` every `interval_s` until `stop`. Its seconds are measured here, unless it returns them.

    An exception is counted, not raised: a peer that deletes files under its readers is to be seen, not to end the run.
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
        # Time that the action spent outside of what it returned (own maintenance) is not made good by a burst.
        tick = max(tick, int((time.perf_counter() - begun_s) / interval_s))


# ------------------------------------------------------------------------------------------- the system


def written_bytes() -> int | None:
    """Bytes that this process, its threads and its ended children have sent to disk so far (pages made dirty)."""
    try:
        text = Path("/proc/self/io").read_text()
    except OSError:
        return None
    return int(dict(line.split(": ") for line in text.splitlines())["write_bytes"])


def folder_bytes(folder: str | os.PathLike[str]) -> int:
    """Disk space that the files of a folder occupy; files that vanish while it looks count nothing."""
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
    """Resident memory of this process and all processes under it."""
    if not os.path.isdir("/proc/self/task"):
        return None
    total, pending = 0, [str(os.getpid())]
    while pending:
        process = Path("/proc") / pending.pop()
        try:
            status = (process / "status").read_text()
            for task in (process / "task").iterdir():
                pending += (task / "children").read_text().split()
        except OSError:  # it ended meanwhile
            continue
        found = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        total += int(found[0].split()[1]) * 1024 if found else 0
    return total


@dataclass
class Watch:
    """Disk, memory and the price of a synced append beside the folder, once a second, in a thread of its own."""

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
    """Seconds that it takes to append 4 KB to a new file in the folder and to sync it."""
    with tempfile.TemporaryFile(dir=folder) as file:
        begun = time.perf_counter()
        os.write(file.fileno(), b"n" * 4096)
        os.fsync(file.fileno())
        return time.perf_counter() - begun


class Durable:
    """Makes durable what a store wrote without syncing: new files and their folders, after each of its commits.

    delta-rs and Lance never sync on a local disk, and have no setting for it. The syncs count as theirs; the search
    for what is new does not, as a store would know.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._known: dict[str, tuple[int, set[str]]] = {}
        self.sync()

    def sync(self) -> float:
        """Sync what is new; the seconds that went into finding it."""
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
