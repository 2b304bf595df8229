"""Settling: what a batch comes to, against an oracle that goes row by row in plain Python.

Settling changes nothing, so one store serves all examples: its keys stand in every phase of a row's life (in
memory, on disk, dead here and alive there, in a MemRowSet that waits to be flushed), in one tablet or in several.
Hypothesis draws batches over these keys; `oracle` says what each row of them does.
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
from nyala.database import Database
from nyala.errors import (
    ALREADY_PRESENT,
    KEY_TOO_LARGE,
    MISSING_COLUMN,
    NO_PARTITION,
    NOT_FOUND,
    NULL,
    InvalidArgumentError,
    StorageError,
)
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.mem_rowset import MemRowSet
from nyala.tablet import settle as settle_module
from nyala.tablet.locate import ABSENT, find_ghosts, locate, tablet_slices
from nyala.tablet.prepare import prepare
from nyala.tablet.root import TableState
from nyala.tablet.settle import Effect, Settlement, settle

Key = tuple[Any, ...]
Row = dict[str, Any]

# What happened to a key before the batch comes, and whether it lives then.
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
    """A store whose table has one key in each phase; settling leaves it as it is."""

    db: Database
    key_names: tuple[str, ...]
    keys: dict[str, Key]
    homeless: Key
    rows: dict[Key, Row] = field(default_factory=dict)

    @property
    def table(self) -> TableState:
        return self.db._writer().root.table("t")

    def key_row(self, key: Key) -> Row:
        return dict(zip(self.key_names, key, strict=True))


def build(db: Database, key_names: tuple[str, ...], keys: dict[str, Key], homeless: Key) -> World:
    world = World(db, key_names, keys, homeless)
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
    catalog = db._writer()._catalog
    commit = catalog.commit
    catalog.commit = _full  # type: ignore[method-assign]
    with contextlib.suppress(StorageError):
        table.flush()
    catalog.commit = commit  # type: ignore[method-assign]
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
    db = open_database(tmp_path_factory.mktemp("settle") / "s")
    # Not in the order of the phases, so that rows have to be sorted.
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
    """Row by row: `now` is the state, `given` the columns that a key which lived before was given since."""
    expected = Expected()
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
            elif key == world.homeless:
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


# --- what was settled -----------------------------------------------------------------------------------


def prepared(world: World, operations: list[Operation]) -> Settlement:
    table = world.table
    ready = [prepare(table, op.name, op.data(world), ignore=op.ignore) for op in operations]
    with world.db._writer().commit_lock:
        return settle(table, ready)


def effect_rows(world: World, effect: Effect) -> dict[Key, Row]:
    """The effect as key -> values, and what must hold of any effect (S1, S3)."""
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


def check_places(world: World, settlement: Settlement, effect: Effect) -> None:
    """An update or delete says where the row is live; an insert, whether it is a row of the MemRowSet that lies
    dead."""
    for index in range(len(effect.keys)):
        key = effect.keys.slice(index, 1)
        tablet = world.table.tablets[effect.tablets[index]]
        rowid = int(effect.rowids[index])
        if effect.kind == "insert":
            assert effect.codes[index] == ABSENT
            assert rowid == int(tablet.memory.find(key)[0])
        else:
            ordinal, rowset = settlement.rowsets[effect.codes[index]]
            assert ordinal == effect.tablets[index]
            assert int(rowset.find(key)[0]) == rowid >= 0 and rowset.live(np.array([rowid])).all()


def compare(world: World, operations: list[Operation]) -> Settlement:
    expected = oracle(world, operations)
    settlement = prepared(world, operations)
    assert [(c.inserted, c.updated, c.deleted, c.ignored) for c in settlement.counts] == expected.counts
    found_errors = [
        dict(zip(errors.rows.tolist(), list(errors.codes), strict=True)) for errors in settlement.errors
    ]
    assert found_errors == expected.errors
    assert settlement.failed == any(expected.errors)
    found: dict[str, dict[Key, Row]] = {"insert": {}, "update": {}, "delete": {}}
    for effect in settlement.effects:
        rows = effect_rows(world, effect)
        assert not rows.keys() & found[effect.kind].keys(), "S1"
        found[effect.kind] |= rows
        check_places(world, settlement, effect)
    assert found["insert"] == expected.inserts
    assert found["update"] == expected.updates
    assert found["delete"] == {key: {} for key in expected.deletes}
    return settlement


# --- Hypothesis -----------------------------------------------------------------------------------------

KEYS = st.sampled_from([*PHASES, *PHASES, "homeless"])
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


def spoken(world: World, drawn: list[tuple[str, bool, tuple[str, ...], list[Any]]]) -> list[Operation]:
    keys = {**world.keys, "homeless": world.homeless}
    return [
        Operation(name, ignore, columns, tuple((keys[phase], values) for phase, values in rows))
        for name, ignore, columns, rows in drawn
    ]


@given(drawn=drawn_operations(1))
def test_one_operation_is_what_its_rows_do_one_by_one(world: World, drawn: Any) -> None:
    """Counts, errors and changes of a single call, with keys that stand several times, in every phase."""
    compare(world, spoken(world, drawn))


@given(drawn=drawn_operations(4))
def test_several_operations_are_what_their_rows_do_one_by_one(world: World, drawn: Any) -> None:
    """A later operation of a batch sees what an earlier one did, and each key comes to one change (S1, S2, S4)."""
    compare(world, spoken(world, drawn))


@given(drawn=drawn_operations(3))
def test_settling_again_gives_the_same(world: World, drawn: Any) -> None:
    """A batch that turned out too large for the log is settled twice; no error may be told twice by that."""
    table = world.table
    ready = [
        prepare(table, op.name, op.data(world), ignore=op.ignore) for op in spoken(world, drawn)
    ]  # fmt: skip
    first, second = settle(table, ready), settle(table, ready)
    assert first.counts == second.counts
    assert [e.rows.tolist() for e in first.errors] == [e.rows.tolist() for e in second.errors]
    assert [(e.kind, e.keys.to_hashable(), e.rowids.tolist()) for e in first.effects] == [
        (e.kind, e.keys.to_hashable(), e.rowids.tolist()) for e in second.effects
    ]


def told(settlement: Settlement) -> Any:
    """All that a settlement says, to be compared."""
    return (
        settlement.counts,
        [(errors.rows.tolist(), errors.codes, errors.messages) for errors in settlement.errors],
        [
            (
                e.kind, e.keys.to_hashable(), e.tablets.tolist(), e.codes.tolist(), e.rowids.tolist(),
                {number: array.to_pylist() for number, array in e.columns.items()}, e.batch, e.message,
            )
            for e in settlement.effects
        ],
        [rowset for _, rowset in settlement.rowsets],
    )  # fmt: skip


@given(drawn=drawn_operations(1).filter(lambda drawn: len(drawn[0][3]) > 0))
def test_a_row_by_itself_is_settled_as_a_batch_is(world: World, drawn: Any) -> None:
    """It goes a way of its own; what comes of it must be the same to the last vector."""
    (operation,) = spoken(world, drawn)
    for row in operation.rows:
        alone = Operation(operation.name, operation.ignore, operation.columns, (row,))
        prepared_row = prepare(world.table, alone.name, alone.data(world), ignore=alone.ignore)
        found = settle(world.table, [prepared_row])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(settle_module, "_settle_one", lambda *_: False)
            assert told(found) == told(settle(world.table, [prepared_row]))


# --- named cases ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", ["insert", "upsert", "update", "delete"])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("columns", [("must", "a"), COLUMNS, ("a",)])
def test_each_operation_in_each_phase(
    world: World, phase: str, name: str, times: int, columns: tuple[str, ...]
) -> None:
    """One key, once and three times: what Kudu's table of outcomes says (facts §7.1)."""
    columns = () if name == "delete" else columns
    rows = tuple((world.keys[phase], (n, n * 2, n)[: len(columns)]) for n in range(times))
    for ignore in (False, True) if name != "upsert" else (False,):
        compare(world, [Operation(name, ignore, columns, rows)])


