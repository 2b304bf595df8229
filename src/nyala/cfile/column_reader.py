"""Reads one column of a column file, by the three operations that scans use.

    decode    ordinals [lower, upper) as an Arrow array
    filter    a mask of the ordinals that satisfy a predicate on this column
    gather    the values at single ordinals as an Arrow array

The operations get blocks from `blocks.source`, and work for every encoding. A scan first calls
`excluded_blocks`, which skips blocks by their zone maps, and then `filter` for the other blocks.

The docstring of `reader`, which creates these objects, describes the checks and the thread safety.
"""

from __future__ import annotations

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
from nyala.cfile.forms.column_block import BlockPredicate
from nyala.cfile.forms.number_set import NumberSet
from nyala.cfile.forms.text import text_of
from nyala.cfile.index.zone_map import Zone, ZoneMap, zone_of
from nyala.cfile.memory import pool, scratch
from nyala.cfile.physical import narrow_decimal, narrowest, text_bytes
from nyala.errors import CorruptionError
from nyala.schema.arrow_values import has_valid_values
from nyala.schema.plain_arrays import array_of_numbers
from nyala.schema.predicates.column_test import ColumnTest
from nyala.schema.predicates.constraint import Constraint
from nyala.schema.types import ColumnType

if TYPE_CHECKING:
    from nyala.cfile.reader import CFileReader


# The most results that `excluded_blocks` caches, and that `_bound` caches.
_CACHED_MAX: Final = 16
# `gather` always holds this many blocks at once, whatever their size.
_BLOCKS_FEW: Final = 2


