"""Computes values such as n + 1 from the columns of a batch of rows, and conditions on such values.

A computed value has one of these Arrow types:
    int64 · decimal256 · float64 · string · binary · bool · date32 · timestamp[us, UTC] · null
It is NULL in rows in which an operand is NULL. A row that cannot be computed gets an error code,
and the other rows get their values.

Invariants
    X1  A row fails only if a part fails that the row needs. It does not need CASE branches that it
        does not take, or arguments of COALESCE after the first that is not NULL.
    X2  Arithmetic on integers and decimals returns the exact result or an error. It neither
        overflows nor rounds. `/` returns an IEEE 754 double, so 1 / 0 is infinity, as in DuckDB.
    X3  A computed value is compared like a column of the same type, by the same classes
        (`nyala.schema.expressions.evaluate`).

Cost: a few Arrow or NumPy calls per value, independent of the number of rows.
"""

from __future__ import annotations

import decimal
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala import compute as pc
from nyala.errors import InvalidArgumentError, SchemaError
from nyala.schema.arrow_values import Mask, decimal_doubles, decode_runs, repeated, true_mask, validity
from nyala.schema.expressions.evaluate import ARROW_COMPARE, Arrays, Bound, compare_arrays, mask_among
from nyala.schema.expressions.literals import parse_date, parse_special_float, parse_timestamp, quote
from nyala.schema.schema import ColumnId, ColumnSchema
from nyala.schema.types import DECIMAL_PRECISION_MAX, ColumnType, parse_type

__all__ = [
    "DOUBLE",
    "ERROR_TEXTS",
    "INT",
    "TIMESTAMP",
    "BoundCompareValues",
    "BoundOnValue",
    "CaseValue",
    "Checked",
    "Coalesce",
    "ColumnValue",
    "Computed",
    "Condition",
    "ConstantValue",
    "GreatestOrLeast",
    "Outcome",
    "Value",
    "arithmetic",
    "cast_to",
    "column_like",
    "is_decimal",
    "is_number",
    "literal_scalar",
    "number_values",
    "to_double",
    "unify",
    "with_nulls_of",
]

OVERFLOW: Final = 1
ZERO_DIVISION: Final = 2
NOT_CAST: Final = 3
ERROR_TEXTS: Final = {
    OVERFLOW: "exceeds int64",
    ZERO_DIVISION: "divides by zero",
    NOT_CAST: "casts a value that does not fit the type",
}

INT: Final = pa.int64()
DOUBLE: Final = pa.float64()
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_INT64: Final = range(-(2**63), 2**63)
_DIGITS_MAX: Final = 76  # of decimal256
Codes: TypeAlias = npt.NDArray[np.uint8]


class Outcome(NamedTuple):
    """The computed values of a batch, and its errors.

    errors: a code per row, 0 for a row without an error; None if no row has an error.
    """

    array: pa.Array
    errors: Codes | None = None


class Checked(NamedTuple):
    """The result of a function that may fail for some rows.

    array: the values. A failed row has an arbitrary value, but not NULL.
    bad:   a mask of the failed rows.
    code:  the error code of all failed rows.
    """

    array: pa.Array
    bad: Mask
    code: int


class Value:
    """A computed value of the Arrow type `type`. It reads the columns `columns`. Immutable."""

    type: pa.DataType
    columns: frozenset[str]
    can_fail: bool
    """Whether rows can have errors."""
    can_raise: bool
    """Whether `compute` raises an exception for an error of a row, because the value contains a
    condition.
    """

    def __init__(self, type: pa.DataType, parts: Sequence[Value] = (), *, can_fail: bool = False) -> None:
        self.type = type
        self.columns = frozenset().union(*(part.columns for part in parts))
        self.can_fail = can_fail or any(part.can_fail for part in parts)
        self.can_raise = any(part.can_raise for part in parts)

    def compute(self, arrays: Arrays, n: int) -> Outcome:
        """Compute the value of `n` rows. arrays: the columns by name."""
        raise NotImplementedError

    @property
    def is_null(self) -> bool:
        """Whether the value is NULL in every row."""
        return bool(pa.types.is_null(self.type))

    @property
    def kind(self) -> str:
        """The name of the type in error messages."""
        names = {INT: "integer", DOUBLE: "double", pa.string(): "text", TIMESTAMP: "timestamp"}
        return (
            "decimal"
            if is_decimal(self.type)
            else names.get(self.type, str(self.type).replace("32[day]", ""))
        )


