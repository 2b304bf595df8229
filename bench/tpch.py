"""All 22 queries of TPC-H, and what a scan is made of: sums of whole columns, bytes, encodings, predicates.

DuckDB computes; what differs is where rows come from: Nyala (`db.sql`), Snappy Parquet files as tpchgen-cli wrote them,
and DuckDB's own tables. Each query is run in turns: Nyala by a reader that was just opened (its caches are cold, the
system's file cache is warm), Nyala by one that stays open, DuckDB over Parquet in a fresh instance, DuckDB over its own
tables. Every answer is compared with that over Parquet. Polars, where it is installed, answers the same queries in its
own expressions, and nine small questions (`bench.tpch_polars`).

Where the time of Nyala's answers goes is told in the same runs (`bench.pulls`). Calls and bytes are of one call more of
each source, in a process of their own: DuckDB's tables are asked in an instance just opened there, as one that stays
open has them in memory and reads nothing.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import nyala
from bench import data, encodings, tpch_polars
from bench.costs import Cost, cost, merged, profile_text
from bench.measure import SCANS_UNTIL_KEPT, folder_bytes
from bench.parts import Say, in_own_process, ratio
from bench.pulls import Pulls, middle
from bench.questions import Answer, Found, clocked, in_turns
from bench.report import Aim, Report, Table, megabytes, percent, seconds, times
from bench.stores import TPCH, choose
from bench.tpch_queries import KEYS, QUERIES

MEMORY_LIMIT = "4GB"
# Beside TPC-H's own tables: few columns of lineitem, and one that is sorted as the key is but not part of it.
LINES = "lines"
POLARS_QUERIES = "Polars, the 22 queries"
SOURCES = {"cold": "nyala, cold", "warm": "nyala, warm", "parquet": "parquet", "duckdb": "duckdb"}
SHARES = (0.0001, 0.01, 0.5)


@dataclass(frozen=True)
class Scale:
    name: str
    scale_factor: float
    repeats: int = 5
    predicate_repeats: int = 5
    encode_repeats: int = 3
    queries: tuple[int, ...] = tuple(QUERIES)


FULL = Scale("full", 1.0)
QUICK = Scale("quick", 0.05, repeats=3, predicate_repeats=3, encode_repeats=1)


def run(scale: Scale, folder: str, stores: Sequence[str] | None, say: Say) -> Report:
    """Measure, and report. Nyala and Parquet always take part; of the peers that can be chosen there is DuckDB."""
    own_tables = any(kind.name == "duckdb" for kind in choose(TPCH, stores, say))
    files = os.path.join(folder, "parquet")
    make_tables(scale.scale_factor, files)
    say(f"made TPC-H's tables at scale factor {scale.scale_factor:g}")
    loaded = in_own_process(_load, files, folder, own_tables)
    say(f"loaded: {', '.join(f'{name} {seconds(took)}' for name, took in loaded['took'].items())}")
    asked = in_own_process(_ask_all, scale, files, folder, own_tables)
    say("asked all")
    sums = {name: _sum_of(text) for name, text in _sums(files).items()}
    by_polars: dict[str, dict[str, Found]] = {}
    if importlib.util.find_spec("polars") is None:
        say("polars is not installed: left out")
    else:
        queries = partial(tpch_polars.queries, scale.queries)
        for title, given, has_filters in (
            (POLARS_QUERIES, queries, True),
            (f"{POLARS_QUERIES}, joins without filters", queries, False),
            ("Polars, nine questions", tpch_polars.questions, True),
        ):
            by_polars[title] = in_own_process(
                tpch_polars.ask_all, given, files, folder, scale.repeats, MEMORY_LIMIT, has_filters
            )
        say("asked polars")
    texts = {f"Q{number}": QUERIES[number] for number in scale.queries} | sums | _predicates(files)
    costs = in_own_process(_costs, files, folder, own_tables, texts)
    for kind in asked.values():
        if isinstance(kind, dict):
            for name, found in kind.items():
                found.costs = costs[name]
    say("counted calls and bytes")
    encoded = in_own_process(encodings.measure, files, scale.encode_repeats)["encodings"]
    say("measured the encodings")
    columns = _column_bytes(files, os.path.join(folder, "nyala"))
    by_pyarrow = in_own_process(_written_by_pyarrow, files, folder)["bytes"]
    return _report(scale, loaded, asked, by_polars, encoded, columns, by_pyarrow, own_tables)


def make_tables(scale_factor: float, files: str) -> None:
    """All eight tables as Snappy Parquet, and `lines`. Raises: FileNotFoundError without tpchgen-cli."""
    data.make_tpch(scale_factor, files)
    lines = _read(
        files, "lineitem", ["l_orderkey", "l_linenumber", "l_partkey", "l_extendedprice", "l_comment"]
    )
    field = pa.field("l_sequence", pa.int64(), nullable=False)
    lines = lines.append_column(field, pa.array(np.arange(lines.num_rows) * 10))
    pq.write_table(lines, os.path.join(files, f"{LINES}.parquet"), compression="snappy")


def _keys() -> dict[str, list[str]]:
    return {**KEYS, LINES: data.LINEITEM_KEY}


def _read(files: str, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    return data.read_plain(os.path.join(files, f"{name}.parquet"), columns)


# ------------------------------------------------------------------------------------------- tables


def _load(files: str, folder: str, own_tables: bool) -> dict[str, Any]:
    took = {"nyala": 0.0, "nyala, compaction": 0.0}
    store = os.path.join(folder, "nyala")
    with nyala.connect(store, memory_limit=MEMORY_LIMIT) as db:
        for name, key in _keys().items():
            table = _read(files, name)
            begun = perf_counter()
            db.create_table(name, table.schema, key).insert(table)
            took["nyala"] += perf_counter() - begun
        begun = perf_counter()
        for name in _keys():
            db[name].compact()
        took["nyala, compaction"] = perf_counter() - begun
        for name in _keys():
            db[name].vacuum()
    if own_tables:
        import duckdb

        begun = perf_counter()
        con = duckdb.connect(os.path.join(folder, "t.duckdb"))
        for name in _keys():
            con.execute(f"CREATE TABLE {name} AS SELECT * FROM '{os.path.join(files, name)}.parquet'")
        con.execute("CHECKPOINT")
        con.close()
        took["duckdb"] = perf_counter() - begun
    disk = {"nyala": folder_bytes(os.path.join(store, "data")), "parquet": folder_bytes(files)}
    if own_tables:
        disk["duckdb"] = os.path.getsize(os.path.join(folder, "t.duckdb"))
    return {"took": took, "disk": disk}


# ------------------------------------------------------------------------------------------- questions


class Asker:
    """Puts one SQL text to all sources. An answer is timed from the text to the last row in Python."""

    def __init__(self, files: str, folder: str, own_tables: bool) -> None:
        import duckdb

        self._duckdb: Any = duckdb
        self._files, self._store = files, os.path.join(folder, "nyala")
        self._warm = nyala.connect(self._store, read_only=True, memory_limit=MEMORY_LIMIT)
        self._own: Any = None
        if own_tables:
            self._own_path = os.path.join(folder, "t.duckdb")
            self._own = duckdb.connect(self._own_path, read_only=True)
        self.opening_s: list[float] = []
        self._pulls = Pulls()

    def cold(self, text: str) -> Answer:
        begun = perf_counter()
        db = nyala.connect(self._store, read_only=True, memory_limit=MEMORY_LIMIT)
        db.sql("SELECT 1").fetchall()  # DuckDB's own start, which the other instances have behind them too
        self.opening_s.append(perf_counter() - begun)
        try:
            return self._watched(db, text)
        finally:
            db.close()

    def warm(self, text: str) -> Answer:
        return self._watched(self._warm, text)

    def _watched(self, db: nyala.Database, text: str) -> Answer:
        with self._pulls.watching():
            return clocked(lambda: db.sql(text).fetchall(), self._pulls)

    def parquet(self, text: str) -> Answer:
        con = self._duckdb.connect()
        try:
            for name in _keys():
                path = os.path.join(self._files, f"{name}.parquet")
                con.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{path}')")
            return clocked(lambda: con.execute(text).fetchall())
        finally:
            con.close()

    def duckdb(self, text: str) -> Answer:
        return clocked(lambda: self._own.execute(text).fetchall())

    def duckdb_opened(self, text: str) -> Answer:
        """Its tables in an instance of its own."""
        self._own.close()
        self._own = self._duckdb.connect(self._own_path, read_only=True)
        return self.duckdb(text)

    def sources(self) -> list[str]:
        return [name for name in SOURCES if name != "duckdb" or self._own is not None]

    def ask(self, text: str, repeats: int, what: str) -> Found:
        """In turns after one unmeasured round, in which the answers are compared."""
        asked = {name: partial(getattr(self, name), text) for name in self.sources()}
        found = in_turns(asked, repeats, what)
        db = nyala.connect(self._store, read_only=True, memory_limit=MEMORY_LIMIT)
        try:
            told = db.sql(text).explain()
            found.explained_bytes = sum(scan.to_dict()["bytes_read"] for scan in told.scans)
        finally:
            db.close()
        return found

    def close(self) -> None:
        self._warm.close()
        if self._own is not None:
            self._own.close()


def _ask_all(scale: Scale, files: str, folder: str, own_tables: bool) -> dict[str, Any]:
    asker = Asker(files, folder, own_tables)
    try:
        queries = {
            f"Q{number}": asker.ask(QUERIES[number], scale.repeats, f"Q{number}") for number in scale.queries
        }
        sums = {name: asker.ask(_sum_of(text), scale.repeats, name) for name, text in _sums(files).items()}
        predicates = {
            what: asker.ask(text, scale.predicate_repeats, what) for what, text in _predicates(files).items()
        }
        return {
            "queries": queries,
            "sums": sums,
            "predicates": predicates,
            "opening_s": median(asker.opening_s),
        }
    finally:
        asker.close()


def _sums(files: str) -> dict[str, str]:
    """Of each column of lineitem what makes all of its values be read."""
    out = {}
    for column in pq.read_schema(os.path.join(files, "lineitem.parquet")):
        if pa.types.is_integer(column.type) or pa.types.is_decimal(column.type):
            out[column.name] = f"sum({column.name})"
        elif pa.types.is_date(column.type):
            out[column.name] = (
                f"min({column.name}), max({column.name} + 1)"  # an expression, which no footer answers
            )
        else:
            out[column.name] = f"sum(strlen({column.name}))"
    return out


def _sum_of(text: str) -> str:
    return f"SELECT {text} FROM lineitem"


def _predicates(files: str) -> dict[str, str]:
    """Ranges in the middle that select a share of the rows, on three columns of `lines`."""
    table = pq.read_table(
        os.path.join(files, f"{LINES}.parquet"), columns=["l_orderkey", "l_sequence", "l_extendedprice"]
    )
    kinds = {"l_orderkey": "key", "l_sequence": "sorted non-key", "l_extendedprice": "unsorted"}
    out = {}
    for name, kind in kinds.items():
        values = np.sort(table.column(name).cast(pa.float64()).to_numpy())
        for share in SHARES:
            first = int(len(values) * (0.5 - share / 2))
            last = min(len(values) - 1, first + max(1, int(len(values) * share)) - 1)
            lower, upper = (
                f"{values[at]:.2f}" if kind == "unsorted" else f"{values[at]:.0f}" for at in (first, last)
            )
            out[f"{kind}, {share * 100:g} %"] = (
                f"SELECT count(*), sum(l_partkey), sum(l_extendedprice) FROM {LINES} "
                f"WHERE {name} BETWEEN {lower} AND {upper}"
            )
    return out


def _costs(files: str, folder: str, own_tables: bool, texts: dict[str, str]) -> dict[str, dict[str, Cost]]:
    """Of each question what one call costs each source, all functions told; in a process whose threads are new."""
    asker = Asker(files, folder, own_tables)
    asks = {name: getattr(asker, "duckdb_opened" if name == "duckdb" else name) for name in asker.sources()}
    found: dict[str, dict[str, Cost]] = {}
    try:
        for ask in asks.values():
            ask(QUERIES[6])  # imports
        for what, text in texts.items():
            for _ in range(SCANS_UNTIL_KEPT + 1):  # as often as `in_turns` asks before it measures
                asker.warm(text)
            found[what] = {
                name: cost(lambda ask=ask, text=text: ask(text), top=1000) for name, ask in asks.items()
            }
        return found
    finally:
        asker.close()


# ------------------------------------------------------------------------------------------- columns


def _column_bytes(files: str, store: str) -> dict[str, tuple[int, int]]:
    """Of each column of lineitem: bytes in Nyala and in Parquet. `(…)`: what Nyala has beside columns of the table."""
    from bench.stores.nyala_store import base_files
    from nyala.cfile.column import BASE
    from nyala.cfile.reader import CFileReader
    from nyala.env import SYSTEM

    out: dict[str, tuple[int, int]] = {}
    with nyala.connect(store, read_only=True) as db:
        ids = {column.id: column.name for column in db._root().table("lineitem").schema.columns}
        ours: dict[str, int] = dict.fromkeys(ids.values(), 0)
        whole = 0
        for path in base_files(db, "lineitem"):
            whole += os.path.getsize(path)
            with CFileReader(SYSTEM.files, path) as reader:
                for key in reader.columns():
                    column = reader.column(key)
                    assert column is not None
                    name = ids.get(key.column_id) if key.role == BASE else None
                    shown = name or ("(key index: encoded keys, bloom)" if key.role != BASE else "(liveness)")
                    ours[shown] = ours.get(shown, 0) + column.size_bytes
        whole_of_table = int(db["lineitem"].stats()["bytes"])
    path = os.path.join(files, "lineitem.parquet")
    meta = pq.read_metadata(path)
    theirs: dict[str, int] = {}
    for group in range(meta.num_row_groups):
        for at in range(meta.num_columns):
            chunk = meta.row_group(group).column(at)
            theirs[chunk.path_in_schema] = theirs.get(chunk.path_in_schema, 0) + chunk.total_compressed_size
    for name in [*ids.values(), *(name for name in ours if name.startswith("("))]:
        out[name] = (ours[name], theirs.get(name, 0))
    out["(footers and the like)"] = (whole - sum(ours.values()), os.path.getsize(path) - sum(theirs.values()))
    out["(history and changes)"] = (whole_of_table - whole, 0)
    out["lineitem"] = (whole_of_table, os.path.getsize(path))
    return out


def _written_by_pyarrow(files: str, folder: str) -> dict[str, Any]:
    """What the same rows of lineitem take by another writer: PyArrow's, as it is set, with Snappy."""
    path = os.path.join(folder, "lineitem-pyarrow.parquet")
    pq.write_table(_read(files, "lineitem"), path, compression="snappy")
    found = os.path.getsize(path)
    os.unlink(path)
    return {"bytes": found}


