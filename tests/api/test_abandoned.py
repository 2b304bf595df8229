"""A Database that nothing names any more: what a function left open, or a notebook's cell that was run again.

Nobody can call its `close()`, so the next `connect` of the same process does it (rules O1 to O3 of `open_store`).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import nyala


def written_and_left(path: Path) -> None:
    db = nyala.connect(path)
    db.create_table("t", {"k": "int64"}, "k").insert({"k": [1]})


def test_a_store_that_a_function_left_open_can_be_opened_again(tmp_path: Path) -> None:
    written_and_left(tmp_path / "s")
    with pytest.warns(ResourceWarning, match=r"use `with nyala.connect\(…\) as db`"):
        db = nyala.connect(tmp_path / "s")
    with db:
        assert db["t"].count() == 1
        db["t"].insert({"k": [2]})


def test_also_by_another_name_of_the_folder(tmp_path: Path) -> None:
    written_and_left(tmp_path / "s")
    (tmp_path / "link").symlink_to(tmp_path / "s")
    with pytest.warns(ResourceWarning), nyala.connect(tmp_path / "link") as db:
        assert db["t"].count() == 1


def test_a_ring_of_objects_does_not_keep_it_from_being_opened_otherwise(tmp_path: Path) -> None:
    ring: list[object] = [nyala.connect(tmp_path / "s")]
    ring.append(ring)
    del ring
    with pytest.warns(ResourceWarning), nyala.connect(tmp_path / "s", durability="os"):
        pass


def test_whoever_can_still_use_it_keeps_it(tmp_path: Path) -> None:
    """The Database itself, one of its tables, a snapshot, a scan, a stream that is being read."""
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


def test_a_closed_one_is_no_matter(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    nyala.connect(tmp_path / "s").close()
    nyala.connect(tmp_path / "s").close()
    assert not recwarn.list


def test_a_reader_is_not_in_the_way(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    nyala.connect(tmp_path / "s").close()
    nyala.connect(tmp_path / "s", read_only=True)
    nyala.connect(tmp_path / "s").close()
    assert not recwarn.list


def test_a_forked_child_does_not_close_what_its_parent_has_open(tmp_path: Path) -> None:
    db = nyala.connect(tmp_path / "s")
    table = db.create_table("t", {"k": "int64"}, "k")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            del db, table  # nothing in the child names it
            nyala.connect(tmp_path / "s", share=False)
        except nyala.LockedError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    table.insert({"k": [1]})
    assert table.count() == 1
    db.close()
