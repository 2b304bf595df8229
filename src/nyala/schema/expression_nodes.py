"""Expressions over the columns of a row: their nodes, and how a batch of rows is computed.

A node has a fixed Arrow type, one of
    int64 · decimal256 · float64 · string · binary · bool · date32 · timestamp[us, UTC] · null
and gives one array of it, with NULL where an operand is NULL. Rows that have no value for another reason carry an
error instead (X1), for one bad row must not stop the others.

Invariants
    X1  A row's error is that of a part which the row needs: not of a CASE branch that it does not take, nor of an
        argument of COALESCE after the first that is not NULL.
    X2  Integer and decimal arithmetic is exact or an error; it never wraps around and never rounds. `/` gives a
        double, as in DuckDB and Spark, and division by zero is an error.

Cost: a few Arrow or NumPy calls a node, whatever the number of rows.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nyala.errors import InvalidArgumentError, SchemaError
from nyala.schema.arrow_values import decimal_doubles, repeated, validity
from nyala.schema.evaluate import Arrays
from nyala.schema.predicate import BoundPredicate
from nyala.schema.schema import ColumnSchema

__all__ = [
    "ERROR_TEXTS",
    "AbsNode",
    "CaseNode",
    "CoalesceNode",
    "ColumnNode",
    "ConcatNode",
    "ConditionNode",
    "ConstantNode",
    "DoubleNode",
    "ExactNode",
    "FunctionNode",
    "Node",
    "Part",
    "arithmetic",
    "decimal_scalar",
    "is_decimal",
    "is_number",
    "number_values",
    "to_double",
    "unify",
    "widened",
]

OVERFLOW: Final = 1
ZERO_DIVISION: Final = 2
ERROR_TEXTS: Final = {OVERFLOW: "goes beyond int64", ZERO_DIVISION: "divides by zero"}
DEPTH_MAX: Final = 150

_INT: Final = pa.int64()
_DOUBLE: Final = pa.float64()
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
Codes: TypeAlias = npt.NDArray[np.uint8]


class Part(NamedTuple):
    """A node's values, and for each row 0 or the code of its error; None when no row has one."""

    array: pa.Array
    errors: Codes | None = None


class Node:
    """One operation. `type` is that of its values, `columns` those it reads; immutable after construction."""

    type: pa.DataType
    depth: int
    columns: frozenset[str]

    def __init__(self, type: pa.DataType, parts: Sequence[Node] = ()) -> None:
        self.type = type
        self.depth = 1 + max((part.depth for part in parts), default=0)
        if self.depth > DEPTH_MAX:
            raise InvalidArgumentError(f"the expression has more than {DEPTH_MAX} steps in a row; shorten it")
        self.columns = frozenset().union(*(part.columns for part in parts))

    def compute(self, arrays: Arrays, n: int) -> Part:
        raise NotImplementedError

    @property
    def kind(self) -> str:
        """The type in a person's words."""
        names = {_INT: "integer", _DOUBLE: "double", pa.string(): "text", _TIMESTAMP: "timestamp"}
        return (
            "decimal"
            if is_decimal(self.type)
            else names.get(self.type, str(self.type).replace("32[day]", ""))
        )


def is_decimal(type: pa.DataType) -> bool:
    return bool(pa.types.is_decimal256(type))


def is_number(node: Node) -> bool:
    return is_decimal(node.type) or node.type in (_INT, _DOUBLE)


def _either(a: Codes | None, b: Codes | None) -> Codes | None:
    """The errors of two operands: a row has the first one's."""
    if a is None or b is None:
        return b if a is None else a
    return np.where(a != 0, a, b)


def _marked(array: pa.Array, bad: npt.NDArray[np.bool_], code: int) -> Codes | None:
    """`code` where `bad` and the value is not NULL."""
    valid = validity(array)
    bad = bad if valid is None else bad & valid
    return bad.astype(np.uint8) * np.uint8(code) if bad.any() else None


def number_values(array: pa.Array) -> npt.NDArray[Any]:
    """Values of an int64 or float64 array as a view, NULLs as whatever stands there."""
    data = array.buffers()[1]
    dtype = np.int64 if array.type == _INT else np.float64
    if data is None or len(array) == 0:
        return np.empty(0, dtype)
    return np.frombuffer(data, dtype, count=array.offset + len(array))[array.offset :]


def _with_nulls_of(values: npt.NDArray[Any], *sources: pa.Array) -> pa.Array:
    mask: npt.NDArray[np.bool_] | None = None
    for source in sources:
        valid = validity(source)
        if valid is not None:
            mask = ~valid if mask is None else mask | ~valid
    return pa.array(values, mask=mask)


