"""Idempotency keys: what those of streams are called, and when one is forgotten.

A batch with a key is committed once, however often its job sends it. Key and timestamp are in the log with the batch,
and in the catalogue from its next transaction on (`Store.transact`), until `keys_to_forget` names the key. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["KEY_RETENTION_US", "keys_to_forget", "stream_key"]

# A job that retries its commit does so within hours; its staged files live for a day.
KEY_RETENTION_US: Final = 7 * 24 * 3600 * 1_000_000


def stream_key(query: str, batch: int) -> str:
    """The idempotency key of a micro-batch of a streaming query. Not 0 to 9 only: a query's id may be anything."""
    return f"stream/{query}/{batch}"


def keys_to_forget(known: Mapping[str, int], now_us: int) -> list[str]:
    """Of idempotency keys, with the moments of their batches in microseconds, those that nobody will send again. Pure.

    Jobs retry within hours. A streaming query may be started again after months, with the micro-batch that it was at:
    so the newest of each query is kept for ever.
    """
    newest: dict[str, int] = {}
    for key, at_us in known.items():
        if key.startswith("stream/"):
            query = key.rpartition("/")[0]
            newest[query] = max(newest.get(query, at_us), at_us)
    return [
        key
        for key, at_us in known.items()
        if at_us < now_us - KEY_RETENTION_US
        and not (key.startswith("stream/") and at_us == newest[key.rpartition("/")[0]])
    ]
