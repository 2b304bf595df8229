"""Runs `child` in processes that are forked from a process with all imports, because imports cost
more than a run.

The forking process has one thread and no open files.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tests.crash import child, system_calls

ROOT = Path(__file__).parent.parent.parent


class Ended(NamedTuple):
    """The end of a process. code: as in `subprocess`, -9 if it was killed. lines: what it printed."""

    code: int
    lines: list[str]


class Forks:
    """The side of the test: `with Forks() as forks: forks.run(folder, "27", "before", "sync",
    "workload")`.
    """

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.forks"], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._server.communicate()

    def run(self, *arguments: object, kind: str = "", number: int = 0) -> Ended:
        """Run `child` with these arguments. It is killed before its n-th system call of a kind, if
        given.
        """
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps([[*map(str, arguments)], kind, number]) + "\n")
        self._server.stdin.flush()
        return Ended(*json.loads(self._server.stdout.readline()))


def _carry_out(arguments: list[str], kind: str, number: int) -> Ended:
    ours, theirs = socket.socketpair()
    output, printed = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(printed, 1)
            if kind:
                listener = system_calls.listen(kind)
                socket.send_fds(theirs, [b"!"], [listener])
                os.close(listener)
            child.main(arguments)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(printed)
    theirs.close()
    if kind:
        _, (listener,), _, _ = socket.recv_fds(ours, 1, 1)
        met = 0
        for first, *_ in system_calls.stops(listener):
            met += kind != "write" or first > 2  # its output is not part of the store
            if met == number:
                os.kill(pid, signal.SIGKILL)
                break
        os.close(listener)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with os.fdopen(output) as file:
        lines = file.read().splitlines()
    ours.close()
    return Ended(code, lines)


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(_carry_out(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
