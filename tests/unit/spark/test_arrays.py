"""Columns as Spark's arrays: read back by the rules of Spark's documentation, value by value."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest

from nyala.errors import CorruptionError
from nyala.spark import arrays
from nyala.spark.arrays import as_arrays, as_row

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
    """What Spark reads of an array: `UnsafeArrayData`, one value after the other."""
    assert len(image) % 8 == 0  # or what stands behind it in a row would not be aligned
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


def read_back(batch: pa.RecordBatch, schema: pa.Schema) -> tuple[dict[str, list[Any]], list[int]]:
    """Values by column, and how many rows each array has."""
    found: dict[str, list[Any]] = {name: [] for name in schema.names}
    sizes: list[int] = []
    for made in as_arrays(batch, schema):
        assert made.schema == pa.schema([(name, pa.binary()) for name in schema.names])
        for row in made.to_pylist():
            read = {field.name: values_of(row[field.name], field.type) for field in schema}
            (size,) = {len(values) for values in read.values()}  # a row has as much of each column
            sizes.append(size)
            for name, values in read.items():
                found[name] += values
    return found, sizes


def every_kind(nulls: bool, rows: int = ROWS) -> pa.RecordBatch:
    """Rows of all kinds of columns, behind others that a slice has cut off."""
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
    """All types, in whole arrays and a rest, with values and bits that do not begin at their buffer's begin."""
    monkeypatch.setattr(arrays, "ARRAY_ROWS", array_rows)
    batch = every_kind(nulls)
    found, sizes = read_back(batch, batch.schema)
    assert found == batch.to_pydict()
    assert sizes[:-1] == [array_rows] * (ROWS // array_rows) and sizes[-1] == ROWS % array_rows


def test_narrow_decimals_are_the_numbers_that_spark_holds() -> None:
    values = [Decimal("1.50"), None, Decimal("-9.99")]
    schema = pa.schema([("d", pa.decimal128(9, 2))])
    for type in (pa.decimal32(9, 2), pa.decimal64(9, 2)):
        batch = pa.RecordBatch.from_pydict({"d": pa.array(values, type)})
        assert read_back(batch, schema)[0] == {"d": values}


def test_decimals_of_another_scale_become_those_of_the_schema() -> None:
    """Spark reads their numbers without their types: 1.5 of scale 1 would be read as 0.15."""
    values = [Decimal("1.50"), None, Decimal("-9.90")]
    batch = pa.RecordBatch.from_pydict({"d": pa.array(values, pa.decimal128(9, 1))})
    assert read_back(batch, pa.schema([("d", pa.decimal128(9, 2))]))[0] == {"d": values}


@pytest.mark.parametrize("share", [0, 1000])
def test_a_dictionary_gives_its_values(share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each array has the dictionary once, or, where that would be too much, its own values."""
    monkeypatch.setattr(arrays, "_DICTIONARY_SHARE", share)
    monkeypatch.setattr(arrays, "ARRAY_ROWS", 64)
    words = pa.array(["unused", "one", "", "three"]).slice(1)
    codes = pa.array([row % 3 if row % 7 else None for row in range(150)], pa.int32())
    batch = pa.RecordBatch.from_arrays([pa.DictionaryArray.from_arrays(codes, words).slice(9)], ["t"])
    wanted = [["one", "", "three"][row % 3] if row % 7 else None for row in range(9, 150)]
    assert read_back(batch, pa.schema([("t", pa.string())]))[0] == {"t": wanted}
    without = pa.DictionaryArray.from_arrays(pa.array([None, None], pa.int32()), pa.array([], pa.string()))
    nothing = pa.RecordBatch.from_arrays([without], ["t"])
    assert read_back(nothing, pa.schema([("t", pa.string())]))[0] == {"t": [None, None]}


def test_arrays_of_long_texts_have_fewer_rows() -> None:
    """No array and no batch grows with what a table's cells hold."""
    batch = pa.RecordBatch.from_pydict({"t": ["x" * 50_000] * 500, "n": list(range(500))})
    found, sizes = read_back(batch, batch.schema)
    assert found == batch.to_pydict()
    assert sizes == [64] * 7 + [52]
    assert all(made.nbytes < 8 << 20 for made in as_arrays(batch, batch.schema))


def test_no_rows_are_no_arrays() -> None:
    batch = every_kind(nulls=False, rows=0)
    assert list(as_arrays(batch, batch.schema)) == []


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("times", [1, 6])
def test_all_rows_are_one_row_of_spark(nulls: bool, times: int) -> None:
    """By the rules of UnsafeRow: NULL bits of its columns, then where each array stands and how long it is. With more
    than 64 columns there is more than one word of bits."""
    batch = every_kind(nulls, rows=arrays.ARRAY_ROWS + 1)
    names = [f"{name} {number}" for number in range(times) for name in batch.schema.names]
    table = pa.Table.from_arrays(batch.columns * times, names=names)
    assert len(names) == len(COLUMNS) * times
    table = pa.concat_tables([table.slice(0, 100), table.slice(100)])  # chunks, as a scan gives them
    image = as_row(table, table.schema)
    words = -(-len(names) // 64)
    assert image[: 8 * words] == bytes(8 * words)
    for number, field in enumerate(table.schema):
        array = text_at(image, 8 * (words + number))
        assert struct.unpack_from("<q", image, 8 * (words + number))[0] >> 32 & 7 == 0
        assert values_of(array, field.type) == table.column(number).to_pylist()


@pytest.mark.parametrize("width, limit", [(1, 127), (2, 32767), (4, 2**31 - 1)])
def test_whole_numbers_are_carried_in_fewer_bytes(width: int, limit: int) -> None:
    """Each is what it was; what stands under a NULL does not matter, and a value that does not fit is an error (A3)."""
    carrier = pa.from_numpy_dtype(f"i{width}")
    for type, unit in ((pa.int64(), 1), (pa.decimal128(18, 2), Decimal("0.01"))):
        values = [0, None, -limit - 1, limit, 5] * 200
        given = pa.array([None if v is None else v * unit for v in values], type)
        batch = pa.record_batch([given.slice(3)], ["c"])
        images = [
            v for made in as_arrays(batch, batch.schema, {"c": width}) for v in made.column(0).to_pylist()
        ]
        assert [v for image in images for v in values_of(image, carrier)] == values[3:]
        for beyond, found in ((limit + 1, f"0 to {limit + 1}"), (-limit - 2, f"{-limit - 2} to 0")):
            far = pa.record_batch([pa.array([0, beyond * unit], type)], ["c"])
            with pytest.raises(CorruptionError, match=f"between {-limit - 1} and {limit}, found {found}"):
                list(as_arrays(far, far.schema, {"c": width}))
    hidden = pa.Array.from_buffers(
        pa.int64(), 2, [pa.py_buffer(b"\1"), pa.py_buffer(struct.pack("<2q", 5, 2**62))]
    )
    batch = pa.record_batch([hidden], ["c"])
    (image,) = (
        v for made in as_arrays(batch, batch.schema, {"c": width}) for v in made.column(0).to_pylist()
    )
    assert values_of(image, carrier) == [5, None]
