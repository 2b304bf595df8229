"""Leases of jobs whose processes come and go, such as the tasks of a Spark job.

Any process that knows the name of a job lease can renew it. The lease ends if no process renews it for
its time to live. In a folder it is a file with an expiry (`catalog.leases`, "remote"). In a bucket it
is an object, whose age decides (`catalog.object_leases`).
"""

from __future__ import annotations

from typing import Final, Protocol

from nyala.catalog import leases, object_leases
from nyala.catalog.object_leases import ObjectJobLease
from nyala.env import Env
from nyala.objects.address import bucket_of

__all__ = ["RENEWED_BELOW", "JobLease", "create_job_lease", "is_living", "keep_job_lease", "open_job_lease"]

RENEWED_BELOW: Final = leases.RENEWED_BELOW


class JobLease(Protocol):
    """One job's lease. Used by one thread at a time. All raise HistoryExpiredError if it has ended."""

    @property
    def name(self) -> str: ...
    def announce(self, version: int) -> None:
        """Set the oldest version of the catalogue that the job needs; it never goes back (P1)."""
        ...

    def renew_for(self, ttl_s: float) -> None:
        """Let the lease live for `ttl_s` seconds from now, unless it lives longer already."""
        ...

    def left_s(self) -> float:
        """Return how many seconds the lease lives, at most, without a renewal."""
        ...

    def keep_file(self, name: str, *parts: bytes) -> str:
        """Write a file that lives as long as the lease; returns its path."""
        ...

    def release(self) -> None:
        """End the lease. May be called twice."""
        ...


def create_job_lease(env: Env, place: str, ttl_s: float, owner: str | None = None) -> JobLease:
    """Create a lease that lives for `ttl_s` seconds, at first on everything (P1).

    place: the store's folder or URL. owner: mark of the process whose end also ends the lease; in a
    bucket only the time counts. Raises: StorageError.
    """
    bucket = bucket_of(env)
    if bucket is not None:
        return ObjectJobLease.create(env, bucket, ttl_s)
    expires_us = env.clock.now_us() + int(ttl_s * 1e6)
    return leases.create_lease(env, place, "remote", expires_us=expires_us, owner=owner)


def open_job_lease(env: Env, place: str, name: str) -> JobLease:
    """Open the lease of this name, in any process. Raises: HistoryExpiredError if it has ended."""
    bucket = bucket_of(env)
    if bucket is not None:
        return ObjectJobLease.open(bucket, name)
    return leases.open_remote_lease(env, place, name)


def keep_job_lease(env: Env, place: str, name: str, ttl_s: float) -> None:
    """Renew a lease. In a folder, do nothing while most of its time is left.

    Raises: HistoryExpiredError if it has ended.
    """
    lease = open_job_lease(env, place, name)
    if not isinstance(lease, leases.Lease) or lease.left_s() < ttl_s * RENEWED_BELOW:
        lease.renew_for(ttl_s)


def is_living(env: Env, place: str, name: str) -> bool:
    """Whether this lease lives; removes it if it has ended."""
    bucket = bucket_of(env)
    if bucket is not None:
        return object_leases.is_living(bucket, name)
    return leases.is_living(env, place, name)
