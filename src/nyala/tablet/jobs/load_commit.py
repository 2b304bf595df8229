"""The commit of a load: adds the files of all tasks to their tablets by one catalogue change.

S is the moment of the job's plan: its tasks read the table as of S. Idle rows are rows of the load
that change nothing as of S.

Under the flush lock and the commit lock (other writers wait, scans do not) the commit

    flushes   the tablets' memory, so that every live row is on disk (R4)
    compares  the load with the keys of its tablets that changed after S, from the change feed.
              Staged rows with such keys, idle rows that now have an effect, and staged changes of
              rowsets that no longer exist are *outdated*. Usually no row is outdated.
    rewrites  files that have outdated rows, so that the new files have only the other rows;
              resolves the outdated rows again, like rows of any write
    stamps    the staged files with the batch's timestamp t: their catalogue entries give t to all
              of their records
    links     the files into the tablets' folders, syncs them, commits one change of the catalogue,
              and replaces the root

Invariants
    M1  For each key the batch has the effect that a write of the whole batch at t would have. Keys
        that did not change after S were resolved against the state at S, which is also their state
        at t. The other keys are resolved now. Exception: rows that failed as of S stay failed.
    M2  Before the catalogue change nothing of the batch is visible. The commit can be sent again,
        because staged files keep their names until the job ends. The next open removes linked files
        that no entry names. Staged files are removed with their folder.
    M3  The catalogue change has the idempotency key, even if the job changed nothing. Otherwise the
        same job, sent again after other writes, could have an effect.

Cost: before the locks, reads the data that `load_check` compares. Under the locks, reads the bloom
filters and key indexes in which changed keys are looked up.
Source: docs/design/loads-and-jobs.md, "Executors write the files of a large load";
docs/design/rules.md, W6, R2 and R4.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from nyala.catalog.model import CatalogChange, CommitMessage, CommittedKey, RowSetEntry
from nyala.delta.delta_file import DeltaFile, write_delta_file
from nyala.delta.run import MAX_TIMESTAMP, DeltaRun
from nyala.env.interrupts import Uninterrupted
from nyala.env.overlapped import each
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
from nyala.tablet.state import store_folder as layout
from nyala.tablet.state.entries import RowSetFiles
from nyala.tablet.state.history import check_readable
from nyala.tablet.state.idempotency import encode_counts
from nyala.tablet.state.leased_files import kept_by_lease
from nyala.tablet.state.locate import ABSENT, locate
from nyala.tablet.state.messages import check_message
from nyala.tablet.state.opening import delta_entry
from nyala.tablet.state.result import WriteResult
from nyala.tablet.state.root import TableState, TabletState
from nyala.tablet.state.validation import checked
from nyala.tablet.write.direct_commit import write_effects
from nyala.tablet.write.effects import ResolvedBatch, row_counts
from nyala.tablet.write.prepare import OPERATION_NAMES, prepare
from nyala.tablet.write.write_path import (
    Request,
    find_committed,
    recorded_result,
    resolve_requests,
    results_of,
)

if TYPE_CHECKING:
    from nyala.tablet.store import Store

# How many files are linked at the same time in a bucket.
_LINKS_AT_ONCE: Final = 16


@dataclass(frozen=True)
class LoadCommit:
    """The commit request of a load.

    key:      the key of the staging folder; also the idempotency key.
    schema_version, snapshot: as in the job's plan; `snapshot` is the plan's moment S.
    columns:  the columns that the rows have; in new rows the other columns get their defaults.
    tablets:  for each tablet: the files that the job's tasks staged.
    files:    by rowset id, the files of each rowset that the job changes, as of S. If the rowset no
              longer exists, the keys of its changed rows are read from these files.
    collect:  write valid rows even if others fail.
    message:  stored with the commit.
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
    message: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            **{f.name: getattr(self, f.name) for f in dataclasses.fields(self)},
            "columns": list(self.columns),
            "tablets": [tablet.to_json() for tablet in self.tablets],
            "files": {str(number): files.to_json() for number, files in self.files.items()},
        }

    @staticmethod
    def from_json(fields: dict[str, Any]) -> LoadCommit:
        """Decode and check a commit request.

        Raises: ValueError, TypeError, LookupError, AttributeError for invalid fields.
        """
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
        if job.operation not in OPERATION_NAMES:
            raise ValueError(
                f"unknown operation {job.operation!r}: expected one of {', '.join(OPERATION_NAMES)}"
            )
        if not all(isinstance(name, str) for name in job.columns):
            raise ValueError(f"`columns` must be a list of column names, not {list(job.columns)!r}")
        check_message(job.message)
        ids = [tablet.tablet_id for tablet in job.tablets]
        changed = [made.rowset_id for tablet in job.tablets for made in tablet.deltas]
        if len(set(ids)) < len(ids) or len(set(changed)) < len(changed):
            raise ValueError(f"the tablets {ids} or the changed rowsets {changed} have duplicates")
        if any(number not in job.files for number in changed):
            raise ValueError(f"the rowsets {changed} have changes, but `files` has only {sorted(job.files)}")
        return job