# --- leaves -----------------------------------------------------------------------------------------


class ConstantNode(Node):
    """The same value in every row."""

    def __init__(self, scalar: pa.Scalar) -> None:
        super().__init__(scalar.type)
        self.scalar = scalar

    def compute(self, arrays: Arrays, n: int) -> Part:
        return Part(repeated(self.scalar, n))


class ColumnNode(Node):
    """A column, its integers as int64, its decimals as decimal256, its floats as double."""

    def __init__(self, column: ColumnSchema) -> None:
        type = column.type
        arrow = type.arrow
        if type.is_integer:
            arrow = _INT
        elif type.is_floating:
            arrow = _DOUBLE
        elif type.name == "decimal":
            arrow = pa.decimal256(type.precision, type.scale)
        super().__init__(arrow)
        self.column = column
        self.columns = frozenset((column.name,))

    def compute(self, arrays: Arrays, n: int) -> Part:
        array = arrays[self.column.name]
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        return Part(array if array.type == self.type else array.cast(self.type))


class ConditionNode(Node):
    """A predicate as a bool: TRUE, FALSE or NULL."""

    def __init__(self, predicate: BoundPredicate, negation: BoundPredicate) -> None:
        super().__init__(pa.bool_())
        self.predicate, self.negation = predicate, negation
        self.columns = predicate.columns | negation.columns

    def compute(self, arrays: Arrays, n: int) -> Part:
        true = self.predicate.evaluate(arrays, n)
        return Part(pa.array(true, mask=~(true | self.negation.evaluate(arrays, n))))


# --- types that meet --------------------------------------------------------------------------------


class CastNode(Node):
    """A value in a wider type: integer to decimal or double, decimal to one of more digits, date to timestamp."""

    def __init__(self, part: Node, type: pa.DataType) -> None:
        super().__init__(type, (part,))
        self.part = part

    def compute(self, arrays: Arrays, n: int) -> Part:
        array, errors = self.part.compute(arrays, n)
        return Part(to_double(array) if self.type == _DOUBLE else array.cast(self.type), errors)


def to_double(array: pa.Array) -> pa.Array:
    """The nearest doubles of a numeric array."""
    if is_decimal(array.type):
        return _with_nulls_of(decimal_doubles(array), array)
    # From int64 through NumPy: Arrow's safe cast refuses what a double rounds.
    return (
        _with_nulls_of(number_values(array).astype(np.float64), array)
        if array.type == _INT
        else array.cast(_DOUBLE)
    )


def cast_node(node: Node, type: pa.DataType) -> Node:
    if node.type == type:
        return node
    if isinstance(node, ConstantNode) and pa.types.is_null(node.type):
        return ConstantNode(pa.scalar(None, type))
    return CastNode(node, type)


def as_decimal(node: Node) -> Node:
    """An integer as a decimal: a constant with as few digits as it has, so that products stay small."""
    if node.type != _INT:
        return node
    if isinstance(node, ConstantNode) and node.scalar.is_valid:
        return ConstantNode(decimal_scalar(decimal.Decimal(node.scalar.as_py())))
    return CastNode(node, pa.decimal256(19, 0))


def decimal_scalar(value: decimal.Decimal) -> pa.Scalar:
    """A number as the narrowest decimal256 that holds it. Raises: InvalidArgumentError beyond 76 digits."""
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    scale = max(0, -exponent)
    precision = max(len(digits) + max(0, exponent), scale, 1)
    if precision > 76:
        raise InvalidArgumentError(f"the number {str(value)[:40]} has more than 76 digits")
    return pa.scalar(value, pa.decimal256(precision, scale))


def widened(node: Node) -> Node:
    """A decimal with one digit more before the point, which rounding may need."""
    if not is_decimal(node.type) or node.type.precision == 76:
        return node
    return cast_node(node, pa.decimal256(node.type.precision + 1, node.type.scale))


def unify(nodes: Sequence[Node], where: str) -> list[Node]:
    """The nodes in one type, as the branches of CASE need it. Raises: SchemaError when they have none in common."""
    present = [node for node in nodes if not pa.types.is_null(node.type)]
    if not present:
        return list(nodes)
    types = {node.type for node in present}
    if len(types) == 1:
        wanted = present[0].type
    elif all(is_number(node) for node in present):
        wanted = _DOUBLE
        if _DOUBLE not in types:
            present = [as_decimal(node) for node in present]
            nodes = [as_decimal(node) for node in nodes]
            scale = max(node.type.scale for node in present)
            precision = max(node.type.precision - node.type.scale for node in present) + scale
            if precision > 76:
                raise InvalidArgumentError(f"the values of {where} have more than 76 digits in common")
            wanted = pa.decimal256(precision, scale)
    elif types <= {pa.date32(), _TIMESTAMP}:
        wanted = _TIMESTAMP
    else:
        kinds = " and ".join(sorted({node.kind for node in present}))
        raise SchemaError(f"the values of {where} have nothing in common: {kinds}")
    return [cast_node(node, wanted) for node in nodes]


