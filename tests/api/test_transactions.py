"""Transactions: their reads, writes, conflicts and ends.

`tests/unit/tablet/test_conflicts.py` tests the places where another writer's change can be stored,
`tests/model/test_transaction_model.py` runs random histories, and `tests/scripts/transactions/` has examples."""

from __future__ import annotations

import contextlib
import gc
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import nyala
from nyala.api.database import Database
from nyala.api.scan import read_token
from nyala.errors import (
    ConflictError,
    DuplicateKeyError,
    InvalidArgumentError,
    KeyNotFoundError,
    StorageError,
    TableNotFoundError,
    TransactionEndedError,
)
from nyala.tablet.compaction.lifecycle import compact, run_here
from nyala.tablet.compaction.plans import MajorPlan
from nyala.tablet.flush.lifecycle import flush
from tests.support import folder_in_memory, key_value_table, open_database, rows

Rows = dict[int, tuple[int | None, str | None]]
SCHEMA = {"k": "int64", "v": "int64", "s": "string"}
PARTITIONS = {
    "one tablet": (),
    "hash and ranges": [nyala.hash_partition("k", buckets=2), nyala.range_partition("k", splits=[20])],
}


@pytest.fixture
def path() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder / "s"


def _in_thread(action: Callable[[], object]) -> None:
    """Run `action` in another thread, as another writer."""
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


# ── reads ───────────────────────────────────────────────────────────────────────────────────────────────────


def _major(db: Database) -> None:
    """Merge the REDO of column v into a part, with UNDO."""
    store = db._writer()
    for tablet in store.root.table("t").tablets:
        for rowset in tablet.rowsets:
            number = store.root.table("t").schema.by_name("v").id
            if any(number in file.column_ids for file in rowset.redo):
                table_id = store.root.table("t").id
                compact(store, table_id, tablet.id, MajorPlan(rowset.id, (number,), 1.0), run_here(store))


def _change(table: Any) -> None:
    """Update, delete and insert rows again, so that there are old versions and ghosts."""
    table.upsert([(k, -k, "first") for k in range(0, 40, 3)])
    table.delete([6, 9, 12])
    table.insert([(9, 9, "again")])


LAYOUTS: dict[str, Callable[[Database, Any], object]] = {
    "memory": lambda db, t: _change(t),
    "ghosts on disk": lambda db, t: (t.flush(), _change(t)),
    "redo": lambda db, t: (t.flush(), _change(t), t.flush()),
    "undo and parts": lambda db, t: (t.flush(), _change(t), t.flush(), _major(db)),
    "merged": lambda db, t: (t.flush(), _change(t), t.compact()),
    "all of these": lambda db, t: (
        t.flush(), _change(t), t.compact(), t.update(set={"v": 7}, where="k < 9"), t.flush(), _major(db),
        t.upsert([(k, 3, "last") for k in (2, 50, 51)]), t.delete(51),
    ),
}  # fmt: skip


WAYS = {
    name: (layout, PARTITIONS["hash and ranges" if name in ("memory", "all of these") else "one tablet"])
    for name, layout in LAYOUTS.items()
}


def _tuples(found: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))


def _check_reads(transaction: Any, expected: Rows) -> None:
    """Compare the reads of a transaction with the rows that it should see."""
    table = transaction["t"]
    whole = [(k, *values) for k, values in sorted(expected.items())]
    some = [row for row in whole if row[1] is not None and row[1] > 0 and row[2] != "first"]
    where = "v > 0 AND s <> 'first'"
    assert rows(table) == whole
    assert _tuples(table.to_arrow()) == whole
    assert _tuples(table.to_reader().read_all()) == whole
    assert rows(table, where=where) == some
    assert rows(table, where="k >= 5 AND k < 21") == [row for row in whole if 5 <= row[0] < 21]
    assert table.count() == table.num_rows == len(whole)
    assert table.count(where) == len(some)
    assert table.scan(limit=4).to_arrow().num_rows == min(4, len(whole))
    ordered = table.scan(["k"], order_by_key=True, limit=5).to_arrow()["k"].to_pylist()
    assert ordered == [row[0] for row in whole[:5]]
    assert [tuple(row.values()) for row in table.head(3).to_pylist()] == whole[:3]
    keys = [*range(60), 1000]
    for k in (0, 3, 6, 8, 9, 21, 1000):
        row = table.get(k)
        assert (None if row is None else (row["v"], row["s"])) == expected.get(k), k
    found = table.get_many(keys)
    assert [tuple(row.values()) for row in found.to_pylist()] == [row for row in whole if row[0] in keys]
    with pytest.raises(KeyNotFoundError):
        table[-1]
    batches = [batch for token in table.scan().tokens() for batch in read_token(token)]
    assert sorted(row for batch in batches for row in zip(*batch.to_pydict().values(), strict=True)) == whole


