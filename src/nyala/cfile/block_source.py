"""Blocks of one column: found in the cache, or read from the file and decoded to the form that is asked for.

    blocks ── cache ── first_pass ── one pread for neighbours ── decode_block
    is_new, place, landed, passed     the same in steps, for who reads several columns at once (`together`)

What a block becomes is said by its form: values as Arrow has them, codewords, narrow decimals, runs, frames, or what
takes the least room for look-ups. The cache has a block once for each form.

Trust and threads: as `reader`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence, Set
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.block import decode_block, line_of
from nyala.cfile.cache import BlockCache
from nyala.cfile.column import BASE, BLOOM, KEY, ColumnPlace
from nyala.cfile.encoding.frame import Frame
from nyala.cfile.encoding.rle import Runs
from nyala.cfile.first_pass import FirstPass
from nyala.cfile.footer import ColumnFooter
from nyala.cfile.physical import Physical, narrow_decimal, narrow_physical
from nyala.cfile.read_stats import ReadStats
from nyala.errors import CorruptionError
from nyala.schema.arrow_values import is_sound

if TYPE_CHECKING:
    from nyala.cfile.reader import CFileReader

__all__ = ["BlockForm", "BlockSource"]

# Of words or numbers that blocks refer to. Most columns have fewer, and then the cache is not asked for each block.
_HELD_BYTES_MAX: Final = 64 << 10
_BESIDE: Final = -1  # the number of what is no block of rows
_Made = TypeVar("_Made")
BlockForm: TypeAlias = Literal["plain", "codes", "narrow", "runs", "frames", "packed", "keys"]


class _Beside(Generic[_Made]):
    """What the blocks of a column refer to, once it was read: words, or numbers of a table. If it is large it lies in
    the cache, as blocks do, and is read again when it went; while anybody has it, it is that one."""

    def __init__(self) -> None:
        self._held: _Made | None = None
        self._shared: weakref.ref[Any] | None = None

    def found(self, source: BlockSource) -> _Made | None:
        """None: it has to be read, for the first time or again. source: the column's."""
        if self._held is not None or self._shared is None:
            return self._held
        found: _Made | None = source.kept("plain", _BESIDE)
        return self._shared() if found is None else found

    def put(self, source: BlockSource, made: _Made, size_bytes: int) -> None:
        if source.cache is None or size_bytes <= _HELD_BYTES_MAX:
            self._held = made
            return
        self._held, self._shared = None, weakref.ref(made)
        source.cache.put(*source.name("plain", _BESIDE), made, size_bytes, dear=True)


