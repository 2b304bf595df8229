"""Converts a user's data to arrays of the table's types, as the first step of a write or look-up.

    read_input   data in any supported form     ->  columns by name, not converted
    convert      data and the table's schema    ->  arrays of the canonical types, and the failed rows

Data is a dict of columns, a list of dicts, a pyarrow Table or RecordBatch, a pandas DataFrame, or
any object with `__arrow_c_stream__` or `__arrow_c_array__` (polars, DuckDB relations, ADBC
readers). Lists of Python values stay lists until the column's type is known, so that Decimals,
dates and large ints keep their values.

Invariants
    V1  A converted column is one array of the canonical type with `row_count` rows. With `copy`, it
        has its own memory and offset 0, so the user may change the original arrays afterwards.
        Two kinds of data use the user's memory even with `copy`, and set `borrowed`: a column with
        more text than `limits.max_slice_bytes` (a `LongColumn`), and data above
        `borrow_above_bytes`.
    V2  In a failed row, the failing column is NULL, even if the column is NOT NULL. The caller must
        drop failed rows before it uses values.
    V3  An error of the whole batch, such as incompatible types or an unknown column, is raised.
        Errors of single rows are in `errors`. If several columns of a row fail, `errors` has the
        error of the column that is first in the schema.
    V4  A column that is not in the data is not in the result. The write decides whether it may be
        missing.
The caller splits streams (`pyarrow.RecordBatchReader`) into batches, and checks the sizes of
encoded keys.
Source: docs/how-to/data-in-and-out.md; the limits of cells from Kudu schema design, "Known
Limitations".
"""

from __future__ import annotations

import itertools
import operator
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala import compute as pc
from nyala.errors import NULL, ColumnNotFoundError, InvalidArgumentError, SchemaError
from nyala.schema.arrow_values import repeated
from nyala.schema.conversion.array_cast import (
    Cast,
    Failure,
    cast_array,
    copy_array,
    copy_arrays,
    longest_bytes,
    one_array,
    shorten,
)
from nyala.schema.conversion.canonical_data import CanonicalData, take_canonical
from nyala.schema.conversion.cast import cast_datetime64, cast_list
from nyala.schema.conversion.long_column import TEXT_IDS, Column, LongColumn, long_column, slice_bounds
from nyala.schema.conversion.python_rows import is_condition, is_value, key_columns_of, key_text, with_names
from nyala.schema.conversion.row_errors import RowErrors
from nyala.schema.limits import DEFAULT_LIMITS, Limits
from nyala.schema.schema import NO_DEFAULT, ColumnSchema, Schema, name_hint
from nyala.schema.types import ColumnType

__all__ = [
    "Converted",
    "InputColumns",
    "LongKeys",
    "convert",
    "copy_array",
    "default_array",
    "default_column",
    "duplicate_name_text",
    "read_input",
]


_ARROW: Final = (pa.Array, pa.ChunkedArray)
# Batches of fewer rows are always copied.
_BORROWED_ROWS_MIN: Final = 1 << 14
# Batches of fewer rows are converted in one thread.
_PARALLEL_ROWS_MIN: Final = 1 << 17
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class InputColumns:
    """A user's data as columns of `row_count` values, not converted and in the user's order.

    columns:     by name: a pa.Array, a pa.ChunkedArray, a numpy.ndarray or a sequence of Python
                 values.
    index_names: names of the index levels of a pandas DataFrame, or None for a level without a
                 name. Index levels are not in `columns`.
    given:       for each column that some rows lack: a mask of the rows that have it. The other
                 rows have NULL in this column.
    """

    columns: Mapping[str, Any]
    row_count: int
    index_names: tuple[Any, ...] = ()
    given: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict)


