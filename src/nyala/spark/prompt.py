"""Bytes between a Python worker and its JVM that the kernel does not hold back.

    JVM                                     worker
    the function       ─────────────►       reads it, and waits for rows; its kernel puts off the acknowledgement
    its first rows        held back         until the worker writes something, or 40 ms are over,
      (Nagle: a small segment waits for     and the JVM's kernel sends the small second segment only then
       the acknowledgement before it)

So each task of Python's stands still for 40 ms before it sees its input, longer than a small one works. Spark sets
neither of the two options that TCP has against it; the worker can set both for its own end of the connection:
acknowledge at once (TCP_QUICKACK, which lasts for some segments only, and so is set by every task), and send small
segments at once (TCP_NODELAY).

Left out: sockets of other kinds, and systems without these options, where nothing is held back or nothing can be done.
Source: RFC 896, RFC 1122 (4.2.3.2); tcp(7); seen with strace, docs/decisions/0030.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from types import FrameType
from typing import Any

__all__ = ["Promptly", "hold_nothing_back", "worker_stream"]


def hold_nothing_back() -> None:
    """To be called in a worker before it reads rows, as often as one likes. Elsewhere it does nothing. Cost: 10 us."""
    stream = worker_stream()
    if stream is None:
        return
    with contextlib.suppress(OSError, AttributeError, ValueError):  # no socket, no such option, closed
        connection = socket.socket(fileno=stream.fileno())
        try:
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        finally:
            connection.detach()  # it is Spark's


class Promptly:
    """What Spark sends to workers as a pickle, and reads more from the same connection before it calls a method."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        hold_nothing_back()
        for name, value in state.items():
            setattr(self, name, value)


def worker_stream() -> Any:
    """What this worker reads from its JVM, which PySpark calls `infile` wherever it has it; None: this is no worker."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("pyspark."):
            found = frame.f_locals.get("infile")
            if hasattr(found, "fileno"):
                return found
        frame = frame.f_back
    return None
