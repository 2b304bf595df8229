"""Tags: names for moments, and the history that they keep."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nyala
from nyala.api.database import Database
from nyala.cli.app import app
from nyala.errors import HistoryExpiredError, InvalidArgumentError
from nyala.tablet.compaction.lifecycle import compact, run_here
from nyala.tablet.compaction.plans import MergePlan
from nyala.tablet.state import tags as tags_module
from nyala.testing.clock import ManualClock
from nyala.testing.s3_server import S3Server
from tests.api.power_cuts import cut_power
from tests.support import cli_runner, folder_in_memory, key_value_table, open_database, rows

HOUR_S = 3600


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def db(tmp_path: Path, clock: ManualClock) -> Iterator[Database]:
    with open_database(tmp_path / "s", clock=clock) as db:
        yield db


def tagged_table(db: Database) -> Any:
    """Create a table with one hour of history: three rows at the tag "before", and changes after it."""
    table = db.create_table("t", {"k": "int64", "v": "int64"}, "k", history="1h")
    table.insert({"k": [1, 2, 3], "v": [1, 2, 3]})
    db.flush()
    db.tag("before")
    table.update({"k": [1], "v": [10]})
    table.delete({"k": [2]})
    return table


BEFORE = [(1, 1), (2, 2), (3, 3)]
AFTER = [(1, 10), (3, 3)]


def tidy_up(db: Database) -> None:
    db.flush()
    for name in db.list_tables():
        db[name].compact()
        db[name].vacuum()


# --- tags as moments ------------------------------------------------------------------------------------


def test_a_tag_can_be_used_as_a_moment(db: Database, tmp_path: Path) -> None:
    """In scans, reads by key, SQL, views, snapshots, feeds, commits, copies, restores and backups,
    also in a reader.
    """
    table = tagged_table(db)
    (tag,) = db.tags()
    assert tag == nyala.Tag("before", tag.timestamp, nyala.to_datetime(tag.timestamp))
    with nyala.connect(db.path, read_only=True) as reader:
        assert reader.tags() == [tag]
        for which in (db, reader):
            found = which["t"]
            for at in ("before", " before ", tag):
                assert rows(found, at=at) == BEFORE
                assert found.get(2, at=at) == {"k": 2, "v": 2} and found.count(at=at) == 3
                assert found.get_many([2], at=at).num_rows == 1
                assert found.at(at).timestamp == tag.timestamp
                assert which.sql("SELECT sum(v) FROM t", at=at).fetchall() == [(6,)]
                with which.snapshot(at=at) as snapshot:
                    assert snapshot["t"].count() == 3
                assert found.changes(since=at).to_arrow().num_rows == 2
                assert found.at(db.now()).changes(since=at).to_arrow().num_rows == 2
                assert found.history(1, since=at).num_rows == 1
                assert len(found.commits(since=at)) == 2 == len(which.commits(since=at))
    assert table.changes(since=0, until="before").to_arrow().num_rows == 3
    assert len(table.commits(until="before")) == 1 == len(db.commits(until="before"))
    assert db.copy_table("t", "copy", at="before").count() == 3
    db.backup(tmp_path / "backup", tables=["t"])
    db.tag("backed-up")
    restored = nyala.restore_backup(tmp_path / "backup", db, {"t": "again"}, at="backed-up")
    assert restored[0].rows == 2
    assert table.restore(to="before").inserted == 1 and rows(table) == BEFORE


def test_a_tag_can_name_an_earlier_moment(db: Database, clock: ManualClock) -> None:
    """Tags are listed in the order of their moments, and two tags may have the same moment."""
    table = key_value_table(db)
    first = table.insert({"k": [1], "v": [1]})
    clock.advance(60)
    table.insert({"k": [2], "v": [2]})
    assert db.tag("now-two").timestamp == db.now()
    assert db.tag("first", at=first) == nyala.Tag("first", first.timestamp, first.time)
    assert db.tag("again", at="first").timestamp == first.timestamp
    assert db.tag("by.time", at=first.time + dt.timedelta(seconds=30)).timestamp > first.timestamp
    assert [tag.name for tag in db.tags()] == ["again", "first", "by.time", "now-two"]
    assert table.count(at="first") == table.count(at="by.time") == 1
    db.drop_tag("first")
    assert table.count(at="again") == 1
    assert db.tag("first").timestamp == db.now(), "the name can be used again"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "not a valid tag name"),
        ("7d", "not a valid tag name"),
        ("2026-01-01", "not a valid tag name"),
        ("-x", "not a valid tag name"),
        ("_x", "not a valid tag name"),
        ("a b", "not a valid tag name"),
        ("ä", "not a valid tag name"),
        ("x\n", "not a valid tag name"),
        ("now", "means the present"),
        ("Latest", "means the present"),
        ("x" * 129, "129 characters; at most 128"),
        (7, "a tag has a name"),
        ("taken", "there is a tag 'taken' already"),
    ],
)
def test_invalid_names_are_refused(db: Database, name: Any, said: str) -> None:
    db.tag("taken")
    with pytest.raises(InvalidArgumentError, match=said):
        db.tag(name)
    assert [tag.name for tag in db.tags()] == ["taken"]
    db.tag("a" + "Z9_.-" * 25)


def test_the_error_for_an_unknown_tag_suggests_tags(db: Database) -> None:
    """It names the argument. `drop_tag` raises the same."""
    table = key_value_table(db)
    with pytest.raises(
        InvalidArgumentError, match=r"^at='before' is neither a timestamp nor an ISO.*has no tags"
    ):
        table.scan(at="before")
    for name in ("before-load", "other"):
        db.tag(name)
    for ask, argument in (
        (lambda at: table.scan(at=at), "at"),
        (lambda at: db.snapshot(at), "at"),
        (lambda at: table.changes(since=at), "since"),
        (lambda at: table.changes(since=0, until=at), "until"),
        (lambda at: table.restore(to=at), "to"),
        (lambda at: db.tag("new", at=at), "at"),
    ):
        with pytest.raises(
            InvalidArgumentError, match=rf"^{argument}='befor-load'.*did you mean 'before-load'\?"
        ):
            ask("befor-load")
        with pytest.raises(
            InvalidArgumentError, match=rf"^{argument}='zzz'.*its tags are: before-load, other"
        ):
            ask("zzz")
    with pytest.raises(
        InvalidArgumentError, match=r"cannot drop the tag 'Before-Load'.*did you mean 'before-load'\?"
    ):
        db.drop_tag("Before-Load")
    db.drop_tag("zzz", missing_ok=True)
    with pytest.raises(InvalidArgumentError, match="neither a timestamp nor an ISO time"):
        table.scan(at="2026-13-01")


def test_the_number_of_tags_is_bounded(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    from nyala.tablet import store

    monkeypatch.setattr(store, "TAGS_MAX", 3)
    for number in range(3):
        db.tag(f"t{number}")
    with pytest.raises(InvalidArgumentError, match="the store has 3 tags, which is the maximum"):
        db.tag("t3")
    assert tags_module.TAGS_MAX == 10_000


# --- the history that a tag keeps -------------------------------------------------------------------------------------


def test_a_tag_keeps_history_until_it_is_dropped(db: Database, clock: ManualClock) -> None:
    """Through flushes, compactions and vacuum after the table's history has ended; `stats` shows the cost."""
    table = tagged_table(db)
    assert table.stats().tag_bytes == db.stats().tag_bytes == 0, (
        "the table's history still reaches back to the tag"
    )
    clock.advance(48 * HOUR_S)
    tidy_up(db)
    assert rows(table, at="before") == BEFORE and rows(table) == AFTER
    (tag,) = db.tags()
    stats = table.stats()
    assert stats.oldest_readable == tag.timestamp
    assert 0 < stats.tag_bytes <= stats.history_bytes and db.stats().tag_bytes == stats.tag_bytes
    assert table.count(at=tag.timestamp + 1) == 3, "everything since the tag can be read"
    with pytest.raises(HistoryExpiredError, match="oldest moment that can be read"):
        table.scan(at=tag.timestamp - 1)
    db.drop_tag("before")
    for at in (tag, tag.timestamp + 1):
        with pytest.raises(HistoryExpiredError):
            table.scan(at=at)
    tidy_up(db)
    stats = table.stats()
    assert (stats.tag_bytes, stats.history_bytes, stats.dead_rows) == (0, 0, 0) and rows(table) == AFTER


