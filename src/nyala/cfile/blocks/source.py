"""Blocks of one column: found in the cache, or read from the file.

    blocks ── cache ── one pread for neighbours ── decode_block

What the cache keeps depends on how a block is accessed:

    LOOKUP    it is kept at once
    SCAN      it is kept while its scan may need it, and from the second scan on as long as others: see `cache`
    ONCE      it is not kept

Trust and threads: as `reader`.
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
from nyala.schema.arrow_values import is_sound

if TYPE_CHECKING:
    from nyala.cfile.reader import CFileReader

__all__ = ["BlockSource"]

# A larger dictionary is kept in the cache.
_HELD_BYTES_MAX: Final = 64 << 10
_DICTIONARY: Final = -1  # the number of the dictionary among the blocks


class _Dictionary:
    """The column's dictionary, once it was read. A large one is in the cache, as blocks are, and is read again when it
    was evicted; while anybody holds it, everybody gets the same."""

    def __init__(self) -> None:
        self._held: pa.Array | None = None
        self._shared: weakref.ref[pa.Array] | None = None

    def found(self, source: BlockSource) -> pa.Array | None:
        """None: it has to be read, for the first time or again. source: the column's."""
        if self._held is not None or self._shared is None:
            return self._held
        found = None if source.cache is None else source.cache.get(*source.name(_DICTIONARY))
        return self._shared() if found is None else found

    def put(self, source: BlockSource, words: pa.Array, size_bytes: int) -> None:
        if source.cache is None or size_bytes <= _HELD_BYTES_MAX:
            self._held = words
            return
        self._held, self._shared = None, weakref.ref(words)
        source.cache.put(*source.name(_DICTIONARY), words, size_bytes, costly=True)


class BlockSource:
    """The blocks of one column."""

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

    def name(self, block: int) -> tuple[int, tuple[int, int]]:
        """(owner, name) of a block in the cache; no other column of the file has its place."""
        return self._owner, (self._offset, block)

    def kept(self, number: int) -> ColumnBlock | None:
        """The block, if the cache has it."""
        return None if self.cache is None else self.cache.get(self._owner, (self._offset, number))

    def read(self, block: int, stats: ReadStats | None = None) -> tuple[pa.Buffer, int]:
        """The bytes of one block from the file, past the cache, and where they lie."""
        offset, length = int(self._footer.block_offsets[block]), int(self._footer.block_lengths[block])
        data = self._reader.read_buffer(offset, length)
        if stats is not None:
            stats.reads += 1
            stats.bytes_read += length
            stats.blocks_read += 1
        return data, offset

    def blocks(self, numbers: Sequence[int], access: Access, stats: ReadStats | None) -> list[ColumnBlock]:
        """The blocks of these numbers, which ascend. Raises: CorruptionError."""
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
            words = self.dictionary(stats) if self._footer.dictionary_length else None
            for number, block in self._decoded(missing, access, stats):
                found[number] = block
            del words  # by which these were decoded, whether the cache had room for it or not
        return [found[number] for number in numbers]

    def _decoded(
        self, numbers: Sequence[int], access: Access, stats: ReadStats | None
    ) -> Iterator[tuple[int, ColumnBlock]]:
        """Each of the blocks, read and decoded. The cache gets blocks that own their memory."""
        cache = None if access is Access.ONCE else self.cache
        for run in self._coalesce(numbers):
            start = int(self._footer.block_offsets[run[0]])
            end = int(self._footer.block_offsets[run[-1]]) + int(self._footer.block_lengths[run[-1]])
            data = self._reader.read_buffer(start, end - start)
            if stats is not None:
                stats.reads += 1
                stats.bytes_read += end - start
                stats.blocks_read += len(run)
            for number in run:
                offset = int(self._footer.block_offsets[number])
                length = int(self._footer.block_lengths[number])
                block = self.decode(data.slice(offset - start, length), number, offset)
                if cache is not None:
                    if len(run) > 1:  # or it would keep the bytes of its neighbours
                        block = block.owning()
                    cache.put(*self.name(number), block, block.nbytes, by_scan=access is Access.SCAN)
                yield number, block

    def _coalesce(self, numbers: Sequence[int]) -> list[list[int]]:
        """Groups of blocks that follow each other in the file, for one pread each."""
        runs: list[list[int]] = []
        run_end = run_length = 0
        for number in numbers:
            offset, length = int(self._footer.block_offsets[number]), int(self._footer.block_lengths[number])
            if runs and offset == run_end and run_length + length <= format.COALESCED_READ_BYTES_MAX:
                runs[-1].append(number)
                run_length += length
            else:
                runs.append([number])
                run_length = length
            run_end = offset + length
        return runs

    def decode(self, data: pa.Buffer, number: int, offset: int) -> ColumnBlock:
        """The block with these bytes. Raises: CorruptionError."""
        footer = self._footer
        words = self.dictionary(None) if footer.dictionary_length else None
        first = number << footer.rows_per_block_log2
        count = footer.block_rows(number)
        try:
            block = decode_block(
                footer.form, footer.encoding, data, first, count, words, self._reader.path, offset
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
        """Of a column that has one."""
        found = self._dictionary.found(self)
        return self.read_dictionary(stats) if found is None else found

    def read_dictionary(self, stats: ReadStats | None) -> pa.Array:
        """The same from the file, whatever is known already: blocks are decoded by this from now on.

        Raises: CorruptionError, also for an entry that is NULL, since codes cannot name NULL, and for text that is not
        UTF-8. Other blocks are not checked for UTF-8; a dictionary is, once a column and file, as it has at most
        `DICTIONARY_BYTES_MAX`.
        """
        footer = self._footer
        place = footer.dictionary_offset, footer.dictionary_length, footer.dictionary_count
        words = self._read_beside(footer.form, *place, stats)
        if words.null_count:
            raise CorruptionError(
                f"expected {len(words)} dictionary entries, found {words.null_count} NULLs among them",
                self._reader.path,
                footer.dictionary_offset,
            )
        if not is_sound(words):
            raise CorruptionError(
                "expected dictionary entries in UTF-8, found others",
                self._reader.path,
                footer.dictionary_offset,
            )
        self._dictionary.put(self, words, _size(words))
        return words

    def _read_beside(
        self, form: Physical, offset: int, length: int, count: int, stats: ReadStats | None
    ) -> pa.Array:
        """The values of the one block that stands beside those of rows."""
        data = self._reader.read_buffer(offset, length)
        if stats is not None:
            stats.reads += 1
            stats.bytes_read += data.size
        block = decode_block(form, PLAIN, data, 0, count, None, self._reader.path, offset)
        return block.decode(0, count, form.arrow)


def _size(array: pa.Array) -> int:
    return sum(buffer.size for buffer in array.buffers() if buffer is not None)
