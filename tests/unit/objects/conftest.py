"""Fixtures: a bucket of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.objects.buckets import KINDS, Bucket

from nyala.objects.base import Objects
from nyala.objects.memory import MemoryObjects


@pytest.fixture(params=KINDS)
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bucket]:
    """An empty bucket of each kind."""
    memory = MemoryObjects()
    yield Bucket("memory", memory.client, memory.advance)


@pytest.fixture
def objects(bucket: Bucket) -> Iterator[Objects]:
    """A client of an empty bucket of each kind."""
    client = bucket.client()
    yield client
    client.close()
