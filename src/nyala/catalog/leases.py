"""Leases: files by which readers tell the store's writer which old files they may still read.

    reader                                        writer
    1. create a lease on everything (version 0)   oldest_needed() is 0: keep all files
    2. read the catalogue: version 17             commit version 18, in which file f is garbage
    3. announce(17)                               oldest_needed() is 17: keep f
    4. read files, f among them
    5. release()                                  oldest_needed() is None: delete f

The folder `leases/` has two kinds of lease, distinguished by name:

    reader-<pid>-<token>   belongs to one process, which holds a lock on the file while it lives. The
                           system releases the lock when the process dies, so an unlocked lease has
                           ended.
    remote-<token>         belongs to processes that come and go, such as tasks of a Spark job. It has
                           an expiry instead of a lock, and `renew` sets a later expiry. It ends
                           earlier if it names an owner process that has ended (`env.is_gone`).
                           Files that live as long as the lease (`keep_file`) are in the folder
                           remote-<token>.parts beside it.

Invariants
    P1  A reader has a locked lease on everything (version 0) before it reads the catalogue. A locked
        file with unreadable content counts as a lease on everything.
    P2  Only leases on a version < g need a file that became garbage in version g (`collectable`).
        The leases are listed after version g was committed.
    L1  `renew` returns only if the file was written before the old expiry, by this machine's clock.
        So the lease lived without a gap. A renewal that comes too late raises HistoryExpiredError.

The clocks of machines that share a store must differ by much less than a lease's time to live.

A crash during `write_atomic` may leave a partial `.tmp` file of about 100 bytes in the folder.
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

from nyala.catalog.format import IDENTITY_NAME, LEASES_NAME
from nyala.env import MAY_NOT_WRITE, Env, FileLock, MissingFileError, Reserve, is_full, is_gone
from nyala.env.paths import is_bucket_url
from nyala.errors import HistoryExpiredError, InvalidArgumentError, StorageError

LeaseKind: TypeAlias = Literal["reader", "remote"]

RENEWED_BELOW: Final = 0.75
"""A job's lease is rewritten, with a sync, only if less than this share of its time is left."""

EVERYTHING: Final = 0  # a version before all others, so that every file is kept

_TEMPORARY_SUFFIX = ".tmp"  # of `Files.write_atomic`
_PARTS_SUFFIX = ".parts"
_REMOTE_NAME: Final = re.compile(r"remote-[0-9a-f]{16}")


@dataclass(frozen=True)
class LivingLease:
    """The name and the content of a lease file. `expires_us` is None for a reader's lease."""

    name: str
    version: int
    pid: int | None = None
    host: str | None = None
    expires_us: int | None = None
    owner: str | None = None


