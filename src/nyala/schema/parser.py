"""The text of a predicate as a syntax tree: recursive descent, one method per level of precedence.

    condition  :=  conjunct { OR conjunct }
    conjunct   :=  negation { AND negation }
    negation   :=  { NOT } comparison
    comparison :=  operand [ op operand | IS [NOT] NULL | [NOT] IN ( literal, … )
                           | [NOT] BETWEEN operand AND operand | [NOT] LIKE string [ESCAPE string] ]
    operand    :=  column | literal | ( condition )
    literal    :=  number | -number | 'string' | X'hex' | DATE 'string' | TIMESTAMP 'string' | TRUE | FALSE | NULL
                   | DOUBLE 'NaN' | DOUBLE 'Infinity' | DOUBLE '-Infinity'
    op         :=  = | == | <> | != | < | <= | > | >=

A column alone is the condition that it is true (a bool column). Keywords ignore case; columns do not, and are
written in double quotes where they are no plain word or one of `nodes.RESERVED`.
Without ESCAPE no character of a LIKE pattern escapes another, as the standard and DuckDB have it.

Left out, each with an error that says so: functions and arithmetic (see `nyala.schema.expression`), chains of
comparisons, subqueries.
Source: SQL:2016 part 2, 8.1 to 8.6 and 6.39; shared contract, "Read".
"""

from __future__ import annotations

import decimal
import re
from typing import Final, NamedTuple, NoReturn

from nyala.errors import InvalidArgumentError
from nyala.schema.literals import NAN, Literal, parse_date, parse_special_float, parse_timestamp
from nyala.schema.nodes import (
    RESERVED,
    Compare,
    CompareColumns,
    Constant,
    InList,
    IsNull,
    Like,
    Predicate,
    all_of,
    any_of,
    negate,
)
from nyala.schema.tokens import TEXT_LENGTH_MAX, Token, TokenStream

__all__ = ["FLIPPED", "Operand", "PredicateParser", "parse_literal", "parse_predicate"]

_OPS: Final = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
# Operators of other systems: what to write instead.
_REGEX: Final = (
    "regular expressions are pyarrow's: import pyarrow.compute as pc, where=pc.match_substring_regex(pc.field('a'), "
    "'^x.*')"
)
_ELSEWHERE: Final = {
    "ILIKE": "for any case ask db.sql, or import pyarrow.compute as pc and give "
    "where=pc.match_like(pc.field('a'), 'x%', ignore_case=True)",
    "CONTAINS": "write a LIKE '%x%'",
    "STARTSWITH": "write a LIKE 'x%'",
    "ENDSWITH": "write a LIKE '%x'",
    **dict.fromkeys(("REGEXP", "RLIKE", "SIMILAR", "GLOB", "MATCHES"), _REGEX),
}
_AFTER_IS: Final = {
    "NONE": " (None is written NULL)",
    "TRUE": " (of a bool column write a alone)",
    "FALSE": " (of a bool column write NOT a)",
}
# Types that stand before a literal's text.
_TYPED: Final = ("DATE", "TIMESTAMP", "DOUBLE")
_STATEMENT: Final = re.compile(r"\s*(where|select)\b", re.IGNORECASE)
FLIPPED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}  # 5 < x is x > 5


class Operand(NamedTuple):
    """One side of a comparison: a column's name, or a literal."""

    column: str | None
    literal: Literal
    token: Token  # for errors


def parse_predicate(text: str, *, length_max: int = TEXT_LENGTH_MAX) -> Predicate:
    """The tree of a predicate's SQL text. Names are not resolved yet.

    Raises: InvalidArgumentError with the text, a caret below the place, and what was expected there.
    """
    stream = TokenStream(text, length_max)
    if stream.token.kind == "end":
        raise InvalidArgumentError("the predicate is empty; TRUE selects every row")
    parser = PredicateParser(stream)
    predicate = parser.condition()
    if stream.token.kind != "end":
        parser.fail_after_condition()
    return predicate


