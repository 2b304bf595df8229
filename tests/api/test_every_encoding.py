"""Every type in every encoding and compression: values are read as they were written, and predicates find the right
rows, wherever the rows are.

A table has one column per encoding, all with the same values, which include the extreme values of the type. There is
one such table for each place where values can be: in memory, in files, as changes. So a predicate must have the same
result for each table and column. The expected result comes from the model at the end of this file, which evaluates
predicates on Python values."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import random
import re
from collections.abc import Iterator, Sequence
from decimal import Context, Decimal
from typing import Any, Final, NamedTuple

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nyala
from nyala.api.database import Database
from nyala.cfile import format
from nyala.schema.schema import COMPRESSIONS, allowed_encodings
from nyala.schema.types import MAX_CELL_BYTES, parse_type
from nyala.sql.select.source import ScanSource
from tests.sampled import chequered, is_long_run, one_each
from tests.support import folder_in_memory, open_database
from tests.unit.cfile.memory import same

INF, NAN = math.inf, math.nan
DAY_MIN, DAY_MAX = 1 - 719_163, dt.date.max.toordinal() - 719_163  # days since 1970: the years 1 to 9999
DAY_US: Final = 86_400_000_000
# In canonical form: a date as days, a timestamp as microseconds, a decimal as its unscaled integer.
VALUES: Final[dict[str, list[Any]]] = {
    "bool": [True, False],
    "int8": [-128, -1, 0, 1, 127],
    "int16": [-(2**15), -1, 0, 300, 2**15 - 1],
    "int32": [-(2**31), -1, 0, 70_000, 2**31 - 1],
    "int64": [-(2**63), -1, 0, 2**53 + 1, 2**63 - 1],
    "date": [DAY_MIN, -1, 0, 20_000, DAY_MAX],
    "timestamp": [-(2**63), DAY_MIN * DAY_US, -1, 0, 1_700_000_000_000_000, DAY_MAX * DAY_US, 2**63 - 2],
    "float": [-INF, -1.5, -0.0, 0.0, 2.0**-149, 1.5, 3.4028234663852886e38, INF, NAN],
    "double": [-INF, -1e300, -0.0, 0.0, 5e-324, 0.1, 1.7976931348623157e308, INF, NAN],
    "decimal(9,2)": [1 - 10**9, -125, 0, 1, 350, 10**9 - 1],
    "decimal(18,0)": [1 - 10**18, -1, 0, 7, 10**18 - 1],
    "decimal(38,38)": [1 - 10**38, -1, 0, 10**20, 10**38 - 1],
    "varchar(4)": ["", "a", "ab", "aé€", "z\0", "zzzz"],
    "varchar(7)": ["\0\0\0\0", "a\0bc", "abcd", "abce", "zz\u00e9", "\U0001f992"],  # a character of four bytes
    "string": ["", "\0", "a", "a\0", "ab", "it's", "é", "\U0001f992", "a" * MAX_CELL_BYTES, "a" * (MAX_CELL_BYTES - 1)],
    "binary": [b"", b"\0", b"\0\0", b"a", b"a\0", b"\xff", b"\xff" * MAX_CELL_BYTES],
}  # fmt: skip
ROWS: Final = 260
BLOCK_BYTES: Final = 512  # several blocks per column; 32 rows per block of the widest type


def encodings(kind: str) -> tuple[str, ...]:
    return allowed_encodings(parse_type(kind))


def a_column(kind: str, seed: int) -> pa.Array:
    """Return values in ascending runs, then in random order, then NULLs, then equal values; long
    values are rare.
    """
    values, chance = VALUES[kind], random.Random(seed)
    short = [value for value in values if not isinstance(value, str | bytes) or len(value) < 100]
    chosen = [short[place * len(short) // 100] for place in range(100)]
    chosen += [chance.choice([*short, None]) for _ in range(80)]
    chosen += [None] * 40 + [chance.choice(short)] * 40
    for place, value in enumerate(values):
        if value not in short:
            chosen[100 + 9 * place : 100 + 9 * place + 2] = [value, value]
    assert len(chosen) == ROWS
    return as_arrow(kind, chosen)


# -- the same values come back --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", VALUES)
def test_values_come_back_bit_by_bit(kind: str, request: pytest.FixtureRequest) -> None:
    """After a flush, a change, a reopen and a compaction."""
    pairs = one_each(encodings(kind), COMPRESSIONS, request)
    specs = {
        f"{encoding} {compression}": nyala.column(
            kind, encoding=encoding, compression=compression, block_size=BLOCK_BYTES
        )
        for encoding, compression in pairs
    }
    first, second = a_column(kind, 1), a_column(kind, 2)
    keys = pa.array(range(ROWS), pa.int32())
    some = pa.array(range(0, ROWS, 3), pa.int32())
    changed = patched(first, second)
    with folder_in_memory() as folder:
        with open_database(folder / "s") as db:
            table = db.create_table("t", {"k": "int32", **specs}, "k")
            before = table.insert({"k": keys, **dict.fromkeys(specs, first)})
            holds(table, specs, first)
            db.flush()
            holds(table, specs, first)
            stored_as(db, pairs)
            after = table.update({"k": some, **dict.fromkeys(specs, second.take(some))})
            holds(table, specs, changed)
            db.flush()
            holds(table, specs, changed)
        with open_database(folder / "s") as db:
            holds(db["t"], specs, first, before)
            holds(db["t"], specs, changed, after)
            found = db["t"].get_many({"k": some.take(pa.array([3, 0, 5]))})
            for name in specs:
                assert same(found[name].combine_chunks(), changed.take(pa.array([9, 0, 15]))), name
            db["t"].compact()
            holds(db["t"], specs, changed)
            holds(db["t"], specs, first, before)
            stored_as(db, pairs)
        with open_database(folder / "s") as db:
            holds(db["t"], specs, changed)
            holds(db["t"], specs, first, before)
            (rowset,) = rowsets(db, "t")
            rowset.check()


def patched(first: pa.Array, second: pa.Array) -> pa.Array:
    """Return `first` with every third value from `second`."""
    rows = pa.array([place % 3 == 0 for place in range(len(first))])
    return pc.if_else(rows, second, first)


def holds(table: Any, names: Any, expected: pa.Array, at: Any = None) -> None:
    found = table.scan(at=at, order_by_key=True).to_arrow()
    for name in names:
        assert same(found[name].combine_chunks(), expected), name


def rowsets(db: Database, table: str) -> list[Any]:
    root, _ = db._store.view()
    return [rowset for tablet in root.table(table).tablets for rowset in tablet.rowsets]


def stored_as(db: Database, pairs: Sequence[tuple[str, str]]) -> None:
    """Check that the files have the encodings and compressions of the schema."""
    (rowset,) = rowsets(db, "t")
    for encoding, compression in pairs:
        column = rowset.base_column(
            db._store.view()[0].table("t").schema.by_name(f"{encoding} {compression}").id
        )
        assert column is not None and column.compression == compression
        assert encoding in ("auto", column.encoding)


@pytest.mark.parametrize("kind", [kind for kind in VALUES if parse_type(kind).key_allowed])
def test_keys_are_found_in_every_encoding(kind: str) -> None:
    """For a key of one column, which has the key index, and for a composite key, whose encoded keys
    have it.
    """
    values = [value for value in VALUES[kind] if not isinstance(value, str | bytes) or len(value) < 100]
    few = as_arrow(kind, values * 2)
    numbers = pa.array([place // len(values) for place in range(len(few))], pa.int8())
    with folder_in_memory() as folder, open_database(folder / "s") as db:
        for encoding in encodings(kind):
            column = nyala.column(kind, nullable=False, encoding=encoding, block_size=BLOCK_BYTES)
            alone = db.create_table(f"alone {encoding}", {"k": column, "v": "int32"}, "k")
            both = db.create_table(f"both {encoding}", {"k": column, "n": "int8", "v": "int32"}, ["k", "n"])
            alone.insert({"k": few[: len(values)], "v": list(range(len(values)))})
            both.insert({"k": few, "n": numbers, "v": list(range(len(few)))})
        db.flush()
        for encoding in encodings(kind):
            alone, both = db[f"alone {encoding}"], db[f"both {encoding}"]
            for table in (alone, both):
                table.update({**({"n": [1]} if table is both else {}), "k": few[:1], "v": [-5]})
            for again in range(2):
                found = alone.scan(columns=["k"], order_by_key=True).to_arrow()["k"].combine_chunks()
                assert same(found, few[: len(values)])
                backwards = list(range(len(values)))[::-1]
                changed = [place or -5 for place in backwards]
                assert alone.get_many({"k": few.take(pa.array(backwards))})["v"].to_pylist() == changed
                assert both.get_many({"k": few, "n": numbers})["n"].to_pylist() == numbers.to_pylist()
                for place, value in list(enumerate(values))[again::2]:
                    where = nyala.col("k") >= python_of(kind, value)
                    assert alone.count(where) == len(values) - place, (encoding, again)
                    assert both.count(where & (nyala.col("n") == 1)) == len(values) - place, (encoding, again)
                with pytest.raises(nyala.DuplicateKeyError):
                    alone.insert({"k": few[1:2]})
                alone.compact()
                both.compact()
            roles = [{key.role for key in rowsets(db, table.name)[0].meta.places} for table in (alone, both)]
            assert [format.ROLE_KEY in found for found in roles] == [False, True]


def test_a_table_of_300_columns() -> None:
    """The maximum: columns of every type, encoding and compression in one file."""
    kinds = [(kind, encoding) for kind in VALUES for encoding in encodings(kind)]
    several = itertools.product(COMPRESSIONS, kinds)
    specs = {f"{kind} {encoding} {one}": (kind, encoding, one) for one, (kind, encoding) in several}
    specs = dict(list(specs.items())[:299])
    columns = {
        name: nyala.column(kind, encoding=encoding, compression=one, block_size=BLOCK_BYTES)
        for name, (kind, encoding, one) in specs.items()
    }
    expected = {name: a_column(kind, 5).slice(0, 90) for name, (kind, _, _) in specs.items()}
    with folder_in_memory() as folder, open_database(folder / "s") as db:
        table = db.create_table("t", {"k": "int32", **columns}, "k")
        table.insert({"k": pa.array(range(90), pa.int32()), **expected})
        for step in ("memory", "flushed", "changed", "compacted"):
            found = table.scan(order_by_key=True).to_arrow()
            assert len(found.column_names) == 300
            for name, array in expected.items():
                assert same(found[name].combine_chunks(), array), (step, name)
            last = list(specs)[-1]
            assert table.scan(columns=[last], where=nyala.col(last).is_not_null()).to_arrow().num_rows == 90
            if step == "flushed":
                name = "int64 for lz4"
                expected[name] = pa.array([-1, *expected[name].to_pylist()[1:]])
                table.update({"k": [0], name: [-1]})
            db.flush() if step == "memory" else table.compact() if step == "changed" else None


ENCODINGS: Final = ("plain", "bitshuffle", "rle", "dictionary", "prefix", "for", "alp")


@pytest.mark.parametrize("kind", VALUES)
def test_encodings_that_do_not_support_the_type_are_refused(kind: str) -> None:
    """The error names the column, its type, the requested encoding, and the possible ones.

    No table is created.
    """
    assert "auto" in encodings(kind) and set(encodings(kind)) <= {"auto", *ENCODINGS}
    with folder_in_memory() as folder, open_database(folder / "s") as db:
        for encoding in set(ENCODINGS) - set(encodings(kind)):
            with pytest.raises(nyala.SchemaError) as error:
                db.create_table("t", {"k": "int64", "price": nyala.column(kind, encoding=encoding)}, "k")
            message = str(error.value)
            assert (
                "column 'price'" in message
                and f"type {kind} does not support encoding '{encoding}';" in message
            )
            assert message.endswith(f"use one of {', '.join(encodings(kind))}")
        assert db.list_tables() == []


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (
            {"encoding": "dict"},
            "unknown encoding 'dict'; did you mean 'dictionary'? use one of auto, plain,",
        ),
        (
            {"encoding": "PREFIX"},
            "unknown encoding 'PREFIX'; did you mean 'prefix'? use one of auto, plain,",
        ),
        ({"encoding": "x"}, "unknown encoding 'x'; use one of auto, plain,"),
        ({"encoding": None}, "unknown encoding None; use one of auto, plain,"),
        (
            {"compression": "ZSTD"},
            "unknown compression 'ZSTD'; did you mean 'zstd'? use one of default, none,",
        ),
        (
            {"compression": "gzip"},
            "unknown compression 'gzip'; did you mean 'zlib'? use one of default, none,",
        ),
        ({"compression": 7}, "unknown compression 7; use one of default, none,"),
    ],
)
def test_unknown_names_of_encodings_and_compressions_are_refused(named: dict[str, Any], message: str) -> None:
    with folder_in_memory() as folder, open_database(folder / "s") as db:
        with pytest.raises(nyala.SchemaError) as error:
            db.create_table("t", {"k": "int64", "s": nyala.column("string", **named)}, "k")
        assert str(error.value).startswith(f"column 's': {message}")
        table = db.create_table("t", {"k": "int64", "s": "string"}, "k")
        with pytest.raises(nyala.SchemaError) as error, table.alter() as alteration:
            alteration.alter_column("s", **named)
        assert f"column 's': {message}" in str(error.value)


def test_a_column_with_too_many_distinct_values_is_stored_plain() -> None:
    """Each flush and each compaction decides this for its rowset. Reads return the same."""
    few, many = ["red", "green"] * 500, [f"word number {n * 7919}" for n in range(1_000)]
    with folder_in_memory() as folder, open_database(folder / "s") as db:
        table = db.create_table("t", {"k": "int64", "s": nyala.column("string", encoding="dictionary")}, "k")
        for number, words in enumerate((few, many, few)):
            table.insert({"k": range(1_000 * number, 1_000 * number + 1_000), "s": words})
            db.flush()

        def stored() -> list[str]:
            column = db._store.view()[0].table("t").schema.by_name("s").id
            by_key = sorted(rowsets(db, "t"), key=lambda rowset: rowset.meta.key_min)
            return [rowset.base_column(column).encoding for rowset in by_key]

        assert stored() == ["dictionary", "plain", "dictionary"]
        for _ in range(2):
            assert table.scan(order_by_key=True).to_arrow()["s"].to_pylist() == few + many + few
            begin = sum(word.startswith("word number 7919") for word in many)
            assert (
                table.count("s = 'red'") == 1_000 and table.count("s LIKE 'word number 7919%'") == begin > 1
            )
            table.delete(where="k >= 2000")
            table.insert({"k": range(2_000, 3_000), "s": few})
            table.compact()
        assert stored() == ["plain"]


# -- predicates mean the same ----------------------------------------------------------------------------------------

STATES: Final = ("memory", "disk", "changes in memory", "changes in files", "compacted")


class Store(NamedTuple):
    """Tables with the same rows, named by where the values are:

    in memory, in files, as changes. `values`: by key.
    """

    kind: str
    db: Database
    con: duckdb.DuckDBPyConnection
    values: list[Any]


@pytest.fixture(scope="module", params=VALUES)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    kind = request.param
    final, other = a_column(kind, 3), a_column(kind, 4)
    codes = [
        nyala.column(kind, encoding=encoding, compression=compression, block_size=BLOCK_BYTES)
        for encoding, compression in zip(encodings(kind), itertools.cycle(COMPRESSIONS), strict=False)
    ]
    columns = {"k": "int32", **dict(zip(encodings(kind), codes, strict=True))}

    def rows(values: pa.Array, keys: Sequence[int]) -> dict[str, Any]:
        places = pa.array(keys, pa.int32())
        return {"k": places, **dict.fromkeys(encodings(kind), values.take(places))}

    with folder_in_memory() as folder, pytest.MonkeyPatch.context() as patch, duckdb.connect() as con:
        # DuckDB would evaluate some predicates itself. Here the scan shall evaluate all of them.
        patch.setattr(ScanSource, "applies", ScanSource.takes)
        con.execute("SET TimeZone = 'UTC'")
        with open_database(folder / "s") as db:
            for state in STATES[1:]:
                table = db.create_table(state, columns, "k")
                changes = state != "disk"
                table.insert(rows(other if changes else final, range(ROWS)))
            db.flush()
            for state in STATES[2:]:
                db[state].update(rows(final, range(0, ROWS, 2)))
            db.flush()
            for state in STATES[2:]:
                db[state].update(rows(final, range(1, ROWS, 2)))
                if state != "changes in memory":
                    db[state].flush()
            db["compacted"].compact()
            db.create_table("memory", columns, "k").insert(rows(final, range(ROWS)))
            yield Store(kind, db, con, of_arrow(kind, final))


class Predicate(NamedTuple):
    """A predicate.

    op: a comparison, in, not in, between, is null, is not null, or like. Arguments are in canonical
    form.
    """

    op: str
    arguments: tuple[Any, ...] = ()


COMPARISONS: Final = ("=", "<>", "<", "<=", ">", ">=")


@st.composite
def predicates(draw: st.DrawFn, kind: str) -> Predicate:
    value = literals(kind)
    ops = [*COMPARISONS, "in", "not in", "between", "is null", "is not null"]
    if kind == "bool":
        ops.remove("between")
    op = draw(st.sampled_from([*ops, "like", "like"] if parse_type(kind).is_text else ops))
    if op in COMPARISONS:
        return Predicate(op, (draw(value),))
    if op == "between":
        return Predicate(op, (draw(value), draw(value)))
    if op == "like":
        word = draw(st.sampled_from(["", "a", "ab", "é", "it's", "z", "\U0001f992", "b"]))
        return Predicate(op, (draw(st.sampled_from(["{}%", "{}", "%{}", "%{}%", "{}_%"])).format(word),))
    return Predicate(op, tuple(draw(st.lists(value, min_size=1, max_size=4))) if op.endswith("in") else ())


def literals(kind: str) -> st.SearchStrategy[Any]:
    """Draw values that exist in the column, and others."""
    there = st.sampled_from(VALUES[kind])
    type = parse_type(kind)
    if type.name == "bool":
        return there
    if type.is_floating:
        return there | st.floats(width=32)
    if type.is_variable:
        beside = st.sampled_from(["", "a", "aa", "b", "zz", "é"])
        return there | (beside if type.is_text else beside.map(str.encode))
    assert type.value_min is not None and type.value_max is not None
    return there | st.integers(max(type.value_min, -400), min(type.value_max, 400))


EXAMPLES: Final = max(2, settings().max_examples // 5)  # one example runs about thirty scans


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_predicates_mean_the_same_everywhere(store: Store, data: st.DataObject) -> None:
    """In each place and encoding, a scan returns the rows that the model finds."""
    predicate = data.draw(predicates(store.kind), label="predicate")
    expected = [key for key, value in enumerate(store.values) if holds_for(predicate, store.kind, value)]
    half = data.draw(
        st.sampled_from([0, 1]), label="half"
    )  # every second pair of state and encoding; all pairs by night
    for (row, state), (column, name) in itertools.product(
        enumerate(STATES), enumerate(encodings(store.kind))
    ):
        if (row + column) % 2 != half and not is_long_run():
            continue
        assert keys_by_scan(store, predicate, state, name) == expected, (state, name)
    # One pair is enough for each engine, because engines hand over predicates in the same way for all pairs.
    state = data.draw(st.sampled_from(STATES), label="state")
    name = data.draw(st.sampled_from(encodings(store.kind)), label="encoding")
    for engine, found in keys_by_engines(store, predicate, state, name):
        assert found == expected, (engine, state, name)


def test_comparisons_with_values_at_the_edges(store: Store, request: pytest.FixtureRequest) -> None:
    """Each operator with each extreme value, in every encoding; the random test may miss some."""
    places = itertools.cycle(STATES)
    for turn, (op, value) in enumerate(chequered(COMPARISONS, VALUES[store.kind], request, 3)):
        predicate, state = Predicate(op, (value,)), next(places)
        expected = [key for key, found in enumerate(store.values) if holds_for(predicate, store.kind, found)]
        for name in encodings(store.kind):
            assert keys_by_scan(store, predicate, state, name) == expected, (predicate, state, name)
        if turn % 3 == 0:
            for engine, found in keys_by_engines(store, predicate, state, name):
                assert found == expected, (engine, predicate, state, name)


def keys_by_scan(store: Store, predicate: Predicate, state: str, name: str) -> list[int]:
    where = for_nyala(predicate, store.kind, name)
    return sorted(store.db[state].scan(columns=["k"], where=where).to_arrow()["k"].to_pylist())


def keys_by_engines(
    store: Store, predicate: Predicate, state: str, name: str
) -> Iterator[tuple[str, list[int]]]:
    """Yield (engine, keys) for each engine that can evaluate the predicate."""
    if not all(python_has(store.kind, argument) for argument in predicate.arguments):
        return
    where, parameters = for_sql(predicate, store.kind, name)
    text = f"SELECT k FROM {{}} WHERE {where} ORDER BY k"
    found = store.db.sql(text.format(f'"{state}"'), parameters).fetchall()
    yield "db.sql", [key for (key,) in found]
    relation = store.db[state].scan().to_duckdb(store.con)  # noqa: F841 - the text names it
    found = store.con.sql(text.format("relation"), params=parameters).fetchall()
    yield "DuckDB", [key for (key,) in found]
    expression = for_polars(predicate, store.kind, name)
    if expression is not None:
        lazy = store.db[state].scan().to_polars_lazy().filter(expression)
        yield "polars", lazy.select("k").sort("k").collect()["k"].to_list()


@pytest.mark.parametrize("kind", VALUES)
def test_the_tables_are_suitable_for_these_tests(kind: str) -> None:
    """Most predicates must select some rows but not all."""
    values = of_arrow(kind, a_column(kind, 3))
    for value in VALUES[kind]:
        counts = [
            sum(holds_for(Predicate(op, (value,)), kind, found) for found in values) for op in COMPARISONS
        ]
        assert 0 < counts[0] < ROWS - values.count(None) and counts[0] + counts[1] == ROWS - values.count(
            None
        )


# -- one predicate in four forms: nyala.col, SQL, polars, Python -----------------------------------------------------


def for_nyala(predicate: Predicate, kind: str, name: str) -> Any:
    column, arguments = nyala.col(name), [python_of(kind, argument) for argument in predicate.arguments]
    match predicate.op:
        case "in":
            return column.isin(arguments)
        case "not in":
            return ~column.isin(arguments)
        case "between":
            return column.between(*arguments)
        case "is null":
            return column.is_null()
        case "is not null":
            return column.is_not_null()
        case "like":
            return column.like(arguments[0])
    return {
        "=": column == arguments[0], "<>": column != arguments[0], "<": column < arguments[0],
        "<=": column <= arguments[0], ">": column > arguments[0], ">=": column >= arguments[0],
    }[predicate.op]  # fmt: skip


def for_sql(predicate: Predicate, kind: str, name: str) -> tuple[str, list[Any]]:
    """Return a condition with parameters, each cast to the column's type."""
    type = (
        "timestamptz"
        if kind == "timestamp"
        else "real"
        if kind == "float"
        else kind.replace("int8", "tinyint")
    )
    type = {"int16": "smallint", "int32": "integer", "int64": "bigint", "binary": "blob"}.get(type, type)
    given = f"?::{type}"
    arguments = [python_of(kind, argument) for argument in predicate.arguments]
    text = {
        "in": f"IN ({', '.join([given] * len(arguments))})", "between": f"BETWEEN {given} AND {given}",
        "is null": "IS NULL", "is not null": "IS NOT NULL", "like": "LIKE ?",
    }  # fmt: skip
    if predicate.op == "not in":
        return f'NOT ("{name}" {text["in"]})', arguments
    return f'"{name}" {text.get(predicate.op, f"{predicate.op} {given}")}', arguments


