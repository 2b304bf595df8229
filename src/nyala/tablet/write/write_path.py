"""The steps of a write, from the user's data to the result.

    prepare       convert, check, encode keys, route, sort          an error changes nothing
    ── take the commit lock ──
    compare       if the table was altered since, prepare again
    resolve       look up each key, decide each row (`resolve`)      an error changes nothing
    plan_apply    allocate all memory that the last step needs (W3)
    clock.next    take one timestamp for the batch
    log.append    write one record for all tablets and tables (W5, W6)
    apply         change MemRowSets and DeltaMemStores
    ── release the commit lock ──
    log.sync      group commit: one thread syncs for all that wait
    publish       let readers see the batch (W1)
    return        counts, timestamp, row errors

After they are resolved, batches above `store.direct_commit_bytes` are written as files instead
(`direct_commit`, W6).

Invariants
    P1  After the log append nothing may fail. If something fails nevertheless, or a sync fails, the
        store takes no more writes until it is opened again, and the error says that the outcome is
        unknown (W3).
    P2  A call changes either nothing, or everything that its result reports.

Source: ARCHITECTURE.md, "The life of a write"; docs/design/rules.md, W1 to W6.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import decimal
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from nyala.catalog.model import CommittedKey
from nyala.delta.batch import SharedBatch, held_bytes
from nyala.delta.mem_store import DeltaMemStore
from nyala.delta.run import LIVENESS
from nyala.env.interrupts import Uninterrupted, checkpoint
from nyala.errors import (
    MISSING_COLUMN,
    NULL,
    ConflictError,
    Error,
    FencedError,
    InvalidArgumentError,
    StorageError,
    write_error,
)
from nyala.keys.encoded_keys import EncodedKeys
from nyala.rowset.key_lookup.key_runs import SharedKeys
from nyala.rowset.mem_rowset import MemRowSet
from nyala.schema.arrow_values import python_value_at
from nyala.schema.conversion.array_cast import copy_arrays
from nyala.schema.conversion.long_column import LongColumn
from nyala.schema.conversion.row_errors import RowErrors
from nyala.schema.plain_arrays import array_of_numbers
from nyala.tablet.state.idempotency import decode_result, encode_counts
from nyala.tablet.state.locate import equal_ranges
from nyala.tablet.state.result import Ticket, WriteResult
from nyala.tablet.state.root import TableState
from nyala.tablet.write.conditions import Condition, NewestBy, check_condition, choose
from nyala.tablet.write.conflicts import check_unchanged
from nyala.tablet.write.effects import Effect, OperationCounts, ResolvedBatch, row_counts
from nyala.tablet.write.prepare import OPERATION_NAMES, PreparedOperation, prepare
from nyala.tablet.write.prepare_rows import prepare_rows
from nyala.tablet.write.resolve import resolve
from nyala.wal.record import LogRecord, ResolvedGroup

if TYPE_CHECKING:
    from nyala.tablet.store import Store


logger = logging.getLogger("nyala.store")

# The memory of an addition's objects besides its rows, until it is merged with others.
ADDITION_BYTES: Final = 2048
# Smaller batches are rarely too large for the log, so they begin without the flush lock.
LARGE_ROWS_MIN: Final = 4096
# The number of characters that messages show of a key's value. A key may have 16 KB.
_SHOWN_MAX: Final = 200


@dataclass(frozen=True)
class Request:
    """One operation of a batch.

    ignore:    count rows with duplicate or missing keys as ignored, instead of failing.
    numbers:   the row numbers to use in errors, int64; None: positions in `data`.
    routed:    each row's tablet id as another process computed it, or -1 if no tablet covers the
               row's key; None: not computed.
    condition: write only rows that pass this comparison with the stored rows; None: all.
    errors:    the errors of rows of `data` that another process could not convert.
    sets_immutable: whether immutable columns of existing rows change too.
    prepared:  the result of `prepare_request`, if it was already called for this table.
    """

    table: str
    operation: str
    data: Any
    ignore: bool = False
    numbers: np.ndarray | None = None
    routed: np.ndarray | None = None
    condition: Condition | None = None
    errors: RowErrors | None = None
    sets_immutable: bool = False
    prepared: PreparedOperation | None = None


def write(
    store: Store,
    requests: Sequence[Request],
    *,
    collect: bool = False,
    idempotency_key: str | None = None,
    message: str | None = None,
) -> list[WriteResult]:
    """Execute `requests` as one atomic batch with one timestamp. Return one result per request.

    collect: leave failing rows out and report them in the results. Otherwise one failing row stops
             the whole batch.
    idempotency_key: if the store has already committed a batch with this key, nothing is written.
             Each result then has the timestamp and the total counts of that batch.
    message: stored with the commit (`check_message`).
    Raises: WriteError or a subclass (nothing changed); errors of `prepare`; StorageError.
    """
    store.check_writable()
    root = store.root  # one root for all requests, so that a name always means the same table
    prepared = []
    for request in requests:
        try:
            table = root.table(request.table)
            prepared.append((table, _prepare(store, table, request)))
        except Error as error:
            if len(requests) > 1:  # the caller's line does not show which request is meant
                error.args = (f"{_label(request)} into {request.table!r}: {error}", *error.args[1:])
            raise

    return commit_checked(
        store, requests, prepared, collect=collect, idempotency_key=idempotency_key, message=message
    )


def _label(request: Request) -> str:
    """Return the operation's name for messages.

    If all rows of an "apply" have the same operation, return that operation's name.
    """
    if request.operation == "apply" and isinstance(request.data, list):
        names = {item[0] for item in request.data if isinstance(item, tuple)}
        if len(names) == 1:
            return str(names.pop())
    return request.operation


def commit_checked(
    store: Store,
    requests: Sequence[Request],
    prepared: Sequence[tuple[TableState, PreparedOperation]],
    *,
    since: int | None = None,
    collect: bool = False,
    idempotency_key: str | None = None,
    message: str | None = None,
) -> list[WriteResult]:
    """Commit prepared requests as one batch, unless one of their keys changed after `since`.

    since: the snapshot from which the requests were computed; None: do not check.
    Other parameters: as `write`.
    Raises: the errors of `write`; ConflictError (nothing changed).
    """

    def under_lock() -> tuple[list[tuple[ResolvedBatch, list[int]]], Ticket]:
        checkpoint()
        resolved_batches = resolve_requests(store, requests, prepared, collect=collect, since=since)
        resolved = [resolved for resolved, _ in resolved_batches]
        checkpoint()
        return resolved_batches, commit(store, resolved, idempotency_key, message)

    given = sum(operation.nbytes for _, operation in prepared if operation.row_count >= LARGE_ROWS_MIN)
    done = once(
        store,
        idempotency_key,
        under_lock,
        lambda resolved_batches, timestamp: results_of(requests, resolved_batches, timestamp),
        large=given > store.direct_commit_bytes,
    )
    return [done] * len(requests) if isinstance(done, WriteResult) else done


def find_committed(store: Store, idempotency_key: str) -> WriteResult | None:
    """Return the result of the batch that was committed with this key; None: no such batch.

    If the batch is not durable yet, the call waits. Raises: StorageError, CorruptionError.
    """
    store.check_writable()
    earlier = store.committed(idempotency_key)
    if earlier is None:
        return None
    store.finish(Ticket(earlier.timestamp, store.log.appended.offset))
    return recorded_result(earlier)


def recorded_result(known: CommittedKey) -> WriteResult:
    """Return the result of a batch that was committed earlier under an idempotency key.

    Its counts are the sums over all operations of the batch.

    known: what the store recorded about this key.
    Raises: CorruptionError if the recorded result is invalid.
    """
    result, failed = decode_result(known.timestamp, known.result)
    if failed:
        logger.warning(
            "the batch of idempotency key %s was committed at %s; %d of its rows failed, and only the first call "
            "reported which",
            known.key,
            result.time.isoformat(),
            failed,
        )
    return result


_Outcome = TypeVar("_Outcome")


def locked(
    store: Store, under_lock: Callable[[], tuple[_Outcome, Ticket]], *, large: bool = False
) -> tuple[_Outcome, Ticket]:
    """Call `under_lock` with the commit lock, then wait until its commit is durable and published.

    If the batch is too large for the log, `under_lock` is called again with the flush lock too.
    Then the batch is written as files. The flush lock is always taken first.

    large: the batch is probably too large for the log, so take both locks at the first call.
    """
    make_room(store)
    if not large:
        with contextlib.suppress(TooLargeForLog):
            return _run_whole(store, under_lock)
    with store.flush_lock:
        return _run_whole(store, under_lock)


_Result = TypeVar("_Result")


def once(
    store: Store,
    idempotency_key: str | None,
    under_lock: Callable[[], tuple[_Outcome, Ticket]],
    result_of: Callable[[_Outcome, int], _Result],
    *,
    large: bool = False,
) -> _Result | WriteResult:
    """Commit a batch by calling `under_lock`, unless its idempotency key was committed before.

    `under_lock` is called with the commit lock. Then this function waits until the commit is
    durable and published.

    idempotency_key: None: commit in any case.
    under_lock: resolves and commits the batch.
    result_of: computes the result from what `under_lock` returned, and the timestamp.
    large:   the batch is probably too large for the log.
    Returns: the result. If the idempotency key was committed before: the recorded result of that
             batch, with the sums of the counts of all its requests.
    """

    def unless_committed() -> tuple[_Outcome | CommittedKey, Ticket]:
        if idempotency_key is not None and (earlier := store.committed(idempotency_key)) is not None:
            # If another thread has just committed the batch, `locked` waits until it is durable.
            return earlier, Ticket(earlier.timestamp, store.log.appended.offset)
        return under_lock()

    outcome, ticket = locked(store, unless_committed, large=large)
    return (
        recorded_result(outcome)
        if isinstance(outcome, CommittedKey)
        else result_of(outcome, ticket.timestamp)
    )


def make_room(store: Store) -> None:
    """Wait for a flush if memory or the log is full. Do nothing if this thread has the commit lock.

    Raises: StorageError.
    """
    if store.commit_lock.held() or not (store.memory_is_full() or store.log_is_full()):
        return
    if store.options.maintenance:
        store.wait_for_room()
        return
    from nyala.tablet.flush.lifecycle import flush

    flush(store)
    store.collect_garbage()


def _run_whole(store: Store, under_lock: Callable[[], tuple[_Outcome, Ticket]]) -> tuple[_Outcome, Ticket]:
    """Call `under_lock` with the commit lock, then wait for the sync, both without interruption.

    So Ctrl-C cannot hide the outcome of a commit.
    """
    with Uninterrupted():
        with store.commit_lock:
            store.check_writable()
            outcome, ticket = under_lock()
        store.finish(ticket)
    return outcome, ticket


class TooLargeForLog(Exception):
    """Internal: the batch must be written as files, so the call is repeated with the flush lock."""


def _prepare(store: Store, table: TableState, request: Request) -> PreparedOperation:
    # Data that is too large for the log is not copied: it is written to files before the call ends.
    return prepare_request(table, request, borrow_above_bytes=store.direct_commit_bytes)


def prepare_request(
    table: TableState, request: Request, *, borrow_above_bytes: int | None = None
) -> PreparedOperation:
    """Prepare a request's data, and check its condition.

    borrow_above_bytes: as in `prepare`.
    Raises: the errors of `prepare` and `check_condition`.
    """
    if request.prepared is not None:
        return request.prepared
    if request.operation == "apply":
        prepared = prepare_rows(table, request.data)
    else:
        sequence = request.condition.column if isinstance(request.condition, NewestBy) else None
        prepared = prepare(
            table, request.operation, request.data, ignore=request.ignore, errors=request.errors,
            routed=request.routed, borrow_above_bytes=borrow_above_bytes, sequence=sequence,
            sets_immutable=request.sets_immutable,
        )  # fmt: skip
    return prepared if request.condition is None else check_condition(table, prepared, request.condition)


def _prepare_again(
    store: Store, table: TableState, request: Request, before: PreparedOperation
) -> PreparedOperation:
    """Prepare the data again, because the table was altered after the first time.

    before: the operation as it was prepared the first time.
    Raises: InvalidArgumentError if the data was a stream, which cannot be read twice.
    """
    operation = _prepare(store, table, dataclasses.replace(request, prepared=None))
    if operation.row_count != before.row_count:
        raise InvalidArgumentError(
            f"table {table.name!r} was altered while this batch was prepared, and its data is a stream that cannot be "
            "read twice. Nothing was written: call again with new data"
        )
    return operation


def resolve_requests(
    store: Store,
    requests: Sequence[Request],
    prepared: Sequence[tuple[TableState, PreparedOperation]],
    *,
    collect: bool,
    since: int | None = None,
) -> list[tuple[ResolvedBatch, list[int]]]:
    """Decide what each row of the prepared requests does: resolve the requests, table by table.

    collect: leave failing rows out.
    since: also check that no key changed after this moment (`commit_checked`). None: do not check.
    Returns: for each table, its resolved batch and the indexes of its requests.
    Raises: WriteError if a row failed, unless `collect`; ConflictError.
    """
    by_table: dict[int, list[int]] = {}
    for index, (table, _) in enumerate(prepared):
        by_table.setdefault(table.id, []).append(index)
    out: list[tuple[ResolvedBatch, list[int]]] = []
    for indexes in by_table.values():
        if since is None:
            table = store.root.table(requests[indexes[0]].table)
        else:
            table = unaltered(store, prepared[indexes[0]][0])
        operations = [
            # If the schema or the partitions changed after preparing, prepare the data again.
            operation
            if _same_shape(seen, table)
            else _prepare_again(store, table, requests[index], operation)
            for index in indexes
            for seen, operation in [prepared[index]]
        ]
        operations = [
            operation
            if (condition := requests[index].condition) is None
            else choose(table, operation, condition, store.marks.applied)
            for index, operation in zip(indexes, operations, strict=True)
        ]
        if since is not None:
            check_unchanged(table, operations, since)
        resolved = resolve(table, operations)
        if resolved.failed and not collect:
            raise failure(resolved, [requests[index] for index in indexes])
        out.append((resolved, indexes))
    return out


def unaltered(store: Store, seen: TableState) -> TableState:
    """Return the table's present state, if a write that was computed for `seen` is still valid.

    The table may have been renamed since.
    Raises: ConflictError if its columns or tablets changed, or it was dropped. A range partition
            that was dropped and added again counts as a change.
    """
    table = store.root.tables.get(seen.id)
    if table is None:
        raise altered_error(seen.name, "was dropped")
    if table.schema is not seen.schema or [t.id for t in table.tablets] != [t.id for t in seen.tablets]:
        raise altered_error(seen.name, "was altered")
    return table


def altered_error(name: str, what: str) -> ConflictError:
    """Return the error for a write that was computed before its table was altered or dropped.

    what: what happened to the table, such as "was dropped".
    """
    return ConflictError(
        f"table {name!r} {what} after this write was computed. Nothing was written: begin again", name
    )


def _same_shape(seen: TableState, table: TableState) -> bool:
    """Whether a batch that was prepared for `seen` is valid for `table`."""
    if seen.schema is not table.schema:
        return False
    if seen.tablets is table.tablets:
        return True
    # Other tablets have other counters for an auto-incrementing key.
    same_ids = seen.schema.auto_increment is None or [t.id for t in seen.tablets] == [
        t.id for t in table.tablets
    ]
    return same_ids and seen.partitions == table.partitions


# ------------------------------------------------------------------------------------------------
# commit


def commit(
    store: Store,
    resolved_batches: Sequence[ResolvedBatch],
    idempotency_key: str | None = None,
    message: str | None = None,
) -> Ticket:
    """Commit a resolved batch at one timestamp. Requires the commit lock.

    The batch is logged and applied to memory. If it is too large for the log, it is written as
    files instead, which also requires the flush lock.

    resolved_batches: the batch, divided by table.
    message: stored with the batch, unless the batch changes nothing.
    Returns: a ticket, with which the caller waits until the batch is durable.
    Raises: TooLargeForLog if the batch is too large for the log, and the caller does not have the
            flush lock (`locked` then calls again with both locks); StorageError. If the error's
            `outcome` is "unknown", the batch may be in the log.
    """
    effects = [effect for resolved in resolved_batches for effect in resolved.effects]
    if not effects and idempotency_key is None:
        return Ticket(store.marks.applied, None)
    if sum(effect.nbytes for effect in effects) > store.direct_commit_bytes:
        if not store.flush_lock.held():
            raise TooLargeForLog
        from nyala.tablet.write.direct_commit import commit_directly

        return Ticket(commit_directly(store, resolved_batches, idempotency_key, message), None)
    if any(operation.borrowed for resolved in resolved_batches for operation in resolved.operations) or any(
        isinstance(column, LongColumn) for effect in effects for column in effect.columns.values()
    ):
        # The data was too large for the log and was not copied. Its effects are small enough for
        # the log and will stay in memory, so they are copied now.
        for effect in effects:
            arrays = [
                array.array() if isinstance(array, LongColumn) else array for array in effect.columns.values()
            ]
            effect.columns = dict(zip(effect.columns, copy_arrays(arrays), strict=True))
            effect.batch = None
    groups = [
        (resolved, effect, log_batch(resolved.table, effect))
        for resolved in resolved_batches
        for effect in resolved.effects
    ]
    additions = [addition for resolved, effect, _ in groups for addition in plan_apply(resolved, effect)]
    timestamp = store.clock.next()
    counts = None if idempotency_key is None else row_counts(resolved_batches)
    record = LogRecord(
        timestamp,
        idempotency_key,
        tuple(resolved_group(resolved, effect, batch) for resolved, effect, batch in groups),
        counts=counts,
        message=message if groups else None,
    )
    try:
        offset = store.log.append(record)
        for addition in additions:
            addition.apply(timestamp)
        nbytes = sum([addition.nbytes + ADDITION_BYTES for addition in additions])
        key = (
            None
            if idempotency_key is None
            else CommittedKey(idempotency_key, timestamp, encode_counts(counts))
        )
        store.note_applied(timestamp, nbytes, key, record.message)
    except BaseException as error:
        if store.log.appended.timestamp != timestamp and store.log.failure is None:
            raise  # nothing was logged: for example, the disk is full
        store.poison(error)
        if isinstance(error, FencedError):
            raise
        raise StorageError(
            f"a batch failed after it was logged ({str(error) or type(error).__name__}), so its outcome is unknown. "
            "The store takes no more writes: close it and open it again to see the outcome",
            outcome="unknown",
        ) from error
    return Ticket(timestamp, offset)


def log_batch(table: TableState, effect: Effect) -> pa.RecordBatch:
    """Return the effect's rows as the log stores them: columns named by id, the key first."""
    if effect.batch is not None:
        return effect.batch
    schema, _ = table.log_schema(tuple(effect.columns))
    return pa.RecordBatch.from_arrays(list(effect.columns.values()), schema=schema)


