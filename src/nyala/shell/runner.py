"""Runs the statements of a session in a worker thread, so that Ctrl-C can interrupt them.

    main thread      submits work, waits for it, and receives Ctrl-C
    worker thread    calls the engine

While a statement runs, Ctrl-C raises no exception. It sets a flag. The main thread then sends an
interrupt to the session every 50 ms, until the statement ends. So the statement's outcome is known:
it was interrupted and changed nothing, or it has a result.

Source: DuckDB, `duckdb_interrupt`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nyala.sql.rights import ProgramRights
from nyala.sql.select.running import StatementInterrupted
from nyala.sql.session import SqlSession

if TYPE_CHECKING:
    import pyarrow as pa

    from nyala.api.database import Database
    from nyala.sql.result import Result

__all__ = ["Cancelled", "Runner"]

T = TypeVar("T")

# The interval in which the main thread checks for Ctrl-C, and interrupts the session again.
_CHECK_INTERVAL_S: Final = 0.05


class Cancelled(Exception):
    """Ctrl-C stopped the statements that the shell was running. The message is for the user."""

    def __init__(self, message: str = "Cancelled.") -> None:
        super().__init__(message)


class Runner:
    """A session on a store, and the worker thread that runs its statements."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._session = SqlSession(database, ProgramRights(None))
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="nyala-shell")
        self._cancelled = threading.Event()

    @property
    def in_transaction(self) -> bool:
        return self._session.in_transaction

    @property
    def is_cancelled(self) -> bool:
        """Whether the user pressed Ctrl-C since the block of `interruptible` began."""
        return self._cancelled.is_set()

    def execute(self, statement: str, at: int | None) -> Result:
        """Execute one statement, and return its result.

        Raises the errors of `Database.sql`. Raises Cancelled if Ctrl-C interrupted the statement,
        which then changed nothing.
        """
        return self.call(lambda: self._session.execute(statement, at=at))

    def batches(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a result. The worker thread reads them.

        Raises the errors of `Database.sql`, or Cancelled after Ctrl-C.
        """
        while True:
            batch = self.call(lambda: next(reader, None))
            if batch is None:
                return
            yield batch
            self.check()

    def call(self, act: Callable[[], T]) -> T:
        """Call `act` in the worker thread, and return its result.

        Raises the errors of `act`, or Cancelled after Ctrl-C.
        """
        self.check()
        future = self._worker.submit(act)
        while not wait([future], _CHECK_INTERVAL_S).done:
            if self._cancelled.is_set():
                self._session.interrupt()
        try:
            return future.result()
        except StatementInterrupted as error:
            raise Cancelled from error

    def check(self) -> None:
        """Raise Cancelled if the user pressed Ctrl-C."""
        if self._cancelled.is_set():
            raise Cancelled

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Make Ctrl-C interrupt the statements that run in the `with` block.

        In the block, Ctrl-C raises no KeyboardInterrupt in the main thread. The statements run in
        the worker thread, and `call` raises Cancelled after it has interrupted them.
        Has no effect if the `with` block is not in the main thread, which alone receives signals.
        """
        self._cancelled.clear()
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._handle_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _handle_interrupt(self, number: int, frame: Any) -> None:
        self._cancelled.set()

    def close(self) -> bool:
        """Roll back an open transaction, and end the thread. Return whether there was a transaction."""
        was_open = self.in_transaction
        try:
            if was_open:
                self._worker.submit(self._session.close).result()
        finally:
            self._worker.shutdown()
        return was_open
