"""Executes a text of SQL statements, and holds the transaction between BEGIN and COMMIT.

    text ──split at ;──► statements ──first keyword──► select | change | define | describe | files

A statement outside a transaction is committed by itself. BEGIN opens a transaction
(`Database.transaction`); the statements after it see its writes, until COMMIT or ROLLBACK.

Invariants
    N1  Only the kinds of statement in `_EXECUTORS` are executed; any other is refused before DuckDB sees it.
    N2  A session has one transaction at most. A statement that fails leaves it open and as it was.

Source: docs/how-to/sql.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from nyala.env.interrupts import Cancellable
from nyala.errors import Error, InvalidArgumentError
from nyala.sql.access import Access
from nyala.sql.context import NO_PARAMETERS, Context, numbered, parameters_by_name
from nyala.sql.result import FixedResult, Result
from nyala.sql.select.by_key import look_up
from nyala.sql.select.errors import in_words_of_sql, located
from nyala.sql.select.running import Running, is_signal
from nyala.sql.select.store_only import check_store_only
from nyala.sql.tokens import Token, TokenReader, main_keyword, parameters, split_statements, tokens

if TYPE_CHECKING:
    from nyala.api.database import Database, Snapshot
    from nyala.api.transaction import Transaction

__all__ = ["SqlSession"]

# A person may think longer about the next statement than a program.
_IDLE_S: Final = 3600.0
_REMEMBERED_CHARS: Final = 4096


class Slot(Protocol):
    """Holds the open transaction of a session."""

    transaction: Transaction | None

    def open(self, transaction: Transaction) -> None: ...

    def clear(self) -> Transaction | None: ...


class TransactionSlot:
    """Holds the transaction of one session, whatever thread uses it."""

    def __init__(self) -> None:
        self.transaction: Transaction | None = None

    def open(self, transaction: Transaction) -> None:
        self.transaction = transaction

    def clear(self) -> Transaction | None:
        found, self.transaction = self.transaction, None
        return found


class SqlSession:
    """One user's statements on a store. Thread-safe: statements run one after another.

    access: what the statements may reach besides the store.
    slot: where BEGIN puts the transaction; default: in the session.
    transaction: an open one, which the caller commits. BEGIN and COMMIT are refused then.
    source: the snapshot that is read instead of the present.
    """

    def __init__(
        self,
        database: Database,
        access: Access,
        *,
        slot: Slot | None = None,
        transaction: Transaction | None = None,
        source: Snapshot | None = None,
    ) -> None:
        self._database = database
        self._access = access
        self._source = source
        self._slot = slot or TransactionSlot()
        self._callers = transaction
        self._lock = threading.RLock()
        self._running = Running()

    @property
    def in_transaction(self) -> bool:
        return self._transaction is not None

    @property
    def _transaction(self) -> Transaction | None:
        return self._callers or self._slot.transaction

    def execute_many(self, text: str, rows: Sequence[Any]) -> Result | None:
        """Execute a statement with many rows of parameters as one statement; None if it has another form.

        The forms are those of `nyala.sql.change.many`. Cost: per column and not per row.
        Raises: as `execute`.
        """
        from nyala.sql.change.many import statement_of_rows

        with self._lock:
            if not self._access.files:
                check_store_only(text)
            found = statement_of_rows(self._context(NO_PARAMETERS, None), text, rows)
            if found is None:
                return None
            statement, name, data = found
            try:
                return self._execute(statement, NO_PARAMETERS, None, {name: data})
            except Error as error:
                error.args = (located(str(error), text), *error.args[1:])
                raise

    def execute(self, text: str, parameters: Any = None, *, at: Any = None) -> Result:
        """Execute the statements of the text, and return the result of the last one.

        parameters: a list for `?`, or a dict for `$name`.
        at: the moment that SELECT statements read.
        Raises: as `Database.sql`.
        """
        result = None
        for each in self.execute_each(text, parameters, at=at):
            result = each
        if result is None:
            raise InvalidArgumentError("the text has no statement")
        return result

    def execute_each(self, text: str, parameters: Any = None, *, at: Any = None) -> Iterator[Result]:
        """Execute the statements of the text, each when its result is taken.

        If one of them fails, a transaction that the text has begun is rolled back.
        """
        statements, whole, found = _statements(text)
        values = parameters_by_name(whole, found, parameters) if found or parameters else NO_PARAMETERS
        before = self._slot.transaction
        for statement in statements:
            with self._lock:
                try:
                    result = self._execute(statement, values, at)
                except BaseException:
                    if self._slot.transaction is not before:
                        self.roll_back()
                    raise
            yield result

    def begin(self) -> None:
        """Open a transaction. Raises: InvalidArgumentError if one is open; ReadOnlyError."""
        with self._lock:
            if self._transaction is not None:
                raise InvalidArgumentError(
                    "a transaction is open already: COMMIT or ROLLBACK it before BEGIN"
                )
            begun = self._database.transaction(timeout=_IDLE_S)
            try:
                self._slot.open(begun)
            except BaseException:
                begun.rollback()
                raise

    def commit(self) -> int | None:
        """Commit the open transaction, and return its timestamp; None if there was nothing to commit.

        Raises: ConflictError; the transaction has ended then, too.
        """
        with self._lock:
            ending = self._end("COMMIT")
            results = ending.commit() if ending is not None else []
            return results[0].timestamp if results else None

    def roll_back(self) -> None:
        """Discard the open transaction, if there is one."""
        with self._lock:
            ending = self._end("ROLLBACK")
            if ending is not None:
                ending.rollback()

    close = roll_back

    def interrupt(self) -> None:
        """Let the SELECTs of this session that run now fail, also those inside of statements that write.

        Called from another thread than the one that waits for them. A write that has begun to commit still ends.
        """
        self._running.interrupt()

    def _end(self, keyword: str) -> Transaction | None:
        if self._callers is not None:
            raise InvalidArgumentError(
                f"{keyword} is not possible here: the program's `with db.transaction()` ends this transaction"
            )
        return self._slot.clear()

    def _execute(
        self, text: str, values: Mapping[str, Any], at: Any, objects: Mapping[str, Any] = NO_PARAMETERS
    ) -> Result:
        reader = TokenReader(text)
        first = main_keyword(reader.tokens)
        context = self._context(values, at, objects)
        if first in _TRANSACTION_STATEMENTS:
            return self._control(first, reader, context)
        executor = _EXECUTORS.get(first)
        if executor is None:
            raise InvalidArgumentError(
                f"{first or reader.tokens[0].text} is not a statement of Nyala's SQL: see the SQL reference "
                "(docs/reference/sql.md) for those that are"
            )
        if not self._access.files:
            check_store_only(text)
        self._running.begin()
        if first in _READS:
            return executor(context, text)
        try:
            with Cancellable(self._running.check):
                return executor(context, text)
        except RuntimeError as error:
            if is_signal(error):
                raise KeyboardInterrupt from error
            raise
        except Error as error:  # DuckDB was given other texts than the user's
            error.args = (in_words_of_sql(located(str(error), text)), *error.args[1:])
            raise

    def _context(
        self, values: Mapping[str, Any], at: Any, objects: Mapping[str, Any] = NO_PARAMETERS
    ) -> Context:
        return Context(
            self._database,
            self._access,
            self._transaction,
            values,
            at,
            self._source,
            objects,
            self._running,
        )

    def _control(self, first: str, reader: TokenReader, context: Context) -> Result:
        """BEGIN, COMMIT and ROLLBACK."""
        reader.next()
        _ = reader.take("TRANSACTION") or reader.take("WORK")
        reader.finish()
        what = _TRANSACTION_STATEMENTS[first]
        moment = None
        if what == "BEGIN":
            context.check_writable("BEGIN")
            self.begin()
        elif self._transaction is None:
            raise InvalidArgumentError(f"{what} without a transaction: BEGIN opens one")
        elif what == "COMMIT":
            moment = self.commit()
        else:
            self.roll_back()
        return FixedResult(what, pa.table({}), moment or self._database.now())


_TRANSACTION_STATEMENTS: Final = {
    "BEGIN": "BEGIN",
    "START": "BEGIN",
    "COMMIT": "COMMIT",
    "END": "COMMIT",
    "ROLLBACK": "ROLLBACK",
    "ABORT": "ROLLBACK",
}


@lru_cache(maxsize=64)
def _remembered(text: str) -> tuple[tuple[str, ...], str, tuple[Token, ...]]:
    found = tokens(text)
    text = numbered(text, found)
    return tuple(split_statements(text)), text, tuple(parameters(tokens(text)))


def _statements(text: Any) -> tuple[tuple[str, ...], str, tuple[Token, ...]]:
    """Return the statements of the text, the whole text with numbered parameters, and these parameters.

    Raises: InvalidArgumentError.
    """
    if not isinstance(text, str):
        raise InvalidArgumentError(f"sql takes the text of a statement, not {text!r}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(
                f"the statement is not valid Unicode at character {error.start}: it was read in the wrong encoding"
            ) from None
    return _remembered(text) if len(text) <= _REMEMBERED_CHARS else _remembered.__wrapped__(text)


def _select(context: Context, text: str) -> Result:
    from nyala.sql.select.statement import reads_catalogue

    if reads_catalogue(text):
        from nyala.sql.describe.statement import select

        return select(context, text)
    source = context.readable()
    return look_up(source, text, context.parameters) or context.select(source, text)


def _executor(package: str) -> Callable[[Context, str], Result]:
    """Return the `execute` of `nyala.sql.<package>.statement`, which is imported at the first call."""

    def execute(context: Context, text: str) -> Result:
        result: Result = import_module(f"nyala.sql.{package}.statement").execute(context, text)
        return result

    return execute


_PACKAGES: Final = {
    "change": ("INSERT", "UPSERT", "REPLACE", "UPDATE", "DELETE", "MERGE", "TRUNCATE"),
    "define": ("CREATE", "ALTER", "DROP", "UNDROP", "COMMENT"),
    "describe": ("DESCRIBE", "DESC", "SHOW", "EXPLAIN"),
    "files": ("COPY", "ATTACH", "DETACH"),
}
_READS: Final = ("SELECT", "FROM", "VALUES", "TABLE", "WITH", "PIVOT", "UNPIVOT", "SUMMARIZE", "(")
_EXECUTORS: Final[dict[str, Callable[[Context, str], Result]]] = {
    **dict.fromkeys(_READS, _select),
    **{word: _executor(package) for package, words in _PACKAGES.items() for word in words},
}
