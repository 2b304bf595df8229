"""Change tokens: a tablet's part of a change feed as bytes, for processes that read only the files.

    offset  size  field
    0       8     magic "nyalachg"
    8       4     version, u32 little-endian
    12      4     CRC-32C of all following bytes, u32
    16      …     JSON: store path, table, tablet, schema, columns, since, until, versions,
                  values_at, rowsets with their files

If some of the feed's changes in a tablet are only in memory, the process that makes the tokens
reads the tablet's changes itself (`changes_in_memory`). It sends these rows in another kind of
token (`rows_token`): the same head with the magic "nyalachr", followed by an Arrow IPC stream.

Invariants
    G1  All tokens together with `changes_in_memory` give the rows of the feed. Tablets can be read
        separately, because a key is in one tablet.

Source: docs/design/processes-and-locks.md, "Scan tokens".
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterator
from typing import Final

import google_crc32c
import pyarrow as pa

from nyala.catalog.model import TableEntry, TabletEntry
from nyala.cfile.blocks.cache import BlockCache
from nyala.env import SYSTEM, Env
from nyala.errors import CorruptionError
from nyala.partition.model import Partition, PartitionSchema
from nyala.rowset.mem_rowset import MemRowSet
from nyala.schema.arrow_ipc import to_ipc
from nyala.schema.schema import Schema
from nyala.tablet.changes import records
from nyala.tablet.changes.feed import change_batches
from nyala.tablet.changes.spec import ChangeSpec
from nyala.tablet.state.entries import RowSetFiles
from nyala.tablet.state.leased_files import kept_by_lease
from nyala.tablet.state.root import TableState, TabletState
from nyala.tablet.state.validation import is_unsigned, validating

MAGIC: Final = b"nyalachg"
_ROWS_MAGIC: Final = b"nyalachr"
VERSION: Final = 3
_HEAD: Final = struct.Struct("<8sII")
_CACHE_BYTES: Final = 64 << 20


def make_change_tokens(root_path: str, table: TableState, spec: ChangeSpec) -> list[bytes]:
    """Return tokens for the feed `spec`: one for each tablet whose changes are all in files.

    A tablet without a change in the feed gets no token. A tablet gets no token either if some of
    the feed's changes are only in memory; `changes_in_memory` reads such a tablet.

    root_path: the store's folder.
    """
    made = []
    for tablet in table.tablets:
        if _in_memory(tablet, spec) or not any(records.may_meet(r, spec) for r in tablet.rowsets):
            continue
        meta = {
            "path": root_path,
            "table": table.name,
            "tablet": tablet.id,
            "schema": json.loads(table.schema.to_json()),
            "columns": [column.name for column in spec.columns],
            "since": spec.since,
            "until": spec.until,
            "versions": spec.versions,
            "values_at": spec.values_at,
            "rowsets": [RowSetFiles.of(rowset).to_json() for rowset in tablet.rowsets],
        }
        made.append(_seal(MAGIC, json.dumps(meta, separators=(",", ":")).encode()))
    return made


def changes_in_memory(table: TableState, spec: ChangeSpec) -> Iterator[pa.RecordBatch]:
    """Yield all changes of the tablets for which `make_change_tokens` returns no token.

    These tablets have changes of the interval in memory.
    """
    kept = tuple(tablet for tablet in table.tablets if _in_memory(tablet, spec))
    return change_batches(dataclasses.replace(table, tablets=kept), spec)


def rows_token(rows: pa.Table) -> bytes:
    """Return a token that contains the given changes, instead of files to read them from."""
    return _seal(_ROWS_MAGIC, to_ipc(rows))


def tablet_of(data: bytes) -> int | None:
    """Return the id of the tablet that the token reads.

    Returns None for a token of `rows_token`, and for bytes that are not a token.
    """
    if data.startswith(_ROWS_MAGIC):
        return None
    try:
        with validating("change token"):
            return int(json.loads(_open(data, MAGIC).to_pybytes())["tablet"])
    except CorruptionError:
        return None


def read_change_token(data: bytes, env: Env | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the changes of one token.

    Raises: CorruptionError; HistoryExpiredError if a file is gone.
    """
    if data.startswith(_ROWS_MAGIC):
        return _read_rows(data)
    return _read_files(data, env or SYSTEM)


