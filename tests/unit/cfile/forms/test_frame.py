"""Frames: filter and gather without decoding the block."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cfile.encoding.values import blocks, encoded, form_of, int64

from nyala.cfile.forms.frame import Frame
from nyala.cfile.forms.frame_block import FrameBlock
from nyala.cfile.forms.number_set import NOTHING, NumberSet
from nyala.schema.predicates.constraint import ANY, EMPTY, Constraint
from nyala.schema.types import parse_type

TYPES = ("int8", "int16", "int32", "int64", "date", "timestamp", "decimal(5,2)", "decimal(15,2)")


def frame_of(type: str, array: pa.Array) -> Frame:
    return Frame.parse(form_of(type), encoded("for", type, array), len(array))


def canonical(type: str, array: pa.Array) -> list[int]:
    return [int(value) for value in form_of(type).stored_array(array).to_pylist()]


def check_matches(frame: Frame, values: list[int], constraint: Constraint) -> None:
    numbers = NumberSet.of(constraint)
    expected = [constraint.admits(value) for value in values]
    assert frame.matches(numbers, 0, len(values)).tolist() == expected, str(constraint)
    half = len(values) // 2
    assert frame.matches(numbers, half, len(values)).tolist() == expected[half:], str(constraint)


def gathered(frame: Frame, rows: npt.NDArray[np.int64]) -> pa.Array:
    return FrameBlock(frame, frame.form, frame.form).gather(rows, frame.form.arrow)


@pytest.mark.parametrize("type", TYPES)
@given(data=st.data())
def test_frames_filter_and_gather_as_their_values(type: str, data: st.DataObject) -> None:
    """A frame filters and gathers the same rows as its decoded values."""
    array = data.draw(blocks(type)).drop_null()
    values, column = canonical(type, array), parse_type(type)
    frame = frame_of(type, array)
    rows = data.draw(st.lists(st.integers(0, len(array) - 1), max_size=20))
    picked = gathered(frame, np.array(rows, np.int64))
    picked.validate(full=True)
    assert picked.equals(array.take(pa.array(rows, pa.int64())))
    near = st.sampled_from(values).flatmap(lambda value: st.integers(value - 3, value + 3))
    bound = near.filter(lambda value: column.value_min <= value <= column.value_max)
    ends = [data.draw(st.none() | bound) for _ in range(2)]
    check_matches(frame, values, Constraint.between(column, *ends))
    check_matches(frame, values, Constraint.one_of(data.draw(st.lists(bound, min_size=1, max_size=8))))


@pytest.mark.parametrize(
    ("values", "layout"),
    [
        ([100, 103, 101, 100], "line"),
        ([10, 1000, 2010, 3013], "line with step"),
        ([1 << 60, 5, -(1 << 60), 8] * 100, "few values far apart"),
        ([7, 7, 7], "one value"),
        ([0, 5000, 100], "unit"),
        ([-(1 << 63), (1 << 63) - 1], "64 bits"),
        ([n**9 % (1 << 40) for n in range(40)], "too many deltas for a table of them"),
    ],
)
def test_every_layout_filters_and_gathers(values: list[int], layout: str) -> None:
    """Layouts that random columns seldom have filter and gather as their values."""
    frame = frame_of("int64", int64(values))
    for value in (*values, 101, 50, 0):
        for constraint in (
            Constraint.between(parse_type("int64"), value, None),
            Constraint.between(parse_type("int64"), None, value),
            Constraint.between(parse_type("int64"), value, value + 1 if value < 1 << 62 else value),
            Constraint.one_of([value]),
            Constraint.one_of([value, 5, 7, 11, 100]),
            ANY,
            EMPTY,
        ):
            check_matches(frame, values, constraint)
    assert frame.matches(NOTHING, 0, len(values)).tolist() == [False] * len(values), layout
    rows = np.array([len(values) - 1, 0, 1])
    assert gathered(frame, rows).to_pylist() == [values[row] for row in rows.tolist()]


@pytest.mark.parametrize("values", [[1 << 60, 5, -(1 << 60)] * 100, [3, 9, 4]])
def test_a_frame_with_its_own_bytes_is_equal(values: list[int]) -> None:
    """A frame in the cache has its own copy of the bytes, and the same values."""
    array = int64(values)
    data = encoded("for", "int64", array)
    around = pa.py_buffer(b"#" * 16 + data.to_pybytes())
    frame = Frame.parse(form_of("int64"), around.slice(16), len(values))
    own = frame.owning()
    assert gathered(own, np.arange(len(values))).equals(array)
    assert not around.address <= own.data.address < around.address + around.size
    assert own.nbytes >= data.size
