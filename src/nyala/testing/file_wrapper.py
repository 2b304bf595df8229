"""Files that hand everything to other files: what the twins of `PosixFiles` have in common."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from nyala.env import AppendFile, Bytes, FileLock, Files, FileStatus, RandomFile
from nyala.env.files import write_atomic
from nyala.errors import Error

__all__ = ["FileWrapper"]


class FileWrapper:
    """A `Files` that hands everything to another one. What is composed of steps is composed here, of our own."""

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
