"""Erases rows by key from everything that a store keeps: files, history, memory, log and catalogue.

    1 delete     Delete the rows as one batch, at timestamp P.
    2 mark       Store a new timestamp M in the catalogue. An incremental backup or change feed
                 that begins before M learns from it that rows were erased.
    3 rewrite    Flush memory. Rewrite each rowset that has one of the keys, dead or alive, without
                 the rows of the keys up to P (`RowSetImage.without_past_of`).
    4 log        Flush all tables until the log has no record from before this step. Write new
                 checkpoints, because the key bounds in old checkpoints may be erased keys.
    5 garbage    Remove the replaced files when nobody reads them.

Invariants
    U1  After step 4, no file that the store needs has a byte of the rows up to P. A key that is
        inserted again after P is a new row, with its history since then. M is later than P, and
        later than all backups from before step 2.
    U2  Each step can be repeated. After a crash the rows stay deleted, and the same call does the
        rest.
    U3  A scan that has an old root, and a reader with a lease, can continue. `remaining` returns
        the files that they keep.

Not erased: tables that were cloned or copied from this one, dropped tables, backups, and copies
that readers of change feeds keep. Source: docs/design/snapshots-and-history.md, "Erasing rows by
key".
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from nyala.catalog.model import CatalogChange
from nyala.delta.run import MAX_TIMESTAMP
from nyala.env import MissingFileError
from nyala.env.interrupts import Uninterrupted
from nyala.errors import InvalidArgumentError, StorageError, TableNotFoundError
from nyala.keys.encoded_keys import EncodedKeys
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.tablet.compaction.lifecycle import compact, lack_of_space, run_here
from nyala.tablet.compaction.plans import MergePlan
from nyala.tablet.flush.lifecycle import flush
from nyala.tablet.manual_maintenance import wait_for_others
from nyala.tablet.state import store_folder as layout
from nyala.tablet.state.root import TableState, TabletState
from nyala.tablet.write.where_writes import read_keys
from nyala.tablet.write.write_path import Request, write

if TYPE_CHECKING:
    from nyala.tablet.store import Store

logger = logging.getLogger("nyala.compaction")

ROUNDS_MAX: Final = 8
LOG_WAIT_S: Final = 600.0
_PAUSE_S: Final = 0.2


@dataclass(frozen=True)
class Remaining:
    """The replaced files that may still have bytes of purged rows, and who keeps them."""

    files: int
    bytes: int
    holders: tuple[str, ...]


@dataclass(frozen=True)
class PurgeReport:
    """What a purge did.

    timestamp: when the purge was recorded in the catalogue. An incremental backup or change feed
               that begins earlier learns from it that rows were erased.
    clones:    other tables that share files with the purged table, and so still have the rows.
    """

    timestamp: int
    keys: int
    deleted: int
    rowsets_rewritten: int
    bytes_rewritten: int
    files_removed: int
    remaining: Remaining
    clones: tuple[str, ...]


def purge(store: Store, name: str, keys: pa.Table, wait_s: float, message: str | None = None) -> PurgeReport:
    """Erase the rows with these keys from the table.

    keys:   a result of `key_rows`.
    wait_s: how many seconds to wait at the end for readers that still use replaced files.
    Raises: TableNotFoundError, InvalidArgumentError, InvalidValueError (nothing changed);
            StorageError, CorruptionError (the rows are deleted; call again to erase them).
    """
    store.check_writable()
    table = store.root.table(name)
    encoded, ordinals = read_keys(table, keys, "purge")
    _check_free(store, table, encoded)
    rows = _rows_of(table, encoded.take(np.flatnonzero(ordinals >= 0)))
    deleted = write(store, [Request(name, "delete", rows, True)], message=message)[0]
    moment = deleted.timestamp
    encoded = encoded.take(encoded.sort_indices())
    files = set(store.state.files()) | set(store.state.garbage)
    marked = _mark(store, table.id)
    done = _rewrite(store, table.id, encoded, moment)
    _renew_log(store)
    left = remaining(store, table.id)
    deadline_s = store.env.clock.monotonic_s() + wait_s
    while left.files and store.env.clock.monotonic_s() < deadline_s:
        store.env.clock.sleep_s(min(_PAUSE_S, max(0.0, deadline_s - store.env.clock.monotonic_s())))
        left = remaining(store, table.id)
    gone = (files | done.paths) - set(store.state.files()) - set(store.state.garbage)
    logger.info("purged %d keys of table %r: %d rowsets were rewritten", len(encoded), name, done.rowsets)
    return PurgeReport(
        marked,
        len(encoded),
        deleted.deleted,
        done.rowsets,
        done.bytes,
        len(gone),
        left,
        _sharing(store, done.paths),
    )


def key_rows(table: TableState, keys: Any) -> pa.Table:
    """Check a user's keys, and return them as a table of key columns.

    Raises: the errors of `read_keys`.
    """
    if isinstance(keys, pa.RecordBatchReader):
        keys = keys.read_all()
    return _rows_of(table, read_keys(table, keys, "purge")[0])


def _rows_of(table: TableState, keys: EncodedKeys) -> pa.Table:
    return pa.table(table.codec.decode(keys), names=[column.name for column in table.schema.key_columns])


def remaining(store: Store, table_id: int) -> Remaining:
    """Delete the files that nobody needs. Return how many replaced files remain, and who uses them.

    The result counts files of this table and segments of the log.
    """
    store.collect_garbage()
    state, root = store.state, store.root
    others = {layout.tablet_directory(tablet.id) for table, tablet in root.tablets() if table.id != table_id}
    left = [path for path in state.garbage if path.rpartition("/")[0] not in others]
    if not left:
        return Remaining(0, 0, ())
    size = 0
    for path in left:
        try:
            size += store.env.files.size(store.path(path))
        except MissingFileError:
            continue
    return Remaining(len(left), size, tuple(store.keepers(left)))


# ── steps


def _check_free(store: Store, table: TableState, keys: EncodedKeys) -> None:
    """Check that nothing prevents a purge of the rows with these keys.

    Raises: InvalidArgumentError if a transaction is open, or if a job of another process is
            changing a rowset that contains one of `keys`.
    """
    if store.pins.oldest() is not None:
        raise InvalidArgumentError(
            f"table {table.name!r} cannot be purged while a transaction is open, which could still read the rows: "
            "commit it or roll it back first"
        )
    with Uninterrupted(), store.commit_lock:
        store.job_reservations.release_expired(store)
    ids = [rowset.id for _, rowset, _ in _found(table, keys.take(keys.sort_indices()))]
    if holders := store.job_reservations.holders(ids):
        raise InvalidArgumentError(
            f"table {table.name!r} cannot be purged while {holders[0].holder} changes its rows: purge again when the "
            "job has ended"
        )


def _mark(store: Store, table_id: int) -> int:
    """Store a new timestamp, the time of this purge, in the table's catalogue entry, and return it.

    Change feeds, transactions and incremental backups that began earlier then find out that rows
    were purged.
    """
    with Uninterrupted(), store.commit_lock:
        store.check_writable()
        root = store.root
        table = _table(store, table_id)
        marked = store.stamp()
        entry = dataclasses.replace(table.entry, purged_keys=marked)
        fresh = dataclasses.replace(table, entry=entry).with_tablets({})
        change = CatalogChange(timestamp=marked, put_tables=[entry])
        store.transact(change, lambda version: root.with_table(fresh, version))
        return marked


@dataclass
class _Rewritten:
    """The result of rewriting rowsets without the purged rows.

    rowsets: the number of rewritten rowsets.
    bytes:   the total size of the new files.
    paths:   the replaced files.
    """

    rowsets: int = 0
    bytes: int = 0
    paths: set[str] = field(default_factory=set)


def _rewrite(store: Store, table_id: int, keys: EncodedKeys, moment: int) -> _Rewritten:
    """Rewrite all rowsets that have one of the keys, without the rows of these keys.

    Dropped ranges are rewritten too, because the deletion before this call did not reach them.
    moment: the timestamp of the deletion; later rows with these keys are kept.
    """
    clean: set[int] = set()  # the rewritten rowsets
    done = _Rewritten()
    for _ in range(ROUNDS_MAX):
        table = _table(store, table_id)
        wait_for_others(store, table)
        flush(store, {tablet.id for tablet in table.every_tablet})
        root = store.root  # keeps the files during the search
        table = _table(store, table_id)
        found = [each for each in _found(table, keys) if each[1].id not in clean]
        del root
        if not found:
            return done
        for tablet, rowset, mine in found:
            hexed = tuple(keys.at(index).hex() for index in mine.tolist())
            until = MAX_TIMESTAMP if tablet.entry.dropped else moment
            plan = MergePlan((rowset.id,), 0.0, purged=hexed, purged_until=until)
            if lack := lack_of_space(store, table, tablet.id, plan):
                raise StorageError(
                    f"table {table.name!r} cannot be purged: {lack}. The rows are deleted; free some space and purge "
                    "again to erase them",
                    path=store.root_path,
                )
            made = compact(store, table_id, tablet.id, plan, run_here(store))
            if made is not None:
                clean.update(made.rowset_ids)
                done.rowsets += 1
                done.bytes += made.bytes_after
                done.paths.update(rowset.paths)
    raise StorageError(
        f"table {table.name!r} is not purged yet, because other work changes its rowsets. The rows are deleted: purge "
        "again to erase them"
    )


def _found(table: TableState, keys: EncodedKeys) -> Iterator[tuple[TabletState, DiskRowSet, np.ndarray]]:
    """Yield the rowsets that have one of the keys, as (tablet, rowset, indexes of these keys).

    keys: in ascending order.
    """
    for tablet in table.every_tablet:
        for rowset, lower, upper in tablet.tree.candidates(keys):
            rowids = rowset.find(keys.slice(lower, upper - lower))
            if (rowids >= 0).any():
                yield tablet, rowset, np.flatnonzero(rowids >= 0) + lower


def _sharing(store: Store, paths: Set[str]) -> tuple[str, ...]:
    """Return the names of tables that still use one of these files, for example clones."""
    found = {
        table.name
        for table, tablet in store.root.tablets()
        if any(not paths.isdisjoint(rowset.paths) for rowset in tablet.rowsets)
    }
    return tuple(sorted(found))


def _renew_log(store: Store) -> None:
    """Flush, and write checkpoints, until log and checkpoints have nothing from before this call.

    A bucket needs two new checkpoints, because it keeps the last two and the log between them.
    Raises: StorageError after ten minutes.
    """
    with Uninterrupted(), store.commit_lock:
        store.check_writable()
        border = store.log.cut()
    deadline_s = store.env.clock.monotonic_s() + LOG_WAIT_S
    while True:
        store.reserve.use(lambda: flush(store))
        _forget_log(store)
        store.renew_checkpoint()
        if not store.log.holds_before(border):
            return
        if store.env.clock.monotonic_s() > deadline_s:
            raise StorageError(
                "the purge deleted the rows, but the log still has their values, because a running compaction "
                "needs it: purge again when db.maintenance.status() shows no compaction"
            )
        store.env.clock.sleep_s(_PAUSE_S)


def _forget_log(store: Store) -> None:
    with Uninterrupted(), store.commit_lock:
        root = store.root
        store.transact(CatalogChange(), root.at_version, forget_log=True)


def _table(store: Store, table_id: int) -> TableState:
    table = store.root.tables.get(table_id)
    if table is None:
        raise TableNotFoundError("the table was dropped before it was purged")
    return table
