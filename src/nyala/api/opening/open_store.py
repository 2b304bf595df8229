"""The open stores of this process, and their background threads.

    Database ─┐                     ┌─ store: catalogue, log, memory
    Database ─┴─ one Handle each ─► OpenStore ─ background threads, hand-over socket, DuckDB connection

In one process, every `connect` to the same folder for writing returns a `Handle` of the same
`OpenStore`. The `OpenStore` is closed with its last handle. The folder is identified by its inode,
so two spellings of a path, or a symbolic link, lead to the same `OpenStore`.

If another process holds the store's lock, the `OpenStore` reads the log by itself and sends its
writes to that process (`handover.remote_writer`). After that process has ended, the next write
makes this process the writer, for all handles of the `OpenStore`.

A program may lose a `Database` without closing it. Python then frees the `Database`, because
neither the store nor its threads refer to it. But freeing a `Database` does not close the store,
because Python may free the `Database` in a thread that holds the store's locks. Instead, the next
`connect` to the same folder finds that the open store has no users, and closes it first.

O1  If Python freed every `Database` of a store without `close()`, the next call of `connect` closes the
    store. The garbage collector never does.
O2  Python does not free a Database as long as one of its scans, feeds, tables or snapshots exists, because
    these refer to its handle.
O3  A forked child does not use the stores that its parent has open.
O4  A closed handle refuses every call, even if another handle of the store is open.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
import threading
import warnings
import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar

from nyala.catalog.store_lock import StoreLock
from nyala.env import Env
from nyala.env.interrupts import Uninterrupted
from nyala.errors import Error, InvalidArgumentError, LockedError, StorageError
from nyala.handover.channel import ChannelServer, NoWriter
from nyala.handover.inbox import InboxServer
from nyala.handover.server import server_of
from nyala.mvcc.timestamp import to_datetime
from nyala.schema.limits import Limits
from nyala.tablet.group_sync import GroupSync
from nyala.tablet.maintenance import Maintenance
from nyala.tablet.state import store_folder as layout
from nyala.tablet.store import Store, StoreOptions

if TYPE_CHECKING:
    from nyala.api.database import Snapshot
    from nyala.api.pinned_rows import PinnedRows
    from nyala.api.transaction import Transaction
    from nyala.handover.local_writer import LocalWriter
    from nyala.handover.remote_writer import RemoteWriter, SharedReader, Writer
    from nyala.sql.select.connection import Connection
    from nyala.tablet.media.bucket_reader import BucketReader
    from nyala.tablet.recovery.reader_store import ReaderStore

logger = logging.getLogger("nyala.store")

_SCANS_CHECKED_EVERY_S: Final = 60.0
# The threads of a store whose close was interrupted end within a second.
_LEFT_OPEN_S: Final = 2.0
# How long `connect` waits for a process that holds the lock but does not listen for writes yet.
_START_TIMEOUT_S: Final = 30.0
_RETRY_S: Final = 0.02


_Object = TypeVar("_Object")


class Alive(Generic[_Object]):
    """A set that does not keep its objects alive: Python can free them. Thread-safe."""

    def __init__(self) -> None:
        self._objects: weakref.WeakSet[_Object] = weakref.WeakSet()
        self._lock = threading.Lock()  # a set cannot be iterated while another thread adds to it

    def add(self, one: _Object) -> None:
        with self._lock:
            self._objects.add(one)

    def discard(self, one: _Object) -> None:
        with self._lock:
            self._objects.discard(one)

    def held(self) -> list[_Object]:
        """Return the objects of this set that Python has not freed."""
        with self._lock:
            return list(self._objects)


class OpenScans(Alive["PinnedRows"]):
    """The scans and feeds of one Database. A scan that nobody reads for 15 minutes releases its files."""

    def __init__(self, store: Store | ReaderStore | BucketReader) -> None:
        super().__init__()
        self._clock = store.env.clock
        self._checked_s = self._clock.monotonic_s()

    def watch(self, rows: PinnedRows) -> None:
        """From now on release the files of `rows` if nobody reads them for 15 minutes."""
        self.add(rows)
        # A reader process, and a writer without maintenance, have no thread that calls `expire`.
        if self._clock.monotonic_s() - self._checked_s > _SCANS_CHECKED_EVERY_S:
            self.expire()

    def expire(self) -> None:
        """Release the files of scans that nobody has read for 15 minutes."""
        self._checked_s = self._clock.monotonic_s()
        for scan in self.held():
            scan._release_if_unread()


class Handle:
    """Connects one `Database` to its open store, and keeps the scans and feeds of this `Database`."""

    def __init__(self, opened: OpenStore) -> None:
        self.opened = opened
        self.env = opened.store.env
        self.root_path = opened.store.root_path
        self.scans = OpenScans(opened.store)
        self._closed = False
        self._lost = False

    @property
    def closed(self) -> bool:
        """Whether this handle, or the whole store, was closed."""
        return self._closed or self.opened.store.closed

    def check_open(self) -> None:
        """Check that this handle and its store are open, and were opened by this process and not by its parent.

        Raises: StorageError.
        """
        if self._lost:
            raise StorageError(
                f"another process has written to the store {self.root_path!r}, so this Database had to open it again: "
                "start the scan or feed again",
                path=self.root_path,
            )
        if self._closed:
            raise StorageError(f"this Database of the store {self.root_path!r} is closed: connect() again")
        self.opened.store.check_open()

    def give_up(self) -> None:
        """Close the handle, because another process took over the store (`on_fenced="reopen"`)."""
        self._lost = True
        self.close()

    def close(self) -> None:
        """Sync the log, and close the store if this is its last handle. May be called twice."""
        opened = self.opened
        if opened.pid != os.getpid():
            self._closed = True
            return
        with Uninterrupted(), opened.registration.lock:
            if self._closed:
                return
            self._closed = True
            for scan in self.scans.held():
                scan._release()
            opened.handles.discard(self)
            if opened.handles.held():
                gc.collect()  # lost handles may still exist in reference cycles
            if not opened.handles.held():
                opened.close()
            elif not opened.store.closed:
                opened.sync()


class Handles(Alive[Handle]):
    """The handles of one open store: each `Database` uses the store through a handle.

    The store's threads refer only to this object, so that Python can free an unused `OpenStore`.
    """

    def expire_scans(self) -> None:
        """Release the files of scans that nobody has read for 15 minutes."""
        for handle in self.held():
            handle.scans.expire()


_BlockKind: TypeAlias = Literal["batch", "transaction", "BEGIN"]


class _Block(threading.local):
    """The kind of block that the current thread is inside of: a batch or a transaction."""

    what: _BlockKind | None = None


class ThreadSlot(threading.local):
    """The transaction that the current thread has begun by the SQL statement BEGIN, or None.

    While it is open, the thread's other writes to the store are refused, as in `with db.transaction()`.
    Source: docs/how-to/sql.md, "Transactions".
    """

    def __init__(self, store: OpenStore) -> None:
        self._store = store
        self.transaction: Transaction | None = None

    def open(self, transaction: Transaction) -> None:
        """Set the thread's transaction. Raises: InvalidArgumentError in a batch or another transaction."""
        self._store.enter_block("BEGIN")
        self.transaction = transaction

    def clear(self) -> Transaction | None:
        """Return the transaction and forget it."""
        found, self.transaction = self.transaction, None
        if found is not None:
            self._store.leave_block()
        return found


