"""Rows of a column as they lie in its blocks: asked which of them satisfy a demand, and then for those alone.

    FrameRows   numbers, dates, decimals in frames of reference: deltas are compared, and values taken from their bits
    CodeRows    text in a dictionary: the same of codewords, when it is known which words satisfy the demand

A scan whose predicate leaves few rows decodes no value of the others. Rows are counted from the first of the range.
Immutable; any thread may use them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala import compute as pc
from nyala.cfile import kernels
from nyala.cfile.encoding.frame import Frame, output
from nyala.cfile.kernels import Answers, Fill, Lay, Question
from nyala.cfile.memory import scratch
from nyala.cfile.number_set import NumberSet
from nyala.cfile.physical import Physical
from nyala.lazy_values import LazyValues, lazy_value
from nyala.schema.constraint import order_key
from nyala.schema.word_test import Demanded, WordTest

__all__ = ["CodeRows", "EncodedRows", "FrameRows", "Jobs", "admitted_words", "arrays_of", "one_word"]
__all__ += ["picked", "rows_matching", "rows_of"]

Bools: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Jobs:
    """What gives arrays their values, of several columns by few calls: see `EncodedRows.picking`."""

    fills: list[Fill] = field(default_factory=list)
    lays: list[Lay] = field(default_factory=list)  # over what was filled

    def do(self) -> None:
        if self.fills:
            kernels.fill(self.fills)
        if self.lays:
            kernels.lay(self.lays)


class EncodedRows(Protocol):
    def matches(self, demanded: Demanded) -> Bools:
        """Which rows satisfy what is demanded; a word test is of text only."""
        ...

    def questions(self, demanded: Demanded, changed: Answers | None = None) -> list[Question] | None:
        """`matches`, to be asked of several columns at once (`rows_matching`): none where all rows satisfy it. None
        where it cannot be.

        changed: what is said of some of the rows instead.
        """
        ...

    def picking(
        self,
        rows: npt.NDArray[np.int64],
        jobs: Jobs,
        *,
        narrow: bool = False,
        satisfying: Demanded | None = None,
    ) -> pa.Array:
        """An array of these rows, which ascend, that has its values when what is added to `jobs` is done: so several
        columns need one call of a kernel.

        narrow:     of a decimal that has a `narrow_decimal` as that.
        satisfying: what all of these rows are known to satisfy.
        """
        ...


@dataclass(frozen=True, eq=False)
class FrameRows(LazyValues):
    """Of frames that lie one behind the other, the rows from `first` of the first frame on, `count` of them.

    numbers_of: what a demand on the column is of the numbers that lie in them.
    """

    frames: Sequence[Frame]
    first: int
    count: int
    narrow_form: Physical
    numbers_of: Callable[[Demanded], NumberSet]

    def matches(self, demanded: Demanded) -> Bools:
        numbers = self.numbers_of(demanded)
        found = [frame.matches(numbers, begin, end) for frame, begin, end in self._parts]
        return self._with_nulls(found[0] if len(found) == 1 else np.concatenate(found), demanded)

    def questions(self, demanded: Demanded, changed: Answers | None = None) -> list[Question] | None:
        numbers = self.numbers_of(demanded)
        found = [frame.question(numbers, begin, end) for frame, begin, end in self._parts]
        asked = [question for question in found if question is not None]
        if len(asked) < len(found):
            return None
        if changed is not None:
            return [question._replace(changed=changed) for question in asked]
        return [] if all(map(_is_about_nothing, asked)) else asked

    def _with_nulls(self, matching: Bools, demanded: Demanded) -> Bools:
        """`matching`, which is written, of rows that have a value, and what NULLs are to the demand."""
        valid = self.valid
        if valid is None:
            return matching
        if demanded.null == "none" or demanded.empty:
            return np.logical_and(matching, valid, out=matching)
        return np.logical_or(matching, ~valid, out=matching)

    @lazy_value
    def valid(self) -> Bools | None:
        """Of each row whether it has a value; None: all have."""
        if not any(frame.null_count for frame in self.frames):
            return None
        found = []
        for frame, begin, end in self._parts:
            if frame.validity is None:
                found.append(np.ones(end - begin, np.bool_))
            else:
                skipped = begin & ~7
                some = np.frombuffer(frame.validity, np.uint8)[skipped >> 3 : (end + 7) >> 3]
                bits = np.unpackbits(some, count=end - skipped, bitorder="little")
                found.append(bits[begin - skipped :].view(np.bool_))
        return found[0] if len(found) == 1 else np.concatenate(found)

    @property
    def _parts(self) -> Iterator[tuple[Frame, int, int]]:
        """(frame, the rows of it that are these)."""
        start = -self.first
        for frame in self.frames:
            yield frame, max(-start, 0), min(self.count - start, frame.row_count)
            start += frame.row_count

    def array(
        self,
        *,
        narrow: bool = False,
        changed: tuple[npt.NDArray[np.integer[Any]], npt.NDArray[Any]] | None = None,
    ) -> pa.Array:
        """All values, of which none is NULL, in memory of its own. narrow: as of `pick`.

        changed: (rows, numbers): what these rows are instead; as integers, of decimals the unscaled ones.
        Cost: a scatter of what is changed, besides decoding; no copy.
        """
        form, out, width, jobs = self._filling(narrow)
        kernels.fill(jobs)
        if changed is not None:
            rows, values = changed
            if width == 16:
                wide = np.frombuffer(out, "<i8").reshape(-1, 2)
                wide[rows, 0], wide[rows, 1] = values, -(values < 0).astype(np.int64)
            else:
                np.frombuffer(out, f"<i{width}")[rows] = values
        return pa.Array.from_buffers(form.arrow, self.count, [None, out], 0)

    def _filling(self, narrow: bool) -> tuple[Physical, pa.Buffer, int, list[Fill]]:
        """(the values' form, memory for them, bytes of one, what writes them)."""
        form = self.narrow_form if narrow else self.frames[0].form
        out, width = output(form, self.count)
        jobs, start = [], -self.first
        for frame in self.frames:
            begin, end = max(start, 0), min(start + frame.row_count, self.count)
            jobs.append(frame.rows_into(out, begin, width, begin - start, end - start))
            start += frame.row_count
        return form, out, width, jobs

    def picking(
        self,
        rows: npt.NDArray[np.int64],
        jobs: Jobs,
        *,
        narrow: bool = False,
        satisfying: Demanded | None = None,
    ) -> pa.Array:
        form = self.narrow_form if narrow else self.frames[0].form
        out, width = output(form, len(rows))
        starts = [-self.first]  # of the frames, as the rows are counted, and where the last of them ends
        for frame in self.frames:
            starts.append(starts[-1] + frame.row_count)
        borders = [0, len(rows)] if len(self.frames) == 1 else np.searchsorted(rows, starts).tolist()
        for frame, start, (begin, end) in zip(self.frames, starts[:-1], pairwise(borders), strict=True):
            jobs.fills.append(frame.picked_into(out, begin, width, rows[begin:end], start))
        bitmap, null_count = None, 0
        demands_value = satisfying is not None and satisfying.null == "none"
        if self.valid is not None and not demands_value:
            bitmap, null_count = pa.py_buffer(np.packbits(self.valid[rows], bitorder="little")), -1
        return pa.Array.from_buffers(form.arrow, len(rows), [bitmap, out], null_count)


def arrays_of(columns: Sequence[FrameRows], narrow: Sequence[bool]) -> list[pa.Array]:
    """`FrameRows.array` of several columns. Cost: one call of the kernels for all."""
    fillings = [rows._filling(is_narrow) for rows, is_narrow in zip(columns, narrow, strict=True)]
    kernels.fill([job for *_, jobs in fillings for job in jobs])
    return [
        pa.Array.from_buffers(form.arrow, rows.count, [None, out], 0)
        for rows, (form, out, _, _) in zip(columns, fillings, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class CodeRows:
    """codes: the rows' codewords, of the dictionary."""

    codes: FrameRows
    dictionary: pa.Array

    def matches(self, demanded: Demanded) -> Bools:
        return self.codes.matches(demanded)

    def questions(self, demanded: Demanded, changed: Answers | None = None) -> list[Question] | None:
        return self.codes.questions(demanded, changed)

    def picking(
        self,
        rows: npt.NDArray[np.int64],
        jobs: Jobs,
        *,
        narrow: bool = False,
        satisfying: Demanded | None = None,
    ) -> pa.Array:
        demands_value = satisfying is not None and (self.codes.valid is None or satisfying.null == "none")
        only = self.codes.numbers_of(satisfying).only if satisfying is not None and demands_value else None
        if only is not None:  # one word, whatever lies there
            return one_word(self.dictionary, only, len(rows))
        indices = self.codes.picking(rows, jobs, satisfying=satisfying)
        return pa.DictionaryArray.from_arrays(indices, self.dictionary, safe=False)


# Room that is never written costs no memory: the system has one page of zeros for all of it.
_SAME: Final = pa.py_buffer(np.zeros(1 << 20, np.int32))


def one_word(words: pa.Array, codeword: int, count: int) -> pa.DictionaryArray:
    """One word of a dictionary, so many times: with a dictionary of this word alone, which tells that it is the same.

    Cost: a few calls, whatever the count; beyond a million rows memory for their codewords.
    """
    zeros = _SAME if 4 * count <= _SAME.size else pa.py_buffer(np.zeros(count, np.int32))
    indices = pa.Array.from_buffers(pa.int32(), count, [None, zeros], 0)
    return pa.DictionaryArray.from_arrays(indices, words.slice(codeword, 1), safe=False)


def picked(
    encoded: EncodedRows,
    rows: npt.NDArray[np.int64],
    *,
    narrow: bool = False,
    satisfying: Demanded | None = None,
) -> pa.Array:
    """`EncodedRows.picking` of one column, done."""
    jobs = Jobs()
    array = encoded.picking(rows, jobs, narrow=narrow, satisfying=satisfying)
    jobs.do()
    return array


def rows_matching(questions: Sequence[Question], count: int) -> npt.NDArray[np.int64]:
    """Which of so many rows, at least one, satisfy what is asked of all columns; ascending, to be let go of soon.

    Cost: one call.
    """
    if not questions:
        return np.arange(count)
    out = scratch(np.int64, count + 1)
    return out[: kernels.rows_matching(questions, count, out)]


def rows_of(mask: Bools) -> npt.NDArray[np.int64]:
    """The rows that a mask, which is contiguous, has; ascending, to be let go of soon.

    Cost: as `np.flatnonzero`, but in memory that is used again: it would have that of eight bytes a row cleared.
    """
    out = scratch(np.int64, len(mask) + 1)
    return out[: kernels.places(mask.view(np.uint8), out)]


def _is_about_nothing(question: Question) -> bool:
    """Whether every delta is wanted."""
    wants_all: bool = question.least == 0 and question.greatest == (1 << question.bits) - 1
    return question.table is None and wants_all


def admitted_words(words: pa.Array, demanded: Demanded) -> Bools:
    """Of each word of a dictionary whether it satisfies what is demanded, as `Constraint.admits` says of it.

    Cost: one or two of Arrow's calls, for each comparison of a word test: bytes are compared, as text is.
    """
    if isinstance(demanded, WordTest):
        return demanded.admitted(words)
    constraint = demanded
    if constraint.empty or constraint.null == "only":
        return np.zeros(len(words), np.bool_)
    words = words.cast(pa.binary())
    if constraint.values is not None:
        values = pa.array(map(order_key, constraint.values), pa.binary())
        return _mask(pc.is_in(words, value_set=values))
    admitted = np.ones(len(words), np.bool_)
    if constraint.lower is not None:
        above = pc.greater_equal if constraint.lower_inclusive else pc.greater
        admitted &= _mask(above(words, pa.scalar(order_key(constraint.lower), pa.binary())))
    if constraint.upper is not None:
        below = pc.less_equal if constraint.upper_inclusive else pc.less
        admitted &= _mask(below(words, pa.scalar(order_key(constraint.upper), pa.binary())))
    return admitted


def _mask(array: pa.BooleanArray) -> Bools:
    mask: Bools = array.to_numpy(zero_copy_only=False)
    return mask
