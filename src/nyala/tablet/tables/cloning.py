"""Clones a table: creates a table whose rowsets refer to the same files, which never change.

    1  without a lock                      flush most of the source's memory
    2  under flush lock and commit lock    flush the rows that came during step 1, so that all rows
                                           are in files; commit one change of the catalogue: new
                                           tablets and new rowsets with the paths of the old files
    3  only for a clone of an earlier      restore the new table to that moment without a lock; then
       moment                              give it its name

Later changes of one table do not affect the other. A compaction of one table drops only this
table's entries of a file. The file becomes garbage when no entry of any table names it.

Invariants
    K1  The clone has the rows that the source has at the moment of the change in step 2. This
        moment is after the call began.
    K2  The clone has no history: it cannot be read at moments before it was complete
        (`TableEntry.rewritten_at`).
    K3  A clone of an earlier moment has a name that marks it as unfinished until it is complete. After
        a crash the next open drops it.

Source: docs/how-to/undo-and-undrop.md, "Try it on a clone". Kudu has no such operation.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from nyala.catalog.model import CatalogChange, TableEntry, TabletEntry
from nyala.env.interrupts import Uninterrupted
from nyala.errors import TableNotFoundError
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.tablet.flush.lifecycle import flush
from nyala.tablet.state.auto_ids import AutoIds
from nyala.tablet.state.entries import RowSetFiles
from nyala.tablet.state.history import check_purged
from nyala.tablet.state.root import Root, TableState, TabletState
from nyala.tablet.state.unfinished import unfinished_name
from nyala.tablet.tables.creation import name_in_use
from nyala.tablet.tables.restore import restore

if TYPE_CHECKING:
    from nyala.tablet.store import Store

logger = logging.getLogger("nyala.store")


def clone_table(store: Store, name: str, new_name: str, at: int | None, *, replaces: bool = False) -> None:
    """Create the table `new_name` with the rows that the table `name` has now, or had at a moment.

    at:       the moment; None: now.
    replaces: drop the table that has the new name, in the same change.
    Raises: TableNotFoundError, TableExistsError; HistoryExpiredError if the table had a range
            partition at that moment whose rows were purged since; StorageError. Nothing is created
            then.
    """
    source = store.root.table(name)
    _check_free(store, new_name, replaces)
    if at is None:
        _share(store, source.id, new_name, None, replaces=replaces)
        return
    check_purged(source.as_of(at), at)
    filled = unfinished_name(store.env, new_name)
    try:
        clone_id = _share(store, source.id, filled, at)
        restore(store, clone_id, at)
        _complete(store, clone_id, new_name, replaces)
    except BaseException:
        with Uninterrupted(), store.commit_lock:
            if filled in store.root.by_name:
                store.drop_tables([filled], purge=True)
        raise


def _share(store: Store, table_id: int, name: str, at: int | None, *, replaces: bool = False) -> int:
    """Create a table that shares the files of the table `table_id`; return the new table's id.

    at: None: share the present tablets, without history. A moment: share the tablets that existed
        at that moment, with their history, so that the new table can be restored to the moment.
    """
    flush(store, _tablet_ids(store, table_id, at))
    with store.flush_lock, Uninterrupted(), store.commit_lock:
        store.check_writable()
        tablets = _tablet_ids(store, table_id, at)
        source = store.root.tables[table_id]
        # A running merge would keep changes of its inputs in memory.
        store.reservations.revoke(
            rowset.id for tablet in source.every_tablet if tablet.id in tablets for rowset in tablet.rowsets
        )
        flush(store, tablets)
        source = store.root.tables[table_id]
        created = store.stamp()
        change, root = _replacing(store, name, created, replaces)
        entry = dataclasses.replace(source.entry, id=store.state.next_table_id, name=name)
        if at is None:
            entry = _without_past(entry, created)
        clone = TableState(entry, (), source.limits)
        change.put_tables.append(entry)
        made = [
            _tablet(store, clone, tablet, change, created, with_past=at is not None)
            for tablet in source.every_tablet
            if tablet.id in tablets
        ]
        clone = dataclasses.replace(clone, tablets=tuple(made))
        store.transact(
            change, lambda version: root.with_table(clone, version), forget_log=bool(change.drop_tables)
        )
    logger.info("cloned table %r as %r: they share %d files", source.name, name, len(change.shared))
    return entry.id


def _tablet_ids(store: Store, table_id: int, at: int | None) -> set[int]:
    table = store.root.tables.get(table_id)
    if table is None:
        raise TableNotFoundError("the table was dropped before it could be cloned")
    table = table if at is None else table.with_tablets_of(at)
    return {tablet.id for tablet in table.tablets}


def _tablet(
    store: Store,
    clone: TableState,
    source: TabletState,
    change: CatalogChange,
    created: int,
    *,
    with_past: bool,
) -> TabletState:
    """Return a tablet of the clone that shares the files of `source`; add its entries to `change`.

    with_past: share the UNDO files, too.
    """
    number = store.allocate("tablet")
    since = source.entry.created if with_past else created
    last = source.ids.last
    entry = TabletEntry(number, clone.id, source.partition, source.entry.inserts_durable, since, auto_id=last)
    change.put_tablets.append(entry)
    rowsets = tuple(_rowset(store, clone, number, rowset, change, with_past) for rowset in source.rowsets)
    return TabletState(entry, store.new_memory(clone), (), rowsets, AutoIds(last))


def _rowset(
    store: Store,
    clone: TableState,
    tablet_id: int,
    source: DiskRowSet,
    change: CatalogChange,
    with_past: bool,
) -> DiskRowSet:
    files = RowSetFiles.of(source)
    number = store.allocate("rowset")
    deltas = [delta for delta in files.deltas if with_past or delta.kind == "redo"]
    copied = RowSetFiles(
        dataclasses.replace(files.rowset, id=number, tablet_id=tablet_id),
        tuple(dataclasses.replace(p, id=store.allocate("delta"), rowset_id=number) for p in files.parts),
        tuple(dataclasses.replace(d, id=store.allocate("delta"), rowset_id=number) for d in deltas),
    )
    change.put_rowsets.append(copied.rowset)
    change.put_parts += copied.parts
    change.put_deltas += copied.deltas
    change.shared += [copied.rowset.path, *(p.path for p in copied.parts), *(d.path for d in copied.deltas)]
    return copied.open(store.env, store.root_path, store.cache, clone.schema)


def _without_past(entry: TableEntry, created: int) -> TableEntry:
    """Return the table's entry with a history that begins at `created`."""
    version = entry.schema.version
    return dataclasses.replace(
        entry,
        schemas={version: entry.schema},
        schema_since={version: created},
        history_start=created,
        created=created,
        rewritten_at=created,
        purged=(),
        drops=(),
        tagged=(),
    )


