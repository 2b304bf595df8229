"""Single values out of decoded blocks: which rows of which blocks, and one array of them.

    ordinals   7, 131080, 9, 131072        any order, any of them twice
    cut        block 0: 7, 9   block 1: 8, 0   the same for every column whose blocks have so many rows
    gathered   one array, in the order that was asked for

Look-ups ask every column of a rowset for the same rows, a handful in each block. So the cut is made once for all
columns (`Ordinals`), and values of fixed width are picked by NumPy, whose call costs a tenth of Arrow's `take`.

    file 1     words, words   ┐
    file 2     words          ├─ joined_picks: one array of the column's type, made and widened once
    file 3     array          ┘

Keys that come at random lie in every rowset. So what is picked from each file stays what it is there, words of the
smallest form (`Words`), until the column has them all.

Immutable but for what `Ordinals` remembers; any thread may use it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["Cut", "Ordinals", "Pick", "Words", "gathered", "joined_picks", "picked_words", "word_dtype"]

Places = npt.NDArray[np.int64]
# A slice costs a tenth of a `take`: so up to so many rows of a block are cut out one by one.
_SLICES_MAX: Final = 4
# Entries of dictionaries that are joined for each value that is looked up in them, and how many always may be.
_DICTIONARY_SHARE: Final = 4
_DICTIONARY_SMALL: Final = 1024
_null_count: Final = attrgetter("null_count")


@dataclass(frozen=True)
class Cut:
    """Ordinals by block: of `blocks[i]`, which ascend, the rows `inside[begin:end]` with `pieces[i]` = (begin, end)."""

    blocks: list[int]
    pieces: list[tuple[int, int]]
    inside: Places
    order: Places | None
    """Which ordinal, counted as they were given, each row of `inside` is; None: as they stand."""


class Ordinals:
    """Ordinals to gather, in any order; cut at block borders once for all columns with as many rows to a block."""

    __slots__ = ("_cuts", "count", "greatest", "least", "places")

    def __init__(self, places: Places) -> None:
        self.places: Final = places
        self.count: Final = len(places)
        self.least: Final = int(places.min()) if self.count else 0
        self.greatest: Final = int(places.max()) if self.count else -1
        self._cuts: dict[int, Cut] = {}

    def cut(self, rows_per_block_log2: int) -> Cut:
        """The ordinals, of which there is one at least, by block of 2^`rows_per_block_log2` rows."""
        found = self._cuts.get(rows_per_block_log2)
        if found is None:
            found = self._cuts[rows_per_block_log2] = self._cut(rows_per_block_log2)
        return found

    def _cut(self, log2: int) -> Cut:
        mask = (1 << log2) - 1
        first = self.least >> log2
        if first == self.greatest >> log2:
            inside = self.places if first == 0 else self.places & mask
            return Cut([first], [(0, self.count)], inside, None)
        blocks, inside, order = self.places >> log2, self.places & mask, None
        if (blocks[1:] < blocks[:-1]).any():
            order = np.argsort(blocks, kind="stable")
            blocks, inside = blocks[order], inside[order]
        borders = [0, *(np.flatnonzero(blocks[1:] != blocks[:-1]) + 1).tolist(), self.count]
        return Cut(blocks[borders[:-1]].tolist(), list(pairwise(borders)), inside, order)


def word_dtype(type: pa.DataType) -> np.dtype[Any] | None:
    """NumPy's type to move values of this one by: complex for those of 16 bytes. None for bits, text and binary."""
    if pa.types.is_boolean(type):
        return None
    try:
        width = type.bit_width // 8
    except ValueError:
        return None
    return np.dtype("<c16" if width == 16 else f"<u{width}") if width in (1, 2, 4, 8, 16) else None


def gathered(arrays: Sequence[pa.Array], cut: Cut, dtype: np.dtype[Any] | None) -> pa.Array:
    """The values at the cut's rows of these blocks, `arrays[i]` being `cut.blocks[i]`; in the order asked for.

    dtype: `word_dtype` of the arrays' type.
    """
    picked = picked_words(arrays, cut, dtype)
    if picked is None:
        return _taken(arrays, cut)
    return pa.Array.from_buffers(arrays[0].type, len(picked), [None, pa.py_buffer(picked)], 0)


