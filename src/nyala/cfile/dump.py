"""Prints a column file as text, for `nyala cfile dump [--bytes] FILE`.

Without --bytes the output lists columns, blocks and zones. With --bytes it lists the bytes of the
file in file order, as offset, hex and meaning, with the field names of docs/format/cfile.md. Block
values and other long runs of bytes are shortened.

Lines are produced one by one. So the dump of a damaged file shows everything before the damage, and
then raises its CorruptionError.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.blocks.block import BlockHeader, read_header
from nyala.cfile.column_reader import ColumnReader
from nyala.cfile.compression import compression_name
from nyala.cfile.encoding import encoding_by_code
from nyala.cfile.index.zone_map import Zone
from nyala.cfile.physical import Physical
from nyala.cfile.reader import CFileReader
from nyala.env.files import Files

_LINE_BYTES: Final = 16
_RUN_LINES_MAX: Final = 4
_VECTOR_ENTRIES_MAX: Final = 8
_MEANINGS: Final[dict[str, dict[int, str]]] = {
    "role": format.ROLES,
    "type": format.TYPES,
    "codes": format.CODES,
    "floats": format.ALP_LAYOUTS,
    "layout": format.FOR_LAYOUTS,
}


def dump(files: Files, path: str, bytes: bool = False) -> Iterator[str]:
    """Yield the lines of text that describe the column file at `path`.

    bytes: list the bytes instead of columns, blocks and zones.
    Raises: CorruptionError and StorageError, as reading does.
    """
    with CFileReader(files, path) as reader:
        columns = [column for key in reader.columns() if (column := reader.column(key)) is not None]
        if bytes:
            yield from _dump_bytes(reader, columns, files.size(path))
            return
        yield f"file      {path}"
        yield f"size      {files.size(path)} bytes"
        yield f"version   {format.FORMAT_VERSION}"
        yield f"file id   {reader.file_id}"
        yield f"columns   {len(columns)}"
        for column in columns:
            yield ""
            yield from _dump_column(reader, column)


def _dump_column(reader: CFileReader, column: ColumnReader) -> Iterator[str]:
    footer = column.footer
    type_name = "bloom" if column.code == format.TYPE_BLOOM else str(column.type)
    yield f"column    {column.key}"
    yield f"  type        {type_name}"
    yield f"  encoding    {column.encoding}, compression {column.compression}"
    yield f"  rows        {column.row_count}, NULLs {column.null_count}"
    yield f"  size        {column.size_bytes} bytes, its footer at {column.place.offset}"
    yield f"  blocks      {column.block_count} of up to {column.rows_per_block} rows"
    if column.has_zones:
        yield f"  zone        {_zone(column.column_zone())}"
    if footer.dictionary_length:
        header = _block_header(reader, footer.dictionary_offset, footer.dictionary_length)
        yield f"  dictionary  {footer.dictionary_count} values, {_block(footer.dictionary_offset, header)}"
    keys = column.block_first_keys()
    for block in range(column.block_count):
        offset, length = int(footer.block_offsets[block]), int(footer.block_lengths[block])
        line = f"  block {block}     {_block(offset, _block_header(reader, offset, length))}"
        if column.has_zones:
            line += f", zone {_zone(column.zone(block))}"
        if keys is not None:
            line += f", first key {keys[block].as_py().hex()}"
        yield line


def _block_header(reader: CFileReader, offset: int, length: int) -> BlockHeader:
    return read_header(pa.py_buffer(reader.read_exactly(offset, length)), reader.path, offset)


def _block(offset: int, header: BlockHeader) -> str:
    upper = header.first_ordinal + header.row_count
    text = f"offset {offset}, {header.block_length} bytes, rows [{header.first_ordinal}, {upper})"
    if header.null_count:
        text += f", NULLs {header.null_count}"
    text += f", {_encoding(header.encoding)}"
    if header.compression != format.COMPRESSION_NONE:
        text += f", {_compression(header.compression)} {header.values_size} → {header.values_length}"
    return text


def _zone(zone: Zone) -> str:
    if zone.min is None:
        text = "no values"
    else:
        lower = ("…" if zone.min_truncated else "") + repr(zone.min)
        upper = "open" if zone.max is None else ("…" if zone.max_truncated else "") + repr(zone.max)
        text = f"{lower} … {upper}"
    return (
        text + (f", NULLs {zone.null_count}" if zone.null_count else "") + (", NaN" if zone.has_nan else "")
    )


# -- byte by byte ------------------------------------------------------------------------------------------


def _dump_bytes(reader: CFileReader, columns: list[ColumnReader], size: int) -> Iterator[str]:
    yield "head"
    yield from _fields(format.HEAD, reader.read_exactly(0, format.HEAD.size), 0)
    parts: list[tuple[int, int, ColumnReader, str]] = []
    for column in columns:
        for block, (offset, length) in enumerate(column.extents()):
            name = f"block {block}" if block < column.block_count else "dictionary"
            parts.append((offset, length, column, name))
        parts.append((column.place.offset, column.place.length, column, "footer"))
    for offset, length, column, name in sorted(parts, key=lambda part: part[0]):
        yield f"{name} of {column.key}"
        data = reader.read_exactly(offset, length)
        if name == "footer":
            yield from _footer_bytes(column, data, offset)
        else:
            yield from _block_bytes(reader, data, offset, column.footer.form)
    tail_offset = size - format.TAIL.size
    position = tail_offset - len(columns) * format.DIRECTORY_ENTRY.size
    for column in columns:
        yield f"directory entry of {column.key}"
        entry = reader.read_exactly(position, format.DIRECTORY_ENTRY.size)
        yield from _fields(format.DIRECTORY_ENTRY, entry, position)
        position += format.DIRECTORY_ENTRY.size
    yield "tail"
    yield from _fields(format.TAIL, reader.read_exactly(tail_offset, format.TAIL.size), tail_offset)


def _values_layout(header: BlockHeader, form: Physical, values: bytes) -> format.Layout | None:
    """Return the names and sizes of the fields of the header that a block's values begin with.

    Return None if the values have no header or are compressed.
    """
    encoding = encoding_by_code(header.encoding)
    if encoding is None or header.compression != format.COMPRESSION_NONE:
        return None
    return encoding.header(form, values)


def _block_bytes(reader: CFileReader, data: bytes, offset: int, column_form: Physical) -> Iterator[str]:
    header = read_header(pa.py_buffer(data), reader.path, offset)
    yield from _fields(format.BLOCK_HEADER, data, offset)
    validity_start = format.BLOCK_HEADER.size
    validity_end = validity_start + header.validity_length
    values_end = header.values_start + header.values_length
    crc_start = header.block_length - format.CRC.size
    yield from _run("validity", data, validity_start, validity_end, offset)
    yield from _run("padding", data, validity_end, header.values_start, offset)
    inner = _values_layout(header, column_form, data[header.values_start : values_end])
    inner_end = header.values_start
    if inner is not None and header.values_length >= inner.size:
        inner_end += inner.size
        yield from _fields(inner, data[header.values_start : inner_end], offset + header.values_start)
    yield from _run("values", data, inner_end, values_end, offset)
    yield from _run("padding", data, values_end, crc_start, offset)
    yield from _fields(format.CRC, data[crc_start:], offset + crc_start)


def _footer_bytes(column: ColumnReader, data: bytes, offset: int) -> Iterator[str]:
    yield from _fields(format.FOOTER, data, offset)
    position = format.FOOTER.size
    vectors = [("block offset", format.BLOCK_OFFSET_DTYPE), ("block length", format.BLOCK_LENGTH_DTYPE)]
    if column.footer.text_sizes is not None:
        vectors.append(("text size", format.TEXT_SIZE_DTYPE))
    for name, dtype in vectors:
        vector = np.frombuffer(data, dtype, column.block_count, position)
        for block, value in enumerate(vector[:_VECTOR_ENTRIES_MAX].tolist()):
            at = position + block * vector.itemsize
            yield _line(offset + at, data[at : at + vector.itemsize], f"{name} {value}")
        if len(vector) > _VECTOR_ENTRIES_MAX:
            at = position + _VECTOR_ENTRIES_MAX * vector.itemsize
            yield _line(offset + at, b"", f"… and {len(vector) - _VECTOR_ENTRIES_MAX} more")
        position += vector.nbytes
    names = [name for name, _, _ in format.FOOTER.fields]
    values = dict(zip(names, format.FOOTER.unpack_from(data), strict=True))
    keys_start = position + values["zone map length"]
    crc_start = len(data) - format.CRC.size
    yield from _run("zone map", data, position, keys_start, offset)
    yield from _run("first keys", data, keys_start, crc_start, offset)
    yield from _fields(format.CRC, data[crc_start:], offset + crc_start)


def _fields(layout: format.Layout, data: bytes, base: int) -> Iterator[str]:
    for (name, start, size), value in zip(layout.fields, layout.unpack_from(data), strict=True):
        yield _line(base + start, data[start : start + size], f"{name} {_meaning(name, value)}".rstrip())


def _run(name: str, data: bytes, start: int, end: int, base: int) -> Iterator[str]:
    cut = min(end, start + _RUN_LINES_MAX * _LINE_BYTES)
    for position in range(start, cut, _LINE_BYTES):
        line = data[position : min(position + _LINE_BYTES, cut)]
        yield _line(base + position, line, name if position == start else "")
    if cut < end:
        yield _line(base + cut, b"", f"… and {end - cut} bytes more")


def _line(offset: int, data: bytes, meaning: str) -> str:
    return f"{offset:>10}  {data.hex():<{2 * _LINE_BYTES}}  {meaning}".rstrip()


def _meaning(name: str, value: Any) -> str:
    if name in _MEANINGS:
        return f"{value} ({_MEANINGS[name].get(value, 'unknown')})"
    if name == "encoding":
        return f"{value} ({_encoding(value)})"
    if name.endswith("compression"):
        return f"{value} ({_compression(value)})"
    if name == "crc":
        return f"{value:#010x}"
    if name == "zero":
        return ""
    return repr(value)


def _encoding(code: int) -> str:
    encoding = encoding_by_code(code)
    return "unknown" if encoding is None else encoding.name


def _compression(code: int) -> str:
    return compression_name(code) or "unknown"
