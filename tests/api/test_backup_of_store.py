"""Backups of whole stores: all tables at one moment, beside writers, after kills, and in buckets."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nyala
from nyala.backup import plan as planning
from nyala.backup import restore as restoring
from nyala.backup import write as writing
from nyala.backup.layout import open_place
from nyala.env import process_mark
from nyala.errors import CorruptionError, InvalidArgumentError, TableExistsError, TableNotFoundError
from nyala.testing.s3_server import S3Server
from tests.support import folder_in_memory, rows

KEY_VALUE = {"k": "int64", "v": "int64"}


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_in_memory() as made:
        yield made


@pytest.fixture
def db(folder: Path) -> Iterator[nyala.Database]:
    with nyala.connect(folder / "store", maintenance=False) as opened:
        for name in ("a", "b"):
            opened.create_table(name, KEY_VALUE, "k", nyala.hash_partition("k", buckets=2))
        yield opened


def put(db: nyala.Database, *keys: int, tables: tuple[str, ...] = ("a", "b")) -> None:
    """Write the same rows to several tables, in one batch."""
    with db.batch() as batch:
        for name in tables:
            batch.upsert(name, {"k": keys, "v": keys})


def names_of(made: list[nyala.RestoredTable]) -> list[str]:
    return [table.name for table in made]


# --- one moment ----------------------------------------------------------------------------------------------------


def test_all_tables_are_of_one_moment_while_others_write(db: nyala.Database, folder: Path) -> None:
    """Each batch writes a key to both tables, so a backup of one moment has equal rows in both."""
    end = threading.Event()

    def write() -> None:
        number = 0
        while not end.is_set():
            number += 1
            put(db, number)
            if number % 20 == 0:
                db.flush()
            if number % 50 == 0:
                db["a"].compact()

    thread = threading.Thread(target=write)
    thread.start()
    made = []
    try:
        while len(made) < 4:
            result = db.backup(folder / "backups")
            if db["a"].at(result.until).count() > 10 * len(made):
                made.append(result)
    finally:
        end.set()
        thread.join()
    assert {table.until for result in made for table in result.tables} == {result.until for result in made}
    assert [table.kind for table in made[-1].tables] == ["incremental"] * 2
    for number, result in enumerate(made):
        with nyala.connect(folder / str(number), maintenance=False) as other:
            nyala.restore_backup(folder / "backups", other, at=result.until)
            assert rows(other["a"]) == rows(other["b"]) == rows(db["a"], at=result.until) != []


def test_a_restore_of_a_whole_store(db: nyala.Database, folder: Path) -> None:
    """A restore has the tables of the store's record: no dropped table, and no later backup of a table."""
    put(db, 1, 2)
    first = db.backup(folder / "backups")
    db.drop_table("b")
    db.create_table("c", KEY_VALUE, "k").insert({"k": [3], "v": [3]})
    second = db.backup(folder / "backups")
    put(db, 9, tables=("a",))
    alone = db.backup(folder / "backups", ["a"])
    assert [(table.table, table.of_store) for table in alone.tables] == [("a", False)]
    listed = nyala.list_backups(folder / "backups")
    assert [(table.table, table.kind, table.of_store) for table in listed] == [
        ("a", "full", True), ("b", "full", True), ("a", "incremental", True), ("c", "full", True),
        ("a", "incremental", False),
    ]  # fmt: skip

    assert names_of(nyala.restore_backup(folder / "backups", folder / "new")) == ["a", "c"]
    assert names_of(nyala.restore_backup(folder / "backups", folder / "old", at=first.until)) == ["a", "b"]
    with nyala.connect(folder / "new") as new, nyala.connect(folder / "old") as old:
        assert rows(new["a"]) == rows(db["a"], at=second.until) and rows(new["c"]) == rows(db["c"])
        assert rows(old["b"]) == rows(old["a"]) == [(1, 1), (2, 2)]
        assert new["a"].description.partition_text == "HASH (k) BUCKETS 2"
    (made,) = nyala.restore_backup(folder / "backups", db, {"a": "a2"})
    assert (made.name, made.source, made.until) == ("a2", "a", alone.until)
    with pytest.raises(
        InvalidArgumentError, match=r"no backup of a whole store from .* or earlier: name the tables"
    ):
        nyala.restore_backup(folder / "backups", db, at=first.until - 1)


