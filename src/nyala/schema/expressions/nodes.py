"""The syntax tree of conditions and expressions, and the Python operators that build it.

    (col("host") == "a") & (col("n") + 1 > 5)      host = 'a' AND n + 1 > 5
                          \\                        /    `parse` reads such a text, `str()` writes it
    And((
        Compare(Column("host"), "=", Literal("a")),
        Compare(Call("+", (Column("n"), Literal(1))), ">", Literal(5)),
    ))

The names in a tree need not be columns of a table: `nyala.schema.predicates.binding` checks that.

Invariants
    N1  Nodes are immutable and contain only names, literals, nodes, and Arrow arrays for long
        lists. They can be compared, hashed and converted to JSON.
    N2  parse(str(p)) == p for every tree p without an ArrowExpression, which has no text.
    N3  An And never contains an And, and an Or never an Or: a chain of a thousand terms is one flat
        node.

Conditions are combined with & | ~. The words `and`, `or` and `not`, and chained comparisons such as
1 < col("x") < 5, raise an error, because Python would silently drop one side.
Source: docs/how-to/expressions.md.
"""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, NoReturn

import pyarrow as pa

from nyala import compute as pc
from nyala.errors import InvalidArgumentError
from nyala.schema.equality import compared_as_tuples
from nyala.schema.expressions import literals
from nyala.schema.expressions.literals import iso_text, quote, to_literal
from nyala.schema.expressions.value_lists import as_array, literals_of

__all__ = [
    "OPERATORS",
    "RESERVED",
    "TREE_DEPTH_MAX",
    "And",
    "ArrowExpression",
    "Call",
    "Case",
    "Cast",
    "Column",
    "Compare",
    "Expr",
    "InList",
    "IsNull",
    "IsTrue",
    "Like",
    "Literal",
    "Node",
    "Not",
    "Or",
    "Row",
    "RowIn",
    "all_of",
    "any_of",
    "as_node",
    "check_depth",
    "children_of",
    "col",
    "column_names_in",
    "compare",
    "is_distinct",
    "map_children",
    "negate",
]

OPERATORS: Final = ("=", "<>", "<", "<=", ">", ">=")
# The operator after an exchange of both sides: 5 < x is x > 5.
FLIPPED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
# A column with one of these names is written in double quotes.
RESERVED: Final = frozenset(
    "AND OR NOT IN IS NULL LIKE BETWEEN ESCAPE TRUE FALSE CASE WHEN THEN ELSE END".split()
)
# The parser allows 100 nested parentheses (`tokens.DEPTH_MAX`), and each adds at most two levels to
# the tree.
TREE_DEPTH_MAX: Final = 220
_PLAIN_NAME: Final = re.compile(r"[^\W\d]\w*")


class _Combinable:
    """The operators & | ~ of conditions."""

    __slots__ = ()

    def __and__(self, other: Any) -> Node:
        return all_of((as_node(self), as_node(other)))

    def __or__(self, other: Any) -> Node:
        return any_of((as_node(self), as_node(other)))

    # Python calls the next two methods if the left operand has no such operator.
    def __rand__(self, other: Any) -> Node:
        return all_of((as_node(other), as_node(self)))

    def __ror__(self, other: Any) -> Node:
        return any_of((as_node(other), as_node(self)))

    def __invert__(self) -> Node:
        return negate(as_node(self))


class Node(_Combinable):
    """A condition on a row, or a value computed from a row. `str()` returns its SQL text."""

    def __bool__(self) -> NoReturn:
        raise InvalidArgumentError(
            f"the predicate {quote(str(self))} has no truth value in Python; combine predicates with & | ~ and "
            "parentheses, not with and, or, not or chained comparisons"
        )

    def __str__(self) -> str:
        check_depth(self)
        return _sql_and_level(self)[0]


@dataclass(frozen=True)
class Column(Node):
    """The value of a column.

    quoted: whether the SQL text has the name in double quotes. The user may then have meant a text,
            which needs single quotes.
    """

    name: str
    quoted: bool = field(default=False, compare=False)


