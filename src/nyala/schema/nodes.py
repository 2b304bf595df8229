"""What a predicate says, before its table is known: the syntax tree, `col()`, and its SQL text.

    (col("host") == "a") & ~col("time").between(1, 5)     host = 'a' AND NOT (time >= 1 AND time <= 5)
              |  `parse_predicate` reads the text, `str()` writes it; both give the same tree
              v
    And((Compare("host", "=", "a"), Not(And((Compare("time", ">=", 1), Compare("time", "<=", 5))))))

Invariants
    N1  Nodes are immutable and hold only names, `Literal`s and nodes, of a long list an Arrow array; so they compare,
        hash and go through JSON.
    N2  parse_predicate(str(p)) == p, but for ArrowExpression, which has no text. NaN and infinities are no text
        either: DOUBLE 'NaN' reads back beside a column of any type.
    N3  An And holds no And as a part and an Or no Or: a chain of a thousand terms is one flat node.

Predicates combine with & | ~; `and`, `or`, `not` and chains such as 1 < col("x") < 5 raise, for Python would
quietly drop one side.
Left out: arithmetic and functions in predicates (see `nyala.schema.expression`).
Source: shared contract, "Read".
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from nyala.errors import InvalidArgumentError
from nyala.schema.equality import compared_as_tuples
from nyala.schema.literals import Literal, iso_text, normalise
from nyala.schema.value_lists import as_array, literals_of

__all__ = [
    "OPERATORS",
    "RESERVED",
    "TREE_DEPTH_MAX",
    "And",
    "ArrowExpression",
    "ColumnRef",
    "Compare",
    "CompareColumns",
    "Constant",
    "InList",
    "IsNull",
    "Like",
    "Not",
    "Or",
    "Predicate",
    "all_of",
    "any_of",
    "as_predicate",
    "check_depth",
    "col",
    "names_in",
    "negate",
]

OPERATORS: Final = ("=", "<>", "<", "<=", ">", ">=")
# A column of such a name is written in double quotes.
RESERVED: Final = frozenset(
    "AND OR NOT IN IS NULL LIKE BETWEEN ESCAPE TRUE FALSE CASE WHEN THEN ELSE END".split()
)
TREE_DEPTH_MAX: Final = 220  # a text of DEPTH_MAX parentheses has at most two levels each
_PLAIN_NAME: Final = re.compile(r"[^\W\d]\w*")


class Predicate:
    """A condition on a row. Combine with & | ~; `str()` is its SQL text, which parses to an equal predicate."""

    def __and__(self, other: Any) -> Predicate:
        return all_of((self, as_predicate(other)))

    def __or__(self, other: Any) -> Predicate:
        return any_of((self, as_predicate(other)))

    __rand__ = __and__
    __ror__ = __or__

    def __invert__(self) -> Predicate:
        return negate(self)

    def __bool__(self) -> NoReturn:
        raise InvalidArgumentError(
            f"the predicate {self} is not true or false by itself; combine predicates with & | ~ in parentheses, "
            "not with and, or, not or a chain of comparisons"
        )

    def __str__(self) -> str:
        check_depth(self)
        return _to_sql(self)


@compared_as_tuples
@dataclass(frozen=True)
class Compare(Predicate):
    """column op value. With None it is NULL for every row."""

    column: str
    op: str
    value: Literal


@dataclass(frozen=True)
class CompareColumns(Predicate):
    """left op right, two columns of one row."""

    left: str
    op: str
    right: str


@dataclass(frozen=True, eq=False)
class InList(Predicate):
    """column IN (values). None among them makes every row that matches no other value NULL, as in SQL.

    values: an Arrow array stands for many literals of one kind: see `nyala.schema.value_lists`.
    """

    column: str
    values: tuple[Literal, ...] | pa.Array

    @property
    def literals(self) -> tuple[Literal, ...]:
        """The values one by one."""
        return self.values if isinstance(self.values, tuple) else literals_of(self.values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, InList):
            return NotImplemented
        if self.column != other.column or len(self.values) != len(other.values):
            return False
        if isinstance(self.values, pa.Array) and isinstance(other.values, pa.Array):
            if self.values.equals(other.values):
                return True
        return self.literals == other.literals  # an array with NaN in it does not equal itself

    def __hash__(self) -> int:
        return hash((self.column, len(self.values)))


@dataclass(frozen=True)
class IsNull(Predicate):
    """column IS [NOT] NULL. Never NULL itself."""

    column: str
    negated: bool = False


@dataclass(frozen=True)
class Like(Predicate):
    """column [NOT] LIKE pattern: % is any text, _ one character, `escape` makes the next one ordinary."""

    column: str
    pattern: str
    negated: bool = False
    escape: str | None = None


@dataclass(frozen=True)
class Constant(Predicate):
    """TRUE, FALSE, or with None NULL."""

    value: bool | None


@dataclass(frozen=True)
class And(Predicate):
    """All parts are true; FALSE wins over NULL."""

    parts: tuple[Predicate, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", _flat(And, self.parts))  # N3


@dataclass(frozen=True)
class Or(Predicate):
    """One part is true; TRUE wins over NULL."""

    parts: tuple[Predicate, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", _flat(Or, self.parts))  # N3


@dataclass(frozen=True)
class Not(Predicate):
    """The part is false; NULL stays NULL."""

    part: Predicate


@dataclass(frozen=True, eq=False)
class ArrowExpression(Predicate):
    """A pyarrow.compute.Expression: evaluated exactly, by Arrow's own meaning of it, but prunes nothing."""

    expression: pc.Expression

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArrowExpression) and bool(self.expression.equals(other.expression))

    def __hash__(self) -> int:
        return hash(str(self.expression))