@pytest.mark.parametrize("phase", PHASES)
def test_an_upsert_of_a_key_alone_changes_nothing_of_a_row_that_is_there(world: World, phase: str) -> None:
    settlement = compare(world, [Operation("upsert", False, (), ((world.keys[phase], ()),))])
    assert not settlement.effects


def test_the_row_that_is_left_of_a_batch_is_the_one_that_is_written(world: World) -> None:
    """The other failed; what is written must not be its values, nor both."""
    keys = [world.keys["absent"], world.keys["on disk"]]
    for bad in (0, 1):
        rows = tuple((key, (1, 2, None if number == bad else 3)) for number, key in enumerate(keys))
        settlement = compare(world, [Operation("upsert", False, COLUMNS, rows)])
        (effect,) = settlement.effects
        assert list(effect_rows(world, effect)) == [keys[1 - bad]] and effect.message is None


def test_s2_delete_and_insert_of_a_live_key_is_an_update_of_all_columns(world: World) -> None:
    """A column that the insert does not name must fall back to its default, not keep the old row's value."""
    key = world.keys["on disk"]
    settlement = compare(
        world,
        [Operation("delete", False, (), ((key, ()),)), Operation("insert", False, ("must",), ((key, (1,)),))],
    )
    (effect,) = settlement.effects
    assert effect.kind == "update"
    assert effect_rows(world, effect) == {key: {"a": None, "b": 7, "must": 1}}


