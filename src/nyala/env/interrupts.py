"""Ctrl-C that waits: a `KeyboardInterrupt` after a piece of work and not in the middle of it.

Python raises `KeyboardInterrupt` at any line of the main thread. A write that ends between its log record and its place
in memory would leave a store that has to be opened again. So short pieces of work that must be whole run like this:

    with Uninterrupted():
        ...                      a SIGINT is remembered
                                 here the handler of before is called: as a rule it raises KeyboardInterrupt

Where such work becomes long, `Interruptible` lets the signal through again. In other threads than the main one nothing
has to be done: Python runs handlers of signals in the main thread only.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interruptible", "Uninterrupted"]


class _State:
    """Of the main thread, which alone reads and writes it."""

    depth = 0
    before: Callable[[int, FrameType | None], Any] | None = None
    pending: tuple[int, FrameType | None] | None = None


def _remember(number: int, frame: FrameType | None) -> None:
    _State.pending = number, frame


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _hold_back() -> None:
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler) and handler is not _remember:
        try:
            signal.signal(signal.SIGINT, _remember)
        except ValueError:  # a main thread of a subinterpreter
            return
        _State.before = handler


def _let_through() -> None:
    """Raises: what the handler raises, if a signal came meanwhile."""
    before, _State.before = _State.before, None
    if before is not None:
        signal.signal(signal.SIGINT, before)
        pending, _State.pending = _State.pending, None
        if pending is not None:
            before(*pending)


class Uninterrupted:
    """`with Uninterrupted():` no KeyboardInterrupt inside; one that came is raised behind it. May be nested."""

    __slots__ = ()

    def __enter__(self) -> None:
        if _in_main_thread():
            if _State.depth == 0:
                _hold_back()
            _State.depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if _in_main_thread():
            _State.depth -= 1
            if _State.depth == 0:
                _let_through()


class Interruptible:
    """`with Interruptible():` inside `Uninterrupted`, a KeyboardInterrupt may be raised again. For what takes long."""

    __slots__ = ("_depth",)

    def __enter__(self) -> None:
        self._depth = _State.depth if _in_main_thread() else 0
        if self._depth:
            _State.depth = 0
            try:
                _let_through()
            except BaseException:
                self._hold_back_again()
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._depth:
            self._hold_back_again()

    def _hold_back_again(self) -> None:
        _hold_back()
        _State.depth = self._depth
