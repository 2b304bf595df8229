"""Worker processes: results and errors arrive, and an ended process leaves nothing behind."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
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
from nyala.env import MissingFileError
from nyala.errors import CorruptionError, Error, StorageError
from nyala.tablet.workers import process as workers
from nyala.tablet.workers.process import JobCancelled, NoWorkerError, Worker
from nyala.tablet.workers.protocol import JobFailedError, decode_error, encode_error

CHILD = Path(__file__).parent / "worker_child.py"
COMMAND = [sys.executable, "-P", str(CHILD)]
HELLO = f"""
import os, sys, time
from nyala.tablet.workers.protocol import encode
os.write(0, encode({{"answer": {{"nyala": {nyala.__version__!r}}}}}))
"""


def wait_until(condition: Callable[[], bool], timeout_s: float = 20) -> bool:
    end_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.005)
    return True


def gone(pid: int) -> bool:
    """Return whether the child process has ended, and is not a zombie."""
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


def descriptors() -> dict[str, str]:
    """Return the open descriptors of this process with their targets."""
    found: dict[str, str] = {}
    for descriptor in os.listdir("/dev/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            found[descriptor] = os.readlink(f"/dev/fd/{descriptor}")
    return found


@pytest.fixture
def pool() -> Iterator[Worker]:
    """A worker. After the test, its process, descriptors and threads must be gone."""
    before = descriptors().keys()
    threads = set(threading.enumerate())
    pool = Worker(COMMAND)
    yield pool
    pool.close()
    assert not workers._children
    wait_until(
        lambda: descriptors().keys() <= before, 5
    )  # threads of other tests may open files for a short time
    assert {d: to for d, to in descriptors().items() if d not in before} == {}
    assert set(threading.enumerate()) <= threads  # threads of other tests may have ended


class Running:
    """A job that runs in a thread."""

    def __init__(self, pool: Worker, kind: str, arguments: dict[str, Any], cancelled: Any = None) -> None:
        self.reports: list[dict[str, Any]] = []
        self.answer: dict[str, Any] | None = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(pool, kind, arguments, cancelled))
        self.thread.start()

    def _run(self, pool: Worker, kind: str, arguments: dict[str, Any], cancelled: Any) -> None:
        try:
            self.answer = pool.run(kind, arguments, cancelled, self.reports.append)
        except BaseException as error:
            self.error = error

    def pid(self) -> int:
        """Return the process id of the child, once it runs."""
        assert wait_until(lambda: bool(self.reports)), self.error
        return int(self.reports[0]["pid"])

    def ended(self) -> BaseException | None:
        self.thread.join(20)
        assert not self.thread.is_alive()
        return self.error


# --- answers ------------------------------------------------------------------------------------------


def test_the_real_worker_answers() -> None:
    """It has the same version of Nyala, another process id, and one Arrow thread."""
    pool = Worker()
    first, second = pool.run("ping", {}), pool.run("ping", {})
    pool.close()
    assert first == second, "the idle process was not used again"
    assert first["pid"] != os.getpid() and gone(first["pid"])
    assert (first["nyala"], first["arrow_threads"]) == (nyala.__version__, 1)


def test_progress_arrives_in_order(pool: Worker) -> None:
    seen: list[dict[str, Any]] = []
    assert pool.run("steps", {"count": 1000}, progress=seen.append) == {"done": 1000}
    assert seen == [{"step": step} for step in range(1000)]
    assert pool.run("steps", {"count": 3}) == {"done": 3}


def test_output_of_the_worker_is_logged(
    pool: Worker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output of libraries or C code must not break the messages. Standard input is empty."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    assert pool.run("noise", {}) == {"stdin": ""}
    assert wait_until(lambda: len(caplog.records) == 4)
    assert sorted(record.getMessage().split(": ")[1] for record in caplog.records) == [
        "from a program", "printed", "to stderr", "written",
    ]  # fmt: skip
    assert {(record.name, record.levelno) for record in caplog.records} == {("nyala.worker", logging.WARNING)}


def test_endless_output_does_not_block_a_job(pool: Worker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    assert pool.run("flood", {"mb": 20}) == {}
    assert pool.run("echo", {"a": 1})["a"] == 1


def test_a_child_starts_in_any_folder(pool: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file json.py of the user replaces no module, and the child has the parent's sys.path."""
    for name in ("json.py", "nyala.py", "logging.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong module')")
    (tmp_path / "only_here.py").write_text("VALUE = 5")
    monkeypatch.chdir(tmp_path)
    source = os.path.dirname(os.path.dirname(nyala.__file__))
    monkeypatch.setenv("PYTHONPATH", os.path.relpath(source, tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    run_child = f"exec(open({str(CHILD)!r}).read())"
    pool._command = [
        word.replace("from nyala._worker import main; main()", run_child) for word in workers._command()
    ]
    found = pool.run("load", {"module": "only_here"})
    assert (found["value"], found["cwd"]) == (5, "/")
    assert found["nice"] >= min(os.nice(0) + _worker.NICENESS, 19)


# --- errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name.endswith("Error")])
def test_errors_of_nyala_keep_their_class(name: str) -> None:
    sent = getattr(errors, name)("what, where, what to do")
    got = decode_error("merge", encode_error(sent))
    assert type(got) is type(sent) and str(got) == str(sent)
    assert isinstance(got, Error) and got.applied == 0


def test_errors_of_nyala_keep_their_fields(pool: Worker) -> None:
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
    assert len(workers._children) == 1, "an error of the job does not end the process"


@pytest.mark.parametrize(("how", "message"), [("key", "KeyError: 'left'"), ("exit", "SystemExit: 3")])
def test_other_exceptions_have_the_traceback_of_the_worker(pool: Worker, how: str, message: str) -> None:
    with pytest.raises(JobFailedError, match=message) as failed:
        pool.run("fail", {"how": how})
    assert "worker_child.py" in failed.value.__notes__[0] and "in fail" in failed.value.__notes__[0]
    assert pool.run("echo", {})


# --- a child that dies, a parent that dies ------------------------------------------------------------


def test_a_child_killed_during_a_job(pool: Worker, tmp_path: Path) -> None:
    """The job fails, and the next one runs in a new child."""
    job = Running(pool, "hold", {"path": str(tmp_path / "lock")})
    os.kill(job.pid(), signal.SIGKILL)
    error = job.ended()
    assert isinstance(error, StorageError) and "killed by signal 9" in str(error) and "memory" in str(error)
    assert gone(job.pid())
    assert pool.run("echo", {})["pid"] != job.pid()


def test_a_child_killed_while_idle_is_replaced(pool: Worker) -> None:
    """If an idle worker is killed, the next job starts another one and succeeds."""
    first = pool.run("echo", {})["pid"]
    os.kill(first, signal.SIGKILL)
    assert wait_until(lambda: gone(first))
    assert pool.run("echo", {})["pid"] != first


def test_the_worker_ignores_ctrl_c(pool: Worker, tmp_path: Path) -> None:
    """A terminal sends the signal to the whole process group."""
    job = Running(pool, "wait_for_file", {"path": str(tmp_path / "go")})
    for _ in range(5):
        os.kill(job.pid(), signal.SIGINT)
    time.sleep(0.05)
    (tmp_path / "go").touch()
    assert job.ended() is None and job.answer == {"pid": job.pid()}


def python(code: str, *arguments: object, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(nyala.__file__))}, **more,
    )  # fmt: skip


