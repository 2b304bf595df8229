"""`nyala table load` and `nyala table export`."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nyala
from nyala.cli import files as cli_files
from nyala.cli import load
from nyala.cli.export import write_file
from nyala.cli.files import CsvDialect, DataFile, read_batches
from nyala.schema.types import parse_type

from .conftest import ALL_TYPES, Example, Run, csv, rows

# -- export and load back ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.tsv", "t.csv.gz", "t.csv.zst"])
def test_load_restores_what_export_wrote(run: Run, example: Example, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    output = run("table", "export", example.path, "types", file, "--json").json
    assert output["rows"] == 3 and output["bytes"] == file.stat().st_size and output["file"] == str(file)
    types = [f"--type={column}={type}" for column, type in ALL_TYPES.items()]
    output = run(
        "table", "load", tmp_path / "new", "types", file, "--create", "--key", "k", *types, "--json"
    ).json
    assert (output["rows"], output["inserted"], output["failed"], output["created"]) == (3, 3, 0, True)
    assert repr(rows(tmp_path / "new", "types")) == repr(rows(example.path, "types"))
    assert os.listdir(tmp_path).count(name) == 1 and not any("partial" in one for one in os.listdir(tmp_path))


CELLS = {
    "k": (st.integers(-(2**63), 2**63 - 1), "int64"),
    "s": (st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8), "string"),
    "f": (st.none() | st.floats(), "double"),
    "d": (st.none() | st.decimals(-(10**12) + 1, 10**12 - 1, places=3), "decimal(15,3)"),
    "b": (st.none() | st.binary(max_size=8), "binary"),
    "t": (st.none() | st.datetimes(timezones=st.just(dt.UTC)), "timestamp"),
    "o": (st.none() | st.booleans(), "bool"),
}


@given(
    st.lists(st.tuples(*(cells for cells, _ in CELLS.values())), min_size=1, max_size=10),
    st.sampled_from(",;|\t"),
)
def test_any_text_survives_a_csv(
    tmp_path_factory: pytest.TempPathFactory, found: list[tuple[Any, ...]], sign: str
) -> None:
    """Quotes, empty text and NULL stay distinct."""
    types = {name: parse_type(type) for name, (_, type) in CELLS.items()}
    schema = pa.schema([(name, type.arrow) for name, type in types.items()])
    batch = pa.RecordBatch.from_pylist([dict(zip(CELLS, row, strict=True)) for row in found], schema=schema)
    path = str(tmp_path_factory.mktemp("csv") / "x.csv")
    dialect = CsvDialect(sign)
    write_file(path, "csv", sign, schema, iter([batch]))
    file = DataFile(path, path, "csv")
    back = pa.Table.from_batches([part.batch for part in read_batches(file, dialect, types)])
    texts = back.column("t").to_pylist()
    times = pa.array(
        [None if text is None else dt.datetime.fromisoformat(text) for text in texts], schema.field("t").type
    )
    back = back.set_column(5, "t", times).cast(schema)
    assert repr(back.to_pylist()) == repr(batch.to_pylist())


def test_an_export_is_one_moment(run: Run, example: Example, tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    words = (
        "--at",
        example.first,
        "--where",
        "host <> 'c'",
        "--columns",
        "value,host",
        "--order",
        "--limit",
        3,
    )
    output = run("table", "export", example.path, "metrics", file, *words, "--json").json
    assert output["timestamp"] == example.first
    assert pq.read_table(file).to_pylist() == [
        {"value": 1.0, "host": "a"},
        {"value": 2.0, "host": "a"},
        {"value": 1.1, "host": "b"},
    ]


def test_export_to_stdout(run: Run, example: Example) -> None:
    ran = run("table", "export", example.path, "metrics", "-", "--order", "--limit", 1, "--delimiter", ";")
    assert ran.stdout == "host;time;value;unit\na;2026-01-01 00:00:00+00;;%\n" and ran.stderr == ""
    run("table", "export", example.path, "metrics", "-", "--json", code=2)


def test_export_does_not_overwrite(run: Run, example: Example, tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("mine")
    assert "--overwrite" in run("table", "export", example.path, "metrics", file, code=1).stderr
    assert file.read_text() == "mine"
    run("table", "export", example.path, "metrics", file, "--overwrite")
    assert file.read_text().startswith("host")
    assert "--format" in run("table", "export", example.path, "metrics", tmp_path / "x.dat", code=2).stderr


def test_a_failed_export_leaves_no_file(run: Run, example: Example, tmp_path: Path, monkeypatch: Any) -> None:
    file = tmp_path / "x.parquet"
    file.write_text("mine")

    def full(self: object, batch: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_batch", full)
    ran = run("table", "export", example.path, "metrics", file, "--overwrite", code=1)
    assert "No space left on device" in ran.stderr
    assert file.read_text() == "mine" and sorted(os.listdir(tmp_path)) == ["store", "x.parquet"]


# -- load into an existing table -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "columns", "expected"),
    [
        ("upsert", "k,v", {3: (7, "old"), 4: (7, "old"), 5: (7, None)}),
        ("insert-ignore", "k,v", {3: (0, "old"), 4: (0, "old"), 5: (7, None)}),
        ("update-ignore", "k,v", {3: (7, "old"), 4: (7, "old")}),
        ("delete-ignore", "k", {}),
    ],
)
def test_operations(
    run: Run, numbers: Path, tmp_path: Path, operation: str, columns: str, expected: dict[int, Any]
) -> None:
    file = csv(tmp_path, "k,v\n3,7\n4,7\n5,7\n")
    output = run(
        "table", "load", numbers, "t", file, "--operation", operation, "--columns", columns, "--json"
    ).json
    assert output["operation"] == operation and output["rows"] == 3 and output["created"] is False
    assert output["inserted"] + output["updated"] + output["deleted"] + output["ignored"] == 3
    assert {row["k"]: (row["v"], row["s"]) for row in rows(numbers, "t") if row["k"] > 2} == expected


@pytest.mark.parametrize(
    ("operation", "code"), [("insert", "already-present"), ("update", "not-found"), ("delete", "not-found")]
)
def test_a_failing_row_stops_the_load(
    run: Run, numbers: Path, tmp_path: Path, operation: str, code: str
) -> None:
    """The error names the row, and says how many rows are loaded."""
    file = csv(tmp_path, "k,v\n" + ("9,1\n3,1\n" if operation == "insert" else "3,1\n9,1\n"))
    columns = "k" if operation == "delete" else "k,v"
    before = rows(numbers, "t")
    ran = run("table", "load", numbers, "t", file, "--operation", operation, "--columns", columns, code=1)
    assert f"x.csv, row 2, line 3 (k = {3 if operation == 'insert' else 9}): " in ran.stderr
    assert "--errors collect" in ran.stderr and len(ran.stderr.splitlines()) == 1
    ran = run(
        "table", "load", numbers, "t", file, "--operation", operation, "--columns", columns, "--json", code=1
    )
    error = json.loads(ran.stderr)["error"]
    assert error["type"] == ("DuplicateKeyError" if operation == "insert" else "KeyNotFoundError")
    assert error["rows_loaded"] == 0 and error["failed"] == 1 and error["errors"][0]["code"] == code
    assert rows(numbers, "t") == before


def test_a_key_twice_in_a_file_names_both_rows(
    run: Run, numbers: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """The message does not say that the key is in the table."""
    monkeypatch.setattr(cli_files, "_BATCH_ROWS", 3)
    file = tmp_path / "x.parquet"
    pq.write_table(pa.table({"k": [10, 11, 12, 13, 14, 13], "v": [1] * 6}), file)
    ran = run("table", "load", numbers, "t", file, "--operation", "insert", code=1)
    assert (
        "row 6 (k = 13): duplicate key: rows 4 and 6 of the file have the same key; --operation upsert"
        in ran.stderr
    )
    ran = run("table", "load", numbers, "t", file, "--operation", "insert", "--errors", "collect", "--json")
    assert [(one["row"], one["message"][:14]) for one in ran.json["errors"]] == [
        (1, "duplicate key;"), (2, "duplicate key;"), (3, "duplicate key;"), (6, "duplicate key:"),
    ]  # fmt: skip


def test_collected_errors_have_row_numbers_of_their_files(
    run: Run, numbers: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """Rows are counted over all batches of a file."""
    monkeypatch.setattr(cli_files, "_BATCH_ROWS", 4)
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    pq.write_table(pa.table({"k": list(range(10, 20)), "v": [1] * 5 + [1000] + [1] * 4}), files[0])
    pq.write_table(pa.table({"k": [20, 21, 22], "v": [1, 1, -129]}), files[1])
    output = run("table", "load", numbers, "t", *files, "--errors", "collect", "--json").json
    assert (output["rows"], output["batches"], output["inserted"], output["failed"]) == (13, 4, 11, 2)
    assert [(one["file"], one["row"], one["code"], one["key"]) for one in output["errors"]] == [
        (str(files[0]), 6, "out-of-range", {"k": 15}),
        (str(files[1]), 3, "out-of-range", {"k": 22}),
    ]
    assert len(rows(numbers, "t")) == 16
    ran = run("table", "load", numbers, "t", *files, "--errors", "collect")
    assert "11 updated, 2 failed" in ran.stdout
    assert "failed, out-of-range: 2 rows" in ran.stderr and "a.parquet, row 6 (k = 15): " in ran.stderr


def test_decimals_and_binary_of_a_csv(run: Run, tmp_path: Path) -> None:
    """Decimals keep all digits, and invalid hex is an error."""
    with nyala.connect(tmp_path / "s") as db:
        db.create_table("t", {"k": "int64", "d": "decimal(38,2)", "b": "binary"}, "k")
    file = csv(tmp_path, "k,d,b\n1,123456789012345678901234567890123456.78,0x00FF\n2,0.005,\n3,100.000,\n")
    output = run("table", "load", tmp_path / "s", "t", file, "--errors", "collect", "--json").json
    assert [(error["row"], error["code"]) for error in output["errors"]] == [(2, "unreadable")]
    found = run("table", "scan", tmp_path / "s", "--order", "--json").json["rows"]
    assert found[0] == {"k": 1, "d": "123456789012345678901234567890123456.78", "b": "00ff"}
    assert found[1] == {"k": 3, "d": "100.00", "b": None}
    for text, complaint in (
        ("k,d\n1,x\n", "column 'd': "),
        ("k,b\n1,0\n", "column 'b': '0' is not binary: write hex such as 00ff"),
    ):
        assert complaint in run("table", "load", tmp_path / "s", "t", csv(tmp_path, text), code=1).stderr


def test_null_in_a_csv(run: Run, numbers: Path, tmp_path: Path) -> None:
    """Only an empty field and the words of --null are NULL, so the country code NA is text."""
    text = 'k,s\n10,NA\n11,\n12,""\n13,nan\n'
    run("table", "load", numbers, "t", csv(tmp_path, text))
    assert [row["s"] for row in rows(numbers, "t", where="k >= 10")] == ["NA", None, "", "nan"]
    run("table", "load", numbers, "t", csv(tmp_path, text), "--null", "NA", "--null", "nan")
    assert [row["s"] for row in rows(numbers, "t", where="k >= 10")] == [None, None, "", None]


def test_stdin(run: Run, numbers: Path) -> None:
    """Stdin is a CSV by default, or what --format says, and can create a table."""
    assert run("table", "load", numbers, "t", "-", "--json", stdin="k;v\n50;5\n").json["inserted"] == 1
    assert rows(numbers, "t")[-1] == {"k": 50, "v": 5, "s": None}
    run("table", "load", numbers, "t", "-", "--format", "json", stdin='{"k": 51, "v": 6}\n')
    assert rows(numbers, "t")[-1] == {"k": 51, "v": 6, "s": None}
    run("table", "load", numbers, "new", "-", "--create", "--key", "k", stdin="k,v\n1,2\n")
    assert rows(numbers, "new") == [{"k": 1, "v": 2}]
    run("table", "load", numbers, "t", "-", "-", stdin="", code=2)


def test_unknown_columns_are_an_error(run: Run, numbers: Path, tmp_path: Path) -> None:
    file = csv(tmp_path, "k,w\n1,2\n")
    assert "an unknown column 'w'" in run("table", "load", numbers, "t", file, code=1).stderr
    assert (
        f"{file} has no column 'x'"
        in run("table", "load", numbers, "t", file, "--columns", "k,x", code=1).stderr
    )
    parquet = tmp_path / "x.parquet"
    pq.write_table(pa.table({"k": [1], "w": [2]}), parquet)
    assert (
        "has no column 'v'" in run("table", "load", numbers, "t", parquet, "--columns", "k,v", code=1).stderr
    )
    run("table", "load", numbers, "t", parquet, "--columns", "k")


@pytest.mark.parametrize("data", [b"", b"PAR1", b"no parquet at all"])
def test_a_damaged_parquet_file_is_an_error_without_traceback(
    run: Run, numbers: Path, tmp_path: Path, data: bytes
) -> None:
    file = tmp_path / "x.parquet"
    file.write_bytes(data)
    ran = run("table", "load", numbers, "t", file, code=1)
    assert ran.stderr == f"Error: {file}: not a Parquet file, or a truncated one\n"


def test_a_file_without_rows_is_no_error(run: Run, numbers: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": pa.array([], pa.int64())}), tmp_path / "x.parquet")
    for file in (csv(tmp_path, "k,v\n"), tmp_path / "x.parquet"):
        output = run("table", "load", numbers, "t", file, "--json").json
        assert output["rows"] == 0 and output["failed"] == 0 and output["timestamp"] > 0
    assert "nothing to do" in run("table", "load", numbers, "t", tmp_path / "x.csv").stdout


def test_ctrl_c_ends_a_load_between_batches(
    run: Run, numbers: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(cli_files, "_BATCH_ROWS", 4)
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"k": list(range(10, 30))}), file)
    write, calls = load._Load._write, []

    def interrupted(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return write(*args)

    monkeypatch.setattr(load._Load, "_write", interrupted)
    before = signal.getsignal(signal.SIGINT)
    ran = run("table", "load", numbers, "t", file, code=130)
    assert ran.stderr == "8 rows are loaded and stay; the others are not.\nStopped.\n"
    assert [row["k"] for row in rows(numbers, "t", where="k >= 10")] == list(range(10, 18))
    assert signal.getsignal(signal.SIGINT) is before


# -- the end of a load -----------------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a file of 20 batches, larger than the memory limit of a load. The last row does not fit
    into `v`.
    """
    monkeypatch.setattr(cli_files, "_BATCH_ROWS", 1000)
    monkeypatch.setattr(load, "_FLUSH_BYTES", 100_000)
    file = tmp_path / "large.parquet"
    pq.write_table(pa.table({"k": range(10, 20_010), "v": [1] * 19_999 + [1000]}), file)
    return file


