"""Shows a progress line for long commands, and delays Ctrl-C, so that no batch is interrupted
half-way.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

from nyala.cli.base import settings

__all__ = ["Bar", "SecondInterrupt", "delay_interrupt"]

_FIRST_AFTER_S: Final = 1.0
_INTERVAL_S: Final = 0.1


class Bar:
    """A progress line on stderr: `with Bar("loading") as bar: bar.update(3, 10, "3,000 rows")`.

    Prints nothing in the first second, with `--json`, or if stderr is not a terminal.
    """

    def __init__(self, title: str, *, quiet: bool = False) -> None:
        self._title = title
        self._quiet = quiet or settings().json or not sys.stderr.isatty()
        self._next_s = time.monotonic() + _FIRST_AFTER_S
        self._shown = False

    def update(self, done: float, total: float | None, note: str = "") -> None:
        """Show that `done` of `total` is finished; total: None if it is unknown."""
        now_s = time.monotonic()
        if self._quiet or now_s < self._next_s:
            return
        share = f" {100 * done / total:.0f} %" if total else ""
        click.echo(f"\r\x1b[K{self._title}{share}  {note}", nl=False, err=True)
        self._next_s, self._shown = now_s + _INTERVAL_S, True

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        if self._shown:
            click.echo("\r\x1b[K", nl=False, err=True)


class SecondInterrupt(KeyboardInterrupt):
    """A second Ctrl-C in a block of `delay_interrupt`: it ends the block at once."""


@contextmanager
def delay_interrupt() -> Iterator[None]:
    """Delay a Ctrl-C to the end of the block, so that the outcome of a batch is known.

    Raises KeyboardInterrupt after the block, or SecondInterrupt in the block at a second Ctrl-C.
    Has no effect outside of the main thread, or if the process ignores SIGINT (`nohup`, `&`).
    """
    import signal
    import threading

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        yield
        return
    interrupted = False

    def handle(number: int, frame: object) -> None:
        nonlocal interrupted
        if interrupted:
            raise SecondInterrupt
        interrupted = True

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupted:
        raise KeyboardInterrupt
