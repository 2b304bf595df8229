"""A Python process in a machine that calls functions for the tests.

    python = RemotePython(machine, environment, "driver.log")
    python(function, *arguments)          returns the result, or raises RemoteError

Functions are at the top level of a module of `tests`. The functions, arguments and results are
pickled.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from tests.spark.cluster.machines import Machine

P = ParamSpec("P")
R = TypeVar("R")

CALL_S: Final = 240.0


class RemoteError(Exception):
    """The function raised "<class>: <message>". trace: the traceback of the other process."""

    def __init__(self, text: str, trace: str) -> None:
        super().__init__(text)
        self.trace = trace


class RemoteEnd(Exception):
    """The process ended before it returned a result."""


class RemotePython:
    """Calls functions, one after the other, in a process in a machine."""

    def __init__(self, machine: Machine, environment: Mapping[str, str], log: str) -> None:
        self.machine: Final = machine
        self.log: Final = machine.folder / log
        self._pipe, theirs = Pipe()
        self._process: Final = machine.start(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            environment,
            log,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def begin(self, function: Callable[P, object], *arguments: P.args, **named: P.kwargs) -> None:
        """Let the process call `function`, without waiting."""
        self._pipe.send((function, arguments, named))

    def answer(self) -> object:
        """Wait for the result of the call of `begin`."""
        try:
            if not self._pipe.poll(CALL_S):
                raise TimeoutError(f"no answer in {CALL_S:.0f} s: see {self.log}")
            failed, result, trace = self._pipe.recv()
        except (EOFError, ConnectionError):
            raise RemoteEnd(f"the process in {self.machine.name} has ended: see {self.log}") from None
        if failed:
            print(trace, file=sys.stderr)
            raise RemoteError(result, trace)
        return result

    def __call__(self, function: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
        self.begin(function, *arguments, **named)
        return self.answer()  # type: ignore[return-value]

    def close(self) -> None:
        """Let the process end. May be called twice."""
        self._pipe.close()
        self._process.wait()


def _serve(pipe: Connection) -> None:
    while True:
        try:
            function, arguments, named = pipe.recv()
        except EOFError:
            return
        try:
            answer = (False, function(*arguments, **named), "")
        except Exception as error:
            answer = (True, f"{type(error).__name__}: {error}", traceback.format_exc())
        pipe.send(answer)


def wait_for(path: Path, text: str, seconds: float = 60.0) -> None:
    """Wait until a file contains the text."""
    end = time.monotonic() + seconds
    while not path.exists() or text not in path.read_text(errors="replace"):
        assert time.monotonic() < end, f"{path} does not say {text!r}"
        time.sleep(0.05)


if __name__ == "__main__":
    from tests.spark.cluster import remote_python

    remote_python._serve(Connection(int(sys.argv[1])))