def memory_and_rowsets(run: Run, store: Path) -> tuple[int, int]:
    one = run("table", "stats", store, "t", "--json").json["tables"][0]
    return one["memory_bytes"], one["rowsets"]


def test_a_large_load_is_flushed(run: Run, numbers: Path, large: Path) -> None:
    """A large load flushes the store at its end. Otherwise each later command would replay the log."""
    output = run("table", "load", numbers, "t", large, "--errors", "collect", "--json").json
    assert (output["rows"], output["failed"]) == (20_000, 1)
    assert memory_and_rowsets(run, numbers) == (0, 1)
    assert len(rows(numbers, "t")) == 20_004


@pytest.mark.parametrize("late", [False, True], ids=["written", "stopped before"])
def test_ctrl_c_ends_the_flush(
    run: Run, numbers: Path, large: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """The rows stay in the log."""

    def interrupted(*args: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(nyala.Database, "flush", interrupted)
        words = ("--errors", "raise" if late else "collect")
        ran = run("table", "load", numbers, "t", large, *words, code=1 if late else 130)
    if late:
        assert (
            "row 20000" in ran.stderr.splitlines()[-1]
        )  # the error that stopped the load, also if the flush fails later
    else:
        assert ran.stderr == "19,999 rows loaded, so far only in the log.\nStopped.\n"
    memory, rowsets = memory_and_rowsets(run, numbers)
    assert memory > 0 and rowsets == 0
    assert len(rows(numbers, "t")) == (19_005 if late else 20_004)


# -- load into a new table -----------------------------------------------------------------------------------


def test_create(run: Run, tmp_path: Path) -> None:
    file = csv(
        tmp_path,
        "zip,day,at,n,share,ok,note,price,clock\n00501,2026-11-20,2026-11-20T10:00:00Z,7,0.5,true,,1.20,10:00:00\n",
    )
    output = run(
        "table", "load", tmp_path / "s", "t", file, "--create", "--key", "zip, day",
        "--hash", "zip/3", "--range", "day=2026-01-01,2026-07-01", "--type", "zip=varchar(5)", "--type", "n=int16",
        "--type", "price=decimal(9,2)", "--json",
    ).json  # fmt: skip
    assert output["created"] and output["inserted"] == 1
    found = run("table", "describe", tmp_path / "s", "--json").json
    assert found["key"] == ["zip", "day"] and found["tablets"] == 9
    assert found["partition"] == "HASH (zip) BUCKETS 3, RANGE (day)"
    assert {column["name"]: column["type"] for column in found["columns"]} == {
        "zip": "varchar(5)", "day": "date", "at": "timestamp", "n": "int16", "share": "double", "ok": "bool",
        "note": "string", "price": "decimal(9,2)", "clock": "string",
    }  # fmt: skip
    row = run("table", "scan", tmp_path / "s", "--json").json["rows"][0]
    assert (row["zip"], row["price"], row["at"]) == ("00501", "1.20", "2026-11-20T10:00:00Z")
    bounds = [one["partition"] for one in run("tablet", "list", tmp_path / "s", "--json").json["tablets"]]
    assert any("[2026-01-01, 2026-07-01)" in one for one in bounds)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--create"], "--create needs --key"),
        (["--key", "k"], "add --create"),
        (["--create", "--key", "k", "--hash", "k"], "write it as columns/buckets"),
        (["--create", "--key", "k", "--hash", "k/x"], "write it as columns/buckets"),
        (["--create", "--key", "k", "--range", "k"], "write it as column=value,value"),
        (["--create", "--key", "k", "--range", "k=1,x"], "'x' is not int64"),
        (["--create", "--key", "k", "--type", "k"], "write it as column=type"),
        (["--delimiter", "||"], "must be one character"),
    ],
)
def test_invalid_options_of_create_are_usage_errors(
    run: Run, tmp_path: Path, words: list[str], complaint: str
) -> None:
    """The command raises a usage error, and creates no store."""
    ran = run("table", "load", tmp_path / "s", "t", csv(tmp_path, "k,v\n1,2\n"), *words, code=2)
    assert complaint in ran.stderr and not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--key", "kk"], "'kk' is not in the schema; did you mean 'k'?"),
        (["--key", "k", "--type", "kk=int8"], "no column 'kk'"),
        (["--key", "k", "--type", "v=int"], "use int32 or int64"),
        (["--key", "k", "--range", "kk=1"], "no column 'kk'"),
        (["--key", "k", "--hash", "k/1"], "at least two hash buckets"),
        (["--key", "k", "--hash", "v/2"], "v"),
        (["--key", "v"], "v"),
    ],
)
def test_an_invalid_new_table_is_an_error(run: Run, tmp_path: Path, words: list[str], complaint: str) -> None:
    """The command prints an error, and creates no table."""
    file = csv(tmp_path, "k,v\n1,2.5\n")
    ran = run("table", "load", tmp_path / "s", "t", file, "--create", *words, code=1)
    assert complaint in ran.stderr and sorted(os.listdir(tmp_path)) == ["x.csv"]


