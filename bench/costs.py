"""What an action costs beside time: calls made, bytes moved, memory taken, and where the time goes."""

from __future__ import annotations

import cProfile
import pstats
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def moved_bytes() -> tuple[int, int] | None:
    """Bytes that this process has read and written by system calls so far, the system's file cache included."""
    try:
        text = Path("/proc/self/io").read_text()
    except OSError:
        return None
    found = dict(line.split(": ") for line in text.splitlines())
    return int(found["rchar"]), int(found["wchar"])


@dataclass(frozen=True)
class Cost:
    """Of one action. calls: Python functions and those in C that Python called; None where no one counts."""

    calls: int | None
    read: int | None
    written: int | None
    top: tuple[tuple[str, int, float], ...]  # (function, calls, own seconds), the longest first


# Profiles of threads that may live on: they must not go while a thread reports to them.
_profiles: list[cProfile.Profile] = []


def cost(action: Callable[[], Any], top: int = 10) -> Cost:
    """Run the action under cProfile, in this thread and in threads that it starts.

    From Python 3.12 on only one profile can be at work, and only this thread is seen. Threads of C code that call
    Python (DuckDB's) and threads that were there before are not seen in either.
    """
    several = sys.version_info < (3, 12)

    def begin(*event: object) -> None:
        del event
        mine = cProfile.Profile()
        _profiles.append(mine)
        mine.enable()

    first = cProfile.Profile()
    known = len(_profiles)
    before = moved_bytes()
    if several:
        threading.setprofile(begin)
    first.enable()
    try:
        action()
    finally:
        first.disable()
        if several:
            threading.setprofile(None)
    after = moved_bytes()
    stats = pstats.Stats(first)
    for profile in _profiles[known:]:
        if profile.getstats():
            stats.add(pstats.Stats(profile))
    rows: list[tuple[str, int, float]] = []
    calls = 0
    for (path, line, name), (_, made, own_s, _, _) in stats.stats.items():  # type: ignore[attr-defined]
        calls += made
        rows.append((_function(path, line, name), made, own_s))
    rows.sort(key=lambda row: -row[2])
    moved = (None, None) if before is None or after is None else (after[0] - before[0], after[1] - before[1])
    return Cost(calls, moved[0], moved[1], tuple(rows[:top]))


def _function(path: str, line: int, name: str) -> str:
    if path == "~":
        return name.strip("<>")
    parts = Path(path).parts
    # The module inside of its package is enough.
    for package in ("nyala", "bench", "site-packages"):
        if package in parts:
            parts = parts[len(parts) - 1 - parts[::-1].index(package) :]
            break
    else:
        parts = parts[-2:]
    return f"{'/'.join(parts)}:{line} {name}"


def profile_text(cost: Cost) -> str:
    """For a fact of the report."""
    return ", ".join(f"`{name}` {own_s * 1e3:.3g} ms in {made:,}" for name, made, own_s in cost.top)


# ------------------------------------------------------------------------------------------- memory


def own_memory_bytes() -> int | None:
    """Memory of this process that no file stands behind: data that are given as a mapped file do not count."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = [line for line in lines if line.startswith(("RssAnon:", "RssShmem:"))]
    return sum(int(line.split()[1]) * 1024 for line in found)


@dataclass
class PeakMemory:
    """The most memory, looked at ten times a second in a thread of its own."""

    interval_s: float = 0.1
    seen: dict[str, int] = field(default_factory=dict)
    step: str = "start"

    def look(self) -> None:
        self.seen[self.step] = max(self.seen.get(self.step, 0), own_memory_bytes() or 0)

    @property
    def most(self) -> int | None:
        return max(self.seen.values(), default=0) or None

    @contextmanager
    def running(self) -> Iterator[PeakMemory]:
        stop = threading.Event()

        def loop() -> None:
            while not stop.wait(self.interval_s):
                self.look()

        thread = threading.Thread(target=loop, name="bench-memory", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()
            self.look()
