"""Measures Nyala through PySpark beside Parquet and Delta Lake: `python -m bench.spark [--quick]`.

All runs in turns in one Spark session. `spark_steps` has the steps, and bench/README.md explains
the figures.
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
from bench.parts import Say, say
from bench.query_times import geometric_mean, ratio_of
from bench.report import Report, Table, at_most, seconds, times

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bench.spark_steps import Measured, Scale

PART = "spark"
NEEDED = {
    "pyspark": "Spark itself",
    "pandas": "PySpark needs it",
    "sqlglot": "`nyala.spark.sql` needs it",
}
STEPS = ("reads", "updates", "upserts", "streams", "queries")


def missing() -> list[str]:
    """Return a sentence for each missing package without which nothing can be measured."""
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
        if scale.name == "full" and not arguments.no_write:
            say(f"wrote {os.path.relpath(report.save(result, facts, Path(arguments.results)))}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.spark", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="small data, some minutes in all")
    parser.add_argument("--dir", help="folder for the stores (by default the system's for temporary files)")
    parser.add_argument("--results", default=str(report.FOLDER), help="folder of RESULTS.md")
    parser.add_argument("--no-write", action="store_true", help="print only; only full runs are written")
    own = parser.add_argument_group("other than --quick or the full run (printed, not written)")
    own.add_argument("--scale-factor", type=float, help="TPC-H's, 1 is 6 M rows of lineitem")
    own.add_argument("--repeats", type=int, help="measured runs of each read")
    own.add_argument("--loads", type=int, help="measured runs of each load")
    own.add_argument("--cores", type=int, help="of the session; by default all that this process may use")
    own.add_argument("--steps", nargs="+", choices=STEPS, help="what follows the load; by default all")
    return parser.parse_args()


def run(
    spark: object, scale: object, folder: str, say: Say, cores: int = 2, steps: Sequence[str] = STEPS
) -> Report:
    """Measure in an existing session, and return the report."""
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
        if "streams" in steps:
            made.stream()
        if "queries" in steps:
            made.found.queries = _queries(made.spark, made.scale, folder, say)
        java = spark.sparkContext._jvm.System.getProperty("java.version")  # type: ignore[attr-defined]
        return _report(made.found, scale, cores, f"Java {java}")
    finally:
        made.close()


def _queries(spark: SparkSession, scale: Scale, folder: str, say: Say) -> dict[int, dict[str, list[float]]]:
    """Run the queries of TPC-H over their own tables. Without the generator nothing is measured."""
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
        return spark_tpch.run_queries(spark, db.path, scale.queries, say)


# ---------------------------------------------------------------------------------------------------- the report


def _report(found: Measured, scale: Scale, cores: int, java: str) -> Report:
    from bench.spark_steps import DELTA, NYALA, PARQUET, READS

    table = Table(["", "Parquet, Delta Lake", "Nyala", "Nyala ÷ it"])

    def add(title: str, took: dict[str, list[float]], peer: str = PARQUET) -> None:
        shown = [seconds(median(took[way])) if took.get(way) else "–" for way in (peer, NYALA)]
        table.rows.append([title, *shown, times(ratio_of(took, NYALA, peer))])

    add("bulk load", found.loads)
    for suffix, reads in (("", found.reads), (", after updates", found.reads_updated)):
        for read in READS:
            if read.name in reads:
                add(read.title + suffix, reads[read.name])
    if found.update_s is not None:
        table.rows.append(
            [f"update of one column in {found.updated_rows:,} rows", "–", seconds(found.update_s), "–"]
        )
    for share, one in found.upserts.items():
        add(f"upsert of {share:.0%}, {one.rows:,} rows (Delta Lake)", one.took, DELTA)
    for size in dict.fromkeys(size for size, _ in found.streams):
        batches = {
            sink: [s for one in found.streams[size, sink] for s in one.batches_s] for sink in (NYALA, PARQUET)
        }
        add(f"stream, a micro-batch, {size}", batches)
    mean = geometric_mean(ratio_of(took, NYALA, PARQUET) for took in found.queries.values())
    ratios = [f"Q{number} {ratio_of(took, NYALA, PARQUET):.2f}" for number, took in found.queries.items()]
    made = Report(
        PART,
        f"Through Spark (SF {scale.scale_factor:g})",
        f"{found.source}, {found.rows:,} rows; Spark `local[{cores}]` in one session, {java}; medians in turns, of "
        f"whole statements; the 22 queries ÷ Parquet: {', '.join(ratios) or 'not measured'}",
        table,
    )
    made.aims.append(at_most("TPC-H's 22 queries: geometric mean at most Parquet's time", mean, 1.0))
    for key, limit in (("all", 1.5), ("one", 1.5), ("sum", 1.5), ("range", 0.5), ("key", 0.5)):
        title = next(read.title for read in READS if read.name == key)
        both = [ratio_of(took.get(key, {}), NYALA, PARQUET) for took in (found.reads, found.reads_updated)]
        worst = max((value for value in both if value is not None), default=None)
        shown = f"{times(both[0])}, after updates {times(both[1])}"
        made.aims.append(at_most(f"{title}: at most {limit} × Parquet's time", worst, limit, shown))
    small = found.upserts.get(0.01)
    quicker = ratio_of(small.took, NYALA, DELTA) if small else None
    made.aims.append(at_most("upsert of 1 %: at most 0.1 × the time of deltalake's merge", quicker, 0.1))
    loads = ratio_of(found.loads, NYALA, PARQUET)
    made.aims.append(at_most("bulk load: at most 2 × the time of writing Parquet", loads, 2.0))
    return made


if __name__ == "__main__":
    main()
