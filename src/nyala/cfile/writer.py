"""Write a column file: columns one after the other, each cut into blocks, then footers, directory and tail.

    append_column(…) → blocks appended          append_column(…) → …          finish() → footers, directory,
                       footer kept in memory                                            tail, sync, close

Nothing is written twice or in place; until `finish` returns the file has no tail and no reader accepts it.
Making the file's *name* durable is the caller's: it syncs the directory once for all files of a flush, before
the catalogue names them.

Rows per block are a power of two per column, so that blocks of all columns of a rowset nest (see `format`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, NamedTuple, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.blocks.block import BlockRows, block_rows, encode_blocks
from nyala.cfile.column import BLOOM, KEY, ColumnKey, ColumnPlace, ColumnWriteSpec, WrittenFile
from nyala.cfile.compression import compression_code, effective_compression
from nyala.cfile.encoding import PLAIN
from nyala.cfile.encoding.base import BlockEncoder, Encoding
from nyala.cfile.encoding.choice import choose_encoding
from nyala.cfile.footer import ColumnFooter, key_stretch_log2
from nyala.cfile.index.bloom_filter import Bloom
from nyala.cfile.index.zone_map import Zone, zone_of
from nyala.cfile.physical import (
    BITS,
    BYTES,
    FIXED,
    Physical,
    binary_offsets,
    bloom_physical,
    canonical_array,
    physical,
)
from nyala.env import SYSTEM, AppendFile, Files, Randomness
from nyala.schema.types import ColumnType

__all__ = ["CFileWriter", "FirstKeys", "column_bytes", "rows_per_block_log2"]

_WORDS_FORM: Final = physical(ColumnType("binary"))

FirstKeys: TypeAlias = Callable[[npt.NDArray[np.int64]], pa.LargeBinaryArray]
"""The encoded keys of the rows at these ordinals: asked once, with the first ordinal of every block."""

# Blocks smaller than this are gathered before they are appended: 300 columns of a small flush are one write.
_PENDING_BYTES_MAX = 1 << 20
_PENDING_PARTS_MAX = 512  # below the 1,024 buffers that one writev may take


class CFileWriter:
    """One new file. Used by one thread; a failure anywhere leaves `abort` as the only thing to do."""

    def __init__(self, files: Files, path: str, randomness: Randomness = SYSTEM.randomness) -> None:
        self._files = files
        self._path = path
        self._file_id = randomness.token_hex(format.FILE_ID_BYTES)
        self._file: AppendFile | None = files.create(path)
        self._pending: list[Any] = []
        self._pending_bytes = 0
        self._offset = 0
        self._footers: dict[ColumnKey, tuple[ColumnFooter, list[Zone] | None]] = {}
        id = bytes.fromhex(self._file_id)
        head = format.HEAD.pack(format.HEAD_MAGIC, format.FORMAT_VERSION, 0, 0, bytes(14), id, 0)
        head = head[: -format.CRC.size]
        self._append([head, format.CRC.pack(google_crc32c.value(head))])

    def append_column(
        self, spec: ColumnWriteSpec, array: pa.Array | pa.ChunkedArray, *, first_keys: FirstKeys | None = None
    ) -> ColumnFooter:
        """Write a whole column. Returns: what its footer will say, zone map excepted.

        first_keys: makes the column carry the value index, for the single column of a primary key: it is
                    asked for the encoded keys at the blocks' first ordinals, and the column gets the smaller
                    blocks of an index. A column of role KEY carries one unasked, from its own values.
        Takes:      values of the type's Arrow form (text and binary also with 64-bit offsets).
        """
        assert spec.key not in self._footers, f"{spec.key} is there already"
        array = canonical_array(spec.type, array)
        made = _encoded(spec, array, is_index=first_keys is not None)
        starts = np.array([rows.lower for rows in made.blocks], np.int64)
        keys = None
        if first_keys is not None:
            keys = first_keys(starts)
        elif spec.key.role == KEY:
            keys = array.take(pa.array(starts)).cast(pa.large_binary())
        assert keys is None or len(keys) == len(starts)

        dictionary = self._append_dictionary(_dictionary(made))
        blocks = self._append_blocks(_blocks(made))
        # A block of the KEY column has its first key; a zone would only say the same again.
        zones = None if spec.key.role == KEY else [_zone(made, rows) for rows in made.blocks]
        footer = ColumnFooter(
            spec.key,
            made.form,
            made.encoding,
            made.asked,
            made.log2,
            len(array),
            array.null_count,
            *blocks,
            *dictionary,
            None,
            keys,
            _text_sizes(made),
        )
        self._footers[spec.key] = (footer, zones)
        return footer

    @property
    def size_bytes(self) -> int:
        """Of what was appended so far."""
        return self._offset

    def append_bloom(
        self, hashes: npt.NDArray[np.uint64], bits_per_key: int = format.BLOOM_BITS_PER_KEY
    ) -> None:
        """Write the bloom filter of a rowset's keys, from their 64-bit hashes in any order."""
        form, log2 = bloom_physical(), format.BLOOM_ROWS_PER_BLOCK_LOG2
        bits = pa.py_buffer(Bloom.build(hashes, bits_per_key).to_bytes())
        count = bits.size // format.BLOOM_BLOCK_BYTES
        column = pa.Array.from_buffers(form.arrow, count, [None, bits], 0)
        blocks = self._append_blocks(_plain_blocks(form, column, format.COMPRESSION_NONE, log2))
        key = ColumnKey(BLOOM)
        footer = ColumnFooter(key, form, PLAIN, format.COMPRESSION_NONE, log2, count, 0, *blocks)
        self._footers[key] = (footer, None)

    def finish(self, sync: bool = True) -> WrittenFile:
        """Complete the file and close it; `sync` makes its bytes (not its name) durable.

        Returns: where every column's footer lies, in the order of appending.
        """
        assert self._file is not None, "finished already"
        places = []
        for key, (footer, zones) in self._footers.items():
            data = footer.encode(zones, self._file_id)
            places.append(ColumnPlace(key, self._offset, len(data)))
            self._append([data])
        directory = b"".join(
            format.DIRECTORY_ENTRY.pack(
                place.key.role, bytes(3), place.key.group, place.key.column_id, place.length, place.offset
            )
            for place in places
        )
        tail = format.TAIL.pack(
            self._offset, len(places), format.FORMAT_VERSION, 0, 0, 0, 0, format.TAIL_MAGIC
        )
        covered = tail[: -(format.CRC.size + len(format.TAIL_MAGIC))]
        crc = google_crc32c.value(directory + covered)
        self._append([directory, covered, format.CRC.pack(crc), format.TAIL_MAGIC])
        self._flush()
        if sync:
            self._file.sync()
        self._file.close()
        self._file = None
        return WrittenFile(self._path, self._file_id, self._offset, tuple(places))

    def abort(self) -> None:
        """Take the file away again. May be called after anything, also twice; after `finish` it does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._files.unlink(self._path, missing_ok=True)

    def __enter__(self) -> CFileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _append_dictionary(self, words: _Words | None) -> tuple[int, int, int]:
        """Its offset, its length, and how many words it has."""
        if words is None:
            return 0, 0, 0
        offset = self._offset
        self._append(words.block)
        return offset, self._offset - offset, words.word_count

    def _append_blocks(
        self, blocks: Iterable[list[Any]]
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
        offsets, lengths = [], []
        for parts in blocks:
            offsets.append(self._offset)
            self._append(parts)
            lengths.append(self._offset - offsets[-1])
        return np.array(offsets, np.uint64), np.array(lengths, np.uint32)

    def _append(self, parts: list[Any]) -> None:
        size = _size_of(parts)
        self._pending += parts
        self._pending_bytes += size
        self._offset += size
        if self._pending_bytes >= _PENDING_BYTES_MAX or len(self._pending) >= _PENDING_PARTS_MAX:
            self._flush()

    def _flush(self) -> None:
        assert self._file is not None
        if self._pending:
            self._file.append(*self._pending)
            self._pending, self._pending_bytes = [], 0


class _Encoded(NamedTuple):
    """How the values of a column are to be written."""

    form: Physical
    stored: pa.Array
    values: pa.Array  # the same without NULLs
    encoding: Encoding
    encoder: BlockEncoder
    asked: int  # compression
    compression: int
    log2: int  # rows of a block
    blocks: list[BlockRows]


def _encoded(spec: ColumnWriteSpec, array: pa.Array, *, is_index: bool, is_sample: bool = False) -> _Encoded:
    """array: in its canonical form. is_index: whether it carries the value index; a column of role KEY does anyway.
    is_sample: see `choose_encoding`."""
    form = physical(spec.type)
    is_index = is_index or spec.key.role == KEY
    block_size = spec.block_size_bytes or (
        format.KEY_BLOCK_SIZE_BYTES_DEFAULT if is_index else format.BLOCK_SIZE_BYTES_DEFAULT
    )
    log2 = rows_per_block_log2(form, array, block_size)
    stored = form.stored_array(array)
    asked = compression_code(spec.compression)
    # Of composite keys, which readers search as they lie in the block.
    name = "plain" if spec.key.role == KEY and spec.encoding == "auto" else spec.encoding
    values = stored.drop_null() if stored.null_count else stored
    encoding, encoder, compression = choose_encoding(
        name,
        form,
        values,
        asked,
        single_values=spec.single_values,
        is_index=is_index,
        is_sample=is_sample,
        block_rows=max(1, (len(values) << log2) // max(1, len(stored))),  # on average
    )
    if spec.single_values and form.kind == BYTES and not encoding.gathers_single_values(form):
        # A look-up decodes whole blocks of it, as of an index.
        block_size = spec.block_size_bytes or format.KEY_BLOCK_SIZE_BYTES_DEFAULT
        log2 = rows_per_block_log2(form, array, block_size)
    blocks = block_rows(stored, log2)
    return _Encoded(form, stored, values, encoding, encoder, asked, compression, log2, blocks)


def _zone(made: _Encoded, rows: BlockRows) -> Zone:
    count = rows.last - rows.first
    ends = made.encoder.ends(rows.first, rows.last) if count else None
    zone = zone_of(made.form, made.values.slice(rows.first, count) if ends is None else ends)
    row_count = rows.upper - rows.lower
    return replace(zone, null_count=row_count - count, row_count=row_count)


def _text_sizes(made: _Encoded) -> npt.NDArray[np.uint32] | None:
    """How many bytes of text each block has; None: of a fixed width."""
    if made.form.kind != BYTES:
        return None
    if not len(made.values):
        return np.zeros(len(made.blocks), np.uint32)
    offsets = binary_offsets(made.values)
    first, last = np.array([(rows.first, rows.last) for rows in made.blocks]).T
    sizes: npt.NDArray[np.uint32] = (offsets[last] - offsets[first]).astype(np.uint32)
    return sizes


def _blocks(made: _Encoded) -> Iterator[list[Any]]:
    return encode_blocks(made.encoding, made.encoder, made.compression, made.stored, made.blocks)


def _plain_blocks(form: Physical, values: pa.Array, compression: int, log2: int) -> Iterator[list[Any]]:
    encoder = PLAIN.prepare(form, values)
    assert encoder is not None
    return encode_blocks(PLAIN, encoder, compression, values, block_rows(values, log2))


class _Words(NamedTuple):
    """A column's dictionary, as a block."""

    block: list[Any]
    word_count: int


