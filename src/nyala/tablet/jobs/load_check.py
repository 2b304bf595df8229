"""Checks a load's staged files against the description in its commit request.

Idle rows are rows of the load that changed nothing when the load's task looked up their keys, such
as updates of missing rows. They are staged as a rowset too, because the commit examines them again:
other writers may have inserted or deleted their keys meanwhile (`load_write`).

    kind of file               the file must have
    rowset of new rows         all of the table's columns but no LIVENESS, because every row is live;
                               and an UNDO file with a LIVENESS record for each row: "absent before
                               the commit"
    rowset of idle rows        the columns for which the load has values, with the key columns; and
                               LIVENESS, in which all rows are dead
    changes of a rowset        REDO of rows that exist in the rowset; the file's name has the rowset's id

For all files the module compares the size, the columns and their positions in the file, the number
of rows or records, and the first and the last key. The keys must belong to the tablet. New rowsets
of a tablet must not overlap.

The check ensures that a commit does not take idle rows for new rows, or new rows for idle rows.
Such a mistake would duplicate keys or lose rows. The files are immutable and belong only to the
job, so they are checked before any lock is taken.

Cost: reads the directory of columns and a footer of each file, and the first and the last key of
each rowset. Values are not checked.
Source: docs/format/staging.md; docs/design/loads-and-jobs.md, "Executors write the files of a large
load".
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from nyala.catalog.model import RowSetEntry
from nyala.cfile.column import BASE, DELTA_ROWID, DELTA_VALUE, ColumnKey, ColumnPlace
from nyala.cfile.column_reader import ColumnReader
from nyala.cfile.reader import CFileReader
from nyala.delta.delta_file import WrittenDelta
from nyala.delta.run import LIVENESS
from nyala.errors import CorruptionError, InvalidArgumentError, StorageError
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.writer import WrittenRowSet
from nyala.tablet.jobs.load_job import StagedDelta, StagedTablet
from nyala.tablet.jobs.staging import plain_name, staging_folder
from nyala.tablet.state.opening import delta_entry, open_rowset
from nyala.tablet.state.root import TableState

if TYPE_CHECKING:
    from nyala.tablet.jobs.load_commit import LoadCommit
    from nyala.tablet.store import Store


def check_staged(store: Store, job: LoadCommit, table: TableState) -> None:
    """Check all staged files of the job.

    Raises: InvalidArgumentError if the request does not describe a file correctly; CorruptionError
        for a damaged file; StorageError if a file is gone.
    """
    _check_files(store, job)
    for staged in job.tablets:
        for made in staged.rowsets:
            _check_rowset(store, table, staged, made)
            _check_undo(store, made)
        _check_apart(staged.rowsets)
        for made in staged.idle:
            _check_rowset(store, table, staged, made, idle=True)
            if made.undo is not None:
                raise _refused(made.meta.path, "idle rows", "an UNDO file")
        for delta in staged.deltas:
            _check_changes(store, job, table, staged, delta)


def open_staged(store: Store, table: TableState, made: WrittenRowSet) -> DiskRowSet:
    """Open a staged rowset for reading."""
    entries = []
    if made.undo is not None and made.undo_path is not None:
        entries.append(delta_entry(0, made.meta.id, made.undo_path, made.undo))
    return open_rowset(
        store.env, store.root_path, RowSetEntry.from_meta(made.meta), entries, None, table.schema
    )


def gone(path: str) -> StorageError:
    """The error for a staged file that no longer exists."""
    return StorageError(
        f"the staged file {path} is gone: the job took longer than its files are kept, or its process ended during a "
        "commit. Nothing was written: run the job again",
        path=path,
    )


def _refused(path: str, described: object, found: object) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the commit describes {path} as {described}, but the file has {found}. Nothing was written: use the same "
        "version of Nyala in all processes of the job"
    )


def _check_files(store: Store, job: LoadCommit) -> None:
    """Check that all files are in the job's own folder, are named once, and have the given sizes."""
    sizes: list[tuple[str, int]] = []
    for staged in job.tablets:
        sizes += [(delta.path, delta.delta.file.size_bytes) for delta in staged.deltas]
        for made in (*staged.rowsets, *staged.idle):
            sizes.append((made.meta.path, made.meta.size_bytes))
            if made.undo is not None and made.undo_path is not None:
                sizes.append((made.undo_path, made.undo.file.size_bytes))
    folder = staging_folder("", job.key)
    seen: set[str] = set()
    for path, size_bytes in sizes:
        if os.path.dirname(path) != folder:
            raise InvalidArgumentError(f"the file {path!r} is not in the job's folder {folder!r}")
        plain_name(os.path.basename(path))
        if path in seen:
            raise InvalidArgumentError(f"the commit names the file {path!r} twice")
        seen.add(path)
        try:
            found = store.env.files.size(store.path(path))
        except FileNotFoundError as error:
            raise gone(path) from error
        if found != size_bytes:
            raise CorruptionError(
                f"the staged file has {found} bytes, expected {size_bytes}", store.path(path)
            )


