"""A file at the path of another file is found as damage, and never gives wrong rows.

The files have equal sizes and right checksums. They are exchanged between rowsets, tablets, tables and
stores, or come from another history of the same store.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.corruption.seeded import copy_store
from tests.sampled import is_long_run
from tests.support import compact_deltas, open_database, rows

import nyala
from nyala.env import SYSTEM
from nyala.errors import CorruptionError
from nyala.handover import commits as handover
from nyala.tablet.jobs.staged_files import read_staged, write_staged

WIDE = [f"c{number}" for number in range(20)]


def build(path: Path, add: int = 0) -> dict[str, Any]:
    """Create a store of two tables with two tablets with two rowsets, and every kind of file.

    add: added to the values, so that two stores differ.
    Returns: the rows now and at an earlier moment, and the names of the files.
    """
    db = open_database(path)
    for name in ("t", "u"):
        split = nyala.range_partition("k", splits=[1000])
        db.create_table(name, dict.fromkeys(("k", *WIDE), "int64"), "k", partition_by=split, history=None)
    tables = [db["t"], db["u"]]

    def batch(base: int, value: int) -> Any:
        keys = [base, base + 1, base + 1000, base + 1001]
        return pa.table({"k": keys, **{c: [value + key % 1000 for key in keys] for c in WIDE}})

    def change(base: int, value: int, column: str) -> None:
        for n, table in enumerate(tables):
            table.update({"k": [base, base + 1000], column: [value + n + add, value + n + add + 5]})

    def insert(base: int) -> None:
        for n, table in enumerate(tables):
            table.insert(batch(base, 100 * n + add))
        db.flush()

    insert(0)
    middle = db.now()
    change(0, 7, "c3")
    db.flush()
    for table in tables:
        table.compact()  # of one rowset and a few of its columns: a part, and its UNDO
    insert(10)
    for value in range(4):
        change(0, 20 + value, "c4")
        db.flush()
    compact_deltas(db._writer())
    for base in (0, 10):
        change(base, 50, "c5")
    db.flush()
    for n, table in enumerate(tables):
        table.update({"k": [0], "c6": [60 + n + add]})  # in the log alone
    found = {
        "middle": middle,
        "then": read_rows(db, middle),
        "now": read_rows(db),
        "files": sorted(db._writer().state.files()),
    }
    db.close()
    return found


def read_rows(db: nyala.Database, at: int | None = None) -> list[Any]:
    return [rows(db[name], at=at) for name in ("t", "u")]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two stores with the same history and different values, and the rows and files of the first."""
    folder = tmp_path_factory.mktemp("stores")
    held = build(folder / "one")
    held["others"] = build(folder / "two", add=1000)["files"]
    return folder / "one", folder / "two", held


def expect_found(path: Path, held: dict[str, Any], *wrong: Path) -> None:
    """Assert that the check reports each of these files, and that no read gives wrong rows."""
    report = nyala.check(path)
    assert not report.ok
    named = {str(problem.path) for problem in report.problems}
    assert {str(file) for file in wrong} <= named, report.problems
    failures = 0
    for read_only in (True, False):
        try:
            with nyala.connect(path, maintenance=False, read_only=read_only) as db:
                for at, right in ((None, held["now"]), (held["middle"], held["then"])):
                    try:
                        assert read_rows(db, at) == right
                    except CorruptionError as error:
                        failures += 1
                        assert "expected" in str(error) and "found" in str(error)
        except CorruptionError:
            failures += 1
    assert failures >= 2


def of_kind(kind: str, names: list[str]) -> list[str]:
    """Return the data files of a kind."""
    return [
        name for name in names if name.endswith(kind) and (kind != ".undo" or not name.endswith(".base.undo"))
    ]


@pytest.mark.parametrize("kind", [".base", ".base.undo", ".part", ".undo", ".redo"])
def test_files_of_one_store_exchanged(stores: Any, tmp_path: Path, kind: str) -> None:
    """Two files of different rowsets, tablets or tables are exchanged."""
    one, _, held = stores
    files = of_kind(kind, held["files"])
    assert len(files) > 1, "the store has no two files of this kind"
    pairs = [(files[0], files[-1]), (files[0], files[1])][: 2 if is_long_run() else 1]
    for number, (first, second) in enumerate(dict.fromkeys(pairs)):
        path = copy_store(one, tmp_path / f"{number}")
        shutil.copy(one / first, path / second)
        shutil.copy(one / second, path / first)
        expect_found(path, held, path / first, path / second)


@pytest.mark.parametrize("kind", [".base", ".base.undo", ".part", ".undo", ".redo"])
def test_files_of_another_store(stores: Any, tmp_path: Path, kind: str) -> None:
    """The files of another store have the same names and sizes."""
    one, two, held = stores
    path = copy_store(one, tmp_path / "s")
    mine, others = of_kind(kind, held["files"]), of_kind(kind, held["others"])
    for name, other in zip(mine, others, strict=True):
        shutil.copy(two / other, path / name)
    expect_found(path, held, *(path / name for name in mine))


def test_the_log_of_another_store(stores: Any, tmp_path: Path) -> None:
    """The log of another store is neither replayed nor cut off as torn."""
    one, two, held = stores
    newest = max(name for name in os.listdir(one / "wal") if name != "position")
    for name in (newest, "position"):
        path = copy_store(one, tmp_path / name)
        shutil.copy(two / "wal" / name, path / "wal" / name)
        before = (path / "wal" / name).read_bytes()
        expect_found(path, held, path / "wal" / name)
        assert (path / "wal" / name).read_bytes() == before


