"""Work on many files at once: all of it is done, or none goes on behind an error."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from nyala.env import PosixFiles
from nyala.env.overlapped import each
from nyala.testing.file_wrapper import FileWrapper


def test_results_come_in_the_order_of_the_items() -> None:
    """A flush pairs what was written with the tablets by their order."""
    assert each(PosixFiles(), lambda number: number * number, range(40)) == [n * n for n in range(40)]


def test_syncs_overlap() -> None:
    """One after the other, a thousand small files would take a thousand turns of the disk."""
    both = threading.Barrier(2, timeout=20)
    each(PosixFiles(), lambda _: both.wait(), range(2))


def test_nothing_goes_on_behind_an_error() -> None:
    """The caller removes the files then: one that was made later would stay."""
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        if number == 3:
            raise ValueError("three")

    with pytest.raises(ValueError, match="three"):
        each(PosixFiles(), work, range(1000))
    assert threading.active_count() < 50 and not any(
        "nyala-files" in one.name for one in threading.enumerate()
    )


def test_files_of_tests_are_worked_on_one_by_one() -> None:
    """A recorded or failing order of operations must be the same each time."""
    found: list[threading.Thread] = []
    each(FileWrapper(PosixFiles()), lambda _: found.append(threading.current_thread()), range(5))
    assert found == [threading.current_thread()] * 5


def test_without_threads_the_work_is_done_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of the interpreter none can be started, and a flush at exit must not fail for that."""

    def refused(*_: Any) -> Any:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refused)
    assert each(PosixFiles(), lambda number: -number, range(3)) == [0, -1, -2]
