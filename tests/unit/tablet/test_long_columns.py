"""Batches with more text in a column than Nyala converts at once.

The limit `max_slice_bytes` is some hundred bytes here. The tests check that no conversion gets more text
than a slice, so with the default limit none reaches 2 GiB.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.sampled import each
from tests.support import folder_in_memory, open_database

import nyala
from nyala.api.database import Database
from nyala.errors import WriteError
from nyala.rowset import size as rowset_size
from nyala.schema.conversion import long_column
from nyala.testing.clock import SeededRandomness

SLICE = 500
LIMITS = nyala.Limits(max_slice_bytes=SLICE)
COUNT = 300
COLUMNS = {"k": "int64", "s": "string", "n": "int64"}
# 0: batches are written to files; 64 MiB: they go through the log.
WAYS = pytest.mark.parametrize("direct_commit_bytes", [0, 64 << 20])

_noise = SeededRandomness()
VALUES = [(None, "", "é" * 20, _noise.token_hex(50))[row % 4] for row in range(COUNT)]
KEYS = np.random.default_rng(1).permutation(COUNT)


def in_chunks(array: pa.Array) -> pa.ChunkedArray:
    return pa.chunked_array([array.slice(0, 70), array.slice(70, 1), array.slice(71)])


def dictionary(values: list[Any], words: pa.DataType = pa.string()) -> pa.Array:  # noqa: B008
    encoded = pa.array(values, pa.string()).dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices, encoded.dictionary.cast(words))


FORMS: dict[str, Callable[[list[Any]], Any]] = {
    "large": lambda values: pa.array(values, pa.large_string()),
    "view": lambda values: pa.array([None, "x" * 13, *values], pa.string_view()).slice(2),
    "binary view": lambda values: pa.array([v and v.encode() for v in values], pa.binary_view()),
    "chunks": lambda values: in_chunks(pa.array(values, pa.string())),
    "chunks of views": lambda values: in_chunks(pa.array(values, pa.string_view())),
    "dictionary": dictionary,
    "dictionary of views": lambda values: dictionary(values, pa.string_view()),
    "chunks of a dictionary": lambda values: in_chunks(dictionary(values)),
    "runs": lambda values: pc.run_end_encode(pa.array(values, pa.string())),
    "list": list,
    "polars": lambda values: pl.Series(values),
    "pandas": lambda values: pd.Series(values, dtype=object),
}


@pytest.fixture(autouse=True)
def small_pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "test_six_gibibytes_in_one_batch" not in request.node.name:
        monkeypatch.setattr(rowset_size, "TEXT_TARGET_BYTES", 4 * SLICE)


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert that conversions get no more than a slice, or the text of one output."""
    convert = long_column.cast_array

    def noted(array: pa.Array, *rest: Any) -> Any:
        size = int(long_column._sizes(array).sum())
        assert size <= 7 * SLICE or len(array) == 1, f"a conversion of {size} bytes at once"
        return convert(array, *rest)

    monkeypatch.setattr(long_column, "cast_array", noted)


def opened(folder: Path, **options: Any) -> Database:
    return open_database(folder, limits=LIMITS, **options)


@pytest.fixture
def db(bounded: None) -> Iterator[Database]:
    with folder_in_memory() as folder, opened(folder / "s", direct_commit_bytes=0) as db:
        yield db


def content(table: Any, at: Any = None) -> dict[int, Any]:
    found = table.scan(at=at).to_arrow()
    return dict(zip(found["k"].to_pylist(), found["s"].to_pylist(), strict=True))


WRITTEN = dict(zip(KEYS.tolist(), VALUES, strict=True))


@WAYS
@pytest.mark.parametrize("form", FORMS)
def test_a_batch_of_any_form_is_written_atomically(
    tmp_path: Path, form: str, direct_commit_bytes: int
) -> None:
    with opened(tmp_path / "s", direct_commit_bytes=direct_commit_bytes) as db:
        table = db.create_table("t", COLUMNS, "k", nyala.hash_partition("k", buckets=2))
        result = table.insert({"k": KEYS, "s": FORMS[form](VALUES)})
        assert result.inserted == COUNT and table.count(at=result.timestamp - 1) == 0
        assert content(table) == WRITTEN
    with opened(tmp_path / "s") as db:
        assert content(db["t"]) == WRITTEN


