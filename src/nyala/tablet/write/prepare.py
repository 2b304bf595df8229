"""What of a write can be done without the lock and can fail for the user's reasons: convert, check, encode keys, route,
sort, group. Nothing is looked up, nothing changed.

    rows as given   ──►  columns in the schema's types, row errors set aside  ──►  encoded keys, the tablet of each
                    ──►  rows by tablet and key, rows of one key next to each other in the user's order

Cost: O(columns) Arrow and NumPy calls.
Source: ARCHITECTURE.md, "The life of a write"; docs/design/rules.md, W5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from nyala.delta.batch import held_bytes
from nyala.errors import (
    KEY_TOO_LARGE,
    MISSING_COLUMN,
    NO_PARTITION,
    NOT_FOUND,
    VALUE_TOO_LARGE,
    InvalidArgumentError,
)
from nyala.keys.encoded_keys import EncodedKeys
from nyala.schema.conversion.convert import Converted, convert
from nyala.schema.conversion.long_column import Column, row_slices
from nyala.schema.conversion.ready import ReadyData
from nyala.schema.conversion.row_errors import RowErrors
from nyala.schema.schema import NO_DEFAULT, ColumnSchema, Schema
from nyala.tablet.state.root import TableState

OPERATIONS: Final = ("insert", "upsert", "update", "delete")
# As Spark, files and other processes name them, with what is done about keys that are taken or missing.
OPERATION_NAMES: Final = (
    "insert", "insert-ignore", "upsert", "update", "update-ignore", "delete", "delete-ignore",
)  # fmt: skip


@dataclass
class PreparedOperation:
    """One user operation on one table: converted, checked, routed, sorted; nothing looked up yet.

    `rows[starts[g]:starts[g+1]]` are the rows (by their place in the user's data, in their order) of key `g`.
    """

    name: str
    ignore: bool
    columns: Mapping[int, Column]  # by column id, in the user's row order: the key and what was given
    row_count: int
    errors: RowErrors
    keys: EncodedKeys
    tablets: np.ndarray
    rows: np.ndarray
    starts: np.ndarray
    missing: tuple[str, ...]  # columns that an insert would need and that were not given
    schema: Schema
    borrowed: bool = (
        False  # columns lie in the user's memory: whoever keeps them when the call is over copies them
    )
    ready: ReadyData | None = None  # the columns as they are to be logged, if all rows are, in this order
    ignored: int = 0  # rows that an ignoring update or delete passes over: no row can have their key

    @property
    def group_sizes(self) -> np.ndarray:
        return np.diff(self.starts)

    @property
    def is_distinct(self) -> bool:
        """Whether no key stands twice."""
        return len(self.starts) == len(self.rows) + 1

    @property
    def first_rows(self) -> np.ndarray:
        """The first row of each key."""
        return self.rows if self.is_distinct else self.rows[self.starts[:-1]]

    @property
    def last_rows(self) -> np.ndarray:
        """The last row of each key."""
        return self.rows if self.is_distinct else self.rows[self.starts[1:] - 1]

    @property
    def nbytes(self) -> int:
        """Bytes of the columns given."""
        return held_bytes(self.columns.values())


def prepare(
    table: TableState,
    name: str,
    data: Any,
    *,
    ignore: bool,
    errors: RowErrors | None = None,
    homes: np.ndarray | None = None,
    borrow_above_bytes: int | None = None,
) -> PreparedOperation:
    """Everything about one operation that does not depend on what the table holds.

    errors: rows that failed before, while their values were computed.
    homes:  of each row the id of its tablet, where another process has routed it, or -1; see `homes_of`.
    borrow_above_bytes: more than that is not copied, see `PreparedOperation.borrowed`; None: everything is.

    Raises: ColumnNotFoundError, SchemaError, InvalidArgumentError for faults of the whole operation; faults
    of single rows go into `.errors`.
    """
    schema = table.schema
    converted = convert(
        data, schema, columns="key" if name == "delete" else "all", operation=name,
        borrow_above_bytes=borrow_above_bytes, limits=table.limits,
    )  # fmt: skip
    if errors is None:
        errors = converted.errors
    else:
        errors.extend(converted.errors)
    count = converted.row_count
    by_name = converted.columns
    ready = converted.ready
    columns: dict[int, Column] = (
        {schema.by_name(column).id: array for column, array in by_name.items()}
        if ready is None
        else dict(zip(ready.ids, ready.arrays, strict=True))
    )
    keyless: list[str] = []
    missing: tuple[str, ...] = ()
    dropped, ignored = _without_long_keys(table, name, converted, errors, ignore)
    if len(columns) < len(schema) or name == "update":
        keyless, missing = _left_out(table, name, columns, errors, count)

    rows = np.flatnonzero(~(errors.failed_mask(count) | dropped)) if errors or ignored else np.arange(count)
    if keyless or not len(rows):
        return PreparedOperation(
            name, ignore, columns, count, errors, _no_keys(table), np.empty(0, np.int32),
            np.empty(0, np.int64), np.zeros(1, np.int64), missing, schema, converted.borrowed, ignored=ignored,
        )  # fmt: skip
    if len(rows) != count:
        some = pa.array(rows)
        by_name = {column: by_name[column].take(some) for column in schema.key_names}
    given = {column: by_name[column] for column in schema.key_names}
    keys = encode_keys(table, given, len(rows))
    bad: np.ndarray | None = None  # of `rows`; None: not one
    if name in ("insert", "upsert") and table.codec.width is None and schema.key_count > 1:
        sizes = table.codec.sizes(keys)
        bad = sizes > table.limits.max_key_bytes
        if not bad.any():
            bad = None
        else:
            errors.add(
                rows[bad], KEY_TOO_LARGE,
                [
                    f"the encoded key has {size} bytes, more than the {table.limits.max_key_bytes} that the key of "
                    f"{table.name!r} may have (max_key_bytes)"
                    for size in sizes[bad].tolist()
                ],
            )  # fmt: skip
    if homes is None:
        tablets = route_keys(table, given, len(rows))
    else:
        tablets = homes_of(table, homes[rows], given)
    homeless = None if homes is None and table.router.covers_all else tablets < 0
    if homeless is not None and homeless.any():
        errors.add(
            rows[homeless], NO_PARTITION,
            f"no range partition of {table.name!r} covers this row; add one, or mend the row",
        )  # fmt: skip
        bad = homeless if bad is None else bad | homeless
    if bad is not None:
        good = np.flatnonzero(~bad)
        rows, keys, tablets = rows[good], keys.take(good), tablets[good]
    if len(rows) == 1 or (
        len(table.tablets) == 1 and keys.is_strictly_ascending()  # as the keys of a load do
    ):
        starts = np.arange(len(rows) + 1)
    else:
        order = tablet_key_order(keys, tablets, len(table.tablets))
        if order is not None:
            rows, keys, tablets = rows[order], keys.take(order), tablets[order]
        starts = group_starts(keys)
        if len(starts) - 1 != len(rows):
            keys, tablets = keys.take(starts[:-1]), tablets[starts[:-1]]
    return PreparedOperation(
        name, ignore, columns, count, errors, keys, tablets, rows, starts, missing, schema, converted.borrowed,
        ready, ignored,
    )  # fmt: skip


def _without_long_keys(
    table: TableState, name: str, converted: Converted, errors: RowErrors, ignore: bool
) -> tuple[np.ndarray, int]:
    """(rows to pass over, how many): an update or delete finds no row by a key that is longer than its varchar, and an
    insert or upsert cannot store it. Rows that fail are added to `errors`.
    """
    passed_over = np.zeros(converted.row_count, np.bool_)
    long = converted.too_long
    if long is None:
        return passed_over, 0
    if name in ("insert", "upsert"):
        advice = "a key is never cut; shorten it, or make the column string"
        errors.add(long.rows, VALUE_TOO_LARGE, [f"{message}: {advice}" for message in long.messages])
    elif not ignore:
        advice = f'so no row of table {table.name!r} has this key; pass on_missing="ignore" to skip such rows'
        errors.add(long.rows, NOT_FOUND, [f"{message}, {advice}" for message in long.messages])
    else:
        passed_over[long.rows] = True
    return passed_over, int(passed_over.sum())


def _left_out(
    table: TableState, name: str, columns: Mapping[int, pa.Array], errors: RowErrors, count: int
) -> tuple[list[str], tuple[str, ...]]:
    """Of columns that are not in the data: those of the key, and those that an insert would need.

    Raises: InvalidArgumentError for an update of nothing. All rows are in `errors` if nothing can be done without.
    """
    schema = table.schema
    keyless = [column.name for column in schema.key_columns if column.id not in columns]
    if name == "update" and count and len(columns) <= schema.key_count and not keyless:
        raise InvalidArgumentError(
            f"update of {table.name!r} names no column to change: give at least one column besides the key "
            f"({_names(schema.key_columns)})"
        )
    if keyless:
        errors.add(
            np.arange(count),
            MISSING_COLUMN,
            f"key column {keyless[0]!r} of table {table.name!r} is not in the data; every {name} needs the whole key",
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
    """The encoded keys of `count` rows, from all key columns by name."""
    return EncodedKeys.concat(
        [
            table.codec.encode([part[name] for name in table.schema.key_names])
            for _, _, part in row_slices(keys, count)
        ]
    )


def route_keys(table: TableState, keys: Mapping[str, Column], count: int) -> np.ndarray:
    """For each of `count` rows the ordinal of its tablet, or -1; from all key columns by name."""
    found = [table.router.route(part, upper - lower) for lower, upper, part in row_slices(keys, count)]
    return found[0] if len(found) == 1 else np.concatenate(found)


def homes_of(table: TableState, homes: np.ndarray, keys: Mapping[str, Column]) -> np.ndarray:
    """The ordinals of rows' tablets, of which another process has said the ids; -1 where no partition covers a row.

    What that process could not tell, or said of tablets that are gone since, is routed here; so is everything, when one
    of the samples, the first row of each run of equal ids, is not where it was said to be.
    Cost: as the number of such runs; the rows that are routed besides.
    """
    count = len(homes)
    starts = np.flatnonzero(np.append(True, homes[1:] != homes[:-1]))
    said = np.array([table.ordinal_of.get(number, -1) for number in homes[starts].tolist()], np.int32)
    samples = {name: array.take(pa.array(starts)) for name, array in keys.items()}
    if not np.array_equal(route_keys(table, samples, len(starts))[said >= 0], said[said >= 0]):
        return route_keys(table, keys, count)
    ordinals = np.repeat(said, np.diff(np.append(starts, count)))
    unknown = np.flatnonzero(ordinals < 0)
    if len(unknown):
        some = {name: array.take(pa.array(unknown)) for name, array in keys.items()}
        ordinals[unknown] = route_keys(table, some, len(unknown))
    return ordinals


def tablet_key_order(keys: EncodedKeys, tablets: np.ndarray, tablet_count: int) -> np.ndarray | None:
    """Stable order by (tablet, key); None when the rows stand so already."""
    if len(keys) < 2:
        return None
    by_key = keys.sort_indices()
    narrow = tablets.astype(np.int16) if tablet_count < 2**15 else tablets  # int16: NumPy's radix sort
    order: np.ndarray = by_key if tablet_count == 1 else by_key[np.argsort(narrow[by_key], kind="stable")]
    return None if bool((order[1:] > order[:-1]).all()) else order


def group_starts(keys: EncodedKeys) -> np.ndarray:
    """Where each run of equal keys begins, and the row count at the end."""
    count = len(keys)
    if count < 2:
        return np.arange(count + 1)
    return np.concatenate(([0], np.flatnonzero(~keys.equal_neighbours()) + 1, [count]))


def missing_text(missing: Sequence[str], table: TableState) -> str:
    return (
        f"column {missing[0]!r} of table {table.name!r} is NOT NULL, has no default and is not in the data: "
        "a new row needs a value for it"
    )


def _no_keys(table: TableState) -> EncodedKeys:
    return table.codec.empty()


def _names(columns: Sequence[ColumnSchema]) -> str:
    return ", ".join(column.name for column in columns)
