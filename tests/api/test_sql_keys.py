"""Statements that ask for many values: they mean what they mean over tables of DuckDB's own."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from random import Random

import duckdb
import pyarrow as pa
import pytest

import nyala
from nyala.sql import source
from nyala.sql.connection import without_lost_filters

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
def test_a_long_list_means_what_it_means_to_a_table_of_duckdb(
    db: nyala.Database, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_ROWS_MIN", 0)  # scans apply every predicate that they can
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
    for listed in (constants, [*constants, constants[0]], [*constants, "NULL"]):
        for where in ("v IN ({})", "v NOT IN ({})", "v IN ({}) OR k < 9", "k > 50 AND NOT (v IN ({}))"):
            text = f"SELECT k FROM t WHERE {where.format(', '.join(listed))} ORDER BY k"
            assert db.sql(text).fetchall() == con.execute(text).fetchall()


def test_names_beside_a_long_list_are_checked_at_once_and_a_pivot_takes_its_columns_from_one(
    db: nyala.Database,
) -> None:
    numbers = ", ".join(map(str, range(600)))
    db.create_table("t", {"k": "int64", "v": "int64"}, "k").insert({"k": [1, 2], "v": [5, 599]})
    with pytest.raises(nyala.ColumnNotFoundError, match="missing"):
        db.sql(f"SELECT missing FROM t WHERE v IN ({numbers})")
    with pytest.raises(nyala.InvalidArgumentError, match="only reads"):
        db.sql(f"DELETE FROM t WHERE v IN ({numbers})")
    pivoted = db.sql(f'SELECT "599" FROM (PIVOT t ON v IN ({numbers}) USING count(*))')
    assert sorted(pivoted.fetchall()) == [(0,), (1,)]
    assert db.sql(f"SELECT 'v IN ({numbers})' AS text").fetchone() == (f"v IN ({numbers})",)
    assert db.sql(
        f"SELECT k FROM t -- v IN ({numbers})\nWHERE v IN ({numbers}) AND k > ?", [1]
    ).fetchall() == [(2,)]
    assert db.sql(f"SELECT k FROM t WHERE v IN ({numbers}) AND k > $least", {"least": 1}).fetchall() == [(2,)]


# ------------------------------------------------------------------------------------------------ joins


def both(db: nyala.Database, data: dict[str, pa.Table]) -> duckdb.DuckDBPyConnection:
    """The same tables in the store and in a DuckDB of its own."""
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
    """A table of FROM, called by the table's name."""
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


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 20))]
)
def test_random_joins_mean_what_they_mean_to_tables_of_duckdb(
    db: nyala.Database, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_ROWS_MIN", 0)
    monkeypatch.setattr(source, "_PARTNERS_MATCHING_MAX", 1)
    random = Random(seed)
    sizes = random.sample([3, 9, 40, 60], 3)
    con = both(db, {name: random_rows(random, count) for name, count in zip("abc", sizes, strict=True)})
    without_lost_filters(con)
    narrowed = 0
    for _ in range(120):
        text = random_statement(random)
        try:
            expected = con.execute(text).fetchall()
        except duckdb.Error:
            continue  # a combination that DuckDB refuses
        found = db.sql(text)
        narrowed += bool(found._bound.session.partners)
        for _ in range(2):  # the second time by the plan that was kept
            assert Counter(map(repr, found.fetchall())) == Counter(map(repr, expected)), text
    assert narrowed > 20


BIG = 200_000


@pytest.fixture
def keyed(db: nyala.Database) -> nyala.Database:
    big = {"a": pa.array([n // 1000 for n in range(BIG)]), "b": pa.array([n % 1000 for n in range(BIG)])}
    rows = pa.table({**big, "s": pa.array([f"{n:06}" for n in range(BIG)]), "v": pa.array(range(BIG))})
    db.create_table("big", rows.schema, ["a", "b"]).insert(rows)
    db.create_table("texts", rows.select(["s", "v"]).schema, "s").insert(rows.select(["s", "v"]))
    db.create_table("few", {"a": "int32", "b": "int64", "s": "string"}, ["a", "b"]).insert(
        [{"a": 7, "b": 5, "s": "000005"}, {"a": 150, "b": 999, "s": "199999"}]
    )
    db.flush()
    return db


@pytest.mark.parametrize(
    ("text", "table", "rows"),
    [
        ("SELECT v FROM few JOIN big USING (a, b)", "big", 2),
        ("SELECT v FROM big, few f WHERE big.a = f.a AND big.b = f.b", "big", 2),
        ("SELECT few.s, v FROM few LEFT JOIN big USING (a, b)", "big", 2),
        ("SELECT v FROM big RIGHT JOIN few ON few.a = big.a AND few.b = big.b", "big", 2),
        ("SELECT v FROM big SEMI JOIN few USING (a, b)", "big", 2),
        ("SELECT few.s FROM few ANTI JOIN big USING (a, b)", "big", 0),
        ("SELECT v FROM texts WHERE s IN (SELECT s FROM few)", "texts", 2),
        ("SELECT v FROM texts WHERE s = (SELECT max(s) FROM few)", "texts", 1),
        ("SELECT v FROM texts WHERE EXISTS (FROM few WHERE few.s = texts.s)", "texts", 2),
        ("SELECT v FROM texts JOIN (SELECT DISTINCT s AS name FROM few) x ON x.name = texts.s", "texts", 2),
        ("SELECT few.a FROM few WHERE s IN (SELECT s FROM texts)", "texts", 2),
    ],
)
def test_a_join_reads_only_what_has_a_partner(
    keyed: nyala.Database, text: str, table: str, rows: int
) -> None:
    result = keyed.sql(text)
    assert len(result.fetchall()) == rows
    (scan,) = (scan.to_dict() for scan in result.explain().scans if scan.to_dict()["table"] == table)
    assert scan["where"] is not None and scan["rows_skipped"] > BIG / 4


@pytest.mark.parametrize(
    "text",
    [
        "SELECT count(*) FROM big LEFT JOIN few USING (a, b)",
        "SELECT count(*) FROM big ANTI JOIN few USING (a, b)",
        "SELECT count(*) FROM texts WHERE s NOT IN (SELECT s FROM few) OR v = 1",
        "SELECT count(*) FROM texts WHERE s IN (SELECT s FROM few) OR v > 1",
    ],
)
def test_rows_without_a_partner_are_read_where_they_count(keyed: nyala.Database, text: str) -> None:
    assert keyed.sql(text).fetchone()[0] >= BIG - 2  # type: ignore[index]


@pytest.mark.parametrize(
    "type", [pa.string_view(), pa.binary_view(), pa.decimal64(12, 2), pa.dictionary(pa.int32(), pa.string())]
)
def test_values_are_looked_up_in_every_form_in_which_duckdb_is_given_them(type: pa.DataType) -> None:
    values = pa.chunked_array([pa.array(["1", None], pa.string()), pa.array(["1", "2"])])
    kind = pa.binary() if type == pa.binary_view() else pa.string()
    values = values.cast(DECIMAL) if pa.types.is_decimal(type) else values.cast(kind)
    is_dictionary = pa.types.is_dictionary(type)
    given = values.dictionary_encode() if is_dictionary else values.cast(type)
    found = source._distinct(given)
    assert found is not None and found.to_pylist() == values.drop_null().unique().to_pylist()
    assert source._distinct(pa.chunked_array([[True]])) is None


PARTNERS = {
    "SELECT 1 FROM a JOIN b ON a.k = b.k": "a.k<b.k b.k<a.k",
    "SELECT 1 FROM a x, B AS y WHERE X.k = y.N": "a.k<b.n b.n<a.k",
    "SELECT 1 FROM a LEFT JOIN b ON a.k = b.k": "b.k<a.k",
    "SELECT 1 FROM a RIGHT JOIN b USING (k)": "a.k<b.k",
    "SELECT 1 FROM a FULL JOIN b USING (k)": "",
    "SELECT 1 FROM a ANTI JOIN b USING (k)": "b.k<a.k",
    "SELECT 1 FROM a NATURAL JOIN b": "",
    "SELECT 1 FROM a JOIN b ON a.k = b.k OR a.n = 1": "",
    "SELECT 1 FROM a JOIN b ON a.k = b.k + 1": "",
    "SELECT 1 FROM a JOIN b ON a.k = b.v": "",
    "SELECT 1 FROM a a1 JOIN a a2 ON a1.k = a2.k": "",
    "SELECT 1 FROM a LEFT JOIN b ON a.k = b.k WHERE a.n = b.n": "b.k<a.k a.n<b.n b.n<a.n",
    "SELECT 1 FROM (a POSITIONAL JOIN b) JOIN c ON a.k = c.k": "",
    "SELECT 1 FROM (a ASOF JOIN b ON a.k >= b.k) JOIN c ON a.k = c.k": "",
    "SELECT 1 FROM a TABLESAMPLE 10% JOIN b ON a.k = b.k": "",
    "SELECT 1 FROM a JOIN b USING (k) USING SAMPLE 3": "a.k<b.k b.k<a.k",
    "SELECT 1 FROM a WHERE k IN (SELECT n FROM b)": "a.k<b.n b.n<a.k",
    "SELECT 1 FROM a WHERE k IN (SELECT n FROM b LIMIT 3)": "a.k<b.n",
    "SELECT 1 FROM a WHERE k IN (SELECT max(n) FROM b GROUP BY s)": "a.k<b.n",
    "SELECT 1 FROM a WHERE k IN (SELECT sum(n) FROM b)": "",
    "SELECT 1 FROM a WHERE k IN (SELECT a.n FROM b)": "",
    "SELECT 1 FROM a WHERE k NOT IN (SELECT n FROM b)": "",
    "SELECT 1 FROM a WHERE k = (SELECT max(n) FROM b)": "a.k<b.n",
    "SELECT 1 FROM a WHERE k > (SELECT max(n) FROM b)": "",
    "SELECT 1 FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.n = a.k)": "a.k<b.n b.n<a.k",
    "SELECT 1 FROM a WHERE EXISTS (SELECT max(n) FROM b WHERE b.n = a.k)": "",
    "SELECT 1 FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.n = a.k)": "",
    "SELECT EXISTS (SELECT 1 FROM b WHERE b.n = a.k) FROM a": "",
    "SELECT 1 FROM (SELECT k, s FROM a) x JOIN b ON x.k = b.k": "a.k<b.k b.k<a.k",
    "SELECT 1 FROM (SELECT DISTINCT k FROM a) x JOIN b ON x.k = b.k": "b.k<a.k",
    "SELECT 1 FROM (SELECT k, row_number() OVER () AS r FROM a) x JOIN b ON x.k = b.k": "b.k<a.k",
    "SELECT 1 FROM (SELECT k, CASE WHEN true THEN count(*) OVER () END AS r FROM a) x JOIN b USING (k)": "b.k<a.k",
    "SELECT 1 FROM (SELECT k + 1 AS k FROM a) x JOIN b ON x.k = b.k": "",
    "SELECT 1 FROM (SELECT k FROM a UNION SELECT 1) x JOIN b ON x.k = b.k": "",
    "SELECT 1 FROM (SELECT k FROM a LIMIT 3) x JOIN b ON x.k = b.k": "b.k<a.k",
    "WITH w AS (SELECT a.k FROM a JOIN b USING (k)) FROM w": "",
    "WITH b AS (SELECT 1 AS k) SELECT 1 FROM a JOIN b USING (k)": "",
    "SELECT 1 FROM a JOIN b USING (k) WHERE a.n IN (SELECT n FROM b)": "",
    "SELECT 1 FROM a, range(9) r(k) WHERE a.n = r.k": "",
    "SELECT 1 FROM a JOIN b USING (k), query_table(['b'])": "",
    "SELECT 1 FROM a JOIN b ON a.k = b.k UNION SELECT n FROM c": "a.k<b.k b.k<a.k",
}


@pytest.mark.parametrize("text", PARTNERS)
def test_what_a_statement_says_of_partners(db: nyala.Database, text: str) -> None:
    """`a.k<b.n`: rows of a whose k is no n of b may be left out."""
    tables = {name: pa.schema(COLUMNS) for name in "abc"}
    for name, schema in tables.items():
        db.create_table(
            name, {"id": "int64", **{f.name: nyala.column(f.type, nullable=True) for f in schema}}, "id"
        )
    found = {f"{p.table}.{p.column}<{p.of_table}.{p.of_column}" for p in db.sql(text)._bound.session.partners}
    assert found == set(PARTNERS[text].split())