def for_polars(predicate: Predicate, kind: str, name: str) -> pl.Expr | None:
    column, dtype = pl.col(name), pl.from_arrow(a_column(kind, 1)).dtype
    arguments = [pl.lit(python_of(kind, argument), dtype) for argument in predicate.arguments]
    match predicate.op:
        case "in" | "not in":
            found = pl.any_horizontal([column == argument for argument in arguments])
            return found if predicate.op == "in" else ~found
        case "between":
            return column.is_between(*arguments)
        case "is null":
            return column.is_null()
        case "is not null":
            return column.is_not_null()
        case "like":
            pattern = predicate.arguments[0]
            begins = re.fullmatch(r"([^%_]+)%", pattern)
            return None if begins is None else column.str.starts_with(begins[1])
    return {
        "=": column == arguments[0], "<>": column != arguments[0], "<": column < arguments[0],
        "<=": column <= arguments[0], ">": column > arguments[0], ">=": column >= arguments[0],
    }[predicate.op]  # fmt: skip


# -- the model -------------------------------------------------------------------------------------------------------


def holds_for(predicate: Predicate, kind: str, value: Any) -> bool:
    """Evaluate the predicate.

    NULL satisfies only IS NULL; NaN equals NaN and is greater than other values; text compares by
    its bytes.
    """
    if predicate.op in ("is null", "is not null"):
        return (value is None) == (predicate.op == "is null")
    if value is None:
        return False
    if predicate.op == "like":
        parts = {"%": "(?s:.*)", "_": "(?s:.)"}
        pattern = "".join(parts.get(sign, re.escape(sign)) for sign in predicate.arguments[0])
        return re.fullmatch(pattern, value) is not None
    place, places = order(value), [order(argument) for argument in predicate.arguments]
    if predicate.op.endswith("in"):
        return (place in places) != (predicate.op == "not in")
    if predicate.op == "between":
        return places[0] <= place <= places[1]
    other = places[0]
    return {
        "=": place == other, "<>": place != other, "<": place < other,
        "<=": place <= other, ">": place > other, ">=": place >= other,
    }[predicate.op]  # fmt: skip


