"""Converts the catalogue's entries to rows and back.

A change is written as removed rows and added rows (`difference`). The entries of a change are
converted as they were and as they are, and rows in both stay. So raising the durable mark of a
rowset writes one row, not one per column.

Rows are converted to entries only after their checksums were compared (`nyala.catalog.store`). If
they cannot be decoded, that is our own mistake, or somebody made valid checksums; `decode` raises
ValueError.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, cast

from nyala.catalog.format import (
    BASE_OWNER,
    COMMITTED_KEYS,
    DELTA_OWNER,
    DELTAS,
    DROPPED_RANGES,
    FORMAT_VERSION,
    GARBAGE,
    PART_OWNER,
    PARTS,
    PLACES,
    ROWSETS,
    SCHEMAS,
    STORE,
    TABLES,
    TABLETS,
    Row,
)
from nyala.catalog.model import (
    CatalogChange,
    CatalogState,
    CommittedKey,
    DeltaEntry,
    DroppedRange,
    PartEntry,
    RowSetEntry,
    TableEntry,
    TabletEntry,
)
from nyala.cfile.column import ColumnKey, ColumnPlace
from nyala.partition.model import Partition, PartitionSchema
from nyala.schema.schema import Schema

__all__ = ["RowsByTable", "decode", "difference"]

RowsByTable: TypeAlias = "dict[str, list[Row]]"
"""Table name to rows without their `crc`."""


# --- entries to rows --------------------------------------------------------------------------------


def _rows_of_store(state: CatalogState) -> Row:
    return (
        0, FORMAT_VERSION, state.store_id, state.created_us, state.version, state.timestamp_max,
        state.wal_start, state.next_table_id, state.next_tablet_id, state.next_rowset_id, state.next_delta_id,
    )  # fmt: skip


def _rows_of_table(rows: RowsByTable, table: TableEntry) -> None:
    rows[TABLES.name].append(
        (
            table.id,
            table.name,
            table.comment,
            table.history_us,
            table.schema.version,
            table.partition_schema.to_json(),
            table.history_start,
            table.created,
            table.rewritten,
        )
    )
    rows[SCHEMAS.name] += [
        (table.id, version, schema.to_json(), table.schema_since.get(version, 0))
        for version, schema in table.schemas.items()
    ]
    rows[DROPPED_RANGES.name] += [
        (table.id, position, gone.lower, gone.upper, gone.created, gone.dropped)
        for position, gone in enumerate(table.dropped)
    ]


def _rows_of_tablet(rows: RowsByTable, tablet: TabletEntry) -> None:
    partition = tablet.partition
    rows[TABLETS.name].append(
        (
            tablet.id, tablet.table_id, _integers(partition.hash_buckets), partition.range_lower,
            partition.range_upper, tablet.inserts_durable, tablet.created,
        )
    )  # fmt: skip


def _rows_of_rowset(rows: RowsByTable, rowset: RowSetEntry) -> None:
    rows[ROWSETS.name].append(
        (
            rowset.id, rowset.tablet_id, rowset.row_count, rowset.key_min, rowset.key_max,
            rowset.deltas_durable, rowset.path, rowset.file_id, rowset.size_bytes, rowset.schema_version,
        )
    )  # fmt: skip
    _rows_of_places(rows, BASE_OWNER, rowset.id, rowset.places)


def _rows_of_part(rows: RowsByTable, part: PartEntry) -> None:
    rows[PARTS.name].append((part.id, part.rowset_id, part.path, part.file_id, part.size_bytes))
    _rows_of_places(rows, PART_OWNER, part.id, part.places)


def _rows_of_delta(rows: RowsByTable, delta: DeltaEntry) -> None:
    rows[DELTAS.name].append(
        (
            delta.id, delta.rowset_id, delta.kind, delta.timestamp_min, delta.timestamp_max,
            delta.record_count, _integers(delta.column_ids), delta.path, delta.file_id, delta.size_bytes,
        )
    )  # fmt: skip
    _rows_of_places(rows, DELTA_OWNER, delta.id, delta.places)


def _rows_of_places(rows: RowsByTable, owner_kind: int, owner_id: int, places: Sequence[ColumnPlace]) -> None:
    rows[PLACES.name] += [
        (
            owner_kind,
            owner_id,
            position,
            place.key.role,
            place.key.group,
            place.key.column_id,
            place.offset,
            place.length,
        )
        for position, place in enumerate(places)
    ]


def _rows_of_committed_key(rows: RowsByTable, key: CommittedKey) -> None:
    rows[COMMITTED_KEYS.name].append((key.key, key.timestamp, key.version, key.result))


def _integers(values: Iterable[int]) -> str:
    return json.dumps(list(values), separators=(",", ":"))


def touched_rows(state: CatalogState, change: CatalogChange) -> RowsByTable:
    """The rows in `state` of the entries that `change` touches."""
    rows: RowsByTable = {
        shape.name: []
        for shape in (
            STORE,
            TABLES,
            SCHEMAS,
            DROPPED_RANGES,
            TABLETS,
            ROWSETS,
            PARTS,
            DELTAS,
            PLACES,
            GARBAGE,
            COMMITTED_KEYS,
        )
    }
    rows[STORE.name].append(_rows_of_store(state))
    for table in _found(state.tables, (entry.id for entry in change.put_tables), change.drop_tables):
        _rows_of_table(rows, table)
    for tablet in _found(state.tablets, (entry.id for entry in change.put_tablets), change.drop_tablets):
        _rows_of_tablet(rows, tablet)
    for rowset in _found(state.rowsets, (entry.id for entry in change.put_rowsets), change.drop_rowsets):
        _rows_of_rowset(rows, rowset)
    for part in _found(state.parts, (entry.id for entry in change.put_parts), change.drop_parts):
        _rows_of_part(rows, part)
    for delta in _found(state.deltas, (entry.id for entry in change.put_deltas), change.drop_deltas):
        _rows_of_delta(rows, delta)
    for key in _found(
        state.committed_keys, (entry.key for entry in change.committed_keys), change.drop_committed_keys
    ):
        _rows_of_committed_key(rows, key)
    for path in dict.fromkeys((*change.garbage, *change.collected)):
        if path in state.garbage:
            rows[GARBAGE.name].append((path, state.garbage[path]))
    return rows


def _found(entries: Mapping[Any, Any], put: Iterable[Any], dropped: Iterable[Any]) -> list[Any]:
    return [entries[id] for id in dict.fromkeys((*put, *dropped)) if id in entries]


def difference(
    old: CatalogState, new: CatalogState, change: CatalogChange
) -> tuple[RowsByTable, RowsByTable]:
    """The rows that `change` removes from `old`, and those that it adds in `new`."""
    before, after = touched_rows(old, change), touched_rows(new, change)
    leaving: RowsByTable = {}
    coming: RowsByTable = {}
    for name, rows in before.items():
        if not rows:
            leaving[name], coming[name] = [], after[name]
            continue
        common = set(rows).intersection(after[name])
        leaving[name] = [row for row in rows if row not in common]
        coming[name] = [row for row in after[name] if row not in common]
    return leaving, coming


def all_rows(state: CatalogState) -> RowsByTable:
    """All rows of a state: for a new catalogue, and for tests."""
    return touched_rows(
        state,
        CatalogChange(
            drop_tables=list(state.tables),
            drop_tablets=list(state.tablets),
            drop_rowsets=list(state.rowsets),
            drop_parts=list(state.parts),
            drop_deltas=list(state.deltas),
            collected=list(state.garbage),
            drop_committed_keys=list(state.committed_keys),
        ),
    )


# --- rows to entries --------------------------------------------------------------------------------


def decode(rows: RowsByTable) -> CatalogState:
    """The state of these rows, which are in key order and whose checksums were compared.

    Raises: ValueError if they represent no state.
    """
    try:
        return _decode(rows)
    except (ValueError, TypeError, LookupError, AttributeError, AssertionError, RecursionError) as error:
        # AssertionError comes from Schema and Partition, whose numbered rules a row may break.
        raise ValueError(f"the rows are not a catalogue: {type(error).__name__}: {error}") from error


def _decode(rows: RowsByTable) -> CatalogState:
    (store,) = cast("list[tuple[Any, ...]]", rows[STORE.name])
    if store[0] != 0 or store[1] != FORMAT_VERSION:
        raise ValueError(f"the row of the store has id {store[0]} and format version {store[1]}")
    schemas: dict[int, dict[int, Schema]] = {}
    since: dict[int, dict[int, int]] = {}
    for table_id, version, text, moment in cast("list[tuple[int, int, str, int]]", rows[SCHEMAS.name]):
        schemas.setdefault(table_id, {})[version] = Schema.from_json(text)
        since.setdefault(table_id, {})[version] = moment
    dropped: dict[int, list[DroppedRange]] = {}
    for table_id, position, lower, upper, created, moment in cast(
        "list[tuple[Any, ...]]", rows[DROPPED_RANGES.name]
    ):
        ranges = dropped.setdefault(table_id, [])
        if position != len(ranges):
            raise ValueError(f"dropped range {position} of table {table_id} follows {len(ranges)} ranges")
        ranges.append(DroppedRange(lower, upper, created, moment))
    tables = {}
    for id, name, comment, history_us, version, partition, history_start, created, rewritten in cast(
        "list[tuple[Any, ...]]", rows[TABLES.name]
    ):
        versions = schemas.pop(id)
        tables[id] = TableEntry(
            id, name, comment, history_us, versions[version], MappingProxyType(versions),
            PartitionSchema.from_json(partition), history_start, created, MappingProxyType(since[id]),
            tuple(dropped.pop(id, ())), rewritten,
        )  # fmt: skip
    if schemas or dropped:
        raise ValueError(
            f"the catalogue has schemas or ranges of tables that do not exist: {sorted({*schemas, *dropped})}"
        )
    tablets = {
        id: TabletEntry(
            id, table_id, Partition(tuple(json.loads(buckets)), lower, upper), inserts_durable, created
        )
        for id, table_id, buckets, lower, upper, inserts_durable, created in cast(
            "list[tuple[Any, ...]]", rows[TABLETS.name]
        )
    }
    base_places, delta_places, part_places = _decode_places(cast("list[tuple[int, ...]]", rows[PLACES.name]))
    rowsets = {}
    for id, tablet_id, row_count, key_min, key_max, durable, path, file_id, size_bytes, written_with in cast(
        "list[tuple[Any, ...]]", rows[ROWSETS.name]
    ):
        places = tuple(base_places.pop(id, ()))
        rowsets[id] = RowSetEntry(
            id,
            tablet_id,
            row_count,
            key_min,
            key_max,
            durable,
            path,
            file_id,
            size_bytes,
            places,
            written_with,
        )
    parts = {
        id: PartEntry(id, rowset_id, path, file_id, size_bytes, tuple(part_places.pop(id, ())))
        for id, rowset_id, path, file_id, size_bytes in cast("list[tuple[Any, ...]]", rows[PARTS.name])
    }
    deltas = {}
    for (
        id, rowset_id, kind, timestamp_min, timestamp_max, record_count, column_ids, path, file_id, size_bytes,
    ) in cast("list[tuple[Any, ...]]", rows[DELTAS.name]):  # fmt: skip
        places = tuple(delta_places.pop(id, ()))
        deltas[id] = DeltaEntry(
            id, rowset_id, kind, path, file_id, size_bytes, timestamp_min, timestamp_max, record_count,
            tuple(json.loads(column_ids)), places,
        )  # fmt: skip
    if base_places or delta_places or part_places:
        raise ValueError(
            f"places of rowsets {sorted(base_places)}, deltas {sorted(delta_places)} or parts {sorted(part_places)} "
            "that do not exist"
        )
    keys = {
        key: CommittedKey(key, timestamp, result, version)
        for key, timestamp, version, result in cast("list[tuple[Any, ...]]", rows[COMMITTED_KEYS.name])
    }
    state = CatalogState(
        version=store[4],
        store_id=store[2],
        created_us=store[3],
        timestamp_max=store[5],
        wal_start=store[6],
        next_table_id=store[7],
        next_tablet_id=store[8],
        next_rowset_id=store[9],
        next_delta_id=store[10],
        tables=MappingProxyType(tables),
        tablets=MappingProxyType(tablets),
        rowsets=MappingProxyType(rowsets),
        parts=MappingProxyType(parts),
        deltas=MappingProxyType(deltas),
        garbage=MappingProxyType(dict(cast("list[tuple[str, int]]", rows[GARBAGE.name]))),
        committed_keys=MappingProxyType(keys),
    )
    problem = next(state.problems(), None)
    if problem is not None:
        raise ValueError(problem)
    return state


def _decode_places(
    rows: Sequence[tuple[int, ...]],
) -> tuple[dict[int, list[ColumnPlace]], ...]:
    """The places of each rowset's base, of each delta file, and of each part, by id."""
    places: tuple[dict[int, list[ColumnPlace]], ...] = ({}, {}, {})
    keys: dict[tuple[int, int, int], ColumnKey] = {}  # there are few different ones; each is made once
    owner: tuple[int, int] | None = None
    group: list[ColumnPlace] = []
    for owner_kind, owner_id, position, role, delta_group, column_id, offset, length in rows:
        if (owner_kind, owner_id) != owner:
            if owner_kind not in (BASE_OWNER, DELTA_OWNER, PART_OWNER):
                raise ValueError(f"a place has an owner of kind {owner_kind}")
            owner = (owner_kind, owner_id)
            group = places[owner_kind][owner_id] = []
        if position != len(group):
            raise ValueError(f"place {position} of owner {owner} follows {len(group)} places")
        if offset < 0 or length < 0:
            raise ValueError(f"place {position} of owner {owner} has offset {offset} and length {length}")
        key = keys.get((role, delta_group, column_id))
        if key is None:
            key = keys[role, delta_group, column_id] = ColumnKey(role, delta_group, column_id)
        group.append(ColumnPlace(key, offset, length))
    return places
