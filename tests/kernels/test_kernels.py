"""Each kernel gives the results that the encodings define, in each version.

Expected values are computed here with Python's integers, one row at a time.
"""

from __future__ import annotations

import itertools
import sys
import threading
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nyala.cfile.bit_packing import delta_dtype, pack_bits
from nyala.cfile.kernels import Fill

# Fewer and more rows than a kernel's tile, and sizes at which the last byte of a plane is not full.
COUNTS = st.integers(1, 70) | st.sampled_from((2047, 2048, 2049, 4096 + 13, 9001))
BITS = st.integers(0, 64)
AFTER = b"\xa5" * 24  # the bytes after a block are not its own


def deltas_of(bits: int, count: int, seed: int) -> list[int]:
    """Return some numbers below 2^bits, including the least and the greatest."""
    rng = np.random.default_rng(seed)
    some = rng.integers(0, (1 << bits) - 1, count, np.uint64, endpoint=True) if bits else np.zeros(count, int)
    some[rng.integers(0, count)] = (1 << bits) - 1
    some[rng.integers(0, count)] = 0
    return [int(delta) for delta in some]


def packed(deltas: list[int], bits: int, start: int) -> pa.Buffer:
    return pa.py_buffer(
        b"#" * start + pack_bits(np.array(deltas, np.uint64).astype(delta_dtype(bits)), bits) + AFTER
    )


def signed(number: int, width: int) -> int:
    """Return the number in two's complement of this many bytes."""
    return int.from_bytes((number % (1 << 8 * width)).to_bytes(width, "little"), "little", signed=True)


def numbers(out: pa.Buffer, width: int) -> list[int]:
    data = out.to_pybytes()
    return [int.from_bytes(data[at : at + width], "little", signed=True) for at in range(0, len(data), width)]


@st.composite
def ranges(draw: st.DrawFn) -> tuple[int, int, int]:
    """Return (rows of a block, a range of them)."""
    count = draw(COUNTS)
    lower = draw(st.integers(0, count))
    return count, lower, draw(st.integers(lower, count))


@given(
    rows=ranges(),
    bits=BITS,
    width=st.sampled_from((1, 2, 4, 8, 16)),
    base=st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-300, 300),
    step=st.just(0) | st.integers(-(1 << 40), 1 << 40),
    unit=st.sampled_from((1, 1, 7, 100, 1_000_000, (1 << 64) - 1)),
    at=st.integers(0, 3),
    seed=st.integers(0, 1 << 32),
)
@example(rows=(8, 0, 8), bits=3, width=16, base=-4, step=0, unit=1, at=0, seed=0)
def test_a_line(
    kernels: ModuleType, rows: tuple[int, int, int], bits: int, width: int, base: int, step: int, unit: int, at: int,
    seed: int,
) -> None:  # fmt: skip
    """Each sum is base + step · row + unit · delta."""
    count, lower, upper = rows
    deltas = deltas_of(bits, count, seed)
    sums = [base + step * row + unit * delta for row, delta in enumerate(deltas)]
    if width == 16 or not -(1 << 8 * width - 1) <= min(sums) <= max(sums) < 1 << 8 * width - 1:
        # Sums must be values of the type (FOR-fits), so replace the line by a narrower one.
        base, step, unit = signed(base, min(width, 8)) >> 1, 0, 1
        bits = min(bits, 8 * min(width, 8) - 2)
        deltas = deltas_of(bits, count, seed)
        sums = [base + delta for delta in deltas]
    out = pa.py_buffer(bytearray(b"\x5a" * ((at + upper - lower + 2) * width)))
    job = Fill(
        packed(deltas, bits, 5), 5, bits, count, base, step, unit, None, lower, upper, out, at, width, True
    )  # fmt: skip
    kernels.fill([job])
    untouched = [signed(int.from_bytes(b"\x5a" * width, "little"), width)]
    assert numbers(out, width) == untouched * at + sums[lower:upper] + untouched * 2
    rng = np.random.default_rng(seed)
    some = rng.integers(0, count, 17)
    for first in (0, -3, 1 << 40):  # the number of the frame's first row
        out = pa.py_buffer(bytearray(17 * width))
        kernels.fill([job._replace(rows=some + first, first=first, out=out, at=0)])
        assert numbers(out, width) == [sums[row] for row in some.tolist()], "the same rows, one by one"


