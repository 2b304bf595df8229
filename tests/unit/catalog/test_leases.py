"""Leases: the files of a living reader are kept, and those of a dead reader are not."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nyala.catalog.format import IDENTITY_NAME
from nyala.catalog.leases import (
    EVERYTHING,
    Lease,
    collectable,
    create_lease,
    living_leases,
    oldest_needed,
    open_remote_lease,
)
from nyala.env import Env, FileLock, PosixFiles
from nyala.errors import HistoryExpiredError

if TYPE_CHECKING:
    from conftest import SteppedClock


def oldest(env: Env, folder: Path) -> int | None:
    return oldest_needed(env, str(folder), env.clock.now_us())


def test_P1_a_lease_protects_all_files_until_it_announces_a_version(env: Env, tmp_path: Path) -> None:
    """No file is removed between the creation of a lease and the reader's choice of a version."""
    assert oldest(env, tmp_path) is None
    lease = create_lease(env, str(tmp_path))
    assert oldest(env, tmp_path) == EVERYTHING
    lease.announce(17)
    assert oldest(env, tmp_path) == 17
    lease.announce(20)
    assert oldest(env, tmp_path) == 20
    (living,) = living_leases(env, str(tmp_path), 0)
    assert (living.expires_us, living.pid, living.version) == (None, os.getpid(), 20)
    lease.release()
    lease.release()
    assert oldest(env, tmp_path) is None
    assert os.listdir(tmp_path / "leases") == []


def test_P2_the_oldest_of_several_leases_counts(env: Env, tmp_path: Path) -> None:
    """While two readers need different versions, the files of the older version stay."""
    old, new = create_lease(env, str(tmp_path)), create_lease(env, str(tmp_path))
    old.announce(5)
    new.announce(9)
    assert oldest(env, tmp_path) == 5
    with old:
        pass
    assert oldest(env, tmp_path) == 9
    new.release()


def test_P2_garbage_is_kept_for_leases_older_than_it() -> None:
    """A file that became garbage in version 8 is needed by a lease on version 7, not on version 8."""
    garbage = {"a": 7, "b": 8, "c": 9}
    assert collectable(garbage, None) == ["a", "b", "c"]
    assert collectable(garbage, EVERYTHING) == []
    assert collectable(garbage, 7) == ["a"]
    assert collectable(garbage, 8) == ["a", "b"]


READER = """
import sys
from nyala.catalog.leases import create_lease
from nyala.env import SYSTEM
lease = create_lease(SYSTEM, sys.argv[1])
lease.announce(4)
print("ready", flush=True)
sys.stdin.read()
"""


