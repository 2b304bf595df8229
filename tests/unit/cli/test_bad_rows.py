"""Bad rows of a CSV: their numbers and errors, and which other rows are loaded."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import nyala
from nyala.cli import files as cli_files
from nyala.cli.files import CsvDialect, DataFile, lines_of, read_batches
from nyala.schema.types import parse_type

from .conftest import Run, csv, rows


def test_a_bad_field_in_a_csv(run: Run, numbers: Path, tmp_path: Path) -> None:
    """The error names the row, the column and the text."""
    collect = "; --errors collect skips such rows and loads the others"
    write = "write a whole number, or pass --null for a word that means NULL"
    width = "Expected Number of Columns: 2 Found"
    for text, complaint in (
        ("k,v\n1,2\n2,many\n", f", row 2, line 3 (k = 2): column 'v': 'many' is not int8: {write}{collect}"),
        ("k,v\n1,2\nx,1\n", f", row 2, line 3 (k = 'x'): column 'k': 'x' is not int64: {write}{collect}"),
        ("k,v\n1,2\n2\n", f", row 2, line 3: {width}: 1: '2'{collect}"),
        ("k,v\n1,2\n2,3,4\n", f", row 2, line 3: {width}: 3: '2,3,4'{collect}"),
        ("", ": the file is empty; its first line must name the columns"),
    ):
        file = csv(tmp_path, text)
        assert run("table", "load", numbers, "t", file, code=1).stderr == f"Error: {file}{complaint}\n"
    assert rows(numbers, "t")[2]["v"] == 0


MIXED = """k,v,d,b,f,o,t,s
1,2,1.5,00ff,1.5,true,2026-01-01,"two
lines"

