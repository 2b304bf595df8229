"""Work in processes of its own: its answers and errors come back, and no end of anybody leaves anything behind."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import nyala
from nyala import _worker, errors
from nyala.env import Env, MissingFileError, SystemRandomness, system_files
from nyala.env.clock import Clock
from nyala.errors import CorruptionError, Error, StorageError
from nyala.tablet import worker_protocol, workers
from nyala.tablet.worker_protocol import (
    BrokenFrame,
    FrameDecoder,
    Report,
    decode_error,
    encode_error,
    encode_frame,
)
from nyala.tablet.workers import JobCancelled, JobFailedError, WorkerPool
from nyala.testing.clock import ManualClock

CHILD = Path(__file__).parent / "worker_child.py"
COMMAND = [sys.executable, "-P", str(CHILD)]
HELLO = f"""
import os, sys, time
from nyala.tablet.worker_protocol import MAGIC, encode_frame
os.write(0, encode_frame({{"hello": {{"nyala": {nyala.__version__!r}}}}}))
"""


def until(condition: Callable[[], bool], timeout_s: float = 20) -> bool:
    end_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.005)
    return True


def gone(pid: int) -> bool:
    """Not even a zombie is left of our child."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def can_lock(path: Path) -> bool:
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def environment(clock: Clock) -> Env:
    return Env(system_files(), clock, SystemRandomness())


def descriptors() -> dict[str, str]:
    """What this process has open, and what it leads to."""
    found: dict[str, str] = {}
    for descriptor in os.listdir("/dev/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found[descriptor] = os.readlink(f"/dev/fd/{descriptor}")
    return found


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    """Every test ends without a process, a descriptor or a thread that was not there before."""
    before = descriptors().keys()
    threads = set(threading.enumerate())
    pool = WorkerPool(command=COMMAND)
    yield pool
    pool.close()
    assert not workers._children
    until(lambda: descriptors().keys() <= before, 5)  # threads of other tests open a file for a moment
    assert {d: to for d, to in descriptors().items() if d not in before} == {}
    assert set(threading.enumerate()) <= threads  # those of other tests may have ended by now


class Running:
    """A job in a thread of its own."""

    def __init__(self, pool: WorkerPool, kind: str, arguments: dict[str, Any], cancelled: Any = None) -> None:
        self.reports: list[dict[str, Any]] = []
        self.answer: dict[str, Any] | None = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(pool, kind, arguments, cancelled))
        self.thread.start()

    def _run(self, pool: WorkerPool, kind: str, arguments: dict[str, Any], cancelled: Any) -> None:
        try:
            self.answer = pool.run(kind, arguments, cancelled, self.reports.append)
        except BaseException as error:
            self.error = error

    def pid(self) -> int:
        """The child's, once it has begun."""
        assert until(lambda: bool(self.reports)), self.error
        return int(self.reports[0]["pid"])

    def ended(self) -> BaseException | None:
        self.thread.join(20)
        assert not self.thread.is_alive()
        return self.error


# --- answers ------------------------------------------------------------------------------------------


def test_a_ping_says_what_the_worker_is_made_of() -> None:
    """The real worker: the same Nyala, other process, one thread of Arrow's."""
    pool = WorkerPool()
    first, second = pool.run("ping", {}), pool.run("ping", {})
    pool.close()
    assert first == second, "the idle process was not used again"
    assert first["pid"] != os.getpid() and gone(first["pid"])
    assert (first["nyala"], first["arrow_threads"]) == (nyala.__version__, 1)


def test_progress_is_told_in_order(pool: WorkerPool) -> None:
    """`db.maintenance.status()` says how far a compaction is."""
    seen: list[dict[str, Any]] = []
    assert pool.run("steps", {"count": 1000}, progress=seen.append) == {"done": 1000}
    assert seen == [{"step": step} for step in range(1000)]
    assert pool.run("steps", {"count": 3}) == {"done": 3}


