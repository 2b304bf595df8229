"""Runs a program on a pseudo-terminal, so that a test can type and read the screen."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import pyte

import nyala

WAIT_S = 60.0


def _begin() -> None:
    """Run in the child: make the pseudo-terminal its own, and let a hang-up end it, even below `nohup`."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


SOURCE = str(Path(nyala.__file__).parents[1])


class Terminal:
    """`python -m nyala ARGUMENTS` on a terminal of 24 lines. Use it in a `with` block."""

    def __init__(
        self,
        *arguments: object,
        environment: Mapping[str, str],
        columns: int = 100,
        folder: Path | None = None,
    ) -> None:
        self.screen = pyte.Screen(columns, 24)
        self._stream = pyte.ByteStream(self.screen)
        self._main, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nyala", *map(str, arguments)],
            stdin=child, stdout=child, stderr=child, cwd=folder,
            env={**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "PYTHONPATH": SOURCE, **environment},
            start_new_session=True,
            preexec_fn=_begin,
        )  # fmt: skip
        os.close(child)
        self._changed = False

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._main)

    @property
    def lines(self) -> list[str]:
        """Return the lines of the screen, without empty ones at the end."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip("\n").split("\n")

    def type(self, text: str) -> None:
        self._changed = False
        os.write(self._main, text.encode())

    def wait_for(self, text: str) -> list[str]:
        """Wait until the program printed something and the last line of the screen is `text`.
        Return the lines.
        """
        end_s = time.monotonic() + WAIT_S
        while not self._changed or self.lines[-1] != text:
            assert self.read(end_s - time.monotonic()), f"no {text!r} on the screen:\n" + "\n".join(
                self.lines
            )
        return self.lines

    def ended(self) -> tuple[int, list[str]]:
        """Wait until the program ends. Return its exit code and the lines of the screen."""
        while self.read(WAIT_S):
            pass
        return self.process.wait(WAIT_S), self.lines

    def read(self, timeout_s: float = WAIT_S) -> bool:
        """Read what the program printed. Return False if it ended, or printed nothing within the
        time-out.
        """
        if not select.select([self._main], [], [], max(timeout_s, 0))[0]:
            return False
        try:
            read = os.read(self._main, 65536)
        except OSError:  # the program has ended
            return False
        self._stream.feed(read)
        self._changed = True
        return bool(read)
