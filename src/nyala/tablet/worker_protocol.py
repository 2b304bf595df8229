"""What a worker process and its parent say to each other: frames of JSON over one Unix socket.

    parent (`nyala.tablet.workers`)                            child (`nyala._worker`)
                                           ◄── {"hello": {"nyala": version, "pid": …}}
    {"job": 1, "kind": …, "arguments": {…}, "path": […]} ──►   handler(arguments, report)
                                           ◄── {"progress": {…}, "job": 1}       as often as it likes
                                           ◄── {"answer": {…}, "job": 1} or {"error": {…}, "job": 1}

A frame (little-endian): magic "NYW1" | u32 length of the JSON | JSON.

Invariants
    K1  Nothing that a peer sends is executed or unpickled, and lengths are bounded before room is made for them.
    K2  Bytes that are no frame are known by their first wrong byte, so that nobody waits for the rest of them.
    K3  Errors of `nyala.errors` arrive as what they were, with their fields; only the table of rows of a
        WriteError stays behind.
Left out: checksums (the bytes never leave the machine's memory), versions (both sides are one installation, which
the hello proves).
Imports next to nothing: the child's start waits for it.
"""

from __future__ import annotations

import functools
import json
import struct
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import nyala.errors
from nyala.errors import CorruptionError, Error, StorageError, WriteError

if TYPE_CHECKING:
    from nyala.env import Files

__all__ = [
    "FRAME_MAX_BYTES",
    "MAGIC",
    "BrokenFrame",
    "FrameDecoder",
    "Handler",
    "JobFailedError",
    "Report",
    "check_placed",
    "decode_error",
    "encode_error",
    "encode_frame",
    "placed",
    "version",
]

Report: TypeAlias = "Callable[[dict[str, Any]], None]"
"""Tells the parent how far a job is. It may raise, in order to end the job: the handler lets that through."""

Handler: TypeAlias = "Callable[[dict[str, Any], Report], dict[str, Any]]"
"""Carries out a job: (arguments, report) -> answer, all of them fit for JSON."""

MAGIC: Final = b"NYW1"
# A job names files and an answer lists what was written of each column: a megabyte would be a large one.
FRAME_MAX_BYTES: Final = 64 << 20

_HEAD = struct.Struct("<4sI")
_TRACE_MAX_CHARS: Final = 64 << 10


def version() -> str:
    """Of the Nyala that is loaded here. Not by an import of the package, which stands above all layers."""
    return str(sys.modules["nyala"].__version__)


class BrokenFrame(Exception):
    """What came is no frame, or what is to be sent does not fit into one."""


class JobFailedError(RuntimeError):
    """A handler failed with what is no `nyala.Error`: a mistake of ours. The remote traceback is a note on it."""


def encode_frame(message: dict[str, Any]) -> bytes:
    """Raises: TypeError when it is not fit for JSON, BrokenFrame when it is too large."""
    text = json.dumps(message, separators=(",", ":")).encode("ascii")
    if len(text) > FRAME_MAX_BYTES:
        raise BrokenFrame(f"a message of {len(text)} bytes is above the limit of {FRAME_MAX_BYTES}")
    return _HEAD.pack(MAGIC, len(text)) + text


class FrameDecoder:
    """Bytes as they come, in any portions, to messages. For one thread."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that `data` completes. Raises: BrokenFrame (K2); then the decoder is of no more use."""
        self._pending += data
        messages = []
        while self._pending:
            start = bytes(self._pending[: len(MAGIC)])
            if not MAGIC.startswith(start):
                raise BrokenFrame(f"a frame begins with {MAGIC!r}, these bytes with {start!r}")
            if len(self._pending) < _HEAD.size:
                break
            _, length = _HEAD.unpack_from(self._pending)
            if length > FRAME_MAX_BYTES:
                raise BrokenFrame(f"a frame of {length} bytes is above the limit of {FRAME_MAX_BYTES}")
            end = _HEAD.size + length
            if len(self._pending) < end:
                break
            text = bytes(self._pending[_HEAD.size : end])
            del self._pending[:end]
            try:
                message = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise BrokenFrame(f"the JSON is none: {error}") from error
            if not isinstance(message, dict):
                raise BrokenFrame("the JSON is no object")
            messages.append(message)
        return messages


def encode_error(error: BaseException) -> dict[str, Any]:
    """An exception as JSON (K3)."""
    if isinstance(error, MemoryError):
        error = StorageError(
            "a worker process ran out of memory; nothing was changed: end what else uses the machine's memory, or "
            "give it more"
        )
    if not isinstance(error, Error):
        import traceback

        trace = "".join(traceback.format_exception(error))[-_TRACE_MAX_CHARS:]
        return {"class": None, "message": f"{type(error).__name__}: {error}", "trace": trace}
    fields: dict[str, Any] = {
        "class": next(cls.__name__ for cls in type(error).__mro__ if cls in _classes().values()),
        "message": str(error),
    }
    if error.applied:
        fields["applied"] = error.applied
    if isinstance(error, CorruptionError):
        # Its constructor puts the place before the message; it must not stand there twice.
        fields |= {"message": error._message, "path": error.path, "offset": error.offset}
    elif isinstance(error, StorageError):
        fields |= {"path": error.path, "errno": error.errno, "outcome": error.outcome}
    return fields


def decode_error(kind: str, fields: dict[str, Any]) -> Error | JobFailedError:
    """The inverse of `encode_error`: what the job of this kind is to raise in the parent."""
    name, message = fields["class"], str(fields["message"])
    if name is None:
        failure = JobFailedError(f"the work {kind!r} failed in a worker process: {message}")
        failure.add_note(f"In the worker process:\n{fields.get('trace', '')}")
        return failure
    cls = _classes().get(name, Error)
    error: Error
    if issubclass(cls, CorruptionError):
        error = cls(message, fields.get("path"), fields.get("offset"))
    elif issubclass(cls, StorageError):
        error = cls(
            message, path=fields.get("path"), errno=fields.get("errno"), outcome=fields.get("outcome")
        )
    elif issubclass(cls, WriteError):
        error = cls(message, None)
    else:
        error = cls(message)
    if "applied" in fields:
        error.applied = int(fields["applied"])
    return error


@functools.cache
def _classes() -> dict[str, type[Error]]:
    """What can be sent by name. Made at the first error."""
    from nyala.env.files import MissingFileError

    return {
        cls.__name__: cls
        for cls in (*vars(nyala.errors).values(), MissingFileError)
        if isinstance(cls, type) and issubclass(cls, Error)
    }


def placed(arguments: dict[str, Any], files: Files, root_path: str) -> dict[str, Any]:
    """A job in the store's folder as it is open here, for `check_placed` in the worker."""
    return {**arguments, "inode": list(files.inode(root_path))}


def check_placed(arguments: dict[str, Any], files: Files) -> None:
    """Raises: StorageError when the folder of the job is not the one that the parent has open."""
    inode, root_path = arguments.pop("inode"), arguments["root_path"]
    if list(files.inode(root_path)) != inode:
        raise StorageError(
            f"the folder {root_path!r} was moved or replaced since it was opened; nothing was written",
            path=root_path,
        )
