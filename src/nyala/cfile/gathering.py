"""Single values out of blocks, decoded or as they lie: which rows of which blocks, and one array of them.

    ordinals   7, 131080, 9, 131072        any order, any of them twice
    cut        block 0: 7, 9   block 1: 8, 0   the same for every column whose blocks have so many rows
    gathered   one array, in the order that was asked for

Look-ups ask every column of a rowset for the same rows, a handful in each block. So the cut is made once for all
columns (`Ordinals`), and values of fixed width are picked by NumPy, whose call costs a tenth of Arrow's `take`.

    file 1     words, words   ┐
    file 2     words          ├─ joined_picks: one array of the column's type, made and widened once
    file 3     array          ┘                (joined_columns: of several columns, one call of the kernels for all)

Keys that come at random lie in every rowset. So what is picked from each file stays what it is there, words of the
smallest form (`Words`), until the column has them all.

Immutable but for what `Ordinals` remembers; any thread may use it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import kernels
from nyala.cfile.encoding.frame import Frame, Rows, joined_words, output
from nyala.cfile.encoding.rle import Runs
from nyala.cfile.physical import Physical
from nyala.lazy_values import LazyValues, lazy_value

__all__ = ["Cut", "FramePick", "Ordinals", "Pick", "TextPick", "Words", "gathered", "joined_columns"]
__all__ += ["joined_picks", "one_pick", "picked_words", "text_pick"]

Places = npt.NDArray[np.int64]
Block: TypeAlias = "pa.Array | Frame | Runs"
# A slice costs a tenth of a `take`: so up to so many rows of a block are cut out one by one.
_SLICES_MAX: Final = 4
# Entries of dictionaries that are joined for each value that is looked up in them, and how many always may be.
_DICTIONARY_SHARE: Final = 4
_DICTIONARY_SMALL: Final = 1024
# Texts of a block that are cut out one by one: a slice of bytes costs less than Arrow's call for all does.
_CUT_OUT_MAX: Final = 64
_TEXT_BYTES_MAX: Final = (1 << 31) - 1
_null_count: Final = attrgetter("null_count")


@dataclass(frozen=True)
class Cut(LazyValues):
    """Ordinals by block: of `blocks[i]`, which ascend, the rows `inside[begin:end]` with `pieces[i]` = (begin, end)."""

    blocks: list[int]
    pieces: list[tuple[int, int]]
    inside: Places
    order: Places | None
    """Which ordinal, counted as they were given, each row of `inside` is; None: as they stand."""
    is_range: bool = False
    """Whether the rows are neighbours."""

    @lazy_value
    def rows(self) -> list[Rows]:
        """Of each block the rows in it: slices, where they are neighbours."""
        if self.is_range:
            firsts = [int(self.inside[begin]) for begin, _ in self.pieces]
            ranges = zip(firsts, self.pieces, strict=True)
            return [slice(first, first + end - begin) for first, (begin, end) in ranges]
        return [self.inside[begin:end] for begin, end in self.pieces]

    def parts(self, most: int) -> Iterator[Cut]:
        """The same in parts of so many blocks at the most; of a cut whose rows stand as they were asked for."""
        assert self.order is None
        for at in range(0, len(self.blocks), most):
            pieces = self.pieces[at : at + most]
            first, last = pieces[0][0], pieces[-1][1]
            inside = self.inside[first:last]
            moved = [(begin - first, end - first) for begin, end in pieces]
            yield Cut(self.blocks[at : at + most], moved, inside, None, self.is_range)


class Ordinals:
    """Ordinals to gather, in any order; cut at block borders once for all columns with as many rows to a block."""

    __slots__ = ("_cuts", "count", "greatest", "is_range", "least", "places")

    def __init__(self, places: Places, *, is_range: bool = False) -> None:
        """is_range: whether each is one more than the one before."""
        self.places: Final = places
        self.is_range: Final = is_range
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
            return Cut([first], [(0, self.count)], inside, None, self.is_range)
        blocks, inside, order = self.places >> log2, self.places & mask, None
        if (blocks[1:] < blocks[:-1]).any():
            order = np.argsort(blocks, kind="stable")
            blocks, inside = blocks[order], inside[order]
        borders = [0, *(np.flatnonzero(blocks[1:] != blocks[:-1]) + 1).tolist(), self.count]
        return Cut(blocks[borders[:-1]].tolist(), list(pairwise(borders)), inside, order, self.is_range)


def gathered(blocks: Sequence[Block], cut: Cut) -> pa.Array:
    """The values at the cut's rows of these blocks, `blocks[i]` being `cut.blocks[i]`; in the order asked for."""
    # Taking from each block and joining the few values, rather than joining the blocks first: a thousand scattered
    # rows must not copy a thousand blocks.
    parts = []
    for block, (begin, end) in zip(blocks, cut.pieces, strict=True):
        if isinstance(block, Frame | Runs):
            parts.append(block.pick(cut.inside[begin:end]))
        elif end - begin <= _SLICES_MAX:
            parts += [block.slice(row, 1) for row in cut.inside[begin:end].tolist()]
        else:
            parts.append(block.take(pa.array(cut.inside[begin:end])))
    # One slice by itself is copied too, or its block would stay with it.
    joined = (
        parts[0]
        if len(parts) == 1 and len(parts[0]) == len(cut.inside) > _SLICES_MAX
        else pa.concat_arrays(parts)
    )
    if cut.order is None:
        return joined
    place = np.empty(len(cut.order), np.int64)
    place[cut.order] = np.arange(len(cut.order))
    return joined.take(pa.array(place))