# --- arithmetic -------------------------------------------------------------------------------------


def arithmetic(op: str, left: Node, right: Node) -> Node:
    """left op right, one of + - * / %. Raises: SchemaError for what is no number."""
    null = pa.types.is_null
    for node in (left, right):
        if not is_number(node) and not null(node.type):
            raise SchemaError(f"{op} takes numbers, not {node.kind}")
    if null(left.type) or null(right.type):
        return ConstantNode(pa.scalar(None, pa.null()))
    if op == "/" or _DOUBLE in (left.type, right.type):
        return DoubleNode(op, cast_node(left, _DOUBLE), cast_node(right, _DOUBLE))
    if op == "%" and (is_decimal(left.type) or is_decimal(right.type)):
        raise SchemaError("% takes integers or doubles, not decimals")
    if is_decimal(left.type) or is_decimal(right.type):
        return DecimalNode(op, as_decimal(left), as_decimal(right))
    return ExactNode(op, left, right)


class ExactNode(Node):
    """Integer + - * %, with an error where the result is beyond int64 (X2)."""

    def __init__(self, op: str, left: Node, right: Node) -> None:
        super().__init__(_INT, (left, right))
        self.op, self.left, self.right = op, left, right

    def compute(self, arrays: Arrays, n: int) -> Part:
        left, left_errors = self.left.compute(arrays, n)
        right, right_errors = self.right.compute(arrays, n)
        x, y = number_values(left), number_values(right)
        code = OVERFLOW
        if self.op == "+":
            values = x + y
            bad = ((x ^ values) & (y ^ values)) < 0  # both operands have the other sign than the sum
        elif self.op == "-":
            values = x - y
            bad = ((x ^ y) & (x ^ values)) < 0
        elif self.op == "*":
            values, bad = _multiply(x, y)
        else:
            code, bad = ZERO_DIVISION, y == 0
            values = np.fmod(x, np.where(bad | (y == -1), 1, y))  # x % -1 is 0 too, and does not trap
        array = _with_nulls_of(values, left, right)
        return Part(array, _either(_either(left_errors, right_errors), _marked(array, bad, code)))


