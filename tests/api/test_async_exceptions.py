"""Exceptions that another thread raises at any line of a writing thread, as timeouts of notebooks do.

Python has `PyThreadState_SetAsyncExc` for this. No critical section can delay such an exception. A write that it
interrupts may leave a store that refuses further writes. The next `connect` then opens the store again, with every
acknowledged row.

The thread that gets the exceptions only inserts, and starts no threads. After such an exception, `Thread.start` of
Python 3.11 may wait forever. A thread pool would keep a lock that all pools of the process need."""

from __future__ import annotations

import ctypes
import random
import threading
import time
from pathlib import Path

import pytest

import nyala

pytestmark = [
    pytest.mark.long,  # one run in a hundred fails, for an unknown reason
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Stop(Exception):
    """The exception that is raised in the writing thread."""


class Writer:
    """A thread that writes until `end`. When a write fails, it connects again."""

    def __init__(self, path: Path) -> None:
        self.path, self.acknowledged = path, [0]
        self.interrupted = self.connected = 0
        self.failure: BaseException | None = None
        self.end = threading.Event()
        self.lock, self.writing = threading.Lock(), False
        self.thread = threading.Thread(target=self._run, daemon=True)

    def interrupt(self) -> None:
        with self.lock:
            if self.writing:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self.thread.ident or 0), ctypes.py_object(Stop)
                )

    def _run(self) -> None:
        db: nyala.Database | None = None
        k = 0
        while not self.end.is_set():
            try:
                if db is None:
                    with self.lock:
                        self.writing = False
                    db = nyala.connect(self.path)
                    self.connected += 1
                    self.writing = True
                k += 1
                db["t"].insert([{"k": k, "v": "x" * 50}])
                self.acknowledged.append(k)
            except Stop:
                self.interrupted += 1
            except nyala.StorageError as error:
                if not any(words in str(error) for words in ("connect", "open it again", "next open")):
                    self.failure = error
                    return
                db = None
            except BaseException as error:
                self.failure = error
                return


@pytest.mark.parametrize("seed", range(1, 12))
def test_after_an_exception_one_connect_brings_back_all_acknowledged_rows(tmp_path: Path, seed: int) -> None:
    with nyala.connect(tmp_path / "s") as db:
        db.create_table("t", {"k": "int64", "v": "string"}, "k").insert([{"k": 0, "v": "x"}])
    writer, rng = Writer(tmp_path / "s"), random.Random(seed)
    writer.thread.start()
    until = time.monotonic() + 4
    while time.monotonic() < until and writer.thread.is_alive():
        time.sleep(rng.uniform(0, 0.008))
        writer.interrupt()
    written = len(writer.acknowledged)
    writer.end.set()
    writer.thread.join(30)
    assert not writer.thread.is_alive(), "a lock was not released"
    assert writer.failure is None or isinstance(writer.failure, Stop), repr(writer.failure)
    assert writer.interrupted and written > 1
    db = nyala.connect(tmp_path / "s")
    try:
        db["t"].insert([{"k": -1, "v": "afterwards"}])
    except nyala.StorageError:
        db = nyala.connect(tmp_path / "s")
        db["t"].insert([{"k": -1, "v": "afterwards"}])
    db.flush()
    assert set(db["t"].scan(["k"]).to_arrow()["k"].to_pylist()) >= {-1, *writer.acknowledged}
    assert db.check().ok
    db.close()
