"""The writer in another process of this machine, for a process that shares its store.

    Database ─┬─ reads ──► SharedReader                       the log, replayed by this process
              └─ writes ─► RemoteWriter ── socket ──► lock holder: writer_session ─► LocalWriter

Each call of `RemoteWriter` becomes a request (`calls`) to the process that holds the store's lock.
Without such a process, this one takes the lock and becomes the writer (`become_writer`), and its
`LocalWriter` executes the call.

Invariants
    RW1 A call that changes rows, or the tables that exist, has an idempotency key. So it is
        executed once, although it is sent again when the process that executed it has ended.
    RW2 After a call this process reads what the call wrote: a view waits until it has reached the
        timestamp of the result.
    RW3 A call ends after a bounded time, also if the holder was stopped: TAKE_TIMEOUT_S until the
        holder takes the call, ANSWER_TIMEOUT_S or MAINTENANCE_TIMEOUT_S until it answers.

Threads: any. Source: docs/design/processes-and-locks.md, "A second process that writes".
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from nyala.catalog.store_lock import StoreLock
from nyala.env import Env
from nyala.env.clock import Clock
from nyala.errors import (
    ConflictError,
    Error,
    LockedError,
    StorageError,
    TableNotFoundError,
)
from nyala.handover import calls
from nyala.handover.channel import Connection, NoWriter, WriterEndedError, send
from nyala.handover.local_writer import LocalWriter, Progress, SeenTable, TableDraft
from nyala.rowset.mem_rowset import MemRowSet
from nyala.schema.limits import Limits
from nyala.tablet.alter import Draft, Step
from nyala.tablet.recovery.bootstrap import Replayer
from nyala.tablet.recovery.reader_store import ReaderStore
from nyala.tablet.state.idempotency import call_key
from nyala.tablet.state.result import WriteResult
from nyala.tablet.state.root import Root, TableState
from nyala.tablet.tables.creation import NewTable
from nyala.tablet.write.pins import HistoryPins, Pin
from nyala.tablet.write.transaction import OpenTransaction, WriteSet
from nyala.tablet.write.where_writes import Select
from nyala.tablet.write.write_path import Request

if TYPE_CHECKING:
    import pyarrow as pa

    from nyala.partition.model import Partition, PartitionSchema
    from nyala.tablet.maintenance import MaintenanceStatus

__all__ = ["RemoteMaintenance", "RemoteWriter", "SharedReader", "Writer", "settings_of_writer"]

logger = logging.getLogger("nyala.handover.commits")

_Made = TypeVar("_Made")

TAKE_TIMEOUT_S: Final = 30.0
ANSWER_TIMEOUT_S: Final = 600.0
MAINTENANCE_TIMEOUT_S: Final = 24 * 3600.0
# How long a call waits for a process that holds the lock and does not listen: it starts or ends.
START_TIMEOUT_S: Final = 60.0
_RETRY_S: Final = 0.02
# How often a call is sent again after its executor ended; limits a call that kills every process.
_AGAIN_MAX: Final = 5
# How often an alteration is computed again because the table was altered at the same time.
_ALTERED_MAX: Final = 20
# How long a view waits for this process's own writes.
_VISIBLE_TIMEOUT_S: Final = 30.0
# The most keys that one call lets the writer forget; others are forgotten after some minutes.
_ANSWERED_MAX: Final = 1000
# How often idle transactions and scans are looked for.
_TICK_S: Final = 1.0
# A view that nobody asked for during this time is forgotten: it keeps files that the writer replaced.
_VIEW_IDLE_S: Final = 60.0
_SLOW_CALLS: Final = frozenset({"compact", "vacuum", "purge", "copy_table", "clone_table", "repartition"})


class SharedReader(ReaderStore):
    """The view of a process that shares the store with its writer. It sees this process's own writes (RW2)."""

    def __init__(
        self, env: Env, path: str, memory_limit_bytes: int, replay_limit_bytes: int, limits: Limits
    ) -> None:
        self._own = 0  # the newest write of this process
        self._viewed_s = math.inf
        super().__init__(env, path, memory_limit_bytes, replay_limit_bytes, limits)

    def note_written(self, timestamp: int) -> None:
        """Note a write of this process that later views must have."""
        with self._lock:
            self._own = max(self._own, timestamp)

    def view(self) -> tuple[Root, int]:
        own = self._own
        self._viewed_s = self.env.clock.monotonic_s()
        root, published = super().view()
        if published >= own:
            return root, published
        clock = self.env.clock
        deadline_s = clock.monotonic_s() + _VISIBLE_TIMEOUT_S
        while published < own:
            if clock.monotonic_s() > deadline_s:
                with self._lock:
                    self._own = min(self._own, published)  # it may be lost: later reads do not wait for it
                raise StorageError(
                    f"the process that writes {self.root_path!r} did not make the last write of this process visible "
                    f"within {_VISIBLE_TIMEOUT_S:g} s: check that process, and its disk",
                    path=self.root_path,
                )
            clock.sleep_s(0.001)
            root, published = super().view()
        return root, published

    def check_writable(self) -> None:
        self.check_open()
        self.env.files.check_bound()

    def forget_if_idle(self) -> None:
        """Do `forget` if there was no view for a minute."""
        if self.env.clock.monotonic_s() - self._viewed_s > _VIEW_IDLE_S:
            self.forget()

    def forget(self) -> None:
        """Free the memory, and the lease when the last scan ends. The next view loads again."""
        with self._lock:
            self._loaded = False
            self._viewed_s = math.inf
            self._root = Root(self._version, {})
            self._replayer = Replayer(self._root, self._relieved)

    def new_memory(self, table: TableState) -> MemRowSet:
        return MemRowSet(table.codec, table.schema)


