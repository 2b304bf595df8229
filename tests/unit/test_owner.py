"""Marks of processes: they show whether the process that owns a file or lease has ended.

A process that cannot be checked counts as running.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import key_value_table, open_database

from nyala.catalog.leases import create_lease, living_leases, open_remote_lease
from nyala.env import SYSTEM, is_gone, mark_of_ancestor, process_mark
from nyala.tablet.jobs.staging import is_over, make_staging, remove_expired_staging

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="marks of processes need Linux")


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """Another process, which runs until the test ends it."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def mark(pid: int) -> str:
    found = process_mark(pid)
    assert found is not None
    return found


def test_a_process_is_gone_when_it_was_killed(other: subprocess.Popen[bytes]) -> None:
    """`is_gone` is true for a zombie, and after its parent has waited for it."""
    theirs = mark(other.pid)
    assert not is_gone(theirs) and not is_gone(mark(os.getpid()))
    other.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert is_gone(theirs), "a zombie counts as gone"
    other.wait()
    assert is_gone(theirs)


def test_a_reused_pid_is_another_process() -> None:
    """A mark contains the start time, so a later process with the same pid has another mark."""
    mine = mark(os.getpid())
    assert is_gone(mine[:24] + f"{int(mine[24:], 16) - 1:016x}")


@pytest.mark.parametrize("strange", ["", "x" * 40, "0" * 39])
def test_a_process_that_cannot_be_checked_does_not_count_as_gone(
    other: subprocess.Popen[bytes], strange: str
) -> None:
    """A mark from another machine, or an invalid mark, never counts as gone."""
    theirs = mark(other.pid)
    other.kill()
    other.wait()
    elsewhere = f"{int(theirs[:16], 16) ^ 1:016x}" + theirs[16:]
    assert is_gone(theirs) and not is_gone(elsewhere) and not is_gone(strange)


def test_an_ancestor_is_found_by_its_name() -> None:
    """A worker finds its driver, also if other processes are between. Without a driver it gets None."""
    name = Path("/proc/self/comm").read_text().strip()
    code = "from nyala.env import mark_of_ancestor; print(mark_of_ancestor({!r}))"
    inner = [sys.executable, "-c", code.format(name)]
    through_a_shell = ["sh", "-c", '"$@"; true', "sh", *inner]
    assert subprocess.run(through_a_shell, capture_output=True, text=True).stdout.strip() == mark(os.getpid())
    assert mark_of_ancestor("no process is called so") is None


def test_staged_files_go_with_their_process(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    """The next open removes the files of a job whose process has ended.

    It keeps the files of running jobs, and of jobs whose process is unknown.
    """
    with open_database(tmp_path / "s") as db:
        key_value_table(db)
        path = db.path
        theirs, folder = make_staging(SYSTEM, path, 3600, mark(other.pid))
        mine, _ = make_staging(SYSTEM, path, 3600, mark(os.getpid()))
        nobodys, _ = make_staging(SYSTEM, path, 3600)
        far, _ = make_staging(SYSTEM, path, 3600, "0" * 40)
        Path(folder, "part.arrow").write_bytes(b"rows")
        assert remove_expired_staging(SYSTEM, path) == 0
    other.kill()
    other.wait()
    assert is_over(SYSTEM, path, theirs)
    with open_database(tmp_path / "s"):
        assert {found.name for found in (tmp_path / "s" / "staging").iterdir()} == {mine, nobodys, far}


def test_a_lease_ends_with_its_process(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    """A lease ends with its process and removes its files. A renewal does not change the owner."""
    with open_database(tmp_path / "s") as db:
        expires_us = SYSTEM.clock.now_us() + 3_600_000_000
        lease = create_lease(SYSTEM, db.path, "remote", expires_us=expires_us, owner=mark(other.pid))
        lease.announce(7)
        lease.keep_file("a.token", b"token")
        open_remote_lease(SYSTEM, db.path, lease.name).renew(expires_us + 1)
        (living,) = living_leases(SYSTEM, db.path, SYSTEM.clock.now_us())
        assert (living.version, living.owner) == (7, mark(other.pid))
        other.kill()
        other.wait()
        assert living_leases(SYSTEM, db.path, SYSTEM.clock.now_us()) == []
        assert [found.name for found in (tmp_path / "s" / "leases").iterdir()] == []
