"""Processes that share a store: each writes, and reads its own writes and those of the others."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import nyala
from nyala.errors import ConflictError, DuplicateKeyError, InvalidArgumentError, LockedError, StorageError
from nyala.handover import remote_writer
from nyala.tablet.store import Store
from tests.processes import Child, ChildError, children

TABLE = 'db.create_table("t", {"k": "int64", "v": nyala.column("int64", default=7), "s": "varchar(3)"}, "k")'


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[nyala.Database, Child]]:
    """A store that this process shares with a child process, which holds the lock."""
    path = tmp_path_factory.mktemp("shared") / "store"
    with children(path, 1) as [holder], nyala.connect(path) as db:
        yield db, holder


@pytest.fixture
def shared(store: tuple[nyala.Database, Child]) -> tuple[nyala.Database, Child]:
    """The shared store, with only the empty table `t`."""
    db, holder = store
    holder.run("for name in db.list_tables(): db.drop_table(name)\n" + TABLE)
    return db, holder


def content(db: nyala.Database, name: str = "t") -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in db[name].scan().to_arrow().to_pylist())


SEEN = "result = sorted(map(tuple, (row.values() for row in db['t'].scan().to_arrow().to_pylist())))"


def test_every_operation_on_rows(shared: tuple[nyala.Database, Child]) -> None:
    """After each call, this process and the holder read the written rows."""
    db, holder = shared
    table = db["t"]
    assert not db.read_only
    assert table.insert([(1, 1, "a"), (2, 2, "b")]).inserted == 2
    assert content(db) == [(1, 1, "a"), (2, 2, "b")]
    assert table.insert([(2, 5, "x"), (3, 3, "c")], on_conflict="ignore").ignored == 1
    result = table.upsert([{"k": 3, "v": 30}, {"k": 4, "s": "d"}])
    assert (result.inserted, result.updated) == (1, 1)
    assert table.scan(at=result).to_arrow().num_rows == 4
    assert table.update([{"k": 1, "v": None}]).updated == 1
    assert table.update([{"k": 9, "v": 1}], on_missing="ignore").ignored == 1
    assert table.delete([2, 4]).deleted == 2
    assert table.delete(9, on_missing="ignore").ignored == 1
    assert content(db) == [(1, None, "a"), (3, 30, "c")]
    assert [list(row) for row in content(db)] == holder.run(SEEN)
    assert table.update(set={"v": nyala.expr("k * 10"), "s": "new"}, where="k >= ?", params=[2]).updated == 1
    assert table.update(set={"v": 5}, where=nyala.col("v").is_null()).updated == 1
    assert content(db) == [(1, 5, "a"), (3, 30, "new")]
    assert table.delete(where="k < 2").deleted == 1
    before = db.now()
    assert table.delete(where="TRUE").deleted == 1
    assert table.restore(to=before).inserted == 1
    assert [change["k"] for change in table.changes(since=before).to_arrow().to_pylist()] == [3]
    assert content(db) == [(3, 30, "new")]


def test_lists_batches_and_streams(shared: tuple[nyala.Database, Child]) -> None:
    """A client writes lists of operations, batches and streams, and a failed batch writes nothing."""
    db, holder = shared
    result = db["t"].apply([("insert", {"k": 1}), ("update", {"k": 1, "s": "x"}), ("delete-ignore", 2)])
    assert (result.inserted, result.updated, result.ignored) == (1, 1, 1)
    assert content(db) == [(1, 7, "x")]
    db.create_table("other", {"k": "int64"}, "k")
    with db.batch() as batch:
        batch.insert("t", [(2, 2, "b")])
        batch.delete("t", 1)
        batch.insert("other", {"k": list(range(100))})
    assert len({result.timestamp for result in batch.results}) == 1
    assert [result.inserted for result in batch.results] == [1, 0, 100]
    assert holder.value("[len(db['other'].scan().to_arrow()), db['t'].count()]") == [100, 1]
    with (
        pytest.raises(DuplicateKeyError, match=r"insert into 'other'|1 of 2 rows failed"),
        db.batch() as batch,
    ):
        batch.upsert("t", [(5, 5, "e")])
        batch.insert("other", {"k": [1, 1000]})
    assert content(db) == [(2, 2, "b")] and db["other"].count() == 100
    reader = db["other"].scan().to_arrow().to_batches(max_chunksize=40)
    import pyarrow as pa

    stream = pa.RecordBatchReader.from_batches(reader[0].schema, reader)
    assert db["other"].upsert(stream).updated == 100


def test_conditions_and_messages(shared: tuple[nyala.Database, Child]) -> None:
    """`when`, `newest_by` and `message` have the same effect in a client as in the writer."""
    db, holder = shared
    db["t"].insert([(1, 5, "a"), (2, 5, "b")], message="from here")
    late = [{"k": 1, "v": 4, "s": "x"}, {"k": 2, "v": 6, "s": "y"}]
    result = db["t"].upsert(late, newest_by="v", message="newest")
    assert (result.updated, result.ignored) == (1, 1)
    assert db["t"].upsert(late, when="new.v > old.v").ignored == 2
    assert db["t"].delete([{"k": 2, "v": 9}], newest_by="v").deleted == 1
    assert db["t"].upsert([{"k": 2, "v": 8, "s": "z"}], newest_by="v").ignored == 1
    with db.transaction(message="together") as tx:
        tx["t"].upsert([{"k": 1, "v": 3}, {"k": 3, "v": 3}], newest_by="v")
        tx["t"].upsert([{"k": 3, "v": 4}, {"k": 4, "v": 4}, {"k": 1, "v": 0}], when="new.v > old.v")
        tx["t"].delete([{"k": 4, "v": 10}], newest_by="v")
    assert [(r.inserted, r.updated, r.deleted, r.ignored) for r in tx.results] == [
        (1, 0, 0, 1), (1, 1, 0, 1), (0, 0, 1, 0),
    ]  # fmt: skip
    assert db["t"].upsert([{"k": 4, "v": 9}], newest_by="v").ignored == 1, (
        "the sequence of the delete is stored"
    )
    assert content(db) == [(1, 5, "a"), (3, 4, None)]
    assert "together" in [commit.message for commit in db.commits()]
    assert "from here" in holder.value("[commit.message for commit in db.commits()]")


def test_errors_are_equal_to_those_of_the_holder(shared: tuple[nyala.Database, Child]) -> None:
    """A failed call raises the same class, message and rows in both processes."""
    db, holder = shared
    db["t"].insert([(1, 1, "a")])
    for call in [
        "db['t'].insert([(1, 1, 'a'), (2, 2, 'b')])",
        "db['t'].insert([{'k': None}, {'k': 2, 'v': 1}])",
        "db['t'].update([{'k': 2, 'v': 1}])",
        "db['t'].update([{'k': 1, 'v': 'text'}])",
        "db['t'].insert([{'k': 2, 'nothing': 1}])",
        "db['t'].update(set={'k': 1}, where='TRUE')",
        "db['t'].update(set={'v': 'text'})",
        "db['t'].update(set={'v': nyala.expr('v / 0')})",
        "db['t'].update(set={'v': 1}, where='nothing = 1')",
        "db['t'].delete(where=5)",
        "db['t'].apply([('insert', {'k': 1})])",
        "db['none'].insert([(1,)])",
        "db.create_table('t', {'k': 'int64'}, 'k')",
        "db.create_table('', {'k': 'int64'}, 'k')",
        "db.drop_table('none')",
        "db.rename_table('t', 't')",
        "db.copy_table('t', 't')",
        "db['t'].drop_column('k')",
        "db['t'].restore(to=db.now() - (1 << 60))",
        "db['t'].repartition(nyala.hash_partition('v', buckets=2))",
    ]:
        with pytest.raises(ChildError) as there:
            holder.run(call)
        with pytest.raises(nyala.Error) as here:
            eval(call, {"db": db, "nyala": nyala})
        assert (type(here.value).__name__, str(here.value)) == (
            there.value.name, str(there.value).partition(": ")[2]
        ), call  # fmt: skip
    with pytest.raises(DuplicateKeyError) as caught:
        db["t"].insert([(1, 1, "a"), (2, 2, "b")])
    assert caught.value.errors is not None and caught.value.errors["row"].to_pylist() == [0]
    collected = db["t"].insert([{"k": 1}, {"k": None}, {"k": 3}], errors="collect")
    assert collected.inserted == 1
    assert collected.errors["code"].to_pylist() == ["already-present", "null"]
    assert [row[0] for row in content(db)] == [1, 3]


def test_keys_that_are_too_long_for_a_varchar(shared: tuple[nyala.Database, Child]) -> None:
    """A too long key is not cut: an insert gives a row error, and a delete does not find the key."""
    db, _ = shared
    db.create_table("long", {"k": "varchar(2)", "v": "varchar(2)"}, "k").insert([("ab", "abc")])
    assert content(db, "long") == [("ab", "ab")]
    assert db["long"].insert([("abc", "")], errors="collect").errors["code"].to_pylist() == [
        "value-too-large"
    ]
    assert db["long"].delete([("abc",)], on_missing="ignore").ignored == 1
    assert db["long"].apply([("delete-ignore", "abc"), ("delete", "ab")]).deleted == 1


def test_tables_are_created_altered_and_dropped(shared: tuple[nyala.Database, Child]) -> None:
    db, holder = shared
    made = db.create_table(
        "made", {"a": "string", "b": "timestamp"}, "a",
        partition_by=[nyala.hash_partition("a", buckets=2)], comment="c", history="1h",
    )  # fmt: skip
    assert holder.value("[db['made'].description.partition_text, db['made'].description.comment]") == [
        "HASH (a) BUCKETS 2", "c",
    ]  # fmt: skip
    assert db.create_table("made", {"a": "string", "b": "timestamp"}, "a", exist_ok=True).count() == 0
    with made.alter() as alteration:
        alteration.add_column("c", "int32", nullable=False, default=3)
        alteration.rename_column("b", "bb")
        alteration.rename("remade")
    assert made.name == "remade" and made.columns == ["a", "bb", "c"]
    holder.run("db['remade'].insert([{'a': 'x'}])")
    assert content(db, "remade") == [("x", None, 3)]
    assert content(db.copy_table("remade", "copy")._database, "copy") == [("x", None, 3)]
    db["copy"].repartition(nyala.hash_partition("a", buckets=3))
    assert holder.value("len(db['copy'].tablets())") == 3
    assert content(db, "copy") == [("x", None, 3)]
    db.create_table("ranges", {"k": "int64"}, "k", partition_by=nyala.range_partition("k", bounds=[(0, 10)]))
    with db["ranges"].alter() as alteration:
        alteration.add_range(10, 20)
    db["ranges"].insert([(5,), (15,)])
    with db["ranges"].alter() as alteration:
        alteration.drop_range(0, 10)
    assert content(db, "ranges") == [(15,)]
    with db["ranges"].alter() as alteration:
        alteration.undrop_range(0, 10)
        alteration.drop_range(10, 20, purge=True)
    assert content(db, "ranges") == [(5,)]
    db.rename_table("ranges", "r")
    db.drop_table("r")
    db.drop_table("r", missing_ok=True)
    assert content(db.undrop_table("r", "rr")._database, "rr") == [(5,)]
    assert content(db.clone_table("rr", "clone")._database, "clone") == [(5,)]
    db.drop_table("clone", purge=True)
    db.drop_table("rr")
    assert db.purge_dropped("rr") > 0 and not holder.value(
        "[t.name for t in db.dropped_tables() if t.name == 'rr']"
    )
    tag = db.tag("here")
    assert holder.value("[(t.name, t.timestamp) for t in db.tags()]") == [["here", tag.timestamp]]
    db.drop_tag("here")
    db.drop_tag("here", missing_ok=True)
    assert holder.value("db.list_tables()") == db.list_tables() == ["copy", "remade", "t"]


READS_AT_A_TAG: list[tuple[int, Callable[[nyala.Database, nyala.Table], object]]] = [
    (1, lambda db, _: db.table("t", at="daily").count()),
    (2, lambda _, table: table.count(at="daily")),
    (3, lambda _, table: table.at("daily").count()),
    (4, lambda _, table: table.scan(at=" daily ").to_arrow().num_rows),
    (1, lambda _, table: table.history(5, until="daily").num_rows),
    (0, lambda _, table: table.changes(since="daily").to_arrow().num_rows),
    (7, lambda _, table: len(table.commits(until="daily"))),
    (0, lambda db, _: len(db.commits(since="daily"))),
    (0, lambda _, table: table.history(1, since="daily").num_rows),
    (10, lambda db, _: db.snapshot(at="daily")["t"].count()),
    (11, lambda db, _: db.sql("SELECT count(*) FROM t", at="daily").fetchall()[0][0]),
]


@pytest.mark.parametrize("read_only", [False, True])
def test_a_tag_that_another_process_has_just_set_again(
    shared: tuple[nyala.Database, Child], read_only: bool
) -> None:
    """Every call that takes a tag uses its present moment, although this process has read nothing since."""
    sharing, holder = shared
    with nyala.connect(sharing.path, read_only=read_only) as db:
        table = db["t"]
        for key, (expected, read) in enumerate(READS_AT_A_TAG, start=1):
            holder.run(
                f"db['t'].insert({{'k': [{key}]}}); db.drop_tag('daily', missing_ok=True); db.tag('daily')"
            )
            assert read(db, table) == expected, key
        if not read_only:
            holder.run("db['t'].delete([1]); db.drop_tag('daily'); db.tag('daily'); db['t'].delete([2, 3])")
            assert table.restore(to="daily").inserted == 2
        holder.run("db.drop_tag('daily'); db.tag('weekly')")
        with pytest.raises(InvalidArgumentError, match="no tag of this name; its tags are: weekly"):
            table.count(at="daily")
        holder.run("db.drop_tag('weekly')")
        assert db.tags() == []


def test_two_processes_create_and_alter_tables_at_once(shared: tuple[nyala.Database, Child]) -> None:
    """No table and no column is lost, although each process computes its alterations itself."""
    db, holder = shared
    holder.begin(
        "for i in range(6): db.create_table(f'h{i}', {'k': 'int64'}, 'k'); db['t'].add_column(f'h{i}', 'int8')"
    )
    for number in range(6):
        db.create_table(f"o{number}", {"k": "int64"}, "k")
        db["t"].add_column(f"o{number}", "int8")
    holder.end()
    names = {f"{who}{number}" for who in "ho" for number in range(6)}
    assert set(db.list_tables()) == names | {"t"} == set(holder.value("db.list_tables()"))
    assert set(db["t"].columns) == names | {"k", "v", "s"}


def test_the_holder_does_the_maintenance(shared: tuple[nyala.Database, Child]) -> None:
    db, holder = shared
    db.flush()
    db["t"].insert([(1, 1, "a")])
    assert db["t"].flush().rows == 1 and db.flush().rows == 0
    db["t"].update([{"k": 1, "v": 2}])
    done: list[Any] = []
    assert db["t"].compact(progress=lambda *at: done.append(at)).bytes_after > 0
    assert done[-1] == (100, 100)
    assert not db["t"].vacuum(dry_run=True).rowsets_left_out
    db.maintenance.pause()
    assert db.maintenance.status().paused and holder.value("db.maintenance.status().paused")
    db.maintenance.resume()
    assert not holder.value("db.maintenance.status().paused")
    assert db.stats().log_bytes > 0, "the statistics of the holder"
    assert db.check().problems == ()


def test_a_batch_above_the_limit_of_the_log(shared: tuple[nyala.Database, Child]) -> None:
    """The rows are sent as a staged file, and committed as files. No staged file remains."""
    db, holder = shared
    count = 1_200_000
    db.create_table("big", {"k": "int64", "v": "int64", "w": "string"}, "k")
    import pyarrow as pa

    numbers = pa.array(range(count))
    data = pa.table({"k": numbers, "v": numbers, "w": pa.array(["0123456789" * 6] * count)})
    assert data.nbytes > 64 << 20
    assert db["big"].insert(data).inserted == count
    assert db["big"].stats().memory_bytes == 0, "the batch is in files"
    assert db["big"].count() == count == holder.value("db['big'].count()")
    assert os.listdir(Path(db.path) / "staging") == []


def test_transactions_give_auto_incrementing_keys(shared: tuple[nyala.Database, Child]) -> None:
    """Each process counts the keys itself. If both use the same key, the second commit is a conflict."""
    db, holder = shared
    table = db.create_table("keyless", {"v": "int64"})
    with db.transaction() as tx:
        assert tx["keyless"].insert([(1,), (2,)]).inserted == 2
        assert tx["keyless"].apply([("insert", {"v": 3})]).inserted == 1
        tx["keyless"].delete(where="v = 2")
    assert [result.inserted for result in tx.results] == [2, 1, 0]
    assert sorted(table.to_arrow()["v"].to_pylist()) == [1, 3]
    tries = []

    def insert(tx: nyala.Transaction) -> None:
        tries.append(tx["keyless"].insert([(4,)]).inserted)
        if len(tries) == 1:
            holder.run("db['keyless'].insert([(5,)])")

    db.run(insert)
    assert tries == [1, 1]
    assert sorted(table.to_arrow()["v"].to_pylist()) == [1, 3, 4, 5]


def test_returning_gives_auto_incrementing_keys(shared: tuple[nyala.Database, Child]) -> None:
    """Two processes insert in turn, and RETURNING gives each the stored keys of its rows."""
    db, holder = shared
    db.create_table("keyless", {"v": "int64"})
    insert = "INSERT INTO keyless VALUES ({0}), ({0} + 1) RETURNING v, auto_incrementing_id"
    given = []
    for number in range(0, 40, 4):
        given += map(list, db.sql(insert.format(number)).fetchall())
        given += holder.value(f"db.sql({insert.format(number + 2)!r}).fetchall()")
    assert given == [[number, number + 1] for number in range(40)]
    stored = db.sql("SELECT v, auto_incrementing_id FROM keyless ORDER BY v").fetchall()
    assert list(map(list, stored)) == given


def test_transactions(shared: tuple[nyala.Database, Child]) -> None:
    """A transaction reads one snapshot and its own writes. Other processes see them after the commit."""
    db, holder = shared
    db["t"].insert([(1, 1, "a"), (2, 2, "b")])
    with db.transaction() as tx:
        tx["t"].update(set={"v": nyala.expr("v + 10")}, where="TRUE")
        tx["t"].insert([(3, 3, "c")])
        tx["t"].apply([("delete", 1), ("upsert", {"k": 4, "s": "d"})])
        holder.run("db['t'].insert([(9, 9, 'z')])")
        assert [row[:2] for row in sorted(tuple(r.values()) for r in tx["t"].scan().to_arrow().to_pylist())] == [
            (2, 12), (3, 3), (4, 7),
        ]  # fmt: skip
        assert holder.value("db['t'].count()") == 3
    assert [row[:2] for row in content(db)] == [(2, 12), (3, 3), (4, 7), (9, 9)]
    assert len({result.timestamp for result in tx.results}) == 1
    with pytest.raises(ConflictError, match="key k=2") as caught, db.transaction() as tx:
        tx["t"].update([{"k": 2, "v": 0}])
        holder.run("db['t'].update([{'k': 2, 'v': 5}])")
    assert caught.value.table == "t" and caught.value.keys is not None
    assert caught.value.keys.to_pylist() == [{"k": 2}]
    with pytest.raises(ConflictError, match="was altered"), db.transaction() as tx:
        tx["t"].update([{"k": 2, "v": 0}])
        holder.run("db['t'].add_column('w', 'int8')")
    with pytest.raises(ConflictError, match="was dropped"), db.transaction() as tx:
        tx["t"].update([{"k": 2, "v": 0}])
        holder.run("db.drop_table('t')\n" + TABLE)
    assert content(db) == []
    tx = db.transaction(timeout=0.05)
    time.sleep(0.1)
    with pytest.raises(nyala.TransactionEndedError, match=r"idle for more than 0\.05 s"):
        tx["t"]
    with db.transaction() as tx:
        assert list(tx) == ["t"]
    idle = db.transaction(timeout=0.05)
    assert holder.run("while db._writer().pins.held: time.sleep(0.01)\nresult = 1") == 1, (
        "an idle transaction ends although nobody calls it"
    )
    assert idle._open._pin.connection is None
    assert holder.run("import gc; gc.collect(); result = len(db._writer().pins.held)") == 0


def test_a_pin_ends_with_its_process(shared: tuple[nyala.Database, Child]) -> None:
    """After a client was killed, the holder keeps neither its pin nor its locks."""
    db, holder = shared
    with children(Path(db.path), 1) as [client]:
        client.run("tx = db.transaction(timeout=1000)")
        assert holder.value("len(db._writer().pins.held)") == 1
        client.run("alone = db._writing().alone(); alone.__enter__()")
        client.kill()
        assert db["t"].insert([(1, 1, "a")]).inserted == 1, "the commit lock is free"
        assert holder.run("while db._writer().pins.held: time.sleep(0.01)\nresult = 1") == 1


def test_alone_ends_after_a_limited_time(shared: tuple[nyala.Database, Child]) -> None:
    """The holder releases the locks of `alone` after HOLD_MAX_S, and other processes write again."""
    db, holder = shared
    holder.run("from nyala.handover import writer_session; writer_session.HOLD_MAX_S = 0.3")
    with db._writing().alone():
        begun = time.monotonic()
        holder.run("db['t'].insert([(1, 1, 'a')])")
        assert 0.2 < time.monotonic() - begun < 5
        with db.transaction() as tx:  # an ordinary transaction, beside other writers
            tx["t"].insert([(2, 2, "b")])
    assert [row[0] for row in content(db)] == [1, 2]
    holder.run("writer_session.HOLD_MAX_S = 10.0")


def test_an_idle_process_keeps_no_old_files(
    shared: tuple[nyala.Database, Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder can delete replaced files although this process has the store open."""
    db, holder = shared
    holder.run("for k in range(3): db['t'].insert([(k, k, 'a')]); db.flush()")
    assert db["t"].count() == 3
    scan = db["t"].scan()
    monkeypatch.setattr(remote_writer, "_VIEW_IDLE_S", 0.0)
    holder.run("db['t'].compact()")
    assert scan.to_arrow().num_rows == 3, "a scan keeps its files"
    del scan
    gc.collect()
    holder.run("while db.stats().garbage_files: db._writer().collect_garbage(); time.sleep(0.05)")
    assert db["t"].count() == 3


