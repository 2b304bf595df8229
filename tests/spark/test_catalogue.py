"""Tables of Spark's catalogue: what `CREATE TABLE … USING nyala` stores, and what it loses in other
forms.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import nyala
import nyala.spark
from nyala.errors import InvalidArgumentError, SchemaError


@pytest.fixture
def place(spark: SparkSession, store: Path) -> Iterator[str]:
    """Return the options of a table with k = 0, 1. Spark's table `made` is dropped at the end."""
    with nyala.connect(store, maintenance=False) as db:
        db.create_table("t", {"k": "int64", "v": "int64"}, "k").insert({"k": [0, 1], "v": [0, 1]})
    yield f"`path` '{store}', `table` 't'"
    spark.sql("DROP TABLE IF EXISTS made")


def rows(store: Path) -> list[int]:
    with nyala.connect(store, read_only=True) as db:
        return sorted(db["t"].to_arrow()["k"].to_pylist())


def test_a_table_with_a_list_of_columns_is_refused_at_its_use(
    spark: SparkSession, store: Path, place: str
) -> None:
    """Spark creates it without the data source, and loses path and table. No other table is read or
    written.
    """
    spark.sql(f"CREATE TABLE made (k BIGINT, v BIGINT) USING nyala OPTIONS ({place})")
    messages = r"needs .option.*CREATE TABLE"
    for act in (
        lambda: spark.sql("SELECT * FROM made").collect(),
        lambda: spark.table("made").collect(),
        lambda: nyala.spark.sql(spark, "SELECT * FROM made").collect(),
        lambda: spark.sql("INSERT INTO made VALUES (5, 5)"),
    ):
        with pytest.raises(InvalidArgumentError, match=messages), nyala.spark.plain_errors():
            act()
    given = place.replace("path` ", "path`=").replace("table` ", "table`=")
    assert spark.sql(f"SELECT sum(k) FROM made WITH ({given})").first() == (1,)
    spark.sql(f"INSERT INTO made WITH ({given}) VALUES (7, 7)")
    assert rows(store) == [0, 1, 7]


def test_create_table_as_select_is_refused_and_leaves_nothing(
    spark: SparkSession, store: Path, place: str
) -> None:
    """The statement leaves neither rows in a table nor an entry in Spark's catalogue."""
    text = f"CREATE TABLE IF NOT EXISTS made USING nyala OPTIONS ({place}) AS SELECT 9L AS k, 9L AS v"
    with pytest.raises(
        InvalidArgumentError, match=r"instead of CREATE TABLE … AS SELECT, create the table with"
    ):
        with nyala.spark.plain_errors():
            spark.sql(text)
    assert not spark.catalog.tableExists("made") and rows(store) == [0, 1]
    spark.sql(f"CREATE TABLE made USING nyala OPTIONS ({place})")
    spark.sql("INSERT INTO made VALUES (9, 9)")
    assert rows(store) == [0, 1, 9]


def test_tables_in_unusual_syntax(spark: SparkSession, store: Path, place: str) -> None:
    """Pipes, FROM first, hints, ranges and VALUES give Spark's result. `TABLE t` is not supported."""
    spark.sql(f"CREATE TABLE made USING nyala OPTIONS ({place})")
    for text, expected in (
        ("FROM t |> WHERE k > 0 |> SELECT v", [(1,)]),
        ("FROM t SELECT v WHERE k > 0", [(1,)]),
        ("SELECT /*+ BROADCAST(t) */ count(*) FROM t JOIN VALUES (1), (2) AS x(a) ON x.a = t.k", [(1,)]),
        ("SELECT count(*) FROM t CROSS JOIN range(3)", [(6,)]),
        ("SELECT count(*) FROM (TABLE made)", [(2,)]),
    ):
        assert [tuple(row) for row in nyala.spark.sql(spark, text, store=store).collect()] == expected, text
    with pytest.raises(nyala.TableNotFoundError, match=r"write SELECT \* FROM t instead of TABLE t"):
        nyala.spark.sql(spark, "SELECT count(*) FROM (TABLE t)", store=store)


def test_statements_that_spark_would_silently_ignore_are_refused(
    spark: SparkSession, store: Path, place: str
) -> None:
    """An altered column is found at the next use, NULL never replaces a default, and no option is
    ignored.
    """
    with nyala.connect(store, maintenance=False) as db, db["t"].alter() as altered:
        altered.add_column("d", "int64", default=7)
    spark.sql(f"CREATE TABLE made USING nyala OPTIONS ({place}, partitions '1')")
    given = place.replace("path` ", "path`=").replace("table` ", "table`=")
    for text in (
        "INSERT INTO made (k, v) VALUES (5, 5)",
        "INSERT INTO made VALUES (5, 5, NULL)",
        f"INSERT INTO made WITH ({given}) (k, v) VALUES (5, 5)",
    ):
        with pytest.raises(InvalidArgumentError, match="column 'd', which has a default"):
            with nyala.spark.plain_errors():
                spark.sql(text)
    spark.sql("INSERT INTO made VALUES (2, 2, 2)")
    frame = spark.sql("SELECT 3L AS k, 3L AS v, CAST(NULL AS BIGINT) AS d")
    writing = frame.write.format("nyala").options(path=store, table="t").mode("append")
    writing.save()
    assert spark.sql("SELECT k, d FROM made WHERE k > 1 ORDER BY k").collect() == [(2, 2), (3, None)]
    with pytest.raises(InvalidArgumentError, match="'transaction' is only for df.writeStream"):
        with nyala.spark.plain_errors():
            writing.option("transaction", "x").save()
    spark.sql("ALTER TABLE made ADD COLUMNS (z BIGINT)")
    for act in (
        lambda: spark.sql("SELECT k FROM made").collect(),
        lambda: nyala.spark.sql(spark, "SELECT k FROM made").collect(),
        lambda: spark.sql("INSERT INTO made VALUES (9, 9, 9, 9)"),
    ):
        with pytest.raises(SchemaError, match="ALTER TABLE in Spark does not change the store"):
            with nyala.spark.plain_errors():
                act()
    spark.sql("DROP TABLE made")
    assert rows(store) == [0, 1, 2, 3]
