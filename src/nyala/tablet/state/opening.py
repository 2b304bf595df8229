"""Opens a store's state: builds a root from the catalogue's entries, and removes orphan files.

Source: docs/design/rules.md, P3.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from nyala.catalog.loading import without_collector
from nyala.catalog.model import CatalogState, DeltaEntry, PartEntry, RowSetEntry
from nyala.cfile.blocks.cache import BlockCache
from nyala.delta.delta_file import DeltaFile, WrittenDelta
from nyala.delta.mem_store import DeltaMemStore
from nyala.delta.run import LIVENESS
from nyala.env import Env
from nyala.errors import StorageError
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.mem_rowset import MemRowSet
from nyala.rowset.part import Part
from nyala.schema.limits import DEFAULT_LIMITS, Limits
from nyala.schema.schema import Schema
from nyala.tablet.state import store_folder as layout
from nyala.tablet.state.auto_ids import AutoIds
from nyala.tablet.state.root import Root, TableState, TabletState

logger = logging.getLogger("nyala.store")

_TABLET_FOLDER: Final = re.compile(r"\d+")


def check_in_use(path: str, closed: bool, pid: int) -> None:
    """Check that a store is open and that this is the process that opened it.

    Raises: StorageError if the store is closed or this is a forked child of process `pid`.
    """
    if closed:
        raise StorageError(f"the store {path!r} is closed: connect() again")
    if os.getpid() != pid:
        raise StorageError(
            f"the store {path!r} was opened by process {pid} and this is its forked child: "
            "connect() in the child"
        )


@without_collector()
def open_root(
    env: Env, path: str, state: CatalogState, cache: BlockCache, limits: Limits = DEFAULT_LIMITS
) -> Root:
    """Return the root of a catalogue state, without rows in memory. Opens no data file."""
    tablets_of, rowsets_of = state.tablets_by_table(), state.rowsets_by_tablet()
    parts_of, deltas_of = state.parts_by_rowset(), state.deltas_by_rowset()
    tables: dict[int, TableState] = {}
    dropped: dict[int, TableState] = {}
    for entry in state.tables.values():
        bare = TableState(entry, ())
        tablets = [
            TabletState(
                tablet,
                MemRowSet(bare.codec, entry.schema),
                (),
                tuple(
                    open_rowset(
                        env,
                        path,
                        rowset,
                        deltas_of.get(rowset.id, ()),
                        cache,
                        entry.schema,
                        parts_of.get(rowset.id, ()),
                    )
                    for rowset in rowsets_of.get(tablet.id, ())
                ),
                AutoIds(tablet.auto_id),
            )
            for tablet in tablets_of.get(entry.id, ())
        ]
        (dropped if entry.dropped else tables)[entry.id] = TableState(
            entry,
            tuple(tablet for tablet in tablets if not tablet.entry.dropped),
            limits,
            tuple(tablet for tablet in tablets if tablet.entry.dropped),
        )
    return Root(state.version, tables, dropped)


def open_rowset(
    env: Env,
    path: str,
    entry: RowSetEntry,
    deltas: Sequence[DeltaEntry],
    cache: BlockCache | None,
    schema: Schema,
    parts: Sequence[PartEntry] = (),
) -> DiskRowSet:
    """Return a DiskRowSet with an empty DeltaMemStore. Opens no data file.

    deltas, parts: oldest first.
    """
    types = {LIVENESS: pa.bool_(), **schema.arrow_types}
    files = [(delta.kind, DeltaFile.open(env.files, path, delta, cache, types)) for delta in deltas]
    return DiskRowSet.open(
        env.files,
        path,
        entry.meta(),
        schema,
        cache,
        parts=[Part.open(env.files, path, part, cache, types) for part in parts],
        undo=tuple(file for kind, file in reversed(files) if kind == "undo"),
        redo=tuple(file for kind, file in files if kind == "redo"),
        deltas=DeltaMemStore(),
    )


def delta_entry(number: int, rowset_id: int, path: str, written: WrittenDelta) -> DeltaEntry:
    """Return the catalogue entry of a new delta file.

    number: the file's id in the catalogue; 0 if the entry is not stored there.
    path:   relative to the store's folder.
    """
    return DeltaEntry(
        number, rowset_id, written.kind, path, written.file.file_id, written.file.size_bytes, written.timestamp_min,
        written.timestamp_max, written.record_count, tuple(written.column_ids), tuple(written.file.columns),
    )  # fmt: skip


def entry_of(file: DeltaFile) -> DeltaEntry:
    """Return the catalogue entry of an open delta file."""
    entry = file.entry
    assert isinstance(entry, DeltaEntry), "the delta file was opened from a catalogue entry"
    return entry


def part_entry_of(part: Part) -> PartEntry:
    """Return the catalogue entry of an open part."""
    assert isinstance(part.entry, PartEntry), "the part was opened from a catalogue entry"
    return part.entry


def unreferenced_files(env: Env, path: str, state: CatalogState) -> tuple[list[str], list[str]]:
    """Return the paths in the data folder that the catalogue does not name, as (orphans, strays).

    Orphans are files in the folders of tablets: a writer may have created them. Strays are all
    other files and folders: no writer creates such paths.
    """
    named = {*state.files(), *state.garbage}
    data = f"{path}/{layout.DATA_NAME}"
    orphans: list[str] = []
    strays: list[str] = []
    for tablet in env.files.list_dir(data):
        names = _names_in(env, f"{data}/{tablet}") if _TABLET_FOLDER.fullmatch(tablet) else None
        if names is None:
            strays.append(f"{data}/{tablet}")
            continue
        for name in names:
            if f"{layout.DATA_NAME}/{tablet}/{name}" not in named:
                inside = f"{data}/{tablet}/{name}"
                (orphans if _names_in(env, inside) is None else strays).append(inside)
    return orphans, strays


def _names_in(env: Env, path: str) -> list[str] | None:
    """Return the names in a folder; None if `path` is not a folder."""
    try:
        return env.files.list_dir(path)
    except StorageError as error:
        if error.errno == errno.ENOTDIR:
            return None
        raise


def remove_orphans(env: Env, path: str, state: CatalogState) -> int:
    """Delete orphans, and return their number. The writer calls this when it opens the store.

    An orphan is a file in a tablet's folder, if the catalogue does not name this file. If a file
    that the catalogue names is missing, nothing is deleted: the catalogue may belong to another
    store, or an orphan may be the missing file under another name.
    """
    orphans, _ = unreferenced_files(env, path, state)
    if orphans and any(not env.files.exists(f"{path}/{named}") for named in state.files()):
        logger.warning(
            "data files are missing; keeping %d files that the catalogue does not name", len(orphans)
        )
        return 0
    for orphan in orphans:
        env.files.unlink(orphan, missing_ok=True)
    if orphans:
        logger.info("removed %d files that the catalogue does not name", len(orphans))
    return len(orphans)
