"""The errors that Nyala raises, and what the caller should do after each of them.

    Error
    ├── TableNotFoundError (KeyError)        correct the name
    ├── TableExistsError                     choose another name, or pass exist_ok=True
    ├── ColumnNotFoundError (KeyError)       correct the name
    ├── SchemaError (ValueError)             correct the schema, or the types of the data
    ├── InvalidArgumentError (ValueError)    correct the argument
    ├── WriteError                           correct the rows in `.errors`; nothing was written
    │   ├── DuplicateKeyError                … or use upsert(), or on_conflict="ignore"
    │   ├── KeyNotFoundError                 … or use upsert(), or on_missing="ignore"
    │   ├── NoPartitionError                 … or add the range partition
    │   └── InvalidValueError (ValueError)   correct the values; nothing was written
    ├── ConflictError                        read again and repeat the write; nothing was written
    ├── TransactionEndedError                begin another transaction
    ├── CorruptionError                      bytes on disk are damaged: run nyala.check(), restore a backup
    ├── LockedError                          wait, or end the other writer
    ├── HistoryExpiredError                  read at a later moment
    ├── ReadOnlyError                        open the store for writing
    └── StorageError (OSError)               the file system or bucket failed; the message says what to do
        └── FencedError                      another process is the writer now: open the store again

Every message says what happened, where, and what to do. Source: docs/how-to/errors.md.
"""

from __future__ import annotations

import bisect
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ALREADY_PRESENT",
    "IMMUTABLE",
    "INVALID_UTF8",
    "KEY_TOO_LARGE",
    "MESSAGE_MAX_CHARS",
    "MISSING_COLUMN",
    "NOT_FOUND",
    "NO_PARTITION",
    "NULL",
    "OUT_OF_RANGE",
    "ROW_ERROR_CODES",
    "VALUE_TOO_LARGE",
    "ColumnNotFoundError",
    "ConflictError",
    "CorruptionError",
    "DuplicateKeyError",
    "Error",
    "FencedError",
    "HistoryExpiredError",
    "InvalidArgumentError",
    "InvalidValueError",
    "KeyNotFoundError",
    "LockedError",
    "NoPartitionError",
    "ReadOnlyError",
    "SchemaError",
    "StorageError",
    "TableExistsError",
    "TableNotFoundError",
    "TransactionEndedError",
    "WriteError",
    "bounded",
    "counted",
    "write_error",
]

MESSAGE_MAX_CHARS: Final = 2_000
"""The most characters of an error message; see `bounded`."""

# A longer message is first cut to this length.
_EXAMINED_CHARS: Final = 700_000
# Quoted parts up to this length are not shortened.
_QUOTED_CHARS: Final = 160
# Of a long list, this many items are kept at each end. An item with more characters is not part of a list.
_LISTED: Final = 6
_ITEM_CHARS: Final = 400
_OPENING: Final = re.compile(r"""(?<!\w)['"`]""")
_CLOSING: Final = re.compile(r"""['"`](?!\w)""")


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: "1 file", "1,234 files"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def bounded(text: str, limit: int = MESSAGE_MAX_CHARS) -> str:
    """Return `text`, shortened to at most `limit` characters.

    First shortens quoted parts, then lists, and at last cuts out the middle of the whole text. So
    the sentences around a user's text stay readable.

    Examples
    --------
    >>> bounded("short")
    'short'
    >>> bounded("no column '" + "x" * 5000 + "': look at table.schema", 200)[-24:]
    "x': look at table.schema"
    """
    if len(text) <= limit:
        return text
    text = _without_middle(text, _EXAMINED_CHARS)
    text = _short_quotes(text)
    if len(text) > limit:
        text = _short_lists(text)
    return _without_middle(text, limit)


def _without_middle(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    left_out = f" … ({len(text) - limit:,} characters left out) … "
    room = limit - len(left_out)
    head = room * 2 // 3
    return text[:head] + left_out + text[len(text) - (room - head) :]


def _short_quotes(text: str) -> str:
    closing: dict[str, list[int]] = {"'": [], '"': [], "`": []}
    for match in _CLOSING.finditer(text):
        closing[match[0]].append(match.start())
    parts, at = [], 0
    for match in _OPENING.finditer(text):
        begin = match.start()
        if begin < at:
            continue
        positions = closing[match[0]]
        index = bisect.bisect_right(positions, begin)
        if index == len(positions):
            continue
        inside = text[begin + 1 : positions[index]]
        parts.append(text[at : begin + 1])
        parts.append(inside if len(inside) <= _QUOTED_CHARS else f"{inside[:120]}…{inside[-30:]}")
        at = positions[index]
        parts.append(text[at])
        at += 1
    return "".join([*parts, text[at:]])


def _short_lists(text: str) -> str:
    items, shown, at = text.split(", "), [], 0
    while at < len(items):
        end = at
        while end < len(items) and len(items[end]) <= _ITEM_CHARS:
            end += 1
        left_out = end - at - 2 * _LISTED
        if left_out > _LISTED:
            shown += [*items[at : at + _LISTED], f"… ({left_out:,} more)", *items[end - _LISTED : end]]
        else:
            shown += items[at:end]
        shown += items[end : end + 1]
        at = end + 1
    return ", ".join(shown)


class Error(Exception):
    """The base class of all errors of Nyala.

    `applied` is the number of rows that stay written although the call failed: those of earlier record
    batches of a stream. A message has at most 2,000 characters; longer text is cut in the middle.
    """

    applied: int = 0

    def __init__(self, *args: Any) -> None:
        if args and isinstance(args[0], str):
            args = (bounded(args[0]), *args[1:])
        super().__init__(*args)

    def __str__(self) -> str:
        # KeyError.__str__ would show the repr of its argument.
        return str(self.args[0]) if self.args else ""


class TableNotFoundError(Error, KeyError):
    """No table has this name."""


class TableExistsError(Error):
    """A table of this name exists already."""


class ColumnNotFoundError(Error, KeyError):
    """No column has this name."""


class SchemaError(Error, ValueError):
    """The schema is invalid, or the types of the data do not match the table's."""


class InvalidArgumentError(Error, ValueError):
    """An argument is invalid."""


class WriteError(Error):
    """Rows of a batch failed, and nothing of the batch was written.

    `errors` is an Arrow table of the failed rows: row, operation, code, message, and the key columns.
    `errors` is None if another process reported only that rows failed. `applied`: see `Error`.
    """

    def __init__(self, message: str, errors: pa.Table | None = None, applied: int = 0) -> None:
        super().__init__(message)
        self.errors = errors
        self.applied = applied

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.args[0], self.errors, self.applied))


