"""Backfill: upserts of old keys into a table whose key index is four times the cache, against today's keys; with peers.

The table is lineitem with a text of 48 letters at the end of its key, as a reference or a UUID would be: numbers alone
make a key index so small that no cache which Nyala can be given is a quarter of it. Old keys lie all over the table,
half of them new among those that are there; today's are the last ones and such that follow them, half of them new too.
In turns, after one of each that does not count and one under a profile. At the end the rows are counted.

    nyala         memory_limit is what its files have for finding keys (encoded keys, bloom filters, columns of the
                  key), or 16 MB, the least that it takes; its block cache is a quarter of that
    sqlite        its cache is a quarter of the index of its primary key (dbstat)
    duckdb        as it is: how large its index is it does not tell, and with Nyala's memory_limit it ended with
                  "Out of Memory" (2.0.0, 300,000 rows, 18.6 MB, 2026-11-22)
    lance-memwal  as it is: it has no such setting, and does not look for keys
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bench import data
from bench.costs import Cost, PeakMemory, cost, profile_text
from bench.measure import percentile
from bench.parts import Say, in_own_process, ratio
from bench.report import Aim, Report, Table, megabytes, seconds, times
from bench.rows import Rows
from bench.stores.keyed import (
    Keyed,
    KeyedLanceMemWal,
    KeyedNyala,
    KeyedSqlite,
    open_keyed,
)

STORES: Final = ("nyala", "sqlite", "duckdb", "lance-memwal")
TIMES: Final = 4.0  # so many times the cache the key index is to be
KEY: Final = [*data.LINEITEM_KEY, "l_ref"]
REF_LETTERS: Final = 48
_LETTERS: Final = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8)
_MEMORY_LIMIT_MIN: Final = 16_000_000
TITLES: Final = {"old": "old keys", "today": "today's keys"}
_NEW_LINE: Final = 40


@dataclass(frozen=True)
class Plan:
    rows: int  # of lineitem's first
    upserts: int
    batch_rows: int
    peer_s: float  # a peer's upserts end after so many seconds


@dataclass
class Backfilled:
    """Of one store."""

    name: str
    index_bytes: int | None
    cache_bytes: int | None
    setting: str
    taken: dict[str, list[float]] = field(default_factory=dict)
    costs: dict[str, Cost] = field(default_factory=dict)
    memory: int | None = None

    @property
    def index_to_cache(self) -> float | None:
        return ratio(self.index_bytes, self.cache_bytes)

    def p50(self, what: str) -> float:
        return median(self.taken[what])


def run(given: str, folder: str, plan: Plan, names: Sequence[str], say: Say) -> list[Backfilled]:
    """Of those stores of `names` that take part. given: lineitem, mapped."""
    chosen = [name for name in STORES if name in names]
    if not chosen:
        return []
    path = os.path.join(folder, "backfill")
    data.write_mapped(with_refs(data.read_mapped(given).slice(0, plan.rows)), path)
    out: list[Backfilled] = []
    for name in chosen:
        own = os.path.join(folder, f"backfill-{name}")
        found = in_own_process(_load, name, path, own)
        index = found["index"]
        out.append(in_own_process(_ask, name, path, own, plan, index)["backfilled"])
        one = out[-1]
        say(f"backfill, {name}: {seconds(one.p50('old'))} against {seconds(one.p50('today'))}")
    return out


def with_refs(table: pa.Table) -> pa.Table:
    """The rows with a text of random letters, in memory of their own."""
    count = table.num_rows
    table = table.take(pa.array(np.arange(count)))  # a slice's buffers are those of the whole
    letters = _LETTERS[
        np.random.default_rng(37).integers(0, len(_LETTERS), count * REF_LETTERS, dtype=np.uint8)
    ]
    ends = np.arange(0, (count + 1) * REF_LETTERS, REF_LETTERS, dtype=np.int32)
    refs = pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(letters.tobytes())]
    )
    return table.append_column(pa.field("l_ref", pa.string(), nullable=False), refs).combine_chunks()


class Batches:
    """Upserts of both kinds, each half of new rows; the same for every store. Today's begin with the last rows."""

    def __init__(self, table: pa.Table, batch_rows: int) -> None:
        self.size = min(batch_rows, table.num_rows // 8)
        self.half = self.size // 2
        recent = 4 * self.size
        self._old = Rows(table.slice(0, table.num_rows - recent), {"old": _NEW_LINE})
        self._today = Rows(table.slice(table.num_rows - recent), {"today": _NEW_LINE})
        self._last = int(table.column("l_orderkey")[-1].as_py())
        self._rng = np.random.default_rng(22)

    def old(self, number: int) -> tuple[pa.Table, int]:
        """(the rows, how many of them are new): of no two numbers the same ones, as long as there are rows."""
        total = self._old.table.num_rows
        places = self._old.spread(number * self.half, (number + 1) * self.half)
        grows = max(0, min(self.half, total - number * self.half))
        there = self._rng.choice(total, self.half, replace=False)
        return self._old.half_new(there, places, "old"), grows

    def today(self, number: int) -> tuple[pa.Table, int]:
        """As `old`; the new ones follow all that are there."""
        total = self._today.table.num_rows
        there = self._rng.choice(total, self.half, replace=False)
        rows = self._today.rows(self._rng.choice(total, self.half, replace=False))
        at = rows.column_names.index("l_orderkey")
        keys = self._last + 1 + number * self.half + np.arange(self.half)
        follow = rows.set_column(at, rows.schema.field(at), pa.array(keys, rows.schema.field(at).type))
        return self._today.mixed(there, follow), self.half


def _load(name: str, given: str, folder: str) -> dict[str, Any]:
    """{"index": bytes for finding keys, None where the store does not tell}"""
    store = open_keyed(name, folder)
    try:
        store.load(data.read_mapped(given), KEY)
        found = None
        if isinstance(store, KeyedSqlite):
            found = store.key_index_bytes()
    finally:
        store.close()
    return {"index": key_index_bytes(folder) if name == "nyala" else found}


def key_index_bytes(folder: str) -> int:
    """What a store's files have for finding keys: encoded keys, bloom filters, and the columns of the key, of which the
    keys are made that are not stored."""
    import nyala
    from bench.stores.nyala_store import base_files
    from nyala.cfile.column import BASE, BLOOM
    from nyala.cfile.column import KEY as ENCODED_KEY
    from nyala.cfile.reader import CFileReader
    from nyala.env import SYSTEM

    total = 0
    with nyala.connect(folder, read_only=True) as db:
        schema = db._store.root.table("t").schema
        key_ids = {schema.by_name(name).id for name in KEY}
        for path in base_files(db, "t"):
            with CFileReader(SYSTEM.files, path) as reader:
                for key in reader.columns():
                    column = reader.column(key)
                    is_of_key = key.role in (BLOOM, ENCODED_KEY) or (
                        key.role == BASE and key.column_id in key_ids
                    )
                    if column is not None and is_of_key:
                        total += column.size_bytes
    return total


def _opened(name: str, folder: str, index: int | None) -> tuple[Keyed, Backfilled]:
    """The loaded store, of those that can be told so with a cache of a quarter of its key index."""
    store: Keyed
    if name == "nyala":
        limit = max(_MEMORY_LIMIT_MIN, index or 0)
        store = KeyedNyala(folder, memory_limit=limit)
        cache = store.db._store.cache.limit_bytes
        return store, Backfilled(name, index, cache, f"memory_limit {megabytes(limit)}")
    store = open_keyed(name, folder)
    if isinstance(store, KeyedSqlite):
        cache = None if index is None else index // int(TIMES)
        store.open_loaded(KEY, cache)
        return store, Backfilled(name, index, cache, f"cache_size {megabytes(cache)}")
    if isinstance(store, KeyedLanceMemWal):
        store.open_loaded()
    return store, Backfilled(name, index, None, "as in all steps")


def _ask(name: str, given: str, folder: str, plan: Plan, index: int | None) -> dict[str, Any]:
    """{"backfilled": `Backfilled`}: upserts of both kinds in turns.

    Raises: AssertionError for rows that are missing at the end.
    """
    table = data.read_mapped(given)
    batches = Batches(table, plan.batch_rows)
    store, found = _opened(name, folder, index)
    expected = table.num_rows
    memory = PeakMemory()
    try:
        with memory.running():
            begun = perf_counter()
            for number in range(plan.upserts + 2):
                if name != "nyala" and number > 2 and perf_counter() - begun > plan.peer_s:
                    break
                given_now = {"old": batches.old(number), "today": batches.today(number)}
                for what in ("old", "today") if number % 2 else ("today", "old"):
                    batch, added = given_now[what]
                    expected += added
                    store.overhead_s = 0.0
                    if number == 1:
                        found.costs[what] = cost(lambda batch=batch: store.upsert(batch), top=1000).short(20)
                        continue
                    asked = perf_counter()
                    store.upsert(batch)
                    if number:
                        found.taken.setdefault(what, []).append(perf_counter() - asked - store.overhead_s)
        counted = store.count()
        if counted != expected:
            raise AssertionError(f"{name} has {counted:,} rows after the backfill, not {expected:,}")
    finally:
        store.close()
    found.memory = memory.most
    return {"backfilled": found}


# ------------------------------------------------------------------------------------------- report


def report_on(report: Report, found: Sequence[Backfilled], plan: Plan, calls: Any, moved: Any) -> None:
    """Tables, profiles and the aim. calls, moved: a `Cost`'s as text."""
    if not found:
        return
    table = Table(["backfill", "made", "p50", "p99", "old ÷ today", "calls", "bytes read / written"])
    for one in found:
        for what, title in TITLES.items():
            taken, one_cost = one.taken[what], one.costs[what]
            table.rows.append(
                [
                    f"{one.name}, {title}",
                    f"{len(taken):,}",
                    seconds(median(taken)),
                    seconds(percentile(taken, 0.99)),
                    times(ratio(one.p50("old"), one.p50("today"))) if what == "old" else "",
                    calls(one_cost),
                    moved(one_cost),
                ]
            )
    report.tables.append(
        (
            f"Backfill: upserts of {plan.batch_rows:,} rows, half of them new, into the first {plan.rows:,} rows of "
            f"lineitem with a text of {REF_LETTERS} letters in the key; a peer's end after {plan.peer_s:g} s",
            table,
        )
    )
    room = Table(["backfill", "setting", "key index", "cache", "key index ÷ cache", "most memory"])
    for one in found:
        room.rows.append(
            [
                one.name,
                one.setting,
                megabytes(one.index_bytes),
                megabytes(one.cache_bytes),
                times(one.index_to_cache),
                megabytes(one.memory),
            ]
        )
    report.tables.append(("Backfill: what is kept of keys, and where there is room for it", room))
    ours = next((one for one in found if one.name == "nyala"), None)
    if ours is not None:
        share = ours.index_to_cache
        report.aims.append(
            Aim(
                f"backfill: the key index at least {TIMES:.1f} × the cache",
                f"{times(share)} ({megabytes(ours.index_bytes)}, {megabytes(ours.cache_bytes)})",
                None if share is None else share >= TIMES,
            )
        )
        for what, title in TITLES.items():
            report.profiles[f"nyala, backfill, {title} ({calls(ours.costs[what])} calls)"] = profile_text(
                ours.costs[what]
            )
