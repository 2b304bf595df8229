"""Reads change events: Debezium envelopes, flat rows with an operation, feeds of other tables.

All three of these events mean the upsert of a row with id=1 and n=2:

    {"op": "u", "before": {…}, "after": {"id": 1, "n": 2}, "ts_ms": 17}      an envelope
    {"op": "u", "id": 1, "n": 2, "ts_ms": 17}                                a flat row
    {"_change_type": "update_postimage", "id": 1, "n": 2, …}                 of a change feed

`read_events` returns the rows as columns, with one operation per row, for
`tablet.write.prepare_rows`. It works in two steps:

    1. _read_objects    reads dicts and JSON texts, each with its own fields, to lists of values
       _read_table      reads Arrow data to arrays, without a cost per row
    2. _choose_columns  chooses the columns to write, and parses times and decimals

Kafka Connect can wrap an event: {"schema": {…}, "payload": event}. The wrapper is removed.

Events that change nothing are left out: the image before an update, and a tombstone, which is a
Kafka message without content. An update that changes the key becomes a delete of the old key and an
upsert of the new key.

Source: docs/how-to/change-events.md; the envelope of Debezium's connectors (`op`, `before`,
`after`).
"""

from __future__ import annotations

import decimal
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from nyala import compute as pc
from nyala.errors import OUT_OF_RANGE, ColumnNotFoundError, InvalidArgumentError, SchemaError
from nyala.schema.conversion.array_cast import shorten
from nyala.schema.conversion.convert import InputColumns, read_input
from nyala.schema.conversion.row_errors import RowErrors
from nyala.schema.schema import ColumnSchema, Schema, name_hint
from nyala.tablet.changes.spec import CHANGE_TYPE, FEED_COLUMNS
from nyala.tablet.write.prepare_rows import MixedRows

__all__ = ["EventFormat", "event_format", "read_events"]

# The operations of Debezium, of Nyala's and Delta's change feeds, and words that people use.
_OPERATIONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("c", "r", "u", "insert", "update", "upsert", "update_postimage"), "upsert"),
    **dict.fromkeys(("d", "delete"), "delete"),
    "update_preimage": "skip",
}
_MEANINGS: Final = ("upsert", "delete", "skip")
_IMAGES: Final = ("before", "after")
_WRAPPER: Final = {"schema", "payload"}  # of Kafka Connect's JSON converter
# Debezium for Postgres sends this text for a large value that an update did not change.
_UNCHANGED: Final = "__debezium_unavailable_value"
_UNITS: Final = ("s", "ms", "us", "ns", "d")
_SHOWN: Final = 5
_UNREADABLE: Final = (
    pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, decimal.InvalidOperation,
    OverflowError, TypeError, ValueError,
)  # fmt: skip


class EventFormat(NamedTuple):
    """How to read events, as the arguments of `apply_changes` describe it."""

    operation: str
    sequence: str | None
    sequence_column: str | None
    columns: Mapping[str, str] | None  # from field to column
    units: Mapping[str, str]
    operations: Mapping[Any, str]


@dataclass
class _Events:
    """The rows that events write or delete, in the order of the events.

    columns:  for each field the values of the rows, as a list or an Arrow array.
    given:    for fields that only some rows have, a mask of these rows.
    deletes:  for each row, whether it is deleted.
    numbers:  for each row, the position of its event.
    sequence: for each row, the value of a field that grows with each change of the row; None if
              the events have no such field.
    """

    columns: dict[str, Any]
    given: dict[str, np.ndarray]
    deletes: np.ndarray
    numbers: np.ndarray
    sequence: Any


_NOTHING: Final = _Events({}, {}, np.empty(0, np.bool_), np.empty(0, np.int64), [])


