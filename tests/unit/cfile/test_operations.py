"""Decode, filter and gather give the same values with every encoding."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.cfile.encoding.values import ALLOWED
from tests.unit.cfile.memory import MemoryFiles, make_values, same
from tests.unit.cfile.test_roundtrip import written

from nyala.cfile.blocks.read_stats import Access
from nyala.cfile.column_reader import ColumnReader
from nyala.schema.predicates.column_test import ColumnTest
from nyala.schema.predicates.predicate import bind
from nyala.schema.schema import build_schema

CONDITIONS = {
    "bool": ["v = true", "v IN (false)"],
    "text": ["v = 'name-3'", "v > 'name-2'", "v <> 'x'", "v IN ('', 'name-1', 'name-6')", "v LIKE 'na%5'", "v = ''"],
    "binary": ["v = X''", "v > X'0202'", "v IN (X'010101', X'00')"],
    "number": ["v > 3", "v <= 3", "v <> 4", "v = 7", "v IN (-5, 0, 7, 8, 50)", "v >= 2 AND v < 9", "v % 3 = 1"],
    "date": ["v > DATE '1970-01-20'", "v = DATE '1970-01-08'", "v <> DATE '1970-01-08'"],
    "timestamp": ["v > TIMESTAMP '1970-01-01 00:00:00.000020'", "v <> TIMESTAMP '1970-01-01'"],
}  # fmt: skip
EVERY = ["v IS NULL", "v IS NOT NULL", "v IS NULL OR v = v"]


def conditions_of(type: str) -> list[str]:
    kind = {"string": "text", "varchar(40)": "text"}.get(type, type)
    found = CONDITIONS.get(kind, CONDITIONS["number"])
    if type in ("float", "double") or type.startswith("decimal"):
        found = [condition for condition in found if "%" not in condition]
    return found + EVERY


def split_of(type: str, condition: str) -> tuple[ColumnTest, ...]:
    predicate = bind(condition, build_schema({"k": "int64", "v": type}, "k"))
    assert predicate is not None
    return predicate.column_tests


@pytest.mark.parametrize(("type", "encoding"), ALLOWED)
@settings(max_examples=max(4, settings().max_examples // 10))
@given(data=st.data())
def test_the_operations_agree_with_the_values(type: str, encoding: str, data: st.DataObject) -> None:
    """Each operation returns the values that were written, in order."""
    check_operations(type, encoding, data)


def check_operations(type: str, encoding: str, data: st.DataObject) -> None:
    """Write any column, and compare each operation with the array that was written."""
    count = data.draw(st.integers(1, 300) | st.sampled_from([64, 128, 700]))
    nulls = data.draw(st.sampled_from([0.0, 0.05, 0.6]))
    array = make_values(type, count, data.draw(st.integers(0, 5)), nulls)
    if data.draw(st.booleans(), label="long runs"):
        array = array.take(pa.array(np.arange(count) // 40))
    column = written(MemoryFiles(), array, type, encoding, "none", data.draw(st.sampled_from([512, None])))
    lower = data.draw(st.integers(0, count - 1))
    upper = data.draw(st.integers(lower + 1, count))
    part = array.slice(lower, upper - lower)
    check_decode(column, part, lower, upper)
    rows = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=12)), np.int64)
    assert same(column.gather(rows), array.take(pa.array(rows)))
    few = np.sort(rows)
    assert same(column.gather(few, access=Access.SCAN), array.take(pa.array(few)))
    for row in rows[:3].tolist():
        found = pa.array([column.value(row)], array.type)
        assert same(found, array.slice(row, 1)) or type in ("float", "double")
    among = np.array(data.draw(st.lists(st.booleans(), min_size=len(part), max_size=len(part))))
    for condition in conditions_of(type):
        for test in split_of(type, condition):
            expected = test.mask(part)
            assert column.filter(test, lower, upper).tolist() == expected.tolist(), condition
            assert column.filter(test, lower, upper, among).tolist() == (expected & among).tolist(), condition


def check_decode(column: ColumnReader, expected: pa.Array, lower: int, upper: int) -> None:
    for access in Access:
        found = column.decode(lower, upper, access=access)
        found.validate(full=True)
        assert same(found, expected)
    cheap = column.decode(lower, upper, column.cheap_type)
    assert cheap.type == column.cheap_type
    if pa.types.is_dictionary(cheap.type):
        assert same(cheap.dictionary_decode(), expected)
    else:
        assert same(cheap.cast(expected.type), expected)
