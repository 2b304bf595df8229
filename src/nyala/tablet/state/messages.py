"""Commit messages: texts that callers give to their writes.

The log stores a message with its batch. The next change of the catalogue also stores the message
(`Store.transact`). A message is removed when no table can be read at the moment of its commit any
more, or when newer messages fill `MESSAGES_MAX_BYTES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nyala.catalog.model import CommitMessage
from nyala.errors import InvalidArgumentError

MESSAGE_MAX_LENGTH: Final = 1000
# Each open reads the whole catalogue, so the size of all messages is limited.
MESSAGES_MAX_BYTES: Final = 16 << 20
# The size of an entry in a checkpoint, without its text.
_ENTRY_BYTES: Final = 64


def check_message(message: object) -> str | None:
    """Return `message` if it is None or a valid commit message. Raises: InvalidArgumentError."""
    if message is None:
        return None
    if not isinstance(message, str):
        raise InvalidArgumentError(f"message takes a text, not {message!r:.100}")
    if not message:
        raise InvalidArgumentError("message is empty: give the commit a text, or leave message= out")
    if len(message) > MESSAGE_MAX_LENGTH:
        raise InvalidArgumentError(
            f"message has {len(message):,} characters, and at most {MESSAGE_MAX_LENGTH:,} are stored: "
            f"{message[:40]!r}… Shorten it, or keep the text in a table"
        )
    try:
        message.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(
            f"message {message!r:.100} has half of a surrogate pair, which is not a character"
        ) from None
    return message


def messages_to_forget(known: Mapping[int, CommitMessage], oldest: int) -> list[int]:
    """Return the timestamps of the messages that the catalogue does not need any more.

    oldest: the oldest moment at which any table can be read. Older commits cannot be listed.
    """
    gone = [timestamp for timestamp in known if timestamp <= oldest]
    left = sorted(known.keys() - set(gone), reverse=True)
    total = 0
    for number, timestamp in enumerate(left):
        total += len(known[timestamp].message.encode()) + _ENTRY_BYTES
        if total > MESSAGES_MAX_BYTES:
            return gone + left[number:]
    return gone
