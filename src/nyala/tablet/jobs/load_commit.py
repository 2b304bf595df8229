"""The commit of a load: the files of all tasks become part of their tablets, in one catalogue transaction (W6).

    under the flush lock and the commit lock (other writers wait; scans do not)
      flush what the tablets have in memory        so that every live row has a place on disk (R4)
      changed      keys that changed in (S, now]   of the tablets of the job, by the change feed
      moved        staged rows of such keys, of idle ones those that would do something now, and staged changes of
                   rowsets that are gone
        none       nearly always: the staged files are as good as they were
        some       their rows are taken out of the staged files, which are written again without them,
                   and settled anew, as the rows of any write are
      t            the batch's one timestamp; in the catalogue it is that of every record of the staged files
      link the files into the tablets' folders, sync, one transaction, one new root

Invariants
    M1  What the batch does to a key is what it would do had it been written at t as a whole: keys that did not change
        since S were settled against the state at t, for that is the state at S; the others are settled now. But rows
        that failed as of S are not asked again: they failed, whatever came of their keys since.
    M2  Before the transaction nothing of the batch can be seen, and all of it can be sent again: staged files keep
        their names until the job's end. Those that were linked and never named are removed by the next open (P3);
        staged ones with their folder.
    M3  The key is in that transaction, also where nothing else is: sent again, a job that changed nothing would do what
        it did not, for others have written since.

Cost: of the staged files are read, before the locks are taken, what `load_check` compares, and under them the bloom
filters and key indexes that the changed keys are looked up in.
Source: docs/design/loads-and-jobs.md, "Executors write the files of a large load"; docs/design/rules.md, W6, R2 and
R4.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from nyala.catalog.model import CatalogChange, CommittedKey, RowSetEntry
from nyala.delta.delta_file import DeltaFile, write_delta_file
from nyala.delta.run import MAX_TIMESTAMP, DeltaRun
from nyala.env.interrupts import Uninterrupted
from nyala.errors import HistoryExpiredError, SchemaError, TableNotFoundError
from nyala.keys.encoded_keys import EncodedKeys
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.writer import WrittenRowSet, write_rowset
from nyala.tablet.changes.feed import change_batches
from nyala.tablet.changes.spec import make_change_spec
from nyala.tablet.flush.file_jobs import delta_types
from nyala.tablet.flush.lifecycle import flush
from nyala.tablet.jobs.load_check import check_staged, gone, open_staged
from nyala.tablet.jobs.load_job import StagedDelta, StagedTablet
from nyala.tablet.jobs.load_write import UNKNOWN
from nyala.tablet.state.entries import RowSetFiles
from nyala.tablet.state.history import check_readable
from nyala.tablet.state.idempotency import encode_told
from nyala.tablet.state.leased_files import kept_by_lease
from nyala.tablet.state.locate import ABSENT, locate
from nyala.tablet.state.opening import delta_entry
from nyala.tablet.state.result import WriteResult
from nyala.tablet.state.root import TableState, TabletState
from nyala.tablet.state.validation import checked
from nyala.tablet.write.direct_commit import write_effects
from nyala.tablet.write.prepare import OPERATION_NAMES, prepare
from nyala.tablet.write.settle import Settlement, told_of
from nyala.tablet.write.write_path import Request, committed_before, results_of, settle_requests, told_again

if TYPE_CHECKING:
    from nyala.tablet.store import Store

__all__ = ["LoadCommit", "commit_load"]


@dataclass(frozen=True)
class LoadCommit:
    """What the driver of a load asks for.

    key:      of the staging folder, and idempotency key.
    snapshot: S of the plan. schema_version, tablets: as the plan had them and the tasks staged them.
    columns:  those that the rows had; others keep their values, or take their defaults in new rows.
    gone:     the rowsets as of S that staged deltas are for, to find the keys of rows whose rowset is gone.
    """

    key: str
    table_id: int
    schema_version: int
    snapshot: int
    operation: str
    columns: tuple[str, ...]
    tablets: tuple[StagedTablet, ...]
    files: Mapping[int, RowSetFiles]
    collect: bool

    def to_json(self) -> dict[str, Any]:
        return {
            **{f.name: getattr(self, f.name) for f in dataclasses.fields(self)},
            "columns": list(self.columns),
            "tablets": [tablet.to_json() for tablet in self.tablets],
            "files": {str(number): files.to_json() for number, files in self.files.items()},
        }

    @staticmethod
    def from_json(fields: dict[str, Any]) -> LoadCommit:
        """Raises: ValueError, TypeError, LookupError, AttributeError for what `to_json` has not made."""
        job = checked(
            LoadCommit(
                **{
                    **fields,
                    "columns": tuple(fields["columns"]),
                    "tablets": tuple(map(StagedTablet.from_json, fields["tablets"])),
                    "files": {int(n): RowSetFiles.from_json(files) for n, files in fields["files"].items()},
                }
            )
        )
        if job.operation not in OPERATION_NAMES or not all(isinstance(name, str) for name in job.columns):
            raise ValueError(f"{job.operation!r} of columns {job.columns}")
        ids = [tablet.tablet_id for tablet in job.tablets]
        changed = [made.rowset_id for tablet in job.tablets for made in tablet.deltas]
        if len(set(ids)) < len(ids) or len(set(changed)) < len(changed):
            raise ValueError(f"tablets {ids} and changes of rowsets {changed}, expected each once")
        if any(number not in job.files for number in changed):
            raise ValueError(f"changes of rowsets {changed}, files of rowsets {sorted(job.files)}")
        return job


@dataclass
class _Part:
    """One tablet's staged files, as they will be committed, and the rows that are settled anew."""

    tablet: TabletState
    rowsets: list[WrittenRowSet]
    deltas: list[StagedDelta]
    moved: list[pa.Table] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


