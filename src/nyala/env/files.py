"""The only door to the disk: create, append, read, sync, rename, lock.

Everything that Nyala keeps passes through a `Files`. Production has `PosixFiles` (`posix_files.py`); tests put a
recording or a failing twin in its place (`nyala.testing`) to lose power, fill disks and break syncs at will. SQLite
opens its own files; it tells us of each commit through `Files.external_commit`.

What may be relied on after a power cut (and nothing else):

    F1  Bytes of an `AppendFile` up to the last `sync()` that returned.
    F2  A file's name only once its directory was synced: after `create`, `rename`, `unlink` call `sync_dir`.
        `write_atomic`, `make_dirs` and `truncate` do all their syncing themselves.
    F3  After a `sync()` that failed nothing is known: the kernel may have dropped the dirty pages, and a
        second sync would lie. The handle is dead; its owner must open the file again and read what is there.
    F4  `write_at` promises nothing at all: what it writes must be worth nothing after a power cut. `sync_file` makes of
        it what an `AppendFile`'s sync does; until the next `write_at`, after which it may be any of the two.
    F5  Files that are bound to a store's folder (`bind`) reach every path inside it through the folder's descriptor:
        they never touch another folder that has come under the same path. Before each change they look whether the
        path still leads to that folder, and the watched file is still in it; if not, they raise StorageError.

A file opened for reading must stay where it is until its last reader is done: it may be closed in between and opened
again.

Thread-safety: `Files` and `RandomFile` may be used from any thread. An `AppendFile` and a `FileLock` belong
to one thread at a time.
Left out: memory-mapped files (a cut file would be a SIGBUS and not an error), direct I/O, Windows.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from nyala.errors import Error, StorageError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "MAY_NOT_WRITE",
    "AppendFile",
    "Bytes",
    "FileLock",
    "Files",
    "MissingFileError",
    "RandomFile",
    "storage_error",
    "write_atomic",
]

Bytes: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer"
"""Anything contiguous that can be written without a copy."""


class MissingFileError(StorageError, FileNotFoundError):
    """A file that is not there: both a `StorageError` and a `FileNotFoundError`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_missing_file_error, (self.args[0], self.path))


def _missing_file_error(message: str, path: str | None) -> MissingFileError:
    return MissingFileError(message, path=path, errno=errno.ENOENT)


