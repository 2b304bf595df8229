"""Writes are all or nothing, also with Ctrl-C, repeated calls and concurrent alterations."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support import key_value_table, open_database, rows

import nyala
from nyala.api.database import Database
from nyala.env import AppendFile, PosixFiles
from nyala.errors import StorageError
from nyala.tablet.write import write_path
from nyala.tablet.write.write_path import Request, find_committed, write


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "s") as db:
        yield db


class HeldSync(PosixFiles):
    """Files in which syncs of the log wait until the test continues them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.waiting = threading.Event(), threading.Event()
        self.gate.set()

    def create(self, path: str) -> AppendFile:
        file = super().create(path)
        gate, waiting = self.gate, self.waiting

        class Held:
            path = file.path

            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

            def sync(self) -> None:
                waiting.set()
                assert gate.wait(20)
                file.sync()

        return Held() if "/wal/" in path else file


# --- all or nothing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("appended", [False, True])
def test_ctrl_c_in_the_log_append(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, appended: bool) -> None:
    """Ctrl-C before the log has the record changes nothing. Later, the outcome is unknown. The row
    never exists twice.
    """
    db = open_database(tmp_path / "s")
    table = key_value_table(db)
    table.insert({"k": [0], "v": [0]})
    store = db._writer()
    append = store.log.append

    def interrupted(record: Any) -> int:
        if appended:
            append(record)
        raise KeyboardInterrupt

    monkeypatch.setattr(store.log, "append", interrupted)
    with pytest.raises(StorageError if appended else KeyboardInterrupt) as stopped:
        table.insert({"k": [1], "v": [1]})
    monkeypatch.undo()
    if appended:
        assert stopped.value.outcome == "unknown" and "KeyboardInterrupt" in str(stopped.value)  # type: ignore[attr-defined]
        with pytest.raises(StorageError, match="takes no more writes"):
            table.insert({"k": [1], "v": [2]})
    else:
        table.insert({"k": [1], "v": [2]})
    db.close()
    again = open_database(tmp_path / "s")
    assert rows(again["t"]) in ([[(0, 0), (1, 1)], [(0, 0)]] if appended else [[(0, 0), (1, 2)]])
    for rowset in again._writer().root.table("t").tablets[0].all_rowsets():
        rowset.check()
    again["t"].upsert({"k": [1], "v": [3]})
    assert rows(again["t"]) == [(0, 0), (1, 3)]
    again.close()


