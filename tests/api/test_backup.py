"""Backups of tables: a restore gives the same rows, over random histories, after kills and with damage."""

from __future__ import annotations

import dataclasses
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import nyala
from nyala.backup import restore as restoring
from nyala.backup.layout import OpenedPlace, PartFile
from nyala.backup.listing import find_backups
from nyala.backup.plan import BackupPlan, plan_backup
from nyala.backup.read import plan_restore, read_part
from nyala.backup.write import begin_backup, finish_backup, rows_of_tablet, write_part
from nyala.env import SYSTEM, process_mark
from nyala.errors import CorruptionError, InvalidArgumentError, StorageError, TableExistsError


@pytest.fixture
def db(tmp_path: Path) -> Iterator[nyala.Database]:
    with nyala.connect(tmp_path / "store", maintenance=False) as opened:
        opened.create_table(
            "t",
            {"k": "int64", "v": "int64", "w": "string"},
            ["k"],
            [
                nyala.hash_partition("k", buckets=2),
                nyala.range_partition("k", bounds=[(0, 50), (50, 100)]),
            ],
        )
        yield opened


def back_up(db: nyala.Database, folder: Path, full: bool = False, table: str = "t") -> Any:
    """Back up one table. Return the backup, or None if nothing changed."""
    made = db.backup(folder, [table], full=full)
    return made.tables[0] if made.tables else None


def restored(db: nyala.Database, folder: Path, name: str, at: Any = None) -> nyala.Table:
    (made,) = nyala.restore_backup(folder, db, {"t": name}, at)
    assert (made.name, made.source, made.rows) == (name, "t", db[name].count())
    return db[name]


def planned(db: nyala.Database, folder: Path, table: str = "t") -> BackupPlan:
    root, until = db._store.view()
    plan, _ = plan_backup(OpenedPlace(str(folder), SYSTEM), db._store, root, table, until)
    assert plan is not None
    return plan


def write_all(plan: BackupPlan) -> list[PartFile]:
    return [
        file
        for tablet in plan.table.tablets
        for file in write_part(plan.backup, tablet.id, rows_of_tablet(plan, tablet), f"part-{tablet.id}")
    ]


def rows(table: Any) -> list[dict[str, Any]]:
    return table.scan(order_by_key=True).to_arrow().to_pylist()


def test_a_full_and_an_incremental_backup(db: nyala.Database, tmp_path: Path) -> None:
    """The first backup has all rows, the second only the changes. Each moment can be restored."""
    folder = tmp_path / "backups"
    db["t"].insert({"k": [1, 2, 60], "v": [1, 2, 60], "w": ["a", "b", "c"]})
    first = back_up(db, folder)
    assert back_up(db, folder) is None
    db["t"].delete({"k": [1]})
    db["t"].upsert({"k": [2, 70], "v": [20, 70]})
    second = back_up(db, folder)
    assert first is not None and second is not None
    assert [(b.kind, b.rows) for b in nyala.list_backups(folder)] == [("full", 3), ("incremental", 3)]
    assert rows(restored(db, folder, "r1", first.until)) == rows(db["t"].at(first.until))
    assert rows(restored(db, folder, "r2")) == rows(db["t"])
    with pytest.raises(
        InvalidArgumentError, match=r"no backup of table 't' from .* or earlier .*: the first is from 20"
    ):
        nyala.restore_backup(folder, db, ["t"], first.until - 1)


