"""Messages of errors begin with table and tablet, and Nyala's errors are found in Spark's
exceptions.
"""

from __future__ import annotations

import pickle
import sys

import pytest

import nyala.spark
from nyala.env import MissingFileError
from nyala.errors import (
    CorruptionError,
    DuplicateKeyError,
    Error,
    InvalidArgumentError,
    StorageError,
    TableNotFoundError,
)
from nyala.spark.errors import add_place, errors_naming, nyala_error
from nyala.tablet.compaction import file_jobs

FILE = "/srv/data/9/store/data/3/14.base"


def test_the_tablet_is_taken_from_a_file_path() -> None:
    """The code that adds the table may not know the tablet."""
    error = add_place(CorruptionError("expected 5, found 6", FILE, 32), "table 't'")
    assert str(error) == f"table 't', tablet 3: {FILE} at offset 32: expected 5, found 6"
    assert (error.path, error.offset) == (FILE, 32)
    assert str(add_place(CorruptionError("no", FILE), "table 't', tablet 7")).startswith(
        "table 't', tablet 7: /srv"
    )
    assert str(add_place(StorageError("the disk is full"), "table 't'")) == "table 't': the disk is full"
    # The path of a backup may be anywhere.
    backup = "backup of table 's', tablet 7: /srv/data/2026/s/100/part-00001.parquet: no"
    assert str(add_place(CorruptionError(backup), "table 't'")) == f"table 't': {backup}"


def test_a_table_is_added_to_a_message_only_once() -> None:
    once = add_place(CorruptionError("no", FILE), "table 't'")
    text = str(once)
    assert str(add_place(once, "table 't'")) == str(add_place(once, "table 'u', tablet 5")) == text
    for output in ("no table 't' in this store", "table 't' has rows: drop it"):
        assert str(add_place(TableNotFoundError(output), "table 't'")) == output
    assert str(add_place(Error("no"), 'table "it\'s"')) == 'table "it\'s": no'
    with pytest.raises(Error, match=r"^table 't': no$"), errors_naming("table 't'"):
        raise Error("no")


@pytest.mark.parametrize(
    ("text", "output"),
    [
        (
            "[PYTHON_EXCEPTION] …\nModuleNotFoundError: No module named 'google_crc32c'\n",
            "have no google_crc32c",
        ),
        ("ModuleNotFoundError: No module named 'nyala.spark'", r"have no nyala\.spark"),
        (
            "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: nyala. Make",
            "do not find the format 'nyala'",
        ),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than",
            "have another Python version",
        ),
        (
            'java.io.IOException: Cannot run program "/opt/py": error=2',
            "do not start: /opt/py does not exist",
        ),
    ],
)
def test_errors_of_workers_with_another_python_have_advice(text: str, output: str) -> None:
    with (
        pytest.raises(Error, match=rf"^table 't': Spark's Python workers .*{output}.*PYSPARK_PYTHON"),
        errors_naming("table 't'"),
        nyala.spark.plain_errors(),
    ):
        raise RuntimeError(text)


def test_a_missing_mode_is_an_error_with_advice() -> None:
    """Spark's own message suggests "Overwrite", which would delete the rows of the table."""
    output = r"'errorifexists'.*append.*insert-ignore.*overwrite'\) to replace all rows"
    with pytest.raises(nyala.InvalidArgumentError, match=output), nyala.spark.plain_errors():
        raise RuntimeError('[UNSUPPORTED_DATA_SOURCE_SAVE_MODE] The data source "nyala" cannot be written in')


def test_a_missing_mode_of_another_source_is_not_changed() -> None:
    with pytest.raises(RuntimeError, match="jdbc"), nyala.spark.plain_errors():
        raise RuntimeError('[UNSUPPORTED_DATA_SOURCE_SAVE_MODE] The data source "jdbc" cannot be written in')


def test_a_missing_module_of_a_users_function_is_not_changed() -> None:
    """Advice about the workers' Python would be wrong."""
    with pytest.raises(RuntimeError, match="sklearn"), nyala.spark.plain_errors():
        raise RuntimeError("No module named 'sklearn'")


def test_a_missing_file_of_a_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is no longer the writer, and another process has compacted. The message says so."""

    def run(*_: object) -> None:
        raise MissingFileError("cannot open data/3/1.base: No such file", path="/s/data/3/1.base")

    monkeypatch.setattr(file_jobs, "run", run)
    with pytest.raises(
        StorageError, match=r"deleted \(/s/data/3/1.base\).*run the compaction again"
    ) as raised:
        sys.modules["nyala.spark.jobs.compact"]._run(None, None)  # type: ignore[arg-type]
    assert not isinstance(raised.value, MissingFileError)


def test_an_error_is_found_in_sparks_text() -> None:
    """Class and first line of the last Nyala error; None without one."""
    text = (
        "[PYTHON_EXCEPTION] Traceback (most recent call last):\n  File ...\nnyala.errors.StorageError: no disk\n"
        "During handling ...\nnyala.errors.DuplicateKeyError: table 't': 1 of 2 rows failed: row 0 (k=1)\n"
        "1 already-present\n  row 0 (k=1): …\n at org.apache.spark"
    )
    with pytest.raises(DuplicateKeyError) as raised, nyala.spark.plain_errors():
        raise RuntimeError(text)
    assert str(raised.value) == "table 't': 1 of 2 rows failed: row 0 (k=1)"
    assert isinstance(raised.value.__context__, RuntimeError) and raised.value.__cause__ is None
    assert (
        nyala_error(RuntimeError("nyala.errors.Nothing: x")) is not None
        and nyala_error(RuntimeError("x")) is None
    )
    own = InvalidArgumentError("mine")
    with pytest.raises(InvalidArgumentError) as kept, nyala.spark.plain_errors():
        raise own
    assert kept.value is own
    found = nyala_error(RuntimeError(f"nyala.errors.CorruptionError: {FILE} at offset 32: no"))
    assert isinstance(found, CorruptionError) and "no" in str(pickle.loads(pickle.dumps(found)))