def commit_load(store: Store, job: LoadCommit) -> WriteResult:
    """Commit a job under its key; a second time it answers as the first one. In the lock holder.

    Raises: TableNotFoundError, SchemaError when the table was changed while the job ran; WriteError when rows that were
            good at S fail now, and not `job.collect`; HistoryExpiredError when the job's lease ended, and files that it
            needs went; as `check_staged`; StorageError, CorruptionError. Then nothing was changed.
    """
    store.check_writable()
    if (earlier := committed_before(store, job.key)) is not None:
        return earlier
    check_staged(store, job, _table(store, job))
    ids = {tablet.tablet_id for tablet in job.tablets}
    flush(store, ids)  # most of it before others have to wait
    written: list[str] = []
    with store.flush_lock, Uninterrupted(), store.commit_lock:
        store.check_writable()
        if (known := store.committed(job.key)) is not None:
            return told_again(known)
        table = _table(store, job)
        held = [made.rowset_id for tablet in job.tablets for made in tablet.deltas]
        try:
            while True:
                store.reservations.revoke(filter(store.reservations.holds_deltas, held))
                flush(store, ids)  # leaves nothing in memory: F4
                table = _table(store, job)
                parts = [_part(store, job, table, staged, written) for staged in job.tablets]
                moved = [rows for part in parts for rows in part.moved]
                # Rows that are settled anew may be changes of any rowset: none may be in a merge that has read it (R4).
                rowsets = [rowset.id for part in parts for rowset in part.tablet.rowsets]
                held = list(filter(store.reservations.holds_deltas, rowsets))
                if not moved or not held:
                    break
                store.discard_files(written)
                written.clear()
            settlements: list[tuple[Settlement, list[int]]] = []
            name, _, ignore = job.operation.partition("-")
            request = Request(table.name, name, pa.concat_tables(moved) if moved else None, bool(ignore))
            if moved:
                prepared = prepare(table, name, request.data, ignore=request.ignore)
                settlements = settle_requests(store, [request], [(table, prepared)], collect=job.collect)
            told = told_of([settlement for settlement, _ in settlements])
            for part in parts:
                for what, count in part.counts.items():
                    told[what] += count
            timestamp = _commit(store, job, table, parts, [s for s, _ in settlements], told, written)
        except BaseException:
            store.discard_files(written)
            raise
    again = results_of([request], settlements, timestamp)[0] if settlements else WriteResult(timestamp)
    return WriteResult(
        timestamp, told["inserted"], told["updated"], told["deleted"], told["ignored"], again.errors
    )


