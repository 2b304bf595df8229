"""Scans compared with plain Python over a list of versions, with splits of a few rows.

One store serves all examples: overlapping rowsets, a frozen and a live MemRowSet, and rows updated
and deleted at many moments, by deltas in files and in memory. `World.states` has the expected rows
of each moment.
"""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import open_database

import nyala
from nyala.api.database import Database
from nyala.api.scan_arguments import make_spec
from nyala.cfile.memory import pool
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.tablet.scan import parallel, read_path
from nyala.tablet.scan.parallel import in_parallel
from nyala.tablet.scan.read_path import (
    ScanCounters,
    ScanSpec,
    ScanUnit,
    block_count,
    get_many,
    plan,
    run,
    splits,
)
from nyala.tablet.state.root import TableState

Row = dict[str, Any]
NAMES = ("s", "n", "a", "f", "t")
KEYS = [(text, n) for text in ("", "a", "a\0", "b", "zz") for n in range(-4, 26)]


@dataclass
class World:
    db: Database
    states: list[tuple[int, dict[tuple[str, int], Row]]] = field(default_factory=list)

    @property
    def table(self) -> TableState:
        return self.db._writer().root.table("t")

    def at(self, timestamp: int) -> list[Row]:
        """Return the rows at a moment, in key order."""
        found = next((state for stamp, state in reversed(self.states) if stamp <= timestamp), {})
        return [found[key] for key in sorted(found, key=lambda key: (key[0].encode(), key[1]))]


def full(change: object) -> Any:
    raise nyala.StorageError("the disk is full")


def build(db: Database) -> World:
    hashes = nyala.hash_partition("s", buckets=2)
    ranges = nyala.range_partition("n", splits=[12])
    columns = {
        "s": "string",
        "n": "int32",
        "a": nyala.column("int64", block_size=512),
        "f": "double",
        "t": nyala.column("string", encoding="dictionary", block_size=512),
    }
    table = db.create_table("t", columns, ["s", "n"], [hashes, ranges])
    world, now = World(db), dict[tuple[str, int], Row]()
    chance = np.random.default_rng(1)

    def commit(timestamp: int) -> None:
        world.states.append((timestamp, {key: dict(row) for key, row in now.items()}))

    def fresh(key: tuple[str, int]) -> Row:
        a = int(chance.integers(-5, 6))
        return {
            "s": key[0],
            "n": key[1],
            "a": None if a == 5 else a,
            "f": [None, math.nan, -1.5, 0.0, 2.5][chance.integers(0, 5)],
            "t": [None, "", "x", "xy", "é"][chance.integers(0, 5)],
        }

    def insert(keys: list[tuple[str, int]]) -> None:
        rows_ = [fresh(key) for key in keys]
        now.update(zip(keys, rows_, strict=True))
        commit(table.insert(rows_).timestamp)

    def change(count: int) -> None:
        keys = [list(now)[i] for i in chance.choice(len(now), count, replace=False)]
        for key in keys:
            now[key] = {**now[key], "a": int(chance.integers(-9, 10)), "t": "changed"}
        commit(table.update([{name: now[k][name] for name in ("s", "n", "a", "t")} for k in keys]).timestamp)

    def delete(count: int) -> None:
        keys = [list(now)[i] for i in chance.choice(len(now), count, replace=False)]
        for key in keys:
            del now[key]
        commit(table.delete([{"s": s, "n": n} for s, n in keys]).timestamp)

    commit(db.now())
    order = [KEYS[i] for i in chance.permutation(len(KEYS))]
    insert(order[:50])
    change(20)
    table.flush()
    delete(10)
    insert([key for key in order[50:90] if key not in now])
    change(25)
    table.flush()
    change(15)
    insert([key for key in KEYS if key not in now][:10])  # some of them are dead rows in files
    store: Any = db._writer()
    store._commit = full
    with pytest.raises(nyala.StorageError):
        table.flush()
    del store._commit
    delete(12)
    insert([key for key in order[90:130] if key not in now])
    change(20)
    delete(9)
    insert([key for key in KEYS if key not in now][:8])
    return world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_database(tmp_path_factory.mktemp("read") / "s") as db:
        yield build(db)


