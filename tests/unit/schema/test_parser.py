"""Parsing of conditions: what each form means, and the error messages."""

from __future__ import annotations

import sys
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import calls_of

from nyala.errors import InvalidArgumentError
from nyala.schema.expressions.nodes import (
    Or,
    compare,
)
from nyala.schema.expressions.parser import parse_predicate
from nyala.schema.expressions.tokens import DEPTH_MAX, TEXT_LENGTH_MAX

A, B, C = (compare(name, "=", 1) for name in "abc")


ERRORS: list[tuple[str, str, int]] = [
    # text, part of the message, position of the caret
    ("a =", "expected a value after =, but the text ends", 3),
    ("a = = 1", "expected a column, a value or '(', found =", 4),
    ("a 1", "expected AND, OR or the end, found 1", 2),
    ("a = 1 b = 2", "expected AND, OR or the end, found b", 6),
    ("a = 1 AND", "expected a column, a value or '(', but the text ends", 9),
    ("(a = 1", "expected ')', AND or OR, but the text ends", 6),
    ("a = 1)", "expected AND, OR or the end, found )", 5),
    ("a = 'x", "expected a closing '", 4),
    ('"a = 1', 'expected a closing "', 0),
    ('"" = 1', "expected a name between the double quotes", 0),
    ("a = X'0'", "pairs of hexadecimal digits", 4),
    ("a = X'0g'", "pairs of hexadecimal digits", 4),
    ("a = 5x", "expected a space or an operator after the number", 5),
    ("a = 1e", "expected a space or an operator after the number", 5),
    ("a = #", "unexpected character '#'", 4),
    ("a = 1;", "unexpected character ';'", 5),
    ("a IN 1", "expected '(' after IN", 5),
    ("a IN (1", "expected ',' or ')' in the list, but the text ends", 7),
    ("a IN (1,)", "expected a column, a value or '('", 8),
    ("a BETWEEN 1 OR 2", "expected AND between the two bounds", 12),
    ("a LIKE b", "expected a pattern in single quotes after LIKE", 7),
    ("a LIKE 5", "expected a pattern in single quotes after LIKE", 7),
    ("a LIKE 'x' ESCAPE 'ab'", "expected one character in single quotes after ESCAPE", 18),
    ("a IS 5", "expected NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM", 5),
    ("a IS NOT 5", "expected NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM, found 5", 9),
    ("1 < a < 5", "comparisons do not chain", 6),
    ("in = 1", 'write "in" for a column of that name', 0),
    ("5", "expected an operator such as = or IN after 5", 1),
    ("DATE '2013-02-30' = a", "expected an ISO date such as", 5),
    ("a = TIMESTAMP '2013-01-01 24:00'", "expected an ISO timestamp such as", 14),
    ("upper(a, b) = 'x'", "expected 1 argument for upper(), not 2", 0),
    ("uper(a) = 'x'", "expected a function (did you mean upper?), found uper", 0),
    ("CAST(a AS money) = 1", "expected a type such as int64, string or decimal(15,2), found money", 10),
    ("a > INTERVAL '1 day'", "intervals are not supported", 4),
    ("EXTRACT(eon FROM a) = 1", "expected a field such as YEAR or HOUR", 0),
    ("(a, b) = 1", "expected two rows of values, or two values", 9),
    ("(a, b) IN (1, 2)", "expected a row of values such as (1, 2)", 11),
    ("CASE a THEN 1 END = 1", "expected WHEN, found THEN", 7),
    ("a IS DISTINCT 5", "expected FROM after IS DISTINCT", 14),
    ("a = 1e99999999", "expected a number of at most 1000 digits", 4),
    ("a = " + "1" * 1001, "expected a number of at most 1000 digits", 4),
    # operators of other languages
    ("a RLIKE 'x'", "pc.match_substring_regex(", 2),
    ("a contains 'x'", "write contains(a, 'x')), found contains", 2),
    ("a in [1, 2]", "write a list in parentheses, as in a IN (1, 2)", 5),
    ("a IN (SELECT 1)", "subqueries are for db.sql", 6),
    ('a IN ("x", "y")', "text takes single quotes, column names take double quotes", 6),
    ('a LIKE "x%"', 'in single quotes after LIKE, found "x%"', 7),
    ("a is None", "write NULL for None", 5),
    ("a is not none", "FROM (write NULL for None), found none", 9),
    ("a = 1 && b = 2", "unexpected character '&': join conditions with AND", 6),
    ("a = 1 | b = 2", "unexpected character '|': join conditions with OR", 6),
    ("a = 1 || b = 2", "join conditions with OR", 11),
    ("!a", "write NOT a, or a <> b", 0),
    ("t.a = 1", "write a column without its table", 1),
    ("`a` = 1", "special characters in double quotes", 0),
    ("a = ?", "expected a value for each ? (params=[…] has no values), found ?", 4),
    ("a = :x", "expected a parameter with a value in params={…} ('x' is missing)", 4),
    ("a = @x", "write a parameter as ?, :name or $name", 4),
    ("a = ‘x’", "straight single quotes", 4),
    ("a = 1; b = 2", "remove it", 5),
    ("a > now()", "expected a function (", 4),
    ("a = 'it's'", "write a quote in a text twice, 'it''s'), found s", 8),
    (r"a = 'it\'s'", "write a quote in a text twice", 9),
    ("WHERE a = 1", "remove the word WHERE", 6),
    ("select * from t", "pass only the condition", 14),
]


