"""`make bench-spark`, or `python -m bench.spark [--quick]`: Nyala through PySpark, beside Parquet and Delta Lake.

One Spark session; what is compared runs in turns in it. What is measured: `spark_steps`. How to read it: README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench import machine, report
from bench.measure import percentile
from bench.parts import Say, ratio, say
from bench.report import Aim, Report, Table, megabytes, seconds, times

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bench.spark_steps import Scale

PART = "spark"
NEEDED = {
    "pyspark": "Spark itself",
    "pandas": "PySpark asks for it",
    "sqlglot": "`nyala.spark.sql` asks for it",
}
STEPS = ("reads", "updates", "upserts", "feed", "streams", "queries")


def missing() -> list[str]:
    """A sentence for each package without which nothing can be measured."""
    return [
        f"{name} is not installed ({why}): `make bench-spark` installs it"
        for name, why in NEEDED.items()
        if importlib.util.find_spec(name) is None
    ]


def main() -> None:
    arguments = _parse()
    lacking = missing()
    if lacking:
        sys.exit("error: " + "\n       ".join(lacking))
    from bench.spark_steps import FULL, QUICK, session

    scale = QUICK if arguments.quick else FULL
    wanted = {"scale_factor": arguments.scale_factor, "repeats": arguments.repeats, "loads": arguments.loads}
    changed = {name: value for name, value in wanted.items() if value is not None}
    if changed or arguments.steps or arguments.cores:
        scale = dataclasses.replace(scale, **changed, name="own")
    folder = tempfile.mkdtemp(prefix="nyala-bench-spark-", dir=arguments.dir)
    try:
        facts = machine.describe(folder)
        cores = arguments.cores or machine.len_of_affinity()
        with session(folder, cores) as spark:
            result = run(spark, scale, folder, say, cores, arguments.steps or STEPS)
        print(result.text(), flush=True)
        if not arguments.no_write:
            for path in report.save(result, facts, Path(arguments.results)):
                say(f"wrote {os.path.relpath(path)}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="small data, some minutes in all")
    parser.add_argument("--dir", help="folder for the stores (by default the system's for temporary files)")
    parser.add_argument("--results", default=str(report.FOLDER), help="folder of RESULTS.md")
    parser.add_argument("--no-write", action="store_true", help="print only")
    own = parser.add_argument_group("other than --quick or the full run (kept as scale `own`)")
    own.add_argument("--scale-factor", type=float, help="TPC-H's, 1 is 6 M rows of lineitem")
    own.add_argument("--repeats", type=int, help="measured runs of each read")
    own.add_argument("--loads", type=int, help="measured runs of each load")
    own.add_argument("--cores", type=int, help="of the session; by default all that this process may use")
    own.add_argument("--steps", nargs="+", choices=STEPS, help="what follows the load; by default all")
    return parser.parse_args()


def run(
    spark: object, scale: object, folder: str, say: Say, cores: int = 2, steps: Sequence[str] = STEPS
) -> Report:
    """Measure in a session that is there, and report."""
    from bench.spark_steps import Scale, Steps

    assert isinstance(scale, Scale)
    made = Steps(spark, scale, folder, say, cores)  # type: ignore[arg-type]
    try:
        made.make_source()
        made.load()
        if "reads" in steps:
            made.read()
        if "updates" in steps:
            made.update()
            made.read(updated=True)
        if "upserts" in steps:
            made.upsert()
        if "feed" in steps and "upserts" in steps:
            made.read_feed()
        if "streams" in steps:
            made.stream()
        if "queries" in steps:
            made.found.queries = _queries(made.spark, made.scale, folder, say)
        java = spark.sparkContext._jvm.System.getProperty("java.version")  # type: ignore[attr-defined]
        return _report(made.found, scale, cores, f"Java {java}")
    finally:
        made.close()


def _queries(spark: SparkSession, scale: Scale, folder: str, say: Say) -> dict[int, dict[str, list[float]]]:
    """TPC-H's, over tables of their own; none without its generator."""
    import nyala
    from bench import data, spark_tpch

    if data.tpch_tool() is None:
        say("the 22 queries are left out: tpchgen-cli is not installed (`make bench-spark` installs it)")
        return {}
    files = os.path.join(folder, "tpch")
    data.make_tpch(scale.scale_factor, files)
    given = {name: data.read_plain(os.path.join(files, f"{name}.parquet")) for name in spark_tpch.KEYS}
    with nyala.connect(os.path.join(folder, "tpch-store"), maintenance=False) as db:
        spark_tpch.make(spark, given, folder, db)
        del given
        say("made TPC-H's tables")
        return spark_tpch.ask(spark, db.path, scale.queries, say)


