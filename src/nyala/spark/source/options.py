"""Parses and checks the options of `.option(...)`.

Spark passes options as text, and their names are case-insensitive. An unknown option is an error:
if it were ignored, `.option("colums", "a")` would read every column, and `.option("were", ...)`
every row.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import numbers
import os
import re
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from nyala.env.paths import is_bucket_url, plain_url, utf8_path
from nyala.errors import InvalidArgumentError
from nyala.objects.address import Address
from nyala.tablet.state.messages import check_message
from nyala.tablet.state.store_folder import check_folder_path
from nyala.tablet.write.conditions import Condition, check_operation, condition_of
from nyala.tablet.write.prepare import OPERATION_NAMES

__all__ = [
    "LEASE_DEFAULT_S",
    "OPERATIONS",
    "STORAGE",
    "ChangeOptions",
    "ReadOptions",
    "WriteOptions",
    "lease_seconds",
    "plain_names",
    "reads_changes",
]

Storage: TypeAlias = "tuple[tuple[str, Any], ...]"

STORAGE: Final = "storage."
"""The prefix of storage options: storage.region, storage.endpoint, …"""

OPERATIONS: Final = (*OPERATION_NAMES, "changes")

# Seconds for which the files of a DataFrame's snapshot are kept after its last read.
LEASE_DEFAULT_S: Final = 3600
# A longer lease is probably a mistake, such as milliseconds. Its files could fill the disk.
LEASE_MAX_S: Final = 366 * 24 * 3600

_READ: Final = ("path", "table", "at", "columns", "where", "partitions", "lease")
_CHANGES: Final = ("startingtimestamp", "endingtimestamp", "versions", "before", "maxrowspertrigger")
_WRITE: Final = (
    "path",
    "table",
    "operation",
    "errors",
    "result",
    "transaction",
    "message",
    "when",
    "newest_by",
)
# Options that Spark adds for a stream, or for a table of its catalogue.
_OPTIONS_OF_SPARK: Final = (
    "checkpointlocation", "queryname", "provider", "location", "owner", "external", "comment", "collation",
    "is_managed_location", "serialization.format",
)  # fmt: skip


@dataclass(frozen=True)
class TableOptions:
    """Options of every read and write.

    path        the store's folder or URL; a relative path starts in the driver's working directory
    table       the table's name
    storage     the storage options of a store in a bucket, without secrets (`objects.address`)
    """

    path: str
    table: str
    storage: Storage = field(default=(), kw_only=True)

    @property
    def address(self) -> Address:
        """The address of the store."""
        return Address(self.path, self.storage)


@dataclass(frozen=True)
class ReadOptions(TableOptions):
    """Options of `spark.read.format("nyala")`.

    at          the moment to read: a Nyala timestamp, ISO text or a WriteResult; None: now
    columns     the names of the columns to return. None: all, in the table's order
    where       a predicate that the store evaluates, for this `load()` only
    partitions  the maximum number of Spark partitions. None: two per core, fewer for a small table.
                The cores are the session's if `nyala.spark.register` was called, otherwise those of
                the driver's machine
    lease_s     `lease`: seconds for which the snapshot's files are kept after the last read
    """

    at: int | str | None = None
    columns: tuple[str, ...] | None = None
    where: str | None = None
    partitions: int | None = None
    lease_s: float = LEASE_DEFAULT_S

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        given = _known(options, _READ, "read")
        return cls(
            path=_path(given),
            storage=_storage(given),
            table=_required(given, "table"),
            at=_moment(given.get("at")),
            columns=_names(given.get("columns")),
            where=given.get("where") or None,
            partitions=_count(given, "partitions"),
            lease_s=_lease(given),
        )


@dataclass(frozen=True)
class ChangeOptions(TableOptions):
    """Options of `spark.readStream.format("nyala")`, and of `spark.read` with `.option("changes",
    True)`.

    columns     columns to return in addition to the key's. None: all
    start       `startingTimestamp`: the moment after which the changes begin. None: begin with the
                present rows, as inserts
    from_now    whether `startingTimestamp` is "now": begin with the writes after the query's start
    end         `endingTimestamp`: the last moment. None: now for a batch; a stream has no end
    versions    "net": one change per key and micro-batch; "all": every version of every row
    before      whether the rows before each change are returned too (update_preimage, and the
                values of deleted rows)
    max_rows    `maxRowsPerTrigger`: about the maximum number of changes of a micro-batch. None: no
                limit. A commit is never split
    partitions  the maximum number of Spark partitions of a micro-batch. None: two per core
    lease_s     `lease`: seconds for which the files are kept after the last read
    """

    columns: tuple[str, ...] | None = None
    start: int | str | None = None
    from_now: bool = False
    end: int | str | None = None
    versions: Literal["net", "all"] = "net"
    before: bool = False
    max_rows: int | None = None
    partitions: int | None = None
    lease_s: float = LEASE_DEFAULT_S

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ChangeOptions:
        given = _known(options, ("changes", *_READ, *_CHANGES), "read of changes")
        for name in ("at", "where"):
            if given.get(name):
                raise InvalidArgumentError(
                    f"option {name!r} is not for a read of changes: filter the DataFrame, or use startingTimestamp"
                )
        start = given.get("startingtimestamp", "")
        versions = given.get("versions", "net").lower()
        if versions not in ("net", "all"):
            raise InvalidArgumentError(f"option versions must be 'net' or 'all', got {versions!r}")
        from_now = start.strip().lower() in ("now", "latest")
        return cls(
            path=_path(given),
            storage=_storage(given),
            table=_required(given, "table"),
            columns=_names(given.get("columns")),
            start=None if from_now else _moment(start),
            from_now=from_now,
            end=_moment(given.get("endingtimestamp")),
            versions="net" if versions == "net" else "all",
            before=_is_true(given, "before"),
            max_rows=_count(given, "maxrowspertrigger"),
            partitions=_count(given, "partitions"),
            lease_s=_lease(given),
        )


def lease_seconds(value: Any, where: str = "") -> float:
    """Convert the argument or option `lease` to seconds. where: the beginning of the error message.

    Raises InvalidArgumentError if it is not a valid number of seconds.
    """
    seconds = 0.0
    if not isinstance(value, bool) and isinstance(value, str | numbers.Real):
        with contextlib.suppress(ValueError):
            seconds = float(value)
    if not 0 < seconds <= LEASE_MAX_S:
        raise InvalidArgumentError(
            f"{where}lease must be a number of seconds above 0 and up to {LEASE_MAX_S} (366 days), got {value!r}"
        )
    return seconds


def plain_names(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by their names in lower case, with the values that the user gave.

    Spark's catalogue passes each option twice. The one with the prefix `option.` is unchanged; in
    the other one Spark has turned a path into a URL.
    """
    given = {name.lower(): value for name, value in options.items()}
    prefix = "option."
    as_given = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
    return {**{name: value for name, value in given.items() if not name.startswith(prefix)}, **as_given}


