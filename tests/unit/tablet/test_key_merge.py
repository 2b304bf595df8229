"""Rows of several rowsets come out in the order of their keys, and no more of them at once than there is memory for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from nyala.tablet.key_merge import merged_batches


@pytest.mark.parametrize("most_bytes", [1, 100, 1_000, 1 << 30])
@pytest.mark.parametrize("sizes", [[1], [0, 5, 0], [3, 4, 50], [100, 1, 1, 100, 7]])
def test_rows_of_all_heads_come_in_one_order(sizes: list[int], most_bytes: int) -> None:
    random = np.random.default_rng(len(sizes))
    keys = random.permutation(sum(sizes))
    parts = [np.sort(part) for part in np.split(keys, np.cumsum(sizes)[:-1])]
    schema = pa.schema({"k": pa.int64(), "s": pa.string()})
    heads = [pa.record_batch([part, [f"{k:07d}" for k in part]], schema) for part in parts]
    batches = list(merged_batches(heads, np.argsort(np.concatenate(parts)), most_bytes))
    rows = pa.Table.from_batches(batches)
    assert rows["k"].to_pylist() == list(range(sum(sizes)))
    assert rows["s"].to_pylist() == [f"{k:07d}" for k in range(sum(sizes))]
    assert all(batch.nbytes <= max(most_bytes * 1.3, 30) for batch in batches)
    if most_bytes == 1 << 30:
        assert len(batches) == 1
