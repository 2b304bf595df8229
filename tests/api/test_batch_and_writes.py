"""Inside `with db.batch()`, writes of the same thread that are not part of the batch are refused."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import nyala

ROW = [{"k": 1, "v": 1}]


WRITES = {
    "insert": lambda db, t, at: t.insert(ROW),
    "upsert": lambda db, t, at: t.upsert(ROW),
    "update": lambda db, t, at: t.update([{"k": 0, "v": 1}]),
    "delete": lambda db, t, at: t.delete([{"k": 0}]),
    "update where": lambda db, t, at: t.update(set={"v": 5}),
    "delete where": lambda db, t, at: t.delete(where="k = 0"),
    "restore": lambda db, t, at: t.restore(to=at),
    "another Table object": lambda db, t, at: db["t"].insert(ROW),
    "another batch": lambda db, t, at: db.batch().__enter__(),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_other_writes_in_the_block_are_refused(tmp_path: Path, write: Any) -> None:
    """They would be committed even if the batch is not. The message says what to write instead."""
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, "k")
        at = table.insert([{"k": 0, "v": 0}])
        table.upsert([{"k": 0, "v": 7}])
        with pytest.raises(nyala.InvalidArgumentError, match="inside `with db.batch"), db.batch() as b:
            b.insert("t", [{"k": 9, "v": 9}])
            write(db, table, at)
        assert table.to_arrow().to_pylist() == [{"k": 0, "v": 7}]
        write(db, table, at)  # after the block the thread can write again


def test_other_threads_can_write(tmp_path: Path) -> None:
    """The rule concerns only the thread inside the block."""
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        table = db.create_table("t", {"k": "int64", "v": "int64"}, "k")
        with db.batch() as b:
            b.insert("t", [{"k": 2, "v": 2}])
            other = threading.Thread(target=table.insert, args=(ROW,))
            other.start()
            other.join()
        assert table.count() == 2
