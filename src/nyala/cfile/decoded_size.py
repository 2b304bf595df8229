"""How many bytes the values of a column take once they are decoded, told before a scan decodes them.

    fixed width      the type's
    text             block header: the size of the values before compression; no block is decoded for it
    prefixed text    the blocks themselves, decoded; at first what 16 rows with one prefix have between them at the most
    dictionary       the words' lengths, and the codewords for which word stands how often

What is cheap is asked first: a few headers, the longest word. Only where that says that a window may be too large for
the memory that there is, all blocks are asked, once for each reader of the column.

Bytes that are read for this are not compared with their CRC, or not believed where it is wrong: a wrong size makes a
window too large or too small, never a wrong value, and who decodes the block says that it is damaged.
"""

from __future__ import annotations

import contextlib
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.block import BlockHeader
from nyala.cfile.block_source import BlockSource, ReadStats
from nyala.cfile.footer import ColumnFooter
from nyala.cfile.physical import BYTES, binary_offsets
from nyala.errors import CorruptionError

__all__ = ["STEP_ROWS", "DecodedSize"]

# Sizes are told of so many rows at a time.
STEP_ROWS: Final = 512
_OFFSET_BYTES: Final = 4.0
# How much larger another block may be than those that are looked at first, for all one knows then.
_LARGER: Final = 4.0
# Of prefixed text: how much longer values are than prefixes and suffixes together. At the most 16 times, as so many
# rows have one prefix; and other blocks may be larger.
_PREFIXED: Final = 4.0
_PREFIXED_MAX: Final = 32.0
# Text of a column of one file that is no matter, however it is counted.
_TEXT_BYTES_SMALL: Final = 1 << 24
# What LZ4 makes of text, if not even a header can be read.
_TEXT_RATIO: Final = 3.0


