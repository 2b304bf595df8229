"""A reserve of disk space in the store's folder, for operations that must work on a full disk.

The reserve is a folder of files `reserve/000`, `reserve/001` …, called pieces. Each piece has
512 KiB of allocated blocks with meaningless bytes. Two kinds of operation use the reserve: those
that free space (dropping, compacting, vacuuming, opening a store), and the log, which must not fail
half-way. If such an operation finds the disk full, all pieces are deleted, the operation is
repeated, and then the pieces are allocated again. A reader that cannot write its lease deletes one
piece. The reserve has many pieces because a disk can also run out of inodes, and because a reader
needs little.

Invariants
    V1  Ordinary writes never use the reserve: before such a write, missing pieces are allocated from
        the free space. While the reserve is in use, the log accepts no records.
    V2  A store works without a reserve if the file system cannot allocate space. On a small disk the
        reserve is small: at most a quarter of the free space when it is created.
    V3  Only the error of a failed write shows that the disk is full. The free space that the system
        reports does not show it, because quotas are not included.

Threads: any. Another process may delete or allocate pieces at any time.
Source: Kudu's fs_wal_dir_reserved_bytes. Here the space is allocated, because another process may
fill the disk.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from nyala.env.files import Files
from nyala.errors import StorageError

logger = logging.getLogger("nyala.store")

_T = TypeVar("_T")

RESERVE_NAME: Final = "reserve"
PIECE_BYTES: Final = 512 << 10
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
# The reserve has a sixteenth of the data's size, and 8 MiB to 64 MiB: space for one or two rowsets.
PIECES_MIN: Final = 16
PIECES_MAX: Final = 128
_SHARE: Final = 16


def is_full(error: BaseException) -> bool:
    """Whether an error means that the disk has no space or inode left, or a quota is used up."""
    return isinstance(error, StorageError) and error.errno in _FULL


class Reserve:
    """Disk space that a store holds back for operations that must work on a full disk.

    The space is files of 512 KiB, called pieces. Only a writer allocates them, by `grow`. A reader
    deletes one if the disk is too full for its lease, the file that says what the reader needs.

    directory: the store's folder.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._folder = os.path.join(directory, RESERVE_NAME)
        self._lock = threading.RLock()
        self._target = 0  # pieces that should exist
        self._missing = False
        self._missing_errno: int | None = None
        self._uses = 0

    def bind(self, files: Files) -> None:
        """Replace the `Files` object by which this reserve allocates and deletes its files.

        files: the result of `Files.bind` for the store's folder. It keeps using this folder, even
            if another folder takes the path.
        """
        self._files = files

    def _pieces(self) -> list[str]:
        return [os.path.join(self._folder, name) for name in self._files.list_dir(self._folder)]

    def has_pieces(self) -> bool:
        """Whether the reserve of disk space still has a file to delete (a piece of 512 KiB)."""
        return bool(self._pieces())

    def grow(self, data_bytes: int) -> None:
        """Allocate files until the reserve has its full size: a sixteenth of the store's data.

        The full size is at least 8 MiB and at most 64 MiB, but less if the disk is almost full.
        Never raises StorageError, because a store works without a reserve too.

        data_bytes: the size of the store's data.
        """
        with self._lock:
            try:
                for path in self._pieces():
                    if self._files.size(path) != PIECE_BYTES:  # incomplete after a crash
                        self._files.unlink(path, missing_ok=True)
                held = len(self._pieces())
                by_size = min(max(data_bytes // _SHARE // PIECE_BYTES, PIECES_MIN), PIECES_MAX)
                affordable = held + self._files.free_bytes(self._directory) // 4 // PIECE_BYTES
                self._target = max(min(by_size, affordable), min(held, PIECES_MAX))
            except StorageError as error:
                logger.debug("the store has no reserve of space: %s", error)
                self._target = 0
            self.fill()

    def fill(self) -> bool:
        """Allocate missing pieces. Return whether the reserve is complete.

        Allocates nothing while `use` runs an action with the space of the reserve.
        """
        with self._lock:
            if self._uses:
                return not self._missing
            try:
                held = set(self._files.list_dir(self._folder)) if self._target else set()
                for number in range(self._target):
                    if (name := f"{number:03d}") not in held:
                        self._files.preallocate(os.path.join(self._folder, name), PIECE_BYTES)
            except StorageError as error:
                self._missing, self._missing_errno = is_full(error), error.errno
                if not self._missing:  # this file system cannot allocate space (V2)
                    logger.debug("the store has no reserve of space: %s", error)
                    self._target = 0
                return not self._missing
            self._missing = False
            return True

    def is_open_to_writes(self, new_file: bool) -> bool:
        """Return whether an ordinary write may run without taking the space of the reserve.

        If files of the reserve are missing, they are allocated first.

        new_file: whether the write creates a file.
        """
        if not self._missing or self.fill():
            return True
        if self._uses or self._missing_errno == errno.EDQUOT:
            return False
        # Less free space than a piece may be used. If more is free, the inodes are used up.
        return not new_file or self._files.free_bytes(self._directory) < PIECE_BYTES

    def release(self, count: int = PIECES_MAX) -> bool:
        """Delete up to `count` pieces to free their space. Return whether at least one existed."""
        with self._lock:
            try:
                pieces = self._pieces()[-count:]
                for path in pieces:
                    self._files.unlink(path, missing_ok=True)
            except StorageError as error:
                logger.warning("the reserve of space cannot be released: %s", error)
                return False
            self._missing = self._missing or bool(pieces and self._target)
            return bool(pieces)

    def use(self, action: Callable[[], _T]) -> _T:
        """Call `action`. If the disk is full, delete the reserve and call `action` again.

        Afterwards the reserve is allocated again.

        action: an operation that frees space or must not fail. If it raises, it must have changed
        nothing, because it may be called again.
        Raises: what `action` raises.
        """
        try:
            return action()
        except StorageError as error:
            if not is_full(error) or error.outcome == "unknown" or not self._begin_use():
                raise
        # Outside of `except`: the error's frames may hold roots, which keep old files from removal.
        try:
            return action()
        finally:
            with self._lock:
                self._uses -= 1
            self.fill()

    def _begin_use(self) -> bool:
        with self._lock:
            if not self.release():
                return False
            self._uses += 1
        logger.warning("the disk is full: the store uses its reserve of space in %s", self._folder)
        return True

    def take(self, action: Callable[[], _T]) -> _T:
        """Call `action`. While it fails because the disk is full, delete one file of the reserve
        and call it again.

        action: a small operation that must work on a full disk, such as writing a lease.
        Raises: the error of `action`, if it has another cause or the reserve has no file left.
        """
        while True:
            try:
                return action()
            except StorageError as error:
                if not is_full(error) or not self.release(1):
                    raise
