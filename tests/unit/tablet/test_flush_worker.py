"""Large flushes, which a worker process writes: the files are the same, and failures lose no row."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import threading
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support import open_database

import nyala
from nyala.api.database import Database
from nyala.env import SystemRandomness
from nyala.env.files import Files
from nyala.errors import StorageError
from nyala.tablet.flush import in_worker as flush_worker
from nyala.tablet.flush.file_jobs import Piece, Written, decode_written, run_spilled, spill, write_pieces
from nyala.tablet.flush.in_worker import FlushWorker
from nyala.tablet.flush.lifecycle import flush
from nyala.tablet.workers.process import JobCancelled


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """Open a store with the system's clock and files, for worker processes, and no background threads."""
    with nyala.connect(tmp_path / "real", maintenance=False) as db:
        yield db


@pytest.fixture
def worker(db: Database, monkeypatch: pytest.MonkeyPatch) -> FlushWorker:
    monkeypatch.setattr(flush_worker, "INLINE_BYTES", 0)
    return db.maintenance.flush_worker


def files_of(db: Database) -> list[str]:
    """Return the data files, without the random tokens in their names."""
    return sorted(re.sub("-[0-9a-f]{16}", "", path.name) for path in Path(db.path, "data").rglob("*.*"))


def numbers(db: Database, count: int = 100) -> Any:
    table = db.create_table("t", {"k": "int64", "v": "int64"}, "k")
    table.insert({"k": list(range(count)), "v": list(range(count))})
    return table


EVERY_TYPE = {
    "name": "string", "at": "timestamp", "flag": "bool", "tiny": "int8", "small": "int16", "whole": "int32",
    "big": "int64", "single": "float", "real": "double", "money": "decimal(12,2)", "raw": "binary", "day": "date",
    "short": "varchar(5)",
}  # fmt: skip
MOMENT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def row(name: str, second: int, *, empty: bool = False) -> dict[str, Any]:
    key = {"name": name, "at": MOMENT + dt.timedelta(seconds=second)}
    if empty:
        return {**key, **dict.fromkeys(list(EVERY_TYPE)[2:])}
    return {
        **key, "flag": second % 2 == 0, "tiny": second, "small": -second, "whole": second, "big": 1 << 40,
        "single": 0.5,
        "real": -0.0, "money": Decimal("1.25") * second, "raw": b"\x00" * second, "day": dt.date(2026, 1, 1),
        "short": name[:5],
    }  # fmt: skip


def test_a_worker_writes_the_same_bytes_as_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every type, NULLs, keys of any length, updates, deletes and new inserts in memory, two
    tablets, REDO.
    """
    # File ids are random without this.
    monkeypatch.setattr(SystemRandomness, "token_hex", lambda _, byte_count: "0" * 2 * byte_count)
    compared = []

    def both(files: Files, root_path: str, pieces: Sequence[Piece]) -> list[Written]:
        here = write_pieces(files, root_path, pieces)
        paths = [os.path.join(root_path, path) for piece in pieces for path in piece.paths]
        content = {path: files.read_all(path) for path in paths if files.exists(path)}
        for path in content:
            files.unlink(path)
        job = json.loads(json.dumps(spill(files, root_path, "data/spill", pieces)))
        there = decode_written(json.loads(json.dumps(run_spilled(files, job))))
        files.unlink(os.path.join(root_path, "data/spill"))
        assert there == here
        assert {path: files.read_all(path) for path in paths if files.exists(path)} == content
        compared.append([type(piece).__name__ for piece in pieces])
        return there

    with open_database(tmp_path / "s") as db:
        table = db.create_table(
            "t", EVERY_TYPE, ["name", "at"], [nyala.hash_partition("name", buckets=2)], history="forever"
        )
        names = ["", "a", "a\x00b", "long" * 40, "ß"]
        table.insert([row(name, second) for name in names for second in (1, 2)])
        table.upsert([row(name, 2, empty=True) for name in names[:3]])
        table.delete([{"name": "a", "at": MOMENT + dt.timedelta(seconds=1)}])
        flush(db._writer(), write=both)
        table.insert([row("a", 1), row("b", 1)])
        table.update({"name": ["ß"], "at": [MOMENT + dt.timedelta(seconds=1)], "big": [7]})
        table.delete([{"name": "", "at": MOMENT + dt.timedelta(seconds=2)}])
        flush(db._writer(), write=both)
        assert table.count() == 10
    assert len(compared) == 2
    assert {"RowSetPiece", "DeltaPiece"} == set(compared[1])


def test_a_large_flush_is_written_by_a_worker_process(db: Database, worker: FlushWorker) -> None:
    """Changes made during the flush are kept."""
    table = numbers(db)

    def late(phase: str) -> None:
        if phase == "written":
            table.update({"k": [5], "v": [-5]})

    report = flush(db._writer(), phase=late, write=worker.write)
    assert (report.rows, worker.jobs) == (100, 1)
    assert files_of(db) == ["1.base", "1.base.undo"]
    assert table.get({"k": 5}) == {"k": 5, "v": -5} and table.get({"k": 6}) == {"k": 6, "v": 6}


def test_a_small_flush_is_written_by_this_process(db: Database) -> None:
    """Sending it to another process would take as long."""
    numbers(db)
    worker = db.maintenance.flush_worker
    flush(db._writer(), write=worker.write)
    assert (files_of(db), worker.jobs) == (["1.base", "1.base.undo"], 0)


def test_with_other_files_or_clocks_this_process_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker uses those of the system."""
    monkeypatch.setattr(flush_worker, "INLINE_BYTES", 0)
    with open_database(tmp_path / "s") as db:
        numbers(db)
        flush(db._writer(), write=db.maintenance.flush_worker.write)
        assert db.maintenance.flush_worker.jobs == 0 and db.table("t").count() == 100