def event_format(
    operation: Any, sequence: Any, sequence_column: Any, columns: Any, units: Any, operations: Any
) -> EventFormat:
    """Check the arguments of `apply_changes`, and return them as an `EventFormat`.

    operation: the field that says what an event does.
    sequence: a field that grows with each change of a row; None: the events have no such field.
    sequence_column: the column that stores the value of `sequence`; None: the column with this name.
    columns: the fields to write: a list, or a dict from field to column; None: all fields.
    units: for columns whose times are whole numbers in the events: the unit, such as "ms", by column.
    operations: from a value of the field `operation` to its meaning: "upsert", "delete" or "skip".
    Raises: InvalidArgumentError.
    """
    for argument, value in (
        ("operation", operation),
        ("sequence", sequence),
        ("sequence_column", sequence_column),
    ):
        if not isinstance(value, str) and (value is not None or argument == "operation"):
            raise InvalidArgumentError(f"{argument} takes the name of a field, not {value!r}")
    if sequence is None and sequence_column is not None:
        raise InvalidArgumentError("sequence_column needs sequence=, the field by which events are ordered")
    if isinstance(columns, str) or not isinstance(columns, Sequence | Mapping | None):
        raise InvalidArgumentError(
            f"columns takes a list of fields, or a dict from field to column, not {columns!r}"
        )
    for argument, pairs in (("units", units), ("operations", operations)):
        if not isinstance(pairs, Mapping | None):
            raise InvalidArgumentError(f"{argument} takes a dict, not {pairs!r}")
    for word, meaning in (operations or {}).items():
        if meaning not in _MEANINGS:
            raise InvalidArgumentError(
                f"operations: {word!r} must mean one of {', '.join(_MEANINGS)}, not {meaning!r}"
            )
    for name, unit in (units or {}).items():
        if unit not in _UNITS:
            raise InvalidArgumentError(f"units: {name!r} takes one of {', '.join(_UNITS)}, not {unit!r}")
    named = columns if isinstance(columns, Mapping | None) else {name: name for name in columns}
    if named is not None and len(set(named.values())) < len(named):
        raise InvalidArgumentError("columns: two fields would be written to the same column")
    return EventFormat(operation, sequence, sequence_column, named, units or {}, operations or {})


def sequence_column(schema: Schema, format: EventFormat) -> str | None:
    """Return the column that stores, for each row, the sequence value of the last event that wrote it.

    None: the caller of `apply_changes` named no event field with a sequence value.
    Raises: InvalidArgumentError if the table does not have the column.
    """
    if format.sequence is None:
        return None
    name = format.sequence_column or format.sequence.rpartition(".")[2]
    if name not in schema:
        raise InvalidArgumentError(
            f"the table needs a column that remembers the sequence {format.sequence!r} of each row: add one, such as "
            f"add_column({name!r}, 'int64'), or pass sequence_column="
        )
    return name


def read_events(events: Any, schema: Schema, format: EventFormat) -> tuple[MixedRows, np.ndarray]:
    """Return the rows with their operations, and the position in `events` of each row's event.

    Raises: InvalidArgumentError, ColumnNotFoundError, SchemaError for events that do not have the
    format. A single value that cannot be read is an error of its row.
    """
    sequence = sequence_column(schema, format)
    if isinstance(events, list | tuple) and all(
        issubclass(kind, Mapping | str | bytes | None) for kind in set(map(type, events))
    ):
        found = _read_objects(events, schema, format)
    else:
        found = _read_table(*_table_of(events), schema, format)
    return _choose_columns(found, schema, format, sequence), found.numbers


# ------------------------------------------------------------------------------------------ dicts and JSON


