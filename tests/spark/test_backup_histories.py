"""Backup and restore through Spark after random histories: every backed-up moment is restored
exactly.

`tests/api/test_backup.py` tests plans over longer histories, without Spark's jobs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.sampled import each

import nyala
import nyala.spark
from nyala.spark.jobs import small_frames as small

Step: TypeAlias = tuple[str, Any]

KEYS = 30
# The range that is dropped and added again.
UPPER = (20, 30)

keys = st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=8, unique=True)
STEPS = st.one_of(
    st.tuples(st.sampled_from(["upsert", "upsert", "update", "delete"]), keys),
    st.tuples(st.sampled_from(["backup", "backup", "full"]), st.none()),
    st.tuples(st.sampled_from(["flush", "compact", "range", "rename", "column"]), st.none()),
)
HISTORIES = st.lists(STEPS, min_size=6, max_size=14).map(
    lambda steps: [("upsert", [1, 2, 25]), *steps, ("backup", None)]
)


class World:
    """A table, its history, and its rows at each backup."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.backups = spark, folder / "backups"
        self.db = nyala.connect(folder / "store", maintenance=False)
        self.table = self.db.create_table(
            "t", {"k": "int64", "v": "int64", "w": "string"}, ["k"],
            [nyala.hash_partition("k", buckets=2), nyala.range_partition("k", bounds=[(0, 20), UPPER])],
        )  # fmt: skip
        self.number = 0
        self.whole = True
        self.names = ["w"]
        self.moments: list[tuple[int, list[dict[str, Any]]]] = []
        self.kinds: list[str] = []

    def rows(self, table: nyala.Table) -> list[dict[str, Any]]:
        return list(table.scan(order_by_key=True).to_arrow().to_pylist())

    def do(self, step: Step) -> None:
        what, given = step
        self.number += 1
        if given is not None:
            given = [k for k in given if self.whole or k < UPPER[0]]
            values = {"k": given, "v": [self.number] * len(given)}
            if what == "delete":
                self.table.delete({"k": given}, on_missing="ignore")
            elif what == "update":
                self.table.update(
                    {**values, self.names[-1]: [f"{self.number}"] * len(given)}, on_missing="ignore"
                )
            else:
                self.table.upsert(values)
        elif what in ("backup", "full"):
            if len(self.moments) % 2:
                made = nyala.spark.backup(self.spark, self.table, self.backups, full=what == "full")
            else:  # a backup without Spark, on which the next incremental backup of Spark depends
                made = next(iter(self.db.backup(self.backups, ["t"], full=what == "full").tables), None)
            if made is not None:
                self.kinds.append(made.kind)
                self.moments.append((made.until, self.rows(self.table)))
        elif what == "flush":
            self.table.flush()
        elif what == "compact":
            self.table.compact()
        else:
            with self.table.alter() as alteration:
                self.alter(what, alteration)

    def alter(self, what: str, alteration: nyala.Alteration) -> None:
        if what == "range":
            self.whole = not self.whole
            (alteration.add_range if self.whole else alteration.drop_range)(*UPPER)
        elif what == "rename":
            name = f"renamed{self.number}"
            alteration.rename_column(self.names.pop(), name)
            self.names.append(name)
        elif len(self.names) == 1:
            self.names.append(f"new{self.number}")
            alteration.add_column(self.names[-1], "string", default="new")
        else:
            alteration.drop_column(self.names.pop(0))

    def check(self, moments: Sequence[tuple[int, list[dict[str, Any]]]]) -> None:
        for moment, expected in moments:
            name = f"restored {moment}"
            found = nyala.spark.restore(self.spark, self.backups, "t", at=moment, into=self.db, name=name)
            assert self.rows(found) == expected
            self.db.drop_table(name)
            nyala.restore_backup(self.backups, self.db, {"t": name}, moment)
            assert self.rows(self.db[name]) == expected
            self.db.drop_table(name)


def run(spark: SparkSession, steps: Sequence[Step], large: bool) -> None:
    """Run a history. large: executors restore everything; otherwise the driver does it, because
    there are few rows.
    """
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        if large:
            patched.setattr(small, "SMALL_BYTES", -1)
        world = World(spark, Path(folder))
        try:
            for step in steps:
                world.do(step)
            backed_up = [found.until for found in nyala.list_backups(world.backups)]
            assert backed_up == [moment for moment, _ in world.moments]
            world.check(world.moments)
        finally:
            world.db.close()


NO_CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


@pytest.mark.parametrize("large", each(2, [True, False]))
def test_a_history_with_everything_in_it(spark: SparkSession, large: bool) -> None:
    """Incremental backups over a rename, a new column, a range that is dropped and added again,
    deletes and a compaction.
    """
    steps: list[Step] = [
        ("upsert", [0, 5, 21, 22]), ("backup", None), ("rename", None), ("update", [5, 21]), ("backup", None),
        ("range", None), ("column", None), ("update", [0]), ("delete", [5]), ("flush", None), ("backup", None),
        ("range", None), ("upsert", [5, 21]), ("compact", None), ("column", None), ("backup", None),
    ]  # fmt: skip
    run(spark, steps, large)


@pytest.mark.long
@given(steps=HISTORIES, large=st.booleans())
@settings(max_examples=100, suppress_health_check=NO_CHECKS)
@pytest.mark.timeout(3600)
def test_many_random_histories(spark: SparkSession, steps: list[Step], large: bool) -> None:
    """Restores every moment."""
    run(spark, steps, large)
