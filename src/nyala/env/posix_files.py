"""`Files` of Linux and macOS, by their system calls.

Opened for reading, any number of files takes few descriptors: those not used for a while are closed and opened again
(`_IdleDescriptors`). What may be relied on, and which thread may do what: `files.py`.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import sys
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final, TypeVar, cast

from nyala.env.files import (
    AppendFile,
    Bytes,
    FileLock,
    Files,
    MissingFileError,
    RandomFile,
    storage_error,
    write_atomic,
)
from nyala.errors import Error, StorageError

try:
    import fcntl
    import resource
except ImportError:  # Windows: `system_files()` answers with a sentence.
    fcntl = None  # type: ignore[assignment]

__all__ = ["PosixFiles", "system_files"]

_T = TypeVar("_T")

# writev takes at most this many parts at once: POSIX promises 16, Linux and macOS give 1024.
_PARTS_MAX: Final = 1024
# Linux moves at most 0x7ffff000 bytes a call and macOS refuses 2 GiB and more: stay below both.
_CALL_MAX_BYTES: Final = 1 << 30


def _full_sync(fd: int) -> None:
    """Make a file's bytes durable, and so much of its inode as is needed to read them."""
    if sys.platform == "darwin":
        # fsync on macOS leaves the bytes in the drive's own cache; only F_FULLFSYNC empties that.
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
            os.fsync(fd)  # network file systems do not know F_FULLFSYNC
    else:
        os.fdatasync(fd)


def _write_fully(fd: int, parts: list[memoryview]) -> None:
    """Write all parts at the descriptor's position; a short write is followed by another, until an error."""
    pending = [part for part in parts if part.nbytes]
    while pending:
        # A single part above the system's limit per call is cut; the rest waits for the next round.
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
    """So many bytes, or as many as there are."""
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
                f"cannot {verb} {self._path}: it is closed", path=self._path, errno=errno.EBADF
            )

    def append(self, *parts: Bytes) -> int:
        self._check_usable("write")
        views = [memoryview(part).cast("B") for part in parts]
        offset = self._size_bytes
        try:
            _write_fully(self._fd, views)
        except OSError as error:
            self._failure = storage_error(error, "write", self._path)
            raise self._failure from error
        self._size_bytes = offset + sum(view.nbytes for view in views)
        return offset

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


# A store may have thousands of files and a process 256 descriptors (macOS) or 1,024 (Linux), of which the user's own
# program wants some. So at most this share of them is kept open between two reads, and in no case more than the cap.
_IDLE_SHARE: Final = 1 / 4
_IDLE_CAP: Final = 1024


