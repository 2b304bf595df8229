"""SQL: Spark's own over tables of its catalogue, and `nyala.spark.sql`, which reads only what a
statement needs.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from tests.sampled import every_nth

import nyala
import nyala.spark
from nyala.spark import frames, internals
from nyala.spark.frames import leased_frame
from nyala.spark.statements import query


@pytest.fixture
def db(store: Path) -> Iterator[nyala.Database]:
    """Create the tables t (k, v, w) and u (k, x)."""
    with nyala.connect(store) as opened:
        t = opened.create_table(
            "t", {"k": "int64", "v": "int64", "w": "string"}, ["k"], [nyala.hash_partition("k", buckets=2)]
        )
        t.insert({"k": [1, 2, 3], "v": [10, 20, 30], "w": ["a", "b", "c"]})
        opened.create_table("u", {"k": "int64", "x": "int64"}, ["k"]).insert({"k": [1, 2], "x": [1, 0]})
        yield opened


@pytest.fixture
def catalogued(spark: SparkSession, db: nyala.Database) -> Iterator[str]:
    """Create table t in Spark's catalogue."""
    spark.sql(f"CREATE TABLE t_in_spark USING nyala OPTIONS (path '{db.path}', table 't')")
    yield "t_in_spark"
    spark.sql("DROP TABLE t_in_spark")


def answer(df) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in df.collect())


def test_a_table_of_sparks_catalogue(spark: SparkSession, db: nyala.Database, catalogued: str) -> None:
    """CREATE TABLE … USING nyala: each statement reads the present rows; INSERT, DELETE, and reads
    of a moment.
    """
    before = db.now()
    assert answer(spark.sql("SELECT k, w FROM t_in_spark WHERE v > 10")) == [(2, "b"), (3, "c")]
    spark.sql("INSERT INTO t_in_spark VALUES (4, 40, 'd'), (1, 11, 'A')")
    assert answer(spark.sql("SELECT k, v FROM t_in_spark")) == [(1, 11), (2, 20), (3, 30), (4, 40)]
    spark.sql("INSERT INTO t_in_spark WITH (`operation`='delete') (k) SELECT k FROM t_in_spark WHERE v > 25")
    assert answer(spark.sql("SELECT k FROM t_in_spark")) == [(1,), (2,)]
    assert answer(spark.sql(f"SELECT k FROM t_in_spark WITH (`at`='{before}')")) == [(1,), (2,), (3,)]
    joined = "SELECT count(*) FROM t_in_spark a JOIN t_in_spark b ON a.k + 1 = b.k WHERE a.k = 1 AND b.k = 2"
    assert answer(spark.sql(joined)) == [(1,)]
    spark.sql("INSERT OVERWRITE t_in_spark VALUES (7, 70, 'g')")
    assert db["t"].to_arrow().to_pylist() == [{"k": 7, "v": 70, "w": "g"}]


def test_an_insert_without_a_known_target_is_refused(
    spark: SparkSession, db: nyala.Database, catalogued: str
) -> None:
    """Rule S3: if Spark does not pass the target, the rows do not go to the table that was read.
    WITH names the target.
    """
    t2 = db.create_table("t2", db["t"].schema, ["k"])
    spark.sql(f"CREATE TABLE t2_in_spark USING nyala OPTIONS (path '{db.path}', table 't2')")
    plain = spark.createDataFrame([(1, 10, "a")], StructType.fromDDL("k bigint NOT NULL, v bigint, w string"))
    plain.createOrReplaceTempView("plain")
    before = db["t"].to_arrow()
    target = f"`path`='{db.path}', `table`='t2'"
    try:
        for text in (
            "INSERT INTO t2_in_spark SELECT * FROM t_in_spark",
            "INSERT OVERWRITE t2_in_spark SELECT k, v + 1 AS v, w FROM t_in_spark",
            "INSERT INTO t2_in_spark SELECT * FROM plain",
        ):
            with pytest.raises(Exception, match=r"needs .option[^\n]*INSERT INTO t WITH"):
                spark.sql(text)
            assert db["t"].to_arrow().equals(before) and t2.count() == 0, text
        spark.sql(f"INSERT INTO t2_in_spark WITH ({target}) SELECT * FROM t_in_spark")
        # Spark adapts columns to the target, and then passes the target's metadata.
        spark.sql("INSERT INTO t2_in_spark SELECT k + 10, v, w FROM t_in_spark")
        assert sorted(t2.to_arrow().column("k").to_pylist()) == [1, 2, 3, 11, 12, 13]
        spark.sql(
            f"INSERT INTO t2_in_spark WITH (`operation`='delete', {target}) (k) SELECT k FROM t_in_spark"
        )
        assert db["t"].to_arrow().equals(before) and t2.count() == 3
    finally:
        spark.sql("DROP TABLE t2_in_spark")


