"""Vectors of encoded keys behave like sorted lists of byte strings in every layout."""

from __future__ import annotations

import bisect
import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.keys import encoded_keys
from nyala.keys.codec import KeyCodec
from nyala.keys.encoded_keys import EncodedKeys
from nyala.keys.hash64 import hash_one
from nyala.keys.word_search import find_integers, sample_of
from nyala.schema.types import parse_type

# One of each layout and of the bounds between layouts, also widths that end inside a word.
CODECS = [
    KeyCodec([parse_type(type) for type in types])
    for types in (
        ["int8"],
        ["int32", "int16", "int8"],
        ["int64"],
        ["int64", "int8"],
        ["int64", "int64"],
        ["decimal(38,0)", "int32"],
        ["binary"],
    )
]


def key_bytes(codec: KeyCodec) -> st.SearchStrategy[bytes]:
    # Few different bytes, including zeros, so that equal keys, prefixes and trailing zeros are
    # common.
    byte = st.sampled_from(b"\0\1\x80\xff")
    if codec.width is None:
        return st.lists(byte, max_size=4).map(bytes) | st.binary(max_size=30)
    few = st.lists(byte, min_size=1, max_size=2).map(lambda end: bytes(end).rjust(codec.width or 0, b"\x80"))
    return (few | st.binary(min_size=codec.width, max_size=codec.width)).map(lambda key: key[-codec.width :])


@st.composite
def vectors(draw: st.DrawFn, count: int = 1) -> tuple[KeyCodec, list[list[bytes]]]:
    codec = draw(st.sampled_from(CODECS))
    return codec, [draw(st.lists(key_bytes(codec), max_size=12)) for _ in range(count)]


def make(codec: KeyCodec, keys: list[bytes]) -> EncodedKeys:
    return codec.from_binary(pa.array(keys, pa.large_binary()))


def listed(keys: EncodedKeys) -> list[bytes]:
    array = keys.to_binary()
    assert array.type == pa.large_binary()
    array.validate(full=True)
    return list(array.to_pylist())


@given(vectors(2), st.data())
def test_take_slice_and_concat(drawn: tuple[KeyCodec, list[list[bytes]]], data: st.DataObject) -> None:
    """Each operation returns the right keys in the right order."""
    codec, (left, right) = drawn
    a, b = make(codec, left), make(codec, right)
    assert listed(a) == left and len(a) == len(left)
    assert [a.at(i) for i in range(len(left))] == left
    if left:
        assert a.at(-1) == left[-1]
        indices = data.draw(st.lists(st.integers(0, len(left) - 1), max_size=8))
        assert listed(a.take(np.array(indices, dtype=np.int64))) == [left[i] for i in indices]
    lower = data.draw(st.integers(0, len(left)))
    upper = data.draw(st.integers(lower, len(left)))
    assert listed(a.slice(lower, upper - lower)) == left[lower:upper]
    assert listed(a.slice(lower)) == left[lower:]
    assert listed(EncodedKeys.concat([a, b, a.slice(lower)])) == left + right + left[lower:]
    assert listed(EncodedKeys.concat([a])) == left
    assert a.sizes().tolist() == [len(key) for key in left]


@given(vectors(2))
def test_k1_sorting_and_searching(drawn: tuple[KeyCodec, list[list[bytes]]]) -> None:
    """K1: every key that exists is found."""
    codec, (left, probes) = drawn
    a, p = make(codec, left), make(codec, probes)
    order = a.sort_indices()
    assert order.dtype == np.int64
    assert order.tolist() == sorted(range(len(left)), key=left.__getitem__), "equal keys keep their order"
    ascending = sorted(left)
    s = a.take(order)
    assert s.is_ascending() and s.sort_indices().tolist() == list(range(len(left)))
    assert a.is_ascending() == (left == ascending)
    assert a.is_strictly_ascending() == (left == sorted(set(left)))
    assert s.equal_neighbours().tolist() == [x == y for x, y in itertools.pairwise(ascending)]
    assert s.search(p).tolist() == [bisect.bisect_left(ascending, key) for key in probes]
    assert s.search(p, side="right").tolist() == [bisect.bisect_right(ascending, key) for key in probes]
    assert s.search(p).dtype == np.int64
    unique = sorted(set(left))
    u = make(codec, unique)
    assert u.find(p).tolist() == [unique.index(key) if key in unique else -1 for key in probes]
    assert u.find(s).tolist() == [unique.index(key) for key in ascending]


def test_sorting_many_equal_keys_is_stable() -> None:
    """Equal keys keep their order, so the later of two upserts of a key is applied last."""
    for codec in CODECS:
        numbers = np.random.default_rng(1).integers(0, 9, 3000)
        keys = make(codec, [bytes([n]).rjust(codec.width or 3, b"\1") for n in numbers.tolist()])
        assert keys.sort_indices().tolist() == np.argsort(numbers, kind="stable").tolist()