def resolved_group(resolved: ResolvedBatch, effect: Effect, batch: pa.RecordBatch) -> ResolvedGroup:
    ranges = equal_ranges(effect.tablets)
    tablets = resolved.table.tablets
    return ResolvedGroup(
        table_id=resolved.table.id,
        schema_version=resolved.table.schema.version,
        kind=effect.kind,
        tablet_ids=tuple([tablets[ordinal].entry.id for ordinal, _, _ in ranges]),
        offsets=(0, *[end for _, _, end in ranges]),
        batch=batch,
        schema_message=resolved.table.log_schema(tuple(effect.columns))[1],
        batch_message=effect.message,
    )


@dataclass(frozen=True)
class InsertAddition:
    """New rows for one MemRowSet: the rows [offset, offset + length) of `shared`.

    Several additions, for several tablets, share one batch `shared`.
    order: for each row of `shared`, its position in the `Effect` from which it was taken. Only the
           replay of the log uses it, to assign timestamps. None: the order is the same.
    """

    memory: MemRowSet
    keys: SharedKeys
    shared: SharedBatch
    offset: int
    length: int
    nbytes: int
    order: np.ndarray | None = None

    def apply(self, timestamps: int | np.ndarray) -> None:
        self.memory.insert(self.keys, self.shared, self.offset, self.length, _timestamps_of(self, timestamps))


