"""The rowset tree compared with a search of every rowset."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.keys.codec import KeyCodec
from nyala.keys.key_range import KeyRange
from nyala.rowset.rowset_tree import RowSetTree
from nyala.schema.types import ColumnType

CODECS = {
    "int": KeyCodec([ColumnType("int16")]),
    "fixed": KeyCodec([ColumnType("int64"), ColumnType("int16")]),
    "binary": KeyCodec([ColumnType("string"), ColumnType("int8")]),
}


def encode(layout: str, numbers: list[int]):
    codec = CODECS[layout]
    arrays = {
        "int": [numbers],
        "fixed": [[n // 3 for n in numbers], [n % 3 for n in numbers]],
        "binary": [[f"{n // 4:03}" for n in numbers], [n % 4 for n in numbers]],
    }[layout]
    return codec.encode([pa.array(a, t.arrow) for a, t in zip(arrays, codec.types, strict=True)])


def rowset(layout: str, least: int, greatest: int):
    bounds = encode(layout, [least, greatest])
    meta = SimpleNamespace(key_min=bounds.at(0), key_max=bounds.at(1))
    return SimpleNamespace(meta=meta, codec=CODECS[layout], least=least, greatest=greatest)


spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15)), max_size=12)


@pytest.mark.parametrize("layout", CODECS)
@given(spans=spans, numbers=st.lists(st.integers(0, 60), max_size=15))
def test_candidates_are_exactly_the_rowsets_whose_bounds_include_the_key(layout, spans, numbers):
    """No rowset is missing, because an insert looks for its key only in the candidates."""
    rowsets = [rowset(layout, least, least + width) for least, width in spans]
    tree = RowSetTree(rowsets)
    tree.check()
    numbers = sorted(numbers)
    found = {
        (id(candidate), index)
        for candidate, lower, upper in tree.candidates(encode(layout, numbers))
        for index in range(lower, upper)
    }
    assert found == {
        (id(r), index) for r in rowsets for index, n in enumerate(numbers) if r.least <= n <= r.greatest
    }
    for index, n in enumerate(numbers):  # one by one, by their canonical bytes
        holding = {id(r) for r in tree.holding(encode(layout, numbers).at(index))}
        assert holding == {id(r) for r in rowsets if r.least <= n <= r.greatest}


@pytest.mark.parametrize("layout", CODECS)
@given(spans=spans, lower=st.none() | st.integers(0, 60), upper=st.none() | st.integers(0, 60))
def test_in_range_returns_exactly_the_rowsets_that_overlap_the_range(layout, spans, lower, upper):
    """The bounds of a rowset are inclusive; the range's upper bound is exclusive."""
    rowsets = [rowset(layout, least, least + width) for least, width in spans]
    bounds = [None if bound is None else encode(layout, [bound]).at(0) for bound in (lower, upper)]
    found = RowSetTree(rowsets).in_range(KeyRange(*bounds))
    expected = [
        r
        for r in rowsets
        if (lower is None or r.greatest >= lower)
        and (upper is None or r.least < upper)
        and not (lower is not None and upper is not None and lower >= upper)
    ]
    assert sorted(map(id, found)) == sorted(map(id, expected))
    assert [r.least for r in found] == sorted(r.least for r in expected)
