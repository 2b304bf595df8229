"""File access that fails or kills the process at a chosen operation, so that a test can try every
moment of a run.

    FaultyFiles      the n-th operation fails (I/O error, full disk, half a write), or simulates a
                     crash
    UnreadableFiles  the n-th read fails
    KillingFiles     kills its own process with SIGKILL at the n-th sync, write, rename or unlink

Each class is a `Files` around another one: `PosixFiles`, `RecordingFiles`, or a class of this
module.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from nyala.env import AppendFile, Bytes, Files, RandomFile
from nyala.env.reserve import is_full
from nyala.errors import StorageError
from nyala.testing.file_wrapper import AppendFileWrapper, FileWrapper

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
    """Simulates the end of the process. It is a BaseException, so that no error handler catches it."""


@dataclass(frozen=True)
class Operation:
    """One change of the file system, or one read.

    kind: the name of the called method. For `sync_file` the kind is "sync".
    """

    kind: str
    path: str


class _WatchedFile(AppendFileWrapper["_Watcher"]):
    """An AppendFile that calls the methods `before` and `after` of its owner at every operation."""

    def __init__(self, inner: AppendFile, owner: _Watcher) -> None:
        super().__init__(inner, owner)
        self._dead = False

    def _check(self) -> None:
        if self._dead:
            raise StorageError(
                f"cannot use {self.path}: an earlier call failed", path=self.path, errno=errno.EIO
            )

    def append(self, *parts: Bytes) -> int:
        self._check()
        try:
            with self._owner.around("append", self.path):
                return self._inner.append(*parts)
        except _ShortWrite as short:
            self._dead = True
            data = b"".join(bytes(memoryview(part).cast("B")) for part in parts)
            self._inner.append(data[: len(data) // 2])
            raise short.error from None
        except StorageError as error:
            self._dead = not is_full(error)
            raise

    def sync(self) -> None:
        self._check()
        try:
            with self._owner.around("sync", self.path):
                self._inner.sync()
        except StorageError:
            self._dead = True
            raise


class _Watcher(FileWrapper):
    """Base class of the failing files: calls `before` before each change, and `after` after it.

    A subclass lets the change fail by raising in `before`. `after` is called only if the change
    succeeded.
    """

    def before(self, operation: Operation) -> None:
        raise NotImplementedError

    def after(self, operation: Operation) -> None:
        pass

    @contextmanager
    def around(self, kind: str, path: str) -> Iterator[None]:
        operation = Operation(kind, path)
        self.before(operation)
        yield
        self.after(operation)

    def create(self, path: str) -> AppendFile:
        with self.around("create", path):
            return _WatchedFile(self._inner.create(path), self)

    def write_at(self, path: str, offset: int, data: Bytes) -> None:
        try:
            with self.around("write_at", path):
                self._inner.write_at(path, offset, data)
        except _ShortWrite as short:
            self._inner.write_at(path, offset, data[: len(data) // 2])
            raise short.error from None

    def sync_file(self, path: str) -> None:
        with self.around("sync", path):
            self._inner.sync_file(path)

    def truncate(self, path: str, length: int) -> None:
        with self.around("truncate", path):
            self._inner.truncate(path, length)

    def rename(self, old: str, new: str) -> None:
        with self.around("rename", new):
            self._inner.rename(old, new)

    def link(self, old: str, new: str) -> bool:
        with self.around("link", new):
            return self._inner.link(old, new)

    def unlink(self, path: str, missing_ok: bool = False) -> None:
        if not missing_ok or self._inner.exists(path):
            with self.around("unlink", path):
                self._inner.unlink(path, missing_ok)

    def remove_tree(self, path: str) -> None:
        if self._inner.exists(path):
            with self.around("remove_tree", path):
                self._inner.remove_tree(path)

    def make_dirs(self, path: str) -> None:
        if not self._inner.exists(path):
            with self.around("make_dirs", path):
                self._inner.make_dirs(path)

    def sync_dir(self, path: str) -> None:
        with self.around("sync_dir", path):
            self._inner.sync_dir(path)


# ── failing ─────────────────────────────────────────────────────────────────────────────────────────────────────────

FaultKind: TypeAlias = Literal["eio", "enospc", "short", "crash"]

# These operations need no space, so they succeed on a full disk.
_WITHOUT_SPACE: Final = frozenset({"sync", "sync_dir", "unlink", "remove_tree", "truncate"})


class _ShortWrite(Exception):
    """Raised by `FaultyFiles.before` to let a write fail after half of its data.

    error: what the write raises when it has stored this half.
    """

    def __init__(self, error: StorageError) -> None:
        super().__init__()
        self.error = error


class FaultyFiles(_Watcher):
    """Files whose `fail_at`-th operation fails, counted from 1; None: no operation fails.

    `only` returns whether an operation counts; default: all count. `kind` says how the operation
    fails:

    eio      Only this operation raises EIO and does nothing. An AppendFile cannot be used
             afterwards.
    enospc   The disk is full until `heal()`: every operation that needs space raises ENOSPC, and
             `free_bytes` is 0.
    short    As enospc, but a failing write first writes half of its data.
    crash    This operation and every later one raise SimulatedCrash, so nothing more reaches the
             disk.

    To simulate a power cut, wrap a `RecordingFiles`, crash, and call its
    `crash_image(len(recording.events), …)`. Thread-safe: the operations of all threads are counted
    together.
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
        """Every counted operation, also the failing one."""
        self.failed: list[Operation] = []
        """The operations that failed. On a full disk these are also operations that do not count."""
        self._only = only
        self._full = False
        self._crashed = False
        self._lock = threading.Lock()

    def fill(self) -> None:
        """Make the disk full until `heal()`."""
        self._full = True

    def heal(self) -> None:
        """Make the disk have room again."""
        self._full = False

    def free_bytes(self, path: str) -> int:
        return 0 if self._full else super().free_bytes(path)

    def preallocate(self, path: str, length: int) -> None:
        # Not counted as an operation, because nobody reads the reserved space.
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
    """A `RandomFile` whose reads may fail.

    Before every read it calls `owner.before`, which raises the error of a read that must fail.

    inner: the file that is read. owner: the `UnreadableFiles` that opened it.
    """

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

    def prefetch(self, places: Iterable[tuple[int, int]]) -> None:
        self._inner.prefetch(places)

    def forget(self, offset: int, length: int) -> bool:
        return self._inner.forget(offset, length)

    def close(self) -> None:
        self._inner.close()


