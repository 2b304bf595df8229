"""Blocks of frames that nobody's encoder wrote: refused, or read as the format's definition says, by either twin.

The definition is worked out here in Python's own integers, which do not wrap around, so neither twin is the other's
measure. What is forged is under a right CRC, so nothing but the frame's own proofs stands before it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.cfile.encoding.values import form_of

import nyala.cfile.kernels
from nyala.cfile import format
from nyala.cfile.block import BlockHeader
from nyala.cfile.encoding.frame import Frame, line_fits, value_bounds
from nyala.cfile.kernels import Stretch
from nyala.cfile.number_set import NumberSet
from nyala.cfile.planes import delta_dtype, pack_planes
from nyala.schema.constraint import Constraint

TYPES = ("int8", "int32", "int64", "date", "decimal(9,2)", "decimal(18,0)")
TILE = 2048  # rows that a kernel unpacks at once
# Where nothing was compiled there is no such kernel, and blocks are read in the ordinary way.
needs_fetch = pytest.mark.skipif(not nyala.cfile.kernels.CAN_FETCH, reason="nothing was compiled")
SMALL = st.integers(-5, 30)
EDGES = st.sampled_from(
    (0, -1, 127, 10**9 - 1, (1 << 31) - 1, -(1 << 31), 1 << 62, (1 << 63) - 1, -(1 << 63))
)
WORDS = SMALL | SMALL | EDGES | st.integers(-(1 << 63), (1 << 63) - 1)
UNITS = st.sampled_from((1, 1, 1, 2, 7, 1_000_000, 1 << 63, (1 << 64) - 1, 0))


class Forged(NamedTuple):
    """A block made by hand."""

    rows: int
    data: bytes
    sums: list[int]  # what it stands for
    proved: list[int]  # what FOR-fits asks to be values of the type besides
    is_allowed: bool  # by the format's limits


@st.composite
def forged(draw: st.DrawFn) -> Forged:
    """Frames that are nearly right."""
    rows = draw(st.integers(1, 40) | st.sampled_from((TILE - 1, TILE, TILE + 1, 2 * TILE + 9)))
    bits = draw(st.integers(0, 8) | st.integers(0, 33) | st.sampled_from((63, 64)))
    kinds = draw(
        st.sampled_from((SMALL, WORDS))
    )  # of all words: one of a kind that fits nowhere hides the others
    base, step = draw(kinds), draw(st.just(0) | kinds)
    unit = draw(UNITS if kinds is WORDS else st.sampled_from((1, 1, 2, 7, 1 << 40)))
    most = (1 << bits) - 1
    most = draw(st.sampled_from((most, most, min(most, 3))))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    deltas = rng.integers(0, most, rows, np.uint64, endpoint=True).tolist()
    header = format.FOR_HEADER.pack(base, step, unit, format.FOR_LINE, bits, bytes(6))
    data = header + pack_planes(np.array(deltas, np.uint64).astype(delta_dtype(bits)), bits)
    ends = (base, base + step * (rows - 1))
    proved = [end + add for end in ends for add in (0, unit * max(deltas))]
    sums = [base + step * row + unit * delta for row, delta in enumerate(deltas)]
    return Forged(rows, data, sums, proved, unit > 0)


@pytest.fixture
def used(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames are read by these kernels."""
    for name in ("fill", "greatest", "in_range", "in_table"):
        monkeypatch.setattr(nyala.cfile.kernels, name, getattr(kernels, name))