def settings_of_writer(env: Env, directory: str) -> Mapping[str, Any]:
    """Return the settings of the process that writes the store (`LocalWriter.settings`).

    Raises: NoWriter if no process listens; LockedError if the one that holds the lock is of another
        version or does not answer.
    """
    try:
        request = calls.encode_call("settings", {}, None, calls.Outgoing(env, directory))
        answer, _ = send(env, directory, request, (), TAKE_TIMEOUT_S)
    except StorageError as error:
        holder = StoreLock(env, directory).holder()
        who = "another process" if holder is None else f"process {holder.pid}"
        raise LockedError(
            f"the store {directory} is already written by {who}, and cannot be shared with it: {error}. Or open it "
            "with read_only=True"
        ) from error
    settings: Mapping[str, Any] = answer["done"]
    return settings


class RemoteWriter:
    """The writer in another process; its methods are those of `LocalWriter` that the public API calls."""

    def __init__(
        self,
        reader: SharedReader,
        limits: Limits,
        become_writer: Callable[[], LocalWriter],
        every_tick: Callable[[], None],
    ) -> None:
        """Start a thread, which ends idle transactions and forgets an idle view.

        become_writer: takes the lock, and returns the writer of this process; raises LockedError if
            another process has the lock.
        every_tick: called by the thread each second.
        """
        self._reader = reader
        self._env = reader.env
        self._path = reader.root_path
        self._become_writer = become_writer
        self._held = threading.local()  # the connection of a thread inside `alone`
        self._pins = HistoryPins(reader.env.clock)
        self._stop = threading.Event()
        work = (self._env.clock, self._stop, self._pins, reader, every_tick)
        threading.Thread(target=_housekeeping, args=work, name="nyala-sharing", daemon=True).start()
        self._answered: deque[str] = deque(maxlen=_ANSWERED_MAX)  # keys that the writer may forget
        self.limits = limits

    def close(self) -> None:
        """End the thread and the transactions of this process, with what they hold in the writer."""
        self._stop.set()
        with self._pins.lock:
            pins = list(self._pins.held)
        for pin in pins:
            pin.release()

    @property
    def memory_limit_bytes(self) -> int:
        return self._reader.memory_limit_bytes

    def check_writable(self) -> None:
        self._reader.check_writable()

    # ------------------------------------------------------------------------------------------ rows

    def write(
        self, requests: Sequence[Request], *, collect: bool = False, message: str | None = None
    ) -> list[WriteResult]:
        root, _ = self._reader.view()
        sent = []
        for request in requests:
            try:
                sent.append(calls.converted(root.table(request.table), request))
            except Error as error:
                if len(requests) > 1:  # the caller's line does not show which request is meant
                    error.args = (f"{request.operation} into {request.table!r}: {error}", *error.args[1:])
                raise
        return self._written("write", {"requests": sent, "collect": collect, "message": message})

    def write_selected(
        self,
        name: str,
        operation: str,
        select: Select,
        *,
        collect: bool = False,
        message: str | None = None,
    ) -> WriteResult:
        table = self._reader.view()[0].table(name)
        calls.check_select(select, table)
        return self._written(
            "write_selected",
            {"name": name, "operation": operation, "select": select, "collect": collect, "message": message},
        )[0]

    def restore(self, table_id: int, to: int, message: str | None = None) -> WriteResult:
        return self._written("restore", {"table_id": table_id, "to": to, "message": message})[0]

    # ------------------------------------------------------------------------------------------ transactions

    def begin(self, timeout_s: float) -> OpenTransaction:
        held: Connection | None = getattr(self._held, "connection", None)
        request = {"do": "begin"}
        connection, answer = held, None
        if connection is not None:
            with contextlib.suppress(NoWriter):  # the time of `alone` is over
                answer, _ = connection.request(request, (), ANSWER_TIMEOUT_S, TAKE_TIMEOUT_S)
        if answer is None:
            found = self._connected(request)
            if isinstance(found, LocalWriter):
                return found.begin(timeout_s)
            connection, answer = found
        assert connection is not None
        try:
            self._reader.note_written(answer["applied"])
            root, _ = self._reader.view()
            keep_open = connection is held
            pin = _RemotePin(self._pins, answer["since"], timeout_s, connection, keep_open=keep_open)
            return OpenTransaction(
                self._reader, pin, root, self.memory_limit_bytes // 4, partial(self._commit, pin)
            )
        except BaseException:
            if connection is not held:
                connection.close()
            raise

    def _commit(
        self, pin: _RemotePin, written: WriteSet, since: int, message: str | None, collect: bool
    ) -> list[WriteResult]:
        arguments = {
            "requests": [
                calls.of_prepared(request, table, operation) for request, table, operation in written
            ],
            "seen": [SeenTable.of(table) for _, table, _ in written],
            "since": since,
            "message": message,
            "collect": collect,
        }
        results = self._written("commit_set", arguments, pin.connection)
        passed_over = (operation.ignored for _, _, operation in written)  # these rows were not sent
        return [
            dataclasses.replace(result, ignored=result.ignored + count)
            for result, count in zip(results, passed_over, strict=True)
        ]

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        found = self._connected({"do": "hold"})
        if isinstance(found, LocalWriter):
            with found.alone():
                yield
            return
        connection, _ = found
        self._held.connection = connection
        try:
            yield
        finally:
            self._held.connection = None
            connection.close()

    def _connected(self, request: dict[str, Any]) -> tuple[Connection, dict[str, Any]] | LocalWriter:
        """Send the first request of a connection that stays open; without a writer, become it."""

        def attempt() -> tuple[Connection, dict[str, Any]] | LocalWriter:
            connection = Connection(self._env, self._path, TAKE_TIMEOUT_S)
            try:
                answer, _ = connection.request(request, (), ANSWER_TIMEOUT_S, TAKE_TIMEOUT_S)
            except BaseException:
                connection.close()
                raise
            return connection, answer

        return self._attempted(request["do"], attempt, lambda writer: writer, keyed=True)

    # ------------------------------------------------------------------------------------------ tables

    def create_table(self, new: NewTable, rows: Sequence[Request] = (), replaces: bool = False) -> None:
        bare = new.bare(self.limits)
        sent = [calls.converted(bare, request) for request in rows]
        self._call("create_table", {"new": new, "rows": sent, "replaces": replaces})

    def drop_tables(self, names: Sequence[str], purge: bool) -> None:
        self._call("drop_tables", {"names": list(names), "purge": purge})

    def undrop_table(self, table_id: int, new_name: str) -> None:
        self._call("undrop_table", {"table_id": table_id, "new_name": new_name})

    def purge_dropped(self, name: str | None) -> int:
        return self._number("purge_dropped", {"name": name})

    def clone_table(self, name: str, new_name: str, at: int | None, replaces: bool = False) -> None:
        self._call("clone_table", {"name": name, "new_name": new_name, "at": at, "replaces": replaces})

    def alter(self, table_id: int, steps: Sequence[Step]) -> str:
        """The steps are computed here, and the writer takes the result if the table is still the same."""
        for attempt in range(_ALTERED_MAX):
            root, _ = self._reader.view()
            table = root.tables.get(table_id)
            if table is None:
                raise TableNotFoundError("the table was dropped before it could be altered")
            before = after = Draft.of(root, table)
            for step in steps:
                after = step(after)
            if after == before:
                return after.name
            drafts = {"before": TableDraft.of(before), "after": TableDraft.of(after)}
            try:
                self._call("alter_to", {"table_id": table_id, **drafts})
            except ConflictError:
                if attempt + 1 == _ALTERED_MAX:
                    raise
            else:
                return after.name
        raise AssertionError("the last attempt returns or raises")

    def copy_table(
        self,
        table_id: int,
        at: int,
        new_name: str,
        partition_schema: PartitionSchema,
        partitions: Collection[Partition],
    ) -> None:
        self._call(
            "copy_table",
            {
                "table_id": table_id,
                "at": at,
                "new_name": new_name,
                "partition_schema": partition_schema,
                "partitions": tuple(partitions),
            },
        )

    def repartition(
        self, table_id: int, partition_schema: PartitionSchema, partitions: Collection[Partition]
    ) -> None:
        self._call(
            "repartition",
            {"table_id": table_id, "partition_schema": partition_schema, "partitions": tuple(partitions)},
        )

    def tag(self, name: str, at: int | None) -> int:
        return self._number("tag", {"name": name, "at": at})

    def drop_tag(self, name: str) -> None:
        self._call("drop_tag", {"name": name})

    # ------------------------------------------------------------------------------------------ maintenance

    def flush(self, name: str | None = None) -> dict[str, Any]:
        return self._figures("flush", {"name": name})

    def compact(self, name: str, work: Progress | None = None) -> dict[str, Any]:
        done = self._figures("compact", {"name": name})
        if work is not None:  # the writer does not tell of its progress
            work.step(0, 1)
            work.step(1, 1)
        return done

    def vacuum(self, name: str, dry_run: bool, work: Progress | None = None) -> dict[str, Any]:
        self._reader.forget()  # so this process keeps no file that can go, unless a scan does
        return self._figures("vacuum", {"name": name, "dry_run": dry_run})

    def purge(self, name: str, keys: pa.Table, wait_s: float, message: str | None) -> dict[str, Any]:
        arguments = {"name": name, "keys": keys, "wait_s": wait_s, "message": message}
        self._reader.forget()  # so this process keeps no replaced file, unless a scan does
        done = self._figures("purge", arguments)
        self._reader.note_written(done["timestamp"])
        return done

    def purge_status(self, name: str) -> dict[str, Any]:
        return self._figures("purge_status", {"name": name})

    @property
    def maintenance(self) -> RemoteMaintenance:
        return RemoteMaintenance(self)

    def stats(self) -> dict[str, Any]:
        return self._figures("stats", {})

    # ------------------------------------------------------------------------------------------ calls

    def _figures(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a call's result."""
        return dict(self._call(name, arguments))

    def _number(self, name: str, arguments: Mapping[str, Any]) -> int:
        """Return a call's result that is a number."""
        return int(self._call(name, arguments))

    def _written(
        self, name: str, arguments: Mapping[str, Any], connection: Connection | None = None
    ) -> list[WriteResult]:
        done = self._call(name, arguments, connection)
        results: list[WriteResult] = done if isinstance(done, list) else [done]
        self._reader.note_written(max((result.timestamp for result in results), default=0))
        return results

    def _call(self, name: str, arguments: Mapping[str, Any], connection: Connection | None = None) -> Any:
        """Let the writer execute a call, in whichever process it is.

        connection: to use first, if it still exists.
        Returns: what the method of `LocalWriter` returned there; here, if this process has become the
            writer.
        """
        keyed = calls.CALLS[name].keyed
        key = call_key(self._env.randomness.token_hex(16)) if keyed else None
        forget = self._taken_answered() if keyed else []
        out = calls.Outgoing(self._env, self._path)
        timeout_s = MAINTENANCE_TIMEOUT_S if name in _SLOW_CALLS else ANSWER_TIMEOUT_S
        try:
            request = calls.encode_call(name, arguments, key, out, forget)

            def attempt() -> Any:
                nonlocal connection
                first, connection, answer = connection, None, None
                if first is not None:
                    with contextlib.suppress(NoWriter):
                        answer = first.request(request, out.attachments, timeout_s, TAKE_TIMEOUT_S)
                if answer is None:
                    answer = send(self._env, self._path, request, out.attachments, timeout_s, TAKE_TIMEOUT_S)
                if key is not None:
                    self._answered.append(key)
                return calls.decode_answer(*answer)

            def here(writer: LocalWriter) -> Any:
                return getattr(writer, name)(**arguments, **({"key": key} if keyed else {}))

            return self._attempted(name, attempt, here, keyed=keyed)
        finally:
            out.discard()

    def _taken_answered(self) -> list[str]:
        """Take the keys that the writer may forget. Other threads may do so at the same time."""
        taken = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._answered.popleft())
        return taken

    def _attempted(
        self,
        name: str,
        attempt: Callable[[], _Made],
        here: Callable[[LocalWriter], _Made],
        *,
        keyed: bool,
    ) -> _Made:
        """Return what `attempt` returns; or `here`, if this process has become the writer.

        keyed: whether the second attempt says whether the first one was executed.
        Raises: errors of the call; LockedError if a process holds the lock and does not listen;
            StorageError with outcome "unknown" if the outcome cannot be found out.
        """
        clock = self._env.clock
        lost: WriterEndedError | None = None
        again = 0
        deadline_s: float | None = None  # of waiting for a process that holds the lock and does not listen
        while True:
            self._reader.check_writable()
            try:
                try:
                    return attempt()
                except NoWriter:
                    return here(self._become_writer())
            except WriterEndedError as error:
                again += 1
                if again > _AGAIN_MAX:
                    raise
                logger.info("%s: sending the call %r again", error, name)
                lost, deadline_s = error, None
            except LockedError:
                # The holder of the lock is starting or ending: soon it listens, or the lock is free.
                deadline_s = deadline_s or clock.monotonic_s() + START_TIMEOUT_S
                if clock.monotonic_s() > deadline_s:
                    if lost is not None:
                        raise lost from None
                    raise
                clock.sleep_s(_RETRY_S)
            except Error as error:
                # A StorageError may be of the way to the writer, or of opening the store.
                if lost is not None and (not keyed or isinstance(error, StorageError)):
                    raise StorageError(
                        f"{lost} (sending it again failed: {error})", path=self._path, outcome="unknown"
                    ) from error
                raise