def test_P2_the_lease_of_a_killed_reader_ends(env: Env, tmp_path: Path) -> None:
    """The system releases the lock of a killed reader, and the next listing removes its lease."""
    child = subprocess.Popen(
        [sys.executable, "-c", READER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    assert oldest(env, tmp_path) == 4
    child.kill()
    child.communicate()
    assert oldest(env, tmp_path) is None
    assert os.listdir(tmp_path / "leases") == []


def test_P1_an_unreadable_lease_protects_all_files(env: Env, tmp_path: Path) -> None:
    """A locked lease with incomplete content protects all files: its reader has just begun."""
    lease = create_lease(env, str(tmp_path))
    lease.announce(17)
    whole = Path(lease.path).read_bytes()
    for content in (b"", whole[:-1], whole.replace(b"17", b"99"), b"\xff" * 50):
        Path(lease.path).write_bytes(content)
        assert oldest(env, tmp_path) == EVERYTHING, content
    Path(lease.path).write_bytes(whole + b'"}\n')  # the rest of a longer content, not truncated yet
    assert oldest(env, tmp_path) == 17
    lease.release()


def test_P1_a_lease_removed_during_its_creation_is_created_again(env: Env, tmp_path: Path) -> None:
    """The writer may lock and remove a lease file after its creation and before the reader locks it."""
    attempts: list[str] = []

    class Sweeping(PosixFiles):
        def lock(self, path: str, *, create: bool = True) -> FileLock | None:
            if create:
                attempts.append(path)
                if len(attempts) == 1:
                    Path(path).touch()
                    taken = super().lock(path)  # as the writer does when it lists the leases
                    assert taken is not None
                    ours = super().lock(path)
                    taken.release(unlink=True)
                    return ours
            return super().lock(path, create=create)

    lease = create_lease(dataclasses.replace(env, files=Sweeping()), str(tmp_path))
    assert len(attempts) == 2 and lease.path == attempts[1]
    assert oldest(env, tmp_path) == EVERYTHING
    lease.release()


def test_other_files_are_kept(env: Env, tmp_path: Path) -> None:
    """A file that is no lease, and an unreadable temporary file, are not removed."""
    (tmp_path / "leases").mkdir()
    for name in ("notes.txt", "remote-1.77.tmp"):
        (tmp_path / "leases" / name).touch()
    assert oldest(env, tmp_path) is None
    assert len(os.listdir(tmp_path / "leases")) == 2


# --- remote -----------------------------------------------------------------------------------------


def remote(env: Env, folder: Path, seconds: float) -> Lease:
    return create_lease(env, str(folder), "remote", expires_us=env.clock.now_us() + round(seconds * 1e6))


def test_P2_a_remote_lease_lives_until_its_expiry(env: Env, clock: SteppedClock, tmp_path: Path) -> None:
    """A remote lease ends at its expiry. Any process that knows its name can extend it."""
    lease = remote(env, tmp_path, 60)
    assert oldest(env, tmp_path) == EVERYTHING
    lease.announce(12)
    clock.sleep_s(59)
    assert oldest(env, tmp_path) == 12
    task = open_remote_lease(env, str(tmp_path), lease.name)
    assert task.version == 12
    task.renew(clock.now_us() + 60_000_000)
    clock.sleep_s(59)
    assert oldest(env, tmp_path) == 12
    clock.sleep_s(1)
    assert oldest(env, tmp_path) is None
    assert os.listdir(tmp_path / "leases") == []


def test_kept_files_are_removed_with_their_lease(env: Env, clock: SteppedClock, tmp_path: Path) -> None:
    """Files of `keep_file` are removed when their lease has expired, and when a crash left no lease."""
    living, over, lost = (remote(env, tmp_path, seconds) for seconds in (100, 10, 100))
    for lease in (living, over, lost):
        lease.keep_file("a.token", b"rows")
    os.unlink(lost.path)
    for lease in (living, over):
        shutil.copy(lease.path, f"{lease.path}.123-abc.tmp")
    Path(f"{living.path}.123-torn.tmp").write_bytes(b"0123")  # a living process may still write it
    assert len(living_leases(env, str(tmp_path), clock.now_us())) == 2
    assert not Path(f"{lost.path}.parts").exists()
    clock.sleep_s(10)
    assert len(living_leases(env, str(tmp_path), clock.now_us())) == 1
    assert sorted(os.listdir(tmp_path / "leases")) == [
        living.name, f"{living.name}.123-abc.tmp", f"{living.name}.123-torn.tmp", f"{living.name}.parts",
    ]  # fmt: skip


def test_L1_an_expired_lease_is_not_revived(env: Env, clock: SteppedClock, tmp_path: Path) -> None:
    """A renewal after the expiry raises, even while the lease still exists."""
    (tmp_path / IDENTITY_NAME).touch()
    lease = remote(env, tmp_path, 60)
    clock.sleep_s(60)
    for call in (
        lambda: lease.renew(clock.now_us() + 60_000_000),
        lambda: lease.announce(3),
        lambda: open_remote_lease(env, str(tmp_path), lease.name),
    ):
        with pytest.raises(HistoryExpiredError, match="load again"):
            call()
    assert oldest(env, tmp_path) is None
    with pytest.raises(HistoryExpiredError, match="load again"):
        lease.renew(clock.now_us() + 60_000_000)
    assert os.listdir(tmp_path / "leases") == []


def test_L1_a_renewal_that_is_written_too_late_is_removed(
    env: Env, clock: SteppedClock, tmp_path: Path
) -> None:
    """The lease expires between the reading and the writing of a renewal, so files may be gone."""

    class Slow(PosixFiles):
        def write_atomic(self, path: str, data: bytes) -> None:
            clock.sleep_s(120)
            assert oldest(env, tmp_path) is None  # this call removes the lease
            super().write_atomic(path, data)

    lease = remote(env, tmp_path, 60)
    late = open_remote_lease(dataclasses.replace(env, files=Slow()), str(tmp_path), lease.name)
    with pytest.raises(HistoryExpiredError):
        late.renew(clock.now_us() + 600_000_000)
    assert os.listdir(tmp_path / "leases") == []


def test_a_renewal_never_shortens_a_lease(env: Env, clock: SteppedClock, tmp_path: Path) -> None:
    """If two tasks renew a lease, the later expiry counts."""
    lease = remote(env, tmp_path, 60)
    lease.renew(clock.now_us() + 90_000_000)
    lease.renew(clock.now_us() + 30_000_000)
    clock.sleep_s(80)
    assert oldest(env, tmp_path) == EVERYTHING
    lease.release()
    assert oldest(env, tmp_path) is None


def test_a_damaged_remote_lease_has_ended(env: Env, tmp_path: Path) -> None:
    lease = remote(env, tmp_path, 60)
    Path(lease.path).write_bytes(b"\0" * 40)
    with pytest.raises(HistoryExpiredError):
        lease.announce(3)
    assert oldest(env, tmp_path) is None
