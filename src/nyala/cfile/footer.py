"""A column's footer: its type, how its blocks are found, their zone map and first keys.

    ┌───────┬───────────────┬───────────────┬──────────┬────────────┬─────────┐
    │ fixed │ block offsets │ block lengths │ zone map │ first keys │ CRC-32C │
    └───────┴───────────────┴───────────────┴──────────┴────────────┴─────────┘
      88 B    8 B a block     4 B a block     optional   optional     of all before

Block i holds the ordinals [i · R, (i + 1) · R) of R rows per block, a power of two: the ordinal index is a
shift. Offsets and lengths are parallel vectors and not pairs, so that NumPy reads them as they lie.

    F-count   block count = ceil(row count / R)
    F-inside  every block lies between the file's head and this footer
    F-exact   the footer's parts fill exactly the length that directory or catalogue gave

`encode` writes what `decode` checks; beyond the CRC, no length, count or offset is believed before these hold.
"""

from __future__ import annotations

from dataclasses import dataclass

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.column import BLOOM, KEY, ColumnKey
from nyala.cfile.compression import compression_name
from nyala.cfile.encoding import EncodedValues, encoding_by_code, key_stretch_log2
from nyala.cfile.encoding.plain import decode_binary, encode_binary
from nyala.cfile.errors import another_file, refuse_unknown_flags
from nyala.cfile.physical import BYTES, Physical, bloom_physical, physical
from nyala.cfile.zonemap import Zone, ZoneMap
from nyala.errors import CorruptionError, SchemaError
from nyala.lazy_values import LazyValues, lazy_value
from nyala.schema.types import ColumnType

__all__ = ["ColumnFooter"]


