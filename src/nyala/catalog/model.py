"""The catalogue as an immutable value, and a change of it as another value.

    CatalogState, version 17                    CatalogChange
      tables    1 orders                          put_rowsets   9
      tablets   1, 2 of table 1                   put_tablets   2 (its inserts up to a later moment are in files)
      rowsets   7, 8 of tablet 2                  drop_deltas   4
      parts     5 of rowset 7                     garbage       data/2/4.redo
      deltas    4 of rowset 7
      garbage   data/1/3.base since version 12

`apply(state, change)` returns version 18 and leaves version 17 unchanged. Garbage is a file that no
entry names and that still exists.

Invariants
    M1  The table of every tablet, the tablet of every rowset, and the rowset of every part and
        delta exist.
    M2  An id is never reused: the `next_…` ids are greater than all ids ever used.
    M3  Tables that are not dropped have different names. A table's current schema is among its
        schemas.
    M4  Paths are relative to the store's folder and stay inside it. Two entries may name one file
        only if they are of different tables (a table and its clone), and give the file the same id.
        `shared` contains all such paths. No file in use is garbage.
    M5  Each schema version of a table has a start timestamp. The timestamps ascend with the
        version, and the highest version is current.
    M6  The tablets of a table are its partitions. Those that are not dropped are valid partitions:
        they do not overlap, for example (see the invariants of `partition.model`).
    M7  A delta file is UNDO or REDO, and names its columns by id.
    M8  A rowset's key_min is not greater than its key_max.
    M9  Version, ids and timestamps are far below 2^63.
    M10 A rowset has at most 2^20 rows per byte of its file, because a block has at most 2^20 rows
        and at least one byte.
    M11 Every file has an id of 32 hexadecimal digits, which its head and footers repeat.
    M12 The moments at which a table or tablet was dropped and undropped ascend, and none is before
        its creation.
    M13 Each moment in a table's `tagged` is the moment of a tag.
    T1  The field `timestamp_max` of the state never becomes smaller from one version to the next.

Staged files of running jobs are not in the catalogue.
Source: docs/design/log-and-recovery.md, "The catalogue"; docs/design/rules.md, rules R2, P2 and T1.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol, TypeVar, cast

from nyala.cfile.column import ColumnPlace
from nyala.cfile.format import ROWS_PER_BLOCK_LOG2_MAX
from nyala.errors import InvalidArgumentError
from nyala.partition.model import Partition, PartitionSchema, find_problem
from nyala.rowset.meta import RowSetMeta
from nyala.schema.schema import Schema

# The numbers between this limit and 2^63 are more than a store can use (M9).
_NUMBER_MAX: Final = (1 << 63) - (1 << 40)
_FILE_ID: Final = re.compile("[0-9a-f]{32}")


def existed_at(created: int, drops: Sequence[int], timestamp: int) -> bool:
    """Return whether a table or tablet existed at a moment.

    created: the timestamp of its creation.
    drops: the timestamps at which it was dropped, undropped, dropped again and so on, alternating.
    """
    return created <= timestamp and bisect.bisect_right(drops, timestamp) % 2 == 0


@dataclass(frozen=True)
class PurgedRange:
    """A dropped range partition whose rows were removed.

    It had the range keys from `lower` to below `upper` (None: no bound). A read of these keys, at a
    moment when the partition existed, raises an error.
    """

    lower: bytes | None
    upper: bytes | None
    created: int
    drops: tuple[int, ...]

    @property
    def dropped(self) -> int:
        """The timestamp at which the partition was dropped for the last time."""
        return self.drops[-1]

    def missing_at(self, timestamp: int) -> bool:
        """Return whether the partition existed at that moment, so a read would miss its rows."""
        return existed_at(self.created, self.drops, timestamp)


@dataclass(frozen=True)
class TableEntry:
    """A table, with its current schema and the earlier schemas that snapshots may need.

    history_us: how long history is kept, in microseconds; None: forever.
    history_start: moments before this timestamp cannot be read, because history was discarded.
    created: the timestamp of the table's creation.
    schema_since: for each schema version, the timestamp from which it is used. A version without an
        entry is used from the beginning.
    purged: dropped range partitions whose rows were removed, oldest first. They are listed as long
        as a snapshot could still read them.
    rewritten_at: the timestamp of the last repartition, copy or clone, which rewrote all rows without
        history; 0: never.
    drops: the timestamps at which the table was dropped, undropped, dropped again and so on,
        alternating.
    tagged: the moments of tags at which the table existed, ascending.
    purged_keys: the timestamp of the last purge of rows by key. The history before it lacks these
        rows, so it cannot show all changes. 0: no row was purged by key.
    """

    id: int
    name: str
    comment: str
    history_us: int | None
    schema: Schema
    schemas: Mapping[int, Schema]
    partition_schema: PartitionSchema
    history_start: int = 0
    created: int = 0
    schema_since: Mapping[int, int] = field(default_factory=dict)
    purged: tuple[PurgedRange, ...] = ()
    rewritten_at: int = 0
    drops: tuple[int, ...] = ()
    tagged: tuple[int, ...] = ()
    purged_keys: int = 0

    @property
    def dropped(self) -> int:
        """The timestamp at which the table was dropped; 0: it is not dropped."""
        return self.drops[-1] if len(self.drops) % 2 else 0

    def existed_at(self, timestamp: int) -> bool:
        """Return whether the table existed at that moment."""
        return existed_at(self.created, self.drops, timestamp)

    def schema_at(self, timestamp: int) -> Schema:
        """Return the schema at a moment. Before the table's creation it is the first schema."""
        found = min(self.schemas)
        for version in self.schemas:
            if version > found and self.schema_since.get(version, 0) <= timestamp:
                found = version
        return self.schemas[found]

    def earlier_schemas(self, cut: int = 0) -> list[Schema]:
        """Return the former schemas of the table, oldest first.

        cut: leave out the schemas that were replaced at this timestamp or before.
        """
        versions = sorted(self.schemas)
        return [
            self.schemas[version]
            for version, next_version in itertools.pairwise(versions)
            if self.schema_since.get(next_version, 0) > cut
        ]

    def without_past(self, cut: int) -> TableEntry:
        """Return the entry without schemas and purged ranges that no moment from `cut` on needs."""
        kept = {schema.version: schema for schema in (*self.earlier_schemas(cut), self.schema)}
        purged = tuple(gone for gone in self.purged if gone.dropped > cut)
        if len(kept) == len(self.schemas) and len(purged) == len(self.purged):
            return self
        since = {version: self.schema_since.get(version, 0) for version in kept}
        return dataclasses.replace(self, schemas=kept, schema_since=since, purged=purged)


