"""Transactions: they read one snapshot and their own writes, and commit as one batch.

    with db.transaction() as tx:
        a, b = tx["accounts"]["a"], tx["accounts"]["b"]
        tx["accounts"].update([{"id": "a", "sum": a["sum"] - 5}, {"id": "b", "sum": b["sum"] + 5}])

This is snapshot isolation, and the first committer wins: the commit raises `ConflictError` if
another writer changed a written key after the transaction began. Rows that were only read are not
checked, so two transactions that read the same rows and write different ones both commit (write
skew).

Source: docs/design/transactions.md; docs/how-to/transactions.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from nyala.api.readable import SchemaOf
from nyala.api.writable import WritableTable
from nyala.errors import ConflictError, InvalidArgumentError
from nyala.mvcc.timestamp import to_datetime
from nyala.optional import need
from nyala.tablet.state.result import WriteResult
from nyala.tablet.state.root import Root, TableState
from nyala.tablet.write.where_writes import Select
from nyala.tablet.write.write_path import Request

if TYPE_CHECKING:
    from nyala.api.database import Database
    from nyala.sql.result import Result

# Tries of `run` during which other writers can commit.
OPTIMISTIC_TRIES: Final = 3
_Made = TypeVar("_Made")


class Transaction:
    """Reads of one snapshot, and writes that are committed together, from `Database.transaction`.

    Thread-safe. If a row of a write fails, the call raises at once and leaves the transaction as it
    was. Memory: the written rows, and 5,500 bytes for each call that writes; together at most a
    quarter of `memory_limit`.

    Attributes
    ----------
    results
        One `WriteResult` per write, in order, after the commit.

    Examples
    --------
    >>> with db.transaction() as tx:
    ...     tx["metrics"].delete(where="value < 2").deleted
    ...     tx["metrics"].count(), metrics.count()
    1
    (2, 3)
    >>> metrics.count()
    2
    """

    def __init__(self, database: Database, timeout_s: float, message: str | None) -> None:
        self._database = database
        self._open = database._writing().begin(timeout_s)
        self._message = message
        self._closed = False
        self.results: list[WriteResult] = []

    @property
    def timestamp(self) -> int:
        """The snapshot that the transaction reads, a timestamp."""
        return self._open.since

    def _pinned(self) -> Root:
        return self._open.view()[0]

    def table(self, name: str) -> TransactionTable:
        """Return a table as the transaction sees it.

        Raises
        ------
        TableNotFoundError
            The table did not exist when the transaction began.
        TransactionEndedError
            The transaction has ended.
        """
        self._pinned().table(name)
        return TransactionTable(self, name)

    def __getitem__(self, name: str) -> TransactionTable:
        return self.table(name)

    def __contains__(self, name: object) -> bool:
        return name in self._pinned().by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self.list_tables())

    def list_tables(self) -> list[str]:
        """Return the names of the tables that existed when the transaction began, sorted."""
        return sorted(self._pinned().by_name)

    def sql(self, text: str, parameters: Sequence[Any] | dict[str, Any] | None = None) -> Result:
        """Return the result of a SELECT over the tables as the transaction sees them: see `Database.sql`.

        Examples
        --------
        >>> with db.transaction() as tx:
        ...     tx["metrics"].insert([("z", 1, 5.0)]).inserted
        ...     tx.sql("SELECT max(value) FROM metrics").fetchone()
        1
        (5.0,)
        """
        self._pinned()
        need("duckdb", "sql")
        from nyala.sql.rights import of_caller
        from nyala.sql.session import SqlSession

        return SqlSession(self._database, of_caller(), transaction=self).execute(text, parameters)

    def commit(self) -> list[WriteResult]:
        """Commit all writes as one batch, and end the transaction.

        Returns
        -------
        list of WriteResult
            One per write; all have the timestamp of the commit.

        Raises
        ------
        ConflictError
            Another writer changed one of the written keys after the transaction began, or altered
            or dropped one of the written tables. Nothing was written.
        TransactionEndedError
            The transaction has ended before.
        """
        self._closed = True
        self.results = self._open.commit(self._message)
        return self.results

    def rollback(self) -> None:
        """Discard all writes, and end the transaction. May be called twice."""
        self._closed = True
        self._open.roll_back()

    def __enter__(self) -> Transaction:
        self._pinned()
        try:
            self._database._open.enter_block("transaction")
        except BaseException as error:
            if not isinstance(
                error, InvalidArgumentError
            ):  # that one says that the thread is in another block
                self._database._open.leave_block()
            self.rollback()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._database._open.leave_block()
        if kind is not None:
            self.rollback()
        elif not self._closed:
            self.commit()

    def __repr__(self) -> str:
        if self._open.ended:
            return "Transaction (ended)"
        return f"Transaction at {to_datetime(self.timestamp).isoformat()}"


class TransactionTable(WritableTable):
    """A table in a transaction, from `tx["name"]`: it has the methods of `Table` that read and write rows."""

    def __init__(self, transaction: Transaction, name: str) -> None:
        self._transaction = transaction
        self._database = transaction._database
        self._name = name

    def _view(self, at: Any, schema: SchemaOf | None = None) -> tuple[Root, TableState, int]:
        if at is not None:
            raise InvalidArgumentError(
                "a transaction reads the moment of its beginning: to read another moment use "
                f"db[{self._name!r}].scan(at=…)"
            )
        root, now = self._transaction._open.view()
        return root, root.table(self._name), now

    def _interval(
        self, since: Any, until: Any, schema: SchemaOf | None = None
    ) -> tuple[Root, TableState, int, int]:
        raise InvalidArgumentError(
            f"a transaction has no change feed: use db[{self._name!r}].changes(…) after the commit"
        )

    def _check_call(self, call: str, instead: str) -> None:
        self._transaction._open.view()

    def _commit(self, request: Request, collect: bool, message: str | None) -> WriteResult:
        _refuse_message(message)
        return self._transaction._open.write(request, collect=collect)

    def _write_selected(
        self, operation: str, select: Select, collect: bool, message: str | None
    ) -> WriteResult:
        _refuse_message(message)
        return self._transaction._open.write_selected(self._name, operation, select, collect=collect)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"a table of a transaction reads and writes rows only, and has no {name!r}; "
                f"db[{self._name!r}] has the other methods of a table",
                name=name,
                obj=self,
            )

    def __repr__(self) -> str:
        if self._transaction._open.ended:
            return f"TransactionTable {self._name} (the transaction has ended)"
        return f"TransactionTable {self._name}: {', '.join(self.columns)}"


def _refuse_message(message: str | None) -> None:
    if message is not None:
        raise InvalidArgumentError(
            "a transaction is one commit with one message: pass the message to db.transaction(message=…)"
        )


def run(database: Database, function: Callable[[Transaction], _Made], retries: int) -> _Made:
    """Call `function` in a transaction, and again after a conflict: see `Database.run`."""
    attempt = 0
    while True:
        optimistic = attempt < OPTIMISTIC_TRIES
        try:
            with (
                contextlib.nullcontext() if optimistic else database._writing().alone(),
                database.transaction() as tx,
            ):
                made = function(tx)
            return made
        except ConflictError:
            if attempt >= retries:
                raise
        attempt += 1
