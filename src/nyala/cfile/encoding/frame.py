"""A block of the frame-of-reference encoding as it is stored: predicates and look-ups before any value is made.

    array       all values; rows_into: some of them, into the caller's memory
    matches     which rows have a number of a set, by comparing deltas: the set is brought to the deltas, not the deltas
                to values (for dates a number of 16 bits a row is compared, for discounts one of 8)
    pick        the values of a few rows, from their bits
    words       the same as plain numbers, to be joined with those of other blocks
    number      of one row

    FOR-fits    base, base + step · (rows - 1) and either plus unit · the greatest delta are values of the type

FOR-fits is proved when a frame is made, so no sum wraps around. `kernels` does the work over many rows.
Immutable; any thread may use it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import format, kernels
from nyala.cfile.encoding.base import EncodedValues
from nyala.cfile.kernels import Fill, Question
from nyala.cfile.memory import allocate, scratch
from nyala.cfile.number_set import NumberSet
from nyala.cfile.physical import Physical
from nyala.cfile.planes import (
    fetch_planes,
    fetch_rows,
    plane_views,
    planes_size,
)
from nyala.lazy_values import LazyValues, lazy_value

__all__ = ["Frame", "Rows", "joined_words", "line_fits", "output", "value_bounds"]

Rows: TypeAlias = "npt.NDArray[np.int64] | slice"  # a slice has both its ends
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
# Numbers that are no range are looked up in a table of all deltas, if these have so many bits at most: as codewords do.
_LOOKED_UP_BITS_MAX: Final = 18


def value_bounds(form: Physical) -> tuple[int, int]:
    """The least and greatest value that 64 bits and the type hold."""
    least, greatest = _INT64_MIN, _INT64_MAX
    if form.type.name == "decimal":
        greatest = 10 ** (form.type.precision or 0) - 1
        return max(least, -greatest), min(_INT64_MAX, greatest)
    bits = 8 * form.width_bytes - 1
    return max(least, -(1 << bits)), min(greatest, (1 << bits) - 1)


def line_fits(form: Physical, base: int, step: int, rows: int, delta_max: int) -> bool:
    """FOR-fits."""
    least, greatest = value_bounds(form)
    end = base + step * (rows - 1)
    return least <= min(base, end) and max(base, end) + delta_max <= greatest


@dataclass(frozen=True, eq=False)
class Frame(LazyValues):
    """A line: base, step, unit, and a delta for each row."""

    form: Physical
    data: pa.Buffer
    row_count: int
    base: int
    step: int
    unit: int
    bits: int
    start: int  # of the planes
    validity: pa.Buffer | None = None
    """Of a block with NULLs: whether each row has a value. The delta of a NULL may be any."""
    null_count: int = 0

    @staticmethod
    def parse(form: Physical, data: pa.Buffer, rows: int) -> Frame:
        """Raises: ValueError for bytes that no encoder of frames can have written."""
        header_size = format.FOR_HEADER.size
        if data.size < header_size:
            raise ValueError(f"expected a header of {header_size} bytes, found {data.size}")
        base, step, unit, layout, bits, _ = format.FOR_HEADER.unpack_from(data)
        if layout != format.FOR_LINE or bits > 64:
            raise ValueError(f"expected a line of at most 64 bits, found layout {layout} and {bits} bits")
        if data.size != header_size + planes_size(bits, rows):
            raise ValueError(
                f"expected {header_size + planes_size(bits, rows)} bytes for {rows} values of {bits} bits, found "
                f"{data.size}"
            )
        frame = Frame(form, data, rows, base, step, unit, bits, header_size)
        frame._check_line()
        return frame

    @staticmethod
    def nulls(form: Physical, rows: int) -> Frame:
        """Nothing but NULLs."""
        validity = pa.py_buffer(bytes((rows + 7) // 8))
        return Frame(form, pa.py_buffer(b""), rows, 0, 0, 1, 0, 0, validity, rows)

    def beside(self, block: EncodedValues) -> Frame:
        """The same with the validity of its block."""
        if not block.null_count:
            return self
        return replace(self, validity=block.validity, null_count=block.null_count)

    def over(self, deltas: pa.Buffer, rows: int, bits: int, validity: pa.Buffer, null_count: int) -> Frame:
        """The same base and unit over other deltas, and so other rows; of a line without a step."""
        assert not self.step
        return replace(
            self, data=deltas, row_count=rows, bits=bits, start=0, validity=validity, null_count=null_count
        )

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return int(self.data.size) + (0 if self.validity is None else int(self.validity.size))

    def owning(self) -> Frame:
        """The same over bytes of its own."""
        validity = None if self.validity is None else pa.py_buffer(self.validity.to_pybytes())
        return replace(self, data=pa.py_buffer(self.data.to_pybytes()), validity=validity)

    def array(self, block: EncodedValues) -> pa.Array:
        """All values, with the block's validity."""
        out, width = output(self.form, self.row_count)
        kernels.fill([self.rows_into(out, 0, width, 0, self.row_count)])
        buffers = [block.validity, out]
        return pa.Array.from_buffers(self.form.arrow, self.row_count, buffers, block.null_count)

    def rows_into(self, out: pa.Buffer, at: int, width: int, lower: int, upper: int) -> Fill:
        """What writes the values of the rows [lower, upper) into `out`, from the number `at` on (see `output`)."""
        return Fill(
            self.data, self.start, self.bits, self.row_count, self.base, self.step, self.unit,
            None, lower, upper, out, at, width, True,
        )  # fmt: skip

    def picked_into(self, out: pa.Buffer, at: int, width: int, rows: Rows, first: int = 0) -> Fill:
        """`rows_into` of some rows, in their order; an array of them counts the frame's first as `first`."""
        lower, upper, places = 0, 0, None
        if isinstance(rows, slice):
            lower, upper = rows.start, rows.stop
        else:
            places = np.ascontiguousarray(rows, np.int64)
        return Fill(
            self.data, self.start, self.bits, self.row_count, self.base, self.step, self.unit,
            places, lower, upper, out, at, width, True, first,
        )  # fmt: skip

    def matches(self, numbers: NumberSet, lower: int, upper: int) -> npt.NDArray[np.bool_]:
        """Of the rows [lower, upper), none of them NULL, which have one of the numbers."""
        count = upper - lower
        wanted = self._wanted(numbers)
        if wanted is None:
            return numbers.has(self._numbers(lower, upper))
        if isinstance(wanted, np.ndarray):
            return self._in_table(wanted, lower, upper)
        if not wanted:
            return np.zeros(count, np.bool_)
        if wanted == (0, (1 << self.bits) - 1):
            return np.ones(count, np.bool_)
        return self._in_range(*wanted, lower, upper)

    def question(self, numbers: NumberSet, lower: int, upper: int) -> Question | None:
        """`matches`, asked of several columns at once (`kernels.rows_matching`); None: it cannot be."""
        if self.null_count:
            return None
        wanted = self._wanted(numbers)
        if wanted is None or (isinstance(wanted, tuple) and not wanted):
            return None
        least, greatest, table = 0, 0, None
        if isinstance(wanted, np.ndarray):
            table = wanted.view(np.uint8)
        else:
            least, greatest = wanted
        return Question(
            self.data, self.start, self.bits, self.row_count, lower, upper, least, greatest, table
        )

    def _wanted(self, numbers: NumberSet) -> tuple[int, int] | tuple[()] | npt.NDArray[np.bool_] | None:
        """The deltas of these numbers: a range, nothing, or of each delta whether it is one; None where deltas do not
        tell."""
        if numbers.is_empty:
            return ()
        if self.step:
            return None
        most = (1 << self.bits) - 1
        least = max(0, -((self.base - numbers.least) // self.unit))
        greatest = min(most, (numbers.greatest - self.base) // self.unit)
        if least > greatest:
            return ()
        if numbers.is_range:
            return least, greatest
        if self.bits > _LOOKED_UP_BITS_MAX:
            return None
        table = numbers.of_line(self.base, self.unit, most)
        return table if table.any() else ()

    def _in_range(self, least: int, greatest: int, lower: int, upper: int) -> npt.NDArray[np.bool_]:
        out = scratch(np.uint8, upper - lower)
        place = (self.data, self.start, self.bits, self.row_count, lower, upper)
        kernels.in_range(*place, least, greatest, out)
        return out.view(np.bool_)

    def _in_table(self, table: npt.NDArray[np.bool_], lower: int, upper: int) -> npt.NDArray[np.bool_]:
        out = scratch(np.uint8, upper - lower)
        place = (self.data, self.start, self.bits, self.row_count, lower, upper)
        kernels.in_table(*place, table.view(np.uint8), out)
        return out.view(np.bool_)

    def pick(self, rows: npt.NDArray[np.int64]) -> pa.Array:
        """The values of these rows, none of them NULL, in their order."""
        out, width = output(self.form, len(rows))
        kernels.fill([self.picked_into(out, 0, width, rows)])
        return pa.Array.from_buffers(self.form.arrow, len(rows), [None, out], 0)

    def words(self, rows: Rows) -> npt.NDArray[Any]:
        """The values of these rows, none of them NULL, as the numbers that are stored."""
        dtype = self.form.dtype
        assert dtype is not None
        deltas = fetch_rows(self.planes, self.bits, rows)
        values = deltas.astype(np.int64)
        if self.unit != 1:
            values = self._scaled(deltas)
        values += self.base
        if self.step:
            places = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
            values += places * np.int64(self.step)
        return values.astype(dtype, copy=False)

    def number(self, row: int) -> int:
        """The value of one row as the number that is stored. In Python, as NumPy's calls for one number cost more."""
        assert 0 <= row < self.row_count
        delta = kernels.delta_at(self.data, self.start, self.bits, self.row_count, row)
        return self.base + self.step * row + self.unit * delta

    @lazy_value
    def planes(self) -> tuple[tuple[int, int, npt.NDArray[Any]], ...]:
        """The planes that the deltas lie in: see `plane_views`."""
        return plane_views(self.data, self.start, self.bits, self.row_count)

    # -- inside --------------------------------------------------------------------------------------------

    def _numbers(self, lower: int, upper: int) -> npt.NDArray[np.int64]:
        out = allocate(8 * (upper - lower))
        kernels.fill([self.rows_into(out, 0, 8, lower, upper)])
        return np.frombuffer(out, "<i8")

    def _greatest(self) -> int:
        return kernels.greatest(self.data, self.start, self.bits, self.row_count)

    def _scaled(self, deltas: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        scaled: npt.NDArray[np.int64]
        scaled = np.multiply(deltas, np.uint64(self.unit), dtype=np.uint64).view(np.int64)
        return scaled

    def _check_line(self) -> None:
        if self.unit == 0:
            raise ValueError("expected a unit of 1 or more, found 0")
        if not line_fits(self.form, self.base, self.step, self.row_count, self.unit * ((1 << self.bits) - 1)):
            # More room than was used, or nonsense: the greatest delta tells.
            delta_max = self.unit * self._greatest()
            if not line_fits(self.form, self.base, self.step, self.row_count, delta_max):
                raise ValueError(
                    f"expected values of {self.form.type}, found a line from {self.base} with step {self.step} "
                    f"and deltas up to {delta_max}"
                )


def joined_words(frames: Sequence[Frame], rows: Sequence[Rows]) -> npt.NDArray[Any]:
    """`Frame.words` of several frames of one type, end to end.

    Cost: a call or two for each frame's planes, which fetch the bytes; all else once for all frames of as many bits.
    """
    if len(frames) == 1:
        return frames[0].words(rows[0])
    places = [np.arange(of.start, of.stop) if isinstance(of, slice) else of for of in rows]
    groups: dict[int, list[int]] = {}
    for index, frame in enumerate(frames):
        groups.setdefault(frame.bits, []).append(index)
    if len(groups) == 1:
        return _joined_alike(frames, places)
    borders = list(itertools.accumulate(map(len, places), initial=0))
    joined = np.empty(borders[-1], frames[0].form.dtype)
    for members in groups.values():
        values = _joined_alike([frames[index] for index in members], [places[index] for index in members])
        start = 0
        for index in members:
            lower, upper = borders[index], borders[index + 1]
            joined[lower:upper] = values[start : start + upper - lower]
            start += upper - lower
    return joined


def _joined_alike(frames: Sequence[Frame], rows: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[Any]:
    """`joined_words` of frames of as many bits each."""
    first = frames[0]
    all_rows = _end_to_end(rows)
    counts = list(map(len, rows))
    deltas = fetch_planes([frame.planes for frame in frames], rows, counts, all_rows, first.bits)
    # FOR-fits: what is added up is a value of the type, and parts of the sum that wrap around do so twice.
    values = deltas.astype(np.int64)
    units = [frame.unit for frame in frames]
    if any(unit != 1 for unit in units):
        values *= _of_each(units, counts, np.uint64).view(np.int64)
    values += _of_each([frame.base for frame in frames], counts, np.int64)
    steps = [frame.step for frame in frames]
    if any(steps):
        values += all_rows * _of_each(steps, counts, np.int64)
    return values.astype(first.form.dtype, copy=False)


def _of_each(numbers: Sequence[int], counts: Sequence[int], dtype: Any) -> npt.NDArray[Any]:
    """A frame's number for each of its rows; one for all of them where they agree."""
    if numbers.count(numbers[0]) == len(numbers):
        return np.array(numbers[:1], dtype)
    return np.repeat(np.array(numbers, dtype), counts)


def _end_to_end(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def output(form: Physical, rows: int) -> tuple[pa.Buffer, int]:
    """(the Arrow buffer to be filled, bytes of a number in it).

    Arrow's memory, which is used again without the page faults that NumPy's would cost.
    """
    width = form.arrow_width_bytes
    return allocate(rows * width), width