def test_a_tag_keeps_the_history_of_tables_that_existed(db: Database, clock: ManualClock) -> None:
    """The history of a later table expires as usual, and that of an older table when its last tag
    is dropped.
    """
    tagged_table(db)
    clock.advance(1)
    later = db.create_table("later", {"k": "int64", "v": "int64"}, "k", history="1h")
    first = later.insert({"k": [1], "v": [0]})
    later.update({"k": [1], "v": [1]})
    both = db.tag("both")
    clock.advance(1)
    later.update({"k": [1], "v": [2]})
    clock.advance(48 * HOUR_S)
    tidy_up(db)
    assert rows(later, at="both") == [(1, 1)] and rows(db["t"], at="before") == BEFORE
    with pytest.raises(HistoryExpiredError):
        later.scan(at=first.timestamp)
    db.drop_tag("before")
    tidy_up(db)
    assert rows(later, at="both") == [(1, 1)] and rows(db["t"], at="both") == AFTER
    assert db["t"].stats().oldest_readable == both.timestamp


def test_an_expired_moment_cannot_be_tagged(db: Database, clock: ManualClock) -> None:
    """The call is refused even if the moment has expired in one table only."""
    table = tagged_table(db)
    key_value_table(db, "longer").insert({"k": [1], "v": [1]})
    old = table.insert({"k": [9], "v": [9]})
    table.delete({"k": [9]})
    clock.advance(2 * HOUR_S)
    db.drop_tag("before")
    with pytest.raises(HistoryExpiredError, match="table 't' cannot be read"):
        db.tag("late", at=old)
    with pytest.raises(InvalidArgumentError, match="future"):
        db.tag("late", at=nyala.to_datetime(db.now()) + dt.timedelta(days=9))
    assert db.tags() == []


