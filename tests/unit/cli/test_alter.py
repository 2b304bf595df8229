"""`nyala table alter` applies all steps, or none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import nyala

from .conftest import Run


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = str(tmp_path / "s")
    with nyala.connect(path, maintenance=False) as db:
        table = db.create_table(
            "t", {"k": "int64", "at": "timestamp", "v": "int32", "old": "string"}, ["k", "at"],
            nyala.range_partition("at", bounds=[("2025-01-01", "2026-01-01"), ("2026-01-01", "2027-01-01")]),
        )  # fmt: skip
        table.insert({"k": [1, 2], "at": ["2025-05-05", "2026-05-05"], "v": [1, 2], "old": ["a", "b"]})
    return path


def test_all_kinds_of_steps_at_once(run: Run, store: str) -> None:
    messages = run(
        "table", "alter", store, "t",
        "add unit string default=ms nullable=false comment='a unit' encoding=dictionary",
        "change unit compression=zstd block_size=4096",
        "add price decimal(9,2) default=1.50", "add flag bool default=true", "add share double default=0.5",
        "drop old", "rename v value", "change value type=int64 default=7 nullable=true", "change share default=",
        "add-range 2027-01-01 -", "drop-range 2025-01-01 2026-01-01", "rename-table u", "comment 'all of it'",
        "history 12h",
    )  # fmt: skip
    assert messages.stdout.startswith(
        "u: k int64 NOT NULL, at timestamp NOT NULL, value int64, unit string NOT NULL"
    )
    with nyala.connect(store, read_only=True) as db:
        (row,) = db["u"].to_arrow().drop(["at"]).to_pylist()
        assert {name: str(value) for name, value in row.items()} == {
            "k": "2", "value": "2", "unit": "ms", "price": "1.50", "flag": "True", "share": "0.5",
        }  # fmt: skip
        ranges = [tablet.partition for tablet in db["u"].tablets()]
        assert ranges == ["RANGE (at) [2026-01-01, 2027-01-01)", "RANGE (at) [2027-01-01, unbounded)"]
    described = run("table", "describe", store, "u", "--json").json
    assert described["history_seconds"] == 12 * 3600
    unit = next(column for column in described["columns"] if column["name"] == "unit")
    assert (unit["encoding"], unit["compression"], unit["block_size"]) == ("dictionary", "zstd", 4096)


def test_an_invalid_step_changes_nothing(run: Run, store: str) -> None:
    messages = run("table", "alter", store, "t", "drop old", "drop k", code=1)
    assert "'k' is part of the primary key" in messages.stderr
    messages = run("table", "alter", store, "t", "drop old", "drop k", "--json", code=1)
    assert json.loads(messages.stderr)["error"]["type"] == "SchemaError"
    with nyala.connect(store, read_only=True) as db:
        assert db["t"].schema.names == ["k", "at", "v", "old"]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("", "it takes"),
        ("remove old", "unknown step 'remove'; a step begins with add, drop"),
        ("drop", "expected 1 word after 'drop'; quote the whole step, as in 'drop NAME'"),
        ("drop old v", "unexpected 'v'"),
        (
            "add x int8 7",
            "unexpected '7' after 'add'; quote the whole step, as in 'add NAME TYPE property=value', and write",
        ),
        ("add x int8 default=seven", "'seven' is not int8"),
        ("add x double default=seven", "'seven' is not double"),
        ("add x bool default=seven", "'seven' is not bool"),
        ("change v nullable=perhaps", "expected true or false"),
        ("change v colour=red", "colour=red: unknown property 'colour'; use type, nullable"),
        ("comment 'open", "No closing quotation"),
    ],
)
def test_text_that_is_not_a_step_is_a_usage_error(run: Run, store: str, step: str, message: str) -> None:
    if not step:
        assert "unknown step ''" in run("table", "alter", store, "t", "''", code=2).stderr
        return
    assert message in run("table", "alter", store, "t", step, code=2).stderr.replace("\n", " ")


def test_a_block_size_below_the_least_is_refused(run: Run, store: str) -> None:
    output = run("table", "alter", store, "t", "change v block_size=511", code=1).stderr
    assert "block_size must be 512 to 16777216 bytes" in output.replace("\n", " ")
    assert "got 'big'" in run("table", "alter", store, "t", "change v block_size=big", code=1).stderr


def test_the_message_about_a_block_size_names_no_python_value(run: Run, store: str) -> None:
    """The library's message says None for the default. At a shell that is the empty value."""
    output = run("table", "alter", store, "t", "change v block_size=none", code=1).stderr.replace("\n", " ")
    assert "such as 65536 or 64KiB, or empty (block_size=) for the default" in output
    assert "None" not in output


def test_an_empty_value_restores_the_default(run: Run, store: str) -> None:
    run("table", "alter", store, "t", "change v encoding=rle compression=zstd block_size=4096")
    run(
        "table",
        "alter",
        store,
        "t",
        "change v encoding= compression= block_size=",
        "add n int8 encoding= compression=",
    )
    for column in run("table", "describe", store, "t", "--json").json["columns"]:
        assert (column["encoding"], column["compression"], column["block_size"]) == ("auto", "default", None)


def test_a_block_size_in_kibibytes_and_back_to_the_default(run: Run, store: str) -> None:
    for output, stored in (("64KiB", 65_536), ("8192", 8192), ("", None)):
        run("table", "alter", store, "t", f"change v block_size={output}")
        columns = run("table", "describe", store, "t", "--json").json["columns"]
        assert [one["block_size"] for one in columns if one["name"] == "v"] == [stored]


def test_bounds_of_several_columns(run: Run, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with nyala.connect(path, maintenance=False) as db:
        db.create_table(
            "t", {"a": "int8", "b": "string"}, ["a", "b"], nyala.range_partition("a", "b", bounds=[])
        )
    run("table", "alter", path, "t", "add-range 1,x 2", "add-range 2 -")
    with nyala.connect(path, read_only=True) as db:
        found: list[Any] = [tablet.partition for tablet in db["t"].tablets()]
    assert found == ["RANGE (a, b) [(1, 'x'), (2))", "RANGE (a, b) [(2), unbounded)"]


def test_a_history_without_a_unit_is_refused(run: Run, store: str) -> None:
    """ "history 30" would mean 30 seconds, and a user who means days would lose the history."""
    output = run("table", "alter", store, "t", "history 30", code=2).stderr
    assert "30 has no unit; write 30d for days" in output