@dataclass(frozen=True)
class TabletEntry:
    """A tablet: one partition of a table.

    inserts_durable: inserts up to this timestamp are in files, so a replay of the log skips them.
    drops: the timestamps at which the range partition was dropped, undropped, dropped again and so
        on, alternating.
    auto_id: no row in the tablet's files has a greater value of its auto-incrementing key column;
        0: no value was given yet.
    """

    id: int
    table_id: int
    partition: Partition
    inserts_durable: int
    created: int = 0
    drops: tuple[int, ...] = ()
    auto_id: int = 0

    @property
    def dropped(self) -> int:
        """The timestamp at which the range partition was dropped; 0: it is not dropped."""
        return self.drops[-1] if len(self.drops) % 2 else 0

    def existed_at(self, timestamp: int) -> bool:
        """Return whether the tablet existed at that moment."""
        return existed_at(self.created, self.drops, timestamp)


@dataclass(frozen=True)
class RowSetEntry:
    """A DiskRowSet and its base file.

    deltas_durable: changes up to this timestamp are in files, so a replay of the log skips them.
    file_id: the id in the file's head and footers.
    places: the location of each column's footer in the file.
    schema_version: the version of the table's schema when the file was written.
    """

    id: int
    tablet_id: int
    row_count: int
    key_min: bytes
    key_max: bytes  # inclusive, like `key_min`
    deltas_durable: int
    path: str
    file_id: str
    size_bytes: int
    places: tuple[ColumnPlace, ...]
    schema_version: int = 0

    @staticmethod
    def from_meta(meta: RowSetMeta) -> RowSetEntry:
        return RowSetEntry(
            meta.id, meta.tablet_id, meta.row_count, meta.key_min, meta.key_max, meta.deltas_durable,
            meta.path, meta.file_id, meta.size_bytes, tuple(meta.columns), meta.schema_version,
        )  # fmt: skip

    def meta(self) -> RowSetMeta:
        return RowSetMeta(
            id=self.id, tablet_id=self.tablet_id, row_count=self.row_count, key_min=self.key_min,
            key_max=self.key_max, deltas_durable=self.deltas_durable, path=self.path, file_id=self.file_id,
            columns=self.places, size_bytes=self.size_bytes, schema_version=self.schema_version,
        )  # fmt: skip