class PredicateParser:
    """Parses conditions from a stream that others may share (CASE WHEN condition THEN …)."""

    def __init__(self, stream: TokenStream) -> None:
        self._stream = stream

    def condition(self) -> Predicate:
        return self._as_predicate(self._disjunction())

    def fail_after_condition(self, expected: str = "AND, OR or the end") -> NoReturn:
        """Raise the error for what follows a condition and cannot."""
        source, token = self._stream.source, self._stream.token
        if token.kind != "end" and (found := _STATEMENT.match(source)) is not None:
            select = "a SELECT is for db.sql; where takes what stands behind WHERE"
            expected += f" ({'leave out the word WHERE' if found[1].upper() == 'WHERE' else select})"
        elif token.is_op("||"):
            expected += " (conditions are joined by the word OR)"
        elif token.is_op("-", "+", "*", "/", "%"):
            expected += (
                " (a predicate has no arithmetic; texts and dates stand in single quotes, '2026-01-31')"
            )
        elif token.is_op(*_OPS):
            expected += " (comparisons do not chain; write 1 < x AND x < 5)"
        elif token.kind != "end" and source[: token.position].endswith("'"):
            expected += " (a quote within a text is written twice, 'it''s')"
        self._stream.fail(expected)

    # Each level returns an Operand as long as nothing was done with it, so that (x) > (5) reads like x > 5.

    def _disjunction(self) -> Operand | Predicate:
        first = self._conjunction()
        if not self._stream.token.is_keyword("OR"):
            return first
        parts = [self._as_predicate(first)]
        while self._stream.accept_keyword("OR"):
            parts.append(self._as_predicate(self._conjunction()))
        return any_of(parts)

    def _conjunction(self) -> Operand | Predicate:
        first = self._negation()
        if not self._stream.token.is_keyword("AND"):
            return first
        parts = [self._as_predicate(first)]
        while self._stream.accept_keyword("AND"):
            parts.append(self._as_predicate(self._negation()))
        return all_of(parts)

    def _negation(self) -> Operand | Predicate:
        nots = 0
        while self._stream.accept_keyword("NOT"):  # a loop, so that a thousand NOTs are no recursion
            nots += 1
        inner = self._comparison()
        if not nots:
            return inner
        predicate = self._as_predicate(inner)
        return negate(predicate) if nots % 2 else predicate

    def _comparison(self) -> Operand | Predicate:
        stream = self._stream
        left = self._operand()
        token = stream.token
        if isinstance(left, Predicate):
            if token.is_op(*_OPS):
                stream.fail("AND, OR or the end (a condition is not compared with a value)")
            return left
        if token.is_op(*_OPS):
            stream.advance()
            return self._compare(left, _OPS[token.text], self._value_operand(f"a value after {token.text}"))
        if stream.accept_keyword("IS"):
            negated = stream.accept_keyword("NOT") is not None
            meant = _AFTER_IS.get(stream.token.text.upper(), "")
            stream.expect_keyword("NULL", ("NULL" if negated else "NULL or NOT NULL") + meant)
            return IsNull(self._column(left, "IS NULL"), negated)
        negated = stream.token.is_keyword("NOT") and stream.peek().is_keyword("IN", "BETWEEN", "LIKE")
        if negated:
            stream.advance()
        if stream.accept_keyword("IN"):
            predicate: Predicate = InList(self._column(left, "IN"), self._list())
        elif stream.accept_keyword("BETWEEN"):
            lower = self._value_operand("a value after BETWEEN")
            stream.expect_keyword("AND", "AND between the two bounds of BETWEEN")
            upper = self._value_operand("a value after AND")
            predicate = all_of((self._compare(left, ">=", lower), self._compare(left, "<=", upper)))
        elif stream.accept_keyword("LIKE"):
            return self._like(self._column(left, "LIKE"), negated)
        else:
            word = stream.peek() if stream.token.is_keyword("NOT") else stream.token
            if word.kind == "name" and word.text.upper() in _ELSEWHERE:
                stream.fail(f"an operator such as = or LIKE ({_ELSEWHERE[word.text.upper()]})", word)
            return left
        return negate(predicate) if negated else predicate

    def _list(self) -> tuple[Literal, ...]:
        stream = self._stream
        stream.expect_op("(", "'(' after IN")
        if stream.accept_op(")"):
            return ()
        is_query = stream.token.is_keyword("SELECT")
        values = [parse_literal(stream, "a literal" + (" (subqueries are for db.sql)" if is_query else ""))]
        while stream.accept_op(","):
            values.append(parse_literal(stream, "a literal after ','"))
        stream.expect_op(")", "',' or ')' in the list")
        return tuple(values)

    def _like(self, column: str, negated: bool) -> Predicate:
        token = self._stream.token
        pattern = parse_literal(self._stream, "a pattern in single quotes after LIKE")
        if pattern is None:
            return Constant(None)
        if not isinstance(pattern, str):
            self._stream.fail("a pattern in single quotes after LIKE", token)
        escape: str | None = None
        if self._stream.accept_keyword("ESCAPE"):
            ending = self._stream.token
            if ending.kind != "string" or len(str(ending.value)) != 1:
                self._stream.fail("one character in single quotes after ESCAPE")
            escape = str(self._stream.advance().value)
        return Like(column, pattern, negated, escape)

    def _operand(self) -> Operand | Predicate:
        stream = self._stream
        token = stream.token
        if stream.accept_op("("):
            stream.enter()
            inner = self._disjunction()
            if not stream.token.is_op(")"):
                self.fail_after_condition("')', AND or OR")
            stream.advance()
            stream.leave()
            return inner
        is_literal_word = token.is_keyword("TRUE", "FALSE", "NULL")
        is_typed = token.is_keyword(*_TYPED) and stream.peek().kind == "string"
        if token.kind == "quoted" or (token.kind == "name" and not is_literal_word and not is_typed):
            return self._column_operand()
        return Operand(None, parse_literal(stream, "a column, a value or '('"), token)

    def _column_operand(self) -> Operand:
        stream = self._stream
        token = stream.token
        if token.kind == "name" and token.text.upper() in RESERVED:
            stream.fail(f"a column, a value or '(' (a column of that name is written \"{token.text}\")")
        if stream.peek().is_op("("):
            stream.fail(
                "a column, a value or '(' (a predicate has no functions: compute the value before, or ask db.sql)"
            )
        stream.advance()
        return Operand(str(token.value), None, token)

    def _value_operand(self, expected: str) -> Operand:
        token = self._stream.token
        if token.kind == "end":
            self._stream.fail(expected)
        operand = self._operand()
        if isinstance(operand, Predicate):
            self._stream.fail("a column or a value, not a condition", token)
        return operand

    def _column(self, operand: Operand, word: str) -> str:
        if operand.column is None:
            self._stream.fail(f"a column before {word}", operand.token)
        return operand.column

    def _as_predicate(self, item: Operand | Predicate) -> Predicate:
        if isinstance(item, Predicate):
            return item
        if item.column is not None:
            return Compare(item.column, "=", True)
        if item.literal is None or isinstance(item.literal, bool):
            return Constant(item.literal)
        self._stream.fail(f"an operator such as = or IN after {item.token.text[:30]}")

    def _compare(self, left: Operand, op: str, right: Operand) -> Predicate:
        if left.column is not None and right.column is not None:
            return CompareColumns(left.column, op, right.column)
        if left.column is not None:
            return Compare(left.column, op, right.literal)
        if right.column is not None:
            return Compare(right.column, FLIPPED[op], left.literal)
        return self._fold(left, op, right)

    def _fold(self, left: Operand, op: str, right: Operand) -> Predicate:
        """1 = 1, as programs write it that build their WHERE term by term."""
        a, b = left.literal, right.literal
        if a is None or b is None:
            return Constant(None)
        numbers = int | decimal.Decimal | float
        if isinstance(a, bool) or isinstance(b, bool):
            comparable = isinstance(a, bool) and isinstance(b, bool)
        else:
            comparable = type(a) is type(b) or (isinstance(a, numbers) and isinstance(b, numbers))
        if not comparable:
            self._stream.fail("two values of one kind", right.token)
        return Constant(_fold(a, op, b))


