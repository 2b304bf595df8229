"""Evaluates conditions over Arrow columns: computes a mask of the rows in which a condition is
TRUE.

A condition is TRUE, FALSE or NULL, but a scan needs only the rows in which it is TRUE. So the
module `nyala.schema.predicates.binding` moves each NOT into the comparisons: NOT (a < 1 OR b IS
NULL) becomes a >= 1 AND b IS NOT NULL, which is right for NULL too. The classes here then compute
one mask each: a comparison is not TRUE for NULL, AND is &, and OR is |.

Invariants
    E1  `mask` returns a new bool array of n elements, which the caller may change.
    E2  Where a column is NULL, only IS NULL is TRUE.
    E3  All values are ordered: NaN equals NaN and is greater than all other values, -0.0 equals
        0.0, text is compared by its UTF-8 bytes, false < true. So NOT (a < b) is a >= b.
    E4  A column is read when its condition is evaluated, so the mapping `arrays` may decode columns
        at their first use. If no row remains, the later terms of an AND are not evaluated.

Columns have their canonical Arrow type. A dictionary-encoded column is tested once per dictionary
entry, and a run-end-encoded column once per run. A comparison of two columns is exact, but uses
doubles if one is float or double, as in DuckDB and Spark.

Cost: one or two NumPy or Arrow calls per comparison. Immutable, so that threads may share a
condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala import compute as pc
from nyala.errors import InvalidArgumentError
from nyala.lazy_values import LazyValues, lazy_value
from nyala.schema.arrow_values import (
    STORAGE,
    Mask,
    decimal_doubles,
    decode_runs,
    false_mask,
    fixed_values,
    has_fixed_values,
    is_narrow,
    is_narrow_decimal,
    true_mask,
    validity,
)
from nyala.schema.expressions.like import LikePattern
from nyala.schema.expressions.literals import quote
from nyala.schema.schema import ColumnSchema
from nyala.schema.types import ColumnType, from_canonical

__all__ = [
    "ARROW_COMPARE",
    "Arrays",
    "Bound",
    "BoundAnd",
    "BoundArrow",
    "BoundCompare",
    "BoundCompareColumns",
    "BoundConstant",
    "BoundIn",
    "BoundLike",
    "BoundNot",
    "BoundNull",
    "BoundOr",
    "BoundRowIn",
    "compare_arrays",
    "has_arrow",
    "mask_among",
]

Arrays: TypeAlias = Mapping[str, pa.Array]

_US_PER_DAY: Final = 86_400_000_000
ARROW_COMPARE: Final = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_NUMPY_COMPARE: Final[dict[str, Any]] = {
    "=": np.equal,
    "<>": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
# A costly term of an AND is evaluated on the remaining rows alone if at most one row in this number
# remains.
_FEW_OF: Final = 8


def _array(array: pa.Array | pa.ChunkedArray, column: ColumnSchema) -> pa.Array:
    """Return a column as one array that the conditions can test.

    It has the canonical type of the column, is dictionary-encoded, or has decimals of 4 or 8 bytes.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
        array = array if isinstance(array, pa.Array) else pa.concat_arrays(array.chunks)
    array = decode_runs(array)
    if array.type == column.type.arrow or pa.types.is_dictionary(array.type):
        return array
    if is_narrow(column.type) and is_narrow_decimal(array.type) and array.type.scale == column.type.scale:
        return array
    return array.cast(column.type.arrow)


def _among_valid(mask: Mask, array: pa.Array) -> Mask:
    valid = validity(array)
    return mask if valid is None else np.logical_and(mask, valid, out=mask)


# --- nodes ------------------------------------------------------------------------------------------


class Bound(LazyValues):
    """A condition on the columns of a table, ready to be evaluated."""

    columns: frozenset[str]  # the columns that it reads
    cost: ClassVar[int] = 0  # a rough measure of the time per row
    can_fail: bool = False  # whether `mask` may raise an error for the values of a row

    def mask(self, arrays: Arrays, n: int) -> Mask:
        """Return a new mask of the rows in which the condition is TRUE.

        arrays, n: the columns by name, and the number of their rows.
        """
        raise NotImplementedError

    @property
    def rank(self) -> int:
        """A rough cost per row. An AND evaluates its terms in ascending order of rank."""
        return self.cost


