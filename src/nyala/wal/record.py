"""Encodes and decodes the records of the log: batches of rows, and changes of the catalogue.

The payload of a change is JSON text, padded with blanks; `catalog.codec` reads it. The payload of a
batch has the rows as they were resolved, not as the user sent them:

    payload = meta_length (4 bytes) | meta (JSON, UTF-8) | zeros to a multiple of 8 |
              schema message | batch message   of the first group | … of the second group | …

`meta` is {"key": idempotency key or null, "told": counts, "message": text, "groups": [{"table",
"version", "kind", "tablets", "offsets", "schema", "batch"}, …]}. "told" has the counts of the
batch's result, for a client that repeats the idempotency key. "message" is the commit message.
"told" and "message" are optional. Each group has two Arrow IPC messages in the encapsulated
format, each a multiple of 8 bytes long. "schema" and "batch" are their lengths in bytes. Every
record contains its schema, so a reader can decode it without other records, the catalogue or files.
The record's header has the timestamp.

Invariants
    S1  The rows of a group are sorted by tablet. The rows from offsets[i] up to offsets[i + 1]
        belong to the tablet with the id tablets[i].
    S2  The name of a column is its id in decimal. Key columns come first, in key order. An upsert
        is stored as the insert or update that it became. Rows that failed, were ignored or changed
        nothing are not stored.
    S3  A record never contains a row's position in a rowset: replay uses key and timestamp.

Decoding copies nothing: the arrays refer to the bytes that were read and keep them alive. Records
are not compressed, because a sync costs more than writing the saved bytes.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

import pyarrow as pa

from nyala.errors import CorruptionError
from nyala.wal.format import ALIGNMENT_BYTES

ROW_KINDS: Final = frozenset({"insert", "update", "delete", "tombstone"})
RecordLocation: TypeAlias = tuple[str | None, int | None]
"""The file of a record and the file offset; None for a record that was not read from a file."""
_META_LENGTH: Final = struct.Struct("<I")
_META: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_COLUMN_ID: Final = re.compile("0|[1-9][0-9]{0,18}")


@dataclass(frozen=True)
class ResolvedGroup:
    """The rows of one table that a batch inserted, updated or deleted, in all its tablets.

    kind: "insert", "update" or "delete"; or "tombstone" for rows that the batch inserted and
          deleted, so that they were never visible.
    """

    table_id: int
    schema_version: int
    kind: str
    tablet_ids: tuple[int, ...]
    offsets: tuple[int, ...]
    batch: pa.RecordBatch
    schema_message: pa.Buffer | None = field(default=None, compare=False, repr=False)
    """`batch.schema.serialize()`, if it is known: all batches of a table share it."""
    batch_message: pa.Buffer | None = field(default=None, compare=False, repr=False)
    """`batch.serialize()`, if it is known."""


@dataclass(frozen=True)
class LogRecord:
    """One atomic batch: everything that was committed at one timestamp."""

    timestamp: int
    idempotency_key: str | None
    groups: tuple[ResolvedGroup, ...]
    location: RecordLocation = field(default=(None, None), compare=False)
    counts: Mapping[str, int] | None = None
    """"told" in `meta`: the counts of the result, for a client that repeats the idempotency key."""
    message: str | None = None
    """The caller's commit message."""

    @property
    def row_count(self) -> int:
        return sum(group.batch.num_rows for group in self.groups)


@dataclass(frozen=True)
class ChangeRecord:
    """One change of the catalogue, as `catalog.codec.encode_change` encoded it.

    timestamp: set by the log writer. A change does not advance the timestamps of the log: it
               repeats the timestamp of the record before it.
    """

    data: bytes
    timestamp: int = 0
    location: RecordLocation = field(default=(None, None), compare=False)


def encode_change_record(record: ChangeRecord) -> list[Any]:
    """Return the payload of a change of the catalogue, as a list of buffers."""
    return [record.data + b" " * (-len(record.data) % ALIGNMENT_BYTES)]


def _problem(group: ResolvedGroup) -> str | None:
    """Return what is wrong with the rows of one table in a batch; None if they are valid."""
    offsets = group.offsets
    if group.kind not in ROW_KINDS:
        return f"unknown kind {group.kind!r}"
    if len(offsets) != len(group.tablet_ids) + 1:
        return f"S1: {len(group.tablet_ids)} tablets but {len(offsets)} offsets"
    if offsets[0] != 0 or offsets[-1] != group.batch.num_rows:
        return f"S1: offsets from {offsets[0]} to {offsets[-1]} for {group.batch.num_rows} rows"
    if list(offsets) != sorted(offsets):
        return "S1: offsets do not ascend"
    return None


def _problem_of_read(group: ResolvedGroup) -> str | None:
    """Return what is wrong with rows that were read from the log; None if they are valid.

    Checks the same as `_problem`, and the column names.
    """
    numbers = (group.table_id, group.schema_version, *group.tablet_ids, *group.offsets)
    names = group.batch.schema.names
    if any(type(number) is not int or not -1 << 63 <= number < 1 << 63 for number in numbers):
        return f"invalid ids, version or offsets {numbers}"
    if len(set(names)) < len(names) or any(_COLUMN_ID.fullmatch(name) is None for name in names):
        return f"S2: invalid column names {names}, expected the id of each column, once"
    return _problem(group)