class DuplicateKeyError(WriteError):
    """An insert has a key that already exists."""


class KeyNotFoundError(WriteError, KeyError):
    """An update, a delete or `table[key]` has a key for which no row exists."""


class NoPartitionError(WriteError):
    """A row is outside of every range partition."""


class InvalidValueError(WriteError, ValueError):
    """A value does not fit its column, or is missing."""


class ConflictError(Error):
    """Another writer changed a key after this transaction or write began. Nothing was written.

    `table` is the name of the table. `keys` is an Arrow table of at most 100 such keys, or None if
    another process reported the conflict.
    """

    def __init__(self, message: str, table: str = "", keys: pa.Table | None = None) -> None:
        super().__init__(message)
        self.table = table
        self.keys = keys

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.args[0], self.table, self.keys))


class TransactionEndedError(Error):
    """The transaction was committed or rolled back, or was not used for longer than its timeout."""


class CorruptionError(Error):
    """Bytes on disk are not the bytes that were written. `path` and `offset` say where."""

    def __init__(self, message: str, path: str | None = None, offset: int | None = None) -> None:
        where = "" if path is None else f"{path}" + ("" if offset is None else f" at offset {offset}") + ": "
        super().__init__(where + message)
        self.path = path
        self.offset = offset
        self._message = message

    @property
    def reason(self) -> str:
        """The message without path and offset."""
        return self._message

    def with_rows(self, begin: int, end: int) -> CorruptionError:
        """Return the error with a note that rows [begin, end) of the file cannot be read."""
        text = f"{self._message} (the block has rows {begin} to {end - 1} of the file)"
        return type(self)(text, self.path, self.offset)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self._message, self.path, self.offset))


class LockedError(Error):
    """Another process is the store's writer; the message names its pid and host."""


class HistoryExpiredError(Error):
    """The requested moment is older than the history; the message names the oldest readable moment."""


class ReadOnlyError(Error):
    """The call would change a store, table or view that is open for reading only."""


class StorageError(Error, OSError):
    """The file system or bucket reported an error, or there is no store that this version can read.

    `outcome` is "unknown" after a failed sync, or if a bucket did not answer. Then the batch may be
    written; only the next open shows whether it is. Otherwise `outcome` is None, and nothing was changed.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        errno: int | None = None,
        outcome: Literal["unknown"] | None = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.errno = errno
        self.outcome = outcome

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(type(self), path=self.path, errno=self.errno, outcome=self.outcome)
        return (make, (self.args[0],))


class FencedError(StorageError):
    """Another process took over the store in a bucket, so this process is no longer the writer.

    The message names the other process. Nothing of the call was written.
    """


# Row error codes: the values of the column `code` of `.errors`. docs/how-to/errors.md lists them.
ALREADY_PRESENT: Final = "already-present"
NOT_FOUND: Final = "not-found"
NO_PARTITION: Final = "no-partition"
NULL: Final = "null"
VALUE_TOO_LARGE: Final = "value-too-large"
KEY_TOO_LARGE: Final = "key-too-large"
OUT_OF_RANGE: Final = "out-of-range"
MISSING_COLUMN: Final = "missing-column"
INVALID_UTF8: Final = "invalid-utf8"
IMMUTABLE: Final = "immutable"

_CLASS_OF_CODE: Final[dict[str, type[WriteError]]] = {
    ALREADY_PRESENT: DuplicateKeyError,
    NOT_FOUND: KeyNotFoundError,
    NO_PARTITION: NoPartitionError,
    NULL: InvalidValueError,
    VALUE_TOO_LARGE: InvalidValueError,
    KEY_TOO_LARGE: InvalidValueError,
    OUT_OF_RANGE: InvalidValueError,
    MISSING_COLUMN: InvalidValueError,
    INVALID_UTF8: InvalidValueError,
    IMMUTABLE: InvalidValueError,
}
ROW_ERROR_CODES: Final = tuple(_CLASS_OF_CODE)


def write_error(codes: set[str], message: str, errors: pa.Table | None) -> WriteError:
    """Return the exception for a batch whose failing rows have these `codes`.

    Each code belongs to a subclass of WriteError. If all codes belong to the same subclass, the
    exception has this class; otherwise it is a WriteError.
    """
    classes = {_CLASS_OF_CODE.get(code, WriteError) for code in codes}
    return (classes.pop() if len(classes) == 1 else WriteError)(message, errors)