@dataclass(frozen=True)
class PartEntry:
    """A file with rewritten base columns of a rowset.

    A read takes a column from the newest part that has it, and otherwise from the base file. A part
    and a delta file never have the same id.
    """

    id: int
    rowset_id: int
    path: str
    file_id: str
    size_bytes: int
    places: tuple[ColumnPlace, ...]


@dataclass(frozen=True)
class DeltaEntry:
    """A delta file of a rowset, with the least and the greatest timestamp of its records."""

    id: int
    rowset_id: int
    kind: Literal["undo", "redo"]
    path: str
    file_id: str
    size_bytes: int
    timestamp_min: int
    timestamp_max: int
    record_count: int
    column_ids: tuple[int, ...]
    places: tuple[ColumnPlace, ...]


@dataclass(frozen=True)
class CommittedKey:
    """A used idempotency key, and the result of its batch as JSON text.

    version: the version of the catalogue in which the key was committed. `apply` sets it.
    """

    key: str
    timestamp: int
    result: str = "{}"
    version: int = 0


@dataclass(frozen=True)
class CommitMessage:
    """The message that a caller gave the commit with this timestamp."""

    timestamp: int
    message: str

    @property
    def id(self) -> int:
        """The id of the entry: its timestamp, because a commit has at most one message."""
        return self.timestamp


@dataclass(frozen=True)
class TagEntry:
    """A name for a moment. The history of tables at this moment is kept."""

    name: str
    timestamp: int