@dataclass(frozen=True)
class DeltaAddition:
    """Changes of one rowset: row `rowids[i]` gets the values in row `offset + i` of `shared`.

    Several additions, for several rowsets, share one batch `shared`.
    length: the number of changed rows.
    order: for each row of `shared`, the position of this row in the `Effect` that it comes from;
           None: the order is the same.
    shift: added to the timestamp t of the batch, to get that of the changes. 0: the changes get t.
           -1: they get t - 1, for a row that must be live only at t - 1 (see `TombstoneAddition`).
    """

    deltas: DeltaMemStore
    rowids: np.ndarray
    shared: SharedBatch
    offset: int
    length: int
    nbytes: int
    order: np.ndarray | None = None
    shift: int = 0

    def apply(self, timestamps: int | np.ndarray) -> None:
        stamps = _timestamps_of(self, timestamps) + self.shift
        self.deltas.append(self.rowids, stamps, self.shared, self.offset)


@dataclass(frozen=True)
class TombstoneAddition:
    """New dead rows, each for a delete with `newest_by` whose key does not exist.

    `newest_by` names a column that grows with each change of a row. The dead row keeps the delete's
    value of this column. So a write with a smaller value, which comes later, is ignored.

    If the batch has the timestamp t, such a row is live only at t - 1. No reader reads at t - 1, so
    no reader sees the row.
    """

    insert: InsertAddition

    @property
    def nbytes(self) -> int:
        return self.insert.nbytes

    def apply(self, timestamps: int | np.ndarray) -> None:
        insert = self.insert
        part = _timestamps_of(insert, timestamps)
        first = insert.memory.insert(insert.keys, insert.shared, insert.offset, insert.length, part - 1)
        rowids = np.arange(first, first + insert.length)
        dead = array_of_numbers(np.zeros(insert.length, np.bool_))
        insert.memory.deltas.append(rowids, part, {LIVENESS: dead})


