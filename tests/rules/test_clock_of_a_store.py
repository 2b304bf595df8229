"""Timestamps increase and moments keep their meaning if the wall clock steps back, stands still or jumps ahead."""

from __future__ import annotations

import logging

import pytest

import nyala
from nyala.mvcc.timestamp import from_physical, to_datetime
from nyala.testing.clock import ManualClock
from tests.support import folder_in_memory, key_value_table, open_database, rows

HOUR_S, DAY_S = 3600, 24 * 3600


def test_timestamps_increase_although_the_clock_steps_back_an_hour(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The logger warns."""
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
        # Also after a reopen with a replay of the log.
        with open_database(folder / "s", clock=clock) as db:
            third = db["t"].update({"k": [1], "v": [3]}).timestamp
            assert third > second
            assert [rows(db["t"], at=at) for at in (first, second, third)] == [[(1, 1)], [(1, 2)], [(1, 3)]]
            assert db.check().ok


def test_batches_have_different_timestamps_although_the_clock_stands_still() -> None:
    clock = ManualClock()
    with folder_in_memory() as folder, open_database(folder / "s", clock=clock) as db:
        table = key_value_table(db)
        stamps = [table.upsert({"k": [1], "v": [n]}).timestamp for n in range(50)]
        assert stamps == sorted(set(stamps))
        assert [rows(table, at=stamp) for stamp in stamps] == [[(1, n)] for n in range(50)]


def test_a_jump_ahead_of_more_than_a_day_is_refused_while_the_store_is_open() -> None:
    clock = ManualClock()
    with folder_in_memory() as folder, open_database(folder / "s", clock=clock) as db:
        table = key_value_table(db)
        table.insert({"k": [1], "v": [1]})
        right = clock.now_us()
        clock.set_now_us(right + 30 * DAY_S * 1_000_000)
        for write in (
            lambda: table.update({"k": [1], "v": [2]}),
            lambda: db.create_table("u", {"k": "int64"}, "k"),
            lambda: db.drop_table("t"),
            lambda: db.copy_table("t", "copy"),
        ):
            with pytest.raises(nyala.StorageError, match=r"jumped ahead by 30\.0 days.*connect\(\) again"):
                write()
        assert rows(table) == [(1, 1)] and list(db) == ["t"], "nothing was written, and reads work"
        clock.set_now_us(right)
        table.update({"k": [1], "v": [2]})
        clock.advance(60 * DAY_S)
        assert table.update({"k": [1], "v": [3]}).timestamp == from_physical(clock.now_us())


def test_a_store_works_after_writes_with_a_clock_a_month_ahead() -> None:
    """Nothing is refused, and no row is lost. Timestamps follow the clock again when it has caught
    up.
    """
    clock = ManualClock()
    right = clock.now_us()
    with folder_in_memory() as folder:
        with open_database(folder / "s", clock=clock) as db:
            key_value_table(db).insert({"k": [1], "v": [1]})
        clock.set_now_us(right + 30 * DAY_S * 1_000_000)
        with open_database(folder / "s", clock=clock) as db:
            ahead = db["t"].update({"k": [1], "v": [2]}).timestamp
        clock.set_now_us(right + 1_000_000)
        with open_database(folder / "s", clock=clock) as db:
            table = db["t"]
            stamps = [table.update({"k": [1], "v": [n]}).timestamp for n in (3, 4)]
            assert ahead < stamps[0] < stamps[1]
            assert [rows(table, at=at) for at in (ahead, *stamps)] == [[(1, 2)], [(1, 3)], [(1, 4)]]
            table.compact()
        clock.advance(31 * DAY_S)
        with open_database(folder / "s", clock=clock) as db:
            assert db["t"].update({"k": [1], "v": [5]}).timestamp == from_physical(clock.now_us())
            assert rows(db["t"]) == [(1, 5)] and db.check().ok


@pytest.mark.parametrize("ahead_s", [HOUR_S, 30 * DAY_S])
def test_a_time_of_day_misses_no_acknowledged_row_after_the_clock_was_ahead(ahead_s: int) -> None:
    clock = ManualClock()
    with folder_in_memory() as folder:
        before = clock.now_us() - HOUR_S * 1_000_000
        clock.set_now_us(clock.now_us() + ahead_s * 1_000_000)
        with open_database(folder / "s", clock=clock) as db:
            columns = {"k": "int64", "v": "int64"}
            db.create_table("t", columns, "k", history="forever").insert({"k": [1], "v": [1]})
        clock.advance(-ahead_s)
        started = to_datetime(from_physical(clock.now_us()))
        clock.advance(5)
        with open_database(folder / "s", clock=clock) as db:
            table = db["t"]
            assert rows(table, at=started) == [(1, 1)], "also for a time just before the open"
            exact = table.insert({"k": [2], "v": [2]}).timestamp
            clock.advance(60)
            now = to_datetime(from_physical(clock.now_us()))
            for at in (now, now.isoformat()):
                assert rows(table, at=at) == [(1, 1), (2, 2)]
                assert db.snapshot(at).sql("SELECT count(*) FROM t").fetchall() == [(2,)]
            assert table.changes(since=exact - 1, until=now).to_arrow()["k"].to_pylist() == [2]
            table.insert({"k": [3], "v": [3]})
            feed = table.changes(since=now).to_arrow()["k"].to_pylist()
            assert 3 in feed, "for a lower bound, a change may be returned twice, but is never missing"
            assert rows(table, at=exact) == [(1, 1), (2, 2)], "timestamps are exact"
            with pytest.raises(nyala.TableNotFoundError, match="did not exist"):
                rows(table, at=to_datetime(from_physical(before)))
            with pytest.raises(nyala.InvalidArgumentError, match=r"ambiguous.*Pass a timestamp"):
                table.restore(to=now)
            clock.advance(2 * ahead_s)
            table.insert({"k": [4], "v": [4]})
            assert rows(table, at=now) == [(1, 1), (2, 2), (3, 3)], "no row is missing later"


def test_a_rejected_clock_makes_no_history_expire() -> None:
    clock = ManualClock()
    with folder_in_memory() as folder, open_database(folder / "s", clock=clock) as db:
        table = key_value_table(db)
        first = table.insert({"k": [1], "v": [1]}).timestamp
        db.flush()
        clock.advance(HOUR_S)
        table.update({"k": [1], "v": [2]})
        db.flush()
        right = clock.now_us()
        clock.set_now_us(right + 30 * DAY_S * 1_000_000)
        table.compact()
        table.vacuum()
        clock.set_now_us(right)
        assert rows(table, at=first) == [(1, 1)]
