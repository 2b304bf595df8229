"""Commits a batch that is too large for the log: writes files, then one catalogue transaction (W6).

    under the commit lock throughout (other writers wait; scans do not)
      flush the memory of the touched tablets            now every live row is on disk
      settle again                                       against the rows' new positions
      timestamp t; inserts -> DiskRowSets with UNDO "absent before t"
                   updates and deletes -> REDO files of the rowsets that hold the rows
      sync, one catalogue transaction, one new root

Rowsets are written by one thread per core; the thread that holds the lock does everything else.

Invariants
    B1  The catalogue transaction is the batch's only commit point. Before it nothing of the batch
        is visible, and the next open removes files left by a crash (W6, P3).
    B2  The touched rowsets have nothing in memory when their REDO file is added (R4). A rowset that
        is committed here has deltas_durable = t, while `inserts_durable` of its tablet stays (R2).

Simplification: the lock is held while files are written, so other writers wait for the whole load,
also for a large Spark job whose staged rows are written here. To avoid that, files would have to be
written before the lock is taken, with a check under the lock that no key has moved.
Source: docs/design/writes-and-batches.md, "Batches above 64 MB are written as files";
docs/design/rules.md, W6, R2 and R4.
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
from nyala.tablet.flush.rolling import roll, text_ranges
from nyala.tablet.state.idempotency import encode_counts
from nyala.tablet.state.locate import tablet_slices
from nyala.tablet.state.opening import delta_entry
from nyala.tablet.state.root import TabletState
from nyala.tablet.write.settle import Effect, Settlement, row_counts, settle

if TYPE_CHECKING:
    from nyala.tablet.store import Store


def commit_directly(store: Store, settlements: Sequence[Settlement], idempotency_key: str | None) -> int:
    """Write settled effects as files and commit them; returns the timestamp. Under the commit lock.

    Raises: StorageError if a file cannot be written; nothing of the batch is committed then.
    """
    touched = {
        settlement.table.tablets[ordinal].id
        for settlement in settlements
        for effect in settlement.effects
        for ordinal in tablet_slices(effect.tablets)[0].tolist()
    }
    # A running merge has not read the changes of these rowsets, and must not keep their deltas in
    # memory (R4), so it is revoked. A delta compaction goes on: it leaves room for REDO files after
    # those it has read. A load of new rows changes no rowset. Otherwise no compaction could finish
    # beside a stream of loads.
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
            CommittedKey(idempotency_key, timestamp, encode_counts(row_counts(settlements)))
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
    """Write one table's settled batch as files at `timestamp`. Changed rows must be on disk (B2).

    Adds entries to `change`, tablets with new rowsets to `changed`, and paths to `written`.
    """
    for effect in settlement.effects:
        if effect.kind == "insert":
            _write_inserts(store, settlement, effect, timestamp, change, changed, written)
        else:
            _write_deltas(store, settlement, effect, timestamp, change, changed, written)


def _changed_rowsets(settlements: Sequence[Settlement]) -> Iterator[DiskRowSet]:
    """The rowsets on disk that have updated or deleted rows."""
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
    states: list[TabletState] = []
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
                    _write_part, store, directory, store.allocate("rowset"), tablet.id, image, lower, upper,
                    table.schema, timestamp,
                )
            )  # fmt: skip
            states.append(state)
    for state, result in zip(states, in_threads(jobs, written), strict=True):
        rowset, entries = store.adopt_rowset(result, table.schema)
        change.put_rowsets.append(RowSetEntry.from_meta(rowset.meta))
        change.put_deltas.extend(entries)
        before = changed.get(state.id, state)
        changed[state.id] = dataclasses.replace(before, rowsets=(*before.rowsets, rowset))


def _write_part(
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
    """Write the rows [lower, upper) of the inserted rows as a rowset."""
    part = dataclasses.replace(
        image.piece(lower, upper), undo={LIVENESS: _absent_before(timestamp, upper - lower)}
    )
    return write_rowset(
        store.env.files, store.root_path, directory, rowset_id, tablet_id, part, schema, deltas_durable=timestamp
    )  # fmt: skip


def in_threads(jobs: Sequence[Callable[[], WrittenRowSet]], written: list[str]) -> list[WrittenRowSet]:
    """Write rowsets in one thread per core: encoding, compressing and writing release the GIL.

    Returns: the results in order. Paths of completed files are added to `written`.
    Raises:  the error of the first failed job, after all running jobs have ended. Later jobs may
             have run.
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
            finally:  # also after Ctrl-C; leaving the pool waits for running jobs
                for future in running:
                    future.cancel()
    finally:
        for future in running:
            if not future.cancelled() and future.exception() is None:
                written += future.result().paths
    for future in running:
        if not future.cancelled():
            future.result()  # raises the error; jobs are cancelled only after another has failed
    return [future.result() for future in running]


def _begun(pool: ThreadPoolExecutor, job: Callable[[], WrittenRowSet]) -> Future[WrittenRowSet]:
    """Run the job in a thread; run it here if no thread can be started (process end, limits)."""
    try:
        return pool.submit(job)
    except RuntimeError:
        done: Future[WrittenRowSet] = Future()
        try:
            done.set_result(job())
        except Exception as error:
            done.set_exception(error)
        return done


def _absent_before(timestamp: int, count: int) -> DeltaRun:
    """The UNDO of an insertion: before `timestamp` the rows are dead."""
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
        assert isinstance(located, DiskRowSet), "B2: rows in memory were flushed first"
        tablet = settlement.table.tablets[ordinal]
        state = changed.get(tablet.id, tablet)
        rowset = next(candidate for candidate in state.rowsets if candidate.id == located.id)
        assert not rowset.deltas.record_count and not rowset.frozen, "R4: the DeltaMemStore was flushed first"
        stamps = np.full(end - begin, timestamp, np.int64)
        entries = []
        # Each row changes once (S1), so several files may have the same timestamp.
        for lower, upper in text_ranges(partial(most_text, columns), begin, end):
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