class ColumnReader:
    """Reads one column of a file. `CFileReader.column` creates it.

    It must not be used after the file was closed.
    """

    def __init__(self, reader: CFileReader, footer: ColumnFooter, place: ColumnPlace) -> None:
        self.footer: Final = footer
        self.place = place
        self._column_zone: Zone | None = None
        self._excluded: dict[Constraint, npt.NDArray[np.bool_]] = {}
        self._tests: dict[ColumnTest, BlockPredicate] = {}
        # One array of keys from many blocks may exceed the 2 GiB that 32-bit offsets address.
        self.arrow: Final = pa.large_binary() if footer.key.role == KEY else footer.form.arrow
        """The column's own Arrow type: that of the results of `decode` and `gather` by default."""
        self._source = BlockSource(reader, footer, place)
        self.cheap_type: Final = self._cheap_type()
        """The Arrow type that `decode` and `gather` produce at the lowest cost.

        A dictionary type if the column has a dictionary. Otherwise `arrow`, except that a decimal
        that is stored in 4 or 8 bytes has the type decimal32 or decimal64.
        """

    # -- what the footer says ------------------------------------------------------------------------------

    @property
    def key(self) -> ColumnKey:
        return self.footer.key

    @property
    def type(self) -> ColumnType:
        return self.footer.form.type

    @property
    def code(self) -> int:
        """The code that the file stores for the column's type (`format.TYPE_*`)."""
        return self.footer.form.code

    @property
    def encoding(self) -> str:
        return self.footer.encoding.name

    @property
    def compression(self) -> str:
        """The compression of the column in the schema.

        A block that would not shrink is stored uncompressed.
        """
        name = compression_name(self.footer.compression)
        assert name is not None
        return name

    @property
    def row_count(self) -> int:
        return self.footer.row_count

    @property
    def null_count(self) -> int:
        return self.footer.null_count

    @property
    def rows_per_block(self) -> int:
        """The rows of each block but the last: a power of two.

        Block i begins with the ordinal i · rows_per_block.
        """
        return self.footer.rows_per_block

    @property
    def block_count(self) -> int:
        return self.footer.block_count

    @property
    def size_bytes(self) -> int:
        """The number of bytes that the column takes in the file: footer, blocks and dictionary."""
        return self.place.length + sum(length for _, length in self.extents())

    @property
    def row_bytes(self) -> float:
        """The average size of a decoded value, in bytes."""
        return self.footer.row_bytes

    def text_bytes(self, lower: int, upper: int) -> int:
        """Return the approximate number of bytes of decoded text in the ordinals [lower, upper)."""
        first, last = self.footer.text_before(np.array([lower, upper])).tolist()
        return int(np.ceil(last - first))

    def decoded_bytes(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the approximate size in bytes of the decoded values between adjacent `ordinals`.

        For n ascending ordinals, the result has n - 1 sizes.
        """
        return np.diff(self.footer.bytes_before(ordinals))

    def extents(self) -> list[tuple[int, int]]:
        """Return (offset, length) of every block, and of the dictionary if the column has one."""
        footer = self.footer
        extents = list(zip(footer.block_offsets.tolist(), footer.block_lengths.tolist(), strict=True))
        if footer.dictionary_length:
            extents.append((footer.dictionary_offset, footer.dictionary_length))
        return extents

    @property
    def file(self) -> CFileReader:
        """The file that contains the column."""
        return self._source.file

    def places(self, lower: int, upper: int) -> list[tuple[int, int]]:
        """Return (offset, length) of the bytes that operations on the ordinals [lower, upper) read."""
        footer, places = self.footer, []
        if footer.dictionary_length:
            places.append((footer.dictionary_offset, footer.dictionary_length))
        if lower < upper:
            numbers = self._blocks_of(lower, min(upper, self.row_count))
            places.append(self._source.place_of(numbers[0], numbers[-1]))
        return places

    @property
    def has_zones(self) -> bool:
        """Whether the column has a zone map. All have one, except encoded keys and bloom filters."""
        return self.footer.zone_bytes is not None

    def _zone_map(self) -> ZoneMap:
        assert self.footer.zone_map is not None, "this column has no zone map"
        return self.footer.zone_map

    def zone(self, block: int) -> Zone:
        """Return the least and greatest value of a block, and its counts of rows and NULLs."""
        return self._zone_map().zone(block)

    @property
    def zones(self) -> list[Zone]:
        """The least and greatest value and the counts of rows and NULLs of each block, in order."""
        return [self.zone(block) for block in range(self.block_count)]

    def column_zone(self) -> Zone:
        """Return the least and greatest value, row count and NULL count of the whole column."""
        if self._column_zone is None:
            self._column_zone = self._zone_map().column_zone()
        return self._column_zone

    def number_bounds(self) -> tuple[int, int] | None:
        """Return the least and the greatest value of the column, as stored integers.

        Return None if the column does not store integers, or if the file does not say its bounds.
        Dates, timestamps and decimals of 4 or 8 bytes are stored as integers.
        """
        return None if self.footer.zone_map is None else self.footer.zone_map.number_bounds()

    def excluded_blocks(self, constraint: Constraint) -> npt.NDArray[np.bool_]:
        """Return one bool per block: True if its zone proves that none of its values satisfies the
        constraint.

        The result is cached, because each split of a scan repeats the call. The caller must not
        change it.
        """
        excluded = self._excluded.get(constraint)
        if excluded is None:
            if len(self._excluded) >= _CACHED_MAX:
                self._excluded = {}
            excluded = self._excluded[constraint] = self._zone_map().excluded(constraint)
        return excluded

    def block_first_keys(self) -> pa.LargeBinaryArray | None:
        """Return the key index: the encoded key of the first row of each block.

        None if the column has no key index.
        """
        return self.footer.first_keys

    @property
    def has_dictionary(self) -> bool:
        """Whether the column is stored with a dictionary of its distinct values."""
        return self.footer.dictionary_length > 0

    def _cheap_type(self) -> pa.DataType:
        if self.footer.dictionary_length:
            return pa.dictionary(pa.int32(), self.arrow)
        if self.footer.key.role == BLOOM:
            return self.arrow
        return narrow_decimal(self.footer.form.type) or self.arrow

    # -- the three operations ------------------------------------------------------------------------------

    def decode(
        self,
        lower: int,
        upper: int,
        type: pa.DataType | None = None,
        *,
        access: Access = Access.LOOKUP,
        stats: ReadStats | None = None,
    ) -> pa.Array:
        """Return the values of the ordinals [lower, upper) as an Arrow array.

        type: the Arrow type of the result: `self.arrow`, the type of the column (the default), or
        `self.cheap_type`, which is faster.
        access: why the blocks are read: for a look-up, for a scan, or only once. The block cache
        decides by this whether it keeps them.
        stats: counts what is read; None: nothing is counted.
        Cost: decodes every block that overlaps the range. One pread reads adjacent blocks.
        Raises: CorruptionError; ArrowInvalid for more than 2 GiB of text in one call.
        """
        assert 0 <= lower <= upper <= self.row_count, (lower, upper, self.row_count)
        result_type = self.arrow if type is None else type
        if lower == upper:
            return pa.nulls(0, result_type)
        block_type = self.cheap_type if self.has_dictionary else result_type
        parts = []
        numbers = self._blocks_of(lower, upper)
        for number, block in zip(numbers, self._source.blocks(numbers, access, stats), strict=True):
            first = number << self.footer.rows_per_block_log2
            parts.append(block.decode(max(lower - first, 0), min(upper - first, block.row_count), block_type))
        joined = self._joined(parts, result_type)
        if len(parts) == 1 and 2 * len(parts[0]) < min(self.rows_per_block, self.row_count):
            # A copy, because a slice would keep the memory of the whole block alive.
            return pa.concat_arrays([joined], memory_pool=pool())
        return joined

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
        """Return a mask of the ordinals [lower, upper): True for values that satisfy `test`.

        among: a mask of the same rows. Rows that are False in it are False in the result, and are
        not tested. None: test all rows.
        Cost: reads only blocks that contain a row of `among`. Decodes values only if the encoding
        cannot evaluate the test on encoded data.
        Raises: CorruptionError.
        """
        assert 0 <= lower < upper <= self.row_count, (lower, upper, self.row_count)
        predicate = self._bound(test)
        log2 = self.footer.rows_per_block_log2
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
            mask = blocks[number].filter(predicate, first + begin, first + end, some)
            masks.append(mask if some is None else np.logical_and(mask, some, out=mask))
        # Without `out`, `np.concatenate` would allocate new memory for every split, and the system
        # would clear its pages first.
        return masks[0] if len(masks) == 1 else np.concatenate(masks, out=scratch(np.bool_, upper - lower))

    def gather(
        self,
        ordinals: npt.NDArray[np.int64] | Ordinals,
        type: pa.DataType | None = None,
        *,
        access: Access = Access.LOOKUP,
        stats: ReadStats | None = None,
    ) -> pa.Array:
        """Return the values at these ordinals, in their order. An ordinal may repeat.

        Types and errors are those of `decode`.
        """
        if not isinstance(ordinals, Ordinals):
            ordinals = Ordinals(ordinals)
        result_type = self.arrow if type is None else type
        if not ordinals.count:
            return pa.nulls(0, result_type)
        assert ordinals.least >= 0 and ordinals.greatest < self.row_count
        by_block = ordinals.by_block(self.footer.rows_per_block_log2)
        block_type = self.cheap_type if self.has_dictionary else result_type
        parts: list[pa.Array] = []
        at_once = self._blocks_at_once(len(by_block.blocks))
        for at in range(0, len(by_block.blocks), at_once):
            blocks = self._source.blocks(by_block.blocks[at : at + at_once], access, stats)
            for block, (begin, end) in zip(blocks, by_block.ranges[at : at + at_once], strict=True):
                parts.append(block.gather(by_block.rows[begin:end], block_type))
        joined = self._joined(parts, result_type)
        if by_block.order is None:
            return joined
        positions = np.empty(len(by_block.order), np.int64)
        positions[by_block.order] = np.arange(len(by_block.order))
        return joined.take(array_of_numbers(positions))

    def _blocks_at_once(self, count: int) -> int:
        """Return how many of `count` blocks `gather` reads at a time, so that they fit the cache."""
        cache = self._source.cache
        if count <= _BLOCKS_FEW or cache is None:
            return count
        row_bytes = 4.0 if self.has_dictionary else self.row_bytes
        block_bytes = min(self.rows_per_block, self.row_count) * row_bytes
        return max(_BLOCKS_FEW, int(cache.limit_bytes / max(1.0, block_bytes)))

    def value(self, ordinal: int) -> Any:
        """Return the value at one ordinal as a Python object, as `pyarrow.Scalar.as_py` does.

        Raises: CorruptionError, also if the stored value is not valid for the type.
        """
        footer = self.footer
        assert 0 <= ordinal < footer.row_count
        log2 = footer.rows_per_block_log2
        number = ordinal >> log2
        block = self._source.cached(number)
        if block is None:
            (block,) = self._source.blocks((number,), Access.LOOKUP, None)
        try:
            return block.value(ordinal - (number << log2))
        except CorruptionError as error:
            offset = int(footer.block_offsets[number])
            raise CorruptionError(error.reason, self._source.path, offset) from error.__cause__

    def _joined(self, parts: list[pa.Array], result_type: pa.DataType) -> pa.Array:
        """Join the arrays of several blocks to one array of `result_type`."""
        if self.has_dictionary:
            joined = parts[0]
            if len(parts) > 1:
                codes = pa.concat_arrays([part.indices for part in parts], memory_pool=pool())
                joined = pa.DictionaryArray.from_arrays(codes, parts[0].dictionary, safe=False)
            return joined if pa.types.is_dictionary(result_type) else text_of(joined)
        parts = [self._in_own_type(part, result_type) for part in parts]
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts, memory_pool=pool())

    def _in_own_type(self, array: pa.Array, result_type: pa.DataType) -> pa.Array:
        if array.type == result_type or result_type != self.arrow:
            return array
        if self.footer.key.role == KEY:
            return array.cast(self.arrow)
        # The array has narrow decimals. Arrow's cast would check the digits of every value, also
        # under NULLs.
        form = self.footer.form
        width = form.width_bytes
        values = array.buffers()[1].slice(array.offset * width, len(array) * width)
        validity = array.is_valid().buffers()[1] if array.null_count else None
        return form.fixed_array(values, len(array), validity, array.null_count)

    def _bound(self, test: ColumnTest) -> BlockPredicate:
        """Return `test` with the stored numbers (values or dictionary codes) that satisfy it.

        Cost: the first call for a test evaluates it on every dictionary entry.
        """
        predicate = self._tests.get(test)
        if predicate is None:
            numbers: NumberSet | None = None
            if self.footer.dictionary_length:
                numbers = NumberSet.of_mask(test.mask(self._source.dictionary(None)))
            elif test.constraint is not None and narrowest(self.footer.form).holds_integers:
                numbers = NumberSet.of(test.constraint)
            if len(self._tests) >= _CACHED_MAX:
                self._tests = {}
            predicate = self._tests[test] = BlockPredicate(test, self.cheap_type, numbers)
        return predicate

    def _blocks_of(self, lower: int, upper: int) -> range:
        """Return the numbers of the blocks that contain the ordinals [lower, upper).

        `lower` must be less than `upper`.
        """
        shift = self.footer.rows_per_block_log2
        return range(lower >> shift, ((upper - 1) >> shift) + 1)

    # -- checking ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Read every block from the file, even if it is cached, and compare it with the footer.

        Raises: CorruptionError if a block is damaged; SummaryError if the values are intact, but
        the footer does not match them.
        """
        footer, path = self.footer, self._source.path
        if footer.dictionary_length:
            self._source.read_dictionary(None)
        null_count = 0
        for number in range(self.block_count):
            data, offset = self._source.read(number)
            block = self._source.decode(data, number, offset)
            array = self._joined([block.decode(0, block.row_count, self.cheap_type)], self.arrow)
            try:
                array.validate(full=True)
                if not has_valid_values(array):
                    raise pa.ArrowInvalid("at least one date or time is outside the years 1 to 9999")
            except pa.ArrowInvalid as error:
                raise CorruptionError(
                    f"expected values of type {self.type}, found invalid ones ({error})", path, offset
                ) from error
            null_count += array.null_count
            if footer.text_sizes is not None and text_bytes(array) != footer.text_sizes[number]:
                raise SummaryError(
                    f"expected {footer.text_sizes[number]} bytes of text in this block, as the column's footer says, "
                    f"found {text_bytes(array)}",
                    path,
                    offset,
                )
            if footer.zone_map is not None:
                found = zone_of(footer.form, footer.form.stored_array(array))
                if found != footer.zone_map.zone(number):
                    raise SummaryError(
                        f"expected {footer.zone_map.zone(number)}, as the column's footer says, found {found}",
                        path,
                        offset,
                    )
            if (
                footer.first_keys is not None
                and self.key.role == KEY
                and array[0] != footer.first_keys[number]
            ):
                raise SummaryError(
                    "expected the block's first key as in the column's footer, found another key",
                    path,
                    offset,
                )
        if null_count != footer.null_count:
            raise SummaryError(
                f"expected {footer.null_count} NULLs, as the column's footer says, found {null_count}",
                path,
                self.place.offset,
            )