@pytest.mark.parametrize("bits", [0, 1, 3, 12, 23, 32, 33])
@pytest.mark.parametrize("step", [0, 5])
def test_gathering_nearby_rows(kernels: ModuleType, bits: int, step: int) -> None:
    """Rows that a filter selected are gathered right, in any order, and also after a large gap."""
    count, rng = 20_000, np.random.default_rng(bits)
    deltas = deltas_of(bits, count, 1)
    data = packed(deltas, bits, 0)
    dense, denser = np.flatnonzero(rng.random(count) < 1 / 7), np.flatnonzero(rng.random(count) < 1 / 3)
    ragged = np.concatenate([np.arange(70), np.arange(9000, 9100), [9500, 9501], np.arange(15_000, count)])
    for rows in (
        dense,
        dense[::-1],
        denser,
        denser[::-1],
        dense[::7],
        ragged,
        np.arange(count),
        np.sort(rng.integers(0, count, 9000)),
        dense[:64],
    ):
        places = np.ascontiguousarray(rows, np.int64)
        out = pa.py_buffer(bytearray(8 * len(rows)))
        kernels.fill([Fill(data, 0, bits, count, 9, step, 3, places, 0, 0, out, 0, 8, False)])
        assert numbers(out, 8) == [9 + step * row + 3 * deltas[row] for row in rows.tolist()]


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_planes_of_less_than_a_byte(kernels: ModuleType, bits: int) -> None:
    """Numbers are gathered right at the borders of a plane that has several numbers per byte."""
    for count in (8, 100, 4099, 150_001):
        deltas = deltas_of(bits, count, count)
        borders = np.arange(0, count, -(-count * bits // 8))
        near = np.concatenate([borders - 1, borders, borders + 1])
        rows = np.sort(near[(0 <= near) & (near < count)])
        out = pa.py_buffer(bytearray(len(rows)))
        place = (packed(deltas, bits, 0), 0, bits, count)
        kernels.fill([Fill(*place, 0, 0, 1, rows, 0, 0, out, 0, 1, False)])
        assert numbers(out, 1) == [deltas[row] for row in rows.tolist()]


def test_many_jobs_fill_one_or_several_buffers(kernels: ModuleType) -> None:
    """One call may write the rows of two blocks to one buffer, and other columns to other buffers."""
    first, second, other = ([1, 2, 3], [4, 5], [7, 6, 5, 4, 3])
    out, wide = pa.py_buffer(bytearray(20)), pa.py_buffer(bytearray(80))
    kernels.fill(
        [
            Fill(packed(first, 3, 0), 0, 3, 3, 10, 0, 1, None, 0, 3, out, 0, 4, False),
            Fill(packed(second, 3, 0), 0, 3, 2, 10, 0, 1, None, 0, 2, out, 3, 4, False),
            Fill(packed(other, 3, 0), 0, 3, 5, -5, 0, 1, None, 0, 5, wide, 0, 16, True),
        ]
    )
    assert numbers(out, 4) == [11, 12, 13, 14, 15]
    assert numbers(wide, 16) == [2, 1, 0, -1, -2]
    kernels.fill([])


@given(rows=ranges(), bits=st.integers(1, 64), seed=st.integers(0, 1 << 32), data=st.data())
def test_in_range(
    kernels: ModuleType, rows: tuple[int, int, int], bits: int, seed: int, data: st.DataObject
) -> None:
    """The mask has exactly the rows in the range."""
    count, lower, upper = rows
    deltas = deltas_of(bits, count, seed)
    bound = st.integers(0, (1 << bits) - 1) | st.sampled_from(deltas)
    least, greatest = sorted((data.draw(bound), data.draw(bound)))
    out = np.full(upper - lower, 9, np.uint8)
    kernels.in_range(packed(deltas, bits, 3), 3, bits, count, lower, upper, least, greatest, out)
    assert out.tolist() == [int(least <= delta <= greatest) for delta in deltas[lower:upper]]


@given(rows=ranges(), bits=st.integers(0, 16), seed=st.integers(0, 1 << 32))
def test_in_table(kernels: ModuleType, rows: tuple[int, int, int], bits: int, seed: int) -> None:
    """The mask has exactly the rows with a delta in the table."""
    count, lower, upper = rows
    deltas = deltas_of(bits, count, seed)
    table = np.random.default_rng(seed).integers(0, 2, 1 << bits).astype(np.uint8)
    out = np.full(upper - lower, 9, np.uint8)
    kernels.in_table(packed(deltas, bits, 1), 1, bits, count, lower, upper, table, out)
    assert out.tolist() == [int(table[delta]) for delta in deltas[lower:upper]]


@given(count=COUNTS, bits=BITS, seed=st.integers(0, 1 << 32))
def test_max_delta(kernels: ModuleType, count: int, bits: int, seed: int) -> None:
    """The greatest delta of a block is found. It proves that every value of a line fits its type."""
    deltas = [delta >> 1 for delta in deltas_of(bits, count, seed)]
    assert kernels.max_delta(packed(deltas, bits, 2), 2, bits, count) == max(deltas)


@given(count=COUNTS, bits=BITS, start=st.integers(0, 9), seed=st.integers(0, 1 << 32), data=st.data())
def test_delta_at(
    kernels: ModuleType, count: int, bits: int, start: int, seed: int, data: st.DataObject
) -> None:
    """A look-up of one row returns the row's own delta, and a row outside of the block raises an
    error.
    """
    deltas = deltas_of(bits, count, seed)
    block = packed(deltas, bits, start)
    for row in (0, count - 1, *data.draw(st.lists(st.integers(0, count - 1), max_size=9))):
        assert kernels.delta_at(block, start, bits, count, row) == deltas[row]
    for row in (-1, count, count + 7):
        with pytest.raises(ValueError, match=f"expected a row below {count}, found {row}"):
            kernels.delta_at(block, start, bits, count, row)


def fill_job(**other: Any) -> Fill:
    data = packed([1, 2, 3, 0], 2, 0).slice(0, 1)
    out = pa.py_buffer(bytearray(32))
    return Fill(data, 0, 2, 4, 0, 0, 1, None, 0, 4, out, 0, 8, False)._replace(**other)


OUTSIDE: dict[str, dict[str, Any]] = {
    "a block that ends before its planes": {"start": 1},
    "a start before the block": {"start": -1},
    "more bits than the block has": {"bits": 3},
    "more than 64 bits": {"bits": 65},
    "a start at which additions overflow": {"start": (1 << 63) - 1},
    "a negative number of bits": {"bits": -1},
    "more rows than the block has": {"block_rows": 5, "upper": 5},
    "a negative number of rows": {"block_rows": -1},
    "a range from before the first row": {"lower": -1},
    "a range that ends before it begins": {"lower": 3, "upper": 2},
    "a range beyond the last row": {"upper": 5},
    "a short output": {"out": pa.py_buffer(bytearray(31))},
    "an output that is not aligned": {"out": pa.py_buffer(memoryview(bytearray(40))[1:33])},
    "an output that is short from the position on": {"at": 1},
    "a negative position": {"at": -1},
    "a position at which multiplications overflow": {"at": 1 << 62},
    "numbers that are too wide for the output": {"width": 16},
    "numbers of three bytes": {"width": 3},
    "numbers of zero bytes": {"width": 0},
    "a row beyond the last": {"rows": np.array([0, 4], np.int64)},
    "a row before the first": {"rows": np.array([-1], np.int64)},
    "a row before the number of the first row": {"rows": np.array([6, 7, 8], np.int64), "first": 7},
    "a row beyond the last, counted from the first row": {"rows": np.array([7, 11], np.int64), "first": 7},
    "a row 2^32 rows away": {"rows": np.array([1 << 32], np.int64)},
    "a row beyond the last among many": {
        "rows": np.append(np.arange(4).repeat(99), 4),
        "out": pa.py_buffer(bytearray(8000)),
    },
    "more rows than the output has room for": {"rows": np.arange(4).repeat(2)},
}


@pytest.mark.parametrize("other", OUTSIDE.values(), ids=OUTSIDE.keys())
def test_no_job_reaches_outside_its_memory(compiled_kernels: ModuleType, other: dict[str, Any]) -> None:
    """A forged job raises an error instead of reading or writing other memory."""
    with pytest.raises(ValueError, match="expected"):
        compiled_kernels.fill([fill_job(), fill_job(**other)])


def test_no_comparison_reaches_outside_its_memory(compiled_kernels: ModuleType) -> None:
    """Forged arguments of a comparison raise an error instead of reading or writing other memory."""
    data = packed([1, 2, 3, 0], 2, 0).slice(0, 1)
    out, table = np.zeros(4, np.uint8), np.zeros(4, np.uint8)
    places: list[tuple[Any, ...]] = [
        (1, 2, 4, 0, 4), (0, 3, 4, 0, 4), (0, 65, 4, 0, 4), (0, 2, 5, 0, 4), (0, 2, 4, 1, 5), (0, 2, 4, 3, 2),
        (0, 2, 4, 0, 3), (-1, 2, 4, 0, 4), ((1 << 63) - 1, 2, 4, 0, 4),
    ]  # fmt: skip
    for place in places:
        with pytest.raises(ValueError, match="expected"):
            compiled_kernels.in_range(data, *place, 1, 2, out)
        with pytest.raises(ValueError, match="expected"):
            compiled_kernels.in_table(data, *place, table, out)
    for place in places[:4] + places[-2:]:
        with pytest.raises(ValueError, match="expected"):
            compiled_kernels.max_delta(data, *place[:3])
        with pytest.raises(ValueError, match="expected"):
            compiled_kernels.delta_at(data, *place[:3], 0)
    with pytest.raises(ValueError, match="expected deltas below 3"):
        compiled_kernels.in_table(data, 0, 2, 4, 0, 4, table[:3], out)
    with pytest.raises(ValueError, match="expected"):
        compiled_kernels.in_range(data, 0, 2, 4, 0, 4, 2, 1, out)


def test_kernels_release_the_interpreter_lock(compiled_kernels: ModuleType) -> None:
    """Other threads run while a kernel works."""
    bits, rows = 12, 1 << 17
    data, out = packed([5] * rows, bits, 0), pa.py_buffer(bytearray(8 * rows))
    jobs = [Fill(data, 0, bits, rows, 1, 0, 1, None, 0, rows, out, 0, 8, False)] * 64
    begun, moved = threading.Lock(), threading.Event()

    def other() -> None:
        with begun:
            moved.set()

    begun.acquire()
    thread = threading.Thread(target=other)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)  # so no other thread takes the lock
    try:
        begun.release()
        # The other thread may run in each round. A busy machine may not schedule it within one
        # round.
        fills = 0
        while not moved.is_set() and fills < 300:
            compiled_kernels.fill(jobs)
            fills += 1
        has_moved = moved.is_set()
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    assert has_moved


def test_kernels_do_not_change_the_block(kernels: ModuleType) -> None:
    """A kernel changes no byte of a block, which other threads may read at the same time."""
    data = packed(list(range(256)) * 9, 8, 0)
    before = data.to_pybytes()
    out: npt.NDArray[np.uint8] = np.zeros(2304, np.uint8)
    kernels.in_range(data, 0, 8, 2304, 0, 2304, 3, 9, out)
    kernels.fill(
        [Fill(data, 0, 8, 2304, 5, 1, 3, None, 0, 2304, pa.py_buffer(bytearray(2304 * 8)), 0, 8, False)]
    )
    assert kernels.max_delta(data, 0, 8, 2304) == 255
    assert data.to_pybytes() == before


@given(
    mask=st.lists(st.booleans(), max_size=300) | st.sampled_from(([], [True] * 129, [False] * 200 + [True])),
    offset=st.integers(0, 9),
)
def test_the_positions_of_a_mask(kernels: ModuleType, mask: list[bool], offset: int) -> None:
    """Exactly the selected rows are returned, and nothing is written past the output."""
    given = np.array([True] * offset + mask, np.bool_)[offset:].view(np.uint8)
    out = np.full(len(mask) + 3, -7, np.int64)
    count = kernels.mask_positions(given, out[: len(mask) + 1])
    assert out[:count].tolist() == [row for row, is_set in enumerate(mask) if is_set]
    assert out[len(mask) + 1 :].tolist() == [-7, -7]


def test_positions_need_space_for_one_more(compiled_kernels: ModuleType) -> None:
    """The kernel may write one position more than the mask has rows, so it needs space for that."""
    with pytest.raises(ValueError, match="expected room for 9 rows, found 8"):
        compiled_kernels.mask_positions(np.ones(8, np.uint8), np.empty(8, np.int64))


@given(codes=st.lists(st.integers(0, 6), max_size=70))
def test_views_are_those_of_the_entries(kernels: ModuleType, codes: list[int]) -> None:
    """Each row gets the view of its entry."""
    words = np.frombuffer(bytes(range(7 * 16)), "V16")
    out = pa.allocate_buffer(16 * len(codes))
    kernels.gather_views(np.array(codes, np.int32), words, out)
    assert out.to_pybytes() == b"".join(words[code].tobytes() for code in codes)


def test_a_code_without_an_entry_gives_any_entry(kernels: ModuleType) -> None:
    """The code of a NULL row may be any number. Its result does not matter, but must be an entry."""
    words = np.frombuffer(bytes(range(32)), "V16")
    out = pa.allocate_buffer(16 * 4)
    kernels.gather_views(np.array([-1, 2, 1 << 30, -(1 << 31)], np.int32), words, out)
    assert set(np.frombuffer(out, "V16").tolist()) <= set(words.tolist())


def test_views_need_entries_and_space(compiled_kernels: ModuleType) -> None:
    """Without entries, or with a short output, the kernel raises ValueError."""
    codes, words = np.zeros(3, np.int32), np.zeros(2, "V16")
    for some, out in ((words[:0], pa.allocate_buffer(48)), (words, pa.allocate_buffer(47))):
        with pytest.raises(ValueError, match="expected entries, and room for 3"):
            compiled_kernels.gather_views(codes, some, out)


BITMAPS = st.lists(st.booleans(), min_size=1, max_size=200) | st.tuples(
    st.integers(0, 130), st.integers(0, 130), st.booleans()
).map(lambda of: [of[2]] * of[0] + [not of[2]] * of[1] + [of[2]])


@given(ones=BITMAPS, width=st.sampled_from((1, 2, 4, 8, 16)), seed=st.integers(0, 99))
def test_dense_values_are_scattered_to_their_rows(
    kernels: ModuleType, ones: list[bool], width: int, seed: int
) -> None:
    """Each value is in its own row, and NULL rows are zero."""
    dense = np.random.default_rng(seed).bytes(width * sum(ones))
    bitmap = pa.py_buffer(np.packbits(ones, bitorder="little").tobytes() + AFTER)
    out = pa.py_buffer(np.full(width * len(ones) + len(AFTER), 0xA5, np.uint8))
    kernels.scatter(bitmap, len(ones), pa.py_buffer(dense), width, out)
    values = iter([dense[at : at + width] for at in range(0, len(dense), width)])
    expected = b"".join([next(values) if one else bytes(width) for one in ones])
    assert out.to_pybytes() == expected + b"\xa5" * len(AFTER)


@given(ones=BITMAPS, lengths=st.lists(st.integers(0, 9), min_size=260, max_size=260), first=st.integers(0, 5))
def test_offsets_of_dense_text_are_scattered_to_their_rows(
    kernels: ModuleType, ones: list[bool], lengths: list[int], first: int
) -> None:
    """Each row has its own text, and NULL rows have empty text."""
    given_lengths = lengths[: sum(ones)]
    offsets = np.cumsum([first, *given_lengths]).astype(np.int32)
    bitmap = pa.py_buffer(np.packbits(ones, bitorder="little").tobytes())
    out = np.full(len(ones) + 1, -1, np.int32)
    kernels.scatter_offsets(bitmap, len(ones), offsets, out)
    left = iter(given_lengths)
    assert out.tolist() == list(
        itertools.accumulate([next(left) if one else 0 for one in ones], initial=first)
    )


@pytest.mark.parametrize("count", [0, 2, 4, 100])
def test_the_number_of_values_must_match_the_bitmap(kernels: ModuleType, count: int) -> None:
    """With a wrong number of values, the kernel would read past their end, so it raises an error."""
    bitmap = pa.py_buffer(bytes([0b0001_0011]))
    with pytest.raises(ValueError, match=f"of the bitmap.*, found {count} values"):
        kernels.scatter(bitmap, 8, pa.py_buffer(bytes(4 * count)), 4, pa.py_buffer(bytearray(32)))
    with pytest.raises(ValueError, match=f"of the bitmap.*, found {count} values"):
        kernels.scatter_offsets(bitmap, 8, np.zeros(count + 1, np.int32), np.zeros(9, np.int32))


def test_scattering_reaches_no_other_memory(compiled_kernels: ModuleType) -> None:
    """Forged sizes raise an error instead of reading or writing other memory."""
    full, room = pa.py_buffer(b"\xff"), pa.py_buffer(bytearray(64))
    for bitmap, rows, values, width, out in (
        (full, 9, bytes(36), 4, room),
        (full, 0, b"", 4, room),
        (full, 8, bytes(32), 4, pa.py_buffer(bytearray(31))),
        (full, 8, bytes(33), 4, room),
        (full, 8, bytes(24), 3, room),
    ):
        with pytest.raises(ValueError, match="expected"):
            compiled_kernels.scatter(bitmap, rows, pa.py_buffer(values), width, out)
    for rows, offsets, ends in ((9, 9, 10), (8, 9, 8), (8, 0, 9)):
        with pytest.raises(ValueError, match="expected"):
            compiled_kernels.scatter_offsets(
                full, rows, np.zeros(offsets, np.int32), np.zeros(ends, np.int32)
            )


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=300),
    width=st.sampled_from((1, 2, 4, 8)),
    seed=st.integers(0, 99),
)
@example(lengths=[1] * 9, width=8, seed=0)
@example(lengths=[5000, 1, 8, 7], width=4, seed=0)
def test_runs_are_repeated_to_their_rows(
    kernels: ModuleType, lengths: list[int], width: int, seed: int
) -> None:
    """Each row has the value of its run, and nothing is written past the rows."""
    data = np.random.default_rng(seed).bytes(width * len(lengths))
    room = bytearray(b"\xa5" * (width * sum(lengths) + len(AFTER)))
    out = pa.py_buffer(memoryview(room)[: width * sum(lengths)])
    kernels.repeat_runs(pa.py_buffer(data), width, np.cumsum(lengths, dtype=np.int64), out)
    expected = b"".join(data[width * run : width * (run + 1)] * length for run, length in enumerate(lengths))
    assert room == expected + AFTER