def is_decimal(type: pa.DataType) -> bool:
    return bool(pa.types.is_decimal256(type))


def is_number(value: Value) -> bool:
    return is_decimal(value.type) or value.type in (INT, DOUBLE)


def _first_errors(a: Codes | None, b: Codes | None) -> Codes | None:
    """Combine the error codes that two operands have in each row.

    In a row where both operands failed, the result has the code of `a`. None: no row failed.
    """
    if a is None or b is None:
        return b if a is None else a
    return np.where(a != 0, a, b)


def _error_codes(array: pa.Array, bad: Mask, code: int) -> Codes | None:
    """Return error codes: `code` for rows that are bad and not NULL, 0 for other rows.

    Returns None if all codes are 0.
    """
    valid = validity(array)
    bad = bad if valid is None else bad & valid
    return bad.astype(np.uint8) * np.uint8(code) if bad.any() else None


def number_values(array: pa.Array) -> npt.NDArray[Any]:
    """Return the values of an int64 or float64 array as a view, with any value in place of NULL."""
    data = array.buffers()[1]
    dtype = np.int64 if array.type == INT else np.float64
    if data is None or len(array) == 0:
        return np.empty(0, dtype)
    return np.frombuffer(data, dtype, count=array.offset + len(array))[array.offset :]


def with_nulls_of(values: npt.NDArray[Any], *sources: pa.Array) -> pa.Array:
    """Return an array of the values, with NULL where one of the sources is NULL."""
    mask: Mask | None = None
    for source in sources:
        valid = validity(source)
        if valid is not None:
            mask = ~valid if mask is None else mask | ~valid
    return pa.array(values, mask=mask)


# --- leaves -----------------------------------------------------------------------------------------


class ConstantValue(Value):
    """The same value in every row."""

    def __init__(self, scalar: pa.Scalar) -> None:
        super().__init__(scalar.type)
        self.scalar = scalar

    def compute(self, arrays: Arrays, n: int) -> Outcome:
        return Outcome(repeated(self.scalar, n))


class ColumnValue(Value):
    """The value of a column. Integers become int64, decimals decimal256, and floats double."""

    def __init__(self, column: ColumnSchema) -> None:
        type = column.type
        arrow = type.arrow
        if type.is_integer:
            arrow = INT
        elif type.is_floating:
            arrow = DOUBLE
        elif type.name == "decimal":
            arrow = pa.decimal256(type.precision, type.scale)
        super().__init__(arrow)
        self.column = column
        self.columns = frozenset((column.name,))

    def compute(self, arrays: Arrays, n: int) -> Outcome:
        array = arrays[self.column.name]
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
        array = decode_runs(array)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        return Outcome(array if array.type == self.type else array.cast(self.type))


class Condition(Value):
    """A condition that is used as a bool value.

    true, false: select the rows in which the condition is TRUE, and those in which it is FALSE. All
                 other rows are NULL.
    """

    def __init__(self, true: Bound, false: Bound) -> None:
        super().__init__(pa.bool_())
        self.true, self.false = true, false
        self.can_fail = self.can_raise = true.can_fail or false.can_fail
        self.columns = true.columns | false.columns

    def compute(self, arrays: Arrays, n: int) -> Outcome:
        true = self.true.mask(arrays, n)
        return Outcome(pa.array(true, mask=~(true | self.false.mask(arrays, n))))


class Computed(Value):
    """A value that a Python function computes from other values, the parts.

    The function gets one array per part, and returns an array or a `Checked`.
    """

    def __init__(
        self,
        function: Callable[..., pa.Array | Checked],
        type: pa.DataType,
        *parts: Value,
        can_fail: bool = False,
    ) -> None:
        super().__init__(type, parts, can_fail=can_fail)
        self.function, self.parts = function, parts

    def compute(self, arrays: Arrays, n: int) -> Outcome:
        found = [part.compute(arrays, n) for part in self.parts]
        errors = functools.reduce(_first_errors, (part.errors for part in found))
        array = self.function(*(part.array for part in found))
        if isinstance(array, Checked):
            errors = _first_errors(errors, _error_codes(*array))
            array = array.array
        return Outcome(array if array.type == self.type else array.cast(self.type), errors)


