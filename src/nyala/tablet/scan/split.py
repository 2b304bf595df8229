"""Reads one split of a scan: at most `SPLIT_ROWS` rows of one rowset.

The inputs are a `ScanSpec` (columns, moment, predicate) and a `ScanUnit` (one rowset's part of the
scan). A split is read in at most four steps:

    1. Find the rows that are alive at the snapshot.
    2. Filter by the tests that need only one column, the cheapest test first.
    3. On the selected rows, evaluate the rest of the predicate, which compares several columns.
    4. Read the projected columns: decode them if all rows are selected, otherwise gather.

`read_path` cuts scans into splits and joins their results; its docstring names the sources.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from nyala import compute as pc
from nyala.cfile.blocks.ordinals import Ordinals
from nyala.cfile.blocks.read_stats import Access
from nyala.cfile.forms.column_block import rows_in
from nyala.cfile.forms.text import text_of
from nyala.cfile.memory import pool
from nyala.cfile.physical import narrow_decimal
from nyala.keys.codec import KeyCodec
from nyala.keys.encoded_keys import EncodedKeys
from nyala.keys.key_range import KeyRange, clamp, is_key_range, key_range_of
from nyala.lazy_values import LazyValues, lazy_value
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.rowset.stats import RowSetStats
from nyala.schema.plain_arrays import array_of_bytes, array_of_numbers
from nyala.schema.predicates.constraint import Constraint
from nyala.schema.predicates.predicate import BoundPredicate
from nyala.schema.schema import ColumnSchema, Schema
from nyala.tablet.state.root import AnyRowSet

# The block cache treats a smaller part of a rowset as a look-up.
_SCAN_ROWS_MIN: Final = 1 << 16


@dataclass(frozen=True)
class ScanUnit:
    """One rowset's rows of a scan: the rowids [lower, upper)."""

    rowset: AnyRowSet
    tablet: int  # position in the table
    lower: int
    upper: int
    rowids: np.ndarray | None = None  # for a MemRowSet: only these rows are between the key bounds

    @property
    def access(self) -> Access:
        """How the block cache treats the unit's blocks: as blocks of a scan, or of a look-up."""
        return Access.SCAN if self.upper - self.lower >= _SCAN_ROWS_MIN else Access.LOOKUP


class ScanCounters:
    """Counts what a scan reads. Several threads fill it while the scan runs."""

    def __init__(self) -> None:
        self.tablets_total = 0
        self.tablets_read = 0
        self.rowsets_total = 0
        self.rowsets_read = 0
        self.rows_in_range = 0  # rows that remain after partition pruning and key bounds
        self.splits_read = 0  # splits that zone maps did not exclude, up to the present position
        self.rows_read = 0  # rows of these splits
        self.stats = RowSetStats()
        self._lock = threading.Lock()

    def add_splits(self, splits: int, rows: int) -> None:
        """Count splits and their rows before they are read."""
        with self._lock:
            self.splits_read += splits
            self.rows_read += rows

    def add(self, stats: RowSetStats) -> None:
        """Add the counters of one split."""
        with self._lock:
            self.stats.add(stats)