@pytest.mark.parametrize(
    "ends", [[3, 3, 8], [4, 2, 8], [0, 4, 8], [-1, 4, 8], [2, 4, 7], [2, 9, 8], [2, 4, 9]]
)
def test_runs_must_end_with_the_rows(kernels: ModuleType, ends: list[int]) -> None:
    """With other ends, too few or too many rows would be written, so the kernel raises an error."""
    out = pa.py_buffer(bytearray(16))
    with pytest.raises(ValueError, match="ends of runs .* 8"):
        kernels.repeat_runs(pa.py_buffer(bytes(6)), 2, np.array(ends, np.int64), out)


def test_runs_reach_no_other_memory(compiled_kernels: ModuleType) -> None:
    """Forged sizes raise an error instead of reading or writing other memory."""
    ends, room = np.array([4, 8], np.int64), pa.py_buffer(bytearray(16))
    for values, width, out in (
        (bytes(3), 2, room),
        (bytes(6), 3, room),
        (bytes(4), 2, pa.py_buffer(bytearray(15))),
    ):
        with pytest.raises(ValueError, match="expected"):
            compiled_kernels.repeat_runs(pa.py_buffer(values), width, ends, out)


@given(
    hashes=st.lists(st.integers(0, (1 << 64) - 1), max_size=50),
    blocks=st.sampled_from((1, 2, 3, 1000)),
    seed=st.integers(0, 1 << 32),
)
def test_hashes_are_inserted_into_a_filter(
    kernels: ModuleType, hashes: list[int], blocks: int, seed: int
) -> None:
    """The bits of each key are the defined ones, or look-ups would exclude the key."""
    salts = np.random.default_rng(seed).integers(0, 1 << 32, 8, np.uint32)
    words = np.zeros((blocks, 8), np.uint32)
    kernels.bloom_insert(np.array(hashes, np.uint64), salts, words)
    expected = [[0] * 8 for _ in range(blocks)]
    for number in hashes:
        for place, salt in enumerate(salts.tolist()):
            bit = (number & 0xFFFFFFFF) * salt % (1 << 32) >> 27
            expected[(number >> 32) * blocks >> 32][place] |= 1 << bit
    assert words.tolist() == expected


def test_a_filter_needs_blocks(compiled_kernels: ModuleType) -> None:
    """Without blocks, the kernel would set bits in other memory."""
    hashes, salts = np.ones(1, np.uint64), np.ones(8, np.uint32)
    for words in (np.zeros((0, 8), np.uint32), np.zeros((1, 4), np.uint32)):
        with pytest.raises(ValueError, match="blocks"):
            compiled_kernels.bloom_insert(hashes, salts, words)