def literal_scalar(value: Any) -> pa.Scalar:
    """Convert a literal to an Arrow scalar of a type that expressions compute with.

    A number of more than 76 digits becomes a double.
    """
    if isinstance(value, int | decimal.Decimal) and not isinstance(value, bool):
        if isinstance(value, int) and value in _INT64:
            return pa.scalar(value, INT)
        _, digits, exponent = decimal.Decimal(value).as_tuple()
        assert isinstance(exponent, int)
        scale = max(0, -exponent)
        precision = max(len(digits) + max(0, exponent), scale, 1)
        if precision > _DIGITS_MAX:
            return pa.scalar(_as_float(value), DOUBLE)
        return pa.scalar(decimal.Decimal(value), pa.decimal256(precision, scale))
    if hasattr(value, "tzinfo"):
        return pa.scalar(value, TIMESTAMP)
    return pa.scalar(value)


def _as_float(number: int | decimal.Decimal) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


# --- common types -----------------------------------------------------------------------------------


def to_double(array: pa.Array) -> pa.Array:
    """Return the nearest double of each number."""
    if is_decimal(array.type):
        return with_nulls_of(decimal_doubles(array), array)
    # NumPy casts int64, because Arrow's cast rejects integers that are not exactly doubles.
    return (
        with_nulls_of(number_values(array).astype(np.float64), array)
        if array.type == INT
        else array.cast(DOUBLE)
    )


def cast_to(value: Value, type: pa.DataType) -> Value:
    """Cast a value to a wider type: integer to decimal or double, decimal to more digits, date to
    timestamp.
    """
    if value.type == type:
        return value
    if value.is_null:
        return ConstantValue(pa.scalar(None, type))
    return Computed(to_double if type == DOUBLE else lambda array: array.cast(type), type, value)


def as_decimal(value: Value) -> Value:
    """Convert an integer to a decimal, and return other values unchanged.

    A constant gets as few digits as possible, because a product may have at most 76 digits.
    """
    if value.type != INT:
        return value
    if isinstance(value, ConstantValue) and value.scalar.is_valid:
        number = decimal.Decimal(value.scalar.as_py())
        return ConstantValue(pa.scalar(number, pa.decimal256(len(number.as_tuple().digits), 0)))
    return cast_to(value, pa.decimal256(19, 0))


def _read_text(value: Value, types: set[pa.DataType]) -> Value:
    """Convert a text literal to one of `types`, the types of the other operands, if possible.

    If another operand is a date, '2013-01-31' becomes a date. Other values are returned unchanged.
    """
    if not isinstance(value, ConstantValue) or value.type != pa.string() or not value.scalar.is_valid:
        return value
    text = value.scalar.as_py()
    if pa.date32() in types and (day := parse_date(text)) is not None:
        return ConstantValue(pa.scalar(day, pa.date32()))
    if types & {pa.date32(), TIMESTAMP} and (moment := parse_timestamp(text)) is not None:
        return ConstantValue(literal_scalar(moment))
    if DOUBLE in types and (special := parse_special_float(text)) is not None:
        return ConstantValue(pa.scalar(special, DOUBLE))
    return ConstantValue(pa.scalar(text.encode())) if pa.binary() in types else value


def unify(values: Sequence[Value], where: str) -> list[Value]:
    """Cast values, such as the branches of a CASE, to one type.

    where: names the expression in messages, for instance "coalesce()".
    Raises: SchemaError if the values have no common type.
    """
    types = {value.type for value in values if not value.is_null}
    if len(types) > 1:
        values = [_read_text(value, types) for value in values]
    present = [value for value in values if not value.is_null]
    types = {value.type for value in present}
    if not types:
        return list(values)
    wanted = present[0].type
    if len(types) > 1:
        if all(is_number(value) for value in present):
            wanted = DOUBLE
            if DOUBLE not in types:
                values = [as_decimal(value) for value in values]
                present = [as_decimal(value) for value in present]
                scale = max(value.type.scale for value in present)
                precision = max(value.type.precision - value.type.scale for value in present) + scale
                if precision > _DIGITS_MAX:
                    raise InvalidArgumentError(
                        f"the values of {where} need more than 76 digits in one type; cast them to smaller decimals"
                    )
                wanted = pa.decimal256(precision, scale)
        elif types <= {pa.date32(), TIMESTAMP}:
            wanted = TIMESTAMP
        else:
            kinds = " and ".join(sorted({value.kind for value in present}))
            hint = "; write a date as DATE '2013-01-31'" if types & {pa.date32(), TIMESTAMP} else ""
            raise SchemaError(f"the values of {where} have no common type: {kinds}{hint}")
    return [cast_to(value, wanted) for value in values]


