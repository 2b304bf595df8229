"""A progress line on a terminal's stderr for work of more than a second, and a Ctrl-C that waits for a batch."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

__all__ = ["Bar", "SecondInterrupt", "finish_first"]

_QUIET_S: Final = 1.0
_PAUSE_S: Final = 0.1


class Bar:
    """`with Bar("loading", total) as bar: bar.update(done, "3,000 rows")`; silent unless stderr is a terminal."""

    def __init__(self, title: str, total: float | None, *, quiet: bool = False) -> None:
        self._title = title
        self._total = total
        self._quiet = quiet or not sys.stderr.isatty()
        self._next_s = time.monotonic() + _QUIET_S
        self._shown = False

    def update(self, done: float, note: str = "") -> None:
        """Show that `done` of `total` is finished."""
        now_s = time.monotonic()
        if self._quiet or now_s < self._next_s:
            return
        share = "" if not self._total else f" {100 * done / self._total:.0f} %"
        click.echo(f"\r\x1b[K{self._title}{share}  {note}", nl=False, err=True)
        self._next_s, self._shown = now_s + _PAUSE_S, True

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        if self._shown:
            click.echo("\r\x1b[K", nl=False, err=True)


class SecondInterrupt(KeyboardInterrupt):
    """A second Ctrl-C, which does not wait for the batch."""


@contextmanager
def finish_first() -> Iterator[None]:
    """Delay a Ctrl-C to the end of the block, so that a batch's outcome is known. A second one is not delayed.

    Does nothing outside the main thread, which alone receives signals, or if the process ignores SIGINT (`nohup`, `&`).
    Raises: KeyboardInterrupt after the block; SecondInterrupt inside.
    """
    import signal
    import threading

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        yield
        return
    heard = False

    def hear(number: int, frame: object) -> None:
        nonlocal heard
        if heard:
            raise SecondInterrupt
        heard = True

    before = signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if heard:
        raise KeyboardInterrupt
