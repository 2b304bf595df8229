"""The interface of a bucket: create, get, list, put, delete and upload objects under one prefix.

A *key* is relative to the store's prefix, and its parts are joined by "/" (`handle` says which keys
are valid). If an object has the key "a/b", no object has the key "a": in a file system "a" is a folder.
An object is written whole or not at all. S3, Google Cloud Storage, Azure and R2 give the guarantees
below.

`create` is put-if-absent: it stores an object only if its key is free. The safety of a store depends
on this alone. Callers use `settle.settle`, which finds out what a failed `create` did.

Guarantees

    B1  Of several `create` calls for one key, at most one stores its bytes, as long as nobody
        deletes the object.
    B2  `get`, `head` and `list` see every object whose `create`, `put` or `upload` has returned,
        and no deleted object.
    B3  `modified_us` is a time of the bucket's clock, often in whole seconds. It can be compared
        with the time of another object, but not with a clock of this machine. For an upload it is
        the time at which the upload began or ended.

Thread safety: any thread may use an `Objects`. In a forked child every call raises StorageError. An
`Objects` cannot be pickled, because it may hold credentials.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nyala.env import Bytes


@dataclass(frozen=True)
class ObjectInfo:
    """One object: its key, its size, and when the bucket stored it.

    modified_us: a time of the bucket's clock, in microseconds since 1970. Compare it only with the
        times of other objects of the bucket.
    """

    key: str
    size_bytes: int
    modified_us: int


class Objects(Protocol):
    """Every operation on a bucket.

    All raise StorageError with the object's URL, or the file's path, as `path`. After a time-out, a
    cut connection, and status 500 or 503, the error's attribute `outcome` is "unknown": the bucket
    may have executed the request, or may execute it later. Any other error means: no change.
    """

    @property
    def url(self) -> str:
        """The URL of the prefix, without credentials."""
        ...

    @property
    def public_options(self) -> tuple[tuple[str, Any], ...]:
        """The storage options that are not secret, sorted by name."""
        ...

    @property
    def throttled(self) -> int:
        """How many requests the bucket refused with status 429 or 503, as far as is known.

        Every refused `create` is counted. obstore repeats other requests without a report. So they
        are counted only if the last attempt was refused too.
        """
        ...

    def create(self, key: str, body: Bytes) -> bool:
        """Store `body` if no object has this key.

        Returns: whether it was stored. False: the object exists, or the bucket reported a conflict
        (status 409). `get` shows which.
        """
        ...

    def put(self, key: str, body: Bytes) -> None:
        """Store `body`. Replace the object of this key if there is one."""
        ...

    def upload(self, key: str, parts: Iterable[Bytes]) -> int:
        """Store the concatenated parts as one object; return its size.

        Needs little memory. The object appears when the call returns, or not at all.
        """
        ...

    def get(self, key: str) -> bytes | None:
        """Return the whole object; None if it does not exist."""
        ...

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        """Return the bytes of each range from `lower` to below `upper`, in order.

        Ranges that are close together share a request. A range beyond the object's end returns
        fewer bytes. Raises: MissingFileError.
        """
        ...

    def head(self, key: str) -> ObjectInfo | None:
        """Return size and time of the object; None if it does not exist."""
        ...

    def list(self, under: str, after: str | None = None) -> list[ObjectInfo]:
        """Return the objects whose key starts with `under`, sorted by key.

        after: only keys that sort after this one.
        """
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete these objects. Missing objects are ignored."""
        ...

    def copy(self, key: str, new_key: str) -> None:
        """Copy an object to another key, inside the bucket. Raises: MissingFileError."""
        ...

    def client(self) -> Objects:
        """Return a second client of the same bucket, with the same options. The caller closes it."""
        ...

    def close(self) -> None:
        """Close the connections. May be called twice. Later calls of other methods raise StorageError."""
        ...
