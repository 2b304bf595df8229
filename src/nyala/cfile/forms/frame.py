"""A block in a frame of reference. It stays encoded, and decodes or compares only the given rows.

A row's value is base + step · row + unit · delta. A block has one base, step and unit, and a packed
delta per row (`bit_packing`).

    decode_into   writes the values of a range of rows into the caller's memory
    gather_into   writes the values of single rows into the caller's memory
    matches       returns a mask of the rows with a value in a set of numbers. The set is converted to
                  deltas, so packed deltas are compared (for example 16 bits per row for dates)
    number        returns the value of one row

The invariant FOR-fits ("a frame of reference fits its type"): every number that the formula can
give in a block is in the type's range. It is enough to test the first and the last row, with delta
0 and with the block's greatest delta. This is checked when a frame is created, so no sum overflows.

`kernels` processes the rows. A frame is immutable; any thread may use it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import format, kernels
from nyala.cfile.bit_packing import packed_size
from nyala.cfile.forms.number_set import NumberSet
from nyala.cfile.kernels import Fill
from nyala.cfile.memory import allocate, scratch
from nyala.cfile.physical import Physical

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
# A set of numbers that is not a range becomes a table with an entry per delta, if deltas have at
# most this many bits. Dictionary codes never have more.
_TABLE_BITS_MAX: Final = 18


def value_bounds(form: Physical) -> tuple[int, int]:
    """Return the least and greatest value that is in the range of the type and fits int64."""
    least, greatest = _INT64_MIN, _INT64_MAX
    if form.type.name == "decimal":
        greatest = 10 ** (form.type.precision or 0) - 1
        return max(least, -greatest), min(_INT64_MAX, greatest)
    bits = 8 * form.width_bytes - 1
    return max(least, -(1 << bits)), min(greatest, (1 << bits) - 1)


def line_fits(form: Physical, base: int, step: int, rows: int, delta_max: int) -> bool:
    """Whether all values of a block are in the range of their type.

    A value is base + step · row + delta, where delta is from 0 to `delta_max`.
    """
    least, greatest = value_bounds(form)
    end = base + step * (rows - 1)
    return least <= min(base, end) and max(base, end) + delta_max <= greatest


@dataclass(frozen=True, eq=False)
class Frame:
    """An encoded block of numbers: it stores a packed integer, the delta, for each row.

    The number of a row is base + step · row + unit · delta.
    """

    form: Physical
    data: pa.Buffer
    row_count: int
    base: int
    step: int
    unit: int
    bits: int
    start: int  # offset of the planes in `data`

    @staticmethod
    def parse(form: Physical, data: pa.Buffer, rows: int) -> Frame:
        """Return the frame that the bytes of a block contain. Raises ValueError for invalid bytes."""
        header_size = format.FOR_HEADER.size
        if data.size < header_size:
            raise ValueError(f"expected a header of {header_size} bytes, found {data.size}")
        base, step, unit, layout, bits, _ = format.FOR_HEADER.unpack_from(data)
        if layout != format.FOR_LINE or bits > 64:
            raise ValueError(
                f"expected a header with layout number {format.FOR_LINE} and at most 64 bits per delta, found layout "
                f"number {layout} and {bits} bits per delta"
            )
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
        """The size in memory, in bytes."""
        return int(self.data.size)

    def owning(self) -> Frame:
        """Return a copy of the frame with its own copy of the bytes."""
        return replace(self, data=pa.py_buffer(self.data.to_pybytes()))

    def decode_into(self, out: pa.Buffer, at: int, width: int, lower: int, upper: int) -> Fill:
        """Return the task for `kernels.fill` to write the values of rows [lower, upper) into `out`.

        out, width: the memory of an Arrow array with values of `width` bytes each.
        at: the position of the first written value in `out`, counted in values.
        """
        return Fill(
            self.data, self.start, self.bits, self.row_count, self.base, self.step, self.unit,
            None, lower, upper, out, at, width, True,
        )  # fmt: skip

    def gather_into(self, out: pa.Buffer, at: int, width: int, rows: npt.NDArray[np.int64]) -> Fill:
        """Return the task for `kernels.fill` to write the values of `rows` into `out`, in order.

        out, width: the memory of an Arrow array with values of `width` bytes each.
        at: the position of the first written value in `out`, counted in values.
        """
        rows = np.ascontiguousarray(rows, np.int64)
        return Fill(
            self.data, self.start, self.bits, self.row_count, self.base, self.step, self.unit,
            rows, 0, 0, out, at, width, True,
        )  # fmt: skip

    def matches(self, numbers: NumberSet, lower: int, upper: int) -> npt.NDArray[np.bool_]:
        """Return a mask of the rows [lower, upper): True for a row whose value is in `numbers`."""
        count = upper - lower
        deltas = self._matching_deltas(numbers)
        if deltas is None:
            return numbers.contains(self._numbers(lower, upper))
        if isinstance(deltas, np.ndarray):
            return self._mask(kernels.in_table, lower, upper, deltas.view(np.uint8))
        if not deltas:
            return np.zeros(count, np.bool_)
        if deltas == (0, (1 << self.bits) - 1):
            return np.ones(count, np.bool_)
        return self._mask(kernels.in_range, lower, upper, *deltas)

    def _matching_deltas(
        self, numbers: NumberSet
    ) -> tuple[int, int] | tuple[()] | npt.NDArray[np.bool_] | None:
        """Convert a set of numbers to the deltas of the rows that have these numbers.

        A delta is the packed integer of a row. The row's number is base + step · row + unit · delta.

        Returns: a range (least, greatest), both included; an empty tuple if no row can have one of
        the numbers; or an array with a bool for each possible delta. The result is None if the rows
        must be decoded. This is the case if `step` is not 0, because the same number then has
        another delta in each row, or if deltas have too many bits for such an array.
        """
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
        if self.bits > _TABLE_BITS_MAX:
            return None
        table = numbers.matching_deltas(self.base, self.unit, most)
        return table if table.any() else ()

    def _mask(
        self, kernel: Callable[..., None], lower: int, upper: int, *deltas: Any
    ) -> npt.NDArray[np.bool_]:
        """Return a mask of the rows [lower, upper): True for a row whose packed integer matches.

        kernel: the compiled loop that writes the mask.
        deltas: the packed integers that match, as this kernel expects them: the least and the
            greatest, or a table with one byte for each integer.
        """
        out = scratch(np.uint8, upper - lower)
        kernel(self.data, self.start, self.bits, self.row_count, lower, upper, *deltas, out)
        return out.view(np.bool_)

    def number(self, row: int) -> int:
        """Return the stored number of one row. Python integers are faster here than NumPy."""
        assert 0 <= row < self.row_count
        delta = kernels.delta_at(self.data, self.start, self.bits, self.row_count, row)
        return self.base + self.step * row + self.unit * delta

    def _numbers(self, lower: int, upper: int) -> npt.NDArray[np.int64]:
        out = allocate(8 * (upper - lower))
        kernels.fill([self.decode_into(out, 0, 8, lower, upper)])
        return np.frombuffer(out, "<i8")

    def _check_line(self) -> None:
        if self.unit == 0:
            raise ValueError("expected a unit of 1 or more (the factor of the packed integers), found 0")
        if not line_fits(self.form, self.base, self.step, self.row_count, self.unit * ((1 << self.bits) - 1)):
            # The bits allow a delta that does not fit, so compute the greatest delta.
            delta_max = self.unit * kernels.max_delta(self.data, self.start, self.bits, self.row_count)
            if not line_fits(self.form, self.base, self.step, self.row_count, delta_max):
                raise ValueError(
                    f"expected values of {self.form.type}, found base {self.base}, step {self.step} and deltas "
                    f"up to {delta_max}, which exceed the type"
                )


def output(form: Physical, rows: int) -> tuple[pa.Buffer, int]:
    """Allocate an Arrow buffer for `rows` decoded values.

    Return the buffer, and the number of bytes that one value takes in it. The buffer is from
    `cfile.memory`, which is faster than new memory.
    """
    width = form.arrow_width_bytes
    return allocate(rows * width), width
