"""Batches too large for the log: everything is written as files and committed by one catalogue transaction (W6).

    under the commit lock throughout (other writers wait; scans do not)
      flush what the touched tablets hold in memory      so that every live row has a place on disk
      settle again                                       against those places
      timestamp t; inserts -> DiskRowSets with UNDO "not there before t"
                   updates and deletes -> REDO files of the rowsets that hold the rows
      sync, one catalogue transaction, one new root

Rowsets are written by as many threads as there are cores; all else is done by the thread that holds the lock.

Invariants
    B1  The catalogue transaction is the batch's only commit point: before it nothing of the batch can be
        seen, and files left by a crash are removed by the next open (W6, P3).
    B2  The touched rowsets have nothing in memory when their REDO file is added (R4), and a rowset that is
        committed here has deltas_durable = t while `inserts_durable` of its tablet stays (R2).

Simplification: the lock is held while files are written, so other writers wait for the whole load (a large job of
Spark's too, whose staged rows are written here). The way out is to write before the lock is taken, and to
check under it that no key has moved.
Source: docs/design/writes-and-batches.md, "Batches above 64 MB are written as files"; docs/design/rules.md, W6, R2
and R4.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nyala.catalog.model import CatalogChange, CommittedKey, RowSetEntry
from nyala.delta.delta_file import write_delta_file
from nyala.delta.run import LIVENESS, DeltaRun
from nyala.env.interrupts import Interruptible
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.image import RowSetImage, most_text, one_array
from nyala.rowset.writer import WrittenRowSet, write_rowset
from nyala.schema.schema import Schema
from nyala.tablet.flush.file_jobs import delta_types
from nyala.tablet.flush.lifecycle import flush
from nyala.tablet.flush.rolling import roll, text_pieces
from nyala.tablet.state.idempotency import encode_told
from nyala.tablet.state.locate import tablet_slices
from nyala.tablet.state.opening import delta_entry
from nyala.tablet.state.root import TabletState
from nyala.tablet.write.settle import Effect, Settlement, settle, told_of

if TYPE_CHECKING:
    from nyala.tablet.store import Store


def commit_directly(store: Store, settlements: Sequence[Settlement], idempotency_key: str | None) -> int:
    """Write the settled effects as files and commit them; returns the timestamp. Under the commit lock.

    Raises: StorageError when a file cannot be written: nothing of the batch is there then.
    """
    touched = {
        settlement.table.tablets[ordinal].id
        for settlement in settlements
        for effect in settlement.effects
        for ordinal in tablet_slices(effect.tablets)[0].tolist()
    }
    # What a running merge has read of them will not be all that there is, and what it keeps in memory must be flushed
    # (R4): it gives up. A delta compaction leaves room for REDO files behind those that it has read, and a load of new
    # rows changes no rowset: else no compaction would ever come to its end beside a stream of loads.
    changed_ids = {rowset.id for rowset in _changed_rowsets(settlements)}
    store.reservations.revoke(filter(store.reservations.holds_deltas, changed_ids))
    with Interruptible():
        flush(store, touched)  # leaves nothing in memory: F4
    settlements = [
        settle(store.root.tables[settlement.table.id], settlement.operations)
        if any(effect.kind != "insert" for effect in settlement.effects)
        else dataclasses.replace(settlement, table=store.root.tables[settlement.table.id])
        for settlement in settlements
    ]
    timestamp = store.clock.next()
    change = CatalogChange(timestamp=timestamp)
    if idempotency_key is not None:
        change.committed_keys.append(
            CommittedKey(idempotency_key, timestamp, encode_told(told_of(settlements)))
        )
    written: list[str] = []
    changed: dict[int, TabletState] = {}
    try:
        with Interruptible():
            for settlement in settlements:
                write_effects(store, settlement, timestamp, change, changed, written)
            for directory in {path.rsplit("/", 1)[0] for path in written}:
                store.env.files.sync_dir(store.path(directory))
        after = store.root.with_tablets(changed)
        store.transact(change, lambda version: after.with_tablets({}, version))
    except BaseException:
        store.discard_files(written)
        raise
    store.note_committed(timestamp)
    return timestamp


def write_effects(
    store: Store,
    settlement: Settlement,
    timestamp: int,
    change: CatalogChange,
    changed: dict[int, TabletState],
    written: list[str],
) -> None:
    """Write what a table's batch comes to as files of `timestamp`; all its rows that are changed lie on disk (B2).

    Adds to `change` the entries, to `changed` the tablets with the new rowsets, and to `written` the files.
    """
    for effect in settlement.effects:
        if effect.kind == "insert":
            _write_inserts(store, settlement, effect, timestamp, change, changed, written)
        else:
            _write_deltas(store, settlement, effect, timestamp, change, changed, written)


def _changed_rowsets(settlements: Sequence[Settlement]) -> Iterator[DiskRowSet]:
    """The rowsets on disk of which rows are updated or deleted."""
    for settlement in settlements:
        for effect in settlement.effects:
            if effect.kind != "insert":
                for code in np.unique(effect.codes).tolist():
                    rowset = settlement.rowsets[code][1]
                    if isinstance(rowset, DiskRowSet):
                        yield rowset


def _write_inserts(
    store: Store,
    settlement: Settlement,
    effect: Effect,
    timestamp: int,
    change: CatalogChange,
    changed: dict[int, TabletState],
    written: list[str],
) -> None:
    table = settlement.table
    jobs: list[Callable[[], WrittenRowSet]] = []
    homes: list[TabletState] = []
    ordinals, offsets = tablet_slices(effect.tablets)
    for ordinal, begin, end in zip(
        ordinals.tolist(), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True
    ):
        tablet = table.tablets[ordinal]
        state = changed.get(tablet.id, tablet)
        count = end - begin
        image = RowSetImage(
            keys=effect.keys.slice(begin, count),
            columns={number: array.slice(begin, count) for number, array in effect.columns.items()},
            liveness=None,
            undo={},
            positions=np.empty(0, np.int64),
        )
        directory = store.tablet_directory(tablet.id)
        for lower, upper in roll(image, table.schema, store.options.rowset_target_bytes):
            jobs.append(
                partial(
                    _write_piece, store, directory, store.allocate("rowset"), tablet.id, image, lower, upper,
                    table.schema, timestamp,
                )
            )  # fmt: skip
            homes.append(state)
    for state, result in zip(homes, in_threads(jobs, written), strict=True):
        rowset, entries = store.adopt_rowset(result, table.schema)
        change.put_rowsets.append(RowSetEntry.from_meta(rowset.meta))
        change.put_deltas.extend(entries)
        before = changed.get(state.id, state)
        changed[state.id] = dataclasses.replace(before, rowsets=(*before.rowsets, rowset))


def _write_piece(
    store: Store,
    directory: str,
    rowset_id: int,
    tablet_id: int,
    image: RowSetImage,
    lower: int,
    upper: int,
    schema: Schema,
    timestamp: int,
) -> WrittenRowSet:
    """The rows [lower, upper) of what is inserted, as a rowset."""
    piece = dataclasses.replace(
        image.piece(lower, upper), undo={LIVENESS: _not_before(timestamp, upper - lower)}
    )
    return write_rowset(
        store.env.files, store.root_path, directory, rowset_id, tablet_id, piece, schema, deltas_durable=timestamp
    )  # fmt: skip


def in_threads(jobs: Sequence[Callable[[], WrittenRowSet]], written: list[str]) -> list[WrittenRowSet]:
    """Write rowsets, as many at a time as there are cores: encoding, compressing and writing let go of the
    interpreter's lock. Returns: their results, in order; all files that are complete are added to `written`.

    Raises: what the first job that failed raised, when no job runs any more; jobs behind it may have been done.
    """
    workers = min(len(jobs), os.cpu_count() or 1)
    if workers < 2:
        results = []
        for job in jobs:
            results.append(job())
            written += results[-1].paths
        return results
    running: list[Future[WrittenRowSet]] = []
    try:
        with ThreadPoolExecutor(workers, thread_name_prefix="nyala-load") as pool:
            try:
                for job in jobs:
                    running.append(_begun(pool, job))
                wait(running, return_when=FIRST_EXCEPTION)
            finally:  # also of Ctrl-C; leaving the pool waits for those that run
                for future in running:
                    future.cancel()
    finally:
        for future in running:
            if not future.cancelled() and future.exception() is None:
                written += future.result().paths
    for future in running:
        if not future.cancelled():
            future.result()  # raises what went wrong; a job is cancelled only where another failed
    return [future.result() for future in running]


def _begun(pool: ThreadPoolExecutor, job: Callable[[], WrittenRowSet]) -> Future[WrittenRowSet]:
    """Have a thread do it; or do it here, when there can be none: the main thread has ended, or the system refuses."""
    try:
        return pool.submit(job)
    except RuntimeError:
        done: Future[WrittenRowSet] = Future()
        try:
            done.set_result(job())
        except Exception as error:
            done.set_exception(error)
        return done


def _not_before(timestamp: int, count: int) -> DeltaRun:
    """UNDO of an insertion: before `timestamp` none of the rows was there."""
    return DeltaRun(
        kind="undo",
        rowids=np.arange(count, dtype=np.int64),
        timestamps=np.full(count, timestamp, np.int64),
        values=pa.array(np.zeros(count, np.bool_)),
    )


def _write_deltas(
    store: Store,
    settlement: Settlement,
    effect: Effect,
    timestamp: int,
    change: CatalogChange,
    changed: dict[int, TabletState],
    written: list[str],
) -> None:
    schema = settlement.table.schema
    key_ids = {column.id for column in schema.key_columns}
    order = np.lexsort((effect.rowids, effect.codes))
    codes, rowids = effect.codes[order], effect.rowids[order]
    if effect.kind == "delete":
        columns = {LIVENESS: pa.array(np.zeros(len(order), np.bool_))}
    else:
        columns = {
            number: array.take(pa.array(order))
            for number, array in effect.columns.items()
            if number not in key_ids
        }
    places, offsets = tablet_slices(codes)
    for place, begin, end in zip(places.tolist(), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        ordinal, located = settlement.rowsets[place]
        assert isinstance(located, DiskRowSet), "B2: what was in memory was flushed first"
        tablet = settlement.table.tablets[ordinal]
        state = changed.get(tablet.id, tablet)
        rowset = next(candidate for candidate in state.rowsets if candidate.id == located.id)
        assert not rowset.deltas.record_count and not rowset.frozen, "R4: its DeltaMemStore was flushed first"
        stamps = np.full(end - begin, timestamp, np.int64)
        entries = []
        # Each row is changed once (S1), so files of one timestamp may follow one another.
        for lower, upper in text_pieces(partial(most_text, columns), begin, end):
            runs = {
                number: DeltaRun(
                    kind="redo",
                    rowids=rowids[lower:upper],
                    timestamps=stamps[: upper - lower],
                    values=one_array(column.slice(lower, upper - lower)),
                )
                for number, column in columns.items()
            }
            number = store.allocate("delta")
            path = f"{store.tablet_directory(tablet.id)}/{number}.redo"
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
