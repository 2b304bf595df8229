"""Leases in a bucket: objects by which readers tell the writer which old files they may still read.

    reader                                      writer
    1. put leases/<token>: version 0            oldest_needed() is 0: keep all files
    2. follow the log to version 17             commit version 18, in which file f is garbage
    3. put leases/<token>: version 17           oldest_needed() is 17: keep f
    4. put it again before it ends              …
    5. delete it                                delete f, GRACE_S after version 18

A lease ends if it is not put again within its time to live. Its age is the difference of two times
on the bucket's clock: of the lease, and of an object that the writer has just put. So the clocks of
the machines need not agree. They must only run at about the same rate.

Invariants
    P1, P2  As for leases in a folder (`leases`).
    G1  A file stays for GRACE_S after it became garbage, even without a lease. So a read that takes
        less time needs no lease.
    G2  No name is used twice. So a reader whose lease has ended may miss files, which is an error,
        but never reads a wrong file.

Source: docs/design/object-storage.md, "Leases and garbage".
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import threading
from collections import deque
from typing import Any, Final

from nyala.catalog.leases import EVERYTHING, lease_expired
from nyala.env import Env
from nyala.env.overlapped import each
from nyala.errors import StorageError
from nyala.objects.base import ObjectInfo, Objects

logger = logging.getLogger("nyala.store")

LEASES_PREFIX: Final = "leases/"
LEASE_FILES_PREFIX: Final = "lease-files/"
CLOCK_KEY: Final = "clock"
GRACE_S: Final = 600.0
TTL_S: Final = 300.0
# A list of the leases is used again for this time. A lease that is created meanwhile needs no entry in
# the list, because GRACE_S is longer.
_LISTED_S: Final = 10.0
_LEASE_BYTES_MAX: Final = 4096
_READ_AT_ONCE: Final = 16
_JOB: Final = "remote-"
# The objects of another store may be below the prefix of the leases. They do not match.
_LEASE: Final = re.compile(rf"{LEASES_PREFIX}({_JOB})?[0-9a-f]+")


def bucket_time_us(objects: Objects) -> int:
    """Return the time on the bucket's clock. Cost: two requests."""
    objects.put(CLOCK_KEY, b"")
    info = objects.head(CLOCK_KEY)
    if info is None:
        raise StorageError(
            f"{objects.url}/{CLOCK_KEY} was deleted as soon as it was written: no rule of the bucket may delete "
            "objects of a store"
        )
    return info.modified_us


class ObjectLease:
    """The lease of one reader, which a thread renews until `release` is called. Thread-safe."""

    def __init__(self, env: Env, objects: Objects, ttl_s: float = TTL_S) -> None:
        """Create a lease in the bucket. It keeps all files of the store from being deleted.

        ttl_s: the lease's time to live in seconds. A thread renews the lease before this time ends.
        Raises: StorageError.
        """
        self._env = env
        self._objects = objects
        self._ttl_s = ttl_s
        self._key = f"{LEASES_PREFIX}{env.randomness.token_hex(8)}"
        self._version = EVERYTHING
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._put()
        self._thread = threading.Thread(target=self._renew, name="nyala-lease", daemon=True)
        self._thread.start()

    def announce(self, version: int) -> None:
        """Set the oldest version of the catalogue that this reader needs. Raises: StorageError."""
        with self._lock:
            self._version = version
        self._put()

    def _put(self) -> None:
        with self._lock:
            put_lease(self._objects, self._key, self._version, self._ttl_s)

    def _renew(self) -> None:
        while not self._env.clock.wait(self._stop, self._ttl_s / 4):
            try:
                self._put()
            except StorageError as error:  # the next renewal may still be early enough
                logger.warning("the lease of a reader could not be renewed: %s", error)

    def release(self) -> None:
        """End the lease. May be called twice. If it cannot be deleted, it ends when its time is over."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join(self._ttl_s)
        try:
            self._objects.delete([self._key])
        except StorageError as error:
            logger.info("a lease ends by its time: %s", error)


class ObjectJobLease:
    """Implements `JobLease` in a bucket. Any process that knows the name can renew the lease.

    A renewal puts the object of the lease again. If it comes too late, files that the lease should
    keep may already be deleted. A read of these files is then an error. Files that live as
    long as the lease (`keep_file`) are below `lease-files/<name>/`.
    """

    def __init__(self, objects: Objects, name: str, version: int, ttl_s: float) -> None:
        self.name: Final = name
        self._objects = objects
        self._version = version
        self._ttl_s = ttl_s

    @staticmethod
    def create(env: Env, objects: Objects, ttl_s: float) -> ObjectJobLease:
        """Create a job's lease in the bucket. It keeps all files of the store from being deleted.

        ttl_s: the lease's time to live in seconds. The job must renew it before this time ends.
        Raises: StorageError.
        """
        lease = ObjectJobLease(objects, f"{_JOB}{env.randomness.token_hex(8)}", EVERYTHING, ttl_s)
        lease._put()
        return lease

    @staticmethod
    def open(objects: Objects, name: str) -> ObjectJobLease:
        """Open the lease of this name. Raises: HistoryExpiredError if it has ended; StorageError."""
        found = _decode(objects.get(f"{LEASES_PREFIX}{name}"))
        if found is None:
            raise lease_expired(name)
        return ObjectJobLease(objects, name, *found)

    def announce(self, version: int) -> None:
        """Set the oldest version of the catalogue that the job needs.

        version: must not be less than the version of the call before.
        """
        assert version >= self._version, f"P1: a lease goes from version {self._version} back to {version}"
        self._version = version
        self._put()

    def renew_for(self, ttl_s: float) -> None:
        """Let the lease live for at least `ttl_s` seconds from now."""
        self._ttl_s = max(self._ttl_s, ttl_s)
        self._put()

    def left_s(self) -> float:
        """Return for how many seconds at most the lease still lives if nobody renews it."""
        return self._ttl_s

    def keep_file(self, name: str, *parts: bytes) -> str:
        """Put an object that is deleted when the lease ends; return its URL."""
        key = f"{LEASE_FILES_PREFIX}{self.name}/{name}"
        self._objects.upload(key, parts)
        return f"{self._objects.url}/{key}"

    def release(self) -> None:
        """End the lease. May be called twice. If it cannot be deleted, it ends when its time is over."""
        try:
            end_job_lease(self._objects, self.name)
        except StorageError as error:  # not an error for the job, which is done
            logger.info("a job's lease ends by its time: %s", error)

    def _put(self) -> None:
        put_lease(self._objects, f"{LEASES_PREFIX}{self.name}", self._version, self._ttl_s)


def end_job_lease(objects: Objects, name: str) -> None:
    """Delete a job's lease, and the files that live as long as the lease. Raises: StorageError."""
    files = [info.key for info in objects.list(f"{LEASE_FILES_PREFIX}{name}/")]
    objects.delete([f"{LEASES_PREFIX}{name}", *files])