class OpenStore:
    """A store and its background threads, which start with this object and end with `close()`.

    `writer` executes writes: in this process, or in the process that holds the lock. It is None if the
    store is open for reading only.
    """

    def __init__(
        self,
        store: Store | ReaderStore | BucketReader,
        registration: _Registration | None = None,
        options: StoreOptions | None = None,
    ) -> None:
        """
        registration: where later calls of `connect` find this store; None: such calls open the store again.
        options: the options of a writer.
        """
        self.store = store
        self.registration = registration or _Registration()
        self.options = options
        self.handles = Handles()
        self.writer: Writer | None = None
        self.maintenance: Maintenance | None = None
        self.server: ChannelServer | InboxServer | None = None
        self.group_sync: GroupSync | None = None
        self.sql: dict[bool, Connection] = {}  # key: whether statements may access files
        self.sql_lock = threading.Lock()
        self.pid = os.getpid()
        # Only for a store whose writer is, or was, another process:
        self._reader: SharedReader | None = None
        self._remote: RemoteWriter | None = None
        self._block = _Block()
        self.snapshots: Alive[Snapshot] = Alive()
        if isinstance(store, Store):
            self._serve(store)

    def _serve(self, store: Store) -> None:
        """Start the threads that a writer's process needs.

        They receive commits of other processes, and run flushes and compactions unless maintenance is
        turned off. With `durability="group"`, another thread syncs the log for several commits at once.
        """
        from nyala.handover.local_writer import LocalWriter

        if store.options.durability == "group":
            self.group_sync = GroupSync(store)
            self.group_sync.start()
        maintenance = self.maintenance = Maintenance(store, self.handles.expire_scans)
        if store.options.maintenance:
            maintenance.start()
        writer = LocalWriter(store, maintenance)
        server = server_of(writer)
        try:
            server.start()
            self.server = server
        except StorageError as error:
            # The file system has no sockets, so other processes have to wait for the lock.
            logger.warning("commits of other processes must wait until this one closes the store: %s", error)
        self.writer = writer

    @staticmethod
    def shared(
        env: Env, reader: SharedReader, limits: Limits, registration: _Registration, options: StoreOptions
    ) -> OpenStore:
        """Return a store whose writer is another process.

        reader: reads the files of the store.
        limits: the size limits of the writer, which are also checked in this process.
        registration: the entry of the store among the stores that this process has open.
        options: for this process, if it later becomes the writer.
        """
        from nyala.handover.local_writer import LocalWriter
        from nyala.handover.remote_writer import RemoteWriter

        made = OpenStore(reader, registration, options)

        def become_writer() -> LocalWriter:
            with Uninterrupted(), registration.lock:
                if not isinstance(made.writer, LocalWriter):
                    reader.check_open()
                    made.store = store = Store.open(env, reader.root_path, options)
                    made._serve(store)
                    reader.forget()
                    logger.info("this process is the writer of %s now", reader.root_path)
                assert isinstance(made.writer, LocalWriter)
                return made.writer

        made._reader = reader
        made.writer = made._remote = RemoteWriter(reader, limits, become_writer, made.handles.expire_scans)
        return made

    def handle(self) -> Handle:
        """Return a new handle, through which one `Database` uses this store. Closing the last one closes the store."""
        made = Handle(self)
        self.handles.add(made)
        return made

    def enter_block(self, what: _BlockKind) -> None:
        """Record that this thread is inside `with db.batch()` or `with db.transaction()`, or after BEGIN.

        Raises: InvalidArgumentError if the thread is already inside such a block.
        """
        call = "BEGIN" if what == "BEGIN" else f"db.{what}()"
        self.refuse_in_block(call, "the methods of the first batch")
        self._block.what = what

    def leave_block(self) -> None:
        """Record that this thread has left its batch or transaction."""
        self._block.what = None

    def refuse_in_block(self, call: str, instead: str) -> None:
        """Check that this thread is not inside a batch or transaction, which a write would bypass.

        call, instead: the refused call, and what to call inside a batch, for the message.
        Raises: InvalidArgumentError.
        """
        what = self._block.what
        if what == "BEGIN":
            raise InvalidArgumentError(
                f"{call} between BEGIN and COMMIT would be committed at once, and not with the transaction: write by "
                "db.sql(…), or run COMMIT first"
            )
        if what == "batch":
            raise InvalidArgumentError(
                f"{call} inside `with db.batch() as b` would be committed at once, and not with the batch: use "
                f"{instead}"
            )
        if what == "transaction":
            raise InvalidArgumentError(
                f"{call} inside `with db.transaction() as tx` would be committed at once, and not with the "
                "transaction: use the tables of the transaction, tx['name']"
            )

    def refuse_change_in_block(self, call: str) -> None:
        """Refuse a call such as `create_table` or `drop_table` inside a batch or transaction of this thread.

        The call would take effect at once, and a failed batch or transaction could not undo it.
        call: the name of the call, for the message.
        Raises: InvalidArgumentError.
        """
        what = self._block.what
        if what == "BEGIN":
            raise InvalidArgumentError(
                f"{call} between BEGIN and COMMIT would happen at once, and ROLLBACK could not undo it: call it "
                "before BEGIN or after COMMIT"
            )
        if what is not None:
            raise InvalidArgumentError(
                f"{call} inside `with db.{what}()` would happen at once, even if the {what} fails: call it "
                "before or after the block"
            )

    def refuse_beside_snapshot(self, what: str) -> None:
        """Raise InvalidArgumentError if this process has an open `db.snapshot()`.

        Called before a purge, because the snapshot could still read the purged rows.
        what: what is refused, as the beginning of the message: "table 't' cannot be purged".
        """
        moments = [snapshot.timestamp for snapshot in self.snapshots.held() if snapshot.is_open]
        if moments:
            raise InvalidArgumentError(
                f"{what} while a snapshot of {to_datetime(min(moments)).isoformat()} is open, which could still read "
                "the rows: close it first"
            )

    def sync(self) -> None:
        """Sync the log. Raises: StorageError."""
        if isinstance(self.store, Store):
            self.store.log_sync_all()

    def close(self) -> None:
        """Sync the log, and release the lock or the lease. May be called twice."""
        self.registration.opened = None
        # Callbacks run in reverse order, and each one runs even if another fails. The lock is released last.
        with contextlib.ExitStack() as parts:
            parts.callback(self.store.close)
            if self._reader is not None:
                parts.callback(self._reader.close)
            if self._remote is not None:
                parts.callback(self._remote.close)
            for connection in list(self.sql.values()):
                parts.callback(connection.close)
            if self.group_sync is not None:
                parts.callback(self.group_sync.stop)
            if self.server is not None:
                parts.callback(self.server.stop)
            if self.maintenance is not None:
                parts.callback(self.maintenance.stop)


