"""Text above the limit of an Arrow array with 32-bit offsets (2 GiB) is compacted and read.

The limits are lowered here, and `small_offsets` makes Arrow refuse at four times the limit, as it
does at 2 GiB.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support import folder_in_memory, open_database

import nyala
from nyala.api.database import Database
from nyala.errors import StorageError
from nyala.rowset import image, mem_rowset
from nyala.rowset import size as rowset_size
from nyala.schema import arrow_values
from nyala.tablet.compaction.lifecycle import compact, run_here
from nyala.tablet.compaction.plans import MajorPlan, MergePlan, MinorPlan
from nyala.tablet.compaction.text_limit import text_bytes
from nyala.testing.clock import SeededRandomness

LIMIT = 1_000_000
LENGTH = 5_000


@pytest.fixture
def db() -> Iterator[Database]:
    with folder_in_memory() as folder, open_database(folder / "s") as db:
        yield db


@pytest.fixture(autouse=True)
def small_offsets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "long" in request.keywords:
        return
    monkeypatch.setattr(pa, "concat_arrays", _refusing(pa.concat_arrays, 4 * LIMIT))
    monkeypatch.setattr(rowset_size, "TEXT_TARGET_BYTES", LIMIT)


def texts(kind: str, count: int, length: int = LENGTH) -> list[str]:
    if kind == "few words":
        return [("a", "b")[number % 2] * length for number in range(count)]
    noise = SeededRandomness()
    return [noise.token_hex(length // 2) for _ in range(count)]


def rowsets(db: Database) -> Any:
    (tablet,) = db._writer().root.table("t").tablets
    return tablet.rowsets


def text_of_rowsets(db: Database) -> list[int]:
    columns = db._writer().root.table("t").schema.columns
    return [text_bytes(rowset, columns) for rowset in rowsets(db)]


def carry_out(db: Database, plan: Any) -> Any:
    store = db._writer()
    table = store.root.table("t")
    return compact(store, table.id, table.tablets[0].id, plan, run_here(store))


def no_work_is_left(db: Database) -> bool:
    before = [rowset.id for rowset in rowsets(db)]
    db["t"].compact()
    return [rowset.id for rowset in rowsets(db)] == before and not db.maintenance.compactor.run_once(
        db._writer()
    )


@pytest.mark.parametrize("encoding", ["auto", "plain", "prefix", "dictionary"])
@pytest.mark.parametrize("kind", ["few words", "noise"])
def test_a_merge_is_cut_at_the_text_limit(db: Database, kind: str, encoding: str) -> None:
    text = nyala.column("string", encoding=encoding)
    table = db.create_table("t", {"k": "int64", "s": text}, primary_key="k")
    values = texts(kind, 1200)
    for part in range(4):
        table.insert({"k": range(part, 1200, 4), "s": values[part::4]})
        table.flush()
    table.compact()
    sizes = text_of_rowsets(db)
    assert sum(sizes) == pytest.approx(1200 * LENGTH, rel=0.02)
    assert max(sizes) <= 1.6 * LIMIT and len(sizes) <= 2 * 1200 * LENGTH / LIMIT + 1, sizes
    assert table.scan(order_by_key=True).to_arrow().column("s").to_pylist() == values
    assert no_work_is_left(db)


def test_an_added_column_counts_with_its_default(db: Database) -> None:
    table = db.create_table("t", {"k": "int64"}, primary_key="k")
    for part in range(2):
        table.insert({"k": range(part, 1000, 2)})
        table.flush()
    with table.alter() as change:
        change.add_column("s", "string", default="d" * LENGTH)
    table.compact()
    assert len(rowsets(db)) >= 4
    found = table.scan(columns=["s"]).to_arrow().column("s")
    assert len(found) == 1000 and set(found.to_pylist()) == {"d" * LENGTH}


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("kind", ["few words", "noise"])
def test_changes_with_much_text_are_merged_by_a_rewrite(db: Database, kind: str, parts: int) -> None:
    table = db.create_table("t", {"k": "int64", "s": "string", "n": "int64"}, primary_key="k")
    table.insert({"k": range(1200), "s": [""] * 1200, "n": range(1200)})
    table.flush()
    values, moments = texts(kind, 1200), [db.now()]
    step = 1200 // parts
    for begin in range(0, 1200, step):
        table.update({"k": range(begin, begin + step), "s": values[begin : begin + step]})
        table.flush()
        moments.append(db.now())
    (rowset,) = rowsets(db)
    column = table._database._writer().root.table("t").schema.by_name("s")
    (before,) = text_of_rowsets(db)
    assert before == pytest.approx(1200 * LENGTH, rel=0.05)
    for plan in (MajorPlan(rowset.id, (column.id,), 1.0), MinorPlan(rowset.id, slice(None), 1.0)):
        report = carry_out(db, plan) if rowset in rowsets(db) else None
        assert report is None or isinstance(report.plan, MergePlan)
    assert len(rowsets(db)) >= 4 and max(text_of_rowsets(db)) <= 1.6 * LIMIT
    for part, moment in enumerate(moments):
        then = [value if place < part * step else "" for place, value in enumerate(values)]
        assert table.scan(order_by_key=True, at=moment).to_arrow().column("s").to_pylist() == then
    assert no_work_is_left(db)


def test_delta_files_with_much_text_are_not_merged(db: Database) -> None:
    table = db.create_table("t", {"k": "int64", "s": "string"}, primary_key="k")
    table.insert({"k": range(1200), "s": [""] * 1200})
    table.flush()
    (rowset,) = rowsets(db)
    for part in range(2):
        table.update({"k": range(part * 160, part * 160 + 160), "s": texts("noise", 160)})
        table.flush()
    report = carry_out(db, MinorPlan(rowset.id, slice(None), 1.0))
    assert isinstance(report.plan, MergePlan) and len(rowsets(db)) > 1
    assert pc.sum(pc.binary_length(table.to_arrow().column("s"))).as_py() == 320 * LENGTH


def test_columns_with_little_text_are_compacted_normally(db: Database) -> None:
    table = db.create_table("t", {"k": "int64", "s": "string"}, primary_key="k")
    table.insert({"k": range(100), "s": [""] * 100})
    table.flush()
    (rowset,) = rowsets(db)
    for part in range(2):
        table.update({"k": range(part * 50, part * 50 + 50), "s": texts("noise", 50)})
        table.flush()
    report = carry_out(db, MinorPlan(rowset.id, slice(None), 1.0))
    assert isinstance(report.plan, MinorPlan)
    column = db._writer().root.table("t").schema.by_name("s")
    report = carry_out(db, MajorPlan(rowset.id, (column.id,), 1.0))
    assert isinstance(report.plan, MajorPlan) and len(rowsets(db)) == 1


def test_rowsets_that_were_cut_are_not_merged_again(db: Database) -> None:
    """The first block, which the estimate samples, has no text."""
    text = nyala.column("string", block_size=1 << 15)
    table = db.create_table("t", {"k": "int64", "s": text}, primary_key="k")
    values = [""] * 3000 + texts("few words", 360)
    for part in range(2):
        table.insert({"k": range(part, 3360, 2), "s": values[part::2]})
        table.flush()
    table.compact()
    assert len(rowsets(db)) > 1 and max(text_of_rowsets(db)) <= 1.6 * LIMIT
    assert no_work_is_left(db)
    assert table.scan(order_by_key=True).to_arrow().column("s").to_pylist() == values


def test_a_key_with_too_much_history_is_a_clear_error(db: Database) -> None:
    table = db.create_table("t", {"k": "int64", "s": "string"}, primary_key="k")
    table.insert({"k": [1], "s": [""]})
    table.flush()
    for number in range(9):
        table.update({"k": [1], "s": [str(number) * 60_000]})
        table.flush()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rowset_size, "TEXT_TARGET_BYTES", 100_000)
        patched.setattr(pa, "concat_arrays", _refusing(pa.concat_arrays, 400_000))
        with pytest.raises(StorageError, match="history of one key has more than 2 GiB"):
            table.compact()
    assert table.get({"k": 1}) == {"k": 1, "s": "8" * 60_000}
    table.compact()
    assert table.get({"k": 1}) == {"k": 1, "s": "8" * 60_000}


def _refusing(join: Any, limit: int) -> Any:
    """Return a function that joins arrays like `join`, and raises as Arrow does above `limit` bytes."""

    def refusing(arrays: list[pa.Array], **options: Any) -> pa.Array:
        joined = join(arrays, **options)
        if pa.types.is_string(joined.type) and joined.nbytes > limit:
            raise pa.ArrowInvalid("offset overflow while concatenating arrays")
        return joined

    return refusing


@pytest.mark.parametrize("columns", [None, ["s"], ["k"], []])
def test_scans_return_much_text_in_several_chunks(
    db: Database, columns: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = db.create_table("t", {"k": "int64", "s": "string"}, primary_key="k")
    values = texts("noise", 200, 100)
    for part in range(2):
        table.insert({"k": range(part, 200, 2), "s": values[part::2]})
        table.flush()
    keys = [*range(150, -5, -1), 7, 7, *range(199, 150, -1)]
    expected = table.get_many({"k": keys}, columns=columns)
    assert expected.num_rows == len(keys) - 4
    monkeypatch.setattr(pa, "concat_arrays", _refusing(pa.concat_arrays, 3000))
    found = table.get_many({"k": keys}, columns=columns)
    assert found.equals(expected) and found.num_rows == expected.num_rows
    if columns is None or "s" in columns:
        chunks = found.column("s").chunks
        assert len(chunks) > 1 and max(len(chunk) * 100 for chunk in chunks) <= 3000
        assert found.column("s").to_pylist() == [values[key] for key in keys if key >= 0]


def test_get_many_returns_much_text_in_several_chunks(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values may be larger than Kudu's limit, so the rows are halved until they fit."""
    table = db.create_table("t", {"k": "int64", "s": "string"}, "k")
    values = texts("noise", 2000, 100)
    for part in range(2):
        table.insert({"k": range(part, 2000, 2), "s": values[part::2]})
        table.flush()
    monkeypatch.setattr(pa, "concat_arrays", _refusing(pa.concat_arrays, 800))
    keys = list(range(0, 2000, 39))
    found = table.scan(where=nyala.col("k").isin(keys)).to_arrow().sort_by("k")
    assert found["k"].to_pylist() == keys and found["s"].to_pylist() == [values[key] for key in keys]
    assert (
        max(len(chunk) for chunk in table.scan(where=nyala.col("k").isin(keys)).to_arrow()["s"].chunks) <= 7
    )


