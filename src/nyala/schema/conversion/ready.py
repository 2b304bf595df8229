"""Data of Arrow that has a table's types already: checked as a whole, and copied as the log will write it.

    RecordBatch or Table whose columns have the canonical types
      validate       every text UTF-8, every decimal within its digits        one call for all columns
      serialize      one Arrow message: the copy, and the log record's rows    one call
      read           arrays that look into the message                         one call
      the rest       NULL, dates, lengths                                      of the columns that have such a rule

Casting and copying column by column (`convert`) says the same of such data, in five to ten calls a column:
of one row of 16 columns that is a quarter of what an insert costs. It is asked when anything is not as it should be:
nothing fails here, and no message is written here.

Invariants
    RD1 What is taken is what `convert` makes of the same data: equal arrays, of the same types, and no error.
    RD2 The arrays look into the message and into nothing else: the user may change his own afterwards.
Source: docs/design/writes-and-batches.md, "Small writes in few calls".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from nyala.schema.conversion.array_cast import are_dates, are_finite_times, longest_bytes
from nyala.schema.schema import ColumnSchema, Schema

__all__ = ["READY_ROWS_MAX", "ReadyData", "take_ready"]

# Above, what a call costs beside its rows is nothing, and rows too many for the log need no message.
READY_ROWS_MAX: Final = 4096
# So many kinds of data in one schema are remembered.
_PLANS_MAX: Final = 8


@dataclass(frozen=True)
class ReadyData:
    """Columns of a table's types, and the same as one Arrow message.

    batch:   the columns, in the schema's order, each under its id as the log has it (RD2).
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
    """What is to be done with data of one Arrow schema. columns: none if it is not ready."""

    given: pa.Schema
    columns: tuple[ColumnSchema, ...]
    ids: tuple[int, ...]
    names: tuple[str, ...]
    order: tuple[int, ...] | None
    """Where in the data each column stands; None: in this order."""
    written: pa.Schema | None
    not_null: tuple[int, ...]
    dates: tuple[int, ...]
    times: tuple[int, ...]
    cut: tuple[int, ...]
    variable: tuple[int, ...]


def take_ready(data: Any, schema: Schema, max_cell_bytes: int) -> ReadyData | None:
    """`data` if it is ready; None: then `nyala.schema.conversion.convert` has to look at every column.

    Cost: about five Arrow calls, and one for each date, timestamp and varchar column.
    """
    if not isinstance(data, pa.Table | pa.RecordBatch) or not 0 < data.num_rows <= READY_ROWS_MAX:
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
    return ReadyData(plan.columns, plan.ids, plan.names, batch, arrays, message)


def _plan_of(given: pa.Schema, schema: Schema) -> _Plan:
    plans: list[_Plan] = schema.ready_plans
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
        len(columns) != len(names)  # names that the table has not, or that stand twice
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
