"""A transaction's private view of the tables: a snapshot, and the transaction's own writes on top.

T is the timestamp of the snapshot.

    begin     reserve timestamps after T, and pin the history since T
    write     resolve the rows against the private tables, and apply them there
    read      any read of the engine, on the private tables, at the newest private timestamp
    commit    all operations in their order as one batch, after a check for conflicts since T

A private table shares all files and rows of the snapshot's table. Each MemRowSet is copied in O(1);
the copy takes only the transaction's changes. Private inserts go to a new MemRowSet. A DiskRowSet
gets a private DeltaMemStore when the transaction first changes one of its rows. So scans, look-ups,
counts and predicates work in a transaction without extra code.

Invariants
    X1  Private timestamps are reserved from the store's clock, so no other batch has the same.
        Batches up to T are visible in the transaction, later ones are not.
    X2  Nothing of the transaction is visible to others, or logged, before its commit.
    X3  If no key of the write set changed since T, the commit decides each row as the transaction
        did. Otherwise the commit is refused, and nothing changes (first committer wins).
    X4  A statement that fails leaves the private tables as they were.

Memory: the written rows, in the form in which they are logged, and STATEMENT_BYTES per statement.
The sum is at most `bytes_max`.
Source: docs/design/transactions.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np

from nyala.delta.mem_store import DeltaMemStore
from nyala.env.interrupts import Uninterrupted
from nyala.errors import InvalidArgumentError, TransactionEndedError
from nyala.lazy_values import share_lazy_values
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.schema.conversion.row_errors import RowErrors
from nyala.tablet.state.result import Ticket, WriteResult
from nyala.tablet.state.root import Root, TableState, TabletState
from nyala.tablet.write.conditions import choose
from nyala.tablet.write.effects import ResolvedBatch
from nyala.tablet.write.part_commit import commit_in_parts
from nyala.tablet.write.prepare import PreparedOperation, prepare
from nyala.tablet.write.resolve import resolve
from nyala.tablet.write.write_path import (
    Request,
    commit_checked,
    failure,
    plan_apply,
    prepare_request,
    results_of,
)

if TYPE_CHECKING:
    from nyala.rowset.mem_rowset import MemRowSet
    from nyala.tablet.store import Store
    from nyala.tablet.write.pins import Pin

# A transaction reserves two timestamps for each possible statement, together 32 microseconds. It
# takes longer to begin a transaction, so the clock does not run ahead.
STATEMENTS_MAX: Final = 1 << 16
# The Python and Arrow objects of a statement of one row: 5,460 bytes measured (2026-11-29).
STATEMENT_BYTES: Final = 5_500


WriteSet: TypeAlias = "list[tuple[Request, TableState, PreparedOperation]]"
"""The operations of a transaction in their order, each prepared for its private table."""

# `commit_requests` does not copy larger data, because it is written to files before the call ends.
_BORROWED_BYTES_MIN: Final = 64 << 20


class Commit(Protocol):
    """The type of a function that commits the writes of a transaction.

    since:   the snapshot from which the writes were computed.
    collect: leave failing rows out. Otherwise one failing row stops the whole commit.
    Raises: ConflictError, WriteError, StorageError.
    """

    def __call__(
        self, written: WriteSet, since: int, message: str | None, collect: bool
    ) -> list[WriteResult]: ...


class CommitParts(Protocol):
    """The type of `part_commit.commit_in_parts` without its parameter `store`."""

    def __call__(
        self, requests: Sequence[Request], seen: TableState, since: int, between: Callable[[], None]
    ) -> list[WriteResult] | None: ...


class SnapshotStore(Protocol):
    """The type of the store that a transaction works on: the methods that the transaction calls."""

    def check_writable(self) -> None: ...

    def new_memory(self, table: TableState) -> MemRowSet: ...


@dataclass(frozen=True, eq=False)
class PrivateRoot(Root):
    """The tables that an open transaction sees.

    These are the tables of its snapshot. If the transaction has written to a table, its own copy of
    the table, with these writes, is here instead.

    base: the snapshot's root. This reference keeps the snapshot's files from being deleted.
    """

    base: Root | None = None


class OpenTransaction:
    """The state of one transaction. Thread-safe: statements run one after another."""

    def __init__(
        self,
        store: SnapshotStore,
        pin: Pin,
        root: Root,
        bytes_max: int,
        commit: Commit,
        commit_parts: CommitParts | None = None,
    ) -> None:
        self._store = store
        self._commit = commit
        self._commit_parts = commit_parts
        self._pin = pin
        self._base = root
        self._root = root
        self._private: set[int] = set()  # ids of tables with private state
        self._deltas: set[DeltaMemStore] = set()  # the private ones of DiskRowSets
        self._now = pin.timestamp
        self._bytes_max = bytes_max
        self._bytes = 0
        self._written: WriteSet = []
        self._lock = threading.RLock()
        self._ended = ""
        pin.on_idle = weakref.WeakMethod(self._forget)

    @property
    def since(self) -> int:
        """The timestamp of the snapshot that the transaction reads."""
        return self._pin.timestamp

    @property
    def ended(self) -> bool:
        return bool(self._ended)

    def view(self) -> tuple[Root, int]:
        """Return the root and the timestamp at which the transaction reads now.

        Raises: TransactionEndedError.
        """
        with self._lock:
            self._check()
            return self._root, self._now

    def write(self, request: Request, *, collect: bool) -> WriteResult:
        """Write rows by key. Raises: the errors of `write_path.write`; TransactionEndedError."""
        return self.write_together([request], collect=collect)[0]

    def write_together(self, requests: Sequence[Request], *, collect: bool = False) -> list[WriteResult]:
        """Execute operations on one table in their order, all or nothing.

        Raises: the errors of `write`.
        """
        return self._run(
            requests,
            lambda table: [prepare_request(table, request) for request in requests],
            collect=collect,
        )

    def commit_requests(
        self, requests: Sequence[Request], *, between: Callable[[], None] = lambda: None
    ) -> list[WriteResult]:
        """Commit operations on one table, and end the transaction.

        The operations were computed from the transaction's snapshot, and it must not have written
        before. Unlike `write_together`, the call does not keep the rows in memory for reads of the
        transaction, because it ends the transaction at once. So it costs less, and the
        transaction's limit of memory for writes (`bytes_max`) does not apply. Large operations are
        written to files part by part (`part_commit`).

        requests: the operations; the keys of updates and deletes must be distinct.
        between: called after each part and before the commit. If it raises, nothing changes.
        Raises: the errors of `commit`; WriteError if a row fails. The transaction ends in any case.
        """
        assert not self._written
        with self._statement():
            how = "failed to commit"
            try:
                tables = [self._base.table(request.table) for request in requests]
                if self._commit_parts is not None:
                    done = self._commit_parts(requests, tables[0], self.since, between)
                    if done is not None:
                        how = "was committed"
                        return done
                written = [
                    (request, table, prepare_request(table, request, borrow_above_bytes=_BORROWED_BYTES_MIN))
                    for request, table in zip(requests, tables, strict=True)
                ]
                between()
                results = self._commit(written, self.since, None, False)
                how = "was committed"
                return results
            finally:
                self._end(how)

    def write_selected(
        self,
        name: str,
        operation: str,
        select: Callable[[TableState, int], tuple[Any, RowErrors]],
        *,
        collect: bool = False,
    ) -> WriteResult:
        """Select rows and write them by the operation `operation`, on the table `name`.

        select: returns the rows to write, as in `where_writes` (`ToUpdate`, `ToDelete`).
        Raises: the errors of `write`.
        """

        def prepared(table: TableState) -> PreparedOperation:
            rows, errors = select(table, self._now)
            return prepare(table, operation, rows, ignore=False, errors=errors)

        request = Request(name, operation, None)
        return self._run([request], lambda table: [prepared(table)], collect=collect)[0]

    def commit(self, message: str | None = None) -> list[WriteResult]:
        """Commit all writes as one batch, and end. Return one result per write.

        message: stored with the commit.
        Raises: ConflictError, StorageError. The transaction ends in any case.
        """
        with self._statement():
            written, since = self._written, self.since
            if not written:
                self._end("was committed")
                return []
            how = "failed to commit"
            try:
                # collect=True: the statements have already reported the rows that failed.
                results = self._commit(written, since, message, True)
                how = "was committed"
                return results
            finally:
                self._end(how)

    def roll_back(self) -> None:
        """Discard all writes, and end. Do nothing if the transaction has ended."""
        with self._lock:
            if not self._ended:
                self._end("was rolled back")

    def _end(self, how: str) -> None:
        self._ended = how
        self._pin.release()
        self._forget()

    def _forget(self) -> None:
        """Release the written rows, and the snapshot's files."""
        self._written = []
        self._root = self._base = Root(self._base.version, {})

    @contextlib.contextmanager
    def _statement(self) -> Iterator[None]:
        """Context manager for one statement of the transaction.

        Waits until the statements of other threads have ended. The transaction's timeout cannot end
        it during the statement.

        Raises: TransactionEndedError.
        """
        with self._lock:
            self._check()
            with self._pin.busy():
                yield

    def _check(self) -> None:
        """Raise TransactionEndedError if the transaction has ended or was idle for too long."""
        if not self._ended and not self._pin.use():
            self._end(
                f"was idle for more than {self._pin.timeout_s:g} s and was rolled back; "
                "db.transaction(timeout=…) sets this limit"
            )
        if self._ended:
            raise TransactionEndedError(
                f"this transaction {self._ended}: begin another one with db.transaction()"
            )
        self._store.check_writable()

    def _run(
        self,
        requests: Sequence[Request],
        prepared: Callable[[TableState], list[PreparedOperation]],
        *,
        collect: bool,
    ) -> list[WriteResult]:
        with self._statement():
            table = self._private_table(requests[0].table)
            operations = [
                operation
                if request.condition is None
                else choose(table, operation, request.condition, self._now)
                for request, operation in zip(requests, prepared(table), strict=True)
            ]
            requests = [dataclasses.replace(request, condition=None) for request in requests]
            resolved = resolve(table, operations, at=self._now)
            if resolved.failed and not collect:
                raise failure(resolved, requests)
            nbytes = self._bytes + sum(operation.nbytes for operation in operations) + STATEMENT_BYTES
            if nbytes > self._bytes_max:
                raise InvalidArgumentError(
                    f"the writes of this transaction take {nbytes / 1e6:,.0f} MB, and its limit is "
                    f"{self._bytes_max / 1e6:,.0f} MB: nothing of this call was written. Commit the earlier "
                    "writes first, write the rows in one call without a transaction, or raise memory_limit"
                )
            if self._now - self.since >= 2 * STATEMENTS_MAX:
                raise InvalidArgumentError(
                    f"this transaction has {STATEMENTS_MAX:,} statements, which is the maximum: commit it, "
                    "and begin another one"
                )
            with Uninterrupted():
                self._apply(resolved)
                self._bytes = nbytes
                self._written += [
                    (request, table, operation)
                    for request, operation in zip(requests, operations, strict=True)
                ]
            return results_of(requests, [(resolved, list(range(len(requests))))], self.since)

    def _private_table(self, name: str) -> TableState:
        """Return the transaction's own copy of a table. The first write to the table creates it."""
        table = self._root.table(name)
        if table.id in self._private:
            return table
        made = {tablet.id: self._private_tablet(table, tablet) for tablet in table.tablets}
        self._install(made)
        self._private.add(table.id)
        return self._root.table(name)

    def _private_tablet(self, table: TableState, tablet: TabletState) -> TabletState:
        frozen = tuple(memory.copy(self.since) for memory in (*tablet.frozen, tablet.memory))
        private = dataclasses.replace(tablet, memory=self._store.new_memory(table), frozen=frozen)
        share_lazy_values(tablet, private, ("tree",))
        return private

    def _install(self, changed: Mapping[int, TabletState]) -> None:
        root = self._root.with_tablets(changed)
        self._root = PrivateRoot(root.version, root.tables, root.dropped, self._base)

    def _apply(self, resolved: ResolvedBatch) -> None:
        """Apply the changes of one statement to the transaction's own copy of the table."""
        self._make_private(resolved)
        additions = [addition for effect in resolved.effects for addition in plan_apply(resolved, effect)]
        self._now += 2  # as the store's clock does (C4 of `mvcc.hybrid_clock`)
        for addition in additions:
            addition.apply(self._now)

    def _make_private(self, resolved: ResolvedBatch) -> None:
        """Copy the DiskRowSets that a statement changes. A copy has a DeltaMemStore of its own.

        So only the transaction sees the changes.
        """
        used = {int(code) for effect in resolved.effects for code in np.unique(effect.codes) if code >= 0}
        changed: dict[int, TabletState] = {}
        for code in used:
            ordinal, rowset = resolved.rowsets[code]
            if not isinstance(rowset, DiskRowSet) or rowset.deltas in self._deltas:
                continue
            own = dataclasses.replace(rowset, deltas=rowset.deltas.copy())
            self._deltas.add(own.deltas)
            tablet = resolved.table.tablets[ordinal]
            tablet = changed.get(tablet.id, tablet)
            rowsets = tuple(own if each is rowset else each for each in tablet.rowsets)
            changed[tablet.id] = dataclasses.replace(tablet, rowsets=rowsets)
            resolved.rowsets[code] = ordinal, own
        if changed:
            self._install(changed)


def begin(store: Store, *, timeout_s: float, bytes_max: int) -> OpenTransaction:
    """Begin a transaction on the store's newest state, and wait until this state is durable.

    timeout_s: how long the transaction may be idle before it ends.
    bytes_max: the memory that its writes may take.
    Raises: StorageError.
    """
    with Uninterrupted():
        with store.commit_lock:
            store.check_writable()
            pin = store.pins.add(store.clock.reserve(2 * STATEMENTS_MAX + 2), timeout_s)
            root = store.root
            ticket = Ticket(store.marks.applied, store.log.appended.offset)
        store.finish(ticket)  # a user may act on what the transaction reads, so it must be durable

    def commit(written: WriteSet, since: int, message: str | None, collect: bool) -> list[WriteResult]:
        return commit_checked(
            store,
            [request for request, _, _ in written],
            [(table, operation) for _, table, operation in written],
            since=since,
            collect=collect,
            message=message,
        )

    return OpenTransaction(store, pin, root, bytes_max, commit, partial(commit_in_parts, store))
