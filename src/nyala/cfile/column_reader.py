"""One column of a column file: its footer, and its values as Arrow arrays, block by block.

    read, read_codes, read_narrow, read_runs     ordinals [lower, upper) in one of the forms that the blocks have
    singles                                      scattered ordinals, single ones: `single_values`
    encoded                                      a range as it lies, which tells what satisfies a constraint
                     |
                     v
    block_source     the blocks, from the cache or the file, decoded to that form

Trust and threads: as `reader`, which makes these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import format, kernels
from nyala.cfile.block_source import BlockForm, BlockSource
from nyala.cfile.column import BLOOM, KEY, ColumnKey, ColumnPlace
from nyala.cfile.compression import compression_name
from nyala.cfile.decoded_size import DecodedSize
from nyala.cfile.encoded_rows import (
    CodeRows,
    EncodedRows,
    FrameRows,
    admitted_words,
    one_word,
)
from nyala.cfile.encoding import encoding_by_code, picks_single_values
from nyala.cfile.encoding.dictionary import CODEWORDS
from nyala.cfile.encoding.frame import Frame, output, value_bounds
from nyala.cfile.encoding.words import words_of
from nyala.cfile.errors import SummaryError
from nyala.cfile.footer import ColumnFooter
from nyala.cfile.kernels import Stretch
from nyala.cfile.memory import WINDOW_ROWS, pool
from nyala.cfile.number_set import NumberSet
from nyala.cfile.physical import BYTES, Physical, narrow_decimal, narrow_physical
from nyala.cfile.read_stats import ReadStats
from nyala.cfile.single_values import PART_LOG2, SingleValues
from nyala.cfile.zonemap import Zone, zone_of
from nyala.errors import CorruptionError
from nyala.lazy_values import LazyValues, lazy_value
from nyala.schema.arrow_values import is_sound, rows_of
from nyala.schema.constraint import Constraint
from nyala.schema.types import ColumnType
from nyala.schema.word_test import Demanded

if TYPE_CHECKING:
    from nyala.cfile.reader import CFileReader

__all__ = ["ColumnReader"]

# Of a block that holds so many times the rows that are asked for, these are copied: the rest of it need not stay. A
# window that is whole is a quarter of the largest block; one that was cut, as its rows take much, down to an eighth.
_COPIED_LOG2: Final = 1
_COPIED_WINDOW_LOG2: Final = 3
# Answers of `excluded_blocks`, and of `numbers_of`.
_EXCLUDED_KEPT: Final = 16


class ColumnReader(LazyValues):
    """One column of a file. Made by `CFileReader.column`; lives as long as the file's reader."""

    def __init__(self, reader: CFileReader, footer: ColumnFooter, place: ColumnPlace) -> None:
        self._footer = footer
        self.place = place
        self._column_zone: Zone | None = None
        self._excluded: dict[Constraint, npt.NDArray[np.bool_]] = {}
        self._numbers: dict[Demanded, NumberSet] = {}
        self.is_odd = False
        """Whether `straight` met a block that it does not read."""
        self._arrow = pa.large_binary() if footer.key.role == KEY else footer.form.arrow
        self._source = BlockSource(reader, footer, place, self._arrow)
        self._has_narrow = footer.key.role != BLOOM and narrow_decimal(footer.form.type) is not None
        self._narrow_form = narrow_physical(footer.form.type) if self._has_narrow else footer.form
        self._block_rows = min(self.rows_per_block, footer.row_count)
        self._mask = footer.rows_per_block - 1
        self._is_text = footer.form.kind == BYTES and not footer.dictionary_length and footer.key.role != KEY
        self.decoded_size = DecodedSize(self._source, footer)

    # -- what the footer says ------------------------------------------------------------------------------

    @property
    def key(self) -> ColumnKey:
        return self._footer.key

    @property
    def type(self) -> ColumnType:
        return self._footer.form.type

    @property
    def arrow(self) -> pa.DataType:
        """Arrow's type of what `read`, `gather` and `pick` give."""
        return self._arrow

    @property
    def code(self) -> int:
        """The type's number on disk (`format.TYPE_*`)."""
        return self._footer.form.code

    @property
    def encoding(self) -> str:
        encoding = encoding_by_code(self._footer.encoding)
        assert encoding is not None  # the footer was refused otherwise
        return encoding.name

    @property
    def compression(self) -> str:
        """What was asked for; each block says for itself whether it was worth it."""
        name = compression_name(self._footer.compression)
        assert name is not None
        return name

    @property
    def row_count(self) -> int:
        return self._footer.row_count

    @property
    def null_count(self) -> int:
        return self._footer.null_count

    @property
    def rows_per_block(self) -> int:
        """A power of two; block i holds ordinals [i · rows_per_block, (i + 1) · rows_per_block)."""
        return self._footer.rows_per_block

    @property
    def block_count(self) -> int:
        return self._footer.block_count

    @property
    def size_bytes(self) -> int:
        """Bytes of the file that belong to this column."""
        return self.place.length + sum(length for _, length in self.extents())

    @property
    def row_bytes(self) -> float:
        """About how many bytes a decoded value takes."""
        return self.decoded_size.row_bytes

    def text_bytes(self, lower: int, upper: int) -> int:
        """About how many bytes of text or binary the ordinals [lower, upper) are, as `DecodedSize.text_bytes`."""
        return self.decoded_size.text_bytes(lower, upper)

    @property
    def text_bytes_max(self) -> int:
        """More than all its text can be, decoded; from the footer."""
        return self.block_count * format.BLOCK_SIZE_BYTES_MAX

    @property
    def footer(self) -> ColumnFooter:
        return self._footer

    def extents(self) -> list[tuple[int, int]]:
        """(offset, length) of every block, the dictionary's too."""
        footer = self._footer
        extents = list(zip(footer.block_offsets.tolist(), footer.block_lengths.tolist(), strict=True))
        if footer.dictionary_length:
            extents.append((footer.dictionary_offset, footer.dictionary_length))
        return extents

    @property
    def has_zones(self) -> bool:
        """Whether there is a zone map: every column but KEY and BLOOM has one."""
        return self._footer.zone_bytes is not None

    def zone(self, block: int) -> Zone:
        """The zone of one block."""
        assert self._footer.zone_map is not None, "this column has no zone map"
        return self._footer.zone_map.zone(block)

    @property
    def zones(self) -> list[Zone]:
        """The zones of all blocks."""
        return [self.zone(block) for block in range(self.block_count)]

    def column_zone(self) -> Zone:
        """The zone of the whole column."""
        if self._column_zone is None:
            assert self._footer.zone_map is not None, "this column has no zone map"
            self._column_zone = self._footer.zone_map.column_zone()
        return self._column_zone

    def number_bounds(self) -> tuple[int, int] | None:
        """`ZoneMap.number_bounds`."""
        return None if self._footer.zone_map is None else self._footer.zone_map.number_bounds()

    def excluded_blocks(self, constraint: Constraint) -> npt.NDArray[np.bool_]:
        """Of each block whether its zone says that no row of the base satisfies the constraint. Not to be changed.

        Scans of many columns ask a few times for the same; the last answers are kept.
        """
        found = self._excluded.get(constraint)
        if found is None:
            assert self._footer.zone_map is not None, "this column has no zone map"
            if len(self._excluded) >= _EXCLUDED_KEPT:
                self._excluded = {}
            found = self._excluded[constraint] = self._footer.zone_map.excluded(constraint)
        return found

    def block_first_keys(self) -> pa.LargeBinaryArray | None:
        """The value index: the encoded key at each block's first ordinal, None when the column carries none."""
        return self._footer.first_keys

    # -- values --------------------------------------------------------------------------------------------

    def read(
        self,
        lower: int,
        upper: int,
        *,
        stats: ReadStats | None = None,
        fill_cache: bool = True,
        scanning: bool = False,
    ) -> pa.Array:
        """The values of ordinals [lower, upper), in the type's Arrow form (role KEY: large_binary).

        fill_cache: whether blocks decoded for this are kept in the cache.
        scanning:   of those, only what is asked for often: see `first_pass`.
        Cost:       decodes the blocks that are touched, whole; one pread for neighbours; a copy only when
                    several blocks must become one array.
        Raises:     CorruptionError. ArrowInvalid when text of more than 2 GiB is asked for at once.
        """
        assert 0 <= lower <= upper <= self.row_count, (lower, upper, self.row_count)
        if lower == upper:
            return pa.nulls(0, self._arrow)
        if scanning or upper - lower > self._block_rows >> PART_LOG2:
            return self._joined(self._source.between(lower, upper, stats, fill_cache, "plain", scanning))
        # Of a look-up, which keeps small blocks and widens what it needs.
        return self.singles.between(lower, upper, stats, fill_cache)

    def read_keys(self, block: int, stats: ReadStats | None = None) -> npt.NDArray[np.uint8] | pa.Array:
        """Of a KEY column one block, past the cache: a row of bytes for each key where they are equally long, which
        costs no call for lengths and offsets; else as `read`. Raises: CorruptionError."""
        data, offset = self._source.read(block, stats)
        return self._source.decode(data, block, offset, "keys")

    @property
    def has_dictionary(self) -> bool:
        """Whether the values are codewords into a dictionary of the column: then `read_codes` can be asked."""
        return self._footer.dictionary_length > 0

    @property
    def has_single_values(self) -> bool:
        """Whether a single value is taken from its block as this lies, and costs the same wherever it is."""
        footer = self._footer
        return picks_single_values(footer.encoding, footer.form, footer.null_count)

    def read_codes(
        self, lower: int, upper: int, *, stats: ReadStats | None = None, scanning: bool = False
    ) -> pa.DictionaryArray:
        """The values of ordinals [lower, upper) as one dictionary array: 32-bit indices, the column's dictionary.

        Only of a column that has one. Costs and raises as `read`; no value is copied, only indices.
        """
        assert self.has_dictionary and 0 <= lower < upper <= self.row_count, (lower, upper, self.row_count)
        arrays = self._source.between(lower, upper, stats, True, "codes", scanning)
        if len(arrays) == 1 and self._is_most(arrays[0]):
            return arrays[0]
        indices = pa.concat_arrays([array.indices for array in arrays], memory_pool=pool())
        return pa.DictionaryArray.from_arrays(indices, arrays[0].dictionary, safe=False)

    @property
    def has_runs(self) -> bool:
        """Whether the values are runs: then `read_runs` can be asked."""
        return self._footer.has_runs

    def read_runs(
        self, lower: int, upper: int, *, stats: ReadStats | None = None, scanning: bool = False
    ) -> pa.Array:
        """The values of ordinals [lower, upper) as one run-end encoded array; two runs in it may have one value.

        Where a block has short runs, the rows of all. Only of a column that `has_runs`. Costs and raises as `read`.
        """
        assert self.has_runs and 0 <= lower < upper <= self.row_count, (lower, upper, self.row_count)
        arrays = self._source.between(lower, upper, stats, True, "runs", scanning)
        if len({array.type for array in arrays}) > 1:
            arrays = [rows_of(array) for array in arrays]
        return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays, memory_pool=pool())

    def read_narrow(
        self,
        lower: int,
        upper: int,
        *,
        stats: ReadStats | None = None,
        fill_cache: bool = True,
        scanning: bool = False,
    ) -> pa.Array:
        """`read` of a decimal column whose type has a `narrow_decimal`, as that: no value is widened."""
        assert 0 <= lower < upper <= self.row_count, (lower, upper, self.row_count)
        return self._joined(self._source.between(lower, upper, stats, fill_cache, "narrow", scanning))

    def _joined(self, arrays: list[pa.Array]) -> pa.Array:
        """Parts of neighbouring blocks as one array, which does not hold much more memory than its rows take."""
        if len(arrays) > 1:
            return pa.concat_arrays(arrays, memory_pool=pool())
        if self._is_most(arrays[0]):
            return arrays[0]
        return pa.concat_arrays(arrays, memory_pool=pool())

    def _is_most(self, array: pa.Array) -> bool:
        """Whether a part of a block is so much of it that the rest may stay with it."""
        is_whole = len(array) >= WINDOW_ROWS and not self._is_text
        return len(array) << (_COPIED_WINDOW_LOG2 if is_whole else _COPIED_LOG2) > self._block_rows

    @property
    def decodes_in_long_calls(self) -> bool:
        """Whether most of the time that a block takes is one call of another library: text that is no codewords."""
        return self._footer.form.kind == BYTES and not self._footer.dictionary_length

    @property
    def has_frames(self) -> bool:
        """Whether blocks are frames, none with NULL: then `frames` can be asked."""
        return self._footer.has_frames

    @property
    def lies_in_frames(self) -> bool:
        """The same, and there may be NULLs."""
        return self._footer.lies_in_frames

    def frames(
        self, lower: int, upper: int, *, stats: ReadStats | None = None, fill_cache: bool = True
    ) -> FrameRows:
        """The ordinals [lower, upper), at least one, as they lie; of a column that `lies_in_frames`.

        For scans: blocks are kept as `read` with `scanning` keeps them. Cost: reads blocks and compares their CRC.
        """
        assert self.lies_in_frames and 0 <= lower < upper <= self.row_count, (lower, upper, self.row_count)
        scan = (lower, upper) if self._source.is_pass(True, fill_cache) else None
        frames = self._source.blocks(self.blocks_of(lower, upper), stats, fill_cache, "frames", scan)
        return self._rows(frames, lower, upper, self._narrow_form)

    def _rows(self, frames: Sequence[Frame], lower: int, upper: int, narrow: Physical) -> FrameRows:
        first = lower & (self.rows_per_block - 1)
        return FrameRows(frames, first, upper - lower, narrow, self.numbers_of)

    def encoded(self, lower: int, upper: int, *, stats: ReadStats | None = None) -> EncodedRows | None:
        """The ordinals [lower, upper), at least one, as they lie; None for a column that has neither frames nor a
        dictionary. Costs as `frames`, and with a constraint that is new a comparison of its words."""
        assert 0 <= lower < upper <= self.row_count, (lower, upper, self.row_count)
        if not self.tells:
            return None
        scan = (lower, upper) if self._source.is_pass(True, True) else None
        return self.encoded_of(
            self._source.blocks(self.blocks_of(lower, upper), stats, True, "frames", scan), lower, upper
        )

    # -- in steps, for `together` --------------------------------------------------------------------------

    @property
    def tells(self) -> bool:
        """Whether there is an `encoded`, which gives single values at a cost of these alone."""
        return self._footer.lies_in_frames or self.has_code_frames

    def encoded_of(self, frames: Sequence[Frame], lower: int, upper: int) -> EncodedRows:
        """`encoded`, of a column that tells, of the blocks with these ordinals."""
        if not self._footer.dictionary_length:
            return self._rows(frames, lower, upper, self._narrow_form)
        return CodeRows(self._rows(frames, lower, upper, CODEWORDS), self._source.dictionary(None))

    def fills(self, as_: BlockForm) -> bool:
        """Whether values in this form are written from frames, or by codewords that are."""
        if self._footer.dictionary_length:
            return as_ in ("codes", "plain") and not self._footer.null_count
        return self._footer.has_frames and (as_ == "plain" or (as_ == "narrow" and self._has_narrow))

    def filled_bytes(self, as_: BlockForm, lower: int, upper: int) -> int:
        """About what the blocks with these ordinals take in a form that this column `fills`."""
        blocks, shift = self.blocks_of(lower, upper), self._footer.rows_per_block_log2
        rows = min(blocks.stop << shift, self._footer.row_count) - (blocks.start << shift)
        if as_ == "plain" and self.has_dictionary:
            return int(rows * self.row_bytes)
        return rows * self._filled_form(as_).arrow_width_bytes

    def is_new(self, as_: BlockForm, lower: int, upper: int) -> bool:
        """Whether a scan that reads these ordinals in this form to the end leaves nothing in the cache."""
        return self._source.is_new(self.blocks_of(lower, upper), as_)

    def goes_straight(self, lower: int, upper: int) -> bool:
        """Whether `straight` may read these ordinals in a form that this column `fills`: whole blocks, which no scan
        before found to be others than most are."""
        mask = self._mask
        is_whole = not lower & mask and (not upper & mask or upper == self._footer.row_count)
        return kernels.CAN_FETCH and is_whole and not self.is_odd

    def stretch(
        self,
        as_: BlockForm,
        lower: int,
        upper: int,
        stats: ReadStats | None,
        *,
        rows: int | None = None,
        held: pa.Buffer | None = None,
    ) -> tuple[Stretch, pa.DataType]:
        """What reads whole blocks in a form that this column `fills`, and the type that the values have there, before
        they are `finished`: of all rows, or of so many; of none, no room for any."""
        footer, form = self._footer, self._filled_form(as_)
        if self.has_dictionary:
            least, greatest = 0, len(self._source.dictionary(stats)) - 1
        else:
            least, greatest = self._bounds
        out, width = (None, 0) if rows == 0 else output(form, upper - lower if rows is None else rows)
        touched = bytearray(len(self.blocks_of(lower, upper)))
        stretch = Stretch(
            footer.block_offsets, footer.block_lengths, footer.rows_per_block_log2, footer.row_count, lower, upper,
            least, greatest, self.has_dictionary, out, width, touched, held,
        )  # fmt: skip
        return stretch, form.arrow

    def numbers_of(self, demanded: Demanded) -> NumberSet:
        """The numbers that lie in blocks of a column that tells where a row has a value that satisfies it: those of a
        dictionary's words. Cost: with a demand that is new, each word compared."""
        found = self._numbers.get(demanded)
        if found is None:
            if len(self._numbers) >= _EXCLUDED_KEPT:
                self._numbers = {}
            if self._footer.dictionary_length:
                found = NumberSet.of_marked(admitted_words(self._source.dictionary(None), demanded))
            else:
                assert isinstance(demanded, Constraint)
                found = NumberSet.of(demanded)
            self._numbers[demanded] = found
        return found

    @lazy_value
    def _bounds(self) -> tuple[int, int]:
        return value_bounds(self._footer.form)

    def filled(self, frames: Sequence[Frame], as_: BlockForm, lower: int, upper: int) -> FrameRows:
        """The ordinals of these blocks that a column which `fills` this form is to be written from, before they are
        `finished`."""
        return self._rows(frames, lower, upper, CODEWORDS if self.has_dictionary else self._narrow_form)

    def _filled_form(self, as_: BlockForm) -> Physical:
        return (
            CODEWORDS if self.has_dictionary else self._narrow_form if as_ == "narrow" else self._footer.form
        )

    def finished(self, filled: pa.Array, as_: BlockForm) -> pa.Array | None:
        """What was written from frames for this form, in this form: codewords with the column's words, or these alone.
        None: they are more bytes than the blocks may hold, or an array."""
        if not self.has_dictionary:
            return filled
        words = self._source.dictionary(None)
        if as_ == "codes":
            return pa.DictionaryArray.from_arrays(filled, words, safe=False)
        blocks = (len(filled) >> self._footer.rows_per_block_log2) + 1
        return words_of(filled, words, blocks * format.BLOCK_VALUES_BYTES_MAX)

    def word(self, codeword: int, count: int) -> pa.DictionaryArray:
        """One of the column's words, so many times."""
        return one_word(self._source.dictionary(None), codeword, count)

    def stored_bytes(self, lower: int, upper: int) -> int:
        """Bytes of the file that the blocks with these ordinals are."""
        blocks = self.blocks_of(lower, upper)
        return sum(self._footer.block_lengths[blocks.start : blocks.stop].tolist())

    def blocks_of(self, lower: int, upper: int) -> range:
        """Those with the ordinals [lower, upper), at least one."""
        shift = self._footer.rows_per_block_log2
        return range(lower >> shift, ((upper - 1) >> shift) + 1)

    @property
    def source(self) -> BlockSource:
        """Its blocks."""
        return self._source

    @property
    def has_code_frames(self) -> bool:
        """Whether `encoded` tells of words by their codewords."""
        return self._footer.dictionary_count > 0

    # -- look-ups ------------------------------------------------------------------------------------------

    @lazy_value
    def singles(self) -> SingleValues:
        """Single values: of this column, and for `single_values.pick_all` and `few_between`, of several."""
        return SingleValues(self._source, self._footer, self._arrow, self.decoded_size)

    # -- the whole of it -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Read every block from the file, past the cache, and compare it with what the footer says of it."""
        footer, path = self._footer, self._source.path
        if footer.dictionary_length:
            self._source.read_dictionary(None)
        null_count = 0
        for block in range(self.block_count):
            data, offset = self._source.read(block)
            array = self._source.decode(data, block, offset)
            try:
                array.validate(full=True)
                if not is_sound(array):
                    raise pa.ArrowInvalid("days of other years than 1 to 9999")
            except pa.ArrowInvalid as error:
                raise CorruptionError(
                    f"expected values of {self.type}, found others ({error})", path, offset
                ) from error
            null_count += array.null_count
            if footer.zone_map is not None:
                found = zone_of(footer.form, footer.form.stored_array(array))
                if found != footer.zone_map.zone(block):
                    raise SummaryError(f"expected {footer.zone_map.zone(block)}, found {found}", path, offset)
            if (
                footer.first_keys is not None
                and self.key.role == KEY
                and array[0] != footer.first_keys[block]
            ):
                raise SummaryError(
                    "expected the footer's first key in the block, found another", path, offset
                )
        if null_count != footer.null_count:
            raise SummaryError(
                f"expected {footer.null_count} NULLs, found {null_count}", path, self.place.offset
            )
