"""Delays signal handlers until the end of a critical section.

Python may run a signal handler between any two lines of the main thread, and a handler may raise:
Ctrl-C raises `KeyboardInterrupt`, and a program's own handler may raise any error. An exception
after a write's log record, and before the write changes the memory, would make the open store
unusable. So short critical sections run like this:

    with Uninterrupted():
        ...                      if a signal comes, it is remembered
                                 at the end its handler is called, and may raise

Where such a section waits or works for long, `Interruptible` and `checkpoint` call the handlers
early.

Python runs handlers in the main thread only. To stop another thread, run its work inside of `with
Cancellable(check)`: `Interruptible` and `checkpoint` also call `check`, which may raise.

Only the signals in `_SIGNALS` are delayed, and only if their handler is a Python function. Programs
use these signals to end or interrupt work.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, ClassVar, Final, TypeAlias

Handler: TypeAlias = Callable[[int, FrameType | None], Any]
_NAMES: Final = (
    "SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGUSR1", "SIGUSR2"
)  # fmt: skip
_SIGNALS: Final = tuple(int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name))


class _State:
    """The state of this module. Only the main thread reads and writes it."""

    depth = 0
    """How many `Uninterrupted` blocks are open."""
    handlers: ClassVar[dict[int, Handler]] = {}
    """The program's handlers of the delayed signals."""
    pending: ClassVar[dict[int, FrameType | None]] = {}
    """The signals that came, in order. A repeated signal is kept once."""


def _remember(number: int, frame: FrameType | None) -> None:
    _State.pending.setdefault(number, frame)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _hold_back() -> None:
    """Delay the handlers of signals until `_let_through` is called.

    If a handler raises an error during this call, restore all handlers, then raise the error.
    """
    try:
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) and handler is not _remember:
                _State.handlers[number] = handler
                signal.signal(number, _remember)
    except ValueError:  # in a subinterpreter, which cannot set handlers
        _State.handlers = {}
    except BaseException:
        _let_through()
        raise


def _let_through() -> None:
    """Restore the handlers of signals that `_hold_back` replaced.

    Then call the handlers of the signals that came since `_hold_back` replaced them. A handler may
    raise an error.
    """
    handlers = _State.handlers
    try:
        _restore(handlers)
    except BaseException:  # a restored handler raised, for a signal that came just now
        _restore(handlers)
        raise
    finally:
        _State.handlers, pending, _State.pending = {}, _State.pending, {}
        _call(handlers, pending)


def _restore(handlers: dict[int, Handler]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _call(handlers: dict[int, Handler], pending: dict[int, FrameType | None]) -> None:
    """Call the handler of each of these signals, even if an earlier handler raises."""
    if pending:
        number = next(iter(pending))
        frame = pending.pop(number)
        try:
            handlers[number](number, frame)
        finally:
            _call(handlers, pending)


class Uninterrupted:
    """Delays signal handlers until the end of the `with` block. May be nested."""

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
    """Makes the work in a `with` block cancellable: `check` raises an error to end it.

    `checkpoint` and `Interruptible` call `check` when this thread reaches them.
    """

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
    """Call the handlers of delayed signals, and the check of `Cancellable`. Both may raise.

    Long loops inside `Uninterrupted` call this. Cost: a microsecond.
    """
    _check()
    if _State.pending and _in_main_thread():
        with Interruptible():
            pass


class Interruptible:
    """Lets signal handlers run at once in its `with` block, although it is inside `Uninterrupted`."""

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