def test_a_shorter_history_leaves_a_tag_readable(db: Database, clock: ManualClock) -> None:
    table = tagged_table(db)
    with table.alter() as change:
        change.set_history(0)
        change.add_column("w", "int64", default=7)
        change.drop_column("v")
    tidy_up(db)
    clock.advance(48 * HOUR_S)
    tidy_up(db)
    assert rows(table, at="before") == BEFORE, "with the columns of its moment"


def test_a_tagged_table_cannot_be_repartitioned(db: Database) -> None:
    table = tagged_table(db)
    with pytest.raises(InvalidArgumentError, match=r"readable at the tag 'before'.*drop_tag\(\) first"):
        table.repartition(nyala.hash_partition("k", buckets=2))
    db.drop_tag("before")
    table.repartition(nyala.hash_partition("k", buckets=2))
    assert rows(table) == AFTER


@pytest.mark.parametrize("history", ["1h", 0])
def test_a_tag_keeps_renamed_and_dropped_tables(db: Database, clock: ManualClock, history: Any) -> None:
    """It also keeps dropped ranges, even if the table has no history. A purge removes them all."""
    table = db.create_table(
        "t", {"k": "int64", "v": "int64"}, "k", nyala.range_partition("k", splits=[2]), history=history
    )
    table.insert({"k": [1, 2, 3], "v": [1, 2, 3]})
    db.tag("before")
    with table.alter() as change:
        change.drop_range(2, None)
    db.rename_table("t", "renamed")
    clock.advance(48 * HOUR_S)
    tidy_up(db)
    assert rows(db["renamed"], at="before") == BEFORE and rows(db["renamed"]) == BEFORE[:1]
    before = db.stats()
    assert before.tag_bytes == db["renamed"].stats().tag_bytes >= before.dropped_bytes > 0
    db.drop_table("renamed")
    clock.advance(48 * HOUR_S)
    key_value_table(db, "later").insert({"k": [1], "v": [1]})
    db._writer().collect_garbage()
    assert db.stats().tag_bytes == db.stats().dropped_bytes > before.dropped_bytes
    with nyala.connect(db.path, read_only=True) as reader:
        for which in (db, reader):
            assert rows(which.table("renamed", at="before")) == BEFORE
            assert [dropped.recoverable_until for dropped in which.dropped_tables()] == [None]
    assert db.undrop_table("renamed").count() == 1
    db.drop_table("renamed")
    db.drop_tag("before")
    clock.advance(2 * HOUR_S)
    key_value_table(db, "other").insert({"k": [1], "v": [1]})
    db._writer().collect_garbage()
    assert db.dropped_tables() == [] and db.tags() == [] and db.check().ok
    again = tagged_table(db)
    del again
    db.drop_table("t", purge=True)
    assert db.dropped_tables() == [] and [tag.name for tag in db.tags()] == ["before"] and db.check().ok