@pytest.mark.parametrize("seed", [11, 12])
def test_over_a_random_history(db: nyala.Database, tmp_path: Path, seed: int) -> None:
    """Every moment with a backup can be restored, among flushes, compactions and alterations.

    Columns are added, renamed and dropped. A range is dropped and added again. Old backups are removed.
    """
    rng = random.Random(seed)
    folder = tmp_path / "backups"
    moments: list[tuple[int, list[dict[str, Any]]]] = []
    columns = ["v", "w"]
    upper = 100
    for number in range(30):
        if rng.random() < 0.15:
            with db["t"].alter() as a:
                a.drop_range(50, 100) if upper == 100 else a.add_range(50, 100)
            upper = 150 - upper
        keys = rng.sample(range(upper), 8)
        if rng.random() < 0.3:
            db["t"].delete({"k": keys}, on_missing="ignore")
        else:
            text = rng.choice([c for c in columns if c != "v"] or columns)
            value = [f"{number}"] * 8 if text != "v" else [number] * 8
            db["t"].upsert({"k": keys, "v": [number] * 8, text: value})
        if rng.random() < 0.3:
            db["t"].flush()
        if rng.random() < 0.1:
            db["t"].compact()
        if number == 10:
            with db["t"].alter() as a:
                a.add_column("x", "string", default="new")
            columns.append("x")
        if number == 14:
            with db["t"].alter() as a:
                a.alter_column("x", default="later")
        if number == 17:
            with db["t"].alter() as a:
                a.rename_column("w", "renamed")
            columns[columns.index("w")] = "renamed"
        if number == 23:
            with db["t"].alter() as a:
                a.drop_column("x")
            columns.remove("x")
        if rng.random() < 0.5:
            made = back_up(db, folder, full=rng.random() < 0.15)
            if made is not None:
                moments.append((made.until, rows(db["t"])))
    assert len(moments) > 5 and len({b.kind for b in nyala.list_backups(folder)}) == 2
    for number, (moment, expected) in enumerate(moments):
        assert rows(restored(db, folder, f"r{number}", moment)) == expected
    middle = moments[len(moments) // 2][0]
    removed = nyala.clean_backups(folder, middle)
    kept = [found.until for found in nyala.list_backups(folder)]
    assert len(kept) + len(removed) == len(moments)
    for number, (moment, expected) in enumerate(moments):
        if moment >= middle:
            assert moment in kept and rows(restored(db, folder, f"c{number}", moment)) == expected


def test_a_dropped_range_stays_dropped(db: nyala.Database, tmp_path: Path) -> None:
    """A restore skips the rows of a dropped range, even if the range was added again later (B3)."""
    folder = tmp_path / "backups"
    db["t"].insert({"k": [1, 60, 61], "v": [1, 60, 61], "w": ["a", "b", "c"]})
    before = back_up(db, folder)
    with db["t"].alter() as a:
        a.drop_range(50, 100)
    db["t"].insert({"k": [2], "v": [2], "w": ["d"]})
    dropped = back_up(db, folder)
    with db["t"].alter() as a:
        a.add_range(50, 100)
    db["t"].insert({"k": [60], "v": [-60], "w": ["e"]})
    back_up(db, folder)
    assert before is not None and dropped is not None
    assert dropped.since is not None
    assert [row["k"] for row in rows(restored(db, folder, "r1", before.until))] == [1, 60, 61]
    assert [row["k"] for row in rows(restored(db, folder, "r2", dropped.until))] == [1, 2]
    assert [(row["k"], row["v"]) for row in rows(restored(db, folder, "r3"))] == [(1, 1), (2, 2), (60, -60)]


def test_an_interrupted_backup_is_ignored(db: nyala.Database, tmp_path: Path) -> None:
    """Files without metadata are not a backup. `clean_backups` removes them."""
    folder = tmp_path / "backups"
    db["t"].insert({"k": [1], "v": [1], "w": ["a"]})
    plan = planned(db, folder)
    backup = plan.backup
    begin_backup(backup)
    write_all(plan)
    assert nyala.list_backups(folder) == []
    db["t"].insert({"k": [2], "v": [2], "w": ["b"]})
    again = back_up(db, folder)
    assert again is not None and again.since is None
    assert nyala.clean_backups(folder, again.until) == [backup.work_path]
    assert [found.path for found in nyala.list_backups(folder)] == [again.path]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has marks of processes")
@pytest.mark.parametrize("end", ["backup", "clean"])
def test_files_of_a_killed_process_are_removed(
    db: nyala.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The next backup or `clean_backups` removes the files of an interrupted backup whose process has ended."""
    folder = tmp_path / "backups"
    db["t"].insert({"k": [1], "v": [1], "w": ["a"]})
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    mark = process_mark(process.pid)
    monkeypatch.setitem(plan_backup.__globals__, "process_mark", lambda: mark)
    plan = planned(db, folder)
    monkeypatch.undo()
    theirs = plan.backup
    begin_backup(theirs)
    write_all(plan)
    made = back_up(db, folder)
    assert made is not None and Path(theirs.work_path).exists()
    process.kill()
    process.communicate()
    if end == "backup":
        db["t"].insert({"k": [2], "v": [2], "w": ["b"]})
        assert back_up(db, folder) is not None
    else:
        assert nyala.clean_backups(folder, 0) == [theirs.work_path]
    assert not Path(theirs.work_path).exists()
    assert Path(made.path, "backup.json").exists()


def test_a_full_backup_of_a_moment_that_has_an_incremental_one(db: nyala.Database, tmp_path: Path) -> None:
    """Both backups exist, with their own files. After a full backup, its moment needs no other backup."""
    folder = tmp_path / "backups"
    for number in range(2):
        db["t"].insert({"k": [number], "v": [number], "w": ["a"]})
        last = back_up(db, folder)
    full = back_up(db, folder, full=True)
    assert (
        last is not None and full is not None and (full.until, full.path) == (last.until, last.path + "-full")
    )
    assert back_up(db, folder, full=True) is None and back_up(db, folder) is None
    assert rows(restored(db, folder, "r1")) == rows(db["t"])
    db["t"].delete({"k": [0]})
    after = back_up(db, folder)
    assert after is not None and after.since == full.until
    assert len(nyala.clean_backups(folder, after.until)) == 2
    assert [found.path for found in nyala.list_backups(folder)] == [full.path, after.path]
    assert rows(restored(db, folder, "r2")) == rows(db["t"])


def test_a_restored_table_appears_when_it_is_complete(
    db: nyala.Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its last step, a restore uses a temporary name. A failed restore leaves no table."""
    folder = tmp_path / "backups"
    for number in range(3):
        db["t"].insert({"k": [number], "v": [number], "w": ["a"]})
        back_up(db, folder)
    seen: list[list[str]] = []
    apply_rows = restoring.apply_rows

    def apply(store: Any, name: str, step: Any, part: pa.Table) -> None:
        apply_rows(store, name, step, part)
        seen.append(db.list_tables())
        if len(seen) == 5:
            raise StorageError(f"table {name!r}, tablet 5: the disk is full")

    monkeypatch.setattr(restoring, "apply_rows", apply)
    assert rows(restored(db, folder, "again")) == rows(db["t"])
    assert len(seen) == 3 and all(len(tables) == 2 and "again" not in tables for tables in seen)
    with pytest.raises(TableExistsError, match=r"'t' already exists: restore under another name"):
        nyala.restore_backup(folder, db, ["t"])
    with pytest.raises(StorageError, match=r"^table 'third' \(being restored\), tablet 5: the disk is full$"):
        nyala.restore_backup(folder, db, {"t": "third"})
    assert db.list_tables() == ["again", "t"]


def test_missing_folders_and_unusual_table_names(db: nyala.Database, tmp_path: Path) -> None:
    """A missing folder is an error. The name of a table is escaped, so its files stay inside the folder."""
    for call in (
        nyala.list_backups,
        lambda folder: nyala.clean_backups(folder, 0),
        lambda folder: nyala.restore_backup(folder, db, ["t"]),
        lambda folder: nyala.restore_backup(folder, db),
    ):
        with pytest.raises(InvalidArgumentError, match=r"folder '.*bakups' does not exist"):
            call(str(tmp_path / "bakups"))
    folder = tmp_path / "backups"
    for name in ("..", "a/b", "%2F"):
        db.create_table(name, {"k": "int64"}, ["k"]).insert({"k": [1]})
        back_up(db, folder, table=name)
    (folder / "notes.txt").write_text("mine")
    assert sorted(found.table for found in nyala.list_backups(folder)) == ["%2F", "..", "a/b"]
    assert {path.name for path in tmp_path.iterdir()} == {"store", "backups"}


def test_a_store_is_not_backed_up_into_itself(db: nyala.Database, tmp_path: Path) -> None:
    """A backup inside the store's folder would be lost with the store."""
    db["t"].insert({"k": [1], "v": [1], "w": ["x"]})
    (tmp_path / "link").symlink_to(db.path)
    for folder in (db.path, f"{db.path}/backups", str(tmp_path / "link")):
        with pytest.raises(InvalidArgumentError, match="is inside the store's folder"):
            db.backup(folder)
    assert db.backup(db.path + "-backups").tables


def test_a_damaged_backup_is_reported_and_never_read(db: nyala.Database, tmp_path: Path) -> None:
    """After a flipped bit or a cut in a file of rows or in the metadata, the error names the file."""
    folder = tmp_path / "backups"
    db["t"].insert({"k": [1, 60], "v": [1, 2], "w": ["a", "b"]})
    made = back_up(db, folder)
    assert made is not None
    place = OpenedPlace(str(folder), SYSTEM)
    target, (step,) = plan_restore(place, "t")
    chance = random.Random(5)
    for file in step.files:
        path = Path(made.path) / file.name
        whole = path.read_bytes()
        assert [batch.num_rows for batch in read_part(target, step, file)] == [file.rows]
        for cut in (0, 1, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:cut])
            with pytest.raises(
                CorruptionError, match=rf"{file.name}: expected {len(whole)} bytes .*found {cut} "
            ):
                list(read_part(target, step, file))
        for at in chance.sample(range(len(whole)), 40):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << chance.randrange(8)]) + whole[at + 1 :])
            with pytest.raises(CorruptionError, match="with checksum"):
                list(read_part(target, step, file))
        path.write_bytes(whole)
    path = Path(made.path) / "backup.json"
    whole = path.read_bytes()
    reported = 0
    for at in chance.sample(range(len(whole)), 200):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << chance.randrange(7)]) + whole[at + 1 :])
        whole_ones, damaged = find_backups(place)
        if damaged:
            reported += 1
            assert whole_ones == [] and "backup.json: " in damaged[0].reason
        else:
            assert whole_ones == [target]  # the flipped bit changed only the format of the JSON
    assert reported > 150


