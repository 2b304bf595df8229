"""Columns of Arrow as the arrays that Spark holds in its rows, so that thousands of rows travel as one.

    Arrow, n rows                one row for Spark: binary columns                 what the JVM is told that they are
    k  int64                     n | null bits | n × 8 bytes                       array<bigint>
    s  string                    n | null bits | n × (place, length) | text        array<string>

Spark takes what Python gives row by row, through a chain of iterators that no generated code can look into, and would
do so for each of the n rows. An array in a row of Spark's (`UnsafeArrayData` in `UnsafeRow`) is only bytes, and a row
holds an array exactly as it holds a binary: by place and length. So the tasks give bytes, Spark copies them as bytes,
and the plan above is told that they are arrays (`frames`). Its generated code then reads them in place, and unrolls
them inside the same loop in which it filters and adds up.

    offset  size            field
    0       8               n, little-endian
    8       8 × ceil(n/64)  one bit a value, the lowest first: 1 is NULL
    …       n × width       1 boolean tinyint, 2 smallint, 4 int date float, 8 bigint timestamp double, decimals of up
                            to 18 digits (without the point), and text, binary, longer decimals: place << 32 | length,
                            the place from offset 0; filled up to a multiple of 8
    …       …               text, bytes, 16 bytes a longer decimal, the highest first; filled up to a multiple of 8

Invariants
    A1  An array takes whole rows only, at most ARRAY_ROWS of them, a multiple of 64 but for the last of a batch.
    A2  What is under a NULL is never read: its bytes are whatever Arrow had there.
    A3  A value that does not fit the bytes in which its column is carried is an error, and never another value: it was
        outside the zone maps by which they were chosen (`value_bounds`).

Cost: one copy of the columns; a few calls of NumPy for each column, and for each array of text.
Source: org.apache.spark.sql.catalyst.expressions.UnsafeArrayData, UnsafeRow (their documentation; unchanged since 2.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from nyala.errors import CorruptionError

__all__ = ["ARRAY_ROWS", "LONG_DIGITS", "as_arrays", "as_row"]

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"

# Enough that what is done once an array is nothing beside its values; few enough that a row's arrays stay in the cache.
ARRAY_ROWS: Final = 2048
# Arrays of long texts have fewer rows, so that they stay small too.
_ARRAY_BYTES: Final = 1 << 20
# A batch of as much is made again and again in the same memory; of more, the system would hand out new pages each time,
# which takes twice as long as the copying.
_BATCH_BYTES: Final = 2 << 20
# A dictionary has at most so many bytes for each row of an array: it stands in each.
_DICTIONARY_SHARE: Final = 2
_NOTHING: Final = np.zeros(0, np.uint8)
# Spark holds decimals of up to so many digits as 64-bit integers.
LONG_DIGITS: Final = 18


def as_arrays(
    batch: pa.RecordBatch, schema: pa.Schema, widths: Mapping[str, int] = MappingProxyType({})
) -> Iterator[pa.RecordBatch]:
    """The rows as batches of binary columns, a row for each array (A1).

    schema: the types that Spark expects of the values (`types.arrow_schema`), in the order of the result. Decimals may
            come narrower, text as dictionaries.
    widths: of columns of whole numbers, by name, that are carried in fewer bytes than their type has: in how many.
    """
    rows, size = batch.num_rows, batch.nbytes
    if not rows:
        return
    array_rows = _rows_within(_ARRAY_BYTES, rows, size, ARRAY_ROWS)
    columns = [_plain(batch.column(field.name), field.type, array_rows) for field in schema]
    step = max(1, _rows_within(_BATCH_BYTES, rows, size, rows) // array_rows) * array_rows
    for begin in range(0, rows, step):
        arrays = [
            _images(column.slice(begin, step), array_rows, widths.get(name))
            for name, column in zip(schema.names, columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, names=schema.names)


def as_row(table: pa.Table, schema: pa.Schema) -> bytes:
    """All rows as one row of Spark's (`UnsafeRow`), each column one array.

    schema: as of `as_arrays`. There is at least one row, and they are few: an array is below 2 GiB.
    """
    images = []
    for field in schema:
        column = table.column(field.name).combine_chunks()
        (image,) = _images(_plain(column, field.type, len(column)), len(column))
        images.append(image.as_buffer())
    # One bit a column, none of them NULL; then where each array stands, and how long it is.
    begin = 8 * (-(-len(images) // 64) + len(images))
    ends = np.cumsum([begin] + [image.size for image in images])
    places = (ends[:-1] << 32) | np.array([image.size for image in images], np.int64)
    head = np.concatenate([np.zeros(-(-len(images) // 64), np.int64), places])
    return b"".join([head.astype("<i8").tobytes(), *images])


def _rows_within(limit_bytes: int, rows: int, size_bytes: int, most: int) -> int:
    """How many rows of a batch have about `limit_bytes`: `most`, or less, and then 64 or a multiple of it."""
    found = min(most, limit_bytes * rows // max(size_bytes, 1))
    return found if found >= rows else max(64, found - found % 64)


def _plain(column: pa.Array, type: pa.DataType, array_rows: int) -> pa.Array:
    """The column in the type that Spark expects; decimals as they are, since their bytes are taken anyhow, and
    dictionaries that are small beside an array."""
    if column.type == type or (pa.types.is_decimal(column.type) and column.type.scale == type.scale):
        return column
    if pa.types.is_dictionary(column.type) and column.type.value_type == type:
        words = column.dictionary
        if words.nbytes <= array_rows * _DICTIONARY_SHARE and not words.null_count:
            return column
    return column.cast(type)


def _images(column: pa.Array, array_rows: int, width: int | None = None) -> pa.Array:
    """The column as a binary one with a value for each array."""
    type = column.type
    if pa.types.is_dictionary(type):
        return _from_dictionary(column, array_rows)
    if pa.types.is_string(type) or pa.types.is_binary(type):
        return _variable(column, *_texts(column), array_rows)
    if pa.types.is_decimal(type) and type.precision > LONG_DIGITS:
        words = _values(column, 1, np.dtype("V16"), len(column)).view(np.uint8).reshape(-1, 16)
        offsets = np.arange(len(column) + 1, dtype=np.int64) * 16
        return _variable(column, offsets, np.ascontiguousarray(words[:, ::-1]).reshape(-1), array_rows)
    values = _numbers(column)
    if width is not None and width < values.itemsize:
        values = _narrowed(column, values, width)
    return _fixed(column, values.itemsize, lambda begin, end, head: values[begin:end], array_rows)


def _texts(column: pa.Array) -> tuple[np.ndarray[Any, np.dtype[np.int64]], Bytes]:
    """Where the values stand in the bytes (one more than there are values), and the bytes."""
    offsets = _values(column, 1, np.dtype(np.int32), len(column) + 1).astype(np.int64)
    text = column.buffers()[2]
    return offsets, np.frombuffer(b"" if text is None else text, np.uint8)


def _numbers(column: pa.Array) -> np.ndarray[Any, Any]:
    """The values as Spark holds them, whatever stands under NULLs."""
    type, count = column.type, len(column)
    if pa.types.is_boolean(type):
        bits = np.frombuffer(column.buffers()[1], np.uint8)
        return np.unpackbits(bits, count=column.offset + count, bitorder="little")[column.offset :]
    if pa.types.is_decimal(type):
        if type.bit_width == 32:
            return _values(column, 1, np.dtype(np.int32), count).astype(np.int64)
        if type.bit_width == 64:
            return _values(column, 1, np.dtype(np.int64), count)
        halves = _values(column, 1, np.dtype("V16"), count).view(np.int64)
        return np.ascontiguousarray(halves[::2])
    return _values(column, 1, np.dtype(f"i{type.bit_width // 8}"), count)


def _narrowed(column: pa.Array, values: np.ndarray[Any, Any], width: int) -> np.ndarray[Any, Any]:
    """The values in integers of `width` bytes; A3."""
    nulls = _nulls(column)
    if nulls is not None:
        values = np.where(nulls, values.dtype.type(0), values)
    limits = np.iinfo(f"i{width}")
    if len(values) and not (limits.min <= values.min() and values.max() <= limits.max):
        raise CorruptionError(
            f"expected values that zone maps have between {limits.min} and {limits.max}, found {values.min()} to "
            f"{values.max()}: `nyala fs check` says which file is damaged"
        )
    return values.astype(f"i{width}")


def _values(column: pa.Array, buffer: int, dtype: np.dtype[Any], count: int) -> np.ndarray[Any, Any]:
    """`count` items of a buffer, from the array's offset on, without a copy."""
    found = column.buffers()[buffer]
    if found is None:  # of an array without values Arrow may leave out its buffers
        return np.zeros(count, dtype)
    return np.frombuffer(found, dtype, count, column.offset * dtype.itemsize)


