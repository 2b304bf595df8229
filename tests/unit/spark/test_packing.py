"""Scan tokens become few Spark partitions, and none is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nyala.spark.reader import pack


@given(count=st.integers(0, 200), partitions=st.integers(1, 16))
def test_every_token_in_exactly_one_partition(count: int, partitions: int) -> None:
    """A token left out would be missing rows, one twice would be rows twice."""
    tokens = [b"%d" % i for i in range(count)]
    packed = pack(tokens, partitions)
    assert [token for group in packed for token in group] == tokens
    assert len(packed) == max(1, min(count, partitions))
    sizes = [len(group) for group in packed]
    assert max(sizes) - min(sizes) <= 1
