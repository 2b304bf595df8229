"""Python's DB-API 2.0 (PEP 249) for a store: what pandas, polars and SQLAlchemy call.

    connection = nyala.dbapi.connect("./store")
    cursor = connection.execute("SELECT host, value FROM metrics WHERE value > ?", [1])
    cursor.fetchall(), cursor.fetch_arrow_table()

A transaction begins at the first statement that reads or writes rows, and ends at `commit` or
`rollback`. With `autocommit=True` each statement is committed by itself. Statements that change
tables, such as CREATE TABLE, cannot be part of a transaction. Such a statement is refused if the
open transaction has written rows. Otherwise it ends the transaction.

Source: PEP 249; docs/how-to/db-api-and-sqlalchemy.md.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Literal, NoReturn, TypeVar

import pyarrow as pa

import nyala.errors as errors
from nyala.api.database import Database
from nyala.api.database import connect as open_store
from nyala.optional import need
from nyala.schema.expressions.nodes import col
from nyala.sql.result import Result
from nyala.sql.rights import ProgramRights
from nyala.sql.session import SqlSession
from nyala.sql.tokens import DEFINES, READS, WRITES, main_keyword, split_statements, tokens

__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "TypeCode",
    "TypeObject",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]

_Made = TypeVar("_Made")

apilevel: Final = "2.0"
threadsafety: Final = 2
"""Threads may share the module and connections; threads that share a connection share its transaction."""
paramstyle: Final = "qmark"
"""`?` with a sequence. `$name` with a dict works too."""

# Statements that begin a transaction.
_WRITES: Final = frozenset((*WRITES, "COPY"))
_READS: Final = frozenset((*READS, "EXPLAIN"))
# Statements that are committed at once.
CHANGES_OF_TABLES: Final = frozenset((*DEFINES, "ATTACH", "DETACH"))


# -------------------------------------------------------------------------------------------------- errors


class Warning(Exception):
    """Exists because PEP 249 requires it. Nyala raises no warnings."""


class Error(Exception):
    """The base class of the errors of this module. `__cause__` is the error of `nyala.errors`."""


class InterfaceError(Error):
    """A closed connection or cursor was used, or a method was called out of order."""


class DatabaseError(Error):
    """The base class of the errors of the store."""


class DataError(DatabaseError):
    """A value does not fit its column or its type."""


class OperationalError(DatabaseError):
    """A conflict, an ended transaction, or a failure of the file system or bucket."""


class IntegrityError(DatabaseError):
    """A duplicate key, NULL in a required column, or a row outside of all partitions."""


class InternalError(DatabaseError):
    """The store's files are damaged."""


class ProgrammingError(DatabaseError):
    """The statement or an argument is wrong: syntax, an unknown table or column, a wrong parameter."""


class NotSupportedError(DatabaseError):
    """The statement is valid, but not possible here."""


# The first entry whose class is that of the error decides.
_CLASSES: Final[tuple[tuple[type[errors.Error], type[DatabaseError]], ...]] = (
    (errors.InvalidValueError, DataError),
    (errors.WriteError, IntegrityError),
    (errors.CorruptionError, InternalError),
    (errors.ConflictError, OperationalError),
    (errors.TransactionEndedError, OperationalError),
    (errors.LockedError, OperationalError),
    (errors.HistoryExpiredError, OperationalError),
    (errors.ReadOnlyError, OperationalError),
    (errors.StorageError, OperationalError),
    (errors.TableNotFoundError, ProgrammingError),
    (errors.TableExistsError, ProgrammingError),
    (errors.ColumnNotFoundError, ProgrammingError),
    (errors.SchemaError, ProgrammingError),
    (errors.InvalidArgumentError, ProgrammingError),
)
_INTEGRITY_CODES: Final = frozenset((errors.NULL, errors.MISSING_COLUMN))


def _error_class(error: errors.Error) -> type[DatabaseError]:
    if isinstance(error, errors.InvalidValueError) and error.errors is not None:
        codes = set(error.errors["code"].to_pylist())
        return IntegrityError if codes <= _INTEGRITY_CODES else DataError
    if type(error.__cause__).__name__ in ("ConversionException", "OutOfRangeException"):
        return DataError  # DuckDB could not compute a value
    return next((ours for theirs, ours in _CLASSES if isinstance(error, theirs)), DatabaseError)