def _flat(kind: type[And] | type[Or], parts: Iterable[Predicate]) -> tuple[Predicate, ...]:
    flat: list[Predicate] = []
    for part in parts:
        if isinstance(part, kind):
            flat.extend(part.parts)
        else:
            flat.append(part)
    return tuple(flat)


def all_of(parts: Iterable[Predicate]) -> Predicate:
    """AND of the parts: TRUE of none, the part itself of one."""
    flat = _flat(And, parts)
    return flat[0] if len(flat) == 1 else And(flat) if flat else Constant(True)


def any_of(parts: Iterable[Predicate]) -> Predicate:
    """OR of the parts: FALSE of none, the part itself of one."""
    flat = _flat(Or, parts)
    return flat[0] if len(flat) == 1 else Or(flat) if flat else Constant(False)


def negate(part: Predicate) -> Predicate:
    return part.part if isinstance(part, Not) else Not(part)


# --- col() ------------------------------------------------------------------------------------------


class ColumnRef:
    """A column in a predicate under construction: col("x") > 5, col("x") == col("y"), col("flag").

    Standing alone it is the condition that a bool column is true.
    """

    __slots__ = ("name",)
    __array_ufunc__ = None  # so that NumPy leaves np.int64(5) < col("x") to us
    __hash__ = None  # type: ignore[assignment]  # == builds a predicate, so a set could not tell columns apart

    def __init__(self, name: str) -> None:
        self.name = name

    def _compare(self, op: str, other: Any) -> Predicate:
        if isinstance(other, ColumnRef):
            return CompareColumns(self.name, op, other.name)
        if isinstance(other, Predicate):
            raise InvalidArgumentError(f"col({self.name!r}) {op} {other}: a condition is not a value")
        return Compare(self.name, op, _given(self.name, other))

    def __eq__(self, other: object) -> Predicate:  # type: ignore[override]
        return self._compare("=", other)

    def __ne__(self, other: object) -> Predicate:  # type: ignore[override]
        return self._compare("<>", other)

    def __lt__(self, other: Any) -> Predicate:
        return self._compare("<", other)

    def __le__(self, other: Any) -> Predicate:
        return self._compare("<=", other)

    def __gt__(self, other: Any) -> Predicate:
        return self._compare(">", other)

    def __ge__(self, other: Any) -> Predicate:
        return self._compare(">=", other)

    def isin(self, values: Iterable[Any]) -> Predicate:
        """Equal to one of the values; of no value, for no row."""
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise InvalidArgumentError(f"col({self.name!r}).isin() takes a list of values, not {values!r}")
        array = as_array(values)
        if array is not None and not array.null_count:
            return InList(self.name, array)
        return InList(self.name, tuple(_given(self.name, value) for value in values))

    def between(self, lower: Any, upper: Any) -> Predicate:
        """lower <= column <= upper: both bounds belong to it, as in SQL."""
        return all_of((self._compare(">=", lower), self._compare("<=", upper)))

    def is_null(self) -> Predicate:
        return IsNull(self.name)

    def is_not_null(self) -> Predicate:
        return IsNull(self.name, negated=True)

    def like(self, pattern: str, escape: str | None = None) -> Predicate:
        """SQL's LIKE: % is any text, _ any one character, and what follows `escape` stands for itself."""
        for text in (pattern, "" if escape is None else escape):
            _check_text(text, f"col({self.name!r}).like()")
        return Like(self.name, pattern, escape=escape)

    def __and__(self, other: Any) -> Predicate:
        return all_of((as_predicate(self), as_predicate(other)))

    def __or__(self, other: Any) -> Predicate:
        return any_of((as_predicate(self), as_predicate(other)))

    # Of `col("a") > 0 & col("b") > 1`, where & comes first.
    def __rand__(self, other: Any) -> Predicate:
        return all_of((as_predicate(other), as_predicate(self)))

    def __ror__(self, other: Any) -> Predicate:
        return any_of((as_predicate(other), as_predicate(self)))

    def __invert__(self) -> Predicate:
        return ~as_predicate(self)

    def _no_arithmetic(self, *_: Any) -> NoReturn:
        raise InvalidArgumentError(
            f"col({self.name!r}) is not calculated with: a predicate compares columns with constants and with each "
            f"other, such as col({self.name!r}) > 5; to change rows, write the expression with nyala.expr, "
            f"update(set={{{self.name!r}: nyala.expr({name_to_sql(self.name) + ' * 2'!r})}}, where=…)"
        )

    __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = _no_arithmetic
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = _no_arithmetic
    __neg__ = __pos__ = __abs__ = _no_arithmetic

    def __bool__(self) -> NoReturn:
        raise InvalidArgumentError(
            f"col({self.name!r}) has no value by itself; combine conditions with & | ~ in parentheses"
        )

    def __repr__(self) -> str:
        return f"col({self.name!r})"


