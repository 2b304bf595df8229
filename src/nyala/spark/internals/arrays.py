"""Converts Arrow columns to the bytes of Spark's arrays, so that Spark receives thousands of rows
as one row.

    Arrow column of n rows       bytes of one array                                type in Spark's plan
    k  int64                     n | null bits | n × 8 bytes                       array<bigint>
    s  string                    n | null bits | n × (position, length) | text     array<string>

Spark reads the rows of a Python task one by one, through iterators that its generated code cannot
inline. A row with arrays is read once for thousands of values. Spark stores an array
(`UnsafeArrayData`) in a row like a binary value, by the position and length of its bytes. So the
task returns binary values in this layout, and the plan declares them as arrays (`plans`).

    offset  size            field of an array of n values
    0       8               n, little-endian
    8       8 × ceil(n/64)  one bit for each value, lowest bit first: 1 means NULL
    …       n × width       the values. Width 1: boolean tinyint, 2: smallint, 4: int date float, 8: bigint timestamp
                            double and decimals of up to 18 digits, as integers. Text, binary and
                            longer decimals have 8 bytes here: position << 32 | length, counted from
                            offset 0. Padded to a multiple of 8
    …       …               the bytes of text, binary, and longer decimals (16 bytes, big-endian); padded likewise

Invariants
    A1  An array has at most ARRAY_ROWS values. Their number is a multiple of 64, except in the last
        array of a batch.
    A2  The bytes of a NULL value are arbitrary, because nothing reads them.

Cost: one copy of the columns, and a few NumPy calls for each column and for each array of text.
Source: org.apache.spark.sql.catalyst.expressions.UnsafeArrayData, UnsafeRow (their documentation;
unchanged since 2.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

__all__ = ["ARRAY_ROWS", "LONG_DIGITS", "as_arrays"]

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
Mask: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"

# With this many rows the cost per array is small, and the arrays of a row fit into the CPU cache.
ARRAY_ROWS: Final = 2048
# Arrays of long texts have fewer rows, so that they are not larger than this.
_ARRAY_BYTES: Final = 1 << 20
# The memory allocator reuses blocks of up to this size. It would get larger ones from the system,
# which takes twice as long as copying the data.
_BATCH_BYTES: Final = 2 << 20
# Spark stores decimals of up to this number of digits as 64-bit integers.
LONG_DIGITS: Final = 18


def as_arrays(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Pack thousands of rows into one row: yield batches with a binary column for each column.

    A binary value has the bytes of one Spark array, which contains up to ARRAY_ROWS values of a
    column. The module's docstring describes these bytes.
    """
    rows, size = batch.num_rows, batch.nbytes
    if not rows:
        return
    array_rows = _rows_within(_ARRAY_BYTES, rows, size, ARRAY_ROWS)
    step = max(1, _rows_within(_BATCH_BYTES, rows, size, rows) // array_rows) * array_rows
    for begin in range(0, rows, step):
        arrays = [_array_column(column.slice(begin, step), array_rows) for column in batch.columns]
        yield pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _rows_within(limit_bytes: int, rows: int, size_bytes: int, most: int) -> int:
    """Return how many rows of a batch fit into about `limit_bytes`, but at most `most`.

    If not all rows of the batch fit, the result is a multiple of 64, because the NULL bits of an
    array are stored in words of 64 bits.

    rows, size_bytes: the number of rows in the batch, and the size of the whole batch.
    """
    found = min(most, limit_bytes * rows // max(size_bytes, 1))
    return found if found >= rows else max(64, found - found % 64)


def _array_column(column: pa.Array, array_rows: int) -> pa.Array:
    """Convert a column to a binary column of Spark arrays.

    array_rows: the number of values in each array. The last array may have fewer.
    """
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
    """Return the values of a column as Spark stores them. The values of NULLs are undefined."""
    type, count = column.type, len(column)
    if pa.types.is_boolean(type):
        bits = np.frombuffer(column.buffers()[1], np.uint8)
        return np.unpackbits(bits, count=column.offset + count, bitorder="little")[column.offset :]
    if pa.types.is_decimal(type):
        halves = _values(column, 1, np.dtype("V16"), count).view(np.int64)
        return np.ascontiguousarray(halves[::2])
    return _values(column, 1, np.dtype(f"i{type.bit_width // 8}"), count)


def _values(column: pa.Array, buffer: int, dtype: np.dtype[Any], count: int) -> np.ndarray[Any, Any]:
    """Return `count` values of one of the column's buffers as NumPy values, without a copy.

    buffer: the number of the buffer. The values begin at the column's offset.
    """
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
    """Convert a column of fixed-width values to a binary column of Spark arrays.

    values: the column's values.
    array_rows: the number of values in each array. The last array may have fewer.
    """
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


def _fill(arrays: Bytes, count: int, values: np.ndarray[Any, Any], nulls: Mask | None) -> None:
    """Write the bytes of several arrays with `count` values each: the count, null bits and values.

    arrays: the output, a matrix in which each row has the bytes of one array.
    """
    array_count = len(arrays)
    head, wide = _head_bytes(count), count * values.itemsize
    arrays[:, :8] = np.array([count], "<i8").view(np.uint8)
    arrays[:, 8:head] = 0
    if nulls is not None:
        bits = np.packbits(nulls.reshape(array_count, count), axis=1, bitorder="little")
        arrays[:, 8 : 8 + bits.shape[1]] = bits
    arrays[:, head : head + wide] = values.view(np.uint8).reshape(array_count, wide)
    arrays[:, head + wide :] = 0


def _variable(
    column: pa.Array, offsets: np.ndarray[Any, np.dtype[np.int64]], data: Bytes, array_rows: int
) -> pa.Array:
    """Convert a column of text, binary or long decimals to a binary column of Spark arrays.

    offsets, data: value i of the column is data[offsets[i]:offsets[i + 1]].
    array_rows: the number of values in each array. The last array may have fewer.
    """
    rows, nulls = len(column), _nulls(column)
    begins = np.arange(0, rows, array_rows)
    ends = np.minimum(begins + array_rows, rows)
    counts = ends - begins
    heads = 8 + 8 * (-(-counts // 64)) + 8 * counts  # the size of each array before its text
    sizes = heads + -(-(offsets[ends] - offsets[begins]) // 8) * 8
    positions = np.zeros(len(begins) + 1, np.int32)
    np.cumsum(sizes, out=positions[1:])
    # For each value its position in the array, and its length.
    shift = np.repeat(heads - offsets[begins], counts)
    fields = ((offsets[:-1] + shift) << 32) | (offsets[1:] - offsets[:-1])
    out: Bytes = np.empty(positions[-1], np.uint8)
    for number, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        array = out[positions[number] : positions[number + 1]]
        head = int(heads[number])
        _fill(
            array[:head].reshape(1, -1),
            end - begin,
            fields[begin:end],
            None if nulls is None else nulls[begin:end],
        )
        text = data[offsets[begin] : offsets[end]]
        array[head : head + len(text)] = text
        array[head + len(text) :] = 0
    return _binary(positions, out)


def _binary(offsets: np.ndarray[Any, np.dtype[np.int32]], data: Bytes) -> pa.Array:
    return pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
