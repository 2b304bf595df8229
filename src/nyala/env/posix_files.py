"""`Files` for Linux and macOS, by system calls.

More files can be open for reading than a process can have descriptors: the descriptor of a file
that no thread reads may be closed, and opened again later (`_IdleDescriptors`). `files.py`
documents guarantees and thread safety.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import sys
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeVar, cast

from nyala.env.files import (
    AppendFile,
    Bytes,
    FileLock,
    Files,
    FileStatus,
    MissingFileError,
    RandomFile,
    storage_error,
    write_atomic,
)
from nyala.errors import Error, StorageError

try:
    import fcntl
    import resource
except ImportError:  # Windows: `system_files()` returns files that raise an error
    fcntl = None  # type: ignore[assignment]

_T = TypeVar("_T")

# The most parts of one `writev` call that Linux and macOS accept.
_PARTS_MAX: Final = 1024
# Linux transfers at most 0x7ffff000 bytes per call. macOS rejects 2 GiB and more.
_CALL_MAX_BYTES: Final = 1 << 30
# A longer read checks the file's size first, because its length may come from a damaged file.
_UNCHECKED_MAX_BYTES: Final = 1 << 20


def _full_sync(fd: int) -> None:
    """Make a file's bytes and size durable."""
    if sys.platform == "darwin":
        # On macOS fsync leaves the bytes in the drive's cache. Only F_FULLFSYNC flushes the cache.
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
            os.fsync(fd)  # network file systems do not support F_FULLFSYNC
    else:
        os.fdatasync(fd)


def _write_fully(fd: int, parts: list[memoryview]) -> None:
    """Write all parts at the descriptor's position, with as many system calls as this needs."""
    pending = [part for part in parts if part.nbytes]
    while pending:
        # A part above the limit of one call is cut, and its rest written by the next call.
        call: list[memoryview] = []
        room = _CALL_MAX_BYTES
        for part in pending[:_PARTS_MAX]:
            if room <= 0:
                break
            call.append(part[:room])
            room -= part.nbytes
        written = os.writev(fd, call)
        if written <= 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        done = 0
        while done < len(pending) and pending[done].nbytes <= written:
            written -= pending[done].nbytes
            done += 1
        del pending[:done]
        if written:
            pending[0] = pending[0][written:]


def _read_fully(fd: int, offset: int, length: int) -> bytes:
    """Read `length` bytes, or fewer at the end of the file."""
    if length > _UNCHECKED_MAX_BYTES:
        length = max(0, min(length, os.fstat(fd).st_size - offset))
    first = os.pread(fd, min(length, _CALL_MAX_BYTES), offset)
    if len(first) == length or not first:
        return first
    parts = [first]
    done = len(first)
    while done < length:
        part = os.pread(fd, min(length - done, _CALL_MAX_BYTES), offset + done)
        if not part:
            break
        parts.append(part)
        done += len(part)
    return b"".join(parts)


