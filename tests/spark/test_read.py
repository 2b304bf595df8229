"""Reading through PySpark: the rows of one snapshot, directly from the files."""

from __future__ import annotations

import datetime as dt
import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, GreaterThan

import nyala
import nyala.spark
from nyala.spark import frames
from nyala.spark.jobs import backup as backup_jobs
from nyala.spark.source import reader

ALL_TYPES = {
    "k": "int64",
    "b": "bool",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "d": "date",
    "t": "timestamp",
    "f": "float",
    "g": "double",
    "n4": "decimal(9,2)",
    "n8": "decimal(18,4)",
    "n16": "decimal(38,10)",
    "v": "varchar(3)",
    "s": "string",
    "y": "binary",
}


def load(spark: SparkSession, store: Path, table: str, **options: object) -> DataFrame:
    return spark.read.format("nyala").options(path=str(store), table=table, **options).load()


def rows(df: DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in df.collect())


@pytest.fixture
def eight(store: Path) -> Path:
    """Create table t with k = 0 … 7 and v = 10 k in four tablets. Half of it is flushed."""
    with nyala.connect(store) as db:
        table = db.create_table(
            "t",
            {"k": "int64", "v": "int64"},
            ["k"],
            [nyala.hash_partition("k", buckets=4)],
        )
        table.insert({"k": [0, 1, 2, 3], "v": [0, 10, 20, 30]})
        table.flush()
        table.insert({"k": [4, 5, 6, 7], "v": [40, 50, 60, 70]})
    return store


def test_every_type_arrives_as_it_was_written(spark: SparkSession, store: Path) -> None:
    """Every type, and NULL, from base data, from deltas and from memory."""
    full = {
        "k": 1,
        "b": True,
        "i8": -128,
        "i16": 32767,
        "i32": -(2**31),
        "d": dt.date(2013, 3, 31),
        "t": dt.datetime(2013, 3, 31, 1, 2, 3, 456789, tzinfo=dt.UTC),
        "f": 0.25,
        "g": -1e300,
        "n4": Decimal("-1234567.89"),
        "n8": Decimal("12345678901234.5678"),
        "n16": Decimal("1234567890123456789012345678.0123456789"),
        "v": "äöü",
        "s": "a\0b",
        "y": b"\xff\0",
    }
    empty = dict.fromkeys(ALL_TYPES) | {"k": 2}
    with nyala.connect(store) as db:
        table = db.create_table("t", ALL_TYPES, ["k"])
        table.insert([full, empty])
        table.flush()
        table.insert([full | {"k": 3}, empty | {"k": 4}])
        table.update([{"k": 1, "s": "new"}, {"k": 3, "s": None}])
        expected = table.scan(order_by_key=True).to_arrow()
        found = load(spark, store, "t").orderBy("k").toArrow()
    assert found.column("t").cast(pa.timestamp("us", tz="UTC")).equals(expected.column("t"))
    for name in set(ALL_TYPES) - {"t"}:
        assert found.column(name).to_pylist() == expected.column(name).to_pylist(), name


def test_the_key_is_not_nullable_in_spark(spark: SparkSession, eight: Path) -> None:
    """The schema and the batches have the same nullable flags."""
    schema = load(spark, eight, "t").schema
    assert [(f.name, f.dataType.simpleString(), f.nullable) for f in schema.fields] == [
        ("k", "bigint", False),
        ("v", "bigint", True),
    ]


def test_the_time_zone_of_the_session_changes_no_timestamp(spark: SparkSession, store: Path) -> None:
    with nyala.connect(store) as db:
        db.create_table("t", {"t": "timestamp"}, ["t"]).insert({"t": ["2013-03-10T07:30:00Z"]})
    kept = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/New_York")
        assert load(spark, store, "t").selectExpr("unix_micros(t)").first()[0] == 1362900600000000
        assert load(spark, store, "t").where("t = '2013-03-10T03:30:00'").count() == 1
    finally:
        spark.conf.set("spark.sql.session.timeZone", kept)


def test_columns_where_and_a_given_schema(spark: SparkSession, eight: Path) -> None:
    """`where` may use columns that are not read."""
    assert rows(load(spark, eight, "t", columns="v", where="k >= 6")) == [(60,), (70,)]
    assert load(spark, eight, "t", columns="v,k").columns == ["v", "k"]
    given = spark.read.format("nyala").options(path=str(eight), table="t").schema("v bigint, k bigint").load()
    assert rows(given.where("k < 2")) == [(0, 0), (10, 1)]
    assert load(spark, eight, "t", where="k < 0").count() == 0


def test_an_empty_table_and_one_without_any_partition(spark: SparkSession, store: Path) -> None:
    with nyala.connect(store) as db:
        db.create_table("none", {"k": "int64"}, ["k"])
        db.create_table("bare", {"k": "int64"}, ["k"], [nyala.range_partition("k", bounds=[])])
    assert load(spark, store, "none").collect() == []
    assert load(spark, store, "bare").count() == 0