@dataclass(frozen=True)
class Converted:
    """The result of `convert`: the columns by name, in the schema's order, and the failed rows."""

    columns: dict[str, Column]
    row_count: int
    errors: RowErrors
    canonical: CanonicalData | None = None
    """The same columns in the log's form, if `nyala.schema.conversion.canonical_data` made them."""
    borrowed: bool = False
    """Whether columns use the user's memory although the caller wanted a copy."""
    too_long: LongKeys | None = None
    """Rows whose key is longer than its varchar column allows. They have no other error."""
    given: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    """For columns outside the key that only some rows have: a mask of these rows."""


@dataclass(frozen=True)
class LongKeys:
    """Rows whose key is longer than its varchar column allows, with one message per row.

    No row can have such a key. It is not truncated, because two different keys could become equal.
    """

    rows: npt.NDArray[np.int64]
    messages: list[str]


def convert(
    data: Any,
    schema: Schema,
    *,
    columns: Literal["all", "key"] = "all",
    operation: str = "insert",
    copy: bool = True,
    borrow_above_bytes: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
    sequence: str | None = None,
) -> Converted:
    """Convert `data` to the types of `schema`.

    columns:   "all" accepts all columns of the table. "key" accepts only the key columns, as for a
               look-up. A delete accepts only the key columns, whatever `columns` is.
    operation: the name of the operation for messages: insert, upsert, update, delete or get.
    copy:      False lets the result use the user's memory. It is for callers that copy the result,
               or that finish before the user's code continues.
    borrow_above_bytes: data of more bytes may use the user's memory even with `copy`, because
               copying a gigabyte takes as long as encoding it. A caller that keeps such data must
               copy it.
    sequence:  the name of one more column, which is accepted where otherwise only key columns are.
               Its values say which of several changes of a row is the newest. None: no such column.
    Raises:    ColumnNotFoundError for an unknown column; SchemaError for incompatible types,
               duplicate names, and columns outside the key in a delete; InvalidArgumentError for
               unsupported data, and for a DataFrame with a named index that is not also a column.
    Cost:      Arrow and NumPy calls per column and not per row. An int64 column of the right type
               is copied once.
    """
    key_only = columns == "key" or operation == "delete"
    _refuse_condition(data, schema, operation)
    canonical = take_canonical(data, schema, limits.max_cell_bytes) if copy else None
    if canonical is not None and (not key_only or {*canonical.names} <= {*schema.key_names, sequence}):
        return Converted(
            dict(zip(canonical.names, canonical.arrays, strict=True)),
            canonical.row_count,
            RowErrors(),
            canonical,
        )
    if key_only:
        data = key_columns_of(data, schema.key_names, operation)
    else:
        data = with_names(data, schema.insert_names if operation == "insert" else schema.names, operation)
    given = data if isinstance(data, InputColumns) else read_input(data)
    _check_index(given, schema, operation, key_only)
    _check_names(given.columns, schema, operation, key_only, sequence)
    partly = {name: mask for name, mask in given.given.items() if not schema.is_key(name)}
    errors = RowErrors()
    too_long: dict[int, str] = {}
    converted: dict[str, Any] = {}
    shared: list[str] = []  # the columns that use the user's memory
    borrowed = False
    wanted = [column for column in schema.columns if column.name in given.columns]

    def converted_one(column: ColumnSchema) -> tuple[Column, bool, RowErrors]:
        found, raw = RowErrors(), given.columns[column.name]
        truncate, rows = not schema.is_key(column.name), partly.get(column.name)
        return *_convert_column(raw, column, found, limits, truncate=truncate, given=rows), found

    for column, (array, shares, found) in zip(
        wanted, _map_columns(converted_one, wanted, given.row_count), strict=True
    ):
        errors.extend(found)
        converted[column.name] = array
        if schema.is_key(column.name) and column.type.length is not None:
            too_long = _long_key_messages(array, column) | too_long
        if isinstance(array, LongColumn):
            borrowed = True
        elif shares:
            shared.append(column.name)
    if copy and shared and borrow_above_bytes is not None and given.row_count >= _BORROWED_ROWS_MIN:
        lent = [name for name in shared if converted[name].offset == 0]
        if lent and sum(array.nbytes for array in converted.values()) > borrow_above_bytes:
            borrowed = True
            shared = [name for name in shared if name not in lent]
    if copy and shared:
        converted.update(zip(shared, copy_arrays([converted[name] for name in shared]), strict=True))
    for row in errors.rows.tolist() if too_long else ():
        too_long.pop(row, None)
    long = LongKeys(np.array(list(too_long), np.int64), list(too_long.values())) if too_long else None
    return Converted(converted, given.row_count, errors, borrowed=borrowed, too_long=long, given=partly)


