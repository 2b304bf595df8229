"""Records every change and sync of a folder, and builds the folder that a power cut at any moment
would leave.

`RecordingFiles` is a `Files` around `PosixFiles` or another `Files`. `nyala.testing.power_cut` has
the rules of what a power cut may lose.
"""

from __future__ import annotations

import errno
import os
import random
import threading

from nyala.env import AppendFile, Bytes, FileLock, Files
from nyala.env.reserve import RESERVE_NAME
from nyala.errors import StorageError
from nyala.testing.file_wrapper import AppendFileWrapper, FileLockWrapper, FileWrapper
from nyala.testing.power_cut import Choices, Disk, Event, NothingLost

__all__ = ["RecordingFiles"]


class _RecordedFile(AppendFileWrapper["RecordingFiles"]):
    def append(self, *parts: Bytes) -> int:
        offset = self._inner.append(*parts)
        data = b"".join(bytes(memoryview(part).cast("B")) for part in parts)
        self._owner.record("write", self.path, offset, data)
        return offset

    def sync(self) -> None:
        self._inner.sync()
        self._owner.record("sync", self.path)


class _RecordedLock(FileLockWrapper["RecordingFiles"]):
    """Records the writes into a lock file, which are never synced."""

    def write(self, content: bytes) -> None:
        self._inner.write(content)
        self._owner.record("write", self.path, 0, content)

    def release(self, unlink: bool = False) -> None:
        there = unlink and self._owner.exists(self.path)
        self._inner.release(unlink)
        if there:
            self._owner.record("unlink", self.path)


class RecordingFiles(FileWrapper):
    """Records every change in the folder `root`; `crash_image` builds what a power cut would leave.

    Files that exist when the recording begins count as durable. The store's reserve of disk space
    is not recorded. All written bytes stay in memory. Thread-safe: `events` are in the order in
    which the changes ended.
    """

    def __init__(self, inner: Files, root: str) -> None:
        super().__init__(inner)
        self.root = os.path.abspath(root)
        self.events: list[Event] = []
        self._lock = threading.Lock()
        self._before: list[Event] = []
        if os.path.isdir(self.root):
            for folder, folders, files in os.walk(self.root):
                if RESERVE_NAME in folders:
                    folders.remove(RESERVE_NAME)
                for name in sorted(folders):
                    self._before.append(Event("mkdir", self._relative(os.path.join(folder, name))))
                for name in sorted(files):
                    path = os.path.join(folder, name)
                    with open(path, "rb") as file:
                        self._before.append(Event("given", self._relative(path), data=file.read()))

    def _relative(self, path: str) -> str:
        relative = os.path.relpath(os.path.abspath(path), self.root)
        return "" if relative == "." else relative

    def record(
        self, kind: str, path: str, offset: int = 0, data: bytes | None = None, new_path: str = ""
    ) -> None:
        relative = self._relative(path)
        if relative.startswith(".."):
            return  # outside of the recorded folder
        new = self._relative(new_path) if new_path else ""
        assert not new.startswith(".."), f"{new_path} leaves the recorded folder"
        with self._lock:
            self.events.append(Event(kind, relative, offset, data, new))

    def create(self, path: str) -> AppendFile:
        file = self._inner.create(path)
        self.record("create", path)
        return _RecordedFile(file, self)

    def write_at(self, path: str, offset: int, data: Bytes) -> None:
        new = not self._inner.exists(path)
        self._inner.write_at(path, offset, data)
        if new:
            self.record("create", path)
        self.record("write", path, offset, bytes(data))

    def sync_file(self, path: str) -> None:
        self._inner.sync_file(path)
        self.record("sync", path)

    def truncate(self, path: str, length: int) -> None:
        self._inner.truncate(path, length)
        self.record("truncate", path, length)

    def rename(self, old: str, new: str) -> None:
        self._inner.rename(old, new)
        self.record("rename", old, new_path=new)

    def link(self, old: str, new: str) -> bool:
        linked = self._inner.link(old, new)
        if linked:
            self.record("link", old, new_path=new)
        return linked

    def unlink(self, path: str, missing_ok: bool = False) -> None:
        there = self._inner.exists(path)
        self._inner.unlink(path, missing_ok)
        if there:
            self.record("unlink", path)

    def remove_tree(self, path: str) -> None:
        if not self._inner.exists(path):
            return
        if not os.path.isdir(path) or os.path.islink(path):
            self.unlink(path)
            return
        for name in self._inner.list_dir(path):
            self.remove_tree(os.path.join(path, name))
        self._inner.remove_tree(path)
        self.record("rmdir", path)

    def make_dirs(self, path: str) -> None:
        missing: list[str] = []
        folder = os.path.abspath(path)
        while not self._inner.exists(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        self._inner.make_dirs(path)
        for folder in reversed(missing):
            self.record("mkdir", folder)
            self.record("sync_dir", os.path.dirname(folder))

    def preallocate(self, path: str, length: int) -> None:
        raise StorageError(
            f"cannot allocate {path}: RecordingFiles does not support the store's reserve of disk space. The store "
            "works without it",
            path=path,
            errno=errno.ENOTSUP,
        )

    def sync_dir(self, path: str) -> None:
        self._inner.sync_dir(path)
        self.record("sync_dir", path or ".")

    def lock(self, path: str, *, create: bool = True) -> FileLock | None:
        new = not self._inner.exists(path)
        lock = self._inner.lock(path, create=create)
        if new and self._inner.exists(path):
            self.record("create", path)
        return None if lock is None else _RecordedLock(lock, self)

    def crash_image(self, upto_event: int, choices: Choices | random.Random, target_dir: str) -> None:
        """Create the folder `target_dir` as a power cut after `events[:upto_event]` may leave it.

        Each call of `choices.randrange` decides about one change. The number 0 means that the
        change survives, so Hypothesis, which prefers small numbers, reduces a failing test to the
        crash that loses least.
        """
        disk = Disk()
        for event in self._before:
            disk.apply(event)
        disk.sync_all()
        for event in self.events[:upto_event]:
            disk.apply(event)
        disk.write_survivors(choices, target_dir)

    def live_image(self, upto_event: int, target_dir: str) -> None:
        """Create the folder that a killed process leaves: `target_dir` after `events[:upto_event]`.

        An event is a recorded change or sync. The folder has all these changes, also those that
        were not synced, because the system keeps them when a process ends.
        """
        self.crash_image(upto_event, NothingLost(), target_dir)
