"""Manual minor delta compactions: they leave fewer files, and reads of every moment return the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support import compact_deltas, key_value_table, open_database, rows

import nyala
from nyala.api.database import Database
from nyala.delta.file_selection import FILES_MIN
from nyala.env import system_files
from nyala.errors import StorageError
from nyala.testing.faulty_files import FaultyFiles


def rowset(db: Database, name: str = "t") -> Any:
    return db._writer().root.table(name).tablets[0].rowsets[0]


def prepared(db: Database, files: int = FILES_MIN) -> tuple[Any, list[tuple[int, list[tuple[Any, ...]]]]]:
    """Create a table of one rowset with this number of REDO files; returns its rows at each moment."""
    table = key_value_table(db)
    table.insert({"k": [1, 2, 3], "v": [1, 2, 3]})
    history = [(db.now(), rows(table))]
    db.flush()
    for number in range(files):
        table.update({"k": [1 + number % 3], "v": [number * 10]})
        history.append((db.now(), rows(table)))
        db.flush()
    return table, history


def holds(table: Any, history: list[tuple[int, list[tuple[Any, ...]]]]) -> bool:
    return all(rows(table, at=at) == expected for at, expected in history)


def test_the_marks_stay_and_the_inputs_become_garbage(db: Database) -> None:
    """Durable marks do not change, and an earlier scan still has its files."""
    table, history = prepared(db)
    old, scan = rowset(db), table.scan(at=history[2][0], order_by_key=True)
    inputs = [file.path for file in old.redo]
    assert compact_deltas(db._writer()) == 1
    new = rowset(db)
    assert new.meta == old.meta and len(new.redo) == 1
    assert (new.redo[0].timestamp_min, new.redo[0].timestamp_max) == (
        old.redo[0].timestamp_min, old.redo[-1].timestamp_max,
    )  # fmt: skip
    assert set(inputs) <= set(db._writer().state.garbage)
    db._writer().collect_garbage()
    assert scan.to_arrow().column("v").to_pylist() == [row[1] for row in history[2][1]]
    del scan, old
    db._writer().collect_garbage()
    assert not [path for path in inputs if (Path(db.path) / path).exists()]
    assert holds(table, history)
    db.close()
    with open_database(db.path) as again:
        assert holds(again["t"], history)


def test_a_failure_changes_no_file(tmp_path: Path) -> None:
    """On a full disk the unfinished file is removed, and the next try succeeds."""
    files = FaultyFiles(system_files(), kind="enospc", only=lambda op: "/data/" in op.path)
    with open_database(tmp_path / "s", files=files) as db:
        table, history = prepared(db)
        before = {path.name for path in (tmp_path / "s" / "data").rglob("*.redo")}
        failed = 0
        for fail_at in (1, 2, 3, 4, 5):
            files.fail_at = len(files.operations) + fail_at
            try:
                done = compact_deltas(db._writer())
            except StorageError:
                failed += 1
                assert {path.name for path in (tmp_path / "s" / "data").rglob("*.redo")} == before
                assert holds(table, history)
            else:
                assert done == 1
                break
            finally:
                files.fail_at = None
                files.heal()
        assert failed >= 2
        assert len(rowset(db).redo) == 1 and holds(table, history)


def test_all_tables_are_compacted(db: Database) -> None:
    """All tables are compacted, except rowsets that a running compaction has reserved."""
    prepared(db)
    other = key_value_table(db, "other")
    other.insert({"k": [1], "v": [1]})
    for value in range(FILES_MIN + 1):
        db.flush()
        other.update({"k": [1], "v": [value]})
    db.flush()
    store = db._writer()
    reservation = store.reservations.take([rowset(db).id], holds_deltas=False)
    assert compact_deltas(store) == 1
    assert (len(rowset(db).redo), len(rowset(db, "other").redo)) == (FILES_MIN, 1)
    store.reservations.release(reservation)
    assert compact_deltas(store) == 1 and len(rowset(db).redo) == 1


def test_daily_updates_leave_few_files(db: Database) -> None:
    """After two months of daily updates, there are few REDO files for a scan to open."""
    table = db.create_table("t", {"k": "int64", "v": "int64"}, "k")
    table.insert({"k": list(range(30)), "v": [0] * 30})
    db.flush()
    most = 0
    for day in range(60):
        table.update({"k": [day % 30], "v": [day]})
        db.flush()
        compact_deltas(db._writer())
        most = max(most, len(rowset(db).redo))
    assert most <= FILES_MIN - 1 + 6  # log2(60) < 6
    assert rows(table) == [(k, 30 + k) for k in range(30)]
    assert nyala.to_datetime(db.now()).year > 2000
