"""How far a long call is, for whoever waits for it.

    table.compact(progress=True)                        every few seconds a line: compaction of t: 40 %
    table.upsert(reader, progress=bar_of_mine)          bar_of_mine(rows done, None) after each record batch

True shows lines on stderr when that is a terminal; in a notebook below its cell, as one line that changes; otherwise as
records of the logger `nyala.progress` (level INFO). A notebook is known by IPython, if the program has imported it
already.
A function of the caller's is called in his thread and with no lock held. What it raises ends the call: of a stream what
was written stays, of a compaction what was done.
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

__all__ = ["EVERY_S", "Progress", "Work", "shower", "teller"]

Progress: TypeAlias = Callable[[int, int | None], None]
"""(done, total); total None: nobody knows."""

EVERY_S: Final = 2.0


def teller(progress: bool | Progress, say: Callable[[int, int | None], str]) -> Progress | None:
    """What to call as the work goes on; None: nothing. say: the line for what is done.

    Raises: InvalidArgumentError for what is neither True, False nor a function.
    """
    if progress is False or progress is None:
        return None
    if progress is True:
        return _Lines(say)
    if not callable(progress):
        raise InvalidArgumentError(
            f"progress takes True, or a function that is called with (done, total), not {progress!r}"
        )
    # Found out at the first call it would end a write that is done.
    try:
        inspect.signature(progress).bind(0, None)
    except TypeError as error:
        raise InvalidArgumentError(
            f"progress is called with (done, total), which {progress!r} does not take: {error}"
        ) from None
    except ValueError:
        pass  # of some functions in C nobody says what they take
    return progress


class _Lines:
    """A line every few seconds, none of what is done before."""

    def __init__(self, say: Callable[[int, int | None], str]) -> None:
        self._say = say
        self._show: Callable[[str], None] | None = None
        self._next_s = SYSTEM.clock.monotonic_s() + EVERY_S

    def __call__(self, done: int, total: int | None) -> None:
        now_s = SYSTEM.clock.monotonic_s()
        if now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        self._show = self._show or shower("nyala.progress")
        self._show(self._say(done, total))


class Work:
    """Compactions that are done, and how much of the one that runs, in hundredths of one."""

    def __init__(self, told: Progress | None) -> None:
        self._told = told
        self._done, self._total, self._before = 0, 1, 0

    def step(self, done: int, total: int) -> None:
        """done of total compactions of this round are done; what a round leaves to be done is another's."""
        if not done:
            self._before = self._done
        self._done, self._total = self._before + done, self._before + max(total, 1)
        self._tell(0)

    def rows(self, done: int, total: int) -> None:
        """Of the one that runs, done of total rows are."""
        self._tell(99 * done // max(total, 1))

    def _tell(self, percent: int) -> None:
        if self._told is not None:
            self._told(100 * self._done + percent, 100 * self._total)


def shower(logger: str) -> Callable[[str], None]:
    """What shows a line to whoever runs this program. logger: the name of the one that gets it where nobody looks."""
    if sys.stderr.isatty():
        return _to_terminal
    return _NotebookLine() if _in_notebook() else _to_log(logger)


def _to_terminal(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _to_log(logger: str) -> Callable[[str], None]:
    return lambda line: logging.getLogger(logger).info("%s", line)


def _in_notebook() -> bool:
    """Whether this program is a kernel of IPython's, whose cells show what is displayed."""
    ipython = sys.modules.get("IPython")
    with contextlib.suppress(Exception):  # another module of that name
        return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None
    return False


class _NotebookLine:
    """One line below the cell, from the first time on that there is something to say."""

    def __init__(self) -> None:
        self._shown: Any = None

    def __call__(self, line: str) -> None:
        data = {"text/plain": line}
        if self._shown is None:
            self._shown = sys.modules["IPython"].display.display(data, raw=True, display_id=True)
        else:
            self._shown.update(data, raw=True)
