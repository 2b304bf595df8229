"""The main program of a worker process, which runs heavy jobs for a store.

`nyala.tablet.workers.process` starts it with these file descriptors:

    fd 0      the socket to the parent; the program moves it to another descriptor, and makes fd 0
              empty for code that reads stdin
    fd 1, 2   a pipe to the parent's log; so printed text never mixes with messages

The main thread runs one job at a time, and ends the process after a minute without a job. A second
thread reads the socket. It ends the process as soon as the parent closes the socket or dies, even
during a job; the store's next open then removes the files of the unfinished job.

The process ignores Ctrl-C, because the parent handles it. It has a low priority, and on Linux the
system kills it first if memory is short. It never reads the catalogue or the log, because a job names
the files to read.
Source: docs/design/compaction.md, "Files to files".
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NoReturn

from nyala.tablet.workers.protocol import Handler, Report, check_placed, encode, encode_error, version

if TYPE_CHECKING:
    from nyala.env import Env

NICENESS: Final = 10
# On a scale up to 1000. The system kills this process before other processes of its size.
OOM_SCORE: Final = 500
# A process that gets no job for this long ends, so that it does not stay in memory for a rare writer.
IDLE_S: Final = 60.0


def _ping(arguments: dict[str, Any], report: Report) -> dict[str, Any]:
    """Return facts about this process, to test that a worker starts and can import its libraries."""
    import pyarrow as pa

    return {"pid": os.getpid(), "nyala": version(), "arrow_threads": pa.cpu_count()}


def _compaction(kind: str) -> Handler:
    def handle(arguments: dict[str, Any], report: Report) -> dict[str, Any]:
        from nyala.tablet.compaction import file_jobs

        with _in_store(arguments) as env:
            output = file_jobs.run(
                env,
                file_jobs.decode_job(kind, arguments),
                lambda done, total: report({"done": done, "total": total}),
            )
        return file_jobs.encode_output(output)

    return handle


def _flush_pieces(arguments: dict[str, Any], report: Report) -> dict[str, Any]:
    from nyala.tablet.flush.file_jobs import run_spilled

    with _in_store(arguments) as env:
        return run_spilled(env.files, arguments)


@contextlib.contextmanager
def _in_store(arguments: dict[str, Any]) -> Iterator[Env]:
    """Open the folder of the parent's store.

    The path may lead to another folder by now, so the function checks that it is the same folder.
    arguments: those of the job.
    """
    from nyala.env import SYSTEM

    env = SYSTEM.bound(arguments["root_path"])
    try:
        check_placed(arguments, env.files)
        yield env
    finally:
        env.files.close()


# The handler of each kind of job. It imports its modules when it runs, so that a worker starts fast.
HANDLERS: Final[dict[str, Handler]] = {
    "ping": _ping,
    "flush": _flush_pieces,
    **{kind: _compaction(kind) for kind in ("merge", "major", "minor", "undo")},
}


def main(handlers: Mapping[str, Handler] = HANDLERS) -> NoReturn:
    """Run the parent's jobs, and end the process when the parent closes the socket.

    The process also ends after IDLE_S without a job. handlers: the function for each kind of job.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = _take_channel()
    _lower_priority()
    faulthandler.enable()
    jobs: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_listen, args=(channel, jobs), name="nyala-parent", daemon=True).start()

    def send(message: dict[str, Any]) -> None:
        try:
            channel.sendall(encode(message))
        except OSError:  # the parent has ended
            os._exit(0)

    send({"answer": {"nyala": version()}})
    while True:
        try:
            job = jobs.get(timeout=IDLE_S)
        except Empty:
            os._exit(0)
        try:
            message = {
                "answer": handlers[job["kind"]](job["arguments"], lambda said: send({"progress": said}))
            }
            encode(message)
        except BaseException as error:  # even after sys.exit the parent must get an answer
            message = {"error": encode_error(error)}
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        send(message)
        del job, message
        if "pyarrow" in sys.modules:  # an idle worker should use little memory
            sys.modules["pyarrow"].default_memory_pool().release_unused()


def _take_channel() -> socket.socket:
    """Return the socket that leads to the parent process, under a new file descriptor.

    The parent passes the socket as descriptor 0, which libraries may read as stdin. So descriptor 0
    becomes the null device.
    """
    try:
        channel = socket.socket(fileno=os.dup(0))
    except OSError:
        sys.exit("nyala._worker is started by Nyala itself; it cannot be run by hand")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return channel


def _lower_priority() -> None:
    """Lower the priority as far as the system allows."""
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    with contextlib.suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+") as file:
        score = max(int(file.read()), OOM_SCORE)  # only a privileged process may lower its score
        file.seek(0)
        file.write(str(score))


def _listen(channel: socket.socket, jobs: SimpleQueue[dict[str, Any]]) -> None:
    """Put the jobs that the parent process sends into `jobs`. End this process when the parent ends."""
    with contextlib.suppress(OSError):
        for line in channel.makefile("rb"):
            jobs.put(json.loads(line))
    os._exit(0)
