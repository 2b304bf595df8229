"""Single values of a column: taken out of blocks as these lie, or are kept, without the rest of them.

    gather, pick, value        scattered ordinals; the same to be joined with those of other files; one
    between                    a few neighbours
    pick_all, few_between,     of several columns, whose blocks the cache is asked for at once
    values_at

Few values of a block are taken from it in the form `few`, in which it is as small as in the file where its encoding has
a place for each value: frames, runs, codewords. Many are taken from the form `small`, of which no value is widened that
nobody asked for. Both are kept in the cache, so that what is asked again costs no read.

Trust and threads: as `reader`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.block import column_validity
from nyala.cfile.block_source import BlockForm, BlockSource
from nyala.cfile.column import BLOOM, KEY
from nyala.cfile.decoded_size import DecodedSize
from nyala.cfile.encoding.dictionary import codeword_dtype
from nyala.cfile.encoding.frame import Frame
from nyala.cfile.encoding.rle import Runs
from nyala.cfile.footer import ColumnFooter
from nyala.cfile.gathering import (
    Cut,
    FramePick,
    Ordinals,
    Pick,
    Words,
    gathered,
    joined_columns,
    one_pick,
    picked_words,
    text_pick,
)
from nyala.cfile.kernels import Fill, fill
from nyala.cfile.memory import allocate, pool
from nyala.cfile.physical import BYTES, narrow_decimal, word_dtype
from nyala.cfile.read_stats import ReadStats
from nyala.errors import CorruptionError
from nyala.schema.arrow_values import python_at, python_value

__all__ = ["PART_LOG2", "SingleValues", "few_between", "pick_all", "values_at"]

# A read of fewer rows than this part of a block is a look-up: it takes single values from what lies there.
PART_LOG2: Final = 4
# So many blocks are held at once, whatever they take.
_BLOCKS_FEW: Final = 4
_FRAMES: Final = {Frame}


class SingleValues:
    """Those of one column. Made by `ColumnReader`; lives as long. arrow: the type of what is given."""

    def __init__(
        self, source: BlockSource, footer: ColumnFooter, arrow: pa.DataType, size: DecodedSize
    ) -> None:
        self._source = source
        self._size = size
        self._footer = footer
        self._arrow = arrow
        # The form to take many values of a block from, and that for few, which takes the least room in the cache.
        self._small: BlockForm = "plain"
        self._words = word_dtype(arrow)
        narrow = None if footer.key.role == BLOOM else narrow_decimal(footer.form.type)
        self._has_narrow = narrow is not None
        if footer.dictionary_length:
            self._small, self._words = "codes", word_dtype(pa.int32())
        elif narrow is not None:
            self._small, self._words = "narrow", word_dtype(narrow)
        self._few: BlockForm = self._small
        self._few_words = self._words
        if footer.dictionary_length:
            self._few, self._few_words = "packed", codeword_dtype(footer.dictionary_count)
        elif footer.encoding == format.ENCODING_FOR and not footer.form.is_wide:
            self._few, self._few_words = "packed", np.dtype(f"<u{footer.form.width_bytes}")
        elif footer.has_runs and not footer.null_count and self._words is not None:
            self._few = "packed"
        self._few_kind = ("" if self._few_words is None else self._few_words.str, arrow)
        self._packs_frames = self._few == "packed" and footer.has_frames
        # Keys of many blocks may have offsets of 64 bits.
        self._is_text = footer.form.kind == BYTES and not footer.dictionary_length and footer.key.role != KEY
        # So many values at the most are few, wherever they lie.
        self._block_rows = min(footer.rows_per_block, footer.row_count)
        self._few_rows = self._block_rows >> PART_LOG2
        self._log2 = footer.rows_per_block_log2
        self._mask = footer.rows_per_block - 1
        # Whether those few are codewords.
        self._has_codes = self._few == "packed" and bool(footer.dictionary_length)
        self._python = python_value(footer.form.type)

    def gather(
        self,
        ordinals: npt.NDArray[np.int64] | Ordinals,
        *,
        stats: ReadStats | None = None,
        fill_cache: bool = True,
        scanning: bool = False,
    ) -> pa.Array:
        """The values at these ordinals, in their order; an ordinal may come twice. `scanning`: as
        `ColumnReader.read`.

        Cost: few values of a block are taken from it as it lies, if its encoding has a place for each: no other value
              is made, and the block that is kept in the cache is as small. Of other encodings, or for many values, each
              touched block is decoded once, to the form that takes the least room; only what is asked for is widened.
        """
        if not isinstance(ordinals, Ordinals):
            ordinals = Ordinals(ordinals)
        if not ordinals.count:
            return pa.nulls(0, self._arrow)
        # A scan that picks a few rows asks for the whole block, as far as keeping it goes.
        scan = (
            (0, self._footer.row_count) if scanning and self._source.is_pass(scanning, fill_cache) else None
        )
        picked = self._pick(ordinals, stats, fill_cache, scan, is_few=not scanning and self._is_few(ordinals))
        return picked if isinstance(picked, pa.Array) else picked.array()

    def pick(self, ordinals: Ordinals, stats: ReadStats | None = None) -> Pick:
        """The values at these ordinals, of which there is one at least, to be joined with those of other files.

        Cost: as `gather`, but that words are neither made an array nor widened here.
        """
        return self._pick(ordinals, stats, True, None, is_few=self._is_few(ordinals))

    def between(self, lower: int, upper: int, stats: ReadStats | None, fill_cache: bool) -> pa.Array:
        """The ordinals [lower, upper), a few, one at least."""
        if self._few == "packed":
            ordinals = Ordinals(np.arange(lower, upper), is_range=True)
            return self.gather(ordinals, stats=stats, fill_cache=fill_cache)
        blocks = self._source.between(lower, upper, stats, fill_cache, self._small, False)
        arrays = [self._plain(block) for block in blocks]
        if len(arrays) == 1 and (arrays[0] is not blocks[0] or len(arrays[0]) << 1 > self._block_rows):
            return arrays[0]
        # Copied, or the rest of a block would stay with a part of it.
        return pa.concat_arrays(arrays, memory_pool=pool())

    def value(self, ordinal: int) -> Any:
        """One value as `python_at` gives it. Cost: no array is made of a block that is kept as it lies.

        Raises: CorruptionError, also for what is no value of the type.
        """
        return values_at([self], ordinal)[0]

    def _value_of(self, ordinal: int, kept: Any | None) -> Any:
        """`value`, of its block as the cache has it; None: it does not."""
        assert 0 <= ordinal < self._footer.row_count
        row = ordinal & self._mask
        if kept is None:
            kept = self._source.blocks((ordinal >> self._log2,), None, True, self._few)[0]
        try:
            if type(kept) is Frame or type(kept) is Runs:
                found = self._python(kept.number(row))
            else:
                found = python_at(kept, row)
        except CorruptionError as error:
            offset = int(self._footer.block_offsets[ordinal >> self._log2])
            raise CorruptionError(error.reason, self._source.path, offset) from error.__cause__
        if self._has_codes and found is not None:
            return self._source.dictionary(None)[found].as_py()
        return found

    def _is_few(self, ordinals: Ordinals) -> bool:
        if self._footer.dictionary_length:
            return True
        return ordinals.count <= len(ordinals.cut(self._log2).blocks) * self._block_rows >> PART_LOG2

    def _pick(
        self,
        ordinals: Ordinals,
        stats: ReadStats | None,
        fill_cache: bool,
        scan: tuple[int, int] | None,
        *,
        is_few: bool,
    ) -> Pick:
        assert ordinals.least >= 0 and ordinals.greatest < self._footer.row_count
        cut = ordinals.cut(self._log2)
        form = self._few if is_few else self._small

        def picked(part: Cut) -> Pick:
            blocks = self._source.blocks(part.blocks, stats, fill_cache, form, scan)
            return self._pick_from(blocks, part, is_few=is_few)

        most = len(cut.blocks)
        if most > _BLOCKS_FEW and cut.order is None and self._source.cache is not None:
            # Of a few rows in each of many blocks, not all of these are held at once.
            block_bytes = self._block_rows * (4 if self._footer.dictionary_length else self._size.row_bytes)
            most = max(_BLOCKS_FEW, int(self._source.cache.limit_bytes // max(1, block_bytes)))
        if len(cut.blocks) <= most:
            return picked(cut)
        found = [picked(part) for part in cut.parts(most)]
        return one_pick([pick.words() if isinstance(pick, FramePick) else pick for pick in found])

    def _pick_from(self, blocks: Sequence[Any], cut: Cut, *, is_few: bool = True) -> Pick:
        """The values at the cut's rows of these blocks, which are in the form for few values or in that for many."""
        # By the blocks themselves: a footer that knows of no NULL may be wrong.
        if is_few and self._packs_frames and cut.order is None and set(map(type, blocks)) == _FRAMES:
            return FramePick(self._few_kind, self._footer.form, blocks, cut.rows, self._from_words)
        if self._is_text and (text := text_pick(blocks, cut)) is not None:
            return text
        dtype = self._few_words if is_few else self._words
        if not self._footer.dictionary_length:
            words = picked_words(blocks, cut, dtype)
            if words is None:
                return self._plain(gathered(blocks, cut))
            return Words((words.dtype.str, self._arrow), words, None, self._from_words)
        codes = blocks if is_few and self._few == "packed" else [array.indices for array in blocks]
        words = picked_words(codes, cut, dtype)
        if words is None:
            return self._source.dictionary(None).take(gathered(codes, cut))
        return Words(("codes", self._arrow), words, self._source.dictionary(None), _codewords)

    def _from_words(self, words: npt.NDArray[Any]) -> pa.Array:
        """Words, codewords excepted, in the type's own Arrow form."""
        data, form = pa.py_buffer(words), self._footer.form
        if form.is_narrowed and words.itemsize == form.width_bytes:
            return form.fixed_array(data, len(words), None, 0)
        return pa.Array.from_buffers(self._arrow, len(words), [None, data], 0)

    def _plain(self, array: pa.Array) -> pa.Array:
        """Values of a smaller form in the type's own Arrow form."""
        if isinstance(array, pa.DictionaryArray):
            return array.dictionary_decode()
        if self._has_narrow and array.type != self._arrow:
            # Not by Arrow's cast, which looks at each value's digits, of those under NULLs as well.
            width = self._footer.form.width_bytes
            values = array.buffers()[1].slice(array.offset * width, len(array) * width)
            validity = column_validity(array)
            return self._footer.form.fixed_array(values, len(array), validity, array.null_count)
        return array


