"""`Table.purge`: no file has a byte of the purged rows any more, and no other row is lost."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import nyala
from nyala.catalog import object_leases
from nyala.cfile.reader import CFileReader
from nyala.env import SYSTEM
from nyala.errors import InvalidArgumentError, InvalidValueError, ReadOnlyError
from nyala.objects.open import open_objects
from nyala.testing.s3_server import S3Server
from tests.support import folder_in_memory, rows

# Values that cannot occur in files by chance. They are searched in files that store their bytes together.
KEY, SECRETS = "Quizzical-Ada-7f3a", ("first-xylophone-551", "second-xylophone-552", "third-xylophone-553")
NUMBER = 0x1F2E3D4C5B6A7988
NEEDLES = [text.encode() for text in (KEY, *SECRETS)] + [
    NUMBER.to_bytes(8, "little"), NUMBER.to_bytes(8, "big"), (NUMBER ^ 1 << 63).to_bytes(8, "big")
]  # fmt: skip


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_in_memory() as made:
        yield made


@pytest.fixture
def db(folder: Path) -> Iterator[nyala.Database]:
    with nyala.connect(folder / "store", maintenance=False) as opened:
        yield opened


def people(
    db: nyala.Database, encoding: str = "plain", compression: str = "none", **more: Any
) -> nyala.Table:
    text = nyala.column("string", encoding=encoding, compression=compression)
    return db.create_table(
        "people", {"name": text, "city": text, "account": "int64"}, "name",
        nyala.hash_partition("name", buckets=2), **more,
    )  # fmt: skip


def fill(table: nyala.Table) -> None:
    """Write the key to base data, REDO, UNDO, a dead row, a later row, memory, the log, and bounds
    of rowsets.
    """
    others = [f"{letter}-{number}" for letter in "AZ" for number in range(20)]
    table.insert(
        {"name": [*others, KEY], "city": ["Paris"] * 40 + [SECRETS[0]], "account": [*range(40), NUMBER]}
    )
    table.flush()
    table.update([{"name": KEY, "city": SECRETS[1]}, {"name": "A-1", "city": "Rome"}])
    table.flush()
    table.compact()
    table.update([{"name": KEY, "city": SECRETS[2]}])
    table.flush()
    table.delete(KEY)
    table.flush()
    table.insert([{"name": KEY, "city": SECRETS[0], "account": NUMBER}])
    table.flush()
    table.update([{"name": KEY, "city": SECRETS[1]}, {"name": "Z-1", "city": "Oslo"}])


def found_in(files: dict[str, bytes]) -> list[tuple[str, bytes]]:
    return [(name, needle) for name, data in files.items() for needle in NEEDLES if needle in data]


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def decoded(folder: Path) -> set[Any]:
    """Return every value of every column of every data file."""
    values: set[Any] = set()
    for path in (folder / "data").rglob("*"):
        if path.is_file():
            with CFileReader(SYSTEM.files, str(path)) as reader:
                for key in reader.columns():
                    column = reader.column(key)
                    if column is not None:
                        values |= {str(value) for value in column.decode(0, column.row_count).to_pylist()}
    return values


# --- the last byte -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "compression"),
    [("plain", "none"), ("dictionary", "none"), ("prefix", "none"), ("auto", "zstd"), ("auto", "lz4")],
)
def test_no_file_has_a_byte_of_the_purged_row(
    db: nyala.Database, folder: Path, encoding: str, compression: str
) -> None:
    table = people(db, encoding, compression)
    fill(table)
    db.create_table("other", {"k": "int64"}, "k").insert({"k": [1]})  # so that the log is not empty
    if compression == "none":
        assert {needle for _, needle in found_in(files_of(folder / "store"))} >= set(NEEDLES[:4])
    assert KEY in decoded(folder / "store") and str(NUMBER) in decoded(folder / "store")
    kept = {name: table.get(name) for name in ("A-1", "Z-1", "A-7")}

    result = table.purge(KEY)
    assert (result.keys, result.deleted, result.done) == (1, 1, True)
    assert result.rowsets_rewritten >= 1 and result.files_removed >= 2 and result.bytes_rewritten > 0
    assert found_in(files_of(folder / "store")) == []
    assert not {KEY, *SECRETS, str(NUMBER)} & decoded(folder / "store")
    assert {name: table.get(name) for name in kept} == kept and table.count() == 40
    assert db.check().ok and db["other"].count() == 1
    db.close()
    assert nyala.check(folder / "store").ok
    with nyala.connect(folder / "store") as again:
        assert again["people"].count() == 40 and again["people"].purge_status().done
    assert found_in(files_of(folder / "store")) == []


def test_dropped_columns_and_bounds_are_erased_too(db: nyala.Database, folder: Path) -> None:
    """Files still have the values of a dropped column, and the catalogue has the least and the
    greatest key of each rowset.
    """
    table = db.create_table(
        "people", {"name": "string", "note": nyala.column("string", compression="none")}, "name"
    )
    table.insert([(KEY, SECRETS[0])])
    table.flush()
    table.drop_column("note")
    table.add_column("other", "string")
    table.insert([("B", "x")])
    table.flush()
    assert found_in(files_of(folder / "store" / "data"))
    assert table.purge([KEY]).done
    assert found_in(files_of(folder / "store")) == [] and rows(table) == [("B", "x")]
    assert table.purge(["B"]).done
    assert rows(table) == [] and table.tablets()[0].rowsets == 0 and db.check().ok


def test_deleted_rows_are_erased_from_the_history(db: nyala.Database, folder: Path) -> None:
    """A purge accepts keys that are already deleted, and keys that never existed."""
    table = people(db)
    fill(table)
    table.delete(KEY)
    table.flush()
    result = table.purge([KEY, "never"])
    assert (result.keys, result.deleted, result.done) == (2, 0, True) and result.rowsets_rewritten >= 1
    assert found_in(files_of(folder / "store")) == []
    again = table.purge([KEY])
    assert (again.deleted, again.rowsets_rewritten, again.done) == (0, 0, True)


def test_a_purge_in_a_bucket(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaced files stay for ten minutes, and the status says so."""
    with S3Server() as server:
        options = {"storage_options": server.options, "cache_dir": folder / "cache", "maintenance": False}
        url = "s3://bucket/store"

        def objects() -> dict[str, bytes]:
            bucket = open_objects(url, server.options)
            try:
                return {info.key: bucket.get(info.key) or b"" for info in bucket.list("")}
            finally:
                bucket.close()

        with nyala.connect(url, group_interval=0, **options) as db:
            table = people(db)
            fill(table)
            db._store.write_checkpoint()
            assert {needle for _, needle in found_in(objects())} >= set(NEEDLES[:4])
            result = table.purge(KEY)
            assert not result.done and "10 minutes" in result.status.holders[0]
            assert {name.split("/")[0] for name, _ in found_in(objects())} == {"data"}
            monkeypatch.setattr(object_leases, "GRACE_S", 0.0)
            db._store._medium.leases.oldest_needed()
            table.flush()
            assert table.purge(KEY, wait=30).done
            assert found_in(objects()) == [] and table.count() == 40 and db.check().ok
            assert found_in(files_of(folder / "cache")) == []
        with nyala.connect(url, group_interval=0, **options) as db:
            assert db["people"].count() == 40
        assert found_in(objects()) == []


