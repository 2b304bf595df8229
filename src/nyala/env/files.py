"""The interface of all disk access: create, append, read, sync, rename, lock.

Everything that Nyala stores passes through a `Files`. Production has `PosixFiles`
(`posix_files.py`). Tests replace it by a recording or failing version (`nyala.testing`), to
simulate power cuts, full disks and failing syncs.

Guarantees after a power cut:

    F1  The bytes of an `AppendFile` up to the last `sync()` that returned.
    F2  A file's name only after its directory was synced: call `sync_dir` after `create`, `rename`
        and `unlink`. `write_atomic`, `make_dirs` and `truncate` sync everything themselves.
    F3  After a failed `sync()` nothing is known: the kernel may have dropped the dirty pages, and a
        second sync could succeed falsely. The handle is dead; its owner must open the file again
        and read it.
    F4  `write_at` guarantees nothing: its data must be unimportant after a power cut. `sync_file`
        makes them durable until the next `write_at`; after that, the file may have either content.
    F5  Files that are bound to a store's folder (`bind`) access every path inside it through the
        folder's descriptor, so they never touch another folder that has taken its path. Before each
        change they check that the path still leads to that folder and that the watched file is
        still in it; if not, they raise StorageError.

A file that is opened for reading must keep its path until its last reader is done: its descriptor
may be closed and opened again in between.

Thread safety: any thread may use `Files` and `RandomFile`. One thread at a time may use an
`AppendFile` or a `FileLock`. There are no memory-mapped files (a truncated file would cause a
SIGBUS instead of an error), no direct I/O, and no Windows support.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from nyala.errors import Error, StorageError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "MAY_NOT_WRITE",
    "AppendFile",
    "Bytes",
    "FileLock",
    "FileStatus",
    "Files",
    "MissingFileError",
    "RandomFile",
    "storage_error",
    "write_atomic",
]

Bytes: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer"
"""Any contiguous memory that can be written without a copy."""


class MissingFileError(StorageError, FileNotFoundError):
    """A file is missing: both a `StorageError` and a `FileNotFoundError`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_missing_file_error, (self.args[0], self.path))


def _missing_file_error(message: str, path: str | None) -> MissingFileError:
    return MissingFileError(message, path=path, errno=errno.ENOENT)


class FileStatus(NamedTuple):
    """A file's size, the time of its last write by the file system's clock, and its kind."""

    size_bytes: int
    modified_us: int
    is_folder: bool


