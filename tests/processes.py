"""Starts other processes that open a store, and run Python code that a test sends to them."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Each input line is Python code as a JSON string. The answer has the value of `result`, or the error.
_CHILD = """
import contextlib, json, logging, os, signal, sys, threading, time
import pyarrow as pa
import nyala
logging.disable(logging.CRITICAL)
answers, sys.stdout = sys.stdout, sys.stderr
path = sys.argv[1]
names = dict(globals())
for line in sys.stdin:
    names["result"] = None
    try:
        exec(json.loads(line), names)
        answer = {"result": names["result"]}
    except BaseException as error:
        answer = {"error": type(error).__name__, "says": str(error)}
    print(json.dumps(answer), file=answers, flush=True)
"""


class ChildError(Exception):
    """The code in the child process raised an error of the class `name`."""

    def __init__(self, name: str, says: str) -> None:
        super().__init__(f"{name}: {says}")
        self.name = name


class Child:
    """A Python process with `nyala` imported and `path` set. Variables stay from call to call."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def begin(self, code: str) -> None:
        """Send the code to the process, without waiting; `end` returns its result."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()

    def end(self) -> Any:
        """Wait for the code of `begin`. Return its variable `result`, or raise ChildError."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process has ended"
        answer = json.loads(line)
        if "error" in answer:
            raise ChildError(answer["error"], answer["says"])
        return answer["result"]

    def run(self, code: str) -> Any:
        self.begin(code)
        return self.end()

    def value(self, expression: str) -> Any:
        return self.run(f"result = {expression}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()
        self.process.wait(20)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
        self.process.stdout.close()


@contextlib.contextmanager
def children(path: Path, count: int, setup: str = "db = nyala.connect(path)") -> Iterator[list[Child]]:
    """Start processes that run `setup` one after the other, so the first one holds the store's lock."""
    made = [Child(path) for _ in range(count)]
    try:
        for child in made:
            child.run(setup)
        yield made
    finally:
        for child in made:
            child.close()