2,many,1.5,,1,true,2026-01-01,x
3,300,1.5,,1,true,2026-01-01,x
4,1,"1,5",zz,1,true,2026-01-01,x
5,1,1.5,zz,1,true,2026-01-01,x
6,1,1.5,,1,maybe,2026-01-01,x
7,1,1.5,,1,true,31.12.2026,x
8,1,1.5,,1,true,2026-01-01,x,extra
9,1,1.5
n/a,1,1.5,,1,true,2026-01-01,x
10,1,1.5,,1,true,2026-01-01,last
12
"""


@pytest.mark.parametrize("packed", [False, True])
def test_collect_skips_bad_rows_and_numbers_them(run: Run, tmp_path: Path, packed: bool) -> None:
    with nyala.connect(tmp_path / "s") as db:
        types = {
            "d": "decimal(10,2)",
            "b": "binary",
            "f": "double",
            "o": "bool",
            "t": "timestamp",
            "s": "string",
        }
        db.create_table("t", {"k": "int64", "v": "int8", **types}, "k")
    file = tmp_path / ("x.csv.gz" if packed else "x.csv")
    file.write_bytes(gzip.compress(MIXED.encode()) if packed else MIXED.encode())
    line = ("table", "load", tmp_path / "s", "t", file, "--errors", "collect")
    output = run(*line, "--json").json
    assert (output["rows"], output["inserted"], output["failed"]) == (12, 2, 10)
    assert [row["k"] for row in rows(tmp_path / "s", "t")] == [1, 10]
    found = [(e["row"], e["line"], e["code"], e["column"], e["cell"], e["key"]) for e in output["errors"]]
    assert found == [
        (2, 5, "unreadable", "v", "many", {"k": 2}),
        (3, 6, "out-of-range", "v", None, {"k": 3}),
        (4, 7, "unreadable", "d", "1,5", {"k": 4}),
        (5, 8, "unreadable", "b", "zz", {"k": 5}),
        (6, 9, "unreadable", "o", "maybe", {"k": 6}),
        (7, 10, "out-of-range", "t", None, {"k": 7}),
        (8, 11, "unreadable", None, "8,1,1.5,,1,true,2026-01-01,x,extra", {}),
        (9, 12, "unreadable", None, "9,1,1.5", {}),
        (10, 13, "unreadable", "k", "n/a", {"k": "n/a"}),
        (12, 15, "unreadable", None, "12", {}),
    ]
    ran = run(*line)
    assert "12 rows in" in ran.stdout and "2 updated, 10 failed" in ran.stdout
    assert "failed, unreadable: 8 rows\nfailed, out-of-range: 2 rows\n" in ran.stderr
    assert ran.stderr.endswith("  … and 5 more: --json prints the first 100\n")
    ran = run("table", "load", tmp_path / "s", "t", "-", "--errors", "collect", "--json", stdin=MIXED)
    assert [(e["row"], e["line"]) for e in ran.json["errors"]] == [(row, line) for row, line, *_ in found]


def test_only_the_first_errors_of_a_batch_are_printed(run: Run, numbers: Path, tmp_path: Path) -> None:
    for bad, kind in (("many", "FileError"), ("1000", "InvalidValueError")):
        file = csv(tmp_path, "k,v\n" + "".join(f"{k},{bad}\n" for k in range(250)))
        first, *messages, last = run("table", "load", numbers, "t", file, code=1).stderr.splitlines()
        assert first.startswith("Error: 250 rows of a batch fail; --errors collect skips such rows")
        assert [line.partition(" (")[0] for line in messages] == [
            f"  {file}, row {n}, line {n + 1}" for n in range(1, 6)
        ]
        assert last == "  … and 245 more: --json prints the first 100"
        error = json.loads(run("table", "load", numbers, "t", file, "--json", code=1).stderr)["error"]
        assert (error["type"], error["failed"], len(error["errors"])) == (kind, 250, 100)
        assert error["errors"][99]["line"] == 101 and len(error["message"].splitlines()) == 1


def test_a_csv_that_is_not_utf8_is_an_error_with_advice(run: Run, numbers: Path, tmp_path: Path) -> None:
    with nyala.connect(numbers) as db:
        db.create_table("u", {"k": "int64", "s": "string"}, "k")
    for data in (
        "k,s\n1,café\n".encode("cp1252"),
        "k,é\n1,x\n".encode("cp1252"),
        "k,s\n1,x\n".encode("utf-16"),
    ):
        file = tmp_path / "x.csv"
        file.write_bytes(data)
        for words in (("u",), ("new", "--create", "--key", "k")):
            ran = run("table", "load", numbers, words[0], file, *words[1:], code=1)
            assert "iconv -f WINDOWS-1252 -t UTF-8 FILE > OTHER" in ran.stderr
        if b"caf" in data:
            ran = run("table", "load", numbers, "u", file, "--errors", "collect", "--json")
            assert [(error["row"], error["code"]) for error in ran.json["errors"]] == [(1, "unreadable")]


@example(["odd", *["good"] * 6] * 6 + ["bad", "empty", "odd", "lines"])
@given(st.lists(st.sampled_from(["good", "odd", "bad", "empty", "lines"]), max_size=60))
def test_every_row_keeps_its_number(tmp_path_factory: pytest.TempPathFactory, kinds: list[str]) -> None:
    """Batches, rejected lines, empty lines and fields of several lines do not shift the numbers of
    later rows.
    """
    text, lines, expected = "k,v\n", 2, []
    for kind in kinds:
        row = len(expected)
        begin = lines
        if kind == "empty":
            text, lines = text + "\n", lines + 1
            continue
        cells = {"good": f"{row},x", "odd": f"{row},x,y", "bad": f"{row}?,x", "lines": f'{row},"x\ny"'}[kind]
        text, lines = text + cells + "\n", lines + 1 + (kind == "lines")
        expected.append((kind in ("good", "lines"), begin))
    path = str(csv(tmp_path_factory.mktemp("x"), text))
    file = DataFile(path, path, "csv")
    good, bad = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli_files, "_READ_ROWS", 5)
        patch.setattr(cli_files, "_BATCH_ROWS", 7)
        types = {"k": parse_type("int64"), "v": parse_type("string")}
        for part in read_batches(file, CsvDialect(), types, None, ["k"]):
            if part.batch.num_rows:
                good += list(zip(part.numbers.tolist(), part.batch.column("k").to_pylist(), strict=True))
            bad += [row["row"] for row in part.bad]
            assert part.bad_count == len(part.bad)
    assert good == [(n, n - 1) for n, (is_good, _) in enumerate(expected, 1) if is_good]
    assert sorted(bad) == [n for n, (is_good, _) in enumerate(expected, 1) if not is_good]
    assert lines_of(file, CsvDialect(), bad) == {n: expected[n - 1][1] for n in bad}


def test_line_numbers_after_a_field_of_more_than_128_kb(tmp_path: Path) -> None:
    """By default, Python's csv module stops at such a field."""
    path = str(csv(tmp_path, f"k,v\n1,{'x' * 200_000}\n2?,y\n"))
    assert lines_of(DataFile(path, path, "csv"), CsvDialect(), [2]) == {2: 3}
