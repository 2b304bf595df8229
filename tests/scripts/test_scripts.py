"""Each `*.txt` in a folder here shows one behaviour as statements and what they print.

`interpreter` lists the statements. A script has blocks of statements, `----`, and the expected lines up to an
empty line. At the end of each script the store must pass its own check. `--rewrite-scripts` writes the output into
the files: review the difference before you commit it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.scripts.interpreter import Interpreter
from tests.support import folder_in_memory

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@dataclass
class Block:
    """Statements, and what they must print."""

    comments: list[str] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    has_expectation: bool = False


def parse(text: str) -> list[Block]:
    blocks: list[Block] = []
    for part in text.strip("\n").split("\n\n"):
        block = Block()
        for line in part.split("\n"):
            if line == "----":
                block.has_expectation = True
            elif block.has_expectation:
                block.expected.append(line)
            elif line.startswith("#"):
                block.comments.append(line)
            elif line.strip():
                block.statements.append(line.strip())
        blocks.append(block)
    return blocks


def render(blocks: list[Block]) -> str:
    parts = []
    for block in blocks:
        lines = [*block.comments, *block.statements]
        if block.has_expectation:
            lines += ["----", *block.expected]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


class Processes:
    """The server `tests.scripts.child`, which forks processes that can be killed."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.scripts.child", str(theirs.fileno())], cwd=ROOT,
                pass_fds=[theirs.fileno()],
            )  # fmt: skip

    def start(self, folder: Path) -> tuple[int, socket.socket]:
        """Return (pid of a new process, the socket that takes its statements)."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._socket, [str(folder).encode()], [theirs.fileno()])
            return int(self._socket.recv(20)), ours

    def wait(self, pid: int) -> int:
        self._socket.sendall(str(pid).encode())
        return int(self._socket.recv(20))

    def close(self) -> None:
        self._socket.close()
        assert self._server.wait() == 0


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.close()


class Killable:
    """A process that runs statements and can be killed."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self._processes = processes
        self._folder = folder
        self._pid: int | None = None

    def run(self, statement: str) -> list[str]:
        if statement == "kill":
            self.kill()
            return []
        if self._pid is None:
            self._pid, self._socket = self._processes.start(self._folder)
            self._lines = self._socket.makefile("r")
        self._socket.sendall(json.dumps(statement).encode() + b"\n")
        answer = self._lines.readline()
        if not answer and statement.endswith(": kill"):  # the process was killed during the statement
            self.kill()
            return []
        assert answer, f"the process died at {statement!r}"
        printed: list[str] = json.loads(answer)
        return printed

    def kill(self) -> None:
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            assert self._processes.wait(self._pid) == -signal.SIGKILL
            self._pid = None
            self._lines.close()
            self._socket.close()


def scripts() -> list[Path]:
    return sorted(path for path in HERE.glob("*/*.txt") if path.parent.name != "sql")


@pytest.mark.parametrize("path", scripts(), ids=lambda path: str(path.relative_to(HERE).with_suffix("")))
def test_script(path: Path, request: pytest.FixtureRequest) -> None:
    """Each block prints the lines of the script."""
    with folder_in_memory() as folder:
        run_script(path, folder / "store", request)


def run_script(path: Path, folder: Path, request: pytest.FixtureRequest) -> None:
    blocks = parse(path.read_text())
    assert any(block.has_expectation for block in blocks), "the script has no expected output"
    kills = any(statement.endswith("kill") for block in blocks for statement in block.statements)
    runner: Killable | Interpreter = (
        Killable(request.getfixturevalue("processes"), folder) if kills else Interpreter(folder)
    )
    try:
        for block in blocks:
            printed = [line for statement in block.statements for line in runner.run(statement)]
            if request.config.getoption("--rewrite-scripts"):
                block.expected, block.has_expectation = printed, block.has_expectation or bool(printed)
            else:
                assert printed == block.expected, "\n".join(block.statements)
        assert runner.run("check") == []
    finally:
        runner.kill() if isinstance(runner, Killable) else runner.run("close")
    if request.config.getoption("--rewrite-scripts"):
        path.write_text(render(blocks))