@compared_as_tuples
@dataclass(frozen=True)
class Literal(Node):
    """A constant: the same value in every row."""

    value: literals.Literal


@dataclass(frozen=True)
class Compare(Node):
    """`left op right`; NULL if an operand is NULL. `compare` builds it, with a literal always on
    the right.
    """

    left: Node
    op: str
    right: Node


@dataclass(frozen=True, eq=False)
class InList(Node):
    """`part IN (values)`. If NULL is among the values, a part that equals none of them gives NULL,
    as in SQL.

    values: literals, or an Arrow array for many values of one kind
    (`nyala.schema.expressions.value_lists`).
    """

    part: Node
    values: tuple[literals.Literal, ...] | pa.Array

    @property
    def literals(self) -> tuple[literals.Literal, ...]:
        """The values as a tuple."""
        return self.values if isinstance(self.values, tuple) else literals_of(self.values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, InList):
            return NotImplemented
        if self.part != other.part or len(self.values) != len(other.values):
            return False
        if isinstance(self.values, pa.Array) and isinstance(other.values, pa.Array):
            if self.values.equals(other.values):
                return True
        return self.literals == other.literals  # arrays that contain NaN are never equal

    def __hash__(self) -> int:
        return hash((self.part, len(self.values)))


@dataclass(frozen=True)
class Row(Node):
    """`(a, b)`, one side of a comparison or IN while the parser works. A finished tree contains no
    Row.
    """

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class RowIn(Node):
    """`(a, b) IN ((1, 2), …)`."""

    parts: tuple[Node, ...]
    rows: tuple[tuple[literals.Literal, ...], ...]


@dataclass(frozen=True)
class IsNull(Node):
    """`part IS NULL`, or IS NOT NULL if `negated`. The result is never NULL."""

    part: Node
    negated: bool = False


@dataclass(frozen=True)
class IsTrue(Node):
    """`part IS TRUE`, or IS FALSE if `wanted` is False. The result is never NULL."""

    part: Node
    wanted: bool = True


@dataclass(frozen=True)
class Like(Node):
    """`part LIKE pattern`: % matches any text and _ one character. After the character `escape`
    both are literal.

    negated: NOT LIKE. any_case: ILIKE, which ignores case.
    """

    part: Node
    pattern: str
    negated: bool = False
    escape: str | None = None
    any_case: bool = False


@dataclass(frozen=True)
class And(Node):
    """AND: TRUE if all parts are TRUE, FALSE if one is FALSE, otherwise NULL."""

    parts: tuple[Node, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", _flat(And, self.parts))  # N3


@dataclass(frozen=True)
class Or(Node):
    """OR: TRUE if one part is TRUE, FALSE if all are FALSE, otherwise NULL."""

    parts: tuple[Node, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", _flat(Or, self.parts))  # N3


@dataclass(frozen=True)
class Not(Node):
    """NOT: TRUE if the part is FALSE, FALSE if it is TRUE, NULL if it is NULL."""

    part: Node


@dataclass(frozen=True)
class Call(Node):
    """An operator (+ - * / % ||, or - with one argument), or a function of
    `nyala.schema.expressions.functions`.
    """

    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True)
class Case(Node):
    """`CASE WHEN condition THEN value … ELSE otherwise END`."""

    conditions: tuple[Node, ...]
    values: tuple[Node, ...]
    otherwise: Node


@dataclass(frozen=True)
class Cast(Node):
    """`CAST(part AS type)`; the type is a name such as int64."""

    part: Node
    type: str


@dataclass(frozen=True, eq=False)
class ArrowExpression(Node):
    """A condition that the user gave as a pyarrow.compute.Expression."""

    expression: pc.Expression

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArrowExpression) and bool(self.expression.equals(other.expression))

    def __hash__(self) -> int:
        return hash(str(self.expression))


def _flat(kind: type[And] | type[Or], parts: Iterable[Node]) -> tuple[Node, ...]:
    flat: list[Node] = []
    for part in parts:
        if isinstance(part, kind):
            flat.extend(part.parts)
        else:
            flat.append(part)
    return tuple(flat)