def _read_rows(data: bytes) -> Iterator[pa.RecordBatch]:
    with validating("change token"), pa.ipc.open_stream(_open(data, _ROWS_MAGIC)) as reader:
        batches = list(reader)  # copies nothing
        for batch in batches:
            batch.validate(full=True)
    yield from batches


def _read_files(data: bytes, env: Env) -> Iterator[pa.RecordBatch]:
    with validating("change token"):
        meta = json.loads(_open(data, MAGIC).to_pybytes())
        moments = meta["since"], meta["until"]
        if not all(map(is_unsigned, moments)):
            raise ValueError(f"expected two timestamps as the interval, found {moments}")
        if not isinstance(meta["path"], str) or "\0" in meta["path"]:
            raise ValueError(f"expected the path of a store, without NUL characters, found {meta['path']!r}")
        if not isinstance(meta["table"], str):
            raise ValueError(f"expected the name of a table, found {meta['table']!r}")
        if meta["versions"] not in ("net", "all"):
            raise ValueError(
                f"expected versions 'net' (one row per key) or 'all' (one row per change), found {meta['versions']!r}"
            )
        if meta["values_at"] not in ("until", "both"):
            raise ValueError(
                "expected values_at 'until' (the values after a change) or 'both' (those before it too), found "
                f"{meta['values_at']!r}"
            )
        schema = Schema.from_json(json.dumps(meta["schema"]))
        cache = BlockCache(_CACHE_BYTES)
        entry = TableEntry(
            1, meta["table"], "", None, schema, {schema.version: schema}, PartitionSchema(), created=0
        )
        bare = TableState(entry, ())
        kept = (
            f"the changes of table {meta['table']!r} in ({moments[0]}, {moments[1]}]",
            "start the job again",
        )
        with kept_by_lease(*kept):
            rowsets = tuple(
                RowSetFiles.from_json(files).open(env, meta["path"], cache, schema)
                for files in meta["rowsets"]
            )
        tablet = TabletState(TabletEntry(1, 1, Partition(), 0), MemRowSet(bare.codec, schema), (), rowsets)
        columns = schema.project(meta["columns"])
        if columns[: schema.key_count] != schema.key_columns:
            raise ValueError(f"columns {meta['columns']!r} do not begin with the key columns")
        spec = ChangeSpec(
            columns, schema.key_count, *moments, versions=meta["versions"], values_at=meta["values_at"]
        )
    try:
        with kept_by_lease(*kept):
            yield from change_batches(dataclasses.replace(bare, tablets=(tablet,)), spec)
    finally:
        cache.resize(0)
        for rowset in rowsets:
            rowset.close()


def _in_memory(tablet: TabletState, spec: ChangeSpec) -> bool:
    """Whether the tablet may have changes of the feed `spec` in memory."""
    memories = (tablet.memory, *tablet.frozen)
    stores = [store for rowset in tablet.rowsets for store in records.in_memory(rowset)]
    return any(records.may_meet(memory, spec) for memory in memories) or any(
        spec.meets(store.timestamp_min, store.timestamp_max) for store in stores
    )


def _seal(magic: bytes, body: bytes | pa.Buffer) -> bytes:
    """Return a token: a head with magic, version and CRC, and then the body."""
    return b"".join((_HEAD.pack(magic, VERSION, google_crc32c.value(body)), body))


def _open(data: bytes, expected: bytes) -> pa.Buffer:
    """Check the head and the CRC, and return the bytes after the head. Raises: CorruptionError."""
    try:
        magic, version, crc = _HEAD.unpack_from(data)
    except struct.error as error:
        raise CorruptionError(
            f"expected a change token of at least {_HEAD.size} bytes, found {len(data)} bytes"
        ) from error
    if magic != expected or version != VERSION:
        raise CorruptionError(f"the bytes are not a change token of version {VERSION}")
    body = pa.py_buffer(data).slice(_HEAD.size)
    if google_crc32c.value(body) != crc:
        raise CorruptionError("the change token is damaged: its CRC-32C does not match")
    return body
