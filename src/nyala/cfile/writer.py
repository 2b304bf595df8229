"""Writes a column file: the blocks of one column after another, then footers, directory and tail.

    append_column(…)     appends the blocks of a column, and keeps its footer in memory
    append_column(…)     …
    finish()             appends footers, directory and tail, then syncs and closes the file

The writer only appends. Until `finish` writes the tail, no reader accepts the file. The caller must
also make the *name* of the file durable: it syncs the folder once for all files of a flush, before
the catalogue names them.
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
from nyala.cfile.footer import ColumnFooter, sparse_key_rows_log2
from nyala.cfile.index.bloom_filter import bloom_words
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

_DICTIONARY_FORM: Final = physical(ColumnType("binary"))

FirstKeys: TypeAlias = Callable[[npt.NDArray[np.int64]], pa.LargeBinaryArray]
"""A function from ordinals to the encoded keys of these rows. It is called once, with each block's
first ordinal.
"""

# Parts are collected up to this size and then appended together. So a small flush of 300 columns is
# one write.
_PENDING_BYTES_MAX = 1 << 20
_PENDING_PARTS_MAX = 512  # writev takes at most 1,024 buffers


class CFileWriter:
    """Writes one new file. For one thread. After a failure, `abort` is the only valid call."""

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
        """Write a whole column, and return its footer without the zone map.

        array: values in the type's Arrow form. Text and binary may have 64-bit offsets.
        first_keys: a function that returns the encoded keys of the rows at the given positions.
        Pass it for the only column of a primary key. The column then gets a key index, and smaller
        blocks. A column of encoded keys (role KEY) always gets a key index from its own values.
        """
        assert spec.key not in self._footers, f"{spec.key} was appended already"
        array = canonical_array(spec.type, array)
        encoded = _encoded(spec, array, is_index=first_keys is not None)
        starts = np.array([rows.lower for rows in encoded.blocks], np.int64)
        keys = None
        if first_keys is not None:
            keys = first_keys(starts)
        elif spec.key.role == KEY:
            keys = array.take(pa.array(starts)).cast(pa.large_binary())
        assert keys is None or len(keys) == len(starts)

        dictionary = self._append_dictionary(encoded)
        blocks = self._append_blocks(_blocks(encoded))
        # A KEY column has no zone map: its footer has the first key of each block, which says the
        # same.
        zones = None if spec.key.role == KEY else [_zone(encoded, rows) for rows in encoded.blocks]
        footer = ColumnFooter(
            spec.key,
            encoded.form,
            encoded.encoding,
            encoded.schema_compression,
            encoded.log2,
            len(array),
            array.null_count,
            *blocks,
            *dictionary,
            None,
            keys,
            _text_sizes(encoded),
        )
        self._footers[spec.key] = (footer, zones)
        return footer

    @property
    def size_bytes(self) -> int:
        """The bytes appended so far."""
        return self._offset

    def append_bloom(
        self, hashes: npt.NDArray[np.uint64], bits_per_key: int = format.BLOOM_BITS_PER_KEY
    ) -> None:
        """Write the bloom filter of a rowset's keys from the 64-bit hashes of the keys, in any order."""
        form, log2 = bloom_physical(), format.BLOOM_ROWS_PER_BLOCK_LOG2
        bits = pa.py_buffer(bloom_words(hashes, bits_per_key))
        count = bits.size // format.BLOOM_BLOCK_BYTES
        column = pa.Array.from_buffers(form.arrow, count, [None, bits], 0)
        blocks = self._append_blocks(_plain_blocks(form, column, format.COMPRESSION_NONE, log2))
        key = ColumnKey(BLOOM)
        footer = ColumnFooter(key, form, PLAIN, format.COMPRESSION_NONE, log2, count, 0, *blocks)
        self._footers[key] = (footer, None)

    def finish(self, sync: bool = True) -> WrittenFile:
        """Write footers, directory and tail, close the file, and return its catalogue entry.

        sync: whether to make the bytes of the file durable. The caller makes the name durable.
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
        """Close and delete the file. Has no effect after `finish` or `abort`."""
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

    def _append_dictionary(self, encoded: _Encoded) -> tuple[int, int, int]:
        """Append the dictionary, and return its offset, its length and its number of entries."""
        entries = encoded.encoder.dictionary
        if entries is None:
            return 0, 0, 0
        offset = self._offset
        self._append(_dictionary_block(encoded))
        return offset, self._offset - offset, len(entries)

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
    """The values of a column, and how to write them: encoding, compression and blocks."""

    form: Physical
    stored: pa.Array
    values: pa.Array  # `stored` without NULLs
    encoding: Encoding
    encoder: BlockEncoder
    schema_compression: int
    compression: int
    log2: int  # the rows per block are 2^log2
    blocks: list[BlockRows]


def _encoded(spec: ColumnWriteSpec, array: pa.Array, *, is_index: bool, is_sample: bool = False) -> _Encoded:
    """Decide how to store a column: its encoding, compression and blocks.

    array: in canonical form (see `canonical_array`).
    is_index: whether the column gets a key index. A column of encoded keys always gets one.
    is_sample: whether the array is only a sample of a large column.
    """
    form = physical(spec.type)
    is_index = is_index or spec.key.role == KEY
    block_size = spec.block_size_bytes or (
        format.KEY_BLOCK_SIZE_BYTES_DEFAULT if is_index else format.BLOCK_SIZE_BYTES_DEFAULT
    )
    log2 = rows_per_block_log2(form, array, block_size)
    stored = form.stored_array(array)
    schema_compression = compression_code(spec.compression)
    # Readers search composite keys in the encoded block, so these are stored plain.
    name = "plain" if spec.key.role == KEY and spec.encoding == "auto" else spec.encoding
    values = stored.drop_null() if stored.null_count else stored
    encoding, encoder, compression = choose_encoding(
        name,
        form,
        values,
        schema_compression,
        single_values=spec.single_values,
        is_index=is_index,
        is_sample=is_sample,
        block_rows=max(1, (len(values) << log2) // max(1, len(stored))),  # on average
    )
    if spec.single_values and form.kind == BYTES and not encoding.gathers_single_values(form):
        # A look-up decodes a whole block of such a column. So its blocks are as small as those of
        # an index.
        block_size = spec.block_size_bytes or format.KEY_BLOCK_SIZE_BYTES_DEFAULT
        log2 = rows_per_block_log2(form, array, block_size)
    blocks = block_rows(stored, log2)
    return _Encoded(form, stored, values, encoding, encoder, schema_compression, compression, log2, blocks)


def _zone(encoded: _Encoded, rows: BlockRows) -> Zone:
    count = rows.last - rows.first
    bounds = encoded.encoder.bounds(rows.first, rows.last) if count else None
    zone = zone_of(encoded.form, encoded.values.slice(rows.first, count) if bounds is None else bounds)
    row_count = rows.upper - rows.lower
    return replace(zone, null_count=row_count - count, row_count=row_count)


def _text_sizes(encoded: _Encoded) -> npt.NDArray[np.uint32] | None:
    """Return the size of the text in each block, in bytes; None for fixed-width types."""
    if encoded.form.kind != BYTES:
        return None
    if not len(encoded.values):
        return np.zeros(len(encoded.blocks), np.uint32)
    offsets = binary_offsets(encoded.values)
    first, last = np.array([(rows.first, rows.last) for rows in encoded.blocks]).T
    sizes: npt.NDArray[np.uint32] = (offsets[last] - offsets[first]).astype(np.uint32)
    return sizes


def _blocks(encoded: _Encoded) -> Iterator[list[Any]]:
    return encode_blocks(
        encoded.encoding, encoded.encoder, encoded.compression, encoded.stored, encoded.blocks
    )


def _plain_blocks(form: Physical, values: pa.Array, compression: int, log2: int) -> Iterator[list[Any]]:
    encoder = PLAIN.prepare(form, values)
    assert encoder is not None
    return encode_blocks(PLAIN, encoder, compression, values, block_rows(values, log2))


def _dictionary_block(encoded: _Encoded) -> list[Any]:
    """Return the column's dictionary, encoded as a block; nothing if the column has none."""
    entries = encoded.encoder.dictionary
    if entries is None:
        return []
    compression = effective_compression(encoded.schema_compression, PLAIN.compresses)
    (block,) = _plain_blocks(_DICTIONARY_FORM, entries, compression, format.ROWS_PER_BLOCK_LOG2_MAX)
    return block