def all_of(parts: Iterable[Node]) -> Node:
    """Return the AND of the parts. No parts give TRUE, a single part is returned unchanged."""
    flat = _flat(And, parts)
    return flat[0] if len(flat) == 1 else And(flat) if flat else Literal(True)


def any_of(parts: Iterable[Node]) -> Node:
    """Return the OR of the parts. No parts give FALSE, a single part is returned unchanged."""
    flat = _flat(Or, parts)
    return flat[0] if len(flat) == 1 else Or(flat) if flat else Literal(False)


def negate(part: Node) -> Node:
    return part.part if isinstance(part, Not) else Not(part)


def compare(left: Node | str, op: str, right: Any) -> Node:
    """Build `left op right`. A str on the left is a column name, and a value on the right is a
    literal.
    """
    a = Column(left) if isinstance(left, str) else left
    b = right if isinstance(right, Node) else Literal(right)
    if isinstance(a, Row) and isinstance(b, Row):
        return _compare_rows(a.parts, op, b.parts)
    if not isinstance(a, Literal):
        return Compare(a, op, b)
    if not isinstance(b, Literal):
        return Compare(b, FLIPPED.get(op, op), a)
    # Programs write conditions on two literals, such as 1 = 1.
    if a.value is None or b.value is None:
        return Literal(None)
    return (
        Literal(literals.compare_literals(a.value, op, b.value))
        if literals.are_comparable(a.value, b.value)
        else Compare(a, op, b)
    )


def _compare_rows(left: tuple[Node, ...], op: str, right: tuple[Node, ...]) -> Node:
    """Build a comparison of rows from comparisons of their elements.

    (a, b) < (1, 2) becomes a < 1 OR a = 1 AND b < 2.
    """
    if len(left) != len(right):
        raise InvalidArgumentError(f"cannot compare a row of {len(left)} values with a row of {len(right)}")
    if op in ("=", "<>"):
        equal = all_of(compare(a, "=", b) for a, b in zip(left, right, strict=True))
        return equal if op == "=" else negate(equal)
    last = len(left) - 1
    return any_of(
        all_of(
            (
                *(compare(a, "=", b) for a, b in zip(left[:position], right[:position], strict=True)),
                compare(left[position], op if position == last else op[0], right[position]),
            )
        )
        for position in range(len(left))
    )


def is_distinct(left: Node, right: Node) -> Node:
    """Build `left IS DISTINCT FROM right`: the values differ, and NULL equals NULL."""
    if isinstance(left, Literal):
        left, right = right, left
    if isinstance(right, Literal):
        return IsNull(left, True) if right.value is None else Not(IsTrue(compare(left, "=", right)))
    return Not(any_of((IsTrue(compare(left, "=", right)), all_of((IsNull(left), IsNull(right))))))


# --- walking a tree ---------------------------------------------------------------------------------


_FIELD_NAMES: Final = {
    kind: tuple(one.name for one in fields(kind))  # type: ignore[arg-type]  # every kind of node is a dataclass
    for kind in Node.__subclasses__()
}


def children_of(node: Node) -> Iterator[Node]:
    """Yield the children of a node, without their own children."""
    if isinstance(node, Column | Literal):
        return
    for name in _FIELD_NAMES[type(node)]:
        value = getattr(node, name)
        if isinstance(value, Node):
            yield value
        elif isinstance(value, tuple):
            yield from (part for part in value if isinstance(part, Node))


def map_children(node: Node, function: Callable[[Node], Node]) -> Node:
    """Return a node in which each child is replaced by the function's result for it."""
    changed: dict[str, Any] = {}
    for name in _FIELD_NAMES[type(node)]:
        value = getattr(node, name)
        if isinstance(value, Node):
            changed[name] = function(value)
        elif isinstance(value, tuple) and value and isinstance(value[0], Node):
            changed[name] = tuple(map(function, value))
    return replace(node, **changed) if changed else node  # type: ignore[type-var]


