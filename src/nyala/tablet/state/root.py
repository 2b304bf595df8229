"""The database's state as one immutable value.

    Root ── tables ── TableState ── tablets ── TabletState ┬ memory    MemRowSet that takes inserts
                                                           ├ frozen    MemRowSets being flushed
                                                           ├ rowsets   DiskRowSets
                                                           └ tree      the DiskRowSets by key

A scan keeps the root with which it began. A flush, an alteration or a compaction creates a new root
and installs it under the commit lock (`Store.install`). Only MemRowSets and DeltaMemStores change
in place: they take records with timestamps after every snapshot in use, so readers see no
difference.

Invariants
    T1  At any timestamp, a key is live in at most one rowset of its tablet.
    T2  Tablets are in the order in which `router` numbers the partitions. Tablets of dropped range
        partitions are in `dropped`. They are not written, and are read only at moments at which
        they existed (`as_of`).
    T3  A root never changes after it is installed.
    T4  A root can be read at `floor` or later; other reads raise an error. Before `floor`, rows
        that were purged or rewritten are missing.
    T5  Dropped tables are in `Root.dropped`, and all others in `Root.tables`. The memory of both is
        flushed and replayed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from nyala.catalog.model import TableEntry, TabletEntry
from nyala.delta.mem_store import DeltaMemStore
from nyala.errors import TableNotFoundError
from nyala.keys.codec import KeyCodec
from nyala.lazy_values import LazyValues, lazy_value, share_lazy_values
from nyala.mvcc.timestamp import to_datetime
from nyala.partition.model import Partition
from nyala.partition.router import Router
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.mem_rowset import MemRowSet
from nyala.rowset.rowset_tree import RowSetTree
from nyala.schema.alteration import stored_schema
from nyala.schema.conversion.row_errors import RowErrors
from nyala.schema.limits import DEFAULT_LIMITS, Limits
from nyala.schema.schema import Schema
from nyala.suggestion import nearest
from nyala.tablet.state.auto_ids import AutoIds

AnyRowSet = MemRowSet | DiskRowSet
# The number of schemas that a table keeps for log records, one for each set of columns that is written
# together.
_LOG_SCHEMAS_MAX = 64


@dataclass(frozen=True, eq=False)
class TabletState(LazyValues):
    """One partition of a table, with its rows in memory and on disk."""

    entry: TabletEntry
    memory: MemRowSet
    frozen: tuple[MemRowSet, ...] = ()  # oldest first
    rowsets: tuple[DiskRowSet, ...] = ()
    ids: AutoIds = field(default_factory=AutoIds)  # shared by all versions of the tablet

    @property
    def id(self) -> int:
        return self.entry.id

    @property
    def partition(self) -> Partition:
        return self.entry.partition

    @lazy_value
    def tree(self) -> RowSetTree:
        return RowSetTree(self.rowsets)

    @property
    def is_empty(self) -> bool:
        """Whether the tablet has no rows, live or dead."""
        return not self.rowsets and not any(memory.row_count for memory in (self.memory, *self.frozen))

    def all_rowsets(self) -> Iterator[AnyRowSet]:
        """Yield every rowset, memory first."""
        yield self.memory
        yield from self.frozen
        yield from self.rowsets

    def _memory_stores(self) -> Iterator[MemRowSet | DeltaMemStore]:
        """Yield the MemRowSets, and the DeltaMemStores of the DiskRowSets."""
        yield self.memory
        yield from self.frozen
        for rowset in self.rowsets:
            yield rowset.deltas
            yield from rowset.frozen

    def memory_bytes(self) -> int:
        """Return the size of the MemRowSets and DeltaMemStores."""
        return sum(store.nbytes for store in self._memory_stores())

    def memory_timestamp_min(self) -> int | None:
        """Return the oldest timestamp of the rows and changes that are not in a file yet.

        None: all rows and changes are in files.
        """
        return _least(store.timestamp_min for store in self._memory_stores())


def _least(timestamps: Iterable[int | None]) -> int | None:
    return min((timestamp for timestamp in timestamps if timestamp is not None), default=None)


@dataclass(frozen=True, eq=False)
class TableState(LazyValues):
    """A table at one schema version.

    tablets: in the order in which `router` numbers the partitions.
    dropped: the tablets of dropped range partitions, which only reads of earlier moments need.
    """

    entry: TableEntry
    tablets: tuple[TabletState, ...]
    limits: Limits = DEFAULT_LIMITS
    dropped: tuple[TabletState, ...] = ()

    @property
    def id(self) -> int:
        return self.entry.id

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def schema(self) -> Schema:
        return self.entry.schema

    def as_of(self, timestamp: int) -> TableState:
        """Return the table with the schema and the tablets of a moment, for reading."""
        table = self.with_tablets_of(timestamp)
        if table.entry.schema_since.get(table.schema.version, 0) <= timestamp:
            return table
        return table.with_schema(table.entry.schema_at(timestamp))

    def with_tablets_of(self, timestamp: int) -> TableState:
        """Return the table with the tablets that existed at a moment, for reading."""
        if not self._was_dropped_from:
            return self
        there = tuple(tablet for tablet in self.every_tablet if tablet.entry.existed_at(timestamp))
        if there == self.tablets:
            return self
        numbers = tuple(tablet.id for tablet in there)
        seen = self._seen_tablets.get(numbers)
        if seen is None:
            seen = dataclasses.replace(self, tablets=there, dropped=())
            share_lazy_values(self, seen, ("codec",))
            self._seen_tablets[numbers] = seen
        return seen

    @lazy_value
    def _was_dropped_from(self) -> bool:
        return any(tablet.entry.drops for tablet in self.every_tablet)

    @lazy_value
    def _seen_tablets(self) -> dict[tuple[int, ...], TableState]:
        return {}

    @property
    def every_tablet(self) -> tuple[TabletState, ...]:
        """All tablets. Tablets of dropped ranges come last."""
        return (*self.tablets, *self.dropped) if self.dropped else self.tablets

    def tablet(self, tablet_id: int) -> TabletState | None:
        """Return the tablet with this id, dropped or not; None if no tablet has it."""
        ordinal = self.whole.ordinal_of.get(tablet_id)
        return None if ordinal is None else self.whole.tablets[ordinal]

    @lazy_value
    def whole(self) -> TableState:
        """The table with its dropped tablets in `tablets` too, for the replay of the log.

        The ranges of dropped tablets may overlap the ranges of other tablets.
        """
        if not self.dropped:
            return self
        whole = dataclasses.replace(self, tablets=self.every_tablet, dropped=())
        share_lazy_values(self, whole, ("codec", "_stored_schema"))
        return whole

    def with_schema(self, schema: Schema) -> TableState:
        """Return the table with another version of its schema, for reading."""
        if schema is self.schema:
            return self
        seen = self._seen.get(schema.version)
        if seen is None:
            seen = dataclasses.replace(self, entry=dataclasses.replace(self.entry, schema=schema))
            # `router` is not shared, because it uses column names.
            share_lazy_values(self, seen, ("codec", "partitions", "ordinal_of"))
            self._seen[schema.version] = seen
        return seen

    @lazy_value
    def _seen(self) -> dict[int, TableState]:
        return {}

    def stored_schema(self, cut: int = 0) -> Schema:
        """Return the schema of new files: the current columns, and dropped columns still in use.

        cut: leave out columns that were dropped before this timestamp; 0: keep all dropped columns.
        """
        return (
            self._stored_schema if cut == 0 else stored_schema(self.schema, self.entry.earlier_schemas(cut))
        )

    @lazy_value
    def _stored_schema(self) -> Schema:
        return stored_schema(self.schema, self.entry.earlier_schemas())

    @lazy_value
    def codec(self) -> KeyCodec:
        return KeyCodec([column.type for column in self.schema.key_columns])

    @lazy_value
    def partitions(self) -> tuple[Partition, ...]:
        return tuple(tablet.partition for tablet in self.tablets)

    @lazy_value
    def router(self) -> Router:
        return Router(self.entry.partition_schema, self.partitions, self.schema)

    @lazy_value
    def is_remote(self) -> bool:
        """Whether the table's files are in a bucket, so that reading ahead saves time."""
        some = next((tablet.rowsets[0] for tablet in self.tablets if tablet.rowsets), None)
        return some is not None and some.reader.is_remote

    @lazy_value
    def ordinal_of(self) -> Mapping[int, int]:
        """Maps a tablet id to its index in `tablets`."""
        return {tablet.id: ordinal for ordinal, tablet in enumerate(self.tablets)}

    @lazy_value
    def no_errors(self) -> pa.Table:
        """An Arrow table of row errors with no rows, for the result of a write without errors."""
        keys = {column.name: pa.nulls(0, column.type.arrow) for column in self.schema.key_columns}
        return RowErrors().to_arrow("", keys)

    def log_schema(self, column_ids: tuple[int, ...]) -> tuple[pa.Schema, pa.Buffer]:
        """Return the Arrow schema of these columns in the log, and its IPC message."""
        known = self._log_schemas.get(column_ids)
        if known is None:
            if len(self._log_schemas) >= _LOG_SCHEMAS_MAX:
                self._log_schemas.clear()
            fields = [(str(number), self.schema.by_id(number).type.arrow) for number in column_ids]
            schema = pa.schema(fields)
            known = self._log_schemas[column_ids] = schema, schema.serialize()
        return known

    @lazy_value
    def _log_schemas(self) -> dict[tuple[int, ...], tuple[pa.Schema, pa.Buffer]]:
        return {}

    def with_tablets(self, changed: Mapping[int, TabletState]) -> TableState:
        """Return the table with the tablets in `changed` (by id) in place of the old ones."""
        fresh = dataclasses.replace(
            self,
            tablets=tuple(changed.get(tablet.id, tablet) for tablet in self.tablets),
            dropped=tuple(changed.get(tablet.id, tablet) for tablet in self.dropped),
        )
        kept = ("codec", "partitions", "router", "ordinal_of", "no_errors", "_log_schemas", "_stored_schema")
        share_lazy_values(self, fresh, kept)
        return fresh


