"""The history of a table: how far back it can be read, and which data is discarded."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import folder_in_memory, open_database, rows

from nyala.api.database import Database
from nyala.catalog.model import TableEntry
from nyala.delta.run import LIVENESS
from nyala.errors import HistoryExpiredError, InvalidArgumentError, TableNotFoundError
from nyala.mvcc.hybrid_clock import HybridClock
from nyala.mvcc.timestamp import LOGICAL_MAX, from_physical, physical_us
from nyala.tablet.compaction.lifecycle import compact, run_here
from nyala.tablet.compaction.plans import ExpirePlan, MajorPlan
from nyala.testing.clock import ManualClock

START_US = 1_767_225_600_000_000
DAY_S = 24 * 3600


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_US)


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture
def db(folder: Path, clock: ManualClock) -> Iterator[Database]:
    with open_database(folder / "s", clock=clock) as db:
        yield db


def table_of(db: Database, history: Any, name: str = "t") -> Any:
    return db.create_table(name, {"k": "int64", "v": "int64"}, "k", history=history)


def rowsets(db: Database, name: str = "t") -> Any:
    return db._writer().root.table(name).tablets[0].rowsets


def undo_records(db: Database) -> int:
    return sum(file.record_count for rowset in rowsets(db) for file in rowset.undo)


def data_files(db: Database) -> set[str]:
    return {path.name for path in Path(db.path, "data").rglob("*") if path.is_file()}


def after(clock: ManualClock, seconds: float = 0) -> int:
    """Return the last timestamp of the moment this number of seconds ago."""
    return from_physical(clock.now_us() - int(seconds * 1e6), LOGICAL_MAX)


def old_table(db: Database, clock: ManualClock, history: Any = 3600) -> list[int]:
    """Return a table with a row per day of a week, each changed the next day, and the moments of
    the days.
    """
    table = table_of(db, history)
    table.insert({"k": [0], "v": [0]})
    moments = [db.now()]
    for day in range(1, 7):
        clock.advance(DAY_S)
        table.upsert({"k": [day, day - 1], "v": [day, -day]})
        moments.append(db.now())
    return moments


# --- H1: readable moments -----------------------------------------------------------------------------------


def entry(history_us: int | None, created: int = 0, history_start: int = 0) -> TableEntry:
    return TableEntry(
        1, "t", "", history_us, None, {}, None, created=created, history_start=history_start,  # type: ignore[arg-type]
    )  # fmt: skip


def test_h1_moments_before_the_mark_are_refused(db: Database, clock: ManualClock) -> None:
    """The error names the oldest readable moment and a remedy, also before any data is discarded."""
    table = table_of(db, history=60)
    first = table.insert({"k": [1], "v": [1]})
    clock.advance(30)
    second = table.update({"k": [1], "v": [2]})
    clock.advance(30)
    assert rows(table, at=first) == [(1, 1)], "a moment exactly as old as the history is readable"
    clock.advance(0.000_001)
    oldest = from_physical(clock.now_us() - 60_000_000)
    reads = [
        lambda: table.scan(at=first),
        lambda: table.get({"k": 1}, at=first),
        lambda: table.count(at=first),
        lambda: table.at(first),
        lambda: table.changes(first),
        lambda: table.changes(first, second),
        lambda: table.history({"k": 1}, since=first),
        lambda: table.restore(first),
        lambda: db.snapshot(at=first)["t"],
    ]
    for read in reads:
        with pytest.raises(HistoryExpiredError) as refused:
            read()
        message = str(refused.value)
        assert (
            f"oldest moment that can be read is 2026-01-01T00:00:00.000001+00:00 (timestamp {oldest})"
            in message
        )
        assert "cannot be read at 2026-01-01T00:00:00" in message
        assert "its history is 1 minute (set by create_table(history=…) or set_history(…))" in message
    assert table.stats().oldest_readable == oldest
    assert rows(table, at=oldest) == [(1, 1)] and rows(table, at=second) == [(1, 2)]
    assert len(table.history({"k": 1})) == 2, "without since: all versions that can be read"


def test_each_table_has_its_own_history(db: Database, clock: ManualClock) -> None:
    """A snapshot of all tables refuses only the tables with a shorter history."""
    short, long = table_of(db, 60, "short"), table_of(db, "forever", "long")
    moment = short.insert({"k": [1], "v": [1]})
    long.insert({"k": [1], "v": [1]})
    clock.advance(3600)
    snapshot = db.snapshot(at=moment)
    assert rows(long, at=moment) == rows(snapshot["long"]) == []
    with pytest.raises(HistoryExpiredError, match="'short'"):
        snapshot["short"]


def alter_history(table: Any, history: Any) -> None:
    with table.alter() as a:
        a.set_history(history)


def test_h6_a_shorter_history_is_valid_at_once(folder: Path, db: Database, clock: ManualClock) -> None:
    """Older moments are refused at once, also after a reopen. Existing views stay readable."""
    table = table_of(db, history="forever")
    first = table.insert({"k": [1], "v": [1]})
    clock.advance(100)
    table.update({"k": [1], "v": [2]})
    clock.advance(100)
    view = table.at(first)
    alter_history(table, 60)
    with pytest.raises(HistoryExpiredError, match=r"its history is 1 minute \(set by .* or set_history"):
        table.scan(at=first)
    assert rows(view) == [(1, 1)]
    table.flush()
    table.compact()
    table.vacuum()
    assert undo_records(db) == 0, "its bytes are freed"
    db.close()
    with (
        open_database(folder / "s", clock=clock) as again,
        pytest.raises(HistoryExpiredError, match="1 minute"),
    ):
        again["t"].scan(at=first)


@pytest.mark.parametrize("cut", [False, True])
def test_h6_a_longer_history_makes_kept_moments_readable(
    folder: Path, db: Database, clock: ManualClock, cut: bool
) -> None:
    """Only moments whose data was already discarded stay refused."""
    table = table_of(db, history=60)
    first = table.insert({"k": [1], "v": [1]})
    table.flush()
    clock.advance(100)
    table.update({"k": [1], "v": [2]})
    table.flush()
    clock.advance(100)
    if cut:
        table.compact()
        table.vacuum()
    alter_history(table, None)
    for _ in range(2):
        if cut:
            with pytest.raises(HistoryExpiredError) as refused:
                table.scan(at=first)
            assert "history is 7 days" in str(refused.value)
            assert str(refused.value).endswith("older rows were discarded while the history was shorter")
        else:
            assert rows(table, at=first) == [(1, 1)]
            assert table.stats().oldest_readable == 0
        clock.advance(3600)
        table.compact()
        assert rows(table, at=clock.now_us() * 4096 - (3600 * 10**6 * 4096)) == [(1, 2)]
        db.close()
        db = open_database(folder / "s", clock=clock)
        table = db["t"]
    db.close()


def test_h6_a_longer_history_makes_a_dropped_column_readable(db: Database, clock: ManualClock) -> None:
    """The schema of a moment is readable with the moment."""
    table = table_of(db, history=60)
    first = table.insert({"k": [1], "v": [1]})
    with table.alter() as a:
        a.drop_column("v")
    clock.advance(100)
    with table.alter() as a:
        a.set_history("forever")
        a.add_column("v", "string")
    assert rows(table, at=first) == [(1, 1)] and rows(table) == [(1, None)]


@pytest.mark.parametrize("wrong", ["soon", -1, True])
def test_an_invalid_history_is_refused(db: Database, wrong: Any) -> None:
    table = table_of(db, history=60)
    with pytest.raises(InvalidArgumentError, match="history"):
        alter_history(table, wrong)


def test_history_is_seven_days_by_default(db: Database, clock: ManualClock) -> None:
    table = db.create_table("t", {"k": "int64"}, "k")
    first = table.insert({"k": [1]})
    clock.advance(7 * DAY_S)
    table.insert({"k": [2]})
    assert table.count(at=first) == 1
    clock.advance(1)
    with pytest.raises(HistoryExpiredError, match="7 days"):
        table.count(at=first)


def test_h4_a_table_younger_than_its_history_can_be_read_from_its_beginning(
    db: Database, clock: ManualClock
) -> None:
    """A change feed may begin at 0, until history is discarded."""
    table = table_of(db, history=60)
    table.insert({"k": [1], "v": [1]})
    clock.advance(60)
    created = db._writer().root.table("t").entry.created
    assert rows(table, at=created) == [] and table.changes(0).to_arrow().num_rows == 1
    assert table.changes(created - 1).to_arrow().num_rows == 1, "before its creation nothing had changed"
    with pytest.raises(TableNotFoundError, match=f"did not exist at .* {created}"):
        table.scan(at=created - 1)
    assert table.stats().oldest_readable == 0
    table.vacuum()
    assert rows(table, at=created) == []
    clock.advance(0.1)
    for read in (lambda: rows(table, at=created), lambda: table.changes(0).to_arrow()):
        with pytest.raises(HistoryExpiredError):
            read()


def test_h4_a_purged_table_of_the_same_name_does_not_read_as_empty(db: Database) -> None:
    """Each call with an earlier moment raises an error."""
    table = table_of(db, "7d")
    before = table.insert({"k": [1], "v": [1]})
    db.drop_table("t", purge=True)
    table = table_of(db, "7d")
    after = table.insert({"k": [2], "v": [2]})
    snapshot = db.snapshot(before)
    assert "t" not in snapshot and snapshot.list_tables() == [] and "t" in db.snapshot(after)
    for read in (
        lambda: table.scan(at=before),
        lambda: table.get({"k": 1}, at=before),
        lambda: table.at(before),
        lambda: snapshot["t"],
        lambda: snapshot.sql("SELECT * FROM t"),
        lambda: table.changes(since=0, until=before),
        lambda: table.history({"k": 2}, until=before),
        lambda: table.restore(to=before),
        lambda: db.copy_table("t", "u", at=before),
    ):
        with pytest.raises(TableNotFoundError, match="'t' did not exist at"):
            read()
    assert rows(table) == [(2, 2)]


# --- discarded data -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["flush", "merge", "rewrite", "major", "expire"])
def test_each_kind_of_work_discards_expired_history(db: Database, clock: ManualClock, how: str) -> None:
    """Each moment from the mark on reads as before. Earlier moments are refused."""
    table = table_of(db, history=3600)
    table.insert({"k": [0, 1, 2, 3], "v": [0, 0, 0, 0]})
    if how != "flush":
        db.flush()
    clock.advance(DAY_S)
    table.update({"k": [0], "v": [1]})
    table.delete({"k": [1]})
    if how in ("merge", "expire"):
        db.flush()
        store = db._writer()
        plan = MajorPlan(rowsets(db)[0].id, (LIVENESS, store.root.table("t").schema.by_name("v").id), 1.0)
        assert compact(
            store, store.root.table("t").id, store.root.table("t").tablets[0].id, plan, run_here(store)
        )
    clock.advance(DAY_S)
    recent: list[tuple[int, list[Any]]] = []
    for value in (2, 3):
        table.update({"k": [0], "v": [value]})
        recent.append((db.now(), rows(table)))
        clock.advance(600)
    table.delete({"k": [2]})
    recent.append((db.now(), rows(table)))
    if how == "merge":
        table.insert({"k": [9], "v": [9]})
        recent.append((db.now(), rows(table)))
    if how != "flush":
        db.flush()
    store = db._writer()
    state = store.root.table("t")
    arguments = store, state.id, state.tablets[0].id
    cut = store.history_cut(state.entry)
    if how == "flush":
        db.flush()
    elif how == "merge":
        table.compact()
    elif how == "rewrite":
        assert table.vacuum().rowsets_rewritten == 1
    elif how == "major":
        plan = MajorPlan(rowsets(db)[0].id, (LIVENESS, state.schema.by_name("v").id), 1.0)
        assert compact(*arguments, plan, run_here(store))
    else:
        assert compact(*arguments, ExpirePlan((rowsets(db)[0].id,), 1.0), run_here(store))
    for rowset in rowsets(db):
        rowset.check()
        if how != "expire":  # expire drops only whole files
            assert all(file.timestamp_min > cut for file in rowset.undo if file is rowset.undo[0])
    if how in ("flush", "merge", "rewrite"):
        assert sum(rowset.row_count for rowset in rowsets(db)) == 3 + (how == "merge"), (
            "row 1 is dead and expired"
        )
        assert undo_records(db) == 3 + (how == "merge")
    assert [rows(table, at=moment) for moment, _ in recent] == [expected for _, expected in recent]
    assert rows(table, at=cut) == [(0, 1), (2, 0), (3, 0)]
    with pytest.raises(HistoryExpiredError):
        rows(table, at=cut - 1)
    clock.set_now_us(
        START_US + 2 * DAY_S * 1_000_000
    )  # discarded moments stay unreadable when the clock steps back
    with pytest.raises(HistoryExpiredError):
        rows(table, at=cut - 1)
    assert rows(table, at=cut) == [(0, 1), (2, 0), (3, 0)]


def test_rowsets_of_dead_rows_are_dropped(db: Database, clock: ManualClock) -> None:
    """Rowsets with only expired dead rows are dropped, and their data is not read."""
    table = table_of(db, history=3600)
    table.insert({"k": list(range(100)), "v": [0] * 100})
    db.flush()
    table.insert({"k": [1000], "v": [0]})
    there = db.now()
    clock.advance(60)
    table.delete(where="k < 100")
    db.flush()
    clock.advance(3599)
    store = db._writer()
    state = store.root.table("t")
    plan = ExpirePlan(tuple(rowset.id for rowset in rowsets(db)), 1.0)
    assert compact(store, state.id, state.tablets[0].id, plan, run_here(store))
    assert [len(rowset.undo) for rowset in rowsets(db)] == [0, 0], "the times of the inserts are expired"
    assert table.stats().dead_rows == 100
    assert table.count(at=after(clock, 3599.5)) == 101
    clock.advance(1)
    assert table.vacuum().rowsets_rewritten == 0
    assert [rowset.row_count for rowset in rowsets(db)] == [1]
    assert rows(table) == [(1000, 0)] and table.stats().dead_rows == 0
    with pytest.raises(HistoryExpiredError):
        table.count(at=there)
    table.insert({"k": [5], "v": [5]})
    assert rows(table) == [(5, 5), (1000, 0)]


def test_h3_no_history_is_discarded_after_the_published_timestamp(db: Database, clock: ManualClock) -> None:
    """A reader process reads at that timestamp."""
    table = table_of(db, history=0)
    table.insert({"k": [1], "v": [1]})
    store = db._writer()
    published = db.now()
    store._publisher.shown = published
    clock.advance(10)
    real, store.publish = store.publish, lambda *, durably=False: None  # type: ignore[method-assign]
    try:
        table.update({"k": [1], "v": [2]})
        assert db.now() > published
        assert store.history_cut(store.root.table("t").entry) == published
        db.flush()
        assert store.root.table("t").entry.history_start <= published
    finally:
        store.publish = real  # type: ignore[method-assign]


# --- data that is kept --------------------------------------------------------------------------------------


def test_h2_views_and_scans_stay_readable_when_history_is_discarded(db: Database, clock: ManualClock) -> None:
    """Pinned snapshots and running change feeds stay readable too."""
    table = table_of(db, history=60)
    table.insert({"k": [1, 2, 3], "v": [0, 0, 0]})
    clock.advance(30)
    past, before = db.now(), rows(table)
    table.update({"k": [1], "v": [1]})
    table.delete({"k": [2]})
    db.flush()
    now, expected = db.now(), rows(table)
    snapshot, pinned, view = db.snapshot(), db.snapshot(at=past), table.at(past)
    scan, feed = table.scan(at=past, order_by_key=True), table.changes(past, versions="all")
    reader = table.scan(order_by_key=True).to_reader()
    clock.advance(300)
    table.delete(where="TRUE")
    clock.advance(300)
    table.insert({"k": [77], "v": [77]})
    table.compact()
    table.vacuum()
    store = db._writer()
    store.collect_garbage()
    assert [rowset.row_count for rowset in rowsets(db)] == [1] and undo_records(db) == 1
    for old in (past, now):
        with pytest.raises(HistoryExpiredError):
            rows(table, at=old)
    assert rows(snapshot["t"]) == expected
    assert rows(pinned["t"]) == rows(view) == before
    assert [tuple(row.values()) for row in scan.to_arrow().to_pylist()] == before
    assert sum(batch.num_rows for batch in reader) == len(expected)
    assert feed.to_arrow().column("_change_type").to_pylist() == ["update", "delete"]
    assert len(view.history({"k": 1})) == 1 and len(snapshot["t"].history({"k": 1})) == 2
    assert store.state.garbage, "P2: their files are kept"
    snapshot.close()
    pinned.close()
    del snapshot, view, scan, feed, reader, pinned
    store.collect_garbage()
    assert len(data_files(db)) == len(list(store.state.files()))


READER = """
import nyala, sys
db = nyala.connect(sys.argv[1], read_only=True)
moment = int(sys.argv[2])
scan, view = db["t"].scan(at=moment, order_by_key=True), db["t"].at(moment)
feed = db["t"].changes(moment)
print("ready", flush=True)
sys.stdin.readline()
print(scan.to_arrow().num_rows, view.count(), feed.to_arrow().num_rows, flush=True)
try:
    db["t"].count(at=moment)
except nyala.HistoryExpiredError as error:
    print("expired", flush=True)
print(db["t"].count(), flush=True)
"""


def test_h2_a_reader_process_keeps_its_view(folder: Path) -> None:
    """The lease of a reader process keeps the files of its view."""
    with open_database(folder / "s") as db:
        table = table_of(db, history=60)
        table.insert({"k": [1, 2, 3], "v": [0, 0, 0]})
        db.flush()
        moment = db.now()
        table.delete({"k": [1]})
        child = subprocess.Popen(
            [sys.executable, "-c", READER, db.path, str(moment)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert child.stdin is not None and child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        # The lease ends at once, by the writer's clock.
        entry_now = db._writer().root.table("t").entry
        later = ManualClock(physical_us(db.now()) + 100_000_000)
        db._writer().env = dataclasses.replace(db._writer().env, clock=later)
        db._writer().clock = HybridClock(later, db.now())
        assert db._writer().history_cut(entry_now) > moment
        table.compact()
        assert [rowset.row_count for rowset in rowsets(db)] == [2] and undo_records(db) == 0
        db._writer().collect_garbage()
        child.stdin.write("\n")
        child.stdin.flush()
        assert [child.stdout.readline() for _ in range(3)] == ["3 3 1\n", "expired\n", "2\n"]
        child.stdin.close()
        child.stdout.close()
        assert child.wait() == 0


# --- the mark and the catalogue -----------------------------------------------------------------------------


def test_discarded_moments_stay_refused_after_a_reopen_and_a_clock_step(
    folder: Path, db: Database, clock: ManualClock
) -> None:
    """A read of such a moment raises an error, and never returns an empty result."""
    old_table(db, clock)
    table = db["t"]
    table.compact()
    start = db._writer().root.table("t").entry.history_start
    assert physical_us(start) == clock.now_us() - 3_600_000_000
    assert rows(table, at=start)
    clock.set_now_us(clock.now_us() - 7_200_000_000)
    for _ in range(2):
        with pytest.raises(HistoryExpiredError, match=f"timestamp {start}"):
            rows(table, at=start - 1)
        assert rows(table, at=start) and table.stats().oldest_readable == start
        assert table.vacuum().bytes == 0, "nothing newer than the mark of now"
        db.close()
        db = open_database(folder / "s", clock=clock)
        table = db["t"]
    db.close()
