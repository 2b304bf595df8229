"""Resolving (resolving) a batch, compared with a simple model that works row by row in Python.

Resolving changes nothing, so one store serves all examples. Its keys are in each possible state: in
memory, on disk, dead here and live there, in a frozen MemRowSet, in one tablet or several.
Hypothesis draws batches over these keys.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import open_database

import nyala
from nyala.api.database import Database
from nyala.errors import (
    ALREADY_PRESENT,
    MISSING_COLUMN,
    NO_PARTITION,
    NOT_FOUND,
    NULL,
    StorageError,
)
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.mem_rowset import MemRowSet
from nyala.tablet.state.locate import ABSENT, locate
from nyala.tablet.state.root import TableState
from nyala.tablet.write.effects import Effect, ResolvedBatch
from nyala.tablet.write.prepare import prepare
from nyala.tablet.write.resolve import resolve

Key = tuple[Any, ...]
Row = dict[str, Any]

# The state of each key before the batch, and whether the key is live.
PHASES = {
    "absent": False,
    "on disk": True,
    "on disk in the second rowset": True,
    "updated on disk": True,
    "dead on disk": False,
    "dead on disk, in a REDO file": False,
    "dead on disk, back in memory": True,
    "dead on disk, back, dead in memory": False,
    "in the frozen memory": True,
    "dead in the frozen memory": False,
    "dead in the frozen memory since it was frozen": False,
    "dead in the frozen memory, back in memory": True,
    "in memory": True,
    "dead in memory": False,
    "back in memory": True,
}
COLUMNS = ("a", "b", "must")
DEFAULTS: Row = {"a": None, "b": 7}


@dataclass
class World:
    """A store with a table that has a key in each state."""

    db: Database
    key_names: tuple[str, ...]
    keys: dict[str, Key]
    without_range: Key
    rows: dict[Key, Row] = field(default_factory=dict)

    @property
    def table(self) -> TableState:
        return self.db._writer().root.table("t")

    def key_row(self, key: Key) -> Row:
        return dict(zip(self.key_names, key, strict=True))


def build(db: Database, key_names: tuple[str, ...], keys: dict[str, Key], without_range: Key) -> World:
    world = World(db, key_names, keys, without_range)
    table = db["t"]
    of = {phase: world.key_row(key) for phase, key in keys.items()}

    def insert(*phases: str) -> None:
        for number, phase in enumerate(phases):
            row = {"a": number, "b": number + 10, "must": number + 20}
            table.insert([{**of[phase], **row}])
            world.rows[keys[phase]] = row

    def delete(*phases: str) -> None:
        for phase in phases:
            table.delete([of[phase]])
            del world.rows[keys[phase]]

    insert(*(phase for phase in PHASES if "on disk" in phase and "second" not in phase))
    table.flush()
    insert("on disk in the second rowset")
    delete("dead on disk, in a REDO file")
    table.flush()
    table.update([{**of["updated on disk"], "a": 99}])
    world.rows[keys["updated on disk"]]["a"] = 99
    insert(*(phase for phase in PHASES if "frozen" in phase))
    delete("dead in the frozen memory", "dead in the frozen memory, back in memory")
    delete("dead on disk, back in memory", "dead on disk, back, dead in memory")
    store = db._writer()
    commit = store._commit
    store._commit = _full  # type: ignore[method-assign]
    with contextlib.suppress(StorageError):
        table.flush()
    store._commit = commit  # type: ignore[method-assign]
    delete("dead in the frozen memory since it was frozen", "dead on disk")
    insert("dead on disk, back in memory", "dead on disk, back, dead in memory")
    insert("dead in the frozen memory, back in memory")
    insert("in memory", "dead in memory", "back in memory")
    delete("dead in memory", "back in memory", "dead on disk, back, dead in memory")
    insert("back in memory")
    assert {phase: key in world.rows for phase, key in keys.items()} == PHASES
    assert any(tablet.frozen for tablet in world.table.tablets)
    return world


def _full(change: object) -> Any:
    raise StorageError("the disk is full")


VALUES: dict[str, Any] = {
    "a": nyala.column("int64"),
    "b": nyala.column("int32", nullable=False, default=7),
    "must": nyala.column("int8", nullable=False),
}


@pytest.fixture(scope="module", params=["one tablet", "partitions"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    db = open_database(tmp_path_factory.mktemp("resolve") / "s")
    # In another order than the states, so that rows must be sorted.
    keys: dict[str, Key]
    if request.param == "one tablet":
        bounds = nyala.range_partition("k", bounds=[(-100, 100)])
        db.create_table("t", {"k": "int64", **VALUES}, "k", [bounds])
        keys = {phase: ((number * 7) % 15 - 5,) for number, phase in enumerate(PHASES)}
        world = build(db, ("k",), keys, (100,))
    else:
        hashes = nyala.hash_partition("s", buckets=2)
        ranges = nyala.range_partition("n", bounds=[(0, 2), (2, 10)])
        db.create_table("t", {"s": "string", "n": "int32", **VALUES}, ["s", "n"], [hashes, ranges])
        texts = ("", "a", "a\0", "é", "zz")
        keys = {phase: (texts[number % 5], (number * 4) % 9) for number, phase in enumerate(PHASES)}
        world = build(db, ("s", "n"), keys, ("a", 10))
        assert sum(1 for tablet in world.table.tablets if tablet.rowsets) > 2
    assert len(set(keys.values())) == len(PHASES)
    yield world
    db.close()


# --- the oracle -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    name: str
    ignore: bool
    columns: tuple[str, ...]
    rows: tuple[tuple[Key, tuple[Any, ...]], ...]  # key, values of `columns`

    def data(self, world: World) -> pa.Table:
        types = {"a": pa.int64(), "b": pa.int32(), "must": pa.int8()}
        fields = [
            (name, {"k": pa.int64(), "s": pa.string(), "n": pa.int32()}[name]) for name in world.key_names
        ]
        fields += [(name, types[name]) for name in self.columns]
        rows = [
            dict(zip((*world.key_names, *self.columns), (*key, *values), strict=True))
            for key, values in self.rows
        ]
        return pa.Table.from_pylist(rows, schema=pa.schema(fields))  # fmt: skip


@dataclass
class Expected:
    counts: list[tuple[int, int, int, int]] = field(default_factory=list)
    errors: list[dict[int, str]] = field(default_factory=list)
    inserts: dict[Key, Row] = field(default_factory=dict)
    updates: dict[Key, Row] = field(default_factory=dict)
    deletes: set[Key] = field(default_factory=set)


def oracle(world: World, operations: list[Operation]) -> Expected:
    """Return what settling the operations must find, computed row by row."""
    expected = Expected()
    # now: the row of each live key. given: the columns of each key that were written since its insert.
    now = {key: dict(row) for key, row in world.rows.items()}
    given: dict[Key, set[str]] = {}
    for operation in operations:
        counts = {"inserted": 0, "updated": 0, "deleted": 0, "ignored": 0}
        errors: dict[int, str] = {}
        lacks = "must" not in operation.columns
        for number, (key, values) in enumerate(operation.rows):
            row = dict(zip(operation.columns, values, strict=True))
            there = key in now
            if any(row.get(name, 0) is None for name in ("b", "must")):
                errors[number] = NULL
            elif operation.name == "insert" and lacks:
                errors[number] = MISSING_COLUMN
            elif key == world.without_range:
                errors[number] = NO_PARTITION
            elif operation.name == "insert" and there:
                if operation.ignore:
                    counts["ignored"] += 1
                else:
                    errors[number] = ALREADY_PRESENT
            elif operation.name in ("update", "delete") and not there:
                if operation.ignore:
                    counts["ignored"] += 1
                else:
                    errors[number] = NOT_FOUND
            elif operation.name == "upsert" and not there and lacks:
                errors[number] = MISSING_COLUMN
            elif operation.name == "delete":
                counts["deleted"] += 1
                del now[key]
                given.pop(key, None)
            elif there:
                counts["updated"] += 1
                now[key].update(row)
                given.setdefault(key, set()).update(operation.columns)
            else:
                counts["inserted"] += 1
                now[key] = {**DEFAULTS, **row}
                given[key] = set(COLUMNS)
        expected.counts.append(tuple(counts.values()))  # type: ignore[arg-type]
        expected.errors.append(errors)
    for key in {*world.rows, *now}:
        if key not in now:
            expected.deletes.add(key)
        elif key not in world.rows:
            expected.inserts[key] = now[key]
        elif given.get(key):
            expected.updates[key] = {name: now[key][name] for name in given[key]}
    return expected


# --- checks of a resolved batch --------------------------------------------------------------------------


def prepared(world: World, operations: list[Operation]) -> ResolvedBatch:
    table = world.table
    ready = [prepare(table, op.name, op.data(world), ignore=op.ignore) for op in operations]
    with world.db._writer().commit_lock:
        return resolve(table, ready)


def effect_rows(world: World, effect: Effect) -> dict[Key, Row]:
    """Return an effect as key -> values, after checking the rules of all effects (S1, S3)."""
    schema = world.table.schema
    names: dict[int, str] = {column.id: column.name for column in schema.columns}
    arrays = {names[number]: array.to_pylist() for number, array in effect.columns.items()}
    keys = list(zip(*(arrays.pop(name) for name in world.key_names), strict=True))
    count = len(effect.keys)
    assert count and all(len(part) == count for part in (keys, effect.tablets, effect.codes, effect.rowids))
    assert list(effect.columns)[: schema.key_count] == [column.id for column in schema.key_columns]
    assert [array.type for array in effect.columns.values()] == [
        schema.by_id(number).type.arrow for number in effect.columns
    ]
    encoded = world.table.codec.encode(
        [effect.columns[column.id] for column in schema.key_columns]
    ).to_hashable()
    assert encoded == effect.keys.to_hashable()
    if effect.batch is not None:
        assert effect.batch.columns == list(effect.columns.values()), "the log would have other rows"
        assert effect.batch.schema.names == [str(number) for number in effect.columns]
    if effect.message is not None:
        assert pa.ipc.read_record_batch(effect.message, effect.batch.schema) == effect.batch
    order = list(zip(effect.tablets.tolist(), encoded, strict=True))
    assert order == sorted(set(order)), "S1, S3: tablet order, then key order, each key once"
    return {key: {name: values[index] for name, values in arrays.items()} for index, key in enumerate(keys)}


def check_places(world: World, resolved: ResolvedBatch, effect: Effect) -> None:
    """Check the rowid of each row of an effect.

    For an update or delete it is that of the live row. For an insert it is that of the dead row in the
    MemRowSet, or -1.
    """
    for index in range(len(effect.keys)):
        key = effect.keys.slice(index, 1)
        tablet = world.table.tablets[effect.tablets[index]]
        rowid = int(effect.rowids[index])
        if effect.kind == "insert":
            assert effect.codes[index] == ABSENT
            assert rowid == int(tablet.memory.find(key)[0])
        else:
            ordinal, rowset = resolved.rowsets[effect.codes[index]]
            assert ordinal == effect.tablets[index]
            assert int(rowset.find(key)[0]) == rowid >= 0 and rowset.live(np.array([rowid])).all()


def compare(world: World, operations: list[Operation]) -> ResolvedBatch:
    expected = oracle(world, operations)
    resolved = prepared(world, operations)
    assert [(c.inserted, c.updated, c.deleted, c.ignored) for c in resolved.counts] == expected.counts
    found_errors = [
        dict(zip(errors.rows.tolist(), list(errors.codes), strict=True)) for errors in resolved.errors
    ]
    assert found_errors == expected.errors
    assert resolved.failed == any(expected.errors)
    found: dict[str, dict[Key, Row]] = {"insert": {}, "update": {}, "delete": {}}
    for effect in resolved.effects:
        rows = effect_rows(world, effect)
        for key, values in rows.items():
            known = found[effect.kind].setdefault(key, {})
            assert not known.keys() & values.keys() and (effect.kind == "update" or not known), (
                "S1: a key has one effect"
            )
            known |= values
        check_places(world, resolved, effect)
    assert found["insert"] == expected.inserts
    assert found["update"] == expected.updates
    assert found["delete"] == {key: {} for key in expected.deletes}
    return resolved


# --- Hypothesis -----------------------------------------------------------------------------------------

KEYS = st.sampled_from([*PHASES, *PHASES, "without_range"])
NUMBERS = st.one_of(st.none(), st.integers(-3, 3))


@st.composite
def drawn_operations(draw: st.DrawFn, at_most: int) -> list[tuple[str, bool, tuple[str, ...], list[Any]]]:
    out = []
    for _ in range(draw(st.integers(1, at_most))):
        name = draw(st.sampled_from(["insert", "upsert", "update", "delete"]))
        ignore = name != "upsert" and draw(st.booleans())
        columns: tuple[str, ...] = ()
        if name != "delete":
            columns = draw(
                st.sampled_from(
                    [("a", "b", "must"), ("must",), ("must", "a"), ("a",), ("b",), ("must", "b")]
                    + ([()] if name != "update" else [])
                )
            )
        values = st.tuples(*(NUMBERS if name == "a" or draw(st.integers(0, 5)) == 0 else st.integers(-3, 3)
                             for name in columns))  # fmt: skip
        out.append((name, ignore, columns, draw(st.lists(st.tuples(KEYS, values), max_size=7))))
    return out


def operations_of(world: World, drawn: list[tuple[str, bool, tuple[str, ...], list[Any]]]) -> list[Operation]:
    keys = {**world.keys, "without_range": world.without_range}
    return [
        Operation(name, ignore, columns, tuple((keys[phase], values) for phase, values in rows))
        for name, ignore, columns, rows in drawn
    ]


@given(drawn=drawn_operations(1))
def test_one_operation_equals_the_model(world: World, drawn: Any) -> None:
    """Counts, errors and effects of one call, with repeated keys, in each state."""
    compare(world, operations_of(world, drawn))


@given(drawn=drawn_operations(4))
def test_several_operations_equal_the_model(world: World, drawn: Any) -> None:
    """Later operations of a batch see earlier ones; each key has one effect (S1, S2, S4)."""
    compare(world, operations_of(world, drawn))


# --- locate ---------------------------------------------------------------------------------------------


def all_keys(world: World) -> tuple[Any, np.ndarray, list[Key]]:
    """Return every key of the world in (tablet, key) order."""
    data = pa.Table.from_pylist([{**world.key_row(key), "must": 1} for key in world.keys.values()])
    operation = prepare(world.table, "upsert", data, ignore=False)
    keys = list(world.keys.values())
    return operation.keys, operation.tablets, [keys[row] for row in operation.rows.tolist()]


def test_locating_one_key_equals_locating_many(world: World) -> None:
    """Looking up one key, which has its own code, gives the same result as looking up many."""
    keys, tablets, names = all_keys(world)
    together = locate(world.table, keys, tablets)
    ghosts = set()
    for index, name in enumerate(names):
        alone = locate(world.table, keys.slice(index, 1), tablets[index : index + 1])
        assert (alone.codes[0] == ABSENT) == (together.codes[index] == ABSENT), name
        assert alone.rowids[0] == together.rowids[index], name
        assert alone.ghosts[0] == together.ghosts[index], name
        if alone.codes[0] != ABSENT:
            assert alone.rowsets[alone.codes[0]] == together.rowsets[together.codes[index]], name
        if alone.ghosts[0] >= 0:
            ghosts.add(name)
    assert ghosts, "some keys are dead in the MemRowSet that takes inserts"


def test_r1_a_replay_searches_only_rowsets_without_the_change(world: World) -> None:
    """A DiskRowSet is searched only for changes after its durable mark, and a row in memory only
    for changes after its insertion.
    """
    keys, tablets, _ = all_keys(world)
    live = locate(world.table, keys, tablets)
    rowsets = [live.rowsets[code][1] if code != ABSENT else None for code in live.codes.tolist()]
    marks = np.array(
        [
            rowset.meta.deltas_durable
            if isinstance(rowset, DiskRowSet)
            else 0
            if rowset is None
            else int(rowset.insertion_times_at(live.rowids[index : index + 1])[0])
            for index, rowset in enumerate(rowsets)
        ]
    )
    assert {type(rowset) for rowset in rowsets} == {DiskRowSet, MemRowSet, type(None)}
    at_the_mark = locate(world.table, keys, tablets, newer_than=marks)
    behind_it = locate(world.table, keys, tablets, newer_than=marks + 1)
    for index, rowset in enumerate(rowsets):
        assert at_the_mark.codes[index] == ABSENT
        assert (behind_it.codes[index] != ABSENT) == (rowset is not None)
        if rowset is not None:
            assert behind_it.rowsets[behind_it.codes[index]][1] is rowset
            assert behind_it.rowids[index] == live.rowids[index]