# ---------------------------------------------------------------------------------------------------- the report


def _report(found: object, scale: object, cores: int, java: str) -> Report:
    from bench.spark_steps import (
        DELTA,
        FORMAT,
        NYALA,
        PARQUET,
        PARTITIONS,
        SESSION,
        Measured,
        Scale,
        ratio_of,
    )
    from bench.spark_tpch import PARTITIONED_ROWS, geometric_mean

    assert isinstance(found, Measured) and isinstance(scale, Scale)
    made = Report(PART, scale.name, f"Through Spark ({scale.name}: SF {scale.scale_factor:g})")
    made.facts = [
        f"{found.source}, {found.rows:,} rows; Spark `local[{cores}]` in one session, {java}",
        f"Medians of {scale.repeats} reads or more, {scale.loads} loads, in turns; ratios are medians of those of "
        "neighbours",
        f"Short reads go on until {scale.enough_s:g} s have gone, the first read for {2 * scale.repeats} rounds; the "
        f"JVM compiles what they do meanwhile, so what the first {scale.repeats} rounds gave stands beside",
        "A read's time is that of the whole statement; Nyala takes a new snapshot in each, Parquet's files were listed "
        "once before",
    ]
    made.tables.append(("Bulk load", _loads(found)))
    for heading, took in (
        ("Reads", found.reads),
        (f"Reads after one column of {found.updated_rows:,} rows was updated", found.reads_updated),
    ):
        if took:
            made.tables.append((heading, _reads(took)))
    if found.update_s is not None:
        table = Table([f"one column of {found.updated_rows:,} rows", "seconds"])
        table.rows.append(["nyala-format, operation update, and flush", seconds(found.update_s)])
        table.rows.append(["parquet, all written anew", seconds(found.rewrite_s)])
        made.tables.append(("The update", table))
    if found.upserts:
        table = Table(
            ["upsert", "rows", NYALA, FORMAT, DELTA, "deltalake ÷ nyala", "deltalake ÷ nyala-format"]
        )
        for share, one in found.upserts.items():
            cells = [seconds(_median(one.took.get(way))) for way in (NYALA, FORMAT, DELTA)]
            ratios = [times(ratio_of(one.took, DELTA, way)) for way in (NYALA, FORMAT)]
            table.rows.append([f"{share:.0%}", f"{one.rows:,}", *cells, *ratios])
        made.tables.append(("Upserts of whole rows, one in ten of them new", table))
    if found.feed_s:
        table = Table(["change feed", "rows", "seconds", "rows a second"])
        for name, took_s in found.feed_s.items():
            table.rows.append(
                [name, f"{found.feed_rows:,}", seconds(took_s), f"{found.feed_rows / took_s:,.0f}"]
            )
        made.tables.append(("Change feed of all upserts, each row made", table))
    if found.streams:
        made.tables.append(("Streaming sinks", _streams(found)))
    if found.queries:
        made.tables.append(("TPC-H's 22 queries", _asked(found.queries)))
    mean = geometric_mean(found.queries)
    made.aims.append(
        Aim(
            "TPC-H's 22 queries, by nyala.spark.sql: geometric mean at most 1.0 × Parquet's time",
            times(mean),
            None if mean is None else mean <= 1.0,
        )
    )

    for title, key, limit in (
        ("all columns", "all", 1.5),
        ("one column, each row made", "one", 1.5),
        ("one column, summed", "sum", 1.5),
        ("key range", "range", 0.5),
        ("one hash-pruned key", "key", 0.5),
    ):
        both = [took.get(key, {}) for took in (found.reads, found.reads_updated)]
        ratios = [ratio_of(took, NYALA, PARQUET) for took in both]
        first = [ratio_of(took, NYALA, PARQUET, scale.repeats) for took in both]
        beside = [ratio_of(took, FORMAT, PARQUET) for took in both]
        text = f"{times(ratios[0])}, after updates {times(ratios[1])}"
        if max(len(took.get(NYALA, ())) for took in both) > scale.repeats:
            text += f" (first {scale.repeats} rounds {times(first[0])} and {times(first[1])})"
        text += f'; for comparison format("nyala") {times(beside[0])} and {times(beside[1])}'
        worst = max((value for value in ratios if value is not None), default=None)
        made.aims.append(
            Aim(
                f"{title}, by nyala.spark.sql: at most {limit} × Parquet's time",
                text,
                None if worst is None else worst <= limit,
            )
        )
    small = found.upserts.get(0.01)
    quicker = {way: ratio_of(small.took, DELTA, way) if small else None for way in (NYALA, FORMAT)}
    best = max((value for value in quicker.values() if value is not None), default=None)
    made.aims.append(
        Aim(
            "upsert of 1 %: at least 10 × faster than deltalake's merge",
            f"nyala.spark.upsert {times(quicker[NYALA])}, df.write {times(quicker[FORMAT])}",
            None if best is None else best >= 10,
        )
    )
    speeds = {way: ratio_of(found.loads, PARQUET, way) for way in (NYALA, FORMAT)}
    best = max((value for value in speeds.values() if value is not None), default=None)
    made.aims.append(
        Aim(
            "bulk load: at least 0.5 × the speed of writing Parquet",
            f"nyala.spark.load {times(speeds[NYALA])}, df.write {times(speeds[FORMAT])}",
            None if best is None else best >= 0.5,
        )
    )
    made.settings = {
        "session": ", ".join(f"{name} {value}" for name, value in SESSION.items()),
        NYALA: f'hash(l_orderkey) in {PARTITIONS}, durability "commit", maintenance off; `nyala.spark.sql`, `.load`, '
        "`.upsert`",
        FORMAT: '`format("nyala")` with options columns and where; `df.write` of an insert, or an upsert',
        PARQUET: "Snappy, Spark's defaults; not synced",
        "the 22 queries": f"tables of {PARTITIONED_ROWS:,} rows and more hash-partitioned in {PARTITIONS} by the first "
        "column of the key, compacted",
        DELTA: "merge by key of Arrow tables, default writer settings, without Spark; new files are synced after each "
        "commit, and that time counts",
    }
    return made