@dataclass(frozen=True)
class CatalogState:
    """The whole catalogue at one version. Immutable, so any thread may read it.

    timestamp_max: the greatest timestamp that the store has used so far.
    wal_start: the number of the first log segment that is still needed.
    next_…: the id that the next new entry of this kind gets.
    garbage: for each path, the version in which the file became garbage.
    """

    version: int
    store_id: str
    created_us: int
    timestamp_max: int
    wal_start: int
    next_table_id: int
    next_tablet_id: int
    next_rowset_id: int
    next_delta_id: int
    tables: Mapping[int, TableEntry]
    tablets: Mapping[int, TabletEntry]
    rowsets: Mapping[int, RowSetEntry]
    parts: Mapping[int, PartEntry]
    deltas: Mapping[int, DeltaEntry]
    garbage: Mapping[str, int]
    committed_keys: Mapping[str, CommittedKey]
    messages: Mapping[int, CommitMessage]
    tags: Mapping[str, TagEntry]
    # All paths that several entries name, and perhaps others. Not stored, because `named_twice` finds them.
    shared: frozenset[str] = frozenset()

    @staticmethod
    def empty(store_id: str, created_us: int) -> CatalogState:
        """Return the first version of a new store's catalogue. Ids begin at 1."""
        nothing: Mapping[Any, Any] = MappingProxyType({})
        return CatalogState(
            1,
            store_id,
            created_us,
            0,
            1,
            1,
            1,
            1,
            1,
            nothing,
            nothing,
            nothing,
            nothing,
            nothing,
            nothing,
            nothing,
            nothing,
            nothing,
        )

    def tablets_by_table(self) -> dict[int, list[TabletEntry]]:
        """Return the tablets of each table, by table id. Each list is in the order of tablet ids.

        Cost: visits every tablet.
        """
        return _grouped(self.tablets.values(), "table_id")

    def rowsets_by_tablet(self) -> dict[int, list[RowSetEntry]]:
        """Return the rowsets of each tablet, by tablet id. Each list is in the order of rowset ids.

        Cost: visits every rowset.
        """
        return _grouped(self.rowsets.values(), "tablet_id")

    def parts_by_rowset(self) -> dict[int, list[PartEntry]]:
        """Return the parts of each rowset, oldest first. Visits every part of the store."""
        return _grouped(self.parts.values(), "rowset_id")

    def deltas_by_rowset(self) -> dict[int, list[DeltaEntry]]:
        """Return the delta files of each rowset, oldest first. Visits every delta file."""
        groups: dict[int, list[DeltaEntry]] = _grouped(self.deltas.values(), "rowset_id")
        for group in groups.values():
            group.sort(key=lambda delta: (delta.timestamp_min, delta.id))
        return groups

    def files(self) -> Iterator[str]:
        """Yield the path of each file in use, once for each entry that names the file."""
        for rowset in self.rowsets.values():
            yield rowset.path
        for part in self.parts.values():
            yield part.path
        for delta in self.deltas.values():
            yield delta.path

    def named_twice(self) -> frozenset[str]:
        """Return the paths that two or more entries name. Cost: visits every entry."""
        counts = Counter(self.files())
        return frozenset([path for path, count in counts.items() if count > 1])

    def _table_of(self, file: RowSetEntry | PartEntry | DeltaEntry) -> int | None:
        """Return the id of the file's table; None if the file's rowset or tablet does not exist."""
        rowset = file if isinstance(file, RowSetEntry) else self.rowsets.get(file.rowset_id)
        tablet = None if rowset is None else self.tablets.get(rowset.tablet_id)
        return None if tablet is None else tablet.table_id

    def problems(self) -> Iterator[str]:
        """Yield a sentence for every broken invariant. Cost: visits every entry."""
        for tablet in self.tablets.values():
            if tablet.table_id not in self.tables:
                yield f"M1: tablet {tablet.id} belongs to table {tablet.table_id}, which does not exist"
        for rowset in self.rowsets.values():
            if rowset.tablet_id not in self.tablets:
                yield f"M1: rowset {rowset.id} belongs to tablet {rowset.tablet_id}, which does not exist"
            if rowset.key_min > rowset.key_max:
                yield f"M8: rowset {rowset.id} has a key_min greater than its key_max"
            if rowset.row_count > rowset.size_bytes << ROWS_PER_BLOCK_LOG2_MAX:
                yield f"M10: rowset {rowset.id} has {rowset.row_count} rows in {rowset.size_bytes} bytes"
        for part in self.parts.values():
            if part.rowset_id not in self.rowsets:
                yield f"M1: part {part.id} belongs to rowset {part.rowset_id}, which does not exist"
        for delta in self.deltas.values():
            if delta.rowset_id not in self.rowsets:
                yield f"M1: delta file {delta.id} belongs to rowset {delta.rowset_id}, which does not exist"
        for what, entries, next_id in (
            ("table", self.tables, self.next_table_id),
            ("tablet", self.tablets, self.next_tablet_id),
            ("rowset", self.rowsets, self.next_rowset_id),
            ("delta", self.deltas, self.next_delta_id),
            ("delta", self.parts, self.next_delta_id),
        ):
            if max(cast("Mapping[int, object]", entries), default=0) >= next_id:
                yield f"M2: the next {what} id is {next_id}, but {max(entries)} is already used"
        names: set[str] = set()
        moments_of_tags = {tag.timestamp for tag in self.tags.values()}
        by_table = self.tablets_by_table()
        for table in self.tables.values():
            if not table.dropped and table.name in names:
                yield f"M3: two tables have the name {table.name!r}"
            if not table.dropped:
                names.add(table.name)
            if table.schemas.get(table.schema.version) != table.schema:
                yield f"M3: the current schema of table {table.id} is not among its schemas"
            tablets = by_table.get(table.id, ())
            partitions = [tablet.partition for tablet in tablets if not tablet.dropped]
            problem = find_problem(table.partition_schema, partitions, table.schema)
            for tablet in tablets:  # each alone, because a dropped tablet may overlap others
                problem = problem or find_problem(table.partition_schema, [tablet.partition], table.schema)
            if problem is not None:
                yield f"M6: partitions of table {table.id}: {problem}"
            moments = [table.schema_since.get(version, 0) for version in sorted(table.schemas)]
            if moments != sorted(moments) or table.schema.version != max(table.schemas, default=-1):
                yield f"M5: the schema versions of table {table.id} are not in order of time"
            for created, drops in ((each.created, each.drops) for each in (table, *tablets)):
                if list(drops) != sorted({*drops}) or (drops and drops[0] < created):
                    yield f"M12: table {table.id} or a tablet was created at {created} and dropped at {drops}"
            for gone in table.purged:
                if not len(gone.drops) % 2 or list(gone.drops) != sorted({*gone.drops}):
                    yield f"M12: a purged range of table {table.id} was dropped at {gone.drops}"
            if not set(table.tagged) <= moments_of_tags:
                yield f"M13: table {table.id} is kept for tags at {table.tagged}, which do not exist"
        for delta in self.deltas.values():
            if delta.kind not in ("undo", "redo") or any(
                type(number) is not int for number in delta.column_ids
            ):
                yield f"M7: delta file {delta.id} has {delta.kind!r} records of columns {delta.column_ids}"
        named: list[RowSetEntry | PartEntry | DeltaEntry]
        named = [*self.rowsets.values(), *self.parts.values(), *self.deltas.values()]
        paths = {file.path: file for file in named}
        for path in (*paths, *self.garbage):
            if not is_inside(path):
                yield f"M4: the path {path!r} does not stay inside the store's folder"
        for path in paths.keys() & self.garbage.keys():
            yield f"M4: the file {path!r} is in use and garbage"
        owners: dict[str, set[int | None]] = {}
        for file in named if len(paths) < len(named) else ():
            owner = self._table_of(file)
            if owner in owners.setdefault(file.path, set()) or file.file_id != paths[file.path].file_id:
                yield f"M4: the file {file.path!r} is named twice in a table, or with two ids"
            owners[file.path].add(owner)
        for file in named:
            if _FILE_ID.fullmatch(file.file_id) is None:
                yield f"M11: the file {file.path!r} has the id {file.file_id!r}, expected 32 hexadecimal digits"
        for tablet in self.tablets.values():
            if not 0 <= tablet.auto_id < 1 << 63:
                yield f"M9: tablet {tablet.id} has given the key value {tablet.auto_id}"
        reached = max(
            self.version, self.timestamp_max, self.next_table_id, self.next_tablet_id, self.next_rowset_id,
            self.next_delta_id,
        )  # fmt: skip
        if reached > _NUMBER_MAX:
            yield f"M9: a version, an id or a moment is {reached}, too close to the limit"
        newest = _newest(
            self.tables.values(), self.tablets.values(), self.rowsets.values(), self.deltas.values(),
            [*self.committed_keys.values(), *self.messages.values(), *self.tags.values()],
        )  # fmt: skip
        if newest > self.timestamp_max:
            yield f"T1: timestamp_max is {self.timestamp_max}, but an entry names {newest}"


