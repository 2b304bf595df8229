"""The key encoding: its bytes, that keys sort like rows, and that damage is noticed."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.errors import CorruptionError
from nyala.keys.arrow_memory import array_of_canonical
from nyala.keys.codec import KeyCodec
from nyala.schema.types import ColumnType, parse_type

KEY_TYPES = [
    *("int8", "int16", "int32", "int64", "date", "timestamp", "decimal(5,2)", "decimal(15,0)"),
    *("decimal(38,10)", "varchar(7)", "string", "binary"),
]


def canonical(type: ColumnType) -> st.SearchStrategy[Any]:
    """Draw canonical scalars, including the extremes and many equal and nearly equal ones."""
    if type.is_text:
        length = type.length or 20
        return st.text(st.sampled_from("\0\1ab\x7fé€\U0001f40e"), max_size=length) | st.text(max_size=length)
    if type.is_variable:
        return st.lists(st.sampled_from(b"\0\1\xff"), max_size=5).map(bytes) | st.binary(max_size=20)
    least, most = type.value_min, type.value_max
    assert least is not None and most is not None
    return st.integers(-2, 2) | st.integers(least, most) | st.sampled_from([least, most])


@st.composite
def keys(draw: st.DrawFn, max_columns: int = 4) -> tuple[list[ColumnType], list[tuple[Any, ...]]]:
    types = [
        parse_type(t) for t in draw(st.lists(st.sampled_from(KEY_TYPES), min_size=1, max_size=max_columns))
    ]
    return types, draw(st.lists(st.tuples(*map(canonical, types)), max_size=12))


def arrays_of(types: list[ColumnType], rows: list[tuple[Any, ...]]) -> list[pa.Array]:
    return [array_of_canonical(type, [row[i] for row in rows]) for i, type in enumerate(types)]


def comparable(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.encode() if isinstance(value, str) else value for value in row)


@pytest.mark.parametrize(
    ("types", "row", "expected"),
    [
        (["int8"], (-128,), "00"),
        (["int8"], (127,), "ff"),
        (["int16"], (-1,), "7fff"),
        (["int32"], (0,), "80000000"),
        (["int64"], (-1,), "7fffffffffffffff"),
        (["date"], (-719162,), "7ff506c6"),
        (["timestamp"], (1,), "8000000000000001"),
        (["decimal(9,2)"], (-1,), "7fffffff"),
        (["decimal(18,2)"], (1,), "8000000000000001"),
        (["decimal(38,0)"], (-1,), "7f" + "ff" * 15),
        (["string"], ("a\0b",), "610062"),
        (["varchar(5)"], ("é",), "c3a9"),
        (["binary", "int8"], (b"a\0b", 0), "61000162000080"),
        (["int32", "int64"], (1, 2), "800000018000000000000002"),
        # Splits ("a1", "b1", "c1") and ("a2", "b2", unset) of Kudu's partition-test.
        (["string", "string", "string"], ("a1", "b1", "c1"), "61310000623100006331"),
        (["string", "string", "string"], ("a2", "b2", ""), "61320000" + "62320000"),
        # The range parts of the partition keys in Kudu's partition-test.
        (["int32", "string", "string"], (0, "", ""), "80000000" + "0000"),
        (["int32", "string", "string"], (1, "", ""), "80000001" + "0000"),
        (["int32", "string", "string"], (0, "b", "c"), "80000000" + "62" + "0000" + "63"),
        (["int32", "string", "string"], (1, "b", "c"), "80000001" + "62" + "0000" + "63"),
    ],
)
def test_golden_vectors(types: list[str], row: tuple[Any, ...], expected: str) -> None:
    """Keys on disk never change: these rows have exactly these bytes."""
    parsed = [parse_type(type) for type in types]
    codec = KeyCodec(parsed)
    assert codec.encode_row(row).hex() == expected
    assert codec.encode(arrays_of(parsed, [row])).at(0).hex() == expected


@pytest.mark.parametrize(
    ("types", "layout", "width"),
    [
        (["int64"], "int", 8),
        (["int32", "int16", "int8"], "int", 7),
        (["int64", "int8"], "fixed", 9),
        (["decimal(38,0)"], "fixed", 16),
        (["string"], "binary", None),
        (["int8", "varchar(3)"], "binary", None),
    ],
)
def test_layout_is_a_function_of_the_types(types: list[str], layout: str, width: int | None) -> None:
    """Keys of one table have one layout wherever they are encoded, so they can be compared."""
    codec = KeyCodec([parse_type(type) for type in types])
    assert (codec.layout, codec.width) == (layout, width)
    assert (codec.empty().layout, codec.empty().width, len(codec.empty())) == (layout, width, 0)


@given(keys())
def test_k1_k4_order_and_round_trip(drawn: tuple[list[ColumnType], list[tuple[Any, ...]]]) -> None:
    """K1, K4: keys sort like their rows, and decode to them."""
    types, rows = drawn
    codec = KeyCodec(types)
    arrays = arrays_of(types, rows)
    encoded = codec.encode(arrays)
    assert (encoded.layout, encoded.width) == (codec.layout, codec.width)
    for array, decoded in zip(arrays, codec.decode(encoded), strict=True):
        decoded.validate(full=True)
        assert decoded.equals(array)
    single = [codec.encode_row(row) for row in rows]
    assert encoded.to_binary().to_pylist() == single
    assert [codec.decode_row(key) for key in single] == rows
    for number in range(len(rows)):  # single keys have their own code
        one = codec.encode([array.slice(number, 1) for array in arrays_of(types, rows)])
        assert (one.layout, one.width) == (encoded.layout, encoded.width)
        assert one.to_hashable() == encoded.slice(number, 1).to_hashable()
        assert one.at(0) == single[number]
    assert sorted(range(len(rows)), key=lambda i: comparable(rows[i])) == encoded.sort_indices().tolist()
    assert sorted(range(len(rows)), key=single.__getitem__) == encoded.sort_indices().tolist()
    again = codec.from_binary(encoded.to_binary())
    assert again.layout == encoded.layout and again.equal_to(encoded).all() and len(again) == len(rows)
    assert encoded.sizes().tolist() == [len(key) for key in single]


@given(keys(), st.data())
def test_slices_encode_and_decode_as_their_rows(
    drawn: tuple[list[ColumnType], list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    """Slices of a batch give the keys of their own rows."""
    types, rows = drawn
    codec = KeyCodec(types)
    arrays = arrays_of(types, rows)
    lower = data.draw(st.integers(0, len(rows)))
    upper = data.draw(st.integers(lower, len(rows)))
    cut = codec.encode([array.slice(lower, upper - lower) for array in arrays])
    assert cut.to_binary().to_pylist() == [codec.encode_row(row) for row in rows[lower:upper]]
    sliced = codec.encode(arrays).slice(lower, upper - lower)
    for array, decoded in zip(arrays, codec.decode(sliced), strict=True):
        assert decoded.equals(array.slice(lower, upper - lower))
    assert codec.from_binary(sliced.to_binary()).to_binary().equals(cut.to_binary())
    stored = codec.encode(arrays).to_binary().slice(lower, upper - lower)
    assert codec.from_binary(stored).to_binary().equals(cut.to_binary())


@given(keys(), st.data())
def test_k5_a_prefix_begins_its_keys_and_no_others(
    drawn: tuple[list[ColumnType], list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    """K5: `where host = 'a'` reads exactly the rows of host 'a', and none of 'ab'."""
    types, rows = drawn
    codec = KeyCodec(types)
    count = data.draw(st.integers(0, len(types) - 1))
    for row in rows:
        prefix = codec.encode_prefix(row[:count])
        for other in rows:
            assert codec.encode_row(other).startswith(prefix) == (other[:count] == row[:count])


def test_keys_do_not_share_memory_with_their_columns() -> None:
    """K3: a reused buffer of a column does not change fixed-width keys."""
    values = np.arange(10, dtype=np.int64)
    keys = KeyCodec([parse_type("int64")]).encode([pa.array(values)])
    before = keys.to_binary().to_pylist()
    values[:] = -5
    assert keys.to_binary().to_pylist() == before


@pytest.mark.parametrize(
    ("types", "key"),
    [
        (["int32"], b"\x80\0\0"),
        (["int32"], b"\x80\0\0\0\0"),
        (["int64", "int64"], b"\x80" * 15),
        (["string", "int8"], b"abc\x80"),  # no separator
        (["string", "int8"], b"abc\0\0"),  # integer missing
        (["string", "int8"], b"abc\0\0\x80\x80"),  # longer than its columns
        (["string", "int16"], b"abc\0"),  # cut inside the separator
        (["string", "string"], b"abc"),  # no separator, but the next key has one
        (["binary", "binary"], b"abc"),
        (["int16", "string"], b"\x80"),
        (["string", "string"], b"a\0\0\xff"),  # not UTF-8
        (["string", "int8"], b"\xff\0\0\x80"),
        (["binary", "int8"], b"a\0\2b\0\0\x80"),  # 0x00 that is not escaped
    ],
)
def test_damaged_keys_are_corruption(types: list[str], key: bytes) -> None:
    """Keys that no row can have raise CorruptionError."""
    codec = KeyCodec([parse_type(type) for type in types])
    if key != b"a\0\2b\0\0\x80":  # decoding a single key does not check escapes
        with pytest.raises(CorruptionError):
            codec.decode_row(key)
    good = codec.encode_row([0 if not type.is_variable else b"" for type in codec.types])
    for rows in ([key], [good, key], [key, good], [good, key, good]):
        with pytest.raises(CorruptionError):
            codec.decode(codec.from_binary(pa.array(rows, pa.large_binary())))


def test_a_separator_in_the_next_key_does_not_count() -> None:
    """The error names the damaged key, and not the next one."""
    codec = KeyCodec([parse_type("binary"), parse_type("binary")])
    with pytest.raises(CorruptionError, match="no separator after a text column"):
        codec.decode(codec.from_binary(pa.array([b"abc", b"\0\0"], pa.large_binary())))


def test_a_null_key_on_disk_is_corruption() -> None:
    """NULL among keys on disk raises CorruptionError and is not read as an empty key."""
    with pytest.raises(CorruptionError):
        KeyCodec([parse_type("string")]).from_binary(pa.array([b"a", None], pa.large_binary()))


def test_encoded_integers_agree_with_struct() -> None:
    """All values of int8 and int16 agree with an independent computation of the sign flip."""
    for name, code in (("int8", ">B"), ("int16", ">H")):
        type = parse_type(name)
        assert type.value_min is not None and type.value_max is not None
        values = list(range(type.value_min, type.value_max + 1))
        keys = KeyCodec([type]).encode([pa.array(values, type.arrow)])
        assert keys.to_binary().to_pylist() == [struct.pack(code, value - type.value_min) for value in values]
        assert keys.is_strictly_ascending()
