"""Shows the progress of a long call, or reports it to a function of the user.

    table.compact(progress=True)             shows a line every few seconds: compaction of t: 40 %
    table.upsert(reader, progress=show)      calls show(rows done, None) after each record batch

`True` writes lines to stderr if that is a terminal, and changes one line below the cell in a
notebook. Otherwise it writes to the logger `nyala.progress` at level INFO.

A function is called in the thread of the caller, without a lock. If it raises an exception, the
call ends. Batches that were written and compactions that were finished before are kept.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import sys
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from nyala.env import SYSTEM
from nyala.errors import InvalidArgumentError

__all__ = ["EVERY_S", "CompactionProgress", "Progress", "line_writer", "progress_function"]

Progress: TypeAlias = Callable[[int, int | None], None]
"""A function that is called with (done, total). total is None if it is not known."""

EVERY_S: Final = 2.0


def progress_function(progress: bool | Progress, say: Callable[[int, int | None], str]) -> Progress | None:
    """Return the function to call as the work proceeds, or None for `progress=False`.

    say: returns the line to show for (done, total).
    Raises: InvalidArgumentError for anything but True, False or a function of two arguments.
    """
    if progress is False or progress is None:
        return None
    if progress is True:
        return _Lines(say)
    if not callable(progress):
        raise InvalidArgumentError(
            f"progress takes True, or a function that is called with (done, total), not {progress!r}"
        )
    # A function with other arguments would otherwise fail only after the first write.
    try:
        inspect.signature(progress).bind(0, None)
    except TypeError as error:
        raise InvalidArgumentError(
            f"progress must accept (done, total), and {progress!r} does not: {error}"
        ) from None
    except ValueError:
        pass  # some C functions have no signature
    return progress


class _Lines:
    """Shows a line every few seconds. Shows no line for work that ends in less time."""

    def __init__(self, say: Callable[[int, int | None], str]) -> None:
        self._say = say
        self._show: Callable[[str], None] | None = None
        self._next_s = SYSTEM.clock.monotonic_s() + EVERY_S

    def __call__(self, done: int, total: int | None) -> None:
        now_s = SYSTEM.clock.monotonic_s()
        if now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        self._show = self._show or line_writer("nyala.progress")
        self._show(self._say(done, total))


class CompactionProgress:
    """Reports the progress of several compactions to a function. Each compaction counts as 100 steps."""

    def __init__(self, progress: Progress | None) -> None:
        """progress: called with (steps done, all steps); None: report nothing."""
        self._progress = progress
        self._done, self._total, self._before = 0, 1, 0

    def step(self, done: int, total: int) -> None:
        """Report that `done` of the `total` compactions of this round are finished."""
        if not done:
            self._before = self._done
        self._done, self._total = self._before + done, self._before + max(total, 1)
        self._report(0)

    def rows(self, done: int, total: int) -> None:
        """Report that the running compaction has processed `done` of its `total` rows."""
        self._report(99 * done // max(total, 1))

    def _report(self, percent: int) -> None:
        if self._progress is not None:
            self._progress(100 * self._done + percent, 100 * self._total)


def line_writer(logger: str) -> Callable[[str], None]:
    """Return a function that shows a line in the terminal or notebook, or else writes it to this
    logger.
    """
    if sys.stderr.isatty():
        return _to_terminal
    return _NotebookLine() if _in_notebook() else _to_log(logger)


def _to_terminal(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _to_log(logger: str) -> Callable[[str], None]:
    return lambda line: logging.getLogger(logger).info("%s", line)


def _in_notebook() -> bool:
    """Whether this program runs in an IPython kernel."""
    ipython = sys.modules.get("IPython")
    with contextlib.suppress(Exception):  # the module may be another one of this name
        return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None
    return False


class _NotebookLine:
    """One line below the cell of a notebook, which each call replaces."""

    def __init__(self) -> None:
        self._shown: Any = None

    def __call__(self, line: str) -> None:
        data = {"text/plain": line}
        if self._shown is None:
            self._shown = sys.modules["IPython"].display.display(data, raw=True, display_id=True)
        else:
            self._shown.update(data, raw=True)
