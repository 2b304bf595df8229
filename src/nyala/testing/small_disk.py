"""A simulated disk of a few megabytes, which another program may fill at any moment.

Only the files of one folder count as files on this disk.
"""

from __future__ import annotations

import errno
import os
from typing import Final, Literal, TypeAlias

from nyala.env import AppendFile, Bytes, FileLock, Files
from nyala.errors import StorageError
from nyala.testing.file_wrapper import AppendFileWrapper, FileLockWrapper, FileWrapper

__all__ = ["SmallDisk"]

DiskLimit: TypeAlias = Literal["bytes", "quota", "inodes"]

_BLOCK_BYTES: Final = 4096


class _CountedFile(AppendFileWrapper["SmallDisk"]):
    """An AppendFile that grows only while the disk has room."""

    def append(self, *parts: Bytes) -> int:
        before = self._inner.size_bytes
        length = sum(memoryview(part).nbytes for part in parts)
        self._owner.check_room(_blocks(before + length) - _blocks(before), self.path)
        return self._inner.append(*parts)


class _CountedLock(FileLockWrapper["SmallDisk"]):
    """A lock file. On a full disk it can be created, but its content cannot be written."""

    def write(self, content: bytes) -> None:
        self._owner.check_room(_blocks(len(content)) - _blocks(len(self._inner.read())), self.path)
        self._inner.write(content)


class SmallDisk(FileWrapper):
    """A disk with room for `capacity_bytes` of files in the folder `root`.

    After `fill()` the disk is full until `heal()`. limit: the limit that `fill` exhausts: "bytes"
    (free space), "quota" (the user's share of the space) or "inodes" (the number of files).
    Thread-safe.
    """

    def __init__(self, inner: Files, root: str, capacity_bytes: int, limit: DiskLimit = "bytes") -> None:
        super().__init__(inner)
        self.root = root
        self.limit: DiskLimit = limit
        self._capacity = capacity_bytes
        self._taken: int | None = None  # bytes that the other program uses
        self._inodes: int | None = None  # the number of files that may exist; None: no limit

    def _used(self) -> tuple[int, int]:
        """Return the number of files and folders, and the bytes that the files occupy in whole blocks."""
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
        """Let another program use all free space, or all free inodes, until `heal`."""
        files, size = self._used()
        if self.limit == "inodes":
            self._inodes = files
        else:
            self._taken = max(self._capacity - size, 0)

    def heal(self) -> None:
        """Give the disk room again after `fill`, as if the other program had deleted its files."""
        self._taken = self._inodes = None

    def check_room(self, growth: int, path: str, files: int = 0) -> None:
        """Raise StorageError if the disk has no room for `growth` more bytes and `files` more files."""
        there, size = self._used()
        no_inode = self._inodes is not None and files and there + files > self._inodes
        no_room = growth > 0 and size + growth > self._capacity - (self._taken or 0)
        if no_inode or no_room:
            number = errno.EDQUOT if self.limit == "quota" else errno.ENOSPC
            raise StorageError(f"cannot write {path}: {os.strerror(number)}", path=path, errno=number)

    def free_bytes(self, path: str) -> int:
        taken = (
            0 if self.limit == "quota" else self._taken or 0
        )  # the system's free space does not show a quota
        return max(self._capacity - taken - self._used()[1], 0)

    def create(self, path: str) -> AppendFile:
        self.check_room(0, path, files=1)
        return _CountedFile(self._inner.create(path), self)

    def write_at(self, path: str, offset: int, data: Bytes) -> None:
        there = self._inner.size(path) if self._inner.exists(path) else 0
        growth = _blocks(max(offset + len(data), there)) - _blocks(there)
        self.check_room(growth, path, files=not self._inner.exists(path))
        self._inner.write_at(path, offset, data)

    def preallocate(self, path: str, length: int) -> None:
        self.check_room(_blocks(length), path, files=1)
        self._inner.preallocate(path, length)

    def make_dirs(self, path: str) -> None:
        if not self._inner.exists(path):
            self.check_room(_BLOCK_BYTES, path, files=1)
        self._inner.make_dirs(path)

    def lock(self, path: str, *, create: bool = True) -> FileLock | None:
        if create and not self._inner.exists(path):
            self.check_room(0, path, files=1)
        lock = self._inner.lock(path, create=create)
        return None if lock is None else _CountedLock(lock, self)


def _blocks(size: int) -> int:
    """Round a size in bytes up to whole blocks."""
    return -(-size // _BLOCK_BYTES) * _BLOCK_BYTES