def order(value: Any) -> Any:
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value.encode() if isinstance(value, str) else value


# -- canonical values and Python values ------------------------------------------------------------------------------


def as_arrow(kind: str, values: Sequence[Any]) -> pa.Array:
    type = parse_type(kind)
    if type.name in ("date", "timestamp"):
        return pa.array(values, pa.int32() if type.name == "date" else pa.int64()).view(type.arrow)
    if type.name == "decimal":
        return pa.array([None if value is None else python_of(kind, value) for value in values], type.arrow)
    return pa.array(values, type.arrow)


def of_arrow(kind: str, array: pa.Array) -> list[Any]:
    type = parse_type(kind)
    if type.name in ("date", "timestamp"):
        array = array.view(pa.int32() if type.name == "date" else pa.int64())
    values = array.to_pylist()
    if type.name != "decimal":
        return values
    return [None if value is None else int(value.scaleb(type.scale, Context(prec=50))) for value in values]


def python_has(kind: str, value: Any) -> bool:
    """Return whether Python can represent the value: its datetimes end with the year 9999."""
    return kind != "timestamp" or DAY_MIN * DAY_US <= value < (DAY_MAX + 1) * DAY_US


def python_of(kind: str, value: Any) -> Any:
    """Return the value as a user writes it; a time outside of Python's years as microseconds."""
    type = parse_type(kind)
    if type.name == "date":
        return dt.date.fromordinal(719_163 + value)
    if type.name == "timestamp" and python_has(kind, value):
        return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=value)
    return Decimal(value).scaleb(-type.scale, Context(prec=50)) if type.name == "decimal" else value
