"""Change feeds between two moments, compared with a dictionary of versions.

`World` writes to a table and to the dictionary at once. So it has the answer for any interval:
net changes, all versions, the values before each of them, the history of a key, and the snapshot
after applying the net changes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampled import is_long_run
from tests.support import compact_deltas, open_database

import nyala
from nyala.api.database import Database
from nyala.errors import InvalidArgumentError
from nyala.tablet.changes.feed import change_batches
from nyala.tablet.changes.spec import make_change_spec
from nyala.tablet.manual_maintenance import compact_table

Row = dict[str, Any]
Change = tuple[Any, ...]  # key, values, type, timestamp
SHARED_MEMORY = "/dev/shm"  # without a disk, syncs cost nothing
EARLIER, LATER = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=n) for n in (-5, 5))
NEVER = 0


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "s") as db:
        yield db


def changes(
    table: Any,
    since: int,
    until: int | None = None,
    versions: str = "net",
    before: bool = False,
    **small: int,
) -> list[Change]:
    """Return the feed's rows as tuples, by key if net. `small`: sizes of splits and slices."""
    root, state, lower, upper = table._interval(since, until)
    spec = make_change_spec(
        state, lower, upper, versions, state.schema.columns, "both" if before else "until"
    )
    spec = dataclasses.replace(spec, **small)
    found = pa.Table.from_batches(change_batches(state, spec), schema=spec.arrow_schema)
    found.validate(full=True)
    assert not any(found.column(f.name).null_count for f in spec.arrow_schema if not f.nullable)
    del root
    return as_tuples(found, versions, spec.key_count)


def as_tuples(found: pa.Table, versions: str = "all", key_count: int = 1) -> list[Change]:
    """Return the rows as tuples without the commit time, which must fit the commit version."""
    times = found.column("_commit_timestamp")
    assert times.type == pa.timestamp("us", "UTC")
    assert times.to_pylist() == [
        None if at is None else nyala.to_datetime(at) for at in found.column("_commit_version").to_pylist()
    ]
    rows = [tuple(row.values()) for row in found.drop_columns("_commit_timestamp").to_pylist()]
    return sorted(rows, key=lambda row: row[:key_count]) if versions == "net" else rows


# --- named cases ----------------------------------------------------------------------------------------


def test_a_row_that_is_updated_often_has_all_its_versions(db: Database) -> None:
    """A row has more versions than a slice, in UNDO files, REDO files and memory."""
    table = db.create_table("t", {"k": "int64", "a": "int64", "b": "int64"}, "k")
    expected: list[Change] = [(1, 0, 0, "insert", table.insert({"k": [1], "a": [0], "b": [0]}).timestamp)]
    for number in range(1, 40):
        name = "a" if number % 3 else "b"
        a, b = (number, expected[-1][2]) if name == "a" else (expected[-1][1], number)
        expected.append((1, a, b, "update", table.update({"k": [1], name: [number]}).timestamp))
        if number % 10 == 0:
            table.flush()
    for slice_versions in (1, 7, 1000):
        assert changes(table, NEVER, versions="all", slice_versions=slice_versions) == expected


@pytest.mark.parametrize("flushed", [False, True])
def test_a_batch_larger_than_a_slice_is_merged_by_key(db: Database, flushed: bool) -> None:
    """Versions of one timestamp cannot be cut by time, so their rows are merged in small splits."""
    table = db.create_table("t", {"k": "int64", "v": "int64"}, "k", [nyala.hash_partition("k", buckets=3)])
    order = [7, 3, 11, 0, 5, 2, 9, 4, 1, 10, 8, 6]
    born = table.insert({"k": order, "v": order}).timestamp
    if flushed:
        table.flush()
    changed = table.update({"k": order[:6], "v": [0] * 6}).timestamp
    expected = [(k, k, "insert", born) for k in range(12)]
    updates = [(k, 0, "update", changed) for k in sorted(order[:6])]
    small = {"slice_versions": 4, "split_rows": 2}
    assert changes(table, NEVER, versions="all", **small) == expected + updates
    images = [
        (k, v, f"update_{which}", changed)
        for k in sorted(order[:6])
        for v, which in ((k, "preimage"), (0, "postimage"))
    ]
    assert changes(table, NEVER, versions="all", before=True, **small) == expected + images


