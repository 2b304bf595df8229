"""`nyala demo`: once as a person runs it, otherwise with fewer rows."""

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
def alone(small: None, monkeypatch: Any) -> None:
    """Small, and without the second process, whose start takes longer than all the rest."""
    monkeypatch.setattr(demo_module, "_second_process", lambda folder, table: None)


@pytest.mark.timeout(60)
def test_the_demo_as_a_person_runs_it(tmp_path: Path) -> None:
    """The first thing a newcomer does fails, says nothing of what to do next, or what it says does not work."""
    command = [sys.executable, "-m", "nyala", "demo"]
    found = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=ENVIRONMENT, cwd=tmp_path, encoding="utf-8"
    )
    assert found.returncode == 0, found.stderr
    assert found.stderr == "" and os.listdir(tmp_path) == ["nyala-demo"]
    for number in range(1, 7):
        assert f"\n{number} of 6  " in found.stdout
    for said in (
        "300,000 rows",
        "5,000 rows updated",
        "no copy was made",
        "DuplicateKeyError: ",
        "it read the row that",
    ):
        assert said in found.stdout
    lines = re.findall(r"^  python\S* -m nyala (.*)$", found.stdout, re.MULTILINE)
    assert len(lines) == 3
    typed = f"{sys.executable} -m nyala {lines[2]}"
    then = subprocess.run(typed, shell=True, capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path)
    assert then.returncode == 0 and len(then.stdout.splitlines()) == 6, then.stderr


def test_in_json(run: Run, tmp_path: Path, alone: None) -> None:
    found = run("demo", tmp_path / "d", "--json").json
    assert (found["table"], found["rows"]) == ("metrics", 3000)
    assert found["before"]["timestamp"] < found["timestamp"] and found["seconds"] > 0


def test_what_it_leaves_can_be_used(run: Run, tmp_path: Path, alone: None) -> None:
    """The store that the last lines invite to look at is not what they say."""
    said = run("demo", tmp_path / "d").stdout
    at = re.search(r"--at (\d+)", said)
    assert at is not None
    where = "host = 'host-03' AND metric = 'cpu'"
    with nyala.connect(tmp_path / "d", read_only=True) as db:
        now = db["metrics"].scan(where=where, order_by_key=True).to_arrow().to_pylist()
        then = db["metrics"].scan(where=where, at=int(at[1]), order_by_key=True).to_arrow().to_pylist()
    assert len(now) == 50
    assert [row["value"] for row in now] == [row["value"] / 2 for row in then]
    assert {row["unit"] for row in now} == {"%"}


def test_a_second_demo_begins_anew(run: Run, tmp_path: Path, alone: None) -> None:
    """The demo works once, and shows rows of the first one in the second."""
    for _ in range(2):
        assert run("demo", tmp_path / "d", "--json").json["rows"] == 3000
    assert run("table", "stats", tmp_path / "d", "--json").json["tables"][0]["rows"] == 3000


def test_a_folder_with_something_else_is_left_alone(run: Run, tmp_path: Path, small: None) -> None:
    """The demo writes between a person's files, or drops a table of theirs."""
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


def test_ctrl_c_in_the_demo(run: Run, tmp_path: Path, alone: None, monkeypatch: Any) -> None:
    """After Ctrl-C the folder can neither be read nor be used for the next demo."""

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(demo_module, "_correct", interrupted)
        assert run("demo", tmp_path / "d", code=130).stderr == "Stopped.\n"
    assert run("table", "list", tmp_path / "d", "--json").json["tables"][0]["rows"] == 3000
    run("demo", tmp_path / "d")


def test_a_demo_that_finds_something_wrong_says_so(
    run: Run, tmp_path: Path, small: None, monkeypatch: Any
) -> None:
    """The demo praises answers that nobody compared."""
    monkeypatch.setattr(demo_module, "_mean", lambda table, at=None: (1.0, 50))
    assert "values were halved" in run("demo", tmp_path / "d", code=1).stderr