@pytest.mark.parametrize("sign", [";", "\t", "|", ","])
def test_the_delimiter_is_found_in_the_header(run: Run, tmp_path: Path, sign: str) -> None:
    """Excel writes semicolons in many countries."""
    file = csv(tmp_path, sign.join("kv") + "\n" + sign.join("12") + "\n")
    run("table", "load", tmp_path / "s", "t", file, "--create", "--key", "k")
    pipe, end = os.pipe()
    os.write(end, f"k{sign}v\n3{sign}4\n".encode())
    os.close(end)
    run("table", "load", tmp_path / "s", "t", f"/dev/fd/{pipe}", "--format", "csv")
    os.close(pipe)
    assert rows(tmp_path / "s", "t") == [{"k": 1, "v": 2}, {"k": 3, "v": 4}]


@pytest.mark.parametrize("name", ["a[1].csv", "what?.csv", "*.json", "it's.csv"])
def test_a_file_whose_name_is_a_pattern_or_has_a_quote(run: Run, tmp_path: Path, name: str) -> None:
    """DuckDB would read a pattern as several files. Errors show the name that the user gave."""
    file = csv(tmp_path, '{"k": 1}\n' if name.endswith("json") else "k\n1\n\n", name)
    run("table", "load", tmp_path / "s", "t", file, "--create", "--key", "k")
    run("table", "export", tmp_path / "s", "t", file, "--overwrite")
    run("table", "load", tmp_path / "s", "t", file)
    assert rows(tmp_path / "s", "t") == [{"k": 1}]
    file.write_text('{"k": "x"}\n' if name.endswith("json") else "k\nx\n")
    assert f"{file}, row 1" in run("table", "load", tmp_path / "s", "t", file, code=1).stderr


