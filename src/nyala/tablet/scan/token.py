"""Scan tokens: a part of one tablet's scan as bytes, for processes that read only the files.

    offset  size  field
    0       8     magic "nyalatok"
    8       4     version, u32 little-endian
    12      4     CRC-32C of all following bytes, u32
    16      4     length of the JSON part, u32
    20      …     JSON: store path, snapshot, schema, columns, predicate as text, limit, rowsets
                  with their files and offsets; padded with spaces to a multiple of 8
    …       …     Arrow IPC parts, each a u64 length and bytes: changes in memory per rowset and
                  column, then rows in memory, then an empty table with the result's types, if they
                  differ from the columns' own types

A token contains what the tablet has in memory at the snapshot. For a DiskRowSet these are the
changes of the needed columns. For a MemRowSet these are its selected rows, with the projection.

Invariants
    K1  A token returns the rows that the scan itself would return for the token's part.
    K2  A token names only files inside the store's folder, by relative paths.
    K3  Arrow parts start at multiples of 8 in memory, because kernels require aligned numbers.
        If a token is in unaligned memory, its parts are copied.

Source: docs/design/processes-and-locks.md, "Scan tokens"; docs/design/kudu.md, "Scan tokens".
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import google_crc32c
import numpy as np
import pyarrow as pa

from nyala.cfile.physical import narrow_decimal
from nyala.delta.mem_store import DeltaMemStore
from nyala.delta.run import LIVENESS, DeltaRun
from nyala.env import SYSTEM, Env
from nyala.errors import CorruptionError, InvalidArgumentError
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.schema.adapter import adapt, may_be_one_column
from nyala.schema.arrow_ipc import to_ipc
from nyala.schema.predicates.predicate import BoundPredicate
from nyala.schema.schema import Schema
from nyala.schema.types import ColumnType
from nyala.tablet.scan import read_path
from nyala.tablet.scan.open_rowsets import OpenRowSets
from nyala.tablet.scan.read_path import ScanCounters, ScanSpec, ScanUnit
from nyala.tablet.state.entries import RowSetFiles
from nyala.tablet.state.leased_files import kept_by_lease
from nyala.tablet.state.root import TableState
from nyala.tablet.state.validation import is_unsigned, validating

MAGIC: Final = b"nyalatok"
VERSION: Final = 5
_HEAD: Final = struct.Struct("<8sIII")
_LENGTH: Final = struct.Struct("<Q")


@dataclasses.dataclass(frozen=True)
class Token:
    """A scan token, and the greatest number of rows that its reader may have to read."""

    data: bytes
    rows: int


def make_tokens(root_path: str, table: TableState, spec: ScanSpec, count: int = 1) -> list[Token]:
    """Return tokens for the rows that `spec` must read: one per tablet, more for a large tablet.

    count:  about how many tokens to make. Tablets are cut between splits of their rowsets. If the
            scan has key order or a limit, each tablet gets one token, because order and limit
            apply within a token.
    Raises: InvalidArgumentError for a predicate that cannot be serialized.
    """
    if spec.predicate is not None and spec.predicate.has_arrow_expression:
        raise InvalidArgumentError(
            "a pyarrow expression cannot be sent in a scan token: pass `where` as text or with nyala.col()"
        )
    units = read_path.plan(table, spec, ScanCounters())
    by_tablet: dict[int, list[ScanUnit]] = {}
    for unit in units:
        by_tablet.setdefault(unit.tablet, []).append(unit)
    whole = spec.order_by_key or spec.limit is not None
    share = max(sum(map(_rows_of, units)) // max(count, 1), read_path.SPLIT_ROWS)
    return [
        Token(_make_token(root_path, spec, table.tablets[ordinal].id, part), sum(map(_rows_of, part)))
        for ordinal, parts in sorted(by_tablet.items())
        for part in ([parts] if whole else _cut(parts, share))
    ]


def planned_rows(table: TableState, spec: ScanSpec) -> int:
    """Return the greatest number of rows that the scan may have to read."""
    return sum(map(_rows_of, read_path.plan(table, spec, ScanCounters())))


def text_bytes(table: TableState, spec: ScanSpec) -> dict[str, float]:
    """Return the average number of bytes per value of each projected text column, by name.

    Binary columns count as text.

    Measures the largest rowset on disk. Empty if all rows are in memory. Cost: one footer per
    column.
    """
    units = read_path.plan(table, spec, ScanCounters(), guess=True)
    disk = [unit.rowset for unit in units if isinstance(unit.rowset, DiskRowSet)]
    if not disk:
        return {}
    largest = max(disk, key=lambda rowset: rowset.row_count)
    return {column.name: largest.row_bytes(column) for column in spec.columns if column.type.is_variable}


def _rows_of(unit: ScanUnit) -> int:
    return unit.upper - unit.lower if unit.rowids is None else len(unit.rowids)


def _cut(units: Sequence[ScanUnit], share: int) -> Iterator[list[ScanUnit]]:
    """Cut the rows of a tablet into groups of about `share` rows, one group per token.

    The first group contains the rows of all rowsets that are only in memory.

    units: the tablet's rowsets, as parts of the scan.
    """
    group: list[ScanUnit] = [unit for unit in units if not isinstance(unit.rowset, DiskRowSet)]
    size = sum(map(_rows_of, group))
    for unit in units:
        if not isinstance(unit.rowset, DiskRowSet):
            continue
        lower = unit.lower
        while lower < unit.upper:
            if size >= share:
                yield group
                group, size = [], 0
            # The group ends with the split that reaches the share.
            target = lower + share - size
            upper = min(-(-target // read_path.SPLIT_ROWS) * read_path.SPLIT_ROWS, unit.upper)
            group.append(dataclasses.replace(unit, lower=lower, upper=upper))
            size += upper - lower
            lower = upper
    if group:
        yield group


def _make_token(root_path: str, spec: ScanSpec, tablet_id: int, units: Sequence[ScanUnit]) -> bytes:
    bodies: list[Any] = []
    rowsets = []
    memory = []
    needed = {LIVENESS, *(column.id for column in spec.columns)}
    if spec.predicate is not None:
        needed |= {spec.schema.by_name(name).id for name in spec.predicate.columns}
    for unit in units:
        if isinstance(unit.rowset, DiskRowSet):
            deltas = []
            for store in (*unit.rowset.frozen, unit.rowset.deltas):
                for column_id in sorted(store.column_ids & needed):
                    run = store.run(column_id)
                    if run is not None:
                        kept = _of_rows(run.between(0, spec.snapshot), unit.lower, unit.upper)
                        bodies.append(_delta_ipc([kept.rowids, kept.timestamps, kept.values]))
                        deltas.append([column_id, len(bodies) - 1])
            rowsets.append(
                {
                    "lower": unit.lower,
                    "upper": unit.upper,
                    "files": RowSetFiles.of(unit.rowset).to_json(),
                    "deltas": deltas,
                }
            )
        else:
            memory.append(unit)
    if memory:
        carried = _with_merge_keys(spec)
        batches = list(read_path.run(memory, carried, ScanCounters()))
        bodies.append(to_ipc(pa.Table.from_batches(batches, schema=carried.arrow_schema).combine_chunks()))
    other_types = spec.arrow_schema != spec.schema.arrow_schema([column.name for column in spec.columns])
    if other_types:
        bodies.append(to_ipc(spec.arrow_schema.empty_table()))
    meta = {
        "path": root_path,
        "tablet": tablet_id,
        "snapshot": spec.snapshot,
        "schema": json.loads(spec.schema.to_json()),
        "columns": [column.name for column in spec.columns],
        "types": len(bodies) - 1 if other_types else None,
        "where": None if spec.predicate is None else spec.predicate.to_json(),
        "limit": spec.limit,
        "ordered": spec.order_by_key,
        "rowsets": rowsets,
        "memory": len(bodies) - 1 - other_types if memory else None,
    }
    text = json.dumps(meta).encode()
    text += b" " * (-(_HEAD.size + len(text)) % 8)
    parts = [struct.pack("<I", len(text)), text]
    for body in bodies:
        parts += [_LENGTH.pack(len(body)), bytes(body)]
    payload = b"".join(parts)
    return MAGIC + struct.pack("<II", VERSION, google_crc32c.value(payload)) + payload


def _of_rows(run: DeltaRun, lower: int, upper: int) -> DeltaRun:
    """Return the changes of the rows [lower, upper). Their rowids stay the same."""
    begin, end = np.searchsorted(run.rowids, [lower, upper]).tolist()
    if (begin, end) == (0, len(run)):
        return run
    return DeltaRun(
        run.kind, run.rowids[begin:end], run.timestamps[begin:end], run.values.slice(begin, end - begin)
    )


def read_token(
    data: bytes,
    env: Env | None = None,
    columns: Sequence[str] | None = None,
    opened: OpenRowSets | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the rows of a token. See `nyala.api.scan.read_token`.

    opened: keeps the token's rowsets open for later tokens.
    """
    env = env or SYSTEM
    with validating("scan token"):
        meta, bodies = _open(data)
        with _kept(meta["snapshot"]):
            spec, units, projection = _plan(meta, bodies, env, columns, opened or OpenRowSets())
        carried = _with_merge_keys(spec)
        names = carried.arrow_schema.names if units and spec.order_by_key else projection
        held = [] if meta["memory"] is None else _rows(bodies[meta["memory"]], names, carried.arrow_schema)
    memory: list[pa.RecordBatch] = []
    left = spec.limit
    with _kept(spec.snapshot):  # a scan reads the files' footers before its first batch
        if meta["memory"] is not None and units and spec.order_by_key:
            # Both the rows on disk and those in memory are in key order. They are sorted together.
            on_disk = read_path.run(units, carried, ScanCounters())
            batches = _merged(itertools.chain(on_disk, held), carried, projection)
        else:
            batches = read_path.run(units, spec, ScanCounters())
            memory = held
        for batch in itertools.chain(memory, batches):
            if left is not None:
                batch = batch.slice(0, left)
                left -= batch.num_rows
            if batch.num_rows:
                yield batch
            if left == 0:
                return


