"""Random SQL writes on a store and on DuckDB's own tables have the same refusals, counts and rows.

    tables      `t` and `s` with many NULL and NaN; the store's are partitioned, flushed and compacted
    statements  INSERT … SELECT, ON CONFLICT, OR REPLACE, UPDATE (also of keys), DELETE, MERGE, TRUNCATE;
                conditions of comparisons, lists, LIKE, functions, subqueries, NOT, AND and OR;
                some are in transactions, and some of these are rolled back

After each statement, both must have refused it, or have the same count, RETURNING rows and tables.
A failure prints its seed, and `run_history(seed)` repeats it.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import duckdb
import pytest

import nyala
from nyala.errors import Error
from nyala.sql.change import change, matching
from nyala.sql.change import rows as rows_module
from nyala.tablet.write import part_commit
from tests.sampled import each
from tests.support import folder_in_memory

STATEMENTS = 60
TABLES = ("t", "s")
COLUMNS = {"a": "INT", "f": "DOUBLE", "s": "VARCHAR", "x": "DECIMAL(6,2)", "d": "DATE"}
CONSTANTS: dict[str, list[str]] = {
    "id": ["0", "1", "5", "9", "12", "-3", "1000000"],
    "a": ["0", "1", "-1", "2", "7", "-1000", "NULL"],
    "f": ["0.0", "1.5", "-2.25", "'nan'::DOUBLE", "'inf'::DOUBLE", "1e300", "NULL"],
    "s": ["''", "'a'", "'ab'", "'B'", "'a%b'", "'it''s; --'", "'ä'", "NULL"],
    "x": ["0", "1.25", "-9.99", "999.99", "0.01", "NULL"],
    "d": ["DATE '2026-01-01'", "DATE '1969-12-31'", "DATE '2024-02-29'", "NULL"],
}
COMPARISONS = ["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"]


class Statements:
    """Makes random statements. A parameter `name` is the alias of a column's table, such as `t`."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def constant(self, column: str) -> str:
        return self.chance.choice(CONSTANTS[column])

    def column(self) -> str:
        return self.chance.choice(list(COLUMNS))

    def condition(self, name: str, depth: int = 2) -> str:
        """Return a condition on the columns of one table."""
        draw = self.chance.random()
        if depth and draw < 0.15:
            return f"NOT ({self.condition(name, depth - 1)})"
        if depth and draw < 0.5:
            word = self.chance.choice(["AND", "OR"])
            return f"({self.condition(name, depth - 1)} {word} {self.condition(name, depth - 1)})"
        if draw < 0.58:
            return self.function(name)
        if depth and draw < 0.65:
            return self.subquery(name)
        column = self.chance.choice(["id", *COLUMNS])
        place, first, second = f"{name}.{column}", self.constant(column), self.constant(column)
        return self.chance.choice(
            [
                f"{place} {self.chance.choice(COMPARISONS)} {first}",
                f"{place} {self.chance.choice(COMPARISONS)} {first}",
                f"{first} {self.chance.choice(COMPARISONS[:6])} {place}",
                f"{place} IS {self.chance.choice(['', 'NOT '])}NULL",
                f"{place} {self.chance.choice(['', 'NOT '])}IN ({first}, {second}, {self.constant(column)})",
                f"{place} {self.chance.choice(['', 'NOT '])}BETWEEN {first} AND {second}",
            ]
        )

    def function(self, name: str) -> str:
        return self.chance.choice(
            [
                "isnan({0}.f)",
                "abs({0}.id) % 3 = 1",
                "length({0}.s) > 1",
                "upper({0}.s) = 'AB'",
                "{0}.s LIKE 'a%'",
                "{0}.s NOT LIKE '%b'",
                "{0}.s ILIKE 'B%'",
                "{0}.s LIKE '%''%'",
                "coalesce({0}.a, {0}.id) < 4",
                "{0}.a + {0}.id > {0}.x",
                "year({0}.d) = 2026",
                "CASE WHEN {0}.a > 0 THEN {0}.f > 0 ELSE {0}.s = '' END",
                "{0}.a = {0}.id",
                "{0}.f < {0}.a",
                "nullif({0}.s, '') IS NULL",
                "(SELECT max(id) FROM s) > {0}.id",
                "true",
            ]
        ).format(name)

    def subquery(self, name: str) -> str:
        inner = self.condition("q", 0)
        return self.chance.choice(
            [
                f"{name}.id {self.chance.choice(['', 'NOT '])}IN (SELECT q.id FROM s AS q WHERE {inner})",
                f"EXISTS (SELECT 1 FROM s AS q WHERE q.id = {name}.id AND {inner})",
                f"{name}.a IN (SELECT q.a FROM t AS q WHERE {inner})",
            ]
        )

    def value(self, column: str, name: str, other: str | None = None) -> str:
        """Return a value for a column, from one table or two."""
        source = other if other is not None and self.chance.random() < 0.5 else name
        choices = {
            "a": ["{0}.a + 1", "-{0}.a", "{0}.id * 2", "length({0}.s)", "{0}.x", "{0}.a + {0}.id"],
            "f": ["{0}.f * 2", "{0}.f / {0}.id", "sqrt(abs({0}.f))", "{0}.a / 3", "-{0}.f", "{0}.x * 1.5"],
            "s": ["{0}.s || 'x'", "upper({0}.s)", "{0}.id::VARCHAR", "substr({0}.s, 1, 3)", "{0}.d::VARCHAR"],
            "x": ["{0}.x + 1", "{0}.a * 0.1", "{0}.x / 3", "round({0}.x, 1)", "{0}.id"],
            "d": ["{0}.d + 1", "DATE '2026-01-01' + {0}.id", "least({0}.d, DATE '2026-01-01')"],
        }[column]
        expression = self.chance.choice([*choices, self.constant(column), f"{{0}}.{column}"]).format(source)
        if self.chance.random() < 0.15:
            return f"CASE WHEN {self.condition(source, 0)} THEN {expression} END"
        return "DEFAULT" if self.chance.random() < 0.05 else expression

    def assignments(self, name: str, other: str | None = None) -> str:
        columns = self.chance.sample(list(COLUMNS), self.chance.randint(1, 3))
        return ", ".join(f"{column} = {self.value(column, name, other)}" for column in columns)

    def returning(self, name: str) -> str:
        return self.chance.choice(
            ["", "", "", " RETURNING *", f" RETURNING {name}.id, s || '!' AS s, f IS NULL"]
        )

    def where(self, name: str) -> str:
        return f" WHERE {self.condition(name)}" if self.chance.random() < 0.9 else ""

    # -------------------------------------------------------------------------------- statements

    def statement(self) -> str:
        weighted = [
            (self.update, 5),
            (self.update_key, 1),
            (self.update_from, 3),
            (self.delete, 2),
            (self.insert, 4),
            (self.on_conflict, 4),
            (self.merge, 5),
        ]
        makers, weights = zip(*weighted, strict=True)
        made: str = self.chance.choices(makers, weights)[0]()
        return made

    def update(self) -> str:
        return f"UPDATE t SET {self.assignments('t')}{self.where('t')}{self.returning('t')}"

    def update_key(self) -> str:
        moved = self.chance.choice(["id + 1", "id - 1", "-id", "id + 100", "id * 2", "5"])
        also = self.chance.choice(["", ", s = 'moved'", ", a = id"])
        return f"UPDATE t SET id = {moved}{also}{self.where('t')}"

    def update_from(self) -> str:
        source = f"(SELECT * FROM s WHERE {self.condition('s', 1)})"
        return (
            f"UPDATE t SET {self.assignments('t', 'o')} FROM {source} AS o "
            f"WHERE t.id = o.id AND {self.condition('t', 1)}"
        )

    def delete(self) -> str:
        if self.chance.random() < 0.3:
            return (
                f"DELETE FROM t USING s WHERE t.id = s.id + 1 AND {self.condition('s')}{self.returning('t')}"
            )
        return f"DELETE FROM t WHERE {self.condition('t')} AND {self.condition('t')}{self.returning('t')}"

    def rows(self, *, typed: bool = False) -> tuple[str, str]:
        """Return columns, and a SELECT or VALUES of rows with different keys for them.

        typed: with values in the types of the columns.
        """
        columns = sorted(self.chance.sample(list(COLUMNS), self.chance.randint(1, len(COLUMNS))))
        names = ", ".join(["id", *columns])
        if self.chance.random() < 0.4:
            keys = self.chance.sample(range(30), self.chance.randint(1, 4))
            rows = [", ".join([str(key), *map(self.constant, columns)]) for key in keys]
            return names, "VALUES " + ", ".join(f"({row})" for row in rows)
        key = self.chance.choice(["s.id", "s.id + 20", "s.id * 3"])
        values = [self.value(column, "s").replace("DEFAULT", "NULL") for column in columns]
        if typed:
            pairs = zip(values, columns, strict=True)
            values = [f"CAST({value} AS {COLUMNS[column]})" for value, column in pairs]
        return names, f"SELECT {', '.join([key, *values])} FROM s WHERE {self.condition('s')}"

    def insert(self) -> str:
        names, rows = self.rows()
        word = self.chance.choice(["INSERT", "INSERT", "INSERT OR IGNORE", "INSERT OR REPLACE"])
        return f"{word} INTO t ({names}) {rows}{self.returning('t')}"

    def on_conflict(self) -> str:
        names, rows = self.rows(typed=True)  # DuckDB's `excluded` has the values before the cast
        if self.chance.random() < 0.2:
            return f"INSERT INTO t ({names}) {rows} ON CONFLICT DO NOTHING"
        update = self.conflict_update()
        while "SELECT" in update:  # DuckDB refuses a subquery here
            update = self.conflict_update()
        return f"INSERT INTO t ({names}) {rows} ON CONFLICT (id) DO UPDATE SET {update}{self.returning('t')}"

    def conflict_update(self) -> str:
        conditions = [f" WHERE {self.condition('t', 1)}", f" WHERE {self.condition('excluded', 0)}", ""]
        return self.assignments("t", "excluded") + self.chance.choice(conditions)

    def merge(self) -> str:
        clauses, closed = [], set()
        for _ in range(self.chance.randint(1, 4)):
            side = self.chance.choice(["MATCHED", "MATCHED", "NOT MATCHED", "NOT MATCHED BY SOURCE"])
            if side in closed:  # a clause without a condition must be the last
                continue
            name = {"MATCHED": self.chance.choice("to"), "NOT MATCHED": "o"}.get(side, "t")
            condition = f" AND {self.condition(name, 1)}" if self.chance.random() < 0.6 else ""
            if not condition:
                closed.add(side)
            if side == "NOT MATCHED":
                columns = self.chance.sample(list(COLUMNS), 2)
                values = ", ".join(self.value(column, "o") for column in columns)
                actions = [f"INSERT (id, {', '.join(columns)}) VALUES (o.id, {values})"] * 3
                actions += ["INSERT *", "INSERT BY NAME"]
            else:
                other = "o" if side == "MATCHED" else None
                actions = [f"UPDATE SET {self.assignments('t', other)}"] * 3 + ["DELETE"]
                actions += ["UPDATE SET *", "UPDATE BY NAME"] if side == "MATCHED" else []
            action = self.chance.choice([*actions, "DO NOTHING"])
            clauses.append(f"WHEN {side}{condition} THEN {action}")
        source = f"(SELECT * FROM s WHERE {self.condition('s', 1)})" if self.chance.random() < 0.5 else "s"
        on = self.chance.choice(["t.id = o.id", "t.id = o.id", f"t.id = o.id AND {self.condition('t', 0)}"])
        returning = self.chance.choice(["", "", " RETURNING merge_action, *"])
        return f"MERGE INTO t USING {source} AS o ON {on} {' '.join(clauses)}{returning}"