# --- predicates, as text and in Python ------------------------------------------------------------------

Truth = bool | None


def compare(left: Any, op: str, right: Any) -> Truth:
    if left is None:
        return None
    if isinstance(left, str):
        left, right = left.encode(), right.encode()
    if isinstance(left, float):  # NaN equals NaN and is greater than all else
        left, right = ((math.isnan(x), 0 if math.isnan(x) else x) for x in (left, float(right)))
    return bool({"=": left == right, "<>": left != right, "<": left < right, "<=": left <= right, ">": left > right,
                 ">=": left >= right}[op])  # fmt: skip


LITERALS: dict[str, list[Any]] = {
    "s": ["", "a", "a\0", "b", "c"],
    "n": [-5, 0, 3, 12, 25],
    "a": [-9, 0, 3, 7],
    "f": [-1.5, 0.0, 3.0],
    "t": ["", "changed", "x", "é"],
}


def sql(value: Any) -> str:
    return "'" + value + "'" if isinstance(value, str) else str(value)


@st.composite
def terms(draw: st.DrawFn) -> tuple[str, Callable[[Row], Truth]]:
    name = draw(st.sampled_from(["s", "n", "n", "a", "a", "f", "t"]))
    kind = draw(st.sampled_from(["compare", "compare", "in", "null", "between"]))
    if kind == "null":
        word = draw(st.sampled_from(["IS NULL", "IS NOT NULL"]))
        return f"{name} {word}", lambda row: (row[name] is None) == (word == "IS NULL")
    values = draw(st.lists(st.sampled_from(LITERALS[name]), min_size=2, max_size=3))
    if kind == "in":
        return (
            f"{name} IN ({', '.join(map(sql, values))})",
            lambda row: (
                None if row[name] is None else any(compare(row[name], "=", value) for value in values)
            ),
        )
    if kind == "between":
        lower, upper = values[:2]
        return (
            f"{name} BETWEEN {sql(lower)} AND {sql(upper)}",
            lambda row: (
                None
                if row[name] is None
                else bool(compare(row[name], ">=", lower)) and bool(compare(row[name], "<=", upper))
            ),
        )
    op = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
    return f"{name} {op} {sql(values[0])}", lambda row: compare(row[name], op, values[0])


def three_valued(truths: list[Truth], decides: bool) -> Truth:
    if decides in truths:
        return decides
    return None if None in truths else not decides


@st.composite
def predicates(draw: st.DrawFn) -> tuple[str | None, Callable[[Row], Truth]]:
    shape = draw(st.sampled_from(["none", "one", "and", "and", "or", "not"]))
    if shape == "none":
        return None, lambda row: True
    parts = draw(st.lists(terms(), min_size=1, max_size=1 if shape in ("one", "not") else 3))
    if shape == "not":
        ((text, holds),) = parts
        return f"NOT ({text})", lambda row: None if holds(row) is None else not holds(row)
    word = "OR" if shape == "or" else "AND"
    text = f" {word} ".join(f"({part})" for part, _ in parts)
    return text, lambda row: three_valued([holds(row) for _, holds in parts], word == "OR")


# --- scans against brute force --------------------------------------------------------------------------


def as_tuples(table: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple("NaN" if value != value else value for value in row.values()) for row in table.to_pylist()]