def _fold(a: Literal, op: str, b: Literal) -> bool:
    if a is NAN or b is NAN:
        a, b = a is NAN, b is NAN  # NaN equals NaN and is greater than all else
    less, equal = bool(a < b), bool(a == b)  # type: ignore[operator]  # of one kind, the caller has looked
    return {
        "=": equal,
        "<>": not equal,
        "<": less,
        "<=": less or equal,
        ">": not (less or equal),
        ">=": not less,
    }[op]


def parse_literal(stream: TokenStream, expected: str) -> Literal:
    """The literal that comes next. Raises: InvalidArgumentError saying that `expected` was expected."""
    token = stream.token
    if token.is_keyword("TRUE", "FALSE"):
        return stream.advance().is_keyword("TRUE")
    if stream.accept_keyword("NULL"):
        return None
    if token.is_keyword(*_TYPED) and stream.peek().kind == "string":
        stream.advance()
        return _typed(stream, token.text.upper(), stream.advance())
    if token.kind in ("number", "string", "binary"):
        return stream.advance().value
    if token.is_op("-", "+"):
        stream.advance()
        number = stream.token
        if number.kind != "number":
            stream.fail(f"a number after {token.text}")
        value = stream.advance().value
        assert isinstance(value, int | decimal.Decimal)
        # copy_negate and not -value, which rounds a Decimal to the context's 28 digits.
        negative = value.copy_negate() if isinstance(value, decimal.Decimal) else -value
        return negative if token.text == "-" else value
    if token.kind == "quoted" and "quotes" not in expected:
        expected += " (a text stands in single quotes, a column in double ones)"
    stream.fail(expected)


def _typed(stream: TokenStream, word: str, token: Token) -> Literal:
    text = str(token.value)
    if word == "DOUBLE":
        special = parse_special_float(text)
        if special is None:
            stream.fail(
                "'NaN', 'Infinity' or '-Infinity' after DOUBLE (other numbers stand without it)", token
            )
        return special
    moment: Literal = parse_date(text) if word == "DATE" else parse_timestamp(text)
    if moment is None:
        example = "2013-01-31" if word == "DATE" else "2013-01-31T23:59:59.5Z"
        stream.fail(f"an ISO {word.lower()} such as '{example}'", token)
    return moment
