"""Flush: writes MemRowSets as DiskRowSets and DeltaMemStores as REDO files, in rounds.

A round has three steps. F is the timestamp of its first step, which freezes memory.

    freeze   (commit lock)   Make a new root, in which the chosen tablets have a new empty MemRowSet
                             and new empty DeltaMemStores. The former ones are now frozen. A frozen
                             MemRowSet still takes updates and deletes of its rows; a frozen
                             DeltaMemStore does not change any more.
    write    (no lock)       Sync the log up to F (rule W2). Write the frozen memory as of F to
                             files, and sync the files.
    install  (commit lock)   Commit one catalogue change that names the files and says up to which
                             timestamps all rows are in files (rule R2). Move changes that a frozen
                             MemRowSet got after F to the new rowset by row position. Install a new
                             root.

Invariants
    F1  A tablet's `inserts_durable` says up to which timestamp all its inserts are in files. A
        round raises it to the timestamp at which the youngest MemRowSet that it writes was frozen.
        Older MemRowSets may have inserts up to this timestamp, if an earlier round failed and left
        them frozen. So the round writes these MemRowSets too. Rounds of one tablet commit in the
        order of freezing (rule R2).
    F2  A failed round changes nothing. The frozen MemRowSets and DeltaMemStores stay in the root,
        and the next round flushes them. The failed round, or the next open, removes its files.
    F3  A segment of the log is removed only by a catalogue change after which nothing in the
        segment is needed (rule R3).
    F4  An alteration of the table or a failed round may leave a frozen MemRowSet, which then gets
        more changes. The next round freezes it again, with the F of that round, and so writes these
        changes too. If a round holds the commit lock in all three steps, no change comes after F.
        Then nothing is left in memory. `direct_commit` relies on this.

Source: docs/design/compaction.md, "Files to files"; docs/design/rules.md, W2, R2 and R3;
docs/design/kudu.md, "Write path and flush". Unlike Kudu, there is no DuplicatingRowSet: the install
moves the changes after F.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nyala.catalog.model import CatalogChange, DeltaEntry, RowSetEntry
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
    """Do nothing: the default of parameters with the name `phase`.

    A function with this parameter calls it with the name of each step that begins, for example
    `phase("frozen")`. Only tests pass another function.
    """


@dataclass(frozen=True)
class FlushReport:
    """What a flush wrote. All numbers are 0 if memory was empty.

    delta_files: REDO and UNDO files.
    """

    rowsets: int = 0
    delta_files: int = 0
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class _NewRowSet:
    """A rowset to be written. It gets the rows [lower, upper) of `image`.

    memory: the frozen MemRowSet that has the rows.
    image:  all rows of `memory`, in key order.
    """

    memory: MemRowSet
    image: RowSetImage
    lower: int
    upper: int


@dataclass(frozen=True)
class _NewDelta:
    """A REDO file to be written at `path`, with id `number`, for the rowset `rowset_id`."""

    rowset_id: int
    number: int
    path: str


@dataclass
class _FrozenTablet:
    """One tablet in a flush: the memory that the flush writes, and the files for it.

    The memory is *frozen*: new rows go to another MemRowSet.

    memories: the frozen MemRowSets.
    stores:   by rowset id, its frozen DeltaMemStores, oldest first.
    cut:      history before this timestamp is not written; 0: all history is written.
    targets:  for each rowset or REDO file to be written: its source in memory.
    pieces:   for each target: its path and content, which `write_pieces` gets.
    written:  for each target: the description of the written files.
    """

    table: TableState
    tablet_id: int
    memories: tuple[MemRowSet, ...]
    stores: dict[int, tuple[DeltaMemStore, ...]]
    cut: int = 0
    targets: list[_NewRowSet | _NewDelta] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)

    @property
    def paths(self) -> list[str]:
        """The paths of all files that the flush may create for this tablet."""
        return [path for piece in self.pieces for path in piece.paths]


def flush(
    store: Store,
    chosen: Collection[int] | None = None,
    *,
    phase: Phase = no_phase,
    write: Writer = write_pieces,
) -> FlushReport:
    """Flush the memory of tablets, and return what was written. Thread-safe.

    chosen: the ids of the tablets; None: all.
    write: writes the files; background flushes pass a writer that uses a worker process.
    phase: for tests: called with "frozen" and "written", when only the flush lock is held.
    Raises: StorageError if a file cannot be written or the log cannot be synced. The rows then stay
            in memory.
    """
    with store.flush_lock:
        return _round(store, *_freeze(store, chosen), phase, write)


def flush_deltas(store: Store, rowset_ids: Collection[int]) -> int:
    """Flush the DeltaMemStores of these rowsets, also of reserved rowsets. Return a timestamp F.

    A compaction calls it at its beginning. Afterwards these DeltaMemStores have only changes after
    F. Requires the flush lock. Raises: the errors of `flush`.
    """
    assert store.flush_lock.held(), "one round at a time"
    frozen, timestamp = _freeze(store, rowset_ids=set(rowset_ids))
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
    try:
        each(store.env.files, store.tablet_directory, (part.tablet_id for part in frozen))
        for part in frozen:
            _add_pieces(store, part)
        pieces = [piece for part in frozen for piece in part.pieces]
        results = iter(write(store.env.files, store.root_path, pieces))
        for part in frozen:
            part.written = [next(results) for _ in part.targets]
        store.sync_directories([path for part in frozen for path in part.paths])
        phase("written")
        return _install(store, frozen, timestamp)
    except BaseException:
        store.discard_files([path for part in frozen for path in part.paths])
        raise


# ── freeze


def _freeze(
    store: Store, chosen: Collection[int] | None = None, rowset_ids: Collection[int] | None = None
) -> tuple[list[_FrozenTablet], int]:
    """Begin a flush: give the tablets new, empty memory, and return their former memory.

    The former memory is *frozen*: it takes no more inserts, and the flush writes it to files. Also
    returns the timestamp of this step.

    chosen:     the ids of the tablets to freeze; None: all.
    rowset_ids: freeze only the DeltaMemStores of these rowsets instead.
    """
    with Uninterrupted(), store.commit_lock:
        store.check_writable()
        root, timestamp = store.root, store.marks.applied
        frozen: list[_FrozenTablet] = []
        changed: dict[int, TabletState] = {}
        for table, tablet in root.tablets():
            if rowset_ids is not None:
                state = _with_frozen_deltas(tablet, rowset_ids.__contains__)
            elif chosen is None or tablet.id in chosen:
                state = _freeze_tablet(store, table, tablet, timestamp)
            else:
                continue
            stores = {
                rowset.id: rowset.frozen
                for rowset in state.rowsets
                if rowset.frozen and (rowset_ids is None or rowset.id in rowset_ids)
            }
            memories = state.frozen if rowset_ids is None else ()
            if memories or stores:
                frozen.append(_FrozenTablet(table, tablet.id, memories, stores))
                changed[tablet.id] = state
        if changed:
            store.install(root.with_tablets(changed))
        return frozen, timestamp


def _freeze_tablet(store: Store, table: TableState, tablet: TabletState, timestamp: int) -> TabletState:
    """Return the tablet with new, empty memory, and its former memory marked for the flush.

    The former MemRowSet takes no more inserts, and former DeltaMemStores take no more changes
    (they are *frozen*). DeltaMemStores that a running merge keeps in memory are not frozen.

    timestamp: the newest timestamp of all applied batches.
    """
    for memory in tablet.frozen:
        memory.frozen_at = timestamp
    state = _with_new_memory(store, table, tablet, timestamp)
    return _with_frozen_deltas(state, lambda rowset_id: not store.reservations.holds_deltas(rowset_id))


def _with_new_memory(store: Store, table: TableState, tablet: TabletState, timestamp: int) -> TabletState:
    """Return the tablet with its MemRowSet frozen, and a new MemRowSet.

    Returns the same tablet if its MemRowSet has no rows.
    """
    if not tablet.memory.row_count:
        return tablet
    tablet.memory.frozen_at = timestamp
    frozen = (*tablet.frozen, tablet.memory)
    return dataclasses.replace(tablet, memory=store.new_memory(table), frozen=frozen)


def _with_frozen_deltas(tablet: TabletState, is_chosen: Callable[[int], bool]) -> TabletState:
    """Return the tablet after freezing the chosen DeltaMemStores that have changes.

    A frozen DeltaMemStore waits for the flush. A new, empty one takes the next changes. Empty
    DeltaMemStores stay as they are.

    is_chosen: whether to freeze the DeltaMemStore of the rowset with this id.
    """
    rowsets = tuple(
        rowset.with_frozen_deltas() if rowset.deltas.record_count and is_chosen(rowset.id) else rowset
        for rowset in tablet.rowsets
    )
    return tablet if rowsets == tablet.rowsets else dataclasses.replace(tablet, rowsets=rowsets)


def freeze_memory(store: Store, table: TableState) -> TableState:
    """Freeze the table's non-empty MemRowSets in a new root. Return the table in that root.

    An alteration calls it under the commit lock, because later rows have other columns. The next
    flush writes the frozen rows.
    """
    timestamp = store.marks.applied
    changed = {tablet.id: _with_new_memory(store, table, tablet, timestamp) for tablet in table.every_tablet}
    store.install(store.root.with_tablets(changed))
    return store.root.tables[table.id]


# ── write


def _add_pieces(store: Store, part: _FrozenTablet) -> None:
    """Decide which files a flush writes for one tablet, and add them to `part`.

    For each file, `part.targets` gets the frozen memory that the flush writes to it. `part.pieces`
    gets the path and the content of the file. If history that no readable moment needs is left out,
    `part.cut` becomes the timestamp before which it is left out.
    """
    schema = part.table.stored_schema()
    cut = store.history_cut(part.table.entry)
    for memory in part.memories:
        assert memory.frozen_at is not None, "F1: only a frozen MemRowSet is flushed"
        image = memory.image(memory.frozen_at, schema)
        if any(run.timestamp_min <= cut for run in image.undo.values()):
            image, part.cut = image.without_history(cut), max(part.cut, cut)
        for lower, upper in roll(image, schema, store.options.rowset_target_bytes):
            number = store.allocate("rowset")
            path = store.new_data_path(part.tablet_id, number, "base")
            part.targets.append(_NewRowSet(memory, image, lower, upper))
            piece = image.piece(lower, upper)
            part.pieces.append(RowSetPiece(path, number, part.tablet_id, schema, piece, memory.frozen_at))
    for rowset_id, stores in part.stores.items():
        for frozen in stores:
            runs = {number: run for number, run in frozen.runs().items() if _is_stored(schema, number)}
            if not runs:
                continue  # only columns that were dropped before the history begins
            if any(run.timestamp_min <= cut for run in runs.values()):
                runs, part.cut = without_history(runs, cut), max(part.cut, cut)
            number = store.allocate("delta")
            path = store.new_data_path(part.tablet_id, number, "redo")
            part.targets.append(_NewDelta(rowset_id, number, path))
            part.pieces.append(DeltaPiece(path, schema, runs))


def _is_stored(schema: Schema, column_id: int) -> bool:
    return column_id == LIVENESS or schema.has_id(column_id)


# ── install


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
            if table is None or tablet is None:  # the table was purged meanwhile
                store.discard_files(part.paths)
                continue
            changed[part.tablet_id] = _installed_tablet(store, table, tablet, part, timestamp, change)
            new = [result.meta for result in part.written if isinstance(result, WrittenRowSet)]
            rows += sum(meta.row_count for meta in new)
            size += sum(meta.size_bytes for meta in new)
            rowsets += len(new)
        size += sum(entry.size_bytes for entry in change.put_deltas)
        after = root.with_tablets(changed)
        for part in frozen:
            if part.tablet_id in changed:
                after = note_cut(change, after, part.table.id, part.cut)
        store.transact(change, after.at_version, forget_log=True)
    deltas = len(change.put_deltas)
    logger.info("flushed %d rows into %d rowsets and %d delta files", rows, rowsets, deltas)
    return FlushReport(rowsets, deltas, rows, size)


def _installed_tablet(
    store: Store,
    table: TableState,
    tablet: TabletState,
    part: _FrozenTablet,
    timestamp: int,
    change: CatalogChange,
) -> TabletState:
    """Return the tablet with the files of a flush in place of the memory that the flush wrote.

    part:      what the flush wrote of this tablet.
    timestamp: the moment of the flush; the files have all changes of that memory up to it.
    change:    gets the catalogue entries of the files.
    """
    made: list[DiskRowSet] = []
    redo = {rowset_id: list[DeltaEntry]() for rowset_id in part.stores}
    for target, result in zip(part.targets, part.written, strict=True):
        if isinstance(target, _NewDelta):
            assert isinstance(result, WrittenDelta), "results are in the order of the targets"
            redo[target.rowset_id].append(delta_entry(target.number, target.rowset_id, target.path, result))
        else:
            assert isinstance(result, WrittenRowSet), "results are in the order of the targets"
            made.append(_adopted(store, table, target, result, change))
    rowsets: list[DiskRowSet] = []
    for rowset in tablet.rowsets:
        entries = redo.get(rowset.id)
        if entries is not None:
            change.put_deltas.extend(entries)
            rowset = rowset.with_flushed_deltas(
                list(map(store.open_delta, entries)), deltas_durable=timestamp
            )
            change.put_rowsets.append(RowSetEntry.from_meta(rowset.meta))
        rowsets.append(rowset)
    entry = tablet.entry
    if part.memories:
        marks = [memory.frozen_at or 0 for memory in part.memories]
        durable = max(entry.inserts_durable, *marks)
        entry = dataclasses.replace(entry, inserts_durable=durable, auto_id=tablet.ids.last)
        change.put_tablets.append(entry)
    return dataclasses.replace(
        tablet,
        entry=entry,
        frozen=tuple(memory for memory in tablet.frozen if memory not in part.memories),
        rowsets=(*rowsets, *made),
    )


def _adopted(
    store: Store, table: TableState, target: _NewRowSet, result: WrittenRowSet, change: CatalogChange
) -> DiskRowSet:
    """Open the rowset that a flush wrote, add the newest changes to it, and return it.

    During the flush, the former MemRowSet took no inserts, but updates and deletes of its rows.
    These changes go to the DeltaMemStore of the new rowset.

    change: gets the catalogue entries of the rowset and of its delta files.
    """
    fresh, entries = store.adopt_rowset(result, table.schema)
    change.put_rowsets.append(RowSetEntry.from_meta(fresh.meta))
    change.put_deltas.extend(entries)
    for batch in target.memory.deltas.batches_after(target.memory.frozen_at or 0):
        places = target.image.positions[batch.rowids]
        inside = np.flatnonzero((places >= target.lower) & (places < target.upper))
        if len(inside):
            order = inside[np.argsort(places[inside], kind="stable")]
            fresh.deltas.append(
                places[order] - target.lower,
                batch.timestamps[order],
                {number: array.take(pa.array(order)) for number, array in batch.columns.items()},
            )
    return fresh
