"""The result of a statement: its rows as tuples, Arrow, pandas or polars.

    Result                 the base class
    ├─ SelectResult        a SELECT, which DuckDB runs whenever rows are read (`select/result.py`)
    └─ FixedResult         rows that exist already: the result of a write, a look-up by key, or a SHOW

Source: docs/how-to/sql.md; Python's DB-API for the fetch methods.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from nyala.errors import bounded, counted
from nyala.lazy_values import LazyValues
from nyala.mvcc.timestamp import to_datetime
from nyala.optional import need
from nyala.presentation.explanation import Explanation
from nyala.presentation.previews import html_preview, preview, row_count_text, without_errors
from nyala.schema.arrow_values import raising_corruption
from nyala.sql.python_values import python_rows

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from nyala.tablet.state.result import WriteResult

HEAD_ROWS = 10
_PLAN_CHARS = 20_000
_ITERATED_ROWS = 1000


class SqlExplanation:
    """What one run of a statement read, and DuckDB's plan of it.

    `scans` has one `Explanation` for each time that a table was read: columns, predicates, and what
    was skipped.
    """

    def __init__(self, scans: list[Explanation], plan: str) -> None:
        self.scans = scans
        self.plan = plan

    def to_dict(self) -> dict[str, Any]:
        return {"scans": [scan.to_dict() for scan in self.scans], "plan": self.plan}

    def __str__(self) -> str:
        return "\n".join([*map(str, self.scans), bounded(self.plan, _PLAN_CHARS)])

    __repr__ = __str__


class Rows(Protocol):
    """The rows of one run of a statement."""

    def all_rows(self) -> list[tuple[Any, ...]]: ...

    def fetch_rows(self, count: int | None) -> list[tuple[Any, ...]]:
        """Return at most `count` next rows; None: all remaining rows."""

    def reader(self) -> pa.RecordBatchReader: ...


class Result(LazyValues, ABC):
    """The rows of a statement. Made by `Database.sql`, `Snapshot.sql` and `Transaction.sql`; thread-safe.

    A SELECT reads one moment and runs whenever a method reads its rows. Any other statement has
    already run.

    Attributes
    ----------
    statement
        The kind of the statement, such as `"SELECT"`, `"INSERT"` or `"CREATE TABLE"`.
    rowcount
        Rows inserted, changed, deleted, or copied to a file; -1 for SELECT and statements without rows.
    write
        The `WriteResult` of a statement that was committed; otherwise None.
    timestamp
        The moment that the rows are from: every batch up to this timestamp is visible. Tables with
        a moment of their own, as in `FROM t AT (…)`, are read at that moment.

    Examples
    --------
    >>> result = db.sql("SELECT host, value FROM metrics WHERE value > ? ORDER BY value", [1])
    >>> result.fetchone()
    ('a', 2.0)
    >>> result.to_arrow().num_rows
    2
    """

    statement = "SELECT"
    is_count = False
    rowcount = -1
    write: WriteResult | None = None
    timestamp: int
    _names_moments = False  # whether the statement has moments of its own, as in `FROM t AT (…)`

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._rows: Rows | None = None  # the run of fetchone and fetchmany

    # ---------------------------------------------------------------------------------------- rows

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the remaining rows as tuples. The next `fetchone` begins again with the first row."""
        with self._lock:
            run, self._rows = self._rows, None
            return self._run().all_rows() if run is None else run.fetch_rows(None)

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row as a tuple, or None after the last."""
        rows = self.fetchmany(1)
        return rows[0] if rows else None

    def fetchmany(self, size: int = 1) -> list[tuple[Any, ...]]:
        """Return at most `size` next rows as tuples; an empty list after the last."""
        with self._lock:
            self._rows = self._rows or self._run()
            return self._rows.fetch_rows(size)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Iterate over all rows as tuples; reads a thousand at a time."""
        run = self._run()
        while rows := run.fetch_rows(_ITERATED_ROWS):
            yield from rows

    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table."""
        return self.to_reader().read_all()

    arrow = to_arrow

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a stream of record batches, which DuckDB computes as they are read."""
        return self._run().reader()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Arrow's stream protocol: `pa.table(result)`, `pl.DataFrame(result)`, `table.upsert(result)`."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> Any:
        return self.schema.__arrow_c_schema__()

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """Return all rows as a pandas DataFrame; `options` go to `pyarrow.Table.to_pandas`."""
        rows = self.to_arrow()
        with raising_corruption(rows):
            return rows.to_pandas(**options)

    df = to_pandas

    def to_polars(self) -> pl.DataFrame:
        """Return all rows as a polars DataFrame."""
        polars: Any = need("polars", "polars")
        frame: pl.DataFrame = polars.from_arrow(self.to_arrow())
        return frame

    # ---------------------------------------------------------------------------------------- description

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""

    @abstractmethod
    def explain(self) -> SqlExplanation:
        """Run the statement, discard its rows, and return what the scan of each table read and skipped."""

    @without_errors
    def __repr__(self) -> str:
        head = self._head(HEAD_ROWS)
        count = head.num_rows if head.num_rows < HEAD_ROWS else self._count()
        return f"{self._title()}, {row_count_text(count)}\n{preview(head)}"

    def _repr_html_(self) -> str:
        return html_preview(self._title(), self._head)

    def _title(self) -> str:
        return "Result" if self._names_moments else f"Result at {to_datetime(self.timestamp).isoformat()}"

    # ---------------------------------------------------------------------------------------- inside

    @abstractmethod
    def _run(self) -> Rows:
        """Begin to run the statement, and return the rows of this run."""

    @abstractmethod
    def _head(self, n: int) -> pa.Table:
        """Return at most `n` rows."""

    @abstractmethod
    def _count(self) -> int:
        """Return the number of rows. Counting may stop after `ROWS_COUNTED` + 1 rows.

        So a result above `ROWS_COUNTED` means only that there are more than `ROWS_COUNTED` rows.
        """