def test_a_write_that_never_becomes_visible(
    shared: tuple[nyala.Database, Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read waits for this process's own writes for a limited time, and then raises once."""
    db, _ = shared
    monkeypatch.setattr(remote_writer, "_VISIBLE_TIMEOUT_S", 0.1)
    reader = db._store
    assert isinstance(reader, remote_writer.SharedReader)
    reader.note_written(db.now() + (1 << 40))
    with pytest.raises(
        StorageError, match=r"did not make the last write of this process visible within 0\.1 s"
    ):
        db["t"].count()
    assert db["t"].count() == 0


def test_a_forked_child_is_refused_and_leaves_the_parents_transaction(
    shared: tuple[nyala.Database, Child],
) -> None:
    db, holder = shared
    tx = db.transaction()
    tx["t"].insert([(1, 1, "a")])

    def work() -> None:
        with pytest.raises(StorageError, match="forked child"):
            db["t"].insert([(2, 2, "b")])

    assert os.waitpid(in_forked_child(work), 0)[1] == 0
    assert holder.value("len(db._writer().pins.held)") == 1
    tx.commit()
    assert content(db) == [(1, 1, "a")]


def in_forked_child(work: Callable[[], object]) -> int:
    """Fork a child that calls `work` and exits with 0 if it succeeds. Return its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def test_a_forked_child_of_the_writer_connects_and_writes_through_its_parent(tmp_path: Path) -> None:
    with nyala.connect(tmp_path / "s") as db:
        db.create_table("t", {"k": "int64"}, "k")

        def work() -> None:
            with nyala.connect(tmp_path / "s") as mine:
                assert mine["t"].insert([(1,)]).inserted == 1 == mine["t"].count()

        assert os.waitpid(in_forked_child(work), 0)[1] == 0
        assert db["t"].count() == 1


def test_a_forked_child_does_not_keep_the_lock_of_its_killed_parent(tmp_path: Path) -> None:
    with children(tmp_path / "s", 1) as [holder]:
        holder.run(TABLE + ".insert([(1, 1, 'a')])")
        pid = holder.run(
            "result = os.fork()\nif not result:\n    os.closerange(0, 3)\n    time.sleep(60)\n    os._exit(0)"
        )
        try:
            holder.kill()
            with nyala.connect(tmp_path / "s", share=False) as db:
                assert db["t"].insert([(2, 2, "b")]).inserted == 1
        finally:
            os.kill(pid, signal.SIGKILL)


# --- which process is the writer -----------------------------------------------------------------------------------


def test_share_false_is_refused_beside_a_writer(shared: tuple[nyala.Database, Child]) -> None:
    db, holder = shared
    with pytest.raises(LockedError, match=f"already written by process {holder.process.pid}"):
        nyala.connect(db.path, share=False)
    with pytest.raises(nyala.InvalidArgumentError, match="share takes True or False"):
        nyala.connect(db.path, share=None)  # type: ignore[arg-type]
    with nyala.connect(db.path) as again:
        assert again._handle.opened is db._handle.opened
    with pytest.raises(nyala.InvalidArgumentError, match="memory_limit"):
        nyala.connect(db.path, memory_limit="2GB")


def test_a_process_becomes_the_writer(tmp_path: Path) -> None:
    """After the holder was killed, all handles of a process write themselves. Older scans still work."""
    with children(tmp_path / "s", 2) as [holder, third]:
        holder.run(TABLE + ".insert([(1, 1, 'a')])")
        with nyala.connect(tmp_path / "s") as db, nyala.connect(tmp_path / "s") as second:
            scan = db["t"].scan()
            tx = db.transaction()
            tx["t"].insert([(5, 5, "e")])
            holder.kill()
            assert second["t"].insert([(2, 2, "b")]).inserted == 1
            tx.commit()
            assert isinstance(second._store, Store) and second._store is db._store
            assert second.maintenance.status().paused is False
            assert scan.to_arrow().num_rows == 1
            assert [row[0] for row in content(db)] == [1, 2, 5]
            assert third.value("db['t'].insert([(3, 3, 'c')]).inserted") == 1
            assert third.value("db['t'].count()") == 4 == second["t"].count()
        assert third.value("db['t'].insert([(4, 4, 'd')]).inserted") == 1
        assert third.value("type(db._store).__name__") == "Store"


def test_a_process_reads_after_the_writer_was_killed(tmp_path: Path) -> None:
    with children(tmp_path / "s", 1) as [holder], nyala.connect(tmp_path / "s") as db:
        holder.run(TABLE + ".insert([(1, 1, 'a')])")
        holder.kill()
        assert content(db) == [(1, 1, "a")]
        assert not isinstance(db._store, Store), "a read does not take the lock"


def test_closing_releases_pins_and_leases(tmp_path: Path) -> None:
    with children(tmp_path / "s", 1) as [holder]:
        holder.run(TABLE)
        with nyala.connect(tmp_path / "s") as db:
            kept = db.transaction(timeout=1000)
        with pytest.raises(nyala.Error):
            kept["t"]
        assert holder.run("while db._writer().pins.held: time.sleep(0.01)\nresult = 1") == 1
        with pytest.raises(StorageError, match="is closed"):
            db["t"].insert([(1, 1, "a")])
        assert not [name for name in os.listdir(tmp_path / "s" / "leases") if str(os.getpid()) in name]
        gc.collect()


def test_a_stopped_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the holder is stopped, writes raise after the timeout and reads work. Later all works again."""
    with children(tmp_path / "s", 1) as [holder], nyala.connect(tmp_path / "s") as db:
        holder.run(TABLE + ".insert([(1, 1, 'a')])")
        assert db["t"].count() == 1
        monkeypatch.setattr(remote_writer, "TAKE_TIMEOUT_S", 0.3)
        holder.signal(signal.SIGSTOP)
        with pytest.raises(
            StorageError, match=r"did not take the request within 0\.3 s; nothing was done"
        ) as caught:
            db["t"].insert([(2, 2, "b")])
        assert caught.value.outcome is None
        assert db["t"].count() == 1
        with children(tmp_path / "s", 1, setup="pass") as [late]:
            late.run("from nyala.handover import remote_writer; remote_writer.TAKE_TIMEOUT_S = 0.3")
            with pytest.raises(
                ChildError, match=f"already written by process {holder.process.pid}, and cannot be"
            ):
                late.run("nyala.connect(path)")
        holder.signal(signal.SIGCONT)
        monkeypatch.undo()
        assert db["t"].insert([(2, 2, "b")]).inserted == 1


def test_a_holder_of_an_older_version(tmp_path: Path) -> None:
    """`connect` sees the version in the holder's HELLO, and raises an error with advice."""
    setup = "from nyala.handover import channel; channel.HELLO = b'NYH1'; db = nyala.connect(path)"
    with (
        children(tmp_path / "s", 1, setup) as [holder],
        pytest.raises(LockedError, match=r"already written by process \d+, and .*another version of Nyala"),
    ):
        holder.run(TABLE)
        nyala.connect(tmp_path / "s")


def test_the_limits_of_the_holder_apply(tmp_path: Path) -> None:
    setup = "db = nyala.connect(path, limits=nyala.Limits(max_columns=2))"
    with children(tmp_path / "s", 1, setup), nyala.connect(tmp_path / "s") as db:
        with pytest.raises(nyala.SchemaError, match="max_columns"):
            db.create_table("t", {"a": "int64", "b": "int64", "c": "int64"}, "a")
        db.create_table("t", {"a": "int64", "b": "int64"}, "a")
        with pytest.raises(nyala.SchemaError, match="max_columns"):
            db["t"].add_column("c", "int64")


def test_a_call_that_needs_the_lock_raises(shared: tuple[nyala.Database, Child]) -> None:
    db, _ = shared
    with pytest.raises(LockedError, match="another process holds the store"):
        db._writer()