def _refuse_condition(data: Any, schema: Schema, operation: str) -> None:
    """Raise InvalidArgumentError for a condition in place of the rows of an update or the keys of a delete."""
    if operation == "update" and is_condition(data):
        raise InvalidArgumentError(
            f"update takes rows, not the text {data!r}; for a condition write "
            f"update(set={{'column': value}}, where={data!r})"
        )
    if operation == "delete" and is_condition(data, " =<>") and not schema.columns[0].type.is_variable:
        raise InvalidArgumentError(key_text(data, schema.key_names, operation))


def _long_key_messages(whole: Column, column: ColumnSchema) -> dict[int, str]:
    """Return an error message, by row number, for each key that is longer than its column allows.

    column: a varchar column of the key, which limits the number of characters.
    """
    length = column.type.length
    assert length is not None
    found: dict[int, str] = {}
    first = 0
    for array in (part.array() for part in whole.parts()) if isinstance(whole, LongColumn) else (whole,):
        if longest_bytes(array, length) > length:
            sizes = pc.fill_null(pc.utf8_length(array), 0).to_numpy(zero_copy_only=False)
            for row in np.flatnonzero(sizes > length).tolist():
                shown = shorten(repr(array[row].as_py()))
                found[first + row] = (
                    f"key column {column.name!r} is {column.type}, and {shown} has {sizes[row]} characters"
                )
        first += len(array)
    return found


def _map_columns(
    convert_one: Callable[[ColumnSchema], _Result], columns: Sequence[ColumnSchema], row_count: int
) -> Iterator[_Result]:
    """Call `convert_one` for each column, and yield the results in order.

    For many rows it uses threads, because Arrow releases the GIL.
    """
    workers = min(len(columns), os.cpu_count() or 1)
    if row_count < _PARALLEL_ROWS_MIN or workers < 2:
        yield from map(convert_one, columns)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(workers, thread_name_prefix="nyala-convert") as pool:
        try:
            found = pool.map(convert_one, columns)
        except RuntimeError:  # the operating system allows no more threads
            found = map(convert_one, columns)
        yield from found


def _check_names(
    names: Mapping[str, Any], schema: Schema, operation: str, key_only: bool, sequence: str | None
) -> None:
    for name in names:
        if name not in schema:
            hint = name_hint(name, schema.names)
            raise ColumnNotFoundError(f"{operation}: the data has an unknown column {name!r}{hint}")
    if key_only:
        extra = [name for name in names if not schema.is_key(name) and name != sequence]
        if extra:
            if operation == "get":
                raise SchemaError(
                    f"get accepts only the key columns ({', '.join(schema.key_names)}), not {extra[0]!r}; "
                    f'to find rows by other columns, use scan(where="{extra[0]} = …")'
                )
            raise SchemaError(
                f"{operation} accepts only the key columns ({', '.join(schema.key_names)}); remove {extra[0]!r}"
                + (f" and {len(extra) - 1} more" if len(extra) > 1 else "")
            )


