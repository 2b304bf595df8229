"""The steps of `bench.spark`, in one Spark session. Each step runs in turns for Nyala and another
way.

    source (Parquet)  ──►  load  ──►  reads  ──►  5 % of the rows updated  ──►  reads  ──►  upserts
                                                                                           streaming sinks
    TPC-H's tables    ──►  the 22 queries (`spark_tpch`)

The ways: `nyala` is `nyala.spark` (`.sql`, `.load`, `.upsert`), `parquet` is Spark over Snappy
Parquet of the same rows, and `deltalake` is the Python package on Arrow, without Spark. Results are
compared, and a wrong one ends the run.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from statistics import median
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import nyala
from bench import data
from bench.measure import in_rounds, timed
from bench.parts import Say
from bench.query_times import ratio_of
from bench.report import seconds, times
from bench.scan_after_updates import QUERIES
from bench.stores import Options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Seconds = dict[str, list[float]]

NYALA, PARQUET, DELTA = "nyala", "parquet", "deltalake"
PARTITIONS = 4
UPDATED_SHARE = 0.05
NEW_SHARE = 0.1  # the share of new keys in an upsert


@dataclass(frozen=True)
class Scale:
    """repeats: rounds of reads; short ones run until `enough_s`. rounds: of loads, upserts and
    streams. warm: rounds that are not counted.

    One stream has `batches` micro-batches of `batch_rows` rows, the other has as many of
    `small_rows`.
    """

    name: str
    scale_factor: float
    repeats: int
    loads: int = 2
    upserts: tuple[tuple[float, int], ...] = ((0.01, 5), (0.10, 2))
    batches: int = 6
    batch_rows: int = 100_000
    small_rows: int = 1_000
    streams: int = 2
    warm: int = 1
    queries: int = 5  # rounds of each of the 22
    reads: tuple[str, ...] = ("all", "one", "sum", "Q1", "Q6", "range", "key")
    enough_s: float = 0.0


FULL = Scale("full", 1.0, 5, enough_s=15.0)
QUICK = Scale("quick", 0.1, 5, batch_rows=30_000, enough_s=2.0)


@dataclass(frozen=True)
class Read:
    """A query on a table `{t}`. `{key}` and `{upper}` become a key of the round.

    delivered: Spark makes each row and drops it (sink `noop`); otherwise the result is collected.
    longer: a factor for the number of rounds. The first query of a session runs while the JVM still
    compiles.
    """

    name: str
    title: str
    text: str
    delivered: bool = False
    longer: int = 1


_Q1, _Q6, _ = QUERIES


def _over(text: str) -> str:
    return text.replace("FROM t", "FROM {t}")


READS = (
    Read("all", "all columns, each row made", "SELECT * FROM {t}", delivered=True, longer=2),
    Read("one", "one column, each row made", "SELECT l_quantity FROM {t}", delivered=True),
    Read("sum", "one column, summed", "SELECT sum(l_quantity) FROM {t}"),
    Read("Q1", "TPC-H Q1", _over(_Q1.sql)),
    Read("Q6", "TPC-H Q6", _over(_Q6.sql)),
    Read(
        "range",
        "key range (0.1 % of the keys), summed",
        "SELECT count(*), sum(l_quantity), sum(l_extendedprice), max(l_shipdate) FROM {t} "
        "WHERE l_orderkey BETWEEN {key} AND {upper}",
    ),
    Read("key", "one key of the hash column, all columns", "SELECT * FROM {t} WHERE l_orderkey = {key}"),
)


@dataclass
class Upserts:
    """Upserts of one share of the rows: the seconds of each way, by round."""

    rows: int
    took: Seconds


@dataclass
class Stream:
    """One stream into one sink: its rows, its seconds, and the seconds of each micro-batch."""

    rows: int
    seconds: float
    batches_s: list[float]


@dataclass
class Measured:
    """All figures of a run. Those that were not measured are empty."""

    source: str = ""
    rows: int = 0
    loads: Seconds = field(default_factory=dict)
    reads: dict[str, Seconds] = field(default_factory=dict)
    reads_updated: dict[str, Seconds] = field(default_factory=dict)
    updated_rows: int = 0
    update_s: float | None = None
    upserts: dict[float, Upserts] = field(default_factory=dict)
    streams: dict[tuple[str, str], list[Stream]] = field(default_factory=dict)
    queries: dict[int, Seconds] = field(default_factory=dict)


@contextmanager
def session(folder: str, cores: int) -> Iterator[SparkSession]:
    """Return a new Spark session on this machine, whose workers use this Python."""
    import sys

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{cores}]").appName("nyala bench")
    for name, value in SESSION.items():
        builder = builder.config(name, value)
    made = builder.config("spark.sql.warehouse.dir", os.path.join(folder, "warehouse")).getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    try:
        yield made
    finally:
        made.stop()


SESSION = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "4g",
    "spark.sql.shuffle.partitions": "4",
}


class Steps:
    """One run: the session, the store, the folders. The steps must be called in the order of the
    class.
    """

    def __init__(self, spark: SparkSession, scale: Scale, folder: str, say: Say, cores: int) -> None:
        self.spark, self.scale, self.folder, self.say, self.cores = spark, scale, folder, say, cores
        self.found = Measured()
        self.store = os.path.join(folder, "store")
        # Without background maintenance, which would disturb the times. `mixed_load` measures it.
        self.db = nyala.connect(self.store, maintenance=False)
        self.source = os.path.join(folder, "source.parquet")
        self.parquet = ""
        self._delta: Any = None

    def close(self) -> None:
        self.db.close()

    # ------------------------------------------------------------------------------------------------ data, load

    def make_source(self) -> None:
        """Write lineitem as one Parquet file, which all loads read."""
        table, self.found.source = data.lineitem(self.scale.scale_factor, self.folder)
        self.found.rows, self.schema = table.num_rows, table.schema
        pq.write_table(table, self.source, row_group_size=250_000)
        keys = table.column("l_orderkey")
        # Keys for the reads, far from each other.
        places = [(number * 7919 + 13) % len(keys) for number in range(256)]
        self.keys = [keys[place].as_py() for place in places]
        self.key_max = pc.max(keys).as_py()
        self.say(f"{self.found.source}: {self.found.rows:,} rows")

    def load(self) -> None:
        """Load the rows into Parquet, and into two tables of Nyala: `t` is read and updated, `u` is
        upserted.
        """
        import nyala.spark as ns

        df = self.spark.read.parquet(self.source)
        few = df.where("pmod(l_orderkey, 50) = 1")

        def into_parquet(name: str, rows: DataFrame) -> str:
            path = os.path.join(self.folder, name)
            rows.write.mode("overwrite").parquet(path)
            return path

        if self.scale.warm:  # let the JVM compile the code first
            into_parquet("warm", few)
            ns.load(few, self._table("warm"))
            self.db.drop_table("warm")
        made: list[str] = []

        def load(number: int) -> None:
            made.append(f"loaded{number}")
            assert ns.load(df, self._table(made[-1])).inserted == self.found.rows

        def parquet(number: int) -> None:
            self.parquet = into_parquet(f"parquet{number}", df)

        rounds = self.scale.loads
        rounds = self.scale.loads
        self.found.loads = in_rounds({NYALA: load, PARQUET: parquet}, rounds, warm=0)
        if rounds == 1:
            load(1)
        self.names = {"t": made[-1], "u": made[0]}
        for name in set(made) - set(self.names.values()):
            self.db.drop_table(name)
        self.say(f"load: {_shown(self.found.loads)}")

    def _table(self, name: str) -> Any:
        return self.db.create_table(
            name, self.schema, data.LINEITEM_KEY, [nyala.hash_partition("l_orderkey", buckets=PARTITIONS)]
        )

    # ------------------------------------------------------------------------------------------------ reads

    def read(self, updated: bool = False) -> None:
        """Run all queries in turns over Parquet and Nyala."""
        self.spark.read.parquet(self.parquet).createOrReplaceTempView("bench_parquet")
        found = self.found.reads_updated if updated else self.found.reads
        for read in READS:
            if read.name not in self.scale.reads:
                continue
            ways = {
                NYALA: lambda number, read=read: self._ask_nyala(read, number),
                PARQUET: lambda number, read=read: self._ask_parquet(read, number),
            }
            answers = {name: _rounded(way(255) or []) for name, way in ways.items()}
            if any(answer != answers[PARQUET] for answer in answers.values()):
                raise AssertionError(f"{read.name}: the results differ: {answers}")
            # The check of results was round 0.
            rounds = self.scale.repeats * read.longer
            found[read.name] = in_rounds(ways, rounds, warm=0, enough_s=self.scale.enough_s)
            self.say(f"{read.name}{' after updates' if updated else ''}: {_shown(found[read.name])}")

    def _of_round(self, text: str, number: int) -> str:
        key = self.keys[number % len(self.keys)]
        return text.replace("{key}", str(key)).replace("{upper}", str(key + self.key_max // 1000))

    def _ask_nyala(self, read: Read, number: int) -> list[Any] | None:
        import nyala.spark as ns

        text = self._of_round(read.text, number).replace("{t}", self.names["t"])
        return _answer(ns.sql(self.spark, text, store=self.store), read)

    def _ask_parquet(self, read: Read, number: int) -> list[Any] | None:
        text = self._of_round(read.text, number).replace("{t}", "bench_parquet")
        return _answer(self.spark.sql(text), read)

    def update(self) -> None:
        """Change one column in a random 5 % of the rows: an update in Nyala, and a rewritten table
        in Parquet.
        """
        from pyspark.sql import functions as F

        import nyala.spark as ns

        df = self.spark.read.parquet(self.source)
        mine = F.pmod(F.xxhash64(*data.LINEITEM_KEY), F.lit(10_000)) < int(UPDATED_SHARE * 10_000)
        raised = (F.col("l_quantity") + 1).cast("decimal(15,2)")
        batch = self._batch("update", df.where(mine).select(*data.LINEITEM_KEY, raised.alias("l_quantity")))
        path = os.path.join(self.folder, "parquet-updated")
        table = self.db[self.names["t"]]

        def change() -> None:
            self.found.updated_rows = ns.write(batch, self.store, table.name, operation="update").updated
            table.flush()

        self.found.update_s = timed(change)
        new = F.when(mine, raised).otherwise(F.col("l_quantity"))
        df.withColumn("l_quantity", new).write.mode("overwrite").parquet(path)
        shutil.rmtree(self.parquet)
        self.parquet = path
        self.say(f"{self.found.updated_rows:,} rows updated in {seconds(self.found.update_s)}")

    # ------------------------------------------------------------------------------------------------ upserts

    def upsert(self) -> None:
        """Upsert whole rows, most of them existing: by `nyala.spark.upsert`, and by Delta Lake's
        merge.
        """
        import nyala.spark as ns

        if importlib.util.find_spec("deltalake") is None:
            self.say("deltalake is left out: deltalake is not installed (`make bench-spark` installs it)")
        else:
            self._delta = self._delta_store()
        number, warm = 0, self.scale.warm
        for share, rounds in self.scale.upserts:
            batches = []
            for _ in range(rounds + warm):
                batches.append(self._upsert_batch(number, share))
                number += 1
            row_count = self.spark.read.parquet(batches[0]).count()

            def of(batch: str) -> DataFrame:
                return self.spark.read.parquet(batch)

            def one(round: int, batches: Sequence[str] = batches) -> None:
                ns.upsert(of(batches[round + warm]), self.db[self.names["u"]])

            ways: dict[str, Callable[[int], Any]] = {NYALA: one}
            if self._delta is not None:
                ways[DELTA] = lambda round, batches=batches: self._merge(batches[round + warm])
            took = in_rounds(ways, rounds, warm, -warm)
            self.found.upserts[share] = Upserts(row_count, took)
            self.say(f"upsert of {share:.0%}, {row_count:,} rows: {_shown(took)}")
        self._compare_upserts()

    def _merge(self, batch: str) -> float:
        """Return the seconds of a merge, without the time to find files that the benchmark must
        sync.
        """
        took_s = timed(lambda: self._delta.upsert(pq.read_table(batch)))
        found: float = took_s - self._delta.overhead_s
        return found

    def _delta_store(self) -> Any:
        from bench.stores import delta_store

        store = delta_store.open_store(os.path.join(self.folder, "delta"), Options())
        # The rows before the upserts. Delta Lake has plain strings.
        took_s = timed(store.load, pq.read_table(self.source), data.LINEITEM_KEY)
        self.say(f"deltalake: loaded from Arrow in {took_s:.1f} s")
        return store

    def _batch(self, name: str, df: DataFrame) -> DataFrame:
        """Write the rows to files first, so that selecting them is not part of the time."""
        path = os.path.join(self.folder, name)
        df.repartition(self.cores).write.mode("overwrite").parquet(path)
        return self.spark.read.parquet(path)

    def _upsert_batch(self, number: int, share: float) -> str:
        from pyspark.sql import functions as F

        df = self.spark.read.parquet(self.source)
        drawn = F.pmod(F.xxhash64(*data.LINEITEM_KEY, F.lit(number)), F.lit(1_000_000))
        wanted = int(share * 1_000_000)
        new = int(wanted * NEW_SHARE)
        beyond = F.when(drawn < new, F.lit((number + 1) * self.key_max)).otherwise(0)
        changed = df.where(drawn < wanted).withColumns(
            {
                "l_orderkey": F.col("l_orderkey") + beyond,
                "l_quantity": (F.col("l_quantity") + 1).cast("decimal(15,2)"),
                "l_comment": F.concat(F.lit(f"upsert {number}: "), F.col("l_comment")),
            }
        )  # fmt: skip
        self._batch(f"upsert{number}", changed)
        return os.path.join(self.folder, f"upsert{number}")

    def _compare_upserts(self) -> None:
        if self._delta is None:
            return
        tables = [
            self.db[self.names["u"]].scan(["l_quantity"]).to_arrow(),
            self._delta._table.to_pyarrow_dataset().to_table(columns=["l_quantity"]),
        ]
        answers = [(table.num_rows, pc.sum(table.column(0)).as_py()) for table in tables]
        if len(set(answers)) != 1:
            raise AssertionError(f"after the same upserts the tables differ: {answers}")

    # ------------------------------------------------------------------------------------------------ streams

    def stream(self) -> None:
        """Write micro-batches, one Parquet file each, to Nyala and to Parquet in turns."""
        sizes = {"large": self.scale.batch_rows, "small": self.scale.small_rows}
        for size, rows in sizes.items():
            folder = os.path.join(self.folder, f"stream-{size}")
            os.mkdir(folder)
            for number, slice in enumerate(_first_slices(self.source, rows, self.scale.batches)):
                pq.write_table(slice, os.path.join(folder, f"{number:03}.parquet"))
            for number in range(self.scale.warm + self.scale.streams):
                for sink in (NYALA, PARQUET) if number % 2 else (PARQUET, NYALA):
                    found = self._stream_into(sink, folder, f"stream_{size}{number}")
                    if number >= self.scale.warm:
                        self.found.streams.setdefault((size, sink), []).append(found)
            shown = {sink: [s.seconds for s in self.found.streams[size, sink]] for sink in (NYALA, PARQUET)}
            self.say(f"stream of {self.scale.batches} micro-batches of {rows:,} rows: {_shown(shown)}")

    def _stream_into(self, sink: str, folder: str, name: str) -> Stream:
        schema = self.spark.read.parquet(self.source).schema
        rows = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(folder)
        writer = rows.writeStream.format("nyala" if sink == NYALA else "parquet")
        if sink == NYALA:
            self._table(name)
            writer = writer.options(path=self.store, table=name)
        else:
            writer = writer.option("path", os.path.join(self.folder, name))
        made = self._run_stream(writer, f"{name}-{sink}")
        if sink == NYALA:
            assert self.db[name].count() == made.rows
            self.db.drop_table(name)
        return made

    def _run_stream(self, writer: Any, name: str) -> Stream:
        checkpoint = os.path.join(self.folder, f"checkpoint-{name}")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        filled = [p for p in query.recentProgress if p["numInputRows"]]
        batches_s = [p["durationMs"]["triggerExecution"] / 1000 for p in filled]
        return Stream(sum(p["numInputRows"] for p in filled), sum(batches_s), batches_s)


def _deliver(df: DataFrame) -> None:
    """Make each row, and drop it."""
    df.write.format("noop").mode("overwrite").save()


def _answer(df: DataFrame, read: Read) -> list[Any] | None:
    if read.delivered:
        _deliver(df)
        return None
    return df.collect()


def _rounded(rows: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return rows in a fixed order with columns by name, and rounded doubles, which depend on the
    order of adding.
    """
    return sorted(
        tuple(
            round(float(v), 4) if isinstance(v, float | Decimal) else str(v)
            for _, v in sorted(row.asDict().items())
        )
        for row in rows
    )


def _first_slices(path: str, rows: int, count: int) -> Iterator[pa.Table]:
    """Return `count` tables of `rows` rows from the beginning of a file, or fewer if the file is
    short.
    """
    file = pq.ParquetFile(path)
    made = 0
    for batch in file.iter_batches(batch_size=rows):
        if made == count:
            return
        made += 1
        yield pa.Table.from_batches([batch])


def _shown(took: Seconds) -> str:
    base = PARQUET if PARQUET in took else DELTA
    return ", ".join(
        f"{name} {seconds(median(values))}"
        + (f" ({times(found)})" if name != base and (found := ratio_of(took, name, base)) else "")
        for name, values in took.items()
    )
