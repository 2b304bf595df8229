"""Readers while the writer flushes, commits directly and collects garbage: they see no error and no older state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nyala
from nyala.env import Env, PosixFiles, SystemClock, SystemRandomness
from nyala.tablet.recovery.reader_store import ReaderStore
from tests.support import key_value_table, open_database, rows


class CallingFiles(PosixFiles):
    """Calls `before` before the position record is read for the n-th time."""

    def __init__(self, number: int, before: Callable[[], None]) -> None:
        self._left = number
        self._before = before

    def read_all(self, path: str) -> bytes:
        if path.endswith("position"):
            self._left -= 1
            if not self._left:
                self._before()
        return super().read_all(path)


def test_a_reader_that_opens_during_a_flush_sees_the_published_rows(tmp_path: Path) -> None:
    """The writer commits after the reader has read the catalogue and before it reads the log.

    The store must not seem empty.
    """
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        table.insert({"k": [1, 2], "v": [1, 2]})
        env = Env(CallingFiles(3, db.flush), SystemClock(), SystemRandomness())
        before = db.now()
        reader = ReaderStore.open(env, str(tmp_path / "s"), 16 << 20)
        assert reader.version == db.stats().version - 1, "the flush came during the open"
        with nyala.api.database.Database(reader) as follower:
            assert follower.now() >= before
            assert rows(follower["t"]) == rows(table)


def test_a_reader_that_reloads_during_a_flush_never_goes_back(tmp_path: Path) -> None:
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        table.insert({"k": [1], "v": [1]})
        for number in range(4, 11):  # for a flush at any point of the reload
            key = number * 10

            def write_and_flush(key: int = key) -> None:
                table.insert({"k": [key], "v": [0]})
                db.flush()

            env = Env(CallingFiles(number, write_and_flush), SystemClock(), SystemRandomness())
            with nyala.api.database.Database(
                ReaderStore.open(env, str(tmp_path / "s"), 16 << 20)
            ) as follower:
                newest = 0
                for step in range(4):
                    seen = follower.now()
                    assert seen >= newest
                    assert follower["t"].count() >= 1
                    newest = seen
                    table.insert({"k": [key + 1 + step], "v": [0]})
                    db.flush()