def test_write_to_and_to_table_without_a_known_target_are_refused(
    spark: SparkSession, db: nyala.Database, catalogued: str, tmp_path: Path
) -> None:
    """Rule S3: `writeTo` and `toTable` do not pass the target's name to the data source."""
    t2 = db.create_table("t2", db["t"].schema, ["k"])
    spark.sql(f"CREATE TABLE t2_in_spark USING nyala OPTIONS (path '{db.path}', table 't2')")
    before = db["t"].scan(order_by_key=True).to_arrow()
    fed = spark.readStream.format("nyala").options(path=str(db.path), table="t", changes="true")

    def streamed(**options: str) -> None:
        writer = fed.load().select("k", "v", "w").writeStream.trigger(availableNow=True)
        writer = writer.options(checkpointLocation=str(tmp_path / f"at{len(options)}"), **options)
        writer.toTable("t2_in_spark").awaitTermination(60)

    try:
        with pytest.raises(Exception, match=r"format 'nyala' needs"):
            spark.table("t_in_spark").writeTo("t2_in_spark").append()
        assert db["t"].scan(order_by_key=True).to_arrow().equals(before) and t2.count() == 0
        named = {"path": str(db.path), "table": "t2"}
        spark.table("t_in_spark").writeTo("t2_in_spark").options(**named).append()
        assert t2.to_arrow().equals(before)
        t2.delete(where="k > 0")
        with pytest.raises(Exception, match=r"format 'nyala' needs"):
            streamed()
        assert db["t"].scan(order_by_key=True).to_arrow().equals(before) and t2.count() == 0
        streamed(**named)
        assert t2.to_arrow().equals(before)
    finally:
        spark.sql("DROP TABLE t2_in_spark")