def test_a_torn_log_of_another_store_is_not_cut_off(tmp_path: Path) -> None:
    """A segment of another store without a footer looks like a torn tail."""
    segments = {}
    for name in ("one", "two"):
        db = open_database(tmp_path / name)
        db.create_table("t", {"k": "int64"}, "k").insert({"k": [1]})
        copy_store(tmp_path / name, tmp_path / f"{name} killed")
        db.close()
        (segments[name],) = (tmp_path / f"{name} killed" / "wal").glob("wal-*")
    shutil.copy(segments["two"], segments["one"])
    (tmp_path / "one killed" / "wal" / "position").unlink()
    (tmp_path / "one killed" / "lock").unlink()  # it names this process, which lives
    for read_only in (True, False):
        with pytest.raises(CorruptionError, match="another store"):
            nyala.connect(tmp_path / "one killed", read_only=read_only)
    assert segments["one"].read_bytes() == segments["two"].read_bytes()


def test_the_catalogue_of_another_store_deletes_nothing(stores: Any, tmp_path: Path) -> None:
    """Neither an open nor a repair removes files that the catalogue of another store does not name."""
    one, two, _ = stores
    for lost in ("", "wal/position"):
        path = copy_store(one, tmp_path / f"s{len(lost)}")
        shutil.copy(two / "nyala.json", path)
        if lost:
            (path / lost).unlink()
        extra = path / "data" / "1" / "99.base"
        shutil.copy(next((one / "data").rglob("*.base")), extra)
        with pytest.raises(CorruptionError, match="another store"):
            nyala.connect(path)
        assert not nyala.check(path, repair=True).ok
        assert extra.exists()


def test_files_of_another_history_of_the_same_store(tmp_path: Path) -> None:
    """After a restore of the folder, ids are used again, so files of both histories have similar names."""
    db = open_database(tmp_path / "s")
    table = db.create_table("t", {"k": "int64", "v": "int64"}, "k")
    table.insert({"k": [1, 2], "v": [0, 0]})
    db.flush()
    db.close()
    backup = copy_store(tmp_path / "s", tmp_path / "backup")
    kept = {}
    for path, value in ((tmp_path / "s", 1), (backup, 2)):
        with open_database(path) as db:
            before = db.now()
            db["t"].update({"k": [1], "v": [value]})
            db["t"].insert({"k": [3], "v": [value]})
            db.flush()
            kept[path] = {"middle": before, "now": [rows(db["t"])], "then": [rows(db["t"], at=before)]}

    def without_token(name: Path) -> str:
        return re.sub("-[0-9a-f]{16}", "", str(name))

    files = [
        sorted((f.relative_to(p) for f in (p / "data").rglob("*.*")), key=without_token)
        for p in (tmp_path / "s", backup)
    ]
    assert list(map(without_token, files[0])) == list(map(without_token, files[1]))
    with nyala.connect(backup, read_only=True) as db:
        db["t"].scan().to_arrow()
    changed = 0
    for other, name in zip(*files, strict=True):
        if other == name:
            continue
        changed += 1
        path = copy_store(backup, tmp_path / f"again {changed}")
        shutil.copy(tmp_path / "s" / other, path / name)
        assert {Path(str(problem.path)).name for problem in nyala.check(path).problems} == {name.name}
        with nyala.connect(path, maintenance=False) as db:
            for at, right in ((None, kept[backup]["now"]), (kept[backup]["middle"], kept[backup]["then"])):
                try:
                    assert [rows(db["t"], at=at)] == right
                except CorruptionError as error:
                    assert "this is a different file" in str(error)
    assert changed >= 3, "base, UNDO and REDO"


def test_repair_of_exchanged_files_keeps_what_may_be_misplaced(stores: Any, tmp_path: Path) -> None:
    """A repair does not remove a data file under a wrong name while the store lacks a file."""
    one, _, held = stores
    path = copy_store(one, tmp_path / "s")
    first = path / of_kind(".base", held["files"])[0]
    first.rename(first.with_name("77.base"))
    report = nyala.check(path, repair=True)
    assert not report.ok and first.with_name("77.base").exists()
    with pytest.raises(nyala.StorageError, match="is missing"), nyala.connect(path, maintenance=False) as db:
        read_rows(db)
    first.with_name("77.base").rename(first)
    assert nyala.check(path).ok
    with nyala.connect(path, maintenance=False) as db:
        assert read_rows(db) == held["now"]


def test_staged_files_exchanged(tmp_path: Path) -> None:
    """A staged file at the path of another job's or task's file is not committed."""
    nyala.connect(tmp_path / "s").close()
    paths = []
    folders = [handover.new_staging(str(tmp_path / "s"))[1] for _ in range(2)]
    for folder, name in itertools.product(folders, ("a", "b")):
        value = len(paths)
        batch = pa.record_batch({"k": [value]})
        write_staged(SYSTEM, f"{folder}/{name}.arrow", batch.schema, iter([batch]))
        paths.append(Path(folder) / f"{name}.arrow")
    for other in paths[1:3]:
        mine = paths[0].read_bytes()
        paths[0].write_bytes(other.read_bytes())
        with pytest.raises(CorruptionError, match="in the wrong place"):
            read_staged(SYSTEM, str(paths[0].parent), {"files": [paths[0].name], "columns": ["k"]})
        paths[0].write_bytes(mine)
    read_staged(SYSTEM, str(paths[0].parent), {"files": [paths[0].name], "columns": ["k"]})
