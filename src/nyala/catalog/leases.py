"""Leases: how the writer knows which old files somebody may still read.

    reader                                        writer
    1. create lease, locked, "needs everything"
    2. read the catalogue: version 17             commit version 18; file f becomes garbage at 18
    3. announce(17)                               oldest_needed() is 0 until here, then 17: f stays
    ...                                           ...
    4. release()                                  oldest_needed() is None: f is unlinked

Two kinds of file in `leases/`, told apart by name:

    reader-<pid>-<token>   held by a living process through a lock on the file. The system drops the lock when
                           the process dies, however it dies: a lease whose lock is free is nobody's.
    remote-<token>         of a reader that comes and goes (the tasks of a Spark job): no lock, but an expiry,
                           moved on by each `renew`. It ends earlier when the process that it was made for, as far
                           as it says so, has certainly ended (`env.is_gone`). Beside it there may be a folder
                           remote-<token>.parts: files that live as long as the lease (`keep_file`).

Invariants
    P1  A lease is there, locked, and says "everything" (version 0) before its reader looks at the catalogue.
        What cannot be read as a lease while its lock is held counts as "everything".
    P2  A file that became garbage with version g is needed by the leases with a version < g, and by no other
        (`collectable`). The leases are listed after that transaction.
    L1  A renewal that returns was written before the old expiry was over, on this machine's clock: so the
        lease was never gone in between. One that comes too late raises HistoryExpiredError.

The clocks of machines that share a store must agree much better than an expiry is long.
Left out: a crash in the middle of `write_atomic` may leave a `.tmp` file of some 100 bytes here, half written; one that
is whole goes as its lease would.
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

from nyala.catalog.format import CATALOG_NAME, LEASES_NAME
from nyala.env import MAY_NOT_WRITE, Env, FileLock, MissingFileError, Reserve, is_full, is_gone
from nyala.errors import HistoryExpiredError, InvalidArgumentError, StorageError

__all__ = [
    "EVERYTHING",
    "Lease",
    "LeaseKind",
    "LivingLease",
    "collectable",
    "create_lease",
    "is_living",
    "living_leases",
    "no_store_here",
    "oldest_needed",
    "open_remote_lease",
    "reader_lease",
]

LeaseKind: TypeAlias = Literal["reader", "remote"]

EVERYTHING: Final = 0  # older than every version of the catalogue: those begin at 1

_TEMPORARY_SUFFIX = ".tmp"  # of `Files.write_atomic`
_PARTS_SUFFIX = ".parts"
_REMOTE_NAME: Final = re.compile(r"remote-[0-9a-f]{16}")


@dataclass(frozen=True)
class LivingLease:
    """What a lease file says. `version` EVERYTHING: its reader may need any file."""

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
        """Say which version of the catalogue is the oldest that this reader needs; it never goes back (P1).

        Raises: HistoryExpiredError when a remote lease is over.
        """
        assert version >= self.version, f"P1: a lease goes from version {self.version} back to {version}"
        if self.kind == "remote":
            self._rewrite_remote(version, None)
        else:
            assert self._lock is not None, "the lease was released"
            self._lock.write(_encode(version, None))
            self.version = version

    def renew(self, expires_us: int) -> None:
        """Move the expiry of a remote lease on, never back.

        Raises: HistoryExpiredError when it was over already (L1).
        """
        assert self.kind == "remote", "a reader's lease lives as long as its process"
        self._rewrite_remote(None, expires_us)

    def check(self) -> None:
        """Raise HistoryExpiredError if a remote lease is over: then files may be gone."""
        if self.kind == "remote":
            self._read_remote()

    def release(self) -> None:
        """End the lease. May be called twice; in a forked child it lets go without ending it."""
        if self._lock is not None:
            lock, self._lock = self._lock, None
            lock.release(unlink=True)
        elif self.kind == "remote" and os.getpid() == self._pid:
            _end_remote(self._env, self.path)

    def keep_file(self, name: str, *parts: bytes) -> str:
        """Write a file of these parts that lives as long as this remote lease; returns its absolute path. Not synced:
        whom it is for dies with the machine.

        Raises: HistoryExpiredError when the lease is over; StorageError.
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
            # Between our look and our write the writer may have removed it: do not bring it back to life.
            self._env.files.unlink(self.path, missing_ok=True)
            raise _expired(self.name)

    def _read_remote(self) -> _RemoteContent:
        try:
            content = _decode(self._env.files.read_lock_content(self.path))
        except MissingFileError:
            if (missing := no_store_here(self._env, self.path)) is not None:
                raise missing from None
            content = None
        if content is None or content.expires_us is None or self._env.clock.now_us() >= content.expires_us:
            raise _expired(self.name)
        return _RemoteContent(content.version, content.expires_us, content.owner)


@dataclass(frozen=True)
class _RemoteContent:
    version: int
    expires_us: int
    owner: str | None


def no_store_here(env: Env, path: str) -> StorageError | None:
    """The error for a file that is missing because this host does not see its store; None: the store is here.

    path: an absolute path of a file of a store, at any depth.
    """
    folder = os.path.dirname(path)
    while folder != os.path.dirname(folder):
        if env.files.exists(os.path.join(folder, CATALOG_NAME)):
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
    """A new lease in the store at `directory`, which says that everything is needed (P1).

    kind:       "reader" lives as long as this process; "remote" until `expires_us`.
    expires_us: microseconds since the epoch; for a remote lease, and only for one.
    owner:      of a remote lease, the mark of the process for which it is; None: it ends by its expiry only.
    On a full disk it takes from the store's reserve of space.
    Raises:     StorageError when the folder cannot be written.
    """
    assert (kind == "remote") == (expires_us is not None), "a remote lease has an expiry, a reader's has none"
    return Reserve(env.files, directory).take(lambda: _create_lease(env, directory, kind, expires_us, owner))