def _multiply(
    x: npt.NDArray[np.int64], y: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    values = x * y
    # Far from the border a double tells; near it division does: a wrapped product gives the other factor back
    # only if the true one is less than |x| away from it, and it is 2**64 or more away.
    doubtful = np.abs(x.astype(np.float64) * y) > 2.0**62
    bad = np.zeros(len(values), np.bool_)
    if doubtful.any():
        a, b, product = x[doubtful], y[doubtful], values[doubtful]
        wraps = (a == -1) & (b == np.iinfo(np.int64).min)  # this quotient itself overflows
        bad[doubtful] = wraps | (product // np.where(wraps | (a == 0), 1, a) != np.where(wraps, product, b))
    return values, bad


class DecimalNode(Node):
    """Decimal + - *: Arrow widens the result so that every digit fits, up to 76 (X2)."""

    _FUNCTIONS: ClassVar[dict[str, Callable[..., pa.Array]]] = {
        "+": pc.add,
        "-": pc.subtract,
        "*": pc.multiply,
    }

    def __init__(self, op: str, left: Node, right: Node) -> None:
        self.op, self.left, self.right = op, left, right
        try:
            type = self._FUNCTIONS[op](pa.array([], left.type), pa.array([], right.type)).type
        except pa.ArrowInvalid:
            raise InvalidArgumentError(
                f"{left.type} {op} {right.type} may need more than the 76 digits there are; take fewer factors"
            ) from None
        super().__init__(type, (left, right))

    def compute(self, arrays: Arrays, n: int) -> Part:
        left, left_errors = self.left.compute(arrays, n)
        right, right_errors = self.right.compute(arrays, n)
        return Part(self._FUNCTIONS[self.op](left, right), _either(left_errors, right_errors))


class DoubleNode(Node):
    """IEEE + - * / %; a zero divisor is an error."""

    _FUNCTIONS: ClassVar[dict[str, Any]] = {
        "+": np.add,
        "-": np.subtract,
        "*": np.multiply,
        "/": np.divide,
        "%": np.fmod,
    }

    def __init__(self, op: str, left: Node, right: Node) -> None:
        super().__init__(_DOUBLE, (left, right))
        self.op, self.left, self.right = op, left, right

    def compute(self, arrays: Arrays, n: int) -> Part:
        left, left_errors = self.left.compute(arrays, n)
        right, right_errors = self.right.compute(arrays, n)
        x, y = number_values(left), number_values(right)
        with np.errstate(all="ignore"):
            array = _with_nulls_of(self._FUNCTIONS[self.op](x, y), left, right)
        errors = _either(left_errors, right_errors)
        if self.op in ("/", "%"):
            errors = _either(errors, _marked(array, y == 0, ZERO_DIVISION))
        return Part(array, errors)


# --- functions --------------------------------------------------------------------------------------


class FunctionNode(Node):
    """One Arrow function of one argument."""

    def __init__(self, function: Callable[[pa.Array], pa.Array], part: Node, type: pa.DataType) -> None:
        super().__init__(type, (part,))
        self.function, self.part = function, part

    def compute(self, arrays: Arrays, n: int) -> Part:
        array, errors = self.part.compute(arrays, n)
        result = self.function(array)
        return Part(result if result.type == self.type else result.cast(self.type), errors)


class AbsNode(Node):
    """The value without its sign; the least int64 has none."""

    def __init__(self, part: Node) -> None:
        super().__init__(part.type, (part,))
        self.part = part

    def compute(self, arrays: Arrays, n: int) -> Part:
        array, errors = self.part.compute(arrays, n)
        if self.type == _INT:
            errors = _either(errors, _marked(array, number_values(array) == np.iinfo(np.int64).min, OVERFLOW))
        return Part(pc.abs(array), errors)


class ConcatNode(Node):
    """a || b of text or binary; NULL if one of them is."""

    def __init__(self, left: Node, right: Node) -> None:
        for node in (left, right):
            if node.type not in (pa.string(), pa.binary()) and not pa.types.is_null(node.type):
                raise SchemaError(f"|| joins text or binary, not {node.kind}")
        left, right = unify((left, right), "||")
        super().__init__(left.type, (left, right))
        self.left, self.right = left, right

    def compute(self, arrays: Arrays, n: int) -> Part:
        left, left_errors = self.left.compute(arrays, n)
        right, right_errors = self.right.compute(arrays, n)
        if pa.types.is_null(self.type):
            return Part(left)
        joined = pc.binary_join_element_wise(
            left, right, pa.scalar("" if self.type == pa.string() else b"", self.type)
        )
        return Part(joined, _either(left_errors, right_errors))


class CoalesceNode(Node):
    """The first of the values that is not NULL."""

    def __init__(self, parts: Sequence[Node]) -> None:
        self.parts = unify(parts, "coalesce()")
        super().__init__(self.parts[0].type, self.parts)

    def compute(self, arrays: Arrays, n: int) -> Part:
        array, errors = self.parts[0].compute(arrays, n)
        for part in self.parts[1:]:
            decided = validity(array)
            if decided is None:
                break
            if errors is not None:
                decided = decided | (errors != 0)  # an error has no value, yet is no NULL
            other, other_errors = part.compute(arrays, n)
            array, errors = _choose(decided, Part(array, errors), Part(other, other_errors))
        return Part(array, errors)


class CaseNode(Node):
    """CASE WHEN condition THEN value … ELSE value END: the value of the first condition that is TRUE."""

    def __init__(self, conditions: Sequence[BoundPredicate], values: Sequence[Node], otherwise: Node) -> None:
        *self.values, self.otherwise = unify((*values, otherwise), "CASE")
        self.conditions = tuple(conditions)
        super().__init__(self.otherwise.type, (*self.values, self.otherwise))
        self.columns = self.columns.union(*(condition.columns for condition in conditions))

    def compute(self, arrays: Arrays, n: int) -> Part:
        result = self.otherwise.compute(arrays, n)
        for condition, value in zip(reversed(self.conditions), reversed(self.values), strict=True):
            result = _choose(condition.evaluate(arrays, n), value.compute(arrays, n), result)
        return result


def _choose(mask: npt.NDArray[np.bool_], yes: Part, no: Part) -> Part:
    """Values and errors of `yes` where the mask is set, of `no` elsewhere (X1)."""
    array = yes.array if pa.types.is_null(yes.array.type) else pc.if_else(pa.array(mask), yes.array, no.array)
    if yes.errors is None and no.errors is None:
        return Part(array)
    nothing = np.zeros(len(mask), np.uint8)
    errors = np.where(
        mask, nothing if yes.errors is None else yes.errors, nothing if no.errors is None else no.errors
    )
    return Part(array, errors if errors.any() else None)
