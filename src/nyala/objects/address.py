"""The address of a store or a backup, without secrets, so that it can be sent to other processes.

An `Address` is a folder's path, or the URL of a bucket with the `storage_options` that are not
secret. Spark's plans, tasks and event log contain addresses. Credentials are never sent: each
process takes them from its own environment, or from the file that the option `credentials_file`
names.

    driver                               task on another machine
    Address("s3://bucket/shop", …)  ──►  address.env: files, through a cache of this process

Invariants
    A1  An address holds no secret: `address_of` leaves secrets out, and `Address.parse` refuses them.
    A2  A process opens an address once. All its tasks share the connections and the cache, which
        stay open until the process ends. A forked child opens its own.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from nyala.env import SYSTEM, Env
from nyala.env.interrupts import Uninterrupted
from nyala.env.paths import is_bucket_url, plain_url
from nyala.errors import InvalidArgumentError
from nyala.objects.base import Objects
from nyala.objects.open import PUBLIC_OPTIONS, StorageOptions, open_objects
from nyala.objects.remote_files import RemoteFiles
from nyala.suggestion import nearest

_CACHE_BYTES_MAX: Final = 20 << 30
_CACHE_SHARE: Final = 10  # of the free space of its disk
# The options that may choose the server.
_SERVERS: Final = ("endpoint", "account_name", "profile", "credentials_file")
_SECRETS: Final = ("access_key_id", "secret_access_key", "session_token", "account_key", "sas_token")
_YES_NO: Final = {"true": True, "false": False}

_lock = threading.Lock()
_opened: Final[dict[Address, Env]] = {}


@dataclass(frozen=True)
class Address:
    """The address of a store or a backup. It contains no secret, so it can be pickled and printed.

    path:    an absolute folder, or a URL without a closing "/".
    options: the public storage options, sorted by name; empty for a folder.
    """

    path: str
    options: tuple[tuple[str, Any], ...] = ()

    @staticmethod
    def parse(path: str, options: Mapping[str, str], prefix: str) -> Address:
        """Return the address of a store.

        path: the store's folder, or its URL in a bucket.
        options: storage options with their values as text, as Spark passes them; only for a bucket.
        prefix: the text before the names of options in messages, such as "storage_options: ".
        Raises: InvalidArgumentError for an unknown or secret option, or a value of a wrong type.
        """
        if not is_bucket_url(path):
            if options:
                raise InvalidArgumentError(
                    f"option {prefix}{min(options)} is for a store in a bucket: the path {path!r} is a folder"
                )
            return Address(path)
        public: dict[str, Any] = {}
        for name, text in options.items():
            if name not in PUBLIC_OPTIONS:
                near = nearest(name, PUBLIC_OPTIONS)
                what = "is a secret" if name in _SECRETS else "is not supported"
                raise InvalidArgumentError(
                    f"option {prefix}{name} {what}: "
                    + (f"did you mean {prefix}{near}? " if near and name not in _SECRETS else "")
                    + f"Use one of {', '.join(prefix + known for known in PUBLIC_OPTIONS)}. Credentials are not "
                    "allowed in options, because plans and logs show options: give each machine environment variables "
                    f"or a role, or name a file with {prefix}credentials_file"
                )
            public[name] = _value(prefix + name, PUBLIC_OPTIONS[name], text)
        return Address(plain_url(path), tuple(sorted(public.items())))

    @property
    def in_bucket(self) -> bool:
        """Whether this is the URL of a bucket."""
        return is_bucket_url(self.path)

    @property
    def storage_options(self) -> dict[str, Any] | None:
        """The options for `nyala.connect`; None for a folder."""
        return dict(self.options) if self.in_bucket else None

    @property
    def env(self) -> Env:
        """The environment that reads and writes the files at this address.

        Raises: InvalidArgumentError, ImportError as `open_objects`; StorageError.
        """
        if not self.in_bucket:
            return SYSTEM
        with _lock:
            found = _opened.get(self)
            if found is None:
                found = _opened[self] = open_env(open_objects(self.path, self.storage_options))
            return found

    def within(self, *names: str) -> Address:
        """Return the address of a folder inside of this one. names: the parts of its path."""
        return replace(self, path="/".join((self.path.rstrip("/"), *names)))


def _value(name: str, kinds: type | tuple[type, ...], text: str) -> Any:
    if kinds is bool:
        value: Any = _YES_NO.get(text.strip().lower())
        if value is None:
            raise InvalidArgumentError(f"option {name}={text!r} must be true or false")
        return value
    if kinds is not str:
        try:
            return float(text)
        except ValueError:
            raise InvalidArgumentError(f"option {name}={text!r} must be a number") from None
    return text


def open_env(objects: Objects, cache_dir: str | None = None, cache_bytes: int | None = None) -> Env:
    """Return an environment whose files are the objects of a bucket, read through a local cache.

    objects: closed if this call fails.
    cache_dir: default: the user's folder for caches.
    cache_bytes: default: a tenth of the free space on the disk of `cache_dir`, at most 20 GB.
    Raises: StorageError if `cache_dir` cannot be written.
    """
    with Uninterrupted():
        try:
            folder = cache_dir or os.path.join(
                os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "nyala"
            )
            SYSTEM.files.make_dirs(folder)
            if cache_bytes is None:
                cache_bytes = min(_CACHE_BYTES_MAX, SYSTEM.files.free_bytes(folder) // _CACHE_SHARE)
            return replace(SYSTEM, files=RemoteFiles.over(objects, SYSTEM, folder, cache_bytes))
        except BaseException:
            objects.close()
            raise


def address_of(env: Env, path: str) -> Address:
    """Return the address of the store at `path`, which this process has opened with `env`.

    From now on, the attribute `env` of the result uses the credentials of the given `env`, if the
    store is in a bucket. But if this process has already used the attribute `env` of an equal
    address, or called this function for it, the earlier credentials stay in use.
    """
    if not isinstance(env.files, RemoteFiles):
        return Address(path)
    address = Address(path, env.files.objects.public_options)
    with _lock:
        if address not in _opened:
            # A second client, because the store may be closed while the address is still used.
            _opened[address] = replace(env, files=env.files.client())
    return address


def place_of(url: str, options: StorageOptions | None) -> Hashable:
    """Return a value that identifies the place of a store: its URL and the options that name a server.

    Two values can differ although the place is the same, because a profile or a file can also name
    the server.
    """
    given = options if isinstance(options, Mapping) else {}
    return plain_url(url), *(str(given.get(name)) for name in _SERVERS)


def bucket_of(env: Env) -> Objects | None:
    """Return the bucket whose objects are the files of `env`; None for files of this machine."""
    return env.files.objects if isinstance(env.files, RemoteFiles) else None


def _close_all() -> None:
    with _lock:
        for env in _opened.values():
            env.files.close()
        _opened.clear()


def _forget_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    _opened.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget_in_child)