def test_w3_a_failure_while_applying_has_an_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is not published, and writes are refused until the store is opened again."""
    db = open_database(tmp_path / "s")
    t, u = key_value_table(db, "t"), key_value_table(db, "u")
    t.insert({"k": [0], "v": [0]})
    published = db.now()

    def broken(self: Any, timestamps: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(write_path.InsertAddition, "apply", broken)
    with pytest.raises(StorageError, match=r"failed after it was logged \(MemoryError\)") as error:
        with db.batch() as batch:
            batch.update("t", {"k": [0], "v": [1]})
            batch.insert("u", {"k": [1], "v": [1]})
    monkeypatch.undo()
    assert error.value.outcome == "unknown"
    assert db.now() == published and rows(t) == [(0, 0)] and rows(u) == []
    for act in (lambda: t.insert({"k": [5], "v": [5]}), db.flush, lambda: db.drop_table("u")):
        with pytest.raises(StorageError, match="takes no more writes"):
            act()
    db.close()
    with open_database(tmp_path / "s") as again:
        assert (rows(again["t"]), rows(again["u"])) == ([(0, 1)], [(1, 1)])


def test_a_refused_log_record_changes_nothing(tmp_path: Path) -> None:
    """The disk has no space for the record. With space, writes continue."""

    class Full(PosixFiles):
        full = False

        def free_bytes(self, path: str) -> int:
            return 0 if self.full else super().free_bytes(path)

    files = Full()
    with open_database(tmp_path / "s", files=files) as db:
        table = key_value_table(db)
        now = table.insert({"k": [1], "v": [1]}).timestamp
        files.full = True
        with pytest.raises(StorageError, match="free some space") as error:
            table.upsert({"k": [1, 2], "v": [2, 2]})
        assert error.value.outcome is None
        assert (db.now(), db._writer().marks.applied, rows(table)) == (now, now, [(1, 1)])
        files.full = False
        table.upsert({"k": [1, 2], "v": [2, 2]})
        assert rows(table) == [(1, 2), (2, 2)]


# --- the table changes between preparing and locking ----------------------------------------------------


def between(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Call a function when the next write has prepared its data, before it takes the lock."""
    locked = write_path.locked

    def late(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        act()
        return locked(*arguments, **options)

    monkeypatch.setattr(write_path, "locked", late)


def test_a_write_to_a_table_that_is_created_again_meanwhile(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data is checked again with the columns and limits of the new table."""
    table = key_value_table(db)

    def create_again() -> None:
        db.drop_table("t")
        db.create_table("t", {"k": "int64", "v": "int8"}, "k", nyala.hash_partition("k", buckets=3))

    between(monkeypatch, create_again)
    with pytest.raises(nyala.InvalidValueError, match="'v'"):
        table.insert({"k": [1, 2], "v": [1, 300]})
    between(monkeypatch, create_again)
    assert table.insert({"k": [1, 2], "v": [1, 100]}).inserted == 2
    assert rows(table) == [(1, 1), (2, 100)]
    assert sum(tablet.rows for tablet in table.tablets()) == 2 and len(table.tablets()) == 3


def test_a_write_to_a_table_that_is_dropped_meanwhile_fails(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = key_value_table(db)
    between(monkeypatch, lambda: db.rename_table("t", "u"))
    with pytest.raises(nyala.TableNotFoundError, match="its tables are: u"):
        table.insert({"k": [1], "v": [1]})
    assert rows(db["u"]) == []


# --- retries --------------------------------------------------------------------------------------------


def test_a_repeated_call_waits_until_the_first_is_durable(tmp_path: Path) -> None:
    files = HeldSync()
    with open_database(tmp_path / "s", files=files) as db:
        table = key_value_table(db)
        table.insert({"k": [0], "v": [0]})
        store = db._writer()
        request = Request("t", "insert", {"k": [1], "v": [1]})
        files.gate.clear()
        files.waiting.clear()
        answers: list[int] = []

        def run_in_thread(how: Callable[[], int]) -> threading.Thread:
            thread = threading.Thread(target=lambda: answers.append(how()))
            thread.start()
            return thread

        def first() -> int:
            return write(store, [request], idempotency_key="job")[0].timestamp

        def looked_up() -> int:
            found = find_committed(store, "job")
            assert found is not None
            return found.timestamp

        threads = [run_in_thread(first)]
        assert files.waiting.wait(20)
        threads += [run_in_thread(first), run_in_thread(looked_up)]
        for thread in threads:
            thread.join(0.02)
        assert answers == [] and db.now() < store.marks.applied
        files.gate.set()
        for thread in threads:
            thread.join(20)
        assert len(set(answers)) == 1 and len(answers) == 3
        assert db.now() == answers[0] and rows(table) == [(0, 0), (1, 1)]
        assert find_committed(store, "another") is None


# --- too large for the log ------------------------------------------------------------------------------


def test_the_error_of_a_large_batch_shows_no_internal_exception(tmp_path: Path) -> None:
    with open_database(tmp_path / "s", direct_commit_bytes=1000) as db:
        table = key_value_table(db)
        store = db._writer()
        store.allocate = lambda what: (_ for _ in ()).throw(StorageError("raised by the test"))  # type: ignore[method-assign]
        with pytest.raises(StorageError, match="raised by the test") as error:
            table.insert({"k": list(range(500)), "v": [0] * 500})
        chain: list[BaseException | None] = [error.value]
        while chain[-1] is not None:
            chain.append(chain[-1].__context__)
        assert not any(isinstance(link, write_path.TooLargeForLog) for link in chain)


# --- streams --------------------------------------------------------------------------------------------


SCHEMA = pa.schema({"k": pa.int64(), "v": pa.int64()})


def stream(*batches: list[tuple[int, int]]) -> pa.RecordBatchReader:
    made = [
        pa.RecordBatch.from_pylist([{"k": k, "v": v} for k, v in rows_], schema=SCHEMA) for rows_ in batches
    ]
    return pa.RecordBatchReader.from_batches(SCHEMA, iter(made))


def test_each_batch_of_a_stream_is_one_commit(db: Database) -> None:
    """The counts of the result are the sums."""
    table = key_value_table(db)
    result = table.upsert(stream([(1, 1), (2, 2)], [(2, 20)], [(3, 3), (1, 10)]))
    assert (result.inserted, result.updated, result.timestamp) == (3, 2, db.now())
    assert rows(table) == [(1, 10), (2, 20), (3, 3)]
    failed = table.insert(stream([(9, 9), (1, 0)], [(8, 8)], [(2, 0), (3, 0)]), errors="collect")
    assert failed.inserted == 2
    assert failed.errors.select(["row", "k"]).to_pylist() == [
        {"row": 1, "k": 1}, {"row": 3, "k": 2}, {"row": 4, "k": 3},
    ]  # fmt: skip
    empty = table.insert(stream())
    assert (empty.inserted, empty.timestamp, empty.errors.num_rows) == (0, db.now(), 0)


@pytest.mark.parametrize("kind", ["a failing row", "a failing disk"])
def test_a_failed_stream_says_how_many_rows_were_written(tmp_path: Path, kind: str) -> None:
    """The first `.applied` rows stay written, so the caller can continue after them."""
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        table.insert({"k": [7], "v": [7]})
        written = [0]
        append = db._writer().log.append

        def counting(record: Any) -> Any:
            written[0] += 1
            if kind == "a failing disk" and written[0] == 3:
                raise StorageError("no space for the log")
            return append(record)

        db._writer().log.append = counting  # type: ignore[method-assign]
        with pytest.raises(nyala.Error) as error:
            table.insert(
                stream([(1, 1), (2, 2)], [(3, 3)], [(7 if kind == "a failing row" else 4, 0)], [(5, 5)])
            )
        assert error.value.applied == 3
        assert rows(table) == [(1, 1), (2, 2), (3, 3), (7, 7)]
        assert nyala.SchemaError("x").applied == 0
