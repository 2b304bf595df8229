"""The classes for a resolved batch: effects to log and apply, counts, and row errors.

Source: docs/design/writes-and-batches.md, "Resolving a batch without a loop".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from nyala.delta.batch import held_bytes
from nyala.delta.run import LIVENESS
from nyala.keys.encoded_keys import EncodedKeys
from nyala.schema.conversion.long_column import Column
from nyala.schema.conversion.row_errors import RowErrors
from nyala.schema.plain_arrays import array_of_numbers
from nyala.tablet.state.idempotency import COUNTS
from nyala.tablet.state.idempotency import FAILED as FAILED_COUNT
from nyala.tablet.state.root import AnyRowSet, TableState
from nyala.tablet.write.prepare import PreparedOperation

# The outcome of one row.
INSERTED, UPDATED, DELETED, IGNORED, FAILED = range(5)


@dataclass
class Effect:
    """One kind of change to some rows of one table: logged as one group, then applied to memory.

    All arrays have one element per row.
    kind:    "insert", "update", "delete" or "tombstone". A tombstone is a new row that no reader
             sees. A delete of a missing key adds a tombstone, if the delete has the option
             `newest_by=COLUMN`: the tombstone keeps the delete's value of this column.
    tablets: the index of each row's tablet in `TableState.tablets`
    columns: by column id, key columns first
    codes:   the index of each row's rowset in `ResolvedBatch.rowsets`; ABSENT for an insert
    rowids:  the position of each row in its rowset; for an insert, the position of a dead row in
             the MemRowSet that gets the new values, or -1
    batch:   the columns as the Arrow batch that the log stores; None: not computed yet
    message: the Arrow IPC message of `batch`; None: not encoded yet
    """

    kind: str
    keys: EncodedKeys
    tablets: np.ndarray
    columns: Mapping[int, Column]
    codes: np.ndarray
    rowids: np.ndarray
    batch: pa.RecordBatch | None = None
    message: pa.Buffer | None = None

    @property
    def nbytes(self) -> int:
        """The number of bytes that the rows take: the size of `message`.

        If `message` is None, the number of bytes of `columns` in memory.
        """
        return held_bytes(self.columns.values()) if self.message is None else self.message.size

    def new_values(self, key_ids: Collection[int]) -> dict[int, Column]:
        """Return the new values by column id, without key columns.

        If the effect deletes rows, the column LIVENESS is added.
        """
        values = {number: column for number, column in self.columns.items() if number not in key_ids}
        if self.kind in ("delete", "tombstone"):
            values[LIVENESS] = array_of_numbers(np.zeros(len(self.codes), np.bool_))
        return values


@dataclass
class OperationCounts:
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    ignored: int = 0


@dataclass
class ResolvedBatch:
    """What a batch does in one table: its changes (`effects`), and the results of each operation.

    counts:   for each operation: how many rows it inserted, updated, deleted and ignored
    errors:   for each operation: its failed rows
    rowsets:  (index of its tablet in `TableState.tablets`, rowset) of each touched rowset
    outcomes: by the index of the operation, the outcome of each of its rows (INSERTED to FAILED);
              only if `resolve_rows` resolved the batch
    """

    table: TableState
    effects: list[Effect] = field(default_factory=list)
    rowsets: list[tuple[int, AnyRowSet]] = field(default_factory=list)
    counts: list[OperationCounts] = field(default_factory=list)
    errors: list[RowErrors] = field(default_factory=list)
    outcomes: dict[int, np.ndarray] = field(default_factory=dict)
    operations: Sequence[PreparedOperation] = ()

    @property
    def failed(self) -> bool:
        return any(bool(errors) for errors in self.errors)


def row_counts(resolved_batches: Sequence[ResolvedBatch]) -> dict[str, int]:
    """Return the row counts that the store keeps with a batch's idempotency key."""
    counts = {
        name: sum(getattr(counts, name) for resolved in resolved_batches for counts in resolved.counts)
        for name in COUNTS
    }
    counts[FAILED_COUNT] = sum(len(errors) for resolved in resolved_batches for errors in resolved.errors)
    return counts


def present_text(table: TableState) -> str:
    return (
        f"duplicate key: table {table.name!r} already has a row with this key; use upsert(), or pass "
        'on_conflict="ignore"'
    )


def repeated_text(first: int, row: int) -> str:
    return (
        f"duplicate key in this batch: rows {first} and {row} have the same key; remove one, or use upsert(), where "
        "the later row wins"
    )


def missing_row_text(table: TableState, operation: str) -> str:
    advice = "use upsert(), or pass" if operation == "update" else "pass"
    return f'no row of table {table.name!r} has this key; {advice} on_missing="ignore"'
