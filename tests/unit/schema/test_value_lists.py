"""Long IN lists select the same rows as a comparison with each of their values."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from nyala.errors import Error, InvalidArgumentError
from nyala.schema.expressions.nodes import Column, InList, Node, any_of, col
from nyala.schema.predicates.predicate import BoundPredicate, bind
from nyala.schema.schema import Schema, build_schema

DAY = dt.date(2020, 2, 28)
NOON = dt.datetime(2020, 2, 28, 12, tzinfo=dt.UTC)
DAYS = [DAY + dt.timedelta(days=i) for i in range(-40, 40)]
MOMENTS = [NOON + dt.timedelta(hours=i) for i in range(-40, 40)]
CENTS = [decimal.Decimal(i) / 100 for i in range(-60, 60)]
HUGE = decimal.Decimal(10**20)
WORDS = ["", "a", "a\0", "é", "z", "\U0001f600", *(f"w{i}" for i in range(60))]

# Values of a column, and IN lists for it.
CASES: dict[str, tuple[list[Any], list[Any]]] = {
    "int8": (list(range(-128, 128)), [list(range(-300, 300, 7)), np.arange(0, 200, dtype=np.uint64)]),
    "int32": (list(range(-90, 90)), [[5, 5, 7, 2**31, -(2**40)] * 20, [float(i) / 2 for i in range(100)]]),
    "int64": ([-(2**63), *range(60), 2**63 - 1], [[2**63 - 1, -(2**63), *range(40)], [2**63 + i for i in range(40)]]),
    "float": (
        [0.0, 0.1, 1.5, 3.4e38, math.inf, math.nan, *map(float, range(40))],
        [[0.1, -0.0, math.nan, 1e39, math.inf] * 10, list(range(50)), np.linspace(0, 5, 51, dtype=np.float32)],
    ),
    "double": (
        [0.0, 0.1, 2.5, -math.inf, math.nan, 1e300, float(2**53)],
        [[0.1, 0.1, -0.0, math.nan, -math.inf] * 10, [2**53 + i for i in range(40)], CENTS],
    ),
    "decimal(5,2)": (CENTS, [CENTS[::3], [c / 10 for c in CENTS], list(range(-5000, 5000)), [0.25] * 40]),
    "decimal(30,3)": ([i * HUGE for i in range(-9, 9)], [[int(i * HUGE) for i in range(-50, 50)], CENTS]),
    "string": (WORDS, [WORDS[::2], [f"w{i}" for i in range(20, 99)], pa.array(WORDS).dictionary_encode()]),
    "varchar(4)": (WORDS, [WORDS[::3] * 9, [f"word {i}" for i in range(40)]]),
    "binary": ([word.encode() for word in WORDS], [[b"\xff", b"a", b""] * 20, WORDS[::2]]),
    "date": (DAYS, [DAYS[::3] * 2, MOMENTS, [str(day) for day in DAYS[:40]], [f"{day}T12:00" for day in DAYS[:40]]]),
    "timestamp": (
        MOMENTS,
        [
            MOMENTS[::3] * 2,
            [moment.replace(tzinfo=None) for moment in MOMENTS[:50]],
            [moment.astimezone(dt.timezone(dt.timedelta(hours=2))) for moment in MOMENTS[:50]],
            DAYS,
            [str(day) for day in DAYS],
            pa.array(MOMENTS, pa.timestamp("ns", "UTC")),
            pa.array([int(m.timestamp() * 10**9) + i % 2 for i, m in enumerate(MOMENTS)]).cast(pa.timestamp("ns")),
        ],
    ),
    "bool": ([False, True], [[True] * 40]),
}  # fmt: skip
PAIRS = [(type, values, given) for type, (values, lists) in CASES.items() for given in lists]


def selected(predicate: Node | BoundPredicate, schema: Schema, values: list[Any]) -> list[bool]:
    array = pa.array([*values, None], schema.by_name("x").type.arrow)
    bound = predicate if isinstance(predicate, BoundPredicate) else bind(predicate, schema)
    assert bound is not None
    mask: list[bool] = bound.evaluate({"x": array}, len(array)).tolist()
    # If a constraint means the same as the predicate, it admits the same values.
    for value, hit in zip(array.to_pylist(), mask, strict=True):
        if hit and "x" in bound.constraints() and not isinstance(value, dt.date | decimal.Decimal):
            assert bound.constraints()["x"].admits(value)
    for constraint in bound.constraints().values():
        constraint.check()
    return mask


def schema_of(type: str) -> Schema:
    return build_schema({"k": "int64", "x": type}, ["k"])


@pytest.mark.parametrize(
    ("type", "values", "given"), PAIRS, ids=[str(i) + pair[0] for i, pair in enumerate(PAIRS)]
)
def test_a_random_long_list_selects_the_rows_of_its_single_values(
    type: str, values: list[Any], given: Any
) -> None:
    schema = schema_of(type)
    listed = col("x").isin(given)
    one_by_one = any_of(col("x").isin([value]) for value in given)
    assert selected(listed, schema, values) == selected(one_by_one, schema, values)
    assert selected(~listed, schema, values) == selected(~one_by_one, schema, values)
    bound = bind(listed, schema)
    assert bound is not None
    assert bind(str(bound), schema) == bound
    again = BoundPredicate.from_json(bound.to_json(), schema)
    assert selected(again, schema, values) == selected(bound, schema, values)


def test_null_in_a_long_list_matches_no_row_and_not_in_selects_none() -> None:
    schema = schema_of("int64")
    listed = InList(Column("x"), (None, *range(50)))
    assert selected(listed, schema, [3, 70]) == [True, False, False]
    assert selected(~listed, schema, [3, 70]) == [False, False, False]
    with pytest.raises(InvalidArgumentError, match="is_null"):
        col("x").isin([None, *range(50)])
    with pytest.raises(InvalidArgumentError, match="is_null"):
        col("x").isin(pa.array([None, *range(50)]))


def test_a_list_may_be_of_arrow_numpy_polars_or_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    numbers = list(range(100))
    wanted = bind(col("x").isin(numbers), schema_of("int64"))
    for given in (
        tuple(numbers), set(numbers), range(100), np.array(numbers, np.int16), pa.array(numbers),
        pa.chunked_array([numbers[:50], numbers[50:]]), pl.Series(numbers), pandas.Series(numbers),
        [np.int32(number) for number in numbers], iter(numbers),
    ):  # fmt: skip
        assert bind(col("x").isin(given), schema_of("int64")) == wanted


@pytest.mark.parametrize(
    ("type", "given"), [("int64", ["5"] * 40), ("string", [5] * 40), ("date", [5] * 40), ("date", ["x"] * 40)]
)
def test_a_long_list_of_another_type_is_refused_like_a_single_value(type: str, given: list[Any]) -> None:
    with pytest.raises(Error) as of_one:
        bind(col("x").isin(given[:1]), schema_of(type))
    with pytest.raises(Error) as of_all:
        bind(col("x").isin(given), schema_of(type))
    assert str(of_all.value) == str(of_one.value)
