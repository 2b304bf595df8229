"""The database as one immutable value: a change makes a new root and leaves the old one as it was (R7)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import key_value_table, open_database, rows

import nyala
from nyala.database import Database
from nyala.errors import TableNotFoundError
from nyala.tablet.root import Root, no_such_table


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "s") as db:
        key_value_table(db, "one")
        db.create_table("four", {"k": "int64", "v": "int64"}, "k", nyala.hash_partition("k", buckets=4))
        yield db


def test_the_old_root_stays_as_it_was(db: Database) -> None:
    """A scan keeps its root through every change of layout; the rows of its moment must stay in it."""
    store = db._writer()
    db["four"].insert({"k": list(range(20)), "v": list(range(20))})
    old = store.root
    tablets, version = old.table("four").tablets, old.version
    db.flush()
    db.rename_table("four", "vier")
    db.drop_table("one")
    assert old.version == version and set(old.by_name) == {"one", "four"}
    assert old.table("four").tablets is tablets and all(not tablet.rowsets for tablet in tablets)
    assert store.root.version > version and set(store.root.by_name) == {"vier"}
    assert all(len(tablet.rowsets) == 1 for tablet in store.root.table("vier").tablets)
    with pytest.raises(dataclasses.FrozenInstanceError):
        old.version = 1  # type: ignore[misc]


def test_with_tablets_replaces_and_keeps_the_rest(db: Database) -> None:
    """Only what was flushed changes: a neighbour that was exchanged too would lose what it has in memory."""
    root = db._writer().root
    four = root.table("four")
    _ = (four.codec, four.partitions, four.router, four.ordinal_of)
    changed = dataclasses.replace(four.tablets[2], frozen=(four.tablets[2].memory,))
    fresh = root.with_tablets({changed.id: changed, 12345: changed})
    assert fresh.version == root.version and fresh.tables.keys() == root.tables.keys()
    assert fresh.table("one") is root.table("one")
    new = fresh.table("four")
    assert [a is b for a, b in zip(new.tablets, four.tablets, strict=True)] == [True, True, False, True]
    # What was derived from schema and partitions is not derived again for every flush.
    assert new.codec is four.codec and new.router is four.router and new.ordinal_of is four.ordinal_of
    assert root.with_tablets({}, 99).version == 99
    gone = dataclasses.replace(changed, entry=dataclasses.replace(changed.entry, table_id=777))
    assert root.with_tablets({gone.id: gone}).tables == root.tables  # its table was dropped meanwhile


def test_tablets_stand_where_the_router_counts_them(db: Database) -> None:
    """T2: else rows would go to a tablet of another partition, and pruning would not find them."""
    table = db._writer().root.table("four")
    assert [table.ordinal_of[tablet.id] for tablet in table.tablets] == [0, 1, 2, 3]
    assert [partition.hash_buckets for partition in table.partitions] == [(0,), (1,), (2,), (3,)]
    with_one_more = db._writer().root.with_table(dataclasses.replace(table, tablets=table.tablets[::-1]))
    assert list(with_one_more.table("four").ordinal_of.values()) == [0, 1, 2, 3]
    assert with_one_more.table("four").ordinal_of[table.tablets[0].id] == 3


def test_what_anchors_the_log(db: Database) -> None:
    """R3: the oldest timestamp that is in memory only, in any store of any tablet; None when all is on disk."""
    store = db._writer()
    assert store.root.memory_timestamp_min() is None and store.root.memory_bytes() >= 0
    first = db["one"].insert({"k": [1], "v": [1]}).timestamp
    second = db["four"].insert({"k": list(range(20)), "v": [0] * 20}).timestamp
    assert store.root.memory_timestamp_min() == first
    assert store.root.memory_bytes() == sum(tablet.memory_bytes() for _, tablet in store.root.tablets()) > 300
    db["one"].flush()
    assert store.root.memory_timestamp_min() == second
    third = db["one"].update({"k": [1], "v": [2]}).timestamp
    db["four"].flush()
    assert store.root.memory_timestamp_min() == third
    tablet = store.root.table("one").tablets[0]
    frozen = dataclasses.replace(tablet, rowsets=tuple(r.with_frozen_deltas() for r in tablet.rowsets))
    assert frozen.memory_timestamp_min() == third and frozen.memory_bytes() >= tablet.memory_bytes() > 0
    db.flush()
    assert store.root.memory_timestamp_min() is None


def test_every_rowset_of_a_tablet_is_named(db: Database) -> None:
    """What walks through a tablet must meet memory, frozen memory and files."""
    table = db["one"]
    table.insert({"k": [1], "v": [1]})
    db.flush()
    table.insert({"k": [2], "v": [2]})
    tablet = db._writer().root.table("one").tablets[0]
    both = dataclasses.replace(tablet, frozen=(db._writer().new_memory(db._writer().root.table("one")),))
    assert list(both.all_rowsets()) == [tablet.memory, *both.frozen, *tablet.rowsets]
    assert both.tree.rowsets == tablet.rowsets
    assert rows(table) == [(1, 1), (2, 2)]


def test_a_name_that_is_not_there(db: Database) -> None:
    """The message names the tables that there are: most of such errors are typing errors."""
    with pytest.raises(TableNotFoundError, match="its tables are: four, one"):
        db._writer().root.table("two")
    assert "make one with create_table" in no_such_table("x", {})
    many = no_such_table("x", {f"t{number:02}": None for number in range(30)})
    assert "t09, …" in many and "t10" not in many
    with pytest.raises(TableNotFoundError):
        Root(1, {}).table("x")


def test_dropped_and_made_again_is_another_table(db: Database) -> None:
    """Its tablets have new numbers, so that nothing of the old one can be replayed into it (R1)."""
    store = db._writer()
    old, old_id = {tablet.id for tablet in store.root.table("four").tablets}, store.root.table("four").id
    db.drop_table("four")
    db.create_table("four", {"k": "int64", "v": "int64"}, "k", nyala.hash_partition("k", buckets=4))
    new = {tablet.id for tablet in store.root.table("four").tablets}
    assert not old & new and store.root.table("four").id != old_id
