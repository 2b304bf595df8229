"""Commits the rows that a statement writes.

    plan(source)  reads a snapshot or a transaction, and returns a Change: operations on one table
        |
        ├── inside a transaction: the change is written to the transaction
        └── otherwise: the change is committed as one batch, if no other writer changed its keys since the snapshot

Invariants
    C1  A statement changes either nothing or everything that its result reports.
    C2  The rows are computed from one moment. If another writer changes one of their keys before
        the commit, the statement runs again. After three tries other writers wait until it has
        committed.
    C3  If another thread interrupts the statement before its commit starts, the statement changes
        nothing and raises StatementInterrupted.

Source: docs/design/transactions.md, "A commit with a check".
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from nyala.errors import ConflictError
from nyala.sql.change.rows import SPILLED_BYTES_MIN, release_pages
from nyala.sql.context import Context, Source
from nyala.sql.result import FixedResult
from nyala.tablet.state.result import WriteResult
from nyala.tablet.write.write_path import Request

if TYPE_CHECKING:
    from nyala.api.transaction import Transaction
    from nyala.tablet.write.transaction import OpenTransaction

_OPTIMISTIC_TRIES: Final = 3
_TRIES: Final = 6


@dataclass(frozen=True)
class Change:
    """What a statement writes to one table, and what it returns.

    requests: operations, in order.
    rows: the number of changed rows; None: the sum of what the operations report.
    returning: the rows of RETURNING; None: the statement has no RETURNING, and its result is the
        number of rows.
    """

    requests: Sequence[Request]
    rows: int | None = None
    returning: pa.Table | None = None


Plan: TypeAlias = Callable[[Source], Change]
"""A function that computes the change of a statement from a snapshot or transaction."""


def commit(context: Context, statement: str, plan: Plan, *, checked: bool) -> FixedResult:
    """Compute the change of a statement, and write it to the open transaction or commit it.

    plan: computes the change from a snapshot or transaction.
    checked: whether the written rows depend on what the table contains. If so, and another writer
        commits one of these rows meanwhile, the change is computed again.
    Raises: ConflictError if another writer does so six times; errors of `plan` and of writes.
    """
    if context.transaction is not None:
        change = plan(context.transaction)
        context.running.check()
        results = _write_inside(context.transaction._open, change)
    elif checked:
        change, results = _commit_checked(context, plan)
    else:
        change = plan(context.database._snapshot(None))
        results = _commit_unchecked(context, _with_rows(change))
    return _result(context, statement, change, results)


def _with_rows(change: Change) -> list[Request]:
    return [request for request in change.requests if request.data.num_rows]


def _write_inside(transaction: OpenTransaction, change: Change) -> list[WriteResult]:
    requests = _with_rows(change)
    return transaction.write_together(requests) if requests else []


def _commit_unchecked(context: Context, requests: list[Request]) -> list[WriteResult]:
    """Commit operations whose rows do not depend on what the table contains."""
    if sum(request.data.nbytes for request in requests) >= SPILLED_BYTES_MIN:
        transaction = context.database.transaction()
        try:
            return _commit_requests(context, transaction, requests)
        except ConflictError:  # the write below finds out whether the keys exist now
            pass
        finally:
            transaction.rollback()
    context.running.check()
    return context.database._writing().write(requests) if requests else []


def _commit_requests(
    context: Context, transaction: Transaction, requests: list[Request]
) -> list[WriteResult]:
    def between() -> None:
        release_pages()
        context.running.check()

    return transaction._open.commit_requests(requests, between=between) if requests else []


def _commit_checked(context: Context, plan: Plan) -> tuple[Change, list[WriteResult]]:
    for attempt in itertools.count(1):
        alone = attempt > _OPTIMISTIC_TRIES
        with context.database._writing().alone() if alone else contextlib.nullcontext():
            transaction = context.database.transaction()
            try:
                change = plan(transaction)
                requests = _with_rows(change)
                return change, _commit_requests(context, transaction, requests)
            except ConflictError:
                if attempt >= _TRIES:
                    raise
            finally:
                transaction.rollback()
    raise AssertionError("the loop has no end")


def _result(context: Context, statement: str, change: Change, results: Sequence[WriteResult]) -> FixedResult:
    rows = change.rows
    if rows is None:
        rows = sum(result.inserted + result.updated + result.deleted for result in results)
    table = pa.table({"Count": pa.array([rows], pa.int64())})
    if change.returning is not None:
        table = change.returning
    moment: Any = results[0].timestamp if results else context.database.now()
    write = results[0] if len(results) == 1 and context.transaction is None else None
    is_count = change.returning is None
    return FixedResult(statement, table, moment, rowcount=rows, write=write, is_count=is_count)
