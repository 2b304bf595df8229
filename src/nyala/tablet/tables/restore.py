"""Restores a table to an earlier moment `to`: one batch reverses all net changes since this moment.

    net change of a key    operation in the batch
    insert                 delete
    update                 update, if a value is different now
    delete                 insert with the old values

The commit lock is held while the changes are read and reversed, so no other write can come between.
Unchanged rows are not read, and rows that already have their old values again are not written. The
batch is a write like any other: it has one timestamp, and earlier history stays readable.

Invariants
    U1  A scan at the batch's timestamp returns the same rows as a scan at `to`, in the current
        schema. A column that was added since then has its default in all restored rows. A column
        that was dropped since then stays dropped.
    U2  Rows that are equal at both moments get no record in the batch.

Simplification: all rows of the batch are held in memory, as for any batch. If some updated rows
differ in a column, the column is written for all updated rows.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala import compute as pc
from nyala.errors import TableNotFoundError
from nyala.tablet.changes.feed import change_batches
from nyala.tablet.changes.spec import CHANGE_TYPE, make_change_spec
from nyala.tablet.state.history import check_purged, check_readable, check_same_ranges
from nyala.tablet.state.result import Ticket, WriteResult
from nyala.tablet.state.root import TableState
from nyala.tablet.write.prepare import prepare
from nyala.tablet.write.write_path import Request, commit, once, resolve_requests, results_of

if TYPE_CHECKING:
    from nyala.tablet.store import Store


def restore(
    store: Store,
    table_id: int,
    to: int,
    message: str | None = None,
    idempotency_key: str | None = None,
) -> WriteResult:
    """Restore the table to its state at `to`; return how many rows this changed.

    idempotency_key: as in `write`.
    Raises: TableNotFoundError if the table was dropped before; HistoryExpiredError; StorageError.
    """
    store.check_writable()

    def under_lock() -> tuple[list[WriteResult], Ticket]:
        table = store.root.tables.get(table_id)
        if table is None:
            raise TableNotFoundError("the table was dropped before it could be restored")
        # The caller has checked the history mark. 0, 0: checks only whether history was removed.
        check_readable(table.entry, to, 0, 0)
        check_purged(table, to)
        check_same_ranges(table, to)
        operations = _operations(table, to, store.marks.applied)
        requests = [Request(table.name, name, None) for name in operations]
        # An upsert can give the old values of an auto-incrementing column; an insert cannot.
        made = "insert" if table.schema.auto_increment is None else "upsert"
        prepared = [
            (
                table,
                prepare(table, made if name == "insert" else name, rows, ignore=False, sets_immutable=True),
            )
            for name, rows in operations.items()
        ]
        resolved_batches = resolve_requests(store, requests, prepared, collect=False)
        ticket = commit(store, [resolved for resolved, _ in resolved_batches], idempotency_key, message)
        return results_of(requests, resolved_batches, ticket.timestamp), ticket

    return once(store, idempotency_key, under_lock, _sum)


def _sum(results: list[WriteResult], timestamp: int) -> WriteResult:
    return WriteResult(
        timestamp,
        sum(result.inserted for result in results),
        sum(result.updated for result in results),
        sum(result.deleted for result in results),
        errors=results[0].errors,
    )


def _operations(table: TableState, to: int, now: int) -> dict[str, pa.Table]:
    """Return the operations that bring the table from its state at `now` back to its state at `to`.

    The result has the rows of each operation, by name: "delete", "update" and "insert". Only
    "delete" may have no rows; other operations without rows are left out.
    """
    schema = table.schema
    keys = [column.name for column in schema.key_columns]
    then = make_change_spec(table, to, now, "net", schema.columns)
    back = dataclasses.replace(then, values_at="since")
    rows: dict[str, list[pa.RecordBatch]] = {"delete": [], "update": [], "insert": []}
    changed: set[str] = set()
    # Both feeds have the same rows in the same order (N4): `then` with new values, `back` with old ones.
    for new, old in zip(change_batches(table, then), change_batches(table, back), strict=True):
        change = old.column(CHANGE_TYPE)
        rows["delete"].append(old.select(keys).filter(pc.equal(change, "insert")))
        rows["insert"].append(old.filter(pc.equal(change, "delete")))
        updated = pc.equal(change, "update")
        new, old = new.filter(updated), old.filter(updated)
        different = np.zeros(old.num_rows, np.bool_)
        for column in schema.value_columns:
            differs = _differs(new.column(column.name), old.column(column.name))
            if differs.any():
                changed.add(column.name)
                different |= differs
        rows["update"].append(old.filter(pa.array(different)))
    columns = {
        "delete": keys,
        "update": [*keys, *(column.name for column in schema.value_columns if column.name in changed)],
        "insert": list(schema.names),
    }
    tables = {
        name: pa.Table.from_batches(
            [batch.select(columns[name]) for batch in batches if batch.num_rows],
            schema=pa.schema([then.arrow_schema.field(column) for column in columns[name]]),
        )
        for name, batches in rows.items()
    }
    return {name: found for name, found in tables.items() if found.num_rows or name == "delete"}


def _differs(left: pa.Array, right: pa.Array) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows whose values differ. Floats are compared by their bits.

    So -0.0 and 0.0 differ, and a NaN is equal to a NaN with the same bits.
    """
    if pa.types.is_floating(left.type):
        bits = pa.int64() if pa.types.is_float64(left.type) else pa.int32()
        left, right = left.view(bits), right.view(bits)
    unequal = pc.fill_null(pc.not_equal(left, right), False)
    found: npt.NDArray[np.bool_] = pc.or_(unequal, pc.xor(left.is_null(), right.is_null())).to_numpy(
        zero_copy_only=False
    )
    return found