def _check_engines(transaction: Any, expected: Rows) -> None:
    """Compare the reads of a transaction by SQL, DuckDB and polars with the rows that it should see."""
    table = transaction["t"]
    whole = [(k, *values) for k, values in sorted(expected.items())]
    some = [row for row in whole if row[1] is not None and row[1] > 0 and row[2] != "first"]
    sums = (len(whole), sum(row[1] or 0 for row in whole))
    assert transaction.sql("SELECT count(*), coalesce(sum(v), 0) FROM t").fetchone() == sums
    assert transaction.sql("SELECT k FROM t WHERE v > ? AND s <> 'first' ORDER BY k", [0]).fetchall() == [
        (row[0],) for row in some
    ]
    assert sorted(table.to_polars().rows()) == whole
    lazy = table.to_polars_lazy().filter((pl.col("v") > 0) & (pl.col("s") != "first"))
    assert sorted(lazy.collect().rows()) == some
    relation = table.to_duckdb(duckdb.connect())
    assert sorted(relation.filter("v > 0 AND s <> 'first'").fetchall()) == some


# (a statement of a transaction, its effect on the expected rows)
def _touch(rows: Rows, keys: Any, change: Callable[[int], tuple[Any, Any] | None]) -> None:
    for k in keys:
        new = change(k)
        if new is None:
            rows.pop(k, None)
        else:
            rows[k] = new


STATEMENTS: list[tuple[Callable[[Any], object], Callable[[Rows], object]]] = [
    (lambda t: t.update([{"k": 0, "v": 100}, {"k": 1, "v": None}]),
     lambda r: _touch(r, [0, 1], lambda k: (100 if k == 0 else None, r[k][1]))),
    (lambda t: t.delete([2, 3]), lambda r: _touch(r, [2, 3], lambda k: None)),
    (lambda t: t.insert([(3, 33, "new"), (55, 5, "new"), (1000, 5, "far")]),
     lambda r: _touch(r, [3, 55, 1000], lambda k: ({3: 33}.get(k, 5), "far" if k == 1000 else "new"))),
    (lambda t: t.insert([(6, 66, "new")]), lambda r: _touch(r, [6], lambda k: (66, "new"))),
    (lambda t: t.update(set={"v": nyala.expr("v + 1"), "s": "where"}, where="k BETWEEN 4 AND 15"),
     lambda r: _touch(r, [k for k in r if 4 <= k <= 15], lambda k: (r[k][0] + 1, "where"))),
    (lambda t: t.upsert([(k, k, "up") for k in range(14, 26)]),
     lambda r: _touch(r, range(14, 26), lambda k: (k, "up"))),
    (lambda t: t.delete(where="s = 'up' AND v > 20"), lambda r: _touch(r, range(21, 26), lambda k: None)),
    (lambda t: (t.delete(1000), t.insert([(1000, 1, "back")]), t.update([{"k": 1000, "v": 2}])),
     lambda r: _touch(r, [1000], lambda k: (2, "back"))),
    (lambda t: (t.insert([(1001, 1, "x")]), t.delete(1001)), lambda r: None),
    (lambda t: t.delete(where="TRUE"), lambda r: r.clear()),
    (lambda t: t.insert([(3, 3, "end"), (4, 4, "end")]), lambda r: _touch(r, [3, 4], lambda k: (k, "end"))),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "partition_by"), WAYS.values(), ids=WAYS)
def test_reads_see_the_snapshot_and_the_transactions_own_writes(
    db: Database, layout: Callable[[Database, Any], object], partition_by: Any
) -> None:
    """After each statement, while another writer changes rows, and the store flushes and compacts."""
    table = db.create_table("t", SCHEMA, "k", partition_by)
    table.insert([(k, k, "old") for k in range(40)])
    layout(db, table)
    expected: Rows = {k: (v, s) for k, v, s in rows(table)}
    transaction = db.transaction()
    others = {200 + n: n for n in range(len(STATEMENTS))}
    table.upsert([(k, -1, "other") for k in (*range(0, 50, 7), 56)])
    table.delete([8, 10])
    _check_reads(transaction, expected)
    for number, (write, effect) in enumerate(STATEMENTS):
        write(transaction["t"])
        effect(expected)
        table.insert([(200 + number, number, "other")])
        table.update([{"k": 35, "v": number}])
        moves = (table.flush, lambda: None, table.compact, table.vacuum)
        moves[number % 4]()
        _check_reads(transaction, expected)
        if number % 5 == 1:
            _check_engines(transaction, expected)
    transaction.rollback()
    found = {k: v for k, v, _ in rows(table) if k >= 200}
    assert found == others and table[35]["v"] == len(STATEMENTS) - 1 and table.get(1000) is None
    assert db.check().ok