@dataclass(frozen=True, eq=False)
class Root(LazyValues):
    """All tables at one version of the catalogue.

    version: the version of the catalogue. Several roots may have the same version, because freezing
             memory creates a root without a change of the catalogue.
    """

    version: int
    tables: Mapping[int, TableState]
    dropped: Mapping[int, TableState] = field(default_factory=dict)

    @lazy_value
    def floor(self) -> int:
        """The oldest moment that this root can read.

        0 means that it can read all moments of the tables' histories. Before the floor, some rows
        are missing: they were purged later, or a rewrite of their table, such as a repartition,
        discarded them. A read of a moment before the floor raises an error.
        """
        return max(
            (
                max(table.entry.rewritten_at, *(gone.dropped for gone in table.entry.purged), 0)
                for table in self.every_table()
                if table.entry.rewritten_at or table.entry.purged
            ),
            default=0,
        )

    @lazy_value
    def by_name(self) -> Mapping[str, TableState]:
        return {table.name: table for table in self.tables.values()}

    def table(self, name: str) -> TableState:
        """Return the table with this name. Raises: TableNotFoundError."""
        found = self.by_name.get(name)
        if found is None:
            dropped = self.dropped_as(name)
            if not dropped:
                raise TableNotFoundError(no_such_table(name, self.by_name))
            when = to_datetime(dropped[-1].entry.dropped).isoformat()
            raise TableNotFoundError(
                f"no table {name!r}: it was dropped at {when}. db.undrop_table({name!r}) brings it back, and "
                f"db.table({name!r}, at=…) reads it at an earlier moment"
            )
        return found

    def table_at(self, name: str, timestamp: int) -> TableState:
        """Return the table that had this name at `timestamp`, even if it was dropped later.

        If no such table existed, return the table that has the name now.
        Raises: TableNotFoundError.
        """
        found = self.by_name.get(name)
        if self.dropped and (found is None or not found.entry.existed_at(timestamp)):
            for table in reversed(self.dropped_as(name)):
                if table.entry.existed_at(timestamp):
                    return table
        return self.table(name) if found is None else found

    def dropped_as(self, name: str) -> list[TableState]:
        """Return the dropped tables with this name, in the order in which they were dropped."""
        found = [table for table in self.dropped.values() if table.name == name]
        return sorted(found, key=lambda table: table.entry.dropped)

    def every_table(self) -> Iterator[TableState]:
        """Yield all tables. Dropped tables come last."""
        yield from self.tables.values()
        yield from self.dropped.values()

    def any_table(self, table_id: int) -> TableState | None:
        """Return the table with this id, dropped or not; None if no table has it."""
        return self.tables.get(table_id) or self.dropped.get(table_id)

    def tablets(self) -> Iterator[tuple[TableState, TabletState]]:
        """Yield all tablets, also dropped ones, with their tables."""
        for table in self.every_table():
            for tablet in table.every_tablet:
                yield table, tablet

    def live_tablets(self) -> Iterator[tuple[TableState, TabletState]]:
        """Yield all tablets that are not dropped, of tables that are not dropped."""
        for table in self.tables.values():
            for tablet in table.tablets:
                yield table, tablet

    def at_version(self, version: int) -> Root:
        """Return a root with the same tables, for the catalogue version `version`."""
        return Root(version, self.tables, self.dropped)

    def with_table(self, table: TableState, version: int | None = None) -> Root:
        """Return a new root in which `table` replaces the table with the same id, if any.

        A dropped table is put into `dropped`, any other table into `tables`.

        version: the version of the catalogue; None: the same as in this root.
        """
        without = self.without_table(table.id, self.version if version is None else version)
        if table.entry.dropped:
            return dataclasses.replace(without, dropped={**without.dropped, table.id: table})
        # The table keeps its position in the order of tables.
        return dataclasses.replace(without, tables={**self.tables, table.id: table})

    def without_table(self, table_id: int, version: int) -> Root:
        return Root(version, *(
            {key: value for key, value in tables.items() if key != table_id} if table_id in tables else tables
            for tables in (self.tables, self.dropped)
        ))  # fmt: skip

    def with_tablets(self, changed: Mapping[int, TabletState], version: int | None = None) -> Root:
        """Return a new root with the tablets in `changed` (by id) in place of the old ones.

        version: the version of the catalogue; None: the same as in this root.
        """
        by_table: dict[int, dict[int, TabletState]] = {}
        for tablet in changed.values():
            by_table.setdefault(tablet.entry.table_id, {})[tablet.id] = tablet
        tables, dropped = dict(self.tables), dict(self.dropped)
        for table_id, tablets in by_table.items():
            for group in (tables, dropped):
                if table_id in group:
                    group[table_id] = group[table_id].with_tablets(tablets)
        return Root(self.version if version is None else version, tables, dropped)

    def memory_bytes(self) -> int:
        return sum(tablet.memory_bytes() for _, tablet in self.tablets())

    def memory_timestamp_min(self) -> int | None:
        """Return the oldest timestamp with rows only in memory; None: all rows are in files.

        The log must be kept from this timestamp on.
        """
        return _least(tablet.memory_timestamp_min() for _, tablet in self.tablets())


def dropped_bytes(table: TableState) -> int:
    """Return the size in bytes of the files of a dropped table, or of a table's dropped ranges."""
    tablets = table.every_tablet if table.entry.dropped else table.dropped
    return sum(rowset.size_bytes for tablet in tablets for rowset in tablet.rowsets)


def no_such_table(name: str, known: Mapping[str, object]) -> str:
    """Return the message for a table that does not exist."""
    if not known:
        return f"no table {name!r}: the store has no tables yet; create one with create_table()"
    near = nearest(str(name), known)
    if near is not None:
        return f"no table {name!r} in this store; did you mean {near!r}?"
    names = ", ".join(sorted(known)[:10]) + (", …" if len(known) > 10 else "")
    return f"no table {name!r} in this store; its tables are: {names}"