def values_at(columns: Sequence[SingleValues], ordinal: int) -> list[Any]:
    """`value` of several base columns. Cost: the cache is asked once for the blocks of all of them."""
    if not columns:
        return []
    cache = columns[0]._source.cache
    if cache is None:
        return [column._value_of(ordinal, None) for column in columns]
    kept = cache.get_all([column._source.name(column._few, ordinal >> column._log2) for column in columns])
    return [column._value_of(ordinal, block) for column, block in zip(columns, kept, strict=True)]


def pick_all(columns: Sequence[SingleValues], ordinals: Ordinals, stats: ReadStats | None) -> list[Pick]:
    """`pick` of several base columns. Cost: the cache is asked once for the blocks of all of them.

    Owns: the values, or they lie in frames that the cache has: blocks that were decoded for values of many files
          would be much together, and need not stay until these are joined.
    """
    if not columns:
        return []
    cache, count = columns[0]._source.cache, ordinals.count
    asked: list[tuple[int, Any]] = []
    cuts: list[Cut | None] = []
    for column in columns:
        cut = None
        if cache is not None and (count <= column._few_rows or column._is_few(ordinals)):
            cut = ordinals.cut(column._log2)
            asked += column._source.names(column._few, cut.blocks)
        cuts.append(cut)
    kept = cache.get_all(asked) if cache is not None else []
    found: list[Pick] = []
    hits: list[tuple[int, int]] = []
    at = 0
    for column, cut in zip(columns, cuts, strict=True):
        if cut is None:
            found.append(column.pick(ordinals, stats))
            continue
        begin, at = at, at + len(cut.blocks)
        blocks = kept[begin:at]
        if None in blocks:
            pick = column.pick(ordinals, stats)
            found.append(pick.words() if isinstance(pick, FramePick) else pick)
            continue
        source = id(column._source)
        for number in cut.blocks:
            hits.append((source, number))
        found.append(column._pick_from(blocks, cut))
    if stats is not None:
        stats.cache_hits += len(hits)
        stats.base_blocks.update(hits)
    return found


