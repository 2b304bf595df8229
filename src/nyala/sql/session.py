"""Executes a text of SQL statements, and holds the transaction between BEGIN and COMMIT.

The text is split at `;`. The first keyword of a statement says which package executes it: select,
change, define, describe or files. BEGIN opens a transaction, and the statements up to COMMIT or
ROLLBACK belong to it. Any other statement is committed by itself.

Invariants
    N1  A statement is refused, before DuckDB sees it, if its keyword is not in `_EXECUTORS`.
    N2  A session has one transaction at most. A statement that fails leaves the transaction open
        and unchanged.

Source: docs/how-to/sql.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

from nyala.env.interrupts import Cancellable
from nyala.errors import Error, InvalidArgumentError
from nyala.sql.context import NO_PARAMETERS, Context, parameters_by_name, with_numbered_parameters
from nyala.sql.result import Result, without_rows
from nyala.sql.rights import Rights
from nyala.sql.select.by_key import look_up
from nyala.sql.select.errors import in_words_of_sql, located
from nyala.sql.select.running import Running, is_signal
from nyala.sql.select.store_only import check_store_only
from nyala.sql.tokens import (
    DEFINES,
    READS,
    WRITES,
    Token,
    TokenReader,
    cached_for_short,
    main_keyword,
    parameters,
    split_statements,
    tokens,
)

if TYPE_CHECKING:
    from nyala.api.database import Database, Snapshot
    from nyala.api.transaction import Transaction

# The transaction ends after this time without a statement. A person thinks longer between statements than a program.
_IDLE_S: Final = 3600.0


class Slot(Protocol):
    """An object in which a session keeps its open transaction."""

    transaction: Transaction | None

    def open(self, transaction: Transaction) -> None: ...

    def clear(self) -> Transaction | None: ...


class TransactionSlot:
    """Keeps the transaction that BEGIN opened in a session. All threads of the session share it."""

    def __init__(self) -> None:
        self.transaction: Transaction | None = None

    def open(self, transaction: Transaction) -> None:
        self.transaction = transaction

    def clear(self) -> Transaction | None:
        found, self.transaction = self.transaction, None
        return found


class SqlSession:
    """One user's statements on a store. Thread-safe: statements run one after another.

    rights: what the statements may read and write, such as files.
    slot: holds the transaction that BEGIN opens; default: a slot of this session.
    transaction: an open transaction, which the caller commits. With it, BEGIN and COMMIT are
        refused.
    source: the snapshot that is read; None: the present.
    """

    def __init__(
        self,
        database: Database,
        rights: Rights,
        *,
        slot: Slot | None = None,
        transaction: Transaction | None = None,
        source: Snapshot | None = None,
    ) -> None:
        self._database = database
        self._rights = rights
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
        """Execute a statement with many rows of parameters at once; None if it must be executed for each row.

        `nyala.sql.change.many` says which statements can be executed at once. Raises: as `execute`.
        """
        from nyala.sql.change.many import statement_of_rows

        with self._lock:
            if not self._rights.files:
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
        """Execute the statements of the text, each when the caller takes its result.

        If a statement fails, a transaction that the text has opened is rolled back.
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
        """Commit the open transaction. Returns its timestamp; None if it has written nothing.

        Raises: ConflictError. The transaction has ended in this case, too.
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
        """Interrupt the running statements of this session; to be called from another thread.

        A statement whose commit has started is not interrupted.
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
                f"{first or reader.tokens[0].text} is not a statement of Nyala's SQL: see 'SQL reference' in the "
                "documentation for those that are"
            )
        if not self._rights.files:
            check_store_only(text)
        self._running.begin()
        if first in READS:
            return executor(context, text)
        try:
            with Cancellable(self._running.check):
                return executor(context, text)
        except RuntimeError as error:
            if is_signal(error):
                raise KeyboardInterrupt from error
            raise
        except (
            Error
        ) as error:  # its text is about the SELECT that DuckDB executed, not about the user's statement
            error.args = (in_words_of_sql(located(str(error), text)), *error.args[1:])
            raise

    def _context(
        self, values: Mapping[str, Any], at: Any, objects: Mapping[str, Any] = NO_PARAMETERS
    ) -> Context:
        return Context(
            self._database,
            self._rights,
            self._transaction,
            values,
            at,
            self._source,
            objects,
            self._running,
        )

    def _control(self, first: str, reader: TokenReader, context: Context) -> Result:
        """Execute BEGIN, COMMIT or ROLLBACK."""
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
        return without_rows(what, moment or self._database.now())


_TRANSACTION_STATEMENTS: Final = {
    "BEGIN": "BEGIN",
    "START": "BEGIN",
    "COMMIT": "COMMIT",
    "END": "COMMIT",
    "ROLLBACK": "ROLLBACK",
    "ABORT": "ROLLBACK",
}


@cached_for_short
def _split(text: str) -> tuple[tuple[str, ...], str, tuple[Token, ...]]:
    found = tokens(text)
    text = with_numbered_parameters(text, found)
    return tuple(split_statements(text)), text, tuple(parameters(tokens(text)))


def _statements(text: Any) -> tuple[tuple[str, ...], str, tuple[Token, ...]]:
    """Return (statements of the text, text, parameters of the text), with `$1`, `$2`, … in place of `?`.

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
    return _split(text)


def _select(context: Context, text: str) -> Result:
    from nyala.sql.select.statement import reads_catalogue

    if reads_catalogue(text):
        from nyala.sql.describe.statement import select

        return select(context, text)
    source = context.readable()
    return look_up(source, text, context.parameters) or context.select(source, text)


def _executor(package: str) -> Callable[[Context, str], Result]:
    """Return a function that imports `nyala.sql.<package>.statement`, and calls its `execute`."""

    def execute(context: Context, text: str) -> Result:
        result: Result = import_module(f"nyala.sql.{package}.statement").execute(context, text)
        return result

    return execute


_PACKAGES: Final = {
    "change": WRITES,
    "define": DEFINES,
    "describe": ("DESCRIBE", "DESC", "SHOW", "EXPLAIN"),
    "files": ("COPY", "ATTACH", "DETACH"),
}
_EXECUTORS: Final[dict[str, Callable[[Context, str], Result]]] = {
    **dict.fromkeys(READS, _select),
    **{word: _executor(package) for package, words in _PACKAGES.items() for word in words},
}