def col(name: str) -> ColumnRef:
    """A column, to build a predicate with: `col("time") >= 5`, `col("host").isin(["a", "b"]) & ~col("done")`."""
    _check_text(name, "col()")
    return ColumnRef(name)


def _check_text(value: Any, where: str) -> None:
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{where} takes a text, not {value!r}")


def _given(column: str, value: Any) -> Literal:
    literal = normalise(value)
    if literal is None:
        # NULL equals nothing, so this would select no row; nobody who writes it in Python means that.
        raise InvalidArgumentError(
            f"col({column!r}) compared with {value!r} matches no row, for NULL equals nothing; "
            "use .is_null() or .is_not_null()"
        )
    return literal


def as_predicate(value: Any) -> Predicate:
    """What stands on one side of & or |. Raises: InvalidArgumentError for what is no condition."""
    if isinstance(value, Predicate):
        return value
    if isinstance(value, ColumnRef):
        return Compare(value.name, "=", True)
    if isinstance(value, pc.Expression):
        return ArrowExpression(value)
    raise InvalidArgumentError(
        f"{value!r} is no condition; put comparisons in parentheses: (col('a') == 1) & (col('b') == 2)"
    )


# --- text -------------------------------------------------------------------------------------------


def check_depth(predicate: Predicate) -> None:
    """Raises: InvalidArgumentError for a tree too deep to be walked by recursion. Walks by levels itself."""
    level, depth = [predicate], 0
    while level:
        depth += 1
        if depth > TREE_DEPTH_MAX:
            raise InvalidArgumentError(
                f"the predicate nests more than {TREE_DEPTH_MAX} levels deep; flatten it"
            )
        level = [
            inner
            for node in level
            for inner in (
                node.parts if isinstance(node, And | Or) else (node.part,) if isinstance(node, Not) else ()
            )
        ]


def names_in(node: Predicate) -> frozenset[str]:
    """The columns that a tree names; those of an ArrowExpression are not known here."""
    match node:
        case And(parts) | Or(parts):
            return frozenset().union(*map(names_in, parts))
        case Not(part):
            return names_in(part)
        case CompareColumns(left, _, right):
            return frozenset((left, right))
        case Compare(column) | InList(column) | IsNull(column) | Like(column):
            return frozenset((column,))
    return frozenset()


def name_to_sql(name: str) -> str:
    """A column's name as text: in double quotes where it is no plain word."""
    if _PLAIN_NAME.fullmatch(name) and name.upper() not in RESERVED:
        return name
    return '"' + name.replace('"', '""') + '"'


def literal_to_sql(value: Literal) -> str:
    """A literal as text that the parser reads back."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int | decimal.Decimal):
        return str(value)
    if isinstance(value, float):
        return f"DOUBLE '{'NaN' if value != value else 'Infinity' if value > 0 else '-Infinity'}'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, dt.datetime):
        return f"TIMESTAMP '{iso_text(value)}'"
    if isinstance(value, dt.date):
        return f"DATE '{value.isoformat()}'"
    return "'" + value.replace("'", "''") + "'"


def _to_sql(node: Predicate) -> str:
    match node:
        case Compare(column, op, value):
            return f"{name_to_sql(column)} {op} {literal_to_sql(value)}"
        case CompareColumns(left, op, right):
            return f"{name_to_sql(left)} {op} {name_to_sql(right)}"
        case InList(column) as listed:
            return f"{name_to_sql(column)} IN ({', '.join(map(literal_to_sql, listed.literals))})"
        case Not(InList(column) as listed):
            return f"{name_to_sql(column)} NOT IN ({', '.join(map(literal_to_sql, listed.literals))})"
        case IsNull(column, negated):
            return f"{name_to_sql(column)} IS {'NOT ' if negated else ''}NULL"
        case Like(column, pattern, negated, escape):
            ending = "" if escape is None else f" ESCAPE {literal_to_sql(escape)}"
            return f"{name_to_sql(column)} {'NOT ' if negated else ''}LIKE {literal_to_sql(pattern)}{ending}"
        case Constant(value):
            return literal_to_sql(value)
        case And(parts):
            return " AND ".join(_in_parentheses(part, Or) for part in parts) or "TRUE"
        case Or(parts):
            return " OR ".join(_in_parentheses(part, And) for part in parts) or "FALSE"
        case Not(part):
            return f"NOT {_in_parentheses(part, And, Or)}"
        case ArrowExpression(expression):
            return f"<arrow expression {expression}>"
    raise InvalidArgumentError(f"{type(node).__name__} is no predicate of Nyala's")


def _in_parentheses(node: Predicate, *kinds: type) -> str:
    text = _to_sql(node)
    return f"({text})" if isinstance(node, kinds) else text
