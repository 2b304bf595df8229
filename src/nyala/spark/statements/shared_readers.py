"""Open readers of stores, and DataFrames of scans, that the statements of a program share.

    sql(…)  ── reading(…) ────►  the reader that the last statement left open. It catches up with the writer by a few
                                 system calls or requests; opening a new one would read the whole catalogue
            ── task_frame(…) ──► the DataFrame of the same scan at the same moment, if one exists

A statement sees the same rows as without sharing, because a reader catches up at each snapshot, and a scan of one
moment always has the same rows.

Invariants
    M1  A reader is closed when nobody has used it for IDLE_S, and its lease ends. A reader in use is not closed.
    M2  A reader whose lease has gone from the store's folder is not used again: the folder was removed or replaced.
    M3  A frame is reused only while its lease is valid, and each reuse renews the lease.
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
from nyala.spark.source.reader import reading as open_reader
from nyala.tablet.media.bucket_reader import BucketReader
from nyala.tablet.recovery.reader_store import ReaderStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nyala.api.database import Database
    from nyala.api.scan import Scan
    from nyala.spark.frames import LeasedFrame

__all__ = ["IDLE_S", "close_readers", "reading", "task_frame"]

IDLE_S: Final = 30.0
FRAMES_MAX: Final = 16

_lock = threading.Lock()
_readers: dict[Address, _Reader] = {}
_frames: OrderedDict[Any, LeasedFrame] = OrderedDict()


@dataclass
class _Reader:
    database: Database
    pid: int
    users: int = 0
    last_used_s: float = 0.0
    ticking: bool = False


@contextlib.contextmanager
def reading(address: Address) -> Iterator[Database]:
    """Open the store at an address for reading. Raises: as `nyala.connect`."""
    reader = _taken(address)
    try:
        yield reader.database
    finally:
        with _lock:
            reader.users -= 1
            reader.last_used_s = SYSTEM.clock.monotonic_s()
            if _readers.get(address) is reader:
                _tick(address, reader, IDLE_S)
            elif not reader.users:
                reader.database.close()


def _taken(address: Address) -> _Reader:
    with _lock:
        reader = _usable(address)
        if reader is not None:
            reader.users += 1
            return reader
    # Without the lock, so that statements over other stores do not wait while a long log is replayed.
    opened = open_reader(address)
    with _lock:
        reader = _usable(address)
        if reader is None:
            reader = _readers[address] = _Reader(opened, os.getpid())
        reader.users += 1
    if reader.database is not opened:
        opened.close()
    return reader


def _usable(address: Address) -> _Reader | None:
    """The open reader, if it is still valid; closes one that is not. The caller holds the lock."""
    reader = _readers.get(address)
    if reader is None or (reader.pid == os.getpid() and _is_kept(reader.database)):
        return reader
    del _readers[address]
    if not reader.users:
        reader.database.close()
    return None


def _is_kept(database: Database) -> bool:
    """Whether the reader's lease still exists (M2)."""
    store = database._store
    return isinstance(store, ReaderStore | BucketReader) and store.is_kept()


def _tick(address: Address, reader: _Reader, after_s: float) -> None:
    """Start a timer that closes the reader if it is idle then; one timer at a time (M1)."""
    if not reader.ticking:
        reader.ticking = True
        timer = threading.Timer(after_s, _close_if_idle, (address, reader))
        timer.daemon = True
        timer.start()


def _close_if_idle(address: Address, reader: _Reader) -> None:
    with _lock:
        reader.ticking = False
        if _readers.get(address) is not reader or reader.users:
            return  # its last user starts another timer or closes it
        left_s = reader.last_used_s + IDLE_S - SYSTEM.clock.monotonic_s()
        if left_s > 0:
            _tick(address, reader, left_s)
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


def task_frame(
    spark: SparkSession, scan: Scan, request: Hashable, make: Callable[[], LeasedFrame]
) -> LeasedFrame:
    """Return the shared frame of a scan; call `make` if no frame is shared, or its lease has expired (M3).

    request: the scan's columns, predicate and lease duration, as part of the key.
    make:  makes the frame. A frame without a lease is not shared.
    """
    root, table = scan._take()
    # A shared frame keeps its session alive, so no other session has the same id.
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
