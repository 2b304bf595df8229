"""Compresses and decompresses the bytes of blocks, by the codecs of pyarrow.

The bytes are bare streams: a raw LZ4 block, raw Snappy, a zlib member of gzip, a zstd frame. The
block header stores their lengths. An error of a codec becomes a ValueError, which the caller turns
into a CorruptionError with path and offset. Damage is found before by the block's CRC, so a codec
error means forged bytes or a bug.
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
    """Return the number on disk of a compression. Raises KeyError for an unknown name."""
    return _CODES[name]


def compression_name(code: int) -> str | None:
    """Return the name of a compression, or None if its number is unknown."""
    return _NAMES.get(code)


def _codec(code: int) -> Any:
    """Return a new codec. Threads must not share one: Arrow's zlib codec contains the state of its stream."""
    return pa.Codec(_CODECS[code][1])


def compress(code: int, data: pa.Buffer) -> tuple[int, pa.Buffer]:
    """Return (compression, bytes): `data` compressed, or COMPRESSION_NONE and `data` if it does not
    shrink enough.
    """
    if code == format.COMPRESSION_NONE or data.size == 0:
        return format.COMPRESSION_NONE, data
    packed = _codec(code).compress(data)
    if packed.size > data.size * format.COMPRESSION_RATIO_MAX:
        return format.COMPRESSION_NONE, data
    return code, packed


def effective_compression(schema_compression: int, compresses: bool) -> int:
    """Return the schema's compression. "default" becomes LZ4, or none if the encoding `compresses`."""
    if schema_compression != format.COMPRESSION_DEFAULT:
        return schema_compression
    return format.COMPRESSION_NONE if compresses else format.COMPRESSION_LZ4


def decompress(code: int, data: pa.Buffer, size: int) -> pa.Buffer:
    """Decompress `data` to exactly `size` bytes.

    Raises: ValueError with the reason if the codec is unknown or the bytes are invalid for it.
    """
    if code == format.COMPRESSION_NONE:
        if data.size != size:
            raise ValueError(f"expected {size} uncompressed bytes, found {data.size}")
        return data
    if code not in _CODECS:
        raise ValueError(f"expected a known compression, found number {code}")
    if size > data.size * _EXPANSION_MAX[code] + 64:
        raise ValueError(
            f"expected at most {_EXPANSION_MAX[code]} times {data.size} bytes, found a length of {size}"
        )
    try:
        unpacked = _codec(code).decompress(data, decompressed_size=size, memory_pool=pool())
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"expected {_CODECS[code][0]} data, found bytes it cannot read ({error})") from error
    if unpacked.size != size:
        raise ValueError(f"expected {size} bytes after {_CODECS[code][0]}, found {unpacked.size}")
    return unpacked
