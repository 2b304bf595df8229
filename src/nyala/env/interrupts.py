"""Signals that wait: the exception of a signal handler after a piece of work and not in the middle of it.

Python runs signal handlers between any two lines of the main thread, and some raise: Ctrl-C raises `KeyboardInterrupt`,
the alarm of a time limit or a shutdown by SIGTERM raises what its handler says. A write that ends between its log
record and its place in memory would leave a store that has to be opened again. So short pieces of work that must be
whole run like this:

    with Uninterrupted():
        ...                      a signal is remembered
                                 here its handler is called, and may raise

Where such work becomes long, `Interruptible` lets signals through again. In other threads than the main one nothing
has to be done: Python runs signal handlers in the main thread only.

Held back are the signals that programs use to end or interrupt work (`_SIGNALS`), each only while a Python function
handles it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, ClassVar, Final, TypeAlias

__all__ = ["Interruptible", "Uninterrupted"]

Handler: TypeAlias = Callable[[int, FrameType | None], Any]
_NAMES: Final = (
    "SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGUSR1", "SIGUSR2"
)  # fmt: skip
_SIGNALS: Final = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))


class _State:
    """Of the main thread, which alone reads and writes it."""

    depth = 0
    handlers: ClassVar[dict[int, Handler]] = {}
    """The handlers of the signals that are held back."""
    pending: ClassVar[dict[int, FrameType | None]] = {}
    """The signals that came, in their order. One that came twice counts once, as signals do."""


def _remember(number: int, frame: FrameType | None) -> None:
    _State.pending.setdefault(number, frame)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _hold_back() -> None:
    """Raises: what a handler raises, before all signals are held back; then none of them is."""
    try:
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) and handler is not _remember:
                _State.handlers[number] = handler
                signal.signal(number, _remember)
    except ValueError:  # a main thread of a subinterpreter
        _State.handlers = {}
    except BaseException:
        _let_through()
        raise


def _let_through() -> None:
    """Raises: what handlers raise, if signals came meanwhile."""
    handlers = _State.handlers
    try:
        _restore(handlers)
    except BaseException:  # of a signal that comes just now: the handlers of the others are still held back
        _restore(handlers)
        raise
    finally:
        _State.handlers, pending, _State.pending = {}, _State.pending, {}
        _call(handlers, pending)


def _restore(handlers: dict[int, Handler]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _call(handlers: dict[int, Handler], pending: dict[int, FrameType | None]) -> None:
    """Call the handlers of these signals, each also when one before it raises."""
    if pending:
        number = next(iter(pending))
        frame = pending.pop(number)
        try:
            handlers[number](number, frame)
        finally:
            _call(handlers, pending)


class Uninterrupted:
    """`with Uninterrupted():` no signal handler raises inside; the handler of a signal that came is called behind it.

    May be nested.
    """

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
    """`with Interruptible():` inside `Uninterrupted`, signal handlers may raise again. For work that takes long."""

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
