"""The merge of rowsets in key order, with bounded memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from nyala.errors import CorruptionError
from nyala.keys.codec import KeyCodec
from nyala.keys.encoded_keys import EncodedKeys
from nyala.schema.types import parse_type
from nyala.tablet.scan.key_merge import aligned_heads, merged_batches


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


def test_keys_that_do_not_ascend_end_the_merge() -> None:
    """Keys that are not in order, although the CRC is right, raise an error; no row is lost."""
    codec = KeyCodec([parse_type("int64")])

    def rows(*numbers: int) -> tuple[EncodedKeys, pa.RecordBatch]:
        array = pa.array(numbers, pa.int64())
        return codec.encode([array]), pa.record_batch([array], ["k"])

    sources = [(b"", lambda: iter([rows(1, 5, 9)])), (b"", lambda: iter([rows(6, 7, 2)]))]
    with pytest.raises(
        CorruptionError, match="not in key order: key 8000000000000002 comes after greater keys"
    ):
        for heads in aligned_heads(sources):
            assert heads
    ascending = [(b"", lambda: iter([rows(1, 5, 9)])), (b"", lambda: iter([rows(2, 6, 7)]))]
    found = [batch for heads in aligned_heads(ascending) for _, batch in heads]
    assert sorted(pa.Table.from_batches(found)["k"].to_pylist()) == [1, 2, 5, 6, 7, 9]