def _nulls(column: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    if not column.null_count:
        return None
    bits = np.frombuffer(column.buffers()[0], np.uint8)
    valid = np.unpackbits(bits, count=column.offset + len(column), bitorder="little")[column.offset :]
    found: np.ndarray[Any, np.dtype[np.bool_]] = valid == 0
    return found


def _head_bytes(rows: int) -> int:
    return 8 + 8 * (-(-rows // 64))


def _from_dictionary(column: pa.DictionaryArray, array_rows: int) -> pa.Array:
    """Text by its codes: each array has the whole dictionary once, and values point into it."""
    offsets, text = _texts(column.dictionary)
    codes = _values(column.indices, 1, np.dtype(column.indices.type.to_pandas_dtype()), len(column))
    words = text[offsets[0] : offsets[-1]]
    places = ((offsets[:-1] - offsets[0]) << 32) | (offsets[1:] - offsets[:-1])

    def values(begin: int, end: int, head: int) -> np.ndarray[Any, Any]:
        # What is under a NULL may be no code at all (A2).
        found: np.ndarray[Any, Any] = (places + (head << 32)).take(codes[begin:end], mode="clip")
        return found

    return _fixed(column.indices, 8, values if len(places) else _no_values, array_rows, words)


def _no_values(begin: int, end: int, head: int) -> np.ndarray[Any, Any]:
    """All NULL."""
    return np.zeros(end - begin, np.int64)


def _fixed(
    column: pa.Array,
    width: int,
    values: Callable[[int, int, int], np.ndarray[Any, Any]],
    array_rows: int,
    tail: Bytes = _NOTHING,
) -> pa.Array:
    """Values of one width: all whole arrays at once, then the rest.

    values: those of rows [begin, end) as Spark holds them, where `head` bytes of the array come before its `tail`.
    """
    rows, nulls = len(column), _nulls(column)
    whole, rest = divmod(rows, array_rows)
    filled = -(-len(tail) // 8) * 8
    sizes = [_fixed_bytes(array_rows, width) + filled] * whole
    if rest:
        sizes.append(_fixed_bytes(rest, width) + filled)
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    out: Bytes = np.empty(offsets[-1], np.uint8)
    cut = whole * array_rows
    for count, begin, end, at in ((array_rows, 0, cut, 0), (rest, cut, rows, int(offsets[whole]))):
        if end > begin:
            head = _fixed_bytes(count, width)
            images = out[at : at + (end - begin) // count * (head + filled)].reshape(-1, head + filled)
            _fill(images[:, :head], count, values(begin, end, head), _part(nulls, begin, end))
            images[:, head : head + len(tail)] = tail
            images[:, head + len(tail) :] = 0
    return _binary(offsets, out)


def _part(
    nulls: np.ndarray[Any, np.dtype[np.bool_]] | None, begin: int, end: int
) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    return None if nulls is None else nulls[begin:end]


def _fixed_bytes(rows: int, width: int) -> int:
    return _head_bytes(rows) + -(-rows * width // 8) * 8


def _fill(
    images: Bytes,
    count: int,
    values: np.ndarray[Any, Any],
    nulls: np.ndarray[Any, np.dtype[np.bool_]] | None,
) -> None:
    """Heads and values of arrays of `count` rows each, an array a row of `images`."""
    arrays = len(images)
    head, wide = _head_bytes(count), count * values.itemsize
    images[:, :8] = np.array([count], "<i8").view(np.uint8)
    images[:, 8:head] = 0
    if nulls is not None:
        bits = np.packbits(nulls.reshape(arrays, count), axis=1, bitorder="little")
        images[:, 8 : 8 + bits.shape[1]] = bits
    images[:, head : head + wide] = values.view(np.uint8).reshape(arrays, wide)
    images[:, head + wide :] = 0


def _variable(
    column: pa.Array, offsets: np.ndarray[Any, np.dtype[np.int64]], data: Bytes, array_rows: int
) -> pa.Array:
    """Values that differ in length, array by array. offsets: in `data`, one more than there are rows."""
    rows, nulls = len(column), _nulls(column)
    begins = np.arange(0, rows, array_rows)
    ends = np.minimum(begins + array_rows, rows)
    counts = ends - begins
    heads = 8 + 8 * (-(-counts // 64)) + 8 * counts  # of the array's bytes, what stands before the text
    sizes = heads + -(-(offsets[ends] - offsets[begins]) // 8) * 8
    places = np.zeros(len(begins) + 1, np.int32)
    np.cumsum(sizes, out=places[1:])
    # Where a value stands in its array, and how long it is.
    shift = np.repeat(heads - offsets[begins], counts)
    fields = ((offsets[:-1] + shift) << 32) | (offsets[1:] - offsets[:-1])
    out: Bytes = np.empty(places[-1], np.uint8)
    for number, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        image = out[places[number] : places[number + 1]]
        head = int(heads[number])
        _fill(image[:head].reshape(1, -1), end - begin, fields[begin:end], _part(nulls, begin, end))
        text = data[offsets[begin] : offsets[end]]
        image[head : head + len(text)] = text
        image[head + len(text) :] = 0
    return _binary(places, out)


def _binary(offsets: np.ndarray[Any, np.dtype[np.int32]], data: Bytes) -> pa.Array:
    return pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
