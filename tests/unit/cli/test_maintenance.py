"""`nyala table compact|vacuum`: their effect, their output and their errors."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nyala
from nyala.catalog.store_lock import StoreLock
from nyala.cli import maintenance
from nyala.env import SYSTEM
from nyala.tablet.compaction import lifecycle as compaction

from .conftest import Run


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Create a store with the tables `t` and `other`.

    t: three rowsets with REDO files, whose keys overlap; 100 of 400 rows are deleted; no history.
    other: empty.
    """
    path = tmp_path / "s"
    with nyala.connect(path, maintenance=False) as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, "k", history=0)
        for start in range(3):
            table.insert({"k": list(range(start, 400, 3)), "v": [start] * len(range(start, 400, 3))})
            db.flush()
        table.update(set={"v": 9}, where="k >= 100")
        table.delete(where="k < 100")
        db.flush()
        db.create_table("other", {"k": "int64"}, "k")
    return path


def rows_of(path: Path) -> list[dict[str, Any]]:
    with nyala.connect(path, read_only=True) as db:
        found: list[dict[str, Any]] = db["t"].scan(order_by_key=True).to_arrow().to_pylist()
    return found


def test_compact(run: Run, store: Path) -> None:
    before = rows_of(store)
    found = run("table", "compact", store, "t", "--json").json
    assert found["store"] == str(store) and found["waiting_files"] == 0 and found["seconds"] >= 0
    (one,) = found["tables"]
    assert (one["name"], one["compactions"]) == ("t", 1)
    assert (one["rowsets_before"], one["rowsets"]) == (3, 1)
    assert one["redo_bytes_before"] > 0 == one["redo_bytes"]
    assert one["bytes_before"] > one["bytes"] > 0
    assert rows_of(store) == before and len(before) == 300
    named = {str(path) for path in (store / "data").rglob("*") if path.is_file()}
    assert len(named) == 1, "the replaced files were not removed"

    again = run("table", "compact", store, "t", "--json").json["tables"][0]
    assert again["compactions"] == 0 and again["bytes_before"] == again["bytes"]


def test_compact_prints_all_tables_with_values_before_and_after(run: Run, store: Path) -> None:
    output = run("table", "compact", store)
    names, other, table = output.lines
    assert names.split() == ["table", "compactions", "rowsets", "REDO", "in", "files"]
    assert re.split(r"\s{2,}", other) == ["other", "0", "0 → 0", "0 B → 0 B", "0 B → 0 B"]
    cells = re.split(r"\s{2,}", table)
    assert cells[:3] == ["t", "1", "3 → 1"] and cells[3].endswith("KB → 0 B")
    assert re.fullmatch(r"Done in \d+ ms\.\n|Done in \d+\.\d s\.\n", output.stderr)


def test_compact_flushes_first(run: Run, store: Path) -> None:
    with nyala.connect(store, maintenance=False) as db:
        db["t"].insert({"k": [1000], "v": [1]})
    run("table", "compact", store)
    one = run("table", "stats", store, "t", "--json").json["tables"][0]
    assert (one["rows"], one["rowsets"], one["memory_bytes"], one["redo_files"]) == (301, 1, 0, 0)


def test_vacuum_dry_run_changes_nothing(run: Run, store: Path) -> None:
    def files() -> dict[str, int]:
        return {str(path): path.stat().st_size for path in (store / "data").rglob("*") if path.is_file()}

    before = files()
    found = run("table", "vacuum", "--dry-run", store, "t", "--json").json
    (one,) = found["tables"]
    assert found["dry_run"] is True and one["name"] == "t"
    assert one["bytes"] > 0 and one["rowsets_rewritten"] == 3 and one["oldest_readable"] > 0
    assert one["oldest_readable_time"].endswith("Z")
    assert files() == before
    assert "would be freed" in run("table", "vacuum", store, "--dry-run").lines[0]


def test_vacuum(run: Run, store: Path) -> None:
    """Vacuum frees deleted rows and expired history."""
    before, rows = run("table", "stats", store, "t", "--json").json["tables"][0], rows_of(store)
    found = run("table", "vacuum", store, "--json").json
    assert found["dry_run"] is False and [one["name"] for one in found["tables"]] == ["other", "t"]
    after = run("table", "stats", store, "t", "--json").json["tables"][0]
    assert (before["dead_rows"], after["dead_rows"], after["undo_bytes"]) == (100, 0, 0)
    assert found["tables"][1]["bytes"] == before["bytes"] - after["bytes"] > 0
    assert rows_of(store) == rows
    assert run("table", "vacuum", store).lines[2].split()[:3] == ["t", "0", "0"]


