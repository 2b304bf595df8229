"""Work on many files at once: all of it is done, or nothing continues after an error."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from nyala.env import PosixFiles
from nyala.env.overlapped import each
from nyala.testing.file_wrapper import FileWrapper


def test_results_are_in_the_order_of_the_items() -> None:
    """A flush relies on this order to combine files and tablets."""
    assert each(PosixFiles(), lambda number: number * number, range(40)) == [n * n for n in range(40)]


def test_syncs_overlap() -> None:
    """Syncs of a thousand small files overlap."""
    both = threading.Barrier(2, timeout=20)
    each(PosixFiles(), lambda _: both.wait(), range(2))


def test_no_work_continues_after_an_error() -> None:
    """After an error, the caller removes the files, so none may be created later."""
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        if number == 3:
            raise ValueError("three")

    with pytest.raises(ValueError, match="three"):
        each(PosixFiles(), work, range(1000))
    assert not any("nyala-files" in one.name for one in threading.enumerate())


def test_test_files_are_processed_in_order() -> None:
    """Recorded or failing operations of tests have the same order each time."""
    found: list[threading.Thread] = []
    each(FileWrapper(PosixFiles()), lambda _: found.append(threading.current_thread()), range(5))
    assert found == [threading.current_thread()] * 5


def test_the_work_is_done_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush at the interpreter's exit, when no thread can be started, does not fail."""

    def refused(*_: Any) -> Any:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refused)
    assert each(PosixFiles(), lambda number: -number, range(3)) == [0, -1, -2]


def test_each_item_is_worked_on_once_if_a_thread_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool has queued the work when the system refuses its second thread: it must not be done twice."""
    start, started = threading.Thread.start, []

    def refused(self: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refused)
    done: list[int] = []

    def work(number: int) -> int:
        done.append(number)
        return number

    assert each(PosixFiles(), work, range(200)) == list(range(200)) and sorted(done) == list(range(200))
