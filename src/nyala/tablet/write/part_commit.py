"""Commits a large batch in parts, so that its memory does not grow with its rows.

    under the flush lock and the commit lock throughout (other writers wait; scans do not)
      flush the table's memory; timestamp t
      each part of the rows: prepare, check for conflicts, settle, write files at t
      sync, one catalogue change, one new root

It takes the place of a direct commit (`direct_commit`) for rows that are not in memory: SQL statements map
them from a file. A part has at least 64 MB, and an eighth of the store's memory limit if that is more.

Invariants
    PC1  As B1 of `direct_commit`: nothing of the batch is visible before the catalogue change.
    PC2  A key is in one part only (S1). Keys that are updated or deleted are distinct: the caller checks it.
         Keys that are inserted are looked up also in the files of the parts before: one that an earlier part
         has is not committed here, for example a key that one row gives up and another takes.

A batch that has failing rows, or that does not divide, is not committed here: the caller commits it as a whole,
which reports all failing rows.

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
from nyala.tablet.write.effects import OperationCounts, Settlement
from nyala.tablet.write.settle import settle
from nyala.tablet.write.write_path import Request, locked, prepare_request, unaltered

if TYPE_CHECKING:
    from nyala.tablet.store import Store

# Memory of a row besides its columns while it is settled: its key, positions and orders.
_ROW_BYTES: Final = 90
_PART_BYTES_MIN: Final = 64 << 20
# Smaller batches are committed as a whole.
_PARTS_MIN: Final = 4
_FRESH: Final = ("insert", "upsert")


class _NotInParts(Exception):
    """The batch must be committed as a whole."""


def commit_in_parts(
    store: Store,
    requests: Sequence[Request],
    seen: TableState,
    since: int,
    between: Callable[[], None],
) -> list[WriteResult] | None:
    """Commit requests on one table; None if they must be committed as a whole, and then nothing changed.

    requests: keys of updates and deletes are distinct, also over all requests.
    seen:     the table for which they were computed, from the snapshot `since`.
    between:  called after each part.
    Raises: ConflictError, StorageError; nothing changed then.
    """
    part_bytes = _part_bytes(store)
    if not _divide(requests) or sum(map(_memory_of, requests)) < _PARTS_MIN * part_bytes:
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
                    settlement = _settled(table, made, part, since, timestamp)
                    _add(count, settlement.counts[0])
                    write_effects(store, settlement, timestamp, change, changed, written)
                    del settlement
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
    """Return the parts in which rows of a file are written; few rows are one part."""
    return _parts(rows, _part_bytes(store))


def _part_bytes(store: Store) -> int:
    return max(_PART_BYTES_MIN, store.options.memory_limit_bytes // 8)


def _divide(requests: Sequence[Request]) -> bool:
    """Whether the rows can be committed in parts, if no key is in two of them."""
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
    """Return the table with nothing in memory (B2)."""
    if changes_rows:
        changed = [rowset.id for tablet in table.tablets for rowset in tablet.rowsets]
        store.reservations.revoke(filter(store.reservations.holds_deltas, changed))
    with Interruptible():
        flush(store, {tablet.id for tablet in table.tablets})
    return store.root.tables[table.id]


def _settled(table: TableState, made: TableState, request: Request, since: int, timestamp: int) -> Settlement:
    """Settle one part.

    table: as it was before the batch. made: with the files of the parts before, at `timestamp`.
    Raises: ConflictError; _NotInParts if a row fails.
    """
    operation = prepare_request(table, request, borrow_above_bytes=0)
    check_unchanged(table, [operation], since)
    if (
        request.operation in _FRESH
        and changed_after(made, operation.keys, operation.tablets, timestamp - 1).any()
    ):
        raise _NotInParts  # a part before has this key
    settlement = settle(made if request.operation in _FRESH else table, [operation])
    if settlement.failed:
        raise _NotInParts
    return settlement


def _add(total: OperationCounts, part: OperationCounts) -> None:
    for field in dataclasses.fields(OperationCounts):
        setattr(total, field.name, getattr(total, field.name) + getattr(part, field.name))
