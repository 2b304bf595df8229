"""Runs the 22 queries of TPC-H in DuckDB and polars, over Nyala and over Snappy Parquet; and
measures column sizes.

Each query runs in turns over Nyala by a just opened reader (empty caches; the system's file cache
is warm), over Nyala by a reader that stays open, and over Parquet by a new instance of DuckDB.
Opening is not part of the time.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import nyala
from bench import data, tpch_polars
from bench.measure import folder_bytes
from bench.parts import Say, in_own_process, ratio
from bench.query_times import Taken, geometric_mean, in_turns, ratio_of
from bench.report import Aim, Report, Table, at_most, megabytes, seconds, times
from bench.stores import TPCH
from bench.tpch_queries import KEYS, QUERIES

MEMORY_LIMIT = "4GB"


@dataclass(frozen=True)
class Scale:
    name: str
    scale_factor: float
    repeats: int = 5
    queries: tuple[int, ...] = tuple(QUERIES)


FULL = Scale("full", 1.0)
QUICK = Scale("quick", 0.05, repeats=3)


def run(scale: Scale, folder: str, stores: Sequence[str] | None, say: Say) -> Report:
    """Measure, and return the report."""
    del stores
    files = os.path.join(folder, "parquet")
    data.make_tpch(scale.scale_factor, files)
    say(f"made TPC-H's tables at scale factor {scale.scale_factor:g}")
    load_s = in_own_process(_load, files, folder)["s"]
    by_duckdb = in_own_process(_ask_all, scale, files, folder)
    say("ran the queries in DuckDB")
    by_polars: dict[str, Taken] = {}
    if importlib.util.find_spec("polars") is None:
        say("polars is not installed: left out")
    else:
        by_polars = in_own_process(
            tpch_polars.run_all, scale.queries, files, folder, scale.repeats, MEMORY_LIMIT
        )
    return _report(scale, load_s, by_duckdb, by_polars, _lineitem_bytes(files, folder), files, folder)


def _load(files: str, folder: str) -> dict[str, Any]:
    begun = perf_counter()
    with nyala.connect(os.path.join(folder, "nyala"), memory_limit=MEMORY_LIMIT) as db:
        for name, key in KEYS.items():
            table = data.read_plain(os.path.join(files, f"{name}.parquet"))
            db.create_table(name, table.schema, key).insert(table)
            db[name].compact()
            db[name].vacuum()
    return {"s": perf_counter() - begun}


def _ask_all(scale: Scale, files: str, folder: str) -> dict[str, Any]:
    import duckdb

    def opened() -> nyala.Database:
        return nyala.connect(os.path.join(folder, "nyala"), read_only=True, memory_limit=MEMORY_LIMIT)

    def timed_query(connection: Any, text: str) -> tuple[float, list[Any]]:
        begun = perf_counter()
        rows = (connection.sql if isinstance(connection, nyala.Database) else connection.execute)(
            text
        ).fetchall()
        return perf_counter() - begun, rows

    def cold(text: str) -> tuple[float, list[Any]]:
        with opened() as db:
            db.sql("SELECT 1").fetchall()  # the start of this instance is not part of the time
            return timed_query(db, text)

    def parquet(text: str) -> tuple[float, list[Any]]:
        with duckdb.connect() as connection:
            for name in KEYS:
                path = os.path.join(files, f"{name}.parquet")
                connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{path}')")
            return timed_query(connection, text)

    found = {}
    with opened() as stays:
        for number in scale.queries:
            text = QUERIES[number]
            sources = {
                "cold": partial(cold, text),
                "warm": partial(timed_query, stays, text),
                "parquet": partial(parquet, text),
            }
            found[f"Q{number}"] = in_turns(sources, scale.repeats, f"Q{number}")
    return found


def _lineitem_bytes(files: str, folder: str) -> tuple[int, int]:
    """Return the size of lineitem in Nyala and in Parquet."""
    with nyala.connect(os.path.join(folder, "nyala"), read_only=True) as db:
        ours = int(db["lineitem"].stats().bytes)
    return ours, os.path.getsize(os.path.join(files, "lineitem.parquet"))


def _report(
    scale: Scale,
    load_s: float,
    by_duckdb: dict[str, Taken],
    by_polars: dict[str, Taken],
    lineitem: tuple[int, int],
    files: str,
    folder: str,
) -> Report:
    table = Table(["query", "Parquet", "cold ÷", "warm ÷", "polars: Parquet", "cold ÷", "warm ÷"])
    engines = (by_duckdb, by_polars)
    for name in by_duckdb:
        cells = []
        for taken in (found.get(name, {}) for found in engines):
            cells += [seconds(median(taken["parquet"]) if taken else None)]
            cells += [times(ratio_of(taken, source)) for source in ("cold", "warm")]
        table.rows.append([name, *cells])
    means = {
        (engine, source): geometric_mean(ratio_of(taken, source) for taken in found.values())
        for engine, found in zip(("duckdb", "polars"), engines, strict=True)
        for source in ("cold", "warm")
    }
    cold, warm, polars_cold, polars_warm = map(times, means.values())
    table.rows.append(["geometric mean", "", cold, warm, "", polars_cold, polars_warm])
    ours, theirs = lineitem
    of_all = [folder_bytes(os.path.join(folder, "nyala", "data")), folder_bytes(files)]
    q6 = ratio_of(by_duckdb.get("Q6", {}), "cold")
    return Report(
        TPCH,
        f"TPC-H's 22 queries (SF {scale.scale_factor:g})",
        f"Seconds over Snappy Parquet, and Nyala's time ÷ that, by DuckDB and by polars; medians of {scale.repeats} "
        f"rounds in turns. Loaded and compacted in {seconds(load_s)}; all tables take {megabytes(of_all[0])}, in "
        f"Parquet {megabytes(of_all[1])}",
        table,
        [
            at_most("DuckDB, cold: geometric mean at most 0.90 × Parquet", means["duckdb", "cold"], 0.90),
            at_most("DuckDB, warm: geometric mean at most 0.72 × Parquet", means["duckdb", "warm"], 0.72),
            at_most("polars, cold: geometric mean at most 1.10 × Parquet", means["polars", "cold"], 1.10),
            at_most("Q6, cold, by DuckDB: at most 0.60 × Parquet", q6, 0.60),
            Aim(
                "lineitem at most 0.85 × Snappy Parquet",
                f"{megabytes(ours)}, {times(ratio(ours, theirs))}",
                ours <= 0.85 * theirs,
            ),
        ],
    )


if __name__ == "__main__":
    from bench.__main__ import main

    main([TPCH])