@dataclass(frozen=True)
class BoundConstant(Bound):
    value: bool

    columns = frozenset()

    def mask(self, arrays: Arrays, n: int) -> Mask:
        return np.full(n, self.value)


@dataclass(frozen=True)
class _OneColumn(Bound):
    column: ColumnSchema

    @property
    def columns(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset((self.column.name,))

    def mask(self, arrays: Arrays, n: int) -> Mask:
        stored = arrays[self.column.name]
        if pa.types.is_run_end_encoded(stored.type):
            return self._mask_of_runs(stored)
        array = _array(stored, self.column)
        if not pa.types.is_dictionary(array.type):
            return self._mask_of(array)
        entries = array.dictionary
        if entries.type != self.column.type.arrow:
            entries = entries.cast(self.column.type.arrow)
        if len(entries) == 0:
            return np.zeros(len(array), np.bool_)
        codes = array.indices.fill_null(0) if array.indices.null_count else array.indices
        return _among_valid(self._mask_of(entries)[codes.to_numpy(zero_copy_only=False)], array.indices)

    def _mask_of_runs(self, array: pa.RunEndEncodedArray) -> Mask:
        first, count = array.find_physical_offset(), array.find_physical_length()
        of_runs = self._mask_of(array.values.slice(first, count))
        if not of_runs.any():
            return np.zeros(len(array), np.bool_)
        ends = array.run_ends.slice(first, count).to_numpy() - array.offset
        ends[-1] = len(array)  # a slice may begin within its first run and end within its last run
        return np.repeat(of_runs, np.diff(ends, prepend=0))

    def _mask_of(self, array: pa.Array) -> Mask:
        raise NotImplementedError


@dataclass(frozen=True)
class BoundNull(_OneColumn):
    """`column IS NULL`, or IS NOT NULL if `negated`."""

    negated: bool

    def mask(self, arrays: Arrays, n: int) -> Mask:
        stored = arrays[self.column.name]
        if pa.types.is_run_end_encoded(stored.type):
            return self._mask_of_runs(stored)
        array = _array(stored, self.column)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode() if array.dictionary.null_count else array.indices
        return self._mask_of(array)

    def _mask_of(self, array: pa.Array) -> Mask:
        valid = validity(array)
        if valid is None:
            return np.full(len(array), self.negated)
        return valid if self.negated else ~valid


@dataclass(frozen=True)
class BoundCompare(_OneColumn):
    """`column op value`, such as n < 5. The value is in canonical form (see `nyala.schema.types`).

    Not for bool columns, for which BoundIn is used.
    """

    op: str
    value: Any

    @property
    def rank(self) -> int:
        return 1 if has_fixed_values(self.column.type) else 3

    def _mask_of(self, array: pa.Array) -> Mask:
        type = self.column.type
        if type.is_floating:
            return _among_valid(self._compare_floats(fixed_values(array, type)), array)
        if has_fixed_values(type):
            mask: Mask = _NUMPY_COMPARE[self.op](fixed_values(array, type), self.value)
            return _among_valid(mask, array)
        return true_mask(ARROW_COMPARE[self.op](array, self._scalar))

    def _compare_floats(self, values: npt.NDArray[Any]) -> Mask:
        """Compare floats, with NaN equal to NaN and greater than all other values.

        NumPy has another order: each comparison with NaN is False, except `!=`.
        """
        op, value = self.op, self.value
        mask: Mask
        if value != value:
            if op in ("=", ">="):
                mask = np.isnan(values)
            elif op in ("<>", "<"):
                mask = ~np.isnan(values)
            else:
                mask = np.full(len(values), op == "<=")
            return mask
        value = values.dtype.type(value)
        if op == ">":
            mask = ~np.less_equal(values, value)
        elif op == ">=":
            mask = ~np.less(values, value)
        else:
            mask = _NUMPY_COMPARE[op](values, value)
        return mask

    @lazy_value
    def _scalar(self) -> pa.Scalar:
        return pa.scalar(from_canonical(self.column.type, self.value), self.column.type.arrow)


@dataclass(frozen=True)
class BoundIn(_OneColumn):
    """`column IN (values)`, or NOT IN if `negated`.

    values: at least one, in canonical form (see `nyala.schema.types`), ascending and distinct.
    """

    values: tuple[Any, ...]
    negated: bool

    @property
    def rank(self) -> int:
        return 2 if has_fixed_values(self.column.type) else 4

    def _mask_of(self, array: pa.Array) -> Mask:
        if self.column.type.name == "bool":
            return self._mask_of_bool(array)
        mask = true_mask(pc.is_in(self._comparable(array), value_set=self._value_set))
        if self._has_nan:
            mask = mask | np.isnan(fixed_values(array, self.column.type))
        if self.negated:
            mask = np.logical_not(mask, out=mask)
        return _among_valid(mask, array) if self.negated or self._has_nan else mask

    def positions(self, arrays: Arrays) -> npt.NDArray[np.int64]:
        """Return for each row the position of its value in `values`, or -1.

        Not supported for bool columns, or if NaN is among the values.
        """
        array = _array(arrays[self.column.name], self.column)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        found = pc.index_in(self._comparable(array), value_set=self._value_set).fill_null(-1)
        positions: npt.NDArray[np.int64] = found.to_numpy(zero_copy_only=False).astype(np.int64)
        return positions

    def _mask_of_bool(self, array: pa.Array) -> Mask:
        wanted = set(self.values) if not self.negated else {False, True} - set(self.values)
        if wanted == {True}:
            return true_mask(array)
        if wanted == {False}:
            return false_mask(array)
        return _among_valid(np.full(len(array), bool(wanted)), array)

    @property
    def _has_nan(self) -> bool:
        return self.column.type.is_floating and self.values[-1] != self.values[-1]

    def _comparable(self, array: pa.Array) -> pa.Array:
        type = self.column.type
        if type.name in ("date", "timestamp"):
            return array.view(pa.int32() if type.name == "date" else pa.int64())
        if is_narrow(type):
            valid = validity(array)
            return pa.array(
                fixed_values(array, type).astype(np.int64, copy=False), mask=None if valid is None else ~valid
            )
        return array

    @lazy_value
    def _value_set(self) -> pa.Array:
        # Arrow compares the bits of floats. Several bit patterns are NaN, so `_mask_of` tests NaN
        # itself. 0.0 and -0.0 have different bits too, so the set contains both.
        type, values = self.column.type, self.values
        if type.is_floating:
            numbers = [value for value in values if value == value]
            return pa.array([*numbers, *([-0.0, 0.0] if 0.0 in numbers else [])], type.arrow)
        if type.name == "decimal" and not is_narrow(type):
            return pa.array([from_canonical(type, value) for value in values], type.arrow)
        return pa.array(
            values,
            pa.from_numpy_dtype(STORAGE.get(type.name, np.int64)) if has_fixed_values(type) else type.arrow,
        )


@dataclass(frozen=True)
class BoundLike(_OneColumn):
    """`column LIKE pattern`, or NOT LIKE if `negated`."""

    pattern: LikePattern
    negated: bool
    cost: ClassVar[int] = 10

    def _mask_of(self, array: pa.Array) -> Mask:
        matched = self.pattern.match(array)
        return false_mask(matched) if self.negated else true_mask(matched)


@dataclass(frozen=True)
class BoundCompareColumns(Bound):
    """`left op right` for two columns whose types are `comparable`."""

    left: ColumnSchema
    op: str
    right: ColumnSchema
    cost: ClassVar[int] = 5

    @property
    def columns(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset((self.left.name, self.right.name))

    def mask(self, arrays: Arrays, n: int) -> Mask:
        left, right = self._plain(arrays, self.left), self._plain(arrays, self.right)
        mask = compare_arrays(self.op, left, self.left.type, right, self.right.type)
        return _among_valid(_among_valid(mask, left), right)

    @staticmethod
    def _plain(arrays: Arrays, column: ColumnSchema) -> pa.Array:
        array = _array(arrays[column.name], column)
        if not pa.types.is_dictionary(array.type):
            return array
        return array.dictionary_decode().cast(column.type.arrow)


def compare_arrays(op: str, left: pa.Array, a: ColumnType, right: pa.Array, b: ColumnType) -> Mask:
    """Return a mask of the rows in which `left op right` is TRUE.

    For a row with NULL, the mask may say True or False. NaN equals NaN and is greater than all
    other values.

    a, b: the types of `left` and `right`, which must be `comparable`.
    """
    mask: Mask
    if a.is_floating or b.is_floating:
        return _compare_doubles(op, _doubles(left, a), _doubles(right, b))
    if a.is_variable:
        return true_mask(ARROW_COMPARE[op](left, right))
    if a.name == "bool":
        mask = _NUMPY_COMPARE[op](true_mask(left), true_mask(right))
        return mask
    same_unit = a.scale == b.scale or (a.name, b.name) in (("date", "timestamp"), ("timestamp", "date"))
    if same_unit and has_fixed_values(a) and has_fixed_values(b):
        x, y = fixed_values(left, a), fixed_values(right, b)
        if a.name != b.name and "date" in (a.name, b.name):
            x, y = (v.astype(np.int64) * _US_PER_DAY if t.name == "date" else v for v, t in ((x, a), (y, b)))
        mask = _NUMPY_COMPARE[op](x, y)
        return mask
    # 76 digits have room for every decimal and integer, with 38 digits before and after the point.
    wide = pa.decimal256(76, max(a.scale or 0, b.scale or 0))
    return true_mask(ARROW_COMPARE[op](left.cast(wide), right.cast(wide)))


def comparable(a: ColumnType, b: ColumnType) -> bool:
    """Whether columns of these two types can be compared."""

    def kind(type: ColumnType) -> str:
        if type.is_integer or type.is_floating or type.name == "decimal":
            return "number"
        return "text" if type.is_text else "time" if type.name in ("date", "timestamp") else type.name

    return kind(a) == kind(b)


def _doubles(array: pa.Array, type: ColumnType) -> npt.NDArray[np.float64]:
    if type.name == "decimal":
        return decimal_doubles(array)
    return fixed_values(array, type).astype(np.float64)


def _compare_doubles(op: str, x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> Mask:
    if op in (">", "<="):
        x, y = y, x  # x > y is computed as y < x, and x <= y as NOT (y < x)
    result: Mask
    if op in ("=", "<>"):
        result = (x == y) | (np.isnan(x) & np.isnan(y))
    else:
        result = (x < y) | (np.isnan(y) & ~np.isnan(x))
    return ~result if op in ("<>", "<=", ">=") else result


@dataclass(frozen=True, eq=False)
class BoundArrow(Bound):
    """A pyarrow expression. It selects the rows in which the expression is TRUE, or FALSE if
    `negated`.

    floating: the columns that may contain NaN, for which Arrow has another order than Nyala.
    meaning:  an equal condition of Nyala, which is evaluated instead of the expression. None if
              `arrow_tree` cannot translate the expression. Then Arrow evaluates it.
    """

    expression: pc.Expression
    names: tuple[str, ...]  # of the columns that it reads, in the order of the schema
    negated: bool
    floating: tuple[str, ...] = ()
    meaning: Bound | None = None
    cost: ClassVar[int] = 20

    @property
    def columns(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset(self.names)

    def mask(self, arrays: Arrays, n: int) -> Mask:
        if n == 0:
            return np.zeros(0, np.bool_)
        if self.meaning is not None:
            return self.meaning.mask(arrays, n)
        columns = {name: _canonical(arrays[name]) for name in self.names}
        for name in self.floating:
            if pc.any(pc.is_nan(columns[name])).as_py():
                raise InvalidArgumentError(
                    f"column {name!r} contains NaN, which pyarrow compares differently: write the condition "
                    f"{quote(str(self.expression))} as text or with nyala.col"
                )
        # Arrow can evaluate an expression without columns only on a table that has rows, and so a
        # column.
        table = pa.table(columns) if columns else pa.table({"": pa.nulls(n)})
        try:
            result = evaluate_expression(table, self.expression)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidArgumentError(f"the pyarrow expression {self.expression} failed: {error}") from error
        return false_mask(result) if self.negated else true_mask(result)


def _canonical(array: pa.Array) -> pa.Array:
    """Convert the array to a type that pyarrow expressions support.

    Dictionary-encoded and run-end-encoded arrays are decoded. decimal32 and decimal64 become
    decimal128.
    """
    array = decode_runs(array)
    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode()
    if is_narrow_decimal(array.type):
        return array.cast(pa.decimal128(array.type.precision, array.type.scale))
    return array


def evaluate_expression(table: pa.Table, expression: pc.Expression) -> pa.Array:
    """Return the value of a pyarrow expression for each row of the table."""
    from pyarrow import acero

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    project = acero.Declaration("project", acero.ProjectNodeOptions([expression], ["value"]), [source])
    result = project.to_table(use_threads=False).column("value")
    return pa.concat_arrays(result.chunks) if result.num_chunks else pa.array([], result.type)


@dataclass(frozen=True)
class _Parts(Bound):
    parts: tuple[Bound, ...]

    @lazy_value
    def columns(self) -> frozenset[str]:
        return frozenset().union(*(part.columns for part in self.parts))

    @property
    def can_fail(self) -> bool:  # type: ignore[override]
        return any(part.can_fail for part in self.parts)

    @lazy_value
    def _in_order(self) -> tuple[Bound, ...]:
        return tuple(sorted(self.parts, key=lambda part: part.rank))

    @property
    def rank(self) -> int:
        return max(part.rank for part in self.parts) + 1


@dataclass(frozen=True)
class BoundAnd(_Parts):
    """AND: evaluates cheap parts first, and skips the others if no row can match any more."""

    def mask(self, arrays: Arrays, n: int) -> Mask:
        first, *others = self._in_order
        mask = first.mask(arrays, n)
        for part in others:
            if not mask.any():
                break
            mask = mask_among(part, arrays, n, mask)
        return mask


@dataclass(frozen=True)
class BoundOr(_Parts):
    """OR: evaluates cheap parts first, and stops when all rows are selected."""

    def mask(self, arrays: Arrays, n: int) -> Mask:
        first, *others = self._in_order
        mask = first.mask(arrays, n)
        for part in others:
            if mask.all():
                break
            mask = mask | (mask_among(part, arrays, n, ~mask) if part.can_fail else part.mask(arrays, n))
        return mask


@dataclass(frozen=True)
class BoundNot(Bound):
    """`part IS NOT TRUE`: selects the rows in which the condition `part` is FALSE or NULL."""

    part: Bound

    @property
    def columns(self) -> frozenset[str]:  # type: ignore[override]
        return self.part.columns

    @property
    def can_fail(self) -> bool:  # type: ignore[override]
        return self.part.can_fail

    @property
    def rank(self) -> int:
        return self.part.rank

    def mask(self, arrays: Arrays, n: int) -> Mask:
        return ~self.part.mask(arrays, n)


@dataclass(frozen=True)
class BoundRowIn(Bound):
    """`(a, b) IN rows`. The rows of the list contain no NULL.

    parts: for each column, an IN condition with the distinct values of this column in the list.
    codes: one number per row of the list, computed from the positions of its values in `parts`.
           For two columns: (position of a) * (number of values of b) + (position of b).
    """

    parts: tuple[BoundIn, ...]
    codes: tuple[int, ...]
    cost: ClassVar[int] = 6

    @property
    def columns(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset(part.column.name for part in self.parts)

    def mask(self, arrays: Arrays, n: int) -> Mask:
        codes = np.zeros(n, np.int64)
        found = np.ones(n, np.bool_)
        for part in self.parts:
            positions = part.positions(arrays)
            found &= positions >= 0
            codes = codes * len(part.values) + positions
        return np.logical_and(found, np.isin(codes, np.array(self.codes)), out=found)


def mask_among(part: Bound, arrays: Arrays, n: int, among: Mask) -> Mask:
    """Return a mask of the rows of `among` in which `part` is TRUE.

    Other rows are False. They are not evaluated if they might raise an error, or if `part` is costly
    and `among` has few rows.
    """
    left = int(np.count_nonzero(among))
    if left < n and (part.can_fail or (part.rank >= BoundLike.cost and left * _FEW_OF <= n)):
        indices = np.flatnonzero(among)
        few = {name: decode_runs(arrays[name]).take(pa.array(indices)) for name in part.columns}
        mask = np.zeros(n, np.bool_)
        mask[indices] = part.mask(few, left)
        return mask
    return among & part.mask(arrays, n)


def has_arrow(bound: Bound) -> bool:
    """Whether the condition contains a pyarrow expression."""
    parts: tuple[Bound, ...] = getattr(bound, "parts", ())
    return isinstance(bound, BoundArrow) or any(has_arrow(part) for part in parts)
