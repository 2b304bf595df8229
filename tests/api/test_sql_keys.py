"""Long IN lists and joins, which become look-ups by key, have the same rows as in a DuckDB with its own tables."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from random import Random

import duckdb
import pyarrow as pa
import pytest

import nyala
from nyala.sql.select import source
from nyala.sql.select.connection import without_lost_filters
from tests.sampled import each

# ------------------------------------------------------------------------------------------------ long lists


LISTED: dict[str, tuple[str, list[str]]] = {
    "int64": ("BIGINT", [str(n * 3 - 900) for n in range(700)]),
    "int16": ("SMALLINT", [str(n * 100) for n in range(700)]),
    "double": ("DOUBLE", [str(n / 4) for n in range(700)]),
    "decimal(9,2)": ("DECIMAL(9,2)", [str(n / 4) for n in range(700)]),
    "string": ("VARCHAR", ["'it''s'", *(f"'{n}'" for n in range(0, 2000, 3))]),
    "date": ("DATE", [f"DATE '{dt.date(1970, 1, 1) + dt.timedelta(days=3 * n)}'" for n in range(700)]),
    "timestamp": ("TIMESTAMPTZ", [f"'{dt.date(1970, 1, 1) + dt.timedelta(days=3 * n)} 00:00:00Z'" for n in range(700)]),
}  # fmt: skip


@pytest.mark.parametrize("kind", LISTED)
def test_a_long_in_list_has_the_same_rows_as_in_duckdb(
    db: nyala.Database, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_ROWS_MIN", 0)  # scans apply all predicates that they can apply
    monkeypatch.setattr(source, "_MATCHING_MAX", 1)
    theirs, constants = LISTED[kind]
    con = duckdb.connect()
    con.execute("SET TimeZone = 'UTC'")
    day = "DATE '1970-01-01' + n::INT"
    value = {"DATE": day, "TIMESTAMPTZ": f"({day})::TIMESTAMP", "VARCHAR": "n::VARCHAR"}.get(theirs, "n")
    con.execute(
        f"CREATE TABLE t AS SELECT n AS k, CASE WHEN n % 7 > 0 THEN ({value})::{theirs} END AS v FROM range(2000) r(n)"
    )
    table = db.create_table("t", {"k": "int64", "v": nyala.column(kind, nullable=True)}, "k")
    table.insert(con.sql("FROM t").to_arrow_table())
    db.flush()
    for listed in (constants, [*constants, constants[0], "NULL"]):
        for where in ("v IN ({})", "v NOT IN ({})", "v IN ({}) OR k < 9", "k > 50 AND NOT (v IN ({}))"):
            text = f"SELECT k FROM t WHERE {where.format(', '.join(listed))} ORDER BY k"
            assert db.sql(text).fetchall() == con.execute(text).fetchall()


def test_a_long_list_of_keys_finds_negative_and_wide_numbers_and_texts_with_quotes(
    db: nyala.Database,
) -> None:
    numbers = [-5, *range(600), 2**63 - 1, -(2**63)]
    db.create_table("n", {"k": "int64"}, "k").insert([(number,) for number in numbers])
    db.create_table("s", {"k": "string"}, "k").insert([("it's",), ("),(",), ("",), ("nobody",)])
    listed = ", ".join(map(str, [*numbers, 10**25]))
    assert sorted(db.sql(f"SELECT k FROM n WHERE k IN ({listed})").fetchall()) == sorted(zip(numbers))
    listed = ", ".join(["'it''s'", "'),('", "''", *(f"'{number}'" for number in range(600))])
    assert sorted(db.sql(f"SELECT k FROM s WHERE k IN ({listed})").fetchall()) == [("",), ("),(",), ("it's",)]


def test_a_long_list_beside_wrong_names_and_in_a_pivot(
    db: nyala.Database,
) -> None:
    """Wrong names are found at once. A PIVOT takes its columns from the list."""
    numbers = ", ".join(map(str, range(600)))
    db.create_table("t", {"k": "int64", "v": "int64"}, "k").insert({"k": [1, 2], "v": [5, 599]})
    with pytest.raises(nyala.ColumnNotFoundError, match="missing"):
        db.sql(f"SELECT missing FROM t WHERE v IN ({numbers})")
    assert db.sql(f"DELETE FROM t WHERE v IN ({numbers}) AND k > 5").rowcount == 0
    pivoted = db.sql(f'SELECT "599" FROM (PIVOT t ON v IN ({numbers}) USING count(*))')
    assert sorted(pivoted.fetchall()) == [(0,), (1,)]
    assert db.sql(f"SELECT 'v IN ({numbers})' AS text").fetchone() == (f"v IN ({numbers})",)
    assert db.sql(
        f"SELECT k FROM t -- v IN ({numbers})\nWHERE v IN ({numbers}) AND k > ?", [1]
    ).fetchall() == [(2,)]
    assert db.sql(f"SELECT k FROM t WHERE v IN ({numbers}) AND k > $least", {"least": 1}).fetchall() == [(2,)]


# ------------------------------------------------------------------------------------------------ joins


def store_and_duckdb(db: nyala.Database, data: dict[str, pa.Table]) -> duckdb.DuckDBPyConnection:
    """Create the same tables in the store and in a new DuckDB database. Return its connection."""
    con = duckdb.connect()
    for name, rows in data.items():
        db.create_table(name, rows.schema, "id").insert(rows)
        con.register(f"given_{name}", rows)
        con.execute(f"CREATE TABLE {name} AS FROM given_{name}")
    db.flush()
    return con


def random_rows(random: Random, count: int) -> pa.Table:
    numbers = [None if random.random() < 0.15 else random.randrange(12) for _ in range(count)]
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "k": pa.array(random.choices(numbers, k=count), pa.int64()),
            "n": pa.array(random.choices(numbers, k=count), pa.int32()),
            "v": pa.array(
                [None if x is None else x / 2 for x in random.choices(numbers, k=count)], pa.float64()
            ),
            "s": pa.array([None if x is None else f"s{x}" for x in random.choices(numbers, k=count)]),
            "d": pa.array(random.choices(numbers, k=count), pa.int32()).cast(DECIMAL),
        },
        pa.schema([pa.field("id", pa.int64(), False), *(pa.field(c, t) for c, t in COLUMNS.items())]),
    )


DECIMAL = pa.decimal128(12, 2)
COLUMNS = {"k": pa.int64(), "n": pa.int32(), "v": pa.float64(), "s": pa.string(), "d": DECIMAL}


def random_equality(random: Random, left: str, right: str) -> str:
    a, b = random.choice(
        [("k", "k"), ("n", "n"), ("v", "v"), ("s", "s"), ("k", "n"), ("n", "k"), ("k", "v"), ("d", "d")]
    )
    sides = [f"{left}.{a}", f"{right}.{b}"]
    random.shuffle(sides)
    text = " = ".join(sides)
    return f"{text} + {random.randrange(2)}" if a != "s" and random.random() < 0.2 else text


def random_source(random: Random, table: str) -> str:
    """Return a random source for FROM, under the name of the table."""
    return random.choices(
        [
            table,
            f"(SELECT k, n, v, s, d FROM {table}) {table}",
            f"(SELECT k, max(n) AS n, min(v) AS v, any_value(s) AS s, min(d) AS d FROM {table} GROUP BY k) {table}",
            f"(SELECT k + 1 AS k, n, v, s, d FROM {table} WHERE n IS NOT NULL) {table}",
            f"(SELECT k, row_number() OVER (ORDER BY id) AS n, v, s, d FROM {table}) {table}",
            f"(SELECT k, CASE WHEN true THEN count(*) OVER () END AS n, v, s, d FROM {table}) {table}",
            f"(SELECT k, n, v, s, d FROM {table} ORDER BY id LIMIT 4) {table}",
            f"(SELECT k, n, v, s, d FROM {table} UNION ALL SELECT 1, 2, 3, 's4', 5.0) {table}",
        ],
        [8, 2, 1, 1, 1, 1, 1, 1],
    )[0]


def random_condition(random: Random, table: str, other: str) -> str:
    column = random.choice(["k", "n", "s"])
    given = (
        random.choice([column, column, f"max({column})", "any_value(n)", "count(*)"])
        if column != "s"
        else "s"
    )
    where = random.choice(["", f" WHERE {other}.n < 9", f" WHERE {random_equality(random, other, table)}"])
    return random.choice(
        [
            f"{table}.{column} IN (SELECT {given} FROM {other}{where})",
            f"{table}.{column} NOT IN (SELECT {given} FROM {other}{where})",
            f"{table}.{column} = (SELECT {given if '(' in given else f'min({given})'} FROM {other}{where})",
            f"EXISTS (SELECT 1 FROM {other}{where})",
            f"EXISTS (SELECT count(*) FROM {other}{where})",
            f"NOT EXISTS (SELECT * FROM {other}{where})",
            f"({table}.k = 3 OR {table}.{column} IN (SELECT {given} FROM {other}))",
            random_equality(random, table, table),
        ]
    )


def random_statement(random: Random) -> str:
    a, b, c = random.sample(["a", "b", "c"], 3)
    on = random_equality(random, a, b)
    more = random.choice(
        ["", "", f" AND {random_equality(random, a, b)}", f" OR {a}.n = 3", f" AND {b}.n < 8"]
    )
    join = random.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN", ","])
    first, second = random_source(random, a), random_source(random, b)
    how = f" ON {on}{more}" if random.random() < 0.7 else f" USING ({random.choice(['k', 'n', 's', 'k, n'])})"
    if join == ",":
        source, condition = f"{first}, {second}", on + more
    elif random.random() < 0.1:
        source, condition = f"{a} POSITIONAL JOIN {b}", "TRUE"
    elif random.random() < 0.1:
        source, condition = f"{first} ASOF LEFT JOIN {second} ON {a}.s = {b}.s AND {a}.k >= {b}.k", "TRUE"
    else:
        source, condition = f"{first} {join} {second}{how}", "TRUE"
    seen = [a] if "SEMI" in source or "ANTI" in source else [a, b]
    if random.random() < 0.4:
        kind = random.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN"])
        source += f" {kind} {c} ON {random_equality(random, random.choice(seen), c)}"
        seen += [] if kind in ("SEMI JOIN", "ANTI JOIN") else [c]
    elif random.random() < 0.6:
        condition = f"({condition}) AND {random_condition(random, random.choice(seen), c)}"
    elif random.random() < 0.3:
        condition = f"{condition} AND {random_equality(random, seen[0], seen[-1])}"
    columns = ", ".join(f"{name}.{column}" for name in seen for column in COLUMNS)
    statement = f"SELECT {columns} FROM {source} WHERE {condition}"
    if random.random() < 0.15:
        return f"WITH w AS ({statement}) SELECT * FROM w w1 WHERE 1 = 1 UNION ALL SELECT * FROM w w2"
    if random.random() < 0.15:
        return f"SELECT count(*), max({seen[0]}.k) FROM {source} WHERE {condition}"
    return statement


@pytest.mark.parametrize("seed", each(20, range(20)))
def test_random_joins_have_the_same_rows_as_in_duckdb(
    db: nyala.Database, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_ROWS_MIN", 0)
    monkeypatch.setattr(source, "_PARTNERS_MATCHING_MAX", 1)
    random = Random(seed)
    sizes = random.sample([3, 9, 40, 60], 3)
    con = store_and_duckdb(
        db, {name: random_rows(random, count) for name, count in zip("abc", sizes, strict=True)}
    )
    without_lost_filters(con)
    narrowed = 0
    for _ in range(120):
        text = random_statement(random)
        try:
            expected = con.execute(text).fetchall()
        except duckdb.Error:
            continue  # DuckDB refuses this combination
        found = db.sql(text)
        narrowed += bool(found._bound.session.partners)
        for _ in range(2):  # the second run uses the kept plan
            assert Counter(map(repr, found.fetchall())) == Counter(map(repr, expected)), text
    assert narrowed > 20


@pytest.mark.parametrize(
    "type", [pa.string_view(), pa.binary_view(), pa.decimal64(12, 2), pa.dictionary(pa.int32(), pa.string())]
)
def test_join_partners_of_every_arrow_type(type: pa.DataType) -> None:
    values = pa.chunked_array([pa.array(["1", None], pa.string()), pa.array(["1", "2"])])
    kind = pa.binary() if type == pa.binary_view() else pa.string()
    values = values.cast(DECIMAL) if pa.types.is_decimal(type) else values.cast(kind)
    is_dictionary = pa.types.is_dictionary(type)
    given = values.dictionary_encode() if is_dictionary else values.cast(type)
    found = source._distinct(given)
    assert found is not None and found.to_pylist() == values.drop_null().unique().to_pylist()
    assert source._distinct(pa.chunked_array([[True]])) is None
