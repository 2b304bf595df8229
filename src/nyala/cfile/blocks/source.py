"""Reads the blocks of one column, from the cache or from the file.

One pread reads adjacent blocks together. `Access` says why a block is read, and so whether the
cache keeps it:

    LOOKUP    for single rows: the cache keeps the block
    SCAN      for a scan: the cache keeps the block for a short time, and longer after a second scan
    ONCE      for a caller that caches its own result: the cache does not keep the block

The docstring of `reader` describes the checks and the thread safety.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.blocks.block import decode_block
from nyala.cfile.blocks.read_stats import Access, ReadStats
from nyala.cfile.column import BASE, ColumnPlace
from nyala.cfile.encoding import PLAIN
from nyala.cfile.footer import ColumnFooter
from nyala.cfile.forms.column_block import ColumnBlock
from nyala.cfile.physical import Physical
from nyala.errors import CorruptionError
from nyala.schema.arrow_values import has_valid_values

if TYPE_CHECKING:
    from nyala.cfile.reader import CFileReader


# A larger dictionary is in the block cache, which may evict it.
_HELD_BYTES_MAX: Final = 64 << 10
_DICTIONARY: Final = -1  # the block number under which the cache has the dictionary


class _Dictionary:
    """Holds the column's dictionary after its first read.

    A small dictionary stays in memory. A large dictionary is put into the block cache. After
    the cache evicts it, `get` still returns it while other code uses the array. After that, `get`
    returns None, and the caller reads the dictionary from the file again.
    """

    def __init__(self) -> None:
        self._held: pa.Array | None = None
        self._shared: weakref.ref[pa.Array] | None = None

    def get(self, source: BlockSource) -> pa.Array | None:
        """Return the dictionary, or None if it is not in memory, so that the caller must read it.

        source: has the block cache, and the name of the dictionary there.
        """
        if self._held is not None or self._shared is None:
            return self._held
        cached = None if source.cache is None else source.cache.get(*source.name(_DICTIONARY))
        return self._shared() if cached is None else cached

    def put(self, source: BlockSource, entries: pa.Array, size_bytes: int) -> None:
        if source.cache is None or size_bytes <= _HELD_BYTES_MAX:
            self._held = entries
            return
        self._held, self._shared = None, weakref.ref(entries)
        source.cache.put(*source.name(_DICTIONARY), entries, size_bytes, costly=True)


class BlockSource:
    """Reads the blocks of one column, from the cache or from the file."""

    def __init__(self, reader: CFileReader, footer: ColumnFooter, place: ColumnPlace) -> None:
        self._reader = reader
        self.cache: Final = reader._cache
        self._owner: Final = reader._owner
        self._offset: Final = place.offset
        self._footer = footer
        self._dictionary = _Dictionary()

    @property
    def path(self) -> str:
        return self._reader.path

    @property
    def file(self) -> CFileReader:
        return self._reader

    def place_of(self, first: int, last: int) -> tuple[int, int]:
        """Return (offset, length) of the bytes from block `first` to block `last`, both included.

        These blocks are adjacent in the file.
        """
        offset, end = int(self._footer.block_offsets[first]), int(self._footer.block_offsets[last])
        return offset, end + int(self._footer.block_lengths[last]) - offset

    def name(self, block: int) -> tuple[int, tuple[int, int]]:
        """Return the (owner, key) under which the cache has a block.

        The key contains the offset of the column's footer, which is unique in the file.
        """
        return self._owner, (self._offset, block)

    def cached(self, number: int) -> ColumnBlock | None:
        """Return the block if it is in the cache, else None."""
        return None if self.cache is None else self.cache.get(*self.name(number))

    def read(self, block: int, stats: ReadStats | None = None) -> tuple[pa.Buffer, int]:
        """Read a block from the file, even if it is cached. Return (its bytes, their offset)."""
        offset, length = self.place_of(block, block)
        return self._read(offset, length, stats, 1), offset

    def _read(self, offset: int, length: int, stats: ReadStats | None, block_count: int) -> pa.Buffer:
        data = self._reader.read_buffer(offset, length)
        if stats is not None:
            stats.reads += 1
            stats.bytes_read += length
            stats.blocks_read += block_count
        return data

    def blocks(self, numbers: Sequence[int], access: Access, stats: ReadStats | None) -> list[ColumnBlock]:
        """Return the blocks with these numbers, from the cache or the file. Numbers must ascend.

        Raises: CorruptionError.
        """
        cache = self.cache
        found: dict[int, ColumnBlock] = {}
        if cache is not None:
            kept = cache.get_all([self.name(number) for number in numbers])
            found = {number: block for number, block in zip(numbers, kept, strict=True) if block is not None}
        if stats is not None:
            stats.cache_hits += len(found)
            if self._footer.key.role == BASE:
                stats.base_blocks.update([(id(self), number) for number in numbers])
        missing = [number for number in numbers if number not in found]
        if missing:
            dictionary = self.dictionary(stats) if self._footer.dictionary_length else None
            for number, block in self._decoded(missing, access, stats):
                found[number] = block
            del dictionary  # held until here: all blocks refer to one object, even if the cache evicts it
        return [found[number] for number in numbers]

    def _decoded(
        self, numbers: Sequence[int], access: Access, stats: ReadStats | None
    ) -> Iterator[tuple[int, ColumnBlock]]:
        """Read, decode and cache these blocks. Yield (number, block) of each."""
        cache = None if access is Access.ONCE else self.cache
        for run in self._coalesce(numbers):
            start, size = self.place_of(run[0], run[-1])
            data = self._read(start, size, stats, len(run))
            for number in run:
                offset, length = self.place_of(number, number)
                block = self.decode(data.slice(offset - start, length), number, offset)
                if cache is not None:
                    if len(run) > 1:  # a slice would keep the bytes of its neighbours alive
                        block = block.owning()
                    cache.put(*self.name(number), block, block.nbytes, by_scan=access is Access.SCAN)
                yield number, block

    def _coalesce(self, numbers: Sequence[int]) -> list[list[int]]:
        """Return groups of blocks that are adjacent in the file, so that one pread reads a group."""
        runs: list[list[int]] = []
        run_end = run_length = 0
        for number in numbers:
            offset, length = self.place_of(number, number)
            if runs and offset == run_end and run_length + length <= format.COALESCED_READ_BYTES_MAX:
                runs[-1].append(number)
                run_length += length
            else:
                runs.append([number])
                run_length = length
            run_end = offset + length
        return runs

    def decode(self, data: pa.Buffer, number: int, offset: int) -> ColumnBlock:
        """Decode one block from its stored bytes. Raises CorruptionError.

        number: the position of the block in its column. The first block has number 0.
        offset: where the block begins in the file. It is needed for errors, and to read damaged
            bytes again.
        """
        footer = self._footer
        dictionary = self.dictionary(None) if footer.dictionary_length else None
        first = number << footer.rows_per_block_log2
        count = footer.block_rows(number)
        form, encoding, path = footer.form, footer.encoding, self._reader.path
        try:
            block = self._reader.checked(
                data,
                offset,
                lambda data: decode_block(form, encoding, data, first, count, dictionary, path, offset),
            )
        except CorruptionError as error:
            raise error.with_rows(first, first + count) from error.__cause__
        if footer.null_count == 0 and block.null_count:
            raise CorruptionError(
                f"expected no NULLs, as the column's footer says, found {block.null_count}",
                self._reader.path,
                offset,
            )
        return block

    def dictionary(self, stats: ReadStats | None) -> pa.Array:
        """Return the column's dictionary, from memory or the file. The column must have one."""
        cached = self._dictionary.get(self)
        return self.read_dictionary(stats) if cached is None else cached

    def read_dictionary(self, stats: ReadStats | None) -> pa.Array:
        """Read the dictionary from the file, even if it is in memory. Blocks that are decoded later
        use it.

        Raises: CorruptionError, also for NULL entries and for text that is not UTF-8. (Values in
        blocks are not checked for UTF-8, because that would be done for every block.)
        """
        footer = self._footer
        location = footer.dictionary_offset, footer.dictionary_length, footer.dictionary_count
        entries = self._read_values(footer.form, *location, stats)
        if entries.null_count:
            raise CorruptionError(
                f"expected {len(entries)} dictionary entries without NULL, found {entries.null_count} NULLs",
                self._reader.path,
                footer.dictionary_offset,
            )
        if not has_valid_values(entries):
            raise CorruptionError(
                "expected dictionary entries in UTF-8, found an entry that is not UTF-8",
                self._reader.path,
                footer.dictionary_offset,
            )
        size = sum(buffer.size for buffer in entries.buffers() if buffer is not None)
        self._dictionary.put(self, entries, size)
        return entries

    def _read_values(
        self, form: Physical, offset: int, length: int, count: int, stats: ReadStats | None
    ) -> pa.Array:
        """Read and decode the dictionary: a block of `count` values in the plain encoding."""
        data = self._read(offset, length, stats, 0)
        path = self._reader.path
        block = self._reader.checked(
            data, offset, lambda data: decode_block(form, PLAIN, data, 0, count, None, path, offset)
        )
        return block.decode(0, count, form.arrow)
