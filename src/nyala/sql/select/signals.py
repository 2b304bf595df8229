"""Lets Ctrl-C end a statement that DuckDB runs in the main thread.

DuckDB looks for signals between pieces of work, and one piece can take hours. So a thread waits for the signal, which
the interpreter writes to a socket at once, and interrupts DuckDB. Then Python raises KeyboardInterrupt.

This happens only while Ctrl-C has Python's own handler, and while nobody else uses the socket of signals, as asyncio
does.

Source: Python, `signal.set_wakeup_fd`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from nyala.env import SYSTEM

__all__ = ["interruptible"]

T = TypeVar("T")


class _Watch:
    """The thread that waits, and what runs in the main thread now: a cursor, in a new tuple for each run."""

    pid: ClassVar[int] = 0
    sockets: ClassVar[tuple[socket.socket, socket.socket]]
    running: ClassVar[tuple[Any] | None] = None
    interrupted: ClassVar[bool] = False


def interruptible(cursor: Any, act: Callable[[], T]) -> T:
    """Call `act`, which runs a statement on the cursor. Ctrl-C interrupts it. Cost: about a microsecond."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        return act()
    ours = _started()
    before = signal.set_wakeup_fd(ours, warn_on_full_buffer=False)
    if before not in (-1, ours):
        signal.set_wakeup_fd(before)
        return act()
    try:
        _Watch.interrupted, _Watch.running = False, (cursor,)
        return act()
    except Exception as error:
        if _Watch.interrupted:  # DuckDB has taken what Python's handler raised
            raise KeyboardInterrupt from error
        raise
    finally:
        _Watch.running = None
        signal.set_wakeup_fd(-1)


def _started() -> int:
    """Return the socket for signals, whose other end a thread reads."""
    if _Watch.pid != os.getpid():
        _Watch.sockets = socket.socketpair()
        for each in _Watch.sockets:
            each.set_inheritable(False)
        _Watch.sockets[1].setblocking(False)
        thread = threading.Thread(target=_wait, args=(_Watch.sockets[0],), name="nyala-ctrl-c", daemon=True)
        thread.start()
        atexit.register(_end, os.getpid(), _Watch.sockets[1], thread)
        _Watch.pid = os.getpid()
    return _Watch.sockets[1].fileno()


def _end(pid: int, signals: socket.socket, thread: threading.Thread) -> None:
    """End the thread before the interpreter exits: DuckDB complains of objects that live then."""
    if pid == os.getpid():
        signals.close()
        thread.join()


def _wait(signals: socket.socket) -> None:
    while got := signals.recv(64):
        running = _Watch.running if signal.SIGINT in got else None
        # Again and again, because the statement may begin a moment later; KeyboardInterrupt ends it.
        for _ in range(100):
            if running is None or _Watch.running is not running:
                break
            _Watch.interrupted = True
            with contextlib.suppress(Exception):
                running[0].interrupt()
            SYSTEM.clock.sleep_s(0.05)
        del running  # nothing of DuckDB may live when the interpreter exits