class Lease:
    """A lease of this process, or the lease of a job, which this process renews.

    The lease of a job is called a remote lease. It has an expiry, because it belongs to several
    processes. One thread at a time may use this object.
    """

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
        """Set the oldest version of the catalogue that this reader needs.

        version: must not be less than the version of the call before.
        Raises: HistoryExpiredError if this is the lease of a job, and it has expired.
        """
        assert version >= self.version, f"P1: a lease goes from version {self.version} back to {version}"
        if self.kind == "remote":
            self._rewrite_remote(version, None)
        else:
            assert self._lock is not None, "the lease was released"
            self._lock.write(_encode(version, None))
            self.version = version

    def renew_for(self, ttl_s: float) -> None:
        """Let this lease of a job live for at least `ttl_s` seconds from now."""
        self.renew(self._env.clock.now_us() + int(ttl_s * 1e6))

    def left_s(self) -> float:
        """Return the seconds until this lease of a job expires."""
        assert self.expires_us is not None, "a reader's lease lives as long as its process"
        return (self.expires_us - self._env.clock.now_us()) / 1e6

    def renew(self, expires_us: int) -> None:
        """Move the expiry of this lease of a job to `expires_us`, unless it is later already.

        expires_us: microseconds since the epoch.
        Raises: HistoryExpiredError if the lease has already expired.
        """
        assert self.kind == "remote", "a reader's lease lives as long as its process"
        self._rewrite_remote(None, expires_us)

    def release(self) -> None:
        """End the lease. May be called twice. In a forked child, the parent keeps the lease."""
        if self._lock is not None:
            lock, self._lock = self._lock, None
            lock.release(unlink=True)
        elif self.kind == "remote" and os.getpid() == self._pid:
            _end_remote(self._env, self.path)

    def keep_file(self, name: str, *parts: bytes) -> str:
        """Write a file that is removed when this lease of a job ends; return its absolute path.

        The file is not synced, because after a crash of the machine nobody reads it.
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
        found, old_expires_us = self._read_remote()
        self.version = found.version if version is None else version
        self.expires_us = max(old_expires_us, expires_us or 0)
        if (self.version, self.expires_us) == (found.version, old_expires_us):
            return
        self._env.files.write_atomic(self.path, _encode(self.version, self.expires_us, found.owner))
        if self._env.clock.now_us() >= old_expires_us:
            # The lease expired before it was written, and the writer may have removed it.
            self._env.files.unlink(self.path, missing_ok=True)
            raise lease_expired(self.name)

    def _read_remote(self) -> tuple[LivingLease, int]:
        """Read the file of this lease of a job; return its content and its expiry.

        The expiry is in microseconds since the epoch.
        Raises: HistoryExpiredError if the lease has expired or its file is missing.
        """
        try:
            content = _read(self._env, self.path)
        except MissingFileError:
            if (missing := no_store_here(self._env, self.path)) is not None:
                raise missing from None
            content = None
        if content is None or content.expires_us is None or self._env.clock.now_us() >= content.expires_us:
            raise lease_expired(self.name)
        return content, content.expires_us


def no_store_here(env: Env, path: str) -> StorageError | None:
    """Explain a missing file: return an error if this host does not see the store at all.

    path: the absolute path or the URL of the file.
    Returns: None if the host sees the store. A bucket is seen by every host.
    """
    if is_bucket_url(path):
        return None
    folder = os.path.dirname(path)
    while folder != os.path.dirname(folder):
        if env.files.exists(os.path.join(folder, IDENTITY_NAME)):
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
    """Create a lease that keeps all files of the store at `directory`.

    On a full disk the lease takes space from a file that the store keeps for this purpose.

    kind: a "reader" lease lives as long as this process. A "remote" lease is for a job of several
        processes, and lives until `expires_us`.
    expires_us: microseconds since the epoch; only for a remote lease.
    owner: the text that identifies a process (`env.process_mark`). When that process has ended, a
        remote lease ends too. None: the lease has no owner.
    Raises: StorageError if the folder cannot be written.
    """
    assert (kind == "remote") == (expires_us is not None), "a remote lease has an expiry, a reader's has none"
    return Reserve(env.files, directory).take(lambda: _create_lease(env, directory, kind, expires_us, owner))


def _create_lease(
    env: Env, directory: str, kind: LeaseKind, expires_us: int | None, owner: str | None
) -> Lease:
    folder = os.path.join(directory, LEASES_NAME)
    if not env.files.exists(directory):  # the store was moved or removed: do not create its folder
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
        if lock is None:  # the writer has just locked the file to remove it: use another name
            continue
        try:
            lock.write(_encode(EVERYTHING, None))
        except BaseException:
            lock.release(unlink=True)
            raise
        return Lease(env, path, kind, lock, None)


def reader_lease(env: Env, directory: str) -> Lease | None:
    """Create a lease of this process, or return None if it cannot be written.

    Returns None if this process may not write in the store's folder, or if the disk and the store's
    reserved space are full.
    Raises: StorageError for any other error.
    """
    try:
        return create_lease(env, directory)
    except StorageError as error:
        if error.errno in MAY_NOT_WRITE or is_full(error):
            return None
        raise


def open_remote_lease(env: Env, directory: str, name: str) -> Lease:
    """Open the lease of a job, to renew or release it.

    name: the name of the lease's file, such as remote-0123456789abcdef.
    Raises: HistoryExpiredError if the lease has expired.
    """
    assert name.startswith("remote-") and os.path.basename(name) == name, name
    lease = Lease(env, os.path.join(directory, LEASES_NAME, name), "remote", None, None)
    found, lease.expires_us = lease._read_remote()
    lease.version = found.version
    return lease


def check_remote_name(name: str) -> None:
    """Raise InvalidArgumentError if `name` is not the name of a job's lease."""
    if _REMOTE_NAME.fullmatch(name) is None:
        raise InvalidArgumentError(
            f"{name[:80]!r} is not the name of a job's lease. Perhaps the process that runs the job has another "
            "version of Nyala than the process that writes the store: use the same version in both"
        )