class _IdleDescriptors:
    """The descriptors of files that nobody is reading at the moment, those used longest ago first.

    Who takes a descriptor out (one `dict.pop`, which no other thread can come between) owns it, and puts it back
    after his read: so none is closed that is in use, without a lock. Two threads that read one file at one moment have
    a descriptor each, and the second to put his back closes it.
    """

    def __init__(self) -> None:
        self._descriptors: dict[int, int] = {}  # by the file's token
        self._tokens = itertools.count()

    def new_token(self) -> int:
        return next(self._tokens)

    def take(self, token: int) -> int | None:
        """The file's descriptor, to be given back; None: it has none at the moment."""
        return self._descriptors.pop(token, None)

    def open(self, path: str) -> int:
        flags = os.O_RDONLY | os.O_CLOEXEC
        try:
            return os.open(path, flags)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise storage_error(error, "open", path) from error
        self._shrink(0)
        return _call("open", path, lambda: os.open(path, flags))

    def give(self, token: int, fd: int) -> None:
        if self._descriptors.setdefault(token, fd) != fd:
            os.close(fd)
        elif len(self._descriptors) > _IDLE_MIN and len(self._descriptors) > (most := _idle_max()):
            self._shrink(most - most // 8)  # some at once: finding the oldest costs a pass

    def drop(self, token: int) -> None:
        fd = self._descriptors.pop(token, None)
        if fd is not None:
            os.close(fd)

    def _shrink(self, most: int) -> None:
        for token in list(self._descriptors)[: max(len(self._descriptors) - most, 0)]:
            self.drop(token)


_IDLE_MIN: Final = 64  # below this nobody asks the system for its limit


def _idle_max() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _IDLE_CAP
    return min(max(int(soft * _IDLE_SHARE), 1), _IDLE_CAP)


_idle: Final = _IdleDescriptors()


class _PosixRandomFile:
    """An open file, as its user sees it; its descriptor may be closed between two reads and be opened again."""

    def __init__(self, path: str, vanished: Callable[[str], Error] | None) -> None:
        self._path = path
        self._vanished = vanished
        self._token = _idle.new_token()
        self._closed = False
        _idle.give(self._token, self._open())  # so that a missing file is missed now

    @property
    def path(self) -> str:
        return self._path

    def _take(self) -> int:
        """A descriptor, to be given back."""
        if self._closed:
            raise StorageError(f"cannot read {self._path}: it is closed", path=self._path, errno=errno.EBADF)
        fd = _idle.take(self._token)
        return self._open() if fd is None else fd

    def _open(self) -> int:
        try:
            return _idle.open(self._path)
        except MissingFileError as error:
            if self._vanished is None:
                raise
            raise self._vanished(self._path) from error

    @contextlib.contextmanager
    def descriptor(self) -> Iterator[int]:
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
            _idle.give(self._token, fd)

    def size_bytes(self) -> int:
        with self.descriptor() as fd:
            return os.fstat(fd).st_size

    def read_into(self, offset: int, memory: Any) -> int:
        assert offset >= 0, offset
        view, done = memoryview(memory).cast("B"), 0
        # Blocks are read so, and `descriptor` would be a third of the calls.
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
        with self.descriptor() as fd:
            return _read_fully(fd, offset, length)

    def close(self) -> None:
        self._closed = True
        _idle.drop(self._token)

    def __del__(self) -> None:
        self._closed = True
        if hasattr(self, "_token"):
            _idle.drop(self._token)


class _PosixFileLock:
    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._pid = os.getpid()

    @property
    def path(self) -> str:
        return self._path

    def _descriptor(self) -> int:
        if self._fd < 0:
            raise StorageError(f"the lock {self._path} was released", path=self._path, errno=errno.EBADF)
        return self._fd

    def write(self, content: bytes) -> None:
        fd = self._descriptor()
        try:
            # New bytes first, then the cut: who reads between sees new content with an old tail, not nothing.
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
            # A forked child shares the lock with its parent: it may let go of its copy, but not unlock.
            if os.getpid() == self._pid:
                if unlink:
                    # Before the unlock: who locks the orphan after it finds another inode and tries again.
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(self._path)
                fcntl.flock(fd, fcntl.LOCK_UN)
        except OSError as error:
            raise storage_error(error, "unlock", self._path) from error
        finally:
            os.close(fd)

    def __del__(self) -> None:
        # Only close: the lock goes when the last copy of the descriptor does.
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


# A system with protected_hardlinks says EPERM of files of other users that this one may not write.
_NO_LINK: Final = frozenset(
    {errno.EEXIST, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EXDEV, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
)  # fmt: skip


class PosixFiles:
    """`Files` of Linux and macOS."""

    def __init__(self, vanished: Callable[[str], Error] | None = None) -> None:
        self._vanished = vanished  # see `without_lease`

    def without_lease(self, vanished: Callable[[str], Error]) -> Files:
        return PosixFiles(vanished)

    def create(self, path: str) -> AppendFile:
        return _PosixAppendFile(
            path,
            _call(
                "create",
                path,
                lambda: os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666),
            ),
        )

    def open(self, path: str) -> RandomFile:
        return _PosixRandomFile(path, self._vanished)

    def read_all(self, path: str) -> bytes:
        # A reader process asks for two small files before each of its reads: four system calls, and little else.
        fd = _idle.open(path)
        try:
            return _read_fully(fd, 0, os.fstat(fd).st_size)
        except OSError as error:
            raise storage_error(error, "read", path) from error
        finally:
            os.close(fd)

    def write_at(self, path: str, offset: int, data: bytes) -> None:
        fd = _call("open", path, lambda: os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
        try:
            if os.pwrite(fd, data, offset) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise storage_error(error, "write", path) from error
        finally:
            os.close(fd)

    def sync_file(self, path: str) -> None:
        fd = _call("open", path, lambda: os.open(path, os.O_WRONLY | os.O_CLOEXEC))
        try:
            _call("sync", path, lambda: _full_sync(fd))
        finally:
            os.close(fd)

    def write_atomic(self, path: str, data: bytes) -> None:
        write_atomic(self, path, data)

    def truncate(self, path: str, length: int) -> None:
        fd = _call("open", path, lambda: os.open(path, os.O_WRONLY | os.O_CLOEXEC))
        try:
            os.ftruncate(fd, length)
            _full_sync(fd)
        except OSError as error:
            raise storage_error(error, "cut", path) from error
        finally:
            os.close(fd)

    def rename(self, old: str, new: str) -> None:
        _call("rename", old, lambda: os.rename(old, new))

    def link(self, old: str, new: str) -> bool:
        try:
            os.link(old, new)
        except OSError as error:
            if error.errno in _NO_LINK:
                return False
            raise storage_error(error, "link", old) from error
        return True

    def unlink(self, path: str, missing_ok: bool = False) -> None:
        try:
            _call("remove", path, lambda: os.unlink(path))
        except MissingFileError:
            if not missing_ok:
                raise

    def remove_tree(self, path: str) -> None:
        # By hand and not by shutil.rmtree: every step is one of ours, and links are removed, never followed.
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error(error, "remove", path) from error
        if not stat.S_ISDIR(mode):
            self.unlink(path, missing_ok=True)
            return
        for name in self.list_dir(path):
            self.remove_tree(os.path.join(path, name))
        _call("remove", path, lambda: os.rmdir(path))

    def make_dirs(self, path: str) -> None:
        missing: list[str] = []
        folder = os.path.abspath(path)
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for folder in reversed(missing):
            try:
                os.mkdir(folder)
            except FileExistsError as error:
                if not os.path.isdir(folder):  # not another process that was quicker: a file is in the way
                    raise storage_error(error, "create the folder", folder) from error
            except OSError as error:
                raise storage_error(error, "create the folder", folder) from error
            self.sync_dir(os.path.dirname(folder))

    def list_dir(self, path: str) -> list[str]:
        try:
            return sorted(_call("list", path, lambda: os.listdir(path)))
        except MissingFileError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def size(self, path: str) -> int:
        return _call("look at", path, lambda: os.stat(path).st_size)

    def identity(self, path: str) -> Hashable:
        found = _call("look at", path, lambda: os.stat(path))
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def free_bytes(self, path: str) -> int:
        status = _call("look at", path, lambda: os.statvfs(path))
        return status.f_bavail * status.f_frsize

    def sync_dir(self, path: str) -> None:
        fd = _call(
            "open the folder", path, lambda: os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        )
        try:
            os.fsync(fd)
        except OSError as error:
            raise storage_error(error, "sync the folder", path) from error
        finally:
            os.close(fd)

    def lock(self, path: str, *, create: bool = True) -> FileLock | None:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        while True:
            fd = _call("open", path, lambda: os.open(path, flags, 0o666))
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                ours = os.fstat(fd)
                there = os.stat(path)
            except BlockingIOError:
                os.close(fd)
                return None
            except FileNotFoundError:
                os.close(fd)  # its last holder removed it between our open and our lock
                continue
            except OSError as error:
                os.close(fd)
                raise storage_error(error, "lock", path) from error
            if (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino):
                return _PosixFileLock(path, fd)
            os.close(fd)

    def read_lock_content(self, path: str) -> bytes:
        return self.read_all(path)

    def external_commit(self, path: str) -> None:
        pass


def _call(verb: str, path: str, action: Callable[[], _T]) -> _T:
    try:
        return action()
    except OSError as error:
        raise storage_error(error, verb, path) from error


class _RefusingFiles:
    """Stands in where we do not run: every operation answers with the same sentence."""

    def __getattr__(self, name: str) -> Any:
        raise StorageError(
            f"Nyala does not run on {sys.platform}: it needs the file locks and directory syncs of Linux "
            "or macOS (on Windows, use it inside WSL)",
            errno=errno.ENOTSUP,
        )


def system_files() -> Files:
    """This machine's files. On Windows, files that refuse every operation: importing still works."""
    if os.name != "posix" or fcntl is None:
        return cast(Files, _RefusingFiles())
    return PosixFiles()
