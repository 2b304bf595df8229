"""Long keys with a common beginning are found as integers, with the same results."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.errors import CorruptionError
from nyala.keys.codec import KeyCodec
from nyala.keys.short_keys import ShortKeys
from nyala.schema.types import parse_type

INT64, INT32 = parse_type("int64"), parse_type("int32")
CODEC = KeyCodec([INT64, INT32])
PLACES = st.lists(st.tuples(st.integers(-3, 40), st.integers(-(2**31), 2**31 - 1)), min_size=1, unique=True)


def keys_of(rows):
    return CODEC.encode(
        [pa.array([a for a, _ in rows], pa.int64()), pa.array([b for _, b in rows], pa.int32())]
    )


@given(rows=PLACES.map(sorted), probes=PLACES.map(sorted))
def test_short_keys_have_the_positions_of_the_long_keys(rows, probes):
    """Negative numbers have another head: probes with either head have the right result."""
    keys = keys_of(rows)
    short = ShortKeys.of(keys)
    heads = {row[0] < 0 for row in rows}
    assert (short is None) == (len(heads) == 2)
    if short is not None:
        searched = keys_of(probes)
        searched.prepare_search()
        assert short.find(searched).tolist() == keys.find(searched).tolist()
        assert short.floor(searched).tolist() == (keys.search(searched, side="right") - 1).tolist()
        for place in range(len(searched)):
            whole = searched.at(place)
            for bound in (whole, whole[:6], whole[:8], whole + b"\0"):
                assert short.lower_bound(bound) == keys.lower_bound(bound)


@given(rows=PLACES.map(sorted))
def test_short_keys_of_a_file_equal_those_of_keys(rows):
    """The bytes of a file give the same integers as the keys."""
    keys = keys_of(rows)
    read, made = ShortKeys.from_binary(keys.to_binary(), CODEC.width), ShortKeys.of(keys)
    assert (read is None) == (made is None)
    if read is not None and made is not None:
        assert read.head == made.head and read.tails.tolist() == made.tails.tolist()
        assert read.nbytes == 8 * len(rows)


def test_slices_and_selections_search_like_the_whole():
    """Slices and selections of keys reuse what was computed for all keys."""
    keys = keys_of([(number, number % 7) for number in range(100)])
    keys.prepare_search()
    short = ShortKeys.of(keys)
    assert short is not None
    assert short.find(keys.slice(40, 20)).tolist() == list(range(40, 60))
    assert short.find(keys.take(np.array([3, 5, 99]))).tolist() == [3, 5, 99]


def test_a_key_of_another_length_is_corruption():
    """A key of another length raises CorruptionError, even if the sum of lengths is right."""
    with pytest.raises(CorruptionError, match="12 bytes"):
        ShortKeys.from_binary(pa.array([b"x" * 11, b"y" * 13], pa.large_binary()), 12)


@pytest.mark.parametrize("types", [[INT64], [INT32, INT32], [parse_type("string"), INT64]])
def test_other_layouts_have_no_short_keys(types):
    """Keys up to 8 bytes are integers already; keys with text have no fixed width."""
    codec = KeyCodec(types)
    keys = codec.encode([pa.array(["a"] if type.is_text else [1], type.arrow) for type in types])
    assert ShortKeys.of(keys) is None
    assert ShortKeys.from_binary(keys.to_binary(), codec.width) is None


def test_probes_with_several_heads_are_distinguished():
    """Two probes with the same last eight bytes and different heads have different results."""
    short = ShortKeys.of(keys_of([(-3, 5)]))
    probes = keys_of([(-3, 5), (2**32 - 3, 5)])
    assert short is not None and probes.tails[0] == probes.tails[1]
    assert short.find(probes).tolist() == [0, -1]