def _check_index(given: InputColumns, schema: Schema, operation: str, key_only: bool) -> None:
    """Raise InvalidArgumentError for a DataFrame with a named index that is not also a column.

    The user probably expects that the index is written.
    """
    lost = [name for name in given.index_names if name is not None and name not in given.columns]
    for name in schema.key_names if key_only else schema.names:
        if name in lost:
            what = "key column" if schema.is_key(name) else "column"
            raise InvalidArgumentError(
                f"{what} {name!r} is the DataFrame's index, which is not written; pass df.reset_index()"
            )
    if lost:
        hint = "" if lost[0] in schema else name_hint(lost[0], schema.names)
        kind = "key column" if key_only else "column"
        raise InvalidArgumentError(
            f"{operation}: the DataFrame's index {lost[0]!r} is not a {kind} of the table; "
            f"drop it with df.reset_index(drop=True){hint}"
        )


def _convert_column(
    raw: Any,
    column: ColumnSchema,
    errors: RowErrors,
    limits: Limits,
    *,
    truncate: bool,
    given: npt.NDArray[np.bool_] | None,
) -> tuple[Column, bool]:
    """Convert one column, and add its failed rows to `errors`.

    Also returns whether the result may use the user's memory.

    truncate: whether text is truncated to the length of a varchar.
    given:    a mask of the rows that have the column; None: all rows have it.
    """
    where = f"column {column.name!r}: "
    wanted = column.type if truncate else column.type.without_length
    max_cell_bytes = limits.max_cell_bytes
    long: LongColumn | None = None
    array: Any
    try:
        if isinstance(raw, np.ndarray) and raw.dtype.kind in "SU" and raw.nbytes > limits.max_slice_bytes:
            raw = _text_of_numpy(raw, limits)
        if isinstance(raw, _ARROW) and raw.type.id in TEXT_IDS:
            is_array = isinstance(raw, pa.Array) and raw.type == column.type.arrow
            long = None if is_array else long_column(raw, wanted, limits)
        elif isinstance(raw, list | tuple) and column.type.is_variable:
            long, failures = _long_list(raw, wanted, limits)
        if long is not None:
            if isinstance(raw, _ARROW) and column.type.is_variable:
                array, failures = long, long.failures()
            elif isinstance(raw, _ARROW):
                array, failures = long.converted()
                long = None
            else:
                array = long
        elif isinstance(raw, _ARROW):
            array, failures = cast_array(one_array(raw), wanted, max_cell_bytes)
        elif isinstance(raw, np.ndarray):
            array, failures = _cast_numpy(raw, wanted, max_cell_bytes)
        else:
            array, failures = cast_list(raw, wanted, max_cell_bytes)
    except SchemaError as error:
        raise SchemaError(f"{where}{error}") from None
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{where}{error}") from None
    for failure in failures:
        errors.add(failure.rows, failure.code, [where + message for message in failure.messages])
    if not column.nullable and (long is not None or array.null_count):
        # Failed rows are NULL too, but keep their first error (E1).
        nulls = long.null_rows() if long is not None else _null_rows(array)
        if given is not None:
            nulls = nulls[given[nulls]]
        if len(nulls):
            errors.add(nulls, NULL, f"{where}NULL, but the column is NOT NULL; give a value")
    return array, _may_share_memory(raw)


def _null_rows(array: pa.Array) -> npt.NDArray[np.int64]:
    return np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))


def _text_of_numpy(values: npt.NDArray[Any], limits: Limits) -> pa.ChunkedArray:
    """Convert NumPy text of fixed width, in slices of at most `max_slice_bytes`."""
    sizes = np.broadcast_to(np.int64(values.dtype.itemsize), len(values))
    mask = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    plain = np.asarray(values)
    chunks = [
        pa.array(plain[lower:upper], mask=None if mask is None else mask[lower:upper])
        for lower, upper in slice_bounds(sizes, limits.max_slice_bytes)
    ]
    return pa.chunked_array(chunks)


