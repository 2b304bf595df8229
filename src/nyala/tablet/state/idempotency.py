"""Idempotency keys: what those of streams are called, what is told of a batch that is sent again, and when a key is
forgotten.

A batch with a key is committed once, however often its job sends it. Key, timestamp and counts are in the log with the
batch, and in the catalogue from its next transaction on (`Store.transact`), until `keys_to_forget` names the key: whose
answer was lost is told what he would have been told, but for the rows that failed, of which the number is known. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from nyala.tablet.state.result import WriteResult
from nyala.tablet.state.validation import making_sense

__all__ = ["COUNTS", "FAILED", "KEY_RETENTION_US", "answer_of", "encode_told", "keys_to_forget", "stream_key"]

# A job that retries its commit does so within hours; its staged files live for a day.
KEY_RETENTION_US: Final = 7 * 24 * 3600 * 1_000_000


COUNTS: Final = ("inserted", "updated", "deleted", "ignored")
FAILED: Final = "failed"


def encode_told(told: Mapping[str, int] | None) -> str:
    """What became of the rows, counted, as the catalogue has it. None: of a batch of which only the key is known."""
    return json.dumps(dict(told or {}), separators=(",", ":"))


def answer_of(timestamp: int, text: str) -> tuple[WriteResult, int]:
    """The answer of a batch that was committed before, and how many of its rows failed, which it does not name.

    Raises: CorruptionError for a text that `encode_told` has not made.
    """
    with making_sense("answer recorded under an idempotency key"):
        told = json.loads(text)
        found = {name: told.get(name, 0) for name in (*COUNTS, FAILED)}
        if not all(type(count) is int for count in found.values()):
            raise ValueError(f"counts of {found}")
    failed = found.pop(FAILED)
    return WriteResult(timestamp, **found), failed


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
