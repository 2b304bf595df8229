"""Loading lineitem, changing it by key, looking rows up by key: Nyala in one tablet and in four, and peers.

Each store has a process of its own and the steps in one order: load; get of keys that were not asked for yet, and of
the same keys again; 1,000 keys, key ranges; single-row inserts; upserts of 1,000 rows, half of them new, with uniform
and then with Zipfian keys; one column in 10,000 rows; deletes of 1,000 keys. Every write is durable when it has
returned. Each step is measured after one unmeasured call, then run once more under a profile for its calls and bytes,
so a profile costs the times nothing; for the load that is a load into a second store, in a process of its own. At the
end the rows are counted. Upserts of old keys into a table whose key index is four times the cache: `bench.backfill`.

What a write of Nyala takes beside its sync is measured in each call: its time less its own syncs (`bench.syncs`). "One
sync", before the load and after the last step, is of other moments, and stands for peers, whose syncs nobody sees.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa

from bench import backfill, data
from bench.costs import Cost, PeakMemory, cost, moved_bytes, profile_text
from bench.measure import folder_bytes, percentile, summary, synced_append_s
from bench.parts import Say, in_own_process, ratio
from bench.report import Aim, Report, Table, megabytes, seconds, times
from bench.rows import CHANGED, ZIPF_EXPONENT, Rows
from bench.stores import INGEST, choose
from bench.stores.keyed import Keyed, KeyedNyala, open_keyed
from bench.syncs import SyncWatch, less

HASHED = "nyala-hash4"
# Line numbers of TPC-H are 1 to 7: these are new keys among the old ones, in this data and in what stands in for it.
NEW_LINES = {"insert": 10, "uniform": 20, "zipf": 30}
STEPS = {
    "get_first": "get, first time",
    "get": "get, again",
    "get_many": "1,000 keys",
    "range": "key range of about 100 rows",
    "insert": "insert of one row",
    "uniform": "upsert of 1,000, uniform",
    "zipf": "upsert of 1,000, Zipfian",
    "update": "one column in 10,000 rows",
    "delete": "delete of 1,000 keys",
}
WRITES = ("insert", "uniform", "zipf", "update", "delete")


@dataclass(frozen=True)
class Scale:
    name: str
    scale_factor: float
    inserts: int = 300
    upserts: int = 100
    updates: int = 10
    deletes: int = 10
    gets: int = 1000
    many: int = 20
    ranges: int = 1000
    backfills: int = 50
    backfill_rows: int = 2_000_000
    batch_rows: int = 1000
    update_rows: int = 10_000
    # A peer's step ends after so many seconds, with what was made until then.
    peer_step_s: float = 30.0


# Of quick's backfill the key index is to be 16 MB at least: Nyala takes no smaller limit of memory.
FULL = Scale("full", 1.0)
QUICK = Scale(
    "quick", 0.05, upserts=50, gets=300, ranges=300, backfills=20, backfill_rows=300_000, peer_step_s=5.0
)


@dataclass
class Measured:
    name: str
    settings: str
    figures: dict[str, Any] = field(default_factory=dict)

    def taken(self, step: str) -> list[float]:
        found: list[float] = self.figures.get("taken", {}).get(step, [])
        return found

    def p50(self, step: str) -> float | None:
        taken = self.taken(step)
        return median(taken) if taken else None

    def synced(self, step: str) -> list[float]:
        """Seconds of each call's own syncs, in the order of `taken`; empty where they were not seen."""
        found: list[float] = self.figures.get("synced", {}).get(step, [])
        return found

    def unsynced(self, step: str) -> list[float]:
        """Seconds of each call less its own syncs."""
        return less(self.taken(step), self.synced(step))


def run(scale: Scale, folder: str, stores: Sequence[str] | None, say: Say) -> Report:
    """Measure, and report."""
    table, source = data.lineitem(scale.scale_factor, folder)
    say(f"{source}: {table.num_rows:,} rows")
    given = os.path.join(folder, "lineitem")
    data.write_mapped(table, given)
    facts = f"{source}, {table.num_rows:,} rows of {table.num_columns} columns, {megabytes(table.nbytes)} in Arrow"
    rows = table.num_rows
    del table
    measured = []
    for kind in choose(INGEST, stores, say):
        for name in (kind.name, HASHED) if kind.name == "nyala" else (kind.name,):
            figures = in_own_process(_measure, name, given, os.path.join(folder, name), scale)
            again = in_own_process(_load_again, name, given, os.path.join(folder, f"{name}-again"))["cost"]
            once = figures["costs"]["load"]  # whose bytes no profile's are among
            figures["costs"]["load"] = replace(again, read=once.read, written=once.written)
            measured.append(Measured(name, kind.settings, figures))
            say(_said(measured[-1]))
    plan = backfill.Plan(
        min(scale.backfill_rows, rows), scale.backfills, scale.batch_rows, 2 * scale.peer_step_s
    )
    backfilled = backfill.run(given, folder, plan, [one.name for one in measured], say)
    report = _report(measured, scale, facts)
    backfill.report_on(report, backfilled, plan, _calls, _moved)
    return report