def _kept(snapshot: int) -> contextlib.AbstractContextManager[None]:
    """Context manager for reading a token's files. Raises HistoryExpiredError if a file is gone.

    snapshot: the timestamp of the scan, for the error message.
    """
    return kept_by_lease(f"the scan at {snapshot}", "load again")


def _plan(
    meta: Any, bodies: list[pa.Buffer], env: Env, columns: Sequence[str] | None, opened: OpenRowSets
) -> tuple[ScanSpec, list[ScanUnit], list[str]]:
    """Return the token's scan: its spec, its units, and the names of the projected columns."""
    schema_text, schema = opened.schema(meta["schema"])
    numbers = [meta["snapshot"], meta["tablet"], 0 if meta["limit"] is None else meta["limit"]]
    if not all(map(is_unsigned, numbers)):
        raise ValueError(f"expected whole numbers as snapshot, tablet and limit, found {numbers}")
    if not isinstance(meta["path"], str) or "\0" in meta["path"]:
        raise ValueError(f"expected the path of a store, without NUL characters, found {meta['path']!r}")
    if not isinstance(meta["ordered"], bool):
        raise ValueError(
            f"expected true or false as `ordered` (rows in key order), found {meta['ordered']!r}"
        )
    projection = meta["columns"] if columns is None else list(columns)
    unknown = [name for name in projection if name not in meta["columns"]]
    if unknown:
        raise InvalidArgumentError(f"the scan token has no column {unknown[0]!r}; it has {meta['columns']}")
    shown, types = schema.project(projection), {}
    if meta["types"] is not None:
        with pa.ipc.open_stream(bodies[meta["types"]]) as reader:
            given = reader.schema
        shown = tuple(dataclasses.replace(c, nullable=given.field(c.name).nullable) for c in shown)
        # All columns of the token, because rows in memory are sorted by the key.
        types = {
            name: type
            for name in meta["columns"]
            if (type := given.field(name).type) != schema.by_name(name).type.arrow
        }
        wrong = [name for name, type in types.items() if not _is_readable_as(type, schema.by_name(name).type)]
        if wrong:
            raise ValueError(f"column {wrong[0]!r} cannot be read as {types[wrong[0]]}")
    spec = ScanSpec(
        schema,
        shown,
        meta["snapshot"],
        None if meta["where"] is None else BoundPredicate.from_json(meta["where"], schema),
        meta["limit"],
        meta["ordered"],
        types,
    )
    units = []
    for part in meta["rowsets"]:
        rowset = opened.rowset(env, meta["path"], part["files"], schema_text, schema)
        rowset = dataclasses.replace(rowset, deltas=_deltas(part["deltas"], bodies, schema, rowset.row_count))
        places = part["lower"], part["upper"], rowset.row_count
        if not all(map(is_unsigned, places)) or not places[0] <= places[1] <= places[2]:
            raise ValueError(f"rows [{places[0]}, {places[1]}) are not within a rowset of {places[2]} rows")
        units.append(ScanUnit(rowset, meta["tablet"], part["lower"], part["upper"]))
    return spec, units, projection