# ------------------------------------------------------------------------------------------- report


def geometric_mean(values: Sequence[float]) -> float | None:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def _mean(queries: dict[str, Found], source: str, processor: bool = False) -> float | None:
    found = (one.against(source, processor=processor) for one in queries.values())
    return geometric_mean([ratio for ratio in found if ratio is not None])


def round_means(queries: dict[str, Found], source: str, processor: bool = False) -> list[float]:
    """The geometric mean of each round by itself, against Parquet's time in the same round."""
    means = []
    kinds = [one.processor if processor else one.taken for one in queries.values()]
    for rounds in zip(
        *([a / b for a, b in zip(of[source], of["parquet"], strict=True)] for of in kinds), strict=True
    ):
        means.append(geometric_mean(rounds))
    return [mean for mean in means if mean is not None]


def _between(means: Sequence[float]) -> str:
    return f"rounds {min(means):.2f} to {max(means):.2f}" if means else "no rounds"


def _by_processor(queries: dict[str, Found]) -> str:
    means = (
        f"{source} {times(_mean(queries, source, True))} ({_between(round_means(queries, source, True))})"
        for source in ("cold", "warm")
    )
    return ", ".join(means)


def _mean_aim(text: str, queries: dict[str, Found]) -> Aim:
    """Judged by the cold mean; the warm one stands beside it."""
    mean = _mean(queries, "cold")
    return Aim(
        text,
        f"{times(mean)} ({_between(round_means(queries, 'cold'))}; warm {times(_mean(queries, 'warm'))}, "
        f"{_between(round_means(queries, 'warm'))})",
        None if mean is None else mean <= 1.0,
    )


