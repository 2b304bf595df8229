"""Delays signal handlers until the end of a critical section.

Python runs signal handlers between any two lines of the main thread, and some raise: Ctrl-C raises
`KeyboardInterrupt`; the handler of a time limit or of SIGTERM raises its own exception. If a write
ended between its log record and its place in memory, the store would have to be opened again. So
short critical sections run like this:

    with Uninterrupted():
        ...                      a signal is remembered
                                 at the end its handler is called, and may raise

`Interruptible` allows signals again inside of such a section where it takes long. Python runs
signal handlers in the main thread only. Other threads are ended in the same places: `Cancellable`
gives a function to call there, which raises if the work is not wanted any more.

Only signals that programs use to end or interrupt work are delayed (`_SIGNALS`), and only if a
Python function handles them.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, ClassVar, Final, TypeAlias

__all__ = ["Cancellable", "Interruptible", "Uninterrupted", "checkpoint"]

Handler: TypeAlias = Callable[[int, FrameType | None], Any]
_NAMES: Final = (
    "SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGUSR1", "SIGUSR2"
)  # fmt: skip
_SIGNALS: Final = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))


class _State:
    """The state of the main thread, which alone reads and writes it."""

    depth = 0
    handlers: ClassVar[dict[int, Handler]] = {}
    """The handlers of the delayed signals."""
    pending: ClassVar[dict[int, FrameType | None]] = {}
    """The signals that came, in order. A repeated signal counts once, as usual for signals."""


def _remember(number: int, frame: FrameType | None) -> None:
    _State.pending.setdefault(number, frame)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _hold_back() -> None:
    """Delay all signals. If a handler raises before that is done, none is delayed."""
    try:
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) and handler is not _remember:
                _State.handlers[number] = handler
                signal.signal(number, _remember)
    except ValueError:  # the main thread of a subinterpreter
        _State.handlers = {}
    except BaseException:
        _let_through()
        raise


def _let_through() -> None:
    """Restore the handlers, and call those of signals that came meanwhile; they may raise."""
    handlers = _State.handlers
    try:
        _restore(handlers)
    except BaseException:  # raised for a signal that comes just now, before all handlers are restored
        _restore(handlers)
        raise
    finally:
        _State.handlers, pending, _State.pending = {}, _State.pending, {}
        _call(handlers, pending)


def _restore(handlers: dict[int, Handler]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _call(handlers: dict[int, Handler], pending: dict[int, FrameType | None]) -> None:
    """Call the handlers of these signals, each one even if an earlier one raises."""
    if pending:
        number = next(iter(pending))
        frame = pending.pop(number)
        try:
            handlers[number](number, frame)
        finally:
            _call(handlers, pending)


class Uninterrupted:
    """Delays signal handlers: `with Uninterrupted():` calls the handlers of signals that came at
    its end.

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


class _Checks(threading.local):
    check: Callable[[], None] | None = None


_CHECKS: Final = _Checks()


class Cancellable:
    """Lets work of this thread be ended where signals could end it: there `check` is called, which may raise."""

    __slots__ = ("_before", "_check")

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check

    def __enter__(self) -> None:
        self._before, _CHECKS.check = _CHECKS.check, self._check

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _CHECKS.check = self._before


def _check() -> None:
    if _CHECKS.check is not None:
        _CHECKS.check()


def checkpoint() -> None:
    """End the work here if a signal came, or if the check of `Cancellable` says so: both may raise.

    Cost: a microsecond.
    """
    _check()
    if _State.pending and _in_main_thread():
        with Interruptible():
            pass


class Interruptible:
    """Allows signal handlers again during long work inside `Uninterrupted`."""

    __slots__ = ("_depth",)

    def __enter__(self) -> None:
        _check()
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
        if kind is None:
            _check()

    def _hold_back_again(self) -> None:
        _hold_back()
        _State.depth = self._depth