def test_dropped_ranges_and_clones(db: nyala.Database, folder: Path) -> None:
    """A dropped range comes back without the rows. A clone shares files, and the result names it."""
    text = nyala.column("string", encoding="plain", compression="none")
    table = db.create_table(
        "t", {"k": "int64", "v": text}, "k", nyala.range_partition("k", bounds=[(0, 10), (10, 20)])
    )
    table.insert([(1, "x"), (11, SECRETS[0]), (12, "y")])
    table.flush()
    table.update([{"k": 11, "v": SECRETS[1]}])
    with table.alter() as alteration:
        alteration.drop_range(10, 20)
    before = table.purge([1, 11])
    assert (before.deleted, before.done) == (1, True) and found_in(files_of(folder / "store")) == []
    with table.alter() as alteration:
        alteration.undrop_range(10, 20)
    assert rows(table) == [(12, "y")] and db.check().ok

    table.insert([(13, SECRETS[2])])
    table.flush()
    db.clone_table("t", "clone")
    result = table.purge([13])
    assert result.clones == ("clone",) and not result.done and db["clone"].get(13) is not None
    again = db["clone"].purge([13])
    assert again.clones == () and again.done and found_in(files_of(folder / "store")) == []
    assert rows(table) == rows(db["clone"]) == [(12, "y")] and db.check().ok


# --- what is read afterwards ---------------------------------------------------------------------------------------


