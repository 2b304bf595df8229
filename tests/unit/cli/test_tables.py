"""`nyala table list|describe|scan|stats|changes|commits` and `nyala tag`."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nyala
from nyala.presentation.cells import json_columns, text_columns
from nyala.presentation.text_table import aligned

from .conftest import Example, Run


def test_list(run: Run, example: Example) -> None:
    lines = run("table", "list", example.path).lines
    assert lines[0].split() == ["table", "rows", "size", "tablets", "key", "partition"]
    assert lines[1].startswith("metrics     6  ")
    assert lines[1].endswith("4  host, time  HASH (host) BUCKETS 2, RANGE (time)")
    assert lines[2].endswith("1  k           UNPARTITIONED")

    found = run("table", "list", example.path, "--json").json
    assert found["store"] == str(example.path)
    assert nyala.to_datetime(found["timestamp"]).isoformat().replace("+00:00", "Z") == found["time"]
    metrics, types = found["tables"]
    assert metrics.pop("bytes") > 0 and metrics.pop("memory_bytes") > 0
    assert metrics == {
        "name": "metrics",
        "key": ["host", "time"],
        "partition": "HASH (host) BUCKETS 2, RANGE (time)",
        "tablets": 4,
        "rows": 6,
        "comment": "how busy",
    }
    assert types["rows"] == 3


def test_an_empty_store(run: Run, tmp_path: Path) -> None:
    nyala.connect(tmp_path / "s").close()
    assert run("table", "list", tmp_path / "s").stdout == ""
    assert run("table", "list", tmp_path / "s", "--json").json["tables"] == []
    assert run("table", "stats", tmp_path / "s", "--json").json["tables"] == []
    assert run("tablet", "list", tmp_path / "s", "--json").json["tablets"] == []
    assert "the store has no tables" in run("table", "scan", tmp_path / "s", code=1).stderr


def test_an_empty_table(run: Run, tmp_path: Path) -> None:
    """The names of the columns are printed."""
    with nyala.connect(tmp_path / "s") as db:
        db.create_table("t", {"key": "int64", "v": "string"}, "key")
    assert run("table", "scan", tmp_path / "s").lines == ["key  v"]
    found = run("table", "scan", tmp_path / "s", "--json").json
    assert found["rows"] == [] and found["row_count"] == 0


def test_describe(run: Run, example: Example) -> None:
    lines = run("table", "describe", example.path, "metrics").lines
    assert lines[:6] == [
        "table      metrics",
        "comment    how busy",
        "key        host, time",
        "partition  HASH (host) BUCKETS 2, RANGE (time)",
        "tablets    4",
        "history    12 hours",
    ]
    unit = lines[-1].split()
    assert unit == ["unit", "varchar(8)", "no", "%", "dictionary", "default"]

    found = run("table", "describe", example.path, "metrics", "--json").json
    assert found["key"] == ["host", "time"] and found["history_seconds"] == 12 * 3600
    assert found["rows"] == 6 and found["timestamp"] >= example.last
    host, time, value, unit = found["columns"]
    assert (host["key"], time["key"], value["key"]) == (1, 2, None)
    assert value["default"] == 0.5 and value["nullable"] and value["comment"] == "a share"
    assert host["default"] is None and not unit["nullable"] and unit["type"] == "varchar(8)"


@pytest.mark.parametrize(
    ("history", "output"),
    [
        ("forever", "forever"),
        ("7d", "7 days"),
        ("1d", "1 day"),
        ("90m", "90 minutes"),
        (1, "1 second"),
        (2.5, "2.5 seconds"),
        (0, "the present only"),
    ],
)
def test_history(run: Run, tmp_path: Path, history: Any, output: str) -> None:
    with nyala.connect(tmp_path / "s") as db:
        db.create_table("t", {"k": "int64"}, "k", history=history)
    assert f"history    {output}" in run("table", "describe", tmp_path / "s").lines


def test_the_table_may_be_left_out_if_there_is_only_one(run: Run, example: Example) -> None:
    ran = run("table", "scan", example.path, code=2)
    assert "pass the name of one: metrics, types" in ran.stderr
    with nyala.connect(example.path) as db:
        db.drop_table("types")
    assert len(run("table", "scan", example.path).lines) == 7


def test_scan(run: Run, example: Example) -> None:
    assert run("table", "scan", example.path, "metrics", "--order").lines == [
        "host  time                  value  unit",
        "a     2026-01-01T00:00:00Z   NULL  %",
        "a     2026-01-02T00:00:00Z    2.0  %",
        "b     2026-01-01T00:00:00Z    1.1  %",
        "b     2026-01-02T00:00:00Z    2.1  %",
        "c     2026-01-01T00:00:00Z    1.2  %",
        "c     2026-01-02T00:00:00Z    2.2  %",
    ]
    where = run(
        "table", "scan", example.path, "metrics", "--where", "value > 2", "--columns", "value,host", "--order"
    )
    assert where.lines == ["value  host", "  2.1  b", "  2.2  c"]
    assert len(run("table", "scan", example.path, "metrics", "--limit", 2).lines) == 3


def test_scan_json(run: Run, example: Example) -> None:
    """The document has the moment of the rows, and their number at its end."""
    found = run("table", "scan", example.path, "metrics", "--order", "--limit", 2, "--json").json
    assert found.pop("timestamp") >= example.last and found.pop("time").endswith("Z")
    assert found == {
        "store": str(example.path),
        "table": "metrics",
        "columns": [
            {"name": "host", "type": "string"},
            {"name": "time", "type": "timestamp"},
            {"name": "value", "type": "double"},
            {"name": "unit", "type": "varchar(8)"},
        ],
        "rows": [
            {"host": "a", "time": "2026-01-01T00:00:00Z", "value": None, "unit": "%"},
            {"host": "a", "time": "2026-01-02T00:00:00Z", "value": 2.0, "unit": "%"},
        ],
        "row_count": 2,
    }


def test_scan_at(run: Run, example: Example) -> None:
    line = (
        "table",
        "scan",
        example.path,
        "metrics",
        "--where",
        "host = 'a'",
        "--order",
        "--columns",
        "value",
        "--json",
    )
    iso = nyala.to_datetime(example.first).isoformat()
    for at in (example.first, iso, iso.replace("+00:00", "Z")):
        found = run(*line, "--at", at).json
        assert [row["value"] for row in found["rows"]] == [1.0, 2.0]
        assert found["time"] == iso.replace("+00:00", "Z")
    assert run(*line, "--at", example.first).json["timestamp"] == example.first
    assert [row["value"] for row in run(*line, "--at", example.last).json["rows"]] == [None, 2.0]
    assert "neither a timestamp nor an ISO time" in run(*line, "--at", "yesterday", code=1).stderr
    output = run(*line, "--at", "2040-01-01", code=1).stderr
    assert "--at 2040-01-01T00:00:00Z is in the future: it is " in output
    assert "no zone" not in output, "a missing time zone is not the problem"
    assert "+00:00" not in output.partition(" now, ")[0]


def test_a_moment_before_the_table_was_created(run: Run, tmp_path: Path) -> None:
    """Reading at such a moment raises an error that names the first readable moment.

    The result is never an empty table.
    """
    with nyala.connect(tmp_path / "s") as db:
        before = db.create_table("other", {"k": "int64"}, "k").insert({"k": [1]}).time
        made = db.create_table("t", {"k": "int64"}, "k").insert({"k": [1]}).timestamp
    naive = before.replace(tzinfo=None).isoformat()
    years_ago = before.replace(
        tzinfo=None, year=2001
    ).isoformat()  # earlier than the table in every time zone
    for at, noted in ((naive + "Z", False), (naive, True), (years_ago, False), (made, None)):
        code = 0 if noted is None else 1
        scan = run("table", "scan", tmp_path / "s", "t", "--at", at, code=code)
        export = run(
            "table", "export", tmp_path / "s", "t", tmp_path / "t.csv", "--overwrite", "--at", at, code=code
        )
        for ran in (scan, export):
            assert ("table 't' did not exist at " in ran.stderr) is (noted is not None)
            assert ("it has no zone and was taken as UTC" in ran.stderr) is (
                noted is not None and at[-1] != "Z"
            )
            output = ran.stderr.partition("; it has no zone")[0]
            assert "+00:00" not in output and output.count("Z") == (0 if noted is None else 2)
    ran = run("table", "scan", tmp_path / "s", "t", "--where", "k = 2")
    assert ran.stderr == ""  # a scan that is empty for another reason prints nothing
    ran = run("table", "scan", tmp_path / "s", "t", "--where", "k = NULL")
    assert "use k IS NULL to find NULLs" in ran.stderr


def test_scan_values(run: Run, example: Example) -> None:
    """Values of every type, as text and as JSON."""
    found = run("table", "scan", example.path, "types", "--order", "--json").json["rows"]
    assert found[1] == {
        "k": 1,
        "bool": True,
        "int8": -128,
        "int16": 32767,
        "int32": -(2**31),
        "date": "2026-11-20",
        "timestamp": "2026-11-20T10:00:00.5Z",
        "float": 0.1,
        "double": "NaN",
        "decimal": "-1234567890123.40",
        "varchar": "čaj",
        "string": 'a "quoted", text\nof two lines',
        "binary": "00ff2c0a",
    }
    assert found[2]["double"] == "-Infinity" and found[2]["string"] == "" and found[2]["binary"] == ""
    assert set(found[0].values()) == {None, -5}

    text = run("table", "scan", example.path, "types", "--where", "k = 1").lines
    assert len(text) == 2
    for cell in (
        "true",
        "-128",
        "2026-11-20T10:00:00.5Z",
        "0.1",
        "NaN",
        "-1234567890123.40",
        "x'00ff2c0a'",
        "lines",
    ):
        assert cell in text[1]
    assert r"text\nof" in text[1]


def test_rows_in_memory_are_shown_as_being_in_the_log(run: Run, tmp_path: Path) -> None:
    """ "0 B on disk" would read as if a crash could lose them."""
    with nyala.connect(tmp_path / "s") as db:
        table = db.create_table("t", {"k": "int64"}, "k")
        table.insert({"k": list(range(1000))})

        def size() -> str:
            lines = run("table", "describe", tmp_path / "s").lines
            return next(line.partition("  ")[2].strip() for line in lines if line.startswith("size"))

        assert re.fullmatch(r"\d+\.\d KB in memory and in the log, 0 B in files", size())
        output = run("table", "stats", tmp_path / "s")
        assert output.stderr == "Rows in memory are also in the log; a flush writes them to files.\n"
        db.flush()
        assert re.fullmatch(
            r"1\.\d KB in files", size()
        )  # mostly headers and footers, because numbers in sequence take few bytes
        assert run("table", "stats", tmp_path / "s").stderr == ""


def test_stats(run: Run, example: Example) -> None:
    lines = run("table", "stats", example.path).lines
    assert lines[0].split("  ")[0] == "table" and len(lines) == 3
    all_tables = run("table", "stats", example.path, "--json").json
    assert [one["name"] for one in all_tables["tables"]] == ["metrics", "types"]
    one = run("table", "stats", example.path, "metrics", "--json").json["tables"]
    assert (
        len(one) == 1
        and one[0]["rows"] == 6
        and one[0]["tablets"] == 4
        and one[0]["timestamp"] >= example.last
    )
    with nyala.connect(example.path, read_only=True) as db:
        assert one[0]["bytes"] == db["metrics"].stats().bytes


def test_stats_of_columns(run: Run, tmp_path: Path) -> None:
    columns = {"k": "int64", "v": nyala.column("double", block_size=65_536), "later": "string"}
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        table = db.create_table("t", columns, "k")
        assert run("table", "stats", tmp_path / "s", "--columns").lines[-1].endswith("0 B")
        table.insert({"k": range(10_000), "v": [n * n * 7919 % 99_991 / 4 for n in range(10_000)]})
        output = run("table", "stats", tmp_path / "s", "t", "--columns")
        assert "a flush writes them to files" in output.stderr
        db.flush()
        found = table.column_stats()
        table.insert({"k": range(20_000, 60_000), "v": [1 / (n + 3) for n in range(40_000)]})
        db.flush()
    lines = run("table", "stats", tmp_path / "s", "--columns").lines
    assert next(cell for cell in lines[0].split("  ") if cell.strip()) == "column"
    assert re.search(r"^v +double +auto, default, blocks of 65,536 +bitshuffle 80 %, alp 20 % +\d", lines[2])
    document = run("table", "stats", tmp_path / "s", "--columns", "--json").json
    assert document["name"] == "t" and document["base_bytes"] > 0
    assert [one["rows"] for one in document["columns"]] == [50_000] * 3
    assert set(document["columns"][0]) == set(asdict(found[0]))


def test_the_size_of_the_history(run: Run, tmp_path: Path) -> None:
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, "k")
        table.insert({"k": list(range(1000)), "v": [0] * 1000})
        table.delete({"k": list(range(300))})
        db.flush()
    one = run("table", "stats", tmp_path / "s", "--json").json["tables"][0]
    assert one["dead_rows"] == 300 and one["oldest_readable"] == 0 and one["oldest_readable_time"] is None
    assert one["undo_bytes"] < one["history_bytes"] < one["bytes"]
    lines = run("table", "describe", tmp_path / "s").lines
    assert "readable   from its beginning on" in lines
    past = next(line for line in lines if line.startswith("the past"))
    assert re.fullmatch(r"the past   \d+\.\d KB of the files, with 300 deleted rows", past)


def test_a_moment_before_the_history(run: Run, tmp_path: Path) -> None:
    """The error names the oldest readable moment."""
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, "k", history=0)
        first = table.insert({"k": [1], "v": [1]})
        last = table.update({"k": [1], "v": [2]})
    for line in (["scan", "--at", first.timestamp], ["changes", "--since", first.timestamp]):
        output = run("table", line[0], tmp_path / "s", *line[1:], code=1).stderr
        oldest = last.time.isoformat().replace("+00:00", "Z")
        assert (
            f"that can be read is {oldest} (timestamp {last.timestamp})" in output and "+00:00" not in output
        )
        assert "is the present only, and" in output and "create_table" not in output
    when = f"{last.time.isoformat()[:-6]}Z (timestamp {last.timestamp})"
    assert f"readable   from {when} on" in run("table", "describe", tmp_path / "s").lines
    found = run("table", "describe", tmp_path / "s", "--json").json
    assert found["oldest_readable"] == last.timestamp and found["oldest_readable_time"] in when


def test_changes(run: Run, example: Example) -> None:
    line = ("table", "changes", example.path, "metrics", "--since")
    last = nyala.to_datetime(example.last).isoformat().removesuffix("+00:00").rstrip("0") + "Z"
    assert run(*line, example.first, "--columns", "value").lines == [
        "host  time                  value  _change_type      _commit_version  _commit_timestamp",
        f"a     2026-01-01T00:00:00Z   NULL  update        {example.last}  {last}",
    ]
    lines = run(*line, example.first, "--columns", "value", "--before").lines
    assert [text.split()[3] for text in lines[1:]] == ["update_preimage", "update_postimage"]
    assert [text.split()[2] for text in lines[1:]] == ["1.0", "NULL"]
    iso = nyala.to_datetime(example.first).isoformat().replace("+00:00", "Z")
    found = run(*line, iso, "--until", example.last, "--versions", "all", "--json").json
    assert found["until"] == example.last and found["since_time"] == iso and found["versions"] == "all"
    assert found["row_count"] == 1 and found["rows"][0]["_change_type"] == "update"
    assert run(*line, example.first - 1, "--until", example.first, "--json").json["row_count"] == 6
    assert run(*line, example.last, "--json").json["rows"] == []


# -- values and lines ----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.text(), st.one_of(st.none(), st.floats()), st.binary()), max_size=20))
def test_control_characters_do_not_break_the_output(rows: list[tuple[str, float | None, bytes]]) -> None:
    """With control characters in values, each row is still one line of text, and JSON is valid."""
    batch = pa.record_batch(
        {
            "s": pa.array([row[0] for row in rows], pa.string()),
            "f": pa.array([row[1] for row in rows], pa.float64()),
            "b": pa.array([row[2] for row in rows], pa.binary()),
        }
    )
    text = list(zip(*text_columns(batch), strict=True))
    lines = list(aligned([["s", "f", "b"], *text], [0, 0, 0], [False, True, False]))
    assert len("\n".join(lines).splitlines()) == len(rows) + 1
    parsed = json.loads(json.dumps(json_columns(batch), allow_nan=False))
    assert parsed[0] == [row[0] for row in rows] and parsed[2] == [row[2].hex() for row in rows]
    for shown, (_, value, _) in zip(parsed[1], rows, strict=True):
        assert shown == value or (isinstance(shown, str) and str(float(shown)) == str(value))


def test_commits(run: Run, example: Example, tmp_path: Path) -> None:
    with nyala.connect(example.path, maintenance=False) as db:
        with db.batch(message="both, at once") as b:
            b.delete("metrics", [("a", nyala.to_datetime(0).replace(year=1999))], on_missing="ignore")
            b.insert("types", [{"k": 77}])
            b.insert("metrics", [{"host": "z", "time": nyala.to_datetime(0).replace(year=2026)}])
        at = db["types"].commits()[-1]
    lines = run("table", "commits", example.path).lines
    assert lines[0].split() == ["timestamp", "time", "inserted", "updated", "deleted", "tables", "message"]
    assert lines[-1].split()[0] == str(at.timestamp)
    assert lines[-1].endswith("2        0        0  metrics, types  both, at once")
    found = run("table", "commits", example.path, "types", "--since", at.timestamp - 1, "--json").json
    (row,) = found["rows"]
    assert found["table"] == "types" and row["tables"] == ["types"] and row["message"] == "both, at once"
    assert row["inserted"] == 1 and row["timestamp"] == at.timestamp and row["time"].endswith("Z")
    assert run("table", "commits", example.path, "--since", at.timestamp, "--json").json["row_count"] == 0
    output = run("table", "commits", example.path, "--since", "soon", code=1).stderr
    assert "--since 'soon' is neither a timestamp nor an ISO time" in output and "has no tags" in output


def test_tags(run: Run, example: Example) -> None:
    assert "no tags" in run("tag", "list", example.path).stderr
    made = run("tag", "add", example.path, "before-load", "--json").json
    assert made["name"] == "before-load" and made["timestamp"] >= example.last
    assert run("tag", "add", example.path, "first", "--at", example.first).stdout.startswith("first names 20")
    listed = run("tag", "list", example.path, "--json").json
    assert [each["name"] for each in listed["tags"]] == ["first", "before-load"] and listed["tag_bytes"] == 0
    lines = run("tag", "list", example.path).lines
    assert [line.split()[0] for line in lines] == ["tag", "first", "before-load"]
    rows = [run("table", "scan", example.path, "metrics", "--at", at, "--json").json["row_count"]
            for at in ("first", "before-load")]  # fmt: skip
    assert rows == [
        run("table", "scan", example.path, "metrics", "--at", at, "--json").json["row_count"]
        for at in (example.first, example.last)
    ]
    output = run("table", "scan", example.path, "metrics", "--at", "befor-load", code=1).stderr
    assert "--at 'befor-load'" in output and "did you mean 'before-load'?" in output
    assert (
        run("table", "changes", example.path, "metrics", "--since", "first", "--json").json["row_count"] == 1
    )
    assert run("tag", "drop", example.path, "first").stdout == "Dropped the tag first.\n"
    assert "its tags are: before-load" in run("tag", "drop", example.path, "zzz", code=1).stderr