def _read_objects(events: Sequence[Any], schema: Schema, format: EventFormat) -> _Events:
    objects: list[Mapping[str, Any]] = []
    numbers: list[int] = []
    for number, event in enumerate(events):
        found = _decoded(event, number)
        if found is not None:
            objects.append(found)
            numbers.append(number)
    fields = dict.fromkeys(name for event in objects for name in event)
    if not objects:
        return _NOTHING
    images = [name for name in _IMAGES if name in fields]
    enveloped = any(
        name not in schema or any(isinstance(event.get(name), Mapping) for event in objects)
        for name in images
    )
    word_field = _operation_field(fields, format)
    words = [event.get(word_field) for event in objects]
    for number, word in zip(numbers, words, strict=True):
        if isinstance(word, list | Mapping):
            raise InvalidArgumentError(
                f"event {number}: field {word_field!r} must be the name of an operation, not an object or a list"
            )
    kinds = _meanings(set(words), lambda word: numbers[words.index(word)], word_field, format)
    own = _event_fields(schema, word_field, format)
    keys = _key_fields(schema, format)
    rows: list[Mapping[str, Any]] = []
    deletes: list[bool] = []
    sources: list[int] = []  # for each row, the position of its event in `objects`
    for position, (event, word) in enumerate(zip(objects, words, strict=True)):
        kind = kinds[word]
        if kind == "skip":
            continue
        if enveloped:
            made = _rows_of_envelope(event, kind == "delete", keys, numbers[position])
        else:
            made = [({name: value for name, value in event.items() if name not in own}, kind == "delete")]
        for row, delete in made:
            if delete:
                row = {name: row.get(name) for name in keys}
            elif _UNCHANGED in row.values():
                row = {name: value for name, value in row.items() if value != _UNCHANGED}
            rows.append(row)
            deletes.append(delete)
            sources.append(position)
    names = dict.fromkeys(name for row in rows for name in row)
    given = {name: np.array([name in row for row in rows], np.bool_) for name in names}
    sequences: list[Any] = []
    if format.sequence is not None:
        path = (format.sequence,) if format.sequence in fields else tuple(format.sequence.split("."))
        found_any, sequences = _values_at(path, objects, sources)
        if rows and not found_any:
            raise _sequence_error(format.sequence, fields)
    return _Events(
        {name: [row.get(name) for row in rows] for name in names},
        {name: mask for name, mask in given.items() if not mask.all()},
        np.array(deletes, np.bool_),
        np.array(numbers, np.int64)[sources],
        sequences,
    )


def _decoded(event: Any, number: int) -> Mapping[str, Any] | None:
    """Return the fields of an event as a mapping; None for an event without a value (a Kafka tombstone).

    event: a mapping, or JSON text. If it is an object `{"schema": …, "payload": …}` of Kafka Connect,
        the fields are those of the payload.
    number: the position of the event in the input, for error messages.
    """
    if isinstance(event, str | bytes):
        try:
            # Numbers with a point keep all their digits, for columns of type decimal.
            event = json.loads(event, parse_float=decimal.Decimal)
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"event {number} is text, but not JSON: {error}") from None
    if isinstance(event, Mapping) and "payload" in event and event.keys() <= _WRAPPER:
        event = event["payload"]
    if event is None or isinstance(event, Mapping):
        return event
    raise InvalidArgumentError(f"event {number} is {shorten(repr(event))}, not an object with fields")


def _rows_of_envelope(
    event: Mapping[str, Any], delete: bool, keys: Sequence[str], number: int
) -> list[tuple[Mapping[str, Any], bool]]:
    """Return (row, whether it is deleted) for each row that a Debezium event writes or deletes.

    delete: whether the event deletes its row.
    keys: the fields of the primary key. If an update changes the key, the old row is deleted.
    number: the number of the event, for errors.
    """
    for name in _IMAGES:
        if not isinstance(event.get(name), Mapping | None):
            raise InvalidArgumentError(
                f"event {number}: {name!r} is {shorten(repr(event[name]))}, not an object with the columns of a row"
            )
    before, after = event.get("before"), event.get("after")
    if delete:
        if before is None:
            raise _missing_image_error(number, "before")
        return [(before, True)]
    if after is None:
        raise _missing_image_error(number, "after")
    if before is not None and any(
        name in before and name in after and before[name] != after[name] for name in keys
    ):
        return [({**after, **before}, True), (after, False)]
    return [(after, False)]


def _values_at(
    path: Sequence[str], objects: Sequence[Mapping[str, Any]], sources: Iterable[int]
) -> tuple[bool, list[Any]]:
    """Return whether any row's event has the field at `path`, and its value for each row.

    sources: for each row, the index of its event in `objects`.
    """
    there, values = False, []
    for source in sources:
        value: Any = objects[source]
        for name in path:
            if not isinstance(value, Mapping) or name not in value:
                value = None
                break
            value = value[name]
        else:
            there = True
        values.append(value)
    return there, values


# -------------------------------------------------------------------------------------------------- Arrow


def _table_of(events: Any) -> tuple[pa.Table, np.ndarray]:
    """Return events as an Arrow table with one row per event, and the position of each event in the input.

    The table has one column per field. If the input has a column `payload` of Kafka Connect, the fields
    are those of the payload, and events whose payload is NULL are left out.
    """
    arrays = {}
    for name, values in read_input(events).columns.items():
        try:
            arrays[name] = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise SchemaError(
                f"field {name!r} of the events has values of different types: {error}"
            ) from None
    table = pa.table(arrays)
    if "payload" in arrays and arrays.keys() <= _WRAPPER and pa.types.is_struct(arrays["payload"].type):
        numbers = np.flatnonzero(table.column("payload").is_valid().to_numpy())
        return pa.table(_fields_of(table.take(pa.array(numbers)), "payload")), numbers
    return table, np.arange(table.num_rows)


