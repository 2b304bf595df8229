"""A column's footer: the column's type, and its blocks' places, zone map and first keys.

    ┌───────┬───────────────┬───────────────┬─────────────┬──────────┬────────────┬─────────┐
    │ fixed │ block offsets │ block lengths │ text sizes  │ zone map │ first keys │ CRC-32C │
    └───────┴───────────────┴───────────────┴─────────────┴──────────┴────────────┴─────────┘
      88 B    8 B a block     4 B a block     4 B a block   optional   optional     of all bytes
                                              of text and                           before it
                                              binary

A text size is the number of bytes that the text or binary values of one block take when they are
decoded. A scan uses the text sizes to choose its splits before it reads a block (`bytes_before`).

Block i holds the ordinals [i · R, (i + 1) · R). R, the rows per block, is a power of two. So a
shift of an ordinal gives the number of its block. Offsets and lengths are two vectors instead of
pairs, so NumPy reads them without a copy.

    F-count   block count = ceil(row count / R)
    F-inside  every block is between the file's head and this footer
    F-exact   the footer's parts fill exactly the length that the catalogue or the file's directory
              (the list of its footers) names

`decode` checks the CRC and these invariants before it uses any length, count or offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.column import BLOOM, KEY, ColumnKey
from nyala.cfile.compression import compression_name
from nyala.cfile.encoding import encoding_by_code
from nyala.cfile.encoding.base import EncodedValues, Encoding
from nyala.cfile.encoding.plain import decode_binary, encode_binary
from nyala.cfile.errors import refuse_unknown_flags, wrong_file
from nyala.cfile.index.zone_map import Zone, ZoneMap
from nyala.cfile.physical import BYTES, Physical, bloom_physical, physical
from nyala.errors import CorruptionError, SchemaError
from nyala.lazy_values import LazyValues, lazy_value
from nyala.schema.types import ColumnType

_OFFSET_BYTES: Final = 4  # of a value of a text array in Arrow's memory


@dataclass(frozen=True)
class ColumnFooter(LazyValues):
    """The decoded footer of a column: what a reader needs before it reads a block."""

    key: ColumnKey
    form: Physical
    encoding: Encoding
    compression: int  # the schema's; each block header has that of its block
    rows_per_block_log2: int
    row_count: int
    null_count: int
    block_offsets: npt.NDArray[np.uint64]
    block_lengths: npt.NDArray[np.uint32]
    dictionary_offset: int = 0
    dictionary_length: int = 0  # 0: the column has no dictionary
    dictionary_count: int = 0
    zone_bytes: bytes | None = None  # the encoded zone map
    first_keys: pa.LargeBinaryArray | None = None
    text_sizes: npt.NDArray[np.uint32] | None = None  # bytes of text per block; None for fixed width
    location: tuple[str, int] = ("", 0)  # path and offset, for errors

    @lazy_value
    def zone_map(self) -> ZoneMap | None:
        """The zone map; None if the column has none. It is decoded at its first use.

        Raises: CorruptionError for bytes that are not a valid zone map.
        """
        if self.zone_bytes is None:
            return None
        starts = np.arange(self.block_count, dtype=np.int64) << self.rows_per_block_log2
        rows = np.minimum(self.row_count - starts, self.rows_per_block)
        try:
            return ZoneMap.decode(self.form, self.zone_bytes, rows)
        except ValueError as error:
            raise CorruptionError(f"column footer: {error}", *self.location) from error

    @lazy_value
    def _text_ends(self) -> npt.NDArray[np.int64]:
        """The number of text bytes before each block. The last item is the number in all blocks."""
        assert self.text_sizes is not None
        return np.append(0, np.cumsum(self.text_sizes, dtype=np.int64))

    @lazy_value
    def _block_borders(self) -> npt.NDArray[np.int64]:
        """The first ordinal of each block, then the row count."""
        borders = np.arange(self.block_count + 1, dtype=np.int64) << self.rows_per_block_log2
        borders[-1] = self.row_count
        return borders

    @property
    def text_bytes(self) -> int:
        """The size of the column's decoded text, in bytes; 0 for types of fixed width."""
        return 0 if self.text_sizes is None else int(self._text_ends[-1])

    @property
    def row_bytes(self) -> float:
        """The average size of a decoded value, in bytes."""
        if self.text_sizes is None:
            return float(self.form.arrow.bit_width / 8)
        return _OFFSET_BYTES + self.text_bytes / max(1, self.row_count)

    def text_before(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return, for each ordinal, the approximate number of text bytes before this ordinal.

        The number is exact if the values of each block are equally long.
        """
        before: npt.NDArray[np.float64] = np.interp(ordinals, self._block_borders, self._text_ends)
        return before

    def bytes_before(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return, for each ordinal, the approximate number of decoded bytes before this ordinal."""
        if self.text_sizes is None:
            return np.multiply(ordinals, self.row_bytes, dtype=np.float64)
        return self.text_before(ordinals) + _OFFSET_BYTES * ordinals

    def block_bytes_max(self, lower: int, upper: int) -> float:
        """Return the size of the largest decoded block that overlaps [lower, upper), in bytes.

        lower, upper: ordinals.
        """
        rows = min(self.rows_per_block, self.row_count)
        if self.text_sizes is None:
            return rows * self.row_bytes
        log2 = self.rows_per_block_log2
        return rows * _OFFSET_BYTES + int(self.text_sizes[lower >> log2 : (upper - 1 >> log2) + 1].max())

    @property
    def rows_per_block(self) -> int:
        return 1 << self.rows_per_block_log2

    @property
    def block_count(self) -> int:
        return len(self.block_offsets)

    @property
    def gathers_single_values(self) -> bool:
        """Whether one value is gathered at constant cost, without decoding its block."""
        return self.null_count == 0 and self.encoding.gathers_single_values(self.form)

    @property
    def sparse_key_rows_log2(self) -> int:
        """The number n: for this key column, it is enough to store the key of every 2^n-th row.

        The keys are composite keys. Look-ups compute the other keys from this column and the other
        key columns. 0 means that the file must store every key, because reading single values of
        this column is slow.
        """
        return sparse_key_rows_log2(self.encoding, self.form)

    def block_rows(self, block: int) -> int:
        """Return the row count of a block. Only the last block may have fewer than `rows_per_block`."""
        log2 = self.rows_per_block_log2
        return min(1 << log2, self.row_count - (block << log2))

    def encode(self, zones: list[Zone] | None, file_id: str) -> bytes:
        """Return the bytes of the footer.

        zones: the zone of each block; None: no zone map. The field `zone_bytes` is ignored.
        file_id: the id of the file, as hexadecimal text.
        """
        zone_bytes = b"" if zones is None else ZoneMap.encode(self.form, zones)
        key_bytes = b"" if self.first_keys is None else encode_binary(self.first_keys).to_pybytes()
        flags = format.COLUMN_HAS_ZONE_MAP * (zones is not None)
        flags |= format.COLUMN_HAS_FIRST_KEYS * (self.first_keys is not None)
        type = self.form.type
        fixed = format.FOOTER.pack(
            format.FOOTER_MAGIC,
            0,
            flags,
            self.key.role,
            self.form.code,
            self.encoding.code,
            self.compression,
            self.key.group,
            self.key.column_id,
            self.rows_per_block_log2,
            type.precision or 0,
            type.scale or 0,
            0,
            type.length or 0,
            self.block_count,
            self.row_count,
            self.null_count,
            self.dictionary_offset,
            self.dictionary_length,
            self.dictionary_count,
            len(zone_bytes),
            len(key_bytes),
            bytes.fromhex(file_id),
        )
        offsets = self.block_offsets.astype(format.BLOCK_OFFSET_DTYPE).tobytes()
        lengths = self.block_lengths.astype(format.BLOCK_LENGTH_DTYPE).tobytes()
        sizes = b"" if self.text_sizes is None else self.text_sizes.astype(format.TEXT_SIZE_DTYPE).tobytes()
        body = b"".join((fixed, offsets, lengths, sizes, zone_bytes, key_bytes))
        return body + format.CRC.pack(google_crc32c.value(body))

    @classmethod
    def decode(
        cls, data: bytes, key: ColumnKey | None, path: str, offset: int, file_id: str | None = None
    ) -> ColumnFooter:
        """Decode the bytes of a footer that begins at `offset` of the file.

        key, file_id: the column and the file that the footer must name. None: any.
        Raises: CorruptionError for invalid bytes; StorageError for flags of a newer version.
        """

        def damaged(message: str) -> CorruptionError:
            return CorruptionError(f"column footer: {message}", path, offset)

        if len(data) < format.FOOTER.size + format.CRC.size:
            raise damaged(
                f"expected at least {format.FOOTER.size + format.CRC.size} bytes, found {len(data)}"
            )
        body_length = len(data) - format.CRC.size
        (expected,) = format.CRC.unpack_from(data, body_length)
        found = google_crc32c.value(data[:body_length])
        if found != expected:
            raise damaged(f"expected CRC-32C {expected:08x} over {body_length} bytes, found {found:08x}")
        (
            magic,
            incompatible,
            flags,
            role,
            type_code,
            encoding_code,
            compression,
            group,
            column_id,
            rows_per_block_log2,
            precision,
            scale,
            _,
            varchar_length,
            block_count,
            row_count,
            null_count,
            dictionary_offset,
            dictionary_length,
            dictionary_count,
            zone_length,
            keys_length,
            found_id,
        ) = format.FOOTER.unpack_from(data)
        if magic != format.FOOTER_MAGIC:
            raise damaged(f"expected magic {format.FOOTER_MAGIC!r}, found {magic!r}")
        refuse_unknown_flags(incompatible, format.COLUMN_INCOMPATIBLE_KNOWN, path)
        if file_id is not None and found_id.hex() != file_id:
            raise wrong_file(file_id, found_id.hex(), path, offset)
        found_key = ColumnKey(role, group, column_id)
        if key is not None and found_key != key:
            raise damaged(f"expected {key.in_words}, found {found_key.in_words}")
        try:
            form = _physical_by_code(type_code, precision, scale, varchar_length)
        except (SchemaError, KeyError) as error:
            raise damaged(f"expected the number of a column type, found {type_code} ({error})") from error
        if (role == BLOOM) != (type_code == format.TYPE_BLOOM) or (role == KEY and form.kind != BYTES):
            raise damaged(
                f"expected a type that a column of role {format.ROLES.get(role, role)} may have, found "
                f"{format.TYPES[type_code]}"
            )
        encoding = encoding_by_code(encoding_code)
        if encoding is None or not encoding.handles(form) or compression_name(compression) is None:
            raise damaged(
                f"expected the numbers of an encoding and a compression for {form.type}, found {encoding_code} "
                f"and {compression}"
            )
        if rows_per_block_log2 > format.ROWS_PER_BLOCK_LOG2_MAX or null_count > row_count:
            raise damaged(
                f"expected at most 2^{format.ROWS_PER_BLOCK_LOG2_MAX} rows per block and no more NULLs than rows, "
                f"found 2^{rows_per_block_log2}, {null_count} NULLs, {row_count} rows"
            )
        if block_count != -(-row_count >> rows_per_block_log2):
            raise damaged(
                f"expected {-(-row_count >> rows_per_block_log2)} blocks for {row_count} rows, found {block_count}"
            )
        index_dtypes = [format.BLOCK_OFFSET_DTYPE, format.BLOCK_LENGTH_DTYPE]
        if form.kind == BYTES:
            index_dtypes.append(format.TEXT_SIZE_DTYPE)
        index_length = block_count * sum(np.dtype(dtype).itemsize for dtype in index_dtypes)
        if format.FOOTER.size + index_length + zone_length + keys_length != body_length:
            raise damaged(
                f"expected the footer's parts to have {body_length} bytes together, found "
                f"{format.FOOTER.size + index_length + zone_length + keys_length}"
            )
        position = format.FOOTER.size
        offsets = np.frombuffer(data, format.BLOCK_OFFSET_DTYPE, block_count, position)
        position += offsets.nbytes
        lengths = np.frombuffer(data, format.BLOCK_LENGTH_DTYPE, block_count, position)
        position += lengths.nbytes
        text_sizes = None
        if form.kind == BYTES:
            text_sizes = np.frombuffer(data, format.TEXT_SIZE_DTYPE, block_count, position)
            position += text_sizes.nbytes
            if np.any(text_sizes > format.BLOCK_VALUES_BYTES_MAX):
                raise damaged(
                    f"expected at most {format.BLOCK_VALUES_BYTES_MAX} bytes of text in a block, found "
                    f"{int(text_sizes.max())}"
                )
        lower, upper = format.HEAD.size, offset
        # Subtract the lengths and never add them: an offset near 2^64 must not wrap around to a
        # small one.
        if np.any(offsets < lower) or np.any(offsets > upper) or np.any(lengths > upper - offsets):
            raise damaged(f"expected blocks between the offsets {lower} and {upper}, found one outside")
        if (taken := int(lengths.sum(dtype=np.uint64))) > upper:
            raise damaged(f"expected blocks of at most {upper} bytes together, found {taken}")
        if dictionary_length and not (lower <= dictionary_offset <= upper - dictionary_length):
            raise damaged(
                f"expected the dictionary between the offsets {lower} and {upper}, found it at {dictionary_offset}"
            )
        if dictionary_count and not dictionary_length:
            raise damaged(f"expected no dictionary entries without a dictionary, found {dictionary_count}")
        if bool(flags & format.COLUMN_HAS_ZONE_MAP) == (role in (KEY, BLOOM)):
            raise damaged(
                "expected a zone map in every column except encoded keys and bloom filters, found flags "
                f"{flags:#06x}"
            )
        if dictionary_count > 1 << format.ROWS_PER_BLOCK_LOG2_MAX:
            raise damaged(
                f"expected at most 2^{format.ROWS_PER_BLOCK_LOG2_MAX} dictionary entries, found {dictionary_count}"
            )
        if (dictionary_length > 0) != encoding.uses_dictionary:
            raise damaged(
                "expected a dictionary exactly if the encoding is 'dictionary', found "
                f"{dictionary_length} bytes of dictionary and the encoding {encoding.name!r}"
            )
        zone_bytes = first_keys = None
        try:
            if flags & format.COLUMN_HAS_ZONE_MAP:
                zone_bytes = data[position : position + zone_length]
            position += zone_length
            if flags & format.COLUMN_HAS_FIRST_KEYS:
                keys = EncodedValues(pa.py_buffer(data[position : position + keys_length]), block_count, None)
                first_keys = decode_binary(pa.binary(), keys).cast(pa.large_binary())
        except ValueError as error:
            raise damaged(str(error)) from error
        return cls(
            found_key,
            form,
            encoding,
            compression,
            rows_per_block_log2,
            row_count,
            null_count,
            offsets,
            lengths,
            dictionary_offset,
            dictionary_length,
            dictionary_count,
            zone_bytes,
            first_keys,
            text_sizes,
            (path, offset),
        )


def sparse_key_rows_log2(encoding: Encoding, form: Physical) -> int:
    """Return n: for this key column, it is enough to store the composite key of every 2^n-th row.

    Look-ups compute the other composite keys from the key columns. n is 0 if single values of this
    column are slow to read: then the file must store every composite key. For text, n is smaller
    than for numbers, because keys with text take longer to compute
    (docs/design/keys-and-look-ups.md, "Sparse keys"). A file uses the least n of its key columns.

    encoding, form: the encoding and the stored form of the key column.
    """
    if form.kind == BYTES:
        return format.SPARSE_TEXT_KEY_ROWS_LOG2
    return format.SPARSE_KEY_ROWS_LOG2 if encoding.gathers_single_values(form) else 0


_TYPE_NAMES = {code: name for code, name in format.TYPES.items() if not name.startswith("decimal")}
_DECIMALS = (format.TYPE_DECIMAL32, format.TYPE_DECIMAL64, format.TYPE_DECIMAL128)


def _physical_by_code(code: int, precision: int, scale: int, length: int) -> Physical:
    if code == format.TYPE_BLOOM:
        return bloom_physical()
    if code in _DECIMALS:
        form = physical(ColumnType("decimal", precision=precision, scale=scale))
        if form.code != code:
            raise SchemaError(
                f"expected type number {form.code} for decimal({precision},{scale}), found {code}"
            )
        return form
    if code == format.TYPE_VARCHAR:
        return physical(ColumnType("varchar", length=length))
    return physical(ColumnType(_TYPE_NAMES[code]))