Addition = InsertAddition | DeltaAddition | TombstoneAddition


def _timestamps_of(
    addition: InsertAddition | DeltaAddition, timestamps: int | np.ndarray
) -> int | np.ndarray:
    """Return the timestamps of the addition's rows.

    timestamps: one for all rows; or, in a replay of the log, one for each logged row.
    """
    if isinstance(timestamps, int):
        return timestamps
    rows = slice(addition.offset, addition.offset + addition.length)
    return timestamps[rows] if addition.order is None else timestamps[addition.order[rows]]


def plan_apply(resolved: ResolvedBatch, effect: Effect) -> list[Addition]:
    """Prepare the changes of MemRowSets and DeltaMemStores that write the rows of `effect`.

    The caller logs the batch, and then calls `apply` of each returned object. All memory is
    allocated here, so that `apply` cannot fail.
    """
    if effect.kind in ("insert", "tombstone"):
        return _plan_insert(resolved.table, effect)
    count = len(effect.codes)
    columns = effect.new_values(resolved.table.schema.key_ids)
    codes, rowids, order = effect.codes, effect.rowids, None
    if count > 1 and not _ascending(codes, rowids):
        order = np.lexsort((rowids, codes))
        codes, rowids = codes[order], rowids[order]
        columns = {number: array.take(array_of_numbers(order)) for number, array in columns.items()}
    nbytes = held_bytes(columns.values())
    shared, row_bytes = SharedBatch(columns, nbytes), nbytes // max(count, 1)
    return [
        DeltaAddition(
            resolved.rowsets[place][1].deltas, rowids[begin:end], shared, begin, end - begin,
            (row_bytes + 16) * (end - begin), order,
        )
        for place, begin, end in equal_ranges(codes)
    ]  # fmt: skip