def test_a_single_row_above_the_limit(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    table = db.create_table("t", {"k": "int64", "s": nyala.column("string", encoding="dictionary")}, "k")
    for part in range(2):
        table.insert({"k": [part], "s": [texts("noise", 1, 100)[0]]})
        table.flush()
    monkeypatch.setattr(pa, "concat_arrays", _refusing(pa.concat_arrays, 50))
    assert table.get_many({"k": [0, 1, 2]}).num_rows == 2


@pytest.mark.long
def test_two_gibibytes_of_one_column(tmp_path: Path) -> None:
    """The real limit: 36,000 rows of 65,000 bytes. Takes half a minute of CPU time, and less than 4 GB."""
    words = ["a" * 65_000, "b" * 65_000]
    with nyala.connect(tmp_path / "s", maintenance=False, rowset_size="512MB") as db:
        table = db.create_table("t", {"k": "int64", "s": "string"}, "k")
        for part in range(9):
            keys = range(part * 4000, part * 4000 + 4000)
            table.insert({"k": keys, "s": pa.array([words[key % 2] for key in keys])})
            table.flush()
        table.compact()
        assert max(text_of_rowsets(db)) <= rowset_size.TEXT_TARGET_BYTES * 1.6
        found = table.get_many({"k": range(34_000)})
        assert found.num_rows == 34_000 and found.column("s").num_chunks == 2
        for key in np.linspace(0, 33_999, 9).astype(int).tolist():
            assert found.column("s")[key].as_py() == words[key % 2]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 8e6


@pytest.mark.parametrize("type", ["string", "binary"])
def test_a_flush_of_much_text(tmp_path: Path, type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "_TEXT_BYTES_MAX", LIMIT)
    monkeypatch.setattr(mem_rowset, "_CHUNK_BYTES_MAX", LIMIT)
    values: list[Any] = texts("noise", 1200)
    if type == "binary":
        values = [value.encode() for value in values]
    with open_database(tmp_path / "s", rowset_target_bytes=LIMIT) as db:
        table = db.create_table("t", {"k": "int64", "s": type}, primary_key="k")
        for part in range(4):
            table.insert({"k": range(part, 1200, 4), "s": values[part::4]})
        before = db.now()
        table.update({"k": range(100), "s": values[100:200]})
        table.flush()
        assert len(rowsets(db)) >= 4 and max(text_of_rowsets(db)) <= 1.6 * LIMIT + 100 * LENGTH
        found = table.scan(order_by_key=True, at=before).to_arrow().column("s")
        assert found.to_pylist() == values
        found = table.scan(order_by_key=True).to_arrow().column("s")
        assert found.to_pylist() == [*values[100:200], *values[100:]]


@pytest.mark.parametrize("kind", ["few words", "noise"])
def test_a_copy_of_a_table_with_much_text(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "_TEXT_BYTES_MAX", LIMIT)
    values = texts(kind, 1200)
    with open_database(tmp_path / "s", rowset_target_bytes=LIMIT) as db:
        table = db.create_table("u", {"k": "int64", "s": "string"}, primary_key="k")
        for part in range(4):
            table.insert(
                {"k": range(part * 300, part * 300 + 300), "s": values[part * 300 : part * 300 + 300]}
            )
            table.flush()
        db.copy_table("u", "t")
        assert len(rowsets(db)) >= 4 and max(text_of_rowsets(db)) <= 1.6 * LIMIT
        assert db["t"].scan(order_by_key=True).to_arrow().column("s").to_pylist() == values


def test_repeating_a_value_checks_the_limit(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pa.repeat` does not check it, and returns invalid offsets."""
    table = db.create_table("t", {"k": "int64", "s": "string"}, primary_key="k")
    table.insert({"k": range(100), "s": [""] * 100})
    monkeypatch.setattr(arrow_values, "_TEXT_BYTES_MAX", 99 * LENGTH)
    for value in (pa.scalar("x" * LENGTH), nyala.expr(f"'{'y' * LENGTH}' || 'z'")):
        assert table.update(set={"s": value}).updated == 100
        assert {len(text) for text in table.to_arrow().column("s").to_pylist()} <= {LENGTH, LENGTH + 1}
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        arrow_values.repeated(pa.scalar(b"x" * LENGTH), 100)
    assert arrow_values.repeated(pa.scalar(None, pa.string()), 100).null_count == 100
    assert arrow_values.repeated(pa.scalar(7), 1000).to_pylist() == [7] * 1000
