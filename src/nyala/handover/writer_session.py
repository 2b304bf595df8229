"""Executes the requests of one connection, in the writer.

    begin    begin a transaction: reserve timestamps, and pin the history since then (a pin keeps it)
    hold     keep all other writers out for at most HOLD_MAX_S (`LocalWriter.alone`)
    call     execute a call of a method of `LocalWriter` (`calls`)

All other requests, such as commits of jobs, are executed by `commits`.

Invariants
    WS1 Pins and locks end when the client disconnects or dies. The client disconnects when its
        transaction is idle for too long.
    WS2 The thread that serves the connection takes and releases the locks.

Source: docs/design/processes-and-locks.md, "A second process that writes".
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from nyala.errors import StorageError
from nyala.handover.calls import answer_call
from nyala.handover.commits import answer_request
from nyala.handover.local_writer import LocalWriter
from nyala.tablet.write.transaction import OpenTransaction

# A client may keep other writers out for this time.
HOLD_MAX_S: Final = 10.0


class WriterSession:
    """Answers the requests of one connection, in the process that writes the store.

    When the connection ends, the session rolls back its open transaction and releases its locks.
    Implements `channel.Session`.
    """

    def __init__(self, writer: Callable[[], LocalWriter | None]) -> None:
        """Create a session. `writer` returns the writer; None while the store is being closed."""
        self._writer = writer
        self._transaction: OpenTransaction | None = None
        self._locks = contextlib.ExitStack()
        self._held_until_s: float | None = None

    def answer(
        self, request: dict[str, Any], attachments: Sequence[bytes]
    ) -> tuple[dict[str, Any], Sequence[bytes]]:
        writer = self._writer()
        if writer is None:
            raise StorageError("the store is being closed; try again")
        what = request.get("do")
        if what == "call":
            try:
                transaction = self._transaction
                pinned = transaction is not None and not transaction.ended
                return answer_call(writer, request, attachments, pinned=pinned)
            finally:
                if request.get("name") == "commit_set":
                    self._end_transaction()
        if what == "begin":
            return self._begin(writer), []
        if what == "hold":
            self._hold(writer)
            return {}, []
        return answer_request(writer.store, request)

    def waits_s(self) -> float:
        writer = self._writer()
        if writer is None:
            return 0.0
        if self._held_until_s is not None:
            return max(self._held_until_s - writer.store.env.clock.monotonic_s(), 0.0)
        return 0.0 if self._transaction is None else math.inf

    def end(self) -> None:
        self._end_transaction()
        self._locks.close()

    def _begin(self, writer: LocalWriter) -> dict[str, Any]:
        self._end_transaction()
        self._transaction = writer.begin(math.inf)
        return {"since": self._transaction.since, "applied": writer.store.marks.applied}

    def _end_transaction(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.roll_back()

    def _hold(self, writer: LocalWriter) -> None:
        if self._held_until_s is None:
            self._locks.enter_context(writer.alone())
            self._held_until_s = writer.store.env.clock.monotonic_s() + HOLD_MAX_S
