"""A progress bar: on a terminal's stderr only, and only for what takes longer than a second."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final

from nyala.cli.output import rich_console

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["Bar", "SecondInterrupt", "finish_first"]

_QUIET_S: Final = 1.0


class Bar:
    """`with Bar("loading", total) as bar: bar.update(done, "3,000 rows")`; silent where nobody looks.

    began_s: when its work began, of which this may be the end; None: now.
    """

    def __init__(
        self, title: str, total: float | None, *, quiet: bool = False, began_s: float | None = None
    ) -> None:
        self._title = title
        self._total = total
        self._quiet = quiet
        self._began_s = time.monotonic() if began_s is None else began_s
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def update(self, done: float, note: str = "") -> None:
        """`done` of `total` is behind us."""
        if self._progress is None and not self._quiet and time.monotonic() - self._began_s > _QUIET_S:
            self._start()
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, note=note)

    def _start(self) -> None:
        console = rich_console(stderr=True)
        if console is None:
            self._quiet = True
            return
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task(self._title, total=self._total, note="")
        self._progress.start()

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()


class SecondInterrupt(KeyboardInterrupt):
    """A Ctrl-C of somebody who does not want to wait."""


@contextmanager
def finish_first() -> Iterator[None]:
    """A Ctrl-C inside waits for the end of the block, so that a batch is not left half told; a second one does not.

    Raises: KeyboardInterrupt, behind the block; SecondInterrupt.

    Only the main thread hears of signals, and who ignores them (`nohup`, a shell's `&`) goes on to; then this does
    nothing.
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
