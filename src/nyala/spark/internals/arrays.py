"""Arrow columns in the memory layout of Spark's arrays, so that thousands of rows travel as one row.

    Arrow, n rows                one row for Spark: binary columns                 the type that the plan gives them
    k  int64                     n | null bits | n × 8 bytes                       array<bigint>
    s  string                    n | null bits | n × (place, length) | text        array<string>

Spark reads the rows of a Python task one by one, through iterators that its generated code cannot inline. A Spark row
(`UnsafeRow`) stores an array (`UnsafeArrayData`) like a binary value: as position and length of its bytes. So the task
returns bytes, and the plan declares them as arrays (`plans`). Spark's generated code reads the values in place.

    offset  size            field
    0       8               n, little-endian
    8       8 × ceil(n/64)  one bit for each value, the lowest first: 1 is NULL
    …       n × width       1 boolean tinyint, 2 smallint, 4 int date float, 8 bigint timestamp double, decimals of up
                            to 18 digits (as integers), and for text, binary and longer decimals: place << 32 | length,
                            the place counted from offset 0; padded to a multiple of 8
    …       …               text, bytes, 16 big-endian bytes for each longer decimal; padded to a multiple of 8

Invariants
    A1  An array has whole rows only, at most ARRAY_ROWS, and a multiple of 64 except for the last array of a batch.
    A2  The bytes under a NULL are those of the Arrow array. Nothing reads them.

Cost: one copy of the columns; a few NumPy calls for each column, and for each array of text.
Source: org.apache.spark.sql.catalyst.expressions.UnsafeArrayData, UnsafeRow (their documentation; unchanged since 2.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

__all__ = ["ARRAY_ROWS", "LONG_DIGITS", "as_arrays"]

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
Mask: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"

# Enough rows that an array's fixed cost is small; few enough that a row's arrays stay in the CPU cache.
ARRAY_ROWS: Final = 2048
# Arrays of long texts have fewer rows, so that they stay small too.
_ARRAY_BYTES: Final = 1 << 20
# The memory allocator reuses blocks of this size; larger ones get new pages from the system, which takes twice as long
# as the copying.
_BATCH_BYTES: Final = 2 << 20
# Spark holds decimals of up to this number of digits as 64-bit integers.
LONG_DIGITS: Final = 18


def as_arrays(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Convert the rows into batches of binary columns, with one row per array (A1)."""
    rows, size = batch.num_rows, batch.nbytes
    if not rows:
        return
    array_rows = _rows_within(_ARRAY_BYTES, rows, size, ARRAY_ROWS)
    step = max(1, _rows_within(_BATCH_BYTES, rows, size, rows) // array_rows) * array_rows
    for begin in range(0, rows, step):
        arrays = [_images(column.slice(begin, step), array_rows) for column in batch.columns]
        yield pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _rows_within(limit_bytes: int, rows: int, size_bytes: int, most: int) -> int:
    """Return how many rows have about `limit_bytes`: at most `most`; a multiple of 64 if that is less than `rows`."""
    found = min(most, limit_bytes * rows // max(size_bytes, 1))
    return found if found >= rows else max(64, found - found % 64)


def _images(column: pa.Array, array_rows: int) -> pa.Array:
    """The column as a binary column with one value for each array."""
    type = column.type
    if pa.types.is_string(type) or pa.types.is_binary(type):
        offsets = _values(column, 1, np.dtype(np.int32), len(column) + 1).astype(np.int64)
        return _variable(column, offsets, np.frombuffer(column.buffers()[2] or b"", np.uint8), array_rows)
    if pa.types.is_decimal(type) and type.precision > LONG_DIGITS:
        numbers = _values(column, 1, np.dtype("V16"), len(column)).view(np.uint8).reshape(-1, 16)
        offsets = np.arange(len(column) + 1, dtype=np.int64) * 16
        return _variable(column, offsets, np.ascontiguousarray(numbers[:, ::-1]).reshape(-1), array_rows)
    return _fixed(column, _numbers(column), array_rows)


def _numbers(column: pa.Array) -> np.ndarray[Any, Any]:
    """Return the values in Spark's representation. The values under NULLs are undefined."""
    type, count = column.type, len(column)
    if pa.types.is_boolean(type):
        bits = np.frombuffer(column.buffers()[1], np.uint8)
        return np.unpackbits(bits, count=column.offset + count, bitorder="little")[column.offset :]
    if pa.types.is_decimal(type):
        halves = _values(column, 1, np.dtype("V16"), count).view(np.int64)
        return np.ascontiguousarray(halves[::2])
    return _values(column, 1, np.dtype(f"i{type.bit_width // 8}"), count)


def _values(column: pa.Array, buffer: int, dtype: np.dtype[Any], count: int) -> np.ndarray[Any, Any]:
    """`count` items of a buffer, from the array's offset on, without a copy."""
    found = column.buffers()[buffer]
    if found is None:  # Arrow may leave out the buffers of an array without values
        return np.zeros(count, dtype)
    return np.frombuffer(found, dtype, count, column.offset * dtype.itemsize)


def _nulls(column: pa.Array) -> Mask | None:
    if not column.null_count:
        return None
    bits = np.frombuffer(column.buffers()[0], np.uint8)
    valid = np.unpackbits(bits, count=column.offset + len(column), bitorder="little")[column.offset :]
    found: Mask = valid == 0
    return found


def _head_bytes(rows: int) -> int:
    return 8 + 8 * (-(-rows // 64))


def _fixed(column: pa.Array, values: np.ndarray[Any, Any], array_rows: int) -> pa.Array:
    """Values of one width: all whole arrays at once, then the rest."""
    rows, nulls = len(column), _nulls(column)
    whole, rest = divmod(rows, array_rows)
    counts = [array_rows] * whole + [rest] * (rest > 0)
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum([_fixed_bytes(count, values.itemsize) for count in counts], out=offsets[1:])
    out: Bytes = np.empty(offsets[-1], np.uint8)
    cut, middle = whole * array_rows, int(offsets[whole])
    if whole:
        _fill(
            out[:middle].reshape(whole, -1), array_rows, values[:cut], None if nulls is None else nulls[:cut]
        )
    if rest:
        _fill(out[middle:].reshape(1, -1), rest, values[cut:], None if nulls is None else nulls[cut:])
    return _binary(offsets, out)


def _fixed_bytes(rows: int, width: int) -> int:
    return _head_bytes(rows) + -(-rows * width // 8) * 8


def _fill(images: Bytes, count: int, values: np.ndarray[Any, Any], nulls: Mask | None) -> None:
    """Write heads and values of arrays of `count` rows each; each row of `images` is one array."""
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
    """Values of different lengths, array by array. offsets: into `data`, one more than there are rows."""
    rows, nulls = len(column), _nulls(column)
    begins = np.arange(0, rows, array_rows)
    ends = np.minimum(begins + array_rows, rows)
    counts = ends - begins
    heads = 8 + 8 * (-(-counts // 64)) + 8 * counts  # the bytes of each array before its text
    sizes = heads + -(-(offsets[ends] - offsets[begins]) // 8) * 8
    places = np.zeros(len(begins) + 1, np.int32)
    np.cumsum(sizes, out=places[1:])
    # Place in the array and length of each value.
    shift = np.repeat(heads - offsets[begins], counts)
    fields = ((offsets[:-1] + shift) << 32) | (offsets[1:] - offsets[:-1])
    out: Bytes = np.empty(places[-1], np.uint8)
    for number, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        image = out[places[number] : places[number + 1]]
        head = int(heads[number])
        _fill(
            image[:head].reshape(1, -1),
            end - begin,
            fields[begin:end],
            None if nulls is None else nulls[begin:end],
        )
        text = data[offsets[begin] : offsets[end]]
        image[head : head + len(text)] = text
        image[head + len(text) :] = 0
    return _binary(places, out)


def _binary(offsets: np.ndarray[Any, np.dtype[np.int32]], data: Bytes) -> pa.Array:
    return pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
