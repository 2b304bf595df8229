"""Leases of jobs, which keep files for processes that come and go, such as the tasks of a Spark job.

Any process that knows the name of a job's lease can renew the lease. The lease ends if no process
renews it within its time to live. In a folder it is a file that contains its expiry (a "remote"
lease of `leases`). In a bucket it is an object, which ends at a certain age (`object_leases`).
"""

from __future__ import annotations

from typing import Final, Protocol

from nyala.catalog import leases, object_leases
from nyala.catalog.object_leases import ObjectJobLease
from nyala.env import Env
from nyala.objects.address import bucket_of

RENEWED_BELOW: Final = leases.RENEWED_BELOW


class JobLease(Protocol):
    """The lease of a job. One thread at a time uses it.

    Every method except `release` raises HistoryExpiredError if the lease has ended.
    """

    @property
    def name(self) -> str: ...
    def announce(self, version: int) -> None:
        """Set the oldest version of the catalogue that the job needs.

        version: must not be less than the version of the call before.
        """
        ...

    def renew_for(self, ttl_s: float) -> None:
        """Let the lease live for at least `ttl_s` seconds from now."""
        ...

    def left_s(self) -> float:
        """Return for how many seconds at most the lease still lives if nobody renews it."""
        ...

    def keep_file(self, name: str, *parts: bytes) -> str:
        """Write a file that is removed when the lease ends; return its path."""
        ...

    def release(self) -> None:
        """End the lease. May be called twice."""
        ...


def create_job_lease(env: Env, place: str, ttl_s: float, owner: str | None = None) -> JobLease:
    """Create a lease that keeps all files of the store and lives for `ttl_s` seconds.

    place: the store's folder or URL.
    owner: the text that identifies a process (`env.process_mark`). When that process has ended, the
        lease ends too. In a bucket the owner is ignored. None: the lease has no owner.
    Raises: StorageError.
    """
    bucket = bucket_of(env)
    if bucket is not None:
        return ObjectJobLease.create(env, bucket, ttl_s)
    expires_us = env.clock.now_us() + int(ttl_s * 1e6)
    return leases.create_lease(env, place, "remote", expires_us=expires_us, owner=owner)


def open_job_lease(env: Env, place: str, name: str) -> JobLease:
    """Open the lease `name` of a job. Raises: HistoryExpiredError if the lease has ended.

    place: the store's folder or URL.
    """
    bucket = bucket_of(env)
    if bucket is not None:
        return ObjectJobLease.open(bucket, name)
    return leases.open_remote_lease(env, place, name)


def keep_job_lease(env: Env, place: str, name: str, ttl_s: float) -> None:
    """Renew the lease `name` of a job, so that it lives for about `ttl_s` seconds from now.

    place: the store's folder or URL.

    If the store is in a bucket, each call writes the lease. If the store is in a folder, a call
    writes the lease only if less than the fraction RENEWED_BELOW of `ttl_s` is left.
    Raises: HistoryExpiredError if the lease has ended.
    """
    lease = open_job_lease(env, place, name)
    if not isinstance(lease, leases.Lease) or lease.left_s() < ttl_s * RENEWED_BELOW:
        lease.renew_for(ttl_s)


def is_living(env: Env, place: str, name: str) -> bool:
    """Return whether the job's lease `name` has not ended yet.

    If the lease has ended and the store is in a folder, this function also removes the lease.

    place: the store's folder or URL.
    """
    bucket = bucket_of(env)
    if bucket is not None:
        return object_leases.is_living(bucket, name)
    return leases.is_living(env, place, name)