def check_depth(node: Node) -> None:
    """Raise InvalidArgumentError if the tree is so deep that recursive functions could fail."""
    level, depth = [node], 0
    while level:
        depth += 1
        if depth > TREE_DEPTH_MAX:
            raise InvalidArgumentError(
                f"the expression nests more than {TREE_DEPTH_MAX} levels deep; flatten it"
            )
        level = [inner for node in level for inner in children_of(node)]


def column_names_in(node: Node) -> frozenset[str]:
    """Return the names of the tree's columns, without those of pyarrow expressions in it."""
    if isinstance(node, Column):
        return frozenset((node.name,))
    return frozenset().union(*map(column_names_in, children_of(node)))


# --- col() and expr() -------------------------------------------------------------------------------


def _arithmetic(op: str, reverse: bool = False) -> Callable[[Expr, Any], Expr]:
    """Return the method of Expr for an operator. reverse: the Expr is the right operand."""

    def calculate(self: Expr, other: Any) -> Expr:
        operands = (self.node, self._operand(other, op))
        return Expr(Call(op, operands[::-1] if reverse else operands))

    return calculate


class Expr(_Combinable):
    """A column or a computed value, from which Python operators build conditions and further
    values.

    Comparisons such as col("x") > 5, and methods such as `isin` and `is_null`, return conditions.
    `&`, `|` and `~` combine conditions. Arithmetic such as col("n") * 2 + 1 returns another `Expr`.
    A bool value can be used as a condition.
    """

    __slots__ = ("node",)
    __array_ufunc__ = None  # for np.int64(5) < col("x"), NumPy then calls `Expr.__gt__`
    __hash__ = None  # type: ignore[assignment]  # == builds a condition, so sets and dicts cannot use it

    def __init__(self, node: Node) -> None:
        self.node = node

    def _compare(self, op: str, other: Any) -> Node:
        return compare(self.node, op, self._operand(other, op))

    def __eq__(self, other: object) -> Node:  # type: ignore[override]
        return self._compare("=", other)

    def __ne__(self, other: object) -> Node:  # type: ignore[override]
        return self._compare("<>", other)

    def __lt__(self, other: Any) -> Node:
        return self._compare("<", other)

    def __le__(self, other: Any) -> Node:
        return self._compare("<=", other)

    def __gt__(self, other: Any) -> Node:
        return self._compare(">", other)

    def __ge__(self, other: Any) -> Node:
        return self._compare(">=", other)

    def isin(self, values: Iterable[Any]) -> Node:
        """Whether the value equals one of `values`. An empty list matches no row."""
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise InvalidArgumentError(f"{self!r}.isin() expects a list of values, got {quote(values)}")
        array = as_array(values)
        if array is not None and not array.null_count:
            return InList(self.node, array)
        return InList(self.node, tuple(self._literal(value) for value in values))

    def between(self, lower: Any, upper: Any) -> Node:
        """Whether lower <= value <= upper, as BETWEEN in SQL."""
        return all_of((self._compare(">=", lower), self._compare("<=", upper)))

    def is_null(self) -> Node:
        return IsNull(self.node)

    def is_not_null(self) -> Node:
        return IsNull(self.node, negated=True)

    def is_distinct_from(self, other: Any) -> Node:
        """Whether the two values differ, where NULL equals NULL."""
        return is_distinct(self.node, Literal(None) if other is None else self._operand(other, "<>"))

    def like(self, pattern: str, escape: str | None = None) -> Node:
        """Whether the value matches an SQL pattern: % is any text, _ is one character.

        A % or _ after the character `escape` is an ordinary character.
        """
        return self._like(pattern, escape, False)

    def ilike(self, pattern: str, escape: str | None = None) -> Node:
        """Whether the value matches an SQL pattern, ignoring case.

        In the pattern, % is any text and _ is one character. A % or _ after the character `escape`
        is an ordinary character.
        """
        return self._like(pattern, escape, True)

    def _like(self, pattern: str, escape: str | None, any_case: bool) -> Node:
        for text in (pattern, "" if escape is None else escape):
            if not isinstance(text, str):
                raise InvalidArgumentError(f"{self!r}.like() expects a text, got {quote(text)}")
        return Like(self.node, pattern, False, escape, any_case)

    def cast(self, type: str) -> Expr:
        """Cast the value to another type: col("n").cast("double")."""
        return Expr(Cast(self.node, str(type)))

    def _operand(self, other: Any, op: str) -> Node:
        if isinstance(other, Expr):
            return other.node
        if isinstance(other, Node):
            raise InvalidArgumentError(
                f"{self!r} {op} {quote(str(other))}: an operand is a condition, not a value"
            )
        return Literal(self._literal(other))

    def _literal(self, value: Any) -> literals.Literal:
        literal = to_literal(value)
        if literal is None:
            # Nothing equals NULL, so the comparison would select no row and the user would not
            # notice.
            raise InvalidArgumentError(
                f"{self!r} compared with {value!r} never matches, because nothing equals NULL; "
                "use .is_null() or .is_not_null()"
            )
        return literal

    __add__, __radd__ = _arithmetic("+"), _arithmetic("+", reverse=True)
    __sub__, __rsub__ = _arithmetic("-"), _arithmetic("-", reverse=True)
    __mul__, __rmul__ = _arithmetic("*"), _arithmetic("*", reverse=True)
    __truediv__, __rtruediv__ = _arithmetic("/"), _arithmetic("/", reverse=True)
    __mod__, __rmod__ = _arithmetic("%"), _arithmetic("%", reverse=True)

    def __pos__(self) -> Expr:
        return self

    def __neg__(self) -> Expr:
        return Expr(Call("-", (self.node,)))

    def __abs__(self) -> Expr:
        return Expr(Call("abs", (self.node,)))

    def _unknown(self, *_: Any) -> NoReturn:
        raise InvalidArgumentError(
            f"{self!r}: // and ** are not supported; write nyala.expr('floor(a / b)') or nyala.expr('power(a, b)')"
        )

    __floordiv__ = __rfloordiv__ = __pow__ = __rpow__ = _unknown

    def __bool__(self) -> NoReturn:
        raise InvalidArgumentError(
            f"{self!r} has no truth value in Python; combine conditions with & | ~ and parentheses"
        )

    def __repr__(self) -> str:
        node = self.node
        return f"col({node.name!r})" if isinstance(node, Column) else f"expr({quote(str(node))})"