def _table(store: Store, job: LoadCommit) -> TableState:
    table = store.root.tables.get(job.table_id)
    if table is None:
        raise TableNotFoundError("the table was dropped while the job ran; nothing was written")
    if table.schema.version != job.schema_version:
        raise SchemaError(
            f"table {table.name!r} was altered while the job ran, and nothing was written: run the job again"
        )
    lost = {tablet.tablet_id for tablet in job.tablets} - table.ordinal_of.keys()
    if lost:
        rewritten = table.entry.rewritten > job.snapshot
        what = (
            f"table {table.name!r} was repartitioned"
            if rewritten
            else f"range partitions of table {table.name!r} were dropped"
        )
        raise SchemaError(f"{what} while the job ran, and nothing was written: run the job again")
    return table


# ------------------------------------------------------------------------------------------------ what moved since S


def _part(
    store: Store, job: LoadCommit, table: TableState, staged: StagedTablet, written: list[str]
) -> _Part:
    """A tablet's staged files without the rows of keys that have moved since S."""
    tablet = table.tablets[table.ordinal_of[staged.tablet_id]]
    part = _Part(tablet, [], [], counts=dict(staged.counts))
    changed = _changed_keys(table, tablet, job.snapshot, store.marks.applied)
    there = {rowset.id for rowset in tablet.rowsets}
    for made in staged.rowsets:
        unchanged = changed is not None and not len(changed)
        kept = made if unchanged else _without(store, job, table, made, changed, part, written)
        if kept is not None:
            part.rowsets.append(kept)
    for delta in staged.deltas:
        gone = delta.rowset_id not in there
        unchanged = not gone and changed is not None and not len(changed)
        # The files of a rowset that was merged away since have nothing but the job's lease.
        with kept_by_lease(f"the load into table {table.name!r}", "nothing was written: run the job again"):
            left = delta if unchanged else _delta_without(
                store, job, table, delta, None if gone else changed, part, written
            )  # fmt: skip
        if left is not None:
            part.deltas.append(left)
    if changed is None or len(changed):
        for made in staged.idle:
            _wake(store, job, table, made, changed, part)
    return part


def _changed_keys(table: TableState, tablet: TabletState, since: int, until: int) -> EncodedKeys | None:
    """The tablet's keys that changed in (since, until], ascending; None where that is not known any more, as what is
    older than the table's history was thrown away: any may have."""
    try:
        check_readable(table.entry, since, 0, 0)  # under the lock what counts is what is gone
    except HistoryExpiredError:
        return None
    alone = dataclasses.replace(table, tablets=(tablet,))
    spec = make_change_spec(table, since, until, "all", table.schema.key_columns)
    count = table.schema.key_count
    # All versions, not the net: a row that was deleted and came again has another place.
    keys = [
        table.codec.encode(batch.columns[:count]) for batch in change_batches(alone, spec) if batch.num_rows
    ]
    if not keys:
        return table.codec.empty()
    found = EncodedKeys.concat(keys)
    found = found.take(found.sort_indices())
    return found.take(np.flatnonzero(np.append(True, ~found.equal_neighbours())))


def _without(
    store: Store,
    job: LoadCommit,
    table: TableState,
    made: WrittenRowSet,
    changed: EncodedKeys | None,
    part: _Part,
    written: list[str],
) -> WrittenRowSet | None:
    """The staged rowset without rows of changed keys, which go to `part.moved`, changed None: all go; None: no row is
    left."""
    rowset = open_staged(store, table, made)
    try:
        rowids = _rows_of(rowset, changed)
        if not len(rowids):
            return made
        _note_moved(table, job, rowset, rowids, {}, part, "inserted")
        kept = np.setdiff1d(np.arange(rowset.row_count), rowids, assume_unique=True)
        if not len(kept):
            return None
        image = rowset.image(table.schema, 0, rowset.row_count, 0)
        name = f"{os.path.basename(made.meta.path).removesuffix('.base')}-again"
        again = write_rowset(
            store.env.files, store.root_path, store.tablet_directory(part.tablet.id), 0, part.tablet.id,
            image._only(kept), table.schema, deltas_durable=UNKNOWN, name=f"{job.key[-8:]}-{name}",
        )  # fmt: skip
        written += again.paths
        return again
    finally:
        rowset.close()