@pytest.mark.parametrize(("text", "message", "caret"), ERRORS, ids=[text[:30] for text, _, _ in ERRORS])
def test_an_error_shows_the_text_the_place_and_what_was_expected(text: str, message: str, caret: int) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_predicate(text)
    first, shown, pointer = str(caught.value).splitlines()
    assert message in first and f"(at character {caret + 1})" in first
    assert shown.strip("… ").startswith(text[:20]) and pointer == " " * (2 + caret) + "^"


def test_an_error_in_a_long_text_shows_only_the_text_around_it() -> None:
    text = "a = 1 AND\n" * 20 + "\tb = 1 AND " * 50 + "b b" + " AND c = 1" * 50
    with pytest.raises(InvalidArgumentError, match="of line 21") as caught:
        parse_predicate(text)
    _, shown, pointer = str(caught.value).splitlines()
    assert len(shown) < 130 and shown[pointer.index("^") :].startswith("b AND c = 1")


@pytest.mark.parametrize("text", ["", "  \n "])
def test_an_empty_text_is_refused(text: str) -> None:
    """An empty condition raises an error. In a delete it could mean all rows or none."""
    with pytest.raises(InvalidArgumentError, match="the predicate is empty"):
        parse_predicate(text)


def test_texts_beyond_the_limits_are_refused_at_once() -> None:
    """Such a text must not exhaust the recursion limit or take long."""

    def refuse(text: str) -> None:
        with pytest.raises(InvalidArgumentError, match="more than"):
            parse_predicate(text)

    for text in (
        "a = 1 OR " * (1_000_000 // 9),
        "(" * 10_000 + "a = 1" + ")" * 10_000,
        "NOT (" * 10_000 + "a = 1" + ")" * 10_000,
        "(" * TEXT_LENGTH_MAX,
        "a = 1 AND (b = 1 OR (" * 10_000,
    ):
        assert sum(calls_of(partial(refuse, text)).values()) < 50_000


def test_the_deepest_allowed_text_needs_little_recursion() -> None:
    """A caller may use a part of the recursion limit itself."""
    deep = "NOT (a = 1 AND (b = 1 OR " * (DEPTH_MAX // 2) + "c = 1" + "))" * (DEPTH_MAX // 2)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(min(limit, _frames() + 700))
    try:
        predicate = parse_predicate(deep)
        assert parse_predicate(str(predicate)) == predicate
        assert parse_predicate("NOT " * 10_000 + "a = 1") == A
        assert parse_predicate(" OR ".join(["a = 1"] * 20_000)) == Or((A,) * 20_000)
    finally:
        sys.setrecursionlimit(limit)


def _frames() -> int:
    frame, count = sys._getframe(), 0
    while frame.f_back is not None:
        frame, count = frame.f_back, count + 1
    return count


@given(st.text(max_size=60))
def test_a_random_text_is_a_predicate_or_an_invalid_argument_error(text: str) -> None:
    """Random text never raises an IndexError or a RecursionError."""
    try:
        predicate = parse_predicate(text)
    except InvalidArgumentError:
        return
    assert parse_predicate(str(predicate)) == predicate


WORDS = ["a", "b", '"c d"', "1", "2.5", "-", "'x'", "X'00'", "(", ")", ",", "=", "<", ">=", "<>"]
WORDS += [
    "AND",
    "OR",
    "NOT",
    "IN",
    "IS",
    "NULL",
    "LIKE",
    "BETWEEN",
    "ESCAPE",
    "TRUE",
    "DATE",
    "+",
    "'2013-01-01'",
]


@given(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join))
def test_random_tokens_are_a_predicate_or_an_invalid_argument_error(text: str) -> None:
    """Random tokens never raise another error. They get deeper into the parser than characters."""
    test_a_random_text_is_a_predicate_or_an_invalid_argument_error.hypothesis.inner_test(text)  # type: ignore[attr-defined]


@given(st.text(min_size=1), st.text())
def test_random_names_and_texts_are_parsed_from_their_own_sql(name: str, value: str) -> None:
    """Random names and texts, also with quotes, line breaks and NUL, are parsed from their SQL."""
    predicate = compare(name, "=", value)
    assert parse_predicate(str(predicate)) == predicate