def _with_merge_keys(spec: ScanSpec) -> ScanSpec:
    """Add missing key columns to the projection, so that rows can be sorted by key.

    Returns the spec unchanged if the scan has no key order or no columns.
    """
    if not spec.order_by_key or not spec.columns:
        return spec
    there = {column.id for column in spec.columns}
    missing = tuple(column for column in spec.schema.key_columns if column.id not in there)
    return dataclasses.replace(spec, columns=(*spec.columns, *missing))


def _merged(
    batches: Iterable[pa.RecordBatch], spec: ScanSpec, projection: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all batches, sorted by key, with only the columns of the projection."""
    if not spec.columns:
        yield from batches
        return
    rows = pa.Table.from_batches(list(batches), schema=spec.arrow_schema).combine_chunks()
    # A key column may come in a wider type, which has another key encoding.
    keys = spec.codec.encode(
        [adapt(rows.column(c.name).combine_chunks(), c.type.arrow) for c in spec.schema.key_columns]
    )
    in_order = rows.select(projection).take(pa.array(keys.sort_indices()))
    yield from in_order.to_batches(max_chunksize=read_path.SPLIT_ROWS)


def _open(data: bytes) -> tuple[Any, list[pa.Buffer]]:
    """Return the JSON part and the Arrow parts of a token. Raises: CorruptionError."""
    try:
        magic, version, crc, length = _HEAD.unpack_from(data)
    except struct.error as error:
        raise CorruptionError(
            f"expected a scan token of at least {_HEAD.size} bytes, found {len(data)} bytes"
        ) from error
    if magic != MAGIC or version != VERSION:
        raise CorruptionError(f"the bytes are not a scan token of version {VERSION}")
    if google_crc32c.value(data[16:]) != crc:
        raise CorruptionError("the scan token is damaged: its CRC-32C does not match")
    meta = json.loads(data[20 : 20 + length])
    buffer = pa.py_buffer(data)
    bodies, at = [], 20 + length
    while at < len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        body = buffer.slice(at + 8, size)
        bodies.append(body if body.address % 8 == 0 else pa.py_buffer(body.to_pybytes()))
        at += 8 + size
    return meta, bodies


def _delta_ipc(arrays: Sequence[Any]) -> pa.Buffer:
    columns = [array if isinstance(array, pa.Array) else pa.array(array) for array in arrays]
    return to_ipc(pa.RecordBatch.from_arrays(columns, names=["rowid", "timestamp", "value"]))


def _is_readable_as(target: pa.DataType, column: ColumnType) -> bool:
    """Whether a scan can return a column of this type as Arrow type `target`."""
    if pa.types.is_dictionary(target):
        return bool(target == pa.dictionary(pa.int32(), column.arrow))
    return may_be_one_column(target, column.arrow) or target == narrow_decimal(column)


def _rows(body: pa.Buffer, columns: Sequence[str], schema: pa.Schema) -> list[pa.RecordBatch]:
    """Return these columns of the rows in memory that a token contains.

    Raises: ValueError if a column differs from `schema`.
    """
    with pa.ipc.open_stream(body) as reader:
        batches = [batch.select(list(columns)) for batch in reader]
    for batch in batches:
        batch.validate(full=True)
        for name, array in zip(columns, batch.columns, strict=True):
            field = schema.field(name)
            if array.type != field.type or (array.null_count and not field.nullable):
                raise ValueError(
                    f"column {name!r} has type {array.type} and {array.null_count} NULLs, expected {field}"
                )
    if not columns:
        return batches
    return [
        pa.RecordBatch.from_arrays(b.columns, schema=pa.schema(map(schema.field, columns))) for b in batches
    ]


def _deltas(
    parts: Sequence[Sequence[int]], bodies: Sequence[pa.Buffer], schema: Schema, row_count: int
) -> DeltaMemStore:
    """Return the changes of one rowset that were in memory when the token was made.

    parts: (column id, index in `bodies`) of each changed column. row_count: the rowset's rows.
    Raises: ValueError if the changes are invalid.
    """
    store = DeltaMemStore()
    types = {LIVENESS: pa.bool_(), **schema.arrow_types}
    for column_id, index in parts:
        with pa.ipc.open_stream(bodies[index]) as reader:
            for batch in reader:
                batch.validate(full=True)
                rowids, timestamps, values = batch.columns
                if (
                    rowids.null_count
                    or timestamps.null_count
                    or not rowids.type == timestamps.type == pa.int64()
                ):
                    raise ValueError(
                        f"expected int64 rowids and timestamps, found {rowids.type} and {timestamps.type}"
                    )
                if not may_be_one_column(values.type, types[column_id]):
                    raise ValueError(
                        f"changes of column {column_id} have values of type {values.type}, expected "
                        f"{types[column_id]}"
                    )
                run = DeltaRun("redo", rowids.to_numpy(), timestamps.to_numpy(), values)
                if run.disorder() is not None:
                    raise ValueError(
                        f"changes of column {column_id} are not in the order of rows and timestamps"
                    )
                if len(run) and run.rowids[-1] >= row_count:
                    raise ValueError(
                        f"a change of column {column_id} is in row {run.rowids[-1]}, but the rowset has only "
                        f"{row_count} rows"
                    )
                store.append(run.rowids, run.timestamps, {column_id: values})
    return store


def tablet_of(data: bytes) -> int | None:
    """Return the id of the tablet that the token reads; None if the bytes are not a token."""
    try:
        meta, _ = _open(data)
    except CorruptionError:
        return None
    tablet_id: int = meta["tablet"]
    return tablet_id
