"""Objects in a bucket of S3, Google Cloud Storage or Azure, through obstore.

Invariants
    O1  `create` sends one request. obstore must not repeat it after a 503 or a cut connection,
        because the second request would find the object of the first, and take it for another
        writer's. Instead, `settle` repeats a failed request, and compares the bytes.
    O2  A forked child raises StorageError for a bucket that its parent opened. obstore's threads do
        not exist in the child, so each request would wait forever.
    O3  `repr`, messages and pickles contain no credentials. A pickled client of obstore would contain
        the secret key. So no other object gets these clients, and a `BucketObjects` cannot be pickled.
    O4  All errors of obstore become StorageError (`bucket_errors`).
    O5  This module, not obstore, merges ranges into requests and cuts them off at the object's end.
        obstore panics if a merged range begins behind the end.
    O6  An upload needs the memory of at most `_PARTS_AT_ONCE` + 2 parts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from nyala.env import Bytes
from nyala.errors import StorageError
from nyala.objects.base import ObjectInfo
from nyala.objects.bucket_errors import (
    RANGE_NOT_SATISFIABLE,
    THROTTLED,
    bucket_error,
    check_from_bucket,
    is_about_object,
    status_of,
)
from nyala.objects.handle import Handle, is_key
from nyala.optional import need

Connect = Callable[[dict[str, Any], dict[str, Any]], Any]
"""Creates a client of obstore. Arguments: `client_options` and `retry_config`."""

TIMEOUT_S: Final = 20.0
"""The seconds after which a request without an answer has failed."""

# All requests except `create` may be repeated, and their bodies may be large. So the timeout limits
# each pause without data, and the whole request may take this number of timeouts.
_BODY_TIMEOUTS: Final = 15
_RETRIES: Final = {
    "max_retries": 5,
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=3),
        "base": 2,
    },
    "retry_timeout": timedelta(seconds=30),
}
# S3 allows 10,000 parts for an upload, so an object has at most 80 GB.
_PART_BYTES: Final = 8 << 20
_PARTS_AT_ONCE: Final = 4
# Ranges with a smaller gap share a request: a request takes about as long as the transfer of 1 MB.
_GAP_MAX_BYTES: Final = 1 << 20
_LIST_CHUNK: Final = 1000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# The process that first opened a bucket (O2).
_opener: list[int] = []


class BucketObjects(Handle):
    """`Objects` in a bucket. `open.open_objects` creates it.

    Threads: any. A call waits until the bucket answers, without the interpreter lock.
    """

    def __init__(
        self,
        url: str,
        connect: Connect,
        timeout_s: float = TIMEOUT_S,
        public_options: tuple[tuple[str, Any], ...] = (),
    ) -> None:
        """url: without credentials.
        connect: creates a client of obstore. It is called twice: for a client that repeats failed
            requests, and for one that does not.
        timeout_s: the seconds after which a request without an answer has failed.
        public_options: the storage options without credentials, such as the region.
        """
        super().__init__(url, public_options)
        self._connect: Final = connect
        self._timeout_s: Final = timeout_s
        self._count_lock = threading.Lock()
        self._obstore = need("obstore", "s3")
        if not _opener:
            _opener.append(os.getpid())
        if _opener[0] != os.getpid():
            raise StorageError(
                f"cannot open {self.url}: this process was forked from one that had opened a bucket, and would wait "
                "for ever; start processes by 'spawn'",
                path=self.url,
            )
        exceptions = need("obstore.exceptions", "s3")
        self._errors: tuple[type[Exception], ...] = (exceptions.BaseError, OSError)
        self._exists: type[Exception] = exceptions.AlreadyExistsError
        timeout = timedelta(seconds=timeout_s)
        connecting = {"connect_timeout": min(timeout, timedelta(seconds=5))}
        try:
            self._once: Any = connect({**connecting, "timeout": timeout}, {"max_retries": 0})
            self._store: Any = connect(
                {**connecting, "timeout": _BODY_TIMEOUTS * timeout, "read_timeout": timeout}, _RETRIES
            )
        except self._errors as error:
            raise bucket_error(error, "open", self.url) from None

    def close(self) -> None:
        super().close()
        self._once = self._store = None

    def client(self) -> BucketObjects:
        return BucketObjects(self.url, self._connect, self._timeout_s, self.public_options)

    def _error(self, error: Exception, verb: str, key: str) -> StorageError:
        if status_of(error) in THROTTLED:
            with self._count_lock:
                self.throttled += 1
        return bucket_error(error, verb, self.at(key))

    @contextmanager
    def _errors_of(self, verb: str, key: str) -> Iterator[None]:
        """Convert errors of obstore in the `with` block. verb: what the block does, such as "read"."""
        try:
            yield
        except self._errors as error:
            raise self._error(error, verb, key) from None

    def _client(self, client: Any) -> Any:
        """Return `client`. Raise StorageError if another thread has just closed these objects."""
        if client is None:
            self.check()
        return client

    # ── changing ─────────────────────────────────────────────────────────────────────────────────

    def create(self, key: str, body: Bytes) -> bool:
        self.check_key(key)
        try:
            self._obstore.put(self._client(self._once), key, _plain(body), mode="create", use_multipart=False)
        except self._exists:  # the object exists, or the bucket reported a conflict (409)
            return False
        except self._errors as error:
            raise self._error(error, "create", key) from None
        return True

    def put(self, key: str, body: Bytes) -> None:
        self.check_key(key)
        with self._errors_of("write", key):
            self._obstore.put(self._client(self._store), key, _plain(body), use_multipart=False)

    def upload(self, key: str, parts: Iterable[Bytes]) -> int:
        self.check_key(key)
        source = _Source(parts)
        chunks = source.chunks()
        first, second = next(chunks, b""), next(chunks, None)
        if second is None:
            self.put(key, first)
            return source.size_bytes
        source.waiting = [first, second]
        try:
            # An error in `chunks` also aborts the upload.
            self._obstore.put(
                self._client(self._store),
                key,
                source.waiting_and(chunks),
                use_multipart=True,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )
        except self._errors as error:
            if error is source.failure:
                raise
            raised = self._error(error, "upload", key)
            if not source.ended:
                raised.outcome = None  # the object was not completed
            raise raised from None
        return source.size_bytes

    def copy(self, key: str, new_key: str) -> None:
        for name in (key, new_key):
            self.check_key(name)
        try:
            self._obstore.copy(self._client(self._store), key, new_key)
        except self._errors as error:
            self._raise_unless_missing(error, "copy", key)
            raise self.missing(key) from None

    def delete(self, keys: Sequence[str]) -> None:
        self.check()
        for key in keys:
            self.check_key(key)
        if not keys:
            return
        with self._errors_of("delete", keys[0]):
            try:
                self._obstore.delete(self._client(self._store), list(keys))
                return
            except FileNotFoundError:  # Google Cloud Storage and Azure report the first missing object
                pass
        for key in keys:
            try:
                self._obstore.delete(self._client(self._store), key)
            except self._errors as error:
                self._raise_unless_missing(error, "delete", key)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def get(self, key: str) -> bytes | None:
        self.check_key(key)
        try:
            found = self._obstore.get(self._client(self._store), key)
            check_from_bucket(found.meta, found.attributes.get("Content-Type", ""), "read", self.at(key))
            self.check_whole(key, found.meta["size"])
            return bytes(found.bytes())
        except self._errors as error:
            self._raise_unless_missing(error, "read", key)
            return None

    def _raise_unless_missing(self, error: Exception, verb: str, key: str) -> None:
        """Raise a StorageError for this error of obstore, unless only the object is missing.

        A missing bucket is an error too.
        """
        if not isinstance(error, FileNotFoundError) or not is_about_object(error):
            raise self._error(error, verb, key) from None

    def head(self, key: str) -> ObjectInfo | None:
        self.check_key(key)
        try:
            found = self._obstore.head(self._client(self._store), key)
        except self._errors as error:
            self._raise_unless_missing(error, "look at", key)
            return None
        check_from_bucket(found, "", "look at", self.at(key))
        return _info(key, found)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        self.check_key(key)
        for lower, upper in ranges:
            assert 0 <= lower <= upper, (key, lower, upper)
        runs = _merged(ranges)
        try:
            fetched = self._fetch(key, runs)
        except self._errors as error:
            if status_of(error) != RANGE_NOT_SATISFIABLE:
                self._raise_unless_missing(error, "read", key)
                raise self.missing(key) from None
            fetched = None
        if fetched is None or (ranges and not runs):
            info = self.head(key)
            if info is None:
                raise self.missing(key)
            runs = _merged([(lower, min(upper, info.size_bytes)) for lower, upper in ranges])
            with self._errors_of("read", key):
                fetched = self._fetch(key, runs)
        return [_slice(runs, fetched, lower, upper) for lower, upper in ranges]

    def _fetch(self, key: str, runs: Sequence[tuple[int, int]]) -> list[memoryview]:
        if not runs:
            return []
        starts, ends = [lower for lower, _ in runs], [upper for _, upper in runs]
        return [
            memoryview(part)
            for part in self._obstore.get_ranges(self._client(self._store), key, starts=starts, ends=ends)
        ]

    def list(self, under: str, after: str | None = None) -> list[ObjectInfo]:
        self.check_under(under)
        # obstore lists only whole folders, so their objects are filtered below.
        folder = under.rpartition("/")[0]
        with self._errors_of("list", under):
            found = [
                _info(meta["path"], meta)
                for chunk in self._obstore.list(
                    self._client(self._store), folder or None, offset=after or None, chunk_size=_LIST_CHUNK
                )
                for meta in chunk
                if meta["path"].startswith(under) and is_key(meta["path"])
            ]
        return sorted((info for info in found if info.key > (after or "")), key=lambda info: info.key)


def _plain(body: Bytes) -> memoryview:
    return memoryview(body).cast("B")


def _info(key: str, meta: Any) -> ObjectInfo:
    return ObjectInfo(key, meta["size"], (meta["last_modified"] - _EPOCH) // timedelta(microseconds=1))


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the non-empty ranges in order. Ranges with a gap of at most _GAP_MAX_BYTES are joined."""
    runs: list[tuple[int, int]] = []
    for lower, upper in sorted(ranges):
        if lower >= upper:
            continue
        if runs and lower - runs[-1][1] <= _GAP_MAX_BYTES:
            runs[-1] = runs[-1][0], max(runs[-1][1], upper)
        else:
            runs.append((lower, upper))
    return runs