def test_a_given_delimiter_wins(run: Run, tmp_path: Path) -> None:
    """The delimiter of --delimiter is used, although the header has another one more often."""
    file = csv(tmp_path, "k;a,b,c\n1;x\n")
    run("table", "load", tmp_path / "s", "t", file, "--create", "--key", "k", "--delimiter", ";")
    assert rows(tmp_path / "s", "t") == [{"k": 1, "a,b,c": "x"}]


def test_a_second_create_adds_to_the_table(run: Run, numbers: Path, tmp_path: Path) -> None:
    ran = run("table", "load", numbers, "t", csv(tmp_path, "k\n1\n"), "--create", "--key", "k", code=1)
    assert "'t'" in ran.stderr
    assert len(rows(numbers, "t")) == 5
    ran = run("table", "load", numbers, "u", csv(tmp_path, "k\n1\n"), code=1)
    assert "no table 'u'" in ran.stderr and "--create" in ran.stderr


def test_a_failed_load_drops_its_new_table(run: Run, numbers: Path, tmp_path: Path) -> None:
    """The new table is dropped, so the command can be repeated with a corrected file."""
    line = ("table", "load", numbers, "u", tmp_path / "x.csv", "--create", "--key", "k")
    csv(tmp_path, "k,v\n1,1000\n")
    assert "row 1, line 2 (k = 1)" in run(*line, "--type", "v=int8", code=1).stderr
    with nyala.connect(numbers, read_only=True) as db:
        assert db.list_tables() == ["t"]
    run(*line)
    assert rows(numbers, "u") == [{"k": 1, "v": 1000}]