def test_s2_insert_and_delete_of_an_absent_key_is_nothing(world: World) -> None:
    """It is counted, and leaves no trace in log or memory."""
    key = world.keys["absent"]
    settlement = compare(
        world,
        [Operation("insert", False, ("must",), ((key, (1,)),)), Operation("delete", False, (), ((key, ()),))],
    )
    assert settlement.effects == []
    assert [(c.inserted, c.deleted) for c in settlement.counts] == [(1, 0), (0, 1)]


def test_updates_of_different_columns_stay_apart(world: World) -> None:
    """Two operations that change different columns of different keys must not write the old values of the others."""
    one, two = world.keys["on disk"], world.keys["in memory"]
    settlement = compare(
        world,
        [
            Operation("update", False, ("a",), ((one, (1,)), (two, (2,)))),
            Operation("update", False, ("b",), ((two, (3,)),)),
        ],
    )
    assert [effect_rows(world, effect) for effect in settlement.effects] in (
        [{one: {"a": 1}}, {two: {"a": 2, "b": 3}}],
        [{two: {"a": 2, "b": 3}}, {one: {"a": 1}}],
    )


def test_a_batch_of_nothing_settles_to_nothing(world: World) -> None:
    """Empty data, and data of which every row fails, change nothing and fail nothing else."""
    for operations in (
        [Operation("insert", False, ("must",), ())],
        [Operation("delete", False, (), ()), Operation("upsert", False, ("a",), ())],
        [Operation("insert", False, ("a",), ((world.keys["absent"], (1,)),))],
        [Operation("insert", False, ("must",), ((world.homeless, (1,)),)), Operation("delete", True, (), ())],
    ):
        assert compare(world, operations).effects == []


# --- prepare --------------------------------------------------------------------------------------------


def test_prepare_groups_rows_by_tablet_and_key(world: World) -> None:
    """Rows of a key stay in the user's order: of an upsert the last counts, of an insert the first."""
    table = world.table
    keys = [world.keys[phase] for phase in ("in memory", "absent", "in memory", "on disk", "in memory")]
    data = [{**world.key_row(key), "must": index} for index, key in enumerate(keys)]
    operation = prepare(table, "upsert", data, ignore=False)
    groups = [
        operation.rows[begin:end].tolist()
        for begin, end in zip(operation.starts[:-1], operation.starts[1:], strict=True)
    ]
    assert sorted(groups) == [[0, 2, 4], [1], [3]]
    assert operation.group_sizes.tolist() == [len(group) for group in groups]
    order = list(zip(operation.tablets.tolist(), operation.keys.to_hashable(), strict=True))
    assert order == sorted(set(order))


def test_an_update_of_the_key_alone_is_a_mistake_of_the_call(world: World) -> None:
    """It would count rows as updated and change nothing; without rows there is nothing to complain of."""
    key = world.key_row(world.keys["on disk"])
    with pytest.raises(InvalidArgumentError, match="no column to change"):
        prepare(world.table, "update", [key], ignore=False)
    empty = pa.Table.from_pylist([key]).slice(0, 0)
    assert prepare(world.table, "update", empty, ignore=False).row_count == 0


@pytest.mark.parametrize("name", ["insert", "upsert", "update", "delete"])
def test_a_key_column_left_out_fails_every_row(world: World, name: str) -> None:
    """Half a key names no row; the message says which column is missing."""
    column = world.key_names[-1]
    row = {k: v for k, v in world.key_row(world.keys["on disk"]).items() if k != column}
    if name != "delete":
        row |= {"must": 1}
    if not row:
        return
    operation = prepare(world.table, name, [row, row], ignore=False)
    assert list(operation.errors.codes) == [MISSING_COLUMN] * 2 and not len(operation.keys)
    assert repr(column) in operation.errors.messages[0]