def expected_rows(rows: list[Row], columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    return [tuple("NaN" if row[name] != row[name] else row[name] for name in columns) for row in rows]


def of_value(value: Any) -> Any:
    return tuple((x is not None, str(type(x)), x if x is not None else 0) for x in value)


@pytest.fixture
def split_rows() -> Iterator[Callable[[int], None]]:
    """Return a function that sets the number of rows of a split."""
    with pytest.MonkeyPatch.context() as patch:

        def set_rows(rows: int) -> None:
            patch.setattr(read_path, "SPLIT_ROWS", rows)

        yield set_rows


@given(data=st.data())
def test_a_scan_returns_the_rows_of_the_versions(world: World, data: st.DataObject) -> None:
    """Random predicates, moments, columns and splits return the rows that plain Python finds."""
    with pytest.MonkeyPatch.context() as patch:
        rows = data.draw(st.sampled_from([1, 2, 3, 8, 33, 1 << 17]))
        patch.setattr(read_path, "SPLIT_ROWS", rows)
        patch.setattr(read_path, "GAP_ROWS", data.draw(st.sampled_from([0, 2])))
        moment = data.draw(st.sampled_from([stamp - d for stamp, _ in world.states for d in (0, 1)]))
        where, holds = data.draw(predicates())
        columns = tuple(data.draw(st.lists(st.sampled_from(NAMES), unique=True)))
        limit = data.draw(st.one_of(st.none(), st.integers(0, 12)))
        wanted = [row for row in world.at(moment) if holds(row) is True]
        spec = make_spec(world.table, moment, columns, where, limit, False)
        found = collect(world, spec)
        assert found.schema.names == list(columns)
        expected = expected_rows(wanted, columns)
        if limit is None:
            assert sorted(as_tuples(found), key=of_value) == sorted(expected, key=of_value)
        else:
            assert found.num_rows == min(limit, len(wanted))
            left = list(expected)
            for row in as_tuples(found):
                left.remove(row)  # fails if the row is not expected, or comes twice
        counters = ScanCounters()
        units = plan(world.table, spec, counters)
        assert read_path.count(units, spec, counters) == found.num_rows


@given(data=st.data())
def test_a_scan_in_key_order(world: World, data: st.DataObject) -> None:
    """Rows of overlapping rowsets, in memory and in files, come in one order, up to the limit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_path, "SPLIT_ROWS", data.draw(st.sampled_from([1, 2, 5, 1 << 17])))
        moment = data.draw(st.sampled_from([stamp for stamp, _ in world.states]))
        where, holds = data.draw(predicates())
        columns = tuple(data.draw(st.lists(st.sampled_from(NAMES), unique=True)))
        limit = data.draw(st.one_of(st.none(), st.integers(0, 30)))
        wanted = [row for row in world.at(moment) if holds(row) is True][:limit]
        found = collect(world, make_spec(world.table, moment, columns, where, limit, True))
        assert found.num_rows == len(wanted)
        assert as_tuples(found) == expected_rows(wanted, columns)


def collect(world: World, spec: ScanSpec) -> pa.Table:
    batches = list(run(plan(world.table, spec, ScanCounters()), spec, ScanCounters()))
    assert all(batch.num_rows for batch in batches)
    return pa.Table.from_batches(batches, schema=spec.arrow_schema)


@given(
    keys=st.lists(st.sampled_from([*KEYS, ("nobody", 1)]), max_size=20),
    columns=st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
    moment=st.integers(0, 100),
)
def test_single_rows_are_those_of_the_versions(
    world: World, keys: list[tuple[str, int]], columns: list[str], moment: int
) -> None:
    """`get_many` returns the rows of these keys, in the order of the keys, at any moment."""
    stamp = world.states[moment % len(world.states)][0]
    there = {(row["s"], row["n"]): row for row in world.at(stamp)}
    found = world.db["t"].get_many([{"s": s, "n": n} for s, n in keys], columns, at=stamp)
    assert as_tuples(found) == expected_rows([there[key] for key in keys if key in there], tuple(columns))


# --- splits --------------------------------------------------------------------------------------------


def test_without_order_a_batch_is_a_split_at_most(world: World, split_rows: Callable[[int], None]) -> None:
    """A reader of a large scan needs memory for one split at a time."""
    split_rows(7)
    now = world.states[-1][0]
    spec = make_spec(world.table, now, None, None, None, False)
    sizes = [batch.num_rows for batch in run(plan(world.table, spec, ScanCounters()), spec, ScanCounters())]
    assert max(sizes) <= 7 and sum(sizes) == len(world.at(now)) and len(sizes) > 10


def test_columns_of_rows_that_are_not_selected_are_not_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a predicate selects no row of a split, no other column is decoded."""
    spec = make_spec(world.table, world.states[-1][0], ("t",), "a = 77 OR f = 77", None, False)
    read: list[str] = []
    for method in ("gather", "decode"):
        real = getattr(DiskRowSet, method)

        def noted(self: Any, column: Any, *rest: Any, real: Any = real, **options: Any) -> Any:
            read.append(column.name)
            return real(self, column, *rest, **options)

        monkeypatch.setattr(DiskRowSet, method, noted)
    assert collect(world, spec).num_rows == 0
    assert set(read) == {"a", "f"}


def test_a_count_with_a_limit_stops_at_the_limit(zoned: Any, split_rows: Callable[[int], None]) -> None:
    """A question such as "is there any row?" (`limit=1`) must not read all rows."""
    split_rows(128)
    scan = zoned.scan(columns=["k"], where="w = 0", limit=130)
    assert scan.count() == 130
    facts = scan.explanation_of_last_run().to_dict()
    assert facts["splits_total"] - facts["splits_skipped"] == 2, "two of 8 splits are read"
    assert [zoned.scan(where="w = 0", limit=limit).count() for limit in (0, 1, 5000)] == [0, 1, 1000]


# --- Z1 -------------------------------------------------------------------------------------------------


@pytest.fixture
def zoned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Create 1,000 flushed rows with v = k, in blocks of at least 128 rows."""
    with open_database(tmp_path_factory.mktemp("zoned") / "s") as db:
        columns = {"k": "int64", "v": nyala.column("int64", block_size=1024), "w": "int64"}
        table = db.create_table("t", columns, "k")
        table.insert({"k": list(range(1000)), "v": list(range(1000)), "w": [0] * 1000})
        table.flush()
        yield table


def splits_read(table: Any, where: str, at: Any = None) -> tuple[int, list[int]]:
    scan = table.scan(columns=["k"], where=where, at=at, order_by_key=True)
    facts = scan.explain().to_dict()
    return facts["splits_total"] - facts["splits_skipped"], scan.to_arrow().column("k").to_pylist()


def test_z1_splits_are_skipped_by_their_zone_maps(zoned: Any, split_rows: Callable[[int], None]) -> None:
    """A predicate that matches few rows reads one or two of 8 splits."""
    split_rows(128)
    assert splits_read(zoned, "v = 700") == (1, [700])
    assert splits_read(zoned, "v BETWEEN 120 AND 135") == (2, list(range(120, 136)))
    assert splits_read(zoned, "v IN (3, 999)") == (2, [3, 999])
    assert splits_read(zoned, "v < 0") == (0, [])
    assert splits_read(zoned, "v IS NULL") == (0, [])
    assert splits_read(zoned, "v <> 3")[0] == 8
    assert splits_read(zoned, "v = 700 OR w = 1")[0] == 8, "OR over several columns skips nothing"


def blocks_read(table: Any, where: str, columns: list[str]) -> tuple[int, int, list[int]]:
    scan = table.scan(columns=columns, where=where)
    facts = scan.explain().to_dict()
    left = facts["rows_total"] - facts["rows_skipped"]
    return left, facts["blocks_total"] - facts["blocks_skipped"], scan.to_arrow().column("k").to_pylist()


def test_z1_rows_inside_a_split_are_skipped(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of text are smaller than a split. Only blocks with a matching row are decoded."""
    monkeypatch.setattr(read_path, "GAP_ROWS", 64)
    with open_database(tmp_path_factory.mktemp("inside") / "s") as db:
        text = nyala.column("string", block_size=512, encoding="plain")
        table = db.create_table("t", {"k": nyala.column("int64", block_size=1 << 20), "s": text}, "k")
        table.insert({"k": list(range(2000)), "s": [f"{k:08}" for k in range(2000)]})
        table.flush()
        (rowset,) = db._writer().root.table("t").tablets[0].rowsets
        rows = rowset.base_column(db._writer().root.table("t").schema.by_name("s").id).rows_per_block
        assert 16 <= rows <= 64, "many blocks in one split"
        one = blocks_read(table, "s = '00000700'", ["k", "s"])
        assert one == (rows, 2, [700]), "one block of the text, and that of the key"
        near = blocks_read(table, f"s IN ('00000700', '{700 + rows:08}')", ["k"])
        assert near == (2 * rows, 3, [700, 700 + rows])
        far = blocks_read(table, "s IN ('00000003', '00001900')", ["k"])
        assert far == (2 * rows, 3, [3, 1900]), "the rows between are not read"
        table.update({"k": [1200], "s": ["00000700"]})
        assert blocks_read(table, "s = '00000700'", ["k"])[::2] == (2 * rows, [700, 1200])


@pytest.mark.parametrize("where_the_change_is", ["in memory", "in a REDO file"])
def test_z1_a_split_with_a_change_of_the_column_is_read(
    zoned: Any, split_rows: Callable[[int], None], where_the_change_is: str
) -> None:
    """The base's zone map does not cover later updates. For an earlier moment it is right."""
    split_rows(128)
    before = zoned._database.now()
    zoned.update({"k": [500], "v": [5000]})
    zoned.update({"k": [900], "w": [5000]})
    if where_the_change_is == "in a REDO file":
        zoned.flush()
    assert splits_read(zoned, "v = 5000") == (1, [500])
    assert splits_read(zoned, "v = 700") == (2 if where_the_change_is == "in memory" else 1, [700])
    assert splits_read(zoned, "v = 500")[1] == []
    assert splits_read(zoned, "v = 500", at=before) == (1, [500])
    assert splits_read(zoned, "v = 5000", at=before) == (0, [])


def test_z1_a_split_with_a_matching_undo_record_is_read(
    tmp_path_factory: pytest.TempPathFactory, split_rows: Callable[[int], None]
) -> None:
    """A scan of the past finds a value that was overwritten before the flush."""
    split_rows(16)
    with open_database(tmp_path_factory.mktemp("undo") / "s") as db:
        table = db.create_table("t", {"k": "int64", "v": nyala.column("int64", block_size=512)}, "k")
        before = table.insert({"k": list(range(64)), "v": [1000 + k for k in range(64)]})
        table.update({"k": list(range(64)), "v": list(range(64))})
        table.flush()
        assert splits_read(table, "v = 1020", at=before)[1] == [20]
        assert splits_read(table, "v = 1020") == (0, [])
        assert splits_read(table, "v = 20", at=before)[1] == []


@given(data=st.data())
def test_z1_a_skipped_split_has_no_matching_row(world: World, data: st.DataObject) -> None:
    """All rows that match are in the ranges that the scan reads."""
    moment = data.draw(st.sampled_from([stamp for stamp, _ in world.states]))
    where, _ = data.draw(predicates())
    rows = data.draw(st.sampled_from([1, 4, 16]))
    spec = make_spec(world.table, moment, ("s", "n"), where, None, False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_path, "SPLIT_ROWS", rows)
        patch.setattr(read_path, "GAP_ROWS", data.draw(st.sampled_from([0, 1, 3])))
        for unit in plan(world.table, spec, ScanCounters()):
            counters = ScanCounters()
            found = list(splits(unit, spec, counters))
            read = {row for lower, upper in found for row in range(lower, upper)}
            assert sorted(read) == [row for lower, upper in found for row in range(lower, upper)]
            assert counters.rows_read == len(read) <= unit.upper - unit.lower
            assert counters.splits_read == len({row // rows for row in read})
            honest, _ = read_path.read_split(unit, spec, unit.lower, unit.upper, (), ScanCounters())
            matching = range(unit.lower, unit.upper) if honest is None else (honest + unit.lower).tolist()
            assert read.issuperset(matching)


# --- plan -----------------------------------------------------------------------------------------------


def planned(world: World, where: str | None) -> tuple[list[ScanUnit], ScanCounters]:
    counters = ScanCounters()
    spec = make_spec(world.table, world.states[-1][0], ("s",), where, None, False)
    return plan(world.table, spec, counters), counters


def test_plan_prunes_tablets_rowsets_and_rowids(world: World) -> None:
    """Bounds on the key leave one tablet, and of its rowsets only the rows between the bounds."""
    every, counters = planned(world, None)
    assert (counters.tablets_total, counters.tablets_read) == (4, 4)
    assert counters.rowsets_total == counters.rowsets_read == len(every) > 8
    some, counters = planned(world, "s = 'a' AND n < 3")
    assert counters.tablets_read == 1 and {unit.tablet for unit in some} == {some[0].tablet}
    assert counters.rowsets_total == len(every) and 0 < counters.rowsets_read <= 4
    for unit in some:
        if isinstance(unit.rowset, DiskRowSet):
            assert unit.upper - unit.lower < unit.rowset.row_count
        else:
            assert unit.rowids is not None and len(unit.rowids) < unit.rowset.row_count
    assert len({id(unit.rowset) for unit in every}) == len(every)


@pytest.mark.parametrize(
    "where", ["n = 99999999999", "a = 1 AND a = 2", "FALSE", "n < 3 AND n > 5", "s IS NULL"]
)
def test_a_predicate_without_matches_reads_nothing(world: World, where: str) -> None:
    """A predicate that no row can match reads no rowset, and the counters still count all rowsets."""
    units, counters = planned(world, where)
    assert units == [] and counters.tablets_read == 0
    assert counters.rowsets_total == planned(world, None)[1].rowsets_total


def test_blocks_are_counted_for_the_requested_columns(world: World) -> None:
    """`explain()` counts the blocks and skipped blocks of the scan's columns."""
    now = world.states[-1][0]
    one = block_count(world.table, make_spec(world.table, now, ("a",), None, None, False))
    both = block_count(world.table, make_spec(world.table, now, ("a", "f"), None, None, False))
    by_predicate = block_count(world.table, make_spec(world.table, now, ("a",), "f > 0", None, False))
    assert 0 < one < both == by_predicate
    facts = world.db["t"].scan(columns=["a"], where="f = 1000").explain().to_dict()
    assert facts["blocks_total"] == both and 0 < facts["blocks_skipped"] <= both


# --- many splits at once -------------------------------------------------------------------------------


def test_results_come_in_order_and_few_are_computed_ahead() -> None:
    """A scan of a large table keeps few splits in memory, even if its reader is slow."""
    begun: list[int] = []
    ahead = parallel.AHEAD_MAX
    lock = threading.Lock()

    def work(item: int) -> int:
        with lock:
            begun.append(item)
        return item * item

    results = in_parallel(range(1000), work)
    for number in range(100):
        assert next(results) == number * number
        assert len(begun) <= number + 1 + ahead
    results.close()  # type: ignore[attr-defined]
    assert len(begun) <= 100 + ahead


def test_a_scan_of_more_than_memory_limit_holds_a_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory stays within the limit, although `AHEAD_MAX` splits would be the whole table."""
    monkeypatch.setattr(read_path, "AHEAD_MAX", 16)
    monkeypatch.setattr(read_path, "SPLIT_ROWS", 1 << 15)
    splits, rows, limit_bytes = 12, 12 << 15, 16_000_000
    with open_database(tmp_path / "s", memory_limit_bytes=limit_bytes) as db:
        # Plain encoding, so that threads decode the text, and not only dictionary codes.
        schema = {"k": "int64", "text": nyala.column("string", encoding="plain")}
        table = db.create_table("t", schema, "k")
        numbers = np.random.default_rng(0).integers(10**18, 9 * 10**18, rows)
        text = pc.binary_repeat(pa.array(numbers).cast(pa.string()), 5)
        table.insert(pa.table({"k": np.arange(rows), "text": text}))
        table.flush()
        table.compact()
        total_bytes = rows * (8 + 95 + 4)
        assert total_bytes > 2 * limit_bytes
        pools = [pool(), *([pa.default_memory_pool()] if pool() != pa.default_memory_pool() else [])]
        for _ in range(3):  # the third scan fills the block cache, a quarter of the limit
            gc.collect()
            before = sum(each.bytes_allocated() for each in pools)
            most = seen = count = 0
            for batch in table.scan()._engine().batches():
                most = max(most, sum(each.bytes_allocated() for each in pools) - before)
                seen += batch.num_rows
                count += 1
                del batch
            assert seen == rows and count == splits
            assert most <= limit_bytes, f"{most:,} bytes of {total_bytes:,}"
            assert db.stats().cache_bytes <= limit_bytes // 4


@pytest.mark.parametrize("count", [0, 1, 2, 3, 50])
def test_any_number_of_splits(count: int) -> None:
    """Results are complete. The caller's thread works on a single split itself."""
    threads: set[int] = set()

    def work(item: int) -> int:
        threads.add(threading.get_ident())
        return -item

    assert list(in_parallel(range(count), work)) == [-number for number in range(count)]
    assert count != 1 or threads == {threading.get_ident()}


@pytest.mark.parametrize("count", [0, 1, 2, 7])
@pytest.mark.parametrize("where", ["between splits", "in a split"])
def test_an_error_is_raised_after_the_batches_before_it(count: int, where: str) -> None:
    """A damaged footer (between splits) or block (in a split) does not hide earlier batches."""

    def items() -> Iterator[int]:
        yield from range(count if where == "between splits" else 20)
        raise nyala.CorruptionError("a footer is damaged")

    def work(item: int) -> int:
        if item == count:
            raise nyala.CorruptionError("a block is damaged")
        return item

    for _ in range(20):
        found = []
        with pytest.raises(nyala.CorruptionError, match="damaged"):
            for result in in_parallel(items(), work):
                found.append(result)
        assert found == list(range(count))


def test_a_scan_continues_if_no_thread_can_be_started(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of the process, or without free threads, the caller's thread does all work."""

    def refused(self: Any, *_: object) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(parallel._Pool, "submit", refused)
    now = world.states[-1][0]
    assert collect(world, make_spec(world.table, now, ("s",), None, None, False)).num_rows == len(
        world.at(now)
    )

    def fails(item: int) -> int:
        raise nyala.CorruptionError("damaged")

    with pytest.raises(nyala.CorruptionError):
        list(in_parallel(range(3), fails))


# --- single rows ----------------------------------------------------------------------------------------


def test_get_many_returns_the_positions_of_found_keys(world: World) -> None:
    """Positions ascend, and values are in the same order, although rows are in several rowsets."""
    now = world.states[-1][0]
    table = world.table
    rows = world.at(now)
    names = [column.name for column in table.schema.key_columns]
    arrays = [pa.array([key[0] for key in KEYS]), pa.array([key[1] for key in KEYS], pa.int32())]
    keys = table.codec.encode(arrays)
    tablets = table.router.route(dict(zip(names, arrays, strict=True)), len(keys))
    order = np.lexsort((np.argsort(keys.sort_indices()), tablets))
    found, (numbers,) = get_many(table, keys.take(order), tablets[order], table.schema.project(["a"]), now)
    there = {(row["s"], row["n"]): row["a"] for row in rows}
    assert found.tolist() == sorted(found.tolist())
    assert {KEYS[order[i]]: a for i, a in zip(found.tolist(), numbers.to_pylist(), strict=True)} == there
    nothing, (empty,) = get_many(table, keys.take(order), tablets[order], table.schema.project(["a"]), 0)
    assert len(nothing) == len(empty) == 0 and empty.type == pa.int64()


def test_rows_without_columns_are_counted(world: World) -> None:
    """`scan(columns=[])` returns the number of rows, and `get(columns=[])` whether a row exists."""
    now = world.states[-1][0]
    table, rows = world.db["t"], world.at(now)
    for order in (False, True):
        assert table.scan(columns=[], order_by_key=order).to_arrow().num_rows == len(rows)
        assert table.scan(columns=[], order_by_key=order, limit=3).to_arrow().num_rows == 3
    key = {"s": rows[0]["s"], "n": rows[0]["n"]}
    assert table.get(key, columns=[]) == {} and table.get({"s": "nobody", "n": 0}, columns=[]) is None
    assert table.get_many([key, key, {"s": "nobody", "n": 0}], columns=[]).num_rows == 2