def col(name: str) -> Expr:
    """Return a column, from which Python operators build conditions and values.

    Parameters
    ----------
    name
        The column's name. It is looked up when a scan or write uses the expression.

    Raises
    ------
    InvalidArgumentError
        `name` is not text.

    Examples
    --------
    >>> str(col("time") >= 5)
    'time >= 5'
    >>> str(col("host").isin(["a", "b"]) & ~col("done"))
    "host IN ('a', 'b') AND NOT done"
    >>> col("n") + 1
    expr('n + 1')
    """
    if not isinstance(name, str):
        raise InvalidArgumentError(f"col() expects a column name, got {quote(name)}")
    return Expr(Column(name))


def as_node(value: Any) -> Node:
    """Return the tree of a condition or expression that a user gave. Raises: InvalidArgumentError
    for other objects.
    """
    if isinstance(value, Node):
        return value
    if isinstance(value, Expr):
        return value.node
    if isinstance(value, pc.Expression):
        return ArrowExpression(value)
    raise InvalidArgumentError(
        f"{quote(value)} is not a condition; put comparisons in parentheses: (col('a') == 1) & (col('b') == 2)"
    )


# --- text -------------------------------------------------------------------------------------------

# The precedence of operators: a higher level binds stronger. `a + b * c` needs no parentheses,
# because * is above +.
LEVEL_OR, LEVEL_AND, LEVEL_NOT, LEVEL_IS, LEVEL_COMPARE, LEVEL_IN = 1, 2, 3, 4, 5, 6
LEVELS: Final = {"||": 7, "+": 8, "-": 8, "*": 9, "/": 9, "%": 9}
LEVEL_SIGN: Final = 10
LEVEL_VALUE: Final = 11


