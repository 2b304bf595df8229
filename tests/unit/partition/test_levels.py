"""Levels of a new table: the examples of the specification, and the errors of invalid levels."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from nyala.errors import ColumnNotFoundError, InvalidArgumentError
from nyala.keys.codec import KeyCodec
from nyala.partition.describe import describe, describe_schema
from nyala.partition.levels import HashSpec, RangeSpec, build_partitions, hash_partition, range_partition
from nyala.partition.model import HashLevel, PartitionSchema
from nyala.partition.ranges import RangeBound
from nyala.schema.schema import Schema, build_schema
from nyala.schema.types import parse_type

METRICS = build_schema(
    {"host": "string", "metric": "string", "time": "timestamp", "value": "double"},
    primary_key=["host", "metric", "time"],
)
YEARS = range_partition("time", splits=["2015-01-01", "2016-01-01"])


def shown(levels: Any, schema: Schema = METRICS) -> list[str]:
    partition_schema, partitions = build_partitions(levels, schema)
    return [describe(partition, partition_schema, schema) for partition in partitions]


# ---- the specification's examples ----------------------------------------------------------------------------


def test_a_column_may_be_a_hash_and_a_range_column() -> None:
    """T2: only two hash levels must not share a column."""
    assert len(shown([hash_partition("time", buckets=2), YEARS])) == 6


# ---- invalid levels ------------------------------------------------------------------------------------------

INTS = build_schema(
    {"a": "int8", "b": "int8", "c": "int8", "s": "string", "d": "decimal(3,1)", "v": "int32"},
    primary_key=["a", "b", "c", "s", "d"],
)


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        (lambda: [hash_partition("a", buckets=1)], "must have at least two hash buckets"),
        (lambda: [hash_partition("a", buckets=2.0)], "must have at least two hash buckets"),
        (lambda: [hash_partition("a", buckets=True)], "must have at least two hash buckets"),
        (lambda: [hash_partition(buckets=2)], "must have at least one hash column"),
        (lambda: [hash_partition(["a", "b"], buckets=2)], "takes column names as separate arguments"),
        (lambda: [hash_partition("a", buckets=2, seed=2**31)], "seed"),
        (
            lambda: [hash_partition("a", "b", buckets=2), hash_partition("b", buckets=2)],
            "must not contain columns in common: 'b'",
        ),
        (lambda: [hash_partition("a", "a", buckets=2)], "duplicate column 'a'"),
        (lambda: [hash_partition("v", buckets=2)], "must specify only primary key columns, and 'v'"),
        (lambda: [hash_partition("a", buckets=300), hash_partition("b", buckets=300)], "90000 tablets"),
        (lambda: [hash_partition("a", buckets=10**12)], "tablets, at most 65536"),
        (lambda: ["a"], "partition_by takes"),
        (lambda: [range_partition()], "must have at least one range column"),
        (lambda: [range_partition("v")], "must specify only primary key columns, and 'v'"),
        (lambda: [range_partition("a", "a")], "duplicate column 'a' in range_partition"),
        (lambda: [range_partition("a"), range_partition("b")], "at most one range level"),
        (lambda: [range_partition("a", splits=5)], "splits must be a list"),
        (lambda: [range_partition("s", splits="ab")], "splits must be a list"),
        (lambda: [range_partition("a", splits=[1, 2, 1])], "duplicate split row: 1"),
        (lambda: [range_partition("a", splits=[None])], "must set at least one range column"),
        (lambda: [range_partition("a", "b", splits=[(None, None)])], "must set at least one range column"),
        (
            lambda: [range_partition("a", splits=[5], bounds=[(5, 9)])],
            "the split 5 equals a bound of a range",
        ),
        (
            lambda: [range_partition("a", splits=[9], bounds=[(5, 9)])],
            "the split 9 equals a bound of a range",
        ),
        (
            lambda: [range_partition("a", splits=[-128])],
            "the split -128 is the smallest possible value",
        ),
        (
            lambda: [range_partition("a", splits=[4], bounds=[(5, 9)])],
            "the split 4 is not inside any of the ranges given as bounds",
        ),
        (
            lambda: [range_partition("a", splits=[10], bounds=[(5, 9)])],
            "the split 10 is not inside any of the ranges given as bounds",
        ),
        (
            lambda: [range_partition("a", splits=[10], bounds=[(5, 9), (11, 12)])],
            "the split 10 is not inside any of the ranges given as bounds",
        ),
        (
            lambda: [range_partition("a", splits=[10], bounds=[])],
            "the split 10 is not inside any of the ranges given as bounds",
        ),
        (
            lambda: [range_partition("a", bounds=[(5, 5)])],
            "lower bound must be less than the upper bound: 5, 5",
        ),
        (lambda: [range_partition("a", bounds=[(5, 4)])], "lower bound must be less than the upper bound"),
        (lambda: [range_partition("a", bounds=[(None, -128)])], "must be less than the upper bound"),
        (lambda: [range_partition("s", bounds=[("", "")])], "must be less than the upper bound"),
        (lambda: [range_partition("s", bounds=[(None, "")])], "must be less than the upper bound"),
        (lambda: [range_partition("a", bounds=[(0, 5), (4, 9)])], r"overlapping range partitions: \(0, 5\)"),
        (lambda: [range_partition("a", bounds=[(4, 9), (0, 5)])], "overlapping range partitions"),
        (lambda: [range_partition("a", bounds=[(0, 5), (0, 5)])], "overlapping range partitions"),
        (lambda: [range_partition("a", bounds=[(0, None), (7, 9)])], "overlapping range partitions"),
        (lambda: [range_partition("a", bounds=[(None, 5), (None, 9)])], "overlapping range partitions"),
        (lambda: [range_partition("a", bounds=[(None, None), (1, 2)])], "overlapping range partitions"),
        (lambda: [range_partition("a", bounds=[RangeBound(0, 5, True, True), (5, 6)])], "overlapping"),
        (lambda: [range_partition("a", bounds=[5])], r"pair \(lower, upper\), not 5"),
        (lambda: [range_partition("a", bounds=[(1, 2, 3)])], r"pair \(lower, upper\)"),
        (lambda: [range_partition("s", bounds=["ab"])], r"pair \(lower, upper\)"),
        (lambda: [range_partition("a", bounds=[(1, 128)])], "upper bound of range column 'a'.*128"),
        (lambda: [range_partition("a", bounds=[("x", 5)])], "lower bound of range column 'a'"),
        (lambda: [range_partition("d", splits=[decimal.Decimal("1.23")])], "split of range column 'd'"),
        (lambda: [range_partition("a", "b", splits=[5])], "2 columns takes a tuple"),
        (lambda: [range_partition("a", splits=[(5, 6)])], "has 2 values; the range has 1 column"),
        (
            lambda: [range_partition("a", splits=[{"b": 1}])],
            "may only contain values for range partition columns",
        ),
        (
            lambda: [range_partition("a", bounds=[RangeBound(127, None, False)])],
            "no value is greater than the exclusive lower bound 127",
        ),
        (lambda: [range_partition("s", splits=["x" * 20_000])], "20000 bytes as a key, at most 16384"),
    ],
    ids=itertools.count(),
)
def test_invalid_levels_are_refused(levels: Callable[[], list[Any]], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        build_partitions(levels(), INTS)


def test_an_unknown_column_gets_a_suggestion() -> None:
    with pytest.raises(ColumnNotFoundError, match="did you mean 'metric'"):
        build_partitions([hash_partition("metrik", buckets=2)], METRICS)


# ---- bounds --------------------------------------------------------------------------------------------------


def ranges(*columns: str, **arguments: Any) -> list[tuple[Any, Any]]:
    """Return the bounds of the ranges as canonical values."""
    partition_schema, partitions = build_partitions([range_partition(*columns, **arguments)], INTS)
    codec = KeyCodec([column.type for column in partition_schema.range_columns(INTS)])
    return [
        (
            None if p.range_lower is None else codec.decode_row(p.range_lower),
            None if p.range_upper is None else codec.decode_row(p.range_upper),
        )
        for p in partitions
    ]


MIN = -128


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (((1, 2, 3), (4, 5, 6)), ((1, 2, 3), (4, 5, 6))),
        # A column that is left out has its least value.
        (((1,), (4, None, 6)), ((1, MIN, MIN), (4, MIN, 6))),
        (([1, None, None], (4, 5)), ((1, MIN, MIN), (4, 5, MIN))),
        (({"a": 1}, {"c": 6, "a": 2}), ((1, MIN, MIN), (2, MIN, 6))),
        # Without any column there is no bound.
        ((None, (None, None, None)), (None, None)),
        (((), {}), (None, None)),
        # Exclusive lower, inclusive upper.
        (RangeBound((1, None, 3), (2, None, 3), False, True), ((1, MIN, 4), (2, MIN, 4))),
        (RangeBound((1,), (2,), False, True), ((1, MIN, MIN + 1), (2, MIN, MIN + 1))),
        (RangeBound((1, 127, 127), (2, 127, 127), False, True), ((2, MIN, MIN), (3, MIN, MIN))),
        (RangeBound((1, 2, 127), (2, None, 127), False, True), ((1, 3, MIN), (2, MIN + 1, MIN))),
        (RangeBound((1,), (127, 127, 127), True, True), ((1, MIN, MIN), None)),
        (RangeBound(None, None, False, True), (None, None)),
    ],
)
def test_bounds_over_three_columns(bound: Any, expected: Any) -> None:
    """Bounds that leave columns out, and inclusive upper bounds."""
    assert ranges("a", "b", "c", bounds=[bound]) == [expected]


def test_inclusive_bounds_of_text_and_decimal() -> None:
    """The next text is one NUL longer. The next decimal is greater by one in its last digit."""
    assert ranges("s", bounds=[RangeBound("a", "b", False, True)]) == [(("a\0",), ("b\0",))]
    assert ranges("s", "a", bounds=[RangeBound(("a",), ("b", 127), False, True)]) == [
        (("a", MIN + 1), ("b\0", MIN))
    ]
    assert ranges("d", bounds=[RangeBound(decimal.Decimal("1.5"), decimal.Decimal("99.9"), False, True)]) == [
        ((16,), None)
    ]
    assert ranges("a", "d", bounds=[RangeBound((1,), None, False)]) == [((1, -998), None)]


def test_splits_of_kudus_partition_test() -> None:
    """A text that is left out is empty."""
    schema = build_schema(dict.fromkeys("abc", "string"), primary_key=list("abc"))
    level = range_partition("a", "b", "c", splits=[("a1", "b1", "c1"), ("a2", "b2")])
    _, partitions = build_partitions([level], schema)
    assert [(p.range_lower, p.range_upper) for p in partitions] == [
        (None, b"a1\0\0b1\0\0c1"),
        (b"a1\0\0b1\0\0c1", b"a2\0\0b2\0\0"),
        (b"a2\0\0b2\0\0", None),
    ]


def test_bounds_are_sorted_and_may_leave_gaps() -> None:
    """Ranges may be given in any order, with splits in each."""
    assert ranges("a", bounds=[(20, None), (0, 10), (None, -10)], splits=[5, 30, -20, 7]) == [
        (None, (-20,)),
        ((-20,), (-10,)),
        ((0,), (5,)),
        ((5,), (7,)),
        ((7,), (10,)),
        ((20,), (30,)),
        ((30,), None),
    ]


def test_times_may_be_text_dates_or_datetimes() -> None:
    """A time without a zone is in UTC."""
    midnight = dt.datetime(2015, 1, 1)
    same = [
        "2015-01-01",
        "2015-01-01T00:00:00",
        "2015-01-01T01:00:00+01:00",
        dt.date(2015, 1, 1),
        midnight,
        midnight.replace(tzinfo=dt.UTC),
        pa.scalar(1420070400, pa.timestamp("s")),
    ]
    cut = {build_partitions([range_partition("time", splits=[value])], METRICS)[1] for value in same}
    assert len(cut) == 1


# ---- JSON and text -------------------------------------------------------------------------------------------


def test_levels_are_equal_after_json() -> None:
    levels = [hash_partition("host", "metric", buckets=4, seed=7), hash_partition("time", buckets=3), YEARS]
    partition_schema, _ = build_partitions(levels, METRICS)
    assert PartitionSchema.from_json(partition_schema.to_json()) == partition_schema
    assert PartitionSchema.from_json(PartitionSchema().to_json()) == PartitionSchema()
    assert partition_schema.hash_levels[0] == HashLevel((10, 11), 4, 7, "spark-murmur3")
    assert partition_schema.to_json() == (
        '{"hash_levels":[{"column_ids":[10,11],"buckets":4,"seed":7,"algorithm":"spark-murmur3"},'
        '{"column_ids":[12],"buckets":3,"seed":42,"algorithm":"spark-murmur3"}],"range_column_ids":[12]}'
    )


def test_levels_are_described_as_text() -> None:
    levels = [hash_partition("host", "metric", buckets=4, seed=7), hash_partition("time", buckets=3), YEARS]
    text = describe_schema(build_partitions(levels, METRICS)[0], METRICS)
    assert text == "HASH (host, metric) BUCKETS 4 SEED 7, HASH (time) BUCKETS 3, RANGE (time)"
    assert describe_schema(PartitionSchema(), METRICS) == "UNPARTITIONED"


@pytest.mark.parametrize(
    ("type", "value", "text"),
    [
        ("string", "it's", "'it''s'"),
        ("binary", b"\x00\xff", "x'00ff'"),
        ("int8", -5, "-5"),
        ("date", dt.date(2015, 2, 3), "2015-02-03"),
        ("timestamp", "2015-02-03T04:05:06.000007", "2015-02-03T04:05:06.000007Z"),
        ("decimal(12,10)", decimal.Decimal(0), "0.0000000000"),
    ],
)
def test_bounds_are_described_as_users_write_them(type: str, value: Any, text: str) -> None:
    schema = build_schema({"k": type}, primary_key=["k"])
    partition_schema, partitions = build_partitions([range_partition("k", splits=[value])], schema)
    assert describe(partitions[1], partition_schema, schema) == f"RANGE (k) [{text}, unbounded)"


def test_a_described_bound_leaves_out_least_values_at_its_end() -> None:
    level = range_partition("a", "s", "b", splits=[(1,), (2, "x"), (3, "", 5)])
    assert shown([level], INTS)[1:] == [
        "RANGE (a, s, b) [(1), (2, 'x'))",
        "RANGE (a, s, b) [(2, 'x'), (3, '', 5))",
        "RANGE (a, s, b) [(3, '', 5), unbounded)",
    ]


def test_a_renamed_column_is_described_by_its_new_name() -> None:
    partition_schema, partitions = build_partitions([hash_partition("host", buckets=2)], METRICS)
    renamed = build_schema({"server": "string", "v": "int8"}, primary_key=["server"])
    assert describe(partitions[0], partition_schema, renamed) == "HASH (server) BUCKET 0 OF 2"


def test_levels_can_be_compared_and_printed() -> None:
    assert hash_partition("a", buckets=2) == HashSpec(("a",), 2, 42)
    assert range_partition("a", splits=[1]) == RangeSpec(("a",), (1,), None)
    assert parse_type("int8").value_min == MIN