def _report(
    scale: Scale,
    loaded: dict[str, Any],
    asked: dict[str, Any],
    by_polars: dict[str, dict[str, Found]],
    encoded: encodings.Encodings,
    columns: dict[str, tuple[int, int]],
    by_pyarrow: int,
    own_tables: bool,
) -> Report:
    report = Report(
        TPCH, scale.name, f"TPC-H's 22 queries and scans (SF {scale.scale_factor:g}, {scale.name})"
    )
    disk, queries = loaded["disk"], asked["queries"]
    report.facts = [
        "DuckDB computes, or polars where it is named; Snappy Parquet as tpchgen-cli writes it; every answer is the "
        "same as over Parquet",
        f"Medians of {scale.repeats} rounds in turns after one unmeasured; × is the median of the ratios of neighbours",
        f"Cold: a reader just opened, the system's cache warm; opening it takes {seconds(asked['opening_s'])} and is "
        "not counted",
        "Loaded in " + ", ".join(f"{name} {seconds(took)}" for name, took in loaded["took"].items()),
        "On disk, all tables: " + ", ".join(f"{name} {megabytes(size)}" for name, size in disk.items()),
        "By processor time, which other work on the machine changes less than the clock: geometric mean of the queries "
        f"{_by_processor(queries)}; Q6 cold "
        f"{times(queries['Q6'].against('cold', processor=True)) if 'Q6' in queries else '–'}",
    ]
    report.facts += COUNTED
    report.settings = {
        "nyala": f"read-only, memory_limit {MEMORY_LIMIT}, db.sql(…); tables compacted after the load",
        "parquet": "one file a table, read_parquet in a fresh DuckDB instance a query",
    }
    if own_tables:
        report.settings["duckdb"] = "its own tables without keys, one instance for all"

    for title, found in (
        ("The 22 queries", asked["queries"]),
        ("Sums of whole columns of lineitem (of text its length)", asked["sums"]),
        (f"Predicates on `{LINES}`: count and two sums of what matches", asked["predicates"]),
    ):
        _add(report, title, found, own_tables, "DuckDB itself")
    if "Q6" in queries:
        report.profiles |= _profiles("Q6", {"Q6": queries["Q6"]})

    for title, found in by_polars.items():
        _add(report, title, found, False, "polars itself")
        report.facts.append(f"{title}, by processor time: geometric mean {_by_processor(found)}")
    if by_polars:
        report.settings["polars"] = (
            f"to_polars_lazy() of a reader with memory_limit {MEMORY_LIMIT}, scan_parquet() of the same files"
        )

    table = Table(["bytes on disk", "nyala", "parquet", "nyala ÷ parquet"])
    for name, (ours, theirs) in columns.items():
        table.rows.append([name, f"{ours:,}", f"{theirs:,}", times(ratio(ours, theirs))])
    report.tables.append(("Lineitem by column", table))

    report.tables.append((encodings.TITLE, encoded.table()))
    for name, found_cost in encoded.profiles.items():
        report.profiles[f"{name} ({_count(found_cost.calls)} calls)"] = profile_text(found_cost, 4)

    q6 = asked["queries"]["Q6"].against("cold")
    ours, theirs = columns["lineitem"]
    report.aims = [
        _mean_aim("geometric mean of the 22 queries, cold, at most Parquet's time", queries),
        Aim("Q6, cold, at most 0.7 × Parquet's time", times(q6), None if q6 is None else q6 <= 0.7),
        Aim(
            "lineitem, key index included, no larger than Snappy Parquet",
            f"{megabytes(ours)} against {megabytes(theirs)}, {times(ratio(ours, theirs))} (as tpchgen-cli writes it; "
            f"by PyArrow {megabytes(by_pyarrow)}, {times(ratio(ours, by_pyarrow))})",
            ours <= theirs,
        ),
    ]
    for title, found in by_polars.items():
        whose = title[0].lower() + title[1:]
        report.aims.append(_mean_aim(f"{whose}, cold, geometric mean at most Parquet's time", found))
    return report


