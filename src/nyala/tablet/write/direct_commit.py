"""Commits a batch that is too large for the log: writes files, then one catalogue change.

The batch keeps the commit lock until the end (other writers wait; scans do not):

    flush the memory of the touched tablets, so that every live row is on disk
    resolve the batch again, because the flush gave rows new positions
    take a timestamp t, and write
        inserts as DiskRowSets, with UNDO deltas "the row is dead before t"
        updates and deletes as REDO files of the rowsets that have the rows
    sync the files, commit one catalogue change, and replace the root

One thread per core writes rowsets.

Invariants
    B1  The catalogue change is the batch's only commit point. Before it nothing of the batch is
        visible, and after a crash the next open removes the files (rules W6 and P3).
    B2  A rowset has no changes in memory when its new REDO file is added, so its changes stay in
        the order of time (rule R4). The entry of each new or changed rowset says that all its
        changes up to t are in files, so a replay of the log skips them (`deltas_durable`, rule R2).

Limit: other writers wait while files are written, also for a large Spark job. To avoid this, the
files would have to be written before the lock is taken, and a check under the lock would have to
show that no key has moved.
Source: docs/design/writes-and-batches.md, "Batches above 64 MB are written as files";
docs/design/rules.md, W6, R2 and R4.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nyala.catalog.model import CatalogChange, CommitMessage, CommittedKey, RowSetEntry
from nyala.delta.delta_file import write_delta_file
from nyala.delta.run import LIVENESS, DeltaRun
from nyala.env.interrupts import Interruptible
from nyala.env.overlapped import each
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.image import RowSetImage, most_text, one_array
from nyala.rowset.writer import WrittenRowSet, write_rowset
from nyala.schema.conversion.long_column import Column
from nyala.tablet.flush.file_jobs import delta_types
from nyala.tablet.flush.lifecycle import flush
from nyala.tablet.flush.rolling import roll, text_ranges
from nyala.tablet.state.idempotency import encode_counts
from nyala.tablet.state.locate import equal_ranges
from nyala.tablet.state.opening import delta_entry
from nyala.tablet.state.root import TabletState
from nyala.tablet.write.effects import Effect, ResolvedBatch, row_counts
from nyala.tablet.write.resolve import resolve

if TYPE_CHECKING:
    from nyala.tablet.store import Store


def commit_directly(
    store: Store, resolved_batches: Sequence[ResolvedBatch], idempotency_key: str | None, message: str | None
) -> int:
    """Commit a resolved batch by writing its new and changed rows as files. Return its timestamp.

    Requires the commit lock and the flush lock.

    resolved_batches: the batch, divided by table.
    Raises: StorageError if a file cannot be written. Then nothing of the batch is committed.
    """
    touched = {
        resolved.table.tablets[ordinal].id
        for resolved in resolved_batches
        for effect in resolved.effects
        for ordinal, _, _ in equal_ranges(effect.tablets)
    }
    # A running merge of the changed rowsets is stopped, because it keeps their deltas in memory
    # (R4). A delta compaction continues: its result is correct also if REDO files are added after
    # those it has read. A load of new rows changes no rowset, so it stops no merge.
    changed_ids = {rowset.id for rowset in _changed_rowsets(resolved_batches)}
    store.reservations.revoke(filter(store.reservations.holds_deltas, changed_ids))
    with Interruptible():
        flush(store, touched)  # nothing is left in memory (F4)
    resolved_batches = [
        resolve(store.root.tables[resolved.table.id], resolved.operations)
        if any(effect.kind != "insert" for effect in resolved.effects)
        else dataclasses.replace(resolved, table=store.root.tables[resolved.table.id])
        for resolved in resolved_batches
    ]
    timestamp = store.clock.next()
    change = CatalogChange(timestamp=timestamp)
    if idempotency_key is not None:
        change.committed_keys.append(
            CommittedKey(idempotency_key, timestamp, encode_counts(row_counts(resolved_batches)))
        )
    if message is not None:
        change.put_messages.append(CommitMessage(timestamp, message))

    def write(changed: dict[int, TabletState], written: list[str]) -> None:
        for resolved in resolved_batches:
            write_effects(store, resolved, timestamp, change, changed, written)

    commit_files(store, change, write)
    return timestamp


def commit_files(
    store: Store, change: CatalogChange, write: Callable[[dict[int, TabletState], list[str]], None]
) -> None:
    """Call `write`, which writes files, then commit these files with one catalogue change.

    Requires the commit lock.
    change: the catalogue change; `write` adds the entries of the files to it.
    write:  also adds the changed tablets (by id) to its first argument, and the paths of the
            written files to its second argument.
    Raises: StorageError, and errors of `write`. Then the files are removed.
    """
    written: list[str] = []
    changed: dict[int, TabletState] = {}
    try:
        with Interruptible():
            write(changed, written)
            store.sync_directories(written)
        after = store.root.with_tablets(changed)
        store.transact(change, after.at_version)
    except BaseException:
        store.discard_files(written)
        raise
    store.note_committed(change.timestamp)


def write_effects(
    store: Store,
    resolved: ResolvedBatch,
    timestamp: int,
    change: CatalogChange,
    changed: dict[int, TabletState],
    written: list[str],
) -> None:
    """Write the changes that a batch makes in one table as files: rowsets and REDO files.

    The rows that the batch updates or deletes must already be on disk, and must have no changes in
    memory.

    timestamp: the timestamp of the batch.
    change:  gets the catalogue entries of the new files.
    changed: gets the tablets with the new rowsets, by id.
    written: gets the paths of the files.
    """
    for effect in resolved.effects:
        if effect.kind in ("insert", "tombstone"):
            _write_inserts(store, resolved, effect, timestamp, change, changed, written)
        else:
            _write_deltas(store, resolved, effect, timestamp, change, changed, written)


def _changed_rowsets(resolved_batches: Sequence[ResolvedBatch]) -> Iterator[DiskRowSet]:
    """Yield the rowsets on disk with rows that are updated or deleted."""
    for resolved in resolved_batches:
        for effect in resolved.effects:
            if effect.kind in ("update", "delete"):
                for code in np.unique(effect.codes).tolist():
                    rowset = resolved.rowsets[code][1]
                    if isinstance(rowset, DiskRowSet):
                        yield rowset


def _write_inserts(
    store: Store,
    resolved: ResolvedBatch,
    effect: Effect,
    timestamp: int,
    change: CatalogChange,
    changed: dict[int, TabletState],
    written: list[str],
) -> None:
    table, target_bytes = resolved.table, store.options.rowset_target_bytes
    parts: list[tuple[int, int, RowSetImage, int, int]] = []
    for ordinal, begin, end in equal_ranges(effect.tablets):
        count = end - begin
        dead = effect.kind == "tombstone"
        image = RowSetImage(
            keys=effect.keys.slice(begin, count),
            columns={number: array.slice(begin, count) for number, array in effect.columns.items()},
            liveness=pa.array(np.zeros(count, np.bool_)) if dead else None,
            undo={},
            positions=np.empty(0, np.int64),
        )
        parts += [
            (ordinal, store.allocate("rowset"), image, lower, upper)
            for lower, upper in roll(image, table.schema, target_bytes)
        ]

    def write(part: tuple[int, int, RowSetImage, int, int]) -> WrittenRowSet:
        ordinal, rowset_id, image, lower, upper = part
        tablet_id = table.tablets[ordinal].id
        undo = {
            LIVENESS: (dead_at if effect.kind == "tombstone" else absent_before)(timestamp, upper - lower)
        }
        image = dataclasses.replace(image.piece(lower, upper), undo=undo)
        result = write_rowset(
            store.env.files, store.root_path, store.new_data_path(tablet_id, rowset_id, "base"), rowset_id,
            tablet_id, image, table.schema, deltas_durable=timestamp,
        )  # fmt: skip
        written.extend(result.paths)
        return result

    # Encoding, compressing and writing release the GIL.
    results = each(store.env.files, write, parts, threads=os.cpu_count() or 1)
    for (ordinal, *_), result in zip(parts, results, strict=True):
        rowset, entries = store.adopt_rowset(result, table.schema)
        change.put_rowsets.append(RowSetEntry.from_meta(rowset.meta))
        change.put_deltas.extend(entries)
        tablet = table.tablets[ordinal]
        before = changed.get(tablet.id, tablet)
        if before.entry.auto_id < before.ids.last:
            before = dataclasses.replace(
                before, entry=dataclasses.replace(before.entry, auto_id=before.ids.last)
            )
            change.put_tablets.append(before.entry)
        changed[tablet.id] = dataclasses.replace(before, rowsets=(*before.rowsets, rowset))


def absent_before(timestamp: int, count: int) -> DeltaRun:
    """Return the UNDO deltas of `count` inserted rows: they are dead before `timestamp`."""
    return DeltaRun(
        kind="undo",
        rowids=np.arange(count, dtype=np.int64),
        timestamps=np.full(count, timestamp, np.int64),
        values=pa.array(np.zeros(count, np.bool_)),
    )


def dead_at(timestamp: int, count: int) -> DeltaRun:
    """Return UNDO deltas that make `count` new rows live only at `timestamp` - 1.

    The clock guarantees that no reader reads at this moment, so no reader sees the rows. Each row
    is for a delete with `newest_by` whose key does not exist. It only keeps the delete's value of
    the column that `newest_by` names.

    timestamp: the timestamp of the batch with the deletes.
    """
    return DeltaRun(
        kind="undo",
        rowids=np.repeat(np.arange(count, dtype=np.int64), 2),
        timestamps=np.tile(np.array([timestamp, timestamp - 1], np.int64), count),
        values=pa.array(np.tile([True, False], count)),
    )


def redo_runs(
    rowids: np.ndarray, columns: Mapping[int, Column], timestamp: int
) -> Iterator[dict[int, DeltaRun]]:
    """Yield the content of REDO files with changes of one rowset at one timestamp.

    There are several files if the text is too large for one Arrow array.
    rowids:  the changed rows.
    columns: their new values by column id.
    """
    for lower, upper in text_ranges(partial(most_text, columns), 0, len(rowids)):
        stamps = np.full(upper - lower, timestamp, np.int64)
        yield {
            number: DeltaRun(
                "redo", rowids[lower:upper], stamps, one_array(column.slice(lower, upper - lower))
            )
            for number, column in columns.items()
        }


def _write_deltas(
    store: Store,
    resolved: ResolvedBatch,
    effect: Effect,
    timestamp: int,
    change: CatalogChange,
    changed: dict[int, TabletState],
    written: list[str],
) -> None:
    schema = resolved.table.schema
    order = np.lexsort((effect.rowids, effect.codes))
    codes, rowids = effect.codes[order], effect.rowids[order]
    columns = {
        number: array.take(pa.array(order)) for number, array in effect.new_values(schema.key_ids).items()
    }
    for place, begin, end in equal_ranges(codes):
        ordinal, located = resolved.rowsets[place]
        assert isinstance(located, DiskRowSet), "B2: rows in memory were flushed first"
        tablet = resolved.table.tablets[ordinal]
        state = changed.get(tablet.id, tablet)
        rowset = next(candidate for candidate in state.rowsets if candidate.id == located.id)
        assert not rowset.deltas.record_count and not rowset.frozen, "R4: the DeltaMemStore was flushed first"
        entries = []
        # Several files may have the same timestamp, because each row changes once (S1).
        part = {number: column.slice(begin, end - begin) for number, column in columns.items()}
        for runs in redo_runs(rowids[begin:end], part, timestamp):
            number = store.allocate("delta")
            path = store.new_data_path(tablet.id, number, "redo")
            written.append(path)
            result = write_delta_file(
                store.env.files, store.path(path), "redo", runs, delta_types(schema, runs)
            )
            entries.append(delta_entry(number, rowset.id, path, result))
        fresh = rowset.with_flushed_deltas(list(map(store.open_delta, entries)), deltas_durable=timestamp)
        change.put_deltas.extend(entries)
        change.put_rowsets = [e for e in change.put_rowsets if e.id != fresh.id] + [
            RowSetEntry.from_meta(fresh.meta)
        ]
        changed[tablet.id] = dataclasses.replace(
            state,
            rowsets=tuple(fresh if candidate.id == fresh.id else candidate for candidate in state.rowsets),
        )