@dataclass
class CatalogChange:
    """A change of the catalogue. One thread fills it and passes it to `Store.transact`.

    timestamp: the greatest timestamp that the store has used so far.
    put_…: entries to add, or to replace the entry with the same id. If two of them have the same
        id, the later one counts. Ids of new entries start at the `next_…` id of the state.
    drop_…: ids of entries to remove.
    garbage: paths of the files that removed entries used. `apply` ignores the path of a file that
        another table (a clone) still uses.
    shared: paths of the files of new entries that another table (a clone) uses, too.
    collected: paths to remove from the garbage; their files will be deleted.
    wal_start: the number of the first log segment that is still needed; None: unchanged.
    """

    timestamp: int = 0
    put_tables: list[TableEntry] = field(default_factory=list)
    drop_tables: list[int] = field(default_factory=list)
    put_tablets: list[TabletEntry] = field(default_factory=list)
    drop_tablets: list[int] = field(default_factory=list)
    put_rowsets: list[RowSetEntry] = field(default_factory=list)
    drop_rowsets: list[int] = field(default_factory=list)
    put_parts: list[PartEntry] = field(default_factory=list)
    drop_parts: list[int] = field(default_factory=list)
    put_deltas: list[DeltaEntry] = field(default_factory=list)
    drop_deltas: list[int] = field(default_factory=list)
    garbage: list[str] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)
    collected: list[str] = field(default_factory=list)
    wal_start: int | None = None
    committed_keys: list[CommittedKey] = field(default_factory=list)
    drop_committed_keys: list[str] = field(default_factory=list)
    put_messages: list[CommitMessage] = field(default_factory=list)
    drop_messages: list[int] = field(default_factory=list)
    put_tags: list[TagEntry] = field(default_factory=list)
    drop_tags: list[str] = field(default_factory=list)