def test_a_dataframe_keeps_its_snapshot(spark: SparkSession, eight: Path) -> None:
    """All reads of a DataFrame see the moment of load(), after later writes, flushes and a close."""
    with nyala.connect(eight) as db:
        before = load(spark, eight, "t")
        db["t"].delete({"k": [0, 1]})
        assert before.count() == 8
        db["t"].upsert({"k": [7, 8], "v": [-7, -8]})
        db["t"].flush()
        assert rows(before) == [(k, 10 * k) for k in range(8)]
        assert rows(load(spark, eight, "t")) == [(k, 10 * k) for k in range(2, 7)] + [(7, -7), (8, -8)]
    assert before.count() == 8
    assert load(spark, eight, "t").count() == 7


def test_as_of_any_moment(spark: SparkSession, eight: Path) -> None:
    """`at` may be a timestamp or ISO text."""
    with nyala.connect(eight) as db:
        then = db.now()
        missing = db["t"].delete({"k": [0, 1, 2, 3]})
        assert load(spark, eight, "t", at=then).count() == 8
        assert load(spark, eight, "t", at=missing.timestamp).count() == 4
        assert load(spark, eight, "t", at=missing.timestamp - 1).count() == 8
        assert load(spark, eight, "t", at=nyala.to_datetime(missing.timestamp).isoformat()).count() == 4


def test_tablets_are_packed_into_few_partitions(spark: SparkSession, store: Path) -> None:
    """Each Python task costs 50 ms."""
    with nyala.connect(store) as db:
        table = db.create_table("t", {"k": "int64"}, ["k"], [nyala.hash_partition("k", buckets=64)])
        table.insert({"k": list(range(1000))})
    df = load(spark, store, "t", partitions=3)
    assert df.rdd.getNumPartitions() == 3
    assert df.selectExpr("count(*)", "sum(k)").first() == (1000, 499500)
    assert load(spark, store, "t").rdd.getNumPartitions() == 1, "a thousand rows are worth one task"
    assert load(spark, store, "t", partitions=8, where="k = 5").rdd.getNumPartitions() == 1


# A filter of one use must not affect another use. Each case uses a DataFrame with k = 0 … 7 and v =
# 10 k in several ways: (function, expected result).
def reuse(spark: SparkSession, df: DataFrame) -> tuple[object, object]:
    return (df.where("k > 5").count(), df.count(), df.where("k > 1").count()), (2, 8, 6)


def union(spark: SparkSession, df: DataFrame) -> tuple[object, object]:
    return rows(df.where("k = 1").union(df.where("k = 2"))), [(1, 10), (2, 20)]


def view(spark: SparkSession, df: DataFrame) -> tuple[object, object]:
    df.createOrReplaceTempView("leak")
    texts = [f"SELECT count(*) FROM leak {where}" for where in ("WHERE k = 1", "WHERE k = 2", "")]
    return [spark.sql(text).first()[0] for text in texts], [1, 1, 8]


def cte(spark: SparkSession, df: DataFrame) -> tuple[object, object]:
    df.createOrReplaceTempView("leak")
    counts = ", ".join(f"(SELECT count(*) FROM c {where})" for where in ("WHERE k = 1", "WHERE k > 5", ""))
    return tuple(spark.sql(f"WITH c AS (SELECT * FROM leak) SELECT {counts}").first()), (1, 2, 8)


def self_join(spark: SparkSession, df: DataFrame) -> tuple[object, object]:
    df.createOrReplaceTempView("leak")
    text = "SELECT count(*) FROM leak a JOIN leak b ON a.k + 1 = b.k WHERE a.k = 3 AND b.k = 4"
    return spark.sql(text).first()[0], 1


LEAKS = [reuse, union, view, cte, self_join]


class LeakyReader(DataSourceReader):
    """A reader that applies Spark's filters in the source, as Spark's documentation suggests."""

    def __init__(self) -> None:
        self.filters: list[EqualTo | GreaterThan] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for given in filters:
            if isinstance(given, EqualTo | GreaterThan):
                self.filters.append(given)
            yield given

    def read(self, partition: object) -> Iterator[tuple[int, int]]:
        for k in range(8):
            if all(k == f.value if isinstance(f, EqualTo) else k > f.value for f in self.filters):
                yield k, 10 * k


class LeakySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "leaky"

    def schema(self) -> str:
        return "k bigint, v bigint"

    def reader(self, schema: object) -> LeakyReader:
        return LeakyReader()


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    """Let Spark push filters into Python data sources."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.usefixtures("pushdown")
@pytest.mark.parametrize("case", LEAKS)
def test_no_filter_affects_other_uses(
    spark: SparkSession, eight: Path, case: Callable[[SparkSession, DataFrame], tuple[object, object]]
) -> None:
    """Reuse, union, view, CTE and self-join: each use has its own rows."""
    found, right = case(spark, load(spark, eight, "t"))
    assert found == right


@pytest.mark.usefixtures("pushdown")
@pytest.mark.skipif(pyspark.__version__ >= "5", reason="Spark keeps filters apart")
@pytest.mark.long
def test_these_cases_find_the_error_of_pushed_filters(spark: SparkSession) -> None:
    """A reader with `pushFilters` gives wrong rows in each case, so Nyala's reader has none."""
    spark.dataSource.register(LeakySource)
    caught = []
    for case in LEAKS:
        found, right = case(spark, spark.read.format("leaky").load())
        if found != right:
            caught.append(case.__name__)
    assert caught == [case.__name__ for case in LEAKS]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "u"}, "TableNotFoundError"),
        ({"columns": "k,w"}, "ColumnNotFoundError"),
        ({"where": "w = 1"}, "ColumnNotFoundError"),
        ({"where": "k = "}, "InvalidArgumentError"),
        ({"at": "yesterday"}, "InvalidArgumentError"),
        ({"path": "/nowhere/at/all"}, "StorageError"),
        ({"colums": "k"}, "did you mean 'columns'"),
    ],
)
def test_wrong_options_are_errors_of_load(
    spark: SparkSession, eight: Path, options: dict[str, str], message: str
) -> None:
    """`load()` raises the error before any job runs."""
    with pytest.raises(Exception, match=message):
        spark.read.format("nyala").options(**{"path": str(eight), "table": "t", **options}).load()


def test_a_read_after_the_lease_has_expired_is_an_error(spark: SparkSession, eight: Path) -> None:
    """The read never fails because of missing files, and never returns other rows."""
    with nyala.connect(eight) as db:
        df = load(spark, eight, "t", lease=4)
        assert df.count() == 8
        time.sleep(4.2)
        with pytest.raises(Exception, match=r"HistoryExpiredError.*load again"):
            df.count()
        assert load(spark, eight, "t").count() == 8
        assert db["t"].scan().count() == 8


def test_rows_in_memory_are_sent_by_a_file(
    spark: SparkSession, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two megabytes of rows in memory are not pickled into the plan, for a read, a scan and a
    backup.
    """
    with nyala.connect(store, maintenance=False) as db:
        table = db.create_table(
            "t", {"k": "int64", "v": "string"}, ["k"], [nyala.hash_partition("k", buckets=4)]
        )
        table.insert({"k": list(range(20_000)), "v": [f"{k:0100}" for k in range(20_000)]})
        df = load(spark, store, "t")
        assert df.selectExpr("count(*)", "sum(k)", "sum(cast(v AS long))").first() == (
            20_000,
            199990000,
            199990000,
        )
        leases = store / "leases"
        assert [path.stat().st_size > 1 << 20 for path in leases.rglob("*.token")] == [True]
        sizes: list[int] = []

        def placed(*given: object, **named: bool) -> object:
            made = reader.store_tokens(*given, **named)
            sizes.append(len(pickle.dumps(made)))
            return made

        monkeypatch.setattr(frames, "store_tokens", placed)
        monkeypatch.setattr(backup_jobs, "store_tokens", placed)
        monkeypatch.setattr(frames, "LOCAL_MAX_ROWS", -1)
        assert table.scan().to_spark(spark).agg({"k": "sum"}).first() == (199990000,)
        assert nyala.spark.backup(spark, table, tmp_path / "backups").rows == 20_000
        assert len(sizes) == 2 and 1 < max(sizes) <= 1 << 20
        for lease in leases.glob("remote-*"):
            if lease.is_file():  # as if the lease had expired
                lease.unlink()
        db._writer().collect_garbage()
        assert list(leases.rglob("*.token")) == []
        with pytest.raises(Exception, match=r"HistoryExpiredError.*load again"):
            df.count()


def test_a_scan_to_spark_has_its_rows_and_its_snapshot(spark: SparkSession, eight: Path) -> None:
    """`scan.to_spark(spark)` keeps the scan's columns, rows and moment after later writes."""
    with nyala.connect(eight) as db:
        df = db["t"].scan(columns=["v", "k"], where="k >= 2").to_spark(spark)
        few = db["t"].scan(limit=3).to_spark(spark)
        none = db["t"].scan(where="k > 99").to_spark(spark)
        with db["t"].alter() as a:
            a.add_column("n", "int8", default=5)
        db["t"].update({"k": [0], "n": [6]})
        wide = (
            db["t"].scan(columns=pa.schema({"n": pa.int64(), "k": pa.int64()}), where="k < 2").to_spark(spark)
        )
        db["t"].delete(where="TRUE")
        db["t"].flush()
    assert df.columns == ["v", "k"]
    assert rows(df) == [(10 * k, k) for k in range(2, 8)]
    assert (few.count(), none.count()) == (3, 0)
    assert wide.dtypes == [("n", "bigint"), ("k", "bigint")] and rows(wide) == [(5, 1), (6, 0)]
