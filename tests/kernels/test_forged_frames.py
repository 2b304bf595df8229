"""Forged frames are refused, or read as the format defines, by each version of the kernels.

The definition is computed here with Python's integers, which do not overflow. Each forged frame has
a right CRC, so only the checks of frames can detect it.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.cfile.encoding.values import form_of

import nyala.cfile.kernels
from nyala.cfile import format
from nyala.cfile.bit_packing import delta_dtype, pack_bits
from nyala.cfile.forms.frame import Frame, value_bounds
from nyala.cfile.forms.frame_block import FrameBlock
from nyala.cfile.forms.number_set import NumberSet
from nyala.cfile.physical import narrowest
from nyala.schema.predicates.constraint import Constraint

TYPES = ("int8", "int32", "int64", "date", "decimal(9,2)", "decimal(18,0)")
TILE = 2048  # rows that a kernel unpacks at once
SMALL = st.integers(-5, 30)
EDGES = st.sampled_from(
    (0, -1, 127, 10**9 - 1, (1 << 31) - 1, -(1 << 31), 1 << 62, (1 << 63) - 1, -(1 << 63))
)
WORDS = SMALL | SMALL | EDGES | st.integers(-(1 << 63), (1 << 63) - 1)
UNITS = st.sampled_from((1, 1, 1, 2, 7, 1_000_000, 1 << 63, (1 << 64) - 1, 0))


class Forged(NamedTuple):
    """A block of a forged frame, and what the format defines for it."""

    rows: int
    data: bytes
    sums: list[int]  # the value of each row
    proved: list[int]  # other numbers that must be values of the type, too (invariant FOR-fits)
    is_allowed: bool  # whether the numbers of the header are within the format's limits


@st.composite
def forged(draw: st.DrawFn) -> Forged:
    """Draw frames that are nearly right."""
    rows = draw(st.integers(1, 40) | st.sampled_from((TILE - 1, TILE, TILE + 1, 2 * TILE + 9)))
    bits = draw(st.integers(0, 8) | st.integers(0, 33) | st.sampled_from((63, 64)))
    # Half of the frames have only small numbers, because one huge number is refused before others are checked.
    kinds = draw(st.sampled_from((SMALL, WORDS)))
    base, step = draw(kinds), draw(st.just(0) | kinds)
    unit = draw(UNITS if kinds is WORDS else st.sampled_from((1, 1, 2, 7, 1 << 40)))
    most = (1 << bits) - 1
    most = draw(st.sampled_from((most, most, min(most, 3))))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    deltas = rng.integers(0, most, rows, np.uint64, endpoint=True).tolist()
    header = format.FOR_HEADER.pack(base, step, unit, format.FOR_LINE, bits, bytes(6))
    data = header + pack_bits(np.array(deltas, np.uint64).astype(delta_dtype(bits)), bits)
    ends = (base, base + step * (rows - 1))
    proved = [end + add for end in ends for add in (0, unit * max(deltas))]
    sums = [base + step * row + unit * delta for row, delta in enumerate(deltas)]
    return Forged(rows, data, sums, proved, unit > 0)


@pytest.fixture
def used(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read frames with these kernels."""
    for name in ("fill", "max_delta", "in_range", "in_table"):
        monkeypatch.setattr(nyala.cfile.kernels, name, getattr(kernels, name))


@pytest.mark.usefixtures("used")
@settings(max_examples=4 * settings().max_examples)
@given(
    type=st.sampled_from(TYPES),
    block=forged(),
    some=st.lists(st.integers(0, 1 << 32), min_size=1, max_size=9),
)
def test_a_forged_frame_is_refused_or_read_as_defined(type: str, block: Forged, some: list[int]) -> None:
    """A forged frame raises CorruptionError, or gives the values of the definition. No sum overflows."""
    rows, data, sums, proved, is_allowed = block
    form = form_of(type)
    least, greatest = value_bounds(form)
    fits = all(least <= value <= greatest for value in sums)
    try:
        frame = Frame.parse(form, pa.py_buffer(data), rows)
    except ValueError as error:
        assert "expected" in str(error) and not isinstance(error, pa.ArrowInvalid)
        is_right = fits and is_allowed and all(least <= value <= greatest for value in proved)
        assert not is_right, f"refused, though it is right: {error}"
        return
    assert fits, "accepted, although its values are not of the type"
    half = rows // 2
    picked = np.array([place % rows for place in some])
    expected = [sums[row] for row in picked.tolist()]
    assert numbers(form, frame, slice(0, rows)) == sums
    assert numbers(form, frame, slice(half, rows)) == sums[half:]
    assert numbers(form, frame, picked) == expected
    assert frame.number(int(picked[0])) == expected[0]
    lower, upper = (min(bound + 1, greatest) for bound in sorted((sums[half], sums[-1])))
    for constraint in (
        Constraint(lower=lower, upper=upper),
        Constraint(values=tuple(sorted({lower, sums[-1]}))),
    ):
        assert frame.matches(NumberSet.of(constraint), half, rows).tolist() == [
            constraint.admits(x) for x in sums[half:]
        ]


def line(base: int, step: int, rows: int) -> Forged:
    """Return a line without deltas."""
    data = format.FOR_HEADER.pack(base, step, 1, format.FOR_LINE, 0, bytes(6))
    ends = [base, base + step * (rows - 1)]
    return Forged(rows, data, ends[:rows], ends, True)


def numbers(form: Any, frame: Frame, rows: Any) -> list[int]:
    """Return the gathered values of some rows, after a comparison with the decoded range."""
    narrow = narrowest(form)
    block = FrameBlock(frame, form, narrow)
    places = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
    found = whole_numbers(block.gather(places, narrow.arrow))
    if isinstance(rows, slice):
        assert whole_numbers(block.decode(rows.start, rows.stop, narrow.arrow)) == found
    return found


def whole_numbers(array: pa.Array) -> list[int]:
    """Return the integers in an array's memory."""
    width = array.type.bit_width // 8
    data = np.frombuffer(array.buffers()[1], f"<i{width}", len(array), array.offset * width)
    found: list[int] = data.tolist()
    return found