def test_a_failed_load_removes_its_new_store(run: Run, tmp_path: Path) -> None:
    file = csv(tmp_path, "k,v\n1,1000\n")
    words = ("t", file, "--create", "--key", "k", "--type", "v=int8")
    output = run("table", "load", tmp_path / "a" / "b" / "s", *words, code=1).stderr.splitlines()
    assert (
        output[0].startswith("t created: ") and output[1] == "t was dropped again, because the load failed."
    )
    assert "row 1, line 2" in output[2] and os.listdir(tmp_path) == ["x.csv"]
    (tmp_path / "a").mkdir()
    run("table", "load", tmp_path / "a" / "s", *words, code=1)
    assert os.listdir(tmp_path / "a") == [], "a folder that existed before is kept"


def test_new_table_from_parquet(run: Run, tmp_path: Path) -> None:
    """The table has the types and NOT NULL of the file."""
    schema = pa.schema(
        [
            pa.field("k", pa.int32(), nullable=False),
            pa.field("d", pa.dictionary(pa.int8(), pa.string())),
            pa.field("n", pa.timestamp("ns")),
            pa.field("r", pa.float32(), nullable=False),
        ]
    )
    data = pa.table({"k": [1], "d": ["x"], "n": [dt.datetime(2026, 1, 1)], "r": [0.5]}).cast(schema)
    pq.write_table(data, tmp_path / "x.parquet")
    output = run(
        "table", "load", tmp_path / "s", "t", tmp_path / "x.parquet", "--create", "--key", "k"
    ).stderr
    assert (
        "t created: k int32, d string, n timestamp, r float. Wrong type? Pass --type COLUMN=TYPE." in output
    )
    assert "is a file" in run("table", "list", tmp_path / "x.parquet", code=1).stderr
    columns = run("table", "describe", tmp_path / "s", "--json").json["columns"]
    assert [(one["name"], one["type"], one["nullable"]) for one in columns] == [
        ("k", "int32", False),
        ("d", "string", True),
        ("n", "timestamp", True),
        ("r", "float", False),
    ]
    assert run("table", "scan", tmp_path / "s", "--json").json["rows"] == [
        {"k": 1, "d": "x", "n": "2026-01-01T00:00:00Z", "r": 0.5}
    ]