# --- arithmetic -------------------------------------------------------------------------------------

_DECIMAL: Final[dict[str, Callable[..., pa.Array]]] = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}
_NUMPY: Final[dict[str, Any]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "%": np.fmod, "power": np.power,
}  # fmt: skip


def arithmetic(op: str, left: Value, right: Value) -> Value:
    """Build `left op right` for + - * / % or power. Raises: SchemaError for operands that are not
    numbers.
    """
    for value in (left, right):
        if not is_number(value) and not value.is_null:
            raise SchemaError(f"{op} expects numbers, got {value.kind}")
    if left.is_null or right.is_null:
        return ConstantValue(pa.scalar(None, pa.null()))
    if op in ("/", "power") or DOUBLE in (left.type, right.type):
        return Computed(
            functools.partial(_doubles, _NUMPY[op]), DOUBLE, cast_to(left, DOUBLE), cast_to(right, DOUBLE)
        )
    if not is_decimal(left.type) and not is_decimal(right.type):
        return Computed(functools.partial(_integers, op), INT, left, right, can_fail=True)
    if op == "%":
        raise SchemaError("% expects integers or doubles, got decimal")
    left, right = as_decimal(left), as_decimal(right)
    try:
        # The type that Arrow chooses for the result has room for every digit (X2).
        type = _DECIMAL[op](pa.array([], left.type), pa.array([], right.type)).type
    except pa.ArrowInvalid:
        raise InvalidArgumentError(
            f"{left.type} {op} {right.type} may need more than 76 digits; cast an operand to a smaller decimal"
        ) from None
    return Computed(_DECIMAL[op], type, left, right)


def _doubles(function: Any, left: pa.Array, right: pa.Array) -> pa.Array:
    with np.errstate(all="ignore"):
        return with_nulls_of(function(number_values(left), number_values(right)), left, right)


def _integers(op: str, left: pa.Array, right: pa.Array) -> Checked:
    """Compute + - * or % of integers. A row whose result exceeds int64 fails."""
    x, y = number_values(left), number_values(right)
    code = OVERFLOW
    if op == "+":
        values = x + y
        bad = ((x ^ values) & (y ^ values)) < 0  # the sum has another sign than both operands
    elif op == "-":
        values = x - y
        bad = ((x ^ y) & (x ^ values)) < 0
    elif op == "*":
        values, bad = _multiply(x, y)
    else:
        code, bad = ZERO_DIVISION, y == 0
        # x % 1 is 0, and so is x % -1, for which the processor raises an error at the least
        # integer.
        values = np.fmod(x, np.where(bad | (y == -1), 1, y))
    return Checked(with_nulls_of(values, left, right), bad, code)


