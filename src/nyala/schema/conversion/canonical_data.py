"""Fast path for Arrow data that already has the table's types: one check and one copy for all columns.

    RecordBatch or Table whose columns have the canonical types
      validate       text is UTF-8, decimals fit their precision               one call for all columns
      serialize      one Arrow message: the copy, and the log record's rows    one call
      read           arrays that are views of the message                      one call
      other checks   NULL, dates, lengths                                      one call per column with such a rule

`convert` gives the same result column by column, in five to ten calls per column. For one row of 16 columns that is a
quarter of an insert's cost. If any check fails here, `convert` processes the data and reports the errors.

Invariants
    RD1 The result equals the result of `convert`: equal arrays of the same types, and no errors.
    RD2 The arrays use only the message's memory, so the user may change the original arrays afterwards.
Source: docs/design/writes-and-batches.md, "Small writes in few calls".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from nyala.schema.conversion.array_cast import are_dates, are_finite_times, longest_bytes
from nyala.schema.schema import ColumnSchema, Schema

__all__ = ["CANONICAL_ROWS_MAX", "CanonicalData", "take_canonical"]

# For more rows, the cost per call does not matter, and large batches bypass the log and need no message.
CANONICAL_ROWS_MAX: Final = 4096
# Cached plans per schema.
_PLANS_MAX: Final = 8


@dataclass(frozen=True)
class CanonicalData:
    """Columns with a table's types, and the same columns as one Arrow message.

    batch:   the columns, in the schema's order, named by column id as in the log (RD2).
    message: the batch's encapsulated IPC message, without its schema.
    """

    columns: tuple[ColumnSchema, ...]
    ids: tuple[int, ...]
    names: tuple[str, ...]
    batch: pa.RecordBatch
    arrays: list[pa.Array]
    message: pa.Buffer

    @property
    def row_count(self) -> int:
        return int(self.batch.num_rows)


@dataclass(frozen=True)
class _Plan:
    """The checks for data of one Arrow schema. `columns` is empty if the data needs `convert`."""

    given: pa.Schema
    columns: tuple[ColumnSchema, ...]
    ids: tuple[int, ...]
    names: tuple[str, ...]
    order: tuple[int, ...] | None
    """The position of each column in the data; None if the order is the schema's."""
    written: pa.Schema | None
    not_null: tuple[int, ...]
    dates: tuple[int, ...]
    times: tuple[int, ...]
    cut: tuple[int, ...]
    variable: tuple[int, ...]


def take_canonical(data: Any, schema: Schema, max_cell_bytes: int) -> CanonicalData | None:
    """Copy `data` if it has the table's types and passes all checks; None if it needs `convert`.

    Cost: about five Arrow calls, and one per date, timestamp and varchar column.
    """
    if not isinstance(data, pa.Table | pa.RecordBatch) or not 0 < data.num_rows <= CANONICAL_ROWS_MAX:
        return None
    plan = _plan_of(data.schema, schema)
    if not plan.columns:
        return None
    if isinstance(data, pa.Table):
        batches = data.to_batches()
        if len(batches) > 1:
            batches = data.combine_chunks().to_batches()
            if len(batches) > 1:  # more than 2 GiB of text
                return None
        data = batches[0]
    if plan.order is not None:
        data = data.select(plan.order)
    try:
        data.validate(full=True)
    except pa.ArrowInvalid:
        return None
    message = data.serialize()
    batch = pa.ipc.read_record_batch(message, plan.written)
    arrays = batch.columns
    for place in plan.not_null:
        if arrays[place].null_count:
            return None
    for place in plan.dates:
        if not are_dates(arrays[place]):
            return None
    for place in plan.times:
        if not are_finite_times(arrays[place]):
            return None
    for place in plan.cut:
        length = plan.columns[place].type.length
        assert length is not None
        if longest_bytes(arrays[place], length) > length:
            return None
    if message.size > max_cell_bytes:
        for place in plan.variable:
            if longest_bytes(arrays[place], max_cell_bytes) > max_cell_bytes:
                return None
    return CanonicalData(plan.columns, plan.ids, plan.names, batch, arrays, message)


def _plan_of(given: pa.Schema, schema: Schema) -> _Plan:
    plans: list[_Plan] = schema.canonical_plans
    for plan in plans:
        if plan.given.equals(given):
            return plan
    plan = _make_plan(given, schema)
    if len(plans) >= _PLANS_MAX:
        plans.clear()
    plans.append(plan)
    return plan


def _make_plan(given: pa.Schema, schema: Schema) -> _Plan:
    names = given.names
    place_of = {name: place for place, name in enumerate(names)}
    columns = tuple(column for column in schema.columns if column.name in place_of)
    if (
        len(columns) != len(names)  # unknown or duplicate names
        or not columns
        or any(given.field(place_of[column.name]).type != column.type.arrow for column in columns)
    ):
        return _Plan(given, (), (), (), None, None, (), (), (), (), ())
    order = tuple(place_of[column.name] for column in columns)

    def places(mask: list[bool]) -> tuple[int, ...]:
        return tuple(place for place, is_in in enumerate(mask) if is_in)

    return _Plan(
        given,
        columns,
        tuple(column.id for column in columns),
        tuple(column.name for column in columns),
        None if order == tuple(range(len(order))) else order,
        pa.schema([(str(column.id), column.type.arrow) for column in columns]),
        places([not column.nullable for column in columns]),
        places([column.type.name == "date" for column in columns]),
        places([column.type.name == "timestamp" for column in columns]),
        places([column.type.length is not None for column in columns]),
        places([column.type.is_variable for column in columns]),
    )