@dataclass
class _TabletShare:
    """What the commit of a load does in one tablet.

    rowsets:  the staged rowsets to commit.
    deltas:   the staged REDO files to commit.
    outdated: rows of the load whose keys were changed after the job's tasks read the table. The
              commit resolves these rows again.
    counts:   the number of inserted, updated, deleted and ignored rows, without `outdated`.
    """

    tablet: TabletState
    rowsets: list[WrittenRowSet]
    deltas: list[StagedDelta]
    outdated: list[pa.Table] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


def commit_load(store: Store, job: LoadCommit) -> WriteResult:
    """Commit a job, in the writer process. A repeated call returns the result of the first call.

    Raises: TableNotFoundError, SchemaError if the table was changed while the job ran; WriteError
            if rows fail now that were valid for the job's tasks, unless `job.collect`;
            HistoryExpiredError if the job's lease ended and needed files were removed; the errors
            of `check_staged`; StorageError, CorruptionError. Nothing changes then.
    """
    store.check_writable()
    if (earlier := find_committed(store, job.key)) is not None:
        return earlier
    check_staged(store, job, _table(store, job))
    ids = {tablet.tablet_id for tablet in job.tablets}
    flush(store, ids)  # without the commit lock, so that the flush under the lock is short
    written: list[str] = []
    with store.flush_lock, Uninterrupted(), store.commit_lock:
        store.check_writable()
        if (known := store.committed(job.key)) is not None:
            return recorded_result(known)
        table = _table(store, job)
        held = [made.rowset_id for tablet in job.tablets for made in tablet.deltas]
        try:
            while True:
                store.reservations.revoke(filter(store.reservations.holds_deltas, held))
                flush(store, ids)  # leaves nothing in memory: F4
                table = _table(store, job)
                shares = [_share_of(store, job, table, staged, written) for staged in job.tablets]
                outdated = [rows for share in shares for rows in share.outdated]
                # Outdated rows may change any rowset, so no rowset may be in a running merge (R4).
                rowsets = [rowset.id for share in shares for rowset in share.tablet.rowsets]
                held = list(filter(store.reservations.holds_deltas, rowsets))
                if not outdated or not held:
                    break
                store.discard_files(written)
                written.clear()
            resolved_batches: list[tuple[ResolvedBatch, list[int]]] = []
            name, _, ignore = job.operation.partition("-")
            data = pa.concat_tables(outdated) if outdated else None
            request = Request(table.name, name, data, bool(ignore))
            if outdated:
                prepared = prepare(table, name, request.data, ignore=request.ignore)
                resolved_batches = resolve_requests(
                    store, [request], [(table, prepared)], collect=job.collect
                )
            counts = row_counts([resolved for resolved, _ in resolved_batches])
            for share in shares:
                for name, count in share.counts.items():
                    counts[name] += count
            timestamp = _commit(store, job, table, shares, [s for s, _ in resolved_batches], counts, written)
        except BaseException:
            store.discard_files(written)
            raise
    again = (
        results_of([request], resolved_batches, timestamp)[0] if resolved_batches else WriteResult(timestamp)
    )
    return WriteResult(
        timestamp, counts["inserted"], counts["updated"], counts["deleted"], counts["ignored"], again.errors
    )