# ------------------------------------------------------------------------------------------------ sharing


class _Registration:
    """The entry of one folder or bucket in `_registry`, with the store that this process has open there."""

    def __init__(self) -> None:
        self.lock = (
            threading.RLock()
        )  # re-entrant: a signal handler may close a store while its thread opens one
        self.opened: OpenStore | None = None


# The key is the folder's inode, or the URL of a store in a bucket. As long as a store is open, no other
# folder can get its inode. Entries are small, and are never removed.
_registry: Final[dict[Hashable, _Registration]] = {}


def _forget_in_child() -> None:
    _registry.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def open_for_writing(env: Env, folder: str, options: StoreOptions, *, share: bool) -> Handle:
    """Return a handle, through which a `Database` uses the store in `folder`.

    Opens the store, unless this process has it open.
    If Python freed every `Database` of the open store without `close()`, the store is closed first,
    with a ResourceWarning. If the open store can no longer write, because a write failed or its
    folder was moved, it is closed and opened again.

    share: if another process is the writer, send writes to that process.
    Raises: as `Store.open`; InvalidArgumentError if the store is open with other options.
    """
    layout.prepare_folder(env, folder)

    def open_new(registration: _Registration) -> OpenStore:
        if share:
            return _open_or_share(env, folder, options, registration)
        return OpenStore(_open_alone(env, folder, options), registration, options)

    handle = share_or_open(env.files.inode(folder), folder, options, open_new)
    if not share and not isinstance(handle.opened.store, Store):
        handle.close()
        raise StoreLock(env, folder).refusal(0)
    return handle