def test_no_read_finds_the_rows_at_any_moment(db: nyala.Database) -> None:
    table = people(db)
    begin = db.now()
    fill(table)
    before = db.now()
    db.tag("before")
    expected = [row for row in rows(table, at=before) if row[0] != KEY]
    assert table.get(KEY, at=before) is not None and table.history(KEY).num_rows > 4
    result = table.purge([KEY])
    assert table.get(KEY, at=before) is None and table.history(KEY).num_rows == 0
    assert rows(table, at="before") == rows(table, at=before) == expected and rows(table) == expected
    for versions in ("net", "all"):
        feed = table.changes(since=begin, versions=versions)  # type: ignore[arg-type]
        assert KEY not in feed.to_arrow()["name"].to_pylist() and feed.purged == result.timestamp
    assert table.changes(since=result.timestamp).purged is None
    table.restore(to=before)
    assert table.get(KEY) is None


def test_a_purged_key_can_be_inserted_again(db: nyala.Database, folder: Path) -> None:
    """Later purges and compactions keep the history of the new row."""
    table = people(db)
    fill(table)
    old = db.now()
    table.purge([KEY])
    table.insert([{"name": KEY, "city": "new", "account": 1}])
    first = db.now()
    table.update([{"name": KEY, "city": "newer"}])
    table.flush()
    table.compact()
    assert [row["city"] for row in table.history(KEY).to_pylist()] == ["new", "newer"]
    assert table.get(KEY, at=old) is None and table.get(KEY, at=first) == {
        "name": KEY,
        "city": "new",
        "account": 1,
    }
    assert {needle for _, needle in found_in(files_of(folder / "store"))} == {KEY.encode()}


