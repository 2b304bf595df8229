"""Files that remember every change and every sync, so that a power cut at any moment can be looked at.

`RecordingFiles` wraps `PosixFiles` or another twin of it; each is a `Files`. What a power cut leaves of what it
remembers, `nyala.testing.power_cut` says.
"""

from __future__ import annotations

import errno
import os
import random
import threading

from nyala.env import AppendFile, Bytes, FileLock, Files
from nyala.env.reserve import RESERVE_NAME
from nyala.errors import StorageError
from nyala.testing.file_wrapper import FileWrapper
from nyala.testing.power_cut import Choices, Disk, Event, EverythingCameThrough

__all__ = ["RecordingFiles"]


class _RecordedFile:
    def __init__(self, inner: AppendFile, owner: RecordingFiles) -> None:
        self._inner = inner
        self._owner = owner

    @property
    def path(self) -> str:
        return self._inner.path

    @property
    def size_bytes(self) -> int:
        return self._inner.size_bytes

    def append(self, *parts: Bytes) -> int:
        offset = self._inner.append(*parts)
        data = b"".join(bytes(memoryview(part).cast("B")) for part in parts)
        self._owner.record("write", self.path, offset, data)
        return offset

    def sync(self) -> None:
        self._inner.sync()
        self._owner.record("sync", self.path)

    def close(self) -> None:
        self._inner.close()


class _RecordedLock:
    """A lock's content is a write like any other, and never synced."""

    def __init__(self, inner: FileLock, owner: RecordingFiles) -> None:
        self._inner = inner
        self._owner = owner

    @property
    def path(self) -> str:
        return self._inner.path

    def write(self, content: bytes) -> None:
        self._inner.write(content)
        self._owner.record("write", self.path, 0, content)

    def read(self) -> bytes:
        return self._inner.read()

    def release(self, unlink: bool = False) -> None:
        there = unlink and self._owner.exists(self.path)
        self._inner.release(unlink)
        if there:
            self._owner.record("unlink", self.path)


class RecordingFiles(FileWrapper):
    """Remembers every change under `root`, from which `crash_image` makes what a power cut may leave.

    What is under `root` when the recording begins counts as durable, but for the reserve of space. All written bytes
    are kept in memory.
    Threads: any; events stand in the order in which they ended.
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
            return  # a parent of the root, or a file elsewhere
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
        raise StorageError(f"cannot allocate {path}: it is not recorded", path=path, errno=errno.ENOTSUP)

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
        """Write into the new folder `target_dir` what a power cut after `events[:upto_event]` may have left.

        Everything that C1 and C2 leave open is drawn from `choices`; each draw is one `randrange`. Draws of 0 mean
        "came through", so a shrunk Hypothesis example is the mildest crash.
        """
        disk = Disk()
        for event in self._before:
            disk.apply(event)
        disk.settle()
        for event in self.events[:upto_event]:
            disk.apply(event)
        disk.write_survivors(choices, target_dir)

    def live_image(self, upto_event: int, target_dir: str) -> None:
        """As `crash_image`, but only the process died: everything that it handed to the system is there."""
        self.crash_image(upto_event, EverythingCameThrough(), target_dir)
