"""The text of a predicate: what each form means, and what an error tells."""

from __future__ import annotations

import datetime as dt
import decimal
import sys
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import calls_of

from nyala.errors import InvalidArgumentError
from nyala.schema.predicate import (
    And,
    Compare,
    CompareColumns,
    Constant,
    InList,
    IsNull,
    Like,
    Not,
    Or,
    Predicate,
    parse_predicate,
)
from nyala.schema.tokens import DEPTH_MAX, TEXT_LENGTH_MAX

D = decimal.Decimal
UTC = dt.UTC
A, B, C = (Compare(name, "=", 1) for name in "abc")

MEANINGS: list[tuple[str, Predicate]] = [
    # comparisons
    ("a = 1", A),
    ("a==1", A),
    ("a <> 1", Compare("a", "<>", 1)),
    ("a != 1", Compare("a", "<>", 1)),
    ("a<1", Compare("a", "<", 1)),
    ("a<=1", Compare("a", "<=", 1)),
    ("a>1", Compare("a", ">", 1)),
    ("a>=1", Compare("a", ">=", 1)),
    ("1 < a", Compare("a", ">", 1)),
    ("1 >= a", Compare("a", "<=", 1)),
    ("1 = a", A),
    ("a < b", CompareColumns("a", "<", "b")),
    ("(a) > (1)", Compare("a", ">", 1)),
    ("a = NULL", Compare("a", "=", None)),
    # literals
    ("a = -5", Compare("a", "=", -5)),
    ("a = - 5", Compare("a", "=", -5)),
    ("a = +5", Compare("a", "=", 5)),
    ("a = 2.50", Compare("a", "=", D("2.50"))),
    ("a = .5", Compare("a", "=", D("0.5"))),
    ("a = 5.", Compare("a", "=", D(5))),
    ("a = -1.5e-3", Compare("a", "=", D("-0.0015"))),
    ("a = 1E+3", Compare("a", "=", D("1E+3"))),
    ("a = " + "9" * 38 + ".5", Compare("a", "=", D("9" * 38 + ".5"))),
    ("a = -" + "9" * 38 + ".5", Compare("a", "=", D("-" + "9" * 38 + ".5"))),
    ("a = ''", Compare("a", "=", "")),
    ("a = 'it''s'", Compare("a", "=", "it's")),
    ("a = 'x\ny'", Compare("a", "=", "x\ny")),
    ("a = 'back\\slash'", Compare("a", "=", "back\\slash")),
    ("a = X'00fF'", Compare("a", "=", b"\x00\xff")),
    ("a = x''", Compare("a", "=", b"")),
    ("a = true", Compare("a", "=", True)),
    ("a = DATE '2013-01-31'", Compare("a", "=", dt.date(2013, 1, 31))),
    ("a = date'2013-01-31'", Compare("a", "=", dt.date(2013, 1, 31))),
    ("a = TIMESTAMP '2013-01-31'", Compare("a", "=", dt.datetime(2013, 1, 31, tzinfo=UTC))),
    ("a = timestamp '2013-01-31 10:00'", Compare("a", "=", dt.datetime(2013, 1, 31, 10, tzinfo=UTC))),
    (
        "a = TIMESTAMP '2013-01-31T10:00:00+01:30'",
        Compare("a", "=", dt.datetime(2013, 1, 31, 8, 30, tzinfo=UTC)),
    ),
    (
        "a = TIMESTAMP '2013-01-31T10:00:00.5Z'",
        Compare("a", "=", dt.datetime(2013, 1, 31, 10, 0, 0, 500000, UTC)),
    ),
    ("a = TIMESTAMP '2013-01-31T10:00:00.1234567'", Compare("a", "=", "2013-01-31T10:00:00.1234567")),
    # names
    ("x = 1", Compare("x", "=", 1)),
    ('"a" = 1', A),
    ('"odd name" = 1', Compare("odd name", "=", 1)),
    ('"a""b" = 1', Compare('a"b', "=", 1)),
    ('"in" = 1', Compare("in", "=", 1)),
    ("größe = 1", Compare("größe", "=", 1)),
    ("_x1 = 1", Compare("_x1", "=", 1)),
    ("date = 1 AND timestamp = 1", And((Compare("date", "=", 1), Compare("timestamp", "=", 1)))),
    ("nothing = 1", Compare("nothing", "=", 1)),
    # the other forms
    ("a IS NULL", IsNull("a")),
    ("a is not null", IsNull("a", True)),
    ("a IN (1, -2, 'x', NULL)", InList("a", (1, -2, "x", None))),
    ("a NOT IN (1)", Not(InList("a", (1,)))),
    ("a IN ()", InList("a", ())),
    ("a BETWEEN 1 AND 2", And((Compare("a", ">=", 1), Compare("a", "<=", 2)))),
    ("a NOT BETWEEN 1 AND 2", Not(And((Compare("a", ">=", 1), Compare("a", "<=", 2))))),
    ("a BETWEEN b AND 2", And((CompareColumns("a", ">=", "b"), Compare("a", "<=", 2)))),
    ("1 BETWEEN a AND b", And((Compare("a", "<=", 1), Compare("b", ">=", 1)))),
    ("a BETWEEN 1 AND 2 AND b = 1", And((Compare("a", ">=", 1), Compare("a", "<=", 2), B))),
    ("a LIKE 'x%'", Like("a", "x%")),
    ("a NOT LIKE 'x!_' ESCAPE '!'", Like("a", "x!_", True, "!")),
    ("a LIKE NULL", Constant(None)),
    ("a", Compare("a", "=", True)),
    ("NOT a", Not(Compare("a", "=", True))),
    ("TRUE", Constant(True)),
    ("not False", Not(Constant(False))),
    ("NULL", Constant(None)),
    ("1 = 1", Constant(True)),
    ("2.5 < 2", Constant(False)),
    ("'a' <> 'b'", Constant(True)),
    ("1 = NULL", Constant(None)),
    # precedence
    ("a = 1 OR b = 1 AND c = 1", Or((A, And((B, C))))),
    ("(a = 1 OR b = 1) AND c = 1", And((Or((A, B)), C))),
    ("NOT a = 1 AND b = 1", And((Not(A), B))),
    ("NOT (a = 1 AND b = 1)", Not(And((A, B)))),
    ("a = 1 AND (b = 1 AND c = 1)", And((A, B, C))),
    ("a = 1 OR (b = 1 OR c = 1)", Or((A, B, C))),
    ("NOT NOT a = 1", A),
    ("NOT NOT NOT a = 1", Not(A)),
    ("NOT a IN (1)", Not(InList("a", (1,)))),
    ("((((a = 1))))", A),
    ("a = 1\n  and\tb = 1", And((A, B))),
]