def test_a_new_table_reports_a_repeated_key(run: Run, tmp_path: Path) -> None:
    """With --create the default operation is insert, so that no row silently replaces another one.
    A second run upserts.
    """
    line = ("table", "load", tmp_path / "s", "t", csv(tmp_path, "k,v\n1,1\n1,2\n"), "--create", "--key", "k")
    assert "duplicate key: rows 1 and 2 of the file have the same key" in run(*line, code=1).stderr
    assert not (tmp_path / "s").exists()
    csv(tmp_path, "k,v\n1,1\n2,2\n")
    assert run(*line, "--json").json["inserted"] == 2
    again = run(*line, "--json").json
    assert (again["created"], again["operation"], again["updated"]) == (False, "upsert", 2)


def test_json_lines_keep_all_values(run: Run, tmp_path: Path) -> None:
    """Every type, NULL, NaN, nested values, and compression."""
    types = {
        "k": "int64", "b": "bool", "s": "string", "x": "binary", "d": "date", "t": "timestamp", "f": "double",
        "n": "decimal(9,3)",
    }  # fmt: skip
    data = {
        "k": [1, 2, 3], "b": [True, None, False], "s": ['q"\n\\é', "", None], "x": [b"\0\xff", b"", None],
        "d": [dt.date(2026, 1, 2), None, dt.date(1, 1, 1)], "t": ["2026-01-02T03:04:05.000006Z", None, "1969-12-31"],
        "f": [float("nan"), float("-inf"), 0.1], "n": ["1.250", None, "-0.001"],
    }  # fmt: skip
    data["n"] = [None if text is None else Decimal(text) for text in data["n"]]  # type: ignore[arg-type]
    with nyala.connect(tmp_path / "s") as db:
        for name in ("t", "u"):
            db.create_table(name, types, "k")
        db["t"].insert(data)
    for file in ("x.jsonl", "x.json.gz", "x.ndjson"):
        run("table", "export", tmp_path / "s", "t", tmp_path / file)
        run("table", "load", tmp_path / "s", "u", tmp_path / file)
        with nyala.connect(tmp_path / "s") as db:
            assert db["u"].to_arrow().equals(db["t"].to_arrow()) or repr(rows(tmp_path / "s", "u")) == repr(
                rows(tmp_path / "s", "t")
            )
            db["u"].delete(where="TRUE")
    lines = run("table", "export", tmp_path / "s", "t", "-", "--format", "json", "--columns", "k,s").stdout
    assert json.loads(lines.splitlines()[0]) == {"k": 1, "s": 'q"\n\\é'}


def test_create_from_json(run: Run, tmp_path: Path) -> None:
    """Rows may have different members, or be one array. An error names the file."""
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": 1, "v": "x", "o": {"a": [1]}}\n{"id": 2, "at": "2026-01-01T00:00:00Z"}\n')
    run("table", "load", tmp_path / "s", "t", file, "--create", "--key", "id")
    first, second = rows(tmp_path / "s", "t")
    assert (first["v"], json.loads(first["o"]), first["at"]) == ("x", {"a": [1]}, None)
    assert second["at"] == dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    (tmp_path / "array.json").write_text('[{"id": 3}, {"id": 4}]')
    run("table", "load", tmp_path / "s", "t", tmp_path / "array.json")
    assert len(rows(tmp_path / "s", "t")) == 4
    file.write_text('{"id": 5}\n{"id": ')
    assert f"{file}: " in run("table", "load", tmp_path / "s", "t", file, code=1).stderr
    file.write_text('{"id": "five"}\n')
    assert "'five' is not int64" in run("table", "load", tmp_path / "s", "t", file, code=1).stderr


def test_a_folder_of_files(run: Run, tmp_path: Path) -> None:
    """Files are read in the order of their names, also in folders below. Files of Spark that are
    not data are skipped.
    """
    for name, text in (
        ("b.csv", "k,v\n2,2\n"),
        ("a/x.csv", "k,v\n1,1\n"),
        ("_SUCCESS", ""),
        ("_temporary/y.csv", "k,v\n9,9\n"),
        (".hidden.csv", "k,v\n8,8\n"),
    ):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    run("table", "load", tmp_path / "s", "t", tmp_path / "data", "--create", "--key", "k")
    assert rows(tmp_path / "s", "t") == [{"k": 1, "v": 1}, {"k": 2, "v": 2}]
    (tmp_path / "none").mkdir()
    assert (
        "contains no Parquet, CSV or JSON file"
        in run("table", "load", tmp_path / "s", "t", tmp_path / "none", code=2).stderr
    )


