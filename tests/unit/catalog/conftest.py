"""Catalogue entries of each kind, and a clock that a test advances."""

from __future__ import annotations

import threading
from types import MappingProxyType

import pytest

from nyala.catalog.model import (
    CatalogChange,
    CommitMessage,
    CommittedKey,
    DeltaEntry,
    PartEntry,
    PurgedRange,
    RowSetEntry,
    TableEntry,
    TabletEntry,
    TagEntry,
)
from nyala.cfile.column import ColumnKey, ColumnPlace
from nyala.env import SYSTEM, Env
from nyala.partition.model import HashLevel, Partition, PartitionSchema
from nyala.schema.schema import build_schema, column


class SteppedClock:
    """A clock that advances only in `advance` and when a test sleeps."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self.time_us = now_us

    def now_us(self) -> int:
        return self.time_us

    def monotonic_s(self) -> float:
        return self.time_us / 1e6

    def sleep_s(self, seconds: float) -> None:
        self.time_us += round(seconds * 1e6)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def env(clock: SteppedClock) -> Env:
    return Env(SYSTEM.files, clock, SYSTEM.randomness)


def places(count: int) -> tuple[ColumnPlace, ...]:
    return tuple(ColumnPlace(ColumnKey(0, 0, 10 + n), 4096 * n, 120 + n) for n in range(count))


def table(id: int = 1, name: str = "flights") -> TableEntry:
    schema = build_schema(
        {"carrier": "string", "day": "date", "delay": column("double", default=-0.5, comment="minutes")},
        ["carrier", "day"],
    )
    return TableEntry(
        id, name, "a comment", None, schema, MappingProxyType({0: schema}), PARTITIONED, 50, 30,
        MappingProxyType({0: 30}), (PurgedRange(b"\x80", None, 31, (35, 37, 45)),), 44, (33, 39), (), 47,
    )  # fmt: skip


PARTITIONED = PartitionSchema((HashLevel((11,), 64),), (10,))


def tablet(id: int = 1, table_id: int = 1, inserts_durable: int = 0) -> TabletEntry:
    return TabletEntry(
        id,
        table_id,
        Partition((id,), None if id == 1 else b"\x00a", b"\xff"),
        inserts_durable,
        31,
        () if id == 1 else (36,),
    )


def rowset(id: int = 1, tablet_id: int = 1, deltas_durable: int = 40) -> RowSetEntry:
    return RowSetEntry(
        id,
        tablet_id,
        1000,
        b"",
        b"\xff\x00k",
        deltas_durable,
        f"data/{tablet_id}/{id}.base",
        f"a{id:031x}",
        9000,
        places(3),
    )


def delta(id: int = 1, rowset_id: int = 1, kind: str = "redo") -> DeltaEntry:
    key = ColumnKey(5, 0, -1)
    return DeltaEntry(
        id,
        rowset_id,
        kind,
        f"data/1/{id}.{kind}",
        f"b{id:031x}",
        512,
        41,
        50,
        7,
        (-1, 12),
        (ColumnPlace(key, 10, 20),),
    )  # type: ignore[arg-type]


def part(id: int = 3, rowset_id: int = 1) -> PartEntry:
    return PartEntry(id, rowset_id, f"data/1/{id}.part", f"c{id:031x}", 700, places(1))


@pytest.fixture
def full_change() -> CatalogChange:
    """Return a change that adds an entry of each kind to an empty catalogue."""
    return CatalogChange(
        timestamp=60,
        put_tables=[table()],
        put_tablets=[tablet(1), tablet(2)],
        put_rowsets=[rowset(1, 1), rowset(2, 2)],
        put_parts=[part(3, 1)],
        put_deltas=[delta(1, 1, "undo"), delta(2, 1, "redo")],
        garbage=["wal/000001.log", "data/1/ü.base"],
        wal_start=2,
        committed_keys=[CommittedKey("spark-job-7", 55, '{"inserted":3}')],
        put_messages=[CommitMessage(54, "the load of May ✓")],
        put_tags=[TagEntry("before-load", 53), TagEntry("other", 53)],
    )
