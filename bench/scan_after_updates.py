"""Measures what updates cost later scans: TPC-H Q1, Q6 and a sum of the updated column, before and
after compaction.

For each share of the rows, a copy of the table gets new values of `l_quantity` in random rows of
this share. Then the copy and the unchanged table run the queries in turns: first runs on just
opened stores, and repeated runs, which use caches. Q1 sums `l_quantity`, Q6 filters it, and the
last query sums it, so every query needs the updates.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench import data
from bench.measure import SCANS_UNTIL_KEPT, Paired, in_turns, paired, timed
from bench.parts import Say
from bench.report import Report, Table, at_most, seconds, times
from bench.stores import SCAN, Kind, Options, Query, choose

UPDATED = "l_quantity"
# After this many runs, Nyala's caches do not change any more.
UNMEASURED = SCANS_UNTIL_KEPT + 1
STATES = {
    "before": "before compaction",
    "before, first": "before compaction, first run",
    "after": "after compaction",
    "after, first": "after compaction, first run",
}
QUERIES = (
    Query(
        "Q1",
        """SELECT l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice),
                  sum(l_extendedprice * (1 - l_discount)), sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)),
                  avg(l_quantity), avg(l_extendedprice), avg(l_discount), count(*)
           FROM t WHERE l_shipdate <= DATE '1998-09-02'
           GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus""",
        [
            "l_quantity",
            "l_extendedprice",
            "l_discount",
            "l_tax",
            "l_returnflag",
            "l_linestatus",
            "l_shipdate",
        ],
        "l_shipdate <= '1998-09-02'",
    ),
    Query(
        "Q6",
        """SELECT sum(l_extendedprice * l_discount) FROM t
           WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
             AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24""",
        ["l_quantity", "l_extendedprice", "l_discount", "l_shipdate"],
        "l_shipdate >= '1994-01-01' AND l_shipdate < '1995-01-01' AND l_discount BETWEEN 0.05 AND 0.07 "
        "AND l_quantity < 24",
    ),
    Query("sum", "SELECT sum(l_quantity) FROM t", ["l_quantity"]),
)


@dataclass(frozen=True)
class Scale:
    name: str
    scale_factor: float
    repeats: int
    shares: tuple[float, ...] = (0.0, 0.01, 0.05, 0.10, 0.50)
    batch_rows: int = 10_000
    first_runs: int = 7
    enough_s: float = 1.0


FULL = Scale("full", 1.0, 7)
QUICK = Scale("quick", 0.1, 7)


@dataclass
class Measured:
    """The figures of one store: pairs by (share, query, state)."""

    kind: Kind
    pairs: dict[tuple[float, str, str], Paired] = field(default_factory=dict)
    update_s: dict[float, float] = field(default_factory=dict)
    compact_s: dict[float, float] = field(default_factory=dict)


def run(scale: Scale, folder: str, stores: Sequence[str] | None, say: Say) -> Report:
    """Measure, and return the report."""
    table, source = data.lineitem(scale.scale_factor, folder)
    say(f"{source}: {table.num_rows:,} rows")
    measured = []
    for kind in choose(SCAN, stores, say):
        store = kind.open(os.path.join(folder, kind.name), Options(maintenance=False))
        took_s = timed(store.load, table, data.LINEITEM_KEY)
        store.close()
        say(f"{kind.name}: loaded in {took_s:.1f} s")
        measured.append(Measured(kind))
    keys = table.select([*data.LINEITEM_KEY, UPDATED])
    rows = table.num_rows
    del table
    # The first rows of one permutation, so the 10 % include the 5 %.
    order = np.random.default_rng(7).permutation(rows)
    for share in scale.shares:
        changed = keys.take(pa.array(np.sort(order[: int(rows * share)])))
        # In random order, as updates of users.
        changed = changed.take(pa.array(np.random.default_rng(8).permutation(len(changed))))
        raised = pc.add(changed.column(UPDATED), pa.scalar(Decimal("1.00"), data.MONEY)).cast(data.MONEY)
        changed = changed.set_column(2, UPDATED, raised)
        total = pc.sum(keys.column(UPDATED)).as_py() + len(changed)
        answers: dict[str, list[tuple[object, ...]]] = {}
        for one in measured:
            _measure(one, scale, share, changed, total, answers, folder, say)
    return _report(measured, scale, f"{source}, {rows:,} rows")


def _rounded(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Round doubles, because averages depend on the order of adding."""
    return [tuple(round(float(v), 4) if isinstance(v, float | Decimal) else v for v in row) for row in rows]