def _said(one: Measured) -> str:
    found = ", ".join(f"{step} {seconds(one.p50(step))}" for step in STEPS if one.p50(step) is not None)
    return f"{one.name}: loaded in {seconds(one.figures['load_s'])}; {found}"


# ------------------------------------------------------------------------------------------- one store


def _measure(name: str, given: str, folder: str, scale: Scale) -> dict[str, Any]:
    """All steps of one store, in this process."""
    rows = Rows(data.read_mapped(given), NEW_LINES)
    memory, watch = PeakMemory(), SyncWatch()
    with memory.running(), watch.running():
        store = open_keyed(name, folder)
        try:
            return _steps(store, name, rows, folder, scale, memory, watch)
        finally:
            store.close()


def _steps(
    store: Keyed, name: str, rows: Rows, folder: str, scale: Scale, memory: PeakMemory, watch: SyncWatch
) -> dict[str, Any]:
    memory.step = "load"
    sync_s = [synced_append_s(os.path.dirname(folder)) for _ in range(15)]
    before, begun = moved_bytes(), perf_counter()
    store.load(rows.table, data.LINEITEM_KEY)
    took_s = perf_counter() - begun - store.overhead_s
    memory.look()
    found: dict[str, Any] = {"load_s": took_s, "disk": folder_bytes(folder)}
    taken: dict[str, list[float]] = {}
    synced: dict[str, list[float]] = {}
    costs: dict[str, Cost] = {"load": _bytes_since(before)}
    wrong: list[str] = []
    expected = rows.table.num_rows

    for step, actions in _actions(store, rows, scale):
        if step == "insert" and isinstance(store, KeyedNyala):
            found["get_many_1gb"], costs["get_many_1gb"] = _with_less_memory(store, rows, scale)
        memory.look()
        memory.step = step
        limit_s = scale.peer_step_s if not name.startswith("nyala") else float("inf")
        mine: list[float] = []
        syncs: list[float] = []
        begun = perf_counter()
        try:
            for number, (action, added, answer) in enumerate(actions):
                if number > 2 and perf_counter() - begun > limit_s:
                    break
                store.overhead_s = 0.0
                if number == 1:  # the warm-up was 0; the profile takes the second, the clock the others
                    held: list[Any] = []
                    costs[step] = cost(lambda action=action, held=held: held.append(action()))
                    got = held[0]
                else:
                    got, took_s, sync_in_s = watch.timed(action)
                    if number:
                        mine.append(took_s - store.overhead_s)
                        syncs.append(sync_in_s)
                expected += added
                if answer is not None and got != answer:
                    wrong.append(f"{step}: {got}, not {answer}")
        except NotImplementedError:
            continue
        finally:
            memory.look()
        if mine:
            taken[step] = mine
        if mine and step in WRITES and isinstance(store, KeyedNyala):
            synced[step] = syncs
    if wrong:
        raise AssertionError(f"{name} answered wrongly: {'; '.join(wrong[:3])}")
    counted = store.count()
    found["not_shown"] = getattr(store, "not_shown", 0)
    if counted != expected:
        raise AssertionError(f"{name} has {counted:,} rows at the end, not {expected:,}")
    if isinstance(store, KeyedNyala):
        found["range_explain"] = _explained(store, rows)
    sync_s += [synced_append_s(os.path.dirname(folder)) for _ in range(15)]
    found |= {"taken": taken, "synced": synced, "costs": costs, "sync_s": median(sync_s)}
    return found | {"memory": memory.most, "memory_by_step": memory.seen}


def _bytes_since(before: tuple[int, int] | None) -> Cost:
    after = moved_bytes()
    if before is None or after is None:
        return Cost(None, None, None, ())
    return Cost(None, after[0] - before[0], after[1] - before[1], ())