def _multiply(
    x: npt.NDArray[np.int64], y: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    values = x * y
    # A product in doubles says whether the result may exceed int64. For such rows the integer
    # product is divided by x: the quotient is y only without an overflow, because an overflow
    # changes the product by at least 2**64.
    doubtful = np.abs(x.astype(np.float64) * y) > 2.0**62
    bad = np.zeros(len(values), np.bool_)
    if doubtful.any():
        a, b, product = x[doubtful], y[doubtful], values[doubtful]
        wraps = (a == -1) & (b == np.iinfo(np.int64).min)  # here the division itself would overflow
        bad[doubtful] = wraps | (product // np.where(wraps | (a == 0), 1, a) != np.where(wraps, product, b))
    return values, bad


# --- choices ----------------------------------------------------------------------------------------


class Coalesce(Value):
    """COALESCE: the first of the values that is not NULL."""

    def __init__(self, parts: Sequence[Value]) -> None:
        self.parts = unify(parts, "coalesce()")
        super().__init__(self.parts[0].type, self.parts)

    def compute(self, arrays: Arrays, n: int) -> Outcome:
        array, errors = self.parts[0].compute(arrays, n)
        for part in self.parts[1:]:
            decided = validity(array)
            if decided is None:
                break
            if errors is not None:
                decided = decided | (errors != 0)  # a row with an error needs no further value
            array, errors = _choose(
                decided, Outcome(array, errors), _compute_among(part, arrays, n, ~decided)
            )
        return Outcome(array, errors)


class GreatestOrLeast(Value):
    """GREATEST (op ">") or LEAST (op "<") of the values that are not NULL."""

    def __init__(self, op: str, parts: Sequence[Value], name: str) -> None:
        self.op, self.parts = op, unify(parts, f"{name}()")
        super().__init__(self.parts[0].type, self.parts)

    def compute(self, arrays: Arrays, n: int) -> Outcome:
        best = self.parts[0].compute(arrays, n)
        for part in self.parts[1:]:
            other = part.compute(arrays, n)
            if self.is_null:
                continue
            better = _compare(self.op, other.array, best.array)
            has_best, has_other = validity(best.array), validity(other.array)
            if has_best is not None:
                better = better | ~has_best
            if has_other is not None:
                better = better & has_other
            chosen = _choose(better, other, best)
            best = Outcome(chosen.array, _first_errors(best.errors, other.errors))
        return best


class CaseValue(Value):
    """CASE: the value of the first condition that is TRUE, or the value of ELSE."""

    def __init__(self, conditions: Sequence[Bound], values: Sequence[Value], otherwise: Value) -> None:
        *self.values, self.otherwise = unify((*values, otherwise), "CASE")
        self.conditions = tuple(conditions)
        super().__init__(
            self.otherwise.type,
            (*self.values, self.otherwise),
            can_fail=any(condition.can_fail for condition in conditions),
        )
        self.columns = self.columns.union(*(condition.columns for condition in conditions))
        self.can_raise = self.can_raise or any(condition.can_fail for condition in conditions)

    def compute(self, arrays: Arrays, n: int) -> Outcome:
        open_rows = np.ones(n, np.bool_)
        masks = []
        for condition in self.conditions:
            masks.append(mask_among(condition, arrays, n, open_rows))
            open_rows = open_rows & ~masks[-1]
        result = _compute_among(self.otherwise, arrays, n, open_rows)
        for mask, value in zip(reversed(masks), reversed(self.values), strict=True):
            result = _choose(mask, _compute_among(value, arrays, n, mask), result)
        return result


def _compute_among(value: Value, arrays: Arrays, n: int, rows: Mask) -> Outcome:
    """Compute the value of the selected rows. Other rows get any value and no error."""
    if not value.can_raise or rows.all():
        return value.compute(arrays, n)
    indices = pa.array(np.flatnonzero(rows))
    few = {name: decode_runs(arrays[name]).take(indices) for name in value.columns}
    part = value.compute(few, len(indices))
    positions = pa.array(np.cumsum(rows) - 1, mask=~rows)
    if part.errors is None:
        return Outcome(part.array.take(positions))
    errors = np.zeros(n, np.uint8)
    errors[rows] = part.errors
    return Outcome(part.array.take(positions), errors)


def _choose(mask: Mask, yes: Outcome, no: Outcome) -> Outcome:
    """Return the values and errors of `yes` for the rows of the mask, of `no` for other rows."""
    array = yes.array if pa.types.is_null(yes.array.type) else pc.if_else(pa.array(mask), yes.array, no.array)
    if yes.errors is None and no.errors is None:
        return Outcome(array)
    nothing = np.zeros(len(mask), np.uint8)
    errors = np.where(
        mask, nothing if yes.errors is None else yes.errors, nothing if no.errors is None else no.errors
    )
    return Outcome(array, errors if errors.any() else None)


# --- conditions on values ---------------------------------------------------------------------------


def _compare(op: str, left: pa.Array, right: pa.Array) -> Mask:
    """Return a mask of the rows in which `left op right` is TRUE. Rows with NULL get any value.

    Both arrays have the same type.
    """
    if is_decimal(left.type):
        return true_mask(ARROW_COMPARE[op](left, right))
    type = parse_type(left.type)
    return compare_arrays(op, left, type, right, type)


def column_like(value: Value, text: str) -> ColumnSchema:
    """Return a column that is not in the table: it has the type of `value`, and the name `text`.

    With this column, the code that compares columns with literals also compares computed values.
    """
    type = value.type
    if is_decimal(type):
        if type.scale > DECIMAL_PRECISION_MAX:
            raise InvalidArgumentError(
                f"{quote(text)} has {type.scale} digits after the decimal point; comparisons support at most 38"
            )
        return ColumnSchema(
            ColumnId(-1),
            text,
            ColumnType("decimal", min(type.precision, DECIMAL_PRECISION_MAX), type.scale),
            True,
        )
    return ColumnSchema(ColumnId(-1), text, ColumnType("bool") if value.is_null else parse_type(type), True)


def _array_of(value: Value, text: str, arrays: Arrays, n: int) -> pa.Array:
    """Compute the value of an expression for each row, and return an Arrow array of the results.

    value:  the expression.
    text:   the expression's SQL text, for messages.
    arrays: the columns of the rows, by name.
    n:      the number of rows.

    Raises: InvalidArgumentError if a row has an error, such as a division by zero.
    """
    try:
        array, errors = value.compute(arrays, n)
    except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
        raise InvalidArgumentError(f"{quote(text)}: {str(error)[:200]}") from error
    if errors is not None and errors.any():
        raise InvalidArgumentError(
            f"{quote(text)} {ERROR_TEXTS[int(errors[errors != 0][0])]} in at least one row; "
            "exclude such rows by CASE WHEN"
        )
    return array


@dataclass(frozen=True, eq=False)
class BoundOnValue(Bound):
    """A condition on a computed value, such as n + 1 > 5.

    value: computes n + 1.
    inner: tests the result as if it were a column, here x > 5.
    name: the name of this column x in `inner`. The table has no such column.
    """

    value: Value
    inner: Bound
    name: str
    cost: ClassVar[int] = 20

    @property
    def columns(self) -> frozenset[str]:  # type: ignore[override]
        return self.value.columns

    @property
    def can_fail(self) -> bool:  # type: ignore[override]
        return self.value.can_fail

    def mask(self, arrays: Arrays, n: int) -> Mask:
        if len(self.columns) == 1 and not self.can_fail:
            (name,) = self.columns
            array = arrays[name]
            if pa.types.is_dictionary(array.type) and len(array.dictionary) < n:
                return self._mask_of_entries(name, array)
        return self._mask(arrays, n)

    def _mask_of_entries(self, name: str, array: pa.DictionaryArray) -> Mask:
        """Test each dictionary entry once, and NULL as one more entry; then look up the result of
        each row.
        """
        entries = pa.concat_arrays([array.dictionary, pa.nulls(1, array.dictionary.type)])
        codes = array.indices.fill_null(len(entries) - 1) if array.indices.null_count else array.indices
        mask: Mask = self._mask({name: entries}, len(entries))[codes.to_numpy(zero_copy_only=False)]
        return mask

    def _mask(self, arrays: Arrays, n: int) -> Mask:
        array = _array_of(self.value, self.name, arrays, n)
        try:
            return self.inner.mask({self.name: array}, n)
        except pa.ArrowInvalid as error:  # a decimal has too many digits
            raise InvalidArgumentError(f"{quote(self.name)}: {str(error)[:200]}") from error


@dataclass(frozen=True, eq=False)
class BoundCompareValues(Bound):
    """`left op right` for two computed values of one type."""

    left: Value
    op: str
    right: Value
    text: str
    cost: ClassVar[int] = 20

    @property
    def columns(self) -> frozenset[str]:  # type: ignore[override]
        return self.left.columns | self.right.columns

    @property
    def can_fail(self) -> bool:  # type: ignore[override]
        return self.left.can_fail or self.right.can_fail

    def mask(self, arrays: Arrays, n: int) -> Mask:
        left = _array_of(self.left, self.text, arrays, n)
        right = _array_of(self.right, self.text, arrays, n)
        mask = _compare(self.op, left, right)
        for array in (left, right):
            valid = validity(array)
            mask = mask if valid is None else mask & valid
        return mask