def few_between(
    columns: Sequence[SingleValues], lower: int, upper: int, stats: ReadStats | None
) -> list[pa.Array]:
    """The ordinals [lower, upper), few, one at least, of several base columns: `pick_all`, made arrays.

    Cost: of a column whose rows lie in one block that the cache has, five calls or so.
    """
    cache = columns[0]._source.cache if columns else None
    arrays: list[Any] = [None] * len(columns)
    others: list[int] = []
    near: list[tuple[int, int]] = []  # of the columns, and the block
    asked: list[tuple[int, Any]] = []
    for place, column in enumerate(columns):
        number = lower >> column._log2
        if cache is None or upper - lower > column._few_rows or (upper - 1) >> column._log2 != number:
            others.append(place)
        else:
            near.append((place, number))
            asked.append(column._source.name(column._few, number))
    jobs: list[Fill] = []
    made: list[tuple[int, pa.DataType, pa.Buffer]] = []
    kept = cache.get_all(asked) if cache is not None else []
    for (place, number), block in zip(near, kept, strict=True):
        column = columns[place]
        if column._packs_frames and type(block) is Frame:
            width = column._footer.form.arrow_width_bytes
            row = lower & column._mask
            out = allocate((upper - lower) * width)
            jobs.append(block.picked_into(out, 0, width, slice(row, row + upper - lower)))
            made.append((place, column._arrow, out))
        elif column._has_codes and isinstance(block, pa.Array) and not block.null_count:
            codes = block.slice(lower & column._mask, upper - lower)
            arrays[place] = column._source.dictionary(None).take(codes)
        elif isinstance(block, pa.Array) and block.type == column._arrow:
            # Copied, or the block would stay with it.
            arrays[place] = pa.concat_arrays([block.slice(lower & column._mask, upper - lower)])
        else:
            others.append(place)
            continue
        if stats is not None:
            stats.cache_hits += 1
            stats.base_blocks.add((id(column._source), number))
    if jobs:
        fill(jobs)
    for place, type_, out in made:
        arrays[place] = pa.Array.from_buffers(type_, upper - lower, [None, out], 0)
    if others:
        ordinals = Ordinals(np.arange(lower, upper), is_range=True)
        picked = pick_all([columns[place] for place in others], ordinals, stats)
        for place, array in zip(others, joined_columns([[pick] for pick in picked]), strict=True):
            arrays[place] = array
    return arrays


def _codewords(words: npt.NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(pa.from_numpy_dtype(words.dtype), len(words), [None, pa.py_buffer(words)], 0)
