"""The base class of all implementations of `Objects`, and the rule for valid keys.

A key consists of parts joined by "/". A part has letters, digits, "_", "-", "=" and ".", and does
not begin with ".". So a key is a safe path in a folder and needs no escaping in a URL. The name
`.tmp` is free for temporary files. An object of another program with an invalid key is not listed.
"""

from __future__ import annotations

import errno
import os
import re
from typing import Any, Final, NoReturn, SupportsIndex

from nyala.env import MissingFileError
from nyala.errors import InvalidArgumentError, StorageError

# S3, GCS and Azure allow 1,024 characters, and the store's prefix needs some of them.
KEY_MAX_CHARS: Final = 512
WHOLE_MAX_BYTES: Final = 1 << 30
"""`get` refuses a larger object, which Nyala cannot have written."""

_KEY: Final = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9._=-]{0,254}(/[A-Za-z0-9_=-][A-Za-z0-9._=-]{0,254})*")


def is_key(text: str) -> bool:
    """Whether `text` is a valid key.

    Examples
    --------
    >>> is_key("log/0000000001-9f3c/000000000000"), is_key("../other"), is_key("/absolute")
    (True, False, False)
    """
    return len(text) <= KEY_MAX_CHARS and _KEY.fullmatch(text) is not None


def check_usable(url: str, is_closed: bool, pid: int) -> None:
    """Raise StorageError if the objects at `url` are closed, or were opened by another process, `pid`."""
    if is_closed:
        raise StorageError(f"{url} is closed: connect() again", path=url)
    if os.getpid() != pid:
        # The threads that execute requests exist only in the parent, so a request would wait forever.
        raise StorageError(
            f"{url} was opened before this process was forked, and works only in the process that opened it: "
            "connect() again here, or start processes by 'spawn'",
            path=url,
        )


class Handle:
    """The base class of all implementations of `Objects`, the operations on a bucket.

    Every operation of a subclass first calls one of the `check` methods. They raise an error for an
    invalid key, after `close`, and in a forked child. Threads: any.
    """

    def __init__(self, url: str, public_options: tuple[tuple[str, Any], ...] = ()) -> None:
        """url: without credentials. public_options: the storage options that are not secret."""
        self.url: Final = url.rstrip("/")
        self.public_options: Final = public_options
        self.throttled = 0
        self._closed = False
        self._pid = os.getpid()

    def check(self) -> None:
        """Raise StorageError if this object was closed, or if this process is a forked child."""
        check_usable(self.url, self._closed, self._pid)

    def check_key(self, key: str) -> None:
        """Check the key of an object in the bucket.

        Raises: InvalidArgumentError if the key is invalid; StorageError if `close` was called, or
                if this process is a forked child.
        """
        self.check()
        if not is_key(key):
            raise InvalidArgumentError(
                f"{key!r} is not a valid key of an object: it needs 1 to {KEY_MAX_CHARS} characters in parts joined "
                "by '/', of letters, digits, '_', '-', '=' and '.', and no part may begin with '.'"
            )

    def check_under(self, under: str) -> None:
        """Check the prefix `under` of the keys that are to be listed. "" is valid: all keys.

        Raises: InvalidArgumentError if no valid key begins with `under`; StorageError if `close`
                was called, or if this process is a forked child.
        """
        self.check()
        if under:
            self.check_key(under.removesuffix("/"))

    def close(self) -> None:
        self._closed = True

    def at(self, key: str) -> str:
        """Return the URL of an object."""
        return f"{self.url}/{key}"

    def missing(self, key: str) -> MissingFileError:
        """Return the error for an object that does not exist."""
        return MissingFileError(f"{self.at(key)} does not exist", path=self.at(key), errno=errno.ENOENT)

    def check_whole(self, key: str, size_bytes: int) -> None:
        """Raise StorageError if an object is too large for `get`."""
        if size_bytes > WHOLE_MAX_BYTES:
            raise StorageError(
                f"{self.at(key)} has {size_bytes:,} bytes, too many to read at once: Nyala did not write it",
                path=self.at(key),
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be pickled or copied: pass the URL, and connect() in the other process"
        )
