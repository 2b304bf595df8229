"""Creates an object, and finds out whether a failed request created it.

    answer of `create`     what `settle` does
    stored                 return None
    refused                read the object:
                             the same bytes: return None, because an earlier attempt stored them
                             other bytes: return them, because another writer was first
                             no object: wait, and try again. Another request was in progress, or
                               the object was deleted in the meantime.
    unknown                wait, and send the same bytes to the same key again

To send the same bytes again is safe, because the bucket stores only the first. The bytes of each call
must be unique (by a random token). So equal bytes prove that this call stored them.

Source: docs/design/object-storage.md, "Put-if-absent".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from nyala.env import Bytes, Env
from nyala.errors import StorageError
from nyala.objects.base import Objects

PATIENCE_S: Final = 60.0
_PAUSE_MIN_S: Final = 0.02
_PAUSE_MAX_S: Final = 2.0

_Result = TypeVar("_Result")


def settle(
    env: Env, objects: Objects, key: str, body: Bytes, *, patience_s: float = PATIENCE_S
) -> bytes | None:
    """Create the object `key` with `body`, which must be unique to this call.

    Returns: None if the object has these bytes now; otherwise the bytes that it has.
    Raises: StorageError; its outcome is "unknown" if the bucket did not answer for `patience_s`.
    """
    mine = bytes(memoryview(body))
    deadline_s = env.clock.monotonic_s() + patience_s
    pause_s = _PAUSE_MIN_S
    doubtful = False  # whether an earlier attempt of this call may have stored the bytes
    while True:
        try:
            if objects.create(key, body):
                return None
            found = objects.get(key)
            if found is not None:
                return None if found == mine else found
        except StorageError as error:
            doubtful = doubtful or error.outcome == "unknown"
            if error.outcome != "unknown" or env.clock.monotonic_s() > deadline_s:
                error.outcome = "unknown" if doubtful else None
                raise
        if env.clock.monotonic_s() > deadline_s:
            raise StorageError(
                f"the bucket refuses again and again to create {objects.url}/{key}, which does not exist: test "
                "the bucket with `nyala fs probe`",
                path=f"{objects.url}/{key}",
                outcome="unknown",
            )
        pause_s = _pause(env, pause_s)


def persist(env: Env, request: Callable[[], _Result], *, patience_s: float = PATIENCE_S) -> _Result:
    """Send a request again until the bucket answers; return the answer.

    For requests that may be executed twice: reads, lists, deletions, and a `put` of the same bytes.
    Raises: StorageError if the bucket refused the request, or did not answer for `patience_s`.
    """
    deadline_s = env.clock.monotonic_s() + patience_s
    pause_s = _PAUSE_MIN_S
    while True:
        try:
            return request()
        except StorageError as error:
            if error.outcome != "unknown" or env.clock.monotonic_s() > deadline_s:
                raise
        pause_s = _pause(env, pause_s)


def _pause(env: Env, pause_s: float) -> float:
    """Wait for a random time, 0.5 to 1.5 times `pause_s`; return the pause for the next call.

    The next pause is twice as long, but at most _PAUSE_MAX_S. The time is random, so that processes
    that failed together do not try again together.
    """
    env.clock.sleep_s(pause_s * (0.5 + int(env.randomness.token_hex(2), 16) / 0x10000))
    return min(pause_s * 2, _PAUSE_MAX_S)
