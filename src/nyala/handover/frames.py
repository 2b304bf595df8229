"""Encodes requests, answers and errors as frames: JSON with attachments.

A frame (little-endian; see docs/format/lease-and-lock.md):

    magic "NYH1" | u32 JSON length | u32 n | n × u64 attachment length | u32 CRC-32C of all that
    JSON | attachments | u32 CRC-32C of these

Frames are sent over a socket (`channel`) or put as objects of a bucket (`inbox`).

Invariants
    S2  Errors of `nyala.errors` arrive with their class and their table of rows. Any other
        exception of the handler becomes a StorageError with outcome "unknown".
    S3  Nothing that a peer sends is executed or unpickled. Lengths are bounded, and memory is allocated as
        bytes arrive, not by the length in a header.
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

__all__ = [
    "ANSWER_MAX_BYTES", "ATTACHMENT_COUNT_MAX", "JSON_MAX_BYTES", "JSON_VALUES_MAX", "MAGIC", "REQUEST_MAX_BYTES",
    "BrokenFrame", "Handler", "decode_error", "decode_frame", "encode_error", "encode_frame", "executed", "opened",
]  # fmt: skip

logger = logging.getLogger("nyala.handover.commits")

Handler: TypeAlias = "Callable[[dict[str, Any], list[bytes]], tuple[dict[str, Any], Sequence[bytes]]]"
"""Executes a request; called from one thread per request, several at a time."""

# Never renumber. Another protocol gets another magic.
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
    """The parts of a frame."""
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
    """Read a frame of bounded size. receive: returns the next n bytes.

    Raises: BrokenFrame for anything that `encode_frame` does not make; otherwise as `receive`.
    """
    fixed = receive(_FIXED.size)
    magic, text_length, count = _FIXED.unpack(fixed)
    if magic != MAGIC:
        raise BrokenFrame(f"magic {magic!r}, expected {MAGIC!r}")
    if text_length > JSON_MAX_BYTES or count > ATTACHMENT_COUNT_MAX:
        raise BrokenFrame(f"{text_length} bytes of JSON and {count} attachments are too many")
    rest = receive(8 * count + _CRC.size)
    lengths = struct.unpack(f"<{count}Q", rest[: 8 * count])
    _check_crc(google_crc32c.value(fixed + rest[: 8 * count]), rest[8 * count :])
    if text_length + sum(lengths) > limit_bytes:
        raise BrokenFrame(f"{text_length + sum(lengths)} bytes are too many: at most {limit_bytes}")
    text = receive(text_length)
    attachments = [receive(length) for length in lengths]
    crc = google_crc32c.value(text)
    for attachment in attachments:
        crc = google_crc32c.extend(crc, attachment)
    _check_crc(crc, receive(_CRC.size))
    # In memory an empty list takes twenty times the space of its text.
    if sum(text.count(sign) for sign in (b"[", b"{", b",")) > JSON_VALUES_MAX:
        raise BrokenFrame(f"the JSON has more than {JSON_VALUES_MAX} values")
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BrokenFrame(f"invalid JSON: {error}") from error
    if not isinstance(message, dict):
        raise BrokenFrame("the JSON is not an object")
    return message, attachments


def _check_crc(found: int, stored: bytes) -> None:
    (expected,) = _CRC.unpack(stored)
    if found != expected:
        raise BrokenFrame(f"CRC-32C {found:#010x}, expected {expected:#010x}")


def encode_error(error: BaseException) -> tuple[dict[str, Any], list[bytes]]:
    """An exception as JSON, and the IPC stream of its table of rows, if any (S2)."""
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
        # Its constructor puts the place before the message, which must not happen twice.
        fields |= {"message": error._message, "path": error.path, "offset": error.offset}
    elif isinstance(error, StorageError):
        fields |= {"path": error.path, "errno": error.errno, "outcome": error.outcome}
    return fields, attachments


def decode_error(fields: dict[str, Any], attachments: Sequence[bytes]) -> Error:
    """The inverse of `encode_error`. A class that only a newer version has becomes `Error`."""
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


def opened(answer: dict[str, Any], attachments: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    """Return the result of the handler from the frame of its answer; raise the handler's error."""
    try:
        if "error" not in answer:
            return dict(answer["answer"]), attachments
        error = decode_error(answer["error"], attachments)
    except (LookupError, TypeError, ValueError, AttributeError) as wrong:
        error = StorageError(
            f"the answer of the process that writes the store makes no sense ({type(wrong).__name__}: {wrong}): use "
            "the same version of Nyala in both processes; it is not known whether the request was done",
            outcome="unknown",
        )
    raise error


def executed(
    handler: Handler, request: dict[str, Any], attachments: list[bytes]
) -> tuple[dict[str, Any], Sequence[bytes]]:
    """Execute a request; returns the frame's content: its answer, or its error (S2)."""
    try:
        answer, returned = handler(request, attachments)
        return {"answer": answer}, returned
    except BaseException as error:
        if not isinstance(error, Error):
            logger.exception("a request of another process failed")
        fields, returned = encode_error(error)
        return {"error": fields}, returned