def _table(store: Store, job: LoadCommit) -> TableState:
    table = store.root.tables.get(job.table_id)
    if table is None:
        raise TableNotFoundError("the table was dropped while the job ran, and nothing was written")
    if table.schema.version != job.schema_version:
        raise SchemaError(
            f"table {table.name!r} was altered while the job ran, and nothing was written: run the job again"
        )
    lost = {tablet.tablet_id for tablet in job.tablets} - table.ordinal_of.keys()
    if lost:
        rewritten = table.entry.rewritten_at > job.snapshot
        what = (
            f"table {table.name!r} was repartitioned"
            if rewritten
            else f"range partitions of table {table.name!r} were dropped"
        )
        raise SchemaError(f"{what} while the job ran, and nothing was written: run the job again")
    return table


# ------------------------------------------------------------------------------------------------ outdated rows


def _share_of(
    store: Store, job: LoadCommit, table: TableState, staged: StagedTablet, written: list[str]
) -> _TabletShare:
    """Divide a tablet's staged files into files to commit, and rows to be resolved again.

    Rows are resolved again if their keys were changed after the job's tasks read the table. A file
    that has such rows is written again without them.

    written: gets the paths of files that are written here.
    """
    tablet = table.tablets[table.ordinal_of[staged.tablet_id]]
    share = _TabletShare(tablet, [], [], counts=dict(staged.counts))
    changed = _changed_keys(table, tablet, job.snapshot, store.marks.applied)
    there = {rowset.id for rowset in tablet.rowsets}
    for made in staged.rowsets:
        unchanged = changed is not None and not len(changed)
        kept = made if unchanged else _without(store, job, table, made, changed, share, written)
        if kept is not None:
            share.rowsets.append(kept)
    for delta in staged.deltas:
        gone = delta.rowset_id not in there
        unchanged = not gone and changed is not None and not len(changed)
        # Only the job's lease keeps the files of a rowset that was merged away.
        with kept_by_lease(f"the load into table {table.name!r}", "nothing was written. Run the job again"):
            left = delta if unchanged else _delta_without(
                store, job, table, delta, None if gone else changed, share, written
            )  # fmt: skip
        if left is not None:
            share.deltas.append(left)
    if changed is None or len(changed):
        for made in staged.idle:
            _take_effective(store, job, table, made, changed, share)
    return share


def _changed_keys(table: TableState, tablet: TabletState, since: int, until: int) -> EncodedKeys | None:
    """Return the tablet's keys that changed after `since`, up to `until`, in ascending order.

    Returns None if history after `since` was removed, so that any key may have changed.
    """
    try:
        check_readable(table.entry, since, 0, 0)  # 0, 0: checks only whether history was removed
    except HistoryExpiredError:
        return None
    alone = dataclasses.replace(table, tablets=(tablet,))
    spec = make_change_spec(table, since, until, "all", table.schema.key_columns)
    count = table.schema.key_count
    # All versions, not net changes, because a row that was deleted and inserted again has a new position.
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
    share: _TabletShare,
    written: list[str],
) -> WrittenRowSet | None:
    """Return the staged rowset without the rows of changed keys; None if no row is left.

    Adds the rows of changed keys to `share.outdated`, to be resolved again.
    changed: the changed keys; None: every key may have changed.
    written: gets the paths of new files.
    """
    rowset = open_staged(store, table, made)
    try:
        rowids = _rows_of(rowset, changed)
        if not len(rowids):
            return made
        _note_outdated(table, job, rowset, rowids, {}, share, "inserted")
        kept = np.setdiff1d(np.arange(rowset.row_count), rowids, assume_unique=True)
        if not len(kept):
            return None
        image = rowset.image(table.schema, 0, rowset.row_count, 0)
        number = store.allocate("rowset")
        again = write_rowset(
            store.env.files, store.root_path, store.new_data_path(share.tablet.id, number, "base"), number,
            share.tablet.id, image._only(kept), table.schema, deltas_durable=UNKNOWN,
        )  # fmt: skip
        written += again.paths
        return again
    finally:
        rowset.close()


