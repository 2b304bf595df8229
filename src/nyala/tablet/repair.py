"""Repairs a store without losing rows, by the kinds of problems that `tablet.check` finds.

    surplus       Cut off the bytes after an intact file.
    index         Rewrite the rowset from its own rows, with all columns that snapshots still need.
                  One change of the catalogue replaces the old rowset. Encoded keys are computed
                  from the key columns, if these keys ascend within the catalogue's bounds.
    orphan-file   Remove the file, because the catalogue does not name it. If files that the
                  catalogue names are missing, or the log is damaged, the orphan is kept: it may be
                  one of the missing files under a wrong name.
    position      Remove the position record. The next open writes a new one.

Then the store is opened and closed. This cuts off a torn end of the log, and removes leases and
staging folders of dead processes.

Objects in a bucket cannot be changed, so there a rowset with surplus bytes is rewritten too. A
damaged checkpoint is replaced by a new one: the checkpoint before it and the log have the same
state. The writer removes orphan objects when they are a day old.

Rowsets are repaired before the log is replayed. Otherwise a wrong bloom filter would hide rows from
the replay, and the replay would skip their changes.

A repair loses no row, no version of a row, and no evidence of damage. A rowset with damaged rows or
deltas, a damaged log and a damaged catalogue are not changed, and a note says why.

Source: docs/reliability.md; Kudu's `kudu fs check --repair`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Collection, Mapping
from typing import Final

from nyala.catalog.checkpoint import newest_checkpoint, read_identity
from nyala.catalog.codec import encode_change
from nyala.catalog.leases import living_leases
from nyala.catalog.loading import apply_changes
from nyala.catalog.model import CatalogChange, CatalogState, RowSetEntry, apply
from nyala.catalog.store_lock import StoreLock
from nyala.cfile.blocks.cache import BlockCache
from nyala.cfile.errors import KeysError, SummaryError
from nyala.delta.run import MAX_TIMESTAMP
from nyala.env import Env
from nyala.errors import CorruptionError, Error, StorageError
from nyala.objects.open import StorageOptions
from nyala.rowset.compaction import inputs as compacting
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.image import RowSetImage
from nyala.rowset.writer import write_rowset
from nyala.schema.schema import Schema
from nyala.tablet.check import (
    REPAIRABLE,
    CheckReport,
    Problem,
    ProblemKind,
    Progress,
    bucket_at,
    check_alone,
    check_bucket,
    no_progress,
)
from nyala.tablet.media.base import StoreLog
from nyala.tablet.media.bucket import RefuseLivingWriter, open_bucket
from nyala.tablet.state import store_folder as layout
from nyala.tablet.state.opening import delta_entry, open_root
from nyala.tablet.state.root import TableState
from nyala.tablet.store import Store, StoreOptions
from nyala.wal.reader import recover
from nyala.wal.record import ChangeRecord
from nyala.wal.writer import LogWriter

logger = logging.getLogger("nyala.repair")

_ADVICE: Final = "then repair the store. If that process has ended, it counts as dead in {seconds} seconds"

_MISPLACED: Final[frozenset[ProblemKind]] = frozenset({"missing-file", "log"})
_LOSES: Final = "continuing without it would lose rows or their history: restore the store from a backup"
_WHY: Final[Mapping[ProblemKind, str]] = {
    "catalogue": "without it nothing is known to be intact or unneeded: restore the store from a backup",
    "missing-file": _LOSES,
    "damage": _LOSES,
    "surplus": "the repair ended early",
    "index": "the same rowset has other damage, or the repair ended early",
    "key-twice": "a program cannot decide which of the two rows is right",
    "wrong-tablet": "a program cannot decide whether the row or the partition is right",
    "log": "the batches after it were acknowledged: restore the store from a backup",
    "checkpoint": "the repair ended early",
    "position": "with a damaged log it is the last evidence of the log's length",
    "orphan-file": "it may be a missing file under a wrong name, or belong to the damaged log, or the repair ended "
    "early",
    "memory": "it results from the log, which is intact",
}
"""Why a problem of this kind is not repaired, as the second half of a sentence."""


def repair_folder(env: Env, path: str, progress: Progress = no_progress) -> CheckReport:
    """Check a store in a folder, repair it, and check it again.

    Returns the second report, with the repairs in `repairs`.

    Raises: LockedError if another process writes to the store; StorageError.
    """
    env = env.bound(path)
    try:
        return _repair(env, path, progress)
    finally:
        env.files.close()


def _repair(env: Env, path: str, progress: Progress) -> CheckReport:
    repairs: list[str] = []
    with StoreLock(env, path) as _:
        before = check_alone(env, path, progress)
        kinds = {problem.kind for problem in before.problems}
        if before.is_blind:
            return _with(before, repairs)  # without a catalogue, any file may be needed
        try:
            repairs += _cut_surplus(env, path, before.problems)
            repairs += _rewrite_rowsets(env, path, before.problems, {"index"}, lambda: _open_log(env, path))
            repairs += _remove(env, path, before.problems)
        except Error as error:
            return _with(check_alone(env, path, progress), repairs, f"the repair ended early: {error}")
    if "log" in kinds:
        return _with(before if not repairs else _again(env, path, progress), repairs)
    try:
        # Every open cuts a torn log and writes a position record.
        Store.open(env, path, StoreOptions(maintenance=False)).close()
    except Error as error:
        return _with(_again(env, path, progress), repairs, f"the store cannot be opened: {error}")
    if any("never acknowledged" in note for note in before.notes):
        repairs.append("cut off the torn end of the log, whose batches were never acknowledged")
    living_leases(env, path, env.clock.now_us())
    return _with(_again(env, path, progress), repairs)


def repair_bucket(
    url: str, storage_options: StorageOptions | None, progress: Progress = no_progress
) -> CheckReport:
    """Check a store in a bucket, repair it, and check it again.

    Returns the second report, with the repairs in `repairs`.
    """
    before = check_bucket(url, storage_options, progress)
    kinds = {problem.kind for problem in before.problems}
    if before.is_blind or "log" in kinds or kinds.isdisjoint(REPAIRABLE):
        return _with(before, [])
    repairs: list[str] = []
    notes: list[str] = []
    try:
        with bucket_at(url, storage_options) as (env, objects):
            medium, state, _ = open_bucket(env, objects, 0.0, RefuseLivingWriter(env, objects, _ADVICE))
            try:
                repairs += _rewrite_rowsets(
                    env, objects.url, before.problems, {"index", "surplus"}, lambda: (state, medium.log)
                )
            finally:
                medium.log.close()
                medium.lock.release()
        with bucket_at(url, storage_options) as (env, objects):
            with contextlib.closing(
                Store.open_in_bucket(env, objects, StoreOptions(maintenance=False), 0.0, take_over=False)
            ) as store:
                store.write_checkpoint()
        repairs += [
            f"replaced the damaged checkpoint {layout.relative(before.path, problem.path)}"
            for problem in before.problems
            if problem.kind == "checkpoint" and problem.path is not None
        ]
    except (CorruptionError, StorageError) as error:
        notes.append(f"the repair ended early: {error}")
    return _with(check_bucket(url, storage_options, progress), repairs, *notes)


def _again(env: Env, path: str, progress: Progress) -> CheckReport:
    with StoreLock(env, path):
        return check_alone(env, path, progress)


def _with(report: CheckReport, repairs: list[str], *notes: str) -> CheckReport:
    for repair in repairs:
        logger.info("%s", repair)
    kept = [
        f"not repaired: {problem.kind} of {_place(report.path, problem)}, because {_WHY[problem.kind]}"
        for problem in report.problems
    ]
    return dataclasses.replace(
        report, repairs=tuple(repairs), notes=(*report.notes, *notes, *dict.fromkeys(kept))
    )


def _place(path: str, problem: Problem) -> str:
    named = "the store" if problem.path is None else layout.relative(path, problem.path)
    return (
        named if problem.table is None else f"{named} (table {problem.table!r}, tablet {problem.tablet_id})"
    )


def _cut_surplus(env: Env, path: str, problems: tuple[Problem, ...]) -> list[str]:
    done = []
    for problem in problems:
        if problem.kind == "surplus" and problem.path is not None and problem.offset is not None:
            length = env.files.size(problem.path) - problem.offset
            env.files.truncate(problem.path, problem.offset)
            done.append(
                f"cut {length} bytes off the end of {layout.relative(path, problem.path)}, which belong to no data"
            )
    return done


def _remove(env: Env, path: str, problems: tuple[Problem, ...]) -> list[str]:
    done = []
    kinds = {problem.kind for problem in problems}
    for problem in problems:
        if problem.path is None or problem.kind not in ("orphan-file", "position"):
            continue
        if problem.kind == "orphan-file" and not kinds.isdisjoint(_MISPLACED):
            continue
        inside = layout.relative(path, problem.path)
        if problem.kind == "position" and any(other.kind == "log" for other in problems):
            continue
        env.files.remove_tree(problem.path)
        env.files.sync_dir(os.path.dirname(problem.path))
        what = (
            "the damaged position record"
            if problem.kind == "position"
            else "which the catalogue does not name"
        )
        done.append(f"removed {inside}, {what}")
    return done


def _rewrite_rowsets(
    env: Env,
    path: str,
    problems: tuple[Problem, ...],
    kinds: Collection[ProblemKind],
    open_log: Callable[[], tuple[CatalogState, StoreLog]],
) -> list[str]:
    """Rewrite the rowsets that have problems of these kinds, and no problem that repair cannot fix.

    open_log: returns the catalogue and its log. The batches in the log are not replayed.
    Returns:  a sentence for each rewritten rowset.
    """
    lost = {problem.rowset_id for problem in problems if not problem.repairable}
    chosen = {p.rowset_id for p in problems if p.kind in kinds and p.rowset_id is not None} - lost
    if not chosen:
        return []
    done = []
    state, log = open_log()
    with contextlib.closing(log):
        root = open_root(env, path, state, BlockCache(0))
        for table, tablet in root.tablets():
            for rowset in tablet.rowsets:
                if rowset.id in chosen:
                    change, done_so = _rewrite(env, path, state, table, rowset)
                    state = apply(state, change)
                    log.sync(log.append_change(ChangeRecord(encode_change(change, state.version))))
                    done.append(done_so)
    return done


def _open_log(env: Env, path: str) -> tuple[CatalogState, LogWriter]:
    """Return the catalogue, and a writer of the log. The log's batches are not replayed."""
    checkpoint = newest_checkpoint(env.files, path, read_identity(env.files, path))
    recovered = recover(env, layout.wal_path(path), checkpoint.wal_start, checkpoint.store_id)
    state = apply_changes(checkpoint, recovered.changes)
    return state, LogWriter(env, layout.wal_path(path), recovered.since(state.wal_start))