def test_ascending_is_not_strictly_ascending() -> None:
    """A batch with one key twice ascends, but not strictly."""
    for codec in CODECS:
        a, b = (bytes([n]).rjust(codec.width or 3, b"\1") for n in (1, 2))
        for keys, ascending, strictly in (
            ([], True, True),
            ([a], True, True),
            ([a, b], True, True),
            ([a, a, b], True, False),
            ([a, b, b], True, False),
            ([b, a], False, False),
        ):
            vector = make(codec, keys)
            assert (vector.is_ascending(), vector.is_strictly_ascending()) == (ascending, strictly)


@given(vectors(2))
def test_searching_with_an_older_pyarrow(drawn: tuple[KeyCodec, list[list[bytes]]]) -> None:
    """The replacement for pyarrow.compute.search_sorted gives the same positions."""
    _, (left, probes) = drawn
    ascending = sorted(left)
    keys, wanted = pa.array(ascending, pa.large_binary()), pa.array(probes, pa.large_binary())
    left_found = encoded_keys.binary_search(keys, wanted, "left")
    assert left_found.tolist() == [bisect.bisect_left(ascending, key) for key in probes]
    right_found = encoded_keys.binary_search(keys, wanted, "right")
    assert right_found.tolist() == [bisect.bisect_right(ascending, key) for key in probes]


NEAR = st.tuples(st.integers(-3, 3), st.integers(-2, 2))
FAR = st.tuples(st.sampled_from([-(2**40), -1, 0, 2**32, 2**63 - 1]), st.integers(-2, 2))


@given(
    st.sets(NEAR, max_size=30) | st.sets(FAR, max_size=20), st.lists(NEAR | FAR, max_size=20), st.booleans()
)
def test_keys_with_one_head_are_searched_as_integers(
    have: set[tuple[int, int]], searched: list[tuple[int, int]], prepared: bool
) -> None:
    """Keys above 8 bytes are searched by their last 8 only if their heads are known to be equal."""
    codec = KeyCodec([parse_type("int64"), parse_type("int32")])

    def encoded(pairs: list[tuple[int, int]]) -> EncodedKeys:
        first, second = zip(*pairs, strict=True) if pairs else ((), ())
        return codec.encode([pa.array(first, pa.int64()), pa.array(second, pa.int32())])

    order = sorted(searched) if prepared else searched
    keys, probes = encoded(sorted(have)), encoded(order)
    if prepared:
        probes.prepare_search()
        probes.prepare_slices()
    places = {pair: place for place, pair in enumerate(sorted(have))}
    assert keys.find(probes).tolist() == [places.get(pair, -1) for pair in order]
    for side in ("left", "right"):
        before = [sum(h < pair or (side == "right" and h == pair) for h in have) for pair in order]
        assert keys.search(probes, side).tolist() == before  # type: ignore[arg-type]
    # What is known of all keys also holds for a selection of them.
    if prepared and len(order):
        backwards = probes.take(np.arange(len(order))[::-1])
        assert keys.find(backwards).tolist() == [places.get(pair, -1) for pair in order[::-1]]


@given(vectors(), st.binary(max_size=20) | st.lists(st.sampled_from(b"\0\1\x80\xff"), max_size=9).map(bytes))
def test_lower_bound_takes_prefixes_and_longer_bounds(
    drawn: tuple[KeyCodec, list[list[bytes]]], bound: bytes
) -> None:
    """A bound may be a prefix or longer than a key; a scan of `host = 'a'` loses no row."""
    codec, (keys,) = drawn
    ascending = sorted(keys)
    assert make(codec, ascending).lower_bound(bound) == bisect.bisect_left(ascending, bound)
    for key in keys:
        for near in (key, key[:-1], key + b"\0"):
            assert make(codec, ascending).lower_bound(near) == bisect.bisect_left(ascending, near)


