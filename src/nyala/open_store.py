"""What works for an open store beside the callers' threads, and ends with it.

`Database` is what users hold; an `OpenStore` is what must go on until the store is closed: the background work, the
socket for other processes' commits, the thread that syncs for durability="group", the scans whose files are kept. None
of them knows the `Database`. So it is collected like any object when the last variable that names it goes, though
nothing is closed then: a collector runs at any line of any thread, also of one that holds the store's locks. Instead
the process that asks for the same store once more finds that nobody can use or close the former Database, and closes
it in its place (`close_abandoned`).

O1  What an abandoned Database left open is closed in a call of `connect`, never by the collector.
O2  While a scan, a feed or a snapshot of it can still be read, it is not abandoned.
O3  A forked child has no part in what its parent has open.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Final

from nyala.errors import StorageError
from nyala.handover_server import HandoverServer
from nyala.scan import PinnedRows
from nyala.tablet.group_sync import GroupSync
from nyala.tablet.maintenance import Maintenance
from nyala.tablet.store import Store

if TYPE_CHECKING:
    from nyala.sql.connection import Connection
    from nyala.tablet.reader_store import ReaderStore

__all__ = ["OpenScans", "OpenStore", "close_abandoned"]

logger = logging.getLogger("nyala.store")

_SCANS_CHECKED_EVERY_S: Final = 60.0

# By the folder's real path: who holds the store open for writing in this process, if anybody still does.
_written: dict[str, tuple[weakref.ref[object], OpenStore]] = {}
_written_lock: Final = threading.Lock()


class OpenScans:
    """The scans and feeds of one Database that somebody holds, so that what nobody reads gives its files back.
    Thread-safe."""

    def __init__(self, store: Store | ReaderStore) -> None:
        self._clock = store.env.clock
        self._scans: weakref.WeakSet[PinnedRows] = weakref.WeakSet()
        self._lock = threading.Lock()  # a set cannot be walked through while another thread adds to it
        self._checked_s = self._clock.monotonic_s()

    def watch(self, rows: PinnedRows) -> None:
        """See to it that the files come back when nobody reads the rows."""
        with self._lock:
            self._scans.add(rows)
        # A reader process, and a writer without maintenance, have no thread that would do it.
        if self._clock.monotonic_s() - self._checked_s > _SCANS_CHECKED_EVERY_S:
            self.expire()

    def held(self) -> list[PinnedRows]:
        """Those that somebody holds."""
        with self._lock:
            return list(self._scans)

    def expire(self) -> None:
        """Take the files from those that were not read for long."""
        self._checked_s = self._clock.monotonic_s()
        for scan in self.held():
            scan.expire_if_unread()


class OpenStore:
    """A store and all that works for it. The threads begin with the object, and end with `close()`."""

    def __init__(self, store: Store | ReaderStore) -> None:
        self.store = store
        self.scans = OpenScans(store)
        self.maintenance: Maintenance | None = None
        self.server: HandoverServer | None = None
        self.group_sync: GroupSync | None = None
        self.sql: Connection | None = None
        self._pid = os.getpid()
        if isinstance(store, Store):
            if store.options.durability == "group":
                self.group_sync = GroupSync(store)
                self.group_sync.start()
            self.maintenance = Maintenance(store, self.scans.expire)
            if store.options.maintenance:
                self.maintenance.start()
            server = HandoverServer(store)
            try:
                server.start()
                self.server = server
            except StorageError as error:
                # A file system without sockets: other processes' commits wait for the lock instead.
                logger.warning(
                    "commits of other processes must wait until this one closes the store: %s", error
                )

    def owned_by(self, owner: object) -> None:
        """Remember who uses this store, so that it can be found out that nobody does any more."""
        if isinstance(self.store, Store):
            with _written_lock:
                _written[_name(self.store.root_path)] = weakref.ref(owner), self

    def abandoned_by(self, owner: weakref.ref[object]) -> bool:
        """Whether nobody in this process can use this store any more, nor close it (O2, O3)."""
        return (
            owner() is None and self._pid == os.getpid() and not self.store.closed and not self.scans.held()
        )

    def close(self) -> None:
        """Sync, and give back the lock or the lease. May be called twice."""
        with _written_lock:
            name = _name(self.store.root_path)
            if name in _written and _written[name][1] is self:
                del _written[name]
        # Each is ended, whatever the others say; the last to go is the lock.
        with contextlib.ExitStack() as parts:
            parts.callback(self.store.close)
            if self.sql is not None:
                parts.callback(self.sql.close)
            if self.group_sync is not None:
                parts.callback(self.group_sync.stop)
            if self.server is not None:
                parts.callback(self.server.stop)
            if self.maintenance is not None:
                parts.callback(self.maintenance.stop)


def close_abandoned(folder: str) -> None:
    """Close the store in `folder` if a Database of this process has it open for writing and nobody has that Database
    any more (O1); a ResourceWarning says so. Raises: what its last sync raises."""
    with _written_lock:
        owner, left = _written.get(_name(folder), (None, None))
    if owner is None or left is None:
        return
    if owner() is not None:
        gc.collect()  # it may be named by nothing but a ring of objects that the collector has not come to
    if not left.abandoned_by(owner):
        return
    warnings.warn(
        f"the store {folder!r} was open in a Database that nothing names any more; it is closed now: use `with "
        "nyala.connect(…) as db`, or db.close()",
        ResourceWarning,
        stacklevel=3,
    )
    left.close()


def _name(folder: str) -> str:
    return os.path.realpath(folder)
