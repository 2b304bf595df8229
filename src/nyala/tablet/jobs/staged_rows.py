"""Batches of staged rows that replace a table's content, or apply a change feed.

    replace_content    deletes all rows, and inserts or upserts the staged rows, in one batch, so
                       that no reader sees an empty table
    apply_changes      upserts the inserted and updated rows of a change feed, and deletes its
                       deleted rows

As in every batch, all operations on one key are combined to one effect, and all rows get one
timestamp. A batch may have an idempotency key, under which it is committed at most once.
Source: docs/how-to/spark.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from nyala import compute as pc
from nyala.catalog.model import CommittedKey
from nyala.errors import InvalidArgumentError
from nyala.tablet.changes.spec import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, FEED_COLUMNS
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
    recorded_result,
    resolve_requests,
    results_of,
    write,
)

if TYPE_CHECKING:
    from nyala.tablet.store import Store

# Change types, of Nyala's and of other change feeds, whose rows have the values after the change.
_AFTER: Final = ("insert", "update", "update_postimage")
_DELETE: Final = "delete"
_BEFORE: Final = "update_preimage"


def replace_content(
    store: Store,
    request: Request,
    *,
    collect: bool = False,
    idempotency_key: str | None = None,
    message: str | None = None,
) -> WriteResult:
    """Replace all rows of the table by the rows of `request` (an insert or upsert), in one batch.

    If a key of `request` is already in the table, its row gets new values in all columns. Columns
    that `request` does not have get their defaults.

    collect: leave failing rows out and report them in the result. Otherwise one failing row stops
             the whole batch.
    Raises: the errors of `write`. The content is then unchanged.
    """
    store.check_writable()
    if request.operation not in ("insert", "upsert"):
        raise InvalidArgumentError(
            f"invalid operation {request.operation!r} to replace a table's content: pass insert or upsert"
        )
    first = store.root.table(request.table)
    # Before the lock, so that others do not wait for it.
    prepared = prepare(first, request.operation, request.data, ignore=request.ignore, routed=request.routed)

    def under_lock() -> tuple[Any, Ticket]:
        if idempotency_key is not None and (earlier := store.committed(idempotency_key)) is not None:
            return earlier, Ticket(earlier.timestamp, store.log.appended.offset)
        table = store.root.table(request.table)
        emptied = prepare(table, "delete", _keys(store, table), ignore=False)
        requests = [Request(request.table, "delete", None), request]
        resolved_batches = resolve_requests(
            store, requests, [(table, emptied), (first, prepared)], collect=collect
        )
        ticket = commit(store, [resolved for resolved, _ in resolved_batches], idempotency_key, message)
        return results_of(requests, resolved_batches, ticket.timestamp), ticket

    outcome, ticket = locked(store, under_lock)
    if isinstance(outcome, CommittedKey):
        return recorded_result(outcome)
    gone, come = outcome
    return WriteResult(ticket.timestamp, come.inserted, come.updated, gone.deleted, come.ignored, come.errors)


def _keys(store: Store, table: TableState) -> pa.Table:
    spec = ScanSpec(table.schema, table.schema.key_columns, store.marks.applied)
    batches = read_path.run(read_path.plan(table, spec, ScanCounters()), spec, ScanCounters())
    return pa.Table.from_batches(list(batches), schema=spec.arrow_schema)


def apply_changes(
    store: Store,
    name: str,
    staged: StagedRows,
    *,
    collect: bool = False,
    idempotency_key: str | None = None,
    message: str | None = None,
) -> WriteResult:
    """Apply the rows of a change feed to table `name`, in one batch.

    An update of a missing row inserts the row, and a delete of a missing row does nothing. So a
    feed can be applied again.

    staged: the columns of a feed: the key, other columns, and `_change_type`. Rows with the values before
        an update are ignored. If a key occurs several times, the row with the greatest
        `_commit_version` or `_commit_timestamp` counts, or without these columns the last row.
    Raises: InvalidArgumentError if `_change_type` is missing or has an unknown value; the errors of
            `write`.
    """
    store.check_writable()
    data = staged.data
    if CHANGE_TYPE not in data.column_names:
        raise InvalidArgumentError(
            f"rows to be applied as changes need a column {CHANGE_TYPE!r} (insert, update or delete), as change feeds "
            f"have it; the columns are {', '.join(data.column_names)}"
        )
    kind = pc.cast(data.column(CHANGE_TYPE), pa.string())
    known = pc.is_in(kind, value_set=pa.array([*_AFTER, _DELETE, _BEFORE]))
    if not pc.all(known, min_count=0).as_py():
        unknown = kind.filter(pc.invert(known))[0].as_py()
        raise InvalidArgumentError(
            f"a row has the unknown {CHANGE_TYPE} {unknown!r}: use insert, update or delete"
        )
    after = np.flatnonzero(pc.not_equal(kind, _BEFORE).combine_chunks().to_numpy(zero_copy_only=False))
    table = store.root.table(name)
    places = after[_last_of_each_key(table, data.take(pa.array(after)))]
    deleted = pc.equal(kind.take(pa.array(places)), _DELETE).combine_chunks().to_numpy(zero_copy_only=False)
    columns = [column for column in data.column_names if column not in FEED_COLUMNS]
    upserts, deletes = staged.take(places[~deleted]), staged.take(places[deleted])
    keys = [column.name for column in table.schema.key_columns]
    requests = [
        Request(
            name,
            "upsert",
            upserts.data.select(columns),
            False,
            upserts.numbers,
            upserts.routed,
            sets_immutable=True,
        ),
        Request(name, "delete", deletes.data.select(keys), True, deletes.numbers, deletes.routed),
    ]
    put, cut = write(store, requests, collect=collect, idempotency_key=idempotency_key, message=message)
    failed = [part.errors for part in (put, cut) if len(part.errors)]
    errors = pa.concat_tables(failed).sort_by("row") if failed else put.errors
    return WriteResult(put.timestamp, put.inserted, put.updated, cut.deleted, cut.ignored, errors)


def _last_of_each_key(table: TableState, data: pa.Table) -> np.ndarray:
    """Return the position of each key's newest row, which `apply_changes` applies."""
    names = [c.name for c in table.schema.key_columns if c.name in data.column_names]
    keys, _ = read_keys(table, data.select(names), "a change feed")
    if not len(keys):
        return np.empty(0, np.int64)
    order = np.arange(len(keys))
    version = next((name for name in (COMMIT_VERSION, COMMIT_TIMESTAMP) if name in data.column_names), None)
    if version is not None:
        times = pc.cast(data.column(version), pa.int64()).combine_chunks().to_numpy(zero_copy_only=False)
        order = np.argsort(times, kind="stable")
    # The sort is stable, so of equal keys the last one in `order` comes last.
    order = order[keys.take(order).sort_indices()]
    last = np.append(~keys.take(order).equal_neighbours(), True)
    return np.sort(order[last])