def _wake(
    store: Store,
    job: LoadCommit,
    table: TableState,
    made: WrittenRowSet,
    changed: EncodedKeys | None,
    part: _Part,
) -> None:
    """Of rows that changed nothing as of S, those that would now go to `part.moved`: their key, of the changed ones
    (None: of all), was free at S and is taken now, or the other way round. The others' values are not read."""
    rowset = open_staged(store, table, made)
    try:
        rowids = _rows_of(rowset, changed)
        if len(rowids):
            keys = rowset.keys_of(rowids)
            found = locate(table, keys, np.full(len(keys), table.ordinal_of[part.tablet.id]))
            changes_rows = job.operation.startswith(("update", "delete"))
            rowids = rowids[(found.codes != ABSENT) == changes_rows]
        if len(rowids):
            what = "ignored" if job.operation.endswith("-ignore") else "updated"
            _note_moved(table, job, rowset, rowids, {}, part, what)
    finally:
        rowset.close()


def _rows_of(rowset: DiskRowSet, changed: EncodedKeys | None) -> np.ndarray:
    """The rows of changed keys, ascending; changed None: all."""
    if changed is None:
        return np.arange(rowset.row_count)
    rowids = rowset.find(changed)
    return np.sort(rowids[rowids >= 0])


def _delta_without(
    store: Store,
    job: LoadCommit,
    table: TableState,
    made: StagedDelta,
    changed: EncodedKeys | None,
    part: _Part,
    written: list[str],
) -> StagedDelta | None:
    """The staged changes of a rowset without those of changed keys, which go to `part.moved`; changed None: all go."""
    rowset = job.files[made.rowset_id].open(store.env, store.root_path, None, table.schema)
    file = DeltaFile.open(
        store.env.files, store.root_path, delta_entry(0, made.rowset_id, made.path, made.delta)
    )
    try:
        runs = {number: run for number in made.delta.column_ids if (run := file.run(number)) is not None}
        rowids = next(iter(runs.values())).rowids
        if changed is None:
            moved = np.arange(len(rowids))
        else:
            found = rowset.find(changed)
            moved = np.flatnonzero(np.isin(rowids, found[found >= 0]))
        if not len(moved):
            return made
        values = {number: run.values.take(pa.array(moved)) for number, run in runs.items()}
        what = "deleted" if job.operation.startswith("delete") else "updated"
        _note_moved(table, job, rowset, rowids[moved], values, part, what)
        kept = np.setdiff1d(np.arange(len(rowids)), moved, assume_unique=True)
        if not len(kept):
            return None
        left = {
            number: DeltaRun("redo", rowids[kept], run.timestamps[kept], run.values.take(pa.array(kept)))
            for number, run in runs.items()
        }
        path = f"{store.tablet_directory(part.tablet.id)}/{job.key[-8:]}-{os.path.basename(made.path)}"
        written.append(path)
        again = write_delta_file(
            store.env.files, store.path(path), "redo", left, delta_types(table.schema, left)
        )
        return StagedDelta(made.rowset_id, path, again)
    finally:
        rowset.close()
        file.close()