def _ascending(codes: np.ndarray, rowids: np.ndarray) -> bool:
    same = codes[1:] == codes[:-1]
    return bool(((codes[1:] > codes[:-1]) | (same & (rowids[1:] > rowids[:-1]))).all())


def _plan_insert(table: TableState, effect: Effect) -> list[Addition]:
    ghosts = effect.rowids >= 0
    wrap: Callable[[InsertAddition], Addition] = (
        TombstoneAddition if effect.kind == "tombstone" else lambda addition: addition
    )
    if not ghosts.any():
        inserts = _plan_fresh(table, effect.keys, effect.tablets, effect.columns, effect.nbytes)
        return list(map(wrap, inserts))
    # A dead row (ghost) in the MemRowSet that takes inserts becomes alive again (R5). For dead rows
    # in other rowsets, a new row is inserted.
    out: list[Addition] = []
    fresh = np.flatnonzero(~ghosts)
    if len(fresh):
        some = {number: array.take(array_of_numbers(fresh)) for number, array in effect.columns.items()}
        out += map(
            wrap,
            _plan_fresh(
                table, effect.keys.take(fresh), effect.tablets[fresh], some, held_bytes(some.values()), fresh
            ),
        )
    back = np.flatnonzero(ghosts)
    order = back[np.lexsort((effect.rowids[back], effect.tablets[back]))]
    columns = {
        number: array.take(array_of_numbers(order))
        for number, array in effect.new_values(table.schema.key_ids).items()
    }
    columns[LIVENESS] = array_of_numbers(np.full(len(order), effect.kind == "insert"))
    alive = SharedBatch({LIVENESS: array_of_numbers(np.ones(len(order), np.bool_))})
    nbytes = held_bytes(columns.values())
    shared, row_bytes = SharedBatch(columns, nbytes), nbytes // len(order)
    for ordinal, begin, end in equal_ranges(effect.tablets[order]):
        rowids = effect.rowids[order[begin:end]]
        if effect.kind == "tombstone":
            deltas = table.tablets[ordinal].memory.deltas
            out.append(
                DeltaAddition(deltas, rowids, alive, begin, end - begin, 16 * (end - begin), order, -1)
            )
        out.append(
            DeltaAddition(
                table.tablets[ordinal].memory.deltas, rowids, shared, begin, end - begin,
                (row_bytes + 16) * (end - begin), order,
            )
        )  # fmt: skip
    return out


