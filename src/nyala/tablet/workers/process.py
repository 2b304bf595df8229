"""Runs heavy jobs in a worker process. This is the parent's side; the child's side is `nyala._worker`.

`Worker.run` sends a job to the child, and blocks the calling thread until the answer arrives. If no
child runs, it starts a child. A child ends after a minute without a job. A thread of the parent
writes the child's output to the logger "nyala.worker".

The reason for a process: a merge of millions of rows often holds Python's global interpreter lock.
In the parent, it would slow down the user's threads.

Invariants
    J1  No job gets the answer of another job. If a job ends without an answer or an error from the
        child, the child is killed.
    J2  The parent waits for each child that it started, so no zombie process is left.
    J3  A child ends when its parent ends, because its socket closes. A forked copy of the parent
        closes its copy of the socket.
    J4  The child does not use the parent's terminal: its output goes to the log. It has its own
        process group, so it does not get the parent's signals. A dead child does not raise SIGPIPE
        in the parent.

Thread-safe. Cost: 0.03 s to start Python and import the handler, then 0.1 ms per job.
Source: docs/design/compaction.md, which says why no pool of `concurrent.futures` is used.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import nyala.errors
from nyala.env import SYSTEM
from nyala.errors import StorageError
from nyala.tablet.workers.protocol import (
    LINE_MAX_BYTES,
    Report,
    decode_error,
    encode,
    version,
)

logger = logging.getLogger("nyala.worker")

# The longest time until a cancellation is noticed.
_POLL_S: Final = 0.05
# A start takes 0.03 s, but on a busy machine with a cold disk it may take seconds.
_START_TIMEOUT_S: Final = 30.0
_END_S: Final = 1.0
_READ_BYTES: Final = 1 << 16
_LOG_LINE_MAX: Final = 8 << 10
# Each of these libraries would otherwise use all cores.
_THREADS: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "BLOSC_NTHREADS": "1"}
# The child imports the same Nyala as its parent. Other folders of the parent's path come last, so that a
# file of the user cannot replace a module of the standard library.
_START: Final = (
    "import sys; ours, *more = sys.argv[1:]; sys.path[:0] = [ours] if ours not in sys.path else []; "
    "sys.path += more; from nyala._worker import main; main()"
)
# They prevent SIGPIPE: a flag of `send` on Linux, and on macOS a socket option that Python does not name.
_SEND_FLAGS: Final = getattr(socket, "MSG_NOSIGNAL", 0)
_SO_NOSIGPIPE: Final = 0x1022


class JobCancelled(Exception):
    """The caller cancelled the job, or the worker was closed."""


class NoWorkerError(StorageError):
    """No worker process can be started. The caller runs the job itself."""


class _ChildEnded(Exception):
    """Internal: the child ended before it answered, or it sent bytes that are not a message."""


class Worker:
    """Runs jobs in a child process, one at a time. Starts the process when a job needs it.

    command: the program to start instead of `nyala._worker`, for tests.
    """

    def __init__(self, command: Sequence[str] | None = None) -> None:
        self._command = command
        self._pid = os.getpid()
        self._lock = threading.Lock()  # held by the thread that runs a job
        self._closed = threading.Event()
        self._child: _Child | None = None

    def run(
        self,
        kind: str,
        arguments: Mapping[str, Any],
        cancelled: Callable[[], bool] | None = None,
        progress: Report | None = None,
    ) -> dict[str, Any]:
        """Run the job in the child and return its answer. Wait first while another job runs.

        Parameters
        ----------
        kind
            The kind of job, which selects the handler in the child.
        arguments
            A JSON object. Paths must be absolute, because the child's current folder is `/`.
        cancelled
            Called every 50 ms in this thread; once it returns true, the child is killed.
        progress
            Called in this thread with each report of the handler.

        Raises
        ------
        nyala.Error
            The handler raised it.
        JobFailedError
            The handler raised another exception.
        NoWorkerError
            No process can be started.
        StorageError
            The process died, or sent invalid bytes. After this and any other error, the job may
            have left files.
        JobCancelled
            The job was cancelled, or the worker is closed.
        """
        if os.getpid() != self._pid:
            raise StorageError(
                f"this worker belongs to process {self._pid} and this is its forked child: connect() in the child, "
                "with read_only=True while the parent writes"
            )
        request = encode({"kind": kind, "arguments": dict(arguments)})

        def check() -> None:
            if self._closed.is_set() or (cancelled is not None and cancelled()):
                raise JobCancelled(f"the work {kind!r} was cancelled, or the store is closing")

        acquired = False
        try:
            while not acquired:
                check()
                acquired = self._lock.acquire(timeout=_POLL_S)
            message = self._take(check).exchange(request, check, progress)
        except _ChildEnded as error:
            raise self._end_child(kind, str(error)) from None
        except BaseException:  # J1
            if acquired:
                self._end_child()
            raise
        finally:
            if acquired:
                self._lock.release()
        if "error" in message:
            raise decode_error(kind, message["error"])
        answer: dict[str, Any] = message["answer"]
        return answer

    def close(self) -> None:
        """Kill the running job, whose caller gets JobCancelled, and wait until the child has ended.

        May be called twice. Does nothing in a forked copy of the process. The argument `progress` of
        `run` must not call it.
        """
        if os.getpid() == self._pid:
            self._closed.set()
            with self._lock:
                self._end_child()

    def _take(self, check: Callable[[], None]) -> _Child:
        """Return the worker process. Start a new one if none is alive.

        check: called again and again during the start; it may raise an error to cancel the start.
        Raises: NoWorkerError if no process can be started; the errors of `check`.
        """
        if self._child is not None and not self._child.alive():
            self._end_child()
        if self._child is None:
            began_s = SYSTEM.clock.monotonic_s()

            def check_start() -> None:
                check()
                if SYSTEM.clock.monotonic_s() > began_s + _START_TIMEOUT_S:
                    raise _ChildEnded(f"the worker process gave no answer within {_START_TIMEOUT_S:g} s")

            try:
                self._child = _Child(self._command or _command())
                found = self._child.exchange(b"", check_start, None)["answer"]["nyala"]
                if found != version():
                    raise _ChildEnded(
                        f"the worker runs Nyala {found}, and this process {version()}: restart the program"
                    )
            except (OSError, RuntimeError) as error:
                raise NoWorkerError(f"no worker process can be started: {error}") from error
            except (_ChildEnded, LookupError) as error:
                ended = self._end_child("its start", str(error))
                raise NoWorkerError(f"no worker process can be started: {ended}") from error
        return self._child

    def _end_child(self, kind: str = "", reason: str = "") -> StorageError:
        """End the child, if one was started. Return the error for the caller of its unanswered job.

        kind:   the kind of that job, for the error.
        reason: why the child ends, for the error.
        """
        child, self._child = self._child, None
        ended = child.end() if child is not None else ""
        return StorageError(
            f"{ended} during {kind!r}{reason and f' ({reason})'}; nothing was changed: try it again. The output of the "
            "process is in the log 'nyala.worker'"
        )


class _Child:
    """A worker process and its socket. For one thread at a time."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start the process. Raises: OSError; RuntimeError if no thread can be started."""
        self._received = bytearray()
        self._last_line = ""
        self._socket, theirs = socket.socketpair()
        try:
            if sys.platform == "darwin":
                self._socket.setsockopt(socket.SOL_SOCKET, _SO_NOSIGPIPE, 1)
            self._process = subprocess.Popen(
                command,
                bufsize=0,
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **_THREADS},
                cwd="/",  # so relative paths fail at once, not only after the program changes its folder
                process_group=0,  # Ctrl-C in the terminal is for the parent
            )
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        _children.add(self)
        self._logging = threading.Thread(target=self._log_output, name="nyala-worker-log", daemon=True)
        self._logging.start()

    def alive(self) -> bool:
        return self._process.poll() is None

    def exchange(self, request: bytes, check: Callable[[], None], progress: Report | None) -> dict[str, Any]:
        """Send a job and return its answer or error.

        check:    called every 50 ms while the thread waits; it may raise an error.
        progress: called with each report of the job.
        Raises:   _ChildEnded; the exceptions of `check` and `progress`.
        """
        try:
            self._socket.sendall(request, _SEND_FLAGS)
        except OSError as error:
            raise _ChildEnded from error
        while "progress" in (message := self._receive(check)):
            if progress is not None:
                progress(message["progress"])
        return message

    def _receive(self, check: Callable[[], None]) -> dict[str, Any]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            while b"\n" not in self._received:
                check()
                if not selector.select(_POLL_S):
                    continue
                try:
                    data = self._socket.recv(_READ_BYTES)
                except OSError:
                    data = b""
                if not data or len(self._received) > LINE_MAX_BYTES:
                    raise _ChildEnded
                self._received += data
        line, _, self._received = self._received.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict) or message.keys().isdisjoint(("progress", "answer", "error")):
            raise _ChildEnded(f"the worker sent an invalid message: {bytes(line[:40])!r}")
        return message

    def _log_output(self) -> None:
        # The pipe is unbuffered. Otherwise this thread could hold the buffer's lock when the interpreter ends.
        assert self._process.stdout is not None
        rest = b""
        with self._process.stdout as output:
            while data := output.read(_READ_BYTES):
                *lines, rest = (rest + data).splitlines(keepends=True)
                if rest.endswith(b"\n") or len(rest) > _LOG_LINE_MAX:
                    lines, rest = [*lines, rest], b""
                for line in lines:
                    self._log(line)
            self._log(rest)
        self._process.wait()  # J2, for a child that ended after a minute without a job

    def _log(self, line: bytes) -> None:
        if text := line[:_LOG_LINE_MAX].decode(errors="replace").strip():
            self._last_line = text
            logger.warning("process %d: %s", self.pid, text)

    def end(self) -> str:
        """End the process, even a busy one, and wait until it has ended. Return how, as text."""
        self._socket.close()
        try:
            code = self._process.wait(_END_S)  # a worker ends as soon as it sees the socket close
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._logging.join(_END_S)
        _children.discard(self)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        memory = " (the system kills processes when memory is short)" if code == -signal.SIGKILL else ""
        return f"the worker process {self.pid} {how}{memory}{self._last_line and f': {self._last_line}'}"

    def forget(self) -> None:
        """Close the socket to the child. Called in a forked copy of the parent.

        Otherwise the child would not notice the end of its parent.
        """
        self._socket.close()
        self._process.returncode = 0  # so that this copy does not wait for the child


def _command() -> list[str]:
    """Return the command that starts the child. Raises: OSError if this Python cannot be started again."""
    if getattr(sys, "frozen", False) or not sys.executable:
        raise OSError("this program cannot start Python again: it is frozen, or sys.executable is empty")
    ours = os.path.dirname(os.path.dirname(os.path.abspath(nyala.errors.__file__)))
    folders = [os.path.abspath(folder) for folder in sys.path if folder]
    return [sys.executable, "-P", "-c", _START, ours, *folders]


_children: weakref.WeakSet[_Child] = weakref.WeakSet()


def _forget_in_copy() -> None:
    for child in list(_children):
        child.forget()
    _children.clear()


os.register_at_fork(after_in_child=_forget_in_copy)
