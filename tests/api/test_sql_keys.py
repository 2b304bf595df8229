"""Statements that ask for many values: they mean what they mean over tables of DuckDB's own."""

from __future__ import annotations

import datetime as dt

import duckdb
import pytest

import nyala
from nyala.sql import source

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
    assert (
        pivoted.fetchall() == [(0,), (1,)]
        or pivoted.fetchall() == [(1,), (0,)]
        or pivoted.fetchall() == [(1,)]
    )
    assert db.sql(f"SELECT 'v IN ({numbers})' AS text").fetchone() == (f"v IN ({numbers})",)
    assert db.sql(
        f"SELECT k FROM t -- v IN ({numbers})\nWHERE v IN ({numbers}) AND k > ?", [1]
    ).fetchall() == [(2,)]
    assert db.sql(f"SELECT k FROM t WHERE v IN ({numbers}) AND k > $least", {"least": 1}).fetchall() == [(2,)]
