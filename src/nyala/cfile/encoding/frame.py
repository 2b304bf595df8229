"""A block of the frame-of-reference encoding as it lies: what it says of its rows before any value is made.

    array       all values; rows_into: some of them, into memory of the caller's
    matches     which rows have a number of a set, by comparing deltas: the set is brought to the deltas, not they to
                values (of dates a number of 16 bits a row is compared, of discounts one of 8)
    pick        the values of a few rows, from the bits where they lie
    words       the same as plain numbers, to be joined with those of other blocks
    number      of one row

    FOR-fits    base, base + step · (rows - 1) and either plus unit · the greatest delta are values of the type;
                references of a table are; of steps every sum is

FOR-fits is proved when a frame is made, so no sum wraps around. What goes over many rows is done by `kernels`.
Immutable; any thread may use it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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

__all__ = ["Frame", "Rows", "joined_words", "line_fits", "output", "table_bounds", "value_bounds"]

Rows: TypeAlias = "npt.NDArray[np.int64] | slice"  # a slice has both its ends
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
# Numbers that are no range are looked up in a table of all deltas, if these have so many bits at most: as codewords do.
_LOOKED_UP_BITS_MAX: Final = 18
_FEW: Final = 256
# Anchors in memory, for those that pick rows: so many rows from one another. They are made when each call and each
# 2^so-many-th row that was picked, together, are more than the tiles.
_NEAR_ROWS: Final = 128
_ASKED_LOG2: Final = 4


def value_bounds(form: Physical) -> tuple[int, int]:
    """The least and greatest value that 64 bits and the type hold."""
    least, greatest = _INT64_MIN, _INT64_MAX
    if form.type.name == "decimal":
        greatest = 10 ** (form.type.precision or 0) - 1
        return max(least, -greatest), min(_INT64_MAX, greatest)
    bits = 8 * form.width_bytes - 1
    return max(least, -(1 << bits)), min(greatest, (1 << bits) - 1)


def table_bounds(form: Physical) -> tuple[int, int]:
    """The least and greatest number that a table of a column may have: values of the type, or bits of floats."""
    if form.type.name in ("float", "double"):
        bits = 8 * form.width_bytes - 1
        return -(1 << bits), (1 << bits) - 1
    return value_bounds(form)


def line_fits(form: Physical, base: int, step: int, rows: int, delta_max: int) -> bool:
    """FOR-fits."""
    least, greatest = value_bounds(form)
    end = base + step * (rows - 1)
    return least <= min(base, end) and max(base, end) + delta_max <= greatest


@dataclass(frozen=True, eq=False)
class Frame(LazyValues):
    """A line (base, step, unit, deltas), a table (references, deltas), or steps (anchors, and either's deltas).

    References of a shared table are a part of the column's own, which ascends.
    """

    form: Physical
    data: pa.Buffer
    row_count: int
    base: int
    step: int
    unit: int
    bits: int
    start: int  # of the planes
    references: npt.NDArray[np.int64] | None
    anchors: npt.NDArray[np.int64] | None = None
    """Of steps: the first value of each tile."""
    validity: pa.Buffer | None = None
    """Of a block with NULLs: of each row whether it has a value. That of another row may be any."""
    null_count: int = 0
    is_shared: bool = False
    _asked: list[int] = field(init=False, default_factory=lambda: [0])
    """One number: how many rows were picked, for `_anchors_for`."""

    @staticmethod
    def parse(
        form: Physical, data: pa.Buffer, rows: int, table: npt.NDArray[np.int64] | None = None
    ) -> Frame:
        """table: the column's, of which all numbers are values of the type.

        Raises: ValueError for bytes that no encoder of frames can have written."""
        header_size = format.FOR_HEADER.size
        if data.size < header_size:
            raise ValueError(f"expected a header of {header_size} bytes, found {data.size}")
        base, step, unit, layout, bits, count, _ = format.FOR_HEADER.unpack_from(data)
        if layout not in _LAYOUTS or bits > 64 or count > format.FOR_REFERENCES_MAX:
            raise ValueError(
                f"expected a line, tables or steps, at most {format.FOR_REFERENCES_MAX} references and 64 bits, "
                f"found layout {layout}, {count} references and {bits} bits"
            )
        anchors_count = -(-rows // format.FOR_TILE_ROWS) if layout == format.FOR_STEPS else 0
        start = header_size + 8 * (count + anchors_count)
        if data.size != start + planes_size(bits, rows):
            raise ValueError(
                f"expected {start + planes_size(bits, rows)} bytes for {rows} values of {bits} bits, found "
                f"{data.size}"
            )
        frame = _frame(form, data, rows, base, step, unit, bits, start, count, anchors_count)
        if layout == format.FOR_TABLE:
            if frame.references is None:
                raise ValueError("expected references in a table, found none")
            frame._check_table()
        elif layout == format.FOR_STEPS:
            frame._check_steps()
        elif layout == format.FOR_SHARED:
            return frame._over_table(table)
        else:
            if count:
                raise ValueError(f"expected no references beside a line, found {count}")
            frame._check_line()
        return frame

    def _over_table(self, table: npt.NDArray[np.int64] | None) -> Frame:
        """Of a frame as its header says, the one whose deltas name numbers of the column's table, all of them there."""
        if table is None:
            raise ValueError("expected a table in the column's footer, found none")
        count = 0 if self.references is None else len(self.references)
        if count or self.step or self.unit != 1 or self.bits > format.TABLE_BITS_MAX:
            raise ValueError(
                f"expected at most {format.TABLE_BITS_MAX} bits, step 0, unit 1 and no references of its own, found "
                f"{self.bits} bits, step {self.step}, unit {self.unit} and {count} references"
            )
        left = len(table) - self.base
        if not 0 < left <= len(table) or (1 << self.bits > left and self._greatest() >= left):
            raise ValueError(f"expected numbers of a table of {len(table)}, found others from {self.base} on")
        references = table[self.base : self.base + (1 << self.bits)]
        return replace(self, base=0, references=references, is_shared=True)

    @staticmethod
    def nulls(form: Physical, rows: int) -> Frame:
        """Nothing but NULLs."""
        validity = pa.py_buffer(bytes((rows + 7) // 8))
        return Frame(form, pa.py_buffer(b""), rows, 0, 0, 1, 0, 0, None, None, validity, rows)

    def beside(self, block: EncodedValues) -> Frame:
        """The same with the validity of the block that it was found in."""
        if not block.null_count:
            return self
        return replace(self, validity=block.validity, null_count=block.null_count)

    def over(self, deltas: pa.Buffer, rows: int, bits: int, validity: pa.Buffer, null_count: int) -> Frame:
        """The same base, unit and references over other deltas, and so of other rows; of a line without a step, or a
        table."""
        assert self.anchors is None and not self.step
        if self.is_shared:
            return replace(
                self,
                data=deltas,
                row_count=rows,
                bits=bits,
                start=0,
                validity=validity,
                null_count=null_count,
            )
        if self.references is None:
            data, start, count = deltas, 0, 0
        else:  # which lie before the deltas, as in a block: see `owning`
            count = len(self.references)
            data = pa.py_buffer(
                bytes(format.FOR_HEADER.size) + self.references.tobytes() + deltas.to_pybytes()
            )
            start = format.FOR_HEADER.size + 8 * count
        made = _frame(self.form, data, rows, self.base, 0, self.unit, bits, start, count, 0)
        return replace(made, validity=validity, null_count=null_count)

    @property
    def nbytes(self) -> int:
        """What it keeps in memory, `_near_anchors` included."""
        near = 0 if self.anchors is None else 8 * -(-self.row_count // _NEAR_ROWS)
        return int(self.data.size) + near + (0 if self.validity is None else int(self.validity.size))

    def owning(self) -> Frame:
        """The same over bytes of its own; a shared table stays the column's."""
        data = pa.py_buffer(self.data.to_pybytes())
        validity = None if self.validity is None else pa.py_buffer(self.validity.to_pybytes())
        if self.is_shared:
            return replace(self, data=data, validity=validity)
        counts = [0 if of is None else len(of) for of in (self.references, self.anchors)]
        frame = _frame(
            self.form, data, self.row_count, self.base, self.step, self.unit, self.bits, self.start, *counts
        )
        return replace(frame, validity=validity, null_count=self.null_count)

    def array(self, block: EncodedValues) -> pa.Array:
        """All values, with the block's validity."""
        out, width = output(self.form, self.row_count)
        kernels.fill([self.rows_into(out, 0, width, 0, self.row_count)])
        buffers = [block.validity, out]
        return pa.Array.from_buffers(self.form.arrow, self.row_count, buffers, block.null_count)

    def rows_into(self, out: pa.Buffer, at: int, width: int, lower: int, upper: int) -> Fill:
        """What writes the values of the rows [lower, upper) into `out`, from the number `at` on (see `output`)."""
        return Fill(
            self.data, self.start, self.bits, self.row_count, self.base, self.step, self.unit, self.references,
            None, lower, upper, out, at, width, True, self.anchors,
        )  # fmt: skip

    def picked_into(self, out: pa.Buffer, at: int, width: int, rows: Rows, first: int = 0) -> Fill:
        """`rows_into` of some rows, in their order; an array of them counts the frame's first as `first`."""
        lower, upper, places = 0, 0, None
        if isinstance(rows, slice):
            lower, upper = rows.start, rows.stop
        else:
            places = np.ascontiguousarray(rows, np.int64)
        anchors, stride = self._anchors_for(upper - lower if places is None else len(places))
        return Fill(
            self.data, self.start, self.bits, self.row_count, self.base, self.step, self.unit, self.references,
            places, lower, upper, out, at, width, True, anchors, first, stride,
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
        if self.anchors is None and self.references is not None:
            return numbers.among(self.references) if self.is_shared else numbers.has(self.references)
        if self.step or self.anchors is not None:
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
        if self.anchors is not None:
            count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
            out = allocate(8 * count)
            kernels.fill([self.picked_into(out, 0, 8, rows)])
            return np.frombuffer(out, "<i8").astype(dtype)
        deltas = fetch_rows(self.planes, self.bits, rows)
        if self.references is not None:
            looked_up: npt.NDArray[Any] = self.references[deltas].astype(dtype)
            return looked_up
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
        if self.anchors is not None:
            return int(self._numbers(row, row + 1)[0])
        delta = kernels.delta_at(self.data, self.start, self.bits, self.row_count, row)
        if self.references is not None:
            return int(self.references[delta])
        return self.base + self.step * row + self.unit * delta

    @lazy_value
    def planes(self) -> tuple[tuple[int, int, npt.NDArray[Any]], ...]:
        """The planes that the deltas lie in: see `plane_views`."""
        return plane_views(self.data, self.start, self.bits, self.row_count)

    # -- inside --------------------------------------------------------------------------------------------

    def _anchors_for(self, rows: int) -> tuple[npt.NDArray[np.int64] | None, int]:
        """(anchors, how many rows each is from the next) to pick so many rows by.

        A row is the sum of all steps since the anchor before it, and those of a block are far from one another. Who
        picks many gets anchors between them, which later ones find: they cost as much as the sums of all tiles.
        """
        if self.anchors is None or not kernels.COMPILED:
            return self.anchors, format.FOR_TILE_ROWS
        self._asked[0] += 1 + (rows >> _ASKED_LOG2)  # of two threads one may be forgotten
        if self._asked[0] <= len(self.anchors):
            return self.anchors, format.FOR_TILE_ROWS
        return self._near_anchors, _NEAR_ROWS

    @lazy_value
    def _near_anchors(self) -> npt.NDArray[np.int64]:
        """Of steps: the value of every `_NEAR_ROWS`th row."""
        rows = np.arange(0, self.row_count, _NEAR_ROWS)
        out = np.empty(len(rows), np.int64)
        kernels.fill([self.rows_into(pa.py_buffer(out), 0, 8, 0, 0)._replace(rows=rows)])
        return out

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

    def _check_steps(self) -> None:
        """Bounds of all sums, of which the sums themselves tell where there is more room than they take."""
        assert self.anchors is not None
        if self.bits > format.FOR_STEPS_BITS_MAX or self.unit == 0:
            raise ValueError(
                f"expected steps of at most {format.FOR_STEPS_BITS_MAX} bits and a unit of 1 or more, found "
                f"{self.bits} bits and unit {self.unit}"
            )
        least, most = self.step, self.step + self.unit * ((1 << self.bits) - 1)
        if self.references is not None:
            if (greatest := self._greatest()) >= len(self.references):
                raise ValueError(f"expected references below {len(self.references)}, found {greatest}")
            least, most = _ends(self.references)
        lower, upper = value_bounds(self.form)
        first, last = _ends(self.anchors)
        steps = min(self.row_count, format.FOR_TILE_ROWS) - 1
        if lower <= first + steps * min(least, 0) and last + steps * max(most, 0) <= upper:
            return
        if self.references is None:  # the deltas may have room that no step takes
            most = self.step + self.unit * self._greatest()
        if not (_INT64_MIN <= least and most <= _INT64_MAX):
            raise ValueError(f"expected steps of 64 bits, found {least} to {most}")
        values = self._numbers(0, self.row_count)
        # A step fits 64 bits, so the one between two sums is the difference that they have there, and a sum that has
        # left them stands on the wrong side of its step.
        before, after = values[:-1], values[1:]
        left = ((before ^ after) & ((after - before) ^ after)) < 0
        left[format.FOR_TILE_ROWS - 1 :: format.FOR_TILE_ROWS] = (
            False  # from one tile to the next there is no step
        )
        if left.any() or int(values.min()) < lower or int(values.max()) > upper:
            raise ValueError(
                f"expected values of {self.form.type}, found steps of {least} to {most} that leave them"
            )

    def _check_table(self) -> None:
        assert self.references is not None
        if self.bits > format.FOR_TABLE_BITS_MAX:
            raise ValueError(
                f"expected references of at most {format.FOR_TABLE_BITS_MAX} bits in a table, found {self.bits}"
            )
        if (greatest := self._greatest()) >= len(self.references):
            raise ValueError(f"expected references below {len(self.references)}, found {greatest}")
        lower, upper = value_bounds(self.form)
        least, most = _ends(self.references)
        if least < lower or most > upper:
            raise ValueError(f"expected references of {self.form.type}, found {least} to {most}")


def _ends(numbers: npt.NDArray[np.int64]) -> tuple[int, int]:
    """The least and the greatest; of a few in Python, as NumPy's two calls cost more."""
    if len(numbers) > _FEW:
        return int(numbers.min()), int(numbers.max())
    few = numbers.tolist()
    return min(few), max(few)


_LAYOUTS: Final = (format.FOR_LINE, format.FOR_TABLE, format.FOR_STEPS, format.FOR_SHARED)


def _frame(
    form: Physical, data: pa.Buffer, rows: int, base: int, step: int, unit: int, bits: int, start: int,
    references_count: int, anchors_count: int,
) -> Frame:  # fmt: skip
    """The frame of a block, whose references and anchors are views of `data`."""
    at = format.FOR_HEADER.size
    references = np.frombuffer(data, "<i8", references_count, at) if references_count else None
    anchors = None
    if anchors_count:
        anchors = np.frombuffer(data, "<i8", anchors_count, at + 8 * references_count)
    return Frame(form, data, rows, base, step, unit, bits, start, references, anchors)


def joined_words(frames: Sequence[Frame], rows: Sequence[Rows]) -> npt.NDArray[Any]:
    """`Frame.words` of several frames of one type, end to end.

    Cost: a call or two for each frame's planes, which fetch the bytes; all else once for all frames of as many bits.
    """
    if len(frames) == 1:
        return frames[0].words(rows[0])
    if any(frame.anchors is not None for frame in frames):
        return np.concatenate([frame.words(of) for frame, of in zip(frames, rows, strict=True)])
    places = [np.arange(of.start, of.stop) if isinstance(of, slice) else of for of in rows]
    if (
        len({frame.bits for frame in frames}) == 1
        and len({frame.references is None for frame in frames}) == 1
    ):
        return _joined_alike(frames, places)
    groups: dict[tuple[int, bool], list[int]] = {}
    for index, frame in enumerate(frames):
        groups.setdefault((frame.bits, frame.references is None), []).append(index)
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
    """`joined_words` of frames of as many bits each, all of them lines or all tables."""
    first = frames[0]
    all_rows = _end_to_end(rows)
    counts = list(map(len, rows))
    deltas = fetch_planes([frame.planes for frame in frames], rows, counts, all_rows, first.bits)
    if first.references is not None:
        looked_up, start = [], 0
        for frame, count in zip(frames, counts, strict=True):
            assert frame.references is not None
            looked_up.append(frame.references[deltas[start : start + count]])
            start += count
        return _end_to_end(looked_up).astype(first.form.dtype)
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