def _loads(found: object) -> Table:
    from bench.spark_steps import FORMAT, NYALA, PARQUET, Measured, ratio_of

    assert isinstance(found, Measured)
    table = Table(["load", "seconds", "rows a second", "speed ÷ Parquet's", "bytes"])
    names = {NYALA: "nyala.spark.load", FORMAT: "df.write, insert", PARQUET: "parquet"}
    for way, name in names.items():
        took_s = median(found.loads[way])
        cells = [seconds(took_s), f"{found.rows / took_s:,.0f}", times(ratio_of(found.loads, PARQUET, way))]
        table.rows.append([name, *cells, megabytes(found.disk_bytes.get(way))])
    table.rows.append(["(the source read, each row made)", seconds(found.read_source_s), "", "", ""])
    return table


def _reads(took: dict[str, dict[str, list[float]]]) -> Table:
    from bench.spark_steps import FORMAT, NYALA, PARQUET, READS, ratio_of

    table = Table(["read", PARQUET, "nyala.spark.sql", "÷ Parquet", 'format("nyala")', "÷ Parquet"])
    for read in READS:
        mine = took.get(read.name)
        if mine is None:
            continue
        table.rows.append(
            [
                read.title,
                seconds(median(mine[PARQUET])),
                seconds(median(mine[NYALA])),
                times(ratio_of(mine, NYALA, PARQUET)),
                seconds(median(mine[FORMAT])),
                times(ratio_of(mine, FORMAT, PARQUET)),
            ]
        )
    return table


def _asked(took: dict[int, dict[str, list[float]]]) -> Table:
    from bench.spark_steps import NYALA, PARQUET, ratio_of

    table = Table(["query", PARQUET, "nyala.spark.sql", "÷ Parquet"])
    for number, mine in took.items():
        cells = [seconds(median(mine[way])) for way in (PARQUET, NYALA)]
        table.rows.append([f"Q{number}", *cells, times(ratio_of(mine, NYALA, PARQUET))])
    return table


def _streams(found: object) -> Table:
    from bench.spark_steps import NYALA, PARQUET, Measured

    assert isinstance(found, Measured)
    table = Table(
        ["stream", "rows a micro-batch", "rows a second", "latency p50", "latency worst", "÷ Parquet"]
    )
    for (size, sink), runs in found.streams.items():
        latencies = [took for one in runs for took in one.batches_s]
        rows = sum(one.rows for one in runs)
        beside = percentile([t for one in found.streams[size, PARQUET] for t in one.batches_s], 0.5)
        p50 = percentile(latencies, 0.5)
        table.rows.append(
            [
                f"{size}, into {sink}",
                f"{rows / len(latencies):,.0f}",
                f"{rows / sum(latencies):,.0f}",
                seconds(p50),
                seconds(max(latencies)),
                times(ratio(p50, beside)) if sink == NYALA else "",
            ]
        )
    return table


def _median(values: Sequence[float] | None) -> float | None:
    return median(values) if values else None


if __name__ == "__main__":
    main()
