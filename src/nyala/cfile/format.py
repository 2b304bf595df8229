"""Every number of the column file: magics, widths, enumerations, flags and limits. Never renumber.

    ┌──────┬────────┬────────┬───┬──────────┬──────────┬───┬───────────┬──────┐
    │ head │ block  │ block  │ … │ column   │ column   │ … │ directory │ tail │
    │      │        │        │   │ footer   │ footer   │   │           │      │
    └──────┴────────┴────────┴───┴──────────┴──────────┴───┴───────────┴──────┘
    0      48                    one per column            the places of the footers

`docs/format/cfile.md` shows the same numbers as byte tables, and a test compares page and module.
Types, encodings and compressions that Kudu has too have Kudu's numbers.

A flag is either incompatible or compatible. An *incompatible* flag changes the meaning of bytes
that an old reader would read. So a reader rejects a file with an incompatible flag that it does not
know. A *compatible* flag announces something that a reader may ignore.

Source: the idea is Kudu's (its column file design and `cfile.proto`); the bytes are our own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final


class Layout:
    """A structure of fixed size: named little-endian fields without gaps, in file order.

    A field is (name, format character of `struct`). `dump` and the tests of docs/format/cfile.md
    use the names. Other code packs and unpacks by position, as with `struct.Struct`.
    """

    def __init__(self, *fields: tuple[str, str]) -> None:
        self._struct = struct.Struct("<" + "".join(code for _, code in fields))
        sizes = [struct.calcsize("<" + code) for _, code in fields]
        self.size: Final = self._struct.size
        self.fields: Final = tuple(
            (name, sum(sizes[:position]), sizes[position]) for position, (name, _) in enumerate(fields)
        )

    def pack(self, *values: Any) -> bytes:
        return self._struct.pack(*values)

    def unpack(self, data: Any) -> tuple[Any, ...]:
        return self._struct.unpack(data)

    def unpack_from(self, data: Any, offset: int = 0) -> tuple[Any, ...]:
        return self._struct.unpack_from(data, offset)

    def iter_unpack(self, data: Any) -> Iterator[tuple[Any, ...]]:
        return self._struct.iter_unpack(data)


# A random id per file. The catalogue stores it together with the file's name, and the head and
# every column footer repeat it. So a reader detects a wrong file before it uses a value.
FILE_ID_BYTES: Final = 16

# -- The file's two ends -----------------------------------------------------------------------------------

HEAD_MAGIC: Final = b"nyalacf\n"  # the newline reveals a transfer that rewrote line ends
TAIL_MAGIC: Final = b"\nfcalayn"
FORMAT_VERSION: Final = 4

HEAD: Final = Layout(
    ("magic", "8s"),
    ("version", "H"),
    ("incompatible flags", "H"),
    ("compatible flags", "H"),
    ("zero", "14s"),
    ("file id", "16s"),
    ("crc", "I"),
)
TAIL: Final = Layout(
    ("directory offset", "Q"),
    ("column count", "I"),
    ("version", "H"),
    ("incompatible flags", "H"),
    ("compatible flags", "H"),
    ("zero", "H"),
    ("crc", "I"),
    ("magic", "8s"),
)
DIRECTORY_ENTRY: Final = Layout(
    ("role", "B"),
    ("zero", "3s"),
    ("group", "I"),
    ("column id", "i"),
    ("footer length", "I"),
    ("footer offset", "Q"),
)

FILE_INCOMPATIBLE_KNOWN: Final = 0x0000
FILE_COMPATIBLE_KNOWN: Final = 0x0000

# -- A block -----------------------------------------------------------------------------------------------

# Blocks begin and end at multiples of this size. So a slice of one long read is aligned for Arrow's
# widest value (a decimal128 of 16 bytes) without a copy.
BLOCK_ALIGNMENT_BYTES: Final = 16
BLOCK_HEADER: Final = Layout(
    ("first ordinal", "Q"),
    ("row count", "I"),
    ("null count", "I"),
    ("validity length", "I"),
    ("values length", "I"),
    ("values size", "I"),
    ("encoding", "B"),
    ("compression", "B"),
    ("validity compression", "B"),
    ("zero", "B"),
)
CRC: Final = Layout(("crc", "I"))

# -- A column's footer -------------------------------------------------------------------------------------

FOOTER_MAGIC: Final = b"NYcf"
FOOTER: Final = Layout(
    ("magic", "4s"),
    ("incompatible flags", "H"),
    ("compatible flags", "H"),
    ("role", "B"),
    ("type", "B"),
    ("encoding", "B"),
    ("compression", "B"),
    ("group", "I"),
    ("column id", "i"),
    ("rows per block log2", "B"),
    ("decimal precision", "B"),
    ("decimal scale", "B"),
    ("zero", "B"),
    ("varchar length", "I"),
    ("block count", "I"),
    ("row count", "Q"),
    ("null count", "Q"),
    ("dictionary offset", "Q"),
    ("dictionary length", "I"),
    ("dictionary count", "I"),
    ("zone map length", "I"),
    ("first keys length", "I"),
    ("file id", "16s"),
)
# After it: block offsets, block lengths, text sizes (text and binary only), zone map, first keys,
# and the CRC-32C of all bytes before it.
BLOCK_OFFSET_DTYPE: Final = "<u8"
BLOCK_LENGTH_DTYPE: Final = "<u4"
TEXT_SIZE_DTYPE: Final = "<u4"

COLUMN_INCOMPATIBLE_KNOWN: Final = 0x0000
# The optional parts of a footer. The footer contains their lengths, so a reader may skip an unknown
# part.
COLUMN_HAS_ZONE_MAP: Final = 0x0001
COLUMN_HAS_FIRST_KEYS: Final = 0x0002
COLUMN_COMPATIBLE_KNOWN: Final = COLUMN_HAS_ZONE_MAP | COLUMN_HAS_FIRST_KEYS

# -- Zone maps ---------------------------------------------------------------------------------------------

ZONE_HAS_MIN: Final = 0x01
ZONE_HAS_MAX: Final = 0x02
ZONE_HAS_NAN: Final = 0x04
ZONE_MIN_TRUNCATED: Final = 0x08
ZONE_MAX_TRUNCATED: Final = 0x10
ZONE_FLAGS_KNOWN: Final = 0x1F
# Bounds of text and binary are cut to this length. It distinguishes most values, and keeps the
# footer small although a value may have 64 KiB.
ZONE_BOUND_BYTES: Final = 32

# -- Header of a plain block of variable width -------------------------------------------------------------

BINARY_HEADER: Final = Layout(
    ("data length", "I"),
    ("length width", "B"),
    ("zero", "3s"),
)
BINARY_LENGTH_WIDTHS: Final = (0, 1, 2, 4)

# -- Headers of blocks of the other encodings --------------------------------------------------------------

RLE_HEADER: Final = Layout(
    ("run count", "I"),
    ("length width", "B"),
    ("first value", "B"),
    ("zero", "2s"),
)
RLE_LENGTH_WIDTHS: Final = (1, 2, 4)

PREFIX_HEADER: Final = Layout(
    ("prefixes length", "I"),
    ("group rows log2", "B"),
    ("zero", "3s"),
)
# A group of values with a common prefix has 16 values. Of 4, 8, 16 and 32, this is near the
# smallest size both before LZ4 (which favours large groups) and after it (which favours small
# ones). All decode equally fast (docs/design/column-files-and-encodings.md, "Prefix groups").
PREFIX_GROUP_ROWS_LOG2: Final = 4
PREFIX_GROUP_ROWS_LOG2_MAX: Final = 20

# The header of bit-packed dictionary codes. Bit-shuffled codes have no such header: they are a
# Blosc frame. Its first byte is the version of Blosc, 2, so it also serves as the first byte of
# this header.
CODES_HEADER: Final = Layout(
    ("codes", "B"),
    ("bits", "B"),
    ("zero", "2s"),
    ("base", "I"),
)
CODES_PACKED: Final = 1  # base + delta
CODES_SHUFFLED: Final = 2
CODES: Final = {CODES_PACKED: "packed", CODES_SHUFFLED: "shuffled"}
CODES_BITS_MAX: Final = 32

# 32 bytes, so the values after it have the same alignment as the block.
FOR_HEADER: Final = Layout(
    ("base", "q"),
    ("step", "q"),
    ("unit", "Q"),
    ("layout", "B"),
    ("bits", "B"),
    ("zero", "6s"),
)
FOR_LINE: Final = 0  # base + step · position + unit · delta
FOR_WIDE: Final = 1  # plain values: some decimals of 16 bytes exceed 64 bits
FOR_LAYOUTS: Final = {FOR_LINE: "line", FOR_WIDE: "wide"}

# After the header: the positions of exceptions (4 bytes each) and their values, both padded, then a
# frame of reference of int64.
ALP_HEADER: Final = Layout(
    ("floats", "B"),
    ("exponent", "B"),
    ("zero", "2s"),
    ("exception count", "I"),
)
ALP_PLAIN: Final = 0
ALP_DECIMALS: Final = 1  # number / 10^exponent
ALP_LAYOUTS: Final = {ALP_PLAIN: "plain", ALP_DECIMALS: "decimals"}
ALP_EXPONENT_MAX: Final = 22  # 10^22 is the last power of ten that a double represents exactly
ALP_ALIGNMENT_BYTES: Final = 8

# -- Enumerations ------------------------------------------------------------------------------------------

ROLE_BASE: Final = 0  # a user's column
ROLE_KEY: Final = 1  # encoded composite keys: that of every 2^group-th row
ROLE_BLOOM: Final = 2  # the bloom filter's bits
ROLE_DELTA_ROWID: Final = 3  # rowids of one group of a delta file
ROLE_DELTA_TIMESTAMP: Final = 4  # timestamps of one group of a delta file
ROLE_DELTA_VALUE: Final = 5  # values of one column in a delta file
ROLES: Final = {
    ROLE_BASE: "base",
    ROLE_KEY: "key",
    ROLE_BLOOM: "bloom",
    ROLE_DELTA_ROWID: "delta-rowid",
    ROLE_DELTA_TIMESTAMP: "delta-timestamp",
    ROLE_DELTA_VALUE: "delta-value",
}

# The groups of role KEY if one stored key serves several rows: for numeric keys, and for keys with
# text.
SPARSE_KEY_ROWS_LOG2: Final = 6
SPARSE_TEXT_KEY_ROWS_LOG2: Final = 5
# The group for numeric keys, if a key per 64 rows would exceed a 24th of the size of the columns.
SPARSE_WIDE_KEY_ROWS_LOG2: Final = 7

# Kudu's DataType where Kudu has the type. Each width of decimals has its own number.
TYPE_INT8: Final = 1
TYPE_INT16: Final = 3
TYPE_INT32: Final = 5
TYPE_INT64: Final = 7
TYPE_STRING: Final = 8
TYPE_BOOL: Final = 9
TYPE_FLOAT: Final = 10
TYPE_DOUBLE: Final = 11
TYPE_BINARY: Final = 12
TYPE_TIMESTAMP: Final = 13
TYPE_DECIMAL32: Final = 15
TYPE_DECIMAL64: Final = 16
TYPE_DECIMAL128: Final = 17
TYPE_VARCHAR: Final = 19
TYPE_DATE: Final = 20
TYPE_BLOOM: Final = 64  # 32 bytes of bloom filter; not a column type
TYPES: Final = {
    TYPE_INT8: "int8",
    TYPE_INT16: "int16",
    TYPE_INT32: "int32",
    TYPE_INT64: "int64",
    TYPE_STRING: "string",
    TYPE_BOOL: "bool",
    TYPE_FLOAT: "float",
    TYPE_DOUBLE: "double",
    TYPE_BINARY: "binary",
    TYPE_TIMESTAMP: "timestamp",
    TYPE_DECIMAL32: "decimal32",
    TYPE_DECIMAL64: "decimal64",
    TYPE_DECIMAL128: "decimal128",
    TYPE_VARCHAR: "varchar",
    TYPE_DATE: "date",
    TYPE_BLOOM: "bloom",
}

# Kudu's EncodingType; 7 (frame of reference) and 8 (ALP) are ours.
ENCODING_PLAIN: Final = 1
ENCODING_PREFIX: Final = 2
ENCODING_RLE: Final = 4
ENCODING_DICTIONARY: Final = 5
ENCODING_BITSHUFFLE: Final = 6
ENCODING_FOR: Final = 7
ENCODING_ALP: Final = 8

# Kudu's CompressionType, and zstd.
COMPRESSION_DEFAULT: Final = 0  # in footers only (the schema's choice), never in a block
COMPRESSION_NONE: Final = 1
COMPRESSION_SNAPPY: Final = 2
COMPRESSION_LZ4: Final = 3
COMPRESSION_ZLIB: Final = 4
COMPRESSION_ZSTD: Final = 5

# -- Sizes and limits --------------------------------------------------------------------------------------

# Larger than Kudu's 256 KiB: for a block below about 1 MB, the calls from Python cost more than
# decoding (measured). Blocks with the key index are small, because a look-up by key decodes one
# whole block.
BLOCK_SIZE_BYTES_DEFAULT: Final = 2 << 20
KEY_BLOCK_SIZE_BYTES_DEFAULT: Final = 64 << 10
BLOCK_SIZE_BYTES_MIN: Final = 512  # Kudu also raises smaller sizes to this
BLOCK_SIZE_BYTES_MAX: Final = 16 << 20  # Kudu's --max_cfile_block_size
# The rows per block are a power of two. So within a rowset, blocks with fewer rows never cross the
# border of a block with more rows.
ROWS_PER_BLOCK_LOG2_MAX: Final = 20
# The most bytes of uncompressed values of one block that a reader allocates. Blocks of a writer are
# far smaller: 2^20 rows of 16 bytes, or 16 MiB of text and one more cell of 64 KiB.
BLOCK_VALUES_BYTES_MAX: Final = 64 << 20
# The limit of a dictionary. Reading the first value of a column reads the whole dictionary, and
# decoding codes to text costs more if the dictionary exceeds the processor's cache
# (docs/design/column-files-and-encodings.md, "Dictionaries of up to 2 MiB").
DICTIONARY_BYTES_MAX: Final = 2 << 20
# A block that does not shrink below this share of its size is stored uncompressed (Kudu's
# --min_compression_ratio): decompressing would cost more than reading the saved bytes.
COMPRESSION_RATIO_MAX: Final = 0.9
# The most bytes of adjacent blocks that one pread reads. Each block is then copied for the cache,
# and for large blocks the copy would cost more than another pread.
COALESCED_READ_BYTES_MAX: Final = 160 << 10

BLOOM_BLOCK_BYTES: Final = 32
# With 16 bits per key, the filter says "maybe" for about 1 absent key in 800. Half of that rate
# would need 2 more bits per key. 8 bits, with 1 in 30, suit narrow rows: looking up those keys
# costs less than a filter as large as the rows.
BLOOM_BITS_PER_KEY: Final = 16
BLOOM_BITS_PER_KEY_MIN: Final = 8
BLOOM_ROWS_PER_BLOCK_LOG2: Final = 11  # 64 KiB of filter under one CRC
# The multipliers of Parquet's split-block filter: one odd number per 32-bit word. Files depend on
# them: never change them.
BLOOM_SALT: Final = (
    0x47B6137B,
    0x44974D91,
    0x8824AD5B,
    0xA2B7289D,
    0x705495C7,
    0x2DF1424B,
    0x9EFC4947,
    0x5C6BFB31,
)