def _add(report: Report, title: str, found: dict[str, Found], own_tables: bool, engine: str) -> None:
    """The tables of one group of questions, and its profile."""
    report.tables.append((f"{title}: seconds (÷ Parquet's)", _questions(found, own_tables)))
    report.tables.append((f"{title}: calls made and bytes read", _calls_and_bytes(found, own_tables)))
    report.tables.append((f"{title}: where the time goes", _splits(found, engine)))
    report.profiles |= _profiles(title.partition(":")[0].partition(" (")[0], found)


# How calls and bytes are counted, and what of them nobody knows.
COUNTED = (
    "Calls are of Python functions and of C's that Python calls, in every source counted the same way: with opening "
    "the reader or the instance where that is done anew (nyala cold, parquet, duckdb), in all threads that run Python; "
    "what DuckDB, polars and Arrow call inside of themselves no profiler of Python sees, so over Parquet and over own "
    "tables only calls that reach the engine are counted",
    "Bytes are those of read system calls by any thread of the process (/proc/self/io), in the same call more. Warm, "
    "Nyala has most blocks in memory, and what it goes over there nobody counts; DuckDB's own tables are asked for "
    "that in an instance just opened, as one that stays open has them in memory too",
    "Where the time goes: until the engine first asks for rows (parsing, snapshot, registering, binding, planning), "
    "what it waits for in windows of ours, and the rest, in which it computes; while one of its threads waits for a "
    "window another may compute, so its part is the least that it can be. Medians, each part by itself",
)


