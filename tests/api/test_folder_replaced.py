"""A store's folder is moved, removed or replaced while the store is open.

The open store never changes another folder at its path, and acknowledged rows are not lost.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nyala
from nyala import _worker
from nyala.env import SYSTEM
from nyala.tablet.workers.protocol import placed
from tests.sampled import is_long_run

GONE = "was moved, removed or replaced since it was opened; nothing was written"


def filled(path: Path, **options: Any) -> nyala.Database:
    db = nyala.connect(path, maintenance=False, **options)
    t = db.create_table("t", {"k": "int64", "v": "string"}, "k", history=0)
    for k in range(3):
        t.insert([{"k": k, "v": "old"}])
    db.flush()
    t.update([{"k": 0, "v": "changed"}])  # something to compact, to flush and to collect
    return db


def moved(path: Path) -> Path:
    return path.rename(path.with_name("moved"))


def replaced_by_another_folder(path: Path) -> Path:
    shutil.rmtree(path)
    return path


def emptied(path: Path) -> Path:
    for inside in path.iterdir():
        shutil.rmtree(inside) if inside.is_dir() else inside.unlink()
    return path


def new_store(path: Path) -> nyala.Database:
    """Create a store whose rowset, log segment and tablet have the same numbers as in `filled`."""
    db = nyala.connect(path, maintenance=False)
    t = db.create_table("t", {"k": "int64", "v": "string"}, "k")
    for k in range(5):
        t.insert([{"k": k, "v": "new"}])
        if k == 2:
            db.flush()
    return db


def content(folder: Path) -> dict[str, str]:
    """Return a hash of each file in a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


OPERATIONS: dict[str, Callable[[nyala.Database], object]] = {
    "insert": lambda db: db["t"].insert([{"k": 100, "v": "late"}]),
    "upsert": lambda db: db["t"].upsert([{"k": 1, "v": "late"}]),
    "delete": lambda db: db["t"].delete([{"k": 1}]),
    "flush": lambda db: db.flush(),
    "compact": lambda db: db["t"].compact(),
    "vacuum": lambda db: db["t"].vacuum(),
    "create": lambda db: db.create_table("u", {"k": "int64"}, "k"),
    "drop": lambda db: db.drop_table("t"),
    "rename": lambda db: db.rename_table("t", "u"),
    "copy": lambda db: db.copy_table("t", "u"),
    "garbage": lambda db: db._store.collect_garbage(),
    "close": lambda db: db.close(),
}


EVENTS = [replaced_by_another_folder, emptied, moved]


@pytest.mark.parametrize("event", EVENTS)
def test_an_old_handle_never_touches_a_new_store(tmp_path: Path, event: Callable[[Path], Path]) -> None:
    """Each operation is tried after one of the events; in `make test-long` after each of them."""
    chosen = [*OPERATIONS] if is_long_run() else [*OPERATIONS][EVENTS.index(event) :: len(EVENTS)]
    for name in chosen:
        path = tmp_path / name / "s"
        path.parent.mkdir()
        old = filled(path)
        event(path)
        new = new_store(path)
        before = content(path)
        if name == "close":
            OPERATIONS[name](old)
        else:
            # In the emptied folder itself, connecting again has closed the old store.
            with pytest.raises(nyala.StorageError, match=f"{GONE}|is closed"):
                OPERATIONS[name](old)
        assert content(path) == before, name
        old.close()
        assert content(path) == before, name
        assert new.check().ok
        new["t"].insert([{"k": 5, "v": "new"}])
        new.close()
        with nyala.connect(path) as again:
            assert again["t"].scan(where="v = 'new'").count() == 6, name
            assert again.check().ok


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_moved_store_keeps_acknowledged_rows(tmp_path: Path, name: str) -> None:
    db = filled(tmp_path / "s")
    there = moved(tmp_path / "s")
    if name != "close":
        with pytest.raises(nyala.StorageError, match=GONE):
            OPERATIONS[name](db)
        assert db["t"].count() == 3  # reads still work
    db.close()
    assert not (tmp_path / "s").exists()
    with nyala.connect(there) as again:
        rows = again["t"].scan(order_by_key=True).to_arrow()["v"].to_pylist()
        assert rows == ["changed", "old", "old"]
        assert again.list_tables() == ["t"]
        assert again.check().ok


def test_a_store_that_is_moved_back_can_be_used_again(tmp_path: Path) -> None:
    with filled(tmp_path / "s") as db:
        there = moved(tmp_path / "s")
        with pytest.raises(nyala.StorageError, match=GONE):
            db.flush()
        there.rename(tmp_path / "s")
        db.flush()
        db["t"].insert([{"k": 9, "v": "x"}])


def test_a_changed_link_leads_to_another_folder(tmp_path: Path) -> None:
    link = tmp_path / "link"
    (tmp_path / "one").mkdir()
    link.symlink_to(tmp_path / "one")
    with filled(link) as db:
        new_store(tmp_path / "two").close()
        before = content(tmp_path / "two")
        link.unlink()
        link.symlink_to(tmp_path / "two")
        with pytest.raises(nyala.StorageError, match=GONE):
            db.flush()
    assert content(tmp_path / "two") == before


def test_a_large_batch_of_files_is_refused_too(tmp_path: Path) -> None:
    with filled(tmp_path / "s") as db:
        db._store.direct_commit_bytes = 0
        moved(tmp_path / "s")
        with pytest.raises(nyala.StorageError, match=GONE):
            db["t"].insert([{"k": 50, "v": "x"}])


@pytest.mark.parametrize("event", [replaced_by_another_folder, emptied, moved])
def test_a_reader_raises_and_reads_no_other_store(tmp_path: Path, event: Callable[[Path], Path]) -> None:
    filled(tmp_path / "s").close()
    reader = nyala.connect(tmp_path / "s", read_only=True)
    scan = reader["t"].scan()
    event(tmp_path / "s")
    new = new_store(tmp_path / "s")
    before = content(tmp_path / "s")
    for read in (lambda: reader["t"].count(), reader.now, lambda: reader["t"].get({"k": 1})):
        with pytest.raises(nyala.StorageError, match="was moved, removed or replaced"):
            read()
    try:
        assert "new" not in scan.to_arrow()["v"].to_pylist()
    except nyala.Error:
        pass  # its files were deleted
    reader.close()
    assert content(tmp_path / "s") == before
    new.close()


def test_a_worker_process_writes_into_no_other_folder(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    job = placed({"root_path": str(tmp_path / "s"), "spill": "data/1/x"}, SYSTEM.files, str(tmp_path / "s"))
    (tmp_path / "s").rename(tmp_path / "moved")
    (tmp_path / "s").mkdir()
    for handler in (_worker.HANDLERS["flush"], _worker.HANDLERS["merge"]):
        with pytest.raises(nyala.StorageError, match="was moved or replaced"):
            handler(dict(job), lambda fields: None)
    assert os.listdir(tmp_path / "s") == []


def test_a_job_creates_no_lease_for_a_moved_store(tmp_path: Path) -> None:
    from nyala.handover.commits import remote_lease

    filled(tmp_path / "s").close()
    moved(tmp_path / "s")
    with pytest.raises(nyala.StorageError, match="there is no store"):
        remote_lease(str(tmp_path / "s"), 60)
    assert not (tmp_path / "s").exists()