class UnreadableFiles(FileWrapper):
    """Files whose `fail_at`-th read raises EIO, counted from 1; None: no read fails.

    Opening a file, reading a part of it, and reading it as a whole are one read each. Writes never
    fail. Thread-safe: the reads of all threads are counted together.
    """

    def __init__(self, inner: Files, fail_at: int | None = None) -> None:
        super().__init__(inner)
        self.fail_at = fail_at
        self.operations: list[Operation] = []
        """Every read so far, of the kinds "open", "read" and "read_all"."""
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
        f"cannot {operation.kind} {operation.path}: {os.strerror(number)} (a fault of the test)",
        path=operation.path,
        errno=number,
    )


SYNCS: Final = frozenset({"sync", "sync_dir", "truncate"})
"""The kinds of operations that make data durable. `truncate` syncs too."""
WRITES: Final = frozenset({"create", "append", "write_at"})
"""The kinds of operations that write bytes or create a file."""
NAMES: Final = frozenset({"rename", "link", "unlink", "remove_tree", "make_dirs"})
"""The kinds of operations that change names in a folder."""


class KillingFiles(_Watcher):
    """Kills its own process with SIGKILL before or after the `kill_at`-th operation of `kinds`.

    Use it in a child process of a test. The process ends at once: no error handler runs, and no
    file is closed. kinds: `SYNCS`, `WRITES`, `NAMES`, or any other set of kinds of `Operation`.
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
        """The number of operations of these kinds so far."""
        self._kinds = frozenset(kinds)
        self._lock = threading.Lock()
        self._condemned: int | None = None  # the thread of the fatal operation

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