def share_or_open(
    key: Hashable, folder: str, options: StoreOptions, open_new: Callable[[_Registration], OpenStore]
) -> Handle:
    """Return a handle of a store; call `open_new` if this process does not have the store open.

    key: identifies the store: its folder's inode, or its URL.
    folder: the store's path or URL, for messages.
    """
    registration = _registry.setdefault(key, _Registration())
    with Uninterrupted(), registration.lock:
        opened = registration.opened
        if opened is not None and not opened.store.closed:
            different = _difference(opened, options)
            if different is not None:
                gc.collect()  # lost handles may still exist in reference cycles
            if not opened.handles.held():
                opened.close()
                _warn_of_abandoned(folder)
            elif not _takes_writes(opened):
                opened.close()
            elif different is not None:
                raise InvalidArgumentError(
                    f"the store {folder!r} is open in this process with {different}: connect with the same settings to "
                    "share it, or close() that Database first"
                )
            else:
                return opened.handle()
        opened = registration.opened = open_new(registration)
        return opened.handle()


def _open_or_share(env: Env, folder: str, options: StoreOptions, registration: _Registration) -> OpenStore:
    """Open a store for writing, or share it with the process that is its writer.

    Raises: as `Store.open`; LockedError if the writer is on another machine, has another version of
        Nyala, or does not answer.
    """
    options = replace(options, lock_timeout_s=0.0)
    lock, here = StoreLock(env, folder), socket.gethostname()
    deadline_s = env.clock.monotonic_s() + _START_TIMEOUT_S
    while True:
        holder = lock.holder()
        if holder is not None and (holder.pid, holder.host) != (os.getpid(), here):
            from nyala.handover.remote_writer import settings_of_writer

            with contextlib.suppress(NoWriter):
                return _shared(env, folder, options, settings_of_writer(env, folder), registration)
        try:
            return OpenStore(_open_alone(env, folder, options), registration, options)
        except LockedError:
            holder = lock.holder()
            # Another process of this machine may soon listen for writes, or end. Then try again.
            may_change = holder is None or (holder.host == here and holder.pid != os.getpid())
            if not may_change or env.clock.monotonic_s() > deadline_s:
                raise
        env.clock.sleep_s(_RETRY_S)


