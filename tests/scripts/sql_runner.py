"""Runs a script of SQL on a store, and its statements on DuckDB's own tables as well.

Script
    Blocks end with an empty line. A block has comments (`# …`), markers and statements, then `----` and
    what the statements print. A statement ends at the line that ends with `;`. A line with several
    statements is one text: it prints what its last statement returns.

    CREATE TABLE t (id INT PRIMARY KEY, v INT);
    INSERT INTO t VALUES (1, 10), (2, NULL);
    SELECT * FROM t;
    INSERT INTO t VALUES (1, 11);
    ----
    2 rows
    (1, 10)
    (2, NULL)
    error: DuplicateKeyError id=1

Output
    `3 rows` is the count of a write. Rows print as SQL literals; without ORDER BY they are sorted,
    except those of SHOW and DESCRIBE. A refusal prints its class and words of its message.

Markers
    nyala-only: reason      DuckDB lacks the statements of the block. It does not run them.
    differs: reason         DuckDB runs them too, and at least one has another outcome. What the store
                            refuses is undone in DuckDB.
    duckdb: STATEMENT       DuckDB runs this instead of the next statement. Without text it runs nothing.
    parameters: [1, 'a']    Values of the next statement, as Python: a list, or a dict by name.
                            A `duckdb` statement has none.
    moment: a               Remembers the time. Later statements write it as `{a}`, or `{a.version}`.
    reopen                  Closes the store and opens it again.

    `nyala-only` and `differs` hold for the rest of the block, the others for the next statement.

Files
    {files} is a folder for files. The store and DuckDB have one each, so each reads what it wrote itself.

Both must print the same counts, rows and column names, and refuse the same statements. At the end
DuckDB's tables must hold what the tables of the same names hold in the store. Times without a zone
are UTC in both.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from nyala.api.database import Database
from nyala.env import SYSTEM, Env, system_files
from nyala.errors import Error
from nyala.mvcc.timestamp import from_physical
from nyala.sql.tokens import quoted
from nyala.tablet.store import Store, StoreOptions
from nyala.testing.clock import ManualClock, SeededRandomness

_MARKER = re.compile(r"(nyala-only|differs|duckdb|parameters|moment|reopen)(?::\s*(.*))?$")
_ORDERED = re.compile(r"\border\s+by\b|^\s*(describe|desc|show)\b", re.IGNORECASE)
_VALUES = {"nan": math.nan, "inf": math.inf, "Decimal": decimal.Decimal, "dt": dt}
_WORDS_CHARS = 90


@dataclass
class Block:
    """Comments, markers and statements as lines, and the lines that they must print."""

    lines: list[str] = field(default_factory=list)
    expected: list[str] | None = None

    def steps(self) -> Iterator[tuple[str, str]]:
        """Yield ("sql", text), or (marker, text)."""
        text: list[str] = []
        for line in self.lines:
            if text or not (line.startswith("#") or _MARKER.match(line)):
                text.append(line)
                if line.rstrip().endswith(";"):
                    yield "sql", "\n".join(text)
                    text = []
            elif found := _MARKER.match(line):
                yield found[1], found[2] or ""
        assert not text, f"a statement must end with ;: {text}"


def parse(script: str) -> list[Block]:
    blocks = []
    for part in script.strip("\n").split("\n\n"):
        lines, separator, expected = part.partition("\n----")
        blocks.append(
            Block(lines.split("\n"), expected.lstrip("\n").split("\n") if separator and expected else None)
        )
    return blocks


def render(blocks: Sequence[Block]) -> str:
    return (
        "\n\n".join("\n".join([*b.lines, *(["----", *b.expected] if b.expected else [])]) for b in blocks)
        + "\n"
    )


@dataclass
class Outcome:
    """The lines that one statement prints and its columns, or its error."""

    lines: list[str]
    columns: list[str] | None = None
    error: Exception | None = None

    def problem(self, other: Outcome) -> str | None:
        """Return how DuckDB's outcome differs from this one; None if it does not."""
        if (self.error is None) != (other.error is None):
            return f"Nyala: {self.error or self.lines}, DuckDB: {other.error or other.lines}"
        if self.error is None and (self.lines, self.columns) != (other.lines, other.columns):
            return f"Nyala: {self.columns} {self.lines}, DuckDB: {other.columns} {other.lines}"
        return None


