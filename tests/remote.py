"""Files of a store whose data is in a bucket, and whose catalogue, log and leases are in a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from nyala.env import SYSTEM, AppendFile, Files, RandomFile
from nyala.objects.base import Objects
from nyala.objects.memory import MemoryObjects
from nyala.objects.remote_files import RemoteFiles
from nyala.testing import FaultyObjects
from nyala.testing.file_wrapper import FileWrapper


class DataInBucket(FileWrapper):
    """Files that keep paths below `<store>/data` in a bucket, and all others on the disk."""

    def __init__(self, store: Path, cache: Path, bucket: Objects | None = None) -> None:
        """Keep the data in `bucket`; None: in a new bucket in memory. `cache`: the folder of the chunk cache."""
        super().__init__(SYSTEM.files)
        self._store = str(store)
        self.bucket = MemoryObjects() if bucket is None else bucket
        self.objects = FaultyObjects(self.bucket)
        self.remote = RemoteFiles.over(self.objects, SYSTEM, str(cache), 1 << 30)

    @property
    def is_remote(self) -> bool:
        return True

    def of(self, path: str) -> tuple[Files, str]:
        """Return the files (of the bucket or the disk) that have this path, and the path to use with them."""
        inside = path.removeprefix(self._store)
        if inside.startswith("/data"):
            return self.remote, self.objects.url + inside
        return self._inner, path

    @property
    def requests(self) -> list[str]:
        """Return the verbs of all requests so far, such as "GET"."""
        return [request.verb for request in self.objects.requests]

    def create(self, path: str) -> AppendFile:
        files, there = self.of(path)
        return files.create(there)

    def open(self, path: str) -> RandomFile:
        files, there = self.of(path)
        return files.open(there)

    def read_all(self, path: str) -> bytes:
        files, there = self.of(path)
        return files.read_all(there)

    def link(self, old: str, new: str) -> bool:
        """Link a file. A staged file is copied into the bucket, because an object cannot be linked."""
        if self.of(new)[0] is not self.remote:
            return super().link(old, new)
        file = self.create(new)
        file.append(self._inner.read_all(old))
        file.sync()
        file.close()
        return True

    def unlink(self, path: str, missing_ok: bool = False) -> None:
        files, there = self.of(path)
        files.unlink(there, missing_ok)

    def make_dirs(self, path: str) -> None:
        files, there = self.of(path)
        files.make_dirs(there)

    def list_dir(self, path: str) -> list[str]:
        files, there = self.of(path)
        return files.list_dir(there)

    def exists(self, path: str) -> bool:
        files, there = self.of(path)
        return files.exists(there)

    def size(self, path: str) -> int:
        files, there = self.of(path)
        return files.size(there)

    def identity(self, path: str) -> Any:
        files, there = self.of(path)
        return files.identity(there)

    def sync_dir(self, path: str) -> None:
        files, there = self.of(path)
        files.sync_dir(there)

    def rounds(self, work: Callable[[], Any]) -> int:
        """Return how often `work` waits for requests. Requests at the same time are one round."""
        before = self.remote.cache.rounds
        work()
        return self.remote.cache.rounds - before

    def forget(self) -> None:
        """Empty the cache, as in a process that has just started."""
        cache = self.remote.cache
        for entry in list(cache._copied.values()):
            cache.drop(entry)

    def close(self) -> None:
        """Do nothing, because the next store uses the same cache. `end` closes it."""

    def end(self) -> None:
        self.remote.close()
