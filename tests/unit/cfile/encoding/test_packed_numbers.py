"""Packed numbers: what comes back, how many bits they take, and bytes that are none."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nyala.cfile import format
from nyala.cfile.encoding.packed_numbers import pack_numbers, unpack_numbers

LEAST, GREATEST = -(1 << 63), (1 << 63) - 1
HEADER = format.PACKED_HEADER


def unpacked(data: bytes, count: int, least: int = LEAST, greatest: int = GREATEST) -> list[int]:
    numbers, end = unpack_numbers(pa.py_buffer(b"###" + data), 3, count, least, greatest)
    assert end == 3 + len(data) and numbers.dtype == np.int64
    return numbers.tolist()


def bits_of(numbers: np.ndarray) -> float:
    """Of one number."""
    return 8 * (len(pack_numbers(numbers)) - HEADER.size) / len(numbers)


@given(
    numbers=st.lists(st.integers(LEAST, GREATEST) | st.integers(-50, 50), min_size=1, max_size=200),
    is_sorted=st.booleans(),
)
@example(numbers=[LEAST, GREATEST], is_sorted=True)
@example(numbers=[GREATEST, LEAST], is_sorted=False)
@example(numbers=[LEAST, *[GREATEST] * 150], is_sorted=True)
@example(numbers=[5] * 100, is_sorted=True)
def test_any_numbers_come_back(numbers: list[int], is_sorted: bool) -> None:
    given_numbers = sorted(numbers) if is_sorted else numbers
    data = pack_numbers(np.array(given_numbers, np.int64))
    assert unpacked(data, len(numbers)) == given_numbers
    assert unpacked(data, len(numbers), min(numbers), max(numbers)) == given_numbers
    for least, greatest in ((min(numbers) + 1, GREATEST), (LEAST, max(numbers) - 1)):
        with pytest.raises(ValueError, match="expected numbers from"):
            unpacked(data, len(numbers), least, greatest)


def test_numbers_that_ascend_take_two_to_three_bits_more_than_their_distance() -> None:
    """The widest of ten thousand gaps is ten times the mean, and each would have as many bits."""
    rng = np.random.default_rng(1)
    for spread_bits, count in ((62, 10_000), (20, 10_000), (40, 100), (63, 3)):
        numbers = np.sort(rng.integers(0, 1 << spread_bits, count))
        distance_bits = np.log2((numbers[-1] - numbers[0]) / count)
        assert bits_of(numbers) <= distance_bits + 3 + 8 / count, (spread_bits, count)
    assert bits_of(np.arange(1000)) <= 2.1
    assert bits_of(np.sort(rng.integers(0, 500, 1000))) <= 1.6


def test_numbers_in_no_order_take_what_the_greatest_does() -> None:
    numbers = np.random.default_rng(1).permutation(np.arange(1000) * 5)
    assert bits_of(numbers) == 13
    assert bits_of(np.full(1000, -77)) == 0


def header(base: int, upper_length: int, bits: int) -> bytes:
    return HEADER.pack(base, upper_length, bits, bytes(3))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "a header of 16 bytes, found 0"),
        (header(0, 0, 0)[:-1], "a header of 16 bytes, found 15"),
        (header(0, 0, 65) + bytes(33), "at most 64 bits"),
        (header(0, 1, 64) + bytes(33), "found 64 bits with 1 bytes"),
        (header(0, 3, 0) + bytes(3), "with 2 bytes of upper ones, found 0 bits with 3 bytes"),
        (header(0, 0xFFFFFFFF, 0), "with 4294967295 bytes"),
        (header(0, 0, 8) + bytes(3), "expected 4 bytes for 4 numbers, found 3"),
        (header(0, 1, 8) + bytes(4), "expected 5 bytes for 4 numbers, found 4"),
        (header(0, 1, 0) + b"\x07", "the upper bits of 4 numbers above 0"),
        (header(0, 1, 0) + b"\x1f", "the upper bits of 4 numbers above 0"),
        (header(0, 1, 0) + b"\x00", "the upper bits of 4 numbers above 0"),
        (header(0, 1, 63) + bytes(32) + b"\xc3", "the upper bits of 4 numbers above 63"),
        (header(GREATEST, 0, 1) + b"\x08", "found some from 9223372036854775807 to 9223372036854775808"),
        (header(0, 1, 63) + bytes(32) + b"\x17", "found some from 0 to 9223372036854775808"),
        (header(LEAST, 0, 64) + b"\xff" * 24 + bytes(8), ""),
    ],
)
def test_bytes_that_are_no_numbers_are_refused(data: bytes, reason: str) -> None:
    """Memory that nobody has would be asked for, or a sum of more than 64 bits be another number."""
    if not reason:  # as far as 64 bits reach
        assert unpacked(data, 4) == [GREATEST] * 3 + [LEAST]
        return
    with pytest.raises(ValueError, match=reason):
        unpacked(data, 4)
