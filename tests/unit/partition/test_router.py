"""Routing: each row belongs to the partition with its buckets and its range, or to none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from nyala.errors import InvalidArgumentError
from nyala.keys.arrow_memory import array_of_canonical
from nyala.keys.codec import KeyCodec
from nyala.partition.hashing import buckets_of
from nyala.partition.levels import build_partitions, hash_partition, range_partition
from nyala.partition.model import Partition, PartitionSchema
from nyala.partition.ranges import RangeBound
from nyala.partition.router import Router
from nyala.schema.schema import Schema, build_schema
from nyala.schema.types import ColumnType, from_canonical

TYPES = ["int8", "string", "date", "int64", "decimal(20,2)", "binary"]


def scalars(type: ColumnType) -> st.SearchStrategy[Any]:
    """Draw from few values, so that rows, bounds and predicates often meet."""
    if type.is_text:
        return st.text(st.sampled_from("\0ab"), max_size=2)
    if type.is_variable:
        return st.lists(st.sampled_from(b"\0a\xff"), max_size=2).map(bytes)
    assert type.value_min is not None and type.value_max is not None
    return st.integers(-4, 4) | st.sampled_from([type.value_min, type.value_max])


@st.composite
def tables(draw: st.DrawFn) -> tuple[Schema, PartitionSchema, tuple[Partition, ...]]:
    """Draw a schema with levels."""
    types = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=4))
    names = [f"k{i}" for i in range(len(types))]
    schema = build_schema(dict(zip(names, types, strict=True)) | {"v": "double"}, primary_key=names)
    levels: list[Any] = []
    free = draw(st.permutations(names))
    for _ in range(draw(st.integers(0, 2))):
        count = draw(st.integers(0, len(free)))
        if count:
            levels.append(
                hash_partition(*free[:count], buckets=draw(st.integers(2, 4)), seed=draw(st.integers(41, 43)))
            )
            free = free[count:]
    if draw(st.booleans()):
        columns = draw(st.permutations(names))[: draw(st.integers(1, len(names)))]
        row = st.tuples(*(st.none() | user_values(schema.by_name(name).type) for name in columns))
        bound = st.builds(RangeBound, st.none() | row, st.none() | row, st.booleans(), st.booleans())
        bounds = draw(st.none() | st.lists(bound, max_size=3))
        splits = draw(st.lists(row, max_size=3))
        ranged = range_partition(*columns, bounds=bounds, splits=splits)
        try:
            build_partitions([ranged], schema)
        except InvalidArgumentError:
            ranged = range_partition(*columns)
        levels.append(ranged)
    return (schema, *build_partitions(levels, schema))


def user_values(type: ColumnType) -> st.SearchStrategy[Any]:
    return scalars(type).map(lambda value: from_canonical(type, value))


def rows_of(schema: Schema) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    return st.lists(st.tuples(*(scalars(column.type) for column in schema.key_columns)), max_size=20)


def arrays_of(schema: Schema, rows: list[tuple[Any, ...]]) -> dict[str, pa.Array]:
    return {
        column.name: array_of_canonical(column.type, [row[i] for row in rows])
        for i, column in enumerate(schema.key_columns)
    }


def partition_of(
    row: tuple[Any, ...], schema: Schema, partition_schema: PartitionSchema, partitions: tuple[Partition, ...]
) -> int:
    """Return the partition of a row by testing each partition."""
    arrays = arrays_of(schema, [row])
    buckets = []
    for level in partition_schema.hash_levels:
        columns = partition_schema.hash_columns(level, schema)
        hashed = buckets_of(
            [arrays[c.name] for c in columns], [c.type for c in columns], level.buckets, level.seed
        )
        buckets.append(int(hashed[0]))
    key = b""
    if partition_schema.range_column_ids:
        columns = partition_schema.range_columns(schema)
        values = [row[schema.key_names.index(column.name)] for column in columns]
        key = KeyCodec([column.type for column in columns]).encode_row(values)
    found = [
        i
        for i, partition in enumerate(partitions)
        if partition.hash_buckets == tuple(buckets)
        and (partition.range_lower is None or partition.range_lower <= key)
        and (partition.range_upper is None or key < partition.range_upper)
    ]
    assert len(found) <= 1, "a row belongs to at most one partition (T1)"
    return found[0] if found else -1


@given(tables(), st.data())
def test_t1_random_rows_are_routed_to_their_partition(
    table: tuple[Schema, PartitionSchema, tuple[Partition, ...]], data: st.DataObject
) -> None:
    schema, partition_schema, partitions = table
    rows = data.draw(rows_of(schema))
    router = Router(partition_schema, partitions, schema)
    routed = router.route(arrays_of(schema, rows), len(rows))
    assert routed.dtype == np.int32
    assert routed.tolist() == [partition_of(row, *table) for row in rows]
    one_by_one = [router.route_one(dict(zip(schema.key_names, row, strict=False))) for row in rows]
    assert one_by_one == routed.tolist(), "one row alone is routed as in a batch, so that `get` finds it"
    # Partitions in another order, and with some dropped: as after ranges were added and dropped.
    shuffled = tuple(data.draw(st.permutations(partitions)))[: data.draw(st.integers(0, len(partitions)))]
    again = Router(partition_schema, shuffled, schema).route(arrays_of(schema, rows), len(rows))
    kept = {partition: i for i, partition in enumerate(shuffled)}
    wanted = [kept.get(partitions[i], -1) if i >= 0 else -1 for i in routed.tolist()]
    assert again.tolist() == wanted


METRICS = build_schema(
    {"host": "string", "metric": "string", "time": "int64", "value": "double"},
    primary_key=["host", "metric", "time"],
)


def route(levels: list[Any], rows: list[tuple[Any, ...]]) -> list[int]:
    partition_schema, partitions = build_partitions(levels, METRICS)
    router = Router(partition_schema, partitions, METRICS)
    return router.route(arrays_of(METRICS, rows), len(rows)).tolist()


def test_rows_at_the_bounds() -> None:
    """A lower bound belongs to its range, an upper bound does not."""
    levels = [range_partition("time", bounds=[(0, 10), (10, 20), (30, None)])]
    times = [-1, 0, 9, 10, 19, 20, 29, 30, 2**63 - 1]
    assert route(levels, [("h", "m", time) for time in times]) == [-1, 0, 0, 1, 1, -1, -1, 2, 2]


def test_without_ranges_no_row_has_a_partition_and_without_levels_every_row_has() -> None:
    rows = [("h", "m", 1), ("g", "m", 2)]
    assert route([range_partition("time", bounds=[])], rows) == [-1, -1]
    assert route([hash_partition("host", buckets=2), range_partition("time", bounds=[])], rows) == [-1, -1]
    assert route([], rows) == [0, 0]
    assert route([], []) == []


def test_two_hash_levels_and_a_range() -> None:
    """Twelve combinations of buckets with two ranges each."""
    levels = [
        hash_partition("host", buckets=4, seed=1),
        hash_partition("metric", buckets=3, seed=-5),
        range_partition("time", splits=[0]),
    ]
    partition_schema, partitions = build_partitions(levels, METRICS)
    rows = [(f"host{i}", f"metric{j}", time) for i in range(8) for j in range(8) for time in (-1, 1)]
    routed = Router(partition_schema, partitions, METRICS).route(arrays_of(METRICS, rows), len(rows))
    assert routed.tolist() == [partition_of(row, METRICS, partition_schema, partitions) for row in rows]
    assert set(routed.tolist()) == set(range(24))