@given(vectors(2))
def test_equality_hashing_and_hashables_agree(drawn: tuple[KeyCodec, list[list[bytes]]]) -> None:
    """K2: "a" and "a\\0" are different keys, and equal keys have equal hashes."""
    codec, (left, right) = drawn
    count = min(len(left), len(right))
    a, b = make(codec, left[:count]), make(codec, right[:count])
    same = [x == y for x, y in zip(left[:count], right[:count], strict=True)]
    assert a.equal_to(b).tolist() == same
    assert [x == y for x, y in zip(a.to_hashable(), b.to_hashable(), strict=True)] == same
    assert (a.hash64() == b.hash64()).tolist() == same
    # The same bytes in layout "binary" have the same hash, because it depends on the bytes only.
    assert a.hash64().tolist() == make(CODECS[-1], left[:count]).hash64().tolist()
    sliced = make(codec, left).slice(min(1, len(left)))
    assert sliced.hash64().tolist() == make(codec, left).hash64().tolist()[1:]
    assert sliced.hash64().dtype == np.uint64


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"", 0x0),
        (b"a", 0x071717D2D36B6B11),
        (b"abcdefgh", 0xAFDB0257FF41AA98),
        (b"kudu tablet storage", 0x8739E1D667F67907),
    ],
)
def test_hash64_golden_vectors(key: bytes, expected: int) -> None:
    """Hashes are on disk in bloom filters, so they never change."""
    keys = make(CODECS[-1], [b"x" * 100, key, b"", key])
    assert keys.hash64()[[1, 3]].tolist() == [expected] * 2
    assert hash_one(key) == expected


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_a_single_hash_agrees_with_a_hash_of_many(keys: list[bytes]) -> None:
    """A key that is looked up alone has the same hash as in a vector."""
    assert make(CODECS[-1], keys).hash64().tolist() == [hash_one(key) for key in keys]


@given(vectors(), st.integers(0, 12), st.integers(1, 8))
def test_integers_are_the_bytes_at_a_distance_from_the_end(
    drawn: tuple[KeyCodec, list[list[bytes]]], behind: int, width: int
) -> None:
    """`integers` returns these bytes, whether the tails were computed before or not."""
    codec, (listed_keys,) = drawn
    keys = [key for key in listed_keys if len(key) >= behind + width]
    if codec.width is not None and codec.width < behind + width:
        return
    expected = [int.from_bytes(key[len(key) - behind - width : len(key) - behind], "big") for key in keys]
    vector = make(codec, keys)
    assert vector.integers(behind, width).tolist() == expected
    assert vector.slice(1).integers(behind, width).tolist() == expected[1:]
    vector.prepare_search()
    assert vector.integers(behind, width).tolist() == expected


def test_nbytes_counts_the_keys_of_a_slice_only() -> None:
    """A slice counts only its own bytes, so the memory budget is right."""
    for codec in (CODECS[2], CODECS[4], CODECS[-1]):
        keys = make(codec, [bytes([i]).rjust(codec.width or 16, b"\1") for i in range(100)])
        assert keys.nbytes >= 100 * 8
        assert keys.slice(10, 10).nbytes <= keys.nbytes / 9


def test_mixed_layouts_are_refused() -> None:
    """K1: comparing keys of two layouts is a bug and fails an assertion."""
    a, b = make(CODECS[0], [b"\1"]), make(CODECS[-1], [b"\1"])
    for left, right in ((a, b), (b, a), (a, make(CODECS[2], [b"12345678"]))):
        with pytest.raises(AssertionError, match="K1"):
            left.search(right)
        with pytest.raises(AssertionError, match="K1"):
            left.equal_to(right)
        with pytest.raises(AssertionError, match="K1"):
            EncodedKeys.concat([left, right])


@given(
    st.sets(st.integers(0, 2**64 - 1), min_size=1, max_size=300),
    st.lists(st.integers(0, 2**64 - 1), min_size=16, max_size=40),
    st.data(),
)
def test_integers_of_long_arrays_are_found(have: set[int], others: list[int], data: st.DataObject) -> None:
    """A key that exists is found by all steps of the search, so it cannot be inserted a second time."""
    numbers = np.array(sorted(have), np.uint64)
    probes = np.array(others + data.draw(st.lists(st.sampled_from(sorted(have)), max_size=20)), np.uint64)
    positions = {number: position for position, number in enumerate(sorted(have))}
    for sample in (None, numbers[::64].copy()):
        found = find_integers(numbers, sample, probes)
        assert found.tolist() == [positions.get(probe, -1) for probe in probes.tolist()]


def test_an_array_is_sampled_only_if_it_is_long() -> None:
    """Keys of a long array are found, in both layouts of fixed width."""
    count = (1 << 15) + 100
    numbers, probes = np.arange(count) * 3, np.arange(0, 3 * count, 7)
    assert sample_of(numbers[:100].astype(np.uint64)) is None
    expected = np.where(probes % 3 == 0, probes // 3, -1).tolist()
    for codec in (KeyCodec([parse_type("int64")]), KeyCodec([parse_type("int64"), parse_type("int8")])):
        ones = [pa.array(np.ones(len(column), np.int8)) for column in (numbers, probes)]
        keys, searched = (
            codec.encode([pa.array(column), one][: len(codec.types)])
            for column, one in zip((numbers, probes), ones, strict=True)
        )
        searched.prepare_slices()
        assert keys.find(searched).tolist() == expected
