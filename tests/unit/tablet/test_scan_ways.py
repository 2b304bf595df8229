"""A scan gives the same rows whatever its rowset consists of: base, columns in files of their own, changes in files and
in memory, dead rows, a column that came later, the past; encodings that tell and those that do not.

Each of these keeps columns from some of the ways in which others are read, and mostly several meet in one window: here
by chance, against a list of rows.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias
from unittest import mock

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.support import folder_in_memory, open_database

import nyala
from nyala.cfile.first_pass import PASSES
from nyala.rowset import changes, disk_rowset
from nyala.tablet import read_path
from nyala.tablet.compaction import compact, run_here
from nyala.tablet.compaction_plans import MajorPlan

ROWS = 3000
WINDOW = 1024
DAY = dt.date(2020, 1, 1)
Row: TypeAlias = dict[str, Any]

KINDS = {
    "n": ("int32", "for"), "amount": ("decimal(15,2)", "for"), "day": ("date", "for"), "word": ("string", "dictionary"),
    "few": ("string", "dictionary"), "maybe": ("int32", "for"), "x": ("double", "auto"), "text": ("string", "plain"),
    "runs": ("int64", "rle"), "bits": ("int64", "bitshuffle"), "start": ("string", "prefix"), "flag": ("bool", "auto"),
    "wide": ("decimal(30,2)", "auto"), "gap": ("decimal(9,2)", "for"), "lacking": ("string", "dictionary"),
}  # fmt: skip
NAMES = list(KINDS)
NULLABLE = {"maybe": 5, "gap": Decimal(5), "lacking": "l5"}
ADDED, DEFAULT = "added", 7


def row(k: int, shift: int) -> Row:
    """Of a key, as it was inserted (0) or changed; of most columns there are values that both have."""
    cube = k**3 + 31 * shift * k + shift
    return {
        "k": k,
        "n": cube % 2999 - 1500,
        "amount": Decimal(cube % 4973 - 99) / 100,
        "day": DAY + dt.timedelta(days=cube % 1997),
        "word": f"{'new' if shift and k % 3 == 0 else 'w'}{cube % 401}",
        "few": f"m{cube % 7}",
        "maybe": None if shift and (k + shift) % 4 == 0 else cube % 1009,
        "x": cube % 997 / 8,
        "text": f"text {cube % 501}",
        "runs": k // 50 * (1 + shift),
        "bits": cube % 100_003,
        "start": f"{k // 7:05} {cube % 3}",
        "flag": cube % 3 == 0,
        "wide": Decimal(cube % 4099 - 99) * 10**20,
        "gap": None if (k + shift) % 3 == 0 else Decimal(cube % 991) / 100,
        "lacking": None if (k + shift) % 3 == 1 else f"l{cube % 97}",
        ADDED: cube % 19,
    }


SOME = st.lists(st.sampled_from([*NAMES, ADDED]), min_size=1, max_size=4, unique=True)
ALL_ROWS = (0, 1)
PLACES = st.tuples(st.integers(0, ROWS - 1), st.sampled_from([1, 3, 40, 700]))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("change"), SOME, PLACES),
        st.tuples(st.just("change"), SOME, PLACES),
        st.tuples(st.just("delete"), st.just([]), PLACES.map(lambda of: (of[0], 40 + of[1]))),
        st.tuples(st.just("flush"), st.just([]), st.just(ALL_ROWS)),
        st.tuples(st.just("major"), SOME, st.just(ALL_ROWS)),
        st.tuples(st.just("add"), st.just([]), st.just(ALL_ROWS)),
    ),
    min_size=1,
    max_size=8,
)
Step: TypeAlias = tuple[str, list[str], tuple[int, int]]
Test: TypeAlias = tuple[str, Callable[[Row], bool]]


@contextlib.contextmanager
def small_windows() -> Iterator[None]:
    """Windows that are whole blocks, of a rowset of some thousand rows."""
    with contextlib.ExitStack() as stack:
        for module, name, value in (
            (read_path, "WINDOW_ROWS", WINDOW), (read_path, "_INLINE_ROWS", 0), (disk_rowset, "_SCAN_ROWS_MIN", 512),
            (changes, "_STRETCH_ROWS_MIN", WINDOW),
        ):  # fmt: skip
            stack.enter_context(mock.patch.object(module, name, value))
        yield


@st.composite
def question(draw: st.DrawFn, name: str) -> Test:
    """What is asked of a column, as text and as it is meant: of values that rows have."""
    if name == "flag":
        return draw(st.sampled_from([("flag", lambda r: r["flag"]), ("NOT flag", lambda r: not r["flag"])]))

    def value() -> Any:
        found = row(draw(st.integers(0, ROWS - 1)), draw(st.integers(0, 2)))[name]
        return NULLABLE[name] if found is None else found

    word = draw(st.sampled_from(["<", ">=", "=", "IN", "BETWEEN", *(["NULL"] if name in NULLABLE else [])]))
    if word == "NULL":
        return f"{name} IS NULL", lambda r: r[name] is None
    a, b = sorted([value(), value()])
    one, other = sql(a), sql(b)

    def meant(compare: Callable[[Any], bool]) -> Callable[[Row], bool]:
        return lambda r: r[name] is not None and compare(r[name])

    if word == "IN":
        return f"{name} IN ({one}, {other})", meant(lambda v: v in (a, b))
    if word == "BETWEEN":
        return f"{name} BETWEEN {one} AND {other}", meant(lambda v: a <= v <= b)
    compare = {"<": lambda v: v < a, ">=": lambda v: v >= a, "=": lambda v: v == a}[word]
    return f"{name} {word} {one}", meant(compare)


def sql(value: Any) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    return f"DATE '{value}'" if isinstance(value, dt.date) else str(value)


def carry_out(db: nyala.Database, step: Step, number: int, rows: dict[int, Row]) -> None:
    """On the store, and on the rows that are there."""
    what, names, (first, every) = step
    table, store = db["t"], db._writer()
    keys = [k for k in range(first, ROWS, every) if k in rows]
    names = [name for name in names if keys and name in rows[keys[0]]]
    if what == "change" and names:
        news = [{name: of for name, of in row(k, number).items() if name in ("k", *names)} for k in keys]
        table.update(news)
        for new in news:
            rows[new["k"]] = rows[new["k"]] | new
    elif what == "delete" and keys:
        table.delete([{"k": k} for k in keys])
        for k in keys:
            del rows[k]
    elif what == "flush":
        table.flush()
    elif what == "add" and keys and ADDED not in rows[keys[0]]:
        with table.alter() as alteration:
            alteration.add_column(ADDED, "int32", nullable=False, default=DEFAULT)
        for k in rows:
            rows[k] = rows[k] | {ADDED: DEFAULT}
    elif what == "major" and names:
        state = store.root.table("t")
        (tablet,) = state.tablets
        ids = tuple(sorted(state.schema.by_name(name).id for name in names))
        compact(store, state.id, tablet.id, MajorPlan(tablet.rowsets[0].id, ids, 1.0), run_here(store))


@pytest.mark.timeout(3600)
@settings(max_examples=settings().max_examples // 3, phases=set(Phase) - {Phase.explain})
@given(steps=STEPS, data=st.data())
def test_the_same_rows_whatever_a_rowset_consists_of(steps: list[Step], data: st.DataObject) -> None:
    with small_windows(), folder_in_memory() as folder:
        path = Path(folder) / "s"
        states: list[tuple[int, dict[int, Row]]] = []
        with open_database(path) as db:
            columns = {
                name: nyala.column(kind, encoding=encoding, nullable=name in NULLABLE, block_size=512)
                for name, (kind, encoding) in KINDS.items()
            }
            table = db.create_table("t", {"k": "int64", **columns}, "k")
            rows = {k: {name: of for name, of in row(k, 0).items() if name != ADDED} for k in range(ROWS)}
            table.insert(list(rows.values()))
            table.flush()
            for number, step in enumerate(steps, 1):
                states.append((db.now(), dict(rows)))
                carry_out(db, step, number, rows)
            states.append((db.now(), dict(rows)))
        for _ in range(3):
            at, there = states[data.draw(st.sampled_from([-1, -1, -1, 0, len(states) // 2]))]
            known = ["k", *NAMES, *([ADDED] if any(ADDED in found for found in there.values()) else [])]
            names = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=4, unique=True))
            asked = [data.draw(question(name)) for name in data.draw(SOME) if name in known]
            word, holds = data.draw(st.sampled_from([(" AND ", all), (" AND ", all), (" OR ", any)]))
            where = word.join(text for text, _ in asked) if asked else None
            wanted = [
                {name: found[name] for name in names}
                for _, found in sorted(there.items())
                if not asked or holds(test(found) for _, test in asked)
            ]
            with nyala.connect(path, read_only=True) as db:
                for _ in range(data.draw(st.sampled_from([1, 1, PASSES + 1]))):
                    scan = db["t"].scan(names, where, at=at, order_by_key=True)
                    assert scan.to_arrow().to_pylist() == wanted
                    assert scan.compacted().to_arrow().to_pylist() == wanted
                    assert db["t"].count(where, at=at) == len(wanted)
                statement = f"SELECT {', '.join(names)} FROM t WHERE {where or 'true'} ORDER BY k"
                assert db.sql(statement, at=at).to_arrow().to_pylist() == wanted