@contextlib.contextmanager
def _mapped() -> Iterator[None]:
    """Translate errors of Nyala in the `with` block to the error classes that PEP 249 (DB-API) defines."""
    try:
        yield
    except errors.Error as error:
        raise _error_class(error)(str(error)) from error


# -------------------------------------------------------------------------------------------------- types


class TypeObject:
    """A type object of PEP 249. It is equal to the type codes of the SQL types that belong to it."""

    def __init__(self, name: str, *types: str) -> None:
        self._name = name
        self._types = frozenset(types)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TypeCode):
            return other.kind in self._types
        return self is other

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return self._name


class TypeCode(str):
    """The SQL type of a column of a result, such as `BIGINT` or `DECIMAL(15,2)`.

    It is equal to one of STRING, BINARY, NUMBER and DATETIME, unless the type is nested.
    """

    __slots__ = ()

    @property
    def kind(self) -> str:
        """The type without its parameters, such as `DECIMAL`; "" for a list."""
        return "" if self.endswith("]") else self.partition("(")[0]

    def __eq__(self, other: object) -> bool:
        return other == self if isinstance(other, TypeObject) else str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


STRING: Final = TypeObject("STRING", "VARCHAR", "UUID")
BINARY: Final = TypeObject("BINARY", "BLOB")
NUMBER: Final = TypeObject(
    "NUMBER", "BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT",
    "UINTEGER", "UBIGINT", "FLOAT", "DOUBLE", "DECIMAL",
)  # fmt: skip
DATETIME: Final = TypeObject("DATETIME", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "INTERVAL")
ROWID: Final = TypeObject("ROWID")
"""Equal to no type code: a store has no row ids."""

_SQL_NAMES: Final = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "uint8": "UTINYINT",
    "uint16": "USMALLINT",
    "uint32": "UINTEGER",
    "uint64": "UBIGINT",
    "halffloat": "FLOAT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "large_string": "VARCHAR",
    "string_view": "VARCHAR",
    "null": "INTEGER",
}


def _type_code(given: pa.DataType) -> TypeCode:
    """Return the SQL type for an Arrow type."""
    if pa.types.is_dictionary(given):
        return _type_code(given.value_type)
    if pa.types.is_decimal(given):
        return TypeCode(f"DECIMAL({given.precision},{given.scale})")
    if pa.types.is_timestamp(given):
        return TypeCode("TIMESTAMP" if given.tz is None else "TIMESTAMP WITH TIME ZONE")
    if pa.types.is_date(given):
        return TypeCode("DATE")
    if pa.types.is_time(given):
        return TypeCode("TIME")
    if pa.types.is_interval(given) or pa.types.is_duration(given):
        return TypeCode("INTERVAL")
    if "binary" in str(given):
        return TypeCode("BLOB")
    if pa.types.is_nested(given) and hasattr(given, "value_type"):
        return TypeCode(f"{_type_code(given.value_type)}[]")
    return TypeCode(_SQL_NAMES.get(str(given), str(given).upper()))


Date = dt.date
Time = dt.time
Timestamp = dt.datetime
Binary = bytes


def DateFromTicks(ticks: float) -> dt.date:
    """Return the local date of a Unix time in seconds."""
    return dt.date(*time.localtime(ticks)[:3])


def TimeFromTicks(ticks: float) -> dt.time:
    """Return the local time of day of a Unix time in seconds."""
    return dt.time(*time.localtime(ticks)[3:6])


def TimestampFromTicks(ticks: float) -> dt.datetime:
    """Return the local date and time, without a zone, of a Unix time in seconds."""
    return dt.datetime(*time.localtime(ticks)[:6])


# -------------------------------------------------------------------------------------------------- connection


def connect(
    database: str | bytes | os.PathLike[str] | Database, *, autocommit: bool = False, **options: Any
) -> Connection:
    """Open a connection to a store.

    Parameters
    ----------
    database
        The path of the store, or an open `Database`, which stays open when the connection is closed.
    autocommit
        Commit each statement by itself. Default: transactions, as PEP 249 requires.
    options
        Options of `nyala.connect` for a path, such as `read_only=True`.

    Returns
    -------
    Connection
        Close it with `close()`. As a context manager it commits or rolls back, and closes.

    Raises
    ------
    OperationalError
        The store cannot be opened.
    ProgrammingError
        An option is invalid.

    Examples
    --------
    >>> import nyala.dbapi
    >>> with nyala.dbapi.connect(db) as connection:
    ...     connection.execute("SELECT count(*) FROM metrics WHERE value > ?", [1]).fetchone()
    (2,)
    """
    need("duckdb", "sql")
    if isinstance(database, Database):
        if options:
            raise ProgrammingError(
                f"the options {', '.join(sorted(options))} are for a path: an open Database already has its options"
            )
        return Connection(database, autocommit, owns=False)
    with _mapped():
        return Connection(open_store(database, **options), autocommit, owns=True)