@pytest.mark.parametrize(("layout", "partition_by"), WAYS.values(), ids=WAYS)
def test_a_commit_writes_the_rows_that_the_transaction_saw(
    path: Path, layout: Callable[[Database, Any], object], partition_by: Any
) -> None:
    """After several numbers of statements, in memory and as files, and after a reopen."""
    for large in (False, True):
        options = {"direct_commit_bytes": 1 if large else 64 << 20}
        folder = path.with_name(f"{large}")
        with open_database(folder, **options) as db:
            table = db.create_table("t", SCHEMA, "k", partition_by)
            table.insert([(k, k, "old") for k in range(40)])
            layout(db, table)
            expected: Rows = {k: (v, s) for k, v, s in rows(table)}
            whole = []
            for first, last in ((0, 3), (3, 9), (9, 11)):
                with db.transaction() as transaction:
                    for write, effect in STATEMENTS[first:last]:
                        write(transaction["t"])
                        effect(expected)
                whole = [(k, *values) for k, values in sorted(expected.items())]
                assert rows(table) == whole
                assert len({result.timestamp for result in transaction.results}) == 1
                before = db["t"].scan(at=transaction.results[0].timestamp - 1).count()
                assert before == table.scan(at=transaction.timestamp).count()
        with open_database(folder) as db:
            assert rows(db["t"]) == whole and db.check().ok


def test_a_transaction_that_begins_during_a_flush(db: Database) -> None:
    table = key_value_table(db)
    table.insert([(1, 1), (2, 2), (3, 3)])
    open_ = []

    def phase(name: str) -> None:
        if name == "frozen":
            table.update([{"k": 1, "v": 10}])
            table.insert([(4, 4)])
            open_.append(db.transaction())
            open_[0]["t"].delete(2)
            table.update([{"k": 3, "v": 30}])
        else:
            open_[0]["t"].update([{"k": 1, "v": 11}])

    flush(db._writer(), phase=phase)
    assert rows(open_[0]["t"]) == [(1, 11), (3, 3), (4, 4)]
    open_[0].commit()
    assert rows(table) == [(1, 11), (3, 30), (4, 4)]


def test_later_statements_do_not_change_a_scan(db: Database) -> None:
    """The end of the transaction does not change it either."""
    table = key_value_table(db)
    table.insert([(1, 1), (2, 2)])
    table.flush()
    with db.transaction() as tx:
        scans = [tx["t"].scan()]
        tx["t"].update([{"k": 1, "v": 5}])
        scans.append(tx["t"].scan())
        tx["t"].delete(where="TRUE")
        scans.append(tx["t"].scan())
        tx["t"].insert([(9, 9)])
    assert [_tuples(scan.to_arrow()) for scan in scans] == [[(1, 1), (2, 2)], [(1, 5), (2, 2)], []]
    assert rows(table) == [(9, 9)]


def test_a_transaction_sees_the_tables_of_its_snapshot(db: Database) -> None:
    """Tables have their columns of that moment, even if they were dropped since. Later tables are unknown."""
    table = key_value_table(db)
    table.insert([(1, 1)])
    with db.transaction() as tx:
        _in_thread(lambda: (table.add_column("w", "int64", default=7), key_value_table(db, "later")))
        assert tx["t"].columns == ["k", "v"] and tx["t"][1] == {"k": 1, "v": 1}
        assert list(tx) == tx.list_tables() == ["t"] and "t" in tx and "later" not in tx
        with pytest.raises(TableNotFoundError, match="no table 'later'"):
            tx["later"]
        _in_thread(lambda: db.drop_table("t"))
        assert tx["t"].count() == 1
        assert tx.sql("SELECT sum(v) FROM t").fetchone() == (1,)


# ── writes ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_several_tables_commit_at_one_timestamp(db: Database) -> None:
    for name in ("a", "b", "c"):
        key_value_table(db, name).insert([(1, 1), (2, 2)])
    db["b"].flush()
    with db.transaction() as tx:
        tx["a"].insert([(3, 3)])
        tx["b"].update(set={"v": nyala.expr("v * 10")})
        tx["c"].delete(where="v = 1")
        tx["a"].upsert([(3, 30), (1, 10)])
        assert tx["b"].count("v >= 10") == 2
        assert all(db[name].scan().to_arrow()["v"].to_pylist() == [1, 2] for name in "abc")
    assert [(r.inserted, r.updated, r.deleted) for r in tx.results] == [
        (1, 0, 0), (0, 2, 0), (0, 0, 1), (0, 2, 0)
    ]  # fmt: skip
    (timestamp,) = {result.timestamp for result in tx.results}
    assert timestamp > tx.timestamp
    before, after = db.snapshot(timestamp - 1), db.snapshot(timestamp)
    assert [rows(before[name]) for name in "abc"] == [[(1, 1), (2, 2)]] * 3
    assert [rows(after[name]) for name in "abc"] == [
        [(1, 10), (2, 2), (3, 30)], [(1, 10), (2, 20)], [(2, 2)]
    ]  # fmt: skip
    changes = db["a"].changes(since=tx.timestamp).to_arrow().to_pylist()
    assert sorted((c["k"], c["_change_type"]) for c in changes) == [(1, "update"), (3, "insert")]