@pytest.mark.parametrize(("text", "meaning"), MEANINGS, ids=[text for text, _ in MEANINGS])
def test_a_text_means_what_sql_says(text: str, meaning: Predicate) -> None:
    """A `where` read wrongly selects, changes or deletes the wrong rows."""
    assert parse_predicate(text) == meaning
    assert parse_predicate(str(meaning)) == meaning


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
    ("a IN (b)", "expected a literal, found b", 6),
    ("a IN (1,)", "expected a literal after ','", 8),
    ("1 IN (1)", "expected a column before IN", 0),
    ("a BETWEEN 1 OR 2", "expected AND between the two bounds", 12),
    ("a LIKE b", "expected a pattern in single quotes after LIKE", 7),
    ("a LIKE 5", "expected a pattern in single quotes after LIKE", 7),
    ("a LIKE 'x' ESCAPE 'ab'", "expected one character in single quotes after ESCAPE", 18),
    ("a IS 5", "expected NULL or NOT NULL", 5),
    ("a IS NOT 5", "expected NULL, found 5", 9),
    ("1 IS NULL", "expected a column before IS NULL", 0),
    ("a + 1 = 2", "a predicate has no arithmetic", 2),
    ("lower(a) = 'x'", "a predicate has no functions", 0),
    ("1 < a < 5", "comparisons do not chain", 6),
    ("(a = 1) = TRUE", "a condition is not compared with a value", 8),
    ("a = (b = 1)", "a column or a value, not a condition", 4),
    ("in = 1", 'a column of that name is written "in"', 0),
    ("5", "expected an operator such as = or IN after 5", 1),
    ("a = -b", "expected a number after -", 5),
    ("1 = 'x'", "expected two values of one kind", 4),
    ("DATE '2013-02-30' = a", "expected an ISO date such as", 5),
    ("a = TIMESTAMP '2013-01-01 24:00'", "expected an ISO timestamp such as", 14),
    ("a = 1e99999999", "expected a number of at most 1000 digits", 4),
    ("a = " + "1" * 1001, "expected a number of at most 1000 digits", 4),
    # what other languages have, and what to write here
    ("a ILIKE 'x%'", "pc.match_like(pc.field('a'), 'x%', ignore_case=True)), found ILIKE", 2),
    ("a = 1 AND (a not ilike 'x')", "for any case ask db.sql", 17),
    ("a RLIKE 'x'", "pc.match_substring_regex(", 2),
    ("a contains 'x'", "write a LIKE '%x%'), found contains", 2),
    ("a in [1, 2]", "a list stands in parentheses, as in a IN (1, 2)", 5),
    ("a IN (SELECT 1)", "subqueries are for db.sql", 6),
    ('a IN ("x", "y")', "a text stands in single quotes, a column in double ones", 6),
    ('a LIKE "x%"', 'in single quotes after LIKE, found "x%"', 7),
    ("a is None", "None is written NULL", 5),
    ("a is not none", "expected NULL (None is written NULL), found none", 9),
    ("a IS TRUE", "write a alone", 5),
    ("a = 1 && b = 2", "unexpected character '&': conditions are joined by AND", 6),
    ("a = 1 | b = 2", "unexpected character '|': conditions are joined by OR", 6),
    ("a = 1 || b = 2", "joined by the word OR", 6),
    ("!a", "write NOT a, or a <> b", 0),
    ("t.a = 1", "a column is named without its table", 1),
    ("`a` = 1", "stands in double quotes", 0),
    ("a = ?", "nyala.col: col('a') == value", 4),
    ("a = ‘x’", "straight single quotes", 4),
    ("a = 1; b = 2", "leave it out", 5),
    ("a > 2026-01-31", "and dates stand in single quotes, '2026-01-31'), found -", 8),
    ("(a > 2026-01-31)", "')', AND or OR (a predicate has no arithmetic; texts and dates", 9),
    ("a > now()", "compute the value before, or ask db.sql", 4),
    ("a = 'it's'", "a quote within a text is written twice, 'it''s'), found s", 8),
    (r"a = 'it\'s'", "a quote within a text is written twice", 9),
    ("WHERE a = 1", "leave out the word WHERE", 6),
    ("select * from t", "a SELECT is for db.sql", 7),
]