def _take_effective(
    store: Store,
    job: LoadCommit,
    table: TableState,
    made: WrittenRowSet,
    changed: EncodedKeys | None,
    share: _TabletShare,
) -> None:
    """Find rows of a load that changed nothing for the job's task, but would change something now.

    For example, the task ignored an update because its key was absent, and another writer has
    inserted the key since. These rows are added to `share.outdated`, to be resolved again.

    made:    a staged rowset with the rows that changed nothing.
    changed: keys that others changed after the task read the table; None: perhaps all keys.
    """
    rowset = open_staged(store, table, made)
    try:
        rowids = _rows_of(rowset, changed)
        if len(rowids):
            keys = rowset.keys_of(rowids)
            found = locate(table, keys, np.full(len(keys), table.ordinal_of[share.tablet.id]))
            changes_rows = job.operation.startswith(("update", "delete"))
            rowids = rowids[(found.codes != ABSENT) == changes_rows]
        if len(rowids):
            count = "ignored" if job.operation.endswith("-ignore") else "updated"
            _note_outdated(table, job, rowset, rowids, {}, share, count)
    finally:
        rowset.close()


def _rows_of(rowset: DiskRowSet, changed: EncodedKeys | None) -> np.ndarray:
    """Return the rowids of the `changed` keys in the rowset, ascending. None: return all rowids."""
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
    share: _TabletShare,
    written: list[str],
) -> StagedDelta | None:
    """Return a rowset's staged changes, without the keys that other writers changed since the plan.

    Returns None if no change remains. The changes of those keys are added to `share.outdated`, to
    be resolved again.
    changed: the keys that other writers changed; None: they may have changed every key.
    written: gets the paths of new files.
    """
    rowset = job.files[made.rowset_id].open(store.env, store.root_path, None, table.schema)
    file = DeltaFile.open(
        store.env.files, store.root_path, delta_entry(0, made.rowset_id, made.path, made.delta)
    )
    try:
        runs = {number: run for number in made.delta.column_ids if (run := file.run(number)) is not None}
        rowids = next(iter(runs.values())).rowids
        if changed is None:
            outdated = np.arange(len(rowids))
        else:
            outdated = np.flatnonzero(np.isin(rowids, _rows_of(rowset, changed)))
        if not len(outdated):
            return made
        values = {number: run.values.take(pa.array(outdated)) for number, run in runs.items()}
        count = "deleted" if job.operation.startswith("delete") else "updated"
        _note_outdated(table, job, rowset, rowids[outdated], values, share, count)
        kept = np.setdiff1d(np.arange(len(rowids)), outdated, assume_unique=True)
        if not len(kept):
            return None
        left = {
            number: DeltaRun("redo", rowids[kept], run.timestamps[kept], run.values.take(pa.array(kept)))
            for number, run in runs.items()
        }
        path = store.new_data_path(share.tablet.id, store.allocate("delta"), "redo")
        written.append(path)
        again = write_delta_file(
            store.env.files, store.path(path), "redo", left, delta_types(table.schema, left)
        )
        return StagedDelta(made.rowset_id, path, again)
    finally:
        rowset.close()
        file.close()


def _note_outdated(
    table: TableState,
    job: LoadCommit,
    rowset: DiskRowSet,
    rowids: np.ndarray,
    values: Mapping[int, pa.Array],
    share: _TabletShare,
    count: str,
) -> None:
    """Add staged rows to `share.outdated`: their keys were changed after the tasks read the table.

    The commit resolves these rows again, with the values that the user gave. It then counts them
    too, so their number is subtracted here from `share.counts[count]`.

    share:  what the commit does in the rows' tablet.
    count:  the kind of result for which the task counted the rows, for example "updated".
    rowset, rowids: where the rows are: in a staged rowset, or in a rowset with staged changes.
    values: the staged changes by column id; empty for a staged rowset.
    """
    schema = table.schema
    arrays = {}
    for column in schema.columns:
        if schema.is_key(column.name) or (
            column.name in job.columns and column.id not in values and not values
        ):
            arrays[column.name] = rowset.gather(column, MAX_TIMESTAMP - 1, rowids)
        elif column.id in values:
            arrays[column.name] = values[column.id]
    share.outdated.append(pa.table(arrays))
    share.counts[count] = share.counts.get(count, 0) - len(rowids)


# ------------------------------------------------------------------------------------------------ the transaction