class Connection:
    """A connection to a store. Made by `connect`; threads may share it.

    Attributes
    ----------
    autocommit
        Whether each statement is committed by itself. It can be set while no transaction is open.

    Examples
    --------
    >>> import nyala.dbapi
    >>> connection = nyala.dbapi.connect(db)
    >>> connection.execute("SELECT max(value) FROM metrics").fetchall()
    [(3.0,)]
    >>> connection.rollback()
    """

    Warning = Warning
    Error = Error
    InterfaceError = InterfaceError
    DatabaseError = DatabaseError
    DataError = DataError
    OperationalError = OperationalError
    IntegrityError = IntegrityError
    InternalError = InternalError
    ProgrammingError = ProgrammingError
    NotSupportedError = NotSupportedError

    def __init__(self, database: Database, autocommit: bool, *, owns: bool) -> None:
        self._database = database
        self._owns = owns
        self._session = SqlSession(database, ProgramRights(None))
        self._lock = threading.RLock()
        self._has_written = False
        self._ended = ""  # why the transaction has ended, until rollback()
        self._closed = False
        self._autocommit = bool(autocommit)

    @property
    def database(self) -> Database:
        """The open store."""
        self._check_open()
        return self._database

    @property
    def autocommit(self) -> bool:
        return self._autocommit

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        with self._lock:
            if self._session.in_transaction and value != self._autocommit:
                raise ProgrammingError("autocommit cannot change in a transaction: commit or roll back first")
            self._autocommit = bool(value)

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._session.in_transaction

    def cursor(self) -> Cursor:
        """Return a new cursor."""
        self._check_open()
        return Cursor(self)

    def execute(self, operation: str, parameters: Any = None) -> Cursor:
        """Execute a statement with a new cursor, and return the cursor."""
        return self.cursor().execute(operation, parameters)

    def executemany(self, operation: str, seq_of_parameters: Iterable[Any]) -> Cursor:
        """Execute a statement once for each item of `seq_of_parameters`, with a new cursor."""
        return self.cursor().executemany(operation, seq_of_parameters)

    def commit(self) -> None:
        """Commit the transaction, if one is open.

        Raises
        ------
        OperationalError
            Another writer changed one of the written keys: nothing was written, and the transaction
            has ended. Or the store has ended the transaction, because it was idle: call `rollback()`.
        """
        self._check_open()
        with self._lock, _mapped(), self._noticing_end():
            if self._session.in_transaction:
                self._has_written = False
                self._session.commit()

    def rollback(self) -> None:
        """Discard the transaction, if one is open.

        If the store has ended an idle transaction, statements fail until this method is called.
        """
        self._check_open()
        with self._lock, _mapped():
            self._has_written, self._ended = False, ""
            self._session.roll_back()

    def close(self) -> None:
        """Discard the transaction and close the connection; may be called twice."""
        with self._lock, _mapped():
            if not self._closed:
                self._session.close()
                self._closed = True
                if self._owns:
                    self._database.close()

    def __enter__(self) -> Connection:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "in a transaction" if self.in_transaction else "open"
        return f"Connection to {self._database.path} ({state})"

    # ---------------------------------------------------------------------------------------- inside

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the connection is closed: connect again")

    def _execute(self, operation: str, parameters: Any) -> Result:
        return self._run(operation, lambda: self._session.execute(operation, parameters))

    def _execute_many(self, operation: str, rows: list[Any]) -> list[int]:
        """Execute the statement for each item of `rows`. Returns the numbers of changed rows."""
        result = self._run(operation, lambda: self._session.execute_many(operation, rows)) if rows else None
        if result is not None:
            return [result.rowcount]
        with self._one_transaction():
            return [self._execute(operation, each).rowcount for each in rows]

    @contextlib.contextmanager
    def _one_transaction(self) -> Iterator[None]:
        """With autocommit, commit all statements of the block as one transaction."""
        with self._lock:
            if not self._autocommit or self._session.in_transaction:
                yield
                return
            self._autocommit = False
            try:
                yield
                self.commit()
            except BaseException:
                self.rollback()
                raise
            finally:
                self._autocommit = True

    def _has_greater(self, table: str, column: str, value: int) -> bool:
        """Whether the column contains a value greater than `value`. Cheap for the first key column."""

        def look() -> bool:
            source = self._session._transaction or self._database
            greater = source.table(table).scan(columns=[column], where=col(column) > value, limit=1)
            return bool(greater.to_arrow().num_rows)

        return self._run("SELECT", look)

    def _run(self, operation: str, execute: Callable[[], _Made]) -> _Made:
        """Call `execute` in the transaction that the operation needs. Raises: errors of this module."""
        self._check_open()
        with self._lock, _mapped(), self._noticing_end():
            self._prepare(operation)
            try:
                return execute()
            finally:
                self._has_written &= self._session.in_transaction  # the text may have ended the transaction

    @contextlib.contextmanager
    def _noticing_end(self) -> Iterator[None]:
        """Raise an OperationalError if the store ends the transaction during the `with` block.

        Every later statement or commit raises the same error, until the program calls `rollback`.
        Otherwise the later statements would be committed without the earlier ones.
        """
        if self._ended:
            raise OperationalError(self._ended)
        try:
            yield
        except errors.TransactionEndedError as error:
            self._session.roll_back()
            self._has_written = False
            why = re.split("[;:]", str(error))[0]
            self._ended = (
                f"{why}: nothing of it was written. Call rollback() of the connection, then execute all its "
                "statements again"
            )
            raise OperationalError(self._ended) from error

    def _prepare(self, operation: str) -> None:
        """Begin a transaction before the statements in `operation`, if they need one (PEP 249).

        Without autocommit, statements that read or write rows need one, except in a read-only store.
        A statement that changes tables, such as CREATE TABLE, cannot run inside a transaction. So a
        transaction that has written no rows is ended before it.
        Raises: NotSupportedError, without autocommit, if statements in `operation` or earlier in the
        transaction write rows, and another one in `operation` changes tables.
        """
        if not isinstance(operation, str):
            raise ProgrammingError(f"execute takes the text of a statement, not {operation!r}")
        keywords = {main_keyword(tokens(text)) for text in split_statements(operation)}
        changes = sorted(keywords & CHANGES_OF_TABLES)
        if changes and keywords & _WRITES and not self._autocommit:
            raise NotSupportedError(
                f"{changes[0]} is committed at once and cannot be rolled back, so it cannot share a text with "
                "statements that write rows: execute it by itself, or use autocommit"
            )
        if changes and self._session.in_transaction:
            if self._has_written:
                raise NotSupportedError(
                    f"{changes[0]} cannot be part of a transaction that has written rows: "
                    "commit or roll back first"
                )
            self._session.roll_back()
        if self._autocommit or changes or self._database.read_only:
            return
        if keywords & (_READS | _WRITES) and not self._session.in_transaction:
            self._session.begin()
        self._has_written |= bool(keywords & _WRITES)


