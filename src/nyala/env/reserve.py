"""A reserve of disk space in the store's folder, for what must work on a full disk.

The reserve is a folder of files, `reserve/000`, `reserve/001` …, of 512 KiB each, whose blocks are allocated and whose
bytes mean nothing. On a full disk it is given back to the file system before something that frees space is tried once
more (dropping, compacting, vacuuming, opening the store), or that must not fail half-way (the log). Afterwards it is
allocated again. A reader that cannot write its lease takes one file of it. Several files, because a disk can also be
full of inodes, and because a reader needs little.

Invariants
    V1  Ordinary writes get nothing of it: what becomes free goes to the reserve first. While it is in use the log takes
        no record.
    V2  A store works without a reserve where the file system cannot allocate space, and with a smaller one on a small
        disk: at most a quarter of what is free when it is made.
    V3  Whether the disk is full is found out by an error, never by asking how much is free: quotas are not in that.

Threads: any. Files of the reserve may be missing, or come back, at any time.
Source: Kudu's fs_wal_dir_reserved_bytes. Departure: allocated, because another process may fill the disk.
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

__all__ = ["PIECES_MAX", "PIECES_MIN", "PIECE_BYTES", "RESERVE_NAME", "Reserve", "is_full", "why_full"]

logger = logging.getLogger("nyala.store")

_T = TypeVar("_T")

RESERVE_NAME: Final = "reserve"
PIECE_BYTES: Final = 512 << 10
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
# A small store has 8 MiB, a large one a sixteenth of its data, up to 64 MiB: room for a rowset or two.
PIECES_MIN: Final = 16
PIECES_MAX: Final = 128
_SHARE: Final = 16
_PROBE_BYTES: Final = 64 << 10


def is_full(error: BaseException) -> bool:
    """Whether an error says that the disk, the user's quota or the file system's inodes are used up."""
    return isinstance(error, StorageError) and error.errno in _FULL


def why_full(files: Files, folder: str) -> int | None:
    """The error number with which this folder's disk refuses a small file; None when it takes one. For SQLite's errors,
    which do not tell."""
    probe = os.path.join(folder, f".probe-{os.getpid()}-{threading.get_ident():x}")
    try:
        files.preallocate(probe, _PROBE_BYTES)
        files.unlink(probe, missing_ok=True)
    except StorageError as error:
        return error.errno if is_full(error) else None
    return None


class Reserve:
    """The reserve of the store at `directory`. A writer makes it by `grow`; others only take from it."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._folder = os.path.join(directory, RESERVE_NAME)
        self._lock = threading.RLock()
        self._target = 0  # pieces that there should be
        self._missing = False
        self._missing_errno: int | None = None
        self._uses = 0

    def bind(self, files: Files) -> None:
        """From now on through the files of the open store: they never touch another folder (`Files.bind`)."""
        self._files = files

    def _pieces(self) -> list[str]:
        return [os.path.join(self._folder, name) for name in self._files.list_dir(self._folder)]

    def grow(self, data_bytes: int) -> None:
        """Make the reserve as large as a store with so much data shall have (V2). Never raises StorageError."""
        with self._lock:
            try:
                for path in self._pieces():
                    if self._files.size(path) != PIECE_BYTES:  # left half made by a crash
                        self._files.unlink(path, missing_ok=True)
                held = len(self._pieces())
                wanted = min(max(data_bytes // _SHARE // PIECE_BYTES, PIECES_MIN), PIECES_MAX)
                affordable = held + self._files.free_bytes(self._directory) // 4 // PIECE_BYTES
                self._target = max(min(wanted, affordable), min(held, PIECES_MAX))
            except StorageError as error:
                logger.debug("no reserve: %s", error)
                self._target = 0
            self.fill()

    def fill(self) -> bool:
        """Allocate what is missing; whether nothing is. Not while it is in use."""
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
                if not self._missing:  # a file system that cannot do it (V2)
                    logger.debug("no reserve: %s", error)
                    self._target = 0
                return not self._missing
            self._missing = False
            return True

    def is_open_to_writes(self, new_file: bool) -> bool:
        """Whether ordinary writes may use what is free (V1). Where pieces are missing, they are allocated first.

        new_file: whether the write makes one.
        """
        if not self._missing or self.fill():
            return True
        if self._uses or self._missing_errno == errno.EDQUOT:
            return False
        # Too little for a piece is left to writes. If more is free, there is no inode.
        return not new_file or self._files.free_bytes(self._directory) < PIECE_BYTES

    def release(self, count: int = PIECES_MAX) -> bool:
        """Give up to that many pieces back to the file system. Returns whether there was one."""
        with self._lock:
            try:
                pieces = self._pieces()[-count:]
                for path in pieces:
                    self._files.unlink(path, missing_ok=True)
            except StorageError as error:
                logger.warning("the reserve of space cannot be used: %s", error)
                return False
            self._missing = self._missing or bool(pieces and self._target)
            return bool(pieces)

    def use(self, action: Callable[[], _T]) -> _T:
        """Do what frees space, or must work without any. On a full disk once more, with the reserve given back.

        action: may be called twice, the second time after a call that raised and changed nothing.
        Raises: what `action` raises.
        """
        try:
            return action()
        except StorageError as error:
            if not is_full(error) or error.outcome == "unknown" or not self._begin_use():
                raise
        # The error is gone, and with it the roots that its frames hold: they would keep files from being removed.
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
        logger.warning("the disk is full: %s is used, the store's reserve of space", self._folder)
        return True

    def take(self, action: Callable[[], _T]) -> _T:
        """Do something small that others need on a full disk, such as a lease, with as few pieces as it takes.

        action: as of `use`.
        """
        while True:
            try:
                return action()
            except StorageError as error:
                if not is_full(error) or not self.release(1):
                    raise
