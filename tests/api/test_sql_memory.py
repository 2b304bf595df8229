"""DuckDB respects the store's memory_limit: it spills to disk, or its error says what to raise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import nyala
from nyala.sql.select import connection

pytest.importorskip("duckdb")
ROWS = 400_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("sql") / "store"
    order = np.random.default_rng(5).permutation(ROWS)
    with nyala.connect(path, maintenance=False) as db:
        table = db.create_table("t", {"k": "int64", "v": "int64", "s": "string"}, "k")
        text = pa.array(order).cast(pa.string())
        table.insert(pa.table({"k": np.arange(ROWS), "v": order, "s": text}))
        db.flush()
    return path


@pytest.fixture
def tight(store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[nyala.Database]:
    """A store whose DuckDB has 64 MB and one thread, so that small statements spill."""
    monkeypatch.setattr(connection, "MEMORY_BYTES_MIN", 64_000_000)
    monkeypatch.setitem(connection.SETTINGS, "threads", "1")
    with nyala.connect(store, read_only=True, memory_limit="16MB") as db:
        yield db


def spilled(db: nyala.Database) -> int:
    """Return the bytes that DuckDB has in the temporary folder."""
    cursor = db._connection(files=True).cursor()
    return int(cursor.execute("SELECT coalesce(sum(size), 0) FROM duckdb_temporary_files()").fetchall()[0][0])


@pytest.mark.parametrize(("given", "megabytes"), [("16MB", 512), ("700MB", 700)])
def test_duckdb_has_the_stores_memory_limit_and_a_minimum(store: Path, given: str, megabytes: int) -> None:
    with nyala.connect(store, read_only=True, memory_limit=given) as db:
        (found,) = db.sql("SELECT current_setting('memory_limit')").fetchone() or ("",)
    number, unit = str(found).split()
    assert unit == "MiB"
    assert float(number) == pytest.approx(megabytes * 1e6 / 2**20, abs=0.1)


def test_a_sort_that_spills(tight: nyala.Database) -> None:
    """A sort that is larger than the memory limit spills to disk and returns all rows in order."""
    reader = tight.sql("SELECT v, k, s, repeat(s, 30) AS wide FROM t ORDER BY v").to_reader()
    first = reader.read_next_batch()
    assert spilled(tight) > 0
    found = pa.Table.from_batches([first, *reader])
    assert np.array_equal(found.column("v").to_numpy(), np.arange(ROWS))
    assert found.column("s").cast(pa.int64()).equals(found.column("v"))


def test_groups_and_joins_that_spill(tight: nyala.Database) -> None:
    """An aggregation and a join that spill return the right sums."""
    groups = "SELECT s || repeat('x', 150) AS g, count(*) AS n, sum(v) AS v FROM t GROUP BY g"
    assert tight.sql(f"SELECT count(*), sum(n), sum(v) FROM ({groups})").fetchall() == [
        (ROWS, ROWS, ROWS * (ROWS - 1) // 2)
    ]
    other = "SELECT *, repeat(s, 30) AS w FROM t"
    joined = f"SELECT count(*), sum(b.k) FROM t a JOIN ({other}) b ON a.v = b.k WHERE w <> a.s"
    count, total = tight.sql(joined).fetchone() or (0, 0)
    assert (count, total) == (ROWS, ROWS * (ROWS - 1) // 2)


def test_a_statement_that_cannot_spill_names_the_limit_to_raise(tight: nyala.Database) -> None:
    result = tight.sql("SELECT length(string_agg(repeat(s, 60), '')) FROM t")
    with pytest.raises(nyala.StorageError, match="larger limit"):
        result.fetchall()
    with pytest.raises(nyala.StorageError, match="larger limit"):
        result.to_arrow()
    assert tight.sql("SELECT count(*) FROM t").fetchall() == [(ROWS,)], "the next statement runs"
