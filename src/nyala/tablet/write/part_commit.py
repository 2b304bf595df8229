"""Commits a large batch in parts, so that the needed memory does not grow with the rows.

The batch keeps the flush lock and the commit lock until the end (other writers wait; scans do not):

    flush the table's memory, and take one timestamp t
    for each part of the rows: prepare, check for conflicts, resolve, write files at t
    sync the files, commit one catalogue change, and replace the root

SQL statements use this instead of `direct_commit`, because their rows are in a memory-mapped file
and not in memory. A part has 64 MB, or an eighth of the store's memory limit if that is more.

Invariants
    PC1  Nothing of the batch is visible before the catalogue change.
    PC2  Each key is in only one part. The caller checks that updated and deleted keys are distinct.
         Inserted keys are also looked up in the files of the earlier parts. If a key is found
         there, the batch is not committed here.

A batch with failing rows, or with rows that cannot be divided, is not committed here either. The
caller then commits the whole batch at once, which reports all failing rows.

Source: docs/design/writes-and-batches.md, "Batches above 64 MB are written as files".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from nyala.catalog.model import CatalogChange
from nyala.env.interrupts import Interruptible
from nyala.tablet.flush.lifecycle import flush
from nyala.tablet.state.result import Ticket, WriteResult
from nyala.tablet.state.root import TableState, TabletState
from nyala.tablet.write.conflicts import changed_after, check_unchanged
from nyala.tablet.write.direct_commit import commit_files, write_effects
from nyala.tablet.write.effects import OperationCounts, ResolvedBatch
from nyala.tablet.write.resolve import resolve
from nyala.tablet.write.write_path import Request, locked, prepare_request, unaltered

if TYPE_CHECKING:
    from nyala.tablet.store import Store

# The memory that resolving needs for a row, besides its columns.
_ROW_BYTES: Final = 90
_PART_BYTES_MIN: Final = 64 << 20
# A batch with fewer parts is committed as a whole.
_PARTS_MIN: Final = 4
_FRESH: Final = ("insert", "upsert")


class _NotInParts(Exception):
    """Internal: the batch cannot be committed in parts, but only as a whole."""


def commit_in_parts(
    store: Store,
    requests: Sequence[Request],
    seen: TableState,
    since: int,
    between: Callable[[], None],
) -> list[WriteResult] | None:
    """Commit a large batch on one table. Write its rows to files part by part, to save memory.

    All parts become visible together, at one timestamp.

    requests: the keys of updates and deletes are distinct over all requests.
    seen:     the table for which the requests were computed, from the snapshot `since`.
    between:  called after each part.
    Returns: one result per request. None: the function changed nothing, and the caller must commit
             the batch as a whole. Reasons are a small batch, rows that cannot be divided, an
             inserted key in several parts, and a row that fails.
    Raises: ConflictError, StorageError. Then nothing changed.
    """
    part_bytes = _part_bytes(store)
    if not _can_divide(requests) or sum(map(_memory_of, requests)) < _PARTS_MIN * part_bytes:
        return None
    counts = [OperationCounts() for _ in requests]

    def under_lock() -> tuple[TableState, Ticket]:
        table = _flushed(store, unaltered(store, seen), any(each.operation != "insert" for each in requests))
        timestamp = store.clock.next()
        change = CatalogChange(timestamp=timestamp)

        def write(changed: dict[int, TabletState], written: list[str]) -> None:
            for request, count in zip(requests, counts, strict=True):
                for rows in _parts(request.data, part_bytes):
                    made = store.root.with_tablets(changed).tables[table.id]
                    part = dataclasses.replace(request, data=rows, prepared=None)
                    resolved = _resolved(table, made, part, since, timestamp)
                    _add(count, resolved.counts[0])
                    write_effects(store, resolved, timestamp, change, changed, written)
                    del resolved
                    between()
            if not changed:
                raise _NotInParts

        commit_files(store, change, write)
        return table, Ticket(timestamp, None)

    try:
        table, ticket = locked(store, under_lock, large=True)
    except _NotInParts:
        return None
    return [
        WriteResult(
            ticket.timestamp, each.inserted, each.updated, each.deleted, each.ignored, table.no_errors
        )
        for each in counts
    ]


def parts_of(store: Store, rows: pa.Table) -> Iterator[pa.Table]:
    """Divide `rows` into the parts that `commit_in_parts` would write, and yield the parts."""
    return _parts(rows, _part_bytes(store))


def _part_bytes(store: Store) -> int:
    return max(_PART_BYTES_MIN, store.options.memory_limit_bytes // 8)


def _can_divide(requests: Sequence[Request]) -> bool:
    """Whether the requests can be divided into parts: only Arrow tables without conditions can."""
    return all(
        isinstance(request.data, pa.Table) and request.condition is None and request.numbers is None
        for request in requests
    )


def _memory_of(request: Request) -> int:
    return int(request.data.nbytes + _ROW_BYTES * request.data.num_rows)


def _parts(rows: pa.Table, part_bytes: int) -> Iterator[pa.Table]:
    row_bytes = _ROW_BYTES + rows.nbytes // max(rows.num_rows, 1)
    count = max(part_bytes // row_bytes, 1)
    for begin in range(0, rows.num_rows, count):
        yield rows.slice(begin, count)


def _flushed(store: Store, table: TableState, changes_rows: bool) -> TableState:
    """Flush the table, and return it without rows or changes in memory.

    A running merge of rowsets keeps their new changes in memory until its end, so the flush cannot
    write them.

    changes_rows: whether the batch may update or delete rows. True: stop running merges, so that
                  all changes are flushed. False: the batch only inserts, and merges continue.
    """
    if changes_rows:
        changed = [rowset.id for tablet in table.tablets for rowset in tablet.rowsets]
        store.reservations.revoke(filter(store.reservations.holds_deltas, changed))
    with Interruptible():
        flush(store, {tablet.id for tablet in table.tablets})
    return store.root.tables[table.id]


def _resolved(
    table: TableState, made: TableState, request: Request, since: int, timestamp: int
) -> ResolvedBatch:
    """Prepare and resolve one part of a request.

    table:     the table before the batch.
    made:      the table with the files of the earlier parts.
    since:     the snapshot for which the request was computed. A key that changed after it is a
               conflict.
    timestamp: the timestamp of the whole batch, also of the earlier parts.
    Raises: ConflictError; _NotInParts if a row fails.
    """
    operation = prepare_request(table, request, borrow_above_bytes=0)
    check_unchanged(table, [operation], since)
    if (
        request.operation in _FRESH
        and changed_after(made, operation.keys, operation.tablets, timestamp - 1).any()
    ):
        raise _NotInParts  # an earlier part has this key
    resolved = resolve(made if request.operation in _FRESH else table, [operation])
    if resolved.failed:
        raise _NotInParts
    return resolved


def _add(total: OperationCounts, part: OperationCounts) -> None:
    for field in dataclasses.fields(OperationCounts):
        setattr(total, field.name, getattr(total, field.name) + getattr(part, field.name))
