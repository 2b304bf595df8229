"""Writing through PySpark: every operation is one atomic batch per job, committed once or not at
all.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import nyala
import nyala.spark

Rows = list[tuple[object, ...]]


def save(df: DataFrame, store: Path, **options: object) -> None:
    df.write.format("nyala").options(path=str(store), table="t", **options).mode("append").save()


def content(store: Path) -> Rows:
    """Return the rows of table t, as a reader process sees them."""
    with nyala.connect(store, read_only=True) as db:
        return [tuple(row.values()) for row in db["t"].scan(order_by_key=True).to_arrow().to_pylist()]


def staged(store: Path) -> list[Path]:
    return [path for path in (store / "staging").rglob("*") if path.is_file()]


@pytest.fixture(params=["the driver has it open", "nobody has it open"], autouse=True)
def three(store: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """Create table t (k, v, w) with k = 1, 2, 3. Spark's commit goes to this process, or becomes
    the writer itself.
    """
    with nyala.connect(store) as db:
        table = db.create_table("t", {"k": "int64", "v": "int64", "w": "string"}, ["k"])
        table.insert({"k": [1, 2, 3], "v": [10, 20, 30], "w": ["a", "b", "c"]})
        if request.param == "the driver has it open":
            yield
    if request.param == "nobody has it open":
        yield


OPERATIONS = {
    "insert": ([(4, 40, "d")], [(1, 10, "a"), (2, 20, "b"), (3, 30, "c"), (4, 40, "d")]),
    "insert-ignore": ([(3, 0, "x"), (4, 40, "d")], [(1, 10, "a"), (2, 20, "b"), (3, 30, "c"), (4, 40, "d")]),
    "upsert": ([(3, 0, "x"), (4, 40, None)], [(1, 10, "a"), (2, 20, "b"), (3, 0, "x"), (4, 40, None)]),
    "update": ([(3, None, "x")], [(1, 10, "a"), (2, 20, "b"), (3, None, "x")]),
    "update-ignore": ([(3, 0, "x"), (4, 40, "d")], [(1, 10, "a"), (2, 20, "b"), (3, 0, "x")]),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operation(spark: SparkSession, store: Path, operation: str) -> None:
    """Each operation does the same as the method of `Table`."""
    data, after = OPERATIONS[operation]
    save(spark.createDataFrame(data, "k bigint, v bigint, w string"), store, operation=operation)
    assert content(store) == after
    assert staged(store) == []


@pytest.mark.parametrize(("operation", "keys"), [("delete", [2, 3]), ("delete-ignore", [2, 3, 9])])
def test_delete_takes_keys(spark: SparkSession, store: Path, operation: str, keys: list[int]) -> None:
    """The columns of the key are enough."""
    save(spark.createDataFrame([(k,) for k in keys], "k bigint"), store, operation=operation)
    assert content(store) == [(1, 10, "a")]


def test_an_upsert_of_some_columns_keeps_the_others(spark: SparkSession, store: Path) -> None:
    """The order of columns does not matter."""
    save(spark.createDataFrame([("x", 2), ("y", 4)], "w string, k bigint"), store)
    assert content(store) == [(1, 10, "a"), (2, 20, "x"), (3, 30, "c"), (4, None, "y")]


@pytest.mark.parametrize(
    ("operation", "data", "error"),
    [
        ("insert", [(4, 40, "d"), (3, 0, "x")], "DuplicateKeyError"),
        ("update", [(3, 0, "x"), (4, 40, "d")], "KeyNotFoundError"),
        ("upsert", [(4, 40, "d"), (5, 2**40, "x" * 70_000)], "InvalidValueError"),
    ],
)
def test_a_failing_row_rejects_the_batch(
    spark: SparkSession, store: Path, operation: str, data: Rows, error: str
) -> None:
    """With errors="raise", the default, nothing is written and no file is left."""
    before = content(store)
    with pytest.raises(Exception, match=error):
        save(spark.createDataFrame(data, "k bigint, v bigint, w string"), store, operation=operation)
    assert content(store) == before
    assert staged(store) == []


def test_collected_errors_are_returned(spark: SparkSession, store: Path) -> None:
    """With errors="collect", the good rows are written."""
    df = spark.createDataFrame([(3, 0, "x"), (4, 40, "d"), (1, 0, "y")], "k bigint, v bigint, w string")
    result = nyala.spark.write(df.coalesce(1), store, "t", operation="insert", errors="collect")
    assert (result.inserted, result.updated, result.ignored) == (1, 0, 0)
    assert result.errors.select(["row", "code", "k"]).to_pylist() == [
        {"row": 0, "code": "already-present", "k": 3},
        {"row": 2, "code": "already-present", "k": 1},
    ]
    assert content(store)[-1] == (4, 40, "d")
    assert nyala.spark.write(df, store, "t").errors.num_rows == 0


def test_an_empty_dataframe_writes_nothing(spark: SparkSession, store: Path) -> None:
    save(spark.createDataFrame([], "k bigint, v bigint, w string"), store)
    assert len(content(store)) == 3


def test_a_failing_task_leaves_nothing(spark: SparkSession, store: Path) -> None:
    """The rows of the other tasks are not committed, and their files are removed."""
    df = spark.range(0, 100, numPartitions=4).select(
        F.col("id").alias("k"),
        F.when(F.col("id") == 99, F.raise_error(F.lit("boom"))).otherwise(1).alias("v"),
    )
    with pytest.raises(Exception, match="boom"):
        save(df.select("k", F.col("v").cast("bigint")), store)
    assert len(content(store)) == 3
    assert staged(store) == []


def test_overwrite_replaces_the_content(spark: SparkSession, store: Path) -> None:
    """With mode("overwrite"), the table has only the written rows. Missing columns get their
    defaults.
    """
    df = spark.createDataFrame([(2, 20), (4, 40)], "k bigint, v bigint")
    df.write.format("nyala").options(path=str(store), table="t").mode("overwrite").save()
    assert content(store) == [(2, 20, None), (4, 40, None)]


@pytest.mark.parametrize(
    ("options", "schema", "message"),
    [
        ({"table": "u"}, "k bigint", "TableNotFoundError"),
        ({}, "k bigint, z bigint", "ColumnNotFoundError: table 't': "),
        ({}, "v bigint", "missing-column|InvalidValueError|SchemaError"),
        ({}, "k string", "SchemaError: table 't': column 'k': "),
        ({"operation": "merge"}, "k bigint", "InvalidArgumentError"),
        ({"path": "/nowhere/at/all"}, "k bigint", "StorageError"),
    ],
)
def test_wrong_writes_are_errors(
    spark: SparkSession, store: Path, options: dict[str, str], schema: str, message: str
) -> None:
    """The table does not change."""
    df = spark.createDataFrame([tuple(1 if "bigint" in c else "x" for c in schema.split(","))], schema)
    with pytest.raises(Exception, match=message):
        df.write.format("nyala").options(**{"path": str(store), "table": "t", **options}).mode(
            "append"
        ).save()
    assert len(content(store)) == 3
    assert staged(store) == []


@pytest.mark.parametrize("three", ["nobody has it open"], indirect=True)
def test_messages_tags_and_the_values_before(spark: SparkSession, store: Path) -> None:
    """Commits with messages, tags as moments, and rows before a change in a batch of the feed."""
    reader = spark.read.format("nyala").options(path=str(store), table="t")
    columns = "k bigint, v bigint, w string"
    save(spark.createDataFrame([(1, 11, "a")], columns), store, operation="upsert", message="a save")
    with nyala.connect(store) as db:
        db.tag("before", at=db["t"].commits()[0])
        new = spark.createDataFrame([(4, 40, "d")], columns)
        nyala.spark.write(new, db, "t", operation="insert", message="a write")
        frame = spark.createDataFrame([(5, 50, "e")], columns)
        nyala.spark.load(frame, db["t"], tasks=2, message="a load")
        nyala.spark.upsert(frame, db["t"], message="an upsert")
        with pytest.raises(nyala.InvalidArgumentError, match="message is empty"):
            nyala.spark.load(frame, db["t"], message="")
    with nyala.connect(store, read_only=True) as db:
        output = [commit.message for commit in db.commits()]
        assert output == [None, "a save", "a write", "a load", "an upsert"]
    assert sorted(row.v for row in reader.option("at", "before").load().collect()) == [10, 20, 30]
    with pytest.raises(Exception, match=r"did you mean 'before'\?"):
        reader.option("at", "befor").load().collect()
    changes = spark.read.format("nyala").options(path=str(store), table="t", changes="true")
    found = changes.options(startingTimestamp="before", before="true").load().collect()
    rows = sorted((row.k, row.v, row["_change_type"]) for row in found)
    assert rows == [
        (1, 10, "update_preimage"), (1, 11, "update_postimage"), (4, 40, "insert"), (5, 50, "insert"),
    ]  # fmt: skip
    assert {type(row["_commit_timestamp"]) for row in found} == {dt.datetime}
