"""The common base of `Scan` and `ChangeFeed`: every read returns the same rows.

`PinnedRows` holds an immutable root, which is the state of the store with these rows. As long as an
object holds a root, the root's files stay on disk. The object drops the root when Python frees the
object, when its `Database` is closed, or when nobody has read it for 15 minutes. A read after these
15 minutes raises `HistoryExpiredError`.

A subclass defines the schema and reads the rows. This class converts them to Arrow, pandas, polars and
DuckDB.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Protocol, Self

import pyarrow as pa

from nyala.env import Env
from nyala.errors import HistoryExpiredError
from nyala.optional import need
from nyala.presentation.pickling import pickle_error
from nyala.schema.arrow_values import raising_corruption
from nyala.tablet.state.root import Root, TableState

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl

UNREAD_LIMIT_S: Final = 15 * 60.0
"""Seconds without a read after which the files may be removed."""


class ScannedStore(Protocol):
    """The attributes of a store that a scan or feed uses."""

    env: Env
    root_path: str

    def check_open(self) -> None: ...


class PinnedRows(abc.ABC):
    """Rows of one table that stay readable as long as this object exists.

    Thread-safe. Nothing is read before a method asks for rows.
    """

    _what: ClassVar[str]

    def __init__(self, store: ScannedStore, root: Root, table: TableState) -> None:
        self._store = store
        self._root: Root | None = root
        self._table: TableState | None = table
        self._name = table.name
        self._lock = threading.Lock()
        self._last_read_s = store.env.clock.monotonic_s()

    @property
    def name(self) -> str:
        """The table's name."""
        return self._name

    @property
    @abc.abstractmethod
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in their order."""
        return list(self.schema.names)

    @abc.abstractmethod
    def _read(self, table: TableState) -> Iterator[pa.RecordBatch]:
        """Yield all rows of this scan or feed as Arrow record batches. table: the table's state to read from."""

    @abc.abstractmethod
    def _how_to_repeat(self) -> str:
        """Return the end of an error message: how to get the same rows again."""

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a stream of record batches.

        Returns
        -------
        pyarrow.RecordBatchReader
            Reads in bounded memory, batch by batch.
        """
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table."""
        return pa.Table.from_batches(list(self._batches()), schema=self.schema)

    def collect(self) -> pa.Table:
        """Return all rows as an Arrow table; the same as `to_arrow`."""
        return self.to_arrow()

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """Return all rows as a pandas DataFrame.

        Parameters
        ----------
        **options
            Passed on to `pyarrow.Table.to_pandas`.
        """
        need("pandas")
        rows = self.to_arrow()
        with raising_corruption(rows):
            return rows.to_pandas(**options)

    def to_polars(self) -> pl.DataFrame:
        """Return all rows as a polars DataFrame."""
        polars: Any = need("polars", "polars")
        frame: pl.DataFrame = polars.from_arrow(self.to_arrow())
        return frame

    def to_duckdb(self, con: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """Return the rows as a DuckDB relation.

        Parameters
        ----------
        con
            The DuckDB connection of the relation. Default: DuckDB's default connection.
        """
        from nyala.sql.select.source import duckdb_of

        relation: duckdb.DuckDBPyRelation = duckdb_of(con).from_arrow(self.to_arrow())
        return relation

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return an Arrow C stream, for `pa.table(rows)`, `pl.DataFrame(rows)` and DuckDB's `FROM rows`."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> Any:
        return self.schema.__arrow_c_schema__()

    def __iter__(self) -> NoReturn:
        raise iteration_error(f"a {self._what}", self._what.split()[-1])

    def __reduce__(self) -> NoReturn:
        raise pickle_error(self)

    def __copy__(self) -> Self:
        return self  # any number of threads may share it

    def _release_if_unread(self) -> None:
        """Release the files if nobody has read the rows for 15 minutes."""
        with self._lock:
            if self._store.env.clock.monotonic_s() - self._last_read_s > UNREAD_LIMIT_S:
                self._root = self._table = None

    def _release(self) -> None:
        """Release the files, because the Database is closed."""
        with self._lock:
            self._root = self._table = None

    def _batches(self) -> Iterator[pa.RecordBatch]:
        root, table = self._root_and_table()
        for batch in self._read(table):
            self._note_read()  # keeps the files of a slow consumer
            yield batch
        del root  # until here this generator keeps the files

    def _note_read(self) -> None:
        self._last_read_s = self._store.env.clock.monotonic_s()

    def _root_and_table(self) -> tuple[Root, TableState]:
        """Return the root, which keeps the files, and the table. Raises: StorageError, HistoryExpiredError."""
        self._store.check_open()  # a closed store keeps no files
        with self._lock:
            root, table = self._root, self._table
            self._note_read()
        if root is None or table is None:
            raise HistoryExpiredError(
                f"this {self._what} of {self._name!r} was not read for {UNREAD_LIMIT_S / 60:.0f} minutes and released "
                f"its files: {self._how_to_repeat()}"
            )
        return root, table


def iteration_error(what: str, rows: str) -> TypeError:
    """Return the error for a `for` loop over a table, scan or feed, which are not iterable.

    what: the kind of object, such as "a table". rows: a Python expression for it, such as "table.scan()".
    """
    return TypeError(
        f"{what} is not iterable: `for batch in {rows}.to_reader():` goes through its record batches in bounded "
        f"memory, {rows}.to_arrow().to_pylist() is a list of all rows as dicts, {rows}.to_pandas() a data frame"
    )
