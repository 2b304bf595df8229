"""A table gives the same rows for every form of its tablets and every way to read them.

Tablets of hash and range partitions have rowsets with and without overlap, parts, changes, dead and
reinserted rows, merged or not. They are read by scans, tokens, SQL, polars, look-ups and feeds, now
and in the past. Random tables are compared with a dictionary of rows. `test_scan_ways.py` does the
same with one rowset.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.support import folder_in_memory, open_database
from tests.unit.tablet.ways import (
    ADD,
    ADDED,
    CHANGE,
    DELETE,
    FLUSH,
    KEY_COLUMNS,
    MAJOR,
    MERGE,
    MINOR,
    NAMES,
    ROWS,
    UPSERT,
    Row,
    Step,
    Test,
    carry_out,
    create,
    question,
    row,
    small_splits,
    without,
)

import nyala
from nyala.api.scan import read_token

SPLIT = 256
STEPS = st.lists(
    st.one_of(CHANGE, CHANGE, UPSERT, DELETE, FLUSH, MAJOR, MINOR, MERGE, MERGE, ADD), min_size=1, max_size=10
)
SHAPES: list[tuple[tuple[str, ...], Any]] = [
    (("k",), ()),
    (("k",), nyala.hash_partition("k", buckets=2)),
    (("k",), nyala.range_partition("k", splits=[1000])),
    (("group", "k"), ()),
    (("group", "k"), nyala.hash_partition("group", buckets=2)),
    (("k", "group"), [nyala.hash_partition("group", buckets=2), nyala.range_partition("k", splits=[700])]),
]
# How the first rows came: of so many writes each the how manieth rows, or a stretch.
FIRST = st.tuples(st.integers(1, 3), st.booleans())


@dataclass
class Tale:
    """The history of a table: its rows by k at each moment, and those written since the last."""

    keys: tuple[str, ...]
    moments: list[int] = field(default_factory=list)
    states: list[dict[int, Row]] = field(default_factory=list)
    written: list[set[int]] = field(default_factory=list)

    def ordered(self, state: int) -> list[Row]:
        return sorted(self.states[state].values(), key=lambda r: tuple(r[name] for name in self.keys))

    def columns(self, state: int) -> list[str]:
        added = any(ADDED in found for found in self.states[state].values())
        return [*self.keys, *NAMES, *([ADDED] if added else [])]

    def net(self, since: int, until: int, columns: list[str]) -> list[Row]:
        """The feed between two states, with these columns besides the key's."""
        out = []
        for k in sorted(set().union(*self.written[since + 1 : until + 1])):
            was, found = k in self.states[since], self.states[until].get(k)
            if not was and found is None:
                continue
            kind = "delete" if found is None else "update" if was else "insert"
            shown = {name: row(k, 0)[name] for name in self.keys}
            shown |= {
                name: None if found is None else found[name] for name in columns if name not in self.keys
            }
            out.append({**shown, "_change_type": kind})
        return out


