"""Fixtures: a bucket of each kind."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.support import folder_in_memory
from tests.unit.objects.buckets import KINDS, Bucket

from nyala.objects.base import Objects
from nyala.objects.folder import FolderObjects
from nyala.objects.memory import MemoryObjects
from nyala.objects.open import open_objects
from nyala.testing import S3Server


@pytest.fixture(params=KINDS)
def bucket(request: pytest.FixtureRequest) -> Iterator[Bucket]:
    """An empty bucket of each kind."""
    if request.param == "memory":
        memory = MemoryObjects()
        yield Bucket("memory", memory.client, memory.advance)
    elif request.param == "folder":
        with folder_in_memory() as path:

            def advance(seconds: float) -> None:
                # The clock of a file system cannot be moved: what is there gets older instead.
                for file in path.rglob("*"):
                    status = file.stat()
                    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns - round(seconds * 1e9)))

            yield Bucket("folder", lambda: FolderObjects(str(path / "bucket")), advance)
    else:
        with S3Server() as server:
            yield Bucket("s3", lambda: open_objects(server.url, server.options), server.advance)


@pytest.fixture
def objects(bucket: Bucket) -> Iterator[Objects]:
    """A client of an empty bucket of each kind."""
    client = bucket.client()
    yield client
    client.close()
