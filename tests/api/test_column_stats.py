"""`Table.column_stats`: the encodings and the sizes of columns in files."""

from __future__ import annotations

from pathlib import Path

import nyala


def numbers(count: int) -> dict[str, list[object]]:
    return {
        "k": list(range(count)),
        "v": [n / 10 for n in range(count)],
        "s": [f"name {n}" for n in range(count)],
    }


def test_requested_and_stored_encodings_are_returned(tmp_path: Path) -> None:
    columns = {
        "k": "int64",
        "v": "double",
        "s": nyala.column("string", encoding="dictionary", compression="zstd", block_size=65_536),
    }
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        table = db.create_table("t", columns, "k")
        table.insert(numbers(5000))
        empty = table.column_stats()
        assert [one.name for one in empty] == ["k", "v", "s"]
        assert all(one.stored_as == {} and one.rows == one.bytes == 0 for one in empty)
        table.flush()
        key, value, text = table.column_stats()
        assert key == nyala.ColumnStats(
            name="k",
            type="int64",
            encoding="auto",
            compression="default",
            block_size=None,
            stored_as={"for": 5000},
            rows=5000,
            nulls=0,
            bytes=key.bytes,
        )
        assert value.stored_as == {"alp": 5000} and value.bytes < key.bytes + 5000
        assert (text.encoding, text.compression, text.block_size) == ("dictionary", "zstd", 65_536)
        assert text.stored_as == {"plain": 5000}, "too many distinct values"
        taken = sum(one.bytes for one in (key, value, text))
        assert 0 < taken < table.stats().base_bytes
    with nyala.connect(tmp_path / "s", read_only=True) as reader:
        assert reader["t"].column_stats() == [key, value, text]


def test_new_columns_and_deleted_rows(tmp_path: Path) -> None:
    """A file that is older than a column does not store it, and each file has its own encodings."""
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        table = db.create_table("t", {"k": "int64", "v": "double", "s": "string"}, "k")
        table.insert(numbers(5000))
        table.flush()
        with table.alter() as a:
            a.add_column("n", "int32")
            a.drop_column("s")
        table.insert({"k": [7000, 7001], "v": [None, 0.5], "n": [None, 7]})
        table.delete({"k": [1]})
        table.flush()
        _, value, later = table.column_stats()
        assert value.rows == 5002 and value.nulls == 1
        assert value.stored_as == {"alp": 5000, "plain": 2}
        assert (later.name, later.rows, later.nulls) == ("n", 2, 1)
        table.compact()
        assert [one.rows for one in table.column_stats()] == [5002, 5002, 5002]
