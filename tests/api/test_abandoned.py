"""A program loses a Database without closing it, for example when a notebook cell runs twice.

Nobody can call its `close()`, so the next `connect` of the same process does (rules O1 to O3 of `open_store`)."""

from __future__ import annotations

from pathlib import Path

import pytest

import nyala


def written_and_left(path: Path) -> None:
    db = nyala.connect(path)
    db.create_table("t", {"k": "int64"}, "k").insert({"k": [1]})


def test_connect_closes_a_store_that_a_function_left_open(tmp_path: Path) -> None:
    written_and_left(tmp_path / "s")
    with pytest.warns(ResourceWarning, match=r"use `with nyala.connect\(…\) as db`"):
        db = nyala.connect(tmp_path / "s")
    with db:
        assert db["t"].count() == 1
        db["t"].insert({"k": [2]})


def test_a_lost_database_in_a_reference_cycle_is_closed_too(tmp_path: Path) -> None:
    ring: list[object] = [nyala.connect(tmp_path / "s")]
    ring.append(ring)
    del ring
    with pytest.warns(ResourceWarning), nyala.connect(tmp_path / "s", durability="os"):
        pass


def test_a_store_in_use_stays_open(tmp_path: Path) -> None:
    """It is in use as long as its Database, a table, a snapshot, a scan or a stream of it exists."""
    written_and_left(tmp_path / "s")
    for held in (
        lambda db: db,
        lambda db: db["t"],
        lambda db: db.snapshot(),
        lambda db: db["t"].scan(),
        lambda db: db["t"].changes(since=0),
        lambda db: db["t"].scan().to_reader(),
    ):
        with pytest.warns(ResourceWarning):
            kept = held(nyala.connect(tmp_path / "s"))
        again = nyala.connect(tmp_path / "s")  # shares the store
        again["t"].insert([{"k": 7}])
        again["t"].delete([{"k": 7}])
        del kept, again


def test_a_lost_reader_does_not_prevent_a_writer(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    nyala.connect(tmp_path / "s").close()
    nyala.connect(tmp_path / "s", read_only=True)
    nyala.connect(tmp_path / "s").close()
    assert not recwarn.list
