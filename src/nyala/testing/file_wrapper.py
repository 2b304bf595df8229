"""Base classes that pass every call to another object with file access, such as `PosixFiles`.

The classes that record changes or let calls fail derive from them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from nyala.env import AppendFile, Bytes, FileLock, Files, FileStatus, RandomFile
from nyala.env.files import write_atomic
from nyala.errors import Error

__all__ = ["AppendFileWrapper", "FileLockWrapper", "FileWrapper"]

Owner = TypeVar("Owner", bound="FileWrapper")


class FileWrapper:
    """A `Files` that passes every call to `inner`.

    `write_atomic` calls the methods of this wrapper for its steps, such as `create` and `rename`, so
    that a subclass sees each step.
    """

    def __init__(self, inner: Files) -> None:
        self._inner = inner

    @property
    def is_remote(self) -> bool:
        return self._inner.is_remote

    def bind(self, folder: str) -> Files:
        return self  # the same wrapper, so that a test's faults apply to all callers

    def watch(self, path: str) -> None:
        pass

    def check_bound(self) -> None:
        pass

    def close(self) -> None:
        pass

    def create(self, path: str) -> AppendFile:
        return self._inner.create(path)

    def open(self, path: str) -> RandomFile:
        return self._inner.open(path)

    def read_all(self, path: str) -> bytes:
        return self._inner.read_all(path)

    def write_at(self, path: str, offset: int, data: Bytes) -> None:
        self._inner.write_at(path, offset, data)

    def sync_file(self, path: str) -> None:
        self._inner.sync_file(path)

    def write_atomic(self, path: str, data: bytes) -> None:
        write_atomic(self, path, data)

    def truncate(self, path: str, length: int) -> None:
        self._inner.truncate(path, length)

    def rename(self, old: str, new: str) -> None:
        self._inner.rename(old, new)

    def link(self, old: str, new: str) -> bool:
        return self._inner.link(old, new)

    def unlink(self, path: str, missing_ok: bool = False) -> None:
        self._inner.unlink(path, missing_ok)

    def remove_tree(self, path: str) -> None:
        self._inner.remove_tree(path)

    def make_dirs(self, path: str) -> None:
        self._inner.make_dirs(path)

    def list_dir(self, path: str) -> list[str]:
        return self._inner.list_dir(path)

    def exists(self, path: str) -> bool:
        return self._inner.exists(path)

    def size(self, path: str) -> int:
        return self._inner.size(path)

    def status(self, path: str) -> FileStatus:
        return self._inner.status(path)

    def identity(self, path: str) -> Hashable:
        return self._inner.identity(path)

    def inode(self, path: str) -> tuple[int, int]:
        return self._inner.inode(path)

    def free_bytes(self, path: str) -> int:
        return self._inner.free_bytes(path)

    def preallocate(self, path: str, length: int) -> None:
        self._inner.preallocate(path, length)

    def sync_dir(self, path: str) -> None:
        self._inner.sync_dir(path)

    def lock(self, path: str, *, create: bool = True) -> FileLock | None:
        return self._inner.lock(path, create=create)

    def read_lock_content(self, path: str) -> bytes:
        return self._inner.read_lock_content(path)

    def without_lease(self, vanished: Callable[[str], Error]) -> Files:
        return self


class AppendFileWrapper(Generic[Owner]):
    """A base class for written files in tests. It passes every call to another file.

    inner: the `AppendFile` that gets the calls.
    owner: the `FileWrapper` whose method `create` created this object. Subclasses report to it.
    """

    def __init__(self, inner: AppendFile, owner: Owner) -> None:
        self._inner = inner
        self._owner = owner

    @property
    def path(self) -> str:
        return self._inner.path

    @property
    def size_bytes(self) -> int:
        return self._inner.size_bytes

    def append(self, *parts: Bytes) -> int:
        return self._inner.append(*parts)

    def sync(self) -> None:
        self._inner.sync()

    def close(self) -> None:
        self._inner.close()


class FileLockWrapper(Generic[Owner]):
    """A base class for lock files in tests. It passes every call to another lock file.

    inner: the `FileLock` that gets the calls.
    owner: the `FileWrapper` whose method `lock` created this object. Subclasses report to it.
    """

    def __init__(self, inner: FileLock, owner: Owner) -> None:
        self._inner = inner
        self._owner = owner

    @property
    def path(self) -> str:
        return self._inner.path

    def write(self, content: bytes) -> None:
        self._inner.write(content)

    def read(self) -> bytes:
        return self._inner.read()

    def release(self, unlink: bool = False) -> None:
        self._inner.release(unlink)