@pytest.mark.usefixtures("used")
@settings(max_examples=4 * settings().max_examples)
@given(
    type=st.sampled_from(TYPES),
    block=forged(),
    some=st.lists(st.integers(0, 1 << 32), min_size=1, max_size=9),
)
def test_a_forged_frame_is_refused_or_what_it_says(type: str, block: Forged, some: list[int]) -> None:
    """A value that the bytes do not stand for, a sum that wrapped around, memory of somebody else."""
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
    assert fits, "taken, though it stands for no values of the type"
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


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A descriptor of a file to be written to."""
    descriptor = os.open(tmp_path_factory.mktemp("forged") / "f", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


def block_of(data: bytes, rows: int, **fields: int) -> bytes:
    """A block of frames with a right CRC; `fields` of its header instead of those that are right."""
    header = BlockHeader(0, rows, 0, 0, len(data), len(data), format.ENCODING_FOR, format.COMPRESSION_NONE, 1)
    header = replace(header, **fields)
    body = (header.pack() + data).ljust(-(-(32 + len(data) + 4) // 16) * 16 - 4, b"\0")
    return body + format.CRC.pack(google_crc32c.value(body))


def read_values(kernels: ModuleType, file: int, block: bytes, rows: int, type: str) -> list[int] | None:
    """The values of a file of this block; None where the kernel leaves it to others."""
    form = form_of(type)
    os.pwrite(file, block, 64)
    out, width = pa.allocate_buffer(rows * form.arrow_width_bytes), form.arrow_width_bytes
    stretch = Stretch(
        np.array([64], "<u8"), np.array([len(block)], "<u4"), 13, rows, 0, rows, *value_bounds(form), False, out, width,
        bytearray(1),
    )  # fmt: skip
    room = pa.allocate_buffer(1 << 17)
    if kernels.read_values(file, [stretch], room, None, nyala.cfile.kernels._CRC32C):
        return None
    array = pa.Array.from_buffers(form.arrow, rows, [None, out], 0)
    return [int(value) for value in form.stored_array(array).to_pylist()]


def line(base: int, step: int, rows: int) -> Forged:
    """A line without deltas."""
    data = format.FOR_HEADER.pack(base, step, 1, format.FOR_LINE, 0, bytes(6))
    ends = [base, base + step * (rows - 1)]
    return Forged(rows, data, ends[:rows], ends, True)


@needs_fetch
@settings(max_examples=2 * settings().max_examples)
@given(type=st.sampled_from(TYPES), block=forged())
@example(type="int8", block=line(0, -(1 << 63), 1))  # a step that is never taken
@example(type="int64", block=line(5, -(1 << 63), 2))
def test_a_forged_block_is_left_to_others_or_what_it_says(
    compiled_kernels: ModuleType, file: int, type: str, block: Forged
) -> None:
    """What is read and decoded by one call has the same proofs, written a second time."""
    rows, data, sums, proved, is_allowed = block
    form = form_of(type)
    least, greatest = value_bounds(form)
    found = read_values(compiled_kernels, file, block_of(data, rows), rows, type)
    fits = all(least <= value <= greatest for value in [*sums, *proved])
    if found is not None:
        assert is_allowed and fits and found == sums
        return
    base, step, unit, _, bits, _ = format.FOR_HEADER.unpack_from(data)
    assert not (is_allowed and line_fits(form, base, step, rows, unit * ((1 << bits) - 1)))


@needs_fetch
@pytest.mark.parametrize("type", TYPES)
def test_a_line_ends_where_its_type_does(compiled_kernels: ModuleType, file: int, type: str) -> None:
    """One further it would wrap around."""
    least, greatest = value_bounds(form_of(type))
    rows, deltas = 10, [row % 4 for row in range(10)]
    room = 3 + 2 * (rows - 1)  # of the greatest delta and the steps

    def found(base: int, step: int) -> list[int] | None:
        header = format.FOR_HEADER.pack(base, step, 1, format.FOR_LINE, 2, bytes(6))
        data = header + pack_planes(np.array(deltas, np.uint8), 2)
        return read_values(compiled_kernels, file, block_of(data, rows), rows, type)

    for base, step in ((least, 2), (greatest - room, 2), (least + room - 3, -2), (greatest - 3, -2)):
        assert found(base, step) == [base + step * row + delta for row, delta in enumerate(deltas)]
    for base, step in ((least - 1, 2), (greatest - room + 1, 2), (least + room - 4, -2), (greatest - 2, -2)):
        if -(1 << 63) <= base < 1 << 63:
            assert found(base, step) is None


@needs_fetch
@given(
    bits=st.integers(0, 33),
    base=st.integers(0, 9) | st.sampled_from((1 << 31, (1 << 32) - 1)),
    rows=st.integers(1, 40) | st.just(TILE + 1),
    most=st.integers(0, 300),
    count=st.integers(1, 300),
    layout=st.sampled_from([format.CODEWORDS_PLANES] * 5 + [format.CODEWORDS_SHUFFLED, 0]),
)
def test_a_forged_codeword_is_left_to_others_or_names_a_word(
    compiled_kernels: ModuleType,
    file: int,
    bits: int,
    base: int,
    rows: int,
    most: int,
    count: int,
    layout: int,
) -> None:
    """It would name memory of somebody else."""
    deltas = np.arange(rows, dtype=np.uint64) % min(most + 1, 1 << bits)
    data = format.CODEWORDS_HEADER.pack(layout, bits, bytes(2), base)
    data += pack_planes(deltas.astype(delta_dtype(bits)), bits)
    block = block_of(data, rows, encoding=format.ENCODING_DICTIONARY)
    os.pwrite(file, block, 64)
    out = pa.allocate_buffer(4 * rows)
    stretch = Stretch(
        np.array([64], "<u8"), np.array([len(block)], "<u4"), 13, rows, 0, rows, 0, count - 1, True, out, 4,
        bytearray(1),
    )  # fmt: skip
    room = pa.allocate_buffer(1 << 17)
    expected = [base + int(delta) for delta in deltas]
    is_right = (
        layout == format.CODEWORDS_PLANES and bits <= format.CODEWORDS_BITS_MAX and max(expected) < count
    )
    if compiled_kernels.read_values(file, [stretch], room, None, nyala.cfile.kernels._CRC32C):
        assert not is_right or base + (1 << bits) > 1 << 32
    else:
        assert is_right and np.frombuffer(out, np.int32).tolist() == expected


@needs_fetch
def test_a_block_that_is_another_is_left_to_others(compiled_kernels: ModuleType, file: int) -> None:
    """Its bytes are whole, but not those of this column, or not as they lie: values of nobody."""
    data = format.FOR_HEADER.pack(5, 2, 1, format.FOR_LINE, 8, bytes(6)) + bytes(range(100))
    expected = [5 + 2 * row + row for row in range(100)]
    right = block_of(data, 100)
    assert read_values(compiled_kernels, file, right, 100, "int64") == expected
    fields = {
        "first_ordinal": 8192, "row_count": 99, "null_count": 1, "validity_length": 16, "values_length": 131,
        "values_size": 133, "encoding": format.ENCODING_DICTIONARY, "compression": 2,
    }  # fmt: skip
    for name, value in fields.items():
        other = block_of(data, 100, **{name: value})
        assert read_values(compiled_kernels, file, other, 100, "int64") is None, name
    flipped = right[:70] + bytes([right[70] ^ 1]) + right[71:]
    assert read_values(compiled_kernels, file, flipped, 100, "int64") is None
    assert read_values(compiled_kernels, file, right[:50], 100, "int64") is None
    assert read_values(compiled_kernels, file, right, 101, "int64") is None


@needs_fetch
def test_a_stretch_that_is_none_is_refused(compiled_kernels: ModuleType, file: int) -> None:
    """A kernel that trusts its caller writes into memory of somebody else."""
    room, out = pa.allocate_buffer(1 << 12), np.zeros(8 * 64 + 8, np.uint8)
    out = out[-out.ctypes.data % 8 :]
    right = Stretch(
        np.zeros(4, "<u8"), np.full(4, 64, "<u4"), 4, 60, 0, 60, 0, 9, False, out, 8, bytearray(4)
    )
    assert compiled_kernels.read_values(file, [right], room, None, nyala.cfile.kernels._CRC32C) == [0]
    assert compiled_kernels.read_values(file, [], room, None, nyala.cfile.kernels._CRC32C) == []
    wrong: dict[str, dict[str, Any]] = {
        "expected ordinals": {"lower": -16}, "expected ordinals of": {"upper": 61},
        "expected ordinals of 60": {"lower": 60},
        "expected ordinals of 60 in": {"rows_per_block_log2": 33}, "expected whole blocks": {"lower": 8},
        "expected whole blocks of": {"upper": 40}, "expected numbers": {"width": 3},
        "expected numbers of": {"has_codewords": True}, "expected an offset": {"offsets": np.zeros(3, "<u8")},
        "expected an offset and": {"lengths": np.zeros(3, "<u4")}, "expected room": {"width": 16},
        "expected a byte": {"touched": bytearray(3)}, "expected memory": {"held": out[4:]},
        "expected memory for numbers": {"out": out[4:]},
    }  # fmt: skip
    for message, fields in wrong.items():
        with pytest.raises(ValueError, match=message):
            stretch = right._replace(**fields)
            compiled_kernels.read_values(file, [right, stretch], room, None, nyala.cfile.kernels._CRC32C)
    with pytest.raises(BufferError):
        compiled_kernels.read_values(
            file, [right._replace(out=pa.py_buffer(bytes(512)))], room, None, nyala.cfile.kernels._CRC32C
        )


def test_what_the_kernels_know_of_the_format_is_what_it_says() -> None:
    """A format that is changed in one place only."""
    source = Path(nyala.cfile.kernels.__file__).with_name("reading.pxi").read_text()
    found = {name: int(value) for name, value in re.findall(r"^    ([A-Z_]+) = (\d+)$", source, re.MULTILINE)}
    sizes = {"BLOCK_HEADER_SIZE": "BLOCK_HEADER", "FOR_HEADER_SIZE": "FOR_HEADER", "CRC_SIZE": "CRC"}
    sizes |= {"CODEWORDS_HEADER_SIZE": "CODEWORDS_HEADER"}
    names = {"BLOCK_ALIGNMENT": "BLOCK_ALIGNMENT_BYTES"}
    assert len(found) == 11
    for name, value in found.items():
        known = getattr(format, sizes.get(name) or names.get(name, name))
        assert value == (known.size if name in sizes else known), name


def numbers(form: Any, frame: Frame, rows: Any) -> list[int]:
    """Both ways to have the values of some rows, which must be the same."""
    values: list[int] = frame.words(rows).tolist()
    if isinstance(rows, slice):
        rows = np.arange(rows.start, rows.stop)
    array = frame.pick(rows)
    assert [int(value) for value in form.stored_array(array).to_pylist()] == values
    return values