def _rewrite(
    env: Env, path: str, state: CatalogState, table: TableState, rowset: DiskRowSet
) -> tuple[CatalogChange, str]:
    """Write the rowset again under a new id. Its REDO changes become UNDO changes.

    Returns: the change of the catalogue that replaces the rowset, and a sentence for the report.
    """
    number = state.next_rowset_id
    schema = table.stored_schema()  # also has dropped columns that the history needs
    tablet_id = rowset.meta.tablet_id
    written = write_rowset(
        env.files, path, layout.new_data_path(env, tablet_id, number, "base"), number, tablet_id,
        _image(table, rowset, schema), schema, deltas_durable=rowset.meta.deltas_durable,
    )  # fmt: skip
    env.files.sync_dir(os.path.join(path, layout.tablet_directory(tablet_id)))
    undo = []
    if written.undo is not None and written.undo_path is not None:
        undo = [delta_entry(state.next_delta_id, number, written.undo_path, written.undo)]
    change = CatalogChange(
        put_rowsets=[RowSetEntry.from_meta(written.meta)],
        put_deltas=undo,
        drop_rowsets=[rowset.id],
        drop_parts=[part.id for part in rowset.parts],
        drop_deltas=[file.id for file in (*rowset.undo, *rowset.redo)],
        garbage=rowset.paths,
    )
    return change, (
        f"rewrote rowset {rowset.id} of table {table.name!r} as {number} from its own {rowset.row_count:,} rows, with "
        "new zone maps, bloom filter, indexes and bounds"
    )


def _image(table: TableState, rowset: DiskRowSet, schema: Schema) -> RowSetImage:
    """Return all rows of the rowset. If its stored keys are wrong, compute them from key columns.

    Raises: CorruptionError if computed keys do not ascend or do not match the catalogue's bounds.
            Then the key columns are damaged.
    """
    count, keys = rowset.row_count, None
    try:
        rowset.keys.check()
    except KeysError:
        arrays = [rowset.decode(column, MAX_TIMESTAMP, 0, count) for column in table.schema.key_columns]
        keys = table.codec.encode(arrays)
        bounds = keys.at(0), keys.at(count - 1)
        if not keys.is_strictly_ascending() or bounds != (rowset.meta.key_min, rowset.meta.key_max):
            sentence = f"the key columns of rowset {rowset.id} do not match its bounds"
            raise CorruptionError(sentence, rowset.reader.path) from None
    except SummaryError:
        pass  # the keys themselves can be read
    return compacting.image(rowset, schema, 0, count, keys=keys)