def reads_changes(options: Mapping[str, str]) -> bool:
    """Whether the options request the change feed. Raises InvalidArgumentError for an invalid value."""
    return _is_true(plain_names(options), "changes")


@dataclass(frozen=True)
class WriteOptions(TableOptions):
    """Options of `df.write.format("nyala")`.

    operation   one of OPERATIONS. "changes": the rows are those of a change feed
    errors      "raise": one failing row rejects the batch; "collect": the good rows are written
    transaction for a stream: a name that identifies the query. None: the id in its checkpoint
    result      a folder, into which the commit writes result.json (timestamp and counts) and, if
                rows failed, errors.parquet. None: failing rows are logged
    message     a text about the commit, which `table.commits()` shows
    when        of an upsert: update an existing row only if this condition on old.… and new.…
                columns is TRUE
    newest_by   of an upsert or delete: a column that grows with each change; late and repeated rows
                are ignored
    """

    operation: str = "upsert"
    errors: Literal["raise", "collect"] = "raise"
    result: str | None = None
    transaction: str | None = None
    message: str | None = None
    when: str | None = None
    newest_by: str | None = None

    @property
    def condition(self) -> Condition | None:
        """The condition of `when` or `newest_by`."""
        return condition_of(self.when, None, self.newest_by)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        given = _known(options, _WRITE, "write")
        operation = given.get("operation", "upsert").lower()
        if operation not in OPERATIONS:
            raise InvalidArgumentError(
                f"option operation must be one of {', '.join(OPERATIONS)}, got {operation!r}"
                f"{_suggestion(operation, OPERATIONS)}"
            )
        errors = given.get("errors", "raise").lower()
        if errors not in ("raise", "collect"):
            raise InvalidArgumentError(f"option errors must be 'raise' or 'collect', got {errors!r}")
        condition = condition_of(given.get("when"), None, given.get("newest_by"))
        if condition is not None:
            check_operation(condition, operation)
        return cls(
            path=_path(given),
            storage=_storage(given),
            table=_required(given, "table"),
            operation=operation,
            errors="raise" if errors == "raise" else "collect",
            result=_result(given.get("result")),
            transaction=given.get("transaction") or None,
            message=_message(given.get("message")),
            when=given.get("when"),
            newest_by=given.get("newest_by"),
        )