def _dictionary(made: _Encoded) -> _Words | None:
    words = made.encoder.dictionary
    if words is None:
        return None
    compression = effective_compression(made.asked, PLAIN.compresses)
    (block,) = _plain_blocks(_WORDS_FORM, words, compression, format.ROWS_PER_BLOCK_LOG2_MAX)
    return _Words(block, len(words))


class ColumnBytes(NamedTuple):
    """What `append_column` would write of a column, footer excepted."""

    blocks: int
    dictionary: int
    key_stretch_log2: int  # as the footer would say


def column_bytes(spec: ColumnWriteSpec, array: pa.Array, *, is_index: bool = False) -> ColumnBytes:
    """What `append_column` would write of these values, as a part of a column that is not small.

    Cost: as writing them.
    """
    made = _encoded(spec, canonical_array(spec.type, array), is_index=is_index, is_sample=True)
    blocks = sum(map(_size_of, _blocks(made)))
    words = _dictionary(made)
    stretch_log2 = key_stretch_log2(made.encoding, made.form)
    return ColumnBytes(blocks, 0 if words is None else _size_of(words.block), stretch_log2)


def _size_of(parts: Sequence[Any]) -> int:
    return sum(map(len, parts))


def rows_per_block_log2(form: Physical, array: pa.Array, block_size_bytes: int) -> int:
    """The most rows (as a power of two) whose values fill no block beyond `block_size_bytes`.

    For text it is the largest block that must fit; but a few long values among short ones shall not cut the
    whole column into crumbs, so blocks that are a sixteenth full on average are allowed to be too large, up to
    `BLOCK_SIZE_BYTES_MAX`, which not even a single long value exceeds.
    """
    size = min(max(block_size_bytes, format.BLOCK_SIZE_BYTES_MIN), format.BLOCK_SIZE_BYTES_MAX)
    limit = format.ROWS_PER_BLOCK_LOG2_MAX
    if form.kind == BITS:
        return min(limit, (8 * size).bit_length() - 1)
    if form.kind == FIXED:
        return min(limit, max(0, (size // form.width_bytes).bit_length() - 1))
    assert form.kind == BYTES
    if len(array) == 0:
        return min(limit, size.bit_length() - 1)
    offsets = binary_offsets(array)
    if int(offsets[-1]) - int(offsets[0]) + len(array) <= size:
        return min(limit, len(array).bit_length())
    # Offsets with a byte for each value's length; blocks from the whole column down to single values.
    ends = offsets.astype(np.int64) + np.arange(len(offsets))
    total = int(ends[-1] - ends[0])
    for log2 in range(min(limit, len(array).bit_length()), 0, -1):
        largest = int(np.diff(ends[:: 1 << log2], append=ends[-1]).max())
        blocks = -(-len(array) >> log2)
        if largest <= size or (largest <= format.BLOCK_SIZE_BYTES_MAX and total * 16 < size * blocks):
            return log2
    return 0