def _long_list(
    values: Sequence[Any], type: ColumnType, limits: Limits
) -> tuple[LongColumn | None, list[Failure]]:
    """Convert Python values with more text than `max_slice_bytes`; also return the failed rows.

    Returns (None, []) for less text, after one pass over the lengths.
    """
    if not _has_much_text(values, limits):
        return None, []
    sizes = np.fromiter(map(_length_of, values), np.int64, len(values))
    arrays: list[pa.Array] = []
    failures: list[Failure] = []
    for lower, upper in slice_bounds(sizes, limits.max_slice_bytes):
        array, failed = cast_list(values[lower:upper], type, limits.max_cell_bytes)
        arrays.append(array)
        failures += [Failure(one.rows + lower, one.code, one.messages) for one in failed]
    return LongColumn(arrays, type, limits), failures


def _has_much_text(values: Sequence[Any], limits: Limits) -> bool:
    try:
        return sum(map(len, filter(None, values))) > limits.max_slice_bytes
    except TypeError:  # a value has no length
        return sum(map(_length_of, values)) > limits.max_slice_bytes


def _length_of(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes | bytearray) else 0


def _may_share_memory(raw: Any) -> bool:
    """Whether the result of `_convert_column` may use the memory of `raw`.

    Python objects are always copied.
    """
    if isinstance(raw, pa.ChunkedArray):
        return bool(raw.num_chunks < 2)  # `one_array` copies several chunks to one array
    return isinstance(raw, pa.Array) or (isinstance(raw, np.ndarray) and raw.dtype != object)


def _cast_numpy(values: npt.NDArray[Any], wanted: ColumnType, max_cell_bytes: int) -> Cast:
    """Cast a one-dimensional NumPy array; masked values become NULL."""
    if values.dtype == object:
        return cast_list(values.tolist(), wanted, max_cell_bytes)
    mask = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    values = np.asarray(values)
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    failures: list[Failure] = []
    try:
        if values.dtype.kind == "M":
            array, failures = cast_datetime64(values)
        else:
            array = one_array(pa.array(values))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError):
        raise SchemaError(f"expected {wanted}, got the unsupported type {values.dtype}") from None
    if mask is not None and mask.any():
        array = pc.if_else(pa.array(mask), pa.scalar(None, array.type), array)
    result, more = cast_array(array, wanted, max_cell_bytes)
    return result, failures + more


# --- reading ----------------------------------------------------------------------------------------


def read_input(data: Any) -> InputColumns:
    """Split a user's data into columns. The values are not checked.

    Raises: InvalidArgumentError for data in a form that is not supported, and for columns of
    different lengths; SchemaError for duplicate names.
    """
    if isinstance(data, pa.Table | pa.RecordBatch):
        return _from_table(data)
    if isinstance(data, Mapping):
        return _from_columns(data)
    if isinstance(data, list | tuple):
        return _from_rows(data)
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(data, pandas.DataFrame):
        return _from_pandas(data)
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        _refuse_objects(data)
        try:
            return _from_table(pa.table(data))
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
            raise InvalidArgumentError(
                f"pyarrow cannot read {_class_name(data)} as a table ({error}); "
                "pass one row per record, for instance a pyarrow.Table"
            ) from error
    if isinstance(data, str | os.PathLike):
        what = "text" if isinstance(data, str) else f"a {type(data).__qualname__}"
        raise InvalidArgumentError(_path_text(os.fsdecode(data), what))
    if type(data).__name__ == "LazyFrame":
        raise InvalidArgumentError(f"{_class_name(data)} is a query plan without rows; call collect() first")
    read = next((name for name in ("to_table", "read") if hasattr(data, name)), None)
    if read is not None and type(data).__module__.startswith(("pyarrow.parquet", "pyarrow._dataset")):
        raise InvalidArgumentError(f"{_class_name(data)} is a source of rows, not rows; call {read}() first")
    if isinstance(data, Iterator):
        raise InvalidArgumentError(
            f"{_class_name(data)} is an iterator, which is not supported as data; pass list(rows), or a "
            "pyarrow.RecordBatchReader for batches"
        )
    raise InvalidArgumentError(
        f"{_class_name(data)} is not supported as data; pass a dict of columns, a list of dicts, tuples or "
        "dataclasses, a pyarrow Table or RecordBatch, a pandas or polars DataFrame, or anything with __arrow_c_stream__"
    )


