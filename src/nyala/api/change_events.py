"""Reads change events: Debezium envelopes, flat rows with an operation, feeds of other tables.

    {"op": "u", "before": {…}, "after": {"id": 1, "n": 2}, "ts_ms": 17}    ─┐
    {"op": "u", "id": 1, "n": 2, "ts_ms": 17}                              ├─► upsert id=1, n=2, ts_ms=17
    {"_change_type": "update_postimage", "id": 1, "n": 2, …}               ─┘

`read_events` returns the rows as columns, with one operation per row, for `tablet.write.prepare_rows`.
Rows that say nothing new (the image before an update, a tombstone of Kafka) are left out.

Source: docs/how-to/change-events.md; the envelope of Debezium's connectors (`op`, `before`, `after`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from nyala import compute as pc
from nyala.errors import InvalidArgumentError, SchemaError
from nyala.schema.conversion.convert import InputColumns, read_input
from nyala.schema.schema import ColumnSchema, Schema
from nyala.suggestion import nearest
from nyala.tablet.changes.spec import CHANGE_TYPE, FEED_COLUMNS
from nyala.tablet.write.prepare_rows import MixedRows

__all__ = ["EventFormat", "read_events"]

# The operations of Debezium, of Nyala's and Delta's change feeds, and words that people use.
_OPERATIONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("c", "r", "u", "insert", "update", "upsert", "update_postimage"), "upsert"),
    **dict.fromkeys(("d", "delete"), "delete-ignore"),
    "update_preimage": "skip",
}
_MEANINGS: Final = ("upsert", "delete", "skip")
_UNITS: Final = ("s", "ms", "us", "ns", "d")
_SHOWN: Final = 5


class EventFormat(NamedTuple):
    """How to read events; the arguments of `apply_changes`."""

    operation: str
    sequence: str | None
    sequence_column: str | None
    columns: Sequence[str] | Mapping[str, str] | None
    units: Mapping[str, str]
    operations: Mapping[str, str]


def read_events(events: Any, schema: Schema, format: EventFormat) -> tuple[MixedRows, np.ndarray]:
    """Return the rows with their operations, and each row's position in `events`.

    Raises: InvalidArgumentError, SchemaError for events that do not have the format.
    """
    table, numbers = _table_of(events)
    kinds = _kinds(table, format)
    kept = np.flatnonzero(kinds != "skip")
    if len(kept) < len(kinds):
        table, kinds, numbers = table.take(pa.array(kept)), kinds[kept], numbers[kept]
    deleted = kinds == "delete-ignore"
    columns = _row_columns(table, deleted, numbers, format)
    sequence = _sequence_column(schema, format)
    if sequence is not None:
        assert format.sequence is not None
        columns[sequence] = _field(table, format.sequence)
    chosen: dict[str, Any] = {}
    for name, values in columns.items():
        if name in schema:
            chosen[name] = _parsed(values, schema.by_name(name), format.units.get(name))
        elif format.columns is not None:
            raise InvalidArgumentError(
                f"columns: the table has no column {name!r}{nearest(name, schema.names)}"
            )
        else:
            chosen[name] = values  # the conversion says that the column is unknown
    unknown = next((name for name in format.units if name not in chosen), None)
    if unknown is not None:
        raise InvalidArgumentError(f"units: the events have no column {unknown!r}")
    kept_by_deletes = {*schema.key_names, sequence}
    given = {name: ~deleted for name in chosen if name not in kept_by_deletes} if deleted.any() else {}
    codes = [("upsert", "delete-ignore").index(kind) for kind in kinds.tolist()]
    return MixedRows(
        ("upsert", "delete-ignore"), codes, InputColumns(chosen, len(codes), given=given)
    ), numbers


def _table_of(events: Any) -> tuple[pa.Table, np.ndarray]:
    """The events as an Arrow table with one column per field, and their positions."""
    if isinstance(events, list | tuple) and all(
        isinstance(each, Mapping | str | bytes | None) for each in events
    ):
        rows, numbers = [], []
        for number, event in enumerate(events):
            event = _decoded(event, number)
            if event is not None:
                rows.append(event)
                numbers.append(number)
        names = dict.fromkeys(name for row in rows for name in row)
        arrays = [_array(name, [row.get(name) for row in rows]) for name in names]
        return pa.table(arrays, names=list(names)), np.array(numbers, np.int64)
    found = read_input(events)
    table = pa.table({name: _array(name, values) for name, values in found.columns.items()})
    return table, np.arange(found.row_count)


def _decoded(event: Any, number: int) -> Mapping[str, Any] | None:
    """One event without its wrapper; None for a tombstone of Kafka."""
    if isinstance(event, str | bytes):
        try:
            event = json.loads(event)
        except ValueError as error:
            raise InvalidArgumentError(f"event {number} is text, but not JSON: {error}") from None
    if event is None:
        return None
    if not isinstance(event, Mapping):
        raise InvalidArgumentError(f"event {number} is {event!r}, not an object with fields")
    payload = event.get("payload", event)
    if payload is None or isinstance(payload, Mapping):
        return payload
    raise InvalidArgumentError(f"event {number}: payload is {payload!r}, not an object with fields")


def _array(name: str, values: Any) -> Any:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise SchemaError(f"field {name!r} of the events has values of different types: {error}") from None


def _kinds(table: pa.Table, format: EventFormat) -> np.ndarray:
    """What to do with each event: "upsert", "delete-ignore" or "skip"."""
    name = CHANGE_TYPE if CHANGE_TYPE in table.column_names else format.operation
    if name not in table.column_names:
        raise InvalidArgumentError(
            f"the events have no field {name!r} with the operation; their fields are "
            f"{', '.join(table.column_names[:20])}: pass operation='…'"
        )
    for word, meaning in format.operations.items():
        if meaning not in _MEANINGS:
            raise InvalidArgumentError(
                f"operations: {word!r} means one of {', '.join(_MEANINGS)}, not {meaning!r}"
            )
    meanings = {**_OPERATIONS, **format.operations}
    words = table.column(name).to_pylist()
    known = {word: meanings.get(word if word in meanings else str(word).lower()) for word in set(words)}
    unknown = sorted(str(word) for word, meaning in known.items() if meaning is None)
    if unknown:
        raise InvalidArgumentError(
            f"field {name!r} has the unknown operation {', '.join(map(repr, unknown[:_SHOWN]))}: pass "
            "operations={'…': 'upsert', 'delete' or 'skip'}"
        )
    return np.array(["delete-ignore" if known[word] == "delete" else known[word] for word in words], object)


def _row_columns(
    table: pa.Table, deleted: np.ndarray, numbers: np.ndarray, format: EventFormat
) -> dict[str, Any]:
    """The columns of the rows: those in `before` and `after`, or the fields besides the operation."""
    names = table.column_names
    if "after" in names or "before" in names:
        after, before = (_struct(table, name) for name in ("after", "before"))
        fields = list(dict.fromkeys([*after, *before]))
        mask = pa.array(deleted)
        columns = {name: _either(mask, before.get(name), after.get(name)) for name in fields}
        missing = np.flatnonzero(_is_null(table, "before") & deleted)
        if len(missing):
            raise InvalidArgumentError(
                f"event {int(numbers[missing[0]])} is a delete without `before`, so its key is unknown: let the source "
                "send the old row (Debezium: REPLICA IDENTITY or the primary key), or pass flat rows with the key"
            )
        missing = np.flatnonzero(_is_null(table, "after") & ~deleted)
        if len(missing):
            raise InvalidArgumentError(
                f"event {int(numbers[missing[0]])} is an insert or update without `after`"
            )
    else:
        own = {*FEED_COLUMNS} if CHANGE_TYPE in names else {format.operation}
        if format.sequence is not None and format.columns is None:
            own |= {format.sequence} - {format.sequence_column or format.sequence}
        columns = {name: table.column(name) for name in names if name not in own}
    if format.columns is None:
        return columns
    wanted = (
        format.columns if isinstance(format.columns, Mapping) else {name: name for name in format.columns}
    )
    lacking = next((name for name in wanted if name not in columns), None)
    if lacking is not None:
        raise InvalidArgumentError(
            f"columns: the events have no field {lacking!r}{nearest(lacking, columns)}"
        )
    return {target: columns[name] for name, target in wanted.items()}


def _struct(table: pa.Table, name: str) -> dict[str, pa.ChunkedArray]:
    if name not in table.column_names or pa.types.is_null(table.schema.field(name).type):
        return {}
    column = table.column(name)
    if not pa.types.is_struct(column.type):
        raise SchemaError(f"field {name!r} of the events is {column.type}, not the columns of a row")
    return {field.name: pc.struct_field(column, field.name) for field in column.type}


def _is_null(table: pa.Table, name: str) -> np.ndarray:
    if name not in table.column_names:
        return np.ones(table.num_rows, np.bool_)
    found: np.ndarray = table.column(name).is_null().to_numpy()
    return found


def _either(deleted: pa.Array, before: Any, after: Any) -> Any:
    if before is None or after is None:
        return after if before is None else before
    if before.type != after.type:
        before = before.cast(after.type) if pa.types.is_null(before.type) else before
        after = after.cast(before.type) if pa.types.is_null(after.type) else after
    return pc.if_else(deleted, before, after)


def _sequence_column(schema: Schema, format: EventFormat) -> str | None:
    if format.sequence is None:
        if format.sequence_column is not None:
            raise InvalidArgumentError("sequence_column goes with sequence=, the field of the events")
        return None
    name = format.sequence_column or format.sequence.rpartition(".")[2]
    if name not in schema:
        raise InvalidArgumentError(
            f"the table needs a column that remembers the sequence {format.sequence!r} of each row: add one, such as "
            f"add_column({name!r}, 'int64'), or pass sequence_column="
        )
    return name


def _field(table: pa.Table, path: str) -> Any:
    """The values of a field, or of a field in a structure: `source.lsn`."""
    first, *rest = path.split(".")
    if first not in table.column_names:
        raise InvalidArgumentError(
            f"sequence={path!r}: the events have no field {first!r}{nearest(first, table.column_names)}"
        )
    column = table.column(first)
    for name in rest:
        if not pa.types.is_struct(column.type) or column.type.get_field_index(name) < 0:
            raise InvalidArgumentError(f"sequence={path!r}: the events have no field {name!r} in {first!r}")
        column = pc.struct_field(column, name)
    return column


def _parsed(values: Any, column: ColumnSchema, unit: str | None) -> Any:
    """Numbers as times in the given unit, and text as decimals; other values as they are."""
    type = values.type
    if unit is not None:
        if unit not in _UNITS:
            raise InvalidArgumentError(
                f"units: {column.name!r} takes one of {', '.join(_UNITS)}, not {unit!r}"
            )
        if not pa.types.is_integer(type) and not pa.types.is_null(type):
            raise InvalidArgumentError(
                f"units: {column.name!r} gives a unit for whole numbers, but the events have {type}"
            )
        if unit == "d":
            return values.cast(pa.int32()).cast(pa.date32())
        return values.cast(pa.int64()).cast(pa.timestamp(unit, "UTC"))
    if column.type.name in ("timestamp", "date") and pa.types.is_integer(type):
        raise InvalidArgumentError(
            f"column {column.name!r} is a {column.type}, and the events have whole numbers: say what they count with "
            f"units={{{column.name!r}: 'ms'}} (s, ms, us, ns, or d for days)"
        )
    if column.type.name == "decimal" and (pa.types.is_string(type) or pa.types.is_large_string(type)):
        try:
            return values.cast(pa.string()).cast(pa.decimal128(38, column.type.scale))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SchemaError(f"column {column.name!r}: a text is not a {column.type}: {error}") from None
    return values