def test_a_statement_reads_only_what_it_needs(
    spark: SparkSession, db: nyala.Database, catalogued: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each use of a table is a scan of the needed columns and rows. The result is Spark's."""
    scans = []

    def spied(of: SparkSession, scan, lease_s, **rest):
        scans.append((scan.name, scan.schema.names, str(scan._spec.predicate)))
        return leased_frame(of, scan, lease_s, **rest)

    monkeypatch.setattr(query, "leased_frame", spied)
    before = db.now()
    db["t"].upsert({"k": [9], "v": [90], "w": ["z"]})
    text = "SELECT a.w, '{x}' FROM t AS a LEFT JOIN u ON a.k = u.k AND u.x = 1 WHERE a.v < 25 AND u.k IS NULL"
    assert answer(nyala.spark.sql(spark, text, store=db.path)) == [("b", "{x}")]
    assert scans == [("t", ["k", "w"], "v < 25"), ("u", ["k", "x"], "x = 1")]
    assert answer(nyala.spark.sql(spark, "SELECT count(*) FROM t", store=db.path, at=before)) == [(3,)]
    scans.clear()
    assert answer(nyala.spark.sql(spark, "SELECT max(v) FROM t_in_spark WHERE k BETWEEN 2 AND 3")) == [(30,)]
    assert scans == [("t", ["v"], "k >= 2 AND k <= 3")]
    assert answer(nyala.spark.sql(spark, "SELECT 1")) == [(1,)]


def test_a_star_has_the_tables_columns_in_their_order(spark: SparkSession, db: nyala.Database) -> None:
    """The order is that of the table, also if some columns are read for another reason."""
    db.create_table("s", {"z": "int32", "k": "int64", "a": "string"}, ["k"]).insert(
        {"z": [1], "k": [1], "a": ["x"]}
    )

    def names(text: str) -> list[str]:
        return nyala.spark.sql(spark, text, store=db.path).columns

    order = db["s"].schema.names
    assert names("SELECT * FROM s WHERE a = 'x' ORDER BY z") == order
    assert names("SELECT s.*, u.x FROM u JOIN S ON s.k = u.k") == [*order, "x"]
    assert names("SELECT * EXCEPT (a) FROM s") == [name for name in order if name != "a"]
    assert answer(nyala.spark.sql(spark, "SELECT struct(q.*).a FROM (SELECT * FROM s) q", store=db.path)) == [
        ("x",)
    ]


def test_a_mistyped_name_is_one_sentence(
    spark: SparkSession, db: nyala.Database, capfd: pytest.CaptureFixture[str]
) -> None:
    """Spark's own message names its catalogue, where the table is not expected."""
    db.create_table("weather", {"station": "string", "celsius": "double"}, "station")
    for text, kind, says in (
        ("SELECT k FROM wether", nyala.TableNotFoundError, "; did you mean 'weather'?"),
        (
            "SELECT celcius FROM weather",
            nyala.ColumnNotFoundError,
            "no column 'celcius' in .* mean 'celsius'?",
        ),
        (
            "SELECT a.x FROM t a JOIN u b ON a.k = b.k",
            nyala.ColumnNotFoundError,
            "'a.x': 'a' is not a table or alias",
        ),
        ("SELECT k FROM t JOIN u USING (kk)", nyala.ColumnNotFoundError, "no column 'kk'"),
    ):
        with pytest.raises(kind, match=says) as raised:
            nyala.spark.sql(spark, text, store=db.path)
        assert len(str(raised.value).splitlines()) == 1
    with pytest.raises(nyala.TableNotFoundError, match="store=folder"):
        nyala.spark.sql(spark, "SELECT k FROM t")
    assert "Logger" not in capfd.readouterr().err
    with pytest.raises(AnalysisException, match="MISSING_GROUP_BY"):
        nyala.spark.sql(spark, "SELECT k, count(*) FROM t", store=db.path)


def test_options_of_a_table_in_sparks_catalogue(spark: SparkSession, db: nyala.Database) -> None:
    """`where` and `at` of CREATE TABLE have the same effect in nyala.spark.sql as in Spark."""
    before = db.now()
    db["t"].insert({"k": [4, 5], "v": [40, 50]})
    spark.sql(
        f"CREATE TABLE part_of_t USING nyala OPTIONS (path '{db.path}', table 't', where 'k > 1', at '{before}')"
    )
    try:
        for text, requested in (
            ("SELECT k FROM part_of_t", [(2,), (3,)]),
            ("SELECT k FROM part_of_t WHERE v > 25", [(3,)]),
        ):
            assert answer(spark.sql(text)) == answer(nyala.spark.sql(spark, text)) == requested
        assert answer(nyala.spark.sql(spark, "SELECT count(*) FROM part_of_t", at=db.now())) == [(4,)]
    finally:
        spark.sql("DROP TABLE part_of_t")


TERMS = (
    "i < 0", "i BETWEEN -2 AND 7", "i IN (1, -3)", "NOT i = 1", "i IS NOT NULL", "i IS NULL", "i <> 1", "5 >= i",
    "s = 'b'", "s >= 'B' AND s < 'c'", "s IN ('', 'zz', 'é')", "NOT s IN ('a')", "s = 'it' 's'", "s > 'Z'",
    "d >= DATE '2026-01-01'", "d = '1969-12-31'", "d BETWEEN '1900-01-01' AND DATE '1970-01-01'",
    "n < 1.25", "n = -0.01", "n BETWEEN -1 AND 0", "n > 9999999.99", "b = true", "g < 1", "NOT g > 1", "g <> 1",
    "(i < 3 OR s = 'b')", "(i IS NULL OR n = 0)", "NOT (i < 3 AND s = 'b')", "NOT (i > 3 OR d IS NULL)",
)  # fmt: skip


def test_terms_that_the_scan_applies_give_sparks_result(
    spark: SparkSession, db: nyala.Database, request: pytest.FixtureRequest
) -> None:
    """Rule Q5: TRUE in place of a term gives the same rows as the term."""
    nothing, dates = None, (dt.date(1969, 12, 31), dt.date(1900, 1, 1), dt.date(2026, 1, 1), None)
    columns: dict[str, list[object]] = {
        "i": [1, -3, 2**31 - 1, -(2**31), 0, 7, nothing],
        "s": ["a", "b", "", "B", "it's", "é", "zz", nothing],
        "d": list(dates),
        "n": [decimal.Decimal(text) for text in ("-0.01", "0.00", "1.25", "9999999.99")] + [nothing],
        "b": [True, False, nothing],
        "g": [0.5, -0.0, 1.0, float("nan"), float("inf"), nothing],
    }
    rows: dict[str, list[object]] = {"k": list(range(300))}
    rows |= {name: [values[n * 7 // 3 % len(values)] for n in range(300)] for name, values in columns.items()}
    types = {
        "k": "int64",
        "i": "int32",
        "s": "string",
        "d": "date",
        "n": "decimal(9,2)",
        "b": "bool",
        "g": "double",
    }
    db.create_table("many", types, ["k"]).insert(rows)
    spark.createDataFrame(db["many"].to_arrow()).createOrReplaceTempView("as_spark_has_them")
    pairs = [f"{one} AND {other}" for one, other in zip(TERMS, TERMS[5:], strict=False)]
    text = " UNION ALL ".join(
        f"SELECT {number} AS q, count(*) AS rows, sum(k) AS keys FROM {{t}} WHERE {where}"
        for number, where in enumerate(every_nth(4, (*TERMS, *pairs), request))
    )
    mine = nyala.spark.sql(spark, text.replace("{t}", "many"), store=db.path)
    assert answer(mine) == answer(spark.sql(text.replace("{t}", "as_spark_has_them")))
    spark.catalog.dropTempView("as_spark_has_them")


STATEMENTS = (
    "SELECT k, w FROM t WHERE v > 10 ORDER BY v DESC LIMIT 1",
    "WITH t2 AS (SELECT * FROM t), u AS (SELECT k FROM t2 WHERE v = 20) SELECT u.k FROM u JOIN t2 USING (k)",
    "SELECT /*+ BROADCAST(u) */ t.w FROM t JOIN u ON t.k = u.k WHERE u.x = 1",
    "SELECT k FROM t a WHERE EXISTS (SELECT 1 FROM u WHERE u.k = a.k AND x = 0) OR k = (SELECT max(k) FROM t)",
    "SELECT k FROM t WHERE EXISTS (SELECT * FROM u WHERE u.k = t.k)",
    "SELECT k FROM t WHERE k < 9 AND NOT EXISTS (SELECT u.*, * FROM u WHERE x = t.k LIMIT 1)",
    "SELECT t.k, u.x FROM t LEFT JOIN u ON t.k = u.k WHERE (t.v = 10 AND u.x = 1) OR (t.v > 10 AND u.x IS NULL)",
    "SELECT (SELECT count(*) FROM u WHERE u.k <= t.k) AS n FROM t WHERE k IN (SELECT k FROM u WHERE x = 1)",
    "SELECT t.k, l.n FROM t, LATERAL (SELECT sum(x) AS n FROM u WHERE u.k = t.k) l WHERE t.k < 3",
    "SELECT k FROM t UNION SELECT x FROM u EXCEPT SELECT 2",
    "SELECT w, sum(v) OVER (ORDER BY k) AS s FROM t",
    "SELECT x.b, y.a FROM t AS x(a, b, c) JOIN u AS y(b, a) ON x.a = y.b WHERE x.b = 10",
    "SELECT v AS k, w FROM t WHERE T.k > 1 ORDER BY k DESC",
    "SELECT t.k, u.x FROM (t LEFT JOIN u ON t.k = u.k AND u.x > 0) WHERE u.x IS NULL",
    "SELECT a.k FROM u a LEFT JOIN (t b JOIN u c ON b.k = c.k AND c.x > 0) ON a.k = b.k WHERE b.k IS NULL",
    "SELECT v AS k FROM t |> WHERE k > 15",
    "SELECT k FROM t WHERE k IN(1,3)AND w='c'ORDER BY k",
    "SELECT k FROM t WHERE k < 1e1 AND v IN (1e1, 20)",
    "SELECT v % 3 AS w, count(*) AS n FROM t WHERE k < 9 GROUP BY v % 3 HAVING n > 0 ORDER BY w",
)


@pytest.fixture(scope="module")
def of_views() -> dict[str, tuple[list[tuple[object, ...]], str]]:
    """Return Spark's result for each text over views of the tables: rows, schema, or error."""
    return {}


@pytest.mark.parametrize("way", ["in the plan", "by tasks", "without internals"])
def test_each_way_gives_the_result_of_spark(
    spark: SparkSession,
    db: nyala.Database,
    monkeypatch: pytest.MonkeyPatch,
    of_views: dict[str, tuple[list[tuple[object, ...]], str]],
    request: pytest.FixtureRequest,
    way: str,
) -> None:
    """Rows, schemas and errors are those of Spark over views of the same rows."""
    monkeypatch.setattr(frames, "LOCAL_MAX_ROWS", 20_000 if way == "in the plan" else -1)
    spark.conf.set(internals.SETTING, str(way != "without internals").lower())
    for name in ("t", "u"):
        spark.createDataFrame(db[name].to_arrow()).createOrReplaceTempView(name)
    for text in every_nth(9, STATEMENTS, request):
        actual = nyala.spark.sql(spark, text, store=db.path)
        if text not in of_views:
            theirs = spark.sql(text)
            of_views[text] = answer(theirs), theirs.schema.simpleString()
        expected, schema = of_views[text]
        assert answer(actual) == expected, text
        assert actual.schema.simpleString() == schema, text
        read = actual._jdf.queryExecution().optimizedPlan().toString()
        assert ("explode(" in read) == (way == "by tasks"), read
    with pytest.raises(nyala.ColumnNotFoundError, match="nosuch"):
        nyala.spark.sql(spark, "SELECT nosuch FROM t", store=db.path)
    with pytest.raises(AnalysisException, match="UNRESOLVED_ROUTINE"):
        nyala.spark.sql(spark, "SELECT nosuch(k) FROM t", store=db.path)
    spark.conf.unset(internals.SETTING)
    for name in ("t", "u"):
        spark.catalog.dropTempView(name)


# Statements whose columns Nyala does not work out: it reads all columns.
NOT_ANALYSED = (
    # Stars with a table or alias.
    "SELECT * FROM t ORDER BY 1",
    "SELECT k FROM (SELECT k, v FROM (SELECT * FROM t) y) z",
    "WITH y AS (SELECT * FROM t), unused AS (SELECT w FROM y) SELECT k FROM y",
    "SELECT z.a FROM (SELECT * FROM t) AS z(a, b, c)",
    "WITH z(a, b, c) AS (SELECT * FROM t) SELECT a FROM z",
    # Names of an outer query.
    "SELECT t.w FROM t JOIN u ON t.k = u.k LATERAL VIEW explode(array(1)) e AS y WHERE t.v > 1 AND x > 0",
    "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u AS t WHERE w > 'a')",
    "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u LEFT ANTI JOIN t ON t.k = u.x WHERE t.v > u.k)",
    "SELECT k FROM t WHERE EXISTS (WITH c AS (SELECT k AS kk FROM u WHERE u.k = t.v - 9) SELECT * FROM c)",
    # Aliases that are also columns.
    "SELECT w, sum(k) AS v FROM t GROUP BY w HAVING max(v) > 10 ORDER BY sum(v), w",
    "SELECT k, -v AS k2, w AS v FROM t ORDER BY t.v DESC, k LIMIT 2",
    "SELECT -k AS k, row_number() OVER (ORDER BY k) AS r FROM t ORDER BY abs(k), k",
    # Ambiguous, or wrong.
    "SELECT t.k, e.k FROM t JOIN u ON true LATERAL VIEW explode(array(1)) e AS v WHERE x > 0 AND v > 0",
    "SELECT u.x AS y, count(*) FROM t JOIN u ON t.k = u.k GROUP BY u.x HAVING k > 0",
    "SELECT k, row_number() OVER (ORDER BY nosuch) FROM t",
    # Spark cannot use arrays in grouping sets.
    "SELECT max(v) FROM t GROUP BY ROLLUP (w) HAVING min(k) < 3",
    # A text or a date with a sign is a number or an error.
    "SELECT k FROM t WHERE w = -'a'",
    "SELECT k FROM t WHERE w = +'a'",
    "SELECT k FROM t WHERE w = + ('a') AND k < 3",
    "SELECT k FROM t WHERE w IN ('b', - 'a')",
    "SELECT k FROM t WHERE w BETWEEN +'a' AND 'c'",
    "SELECT k FROM t WHERE k = +1 AND v < - -11 AND v > -+5",
)


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_statements_that_are_not_analysed_read_all_columns(
    spark: SparkSession,
    db: nyala.Database,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    ansi: str,
) -> None:
    """Rule Q6: if a column is missing, the statement runs again with all columns. Results and
    errors are Spark's.
    """
    monkeypatch.setattr(frames, "LOCAL_MAX_ROWS", -1)
    for name in ("t", "u"):
        spark.createDataFrame(db[name].to_arrow()).createOrReplaceTempView(name)

    def outcome(ask: Callable[[], DataFrame]) -> object:
        try:
            return answer(ask())
        except nyala.ColumnNotFoundError as error:
            return "UNRESOLVED_COLUMN", error.__context__ is not None
        except PySparkException as error:
            condition = error.getCondition() or ""
            return condition.partition(".")[0], condition.startswith("UNRESOLVED_COLUMN")

    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        for text in every_nth(8, NOT_ANALYSED, request):
            requested = outcome(lambda text=text: spark.sql(text))
            for _ in range(2):  # the second time with the remembered analysis
                assert outcome(lambda text=text: nyala.spark.sql(spark, text, store=db.path)) == requested, (
                    text
                )
    finally:
        spark.conf.set("spark.sql.ansi.enabled", "true")
        for name in ("t", "u"):
            spark.catalog.dropTempView(name)


def test_aggregates_of_rows_in_the_plan_need_no_shuffle(spark: SparkSession, db: nyala.Database) -> None:
    """Many rows are in one partition. Few rows are not, so that Spark returns them without a job."""
    more = frames.ROWS_WITHOUT_JOB + 1
    db["t"].upsert({"k": range(1, more + 1), "v": range(more), "w": ["x"] * more})
    for text, rows, way in (
        ("SELECT sum(v) FROM t", [(more * (more - 1) // 2,)], "Coalesce"),
        (
            f"SELECT v FROM t WHERE k < {more} AND k > {more - 3}",
            [(more - 3,), (more - 2,)],
            "LocalTableScan",
        ),
    ):
        actual = nyala.spark.sql(spark, text, store=db.path)
        assert sorted(answer(actual)) == rows
        plan = actual._jdf.queryExecution().executedPlan().toString()
        assert way in plan and "Exchange" not in plan, plan
    assert "Exchange" not in db["t"].scan().to_spark(spark).agg({"v": "sum"})._jdf.queryExecution().toString()


# With this setting, Spark compares a time with a text as two texts.
TEXTS = "spark.sql.legacy.typeCoercion.datetimeToString.enabled"
# Terms with constants that Spark computes. Some values depend on settings of the session.
CONSTANT_TERMS = (
    "at >= '2026-03-08'",
    "at >= '2026-03-08 02:30:00' AND at < '2026-03-09'",
    "at < TIMESTAMP '2026-03-08 03:00:00'",
    "at = TIMESTAMP_NTZ '2026-03-08 06:00:00'",
    "at > '2026-03-08T07:00:00Z'",
    "at > DATE '2026-03-08' + INTERVAL '1' DAY",
    "at >= TIMESTAMP '2026-03-07 05:00:00' + (INTERVAL 1 DAY 1 HOUR)",
    "at BETWEEN '2026-03-08' AND TIMESTAMP '2026-03-08' + INTERVAL '3' HOUR",
    "day >= '2026-3-8'",
    "day < DATE '2026-02-28' + INTERVAL '1' MONTH - INTERVAL '20' DAY",
    "day > add_months(DATE '2026-01-31', 1)",
    "day >= date_sub(DATE '2026-03-10', 2)",
    "day <= TIMESTAMP '2026-03-08 12:00:00'",
    "k BETWEEN 20 AND 20 + 15",
    "k > 2147483647 - 2147483600",
    "k > 1.5 + 40",
    "n < 0.06 - 0.01",
    "n >= 0.001 * 40",
    "n > 5 - 5",
    "at > now() - INTERVAL 2 DAYS",
    "at < '2026-03-09 9:00'",
    "at < 'now'",
    "day >= current_date() - 1",
)


@pytest.mark.parametrize(
    "settings",
    [
        {"spark.sql.session.timeZone": "UTC"},
        {"spark.sql.session.timeZone": "America/New_York"},
        {"spark.sql.session.timeZone": "Asia/Kolkata", "spark.sql.timestampType": "TIMESTAMP_NTZ"},
        {"spark.sql.session.timeZone": "America/New_York", "spark.sql.ansi.enabled": "false"},
        {TEXTS: "true", "spark.sql.ansi.enabled": "false"},
    ],
    ids=lambda settings: ", ".join(settings.values()),
)
def test_values_of_constants_that_spark_computes(
    spark: SparkSession,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    settings: dict[str, str],
) -> None:
    """The result is Spark's, and the scan reads no row outside of it.

    The rows are each hour of three days, and one day has 23 hours in New York.
    """
    start = dt.datetime(2026, 3, 7, tzinfo=dt.UTC)
    hours = [start + dt.timedelta(hours=number) for number in range(72)]
    hours += [dt.datetime.now(dt.UTC) + dt.timedelta(hours=number) for number in (-1000, -47, -1, 1)]
    before = {name: "false" if name == TEXTS else spark.conf.get(name) for name in settings}
    read: list[int] = []

    def spied(of: SparkSession, scan, lease_s, **rest):
        read.append(scan.count())
        return leased_frame(of, scan, lease_s, **rest)

    with nyala.connect(store) as db:
        types = {"k": "int64", "at": "timestamp", "day": "date", "n": "decimal(9,2)"}
        cents = [decimal.Decimal(number % 10 - 5) / 100 for number in range(len(hours))]
        days = [hour.date() for hour in hours]
        db.create_table("t", types, "k").insert(
            {"k": range(len(hours)), "at": hours, "day": days, "n": cents}
        )
        for name, value in settings.items():
            spark.conf.set(name, value)
        try:
            spark.createDataFrame(db["t"].to_arrow()).selectExpr(
                "k", "CAST(at AS TIMESTAMP_LTZ) AS at", "day", "n"
            ).createOrReplaceTempView("u")
            monkeypatch.setattr(query, "leased_frame", spied)
            for term in every_nth(8, CONSTANT_TERMS, request):
                requested = answer(spark.sql(f"SELECT k FROM u WHERE {term}"))
                assert (
                    answer(nyala.spark.sql(spark, f"SELECT k FROM t WHERE {term}", store=store)) == requested
                ), term
                left_to_spark = ("<= TIMESTAMP", "1.5 +", "'now'")
                rows = len(hours) if any(words in term for words in left_to_spark) else len(requested)
                assert read.pop() == rows or TEXTS in settings, term
            for wrong in ("at > 'no time'", "k > 9223372036854775807 + 1", "at > INTERVAL 1 DAY"):
                requested = "SELECT k FROM {} WHERE " + wrong
                if settings.get("spark.sql.ansi.enabled") == "false" and "INTERVAL" not in wrong:
                    theirs = answer(spark.sql(requested.format("u")))
                    assert answer(nyala.spark.sql(spark, requested.format("t"), store=store)) == theirs
                    continue
                with pytest.raises(PySparkException) as theirs:
                    spark.sql(requested.format("u")).collect()
                with pytest.raises(type(theirs.value)) as actual:
                    nyala.spark.sql(spark, requested.format("t"), store=store).collect()
                assert actual.value.getCondition() == theirs.value.getCondition()
        finally:
            spark.catalog.dropTempView("u")
            for name, value in before.items():
                spark.conf.set(name, value)


def test_a_table_that_is_used_twice_is_read_at_one_moment(
    spark: SparkSession, db: nyala.Database, catalogued: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`nyala.spark.sql` does so although rows are written meanwhile. Spark's own SQL does so if
    `at` is given.
    """
    both = f"{catalogued} a FULL JOIN {catalogued} b ON a.k = b.k"
    text = f"SELECT count(*) AS n FROM {both} WHERE a.k IS NULL OR b.k IS NULL"
    scans = 0

    def between(of: SparkSession, scan, lease_s, **rest):
        nonlocal scans
        scans += 1
        db["t"].insert({"k": [100 + scans], "v": [0], "w": ["late"]})
        return leased_frame(of, scan, lease_s, **rest)

    monkeypatch.setattr(query, "leased_frame", between)
    assert answer(nyala.spark.sql(spark, text)) == [(0,)]
    assert scans == 2
    at = f"{catalogued} WITH (`at`='{db.now()}')"
    output = text.replace(f"{catalogued} a", f"{at} a").replace(f"{catalogued} b", f"{at} b")
    assert answer(spark.sql(output)) == [(0,)]