def _note_moved(
    table: TableState,
    job: LoadCommit,
    rowset: DiskRowSet,
    rowids: np.ndarray,
    values: Mapping[int, pa.Array],
    part: _Part,
    what: str,
) -> None:
    """The rows as the user gave them: the key, and the columns that he gave. They are counted anew."""
    schema = table.schema
    arrays = {}
    for column in schema.columns:
        if schema.is_key(column.name) or (
            column.name in job.columns and column.id not in values and not values
        ):
            arrays[column.name] = rowset.gather(column, MAX_TIMESTAMP - 1, rowids)
        elif column.id in values:
            arrays[column.name] = values[column.id]
    part.moved.append(pa.table(arrays))
    part.counts[what] = part.counts.get(what, 0) - len(rowids)


# ------------------------------------------------------------------------------------------------ the transaction


def _commit(
    store: Store,
    job: LoadCommit,
    table: TableState,
    parts: Sequence[_Part],
    settlements: Sequence[Settlement],
    told: Mapping[str, int],
    written: list[str],
) -> int:
    timestamp = store.clock.next()
    change = CatalogChange(timestamp=timestamp)
    change.committed_keys.append(CommittedKey(job.key, timestamp, encode_told(told)))
    changed: dict[int, TabletState] = {}
    for part in parts:
        directory = store.tablet_directory(part.tablet.id)
        rowsets = {rowset.id: rowset for rowset in part.tablet.rowsets}
        for delta in part.deltas:
            path = _moved_file(store, directory, delta.path, written)
            known = dataclasses.replace(delta.delta, timestamp_min=timestamp, timestamp_max=timestamp)
            entry = delta_entry(store.allocate("delta"), delta.rowset_id, path, known)
            change.put_deltas.append(entry)
            fresh = rowsets[delta.rowset_id].with_flushed_deltas(
                [store.open_delta(entry)], deltas_durable=timestamp
            )
            rowsets[delta.rowset_id] = fresh
        for rowset_id in sorted({delta.rowset_id for delta in part.deltas}):
            change.put_rowsets.append(RowSetEntry.from_meta(rowsets[rowset_id].meta))
        for made in part.rowsets:
            adopted = _adopted(store, directory, made, timestamp, written)
            rowset, entries = store.adopt_rowset(adopted, table.schema)
            change.put_rowsets.append(RowSetEntry.from_meta(rowset.meta))
            change.put_deltas.extend(entries)
            rowsets[rowset.id] = rowset
        changed[part.tablet.id] = dataclasses.replace(part.tablet, rowsets=tuple(rowsets.values()))
    for settlement in settlements:
        write_effects(store, settlement, timestamp, change, changed, written)
    for directory in {os.path.dirname(path) for path in written}:
        store.env.files.sync_dir(store.path(directory))
    after = store.root.with_tablets(changed)
    store.transact(change, lambda version: after.with_tablets({}, version))
    store.note_committed(timestamp)
    return timestamp


def _moved_file(store: Store, directory: str, path: str, written: list[str]) -> str:
    """The file's place in its tablet's folder, where it is now. Raises: StorageError when it is not there any more.

    Until the job's end it has its staged name too, so that the commit can be sent again when its process is killed
    here. Where files have one name only, it is moved.
    """
    if os.path.dirname(path) == directory:
        return path  # written anew, there
    key = os.path.basename(os.path.dirname(path))
    target = f"{directory}/{key[-8:]}-{os.path.basename(path)}"
    written.append(target)
    try:
        if not store.env.files.link(store.path(path), store.path(target)):
            store.env.files.rename(store.path(path), store.path(target))
    except FileNotFoundError as error:
        raise gone(path) from error
    return target


def _adopted(
    store: Store, directory: str, made: WrittenRowSet, timestamp: int, written: list[str]
) -> WrittenRowSet:
    """The rowset in its place, under an id of its own, with its records at `timestamp`."""
    number = store.allocate("rowset")
    path = _moved_file(store, directory, made.meta.path, written)
    undo_path = None
    if made.undo_path is not None:
        undo_path = _moved_file(store, directory, made.undo_path, written)
    undo = made.undo
    if undo is not None:
        undo = dataclasses.replace(undo, timestamp_min=timestamp, timestamp_max=timestamp)
    meta = dataclasses.replace(made.meta, id=number, path=path, deltas_durable=timestamp)
    return WrittenRowSet(meta, undo, undo_path)
