"""Tables of many columns, of many tablets, and many tables: every row comes back after flush and compaction."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import nyala


def wide(keys: range, columns: int, seed: int) -> pa.Table:
    """Rows of `columns` columns of several types, some of them with NULLs; what each has depends on the seed."""
    rng, count = np.random.default_rng(seed), len(keys)
    made = {"k": pa.array(keys, pa.int64())}
    for number in range(columns - 1):
        values = rng.integers(0, 1000, count)
        missing = rng.random(count) < (number % 3) / 4
        if number % 5 == 0:
            column = pa.array(values, pa.int32(), mask=missing)
        elif number % 5 == 1:
            column = pa.array(values / 7, mask=missing)
        elif number % 5 == 2:
            column = pa.array([f"text {value}" for value in values], mask=missing)
        elif number % 5 == 3:
            column = pa.array(values * 10**9, pa.timestamp("us"), mask=missing)
        else:
            column = pa.array(values < 500, mask=missing)
        made[f"c{number}"] = column
    return pa.table(made)


@pytest.mark.parametrize(("columns", "buckets", "rows"), [(600, 1, 20), (150, 4, 100), (6, 1, 20)])
def test_wide_tables_keep_their_rows(tmp_path: Path, columns: int, buckets: int, rows: int) -> None:
    """A column, a tablet or a table that is written without a look at its values lost or changed some of them."""
    names = [f"t{number}" for number in range(1 if columns > 6 else 12)]
    parts = [wide(range(seed, 2 * rows, 2), columns, seed) for seed in (0, 1)]
    expected = pa.concat_tables(parts).sort_by("k")
    limits = nyala.Limits(max_columns=1000)
    with nyala.connect(tmp_path / "store", maintenance=False, limits=limits) as db:
        for name in names:
            db.create_table(
                name,
                parts[0].schema,
                "k",
                nyala.hash_partition("k", buckets=buckets) if buckets > 1 else None,
            )
        for part in parts:
            for name in names:
                db[name].insert(part)
            db.flush()
        for name in names:
            db[name].compact()
    with nyala.connect(tmp_path / "store", maintenance=False, limits=limits) as db:
        for name in names:
            assert db[name].stats().rowsets == buckets
            found = db[name].scan(order_by_key=True).to_arrow()
            assert found.cast(expected.schema).equals(expected)