class FixedResult(Result):
    """A result whose rows exist already, such as the result of a write or a SHOW.

    is_count: the statement returns no rows, and `table` has one row with the number of changed
        rows.
    """

    def __init__(
        self,
        statement: str,
        table: pa.Table,
        timestamp: int,
        *,
        rowcount: int = -1,
        write: WriteResult | None = None,
        plan: str = "",
        is_count: bool = False,
    ) -> None:
        super().__init__()
        self._table = table
        self.is_count = is_count
        self._plan = plan
        self.statement = statement
        self.rowcount = rowcount
        self.write = write
        self.timestamp = timestamp

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        return self._table.schema

    def explain(self) -> SqlExplanation:
        """Return how the rows were computed. Runs nothing."""
        return SqlExplanation([], self._plan or self.statement)

    def _run(self) -> Rows:
        return _FixedRows(self._table)

    def _title(self) -> str:
        if self.statement == "SELECT":
            return super()._title()
        return f"Result of {self.statement}" + (f": {counted(self.rowcount, 'row')}" if self.is_count else "")

    def __repr__(self) -> str:
        if self.is_count or not self._table.num_columns:
            return self._title()
        return super().__repr__()

    def _head(self, n: int) -> pa.Table:
        return self._table.slice(0, n)

    def _count(self) -> int:
        return int(self._table.num_rows)


def without_rows(statement: str, timestamp: int) -> FixedResult:
    """Return the result of a statement that has no rows, such as CREATE TABLE."""
    return FixedResult(statement, pa.table({}), timestamp)


class _FixedRows:
    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._next = 0

    def all_rows(self) -> list[tuple[Any, ...]]:
        return python_rows(self._table)

    def fetch_rows(self, count: int | None) -> list[tuple[Any, ...]]:
        found = self._table.slice(self._next, count)
        self._next += found.num_rows
        return python_rows(found)

    def reader(self) -> pa.RecordBatchReader:
        return self._table.to_reader()