def picked_words(blocks: Sequence[Block], cut: Cut, dtype: np.dtype[Any] | None) -> npt.NDArray[Any] | None:
    """`gathered`, as the words that the values are; None: they are not words, or some are NULL.

    dtype: of words as wide as the arrays' values and the frames' numbers are (`word_dtype`).
    """
    if dtype is None or any(map(_null_count, blocks)):
        return None
    inside, order = cut.inside, cut.order
    if len(blocks) == 1:
        return _words_of(blocks[0], cut.rows[0], dtype)
    picked = np.empty(len(inside), dtype)
    for block, rows, (begin, end) in zip(blocks, cut.rows, cut.pieces, strict=True):
        words = _words_of(block, rows, dtype)
        if order is None:
            picked[begin:end] = words
        else:
            picked[order[begin:end]] = words
    return picked


def _words_of(block: Block, rows: Rows, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    words: npt.NDArray[Any]
    if isinstance(block, Frame | Runs):
        words = block.words(rows).view(dtype)
    else:
        of_block = np.frombuffer(block.buffers()[1], dtype)
        words = (of_block[block.offset :] if block.offset else of_block)[rows]
        if isinstance(rows, slice) and 2 * len(words) < len(of_block):
            words = words.copy()  # or all of the block would stay with it
    return words


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


class FramePick:
    """Values of one column of one file that lie in frames of reference: where, and not yet what. None is NULL."""

    __slots__ = ("form", "frames", "kind", "rows", "widen")

    def __init__(
        self,
        kind: Hashable,
        form: Physical,
        frames: Sequence[Frame],
        rows: Sequence[Rows],
        widen: Callable[[npt.NDArray[Any]], pa.Array],
    ) -> None:
        self.kind: Final = kind
        self.form: Final = form
        """The column's own: its decimals are wide."""
        self.frames: Final = frames
        self.rows: Final = rows
        """Of each frame."""
        self.widen: Final = widen
        """As of `Words`, whose `kind` is the same."""

    def words(self) -> Words:
        # Frames give signed numbers. Beside unsigned words NumPy would make floats of them, or twice the width.
        values = joined_words(self.frames, self.rows)
        return Words(self.kind, values.view(f"<u{values.itemsize}"), None, self.widen)

    def array(self) -> pa.Array:
        return _of_frames([[self]])[0]


class TextPick:
    """Text or binary of one column of one file, none of it NULL: how long each value is, and their bytes."""

    __slots__ = ("data", "kind", "lengths")

    def __init__(self, kind: pa.DataType, lengths: npt.NDArray[np.int32], data: Sequence[Any]) -> None:
        self.kind: Final = kind
        """The column's type, with offsets of 32 bits."""
        self.lengths: Final = lengths
        self.data: Final = data
        """What makes the values' bytes when it is joined."""

    def array(self) -> pa.Array:
        return joined_text([self])


def text_pick(blocks: Sequence[pa.Array], cut: Cut) -> TextPick | None:
    """The values at the cut's rows of these blocks of text; None: some are NULL, or rows come in another order.

    Owns: their bytes, unless they are most of a block: rows of very many blocks are joined at once, and these need not
          stay for it.
    """
    if cut.order is not None or any(map(_null_count, blocks)):
        return None
    lengths, data = [], []
    for block, rows in zip(blocks, cut.rows, strict=True):
        if not isinstance(rows, slice) and len(rows) > _CUT_OUT_MAX:
            block = block.take(pa.array(rows))
            rows = slice(0, len(block))
        _, offsets_buffer, values = block.buffers()
        offsets = np.frombuffer(offsets_buffer, np.int32)
        view = memoryview(b"" if values is None else values)
        if isinstance(rows, slice):
            of_rows = offsets[block.offset + rows.start : block.offset + rows.stop + 1]
            lengths.append(of_rows[1:] - of_rows[:-1])
            part = view[of_rows[0] : of_rows[-1]]
            data.append(bytes(part) if len(part) * 2 < len(view) else part)
        else:
            at = rows + block.offset if block.offset else rows
            starts, ends = offsets[at], offsets[at + 1]
            lengths.append(ends - starts)
            data.append(
                b"".join([view[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)])
            )
    return TextPick(blocks[0].type, _end_to_end(lengths), data)


def joined_text(picks: Sequence[TextPick]) -> pa.Array:
    """Raises: ArrowInvalid for more than 2 GiB, as Arrow does when it joins arrays."""
    lengths = _end_to_end([pick.lengths for pick in picks])
    size = int(lengths.sum(dtype=np.int64))
    if size > _TEXT_BYTES_MAX:
        raise pa.ArrowInvalid(
            f"offset overflow while joining {size} bytes of text: ask for fewer rows at once"
        )
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data = pa.py_buffer(b"".join(part for pick in picks for part in pick.data))
    return pa.Array.from_buffers(picks[0].kind, len(lengths), [None, pa.py_buffer(offsets), data], 0)


def one_pick(parts: Sequence[Pick]) -> Pick:
    """What was picked from one column of one file in parts."""
    texts = [part for part in parts if isinstance(part, TextPick)]
    if len(texts) == len(parts):
        data = [values for text in texts for values in text.data]
        return TextPick(texts[0].kind, _end_to_end([text.lengths for text in texts]), data)
    return joined_picks(parts)


def _end_to_end(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


Pick: TypeAlias = "Words | FramePick | TextPick | pa.Array"


def joined_columns(columns: Sequence[Sequence[Pick]]) -> list[pa.Array]:
    """`joined_picks` of several columns. Cost: one call of the kernels for all that lie in frames."""
    arrays: list[Any] = []
    of_frames: list[Sequence[FramePick]] = []
    for picks in columns:
        if (frames := _frames_alike(picks)) is None:
            arrays.append(joined_picks(picks))
        else:
            of_frames.append(frames)
            arrays.append(None)
    filled = iter(_of_frames(of_frames)) if of_frames else iter(())
    return [next(filled) if array is None else array for array in arrays]


def joined_picks(picks: Sequence[Pick]) -> pa.Array:
    """What was picked from one file and another as one array; the arrays among them have the column's type.

    Cost: where all are words of one kind, O(1) calls besides joining them.
    """
    if len(picks) == 1:
        return picks[0] if isinstance(picks[0], pa.Array) else picks[0].array()
    if (frames := _frames_alike(picks)) is not None:
        return _of_frames([frames])[0]
    texts = [pick for pick in picks if isinstance(pick, TextPick)]
    if len(texts) == len(picks) and all(pick.kind == texts[0].kind for pick in texts):
        return joined_text(texts)
    picks = [
        pick.words() if isinstance(pick, FramePick) else pick.array() if isinstance(pick, TextPick) else pick
        for pick in picks
    ]
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
    codes = [part.values.astype(np.int64) + start for part, start in zip(words, starts, strict=False)]
    return pa.concat_arrays(dictionaries).take(pa.array(np.concatenate(codes)))


def _frames_alike(picks: Sequence[Pick]) -> Sequence[FramePick] | None:
    """The picks, if they are all of frames and of one kind."""
    if len(picks) > 1:
        kinds = {pick.kind if isinstance(pick, FramePick) else None for pick in picks}
        return None if len(kinds) != 1 or None in kinds else cast("Sequence[FramePick]", picks)
    return cast("Sequence[FramePick]", picks) if isinstance(picks[0], FramePick) else None


def _of_frames(columns: Sequence[Sequence[FramePick]]) -> list[pa.Array]:
    """An array for each column of picks of one kind.

    Cost: compiled, a job for each frame, all of them in one call. The kernels in NumPy have a call or more for each
    frame and step; there `joined_words` takes fewer.
    """
    if not kernels.COMPILED:
        return [
            picks[0].widen(
                joined_words(
                    [frame for pick in picks for frame in pick.frames],
                    [rows for pick in picks for rows in pick.rows],
                )
            )
            for picks in columns
        ]
    jobs: list[kernels.Fill] = []
    made: list[tuple[Physical, int, pa.Buffer]] = []
    for picks in columns:
        form, at = picks[0].form, 0
        if len(picks) == 1 and len(picks[0].frames) == 1:
            (rows,) = picks[0].rows
            at = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
            out, width = output(form, at)
            jobs.append(picks[0].frames[0].picked_into(out, 0, width, rows))
            made.append((form, at, out))
            continue
        pieces = [piece for pick in picks for piece in zip(pick.frames, pick.rows, strict=True)]
        counts = [rows.stop - rows.start if isinstance(rows, slice) else len(rows) for _, rows in pieces]
        out, width = output(form, sum(counts))
        for (frame, rows), count in zip(pieces, counts, strict=True):
            jobs.append(frame.picked_into(out, at, width, rows))
            at += count
        made.append((form, at, out))
    kernels.fill(jobs)
    return [pa.Array.from_buffers(form.arrow, count, [None, out], 0) for form, count, out in made]