def picked_words(
    arrays: Sequence[pa.Array], cut: Cut, dtype: np.dtype[Any] | None
) -> npt.NDArray[Any] | None:
    """`gathered`, as the words that the values are; None: they are not words, or some are NULL."""
    if dtype is None or any(map(_null_count, arrays)):
        return None
    if len(arrays) == 1 and arrays[0].offset == 0:
        only: npt.NDArray[Any] = np.frombuffer(arrays[0].buffers()[1], dtype)[cut.inside]
        return only
    picked = np.empty(len(cut.inside), dtype)
    inside, order = cut.inside, cut.order
    for array, (begin, end) in zip(arrays, cut.pieces, strict=True):
        values = np.frombuffer(array.buffers()[1], dtype, -1)
        rows = inside[begin:end]
        if array.offset:
            rows = rows + array.offset
        if order is None:
            picked[begin:end] = values[rows]
        else:
            picked[order[begin:end]] = values[rows]
    return picked


class Words:
    """Values of one column of one file, none of them NULL, in the smallest form that the file has of them."""

    __slots__ = ("dictionary", "kind", "values", "widen")

    def __init__(
        self,
        kind: Hashable,
        values: npt.NDArray[Any],
        dictionary: pa.Array | None,
        widen: Callable[[npt.NDArray[Any]], pa.Array],
    ) -> None:
        self.kind: Final = kind
        """Words of one kind may be laid end to end, those with dictionaries after their codewords were moved."""
        self.values: Final = values
        self.dictionary: Final = dictionary
        self.widen: Final = widen
        """Makes the column's own Arrow array of words of this kind (of codewords: their array)."""

    def array(self) -> pa.Array:
        made = self.widen(self.values)
        return made if self.dictionary is None else self.dictionary.take(made)


Pick: TypeAlias = "Words | pa.Array"


def joined_picks(picks: Sequence[Pick]) -> pa.Array:
    """What was picked from one file and another as one array; the arrays among them have the column's type.

    Cost: where all are words of one kind, O(1) calls besides joining them.
    """
    if len(picks) == 1:
        return picks[0].array() if isinstance(picks[0], Words) else picks[0]
    words = [pick for pick in picks if isinstance(pick, Words)]
    if len(words) < len(picks) or any(part.kind != words[0].kind for part in words):
        arrays = [pick.array() if isinstance(pick, Words) else pick for pick in picks]
        return pa.concat_arrays(arrays)
    dictionaries: list[Any] = [part.dictionary for part in words]
    if dictionaries[0] is None:
        return words[0].widen(np.concatenate([part.values for part in words]))
    # Few words and large dictionaries: joining these would cost more than looking up in each.
    starts = list(itertools.accumulate(map(len, dictionaries), initial=0))
    if starts[-1] > _DICTIONARY_SHARE * sum(len(part.values) for part in words) + _DICTIONARY_SMALL:
        return pa.concat_arrays([part.array() for part in words])
    codes = [part.values + start for part, start in zip(words, starts, strict=False)]
    return pa.concat_arrays(dictionaries).take(pa.array(np.concatenate(codes)))


def _taken(arrays: Sequence[pa.Array], cut: Cut) -> pa.Array:
    # Taking from each block and joining the few values, rather than joining the blocks first: a thousand scattered
    # rows must not copy a thousand blocks.
    parts = []
    for array, (begin, end) in zip(arrays, cut.pieces, strict=True):
        if end - begin <= _SLICES_MAX:
            parts += [array.slice(row, 1) for row in cut.inside[begin:end].tolist()]
        else:
            parts.append(array.take(pa.array(cut.inside[begin:end])))
    joined = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    if cut.order is None:
        return joined
    place = np.empty(len(cut.order), np.int64)
    place[cut.order] = np.arange(len(cut.order))
    return joined.take(pa.array(place))
