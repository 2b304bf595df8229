"""Frame of reference: its layouts (`test_number_table` has one more), its planes, and the sums that it refuses."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cfile.encoding.values import arrow_of, back, decoded, encoded, int64

from nyala.cfile import format
from nyala.cfile.encoding.packed_numbers import pack_numbers
from nyala.cfile.planes import pack_planes, planes_size, unpack_planes

HEADER = format.FOR_HEADER.size


def header_of(data: pa.Buffer) -> dict[str, int]:
    names = [name for name, _, _ in format.FOR_HEADER.fields]
    return dict(zip(names, format.FOR_HEADER.unpack_from(data), strict=True))


def frame(base: int, step: int, layout: int, bits: int, references: int = 0, unit: int = 1) -> bytes:
    return format.FOR_HEADER.pack(base, step, unit, layout, bits, references, bytes(4))


def words(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "little", signed=True) for number in numbers)


# -- planes ------------------------------------------------------------------------------------------------


def test_planes_as_the_page_draws_them() -> None:
    """The layout on disk would change, and files of yesterday read as other numbers."""
    deltas = np.array([0x123, 0x456, 0x789, 0xABC, 0xDEF], np.uint16)
    assert pack_planes(deltas, 12).hex() == "235689bcef" + "a1d407"
    # Nine values of one bit: two bytes, the first with values 0, 2, 4, 6, 8, the second with 1, 3, 5, 7.
    assert pack_planes(np.array([1, 0, 0, 1, 1, 0, 0, 0, 1], np.uint8), 1).hex() == "1502"
    assert pack_planes(np.array([3, 2, 1], np.uint8), 2).hex() == "1b"


@pytest.mark.parametrize("bits", range(65))
@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 100])
def test_every_number_of_bits(bits: int, count: int) -> None:
    """Numbers of one width would come back as others."""
    top = (1 << bits) - 1
    some = np.random.default_rng(bits).integers(0, top, count, np.uint64, endpoint=True)
    some[0] = top
    data = pack_planes(some, bits)
    assert len(data) == planes_size(bits, count) <= -(-count * bits // 8) + 3
    assert np.array_equal(unpack_planes(pa.py_buffer(b"##" + data), 2, bits, count), some)


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
    """Rowids would take bytes each, or the greatest range would wrap around."""
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
    """Whole seconds and whole amounts would take the bits of microseconds and cents."""
    header = header_of(back("for", type, arrow_of(type, values)))
    assert (header["unit"], header["bits"]) == (unit, bits)


def test_one_value_that_the_probe_does_not_see_ends_a_unit() -> None:
    """A value between would be rounded to the unit."""
    values = np.random.default_rng(0).integers(0, 1000, 5000) * 100
    assert header_of(back("for", "int64", int64(values)))["unit"] == 100
    values[4321] += 1
    assert header_of(back("for", "int64", int64(values)))["unit"] == 1


def test_a_table_of_few_values_far_apart() -> None:
    """Timestamps of four batches would take 32 bits and more each."""
    values = np.array([1 << 60, 5, -(1 << 60), 8])[np.random.default_rng(0).integers(0, 4, 1000)]
    data = back("for", "int64", int64(values))
    header = header_of(data)
    assert (header["layout"], header["reference count"], header["bits"]) == (format.FOR_TABLE, 4, 2)
    assert data.size == HEADER + 4 * 8 + 250
    references = np.frombuffer(data, "<i8", 4, HEADER)
    assert (np.diff(references) > 0).all(), "ascending, as the page says"
    many = np.random.default_rng(0).permutation(np.arange(257) << 50).repeat(4) + np.arange(1028) % 2
    assert header_of(back("for", "int64", int64(many)))["layout"] != format.FOR_TABLE
    near = np.random.default_rng(0).integers(0, 8, 1000)
    assert header_of(back("for", "int64", int64(near)))["layout"] == format.FOR_LINE, "a look-up costs more"


def test_a_table_that_is_a_quarter_smaller_than_a_line() -> None:
    """Quantities 1, 2, 3, 5 and 10 took four bits, in Parquet three."""
    few = np.array([1, 2, 3, 5, 10])[np.random.default_rng(1).integers(0, 5, 1 << 16)]
    header = header_of(back("for", "int32", pa.array(few, pa.int32())))
    assert (header["layout"], header["bits"]) == (format.FOR_TABLE, 3)
    more = np.random.default_rng(1).integers(0, 14, 1 << 16)
    assert header_of(back("for", "int32", pa.array(more, pa.int32())))["layout"] == format.FOR_LINE


def test_wide_decimals_are_wide_only_in_their_blocks() -> None:
    """One sum of 30 digits would take 16 bytes for every row of the column."""
    small, large = arrow_of("decimal(38,2)", [1, -2, 3]), arrow_of("decimal(38,2)", [1 << 63, 1, 2])
    assert header_of(back("for", "decimal(38,2)", small))["layout"] == format.FOR_LINE
    assert header_of(back("for", "decimal(38,2)", large))["layout"] == format.FOR_WIDE
    edges = arrow_of("decimal(38,2)", [(1 << 63) - 1, -(1 << 63), None])
    assert header_of(back("for", "decimal(38,2)", edges))["layout"] != format.FOR_WIDE


def test_what_lies_under_a_null_does_not_make_a_block_wide() -> None:
    """Arrow leaves anything there: a value that was computed and then found to be NULL."""
    words = np.array([[5, 0], [7, 7], [6, 0]], "<i8")
    type = pa.decimal128(38, 2)
    hidden = pa.Array.from_buffers(type, 3, [pa.py_buffer(b"\x05"), pa.py_buffer(words)], 1)
    header = header_of(back("for", "decimal(38,2)", hidden))
    assert (header["layout"], header["bits"]) == (format.FOR_LINE, 1)


def test_a_line_stays_within_its_type() -> None:
    """The line's own end may lie beyond int8, where no value does; a decoder cannot tell that from nonsense."""
    header = header_of(back("for", "int8", arrow_of("int8", [0, 40, 80, 120, 120, 127])))
    assert header["step"] == 0


