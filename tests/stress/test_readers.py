"""Reader processes beside a writer that flushes, commits directly and collects: no error, and never back in time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nyala
from nyala.env import Env, PosixFiles, SystemClock, SystemRandomness
from nyala.tablet.recovery.reader_store import ReaderStore
from tests.support import key_value_table, open_database, rows


class CallingFiles(PosixFiles):
    """Calls `before` ahead of the n-th time that the position record is read."""

    def __init__(self, number: int, before: Callable[[], None]) -> None:
        self._left = number
        self._before = before

    def read_all(self, path: str) -> bytes:
        if path.endswith("position"):
            self._left -= 1
            if not self._left:
                self._before()
        return super().read_all(path)


def test_a_reader_that_opens_during_a_flush_sees_what_was_published_before(tmp_path: Path) -> None:
    """The writer commits between its look at the catalogue and its look at the log: the store must not look empty."""
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        table.insert({"k": [1, 2], "v": [1, 2]})
        env = Env(CallingFiles(3, db.flush), SystemClock(), SystemRandomness())
        before = db.now()
        reader = ReaderStore.open(env, str(tmp_path / "s"), 16 << 20)
        assert reader.version == db.stats().version - 1, "the flush came between"
        with nyala.api.database.Database(reader) as follower:
            assert follower.now() >= before
            assert rows(follower["t"]) == rows(table)


def test_a_reader_that_reloads_during_a_flush_never_goes_back(tmp_path: Path) -> None:
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        table.insert({"k": [1], "v": [1]})
        for number in range(4, 11):  # wherever in the reload the flush comes
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
