"""The new values of `update(set={column: …})`: constants, or SQL expressions over the row.

A `str` is always a constant. An expression is `nyala.expr("n + 1")`, or it is built from
`nyala.col`. Its language is that of `where=` (`expressions/parser.py`).

Integers are computed in 64 bits, and decimals with all their digits. A row fails with the code
out-of-range if the result does not fit the column, or would fit only after rounding. A user who
wants rounding writes round(x, 2). The only exception is a float column: values are computed as
doubles, and then rounded to floats.

Source: docs/how-to/expressions.md.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala import compute as pc
from nyala.errors import NULL, OUT_OF_RANGE, InvalidArgumentError, SchemaError
from nyala.schema.arrow_values import decimal_doubles, repeated
from nyala.schema.conversion.array_cast import Failure, cast_array, range_text
from nyala.schema.conversion.cast import cast_list
from nyala.schema.conversion.row_errors import RowErrors
from nyala.schema.expressions.evaluate import Arrays
from nyala.schema.expressions.literals import quote
from nyala.schema.expressions.nodes import Expr, Node, as_node, check_depth
from nyala.schema.expressions.values import ERROR_TEXTS, Value, is_decimal, number_values, to_double
from nyala.schema.limits import DEFAULT_LIMITS, Limits
from nyala.schema.predicates.binding import bind_node, build_value
from nyala.schema.schema import ColumnSchema, Schema

__all__ = ["Assigned", "Expression", "parse_assignment"]


class TooMuchText(InvalidArgumentError):
    """The result has more text than one Arrow array can hold: evaluate fewer rows at a time."""


# A longer constant is returned as dictionary codes with one entry, and not once per row.
_REPEATED_BYTES_MAX: Final = 1 << 10


class Assigned(NamedTuple):
    """The new values of a column, with NULL in failed rows, and the errors of these rows.

    The array has the canonical type of the column, or is a dictionary-encoded constant.
    """

    array: pa.Array
    errors: RowErrors


class Expression:
    """The new value of one column, as a function of the row. Immutable, thread-safe; `str()`
    returns its text.
    """

    columns: frozenset[str]

    def __init__(self, target: ColumnSchema, text: str, limits: Limits) -> None:
        self.target = target
        self._text = text
        self._cell_bytes = limits.max_cell_bytes

    def evaluate(self, arrays: Arrays, n: int) -> Assigned:
        """Compute the values of n rows.

        arrays: at least the `columns`, by name, as Arrow arrays of n values of the canonical types.
        A row may fail with the codes out-of-range (overflow, division by zero, or a value that does
        not fit), null (in a NOT NULL column) and value-too-large.
        """
        errors = RowErrors()
        array, failures = self._values(arrays, n, errors)
        where = f"column {self.target.name!r}: "
        for failure in failures:
            errors.add(failure.rows, failure.code, [where + message for message in failure.messages])
        if not self.target.nullable and array.null_count:
            nulls = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))
            errors.add(nulls, NULL, f"{where}NULL, but the column is NOT NULL; give a value")
        return Assigned(array, errors)

    def _values(self, arrays: Arrays, n: int, errors: RowErrors) -> tuple[pa.Array, list[Failure]]:
        raise NotImplementedError

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Expression({self.target.name!r}, {self._text!r})"


class _Constant(Expression):
    """The same value in every row. If it does not fit the column, every row fails, and no exception
    is raised.
    """

    columns: frozenset[str] = frozenset()

    def __init__(self, target: ColumnSchema, value: Any, limits: Limits) -> None:
        super().__init__(target, quote(value), limits)
        try:
            if isinstance(value, pa.Scalar):
                self._array, self._failures = cast_array(pa.repeat(value, 1), target.type, self._cell_bytes)
            else:
                self._array, self._failures = cast_list([value], target.type, self._cell_bytes)
        except SchemaError as error:
            hint = f"; for an expression write nyala.expr({quote(value)})" * isinstance(value, str)
            raise SchemaError(f"column {target.name!r}: {error}{hint}") from None

    def _values(self, arrays: Arrays, n: int, errors: RowErrors) -> tuple[pa.Array, list[Failure]]:
        rows = np.arange(n)
        if self.target.type.is_variable and self._array.nbytes > _REPEATED_BYTES_MAX:
            codes = pa.array(np.zeros(n, np.int32))
            array = pa.DictionaryArray.from_arrays(codes, self._array)
        else:
            array = repeated(self._array[0], n)
        return array, [Failure(rows, failure.code, [failure.messages[0]] * n) for failure in self._failures]


class _Computed(Expression):
    """A computed value that is cast to the type of the column."""

    def __init__(self, target: ColumnSchema, value: Value, text: str, limits: Limits) -> None:
        super().__init__(target, text, limits)
        self.columns = value.columns
        self._value = value
        self._fit(pa.array([], value.type))  # raises an error if the types are incompatible

    def _values(self, arrays: Arrays, n: int, errors: RowErrors) -> tuple[pa.Array, list[Failure]]:
        try:
            array, codes = self._value.compute(arrays, n)
        except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
            is_long = isinstance(error, pa.ArrowCapacityError) or "overflow" in str(error)
            raise (TooMuchText if is_long else InvalidArgumentError)(
                f"column {self.target.name!r}: {quote(self._text)}: {error}"
            ) from error
        if codes is not None:
            for code, text in ERROR_TEXTS.items():
                message = f"column {self.target.name!r}: {quote(self._text)} {text}"
                errors.add(np.flatnonzero(codes == code), OUT_OF_RANGE, message)
            array = pc.if_else(pa.array(codes == 0), array, pa.scalar(None, array.type))
        return self._fit(array)

    def _fit(self, array: pa.Array) -> tuple[pa.Array, list[Failure]]:
        """Cast the array to the type of the column; also return the rows that do not fit."""
        wanted = self.target.type
        failures: list[Failure] = []
        if wanted.name == "date" and (array.type == pa.int64() or is_decimal(array.type)):
            # Usually a mistake: 2013 - 01 - 01 is the number 2011, and would become the 2011th day
            # after 1970.
            raise SchemaError(
                f"column {self.target.name!r}: {quote(self._text)} is a number, not a date; write DATE '2013-01-31'"
            )
        if array.type == pa.float64() and (wanted.is_integer or wanted.name == "decimal"):
            array, failures = _double_to_exact(array, self.target)
        elif wanted.is_floating and (array.type == pa.float64() or is_decimal(array.type)):
            array, failures = _round_to_floating(to_double(array), self.target)
        try:
            array, more = cast_array(array, wanted, self._cell_bytes)
        except SchemaError as error:
            raise SchemaError(f"column {self.target.name!r}: {quote(self._text)}: {error}") from None
        return array, failures + more


def _failing(array: pa.Array, fits: npt.NDArray[np.bool_], column: ColumnSchema) -> list[Failure]:
    """Return the failures of the rows that are False in `fits` and not NULL.

    Each message shows the row's value.
    """
    bad = ~fits
    if array.null_count:
        bad &= array.is_valid().to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(bad)
    if not len(rows):
        return []
    wanted = range_text(column.type)
    limit = 0.0 if column.type.value_max is None else column.type.value_max / 10.0 ** (column.type.scale or 0)
    messages = [
        f"{value!r} does not fit {wanted} exactly"
        + ("; write round(…) to round it" if abs(value) <= limit else "")
        for value in number_values(array)[rows].tolist()
    ]
    return [Failure(rows, OUT_OF_RANGE, messages)]


def _double_to_exact(array: pa.Array, column: ColumnSchema) -> tuple[pa.Array, list[Failure]]:
    """Convert doubles to integers or decimals. A double fits if it is the nearest double to
    a value of the column.
    """
    type, values = column.type, number_values(array)
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    if type.is_integer:
        assert type.value_min is not None and type.value_max is not None
        # value_max + 1 is a power of two, which is exactly a double. The value_max of int64 is not.
        fits = (values >= float(type.value_min)) & (values < float(type.value_max + 1))
        fits &= np.trunc(values) == values
        result = pa.array(np.where(fits, values, 0).astype(np.int64), mask=nulls | ~fits)
        return result, _failing(array, fits, column)
    assert type.precision is not None and type.scale is not None
    fits = np.abs(values) < 10.0 ** (type.precision - type.scale)
    # 76 digits have room for a value that is rounded up beyond the column's precision. `cast_array`
    # checks this later.
    result = pa.array(np.where(fits, values, 0.0)).cast(pa.decimal256(76, type.scale))  # to the nearest
    fits &= decimal_doubles(result) == values
    return pc.if_else(pa.array(fits & ~nulls), result, pa.scalar(None, result.type)), _failing(
        array, fits, column
    )


def _round_to_floating(array: pa.Array, column: ColumnSchema) -> tuple[pa.Array, list[Failure]]:
    """Round doubles for a float column. A finite double that becomes infinite does not fit."""
    if column.type.name == "double":
        return array, []
    values = number_values(array)
    with np.errstate(over="ignore", under="ignore"):
        rounded = values.astype(np.float32)
    fits = ~np.isinf(rounded) | np.isinf(values)
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    return pa.array(rounded, mask=nulls | ~fits), _failing(array, fits, column)


# --- parsing ----------------------------------------------------------------------------------------


def parse_assignment(
    value: Any, schema: Schema, target: ColumnSchema, limits: Limits = DEFAULT_LIMITS
) -> Expression:
    """Build the new value of column `target` from what the user gave: a constant, an expression or
    a condition.

    Raises: SchemaError if the types do not match, InvalidArgumentError, ColumnNotFoundError.
    """
    if not isinstance(value, Expr | Node):
        return _Constant(target, value, limits)
    tree = as_node(value)
    check_depth(tree)
    text = str(tree)
    try:
        computed = build_value(bind_node(tree, schema), schema)
    except (SchemaError, InvalidArgumentError) as error:
        raise type(error)(f"column {target.name!r}: {quote(text)}: {error}") from None
    return _Computed(target, computed, text, limits)