def test_values_of_every_type_go_through_the_timeline(db: Database) -> None:
    """Values of all types change to NULL and back; NaN and -0.0 stay as they are."""
    types = {
        "i": "int8",
        "s": "string",
        "b": "bool",
        "f": "double",
        "d": "decimal(20,2)",
        "t": "timestamp",
        "y": "binary",
    }
    table = db.create_table("t", {"k": "string", **types}, "k")
    values = [
        {"i": 1, "s": "a", "b": True, "f": -0.0, "d": Decimal("1.50"), "t": LATER, "y": b"\0"},
        dict.fromkeys(types),
        {"i": -1, "s": "", "b": False, "f": math.nan, "d": Decimal("-2.25"), "t": EARLIER, "y": b""},
    ]  # fmt: skip
    for row in values:
        table.upsert([{"k": "x", **row}])
        table.flush()
    rows = table.changes(NEVER, versions="all").to_arrow().to_pylist()
    for row, at in zip(rows, table.history({"k": "x"}).column("_commit_version").to_pylist(), strict=True):
        seen = table.get({"k": "x"}, at=at)
        assert repr({name: row[name] for name in seen}) == repr(seen)
    assert [row["_change_type"] for row in rows] == ["insert", "update", "update"]


# --- against a dictionary of versions -------------------------------------------------------------------


@dataclasses.dataclass
class World:
    """A table, and for each key the (timestamp, row or None) of each batch that wrote it."""

    db: Database
    name: str
    moments: list[int]
    versions: dict[int, list[tuple[int, Row | None]]] = dataclasses.field(default_factory=dict)

    @property
    def table(self) -> Any:
        return self.db[self.name]

    def row(self, key: int, at: int) -> Row | None:
        return next((row for stamp, row in reversed(self.versions.get(key, [])) if stamp <= at), None)

    def state(self, at: int) -> dict[int, Row]:
        return {key: row for key in sorted(self.versions) if (row := self.row(key, at)) is not None}

    def net(self, since: int, until: int, images: bool = False) -> list[Change]:
        """Return the net changes. images: with the values before each change."""
        found: list[Change] = []
        for key in sorted(self.versions):
            stamps = [stamp for stamp, _ in self.versions[key] if since < stamp <= until]
            before, after = self.row(key, since), self.row(key, until)
            if stamps and (before or after):
                found += _changes_of(key, before, after, stamps[-1], images)
        return found

    def all(self, since: int, until: int, images: bool = False) -> list[Change]:
        found: list[Change] = []
        for key, versions in self.versions.items():
            before: Row | None = None
            for stamp, row in versions:
                if since < stamp <= until:
                    found += _changes_of(key, before, row, stamp, images)
                before = row
        return sorted(found, key=lambda change: (change[-1], change[0]))

    def write(self, operations: list[tuple[str, list[Row]]]) -> None:
        """Write one batch, without rows that would fail (duplicate or missing keys)."""
        now = self.state(2**63 - 1)
        before, touched = dict(now), set()
        planned: list[tuple[str, list[Row]]] = []
        for operation, rows in operations:
            valid = []
            for row in rows:
                key = row["k"]
                if (operation == "insert" and key in now) or (
                    operation in ("update", "delete") and key not in now
                ):
                    continue
                valid.append({"k": key} if operation == "delete" else row)
                touched.add(key)
                if operation == "delete":
                    del now[key]
                else:
                    now[key] = {"a": None, "b": None, **now.get(key, {}), **row}
            if valid:
                planned.append((operation, valid))
        if not planned:
            return
        with self.db.batch() as batch:
            for operation, valid in planned:
                # A call takes rows with the same columns.
                for _, group in itertools.groupby(valid, key=lambda row: tuple(row)):
                    getattr(batch, operation)(self.name, list(group))
        (at,) = {result.timestamp for result in batch.results}
        for key in touched:
            if key in before or key in now:
                self.versions.setdefault(key, []).append((at, now.get(key)))
        self.moments.append(at)

    def restore(self, to: int) -> None:
        now, then = self.state(2**63 - 1), self.state(to)
        result = self.table.restore(to=to)
        different = [key for key in now.keys() | then.keys() if now.get(key) != then.get(key)]
        assert (result.inserted, result.updated, result.deleted) == (
            len(then.keys() - now.keys()), len([k for k in different if k in now and k in then]),
            len(now.keys() - then.keys()),
        )  # fmt: skip
        for key in different:
            self.versions.setdefault(key, []).append((result.timestamp, then.get(key)))
        if different:
            self.moments.append(result.timestamp)

    def check(self, since: int, until: int, small: dict[str, int]) -> None:
        """Assert that every form of the feed agrees with the dictionary."""
        net = changes(self.table, since, until, **small)
        assert net == self.net(since, until)
        assert changes(self.table, since, until, "all", **small) == self.all(since, until)
        assert changes(self.table, since, until, "net", True, **small) == self.net(since, until, True)
        every = changes(self.table, since, until, "all", True, **small)
        assert every == self.all(since, until, True)
        for key, a, b, kind, stamp in every[:8]:
            at = stamp - 1 if kind in ("update_preimage", "delete") else stamp
            assert self.table.get({"k": key}, at=at) == {"k": key, "a": a, "b": b}, (
                "the feed has the row of the snapshot"
            )
        applied = self.state(since)
        for key, a, b, kind, _ in net:
            assert (key in applied) == (kind != "insert")
            applied.pop(key, None)
            if kind != "delete":
                applied[key] = {"k": key, "a": a, "b": b}
        scanned = self.table.scan(at=until).to_arrow().to_pylist()
        assert applied == {row["k"]: row for row in scanned} == self.state(until)
        for key in [*list(self.versions)[:2], 99]:
            history = as_tuples(self.table.history({"k": key}, since, until))
            assert history == [change for change in self.all(since, until) if change[0] == key]


