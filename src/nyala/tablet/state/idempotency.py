"""Idempotency keys: a batch with a key is committed once, even if its job sends it several times.

The log stores the key, the timestamp and the row counts with the batch. The next change of the
catalogue stores them too (`Store.transact`), until the key expires (`keys_to_forget`). If a job
repeats a stored key, nothing is written, and the job gets the stored counts. The errors of failed
rows are not stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from nyala.tablet.state.result import WriteResult
from nyala.tablet.state.validation import validating

# A job repeats its commit within hours, because its staged files are kept for a day.
KEY_RETENTION_US: Final = 7 * 24 * 3600 * 1_000_000
# If the process that executes a call has ended, the caller repeats the call at once.
CALL_RETENTION_US: Final = 15 * 60 * 1_000_000
_CALL: Final = "call/"


COUNTS: Final = ("inserted", "updated", "deleted", "ignored")
FAILED: Final = "failed"


def encode_counts(counts: Mapping[str, int] | None) -> str:
    """Return a batch's row counts as the text that the catalogue stores.

    counts: None: not known.
    """
    return json.dumps(dict(counts or {}), separators=(",", ":"))


def decode_result(timestamp: int, text: str) -> tuple[WriteResult, int]:
    """Return the result of a committed batch, and the number of its failed rows.

    text: the result of `encode_counts`. Raises: CorruptionError for any other text.
    """
    with validating("result recorded under an idempotency key"):
        counts = json.loads(text)
        found = {name: counts.get(name, 0) for name in (*COUNTS, FAILED)}
        if not all(type(count) is int for count in found.values()):
            raise ValueError(f"counts are {found}, expected whole numbers")
    failed = found.pop(FAILED)
    return WriteResult(timestamp, **found), failed


def stream_key(query: str, batch: int) -> str:
    """Return the idempotency key of a micro-batch of a streaming query; `query` may be any text."""
    return f"stream/{query}/{batch}"


def call_key(token: str) -> str:
    """Return the idempotency key of a call that a process sends to the writer's process.

    token: a random text that the caller makes for this call.
    """
    return f"{_CALL}{token}"


def is_call_key(key: str) -> bool:
    """Whether the key belongs to a call that another process sent (see `call_key`).

    Such keys are kept for a shorter time than those of jobs.
    """
    return key.startswith(_CALL)


def keys_to_forget(known: Mapping[str, int], now_us: int) -> list[str]:
    """Return the expired idempotency keys: those so old that no job repeats them any more.

    known: for each key, the time of its batch in microseconds since 1970.

    A streaming query may be restarted after months, and then repeats its last micro-batch. So the
    newest key of each query never expires.
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