def _read_table(table: pa.Table, positions: np.ndarray, schema: Schema, format: EventFormat) -> _Events:
    fields = table.column_names
    if not table.num_rows:
        return _NOTHING
    word_field = _operation_field(fields, format)
    column = table.column(word_field).combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    coded = column.dictionary_encode(null_encoding="encode")
    words = coded.dictionary.to_pylist()
    codes = coded.indices.to_numpy()
    kinds = _meanings(
        words, lambda word: int(positions[np.argmax(codes == words.index(word))]), word_field, format
    )
    kind = np.array([kinds[word] for word in words], object)[codes]
    kept = np.flatnonzero(kind != "skip")
    table, numbers, deletes = table.take(pa.array(kept)), positions[kept], (kind == "delete")[kept]
    enveloped = any(
        name in fields and (name not in schema or pa.types.is_struct(table.column(name).type))
        for name in _IMAGES
    )
    if enveloped:
        table, numbers, deletes, columns = _columns_of_envelopes(table, numbers, deletes, schema, format)
    else:
        own = _event_fields(schema, word_field, format)
        columns = {name: table.column(name) for name in fields if name not in own}
    given = {}
    for name in columns.keys() - {*_key_fields(schema, format)}:
        values, has = columns[name], ~deletes
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            has &= ~pc.fill_null(pc.equal(values, _UNCHANGED), False).to_numpy()
        if not has.all():
            given[name] = has
            columns[name] = values.take(pa.array(np.arange(len(has)), mask=~has))
    sequence = None if format.sequence is None else _field(table, format.sequence)
    return _Events(columns, given, deletes, numbers, sequence)


def _columns_of_envelopes(
    table: pa.Table, numbers: np.ndarray, deletes: np.ndarray, schema: Schema, format: EventFormat
) -> tuple[pa.Table, np.ndarray, np.ndarray, dict[str, Any]]:
    """Return the rows that Debezium events write or delete, as (table, numbers, deletes, columns).

    A Debezium event has the row before the change in its field `before`, and the row after the change
    in its field `after`. Most events write or delete one row. An event that changes the key gives two
    rows: the first deletes the old key, the second writes the new row.

    The parameters have one entry for each event:
        table    the event
        numbers  the position of the event
        deletes  whether the event deletes its row

    The results have one entry for each row that is written or deleted:
        table    the event of the row
        numbers  the position of this event
        deletes  whether the row is deleted
        columns  a dict with an array of values for each column name. The values come from `after`,
                 except the keys of deleted rows, which come from `before`.
    """
    _require_images(table, deletes, numbers)
    before, after = (_fields_of(table, name) for name in _IMAGES)
    keys = [name for name in _key_fields(schema, format) if name in before]
    renamed = np.zeros(len(numbers), np.bool_)
    for name in keys:
        if name in after:
            different = pc.not_equal(_cast_like_after(name, before[name], after[name]), after[name])
            renamed |= pc.fill_null(different, False).to_numpy()
    if renamed.any():
        rows = np.repeat(np.arange(len(numbers)), 1 + renamed)
        first = np.append(True, rows[1:] != rows[:-1])
        deletes = deletes[rows] | (renamed[rows] & first)
        numbers, table = numbers[rows], table.take(pa.array(rows))
        before, after = (_fields_of(table, name) for name in _IMAGES)
    columns = {**after, **{name: before[name] for name in keys}}
    for name in keys:
        if name in after:
            old = _cast_like_after(name, before[name], after[name])
            columns[name] = pc.if_else(pa.array(deletes), old, after[name])
    return table, numbers, deletes, columns


def _require_images(table: pa.Table, deletes: np.ndarray, numbers: np.ndarray) -> None:
    for name, needed in (("before", deletes), ("after", ~deletes)):
        if name in table.column_names:
            needed = needed & table.column(name).is_null().to_numpy()
        if needed.any():
            raise _missing_image_error(int(numbers[np.argmax(needed)]), name)