def _known(options: Mapping[str, str], known: tuple[str, ...], verb: str) -> dict[str, str]:
    """Return the options without those that Spark adds.

    known: the valid names. verb: "read" or "write", for the message. Raises InvalidArgumentError if
    an option is unknown or empty.
    """
    given = plain_names(options)
    for name in _OPTIONS_OF_SPARK:
        given.pop(name, None)
    storage = {name: given.pop(name) for name in list(given) if name.startswith(STORAGE)}
    if given.get("changes", "").lower() == "false" and "changes" not in known:
        del given["changes"]
    for name in given:
        if name not in known:
            homes = {"write": _WRITE, "read": _READ, "read of changes (.option('changes', True))": _CHANGES}
            home = next((verb for verb, names in homes.items() if name in names and names != known), None)
            where = "" if home is None else f"; it is an option of a {home}"
            raise InvalidArgumentError(
                f"unknown option {name!r} for a {verb} of format 'nyala'{where or _suggestion(name, known)}; "
                f"the options are {', '.join(known)}, and {STORAGE}… for a store in a bucket"
            )
        if not given[name]:
            raise InvalidArgumentError(f"option {name!r} is empty: give it a value, or remove it")
    return {**given, **storage}


def _storage(given: Mapping[str, str]) -> Storage:
    options = {name.removeprefix(STORAGE): value for name, value in given.items() if name.startswith(STORAGE)}
    return Address.parse(_path(given), options, STORAGE).options


def _required(given: Mapping[str, str], name: str) -> str:
    value = given.get(name, "")
    if not value:
        raise InvalidArgumentError(f"format 'nyala' needs .option({name!r}, ...)")
    return value


def _path(given: Mapping[str, str]) -> str:
    path = _required(given, "path")
    if is_bucket_url(path) and not path.startswith("file:"):
        return plain_url(path)
    if path.startswith("file:"):
        path = urllib.parse.unquote(urllib.parse.urlsplit(path).path)
    check_folder_path(path)
    # Resolve a relative path here, in the driver's working directory. Executors may have another one.
    return utf8_path(path)


def _result(folder: str | None) -> str | None:
    """Return the folder for the results of a write (option `result`) as an absolute path or a URL.

    Return None if the option is not set.
    """
    return os.path.abspath(folder) if folder and not is_bucket_url(folder) else folder or None


def _message(text: str | None) -> str | None:
    try:
        return check_message(text)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"option {error}") from None


def _moment(text: str | None) -> int | str | None:
    """Parse a moment: an integer, the `repr` of a WriteResult, Commit or Tag, or other text."""
    if not text:
        return None
    result = re.match(r"(?:WriteResult\(|Commit\(|Tag\(name='[\w.-]+', )timestamp=(\d+),", text)
    if result is not None:
        return int(result[1])
    return int(text) if text.strip().isdigit() else text


def _names(text: str | None) -> tuple[str, ...] | None:
    """Parse the names in the value of the option `columns`. None or an empty text gives None.

    text: names with commas between them, such as `a, b`, or a JSON list, such as `["a", "b"]`. In
        the first form, blanks around a name are removed. Only in a JSON list may a name contain a
        comma, or begin or end with a blank.
    """
    if not text:
        return None
    names: Iterable[object]
    if text.lstrip().startswith("["):
        try:
            names = json.loads(text)
        except json.JSONDecodeError as error:
            raise InvalidArgumentError(f"option columns={text!r} is not a valid JSON list: {error}") from None
        if not all(isinstance(name, str) for name in names):
            raise InvalidArgumentError(f"option columns={text!r} must be a list of names")
    else:
        names = (name.strip() for name in text.split(","))
    found = tuple(str(name) for name in names)
    if not all(found) or len(set(found)) != len(found):
        raise InvalidArgumentError(f"option columns={text!r} contains a duplicate or an empty name")
    return found


def _is_true(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false").strip().lower()
    if text not in ("true", "false", "1", "0", "yes", "no"):
        raise InvalidArgumentError(f"option {name}={text!r} must be true or false")
    return text in ("true", "1", "yes")


def _count(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if not text:
        return None
    if not text.strip().isdigit() or int(text) < 1:
        raise InvalidArgumentError(f"option {name} must be a whole number above 0, got {text!r}")
    return int(text)


def _lease(given: Mapping[str, str]) -> float:
    return lease_seconds(given["lease"], "option ") if given.get("lease") else LEASE_DEFAULT_S


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