def is_living(objects: Objects, name: str) -> bool:
    """Return whether a job's lease lives. Cost: four requests."""
    key = f"{LEASES_PREFIX}{name}"
    now_us, info, found = bucket_time_us(objects), objects.head(key), _decode(objects.get(key))
    return info is not None and found is not None and now_us - info.modified_us <= found[1] * 1e6


def put_lease(objects: Objects, key: str, version: int, ttl_s: float) -> None:
    """Create or renew a lease. Raises: StorageError.

    version: the oldest version of the catalogue that the reader needs.
    """
    fields = {"version": version, "ttl_s": ttl_s, "host": socket.gethostname(), "pid": os.getpid()}
    objects.put(key, json.dumps(fields).encode())


class ObjectLeases:
    """Finds the oldest version of the catalogue that leases need. One thread at a time uses it."""

    holders = "readers in other processes, or jobs; a bucket keeps replaced files for 10 minutes in any case"

    def __init__(self, env: Env, objects: Objects, version: int) -> None:
        """Begin with `version`, the present version of the catalogue."""
        self._env = env
        self._objects = objects
        # Versions that were logged within GRACE_S, with their times.
        self._young: deque[tuple[int, float]] = deque([(version, env.clock.monotonic_s())])
        self._old = EVERYTHING
        self._listed: tuple[float, int | None] | None = None

    def note_version(self, version: int) -> None:
        """Keep in memory the time at which this version of the catalogue was logged: now."""
        self._young.append((version, self._env.clock.monotonic_s()))

    def oldest_needed(self) -> int | None:
        """Return the oldest version of the catalogue whose files must be kept.

        The files of a version must be kept if a lease needs the version. They must also be kept if
        the version was current within the last GRACE_S seconds, because a read without a lease may
        still use them.
        """
        now_s = self._env.clock.monotonic_s()
        while self._young and self._young[0][1] <= now_s - GRACE_S:
            self._old = self._young.popleft()[0]
        if self._old == EVERYTHING:
            return EVERYTHING
        if self._listed is None or self._listed[0] <= now_s - _LISTED_S:
            self._listed = now_s, self._oldest_leased()
        leased = self._listed[1]
        return self._old if leased is None else min(leased, self._old)

    def _oldest_leased(self) -> int | None:
        infos = [info for info in self._objects.list(LEASES_PREFIX) if _LEASE.fullmatch(info.key)]
        if not infos:
            return None
        now_us = bucket_time_us(self._objects)
        oldest: int | None = None

        def read(info: ObjectInfo) -> tuple[int, float] | None:
            return _decode(self._objects.get(info.key) if info.size_bytes <= _LEASE_BYTES_MAX else b"")

        for info, found in zip(infos, each(self._env.files, read, infos, _READ_AT_ONCE), strict=True):
            if found is None:
                continue  # released meanwhile
            version, ttl_s = found
            if now_us - info.modified_us > ttl_s * 1e6:
                self._objects.delete([info.key])
            else:
                oldest = version if oldest is None else min(oldest, version)
        return oldest


def _decode(data: bytes | None) -> tuple[int, float] | None:
    """Return (version, time to live in seconds) of a lease; None if its object does not exist.

    data: the content of the object, or None. If it is unreadable, the lease counts as one that
        keeps all files for TTL_S.
    """
    if data is None:
        return None
    try:
        fields: Any = json.loads(data)
        version, ttl_s = fields["version"], fields["ttl_s"]
        if type(version) is int and isinstance(ttl_s, int | float) and 0 < ttl_s < 1e9:
            return version, float(ttl_s)
    except (ValueError, TypeError, LookupError):
        pass
    return EVERYTHING, TTL_S