def _complete(store: Store, table_id: int, name: str, replaces: bool) -> None:
    """Finish a clone of an earlier moment, whose rows were restored to that moment.

    One catalogue change gives it its final name, and discards its history.

    replaces: the same change drops the table that has the name now. False: raise TableExistsError
              if there is such a table.
    """
    with Uninterrupted(), store.commit_lock:
        store.check_writable()
        clone = store.root.tables[table_id]
        created = store.stamp()
        change, root = _replacing(store, name, created, replaces)
        entry = _without_past(dataclasses.replace(clone.entry, name=name), created)
        tablets = tuple(
            dataclasses.replace(tablet, entry=dataclasses.replace(tablet.entry, created=created))
            for tablet in clone.tablets
        )
        change.put_tables.append(entry)
        change.put_tablets += [tablet.entry for tablet in tablets]
        root = root.with_table(TableState(entry, tablets, clone.limits))
        store.transact(change, root.at_version, forget_log=bool(change.drop_tables))


def _replacing(store: Store, name: str, created: int, replaces: bool) -> tuple[CatalogChange, Root]:
    """Return a change that drops the table with this name, if one exists, and the root after it.

    Raises: TableExistsError if the name is in use and `replaces` is false.
    """
    _check_free(store, name, replaces)
    old = [table for table in [store.root.by_name.get(name)] if table is not None]
    return store.dropping(old, created, purge=False)


def _check_free(store: Store, name: str, replaces: bool) -> None:
    if name in store.root.by_name and not replaces:
        raise name_in_use(name)