def apply(state: CatalogState, change: CatalogChange) -> CatalogState:
    """Return the next version of the catalogue; `state` stays unchanged.

    Raises: InvalidArgumentError if an idempotency key was already used; AssertionError if the change
        breaks an invariant, which is a fault of this library.
    Cost: the change, and a shallow copy of each mapping that it touches (10,000 rowsets: 0.1 ms).
    """
    version = state.version + 1
    for key in change.committed_keys:
        if key.key in state.committed_keys:
            raise InvalidArgumentError(
                f"the idempotency key {key.key!r} was already used by the batch with timestamp "
                f"{state.committed_keys[key.key].timestamp}: use a new key for a new batch"
            )
    keys = [dataclasses.replace(key, version=version) for key in change.committed_keys]
    newest = _newest(
        change.put_tables, change.put_tablets, change.put_rowsets, change.put_deltas,
        [*keys, *change.put_messages, *change.put_tags],
    )  # fmt: skip
    new = CatalogState(
        version=version,
        store_id=state.store_id,
        created_us=state.created_us,
        timestamp_max=max(state.timestamp_max, change.timestamp, newest),
        wal_start=state.wal_start if change.wal_start is None else change.wal_start,
        next_table_id=_next_id(state.next_table_id, change.put_tables),
        next_tablet_id=_next_id(state.next_tablet_id, change.put_tablets),
        next_rowset_id=_next_id(state.next_rowset_id, change.put_rowsets),
        next_delta_id=_next_id(_next_id(state.next_delta_id, change.put_deltas), change.put_parts),
        tables=_changed(state.tables, _by_id(change.put_tables), change.drop_tables),
        tablets=_changed(state.tablets, _by_id(change.put_tablets), change.drop_tablets),
        rowsets=_changed(state.rowsets, _by_id(change.put_rowsets), change.drop_rowsets),
        parts=_changed(state.parts, _by_id(change.put_parts), change.drop_parts),
        deltas=_changed(state.deltas, _by_id(change.put_deltas), change.drop_deltas),
        garbage=state.garbage,
        committed_keys=_changed(
            state.committed_keys, {key.key: key for key in keys}, change.drop_committed_keys
        ),
        messages=_changed(state.messages, _by_id(change.put_messages), change.drop_messages),
        tags=_changed(state.tags, {tag.name: tag for tag in change.put_tags}, change.drop_tags),
    )
    new = _with_garbage(new, state.shared | {*change.shared}, change)
    _assert_applied(new, change)
    return new


def _with_garbage(new: CatalogState, shared: frozenset[str], change: CatalogChange) -> CatalogState:
    """Add the change's garbage to the state, except paths that an entry still names.

    shared: the paths that two or more entries may name.
    """
    garbage = change.garbage
    if not shared.isdisjoint(garbage):
        still = Counter(new.files())
        garbage = [path for path in garbage if path not in still]
        shared = frozenset([path for path in shared if still[path] > 1])
    if garbage or change.collected:
        assert all(is_inside(path) for path in garbage), f"M4: {garbage}"
        listed = _changed(new.garbage, dict.fromkeys(garbage, new.version), change.collected)
        new = dataclasses.replace(new, garbage=listed)
    return new if shared == new.shared else dataclasses.replace(new, shared=shared)


def _newest(
    tables: Iterable[TableEntry],
    tablets: Iterable[TabletEntry],
    rowsets: Iterable[RowSetEntry],
    deltas: Iterable[DeltaEntry],
    moments: Iterable[CommittedKey | CommitMessage | TagEntry],
) -> int:
    """Return the greatest timestamp in these entries; 0 without entries."""
    return max(
        (
            0,
            *map(_newest_of, tables),
            *(max(tablet.inserts_durable, tablet.created, *tablet.drops) for tablet in tablets),
            *(rowset.deltas_durable for rowset in rowsets),
            *(delta.timestamp_max for delta in deltas),
            *(moment.timestamp for moment in moments),
        )
    )


def _newest_of(table: TableEntry) -> int:
    return max(
        table.history_start,
        table.created,
        table.rewritten_at,
        table.purged_keys,
        *(since for since in table.schema_since.values()),
        *(gone.dropped for gone in table.purged),
        *table.drops,
    )