def test_a_running_compaction_gives_up_if_a_new_tag_needs_history(db: Database, clock: ManualClock) -> None:
    """The tag is possible because the history became longer during the compaction."""
    table = db.create_table("t", {"k": "int64", "v": "int64"}, "k", history="1h")
    first = table.insert({"k": [1, 2], "v": [1, 2]})
    table.flush()
    clock.advance(60)
    table.update({"k": [1], "v": [10]})
    table.flush()
    table.compact()
    clock.advance(2 * HOUR_S)
    store = db._writer()
    state = store.root.table("t")
    (rowset,) = state.tablets[0].rowsets

    def phase(step: str) -> None:
        if step == "written" and not db.tags():
            with table.alter() as change:
                change.set_history("7d")
            db.tag("first", at=first)

    chosen = MergePlan((rowset.id,), 0.0)
    assert compact(store, state.id, state.tablets[0].id, chosen, run_here(store), phase=phase) is None
    clock.advance(30 * 24 * HOUR_S)
    tidy_up(db)
    assert rows(table, at="first") == [(1, 1), (2, 2)] and rows(table) == [(1, 10), (2, 2)]


# --- tags are durable -------------------------------------------------------------------------------------


def test_tags_are_durable(db: Database, clock: ManualClock, tmp_path: Path) -> None:
    """After a crash (from the log and from a checkpoint), and in a copy of the store."""
    tagged_table(db)
    for number in range(2):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(db.path, copy, ignore=shutil.ignore_patterns("*.sock", "lock"))
        with open_database(copy, clock=clock) as other:
            assert other.tags() == db.tags()
            clock.advance(48 * HOUR_S)
            tidy_up(other)
            assert rows(other["t"], at="before") == BEFORE
            other._writer().write_checkpoint()
        with open_database(copy, clock=clock) as other:
            assert rows(other["t"], at="before") == BEFORE and other.check().ok
            other.drop_tag("before")
        with open_database(copy, clock=clock) as other:
            assert other.tags() == []
        tidy_up(db)
    ran = cli_runner().invoke(app, ["fs", "copy", db.path, str(tmp_path / "whole")])
    assert ran.exit_code == 0, ran.output
    with open_database(tmp_path / "whole", clock=clock) as other:
        assert other.tags() == db.tags() and rows(other["t"], at="before") == BEFORE


STEPS_OF_CRASHES: list[Callable[[Database], object]] = [
    lambda db: db["t"].insert({"k": [1, 2], "v": [1, 2]}, message="first"),
    lambda db: db.tag("one"),
    lambda db: db["t"].update({"k": [1], "v": [10]}, message="second"),
    lambda db: db.flush(),
    lambda db: db.tag("two"),
    lambda db: db["t"].upsert({"k": range(3, 200), "v": range(3, 200)}, message="as files"),
    lambda db: db.tag("again", at="one"),
    lambda db: db["t"].compact(),
    lambda db: db.drop_tag("one"),
    lambda db: db["t"].delete({"k": [2]}, message="last"),
    lambda db: db.drop_tag("two"),
]


def test_a_power_cut_at_every_event(tmp_path: Path) -> None:
    """Tags keep their rows, and messages belong to their commits."""

    def read(db: Database) -> Any:
        table = db["t"]
        commits = [(c.timestamp, c.inserted, c.updated, c.deleted, c.message) for c in table.commits(since=0)]
        return rows(table), commits, [(tag, rows(table, at=tag.name)) for tag in db.tags()]

    cut_power(tmp_path, key_value_table, STEPS_OF_CRASHES, read, every=4, direct_commit_bytes=2000)


