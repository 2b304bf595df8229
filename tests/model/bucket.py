"""The session of the model test with its store in a bucket: processes share objects, but no disk."""

from __future__ import annotations

import contextlib
from typing import NoReturn

from nyala.api.database import Database
from nyala.env import SYSTEM, Env
from nyala.errors import Error
from nyala.objects.memory import MemoryObjects
from nyala.objects.remote_files import RemoteFiles
from nyala.tablet.media.bucket_reader import BucketReader
from nyala.tablet.store import Store, StoreOptions
from nyala.testing import SimulatedCrash
from tests.model.session import Session


class BucketSession(Session):
    """A session in which the store of a killed process is taken over by another process."""

    bucket: MemoryObjects | None = None

    def _client(self) -> tuple[Env, MemoryObjects]:
        """Return the files and the bucket as a process on another machine has them."""
        if self.bucket is None:
            self.bucket = MemoryObjects()
        objects = self.bucket.client()
        files = RemoteFiles.over(objects, SYSTEM, str(self.folder / "cache"), 1 << 26)
        return Env(files, self.clock, self.randomness), objects

    def _open(self) -> None:
        self.env, objects = self._client()
        options = StoreOptions(
            maintenance=False,
            direct_commit_bytes=self.options.direct_commit_bytes,
            rowset_target_bytes=self.options.rowset_target_bytes,
        )
        self.db = Database(Store.open_in_bucket(self.env, objects, options, 0.0))

    def do_kill(self, seed: int | None) -> NoReturn:
        raise SimulatedCrash

    def _resume(self) -> None:
        for reader in self.readers:
            reader.close()
        self.readers, self.pinned = [], []
        killed = self.db
        self._open()
        with contextlib.suppress(Error):
            killed.close()  # it cannot write any more, because the next process has taken over

    def do_reader(self) -> None:
        if len(self.readers) == 2:
            reader = self.readers.pop(0)
            self._unpin(reader)
            reader.close()
        self.readers.append(Database(BucketReader.open(*self._client(), 64 << 20, 0.0)))