class DecodedSize:
    """Of one column. Any thread; what two find out at once, both find out alike."""

    def __init__(self, source: BlockSource, footer: ColumnFooter) -> None:
        self._source = source
        self._footer = footer
        self.is_fixed = footer.form.kind != BYTES
        """Whether a value takes the same room as every other."""

    @cached_property
    def row_bytes(self) -> float:
        """About how many bytes a value takes on average: exact for fixed width, else by the words of the dictionary, or
        by a few blocks."""
        if self.is_fixed:
            return float(self._footer.form.arrow.bit_width / 8)
        if self._footer.dictionary_length:
            return _OFFSET_BYTES + self._words_bytes / max(1, self._footer.dictionary_count)
        rows, found = self._sampled
        return _OFFSET_BYTES + self._longer(_PREFIXED) * sum(found) / max(1, rows)

    def look_at_words(self, stats: ReadStats) -> None:
        """Read the dictionary, if there is one and it is not known yet: at the cost of who will need it anyway."""
        if self._footer.dictionary_length:
            with contextlib.suppress(CorruptionError):
                self._source.dictionary(stats)

    @cached_property
    def row_bytes_max(self) -> float:
        """About how many bytes a value takes on average where values are longest."""
        if self.is_fixed:
            return self.row_bytes
        if self._footer.dictionary_length:
            return _OFFSET_BYTES + self.word_bytes_max
        rows = min(self._footer.rows_per_block, self._footer.row_count)
        block_bytes = self._longer(_PREFIXED_MAX, _LARGER) * max(self._sampled[1], default=0)
        return _OFFSET_BYTES + block_bytes / max(1, rows)

    def _longer(self, prefixed: float, plain: float = 1.0) -> float:
        return prefixed if self._footer.encoding == format.ENCODING_PREFIX else plain

    @cached_property
    def word_bytes_max(self) -> int:
        """The longest word of the dictionary, which there is."""
        return int(self._word_lengths.max(initial=0))

    @cached_property
    def steps(self) -> npt.NDArray[np.float64]:
        """Bytes of each `STEP_ROWS` rows, the last of them what is left. Cost: looks at every block of text."""
        ends = np.append(np.arange(0, self._footer.row_count, STEP_ROWS), self._footer.row_count)
        return np.diff(self._before(ends))

    def text_bytes(self, lower: int, upper: int) -> int:
        """About how many bytes of text or binary the ordinals [lower, upper) are, decoded: as if the values of a block,
        or of `STEP_ROWS` codewords, were of one length. Together hardly more than they are, and never less.

        Cost: at first that of `steps`; of few codewords the dictionary's.
        """
        footer = self._footer
        if footer.dictionary_length and footer.row_count * self.word_bytes_max <= _TEXT_BYTES_SMALL:
            return (upper - lower) * self.word_bytes_max
        first, last = self._before(np.array([lower, upper])).tolist()
        return int(np.ceil(last - first - _OFFSET_BYTES * (upper - lower)))

    def _before(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Bytes of all values before these ordinals."""
        if self.is_fixed:
            return ordinals.astype(np.float64) * self.row_bytes
        return np.interp(ordinals, *self._counted)

    @cached_property
    def _counted(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """(ordinals, bytes of all values before each): where blocks end, or steps, if blocks have codewords for
        several."""
        footer = self._footer
        blocks, rows = range(footer.block_count), footer.rows_per_block
        if footer.dictionary_length:
            by_block = [self._steps_of_codes(block) for block in blocks]
            rows = min(rows, STEP_ROWS)
            sizes = np.concatenate([np.empty(0), *by_block])
        else:
            sizes = np.array([self._block_bytes(block) for block in blocks], np.float64)
        places = np.append(np.arange(0, footer.row_count, rows), footer.row_count)
        return places, np.append(0.0, np.cumsum(sizes))

    @cached_property
    def _words_bytes(self) -> int:
        try:
            return min(self._header(self._footer.dictionary_offset).values_size, format.DICTIONARY_BYTES_MAX)
        except CorruptionError:
            return self._footer.dictionary_length

    def _header(self, offset: int) -> BlockHeader:
        return BlockHeader.unpack(self._source.read_bytes(offset, format.BLOCK_HEADER.size))

    @cached_property
    def _word_lengths(self) -> npt.NDArray[Any]:
        try:
            return np.diff(binary_offsets(self._source.dictionary(None)))
        except CorruptionError:
            return np.zeros(0, np.int64)

    @cached_property
    def _sampled(self) -> tuple[int, list[int]]:
        """(rows, sizes before compression) of a few blocks: the longest as it is stored, and some from first to
        last."""
        lengths, count = self._footer.block_lengths, self._footer.block_count
        if not count:
            return 0, []
        blocks = {int(lengths.argmax()), 0, count // 2, count - 1}
        return sum(map(self._footer.block_rows, blocks)), [self._values_size(block) for block in blocks]

    def _values_size(self, block: int) -> int:
        """The block's values before compression, encoded as they are."""
        footer = self._footer
        if footer.compression == format.COMPRESSION_NONE:
            return int(footer.block_lengths[block])
        try:
            size = self._header(int(footer.block_offsets[block])).values_size
        except CorruptionError:
            size = int(_TEXT_RATIO * footer.block_lengths[block])
        return min(size, format.BLOCK_VALUES_BYTES_MAX)

    def _block_bytes(self, block: int) -> float:
        """Of text that is no codewords."""
        if self._footer.encoding != format.ENCODING_PLAIN:
            with contextlib.suppress(CorruptionError):
                return float(self._decoded(block, "plain").nbytes)
        # Lengths are let go of no sooner than values: they lie in one buffer. Offsets are made besides.
        return self._values_size(block) + _OFFSET_BYTES * self._footer.block_rows(block)

    def _steps_of_codes(self, block: int) -> npt.NDArray[np.float64]:
        rows = self._footer.block_rows(block)
        starts = np.arange(0, rows, STEP_ROWS)
        try:
            codes = self._decoded(block, "codes").indices
        except CorruptionError:
            return np.diff(np.append(starts, rows)) * self.row_bytes_max
        found = np.zeros(rows, np.int64)
        if codes.null_count < rows:
            places = np.frombuffer(codes.buffers()[1], np.int32)[codes.offset : codes.offset + rows]
            found = self._word_lengths[places]
            if codes.null_count:
                found[codes.is_null().to_numpy(zero_copy_only=False)] = 0
        return np.add.reduceat(found + _OFFSET_BYTES, starts)

    def _decoded(self, block: int, form: Any) -> pa.Array:
        if self._footer.dictionary_length:
            self._source.dictionary(None)
        data, offset = self._source.read(block)
        return self._source.decode(data, block, offset, form)
