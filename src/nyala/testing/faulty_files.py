"""Files that fail or kill: how the tests let disks break, and end a process, at every moment of a run.

    FaultyFiles      lets the n-th operation fail (I/O error, full disk, half a write) or stops the world there
    UnreadableFiles  lets the n-th read fail
    KillingFiles     kills its own process, for real, at the n-th sync, write, rename or unlink

They wrap each other, `RecordingFiles` and `PosixFiles`; each is a `Files`.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from nyala.env import AppendFile, Bytes, Files, RandomFile
from nyala.env.reserve import is_full
from nyala.errors import StorageError
from nyala.testing.file_wrapper import FileWrapper

__all__ = [
    "NAMES",
    "SYNCS",
    "WRITES",
    "FaultKind",
    "FaultyFiles",
    "KillingFiles",
    "Operation",
    "SimulatedCrash",
    "UnreadableFiles",
]


class SimulatedCrash(BaseException):
    """The process has crashed, in simulation. A BaseException, so that no error handler catches it."""


@dataclass(frozen=True)
class Operation:
    """One change of the file system that is about to happen."""

    kind: str
    path: str


class _WatchedFile:
    """An AppendFile that calls its owner before every operation."""

    def __init__(self, inner: AppendFile, owner: _Watcher) -> None:
        self._inner = inner
        self._owner = owner
        self._dead = False

    @property
    def path(self) -> str:
        return self._inner.path

    @property
    def size_bytes(self) -> int:
        return self._inner.size_bytes

    def _check(self) -> None:
        if self._dead:
            raise StorageError(
                f"cannot use {self.path}: an earlier call failed", path=self.path, errno=errno.EIO
            )

    def append(self, *parts: Bytes) -> int:
        self._check()
        try:
            self._owner.before(Operation("append", self.path))
        except _ShortWrite as short:
            self._dead = True
            data = b"".join(bytes(memoryview(part).cast("B")) for part in parts)
            self._inner.append(data[: len(data) // 2])
            raise short.error from None
        except StorageError as error:
            self._dead = not is_full(error)
            raise
        offset = self._inner.append(*parts)
        self._owner.after(Operation("append", self.path))
        return offset

    def sync(self) -> None:
        self._check()
        try:
            self._owner.before(Operation("sync", self.path))
        except StorageError:
            self._dead = True
            raise
        self._inner.sync()
        self._owner.after(Operation("sync", self.path))

    def close(self) -> None:
        self._inner.close()


class _Watcher(FileWrapper):
    """Calls `before` before every change, and `after` after it."""

    def before(self, operation: Operation) -> None:
        raise NotImplementedError

    def after(self, operation: Operation) -> None:
        pass

    def create(self, path: str) -> AppendFile:
        self.before(Operation("create", path))
        file = _WatchedFile(self._inner.create(path), self)
        self.after(Operation("create", path))
        return file

    def write_at(self, path: str, offset: int, data: Bytes) -> None:
        try:
            self.before(Operation("write_at", path))
        except _ShortWrite as short:
            self._inner.write_at(path, offset, data[: len(data) // 2])
            raise short.error from None
        self._inner.write_at(path, offset, data)
        self.after(Operation("write_at", path))

    def sync_file(self, path: str) -> None:
        self.before(Operation("sync", path))
        self._inner.sync_file(path)
        self.after(Operation("sync", path))

    def truncate(self, path: str, length: int) -> None:
        self.before(Operation("truncate", path))
        self._inner.truncate(path, length)
        self.after(Operation("truncate", path))

    def rename(self, old: str, new: str) -> None:
        self.before(Operation("rename", new))
        self._inner.rename(old, new)
        self.after(Operation("rename", new))

    def link(self, old: str, new: str) -> bool:
        self.before(Operation("link", new))
        linked = self._inner.link(old, new)
        self.after(Operation("link", new))
        return linked

    def unlink(self, path: str, missing_ok: bool = False) -> None:
        if missing_ok and not self._inner.exists(path):
            return
        self.before(Operation("unlink", path))
        self._inner.unlink(path, missing_ok)
        self.after(Operation("unlink", path))

    def remove_tree(self, path: str) -> None:
        if not self._inner.exists(path):
            return
        self.before(Operation("remove_tree", path))
        self._inner.remove_tree(path)
        self.after(Operation("remove_tree", path))

    def make_dirs(self, path: str) -> None:
        if self._inner.exists(path):
            return
        self.before(Operation("make_dirs", path))
        self._inner.make_dirs(path)
        self.after(Operation("make_dirs", path))

    def sync_dir(self, path: str) -> None:
        self.before(Operation("sync_dir", path))
        self._inner.sync_dir(path)
        self.after(Operation("sync_dir", path))


# ── failing ─────────────────────────────────────────────────────────────────────────────────────────────────────────

FaultKind: TypeAlias = Literal["eio", "enospc", "short", "crash"]

# These operations need no space, so they succeed on a full disk.
_WITHOUT_SPACE: Final = frozenset({"sync", "sync_dir", "unlink", "remove_tree", "truncate"})


class _ShortWrite(Exception):
    """Half of the write is performed before `error` is raised."""

    def __init__(self, error: StorageError) -> None:
        super().__init__()
        self.error = error


class FaultyFiles(_Watcher):
    """Fails at the `fail_at`-th operation (counted from 1) among those that `only` accepts; None: only counts.

    eio      that operation, and only that, is not made and raises EIO; an AppendFile is dead after it
    enospc   from there on the disk is full: everything that needs space raises ENOSPC, `free_bytes` is 0; `heal()`
    short    as enospc, but half of the write is made first
    crash    SimulatedCrash, there and at every later operation: nothing more reaches the disk

    Around a RecordingFiles, "crash" and then `crash_image(len(recording.events), …)` is a power cut there.
    Threads: any; the count is over all of them.
    """

    def __init__(
        self,
        inner: Files,
        fail_at: int | None = None,
        kind: FaultKind = "eio",
        only: Callable[[Operation], bool] | None = None,
    ) -> None:
        super().__init__(inner)
        self.fail_at = fail_at
        self.kind: FaultKind = kind
        self.operations: list[Operation] = []
        """Every operation counted so far."""
        self.failed: list[Operation] = []
        """Those that were made to fail."""
        self._only = only
        self._full = False
        self._crashed = False
        self._lock = threading.Lock()

    def fill(self) -> None:
        """The disk is full from now on, until `heal()`."""
        self._full = True

    def heal(self) -> None:
        """Give the disk its space back."""
        self._full = False

    def free_bytes(self, path: str) -> int:
        return 0 if self._full else super().free_bytes(path)

    def preallocate(self, path: str, length: int) -> None:
        # Not counted, because nothing reads the reserve.
        operation = Operation("preallocate", path)
        if self._crashed:
            raise SimulatedCrash(operation)
        if self._full:
            raise _fault(operation, errno.ENOSPC)
        super().preallocate(path, length)

    def before(self, operation: Operation) -> None:
        with self._lock:
            if self._crashed:
                raise SimulatedCrash(operation)
            if self._full and operation.kind not in _WITHOUT_SPACE:
                self.failed.append(operation)
                raise _fault(operation, errno.ENOSPC)
            if self._only is not None and not self._only(operation):
                return
            self.operations.append(operation)
            if len(self.operations) != self.fail_at:
                return
            self.failed.append(operation)
            if self.kind == "crash":
                self._crashed = True
                raise SimulatedCrash(operation)
            if self.kind == "eio":
                raise _fault(operation, errno.EIO)
            self._full = True
            error = _fault(operation, errno.ENOSPC)
            if self.kind == "short" and operation.kind in ("append", "write_at"):
                raise _ShortWrite(error)
            raise error


class _UnreliableFile:
    """A RandomFile that calls its owner before every read."""

    def __init__(self, inner: RandomFile, owner: UnreadableFiles) -> None:
        self._inner = inner
        self._owner = owner

    @property
    def path(self) -> str:
        return self._inner.path

    def size_bytes(self) -> int:
        return self._inner.size_bytes()

    def read(self, offset: int, length: int) -> bytes:
        self._owner.before(Operation("read", self.path))
        return self._inner.read(offset, length)

    def read_into(self, offset: int, memory: Any) -> int:
        self._owner.before(Operation("read", self.path))
        return self._inner.read_into(offset, memory)

    def ensure(self, places: Iterable[tuple[int, int]]) -> None:
        self._inner.ensure(places)

    def forget(self, offset: int, length: int) -> bool:
        return self._inner.forget(offset, length)

    def close(self) -> None:
        self._inner.close()


class UnreadableFiles(FileWrapper):
    """The `fail_at`-th read (counted from 1) raises EIO, and only that one; None: only counts.

    A read is the opening of a file, a piece of it read, or a whole file read at once; writes work. Threads: any; the
    count is over all of them.
    """

    def __init__(self, inner: Files, fail_at: int | None = None) -> None:
        super().__init__(inner)
        self.fail_at = fail_at
        self.operations: list[Operation] = []
        """Every read counted so far: "open", "read" or "read_all"."""
        self.failed: Operation | None = None
        self._lock = threading.Lock()

    def before(self, operation: Operation) -> None:
        with self._lock:
            self.operations.append(operation)
            if len(self.operations) == self.fail_at:
                self.failed = operation
                raise _fault(operation, errno.EIO)

    def open(self, path: str) -> RandomFile:
        self.before(Operation("open", path))
        return _UnreliableFile(self._inner.open(path), self)

    def read_all(self, path: str) -> bytes:
        self.before(Operation("read_all", path))
        return self._inner.read_all(path)


def _fault(operation: Operation, number: int) -> StorageError:
    return StorageError(
        f"cannot {operation.kind} {operation.path}: {os.strerror(number)} (a fault that the test asked for)",
        path=operation.path,
        errno=number,
    )


SYNCS: Final = frozenset({"sync", "sync_dir", "truncate"})
"""Kinds of operations that make data durable."""
WRITES: Final = frozenset({"create", "append", "write_at"})
"""Kinds of operations that write bytes or create a file."""
NAMES: Final = frozenset({"rename", "link", "unlink", "remove_tree", "make_dirs"})
"""Kinds of operations that change names."""


class KillingFiles(_Watcher):
    """SIGKILLs its own process at the `kill_at`-th operation of `kinds`, before or after it is made.

    By default these are the syncs: those of files and folders, and `truncate` (which syncs). For a
    child process: nothing can be caught, no file is closed, no footer written.
    """

    def __init__(
        self,
        inner: Files,
        kill_at: int | None = None,
        when: Literal["before", "after"] = "before",
        kinds: Collection[str] = SYNCS,
    ) -> None:
        super().__init__(inner)
        self.kill_at = kill_at
        self.when = when
        self.count = 0
        """Operations of these kinds so far."""
        self._kinds = frozenset(kinds)
        self._lock = threading.Lock()
        self._condemned: int | None = None  # the thread that makes the fatal operation

    def before(self, operation: Operation) -> None:
        if operation.kind in self._kinds:
            with self._lock:
                self.count += 1
                if self.count == self.kill_at:
                    self._condemned = threading.get_ident()
                    if self.when == "before":
                        os.kill(os.getpid(), signal.SIGKILL)

    def after(self, operation: Operation) -> None:
        if operation.kind in self._kinds and self._condemned == threading.get_ident():
            os.kill(os.getpid(), signal.SIGKILL)
