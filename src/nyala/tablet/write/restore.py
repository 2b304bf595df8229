"""Make a table as it was: the net changes since then, turned around, as one batch.

    net (to, now]       insert k      update k                          delete k
    the batch           delete k      update k, where a value differs   insert k, with the values of then

Read and applied under one lock, as `where_writes` does: no other write comes between, and what is read is `applied`,
which every earlier batch is part of. What was never changed since is not read, and a row that has its old values again
is not written. It is a write like any other: one timestamp, history before it as readable as ever.

Invariants
    U1  A scan at the batch's timestamp gives what a scan at `to` gives, through the schema of now: a column that came
        since has its default in every row that was there, one that went since does not come back.
    U2  Rows that are the same at both moments have no record of the batch.

Simplification: all that is written back is held in memory, as any batch's data is; columns of which only some rows
differ are written for every row that is updated.
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
from nyala.tablet.state.history import check_dropped, check_readable
from nyala.tablet.state.result import Ticket, WriteResult
from nyala.tablet.state.root import TableState
from nyala.tablet.write.prepare import prepare
from nyala.tablet.write.write_path import Request, commit, locked, results_of, settle_requests

if TYPE_CHECKING:
    from nyala.tablet.store import Store

__all__ = ["restore"]


def restore(store: Store, table_id: int, to: int) -> WriteResult:
    """Make the table as it was at `to`. Nothing to do: zeros, and the present timestamp.

    Raises: TableNotFoundError when it was dropped meanwhile, HistoryExpiredError when its past was; StorageError.
    """
    store.check_writable()

    def under_lock() -> tuple[list[WriteResult], Ticket]:
        table = store.root.tables.get(table_id)
        if table is None:
            raise TableNotFoundError("the table was dropped before it could be restored")
        # What the clock says was asked before; under the lock it counts what is gone.
        check_readable(table.entry, to, 0, 0)
        check_dropped(table, to)
        operations = _operations(table, to, store.marks.applied)
        requests = [Request(table.name, name, None) for name in operations]
        prepared = [(table, prepare(table, name, rows, ignore=False)) for name, rows in operations.items()]
        settlements = settle_requests(store, requests, prepared, collect=False)
        ticket = commit(store, [settlement for settlement, _ in settlements])
        return results_of(requests, settlements, ticket.timestamp), ticket

    results, ticket = locked(store, under_lock)
    return WriteResult(
        ticket.timestamp,
        sum(result.inserted for result in results),
        sum(result.updated for result in results),
        sum(result.deleted for result in results),
        errors=results[0].errors,
    )


def _operations(table: TableState, to: int, now: int) -> dict[str, pa.Table]:
    """What brings the state at `now` back to that at `to`: rows by operation; a delete in any case, maybe of none."""
    schema = table.schema
    keys = [column.name for column in schema.key_columns]
    then = make_change_spec(table, to, now, "net", schema.columns)
    back = dataclasses.replace(then, values_at="since")
    rows: dict[str, list[pa.RecordBatch]] = {"delete": [], "update": [], "insert": []}
    changed: set[str] = set()
    # The same rows in the same order (N4), once with the values of now and once with those of then.
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
    """Row by row whether the values differ, bit by bit: -0.0 is not 0.0, and NaN is what it was."""
    if pa.types.is_floating(left.type):
        bits = pa.int64() if pa.types.is_float64(left.type) else pa.int32()
        left, right = left.view(bits), right.view(bits)
    unequal = pc.fill_null(pc.not_equal(left, right), False)
    found: npt.NDArray[np.bool_] = pc.or_(unequal, pc.xor(left.is_null(), right.is_null())).to_numpy(
        zero_copy_only=False
    )
    return found