def test_after_a_failed_statement_the_transaction_can_continue(db: Database) -> None:
    table = key_value_table(db)
    table.insert([(1, 1), (2, 2)])
    with db.transaction() as tx:
        writes = tx["t"]
        writes.update([{"k": 1, "v": 10}])
        for bad, error in (
            (lambda: writes.insert([(3, 3), (1, 0)]), DuplicateKeyError),
            (lambda: writes.update([{"k": 2, "v": 0}, {"k": 9, "v": 0}]), KeyNotFoundError),
            (lambda: writes.delete([1, 9]), KeyNotFoundError),
            (lambda: writes.insert([(4, "no number")]), nyala.Error),
            (lambda: writes.update(set={"v": nyala.expr("v / 0")}), nyala.Error),
            (lambda: writes.delete(where="nothing = 1"), nyala.ColumnNotFoundError),
        ):
            with contextlib.suppress(error):
                bad()
                assert error is nyala.Error, "only a division by zero may be NULL"
        collected = writes.insert([(5, 5), (1, 0)], errors="collect")
        assert collected.inserted == 1 and collected.errors["k"].to_pylist() == [1]
        ignored = writes.insert([(6, 6), (2, 0)], on_conflict="ignore")
        assert (ignored.inserted, ignored.ignored) == (1, 1)
        assert writes.delete([77], on_missing="ignore").ignored == 1
        seen = rows(writes)
    assert rows(table) == seen
    assert {k for k, _ in seen} == {1, 2, 5, 6}


def test_a_stream_is_written_in_one_transaction(db: Database) -> None:
    table = key_value_table(db)
    schema = pa.schema({"k": pa.int64(), "v": pa.int64()})
    batches = [pa.record_batch([[n], [n]], schema=schema) for n in range(3)]
    with db.transaction() as tx:
        assert tx["t"].insert(pa.RecordBatchReader.from_batches(schema, batches)).inserted == 3
        assert tx["t"].count() == 3 and table.count() == 0
    assert table.count() == 3


def test_conditions_see_the_snapshot_and_the_transactions_own_writes(db: Database) -> None:
    table = db.create_table("t", {"k": "int64", "seq": "int64"}, "k")
    table.insert([(1, 1), (2, 2)])
    with db.transaction() as tx:
        tx["t"].upsert([(2, 5)])
        result = tx["t"].upsert([(1, 3), (2, 3), (3, 3)], when="new.seq > old.seq")
        assert (result.inserted, result.updated, result.ignored) == (1, 1, 1)
        result = tx["t"].upsert([(1, 2), (2, 6), (4, 1)], newest_by="seq")
        assert (result.inserted, result.updated, result.ignored) == (1, 1, 1)
        tx["t"].apply_changes([{"op": "delete", "k": 5, "seq": 9}], sequence="seq")
        assert tx["t"].upsert([(5, 8)], newest_by="seq").ignored == 1
        seen = rows(tx["t"])
    assert rows(table) == seen == [(1, 3), (2, 6), (3, 3), (4, 1)]
    assert table.upsert([(5, 8)], newest_by="seq").ignored == 1, "the delete is remembered"


def test_conditions_do_not_see_later_writes_of_others(db: Database) -> None:
    """A later row with a greater value is a conflict at the commit; it does not make the row ignored."""
    table = db.create_table("t", {"k": "int64", "seq": "int64"}, "k")
    for condition in ({"newest_by": "seq"}, {"when": "new.seq > old.seq"}):
        tx = db.transaction()
        table.upsert([(1, 10)])
        assert tx["t"].upsert([(1, 5)], **condition).inserted == 1  # type: ignore[arg-type]
        assert rows(tx["t"]) == [(1, 5)]
        with pytest.raises(ConflictError, match="k=1 "):
            tx.commit()
        table.delete(1)
        table.flush()


def test_lists_of_operations_and_messages(db: Database) -> None:
    table = key_value_table(db)
    table.insert([(1, 1)])
    with db.transaction(message="a story") as tx:
        result = tx["t"].apply(
            [
                ("insert", (2, 2)),
                ("update", {"k": 1, "v": 5}),
                ("delete", 2),
                ("insert", (1, 0)),
                ("upsert", (3, 3)),
            ],
            errors="collect",
        )
        assert result.errors["row"].to_pylist() == [3]
        assert rows(tx["t"]) == [(1, 5), (3, 3)]
        with pytest.raises(InvalidArgumentError, match=r"pass the message to db\.transaction\(message=…\)"):
            tx["t"].insert([(9, 9)], message="x")
    assert rows(table) == [(1, 5), (3, 3)]
    assert list(db.commits())[-1].message == "a story"


def test_a_transaction_without_effect_commits_nothing(db: Database) -> None:
    table = key_value_table(db)
    at = table.insert([(1, 1)]).timestamp
    with db.transaction() as tx:
        assert tx["t"].count() == 1
    assert tx.results == []
    with db.transaction() as tx:
        tx["t"].insert([(2, 2)])
        tx["t"].delete(2)
    assert table.changes(since=at).to_arrow().num_rows == 0


