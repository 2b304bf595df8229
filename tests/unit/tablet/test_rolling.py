"""Loads, flushes and copies make rowsets of the target's size on disk, so that no compaction has to make them anew."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import open_database

from nyala.database import Database
from nyala.env import PosixFiles
from nyala.keys.codec import KeyCodec
from nyala.rowset.image import RowSetImage
from nyala.rowset.writer import write_rowset
from nyala.schema.schema import Schema, build_schema
from nyala.tablet import rolling
from nyala.tablet.compaction_plans import DECODED_PER_TARGET
from nyala.tablet.rolling import disk_bytes, piece_count, roll

TARGET = 240_000
COUNT = 120_000


def rows_of(count: int) -> pa.Table:
    """Numbers of few bits, words of a dictionary, text: in memory several times what they are on disk."""
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
    """The table as an image whose key is its first columns."""
    schema = build_schema(table.schema, table.column_names[:key])
    columns = {column.id: table.column(column.name).combine_chunks() for column in schema.columns}
    keys = KeyCodec([column.type for column in schema.key_columns]).encode(
        [columns[column.id] for column in schema.key_columns]
    )
    return RowSetImage(keys, columns, None, {}, np.arange(table.num_rows)), schema


@given(st.integers(0, 500), st.integers(1, 4000))
def test_every_row_is_in_one_piece_in_order(count: int, target: int) -> None:
    """A row of no piece would be lost."""
    image, schema = image_of(pa.table({"k": pa.array(range(count), pa.int64())}))
    pieces = list(roll(image, schema, target))
    assert [row for lower, upper in pieces for row in range(lower, upper)] == list(range(count))
    assert all(upper > lower for lower, upper in pieces)


@pytest.mark.parametrize("key", [1, 2])
def test_what_is_told_from_a_sample_is_what_is_written(tmp_path: Path, key: int) -> None:
    """Rowsets far from the target are read and written again by compactions, beside the user's writes."""
    table = rows_of(COUNT)
    with open_database(tmp_path / "s", direct_commit_bytes=1, rowset_target_bytes=1 << 30) as db:
        made = db.create_table("t", table.schema, table.column_names[:key])
        made.insert(table)
        (rowset,) = db._writer().root.table("t").tablets[0].rowsets
        image, schema = image_of(table, key=key)
        assert disk_bytes(image, schema) == pytest.approx(rowset.meta.size_bytes, rel=0.25)
        assert rowset.meta.size_bytes * 2 < table.nbytes


