"""Columns in the layout of Spark's arrays are read back value by value, by the rules of Spark's
documentation.
"""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest

from nyala.spark.internals import arrays, as_arrays

ROWS = 300
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, False, False]),
    "tiny": (pa.int8(), [-128, 0, 127]),
    "short": (pa.int16(), [-32768, 5]),
    "int": (pa.int32(), [-(2**31), 7, 2**31 - 1]),
    "long": (pa.int64(), [-(2**63), 0, 2**63 - 1]),
    "day": (pa.date32(), [dt.date(1900, 1, 1), dt.date(2026, 7, 1)]),
    "at": (pa.timestamp("us", tz="UTC"), [dt.datetime(1969, 12, 31, 23, 59, 59, 7, dt.UTC)]),
    "float": (pa.float32(), [1.5, float("-inf"), -0.0]),
    "double": (pa.float64(), [1.1, -2.5]),
    "short decimal": (pa.decimal128(18, 3), [Decimal("123456789012345.678"), Decimal("-0.001")]),
    "long decimal": (pa.decimal128(38, 2), [Decimal("123456789012345678901234567890.12"), Decimal("-1.00")]),
    "text": (pa.string(), ["", "a", "ü", "eight by", "longer than eight"]),
    "raw": (pa.binary(), [b"", b"\0\xff", b"0123456789"]),
}


def values_of(image: bytes, type: pa.DataType) -> list[Any]:
    """Read the values of one array as Spark's `UnsafeArrayData` does."""
    assert len(image) % 8 == 0  # so that the next value in a row is aligned
    count = int.from_bytes(image[:8], "little")
    head = 8 + 8 * ((count + 63) // 64)
    found: list[Any] = []
    for place in range(count):
        if image[8 + place // 8] >> (place % 8) & 1:
            found.append(None)
        elif pa.types.is_string(type) or pa.types.is_binary(type):
            value = text_at(image, head + 8 * place)
            found.append(value.decode() if pa.types.is_string(type) else value)
        elif pa.types.is_decimal(type):
            if type.precision > 18:
                number = int.from_bytes(text_at(image, head + 8 * place), "big", signed=True)
            else:
                number = struct.unpack_from("<q", image, head + 8 * place)[0]
            found.append(Decimal(number).scaleb(-type.scale, Context(prec=40)))
        else:
            width = 1 if pa.types.is_boolean(type) else type.bit_width // 8
            raw = image[head + width * place : head + width * (place + 1)]
            if pa.types.is_boolean(type):
                found.append(raw == b"\1")
            else:
                found.append(pa.Array.from_buffers(type, 1, [None, pa.py_buffer(raw)])[0].as_py())
    for place in range(count, (head - 8) * 8):
        assert not image[8 + place // 8] >> (place % 8) & 1
    return found


def text_at(image: bytes, offset: int) -> bytes:
    place, length = divmod(struct.unpack_from("<q", image, offset)[0], 1 << 32)
    assert place + length <= len(image)
    return image[place : place + length]


def read_back(batch: pa.RecordBatch) -> tuple[dict[str, list[Any]], list[int]]:
    """Return the values of each column, and the number of rows of each array."""
    found: dict[str, list[Any]] = {name: [] for name in batch.schema.names}
    sizes: list[int] = []
    for made in as_arrays(batch):
        assert made.schema == pa.schema([(name, pa.binary()) for name in batch.schema.names])
        for row in made.to_pylist():
            read = {field.name: values_of(row[field.name], field.type) for field in batch.schema}
            (size,) = {len(values) for values in read.values()}  # all columns have the same number of values
            sizes.append(size)
            for name, values in read.items():
                found[name] += values
    return found, sizes


def every_kind(nulls: bool, rows: int = ROWS) -> pa.RecordBatch:
    """Return rows with columns of all types, as a slice that does not begin at the first row."""
    data = {}
    for number, (name, (type, some)) in enumerate(COLUMNS.items()):
        values = [some[row % len(some)] for row in range(rows + 5)]
        if nulls:
            values = [None if row % (number + 3) == 0 else value for row, value in enumerate(values)]
        data[name] = pa.array(values, type)
    return pa.RecordBatch.from_pydict(data).slice(5)


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("array_rows", [64, 128, 2048])
def test_spark_reads_what_arrow_has(nulls: bool, array_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All types, full arrays and a last shorter one. Values and bits do not begin at the beginning
    of their buffers.
    """
    monkeypatch.setattr(arrays, "ARRAY_ROWS", array_rows)
    batch = every_kind(nulls)
    found, sizes = read_back(batch)
    assert found == batch.to_pydict()
    assert sizes[:-1] == [array_rows] * (ROWS // array_rows) and sizes[-1] == ROWS % array_rows


def test_arrays_of_long_texts_have_fewer_rows() -> None:
    """The size of arrays and batches is bounded."""
    batch = pa.RecordBatch.from_pydict({"t": ["x" * 50_000] * 500, "n": list(range(500))})
    found, sizes = read_back(batch)
    assert found == batch.to_pydict()
    assert sizes == [64] * 7 + [52]
    assert all(made.nbytes < 8 << 20 for made in as_arrays(batch))


def test_no_rows_make_no_arrays() -> None:
    batch = every_kind(nulls=False, rows=0)
    assert list(as_arrays(batch)) == []