def test_unchanged_tables_need_no_new_backup(db: nyala.Database, folder: Path) -> None:
    """A backup of the whole store uses existing backups of its tables, if they are of the same moment."""
    put(db, 1)
    db.backup(folder / "backups", ["a"])
    again = db.backup(folder / "backups")
    assert [table.table for table in again.tables] == ["b"] and again.unchanged == ("a",)
    again = db.backup(folder / "backups")
    assert (again.tables, again.unchanged, again.rows, again.bytes) == ((), ("a", "b"), 0, 0)
    assert names_of(nyala.restore_backup(folder / "backups", folder / "new")) == ["a", "b"]
    assert [table.kind for table in db.backup(folder / "backups", full=True).tables] == []
    put(db, 2)
    assert [table.kind for table in db.backup(folder / "backups", full=True).tables] == ["full", "full"]


def test_two_stores_in_one_folder_do_not_mix(db: nyala.Database, folder: Path) -> None:
    """Tables with equal names and ids of two stores get full backups, not increments of each other."""
    put(db, 1)
    db.backup(folder / "backups")
    with nyala.connect(folder / "other", maintenance=False) as other:
        for name in ("a", "b"):
            other.create_table(name, KEY_VALUE, "k", nyala.hash_partition("k", buckets=2))
        put(other, 7)
        assert [table.kind for table in other.backup(folder / "backups").tables] == ["full", "full"]
    put(db, 2)
    assert [table.kind for table in db.backup(folder / "backups").tables] == ["full", "full"]
    nyala.restore_backup(folder / "backups", folder / "new")
    with nyala.connect(folder / "new") as new:
        assert rows(new["a"]) == [(1, 1), (2, 2)]
        nyala.restore_backup(folder / "backups", new, {"a": "again"})
        put(new, 3)
        assert {table.kind for table in new.backup(folder / "backups").tables} == {"full"}


def test_created_or_rewritten_tables_get_a_full_backup(db: nyala.Database, folder: Path) -> None:
    put(db, 1)
    db.backup(folder / "backups")
    db.drop_table("a")
    db.create_table("a", KEY_VALUE, "k")
    db["b"].repartition(nyala.hash_partition("k", buckets=3))
    assert [table.kind for table in db.backup(folder / "backups").tables] == ["full", "full"]
    with db["b"].alter() as alteration:
        alteration.set_history(0)
    put(db, 2)
    db["b"].compact()
    assert [table.kind for table in db.backup(folder / "backups").tables] == ["incremental", "full"]


def test_a_reader_process_makes_backups(db: nyala.Database, folder: Path) -> None:
    put(db, 1)
    with nyala.connect(folder / "store", read_only=True) as reader:
        assert [table.kind for table in reader.backup(folder / "backups").tables] == ["full", "full"]
        put(db, 2)
        made = reader.backup(folder / "backups")
        assert [(table.kind, table.rows) for table in made.tables] == [("incremental", 1)] * 2
        with pytest.raises(nyala.ReadOnlyError):
            nyala.restore_backup(folder / "backups", reader, {"a": "x"})
    nyala.restore_backup(folder / "backups", db, {"a": "again"})
    assert rows(db["again"]) == [(1, 1), (2, 2)]


