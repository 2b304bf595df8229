"""What staged rows can do besides the operations of a table: replace its content, and follow another table's changes.

    replace_content    delete what is there, then insert or upsert the rows: one batch, so that no reader sees it empty
    apply_changes      rows of a change feed: what it says was inserted or updated is upserted, what was deleted goes

Both are batches like any other: settled and folded per key (W4), with one timestamp, under an idempotency key.
Source: docs/how-to/spark.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from nyala import compute as pc
from nyala.catalog.model import CommittedKey
from nyala.errors import InvalidArgumentError
from nyala.tablet.changes.spec import CHANGE_TYPE, COMMIT_TIMESTAMP
from nyala.tablet.jobs.staged_files import StagedRows
from nyala.tablet.scan import read_path
from nyala.tablet.scan.read_path import ScanCounters, ScanSpec
from nyala.tablet.state.result import Ticket, WriteResult
from nyala.tablet.state.root import TableState
from nyala.tablet.write.prepare import prepare
from nyala.tablet.write.where_writes import read_keys
from nyala.tablet.write.write_path import (
    Request,
    commit,
    locked,
    results_of,
    settle_requests,
    told_again,
    write,
)

if TYPE_CHECKING:
    from nyala.tablet.store import Store

__all__ = ["apply_changes", "replace_content"]

# Of a change feed's words, and of Spark's own for such feeds, those that say how the row stands afterwards.
_STANDS: Final = ("insert", "update", "update_postimage")
_GONE: Final = "delete"
_BEFORE: Final = "update_preimage"


def replace_content(
    store: Store, request: Request, *, collect: bool = False, idempotency_key: str | None = None
) -> WriteResult:
    """Make the rows of `request` (an insert or an upsert) all that the table holds, in one batch.

    A row that stays under its key is updated in all columns: those not given take their defaults.
    Raises: as `write`; then the content is as it was.
    """
    store.check_writable()
    if request.operation not in ("insert", "upsert"):
        raise InvalidArgumentError(
            f"the content of a table is replaced by insert or upsert, not by {request.operation}"
        )
    first = store.root.table(request.table)
    # Its faults show before the lock is taken, and a stream is read once.
    prepared = prepare(first, request.operation, request.data, ignore=request.ignore, homes=request.homes)

    def under_lock() -> tuple[Any, Ticket]:
        if idempotency_key is not None and (earlier := store.committed(idempotency_key)) is not None:
            return earlier, Ticket(earlier.timestamp, store.log.end_offset)
        table = store.root.table(request.table)
        emptied = prepare(table, "delete", _keys(store, table), ignore=False)
        requests = [Request(request.table, "delete", None), request]
        settlements = settle_requests(store, requests, [(table, emptied), (first, prepared)], collect=collect)
        ticket = commit(store, [settlement for settlement, _ in settlements], idempotency_key)
        return results_of(requests, settlements, ticket.timestamp), ticket

    outcome, ticket = locked(store, under_lock)
    if isinstance(outcome, CommittedKey):
        return told_again(outcome)
    gone, come = outcome
    return WriteResult(ticket.timestamp, come.inserted, come.updated, gone.deleted, come.ignored, come.errors)


def _keys(store: Store, table: TableState) -> pa.Table:
    spec = ScanSpec(table.schema, table.schema.key_columns, store.marks.applied)
    batches = read_path.run(read_path.plan(table, spec, ScanCounters()), spec, ScanCounters())
    return pa.Table.from_batches(list(batches), schema=spec.arrow_schema)


def apply_changes(
    store: Store, name: str, staged: StagedRows, *, collect: bool = False, idempotency_key: str | None = None
) -> WriteResult:
    """Carry out the rows of a change feed on table `name`, in one batch.

    staged: the columns of a feed: the key, others, `_change_type` and, where a key stands in it more than once,
          `_commit_timestamp`, whose last row counts; without it the last row does. An update of a missing row inserts
          it, a delete of one does nothing, so a feed may be applied again.
    Raises: InvalidArgumentError without `_change_type` or for a word that is none; as `write`.
    """
    store.check_writable()
    data = staged.data
    if CHANGE_TYPE not in data.column_names:
        raise InvalidArgumentError(
            f"rows to be applied as changes have a column {CHANGE_TYPE!r} (insert, update or delete), as the change "
            f"feed gives it; there are {', '.join(data.column_names)}"
        )
    kind = pc.cast(data.column(CHANGE_TYPE), pa.string())
    known = pc.is_in(kind, value_set=pa.array([*_STANDS, _GONE, _BEFORE]))
    if not pc.all(known, min_count=0).as_py():
        strange = kind.filter(pc.invert(known))[0].as_py()
        raise InvalidArgumentError(
            f"{CHANGE_TYPE} is {strange!r} in some row: insert, update or delete are known"
        )
    after = np.flatnonzero(pc.not_equal(kind, _BEFORE).combine_chunks().to_numpy(zero_copy_only=False))
    table = store.root.table(name)
    places = after[_last_of_each_key(table, data.take(pa.array(after)))]
    gone = pc.equal(kind.take(pa.array(places)), _GONE).combine_chunks().to_numpy(zero_copy_only=False)
    left = [c for c in data.column_names if c not in (CHANGE_TYPE, COMMIT_TIMESTAMP)]
    come, went = staged.take(places[~gone]), staged.take(places[gone])
    keys = [column.name for column in table.schema.key_columns]
    requests = [
        Request(name, "upsert", come.data.select(left), False, come.numbers, come.homes),
        Request(name, "delete", went.data.select(keys), True, went.numbers, went.homes),
    ]
    put, cut = write(store, requests, collect=collect, idempotency_key=idempotency_key)
    failed = [part.errors for part in (put, cut) if len(part.errors)]
    errors = pa.concat_tables(failed).sort_by("row") if failed else put.errors
    return WriteResult(put.timestamp, put.inserted, put.updated, cut.deleted, cut.ignored, errors)


def _last_of_each_key(table: TableState, data: pa.Table) -> np.ndarray:
    """Places of the rows that say how each key stands in the end."""
    names = [c.name for c in table.schema.key_columns if c.name in data.column_names]
    keys, _ = read_keys(table, data.select(names), "a change feed")
    if not len(keys):
        return np.empty(0, np.int64)
    order = np.arange(len(keys))
    if COMMIT_TIMESTAMP in data.column_names:
        times = (
            pc.cast(data.column(COMMIT_TIMESTAMP), pa.int64()).combine_chunks().to_numpy(zero_copy_only=False)
        )
        order = np.argsort(times, kind="stable")
    # Stable, so of equal keys the one that is last in `order` comes last.
    order = order[keys.take(order).sort_indices()]
    last = np.append(~keys.take(order).equal_neighbours(), True)
    return np.sort(order[last])