def test_drop_without_a_terminal_needs_yes(run: Run, numbers: Path) -> None:
    assert "add --yes" in run("table", "drop", numbers, "t", code=2).stderr
    assert "no table 'x'" in run("table", "drop", numbers, "x", "--yes", code=1).stderr
    run("table", "drop", numbers, "t", "--yes")
    with nyala.connect(numbers, read_only=True) as db:
        assert db.list_tables() == []


def test_ages_are_moments(run: Run, numbers: Path) -> None:
    """Options for moments accept 2h, 1d and so on."""
    assert run("table", "changes", numbers, "t", "--since", "1h", "--json").json["row_count"]
    output = run("table", "scan", numbers, "t", "--at", "2h", code=1).stderr
    assert "did not exist" in output
    assert (
        "neither a timestamp nor an ISO time"
        in run("table", "scan", numbers, "t", "--at", "2 fortnights", code=1).stderr
    )


def test_a_reader_that_ends_early_is_no_error(tmp_path: Path) -> None:
    """The exit code of `nyala table scan … | head -1` is 0."""
    with nyala.connect(tmp_path / "s") as db:
        db.create_table("t", {"k": "int64"}, "k").insert({"k": range(200_000)})
    command = f"{shlex.quote(sys.executable)} -m nyala table scan {shlex.quote(str(tmp_path / 's'))} t"
    ran = subprocess.run(
        ["bash", "-c", f"{command} | head -1; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize(
    "error", [RuntimeError("Query interrupted"), duckdb.InterruptException("INTERRUPT Error")]
)
def test_ctrl_c_while_duckdb_reads_is_exit_code_130(error: Exception) -> None:
    with pytest.raises(KeyboardInterrupt), cli_files.duckdb_session("x.csv"):
        raise error
    with pytest.raises(RuntimeError, match="other"), cli_files.duckdb_session("x.csv"):
        raise RuntimeError("other")


def test_without_duckdb_the_error_says_what_to_install(
    run: Run, numbers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    output = run("table", "load", numbers, "t", csv(tmp_path, "k\n1\n"), code=1).stderr
    assert "pip install 'nyala[cli]'" in output and "Traceback" not in output


def test_the_message_of_a_load(run: Run, example: Example, tmp_path: Path) -> None:
    """A message that is too long is refused before the first batch."""
    file = csv(tmp_path, "host,time,value\nnew,2026-02-01T00:00:00Z,1.0\n")
    run("table", "load", example.path, "metrics", file, "--message", "the load of May")
    with nyala.connect(example.path, read_only=True) as db:
        assert [(c.inserted, c.message) for c in db["metrics"].commits()][-1] == (1, "the load of May")
    long = run("table", "load", example.path, "metrics", file, "--message", "x" * 1001, code=1)
    assert "message has 1,001 characters, and at most 1,000 are stored" in long.stderr


# -- change events -------------------------------------------------------------------------------------------

EVENTS = [
    {"op": "c", "ts_ms": 1, "before": None, "after": {"k": 1, "v": "a", "at": 1_000}},
    {"op": "u", "ts_ms": 5, "before": None, "after": {"k": 1, "v": "c", "at": 5_000}},
    {"op": "u", "ts_ms": 3, "before": None, "after": {"k": 1, "v": "b", "at": 3_000}},
    {"op": "d", "ts_ms": 7, "before": {"k": 2, "v": "x"}, "after": None},
    {"op": "c", "ts_ms": 2, "before": None, "after": {"k": 2, "v": "x", "at": None}},
]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    with nyala.connect(tmp_path / "shop") as db:
        db.create_table(
            "t", {"k": "int64", "v": "string", "at": "timestamp", "ts_ms": "int64"}, primary_key="k"
        )
    return tmp_path / "shop"


def write_events(path: Path, events: list[Any]) -> Path:
    text = "\n\n".join(event if isinstance(event, str) else json.dumps(event) for event in events)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def test_events_are_applied_in_batches(
    run: Run, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Late events change nothing, also in a later batch, another file or a second run."""
    monkeypatch.setattr(load, "_EVENTS", 2)
    file = write_events(tmp_path / "e.jsonl.gz", EVENTS)
    how = ["--sequence", "ts_ms", "--unit", "at=ms"]
    output = run("table", "apply-changes", shop, "t", file, file, *how, "--json").json
    assert {name: output[name] for name in ("rows", "batches", "inserted", "updated", "ignored", "operation")} == {
        "rows": 10, "batches": 6, "inserted": 1, "updated": 1, "ignored": 8, "operation": "apply-changes",
    }  # fmt: skip
    events = "".join(json.dumps(event) + "\n" for event in EVENTS)
    again = run("table", "apply-changes", shop, "t", "-", *how, stdin=events)
    assert again.lines[0].startswith("t: 5 events in ") and "5 ignored" in again.lines[0]
    (row,) = rows(shop, "t")
    assert (row["k"], row["v"], row["ts_ms"], row["at"].second) == (1, "c", 5, 5)


def test_events_with_other_names_of_operations(run: Run, shop: Path, tmp_path: Path) -> None:
    flat = [{"do": "I", "id": 1, "v": "a"}, {"do": "I", "id": 2, "v": "b"}, {"do": "D", "id": 1}, {"do": "?"}]
    file = write_events(tmp_path / "e.json", flat)
    words = ["--operation", "do", "--word", "I=upsert", "--word", "D=delete", "--word", "?=skip"]
    run("table", "apply-changes", shop, "t", file, *words, "--columns", "id=k,v", "--message", "flat")
    assert [(row["k"], row["v"]) for row in rows(shop, "t")] == [(2, "b")]
    with nyala.connect(shop, read_only=True) as db:
        assert [commit.message for commit in db.commits()] == ["flat"]


@pytest.mark.parametrize(
    ("events", "words", "says"),
    [
        ([EVENTS[0], "{no"], [], "e.json, line 3 is text, but not JSON"),
        ([{"k": 1}], [], "no field 'op' with the operation; their fields are k: give --operation FIELD"),
        ([EVENTS[0], {"op": "t"}], [], "e.json, line 3: field 'op' has the unknown operation 't': give --word WORD"),
        (EVENTS, [], "column 'at': the events have whole numbers, .*with --unit at=ms"),
        (EVENTS, ["--unit", "at=m"], "--unit: 'at' takes one of s, ms, us, ns, d, not 'm'"),
        (EVENTS, ["--unit", "at"], "--unit 'at': write it as NAME=VALUE"),
        (EVENTS, ["--word", "t=cut"], "--word: 't' must mean one of upsert, delete, skip, not 'cut'"),
        (EVENTS, ["--columns", "k,w"], "--columns: the table has no column 'w'"),
        ([{"op": "c", "k": 1, "w": 1}], [], "a field 'w', which is not a column .*--columns names the fields to write"),
        (EVENTS, ["--sequence", "source.lsn"], "add one, such as `table alter … 'add lsn int64'`, or give --seq"),
        (EVENTS, ["--sequence-column", "ts_ms"], "--sequence-column needs --sequence"),
        ([{"op": "c", "k": 1, "at": "soon"}], [], "e.json, row 1.*: column 'at'"),
    ],
)  # fmt: skip
def test_errors_of_events_name_options(
    run: Run, shop: Path, tmp_path: Path, events: list[Any], words: list[str], says: str
) -> None:
    file = write_events(tmp_path / "e.json", events)
    ran = run("table", "apply-changes", shop, "t", file, *words, code=2 if "NAME=VALUE" in says else 1)
    assert re.search(says, ran.stderr), ran.stderr
    assert rows(shop, "t") == []


def test_failing_events_have_line_numbers(run: Run, shop: Path, tmp_path: Path) -> None:
    events = [EVENTS[0], {**EVENTS[1], "ts_ms": None}, {**EVENTS[1], "after": {"k": None, "v": "x"}}]
    file = write_events(tmp_path / "e.json", events)
    how = ["--sequence", "ts_ms", "--unit", "at=ms", "--errors", "collect", "--json"]
    output = run("table", "apply-changes", shop, "t", file, *how).json
    assert (output["inserted"], output["failed"]) == (1, 2)
    assert [error["row"] for error in output["errors"]] == [3, 5]


def test_a_load_of_late_rows(run: Run, shop: Path, tmp_path: Path) -> None:
    """With --newest-by, a row that is older than the stored row, or than its delete, changes
    nothing.
    """
    csv(tmp_path, "k,v,ts_ms\n1,new,7\n", "new.csv")
    csv(tmp_path, "k,ts_ms\n2,7\n", "gone.csv")
    csv(tmp_path, "k,v,ts_ms\n1,old,6\n2,old,6\n3,old,6\n", "old.csv")
    by = ["--newest-by", "ts_ms"]
    run("table", "load", shop, "t", tmp_path / "new.csv", *by)
    run("table", "load", shop, "t", tmp_path / "gone.csv", "--operation", "delete", *by)
    assert run("table", "load", shop, "t", tmp_path / "old.csv", *by, "--json").json["ignored"] == 2
    assert [(row["k"], row["v"]) for row in rows(shop, "t")] == [(1, "new"), (3, "old")]
    ran = run("table", "load", shop, "t", tmp_path / "old.csv", "--operation", "insert", *by, code=2)
    assert "--newest-by goes with --operation upsert, delete, delete-ignore" in ran.stderr
    ran = run("table", "load", shop, "t", tmp_path / "old.csv", "--newest-by", "k", code=1)
    assert "--newest-by 'k' is part of the key" in ran.stderr
