"""Conversion between NumPy and Arrow through buffers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from nyala.schema.plain_arrays import array_of_bytes, array_of_numbers, booleans_of


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 100])
def test_arrays_equal_those_of_pyarrow(count: int) -> None:
    booleans = np.random.default_rng(count).integers(0, 2, count).astype(np.bool_)
    texts = [b"x" * size for size in range(count)]
    for vector in (booleans, np.arange(count), np.arange(2 * count, dtype=np.uint32)[::2]):
        made = array_of_numbers(vector)
        made.validate(full=True)
        assert made.equals(pa.array(vector))
    assert array_of_bytes(texts).equals(pa.array(texts, pa.large_binary()))


def test_booleans_of_reads_slices() -> None:
    booleans = np.random.default_rng(0).integers(0, 2, 50).astype(np.bool_)
    for begin in range(20):
        for end in range(begin, 50, 7):
            found = booleans_of(pa.array(booleans)[begin:end])
            assert found.tolist() == booleans[begin:end].tolist()
            found[:] = False  # a new array, which may be changed