def _shared(
    env: Env, folder: str, options: StoreOptions, settings: Mapping[str, Any], registration: _Registration
) -> OpenStore:
    from nyala.handover.remote_writer import SharedReader

    limits = Limits(**settings["limits"])
    reader = SharedReader.open(env, folder, options.memory_limit_bytes, limits=limits)
    assert isinstance(reader, SharedReader)
    return OpenStore.shared(env, reader, limits, registration, options)


def _open_alone(env: Env, folder: str, options: StoreOptions) -> Store:
    """Open a store that this process does not have open. Raises: as `Store.open`.

    If an earlier open or close of this process was interrupted, its objects may still hold the lock. So the
    function runs the garbage collector and tries again, for a short time.
    """
    deadline_s = env.clock.monotonic_s() + _LEFT_OPEN_S
    while True:
        try:
            return Store.open(env, folder, options)
        except LockedError:
            holder = StoreLock(env, folder).holder()
            if holder is None or holder.pid != os.getpid() or env.clock.monotonic_s() > deadline_s:
                raise
        gc.collect()
        env.clock.sleep_s(0.05)


def _takes_writes(opened: OpenStore) -> bool:
    try:
        opened.store.check_writable()
    except Error:
        return False
    return True


_SETTINGS: Final = {
    "durability": "durability",
    "memory_limit": "memory_limit_bytes",
    "rowset_size": "rowset_target_bytes",
    "maintenance": "maintenance",
    "limits": "limits",
}
"""The fields of `StoreOptions` by argument of `connect`."""


def _difference(opened: OpenStore, options: StoreOptions) -> str | None:
    """Return the first setting of an open store that differs from `options`, as part of a sentence."""
    assert opened.options is not None
    for argument, name in _SETTINGS.items():
        present, requested = getattr(opened.options, name), getattr(options, name)
        if present != requested:
            return f"{argument}={present!r}, not {requested!r}"
    return None


def _warn_of_abandoned(folder: str) -> None:
    warnings.warn(
        f"the store {folder!r} was open in a Database that no variable refers to any more; it is closed now: use `with "
        "nyala.connect(…) as db`, or db.close()",
        ResourceWarning,
        stacklevel=4,
    )
