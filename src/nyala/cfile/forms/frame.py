"""A block of the frame-of-reference encoding as it is stored: predicates and look-ups before any value is made.

    rows_into   a range of values, into the caller's memory
    matches     which rows have a number of a set: the set is converted to deltas, and deltas are compared (16 bits a
                row for dates, 8 for discounts)
    picked_into the values of a few rows, from their bits
    number      the value of one row

    FOR-fits    base, base + step · (rows - 1) and either plus unit · the greatest delta are values of the type

FOR-fits is proved when a frame is made, so no sum wraps around. `kernels` does the work over many rows.
Immutable; any thread may use it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import format, kernels
from nyala.cfile.bit_packing import packed_size
from nyala.cfile.forms.number_set import NumberSet
from nyala.cfile.kernels import Fill
from nyala.cfile.memory import allocate, scratch
from nyala.cfile.physical import Physical

__all__ = ["Frame", "line_fits", "output", "value_bounds"]

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
# Numbers that are no range are looked up in a table of all deltas, if deltas have at most so many bits, as dictionary
# codes have.
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
class Frame:
    """A line: base, step, unit, and a delta for each row."""

    form: Physical
    data: pa.Buffer
    row_count: int
    base: int
    step: int
    unit: int
    bits: int
    start: int  # of the planes

    @staticmethod
    def parse(form: Physical, data: pa.Buffer, rows: int) -> Frame:
        """Raises: ValueError for bytes that no encoder of frames can have written."""
        header_size = format.FOR_HEADER.size
        if data.size < header_size:
            raise ValueError(f"expected a header of {header_size} bytes, found {data.size}")
        base, step, unit, layout, bits, _ = format.FOR_HEADER.unpack_from(data)
        if layout != format.FOR_LINE or bits > 64:
            raise ValueError(f"expected a line of at most 64 bits, found layout {layout} and {bits} bits")
        if data.size != header_size + packed_size(bits, rows):
            raise ValueError(
                f"expected {header_size + packed_size(bits, rows)} bytes for {rows} values of {bits} bits, found "
                f"{data.size}"
            )
        frame = Frame(form, data, rows, base, step, unit, bits, header_size)
        frame._check_line()
        return frame

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return int(self.data.size)

    def owning(self) -> Frame:
        """The same over bytes of its own."""
        return replace(self, data=pa.py_buffer(self.data.to_pybytes()))

    def rows_into(self, out: pa.Buffer, at: int, width: int, lower: int, upper: int) -> Fill:
        """What writes the values of the rows [lower, upper) into `out`, from the number `at` on (see `output`)."""
        return Fill(
            self.data, self.start, self.bits, self.row_count, self.base, self.step, self.unit,
            None, lower, upper, out, at, width, True,
        )  # fmt: skip

    def picked_into(self, out: pa.Buffer, at: int, width: int, rows: npt.NDArray[np.int64]) -> Fill:
        """`rows_into` of some rows, in their order."""
        places = np.ascontiguousarray(rows, np.int64)
        return Fill(
            self.data, self.start, self.bits, self.row_count, self.base, self.step, self.unit,
            places, 0, 0, out, at, width, True,
        )  # fmt: skip

    def matches(self, numbers: NumberSet, lower: int, upper: int) -> npt.NDArray[np.bool_]:
        """Which of the rows [lower, upper) have one of the numbers."""
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

    def number(self, row: int) -> int:
        """The value of one row as the number that is stored. In Python, as NumPy's calls for one number cost more."""
        assert 0 <= row < self.row_count
        delta = kernels.delta_at(self.data, self.start, self.bits, self.row_count, row)
        return self.base + self.step * row + self.unit * delta

    # -- inside --------------------------------------------------------------------------------------------

    def _numbers(self, lower: int, upper: int) -> npt.NDArray[np.int64]:
        out = allocate(8 * (upper - lower))
        kernels.fill([self.rows_into(out, 0, 8, lower, upper)])
        return np.frombuffer(out, "<i8")

    def _greatest(self) -> int:
        return kernels.greatest(self.data, self.start, self.bits, self.row_count)

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


def output(form: Physical, rows: int) -> tuple[pa.Buffer, int]:
    """(the Arrow buffer to be filled, bytes of a number in it).

    Arrow's memory, which is used again without the page faults that NumPy's would cost.
    """
    width = form.arrow_width_bytes
    return allocate(rows * width), width