def encode_record(record: LogRecord) -> list[Any]:
    """Return the payload of a batch, as a list of buffers.

    The buffers own their memory, so the record's arrays may change afterwards.
    Cost: one copy of the rows; about 30 us for 1,000 rows of 16 columns.
    """
    bodies: list[pa.Buffer] = []
    groups: list[dict[str, object]] = []
    for group in record.groups:
        assert _problem(group) is None, _problem(group)
        schema = group.schema_message
        if schema is None:
            schema = group.batch.schema.serialize()
        batch = group.batch_message
        if batch is None:
            batch = group.batch.serialize()
        bodies += (schema, batch)
        groups.append(
            {
                "table": group.table_id,
                "version": group.schema_version,
                "kind": group.kind,
                "tablets": group.tablet_ids,
                "offsets": group.offsets,
                "schema": schema.size,
                "batch": batch.size,
            }
        )
    fields: dict[str, object] = {"key": record.idempotency_key}
    if record.counts is not None:
        fields["told"] = dict(record.counts)
    if record.message is not None:
        fields["message"] = record.message
    fields["groups"] = groups
    meta = _META.encode(fields).encode()
    padding = -(_META_LENGTH.size + len(meta)) % ALIGNMENT_BYTES
    assert all(body.size % ALIGNMENT_BYTES == 0 for body in bodies), "L1"
    return [_META_LENGTH.pack(len(meta)) + meta + bytes(padding), *bodies]


def decode_meta(payload: pa.Buffer, path: str | None = None, offset: int | None = None) -> tuple[Any, int]:
    """Return the JSON field `meta` of a record's payload, and the offset of the first Arrow message.

    `meta` describes the rows, which follow as Arrow messages. For example, it has the table and the
    schema version of each group of rows.

    path, offset: the file, and the record's offset in it, for error messages.
    """
    try:
        (length,) = _META_LENGTH.unpack(payload[: _META_LENGTH.size].to_pybytes())
        upper = _META_LENGTH.size + length
        if upper > payload.size:
            raise ValueError(
                f"expected at most {payload.size - _META_LENGTH.size} bytes in the field `meta`, found {length}"
            )
        meta = json.loads(payload[_META_LENGTH.size : upper].to_pybytes())
        return meta, upper + -upper % ALIGNMENT_BYTES
    except (ValueError, struct.error, RecursionError) as error:
        raise CorruptionError(f"the payload of a record is invalid: {error}", path, offset) from error


def decode_record(
    payload: pa.Buffer, timestamp: int, path: str | None = None, offset: int | None = None
) -> LogRecord:
    """Return the record with this payload. The caller must have checked the CRC.

    path, offset: where the record was read, for error messages.
    Raises: CorruptionError for a payload that `encode_record` cannot return.
    """
    meta, lower = decode_meta(payload, path, offset)
    groups: list[ResolvedGroup] = []
    try:
        key = cast("str | None", meta["key"])
        if not (key is None or isinstance(key, str)):
            raise ValueError(f"expected text or null as the idempotency key, found {type(key).__name__}")
        counts = meta.get("told")
        if counts is not None and not all(type(count) is int for count in counts.values()):
            raise ValueError(f"expected integers as the counts of the result, found {counts}")
        message = cast("str | None", meta.get("message"))
        if not (message is None or isinstance(message, str)):
            raise ValueError(f"expected text or null as the commit message, found {type(message).__name__}")
        for part in meta["groups"]:
            middle, upper = lower + part["schema"], lower + part["schema"] + part["batch"]
            if not lower <= middle <= upper <= payload.size:
                raise ValueError(
                    f"an Arrow message at [{lower}, {upper}) exceeds the payload of {payload.size} bytes"
                )
            schema = pa.ipc.read_schema(payload[lower:middle])
            batch = pa.ipc.read_record_batch(payload[middle:upper], schema)
            batch.validate(full=True)  # wrong offsets would let Arrow read outside of the buffer
            group = ResolvedGroup(
                part["table"],
                part["version"],
                part["kind"],
                tuple(part["tablets"]),
                tuple(part["offsets"]),
                batch,
            )
            problem = _problem_of_read(group)
            if problem is not None:
                raise ValueError(problem)
            groups.append(group)
            lower = upper
        if lower != payload.size:
            raise ValueError(
                f"expected the payload to end after the last Arrow message, found {payload.size - lower} more bytes"
            )
    except (ValueError, KeyError, TypeError, AttributeError, OSError, pa.ArrowException) as error:
        raise CorruptionError(f"the payload of a record is invalid: {error}", path, offset) from error
    return LogRecord(timestamp, key, tuple(groups), (path, offset), counts, message)
