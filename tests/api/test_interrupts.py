"""Handlers of Ctrl-C, alarms and SIGTERM raise exceptions during calls, also many times in a row.

Afterwards the same handle can write, and no acknowledged row is lost."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import nyala
from nyala.catalog.model import CatalogChange, CatalogState
from nyala.env.interrupts import Interruptible, Uninterrupted
from nyala.tablet.store import Store
from tests.sampled import is_long_run

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def finalizers_may_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest would turn exceptions in finalizers into errors, even those of the interpreter's own imports."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)


STORM_S = 4 if is_long_run() else 0.8


class Stop(Exception):
    """The exception that the handler raises."""


handled_one = threading.Event()


def stop(_: int, __: object) -> None:
    """A signal handler that raises."""
    handled_one.set()
    raise Stop


@contextlib.contextmanager
def handled(number: int) -> Iterator[None]:
    """Let signals of this number raise `Stop`."""
    before = signal.signal(number, stop)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextlib.contextmanager
def storm(seconds: float, seed: int, *numbers: int) -> Iterator[Callable[[], bool]]:
    """Send these signals to the process again and again from another thread, and yield a function
    that says whether this continues.
    """
    rng = random.Random(seed)

    over = threading.Event()

    def send() -> None:
        time.sleep(0.2)  # wait until the loop has begun
        end = time.monotonic() + seconds
        while time.monotonic() < end and not over.is_set():
            time.sleep(rng.uniform(0, 0.004))
            handled_one.clear()
            os.kill(os.getpid(), rng.choice(numbers))
            handled_one.wait(60)  # a second signal could be raised in the loop's `except`

    thread = threading.Thread(target=send)
    with contextlib.ExitStack() as stack:
        for number in numbers:
            stack.enter_context(handled(number))
        thread.start()
        try:
            yield thread.is_alive
        finally:
            over.set()
            thread.join()


@pytest.mark.parametrize(
    ("durability", "numbers"),
    [
        ("commit", [signal.SIGINT]),
        ("group", [signal.SIGINT]),
        ("os", [signal.SIGINT]),
        ("commit", [signal.SIGALRM]),
        ("commit", [signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1]),
    ],
)
def test_after_a_storm_the_same_handle_writes(tmp_path: Path, durability: str, numbers: list[int]) -> None:
    acknowledged: list[int] = []
    with nyala.connect(tmp_path / "s", durability=durability) as db:
        t = db.create_table("t", {"k": "int64", "v": "string"}, "k", history=0)
        k, interrupted = 0, 0
        with storm(STORM_S, 1, *numbers) as goes_on:
            while True:
                try:
                    if not goes_on():
                        break
                    k += 1
                    t.insert([{"k": k, "v": "x"}])
                    acknowledged.append(k)
                    if k % 20 == 0:
                        db.flush()
                    if k % 50 == 0:
                        t.compact()
                    if k % 35 == 0:
                        db.create_table(f"u{k}", {"k": "int64"}, "k")
                except Stop:
                    interrupted += 1
        assert interrupted
        t.insert([{"k": -1, "v": "afterwards"}])
        db.flush()
        t.compact()
        found = set(t.scan(["k"]).to_arrow()["k"].to_pylist())
        assert found >= {-1, *acknowledged}
        assert db.check().ok
    with nyala.connect(tmp_path / "s") as db:
        assert set(db["t"].scan(["k"]).to_arrow()["k"].to_pylist()) == found
        assert db.check().ok


def test_after_a_storm_over_open_and_close_the_store_can_be_opened(tmp_path: Path) -> None:
    acknowledged: list[int] = []
    k = 0
    with storm(STORM_S, 2, signal.SIGINT, signal.SIGALRM) as goes_on:
        while True:
            try:
                if not goes_on():
                    break
                db = nyala.connect(tmp_path / "s")
                t = db.create_table("t", {"k": "int64"}, "k", exist_ok=True)
                k += 1
                t.insert([{"k": k}])
                acknowledged.append(k)
                db.close()
            except Stop:
                pass
    with nyala.connect(tmp_path / "s") as db:
        t = db.create_table("t", {"k": "int64"}, "k", exist_ok=True)
        assert set(t.scan().to_arrow()["k"].to_pylist()) >= set(acknowledged)
        t.insert([{"k": -1}])
        assert db.check().ok


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1]
)
def test_a_signal_waits_until_the_work_is_done(number: int) -> None:
    done = []
    with handled(number):
        with pytest.raises(Stop), Uninterrupted(), Uninterrupted():
            os.kill(os.getpid(), number)
            done.append("first")
        with pytest.raises(Stop), Uninterrupted():
            done.append("second")
            with Interruptible():
                os.kill(os.getpid(), number)
                time.sleep(1)
                done.append("never")
        assert signal.getsignal(number) is stop
    assert done == ["first", "second"]


def test_the_handler_of_each_delayed_signal_is_called() -> None:
    called = []

    def handler(number: int, _: object) -> None:
        called.append(number)
        raise Stop

    numbers = [signal.SIGALRM, signal.SIGINT, signal.SIGTERM]
    with contextlib.ExitStack() as stack:
        for number in numbers:
            stack.enter_context(handled(number))
            signal.signal(number, handler)
        with pytest.raises(Stop), Uninterrupted():
            for number in numbers:
                os.kill(os.getpid(), number)
                time.sleep(0.01)
    assert called == numbers


@pytest.mark.parametrize("kind", ["SIGINT", "SIGALRM", "exception"])
@pytest.mark.parametrize("work", ["flush", "compact", "insert", "copy"])
def test_a_signal_after_the_commit_does_not_remove_committed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str, kind: str
) -> None:
    """The same for an exception from another thread."""
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        t = db.create_table("t", {"k": "int64"}, "k")
        for k in range(3):
            t.insert([{"k": k}])
            if work != "flush":
                db.flush()
        real = Store._commit

        def commit(self: Store, change: CatalogChange) -> CatalogState:
            made = real(self, change)
            monkeypatch.setattr(Store, "_commit", real)
            if kind == "exception":
                raise Stop
            os.kill(os.getpid(), getattr(signal, kind))
            return made

        monkeypatch.setattr(Store, "_commit", commit)
        if work == "insert":
            db._writer().direct_commit_bytes = 1
        with contextlib.ExitStack() as stack:
            if kind != "exception":
                stack.enter_context(handled(getattr(signal, kind)))
            with pytest.raises((Stop, nyala.StorageError)):
                {
                    "flush": db.flush,
                    "compact": t.compact,
                    "insert": lambda: t.insert([{"k": 3}]),
                    "copy": lambda: db.copy_table("t", "u"),
                }[work]()
    with nyala.connect(tmp_path / "s") as db:
        assert set(db["t"].scan().to_arrow()["k"].to_pylist()) >= {0, 1, 2}
        assert db.check().ok
        db["t"].insert([{"k": 9}])
