"""Open readers of stores, and DataFrames of scans, that several statements of a program use.

    shared_reader   the reader that an earlier statement left open. With a few system calls or
                    requests it finds the rows that were written since. A new reader would have to
                    read the whole catalogue.
    shared_frame    the DataFrame of the same scan at the same moment, if an earlier statement made
                    it

Statements see the same rows as without sharing. Each statement takes a new snapshot from the
reader, and a scan of one moment always has the same rows.

Invariants
    M1  A reader is closed, and its lease ends, when nobody has used it for IDLE_S. A reader in use
        is not closed.
    M2  A reader whose lease no longer exists is not used again, because the store was removed or
        replaced.
    M3  A DataFrame is shared only while its lease is valid, and each use renews the lease.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nyala.env import SYSTEM
from nyala.errors import HistoryExpiredError
from nyala.objects.address import Address
from nyala.spark.source.reader import open_read_only
from nyala.tablet.media.bucket_reader import BucketReader
from nyala.tablet.recovery.reader_store import ReaderStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nyala.api.database import Database
    from nyala.api.scan import Scan
    from nyala.spark.frames import LeasedFrame

__all__ = ["IDLE_S", "close_readers", "shared_frame", "shared_reader"]

IDLE_S: Final = 30.0
FRAMES_MAX: Final = 16

_lock = threading.Lock()
_readers: dict[Address, _Reader] = {}
_frames: OrderedDict[Any, LeasedFrame] = OrderedDict()


@dataclass
class _Reader:
    """A store that is open for reading, with the number of statements that use it.

    users: the number of running statements.
    last_used_s: when the last statement ended.
    has_timer: whether a timer will close the store if nobody uses it.
    """

    database: Database
    pid: int
    users: int = 0
    last_used_s: float = 0.0
    has_timer: bool = False


@contextlib.contextmanager
def shared_reader(address: Address) -> Iterator[Database]:
    """Yield an open, read-only database that several statements of this process share.

    It is opened by the first statement, and closed when no statement has used it for IDLE_S
    seconds. Raises the errors of `nyala.connect`.
    """
    reader = _acquire(address)
    try:
        yield reader.database
    finally:
        with _lock:
            reader.users -= 1
            reader.last_used_s = SYSTEM.clock.monotonic_s()
            if _readers.get(address) is reader:
                _start_timer(address, reader, IDLE_S)
            elif not reader.users:
                reader.database.close()


def _acquire(address: Address) -> _Reader:
    with _lock:
        reader = _usable(address)
        if reader is not None:
            reader.users += 1
            return reader
    # Opens without the lock, so that statements on other stores need not wait for the replay of a long log.
    opened = open_read_only(address)
    with _lock:
        reader = _usable(address)
        if reader is None:
            reader = _readers[address] = _Reader(opened, os.getpid())
        reader.users += 1
    if reader.database is not opened:
        opened.close()
    return reader


def _usable(address: Address) -> _Reader | None:
    """Return the open reader of a store if it is still valid, otherwise None.

    A reader that is not valid any more is removed. The caller holds the lock.
    """
    reader = _readers.get(address)
    if reader is None or (reader.pid == os.getpid() and _is_kept(reader.database)):
        return reader
    del _readers[address]
    if not reader.users:
        reader.database.close()
    return None


def _is_kept(database: Database) -> bool:
    """Whether the lease of the reader still exists."""
    store = database._store
    return isinstance(store, ReaderStore | BucketReader) and store.is_usable()


def _start_timer(address: Address, reader: _Reader, after_s: float) -> None:
    """Start a timer that closes the reader after `after_s` seconds if nobody uses it then.

    Has no effect if the reader has a timer already.
    """
    if not reader.has_timer:
        reader.has_timer = True
        timer = threading.Timer(after_s, _close_if_idle, (address, reader))
        timer.daemon = True
        timer.start()


def _close_if_idle(address: Address, reader: _Reader) -> None:
    with _lock:
        reader.has_timer = False
        if _readers.get(address) is not reader or reader.users:
            return  # the statement that uses it starts a timer at its end, or closes it
        left_s = reader.last_used_s + IDLE_S - SYSTEM.clock.monotonic_s()
        if left_s > 0:
            _start_timer(address, reader, left_s)
            return
        del _readers[address]
        reader.database.close()


@atexit.register
def close_readers() -> None:
    """Close all readers that are not in use."""
    with _lock:
        for address, reader in list(_readers.items()):
            if not reader.users and reader.pid == os.getpid():
                del _readers[address]
                reader.database.close()


def shared_frame(
    spark: SparkSession, scan: Scan, request: Hashable, make: Callable[[], LeasedFrame]
) -> LeasedFrame:
    """Return the DataFrame that an earlier statement made for an equal scan, or that of `make`.

    Two scans are equal if they have the same session, store, table, moment and `request`. A
    DataFrame is used again only while it has a lease that is valid. This call renews the lease.

    request: a tuple of the columns, the predicate, the lease's duration and whether rows are sent
        as arrays.
    """
    root, table = scan._root_and_table()
    # The id of the session is unique, because shared DataFrames keep their sessions alive.
    key = (id(spark), scan._store.root_path, root.version, table.id, scan.timestamp, request)
    del root, table
    with _lock:
        found = _frames.get(key)
    if found is not None and found.lease is not None:
        with contextlib.suppress(HistoryExpiredError):
            found.lease.keep()
            return found
    frame = make()
    if frame.lease is not None:
        with _lock:
            _frames[key] = frame
            _frames.move_to_end(key)
            while len(_frames) > FRAMES_MAX:
                _frames.popitem(last=False)
    return frame
