"""Ordinals are cut at block borders once, and the values come in the order that was asked for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from nyala.cfile.gathering import Ordinals, gathered, word_dtype

VALUES = {
    "fixed": pa.array(np.arange(40)),
    "with NULL": pa.array([None if n % 7 == 0 else n for n in range(40)], pa.int32()),
    "decimal": pa.array(range(40)).cast(pa.decimal128(19, 0)),
    "bits": pa.array([n % 3 == 0 for n in range(40)]),
    "text": pa.array([f"text {n}" for n in range(40)]),
}


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
@pytest.mark.parametrize("places", [[5], [3, 4, 4, 9, 39], [39, 0, 17, 0, 8], list(range(39, -1, -1))])
def test_values_come_in_the_order_asked_for(values: pa.Array, places: list[int]) -> None:
    """`get_many` would give another row's values."""
    ordinals = Ordinals(np.array(places))
    for log2 in (0, 3, 6):
        cut = ordinals.cut(log2)
        blocks = [values.slice(block << log2, 1 << log2) for block in cut.blocks]
        assert cut.blocks == sorted(set(cut.blocks))
        assert gathered(blocks, cut, word_dtype(values.type)).to_pylist() == [
            values[place].as_py() for place in places
        ]


def test_a_cut_is_made_once_for_all_columns_with_blocks_of_one_size() -> None:
    """A look-up of sixteen columns would sort its rows sixteen times."""
    ordinals = Ordinals(np.array([9, 1, 9]))
    assert ordinals.cut(3) is ordinals.cut(3)
    assert ordinals.cut(3) is not ordinals.cut(2)
    assert (ordinals.least, ordinals.greatest, ordinals.count) == (1, 9, 3)