@pytest.mark.parametrize("verb", ["compact", "vacuum"])
def test_the_error_about_another_writer_names_its_process(run: Run, store: Path, verb: str) -> None:
    """The message also says that this process does the work itself."""
    with StoreLock(SYSTEM, str(store)):
        ran = run("table", verb, store, "--json", code=1)
        error = json.loads(ran.stderr)["error"]
        assert ran.stdout == "" and error["type"] == "LockedError"
        assert str(os.getpid()) in error["message"]
        assert error["message"].endswith("A writer does this work by itself, in the background")
        assert not re.search(r"read_only|lock_timeout|close\(", error["message"])


def test_the_error_about_another_writer_names_no_python_argument(
    run: Run, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise nyala.LockedError(
            "the store s is already written by process 7 on h, open since noon: open it with read_only=True, "
            "wait for the writer to close it with lock_timeout=seconds, or end process 7"
        )

    monkeypatch.setattr(maintenance, "writer", refuse)
    assert run("table", "compact", store, code=1).stderr == (
        "Error: the store s is already written by process 7 on h, open since noon: wait until it is closed, or end "
        "process 7; commands that only read work meanwhile. A writer does this work by itself, in the background\n"
    )


@pytest.mark.parametrize("verb", ["compact", "vacuum"])
def test_wrong_folders_and_tables(run: Run, store: Path, verb: str, tmp_path: Path) -> None:
    """A mistyped name creates no store."""
    assert "there is no Nyala store at" in run("table", verb, tmp_path / "no", code=1).stderr
    (tmp_path / "other").mkdir()
    assert "demo" in run("table", verb, tmp_path / "other", code=1).stderr
    (tmp_path / "other" / "mine.txt").touch()
    refused = run("table", verb, tmp_path / "other", code=1).stderr
    assert "it has other files (mine.txt)" in refused and "demo" not in refused, "vacuum would refuse it too"
    assert "no table 'x' in this store" in run("table", verb, store, "x", code=1).stderr
    assert not (tmp_path / "no").exists()
    nyala.connect(tmp_path / "empty").close()
    assert run("table", verb, tmp_path / "empty").stderr == "The store has no tables.\n"
    assert run("table", verb, tmp_path / "empty", "--json").json["tables"] == []


def test_files_of_a_reader_are_deleted_later(run: Run, store: Path) -> None:
    """The command says so."""
    with nyala.connect(store, read_only=True) as db:
        scan = db["t"].scan()
        output = run("table", "compact", store, "t").stderr
        assert re.match(r"\d+ more files are deleted when their readers have finished", output)
        assert scan.count() == 300
    assert run("table", "vacuum", store, "--json").json["waiting_files"] == 0


def test_ctrl_c_changes_nothing(run: Run, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rows_of(store)

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compaction, "_install", interrupted)
        ran = run("table", "compact", store, code=130)
    assert ran.stdout == "" and ran.stderr == "Stopped.\n"
    assert rows_of(store) == before
    assert run("table", "compact", store, "t", "--json").json["tables"][0]["rowsets"] == 1


def test_the_bar_moves_during_a_compaction() -> None:
    """One compaction of a large tablet takes minutes."""
    shown: list[tuple[float, str]] = []

    class Bar:
        def update(self, done: float, total: float, note: str = "") -> None:
            shown.append((done / total, note))

    progress = maintenance._TableProgress(Bar())  # type: ignore[arg-type]
    steps: list[Callable[[], None]] = [
        lambda: progress.step(0, 2),
        lambda: progress.rows(50, 100),
        lambda: progress.step(1, 2),
        lambda: progress.rows(1, 4),
        lambda: progress.step(2, 2),
    ]
    for step in steps:
        step()
    assert shown == [(0.0, "0 of 2"), (0.25, "0 of 2"), (0.5, "1 of 2"), (0.625, "1 of 2"), (1.0, "2 of 2")]
    progress.step(0, 0)
    assert shown[-1] == (0.0, "")
