"""Leases of jobs, which several processes use one after another, in a folder and in a bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import nyala
from nyala.catalog import object_leases
from nyala.catalog.job_leases import create_job_lease, is_living, keep_job_lease, open_job_lease
from nyala.catalog.leases import oldest_needed
from nyala.catalog.object_leases import ObjectLeases
from nyala.env import SYSTEM, Env, SystemRandomness, system_files
from nyala.errors import HistoryExpiredError
from nyala.objects.memory import MemoryObjects
from nyala.objects.remote_files import RemoteFiles
from nyala.testing import FaultyObjects
from nyala.testing.clock import ManualClock


@dataclass
class LeaseFolder:
    env: Env
    path: str
    advance: Callable[[float], None]
    oldest: Callable[[], int | None]
    """Returns the oldest catalogue version that a valid lease needs; None if there is no valid lease."""


@pytest.fixture(params=["folder", "bucket"])
def leases(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LeaseFolder]:
    clock = ManualClock()
    if request.param == "folder":
        path = str(tmp_path / "store")
        nyala.connect(path).close()
        env = Env(system_files(), clock, SystemRandomness())
        yield LeaseFolder(env, path, clock.advance, lambda: oldest_needed(env, path, clock.now_us()))
        return
    monkeypatch.setattr(object_leases, "GRACE_S", 0.0)
    monkeypatch.setattr(object_leases, "_LISTED_S", 0.0)
    bucket = MemoryObjects()
    env = Env(RemoteFiles.over(bucket, SYSTEM, str(tmp_path), 1 << 20), clock, SystemRandomness())
    writer = ObjectLeases(env, bucket.client(), 1 << 30)

    def advance(seconds: float) -> None:
        clock.advance(seconds)
        bucket.advance(seconds)

    def oldest() -> int | None:
        found = writer.oldest_needed()
        return None if found == 1 << 30 else found

    yield LeaseFolder(env, bucket.url, advance, oldest)
    env.files.close()


def test_a_lease_protects_all_files_until_it_announces_a_version(leases: LeaseFolder) -> None:
    lease = create_job_lease(leases.env, leases.path, 100)
    assert leases.oldest() == 0
    lease.announce(7)
    other = create_job_lease(leases.env, leases.path, 100)
    other.announce(9)
    assert leases.oldest() == 7
    lease.release()
    assert leases.oldest() == 9
    other.release()
    lease.release()
    assert leases.oldest() is None


def test_any_process_that_knows_its_name_can_renew_a_lease(leases: LeaseFolder) -> None:
    lease = create_job_lease(leases.env, leases.path, 100)
    lease.announce(7)
    for _ in range(5):
        leases.advance(80)
        keep_job_lease(leases.env, leases.path, lease.name, 100)
        assert leases.oldest() == 7 and is_living(leases.env, leases.path, lease.name)
    for ttl_s in (1000, 10):  # the shorter renewal changes nothing
        open_job_lease(leases.env, leases.path, lease.name).renew_for(ttl_s)
    leases.advance(900)
    assert is_living(leases.env, leases.path, lease.name)


def test_a_lease_that_is_not_renewed_ends(leases: LeaseFolder) -> None:
    lease = create_job_lease(leases.env, leases.path, 100)
    lease.announce(7)
    leases.advance(101)
    assert leases.oldest() is None and not is_living(leases.env, leases.path, lease.name)
    with pytest.raises(HistoryExpiredError, match="run the job again, or load again"):
        keep_job_lease(leases.env, leases.path, lease.name, 100)
    with pytest.raises(HistoryExpiredError):
        open_job_lease(leases.env, leases.path, lease.name)
    assert lease.left_s() <= 100


def test_the_files_of_a_lease_are_removed_with_it(leases: LeaseFolder) -> None:
    lease = create_job_lease(leases.env, leases.path, 100)
    path = lease.keep_file("a.token", b"some", b"bytes")
    assert leases.env.files.read_all(path) == b"somebytes"
    assert leases.oldest() == 0, "before it announces a version, a lease needs all files"
    lease.release()
    assert not leases.env.files.exists(path)


def test_a_lease_that_cannot_be_deleted_does_not_fail_its_job(tmp_path: Path) -> None:
    """`release` does not raise, because the job has committed already. The lease ends by its time."""
    bucket = FaultyObjects(MemoryObjects())
    env = Env(RemoteFiles.over(bucket, SYSTEM, str(tmp_path), 1 << 20), SYSTEM.clock, SYSTEM.randomness)
    lease = create_job_lease(env, bucket.url, 100)
    bucket.faults = lambda _: "drop before"
    lease.release()
    bucket.faults = None
    assert is_living(env, bucket.url, lease.name)
    lease.release()
    assert not is_living(env, bucket.url, lease.name)
    env.files.close()