# ── conflicts ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_committer_wins_and_the_loser_writes_nothing(db: Database) -> None:
    a, b = key_value_table(db, "a"), key_value_table(db, "b")
    a.insert([(k, 0) for k in range(300)])
    first, second = db.transaction(), db.transaction()
    for transaction, value in ((first, 1), (second, 2)):
        transaction["b"].insert([(value, value)])
        transaction["a"].update([{"k": 5, "v": value}])
    second.commit()
    with pytest.raises(ConflictError) as raised:
        first.commit()
    assert "another write changed table 'a' at key k=5 after" in str(raised.value)
    assert "Nothing was written: read again and repeat the write (db.run() does both)" in str(raised.value)
    assert raised.value.table == "a" and raised.value.keys.to_pylist() == [{"k": 5}]
    assert rows(b) == [(2, 2)] and a[5]["v"] == 2
    with pytest.raises(TransactionEndedError, match="this transaction failed to commit: begin another one"):
        first.commit()
    many = db.transaction()
    many["a"].update(set={"v": 3})
    a.update([{"k": k, "v": 4} for k in range(250)])
    with pytest.raises(ConflictError, match="at key k=0 and 249 other keys after") as raised:
        many.commit()
    assert raised.value.keys["k"].to_pylist() == list(range(100)), "at most 100 are listed"
    two = db.transaction()
    two["a"].delete([1, 2])
    a.update([{"k": k, "v": 4} for k in (1, 2)])
    with pytest.raises(ConflictError, match="k=1 and 1 other key after"):
        two.commit()


def test_a_conflict_names_all_columns_of_the_key(db: Database) -> None:
    table = db.create_table("t", {"a": "string", "b": "int64", "v": "int64"}, ["a", "b"])
    table.insert([("x", 1, 0)])
    with pytest.raises(ConflictError, match="at key a='x', b=1 after"), db.transaction() as tx:
        tx["t"].update([{"a": "x", "b": 1, "v": 1}])
        _in_thread(lambda: table.delete(("x", 1)))
    assert repr(tx) == "Transaction (ended)"


ALTERATIONS: dict[str, tuple[Callable[[Database], object], str]] = {
    "a column was added": (lambda db: db["t"].add_column("w", "int64"), "table 't' was altered after"),
    "a column was dropped": (lambda db: db["t"].drop_column("s"), "table 't' was altered after"),
    "a range was added": (lambda db: _ranges(db, add=(40, 50)), "table 't' was altered after"),
    "its range was dropped and added again": (
        lambda db: _ranges(db, drop=(0, 20), add=(0, 20)),
        "table 't' was altered after",
    ),
    "another range was dropped": (lambda db: _ranges(db, drop=(20, 40)), "table 't' was altered after"),
    "repartitioned": (lambda db: db["t"].repartition(()), "table 't' was altered after"),
    "repartitioned as before": (
        lambda db: db["t"].repartition(nyala.range_partition("k", bounds=[(0, 20), (20, 40)])),
        "table 't' was",
    ),
    "dropped": (lambda db: db.drop_table("t"), "table 't' was dropped after"),
    "dropped and created again": (lambda db: _created_again(db), "table 't' was dropped after"),
}


def _ranges(db: Database, add: tuple[int, int] | None = None, drop: tuple[int, int] | None = None) -> None:
    with db["t"].alter() as alteration:
        if drop:
            alteration.drop_range(*drop)
        if add:
            alteration.add_range(*add)


def _ranged(db: Database) -> Any:
    ranges = nyala.range_partition("k", bounds=[(0, 20), (20, 40)])
    table = db.create_table("t", SCHEMA, "k", ranges)
    table.insert([(k, k, "") for k in range(40)])
    return table


def _created_again(db: Database) -> None:
    db.drop_table("t")
    _ranged(db)


@pytest.mark.parametrize("how", ALTERATIONS)
def test_a_written_table_that_was_altered_is_a_conflict(db: Database, how: str) -> None:
    """Its rows may be removed, or have other columns. Nothing of the transaction is written."""
    _ranged(db)
    other = key_value_table(db, "other")
    with pytest.raises(ConflictError) as raised, db.transaction() as tx:
        tx["other"].insert([(1, 1)])
        tx["t"].update([{"k": 1, "v": 100}])
        _in_thread(lambda: ALTERATIONS[how][0](db))
        assert tx["t"][1]["v"] == 100 and tx["t"].count() == 40
    assert ALTERATIONS[how][1] in str(raised.value) and "Nothing was written" in str(raised.value)
    assert raised.value.table == "t"
    assert rows(other) == []
    if "t" in db:
        assert db["t"].count("v = 100") == 0


# ── ends ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_exception_rolls_back(db: Database) -> None:
    table = key_value_table(db)
    for error in (ZeroDivisionError, KeyboardInterrupt, SystemExit):
        with pytest.raises(error), db.transaction() as tx:
            tx["t"].insert([(1, 1)])
            raise error
        assert table.count() == 0 and tx.results == []
        with pytest.raises(TransactionEndedError, match="this transaction was rolled back: begin another"):
            tx["t"]
    table.insert([(1, 1)])  # the thread can write again after the block