PARENT = """
import os, sys, time
from nyala.tablet.workers.process import Worker
child, path, fork = sys.argv[1:]
pool = Worker([sys.executable, "-P", child])
def progress(message):
    if fork == "True" and not os.fork():
        time.sleep(60)
    print(message["pid"], flush=True)
pool.run("hold", {"path": path}, progress=progress)
"""


@pytest.mark.parametrize("fork", [False, True], ids=["alone", "while a forked copy of it lives on"])
def test_a_worker_does_not_outlive_its_parent(tmp_path: Path, fork: bool) -> None:
    """J3. If a writer is killed, its compaction must not write while another process opens the store."""
    lock = tmp_path / "lock"
    with python(PARENT, CHILD, lock, fork, start_new_session=True) as parent:
        assert parent.stdout is not None
        assert int(parent.stdout.readline()) > 0
        assert not can_lock(lock), "the job runs"
        parent.kill()
        parent.wait()
        assert wait_until(lambda: can_lock(lock))
        if fork:
            os.killpg(parent.pid, signal.SIGKILL)


def test_an_idle_worker_does_not_outlive_its_parent(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from nyala.tablet.workers.process import Worker
print(Worker().run("ping", {})["pid"], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with python(code) as parent:
        assert parent.stdout is not None and parent.stderr is not None
        pid = int(parent.stdout.readline())
        # End of file: no process has the other end of the pipe open, not even the worker.
        assert parent.stdout.read() == "" and parent.stderr.read() == ""

    def ended() -> bool:
        # The process that inherits the child may wait for it late.
        state = Path(f"/proc/{pid}/stat")
        return gone(pid) or (state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z")

    assert wait_until(ended)


def test_a_program_that_closes_no_worker_ends_at_once(tmp_path: Path) -> None:
    """It prints no warning, although one worker is idle and another one is working."""
    code = """
import sys, threading
from nyala.tablet.workers.process import Worker
Worker().run("ping", {})
pool = Worker([sys.executable, "-P", sys.argv[1]])
begun = threading.Event()
job = lambda: pool.run("hold", {"path": sys.argv[2]}, progress=lambda message: begun.set())
threading.Thread(target=job, daemon=True).start()
begun.wait()
"""
    with python(code, CHILD, tmp_path / "lock") as program:
        assert program.communicate(timeout=30) == ("", "") and program.returncode == 0


def test_a_worker_does_not_run_the_users_script(tmp_path: Path) -> None:
    """`multiprocessing` would run it in each worker, unless the script guards against this."""
    script = tmp_path / "script.py"
    script.write_text(
        "from nyala.tablet.workers.process import Worker\n"
        "print('begun')\n"
        "pool = Worker()\n"
        "pool.run('ping', {})\n"
        "pool.close()\n"
    )
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=60,
        env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(nyala.__file__))},
    )  # fmt: skip
    assert (run.stdout, run.stderr) == ("begun\n", "")


