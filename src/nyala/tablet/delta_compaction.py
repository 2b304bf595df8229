"""Minor delta compaction: several REDO files of a rowset become one, row by row and moment by moment the same.

It reads no base data and drops nothing, so nothing that a snapshot could see changes, and no durable mark
moves. Which files to merge is a pure function (`delta.compaction_policy`); a year of daily flushes leaves
O(log 365) files.

Source: `seeds/tablet.txt`, "Types of Delta Compaction"; Kudu facts §5.4 (Kudu merges all files each time).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nyala.catalog.model import CatalogChange
from nyala.delta.compaction import merge_delta_files
from nyala.delta.compaction_policy import choose_redo_files
from nyala.delta.delta_file import DeltaFile
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.tablet.flush import delta_types
from nyala.tablet.opening import delta_entry, entry_of
from nyala.tablet.root import TableState

if TYPE_CHECKING:
    from nyala.tablet.store import Store

logger = logging.getLogger("nyala.compaction")


def compact_deltas(store: Store) -> int:
    """Run every minor delta compaction that is due; returns how many. Excludes flushes while it runs.

    Raises: StorageError when a file cannot be written; nothing changed then.
    """
    done = 0
    with store.flush_lock:
        root = store.root  # held: a table may be dropped meanwhile, and its files must not go under the merge
        for table, tablet in root.tablets():
            for rowset in tablet.rowsets:
                chosen = choose_redo_files([(file.size_bytes, file.record_count) for file in rowset.redo])
                if chosen is not None:
                    _merge(store, table, tablet.id, rowset, rowset.redo[chosen])
                    done += 1
    return done


def _merge(
    store: Store, table: TableState, tablet_id: int, rowset: DiskRowSet, inputs: Sequence[DeltaFile]
) -> None:
    number = store.allocate("delta")
    path = f"{store.tablet_directory(tablet_id)}/{number}.redo"
    columns = {column for file in inputs for column in file.column_ids}
    try:
        written = merge_delta_files(
            store.env.files, store.path(path), inputs, delta_types(table.schema, columns)
        )
        store.env.files.sync_dir(store.path(store.tablet_directory(tablet_id)))
        entry = delta_entry(number, rowset.id, path, written)
        with store.commit_lock:
            store.check_writable()
            root = store.root
            current = root.tables.get(table.id)
            ordinal = None if current is None else current.ordinal_of.get(tablet_id)
            if current is None or ordinal is None:
                store.discard_files([path])
                return
            tablet = current.tablets[ordinal]
            # The flush lock keeps the rowset's list of files as it was; its memory may have grown.
            now = next(candidate for candidate in tablet.rowsets if candidate.id == rowset.id)
            merged = now.with_merged_redo(inputs, store.open_delta(entry))
            change = CatalogChange(
                put_deltas=[entry],
                drop_deltas=[entry_of(file).id for file in inputs],
                garbage=[file.path for file in inputs],
            )
            state = dataclasses.replace(
                tablet,
                rowsets=tuple(merged if candidate is now else candidate for candidate in tablet.rowsets),
            )
            store.transact(change, lambda version: root.with_tablets({tablet.id: state}, version))
    except BaseException:
        store.discard_files([path])
        raise
    logger.info("merged %d REDO files of rowset %d", len(inputs), rowset.id)
