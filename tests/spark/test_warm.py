"""Statements share open readers, and DataFrames of the same moment."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import nyala
import nyala.spark
from nyala.objects.address import Address
from nyala.spark import frames
from nyala.spark.source import reader
from nyala.spark.statements import shared_readers as warm


@pytest.fixture(autouse=True)
def no_readers_left() -> Iterator[None]:
    yield
    warm.close_readers()
    assert not warm._readers


def readers_of(store: Path) -> list[str]:
    return [name for name in os.listdir(store / "leases") if name.startswith("reader-")]


def test_statements_share_a_reader_that_follows_the_writer(spark: SparkSession, store: Path) -> None:
    def ask() -> int:
        (row,) = nyala.spark.sql(spark, "SELECT sum(k) AS s FROM t", store=store).collect()
        return int(row.s)

    with nyala.connect(store) as db:
        table = db.create_table("t", {"k": "int64"}, ["k"])
        table.insert({"k": [1]})
        assert ask() == 1
        (first,) = readers_of(store)
        table.insert({"k": [2]})
        assert ask() == 3
        assert readers_of(store) == [first]
        table.insert({"k": [4]})
        table.flush()
        with table.alter() as alteration:
            alteration.add_column("v", "int32")
        assert ask() == 7
        assert len(readers_of(store)) == 1
        assert nyala.spark.sql(spark, "SELECT k, v FROM t WHERE v IS NULL", store=store).count() == 3


def test_an_idle_reader_is_closed_and_one_in_use_is_not(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with nyala.connect(store):
        monkeypatch.setattr(warm, "IDLE_S", 0.0)
        address = Address(str(store))
        with warm.shared_reader(address) as db:
            reader = warm._readers[address]
            warm._close_if_idle(address, reader)
            assert db.list_tables() == []
            monkeypatch.setattr(warm, "IDLE_S", 3600.0)
        warm._close_if_idle(address, reader)
        assert warm._readers[address] is reader
        monkeypatch.setattr(warm, "IDLE_S", 0.0)
        warm._close_if_idle(address, reader)
        assert address not in warm._readers and not readers_of(store)


def test_a_store_that_replaced_another_is_opened_again(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "store"
    for value in (1, 2):
        with nyala.connect(store) as db:
            db.create_table("t", {"k": "int64"}, ["k"]).insert({"k": [value]})
        assert nyala.spark.sql(spark, "SELECT k FROM t", store=store).collect() == [(value,)]
        shutil.rmtree(store)


def test_a_dataframe_of_the_same_scan_is_shared(
    spark: SparkSession, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan with other columns, predicate or moment gets a new DataFrame. So does one after the
    lease has expired.
    """
    monkeypatch.setattr(frames, "LOCAL_MAX_ROWS", -1)
    made = []
    by_tasks = frames._by_tasks

    def counted(*arguments: object) -> object:
        made.append(arguments)
        return by_tasks(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(frames, "_by_tasks", counted)

    def ask(what: str) -> list[tuple[int, ...]]:
        return sorted(tuple(row) for row in nyala.spark.sql(spark, what, store=store).collect())

    with nyala.connect(store) as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, ["k"])
        table.insert({"k": [1, 2], "v": [10, 20]})
        assert ask("SELECT v FROM t") == [(10,), (20,)]
        assert ask("SELECT v FROM t") == ask("SELECT a.v FROM t AS a") == [(10,), (20,)]
        assert len(made) == 1
        assert ask("SELECT v FROM t WHERE v > 15") == [(20,)]
        assert ask("SELECT v FROM t WHERE v > 5") == ask("SELECT v FROM t") == [(10,), (20,)]
        assert ask("SELECT k FROM t") == [(1,), (2,)]
        assert len(made) == 4
        table.update({"k": [1], "v": [11]})
        assert ask("SELECT v FROM t") == [(11,), (20,)]
        assert len(made) == 5
        for name in os.listdir(store / "leases"):
            if name.startswith("remote-"):
                os.unlink(store / "leases" / name)
        assert ask("SELECT v FROM t") == [(11,), (20,)]
        assert len(made) == 6


def test_statements_on_other_stores_do_not_wait_for_a_slow_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two statements that open the same store share it."""
    connect, opening, go = nyala.connect, threading.Barrier(3), threading.Event()

    def slow(path: str, **options: bool) -> nyala.Database:
        if path.endswith("long"):
            opening.wait(30)
            assert go.wait(30)
        return connect(path, **options)

    def use(name: str) -> nyala.Database:
        with warm.shared_reader(Address(str(tmp_path / name))) as db:
            return db

    for name in ("long", "other"):
        connect(tmp_path / name).close()
    monkeypatch.setattr(nyala, "connect", slow)
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(use, "long") for _ in range(2)]
        opening.wait(30)
        assert pool.submit(use, "other").result(30).list_tables() == []
        go.set()
        first, second = (found.result(30) for found in waiting)
    assert first is second
    assert len(readers_of(tmp_path / "long")) == 1


def test_leases_of_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads share leases, or take their own, for different versions of the catalogue."""
    names = itertools.count()

    class Taken:
        def __init__(self) -> None:
            self.name = f"remote-{next(names)}"

        def announce(self, version: int) -> None:
            assert version >= 0

    monkeypatch.setattr(reader.handover, "remote_lease", lambda path, lease_s, env, owner: Taken())
    monkeypatch.setattr(reader.HeldLease, "keep", lambda lease: None)
    monkeypatch.setattr(reader, "_leases", {})
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:

            def take(thread: int) -> None:
                for number in range(400):
                    reader.lease_of_version(Address("store"), number // 2, 60.0 + thread % 3, "mark")

            for taken in [pool.submit(take, thread) for thread in range(8)]:
                taken.result(60)
    finally:
        sys.setswitchinterval(before)
    assert reader._leases, "the newest version's are known"
