"""Mend what can be mended without a loss, and say what was done.

    orphan-file   removed: no transaction names it, so nobody can read it (P3). Kept while files are missing,
                  as it may be one of them under a wrong name, or the log is damaged or another store's
    checksum      the catalogue is written anew, when every value in it is vouched for (`catalog.rebuild`); comes first
    surplus       cut off: what the catalogue says was written is whole, and nobody reads behind it
    index         the rowset is written anew from its own rows, with the columns that snapshots of the past still need,
                  and one catalogue transaction puts it in the old one's place; the old files become garbage. Encoded
                  keys are calculated from the key columns, and believed when they ascend between the bounds that the
                  catalogue has
    position      removed; the open that follows makes it anew
    then          the store is opened and closed, which cuts a torn end of the log (R6) and removes leases and staging
                  folders of the dead

Derived data is mended before the log is replayed: a bloom filter that misses would hide rows from the replay, and their
changes would be taken for durable ones.

Safe is what loses no row, no version of one and no witness of either. Nothing else is touched: a rowset with damaged
rows or changes, a damaged log or catalogue stay as they are, and for each a note says why. No damaged rowset is ever
dropped: which rows could be given up is not for a program to say. A file that was written anew leaves its old one as
garbage, removed as ever when no reader needs it.

Source: docs/reliability.md; Kudu's `kudu fs check --repair`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Mapping
from typing import Final

from nyala.catalog.leases import living_leases
from nyala.catalog.model import CatalogChange, RowSetEntry
from nyala.catalog.rebuild import rebuild, vouched_state
from nyala.catalog.store import Catalog
from nyala.catalog.store_lock import StoreLock
from nyala.cfile.blocks.cache import BlockCache
from nyala.cfile.errors import KeysError, SummaryError
from nyala.delta.run import MAX_TIMESTAMP
from nyala.env import Env
from nyala.errors import CorruptionError, Error
from nyala.rowset.compaction import inputs as compacting
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.image import RowSetImage
from nyala.rowset.writer import write_rowset
from nyala.schema.schema import Schema
from nyala.tablet.check import CheckReport, Problem, ProblemKind, Progress, check_alone, no_progress
from nyala.tablet.state import store_folder as layout
from nyala.tablet.state.opening import delta_entry, open_root
from nyala.tablet.state.root import TableState
from nyala.tablet.store import Store, StoreOptions

logger = logging.getLogger("nyala.repair")

__all__ = ["repair_folder"]

_MISPLACED: Final[frozenset[ProblemKind]] = frozenset({"missing-file", "log"})
_LOSES: Final = "to go on without it would lose rows or their history: bring the store back from a backup"
_WHY: Final[Mapping[ProblemKind, str]] = {
    "catalogue": "what it names is not known, so nothing is known to be whole or unneeded: bring the store back from "
    "a backup",
    "missing-file": _LOSES,
    "damage": _LOSES,
    "checksum": "the repair ended early",
    "surplus": "the repair ended early",
    "index": "the same rowset has damage that is not of its index, or the repair ended early",
    "key-twice": "which of the two rows is right is not for a program to say",
    "wrong-tablet": "which of the row and the partition is right is not for a program to say",
    "log": "the batches behind it were acknowledged: bring the store back from a backup",
    "position": "with a damaged log it is the last witness of how far that log went",
    "orphan-file": "it may be a missing file under a wrong name, or of the damaged log, or the repair ended early",
    "memory": "it is what the log says, and the log is whole",
}
"""Why a problem is left as it is, as the end of a sentence. Safe is what loses no row, no version and no witness."""


def repair_folder(env: Env, path: str, progress: Progress = no_progress) -> CheckReport:
    """Check, mend, check again: the report is of the second check, with what was done in `repairs`.

    Raises: LockedError: somebody writes to the store; StorageError.
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
        if any(problem.kind == "checksum" for problem in before.problems):
            try:
                repairs += _rebuild_catalogue(env, path)
            except Error as error:
                return _with(before, repairs, f"the repair ended early: {error}")
            before = check_alone(env, path, progress)
        kinds = {problem.kind for problem in before.problems}
        if "catalogue" in kinds or any(p.path == layout.catalog_path(path) for p in before.problems):
            return _with(
                before, repairs
            )  # what the catalogue names is not known, so nothing is known to be unneeded
        try:
            repairs += _cut_surplus(env, path, before.problems)
            repairs += _rewrite_rowsets(env, path, before.problems)
            repairs += _remove(env, path, before.problems)
        except Error as error:
            return _with(check_alone(env, path, progress), repairs, f"the repair ended early: {error}")
    if "log" in kinds:
        return _with(before if not repairs else _again(env, path, progress), repairs)
    try:
        # A log that was torn is cut, a position record written, by what every open does.
        Store.open(env, path, StoreOptions(maintenance=False)).close()
    except Error as error:
        return _with(_again(env, path, progress), repairs, f"the store cannot be opened: {error}")
    if any("never acknowledged" in note for note in before.notes):
        repairs.append("cut off the torn end of the log, which was never acknowledged")
    living_leases(env, path, env.clock.now_us())
    return _with(_again(env, path, progress), repairs)


