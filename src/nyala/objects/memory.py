"""Objects in memory, which behave like those of a bucket, for tests.

Several clients can share one bucket (`client`). The bucket's clock moves only when a test moves it, so
two objects may have the same time, as in a real bucket.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from nyala.env import Bytes
from nyala.objects.base import ObjectInfo
from nyala.objects.handle import Handle


class _Bucket:
    """The objects and the clock of a bucket, which its clients share."""

    def __init__(self, now_us: int) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.now_us = now_us


class MemoryObjects(Handle):
    """`Objects` in memory.

    Examples
    --------
    >>> bucket = MemoryObjects()
    >>> bucket.create("log/0", b"mine"), bucket.client().create("log/0", b"theirs")
    (True, False)
    >>> bucket.get("log/0")
    b'mine'
    """

    def __init__(self, url: str = "memory://bucket", *, now_us: int = 1_735_689_600_000_000) -> None:
        """Create an empty bucket in memory.

        now_us: the time of the bucket's clock until `advance` moves it, in microseconds since 1970.
            Default: 2025-01-01 00:00 UTC.
        """
        super().__init__(url)
        self._bucket = _Bucket(now_us)

    def client(self) -> MemoryObjects:
        """Return another client of the same bucket."""
        other = MemoryObjects(self.url)
        other._bucket = self._bucket
        return other

    @property
    def now_us(self) -> int:
        """The time on the bucket's clock."""
        return self._bucket.now_us

    def advance(self, seconds: float) -> None:
        """Move the bucket's clock."""
        with self._bucket.lock:
            self._bucket.now_us += round(seconds * 1e6)

    def create(self, key: str, body: Bytes) -> bool:
        self.check_key(key)
        with self._bucket.lock:
            if key in self._bucket.objects:
                return False
            self._store(key, body)
        return True

    def put(self, key: str, body: Bytes) -> None:
        self.check_key(key)
        with self._bucket.lock:
            self._store(key, body)

    def _store(self, key: str, body: Bytes) -> None:
        self._bucket.objects[key] = (bytes(memoryview(body)), self._bucket.now_us)

    def upload(self, key: str, parts: Iterable[Bytes]) -> int:
        self.check_key(key)
        body = b"".join(bytes(memoryview(part)) for part in parts)
        self.put(key, body)
        return len(body)

    def copy(self, key: str, new_key: str) -> None:
        body = self.get(key)
        if body is None:
            raise self.missing(key)
        self.put(new_key, body)

    def get(self, key: str) -> bytes | None:
        self.check_key(key)
        found = self._bucket.objects.get(key)
        if found is None:
            return None
        self.check_whole(key, len(found[0]))
        return found[0]

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        self.check_key(key)
        found = self._bucket.objects.get(key)
        if found is None:
            raise self.missing(key)
        for lower, upper in ranges:
            assert 0 <= lower <= upper, (key, lower, upper)
        return [found[0][lower:upper] for lower, upper in ranges]

    def head(self, key: str) -> ObjectInfo | None:
        self.check_key(key)
        found = self._bucket.objects.get(key)
        return None if found is None else ObjectInfo(key, len(found[0]), found[1])

    def list(self, under: str, after: str | None = None) -> list[ObjectInfo]:
        self.check_under(under)
        with self._bucket.lock:
            return [
                ObjectInfo(key, len(body), modified_us)
                for key, (body, modified_us) in sorted(self._bucket.objects.items())
                if key.startswith(under) and (after is None or key > after)
            ]

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.check_key(key)
        self.check()
        with self._bucket.lock:
            for key in keys:
                self._bucket.objects.pop(key, None)