def test_what_is_printed_goes_to_the_log(
    pool: WorkerPool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that prints, or C code, would otherwise break the answer; one that reads finds nothing to wait for."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    assert pool.run("noise", {}) == {"stdin": ""}
    assert sorted(record.getMessage().split(": ")[1] for record in caplog.records) == [
        "from a program", "printed", "to stderr", "written",
    ]  # fmt: skip
    assert {(record.name, record.levelno) for record in caplog.records} == {("nyala.worker", logging.WARNING)}


def test_printing_without_end_blocks_nobody(pool: WorkerPool, caplog: pytest.LogCaptureFixture) -> None:
    """A full pipe would be a deadlock: the child waits for its reader, who waits for the answer."""
    caplog.set_level(logging.CRITICAL)
    assert pool.run("flood", {"mb": 20}) == {}
    assert pool.run("echo", {"a": 1})["a"] == 1


def test_a_child_is_found_in_any_folder(
    pool: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's own json.py hides nothing, and what his program has put on sys.path is there for the work."""
    for name in ("json.py", "nyala.py", "logging.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong module')")
    (tmp_path / "only_here.py").write_text("VALUE = 5")
    monkeypatch.chdir(tmp_path)
    source = os.path.dirname(os.path.dirname(nyala.__file__))
    monkeypatch.setenv("PYTHONPATH", os.path.relpath(source, tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    found = pool.run("load", {"module": "only_here"})
    assert (found["value"], found["cwd"]) == (5, "/")
    assert found["nice"] >= min(os.nice(0) + _worker.NICENESS, 19)


# --- errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name.endswith("Error")])
def test_an_error_of_ours_arrives_as_itself(name: str) -> None:
    """The maintenance decides by the class whether to try again."""
    sent = getattr(errors, name)("what, where, what to do")
    got = decode_error("merge", encode_error(sent))
    assert type(got) is type(sent) and str(got) == str(sent)
    assert isinstance(got, Error) and got.applied == 0


def test_an_error_arrives_with_its_fields(pool: WorkerPool) -> None:
    """Through a real process."""
    with pytest.raises(CorruptionError) as corruption:
        pool.run("fail", {"how": "corruption"})
    assert str(corruption.value) == "/a/file at offset 17: bad"
    assert (corruption.value.path, corruption.value.offset) == ("/a/file", 17)
    with pytest.raises(MissingFileError, match="no such file") as missing:
        pool.run("fail", {"how": "missing"})
    assert (missing.value.path, missing.value.errno) == ("/gone", 2)
    with pytest.raises(StorageError, match="full") as storage:
        pool.run("fail", {"how": "storage"})
    assert (storage.value.path, storage.value.errno, storage.value.outcome) == ("/disk", 28, "unknown")
    with pytest.raises(StorageError, match="out of memory"):
        pool.run("fail", {"how": "memory"})
    assert len(workers._children) == 1, "an error of the job is no reason for another process"


@pytest.mark.parametrize(("how", "said"), [("key", "KeyError: 'left'"), ("exit", "SystemExit: 3")])
def test_any_other_exception_names_the_place_in_the_worker(pool: WorkerPool, how: str, said: str) -> None:
    """A mistake of ours is found by the line in the child, not by that in the parent."""
    with pytest.raises(JobFailedError, match=said) as failed:
        pool.run("fail", {"how": how})
    assert "worker_child.py" in failed.value.__notes__[0] and "in fail" in failed.value.__notes__[0]
    assert pool.run("echo", {})


# --- a child that dies, a parent that dies ------------------------------------------------------------


def test_a_child_killed_at_work(pool: WorkerPool, tmp_path: Path) -> None:
    """As the system does when memory is short: the job fails with a sentence, the next one runs."""
    job = Running(pool, "hold", {"path": str(tmp_path / "lock")})
    os.kill(job.pid(), signal.SIGKILL)
    error = job.ended()
    assert isinstance(error, StorageError) and "killed by SIGKILL" in str(error) and "memory" in str(error)
    assert gone(job.pid())
    assert pool.run("echo", {})["pid"] != job.pid()


def test_a_child_killed_while_idle_is_replaced(pool: WorkerPool) -> None:
    """No job fails for that."""
    first = pool.run("echo", {})["pid"]
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert pool.run("echo", {})["pid"] != first


def test_ctrl_c_is_for_the_parent(pool: WorkerPool, tmp_path: Path) -> None:
    """In a terminal the signal reaches the whole group; a compaction goes on, and no traceback is seen."""
    job = Running(pool, "wait_for_file", {"path": str(tmp_path / "go")})
    for _ in range(5):
        os.kill(job.pid(), signal.SIGINT)
    time.sleep(0.05)
    (tmp_path / "go").touch()
    assert job.ended() is None and job.answer == {"pid": job.pid()}


def test_ctrl_c_during_the_start_of_a_child(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the milliseconds in which Python has not yet read that it is to be ignored."""
    real = subprocess.Popen

    def hit(*arguments: Any, **more: Any) -> Any:
        process = real(*arguments, **more)
        process.send_signal(signal.SIGINT)
        return process

    monkeypatch.setattr(subprocess, "Popen", hit)
    assert pool.run("echo", {})["pid"] in {child.pid for child in workers._children}
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set()), "Ctrl-C still works here"


def python(code: str, *arguments: object, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(nyala.__file__))}, **more,
    )  # fmt: skip


PARENT = """
import os, sys, time
from nyala.tablet.workers import WorkerPool
child, path, fork = sys.argv[1:]
pool = WorkerPool(command=[sys.executable, "-P", child])
def progress(said):
    if fork == "True" and not os.fork():
        time.sleep(60)
    print(said["pid"], flush=True)
pool.run("hold", {"path": path}, progress=progress)
"""


@pytest.mark.parametrize("fork", [False, True], ids=["alone", "while a forked copy of it lives on"])
def test_a_worker_does_not_outlive_its_parent(tmp_path: Path, fork: bool) -> None:
    """J3. A writer killed with -9: its compaction must not go on writing while another process opens the store."""
    lock = tmp_path / "lock"
    with python(PARENT, CHILD, lock, fork, start_new_session=True) as parent:
        assert parent.stdout is not None
        assert int(parent.stdout.readline()) > 0
        assert not can_lock(lock), "the job runs"
        parent.kill()
        parent.wait()
        begin_s = time.monotonic()
        assert until(lambda: can_lock(lock))
        # At once, not by the look at the parent's number that is the last resort.
        assert time.monotonic() - begin_s < _worker.PARENT_CHECK_S / 2
        if fork:
            os.killpg(parent.pid, signal.SIGKILL)


def test_an_idle_worker_does_not_outlive_its_parent(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from nyala.tablet.workers import WorkerPool
print(WorkerPool().run("ping", {})["pid"], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with python(code) as parent:
        assert parent.stdout is not None and parent.stderr is not None
        pid = int(parent.stdout.readline())
        # The end of its output: no process has the other end any more, the worker included.
        assert parent.stdout.read() == "" and parent.stderr.read() == ""

    def ended() -> bool:
        # Who adopts the orphans may be slow to wait for them.
        state = Path(f"/proc/{pid}/stat")
        return gone(pid) or (state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z")

    assert until(ended)


def test_a_program_that_never_closes_its_pools_ends_quietly(tmp_path: Path) -> None:
    """No warning of processes still running, one idle and one at work, and no wait for them."""
    code = """
import sys, threading
from nyala.tablet.workers import WorkerPool
WorkerPool().run("ping", {})
pool = WorkerPool(command=[sys.executable, "-P", sys.argv[1]])
threading.Thread(target=lambda: pool.run("hold", {"path": sys.argv[2]}), daemon=True).start()
while not pool._running:
    pass
"""
    with python(code, CHILD, tmp_path / "lock") as program:
        assert program.communicate(timeout=30) == ("", "") and program.returncode == 0


def test_a_users_script_is_not_run_again(tmp_path: Path) -> None:
    """`multiprocessing` would run it once more in each worker, unless its author knew to guard against that."""
    script = tmp_path / "script.py"
    script.write_text(
        "from nyala.tablet.workers import WorkerPool\n"
        "print('begun')\n"
        "pool = WorkerPool()\n"
        "pool.run('ping', {})\n"
        "pool.close()\n"
    )
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=60,
        env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(nyala.__file__))},
    )  # fmt: skip
    assert (run.stdout, run.stderr) == ("begun\n", "")


def test_a_dead_worker_raises_no_sigpipe() -> None:
    """J4. Programs whose output is piped to `head` let SIGPIPE end them; a worker's death must not."""
    code = f"""
import signal, sys
from nyala.errors import StorageError
from nyala.tablet.workers import WorkerPool
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
child = {HELLO + "os.close(0); time.sleep(1)"!r}
pool = WorkerPool(command=[sys.executable, "-P", "-c", child])
try:
    pool.run("ping", {{"much": "x" * (1 << 20)}})
except StorageError as error:
    print("exit code 0" in str(error))
pool.close()
"""
    with python(code) as program:
        assert program.communicate(timeout=30) == ("True\n", "") and program.returncode == 0


def test_a_forked_copy_leaves_the_workers_alone(pool: WorkerPool, tmp_path: Path) -> None:
    """Two processes on one wire would get each other's answers."""
    mine = pool.run("echo", {})["pid"]
    copy = os.fork()
    if not copy:
        code = 1
        try:
            try:
                pool.run("echo", {})
            except StorageError as error:
                code = 0 if "forked child" in str(error) else 2
            pool.close()
        finally:
            os._exit(code)
    assert os.waitpid(copy, 0)[1] == 0
    assert pool.run("echo", {})["pid"] == mine


# --- cancel, close, turns -----------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["event", "function"])
def test_a_cancelled_job_is_killed(pool: WorkerPool, tmp_path: Path, by: str) -> None:
    """Dropping a table, or Ctrl-C, does not wait for a compaction to end."""
    event = threading.Event()
    job = Running(pool, "hold", {"path": str(tmp_path / "lock")}, event if by == "event" else event.is_set)
    job.pid()
    event.set()
    assert isinstance(job.ended(), JobCancelled)
    assert gone(job.pid())
    assert pool.run("echo", {})["pid"] != job.pid()


def test_a_failure_to_take_progress_ends_the_job(pool: WorkerPool) -> None:
    """J1. Ctrl-C in the thread that waits is the same case: the rest of the answers must reach nobody."""

    def interrupted(fields: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pool.run("steps", {"count": 5}, progress=interrupted)
    assert not workers._children
    assert pool.run("echo", {"a": 2})["a"] == 2


def test_close_ends_what_runs_and_what_waits(pool: WorkerPool, tmp_path: Path) -> None:
    """Closing a store takes no longer because a compaction has just begun."""
    job = Running(pool, "hold", {"path": str(tmp_path / "lock")})
    pid = job.pid()
    second = Running(pool, "echo", {})
    assert until(lambda: len(pool._waiting) == 1)
    begin_s = time.monotonic()
    pool.close()
    assert time.monotonic() - begin_s < 5
    assert gone(pid)
    assert isinstance(job.ended(), JobCancelled) and isinstance(second.ended(), JobCancelled)
    pool.close()
    with pytest.raises(JobCancelled, match="closing"):
        pool.run("echo", {})


def test_many_callers_of_a_few_workers() -> None:
    """Each gets his own answer, under load."""
    pool = WorkerPool(size=2, command=COMMAND)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda n: pool.run("echo", {"n": n}), range(200)))
    assert [answer["n"] for answer in found] == list(range(200))
    assert len({answer["pid"] for answer in found}) <= 2
    pool.close()


def test_an_idle_worker_is_ended() -> None:
    """A program that writes once a day does not keep a second Python in memory."""
    clock = ManualClock()
    pool = WorkerPool(environment(clock), idle_s=60, command=COMMAND)
    pid = pool.run("echo", {})["pid"]
    clock.advance(59)
    assert pool.run("echo", {})["pid"] == pid
    clock.advance(59)
    assert not until(lambda: gone(pid), 0.1)
    clock.advance(2)
    assert until(lambda: gone(pid) and pool._reaper is None)
    assert pool.run("echo", {})["pid"] != pid
    pool.close()


# --- no worker can be had -----------------------------------------------------------------------------


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kinds of work for the calling thread."""

    def where(arguments: dict[str, Any], report: Report) -> dict[str, Any]:
        report({"at": 1})
        seen = [type(value).__name__ for value in arguments.values()]
        return {"pid": os.getpid(), "thread": threading.get_ident(), "seen": (seen,)}

    def fail(arguments: dict[str, Any], report: Report) -> dict[str, Any]:
        raise CorruptionError("bad", "/a", 1) if arguments["ours"] else KeyError("k")

    monkeypatch.setitem(_worker.HANDLERS, "where", where)
    monkeypatch.setitem(_worker.HANDLERS, "fail", fail)


def script(code: str) -> list[str]:
    return [sys.executable, "-P", "-c", code]


OTHER_VERSION = HELLO.replace(nyala.__version__, "99.0") + "sys.stdin.read()"


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(
    ("command", "why", "again"),
    [
        pytest.param(["/no/such/python"], "No such file", True, id="the program is gone"),
        pytest.param([os.path.dirname(__file__)], "Permission denied", True, id="not allowed"),
        pytest.param(
            script("import no_such"), "exit code 1: ModuleNotFoundError", False, id="it cannot import"
        ),
        pytest.param(script("pass"), "exit code 0", False, id="some other program"),
        pytest.param(
            script("import os; os.write(0, b'Hi')"), "a frame begins", False, id="it speaks otherwise"
        ),
        pytest.param(script(OTHER_VERSION), "99.0.*restart the program", False, id="upgraded meanwhile"),
        pytest.param(
            script("import os; os.kill(os.getpid(), 9)"), "killed by SIGKILL", True, id="killed at its start"
        ),
    ],
)
def test_without_workers_the_work_is_done_here(
    pool: WorkerPool, caplog: pytest.LogCaptureFixture, command: list[str], why: str, again: bool
) -> None:
    """Slower, with one warning, and the same results; what is no worker is not started again and again."""
    pool._command = command
    seen: list[dict[str, Any]] = []
    for _ in range(2):
        found = pool.run("where", {"pair": (1, 2)}, progress=seen.append)
        assert found == {"pid": os.getpid(), "thread": threading.get_ident(), "seen": [["list"]]}
    assert seen == [{"at": 1}] * 2
    (record,) = (record for record in caplog.records if record.levelno >= logging.WARNING)
    assert (record.name, record.levelno) == ("nyala.worker", logging.WARNING)
    assert "no worker process" in record.getMessage()
    assert re.search(why, record.getMessage())
    pool._command = COMMAND
    assert (pool.run("ping", {})["pid"] != os.getpid()) is again


@pytest.mark.usefixtures("local")
def test_no_more_processes_allowed(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system says so for a while; later there are workers again."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        assert pool.run("where", {})["pid"] == os.getpid()
    assert pool.run("echo", {})["pid"] != os.getpid()


@pytest.mark.usefixtures("local")
def test_a_program_that_says_nothing_is_ended() -> None:
    """Whatever it is, the compaction does not wait for it for ever."""
    clock = ManualClock()
    pool = WorkerPool(environment(clock), command=script("import time; time.sleep(60)"))
    job = Running(pool, "where", {})
    assert until(lambda: bool(workers._children))
    (child,) = workers._children
    time.sleep(0.1)
    clock.advance(workers._START_TIMEOUT_S + 1)
    assert job.ended() is None and job.answer is not None and job.answer["pid"] == os.getpid()
    assert gone(child.pid)
    pool.close()


# --- the wire -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        pytest.param("b'garbage, and then nothing'", "a frame begins with", id="garbage"),
        pytest.param("b'N?'", "a frame begins with", id="two bytes"),
        pytest.param("MAGIC + b'\\xff' * 4", "above the limit", id="a frame of 4 GB"),
        pytest.param("MAGIC + b'\\x02\\0\\0\\0{]'", "the JSON is none", id="no JSON"),
        pytest.param("MAGIC + b'\\x02\\0\\0\\0[]'", "the JSON is no object", id="a list"),
        pytest.param("encode_frame({'strange': 1})", "a message of", id="no such message"),
        pytest.param("encode_frame({'answer': {}, 'job': 7})", "of job 7", id="the answer of another job"),
    ],
)
def test_nonsense_is_an_error_and_no_hang(pool: WorkerPool, sent: str, said: str) -> None:
    """K2. Something in the child wrote where it should not: it is ended, though it would go on for ever."""
    pool._command = script(HELLO + f"os.read(0, 1 << 16); os.write(0, {sent}); time.sleep(60)")
    begin_s = time.monotonic()
    with pytest.raises(StorageError, match=said):
        pool.run("ping", {})
    assert time.monotonic() - begin_s < 20 and not workers._children


def test_a_message_that_is_too_large_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_protocol, "FRAME_MAX_BYTES", 20)
    assert FrameDecoder().feed(encode_frame({"a": "x" * 12})) == [{"a": "x" * 12}]
    with pytest.raises(BrokenFrame, match="21 bytes"):
        encode_frame({"a": "x" * 13})
