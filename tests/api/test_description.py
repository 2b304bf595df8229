"""`table.description`, and `create_table(like=…)`."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import nyala
from tests.support import open_database


def test_like_creates_an_equal_table(tmp_path: Path) -> None:
    """Varchar lengths, defaults, encodings, comments, partitions and history are part of the description."""
    columns = {
        "host": nyala.column("varchar(20)", comment="the machine"),
        "day": "date",
        "n": nyala.column("int32", nullable=False, default=7, encoding="for"),
        "price": nyala.column(
            "decimal(9,2)", default=Decimal("1.50"), compression="zstd", block_size="64KiB"
        ),
        "at": nyala.column("timestamp", default=dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
        "note": "string",
    }
    partition_by = [
        nyala.hash_partition("host", buckets=3, seed=7),
        nyala.range_partition("day", bounds=[("2026-01-01", "2026-02-01"), ("2026-02-01", None)]),
    ]
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", columns, ["host", "day"], partition_by, comment="c", history="3d")
        found = table.description
        assert found.primary_key == ("host", "day") and found.tablets == 6 and found.comment == "c"
        assert found.history == dt.timedelta(days=3)
        assert found.partition_text == "HASH (host) BUCKETS 3 SEED 7, RANGE (day)"
        by_name = {column.name: column for column in found.columns}
        assert by_name["host"].type == "varchar(20)" and not by_name["host"].nullable
        assert by_name["n"].default == 7 and by_name["price"].default == Decimal("1.50")
        copy = db.create_table("copy", like=found)
        again = copy.description
        assert again == nyala.TableDescription(**{**vars(found), "name": "copy"})
        assert [t.partition for t in copy.tablets()] == [t.partition for t in table.tablets()]
        copy.insert([{"host": "a", "day": "2026-01-05"}])
        copy.flush()
        assert copy.description.columns == found.columns, "rows in files do not change the definition"
        assert copy["a", dt.date(2026, 1, 5)]["n"] == 7
        other = db.create_table("other", like=table, history="forever", partition_by=[])
        assert other.description.history == "forever" and other.description.tablets == 1
        assert list(db.describe()) == ["copy", "other", "t"]


def test_the_description_follows_alterations(tmp_path: Path) -> None:
    with open_database(tmp_path / "s") as db:
        table = db.create_table(
            "t", {"a": "int64", "b": "string", "v": "double"}, ["a", "b"],
            nyala.range_partition("a", "b", bounds=[((0, "x"), (5, "y"))]),
        )  # fmt: skip
        with table.alter() as a:
            a.rename_column("a", "first")
            a.drop_column("v")
            a.add_range((10, "a"), None)
        table.insert([(1, "q"), (11, "q")])
        table.flush()
        found = table.description
        assert found.partition_by == (
            nyala.range_partition("first", "b", bounds=[((0, "x"), (5, "y")), ((10, "a"), None)]),
        )
        assert sum(found.columns[0].stored_as.values()) == 2
        assert db.create_table("u", like=found).description.partition_by == found.partition_by


def test_arguments_of_like(tmp_path: Path) -> None:
    """A schema in the call replaces the columns of `like`, and one of both is required."""
    with open_database(tmp_path / "s") as db:
        with pytest.raises(nyala.InvalidArgumentError, match="needs a schema, or like="):
            db.create_table("t")
        table = db.create_table("t", pa.schema([("k", pa.int64()), ("s", pa.string())]), "k")
        other = db.create_table("u", {"k": "int32"}, like=table)
        assert other.description.columns[0].type == "int32" and other.primary_key == ["k"]