def _commit(
    store: Store,
    job: LoadCommit,
    table: TableState,
    shares: Sequence[_TabletShare],
    resolved_batches: Sequence[ResolvedBatch],
    counts: Mapping[str, int],
    written: list[str],
) -> int:
    timestamp = store.clock.next()
    change = CatalogChange(timestamp=timestamp)
    change.committed_keys.append(CommittedKey(job.key, timestamp, encode_counts(counts)))
    if job.message is not None:
        change.put_messages.append(CommitMessage(timestamp, job.message))
    changed: dict[int, TabletState] = {}
    placed = _link_staged(store, shares, written)
    for share in shares:
        rowsets = {rowset.id: rowset for rowset in share.tablet.rowsets}
        for delta in share.deltas:
            number, path = placed.get(delta.path) or (store.allocate("delta"), delta.path)
            known = dataclasses.replace(delta.delta, timestamp_min=timestamp, timestamp_max=timestamp)
            entry = delta_entry(number, delta.rowset_id, path, known)
            change.put_deltas.append(entry)
            fresh = rowsets[delta.rowset_id].with_flushed_deltas(
                [store.open_delta(entry)], deltas_durable=timestamp
            )
            rowsets[delta.rowset_id] = fresh
        for rowset_id in sorted({delta.rowset_id for delta in share.deltas}):
            change.put_rowsets.append(RowSetEntry.from_meta(rowsets[rowset_id].meta))
        for made in share.rowsets:
            adopted = _adopted(made, timestamp, placed)
            rowset, entries = store.adopt_rowset(adopted, table.schema)
            change.put_rowsets.append(RowSetEntry.from_meta(rowset.meta))
            change.put_deltas.extend(entries)
            rowsets[rowset.id] = rowset
        changed[share.tablet.id] = dataclasses.replace(share.tablet, rowsets=tuple(rowsets.values()))
    for resolved in resolved_batches:
        write_effects(store, resolved, timestamp, change, changed, written)
    store.sync_directories(written)
    after = store.root.with_tablets(changed)
    store.transact(change, after.at_version)
    store.note_committed(timestamp)
    return timestamp


def _is_staged(path: str) -> bool:
    """Return whether the file is in a staging folder, and not written by this commit."""
    return path.startswith(f"{layout.STAGING_NAME}/")


def _link_staged(
    store: Store, shares: Sequence[_TabletShare], written: list[str]
) -> dict[str, tuple[int, str]]:
    """Link the staged files into the folders of their tablets.

    Returns, for each staged path, the file's new id and path. A file also keeps its staged name
    until the job ends, so that the commit can be sent again if the process is killed here. If the
    file system has no hard links, the file is moved. In a bucket it is copied.
    Raises: StorageError if a file does not exist any more.
    """
    placed: dict[str, tuple[int, str]] = {}
    names: list[tuple[str, str]] = []

    def place(staged: str, what: str, tablet_id: int, kind: str) -> str:
        number = store.allocate(what)
        path = store.new_data_path(tablet_id, number, kind)
        placed[staged] = number, path
        names.append((staged, path))
        return path

    for share in shares:
        for delta in filter(lambda delta: _is_staged(delta.path), share.deltas):
            place(delta.path, "delta", share.tablet.id, "redo")
        for made in filter(lambda made: _is_staged(made.meta.path), share.rowsets):
            path = place(made.meta.path, "rowset", share.tablet.id, "base")
            if made.undo_path is not None:
                names.append((made.undo_path, f"{path}.undo"))
    written += [path for _, path in names]

    def link(name: tuple[str, str]) -> None:
        staged, path = name
        try:
            if not store.env.files.link(store.path(staged), store.path(path)):
                store.env.files.rename(store.path(staged), store.path(path))
        except FileNotFoundError as error:
            raise gone(staged) from error

    each(store.env.files, link, names, _LINKS_AT_ONCE)
    return placed


def _adopted(made: WrittenRowSet, timestamp: int, placed: Mapping[str, tuple[int, str]]) -> WrittenRowSet:
    """Return the staged rowset `made` as the commit adds it to the table.

    Its file was linked from the staging folder into the tablet's folder. So the result has the id
    and the path of the new link, and the timestamp of the commit.

    placed: the new id and path of each staged file, by its staged path.
    """
    undo_path = made.undo_path
    number, path = placed.get(made.meta.path, (made.meta.id, made.meta.path))
    if undo_path is not None:
        undo_path = f"{path}.undo"
    undo = made.undo
    if undo is not None:
        undo = dataclasses.replace(undo, timestamp_min=timestamp, timestamp_max=timestamp)
    meta = dataclasses.replace(made.meta, id=number, path=path, deltas_durable=timestamp)
    return WrittenRowSet(meta, undo, undo_path)
