"""Tables whose key ends in `auto_incrementing_id`: the store numbers the rows, and uses no number twice."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import nyala
from nyala import Database
from nyala.cli.app import app
from nyala.testing.s3_server import S3Server
from tests.api.power_cuts import cut_power
from tests.support import open_database, rows

ID = "auto_incrementing_id"


def by_host(db: Database, **options: Any) -> nyala.Table:
    split = nyala.range_partition("host", splits=["m"])
    return db.create_table(
        "t", {"host": "string", "v": "int64"}, ["host"], options.pop("split", split), unique=False, **options
    )


def test_a_table_without_a_key(db: Database) -> None:
    """A table that is created without a key gets the key `auto_incrementing_id`, and counts its rows from 1."""
    table = db.create_table("t", {"text": "string", "n": "int64"})
    assert table.primary_key == [ID] and table.columns == [ID, "text", "n"]
    assert table.schema.field(ID) == pa.field(ID, pa.int64(), nullable=False)
    for data in (
        {"text": ["a", "b"]},
        [{"text": "a", "n": 1}],
        [("c", 3), ("c", 3)],
        pa.table({"text": ["d"], "n": [4]}),
        pa.table({"text": pa.array([], pa.string())}),
    ):
        table.insert(data)
    assert [row[0] for row in rows(table)] == [1, 2, 3, 4, 5, 6]
    assert table.get(4) == {ID: 4, "text": "c", "n": 3}
    assert table.update({ID: [4], "n": [7]}).updated == 1 and table.delete(5).deleted == 1
    assert rows(table)[3:] == [(4, "c", 7), (6, "d", 4)]
    assert db.sql("SELECT count(*), max(auto_incrementing_id) FROM t").fetchall() == [(5, 6)]
    feed = table.changes(0).to_arrow()
    assert sorted(feed[ID].to_pylist()) == [1, 2, 3, 4, 6]


def test_a_key_that_is_not_unique(db: Database) -> None:
    """Each tablet has a counter, as in Kudu."""
    table = by_host(db)
    assert table.primary_key == ["host", ID] and not table.description.unique
    table.insert([("a", 1), ("z", 2), ("a", 3), ("y", 4), ("a", 5)])
    table.insert({"host": ["a"], "v": [6]})
    assert rows(table) == [
        ("a", 1, 1), ("a", 2, 3), ("a", 3, 5), ("a", 4, 6), ("y", 2, 4), ("z", 1, 2),
    ]  # fmt: skip
    assert table.count(where="host = 'a'") == 4 and table.get(("a", 2))["v"] == 3  # type: ignore[index]


def test_invalid_calls_are_refused(db: Database) -> None:
    table = by_host(db)
    table.insert([("a", 1)])
    for call, message in (
        (
            lambda: table.insert([{"host": "a", ID: 7, "v": 1}]),
            "the store gives the values.*leave the column out",
        ),
        (
            lambda: table.upsert([{"host": "a", "v": 1}]),
            "upsert needs the whole key.*or create the table with unique=True",
        ),
        (
            lambda: db.create_table("keyless", {"v": "int64"}).upsert([{"v": 1}]),
            "upsert needs the whole key.*or create the table with primary_key=",
        ),
        (lambda: table.apply([("insert", {"host": "a", ID: 3})]), "the store gives the values"),
        (lambda: table.rename_column(ID, "id"), "is reserved"),
        (lambda: table.add_column(ID, "int64"), "is reserved|already"),
        (lambda: table.drop_column(ID), "part of the primary key"),
        (lambda: db.create_table("u", {ID: "int64", "v": "int64"}, [ID]), "is reserved"),
        (lambda: db.create_table("u", {"v": "int64"}, unique=True), "needs the names of the key columns"),
        (lambda: db.create_table("u", {"v": "int64"}, unique="no"), "unique takes True or False"),  # type: ignore[arg-type]
        (lambda: db.create_table("u", {}), "no columns"),
        (
            lambda: db.create_table("u", {"v": "int64"}, partition_by=nyala.hash_partition(ID, buckets=2)),
            "which the store fills with numbers",
        ),
    ):
        with pytest.raises(nyala.Error, match=message):
            call()
    with pytest.raises(nyala.WriteError):
        table.update([{"host": "a", "v": 1}])
    assert rows(table) == [("a", 1, 1)] and "u" not in db


def test_failed_rows_use_no_value(db: Database) -> None:
    table = by_host(db, split=nyala.range_partition("host", bounds=[("a", "n")]))
    result = table.insert({"host": ["b", "z", "c", None], "v": [1, 2, 3, 4]}, errors="collect")
    assert result.inserted == 2 and result.errors["row"].to_pylist() == [1, 3]
    assert result.errors.column_names[4:] == ["host", ID]
    assert rows(table) == [("b", 1, 1), ("c", 2, 3)]


def test_lists_of_operations(db: Database) -> None:
    """Inserts in a list get their numbers in the order of the list, and an upsert may give one itself."""
    table = by_host(db)
    table.insert([("a", 1)])
    result = table.apply(
        [
            ("insert", {"host": "a", "v": 2}),
            ("update", {"host": "a", ID: 1, "v": 10}),
            ("insert", ("z", 3)),
            ("upsert", {"host": "a", ID: 9, "v": 9}),
            ("delete", ("a", 2)),
            ("insert-ignore", {"host": "a"}),
        ]
    )
    assert not len(result.errors)
    assert rows(table) == [("a", 1, 10), ("a", 9, 9), ("a", 10, None), ("z", 1, 3)], "in order, as in Kudu"
    table.upsert([("a", 20, 1), ("a", 15, 1)])
    table.insert([("a", 11)])
    assert rows(table)[-2][:2] == ("a", 21)


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("how", ["log", "flush", "compact", "deleted"])
def test_no_value_is_used_twice_after_a_reopen(tmp_path: Path, how: str, direct: bool) -> None:
    """This holds even if the rows with the greatest values were deleted and then removed from the files."""
    options: dict[str, Any] = {"direct_commit_bytes": 10} if direct else {}
    given: set[tuple[str, int]] = set()
    for _ in range(3):
        with open_database(tmp_path / "s", **options) as db:
            table = db["t"] if "t" in db else by_host(db, history=0)
            before = db.now()
            del before
            table.insert([("a", 1), ("a", 2), ("z", 3)])
            found = {(row[0], row[1]) for row in rows(table)}
            assert found.isdisjoint(given) if how == "deleted" else found > given
            given |= found
            assert len({number for host, number in given if host == "a"}) % 2 == 0
            if how == "deleted":
                table.delete(where="TRUE")
            if how != "log":
                db.flush()
            if how in ("compact", "deleted"):
                table.compact()
                table.vacuum()
            assert db.check().ok
    assert nyala.check(tmp_path / "s").ok


def test_copies_clones_and_backups_continue_the_numbers(db: Database, tmp_path: Path) -> None:
    """Copies, clones, repartitions, backups and restores keep the values, and new rows get greater ones."""
    table = by_host(db)
    table.insert([("a", 1), ("a", 2), ("z", 3), ("z", 4), ("z", 5)])
    before, expected = db.now(), rows(table)
    table.delete(where="v = 2")
    assert table.restore(to=before).inserted == 1 and rows(table) == expected
    made = [db.copy_table("t", "copy"), db.clone_table("t", "clone")]
    db.backup(tmp_path / "backup")
    nyala.restore_backup(tmp_path / "backup", tmp_path / "restored")
    table.repartition(nyala.hash_partition("host", buckets=3))
    like = db.create_table("like", like=table)
    assert like.schema == table.schema and like.primary_key == table.primary_key
    like.insert([("a", 1)])
    assert rows(like) == [("a", 1, 1)]
    for each in (table, *made):
        assert rows(each) == expected
        each.insert([("a", 9), ("z", 9)])
        assert len(rows(each)) == 7
    with nyala.connect(tmp_path / "restored") as restored:
        assert rows(restored["t"]) == expected and restored["t"].primary_key == table.primary_key
        restored["t"].insert([("a", 9), ("z", 9)])
        assert len(rows(restored["t"])) == 7


def test_transactions_and_batches(db: Database) -> None:
    """A batch or transaction continues the numbers of the rows before it."""
    table = by_host(db)
    with db.batch() as batch:
        batch.insert("t", [("a", 1)])
        batch.insert("t", [("a", 2)])
    with db.transaction() as tx:
        tx["t"].insert([("a", 3)])
        seen = [row["v"] for row in tx["t"].scan(order_by_key=True).to_arrow().to_pylist()]
    assert seen == [1, 2, 3] and [row[2] for row in rows(table)] == [1, 2, 3]


def test_threads_get_different_values(db: Database) -> None:
    table = db.create_table("t", {"v": "int64"})

    def write() -> None:
        for number in range(20):
            table.insert({"v": [number] * 10})

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [row[0] for row in rows(table)] == list(range(1, 801))


def test_a_power_cut_at_every_event(tmp_path: Path) -> None:
    """A row that is inserted after the power cut gets a new number."""

    def insert(db: Database) -> None:
        before = rows(db["t"])
        db["t"].insert({"v": [9]})
        (number,) = {number for number, _ in rows(db["t"])} - {number for number, _ in before}
        assert number > max((number for number, _ in before), default=0)

    states = cut_power(
        tmp_path,
        lambda db: db.create_table("t", {"v": "int64"}, history=0),
        [
            lambda db: db["t"].insert({"v": [1, 2]}),
            lambda db: db.flush(),
            lambda db: db["t"].insert({"v": [3]}),
            lambda db: db["t"].delete(where="TRUE"),
            lambda db: db.flush(),
            lambda db: db["t"].compact(),
            lambda db: db["t"].vacuum(),
        ],
        lambda db: rows(db["t"]),
        every=3,
        check=insert,
    )
    assert states[3] == [(1, 1), (2, 2), (3, 3)]


def test_values_in_a_bucket(tmp_path: Path) -> None:
    """A store in a bucket continues the numbers after a reopen."""
    with S3Server() as server:
        for count in (1, 2):
            with nyala.connect(
                "s3://bucket/store", storage_options=server.options, cache_dir=tmp_path / "cache",
                group_interval=0, maintenance=False,
            ) as db:  # fmt: skip
                table = db["t"] if "t" in db else db.create_table("t", {"v": "int64"})
                table.insert({"v": [count]})
                assert rows(table) == [(number, number) for number in range(1, count + 1)]


def test_the_command_line_loads_rows_without_a_key(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("host,v\na,1\na,1\n")
    store, file = str(tmp_path / "s"), str(tmp_path / "rows.csv")

    def load(*options: str) -> str:
        result = CliRunner().invoke(app, ["table", "load", store, *options])
        return result.output if result.exit_code == 0 else f"failed: {result.output}"

    assert "2 inserted" in load("t", file, "--create", "--not-unique")
    assert "2 inserted" in load("t", file)
    assert "2 inserted" in load("u", file, "--create", "--key", "host", "--not-unique", "--hash", "host/2")
    assert "failed: " in load("v", file, "--create")
    with open_database(store) as db:
        assert [row[:2] for row in rows(db["t"])] == [(number, "a") for number in (1, 2, 3, 4)]
        assert db["u"].primary_key == ["host", ID]