def _path_text(path: str, what: str) -> str:
    """Return the message for a path that was given in place of data. It shows how to read the file.

    what: "text", or the type of the path.
    """
    suffix = os.path.splitext(path)[1].lower()
    if suffix in (".json", ".jsonl", ".ndjson"):
        return (
            f"{path[:200]!r} is {what}, not rows; for a JSON file pass pyarrow.json.read_json({path[:200]!r}) (one row "
            "per line), or use pandas.read_json"
        )
    read = {".csv": "pyarrow.csv.read_csv", ".feather": "pyarrow.feather.read_table"}.get(
        suffix, "pyarrow.parquet.read_table"
    )
    return (
        f"{path[:200]!r} is {what}, not rows; for a file pass {read}({path[:200]!r}), or load it from the shell: "
        f"nyala table load STORE TABLE {path[:200]}"
    )


def _class_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _refuse_objects(data: Any, name: str = "") -> None:
    """Raise SchemaError for a polars column of Python objects. In place of these, polars would give
    their memory addresses to Arrow.

    data: a DataFrame, or a Series that becomes the column `name`.
    """
    polars = sys.modules.get("polars")
    if polars is None:
        return
    columns: Mapping[str, Any] = {}
    if isinstance(data, polars.DataFrame):
        columns = data.schema
    elif isinstance(data, polars.Series):
        columns = {name: data.dtype}
    for column, type in columns.items():
        if type == polars.Object:
            raise SchemaError(
                f"column {column!r}: polars' type Object is not supported; cast the column to another polars type, "
                "or pass a list"
            )


def _from_table(table: Any) -> InputColumns:
    names = table.schema.names
    columns = dict(zip(names, table.columns, strict=True))
    if len(columns) < len(names):
        raise SchemaError(duplicate_name_text(names))
    return InputColumns(columns, table.num_rows)


def duplicate_name_text(names: Sequence[Any]) -> str:
    """Return the error message for the first duplicate name."""
    name = next(name for name in names if list(names).count(name) > 1)
    return f"duplicate column {name!r} in the data; drop or rename one of them"


def _from_pandas(frame: Any) -> InputColumns:
    if not frame.columns.is_unique:
        raise SchemaError(duplicate_name_text(list(frame.columns)))
    strange = [name for name in frame.columns if not isinstance(name, str)]
    if strange:
        raise InvalidArgumentError(
            f"the DataFrame's column name {strange[0]!r} is not text; rename the column"
        )
    # Column by column: `__arrow_c_stream__` would make a column of the index too.
    columns = {name: _from_series(frame[name]) for name in frame.columns}
    return InputColumns(columns, len(frame), tuple(frame.index.names))


def _from_series(series: Any) -> Any:
    """Convert a pandas column to Arrow, with NaN as NULL, because pandas uses NaN for missing
    values.

    A column without values becomes an array of type null, because pandas chose its type (float64 or
    object) itself.
    """
    try:
        array = pa.Array.from_pandas(series)
        return pa.nulls(len(array)) if array.null_count == len(array) else array
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        # Values of several types, or ints beyond 64 bits: `cast_list` converts them for the type of
        # the column.
        missing = series.isna()
        return [None if null else value for value, null in zip(series.tolist(), missing, strict=True)]


