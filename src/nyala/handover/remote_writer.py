"""The methods by which the public API changes a store, if another process is the store's writer.

    Database ─┬─ reads ──► SharedReader                       this process replays the log itself
              └─ writes ─► RemoteWriter ── socket ──► writer's process: writer_session ─► LocalWriter

Each method of `RemoteWriter` sends a request (`calls`) to the process that holds the store's lock.
If there is no such process, this process takes the lock and becomes the writer (`become_writer`).
Its own `LocalWriter` then executes the call.

Invariants
    RW1 A call that changes rows, or creates, alters or drops a table, has an idempotency key. If
        the writer ends during the call, the call is sent again with its key, so it happens once.
    RW2 After a call, this process reads what the call wrote: `SharedReader.view` waits until it has
        replayed the log up to the timestamp of the result.
    RW3 A call ends after a bounded time, even if the writer's process was stopped: TAKE_TIMEOUT_S
        until it takes the call, then ANSWER_TIMEOUT_S or MAINTENANCE_TIMEOUT_S until it answers.

Threads: any. Source: docs/design/processes-and-locks.md, "A second process that writes".
"""

from __future__ import annotations

import contextlib
import dataclasses
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
from nyala.handover.attempts import with_writer
from nyala.handover.channel import Connection, NoWriter, send
from nyala.handover.local_writer import LocalWriter, Progress, SeenTable, TableDraft
from nyala.rowset.mem_rowset import MemRowSet
from nyala.schema.limits import Limits
from nyala.schema.predicates.predicate import bind
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

_Made = TypeVar("_Made")

TAKE_TIMEOUT_S: Final = 30.0
ANSWER_TIMEOUT_S: Final = 600.0
MAINTENANCE_TIMEOUT_S: Final = 24 * 3600.0
# How often an alteration is computed if other processes alter the same table meanwhile.
_ALTERED_MAX: Final = 20
# A read waits for this time until it sees this process's own writes.
_VISIBLE_TIMEOUT_S: Final = 30.0
# The most keys that one call lets the writer forget. The writer forgets the others after some minutes.
_ANSWERED_MAX: Final = 1000
# The interval at which idle transactions and scans are looked for.
_TICK_S: Final = 1.0
# After this time without a read, the reader's memory is freed: it keeps files that the writer replaced.
_VIEW_IDLE_S: Final = 60.0
_SLOW_CALLS: Final = frozenset({"compact", "vacuum", "purge", "copy_table", "clone_table", "repartition"})


class SharedReader(ReaderStore):
    """The reader of a process that shares the store: it sends its writes to the writer's process.

    A state of the store that `view` returns contains all writes of this process.
    """

    def __init__(
        self, env: Env, path: str, memory_limit_bytes: int, replay_limit_bytes: int, limits: Limits
    ) -> None:
        self._own = 0  # the newest write of this process
        self._viewed_s = math.inf
        super().__init__(env, path, memory_limit_bytes, replay_limit_bytes, limits)

    def note_written(self, timestamp: int) -> None:
        """Make later calls of `view` wait until they can return a state with this write.

        timestamp: the timestamp of a write of this process.
        """
        with self._lock:
            self._own = max(self._own, timestamp)

    def view(self) -> tuple[Root, int]:
        own, clock = self._own, self.env.clock
        self._viewed_s = clock.monotonic_s()
        deadline_s = self._viewed_s + _VISIBLE_TIMEOUT_S
        while True:
            root, published = super().view()
            if published >= own:
                return root, published
            if clock.monotonic_s() > deadline_s:
                with self._lock:
                    self._own = min(self._own, published)  # later reads do not wait for it again
                raise StorageError(
                    f"the process that writes {self.root_path!r} did not make the last write of this process visible "
                    f"within {_VISIBLE_TIMEOUT_S:g} s: check that process, and its disk",
                    path=self.root_path,
                )
            clock.sleep_s(0.001)

    def check_writable(self) -> None:
        self.check_open()
        self.env.files.check_bound()

    def forget_if_idle(self) -> None:
        """Free the memory of this reader (`forget`) if nobody has used the reader for a minute.

        The reader's lease then ends, too, so the writer can delete files that it has replaced.
        """
        if self.env.clock.monotonic_s() - self._viewed_s > _VIEW_IDLE_S:
            self.forget()

    def forget(self) -> None:
        """Free the memory of the loaded catalogue, and end the lease when the last scan ends.

        The next read loads the catalogue again, with a new lease.
        """
        with self._lock:
            self._loaded = False
            self._viewed_s = math.inf
            self._root = Root(self._version, {})
            self._replayer = Replayer(self._root, self._relieved)

    def new_memory(self, table: TableState) -> MemRowSet:
        return MemRowSet(table.codec, table.schema)


