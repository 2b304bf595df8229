"""Binary search of integers, in steps that all probes take together."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.keys import word_search
from nyala.keys.codec import KeyCodec
from nyala.keys.encoded_keys import EncodedKeys
from nyala.keys.word_search import find_integers, sample_of
from nyala.schema.types import parse_type

Words = npt.NDArray[np.uint64]


def expected(words: Words, probes: Words) -> list[int]:
    places = {word: place for place, word in enumerate(words.tolist())}
    return [places.get(probe, -1) for probe in probes.tolist()]


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 127, 128, 129, 1000, 4097])
def test_each_integer_and_each_gap_is_distinguished(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Also at the ends of the array, and between the integers of two steps."""
    monkeypatch.setattr(word_search, "_LONG_MIN", 1)
    words = np.arange(count, dtype=np.uint64) * np.uint64(2) + np.uint64(5)
    probes = np.arange(2 * count + 12, dtype=np.uint64)
    probes = np.append(probes, np.uint64(2**64 - 1))
    sample = sample_of(words)
    assert sample is not None
    assert find_integers(words, sample, probes).tolist() == expected(words, probes)
    backwards = probes[::-1]
    assert find_integers(words, sample, backwards).tolist() == expected(words, backwards)


@given(
    st.sets(st.integers(0, 2**64 - 1), min_size=1, max_size=300),
    st.lists(st.integers(0, 2**64 - 1), min_size=16, max_size=40),
    st.data(),
)
def test_any_integers_are_found(have: set[int], strange: list[int], data: st.DataObject) -> None:
    """Every key that exists is found, so it cannot be inserted a second time."""
    words = np.array(sorted(have), np.uint64)
    there = data.draw(st.lists(st.sampled_from(sorted(have)), max_size=20))
    probes = np.array(strange + there, np.uint64)
    for sample in (None, words[:: word_search._STEP].copy()):
        assert find_integers(words, sample, probes).tolist() == expected(words, probes)


# --- keys ---------------------------------------------------------------------------------------------------


def two_columns(pairs: list[tuple[int, int]]) -> EncodedKeys:
    codec = KeyCodec([parse_type("int64"), parse_type("int32")])
    columns = zip(*pairs, strict=True) if pairs else ((), ())
    return codec.encode(
        [pa.array(column, type) for column, type in zip(columns, (pa.int64(), pa.int32()), strict=True)]
    )


NEAR = st.tuples(st.integers(-3, 3), st.integers(-2, 2))
FAR = st.tuples(st.sampled_from([-(2**40), -1, 0, 2**32, 2**63 - 1]), st.integers(-2, 2))


@given(
    st.sets(NEAR, max_size=30) | st.sets(FAR, max_size=20), st.lists(NEAR | FAR, max_size=20), st.booleans()
)
def test_keys_with_one_head_are_searched_as_integers(
    have: set[tuple[int, int]], asked: list[tuple[int, int]], prepared: bool
) -> None:
    """Keys above 8 bytes are searched by their last 8 only if their heads are known to be equal."""
    keys = two_columns(sorted(have))
    order = sorted(asked) if prepared else asked
    probes = two_columns(order)
    if prepared:
        probes.prepare_search()
        probes.prepare_slices()
    places = {pair: place for place, pair in enumerate(sorted(have))}
    assert keys.find(probes).tolist() == [places.get(pair, -1) for pair in order]
    for side in ("left", "right"):
        before = [sum(h < pair or (side == "right" and h == pair) for h in have) for pair in order]
        assert keys.search(probes, side).tolist() == before  # type: ignore[arg-type]
    # Facts known of keys hold for keys that are taken from them.
    if prepared and len(order):
        backwards = probes.take(np.arange(len(order))[::-1])
        assert keys.find(backwards).tolist() == [places.get(pair, -1) for pair in order[::-1]]


def test_many_keys_are_found_in_long_arrays() -> None:
    """Arrays are long enough for a sample, in both layouts of fixed width."""
    count = word_search._LONG_MIN + 100
    numbers = np.arange(count) * 3
    probes = np.arange(0, 3 * count, 7)
    wanted = np.where(probes % 3 == 0, probes // 3, -1).tolist()
    one = KeyCodec([parse_type("int64")])
    assert one.encode([pa.array(numbers)]).find(one.encode([pa.array(probes)])).tolist() == wanted
    two = KeyCodec([parse_type("int64"), parse_type("int32")])
    keys = two.encode([pa.array(numbers), pa.array(np.ones(count, np.int32))])
    asked = two.encode([pa.array(probes), pa.array(np.ones(len(probes), np.int32))])
    asked.prepare_slices()
    assert keys.find(asked).tolist() == wanted