def make_tale(
    path: Path, keys: tuple[str, ...], partition_by: Any, first: tuple[int, bool], steps: list[Step]
) -> Tale:
    """Write the store and close it; returns its expected content."""
    tale = Tale(keys)
    leave = [ADDED, *(set(KEY_COLUMNS) - set(keys))]
    rows: dict[int, Row] = {}
    with open_database(path) as db:
        table = create(db, keys, partition_by)
        parts, interleaved = first
        for part in range(parts):
            some = (
                range(part, ROWS, parts)
                if interleaved
                else range(part * ROWS // parts, (part + 1) * ROWS // parts)
            )
            # A row of eleven comes later, if at all.
            news = {k: without(row(k, 0), *leave) for k in some if k % 11}
            table.insert(list(news.values()))
            table.flush()
            rows |= news
        written: set[int] = set()
        for number, step in enumerate([*steps, None], 1):
            tale.moments.append(db.now())
            tale.states.append(dict(rows))
            tale.written.append(written)
            if step is not None:
                written = carry_out(db, step, number, rows)
    return tale


def look(
    db: nyala.Database, tale: Tale, state: int, names: list[str], asked: list[Test], any_of: bool
) -> None:
    """Rows of a moment, by every way that has rows of a predicate."""
    table, at = db["t"], tale.moments[state]
    holds = any if any_of else all
    where = (" OR " if any_of else " AND ").join(text for text, _ in asked) if asked else None
    found = [r for r in tale.ordered(state) if not asked or holds(test(r) for _, test in asked)]
    wanted = [{name: r[name] for name in names} for r in found]
    by_key = [*tale.keys, *(name for name in names if name not in tale.keys)]
    scan = table.scan(names, where, at=at, order_by_key=True)
    assert scan.to_arrow().to_pylist() == wanted
    assert scan._engine().with_cheap_types().scan.to_arrow().to_pylist() == wanted
    assert table.count(where, at=at) == len(wanted)
    assert table.scan(names, where, at=at, order_by_key=True, limit=7).to_arrow().to_pylist() == wanted[:7]
    read = [batch for token in table.scan(by_key, where, at=at).tokens() for batch in read_token(token)]
    by_tokens = pa.Table.from_batches(read, table.scan(by_key, at=at).schema).sort_by(
        [(n, "ascending") for n in tale.keys]
    )
    assert by_tokens.select(names).to_pylist() == wanted
    listed, key = ", ".join(f'"{name}"' for name in names), ", ".join(f'"{name}"' for name in tale.keys)
    statement = f"SELECT {listed} FROM t WHERE {where or 'true'} ORDER BY {key}"
    assert db.sql(statement, at=at).to_arrow().to_pylist() == wanted
    unordered = table.scan(by_key, where, at=at).to_polars().sort(tale.keys)
    assert unordered.select(names).to_arrow().cast(scan.schema).to_pylist() == wanted
    if where is None or "IN (DATE" not in where:  # which polars reads from 1.36 on
        lazy = table.scan(at=at).to_polars_lazy()
        lazy = lazy if where is None else lazy.filter(pl.sql_expr(where.replace("DATE ", "date ")))
        assert lazy.sort(tale.keys).select(names).collect().to_arrow().cast(scan.schema).to_pylist() == wanted


@pytest.mark.timeout(3600)
@settings(max_examples=settings().max_examples // 3, phases=set(Phase) - {Phase.explain})
@given(shape=st.sampled_from(SHAPES), first=FIRST, steps=STEPS, data=st.data())
def test_the_same_rows_whatever_a_table_consists_of(
    shape: tuple[tuple[str, ...], Any], first: tuple[int, bool], steps: list[Step], data: st.DataObject
) -> None:
    with small_splits(SPLIT), folder_in_memory() as folder:
        path = Path(folder) / "s"
        tale = make_tale(path, *shape, first, steps)
        states = len(tale.states)
        for _ in range(2):
            state = data.draw(
                st.sampled_from([states - 1, states - 1, states - 1, 0, states // 2]), label="state"
            )
            known = tale.columns(state)
            names = data.draw(
                st.lists(st.sampled_from(known), min_size=1, max_size=4, unique=True), label="names"
            )
            columns = st.lists(st.sampled_from([*known, *tale.keys]), min_size=0, max_size=3, unique=True)
            asked = [data.draw(question(name)) for name in data.draw(columns, label="asked")]
            any_of = data.draw(st.sampled_from([False, False, True]), label="any of them")
            with nyala.connect(path, read_only=True) as db:
                for _ in range(data.draw(st.sampled_from([1, 1, 3]), label="times")):
                    look(db, tale, state, names, asked, any_of)
        with nyala.connect(path, read_only=True) as db:
            table = db["t"]
            keys = data.draw(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=40), label="keys")
            keys += range(keys[0], ROWS, 1 + keys[-1] % 9)
            there = tale.states[state]
            given_keys = [{name: row(k, 0)[name] for name in tale.keys} for k in keys]
            found = table.get_many(given_keys, names, at=tale.moments[state]).to_pylist()
            assert found == [{name: there[k][name] for name in names} for k in keys if k in there]
            since = data.draw(st.integers(0, state), label="since")
            feed = (
                table.changes(tale.moments[since], tale.moments[state], columns=names).to_arrow().to_pylist()
            )
            wanted = tale.net(since, state, names)
            for mark in ("_commit_version", "_commit_timestamp"):
                feed = [without(row, mark) for row in feed]
            assert sorted(feed, key=lambda row: row["k"]) == wanted
