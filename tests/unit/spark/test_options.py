"""Options of the data source: valid ones are parsed, and invalid ones are errors with advice."""

from __future__ import annotations

import os
from fractions import Fraction

import numpy as np
import pytest

import nyala
from nyala.errors import InvalidArgumentError
from nyala.spark.source.option_messages import errors_in_options
from nyala.spark.source.options import (
    LEASE_DEFAULT_S,
    OPERATIONS,
    ChangeOptions,
    ReadOptions,
    WriteOptions,
    lease_seconds,
)

PATH_AND_TABLE = {"path": "/data/store", "table": "metrics"}


def test_a_read_needs_only_path_and_table() -> None:
    assert ReadOptions.parse(PATH_AND_TABLE) == ReadOptions("/data/store", "metrics", lease_s=LEASE_DEFAULT_S)


@pytest.mark.parametrize("missing", ["path", "table"])
@pytest.mark.parametrize("parse", [ReadOptions.parse, WriteOptions.parse], ids=["read", "write"])
def test_a_missing_option_is_named(parse, missing) -> None:
    given = {name: value for name, value in PATH_AND_TABLE.items() if name != missing}
    with pytest.raises(InvalidArgumentError, match=rf"needs \.option\('{missing}'"):
        parse(given)


def test_a_relative_path_is_resolved_in_the_drivers_folder() -> None:
    """Executors may run in another folder."""
    assert ReadOptions.parse({**PATH_AND_TABLE, "path": "store"}).path == os.path.abspath("store")
    assert WriteOptions.parse({**PATH_AND_TABLE, "path": "file:///data/store"}).path == "/data/store"


@pytest.mark.parametrize(
    ("text", "at"),
    [("7012345678901234", 7012345678901234), ("2013-03-31T12:00", "2013-03-31T12:00")],
)
def test_a_moment_is_a_timestamp_or_text(text: str, at: object) -> None:
    """`db.now()` arrives as text, because Spark's options are texts."""
    assert ReadOptions.parse({**PATH_AND_TABLE, "at": text}).at == at


def test_a_moment_may_be_a_result() -> None:
    """`.option("at", result)` arrives as the repr of the result."""
    result = nyala.WriteResult(timestamp=7012345678901234, inserted=3)
    assert ReadOptions.parse({**PATH_AND_TABLE, "at": str(result)}).at == result.timestamp
    commit = nyala.Commit(result.timestamp, result.time, 1, 0, 0, ("t",), None)
    assert ReadOptions.parse({**PATH_AND_TABLE, "at": str(commit)}).at == result.timestamp


def test_a_message_is_checked_before_any_task_runs() -> None:
    assert (
        WriteOptions.parse({**PATH_AND_TABLE, "message": "corrections of May"}).message
        == "corrections of May"
    )
    with pytest.raises(InvalidArgumentError, match="option message has 1,001 characters"):
        WriteOptions.parse({**PATH_AND_TABLE, "message": "x" * 1001})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"when": "new.k >"}, "expected a value after >"),
        ({"when": "k > 1"}, "old. or new. before the column"),
        ({"when": "new.k > old.k", "newest_by": "k"}, "options when and newest_by exclude each other"),
        (
            {"when": "new.k > old.k", "operation": "update"},
            "option when goes with operation upsert, not with 'update'",
        ),
        (
            {"newest_by": "k", "operation": "changes"},
            "option newest_by goes with operation upsert or delete or delete-",
        ),
    ],
)
def test_a_condition_is_checked_before_any_task_runs(options: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says), errors_in_options():
        WriteOptions.parse({**PATH_AND_TABLE, **options})


@pytest.mark.parametrize(
    ("text", "names"),
    [("a", ("a",)), (" a , b ", ("a", "b")), ('["a, b", " c"]', ("a, b", " c"))],
)
def test_columns_are_a_list_of_names(text: str, names: tuple[str, ...] | None) -> None:
    """A JSON list allows names with commas or blanks."""
    assert ReadOptions.parse({**PATH_AND_TABLE, "columns": text}).columns == names


@pytest.mark.parametrize("text", ["a,,b", "a,a", "[1]", '["a"', ","])
def test_an_invalid_list_of_columns_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="columns="):
        ReadOptions.parse({**PATH_AND_TABLE, "columns": text})


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5"])
def test_counts_are_whole_and_positive(value: str) -> None:
    with pytest.raises(InvalidArgumentError, match="option partitions must be"):
        ReadOptions.parse({**PATH_AND_TABLE, "partitions": value})


@pytest.mark.parametrize("value", ["0", "-1", "two", "nan", "inf", "1e9"])
@pytest.mark.parametrize("parse", [ReadOptions.parse, ChangeOptions.parse], ids=["read", "changes"])
def test_an_invalid_lease_is_refused(parse, value: str) -> None:
    """A lease must be longer than nothing, and not longer than a year."""
    with pytest.raises(InvalidArgumentError, match=f"option lease must be .* got {value!r}"):
        parse({**PATH_AND_TABLE, "lease": value})


def test_a_lease_is_a_number_of_seconds() -> None:
    """A lease is a number of seconds, as an option and as an argument."""
    for parse in (ReadOptions.parse, ChangeOptions.parse):
        assert [parse({**PATH_AND_TABLE, "lease": text}).lease_s for text in ("90", "0.5")] == [90, 0.5]
    assert [lease_seconds(value) for value in (90, 0.5, np.int64(7), Fraction(1, 2))] == [90, 0.5, 7, 0.5]


def test_upsert_that_raises_is_the_default_write() -> None:
    """A repeated upsert does no harm, and no failing row is ignored."""
    options = WriteOptions.parse(PATH_AND_TABLE)
    assert (options.operation, options.errors, options.result) == ("upsert", "raise", None)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_all_seven_operations(operation: str) -> None:
    """Operations are accepted in upper and lower case."""
    assert WriteOptions.parse({**PATH_AND_TABLE, "operation": operation.upper()}).operation == operation


def test_a_wrong_operation_has_a_suggestion() -> None:
    """`insert_ignore` must not become the default."""
    with pytest.raises(InvalidArgumentError, match="did you mean 'insert-ignore'"):
        WriteOptions.parse({**PATH_AND_TABLE, "operation": "insert_ignore"})
    with pytest.raises(InvalidArgumentError, match="must be 'raise' or 'collect'"):
        WriteOptions.parse({**PATH_AND_TABLE, "errors": "ignore"})


def test_an_unknown_option_is_refused() -> None:
    """If a misspelt option were ignored, too many rows or columns would be read."""
    with pytest.raises(InvalidArgumentError, match="unknown option 'wher'.*did you mean 'where'"):
        ReadOptions.parse({**PATH_AND_TABLE, "wher": "a = 1"})


def test_an_option_of_another_call_is_refused() -> None:
    """The message says for which call the option is."""
    with pytest.raises(
        InvalidArgumentError, match="unknown option 'where' for a write.*is an option of a read"
    ):
        WriteOptions.parse({**PATH_AND_TABLE, "where": "a = 1"})
    with pytest.raises(
        InvalidArgumentError, match="unknown option 'operation' for a read.*is an option of a write"
    ):
        ReadOptions.parse({**PATH_AND_TABLE, "operation": "upsert"})


def test_names_of_options_are_case_insensitive() -> None:
    assert ReadOptions.parse({"Path": "/s", "TABLE": "t", "Where": "a = 1"}).where == "a = 1"
