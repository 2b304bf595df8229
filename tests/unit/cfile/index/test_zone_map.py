"""Zone maps: their bounds never exclude a value of the block."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.cfile.memory import TYPE_SPECS, make_values

from nyala.cfile.index.zone_map import Zone, ZoneMap, cut_lower, cut_upper, zone_of
from nyala.cfile.physical import physical
from nyala.schema.predicates.constraint import NULL_ONLY, Constraint
from nyala.schema.types import parse_type, to_canonical


def zone(type: str, array: pa.Array) -> Zone:
    form = physical(parse_type(type))
    return zone_of(form, form.stored_array(array))


def canonical(type: str, array: pa.Array) -> list[object]:
    """Return the values without NULLs, in the form that zones have."""
    if type in ("date", "timestamp"):
        array = array.view(pa.int32() if type == "date" else pa.int64())
    return [to_canonical(parse_type(type), value) for value in array.drop_null().to_pylist()]


@settings(max_examples=settings().max_examples)
@given(
    st.sampled_from(TYPE_SPECS),
    st.integers(0, 40),
    st.integers(0, 20),
    st.sampled_from([0.0, 0.4, 1.0]),
    st.integers(0, 5),
)
def test_bounds_hold_for_every_value(type: str, count: int, seed: int, null_share: float, skip: int) -> None:
    """Every value is within the bounds, so no block with a matching row is skipped."""
    array = make_values(type, count, seed, null_share).slice(skip)
    found = zone(type, array)
    numbers = [value for value in canonical(type, array) if value == value]
    assert (found.null_count, found.row_count) == (array.null_count, len(array))
    assert (found.min is None) == (not numbers)
    for number in numbers:
        assert found.min <= number  # type: ignore[operator]
        assert found.max is None or number <= found.max  # type: ignore[operator]
    form = physical(parse_type(type))
    blocks = np.array([found.row_count, 3], np.int64)
    other = Zone(None, None, 3, 3)
    decoded = ZoneMap.decode(form, ZoneMap.encode(form, [found, other]), blocks)
    assert [decoded.zone(0), decoded.zone(1)] == [found, other]
    assert decoded.column_zone() == found.merge(other) == other.merge(found)


@pytest.mark.parametrize("type", ["float", "double"])
def test_nan_is_flagged_and_not_in_the_bounds(type: str) -> None:
    """NaN sets a flag and does not change the bounds."""
    arrow = parse_type(type).arrow
    assert zone(type, pa.array([1.0, math.nan, 2.0], arrow)) == Zone(1.0, 2.0, 0, 3, has_nan=True)
    assert zone(type, pa.array([math.nan, None], arrow)) == Zone(None, None, 1, 2, has_nan=True)
    assert zone(type, pa.array([-math.inf, math.inf], arrow)) == Zone(-math.inf, math.inf, 0, 2)


@pytest.mark.parametrize(("type", "bits"), [("float", 0x7F800001), ("double", 0xFFF0000000000001)])
def test_a_signalling_nan_is_a_nan(type: str, bits: int) -> None:
    """A signalling NaN does not change the bounds. Arrow's own bounds would restart after each."""
    arrow = parse_type(type).arrow
    signalling = np.array([bits], np.uint32 if type == "float" else np.uint64).tobytes()
    for place in range(4):
        values = bytearray(np.array([5.0, 9.0, 1.0], arrow.to_pandas_dtype()).tobytes())
        values[place * len(signalling) : place * len(signalling)] = signalling
        array = pa.Array.from_buffers(arrow, 4, [None, pa.py_buffer(bytes(values))])
        assert zone(type, array) == Zone(1.0, 9.0, 0, 4, has_nan=True)
    alone = pa.Array.from_buffers(arrow, 1, [None, pa.py_buffer(signalling)])
    assert zone(type, alone) == Zone(None, None, 0, 1, has_nan=True)


@settings(max_examples=settings().max_examples)
@given(st.text(min_size=28, max_size=40), st.text(max_size=3))
def test_cut_text_bounds_hold(text: str, more: str) -> None:
    """Long texts are within bounds that were cut."""
    value = (text + more).encode()
    lower, upper = cut_lower(value, True), cut_upper(value, True)
    assert lower.decode() <= value.decode() and len(lower) <= 32
    assert upper is None or (value.decode() <= upper.decode() and len(upper) <= 33)
    assert upper is None or value <= upper, "the bound holds in the order of bytes too"


@settings(max_examples=settings().max_examples)
@given(st.binary(max_size=80))
def test_cut_binary_bounds_hold(value: bytes) -> None:
    """Long binary values, which need not be characters, are within bounds that were cut."""
    lower, upper = cut_lower(value, False), cut_upper(value, False)
    assert lower <= value and len(lower) <= 32
    assert upper is None or (value <= upper and len(upper) <= 32)


