"""Flush: MemRowSets become DiskRowSets and DeltaMemStores become REDO files, in rounds.

    freeze   (commit lock)   at moment F every chosen store is set aside and replaced by an empty
                             one, in a new root. A frozen MemRowSet still takes updates and deletes
                             of its rows; a frozen DeltaMemStore takes nothing.
    write    (no lock)       the log is synced through F (W2); images of the stores as of F are
                             written to files and synced
    install  (commit lock)   one transaction names the files and raises the durable marks (R2);
                             changes that a frozen MemRowSet got after F move to the new rowset by
                             row position; one new root

Invariants
    F1  inserts_durable of a tablet becomes F of the youngest MemRowSet in the round. Rounds of one
        tablet commit in the order of freezing (R2): a round takes every frozen MemRowSet that an
        earlier, failed round left.
    F2  A failed round changes nothing. The frozen stores stay readable and writable in the root,
        and the next round flushes them. The failed round, or the next open, removes its files (P3).
    F3  The log loses a segment only in the transaction after which nothing in it is needed (R3).
    F4  A store that an alteration or a failed round froze earlier counts as frozen at F of the
        round that takes it: it has got only changes since, and they are written with it. So
        freezing and installing under one hold of the lock leaves nothing in memory (R4, B2 of
        `direct_commit`).

Source: docs/design/compaction.md, "Files to files"; docs/design/rules.md, W2, R2 and R3;
docs/design/kudu.md, "Write path and flush".
Departure: with one root no DuplicatingRowSet is needed; changes after F are moved at the install,
under the lock.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nyala.catalog.model import CatalogChange, RowSetEntry
from nyala.delta.delta_file import WrittenDelta
from nyala.delta.mem_store import DeltaMemStore
from nyala.delta.run import LIVENESS, without_history
from nyala.env.interrupts import Uninterrupted
from nyala.env.overlapped import each
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.image import RowSetImage
from nyala.rowset.mem_rowset import MemRowSet
from nyala.rowset.writer import WrittenRowSet
from nyala.schema.schema import Schema
from nyala.tablet.flush.file_jobs import DeltaPiece, Piece, RowSetPiece, Writer, Written, write_pieces
from nyala.tablet.flush.rolling import roll
from nyala.tablet.state.history import note_cut
from nyala.tablet.state.opening import delta_entry
from nyala.tablet.state.root import TableState, TabletState

if TYPE_CHECKING:
    from nyala.tablet.store import Store

logger = logging.getLogger("nyala.flush")


Phase = Callable[[str], None]
"""Called with the name of each phase that begins."""


def no_phase(name: str) -> None:
    """A `Phase` that does nothing."""


@dataclass(frozen=True)
class FlushReport:
    """The output of a round; delta files include UNDO files. All zero if memory was empty."""

    rowsets: int = 0
    delta_files: int = 0
    rows: int = 0
    bytes: int = 0


@dataclass
class _FrozenTablet:
    """One tablet's part of a round: its frozen stores, and the files written for it."""

    table: TableState
    tablet_id: int
    memories: tuple[MemRowSet, ...]
    stores: dict[int, tuple[DeltaMemStore, ...]]  # by rowset id, oldest first
    cut: int = 0  # history before this timestamp was left out
    images: list[tuple[MemRowSet, RowSetImage, list[tuple[int, int]]]] = field(default_factory=list)
    deltas: list[tuple[int, int]] = field(default_factory=list)  # rowset, delta id
    new_rowsets: list[tuple[MemRowSet, RowSetImage, list[tuple[int, int, WrittenRowSet]]]] = field(
        default_factory=list
    )
    new_deltas: list[tuple[int, int, str, WrittenDelta]] = field(
        default_factory=list
    )  # rowset, delta id, path


