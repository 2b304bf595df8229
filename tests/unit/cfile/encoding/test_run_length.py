"""Run length: values and lengths, and runs that a reader refuses."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cfile.encoding.values import arrow_of, back, decoded

from nyala.cfile import format

HEADER = format.RLE_HEADER.size


def runs(count: int, width: int, first: int, body: bytes) -> bytes:
    return format.RLE_HEADER.pack(count, width, first, bytes(2)) + body


@pytest.mark.parametrize(
    ("type", "values", "content"),
    [
        ("int16", [7, 7, 7, -1, -1], runs(2, 1, 0, b"\x07\x00\xff\xff\x03\x02")),
        ("int8", [5], runs(1, 1, 0, b"\x05\x01")),
        ("int8", [5] * 256, runs(1, 2, 0, b"\x05\x00\x01")),
        ("int8", [5] * 65_536, runs(1, 4, 0, b"\x05\x00\x00\x01\x00")),
        ("int8", [1, 2, 1], runs(3, 1, 0, b"\x01\x02\x01\x01\x01\x01")),
        ("int8", [None, 4, None, None, 4, 3], runs(2, 1, 0, b"\x04\x03\x02\x01")),
        ("bool", [True, True, False], runs(2, 1, 1, b"\x02\x01")),
        ("bool", [False] * 9, runs(1, 1, 0, b"\x09")),
        ("bool", [True] * 12, runs(1, 1, 1, b"\x0c")),
        ("bool", [True, None, True], runs(1, 1, 1, b"\x02")),
    ],
)
def test_values_and_their_bytes(type: str, values: list[object], content: bytes) -> None:
    """Repeated values are stored once, and NULLs do not split runs."""
    assert back("rle", type, arrow_of(type, values)).to_pybytes() == content


def test_bits_after_the_last_row_are_zero() -> None:
    """The unused bits of a decoded bitmap are 0, because readers count the ones of whole bytes."""
    for values in ([True] * 12, [False, *[True] * 11]):
        array = arrow_of("bool", values)
        bitmap = decoded("rle", "bool", back("rle", "bool", array), array).buffers()[1]
        assert bitmap.to_pybytes()[-1] == 0x0F


@pytest.mark.parametrize(
    ("type", "content", "reason"),
    [
        ("int8", runs(1, 1, 0, b"\x05\x02"), "add up to 3 rows, found 2"),
        ("int8", runs(2, 1, 0, b"\x05\x06\x03\x00"), "a run of 0"),
        ("int8", runs(2, 1, 0, b"\x05\x06\x02\x02"), "add up to 3 rows, found 4"),
        ("int8", runs(2, 4, 0, b"\x05\x06\x04\x00\x00\x00\xff\xff\xff\xff"), "found 4294967299"),
        ("int8", runs(0, 1, 0, b""), "1 to 3 runs"),
        ("int8", runs(4, 1, 0, bytes(8)), "1 to 3 runs"),
        ("int8", runs(1, 3, 0, bytes(4)), "lengths in 3"),
        ("int8", runs(1, 0, 0, bytes(4)), "lengths in 0"),
        ("int8", runs(1, 1, 0, b"\x05"), "expected 10 bytes for 1 runs, found 9"),
        ("int8", runs(1, 1, 0, b""), "expected 10 bytes for 1 runs, found 8"),
        ("int8", runs(1, 1, 0, b"\x05\x03\x00"), "expected 10 bytes for 1 runs, found 11"),
        ("int8", runs(1, 1, 1, b"\x05\x03"), "first bool value"),
        ("bool", runs(1, 1, 2, b"\x03"), "first bool value"),
        ("int8", bytes(HEADER - 1), "a header of 8 bytes"),
    ],
)
def test_impossible_runs_are_refused(type: str, content: bytes, reason: str) -> None:
    """Runs with more or fewer rows than the block are refused before memory is allocated."""
    with pytest.raises(ValueError, match=reason):
        decoded("rle", type, content, arrow_of(type, [False] * 3 if type == "bool" else [0] * 3))


@given(
    values=st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=64, max_size=80),
    lengths=st.lists(st.integers(1, 300), min_size=80, max_size=80),
    is_sorted=st.booleans(),
    narrow=st.integers(0, 63),
)
def test_any_runs_come_back(values: list[int], lengths: list[int], is_sorted: bool, narrow: int) -> None:
    """Runs at the bounds of 64 bits, equal neighbours, and NULLs inside and at the ends of runs
    come back.
    """
    numbers = [value >> narrow for value in (sorted(values) if is_sorted else values)]
    rows = [number for number, length in zip(numbers, lengths, strict=False) for _ in range(length + 8)]
    back("rle", "int64", pa.array(rows, pa.int64()))
    rows[: len(rows) : 7] = [None] * len(rows[::7])
    back("rle", "int64", pa.array(rows, pa.int64()))


def test_a_block_needs_no_alignment_in_memory() -> None:
    """A block may begin at any address, although kernels need aligned numbers."""
    array = pa.array(np.repeat(np.arange(70), 3) << 40)
    data = back("rle", "int64", array).to_pybytes()
    for shift in range(1, 9):
        moved = pa.py_buffer(bytes(shift) + data).slice(shift)
        assert decoded("rle", "int64", moved, array).equals(array)
