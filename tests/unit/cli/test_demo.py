"""`nyala demo`: once in a process of its own, otherwise with few rows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nyala
from nyala.cli import demo as demo_module

from .conftest import Run
from .test_app import ENVIRONMENT


@pytest.fixture
def small(monkeypatch: Any) -> None:
    monkeypatch.setattr(demo_module, "TIMES", 50)


@pytest.fixture
def without_second_process(small: None, monkeypatch: Any) -> None:
    """Make the demo small, without its second process, whose start would take most of the time."""
    monkeypatch.setattr(demo_module, "_second_process", lambda folder, table: None)


@pytest.mark.timeout(60)
def test_the_demo_in_a_process(tmp_path: Path) -> None:
    """The commands that the demo suggests at its end work."""
    command = [sys.executable, "-m", "nyala", "demo"]
    found = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=ENVIRONMENT, cwd=tmp_path, encoding="utf-8"
    )
    assert found.returncode == 0, found.stderr
    assert found.stderr == "" and os.listdir(tmp_path) == ["nyala-demo"]
    for number in range(1, 7):
        assert f"\n{number} of 6  " in found.stdout
    for output in (
        "300,000 rows",
        "5,000 rows updated",
        "no copy was made",
        "DuplicateKeyError: ",
        "it read the row that",
    ):
        assert output in found.stdout
    lines = re.findall(r"^  python\S* -m nyala (.*)$", found.stdout, re.MULTILINE)
    assert len(lines) == 3
    typed = f"{sys.executable} -m nyala {lines[2]}"
    then = subprocess.run(typed, shell=True, capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path)
    assert then.returncode == 0 and len(then.stdout.splitlines()) == 6, then.stderr


def test_in_json(run: Run, tmp_path: Path, without_second_process: None) -> None:
    found = run("demo", tmp_path / "d", "--json").json
    assert (found["table"], found["rows"]) == ("metrics", 3000)
    assert found["before"]["timestamp"] < found["timestamp"] and found["seconds"] > 0


def test_the_store_has_the_rows_that_the_demo_describes(
    run: Run, tmp_path: Path, without_second_process: None
) -> None:
    output = run("demo", tmp_path / "d").stdout
    at = re.search(r"--at (\d+)", output)
    assert at is not None
    where = "host = 'host-03' AND metric = 'cpu'"
    with nyala.connect(tmp_path / "d", read_only=True) as db:
        now = db["metrics"].scan(where=where, order_by_key=True).to_arrow().to_pylist()
        then = db["metrics"].scan(where=where, at=int(at[1]), order_by_key=True).to_arrow().to_pylist()
    assert len(now) == 50
    assert [row["value"] for row in now] == [row["value"] / 2 for row in then]
    assert {row["unit"] for row in now} == {"%"}


def test_a_second_demo_replaces_the_table(run: Run, tmp_path: Path, without_second_process: None) -> None:
    for _ in range(2):
        assert run("demo", tmp_path / "d", "--json").json["rows"] == 3000
    assert run("table", "stats", tmp_path / "d", "--json").json["tables"][0]["rows"] == 3000


def test_a_folder_with_other_files_or_tables_is_refused(run: Run, tmp_path: Path, small: None) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("Dear")
    ran = run("demo", tmp_path / "letters", code=1)
    assert "is not a Nyala store" in ran.stderr and ran.stdout == ""
    assert os.listdir(tmp_path / "letters") == ["a.txt"]

    with nyala.connect(tmp_path / "mine") as db:
        db.create_table("metrics", {"k": "int64"}, "k").insert({"k": [1, 2]})
    ran = run("demo", tmp_path / "mine", code=1)
    assert "a store with other tables (metrics)" in ran.stderr and ran.stdout == ""
    with nyala.connect(tmp_path / "mine", read_only=True) as db:
        assert db["metrics"].count() == 2

    (tmp_path / "file").write_text("")
    assert run("demo", tmp_path / "file", code=1).stdout == ""


def test_ctrl_c_in_the_demo(run: Run, tmp_path: Path, without_second_process: None, monkeypatch: Any) -> None:
    """After Ctrl-C the store can be read, and the next demo works."""

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(demo_module, "_update", interrupted)
        assert run("demo", tmp_path / "d", code=130).stderr == "Stopped.\n"
    assert run("table", "list", tmp_path / "d", "--json").json["tables"][0]["rows"] == 3000
    run("demo", tmp_path / "d")


def test_the_demo_fails_if_a_result_is_wrong(run: Run, tmp_path: Path, small: None, monkeypatch: Any) -> None:
    monkeypatch.setattr(demo_module, "_mean", lambda table, at=None: (1.0, 50))
    assert "values were halved" in run("demo", tmp_path / "d", code=1).stderr
