"""Data that is ready is taken as a whole, and what comes of it is what comes of it column by column."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import calls_of

from nyala.errors import Error
from nyala.schema import convert as convert_module
from nyala.schema.array_cast import are_dates
from nyala.schema.convert import Converted, convert
from nyala.schema.limits import Limits
from nyala.schema.ready import READY_ROWS_MAX, take_ready
from nyala.schema.schema import Schema, build_schema, column

CELL_BYTES = 300
LIMITS = Limits(max_cell_bytes=CELL_BYTES)
TYPES = {
    "k": column("int64", nullable=False),
    "s": column("string", nullable=False),
    "b": column("bool"),
    "d": column("date"),
    "t": column("timestamp"),
    "m": column("decimal(5,2)"),
    "v": column("varchar(3)"),
    "x": column("binary"),
    "f": column("double", nullable=False),
}
SCHEMA = build_schema(TYPES, ["k", "s"])

DAYS_AT_THE_EDGE = [-719_163, -719_162, 2_932_896, 2_932_897]  # of the years 1 to 9999
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "k": st.none() | st.integers(-(2**63), 2**63 - 1),
    "s": st.none() | st.text(max_size=5) | st.just("ab" * CELL_BYTES),
    "b": st.none() | st.booleans(),
    "d": st.none() | st.integers(-10, 10) | st.sampled_from(DAYS_AT_THE_EDGE),
    "t": st.none() | st.integers(-(2**63), 2**63 - 1),
    "m": st.none() | st.integers(-99_999, 99_999) | st.sampled_from([10**5, -(10**20)]),
    "v": st.none() | st.text("abé", max_size=5),
    "x": st.none() | st.binary(max_size=5) | st.just(bytes(CELL_BYTES)) | st.just(bytes(CELL_BYTES + 1)),
    "f": st.none() | st.floats(),
}


def array_of(name: str, values: list[Any]) -> pa.Array:
    """Also such as no Arrow function would make: days that are no date, decimals of too many digits."""
    type = SCHEMA.by_name(name).type.arrow
    if name in ("d", "t"):
        return pa.array(values, pa.int32() if name == "d" else pa.int64()).view(type)
    if name != "m":
        return pa.array(values, type)
    raw = b"".join((value or 0).to_bytes(16, "little", signed=True) for value in values)
    mask = pa.array([value is not None for value in values], pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(type, len(values), [mask, pa.py_buffer(raw)])


@st.composite
def tables(draw: st.DrawFn, most: int = 4) -> pa.Table | pa.RecordBatch:
    """Some columns in some order, mostly without a fault; sometimes a slice, or in two chunks."""
    names = draw(st.permutations(list(TYPES)))[: draw(st.integers(1, len(TYPES)))]
    if draw(st.integers(0, 3)):
        names = draw(st.permutations(list(TYPES)))
    count = draw(st.integers(0, most))
    good = draw(st.sampled_from([True, True, False]))
    plain = {"k": 7, "s": "é", "b": True, "d": 0, "t": 0, "m": 5, "v": "ab", "x": b"\xff", "f": 0.5}
    odd = draw(st.sampled_from(names)) if good else None

    def values_of(name: str) -> list[Any]:
        if good and name != odd:
            return [plain[name]] * count
        return draw(st.lists(VALUES[name], min_size=count, max_size=count))

    arrays = [array_of(name, values_of(name)) for name in names]
    batch = pa.RecordBatch.from_arrays(arrays, names=list(names))
    lower = draw(st.integers(0, count))
    shape = draw(st.sampled_from(["batch", "table", "chunks", "slice"]))
    if shape == "batch":
        return batch
    if shape == "chunks":
        return pa.Table.from_batches([batch.slice(0, lower), batch.slice(lower)])
    return pa.Table.from_batches([batch.slice(lower) if shape == "slice" else batch])


def outcome(data: Any, operation: str = "insert") -> Converted | tuple[type, str]:
    try:
        return convert(data, SCHEMA, operation=operation, limits=LIMITS)
    except Error as error:
        return type(error), str(error)


def column_by_column(data: Any, operation: str = "insert") -> Converted | tuple[type, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convert_module, "take_ready", lambda *_: None)
        return outcome(data, operation)


def same(found: Converted | tuple[type, str], expected: Converted | tuple[type, str]) -> bool:
    if not isinstance(found, Converted) or not isinstance(expected, Converted):
        return found == expected
    assert list(found.columns) == list(expected.columns)
    for name, array in found.columns.items():
        other = expected.columns[name]
        array.validate(full=True)
        assert array.type == other.type and array.offset == 0
        if name == "f":  # NaN is not equal to NaN
            array, other = (one.view(pa.int64()) for one in (array, other))
        assert array.equals(other), name
    return (
        found.row_count == expected.row_count
        and found.errors.rows.tolist() == expected.errors.rows.tolist()
        and (found.errors.codes, found.errors.messages) == (expected.errors.codes, expected.errors.messages)
    )


@given(tables(), st.sampled_from(["insert", "delete"]))
def test_rd1_whole_or_column_by_column_the_same_comes_of_it(data: Any, operation: str) -> None:
    """A value that `convert` refuses would be in the table, or one that it changes would be there unchanged."""
    assert same(outcome(data, operation), column_by_column(data, operation))


def good_rows(count: int) -> pa.Table:
    values = {"k": 7, "s": "é", "b": True, "d": 0, "t": 0, "m": 5, "v": "ab", "x": b"\xff", "f": 0.5}
    return pa.table({name: array_of(name, [value] * count) for name, value in values.items()})


BAD_TEXT = pa.array([b"\xff"], pa.binary()).view(pa.string())


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("k", array_of("k", [None])),
        ("f", array_of("f", [None])),
        ("s", BAD_TEXT),
        ("s", array_of("s", ["a" * (CELL_BYTES + 1)])),
        ("x", array_of("x", [bytes(CELL_BYTES + 1)])),
        ("v", BAD_TEXT),
        ("v", array_of("v", ["abcd"])),
        ("d", array_of("d", [DAYS_AT_THE_EDGE[0]])),
        ("d", array_of("d", [DAYS_AT_THE_EDGE[3]])),
        ("m", array_of("m", [100_000])),
        ("k", pa.array([7], pa.int32())),
        ("s", pa.array(["a"]).dictionary_encode()),
    ],
)
def test_what_is_not_as_it_should_be_is_not_ready(name: str, array: pa.Array) -> None:
    """One thing is wrong, and the whole is looked at column by column."""
    table = good_rows(1)
    assert take_ready(table, SCHEMA, CELL_BYTES) is not None
    table = table.set_column(table.column_names.index(name), name, array)
    assert take_ready(table, SCHEMA, CELL_BYTES) is None
    assert same(outcome(table), column_by_column(table))


def test_several_chunks_are_put_together_first() -> None:
    """All but the first would be left out."""
    data = pa.concat_tables([good_rows(2), good_rows(1)])
    ready = take_ready(data, SCHEMA, CELL_BYTES)
    assert ready is not None and ready.row_count == 3
    assert same(outcome(data), column_by_column(data))


def test_names_that_the_table_has_not_and_names_given_twice_are_told() -> None:
    table = good_rows(1)
    for strange in (table.append_column("z", table["k"]), table.append_column("k", table["k"])):
        assert take_ready(strange, SCHEMA, CELL_BYTES) is None
        assert not isinstance(outcome(strange), Converted)


def test_a_delete_of_more_than_keys_is_told() -> None:
    """With as many columns as the key has, or fewer."""
    for names in (["k", "s", "f"], ["k", "f"], ["f"]):
        data = good_rows(1).select(names)
        assert same(outcome(data, "delete"), column_by_column(data, "delete"))
        assert not isinstance(outcome(data, "delete"), Converted)
    keys = good_rows(1).select(["s", "k"])
    found = convert(keys, SCHEMA, operation="delete")
    assert found.ready is not None and list(found.columns) == ["k", "s"]


def test_rd2_the_message_is_the_columns_and_their_memory() -> None:
    """What the user does to his arrays later would be in the table; or the log would have other rows than memory."""
    ids = np.arange(5)
    data = good_rows(5).set_column(0, "k", pa.array(ids)).select(["s", "k", "f"])
    found = convert(data, SCHEMA)
    ids[:] = -1
    assert found.columns["k"].to_pylist() == [0, 1, 2, 3, 4]
    ready = found.ready
    assert ready is not None and [one.name for one in ready.columns] == ["k", "s", "f"] == list(found.columns)
    assert ready.batch.schema.names == [str(one.id) for one in ready.columns]
    again = pa.ipc.read_record_batch(ready.message, ready.batch.schema)
    assert again.equals(ready.batch) and again.columns == list(found.columns.values())
    begin, end = ready.message.address, ready.message.address + ready.message.size
    for array in found.columns.values():
        assert all(begin <= buffer.address < end for buffer in array.buffers() if buffer is not None)


def test_a_few_rows_of_a_large_table_make_a_small_message() -> None:
    """Each would keep the whole table in memory, and be too large for the log."""
    table = good_rows(5000)
    for data in (table.slice(4000, 1), table.slice(0, 1)):
        ready = take_ready(data, SCHEMA, CELL_BYTES)
        assert ready is not None and ready.message.size < 2000
    assert take_ready(table, SCHEMA, CELL_BYTES) is None and READY_ROWS_MAX < 5000


def test_a_schema_that_comes_again_is_not_looked_at_again() -> None:
    """And of those that do not, no more are remembered than a few."""
    schema: Schema = build_schema(TYPES, ["k", "s"])
    table = good_rows(1)
    for _ in range(3):
        take_ready(table, schema, CELL_BYTES)
        take_ready(pa.Table.from_batches(table.to_batches()), schema, CELL_BYTES)
    assert len(schema.ready_plans) == 1
    for number in range(50):
        take_ready(pa.table({f"n{number}": [1]}), schema, CELL_BYTES)
    assert len(schema.ready_plans) < 10


def test_calls_do_not_grow_with_the_columns() -> None:
    """Of a hundred numbers no more is asked than of ten, but whether one is NULL."""

    def calls(columns: int) -> int:
        names = [f"c{number}" for number in range(columns)]
        schema = build_schema(dict.fromkeys(names, "int64"), names[:1])
        table = pa.table(dict.fromkeys(names, pa.array([1])))
        take_ready(table, schema, CELL_BYTES)
        return calls_of(lambda: take_ready(table, schema, CELL_BYTES)).total()

    assert calls(100) == calls(10) < 20


@pytest.mark.parametrize("count", [1, 16, 17, 500])
@pytest.mark.parametrize("with_null", [False, True])
def test_days_that_are_no_date_are_found_among_few_and_among_many(count: int, with_null: bool) -> None:
    least, first, last, greatest = DAYS_AT_THE_EDGE
    for days, good in ((least, False), (first, True), (last, True), (greatest, False)):
        values = [0] * (count - 1) + [days] + [None] * with_null
        assert are_dates(array_of("d", values)) == good
    assert are_dates(array_of("d", [None] * count))


def test_dates_are_read_as_python_reads_them() -> None:
    found = convert(good_rows(1), SCHEMA)
    assert found.columns["d"].to_pylist() == [dt.date(1970, 1, 1)]
    assert found.columns["m"].to_pylist() == [Decimal("0.05")]