def _sources(own_tables: bool) -> dict[str, str]:
    return {key: name for key, name in SOURCES.items() if key != "duckdb" or own_tables}


def _questions(found: dict[str, Found], own_tables: bool) -> Table:
    sources = _sources(own_tables)
    table = Table(["", *sources.values()])
    for what, one in found.items():
        row = [what]
        for key in sources:
            against = None if key == "parquet" else one.against(key)
            row.append(seconds(one.s(key)) + ("" if against is None else f" ({times(against)})"))
        table.rows.append(row)
    means = ["geometric mean"]
    for key in sources:
        means.append(
            times(geometric_mean([r for one in found.values() if (r := one.against(key)) is not None]))
        )
    table.rows.append(means)
    return table


def _calls_and_bytes(found: dict[str, Found], own_tables: bool) -> Table:
    sources = _sources(own_tables)
    table = Table(
        [
            "",
            *(f"calls, {name}" for name in sources.values()),
            "bytes, explain (cold)",
            *(f"bytes, {name}" for name in sources.values()),
        ]
    )
    for what, one in found.items():
        costs = [one.costs.get(key) for key in sources]
        row = [what, *(_count(None if cost is None else cost.calls) for cost in costs)]
        row += [_count(one.explained_bytes), *(_count(None if cost is None else cost.read) for cost in costs)]
        table.rows.append(row)
    return table