def test_commit_and_rollback_inside_the_block(db: Database) -> None:
    table = key_value_table(db)
    with db.transaction() as tx:
        tx["t"].insert([(1, 1)])
        assert tx.commit()[0].inserted == 1
        with pytest.raises(TransactionEndedError, match="this transaction was committed"):
            tx["t"].insert([(2, 2)])
    with db.transaction() as tx:
        tx["t"].insert([(3, 3)])
        tx.rollback()
        tx.rollback()
    assert rows(table) == [(1, 1)]
    handle = db.transaction()
    writes = handle["t"]
    handle.commit()
    for use in (
        writes.count,
        lambda: writes.insert([(5, 5)]),
        handle.commit,
        handle.list_tables,
        handle.__enter__,
    ):
        with pytest.raises(TransactionEndedError, match=r"begin another one with db\.transaction\(\)"):
            use()
    assert repr(writes) == "TransactionTable t (the transaction has ended)"


def test_other_writes_in_the_block_are_refused(db: Database) -> None:
    """Other writes of the same thread are refused, because they would not be part of the transaction."""
    table = key_value_table(db)
    at = table.insert([(1, 1)])
    with db.transaction() as tx:
        for write in (
            lambda: table.insert([(2, 2)]),
            lambda: table.delete(where="TRUE"),
            lambda: table.restore(to=at),
            lambda: db.batch().__enter__(),
            lambda: db.transaction().__enter__(),
            lambda: db.run(lambda other: None),
        ):
            with pytest.raises(
                InvalidArgumentError, match=r"inside `with db\.transaction\(\) as tx`.*tx\['name'\]"
            ):
                write()
        _in_thread(lambda: table.insert([(3, 3)]))
        tx["t"].insert([(4, 4)])
    table.insert([(5, 5)])
    with db.batch(), pytest.raises(InvalidArgumentError, match=r"inside `with db\.batch\(\) as b`"):
        db.transaction().__enter__()
    assert [k for k, _ in rows(table)] == [1, 3, 4, 5] and not db._writer().pins.held


def test_invalid_arguments_are_refused(db: Database) -> None:
    key_value_table(db)
    for timeout in (-1, "x", None, float("nan"), True):
        with pytest.raises(InvalidArgumentError, match="timeout takes a number of seconds, 0 or more"):
            db.transaction(timeout=timeout)  # type: ignore[arg-type]
    for retries in (-1, 1.5, "x", None, True):
        with pytest.raises(InvalidArgumentError, match="retries takes a whole number, 0 or more"):
            db.run(lambda tx: None, retries=retries)  # type: ignore[arg-type]
    with db.transaction(timeout=float("inf")) as tx:
        with pytest.raises(InvalidArgumentError, match=r"use db\['t'\]\.scan\(at=…\)"):
            tx["t"].scan(at=db.now())
        with pytest.raises(InvalidArgumentError, match=r"db\['t'\]\.scan\(at=…\)"):
            tx["t"].scan().at(db.now())
        for feed in (lambda: tx["t"].changes(since=0), lambda: tx["t"].history(1)):
            with pytest.raises(InvalidArgumentError, match=r"use db\['t'\]\.changes\(…\) after the commit"):
                feed()
        with pytest.raises(AttributeError, match=r"and has no 'flush'; db\['t'\] has the other methods"):
            tx["t"].flush()


def test_the_memory_of_a_transaction_is_limited(path: Path) -> None:
    with open_database(path, memory_limit_bytes=16_000_000) as db:
        table = key_value_table(db)
        with db.transaction() as tx:
            tx["t"].insert([(1, 1)])
            with pytest.raises(InvalidArgumentError) as raised:
                tx["t"].insert({"k": range(10, 400_000), "v": range(10, 400_000)})
            assert "take 6 MB, and its limit is 4 MB: nothing of this call was written" in str(raised.value)
            assert tx["t"].count() == 1
            with pytest.raises(InvalidArgumentError, match="Commit the earlier writes first, write the rows"):
                for k in range(10, 2000):  # each small write counts with the memory of its objects
                    tx["t"].insert([(k, k)])
            count = tx["t"].count()
        assert 500 < count < 1000 and table.count() == count


def test_a_closed_database_ends_its_transactions(path: Path) -> None:
    db = open_database(path)
    key_value_table(db)
    tx = db.transaction()
    writes = tx["t"]
    writes.insert([(1, 1)])
    db.close()
    for use in (writes.count, lambda: writes.insert([(2, 2)]), tx.commit, lambda: tx["t"]):
        with pytest.raises(StorageError, match=r"is closed: connect\(\) again"):
            use()
    tx.rollback()
    with pytest.raises(StorageError, match="closed"):
        db.transaction()
    with open_database(path) as db, pytest.raises(StorageError, match="closed"), db.transaction() as tx:
        tx["t"].insert([(1, 1)])
        db.close()
    with open_database(path) as db:
        assert rows(db["t"]) == []


