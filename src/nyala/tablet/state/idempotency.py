"""Idempotency keys: names for streams, the recorded result of a batch, and forgetting keys.

A batch with a key is committed once, however often its job sends it. The log stores key, timestamp
and counts with the batch; the catalogue stores them from its next transaction on
(`Store.transact`), until `keys_to_forget` returns the key. A caller who lost the result gets the
same counts again, but not the rows that failed, only their number. Everything here is pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from nyala.tablet.state.result import WriteResult
from nyala.tablet.state.validation import validating

# A job that retries its commit does so within hours; its staged files live for a day.
KEY_RETENTION_US: Final = 7 * 24 * 3600 * 1_000_000
# A process that shares the store sends a call again at once, when its executor has ended.
CALL_RETENTION_US: Final = 15 * 60 * 1_000_000
_CALL: Final = "call/"


COUNTS: Final = ("inserted", "updated", "deleted", "ignored")
FAILED: Final = "failed"


def encode_counts(counts: Mapping[str, int] | None) -> str:
    """The row counts of a batch as the catalogue stores them. None: only the key is known."""
    return json.dumps(dict(counts or {}), separators=(",", ":"))


def decode_result(timestamp: int, text: str) -> tuple[WriteResult, int]:
    """The result of a committed batch, and the number of its failed rows.

    Raises: CorruptionError if `encode_counts` did not make the text.
    """
    with validating("result recorded under an idempotency key"):
        counts = json.loads(text)
        found = {name: counts.get(name, 0) for name in (*COUNTS, FAILED)}
        if not all(type(count) is int for count in found.values()):
            raise ValueError(f"counts are {found}, expected whole numbers")
    failed = found.pop(FAILED)
    return WriteResult(timestamp, **found), failed


def stream_key(query: str, batch: int) -> str:
    """The idempotency key of a micro-batch of a streaming query; `query` may be any text."""
    return f"stream/{query}/{batch}"


def call_key(token: str) -> str:
    """The idempotency key of a call of a process that shares the store."""
    return f"{_CALL}{token}"


def is_call_key(key: str) -> bool:
    """Whether `call_key` made the key."""
    return key.startswith(_CALL)


def keys_to_forget(known: Mapping[str, int], now_us: int) -> list[str]:
    """The idempotency keys that no job sends again; `known` has the time of each key's batch in µs.

    Jobs retry within hours. A streaming query may be restarted after months and then repeats its
    last micro-batch, so the newest key of each query is kept forever.
    """
    newest: dict[str, int] = {}
    for key, at_us in known.items():
        if key.startswith("stream/"):
            query = key.rpartition("/")[0]
            newest[query] = max(newest.get(query, at_us), at_us)
    return [
        key
        for key, at_us in known.items()
        if at_us < now_us - (CALL_RETENTION_US if is_call_key(key) else KEY_RETENTION_US)
        and not (key.startswith("stream/") and at_us == newest[key.rpartition("/")[0]])
    ]