def _splits(found: dict[str, Found], engine: str) -> Table:
    parts = ("planning, registering", "our windows", engine)
    table = Table(["", *(f"{source}: {part}" for source in ("cold", "warm") for part in parts)])
    shares: dict[str, list[Sequence[float]]] = {"cold": [], "warm": []}
    for what, one in found.items():
        row = [what]
        for source in shares:
            split = middle(one.splits.get(source, []))
            row += [seconds(part) for part in split] if split else ["–"] * len(parts)
            if split:
                shares[source].append([part / sum(split) for part in split])
        table.rows.append(row)
    means = ["mean share"]
    for of in shares.values():
        means += [percent(sum(part) / len(of)) for part in zip(*of, strict=True)] or ["–"] * len(parts)
    table.rows.append(means)
    return table


def _profiles(title: str, found: dict[str, Found]) -> dict[str, str]:
    """Of all these questions together, by Nyala cold and warm."""
    out = {}
    for source in ("cold", "warm"):
        costs = [one.costs[source] for one in found.values() if source in one.costs]
        if costs:
            together = merged(costs)
            out[f"{title}, {source} ({_count(together.calls)} calls)"] = profile_text(together, 10)
    return out


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


if __name__ == "__main__":
    from bench.__main__ import main

    main([TPCH])
