"""Alters a table: steps build a draft, and the draft becomes the table at one moment.

    draft      the result of the steps; each may raise, and then nothing has happened
    ── commit lock ───────────────────────────────────────────────────────────────────────────────
    again      apply the steps to the current table, which others may have altered
    timestamp  t: snapshots before t have the old schema, from t on the new one
    freeze     freeze each MemRowSet with rows, without a flush: later rows have other columns
    commit     sync the log, one catalogue change, one new root
    ── unlock ────────────────────────────────────────────────────────────────────────────────────

Stored data does not change: files and rows in memory name their columns by id, and are read through
the requested schema (`nyala.schema.adapter`; X4 of `RowSetVersion`). So an alteration takes
milliseconds for a table of any size.

Invariants
    L1  All steps happen, or none. A step raises before anything changes; a crash leaves all or
        none.
    L2  A batch that was prepared for the old table is prepared again under the lock (`write_path`).
    L3  The schema of every readable moment is kept in `TableEntry.schemas`. Dropped columns stay in
        files that are written later (`TableState.stored_schema`).
    L4  The rows of a dropped range are discarded with their history. A read of an earlier moment
        that needs them raises an error (`history.check_dropped`).

Source: docs/design/kudu.md, "Schema alteration"; docs/design/snapshots-and-history.md, "Altering a
table"; docs/design/rules.md, W2 and R7. Departure: Kudu flushes the MemRowSet.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from nyala.catalog.model import CatalogChange, DroppedRange, TableEntry, TabletEntry, dropping_tablets
from nyala.env.interrupts import Uninterrupted
from nyala.errors import TableExistsError, TableNotFoundError
from nyala.partition.alteration import added_partitions, find_range, ranges_of
from nyala.partition.model import Partition, PartitionSchema
from nyala.partition.ranges import RangeBound
from nyala.schema import alteration
from nyala.schema.limits import DEFAULT_LIMITS, Limits
from nyala.schema.schema import ColumnSpec, Schema, check_comment, check_table_name
from nyala.tablet.flush.lifecycle import Phase, freeze_memory, no_phase
from nyala.tablet.state.root import Root, TableState, TabletState

if TYPE_CHECKING:
    from nyala.tablet.store import Store

__all__ = [
    "Draft",
    "Step",
    "add_column",
    "add_range",
    "alter",
    "change_column",
    "drop_column",
    "drop_range",
    "rename_column",
    "rename_table",
    "set_comment",
    "set_history",
]

logger = logging.getLogger("nyala.store")


@dataclass(frozen=True)
class Draft:
    """A table during an alteration.

    kept:  the tablets that stay. added: partitions that get a new tablet each.
    taken: the names of all tables.
    """

    name: str
    comment: str
    history_us: int | None
    schema: Schema
    partition_schema: PartitionSchema
    kept: tuple[TabletEntry, ...]
    added: tuple[Partition, ...] = ()
    taken: frozenset[str] = frozenset()
    limits: Limits = DEFAULT_LIMITS

    @staticmethod
    def of(root: Root, table: TableState) -> Draft:
        entry = table.entry
        return Draft(
            entry.name,
            entry.comment,
            entry.history_us,
            entry.schema,
            entry.partition_schema,
            tuple(tablet.entry for tablet in table.tablets),
            (),
            frozenset(root.by_name),
            table.limits,
        )

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return (*(tablet.partition for tablet in self.kept), *self.added)


Step: TypeAlias = Callable[[Draft], Draft]
"""Returns the next draft; raises without changing its input."""


# ------------------------------------------------------------------------------------------------ steps


def add_column(name: str, spec: ColumnSpec) -> Step:
    """See `nyala.schema.alteration.add_column`."""
    return lambda draft: _with_schema(draft, alteration.add_column(draft.schema, name, spec, draft.limits))


def drop_column(name: str) -> Step:
    """See `nyala.schema.alteration.drop_column`."""
    return lambda draft: _with_schema(draft, alteration.drop_column(draft.schema, name))


def rename_column(old: str, new: str) -> Step:
    """See `nyala.schema.alteration.rename_column`."""
    return lambda draft: _with_schema(draft, alteration.rename_column(draft.schema, old, new, draft.limits))


def change_column(name: str, **changes: Any) -> Step:
    """See `nyala.schema.alteration.change_column`."""
    return lambda draft: _with_schema(
        draft, alteration.change_column(draft.schema, name, **changes, limits=draft.limits)
    )


def _with_schema(draft: Draft, schema: Schema) -> Draft:
    return dataclasses.replace(draft, schema=schema)


def rename_table(name: str) -> Step:
    """Return a step that renames the table. Raises: TableExistsError; InvalidArgumentError for an invalid name."""

    def step(draft: Draft) -> Draft:
        check_table_name(name, draft.limits)
        if name in draft.taken:
            raise TableExistsError(
                f"cannot rename {draft.name!r} to {name!r}: a table with this name already exists"
            )
        return dataclasses.replace(draft, name=name, taken=draft.taken - {draft.name} | {name})

    return step


def set_comment(comment: str) -> Step:
    """Return a step that sets the table's comment. Raises: SchemaError for an invalid comment."""

    def step(draft: Draft) -> Draft:
        check_comment(comment, f"table {draft.name!r}: ", draft.limits)
        return dataclasses.replace(draft, comment=comment)

    return step