def test_a_reader_has_no_transactions(path: Path) -> None:
    with nyala.connect(path):
        pass
    with nyala.connect(path, read_only=True) as db:
        with pytest.raises(nyala.ReadOnlyError):
            db.transaction()
        with pytest.raises(nyala.ReadOnlyError):
            db.run(lambda tx: None)


def test_many_transactions_do_not_move_the_clock_ahead(db: Database) -> None:
    """Each transaction reserves fewer timestamps than pass while it begins."""
    table = key_value_table(db)
    for _ in range(3000):
        db.transaction().rollback()
    ahead_s = table.insert([(1, 1)]).timestamp / 4096e6 - time.time()
    assert ahead_s < 0.02


# ── db.run ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def counter(db: Database) -> Any:
    table = key_value_table(db)
    table.insert([(1, 0)])
    return table


def test_run_repeats_after_a_conflict(db: Database, counter: Any) -> None:
    tries = []

    def increment(tx: Any) -> int:
        value: int = tx["t"][1]["v"]
        tries.append(value)
        if len(tries) < 3:
            _in_thread(lambda: counter.update(set={"v": nyala.expr("v + 10")}))
        tx["t"].update([{"k": 1, "v": value + 1}])
        return value

    assert db.run(increment) == 20
    assert tries == [0, 10, 20] and rows(counter) == [(1, 21)]


def test_the_fourth_try_keeps_other_writers_out(db: Database, counter: Any) -> None:
    """Its function runs under the commit lock, so it cannot meet a conflict."""
    waiting: list[threading.Thread] = []
    tries = []

    def increment(tx: Any) -> None:
        value = tx["t"][1]["v"]
        tries.append(value)
        other = threading.Thread(target=counter.update, kwargs={"set": {"v": nyala.expr("v + 10")}})
        other.start()
        other.join(0.2 if len(tries) == 4 else None)
        if len(tries) == 4:
            assert other.is_alive(), "it waits for the commit lock"
            waiting.append(other)
            assert tx.sql("SELECT sum(v) FROM t").fetchone() == (30,)  # other threads can read
        tx["t"].update([{"k": 1, "v": value + 1}])

    db.run(increment)
    waiting[0].join()
    assert tries == [0, 10, 20, 30] and rows(counter) == [(1, 41)]


def test_run_gives_up_after_its_retries(db: Database, counter: Any) -> None:
    tries = []

    def increment(tx: Any) -> None:
        tries.append(1)
        tx["t"].update([{"k": 1, "v": 1}])
        _in_thread(lambda: counter.update([{"k": 1, "v": 2}]))

    for retries in (0, 2):
        tries.clear()
        with pytest.raises(ConflictError):
            db.run(increment, retries=retries)
        assert len(tries) == retries + 1


def test_run_raises_the_error_of_the_function(db: Database, counter: Any) -> None:
    def fail(tx: Any) -> None:
        tx["t"].update([{"k": 1, "v": 1}])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        db.run(fail)
    assert rows(counter) == [(1, 0)] and not db._writer().pins.held
    assert db.run(lambda tx: tx.rollback()) is None
    counter.update([{"k": 1, "v": 5}])  # the lock and the block have ended


# ── threads and interrupts ──────────────────────────────────────────────────────────────────────────────────


def _together(count: int, work: Callable[[int], object]) -> None:
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


@pytest.fixture
def busy(path: Path) -> Iterator[Database]:
    """A store with small files, in which compactions run all the time."""
    with open_database(path, maintenance=True, rowset_target_bytes=20_000) as db:
        stop = threading.Event()

        def compact_all() -> None:
            while not stop.is_set():
                for name in db.list_tables():
                    db[name].flush()
                    db[name].compact()
                    db[name].vacuum()

        thread = threading.Thread(target=compact_all)
        thread.start()
        yield db
        stop.set()
        thread.join()


def test_all_threads_can_update_the_same_row(busy: Database) -> None:
    table = key_value_table(busy)
    table.insert([(1, 0)])

    def increment(tx: Any) -> None:
        tx["t"].update([{"k": 1, "v": tx["t"][1]["v"] + 1}])

    _together(4, lambda number: [busy.run(increment) for _ in range(25)])
    assert rows(table) == [(1, 100)]


def test_transfers_keep_the_sum_of_all_accounts(busy: Database) -> None:
    accounts = busy.create_table(
        "accounts", {"id": "int64", "sum": "int64"}, "id", [nyala.hash_partition("id", buckets=2)],
        history=0.0,
    )  # fmt: skip
    log = busy.create_table("log", {"id": "string", "amount": "int64"}, "id")
    accounts.insert([(k, 100) for k in range(10)])

    def work(number: int) -> None:
        chance = random.Random(number)
        for transfer in range(25):
            giver, taker = chance.sample(range(10), 2)
            amount = chance.randrange(1, 50)

            def move(tx: Any, transfer: int = transfer, pair: Any = (giver, taker, amount)) -> None:
                giver, taker, amount = pair
                table = tx["accounts"]
                assert tx.sql("SELECT sum(sum) FROM accounts").fetchone() == (1000,)
                if table[giver]["sum"] < amount:
                    return
                table.update(set={"sum": nyala.expr(f"sum - {amount}")}, where=f"id = {giver}")
                assert table.scan(["sum"]).to_arrow()["sum"].to_numpy().sum() == 1000 - amount
                table.update([{"id": taker, "sum": table[taker]["sum"] + amount}])
                tx["log"].insert([(f"{number} {transfer}", amount)])

            busy.run(move)

    _together(4, work)
    sums = accounts.to_arrow()["sum"].to_pylist()
    assert sum(sums) == 1000 and min(sums) >= 0
    assert log.count() > 50 and busy.check().ok


