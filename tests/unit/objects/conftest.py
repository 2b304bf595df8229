"""Fixtures: a bucket of each kind."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support import folder_in_memory
from tests.unit.objects.buckets import KINDS, Bucket
from tests.unit.objects.seaweedfs import BUCKET, find_weed, seaweedfs

from nyala.env import SYSTEM
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
                # The clock of a file system cannot be moved, so all files get older instead.
                for file in path.rglob("*"):
                    status = file.stat()
                    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns - round(seconds * 1e9)))

            yield Bucket("folder", lambda: FolderObjects(str(path / "bucket")), advance)
    elif request.param == "s3":
        with S3Server() as server:
            yield Bucket("s3", lambda: open_objects(server.url, server.options), server.advance)
    else:
        options = request.getfixturevalue("real_server")
        # Each test has its own prefix, which is like its own bucket.
        url = f"s3://{BUCKET}/{SYSTEM.randomness.token_hex(8)}"
        yield Bucket("seaweedfs", lambda: open_objects(url, options), wait_a_moment)


def wait_a_moment(seconds: float) -> None:
    if seconds > 5:
        pytest.skip("the clock of a real server cannot be moved")
    time.sleep(seconds)


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The `storage_options` of a real S3 server that checks signatures."""
    program = find_weed()
    if program is None:
        pytest.skip("needs a real S3 server: make test-s3 installs SeaweedFS and runs these tests")
    with seaweedfs(program, tmp_path_factory.mktemp("seaweedfs")) as options:
        yield options


@pytest.fixture
def objects(bucket: Bucket) -> Iterator[Objects]:
    """A client of an empty bucket of each kind."""
    client = bucket.client()
    yield client
    client.close()
