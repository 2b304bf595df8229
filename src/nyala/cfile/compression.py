"""Compresses and decompresses the bytes of blocks, by the codecs of pyarrow.

The compressed bytes are a raw LZ4 block, raw Snappy, a gzip member (for zlib), or a zstd frame. The
block header stores their length and the length of the decompressed bytes. An error of a codec
becomes a ValueError, which the caller turns into a CorruptionError with path and offset. The
block's CRC detects damage first, so a codec error means forged bytes or a bug.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.memory import pool

_CODECS: Final[dict[int, tuple[str, str | None]]] = {
    format.COMPRESSION_NONE: ("none", None),
    format.COMPRESSION_SNAPPY: ("snappy", "snappy"),
    format.COMPRESSION_LZ4: ("lz4", "lz4_raw"),
    format.COMPRESSION_ZLIB: ("zlib", "gzip"),
    format.COMPRESSION_ZSTD: ("zstd", "zstd"),
}
_NAMES: Final = {format.COMPRESSION_DEFAULT: "default", **{code: name for code, (name, _) in _CODECS.items()}}
_CODES: Final = {name: code for code, name in _NAMES.items()}

# The most bytes that one stored byte can expand to, by the codec's format. Tiny inputs may expand
# by 64 bytes more. A larger length is rejected before memory is allocated.
_EXPANSION_MAX: Final = {
    format.COMPRESSION_SNAPPY: 32,
    format.COMPRESSION_LZ4: 256,
    format.COMPRESSION_ZLIB: 1040,
    format.COMPRESSION_ZSTD: 1 << 16,
}


def compression_code(name: str) -> int:
    """Return the code that files store for the compression with this name.

    Raises KeyError for an unknown name.
    """
    return _CODES[name]


def compression_name(code: int) -> str | None:
    """Return the name of the compression with this code in files, or None for an unknown code."""
    return _NAMES.get(code)


def _codec(code: int) -> Any:
    """Return a new pyarrow codec. Threads must not share one: Arrow's zlib codec has state."""
    return pa.Codec(_CODECS[code][1])


def compress(code: int, data: pa.Buffer) -> tuple[int, pa.Buffer]:
    """Compress `data`. Return (compression, bytes).

    If the data does not shrink enough, the result is COMPRESSION_NONE and `data` itself.
    """
    if code == format.COMPRESSION_NONE or data.size == 0:
        return format.COMPRESSION_NONE, data
    packed = _codec(code).compress(data)
    if packed.size > data.size * format.COMPRESSION_RATIO_MAX:
        return format.COMPRESSION_NONE, data
    return code, packed


def effective_compression(schema_compression: int, compresses: bool) -> int:
    """Return the compression that blocks get if the schema has this one.

    "default" becomes LZ4, or no compression if the encoding itself `compresses`.
    """
    if schema_compression != format.COMPRESSION_DEFAULT:
        return schema_compression
    return format.COMPRESSION_NONE if compresses else format.COMPRESSION_LZ4


def decompress(code: int, data: pa.Buffer, size: int) -> pa.Buffer:
    """Decompress `data` to exactly `size` bytes.

    Raises: ValueError if the compression is unknown, or if the bytes are invalid for it.
    """
    if code == format.COMPRESSION_NONE:
        if data.size != size:
            raise ValueError(f"expected {size} uncompressed bytes, found {data.size}")
        return data
    if code not in _CODECS:
        raise ValueError(f"expected a known compression, found number {code}")
    if size > data.size * _EXPANSION_MAX[code] + 64:
        raise ValueError(
            f"expected at most {data.size * _EXPANSION_MAX[code] + 64} uncompressed bytes for {data.size} "
            f"compressed bytes, found {size}"
        )
    try:
        unpacked = _codec(code).decompress(data, decompressed_size=size, memory_pool=pool())
    except (OSError, pa.ArrowException) as error:
        raise ValueError(
            f"expected {_CODECS[code][0]} data, found bytes that cannot be decompressed ({error})"
        ) from error
    if unpacked.size != size:
        raise ValueError(
            f"expected {size} bytes after decompression by {_CODECS[code][0]}, found {unpacked.size}"
        )
    return unpacked