def test_a_dead_worker_raises_no_sigpipe() -> None:
    """J4.

    Programs whose output is piped to `head` let SIGPIPE end them, so a worker's death must not
    raise it.
    """
    code = f"""
import signal, sys
from nyala.errors import StorageError
from nyala.tablet.workers.process import Worker
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
child = {HELLO + "os.close(0); time.sleep(1)"!r}
pool = Worker([sys.executable, "-P", "-c", child])
try:
    pool.run("ping", {{"much": "x" * (1 << 20)}})
except StorageError as error:
    print("nothing was changed" in str(error))
pool.close()
"""
    with python(code) as program:
        assert program.communicate(timeout=30) == ("True\n", "") and program.returncode == 0


def test_a_forked_copy_does_not_use_the_worker(pool: Worker, tmp_path: Path) -> None:
    """A forked process gets an error, because two processes must not read from one socket."""
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


# --- cancelled jobs, close, shared workers ------------------------------------------------------------


def test_a_cancelled_job_is_killed(pool: Worker, tmp_path: Path) -> None:
    """A cancelled job is killed, so a drop of a table, or Ctrl-C, need not wait for a compaction."""
    event = threading.Event()
    job = Running(pool, "hold", {"path": str(tmp_path / "lock")}, event.is_set)
    job.pid()
    event.set()
    assert isinstance(job.ended(), JobCancelled)
    assert gone(job.pid())
    assert pool.run("echo", {})["pid"] != job.pid()


