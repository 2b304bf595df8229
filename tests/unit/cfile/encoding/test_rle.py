"""Run length: values and lengths, and runs that cannot be."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cfile.encoding.values import arrow_of, back, decoded

from nyala.cfile import format
from nyala.cfile.encoding.packed_numbers import pack_numbers

HEADER = format.RLE_HEADER.size


def runs(count: int, width: int, first: int, body: bytes, kind: int = format.RLE_VALUES_PLAIN) -> bytes:
    return format.RLE_HEADER.pack(count, width, first, kind, bytes(1)) + body


@pytest.mark.parametrize(
    ("type", "values", "content"),
    [
        ("int16", [7, 7, 7, -1, -1], runs(2, 1, 0, b"\x07\x00\xff\xff\x03\x02")),
        ("int8", [5], runs(1, 1, 0, b"\x05\x01")),
        ("int8", [5] * 256, runs(1, 2, 0, b"\x05\x00\x01")),
        ("int8", [5] * 65_536, runs(1, 4, 0, b"\x05\x00\x00\x01\x00")),
        ("int8", [1, 2, 1], runs(3, 1, 0, b"\x01\x02\x01\x01\x01\x01")),
        ("int8", [None, 4, None, None, 4, 3], runs(3, 1, 0, b"\x00\x04\x03\x01\x04\x01")),
        ("bool", [True, True, False], runs(2, 1, 1, b"\x02\x01")),
        ("bool", [False] * 9, runs(1, 1, 0, b"\x09")),
        ("bool", [True] * 12, runs(1, 1, 1, b"\x0c")),
        ("bool", [True, None, True], runs(1, 1, 1, b"\x03")),
    ],
)
def test_values_and_their_bytes(type: str, values: list[object], content: bytes) -> None:
    """A column that repeats would be stored value by value, or NULLs would cut its runs."""
    assert back("rle", type, arrow_of(type, values)).to_pybytes() == content


def test_bits_after_the_last_row_are_zero() -> None:
    """Who counts the ones of a decoded bitmap by whole bytes would count rows that are not there."""
    for values in ([True] * 12, [False, *[True] * 11]):
        array = arrow_of("bool", values)
        bitmap = decoded("rle", "bool", back("rle", "bool", array), array).buffers()[1]
        assert bitmap.to_pybytes()[-1] == 0x0F


@pytest.mark.parametrize(
    ("type", "content", "reason"),
    [
        ("int8", runs(1, 1, 0, b"\x05\x02"), "make 3 rows, found 2"),
        ("int8", runs(2, 1, 0, b"\x05\x06\x03\x00"), "the shortest of 0"),
        ("int8", runs(2, 1, 0, b"\x05\x06\x02\x02"), "make 3 rows, found 4"),
        ("int8", runs(2, 4, 0, b"\x05\x06\x04\x00\x00\x00\xff\xff\xff\xff"), "found 4294967299"),
        ("int8", runs(0, 1, 0, b""), "1 to 3 runs"),
        ("int8", runs(4, 1, 0, bytes(8)), "1 to 3 runs"),
        ("int8", runs(1, 3, 0, bytes(4)), "lengths of 3"),
        ("int8", runs(1, 1, 0, b"\x05"), "expected 10 bytes or more for 1 runs, found 9"),
        ("int8", runs(1, 1, 0, b""), "expected 9 bytes or more for 1 runs, found 8"),
        ("int8", runs(1, 1, 0, b"\x05\x03\x00"), "expected 10 bytes for 1 runs, found 11"),
        ("int8", runs(1, 1, 0, b"\x05\x03", kind=2), "plain or, but for bool, packed, found 2"),
        ("bool", runs(1, 1, 0, b"\x03", kind=1), "plain or, but for bool, packed, found 1"),
        ("int8", runs(1, 1, 1, b"\x05\x03"), "first value"),
        ("bool", runs(1, 1, 2, b"\x03"), "first value"),
        ("int8", bytes(HEADER - 1), "a header of 8 bytes"),
    ],
)
def test_runs_that_cannot_be_are_refused(type: str, content: bytes, reason: str) -> None:
    """More memory than the block's rows would be taken, or fewer values come out than there are rows."""
    with pytest.raises(ValueError, match=reason):
        decoded("rle", type, content, arrow_of(type, [False] * 3 if type == "bool" else [0] * 3))


def packed(*numbers: int) -> bytes:
    return pack_numbers(np.array(numbers, np.int64))


def test_sorted_ids_and_short_runs_take_few_bits() -> None:
    """The first column of (user, time) took 64 bits for each user, and 16 for a length, as one user has many rows."""
    rng = np.random.default_rng(3)
    ids, lengths = np.sort(rng.integers(0, 1 << 62, 10_000)), rng.geometric(0.1, 10_000)
    lengths[77] = 9_000
    data = back("rle", "int64", pa.array(np.repeat(ids, lengths)))
    # 62 - log2(10,000) and two to three bits more of an id; log2(10) and as many of an end.
    assert 8 * data.size / len(ids) < 62 - 13.3 + 2.6 + 3.4 + 2.6


