"""What syncs cost inside of a call: a disk's price of one changes within minutes, so each call is asked for its own.

    caller    ├── checks, settles ──┤fdatasync├─ publishes ─┤            its own sync
    caller    ├── checks, settles ──┤ waits in LogWriter.sync ├─────┤    another thread's: what of it lies in the wait
    flusher        ├─ fsync ─┤                                           nobody's who does not wait for it

Seen are `os.fsync` and `os.fdatasync`, which all of Nyala's files go through but SQLite's own. What is not seen
(SQLite's syncs, macOS's F_FULLFSYNC, a wait for a lock whose holder syncs) stays in what the call takes besides.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NamedTuple

from nyala.wal.writer import LogWriter


class Span(NamedTuple):
    """Of one thread, in seconds of `perf_counter`."""

    thread: int
    begun_s: float
    ended_s: float


def own_sync_s(syncs: Sequence[Span], waits: Sequence[Span], call: Span) -> float:
    """Seconds of a call in which its thread synced, or waited in the log for another thread's sync.

    A wait in which the thread synced itself counts with that sync only; what lies outside of the call, not at all.
    """
    own = [sync for sync in syncs if sync.thread == call.thread]
    spent_s = sum(_common_s(sync, call) for sync in own)
    for wait in waits:
        if wait.thread == call.thread and not any(_common_s(sync, wait) for sync in own):
            others = [sync for sync in syncs if sync.thread != call.thread]
            within = Span(call.thread, max(wait.begun_s, call.begun_s), min(wait.ended_s, call.ended_s))
            spent_s += covered_s(others, within)
    return spent_s


def less(taken: Sequence[float], synced: Sequence[float]) -> list[float]:
    """Each call's seconds without its own syncs'; empty where none was seen, as nobody knows then what was one."""
    return [took - sync for took, sync in zip(taken, synced, strict=True)] if any(synced) else []


def _common_s(left: Span, right: Span) -> float:
    return max(0.0, min(left.ended_s, right.ended_s) - max(left.begun_s, right.begun_s))


def covered_s(spans: Sequence[Span], within: Span) -> float:
    """How much of `within` the spans cover; where two lie over one another, once."""
    covered_s, at_s = 0.0, within.begun_s
    for span in sorted(spans, key=lambda span: span.begun_s):
        begun_s, ended_s = max(span.begun_s, at_s), min(span.ended_s, within.ended_s)
        if ended_s > begun_s:
            covered_s += ended_s - begun_s
            at_s = ended_s
    return covered_s


class SyncWatch:
    """Every sync of this process while it runs; one at a time, as it stands in for functions of `os`."""

    def __init__(self) -> None:
        # Lists, as appending to one needs no lock of ours.
        self.syncs: list[Span] = []
        self.waits: list[Span] = []

    @contextmanager
    def running(self) -> Iterator[SyncWatch]:
        watched = [(os, "fsync", self.syncs), (os, "fdatasync", self.syncs), (LogWriter, "sync", self.waits)]
        kept = [
            (place, name, getattr(place, name), spans)
            for place, name, spans in watched
            if hasattr(place, name)
        ]  # macOS has no fdatasync
        for place, name, function, spans in kept:
            setattr(place, name, _watched(function, spans))
        try:
            yield self
        finally:
            for place, name, function, _ in kept:
                setattr(place, name, function)

    def timed(self, action: Callable[[], Any]) -> tuple[Any, float, float]:
        """What the action answers, the seconds that it takes, and its own syncs' of them."""
        self.syncs.clear()
        self.waits.clear()
        begun_s = perf_counter()
        got = action()
        call = Span(threading.get_ident(), begun_s, perf_counter())
        return got, call.ended_s - call.begun_s, own_sync_s(list(self.syncs), list(self.waits), call)


def _watched(function: Callable[..., Any], spans: list[Span]) -> Callable[..., Any]:
    def watched(*arguments: Any, **named: Any) -> Any:
        begun_s = perf_counter()
        try:
            return function(*arguments, **named)
        finally:
            spans.append(Span(threading.get_ident(), begun_s, perf_counter()))

    return watched
