"""Replay of the log (R1): replaying many records together gives the same state as one by one.

Each example creates a table, writes, flushes, and takes the records in the log. The records are
replayed on the catalogue of that moment: no flushed row may appear twice, and no other row may be
missing.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import open_database

import nyala
from nyala.api.database import Database
from nyala.cfile.blocks.cache import BlockCache
from nyala.tablet.recovery import bootstrap
from nyala.tablet.recovery.bootstrap import Replayer, ReplayReport
from nyala.tablet.scan.read_path import ScanCounters, ScanSpec, plan, run
from nyala.tablet.state.opening import open_root
from nyala.tablet.state.root import Root
from nyala.wal.record import LogRecord, ResolvedGroup

SHARED_MEMORY = "/dev/shm"
ALL_AT_ONCE = 1 << 18


@dataclass
class World:
    """A store that records its log records."""

    db: Database
    records: list[LogRecord] = field(default_factory=list)
    tables: int = 0

    def __post_init__(self) -> None:
        log = self.db._writer().log
        append = log.append

        def kept(record: LogRecord) -> Any:
            self.records.append(record)
            return append(record)

        log.append = kept  # type: ignore[method-assign]

    def table(self) -> Any:
        """Create a table with four tablets."""
        self.tables += 1
        self.records.clear()
        hashes, ranges = nyala.hash_partition("k", buckets=2), nyala.range_partition("k", splits=[2])
        columns = {"k": "int32", "a": "int64", "b": nyala.column("int8", nullable=False, default=7)}
        return self.db.create_table(f"t{self.tables}", columns, "k", [hashes, ranges])

    def catalogue_root(self) -> Root:
        """Return the root that an open builds from the catalogue, with empty memory."""
        store = self.db._writer()
        store.log_sync_all()
        return open_root(store.env, store.root_path, store.state, BlockCache(1 << 20))

    def replayed(self, *, drain_each: bool = False) -> tuple[Root, ReplayReport]:
        root = self.catalogue_root()
        replayer = Replayer(root)
        if drain_each:
            for record in self.records:
                replayer.feed([record])
                replayer.drain()
        else:
            replayer.feed(self.records)
            replayer.drain()
        return root, replayer.report


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    folder = tempfile.mkdtemp(
        prefix="nyala-unit-", dir=SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else None
    )
    db = open_database(Path(folder) / "s")
    yield World(db)
    db.close()
    shutil.rmtree(folder)


def rows_of(root: Root, name: str, at: int) -> list[tuple[Any, ...]]:
    table = root.table(name)
    spec = ScanSpec(table.schema, table.schema.columns, at, order_by_key=True)
    batches = list(run(plan(table, spec, ScanCounters()), spec, ScanCounters()))
    found = pa.Table.from_batches(batches, schema=spec.arrow_schema)
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


def same_everywhere(world: World, name: str, roots: list[Root], moments: list[int]) -> None:
    """Check that each root reads like the store, at every moment and just before it."""
    live = world.db._writer().root
    for at in sorted({m - d for m in moments for d in (0, 1)}):
        expected = rows_of(live, name, at)
        for root in roots:
            assert rows_of(root, name, at) == expected
    for root in roots:
        for _, tablet in root.tablets():
            for rowset in tablet.all_rowsets():
                rowset.check()


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["insert", "upsert", "update", "delete"]),
            st.lists(st.integers(0, 5), min_size=1, max_size=4),
            st.sampled_from([("a",), ("b",), ("a", "b")]),
            st.integers(0, 9),
        ),
        st.tuples(st.sampled_from(["batch", "flush", "flush", "failed flush"])),
    ),
    min_size=1,
    max_size=14,
)


def perform(world: World, table: Any, steps: Any) -> list[int]:
    moments = [world.db.now()]
    for number, step in enumerate(steps):
        if step == ("flush",):
            table.flush()
            continue
        if step == ("failed flush",):
            store: Any = world.db._writer()
            store._commit = _full
            with pytest.raises(nyala.StorageError):
                table.insert({"k": [100 + number], "a": [0]})
                table.flush()
            del store._commit
            continue
        if step == ("batch",):
            with world.db.batch() as batch:
                batch.upsert(table.name, {"k": [0, 3], "a": [number, number]})
                batch.delete(table.name, {"k": [0]})
                batch.insert(table.name, {"k": [0], "b": [5]})
            moments.append(batch.results[0].timestamp)
            continue
        operation, keys, columns, value = step
        data: dict[str, Any] = {"k": keys}
        if operation != "delete":
            data |= {name: [value] * len(keys) for name in columns}
        moments.append(getattr(table, operation)(data, errors="collect").timestamp)
    return moments


def _full(change: object) -> Any:
    raise nyala.StorageError("the disk is full")


@given(steps=STEPS)
@settings(max_examples=settings().max_examples // 2 + 10)
def test_r1_gathered_replay_single_replay_and_the_store_are_the_same(world: World, steps: Any) -> None:
    """For any history with flushes anywhere, a replay gives the same rows at every moment."""
    table = world.table()
    moments = perform(world, table, steps)
    roots = [world.replayed(drain_each=True)[0]]
    with pytest.MonkeyPatch.context() as patch:
        for gather in (1, 3, ALL_AT_ONCE):
            patch.setattr(bootstrap, "GATHER_ROWS", gather)
            roots.append(world.replayed()[0])
    same_everywhere(world, table.name, roots, moments)
    world.db.drop_table(table.name)


@given(steps=STEPS, cut=st.integers(0, 14))
@settings(max_examples=settings().max_examples // 2 + 5)
def test_a_reader_that_replays_in_parts_gets_the_same_rows(world: World, steps: Any, cut: int) -> None:
    """A reader may replay the log in parts. Rows that it has returned for a moment never change."""
    table = world.table()
    moments = perform(world, table, [step for step in steps if "flush" not in step[0]])
    root = world.catalogue_root()
    replayer = Replayer(root)
    first = world.records[:cut]
    replayer.feed(first)
    replayer.drain()
    shown = [record.timestamp for record in first]
    seen = {at: rows_of(root, table.name, at) for at in shown}
    replayer.feed(world.records[cut:])
    replayer.drain()
    assert seen == {at: rows_of(root, table.name, at) for at in shown}
    same_everywhere(world, table.name, [root], moments)
    world.db.drop_table(table.name)


# --- named cases ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gather", [1, 2, ALL_AT_ONCE])
def test_durable_records_are_skipped(world: World, monkeypatch: pytest.MonkeyPatch, gather: int) -> None:
    """A record at the durable mark is in the files, a later record is not."""
    monkeypatch.setattr(bootstrap, "GATHER_ROWS", gather)
    table = world.table()
    first = table.insert({"k": [1, 2], "a": [1, 2]}).timestamp
    table.update({"k": [2], "a": [3]})
    table.flush()
    last = table.insert({"k": [3], "a": [3]}).timestamp
    table.update({"k": [1], "a": [10]})
    table.delete({"k": [2]})
    root, _ = world.replayed()
    tablets = root.table(table.name).tablets
    assert sum(tablet.memory.row_count for tablet in tablets) == 1
    marks = {tablet.entry.inserts_durable for tablet in tablets}
    assert max(marks) >= first and max(marks) < last
    changes = sum(rowset.deltas.record_count for tablet in tablets for rowset in tablet.rowsets)
    assert changes == 2
    same_everywhere(world, table.name, [root], [first, last, world.db.now()])


def test_records_of_a_purged_table_or_tablet_are_skipped(world: World) -> None:
    """Records of a purged table or tablet are skipped, and other tables are replayed."""
    gone = world.table()
    first_records = world.records
    gone.insert({"k": [1, 2, 3], "a": [1, 2, 3]})
    kept = list(first_records)
    world.db.drop_table(gone.name)
    table = world.table()
    table.insert({"k": [1], "a": [1]})
    world.records[:0] = kept
    root, report = world.replayed()
    assert report.records == 2 and rows_of(root, table.name, report.timestamp_max) == [(1, 1, 7)]
    # One tablet of a table was purged: only its rows are skipped.
    (group,) = world.records[-1].groups
    ids = [tablet.id for tablet in root.table(table.name).tablets]
    unknown = max(ids) + 1000
    stamp = report.timestamp_max + 1
    names = group.batch.schema.names
    keys, numbers = pa.array([4, 5], pa.int32()), pa.array([6, 6], pa.int64())
    inserted = pa.record_batch([keys, numbers, pa.array([0, 0], pa.int8())], names=names)
    updated = pa.record_batch([keys, pa.array([8, 8], pa.int64())], names=names[:2])
    # Key 4 is in a tablet of the catalogue, key 5 is not.
    homes = (home_of(world, table, 4), unknown)
    for kind, batch in (("insert", inserted), ("update", updated)):
        part = ResolvedGroup(group.table_id, group.schema_version, kind, homes, (0, 1, 2), batch)
        world.records.append(LogRecord(stamp, None, (part,)))
        stamp += 1
    root, report = world.replayed()
    assert rows_of(root, table.name, report.timestamp_max) == [(1, 1, 7), (4, 8, 0)]


def home_of(world: World, table: Any, key: int) -> int:
    """Return the id of the key's tablet."""
    state = world.db._writer().root.table(table.name)
    ordinal = state.router.route({"k": pa.array([key], pa.int32())}, 1)[0]
    return int(state.tablets[ordinal].id)