def settings_of_writer(env: Env, directory: str) -> Mapping[str, Any]:
    """Return the `LocalWriter.settings` of the process that writes the store.

    Raises: NoWriter if no process listens; LockedError if the writer runs another version of Nyala
        or does not answer.
    """
    try:
        request = calls.encode_call("settings", {}, None, calls.Outgoing(env, directory))
        answer, _ = send(env, directory, request, (), TAKE_TIMEOUT_S)
    except StorageError as error:
        holder = StoreLock(env, directory).holder()
        who = "another process" if holder is None else f"process {holder.pid}"
        raise LockedError(
            f"the store {directory} is already written by {who}, and cannot be shared with that process: {error}. To "
            "only read, open the store with read_only=True"
        ) from error
    settings: Mapping[str, Any] = answer["done"]
    return settings


class RemoteWriter:
    """Sends the calls of the public API to the writer in another process.

    Its methods are those of `LocalWriter`.
    """

    def __init__(
        self,
        reader: SharedReader,
        limits: Limits,
        become_writer: Callable[[], LocalWriter],
        every_tick: Callable[[], None],
    ) -> None:
        """Start a thread that ends idle transactions and frees the memory of an idle reader.

        become_writer: takes the lock, and returns the writer of this process. Raises: LockedError
            if another process has the lock.
        every_tick: the thread calls it each second.
        """
        self._reader = reader
        self._env = reader.env
        self._path = reader.root_path
        self._become_writer = become_writer
        self._held = threading.local()  # `connection`: of a thread that is inside `alone`
        self._pins = HistoryPins(reader.env.clock)
        self._stop = threading.Event()
        work = (self._env.clock, self._stop, self._pins, reader, every_tick)
        threading.Thread(target=_housekeeping, args=work, name="nyala-sharing", daemon=True).start()
        self._answered: deque[str] = deque(maxlen=_ANSWERED_MAX)  # keys that the writer may forget
        self.limits = limits

    def close(self) -> None:
        """Stop this object's background thread, and end all open transactions of this process.

        The writer then no longer keeps history for these transactions.
        """
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
                if len(requests) > 1:  # the caller cannot see which request failed
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
        bind(select.where, table.schema)  # raises what the writer would raise
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
            with contextlib.suppress(NoWriter):  # the writer ended `alone` after HOLD_MAX_S
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
        ignored_rows = (operation.ignored for _, _, operation in written)  # these rows were not sent
        return [
            dataclasses.replace(result, ignored=result.ignored + count)
            for result, count in zip(results, ignored_rows, strict=True)
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
        """Send a request over a new connection. Return the connection, still open, and the answer.

        If no process is the writer, become the writer, and return the `LocalWriter` of this
        process.
        """

        def attempt() -> tuple[Connection, dict[str, Any]] | LocalWriter:
            connection = Connection(self._env, self._path, TAKE_TIMEOUT_S)
            try:
                answer, _ = connection.request(request, (), ANSWER_TIMEOUT_S, TAKE_TIMEOUT_S)
            except BaseException:
                connection.close()
                raise
            return connection, answer

        return self._attempted(request["do"], attempt, lambda writer: writer)

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
        """Alter a table; return its name.

        The altered table is computed in this process. The writer installs it, unless another
        process has altered the table meanwhile; then it is computed again.
        """
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
        raise AssertionError("unreachable: the last attempt to alter the table returns or raises an error")

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
        if work is not None:  # the writer does not report its progress
            work.step(0, 1)
            work.step(1, 1)
        return done

    def vacuum(self, name: str, dry_run: bool, work: Progress | None = None) -> dict[str, Any]:
        self._reader.forget()  # so the vacuum can remove files that only this reader's lease keeps
        return self._figures("vacuum", {"name": name, "dry_run": dry_run})

    def purge(self, name: str, keys: pa.Table, wait_s: float, message: str | None) -> dict[str, Any]:
        arguments = {"name": name, "keys": keys, "wait_s": wait_s, "message": message}
        self._reader.forget()  # so the purge can remove files that only this reader's lease keeps
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
        """Let the writer execute a call whose result is a dict."""
        return dict(self._call(name, arguments))

    def _number(self, name: str, arguments: Mapping[str, Any]) -> int:
        """Let the writer execute a call whose result is a number."""
        return int(self._call(name, arguments))

    def _written(
        self, name: str, arguments: Mapping[str, Any], connection: Connection | None = None
    ) -> list[WriteResult]:
        done = self._call(name, arguments, connection)
        results: list[WriteResult] = done if isinstance(done, list) else [done]
        self._reader.note_written(max((result.timestamp for result in results), default=0))
        return results

    def _call(self, name: str, arguments: Mapping[str, Any], connection: Connection | None = None) -> Any:
        """Let the writer execute the method `name` of `LocalWriter`; return its result.

        connection: try this connection first. Default: use a new one.
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

            return self._attempted(name, attempt, here, keyed)
        finally:
            out.discard()

    def _taken_answered(self) -> list[str]:
        """Return the keys of answered calls, which the writer may forget, and clear this list.

        Thread-safe.
        """
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
        keyed: bool = True,
    ) -> _Made:
        """Return the result of `attempt`, or of `here` if this process becomes the writer.

        If the writer ends during the request, the request is sent again.

        name: the name of the request, for log messages.
        attempt: sends the request to the writer.
        here: executes the request with the new writer of this process.
        keyed: whether the request has an idempotency key, so that it is done at most once.
        Raises: errors of the request; LockedError if a process holds the store's lock but does not
            answer; StorageError with outcome "unknown" if it is not known whether it was done.
        """

        def send() -> _Made:
            self._reader.check_writable()
            return attempt()

        return with_writer(
            self._env, self._path, name, send, lambda: here(self._become_writer()), keyed=keyed
        )


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
    """Controls the background work of the process that writes the store."""

    def __init__(self, writer: RemoteWriter) -> None:
        self._writer = writer

    def status(self) -> MaintenanceStatus:
        """Return the running, waiting and latest background work of the writer.

        Its counters, such as the number of flushes, begin when the writer opens the store.
        """
        from nyala.tablet.maintenance import status_of_fields

        return status_of_fields(self._writer._figures("maintenance_status", {}))

    def pause(self) -> None:
        """Stop background work until `resume`. Wait until running work has ended.

        `flush()`, `compact()` and `vacuum()` still work.
        """
        self._writer._call("pause_maintenance", {})

    def resume(self) -> None:
        """Continue background work. Work that has become due meanwhile is done, too."""
        self._writer._call("resume_maintenance", {})


Writer: TypeAlias = LocalWriter | RemoteWriter
"""The writer of an open store, in this process or in another one."""


class _RemotePin(Pin):
    """A pin, which keeps history for a transaction. The writer holds it until the connection ends.

    If the writer ends, the transaction continues. When it commits, the next writer checks that the
    history since the transaction began still exists.
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