def flush(
    store: Store,
    chosen: Collection[int] | None = None,
    *,
    phase: Phase = no_phase,
    write: Writer = write_pieces,
) -> FlushReport:
    """Flush the memory of these tablets (None: all). Any thread may call; rounds run one by one.

    write: writes the files; the background passes a writer that uses a worker process.
    phase: for tests: called as "frozen" and "written", with only the flush lock held.

    Raises: StorageError if a file cannot be written (F2) or the log cannot be synced.
    """
    with store.flush_lock:
        return _round(store, *_freeze(store, chosen), phase, write)


def flush_deltas(store: Store, rowset_ids: Collection[int]) -> int:
    """Flush the DeltaMemStores of these rowsets, reserved or not; returns the moment of freezing.

    On return their DeltaMemStores hold only newer changes. Called at the beginning of a compaction,
    with the flush lock held.
    Raises: as `flush`.
    """
    assert store.flush_lock.held(), "one round at a time"
    frozen, timestamp = _freeze_deltas(store, rowset_ids)
    _round(store, frozen, timestamp, no_phase, write_pieces)
    return timestamp


def _round(
    store: Store, frozen: list[_FrozenTablet], timestamp: int, phase: Phase, write: Writer
) -> FlushReport:
    if not frozen:
        store.trim_log()
        return FlushReport()
    store.log_sync_all()
    phase("frozen")
    written: list[str] = []
    try:
        each(store.env.files, store.tablet_directory, (part.tablet_id for part in frozen))
        pieces = [piece for part in frozen for piece in _pieces(store, part)]
        written += [path for piece in pieces for path in piece.paths]
        made = iter(write(store.env.files, store.root_path, pieces))
        left = iter(pieces)
        for part in frozen:
            _take_written(part, left, made)
        store.sync_directories(written)
        phase("written")
        return _install(store, frozen, timestamp)
    except BaseException:
        store.discard_files(written)
        raise


# ------------------------------------------------------------------------------------------------ freeze


def _freeze(store: Store, chosen: Collection[int] | None) -> tuple[list[_FrozenTablet], int]:
    with Uninterrupted(), store.commit_lock:
        store.check_writable()
        root, timestamp = store.root, store.marks.applied
        frozen: list[_FrozenTablet] = []
        changed: dict[int, TabletState] = {}
        for table, tablet in root.tablets():
            if chosen is not None and tablet.id not in chosen:
                continue
            state = freeze_tablet(store, table, tablet, timestamp)
            stores = {rowset.id: rowset.frozen for rowset in state.rowsets if rowset.frozen}
            if state.frozen or stores:
                frozen.append(_FrozenTablet(table, tablet.id, state.frozen, stores))
                changed[tablet.id] = state
        if changed:
            store.install(root.with_tablets(changed))
        return frozen, timestamp


def _freeze_deltas(store: Store, rowset_ids: Collection[int]) -> tuple[list[_FrozenTablet], int]:
    chosen = set(rowset_ids)
    with Uninterrupted(), store.commit_lock:
        store.check_writable()
        root, timestamp = store.root, store.marks.applied
        frozen: list[_FrozenTablet] = []
        changed: dict[int, TabletState] = {}
        for table, tablet in root.tablets():
            if not any(rowset.id in chosen for rowset in tablet.rowsets):
                continue
            rowsets = tuple(
                rowset.with_frozen_deltas() if rowset.id in chosen and rowset.deltas.record_count else rowset
                for rowset in tablet.rowsets
            )
            stores = {rowset.id: rowset.frozen for rowset in rowsets if rowset.id in chosen and rowset.frozen}
            if stores:
                frozen.append(_FrozenTablet(table, tablet.id, (), stores))
                changed[tablet.id] = dataclasses.replace(tablet, rowsets=rowsets)
        if changed:
            store.install(root.with_tablets(changed))
        return frozen, timestamp