def test_idempotency_keys_are_replayed(world: World) -> None:
    """A repeated job gets its recorded result after a crash, also if it changed nothing."""
    from nyala.tablet.write.write_path import Request, write

    table = world.table()
    store = world.db._writer()
    (first,) = write(store, [Request(table.name, "upsert", {"k": [1], "a": [1]})], idempotency_key="job 1")
    (empty,) = write(store, [Request(table.name, "upsert", {"k": [], "a": []})], idempotency_key="job 2")
    table.update({"k": [1], "a": [2]})
    _, report = world.replayed()
    found = report.idempotency_keys
    assert {key: found[key].timestamp for key in found} == {
        "job 1": first.timestamp, "job 2": empty.timestamp,
    }  # fmt: skip
    assert [json.loads(found[key].result)["inserted"] for key in found] == [1, 0]
    assert report.records == 3


@pytest.mark.parametrize("compared_max", [0, 3, 4096])
def test_any_order_of_small_changes_is_replayed(
    world: World, compared_max: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random small changes are replayed in their order.

    Replaying several changes of a key together must not skip a delete between them.
    """
    monkeypatch.setattr(bootstrap, "_COMPARED_ROWS_MAX", compared_max)
    chance = random.Random(int(request.config.getoption("hypothesis_seed")))
    table, moments = world.table(), []
    for number in range(120):
        keys = chance.sample(range(12), chance.randrange(1, 6))
        do = chance.choice([table.upsert, table.insert, table.update, table.delete, table.delete])
        rows = {"k": keys} if do == table.delete else {"k": keys, "a": [number] * len(keys)}
        moments.append(do(rows, errors="collect").timestamp)
    root, _ = world.replayed()
    same_everywhere(world, table.name, [root], moments)


def test_a_change_of_a_key_that_is_not_live_is_skipped(world: World) -> None:
    """The change is of a row that was flushed, and then deleted by a direct commit."""
    table = world.table()
    table.insert({"k": [1], "a": [1]})
    (record,) = world.records
    names = record.groups[0].batch.schema.names
    batch = pa.record_batch([pa.array([55], pa.int32()), pa.array([1], pa.int64())], names=names[:2])
    home = home_of(world, table, 55)
    for number, kind in enumerate(("update", "delete"), 1):
        part = batch if kind == "update" else batch.select(names[:1])
        group = ResolvedGroup(record.groups[0].table_id, 1, kind, (home,), (0, 1), part)
        world.records.append(LogRecord(record.timestamp + number, None, (group,)))
    root, report = world.replayed()
    assert report.records == 3
    assert rows_of(root, table.name, report.timestamp_max) == [(1, 1, 7)]


@pytest.mark.parametrize("kind", ["update", "delete"])
@pytest.mark.parametrize("apart", [False, True])
def test_w4_a_record_with_two_changes_of_a_row_is_refused(world: World, kind: str, apart: bool) -> None:
    """W4: one record must not change a row twice, because the order is unknown. Two records may."""
    table = world.table()
    table.insert({"k": [1, 2, 3], "a": [1, 2, 3]})
    (record,) = world.records
    names = record.groups[0].batch.schema.names
    batch = pa.record_batch([pa.array([2, 2], pa.int32()), pa.array([5, 6], pa.int64())], names=names[:2])
    part = batch if kind == "update" else batch.select(names[:1])
    home, table_id = home_of(world, table, 2), record.groups[0].table_id
    groups = [ResolvedGroup(table_id, 1, kind, (home,), (0, 1), part.slice(at, 1)) for at in (0, 1)]
    if not apart:
        groups = [groups[0], ResolvedGroup(table_id, 1, kind, (home,), (0, 2), part)]
    later = [
        LogRecord(record.timestamp + 1 + n, None, (group,), ("wal/x", n)) for n, group in enumerate(groups)
    ]
    world.records += later
    if apart:
        root, _ = world.replayed()
        assert (2, 2, 7) not in rows_of(root, table.name, later[-1].timestamp)
        return
    with pytest.raises(nyala.CorruptionError, match=f"wal/x at offset 1: .*twice in its rows to {kind}"):
        world.replayed()
