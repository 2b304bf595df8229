"""Several calls of `connect` in one process: each returns a handle of the same open store."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import nyala


def filled(path: Path, **settings: Any) -> nyala.Database:
    db = nyala.connect(path, **settings)
    db.create_table("t", {"k": "int64", "v": "string"}, "k", exist_ok=True).upsert([{"k": 1, "v": "a"}])
    return db


def test_handles_share_rows_and_tables(tmp_path: Path) -> None:
    with filled(tmp_path / "s") as one, nyala.connect(tmp_path / "s") as two:
        two["t"].insert([{"k": 2, "v": "b"}])
        assert one["t"].count() == 2
        one.create_table("u", {"k": "int64"}, "k")
        assert two.list_tables() == ["t", "u"]


def test_other_spellings_of_the_path_lead_to_the_same_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "s")
    with filled(tmp_path / "s") as db:
        for spelling in ("s", "./s/", "link", str(tmp_path / "x" / ".." / "s"), tmp_path / "link" / "."):
            with nyala.connect(spelling) as other:
                other["t"].upsert([{"k": 1, "v": str(spelling)}])
            assert db["t"].get({"k": 1})["v"] == str(spelling)


def test_a_notebook_cell_can_be_run_again(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    space: dict[str, Any] = {"nyala": nyala, "path": tmp_path / "s"}
    cell = (
        "db = nyala.connect(path)\n"
        "t = db.create_table('t', {'k': 'int64'}, 'k', exist_ok=True)\n"
        "n = t.upsert([{'k': 1}])\n"
    )
    for _ in range(3):
        exec(cell, space)
    space["db"].close()
    nyala.connect(tmp_path / "s", durability="os").close()  # its last handle was closed
    assert not recwarn.list


def test_the_store_closes_with_its_last_handle(tmp_path: Path) -> None:
    one, two = filled(tmp_path / "s"), nyala.connect(tmp_path / "s")
    one.close()
    with pytest.raises(nyala.StorageError, match="this Database of the store .* is closed"):
        one["t"]
    two["t"].insert([{"k": 3, "v": "c"}])
    two.close()
    two.close()
    assert not (tmp_path / "s" / "writer.sock").exists()
    with nyala.connect(tmp_path / "s", durability="os") as db:
        assert db["t"].count() == 2


def test_all_calls_of_a_closed_handle_raise(tmp_path: Path) -> None:
    one, two = filled(tmp_path / "s"), nyala.connect(tmp_path / "s")
    table, scan, feed = one["t"], one["t"].scan(), one["t"].changes(since=0)
    snapshot = one.snapshot()
    one.close()
    for use in (
        lambda: table.insert([{"k": 9, "v": "x"}]),
        lambda: table.count(),
        lambda: table.get({"k": 1}),
        lambda: table.flush(),
        scan.to_arrow,
        scan.count,
        feed.to_arrow,
        lambda: snapshot["t"].count(),
        lambda: snapshot.sql("SELECT 1 FROM t").fetchall(),
        lambda: one.sql("SELECT count(*) FROM t").fetchall(),
        lambda: one.maintenance,
        one.flush,
        one.now,
        one.stats,
        one.check,
        one.list_tables,
        lambda: one.create_table("u", {"k": "int64"}, "k"),
    ):
        with pytest.raises(nyala.StorageError, match="is closed"):
            use()
    assert repr(one).endswith("(closed)")
    assert two["t"].count() == 1
    two.close()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("durability", "os"),
        ("memory_limit", "2GB"),
        ("rowset_size", "64MB"),
        ("maintenance", False),
        ("limits", nyala.Limits(max_columns=400)),
    ],
)
def test_the_error_names_a_different_setting(tmp_path: Path, setting: str, value: Any) -> None:
    with filled(tmp_path / "s") as db:
        with pytest.raises(nyala.InvalidArgumentError, match=f"{setting}=.*close\\(\\) that Database first"):
            nyala.connect(tmp_path / "s", **{setting: value})
        assert db["t"].count() == 1
    nyala.connect(tmp_path / "s", **{setting: value}).close()


def test_a_reader_in_the_writers_process_has_its_own_view(tmp_path: Path) -> None:
    with filled(tmp_path / "s") as db, nyala.connect(tmp_path / "s", read_only=True) as reader:
        db["t"].insert([{"k": 2, "v": "b"}])
        assert reader["t"].count() == 2
        with pytest.raises(nyala.ReadOnlyError):
            reader["t"].insert([{"k": 3, "v": "c"}])
    with pytest.raises(nyala.StorageError, match="closed"):
        reader.now()


def test_threads_that_connect_at_once_share_one_store(tmp_path: Path) -> None:
    barrier, errors = threading.Barrier(4), []

    def work(number: int) -> None:
        barrier.wait()
        try:
            for round_ in range(2):
                with nyala.connect(tmp_path / "s", maintenance=False) as db:
                    t = db.create_table("t", {"k": "int64"}, "k", exist_ok=True)
                    t.insert([{"k": number * 100 + round_}])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with nyala.connect(tmp_path / "s") as db:
        assert db["t"].count() == 8


def test_a_forked_child_does_not_share(tmp_path: Path) -> None:
    with filled(tmp_path / "s") as db:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with pytest.raises(nyala.LockedError):
                    nyala.connect(tmp_path / "s", share=False)
                with pytest.raises(nyala.StorageError, match="forked child"):
                    db["t"].count()
                db.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        db["t"].insert([{"k": 2, "v": "b"}])


def test_connect_opens_a_store_again_that_cannot_write(tmp_path: Path) -> None:
    old = filled(tmp_path / "s")
    old._store.poison(OSError("the disk failed"))
    with nyala.connect(tmp_path / "s") as db:
        db["t"].insert([{"k": 2, "v": "b"}])
        assert db["t"].count() == 2
    with pytest.raises(nyala.StorageError, match="closed"):
        old["t"].count()


def test_connect_opens_a_moved_store_at_its_new_path(tmp_path: Path) -> None:
    old = filled(tmp_path / "s")
    (tmp_path / "s").rename(tmp_path / "moved")
    with nyala.connect(tmp_path / "moved") as db, nyala.connect(tmp_path / "s") as other:
        db["t"].insert([{"k": 2, "v": "b"}])
        assert (db["t"].count(), other.list_tables()) == (2, [])
    with pytest.raises(nyala.StorageError, match="closed"):
        old["t"].count()


def test_close_closes_every_file_descriptor(tmp_path: Path) -> None:
    """It does so even if tables, scans, feeds, snapshots and streams still exist."""

    def descriptors() -> set[str]:
        found = set()
        for number in os.listdir("/proc/self/fd"):
            try:
                found.add(os.readlink(f"/proc/self/fd/{number}"))
            except OSError:
                pass
        return {path for path in found if path.startswith(str(tmp_path))}

    held: list[object] = []
    for options in ({}, {"durability": "group"}, {"read_only": True}):
        with nyala.connect(tmp_path / "s", **options) as db:
            if not db.read_only:
                cut = nyala.hash_partition("k", buckets=20)
                t = db.create_table("t", {"k": "int64", "v": "string"}, "k", cut, exist_ok=True)
                t.upsert({"k": list(range(1000)), "v": ["x"] * 1000})
                db.flush()
            t = db["t"]
            scan, feed, snapshot = t.scan(), t.changes(since=0), db.snapshot()
            stream = t.scan().to_reader()
            stream.read_next_batch()
            held += [t, scan, feed, snapshot, stream, scan.to_arrow(), feed.to_arrow(), snapshot["t"].count()]
            db.sql("SELECT count(*) FROM t").fetchall()
            t.get({"k": 5})
        assert descriptors() == set()
    assert held
