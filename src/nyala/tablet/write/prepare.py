"""Prepares a write without the commit lock.

    the user's rows  ──►  columns in the schema's types, row errors  ──►  encoded keys and tablets
                     ──►  rows sorted by tablet and key; rows with equal keys stay in their order

All errors that the data alone can cause happen here. Stored rows are not read, and nothing changes.

Cost: O(columns) Arrow and NumPy calls.
Source: ARCHITECTURE.md, "The life of a write"; docs/design/rules.md, W5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from nyala.delta.batch import held_bytes
from nyala.errors import (
    IMMUTABLE,
    KEY_TOO_LARGE,
    MISSING_COLUMN,
    NO_PARTITION,
    NOT_FOUND,
    VALUE_TOO_LARGE,
    InvalidArgumentError,
)
from nyala.keys.encoded_keys import EncodedKeys
from nyala.schema.conversion.canonical_data import CanonicalData
from nyala.schema.conversion.convert import Converted, convert
from nyala.schema.conversion.long_column import Column, row_slices
from nyala.schema.conversion.row_errors import RowErrors
from nyala.schema.schema import AUTO_INCREMENT, NO_DEFAULT, ColumnSchema, Schema
from nyala.tablet.state.root import TableState

OPERATIONS: Final = ("insert", "upsert", "update", "delete")
# The names in Spark and in files. The suffix means: ignore duplicate or missing keys.
OPERATION_NAMES: Final = (
    "insert", "insert-ignore", "upsert", "update", "update-ignore", "delete", "delete-ignore",
)  # fmt: skip


LONG_KEY_ADVICE: Final = "a key is never truncated; shorten it, or make the column a string"


@dataclass
class PreparedOperation:
    """One operation on one table: its rows are converted, checked, and sorted by tablet and key.

    columns:     the key and the given columns, by column id, in the user's row order
    row_count:   the number of rows that the user gave
    keys:        the distinct keys of the rows without errors, sorted by tablet and key
    tablets:     the index of each key's tablet in `TableState.tablets`
    rows:        the numbers of the rows without errors, sorted by tablet and key; a row's number is
                 its position in the user's data
    starts:      rows[starts[g]:starts[g + 1]] have keys[g], in the user's order
    missing:     required columns that were not given; a new row fails without them
    borrowed:    columns may be views of the user's memory; copy them to keep them after the call
    ready:       the given columns as the Arrow batch that the log stores, if the conversion
                 returned it
    ignored_rows: the numbers of ignored rows
    given:       for a column that only some rows give, by column id: a mask of these rows
    sequence:    with `newest_by`, the id of that column; a delete stores its value in the dead row
    sets_immutable: whether existing rows also change in immutable columns, as in a restore
    codes:       if rows have different operations (`prepare_rows`), each row's operation as an
                 index in OPERATION_NAMES
    """

    name: str
    ignore: bool
    columns: Mapping[int, Column]
    row_count: int
    errors: RowErrors
    keys: EncodedKeys
    tablets: np.ndarray
    rows: np.ndarray
    starts: np.ndarray
    missing: tuple[str, ...]
    schema: Schema
    borrowed: bool = False
    ready: CanonicalData | None = None
    ignored_rows: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    given: Mapping[int, np.ndarray] = field(default_factory=dict)
    sequence: int | None = None
    sets_immutable: bool = False
    codes: np.ndarray | None = None

    @property
    def ignored(self) -> int:
        return len(self.ignored_rows)

    @property
    def group_sizes(self) -> np.ndarray:
        return np.diff(self.starts)

    @property
    def is_distinct(self) -> bool:
        """Whether all keys are different."""
        return len(self.starts) == len(self.rows) + 1

    @property
    def first_rows(self) -> np.ndarray:
        """The row number of the first row of each key."""
        return self.rows if self.is_distinct else self.rows[self.starts[:-1]]

    @property
    def last_rows(self) -> np.ndarray:
        """The row number of the last row of each key."""
        return self.rows if self.is_distinct else self.rows[self.starts[1:] - 1]

    @property
    def nbytes(self) -> int:
        """The number of bytes of `columns`: the key and the other columns that the user gave."""
        return held_bytes(self.columns.values())


def prepare(
    table: TableState,
    name: str,
    data: Any,
    *,
    ignore: bool,
    errors: RowErrors | None = None,
    routed: np.ndarray | None = None,
    borrow_above_bytes: int | None = None,
    sequence: str | None = None,
    sets_immutable: bool = False,
) -> PreparedOperation:
    """Prepare one operation: convert and check its rows, and sort them by tablet and key.

    name:     "insert", "upsert", "update" or "delete".
    ignore:   count rows with duplicate or missing keys as ignored, instead of failing.
    errors:   rows that failed before, while their values were computed.
    routed:   each row's tablet id as another process computed it, or -1; see `routed_ordinals`.
    borrow_above_bytes: larger data is not copied (`PreparedOperation.borrowed`); None: always copy.
    sequence: the column of `newest_by`; a delete gives its key and this column.
    sets_immutable: whether existing rows also change in immutable columns.
    Raises: ColumnNotFoundError, SchemaError, InvalidArgumentError for errors of the whole
            operation. Errors of single rows are in the result's `errors`.
    """
    schema = table.schema
    converted = convert(
        data, schema, columns="key" if name == "delete" else "all", operation=name, sequence=sequence,
        borrow_above_bytes=borrow_above_bytes, limits=table.limits,
    )  # fmt: skip
    faults = RowErrors()
    for found in (errors, converted.errors):
        if found is not None:
            faults.extend(found)
    errors, count = faults, converted.row_count
    by_name = converted.columns
    ready = converted.canonical
    columns: dict[int, Column] = (
        {schema.by_name(column).id: array for column, array in by_name.items()}
        if ready is None
        else dict(zip(ready.ids, ready.arrays, strict=True))
    )
    auto = schema.auto_increment
    if auto is not None:
        check_auto_column(schema, name, auto.id in columns)
        if name == "insert":
            ready, columns[auto.id] = None, pa.nulls(count, pa.int64())  # replaced after routing
    partly: dict[int, np.ndarray] = {schema.by_name(name).id: rows for name, rows in converted.given.items()}
    keyless: list[str] = []
    missing: tuple[str, ...] = ()
    ignored_rows = _without_long_keys(table, name, converted, errors, ignore)
    fixed = [] if name != "update" or sets_immutable else [c for c in schema.immutable_ids if c in columns]
    for number in fixed:
        if not ignore:
            add_immutable(schema.by_id(number), partly.get(number, np.ones(count, np.bool_)), errors)
        else:
            del columns[number]
            ready = None
    if len(columns) < len(schema) or name == "update":
        keyless, missing = _missing_columns(table, name, columns, errors, count)
    if partly and name == "update":
        check_changes(table, np.ones(count, np.bool_), columns, partly, errors)
    if partly and name == "insert":
        for column, lacking in required_but_missing(table, columns, partly, count):
            errors.add(np.flatnonzero(lacking), MISSING_COLUMN, missing_text((column,), table))

    if errors or len(ignored_rows):
        kept = ~errors.failed_mask(count)
        kept[ignored_rows] = False
        rows = np.flatnonzero(kept)
    else:
        rows = np.arange(count)
    if keyless or not len(rows):
        return PreparedOperation(
            name, ignore, columns, count, errors, table.codec.empty(), np.empty(0, np.int32),
            np.empty(0, np.int64), np.zeros(1, np.int64), missing, schema, converted.borrowed,
            given=partly, ignored_rows=ignored_rows, sets_immutable=sets_immutable,
        )  # fmt: skip
    given = {column: by_name[column] for column in schema.key_names if column in by_name}
    if len(rows) != count:
        some = pa.array(rows)
        given = {column: array.take(some) for column, array in given.items()}
    if auto is not None and name == "insert":
        given[auto.name] = with_auto_ids(table, given, len(rows))
        columns[auto.id] = spread(given[auto.name], rows, count)
    elif auto is not None and name == "upsert":
        others = {column: array for column, array in given.items() if column != auto.name}
        with_auto_ids(table, others, len(rows), _positive(given[auto.name]))
    keys = encode_keys(table, given, len(rows))
    bad = None
    if name in ("insert", "upsert"):
        bad = too_large(table, keys)
        if bad is not None:
            add_too_large(table, rows[bad], keys.sizes()[bad], errors)
    rows, keys, tablets, starts = routed_groups(table, rows, keys, given, errors, bad, routed)
    return PreparedOperation(
        name, ignore, columns, count, errors, keys, tablets, rows, starts, missing, schema, converted.borrowed,
        ready, ignored_rows, partly, sets_immutable=sets_immutable,
    )  # fmt: skip


def check_auto_column(schema: Schema, operation: str, is_given: bool) -> None:
    """Check that an insert leaves out the auto-incrementing key, and that an upsert gives it.

    Raises: InvalidArgumentError.
    """
    if operation.startswith("insert") and is_given:
        raise InvalidArgumentError(
            f"{operation}: the store gives the values of the key column {AUTO_INCREMENT!r}: leave the column out"
        )
    if operation == "upsert" and not is_given:
        raise InvalidArgumentError(
            f"upsert needs the whole key, including {AUTO_INCREMENT!r}: use insert for new rows, and scan for the "
            "keys of rows to change"
            + (
                ", or create the table with primary_key="
                if schema.key_count == 1
                else ", or create the table with unique=True"
            )
        )


def with_auto_ids(
    table: TableState, keys: Mapping[str, Column], count: int, given: np.ndarray | None = None
) -> pa.Array:
    """Return the value of the auto-incrementing key column for each row.

    A row without a value gets the next value of its tablet. If no partition covers the row, it gets
    0, and the caller adds an error for the row. The other rows keep their values.

    keys:  the other key columns.
    count: the number of rows.
    given: the values that rows have already, and 0 for rows without a value; None: no row has one.
    """
    tablets = route_keys(table, keys, count) if keys else np.zeros(count, np.int32)
    ids = np.zeros(count, np.int64) if given is None else given.copy()
    for ordinal in np.unique(tablets).tolist():
        if ordinal >= 0:
            mine = np.flatnonzero(tablets == ordinal)
            ids[mine] = table.tablets[ordinal].ids.give(ids[mine])
    return pa.array(ids)


def _positive(ids: Column) -> np.ndarray:
    """Return a user's ids for `with_auto_ids`, with 1 instead of smaller ids.

    The rows keep their own ids: the result only raises the tablets' counters to these ids.
    For `with_auto_ids`, 0 means "no value yet", so a user's 0 must not reach it.

    ids: the values of the auto-incrementing key column in an upsert.
    """
    assert isinstance(ids, pa.Array), "only text columns are long"
    values: np.ndarray = np.maximum(ids.to_numpy(zero_copy_only=False), 1)
    return values


def spread(values: pa.Array, rows: np.ndarray, count: int) -> pa.Array:
    """Return an array of `count` values: `values` at the positions `rows`, NULL elsewhere."""
    if len(rows) == count:
        return values
    out, lacking = np.zeros(count, np.int64), np.ones(count, np.bool_)
    out[rows], lacking[rows] = values.to_numpy(), False
    return pa.array(out, mask=lacking)


def routed_groups(
    table: TableState,
    rows: np.ndarray,
    keys: EncodedKeys,
    given: Mapping[str, Column],
    errors: RowErrors,
    bad: np.ndarray | None,
    routed: np.ndarray | None = None,
) -> tuple[np.ndarray, EncodedKeys, np.ndarray, np.ndarray]:
    """Find the tablet of each row, sort the rows by tablet and key, and group them by key.

    rows, keys, given: the rows' numbers, encoded keys and key columns.
    errors:  gets an error for each row that no partition covers.
    bad:     a mask of `rows`: rows with an error, which are left out; None: no row has an error.
    routed:  as in `prepare`.
    Returns: (rows, keys, tablets, starts), as in `PreparedOperation`.
    """
    if routed is None:
        tablets = route_keys(table, given, len(rows))
    else:
        tablets = routed_ordinals(table, routed[rows], given)
    uncovered = None if routed is None and table.router.covers_all else tablets < 0
    if uncovered is not None and uncovered.any():
        errors.add(
            rows[uncovered], NO_PARTITION,
            f"no range partition of table {table.name!r} covers this row; add one, or correct the row",
        )  # fmt: skip
        bad = uncovered if bad is None else bad | uncovered
    if bad is not None:
        good = np.flatnonzero(~bad)
        rows, keys, tablets = rows[good], keys.take(good), tablets[good]
    if len(rows) == 1 or (
        len(table.tablets) == 1 and keys.is_strictly_ascending()  # the usual case in a bulk load
    ):
        starts = np.arange(len(rows) + 1)
    else:
        order = tablet_key_order(keys, tablets, len(table.tablets))
        if order is not None:
            rows, keys, tablets = rows[order], keys.take(order), tablets[order]
        starts = group_starts(keys)
        if len(starts) - 1 != len(rows):
            keys, tablets = keys.take(starts[:-1]), tablets[starts[:-1]]
    return rows, keys, tablets, starts


def too_large(table: TableState, keys: EncodedKeys) -> np.ndarray | None:
    """Return a mask of the keys that are too large to be stored; None if all fit."""
    if table.codec.width is not None or table.schema.key_count < 2:
        return None
    large = keys.sizes() > table.limits.max_key_bytes
    return large if large.any() else None


def add_too_large(table: TableState, rows: np.ndarray, sizes: np.ndarray, errors: RowErrors) -> None:
    errors.add(
        rows, KEY_TOO_LARGE,
        [
            f"the encoded key has {size} bytes, but the key of table {table.name!r} may have at most "
            f"{table.limits.max_key_bytes} (max_key_bytes)"
            for size in sizes.tolist()
        ],
    )  # fmt: skip


def add_immutable(column: ColumnSchema, rows: np.ndarray, errors: RowErrors) -> None:
    """Add the error "an update must not set this immutable column" for each row in the mask `rows`."""
    errors.add(
        np.flatnonzero(rows), IMMUTABLE,
        f"column {column.name!r} is immutable: only an insert sets it. Leave it out, or pass on_missing=\"ignore\"",
    )  # fmt: skip


def check_changes(
    table: TableState,
    updates: np.ndarray,
    columns: Mapping[int, Column],
    given: Mapping[int, np.ndarray],
    errors: RowErrors,
) -> None:
    """Add an error for each row in the mask `updates` that gives no column besides the key."""
    changes = np.zeros(len(updates), np.bool_)
    for column in table.schema.value_columns:
        if column.id in columns:
            changes |= given.get(column.id, True)
    errors.add(
        np.flatnonzero(updates & ~changes), MISSING_COLUMN,
        f"this update changes no column: give at least one besides the key ({column_names(table.schema.key_columns)})",
    )  # fmt: skip


def required_but_missing(
    table: TableState, columns: Mapping[int, Column], given: Mapping[int, np.ndarray], count: int
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the columns that a new row needs, each with a mask of the rows that do not give it."""
    for column in table.schema.value_columns:
        if column.nullable or column.write_default is not NO_DEFAULT:
            continue
        if column.id not in columns:
            yield column.name, np.ones(count, np.bool_)
        elif column.id in given:
            yield column.name, ~given[column.id]


