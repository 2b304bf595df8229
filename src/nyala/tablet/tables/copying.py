"""Rewrites all rows of a table: as a copy, or as the same table with other tablets.

Both operations first write the rows of one moment as rowsets of new tablets, without a lock, so
that others can read and write. Then:

    copy_table     adds the new table by one change of the catalogue
    repartition    under the flush lock and the commit lock: writes the rows that changed since that
                   moment into the new tablets, like a large batch; then replaces the old tablets by
                   one change of the catalogue

Invariants
    Y1  A catalogue change is the only commit point: before it nothing is visible, and a crash
        leaves only orphan files, which the next open removes.
    Y2  History is not copied. Moments before the catalogue change cannot be read
        (`TableEntry.rewritten_at`).
    Y3  At the moment of the catalogue change the table has the same rows before and after its
        repartition.

Memory: rows that wait until there are enough for a rowset, at most a quarter of the store's
`memory_limit`. A repartition also holds the rows that changed while it ran. Simplification: one
thread reads and writes.

Source: docs/how-to/changing-a-table.md. Kudu has no such operation; its users copy with Spark.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nyala import compute as pc
from nyala.catalog.model import CatalogChange, RowSetEntry, TableEntry, TabletEntry, purging_tablets
from nyala.env.interrupts import Uninterrupted
from nyala.errors import (
    HistoryExpiredError,
    InvalidArgumentError,
    NoPartitionError,
    TableNotFoundError,
)
from nyala.partition.model import Partition, PartitionSchema
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.image import RowSetImage, whole_column
from nyala.rowset.size import DECODED_PER_TARGET
from nyala.rowset.writer import write_rowset
from nyala.tablet.changes.feed import change_batches
from nyala.tablet.changes.spec import CHANGE_TYPE, make_change_spec
from nyala.tablet.flush.lifecycle import Phase, no_phase
from nyala.tablet.flush.rolling import disk_bytes, roll
from nyala.tablet.scan import read_path
from nyala.tablet.scan.read_path import ScanCounters, ScanSpec
from nyala.tablet.state.auto_ids import AutoIds
from nyala.tablet.state.history import check_readable, describe_history
from nyala.tablet.state.locate import equal_ranges
from nyala.tablet.state.root import Root, TableState, TabletState
from nyala.tablet.tables.creation import name_in_use
from nyala.tablet.write.direct_commit import write_effects
from nyala.tablet.write.prepare import PreparedOperation, prepare
from nyala.tablet.write.resolve import resolve

if TYPE_CHECKING:
    from nyala.tablet.store import Store

logger = logging.getLogger("nyala.store")


def copy_table(
    store: Store,
    root: Root,
    source: TableState,
    snapshot: int,
    name: str,
    partition_schema: PartitionSchema,
    partitions: Collection[Partition],
) -> None:
    """Create the table `name` with the rows that `source` has at `snapshot`, in its schema.

    root: the root of `source`, which keeps the source's files during the copy.
    partition_schema, partitions: how the new table is partitioned, and its partitions.
    Raises: TableExistsError; NoPartitionError if no partition covers a row; StorageError. Nothing
            is created then.
    """
    if name in store.root.by_name:
        raise name_in_use(name)
    schema = dataclasses.replace(source.schema, version=0, layout_version=0)
    entry = dataclasses.replace(
        source.entry, id=0, name=name, schema=schema, schemas={0: schema}, partition_schema=partition_schema, purged=(),
        drops=(), tagged=(),
    )  # fmt: skip
    target, written = _copied(store, source, snapshot, entry, partitions)
    try:
        with Uninterrupted(), store.commit_lock:
            store.check_writable()
            now = store.root
            if name in now.by_name:
                raise name_in_use(name)
            created = store.stamp()
            entry = dataclasses.replace(
                target.entry, id=store.state.next_table_id, created=created, history_start=0,
                schema_since={0: created}, rewritten_at=created,
            )  # fmt: skip
            copied = _of_table(target, entry, created)
            change = CatalogChange(timestamp=created, put_tables=[entry])
            _put(change, copied)
            store.transact(change, lambda version: now.with_table(copied, version))
    except BaseException:
        store.discard_files(written)
        raise
    del root


def repartition(
    store: Store,
    table_id: int,
    partition_schema: PartitionSchema,
    partitions: Collection[Partition],
    *,
    phase: Phase = no_phase,
) -> None:
    """Replace the table's partitions by new ones. Others can read and write the table meanwhile.

    partition_schema, partitions: how the table is partitioned afterwards, and its partitions.
    phase:  for tests: called with "copied" before the locks are taken.
    Raises: NoPartitionError if no partition covers a row; InvalidArgumentError if the table was
            altered during the call; TableNotFoundError; StorageError. Nothing changes then.
    """
    root, snapshot = store.view()
    source = root.tables.get(table_id)
    if source is None:
        raise TableNotFoundError(_dropped())
    _check_no_tags(store, source.entry)
    entry = dataclasses.replace(source.entry, partition_schema=partition_schema)
    target, written = _copied(store, source, snapshot, entry, partitions)
    try:
        phase("copied")
        with store.flush_lock, Uninterrupted(), store.commit_lock:
            store.check_writable()
            _swap(store, source, target, snapshot, written)
    except BaseException:
        store.discard_files(written)
        raise
    logger.info("table %r now has %d tablets", source.name, len(target.tablets))


def _swap(store: Store, source: TableState, target: TableState, snapshot: int, written: list[str]) -> None:
    """Replace the tablets of the table `source` by the new tablets of `target`.

    Before that, write to `target` what changed in `source` after `snapshot`. Call it under the
    flush lock and the commit lock.

    target:  has the rows of `source` at `snapshot`, in new tablets.
    written: gets the paths of the written files.
    """
    now = store.root.tables.get(source.id)
    if now is None:
        raise TableNotFoundError(_dropped())
    if now.schema is not source.schema or now.partitions != source.partitions:
        raise InvalidArgumentError(
            f"table {source.name!r} was altered during repartition(); nothing changed: call repartition() again"
        )
    operations = _operations(now, target, snapshot, store.marks.applied)
    timestamp = store.clock.next()
    change = CatalogChange(timestamp=timestamp)
    changed: dict[int, TabletState] = {}
    _put(change, target)
    if operations:
        write_effects(store, resolve(target, operations), timestamp, change, changed, written)
    store.sync_directories(written)
    version = now.schema.version
    entry = dataclasses.replace(
        now.entry,
        partition_schema=target.entry.partition_schema,
        schemas={version: now.schema},
        schema_since={version: now.entry.schema_since.get(version, 0)},
        history_start=timestamp,
        rewritten_at=timestamp,
        purged=(),
    )
    last = max((tablet.ids.last for tablet in now.tablets), default=0)
    fresh = _of_table(target.with_tablets(changed), entry, timestamp, last)
    change.put_tables.append(entry)
    change.put_tablets = [tablet.entry for tablet in fresh.tablets]
    purging_tablets(store.state, [tablet.id for tablet in now.every_tablet], change)
    store.marks.advance_applied(timestamp)
    root = store.root
    store.transact(change, lambda version: root.with_table(fresh, version), forget_log=True)


def _check_no_tags(store: Store, entry: TableEntry) -> None:
    """Check that no tag keeps history of the table. A repartition would remove this history.

    Raises: InvalidArgumentError.
    """
    if entry.tagged:
        names = sorted(tag.name for tag in store.state.tags.values() if tag.timestamp in entry.tagged)
        raise InvalidArgumentError(
            f"table {entry.name!r} must stay readable at the tag {names[0]!r}, and repartition() discards its history: "
            "drop_tag() first, or copy the table with copy_table(…, partition_by=…)"
        )


def _operations(now: TableState, target: TableState, since: int, until: int) -> list[PreparedOperation]:
    """Return the table's changes after `since`, up to `until`, as upserts and deletes for `target`.

    Raises: HistoryExpiredError if the table's history does not reach back to `since`.
    """
    try:
        check_readable(now.entry, since, 0, 0)  # 0, 0: checks only whether history was removed
    except HistoryExpiredError as error:
        raise HistoryExpiredError(
            f"table {now.name!r} was written to during repartition(), and its history "
            f"({describe_history(now.entry.history_us)}) is too short to find the changes. Nothing changed: call "
            "repartition() again, or set a longer history first"
        ) from error
    schema = now.schema
    spec = make_change_spec(now, since, until, "net", schema.columns)
    rows = pa.Table.from_batches(list(change_batches(now, spec)), schema=spec.arrow_schema)
    gone = pc.equal(rows.column(CHANGE_TYPE), "delete")
    keys = [column.name for column in schema.key_columns]
    changed = rows.filter(pc.invert(gone)).select(list(schema.names))
    upserts = prepare(target, "upsert", changed, ignore=False, sets_immutable=True)
    if upserts.errors:
        raise NoPartitionError(_uncovered(target, len(upserts.errors.rows), str(upserts.errors.messages[0])))
    deletes = prepare(target, "delete", rows.filter(gone).select(keys), ignore=True)
    return [operation for operation in (upserts, deletes) if operation.row_count]


# ------------------------------------------------------------------------------------------------ writing


def _copied(
    store: Store, source: TableState, snapshot: int, entry: TableEntry, partitions: Collection[Partition]
) -> tuple[TableState, list[str]]:
    """Write the source's rows at `snapshot` as files of new tablets, which no catalogue names yet.

    Returns (a table with the new tablets, the paths of the synced files).
    """
    bare = TableState(entry, (), source.limits)
    # Each new tablet may get rows of all tablets, so it continues with the greatest id.
    last = max((tablet.ids.last for tablet in source.tablets), default=0)
    tablets = [
        TabletState(
            TabletEntry(store.allocate("tablet"), entry.id, partition, 0, auto_id=last),
            store.new_memory(bare),
            ids=AutoIds(last),
        )
        for partition in partitions
    ]
    target = dataclasses.replace(bare, tablets=tuple(tablets))
    writer = _Writer(store, target, snapshot)
    spec = ScanSpec(source.schema, source.schema.columns, snapshot, order_by_key=True)
    try:
        for batch in read_path.run(read_path.plan(source, spec, ScanCounters()), spec, ScanCounters()):
            writer.take(batch)
        writer.finish()
        store.sync_directories(writer.written)
    except BaseException:
        store.discard_files(writer.written)
        raise
    return target.with_tablets(
        {
            tablet.id: dataclasses.replace(tablet, rowsets=tuple(writer.rowsets[tablet.id]))
            for tablet in target.tablets
        }
    ), writer.written


class _Writer:
    """Writes rows that arrive in key order as rowsets of their tablets."""

    def __init__(self, store: Store, target: TableState, snapshot: int) -> None:
        self._store = store
        self._target = target
        self._snapshot = snapshot
        self._waiting: dict[int, list[pa.RecordBatch]] = {}  # by ordinal
        self._bytes: dict[int, int] = {}
        self._full_bytes: float | None = None  # bytes in memory that make one rowset
        self.rowsets: dict[int, list[DiskRowSet]] = {tablet.id: [] for tablet in target.tablets}
        self.written: list[str] = []

    def take(self, batch: pa.RecordBatch) -> None:
        """Add rows whose keys are greater than those of all earlier rows."""
        target, options = self._target, self._store.options
        names = [column.name for column in target.schema.key_columns]
        ordinals_of = target.router.route({name: batch.column(name) for name in names}, batch.num_rows)
        uncovered = np.flatnonzero(ordinals_of < 0)
        if len(uncovered):
            first = batch.select(names).slice(int(uncovered[0]), 1).to_pylist()[0]
            raise NoPartitionError(_uncovered(target, len(uncovered), f"the first has the key {first}"))
        order = np.argsort(ordinals_of, kind="stable")
        rows = batch if bool((order == np.arange(len(order))).all()) else batch.take(pa.array(order))
        for ordinal, begin, end in equal_ranges(ordinals_of[order]):
            part = rows.slice(begin, end - begin)
            self._waiting.setdefault(ordinal, []).append(part)
            self._bytes[ordinal] = self._bytes.get(ordinal, 0) + part.nbytes
            if self._is_full(ordinal):
                self._write(ordinal)
        while sum(self._bytes.values()) > options.memory_limit_bytes // 4:
            self._write(max(self._bytes, key=lambda ordinal: self._bytes[ordinal]))

    def finish(self) -> None:
        for ordinal in list(self._waiting):
            self._write(ordinal)

    def _is_full(self, ordinal: int) -> bool:
        """Return whether the rows that wait to be written fill a rowset of the target size.

        The target is a number of bytes on disk. How many bytes in memory this means is estimated
        once, from the first rows that wait.

        ordinal: the index of the tablet.
        """
        held, rowset_bytes = self._bytes[ordinal], self._store.options.rowset_target_bytes
        if held < rowset_bytes:
            return False
        if self._full_bytes is None:
            dense = held / disk_bytes(self._image(ordinal), self._target.schema)
            self._full_bytes = rowset_bytes * min(max(1.0, dense), DECODED_PER_TARGET)
        return held >= self._full_bytes

    def _image(self, ordinal: int) -> RowSetImage:
        """Return the rows that wait to be written to a tablet, as `write_rowset` takes them.

        ordinal: the index of the tablet.
        """
        target, waiting = self._target, self._waiting[ordinal]
        columns: dict[int, pa.Array] = {
            column.id: whole_column([batch.column(column.name) for batch in waiting])
            for column in target.schema.columns
        }
        keys = target.codec.encode([columns[column.id] for column in target.schema.key_columns])
        return RowSetImage(keys, columns, None, {}, np.empty(0, np.int64))

    def _write(self, ordinal: int) -> None:
        store, target = self._store, self._target
        tablet = target.tablets[ordinal]
        image = self._image(ordinal)
        del self._bytes[ordinal], self._waiting[ordinal]
        for lower, upper in roll(image, target.schema, store.options.rowset_target_bytes):
            number = store.allocate("rowset")
            result = write_rowset(
                store.env.files, store.root_path, store.new_data_path(tablet.id, number, "base"), number,
                tablet.id, image.piece(lower, upper), target.schema, deltas_durable=self._snapshot,
            )  # fmt: skip
            self.written += result.paths
            rowset, _ = store.adopt_rowset(result, target.schema)
            self.rowsets[tablet.id].append(rowset)


def _of_table(target: TableState, entry: TableEntry, created: int, auto_id: int = 0) -> TableState:
    """Return the table `target` with another catalogue entry.

    entry:   the new entry; the tablets get its table id.
    created: the timestamp at which the tablets begin to exist.
    auto_id: the greatest value of `auto_incrementing_id` in the source; new ids must be greater.
    """
    tablets = []
    for tablet in target.tablets:
        tablet.ids.note(auto_id)
        own = dataclasses.replace(tablet.entry, table_id=entry.id, created=created, auto_id=tablet.ids.last)
        tablets.append(dataclasses.replace(tablet, entry=own))
    return TableState(entry, tuple(tablets), target.limits)


def _put(change: CatalogChange, target: TableState) -> None:
    """Add the entries of the target's tablets and rowsets to the change."""
    change.put_tablets += [tablet.entry for tablet in target.tablets]
    change.put_rowsets += [
        RowSetEntry.from_meta(rowset.meta) for tablet in target.tablets for rowset in tablet.rowsets
    ]


def _uncovered(target: TableState, count: int, first: str) -> str:
    return (
        f"at least {count} rows are not covered by the new partitions of table {target.name!r}: {first}. Nothing "
        "changed: give ranges that cover all rows, or delete those rows first"
    )


def _dropped() -> str:
    return "the table was dropped before it could be repartitioned"