def _fields_of(table: pa.Table, name: str) -> dict[str, pa.ChunkedArray]:
    """Return the fields of a struct column; {} if there is no such column, or no value in it."""
    if name not in table.column_names or pa.types.is_null(table.schema.field(name).type):
        return {}
    column = table.column(name)
    if not pa.types.is_struct(column.type):
        raise SchemaError(
            f"field {name!r} of the events is {column.type}, not a struct with the columns of a row"
        )
    return {field.name: pc.struct_field(column, field.name) for field in column.type}


def _cast_like_after(name: str, before: Any, after: Any) -> Any:
    try:
        return before.cast(after.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise SchemaError(
            f"field {name!r} is {before.type} in `before`, but {after.type} in `after`"
        ) from None


def _field(table: pa.Table, path: str) -> Any:
    """Return a column, or a field of a struct column: `source.lsn`. Raises: InvalidArgumentError."""
    names = [path] if path in table.column_names else path.split(".")
    if names[0] not in table.column_names:
        raise _sequence_error(path, table.column_names)
    column = table.column(names[0])
    for name in names[1:]:
        if not pa.types.is_struct(column.type) or column.type.get_field_index(name) < 0:
            raise _sequence_error(path, table.column_names)
        column = pc.struct_field(column, name)
    return column


# -------------------------------------------------------------------------------------------------- both


def _operation_field(fields: Iterable[str], format: EventFormat) -> str:
    """Return the field that contains the operation. Raises: InvalidArgumentError."""
    fields = list(fields)
    name = CHANGE_TYPE if CHANGE_TYPE in fields else format.operation
    if name not in fields:
        raise InvalidArgumentError(
            f"the events have no field {name!r} with the operation; their fields are {', '.join(fields[:20])}: pass "
            "operation='…'"
        )
    return name


def _meanings(
    words: Iterable[Any], place_of: Callable[[Any], int], field: str, format: EventFormat
) -> dict[Any, str]:
    """Return what each value of the operation field means: "upsert", "delete" or "skip".

    words: the values. place_of: returns the position of an event with this value, for the error.
    Raises: InvalidArgumentError for an unknown value.
    """
    meanings = {**_OPERATIONS, **format.operations}
    kinds = {word: meanings.get(word if word in meanings else str(word).lower()) for word in words}
    unknown = sorted((place_of(word), word) for word, kind in kinds.items() if kind is None)
    if unknown:
        shown = ", ".join("NULL" if word is None else repr(word) for _, word in unknown[:_SHOWN])
        raise InvalidArgumentError(
            f"event {unknown[0][0]}: field {field!r} has the unknown operation {shown}: pass "
            "operations={'…': 'upsert', 'delete' or 'skip'}"
        )
    return {word: kind for word, kind in kinds.items() if kind is not None}


def _event_fields(schema: Schema, word_field: str, format: EventFormat) -> set[str]:
    """Return the event fields that are not written to the table, such as the operation.

    word_field: the field that contains the operation.
    """
    own = {word_field} if word_field != CHANGE_TYPE else {*FEED_COLUMNS}
    if format.sequence is not None:
        own |= {format.sequence.split(".")[0], format.sequence} - {*schema.names}
    return own - {*(format.columns or ())}


def _key_fields(schema: Schema, format: EventFormat) -> list[str]:
    """Return the fields that contain the key columns."""
    if format.columns is None:
        return list(schema.key_names)
    return [field for field, column in format.columns.items() if schema.is_key(column)]


def _missing_image_error(number: int, name: str) -> InvalidArgumentError:
    if name == "after":
        return InvalidArgumentError(f"event {number} is an insert or update without `after`")
    return InvalidArgumentError(
        f"event {number} is a delete without `before`, so its key is unknown: let the source send the old row "
        "(Debezium: REPLICA IDENTITY or the primary key), or pass flat rows with the key"
    )


def _sequence_error(path: str, fields: Iterable[str]) -> InvalidArgumentError:
    first = path.split(".")[0]
    hint = name_hint(first, fields) if first not in fields else ""
    return InvalidArgumentError(f"sequence={path!r}: the events have no such field{hint}")


def _choose_columns(events: _Events, schema: Schema, format: EventFormat, sequence: str | None) -> MixedRows:
    """Return the columns to write and the operation of each row. Parses times and decimals.

    sequence: the column that stores the event's sequence value; None: the events have no such value.
    """
    count = len(events.numbers)
    sources: dict[str, tuple[Any, np.ndarray | None]] = {}
    for field, column in (format.columns or {name: name for name in events.columns}).items():
        if column not in schema:
            if format.columns is not None:
                hint = name_hint(column, schema.names)
                raise ColumnNotFoundError(f"columns: the table has no column {column!r}{hint}")
            raise ColumnNotFoundError(
                f"the events have a field {field!r}, which is not a column of the table"
                f"{name_hint(field, schema.names)}; columns=[…] names the fields to write"
            )
        if field in events.columns:
            sources[column] = events.columns[field], events.given.get(field)
        elif column != sequence and not events.deletes.all():
            hint = name_hint(field, events.columns)
            raise InvalidArgumentError(f"columns: the events have no field {field!r}{hint}")
    if sequence is not None and count:
        sources[sequence] = events.sequence, None
    for name in format.units:
        if name not in schema:
            hint = name_hint(name, schema.names)
            raise ColumnNotFoundError(f"units: the table has no column {name!r}{hint}")
    errors = RowErrors()
    chosen, given = {}, {}
    for name, (values, mask) in sources.items():
        chosen[name] = _parse_column(values, schema.by_name(name), format.units.get(name), errors)
        if mask is not None:
            given[name] = mask
    codes = events.deletes.astype(np.int64).tolist()
    return MixedRows(("upsert", "delete-ignore"), codes, InputColumns(chosen, count, given=given), errors)


def _parse_column(values: Any, column: ColumnSchema, unit: str | None, errors: RowErrors) -> Any:
    """Convert numbers to times of the given unit, and text to decimals. Returns other values as
    they are.
    """
    where = f"column {column.name!r}: "
    if unit is not None:
        what = f"is not a number of {'days' if unit == 'd' else unit}, the unit that units= gives for this column"
        return _each_cast(values, lambda part: _times(part, unit), errors, where, what)
    kinds = set(map(type, values)) if isinstance(values, list) else {values.type}
    if column.type.name == "timestamp" and any(
        kind is int or (isinstance(kind, pa.DataType) and pa.types.is_integer(kind)) for kind in kinds
    ):
        raise InvalidArgumentError(
            f"{where}the events have whole numbers, and the column is a {column.type}: give their unit with "
            f"units={{{column.name!r}: 'ms'}} (s, ms, us, ns, or d for days)"
        )
    if column.type.name == "decimal" and any(
        kind is str or kind in (pa.string(), pa.large_string()) for kind in kinds
    ):
        scale = column.type.scale
        what = f"is not a number of type {column.type}"
        return _each_cast(values, lambda part: _decimals(part, scale), errors, where, what)
    if column.type.is_floating and decimal.Decimal in kinds:
        return [float(value) if isinstance(value, decimal.Decimal) else value for value in values]
    return values


def _times(values: Any, unit: str) -> Any:
    numbers = (
        values.cast(pa.int64())
        if isinstance(values, pa.Array | pa.ChunkedArray)
        else pa.array(values, pa.int64())
    )
    if unit == "d":
        return numbers.cast(pa.int32()).cast(pa.date32())
    return numbers.cast(pa.timestamp(unit, "UTC"))


def _decimals(values: Any, scale: int | None) -> Any:
    if isinstance(values, list):
        return [decimal.Decimal(value) if isinstance(value, str) else value for value in values]
    return values.cast(pa.string()).cast(pa.decimal128(38, scale))


def _each_cast(values: Any, cast: Callable[[Any], Any], errors: RowErrors, where: str, what: str) -> Any:
    """Cast all values. A value that cannot be cast becomes NULL, and its row gets an error.

    errors: receives these errors. The message is `where`, then the value, then `what`.
    where: the text before the value, such as "column 'a': ".
    what: the text after the value, such as "is not a number of days".
    """
    try:
        return cast(values)
    except _UNREADABLE:
        pass
    whole = list(values) if isinstance(values, list) else values.to_pylist()
    for row, value in enumerate(whole):
        try:
            cast([value])
        except _UNREADABLE:
            whole[row] = None
            errors.add([row], OUT_OF_RANGE, f"{where}{shorten(repr(value))} {what}")
    return cast(whole)
