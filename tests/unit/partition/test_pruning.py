"""Partition pruning skips only partitions without selected rows."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.errors import InvalidArgumentError
from nyala.keys.arrow_memory import array_of_canonical
from nyala.partition.levels import build_partitions, hash_partition, range_partition
from nyala.partition.model import Partition, PartitionSchema
from nyala.partition.pruning import prune
from nyala.partition.ranges import RangeBound
from nyala.partition.router import Router
from nyala.schema.predicates.constraint import ANY, EMPTY, NULL_ONLY, Constraint
from nyala.schema.schema import Schema, build_schema
from nyala.schema.types import ColumnType, from_canonical, parse_type

# So few values that the test can try every possible row.
UNIVERSE: dict[str, list[Any]] = {
    "int8": [-128, -2, -1, 0, 1, 2, 127],
    "string": ["", "\0", "a", "a\0", "ab", "b"],
    "decimal(20,2)": [-(10**20 - 1), -1, 0, 5, 10**20 - 1],
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[Schema, PartitionSchema, tuple[Partition, ...]]:
    types = draw(st.lists(st.sampled_from(list(UNIVERSE)), min_size=1, max_size=3))
    names = [f"k{i}" for i in range(len(types))]
    schema = build_schema(dict(zip(names, types, strict=True)) | {"v": "double"}, primary_key=names)
    levels: list[Any] = []
    free = draw(st.permutations(names))
    for _ in range(draw(st.integers(0, 2))):
        count = draw(st.integers(0, len(free)))
        if count:
            levels.append(
                hash_partition(*free[:count], buckets=draw(st.integers(2, 5)), seed=draw(st.integers(41, 43)))
            )
            free = free[count:]
    if draw(st.booleans()) or not levels:
        columns = draw(st.permutations(names))[: draw(st.integers(1, len(names)))]
        row = st.tuples(*(st.none() | user_values(schema.by_name(name).type) for name in columns))
        bound = st.builds(RangeBound, st.none() | row, st.none() | row, st.booleans(), st.booleans())
        ranged = range_partition(
            *columns,
            bounds=draw(st.none() | st.lists(bound, max_size=3)),
            splits=draw(st.lists(row, max_size=4)),
        )
        try:
            build_partitions([ranged], schema)
        except InvalidArgumentError:
            split = {tuple(draw(user_values(schema.by_name(name).type)) for name in columns): None}
            ranged = range_partition(*columns, splits=list(split))
        try:
            build_partitions([ranged], schema)
        except InvalidArgumentError:
            ranged = range_partition(*columns)
        levels.append(ranged)
    return (schema, *build_partitions(levels, schema))


def values(type: ColumnType) -> st.SearchStrategy[Any]:
    return st.sampled_from(UNIVERSE[str(type)])


def user_values(type: ColumnType) -> st.SearchStrategy[Any]:
    return values(type).map(lambda value: from_canonical(type, value))


@st.composite
def constraints(draw: st.DrawFn, type: ColumnType) -> Constraint:
    kind = draw(st.sampled_from(["any", "values", "values", "range", "both", "empty"]))
    if kind == "empty":
        return draw(st.sampled_from([ANY, ANY, ANY, EMPTY, NULL_ONLY]))
    result = ANY
    if kind in ("values", "both"):
        result = Constraint.one_of(draw(st.lists(values(type), min_size=1, max_size=3)))
    if kind in ("range", "both"):
        lower, upper = draw(st.none() | values(type)), draw(st.none() | values(type))
        inclusive = {"lower_inclusive": draw(st.booleans()), "upper_inclusive": draw(st.booleans())}
        result = result.intersect(Constraint.between(type, lower, upper, **inclusive))
    return result


@given(tables(), st.data())
def test_t5_a_skipped_partition_has_no_selected_row(
    table: tuple[Schema, PartitionSchema, tuple[Partition, ...]], data: st.DataObject
) -> None:
    """T5: for random tables and predicates, no selected row is in a skipped partition."""
    schema, partition_schema, partitions = table
    columns = schema.key_columns
    wanted = {column.name: data.draw(constraints(column.type)) for column in columns}
    keep = prune(wanted, partition_schema, partitions, schema)
    assert keep.dtype == bool and len(keep) == len(partitions)
    rows = list(itertools.product(*(UNIVERSE[str(column.type)] for column in columns)))
    arrays = {c.name: array_of_canonical(c.type, [row[i] for row in rows]) for i, c in enumerate(columns)}
    routed = Router(partition_schema, partitions, schema).route(arrays, len(rows)).tolist()
    selected = {
        partition
        for row, partition in zip(rows, routed, strict=True)
        if all(wanted[c.name].admits(row[i]) for i, c in enumerate(columns))
    }
    assert selected - {-1} <= set(keep.nonzero()[0].tolist())
    # If the predicate gives values for every partition column, only the selected partitions are left.
    ids = {id for level in partition_schema.hash_levels for id in level.column_ids}
    ids |= set(partition_schema.range_column_ids)
    pinned = [wanted[schema.by_id(id).name] for id in ids]
    one_each = all(constraint.values is not None and len(constraint.values) == 1 for constraint in pinned)
    others = all(wanted[column.name] == ANY for column in columns if column.id not in ids)
    if one_each and others:
        assert set(keep.nonzero()[0].tolist()) == selected - {-1}


METRICS = build_schema(
    {"host": "string", "metric": "string", "time": "int64", "value": "double"},
    primary_key=["host", "metric", "time"],
)
INT64 = parse_type("int64")


def kept(levels: list[Any], **wanted: Constraint) -> int:
    partition_schema, partitions = build_partitions(levels, METRICS)
    return int(prune(wanted, partition_schema, partitions, METRICS).sum())


def equal(*values: Any) -> Constraint:
    return Constraint.one_of(values)


def between(lower: int | None, upper: int | None) -> Constraint:
    return Constraint.between(INT64, lower, upper, upper_inclusive=False)


HASH = hash_partition("host", "metric", buckets=4)
TIME = range_partition("time", bounds=[(0, 10), (10, 20), (30, 40)])


@pytest.mark.parametrize(
    ("levels", "wanted", "expected"),
    [
        ([HASH, TIME], {}, 12),
        # One host and metric: one bucket of four, of each range.
        ([HASH, TIME], {"host": equal("a"), "metric": equal("m")}, 3),
        # A hash level needs every column.
        ([HASH, TIME], {"host": equal("a")}, 12),
        ([hash_partition("host", buckets=4), hash_partition("metric", buckets=3)], {"host": equal("a")}, 3),
        ([hash_partition("host", buckets=4), hash_partition("metric", buckets=3)], {"metric": equal("a")}, 4),
        # Ranges.
        ([HASH, TIME], {"time": equal(5)}, 4),
        ([HASH, TIME], {"time": equal(25)}, 0),
        ([HASH, TIME], {"time": between(0, 10)}, 4),
        ([HASH, TIME], {"time": between(0, 11)}, 8),
        ([HASH, TIME], {"time": between(9, 11)}, 8),
        ([HASH, TIME], {"time": between(20, 30)}, 0),
        ([HASH, TIME], {"time": between(20, 31)}, 4),
        ([HASH, TIME], {"time": between(15, None)}, 8),
        ([HASH, TIME], {"time": between(None, 0)}, 0),
        # A list prunes the ranges between its values.
        ([HASH, TIME], {"time": equal(5, 35)}, 8),
        ([HASH, TIME], {"time": equal(5, 25, 45)}, 4),
        # Both levels at once.
        ([HASH, TIME], {"host": equal("a"), "metric": equal("m"), "time": equal(5)}, 1),
        # A condition that no row satisfies, on any column.
        ([HASH, TIME], {"value": EMPTY}, 0),
        ([HASH, TIME], {"host": NULL_ONLY}, 0),
        ([HASH, TIME], {"value": NULL_ONLY}, 12),
        ([], {"host": equal("a")}, 1),
        ([], {"host": EMPTY}, 0),
        # A range over several columns: by the first one, and by the second if the first has one value.
        ([range_partition("host", "time", splits=[("a", 5), ("b", 5)])], {"host": equal("a")}, 2),
        (
            [range_partition("host", "time", splits=[("a", 5), ("b", 5)])],
            {"host": equal("a"), "time": between(None, 5)},
            1,
        ),
        (
            [range_partition("host", "time", splits=[("a", 5), ("b", 5)])],
            {"host": equal("a", "b"), "time": equal(5)},
            2,
        ),
        ([range_partition("host", "time", splits=[("a", 5), ("b", 5)])], {"time": equal(5)}, 3),
    ],
)
def test_partitions_that_a_predicate_leaves(
    levels: list[Any], wanted: dict[str, Constraint], expected: int
) -> None:
    assert kept(levels, **wanted) == expected


def test_an_in_list_selects_the_buckets_of_its_values() -> None:
    """An IN list selects the buckets of its values, up to a limit of combinations."""
    level = hash_partition("time", buckets=64)
    assert kept([level], time=equal(1)) == 1
    assert 1 < kept([level], time=equal(1, 2, 3)) <= 3
    assert kept([level], time=Constraint.between(INT64, 7, 7)) == 1
    assert kept([level], time=equal(*range(3000))) == 64
    assert kept([level], time=equal(*range(100_000))) == 64
    partition_schema, partitions = build_partitions([hash_partition("time", buckets=1000)], METRICS)
    for count in (8, 9, 30):  # few are hashed one by one, more as a column
        times = [number * 977 for number in range(count)]
        keep = prune({"time": equal(*times)}, partition_schema, partitions, METRICS)
        routed = Router(partition_schema, partitions, METRICS).route(
            {"time": array_of_canonical(INT64, times)}, count
        )
        assert keep.nonzero()[0].tolist() == sorted(set(routed.tolist()))
    both = hash_partition("host", "time", buckets=64)
    assert kept([both], host=equal("a", "b"), time=equal(1, 2)) <= 4
    many = [str(i) for i in range(1000)]
    assert kept([both], host=equal(*many), time=equal(*range(1000))) == 64


def test_pruning_and_routing_use_the_same_seed() -> None:
    for seed in (42, 7, -1):
        partition_schema, partitions = build_partitions(
            [hash_partition("time", buckets=64, seed=seed)], METRICS
        )
        router = Router(partition_schema, partitions, METRICS)
        for time in range(20):
            keep = prune({"time": equal(time)}, partition_schema, partitions, METRICS)
            routed = router.route({"time": array_of_canonical(INT64, [time])}, 1)
            assert keep.nonzero()[0].tolist() == routed.tolist()


def test_a_very_long_list_prunes_by_its_least_and_greatest_value() -> None:
    level = range_partition("time", splits=[0, 100_000])
    assert kept([level], time=equal(*range(50_000))) == 1