def test_bounds_at_the_ends_of_the_alphabet() -> None:
    """An upper bound is valid text and greater than its values, also at the end of the alphabet."""
    assert cut_upper(b"\xff" * 40, False) is None
    assert cut_upper(b"a" + b"\xff" * 40, False) == b"b"
    assert cut_upper(("\U0010ffff" * 20).encode(), True) is None
    assert cut_upper(("z" + "\U0010ffff" * 20).encode(), True) == b"{"
    assert cut_upper(("\ud7ff" * 20).encode(), True) == ("\ud7ff" * 9 + "\ue000").encode()
    assert cut_upper(b"short", True) == b"short"
    assert cut_lower("é".encode() * 20, True) == "é".encode() * 16
    assert cut_lower(b"x" + "é".encode() * 20, True) == b"x" + "é".encode() * 15
    found = zone("binary", pa.array([b"\xff" * 40, b"a"]))
    assert found == Zone(b"a", None, 0, 2, max_truncated=True)
    assert found.merge(Zone(b"b", b"c", 0, 1)).max is None


def test_an_empty_text_is_a_bound() -> None:
    """A block of empty texts has bounds; a block of NULLs has none."""
    found = zone("string", pa.array(["", "", None]))
    assert (found.min, found.max, found.null_count) == ("", "", 1)


def test_merging_keeps_the_wider_bound() -> None:
    """The bounds of a column include those of each block."""
    zones = [Zone(3, 9, 1, 4), Zone(None, None, 2, 2), Zone(-5, 4, 0, 3, has_nan=True)]
    merged = zones[0].merge(zones[1]).merge(zones[2])
    assert merged == Zone(-5, 9, 3, 9, has_nan=True)
    for left, right in (
        (Zone("b", "c", 0, 1), Zone("a", None, 0, 1)),
        (Zone("a", "c", 0, 1), Zone("b", None, 0, 1)),
    ):
        assert left.merge(right) == right.merge(left) == Zone("a", None, 0, 2), (
            "a missing upper bound stays missing"
        )
    cut = Zone("a", "zz", 0, 1, min_truncated=True).merge(Zone("b", "zzz", 0, 1, max_truncated=True))
    assert cut == Zone("a", "zzz", 0, 2, min_truncated=True, max_truncated=True)


def test_sliced_decimals() -> None:
    """The bounds of a slice are those of its own values."""
    for type in ("decimal(9,2)", "decimal(18,0)", "decimal(38,10)"):
        array = make_values(type, 50, null_share=0.3)
        for lower in range(0, 40, 7):
            part = array.slice(lower, 10)
            numbers = canonical(type, part)
            found = zone(type, part)
            assert (found.min, found.max) == (min(numbers), max(numbers))  # type: ignore[type-var]
            assert found.null_count == pc.sum(pc.is_null(part)).as_py()


@pytest.mark.parametrize("type", TYPE_SPECS)
def test_invalid_zone_maps_are_refused(type: str) -> None:
    """Invalid bytes raise CorruptionError, and never give wrong bounds."""
    form = physical(parse_type(type))
    data = ZoneMap.encode(form, [zone(type, make_values(type, 20)), zone(type, make_values(type, 20, 1))])
    rows = np.array([20, 20], np.int64)
    ZoneMap.decode(form, data, rows)
    for cut in range(len(data)):
        with pytest.raises(ValueError, match="expected"):
            ZoneMap.decode(form, data[:cut], rows)
    with pytest.raises(ValueError, match="expected"):
        ZoneMap.decode(form, data + b"\0", rows)
    with pytest.raises(ValueError, match="NULLs"):
        ZoneMap.decode(form, b"\x15" + data[1:], rows)
    with pytest.raises(ValueError, match="flags"):
        ZoneMap.decode(form, data[:8] + b"\x20" + data[9:], rows)


@settings(max_examples=settings().max_examples)
@given(st.sampled_from(TYPE_SPECS), st.data())
def test_blocks_are_excluded_together_as_one_by_one(type: str, data: st.DataObject) -> None:
    """Comparing all blocks with NumPy gives the same result as one at a time."""
    form = physical(parse_type(type))
    blocks = [
        make_values(
            type, data.draw(st.integers(1, 6)), seed, data.draw(st.sampled_from([0.0, 0.5, 1.0]))
        ).slice(data.draw(st.integers(0, 2)))
        for seed in range(data.draw(st.integers(1, 5)))
    ]
    blocks = [block for block in blocks if len(block)] or [make_values(type, 3)]
    zones = [zone_of(form, form.stored_array(block)) for block in blocks]
    rows = np.array([len(block) for block in blocks], np.int64)
    zone_map = ZoneMap.decode(form, ZoneMap.encode(form, zones), rows)
    known = [value for block in blocks for value in canonical(type, block)]
    value = st.sampled_from(known) if known else st.none()
    bounds = data.draw(st.tuples(value, value, st.booleans(), st.booleans()))
    constraint = data.draw(
        st.sampled_from(
            [
                Constraint.between(
                    form.type, bounds[0], bounds[1], lower_inclusive=bounds[2], upper_inclusive=bounds[3]
                ),
                Constraint.between(form.type, bounds[0], None, lower_inclusive=bounds[2]),
                Constraint.between(form.type, None, bounds[1], upper_inclusive=bounds[3]),
                Constraint.one_of([bound for bound in bounds[:2] if bound is not None]),
                Constraint(),
            ]
        )
    )
    not_null = constraint.intersect(Constraint(null="none"))
    for predicate in (constraint, constraint.union(NULL_ONLY), not_null, NULL_ONLY):
        expected = [
            predicate.excludes_range(zone.min, zone.max, zone.null_count, zone.row_count, zone.has_nan)
            for zone in zones
        ]
        assert zone_map.excluded(predicate).tolist() == expected, predicate
