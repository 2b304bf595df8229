"""Executes a request in the store's writer, whichever process that is.

`with_writer` sends the request, and returns the writer's answer. It handles these errors:

    NoWriter            no process is the writer: become it, and execute the request here
    LockedError         a writer starts or ends: try again, for WAIT_S
    WriterEndedError    the writer ended during the request: send the request again, at most
                        AGAIN_MAX times

A request that is sent again carries the idempotency key of its first attempt. So the next writer
executes the request only if the first writer did not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from nyala.env import Env
from nyala.errors import Error, FencedError, LockedError, StorageError
from nyala.handover.channel import NoWriter, WriterEndedError

logger = logging.getLogger("nyala.handover.commits")

_Result = TypeVar("_Result")

# A process that holds the lock but does not answer has this time to start or to end.
WAIT_S: Final = 60.0
_RETRY_S: Final = 0.02
# Limits a request that kills every process that executes it.
AGAIN_MAX: Final = 5


def with_writer(
    env: Env,
    path: str,
    name: str,
    send: Callable[[], _Result],
    here: Callable[[], _Result],
    *,
    keyed: bool = True,
) -> _Result:
    """Return the result of `send`, or of `here` if no process is the writer.

    name: the name of the request, for log messages.
    send: sends the request to the writer.
    here: becomes the writer and executes the request. Raises: LockedError, FencedError if another
        process is the writer.
    keyed: whether the request has an idempotency key, so that a second attempt finds out what the
        first one did.
    Raises: errors of the request; LockedError if a process holds the lock and does not answer;
        StorageError with outcome "unknown" if a writer ended during the request and a later attempt
        did not find out the outcome.
    """
    clock = env.clock
    lost: WriterEndedError | None = None
    again = 0
    locked_until_s: float | None = None
    while True:
        try:
            try:
                return send()
            except NoWriter:
                return here()
        except WriterEndedError as error:
            if again == AGAIN_MAX:
                raise StorageError(
                    f"{error} (the request was sent again {again} times)", path=path, outcome="unknown"
                ) from error
            again += 1
            logger.info("%s: sending the request %r again", error, name)
            lost, locked_until_s = error, None
        except Error as error:
            if isinstance(error, LockedError | FencedError):
                # Soon the other process answers or releases the lock. A fenced process wrote nothing.
                locked_until_s = locked_until_s or clock.monotonic_s() + WAIT_S
                if clock.monotonic_s() <= locked_until_s:
                    clock.sleep_s(_RETRY_S)
                    continue
            # Only the request's own errors under its key say that the first attempt did nothing.
            # A StorageError or a lock may have kept this attempt from the request.
            if lost is not None and (not keyed or isinstance(error, StorageError | LockedError)):
                raise StorageError(
                    f"{lost} (sending the request again failed: {error})", path=path, outcome="unknown"
                ) from error
            raise