@pytest.mark.parametrize(("text", "message", "caret"), ERRORS, ids=[text[:30] for text, _, _ in ERRORS])
def test_an_error_shows_the_text_the_place_and_what_was_expected(text: str, message: str, caret: int) -> None:
    """Whoever typed it must see at a glance what to change."""
    with pytest.raises(InvalidArgumentError) as caught:
        parse_predicate(text)
    first, shown, pointer = str(caught.value).splitlines()
    assert message in first and f"(at character {caret + 1})" in first
    assert shown.strip("… ").startswith(text[:20]) and pointer == " " * (2 + caret) + "^"


def test_an_error_deep_in_a_long_text_shows_only_the_line_around_it() -> None:
    """A generated predicate of a thousand terms must not fill the screen."""
    text = "a = 1 AND\n" * 20 + "\tb = 1 AND " * 50 + "b b" + " AND c = 1" * 50
    with pytest.raises(InvalidArgumentError, match="of line 21") as caught:
        parse_predicate(text)
    _, shown, pointer = str(caught.value).splitlines()
    assert len(shown) < 130 and shown[pointer.index("^") :].startswith("b AND c = 1")


@pytest.mark.parametrize("text", ["", "  \n "])
def test_an_empty_text_is_refused(text: str) -> None:
    """An empty `where` in a delete would otherwise be a guess between all rows and none."""
    with pytest.raises(InvalidArgumentError, match="the predicate is empty"):
        parse_predicate(text)


def test_long_and_deep_texts_are_refused_soon() -> None:
    """A text from outside may be anything; it must not end the process, nor its recursion, nor an hour."""

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


def test_what_the_limits_allow_is_parsed_without_much_recursion() -> None:
    """The deepest text must work also where the caller is deep in recursion already."""
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
def test_any_text_is_a_predicate_or_an_error_of_ours(text: str) -> None:
    """Never an IndexError or a RecursionError, whatever is typed."""
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
def test_any_row_of_words_is_a_predicate_or_an_error_of_ours(text: str) -> None:
    """The same for texts that look like predicates, which go deeper into the parser."""
    test_any_text_is_a_predicate_or_an_error_of_ours.hypothesis.inner_test(text)  # type: ignore[attr-defined]


@given(st.text(min_size=1), st.text())
def test_every_name_and_text_survives_its_own_sql(name: str, value: str) -> None:
    """Names and values with quotes, line ends and NUL travel to executors unchanged."""
    predicate = Compare(name, "=", value)
    assert parse_predicate(str(predicate)) == predicate
