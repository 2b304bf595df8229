"""One column of a column file: its footer, and the three operations of a scan over its values.

    decode    ordinals [lower, upper) as an Arrow array
    filter    which of these satisfy a test of the column; zone maps have left out blocks before (`excluded_blocks`)
    gather    single ordinals as an Arrow array
                     |
                     v
    blocks.source    the blocks, from the cache or the file, in the forms that encodings keep

No caller knows which form a block has.

Trust and threads: as `reader`, which makes these.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile.blocks.ordinals import Ordinals
from nyala.cfile.blocks.read_stats import Access, ReadStats
from nyala.cfile.blocks.source import BlockSource
from nyala.cfile.column import BLOOM, KEY, ColumnKey, ColumnPlace
from nyala.cfile.compression import compression_name
from nyala.cfile.errors import SummaryError
from nyala.cfile.footer import ColumnFooter
from nyala.cfile.forms.column_block import ColumnBlock, Wanted, decoded, gathered
from nyala.cfile.forms.number_set import NumberSet
from nyala.cfile.forms.text import text_of
from nyala.cfile.index.zone_map import Zone, zone_of
from nyala.cfile.memory import pool, scratch
from nyala.cfile.physical import narrow_decimal, narrowest, text_bytes
from nyala.errors import CorruptionError
from nyala.schema.arrow_values import is_sound
from nyala.schema.plain_arrays import array_of_numbers
from nyala.schema.predicates.column_test import ColumnTest
from nyala.schema.predicates.constraint import Constraint
from nyala.schema.types import ColumnType

if TYPE_CHECKING:
    from nyala.cfile.reader import CFileReader

__all__ = ["ColumnReader"]

# Answers of `excluded_blocks`, and of `_wanted`.
_ANSWERS_KEPT: Final = 16
# So many blocks are held at once, whatever they take.
_BLOCKS_FEW: Final = 4


class ColumnReader:
    """One column of a file. Made by `CFileReader.column`; lives as long as the file's reader."""

    def __init__(self, reader: CFileReader, footer: ColumnFooter, place: ColumnPlace) -> None:
        self._footer = footer
        self.place = place
        self._column_zone: Zone | None = None
        self._excluded: dict[Constraint, npt.NDArray[np.bool_]] = {}
        self._tests: dict[ColumnTest, Wanted] = {}
        # Keys of many blocks in one array may pass the 2 GiB that 32-bit offsets can address.
        self._arrow = pa.large_binary() if footer.key.role == KEY else footer.form.arrow
        self._source = BlockSource(reader, footer, place)
        self.cheap_type = self._cheap_type()
        """The type in which `decode` and `gather` give values at least cost: a dictionary where the column has one, a
        narrow decimal where its type has one, else the column's own."""

    # -- what the footer says ------------------------------------------------------------------------------

    @property
    def key(self) -> ColumnKey:
        return self._footer.key

    @property
    def type(self) -> ColumnType:
        return self._footer.form.type

    @property
    def arrow(self) -> pa.DataType:
        """Arrow's type of what `decode` and `gather` give."""
        return self._arrow

    @property
    def code(self) -> int:
        """The type's number on disk (`format.TYPE_*`)."""
        return self._footer.form.code

    @property
    def encoding(self) -> str:
        return self._footer.encoding.name

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
        """Bytes of a decoded value on average."""
        return self._footer.row_bytes

    def text_bytes(self, lower: int, upper: int) -> int:
        """About how many bytes of text the ordinals [lower, upper) are, decoded: see `ColumnFooter.text_before`."""
        first, last = self._footer.text_before(np.array([lower, upper])).tolist()
        return int(np.ceil(last - first))

    def decoded_bytes(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """About how many bytes the values between each two of these ordinals take in memory."""
        return np.diff(self._footer.bytes_before(ordinals))

    def block_bytes_max(self, lower: int, upper: int) -> float:
        """`ColumnFooter.block_bytes_max`."""
        return self._footer.block_bytes_max(lower, upper)

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
            if len(self._excluded) >= _ANSWERS_KEPT:
                self._excluded = {}
            found = self._excluded[constraint] = self._footer.zone_map.excluded(constraint)
        return found

    def block_first_keys(self) -> pa.LargeBinaryArray | None:
        """The value index: the encoded key at each block's first ordinal, None when the column carries none."""
        return self._footer.first_keys

    @property
    def has_dictionary(self) -> bool:
        """Whether `cheap_type` is a dictionary."""
        return self._footer.dictionary_length > 0

    @property
    def gathers_single_values(self) -> bool:
        """`ColumnFooter.gathers_single_values`."""
        return self._footer.gathers_single_values

    # -- the three operations ------------------------------------------------------------------------------

    def _cheap_type(self) -> pa.DataType:
        if self._footer.dictionary_length:
            return pa.dictionary(pa.int32(), self._arrow)
        if self._footer.key.role == BLOOM:
            return self._arrow
        return narrow_decimal(self._footer.form.type) or self._arrow

    def decode(
        self,
        lower: int,
        upper: int,
        type: pa.DataType | None = None,
        *,
        access: Access = Access.LOOKUP,
        stats: ReadStats | None = None,
    ) -> pa.Array:
        """The values of ordinals [lower, upper).

        type: `arrow` (None) or `cheap_type`.
        Cost: decodes the blocks that are touched; one pread for neighbours.
        Raises: CorruptionError. ArrowInvalid for more than 2 GiB of text at once.
        """
        assert 0 <= lower <= upper <= self.row_count, (lower, upper, self.row_count)
        wanted = self._arrow if type is None else type
        if lower == upper:
            return pa.nulls(0, wanted)
        cheap = self.cheap_type if self.has_dictionary else wanted
        blocks, *ranges = zip(*self._parts(lower, upper, access, stats), strict=True)
        parts = decoded(blocks, list(zip(*ranges, strict=True)), cheap)
        if len(parts) == 1 and 2 * len(parts[0]) < min(self.rows_per_block, self.row_count):
            return pa.concat_arrays(
                [self._joined(parts, wanted)], memory_pool=pool()
            )  # or the block stays with it
        return self._joined(parts, wanted)

    def filter(
        self,
        test: ColumnTest,
        lower: int,
        upper: int,
        among: npt.NDArray[np.bool_] | None = None,
        *,
        access: Access = Access.SCAN,
        stats: ReadStats | None = None,
    ) -> npt.NDArray[np.bool_]:
        """A mask of the ordinals [lower, upper), at least one, that satisfy a test of the column.

        among: the only ones that matter, counted from `lower`; the mask has no other. None: all.
        Cost: blocks without one that matters are not read; no value is decoded where the encoding can tell without.
        Raises: CorruptionError.
        """
        assert 0 <= lower < upper <= self.row_count, (lower, upper, self.row_count)
        wanted = self._wanted(test)
        log2 = self._footer.rows_per_block_log2
        parts = {
            number: (max(number << log2, lower) - lower, min((number + 1) << log2, upper) - lower)
            for number in self._blocks_of(lower, upper)
        }
        needed = [n for n, (begin, end) in parts.items() if among is None or among[begin:end].any()]
        blocks = dict(zip(needed, self._source.blocks(needed, access, stats), strict=True))
        masks = []
        for number, (begin, end) in parts.items():
            if number not in blocks:
                masks.append(np.zeros(end - begin, np.bool_))
                continue
            first, some = lower - (number << log2), None if among is None else among[begin:end]
            mask = blocks[number].filter(wanted, first + begin, first + end, some)
            masks.append(mask if some is None else np.logical_and(mask, some, out=mask))
        # Not `np.concatenate` alone: the pages of its memory would be cleared for every window.
        return masks[0] if len(masks) == 1 else np.concatenate(masks, out=scratch(np.bool_, upper - lower))

    def gather(
        self,
        ordinals: npt.NDArray[np.int64] | Ordinals,
        type: pa.DataType | None = None,
        *,
        access: Access = Access.LOOKUP,
        stats: ReadStats | None = None,
    ) -> pa.Array:
        """The values at these ordinals, in their order; an ordinal may come twice. `type` and errors: as `decode`."""
        if not isinstance(ordinals, Ordinals):
            ordinals = Ordinals(ordinals)
        wanted = self._arrow if type is None else type
        if not ordinals.count:
            return pa.nulls(0, wanted)
        assert ordinals.least >= 0 and ordinals.greatest < self.row_count
        cut = ordinals.cut(self._footer.rows_per_block_log2)
        parts: list[pa.Array] = []
        at_once = self._blocks_at_once(len(cut.blocks))
        for at in range(0, len(cut.blocks), at_once):
            few = cut.blocks[at : at + at_once]
            blocks = self._source.blocks(few, access, stats)
            rows = [cut.inside[begin:end] for begin, end in cut.pieces[at : at + at_once]]
            parts += gathered(blocks, rows, self.cheap_type if self.has_dictionary else wanted)
        joined = self._joined(parts, wanted)
        if cut.order is None:
            return joined
        place = np.empty(len(cut.order), np.int64)
        place[cut.order] = np.arange(len(cut.order))
        return joined.take(array_of_numbers(place))

    def _blocks_at_once(self, count: int) -> int:
        """How many blocks are held at once while few rows of each are gathered: no more than the cache may hold."""
        cache = self._source.cache
        if count <= _BLOCKS_FEW or cache is None:
            return count
        row_bytes = 4.0 if self.has_dictionary else self.row_bytes
        block_bytes = min(self.rows_per_block, self.row_count) * row_bytes
        return max(_BLOCKS_FEW, int(cache.limit_bytes / max(1.0, block_bytes)))

    def value(self, ordinal: int) -> Any:
        """`gather` of one ordinal, as the Python value that Arrow gives for it.

        Raises: CorruptionError, also for what is no value of the type.
        """
        footer = self._footer
        assert 0 <= ordinal < footer.row_count
        log2 = footer.rows_per_block_log2
        number = ordinal >> log2
        block = self._source.kept(number)
        if block is None:
            (block,) = self._source.blocks((number,), Access.LOOKUP, None)
        try:
            return block.value(ordinal - (number << log2))
        except CorruptionError as error:
            offset = int(footer.block_offsets[number])
            raise CorruptionError(error.reason, self._source.path, offset) from error.__cause__

    def _parts(
        self, lower: int, upper: int, access: Access, stats: ReadStats | None
    ) -> Iterator[tuple[ColumnBlock, int, int]]:
        """(block, the rows of it) of these ordinals."""
        log2, numbers = self._footer.rows_per_block_log2, self._blocks_of(lower, upper)
        for number, block in zip(numbers, self._source.blocks(numbers, access, stats), strict=True):
            first = number << log2
            yield block, max(lower - first, 0), min(upper - first, block.row_count)

    def _joined(self, parts: list[pa.Array], wanted: pa.DataType) -> pa.Array:
        """Arrays of blocks as one, in the wanted type where that is the column's own."""
        if self.has_dictionary:
            joined = parts[0]
            if len(parts) > 1:
                codes = pa.concat_arrays([part.indices for part in parts], memory_pool=pool())
                joined = pa.DictionaryArray.from_arrays(codes, parts[0].dictionary, safe=False)
            return joined if pa.types.is_dictionary(wanted) else text_of(joined)
        parts = [self._in_own_type(part, wanted) for part in parts]
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts, memory_pool=pool())

    def _in_own_type(self, array: pa.Array, wanted: pa.DataType) -> pa.Array:
        if array.type == wanted or wanted != self._arrow:
            return array
        if self._footer.key.role == KEY:
            return array.cast(self._arrow)
        # A narrow decimal; not by Arrow's cast, which looks at each value's digits, of those under NULLs as well.
        form = self._footer.form
        width = form.width_bytes
        values = array.buffers()[1].slice(array.offset * width, len(array) * width)
        validity = array.is_valid().buffers()[1] if array.null_count else None
        return form.fixed_array(values, len(array), validity, array.null_count)

    def _wanted(self, test: ColumnTest) -> Wanted:
        """The test in terms of the numbers that lie in blocks. Cost: with a new test, each word of a dictionary."""
        found = self._tests.get(test)
        if found is None:
            numbers: NumberSet | None = None
            if self._footer.dictionary_length:
                numbers = NumberSet.of_marked(test.mask(self._source.dictionary(None)))
            elif test.constraint is not None and narrowest(self._footer.form).holds_integers:
                numbers = NumberSet.of(test.constraint)
            if len(self._tests) >= _ANSWERS_KEPT:
                self._tests = {}
            found = self._tests[test] = Wanted(test, self.cheap_type, numbers)
        return found

    def _blocks_of(self, lower: int, upper: int) -> range:
        """Those with the ordinals [lower, upper), at least one."""
        shift = self._footer.rows_per_block_log2
        return range(lower >> shift, ((upper - 1) >> shift) + 1)

    # -- the whole of it -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Read every block from the file, past the cache, and compare it with what the footer says of it."""
        footer, path = self._footer, self._source.path
        if footer.dictionary_length:
            self._source.read_dictionary(None)
        null_count = 0
        for number in range(self.block_count):
            data, offset = self._source.read(number)
            block = self._source.decode(data, number, offset)
            array = self._joined([block.decode(0, block.row_count, self.cheap_type)], self._arrow)
            try:
                array.validate(full=True)
                if not is_sound(array):
                    raise pa.ArrowInvalid("days of other years than 1 to 9999")
            except pa.ArrowInvalid as error:
                raise CorruptionError(
                    f"expected values of {self.type}, found others ({error})", path, offset
                ) from error
            null_count += array.null_count
            if footer.text_sizes is not None and text_bytes(array) != footer.text_sizes[number]:
                raise SummaryError(
                    f"expected {footer.text_sizes[number]} bytes of text in the block, as the column's footer says, "
                    f"found {text_bytes(array)}",
                    path,
                    offset,
                )
            if footer.zone_map is not None:
                found = zone_of(footer.form, footer.form.stored_array(array))
                if found != footer.zone_map.zone(number):
                    raise SummaryError(
                        f"expected {footer.zone_map.zone(number)}, found {found}", path, offset
                    )
            if (
                footer.first_keys is not None
                and self.key.role == KEY
                and array[0] != footer.first_keys[number]
            ):
                raise SummaryError(
                    "expected the footer's first key in the block, found another", path, offset
                )
        if null_count != footer.null_count:
            raise SummaryError(
                f"expected {footer.null_count} NULLs, found {null_count}", path, self.place.offset
            )
