"""Scans, tokens, SQL, polars, look-ups and feeds of random tables agree with a dictionary of rows.

Tables have one rowset or many, with and without partitions. After random writes and compactions,
their rowsets overlap or not, and have parts, changes, dead rows and columns that were added later.
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
from tests.unit.tablet.random_tables import (
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
    apply_step,
    create,
    predicate,
    row,
    small_splits,
    without,
)

import nyala
from nyala.api.scan import read_token

STEPS = st.lists(
    st.one_of(CHANGE, CHANGE, UPSERT, DELETE, FLUSH, MAJOR, MINOR, MERGE, MERGE, ADD), min_size=1, max_size=10
)
SHAPES: list[tuple[tuple[str, ...], Any]] = [
    (("k",), ()),
    (("k",), ()),
    (("k",), nyala.hash_partition("k", buckets=2)),
    (("k",), nyala.range_partition("k", splits=[1000])),
    (("group", "k"), ()),
    (("group", "k"), nyala.hash_partition("group", buckets=2)),
    (("k", "group"), [nyala.hash_partition("group", buckets=2), nyala.range_partition("k", splits=[700])]),
]
# The number of the first inserts, and whether their keys are interleaved or in separate ranges.
FIRST = st.tuples(st.integers(1, 3), st.booleans())


@dataclass
class Model:
    """The rows of a table by k at several moments, and the keys written since the moment before."""

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
        """Return the net changes between two states, with the key and these columns."""
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


def write_store(
    path: Path, keys: tuple[str, ...], partition_by: Any, first: tuple[int, bool], steps: list[Step]
) -> Model:
    """Write a store, close it, and return its model."""
    model = Model(keys)
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
            # Without every eleventh row, which a later upsert may insert.
            news = {k: without(row(k, 0), *leave) for k in some if k % 11}
            table.insert(list(news.values()))
            table.flush()
            rows |= news
        written: set[int] = set()
        for number, step in enumerate([*steps, None], 1):
            model.moments.append(db.now())
            model.states.append(dict(rows))
            model.written.append(written)
            if step is not None:
                written = apply_step(db, step, number, rows)
    return model


def compare(
    db: nyala.Database, model: Model, state: int, names: list[str], tests: list[Test], any_of: bool
) -> None:
    """Read the rows of a moment that satisfy a predicate by every interface that has predicates."""
    table, at = db["t"], model.moments[state]
    holds = any if any_of else all
    where = (" OR " if any_of else " AND ").join(text for text, _ in tests) if tests else None
    found = [r for r in model.ordered(state) if not tests or holds(test(r) for _, test in tests)]
    wanted = [{name: r[name] for name in names} for r in found]
    by_key = [*model.keys, *(name for name in names if name not in model.keys)]
    scan = table.scan(names, where, at=at, order_by_key=True)
    assert scan.to_arrow().to_pylist() == wanted
    assert scan._engine().with_cheap_types().scan.to_arrow().to_pylist() == wanted
    assert table.count(where, at=at) == len(wanted)
    assert table.scan(names, where, at=at, order_by_key=True, limit=7).to_arrow().to_pylist() == wanted[:7]
    read = [batch for token in table.scan(by_key, where, at=at).tokens() for batch in read_token(token)]
    by_tokens = pa.Table.from_batches(read, table.scan(by_key, at=at).schema).sort_by(
        [(n, "ascending") for n in model.keys]
    )
    assert by_tokens.select(names).to_pylist() == wanted
    listed, key = ", ".join(f'"{name}"' for name in names), ", ".join(f'"{name}"' for name in model.keys)
    statement = f"SELECT {listed} FROM t WHERE {where or 'true'} ORDER BY {key}"
    assert db.sql(statement, at=at).to_arrow().to_pylist() == wanted
    unordered = table.scan(by_key, where, at=at).to_polars().sort(model.keys)
    assert unordered.select(names).to_arrow().cast(scan.schema).to_pylist() == wanted
    if where is None or "IN (DATE" not in where:  # polars reads this from version 1.36 on
        lazy = table.scan(at=at).to_polars_lazy()
        lazy = lazy if where is None else lazy.filter(pl.sql_expr(where.replace("DATE ", "date ")))
        assert (
            lazy.sort(model.keys).select(names).collect().to_arrow().cast(scan.schema).to_pylist() == wanted
        )


@pytest.mark.timeout(3600)
@settings(max_examples=settings().max_examples // 2, phases=set(Phase) - {Phase.explain})
@given(
    shape=st.sampled_from(SHAPES),
    first=FIRST,
    steps=STEPS,
    split_rows=st.sampled_from([256, 1024]),
    data=st.data(),
)
def test_every_read_of_a_random_table_returns_the_expected_rows(
    shape: tuple[tuple[str, ...], Any],
    first: tuple[int, bool],
    steps: list[Step],
    split_rows: int,
    data: st.DataObject,
) -> None:
    with small_splits(split_rows), folder_in_memory() as folder:
        path = Path(folder) / "s"
        model = write_store(path, *shape, first, steps)
        states = len(model.states)
        for _ in range(2):
            state = data.draw(
                st.sampled_from([states - 1, states - 1, states - 1, 0, states // 2]), label="state"
            )
            known = model.columns(state)
            names = data.draw(
                st.lists(st.sampled_from(known), min_size=1, max_size=4, unique=True), label="names"
            )
            columns = st.lists(st.sampled_from([*known, *model.keys]), min_size=0, max_size=3, unique=True)
            tests = [data.draw(predicate(name)) for name in data.draw(columns, label="tested")]
            any_of = data.draw(st.sampled_from([False, False, True]), label="any of them")
            with nyala.connect(path, read_only=True) as db:
                for _ in range(data.draw(st.sampled_from([1, 1, 3]), label="times")):
                    compare(db, model, state, names, tests, any_of)
        with nyala.connect(path, read_only=True) as db:
            table = db["t"]
            keys = data.draw(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=40), label="keys")
            keys += range(keys[0], ROWS, 1 + keys[-1] % 9)
            there = model.states[state]
            given_keys = [{name: row(k, 0)[name] for name in model.keys} for k in keys]
            found = table.get_many(given_keys, names, at=model.moments[state]).to_pylist()
            assert found == [{name: there[k][name] for name in names} for k in keys if k in there]
            since = data.draw(st.integers(0, state), label="since")
            feed = (
                table.changes(model.moments[since], model.moments[state], columns=names)
                .to_arrow()
                .to_pylist()
            )
            wanted = model.net(since, state, names)
            for mark in ("_commit_version", "_commit_timestamp"):
                feed = [without(row, mark) for row in feed]
            assert sorted(feed, key=lambda row: row["k"]) == wanted
