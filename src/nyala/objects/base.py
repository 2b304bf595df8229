"""The interface of a bucket: create, get, list, put, delete and upload, under one prefix.

A *key* is relative to the store's prefix and uses "/" (`handle.py` says which keys are valid). No
key is a folder of another one, such as "a" and "a/b". An object is written whole or not at all.
Reads and lists see every write that has returned (S3, GCS, Azure and R2 promise this).

`create` is put-if-absent. The safety of the store depends on it alone. Callers use
`settle.settle`, which finds out what a failed or doubtful `create` did.

Guarantees

    B1  Of several `create` calls for one key, at most one stores its bytes, as long as nobody
        deletes the key.
    B2  `get`, `head` and `list` see every object whose `create`, `put` or `upload` has returned,
        and no deleted one.
    B3  `modified_us` is the bucket's clock, often in whole seconds. Times of two objects can be
        compared with each other, and not with a clock of this machine. An upload has the time at
        which it began or ended.

Thread safety: any thread may use an `Objects`. A forked child may not: its first call raises.
Objects that reach a bucket cannot be pickled, because they hold credentials.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nyala.env import Bytes

__all__ = ["ObjectInfo", "Objects"]


@dataclass(frozen=True)
class ObjectInfo:
    """One object: its key, its size, and when the bucket stored it (B3)."""

    key: str
    size_bytes: int
    modified_us: int


class Objects(Protocol):
    """Every operation on a bucket.

    All raise `StorageError` with the object's URL, or the file's path, as `path`. After a
    time-out, a cut connection, status 500 or 503 the error has `outcome="unknown"`: the request may
    have been carried out, or may be carried out later. Any other error means that the request
    certainly changed nothing.
    """

    @property
    def url(self) -> str:
        """The prefix as a URL, without credentials; for messages."""
        ...

    @property
    def public_options(self) -> tuple[tuple[str, Any], ...]:
        """The storage options that are not secret, sorted by name."""
        ...

    @property
    def throttled(self) -> int:
        """How often the bucket refused a request with 429 or 503, as far as this is known.

        Each refused `create` counts. Any other request is repeated by the library, which does not
        report it, so this request counts only if its last repetition was refused too.
        """
        ...

    def create(self, key: str, body: Bytes) -> bool:
        """Store `body` if there is no object with this key (B1).

        Returns: True: stored. False: the bucket refused, because the object exists or because it
        reported a conflict (409). Call `get` to find out which.
        """
        ...

    def put(self, key: str, body: Bytes) -> None:
        """Store `body`, whether or not there is an object with this key."""
        ...

    def upload(self, key: str, parts: Iterable[Bytes]) -> int:
        """Store the concatenated parts as one object, in bounded memory; return its size.

        The object appears whole when the call returns, or not at all.
        """
        ...

    def get(self, key: str) -> bytes | None:
        """Return the whole object; None if it does not exist."""
        ...

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        """Return the bytes [lower, upper) of each range, in order; near ranges share a request.

        A range beyond the object's end is cut off there. Raises: MissingFileError.
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
        """Delete these objects; a missing one is no error."""
        ...

    def copy(self, key: str, new_key: str) -> None:
        """Copy an object to another key. A bucket makes the copy: no bytes are sent to this process.

        Raises: MissingFileError.
        """
        ...

    def client(self) -> Objects:
        """Return a second client of the same bucket, with the same options. The caller closes it."""
        ...

    def close(self) -> None:
        """Release connections. May be called twice; later calls raise StorageError."""
        ...
