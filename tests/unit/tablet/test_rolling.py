"""Loads, flushes and copies write rowsets of the target size, which need no compaction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import open_database

from nyala.api.database import Database
from nyala.keys.codec import KeyCodec
from nyala.rowset.image import RowSetImage
from nyala.rowset.size import DECODED_PER_TARGET
from nyala.schema.schema import Schema, build_schema
from nyala.tablet.flush.rolling import disk_bytes, roll, rowset_count

TARGET = 240_000
COUNT = 120_000


def rows_of(count: int) -> pa.Table:
    """Return small numbers, repeated words and text, which are much larger in memory than on disk."""
    rng = np.random.default_rng(3)
    words = pa.array([f"word number {number}" for number in range(50)])
    return pa.table(
        {
            "k": pa.array(np.arange(count), pa.int64()),
            "line": pa.array(np.arange(count) % 7, pa.int32()),
            "small": pa.array(rng.integers(0, 200, count), pa.int64()),
            "word": words.take(pa.array(rng.integers(0, 50, count))),
            "text": pa.array([f"text {number:08}" for number in rng.integers(0, 1 << 20, count).tolist()]),
        }
    )


def image_of(table: pa.Table, *, key: int = 1) -> tuple[RowSetImage, Schema]:
    """Return the table as an image; its first columns are the key."""
    schema = build_schema(table.schema, table.column_names[:key])
    columns = {column.id: table.column(column.name).combine_chunks() for column in schema.columns}
    keys = KeyCodec([column.type for column in schema.key_columns]).encode(
        [columns[column.id] for column in schema.key_columns]
    )
    return RowSetImage(keys, columns, None, {}, np.arange(table.num_rows)), schema


@given(st.integers(0, 500), st.integers(1, 4000))
def test_ranges_cover_all_rows_without_gaps(count: int, target: int) -> None:
    image, schema = image_of(pa.table({"k": pa.array(range(count), pa.int64())}))
    pieces = list(roll(image, schema, target))
    assert [row for lower, upper in pieces for row in range(lower, upper)] == list(range(count))
    assert all(upper > lower for lower, upper in pieces)


def sizes(db: Database, name: str = "t") -> list[int]:
    return [
        rowset.meta.size_bytes
        for tablet in db._writer().root.table(name).tablets
        for rowset in tablet.rowsets
    ]


@pytest.mark.parametrize("way", ["load", "flush", "copy"])
def test_rowsets_have_the_target_size_on_disk(tmp_path: Path, way: str) -> None:
    table = rows_of(COUNT)
    directly = 1 if way == "load" else 1 << 40
    with open_database(tmp_path / "s", direct_commit_bytes=directly, rowset_target_bytes=TARGET) as db:
        made = db.create_table("t", table.schema, "k")
        made.insert(table)
        db.flush()
        if way == "copy":
            made = db.copy_table("t", "u")
        found = sizes(db, made.name)
        assert len(found) > 2
        least = 0.6 if way != "copy" else 0  # the last part of a copy's stream may be small
        assert least * TARGET < min(found) and max(found) < 1.5 * TARGET, found
        assert sum(found) / len(found) > 0.6 * TARGET
        assert not db.maintenance.compactor.run_once(db._writer())
        assert made.count() == COUNT


def test_the_size_in_memory_limits_rowsets_that_compress_well() -> None:
    """A merge has the whole rowset in memory."""
    text = pa.array(["the same text again and again " * 10] * 20_000)
    image, schema = image_of(pa.table({"k": pa.array(range(20_000), pa.int64()), "s": text}))
    pieces = list(roll(image, schema, 100_000))
    assert disk_bytes(image, schema) < 400_000
    limit = DECODED_PER_TARGET * 100_000 / (text.nbytes / len(text))
    assert all(0.5 * limit < upper - lower < 1.5 * limit for lower, upper in pieces)


@pytest.mark.parametrize(
    ("memory_bytes", "on_disk_bytes", "pieces"),
    [(0, 0, 1), (300, 149, 1), (300, 151, 2), (900, 640, 6), (3200, 10, 4), (799, 99, 1)],
)
def test_the_number_of_rowsets_for_a_size(memory_bytes: int, on_disk_bytes: float, pieces: int) -> None:
    """Rowsets have at most the target size on disk, and at most eight times that in memory."""
    assert rowset_count(memory_bytes, on_disk_bytes, 100) == pieces
