"""A dropped table or range partition stays readable at earlier moments, and can be brought back, until its history
ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import nyala
from nyala import Database
from nyala.cli.app import app as cli
from nyala.tablet.compaction.lifecycle import compact, run_here
from nyala.tablet.compaction.plans import MergePlan
from nyala.tablet.flush.lifecycle import flush
from nyala.tablet.recovery.reader_store import ReaderStore
from nyala.testing.clock import ManualClock
from nyala.testing.s3_server import S3Server
from tests.api.power_cuts import cut_power
from tests.support import open_database, rows

SPLIT = nyala.range_partition("k", bounds=[(0, 10), (10, 20)])


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def db(tmp_path: Path, clock: ManualClock) -> Iterator[Database]:
    with open_database(tmp_path / "s", clock=clock) as db:
        yield db


def make(db: Database, name: str = "t", **options: Any) -> nyala.Table:
    """Create a table with two range partitions:

    a row in a file, with a change in memory, and a row in memory.
    """
    table = db.create_table(name, {"k": "int64", "v": "int64"}, "k", SPLIT, **options)
    table.insert({"k": [1], "v": [1]})
    db.flush()
    table.update({"k": [1], "v": [2]})
    table.insert({"k": [11], "v": [3]})
    return table


ROWS = [(1, 2), (11, 3)]


def files(db: Database) -> set[str]:
    return {file.name for file in Path(db.path, "data").rglob("*") if file.is_file()}


# --- tables ----------------------------------------------------------------------------------------------------------


def test_all_reads_of_earlier_moments_find_a_dropped_table(db: Database, clock: ManualClock) -> None:
    table = make(db)
    before, snapshot = db.now(), db.snapshot()
    clock.advance(1)
    db.drop_table("t")
    assert "t" not in db and db.list_tables() == []
    for found in (
        rows(db.table("t", at=before)),
        rows(table, at=before),
        rows(table.at(before)),
        rows(db.snapshot(before)["t"]),
        rows(snapshot["t"]),
        db.sql("SELECT * FROM t ORDER BY k", at=before).fetchall(),
    ):
        assert found == ROWS
    assert db.snapshot(before).list_tables() == ["t"] and db.snapshot().list_tables() == []
    assert table.get(1, at=before) == {"k": 1, "v": 2}
    assert len(table.changes(0, before).to_arrow()) == 2
    assert len(table.history(1, until=before)) == 2
    for read in (table.count, lambda: db.table("t"), lambda: db["t"], lambda: db.sql("SELECT * FROM t")):
        with pytest.raises(nyala.TableNotFoundError):
            read()
    with pytest.raises(
        nyala.TableNotFoundError, match=r"it was dropped at .*undrop_table\('t'\) brings it back"
    ):
        db.table("t")
    with pytest.raises(nyala.TableNotFoundError):
        table.insert({"k": [2], "v": [2]})


@pytest.mark.parametrize("while_dropped", ["nothing", "flush", "reopen", "flush and reopen"])
def test_undrop_brings_back_the_same_table(tmp_path: Path, while_dropped: str) -> None:
    db = open_database(tmp_path / "s")
    table = make(db)
    before, description = db.now(), table.description
    db.drop_table("t")
    between = db.now()
    if "flush" in while_dropped:
        db.flush()
    if "reopen" in while_dropped:
        db.close()
        db = open_database(tmp_path / "s")
    table = db.undrop_table("t")
    assert rows(table) == ROWS and table.description.partition_by == description.partition_by
    assert rows(table, at=before) == ROWS
    assert table.changes(before).to_arrow().num_rows == 0, "a feed of the same table has no changes"
    with pytest.raises(nyala.TableNotFoundError, match="was dropped at .* brought back at"):
        table.scan(at=between)
    assert db.snapshot(between).list_tables() == []
    table.upsert({"k": [1, 2], "v": [5, 5]})
    assert rows(table) == [(1, 5), (2, 5), (11, 3)] and db.dropped_tables() == []
    db.close()
    with open_database(tmp_path / "s") as db:
        assert rows(db["t"]) == [(1, 5), (2, 5), (11, 3)] and db.check().ok
    assert nyala.check(tmp_path / "s").ok


def test_several_tables_of_one_name(db: Database) -> None:
    """Each moment reads the table that had the name then."""
    moments = []
    for value in (1, 2, 3):
        db.create_table("t", {"k": "int64"}, "k").insert({"k": [value]})
        moments.append(db.now())
        if value < 3:
            db.drop_table("t")
    for value, moment in enumerate(moments, 1):
        assert rows(db["t"], at=moment) == [(value,)] == db.sql("SELECT k FROM t", at=moment).fetchall()
        assert [row["k"] for row in db["t"].changes(0, moment).to_arrow().to_pylist()] == [value]
    first, second = db.dropped_tables()
    assert first.name == second.name == "t" and first.dropped < second.dropped
    with pytest.raises(
        nyala.TableExistsError, match="'t': a table with this name exists; pass another new_name"
    ):
        db.undrop_table("t")
    assert rows(db.undrop_table("t", "newest")) == [(2,)]
    with pytest.raises(nyala.TableNotFoundError, match="no dropped table 't' existed at"):
        db.undrop_table("t", "again", at=moments[1])
    assert rows(db.undrop_table("t", "first", at=moments[0])) == [(1,)]
    assert db.dropped_tables() == [] and rows(db["t"]) == [(3,)]


def test_errors_change_nothing(db: Database) -> None:
    make(db)
    seen = db._root()
    for call, message in (
        (
            lambda: db.undrop_table("t"),
            "no dropped table 't' can be brought back: the store has no dropped tables",
        ),
        (lambda: db.undrop_table("x", "t"), "no dropped table 'x'"),
        (lambda: db.drop_table("x", purge=True), "no table 'x'"),
        (lambda: db.drop_table("t", purge="yes"), "purge takes True or False, not 'yes'"),  # type: ignore[arg-type]
        (lambda: db.undrop_table("t", ""), "name"),
    ):
        with pytest.raises(nyala.Error, match=message):
            call()
    assert db._root() is seen
    db.drop_table("t")
    with pytest.raises(nyala.TableNotFoundError, match="'x' can be brought back: the dropped tables are: t"):
        db.undrop_table("x")


def test_a_dropped_table_is_removed_when_its_history_ends(db: Database, clock: ManualClock) -> None:
    make(db, history="1h")
    make(db, "kept", history="forever")
    make(db, "none", history=0)
    before = db.now()
    db.flush()
    for name in ("t", "kept", "none"):
        clock.advance(1)
        db.drop_table(name)
    store = db._writer()
    store.collect_garbage()
    assert [table.name for table in db.dropped_tables()] == ["t", "kept"], (
        "the table without history is removed at once"
    )
    assert db.stats().dropped_bytes == sum(table.bytes for table in db.dropped_tables()) > 0
    until = db.dropped_tables()[0].recoverable_until
    assert until is not None and db.dropped_tables()[1].recoverable_until is None
    clock.advance(3600)
    store.collect_garbage()
    assert [table.name for table in db.dropped_tables()] == ["kept"]
    assert nyala.to_datetime(db.now()) is not None and files(db)
    with pytest.raises(nyala.TableNotFoundError):
        db.table("t", at=before)
    assert rows(db.table("kept", at=before)) == ROWS
    with pytest.raises(nyala.TableNotFoundError, match="no dropped table is called 'x'"):
        db.purge_dropped("x")
    assert db.purge_dropped() > 0
    store.collect_garbage()
    assert db.dropped_tables() == [] and not files(db)


def test_a_drop_with_purge_removes_the_table_at_once(db: Database) -> None:
    table = make(db)
    before = db.now()
    db.flush()
    db.drop_table("t", purge=True)
    db._writer().collect_garbage()
    assert not files(db) and db.dropped_tables() == [] and db._root().memory_timestamp_min() is None
    with pytest.raises(nyala.TableNotFoundError):
        table.scan(at=before)


def test_readers_see_drops_and_undrops(db: Database) -> None:
    make(db)
    before = db.now()
    reader = Database(ReaderStore.open(db._store.env, db.path, 1 << 26))
    assert rows(reader["t"]) == ROWS
    db.drop_table("t")
    assert reader.list_tables() == [] and rows(reader.table("t", at=before)) == ROWS
    assert [table.name for table in reader.dropped_tables()] == ["t"]
    db.create_table("t", {"other": "int64"}, "other")
    assert reader["t"].columns == ["other"] and rows(reader["t"], at=before) == ROWS
    db.undrop_table("t", "u").insert({"k": [5], "v": [5]})
    assert rows(reader["u"]) == [(1, 2), (5, 5), (11, 3)]
    with pytest.raises(nyala.ReadOnlyError):
        reader.undrop_table("t")
    reader.close()


def test_a_drop_during_a_flush_and_during_a_compaction(db: Database) -> None:
    table = make(db)

    def drop_and_back(name: str) -> None:
        if name == "written":
            db.drop_table("t")

    flush(db._writer(), phase=drop_and_back)
    assert db._root().memory_timestamp_min() is None, "the dropped table's memory was flushed with the others"
    db.undrop_table("t")
    assert rows(table) == ROWS
    table.insert({"k": [2], "v": [2]})
    db.flush()
    state = db._root().table("t")
    plan = MergePlan(tuple(rowset.id for rowset in state.tablets[0].rowsets), 0.0)
    run = run_here(db._writer())
    assert compact(db._writer(), state.id, state.tablets[0].id, plan, run, phase=drop_and_back) is None
    db.undrop_table("t")
    assert rows(table) == [(1, 2), (2, 2), (11, 3)] and db.check().ok
    assert compact(db._writer(), state.id, state.tablets[0].id, plan, run) is not None


# --- range partitions ------------------------------------------------------------------------------------------------


def drop(table: nyala.Table, *bounds: Any, purge: bool = False) -> None:
    with table.alter() as a:
        a.drop_range(*bounds, purge=purge)


def undrop(table: nyala.Table, *bounds: Any) -> None:
    with table.alter() as a:
        a.undrop_range(*bounds)


def test_a_dropped_range_stays_readable_and_can_be_brought_back(tmp_path: Path) -> None:
    db = open_database(tmp_path / "s")
    table = make(db)
    before = db.now()
    drop(table, 0, 10)
    between = db.now()
    with pytest.raises(nyala.NoPartitionError):
        table.insert({"k": [2], "v": [2]})
    for _ in range(2):
        assert rows(table) == [(11, 3)] and len(table.tablets()) == 1
        assert rows(table, at=before) == ROWS == db.sql("SELECT * FROM t ORDER BY k", at=before).fetchall()
        assert rows(db.snapshot(before)["t"]) == ROWS
        assert table.get(1, at=before) == {"k": 1, "v": 2} and table.get(1) is None
        assert table.get_many([1, 11], at=before).num_rows == 2
        assert table.scan(at=before, where="k < 5", schema="current").count() == 1
        assert len(table.history(1, until=before)) == 2
        db.close()
        db = open_database(tmp_path / "s")
        table = db["t"]
    copied = db.copy_table("t", "copy", at=before)
    assert rows(copied) == ROWS and len(copied.tablets()) == 2
    with table.alter() as a:
        a.add_range(0, 5)
    table.insert({"k": [1], "v": [9]})
    assert rows(table) == [(1, 9), (11, 3)] and rows(table, at=before) == ROWS
    with pytest.raises(nyala.InvalidArgumentError, match=r"\[0, 10\) would overlap .*\[0, 5\)"):
        undrop(table, 0, 10)
    drop(table, 0, 5)
    undrop(table, 0, 10)
    assert rows(table) == ROWS and rows(table, at=before) == ROWS and rows(table, at=between) == [(11, 3)]
    table.upsert({"k": [1, 2], "v": [7, 7]})
    db.flush()
    table.compact()
    assert rows(table) == [(1, 7), (2, 7), (11, 3)] and db.check().ok
    db.close()
    assert nyala.check(tmp_path / "s").ok


def test_ranges_that_cannot_be_brought_back(db: Database) -> None:
    table = make(db)
    with pytest.raises(
        nyala.InvalidArgumentError, match=r"no dropped range partition .* the table has no dropped"
    ):
        undrop(table, 0, 10)
    drop(table, 0, 10)
    for bounds, message in (
        ((0, 5), r"to undrop; it overlaps .*\[0, 10\)"),
        ((10, 20), "to undrop; the table has"),
    ):
        with pytest.raises(nyala.InvalidArgumentError, match=message):
            undrop(table, *bounds)
    with pytest.raises(nyala.InvalidArgumentError, match="purge takes True or False"):
        drop(table, 10, 20, purge=1)  # type: ignore[arg-type]
    with table.alter() as a:  # several steps on the same range
        a.undrop_range(0, 10)
        a.drop_range(0, 10)
        a.undrop_range(0, 10)
    assert rows(table) == ROWS
    with table.alter() as a:
        a.drop_range(0, 10)
        a.undrop_range(0, 10)
        a.drop_range(10, 20, purge=True)
    assert rows(table) == [(1, 2)]


def test_a_restore_names_the_range_to_bring_back_first(db: Database) -> None:
    table = make(db)
    before = db.now()
    drop(table, 0, 10)
    with pytest.raises(nyala.InvalidArgumentError, match=r"\[0, 10\) was dropped at .*undrop_range"):
        table.restore(to=before)
    between = db.now()
    undrop(table, 0, 10)
    assert table.restore(to=before).updated == 0
    with pytest.raises(nyala.InvalidArgumentError, match=r"\[0, 10\) was brought back at .*drop_range"):
        table.restore(to=between)


def test_the_change_feed_names_dropped_and_restored_ranges(db: Database) -> None:
    table = make(db)
    before = db.now()
    drop(table, 0, 10)
    between = db.now()
    assert [one.range for one in table.changes(before).dropped_ranges] == ["RANGE (k) [0, 10)"]
    assert table.changes(before, before).dropped_ranges == () == table.changes(between).dropped_ranges
    undrop(table, 0, 10)
    feed = table.changes(between)
    assert [one.range for one in feed.restored_ranges] == ["RANGE (k) [0, 10)"]
    assert b"nyala.restored_ranges" in feed.schema.metadata and feed.dropped_ranges == ()
    whole = table.changes(before)
    assert whole.restored_ranges == () == whole.dropped_ranges and whole.to_arrow().num_rows == 0


def test_an_alteration_leaves_a_dropped_range_readable(db: Database) -> None:
    """This holds although its rows in memory have the older columns."""
    table = make(db)
    before = db.now()
    drop(table, 0, 10)
    with table.alter() as a:
        a.add_column("w", "int64", default=4)
        a.rename_column("v", "x")
    assert rows(table, at=before) == ROWS
    undrop(table, 0, 10)
    assert rows(table) == [(1, 2, 4), (11, 3, 4)]
    db.flush()
    assert rows(table) == [(1, 2, 4), (11, 3, 4)] and rows(table, at=before) == ROWS


def test_expired_and_purged_ranges(db: Database, clock: ManualClock) -> None:
    """The space of a dropped range is freed when its history ends, or by a purge."""
    table = make(db, history="1h")
    before = db.now()
    db.flush()
    clock.advance(1)
    drop(table, 0, 10)
    assert db.stats().dropped_bytes > 0
    clock.advance(3600)
    table.vacuum()
    assert db.stats().dropped_bytes == 0 and rows(table) == [(11, 3)]
    with pytest.raises(nyala.HistoryExpiredError):
        table.scan(at=before)
    with pytest.raises(nyala.InvalidArgumentError, match="no dropped range"):
        undrop(table, 0, 10)
    moment = db.now()
    drop(table, 10, 20)
    assert rows(table, at=moment) == [(11, 3)]
    assert db.purge_dropped("t") > 0
    with pytest.raises(
        nyala.HistoryExpiredError, match=r"needs the partition RANGE \(k\) \[10, 20\).*purged"
    ):
        table.scan(at=moment).count()
    assert rows(table) == [] and db.check().ok


def test_a_repartition_purges_dropped_ranges(db: Database) -> None:
    table = make(db)
    drop(table, 0, 10)
    table.repartition(nyala.range_partition("k", bounds=[(10, 30)]))
    assert rows(table) == [(11, 3)] and db.stats().dropped_bytes == 0
    with pytest.raises(nyala.InvalidArgumentError, match="no dropped range"):
        undrop(table, 0, 10)


# --- crashes ---------------------------------------------------------------------------------------------------------

STEPS: list[Callable[[Database], object]] = [
    lambda db: db.drop_table("t"),
    lambda db: db.undrop_table("t"),
    lambda db: drop(db["t"], 0, 10),
    lambda db: undrop(db["t"], 0, 10),
    lambda db: db.drop_table("t"),
    lambda db: db.flush(),
    lambda db: db.purge_dropped(),
]


def test_a_power_cut_at_every_event(tmp_path: Path) -> None:
    """A table that is brought back after the power cut has all rows."""
    moments = []

    def create(db: Database) -> None:
        make(db)
        moments.append(db.now())

    def read(db: Database) -> Any:
        dropped = [(table.name, table.dropped) for table in db.dropped_tables()]
        return rows(db["t"]) if "t" in db else None, dropped

    def undrop_all(db: Database) -> None:
        if db.dropped_tables():
            assert rows(db.undrop_table("t"), at=moments[0]) == ROWS

    cut_power(tmp_path, create, STEPS, read, every=2, check=undrop_all)


# --- a bucket, and the command line ---------------------------------------------------------------------------------


def test_a_store_in_a_bucket(tmp_path: Path) -> None:
    """Drops and undrops work in a bucket."""
    with S3Server() as server:

        def connect(**options: Any) -> Database:
            return nyala.connect(
                "s3://bucket/store", storage_options=server.options, cache_dir=tmp_path / "cache", **options
            )

        with connect(group_interval=0, maintenance=False) as db:
            table = make(db)
            before = db.now()
            drop(table, 0, 10)
            db.drop_table("t")
            with connect(read_only=True) as reader:
                assert rows(reader.table("t", at=before)) == ROWS and reader.list_tables() == []
        with connect(group_interval=0, maintenance=False) as db:
            table = db.undrop_table("t")
            assert rows(table) == [(11, 3)] and rows(table, at=before) == ROWS
            undrop(table, 0, 10)
            assert rows(table) == ROWS and db.check().ok
            db.flush()
            db.drop_table("t")
            assert db.purge_dropped() > 0 and db.check().ok
        assert nyala.check("s3://bucket/store", storage_options=server.options).ok


def nyala_command(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["table", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_line(tmp_path: Path) -> None:
    """`nyala table` drops, lists, undrops and purges tables and ranges."""
    store = str(tmp_path / "s")
    with open_database(store) as db:
        make(db)
        before = db.now()
    assert "`nyala table undrop` can bring it back until 20" in nyala_command("drop", store, "t", "--yes")
    listed = json.loads(nyala_command("list", store, "--dropped", "--json"))
    assert [table["name"] for table in listed["tables"]] == ["t"] and listed["tables"][0]["dropped"] > before
    assert "recoverable until" in nyala_command("list", store, "--dropped")
    assert nyala_command("undrop", store, "t", "--as", "u") == "Brought back u with 2 rows.\n"
    nyala_command("alter", store, "u", "drop-range 0 10", "undrop-range 0 10", "drop-range 10 20 purge=true")
    assert "1 rows" in nyala_command("drop", store, "u", "--yes")
    assert nyala_command("purge", store, "u", "--yes").startswith("Removed ")
    result = CliRunner().invoke(cli, ["table", "undrop", store, "u"])
    assert result.exit_code != 0 and "no dropped table 'u'" in result.output
    result = CliRunner().invoke(cli, ["table", "purge", store])
    assert result.exit_code == 2 and "add --yes" in result.output