def test_close_does_not_wait_for_a_flush(
    db: Database, worker: FlushWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows stay in memory and in the log (F2), and no file is left."""
    table = numbers(db)
    begun = threading.Event()
    encode = spill

    def slow(files: Files, root_path: str, path: str, pieces: Sequence[Piece]) -> dict[str, Any]:
        # The spill file is a pipe, so the worker waits until somebody writes to it.
        job = encode(files, root_path, path, pieces)
        os.mkfifo(os.path.join(root_path, "data", "pipe"))
        begun.set()
        return {**job, "spill": "data/pipe"}

    monkeypatch.setattr(flush_worker, "spill", slow)
    ended: list[str] = []

    def work() -> None:
        try:
            flush(db._writer(), write=worker.write)
        except JobCancelled as error:
            ended.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(60)
    worker.stop()
    thread.join(60)
    assert ended and "closing" in ended[0]
    assert files_of(db) == []
    assert table.count() == 100
    monkeypatch.setattr(flush_worker, "spill", encode)
    with pytest.raises(JobCancelled):
        flush(db._writer(), write=worker.write)
    assert flush(db._writer()).rows == 100 and table.count() == 100


def test_a_damaged_spill_file_is_a_storage_error(db: Database) -> None:
    """The rows are still in memory."""
    table = numbers(db)
    messages = []

    def damaged(files: Files, root_path: str, pieces: Sequence[Piece]) -> list[Written]:
        job = spill(files, root_path, "data/spill", pieces)
        path = Path(root_path, "data/spill")
        path.write_bytes(b"\xff" * path.stat().st_size)
        try:
            return decode_written(run_spilled(files, job))
        except StorageError as error:
            messages.append(str(error))
            raise
        finally:
            path.unlink()

    with pytest.raises(StorageError, match=r"data/spill of a flush cannot be read at offset \d+"):
        flush(db._writer(), write=damaged)
    assert messages and files_of(db) == []
    assert flush(db._writer()).rows == 100 and table.count() == 100


def test_vectors_shared_by_runs_are_spilled_once(tmp_path: Path) -> None:
    """An update of ten columns has ten runs with the same rowids and timestamps."""
    sizes = []

    def measure(files: Files, root_path: str, pieces: Sequence[Piece]) -> list[Written]:
        spill(files, root_path, "data/spill", pieces)
        sizes.append(files.size(os.path.join(root_path, "data/spill")))
        files.unlink(os.path.join(root_path, "data/spill"))
        return write_pieces(files, root_path, pieces)

    with open_database(tmp_path / "s") as db:
        names = [f"c{number}" for number in range(10)]
        table = db.create_table("t", {"k": "int64", **dict.fromkeys(names, "int8")}, "k")
        keys = pa.array(range(10_000))
        table.insert(pa.table({"k": keys, **dict.fromkeys(names, pa.nulls(10_000, pa.int8()))}))
        db.flush()
        table.update(pa.table({"k": keys, **dict.fromkeys(names, pa.array([1] * 10_000, pa.int8()))}))
        flush(db._writer(), write=measure)
    # Ten values of one byte, and 16 bytes for rowid and timestamp once.
    assert sizes[0] < 10_000 * (10 + 16) * 1.1