def set_history(history_us: int | None) -> Step:
    """Set how long history is kept, in microseconds; None: forever."""
    return lambda draft: dataclasses.replace(draft, history_us=history_us)


def add_range(bound: RangeBound) -> Step:
    """See `nyala.partition.alteration.added_partitions`."""

    def step(draft: Draft) -> Draft:
        added = added_partitions(bound, draft.partition_schema, draft.partitions, draft.schema, draft.limits)
        return dataclasses.replace(draft, added=(*draft.added, *added))

    return step


def drop_range(bound: RangeBound) -> Step:
    """See `nyala.partition.alteration.find_range`. Also drops ranges added by an earlier step."""

    def step(draft: Draft) -> Draft:
        found = find_range(bound, draft.partition_schema, draft.partitions, draft.schema)
        return dataclasses.replace(
            draft,
            kept=tuple(tablet for tablet in draft.kept if _range_of(tablet.partition) != found),
            added=tuple(partition for partition in draft.added if _range_of(partition) != found),
        )

    return step


def _range_of(partition: Partition) -> tuple[bytes | None, bytes | None]:
    return partition.range_lower, partition.range_upper


# ------------------------------------------------------------------------------------------------ alter


def alter(store: Store, table_id: int, steps: Sequence[Step], *, phase: Phase = no_phase) -> TableEntry:
    """Apply the steps as one alteration; returns the table's entry, the same if nothing changed.

    phase:  for tests: called as "begun" without a lock, and as "frozen" and "committed" under the
            commit lock.
    Raises: errors of the steps; TableNotFoundError if the table is gone; StorageError. Nothing
        changes then (L1).
    """
    store.check_writable()
    phase("begun")
    with Uninterrupted(), store.commit_lock:
        store.check_writable()
        root = store.root
        table = root.tables.get(table_id)
        if table is None:
            raise TableNotFoundError("the table was dropped before it could be altered")
        before = Draft.of(root, table)
        draft = before
        for step in steps:
            draft = step(draft)
        if draft == before:
            return table.entry
        drops = any(tablet.entry not in draft.kept for tablet in table.tablets)

        def commit() -> TableEntry:
            return _commit(store, store.root.tables[table_id], draft, phase)

        entry = store.reserve.use(commit) if drops else commit()
        phase("committed")
    logger.info("table %r is at version %d of its schema", entry.name, entry.schema.version)
    return entry


def _commit(store: Store, table: TableState, draft: Draft, phase: Phase) -> TableEntry:
    timestamp = store.stamp()
    schema = table.schema
    if draft.schema != schema:
        schema = alteration.next_version(schema, draft.schema)
        if any(tablet.memory.row_count for tablet in table.tablets):
            table = freeze_memory(store, table)
    phase("frozen")
    gone = {tablet.id for tablet in table.tablets} - {tablet.id for tablet in draft.kept}
    dropped = [tablet for tablet in table.tablets if tablet.id in gone]
    entry = dataclasses.replace(
        table.entry,
        name=draft.name,
        comment=draft.comment,
        history_us=draft.history_us,
        schema=schema,
        schemas={**table.entry.schemas, schema.version: schema},
        schema_since={**table.entry.schema_since, schema.version: timestamp}
        if schema is not table.schema
        else table.entry.schema_since,
        dropped=(*table.entry.dropped, *_dropped_ranges(table, dropped, timestamp)),
    )
    entry = _without_past(store, entry)
    added = [
        TabletEntry(store.allocate("tablet"), table.id, partition, 0, timestamp) for partition in draft.added
    ]
    change = CatalogChange(timestamp=timestamp, put_tables=[entry], put_tablets=added)
    dropping_tablets(store.state, gone, change)
    bare = TableState(entry, (), table.limits)
    kept = [tablet for tablet in table.tablets if tablet.id not in gone]
    if schema is not table.schema:
        kept = [dataclasses.replace(tablet, memory=store.new_memory(bare)) for tablet in kept]
    fresh = [TabletState(tablet, store.new_memory(bare)) for tablet in added]
    altered = dataclasses.replace(bare, tablets=(*kept, *fresh))
    root = store.root
    store.transact(change, lambda version: root.with_table(altered, version), forget_log=bool(gone))
    return entry


def _dropped_ranges(table: TableState, tablets: Sequence[TabletState], timestamp: int) -> list[DroppedRange]:
    """The ranges of these tablets that had rows; dropping an empty range loses nothing."""
    held = [tablet for tablet in tablets if any(rowset.row_count for rowset in tablet.all_rowsets())]
    return [
        DroppedRange(
            lower,
            upper,
            min(tablet.entry.created for tablet in held if _range_of(tablet.partition) == (lower, upper)),
            timestamp,
        )
        for lower, upper in ranges_of(tablet.partition for tablet in held)
    ]


def _without_past(store: Store, entry: TableEntry) -> TableEntry:
    """The entry without parts that only unreadable moments need; those moments stay unreadable."""
    cut = store.history_cut(entry)
    shorter = entry.without_past(cut)
    return (
        entry
        if shorter is entry
        else dataclasses.replace(shorter, history_start=max(cut, entry.history_start))
    )