def test_runs_that_do_not_ascend_are_packed_as_far_as_they_reach() -> None:
    """Days of one year, in no order: 9 bits of 32."""
    days = 20_000 + np.random.default_rng(3).integers(0, 365, 1000)
    data = back("rle", "date", pa.array(np.repeat(days, 40).astype(np.int32)).cast(pa.date32()))
    runs_count, width, _, kind, _ = format.RLE_HEADER.unpack_from(data)
    assert (width, kind) == (1, format.RLE_VALUES_PACKED), "lengths of a byte are as small as ends"
    assert data.size == HEADER + format.PACKED_HEADER.size + 1125 * runs_count // 1000 + 1 + runs_count


@pytest.mark.parametrize(("run_rows", "count", "is_packed"), [(8, 64, True), (7, 64, False), (30, 63, False)])
def test_short_runs_and_few_are_plain(run_rows: int, count: int, is_packed: bool) -> None:
    """Unpacking would take longer than what it spares: columns that are read in 2 ms took 19."""
    data = back("rle", "int64", pa.array(np.repeat(np.arange(count) * 5, run_rows)))
    _, width, _, kind, _ = format.RLE_HEADER.unpack_from(data)
    assert (kind == format.RLE_VALUES_PACKED) == is_packed and width == 1
    flags = back("rle", "bool", pa.array(np.repeat(np.arange(500) % 2 == 0, 300)))
    assert flags.size == HEADER + 2 * 500


@given(
    values=st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=64, max_size=80),
    lengths=st.lists(st.integers(1, 300), min_size=80, max_size=80),
    is_sorted=st.booleans(),
    narrow=st.integers(0, 63),
)
def test_any_runs_come_back(values: list[int], lengths: list[int], is_sorted: bool, narrow: int) -> None:
    """The ends of what 64 bits hold, equal neighbours, NULLs in the middle of a run and at the ends."""
    numbers = [value >> narrow for value in (sorted(values) if is_sorted else values)]
    rows = [number for number, length in zip(numbers, lengths, strict=False) for _ in range(length + 8)]
    back("rle", "int64", pa.array(rows, pa.int64()))
    rows[: len(rows) : 7] = [None] * len(rows[::7])
    back("rle", "int64", pa.array(rows, pa.int64()))


@pytest.mark.parametrize(
    ("type", "content", "reason"),
    [
        ("int8", runs(2, 0, 0, b"\x05\x06" + packed(1, 2)), "make 3 rows, found 2"),
        ("int8", runs(2, 0, 0, b"\x05\x06" + packed(0, 3)), "numbers from 1 to 3, found some from 0"),
        ("int8", runs(2, 0, 0, b"\x05\x06" + packed(2, 4)), "numbers from 1 to 3, found some from 2 to 4"),
        ("int8", runs(2, 0, 0, b"\x05\x06" + packed(3, 3)), "the shortest of 0"),
        ("int8", runs(3, 0, 0, b"\x05\x06\x07" + packed(2, 1, 3)), "the shortest of -1"),
        ("int8", runs(2, 0, 0, b"\x05\x06" + packed(1, 3) + b"\0"), "bytes for 2 runs"),
        ("int8", runs(2, 0, 0, b"\x05\x06" + packed(1, 3)[:-1]), "bytes for 2 numbers"),
        ("int8", runs(2, 1, 0, packed(5, 200) + b"\1\2", kind=1), "numbers from -128 to 127, found"),
        ("int8", runs(2, 1, 0, packed(-129, 3) + b"\1\2", kind=1), "numbers from -128 to 127, found"),
        ("int8", runs(2, 1, 0, packed(5, 6), kind=1), "bytes or more for 2 runs"),
        ("int8", runs(2, 1, 0, b"", kind=1), "a header of 16 bytes, found 0"),
    ],
)
def test_packed_runs_that_cannot_be_are_refused(type: str, content: bytes, reason: str) -> None:
    """A value would be another type's, or rows be asked for that are not there."""
    with pytest.raises(ValueError, match=reason):
        decoded("rle", type, content, arrow_of(type, [0] * 3))


def test_a_block_may_lie_anywhere_in_memory() -> None:
    """Kernels take numbers where numbers may lie; a block is bytes."""
    array = pa.array(np.repeat(np.arange(70), 3) << 40)
    data = back("rle", "int64", array).to_pybytes()
    for shift in range(1, 9):
        moved = pa.py_buffer(bytes(shift) + data).slice(shift)
        assert decoded("rle", "int64", moved, array).equals(array)