class SqlRunner:
    """Executes statements on a store and on a DuckDB database, and compares their results.

    connect: opens the store. The default opens a store in `folder`, with a clock that the runner advances.
    """

    def __init__(self, folder: Path, connect: Callable[[], Database] | None = None) -> None:
        self._folder = folder
        self._files, self._twins_files = folder.with_name("files"), folder.with_name("twins_files")
        self._connect = connect
        self._clock = ManualClock() if connect is None else SYSTEM.clock
        self._moments: dict[str, tuple[str, int]] = {}
        self._twin = duckdb.connect(":memory:")
        for folder in (self._files, self._twins_files):
            folder.mkdir()
        self._open()

    def _open(self) -> None:
        if self._connect is not None:
            self.db = self._connect()
            return
        env = Env(system_files(), self._clock, SeededRandomness())
        self.db = Database(Store.open(env, str(self._folder), StoreOptions(maintenance=False)))

    def _let_time_pass(self) -> None:
        if isinstance(self._clock, ManualClock):
            self._clock.advance(1)
        else:
            self._clock.sleep_s(0.002)

    def close(self) -> None:
        self._twin.close()
        self.db.close()

    def run(self, block: Block) -> list[str]:
        """Run the block and return the lines that it prints.

        Raises: AssertionError if DuckDB has another outcome.
        """
        expected = iter(block.expected or ())
        printed: list[str] = []
        problems: list[str] = []
        markers: dict[str, str] = {}
        for kind, text in block.steps():
            if kind == "reopen":
                self.db.close()
                self._open()
            elif kind == "moment":
                self._remember(text)
            elif kind != "sql":
                markers[kind] = text
            else:
                values = eval(self._filled(markers.pop("parameters", "None")), dict(_VALUES))
                text = self._filled(text)
                ours = self._run(text.replace("{files}", str(self._files)), values)
                theirs = markers.pop("duckdb", None)
                if "nyala-only" not in markers and theirs != "":
                    twin = self._run_twin(
                        (theirs or text).replace("{files}", str(self._twins_files)),
                        None if theirs else values,
                        undo="differs" in markers and ours.error,
                    )
                    problem = ours.problem(twin)
                    problems += [f"{text}\n{problem}"] if problem else []
                printed += self._printed(ours, expected)
        if "differs" in markers:
            assert problems, f"differs: {markers['differs']}: but DuckDB did the same"
        else:
            assert not problems, "\n".join(problems)
        return printed

    def check(self) -> None:
        """Check that the store is sound and has the rows of DuckDB, also after a reopen."""
        self._compare()
        self.db.close()
        self._open()
        self._compare()
        assert list(self.db.check().problems) == []

    def _compare(self) -> None:
        for (name,) in self._twin.execute("SELECT table_name FROM duckdb_tables()").fetchall():
            columns = self._twin.execute(f'SELECT * FROM "{name}" LIMIT 0').description
            names = ", ".join(quoted(column[0]) for column in columns)
            text = f"SELECT {names} FROM {quoted(name)}"
            problem = self._run(text, None).problem(self._run_twin(text, None))
            assert problem is None, f"{name}: {problem}"

    def _remember(self, name: str) -> None:
        self._let_time_pass()
        now = self._clock.now_us()
        text = dt.datetime.fromtimestamp(now / 1e6, dt.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        self._moments[name] = text, from_physical(now)
        self._let_time_pass()

    def _filled(self, text: str) -> str:
        """Return the statement, with `{a}` and `{a.version}` replaced by remembered moments."""
        for name, (time, version) in self._moments.items():
            text = text.replace(f"{{{name}}}", time).replace(f"{{{name}.version}}", str(version))
        return text

    def _run(self, text: str, values: Any) -> Outcome:
        if isinstance(self._clock, ManualClock):
            self._clock.advance(1)
        try:
            result = self.db.sql(text, values)
            if result.columns and result.columns != ["Count"]:
                return Outcome(_lines(text, result.fetchall()), result.columns)
        except Error as error:
            return Outcome([], error=error)
        return Outcome([_count(result.rowcount)] if result.rowcount >= 0 else [])

    def _run_twin(self, text: str, values: Any, *, undo: object = False) -> Outcome:
        try:
            if undo:
                self._twin.execute("BEGIN")
                outcome = self._run_twin(text, values)
                self._twin.execute("ROLLBACK")
                return outcome
            found = self._twin.execute(text, values)
            columns = [column[0] for column in found.description]
            rows = found.fetchall()
        except duckdb.Error as error:
            return Outcome([], error=error)
        if found.rowcount >= 0:
            return Outcome([_count(found.rowcount)])
        if columns in (["Count"], ["Success"]):
            return Outcome([])
        return Outcome(_lines(text, rows), columns)

    def _printed(self, outcome: Outcome, expected: Iterator[str]) -> list[str]:
        """Return the lines of the outcome.

        An error is printed with the words that the script expects, if its message has them.
        """
        if outcome.error is None:
            for _ in outcome.lines:
                next(expected, "")
            return outcome.lines
        name = type(outcome.error).__name__
        message = " ".join(str(outcome.error).replace(str(self._files), "{files}").split())
        _, _, words = (next(expected, "") or "").removeprefix("error: ").partition(" ")
        if not words or words not in message:
            words = message if len(message) <= _WORDS_CHARS else message[:_WORDS_CHARS].rpartition(" ")[0]
        return [f"error: {name} {words}"]


def _count(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows} rows"


def _lines(text: str, rows: Sequence[tuple[Any, ...]]) -> list[str]:
    lines = ["(" + ", ".join(map(_literal, row)) + ")" for row in rows]
    return lines if _ORDERED.search(text) else sorted(lines)


def _literal(value: Any) -> str:
    """Return the value as an SQL literal; a time is in UTC."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, dt.datetime):
        return str(value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None))
    return repr(value) if isinstance(value, str) else str(value)