@dataclass(frozen=True)
class ScanSpec(LazyValues):
    """What to scan: columns, snapshot, predicate, limit and order, for one table."""

    schema: Schema
    columns: tuple[ColumnSchema, ...]
    snapshot: int
    predicate: BoundPredicate | None = None
    limit: int | None = None
    order_by_key: bool = False
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    """By column name, result types that differ: dictionary, decimal of 4 or 8 bytes, wider type."""
    without_dropped: bool = False
    """Leave out rows of dropped range partitions; otherwise a scan that needs such rows raises."""

    @lazy_value
    def constraints(self) -> Mapping[str, Constraint]:
        return {} if self.predicate is None else self.predicate.constraints()

    @lazy_value
    def key_range(self) -> KeyRange:
        return key_range_of(self.constraints, self.schema)

    @lazy_value
    def is_key_range(self) -> bool:
        """Whether all rows in `key_range`, and only these, satisfy the predicate."""
        predicate = self.predicate
        return (
            predicate is not None
            and predicate.has_exact_constraints
            and self.constraints.keys() == predicate.columns
            and is_key_range(self.constraints, self.schema)
        )

    @lazy_value
    def listed(self) -> Sequence[Sequence[Any]] | None:
        """The values that the predicate lists for each key column, ascending.

        Example: `a IN (1, 2) AND b = 5` for a key (a, b). None: the predicate does not list values
        of all key columns, or has other conditions.
        """
        predicate, columns = self.predicate, self.schema.key_columns
        names = {column.name for column in columns}
        if predicate is None or predicate.columns != names or not predicate.has_exact_constraints:
            return None
        if self.constraints.keys() != names:
            return None
        clamped = [clamp(self.constraints[column.name], column.type) for column in columns]
        lists = [() if one.empty else one.values for one in clamped]
        return None if None in lists else [values for values in lists if values is not None]

    @property
    def listed_count(self) -> int | None:
        """The number of keys that the predicate lists; None: it does not list keys."""
        return None if self.listed is None else math.prod(map(len, self.listed))

    @lazy_value
    def listed_keys(self) -> EncodedKeys:
        """The keys that the predicate lists, ascending.

        Example: `a IN (1, 2) AND b = 5` lists the keys (1, 5) and (2, 5).
        """
        assert self.listed is not None
        rows = itertools.product(*self.listed)
        return self.codec.from_binary(array_of_bytes([self.codec.encode_row(row) for row in rows]))

    def read_ids(self, columns: Iterable[ColumnSchema]) -> set[int]:
        """Return the ids of these columns and of those in the predicate."""
        names = frozenset[str]() if self.predicate is None else self.predicate.columns
        return {column.id for column in columns} | {self.schema.by_name(name).id for name in names}

    @lazy_value
    def arrow_schema(self) -> pa.Schema:
        if not self.types and self.columns is self.schema.columns:
            return self.schema.arrow_schema()
        fields = [column.arrow_field() for column in self.columns]
        return pa.schema([f.with_type(self.types.get(f.name, f.type)) for f in fields])

    def type_of(self, column: ColumnSchema) -> pa.DataType | None:
        """Return the Arrow type in which a column is read; None: its own type.

        A projected column is read in the type of the result. Any other column is read in the type
        that costs least to read.
        """
        if column.name in self.types or column.name in self._given:
            return self.types.get(column.name)
        if column.type.is_variable:
            return pa.dictionary(pa.int32(), column.type.arrow)
        return narrow_decimal(column.type)

    @lazy_value
    def _given(self) -> frozenset[str]:
        return frozenset(column.name for column in self.columns)

    @lazy_value
    def codec(self) -> KeyCodec:
        return KeyCodec([column.type for column in self.schema.key_columns])

    @lazy_value
    def can_match(self) -> bool:
        return self.predicate is None or not self.predicate.selects_none


def read_split(
    unit: ScanUnit,
    spec: ScanSpec,
    lower: int,
    upper: int,
    columns: Sequence[ColumnSchema],
    counters: ScanCounters,
) -> tuple[np.ndarray | None, list[pa.Array]]:
    """Read the selected rows of [lower, upper).

    Returns
    -------
    (rows, arrays)
        The selected row numbers, counted from `lower` (None: all rows), and one array per column.
        If no row is selected there are no arrays.
    """
    stats = RowSetStats()
    try:
        values = _selected(unit, spec, lower, upper, stats)
        if not values.count:
            return np.empty(0, np.int64), []
        return values.rows, [in_type(values[column.name], column, spec) for column in columns]
    finally:
        counters.add(stats)


