"""Messages between a worker process (the child) and its parent: lines of JSON over a socket.

    child to parent    {"answer": {"nyala": version}}      once, after its start
    parent to child    {"kind": …, "arguments": {…}}       a job, for the handler of this kind
    child to parent    {"progress": {…}}                   any number of times during the job
    child to parent    {"answer": {…}} or {"error": {…}}   the end of the job

Invariants
    K1  Nothing that a process receives is executed or unpickled, and lines have a maximal length.
    K2  An error of `nyala.errors` arrives with its class and its fields. Only the table of failed
        rows of a WriteError is not sent.

This module imports little, because the child imports it at its start.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from nyala.errors import Error, StorageError

if TYPE_CHECKING:
    from nyala.env import Files

Report: TypeAlias = "Callable[[dict[str, Any]], None]"
"""Sends progress to the parent. It may raise to end the job; the handler does not catch that."""

Handler: TypeAlias = "Callable[[dict[str, Any], Report], dict[str, Any]]"
"""Runs a job: (arguments, report) -> answer. Arguments and answer are JSON objects."""

# Far above the size of any message: a job names files, and an answer describes written columns.
LINE_MAX_BYTES: Final = 64 << 20

_TRACE_MAX_CHARS: Final = 64 << 10
_FIELDS: Final = ("path", "offset", "errno", "outcome", "applied", "_message")


class JobFailedError(RuntimeError):
    """A job failed in the worker by an error that is not a `nyala.Error`, which means a bug.

    A note of this exception has the worker's traceback.
    """


def version() -> str:
    """Return the version of Nyala in this process."""
    return str(sys.modules["nyala"].__version__)


def encode(message: dict[str, Any]) -> bytes:
    """Return the message as one line of JSON. Raises: TypeError if a value cannot be JSON."""
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"


def encode_error(error: BaseException) -> dict[str, Any]:
    """Return an exception as JSON, so that the parent process can raise it again.

    An error of `nyala.errors` keeps its class and fields, except the failed rows of a WriteError. A
    MemoryError becomes a StorageError. Any other exception, which means a bug, is sent as its text
    and traceback.
    """
    if isinstance(error, MemoryError):
        error = StorageError(
            "a worker process ran out of memory; nothing was changed: end other programs that use the machine's "
            "memory, or use a machine with more"
        )
    if not isinstance(error, Error):
        import traceback

        trace = "".join(traceback.format_exception(error))[-_TRACE_MAX_CHARS:]
        return {"class": None, "message": f"{type(error).__name__}: {error}", "trace": trace}
    fields = {name: getattr(error, name) for name in _FIELDS if hasattr(error, name)}
    return {"class": type(error).__name__, "message": error.args[0], "fields": fields}


def decode_error(kind: str, found: dict[str, Any]) -> Error | JobFailedError:
    """Return the exception that a worker sent with `encode_error`, so that the parent can raise it.

    kind:  the kind of the job, for the message of a JobFailedError.
    found: the result of `encode_error`.
    """
    import nyala.errors
    from nyala.env.files import MissingFileError

    if found["class"] is None:
        failure = JobFailedError(f"the work {kind!r} failed in a worker process: {found['message']}")
        failure.add_note(f"In the worker process:\n{found['trace']}")
        return failure
    known = {**vars(nyala.errors), "MissingFileError": MissingFileError}
    cls = known.get(found["class"], Error)
    error: Error = cls(found["message"])
    for name, value in found["fields"].items():
        setattr(error, name, value)
    return error


def placed(arguments: dict[str, Any], files: Files, root_path: str) -> dict[str, Any]:
    """Return the arguments of a job, with the inode number of the store's folder added.

    The worker process finds the folder by its path. There `check_placed` compares the numbers, in
    case another folder has this path now.
    """
    return {**arguments, "inode": list(files.inode(root_path))}


def check_placed(arguments: dict[str, Any], files: Files) -> None:
    """Check, in a worker process, that the store's folder was not moved or replaced.

    The folder must have the inode number that `placed` added in the parent process.

    arguments: the arguments of the job; the inode number is removed from them.
    Raises: StorageError.
    """
    inode, root_path = arguments.pop("inode"), arguments["root_path"]
    if list(files.inode(root_path)) != inode:
        raise StorageError(
            f"the folder {root_path!r} was moved or replaced since it was opened; nothing was written: close this "
            "Database and connect again",
            path=root_path,
        )
