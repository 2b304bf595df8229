"""Files on a disk of a few megabytes that another program shares, and may fill at any moment.

The budget is for everything in one folder. What is full is bytes, a user's quota or inodes, as `why` says.
"""

from __future__ import annotations

import errno
import os
from typing import Final, Literal, TypeAlias

from nyala.env import AppendFile, Bytes, FileLock, Files
from nyala.errors import StorageError
from nyala.testing.file_wrapper import FileWrapper

__all__ = ["SmallDisk"]

Why: TypeAlias = Literal["bytes", "quota", "inodes"]

_BLOCK_BYTES: Final = 4096


class _CountedFile:
    """An AppendFile that grows only while the disk has room."""

    def __init__(self, inner: AppendFile, disk: SmallDisk) -> None:
        self._inner = inner
        self._disk = disk

    @property
    def path(self) -> str:
        return self._inner.path

    @property
    def size_bytes(self) -> int:
        return self._inner.size_bytes

    def append(self, *parts: Bytes) -> int:
        before = self._inner.size_bytes
        length = sum(memoryview(part).nbytes for part in parts)
        self._disk.ask(_blocks(before + length) - _blocks(before), self.path)
        return self._inner.append(*parts)

    def sync(self) -> None:
        self._inner.sync()

    def close(self) -> None:
        self._inner.close()


class _CountedLock:
    """A lock file that may be made when the disk is full, and not be written to: an empty file has no block."""

    def __init__(self, inner: FileLock, disk: SmallDisk) -> None:
        self._inner = inner
        self._disk = disk

    @property
    def path(self) -> str:
        return self._inner.path

    def write(self, content: bytes) -> None:
        self._disk.ask(_blocks(len(content)) - _blocks(len(self._inner.read())), self.path)
        self._inner.write(content)

    def read(self) -> bytes:
        return self._inner.read()

    def release(self, unlink: bool = False) -> None:
        self._inner.release(unlink)


class SmallDisk(FileWrapper):
    """A disk that has room for `capacity_bytes` in the folder `root`.

    `fill()` fills the free space, as another program may do. Threads: any.
    """

    def __init__(self, inner: Files, root: str, capacity_bytes: int, why: Why = "bytes") -> None:
        super().__init__(inner)
        self.root = root
        self.why: Why = why
        self._capacity = capacity_bytes
        self._taken: int | None = None  # bytes of the budget that the other program uses
        self._inodes: int | None = None  # the number of files that may exist; None: no limit

    def _used(self) -> tuple[int, int]:
        files = size = 0
        for folder, folders, names in os.walk(self.root):
            files += len(folders) + len(names)
            for name in names:
                try:
                    size += _blocks(os.lstat(os.path.join(folder, name)).st_size)
                except FileNotFoundError:
                    continue
        return files, size

    def fill(self) -> None:
        """Another program takes all that is free."""
        files, size = self._used()
        if self.why == "inodes":
            self._inodes = files
        else:
            self._taken = max(self._capacity - size, 0)

    def heal(self) -> None:
        """It gives back what it took."""
        self._taken = self._inodes = None

    def ask(self, growth: int, path: str, files: int = 0) -> None:
        """Raises: StorageError when there is no room for so many bytes and files more."""
        there, size = self._used()
        no_inode = self._inodes is not None and files and there + files > self._inodes
        no_room = growth > 0 and size + growth > self._capacity - (self._taken or 0)
        if no_inode or no_room:
            number = errno.EDQUOT if self.why == "quota" else errno.ENOSPC
            raise StorageError(f"cannot write {path}: {os.strerror(number)}", path=path, errno=number)

    def free_bytes(self, path: str) -> int:
        taken = 0 if self.why == "quota" else self._taken or 0  # free space does not include quotas
        return max(self._capacity - taken - self._used()[1], 0)

    def create(self, path: str) -> AppendFile:
        self.ask(0, path, files=1)
        return _CountedFile(self._inner.create(path), self)

    def write_at(self, path: str, offset: int, data: Bytes) -> None:
        there = self._inner.size(path) if self._inner.exists(path) else 0
        growth = _blocks(max(offset + len(data), there)) - _blocks(there)
        self.ask(growth, path, files=not self._inner.exists(path))
        self._inner.write_at(path, offset, data)

    def preallocate(self, path: str, length: int) -> None:
        self.ask(_blocks(length), path, files=1)
        self._inner.preallocate(path, length)

    def make_dirs(self, path: str) -> None:
        if not self._inner.exists(path):
            self.ask(_BLOCK_BYTES, path, files=1)
        self._inner.make_dirs(path)

    def lock(self, path: str, *, create: bool = True) -> FileLock | None:
        if create and not self._inner.exists(path):
            self.ask(0, path, files=1)
        lock = self._inner.lock(path, create=create)
        return None if lock is None else _CountedLock(lock, self)


def _blocks(size: int) -> int:
    return -(-size // _BLOCK_BYTES) * _BLOCK_BYTES
