"""Nyala's hash buckets are those of Spark, for every type of key.

tests/unit/partition/test_hashing.py has values of Spark, so that the hash is also tested without
Java.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from nyala.keys.arrow_memory import array_of_canonical
from nyala.partition.hashing import buckets_of, spark_hash
from nyala.schema.types import ColumnType, parse_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 2000
TYPES = {
    f"c{i}": parse_type(name)
    for i, name in enumerate(
        [
            *("int8", "int16", "int32", "int64", "date", "timestamp"),
            *(
                "decimal(5,2)",
                "decimal(9,0)",
                "decimal(10,10)",
                "decimal(18,3)",
                "decimal(19,0)",
                "decimal(38,10)",
            ),
            *("varchar(9)", "string", "binary"),
        ]
    )
}


def values(type: ColumnType, random: random.Random) -> list[Any]:
    """Draw small values, extremes, powers of 256 and their neighbours, and others."""
    if type.is_text:
        letters = "ab \0\x7fé€\u00ff\U0001f40e"
        return ["", *("".join(random.choices(letters, k=random.randrange(12))) for _ in range(ROWS - 1))]
    if type.is_variable:
        return [b"", *(random.randbytes(random.randrange(20)) for _ in range(ROWS - 1))]
    least, most = type.value_min, type.value_max
    assert least is not None and most is not None
    edges = [
        least,
        most,
        0,
        -1,
        1,
        *(s * 256**k // 2 + d for k in range(16) for s in (1, -1) for d in (-1, 0, 1)),
    ]
    edges = [value for value in edges if least <= value <= most]
    others = [random.randint(least, most) >> random.randrange(128) for _ in range(ROWS - len(edges))]
    return edges + [max(least, value) for value in others]


@pytest.fixture(scope="module")
def table() -> pa.Table:
    source = random.Random(20130101)
    return pa.table({name: array_of_canonical(type, values(type, source)) for name, type in TYPES.items()})


@pytest.fixture(scope="module")
def frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    return spark.createDataFrame(table)


def arrays(table: pa.Table, names: list[str]) -> list[pa.Array]:
    return [table[name].combine_chunks() for name in names]


def test_hash_equals_sparks_for_every_key_type_and_for_composites(frame: DataFrame, table: pa.Table) -> None:
    """Otherwise a load would put rows into tablets in which no look-up finds them."""
    from pyspark.sql import functions as F

    source = random.Random(7)
    requested = [[name] for name in TYPES]
    requested += [source.sample(list(TYPES), source.randint(2, 5)) for _ in range(40)]
    answer = frame.select(*(F.hash(*names).alias(f"h{i}") for i, names in enumerate(requested))).toArrow()
    for i, names in enumerate(requested):
        actual = spark_hash(arrays(table, names), [TYPES[name] for name in names])
        sparks = answer[f"h{i}"].to_numpy()
        assert np.array_equal(actual, sparks), [str(TYPES[name]) for name in names]


def test_bucket_is_sparks_partition(frame: DataFrame, table: pa.Table) -> None:
    """`repartition(buckets, columns)` puts the rows of bucket b into partition b."""
    from pyspark.sql import functions as F

    names = ["c3", "c13", "c10"]
    rows = frame.withColumn("row", F.monotonically_increasing_id())
    moved = rows.repartition(7, *names).select(
        *names, F.spark_partition_id().alias("partition"), F.pmod(F.hash(*names), F.lit(7)).alias("bucket")
    )
    answer = moved.toArrow()
    actual = buckets_of(arrays(answer.cast(_plain(answer)), names), [TYPES[name] for name in names], 7)
    assert answer.num_rows == ROWS and set(actual.tolist()) == set(range(7))
    assert np.array_equal(actual, answer["partition"].to_numpy())
    assert np.array_equal(actual, answer["bucket"].to_numpy())


def _plain(answer: pa.Table) -> pa.Schema:
    """Return Spark's result with the types of Nyala."""
    return pa.schema([(f.name, TYPES[f.name].arrow if f.name in TYPES else f.type) for f in answer.schema])