def _selected(unit: ScanUnit, spec: ScanSpec, lower: int, upper: int, stats: RowSetStats) -> _Values:
    """Return the live rows of the split that satisfy the predicate."""
    rowset, snapshot = unit.rowset, spec.snapshot
    mask = rowset.liveness(snapshot, lower, upper, stats)
    if unit.rowids is not None:
        inside = np.zeros(upper - lower, np.bool_)
        inside[unit.rowids[(unit.rowids >= lower) & (unit.rowids < upper)] - lower] = True
        mask = inside if mask is None else mask & inside
    # All rows of a unit on disk are between the key bounds.
    predicate = None if isinstance(rowset, DiskRowSet) and spec.is_key_range else spec.predicate
    if predicate is not None:
        for test in predicate.column_tests:
            if mask is not None and not mask.any():
                break
            stats.note("filter", test.column.name)
            mask = rowset.filter(test, snapshot, lower, upper, mask, stats, access=unit.access)
    values = _Values(unit, spec, lower, upper, mask, stats)
    if predicate is not None and predicate.rest is not None and values.count:
        values.keep(predicate.rest.mask(values, values.count))
    return values


class _Values(Mapping[str, pa.Array]):
    """The columns of a split at its selected rows, by name.

    A column is read on first use: decoded if all rows are selected, otherwise gathered.
    mask: the selected rows, counted from `lower`; None: all.
    """

    def __init__(
        self,
        unit: ScanUnit,
        spec: ScanSpec,
        lower: int,
        upper: int,
        mask: np.ndarray | None,
        stats: RowSetStats,
    ) -> None:
        self.count = upper - lower if mask is None else int(np.count_nonzero(mask))
        self._mask = None if self.count == upper - lower else mask
        self._unit, self._spec, self._stats = unit, spec, stats
        self._lower, self._upper = lower, upper
        self._rows: np.ndarray | None = None
        self._ordinals: Ordinals | None = None
        self._arrays: dict[str, pa.Array] = {}

    @property
    def rows(self) -> np.ndarray | None:
        """The selected row numbers, counted from the split's first row; None: all."""
        if self._rows is None and self._mask is not None:
            self._rows = rows_in(self._mask)
        return self._rows

    def keep(self, mask: np.ndarray) -> None:
        """Reduce the selection. mask: for each selected row, whether it stays selected."""
        count = int(np.count_nonzero(mask))
        if count == self.count:
            return
        if self._mask is None:
            self._mask = mask
        else:
            self._mask = self._mask.copy()
            self._mask[self.rows] = mask
        self.count, self._rows, self._ordinals = count, None, None
        kept = array_of_numbers(rows_in(mask))
        self._arrays = {
            name: pc.take(array, kept, boundscheck=False, memory_pool=pool())
            for name, array in self._arrays.items()
            if count
        }

    def __getitem__(self, name: str) -> pa.Array:
        found = self._arrays.get(name)
        if found is None:
            found = self._arrays[name] = self._read(self._spec.schema.by_name(name))
        return found

    def _read(self, column: ColumnSchema) -> pa.Array:
        unit, snapshot, lower, upper = self._unit, self._spec.snapshot, self._lower, self._upper
        type = self._spec.type_of(column)
        if self._ordinals is None and self.rows is not None:
            self._ordinals = Ordinals(self.rows + lower)
        if self._ordinals is None:
            self._stats.note("decode", column.name)
            return unit.rowset.decode(column, snapshot, lower, upper, self._stats, type, access=unit.access)
        self._stats.note("gather", column.name)
        within = (lower, upper) if unit.access is Access.SCAN else None
        return unit.rowset.gather(column, snapshot, self._ordinals, self._stats, type, within=within)

    def __iter__(self) -> Iterator[str]:
        return iter(self._spec.schema.arrow_schema().names)

    def __len__(self) -> int:
        return len(self._spec.schema.columns)


def in_type(array: pa.Array, column: ColumnSchema, spec: ScanSpec) -> pa.Array:
    """Return the values in the type that the scan returns."""
    target = spec.types.get(column.name, column.type.arrow)
    if array.type == target:
        return array
    if pa.types.is_dictionary(array.type):
        array = text_of(array)
    elif pa.types.is_dictionary(target):
        return array.dictionary_encode()
    return array if array.type == target else array.cast(target)


def count_split(unit: ScanUnit, spec: ScanSpec, lower: int, upper: int, counters: ScanCounters) -> int:
    """Return how many rows of [lower, upper) the scan selects."""
    stats = RowSetStats()
    try:
        return _selected(unit, spec, lower, upper, stats).count
    finally:
        counters.add(stats)
