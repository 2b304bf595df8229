"""Runs the statements of one session in a thread of its own, so that Ctrl-C can interrupt them.

    main thread      submits work, waits, and hears Ctrl-C
    worker thread    calls the engine

While a statement runs, Ctrl-C raises nothing. It sets a flag, and the main thread interrupts the session until the
worker has ended. So the outcome of a statement is known: it was interrupted and changed nothing, or it has its result.

Source: DuckDB, `duckdb_interrupt`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nyala.sql.access import ProgramAccess
from nyala.sql.select.running import StatementInterrupted
from nyala.sql.session import SqlSession

if TYPE_CHECKING:
    import pyarrow as pa

    from nyala.api.database import Database
    from nyala.sql.result import Result

__all__ = ["Cancelled", "Runner"]

T = TypeVar("T")

# How often a waiting main thread looks for Ctrl-C, and interrupts again.
_LOOK_S: Final = 0.05


class Cancelled(Exception):
    """Ctrl-C ended a text. Its text says what has happened."""

    def __init__(self, message: str = "Cancelled.") -> None:
        super().__init__(message)


class Runner:
    """A session on a store, and the thread that runs its statements."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._session = SqlSession(database, ProgramAccess(None))
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="nyala-shell")
        self._cancelled = threading.Event()

    @property
    def in_transaction(self) -> bool:
        return self._session.in_transaction

    @property
    def is_cancelled(self) -> bool:
        """Whether Ctrl-C came since `hearing` began."""
        return self._cancelled.is_set()

    def execute(self, statement: str, at: int | None) -> Result:
        """Execute one statement. Raises: as `Database.sql`; Cancelled, and then nothing has changed."""
        return self.call(lambda: self._session.execute(statement, at=at))

    def batches(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        """Yield the batches, each read in the worker thread. Raises: as `Database.sql`; Cancelled."""
        while True:
            batch = self.call(lambda: next(reader, None))
            if batch is None:
                return
            yield batch
            self.check()

    def call(self, act: Callable[[], T]) -> T:
        """Call `act` in the worker thread, and return its result. Raises: what it raises; Cancelled."""
        self.check()
        future = self._worker.submit(act)
        while not wait([future], _LOOK_S).done:
            if self._cancelled.is_set():
                self._session.interrupt()
        try:
            return future.result()
        except StatementInterrupted as error:
            raise Cancelled from error

    def check(self) -> None:
        """Raises: Cancelled after Ctrl-C."""
        if self._cancelled.is_set():
            raise Cancelled

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """Let Ctrl-C interrupt the work of the block instead of the main thread, if this is the main thread."""
        self._cancelled.clear()
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._hear)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _hear(self, number: int, frame: Any) -> None:
        self._cancelled.set()

    def close(self) -> bool:
        """Roll back an open transaction, and return whether there was one. A second call does nothing."""
        was_open = self.in_transaction
        try:
            if was_open:
                self._worker.submit(self._session.close).result()
        finally:
            self._worker.shutdown()
        return was_open
