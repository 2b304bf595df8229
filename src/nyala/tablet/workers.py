"""Heavy work in processes of its own: the parent's side. The child's is `nyala._worker`.

    run(kind, arguments)           blocks its thread until the answer is there
      a turn                       at most `size` jobs at a time, first come, first served
      a child                      an idle one, or a new one: `python -P -m nyala._worker`
      request ──►                  one thread, one selector: sends, takes progress and answer, and empties the child's
      ◄── progress, answer         output into the logger "nyala.worker", so no pipe can ever be full
      idle                         kept for `idle_s`, then ended by a thread that lives only as long as somebody is idle

A worker process keeps the user's threads free of the interpreter's lock, which a merge of millions of rows would
otherwise hold again and again. Not `multiprocessing`: spawn would run the user's script once more, fork would copy
locks, SQLite and threads. The pool does not know what the jobs do; the kinds are `nyala._worker.HANDLERS`.

Invariants
    J1  No job ever gets the answer of another: it has the job's number, and after anything but a whole answer (an
        error of the job is one) the child is killed.
    J2  Every child that was started is waited for: no zombies.
    J3  A child ends when its parent does, however that ends: it sees the socket close. So no other process may keep
        the parent's end of it: it is not inherited, and a forked copy of the parent closes it at once.
    J4  Nothing of this process is at stake: the child's output goes to the log, the parent's terminal and signals
        are not the child's, and a child that is gone cannot raise SIGPIPE here.

Where no process can be started (no `sys.executable`, a frozen program, Python inside another program, no more
processes or memory allowed) the handler runs in the calling thread, with one warning: slower for the others, never
wrong. There, `report` is where a cancelled job ends.

Threads: any. After a fork the copy may only be closed.
Cost: a first `run` waits for the start of Python, 0.03 s, and for the imports of its handler; later ones 0.1 ms.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import selectors
import signal
import site
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import nyala.errors
from nyala.env import SYSTEM, Env
from nyala.errors import Error, StorageError
from nyala.tablet.worker_protocol import (
    BrokenFrame,
    FrameDecoder,
    JobFailedError,
    Report,
    decode_error,
    encode_frame,
    version,
)

if TYPE_CHECKING:
    import io

__all__ = ["JobCancelled", "JobFailedError", "WorkerPool"]

logger = logging.getLogger("nyala.worker")

Cancelled: TypeAlias = "threading.Event | Callable[[], bool]"

# A cancellation is seen after this long at the latest.
_POLL_S: Final = 0.05
# The start takes 0.03 s; a cold disk under load takes seconds. What says nothing for so long is no worker.
_START_TIMEOUT_S: Final = 60.0
_END_TIMEOUT_S: Final = 10.0
_READ_BYTES: Final = 1 << 16
# What lies in a pipe at most (Linux: 64 KiB, or up to 1 MiB); who prints without end does not keep us from `check`.
_READS_MAX: Final = 16
_LINE_MAX_BYTES: Final = 8 << 10
_LINES_KEPT: Final = 20
# A worker is one thread's worth of work: Arrow, NumPy's BLAS and Blosc would each take all cores.
_THREADS: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "BLOSC_NTHREADS": "1"}
# macOS has this option of a socket, without a name in Python; Linux has a flag of `send`.
_SO_NOSIGPIPE: Final = 0x1022
_SEND_FLAGS: Final = getattr(socket, "MSG_NOSIGNAL", 0)


class JobCancelled(Exception):
    """The job was given up because its caller asked for that, or because the pool was closed."""


class _ChildEnded(Exception):
    """The child is gone before it has answered."""


class _NoWorker(Exception):
    """A worker cannot be had; `for_good` when it is of no use to try again."""

    def __init__(self, reason: str, for_good: bool) -> None:
        super().__init__(reason)
        self.for_good = for_good


class WorkerPool:
    """Up to `size` worker processes, started when there is work and ended when there is none for `idle_s`.

    Takes from `env` the clock only: a child has the system's files and the system's clock.
    `command`: what to start instead of `python -m nyala._worker`; it calls `nyala._worker.main`.
    """

    def __init__(
        self,
        env: Env = SYSTEM,
        size: int = 1,
        idle_s: float = 60.0,
        *,
        command: Sequence[str] | None = None,
    ) -> None:
        assert size > 0, "a pool without workers"
        self._clock = env.clock
        self._size = size
        self._idle_s = idle_s
        self._command = None if command is None else list(command)
        self._pid = os.getpid()
        # Entered through the lock, never through the condition: Ctrl-C cannot come in between and leave it taken.
        self._guard = threading.RLock()
        self._condition = threading.Condition(self._guard)
        self._closed = False
        self._numbers = itertools.count(1)
        self._waiting: deque[object] = deque()
        self._running: set[object] = set()  # the turns of jobs
        self._idle: list[_Child] = []  # the one idle for longest first
        self._reaper: threading.Thread | None = None
        self._stop = threading.Event()
        self._unusable = ""  # why no worker is to be tried any more
        self._warned = False

    def run(
        self,
        kind: str,
        arguments: Mapping[str, Any],
        cancelled: Cancelled | None = None,
        progress: Report | None = None,
    ) -> dict[str, Any]:
        """Have a worker carry out the job; returns its answer. Blocks the calling thread, for its turn as well.

        arguments: fit for JSON. Paths absolute: a worker's folder is the root.
        cancelled: an event, or a function asked about every 50 ms from this thread; once true the child is killed.
        progress:  called in this thread with what the handler reports.
        Raises:    what the handler raised, if it is a `nyala.Error`; JobFailedError for any other exception of it;
                   StorageError when the process died or spoke nonsense; JobCancelled; TypeError for arguments that
                   are not fit for JSON. In each case the job may have left files that nobody names.
        """
        self._check_process()
        folders = [os.path.abspath(folder) for folder in sys.path if folder]
        job = next(self._numbers)
        request = encode_frame({"job": job, "kind": kind, "arguments": dict(arguments), "path": folders})
        asked = cancelled.is_set if isinstance(cancelled, threading.Event) else cancelled

        def check() -> None:
            if self._closed:
                raise JobCancelled(f"the work {kind!r} was given up: the store is closing")
            if asked is not None and asked():
                raise JobCancelled(f"the work {kind!r} was cancelled")

        with self._turn(check):
            try:
                child = self._take(check)
            except _NoWorker as reason:
                self._warn(str(reason))
                return _run_here(kind, arguments, check, progress)
            try:
                message = child.exchange(job, request, check, progress)
            except _ChildEnded:
                child.end()
                raise child.death(kind) from None
            except BrokenFrame as error:
                child.kill()
                raise StorageError(
                    f"the worker process {child.pid} sent what is no answer while it did {kind!r} ({error}), and was "
                    "ended; nothing was changed: try again, and report it if it happens again"
                ) from error
            except BaseException:  # J1: cancelled, Ctrl-C, a failure of `progress`
                child.kill()
                raise
            self._keep(child)
        if "error" in message:
            raise decode_error(kind, message["error"])
        answer = message["answer"]
        assert isinstance(answer, dict), f"the handler of {kind!r} answers with a {type(answer).__name__}"
        return answer

    def close(self) -> None:
        """Kill the running jobs (their callers get JobCancelled), end all children, and wait for that.

        May be called twice, and in a forked copy of the process, where it does nothing. Not for `progress` to call.
        """
        if os.getpid() != self._pid:
            return
        with self._guard:
            self._closed = True  # what runs sees it within `_POLL_S`
            idle, self._idle = self._idle, []
            reaper = self._reaper
            self._condition.notify_all()
        self._stop.set()
        for child in idle:
            child.end()
        with self._guard:
            while self._running:
                self._condition.wait()
        if reaper is not None:
            reaper.join()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise StorageError(
                f"these worker processes belong to process {self._pid} and this is its forked child: connect() in "
                "the child, with read_only=True while the parent writes"
            )

    # ---------------------------------------------------------------------------------------- turns, children

    @contextlib.contextmanager
    def _turn(self, check: Callable[[], None]) -> Iterator[None]:
        # One `try` around all of it: wherever Ctrl-C comes, the turn is given back.
        ticket = object()
        try:
            with self._guard:
                self._waiting.append(ticket)
                check()
                while len(self._running) >= self._size or self._waiting[0] is not ticket:
                    self._condition.wait(_POLL_S)
                    check()
                self._running.add(ticket)
                self._waiting.remove(ticket)
                self._condition.notify_all()
            yield
        finally:
            with self._guard:
                self._running.discard(ticket)
                if ticket in self._waiting:
                    self._waiting.remove(ticket)
                self._condition.notify_all()

    def _take(self, check: Callable[[], None]) -> _Child:
        """An idle child that is alive, or a new one that has said hello. Raises: _NoWorker."""
        while True:
            with self._guard:
                if not self._idle:
                    break
                child = self._idle.pop()
            if child.alive():
                return child
            child.end()
        if self._unusable:
            raise _NoWorker(self._unusable, for_good=True)
        try:
            return self._start(check)
        except _NoWorker as reason:
            if reason.for_good:
                self._unusable = str(reason)
            raise

    def _start(self, check: Callable[[], None]) -> _Child:
        child = _Child(self._command or _command())
        deadline_s = self._clock.monotonic_s() + _START_TIMEOUT_S

        def check_start() -> None:
            check()
            if self._clock.monotonic_s() > deadline_s:
                raise TimeoutError(f"it said nothing for {_START_TIMEOUT_S:g} s")

        try:
            hello = child.exchange(None, b"", check_start, None).get("hello")
            found = hello.get("nyala") if isinstance(hello, dict) else None
            if found != version():
                raise BrokenFrame(f"it runs Nyala {found} and this process {version()}: restart the program")
        except _ChildEnded:
            child.end()
            # A signal: somebody killed it, or memory is short, and the next may live.
            killed = child.returncode is not None and child.returncode < 0
            raise _NoWorker(child.how_it_ended(), for_good=not killed) from None
        except (BrokenFrame, TimeoutError) as error:
            # Not a Python at all, maybe: who knows what would be started again and again.
            child.kill()
            raise _NoWorker(str(error), for_good=True) from error
        except BaseException:
            child.kill()
            raise
        child.talkative = True
        return child

    def _keep(self, child: _Child) -> None:
        """Keep a child that has answered for the next job."""
        with self._guard:
            kept = not self._closed
            if kept:
                child.idle_since_s = self._clock.monotonic_s()
                self._idle.append(child)
                if self._reaper is None:
                    reaper = threading.Thread(target=self._reap, name="nyala-worker-reaper", daemon=True)
                    try:
                        reaper.start()
                        self._reaper = reaper
                    except RuntimeError:  # no more threads
                        self._idle.remove(child)
                        kept = False
        if not kept:
            child.end()

    def _reap(self) -> None:
        """End the children that have been idle for `idle_s`; return when there are none left."""
        while True:
            with self._guard:
                if not self._idle:
                    self._reaper = None
                    return
                left_s = self._idle[0].idle_since_s + self._idle_s - self._clock.monotonic_s()
                due = self._idle.pop(0) if left_s <= 0 else None
            if due is None:
                self._clock.wait(self._stop, left_s)
            else:
                due.end()

    def _warn(self, reason: str) -> None:
        with self._guard:
            warned, self._warned = self._warned, True
        if not warned:
            logger.warning(
                "no worker process can be had, so background work shares this process: all is well, but queries and "
                "writes may be slower while it runs (%s)",
                reason,
            )


def _run_here(
    kind: str, arguments: Mapping[str, Any], check: Callable[[], None], progress: Report | None
) -> dict[str, Any]:
    """The job in this thread; arguments and answer pass through JSON all the same."""
    from nyala._worker import HANDLERS

    def report(fields: dict[str, Any]) -> None:
        check()
        if progress is not None:
            progress(fields)

    try:
        answer = HANDLERS[kind](json.loads(json.dumps(dict(arguments))), report)
        result = json.loads(json.dumps(answer))
    except (Error, JobCancelled, MemoryError):
        raise
    except Exception as error:
        raise JobFailedError(f"the work {kind!r} failed: {type(error).__name__}: {error}") from error
    assert isinstance(result, dict), f"the handler of {kind!r} answers with a {type(answer).__name__}"
    return result


# --- one child --------------------------------------------------------------------------------------


class _Child:
    """A worker process and the two ends of its wires. For one thread at a time."""

    def __init__(self, command: Sequence[str]) -> None:
        """Raises: _NoWorker when the system does not start it."""
        self.idle_since_s = 0.0
        self.talkative = False  # whether its output is for the user: not before it is known to be a worker
        self._decoder = FrameDecoder()
        self._line = b""
        self._last_lines: deque[str] = deque(maxlen=_LINES_KEPT)
        try:
            self._socket, theirs = socket.socketpair()
            try:
                if sys.platform == "darwin":
                    self._socket.setsockopt(socket.SOL_SOCKET, _SO_NOSIGPIPE, 1)
                self._socket.setblocking(False)
                self._process = _popen(command, theirs)
            except BaseException:
                self._socket.close()
                raise
            finally:
                theirs.close()
        except OSError as error:
            raise _NoWorker(f"{command[0]!r} does not start: {error}", for_good=False) from error
        self._output = cast("io.FileIO", self._process.stdout)  # unbuffered, so it is the pipe itself
        os.set_blocking(self._output.fileno(), False)
        self.pid = self._process.pid
        _children.add(self)

    @property
    def returncode(self) -> int | None:
        """As `subprocess` has it: negative for a signal; None before `end` or `kill`, or when these waited in vain."""
        return self._process.returncode

    def alive(self) -> bool:
        return self._process.poll() is None

    def exchange(
        self, job: int | None, request: bytes, check: Callable[[], None], progress: Report | None
    ) -> dict[str, Any]:
        """Send `request` and return the first message that is no progress; `job` is None for the hello.

        Raises: _ChildEnded, BrokenFrame, what `check` raises (it is called every `_POLL_S`) or `progress`.
        """
        unsent = memoryview(request)
        with selectors.PollSelector() as selector:
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            selector.register(self._socket, both if unsent else selectors.EVENT_READ)
            selector.register(self._output, selectors.EVENT_READ)
            while True:
                check()
                ready = {key.fd: mask for key, mask in selector.select(_POLL_S)}
                if not ready and not self.alive():
                    raise _ChildEnded  # somebody else keeps its end of the socket open
                # What was printed before the answer was sent is read before the answer.
                if self._output.fileno() in ready and not self._read_output():
                    selector.unregister(self._output)
                mask = ready.get(self._socket.fileno(), 0)
                if mask & selectors.EVENT_WRITE:
                    unsent = self._send(unsent)
                    if not unsent:
                        selector.modify(self._socket, selectors.EVENT_READ)
                for message in self._receive() if mask & selectors.EVENT_READ else ():
                    if "progress" in message:
                        # A thread that a handler left behind may still tell of an earlier job.
                        if progress is not None and message.get("job") == job:
                            progress(message["progress"])
                        continue
                    if message.keys().isdisjoint(("answer", "error") if job else ("hello",)):
                        raise BrokenFrame(f"a message of {sorted(message)}")
                    if message.get("job") != job:  # J1
                        raise BrokenFrame(f"an answer of job {message.get('job')} to job {job}")
                    return message

    def _send(self, part: memoryview) -> memoryview:
        """What is left to send."""
        try:
            return part[self._socket.send(part, _SEND_FLAGS) :]
        except (BlockingIOError, InterruptedError):
            return part
        except OSError:
            return part[:0]  # it is gone; reading tells what it said before

    def _receive(self) -> list[dict[str, Any]]:
        try:
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            data = b""
        if not data:
            raise _ChildEnded
        return self._decoder.feed(data)

    def _read_output(self) -> bool:
        """Log what the child has printed up to now; False at the end of it."""
        for _ in range(_READS_MAX):
            try:
                data = self._output.read(_READ_BYTES)
            except OSError:
                data = b""
            if data is None:
                break
            *lines, self._line = (self._line + data).split(b"\n")
            if self._line and (not data or len(self._line) > _LINE_MAX_BYTES):
                lines.append(self._line)
                self._line = b""
            for line in lines:
                text = line[:_LINE_MAX_BYTES].decode(errors="replace").rstrip()
                if text:
                    self._last_lines.append(text)
                    level = logging.WARNING if self.talkative else logging.DEBUG
                    logger.log(level, "process %d: %s", self.pid, text)
            if not data:
                return False
        return True

    # ---------------------------------------------------------------------------------------- the end

    def end(self) -> None:
        """Let it end: it does so at once when the socket is closed. Waits for it (J2); may be called twice."""
        self._socket.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._finish()

    def kill(self) -> None:
        """End it whatever it does. Waits for it (J2)."""
        self._process.kill()
        self._finish()

    def _finish(self) -> None:
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:  # it hangs in the system, on a dead network disk maybe
            logger.warning("process %d was killed and does not end", self.pid)
        if not self._output.closed:
            self._read_output()
        self._socket.close()
        self._output.close()
        _children.discard(self)

    def how_it_ended(self) -> str:
        """For a sentence: "ended with exit code 1: its last words"."""
        code = self.returncode
        if code is None:
            how = "does not end"
        elif code < 0:
            try:
                how = f"was killed by {signal.Signals(-code).name}"
            except ValueError:  # a real-time signal
                how = f"was killed by signal {-code}"
        else:
            how = f"ended with exit code {code}"
        return f"the worker process {self.pid} {how}" + (
            f": {self._last_lines[-1]}" if self._last_lines else ""
        )

    def death(self, kind: str) -> StorageError:
        """The error of the job that the child was at when it ended."""
        advice = (
            "the system kills so when memory is short: end what else uses it, or give the machine more"
            if self.returncode == -signal.SIGKILL
            else "if it happens again, its last words are in the log 'nyala.worker'"
        )
        return StorageError(
            f"{self.how_it_ended()}, while it did {kind!r}; nothing was changed, and it can be tried again. {advice}"
        )

    def forget(self) -> None:
        """In a forked copy of the parent: the child is none of its own (J3)."""
        self._socket.close()
        self._output.close()
        self._process.returncode = 0  # or its end would be waited for, and missed, when this is collected


def _popen(command: Sequence[str], channel: socket.socket) -> subprocess.Popen[bytes]:
    # A signal's mask passes to the child. So Ctrl-C cannot hit it before it has said that it ignores it; to this
    # thread it comes a millisecond later.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(
            command,
            bufsize=0,
            stdin=channel.fileno(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(),
            cwd="/",  # a relative path fails always, and not only once the program has changed its folder
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _command() -> list[str]:
    """Raises: _NoWorker when this Python cannot be started a second time."""
    if getattr(sys, "frozen", False):
        raise _NoWorker("this is a frozen program, without a Python to be started", for_good=True)
    if not sys.executable:
        raise _NoWorker("Python does not know its own program (sys.executable)", for_good=True)
    # -P: no file of the folder that the user is in stands in the way of a module.
    return [sys.executable, "-P", "-m", "nyala._worker"]


def _environment() -> dict[str, str]:
    """So that the child finds the very same Nyala; all else that is on `sys.path` it is told with the job."""
    environment = {**os.environ, **_THREADS}
    if sys.flags.ignore_environment:  # python -I, -E: neither is the child to listen to it
        environment = {name: value for name, value in environment.items() if not name.startswith("PYTHON")}
    folders = [
        os.path.abspath(folder) for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder
    ]
    ours = os.path.dirname(os.path.dirname(os.path.abspath(nyala.errors.__file__)))
    # PYTHONPATH stands before the standard library; what is installed stands behind it, and is found there.
    if ours not in folders and ours not in (*site.getsitepackages(), site.getusersitepackages()):
        folders.insert(0, ours)
    environment["PYTHONPATH"] = os.pathsep.join(folders)
    return environment


# --- copies of the process --------------------------------------------------------------------------

_children: weakref.WeakSet[_Child] = weakref.WeakSet()


def _forget_in_child() -> None:
    for child in list(_children):
        child.forget()
    _children.clear()


os.register_at_fork(after_in_child=_forget_in_child)