class AppendFile(Protocol):
    """A new file that only grows. `Files.create` creates it; one thread at a time uses it."""

    @property
    def path(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    def append(self, *parts: Bytes) -> int:
        """Write the parts one after another at the end; return the offset of the first byte.

        Raises: StorageError if not everything was written. Then the handle is dead, and the file
        may end in a part of the data. But on a full disk (ENOSPC, EDQUOT) the file is cut back to
        its old size, and the handle stays usable.
        """
        ...

    def sync(self) -> None:
        """Make everything appended so far durable (F1).

        Raises StorageError; then the handle is dead (F3).
        """
        ...

    def close(self) -> None:
        """Close the file without syncing it. May be called twice."""
        ...


class RandomFile(Protocol):
    """An existing file that any thread may read at any offset."""

    @property
    def path(self) -> str: ...

    def size_bytes(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes [offset, offset + length), or fewer at the end of the file."""
        ...

    def read_into(self, offset: int, memory: Any) -> int:
        """Read from `offset` on into writable memory, until it is full or the file ends.

        Returns: the number of bytes read.
        """
        ...

    def ensure(self, places: Iterable[tuple[int, int]]) -> None:
        """Say that these places (offset, length) will be read soon; returns at once.

        A remote file begins to fetch what it does not have yet, all places in one round of
        requests. A local file does nothing. Raises: StorageError if the file is closed.
        """
        ...

    def forget(self, offset: int, length: int) -> bool:
        """Drop cached copies of these bytes; the next read fetches them from their origin.

        Returns: whether there was a copy. False for a local file, which would read the same again.
        """
        ...

    def close(self) -> None:
        """Close the file. No other thread may be inside of `read`."""
        ...


class FileLock(Protocol):
    """An exclusive lock that the system releases when the process dies, with a few bytes that
    describe its holder.
    """

    @property
    def path(self) -> str: ...

    def write(self, content: bytes) -> None: ...

    def read(self) -> bytes: ...

    def release(self, unlink: bool = False) -> None:
        """Release the lock, and optionally delete the file. May be called twice."""
        ...


class Files(Protocol):
    """Every file operation. All raise StorageError, with errno and path."""

    @property
    def is_remote(self) -> bool:
        """Whether each operation is a request that takes long.

        If so, callers overlap operations, and say by `RandomFile.ensure` what they will read.
        """
        ...

    def bind(self, folder: str) -> Files:
        """Return files that are bound to this existing folder (F5). The caller must close them."""
        ...

    def watch(self, path: str) -> None:
        """For bound files: check before each change that `path` is still the same file (F5)."""
        ...

    def check_bound(self) -> None:
        """Raise StorageError if bound files would reject a change (F5). Cost: two system calls."""
        ...

    def close(self) -> None:
        """For bound files: close every descriptor, also of files that are open for reading. May be
        called twice.

        Later reads of these files raise an error that the store is closed.
        """
        ...

    def create(self, path: str) -> AppendFile:
        """Create a new, empty file that must not exist yet. The user's umask applies."""
        ...

    def open(self, path: str) -> RandomFile:
        """Open a file for reading. Raises MissingFileError if it does not exist.

        Remote files raise it at the first read.
        """
        ...

    def read_all(self, path: str) -> bytes: ...

    def write_at(self, path: str, offset: int, data: Bytes) -> None:
        """Write in place without a sync (F4); the file is created if it is missing."""
        ...

    def sync_file(self, path: str) -> None:
        """Make the data of `write_at` durable, but not the file's name (F2)."""
        ...

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace the file's content by `data`, durably.

        After a crash, the file has the old or the new content.
        """
        ...

    def truncate(self, path: str, length: int) -> None:
        """Cut the file to `length` bytes, durably."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def link(self, old: str, new: str) -> bool:
        """Give a file a second, unused name. Return False if that is not possible.

        That is so on another file system, one without hard links, without permission, or if the
        name is used.
        """
        ...

    def unlink(self, path: str, missing_ok: bool = False) -> None: ...

    def remove_tree(self, path: str) -> None:
        """Remove a folder and its content; no error if it is missing. Durable after `sync_dir`."""
        ...

    def make_dirs(self, path: str) -> None:
        """Create a folder and its missing parents, durably; no error if it exists."""
        ...

    def list_dir(self, path: str) -> list[str]:
        """Return the names in a folder, sorted; none if the folder does not exist."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def status(self, path: str) -> FileStatus:
        """Return what the file system tells about a file or folder. Raises: MissingFileError."""
        ...

    def identity(self, path: str) -> Hashable:
        """Return a value that distinguishes this file and its content from others at the path.

        Raises: MissingFileError.
        """
        ...

    def inode(self, path: str) -> tuple[int, int]:
        """Return a value that distinguishes this file or folder from all others, under any name.

        Raises: MissingFileError.
        """
        ...

    def free_bytes(self, path: str) -> int:
        """Return the user's free space on the file system of `path`; quotas do not count."""
        ...

    def preallocate(self, path: str, length: int) -> None:
        """Create a file of `length` meaningless bytes with allocated blocks, and its folder. Not
        synced.

        Raises: StorageError, and then there is no file; ENOSPC or EDQUOT if there is no space.
        """
        ...

    def sync_dir(self, path: str) -> None:
        """Make the names in a folder durable (F2)."""
        ...

    def lock(self, path: str, *, create: bool = True) -> FileLock | None:
        """Take the lock, or return None if it is held. Raises MissingFileError without `create`."""
        ...

    def read_lock_content(self, path: str) -> bytes:
        """Return what the holder of the lock, or the last one, wrote there."""
        ...

    def without_lease(self, vanished: Callable[[str], Error]) -> Files:
        """Return files for a reader without a lease, whose files may be removed at any time.

        If `open`, or a later read of an opened file, does not find it, `vanished(path)` is raised.
        """
        ...


MAY_NOT_WRITE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""The `errno` of a `StorageError` if this user or file system may not write."""

# What to do, by errno. It follows "cannot <verb> <path>: <the system's message>".
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
    errno.EEXIST: "a file or folder of this name exists already",
    errno.ENOTEMPTY: "the folder is not empty",
    errno.ENAMETOOLONG: "move the store to a folder with a shorter path",
}


def storage_error(error: OSError, verb: str, path: str) -> StorageError:
    """Return the StorageError for an `OSError` from trying to `verb` the file at `path`."""
    number = error.errno
    reason = os.strerror(number) if number is not None else str(error)
    advice = _ADVICE.get(number) if number is not None else None
    message = f"cannot {verb} {path}: {reason}" + (f"; {advice}" if advice else "")
    if number == errno.ENOENT:
        return MissingFileError(message, path=path, errno=number)
    return StorageError(message, path=path, errno=number)


def write_atomic(files: Files, path: str, data: bytes) -> None:
    """`Files.write_atomic` as single operations, so that tests can stop between its steps."""
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