def test_threads_can_share_a_transaction(db: Database) -> None:
    """Their statements run one after another, and are committed together."""
    table = key_value_table(db)
    table.insert([(-1, 0)])
    tx = db.transaction()

    def work(number: int) -> None:
        for k in range(number * 100, number * 100 + 20):
            tx["t"].insert([(k, k)])
            assert tx["t"][k]["v"] == k
            tx["t"].update(set={"v": nyala.expr("v + 1")}, where="k = -1")

    _together(4, work)
    assert table.count() == 1
    assert len(tx.commit()) == 160
    assert table.count() == 81 and table[-1]["v"] == 80


def test_a_commit_while_the_store_is_closed(path: Path) -> None:
    """The batch is complete or absent, and each thread gets an error or its result."""
    for number in range(5):
        db = open_database(path.with_name(f"{number}"))
        a, b = key_value_table(db, "a"), key_value_table(db, "b")
        done: list[int] = []

        def work(thread: int, db: Database = db, done: list[int] = done) -> None:
            with contextlib.suppress(StorageError, TransactionEndedError):
                for k in range(thread * 1000, thread * 1000 + 200):
                    with db.transaction() as tx:
                        tx["a"].insert([(k, k)])
                        tx["b"].insert([(k, k)])
                    done.append(k)

        closer = threading.Timer(0.02 * (number + 1), db.close)
        closer.start()
        _together(3, work)
        closer.join()
        del a, b
        with open_database(path.with_name(f"{number}")) as db:
            assert rows(db["a"]) == rows(db["b"])
            assert set(done) <= {k for k, _ in rows(db["a"])}


def _insert_into_both(db: Database, k: int) -> None:
    with db.transaction() as tx:
        tx["a"].insert([(k, k)])
        tx["b"].insert([(k, k)])
        assert tx["a"].count() == tx["b"].count()


def test_ctrl_c_leaves_a_whole_batch_or_none(db: Database) -> None:
    """Ctrl-C at any line of a transaction. The store can be used afterwards."""
    a, b = key_value_table(db, "a"), key_value_table(db, "b")
    interrupted = 0
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for k in range(60):
            timer = threading.Timer(0.0002 * (k % 20), signal.raise_signal, (signal.SIGINT,))
            try:
                timer.start()
                _insert_into_both(db, k)
                timer.join()
            except KeyboardInterrupt:
                interrupted += 1
            except InvalidArgumentError:  # rare: Ctrl-C came between the block and its end
                db._open.leave_block()
            while timer.is_alive():
                with contextlib.suppress(KeyboardInterrupt):
                    timer.join()
    except KeyboardInterrupt:  # Ctrl-C came late
        interrupted += 1
    finally:
        signal.signal(signal.SIGINT, before)
    assert rows(a) == rows(b) and interrupted
    gc.collect()  # frees a transaction whose block Ctrl-C prevented
    assert not db._writer().pins.held
    with db.transaction() as tx:
        tx["a"].insert([(-1, 1)])


def test_an_idle_transaction_is_ended_by_maintenance(db: Database) -> None:
    """A statement that takes long does not count as idle."""
    table = key_value_table(db)
    table.insert([(1, 1)])
    tx = db.transaction(timeout=0.01)
    with tx._open._pin.busy():
        time.sleep(0.05)
        assert db._writer().pins.oldest() == tx.timestamp
    time.sleep(0.05)
    assert db._writer().pins.oldest() is None
    assert not tx._open._root.tables
    with pytest.raises(TransactionEndedError, match="idle for more than 0.01 s"):
        tx.commit()


def test_tables_cannot_be_changed_inside_a_block(db: Database) -> None:
    """A rollback could not undo the change. The same in a batch."""
    table = key_value_table(db)
    changes: list[Callable[[], object]] = [
        lambda: db.create_table("u", {"k": "int64"}, "k"),
        lambda: db.drop_table("t"),
        lambda: db.clone_table("t", "u"),
        lambda: db.rename_table("t", "u"),
        lambda: db.tag("now"),
        lambda: table.add_column("w", "int64"),
        lambda: table.repartition(()),
    ]
    for block in (db.transaction, db.batch):
        with block():
            for change in changes:
                with pytest.raises(
                    InvalidArgumentError, match="would happen at once.*before or after the block"
                ):
                    change()
    assert db.list_tables() == ["t"] and not db.tags()