def test_tags_in_a_bucket(tmp_path: Path) -> None:
    """In a bucket, a tag keeps its rows for the writer and for readers."""
    with S3Server() as server:
        options: dict[str, Any] = {"storage_options": server.options, "cache_dir": tmp_path / "cache"}
        with nyala.connect("s3://bucket/store", group_interval=0, maintenance=False, **options) as db:
            table = db.create_table("t", {"k": "int64", "v": "int64"}, "k", history=0)
            table.insert({"k": [1], "v": [1]})
            db.tag("one")
            table.update({"k": [1], "v": [2]})
            tidy_up(db)
            with nyala.connect("s3://bucket/store", read_only=True, **options) as reader:
                assert rows(reader["t"], at="one") == [(1, 1)] and reader.tags() == db.tags()
                db.drop_tag("one")
                db.tag("two")
                assert [tag.name for tag in reader.tags()] == ["two"]
                with pytest.raises(InvalidArgumentError, match="its tags are: two"):
                    reader["t"].count(at="one")
        with nyala.connect("s3://bucket/store", group_interval=0, maintenance=False, **options) as db:
            assert rows(db["t"], at="two") == [(1, 2)] and db["t"].stats().tag_bytes == 0


# --- against a dictionary of moments ----------------------------------------------------------------------


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True)),
        st.tuples(st.just("delete"), st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True)),
        st.tuples(st.just("wait"), st.sampled_from([60, 1800, 7200])),
        st.tuples(st.sampled_from(["flush", "tidy up", "reopen", "compact"]), st.none()),
        st.tuples(st.just("tag"), st.integers(0, 30)),
        st.tuples(st.just("drop"), st.integers(0, 30)),
    ),
    min_size=4,
    max_size=24,
)


@given(steps=STEPS)
def test_tagged_moments_have_the_right_rows(steps: list[tuple[str, Any]]) -> None:
    """Random writes, waits longer than the history, compactions, reopens, and tags of present and
    earlier moments.
    """
    clock = ManualClock()
    with folder_in_memory() as folder:
        db = open_database(folder / "s", clock=clock)
        db.create_table("t", {"k": "int64", "v": "int64"}, "k", history="1h")
        state: dict[int, int] = {}
        moments: list[tuple[int, list[tuple[int, int]]]] = [(db.now(), [])]
        kept: dict[str, tuple[int, list[tuple[int, int]]]] = {}
        for number, (step, given_) in enumerate(steps):
            table = db["t"]
            if step == "upsert":
                table.upsert({"k": given_, "v": [number] * len(given_)})
                state |= dict.fromkeys(given_, number)
                moments.append((db.now(), sorted(state.items())))
            elif step == "delete":
                table.delete({"k": given_}, on_missing="ignore")
                state = {k: v for k, v in state.items() if k not in given_}
                moments.append((db.now(), sorted(state.items())))
            elif step == "wait":
                clock.advance(given_)
            elif step == "flush":
                db.flush()
            elif step == "compact":
                table.compact()
            elif step == "tidy up":
                tidy_up(db)
            elif step == "reopen":
                db.close()
                db = open_database(folder / "s", clock=clock)
            elif step == "tag":
                at, expected = moments[-1 - given_ % len(moments)]
                oldest = table.stats().oldest_readable
                if at < oldest:
                    with pytest.raises(HistoryExpiredError):
                        db.tag(f"n{number}", at=at)
                else:
                    db.tag(f"n{number}", at=at)
                    kept[f"n{number}"] = at, expected
            elif kept:
                name = sorted(kept)[given_ % len(kept)]
                db.drop_tag(name)
                del kept[name]
            for name, (at, expected) in kept.items():
                assert rows(db["t"], at=name) == expected, name
                later = [(then, wanted) for then, wanted in moments if then > at]
                for then, wanted in later[-2:]:
                    assert rows(db["t"], at=then) == wanted
            assert {tag.name: tag.timestamp for tag in db.tags()} == {
                name: at for name, (at, _) in kept.items()
            }
        assert db.check().ok
        db.close()