def test_a_key_is_too_large_only_where_rows_are_made(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The limit of 16 KiB is for composite keys that come in; looking for such a key finds nothing, as it should."""
    with open_database(tmp_path_factory.mktemp("large") / "s") as db:
        db.create_table("t", {"s": "string", "n": "int8", "v": "int8"}, ["s", "n"])
        db.create_table("single", {"s": "string", "v": "int8"}, "s")
        text = "x" * (16384 - 3)  # 2 bytes end the text, 1 is the int8
        largest, too_large = {"s": text, "n": 1, "v": 1}, {"s": text + "x", "n": 1, "v": 1}
        assert db["t"].insert([largest]).inserted == 1
        table = db._writer().root.table("t")
        for name in ("insert", "upsert"):
            operation = prepare(table, name, [largest, too_large], ignore=False)
            assert list(operation.errors.codes) == [KEY_TOO_LARGE]
            assert operation.errors.rows.tolist() == [1]
        with pytest.raises(nyala.KeyNotFoundError):
            db["t"].update([too_large])
        assert db["single"].insert([{"s": "x" * 20_000, "v": 1}]).inserted == 1
        assert db["single"].get({"s": "x" * 20_000}) == {"s": "x" * 20_000, "v": 1}


def test_rows_without_a_home_and_keys_that_are_too_large_are_both_left_out(world: World) -> None:
    """In one batch; and of a row that is both, the key is told."""
    if len(world.key_names) == 1:
        pytest.skip("a single key column has no limit of its own")
    large = "x" * 20_000
    keys = [(large, 0), ("a", 10), (large, 10), world.keys["absent"]]
    data = [{**world.key_row(key), "must": 1} for key in keys]
    operation = prepare(world.table, "upsert", data, ignore=False)
    assert list(operation.errors.codes) == [KEY_TOO_LARGE, NO_PARTITION, KEY_TOO_LARGE]
    assert operation.rows.tolist() == [3] and len(operation.keys) == len(operation.tablets) == 1


def test_an_update_of_a_table_of_keys_alone_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Its data has all columns that there are, and changes none."""
    with open_database(tmp_path_factory.mktemp("keys") / "s") as db:
        table = db.create_table("t", {"k": "int64"}, "k")
        table.insert({"k": [1]})
        for data in ({"k": [1]}, pa.table({"k": pa.array([1], pa.int64())})):
            with pytest.raises(InvalidArgumentError, match="names no column to change"):
                table.update(data)


# --- locate ---------------------------------------------------------------------------------------------


def all_keys(world: World) -> tuple[Any, np.ndarray, list[Key]]:
    """Every key of the world in (tablet, key) order."""
    data = pa.Table.from_pylist([{**world.key_row(key), "must": 1} for key in world.keys.values()])
    operation = prepare(world.table, "upsert", data, ignore=False)
    keys = list(world.keys.values())
    return operation.keys, operation.tablets, [keys[row] for row in operation.rows.tolist()]


def test_locate_finds_the_one_live_place(world: World) -> None:
    """A change that went to a dead row of the same key would be lost (T1 of the root)."""
    keys, tablets, names = all_keys(world)
    located = locate(world.table, keys, tablets)
    for index, name in enumerate(names):
        assert (located.codes[index] != ABSENT) == (name in world.rows)
        key = keys.slice(index, 1)
        if located.codes[index] != ABSENT:
            ordinal, rowset = located.rowsets[located.codes[index]]
            assert ordinal == tablets[index]
            assert rowset.find(key)[0] == located.rowids[index]
    alive = {phase for phase, lives in PHASES.items() if lives}
    places = {
        phase: located.rowsets[located.codes[names.index(world.keys[phase])]][1]
        for phase in alive
    }  # fmt: skip
    for phase, rowset in places.items():
        in_memory = phase.endswith("memory")
        assert isinstance(rowset, MemRowSet) == in_memory, phase
        if isinstance(rowset, MemRowSet):
            assert (rowset.frozen_at is not None) == (phase == "in the frozen memory")


def test_one_key_by_itself_is_where_it_is_among_others(world: World) -> None:
    """An insert of one row looks another way: it must neither miss a living row nor bring a dead one back wrongly."""
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
    assert ghosts, "some are dead in the memory that takes inserts"


def test_r1_replay_passes_rowsets_that_hold_the_change_already(world: World) -> None:
    """In replay a DiskRowSet is a candidate only for changes newer than its durable mark, a row in memory only for
    those that came after its insertion: another row may have had the key before."""
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


def test_ghosts_are_the_dead_rows_of_the_memory_that_takes_inserts(world: World) -> None:
    """A key that lies dead there comes back there; a frozen or flushed dead row is left alone (R5)."""
    keys, tablets, names = all_keys(world)
    dead = [index for index, name in enumerate(names) if name not in world.rows]
    keys, tablets = keys.take(np.array(dead)), tablets[dead]
    found = find_ghosts(world.table, keys, tablets)
    ghosts = {names[index] for index, rowid in zip(dead, found.tolist(), strict=True) if rowid >= 0}
    assert ghosts == {world.keys["dead in memory"], world.keys["dead on disk, back, dead in memory"]}


@given(st.lists(st.integers(0, 5), max_size=20))
def test_tablet_slices(tablets: list[int]) -> None:
    """Each tablet's rows are one slice; a wrong border would write rows into a neighbour."""
    ascending = np.array(sorted(tablets), np.int32)
    ordinals, offsets = tablet_slices(ascending)
    assert ordinals.tolist() == sorted(set(tablets))
    assert offsets[0] == 0 and offsets[-1] == len(tablets)
    for ordinal, begin, end in zip(ordinals.tolist(), offsets[:-1], offsets[1:], strict=True):
        assert begin < end and (ascending[begin:end] == ordinal).all()
