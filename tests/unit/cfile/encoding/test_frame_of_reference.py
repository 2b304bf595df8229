"""Frame of reference: its layouts, its planes, and the frames that a reader refuses."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cfile.encoding.values import arrow_of, back, decoded, encoded, int64

from nyala.cfile import format
from nyala.cfile.bit_packing import pack_bits

HEADER = format.FOR_HEADER.size


def header_of(data: pa.Buffer) -> dict[str, int]:
    names = [name for name, _, _ in format.FOR_HEADER.fields]
    return dict(zip(names, format.FOR_HEADER.unpack_from(data), strict=True))


def frame(base: int, step: int, layout: int, bits: int, unit: int = 1) -> bytes:
    return format.FOR_HEADER.pack(base, step, unit, layout, bits, bytes(6))


# -- planes ------------------------------------------------------------------------------------------------


def test_planes_are_those_of_the_page() -> None:
    """The layout of planes is the one that docs/format/cfile.md draws."""
    deltas = np.array([0x123, 0x456, 0x789, 0xABC, 0xDEF], np.uint16)
    assert pack_bits(deltas, 12).hex() == "235689bcef" + "a1d407"
    # Nine values of one bit: two bytes, the first with values 0, 2, 4, 6, 8, the second with 1, 3, 5, 7.
    assert pack_bits(np.array([1, 0, 0, 1, 1, 0, 0, 0, 1], np.uint8), 1).hex() == "1502"
    assert pack_bits(np.array([3, 2, 1], np.uint8), 2).hex() == "1b"


# -- layouts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "base", "step", "bits"),
    [
        ([5], 5, 0, 0),
        ([5, 5, 5, 5], 5, 0, 0),
        ([0, 1, 2, 3], 0, 1, 0),
        ([9, 6, 3, 0], 9, -3, 0),
        ([100, 103, 101], 100, 0, 2),
        ([-(1 << 63), (1 << 63) - 1, -(1 << 63) + 1], -(1 << 63), 0, 64),
        ([10, 1000, 2010, 3013], -1, 1001, 4),
        ([-(1 << 63), (1 << 63) - 1], -(1 << 63), 0, 1),
        ([(1 << 63) - 1, -(1 << 63)], -(1 << 63), 0, 1),
    ],
)
def test_lines(values: list[int], base: int, step: int, bits: int) -> None:
    """Rowids on a line take almost no bits, also over the greatest range."""
    header = header_of(back("for", "int64", int64(values)))
    assert (header["layout"], header["step"], header["bits"]) == (format.FOR_LINE, step, bits)
    assert header["base"] == base


@pytest.mark.parametrize(
    ("type", "values", "unit", "bits"),
    [
        ("int64", [1_000_000, 7_000_000, 3_000_000, 1_000_000], 2_000_000, 2),
        (
            "timestamp",
            [1_700_000_000_000_000 + second * 1_000_000 for second in (0, 3599, 7, 1800)],
            1_000_000,
            12,
        ),
        ("decimal(15,2)", [100, 5000, 200, 100], 100, 6),
        ("int64", [-(1 << 63), 0, 1 << 62], 1 << 62, 1),
        ("int8", [-128, 127, -128], 255, 1),
        ("int64", [5, 5, 1 << 40, None, 5], (1 << 40) - 5, 1),
        ("int64", [0, 1000, 2010, 3000], 10, 1),
        ("int64", [0, 7, 14, 22], 1, 1),
    ],
)
def test_units(type: str, values: list[object], unit: int, bits: int) -> None:
    """Whole seconds and whole amounts do not take the bits of microseconds and cents."""
    header = header_of(back("for", type, arrow_of(type, values)))
    assert (header["unit"], header["bits"]) == (unit, bits)


def test_one_value_between_units_ends_the_unit() -> None:
    """A single value that is no multiple of the unit comes back, although the probe misses it."""
    values = np.random.default_rng(0).integers(0, 1000, 5000) * 100
    assert header_of(back("for", "int64", int64(values)))["unit"] == 100
    values[4321] += 1
    assert header_of(back("for", "int64", int64(values)))["unit"] == 1


def test_one_large_decimal_widens_only_its_block() -> None:
    """A sum of 30 digits does not make every row of the column take 16 bytes."""
    small, large = arrow_of("decimal(38,2)", [1, -2, 3]), arrow_of("decimal(38,2)", [1 << 63, 1, 2])
    assert header_of(back("for", "decimal(38,2)", small))["layout"] == format.FOR_LINE
    assert header_of(back("for", "decimal(38,2)", large))["layout"] == format.FOR_WIDE
    edges = arrow_of("decimal(38,2)", [(1 << 63) - 1, -(1 << 63), None])
    assert header_of(back("for", "decimal(38,2)", edges))["layout"] != format.FOR_WIDE


def test_values_under_nulls_add_no_bits() -> None:
    """Values under NULLs, which Arrow leaves undefined, add no bits."""
    words = np.array([[5, 0], [7, 7], [9, 0]], "<i8")
    type = pa.decimal128(38, 2)
    hidden = pa.Array.from_buffers(type, 3, [pa.py_buffer(b"\x05"), pa.py_buffer(words)], 1)
    header = header_of(back("for", "decimal(38,2)", hidden))
    assert (header["layout"], header["bits"]) == (format.FOR_LINE, 0)


def test_a_line_stays_within_its_type() -> None:
    """No value of a line exceeds its type, even if the line would exceed it at the block's end."""
    header = header_of(back("for", "int8", arrow_of("int8", [0, 40, 80, 120, 120, 127])))
    assert header["step"] == 0


