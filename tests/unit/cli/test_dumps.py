"""`nyala tablet list`, `nyala cfile dump`, `nyala wal dump`."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

import nyala
from nyala.cfile.dump import dump as dump_cfile
from nyala.env import SYSTEM
from nyala.wal.dump import dump as dump_wal

from .conftest import Example, Run


def test_tablets(run: Run, example: Example) -> None:
    lines = run("tablet", "list", example.path, "metrics").lines
    assert re.split("  +", lines[0]) == [
        "table", "tablet", "rows", "rowsets", "in files", "in memory", "partition",
    ]  # fmt: skip
    assert len(lines) == 5
    assert "HASH (host) BUCKET 0 OF 2, RANGE (time) (unbounded, 2026-01-02)" in lines[1]
    found = run("tablet", "list", example.path, "--json").json["tablets"]
    assert [one["table"] for one in found] == ["metrics"] * 4 + ["types"]
    assert sum(one["rows"] for one in found) == 9
    with nyala.connect(example.path, read_only=True) as db:
        expected = [{"table": "metrics", **asdict(one)} for one in db["metrics"].tablets()]
    assert found[:4] == expected


@pytest.fixture
def cfile(example: Example) -> Path:
    return min((example.path / "data").rglob("*.base"))


@pytest.mark.parametrize("flags", [[], ["--bytes"]])
def test_cfile_dump(run: Run, cfile: Path, flags: list[str]) -> None:
    """The command prints what `nyala.cfile.dump` returns."""
    expected = list(dump_cfile(SYSTEM.files, str(cfile), bool(flags)))
    assert len(expected) > 20
    assert run("cfile", "dump", *flags, cfile).lines == expected
    assert run("cfile", "dump", *flags, cfile, "--json").json == {"path": str(cfile), "lines": expected}


def test_cfile_dump_of_a_damaged_file(run: Run, cfile: Path) -> None:
    """The command prints everything up to the damage, and then the error."""
    whole = run("cfile", "dump", "--bytes", cfile).lines
    data = bytearray(cfile.read_bytes())
    last_block = re.findall(
        r"^  block \d+ +offset (\d+),", "\n".join(run("cfile", "dump", cfile).lines), re.MULTILINE
    )[-1]
    data[int(last_block)] ^= 0xFF
    cfile.write_bytes(data)
    ran = run("cfile", "dump", "--bytes", cfile, code=1)
    assert ran.lines and ran.lines == whole[: len(ran.lines)]
    assert str(cfile) in ran.stderr and "offset" in ran.stderr
    ran = run("cfile", "dump", "--bytes", cfile, "--json", code=1)
    assert ran.json["lines"] and json.loads(ran.stderr)["error"]["type"] == "CorruptionError"
    ran = run("cfile", "dump", __file__, "--json", code=1)
    assert ran.stdout == "" and json.loads(ran.stderr)["error"]["type"] == "CorruptionError"


def test_a_folder_in_place_of_a_column_file(run: Run, example: Example, tmp_path: Path) -> None:
    """The error names a column file in the folder."""
    output = run("cfile", "dump", example.path, code=2).stderr.replace("\n", " ")
    path = re.search(r"pass a column file, such as '(.*?)', one of \d+ in it", output)
    assert path is not None and run("cfile", "dump", path[1]).lines
    (tmp_path / "empty").mkdir()
    output = run("cfile", "dump", tmp_path / "empty", code=2).stderr.replace("\n", " ")
    assert "is a folder without column files; a store's column files are data/TABLET/*.base" in output


@pytest.mark.parametrize("flags", [[], ["--bytes"]])
def test_wal_dump(run: Run, example: Example, flags: list[str]) -> None:
    """FOLDER may be the store's folder or its folder of log segments."""
    log = example.path / "wal"
    expected = list(dump_wal(SYSTEM.files, str(log), bool(flags)))
    assert any("update 1 rows" in line for line in expected)
    assert run("wal", "dump", *flags, example.path).lines == expected
    assert run("wal", "dump", *flags, log).lines == expected
    assert run("wal", "dump", *flags, example.path, "--json").json == {"path": str(log), "lines": expected}