def _load_again(name: str, given: str, folder: str) -> dict[str, Any]:
    """{"cost": of a load into another store}"""
    table = data.read_mapped(given)
    store = open_keyed(name, folder)
    try:
        return {"cost": cost(lambda: store.load(table, data.LINEITEM_KEY))}
    finally:
        store.close()
        shutil.rmtree(folder)


def _with_less_memory(store: KeyedNyala, rows: Rows, scale: Scale) -> tuple[float, Cost]:
    """`get_many` at the default memory_limit: the median, and what one costs; the store is then as it was, with warm
    caches."""
    rng = np.random.default_rng(44)
    total, size = rows.table.num_rows, min(scale.batch_rows, rows.table.num_rows // 8)
    some = [rows.keys(rng.choice(total, size, replace=False)) for _ in range(scale.many + 3)]
    store.reopen("1GB")
    _clocked(store.get_many, some[:2])
    took_s = _clocked(store.get_many, some[3:])
    found = cost(lambda: store.get_many(some[2]))
    store.reopen("4GB")
    _clocked(store.get_many, some[:2])
    return took_s, found


def _clocked(action: Callable[[Any], Any], arguments: Sequence[Any]) -> float:
    taken = []
    for argument in arguments:
        begun = perf_counter()
        action(argument)
        taken.append(perf_counter() - begun)
    return median(taken)


# One call: what is done, by how many rows the table grows, and what it must answer (None: nothing to compare).
Call = tuple[Callable[[], Any], int, Any]


def _actions(store: Keyed, rows: Rows, scale: Scale) -> Iterator[tuple[str, Iterator[Call]]]:
    """The steps in their order. Data are made while iterating, so not inside of what is timed."""
    total, size = rows.table.num_rows, min(scale.batch_rows, rows.table.num_rows // 8)
    rng = np.random.default_rng(11)
    orderkeys = rows.table.column("l_orderkey")

    asked = rows.keys(rng.integers(0, total, scale.gets + 2)).to_pylist()

    def gets() -> Iterator[Call]:
        for key in asked:
            yield (lambda key=key: store.get(key)), 0, True

    def manys() -> Iterator[Call]:
        for _ in range(scale.many + 2):
            keys = rows.keys(rng.choice(total, size, replace=False))
            yield (lambda keys=keys: store.get_many(keys)), 0, size

    def ranges() -> Iterator[Call]:
        places = rng.integers(0, max(1, total - 110), scale.ranges + 2)
        lowers = orderkeys.take(pa.array(places)).to_pylist()
        uppers = orderkeys.take(pa.array(np.minimum(places + 97, total - 1))).to_pylist()
        for lower, upper in zip(lowers, uppers, strict=True):
            yield (lambda lower=lower, upper=upper: store.key_range("l_orderkey", lower, upper)), 0, None

    def inserts() -> Iterator[Call]:
        for number in range(scale.inserts + 2):
            row = rows.new(rows.spread(number, number + 1), "insert")
            yield (lambda row=row: store.insert(row)), 1, None

    def upserts(step: str) -> Iterator[Call]:
        half = size // 2
        for number in range(scale.upserts + 2):
            if step == "zipf":
                old = rows.zipfian(rng, half)
            else:
                old = rng.choice(total, half, replace=False)
            places = rows.spread(number * half, (number + 1) * half)
            # A small table is used up: what comes again is no longer new.
            grows = max(0, min(half, total - number * half))
            batch = rows.half_new(old, places, step)
            yield (lambda batch=batch: store.upsert(batch)), grows, None

    def updates() -> Iterator[Call]:
        for number in range(scale.updates + 2):
            keys = rows.keys(np.sort(rng.choice(total, min(scale.update_rows, total), replace=False)))
            values = pa.array([Decimal(number + 1)] * len(keys), rows.table.schema.field(CHANGED).type)
            batch = keys.append_column(rows.table.schema.field(CHANGED), values).combine_chunks()
            yield (lambda batch=batch: store.update(batch)), 0, None

    def deletes() -> Iterator[Call]:
        for number in range(min(scale.deletes + 2, total // size)):
            keys = rows.keys(rows.spread(number * size, (number + 1) * size)).combine_chunks()
            yield (lambda keys=keys: store.delete(keys)), -size, None

    yield "get_first", gets()
    yield "get", gets()
    yield "get_many", manys()
    yield "range", ranges()
    yield "insert", inserts()
    yield "uniform", upserts("uniform")
    yield "zipf", upserts("zipf")
    yield "update", updates()
    yield "delete", deletes()


def _explained(store: KeyedNyala, rows: Rows) -> dict[str, Any]:
    """What one key range reads of a store that is opened anew."""
    store.reopen("4GB")
    at = rows.table.num_rows // 2
    upper = min(at + 97, rows.table.num_rows - 1)
    keys = rows.keys(np.array([at, upper])).column(0).to_pylist()
    told: dict[str, Any] = store.scan_of("l_orderkey", keys[0], keys[1]).explain().to_dict()
    return told


# ------------------------------------------------------------------------------------------- report


def _report(measured: list[Measured], scale: Scale, source: str) -> Report:
    report = Report(
        INGEST, scale.name, f"Ingest and look-up ({scale.name}: lineitem of SF {scale.scale_factor:g})"
    )
    report.facts = [
        source,
        f"Each store in its own process; a step ends for peers after {scale.peer_step_s:g} s with what was made "
        "until then; one unmeasured call before each step; rows are counted at the end",
        "New keys lie among the old ones (other line numbers of orders that are there); half of an upsert's rows "
        f"are new; Zipfian keys with exponent {ZIPF_EXPONENT:g}, the hot rows scattered over the table",
        "Calls are of Python functions and of C's that Python calls; what stores in C and Rust call inside is not "
        "counted, so that a peer's are those that reach it from Python; a load's are of a second one; bytes are those "
        "of system calls by any thread",
        "Memory is without what files stand behind; puts of lance-memwal do not look whether a key is there; SQLite "
        "keeps decimals as doubles",
    ]
    report.facts += [
        f"{one.name}: at the end its scanner did not show {one.figures['not_shown']:,} rows, which were there after "
        "merging its SSTables"
        for one in measured
        if one.figures["not_shown"]
    ]
    ours = next((one for one in measured if one.name == "nyala"), None)
    report.settings = {
        one.name: 'durability "commit", memory_limit 4GB, '
        + ("hash(l_orderkey) in 4" if one.name == HASHED else "one tablet")
        if one.name.startswith("nyala")
        else one.settings
        for one in measured
    }

    table = Table(["median", "load", *STEPS.values(), "one sync"])
    for one in measured:
        cells = [_beside(one.figures["load_s"], ours and ours.figures["load_s"], one)]
        cells += [_beside(one.p50(step), ours and ours.p50(step), one) for step in STEPS]
        table.rows.append([one.name, *cells, seconds(one.figures["sync_s"])])
    report.tables.append(("Seconds (Nyala's unpartitioned ÷ it)", table))

    if found_syncs := _beside_syncs(measured):
        report.tables.append(
            (
                "Nyala's writes: medians of the call, of its syncs, and of each call less its own; the rest is of the "
                "latter",
                found_syncs,
            )
        )

    spread = Table(
        ["latency", "made", "p50", "p99", "worst", "p50 of the first tenth", "of the last", "last ÷ first"]
    )
    for one in measured:
        for step, title in STEPS.items():
            found = summary(one.taken(step))
            if found:
                first, last = _ends(one.taken(step))
                spread.rows.append(
                    [
                        f"{one.name}, {title}",
                        f"{found.count:,}",
                        seconds(found.p50_s),
                        seconds(found.p99_s),
                        seconds(found.worst_s),
                        seconds(first),
                        seconds(last),
                        times(ratio(last, first)),
                    ]
                )
    report.tables.append(("Every step, first against last", spread))

    costed = {"load": "load", **STEPS, "get_many_1gb": "1,000 keys, memory_limit 1GB"}
    costs = Table(["calls and bytes of one", *costed.values()])
    for one in measured:
        found_costs: dict[str, Cost] = one.figures["costs"]
        if not found_costs:
            continue
        costs.rows.append([f"{one.name}, calls", *(_calls(found_costs.get(step)) for step in costed)])
        costs.rows.append(
            [f"{one.name}, bytes read / written", *(_moved(found_costs.get(step)) for step in costed)]
        )
    report.tables.append(("Calls of Python (cProfile), and bytes through system calls", costs))

    space = Table(["space", "on disk after the load", "most memory", "load", *STEPS.values()])
    for one in measured:
        by_step = one.figures["memory_by_step"]
        space.rows.append(
            [
                one.name,
                megabytes(one.figures["disk"]),
                megabytes(one.figures["memory"]),
                *(megabytes(by_step.get(step)) for step in ("load", *STEPS)),
            ]
        )
    report.tables.append(("Disk, and memory in all and in each step", space))

    if ours is not None:
        _judge(report, ours)
        told = ours.figures["range_explain"]
        report.facts.append(
            f"A key range of a store just opened: {told['blocks_total'] - told['blocks_skipped']} of "
            f"{told['blocks_total']} blocks, {told['bytes_read']:,} bytes (explain)"
        )
    for one in measured:
        if one.name.startswith("nyala"):
            for step, title in costed.items():
                if found_cost := one.figures["costs"].get(step):
                    report.profiles[f"{one.name}, {title} ({_calls(found_cost)} calls)"] = profile_text(
                        found_cost
                    )
    return report


def _beside_syncs(measured: Sequence[Measured]) -> Table | None:
    table = Table(
        ["write", "made", "call", "its syncs", "less its syncs", "p99", "first tenth", "last", "last ÷ first"]
    )
    for one in measured:
        for step in WRITES:
            without = one.unsynced(step)
            if without:
                first, last = _ends(without)
                table.rows.append(
                    [
                        f"{one.name}, {STEPS[step]}",
                        f"{len(without):,}",
                        seconds(one.p50(step)),
                        seconds(median(one.synced(step))),
                        seconds(median(without)),
                        seconds(percentile(without, 0.99)),
                        seconds(first),
                        seconds(last),
                        times(ratio(last, first)),
                    ]
                )
    return table if table.rows else None


def _judge(report: Report, ours: Measured) -> None:
    def aim(text: str, figure: float | None, bound: float, more: str = "") -> None:
        report.aims.append(Aim(text, seconds(figure) + more, None if figure is None else figure <= bound))

    def beside_sync(text: str, step: str, bound: float) -> None:
        without = ours.unsynced(step)
        if not without:
            report.aims.append(Aim(text, f"{seconds(ours.p50(step))}, of which nobody saw the sync", None))
            return
        paid = (
            f" without its sync (call {seconds(ours.p50(step))}, sync {seconds(median(ours.synced(step)))})"
        )
        aim(text, median(without), bound, paid)

    aim("load at most 5 s", ours.figures["load_s"], 5.0)
    beside_sync("insert of one row at most sync + 0.5 ms", "insert", 0.5e-3)
    for step in ("uniform", "zipf"):
        beside_sync(f"{STEPS[step]}: at most sync + 4 ms", step, 4e-3)
        grown = ratio(*reversed(_ends(ours.unsynced(step))))
        with_syncs = ratio(*reversed(_ends(ours.taken(step))))
        report.aims.append(
            Aim(
                f"{STEPS[step]}: flat (without syncs, the last tenth at most 1.2 × the first)",
                f"{times(grown)} (with them {times(with_syncs)})",
                None if grown is None else grown <= 1.2,
            )
        )
    beside_sync("one column in 10,000 rows at most sync + 15 ms", "update", 15e-3)
    aim("get at most 0.3 ms, warm", ours.p50("get"), 0.3e-3, f"; first time {seconds(ours.p50('get_first'))}")
    low = ours.figures.get("get_many_1gb")
    aim(
        "1,000 keys at most 11 ms (memory_limit 4GB)",
        ours.p50("get_many"),
        11e-3,
        f"; at 1 GB {seconds(low)}",
    )
    aim("key range of about 100 rows at most 0.5 ms", ours.p50("range"), 0.5e-3)


def _ends(taken: Sequence[float]) -> tuple[float | None, float | None]:
    """Medians of the first and of the last tenth."""
    if not taken:
        return None, None
    tenth = max(1, len(taken) // 10)
    return median(taken[:tenth]), median(taken[-tenth:])


def _beside(theirs: float | None, ours: float | None, one: Measured) -> str:
    if theirs is None:
        return "–"
    return (
        seconds(theirs)
        if ours is None or one.name == "nyala"
        else f"{seconds(theirs)} ({times(ratio(ours, theirs))})"
    )


def _calls(found: Cost | None) -> str:
    return "–" if found is None or found.calls is None else f"{found.calls:,}"


def _moved(found: Cost | None) -> str:
    if found is None or found.read is None or found.written is None:
        return "–"
    return f"{found.read:,} / {found.written:,}"


if __name__ == "__main__":
    from bench.__main__ import main

    main([INGEST])
