"""A writer killed by the system itself at its n-th fdatasync, fsync, write, rename or unlink, SQLite's own included.

`test_kill` kills at the calls that go through `nyala.env.files`; here strace puts the SIGKILL at the entry of the
system call, so it is also met within a transaction of the catalogue. Skipped where there is no strace, or no right to
trace.
"""

from __future__ import annotations

import functools
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.test_kill import ROOT
from tests.crash.workload import DIRECT_COMMIT_BYTES, State, check_everything, state_of, states
from tests.figures import counted
from tests.support import folder_in_memory, open_database

CALLS = {
    "fdatasync": "fdatasync",
    "fsync": "fsync",
    "write": "write,writev,pwrite64,pwritev",
    "rename": "rename,renameat,renameat2",
    "unlink": "unlink,unlinkat",
    "truncate": "truncate,ftruncate",
}


TRACE = (
    "strace",
    "-f",
    "-qq",
    "-o",
    "/dev/null",
)  # with --seccomp-bpf, strace 6.1 misses calls that it is to kill at


@functools.cache
def can_trace() -> bool:
    tried = [*TRACE, "-e", "trace=fdatasync", "-e", "inject=fdatasync:signal=KILL:when=1", "true"]
    return (
        shutil.which("strace") is not None
        and not subprocess.run(tried, capture_output=True, check=False).returncode
    )


@pytest.fixture(scope="module")
def expected() -> list[State]:
    if not can_trace():
        pytest.skip("strace is not there, or may not trace")
    return states()


def killed_at(folder: Path, calls: str, number: int, expected: list[State]) -> bool:
    """Run the workload up to the n-th of these calls of a thread, and look; False: it came to its end before."""
    child = subprocess.run(
        [*TRACE, "-e", f"trace={calls}", "-e", f"inject={calls}:signal=KILL:when={number}", sys.executable, "-m",
         "tests.crash.child", str(folder), "0", "before", "sync", "workload"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if child.returncode == 0:
        return False
    assert child.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), child.stderr
    done = max(child.stdout.count("\n") - 1, 0)  # the first line says that the store is open
    with open_database(folder, direct_commit_bytes=DIRECT_COMMIT_BYTES) as db:
        assert state_of(db) in expected[done : done + 2], f"killed at {calls} {number} after {done} steps"
        check_everything(db)
    return True


@pytest.mark.parametrize(("name", "number"), [("fdatasync", 30), ("fsync", 5)])
def test_killed_at_a_system_call(name: str, number: int, expected: list[State]) -> None:
    """Some of the run's; `make test-long` takes them all."""
    with folder_in_memory() as folder:
        assert killed_at(folder / "s", CALLS[name], number, expected)


# Writes are by far the most: so that they are spread over the workers of a run.
PARTS = {"write": 8, "fdatasync": 2}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("name", "part"), [(n, part) for n in sorted(CALLS) for part in range(PARTS.get(n, 1))]
)
def test_killed_at_every_system_call(name: str, part: int, expected: list[State]) -> None:
    """Every call of its kind."""
    with counted(f"killed by strace at its n-th {name}", "processes") as tried, folder_in_memory() as folder:
        number = 1 + part
        while killed_at(folder / str(number), CALLS[name], number, expected):
            tried.append(1)
            shutil.rmtree(folder / str(number))
            number += PARTS.get(name, 1)
    assert tried