def test_the_log_does_not_share_memory_with_the_users_data(tmp_path: Path) -> None:
    raw = bytearray(b"a" * 60 * COUNT)
    offsets = np.arange(0, 60 * (COUNT + 1), 60, dtype=np.int64)
    mine = pa.Array.from_buffers(pa.large_string(), COUNT, [None, pa.py_buffer(offsets), pa.py_buffer(raw)])
    with opened(tmp_path / "s") as db:
        table = db.create_table("t", COLUMNS, "k")
        table.insert({"k": KEYS, "s": mine})
        raw[:] = b"b" * len(raw)
        assert set(content(table).values()) == {"a" * 60}


@pytest.mark.parametrize("form", ["view", "dictionary", "chunks"])
def test_changes_of_one_rowset_are_written_in_several_files(db: Database, form: str) -> None:
    table = db.create_table("t", COLUMNS, "k")
    before = table.insert({"k": np.arange(COUNT + 50), "s": ["old"] * (COUNT + 50)}).timestamp
    with db.batch() as batch:
        batch.delete("t", {"k": [1, 2, COUNT + 1]})
        batch.upsert("t", {"k": KEYS, "s": FORMS[form](VALUES)})
        batch.insert("t", {"k": [-1], "s": ["z" * 900]})
    expected = WRITTEN | {-1: "z" * 900} | dict.fromkeys(range(COUNT, COUNT + 50), "old")
    del expected[COUNT + 1]
    assert content(table) == expected
    assert set(content(table, at=before).values()) == {"old"}
    table.compact()
    assert content(table) == expected and set(content(table, at=before).values()) == {"old"}
    assert not db.check().problems


def test_long_text_in_neighbouring_rows_is_cut_by_its_bytes(db: Database) -> None:
    """Rowsets with equal numbers of rows would have all long values in one of them."""
    values = ["s"] * 2000 + ["l" * 400] * 100 + ["s"] * 2000
    table = db.create_table("t", COLUMNS, "k")
    table.insert({"k": np.arange(len(values)), "s": pa.array(values, pa.large_string())})
    assert list(content(table).values()) == values


@WAYS
def test_failing_rows_are_found_in_every_slice(tmp_path: Path, direct_commit_bytes: int) -> None:
    values: list[Any] = [b"x" * 100] * COUNT
    values[7], values[150], values[299] = b"\xff" * 90, None, b"y" * 70_000
    with opened(tmp_path / "s", direct_commit_bytes=direct_commit_bytes) as db:
        table = db.create_table("t", {"k": "int64", "s": nyala.column("string", nullable=False)}, "k")
        for data in (pa.array(values, pa.binary_view()), pa.array(values, pa.binary()).dictionary_encode()):
            with pytest.raises(WriteError) as caught:
                table.insert({"k": np.arange(COUNT), "s": data})
            failed = caught.value.errors
            assert failed["row"].to_pylist() == [7, 150, 299] and table.count() == 0
            assert failed["code"].to_pylist() == ["invalid-utf8", "null", "value-too-large"]
        result = table.insert({"k": np.arange(COUNT), "s": data}, errors="collect")
        assert result.inserted == table.count() == COUNT - 3


def test_a_varchar_is_cut_and_times_are_read_slice_by_slice(db: Database) -> None:
    table = db.create_table("t", {"k": "int64", "v": "varchar(3)", "t": "timestamp"}, "k")
    times = [f"2020-01-01T00:00:{row % 60:02}" for row in range(COUNT)]
    times[100] = "yesterday"
    data = {
        "k": KEYS,
        "v": pa.array(["äöüß" * 20] * COUNT, pa.string_view()),
        "t": pa.array(times, pa.string_view()),
    }
    assert table.insert(data, errors="collect").errors["row"].to_pylist() == [100]
    found = table.scan().to_arrow()
    assert set(found["v"].to_pylist()) == {"äöü"} and found["t"].null_count == 0 and len(found) == COUNT - 1