class AppendFile(Protocol):
    """A new file that only grows. Made by `Files.create`; used by one thread at a time."""

    @property
    def path(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    def append(self, *parts: Bytes) -> int:
        """Write the parts one after the other at the end; returns the offset of the first byte.

        Raises: StorageError when not everything was written; then the handle is dead and the file may end in
        a part of what was given. But on a full disk (ENOSPC, EDQUOT) the file is cut back to what it was, and the
        handle can be used again.
        """
        ...

    def sync(self) -> None:
        """Make everything appended so far durable (F1). Raises StorageError, and the handle is dead (F3)."""
        ...

    def close(self) -> None:
        """Let go of the file without syncing it. May be called twice."""
        ...


class RandomFile(Protocol):
    """An existing file, read anywhere, from any thread."""

    @property
    def path(self) -> str: ...

    def size_bytes(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes:
        """The bytes [offset, offset + length), fewer at the file's end: the caller says what that means."""
        ...

    def read_into(self, offset: int, memory: Any) -> int:
        """The bytes from `offset` on into writable memory, as many as it has room for, fewer at the end of the file.

        Returns: how many they are.
        """
        ...

    def descriptor(self) -> AbstractContextManager[int | None]:
        """The system's number for the file while the context lasts, for who reads many places of it in one call; None
        of a file that wants to be asked each time."""
        ...

    def close(self) -> None:
        """Let go of the file. No other thread may be inside `read`."""
        ...


class FileLock(Protocol):
    """An exclusive lock that the system frees when the process dies, and a few bytes that say who has it."""

    @property
    def path(self) -> str: ...

    def write(self, content: bytes) -> None: ...

    def read(self) -> bytes: ...

    def release(self, unlink: bool = False) -> None:
        """Give the lock back, and take the file away if asked. May be called twice."""
        ...


class Files(Protocol):
    """Every operation on the outside's files. All raise StorageError, with errno and path."""

    def bind(self, folder: str) -> Files:
        """Files for what is in this folder, which is there (F5); to be closed."""
        ...

    def watch(self, path: str) -> None:
        """Of bound files: before each change the file at `path`, too, must be the one that is there now (F5)."""
        ...

    def check_bound(self) -> None:
        """Raises: StorageError when bound files would refuse a change (F5). Cost: two system calls."""
        ...

    def close(self) -> None:
        """Of bound files: give back every descriptor, also those of files that somebody has open for reading, who is
        then told that the store is closed. May be called twice."""
        ...

    def create(self, path: str) -> AppendFile:
        """A new, empty file; it must not be there yet. The user's umask holds."""
        ...

    def open(self, path: str) -> RandomFile:
        """Raises MissingFileError when there is none."""
        ...

    def read_all(self, path: str) -> bytes: ...

    def write_at(self, path: str, offset: int, data: bytes) -> None:
        """One write in place, without a sync (F4); the file is made when missing."""
        ...

    def sync_file(self, path: str) -> None:
        """Make durable what `write_at` wrote; not the file's name (F2)."""
        ...

    def write_atomic(self, path: str, data: bytes) -> None:
        """On return the file holds `data`, durably; after a crash it holds the old bytes or the new."""
        ...

    def truncate(self, path: str, length: int) -> None:
        """Cut the file to `length` bytes, durably."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def link(self, old: str, new: str) -> bool:
        """Give a file a second name, which nothing has yet. False: it cannot have two here (another file system, or one
        without hard links, or not for this user), or the name is taken."""
        ...

    def unlink(self, path: str, missing_ok: bool = False) -> None: ...

    def remove_tree(self, path: str) -> None:
        """Remove a folder and what is in it; no error when missing. Durable after a `sync_dir`."""
        ...

    def make_dirs(self, path: str) -> None:
        """Make a folder and its missing parents, durably; no error when it is there."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """The names in a folder, sorted; none when there is no such folder."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def identity(self, path: str) -> Hashable:
        """What tells this file from any other that has had the path, or has been changed. MissingFileError."""
        ...

    def inode(self, path: str) -> tuple[int, int]:
        """What tells this file or folder from every other one, whatever it is called. MissingFileError."""
        ...

    def free_bytes(self, path: str) -> int:
        """Space left for this user on the file system of `path`. Quotas are not in it."""
        ...

    def preallocate(self, path: str, length: int) -> None:
        """Make a file with `length` bytes that mean nothing, whose blocks are allocated, and its folder. Not synced.

        Raises: StorageError, and there is no file: ENOSPC or EDQUOT when there is no room.
        """
        ...

    def sync_dir(self, path: str) -> None:
        """Make the names in a folder durable (F2)."""
        ...

    def lock(self, path: str, *, create: bool = True) -> FileLock | None:
        """Take the lock at once, or return None: somebody has it. MissingFileError without `create`."""
        ...

    def read_lock_content(self, path: str) -> bytes:
        """What the holder of the lock, or the last one, wrote there."""
        ...

    def without_lease(self, vanished: Callable[[str], Error]) -> Files:
        """The same files, for a reader whose files may be removed at any time: `vanished(path)` is raised when `open`,
        or a later read of an opened file, does not find it."""
        ...

    def external_commit(self, path: str) -> None:
        """SQLite has just committed the database at `path` durably. Nothing to do, but tests want to know."""
        ...


MAY_NOT_WRITE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""The `errno` of a `StorageError` when this user or this file system does not allow to write."""

# What to do, by errno. The sentence stands after "cannot <verb> <path>: <system's words>".
_ADVICE: Final[dict[int, str]] = {
    errno.ENOSPC: "free some space on this file system and try again",
    errno.EDQUOT: "free some of the user's quota and try again",
    errno.EFBIG: "the file system or a limit (ulimit -f) does not allow files of this size",
    errno.EIO: "the device failed: check the disk and the system's log before going on",
    errno.EACCES: "give this user the right to read and write there",
    errno.EPERM: "give this user the right to read and write there",
    errno.EROFS: "the file system is mounted read-only",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "the whole system has too many open files",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "a part of the path is a file, not a folder: check the path",
    errno.EISDIR: "this is a folder, a file was expected: check the path",
    errno.EEXIST: "something of that name is there already",
    errno.ENOTEMPTY: "the folder is not empty",
    errno.ENAMETOOLONG: "put the store into a folder with a shorter path",
}


def storage_error(error: OSError, verb: str, path: str) -> StorageError:
    """The StorageError for an `OSError` met while trying to `verb` the file at `path`."""
    number = error.errno
    words = os.strerror(number) if number is not None else str(error)
    advice = _ADVICE.get(number) if number is not None else None
    message = f"cannot {verb} {path}: {words}" + (f"; {advice}" if advice else "")
    if number == errno.ENOENT:
        return MissingFileError(message, path=path, errno=number)
    return StorageError(message, path=path, errno=number)


def write_atomic(files: Files, path: str, data: bytes) -> None:
    """`Files.write_atomic` out of the other operations, so that every `Files` may be stopped between its steps."""
    # One name per writing thread, so that two writers of one path never share a temporary file.
    temporary = f"{path}.{os.getpid()}-{threading.get_ident():x}.tmp"
    files.unlink(temporary, missing_ok=True)
    file = files.create(temporary)
    try:
        try:
            file.append(data)
            file.sync()
        finally:
            file.close()
        files.rename(temporary, path)
    except StorageError:
        files.unlink(temporary, missing_ok=True)
        raise
    files.sync_dir(os.path.dirname(path) or ".")
