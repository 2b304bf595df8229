"""ALP stores floats with few digits as integers, and others as exceptions; plain, if ALP is not smaller."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cfile.encoding.values import back, chosen, decoded, encoded

from nyala.cfile import format

RANDOM = np.random.default_rng(3)
N = 10_000
HEADER = format.ALP_HEADER.size


def doubles(values: Any) -> pa.Array:
    return pa.array(values, pa.float64())


def header_of(data: pa.Buffer) -> tuple[str, int, int]:
    """Return (kind of the floats, exponent, number of exceptions)."""
    floats, exponent, _, exceptions = format.ALP_HEADER.unpack_from(data)
    return format.ALP_LAYOUTS[floats], exponent, exceptions


def decimals(digits: int, spread: int = 5000) -> npt.NDArray[np.float64]:
    """Return the doubles nearest to random decimals with this number of digits."""
    return np.array([float(f"{number}e-{digits}") for number in RANDOM.integers(-spread, spread, N)])


@pytest.mark.parametrize("digits", [0, 1, 2, 3, 6, 9, 12])
def test_digits_take_the_bits_of_their_numbers(digits: int) -> None:
    """Values with three digits, such as 20.1, take the bits of three digits."""
    data = back("alp", "double", doubles(decimals(digits)))
    assert header_of(data) == ("decimals", digits, 0)
    assert data.size == HEADER + format.FOR_HEADER.size + 14 * N // 8


def test_floats_are_rounded_twice_as_when_they_were_read() -> None:
    """A float32 is rounded to float32 after the division, as when it was read."""
    data = back("alp", "float", pa.array((RANDOM.integers(0, 4000, N) / 100).astype(np.float32)))
    assert header_of(data) == ("decimals", 2, 0) and data.size < N * 13 // 8


def test_sums_of_decimals_are_exceptions() -> None:
    """0.1 + 0.2 is an exception, because no decimal of one digit gives this double."""
    values = np.full(N, 0.3)
    values[5] = 0.1 + 0.2
    assert header_of(back("alp", "double", doubles(values))) == ("decimals", 1, 1)


def test_values_that_are_no_decimals_are_exceptions() -> None:
    """The sign of zero and the bits of NaN come back, because these values are exceptions."""
    values = decimals(1)
    (other_nan,) = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0123))
    odd = [math.nan, other_nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308, float(1 << 53) * 4]
    values[100 : 100 + len(odd)] = odd
    values[[0, N - 1]] = -0.0
    assert header_of(back("alp", "double", doubles(values))) == ("decimals", 1, len(odd) + 2)


@pytest.mark.parametrize(
    ("odd", "share"), [(-9999.0, 0.001), (1e12, 0.01), (-1e12, 0.0001), (math.inf, 0.01)]
)
def test_outliers_are_exceptions(odd: float, share: float) -> None:
    """A single -9999, which often means "none", does not add bits to the other rows."""
    values = decimals(1)
    there = RANDOM.random(N) < share
    there[RANDOM.integers(0, N, 2)] = True
    values[there] = odd
    data = back("alp", "double", doubles(values))
    assert header_of(data) == ("decimals", 1, int(there.sum()))
    assert data.size < HEADER + format.FOR_HEADER.size + 14 * N // 8 + 12 * int(there.sum()) + 8


def test_rising_values_have_no_outliers() -> None:
    """A counter that grows ever faster has no outliers, although its end is far from its start."""
    values = np.round(np.exp(np.linspace(0, 8, N)), 2)
    assert header_of(back("alp", "double", doubles(values))) == ("decimals", 2, 0)


def test_nulls_are_no_exceptions() -> None:
    """NULLs do not become exceptions, so a column that is mostly NULL is small."""
    there = RANDOM.random(N) < 0.1
    array = pa.array(decimals(1), mask=~there)
    assert header_of(back("alp", "double", array)) == ("decimals", 1, 0)
    few = pa.array([None, math.nan, None, *decimals(2)[:500], None])
    assert header_of(back("alp", "double", few)) == ("decimals", 2, 1)


@pytest.mark.parametrize("kind", ["random", "walk", "half"])
def test_a_block_that_would_not_be_smaller_is_plain(kind: str) -> None:
    """If full digits make ALP larger than plain, the block is plain."""
    full = RANDOM.random(N)
    values = {
        "random": full,
        "walk": np.cumsum(full),
        "half": np.where(np.arange(N) % 8, full, np.round(full, 1)),
    }[kind]
    data = back("alp", "double", doubles(values))
    assert header_of(data) == ("plain", 0, 0) and data.size == HEADER + 8 * N


@pytest.mark.parametrize("period", [2, 4, 10, 16, 64, 100, 128, 1000])
def test_digits_that_the_probe_misses_are_handled(period: int) -> None:
    """The probe samples some rows.

    Rows with other digits become few exceptions, or the exponent fits them too.
    """
    whole = np.arange(N, dtype=np.float64)
    values = np.where(np.arange(N) % period, whole, whole + 0.25)
    _, exponent, exceptions = header_of(back("alp", "double", doubles(values)))
    assert exponent == 2 or exceptions <= N // 64
    values = np.where(np.arange(N) % period, whole + 0.25, whole)
    assert header_of(back("alp", "double", doubles(values))) == ("decimals", 2, 0)
    later = np.concatenate((whole, np.round(RANDOM.random(N), 3)))  # the probe sees both
    assert header_of(back("alp", "double", doubles(later))) == ("decimals", 3, 0)
    few = whole.copy()
    few[65 : 65 + N // 20] += 0.125  # between two sampled runs
    assert header_of(back("alp", "double", doubles(few)))[1] == 3


def test_each_block_has_its_own_exponent() -> None:
    """A column whose second half has more digits has few exceptions in both halves."""
    array = doubles(np.concatenate((decimals(1), decimals(4))))
    parts = [encoded("alp", "double", part) for part in (array.slice(0, N), array.slice(N))]
    assert [header_of(part)[1] for part in parts] == [1, 4]


@given(
    numbers=st.lists(st.integers(-(1 << 53), 1 << 53), min_size=1, max_size=60),
    exponent=st.integers(0, 25),
    others=st.lists(st.tuples(st.integers(0, 59), st.none() | st.floats()), max_size=6),
    kind=st.sampled_from(["float", "double"]),
)
def test_any_decimals_come_back(
    numbers: list[int], exponent: int, others: list[tuple[int, float | None]], kind: str
) -> None:
    """Values with any number of digits come back bit by bit."""
    values: list[float | None] = [float(f"{number}e-{exponent}") for number in numbers]
    for place, other in others:
        values[place % len(values)] = other
    if any(value is not None for value in values):
        with np.errstate(over="ignore"):
            typed = pa.array(
                np.array([v or 0.0 for v in values], kind.replace("float", "f4").replace("double", "f8"))
            )
        valid = pa.array([value is not None for value in values])
        back("alp", kind, pa.compute.if_else(valid, typed, None))


def test_auto_uses_alp_only_for_floats_with_few_digits() -> None:
    """`auto` chooses ALP for floats with few digits, and another encoding for others."""
    for array, expected in [
        (doubles(decimals(1)), "alp"),
        (doubles(np.where(RANDOM.random(N) < 0.02, math.nan, decimals(2))), "alp"),
        (doubles(RANDOM.random(N)), "plain"),
        (doubles(np.cumsum(RANDOM.random(N))), "bitshuffle"),
    ]:
        assert chosen("auto", "double", array) == expected


# -- bad input ---------------------------------------------------------------------------------------------


def block(floats: int, exponent: int, places: list[int], frame: bytes, count: int | None = None) -> bytes:
    head = format.ALP_HEADER.pack(floats, exponent, bytes(2), len(places) if count is None else count)
    return (
        head
        + b"".join(p.to_bytes(4, "little") for p in places).ljust(-(-len(places) // 2) * 8, b"\0")
        + (bytes(8 * len(places)) + frame)
    )


LINE = format.FOR_HEADER.pack(0, 1, 1, format.FOR_LINE, 0, bytes(6))  # the numbers 0, 1, 2 …


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "expected a header of 8 bytes, found 0"),
        (block(2, 0, [], LINE), "found the unknown layout 2,"),
        (block(0, 2, [], bytes(32)), "neither exponent nor exceptions in layout plain"),
        (block(1, 23, [], LINE), "exponent 23"),
        (block(1, 0, [], LINE, count=5), "at most 4 exceptions; .* and 5 exceptions"),
        (block(1, 0, [], LINE, count=4), "expected 4 exceptions and a frame, found"),
        (block(1, 0, [4], LINE), "positions of exceptions that ascend and are below 4"),
        (block(1, 0, [2, 2], LINE), "positions of exceptions that ascend and are below 4"),
        (block(1, 0, [3, 1], LINE), "positions of exceptions that ascend and are below 4"),
        (block(1, 0, [], LINE[:-1]), "expected a header of 32 bytes"),
        (block(1, 0, [], LINE + b"\0"), "expected 32 bytes for 4 values"),
        (block(0, 0, [], bytes(31)), "expected 4 values of 8 bytes, found 31 bytes"),
    ],
)
def test_invalid_bytes_are_refused(data: bytes, why: str) -> None:
    """Damage under a right CRC is refused, and no byte outside of the block is read."""
    with pytest.raises(ValueError, match=why):
        decoded("alp", "double", data, doubles([0.0] * 4))


def test_the_numbers_of_a_block_by_hand() -> None:
    """A block has exactly the bytes that were computed by hand."""
    values = doubles([0.0, 0.01, 0.02, 0.0])
    found = decoded("alp", "double", block(1, 2, [3], LINE), values)
    assert found.equals(values)