def _create_lease(
    env: Env, directory: str, kind: LeaseKind, expires_us: int | None, owner: str | None
) -> Lease:
    folder = os.path.join(directory, LEASES_NAME)
    if not env.files.exists(directory):  # moved or removed; its name shall not come back for a lease
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
        if lock is None:  # the writer has found the new file before we could lock it: another name
            continue
        try:
            lock.write(_encode(EVERYTHING, None))
        except BaseException:
            lock.release(unlink=True)
            raise
        return Lease(env, path, kind, lock, None)


def reader_lease(env: Env, directory: str) -> Lease | None:
    """A new lease of this process as a reader; None: it may not write in the store's folder, or there is no room for it
    and no reserve left.

    Raises: StorageError for any other reason.
    """
    try:
        return create_lease(env, directory)
    except StorageError as error:
        if error.errno in MAY_NOT_WRITE or is_full(error):
            return None
        raise


def open_remote_lease(env: Env, directory: str, name: str) -> Lease:
    """The remote lease of that name, to renew or release it: for the tasks of a job that was handed the name.

    Raises: HistoryExpiredError when it is over.
    """
    assert name.startswith("remote-") and os.path.basename(name) == name, name
    lease = Lease(env, os.path.join(directory, LEASES_NAME, name), "remote", None, None)
    found = lease._read_remote()
    lease.version, lease.expires_us = found.version, found.expires_us
    return lease


def check_remote_name(name: str) -> None:
    """Raises: InvalidArgumentError for what is no name of a remote lease."""
    if _REMOTE_NAME.fullmatch(name) is None:
        raise InvalidArgumentError(
            f"{name[:80]!r} is no lease of a job's: use the same version of Nyala in both processes"
        )


def living_leases(env: Env, directory: str, now_us: int) -> list[LivingLease]:
    """The leases whose reader lives; those of dead readers and those that are over are removed.

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
                # Made after its lease, so without one it was left behind by a crash.
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
            continue  # released since we listed the folder
        if living is not None:
            found.append(living)
    return found


def is_living(env: Env, directory: str, name: str) -> bool:
    """Whether the remote lease of that name has time left, and its process has not certainly ended; else it goes."""
    path = os.path.join(directory, LEASES_NAME, name)
    try:
        return _living_remote(env, name, path, env.clock.now_us()) is not None
    except MissingFileError:
        return False


def oldest_needed(env: Env, directory: str, now_us: int) -> int | None:
    """The smallest version that a living lease needs: EVERYTHING (0) for all, None when there is no lease."""
    return min((lease.version for lease in living_leases(env, directory, now_us)), default=None)


def collectable(garbage: Mapping[str, int], oldest: int | None) -> list[str]:
    """Of the garbage (path to the version it came with), the paths that nobody needs any more (P2).

    `oldest` is what `oldest_needed` said after the transaction that made the newest of this garbage.
    """
    return [path for path, version in garbage.items() if oldest is None or version <= oldest]


def _living_reader(env: Env, name: str, path: str) -> LivingLease | None:
    lock = env.files.lock(path, create=False)
    if lock is not None:
        lock.release(unlink=True)  # nobody had it: its process is dead
        return None
    content = _decode(env.files.read_lock_content(path)) or _Content(EVERYTHING, None, None, None)
    return LivingLease(name, "reader", content.version, content.pid, content.host, None)


def _living_remote(env: Env, name: str, path: str, now_us: int) -> LivingLease | None:
    content = _decode(env.files.read_lock_content(path))
    # It is written by rename, so what cannot be read is damage: its reader will be told that it is over.
    over = content is None or content.expires_us is None or content.expires_us <= now_us
    if content is None or over or (content.owner is not None and is_gone(content.owner)):
        _end_remote(env, path)
        return None
    return LivingLease(
        name, "remote", content.version, content.pid, content.host, content.expires_us, content.owner
    )


def _remove_broken_off(env: Env, path: str, now_us: int) -> None:
    """A lease that was just being written, if its process has ended or its time is over."""
    content = _decode(env.files.read_lock_content(path))
    if content is not None and content.expires_us is not None and (
        content.expires_us <= now_us or (content.owner is not None and is_gone(content.owner))
    ):  # fmt: skip
        env.files.unlink(path, missing_ok=True)


def _end_remote(env: Env, path: str) -> None:
    """The lease first: what it kept is nobody's then, whatever happens in between."""
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
    """One line: eight hexadecimal digits of CRC-32C, a space, JSON, a newline. What follows is not ours."""
    fields: dict[str, int | str] = {"version": version, "pid": os.getpid(), "host": socket.gethostname()}
    if expires_us is not None:
        fields["expires_us"] = expires_us
    if owner is not None:
        fields["owner"] = owner
    text = json.dumps(fields, separators=(",", ":")).encode()
    return b"%08x %s\n" % (google_crc32c.value(text), text)


def _decode(content: bytes) -> _Content | None:
    """None for anything but a whole line as `_encode` writes it."""
    line, newline, _ = content.partition(b"\n")
    crc, _, text = line.partition(b" ")
    if not newline or crc != b"%08x" % google_crc32c.value(text):
        return None
    fields = json.loads(text)
    return _Content(
        fields["version"], fields["pid"], fields["host"], fields.get("expires_us"), fields.get("owner")
    )


def _expired(name: str) -> HistoryExpiredError:
    return HistoryExpiredError(
        f"the lease {name} of this read or job is over, and files that it needs may be gone: with a longer `lease`, "
        "start the job or load again"
    )
