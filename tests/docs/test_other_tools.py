"""The examples of docs/how-to/db-api-and-sqlalchemy.md run, if their tools are installed (make test-tools)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nyala

PAGE = Path(__file__).parent.parent.parent / "docs" / "how-to" / "db-api-and-sqlalchemy.md"
pytestmark = pytest.mark.filterwarnings("default")


def section(title: str) -> list[tuple[str, str]]:
    """Return the fenced blocks of a section as (language, text)."""
    text = PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    with nyala.connect("store") as db:
        db.create_table("items", {"id": "int64", "name": "string"}, primary_key="id")
        db["items"].insert([(1, "pen"), (2, "ink"), (3, "pad")])
    return tmp_path


def rows(table: str) -> list[tuple[object, ...]]:
    with nyala.connect("store") as db:
        return db.sql(f"SELECT id, name FROM {table} ORDER BY id").fetchall()


def test_ibis(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The example of ibis runs, and changes the rows that it says."""
    pytest.importorskip("ibis", reason="ibis is not installed: make test-tools")
    names: dict[str, object] = {}
    for _, text in section("ibis"):
        exec(text, names)
    assert capsys.readouterr().out == "[(0, 'pen'), (1, 'ink')]\n"
    names["db"].close()  # type: ignore[attr-defined]
    assert rows("items") == [(1, "PEN"), (2, "INK"), (3, "pad")]


def dbt(folder: Path) -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "dbt", "run", "--profiles-dir", "."],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([".", *sys.path]),
            "DBT_SEND_ANONYMOUS_USAGE_STATS": "no",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_dbt(folder: Path) -> None:
    """The example project of dbt builds its tables in the store."""
    pytest.importorskip("dbt.adapters.duckdb", reason="dbt-duckdb is not installed: make test-tools")
    (folder / "models").mkdir()
    (folder / "files").mkdir()
    (folder / "dbt_project.yml").write_text("name: shop\nversion: '1.0'\nprofile: shop\n")
    for _, text in section("dbt"):
        name = text.split("\n")[0].removeprefix("#").removeprefix("--").strip().partition(",")[0]
        (folder / name).write_text(text)
    dbt(folder)
    assert rows("dear") == [(2, "ink"), (3, "pad")]

    with nyala.connect("store") as db:
        db.drop_table("dear")
        db.create_table("dear", {"id": "int64", "name": "string"}, primary_key="id")
        db["dear"].insert([(9, "old")])
    profile = folder / "profiles.yml"
    text = profile.read_text().replace("module: sqlalchemy", "module: nyala_plugin")
    profile.write_text(text.replace('{connection_url: "nyala:///store"}', "{path: store}"))
    dbt(folder)
    assert rows("dear") == [(2, "ink"), (3, "pad"), (9, "old")]
    model = folder / "models" / "dear.sql"
    model.write_text(model.read_text().replace("id > 1", "id > 100"))
    dbt(folder)  # a model without rows
    assert rows("dear") == [(2, "ink"), (3, "pad"), (9, "old")]


def test_sql_magic(folder: Path) -> None:
    """The lines with `%sql` run in IPython."""
    pytest.importorskip("sql.magic", reason="JupySQL is not installed: make test-tools")
    lines = [line for _, text in section("`%sql` in notebooks") for line in text.splitlines()]
    code = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "shell.run_cell('import pandas; frame = pandas.DataFrame({\"a\": [1, 2]})').raise_error()\n"
        f"for line in {lines!r}:\n"
        "    made = shell.run_cell(line)\n"
        "    made.raise_error()\n"
        "    print('=', list(made.result) if 'SELECT' in line else line)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "= [('ink',), ('pad',)]" in done.stdout, done.stdout
    with nyala.connect("store") as db:
        assert db["frame"].count() == 2