def _from_rows(rows: Sequence[Any]) -> InputColumns:
    """Read a list of dicts. If a dict lacks a column, the row is NULL there.

    `given` of the result says which rows have the column.
    """
    if not all(issubclass(cls, Mapping) for cls in set(map(type, rows))):
        if isinstance(rows, tuple) and all(value is None or is_value(value) for value in rows):
            raise InvalidArgumentError(
                f"the data is one tuple, {shorten(repr(rows))}, and not a list of rows; wrap it in a list: "
                f"[{shorten(repr(rows))}]"
            )
        position = next(position for position, row in enumerate(rows) if not isinstance(row, Mapping))
        raise InvalidArgumentError(
            f"item {position} of the data list has the type {_class_name(rows[position])}; a list must contain one "
            "dict, tuple or dataclass per row, for instance [{'id': 1}, {'id': 2}]"
        )
    names = dict.fromkeys(itertools.chain.from_iterable(rows))
    _check_text(names)
    columns = {name: list(map(operator.methodcaller("get", name), rows)) for name in names}
    given: dict[str, npt.NDArray[np.bool_]] = {}
    if set(map(len, rows)) - {len(names)}:
        for name in names:
            has = np.array([name in row for row in rows], np.bool_)
            if not has.all():
                given[name] = has
    return InputColumns(columns, len(rows), given=given)


def _from_columns(data: Mapping[Any, Any]) -> InputColumns:
    _check_text(data)
    columns = {name: _read_column(name, values) for name, values in data.items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name!r} {length}" for name, length in itertools.islice(lengths.items(), 8))
        raise InvalidArgumentError(
            f"the columns have different lengths ({shown}); each column needs one value per row"
        )
    return InputColumns(columns, next(iter(lengths.values()), 0))


def _check_text(names: Mapping[Any, Any]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise InvalidArgumentError(f"column name {name!r} is not text; use the table's column names")


def _read_column(name: str, values: Any) -> Any:
    """Check one column of a user's dict, and return it in a form that `InputColumns` allows."""
    if isinstance(values, pa.Array | pa.ChunkedArray | list | tuple | range):
        return values
    if isinstance(values, np.ndarray):
        if values.ndim == 1:
            return values
        raise InvalidArgumentError(
            f"column {name!r}: the array has {values.ndim} dimensions; pass a one-dimensional array"
        )
    pandas = sys.modules.get("pandas")
    read: Callable[[Any], Any] | None = None
    if pandas is not None and isinstance(values, pandas.Series | pandas.Index):
        return _from_series(values)
    if hasattr(values, "__arrow_c_stream__"):
        _refuse_objects(values, name)
        read = pa.chunked_array
    elif hasattr(values, "__arrow_c_array__") or hasattr(values, "__arrow_array__"):
        read = pa.array
    elif isinstance(values, Sequence) and not isinstance(values, str | bytes | bytearray | memoryview):
        return list(values)
    if read is None:
        raise InvalidArgumentError(
            f"column {name!r}: expected a list, a NumPy or an Arrow array, got {_class_name(values)} "
            "(for one row pass a list of one value, or the row as a dict in a list)"
        )
    try:
        return read(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        raise SchemaError(f"column {name!r}: pyarrow cannot convert the values: {error}") from error


# --- defaults ---------------------------------------------------------------------------------------


def default_array(column: ColumnSchema, n: int, which: Literal["write", "read"] = "write") -> pa.Array:
    """Return an array of `n` copies of the column's default, or of NULL without a default.

    which: "write": the default for an insert that omits the column. A NOT NULL column must have
           this default.
           "read": the value of rows that are older than the column. A dropped NOT NULL column may
           have no such default. The result is then NULL, but no scan returns a dropped column.
    """
    default = column.write_default if which == "write" else column.read_default
    if default is NO_DEFAULT or default is None:
        assert column.nullable or which == "read", f"column {column.name!r} is NOT NULL and has no default"
        return pa.nulls(n, column.type.arrow)
    return repeated(pa.scalar(default, column.type.arrow), n)


def default_column(column: ColumnSchema, n: int, limits: Limits) -> Column:
    """Return `n` copies of a column's default for an insert.

    If the copies together take more than `max_slice_bytes`, return a `LongColumn`: it holds the
    default once, and makes arrays only for slices of the rows.
    """
    one = default_array(column, 1)
    if not column.type.is_variable or one.nbytes * n <= limits.max_slice_bytes:
        return default_array(column, n)
    return LongColumn([one], column.type, limits, np.zeros(n, np.int64))
