"""Encodes requests, answers and errors as frames. A frame is JSON with attachments, which are bytes.

The layout of a frame (little-endian; n is the number of attachments):

    "NYH1" | u32 length of the JSON | u32 n | n × u64 length of an attachment | u32 CRC-32C of this line
    JSON | attachments | u32 CRC-32C of this line

Frames are sent over a socket (`channel`) or put as objects of a bucket (`inbox`).

Invariants
    S2  An error of `nyala.errors` arrives with its class and its table of failed rows. Any other
        exception of the handler arrives as a StorageError with outcome "unknown".
    S3  Received bytes are never executed or unpickled. Lengths are bounded. Memory is allocated as
        bytes arrive, not by the lengths in a frame's first line.

Source: docs/format/lease-and-lock.md.
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import google_crc32c

import nyala.errors
from nyala.errors import ConflictError, CorruptionError, Error, StorageError, WriteError
from nyala.schema.arrow_ipc import from_ipc, to_ipc

logger = logging.getLogger("nyala.handover.commits")

Handler: TypeAlias = "Callable[[dict[str, Any], list[bytes]], tuple[dict[str, Any], Sequence[bytes]]]"
"""Executes a request: takes its JSON and attachments, returns those of the answer. Thread-safe."""

# Another layout of frames needs another MAGIC.
MAGIC: Final = b"NYH1"
_FIXED = struct.Struct("<4sII")
_CRC = struct.Struct("<I")
JSON_MAX_BYTES: Final = 32 << 20
JSON_VALUES_MAX: Final = 4 << 20
ATTACHMENT_COUNT_MAX: Final = 4096
# Limits of one request with its attachments, and of one answer.
REQUEST_MAX_BYTES: Final = 48 << 20
ANSWER_MAX_BYTES: Final = 4 << 30


class BrokenFrame(Exception):
    """The received bytes are not a frame."""


def encode_frame(message: dict[str, Any], attachments: Sequence[bytes]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a frame, in parts."""
    text = json.dumps(message, separators=(",", ":")).encode()
    views = [memoryview(attachment).cast("B") for attachment in attachments]
    lengths = struct.pack(f"<{len(views)}Q", *(view.nbytes for view in views))
    head = _FIXED.pack(MAGIC, len(text), len(views)) + lengths
    crc = google_crc32c.value(text)
    yield head + _CRC.pack(google_crc32c.value(head)) + text
    for view in views:
        crc = google_crc32c.extend(crc, bytes(view))
        yield view
    yield _CRC.pack(crc)


def decode_frame(receive: Callable[[int], bytes], limit_bytes: int) -> tuple[dict[str, Any], list[bytes]]:
    """Read a frame; return its JSON and its attachments.

    receive: returns the next n bytes.
    limit_bytes: the most bytes of the JSON and the attachments together.
    Raises: BrokenFrame if the bytes are not a frame or the frame is too large; the errors that
        `receive` raises.
    """
    fixed = receive(_FIXED.size)
    magic, text_length, count = _FIXED.unpack(fixed)
    if magic != MAGIC:
        raise BrokenFrame(f"the received bytes begin with {magic!r}, expected {MAGIC!r}")
    if text_length > JSON_MAX_BYTES or count > ATTACHMENT_COUNT_MAX:
        raise BrokenFrame(
            f"found {text_length} bytes of JSON (limit {JSON_MAX_BYTES}) and {count} attachments (limit "
            f"{ATTACHMENT_COUNT_MAX})"
        )
    rest = receive(8 * count + _CRC.size)
    lengths = struct.unpack(f"<{count}Q", rest[: 8 * count])
    _check_crc(google_crc32c.value(fixed + rest[: 8 * count]), rest[8 * count :])
    if text_length + sum(lengths) > limit_bytes:
        raise BrokenFrame(
            f"the JSON and the attachments have {text_length + sum(lengths)} bytes, and at most {limit_bytes} are "
            "allowed"
        )
    text = receive(text_length)
    attachments = [receive(length) for length in lengths]
    crc = google_crc32c.value(text)
    for attachment in attachments:
        crc = google_crc32c.extend(crc, attachment)
    _check_crc(crc, receive(_CRC.size))
    # Decoded JSON can take 20 times the memory of its text: an empty list has 2 bytes of text.
    if sum(text.count(sign) for sign in (b"[", b"{", b",")) > JSON_VALUES_MAX:
        raise BrokenFrame(f"the JSON has more than {JSON_VALUES_MAX} values")
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BrokenFrame(f"invalid JSON: {error}") from error
    if not isinstance(message, dict):
        raise BrokenFrame(f"expected a JSON object as the message, found {message!r:.100}")
    return message, attachments