def _assert_applied(new: CatalogState, change: CatalogChange) -> None:
    """Check the invariants of `CatalogState.problems` that this change can break."""
    assert new.wal_start >= 1, "segments are numbered from 1"
    assert all(tablet.table_id in new.tables for tablet in change.put_tablets), "M1: tablet without table"
    assert all(rowset.tablet_id in new.tablets for rowset in change.put_rowsets), "M1: rowset without tablet"
    assert all(part.rowset_id in new.rowsets for part in change.put_parts), "M1: part without rowset"
    assert all(delta.rowset_id in new.rowsets for delta in change.put_deltas), "M1: delta without rowset"
    if change.drop_tables:
        assert all(t.table_id in new.tables for t in new.tablets.values()), "M1: a dropped table has tablets"
    if change.drop_tablets:
        assert all(r.tablet_id in new.tablets for r in new.rowsets.values()), (
            "M1: a dropped tablet has rowsets"
        )
    if change.drop_rowsets:
        assert all(p.rowset_id in new.rowsets for p in new.parts.values()), "M1: a dropped rowset has parts"
        assert all(d.rowset_id in new.rowsets for d in new.deltas.values()), "M1: a dropped rowset has deltas"
    if change.put_tables:
        names = [table.name for table in new.tables.values() if not table.dropped]
        assert len({*names}) == len(names), "M3: one name twice"
        for table in change.put_tables:
            assert table.schemas.get(table.schema.version) == table.schema, "M3: current schema missing"
    put: list[_WithPath] = [*change.put_rowsets, *change.put_parts, *change.put_deltas]
    for path in _paths(put):
        assert is_inside(path), f"M4: {path!r} does not stay inside the store's folder"
        assert path not in new.garbage, f"M4: {path!r} is in use and garbage"


def purging_tablets(state: CatalogState, tablet_ids: Collection[int], change: CatalogChange) -> None:
    """Add to `change` that these tablets are removed with their data. Their files become garbage."""
    within = set(tablet_ids)
    rowsets = [rowset for rowset in state.rowsets.values() if rowset.tablet_id in within]
    of_rowsets = {rowset.id for rowset in rowsets}
    parts = [part for part in state.parts.values() if part.rowset_id in of_rowsets]
    deltas = [delta for delta in state.deltas.values() if delta.rowset_id in of_rowsets]
    change.drop_tablets += sorted(within)
    change.drop_rowsets += [rowset.id for rowset in rowsets]
    change.drop_parts += [part.id for part in parts]
    change.drop_deltas += [delta.id for delta in deltas]
    change.garbage += _paths([*rowsets, *parts, *deltas])


def purging_tables(state: CatalogState, table_ids: Collection[int], timestamp: int) -> CatalogChange:
    """Return a change of the catalogue, not yet committed, that removes tables with their data.

    The files of the tables become garbage.

    timestamp: the timestamp of the commit that will make the change.
    """
    change = CatalogChange(timestamp=timestamp, drop_tables=list(table_ids))
    tablets = [tablet.id for tablet in state.tablets.values() if tablet.table_id in table_ids]
    purging_tablets(state, tablets, change)
    return change


class _WithPath(Protocol):
    @property
    def path(self) -> str: ...


def _paths(entries: Iterable[_WithPath]) -> list[str]:
    return [entry.path for entry in entries]


class _WithId(Protocol):
    @property
    def id(self) -> int: ...


_Key = TypeVar("_Key")
_Entry = TypeVar("_Entry")
_EntryWithId = TypeVar("_EntryWithId", bound=_WithId)


def _by_id(entries: Iterable[_EntryWithId]) -> dict[int, _EntryWithId]:
    return {entry.id: entry for entry in entries}


def _changed(
    entries: Mapping[_Key, _Entry], put: Mapping[_Key, _Entry], drop: Iterable[_Key]
) -> Mapping[_Key, _Entry]:
    drop = list(drop)
    if not put and not drop:
        return entries
    assert not any(key in put for key in drop), "one change puts and drops the same entry"
    # The operator | of a mapping proxy copies the dict in C, which `dict(proxy)` does not.
    fresh = cast("dict[_Key, _Entry]", cast("Any", entries) | put)
    for key in drop:
        assert key in fresh, f"there is no entry {key!r} to drop"
        del fresh[key]
    return MappingProxyType(fresh)


def _next_id(next_id: int, put: Sequence[_WithId]) -> int:
    return max((next_id, *(entry.id + 1 for entry in put)))


def _grouped(entries: Iterable[Any], attribute: str) -> dict[int, list[Any]]:
    groups: dict[int, list[Any]] = {}
    for entry in sorted(entries, key=lambda entry: entry.id):
        groups.setdefault(getattr(entry, attribute), []).append(entry)
    return groups


def is_inside(path: str) -> bool:
    """Return whether a relative path stays inside its folder."""
    return all(part not in ("", ".", "..") for part in path.split("/")) and "\0" not in path