def test_nulls_cost_no_bits() -> None:
    """NULLs do not extend a range of days to 1970."""
    days = [10_000, None, 10_003, None, 10_001] * 10
    header = header_of(back("for", "date", arrow_of("date", days)))
    assert (header["base"], header["bits"]) == (10_000, 2)


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 62), 1 << 62), st.integers(1, 50))
def test_any_line_comes_back(first: int, step: int, rows: int) -> None:
    """Sums that pass 64 bits come back with the right sign."""
    line = [first + step * place for place in range(rows)]
    back("for", "int64", int64([value for value in line if -(1 << 63) <= value < 1 << 63] or [0]))


@given(
    places=st.lists(st.integers(0, 9), min_size=2, max_size=60),
    distance=st.integers(1 << 55, (1 << 62) - 1),
    slope=st.integers(-9, 9),
)
def test_jumps_as_far_as_64_bits_allow_come_back(places: list[int], distance: int, slope: int) -> None:
    """Values that jump by up to 64 bits come back."""
    values = [place * distance + slope * row for row, place in enumerate(places)]
    back("for", "int64", int64([value for value in values if abs(value) < 1 << 63] or [0]))


# -- what no encoder writes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type", "content", "reason"),
    [
        ("int8", frame(100, 0, 0, 8) + b"\x00\xff", "deltas up to 255"),
        ("int8", frame(128, 0, 0, 0), "expected values of int8"),
        ("int8", frame(0, 0, 0, 1, unit=128) + b"\x03", "deltas up to 128"),
        ("int64", frame(0, 1, 0, 64, unit=(1 << 64) - 1) + b"\xff" * 16, "deltas up to"),
        ("int64", frame(0, 0, 0, 1, unit=0) + b"\x03", "a unit of 1 or more"),
        ("int64", frame((1 << 63) - 1, 1, 0, 0), "step 1 and"),
        ("int64", frame(-(1 << 63), -1, 0, 0), "step -1 and"),
        ("decimal(3,0)", frame(999, 0, 0, 1) + b"\x02", "expected values of decimal"),
        ("int64", frame(0, 0, 0, 65) + bytes(17), "65 bits"),
        ("int64", frame(0, 0, 0, 128), "128 bits"),
        ("int64", frame(0, 0, 2, 0), "layout number 2"),
        ("int64", frame(0, 0, 1, 0) + bytes(32), "layout number 1"),
        ("int64", frame(0, 0, 0, 8) + b"\x00", "for 2 values of 8 bits"),
        ("int64", frame(0, 0, 0, 8) + bytes(3), "for 2 values of 8 bits"),
        ("int64", bytes(HEADER - 1), "a header of 32 bytes"),
        ("decimal(38,0)", frame(0, 0, 1, 0) + bytes(31), "2 values of 16 bytes"),
    ],
)
def test_impossible_frames_are_refused(type: str, content: bytes, reason: str) -> None:
    """A frame that no encoder writes is refused, and gives no wrong numbers."""
    with pytest.raises(ValueError, match=reason):
        decoded("for", type, content, arrow_of(type, [0, 0]))


def test_a_unit_beyond_the_type_without_any_delta_is_harmless() -> None:
    """A unit beyond the type is accepted if all deltas are 0, and does not overflow in NumPy."""
    fives = arrow_of("int8", [5, 5])
    assert decoded("for", "int8", frame(5, 0, 0, 1, unit=1 << 40) + b"\x00", fives).equals(fives)


def test_a_line_over_the_whole_range_of_64_bits() -> None:
    """Position times step does not wrap around."""
    back("for", "int64", int64([-(1 << 63) + place * (1 << 58) + place % 2 for place in range(64)]))


def test_unused_range_of_a_delta_is_accepted() -> None:
    """Deltas may have a range that exceeds the type's: 121 to 126 of int8 need three bits, up to
    128.
    """
    back("for", "int8", arrow_of("int8", [121, 126, 123]))
    assert header_of(encoded("for", "int8", arrow_of("int8", [121, 126, 123])))["bits"] == 3