@pytest.mark.parametrize("form", each(3, list(FORMS)))
def test_long_keys(db: Database, form: str) -> None:
    keys = [f"{row:04}" * 20 for row in range(COUNT)]
    table = db.create_table(
        "t",
        {"host": "string", "n": "int64", "s": "string"},
        ["host", "n"],
        nyala.hash_partition("host", buckets=3),
    )
    data = {"host": FORMS[form](keys), "n": KEYS, "s": FORMS[form](VALUES)}
    assert table.insert(data).inserted == COUNT
    with pytest.raises(WriteError) as caught:
        table.insert(data)
    assert caught.value.errors["host"].to_pylist() == keys
    found = table.get_many({"host": FORMS[form](keys), "n": KEYS})
    assert found["host"].to_pylist() == keys and found["s"].to_pylist() == VALUES
    assert table.delete({"host": FORMS[form](keys), "n": KEYS}).deleted == COUNT


def test_a_long_default_constant_and_expression(db: Database) -> None:
    columns = {"k": "int64", "s": nyala.column("string", default="d" * 800), "n": "int64"}
    table = db.create_table("t", columns, "k")
    table.insert({"k": np.arange(12)})
    assert set(content(table).values()) == {"d" * 800}
    assert table.update(set={"s": "c" * 1500}, where="k >= 4").updated == 8
    table.update(set={"s": nyala.expr("s || s")}, where="k >= 8")
    assert list(content(table).values()) == ["d" * 800] * 4 + ["c" * 1500] * 4 + ["c" * 3000] * 4


def test_an_expression_with_more_text_than_an_array_holds(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow refuses; then fewer rows are computed at a time."""
    join = pc.binary_join_element_wise

    def refusing(*arrays: Any, **options: Any) -> Any:
        if len(arrays[0]) > 40:
            raise pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes")
        return join(*arrays, **options)

    monkeypatch.setattr(pc, "binary_join_element_wise", refusing)
    table = db.create_table("t", {**COLUMNS, "s": nyala.column("varchar(9)")}, "k")
    table.insert({"k": np.arange(COUNT), "s": [str(key) for key in range(COUNT)]})
    table.insert({"k": [COUNT], "s": ["é" * 9]})
    table.update(set={"s": nyala.expr("'a' || s")})
    assert content(table) == {key: f"a{key}" for key in range(COUNT)} | {COUNT: "a" + "é" * 8}


@pytest.mark.long
@pytest.mark.parametrize("form", ["polars", "large", "dictionary", "update"])
def test_six_gibibytes_in_one_batch(tmp_path: Path, form: str) -> None:
    """A batch of real size, in memory that does not grow with the batch."""
    rows, word = 100_000, "x" * 65_000
    codes = pa.array(np.zeros(rows, np.int32))
    texts: dict[str, Callable[[], Any]] = {
        "polars": lambda: pl.repeat(word, rows, dtype=pl.String, eager=True),
        "large": lambda: pa.chunked_array([pa.array([word] * 5_000, pa.large_string())] * (rows // 5_000)),
        "dictionary": lambda: pa.DictionaryArray.from_arrays(codes, pa.array([word])),
    }
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        table = db.create_table("t", {"k": "int64", "s": "string"}, "k")
        if form == "update":
            table.insert({"k": np.arange(rows)})
            result = table.update(set={"s": word}, where="k >= 0")
            assert result.updated == rows
        else:
            result = table.insert({"k": np.arange(rows), "s": texts[form]()})
            assert table.count(at=result.timestamp - 1) == 0
        found = table.get_many({"k": np.arange(0, rows, 10)})
        assert pc.all(pc.equal(found["s"], word)).as_py() and found.num_rows == rows // 10
        assert table.get({"k": rows - 1})["s"] == word
        for versions in ("net", "all"):
            feed = table.changes(since=result.timestamp - 1, versions=versions)
            assert sum(batch.num_rows for batch in feed.to_reader()) == rows
        assert table.count(where=nyala.col("s") == word) == rows
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 6e6
