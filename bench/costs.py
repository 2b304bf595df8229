"""What an action costs beside time: calls made, bytes moved, memory taken, and where the time goes."""

from __future__ import annotations

import cProfile
import pstats
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar


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

    def short(self, top: int = 10) -> Cost:
        """Without the functions that took least."""
        return replace(self, top=self.top[:top])


def merged(costs: Iterable[Cost]) -> Cost:
    """Of several actions together. What one of them does not know, nobody does."""
    given = list(costs)
    rows: dict[str, tuple[int, float]] = {}
    for one in given:
        for name, made, own_s in one.top:
            before = rows.get(name, (0, 0.0))
            rows[name] = before[0] + made, before[1] + own_s
    top = sorted(((name, *row) for name, row in rows.items()), key=lambda row: -row[2])

    def total(values: list[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None

    return Cost(
        total([one.calls for one in given]),
        total([one.read for one in given]),
        total([one.written for one in given]),
        tuple(top),
    )


# Profiles of threads that may live on: they must not go while a thread reports to them.
_profiles: list[cProfile.Profile] = []
_counting = False
# From Python 3.12 on only one profile can be at work.
_SEVERAL: Final = sys.version_info < (3, 12)
_Item = TypeVar("_Item")


def seen(items: Iterator[_Item]) -> Iterator[_Item]:
    """The items; while a cost is taken, what makes them is counted too in a thread that Python did not start."""
    while True:
        if not (_counting and _SEVERAL and sys.getprofile() is None):
            item = next(items, _END)
        else:
            mine = cProfile.Profile()
            _profiles.append(mine)
            mine.enable()
            try:
                item = next(items, _END)
            finally:
                mine.disable()
        if item is _END:
            return
        yield item  # type: ignore[misc]


_END: Final = object()


def cost(action: Callable[[], Any], top: int = 10) -> Cost:
    """Run the action under cProfile, in this thread and in threads that it starts; those that decode are begun anew.

    Up to Python 3.11 threads of C code that call Python (DuckDB's) are seen where they read through `seen`, and threads
    that were there before not at all; from 3.12 on the profile is of all threads.
    """

    def begin(*event: object) -> None:
        del event
        mine = cProfile.Profile()
        _profiles.append(mine)
        mine.enable()

    global _counting
    first = cProfile.Profile()
    known = len(_profiles)
    with _new_scan_threads():
        before = moved_bytes()
        if _SEVERAL:
            threading.setprofile(begin)
        _counting = True
        first.enable()
        try:
            action()
        finally:
            first.disable()
            _counting = False
            if _SEVERAL:
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


@contextmanager
def _new_scan_threads() -> Iterator[None]:
    """Threads that decode windows are kept by the process; those of the action are its own, and end with it."""
    from nyala.tablet.scan import parallel

    kept = parallel._pool
    made = parallel._pool = parallel._Pool()  # type: ignore[misc]
    try:
        yield
    finally:
        parallel._pool = kept  # type: ignore[misc]
        if made._threads is not None:
            made._threads.shutdown()


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


# What is no work of ours, by the function that it is seen in: DuckDB's own are none to cProfile.
_NO_WORK: Final = (
    ("waits", ("_queue.SimpleQueue", "_thread.lock", "_thread.RLock", "select.", "time.sleep")),
    ("DuckDB, opening and closing", ("sql/connection.py",)),
    ("DuckDB, asked: registering, planning, computing, waiting for our windows", ("sql/result.py",)),
    ("polars, with its waits for our windows", ("polars/", "_polars_runtime", "PyLazyFrame")),
)


def profile_text(cost: Cost, top: int = 8) -> str:
    """For a line of the report: what is no work of ours first, then the functions that took longest."""
    others: dict[str, tuple[int, float]] = {}
    ours = []
    for name, made, own_s in cost.top:
        kind = next((kind for kind, parts in _NO_WORK if any(part in name for part in parts)), None)
        if kind is None:
            ours.append(f"`{name}` {_ms(own_s)} in {made:,}")
        else:
            before = others.get(kind, (0, 0.0))
            others[kind] = before[0] + made, before[1] + own_s
    said = [f"({kind}) {_ms(own_s)} in {made:,}" for kind, (made, own_s) in others.items()]
    return ", ".join([*said, *ours[:top]])


def _ms(value_s: float) -> str:
    return f"{value_s * 1e3:,.0f} ms" if value_s >= 0.1 else f"{value_s * 1e3:.3g} ms"


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
