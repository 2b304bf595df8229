"""Runs a SELECT by DuckDB, and explains what DuckDB pushed into the tables.

A result is like a scan: it has one moment, and rows are read only when a method returns them. Each
method runs the statement again. It returns the same rows, unless the statement uses random numbers
or the time of day. `fetchone` and `fetchmany` continue one run. A result can be read after its
snapshot was closed, but not after the store was closed.

Source: docs/how-to/sql.md; Python's DB-API for the fetch methods.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from nyala.errors import Error
from nyala.lazy_values import lazy_value
from nyala.presentation.previews import ROWS_COUNTED
from nyala.sql.result import Result, SqlExplanation
from nyala.sql.select.connection import Session
from nyala.sql.select.errors import our_error
from nyala.sql.select.moments import Feed
from nyala.sql.select.partners import partners_of
from nyala.sql.select.running import is_signal
from nyala.sql.select.source import Planning, ScanSource, duckdb_table
from nyala.sql.select.statement import check_statement, columns_named, tables_named

if TYPE_CHECKING:
    from nyala.api.database import Snapshot
    from nyala.api.engine_scan import EngineScan
    from nyala.api.transaction import Transaction
    from nyala.presentation.explanation import Explanation
    from nyala.sql.select.connection import Connection
    from nyala.sql.select.running import Running

# DuckDB plans the statement, and keeps the plan on the cursor.
_PREPARE, _EXECUTE = "PREPARE nyala_statement AS\n", "EXECUTE nyala_statement"
# DuckDB plans the statement. JSON is the form of the plan that costs least.
_BIND = "EXPLAIN (FORMAT json)\n"
# DuckDB finds the tables, columns and types of the statement, but does not plan it.
_DESCRIBE = "DESCRIBE\n"
# The sessions of longer statements are not kept.
_KEPT_CHARS_MAX = 20_000
# The number of rows in a batch of a result.
_BATCH_ROWS = 1 << 17


def run(
    connection: Connection,
    source: Snapshot | Transaction,
    text: str,
    parameters: dict[str, Any] | None,
    objects: Mapping[str, Any],
    moments: Mapping[str, EngineScan],
    running: Running,
) -> SelectResult:
    """Check and plan a SELECT over the tables as `source` sees them, and return its result.

    objects: further tables by name, in any form that DuckDB reads.
    moments: scans of other moments, by their names in the text (`select/moments.py`).
    running: receives the session of the statement, so that another thread can interrupt it.
    Raises: as `Database.sql`.
    """
    statement, shortened, parsed = check_statement(text)
    # Also tables that were created after the moment, because the error for them says so.
    names = sorted({*source._pinned().by_name, *source.list_tables()} - objects.keys())
    scans = {name: source[name].scan()._engine() for name in tables_named(shortened, names)}
    scans |= moments
    check_open = source._database._handle.check_open
    bound = _Statement(
        connection,
        check_open,
        statement,
        shortened,
        parsed,
        parameters,
        scans,
        names,
        objects,
        running,
    )
    return SelectResult(bound, source.timestamp)


class _Statement:
    """A statement and its scans, which a result shares with its runs.

    Runs do not refer to the result. So Python frees a result with its last reference, and not later
    by the garbage collector.
    """

    def __init__(
        self,
        connection: Connection,
        check_open: Callable[[], None],
        statement: str,
        shortened: str,
        parsed: Any,
        parameters: Any,
        scans: dict[str, EngineScan],
        tables: list[str],
        objects: Mapping[str, Any],
        running: Running,
    ) -> None:
        self.connection = connection
        self.check_open = check_open
        self.statement = statement
        self.shortened = shortened  # the statement with one value of each long IN list
        self.parsed = parsed  # `shortened` as DuckDB parsed it
        self.parameters = parameters
        self.scans = scans
        self.tables = tables
        self.objects = objects
        self.running = running
        rows = {name: scan.rows_held() for name, scan in scans.items()}
        self.planning = {name: Planning(largest=count == max(rows.values())) for name, count in rows.items()}

    @property
    def can_be_prepared(self) -> bool:
        """Whether a plan of the statement is worth keeping.

        With parameters, DuckDB would have to guess their types. With long lists, planning costs as
        much as running.
        """
        return self.shortened is self.statement and not self.parsed.named_parameters

    def refuse(self, error: Any, sources: Sequence[ScanSource], lines_above: int) -> NoReturn:
        """Raise the error of Nyala that replaces an error of DuckDB.

        sources: the statement's scans. If one of them failed, its error is raised.
        lines_above: how many lines the executed text has before the user's statement. They are
            subtracted from line numbers in the message.
        """
        import duckdb

        self.check_open()  # if the store is closed, DuckDB's error about its connection would not help
        if isinstance(error, duckdb.FatalException | duckdb.InternalException):
            self.connection.close()  # after such an error DuckDB executes nothing: the next statement opens another
        columns = [name for scan in self.scans.values() for name in scan.schema.names]
        failures = [source.failure for source in sources]
        failures += [given.failure for given in self.objects.values() if isinstance(given, Feed)]
        ours = our_error(error, failures, self.tables, columns, lines_above)
        raise ours from error


class SelectResult(Result):
    """A SELECT at one moment, which runs whenever a method returns its rows."""

    def __init__(self, bound: _Statement, timestamp: int) -> None:
        super().__init__()
        self._statement = bound
        self.timestamp = timestamp
        # Planning here finds wrong names, and is the first of two plannings (see `Planning`). It reads samples at most.
        # The first read uses this run.
        self._bound: _Run | None = _Run(bound)
        self._bound.plan()

    @lazy_value
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        return _Run(self._statement).reader("SELECT * FROM (\n", "\n) LIMIT 0").schema

    def explain(self) -> SqlExplanation:
        """Run the statement, discard its rows, and return what the scan of each table read and skipped."""
        run = _Run(self._statement)
        for _ in run.reader():
            pass
        return SqlExplanation(run.explanations(), self.plan())

    def analyze(self) -> SqlExplanation:
        """Run the statement, discard its rows, and return what each scan read, and DuckDB's plan with times."""
        run = _Run(self._statement)
        plan = run.explained("EXPLAIN ANALYZE\n")
        return SqlExplanation(run.explanations(), plan)

    def plan(self) -> str:
        """Return DuckDB's plan and the predicates that the scans would apply, without running the statement."""
        run = _Run(self._statement)
        plan = run.explained("EXPLAIN\n")
        pushed = [
            f"{source.scan.name} at {source.scan.scan.timestamp}: the scan applies {' AND '.join(map(str, taken))}"
            for source in run.sources
            if (taken := source.planning.applied)
        ]
        return "\n".join([plan, *pushed])

    def run_within(self, before: str, after: str) -> int:
        """Run a larger statement that contains this one, such as `COPY (…) TO 'file'`.

        before, after: the text of the larger statement before and after this one.
        Returns the number of rows that DuckDB reports for the larger statement.
        """
        run = _Run(self._statement)
        run.execute(before + "\n", "\n" + after)
        ((count, *_),) = run.fetch_rows(None)
        return int(count)

    def _run(self) -> _Run:
        with self._lock:
            run, self._bound = self._bound, None
        return run or _Run(self._statement)

    def _head(self, n: int) -> pa.Table:
        return _Run(self._statement).reader("SELECT * FROM (\n", f"\n) LIMIT {n}").read_all()

    def _count(self) -> int:
        counted = _Run(self._statement).reader(
            "SELECT count(*) FROM (SELECT 1 FROM (\n", f"\n) LIMIT {ROWS_COUNTED + 1})"
        )
        count: int = counted.read_all().column(0)[0].as_py()
        return count