def test_large_tablets_have_several_files(
    db: nyala.Database, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a backup nor a restore needs memory for a whole tablet."""
    monkeypatch.setattr(writing, "PART_BYTES", 10_000)
    monkeypatch.setattr(restoring, "BATCH_BYTES", 50_000)
    held: list[int] = []
    apply_rows = restoring.apply_rows

    def noted(store: Any, name: str, step: Any, part: Any) -> None:
        held.append(part.nbytes)
        apply_rows(store, name, step, part)

    monkeypatch.setattr(restoring, "apply_rows", noted)
    for number in range(6):
        put(db, *range(number * 5000, (number + 1) * 5000), tables=("a",))
        db.flush()
    (made,) = db.backup(folder / "backups", ["a"]).tables
    assert made.rows == 30_000 and made.files is not None and made.files >= 6
    db["a"].update(set={"v": -1}, where="k < 20000")
    (changed,) = db.backup(folder / "backups", ["a"]).tables
    assert changed.kind == "incremental" and changed.rows == 20_000
    nyala.restore_backup(folder / "backups", db, {"a": "again"})
    assert rows(db["again"]) == rows(db["a"]) and max(held) < 200_000 and len(held) > 10


def test_columns_with_the_names_of_a_feed(db: nyala.Database, folder: Path) -> None:
    """A table with a column `_change_type` has no change feed, so each of its backups is full."""
    table = db.create_table("odd", {"k": "int64", "_change_type": "string"}, "k")
    for number in range(2):
        table.insert({"k": [number], "_change_type": ["x"]})
        assert [made.kind for made in db.backup(folder / "backups", ["odd"]).tables] == ["full"]
    nyala.restore_backup(folder / "backups", db, {"odd": "again"})
    assert rows(db["again"]) == [(0, "x"), (1, "x")]


# --- errors and kills -----------------------------------------------------------------------------------------------


def test_a_missing_file_is_reported_before_any_table_exists(db: nyala.Database, folder: Path) -> None:
    put(db, 1, 2, 3)
    made = db.backup(folder / "backups")
    min(Path(made.tables[1].path).glob("*.parquet")).unlink()
    with pytest.raises(
        CorruptionError, match=r"table 'b' \(being restored\): .*parquet: the file is missing"
    ):
        nyala.restore_backup(folder / "backups", folder / "new")
    with nyala.connect(folder / "new") as new:
        assert new.list_tables() == []
        assert names_of(nyala.restore_backup(folder / "backups", new, ["a"])) == ["a"]


def test_all_restored_tables_get_their_names_or_none(
    db: nyala.Database, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a table with one of these names is created during the restore, no restored table remains."""
    put(db, 1, 2, 3)
    db.backup(folder / "backups")
    with nyala.connect(folder / "new", maintenance=False) as new:
        apply_rows = restoring.apply_rows

        def taking(*arguments: Any) -> None:
            apply_rows(*arguments)
            if "b" not in new:
                new.create_table("b", KEY_VALUE, "k")

        monkeypatch.setattr(restoring, "apply_rows", taking)
        with pytest.raises(TableExistsError, match="'b' already exists"):
            nyala.restore_backup(folder / "backups", new)
        assert new.list_tables() == ["b"]
        new.drop_table("b", purge=True)
        monkeypatch.undo()
        assert names_of(nyala.restore_backup(folder / "backups", new)) == ["a", "b"]
        new["a"].insert({"k": [9], "v": [9]})
    with nyala.connect(folder / "new", maintenance=False) as new:
        assert (new["a"].count(), new["b"].count()) == (4, 3) and new.check().ok


def test_a_damaged_record_of_a_store_is_an_error(db: nyala.Database, folder: Path) -> None:
    """A restore does not use an older record instead. Its tables can still be restored by name."""
    for number in range(2):
        put(db, number)
        made = db.backup(folder / "backups")
    record = folder / "backups" / "%store" / f"{made.until}.json"
    record.write_bytes(record.read_bytes().replace(b'"a"', b'"x"', 1))
    with pytest.raises(CorruptionError, match=rf"{made.until}\.json: the backup's metadata is damaged"):
        nyala.restore_backup(folder / "backups", folder / "new")
    assert not (folder / "new").exists()
    assert [table.of_store for table in nyala.list_backups(folder / "backups")] == [True, True, False, False]
    assert names_of(nyala.restore_backup(folder / "backups", folder / "new", ["a", "b"])) == ["a", "b"]
    assert nyala.clean_backups(folder / "backups", made.until + 1) != [] and not record.exists()


def test_a_store_with_a_lost_backup_of_a_table_is_an_error(db: nyala.Database, folder: Path) -> None:
    put(db, 1)
    made = db.backup(folder / "backups")
    Path(made.tables[0].path).rename(folder / "elsewhere")
    with pytest.raises(
        CorruptionError, match=rf"needs the backup '{made.until}' of table 'a', which is missing"
    ):
        nyala.restore_backup(folder / "backups", folder / "new")


def test_wrong_arguments_change_nothing(db: nyala.Database, folder: Path) -> None:
    put(db, 1)
    db.backup(folder / "backups")
    before = sorted(map(str, folder.rglob("*")))
    for error, words, call in (
        (TableNotFoundError, "no table 'c'", lambda: db.backup(folder / "x", ["a", "c"])),
        (InvalidArgumentError, "list of names", lambda: db.backup(folder / "x", "a")),
        (InvalidArgumentError, "needs a folder", lambda: db.backup(5)),  # type: ignore[arg-type]
        (InvalidArgumentError, "needs a folder", lambda: db.backup("")),
        (InvalidArgumentError, "in a bucket: pass a URL", lambda: db.backup(folder / "x", storage_options={})),
        (InvalidArgumentError, "is a URL, but not of a kind", lambda: db.backup("ftp://host/x")),
        (InvalidArgumentError, "accept", lambda: db.backup(folder / "x", progress=lambda: None)),  # type: ignore
        (TableExistsError, "'a' already exists", lambda: nyala.restore_backup(folder / "backups", db)),
        (
            InvalidArgumentError, "two backups would be restored as table 'n'",
            lambda: nyala.restore_backup(folder / "backups", db, {"a": "n", "b": "n"}),
        ),
        (InvalidArgumentError, "list of names", lambda: nyala.restore_backup(folder / "backups", db, "a")),
        (InvalidArgumentError, "takes names", lambda: nyala.restore_backup(folder / "backups", db, [1])),  # type: ignore
        (InvalidArgumentError, "as target", lambda: nyala.restore_backup(folder / "backups", 5)),  # type: ignore
        (InvalidArgumentError, "at=", lambda: nyala.restore_backup(folder / "backups", db, at="soon")),
        (
            InvalidArgumentError, "no backup of table 'c'",
            lambda: nyala.restore_backup(folder / "backups", folder / "x", ["c"]),
        ),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            call()
    assert sorted(map(str, folder.rglob("*"))) == before and db.list_tables() == ["a", "b"]


CHILD = """
import os, signal, sys
import nyala
from nyala.backup import layout, write
from nyala.env.posix_files import PosixFiles

folder, step, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
owner = {"record": layout.StoreRecord, "rename": PosixFiles}.get(step.split("-")[0], write)
name = {"record": "write", "rename": "rename"}.get(step.split("-")[0], step.split("-")[0])
work, left = getattr(owner, name), [number]

def killing(*args, **options):
    left[0] -= 1
    is_last = left[0] == 0  # another thread may continue counting
    if is_last and step.endswith("-before"):
        os.kill(os.getpid(), signal.SIGKILL)
    made = work(*args, **options)
    if is_last:
        os.kill(os.getpid(), signal.SIGKILL)
    return made

db = nyala.connect(folder + "/store", maintenance=False)
setattr(owner, name, killing)
db.backup(folder + "/backups")
"""


@pytest.mark.parametrize(
    ("step", "number"),
    [("begin_backup-after", 1), ("begin_backup-after", 2), ("write_part-after", 1), ("write_part-after", 4),
     ("finish_backup-before", 1), ("rename-after", 1), ("finish_backup-after", 1), ("finish_backup-after", 2),
     ("record-before", 1)],
)  # fmt: skip
def test_a_killed_backup_is_ignored_and_the_next_removes_it(folder: Path, step: str, number: int) -> None:
    """Complete backups of tables stay. A restore of the whole store uses the backup before."""
    with nyala.connect(folder / "store", maintenance=False) as db:
        for name in ("a", "b"):
            db.create_table(name, KEY_VALUE, "k", nyala.hash_partition("k", buckets=2))
        put(db, *range(10))
        first = db.backup(folder / "backups")
        put(db, *range(5, 15))
    child = subprocess.run([sys.executable, "-c", CHILD, str(folder), step, str(number)], timeout=60)
    assert child.returncode == -signal.SIGKILL
    whole = [table for table in nyala.list_backups(folder / "backups") if table.of_store]
    assert {table.until for table in whole} == {first.until} and len(whole) == 2
    made = nyala.restore_backup(folder / "backups", folder / "then")
    assert {table.until for table in made} == {first.until} and [table.rows for table in made] == [10, 10]
    with nyala.connect(folder / "store", maintenance=False) as db:
        put(db, 99)
        again = db.backup(folder / "backups")
        assert [table.kind for table in again.tables] == ["incremental"] * 2
        nyala.restore_backup(folder / "backups", folder / "now")
        with nyala.connect(folder / "now", maintenance=False) as now:
            assert rows(now["a"]) == rows(now["b"]) == rows(db["a"])
    found = {str(path) for name in ("a", "b") for path in (folder / "backups" / name).iterdir()}
    assert found == {table.path for table in nyala.list_backups(folder / "backups")}


# --- in buckets ---------------------------------------------------------------------------------------------------


def test_to_and_from_buckets(folder: Path) -> None:
    """A store in a bucket is backed up to another prefix and to a folder, and restored from both."""
    with S3Server() as server:
        options = {"storage_options": server.options}
        kept = {**options, "cache_dir": folder / "cache", "maintenance": False}
        url = "s3://bucket/backups"
        with nyala.connect("s3://bucket/store", group_interval=0, **kept) as db:
            for name in ("a", "Überblick 1/2"):
                db.create_table(name, KEY_VALUE, "k").insert({"k": range(100), "v": [0] * 100})
            first = db.backup(url, **options)
            db.flush()
            db["a"].delete(where="k < 10")
            second = db.backup(url, **options)
            assert [(table.kind, table.rows) for table in second.tables] == [
                ("incremental", 10),
                ("incremental", 0),
            ]
            assert db.backup(folder / "backups").rows == 190
            with pytest.raises(InvalidArgumentError, match="is inside the store's folder"):
                db.backup("s3://bucket/store/backups", **options)
            nyala.restore_backup(url, db, {"a": "then"}, first.until, **options)
            assert db["then"].count() == 100
        nyala.restore_backup(url, folder / "new", **options)
        with nyala.connect(folder / "new") as new:
            assert (new["a"].count(), new["Überblick 1/2"].count()) == (90, 100)
            new.backup("s3://bucket/others", **options)
        with nyala.connect("s3://bucket/again", group_interval=0, **kept) as again:
            nyala.restore_backup("s3://bucket/others", again, **options)
            nyala.restore_backup(folder / "backups", again, {"a": "a2"})
            assert rows(again["a"]) == rows(again["a2"])
        listed = nyala.list_backups(url, **options)
        assert [table.of_store for table in listed] == [True] * 4
        assert len(nyala.clean_backups(url, second.until, **options)) == 0
        with pytest.raises(InvalidArgumentError, match="does not exist: pass the folder"):
            nyala.list_backups("s3://bucket/nowhere", **options)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has marks of processes")
def test_files_of_a_killed_process_are_removed_from_a_bucket(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object cannot be renamed, so the files of an interrupted backup are below its final name."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mark = process_mark(process.pid)
    process.kill()
    process.communicate()
    url = "s3://bucket/backups"
    with S3Server() as server, nyala.connect(folder / "store", maintenance=False) as db:
        options = {"storage_options": server.options}
        db.create_table("c", KEY_VALUE, "k").insert({"k": [1], "v": [1]})
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(planning, "process_mark", lambda: mark)
            patched.setattr(writing, "finish_backup", interrupted)
            patched.setattr(writing, "remove_work", lambda backup: None)
            db.backup(url, ["c"], **options)
        with open_place(url, server.options) as place:
            (left,) = place.env.files.list_dir(f"{url}/c")
            assert nyala.list_backups(url, **options) == []
            db["c"].insert({"k": [2], "v": [2]})
            (made,) = db.backup(url, ["c"], **options).tables
            assert place.env.files.list_dir(f"{url}/c") == [str(made.until)] != [left]


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt
