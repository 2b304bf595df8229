"""Conditional upserts, and writes with a sequence, which late and repeated events cannot undo."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nyala
from nyala.api.database import Database

Event = dict[str, Any]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[nyala.Database]:
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        make(db)
        yield db


def make(db: nyala.Database) -> nyala.Table:
    return db.create_table(
        "t",
        {"k": "int64", "seq": "int64", "v": "string", "must": nyala.column("decimal(9,2)", nullable=False)},
        primary_key="k",
        partition_by=nyala.hash_partition("k", buckets=2),
    )


def state(table: Any) -> dict[int, tuple[int, str]]:
    return {row["k"]: (row["seq"], row["v"]) for row in table.scan().to_arrow().to_pylist()}


def row(k: int, seq: int | None, v: str = "") -> Event:
    return {"k": k, "seq": seq, "v": v, "must": 1}


# --- when= ----------------------------------------------------------------------------------------------


def test_an_existing_row_is_updated_only_if_the_condition_is_true(db: nyala.Database) -> None:
    table = db["t"]
    table.insert([row(1, 5, "old"), row(2, 5, "old"), row(3, None, "old")])
    result = table.upsert(
        [row(1, 6, "new"), row(2, 5, "new"), row(3, 9, "new"), row(4, 0, "new")], when="new.seq > old.seq"
    )
    assert (result.inserted, result.updated, result.ignored) == (1, 1, 2)
    assert state(table) == {1: (6, "new"), 2: (5, "old"), 3: (None, "old"), 4: (0, "new")}


def test_the_second_row_of_a_key_is_compared_with_the_first(db: nyala.Database) -> None:
    table = db["t"]
    result = table.upsert(
        [row(1, 5, "a"), row(1, 4, "b"), row(1, 7, "c"), row(1, 6, "d")], when="new.seq > old.seq"
    )
    assert (result.inserted, result.updated, result.ignored) == (1, 1, 2)
    assert state(table) == {1: (7, "c")}


def test_a_condition_may_use_any_column_and_parameters(db: nyala.Database) -> None:
    table = db["t"]
    table.insert([row(1, 1, "locked"), row(2, 1, "free")])
    table.upsert(
        [{"k": 1, "seq": 2}, {"k": 2, "seq": 2}],
        when="old.v <> :state AND new.seq - old.seq BETWEEN 1 AND 5",
        params={"state": "locked"},
    )
    assert state(table) == {1: (1, "locked"), 2: (2, "free")}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"when": "seq > 1"}, "old. or new. before the column"),
        ({"when": "new.seq >"}, "expected a value after >"),
        ({"when": "new.seq > old.sek"}, "no column 'old.sek'"),
        ({"when": "new.seq > other.seq"}, "write a column without its table"),
        ({"when": "new.must > 0"}, "when= names new.must, but the data has no column 'must'"),
        ({"when": "new.seq > old.seq", "newest_by": "seq"}, "either when= or newest_by=, not both"),
        ({"when": 5}, "when takes a text"),
        ({"params": [1]}, "params= needs a when= text"),
        ({"newest_by": "sek"}, "no column 'sek'"),
        ({"newest_by": "k"}, "newest_by='k' is part of the key"),
        ({"newest_by": "must"}, "newest_by='must', but the data has no column 'must'"),
    ],
)
def test_errors_of_invalid_conditions_say_what_to_write(
    db: nyala.Database, options: Event, says: str
) -> None:
    table = db["t"]
    with pytest.raises((nyala.InvalidArgumentError, nyala.ColumnNotFoundError), match=says):
        table.upsert([{"k": 1, "seq": 1, "v": "x"}], **options)
    assert table.count() == 0


# --- newest_by= -----------------------------------------------------------------------------------------


def test_a_row_without_a_sequence_fails(db: nyala.Database) -> None:
    result = db["t"].upsert([row(1, None), row(2, 1)], newest_by="seq", errors="collect")
    assert result.errors["row"].to_pylist() == [0] and result.errors["code"].to_pylist() == ["null"]
    assert state(db["t"]) == {2: (1, "")}


def test_a_late_event_does_not_bring_back_a_deleted_row(db: nyala.Database) -> None:
    """The delete is remembered even if the row did not exist, and after flushes, compactions and reopens."""
    table = db["t"]
    table.insert([row(1, 5)])
    gone = table.delete([{"k": 1, "seq": 7}, {"k": 2, "seq": 7}], newest_by="seq")
    assert (gone.deleted, gone.ignored) == (1, 1)

    def late() -> None:
        assert db["t"].upsert([row(1, 6), row(2, 7)], newest_by="seq").ignored == 2
        assert state(db["t"]) == {}

    late()
    table.flush()
    late()
    table.compact()
    late()
    assert table.upsert([row(1, 8), row(2, 8)], newest_by="seq").inserted == 2
    path = db.path
    db.close()
    assert nyala.check(path).problems == ()


@pytest.mark.parametrize("flushed", [False, True])
def test_an_insert_after_a_remembered_delete_begins_a_new_sequence(db: nyala.Database, flushed: bool) -> None:
    table = db["t"]
    table.delete([{"k": 1, "seq": 50}], newest_by="seq")
    if flushed:
        table.flush()
    table.insert([row(1, 1)])
    assert table.upsert([row(1, 2)], newest_by="seq").updated == 1


def test_nan_is_refused_as_a_sequence(db: nyala.Database) -> None:
    table = db.create_table("f", {"k": "int64", "seq": "double"}, "k")
    result = table.upsert([(1, float("nan")), (2, 1.0)], newest_by="seq", errors="collect")
    assert result.errors["code"].to_pylist() == ["null"] and result.inserted == 1


@pytest.mark.parametrize("first", ["tombstone", "delete"])
def test_a_compaction_keeps_the_past_of_a_row_that_is_deleted_twice(db: nyala.Database, first: str) -> None:
    """Before the second delete, the dead row has the sequence of the first one."""
    table = db["t"]
    if first == "tombstone":
        table.delete([{"k": 1, "seq": 2}], newest_by="seq")
    else:
        table.insert([row(1, 2)])
        table.delete(1)
    table.flush()
    before = table.insert([row(1, 27)])
    table.delete([{"k": 1, "seq": 28}], newest_by="seq")
    table.compact()
    assert state(table.at(before)) == {1: (27, "")}
    feed = table.changes(since=before, before=True).to_arrow()
    assert feed["seq"].to_pylist() == [27]


def test_a_remembered_delete_of_a_missing_key_is_invisible(db: nyala.Database) -> None:
    """It appears neither in change feeds nor in reads of the past."""
    table = db["t"]
    start = db.now()
    result = table.delete([{"k": 1, "seq": 7}], newest_by="seq")
    for _ in range(2):
        assert table.changes(since=start, versions="all").to_arrow().num_rows == 0
        assert table.changes(since=start).to_arrow().num_rows == 0
        assert table.count(at=result) == table.count() == 0 and table.history(1).num_rows == 0
        table.flush()
    table.upsert([row(1, 8)], newest_by="seq")
    assert table.changes(since=start, versions="all").to_arrow()["_change_type"].to_pylist() == ["insert"]


def events_of(random_: random.Random, keys: int, count: int) -> list[tuple[str, Event]]:
    """Return changes of some rows with ascending sequences; each is a row or a delete."""
    events = []
    for seq in range(1, count + 1):
        k = random_.randrange(keys)
        if random_.random() < 0.3:
            events.append(("delete", {"k": k, "seq": seq}))
        else:
            events.append(("upsert", row(k, seq, f"v{seq}")))
    return events


def truth(events: list[tuple[str, Event]]) -> dict[int, tuple[int, str]]:
    rows: dict[int, tuple[int, str]] = {}
    for operation, event in sorted(events, key=lambda each: each[1]["seq"]):
        if operation == "delete":
            rows.pop(event["k"], None)
        else:
            rows[event["k"]] = event["seq"], event["v"]
    return rows


@pytest.mark.parametrize("seed", range(8))
def test_events_in_any_order_give_the_same_table(tmp_path: Path, seed: int) -> None:
    """Late, repeated and shuffled events, with flushes, compactions, reopens and direct commits.

    Every moment stays readable as it was.
    """
    random_ = random.Random(seed)
    events = events_of(random_, keys=12, count=80)
    arriving = events + random_.sample(events, 30)
    random_.shuffle(arriving)
    path = tmp_path / "s"
    db = nyala.connect(path, maintenance=False)
    make(db)
    past: list[tuple[int, dict[int, tuple[int, str]]]] = []
    while arriving:
        table = db["t"]
        operation = arriving[0][0]
        size = random_.choice([1, 1, 5, 20])
        part = [event for name, event in arriving[:size] if name == operation]
        arriving = [each for each in arriving[:size] if each[0] != operation] + arriving[size:]
        store = db._writer()
        store.direct_commit_bytes = random_.choice([0, 64 << 20])
        if random_.random() < 0.2:
            with db.transaction() as tx:
                write(tx["t"], operation, part)
        else:
            write(table, operation, part)
        past.append((db.now(), state(table)))
        act = random_.random()
        if act < 0.15:
            table.flush()
        elif act < 0.25:
            table.compact()
        elif act < 0.35:
            db.close()
            db = nyala.connect(path, maintenance=False)
    assert state(db["t"]) == truth(events)
    db["t"].compact()
    for moment, rows in past:
        assert state(db["t"].at(moment)) == rows
    db.close()
    assert nyala.check(path).problems == ()


def write(table: Any, operation: str, events: list[Event]) -> None:
    getattr(table, operation)(events, newest_by="seq")


def test_deletes_with_and_without_a_sequence_in_one_commit(tmp_path: Path) -> None:
    """Only deletes with a sequence are remembered, each in its own column, even if the column is NOT NULL."""
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        table = db.create_table(
            "t", {"k": "int64", "seq": nyala.column("int64", nullable=False), "at": "int64"}, primary_key="k"
        )
        table.insert([{"k": k, "seq": 1, "at": 1} for k in (1, 2, 3)])
        with db.transaction() as tx:
            tx["t"].delete([{"k": 1, "seq": 7}, {"k": 4, "seq": 7}], newest_by="seq")
            tx["t"].delete([{"k": 2, "at": 9}], newest_by="at")
            tx["t"].delete([3])
            tx["t"].delete([5], on_missing="ignore")
        assert table.count() == 0
        late = [{"k": k, "seq": 2, "at": 8} for k in (1, 2, 3, 4, 5)]
        assert table.upsert(late, newest_by="seq").inserted == 3
        table.delete(where="TRUE")
        assert table.upsert([{"k": 2, "seq": 5, "at": 8}], newest_by="at").ignored == 1


def test_an_immutable_column_is_refused_as_a_sequence(db: nyala.Database) -> None:
    table = db.create_table(
        "i", {"k": "int64", "seq": nyala.column("int64", immutable=True)}, primary_key="k"
    )
    with pytest.raises(
        nyala.InvalidArgumentError, match="'seq' is an immutable column of table 'i', so no update"
    ):
        table.upsert([{"k": 1, "seq": 1}], newest_by="seq")


def test_a_clone_remembers_deletes_and_a_restored_backup_does_not(db: nyala.Database, tmp_path: Path) -> None:
    """A backup has only live rows."""
    db["t"].insert([row(2, 1)])
    db["t"].delete([{"k": 1, "seq": 7}, {"k": 2, "seq": 7}], newest_by="seq")
    assert db.clone_table("t", "copy").upsert([row(1, 6), row(2, 6)], newest_by="seq").ignored == 2
    db.backup(str(tmp_path / "b"))
    nyala.restore_backup(str(tmp_path / "b"), str(tmp_path / "restored"))
    with nyala.connect(tmp_path / "restored", maintenance=False) as restored:
        assert restored["t"].upsert([row(1, 6), row(2, 6)], newest_by="seq").inserted == 2


def test_deletes_are_remembered_as_long_as_the_history(tmp_path: Path) -> None:
    """With history=0, the next compaction forgets a delete."""
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        table = make(db)
        with table.alter() as steps:
            steps.set_history(0)
        table.insert([row(1, 5)])
        table.delete([{"k": 1, "seq": 7}], newest_by="seq")
        assert table.upsert([row(1, 6)], newest_by="seq").ignored == 1
        table.flush()
        table.compact()
        table.vacuum()
        assert table.upsert([row(1, 6)], newest_by="seq").inserted == 1


def test_deletes_are_remembered_in_a_bucket(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'b'}"
    with nyala.connect(url, maintenance=False) as db:
        make(db)
        db["t"].delete([{"k": 1, "seq": 7}], newest_by="seq")
    with nyala.connect(url, maintenance=False) as db:
        assert isinstance(db, Database)
        assert db["t"].upsert([row(1, 6)], newest_by="seq").ignored == 1
        db["t"].flush()
        assert db["t"].upsert([row(1, 7), row(1, 9)], newest_by="seq").inserted == 1