def freeze_tablet(store: Store, table: TableState, tablet: TabletState, timestamp: int) -> TabletState:
    """The tablet with all of its memory frozen at `timestamp` and replaced by empty stores (F4)."""
    state = tablet
    for memory in tablet.frozen:
        memory.frozen_at = timestamp
    if tablet.memory.row_count:
        tablet.memory.frozen_at = timestamp
        state = dataclasses.replace(
            state, memory=store.new_memory(table), frozen=(*tablet.frozen, tablet.memory)
        )
    rowsets = tuple(
        rowset.with_frozen_deltas()
        if rowset.deltas.record_count and not store.reservations.holds_deltas(rowset.id)
        else rowset
        for rowset in tablet.rowsets
    )
    return state if rowsets == tablet.rowsets else dataclasses.replace(state, rowsets=rowsets)


def freeze_memory(store: Store, table: TableState) -> TableState:
    """Freeze the table's non-empty MemRowSets in a new root; returns the table in that root.

    Used by an alteration, under the commit lock, because later rows have other columns. The next
    round flushes the frozen rows.
    """
    timestamp = store.marks.applied
    changed: dict[int, TabletState] = {}
    for tablet in table.every_tablet:
        if tablet.memory.row_count:
            tablet.memory.frozen_at = timestamp
            frozen = (*tablet.frozen, tablet.memory)
            changed[tablet.id] = dataclasses.replace(tablet, memory=store.new_memory(table), frozen=frozen)
    store.install(store.root.with_tablets(changed))
    return store.root.tables[table.id]


# ------------------------------------------------------------------------------------------------ write


def _pieces(store: Store, part: _FrozenTablet) -> list[Piece]:
    """The pieces to write for a tablet; `_take_written` gets the results in the same order."""
    schema = part.table.stored_schema()
    cut = store.history_cut(part.table.entry)
    pieces: list[Piece] = []
    for memory in part.memories:
        assert memory.frozen_at is not None, "F1: only a frozen MemRowSet is flushed"
        image = memory.image(memory.frozen_at, schema)
        if any(run.timestamp_min <= cut for run in image.undo.values()):
            image, part.cut = image.without_history(cut), max(part.cut, cut)
        bounds = list(roll(image, schema, store.options.rowset_target_bytes))
        part.images.append((memory, image, bounds))
        for lower, upper in bounds:
            number = store.allocate("rowset")
            path = store.new_data_path(part.tablet_id, number, "base")
            piece = image.piece(lower, upper)
            pieces.append(RowSetPiece(path, number, part.tablet_id, schema, piece, memory.frozen_at))
    for rowset_id, stores in part.stores.items():
        for frozen in stores:
            runs = {number: run for number, run in frozen.runs().items() if _is_stored(schema, number)}
            if not runs:
                continue  # only columns that were dropped before the history begins
            if any(run.timestamp_min <= cut for run in runs.values()):
                runs, part.cut = without_history(runs, cut), max(part.cut, cut)
            number = store.allocate("delta")
            part.deltas.append((rowset_id, number))
            path = store.new_data_path(part.tablet_id, number, "redo")
            pieces.append(DeltaPiece(path, schema, runs))
    return pieces


def _take_written(part: _FrozenTablet, pieces: Iterator[Piece], written: Iterator[Written]) -> None:
    for memory, image, bounds in part.images:
        files = []
        for lower, upper in bounds:
            next(pieces)
            result = next(written)
            assert isinstance(result, WrittenRowSet), "results come in the order of the pieces"
            files.append((lower, upper, result))
        part.new_rowsets.append((memory, image, files))
    for rowset_id, number in part.deltas:
        piece, delta = next(pieces), next(written)
        assert isinstance(piece, DeltaPiece) and isinstance(delta, WrittenDelta), "the same order"
        part.new_deltas.append((rowset_id, number, piece.path, delta))


def _is_stored(schema: Schema, column_id: int) -> bool:
    return column_id == LIVENESS or schema.has_id(column_id)


# ------------------------------------------------------------------------------------------------ install