@pytest.mark.parametrize("where", ["memory", "rowset"])
def test_a_key_that_is_inserted_again_during_its_purge(
    db: nyala.Database, folder: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """In memory, the new row may be the same row as the dead one, with a history that is older than
    the purge.
    """
    from nyala.tablet import purge as purging

    table = people(db)
    table.insert(
        [{"name": KEY, "city": SECRETS[0], "account": NUMBER}, {"name": "A", "city": "x", "account": 0}]
    )
    if where == "rowset":
        table.flush()
        table.update([{"name": KEY, "city": SECRETS[1]}])
    old = db.now()
    mark = purging._mark

    def come_back(*arguments: Any) -> int:
        table.insert([{"name": KEY, "city": "new", "account": 1}])
        table.update([{"name": KEY, "city": "newer"}])
        return mark(*arguments)

    monkeypatch.setattr(purging, "_mark", come_back)
    result = table.purge([KEY])
    assert result.done and {needle for _, needle in found_in(files_of(folder / "store"))} == {KEY.encode()}
    assert [row["city"] for row in table.history(KEY).to_pylist()] == ["new", "newer"]
    assert table.get(KEY, at=old) is None and db.check().ok


@pytest.mark.parametrize("seed", range(4))
def test_over_a_random_history(db: nyala.Database, folder: Path, seed: int) -> None:
    """At every moment the table has its earlier rows, except the keys that were purged since."""
    chance = random.Random(seed)
    table = db.create_table(
        "t", {"k": "int64", "v": "int64", "w": "string"}, "k", nyala.hash_partition("k", buckets=2)
    )
    model: dict[int, tuple[int, str | None]] = {}
    past: list[tuple[int, dict[int, tuple[int, str | None]]]] = []
    for number in range(60):
        keys = chance.sample(range(30), 4)
        action = chance.random()
        if action < 0.5:
            table.upsert({"k": keys, "v": [number] * 4, "w": [f"w{number}"] * 4})
            model |= dict.fromkeys(keys, (number, f"w{number}"))
        elif action < 0.7:
            table.delete(keys, on_missing="ignore")
            model = {key: value for key, value in model.items() if key not in keys}
        elif action < 0.82:
            table.flush() if action < 0.77 else table.compact()
        elif action < 0.94:
            table.update({"k": keys, "v": [-number] * 4}, on_missing="ignore")
            model |= {key: (-number, model[key][1]) for key in keys if key in model}
        else:
            assert table.purge(keys).done
            model = {key: value for key, value in model.items() if key not in keys}
            past = [(moment, {k: v for k, v in was.items() if k not in keys}) for moment, was in past]
        past.append((db.now(), dict(model)))
    for moment, was in past:
        assert {row[0]: row[1:] for row in rows(table, at=moment)} == was, moment
    assert db.check().ok
    db.close()
    with nyala.connect(folder / "store") as again:
        for moment, was in past[:: len(past) // 5]:
            assert {row[0]: row[1:] for row in rows(again["t"], at=moment)} == was, moment


def test_writes_during_a_purge(db: nyala.Database, folder: Path) -> None:
    """Rows that another thread writes meanwhile are not lost."""
    table = people(db)
    fill(table)
    end, written = threading.Event(), [0]

    def write() -> None:
        while not end.is_set():
            written[0] += 1
            table.upsert([{"name": f"w-{written[0]}", "city": "x", "account": written[0]}])

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert table.purge(KEY).done
    finally:
        end.set()
        thread.join()
    assert table.count() == 40 + written[0] and db.check().ok
    assert found_in(files_of(folder / "store")) == []


def test_the_next_backup_is_full(db: nyala.Database, folder: Path) -> None:
    """The change feed does not show the deletion, so an incremental backup would keep the row."""
    table = people(db)
    fill(table)
    db.backup(folder / "backups")
    since = table.purge([KEY]).timestamp - 1
    db.close()
    with nyala.connect(folder / "store", maintenance=False) as db:
        table = db["people"]
        assert table.changes(since=since).purged == since + 1
        (made,) = db.backup(folder / "backups").tables
        assert (made.kind, made.rows) == ("full", 40)
        table.delete("A-1")
        assert db.backup(folder / "backups").tables[0].kind == "incremental"
        nyala.restore_backup(folder / "backups", db, {"people": "again"})
        assert rows(db["again"]) == rows(table)


def test_the_next_backup_is_full_after_a_purge_that_deletes_nothing(db: nyala.Database, folder: Path) -> None:
    """The purge writes no row, but the earlier backups still have the row and must be replaced."""
    table, backups = people(db), folder / "backups"
    fill(table)
    db.backup(backups)
    table.delete(KEY)
    last = db.backup(backups)
    result = table.purge([KEY])
    assert result.deleted == 0 and result.timestamp > last.until
    assert table.changes(since=last.until).purged == result.timestamp
    made = db.backup(backups)
    assert [(each.kind, each.rows) for each in made.tables] == [("full", 40)]
    assert db.backup(backups).unchanged == ("people",)
    assert len(nyala.clean_backups(backups, older_than=made.until)) == 2
    kept = [str(pq.read_table(path).to_pylist()) for path in backups.rglob("*.parquet")]
    assert kept and not any(secret in text for secret in (KEY, *SECRETS) for text in kept)
    table.delete("A-1")
    assert db.backup(backups).tables[0].kind == "incremental"
    nyala.restore_backup(backups, db, {"people": "again"})
    assert rows(db["again"]) == rows(table)


def test_the_next_backup_is_full_if_one_was_made_during_the_purge(
    db: nyala.Database, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nyala.tablet import purge as purging

    table = people(db)
    fill(table)
    db.backup(folder / "backups")
    mark = purging._mark

    def after_a_backup(*arguments: Any) -> int:
        assert db.backup(folder / "backups").tables[0].kind == "incremental"
        return mark(*arguments)

    monkeypatch.setattr(purging, "_mark", after_a_backup)
    table.purge([KEY])
    assert db.backup(folder / "backups").tables[0].kind == "full"


# --- who keeps files, and who refuses ------------------------------------------------------------------------------


def test_open_scans_keep_files_and_the_status_says_so(db: nyala.Database, folder: Path) -> None:
    table = people(db)
    fill(table)
    scan = table.scan(where=f"name = '{KEY}'")
    result = table.purge(KEY)
    assert not result.done and result.status.files > 0 and result.status.bytes > 0
    assert result.status.holders == ("scans, views or snapshots of the process that writes",)
    assert scan.to_arrow().num_rows == 1 and not table.purge_status().done
    del scan
    assert table.purge_status().done and found_in(files_of(folder / "store")) == []


def test_readers_in_other_processes_keep_files(db: nyala.Database, folder: Path) -> None:
    table = people(db)
    fill(table)
    with nyala.connect(folder / "store", read_only=True) as reader:
        assert reader["people"].count() == 41
        result = table.purge(KEY)
        assert not result.done and result.status.holders == ("readers in other processes, or jobs",)
        with pytest.raises(ReadOnlyError):
            reader["people"].purge(KEY)
        with pytest.raises(ReadOnlyError):
            reader["people"].purge_status()
    assert table.purge(KEY, wait=5).done and found_in(files_of(folder / "store")) == []


def test_a_purge_can_wait_for_readers(db: nyala.Database) -> None:
    table = people(db)
    fill(table)
    held = [table.scan()]
    timer = threading.Timer(0.3, held.clear)
    timer.start()
    assert table.purge(KEY, wait=30).done
    timer.join()


def test_a_refused_purge_writes_nothing(db: nyala.Database, folder: Path) -> None:
    table = people(db)
    fill(table)
    now, before = db.now(), files_of(folder / "store")

    def refused(error: type[Exception], words: str, call: Callable[[], object]) -> None:
        with pytest.raises(error, match=words):
            call()
        assert db.now() == now and files_of(folder / "store") == before and table.get(KEY) is not None

    with db.snapshot() as snapshot:
        refused(
            InvalidArgumentError,
            r"table 'people' cannot be purged while a snapshot of 20.* is open, .*: close it first",
            lambda: table.purge(KEY),
        )
        assert snapshot["people"].get(KEY) is not None
    with db.transaction():
        refused(InvalidArgumentError, "inside `with db.transaction", lambda: table.purge(KEY))
    transaction = db.transaction()
    transaction.__enter__()
    thread_error: list[BaseException] = []

    def elsewhere() -> None:
        try:
            table.purge(KEY)
        except InvalidArgumentError as error:
            thread_error.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    transaction.__exit__(None, None, None)
    assert "while a transaction is open" in str(thread_error[0]) and files_of(folder / "store") == before
    with db.batch():
        refused(InvalidArgumentError, "inside `with db.batch", lambda: table.purge(KEY))
    refused(InvalidArgumentError, "wait takes a number of seconds", lambda: table.purge(KEY, wait=-1))
    refused(nyala.SchemaError, "purge accepts only the key columns", lambda: table.purge({"city": ["x"]}))
    refused(InvalidValueError, "not a valid key", lambda: table.purge([("x" * 20_000,), (None,)]))
    refused(nyala.TableNotFoundError, "no table", lambda: nyala.Table(db, "nobody").purge(KEY))
    rows_of_sql = db.sql("SELECT count(*) FROM people")  # the result of a query is not an open snapshot
    assert rows_of_sql.fetchall() == [(41,)]
    assert table.purge(KEY).deleted == 1


def test_a_purge_by_a_process_that_shares_the_store(folder: Path) -> None:
    """Scans of the writer process keep files."""
    program = (
        "import nyala, sys; db = nyala.connect(sys.argv[1], maintenance=False); print(flush=True);"
        "table = db['people']; held = table.scan(); sys.stdin.readline(); del held; print(flush=True); sys.stdin.read()"
    )
    with nyala.connect(folder / "store", maintenance=False) as db:
        fill(people(db))
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(folder / "store")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin is not None and holder.stdout is not None
    try:
        holder.stdout.readline()
        with nyala.connect(folder / "store") as db:
            table = db["people"]
            with db.snapshot(), pytest.raises(InvalidArgumentError, match="while a snapshot of"):
                table.purge(KEY)
            result = table.purge([KEY])
            assert (result.deleted, result.done) == (1, False) and table.get(KEY) is None
            assert "scans, views or snapshots of the process that writes" in result.status.holders
            holder.stdin.write(b"\n")
            holder.stdin.flush()
            holder.stdout.readline()
            assert table.count() == 40 and table.purge_status().done
        assert found_in(files_of(folder / "store")) == []
    finally:
        holder.kill()
        holder.communicate()


CHILD = """
import os, signal, sys
import nyala
from nyala.tablet import purge
from nyala.tablet.compaction import file_jobs, lifecycle
from nyala.tablet.store import Store

folder, step, key = sys.argv[1:]
owner, name, when = step.split(":")
owner = {"purge": purge, "jobs": file_jobs, "lifecycle": lifecycle, "store": Store}[owner]
work = getattr(owner, name)

def killing(*args, **options):
    if when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    made = work(*args, **options)
    os.kill(os.getpid(), signal.SIGKILL)

db = nyala.connect(folder, maintenance=False)
setattr(owner, name, killing)
db["people"].purge(key)
"""


@pytest.mark.parametrize(
    "step",
    ["purge:write:after", "purge:_mark:after", "jobs:run:after", "lifecycle:_install:after", "purge:_rewrite:after",
     "purge:_forget_log:after", "store:renew_checkpoint:after", "purge:remaining:before"],
)  # fmt: skip
def test_a_second_call_completes_a_killed_purge(folder: Path, step: str) -> None:
    """The deletion of the row stays."""
    with nyala.connect(folder / "store", maintenance=False) as db:
        fill(people(db))
    child = subprocess.run([sys.executable, "-c", CHILD, str(folder / "store"), step, KEY], timeout=60)
    assert child.returncode == -signal.SIGKILL
    with nyala.connect(folder / "store", maintenance=False) as db:
        table = db["people"]
        assert table.get(KEY) is None and table.count() == 40 and db.check().ok
        result = table.purge(KEY)
        assert result.deleted == 0 and result.done
        assert found_in(files_of(folder / "store")) == [] and db.check().ok