def living_leases(env: Env, directory: str, now_us: int) -> list[LivingLease]:
    """Return the leases that live, and remove those that have ended.

    Cost: an attempt to lock, or a small read, for each file in `leases/`.
    """
    folder = os.path.join(directory, LEASES_NAME)
    found = []
    for name in env.files.list_dir(folder):
        path = os.path.join(folder, name)
        try:
            if name.startswith("reader-"):
                living = _living_reader(env, name, path)
            elif name.endswith(_PARTS_SUFFIX):
                # The folder is younger than its lease. So a folder without a lease is from a crash.
                if not env.files.exists(path.removesuffix(_PARTS_SUFFIX)):
                    env.files.remove_tree(path)
                continue
            elif name.endswith(_TEMPORARY_SUFFIX):
                unfinished = _read(env, path)
                if unfinished is not None and _has_ended(unfinished, now_us):
                    env.files.unlink(path, missing_ok=True)
                continue
            elif name.startswith("remote-"):
                living = _living_remote(env, path, now_us)
            else:
                continue
        except MissingFileError:
            continue  # released since the folder was listed
        if living is not None:
            found.append(living)
    return found


def is_living(env: Env, directory: str, name: str) -> bool:
    """Return whether the job's lease `name` lives. Remove it if it has ended.

    It has ended if it expired, or if its owner process has ended.
    """
    path = os.path.join(directory, LEASES_NAME, name)
    try:
        return _living_remote(env, path, env.clock.now_us()) is not None
    except MissingFileError:
        return False


def oldest_needed(env: Env, directory: str, now_us: int) -> int | None:
    """Return the oldest version of the catalogue that a living lease needs; None if no lease lives."""
    return min((lease.version for lease in living_leases(env, directory, now_us)), default=None)


def collectable(garbage: Mapping[str, int], oldest: int | None) -> list[str]:
    """Return the paths in `garbage` whose files no reader needs.

    garbage: for each path, the version of the catalogue in which the file became garbage.
    oldest: the oldest version of the catalogue that a reader needs; None: no reader needs a
        version, so all paths are returned. The caller must have determined it (`oldest_needed`)
        after all versions in `garbage` were committed.
    """
    return [path for path, version in garbage.items() if oldest is None or version <= oldest]


def _living_reader(env: Env, name: str, path: str) -> LivingLease | None:
    lock = env.files.lock(path, create=False)
    if lock is not None:
        lock.release(unlink=True)  # the lock was free, so the process of the lease has ended
        return None
    return _read(env, path) or LivingLease(name, EVERYTHING)


def _living_remote(env: Env, path: str, now_us: int) -> LivingLease | None:
    lease = _read(env, path)
    # The file was written by a rename, so unreadable content is damaged. It counts as ended.
    if lease is None or _has_ended(lease, now_us):
        _end_remote(env, path)
        return None
    return lease


def _has_ended(lease: LivingLease, now_us: int) -> bool:
    if lease.expires_us is None or lease.expires_us <= now_us:
        return True
    return lease.owner is not None and is_gone(lease.owner)


def _end_remote(env: Env, path: str) -> None:
    """Remove a lease and then its files, so that a crash in between leaves no lease without files."""
    env.files.unlink(path, missing_ok=True)
    env.files.remove_tree(path + _PARTS_SUFFIX)


def _encode(version: int, expires_us: int | None, owner: str | None = None) -> bytes:
    """Return the content of a lease file: CRC-32C as eight hexadecimal digits, a space, JSON, a newline."""
    fields: dict[str, int | str] = {"version": version, "pid": os.getpid(), "host": socket.gethostname()}
    if expires_us is not None:
        fields["expires_us"] = expires_us
    if owner is not None:
        fields["owner"] = owner
    text = json.dumps(fields, separators=(",", ":")).encode()
    return b"%08x %s\n" % (google_crc32c.value(text), text)


def _read(env: Env, path: str) -> LivingLease | None:
    """Read a lease file; None if its content is not complete. Raises: MissingFileError."""
    line, newline, _ = env.files.read_lock_content(path).partition(b"\n")
    crc, _, text = line.partition(b" ")
    if not newline or crc != b"%08x" % google_crc32c.value(text):
        return None
    fields = json.loads(text)
    pid, host, expires_us, owner = (fields.get(name) for name in ("pid", "host", "expires_us", "owner"))
    return LivingLease(os.path.basename(path), fields["version"], pid, host, expires_us, owner)


def lease_expired(name: str) -> HistoryExpiredError:
    """Return the error for a job's lease that has ended."""
    return HistoryExpiredError(
        f"the lease {name} of this read or job has expired, and files that it needs may be gone: run the job again, "
        "or load again, with a longer `lease`"
    )