def _check_crc(found: int, stored: bytes) -> None:
    (expected,) = _CRC.unpack(stored)
    if found != expected:
        raise BrokenFrame(f"the checksum of the received bytes is {found:#010x}, expected {expected:#010x}")


def encode_error(error: BaseException) -> tuple[dict[str, Any], list[bytes]]:
    """Return an exception as JSON, and its table of failed rows, if it has one, as an attachment.

    An exception that is not a `nyala.errors.Error` becomes a StorageError with outcome "unknown".
    """
    if not isinstance(error, Error):
        error = StorageError(
            f"the process that writes the store failed on the request ({type(error).__name__}: {error}); it is not "
            "known whether the request was done",
            outcome="unknown",
        )
    fields: dict[str, Any] = {
        "class": next(cls.__name__ for cls in type(error).__mro__ if cls.__module__ == Error.__module__),
        "message": str(error),
    }
    attachments: list[bytes] = []
    if isinstance(error, WriteError):
        fields["applied"] = error.applied
        if error.errors is not None:
            attachments.append(bytes(to_ipc(error.errors)))
    elif isinstance(error, ConflictError):
        fields["table"] = error.table
        if error.keys is not None:
            attachments.append(bytes(to_ipc(error.keys)))
    elif isinstance(error, CorruptionError):
        # str(error) has the path before the message, and the constructor would add it again.
        fields |= {"message": error._message, "path": error.path, "offset": error.offset}
    elif isinstance(error, StorageError):
        fields |= {"path": error.path, "errno": error.errno, "outcome": error.outcome}
    return fields, attachments


def decode_error(fields: dict[str, Any], attachments: Sequence[bytes]) -> Error:
    """Return the exception that `encode_error` encoded; an `Error` if its class is unknown here."""
    name, message = str(fields["class"]), str(fields["message"])
    cls = getattr(nyala.errors, name, None) if name in nyala.errors.__all__ else None
    if not (isinstance(cls, type) and issubclass(cls, Error)):
        return Error(message)
    if issubclass(cls, WriteError):
        table = from_ipc(attachments[0]) if attachments else None
        return cls(message, table, int(fields.get("applied", 0)))
    if issubclass(cls, ConflictError):
        keys = from_ipc(attachments[0]) if attachments else None
        return cls(message, str(fields.get("table", "")), keys)
    if issubclass(cls, CorruptionError):
        return cls(message, fields.get("path"), fields.get("offset"))
    if issubclass(cls, StorageError):
        return cls(message, path=fields.get("path"), errno=fields.get("errno"), outcome=fields.get("outcome"))
    return cls(message)


def unpack_answer(answer: dict[str, Any], attachments: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """Return the answer and attachments of an executed request, or raise its error.

    answer, attachments: the JSON and attachments of the frame that `execute` returned.
    """
    try:
        if "error" not in answer:
            return dict(answer["answer"]), attachments
        error = decode_error(answer["error"], attachments)
    except (LookupError, TypeError, ValueError, AttributeError) as wrong:
        error = StorageError(
            f"the answer of the process that writes the store is invalid ({type(wrong).__name__}: {wrong}): use "
            "the same version of Nyala in that process and in this one; it is not known whether the request was done",
            outcome="unknown",
        )
    raise error


def execute(
    handler: Handler, request: dict[str, Any], attachments: list[bytes]
) -> tuple[dict[str, Any], Sequence[bytes]]:
    """Execute a request; return the answer as JSON and attachments, for a frame.

    The JSON is {"answer": …}, or {"error": …} if `handler` raised an exception.

    handler: the function that does the work. request, attachments: the content of the request.
    """
    try:
        answer, returned = handler(request, attachments)
        return {"answer": answer}, returned
    except BaseException as error:
        if not isinstance(error, Error):
            logger.exception("a request of another process failed")
        fields, returned = encode_error(error)
        return {"error": fields}, returned