def test_a_damaged_backup_does_not_affect_other_tables(db: nyala.Database, tmp_path: Path) -> None:
    """Other tables can be backed up and restored, and a listing shows the damaged backups (B6)."""
    folder = tmp_path / "backups"
    db["t"].insert({"k": [1], "v": [1], "w": ["a"]})
    for name in ("a/b", "."):
        db.create_table(name, {"k": "int64"}, ["k"]).insert({"k": [1]})
        damaged = back_up(db, folder, table=name)
        Path(damaged.path, "backup.json").write_text("{")
    made = back_up(db, folder)
    assert made is not None
    db["t"].insert({"k": [2], "v": [2], "w": ["b"]})
    back_up(db, folder)
    assert rows(restored(db, folder, "again")) == rows(db["t"])
    with pytest.raises(
        InvalidArgumentError, match=r"no backup of table 'u' in .*; tables with a backup: \., a/b, t$"
    ):
        nyala.restore_backup(folder, db, ["u"])
    listed = nyala.list_backups(folder)
    assert [(found.table, found.kind) for found in listed] == [
        ("a/b", "damaged"), (".", "damaged"), ("t", "full"), ("t", "incremental")
    ]  # fmt: skip


@pytest.mark.parametrize("damage", ["metadata", "a folder", "no folder"])
def test_a_damaged_backup_hides_no_other(
    db: nyala.Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    """A listing shows it among the others. `clean_backups` keeps it and the backups before it (B6)."""
    folder = tmp_path / "backups"
    db.create_table("u", {"k": "int64"}, ["k"])
    made, others = [], []
    for number in range(6):
        db["t"].insert({"k": [number], "v": [number], "w": ["x"]})
        made.append(back_up(db, folder, full=number in (3, 5)))
        db["u"].insert({"k": [number]})
        others.append(back_up(db, folder, full=True, table="u").path)
    paths = [found.path for found in made if found is not None]
    last = made[-1]
    assert last is not None and len(paths) == 6
    ill = Path(paths[2])
    if damage == "metadata":
        (ill / "backup.json").write_text("{")
    elif damage == "a folder":
        (ill / "backup.json").unlink()
        (ill / "backup.json").mkdir()
    else:
        shutil.rmtree(ill)
        ill.symlink_to(ill.name)

    listed = [found for found in nyala.list_backups(folder) if found.table == "t"]
    assert [found.path for found in listed] == paths
    assert [found.kind for found in listed] == [
        "full", "incremental", "damaged", "full", "incremental", "full"
    ]  # fmt: skip
    assert [found.error is None for found in listed] == [True, True, False, True, True, True]
    damaged = listed[2]
    nothing = {name for name, value in dataclasses.asdict(damaged).items() if value is None}
    assert nothing == {"since", "rows", "bytes", "files"}
    assert (str(damaged.until), damaged.time) == (ill.name, nyala.to_datetime(damaged.until))
    assert damaged.error is not None and str(ill) in damaged.error

    assert nyala.clean_backups(folder, last.until) == [*paths[3:5], *others[:5]]
    assert [record.name for record in caplog.records] == ["nyala.backup"]
    assert f"'t' from {damaged.time.isoformat()} or earlier" in "\n".join(caplog.messages) and str(
        ill
    ) in "\n".join(caplog.messages)
    assert all(Path(path).is_dir() for path in (paths[0], paths[1], paths[5], others[5]))
    if damage == "no folder":
        ill.unlink()
    else:
        shutil.rmtree(ill)
    caplog.clear()
    assert nyala.clean_backups(folder, last.until) == paths[:2] and not caplog.records
    assert rows(restored(db, folder, "r")) == rows(db["t"])


def test_clean_keeps_backups_before_a_missing_one(
    db: nyala.Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A user may move the missing backup back, and it needs the backups before it."""
    folder = tmp_path / "backups"
    made = []
    for number in range(3):
        db["t"].insert({"k": [number], "v": [number], "w": ["x"]})
        made.append(back_up(db, folder))
    first, gone, last = made
    assert first is not None and gone is not None and last is not None
    shutil.move(gone.path, tmp_path / "elsewhere")
    assert nyala.clean_backups(folder, last.until) == []
    assert "needs the backup from" in "\n".join(caplog.messages) and "which is missing" in "\n".join(
        caplog.messages
    )
    shutil.move(tmp_path / "elsewhere", gone.path)
    assert rows(restored(db, folder, "r")) == rows(db["t"])


def test_rows_keep_the_default_of_their_time(db: nyala.Database, tmp_path: Path) -> None:
    """Rows from before an added column have its first default, even if the default was altered later."""
    folder = tmp_path / "backups"
    db["t"].insert({"k": [1], "v": [1], "w": ["a"]})
    assert back_up(db, folder) is not None
    with db["t"].alter() as a:
        a.add_column("x", "int64", nullable=False, default=5)
        a.add_column("y", "int64", default=6)
    with db["t"].alter() as a:
        a.alter_column("x", default=7)
        a.alter_column("y", default=None)
    db["t"].insert({"k": [2], "v": [2], "w": ["b"]})
    assert back_up(db, folder) is not None
    assert [(row["x"], row["y"]) for row in rows(db["t"])] == [(5, 6), (7, None)]
    assert rows(restored(db, folder, "r")) == rows(db["t"])


def test_clean_keeps_backups_that_a_running_backup_needs(db: nyala.Database, tmp_path: Path) -> None:
    """An incremental backup in progress depends on the newest backup, which must not be removed."""
    folder = tmp_path / "backups"
    db["t"].insert({"k": [1], "v": [1], "w": ["a"]})
    first = back_up(db, folder)
    db["t"].insert({"k": [2], "v": [2], "w": ["b"]})
    plan = planned(db, folder)
    running = plan.backup
    assert first is not None and running.since == first.until
    begin_backup(running)
    files = write_all(plan)
    assert nyala.clean_backups(folder, running.until) == []
    finish_backup(running, files)
    assert rows(restored(db, folder, "r")) == rows(db["t"])


def test_after_a_lost_full_backup_the_next_is_full(db: nyala.Database, tmp_path: Path) -> None:
    """An incremental backup on an incomplete chain could never be restored."""
    folder = tmp_path / "backups"
    made = []
    for number in range(2):
        db["t"].insert({"k": [number], "v": [number], "w": ["x"]})
        made.append(back_up(db, folder))
    assert made[0] is not None and made[1] is not None and made[1].since is not None
    shutil.rmtree(made[0].path)
    db["t"].insert({"k": [9], "v": [9], "w": ["x"]})
    again = back_up(db, folder)
    assert again is not None and again.since is None
    assert rows(restored(db, folder, "r")) == rows(db["t"])


def test_clean_keeps_backups_that_later_ones_need(db: nyala.Database, tmp_path: Path) -> None:
    """The remaining backups can be restored. Without one of them, a restore raises CorruptionError."""
    folder = tmp_path / "backups"
    made = []
    for number in range(4):
        db["t"].insert({"k": [number], "v": [number], "w": ["x"]})
        made.append(back_up(db, folder, full=number == 2))
    assert all(found is not None for found in made)
    paths = [found.path for found in made if found is not None]
    last = made[3]
    assert last is not None
    assert nyala.clean_backups(folder, last.until) == paths[:2]
    assert rows(restored(db, folder, "r")) == rows(db["t"])
    (Path(paths[2]) / "backup.json").write_text("{}")
    with pytest.raises(CorruptionError, match="metadata"):
        nyala.restore_backup(folder, db, {"t": "x"})
    (Path(paths[2]) / "backup.json").unlink()
    with pytest.raises(CorruptionError, match="needs the backup from"):
        nyala.restore_backup(folder, db, {"t": "x"})
