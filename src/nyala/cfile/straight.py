"""Columns read straight: whole blocks from the file, by kernels that leave no object behind for each.

    values_of   all rows                                                                  `kernels.read_values`
    sieved      which rows satisfy what is asked of several columns                       `kernels.sieve`
    picked      the values of these rows; of a column that was asked, from what was       `kernels.read_values`
                read for that

Each is a call or two for all columns of a file, without the interpreter's lock. For columns whose blocks the cache is
not to keep; a column of which a kernel declined a block is `is_odd` from then on, and read in the ordinary way, which
knows what else there is and says what is wrong.

Thread-safety: as `reader`.
Source: decisions 0043, 0044.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile.block_source import BlockForm
from nyala.cfile.column_reader import ColumnReader
from nyala.cfile.kernels import Answers, Demand, Stretch
from nyala.cfile.memory import allocate, scratch
from nyala.cfile.number_set import NumberSet
from nyala.cfile.read_stats import ReadStats
from nyala.schema.word_test import Demanded

if TYPE_CHECKING:
    from nyala.cfile.reader import CFileReader

__all__ = ["Asked", "Sieved", "picked", "sieved", "values_of"]

Asked: TypeAlias = tuple[ColumnReader, BlockForm]

_NO_CODEWORD: Final = NumberSet(-1, -1, np.array([-1]))


@dataclass(frozen=True, eq=False)
class Sieved:
    """Rows of a window that satisfy what was asked, and what is known of the columns that were."""

    rows: npt.NDArray[np.int64]  # that are left, counted from the window's first; ascending
    mask: npt.NDArray[np.uint8]  # the same: of each row 1 or 0
    held: dict[ColumnReader, pa.Buffer] = field(default_factory=dict)
    """Of columns the blocks that have such a row, each where it lies behind all before it."""
    words: dict[ColumnReader, int] = field(default_factory=dict)
    """Of columns the codeword that all of the rows have."""


def values_of(
    asked: Sequence[Asked], lower: int, upper: int, stats: ReadStats | None
) -> list[pa.Array | None]:
    """The ordinals [lower, upper) of columns that go straight, in these forms. None: declined."""
    made = _read(asked, lower, upper, None, {}, stats)
    return _finished(asked, made)


def picked(
    asked: Sequence[Asked],
    lower: int,
    upper: int,
    rows: npt.NDArray[np.int64],
    known: Sieved | None,
    stats: ReadStats | None,
) -> list[pa.Array | None]:
    """The same of some of the rows, at least one, counted from `lower`, ascending. known: what told that these are all
    or some of those that are wanted."""
    words = {} if known is None else known.words
    left = [of for of in asked if of[0] not in words]
    made = iter(_finished(left, _read(left, lower, upper, rows, {} if known is None else known.held, stats)))
    return [reader.word(words[reader], len(rows)) if reader in words else next(made) for reader, _ in asked]


def _finished(asked: Sequence[Asked], made: Sequence[pa.Array | None]) -> list[pa.Array | None]:
    return [
        None if array is None else reader.finished(array, form)
        for (reader, form), array in zip(asked, made, strict=True)
    ]


def _read(
    asked: Sequence[Asked],
    lower: int,
    upper: int,
    rows: npt.NDArray[np.int64] | None,
    held: dict[ColumnReader, pa.Buffer],
    stats: ReadStats | None,
) -> list[pa.Array | None]:
    arrays: list[pa.Array | None] = [None] * len(asked)
    count = upper - lower if rows is None else len(rows)
    for file, places in _by_file(asked).items():
        made = [
            asked[place][0].stretch(
                asked[place][1], lower, upper, stats, rows=count, held=held.get(asked[place][0])
            )
            for place in places
        ]
        declined = file.read_values([stretch for stretch, _ in made], rows)
        for number, (place, (stretch, type)) in enumerate(zip(places, made, strict=True)):
            reader, form = asked[place]
            if number in declined:
                reader.is_odd = True
                continue
            arrays[place] = pa.Array.from_buffers(type, count, [None, stretch.out], 0)
            _note(reader, stretch, form if rows is None else "frames", stats)
    return arrays


def sieved(
    asked: Sequence[tuple[ColumnReader, Demanded, Answers | None]],
    wanted: Collection[ColumnReader],
    lower: int,
    upper: int,
    mask: npt.NDArray[np.bool_] | None,
    stats: ReadStats | None,
) -> Sieved | None:
    """Which of the ordinals [lower, upper), of these those of the mask, satisfy what is asked of columns that go
    straight. None: declined.

    asked:  of a column what is demanded, and what is said of rows that have another value than their block.
    wanted: columns whose values will be wanted, too: their blocks stay.
    """
    count = upper - lower
    left, out = scratch(np.uint8, count), scratch(np.int64, count + 1)
    found = Sieved(out, left)
    demands: list[Demand] = []
    for reader, what, answers in asked:
        numbers = reader.numbers_of(what)
        if numbers.is_empty:
            if answers is None or not answers[1].any():
                left.fill(0)
                return Sieved(out[:0], left)
            numbers = _NO_CODEWORD  # a word that only changed rows have
        if reader in wanted:
            if reader.has_dictionary and numbers.only is not None and answers is None:
                found.words[reader] = numbers.only
            else:
                found.held[reader] = allocate(reader.stored_bytes(lower, upper))
        stretch, _ = reader.stretch("plain", lower, upper, stats, rows=0, held=found.held.get(reader))
        demands.append(
            Demand(stretch, numbers.least, numbers.greatest, numbers.values, numbers.marked, answers)
        )
    rows = 0
    for file, places in _by_file([of[:2] for of in asked]).items():
        rows = file.sieve([demands[place] for place in places], mask, left, out)
        if rows < 0:
            asked[places[-1 - rows]][0].is_odd = True
            return None
        mask = left.view(np.bool_)
    for (reader, *_), demand in zip(asked, demands, strict=True):
        _note(reader, demand.stretch, "frames", stats)
    return Sieved(out[:rows], left, found.held, found.words)


def _by_file(asked: Sequence[tuple[ColumnReader, object]]) -> dict[CFileReader, list[int]]:
    """The places of the columns of each file."""
    places: dict[CFileReader, list[int]] = {}
    for place, (reader, _) in enumerate(asked):
        places.setdefault(reader.source.file, []).append(place)
    return places


def _note(reader: ColumnReader, stretch: Stretch, counted: BlockForm, stats: ReadStats | None) -> None:
    """The blocks that were read of a column."""
    blocks: Sequence[int] = reader.blocks_of(stretch.lower, stretch.upper)
    if 0 in stretch.touched:
        blocks = [block for block, was in zip(blocks, stretch.touched, strict=True) if was]
    reader.source.passed_at_once(blocks, counted, stats)