def _slice(
    runs: Sequence[tuple[int, int]], fetched: Sequence[memoryview], lower: int, upper: int
) -> memoryview:
    """Return the object's bytes from `lower` to below `upper`; fewer at the object's end.

    runs:    the byte ranges of the object that were fetched, from `_merged`.
    fetched: the bytes of each range.
    """
    for (begin, end), part in zip(runs, fetched, strict=True):
        if begin <= lower < end:
            return part[lower - begin : upper - begin]
    return memoryview(b"")


class _Source:
    """Cuts the data of an upload into chunks of `_PART_BYTES`. Only the last chunk may be smaller.

    parts: the data, as byte strings of any size.
    ended: whether all of `parts` was read.
    failure: the error that reading `parts` raised, or None.
    """

    def __init__(self, parts: Iterable[Bytes]) -> None:
        self._parts = parts
        self.size_bytes = 0
        self.ended = False
        self.failure: BaseException | None = None
        self.waiting: list[bytes] = []

    def chunks(self) -> Iterator[bytes]:
        room = bytearray()
        try:
            for part in self._parts:
                view, at = _plain(part), 0
                self.size_bytes += view.nbytes
                while at < view.nbytes:
                    taken = min(_PART_BYTES - len(room), view.nbytes - at)
                    room += view[at : at + taken]
                    at += taken
                    if len(room) == _PART_BYTES:
                        yield bytes(room)
                        room.clear()
        except BaseException as error:
            self.failure = error
            raise
        if room:
            yield bytes(room)
        self.ended = True

    def waiting_and(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the chunks that were read before (`waiting`), and then `chunks`.

        Keeps no reference to a yielded chunk, so that its memory can be freed.
        """
        while self.waiting:
            yield self.waiting.pop(0)
        yield from chunks