def test_nulls_cost_no_bits() -> None:
    """A zero under every NULL would make the range of days begin in 1970."""
    days = [10_000, None, 10_003, None, 10_001] * 10
    header = header_of(back("for", "date", arrow_of("date", days)))
    assert (header["base"], header["bits"]) == (10_000, 2)


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 62), 1 << 62), st.integers(1, 50))
def test_any_line_comes_back(first: int, step: int, rows: int) -> None:
    """A sum would pass 64 bits and come back with the other sign."""
    line = [first + step * place for place in range(rows)]
    back("for", "int64", int64([value for value in line if -(1 << 63) <= value < 1 << 63] or [0]))


@pytest.mark.parametrize(
    ("name", "type", "step", "references", "bits"),
    [
        ("order numbers with gaps", "int64", (0, 1, 25), 3, 2),
        ("and backwards", "int32", (0, -1, -25), 3, 2),
        ("every minute, or a little later", "int64", range(60, 64), 0, 2),
        ("whole seconds", "int64", range(60_000_000, 63_000_000, 1_000_000), 0, 2),
        ("up or down", "date", (-1, 1), 0, 1),
        ("prices that fall below zero", "decimal(9,2)", (-300, 5, 100), 3, 2),
        ("debts that are paid", "decimal(9,2)", (0, 5, 100), 3, 2),
    ],
)
def test_steps(name: str, type: str, step: tuple[int, ...], references: int, bits: int) -> None:
    """Keys with gaps would take the bits of their whole range, or Blosc's time: they are most of what is sorted."""
    rng = np.random.default_rng(1)
    for rows in (2, 3, 2047, 2048, 2049, 5000):
        values = rng.choice(np.array(step), rows).cumsum() + (40_000 if min(step) < 0 else -40_000)
        if rows > 100:
            header = header_of(back("for", type, arrow_of(type, values.tolist())))
            assert header["layout"] == format.FOR_STEPS, name
            assert (header["reference count"], header["bits"]) == (references, bits), name
        else:
            back("for", type, arrow_of(type, values.tolist()))