class _Run:
    """One run of a statement, on a session that no other run uses meanwhile."""

    def __init__(self, bound: _Statement) -> None:
        bound.check_open()
        self._statement = bound
        self._lines_above = 0
        self._executed = False
        self.sources = [
            ScanSource(
                scan,
                keep_runs=True,
                planning=bound.planning[name],
                columns=columns_named(bound.shortened, scan.schema.names),
            )
            for name, scan in bound.scans.items()
        ]
        self._key = bound.statement, *(source.planned_by for source in self.sources)
        kept = None if bound.objects else bound.connection.take(self._key)
        self.session = kept or self._opened()
        bound.running.add(self.session)
        for table, source in zip(self.session.tables, self.sources, strict=True):
            table.source = source
        by_name = dict(zip(bound.scans, self.sources, strict=True))
        for table, column, of_table, of_column in self.session.partners:
            by_name[table].partners.append((column, weakref.proxy(by_name[of_table]), of_column))
            by_name[of_table].looked_up.add(of_column)

    def _opened(self) -> Session:
        """Return a new DuckDB session in which the statement's tables and Python variables are registered."""
        bound = self._statement
        session = Session(bound.connection)
        session.tables = [duckdb_table(source) for source in self.sources]
        for name, table, source in zip(bound.scans, session.tables, self.sources, strict=True):
            with source.planning.uncounted():
                self._do(partial(session.cursor.register, name, table))
        for name, given in bound.objects.items():
            self._do(partial(session.cursor.register, name, given))
        schemas = {name: scan.schema for name, scan in bound.scans.items()}
        session.partners = partners_of(session.cursor, bound.shortened, schemas)
        return session

    def plan(self) -> None:
        """Let DuckDB plan the statement, and keep the plan for the run unless a second plan may be better.

        The planning shows which predicates each scan can apply, and how many rows match them. If this
        changes the row counts or predicates for a second planning, the run plans the statement again.

        If the statement has long IN lists, only its tables and columns are checked, because planning
        would cost as much as running.
        """
        bound = self._statement
        if self.session.plan is not None:
            return
        if bound.shortened is not bound.statement:
            with contextlib.suppress(Error):  # without its long list, for example a PIVOT may be wrong
                self._do(
                    lambda: self.session.cursor.execute(
                        _DESCRIBE + bound.shortened, *self._parameters
                    ).fetchall()
                )
                return
        if not bound.can_be_prepared:
            self.execute(_BIND)
            self._executed = False
            return
        self._prepare()
        if any(source.planning.would_change for source in self.sources):
            self.session.plan = None

    def _prepare(self) -> None:
        import duckdb

        self.execute(_PREPARE)
        self._executed = False
        (self.session.plan,) = duckdb.extract_statements(_EXECUTE)

    def all_rows(self) -> list[tuple[Any, ...]]:
        """Run the statement, and return all rows. Uses a prepared plan if the statement can have one."""
        import duckdb

        rows: list[tuple[Any, ...]] | None = None
        if self._statement.can_be_prepared:
            if self.session.plan is None:
                self._prepare()
            self._lines_above = 0
            # In a prepared plan the error of a failed cast has no line number, so the statement runs again without it.
            with contextlib.suppress(duckdb.ConversionException):
                rows = self._do(
                    lambda: self.session.cursor.execute(self.session.plan).fetchall(),
                    but_for=duckdb.ConversionException,
                )
        if rows is None:
            self.execute()
            rows = self.fetch_rows(None)
        self._give_back()
        return rows

    def _give_back(self) -> None:
        """Return the session to the connection, which keeps it for the next run of the statement."""
        self._statement.running.discard(self.session)
        if len(self._statement.statement) <= _KEPT_CHARS_MAX and not self._statement.objects:
            self._statement.connection.give_back(self._key, self.session)

    def execute(self, before: str = "", after: str = "") -> None:
        """Run the statement with a text before it, which ends with a line break, and a text after it."""
        statement = self._begin(before, after)
        self._do(lambda: self.session.cursor.execute(statement, *self._parameters))
        self._executed = True

    def fetch_rows(self, count: int | None) -> list[tuple[Any, ...]]:
        """Return at most `count` next rows; None: all remaining rows."""
        if not self._executed:
            self.execute()
        cursor = self.session.cursor
        rows: list[tuple[Any, ...]] = self._do(
            cursor.fetchall if count is None else partial(cursor.fetchmany, count)
        )
        return rows

    def explained(self, before: str) -> str:
        """Return the plan that DuckDB prints for EXPLAIN. before: `EXPLAIN` or `EXPLAIN ANALYZE`."""
        self.execute(before)
        return "\n".join(str(row[-1]).rstrip("\n") for row in self.fetch_rows(None))

    def explanations(self) -> list[Explanation]:
        """Return what each scan of this run did."""
        return [scan.explanation_of_last_run() for source in self.sources for scan in source.runs]

    def reader(self, before: str = "", after: str = "") -> pa.RecordBatchReader:
        """Return the rows as a stream that raises Nyala's errors in place of DuckDB's.

        before, after: text around the statement, such as "SELECT * FROM (" and ") LIMIT 5".
        """
        statement = self._begin(before, after)
        made: pa.RecordBatchReader = self._do(lambda: self._open_reader(statement))
        self.session.made.append(made)
        return pa.RecordBatchReader.from_batches(made.schema, self._batches(made))

    def _begin(self, before: str, after: str) -> Any:
        """Prepare the scans for a run, and return what DuckDB must execute.

        before, after: text around the statement, or "".
        Returns the statement as DuckDB parsed it, which saves parsing it again. In two cases the
        result is the whole text instead. The first case is a text before or after the statement. The
        second case is a statement with long IN lists: it was parsed with only one value of each list.
        """
        for source in self.sources:
            source.begin()
        self._lines_above = before.count("\n")
        bound = self._statement
        is_whole = bound.shortened is bound.statement
        return before + bound.statement + after if before or after or not is_whole else bound.parsed

    def _open_reader(self, statement: Any) -> Any:
        named = {"params": self._parameters[0]} if self._parameters else {}
        return self.session.cursor.sql(statement, **named).to_arrow_reader(_BATCH_ROWS)

    @property
    def _parameters(self) -> tuple[Any, ...]:
        return () if self._statement.parameters is None else (self._statement.parameters,)

    def _batches(self, made: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        while True:
            try:
                batch = self._do(made.read_next_batch)
            except StopIteration:
                del made
                self._give_back()
                return
            yield batch

    def _do(self, act: Any, but_for: type[Exception] | tuple[()] = ()) -> Any:
        """Call `act`, and raise Nyala's errors in place of DuckDB's, except for errors of the type `but_for`."""
        import duckdb

        try:
            return act()
        except but_for:
            raise
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            if any(source.failure is error for source in self.sources):
                raise
            self._statement.refuse(error, self.sources, self._lines_above)
        except RuntimeError as error:
            if is_signal(error):
                raise KeyboardInterrupt from error
            raise