class ColumnBytes(NamedTuple):
    """How many bytes `append_column` would write for a column's blocks and dictionary."""

    blocks: int
    dictionary: int
    sparse_key_rows_log2: int  # see `ColumnFooter.sparse_key_rows_log2`


def column_bytes(spec: ColumnWriteSpec, array: pa.Array, *, is_index: bool = False) -> ColumnBytes:
    """Return how many bytes `append_column` would write for `array`, by encoding its values.

    array: a sample of a large column.
    is_index: whether the column has the key index.
    """
    encoded = _encoded(spec, canonical_array(spec.type, array), is_index=is_index, is_sample=True)
    blocks = sum(map(_size_of, _blocks(encoded)))
    key_rows_log2 = sparse_key_rows_log2(encoded.encoding, encoded.form)
    return ColumnBytes(blocks, _size_of(_dictionary_block(encoded)), key_rows_log2)


def _size_of(parts: Sequence[Any]) -> int:
    return sum(map(len, parts))


def rows_per_block_log2(form: Physical, array: pa.Array, block_size_bytes: int) -> int:
    """Return the largest n for which blocks of 2^n rows have at most `block_size_bytes`.

    Blocks of text differ in size, and a few long values must not divide a column of short values
    into tiny blocks. So a larger block of text is allowed if the blocks have on average less than a
    sixteenth of `block_size_bytes`. Then the largest block may have up to `BLOCK_SIZE_BYTES_MAX`.
    If no n is possible, the result is 0: one row per block.
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
    # Offsets, plus one byte per value for its length. Try block sizes from the whole column
    # downwards.
    ends = offsets.astype(np.int64) + np.arange(len(offsets))
    total = int(ends[-1] - ends[0])
    for log2 in range(min(limit, len(array).bit_length()), 0, -1):
        largest = int(np.diff(ends[:: 1 << log2], append=ends[-1]).max())
        blocks = -(-len(array) >> log2)
        if largest <= size or (largest <= format.BLOCK_SIZE_BYTES_MAX and total * 16 < size * blocks):
            return log2
    return 0
