"""Unfinished tables: an open drops those of a killed job, and keeps those of a running job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import open_database

from nyala.env import SYSTEM, process_mark
from nyala.tablet.state import unfinished
from nyala.tablet.state.unfinished import abandoned, unfinished_name

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="marks are Linux'")


def test_an_open_drops_the_unfinished_table_of_a_killed_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open drops the unfinished table of a killed job, and no other table."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    theirs = process_mark(process.pid)
    monkeypatch.setattr(unfinished, "process_mark", lambda: theirs)
    name = unfinished_name(SYSTEM, "t" * 300)
    monkeypatch.undo()
    mine = unfinished_name(SYSTEM, "t")
    with open_database(tmp_path / "s") as db:
        for table in (name, mine, "t"):
            db.create_table(table, {"k": "int64"}, ["k"]).insert({"k": [1]})
        db.flush()
        everything = set(db.list_tables())
    with open_database(tmp_path / "s") as db:
        assert set(db.list_tables()) == everything == {name, mine, "t"}
    process.kill()
    process.communicate()
    with open_database(tmp_path / "s") as db:
        assert set(db.list_tables()) == {mine, "t"}
        db._writer().collect_garbage()
        assert db["t"].count() == 1
    assert len(list((tmp_path / "s" / "data").rglob("*.base"))) == 2


def test_a_users_table_with_a_similar_name_is_kept() -> None:
    assert abandoned(["t", "t [restoring x]", "t [restoring by an unknown process-00000000]", ""]) == []
