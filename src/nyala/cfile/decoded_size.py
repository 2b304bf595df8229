"""How many bytes the values of a column take once they are decoded, told before a scan decodes them.

    fixed width      the type's
    text             block header: the size of the values before compression; no block is decoded for it
    prefixed text    the blocks themselves, decoded; at first what 16 rows with one prefix have between them at the most
    dictionary       the words' lengths, and the codewords for which word stands how often

What is cheap is asked first: what blocks may hold at the most, and the longest word (`bytes_limit`); then headers
(`bytes_max`). Only where these say that a window may be too large for the memory that there is, blocks are asked
(`steps`). All ask of the blocks that rows of the window are in and of no others, each once for each reader of the
column: blocks need not be alike, and who reads one row decodes one.

Bytes that are read for this are not compared with their CRC, or not believed where it is wrong: a wrong size makes a
window too large or too small, never a wrong value, and who decodes the block says that it is damaged.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.block import BlockHeader
from nyala.cfile.block_source import BlockSource
from nyala.cfile.footer import ColumnFooter
from nyala.cfile.physical import BYTES, binary_offsets
from nyala.cfile.read_stats import ReadStats
from nyala.errors import CorruptionError
from nyala.lazy_values import LazyValues, lazy_value

__all__ = ["STEP_ROWS", "DecodedSize", "step_ends"]

# Sizes are told of so many rows at a time.
STEP_ROWS: Final = 512
_OFFSET_BYTES: Final = 4.0
# Of prefixed text: how much longer values are than prefixes and suffixes together. At the most 16 times, as so many
# rows have one prefix.
_PREFIXED: Final = 4.0
_PREFIXED_MAX: Final = 16.0
# Where in a block's header the size of its values stands: headers are read of many blocks, and this alone is wanted.
_VALUES_SIZE: Final = 5
# Text of a column of one file that is no matter, however it is counted.
_TEXT_BYTES_SMALL: Final = 1 << 24
# What LZ4 makes of text, if not even a header can be read.
_TEXT_RATIO: Final = 3.0


def step_ends(lower: int, upper: int) -> npt.NDArray[np.int64]:
    """`lower`, the multiples of `STEP_ROWS` up to `upper`, and it."""
    return np.clip(np.arange(lower // STEP_ROWS, -(-upper // STEP_ROWS) + 1) * STEP_ROWS, lower, upper)


class DecodedSize(LazyValues):
    """Of one column. Any thread; what two find out at once, both find out alike."""

    def __init__(self, source: BlockSource, footer: ColumnFooter) -> None:
        self._source = source
        self._footer = footer
        self.is_fixed = footer.form.kind != BYTES
        """Whether a value takes the same room as every other."""
        self._sizes: dict[int, int] = {}  # by block: of its values before compression
        self._known: dict[int, npt.NDArray[np.float64]] = {}

    @lazy_value
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

    def bytes_limit(self, lower: int, upper: int) -> float:
        """More than the ordinals [lower, upper) can be, as their blocks were written. Cost: of a dictionary its words'
        lengths; nothing else is read."""
        if self.is_fixed or self._footer.dictionary_length:
            return self.bytes_max(lower, upper)
        return _OFFSET_BYTES * (upper - lower) + format.BLOCK_SIZE_BYTES_MAX * len(self._blocks(lower, upper))

    def bytes_max(self, lower: int, upper: int) -> float:
        """About how many bytes the ordinals [lower, upper) are at the most.

        Cost: of text the headers of their blocks, 32 bytes each; of a dictionary its words' lengths.
        """
        if self.is_fixed:
            return (upper - lower) * self.row_bytes
        if self._footer.dictionary_length:
            return (upper - lower) * (_OFFSET_BYTES + self.word_bytes_max)
        stored = 0.0
        for block in self._blocks(lower, upper):
            first, rows = block << self._footer.rows_per_block_log2, self._footer.block_rows(block)
            stored += self._values_size(block) * (min(upper, first + rows) - max(lower, first)) / rows
        return _OFFSET_BYTES * (upper - lower) + self._longer(_PREFIXED_MAX) * stored

    def block_bytes_max(self, lower: int, upper: int) -> float:
        """Bytes of the largest block that has some of these ordinals. Cost: of text that of `steps`."""
        if self.is_fixed:
            return self.row_bytes * min(self._footer.rows_per_block, self._footer.row_count)
        return max(float(self._block_sizes(block).sum()) for block in self._blocks(lower, upper))

    def _blocks(self, lower: int, upper: int) -> range:
        """Those of the ordinals [lower, upper), of which there is one."""
        shift = self._footer.rows_per_block_log2
        return range(lower >> shift, ((upper - 1) >> shift) + 1)

    def _longer(self, prefixed: float) -> float:
        return prefixed if self._footer.encoding == format.ENCODING_PREFIX else 1.0

    @lazy_value
    def word_bytes_max(self) -> int:
        """The longest word of the dictionary, which there is."""
        return int(self._word_lengths.max(initial=0))

    def steps(self, lower: int, upper: int) -> npt.NDArray[np.float64]:
        """Bytes of the ordinals [lower, upper), from one multiple of `STEP_ROWS` to the next; the first and the last
        have what is left. Cost: looks at each of their blocks of text, once."""
        return np.diff(self._before(step_ends(lower, upper)))

    def text_bytes(self, lower: int, upper: int) -> int:
        """About how many bytes of text or binary the ordinals [lower, upper) are, decoded: as if the values of a block,
        or of `STEP_ROWS` codewords, were of one length. Together hardly more than they are, and never less.

        Cost: that of `steps`; of few codewords the dictionary's.
        """
        footer = self._footer
        if footer.dictionary_length and footer.row_count * self.word_bytes_max <= _TEXT_BYTES_SMALL:
            return (upper - lower) * self.word_bytes_max
        if lower == upper:
            return 0
        first, last = self._before(np.array([lower, upper])).tolist()
        return int(np.ceil(last - first - _OFFSET_BYTES * (upper - lower)))

    def _before(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Bytes of the values before each of these ordinals, which ascend, from the first one's block on."""
        if self.is_fixed:
            return ordinals.astype(np.float64) * self.row_bytes
        footer, shift = self._footer, self._footer.rows_per_block_log2
        blocks = self._blocks(int(ordinals[0]), int(ordinals[-1]))
        sizes = np.concatenate([self._block_sizes(block) for block in blocks])
        rows = min(footer.rows_per_block, STEP_ROWS) if footer.dictionary_length else footer.rows_per_block
        begin, end = blocks.start << shift, min(blocks.stop << shift, footer.row_count)
        places = np.append(np.arange(begin, end, rows), end)
        before: npt.NDArray[np.float64] = np.interp(ordinals, places, np.append(0.0, np.cumsum(sizes)))
        return before

    def _block_sizes(self, block: int) -> npt.NDArray[np.float64]:
        """Bytes of a block's values; of codewords' for each `STEP_ROWS` of them."""
        found = self._known.get(block)
        if found is None:
            if self._footer.dictionary_length:
                found = self._steps_of_codes(block)
            else:
                found = np.array([self._block_bytes(block)])
            self._known[block] = found
        return found

    @lazy_value
    def _words_bytes(self) -> int:
        try:
            header = self._source.read_bytes(self._footer.dictionary_offset, format.BLOCK_HEADER.size)
            return min(BlockHeader.unpack(header).values_size, format.DICTIONARY_BYTES_MAX)
        except CorruptionError:
            return self._footer.dictionary_length

    @lazy_value
    def _word_lengths(self) -> npt.NDArray[Any]:
        try:
            return np.diff(binary_offsets(self._source.dictionary(None)))
        except CorruptionError:
            return np.zeros(0, np.int64)

    @lazy_value
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
        size = self._sizes.get(block)
        if size is None:
            try:
                header = self._source.read_bytes(int(footer.block_offsets[block]), format.BLOCK_HEADER.size)
                size = int(format.BLOCK_HEADER.unpack(header)[_VALUES_SIZE])
            except CorruptionError:
                size = int(_TEXT_RATIO * footer.block_lengths[block])
            self._sizes[block] = size = min(size, format.BLOCK_VALUES_BYTES_MAX)
        return size

    def _block_bytes(self, block: int) -> float:
        """Of text that is no codewords."""
        if self._footer.encoding != format.ENCODING_PLAIN:
            with contextlib.suppress(CorruptionError):
                return float(self._decoded(block, self._footer.form.arrow).nbytes)
        # Lengths are let go of no sooner than values: they lie in one buffer. Offsets are made besides.
        return self._values_size(block) + _OFFSET_BYTES * self._footer.block_rows(block)

    def _steps_of_codes(self, block: int) -> npt.NDArray[np.float64]:
        rows = self._footer.block_rows(block)
        starts = np.arange(0, rows, STEP_ROWS)
        try:
            codes = self._decoded(block, pa.dictionary(pa.int32(), self._footer.form.arrow)).indices
        except CorruptionError:
            return np.diff(np.append(starts, rows)) * (_OFFSET_BYTES + self.word_bytes_max)
        found = np.zeros(rows, np.int64)
        if codes.null_count < rows:
            places = np.frombuffer(codes.buffers()[1], np.int32)[codes.offset : codes.offset + rows]
            found = self._word_lengths[places]
            if codes.null_count:
                found[codes.is_null().to_numpy(zero_copy_only=False)] = 0
        return np.add.reduceat(found + _OFFSET_BYTES, starts)

    def _decoded(self, block: int, type: pa.DataType) -> pa.Array:
        if self._footer.dictionary_length:
            self._source.dictionary(None)
        data, offset = self._source.read(block)
        return self._source.decode(data, block, offset).decode(0, self._footer.block_rows(block), type)