def _without_long_keys(
    table: TableState, name: str, converted: Converted, errors: RowErrors, ignore: bool
) -> np.ndarray:
    """Add errors for keys that are too long for their varchar column. Return the rows to ignore.

    An insert or upsert cannot store such a key. An update or delete finds no row with it, which is
    an error unless the operation ignores missing keys.
    """
    nothing = np.empty(0, np.int64)
    long = converted.too_long
    if long is None:
        return nothing
    if name in ("insert", "upsert"):
        errors.add(long.rows, VALUE_TOO_LARGE, [f"{message}: {LONG_KEY_ADVICE}" for message in long.messages])
    elif not ignore:
        advice = f'so no row of table {table.name!r} has this key; pass on_missing="ignore" to skip such rows'
        errors.add(long.rows, NOT_FOUND, [f"{message}, {advice}" for message in long.messages])
    else:
        return long.rows
    return nothing


def _missing_columns(
    table: TableState, name: str, columns: Mapping[int, pa.Array], errors: RowErrors, count: int
) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of the missing key columns, and of the other missing required columns.

    A column is missing if the data does not have it. If the operation is impossible without the
    missing columns, all rows get an error.
    Raises: InvalidArgumentError for an update that names no column to change.
    """
    schema = table.schema
    keyless = [column.name for column in schema.key_columns if column.id not in columns]
    if name == "update" and count and len(columns) <= schema.key_count and not keyless:
        raise InvalidArgumentError(
            f"update of {table.name!r} changes no column: give at least one column besides the key "
            f"({column_names(schema.key_columns)})"
        )
    if keyless:
        errors.add(
            np.arange(count),
            MISSING_COLUMN,
            keyless_text(table, keyless[0], name),
        )
    missing = tuple(
        column.name
        for column in schema.value_columns
        if column.id not in columns and not column.nullable and column.write_default is NO_DEFAULT
    )
    if missing and name == "insert":
        errors.add(np.arange(count), MISSING_COLUMN, missing_text(missing, table))
    return keyless, missing


def encode_keys(table: TableState, keys: Mapping[str, Column], count: int) -> EncodedKeys:
    """Return the encoded keys of `count` rows.

    keys: all key columns, by name.
    """
    return EncodedKeys.concat(
        [
            table.codec.encode([part[name] for name in table.schema.key_names])
            for _, _, part in row_slices(keys, count)
        ]
    )


def route_keys(table: TableState, keys: Mapping[str, Column], count: int) -> np.ndarray:
    """Return the index of each row's tablet in `table.tablets`; -1: no partition covers the row.

    keys:  all key columns, by name.
    count: the number of rows.
    """
    found = [table.router.route(part, upper - lower) for lower, upper, part in row_slices(keys, count)]
    return found[0] if len(found) == 1 else np.concatenate(found)


def routed_ordinals(table: TableState, routed: np.ndarray, keys: Mapping[str, Column]) -> np.ndarray:
    """Return the index of each row's tablet in `table.tablets`; -1: no partition covers the row.

    Uses the tablet ids that another process computed, but checks some: the first of each sequence
    of equal ids. If one of these is wrong, `routed` is ignored, and all tablets are computed here.
    routed: each row's tablet id. The tablet is computed here if the id is -1, or if the tablet no
            longer exists.
    keys:   all key columns, by name.
    Cost:   proportional to the number of sequences, plus the number of tablets computed here.
    """
    count = len(routed)
    starts = np.flatnonzero(np.append(True, routed[1:] != routed[:-1]))
    given = np.array([table.ordinal_of.get(number, -1) for number in routed[starts].tolist()], np.int32)
    samples = {name: array.take(pa.array(starts)) for name, array in keys.items()}
    if not np.array_equal(route_keys(table, samples, len(starts))[given >= 0], given[given >= 0]):
        return route_keys(table, keys, count)
    ordinals = np.repeat(given, np.diff(np.append(starts, count)))
    unknown = np.flatnonzero(ordinals < 0)
    if len(unknown):
        some = {name: array.take(pa.array(unknown)) for name, array in keys.items()}
        ordinals[unknown] = route_keys(table, some, len(unknown))
    return ordinals


def tablet_key_order(keys: EncodedKeys, tablets: np.ndarray, tablet_count: int) -> np.ndarray | None:
    """Return the row positions sorted by (tablet, key), with equal keys in their order.

    Returns None if the rows are already in this order.
    """
    if len(keys) < 2:
        return None
    by_key = keys.sort_indices()
    narrow = tablets.astype(np.int16) if tablet_count < 2**15 else tablets  # for the radix sort
    order: np.ndarray = by_key if tablet_count == 1 else by_key[np.argsort(narrow[by_key], kind="stable")]
    return None if bool((order[1:] > order[:-1]).all()) else order


def group_starts(keys: EncodedKeys) -> np.ndarray:
    """Return the index at which each run of equal keys starts, followed by the number of keys."""
    count = len(keys)
    if count < 2:
        return np.arange(count + 1)
    return np.concatenate(([0], np.flatnonzero(~keys.equal_neighbours()) + 1, [count]))


def turns(sizes: np.ndarray) -> Iterator[np.ndarray]:
    """Yield positions of rows in turns, so that no turn has two rows of the same key.

    The first turn has the first row of each key, the second turn has the second rows, and so on.
    The caller can then handle all rows of a turn at once.

    sizes: the number of rows of each key. The rows are sorted by key.
    """
    starts, left, number = np.cumsum(sizes) - sizes, np.flatnonzero(sizes), 0
    while len(left):
        yield starts[left] + number
        number += 1
        left = left[sizes[left] > number]


def missing_text(missing: Sequence[str], table: TableState) -> str:
    return (
        f"column {missing[0]!r} of table {table.name!r} is required (NOT NULL without default) and missing: "
        "a new row needs a value for it"
    )


def keyless_text(table: TableState, column: str, operation: str) -> str:
    return f"key column {column!r} of table {table.name!r} is missing: {operation} needs all key columns"


def column_names(columns: Sequence[ColumnSchema]) -> str:
    return ", ".join(column.name for column in columns)
