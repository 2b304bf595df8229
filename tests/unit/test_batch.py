"""`db.batch()` collects operations and writes them together at the end of its block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support import key_value_table, open_database, rows

import nyala


def test_a_batch_has_one_timestamp_and_a_result_per_operation(tmp_path: Path) -> None:
    """All operations of a batch have one timestamp, so readers see all of them or none."""
    with open_database(tmp_path / "s") as db:
        t, u = key_value_table(db, "t"), key_value_table(db, "u")
        u.insert({"k": [5], "v": [5]})
        with db.batch() as batch:
            batch.insert("t", {"k": [1, 2], "v": [1, 2]})
            batch.delete("u", {"k": [5]})
            batch.upsert("t", {"k": [2, 3], "v": [20, 30]})
            assert rows(t) == [] and batch.results == []
        assert [(r.inserted, r.updated, r.deleted) for r in batch.results] == [
            (2, 0, 0),
            (0, 0, 1),
            (1, 1, 0),
        ]
        (timestamp,) = {result.timestamp for result in batch.results}
        assert rows(t) == [(1, 1), (2, 20), (3, 30)] and rows(u) == []
        assert rows(t, at=timestamp - 1) == [] and rows(u, at=timestamp - 1) == [(5, 5)]


@pytest.mark.parametrize("how", ["an exception in the block", "a failing row", "success"])
def test_a_batch_is_used_once(tmp_path: Path, how: str) -> None:
    """A second use raises, so operations collected in the first block are not written later."""
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        batch = db.batch()
        try:
            with batch:
                batch.insert("t", {"k": [1, 1] if how == "a failing row" else [1]})
                if how == "an exception in the block":
                    raise ZeroDivisionError
        except (ZeroDivisionError, nyala.WriteError):
            assert how != "success"
        with pytest.raises(nyala.InvalidArgumentError, match="used once"), batch:
            batch.insert("t", {"k": [2], "v": [2]})
        assert len(rows(table)) == (1 if how == "success" else 0)


@pytest.mark.parametrize("operation", ["insert", "update", "delete"])
def test_an_unknown_choice_raises_at_the_call(tmp_path: Path, operation: str) -> None:
    """`on_conflict="replace"` raises an error at the call, and is not treated as "error"."""
    option: dict[str, Any] = {"on_conflict" if operation == "insert" else "on_missing": "replace"}
    with open_database(tmp_path / "s") as db:
        key_value_table(db)
        with db.batch() as batch, pytest.raises(nyala.InvalidArgumentError, match="'replace'"):
            getattr(batch, operation)("t", {"k": [1]}, **option)
        assert batch.results == []


@pytest.mark.parametrize("operation", ["insert", "update", "delete"])
def test_ignored_rows_are_counted(tmp_path: Path, operation: str) -> None:
    """With "ignore", the result counts the ignored rows, and the other rows are written."""
    option: dict[str, Any] = {"on_conflict" if operation == "insert" else "on_missing": "ignore"}
    data = {"k": [1, 2]} if operation == "delete" else {"k": [1, 2], "v": [10, 20]}
    with open_database(tmp_path / "s") as db:
        table = key_value_table(db)
        table.insert({"k": [1], "v": [1]})
        with db.batch() as batch:
            getattr(batch, operation)("t", data, **option)
        assert batch.results[0].ignored == 1
        assert rows(table) == {"insert": [(1, 1), (2, 20)], "update": [(1, 10)], "delete": []}[operation]


def test_calls_outside_the_block_and_unknown_tables_are_refused(tmp_path: Path) -> None:
    """The call itself raises, not the end of the block."""
    with open_database(tmp_path / "s") as db:
        key_value_table(db)
        batch = db.batch()
        with pytest.raises(nyala.InvalidArgumentError, match="inside its `with` block"):
            batch.insert("t", {"k": [1]})
        with batch:
            with pytest.raises(nyala.TableNotFoundError, match="nothing"):
                batch.insert("nothing", {"k": [1]})
            with pytest.raises(nyala.InvalidArgumentError, match="used once"), batch:
                pass
        assert batch.results == []
        with pytest.raises(nyala.InvalidArgumentError, match="inside its `with` block"):
            batch.insert("t", {"k": [1]})


def test_a_batch_of_a_reader_is_refused_at_once(tmp_path: Path) -> None:
    """`reader.batch()` raises, before any operation is collected."""
    with open_database(tmp_path / "s"), nyala.connect(tmp_path / "s", read_only=True) as reader:
        with pytest.raises(nyala.ReadOnlyError):
            reader.batch()