def test_an_exception_of_progress_ends_the_job(pool: Worker) -> None:
    """J1: a later job must not get messages of this one. The same for Ctrl-C in the waiting thread."""

    def interrupted(fields: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pool.run("steps", {"count": 5}, progress=interrupted)
    assert not workers._children
    assert pool.run("echo", {"a": 2})["a"] == 2


def test_close_cancels_running_and_waiting_jobs(pool: Worker, tmp_path: Path) -> None:
    job = Running(pool, "hold", {"path": str(tmp_path / "lock")})
    pid = job.pid()
    second = Running(pool, "echo", {})
    pool.close()
    assert gone(pid)
    assert isinstance(job.ended(), JobCancelled) and isinstance(second.ended(), JobCancelled)
    pool.close()
    with pytest.raises(JobCancelled, match="closing"):
        pool.run("echo", {})


def test_threads_can_share_a_worker(pool: Worker) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda n: pool.run("echo", {"n": n}), range(200)))
    assert [answer["n"] for answer in found] == list(range(200))
    assert len({answer["pid"] for answer in found}) == 1


def test_an_idle_worker_ends_and_the_next_job_starts_another() -> None:
    """An idle worker ends after a time and leaves no zombie process."""
    code = f"from nyala import _worker; _worker.IDLE_S = 0.2; exec(open({str(CHILD)!r}).read())"
    pool = Worker(script(code))
    pid = pool.run("echo", {})["pid"]
    assert wait_until(lambda: gone(pid))
    assert pool.run("echo", {})["pid"] != pid
    pool.close()


# --- no worker can be started -------------------------------------------------------------------------


def script(code: str) -> list[str]:
    return [sys.executable, "-P", "-c", code]


OTHER_VERSION = HELLO.replace(nyala.__version__, "99.0") + "sys.stdin.read()"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        pytest.param(["/no/such/python"], "No such file", id="the program is gone"),
        pytest.param([os.path.dirname(__file__)], "Permission denied", id="not allowed"),
        pytest.param(script("import no_such"), "exit code 1: ModuleNotFoundError", id="it cannot import"),
        pytest.param(script("pass"), "exit code 0", id="some other program"),
        pytest.param(
            script("import os; os.write(0, b'Hi\\n')"),
            r"the worker sent an invalid message: b'Hi'",
            id="it speaks otherwise",
        ),
        pytest.param(script(OTHER_VERSION), "99.0.*restart the program", id="upgraded meanwhile"),
        pytest.param(
            script("import os; os.kill(os.getpid(), 9)"), "killed by signal 9", id="killed at its start"
        ),
    ],
)
def test_a_worker_that_cannot_start_raises_its_own_error(pool: Worker, command: list[str], why: str) -> None:
    """The caller then runs the job itself. A later job tries again."""
    pool._command = command
    with pytest.raises(NoWorkerError, match=f"no worker process can be started: .*{why}"):
        pool.run("echo", {})
    pool._command = COMMAND
    assert pool.run("echo", {"n": 1})["n"] == 1


def test_a_program_that_sends_nothing_is_ended(pool: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_START_TIMEOUT_S", 0.1)
    monkeypatch.setattr(workers, "_END_S", 0.1)
    pool._command = script("import time; time.sleep(60)")
    with pytest.raises(NoWorkerError, match=r"the worker process gave no answer within 0\.1 s"):
        pool.run("echo", {})


# --- messages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    ["b'garbage\\n'", "b'[]\\n'", "encode({'strange': 1})"],
    ids=["garbage", "a list", "no such message"],
)
def test_a_line_that_is_not_a_message_ends_the_child(
    pool: Worker, monkeypatch: pytest.MonkeyPatch, sent: str
) -> None:
    monkeypatch.setattr(workers, "_END_S", 0.1)
    pool._command = script(HELLO + f"os.read(0, 1 << 16); os.write(0, {sent}); time.sleep(60)")
    with pytest.raises(StorageError, match="the worker sent an invalid message: b'"):
        pool.run("ping", {})
    assert not workers._children


def test_the_length_of_a_line_is_limited(pool: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "LINE_MAX_BYTES", 1 << 20)
    pool._command = script(HELLO + "os.read(0, 1 << 16)\nwhile True: os.write(0, b'x' * 65536)")
    with pytest.raises(StorageError, match="nothing was changed"):
        pool.run("ping", {})
