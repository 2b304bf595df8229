"""Error messages name options of `.option(...)`, and no Python arguments of the library."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import nyala
from nyala.errors import Error
from nyala.spark.source.changes import NyalaChangeStream, change_schema
from nyala.spark.source.data_source import NyalaDataSource
from nyala.spark.source.option_messages import in_options, rows_in_options
from nyala.spark.source.options import ChangeOptions
from nyala.spark.types import spark_schema

PYTHONS = (
    "at=",
    "None",
    "columns=",
    "where=",
    "on_conflict",
    "on_missing",
    "upsert(",
    "lock_timeout",
    "nyala.col(",
)


@pytest.fixture
def store(tmp_path: Path) -> str:
    with nyala.connect(tmp_path / "store") as db:
        table = db.create_table(
            "t", {"k": "int64", "_change_type": "string"}, ["k"],
            [nyala.range_partition("k", bounds=[(0, 50), (50, 100)])],
        )  # fmt: skip
        table.insert({"k": [1, 60], "_change_type": ["a", "b"]})
        with table.alter() as a:
            a.drop_range(50, 100)
    return str(tmp_path / "store")


@pytest.mark.parametrize(
    ("options", "output"),
    [
        ({"at": "yesterday"}, "option at='yesterday' is neither a timestamp nor an ISO time"),
        ({"at": "1788000000"}, "write .option('at', '2026-08-29T"),
        ({"at": "99999999999999999999"}, "option at=99999999999999999999 is outside"),
        ({"where": "  "}, "option where: the predicate is empty; leave the option out to read every row"),
        (
            {"where": "k = 'a'", "columns": "k"},
            "option where: cannot compare column 'k' of type int64",
        ),
        ({"where": "x = 1"}, "option where: no column 'x'"),
        ({"where": "k = 1", "columns": "x"}, "option columns: no column 'x'"),
        ({"where": "k = 1 OR " * 200_000}, "join with a DataFrame of the values"),
        ({"changes": "true"}, "pass .option('columns', …) without this column"),
        (
            {"changes": "true", "columns": "k", "startingTimestamp": "x"},
            "option startingTimestamp='x' is neither",
        ),
        (
            {"changes": "true", "columns": "k", "endingTimestamp": "1788000000"},
            ".option('endingTimestamp', '2026-",
        ),
    ],
)
def test_errors_of_load_name_options(store: str, options: dict[str, str], output: str) -> None:
    with pytest.raises(Error) as raised:
        NyalaDataSource({"path": store, "table": "t", **options}).schema()
    assert output in str(raised.value)
    assert [python for python in PYTHONS if python in str(raised.value).replace("option at=", "")] == []


def test_a_mistyped_folder(tmp_path: Path) -> None:
    """The error for a missing folder says how to create a store."""
    with pytest.raises(Error, match=r"no Nyala store at .*create one with nyala\.connect\(path\)$"):
        NyalaDataSource({"path": str(tmp_path / "wether"), "table": "t"}).schema()


def test_errors_of_a_streams_start_name_the_option(store: str) -> None:
    """An invalid start raises its error only when the query begins."""
    options = ChangeOptions(store, "t", ("k",), start="soon")
    schema = spark_schema(change_schema(ChangeOptions(store, "t", ("k",))))
    with pytest.raises(Error, match="^option startingTimestamp='soon' is neither"):
        NyalaChangeStream(options, schema).initialOffset()


def test_messages_of_failing_rows_name_options() -> None:
    """Messages are reworded in the exception of `save()`, in the log, and in errors.parquet."""
    python = [
        "duplicate key: table 't' already has a row with this key; use upsert(), or pass on_conflict=\"ignore\"",
        "no row of table 't' has this key; use upsert(), or pass on_missing=\"ignore\"",
        "no row of table 't' has this key; pass on_missing=\"ignore\"",
    ]
    expected = [
        "duplicate key: table 't' already has a row with this key; use operation upsert or insert-ignore",
        "no row of table 't' has this key; use operation upsert or update-ignore",
        "no row of table 't' has this key; use operation delete-ignore",
    ]
    # Row positions of the commit are not those of the DataFrame.
    python.append(
        "duplicate key in this batch: rows 17 and 203 have the same key; remove one, or use upsert(), where …"
    )
    expected.append("duplicate key in this batch; remove one, or use upsert(), where …")
    assert [in_options(text) for text in python] == expected
    rows = pa.table({"row": [0, 1, 2, 3], "message": python, "k": [1, 2, 3, 4]})
    assert rows_in_options(rows).to_pydict() == {"row": [0, 1, 2, 3], "message": expected, "k": [1, 2, 3, 4]}


@pytest.mark.parametrize("operation", ["insert", "update", "delete"])
def test_each_rule_matches_a_message_of_the_library(store: str, operation: str) -> None:
    """A message that is changed in the library makes this test fail."""
    with nyala.connect(store) as db:
        table = db["t"]
        rows = {"k": [1] if operation == "insert" else [2], "_change_type": ["x"]}
        done = (
            table.delete({"k": [2]}, errors="collect")
            if operation == "delete"
            else getattr(table, operation)(rows, errors="collect")
        )
        assert done.errors is not None
        (message,) = rows_in_options(done.errors).column("message").to_pylist()
    assert "use operation " in message and not any(python in message for python in PYTHONS)


def test_a_stream_needs_the_option_changes(store: str) -> None:
    """Without `_change_type`, deletes would be invisible."""
    source = NyalaDataSource({"path": store, "table": "t", "columns": "k"})
    with pytest.raises(
        Error, match=r"a stream can only read a table's changes: add \.option\('changes', True\)"
    ):
        source.streamReader(source.schema())
    ended = NyalaDataSource(
        {"path": store, "table": "t", "columns": "k", "changes": "true", "endingTimestamp": "2026-11-21"}
    )
    with pytest.raises(Error, match="option endingTimestamp is only for spark.read"):
        ended.streamReader(spark_schema(change_schema(ChangeOptions(store, "t", ("k",)))))