def _again(env: Env, path: str, progress: Progress) -> CheckReport:
    with StoreLock(env, path):
        return check_alone(env, path, progress)


def _with(report: CheckReport, repairs: list[str], *notes: str) -> CheckReport:
    for repair in repairs:
        logger.info("%s", repair)
    kept = [
        f"left as it is: {problem.kind} of {_place(report.path, problem)}, for {_WHY[problem.kind]}"
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


def _rebuild_catalogue(env: Env, path: str) -> list[str]:
    file = layout.catalog_path(path)
    state = vouched_state(env, file)
    if state is None:
        return []
    rebuild(env, file, state)
    return [
        f"wrote {os.path.basename(file)} anew, version {state.version}: all its values are vouched for, by the "
        "checksums of rows or those of tables"
    ]


def _cut_surplus(env: Env, path: str, problems: tuple[Problem, ...]) -> list[str]:
    done = []
    for problem in problems:
        if problem.kind == "surplus" and problem.path is not None and problem.offset is not None:
            length = env.files.size(problem.path) - problem.offset
            env.files.truncate(problem.path, problem.offset)
            done.append(
                f"cut {length} bytes off the end of {layout.relative(path, problem.path)}, which are of nobody"
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
        what = "the damaged position record" if problem.kind == "position" else "which nothing names"
        done.append(f"removed {inside}, {what}")
    return done


def _rewrite_rowsets(env: Env, path: str, problems: tuple[Problem, ...]) -> list[str]:
    """Those whose only problems are derived ones."""
    lost = {problem.rowset_id for problem in problems if not problem.repairable}
    wanted = {p.rowset_id for p in problems if p.kind == "index" and p.rowset_id is not None} - lost
    if not wanted:
        return []
    done = []
    with contextlib.closing(Catalog.open(env, layout.catalog_path(path))) as catalog:
        root = open_root(env, path, catalog.load(), BlockCache(0))
        for table, tablet in root.tablets():
            for rowset in tablet.rowsets:
                if rowset.id in wanted:
                    done.append(_rewrite(env, path, catalog, table, rowset))
    return done


def _rewrite(env: Env, path: str, catalog: Catalog, table: TableState, rowset: DiskRowSet) -> str:
    """The rowset from its own rows: what is in its files, REDO as UNDO, under a new id and the same marks."""
    state = catalog.state
    number = state.next_rowset_id
    schema = table.stored_schema()  # with columns that were dropped, while the past can be read
    directory = layout.tablet_directory(rowset.meta.tablet_id)
    written = write_rowset(
        env.files, path, directory, number, rowset.meta.tablet_id, _image(table, rowset, schema),
        schema, deltas_durable=rowset.meta.deltas_durable, name=f"{number}-{env.randomness.token_hex(8)}",
    )  # fmt: skip
    env.files.sync_dir(os.path.join(path, directory))
    undo = []
    if written.undo is not None and written.undo_path is not None:
        undo = [delta_entry(state.next_delta_id, number, written.undo_path, written.undo)]
    catalog.commit(
        CatalogChange(
            put_rowsets=[RowSetEntry.from_meta(written.meta)],
            put_deltas=undo,
            drop_rowsets=[rowset.id],
            drop_parts=[part.id for part in rowset.parts],
            drop_deltas=[file.id for file in (*rowset.undo, *rowset.redo)],
            garbage=rowset.paths,
        )
    )
    return (
        f"wrote rowset {rowset.id} of table {table.name!r} anew as {number}, from its own {rowset.row_count:,} rows: "
        "zone maps, bloom filter, indexes and bounds are of them again"
    )


def _image(table: TableState, rowset: DiskRowSet, schema: Schema) -> RowSetImage:
    """All rows of the rowset, as its files have them.

    Raises: CorruptionError when keys that had to be calculated do not ascend, or are not within the catalogue's bounds:
            then the key columns are not what was written.
    """
    count, keys = rowset.row_count, None
    try:
        rowset.keys.check()
    except KeysError:
        arrays = [rowset.decode(column, MAX_TIMESTAMP, 0, count) for column in table.schema.key_columns]
        keys = table.codec.encode(arrays)
        bounds = keys.at(0), keys.at(count - 1)
        if not keys.is_strictly_ascending() or bounds != (rowset.meta.key_min, rowset.meta.key_max):
            sentence = f"the key columns of rowset {rowset.id} are not those that its bounds are of"
            raise CorruptionError(sentence, rowset.reader.path) from None
    except SummaryError:
        pass  # the keys themselves can be read
    return compacting.image(rowset, schema, 0, count, keys=keys)