def _housekeeping(
    clock: Clock,
    stop: threading.Event,
    pins: HistoryPins,
    reader: SharedReader,
    every_tick: Callable[[], None],
) -> None:
    while not clock.wait(stop, _TICK_S):
        pins.oldest()
        reader.forget_if_idle()
        every_tick()


class RemoteMaintenance:
    """The background work of the process that writes the store."""

    def __init__(self, writer: RemoteWriter) -> None:
        self._writer = writer

    def status(self) -> MaintenanceStatus:
        """Return running, waiting and last work, and counters since the store was opened."""
        from nyala.tablet.maintenance import MaintenanceStatus

        return MaintenanceStatus(**self._writer._figures("maintenance_status", {}))

    def pause(self) -> None:
        """Stop background work until `resume`; returns when running work has ended.

        `flush()`, `compact()` and `vacuum()` still work.
        """
        self._writer._call("pause_maintenance", {})

    def resume(self) -> None:
        """Continue, with everything that has become due meanwhile."""
        self._writer._call("resume_maintenance", {})


Writer: TypeAlias = LocalWriter | RemoteWriter
"""The writer of an open store, for the public API."""


class _RemotePin(Pin):
    """A pin that is held by a connection in the writer's process, and ends with it (WS1).

    If the writer ends, the transaction goes on: its commit asks the next writer, which checks that
    no history is gone.
    """

    def __init__(
        self, pins: HistoryPins, timestamp: int, timeout_s: float, connection: Connection, *, keep_open: bool
    ) -> None:
        super().__init__(pins, timestamp, timeout_s)
        self.connection: Connection | None = connection
        self._keep_open = keep_open
        with pins.lock:
            pins.held.add(self)

    def release(self) -> None:
        super().release()
        self._disconnect()

    def _end_if_idle(self) -> None:
        super()._end_if_idle()
        if self._ended:
            self._disconnect()

    def _disconnect(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None and not self._keep_open:
            connection.close()
