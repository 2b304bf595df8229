"""The writer's lock: at most one process writes to a store, and opens it once.

While the writer lives, it holds a lock (flock) on the file `lock` in the store's folder. The system
releases the lock when the process dies, so the next process can take it at once. The file's content
{pid, host, started, purpose} names the holder in messages of other processes. `purpose` tells a
writer from a process that holds the lock for one commit. A released lock file is empty.

flock belongs to an open file and not to a process, so a process cannot take the lock twice. A second
`connect` in one process therefore shares the open store (`nyala.api.opening.open_store`).
Source: docs/design/processes-and-locks.md, "One writer, and commits of others".
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import os
import socket
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from nyala.catalog.format import LOCK_NAME
from nyala.env import Env, FileLock, MissingFileError
from nyala.env.interrupts import Interruptible
from nyala.errors import LockedError, StorageError

Purpose: TypeAlias = Literal["writer", "commit"]

_POLL_S: Final = 0.05
# `is_taken` of another process holds the lock for a moment, so `acquire` tries for at least this time.
_PATIENCE_S: Final = 0.1
# `acquire` waits for this time if the lock is held for one commit, which ends by itself.
_COMMIT_WAIT_S: Final = 60.0
_PID_MAX: Final = (1 << 31) - 1
_NAME_WAIT_S: Final = 0.2  # a holder that has just taken the lock has this time to write its name


@dataclass(frozen=True)
class LockHolder:
    """The content of a lock file. `started` is a time in ISO format, UTC."""

    pid: int
    host: str
    started: str
    purpose: Purpose = "writer"


class StoreLock:
    """The lock of the store at `directory`. Used by one thread at a time."""

    def __init__(self, env: Env, directory: str) -> None:
        self.path: Final = os.path.join(directory, LOCK_NAME)
        self._directory = directory
        self._env = env
        self._lock: FileLock | None = None
        self._pid = os.getpid()

    @property
    def held(self) -> bool:
        return self._lock is not None and self._pid == os.getpid()

    def acquire(self, timeout_s: float = 0.0, purpose: Purpose = "writer") -> None:
        """Take the lock; wait for at most `timeout_s` seconds.

        If the lock is held for one commit, wait for up to a minute in any case.
        purpose: "writer", or "commit" to hold the lock for one commit.
        Raises: LockedError, which names the holder's pid and host.
        """
        assert self._lock is None, "the lock is already held"
        clock = self._env.clock
        start_s = clock.monotonic_s()
        while True:
            lock = self._env.files.lock(self.path)
            if lock is not None:
                break
            holder = self.holder()
            patience_s = _COMMIT_WAIT_S if holder is not None and holder.purpose == "commit" else _PATIENCE_S
            left_s = start_s + max(timeout_s, patience_s) - clock.monotonic_s()
            if left_s <= 0:
                raise self.refusal(timeout_s)
            with Interruptible():
                clock.sleep_s(min(_POLL_S, left_s))
        self._lock, self._pid = lock, os.getpid()
        started = dt.datetime.fromtimestamp(clock.now_us() / 1e6, dt.UTC).isoformat(timespec="seconds")
        who = {"pid": os.getpid(), "host": socket.gethostname(), "started": started, "purpose": purpose}
        try:
            lock.write(json.dumps(who).encode() + b"\n")
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the lock. May be called twice. In a forked child, the parent keeps the lock."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        try:
            if self._pid == os.getpid():
                lock.write(b"")  # so that nobody takes this process for the next holder
        finally:
            lock.release()

    def is_taken(self) -> bool:
        """Return whether a process holds the lock. Does not create the lock file."""
        try:
            lock = self._env.files.lock(self.path, create=False)
        except MissingFileError:
            return False
        if lock is None:
            return True
        lock.release()
        return False

    def holder(self) -> LockHolder | None:
        """Return the process that the lock file names; None if it names no process.

        This is the holder of the lock, or the last holder if that process was killed.
        """
        try:
            return _named_in(self._env.files.read_lock_content(self.path))
        except StorageError:
            return None

    def __enter__(self) -> StoreLock:
        if not self.held:
            self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def refusal(self, timeout_s: float) -> LockedError:
        """Return the error for a lock that another process holds.

        timeout_s: how long the caller waited, for the message.
        """
        clock = self._env.clock
        deadline_s = clock.monotonic_s() + _NAME_WAIT_S
        while (holder := self.holder()) is None and clock.monotonic_s() < deadline_s:
            clock.sleep_s(_NAME_WAIT_S / 10)
        waited = f" (waited {timeout_s:g} s)" if timeout_s > 0 else ""
        if holder is None:
            who, what = "by another process", "that process"
        elif (holder.pid, holder.host) == (os.getpid(), socket.gethostname()):
            # A check or repair of a store that this process has open. `connect` would share it.
            who = f"by this process (pid {holder.pid} on {holder.host}), open since {holder.started}"
            return LockedError(
                f"the store {self._directory} is already written {who}{waited}: close() it first"
            )
        else:
            who = f"by process {holder.pid} on {holder.host}, open since {holder.started}"
            what = f"process {holder.pid}"
        return LockedError(
            f"the store {self._directory} is already written {who}{waited}: open it with read_only=True, "
            f"wait for the writer to close it with lock_timeout=seconds, or end {what}"
        )


@functools.lru_cache(maxsize=16)
def _named_in(content: bytes) -> LockHolder | None:
    # Cached, because a reader process calls this before each scan, mostly with the same bytes.
    try:
        fields = json.loads(content.partition(b"\n")[0])
        purpose: Purpose = "commit" if fields["purpose"] == "commit" else "writer"
        pid = int(fields["pid"])
        if not 0 < pid <= _PID_MAX:
            return None
        return LockHolder(pid, str(fields["host"]), str(fields["started"]), purpose)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
