"""The wall clock of a store steps back, stands still, jumps ahead: timestamps rise all the same, and moments stay."""

from __future__ import annotations

import logging

import pytest

import nyala
from nyala.mvcc.timestamp import from_physical
from nyala.testing.clock import ManualClock
from tests.support import folder_in_memory, key_value_table, open_database, rows

HOUR_S, DAY_S = 3600, 24 * 3600


def test_a_clock_that_steps_back_an_hour_is_warned_about_and_nothing_goes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    with folder_in_memory() as folder:
        with open_database(folder / "s", clock=clock) as db:
            table = key_value_table(db)
            first = table.insert({"k": [1], "v": [1]}).timestamp
            db.flush()
            clock.set_now_us(clock.now_us() - HOUR_S * 1_000_000)
            with caplog.at_level(logging.WARNING, "nyala.clock"):
                second = table.update({"k": [1], "v": [2]}).timestamp
            assert "stepped back by 3600" in caplog.text
            assert second > first and db.now() == second
            assert rows(table) == [(1, 2)], "a read sees the write that it follows"
            assert rows(table, at=first) == [(1, 1)]
        # Also after a restart, and the log's replay.
        with open_database(folder / "s", clock=clock) as db:
            third = db["t"].update({"k": [1], "v": [3]}).timestamp
            assert third > second
            assert [rows(db["t"], at=at) for at in (first, second, third)] == [[(1, 1)], [(1, 2)], [(1, 3)]]
            assert db.check().ok


def test_a_clock_that_stands_still_gives_every_batch_its_own_moment() -> None:
    clock = ManualClock()
    with folder_in_memory() as folder, open_database(folder / "s", clock=clock) as db:
        table = key_value_table(db)
        stamps = [table.upsert({"k": [1], "v": [n]}).timestamp for n in range(50)]
        assert stamps == sorted(set(stamps))
        assert [rows(table, at=stamp) for stamp in stamps] == [[(1, n)] for n in range(50)]


def test_a_clock_that_jumps_ahead_and_back_goes_on_up_to_a_day_and_then_refuses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A clock that was 20 hours ahead costs nothing but a warning: timestamps go on from there. What was written while
    it was a year ahead stays, stamped with next year; when it is right again, writes are refused, not stamped so."""
    clock = ManualClock()
    with folder_in_memory() as folder:
        with open_database(folder / "s", clock=clock) as db:
            table = key_value_table(db)
            table.insert({"k": [1], "v": [1]})
            right = clock.now_us()
            clock.set_now_us(right + 20 * HOUR_S * 1_000_000)
            table.update({"k": [1], "v": [2]})
            clock.set_now_us(right)
            with caplog.at_level(logging.WARNING, "nyala.clock"):
                behind = table.update({"k": [1], "v": [3]}).timestamp
            assert behind > from_physical(right + 20 * HOUR_S * 1_000_000)
            assert f"stepped back by {20 * HOUR_S}" in caplog.text
            clock.set_now_us(right + 365 * DAY_S * 1_000_000)
            ahead = table.update({"k": [1], "v": [4]}).timestamp
            clock.set_now_us(right)
            with pytest.raises(nyala.StorageError, match="set the clock right"):
                table.update({"k": [1], "v": [5]})
            assert rows(table) == [(1, 4)], "reads go on"
            with pytest.raises(nyala.StorageError, match="set the clock right"):
                db.create_table("u", {"k": "int64"}, "k")
        with open_database(folder / "s", clock=clock) as db:
            assert rows(db["t"]) == [(1, 4)]
            with pytest.raises(nyala.StorageError, match="set the clock right"):
                db["t"].update({"k": [1], "v": [5]})
            clock.set_now_us(right + 365 * DAY_S * 1_000_000)
            assert db["t"].update({"k": [1], "v": [6]}).timestamp > ahead
