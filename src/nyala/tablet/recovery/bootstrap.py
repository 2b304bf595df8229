"""Replays the log into the memory of the tablets, when a store is opened and in reader processes.

For each row in the log, with tablet A and timestamp t, rule R1 says what happens:

    A is not in the catalogue   Skip the row: its table was purged.
    insert                      Insert the row into A's MemRowSet if t > A.inserts_durable.
                                Otherwise skip it: the row is in a file.
    update, delete              Find where the key is live, among MemRowSet rows that were inserted
                                before t and rowsets with deltas_durable < t, and apply the change
                                there. If the key is not found, skip it: the change is in a file.

A tablet's `inserts_durable` says up to which timestamp all its inserts are in files. A rowset's
`deltas_durable` says the same for the changes of its rows.

Groups of rows are gathered and applied together, many thousand rows at a time: first all inserts,
then all updates, then all deletes. For one key, this is also the order of the log, because a key is
inserted before it is updated, and updated before it is deleted. If a key is inserted again after
its delete, all gathered rows are applied before this insert.

To detect such an insert, keys are compared by hash. If two keys have the same hash, rows are only
applied a little earlier than necessary.

The delete of a key may be missing in the log, because a large delete is written directly to files.
The log then has an update of the key, followed by a new insert. The update is in a file too, so the
rule above skips it by its timestamp, and the order of the two does not matter.

Records name columns by id. A record of another schema version is adapted to the current one. A
column whose type was widened gets the new type. A column that no readable snapshot has is left out.
A column that was added later gets its default.

Invariants
    R1  The rule above holds for each row, in whatever way rows are gathered.
    G1  Inserts are applied before updates, and updates before deletes. The rows of one key are
        applied in the order of the log.

Source: docs/design/log-and-recovery.md, "Replay"; docs/design/rules.md, R1 and R2;
docs/design/kudu.md, "Bootstrap".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from nyala.catalog.model import CommitMessage, CommittedKey
from nyala.errors import CorruptionError
from nyala.schema.adapter import adapt, may_be_one_column
from nyala.schema.plain_arrays import array_of_numbers
from nyala.tablet.state.idempotency import encode_counts
from nyala.tablet.state.locate import ABSENT, find_ghosts, locate
from nyala.tablet.state.root import Root, TableState
from nyala.tablet.write.effects import Effect, ResolvedBatch
from nyala.tablet.write.write_path import plan_apply
from nyala.wal.record import LogRecord, RecordLocation, ResolvedGroup

# Gathered rows are applied at this number, or at this size for wide rows: large enough to be fast,
# small enough to bound the memory. While rows are applied, memory has two or three copies of them.
GATHER_ROWS: Final = 1 << 18
GATHER_BYTES: Final = 32 << 20
# The keys of larger groups are not compared. They count as deleted before, so the gathered rows are
# applied first. For a large group this costs little.
_COMPARED_ROWS_MAX: Final = 4096


@dataclass
class _Gathered:
    """Groups of rows that wait to be applied; all have the same table, kind and columns."""

    groups: list[ResolvedGroup] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    places: list[RecordLocation] = field(default_factory=list)
    rows: int = 0

    def add(self, group: ResolvedGroup, record: LogRecord) -> None:
        self.groups.append(group)
        self.timestamps.append(record.timestamp)
        self.places.append(record.location)
        self.rows += group.batch.num_rows


@dataclass
class ReplayReport:
    """What a replay has read so far: counts for `stats()`, idempotency keys, commit messages."""

    records: int = 0
    rows: int = 0
    timestamp_max: int = 0
    idempotency_keys: dict[str, CommittedKey] = field(default_factory=dict)
    messages: dict[int, CommitMessage] = field(default_factory=dict)


class Replayer:
    """Applies log records to the MemRowSets and DeltaMemStores of a root.

    Call `drain()` after the last record.

    relieve: a function that is called between two records, after every `GATHER_ROWS` rows or
             `GATHER_BYTES`, to limit the memory: it may flush, or raise an error. Its arguments are
             the timestamp up to which everything is applied, and a `ReplayReport` (counts and keys
             of the records so far). It returns the root with which the replay continues.
    """

    def __init__(self, root: Root, relieve: Callable[[int, ReplayReport], Root] | None = None) -> None:
        self._root = root
        self._relieve = relieve
        self._rows_since = self._bytes_since = 0  # since the last call of `relieve`
        self._inserts: dict[tuple[int, tuple[str, ...]], _Gathered] = {}
        self._updates: dict[tuple[int, tuple[str, ...]], _Gathered] = {}
        self._deletes: dict[tuple[int, tuple[str, ...]], _Gathered] = {}
        self._waiting = 0
        # By table: hashes of the keys in `_deletes`; None: too many to compare.
        self._deleted: dict[int, set[int] | None] = {}
        self.report = ReplayReport()

    def feed(self, records: Iterable[LogRecord]) -> None:
        """Take the next records, in log order. Their rows are applied now or later.

        Raises: CorruptionError for an invalid record.
        """
        for record in records:
            self.report.records += 1
            self.report.timestamp_max = max(self.report.timestamp_max, record.timestamp)
            if record.idempotency_key is not None:
                key = CommittedKey(record.idempotency_key, record.timestamp, encode_counts(record.counts))
                self.report.idempotency_keys[key.key] = key
            if record.message is not None:
                self.report.messages[record.timestamp] = CommitMessage(record.timestamp, record.message)
            for group in record.groups:
                self._take(group, record)
                self._rows_since += group.batch.num_rows
                self._bytes_since += group.batch.nbytes
            if self._rows_since >= GATHER_ROWS or self._bytes_since >= GATHER_BYTES:
                self._rows_since = self._bytes_since = 0
                self.drain()
                if self._relieve is not None:
                    self._root = self._relieve(record.timestamp, self.report)

    def _take(self, group: ResolvedGroup, record: LogRecord) -> None:
        table = self._root.any_table(group.table_id)
        if table is None:
            return
        wrong = _invalid(group, table)
        if wrong is not None:
            raise _corruption(table, wrong, record.location)
        if group.schema_version != table.schema.version:
            group = _projected(group, table)
            if group.kind == "update" and group.batch.num_columns == table.schema.key_count:
                return  # all its columns were dropped before the history begins
        if group.kind == "tombstone":
            # Tombstones are rare, so they are applied at once, after all earlier rows.
            self.drain()
            gathered = _Gathered()
            gathered.add(group, record)
            self.report.rows += gathered.rows
            _apply(table, group.kind, gathered)
            return
        if group.kind == "delete":
            waiting = self._deletes
            self._note_deleted(group, table)
        else:
            if self._was_deleted(group, table):
                self.drain()
            waiting = self._inserts if group.kind == "insert" else self._updates
        key = (group.table_id, tuple(group.batch.schema.names))
        waiting.setdefault(key, _Gathered()).add(group, record)
        self._waiting += group.batch.num_rows
        if self._waiting >= GATHER_ROWS:
            self.drain()

    def _note_deleted(self, group: ResolvedGroup, table: TableState) -> None:
        known = self._deleted.setdefault(group.table_id, set())
        if known is None or group.batch.num_rows > _COMPARED_ROWS_MAX:
            self._deleted[group.table_id] = None
        else:
            known.update(_key_hashes(group, table))

    def _was_deleted(self, group: ResolvedGroup, table: TableState) -> bool:
        """Whether an earlier delete that is not applied yet may have one of the keys in `group`.

        The replay collects deletes, to apply many at once. It must apply them before a later insert
        or update of the same keys.
        """
        if group.table_id not in self._deleted:
            return False
        known = self._deleted[group.table_id]
        if known is None or group.batch.num_rows > _COMPARED_ROWS_MAX:
            return True
        return not known.isdisjoint(_key_hashes(group, table))

    def drain(self) -> None:
        """Apply all rows that `feed` has gathered."""
        for kind, waiting in (
            ("insert", self._inserts),
            ("update", self._updates),
            ("delete", self._deletes),
        ):
            for (table_id, _), gathered in waiting.items():
                self.report.rows += gathered.rows
                table = self._root.any_table(table_id)
                assert table is not None, "a replay removes no table"
                _apply(table.whole, kind, gathered)
            waiting.clear()
        self._waiting = 0
        self._deleted.clear()


def _corruption(table: TableState, why: str, location: RecordLocation) -> CorruptionError:
    return CorruptionError(f"a log record of table {table.name!r} is invalid: {why}", *location)


def _invalid(group: ResolvedGroup, table: TableState) -> str | None:
    """Compare the columns of logged rows with the table's columns. Return what is wrong with them.

    Returns None if the rows can belong to the table.
    """
    stored, of_now = table.stored_schema(), group.schema_version == table.schema.version
    left = set(table.schema.key_ids)
    for name, array in zip(group.batch.schema.names, group.batch.columns, strict=True):
        number = int(name)
        if not stored.has_id(number):
            if of_now:
                return f"its schema has no column {number}"
            continue
        expected = stored.arrow_types[number]
        if array.type != expected and (of_now or not may_be_one_column(array.type, expected)):
            return f"column {number} has type {array.type}, expected {expected}"
        if number in left:
            left.remove(number)
            if array.null_count:
                return f"key column {number} has NULLs"
    return f"key columns {sorted(left)} are missing" if left else None


def _key_hashes(group: ResolvedGroup, table: TableState) -> list[int]:
    keys = table.codec.encode([group.batch.column(str(column.id)) for column in table.schema.key_columns])
    hashes: list[int] = keys.hash64().tolist()
    return hashes


def _projected(group: ResolvedGroup, table: TableState) -> ResolvedGroup:
    """Return rows of another schema version, adapted to the table's current schema.

    Columns get their current types. A dropped column is kept only if a readable snapshot has it.
    """
    stored = table.stored_schema()
    names = [name for name in group.batch.schema.names if stored.has_id(int(name))]
    arrays = [adapt(group.batch.column(name), stored.by_id(int(name)).type.arrow) for name in names]
    return dataclasses.replace(group, batch=pa.RecordBatch.from_arrays(arrays, names=names))


def _apply(table: TableState, kind: str, gathered: _Gathered) -> None:
    """Apply rows of the log to the memory of the tablets, except rows that are already in files.

    kind:     what the rows do: "insert", "update", "delete" or "tombstone" (see `Effect`).
    gathered: the rows, all of this kind, from one or more batches of the log.
    Raises: CorruptionError.
    """
    batch = pa.Table.from_batches([group.batch for group in gathered.groups]).combine_chunks()
    tablet_ids = np.concatenate(
        [np.repeat(np.array(group.tablet_ids, np.int64), np.diff(group.offsets)) for group in gathered.groups]
    )
    timestamps = np.repeat(
        np.array(gathered.timestamps, np.int64), [group.batch.num_rows for group in gathered.groups]
    )
    # Tablets that the catalogue no longer has get ordinal -1.
    known = np.array(sorted(table.ordinal_of), np.int64)
    ordinals_of = np.array([table.ordinal_of[number] for number in known.tolist()], np.int64)
    at = np.minimum(np.searchsorted(known, tablet_ids), len(known) - 1)
    keep = known[at] == tablet_ids if len(known) else np.zeros(len(tablet_ids), np.bool_)
    ordinals = np.where(keep, ordinals_of[at], -1) if len(known) else np.full(len(tablet_ids), -1)
    adds = kind in ("insert", "tombstone")
    auto = table.schema.auto_increment
    if adds and auto is not None:
        given = _whole(batch.column(str(auto.id))).to_numpy()
        for ordinal in np.unique(ordinals[keep]).tolist():
            table.tablets[ordinal].ids.note(int(given[keep & (ordinals == ordinal)].max()))
    if adds and len(table.tablets):
        durable = np.array([tablet.entry.inserts_durable for tablet in table.tablets], np.int64)
        keep &= timestamps > durable[np.maximum(ordinals, 0)]
    rows = np.flatnonzero(keep)
    if not len(rows):
        return
    columns = {int(name): _whole(batch.column(name)) for name in batch.schema.names}
    key_ids = [column.id for column in table.schema.key_columns]
    keys = table.codec.encode([columns[number] for number in key_ids])
    # Sort by tablet, key and time, as `resolve` does (S3).
    by_key = keys.sort_indices()
    order = by_key[np.argsort(ordinals[by_key], kind="stable")]
    order = order[keep[order]]
    keys, ordinals, timestamps = keys.take(order), ordinals[order], timestamps[order]
    if not adds:
        same_row = keys.equal_neighbours() & (ordinals[1:] == ordinals[:-1])
        again = np.flatnonzero(same_row & (timestamps[1:] == timestamps[:-1]))
        if len(again):  # W4
            place = gathered.places[gathered.timestamps.index(timestamps[again[0]])]
            raise _corruption(table, f"a key occurs twice in its rows to {kind}", place)
    count = len(order)
    identity = bool((order == np.arange(batch.num_rows)).all()) if count == batch.num_rows else False
    if not identity:
        pick = array_of_numbers(order)
        columns = {number: array.take(pick) for number, array in columns.items()}
    resolved = ResolvedBatch(table)
    if adds:
        # Inserted keys are not looked up, except for dead rows in the MemRowSet (ghosts).
        effect = Effect(
            kind,
            keys,
            ordinals,
            columns,
            np.full(count, ABSENT, np.int32),
            find_ghosts(table, keys, ordinals),
        )
    else:
        located = locate(table, keys, ordinals, newer_than=timestamps)
        resolved.rowsets = located.rowsets
        found = np.flatnonzero(located.codes != ABSENT)
        if not len(found):
            return
        if len(found) != count:
            pick = array_of_numbers(found)
            columns = {number: array.take(pick) for number, array in columns.items()}
            keys, ordinals, timestamps = keys.take(found), ordinals[found], timestamps[found]
        effect = Effect(kind, keys, ordinals, columns, located.codes[found], located.rowids[found])
    for addition in plan_apply(resolved, effect):
        addition.apply(timestamps)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
