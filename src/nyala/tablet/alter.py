"""Alters a table: its columns, range partitions and options.

An alteration is a list of steps. Under the commit lock:

    draft      apply the steps to a description of the present table, the draft
    timestamp  take t: snapshots before t have the old schema, later ones the new schema
    freeze     freeze each MemRowSet that has rows, because later rows have other columns
    commit     sync the log, commit one catalogue change, install a new root

Stored data does not change. Files and rows in memory name their columns by id, and a scan adapts
them to its schema (`nyala.schema.adapter`). So an alteration takes milliseconds for a table of any
size.

Invariants
    L1  Either all steps are applied, or none, also after a crash. A step that fails raises its
        error before anything changes.
    L2  A batch that was prepared for the old table is prepared again under the lock (`write_path`).
    L3  The schema of every readable moment is kept in `TableEntry.schemas`. If the history needs a
        dropped column, files that are written later still contain it (`TableState.stored_schema`).
    L4  The tablets of a dropped range are kept until their history ends, but no write reaches them.
        A purged range is removed at once.

Source: docs/design/kudu.md, "Schema alteration"; docs/design/snapshots-and-history.md, "Altering a
table"; docs/design/rules.md, W2 and R7. Unlike Nyala, Kudu flushes the MemRowSet.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from nyala.catalog.model import CatalogChange, TableEntry, TabletEntry, purging_tablets
from nyala.delta.run import MAX_TIMESTAMP
from nyala.env.interrupts import Uninterrupted
from nyala.errors import TableExistsError, TableNotFoundError
from nyala.partition.alteration import added_partitions, check_free, find_range
from nyala.partition.model import Partition, PartitionSchema
from nyala.partition.ranges import RangeBound
from nyala.schema import alteration
from nyala.schema.limits import DEFAULT_LIMITS, Limits
from nyala.schema.schema import ColumnSpec, Schema, check_comment, check_table_name
from nyala.tablet.flush.lifecycle import Phase, freeze_memory, no_phase
from nyala.tablet.state.history import purged_ranges
from nyala.tablet.state.root import Root, TableState, TabletState

if TYPE_CHECKING:
    from nyala.tablet.store import Store

logger = logging.getLogger("nyala.store")


@dataclass(frozen=True)
class Draft:
    """A copy of a table's description. Each step of an alteration returns a changed copy.

    kept:      the present tablets that the table keeps
    dropped:   the tablets of dropped ranges
    purged:    the tablets to remove at once
    added:     the partitions that get new tablets
    taken:     the names of all tables of the store
    is_tagged: whether a tag keeps the table's history
    """

    name: str
    comment: str
    history_us: int | None
    schema: Schema
    partition_schema: PartitionSchema
    kept: tuple[TabletEntry, ...]
    dropped: tuple[TabletEntry, ...] = ()
    purged: tuple[TabletEntry, ...] = ()
    added: tuple[Partition, ...] = ()
    taken: frozenset[str] = frozenset()
    limits: Limits = DEFAULT_LIMITS
    is_tagged: bool = False

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
            tuple(tablet.entry for tablet in table.dropped),
            taken=frozenset(root.by_name),
            limits=table.limits,
            is_tagged=bool(entry.tagged),
        )

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return (*(tablet.partition for tablet in self.kept), *self.added)


Step: TypeAlias = Callable[[Draft], Draft]
"""One step of an alteration: a function that returns a changed draft, or raises an error."""


# ── steps


def add_column(name: str, spec: ColumnSpec) -> Step:
    """Return a step for `alter` that adds a column (`schema.alteration.add_column`)."""
    return lambda draft: _with_schema(draft, alteration.add_column(draft.schema, name, spec, draft.limits))


def drop_column(name: str) -> Step:
    """Return a step for `alter` that drops a column (`schema.alteration.drop_column`)."""
    return lambda draft: _with_schema(draft, alteration.drop_column(draft.schema, name))


def rename_column(old: str, new: str) -> Step:
    """Return a step for `alter` that renames a column (`schema.alteration.rename_column`)."""
    return lambda draft: _with_schema(draft, alteration.rename_column(draft.schema, old, new, draft.limits))


def change_column(name: str, **changes: Any) -> Step:
    """Return a step for `alter` that changes a column (`schema.alteration.change_column`)."""
    return lambda draft: _with_schema(
        draft, alteration.change_column(draft.schema, name, **changes, limits=draft.limits)
    )


def _with_schema(draft: Draft, schema: Schema) -> Draft:
    return dataclasses.replace(draft, schema=schema)


def rename_table(name: str) -> Step:
    """Return a step for `alter` that renames the table.

    Raises, when the step runs: TableExistsError; InvalidArgumentError for an invalid name.
    """

    def step(draft: Draft) -> Draft:
        check_table_name(name, draft.limits)
        if name in draft.taken:
            raise TableExistsError(
                f"cannot rename {draft.name!r} to {name!r}: a table with this name already exists"
            )
        return dataclasses.replace(draft, name=name, taken=draft.taken - {draft.name} | {name})

    return step


def set_comment(comment: str) -> Step:
    """Return a step for `alter` that sets the table's comment.

    Raises, when the step runs: SchemaError for an invalid comment.
    """

    def step(draft: Draft) -> Draft:
        check_comment(comment, f"table {draft.name!r}: ", draft.limits)
        return dataclasses.replace(draft, comment=comment)

    return step


def set_history(history_us: int | None) -> Step:
    """Return a step for `alter` that sets how long the table keeps history.

    history_us: the time in microseconds; None: forever.
    """
    return lambda draft: dataclasses.replace(draft, history_us=history_us)


def add_range(bound: RangeBound) -> Step:
    """Return a step for `alter` that adds a range partition with these bounds.

    Raises, when the step runs: the errors of `partition.alteration.added_partitions`.
    """

    def step(draft: Draft) -> Draft:
        added = added_partitions(bound, draft.partition_schema, draft.partitions, draft.schema, draft.limits)
        return dataclasses.replace(draft, added=(*draft.added, *added))

    return step


def drop_range(bound: RangeBound, purge: bool = False) -> Step:
    """Return a step for `alter` that drops the range partition with these bounds.

    An earlier step of the same alteration may have added this range.

    purge: True: remove the rows and their history at once; False: keep them until the history ends.
    Raises, when the step runs: the errors of `find_range`.
    """

    def step(draft: Draft) -> Draft:
        found = find_range(bound, draft.partition_schema, draft.partitions, draft.schema)
        gone = tuple(tablet for tablet in draft.kept if _range_of(tablet.partition) == found)
        at_once = purge or (draft.history_us == 0 and not draft.is_tagged)
        return dataclasses.replace(
            draft,
            kept=tuple(tablet for tablet in draft.kept if tablet not in gone),
            dropped=draft.dropped if at_once else (*draft.dropped, *gone),
            purged=(*draft.purged, *gone) if at_once else draft.purged,
            added=tuple(partition for partition in draft.added if _range_of(partition) != found),
        )

    return step


def undrop_range(bound: RangeBound) -> Step:
    """Return a step for `alter` that restores the most recently dropped range with these bounds.

    Raises, when the step runs: InvalidArgumentError if no such range was dropped, or if it overlaps
    a present range.
    """

    def step(draft: Draft) -> Draft:
        found = find_range(
            bound,
            draft.partition_schema,
            [tablet.partition for tablet in draft.dropped],
            draft.schema,
            "undropped",
        )
        check_free(found, draft.partition_schema, draft.partitions, draft.schema)
        there = [tablet for tablet in draft.dropped if _range_of(tablet.partition) == found]
        # A range that this alteration drops has no timestamp yet, and was dropped last.
        newest = max(tablet.dropped or MAX_TIMESTAMP for tablet in there)
        back = tuple(tablet for tablet in there if (tablet.dropped or MAX_TIMESTAMP) == newest)
        return dataclasses.replace(
            draft,
            kept=(*draft.kept, *back),
            dropped=tuple(tablet for tablet in draft.dropped if tablet not in back),
        )

    return step


def _range_of(partition: Partition) -> tuple[bytes | None, bytes | None]:
    return partition.range_lower, partition.range_upper


# ── alter


def alter(store: Store, table_id: int, steps: Sequence[Step], *, phase: Phase = no_phase) -> TableEntry:
    """Apply the steps as one alteration, and return the table's new catalogue entry.

    phase:  a function for tests. It is called with "begun" before the commit lock is taken, with
            "frozen" under this lock, before the change is written, and with "committed" after that,
            still under the lock. If the schema changes, then at "frozen" the former MemRowSets take
            no more inserts.
    Raises: errors of the steps; TableNotFoundError if the table was dropped; StorageError. Nothing
            changes then.
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
        if any(tablet.memory.row_count for tablet in table.every_tablet):
            table = freeze_memory(store, table)
    phase("frozen")
    tablets = _dropped_and_undropped(table, draft, timestamp)
    purged = [tablets[entry.id] for entry in draft.purged]
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
        purged=(*table.entry.purged, *purged_ranges(purged)),
    )
    entry = _without_past(store, entry)
    added = [
        TabletEntry(store.allocate("tablet"), table.id, partition, 0, timestamp) for partition in draft.added
    ]
    gone = {tablet.id for tablet in purged}
    known = {tablet.id: tablet.entry for tablet in table.every_tablet}
    changed = [
        tablet.entry
        for tablet in tablets.values()
        if tablet.entry is not known[tablet.id] and tablet.id not in gone
    ]
    change = CatalogChange(timestamp=timestamp, put_tables=[entry], put_tablets=[*changed, *added])
    purging_tablets(store.state, gone, change)
    bare = TableState(entry, (), table.limits)
    if schema is not table.schema:  # all memory is frozen
        tablets = {
            number: dataclasses.replace(tablet, memory=store.new_memory(bare))
            for number, tablet in tablets.items()
        }
    fresh = [TabletState(tablet, store.new_memory(bare)) for tablet in added]
    altered = dataclasses.replace(
        bare,
        # In the order of their ids, as when a process opens the store.
        tablets=(*(tablets[number] for number in sorted(kept.id for kept in draft.kept)), *fresh),
        dropped=tuple(tablets[number] for number in sorted(gone.id for gone in draft.dropped)),
    )
    root = store.root
    store.transact(change, lambda version: root.with_table(altered, version), forget_log=bool(gone))
    return entry


def _dropped_and_undropped(table: TableState, draft: Draft, timestamp: int) -> dict[int, TabletState]:
    """Return all tablets of the table by id, with the drops and restores of the draft applied.

    If the draft drops or restores a tablet, `timestamp` is added to the tablet's `drops`.
    """
    found = {tablet.id: tablet for tablet in table.every_tablet}
    present = {tablet.id for tablet in draft.kept}
    for tablet in found.values():
        if (tablet.id in present) == bool(tablet.entry.dropped):
            entry = dataclasses.replace(tablet.entry, drops=(*tablet.entry.drops, timestamp))
            found[tablet.id] = dataclasses.replace(tablet, entry=entry)
    return found


def _without_past(store: Store, entry: TableEntry) -> TableEntry:
    """Return the entry without the schemas and purged ranges that no readable moment needs."""
    cut = store.history_cut(entry)
    shorter = entry.without_past(cut)
    return (
        entry
        if shorter is entry
        else dataclasses.replace(shorter, history_start=max(cut, entry.history_start))
    )