class _PosixAppendFile:
    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._size_bytes = 0
        self._failure: StorageError | None = None

    @property
    def path(self) -> str:
        return self._path

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def _check_usable(self, verb: str) -> None:
        if self._failure is not None:
            raise StorageError(
                f"cannot {verb} {self._path}: an earlier call failed ({self._failure}); open it again",
                path=self._path,
                errno=self._failure.errno,
            )
        if self._fd < 0:
            raise StorageError(
                f"cannot {verb} {self._path}: the file is closed", path=self._path, errno=errno.EBADF
            )

    def append(self, *parts: Bytes) -> int:
        self._check_usable("write")
        views = [memoryview(part).cast("B") for part in parts]
        offset = self._size_bytes
        try:
            _write_fully(self._fd, views)
        except OSError as error:
            failure = storage_error(error, "write", self._path)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._cut_back():
                self._failure = failure
            raise failure from error
        self._size_bytes = offset + sum(view.nbytes for view in views)
        return offset

    def _cut_back(self) -> bool:
        """Remove the bytes of a write that failed because the disk is full."""
        try:
            os.ftruncate(self._fd, self._size_bytes)
            os.lseek(self._fd, self._size_bytes, os.SEEK_SET)
        except OSError:
            return False
        return True

    def sync(self) -> None:
        self._check_usable("sync")
        try:
            _full_sync(self._fd)
        except OSError as error:
            self._failure = storage_error(error, "sync", self._path)
            raise self._failure from error

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            try:
                os.close(fd)
            except OSError as error:  # NFS reports late write errors here
                raise storage_error(error, "close", self._path) from error

    def __del__(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class _Descriptor:
    """A file descriptor that is closed when Python frees this object.

    So it is never closed while a thread uses it.
    """

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class _Folder:
    """The open folder of a store. `check` raises an error if it was moved or replaced."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._prefix = path.rstrip("/") + "/"
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self._descriptor: _Descriptor | None = _Descriptor(
            _call("open the folder", path, lambda: os.open(path, flags))
        )
        self._identity = _inode_of(os.fstat(self._descriptor.fd))
        self._watched: tuple[str, tuple[int, int], _Descriptor] | None = None

    @property
    def closed(self) -> bool:
        return self._descriptor is None

    def close(self) -> None:
        self._descriptor = self._watched = None
        _idle.drop_all(self)

    def descriptor(self) -> _Descriptor:
        descriptor = self._descriptor
        if descriptor is None:
            raise StorageError(
                f"the store {self.path!r} is closed: connect() again", path=self.path, errno=errno.EBADF
            )
        return descriptor

    def name_of(self, path: str) -> str | None:
        """Return the name of `path` inside the folder; None if it is outside."""
        if path.startswith(self._prefix):
            return path[len(self._prefix) :].lstrip("/") or "."
        return "." if path == self.path else None

    def watch(self, path: str) -> None:
        name, descriptor = self.name_of(path), self.descriptor()
        assert name is not None, path
        flags = os.O_RDONLY | os.O_CLOEXEC
        # While it is open, no other file can get its inode.
        held = _Descriptor(_call("open", path, lambda: os.open(name, flags, dir_fd=descriptor.fd)))
        self._watched = name, _inode_of(os.fstat(held.fd)), held

    def check(self) -> None:
        descriptor = self.descriptor()
        try:
            there = _inode_of(os.stat(self.path)) == self._identity
            if there and (watched := self._watched) is not None:
                name, inode, _ = watched
                there = _inode_of(os.stat(name, dir_fd=descriptor.fd)) == inode
        except (FileNotFoundError, NotADirectoryError):
            there = False
        except OSError as error:
            raise storage_error(error, "look at", self.path) from error
        if not there:
            raise StorageError(
                f"the folder {self.path!r} was moved, removed or replaced since it was opened; nothing was written: "
                "close this Database and connect again",
                path=self.path,
                errno=errno.ESTALE,
            )


def _inode_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


class _Location(NamedTuple):
    """A path as arguments of system calls: a name relative to an open folder, or the path."""

    name: str
    descriptor: _Descriptor | None

    @property
    def fd(self) -> int | None:
        return None if self.descriptor is None else self.descriptor.fd


def _location(folder: _Folder | None, path: str) -> _Location:
    if folder is None:
        return _Location(path, None)
    name = folder.name_of(path)
    return _Location(path, None) if name is None else _Location(name, folder.descriptor())


# A store may have thousands of files. A process has 256 descriptors (macOS) or 1,024 (Linux), and
# the user's program needs some. So at most this share of them is kept open between reads, and at
# most _IDLE_CAP.
_IDLE_SHARE: Final = 1 / 4
_IDLE_CAP: Final = 1024


class _IdleDescriptors:
    """The descriptors of files that no thread reads at the moment, least recently used first.

    A thread takes a descriptor out by one `dict.pop`, which is atomic, and gives it back after its
    read. So a descriptor in use is never closed, although there is no lock. If two threads read one
    file at the same time, each has its own descriptor. The descriptor that is given back first is
    kept, and the other is closed.
    """

    def __init__(self) -> None:
        self._descriptors: dict[int, tuple[int, _Folder | None]] = {}  # by the token of the file
        self.tokens: Final = itertools.count()  # each open file takes one

    def take(self, token: int) -> int | None:
        """Remove the idle descriptor of a file from this object, and return it.

        Return None if the file has no idle descriptor; the caller then opens one by `open`. After
        its read, the caller passes the descriptor to `give`.

        token: the number that the open file took from the counter `tokens`.
        """
        entry = self._descriptors.pop(token, None)
        return None if entry is None else entry[0]

    def open(self, path: str, at: _Folder | None = None) -> int:
        """Open the file for reading, and return its new descriptor. Raises StorageError.

        If the process has too many open files, all idle descriptors are closed first.

        at: the open folder of the store, so that `path` is found in it even if the folder was moved.
        None: the path is opened as it is.
        """
        location = _location(at, path)
        flags = os.O_RDONLY | os.O_CLOEXEC
        try:
            return os.open(location.name, flags, dir_fd=location.fd)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise storage_error(error, "open", path) from error
        self._shrink(0)
        return _call("open", path, lambda: os.open(location.name, flags, dir_fd=location.fd))

    def give(self, token: int, fd: int, at: _Folder | None) -> None:
        entry = (fd, at)
        if self._descriptors.setdefault(token, entry) is not entry:
            os.close(fd)
        elif at is not None and at.closed:  # perhaps closed just before the descriptor was added
            self.drop(token)
        elif len(self._descriptors) > _IDLE_MIN and len(self._descriptors) > (most := _idle_max()):
            self._shrink(most - most // 8)  # many at once, because each call goes through all of them

    def drop(self, token: int) -> None:
        entry = self._descriptors.pop(token, None)
        if entry is not None:
            os.close(entry[0])

    def drop_all(self, at: _Folder) -> None:
        """Close the descriptors that are kept for later reads of files in the store folder `at`."""
        # Iterate over a copy, because the garbage collector may drop a descriptor at any time.
        for token, (_, folder) in self._descriptors.copy().items():
            if folder is at:
                self.drop(token)

    def _shrink(self, most: int) -> None:
        for token in list(self._descriptors)[: max(len(self._descriptors) - most, 0)]:
            self.drop(token)


_IDLE_MIN: Final = 64  # this number is always allowed, without a call for the system's limit


def _idle_max() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _IDLE_CAP
    return min(max(int(soft * _IDLE_SHARE), 1), _IDLE_CAP)


_idle: Final = _IdleDescriptors()


class _PosixRandomFile:
    """A file that is open for reading. Between two reads its descriptor may be closed and opened again."""

    def __init__(self, path: str, at: _Folder | None, vanished: Callable[[str], Error] | None) -> None:
        self._path = path
        self._at = at
        self._vanished = vanished
        self._token = next(_idle.tokens)
        self._closed = False
        self._inode: tuple[int, int] | None = None
        _idle.give(self._token, self._open(), at)  # raises if the file is missing

    @property
    def path(self) -> str:
        return self._path

    def _take(self) -> int:
        """Return an open descriptor of the file. The caller must end its use by `_give_back`."""
        if self._closed:
            raise StorageError(
                f"cannot read {self._path}: the file is closed", path=self._path, errno=errno.EBADF
            )
        if self._at is not None:
            self._at.descriptor()  # raises if the store is closed
        fd = _idle.take(self._token)
        return self._open() if fd is None else fd

    def _open(self) -> int:
        try:
            fd = _idle.open(self._path, self._at)
        except MissingFileError as error:
            if self._vanished is None:
                raise
            raise self._vanished(self._path) from error
        inode = _inode_of(os.fstat(fd))
        if self._inode is None:
            self._inode = inode
        elif inode != self._inode:
            os.close(fd)
            raise StorageError(
                f"the file {self._path} was replaced since it was first read: connect() again",
                path=self._path,
                errno=errno.ESTALE,
            )
        return fd

    def prefetch(self, places: Iterable[tuple[int, int]]) -> None:
        pass

    def forget(self, offset: int, length: int) -> bool:
        return False

    @contextlib.contextmanager
    def _descriptor(self) -> Iterator[int]:
        fd = self._take()
        try:
            yield fd
        except OSError as error:
            raise storage_error(error, "read", self._path) from error
        finally:
            self._give_back(fd)

    def _give_back(self, fd: int) -> None:
        if self._closed:
            os.close(fd)
        else:
            _idle.give(self._token, fd, self._at)

    def size_bytes(self) -> int:
        with self._descriptor() as fd:
            return os.fstat(fd).st_size

    def read_into(self, offset: int, memory: Any) -> int:
        assert offset >= 0, offset
        view, done = memoryview(memory).cast("B"), 0
        # The most frequent call of a scan: `with self._descriptor()` would cost a third more.
        fd = self._take()
        try:
            while done < len(view):
                part = os.preadv(fd, [view[done : done + _CALL_MAX_BYTES]], offset + done)
                if not part:
                    break
                done += part
        except OSError as error:
            raise storage_error(error, "read", self._path) from error
        finally:
            self._give_back(fd)
        return done

    def read(self, offset: int, length: int) -> bytes:
        assert min(offset, length) >= 0, (offset, length)
        with self._descriptor() as fd:
            return _read_fully(fd, offset, length)

    def close(self) -> None:
        self._closed = True
        _idle.drop(self._token)

    def __del__(self) -> None:
        self._closed = True
        if hasattr(self, "_token"):
            _idle.drop(self._token)


_locks: Final[weakref.WeakSet[_PosixFileLock]] = weakref.WeakSet()


def _close_locks_in_child() -> None:
    """Close a forked child's copies of locks, which would keep a lock after its owner has ended."""
    for lock in list(_locks):
        lock.close_copy()


os.register_at_fork(after_in_child=_close_locks_in_child)


class _PosixFileLock:
    def __init__(self, path: str, fd: int, location: _Location) -> None:
        self._path = path
        self._fd = fd
        self._location = location
        self._pid = os.getpid()
        _locks.add(self)

    @property
    def path(self) -> str:
        return self._path

    def _descriptor(self) -> int:
        if self._fd < 0:
            raise StorageError(
                f"the lock {self._path} was released before: lock the file again to use it",
                path=self._path,
                errno=errno.EBADF,
            )
        return self._fd

    def write(self, content: bytes) -> None:
        fd = self._descriptor()
        try:
            # Truncate last, so that a reader meanwhile never sees an empty file.
            done = 0
            while done < len(content):
                done += os.pwrite(fd, content[done:], done)
            os.ftruncate(fd, len(content))
        except OSError as error:
            raise storage_error(error, "write", self._path) from error

    def read(self) -> bytes:
        fd = self._descriptor()
        try:
            return os.pread(fd, os.fstat(fd).st_size, 0)
        except OSError as error:
            raise storage_error(error, "read", self._path) from error

    def release(self, unlink: bool = False) -> None:
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            # A forked child must not unlock, because it shares the lock with its parent.
            if os.getpid() == self._pid:
                if unlink:
                    # Before the unlock: another process that then locks the deleted file sees
                    # that the path has no or another file, and tries again.
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(self._location.name, dir_fd=self._location.fd)
                fcntl.flock(fd, fcntl.LOCK_UN)
        except OSError as error:
            raise storage_error(error, "unlock", self._path) from error
        finally:
            os.close(fd)

    def close_copy(self) -> None:
        """Close this process's descriptor. The lock ends when every process has closed its copy."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close_copy


# These errors mean that hard links are not possible here. Linux with protected_hardlinks returns EPERM
# for a file of another user that this user may not write.
_NO_LINK: Final = frozenset(
    {errno.EEXIST, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EXDEV, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
)  # fmt: skip


class PosixFiles:
    """`Files` for Linux and macOS."""

    is_remote: Final = False

    _folder: _Folder | None = None
    _vanished: Callable[[str], Error] | None = None

    def __init__(self, folder: _Folder | None = None, vanished: Callable[[str], Error] | None = None) -> None:
        """Create the object.

        folder: the open folder of a store, whose files are reached through its descriptor. None:
        all files are reached by their paths.
        vanished: makes the error for a file that does not exist when it is read. None: the usual
        MissingFileError.
        """
        self._folder = folder
        self._vanished = vanished

    # ── bound to a folder ────────────────────────────────────────────────────────────────────────

    def bind(self, folder: str) -> Files:
        if type(self) is not PosixFiles:
            return self  # a subclass of a test, which records or fails operations
        return PosixFiles(_Folder(folder), self._vanished)

    def watch(self, path: str) -> None:
        if self._folder is not None:
            self._folder.watch(path)

    def check_bound(self) -> None:
        if self._folder is not None:
            self._folder.check()

    def close(self) -> None:
        if self._folder is not None:
            self._folder.close()

    def without_lease(self, vanished: Callable[[str], Error]) -> Files:
        return self if type(self) is not PosixFiles else PosixFiles(self._folder, vanished)

    def _locate(self, path: str) -> _Location:
        return _location(self._folder, path)

    def _locate_for_change(self, path: str) -> _Location:
        """Return the arguments of a system call that will change the file `path`.

        Raises: StorageError if the store's folder was moved or replaced since it was opened.
        """
        if self._folder is not None:
            self._folder.check()
        return _location(self._folder, path)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def open(self, path: str) -> RandomFile:
        return _PosixRandomFile(path, self._folder, self._vanished)

    def read_all(self, path: str) -> bytes:
        # Only four system calls, because a reader process reads two small files before each scan.
        fd = _idle.open(path, self._folder)
        try:
            return _read_fully(fd, 0, os.fstat(fd).st_size)
        except OSError as error:
            raise storage_error(error, "read", path) from error
        finally:
            os.close(fd)

    def list_dir(self, path: str) -> list[str]:
        try:
            with self._opened(path, "list", os.O_RDONLY | os.O_DIRECTORY) as fd:
                return sorted(os.listdir(fd))
        except MissingFileError:
            return []

    def exists(self, path: str) -> bool:
        location = self._locate(path)
        try:
            os.lstat(location.name, dir_fd=location.fd)
        except (OSError, ValueError):  # as `os.path.lexists`
            return False
        return True

    def size(self, path: str) -> int:
        return self._stat(path).st_size

    def status(self, path: str) -> FileStatus:
        found = self._stat(path)
        return FileStatus(found.st_size, found.st_mtime_ns // 1000, stat.S_ISDIR(found.st_mode))

    def identity(self, path: str) -> Hashable:
        status = self._stat(path)
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    def inode(self, path: str) -> tuple[int, int]:
        return _inode_of(self._stat(path))

    def free_bytes(self, path: str) -> int:
        if self._folder is None:
            status = _call("look at", path, lambda: os.statvfs(path))
        else:
            with self._opened(path, "look at", os.O_RDONLY) as fd:
                status = os.fstatvfs(fd)
        return status.f_bavail * status.f_frsize

    def _stat(self, path: str) -> os.stat_result:
        location = self._locate(path)
        return _call("look at", path, lambda: os.stat(location.name, dir_fd=location.fd))

    @contextlib.contextmanager
    def _opened(self, path: str, verb: str, flags: int, location: _Location | None = None) -> Iterator[int]:
        """Open a file, and yield its descriptor for a `with` statement.

        An OSError inside the `with` statement becomes a StorageError.

        verb: what the caller does with the file, for the message: "write", "list" …
        location: the path as arguments of system calls; None: computed from `path`.
        """
        at = self._locate(path) if location is None else location
        fd = _call(verb, path, lambda: os.open(at.name, flags | os.O_CLOEXEC, 0o666, dir_fd=at.fd))
        try:
            yield fd
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise storage_error(error, verb, path) from error
        finally:
            os.close(fd)

    # ── changing ─────────────────────────────────────────────────────────────────────────────────

    def create(self, path: str) -> AppendFile:
        location = self._locate_for_change(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return _PosixAppendFile(
            path, _call("create", path, lambda: os.open(location.name, flags, 0o666, dir_fd=location.fd))
        )

    def write_at(self, path: str, offset: int, data: Bytes) -> None:
        with self._opened(path, "write", os.O_WRONLY | os.O_CREAT, self._locate_for_change(path)) as fd:
            if os.pwrite(fd, data, offset) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync_file(self, path: str) -> None:
        with self._opened(path, "sync", os.O_WRONLY, self._locate_for_change(path)) as fd:
            _full_sync(fd)

    def write_atomic(self, path: str, data: bytes) -> None:
        write_atomic(self, path, data)

    def truncate(self, path: str, length: int) -> None:
        with self._opened(path, "truncate", os.O_WRONLY, self._locate_for_change(path)) as fd:
            os.ftruncate(fd, length)
            _full_sync(fd)

    def rename(self, old: str, new: str) -> None:
        a, b = self._locate_for_change(old), self._locate(new)
        _call("rename", old, lambda: os.rename(a.name, b.name, src_dir_fd=a.fd, dst_dir_fd=b.fd))

    def link(self, old: str, new: str) -> bool:
        a, b = self._locate_for_change(old), self._locate(new)
        try:
            os.link(a.name, b.name, src_dir_fd=a.fd, dst_dir_fd=b.fd)
        except OSError as error:
            if error.errno in _NO_LINK:
                return False
            raise storage_error(error, "link", old) from error
        return True

    def unlink(self, path: str, missing_ok: bool = False) -> None:
        location = self._locate_for_change(path)
        try:
            _call("remove", path, lambda: os.unlink(location.name, dir_fd=location.fd))
        except MissingFileError:
            if not missing_ok:
                raise

    def remove_tree(self, path: str) -> None:
        # Unlike shutil.rmtree, each step is an operation of `Files`. Links are removed, not followed.
        location = self._locate_for_change(path)
        try:
            mode = os.lstat(location.name, dir_fd=location.fd).st_mode
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error(error, "remove", path) from error
        if not stat.S_ISDIR(mode):
            self.unlink(path, missing_ok=True)
            return
        for name in self.list_dir(path):
            self.remove_tree(os.path.join(path, name))
        _call("remove", path, lambda: os.rmdir(location.name, dir_fd=location.fd))

    def make_dirs(self, path: str) -> None:
        missing: list[str] = []
        folder = os.path.abspath(path)
        while not self._is_dir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for folder in reversed(missing):
            location = self._locate_for_change(folder)
            try:
                os.mkdir(location.name, dir_fd=location.fd)
            except FileExistsError as error:
                if not self._is_dir(folder):  # otherwise another process has just created the folder
                    raise storage_error(error, "create the folder", folder) from error
            except OSError as error:
                raise storage_error(error, "create the folder", folder) from error
            self.sync_dir(os.path.dirname(folder))

    def _is_dir(self, path: str) -> bool:
        location = self._locate(path)
        try:
            return stat.S_ISDIR(os.stat(location.name, dir_fd=location.fd).st_mode)
        except (OSError, ValueError):  # as `os.path.isdir`
            return False

    def preallocate(self, path: str, length: int) -> None:
        self.make_dirs(os.path.dirname(path))
        location = self._locate_for_change(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        fd = _call("create", path, lambda: os.open(location.name, flags, 0o666, dir_fd=location.fd))
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, length)
            else:
                _write_fully(fd, [memoryview(bytes(length))])
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(location.name, dir_fd=location.fd)
            raise storage_error(error, "allocate", path) from error
        finally:
            os.close(fd)

    def sync_dir(self, path: str) -> None:
        location = self._locate_for_change(path or ".")
        with self._opened(path, "sync the folder", os.O_RDONLY | os.O_DIRECTORY, location) as fd:
            os.fsync(fd)

    def lock(self, path: str, *, create: bool = True) -> FileLock | None:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        location = self._locate_for_change(path) if create else self._locate(path)
        while True:
            fd = _call("open", path, lambda: os.open(location.name, flags, 0o666, dir_fd=location.fd))
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                ours = os.fstat(fd)
                there = os.stat(location.name, dir_fd=location.fd)
            except BlockingIOError:
                os.close(fd)
                return None
            except FileNotFoundError:
                os.close(fd)  # its last holder removed it after this process had opened it
                continue
            except OSError as error:
                os.close(fd)
                raise storage_error(error, "lock", path) from error
            if _inode_of(ours) == _inode_of(there):
                return _PosixFileLock(path, fd, location)
            os.close(fd)

    def read_lock_content(self, path: str) -> bytes:
        return self.read_all(path)


def _call(verb: str, path: str, action: Callable[[], _T]) -> _T:
    try:
        return action()
    except OSError as error:
        raise storage_error(error, verb, path) from error


class _UnsupportedFiles:
    """The files of an unsupported system: every operation raises the same error."""

    def __getattr__(self, name: str) -> Any:
        raise StorageError(
            f"Nyala does not support {sys.platform}: it needs the file locks and directory syncs of Linux or macOS (on "
            "Windows, use it inside WSL)",
            errno=errno.ENOTSUP,
        )


def system_files() -> Files:
    """Return the `Files` of this machine. On Windows each of its operations raises StorageError."""
    if os.name != "posix" or fcntl is None:
        return cast(Files, _UnsupportedFiles())
    return PosixFiles()
