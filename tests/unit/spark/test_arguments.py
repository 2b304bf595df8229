"""Wrong arguments of `nyala.spark` (a folder for a Table, a Table for a Database) are errors that
say what is needed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql.types import StructType
from tests.support import key_value_table, open_database

import nyala
import nyala.spark
from nyala.objects.address import Address
from nyala.spark.arguments import address_of_store


class Frame:
    """A stand-in for a DataFrame, with the attributes that are checked."""

    sparkSession = None
    schema = StructType([])


MISTAKES: list[tuple[Callable[[Any, Any], object], str]] = [
    (lambda db, table: nyala.spark.load(Frame(), "t"), "nyala.spark.load expects a Table of an open Database, got 't'"),
    (lambda db, table: nyala.spark.upsert(pd.DataFrame({"k": [1]}), table), "upsert expects a Spark DataFrame"),
    (lambda db, table: nyala.spark.compact(None, "t"), "nyala.spark.compact expects a Table"),
    (lambda db, table: nyala.spark.backup(None, "t", "folder"), "nyala.spark.backup expects a Table"),
    (lambda db, table: nyala.spark.restore(None, "folder", "t", into="new"), "expects an open Database, got 'new'"),
    (lambda db, table: nyala.spark.restore(None, "folder", 5), "expects a Table of an open Database, got 5"),
    (lambda db, table: nyala.spark.write(Frame(), table, "t"), "a store's folder, got a nyala.api.table.Table"),
    (lambda db, table: nyala.spark.write(Frame(), "s", table), "expects the table's name"),
    (lambda db, table: nyala.spark.sql(None, "SELECT 1", store=5), "expects the path of a store's folder, got 5"),
    (lambda db, table: nyala.spark.sql("SELECT 1", None), "expects the Spark session and the text of a SELECT"),
]  # fmt: skip


@pytest.mark.parametrize(("act", "says"), MISTAKES, ids=[says for _, says in MISTAKES])
def test_wrong_kinds_of_arguments(tmp_path: Path, act: Callable[[Any, Any], object], says: str) -> None:
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        with pytest.raises(nyala.InvalidArgumentError) as error:
            act(db, table)
        assert says in str(error.value)


def test_a_table_of_a_closed_database_is_refused(tmp_path: Path) -> None:
    """Functions that would send the rows to another process refuse the table too."""
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
    for act in (
        lambda: nyala.spark.load(Frame(), table),
        lambda: nyala.spark.upsert(Frame(), table, tasks=2),
        lambda: nyala.spark.compact(None, table),
        lambda: nyala.spark.backup(None, table, "folder"),
    ):
        with pytest.raises(nyala.StorageError, match="is closed: connect"):
            act()


LEASED: dict[str, Callable[[Any, Any], object]] = {
    "nyala.spark.load": lambda table, lease: nyala.spark.load(Frame(), table, lease=lease),
    "nyala.spark.upsert": lambda table, lease: nyala.spark.upsert(Frame(), table, lease=lease),
    "nyala.spark.backup": lambda table, lease: nyala.spark.backup(None, table, "folder", lease=lease),
    "nyala.spark.restore": lambda table, lease: nyala.spark.restore(None, "folder", table, lease=lease),
    "nyala.spark.sql": lambda table, lease: nyala.spark.sql(None, "SELECT 1", lease=lease),
    "to_spark": lambda table, lease: table.scan().to_spark(None, lease=lease),
}


def test_an_invalid_lease_is_refused(tmp_path: Path) -> None:
    """All functions with a lease raise the same error, before they do anything."""
    leases: list[object] = [0, -1, float("nan"), float("inf"), True, None, "soon", [60], 10**9]
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        for call, lease in itertools.product(LEASED, leases):
            with pytest.raises(nyala.InvalidArgumentError) as error:
                LEASED[call](table, lease)
            output = f"{call}: lease must be a number of seconds above 0 and up to 31622400 (366 days), got {lease!r}"
            assert str(error.value) == output


def test_an_open_database_may_be_passed_for_its_folder(tmp_path: Path) -> None:
    with open_database(tmp_path / "s") as db:
        folder = Address(str(tmp_path / "s"))
        assert address_of_store(db, "x") == address_of_store(tmp_path / "s", "x") == folder
