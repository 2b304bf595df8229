"""The lock allows one writer at a time, and its error names the holder and the remedy."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nyala.catalog.store_lock import StoreLock
from nyala.env import SYSTEM, Env
from nyala.errors import LockedError

if TYPE_CHECKING:
    from conftest import SteppedClock

HOLDER = """
import sys
from nyala.catalog.store_lock import StoreLock
from nyala.env import SYSTEM
lock = StoreLock(SYSTEM, sys.argv[1])
lock.acquire()
print("ready", flush=True)
sys.stdin.read()
"""


def hold_in_child(folder: Path) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    return child


def test_the_error_names_the_holder(env: Env, clock: SteppedClock, tmp_path: Path) -> None:
    """The error of a second writer names the holder's pid and host, and the three ways out."""
    child = hold_in_child(tmp_path)
    try:
        with pytest.raises(LockedError) as caught:
            StoreLock(env, str(tmp_path)).acquire()
        message = str(caught.value)
        assert f"process {child.pid} on {socket.gethostname()}" in message
        assert str(tmp_path) in message
        for advice in ("read_only=True", "lock_timeout=", f"end process {child.pid}"):
            assert advice in message
    finally:
        child.kill()
        child.communicate()


def test_the_lock_of_a_killed_writer_is_taken_over(env: Env, tmp_path: Path) -> None:
    """The system releases the lock of a killed process, so the next writer takes it at once."""
    child = hold_in_child(tmp_path)
    child.kill()
    child.communicate()
    with StoreLock(env, str(tmp_path)) as lock:
        assert lock.held
        holder = lock.holder()
        assert holder is not None and holder.pid == os.getpid()


def test_one_process_cannot_take_the_lock_twice(env: Env, tmp_path: Path) -> None:
    """The error names this process and advises to close the store."""
    with StoreLock(env, str(tmp_path)):
        with pytest.raises(LockedError, match="by this process .*close\\(\\) it first"):
            StoreLock(env, str(tmp_path)).acquire()
    with StoreLock(env, str(tmp_path)) as lock:
        assert lock.held


def test_waiting_ends_at_the_timeout(env: Env, clock: SteppedClock, tmp_path: Path) -> None:
    """`acquire` waits for exactly its timeout."""
    with StoreLock(env, str(tmp_path)):
        before = clock.monotonic_s()
        with pytest.raises(LockedError, match=r"waited 3\.01 s"):
            StoreLock(env, str(tmp_path)).acquire(3.01)
        assert clock.monotonic_s() - before == pytest.approx(3.01)


def test_waiting_ends_when_the_holder_closes(tmp_path: Path) -> None:
    """`acquire` returns as soon as the holder has released the lock."""
    first = StoreLock(SYSTEM, str(tmp_path))
    first.acquire()
    timer = threading.Timer(0.2, first.release)
    timer.start()
    begin = time.monotonic()
    second = StoreLock(SYSTEM, str(tmp_path))
    second.acquire(30)
    assert second.held
    assert 0.1 < time.monotonic() - begin < 10
    second.release()
    timer.join()


def test_the_content_of_the_file(env: Env, tmp_path: Path) -> None:
    """The file has pid, host, start and purpose of the holder. A released lock file is empty."""
    lock = StoreLock(env, str(tmp_path))
    assert lock.holder() is None
    lock.acquire()
    content = json.loads((tmp_path / "lock").read_text())
    assert content == {
        "pid": os.getpid(), "host": socket.gethostname(), "started": "2023-11-14T22:13:20+00:00", "purpose": "writer"
    }  # fmt: skip
    lock.release()
    lock.release()
    assert (tmp_path / "lock").read_bytes() == b""


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"7",
        b'{"pid": 7}',
        *(
            b'{"host": "h", "started": "s", "purpose": "writer", "pid": %s}' % pid
            for pid in (b"1e400", b"%d" % 2**70, b"0", b"-1", b'"x"')
        ),
    ],
    ids=lambda content: content[-16:].decode("latin-1") or "empty",
)
def test_an_invalid_content_names_nobody(env: Env, tmp_path: Path, content: bytes) -> None:
    """A damaged lock file raises no error, and yields no wrong pid."""
    (tmp_path / "lock").write_bytes(content + b"\n")
    assert StoreLock(env, str(tmp_path)).holder() is None


def test_is_taken(env: Env, tmp_path: Path) -> None:
    """`is_taken` creates no file, and keeps no lock."""
    reader = StoreLock(env, str(tmp_path))
    assert not reader.is_taken()
    assert os.listdir(tmp_path) == []
    with StoreLock(env, str(tmp_path)):
        assert reader.is_taken()
    assert not reader.is_taken()
    with StoreLock(env, str(tmp_path)) as lock:
        assert lock.held


def test_acquire_waits_for_is_taken_of_another_process(
    env: Env, clock: SteppedClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`is_taken` of a reader holds the lock for a moment, which must not fail a writer."""
    other = env.files.lock(str(tmp_path / "lock"))
    assert other is not None
    sleep_s = clock.sleep_s

    def answered(seconds: float) -> None:
        sleep_s(seconds)
        other.release()

    monkeypatch.setattr(clock, "sleep_s", answered)
    with StoreLock(env, str(tmp_path)) as lock:
        assert lock.held


def test_a_holder_without_a_name(env: Env, tmp_path: Path) -> None:
    """If the file names nobody yet, the error says "another process"."""
    held = env.files.lock(str(tmp_path / "lock"))
    assert held is not None
    for content in (b"", b"{", b'{"pid": "x"}', b"[1]", b"\xff"):
        held.write(content)
        with pytest.raises(LockedError, match="by another process: open it with read_only=True"):
            StoreLock(env, str(tmp_path)).acquire()
    held.release()


def test_a_forked_child_does_not_end_its_parents_lock(env: Env, tmp_path: Path) -> None:
    """`release` in a forked child changes neither the lock nor the content of the file."""
    lock = StoreLock(env, str(tmp_path))
    lock.acquire()
    content = (tmp_path / "lock").read_bytes()
    pid = os.fork()
    if pid == 0:
        lock.release()
        os._exit(0)
    os.waitpid(pid, 0)
    assert lock.held
    assert (tmp_path / "lock").read_bytes() == content and re.search(b'"pid": \\d+', content)
    with pytest.raises(LockedError):
        StoreLock(env, str(tmp_path)).acquire()
    lock.release()


def test_acquire_waits_for_a_commit_of_another_process(tmp_path: Path) -> None:
    """A lock with the purpose "commit" is released soon, so `acquire` waits even without a timeout."""
    passing, writer = StoreLock(SYSTEM, str(tmp_path)), StoreLock(SYSTEM, str(tmp_path))
    passing.acquire(purpose="commit")
    timer = threading.Timer(0.5, passing.release)
    timer.start()
    writer.acquire(timeout_s=0)
    timer.join()
    assert writer.held
    writer.release()