def _changes_of(key: int, before: Row | None, after: Row | None, stamp: int, images: bool) -> list[Change]:
    """Return the feed's rows for one change."""
    nothing: Row = {"a": None, "b": None}
    kind = "insert" if before is None else "delete" if after is None else "update"
    if not images:
        shown = [(after or nothing, kind)]
    elif kind == "update":
        shown = [(before or nothing, "update_preimage"), (after or nothing, "update_postimage")]
    else:
        shown = [(after or before or nothing, kind)]
    return [(key, row["a"], row["b"], word, stamp) for row, word in shown]


KEYS = st.integers(0, 5)
VALUES = st.one_of(st.none(), st.integers(0, 3))
TEXTS = st.one_of(st.none(), st.sampled_from(["", "x", "yy"]))
ROWS = st.one_of(
    st.builds(lambda k, a, b: {"k": k, "a": a, "b": b}, KEYS, VALUES, TEXTS),
    st.builds(lambda k, a: {"k": k, "a": a}, KEYS, VALUES),
    st.builds(lambda k, b: {"k": k, "b": b}, KEYS, TEXTS),
)
OPERATIONS = st.tuples(
    st.sampled_from(["insert", "upsert", "update", "delete", "delete"]),
    st.lists(ROWS, min_size=1, max_size=4),
)

# Steps that move records to other files. They must not change any feed.
PHASES: dict[str, Callable[[World], object]] = {
    "flush": lambda world: world.db.flush(),
    "compact deltas": lambda world: compact_deltas(world.db._writer()),
    "compact": lambda world: compact_table(world.db._writer(), world.name),
}
STEPS = st.lists(
    st.one_of(
        st.lists(OPERATIONS, min_size=1, max_size=3),
        st.lists(OPERATIONS, min_size=1, max_size=1),
        st.sampled_from(["flush", *PHASES]),
        st.tuples(st.just("restore"), st.integers(0, 100)),
    ),
    min_size=1,
    max_size=14,
)  # fmt: skip


@pytest.fixture(scope="module")
def shared() -> Iterator[Database]:
    where = SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else None
    with tempfile.TemporaryDirectory(prefix="nyala-unit-", dir=where) as folder:
        with open_database(Path(folder) / "s") as db:
            yield db


NAMES = (f"w{number}" for number in itertools.count())


@given(steps=STEPS, hashed=st.booleans(), split_rows=st.sampled_from([1, 2, 100]), data=st.data())
@settings(max_examples=settings().max_examples * (2 if is_long_run() else 1))
def test_feeds_agree_with_a_dictionary_of_versions(
    shared: Database, steps: list[Any], hashed: bool, split_rows: int, data: st.DataObject
) -> None:
    """Net changes, all versions, histories and restores between any two moments, in small splits."""
    name = next(NAMES)
    partitions = [nyala.hash_partition("k", buckets=2)] if hashed else []
    shared.create_table(name, {"k": "int64", "a": "int8", "b": "string"}, "k", partitions)
    world = World(shared, name, [shared.now()])
    for step in steps:
        if isinstance(step, list):
            world.write(step)
        elif isinstance(step, tuple):
            world.restore(world.moments[step[1] % len(world.moments)])
        else:
            PHASES[step](world)
    small = {"split_rows": split_rows, "slice_versions": data.draw(st.sampled_from([1, 3, 1000]))}
    for since, until in itertools.combinations_with_replacement(sorted({*world.moments[-4:], NEVER}), 2):
        if until != NEVER:
            world.check(since, until, small)
    shared.drop_table(name)


def test_a_table_column_named_as_a_column_of_the_feed_is_refused(db: Database) -> None:
    """Two columns with one name would be ambiguous. The feed works without the table's column."""
    table = db.create_table("t", {"k": "int64", "_change_type": "string", "v": "int64"}, "k")
    table.insert({"k": [1], "_change_type": ["mine"], "v": [2]})
    with pytest.raises(InvalidArgumentError, match=r"_change_type.*columns="):
        table.changes(NEVER)
    assert table.changes(NEVER, columns=["v"]).to_arrow().column_names == [
        "k",
        "v",
        "_change_type",
        "_commit_version",
        "_commit_timestamp",
    ]