def name_to_sql(name: str) -> str:
    """Return a column name as SQL text, in double quotes unless it is a plain word."""
    if _PLAIN_NAME.fullmatch(name) and name.upper() not in RESERVED:
        return name
    return '"' + name.replace('"', '""') + '"'


def literal_to_sql(value: literals.Literal) -> str:
    """Return a literal as SQL text that the parser reads back."""
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


def _list(values: Iterable[literals.Literal]) -> str:
    return f"({', '.join(map(literal_to_sql, values))})"


def _sql_and_level(node: Node) -> tuple[str, int]:
    """Return the SQL text of a node and the precedence of its outermost operator."""
    match node:
        case Column(name):
            return name_to_sql(name), LEVEL_VALUE
        case Literal(value):
            text = literal_to_sql(value)
            return text, LEVEL_SIGN if text.startswith("-") else LEVEL_VALUE
        case Compare(left, op, right):
            return f"{_sql(left, LEVEL_IN)} {op} {_sql(right, LEVEL_IN)}", LEVEL_COMPARE
        case InList(part) as listed:
            return f"{_sql(part, LEVEL_IN + 1)} IN {_list(listed.literals)}", LEVEL_IN
        case Not(InList(part) as listed):
            return f"{_sql(part, LEVEL_IN + 1)} NOT IN {_list(listed.literals)}", LEVEL_IN
        case RowIn(parts, rows):
            return (
                f"({', '.join(_sql(part, 0) for part in parts)}) IN ({', '.join(map(_list, rows))})",
                LEVEL_IN,
            )
        case Row(parts):
            return f"({', '.join(_sql(part, 0) for part in parts)})", LEVEL_VALUE
        case IsNull(part, negated):
            return f"{_sql(part, LEVEL_IN)} IS {'NOT ' if negated else ''}NULL", LEVEL_IS
        case IsTrue(part, wanted):
            return f"{_sql(part, LEVEL_IN)} IS {literal_to_sql(wanted)}", LEVEL_IS
        case Like(part, pattern, negated, escape, any_case):
            word = ("NOT " if negated else "") + ("ILIKE" if any_case else "LIKE")
            ending = "" if escape is None else f" ESCAPE {literal_to_sql(escape)}"
            return f"{_sql(part, LEVEL_IN + 1)} {word} {literal_to_sql(pattern)}{ending}", LEVEL_IN
        case And(parts):
            return " AND ".join(_sql(part, LEVEL_NOT) for part in parts) or "TRUE", LEVEL_AND
        case Or(parts):
            return " OR ".join(_sql(part, LEVEL_NOT) for part in parts) or "FALSE", LEVEL_OR
        case Not(part):
            return f"NOT {_sql(part, LEVEL_IS)}", LEVEL_NOT
        case Call("-", (part,)):
            return f"-{_sql(part, LEVEL_VALUE)}", LEVEL_SIGN
        case Call(op, (left, right)) if op in LEVELS:
            level = LEVELS[op]
            return f"{_sql(left, level)} {op} {_sql(right, level + 1)}", level
        case Call(name, arguments):
            return f"{name}({', '.join(_sql(part, 0) for part in arguments)})", LEVEL_VALUE
        case Case(conditions, values, otherwise):
            whens = (
                f"WHEN {_sql(condition, 0)} THEN {_sql(value, 0)} "
                for condition, value in zip(conditions, values, strict=True)
            )
            ending = "" if otherwise == Literal(None) else f"ELSE {_sql(otherwise, 0)} "
            return f"CASE {''.join(whens)}{ending}END", LEVEL_VALUE
        case Cast(part, spec):
            return f"CAST({_sql(part, 0)} AS {spec})", LEVEL_VALUE
        case ArrowExpression(expression):
            return f"<arrow expression {expression}>", LEVEL_VALUE
    raise InvalidArgumentError(f"{type(node).__name__} is not a Nyala predicate")


def _sql(node: Node, least: int) -> str:
    """Return the SQL text of a node, in parentheses if its precedence is below `least`."""
    text, level = _sql_and_level(node)
    return text if level >= least else f"({text})"
