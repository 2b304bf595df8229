"""Random steps on a table of 3,000 rows, and random predicates, for tests against a dictionary.

The table has columns of every encoding. Splits are so small that each rowset has several.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeAlias
from unittest import mock

from hypothesis import strategies as st

import nyala
from nyala.rowset import changes
from nyala.tablet.compaction.lifecycle import compact, run_here
from nyala.tablet.compaction.plans import MajorPlan, MergePlan, MinorPlan, Plan
from nyala.tablet.scan import read_path, split
from nyala.tablet.state.root import TabletState

ROWS = 3000
DAY = dt.date(2020, 1, 1)
Row: TypeAlias = dict[str, Any]

KINDS = {
    "n": ("int32", "for"), "amount": ("decimal(15,2)", "for"), "day": ("date", "for"), "word": ("string", "dictionary"),
    "few": ("string", "dictionary"), "maybe": ("int32", "for"), "x": ("double", "auto"), "text": ("string", "plain"),
    "runs": ("int64", "rle"), "bits": ("int64", "bitshuffle"), "start": ("string", "prefix"), "flag": ("bool", "auto"),
    "wide": ("decimal(30,2)", "auto"), "gap": ("decimal(9,2)", "for"), "lacking": ("string", "dictionary"),
    "sure": ("bool", "rle"),
}  # fmt: skip
NAMES = list(KINDS)
NULLABLE = {"maybe": 5, "gap": Decimal(5), "lacking": "l5", "sure": True}
ADDED, DEFAULT = "added", 7
KEY_COLUMNS = {"group": "string", "k": "int64"}
GROUPS = 5


@lru_cache(ROWS * 8)
def row(k: int, shift: int) -> Row:
    """Return the row of a key, as inserted (shift 0) or after a change. Callers must not modify it.

    Old and new rows have many values in common.
    """
    cube = k**3 + 31 * shift * k + shift
    return {
        "group": f"g{k % GROUPS}",
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
        "sure": None if (k + shift) % 5 == 2 else cube % 7 < 3,
        ADDED: cube % 19,
    }


def without(of: Row, *names: str) -> Row:
    return {name: value for name, value in of.items() if name not in names}


SOME = st.lists(st.sampled_from([*NAMES, ADDED]), min_size=1, max_size=4, unique=True)
ALL_ROWS = (0, 1)
PLACES = st.tuples(st.integers(0, ROWS - 1), st.sampled_from([1, 3, 40, 700]))
CHANGE = st.tuples(st.just("change"), SOME, PLACES)
MAJOR = st.tuples(st.just("major"), SOME, st.just(ALL_ROWS))
DELETE = st.tuples(st.just("delete"), st.just([]), PLACES.map(lambda of: (of[0], 40 + of[1])))
FLUSH, ADD = (st.tuples(st.just(what), st.just([]), st.just(ALL_ROWS)) for what in ("flush", "add"))
MERGE, MINOR = (st.tuples(st.just(what), st.just([]), PLACES) for what in ("merge", "minor"))
UPSERT = st.tuples(st.just("upsert"), st.just([]), PLACES)
Step: TypeAlias = tuple[str, list[str], tuple[int, int]]
Test: TypeAlias = tuple[str, Callable[[Row], bool]]


@contextlib.contextmanager
def small_splits(rows: int) -> Iterator[None]:
    """Set the rows of a split, so that small rowsets have several, which are read as by large scans."""
    with contextlib.ExitStack() as stack:
        for module, name, value in (
            (read_path, "SPLIT_ROWS", rows), (read_path, "_INLINE_ROWS", 0),
            (split, "_SCAN_ROWS_MIN", rows // 2), (changes, "_REDO_RANGE_ROWS_MIN", rows),
        ):  # fmt: skip
            stack.enter_context(mock.patch.object(module, name, value))
        yield


@st.composite
def predicate(draw: st.DrawFn, name: str) -> Test:
    """Draw a predicate on a column with values of rows, as text and as a function."""
    if KINDS.get(name, ("",))[0] == "bool":
        whether = [(name, lambda r: r[name] is True), (f"NOT {name}", lambda r: r[name] is False)]
        return draw(st.sampled_from([*whether, (f"{name} IS NULL", lambda r: r[name] is None)]))

    def value() -> Any:
        shift = 0 if name in KEY_COLUMNS else draw(st.integers(0, 2))
        found = row(draw(st.integers(0, ROWS - 1)), shift)[name]
        return NULLABLE[name] if found is None else found

    word = draw(st.sampled_from(["<", ">=", "=", "IN", "BETWEEN", *(["NULL"] if name in NULLABLE else [])]))
    if word == "NULL":
        return f'"{name}" IS NULL', lambda r: r[name] is None
    a, b = sorted([value(), value()])
    one, other = sql(a), sql(b)
    text = f'"{name}"'

    def not_null_and(compare: Callable[[Any], bool]) -> Callable[[Row], bool]:
        return lambda r: r[name] is not None and compare(r[name])

    if word == "IN":
        return f"{text} IN ({one}, {other})", not_null_and(lambda v: v in (a, b))
    if word == "BETWEEN":
        return f"{text} BETWEEN {one} AND {other}", not_null_and(lambda v: a <= v <= b)
    compare = {"<": lambda v: v < a, ">=": lambda v: v >= a, "=": lambda v: v == a}[word]
    return f"{text} {word} {one}", not_null_and(compare)


def sql(value: Any) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    return f"DATE '{value}'" if isinstance(value, dt.date) else str(value)


def create(
    db: nyala.Database, keys: Sequence[str] = ("k",), partition_by: Any = (), block_size: int = 512
) -> nyala.Table:
    columns = {
        name: nyala.column(kind, encoding=encoding, nullable=name in NULLABLE, block_size=block_size)
        for name, (kind, encoding) in KINDS.items()
    }
    parts = {name: KEY_COLUMNS[name] for name in keys}
    return db.create_table("t", {**parts, **columns}, list(keys), partition_by=partition_by)


def apply_step(db: nyala.Database, step: Step, number: int, rows: dict[int, Row]) -> set[int]:
    """Apply a step to the store and to `rows`, the expected rows by k; return the written keys."""
    what, names, (first, every) = step
    table, store = db["t"], db._writer()
    key = table.primary_key
    places = range(first, ROWS, every)
    keys = [k for k in places if k in rows]
    names = [name for name in names if keys and name in rows[keys[0]]]
    state = store.root.table("t")
    match what:
        case "change" if names:
            news = [{name: of for name, of in row(k, number).items() if name in (*key, *names)} for k in keys]
            table.update(news)
            for k, new in zip(keys, news, strict=True):
                rows[k] = rows[k] | new
            return set(keys)
        case "upsert" if rows:
            columns = next(iter(rows.values())).keys()
            news = [{name: of for name, of in row(k, number).items() if name in columns} for k in places]
            table.upsert(news)
            rows.update(zip(places, news, strict=True))
            return set(places)
        case "delete" if keys:
            table.delete([{name: rows[k][name] for name in key} for k in keys])
            for k in keys:
                del rows[k]
            return set(keys)
        case "flush":
            table.flush()
        case "add" if keys and ADDED not in rows[keys[0]]:
            with table.alter() as alteration:
                alteration.add_column(ADDED, "int32", nullable=False, default=DEFAULT)
            for k in rows:
                rows[k] = rows[k] | {ADDED: DEFAULT}
        case "major" | "minor" | "merge":
            ids = tuple(sorted(state.schema.by_name(name).id for name in names))
            for tablet in state.tablets:
                for plan in plans(what, tablet, ids, first, every):
                    compact(store, state.id, tablet.id, plan, run_here(store))
    return set()


def plans(what: str, tablet: TabletState, ids: tuple[int, ...], first: int, every: int) -> Iterator[Plan]:
    """Yield compactions of this kind: of each rowset, or for "merge" of a few rowsets."""
    if what == "merge" and tablet.rowsets:
        some = tablet.rowsets[first % len(tablet.rowsets) :][: 1 + first % 3]
        yield MergePlan(tuple(rowset.id for rowset in some), 1.0, 1 + every % 2)
    for rowset in tablet.rowsets if what != "merge" else ():
        if what == "major" and ids:
            yield MajorPlan(rowset.id, ids, 1.0)
        elif what == "minor" and len(rowset.redo) > 1:
            yield MinorPlan(rowset.id, slice(first % (len(rowset.redo) - 1), None), 1.0)