class Cursor:
    """Executes statements and returns their rows. Made by `Connection.cursor`; for one thread at a time.

    Attributes
    ----------
    connection
        The connection that made the cursor.
    arraysize
        How many rows `fetchmany` returns by default: 1.
    rowcount
        The number of rows that the last statement changed; -1 for statements that change no rows.
    lastrowid
        Always None. To get the keys of inserted rows, use `RETURNING`.

    Examples
    --------
    >>> import nyala.dbapi
    >>> cursor = nyala.dbapi.connect(db).cursor()
    >>> cursor.execute("SELECT host, value FROM metrics ORDER BY value LIMIT 2").fetchmany(5)
    [('a', 1.0), ('a', 2.0)]
    >>> [(name, str(code)) for name, code, *_ in cursor.description]
    [('host', 'VARCHAR'), ('value', 'DOUBLE')]
    """

    lastrowid: None = None

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.arraysize = 1
        self._result: Result | None = None
        self._rows: Iterator[tuple[Any, ...]] | None = None
        self._rowcount = -1
        self._closed = False

    # ---------------------------------------------------------------------------------------- execute

    def execute(self, operation: str, parameters: Any = None) -> Cursor:
        """Execute a statement, and return this cursor.

        Parameters
        ----------
        operation
            One statement, or several that `;` separates; the rows are those of the last.
        parameters
            A sequence for `?`, or a dict for `$name`.

        Raises
        ------
        ProgrammingError
            The statement is wrong.
        IntegrityError
            A row breaks a rule of its table. Nothing of the statement was written.
        OperationalError
            The transaction has ended, or the store failed.
        """
        self._check_open()
        self._forget()
        result = self.connection._execute(operation, _parameters(parameters))
        self._result, self._rowcount = result, result.rowcount
        return self

    def executemany(self, operation: str, seq_of_parameters: Iterable[Any]) -> Cursor:
        """Execute a statement once for each item of `seq_of_parameters`.

        With autocommit, all items are committed together. Otherwise, if an item fails, the items
        before it stay in the open transaction until `rollback`. `INSERT … VALUES (?, …)`, and
        UPDATE and DELETE by key, are executed once with all items, which costs much less.

        Returns
        -------
        Cursor
            This cursor; `rowcount` is the sum.
        """
        self._check_open()
        self._forget()
        rows = [_parameters(each) for each in seq_of_parameters]
        counts = self.connection._execute_many(operation, rows)
        self._rowcount = sum(counts) if all(count >= 0 for count in counts) else -1
        return self

    def callproc(self, procname: str, parameters: Sequence[Any] = ()) -> NoReturn:
        """Raise NotSupportedError: a store has no stored procedures."""
        raise NotSupportedError("a store has no stored procedures")

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """Do nothing: parameters need no sizes."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Do nothing: values are returned whole."""

    # ---------------------------------------------------------------------------------------- rows

    @property
    def description(self) -> list[tuple[str, TypeCode, None, None, None, None, None]] | None:
        """The columns of the rows: (name, type code, five times None). None for a statement without rows."""
        result = self._result
        if result is None or result.is_count:
            return None
        with _mapped():
            schema = result.schema
        return [(each.name, _type_code(each.type), None, None, None, None, None) for each in schema] or None

    @property
    def rowcount(self) -> int:
        return self._rowcount

    @property
    def rownumber(self) -> None:
        """None: the position is not known."""
        return None

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row, or None after the last."""
        rows = self._remaining()
        with _mapped():
            return next(rows, None)

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """Return at most `size` next rows (default: `arraysize`); an empty list after the last."""
        rows = self._remaining()
        with _mapped():
            return list(itertools.islice(rows, self.arraysize if size is None else size))

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the remaining rows."""
        if self._rows is None:
            return self._all_rows("fetchall", Result.fetchall)
        with _mapped():
            return list(self._rows)

    def __iter__(self) -> Cursor:
        return self

    def __next__(self) -> tuple[Any, ...]:
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row

    def fetch_arrow_table(self) -> pa.Table:
        """Return all rows as an Arrow table. Call it before any other fetch method."""
        return self._all_rows("fetch_arrow_table", Result.to_arrow)

    def fetch_arrow_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a stream of record batches. Call it before any other fetch method."""
        return self._all_rows("fetch_arrow_reader", Result.to_reader)

    def fetchdf(self) -> Any:
        """Return all rows as a pandas DataFrame. Call it before any other fetch method."""
        return self._all_rows("fetchdf", Result.to_pandas)

    def close(self) -> None:
        """Close the cursor; may be called twice. `rowcount` stays."""
        self._result = self._rows = None
        self._closed = True

    def __enter__(self) -> Cursor:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        self.close()
        return False

    def __repr__(self) -> str:
        return f"Cursor of {self.connection!r}"

    # ---------------------------------------------------------------------------------------- inside

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the cursor is closed: connection.cursor() makes another")
        self.connection._check_open()

    def _forget(self) -> None:
        self._result, self._rows, self._rowcount = None, None, -1

    def _with_rows(self) -> Result:
        self._check_open()
        if self._result is None or self._result.is_count or not self._result.columns:
            raise ProgrammingError("there are no rows: execute a statement that returns rows first")
        return self._result

    def _remaining(self) -> Iterator[tuple[Any, ...]]:
        result = self._with_rows()
        if self._rows is None:
            self._rows = iter(result)
        return self._rows

    def _all_rows(self, method: str, read: Callable[[Result], _Made]) -> _Made:
        """Return all rows, in the form that `read` returns. method: the name of the caller, for an error."""
        result = self._with_rows()
        if self._rows is not None:
            raise InterfaceError(f"{method} returns all rows: call it before other fetch methods")
        self._rows = iter(())
        with _mapped():
            return read(result)


def _parameters(given: Any) -> Any:
    if given is None or isinstance(given, dict):
        return given or None
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ProgrammingError(f"parameters are a sequence for ? or a dict for $name, not {given!r}")
    return list(given) or None