class BlockSource:
    """The blocks of one column. arrow: the type of values in form "plain"."""

    def __init__(
        self, reader: CFileReader, footer: ColumnFooter, place: ColumnPlace, arrow: pa.DataType
    ) -> None:
        self._reader = reader
        self._footer = footer
        self._place = place
        self._arrow = arrow
        self._has_narrow = footer.key.role != BLOOM and narrow_decimal(footer.form.type) is not None
        self._words: _Beside[pa.Array] = _Beside()
        self._first_pass: FirstPass[Any] = FirstPass()

    @property
    def path(self) -> str:
        return self._reader.path

    @property
    def file(self) -> CFileReader:
        """Where the blocks lie."""
        return self._reader

    @property
    def cache(self) -> BlockCache | None:
        return self._reader._cache

    def name(self, form: BlockForm, block: int) -> tuple[int, tuple[int, BlockForm, int]]:
        """(owner, name) of a block in the cache; no other column of the file has its place."""
        return self._reader._owner, (self._place.offset, form, block)

    def names(self, form: BlockForm, blocks: Sequence[int]) -> list[tuple[int, tuple[int, BlockForm, int]]]:
        """`name` of each."""
        owner, offset = self._reader._owner, self._place.offset
        return [(owner, (offset, form, block)) for block in blocks]

    def kept(self, form: BlockForm, block: int) -> Any | None:
        """What the cache has of a block."""
        cache = self._reader._cache
        return None if cache is None else cache.get(*self.name(form, block))

    def is_pass(self, scanning: bool, fill_cache: bool) -> bool:
        """Whether what is read is kept only when it is asked for often: see `first_pass`."""
        return scanning and fill_cache and self._reader._cache is not None

    def read_bytes(self, offset: int, length: int) -> bytes:
        """Bytes of the file, whatever they are."""
        return self._reader.read_exactly(offset, length)

    def read(self, block: int, stats: ReadStats | None = None) -> tuple[pa.Buffer, int]:
        """The bytes of one block from the file, past the cache, and where they lie."""
        offset, length = int(self._footer.block_offsets[block]), int(self._footer.block_lengths[block])
        data = self._reader.read_buffer(offset, length)
        if stats is not None:
            stats.reads += 1
            stats.bytes_read += length
            stats.blocks_read += 1
        return data, offset

    def blocks(
        self,
        blocks: Sequence[int],
        stats: ReadStats | None,
        fill_cache: bool,
        as_: BlockForm = "plain",
        scan: tuple[int, int] | None = None,
    ) -> list[Any]:
        """Decoded blocks, for ascending, distinct block numbers.

        scan: the ordinals of them that a scan asks for, if one does; None keeps all blocks that `fill_cache` lets it.
        """
        cache = self._reader._cache
        arrays: list[Any] = [None] * len(blocks)
        missing = list(blocks)
        if cache is not None:
            arrays, missing = [], []
            for block in blocks:
                array = cache.get(*self.name(as_, block))
                arrays.append(array)
                if array is None:
                    missing.append(block)
        if stats is not None:
            stats.cache_hits += 0 if cache is None else len(blocks) - len(missing)
            if self._footer.key.role == BASE:
                stats.base_blocks.update([(id(self), block) for block in blocks])
        if not missing:
            if scan is not None:
                self._pass(blocks, as_, scan)
            return arrays
        found = {block: array for block, array in zip(blocks, arrays, strict=True) if array is not None}
        beside = self._prepare(stats)
        if scan is not None:
            self._decode_for_scan(missing, found, stats, as_, scan)
            self._pass(blocks, as_, scan)
        else:
            keep = set(missing) if cache is not None and fill_cache else set()
            for block, array in self._decoded(missing, keep, stats, as_):
                found[block] = array
                if fill_cache:
                    self._first_pass.note_look_up((as_, block))
        del beside  # by which these were decoded, whether the cache had room for it or not
        return [found[block] for block in blocks]

    def between(
        self,
        lower: int,
        upper: int,
        stats: ReadStats | None,
        fill_cache: bool,
        as_: BlockForm,
        scanning: bool,
    ) -> list[pa.Array]:
        """The blocks of ordinals [lower, upper), at least one, the first and the last cut to them."""
        shift = self._footer.rows_per_block_log2
        first, last = lower >> shift, (upper - 1) >> shift
        scan = (lower, upper) if self.is_pass(scanning, fill_cache) else None
        arrays = self.blocks(range(first, last + 1), stats, fill_cache, as_, scan)
        arrays[-1] = arrays[-1].slice(0, upper - (last << shift))
        arrays[0] = arrays[0].slice(lower - (first << shift))
        return arrays

    def _decode_for_scan(
        self,
        missing: Sequence[int],
        found: dict[int, Any],
        stats: ReadStats | None,
        as_: BlockForm,
        scan: tuple[int, int],
    ) -> None:
        """Put the `missing` blocks into `found`: what another thread is decoding is waited for, when the others are
        there."""
        claimed, theirs = self._first_pass.claim((as_, block) for block in missing)
        mine = [block for block in missing if (as_, block) not in theirs]
        keep = {
            block
            for block in mine
            if self._first_pass.is_kept((as_, block)) or not self._is_whole(block, scan)
        }
        try:
            for block, array in self._decoded(mine, keep, stats, as_):
                found[block] = array
                self._first_pass.land(claimed, (as_, block), array)
        except BaseException as error:
            self._first_pass.fail(claimed, error)
            raise
        for name, decoding in theirs.items():
            found[name[1]] = decoding.result()  # type: ignore[index]

    # -- frames for who reads several columns at once (`together`) -----------------------------------------

    def is_new(self, blocks: Sequence[int], as_: BlockForm) -> bool:
        """Whether the cache would keep none of these blocks of a scan that reads them to their end."""
        return not any(self._first_pass.is_kept((as_, block)) for block in blocks)

    def place(self, block: int) -> tuple[int, int]:
        """(offset, length) of a block in the file."""
        return self._footer.block_offsets.item(block), self._footer.block_lengths.item(block)

    def landed(
        self, block: int, data: pa.Buffer, counted: BlockForm, scan: tuple[int, int], stats: ReadStats | None
    ) -> Frame:
        """A block that was read, its CRC compared, for a scan of the ordinals `scan` that counts as a pass for the form
        `counted`: kept until the scan has come to its end, or as long as any. Raises: CorruptionError."""
        footer, frame = self._footer, None
        beside = self._prepare(stats)
        if footer.lies_in_frames:
            frame = line_of(footer.form, data, block << footer.rows_per_block_log2, footer.block_rows(block))
        if frame is None:
            frame = self.decode(data, block, self.place(block)[0], "frames", is_compared=True)
        del beside
        if stats is not None:
            stats.reads += 1
            stats.bytes_read += data.size
            stats.blocks_read += 1
        if self.cache is not None and (
            not self._is_whole(block, scan) or self._first_pass.is_kept((counted, block))
        ):
            self._keep("frames", block, frame)
        return frame

    def passed(
        self, blocks: Sequence[int], counted: BlockForm, scan: tuple[int, int], stats: ReadStats | None
    ) -> None:
        """The scan was given the frames of these blocks."""
        if stats is not None and self._footer.key.role == BASE:
            stats.base_blocks.update([(id(self), block) for block in blocks])
        if self.cache is None:
            return
        for block in blocks:
            if self._is_whole(block, (0, scan[1])) and not self._first_pass.is_kept((counted, block)):
                self._first_pass.note_pass((counted, block))
                if not self._is_whole(block, scan):
                    self.cache.discard(*self.name("frames", block))

    def passed_at_once(self, blocks: Sequence[int], counted: BlockForm, stats: ReadStats | None) -> None:
        """The same of blocks that were read by one call, whole, and of which nothing is kept."""
        if stats is not None:
            lengths = self._footer.block_lengths
            stats.reads += len(blocks)
            stats.bytes_read += sum([lengths.item(block) for block in blocks])
            stats.blocks_read += len(blocks)
            if self._footer.key.role == BASE:
                stats.base_blocks.update([(id(self), block) for block in blocks])
        if self.cache is not None:
            self._first_pass.note_passes([(counted, block) for block in blocks])

    # -- decoding ------------------------------------------------------------------------------------------

    def _is_whole(self, block: int, scan: tuple[int, int]) -> bool:
        first = block << self._footer.rows_per_block_log2
        return scan[0] <= first and first + self._footer.block_rows(block) <= scan[1]

    def _pass(self, blocks: Sequence[int], as_: BlockForm, scan: tuple[int, int]) -> None:
        """A scan was given these blocks: what it read to the end has no place in the cache yet."""
        cache = self._reader._cache
        assert cache is not None
        for block in blocks:
            name = (as_, block)
            end = (block << self._footer.rows_per_block_log2) + self._footer.block_rows(block)
            if end <= scan[1] and not self._first_pass.is_kept(name):
                self._first_pass.note_pass(name)
                cache.discard(*self.name(as_, block))

    def _decoded(
        self, blocks: Sequence[int], keep: Set[int], stats: ReadStats | None, as_: BlockForm
    ) -> Iterator[tuple[int, Any]]:
        """Each of the blocks, read and decoded; of those to `keep` the cache gets what owns its memory."""
        cache = self._reader._cache
        for run in self._coalesce(blocks):
            start = int(self._footer.block_offsets[run[0]])
            end = int(self._footer.block_offsets[run[-1]]) + int(self._footer.block_lengths[run[-1]])
            data = self._reader.read_buffer(start, end - start)
            if stats is not None:
                stats.reads += 1
                stats.bytes_read += end - start
                stats.blocks_read += len(run)
            for block in run:
                offset = int(self._footer.block_offsets[block])
                length = int(self._footer.block_lengths[block])
                array = self.decode(data.slice(offset - start, length), block, offset, as_)
                if cache is not None and block in keep:
                    # Indices and runs are the array's own already; the dictionary is the column's, which keeps it
                    # anyway.
                    if len(run) > 1 and isinstance(array, Frame):
                        array = array.owning()
                    elif (
                        len(run) > 1 and as_ in ("plain", "narrow", "packed") and not isinstance(array, Runs)
                    ):
                        array = _owning(array, data)
                    self._keep(as_, block, array)
                yield block, array

    def _keep(self, as_: BlockForm, block: int, array: Any) -> None:
        size = (
            _size(array.indices)
            if as_ == "codes"
            else array.nbytes
            if as_ == "runs" or isinstance(array, Frame | Runs)
            else _size(array)
        )
        assert self.cache is not None
        self.cache.put(*self.name(as_, block), array, size)

    def _coalesce(self, blocks: Sequence[int]) -> list[list[int]]:
        """Blocks that lie one behind the other in the file, for one pread each."""
        runs: list[list[int]] = []
        run_end = run_length = 0
        for block in blocks:
            offset, length = int(self._footer.block_offsets[block]), int(self._footer.block_lengths[block])
            if runs and offset == run_end and run_length + length <= format.COALESCED_READ_BYTES_MAX:
                runs[-1].append(block)
                run_length += length
            else:
                runs.append([block])
                run_length = length
            run_end = offset + length
        return runs

    def decode(
        self, data: pa.Buffer, block: int, offset: int, as_: BlockForm = "plain", *, is_compared: bool = False
    ) -> Any:
        """A block in one of its forms: an Arrow array, a `Frame`, or `Runs`. is_compared: its CRC was."""
        footer = self._footer
        words = self.dictionary(None) if footer.dictionary_length else None
        is_narrow = self._has_narrow and as_ in ("narrow", "packed")
        form = narrow_physical(footer.form.type) if is_narrow else footer.form
        first = block << footer.rows_per_block_log2
        count = footer.block_rows(block)
        try:
            array = decode_block(
                form, data, first, count, words, self._reader.path, offset,
                as_="plain" if as_ == "narrow" else as_, is_compared=is_compared, has_dense=footer.has_dense,
            )  # fmt: skip
        except CorruptionError as error:
            raise error.with_rows(first, first + count) from error.__cause__
        if footer.null_count == 0 and as_ in ("runs", "frames") and _null_count(array):
            raise CorruptionError(
                f"expected no NULLs, as the column's footer says, found {_null_count(array)}",
                self._reader.path,
                offset,
            )
        # Keys of many blocks in one array may pass the 2 GiB that 32-bit offsets can address.
        if footer.key.role != KEY or isinstance(array, np.ndarray):
            return array
        return array.cast(self._arrow)

    def _prepare(self, stats: ReadStats | None) -> object:
        """What blocks refer to; if it has to be read, it counts as read for these. While the caller has it, decoding
        finds it."""
        return self.dictionary(stats) if self._footer.dictionary_length else None

    def dictionary(self, stats: ReadStats | None) -> pa.Array:
        """Of a column that has one."""
        found = self._words.found(self)
        return self.read_dictionary(stats) if found is None else found

    def read_dictionary(self, stats: ReadStats | None) -> pa.Array:
        """The same from the file, whatever is known already: blocks are decoded by this from now on.

        Raises: CorruptionError, also for a word that is NULL: codewords say which rows are, and no more of them would
        be taken for it; and for text that is not UTF-8, which of other blocks is not looked at: here it is once a
        column and file, and at most `DICTIONARY_BYTES_MAX`.
        """
        footer = self._footer
        place = footer.dictionary_offset, footer.dictionary_length, footer.dictionary_count
        words = self._read_beside(footer.form, *place, stats)
        if words.null_count:
            raise CorruptionError(
                f"expected {len(words)} words, found {words.null_count} NULLs among them",
                self._reader.path,
                footer.dictionary_offset,
            )
        if not is_sound(words):
            raise CorruptionError(
                "expected words in UTF-8, found others", self._reader.path, footer.dictionary_offset
            )
        self._words.put(self, words, _size(words))
        return words

    def _read_beside(
        self, form: Physical, offset: int, length: int, count: int, stats: ReadStats | None
    ) -> pa.Array:
        """The values of the one block that stands beside those of rows."""
        data = self._reader.read_buffer(offset, length)
        if stats is not None:
            stats.reads += 1
            stats.bytes_read += data.size
        return decode_block(form, data, 0, count, None, self._reader.path, offset)


def _null_count(array: Frame | pa.Array) -> int:
    """Of rows, or of runs."""
    return int(array.values.null_count if isinstance(array, pa.RunEndEncodedArray) else array.null_count)


def _size(array: pa.Array) -> int:
    return sum(buffer.size for buffer in array.buffers() if buffer is not None)


def _owning(array: pa.Array, data: pa.Buffer) -> pa.Array:
    """`array` without references into `data`."""
    lower, upper = data.address, data.address + data.size
    buffers: list[Any] = array.buffers()
    if not any(buffer is not None and lower <= buffer.address < upper for buffer in buffers):
        return array
    copies = [None if buffer is None else pa.py_buffer(buffer.to_pybytes()) for buffer in buffers]
    return pa.Array.from_buffers(array.type, len(array), copies, array.null_count, array.offset)
