"""Change tokens: one tablet's part of a change feed as bytes that another process can read without catalogue and log.

    offset  size  field
    0       8     magic "nyalachg"
    8       4     version, u32 little-endian
    12      4     CRC-32C of everything behind, u32
    16      …     JSON: store path, table, tablet, schema, columns, since, until, versions, rowsets with their files

What a tablet has in memory cannot travel as what it is, so a tablet whose memory meets the interval is read by whoever
makes the tokens (`changes_in_memory`), and its rows travel instead (`rows_token`): under the magic "nyalachr" the same
head, and behind it an Arrow IPC stream.

Invariants
    G1  The rows of all tokens and of `changes_in_memory` are those of the feed that made them: a key lives in one
        tablet, so tablets can be read apart.

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
from nyala.schema.schema import Schema
from nyala.tablet.changes import records
from nyala.tablet.changes.feed import change_batches
from nyala.tablet.changes.spec import ChangeSpec
from nyala.tablet.state.entries import RowSetFiles
from nyala.tablet.state.leased_files import kept_by_lease
from nyala.tablet.state.root import TableState, TabletState
from nyala.tablet.state.validation import making_sense, whole_number

__all__ = ["MAGIC", "changes_in_memory", "make_change_tokens", "read_change_token", "rows_token", "tablet_of"]

MAGIC: Final = b"nyalachg"
_ROWS_MAGIC: Final = b"nyalachr"
VERSION: Final = 1
_HEAD: Final = struct.Struct("<8sII")
_CACHE_BYTES: Final = 64 << 20


def make_change_tokens(root_path: str, table: TableState, spec: ChangeSpec) -> list[bytes]:
    """A token per tablet that has changes of the interval in files, and nothing of it in memory."""
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
            "rowsets": [RowSetFiles.of(rowset).to_json() for rowset in tablet.rowsets],
        }
        made.append(_seal(MAGIC, json.dumps(meta, separators=(",", ":")).encode()))
    return made


def changes_in_memory(table: TableState, spec: ChangeSpec) -> Iterator[pa.RecordBatch]:
    """The changes of those tablets for which `make_change_tokens` makes no token."""
    kept = tuple(tablet for tablet in table.tablets if _in_memory(tablet, spec))
    return change_batches(dataclasses.replace(table, tablets=kept), spec)


def rows_token(rows: pa.Table) -> bytes:
    """A token of changes that were read already."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return _seal(_ROWS_MAGIC, sink.getvalue())


def tablet_of(data: bytes) -> int | None:
    """The id of the tablet that a token is of; None when the bytes do not say, and of rows, which may be of several."""
    if data.startswith(_ROWS_MAGIC):
        return None
    try:
        with making_sense("change token"):
            return int(json.loads(_open(data, MAGIC).to_pybytes())["tablet"])
    except CorruptionError:
        return None


def read_change_token(data: bytes, env: Env | None = None) -> Iterator[pa.RecordBatch]:
    """The changes of one token. Raises: CorruptionError, HistoryExpiredError when a file is gone."""
    if data.startswith(_ROWS_MAGIC):
        return _read_rows(data)
    return _read_files(data, env or SYSTEM)


def _read_rows(data: bytes) -> Iterator[pa.RecordBatch]:
    with making_sense("change token"), pa.ipc.open_stream(_open(data, _ROWS_MAGIC)) as reader:
        batches = list(reader)  # views of what is in memory already
        for batch in batches:
            batch.validate(full=True)
    yield from batches


def _read_files(data: bytes, env: Env) -> Iterator[pa.RecordBatch]:
    with making_sense("change token"):
        meta = json.loads(_open(data, MAGIC).to_pybytes())
        moments = meta["since"], meta["until"]
        if not all(map(whole_number, moments)):
            raise ValueError(f"changes between {moments}")
        if not isinstance(meta["path"], str) or "\0" in meta["path"] or not isinstance(meta["table"], str):
            raise ValueError(f"table {meta['table']!r} of the store {meta['path']!r}")
        if meta["versions"] not in ("net", "all"):
            raise ValueError(f"versions {meta['versions']!r}")
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
            raise ValueError(f"columns {meta['columns']!r} do not begin with those of the key")
        spec = ChangeSpec(columns, schema.key_count, meta["since"], meta["until"], meta["versions"])
    try:
        with kept_by_lease(*kept):
            yield from change_batches(dataclasses.replace(bare, tablets=(tablet,)), spec)
    finally:
        cache.resize(0)
        for rowset in rowsets:
            rowset.close()


def _in_memory(tablet: TabletState, spec: ChangeSpec) -> bool:
    memories = (tablet.memory, *tablet.frozen)
    stores = [store for rowset in tablet.rowsets for store in (*rowset.frozen, rowset.deltas)]
    return any(records.may_meet(memory, spec) for memory in memories) or any(
        spec.meets(store.timestamp_min, store.timestamp_max) for store in stores
    )


def _seal(magic: bytes, body: bytes | pa.Buffer) -> bytes:
    return b"".join((_HEAD.pack(magic, VERSION, google_crc32c.value(body)), body))


def _open(data: bytes, wanted: bytes) -> pa.Buffer:
    """What stands behind the head."""
    try:
        magic, version, crc = _HEAD.unpack_from(data)
    except struct.error as error:
        raise CorruptionError(
            f"a change token is at least {_HEAD.size} bytes long, this one is {len(data)}"
        ) from error
    if magic != wanted or version != VERSION:
        raise CorruptionError(f"these bytes are no change token of version {VERSION}")
    body = pa.py_buffer(data).slice(_HEAD.size)
    if google_crc32c.value(body) != crc:
        raise CorruptionError("the change token was damaged on its way (CRC-32C differs)")
    return body