def _plan_fresh(
    table: TableState,
    keys: EncodedKeys,
    tablets: np.ndarray,
    columns: Mapping[int, pa.Array],
    nbytes: int,
    order: np.ndarray | None = None,
) -> list[InsertAddition]:
    shared, shared_keys = SharedBatch(columns, nbytes), SharedKeys(keys)
    count = len(tablets)
    row_bytes = (nbytes + keys.nbytes) // max(count, 1)
    return [
        InsertAddition(
            table.tablets[ordinal].memory, shared_keys,
            shared, begin, end - begin, (row_bytes + 8) * (end - begin), order,
        )
        for ordinal, begin, end in equal_ranges(tablets)
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------
# results


def _error_table(
    table: TableState, request: Request, errors: RowErrors, operation: PreparedOperation
) -> pa.Table:
    if not errors:
        return table.no_errors
    keys = {}
    for column in table.schema.key_columns:
        array = operation.columns.get(column.id)
        keys[column.name] = array if array is not None else pa.nulls(operation.row_count, column.type.arrow)
    if operation.codes is None:
        named: str | Sequence[str] = request.operation + ("-ignore" if request.ignore else "")
    else:
        named = [OPERATION_NAMES[code] for code in operation.codes[errors.rows].tolist()]
    found = errors.to_arrow(named, keys)
    if request.numbers is None:
        return found
    place = found.schema.get_field_index("row")
    numbers = pa.array(request.numbers[errors.rows], pa.int64())
    return found.set_column(place, found.schema.field(place), numbers).sort_by("row")


def failure(resolved: ResolvedBatch, requests: Sequence[Request]) -> Exception:
    """Return the exception for a batch with failing rows.

    Its message says how many rows failed, and gives the message of the first of them.
    """
    operations = resolved.operations
    tables = [
        _error_table(resolved.table, request, errors, operation)
        for request, errors, operation in zip(requests, resolved.errors, operations, strict=True)
        if errors
    ]
    errors = pa.concat_tables(tables)
    first = {name: python_value_at(errors.column(name), 0) for name in errors.column_names}
    # A value that could not be converted is NULL there.
    shown = [
        f"{name}={_shown(first[name])}"
        for name in errors.column_names[4:]
        if first[name] is not None or first["code"] in (NULL, MISSING_COLUMN)
    ]
    key = f" ({', '.join(shown)})" if shown else ""
    total = sum(operation.row_count for operation in operations)
    message = (
        f"{len(errors)} of {total} rows failed and nothing was written: row {first['row']}{key}: {first['message']}"
        " (all failing rows are in .errors)"
    )
    return write_error(set(errors.column("code").unique().to_pylist()), message, errors)


def _shown(value: Any) -> str:
    """Return the text of a key's value, at most 200 characters."""
    if isinstance(value, dt.datetime):
        return value.isoformat().replace("+00:00", "Z")
    text = str(value) if isinstance(value, dt.date | decimal.Decimal) else repr(value)
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…"


def results_of(
    requests: Sequence[Request], resolved_batches: Sequence[tuple[ResolvedBatch, list[int]]], timestamp: int
) -> list[WriteResult]:
    results: list[WriteResult | None] = [None] * len(requests)
    for resolved, indexes in resolved_batches:
        for place, index in enumerate(indexes):
            counts: OperationCounts = resolved.counts[place]
            results[index] = WriteResult(
                timestamp, counts.inserted, counts.updated, counts.deleted, counts.ignored,
                _error_table(resolved.table, requests[index], resolved.errors[place], resolved.operations[place]),
                resolved.outcomes.get(place),
            )  # fmt: skip
    assert all(result is not None for result in results)
    return [result for result in results if result is not None]
