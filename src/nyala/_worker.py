"""The main of a worker process: `python -m nyala._worker`, started by `nyala.tablet.workers` and by nobody else.

    fd 0      the socket to the parent; taken away at once, so that a handler that reads its stdin finds the end of it
    fd 1, 2   one pipe to the parent's log from the first instruction on: what is printed never meets the protocol

One job at a time, in the main thread. A second thread reads the socket, and ends the process the moment the parent
closes it or is no more, also in the middle of a job: what a job has written is named by no catalogue, and the store's
next open removes it.

Ctrl-C in the user's terminal reaches the whole process group; it is for the parent, and ignored here. The process
asks for low priority, and on Linux to be the one that goes when memory is short: the user's program is worth more.
Left out: reading the catalogue or the log. A job is told which files to read.
Source: design §3, "Compaction is a function from files to files".
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NoReturn

from nyala.tablet.worker_protocol import (
    BrokenFrame,
    FrameDecoder,
    Handler,
    Report,
    check_placed,
    encode_error,
    encode_frame,
    version,
)

if TYPE_CHECKING:
    from nyala.env import Env

NICENESS: Final = 10
# Of 1000: taken before anything of the same size that is not marked so.
OOM_SCORE: Final = 500
# The end of the parent is seen on the socket. Should another process hold its other end (a copy made by a fork that
# Python did not see), the parent's number is looked at this often.
PARENT_CHECK_S: Final = 5.0


def _ping(arguments: dict[str, Any], report: Report) -> dict[str, Any]:
    """What a worker is made of; shows that it can be started and has what it needs."""
    import numpy as np
    import pyarrow as pa

    return {
        "pid": os.getpid(),
        "nyala": version(),
        "python": sys.version.split()[0],
        "pyarrow": pa.__version__,
        "numpy": np.__version__,
        "arrow_threads": pa.cpu_count(),
    }


def _compaction(kind: str) -> Handler:
    def handle(arguments: dict[str, Any], report: Report) -> dict[str, Any]:
        from nyala.tablet import compaction_run

        with _in_store(arguments) as env:
            output = compaction_run.run(
                env,
                compaction_run.decode_job(kind, arguments),
                lambda done, total: report({"done": done, "total": total}),
            )
        return compaction_run.encode_output(output)

    return handle


def _flush_pieces(arguments: dict[str, Any], report: Report) -> dict[str, Any]:
    from nyala.tablet.flush_run import run_spilled

    with _in_store(arguments) as env:
        return run_spilled(env.files, arguments)


@contextlib.contextmanager
def _in_store(arguments: dict[str, Any]) -> Iterator[Env]:
    """The folder that the parent has open, not another one that has come under its path."""
    from nyala.env import SYSTEM

    env = SYSTEM.bound(arguments["root_path"])
    try:
        check_placed(arguments, env.files)
        yield env
    finally:
        env.files.close()


# Every kind of job. A handler imports what it needs when it is called: a start waits for none of it.
HANDLERS: Final[dict[str, Handler]] = {
    "ping": _ping,
    "flush": _flush_pieces,
    **{kind: _compaction(kind) for kind in ("merge", "major", "minor", "undo")},
}


def main(handlers: Mapping[str, Handler] = HANDLERS) -> NoReturn:
    """Carry out the parent's jobs until it closes the socket; never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = _take_channel()
    _be_modest()
    faulthandler.enable()
    jobs: SimpleQueue[dict[str, Any]] = SimpleQueue()
    parent_pid = os.getppid()
    threading.Thread(
        target=_listen, args=(channel, parent_pid, jobs), name="nyala-parent", daemon=True
    ).start()
    sending = threading.Lock()

    def send(frame: bytes) -> None:
        with sending:
            _send(channel, frame)

    send(encode_frame({"hello": {"nyala": version(), "pid": os.getpid()}}))
    while True:
        job = jobs.get()
        sys.path += [folder for folder in job["path"] if folder not in sys.path]
        frame = _carry_out(handlers, job, send)
        _flush()  # before the answer: the parent reads what was printed when it has the answer
        send(frame)
        job.clear()
        _give_back_memory()


def _carry_out(handlers: Mapping[str, Handler], job: dict[str, Any], send: Callable[[bytes], None]) -> bytes:
    """The frame that answers the job."""
    number = job["job"]

    def report(fields: dict[str, Any]) -> None:
        send(encode_frame({"progress": fields, "job": number}))

    try:
        answer = handlers[job["kind"]](job["arguments"], report)
        return encode_frame({"answer": answer, "job": number})
    except BaseException as error:  # whatever it was, also a sys.exit: the parent must hear of it
        return encode_frame({"error": encode_error(error), "job": number})


def _take_channel() -> int:
    """The descriptor of the socket, out of reach of everything that takes 0 for stdin."""
    if not stat.S_ISSOCK(os.fstat(0).st_mode):
        sys.exit(
            "nyala._worker is a part of Nyala that it starts itself; there is nothing here to be run by hand"
        )
    channel = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return channel


def _be_modest() -> None:
    """As far as the system allows."""
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    with contextlib.suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+") as file:
        score = max(int(file.read()), OOM_SCORE)  # more needs no right, less would
        file.seek(0)
        file.write(str(score))


def _listen(channel: int, parent_pid: int, jobs: SimpleQueue[dict[str, Any]]) -> None:
    decoder = FrameDecoder()
    while True:
        readable, _, _ = select.select([channel], [], [], PARENT_CHECK_S)
        if not readable:
            if os.getppid() != parent_pid:
                os._exit(0)
            continue
        try:
            data = os.read(channel, 1 << 16)
        except OSError:
            data = b""
        if not data:
            os._exit(0)
        try:
            for message in decoder.feed(data):
                jobs.put(message)
        except BrokenFrame as error:
            os.write(2, f"what the parent sent cannot be read: {error}\n".encode())
            os._exit(1)


def _send(channel: int, frame: bytes) -> None:
    left = memoryview(frame)
    try:
        while left:
            left = left[os.write(channel, left) :]
    except OSError:  # the parent is gone
        os._exit(0)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _give_back_memory() -> None:
    """An idle worker should cost the user little; Arrow keeps what it freed."""
    if "pyarrow" in sys.modules:
        import pyarrow as pa

        pa.default_memory_pool().release_unused()


if __name__ == "__main__":
    main()