def texts(count: int, length: int) -> pa.Array:
    """In ascending order, of random digits."""
    rng = np.random.default_rng(7)
    return pa.array(sorted(rng.bytes(length // 2).hex() for _ in range(count)))


@functools.cache
def shapes() -> dict[str, tuple[int, pa.Table]]:
    """(columns of the key, rows), by what takes most of the file or would if it were stored otherwise."""
    count, rng = 48_000, np.random.default_rng(5)
    numbers, text = pa.array(range(count)), texts(count, 30)
    hosts = texts(count // 80, 16).take(pa.array(np.arange(count) // 80))
    alike = pa.array([f"the same beginning {number}" for number in range(count)])
    few = texts(100, 400).take(pa.array(rng.integers(0, 100, count)))
    early = count // 2 + count // 32  # not where one sample would lie in the middle
    late = pa.array([f"{number}" for number in range(early)] + text[early:].to_pylist())
    return {
        "numbers and the bloom filter": (1, pa.table({"k": np.sort(rng.integers(0, 1 << 62, count))})),
        "text as a key": (1, pa.table({"k": alike, "v": numbers})),
        "words of a dictionary": (1, pa.table({"k": numbers, "w": few})),
        "encoded keys of all rows": (2, pa.table({"a": text, "b": numbers, "v": numbers})),
        "encoded keys of some rows": (2, pa.table({"a": hosts, "b": numbers, "v": numbers})),
        "the later rows": (1, pa.table({"k": numbers, "t": late})),
    }


@pytest.mark.parametrize("shape", shapes())
def test_a_sample_tells_whatever_takes_the_bytes(shape: str, tmp_path: Path) -> None:
    """What an estimate leaves out makes rowsets larger than the target; what it counts twice, smaller."""
    key, table = shapes()[shape]
    image, schema = image_of(table, key=key)
    written = write_rowset(PosixFiles(), str(tmp_path), ".", 1, 1, image, schema, deltas_durable=0)
    assert disk_bytes(image, schema) == pytest.approx(written.meta.size_bytes, rel=0.15)


def test_a_sample_tells_how_few_keys_of_narrow_rows_are_stored(tmp_path: Path) -> None:
    """With a key in 64 these rows would have a filter too, and be taken for twice as many bytes."""
    count, rng = 48_000, np.random.default_rng(5)
    key = {f"k{column}": pa.array(range(count)) for column in range(6)}
    narrow = pa.array(rng.integers(0, 1 << 12, count).astype(np.int16))
    image, schema = image_of(pa.table({**key, "v": narrow}), key=len(key))
    written = write_rowset(PosixFiles(), str(tmp_path), ".", 1, 1, image, schema, deltas_durable=0)
    assert disk_bytes(image, schema) == pytest.approx(written.meta.size_bytes, rel=0.3)


def sizes(db: Database, name: str = "t") -> list[int]:
    return [
        rowset.meta.size_bytes
        for tablet in db._writer().root.table(name).tablets
        for rowset in tablet.rowsets
    ]


@pytest.mark.parametrize("way", ["load", "flush", "copy"])
def test_rowsets_have_the_targets_size_on_disk(tmp_path: Path, way: str) -> None:
    """And compactions, which want the same, leave them alone."""
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
        least = 0.6 if way != "copy" else 0  # a copy's rows come as a stream, which ends somewhere
        assert least * TARGET < min(found) and max(found) < 1.5 * TARGET, found
        assert sum(found) / len(found) > 0.6 * TARGET
        assert not db.maintenance.compactor.run_once(db._writer())
        assert made.count() == COUNT


def test_what_compresses_well_is_cut_by_its_bytes_in_memory() -> None:
    """Who merges it has all of it in memory, several times over."""
    text = pa.array(["the same text again and again " * 10] * 20_000)
    image, schema = image_of(pa.table({"k": pa.array(range(20_000), pa.int64()), "s": text}))
    pieces = list(roll(image, schema, 100_000))
    assert disk_bytes(image, schema) < 400_000
    limit = DECODED_PER_TARGET * 100_000 / (text.nbytes / len(text))
    assert all(0.5 * limit < upper - lower < 1.5 * limit for lower, upper in pieces)


def test_what_is_no_larger_in_memory_is_not_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flush of a small table would encode some of its rows for nothing."""
    monkeypatch.delattr(rolling, "disk_bytes")
    numbers = pa.array(range(1000), pa.int64())
    image, schema = image_of(pa.table({"k": numbers, "v": numbers}))
    assert list(roll(image, schema, 16_000)) == [(0, 1000)]
    with pytest.raises(NameError):
        list(roll(image, schema, 15_999))


def test_pieces_are_of_equal_length_without_a_small_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rowset of a few rows costs each look-up as much as one of a million."""
    monkeypatch.setattr(rolling, "piece_count", lambda *_: 3)
    image, schema = image_of(pa.table({"k": pa.array(range(100), pa.int64())}))
    assert list(roll(image, schema, 1)) == [(0, 34), (34, 68), (68, 100)]


def test_a_sample_is_a_small_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load that encoded all rows to know where to cut them would take twice as long."""
    seen: list[int] = []
    counted = rolling.column_bytes

    def count(spec: object, array: pa.Array, **options: bool) -> tuple[int, int]:
        seen.append(len(array))
        return counted(spec, array, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(rolling, "column_bytes", count)
    image, schema = image_of(rows_of(50_000))
    disk_bytes(image, schema)
    assert 0 < sum(seen) <= 50_000 * len(schema.columns) / 16
    seen.clear()
    monkeypatch.setattr(rolling, "_SAMPLE_ROWS_MAX", 100)
    disk_bytes(image, schema)
    assert set(seen) == {100}, "of a hundred million rows the same as of a million"


@pytest.mark.parametrize(
    ("memory_bytes", "on_disk_bytes", "pieces"),
    [(0, 0, 1), (300, 149, 1), (300, 151, 2), (900, 640, 6), (3200, 10, 4), (799, 99, 1)],
)
def test_rowsets_of_so_many_bytes(memory_bytes: int, on_disk_bytes: float, pieces: int) -> None:
    """About the target on disk, and eight times that in memory at most, with no small rest."""
    assert piece_count(memory_bytes, on_disk_bytes, 100) == pieces