def _measure(
    one: Measured,
    scale: Scale,
    share: float,
    changed: pa.Table,
    total: Decimal,
    answers: dict[str, list[tuple[object, ...]]],
    folder: str,
    say: Say,
) -> None:
    """Measure one store. answers: results by query on the updated table; the first store fills
    them, others are compared.
    """
    untouched_folder, touched_folder = os.path.join(folder, one.kind.name), os.path.join(folder, "touched")
    shutil.copytree(untouched_folder, touched_folder)
    if os.path.exists(untouched_folder + ".key"):
        shutil.copy(untouched_folder + ".key", touched_folder + ".key")
    options = Options(maintenance=False)
    untouched, touched = one.kind.open(untouched_folder, options), one.kind.open(touched_folder, options)

    def check(query: Query, state: str, rows: list[tuple[object, ...]]) -> None:
        """Check that the updated table has the same results as before, and as in other stores."""
        found = _rounded(rows)
        if answers.setdefault(query.name, found) != found:
            raise AssertionError(
                f"{one.kind.name} at {share:.0%} {state}: {query.name} is {found}, was {answers[query.name]}"
            )

    def first_runs(query: Query, state: str) -> Paired:
        nonlocal untouched, touched
        took: tuple[list[float], list[float]] = ([], [])
        rows: list[tuple[object, ...]] = []

        def run(store: Any) -> None:
            nonlocal rows
            rows = store.run(query)

        for number in range(scale.first_runs):
            touched.close()
            untouched.close()
            untouched, touched = (one.kind.open(f, options) for f in (untouched_folder, touched_folder))
            for place in (0, 1) if number % 2 == 0 else (1, 0):
                took[place].append(timed(run, (untouched, touched)[place]))
                if place:
                    check(query, state + ", first run", rows)
        return paired(*took)

    def update() -> None:
        # Nyala gets many small batches. The other stores get one statement: small batches would
        # take them minutes to hours, and make their scans slower.
        step = scale.batch_rows if one.kind.name == "nyala" else max(1, len(changed))
        for start in range(0, len(changed), step):
            touched.update(changed.slice(start, step))
        touched.flush()

    def compare(state: str) -> None:
        answer = touched.run(QUERIES[-1])[0][0]
        if Decimal(str(answer)) != total:
            raise AssertionError(f"{one.kind.name} at {share:.0%} {state}: the sum is {answer}, not {total}")
        for query in QUERIES:
            one.pairs[share, query.name, state] = in_turns(
                partial(untouched.run, query),
                partial(touched.run, query),
                scale.repeats,
                scale.enough_s,
                unmeasured=UNMEASURED,
            )
            check(query, state, touched.run(query))
        for query in QUERIES:
            one.pairs[share, query.name, state + ", first"] = first_runs(query, state)
        shown = ", ".join(
            f"{q.name} {one.pairs[share, q.name, state].ratio:.2f} × (first run "
            f"{one.pairs[share, q.name, state + ', first'].ratio:.2f} ×)"
            for q in QUERIES
        )
        say(f"{one.kind.name}, {share:.0%} updated, {state}: {shown}")

    try:
        one.update_s[share] = timed(update)
        compare("before")
        if share:
            compacted = []
            one.compact_s[share] = timed(lambda: compacted.append(touched.compact()))
            if compacted[0]:
                compare("after")
    finally:
        touched.close()
        untouched.close()
        shutil.rmtree(touched_folder)


def _report(measured: list[Measured], scale: Scale, source: str) -> Report:
    table = Table(["store, query", "untouched", *(f"{share:.0%}" for share in scale.shares)])
    for one in measured:
        for query in QUERIES:
            for state, title in STATES.items():
                pairs = [one.pairs.get((share, query.name, state)) for share in scale.shares]
                known = [pair for pair in pairs if pair]
                if known and (one.kind.name == "nyala" or "first" not in state):
                    cells = [times(pair.ratio) if pair else "–" for pair in pairs]
                    name = f"{one.kind.name}, {query.name} {title}"
                    table.rows.append([name, seconds(known[0].first_s), *cells])
        for title, taken in (("the update", one.update_s), ("compaction", one.compact_s)):
            shares = [seconds(taken.get(share)) for share in scale.shares if share]
            table.rows.append([f"{one.kind.name}, {title}", "", "", *shares])
    report = Report(
        SCAN,
        f"Scans after updates (SF {scale.scale_factor:g})",
        f"{source}; a share of the rows has one column updated; the time of Q1, Q6 and a sum of that column ÷ the "
        "untouched table's, by DuckDB, medians of runs in turns; 0 % compares two untouched tables",
        table,
    )
    ours = next((one for one in measured if one.kind.name == "nyala"), None)
    if ours is not None:
        for state, title in STATES.items():
            found = [ours.pairs.get((0.10, query.name, state)) for query in QUERIES]
            worst = max((pair.ratio for pair in found if pair), default=None)
            bound = 1.3 if "before" in state else 1.05
            report.aims.append(
                at_most(f"10 % updated, {title}: at most {bound} × the untouched", worst, bound)
            )
    return report


if __name__ == "__main__":
    from bench.__main__ import main

    main([SCAN])
