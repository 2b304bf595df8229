"""RowErrors: which rows of a batch failed, and why."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.errors import (
    ALREADY_PRESENT,
    NOT_FOUND,
    NULL,
    OUT_OF_RANGE,
    DuplicateKeyError,
    InvalidValueError,
    WriteError,
    write_error,
)
from nyala.schema.conversion.row_errors import RowErrors


def test_without_errors_the_table_is_empty_and_has_all_columns() -> None:
    errors = RowErrors()
    errors.add([], NULL, "nothing")
    assert not errors and len(errors) == 0 and errors.codes == []
    assert not errors.failed_mask(3).any()
    table = errors.to_arrow("insert", {"k": pa.array([1, 2])})
    assert table.num_rows == 0 and table.column_names == ["row", "operation", "code", "message", "k"]
    assert [str(t) for t in table.schema.types] == ["int64", "string", "string", "string", "int64"]


def test_e1_the_first_error_of_a_row_wins_and_rows_ascend() -> None:
    """If a row gets two errors, the first one counts (E1). Rows are in ascending order (E2)."""
    errors = RowErrors()
    errors.add(np.array([9, 4]), OUT_OF_RANGE, ["nine", "four"])
    errors.add([9, 2], NULL, "later")
    assert errors.rows.tolist() == [2, 4, 9]
    assert errors.codes == [NULL, OUT_OF_RANGE, OUT_OF_RANGE]
    assert errors.messages == ["later", "four", "nine"]
    assert np.flatnonzero(errors.failed_mask(10)).tolist() == [2, 4, 9]
    errors.add([0], NOT_FOUND, "zero")
    assert len(errors) == 4 and errors.rows[0] == 0


def test_the_table_shows_the_keys_of_the_failed_rows() -> None:
    """A key that could not be converted is NULL."""
    errors = RowErrors()
    errors.add([2, 0], NULL, "x")
    table = errors.to_arrow("upsert", {"k": pa.array(["a", "b", None]), "row": pa.array([7, 8, 9])})
    assert table.to_pylist() == [
        {"row": 0, "operation": "upsert", "code": "null", "message": "x", "k": "a", "key_row": 7},
        {"row": 2, "operation": "upsert", "code": "null", "message": "x", "k": None, "key_row": 9},
    ]


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([ALREADY_PRESENT], DuplicateKeyError),
        ([NULL, OUT_OF_RANGE], InvalidValueError),
        ([NULL, NOT_FOUND], WriteError),
    ],
)
def test_the_class_of_the_exception_depends_on_the_codes(codes: list[str], expected: type[Exception]) -> None:
    """`except nyala.DuplicateKeyError` catches duplicate keys and nothing else."""
    errors = RowErrors()
    for row, code in enumerate(codes):
        errors.add([row], code, f"reason {row}")
    error = write_error(set(errors.codes), "some rows failed", errors.to_arrow("insert", {}))
    assert type(error) is expected
    assert error.errors is not None and error.errors.num_rows == len(codes)


def test_extend_keeps_the_order_of_adding() -> None:
    one, two = RowErrors(), RowErrors()
    one.add([1], NULL, "one")
    two.add([1, 2], NOT_FOUND, "two")
    assert len(one) == 1
    one.extend(two)
    assert list(zip(one.rows.tolist(), one.messages, strict=True)) == [(1, "one"), (2, "two")]


@given(st.lists(st.lists(st.integers(0, 20), unique=True, max_size=8), max_size=6))
def test_random_errors_against_a_dict(adds: list[list[int]]) -> None:
    """Messages, order and number of random errors equal those of a dict (E1 to E3)."""
    errors, expected = RowErrors(), dict[int, str]()
    for step, rows in enumerate(adds):
        errors.add(rows, NULL, [f"{step}.{row}" for row in rows] if step % 2 else f"{step}")
        for row in rows:
            expected.setdefault(row, f"{step}.{row}" if step % 2 else f"{step}")
    assert dict(zip(errors.rows.tolist(), errors.messages, strict=True)) == expected
    assert errors.rows.tolist() == sorted(expected)
    assert bool(errors) == bool(expected) and len(errors) == len(expected)