@dataclass(frozen=True)
class ColumnFooter(LazyValues):
    """Everything that a reader needs to know of a column before its first block."""

    key: ColumnKey
    form: Physical
    encoding: int
    compression: int  # what was asked for; a block says itself what it has
    rows_per_block_log2: int
    row_count: int
    null_count: int
    block_offsets: npt.NDArray[np.uint64]
    block_lengths: npt.NDArray[np.uint32]
    dictionary_offset: int = 0
    dictionary_length: int = 0  # 0: the column has no dictionary
    dictionary_count: int = 0
    zone_bytes: bytes | None = None  # of the zone map, whose CRC was right
    first_keys: pa.LargeBinaryArray | None = None
    place: tuple[str, int] = ("", 0)  # path and offset, for errors
    has_dense: bool = False  # whether all values beside NULLs are dense; blocks say the same

    @lazy_value
    def zone_map(self) -> ZoneMap | None:
        """Decoded when first asked for: a scan reads most columns without a predicate on them.

        Raises: CorruptionError for bytes that no writer wrote.
        """
        if self.zone_bytes is None:
            return None
        starts = np.arange(self.block_count, dtype=np.int64) << self.rows_per_block_log2
        rows = np.minimum(self.row_count - starts, self.rows_per_block)
        try:
            return ZoneMap.decode(self.form, self.zone_bytes, rows)
        except ValueError as error:
            raise CorruptionError(f"column footer: {error}", *self.place) from error

    @property
    def rows_per_block(self) -> int:
        return 1 << self.rows_per_block_log2

    @property
    def block_count(self) -> int:
        return len(self.block_offsets)

    @property
    def lies_in_frames(self) -> bool:
        """Whether all blocks are frames of reference, with a place for each value and each NULL."""
        return self.encoding == format.ENCODING_FOR and self.form.code != format.TYPE_DECIMAL128

    @property
    def has_frames(self) -> bool:
        """The same, and there is no NULL."""
        return self.lies_in_frames and self.null_count == 0

    @property
    def key_stretch_log2(self) -> int:
        """See the function."""
        return key_stretch_log2(self.encoding, self.form, self.null_count)

    @property
    def has_runs(self) -> bool:
        """Whether all blocks are runs."""
        return self.encoding == format.ENCODING_RLE

    @property
    def _incompatible_flags(self) -> int:
        return format.COLUMN_HAS_DENSE * self.has_dense

    def block_rows(self, block: int) -> int:
        """Rows of a block: all have `rows_per_block`, the last one what is left."""
        log2 = self.rows_per_block_log2
        return min(1 << log2, self.row_count - (block << log2))

    def encode(self, zones: list[Zone] | None, file_id: str) -> bytes:
        """The footer's bytes; `zones` in the place of a zone map that is not built yet."""
        zone_bytes = b"" if zones is None else ZoneMap.encode(self.form, zones)
        key_bytes = b"" if self.first_keys is None else encode_binary(self.first_keys).to_pybytes()
        flags = format.COLUMN_HAS_ZONE_MAP * (zones is not None)
        flags |= format.COLUMN_HAS_FIRST_KEYS * (self.first_keys is not None)
        type = self.form.type
        fixed = format.FOOTER.pack(
            format.FOOTER_MAGIC,
            self._incompatible_flags,
            flags,
            self.key.role,
            self.form.code,
            self.encoding,
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
        body = b"".join((fixed, offsets, lengths, zone_bytes, key_bytes))
        return body + format.CRC.pack(google_crc32c.value(body))

    @classmethod
    def decode(
        cls, data: bytes, key: ColumnKey | None, path: str, offset: int, file_id: str | None = None
    ) -> ColumnFooter:
        """The footer whose bytes lie at `offset`; of column `key` and of file `file_id`, if the caller knows them.

        Raises: CorruptionError for bytes that no writer wrote; StorageError for flags of a newer version.
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
            encoding,
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
            raise another_file(file_id, found_id.hex(), path, offset)
        found_key = ColumnKey(role, group, column_id)
        if key is not None and found_key != key:
            raise damaged(f"expected column {key}, found {found_key}")
        try:
            form = _physical_by_code(type_code, precision, scale, varchar_length)
        except (SchemaError, KeyError) as error:
            raise damaged(f"expected a type, found number {type_code} ({error})") from error
        if (role == BLOOM) != (type_code == format.TYPE_BLOOM) or (role == KEY and form.kind != BYTES):
            raise damaged(f"expected a type for role {role}, found {format.TYPES[type_code]}")
        known_encoding = encoding_by_code(encoding)
        if (
            known_encoding is None
            or not known_encoding.handles(form)
            or compression_name(compression) is None
        ):
            raise damaged(
                f"expected an encoding and a compression for {form.type}, found {encoding} and {compression}"
            )
        if rows_per_block_log2 > format.ROWS_PER_BLOCK_LOG2_MAX or null_count > row_count:
            raise damaged(
                f"expected at most 2^{format.ROWS_PER_BLOCK_LOG2_MAX} rows per block and no more NULLs than rows, "
                f"found 2^{rows_per_block_log2}, {null_count} NULLs, {row_count} rows"
            )
        if block_count != -(-row_count >> rows_per_block_log2):
            raise damaged(f"expected the blocks of {row_count} rows, found {block_count} blocks")
        index_length = block_count * (np.dtype(format.BLOCK_OFFSET_DTYPE).itemsize + np.dtype("<u4").itemsize)
        if format.FOOTER.size + index_length + zone_length + keys_length != body_length:
            raise damaged(
                f"expected {body_length} bytes, found parts that make "
                f"{format.FOOTER.size + index_length + zone_length + keys_length}"
            )
        position = format.FOOTER.size
        offsets = np.frombuffer(data, format.BLOCK_OFFSET_DTYPE, block_count, position)
        position += offsets.nbytes
        lengths = np.frombuffer(data, format.BLOCK_LENGTH_DTYPE, block_count, position)
        position += lengths.nbytes
        lower, upper = format.HEAD.size, offset
        # The lengths are subtracted, never added: an offset near 2^64 must not wrap around to a small one.
        if np.any(offsets < lower) or np.any(offsets > upper) or np.any(lengths > upper - offsets):
            raise damaged(f"expected blocks between {lower} and {upper}, found one outside")
        if (taken := int(lengths.sum(dtype=np.uint64))) > upper:
            raise damaged(f"expected blocks of at most {upper} bytes together, found {taken}")
        if dictionary_length and not (lower <= dictionary_offset <= upper - dictionary_length):
            raise damaged(
                f"expected the dictionary between {lower} and {upper}, found it at {dictionary_offset}"
            )
        if dictionary_count and not dictionary_length:
            raise damaged(f"expected no words without a dictionary, found {dictionary_count}")
        if bool(flags & format.COLUMN_HAS_ZONE_MAP) == (role in (KEY, BLOOM)):
            raise damaged(f"expected a zone map for every role but key and bloom, found flags {flags:#06x}")
        if dictionary_count > 1 << format.ROWS_PER_BLOCK_LOG2_MAX:
            raise damaged(
                f"expected a dictionary of at most 2^{format.ROWS_PER_BLOCK_LOG2_MAX}, found {dictionary_count}"
            )
        if dictionary_length and form.kind != BYTES:
            raise damaged(f"expected no dictionary of {form.type}, found one of {dictionary_count} words")
        zone_bytes = first_keys = None
        try:
            if flags & format.COLUMN_HAS_ZONE_MAP:
                zone_bytes = data[position : position + zone_length]
            position += zone_length
            if flags & format.COLUMN_HAS_FIRST_KEYS:
                keys = EncodedValues(
                    pa.py_buffer(data[position : position + keys_length]), block_count, None, 0, None
                )
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
            (path, offset),
            bool(incompatible & format.COLUMN_HAS_DENSE),
        )


_TYPE_NAMES = {code: name for code, name in format.TYPES.items() if not name.startswith("decimal")}
_DECIMALS = (format.TYPE_DECIMAL32, format.TYPE_DECIMAL64, format.TYPE_DECIMAL128)


def _physical_by_code(code: int, precision: int, scale: int, length: int) -> Physical:
    if code == format.TYPE_BLOOM:
        return bloom_physical()
    if code in _DECIMALS:
        form = physical(ColumnType("decimal", precision=precision, scale=scale))
        if form.code != code:
            raise SchemaError(f"decimal({precision},{scale}) has another width")
        return form
    if code == format.TYPE_VARCHAR:
        return physical(ColumnType("varchar", length=length))
    return physical(ColumnType(_TYPE_NAMES[code]))
