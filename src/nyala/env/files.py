"""The interface of all disk access: create, append, read, sync, rename, lock.

Everything that Nyala stores passes through a `Files`. Production has `PosixFiles`
(`posix_files.py`), and `RemoteFiles` for a bucket. Tests replace them by versions that record or
fail (`nyala.testing`), to simulate power cuts, full disks and failing syncs.

Guarantees

    F1  After a power cut, an `AppendFile` has the bytes that were appended before the last `sync()`
        that returned.
    F2  After a power cut, a file has its name only if its folder was synced. So call `sync_dir`
        after `create`, `rename` and `unlink`. `write_atomic`, `make_dirs` and `truncate` sync the
        folder themselves.
    F3  After a failed `sync()` the content of the file is unknown: the kernel may have dropped
        unwritten pages, so that a second sync could succeed although data is lost. The `AppendFile`
        cannot be used any more. Its owner must open the file again and read it.
    F4  Data of `write_at` may be lost in a power cut until `sync_file` has returned. If a power cut
        follows a `write_at` without a sync, the file has the old or the new content.
    F5  A `Files` that is bound to a store's folder (`bind`) reaches every path inside it through the
        folder's descriptor. So it never touches another folder that was moved to the store's path.
        Before each change it checks that the path still leads to the store's folder, and that the
        file given to `watch` is still in it. If not, it raises StorageError.

A file that is open for reading must keep its path: its descriptor may be closed and opened again
between two reads.

Thread safety: any thread may use `Files` and `RandomFile`. One thread at a time may use an
`AppendFile` or a `FileLock`. Files are not mapped into memory, because a truncated file would then
end the process by SIGBUS. There is no direct I/O and no Windows support.
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

Bytes: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer"
"""Any contiguous memory that can be written without a copy."""


class MissingFileError(StorageError, FileNotFoundError):
    """A file does not exist. It is both a `StorageError` and a `FileNotFoundError`."""

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

        Raises: StorageError if not everything was written. If the disk is full (ENOSPC, EDQUOT),
        the file is cut back to its old size and can still be used. After any other error the file
        may end in a part of the data, and this object cannot be used any more.
        """
        ...

    def sync(self) -> None:
        """Make all appended bytes durable, so that they survive a power cut.

        Raises: StorageError. Then the content of the file is unknown, and this object cannot be
        used any more.
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
        """Return `length` bytes from `offset` on, or fewer at the end of the file."""
        ...

    def read_into(self, offset: int, memory: Any) -> int:
        """Read from `offset` on until `memory` is full; return the number of bytes read.

        This is less than the size of `memory` if the file ends before.
        """
        ...

    def prefetch(self, places: Iterable[tuple[int, int]]) -> None:
        """Announce that these byte ranges (offset, length) will be read soon. Returns at once.

        A remote file begins to fetch the bytes that are not in its cache, by requests in parallel.
        A local file does nothing. Raises: StorageError if the file is closed.
        """
        ...

    def forget(self, offset: int, length: int) -> bool:
        """Drop these bytes from a remote file's cache, so that the next read fetches them again.

        Returns: whether any were cached. False for a local file, which has no cache.
        """
        ...

    def close(self) -> None:
        """Close the file. No other thread may be reading it."""
        ...


class FileLock(Protocol):
    """An exclusive lock on a file. The system releases it when the process dies.

    The file's content is a few bytes that describe the lock's holder.
    """

    @property
    def path(self) -> str: ...

    def write(self, content: bytes) -> None: ...

    def read(self) -> bytes: ...

    def release(self, unlink: bool = False) -> None:
        """Release the lock, and optionally delete the file. May be called twice."""
        ...


class Files(Protocol):
    """All file operations. An operation that fails raises StorageError, with errno and path."""

    @property
    def is_remote(self) -> bool:
        """Whether each operation is a request to a server, and so takes long.

        Callers then run operations at the same time, and announce reads by `RandomFile.prefetch`.
        """
        ...

    def bind(self, folder: str) -> Files:
        """Return a `Files` that keeps using this folder, even if another folder takes its path.

        The folder must exist. The caller must close the result.
        """
        ...

    def watch(self, path: str) -> None:
        """Remember the file at `path`, and check before each later change that it is still there.

        A later change of any file or folder raises StorageError if another file, or no file, is at
        `path` by then. This call has an effect only on a `Files` that `bind` returned. On any other
        `Files` it does nothing.
        """
        ...

    def check_bound(self) -> None:
        """Raise StorageError if the folder given to `bind` was moved or replaced.

        Has no effect if this object was not returned by `bind`. Cost: two system calls.
        """
        ...

    def close(self) -> None:
        """Close the folder that was given to `bind`, and all files in it that are open for reading.

        Later reads of these files raise StorageError. May be called twice. Has no effect if this
        object was not returned by `bind`.
        """
        ...

    def create(self, path: str) -> AppendFile:
        """Create a new, empty file that must not exist yet. The user's umask applies."""
        ...

    def open(self, path: str) -> RandomFile:
        """Open a file for reading.

        Raises: MissingFileError if it does not exist; a remote file raises it at the first read.
        """
        ...

    def read_all(self, path: str) -> bytes: ...

    def write_at(self, path: str, offset: int, data: Bytes) -> None:
        """Write `data` at `offset` of a file, and create the file if it is missing.

        The data may be lost in a power cut until `sync_file` has returned.
        """
        ...

    def sync_file(self, path: str) -> None:
        """Make the data of `write_at` durable. The name of a new file also needs `sync_dir`."""
        ...

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace a file's content durably. After a crash, the file has the old or new content."""
        ...

    def truncate(self, path: str, length: int) -> None:
        """Cut the file to `length` bytes, durably."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def link(self, old: str, new: str) -> bool:
        """Give a file a second name. Return False if this is not possible.

        It is not possible if the name is used or is on another file system, if the file system has
        no hard links, or if this user may not do it.
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
        """Return the names in a folder, sorted. The list is empty if the folder does not exist."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def status(self, path: str) -> FileStatus:
        """Return the status of a file or folder. Raises: MissingFileError."""
        ...

    def identity(self, path: str) -> Hashable:
        """Return a value that changes if the file is replaced or its content changes.

        Raises: MissingFileError.
        """
        ...

    def inode(self, path: str) -> tuple[int, int]:
        """Return a value that identifies a file or folder: all its hard links have the same value.

        Raises: MissingFileError.
        """
        ...

    def free_bytes(self, path: str) -> int:
        """Return the user's free space on the file system of `path`. Quotas are not considered."""
        ...

    def preallocate(self, path: str, length: int) -> None:
        """Create a file that occupies `length` bytes of the disk, with undefined content.

        Creates the file's folder if it is missing. Syncs nothing. Raises: StorageError, and then
        the file does not exist. The error's errno is ENOSPC or EDQUOT if there is no space.
        """
        ...

    def sync_dir(self, path: str) -> None:
        """Make all earlier `create`, `rename` and `unlink` calls in a folder durable."""
        ...

    def lock(self, path: str, *, create: bool = True) -> FileLock | None:
        """Lock a file exclusively; return None if another owner has the lock.

        create: create the file if it is missing. Otherwise a missing file raises MissingFileError.
        """
        ...

    def read_lock_content(self, path: str) -> bytes:
        """Return the content of a lock file, which its present or last holder wrote."""
        ...

    def without_lease(self, vanished: Callable[[str], Error]) -> Files:
        """Return a `Files` for a reader without a lease, whose open files the writer may remove.

        If `open` or a later read does not find a file, it raises the error `vanished(path)`.
        """
        ...


MAY_NOT_WRITE: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""The `errno` of a `StorageError` if this user or file system may not write."""

# The advice of an error message, by errno. Before it stands "cannot <verb> <path>: <system's message>".
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
    """Convert an `OSError` to a StorageError. verb: the operation on the file, such as "read"."""
    number = error.errno
    reason = os.strerror(number) if number is not None else str(error)
    advice = _ADVICE.get(number) if number is not None else None
    message = f"cannot {verb} {path}: {reason}" + (f"; {advice}" if advice else "")
    if number == errno.ENOENT:
        return MissingFileError(message, path=path, errno=number)
    return StorageError(message, path=path, errno=number)


def write_atomic(files: Files, path: str, data: bytes) -> None:
    """Replace a file's content durably. After a crash, the file has the old or new content.

    This function implements `Files.write_atomic`. It calls only other methods of `files`, so that a
    test can let each of them fail.
    """
    # Each thread has its own name, so that two writers of one path never share a temporary file.
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