def _install(store: Store, frozen: list[_FrozenTablet], timestamp: int) -> FlushReport:
    with Uninterrupted(), store.commit_lock:
        store.check_writable()
        root = store.root
        change = CatalogChange(timestamp=store.clock.latest)
        changed: dict[int, TabletState] = {}
        rows = rowsets = size = 0
        for part in frozen:
            table = root.any_table(part.table.id)
            tablet = None if table is None else table.tablet(part.tablet_id)
            if table is None or tablet is None:
                # The table was purged meanwhile, so its files are not needed.
                store.discard_files(
                    [path for _, _, files in part.new_rowsets for _, _, f in files for path in f.paths]
                )
                store.discard_files([path for _, _, path, _ in part.new_deltas])
                continue
            state = _installed_tablet(store, table, tablet, part, timestamp, change)
            changed[part.tablet_id] = state
            new = [result for _, _, files in part.new_rowsets for _, _, result in files]
            rows += sum(result.meta.row_count for result in new)
            size += sum(result.meta.size_bytes for result in new)
            rowsets += len(new)
        size += sum(entry.size_bytes for entry in change.put_deltas)
        after = root.with_tablets(changed)
        for part in frozen:
            if part.tablet_id in changed:
                after = note_cut(change, after, part.table.id, part.cut)
        store.transact(change, lambda version: after.with_tablets({}, version), forget_log=True)
    logger.info(
        "flushed %d rows into %d rowsets and %d delta files",
        rows,
        rowsets,
        len(change.put_deltas),
    )
    return FlushReport(rowsets, len(change.put_deltas), rows, size)


def _installed_tablet(
    store: Store,
    table: TableState,
    tablet: TabletState,
    part: _FrozenTablet,
    timestamp: int,
    change: CatalogChange,
) -> TabletState:
    rowsets: list[DiskRowSet] = []
    new_files: dict[int, list[tuple[int, str, WrittenDelta]]] = {}
    for rowset_id, number, path, written in part.new_deltas:
        new_files.setdefault(rowset_id, []).append((number, path, written))
    for rowset in tablet.rowsets:
        if rowset.id not in part.stores:
            rowsets.append(rowset)
            continue
        files = new_files.get(rowset.id, [])
        entries = [delta_entry(number, rowset.id, path, written) for number, path, written in files]
        change.put_deltas.extend(entries)
        fresh = rowset.with_flushed_deltas(
            [store.open_delta(entry) for entry in entries], deltas_durable=timestamp
        )
        change.put_rowsets.append(RowSetEntry.from_meta(fresh.meta))
        rowsets.append(fresh)
    for memory, image, pieces in part.new_rowsets:
        late = memory.deltas.batches_after(memory.frozen_at or 0)
        for lower, upper, result in pieces:
            fresh, entries = store.adopt_rowset(result, table.schema)
            change.put_rowsets.append(RowSetEntry.from_meta(fresh.meta))
            change.put_deltas.extend(entries)
            for batch in late:
                places = image.positions[batch.rowids]
                inside = np.flatnonzero((places >= lower) & (places < upper))
                if len(inside):
                    order = inside[np.argsort(places[inside], kind="stable")]
                    fresh.deltas.append(
                        places[order] - lower,
                        batch.timestamps[order],
                        {number: array.take(pa.array(order)) for number, array in batch.columns.items()},
                    )
            rowsets.append(fresh)
    flushed = set(map(id, part.memories))
    marks = [memory.frozen_at or 0 for memory in part.memories]
    entry = tablet.entry
    if marks:
        durable = max(entry.inserts_durable, *marks)
        entry = dataclasses.replace(entry, inserts_durable=durable, auto_id=tablet.ids.last)
        change.put_tablets.append(entry)
    return dataclasses.replace(
        tablet,
        entry=entry,
        frozen=tuple(memory for memory in tablet.frozen if id(memory) not in flushed),
        rowsets=tuple(rowsets),
    )
