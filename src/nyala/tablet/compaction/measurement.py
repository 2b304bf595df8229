"""Measures the rowsets of a tablet for the compaction policy, as `RowSetLayout`.

Most measurements cost nothing, because sizes and record counts are in the catalogue. Only the
number of expired rows (those that died before the history mark) needs the liveness of rowsets with
dead rows. `Layouts` remembers this number.

Estimates of expired data must not be too high. Otherwise a rewrite would remove less than planned,
and the policy would plan the same rewrite again. So if a share of an UNDO file has expired, only
half of this share counts. The share is computed as if the file had equally many records for each
second between its first and its last timestamp.

Source: docs/design/kudu.md, "History and its mark" and "Choice of rowsets to merge".
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from nyala.cfile.blocks.read_stats import Access
from nyala.cfile.column import BASE
from nyala.cfile.reader import CFileReader
from nyala.delta.run import LIVENESS, MAX_TIMESTAMP
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.schema.schema import Schema
from nyala.tablet.compaction.plans import RowSetLayout
from nyala.tablet.state.history import oldest_readable
from nyala.tablet.state.reservations import Reservations
from nyala.tablet.state.root import TableState, TabletState


@dataclass(frozen=True)
class _Expired:
    """The number of rows of a rowset that were dead at a moment.

    cut: the moment, a timestamp.
    """

    cut: int
    rows: int


class Layouts:
    """Measures the rowsets of tablets (sizes, garbage, changes) for the choice of compactions.

    Remembers the number of expired rows of each rowset, because counting them needs reads of files.
    For one thread at a time.
    """

    def __init__(self) -> None:
        self._expired: weakref.WeakKeyDictionary[DiskRowSet, _Expired] = weakref.WeakKeyDictionary()

    def of_tablet(
        self,
        tablet: TabletState,
        cut: int,
        reservations: Reservations | None = None,
        schema: Schema | None = None,
    ) -> list[RowSetLayout]:
        """Return the layout of each rowset, by which the policy chooses compactions.

        A layout has the rowset's first and last key, its sizes and the amount of expired data.

        cut:    history counts as expired if only reads before this timestamp need it. 0: no history
                has expired.
        reservations: a rowset that is reserved there gets `available=False`. None: all rowsets get
                `available=True`.
        schema: the stored columns (`TableState.stored_schema`); None: all that ever existed.

        Cost: the first call reads a block of each text column of one rowset. Every call reads the
        liveness of rowsets with dead rows, if the rowset or the cut has changed.
        """
        if not tablet.rowsets:
            return []
        row_bytes, text_bytes = decoded_row_bytes(
            max(tablet.rowsets, key=lambda rowset: rowset.row_count), tablet.memory.schema
        )
        return [
            self._layout(
                rowset,
                cut,
                reservations is None or not reservations.taken(rowset.id),
                row_bytes,
                text_bytes,
                schema,
            )
            for rowset in tablet.rowsets
        ]

    def _layout(
        self,
        rowset: DiskRowSet,
        cut: int,
        available: bool,
        row_bytes: float,
        text_bytes: float,
        schema: Schema | None,
    ) -> RowSetLayout:
        expired_rows = self._expired_rows(rowset, cut)
        undo = rowset.undo[::-1]
        whole = [file for file in undo if file.timestamp_max <= cut]
        expired_undo = sum(file.size_bytes for file in whole)
        for file in undo:
            if file.timestamp_min <= cut < file.timestamp_max:
                share = (cut - file.timestamp_min) / (file.timestamp_max - file.timestamp_min)
                expired_undo += int(file.size_bytes * share / 2)
        records: dict[int, int] = {}
        for file in rowset.redo:
            for column in file.column_ids:
                records[column] = records.get(column, 0) + file.record_count
        return RowSetLayout(
            id=rowset.id,
            key_min=rowset.meta.key_min,
            key_max=rowset.meta.key_max,
            row_count=rowset.row_count,
            base_bytes=rowset.base_bytes,
            redo_bytes=sum(file.size_bytes for file in rowset.redo),
            undo_bytes=sum(file.size_bytes for file in rowset.undo),
            redo_files=[(file.size_bytes, file.record_count) for file in rowset.redo],
            redo_columns=records,
            base_columns=_column_bytes(rowset),
            undo_files=[(file.size_bytes, file.record_count) for file in undo],
            expired_rows=expired_rows,
            expired_undo_bytes=expired_undo,
            expired_undo_files=len(whole),
            superseded_bytes=superseded_bytes(
                rowset, None if schema is None else {column.id for column in schema.columns}
            ),
            outdated=schema is not None and rowset.meta.schema_version < schema.layout_version,
            # A rowset with changes in memory cannot be dropped. A rewrite flushes them first.
            all_expired=expired_rows == rowset.row_count and not rowset.nbytes,
            available=available,
            decoded_bytes=int(row_bytes * rowset.row_count),
            text_bytes=_text_bytes.get(rowset.reader, int(text_bytes * rowset.row_count)),
        )

    def _expired_rows(self, rowset: DiskRowSet, cut: int) -> int:
        if cut <= 0 or not has_dead_rows(rowset):
            return 0
        known = self._expired.get(rowset)
        if known is None or known.cut != cut:
            # Dead rows of a rowset stay dead. So count again only if some rows were still alive.
            if known is not None and known.rows == rowset.row_count:
                return known.rows
            known = _Expired(cut, expired_rows(rowset, cut))
            self._expired[rowset] = known
        return known.rows


def superseded_bytes(rowset: DiskRowSet, stored: Collection[int] | None = None) -> int:
    """Return about how many bytes of the base data belong to columns that nobody reads any more.

    A rewrite of the rowset drops these columns. They are columns that a newer part replaces, and
    columns that are not in `stored`, because they were dropped before the history begins.

    stored: column ids; LIVENESS always counts as stored. None: all columns are stored.
    """
    base = {place.key.column_id for place in rowset.meta.columns if place.key.role == BASE}
    newer: set[int] = set()
    if stored is not None:
        newer = base.union(*(part.column_ids for part in rowset.parts)) - {*stored, LIVENESS}
    size = 0
    for part in reversed(rowset.parts):
        size += part.size_bytes * len(part.column_ids & newer) // max(len(part.column_ids), 1)
        newer |= part.column_ids
    return size + rowset.meta.size_bytes * len(base & newer) // max(len(base), 1)


def _column_bytes(rowset: DiskRowSet) -> dict[int, int]:
    """Return about how many bytes each column takes in the base data, by column id.

    Every column gets the average, because exact numbers would need a read of the file.
    """
    columns = {place.key.column_id for place in rowset.meta.columns if place.key.role == BASE}
    return dict.fromkeys(columns, (rowset.base_bytes - superseded_bytes(rowset)) // max(len(columns), 1))


# The results of `decoded_row_bytes` by base file. One rowset is sampled for the whole tablet.
_row_bytes: weakref.WeakKeyDictionary[CFileReader, tuple[float, float]] = weakref.WeakKeyDictionary()

# The text bytes of rowsets for which this sample is wrong: see `note_text_bytes`.
_text_bytes: weakref.WeakKeyDictionary[CFileReader, int] = weakref.WeakKeyDictionary()


def note_text_bytes(rowset: DiskRowSet, text_bytes: int) -> None:
    """Remember the exact text size of a rowset that a merge made small to limit its text.

    `Layouts` then uses this size and not its estimate, which is too low. By the estimate, the policy
    would merge the rowset with its neighbour again and again.
    """
    _text_bytes[rowset.reader] = text_bytes


def decoded_row_bytes(rowset: DiskRowSet, schema: Schema) -> tuple[float, float]:
    """Return two estimated sizes of a row in memory, in bytes: all columns; the largest text column.

    Cost: reads the first block of each text column as a sample.
    """
    known = _row_bytes.get(rowset.reader)
    if known is None:
        whole, most = float(len(rowset.meta.key_max)), 0.0
        for column in schema.columns:
            try:
                whole += column.type.arrow.bit_width / 8
                continue
            except ValueError:  # text and binary
                reader = rowset.base_column(column.id)
            if reader is not None:
                rows = min(reader.rows_per_block, reader.row_count)
                text = reader.decode(0, rows, access=Access.ONCE).nbytes / rows
                whole, most = whole + text, max(most, text)
        known = _row_bytes[rowset.reader] = whole, most
    return known


def has_dead_rows(rowset: DiskRowSet) -> bool:
    """Return whether a row of the rowset may be dead, in files or in memory. Opens no file."""
    if rowset.base_column(LIVENESS) is not None or LIVENESS in rowset.deltas.column_ids:
        return True
    return any(LIVENESS in file.column_ids for file in rowset.redo) or any(
        LIVENESS in store.column_ids for store in rowset.frozen
    )


def expired_rows(rowset: DiskRowSet, cut: int) -> int:
    """Return the number of rows that are dead at `cut` and at each later moment.

    Cost: reads the rowset's liveness twice.
    """
    now = rowset.liveness(MAX_TIMESTAMP, 0, rowset.row_count)
    if now is None:
        return 0
    dead = ~now
    # If a row is dead now, and its liveness did not change after the cut, it was dead at the cut.
    for file in (*rowset.undo, *rowset.redo):
        if LIVENESS in file.column_ids and file.timestamp_max > cut:
            run = file.run(LIVENESS)
            if run is not None:
                dead[run.rowids[run.timestamps > cut]] = False
    for store in (*rowset.frozen, rowset.deltas):
        for run in store.levels(LIVENESS):
            dead[run.rowids[run.timestamps > cut]] = False
    return int(np.count_nonzero(dead))


def all_expired(rowset: DiskRowSet, cut: int) -> bool:
    """Return whether all rows of the rowset are dead at `cut` and at each later moment."""
    return cut > 0 and has_dead_rows(rowset) and expired_rows(rowset, cut) == rowset.row_count


def tag_bytes(table: TableState, published: int, now_us: int) -> int:
    """Return about how many bytes of files are kept only because of tags.

    The files of a dropped table and of dropped ranges count, too, if only tags keep them.
    Cost: measures all tablets twice. Returns 0 at once if no tag is older than the history.
    """
    cut = oldest_readable(table.entry, published, now_us)
    without = oldest_readable(dataclasses.replace(table.entry, tagged=()), published, now_us)
    if without <= cut:
        return 0
    purged = [tablet for tablet in table.dropped if tablet.entry.dropped <= without]
    if 0 < table.entry.dropped <= without:
        purged = list(table.every_tablet)
    kept = [tablet for tablet in table.every_tablet if tablet not in purged]

    def expired_bytes(cut: int) -> int:
        schema = table.stored_schema(cut)
        layouts = (Layouts().of_tablet(tablet, cut, None, schema) for tablet in kept)
        return sum(layout.expired_bytes for found in layouts for layout in found)

    files = sum(rowset.size_bytes for tablet in purged for rowset in tablet.rowsets)
    return files + max(0, expired_bytes(without) - expired_bytes(cut))


def dead_rows_of(rowsets: Iterable[DiskRowSet]) -> tuple[int, int]:
    """Return (the number of dead rows, about how many bytes these rows take in the base data)."""
    rows, size = 0, 0.0
    for rowset in rowsets:
        if has_dead_rows(rowset):
            alive = rowset.liveness(MAX_TIMESTAMP, 0, rowset.row_count)
            if alive is not None:
                dead = int(np.count_nonzero(~alive))
                rows += dead
                size += rowset.base_bytes * dead / rowset.row_count
    return rows, round(size)