def test_steps_are_not_for_what_a_line_or_a_table_has_nearly_as_small() -> None:
    """Sums wait for one another: what is unsorted would be read at a third of the speed."""
    rng = np.random.default_rng(1)
    for values, layout in (
        (rng.integers(0, 1 << 20, 5000), format.FOR_LINE),
        (rng.integers(0, 3, 5000).cumsum(), format.FOR_STEPS),
        (rng.integers(0, 1000, 5000).cumsum(), format.FOR_LINE),
        (np.array([5, 1 << 40, -(1 << 50)])[rng.integers(0, 3, 5000)], format.FOR_TABLE),
        (np.array([-(1 << 62), 1 << 62] * 2500), format.FOR_LINE),
    ):
        assert header_of(back("for", "int64", int64(values)))["layout"] == layout
    some_null = [None if n % 7 == 0 else n + n // 8 * 17 for n in range(5000)]
    assert header_of(back("for", "int64", arrow_of("int64", some_null)))["layout"] == format.FOR_LINE


def test_a_tile_may_begin_anywhere() -> None:
    """What lies between two tiles is no step: it would cost all others its bits, or be refused for leaving the type."""
    jumps = np.arange(5000) + np.arange(5000) // format.FOR_TILE_ROWS * (1 << 40) + np.arange(5000) % 2 * 3
    header = header_of(back("for", "int64", int64(jumps)))
    assert (header["layout"], header["bits"]) == (format.FOR_STEPS, 1)
    deltas = np.zeros(format.FOR_TILE_ROWS + 3, np.uint8)
    deltas[1:100] = 1
    anchors = (-(1 << 63), (1 << 63) - 1)
    content = frame(0, 0, 3, 1) + words(*anchors) + pack_planes(deltas, 1)
    expected = int64([-(1 << 63) + min(n, 99) for n in range(format.FOR_TILE_ROWS)] + [anchors[1]] * 3)
    assert decoded("for", "int64", content, expected).equals(expected)


@given(
    first=st.integers(-(1 << 63), (1 << 63) - 1),
    kinds=st.lists(st.integers(-(1 << 50), 1 << 50) | st.integers(-9, 9), min_size=1, max_size=4),
    rows=st.sampled_from((2, 9, 2047, 2048, 2049, 4101)),
    seed=st.integers(0, 1 << 32),
)
def test_any_steps_come_back(first: int, kinds: list[int], rows: int, seed: int) -> None:
    """A sum would pass 64 bits, or a tile begin where another ends."""
    chosen = np.random.default_rng(seed).choice(np.array(kinds, object), rows)
    values = [value for value in itertools.accumulate(chosen, initial=first) if -(1 << 63) <= value < 1 << 63]
    back("for", "int64", int64([int(value) for value in values]))


@pytest.mark.parametrize("type", ["int64", "timestamp", "decimal(38,2)"])
def test_steps_whose_deltas_have_room_beyond_64_bits(type: str) -> None:
    """What was written would be refused as what no encoder writes: no step takes the room that its bits have."""
    unit = (1 << 61) - 1000
    places = [0, 2, 0, 1, 1, 0, 2, 0, 1, 2, 0, 0, 1, 0, 2, 0] * 3
    values = [place * unit + row for row, place in enumerate(places)]
    header = header_of(back("for", type, arrow_of(type, values)))
    assert (header["layout"], header["bits"]) == (format.FOR_STEPS, 3)
    assert header["step"] + 7 * header["unit"] > 1 << 63


@given(
    places=st.lists(st.integers(0, 9), min_size=2, max_size=60),
    distance=st.integers(1 << 55, (1 << 62) - 1),
    slope=st.integers(-9, 9),
)
def test_jumps_as_far_as_64_bits_allow_come_back(places: list[int], distance: int, slope: int) -> None:
    """The same by chance, also past the limits of steps."""
    values = [place * distance + slope * row for row, place in enumerate(places)]
    back("for", "int64", int64([value for value in values if abs(value) < 1 << 63] or [0]))


def test_a_sum_beyond_the_type_is_found_where_steps_have_more_room_than_they_take() -> None:
    """The bounds of steps say that they may leave the type; whether they do, only the sums tell."""
    steps = [(0, 3)[n % 3 == 0] for n in range(5000)]
    values = np.cumsum([(1 << 63) - 1 - sum(steps[1:]), *steps[1:]], dtype=np.int64)
    data = back("for", "int64", int64(values))
    assert header_of(data)["layout"] == format.FOR_STEPS
    content = bytearray(data.to_pybytes())
    at = (
        HEADER + 8 * header_of(data)["reference count"] + 16
    )  # the third tile's first value: one more is too many
    content[at : at + 8] = words(int.from_bytes(content[at : at + 8], "little", signed=True) + 1)
    with pytest.raises(ValueError, match="that leave them"):
        decoded("for", "int64", bytes(content), int64(values))


# -- what no encoder writes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type", "content", "reason"),
    [
        ("int8", frame(100, 0, 0, 8) + b"\x00\xff", "deltas up to 255"),
        ("int8", frame(128, 0, 0, 0), "expected values of int8"),
        ("int8", frame(0, 0, 0, 1, unit=128) + b"\x03", "deltas up to 128"),
        ("int64", frame(0, 1, 0, 64, unit=(1 << 64) - 1) + b"\xff" * 16, "deltas up to"),
        ("int64", frame(0, 0, 0, 1, unit=0) + b"\x03", "a unit of 1 or more"),
        ("int64", frame((1 << 63) - 1, 1, 0, 0), "with step 1"),
        ("int64", frame(-(1 << 63), -1, 0, 0), "with step -1"),
        ("decimal(3,0)", frame(999, 0, 0, 1) + b"\x02", "expected values of decimal"),
        ("int64", frame(0, 0, 0, 65) + bytes(17), "65 bits"),
        ("int64", frame(0, 0, 0, 128), "128 bits"),
        ("int64", frame(0, 0, 4, 0), "a table in the column's footer, found none"),
        ("int64", frame(0, 0, 6, 0), "layout 6"),
        ("int64", frame(0, 0, 5, 0) + pack_numbers(np.array([3, 5]))[:-1], "bytes for 2 numbers"),
        ("int64", frame(0, 0, 5, 0) + pack_numbers(np.array([3, 5])) + b"\0", "bytes for 2 numbers, found"),
        ("int32", frame(0, 0, 5, 0) + pack_numbers(np.array([3, 5])), "layout 5"),
        ("int64", frame(0, 0, 2, 0) + bytes(32), "layout 2"),
        ("int64", frame(0, 0, 0, 1, 1) + bytes(9), "no references beside a line"),
        ("int64", frame(0, 0, 1, 0, 0), "references in a table, found none"),
        ("int64", frame(0, 0, 1, 1, 1) + bytes(8) + b"\x02", "references below 1, found 1"),
        (
            "int64",
            frame(0, 0, 1, 16, 2) + bytes(16) + bytes(4),
            "references of at most 15 bits in a table, found 16",
        ),
        ("int8", frame(0, 0, 1, 0, 1) + (200).to_bytes(8, "little"), "references of int8"),
        ("int64", frame(0, 0, 1, 0, 32_769) + bytes(8 * 32_769), "32769 references"),
        ("int64", frame(0, 0, 0, 8) + b"\x00", "for 2 values of 8 bits"),
        ("int64", frame(0, 0, 0, 8) + bytes(3), "for 2 values of 8 bits"),
        ("int64", frame(0, 1, 3, 0), "for 2 values of 0 bits"),
        ("int64", frame(0, 1, 3, 0) + words(5) + b"\0", "for 2 values of 0 bits"),
        ("int64", frame(0, 0, 3, 33) + words(0) + bytes(9), "steps of at most 32 bits .*found 33 bits"),
        ("int64", frame(0, 0, 3, 1, unit=0) + words(0) + b"\0", "a unit of 1 or more"),
        ("int64", frame(0, 0, 3, 1, 1) + words(3, 0) + b"\2", "references below 1, found 1"),
        ("int64", frame(0, (1 << 63) - 1, 3, 1, unit=2) + words(0) + b"\2", "steps of 64 bits"),
        ("int64", frame(0, 1, 3, 0) + words((1 << 63) - 1), "steps of 1 to 1 that leave them"),
        ("int64", frame(0, -1, 3, 0) + words(-(1 << 63)), "steps of -1 to -1 that leave them"),
        ("int64", frame(0, 0, 3, 0, 1) + words(1 << 62, 1 << 62), "that leave them"),
        ("int8", frame(0, 100, 3, 0) + words(100), "values of int8, found steps"),
        ("int8", frame(0, 0, 3, 0) + words(200), "values of int8, found steps"),
        ("decimal(3,0)", frame(0, 0, 3, 2) + words(998) + b"\x08", "values of decimal"),
        ("int64", bytes(HEADER - 1), "a header of 32 bytes"),
        ("decimal(38,0)", frame(0, 0, 2, 0) + bytes(31), "2 values of 16 bytes"),
    ],
)
def test_frames_that_cannot_be_are_refused(type: str, content: bytes, reason: str) -> None:
    """A wrong number would come out, without a word."""
    with pytest.raises(ValueError, match=reason):
        decoded("for", type, content, arrow_of(type, [0, 0]))


def test_a_unit_beyond_the_type_without_any_delta_is_harmless() -> None:
    """It makes no value other; NumPy must not be asked to fit it into eight bits."""
    fives = arrow_of("int8", [5, 5])
    assert decoded("for", "int8", frame(5, 0, 0, 1, unit=1 << 40) + b"\x00", fives).equals(fives)


def test_a_line_over_the_whole_range_of_64_bits() -> None:
    """Positions times step would wrap around."""
    back("for", "int64", int64([-(1 << 63) + place * (1 << 58) + place % 2 for place in range(64)]))


def test_room_that_is_not_used_is_no_fault() -> None:
    """120 to 127 of int8 have three bits, which reach 127; five values of 121 to 126 have room for 128."""
    back("for", "int8", arrow_of("int8", [121, 126, 123]))
    assert header_of(encoded("for", "int8", arrow_of("int8", [121, 126, 123])))["bits"] == 3