def _check_rowset(
    store: Store, table: TableState, staged: StagedTablet, made: WrittenRowSet, *, idle: bool = False
) -> None:
    meta = made.meta
    if meta.tablet_id != staged.tablet_id or not meta.row_count:
        raise InvalidArgumentError(
            f"the commit names a rowset of tablet {meta.tablet_id} ({meta.row_count} rows) among the files of tablet "
            f"{staged.tablet_id}"
        )
    if meta.schema_version != table.schema.version:
        raise _refused(
            meta.path, f"of schema version {meta.schema_version}", f"version {table.schema.version}"
        )
    with _columns(store, meta.path, meta.file_id, meta.columns) as reader:
        ids = [place.key.column_id for place in meta.columns if place.key.role == BASE]
        given = [number for number in ids if number != LIVENESS]
        if idle != (LIVENESS in ids):
            kinds = ("new rows", "idle rows")
            raise _refused(meta.path, kinds[idle], kinds[not idle])
        every = [column.id for column in table.schema.columns]
        if (given != every) if not idle else not set(table.schema.key_ids) <= set(given) <= set(every):
            raise _refused(meta.path, f"a rowset of columns {every}", f"columns {given}")
        _check_count(reader, ColumnKey(BASE, 0, table.schema.columns[0].id), meta.path, meta.row_count)
    rowset = open_staged(store, table, made)
    try:
        ends = rowset.keys_of(np.array([0, meta.row_count - 1]))
        if (ends.at(0), ends.at(1)) != (meta.key_min, meta.key_max):
            described = f"keys {meta.key_min.hex()} to {meta.key_max.hex()}"
            raise _refused(meta.path, described, f"keys {ends.at(0).hex()} to {ends.at(1).hex()}")
        names = [column.name for column in table.schema.key_columns]
        places = table.router.route(dict(zip(names, table.codec.decode(ends), strict=True)), 2)
        tablets = {table.tablets[place].id if place >= 0 else None for place in places.tolist()}
        if tablets != {staged.tablet_id}:
            raise _refused(meta.path, f"rows of tablet {staged.tablet_id}", f"rows of tablets {tablets}")
    finally:
        rowset.close()


def _check_apart(rowsets: Sequence[WrittenRowSet]) -> None:
    """Check that the key ranges of a tablet's new rowsets do not overlap."""
    ordered = sorted((made.meta for made in rowsets), key=lambda meta: meta.key_min)
    for one, other in itertools.pairwise(ordered):
        if other.key_min <= one.key_max:
            raise _refused(other.path, f"new rows apart from those of {one.path}", "overlapping keys")


def _check_undo(store: Store, made: WrittenRowSet) -> None:
    """Check the UNDO file of new rows, which says that none of them existed before the commit."""
    path, undo = f"{made.meta.path}.undo", made.undo
    if undo is None or made.undo_path != path:
        raise _refused(made.meta.path, f"new rows with UNDO file {made.undo_path}", f"its UNDO in {path}")
    if (undo.kind, tuple(undo.column_ids)) != ("undo", (LIVENESS,)):
        raise _refused(path, f"{undo.kind} of columns {undo.column_ids}", "UNDO of LIVENESS")
    _check_delta_file(store, path, undo, made.meta.row_count)
    if undo.record_count != made.meta.row_count:
        raise _refused(path, f"UNDO of {made.meta.row_count} rows", f"UNDO of {undo.record_count} rows")


def _check_changes(
    store: Store, job: LoadCommit, table: TableState, staged: StagedTablet, made: StagedDelta
) -> None:
    rowset = job.files[made.rowset_id].rowset
    if rowset.tablet_id != staged.tablet_id:
        raise InvalidArgumentError(
            f"the commit names changes of rowset {made.rowset_id} for tablet {staged.tablet_id}, which does not have "
            "this rowset"
        )
    if re.fullmatch(rf".*-{made.rowset_id}-\d+\.redo", made.path) is None:
        raise _refused(made.path, f"changes of rowset {made.rowset_id}", "another rowset in its name")
    known = {LIVENESS} if job.operation.startswith("delete") else {c.id for c in table.schema.value_columns}
    if not set(made.delta.column_ids) <= known:
        raise _refused(made.path, f"changes of {job.operation}", f"columns {made.delta.column_ids}")
    _check_delta_file(store, made.path, made.delta, rowset.row_count)


def _check_delta_file(store: Store, path: str, made: WrittenDelta, row_count: int) -> None:
    """Check a delta file of a rowset with `row_count` rows."""
    with _columns(store, path, made.file.file_id, made.file.columns) as reader:
        ids = [place.key.column_id for place in made.file.columns if place.key.role == DELTA_VALUE]
        if sorted(ids) != sorted(made.column_ids):
            raise _refused(path, f"records of columns {sorted(made.column_ids)}", f"columns {sorted(ids)}")
        records = 0
        for place in made.file.columns:
            if place.key.role == DELTA_ROWID:
                rowids = _column(reader, place.key, path)
                records += rowids.row_count
                greatest = rowids.column_zone().max if rowids.has_zones else None
                if greatest is None or not 0 <= greatest < row_count:
                    raise _refused(path, f"records of {row_count} rows", f"one of row {greatest}")
        if records != made.record_count:
            raise _refused(path, f"{made.record_count} records", f"{records} records")


def _columns(store: Store, path: str, file_id: str, described: Sequence[ColumnPlace]) -> CFileReader:
    """Open the file, check that it has the `described` columns, and return its reader."""
    reader = CFileReader(store.env.files, store.path(path), file_id=file_id)
    try:
        found = reader.places()
        if found != tuple(described):
            raise _refused(path, _named(described), _named(found))
    except BaseException:
        reader.close()
        raise
    return reader


def _named(places: Sequence[ColumnPlace]) -> str:
    return ", ".join(f"{place.key.in_words} at offset {place.offset}" for place in places)


def _column(reader: CFileReader, key: ColumnKey, path: str) -> ColumnReader:
    column = reader.column(key)
    if column is None:
        raise _refused(path, f"a file with {key.in_words}", "no such column")
    return column


def _check_count(reader: CFileReader, key: ColumnKey, path: str, row_count: int) -> None:
    found = _column(reader, key, path).row_count
    if found != row_count:
        raise _refused(path, f"{row_count} rows", f"{found} rows")
