"""A whole store whose data files are objects of a bucket; its catalogue, log and leases are in a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nyala.env import SYSTEM, AppendFile, Env, Files, RandomFile
from nyala.objects.base import Objects
from nyala.objects.memory import MemoryObjects
from nyala.objects.remote_files import RemoteFiles
from nyala.testing import FaultyObjects
from nyala.testing.file_wrapper import FileWrapper


class DataInBucket(FileWrapper):
    """Paths inside of `<store>/data` lead to the bucket, all others to the disk."""

    def __init__(
        self, store: Path, cache: Path, bucket: Objects | None = None, cache_bytes: int = 1 << 30
    ) -> None:
        """bucket: its URL must be the store's folder. Default: one in memory."""
        super().__init__(SYSTEM.files)
        self._data = f"{store}/data"
        self.objects = FaultyObjects(MemoryObjects(str(store)) if bucket is None else bucket)
        env = Env(SYSTEM.files, SYSTEM.clock, SYSTEM.randomness)
        self.remote = RemoteFiles.over(self.objects, env, str(cache), cache_bytes)

    @property
    def is_remote(self) -> bool:
        return True

    def of(self, path: str) -> Files:
        """The files that have this path."""
        return self.remote if path.startswith(self._data) else self._inner

    @property
    def requests(self) -> list[str]:
        """The requests so far, as verbs."""
        return [request.verb for request in self.objects.requests]

    def create(self, path: str) -> AppendFile:
        return self.of(path).create(path)

    def open(self, path: str) -> RandomFile:
        return self.of(path).open(path)

    def read_all(self, path: str) -> bytes:
        return self.of(path).read_all(path)

    def link(self, old: str, new: str) -> bool:
        """Copies a staged file into the bucket."""
        if not new.startswith(self._data):
            return super().link(old, new)
        file = self.create(new)
        file.append(self._inner.read_all(old))
        file.sync()
        file.close()
        return True

    def unlink(self, path: str, missing_ok: bool = False) -> None:
        self.of(path).unlink(path, missing_ok)

    def make_dirs(self, path: str) -> None:
        self.of(path).make_dirs(path)

    def list_dir(self, path: str) -> list[str]:
        return self.of(path).list_dir(path)

    def exists(self, path: str) -> bool:
        return self.of(path).exists(path)

    def size(self, path: str) -> int:
        return self.of(path).size(path)

    def identity(self, path: str) -> Any:
        return self.of(path).identity(path)

    def sync_dir(self, path: str) -> None:
        self.of(path).sync_dir(path)

    def rounds(self, work: Callable[[], Any]) -> int:
        """How many rounds of requests `work` takes; it runs in one thread."""
        before = self.remote.cache.rounds
        work()
        return self.remote.cache.rounds - before

    def forget(self) -> None:
        """Empty the cache, as of a process that has just started."""
        cache = self.remote.cache
        for entry in list(cache._copied.values()):
            cache.drop(entry)

    def close(self) -> None:
        """Nothing: several stores after each other may use the cache."""

    def end(self) -> None:
        self.remote.close()
