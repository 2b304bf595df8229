"""Parses the SQL text of a condition or expression to a tree (`nyala.schema.expressions.nodes`).

    expression :=  value { operator value }                 with the precedence of `nodes.LEVELS`
    operator   :=  OR | AND | = == <> != < <= > >= | || | + - | * / %
                 | IS [NOT] (NULL | TRUE | FALSE | UNKNOWN | DISTINCT FROM)
                 | [NOT] IN | [NOT] BETWEEN | [NOT] LIKE | [NOT] ILIKE
    value      :=  column | literal | parameter | ( expression ) | ( value, value, … ) | NOT value | - value
                 | function ( … ) | EXTRACT ( field FROM value ) | CASE … END
                 | CAST ( value AS type ) | value :: type
    literal    :=  number | 'string' | X'hex' | DATE 'string' | TIMESTAMP 'string'
                 | TRUE | FALSE | NULL | DOUBLE 'NaN' | DOUBLE 'Infinity' | DOUBLE '-Infinity'
    parameter  :=  ? | :name | $name                        replaced by a value of `params`

Braces mean any number of times, brackets an optional part, | a choice. Keywords may be in upper or
lower case; column names are compared exactly. A name in `nodes.RESERVED`, or one that is not a
plain word, is written in double quotes. BETWEEN, IS DISTINCT FROM and comparisons of rows become
trees of =, <, AND, OR and IS TRUE. Without ESCAPE, a LIKE pattern has no escape character, as in
the standard and in DuckDB.

The method is precedence climbing: `_Parser.expression` parses operators that bind at least as
strongly as a level.

Source: SQL:2016 part 2, 8.1 to 8.6, 6.12, 6.13 and 6.39; docs/how-to/expressions.md.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

from nyala.errors import InvalidArgumentError, SchemaError
from nyala.schema.expressions import literals
from nyala.schema.expressions.functions import FUNCTIONS
from nyala.schema.expressions.literals import (
    parse_date,
    parse_special_float,
    parse_timestamp,
    quote,
    to_literal,
)
from nyala.schema.expressions.nodes import (
    LEVEL_AND,
    LEVEL_COMPARE,
    LEVEL_IN,
    LEVEL_IS,
    LEVEL_NOT,
    LEVEL_OR,
    LEVEL_SIGN,
    LEVELS,
    RESERVED,
    Call,
    Case,
    Cast,
    Column,
    Expr,
    InList,
    IsNull,
    IsTrue,
    Like,
    Literal,
    Node,
    Row,
    RowIn,
    all_of,
    any_of,
    compare,
    is_distinct,
    negate,
)
from nyala.schema.expressions.tokens import TEXT_LENGTH_MAX, Token, TokenStream, syntax_error
from nyala.schema.expressions.value_lists import as_array
from nyala.schema.types import parse_type
from nyala.suggestion import nearest

__all__ = ["Parameters", "expr", "parse", "parse_predicate"]

Parameters = Sequence[Any] | Mapping[str, Any] | None

STEPS_MAX: Final = 150
_OPS: Final = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_JOINS: Final = {"AND": LEVEL_AND, "OR": LEVEL_OR}
# What to write in place of the operators of other systems.
_REGEX: Final = (
    "for regular expressions use pyarrow: import pyarrow.compute as pc, "
    "where=pc.match_substring_regex(pc.field('a'), '^x.*')"
)
_OTHER_SYSTEMS: Final = {
    "CONTAINS": "write contains(a, 'x')",
    "STARTSWITH": "write a LIKE 'x%'",
    "ENDSWITH": "write a LIKE '%x'",
    **dict.fromkeys(("REGEXP", "RLIKE", "SIMILAR", "GLOB", "MATCHES"), _REGEX),
}
# The types of literals such as DATE '2026-01-31'.
_TYPED: Final = ("DATE", "TIMESTAMP", "DOUBLE")
# SQL types that the API names otherwise.
_SQL_TYPES: Final = {
    "int": "int32",
    "integer": "int32",
    "varchar": "string",
    "numeric": "decimal",
    "bytea": "binary",
}
_STATEMENT: Final = re.compile(r"\s*(where|select)\b", re.IGNORECASE)


def parse_predicate(
    text: str,
    parameters: Parameters = None,
    *,
    length_max: int = TEXT_LENGTH_MAX,
    qualifiers: Sequence[str] = (),
) -> Node:
    """Parse the SQL text of a condition. Does not check that the columns exist.

    qualifiers: names that may precede a column, as in `new.n`. The tree then has a column called
    "new.n".
    Raises: InvalidArgumentError. Its message shows the text, the place of the error, and what was
    expected there.
    """
    return _parse(text, parameters, length_max, is_condition=True, qualifiers=qualifiers)


def parse(text: str, parameters: Parameters = None) -> Node:
    """Parse the SQL text of a condition or of a value; see `parse_predicate`."""
    return _parse(text, parameters, TEXT_LENGTH_MAX, is_condition=False)


def expr(text: str, params: Parameters = None) -> Expr:
    """Return an SQL expression over the columns of a row, for `update(set=)` and for conditions.

    Parameters
    ----------
    text
        Arithmetic, functions, CASE, CAST or a condition. docs/how-to/expressions.md describes the
        language.
    params
        Values for `?` (a list) or for `:name` and `$name` (a dict) in the text.

    Raises
    ------
    InvalidArgumentError
        The text is not a valid expression, or its parameters do not match `params`.

    Examples
    --------
    >>> expr("n + ?", params=[1])
    expr('n + 1')
    >>> str(expr("upper(name)") == "ANNA")
    "upper(name) = 'ANNA'"
    """
    if not isinstance(text, str):
        raise InvalidArgumentError(f"nyala.expr() expects the text of an expression, got {quote(text)}")
    return Expr(parse(text, params))


def _parse(
    text: str,
    parameters: Parameters,
    length_max: int,
    *,
    is_condition: bool,
    qualifiers: Sequence[str] = (),
) -> Node:
    stream = TokenStream(text, length_max)
    if stream.token.kind == "end":
        raise InvalidArgumentError(
            "the predicate is empty; TRUE selects every row" if is_condition else "the expression is empty"
        )
    parser = _Parser(stream, parameters, qualifiers)
    tree = parser.condition() if is_condition else parser.expression()
    if stream.token.kind != "end":
        parser.fail_after("AND, OR or the end" if is_condition else "an operator or the end")
    parser.check_all_used()
    return tree


class _Parser:
    def __init__(self, stream: TokenStream, parameters: Parameters, qualifiers: Sequence[str] = ()) -> None:
        if isinstance(parameters, str | bytes) or not isinstance(parameters, Sequence | Mapping | None):
            raise InvalidArgumentError(
                f"params must be a list of values for ?, or a dict for :name, got {quote(parameters)}"
            )
        self._stream = stream
        self._parameters = parameters
        self._qualifiers = qualifiers
        self._used: set[int | str] = set()  # numbers or names of parameters

    def fail_after(self, expected: str) -> NoReturn:
        """Raise the syntax error "expected …, found …" at the current token, with advice.

        The current token follows an expression. The advice is about common mistakes there.
        """
        source, token = self._stream.source, self._stream.token
        if token.kind != "end" and (found := _STATEMENT.match(source)) is not None:
            select = "pass only the condition, without SELECT … WHERE, or use db.sql"
            expected += f" ({'remove the word WHERE' if found[1].upper() == 'WHERE' else select})"
        elif token.is_op(*_OPS) and "||" in source[: token.position]:
            expected += " (join conditions with OR)"
        elif token.is_op(*_OPS):
            expected += " (comparisons do not chain; write 1 < x AND x < 5)"
        elif token.kind != "end" and source[: token.position].endswith("'"):
            expected += " (write a quote in a text twice, 'it''s')"
        self._stream.fail(expected)

    # --- parameters -----------------------------------------------------------------------------

    def check_all_used(self) -> None:
        """Raise InvalidArgumentError if `params` has a value that the text does not use."""
        params = self._parameters or ()
        names = params if isinstance(params, Mapping) else range(len(params))
        left = [name for name in names if name not in self._used]
        if left and isinstance(params, Mapping):
            raise InvalidArgumentError(
                f"params contains {str(left[0])[:40]!r}, but the text has no such parameter"
            )
        if left:
            raise InvalidArgumentError(
                f"params has {len(params)} values, but the text has {left[0]} question marks (?)"
            )

    def _parameter(self) -> Any:
        """Return the value of the parameter at the current token."""
        stream, params = self._stream, self._parameters
        token = stream.token
        if token.text == "?":
            place = len(self._used)
            if isinstance(params, Mapping) or params is None or place >= len(params):
                count = len(params) if isinstance(params, Sequence) else "no"
                stream.fail(f"a value for each ? (params=[…] has {count} values)")
            self._used.add(place)
            stream.advance()
            return params[place]
        name = str(token.value)
        if not isinstance(params, Mapping) or name not in params:
            stream.fail(f"a parameter with a value in params={{…}} ({name[:40]!r} is missing)")
        self._used.add(name)
        stream.advance()
        return params[name]

    # --- operators ------------------------------------------------------------------------------

    def condition(self, least: int = 0) -> Node:
        token = self._stream.token
        return self._as_condition(self.expression(least), token)

    def _as_condition(self, node: Node, token: Token) -> Node:
        if isinstance(node, Literal) and not isinstance(node.value, bool | None):
            self._stream.fail(f"an operator such as = or IN after {token.text[:30]}")
        return node

    def expression(self, least: int = 0) -> Node:
        """Parse operators of the precedence `least` or higher, and their operands."""
        stream = self._stream
        first = stream.token
        if least <= LEVEL_NOT and first.is_keyword("NOT"):
            nots = 0
            while stream.accept_keyword("NOT"):  # not by recursion, which would fail for a thousand NOTs
                nots += 1
            inner = self.condition(LEVEL_NOT + 1)
            left = negate(inner) if nots % 2 else inner
        else:
            left = self._value()
        steps = 0
        while True:
            token = stream.token
            if token.kind == "op":
                level = LEVELS.get(token.text, -1)
                if level >= max(least, 0):
                    steps += 1
                    if steps > STEPS_MAX:
                        raise InvalidArgumentError(
                            f"the expression has more than {STEPS_MAX} operators in a row; shorten it"
                        )
                    stream.advance()
                    left = Call(token.text, (left, self.expression(level + 1)))
                elif token.text in _OPS and least <= LEVEL_COMPARE:
                    left = self._comparison(left, first)
                elif token.text == "::":
                    stream.advance()
                    left = Cast(left, self._type())
                else:
                    return left
                continue
            word = token.text.upper() if token.kind == "name" else ""
            if word in _JOINS:
                level = _JOINS[word]
                if level < least:
                    return left
                parts = [self._as_condition(left, first)]
                while stream.accept_keyword(word):
                    parts.append(self.condition(level + 1))
                left = all_of(parts) if word == "AND" else any_of(parts)
            elif word == "IS" and least <= LEVEL_IS:
                stream.advance()
                left = self._is(left)
            elif word and least <= LEVEL_IN and (found := self._word_operator(left)) is not None:
                left = found
            else:
                return left

    def _comparison(self, left: Node, first: Token) -> Node:
        stream = self._stream
        op = stream.advance()
        right_token = stream.token
        if right_token.kind == "end":
            stream.fail(f"a value after {op.text}")
        right = self.expression(LEVEL_COMPARE + 1)
        if stream.token.is_op(*_OPS):
            self.fail_after("AND, OR or the end")
        if isinstance(left, Row) != isinstance(right, Row):
            stream.fail("two rows of values, or two values", right_token)
        return compare(left, _OPS[op.text], right)

    def _is(self, left: Node) -> Node:
        stream = self._stream
        negated = stream.accept_keyword("NOT") is not None
        if token := stream.accept_keyword("TRUE", "FALSE"):
            found: Node = IsTrue(left, token.is_keyword("TRUE"))
            return negate(found) if negated else found
        if stream.accept_keyword("DISTINCT"):
            stream.expect_keyword("FROM", "FROM after IS DISTINCT")
            found = is_distinct(left, self.expression(LEVEL_COMPARE + 1))
            return negate(found) if negated else found
        if not stream.accept_keyword("UNKNOWN"):
            meant = " (write NULL for None)" if stream.token.is_keyword("NONE") else ""
            stream.expect_keyword("NULL", f"NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM{meant}")
        return IsNull(left, negated)

    def _word_operator(self, left: Node) -> Node | None:
        """Parse [NOT] IN, BETWEEN, LIKE or ILIKE and what follows; None if the current token is
        none of them.
        """
        stream = self._stream
        negated = stream.token.is_keyword("NOT")
        word = stream.peek() if negated else stream.token
        if not word.is_keyword("IN", "BETWEEN", "LIKE", "ILIKE"):
            if word.kind == "name" and word.text.upper() in _OTHER_SYSTEMS:
                stream.fail(f"an operator such as = or LIKE ({_OTHER_SYSTEMS[word.text.upper()]})", word)
            return None
        if negated:
            stream.advance()
        stream.advance()
        if word.is_keyword("LIKE", "ILIKE"):
            return self._like(left, negated, word)
        if word.is_keyword("IN"):
            found = self._in(left)
        else:
            lower = self.expression(LEVEL_IN + 1)
            stream.expect_keyword("AND", "AND between the two bounds of BETWEEN")
            upper = self.expression(LEVEL_IN + 1)
            found = all_of((compare(left, ">=", lower), compare(left, "<=", upper)))
        return negate(found) if negated else found

    def _in(self, left: Node) -> Node:
        stream = self._stream
        if stream.token.kind == "param":
            token = stream.token
            values = self._parameter()
            if isinstance(left, Row) or isinstance(values, str | bytes) or not isinstance(values, Iterable):
                stream.fail("a parameter after IN that is a list of values", token)
            array = as_array(values)
            return InList(left, tuple(to_literal(value) for value in values) if array is None else array)
        stream.expect_op("(", "'(' after IN")
        if stream.token.is_keyword("SELECT"):
            stream.fail("a literal (subqueries are for db.sql)")
        items: list[Node] = []
        while not (stream.token.is_op(")") and not items):
            token = stream.token
            if token.kind == "quoted":
                stream.fail("a value (text takes single quotes, column names take double quotes)")
            if token.kind in ("number", "string") and stream.peek().is_op(",", ")"):  # the common case
                items.append(Literal(stream.advance().value))
            else:
                items.append(self.expression(LEVEL_IN + 1))
            if isinstance(left, Row) != isinstance(items[-1], Row):
                stream.fail("a row of values such as (1, 2)" if isinstance(left, Row) else "a value", token)
            if not stream.accept_op(","):
                break
        stream.expect_op(")", "',' or ')' in the list")
        if isinstance(left, Row):
            return _rows_in(left, items)
        if all(isinstance(item, Literal) for item in items):
            return InList(left, tuple(item.value for item in items if isinstance(item, Literal)))
        return any_of(compare(left, "=", item) for item in items)

    def _like(self, left: Node, negated: bool, word: Token) -> Node:
        stream = self._stream
        pattern = self._literal_text("a pattern in single quotes after LIKE")
        escape: str | None = None
        if stream.accept_keyword("ESCAPE"):
            ending = stream.token
            escape = self._literal_text("one character in single quotes after ESCAPE")
            if escape is None or len(escape) != 1:
                stream.fail("one character in single quotes after ESCAPE", ending)
        if pattern is None:
            return Literal(None)
        return Like(left, pattern, negated, escape, word.is_keyword("ILIKE"))

    def _literal_text(self, expected: str) -> str | None:
        token = self._stream.token
        value: Any = None
        if token.kind == "param":
            value = self._parameter()
        elif token.kind == "string":
            value = self._stream.advance().value
        elif not self._stream.accept_keyword("NULL"):
            self._stream.fail(expected, token)
        if not isinstance(value, str | None):
            self._stream.fail(expected, token)
        return value

    # --- values ---------------------------------------------------------------------------------

    def _value(self) -> Node:
        stream = self._stream
        token = stream.token
        if token.kind in ("number", "string", "binary"):
            return Literal(stream.advance().value)
        if token.kind == "quoted":
            stream.advance()
            return Column(str(token.value), quoted=True)
        if token.kind == "param":
            return Literal(to_literal(self._parameter()))
        if token.is_op("-", "+"):
            return self._signed()
        if stream.accept_op("("):
            return self._parenthesised()
        if token.kind != "name":
            stream.fail("a column, a value or '('")
        if token.is_keyword("TRUE", "FALSE", "NULL"):
            stream.advance()
            return Literal(None if token.is_keyword("NULL") else token.is_keyword("TRUE"))
        following = stream.peek()
        if token.is_keyword(*_TYPED) and following.kind == "string":
            return Literal(self._typed())
        if token.is_keyword("CASE"):
            return self._case()
        if token.text.upper() in RESERVED:
            stream.fail(f"a column, a value or '(' (write \"{token.text}\" for a column of that name)")
        if following.is_op("("):
            return self._call()
        if token.is_keyword("INTERVAL") and following.kind in ("string", "number"):
            stream.fail("a column or a value (intervals are not supported: compute the timestamp first)")
        stream.advance()
        if stream.token.is_op("."):
            return self._qualified(token)
        if self._qualifiers:
            stream.fail(f"{' or '.join(name + '.' for name in self._qualifiers)} before the column", token)
        return Column(token.text)

    def _qualified(self, qualifier: Token) -> Node:
        """Parse the dot and the column after a qualifier such as `new`."""
        stream = self._stream
        name = qualifier.text.lower()
        if name not in self._qualifiers:
            raise syntax_error(
                stream.source,
                stream.token.position,
                "unexpected character '.': write a column without its table",
            )
        stream.advance()
        if stream.token.kind not in ("name", "quoted"):
            stream.fail(f"a column after {name}.")
        return Column(f"{name}.{stream.advance().value!s}")

    def _signed(self) -> Node:
        stream = self._stream
        minuses = 0
        while sign := stream.accept_op("-", "+"):  # not by recursion, which would fail for a thousand signs
            minuses += sign.text == "-"
        inner = self.expression(LEVEL_SIGN)
        if not minuses % 2:
            return inner
        if isinstance(inner, Literal) and not isinstance(inner.value, bool):
            # Not `-value`, which rounds a Decimal to the 28 digits of the thread's context.
            if isinstance(inner.value, decimal.Decimal):
                return Literal(inner.value.copy_negate())
            if isinstance(inner.value, int | float):
                return Literal(-inner.value)
        return Call("-", (inner,))

    def _parenthesised(self) -> Node:
        stream = self._stream
        stream.enter()
        inner = self.expression()
        if stream.token.is_op(","):
            parts = [inner]
            while stream.accept_op(","):
                parts.append(self.expression())
            inner = Row(tuple(parts))
        if not stream.token.is_op(")"):
            self.fail_after("')', AND or OR")
        stream.advance()
        stream.leave()
        return inner

    def _call(self) -> Node:
        stream = self._stream
        token = stream.advance()
        name = token.text.lower()
        function = FUNCTIONS.get(name)
        if function is None and name not in ("cast", "extract", "try_cast"):
            near = nearest(name, FUNCTIONS)
            meant = (
                f"did you mean {near}?"
                if near
                else "see 'Conditions and expressions' in the documentation; db.sql has more functions"
            )
            stream.fail(f"a function ({meant})", token)
        stream.advance()
        stream.enter()
        if name == "extract":
            part = stream.advance().text.lower()
            stream.expect_keyword("FROM", "FROM after the field of EXTRACT")
            arguments: list[Node] = [self.expression()]
            if part not in FUNCTIONS:
                stream.fail("a field such as YEAR or HOUR", token)
            name = part
        elif function is None:
            if name == "try_cast":
                stream.fail("CAST (TRY_CAST is not supported)", token)
            value = self.expression()
            stream.expect_keyword("AS", "AS and a type")
            cast = Cast(value, self._type())
            stream.expect_op(")", "')'")
            stream.leave()
            return cast
        else:
            arguments = []
            while not (stream.token.is_op(")") and not arguments):
                arguments.append(self.expression())
                if not stream.accept_op(","):
                    break
        stream.expect_op(")", "',' or ')'")
        stream.leave()
        least, most = FUNCTIONS[name].least, FUNCTIONS[name].most
        if not least <= len(arguments) <= most:
            wanted = f"{least}" if least == most else f"{least} to {most}"
            stream.fail(f"{wanted} argument{'s' * (most != 1)} for {name}(), not {len(arguments)}", token)
        return Call(FUNCTIONS[name].name, tuple(arguments))

    def _type(self) -> str:
        """Parse the name of a type, such as decimal(15,2)."""
        stream = self._stream
        token = stream.token
        if token.kind != "name":
            stream.fail("a type such as int64, string or decimal(15,2)")
        text = stream.advance().text.lower()
        if stream.accept_op("("):
            numbers = [stream.advance().text]
            while stream.accept_op(","):
                numbers.append(stream.advance().text)
            stream.expect_op(")", "')' after the type")
            text = "string" if text == "varchar" else f"{_SQL_TYPES.get(text, text)}({','.join(numbers)})"
        try:
            return str(parse_type(_SQL_TYPES.get(text, text)))
        except SchemaError:
            stream.fail("a type such as int64, string or decimal(15,2)", token)

    def _case(self) -> Node:
        stream = self._stream
        stream.advance()
        stream.enter()
        subject = None if stream.token.is_keyword("WHEN") else self.expression()
        conditions: list[Node] = []
        values: list[Node] = []
        if not stream.token.is_keyword("WHEN"):
            stream.fail("WHEN")
        while stream.accept_keyword("WHEN"):
            if subject is None:
                conditions.append(self.condition())
            else:
                conditions.append(compare(subject, "=", self.expression(LEVEL_COMPARE + 1)))
            stream.expect_keyword("THEN", "THEN")
            values.append(self.expression())
        otherwise: Node = self.expression() if stream.accept_keyword("ELSE") else Literal(None)
        stream.expect_keyword("END", "WHEN, ELSE or END")
        stream.leave()
        return Case(tuple(conditions), tuple(values), otherwise)

    def _typed(self) -> literals.Literal:
        stream = self._stream
        word, token = stream.advance().text.upper(), stream.advance()
        text = str(token.value)
        if word == "DOUBLE":
            special = parse_special_float(text)
            if special is None:
                stream.fail(
                    "'NaN', 'Infinity' or '-Infinity' after DOUBLE (write other numbers without DOUBLE)",
                    token,
                )
            return special
        moment: literals.Literal = parse_date(text) if word == "DATE" else parse_timestamp(text)
        if moment is None:
            example = "2013-01-31" if word == "DATE" else "2013-01-31T23:59:59.5Z"
            stream.fail(f"an ISO {word.lower()} such as '{example}'", token)
        return moment


def _rows_in(left: Row, items: Sequence[Node]) -> Node:
    """Build the tree of (a, b) IN ((1, 2), …)."""
    rows = [item.parts for item in items if isinstance(item, Row)]
    if any(len(row) != len(left.parts) for row in rows):
        raise InvalidArgumentError(
            f"each row after IN must have {len(left.parts)} values, as in ({', '.join('?' * len(left.parts))})"
        )
    if all(isinstance(part, Literal) for row in rows for part in row):
        found = tuple(tuple(part.value for part in row if isinstance(part, Literal)) for row in rows)
        return RowIn(left.parts, found)
    return any_of(compare(left, "=", Row(row)) for row in rows)