def random_rows(chance: random.Random, count: int) -> str:
    keys = chance.sample(range(30), count)
    return ", ".join(
        "(" + ", ".join([str(key), *(chance.choice(CONSTANTS[column]) for column in COLUMNS)]) + ")"
        for key in keys
    )


class Both:
    """The store and DuckDB's tables."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.chance = chance
        self.db = nyala.connect(folder, maintenance=False)
        self.twin = duckdb.connect(":memory:")
        types = {
            "INT": "int32",
            "DOUBLE": "float64",
            "VARCHAR": "string",
            "DECIMAL(6,2)": "decimal(6,2)",
            "DATE": "date",
        }
        schema: dict[str, Any] = {"id": "int32"}
        schema |= {name: nyala.column(types[type], nullable=True) for name, type in COLUMNS.items()}
        levels = [nyala.hash_partition("id", buckets=2)] if chance.random() < 0.5 else ()
        for name in TABLES:
            self.db.create_table(name, schema, "id", levels)
            columns = ", ".join(f"{column} {type}" for column, type in COLUMNS.items())
            self.twin.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, {columns})")
            self.run(f"INSERT INTO {name} VALUES {random_rows(chance, 15)}")

    def run(self, text: str) -> bool:
        """Run the statement on both, compare what it did, and return whether both did it."""
        theirs = self.twin_outcome(text)
        if self.is_fault(text, theirs):
            return False
        ours = self.outcome(text)
        if isinstance(ours, Exception) or isinstance(theirs, Exception):
            assert isinstance(ours, Error) and isinstance(theirs, duckdb.Error), (text, ours, theirs)
        else:
            assert ours == theirs, (text, ours, theirs)
        return not isinstance(ours, Exception)

    def is_fault(self, text: str, theirs: Any) -> bool:
        """Whether DuckDB refuses the statement by a fault: for example, it changes keys one by one."""
        if isinstance(theirs, duckdb.InternalException):
            return True
        if not (isinstance(theirs, duckdb.ConstraintException) and text.startswith("UPDATE t SET id")):
            return False
        try:
            self.twin.execute("CREATE OR REPLACE TEMP TABLE moved AS FROM t")
        except duckdb.TransactionException:  # DuckDB ended the transaction
            return True
        self.twin.execute(text.replace("t SET", "moved AS t SET", 1))
        counts = self.twin.execute("SELECT count(*), count(DISTINCT id) FROM moved").fetchone()
        self.twin.execute("DROP TABLE moved")
        return counts is not None and counts[0] == counts[1]

    def outcome(self, text: str) -> Any:
        """Return the count, the rows, or the error."""
        try:
            result = self.db.sql(text)
            return plain(result.fetchall()) if "RETURNING" in text else result.rowcount
        except Error as error:
            return error

    def twin_outcome(self, text: str) -> Any:
        try:
            found = self.twin.execute(text)
            return plain(found.fetchall()) if "RETURNING" in text else found.rowcount
        except duckdb.Error as error:
            return error

    def compare(self, text: str) -> None:
        for name in TABLES:
            rows = f"SELECT * FROM {name}"
            assert plain(self.db.sql(rows).fetchall()) == plain(self.twin.execute(rows).fetchall()), text

    def transaction(self, statements: list[str], ending: str) -> None:
        """Run the statements in a transaction. If DuckDB refuses one, both roll back."""
        self.both("BEGIN")
        for text in statements:
            if not self.run(text):
                self.both("ROLLBACK")
                return self.compare(text)
            self.compare(text)
        self.both(ending)
        self.compare(ending)

    def both(self, text: str) -> None:
        self.db.sql(text)
        self.twin.execute(text)

    def change_files(self) -> None:
        act = self.chance.choice([self.db.flush, self.db["t"].compact, lambda: None, lambda: None])
        act()


def plain(rows: list[tuple[Any, ...]]) -> list[str]:
    """Return the rows in a fixed order, with one form of NaN and zero."""
    return sorted(repr(tuple(0.0 if isinstance(v, float) and v == 0.0 else v for v in row)) for row in rows)


def run_history(seed: int, count: int = STATEMENTS) -> None:
    chance = random.Random(seed)
    statements = Statements(chance)
    with folder_in_memory() as folder:
        both = Both(folder / "store", chance)
        with both.db, both.twin:
            for _ in range(count):
                if chance.random() < 0.1:
                    some = [statements.statement() for _ in range(chance.randint(1, 5))]
                    both.transaction(some, chance.choice(["COMMIT", "ROLLBACK"]))
                else:
                    text = statements.statement()
                    both.run(text)
                    both.compare(text)
                if chance.random() < 0.2:
                    both.change_files()
                if both.db.sql("SELECT count(*) FROM t").fetchone() < (8,):
                    both.run(f"INSERT OR REPLACE INTO t VALUES {random_rows(chance, 12)}")
            assert list(both.db.check().problems) == []


@pytest.mark.parametrize("seed", each(20, range(40)))
def test_random_writes_do_what_duckdb_does(seed: int) -> None:
    """Random statements have the same refusals, counts, returned rows and tables as DuckDB's own tables."""
    run_history(seed)


@pytest.mark.parametrize("seed", each(10, range(100, 110)))
def test_random_writes_in_parts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As before, but statements are committed in parts of two or three rows, and small sources are looked up by key."""
    monkeypatch.setattr(matching, "_TABLE_SHARE", 0)
    monkeypatch.setattr("nyala.sql.change.target._COMPARED_ROWS_MAX", 0)
    monkeypatch.setattr(change, "SPILLED_BYTES_MIN", 1)
    monkeypatch.setattr(rows_module, "SPILLED_BYTES_MIN", 1)
    monkeypatch.setattr(part_commit, "_part_bytes", lambda store: 300)
    monkeypatch.setattr(part_commit, "_PARTS_MIN", 0)
    run_history(seed)
