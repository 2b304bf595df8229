"""Leases: they tell the writer which old files somebody may still read.

    reader                                        writer
    1. create lease, locked, "needs everything"
    2. read the catalogue: version 17             commit version 18; file f becomes garbage at 18
    3. announce(17)                               oldest_needed() is 0 until here, then 17: f stays
    ...                                           ...
    4. release()                                  oldest_needed() is None: f is unlinked

`leases/` has two kinds of file, distinguished by name:

    reader-<pid>-<token>   belongs to a living process, which holds a lock on the file. The system
                           drops the lock when the process dies in any way, so an unlocked lease is
                           dead.
    remote-<token>         belongs to readers that come and go (the tasks of a Spark job). It has no
                           lock but an expiry, which each `renew` moves on. It ends earlier if it
                           names an owner process that has certainly ended (`env.is_gone`). Beside
                           it there may be a folder remote-<token>.parts: files that live as long as
                           the lease (`keep_file`).

Invariants
    P1  A lease exists, locked and on "everything" (version 0), before its reader looks at the
        catalogue. A locked file with unreadable content counts as "everything".
    P2  A file that became garbage in version g is needed by leases with a version < g, and by no
        others (`collectable`). The leases are listed after that transaction.
    L1  A renewal that returns was written before the old expiry, by this machine's clock, so the
        lease never lapsed. A renewal that comes too late raises HistoryExpiredError.

The clocks of machines that share a store must agree much better than the length of an expiry.
Left out: a crash during `write_atomic` may leave a partial `.tmp` file of some 100 bytes here. A
complete one is removed like a lease.
Source: docs/design/rules.md, P1 and P2.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import google_crc32c

from nyala.catalog.format import BIRTH_NAME, LEASES_NAME
from nyala.env import MAY_NOT_WRITE, Env, FileLock, MissingFileError, Reserve, is_full, is_gone
from nyala.env.paths import is_bucket_url
from nyala.errors import HistoryExpiredError, InvalidArgumentError, StorageError

__all__ = [
    "EVERYTHING",
    "Lease",
    "LeaseKind",
    "LivingLease",
    "collectable",
    "create_lease",
    "is_living",
    "lease_expired",
    "living_leases",
    "no_store_here",
    "oldest_needed",
    "open_remote_lease",
    "reader_lease",
]

LeaseKind: TypeAlias = Literal["reader", "remote"]

RENEWED_BELOW: Final = 0.75
"""A remote lease is rewritten (and synced) only if less than this share of its time is left."""

EVERYTHING: Final = 0  # older than every version of the catalogue, which begin at 1

_TEMPORARY_SUFFIX = ".tmp"  # of `Files.write_atomic`
_PARTS_SUFFIX = ".parts"
_REMOTE_NAME: Final = re.compile(r"remote-[0-9a-f]{16}")


@dataclass(frozen=True)
class LivingLease:
    """The content of a lease file. `version` EVERYTHING: its reader may need any file."""

    name: str
    kind: LeaseKind
    version: int
    pid: int | None
    host: str | None
    expires_us: int | None
    owner: str | None = None


class Lease:
    """One lease of this process, or a remote lease that it renews. Used by one thread at a time."""

    def __init__(
        self, env: Env, path: str, kind: LeaseKind, lock: FileLock | None, expires_us: int | None
    ) -> None:
        self.path: Final = path
        self.kind: Final = kind
        self.version = EVERYTHING
        self.expires_us = expires_us
        self._env = env
        self._lock = lock
        self._pid = os.getpid()

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    def announce(self, version: int) -> None:
        """Set the oldest version of the catalogue that this reader needs; it never goes back (P1).

        Raises: HistoryExpiredError if a remote lease has expired.
        """
        assert version >= self.version, f"P1: a lease goes from version {self.version} back to {version}"
        if self.kind == "remote":
            self._rewrite_remote(version, None)
        else:
            assert self._lock is not None, "the lease was released"
            self._lock.write(_encode(version, None))
            self.version = version

    def renew_for(self, ttl_s: float) -> None:
        """Do `renew` to `ttl_s` seconds from now."""
        self.renew(self._env.clock.now_us() + int(ttl_s * 1e6))

    def left_s(self) -> float:
        """Return the seconds until a remote lease expires."""
        assert self.expires_us is not None, "a reader's lease lives as long as its process"
        return (self.expires_us - self._env.clock.now_us()) / 1e6

    def renew(self, expires_us: int) -> None:
        """Move the expiry of a remote lease on, never back.

        Raises: HistoryExpiredError if it has already expired (L1).
        """
        assert self.kind == "remote", "a reader's lease lives as long as its process"
        self._rewrite_remote(None, expires_us)

    def check(self) -> None:
        """Raise HistoryExpiredError if a remote lease has expired: files may be gone then."""
        if self.kind == "remote":
            self._read_remote()

    def release(self) -> None:
        """End the lease. May be called twice; a forked child only closes its copy."""
        if self._lock is not None:
            lock, self._lock = self._lock, None
            lock.release(unlink=True)
        elif self.kind == "remote" and os.getpid() == self._pid:
            _end_remote(self._env, self.path)

    def keep_file(self, name: str, *parts: bytes) -> str:
        """Write a file that lives as long as this remote lease; returns its absolute path.

        The file is not synced: its readers do not survive a crash of the machine.
        Raises: HistoryExpiredError if the lease has expired; StorageError.
        """
        assert self.kind == "remote" and os.path.basename(name) == name
        self._read_remote()
        folder = self.path + _PARTS_SUFFIX
        self._env.files.make_dirs(folder)
        path = os.path.join(folder, name)
        file = self._env.files.create(path)
        try:
            file.append(*parts)
        finally:
            file.close()
        return path

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _rewrite_remote(self, version: int | None, expires_us: int | None) -> None:
        found = self._read_remote()
        self.version = found.version if version is None else version
        self.expires_us = found.expires_us if expires_us is None else max(found.expires_us, expires_us)
        if (self.version, self.expires_us) == (found.version, found.expires_us):
            return
        self._env.files.write_atomic(self.path, _encode(self.version, self.expires_us, found.owner))
        if self._env.clock.now_us() >= found.expires_us:
            # The writer may have removed the lease between our read and our write: do not revive
            # it.
            self._env.files.unlink(self.path, missing_ok=True)
            raise lease_expired(self.name)

    def _read_remote(self) -> _RemoteContent:
        try:
            content = _decode(self._env.files.read_lock_content(self.path))
        except MissingFileError:
            if (missing := no_store_here(self._env, self.path)) is not None:
                raise missing from None
            content = None
        if content is None or content.expires_us is None or self._env.clock.now_us() >= content.expires_us:
            raise lease_expired(self.name)
        return _RemoteContent(content.version, content.expires_us, content.owner)


@dataclass(frozen=True)
class _RemoteContent:
    version: int
    expires_us: int
    owner: str | None


def no_store_here(env: Env, path: str) -> StorageError | None:
    """The error for a file that is missing because this host cannot see its store; else None.

    path: the absolute path of a store's file, at any depth, or its URL, which every host sees.
    """
    if is_bucket_url(path):
        return None
    folder = os.path.dirname(path)
    while folder != os.path.dirname(folder):
        if env.files.exists(os.path.join(folder, BIRTH_NAME)):
            return None
        folder = os.path.dirname(folder)
    return StorageError(
        f"host {socket.gethostname()} does not see the store: there is no store in any folder above {path}. Every "
        "executor needs the store's folder under the same path as the driver: mount it on that host, or run Spark "
        "on the store's machine, master('local[*]')",
        path=path,
    )


def create_lease(
    env: Env,
    directory: str,
    kind: LeaseKind = "reader",
    *,
    expires_us: int | None = None,
    owner: str | None = None,
) -> Lease:
    """Create a lease in the store at `directory`, at first on everything (P1).

    kind:       "reader" lives as long as this process; "remote" until `expires_us`.
    expires_us: microseconds since the epoch; required for a remote lease, and only for one.
    owner:      the mark of the process that a remote lease belongs to; None: only the expiry ends
                it.
    On a full disk it uses the store's reserve of space.
    Raises:     StorageError if the folder cannot be written.
    """
    assert (kind == "remote") == (expires_us is not None), "a remote lease has an expiry, a reader's has none"
    return Reserve(env.files, directory).take(lambda: _create_lease(env, directory, kind, expires_us, owner))


def _create_lease(
    env: Env, directory: str, kind: LeaseKind, expires_us: int | None, owner: str | None
) -> Lease:
    folder = os.path.join(directory, LEASES_NAME)
    if not env.files.exists(directory):  # moved or removed: do not create a folder for a lease
        raise StorageError(f"there is no store in {directory}: check the path", path=directory)
    env.files.make_dirs(folder)
    while True:
        token = env.randomness.token_hex(8)
        name = f"remote-{token}" if kind == "remote" else f"reader-{os.getpid()}-{token}"
        path = os.path.join(folder, name)
        if kind == "remote":
            env.files.write_atomic(path, _encode(EVERYTHING, expires_us, owner))
            return Lease(env, path, kind, None, expires_us)
        lock = env.files.lock(path)
        if lock is None:  # the writer found the new file before it was locked: use another name
            continue
        try:
            lock.write(_encode(EVERYTHING, None))
        except BaseException:
            lock.release(unlink=True)
            raise
        return Lease(env, path, kind, lock, None)


def reader_lease(env: Env, directory: str) -> Lease | None:
    """Create a lease of this process as a reader.

    Returns None if this process may not write in the store's folder, or if the disk and its reserve
    are full.
    Raises: StorageError for any other reason.
    """
    try:
        return create_lease(env, directory)
    except StorageError as error:
        if error.errno in MAY_NOT_WRITE or is_full(error):
            return None
        raise


def open_remote_lease(env: Env, directory: str, name: str) -> Lease:
    """Open the remote lease of this name, to renew or release it. Used by tasks that got the name.

    Raises: HistoryExpiredError if it has expired.
    """
    assert name.startswith("remote-") and os.path.basename(name) == name, name
    lease = Lease(env, os.path.join(directory, LEASES_NAME, name), "remote", None, None)
    found = lease._read_remote()
    lease.version, lease.expires_us = found.version, found.expires_us
    return lease


def check_remote_name(name: str) -> None:
    """Raises: InvalidArgumentError if `name` is not the name of a remote lease."""
    if _REMOTE_NAME.fullmatch(name) is None:
        raise InvalidArgumentError(
            f"{name[:80]!r} is not the name of a job's lease: use the same version of Nyala in both processes"
        )


def living_leases(env: Env, directory: str, now_us: int) -> list[LivingLease]:
    """The leases of living readers; removes leases that have expired or whose reader is dead.

    Cost: a lock attempt or a small read per file in `leases/`.
    """
    folder = os.path.join(directory, LEASES_NAME)
    found = []
    for name in env.files.list_dir(folder):
        path = os.path.join(folder, name)
        try:
            if name.startswith("reader-"):
                living = _living_reader(env, name, path)
            elif name.endswith(_PARTS_SUFFIX):
                # The folder is created after its lease, so without a lease a crash left it.
                if not env.files.exists(path.removesuffix(_PARTS_SUFFIX)):
                    env.files.remove_tree(path)
                continue
            elif name.endswith(_TEMPORARY_SUFFIX):
                _remove_broken_off(env, path, now_us)
                continue
            elif name.startswith("remote-"):
                living = _living_remote(env, name, path, now_us)
            else:
                continue
        except MissingFileError:
            continue  # released since the folder was listed
        if living is not None:
            found.append(living)
    return found


def is_living(env: Env, directory: str, name: str) -> bool:
    """Whether this remote lease lives; removes it if it has expired or its owner has ended."""
    path = os.path.join(directory, LEASES_NAME, name)
    try:
        return _living_remote(env, name, path, env.clock.now_us()) is not None
    except MissingFileError:
        return False


def oldest_needed(env: Env, directory: str, now_us: int) -> int | None:
    """The smallest version that a living lease needs: EVERYTHING (0) for all; None: no lease."""
    return min((lease.version for lease in living_leases(env, directory, now_us)), default=None)


def collectable(garbage: Mapping[str, int], oldest: int | None) -> list[str]:
    """The garbage paths (path to the version it came with) that nobody needs any more (P2).

    oldest: the result of `oldest_needed`, taken after the transaction that made the newest garbage.
    """
    return [path for path, version in garbage.items() if oldest is None or version <= oldest]


def _living_reader(env: Env, name: str, path: str) -> LivingLease | None:
    lock = env.files.lock(path, create=False)
    if lock is not None:
        lock.release(unlink=True)  # the lock was free: its process is dead
        return None
    content = _decode(env.files.read_lock_content(path)) or _Content(EVERYTHING, None, None, None)
    return LivingLease(name, "reader", content.version, content.pid, content.host, None)


def _living_remote(env: Env, name: str, path: str, now_us: int) -> LivingLease | None:
    content = _decode(env.files.read_lock_content(path))
    # Written by rename, so unreadable content is damage, and counts as expired.
    over = content is None or content.expires_us is None or content.expires_us <= now_us
    if content is None or over or (content.owner is not None and is_gone(content.owner)):
        _end_remote(env, path)
        return None
    return LivingLease(
        name, "remote", content.version, content.pid, content.host, content.expires_us, content.owner
    )


def _remove_broken_off(env: Env, path: str, now_us: int) -> None:
    """Remove an unfinished lease file if its time has passed or its owner has ended."""
    content = _decode(env.files.read_lock_content(path))
    if content is not None and content.expires_us is not None and (
        content.expires_us <= now_us or (content.owner is not None and is_gone(content.owner))
    ):  # fmt: skip
        env.files.unlink(path, missing_ok=True)


def _end_remote(env: Env, path: str) -> None:
    """Remove the lease first: its files are unprotected then, whatever happens in between."""
    env.files.unlink(path, missing_ok=True)
    env.files.remove_tree(path + _PARTS_SUFFIX)


@dataclass(frozen=True)
class _Content:
    version: int
    pid: int | None
    host: str | None
    expires_us: int | None
    owner: str | None = None


def _encode(version: int, expires_us: int | None, owner: str | None = None) -> bytes:
    """One line: CRC-32C as eight hexadecimal digits, a space, JSON, a newline."""
    fields: dict[str, int | str] = {"version": version, "pid": os.getpid(), "host": socket.gethostname()}
    if expires_us is not None:
        fields["expires_us"] = expires_us
    if owner is not None:
        fields["owner"] = owner
    text = json.dumps(fields, separators=(",", ":")).encode()
    return b"%08x %s\n" % (google_crc32c.value(text), text)


def _decode(content: bytes) -> _Content | None:
    """Decode a complete line made by `_encode`; None for anything else."""
    line, newline, _ = content.partition(b"\n")
    crc, _, text = line.partition(b" ")
    if not newline or crc != b"%08x" % google_crc32c.value(text):
        return None
    fields = json.loads(text)
    return _Content(
        fields["version"], fields["pid"], fields["host"], fields.get("expires_us"), fields.get("owner")
    )


def lease_expired(name: str) -> HistoryExpiredError:
    """The error for a lease of a job that has ended."""
    return HistoryExpiredError(
        f"the lease {name} of this read or job has expired, and files that it needs may be gone: start the job or load "
        "again, with a longer `lease`"
    )
