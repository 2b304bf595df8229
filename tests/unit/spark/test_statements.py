"""`nyala.spark.sql` reads every column that a statement names, and every row that Spark needs."""

from __future__ import annotations

import pyarrow as pa
import pytest

from nyala.errors import InvalidArgumentError
from nyala.spark.statements import table_uses as statements
from nyala.spark.statements.constants import SLACK_US
from nyala.spark.statements.table_uses import find_uses, with_placeholders

T = pa.schema(
    [
        ("k", pa.int64()),
        ("v", pa.string()),
        ("d", pa.date32()),
        ("n", pa.decimal128(9, 2)),
        ("t", pa.timestamp("us", tz="UTC")),
        ("f", pa.float32()),
        ("g", pa.float64()),
    ]
)
U = pa.schema([("k", pa.int64()), ("x", pa.int32())])
TABLES = {("t",): T, ("u",): U, ("db", "My t"): T}


def uses(text: str) -> list[tuple[str, str, str | None]]:
    """Return (table, columns, predicate) of each use."""
    statements._known.clear()
    found = find_uses(text, TABLES.get)
    return [
        (".".join(use.name), " ".join(use.columns), None if use.where is None else str(use.where))
        for use in found
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT v FROM t", [("t", "v", None)]),
        ("SELECT * FROM u", [("u", "k x", None)]),
        ("SELECT count(*) FROM t", [("t", "", None)]),
        ("SELECT V FROM T", []),
        ("SELECT v FROM t WHERE q.k = 1", [("t", "v", None)]),
        ("SELECT a.v FROM t a WHERE a.k > 5 AND g < 2", [("t", "v g", "k > 5 AND g < 2")]),
        ("SELECT v FROM t WHERE 5 < k OR v IN ('a', 'b')", [("t", "k v", "k > 5 OR v IN ('a', 'b')")]),
        ("SELECT v FROM t WHERE upper(v) = 'A' AND NOT k BETWEEN 1 AND 3",
         [("t", "k v", "NOT (k >= 1 AND k <= 3)")]),
        ("SELECT k FROM t ORDER BY v", [("t", "k v", None)]),
        ("SELECT k AS v, d AS n FROM t WHERE T.g < 2 GROUP BY n HAVING count(*) > 1 ORDER BY V",
         [("t", "k d n g", "g < 2")]),
        ("SELECT v AS x FROM t WHERE k = 1 ORDER BY x", [("t", "v", "k = 1")]),
        ("SELECT x.k FROM t AS x(v, k, d, n, t, f, g) WHERE x.v = 1", [("t", "k v d n t f g", None)]),
        ("SELECT a.k, b.x FROM t a JOIN u AS b(x, k) ON a.k = b.x WHERE a.k = 1",
         [("t", "k", "k = 1"), ("u", "k x", None)]),
        ("SELECT v, row_number() OVER w FROM t WHERE k = 1 WINDOW w AS (ORDER BY d)", [("t", "v d", "k = 1")]),
        ("SELECT k, y FROM t LATERAL VIEW explode(array(v)) z AS y WHERE k = 1", [("t", "k v", "k = 1")]),
        ("SELECT v FROM (SELECT * FROM t) WHERE v = 'x'", [("t", "v", None)]),
        ("WITH c AS (SELECT * FROM t WHERE k = 1) SELECT c.v FROM c JOIN c d ON c.k = d.k",
         [("t", "k v", "k = 1")]),
        ("WITH t AS (SELECT 1 AS k) SELECT k FROM t", []),
        ("SELECT x.v FROM db.`My t` x", [("db.My t", "v", None)]),
        ("SELECT t.v, u.x FROM t JOIN u ON t.k = u.k AND u.x = 3 WHERE t.k > 1",
         [("t", "k v", "k > 1"), ("u", "k x", "x = 3")]),
        ("SELECT t.v FROM t, u WHERE t.k = u.k AND u.x >= 2", [("t", "k v", None), ("u", "k", "x >= 2")]),
        ("SELECT a.v FROM t a JOIN t b ON a.k + 1 = b.k WHERE a.k = 3 AND b.k = 4",
         [("t", "k v", "k = 3"), ("t", "k", "k = 4")]),
        ("SELECT v FROM t WHERE k = 1 UNION ALL SELECT v FROM t WHERE k = 2",
         [("t", "v", "k = 1"), ("t", "v", "k = 2")]),
        ("SELECT v FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.k = t.k AND u.x = 1)",
         [("t", "k v", None), ("u", "k", "x = 1")]),
        ("SELECT v FROM t WHERE EXISTS (SELECT * FROM u WHERE u.k = t.k)", [("t", "k v", None), ("u", "k", None)]),
        ("SELECT v FROM t WHERE NOT EXISTS ((SELECT u.* FROM u WHERE u.k = t.k AND x > 1 LIMIT 1))",
         [("t", "k v", None), ("u", "k", "x > 1")]),
        ("SELECT v FROM t WHERE EXISTS (SELECT * FROM u)", [("t", "v", None), ("u", "", None)]),
        ("SELECT v FROM t WHERE EXISTS (SELECT * FROM u ORDER BY 2)",
         [("t", "k v d n t f g", None), ("u", "k x", None)]),
        ("SELECT v FROM t WHERE EXISTS (SELECT DISTINCT * FROM u OFFSET 1)",
         [("t", "v", None), ("u", "k x", None)]),
        ("SELECT v FROM t WHERE EXISTS (SELECT * FROM u WHERE struct(*) IS NULL)",
         [("t", "v", None), ("u", "k x", None)]),
        ("SELECT v FROM t WHERE EXISTS (SELECT * FROM u UNION SELECT k, g FROM t)",
         [("t", "v", None), ("u", "k x", None), ("t", "k g", None)]),
        # An OR on two tables gives each scan the part that every branch has for its table.
        ("SELECT t.v FROM t, u WHERE (t.k = u.k AND t.g < 2 AND u.x = 1) OR (t.k = u.x AND t.g > 7 AND u.x > 5)",
         [("t", "k v g", "g < 2 OR g > 7"), ("u", "k x", "x = 1 OR x > 5")]),
        ("SELECT t.v FROM t, u WHERE t.k = u.k AND ((t.g < 2 AND upper(v) = 'A') OR (u.x = 1 AND t.g IN (7, 8)))",
         [("t", "k v g", "g < 2 OR g IN (7, 8)"), ("u", "k x", None)]),
        ("SELECT v FROM t WHERE (k > 1 AND (g < 2 OR upper(v) = 'A')) OR (k < 0 AND (g = 3 OR g = 4 AND v > d))",
         [("t", "k v d g", "k > 1 OR (k < 0 AND (g = 3 OR g = 4))")]),
        ("SELECT v FROM t WHERE NOT (k > 1 AND upper(v) = 'A' OR g < 2 AND upper(v) = 'B')", [("t", "k v g", None)]),
        ("SELECT t.v FROM t LEFT JOIN u ON t.k = u.k WHERE (t.g = 1 AND u.x = 1) OR (t.g = 2 AND u.x IS NULL)",
         [("t", "k v g", "g = 1 OR g = 2"), ("u", "k x", None)]),
        # All named columns are read, also if they do not affect the result, because Spark runs the
        # text unchanged.
        ("SELECT count(1) FROM (SELECT k, row_number() OVER (PARTITION BY v ORDER BY g) r FROM t) WHERE r = 1",
         [("t", "k v g", None)]),
        ("SELECT x.v FROM (SELECT * FROM t WHERE k > 1) x", [("t", "k v", "k > 1")]),
        ("SELECT v AS k FROM t WHERE k = 1", [("t", "v", "k = 1")]),
        # The result depends on all columns of the table.
        ("SELECT t.v FROM t NATURAL JOIN u", [("t", "k v d n t f g", None), ("u", "k x", None)]),
        ("SELECT * EXCEPT (v) FROM t WHERE k = 1", [("t", "k v d n t f g", None)]),
        ("SELECT s.k FROM (SELECT * FROM u WHERE x = 1 UNION ALL SELECT * FROM u) s",
         [("u", "k x", None), ("u", "k x", None)]),
        ("SELECT count(*) FROM (SELECT DISTINCT * FROM u)", [("u", "k x", None)]),
        ("SELECT struct(u.*), count(*) FROM u WHERE k = 1", [("u", "k x", None)]),
        ("SELECT count(DISTINCT *) FROM u", [("u", "k x", None)]),
        ("SELECT u.*, t.v FROM u, t", [("u", "k x", None), ("t", "v", None)]),
        ("SELECT v FROM t WHERE k IN (SELECT k FROM u WHERE x = 1)",
         [("t", "k v", None), ("u", "k", "x = 1")]),
    ],
)  # fmt: skip
def test_columns_and_predicate_of_each_use(text: str, expected: list[tuple[str, str, str | None]]) -> None:
    if text == "SELECT V FROM T":
        assert find_uses(text, lambda name: T if name == ("T",) else None)[0].columns == ("v",)
    else:
        assert uses(text) == expected


@pytest.mark.parametrize(
    ("text", "of_t", "of_u"),
    [
        # Rows without a match get NULL from the outer join, and WHERE must see them.
        ("SELECT * FROM t LEFT JOIN u ON t.k = u.k WHERE u.x IS NULL AND t.k = 1", "k = 1", None),
        ("SELECT * FROM t LEFT JOIN u ON t.k = u.k AND u.x = 1 AND t.k = 2", None, "x = 1"),
        ("SELECT * FROM t RIGHT JOIN u ON t.k = u.k WHERE t.k = 1", None, None),
        ("SELECT * FROM t FULL JOIN u ON t.k = u.k WHERE t.k = 1 AND u.x = 1", None, None),
        ("SELECT * FROM t LEFT ANTI JOIN u ON t.k = u.k AND u.x = 1 WHERE t.k = 1", "k = 1", "x = 1"),
        ("SELECT * FROM t LEFT SEMI JOIN u ON t.k = u.k AND u.x = 1 WHERE t.k = 1", "k = 1", "x = 1"),
        # Joins in parentheses are not analysed.
        ("SELECT * FROM (t LEFT JOIN u ON t.k = u.k AND u.x > 5) WHERE u.x IS NULL AND t.k = 1", None, None),
        ("SELECT * FROM (t RIGHT JOIN u ON t.k = u.k) WHERE t.k = 1", None, None),
        ("SELECT * FROM t LEFT JOIN (u) ON t.k = u.k WHERE u.x = 1", None, None),
        ("SELECT * FROM (SELECT 1 AS k) s LEFT JOIN t JOIN u ON t.k = u.k ON s.k = t.k WHERE u.x = 1",
         None, None),
        ("SELECT * FROM (SELECT 1 AS k) s LEFT JOIN (t JOIN u ON t.k = u.k) ON s.k = t.k WHERE t.k = 1",
         None, None),
    ],
)  # fmt: skip
def test_outer_joins_keep_their_rows(text: str, of_t: str | None, of_u: str | None) -> None:
    """A scan gets a predicate only if a row that fails it cannot affect the result."""
    assert [where for _, _, where in uses(text)] == [of_t, of_u]


@pytest.mark.parametrize(
    ("term", "pushed"),
    [
        ("d >= DATE '2026-01-01'", "d >= DATE '2026-01-01'"),
        ("d = '2026-01-01'", "d = DATE '2026-01-01'"),
        ("n = 1.25", "n = 1.25"),
        ("k = -7", "k = -7"),
        ("n = 1.255", None),  # Spark compares with more digits than the column has
        ("k = 1.5", None),
        ("k = 9223372036854775808", None),
        ("k = '5'", None),  # Spark casts one of them
        ("v = 5", None),
        ("v = 'a\\'b'", None),  # the meaning of a backslash depends on a setting
        ("t > '2026-01-01'", None),  # depends on the time zone, so it is a pending term
        ("f = 0.1", None),  # Spark compares as double
        ("v LIKE 'a%'", None),
        ("k = NULL", None),
        ("k + 1 = 2", None),
        ("(k = 1 OR upper(v) = 'A')", None),
        ("k = 1e3", None),  # Spark compares as double
        ("n BETWEEN 1e-1 AND 5", "n <= 5"),
        ("k IN (1, 2e0)", None),
        ("g < 1e3", "g < 1E+3"),
        ("d = '20260101'", None),  # Spark does not read it as a date
        ("d >= DATE '2026-W09-4'", None),
        ("k BETWEEN SYMMETRIC 5 AND 1", None),
    ],
)
def test_only_terms_that_mean_the_same_go_into_a_scan(term: str, pushed: str | None) -> None:
    ((_, _, where),) = uses(f"SELECT k FROM t WHERE {term}")
    assert (where or "").replace("DATE ", "") == (pushed or "").replace("DATE ", "")


def test_names_that_spark_may_resolve_otherwise() -> None:
    """Spark prefers a column to a function without parentheses, and finds a column of a LATERAL
    VIEW ambiguous. The steps of a piped statement have their own columns.
    """
    whole = pa.schema([("k", pa.int64()), ("current_date", pa.date32()), ("y", pa.int64())])
    for text in (
        "SELECT k, current_date FROM t WHERE k > 5",
        "SELECT t.k, y FROM t LATERAL VIEW explode(array(1, 2)) z AS y WHERE k > 5",
        "SELECT y AS k FROM t |> WHERE k > 5",
    ):
        (use,) = find_uses(text, {("t",): whole}.get)
        assert (use.columns, use.where, use.applied, use.pending) == (
            ("k", "current_date", "y"),
            None,
            (),
            (),
        ), text
    (use,) = find_uses("SELECT k FROM t WHERE y > 5 AND upper('y') = 'Y'", {("t",): whole}.get)
    assert (use.columns, str(use.where)) == (("k",), "y > 5")


def test_a_text_may_be_long() -> None:
    text = "SELECT k FROM t WHERE " + " OR ".join(f"k = {number}" for number in range(3000))
    (use,) = find_uses(text, TABLES.get)
    assert str(use.where).count("OR") == 2999


def test_an_interval_of_days_or_months_has_a_slack() -> None:
    """Rule C2: a month before March 30th, 23:00, is later than a month before March 31st, 1:00."""
    for value, steps in (
        ("now()", 0),
        ("now() - INTERVAL 90 MINUTES", 0),
        ("now() - INTERVAL 1 MONTH", 1),
        ("now() - INTERVAL 1 MONTH - INTERVAL 2 HOURS", 1),
        ("now() - INTERVAL '1-2' YEAR TO MONTH", 1),
        ("TIMESTAMP '2026-01-01' - INTERVAL 1 MONTH", 0),
    ):
        (use,) = find_uses(f"SELECT k FROM t WHERE t >= {value}", TABLES.get)
        assert [term.slack_us for term in use.pending] == [steps * SLACK_US], value
    # One day less may become one month less.
    for value in (
        "now() - INTERVAL 1 MONTH + INTERVAL 2 HOURS - INTERVAL 1 MONTH",
        "date_trunc('month', now() - INTERVAL 1 MONTH + INTERVAL 2 HOURS)",
        "CAST(now() - INTERVAL 1 MONTH + INTERVAL 2 HOURS AS DATE)",
    ):
        (use,) = find_uses(f"SELECT k FROM t WHERE t >= {value}", TABLES.get)
        assert use.pending == (), value


@pytest.mark.parametrize(
    ("where", "closed", "opened"),
    [
        ("t >= '2026-01-01' AND k = 1", "k = 1", ["t >= '2026-01-01'"]),
        ("TIMESTAMP '2026-01-01 10:00' > t", None, ["t < CAST('2026-01-01 10:00' AS TIMESTAMP)"]),
        ("d < DATE '1994-01-01' + INTERVAL '1' YEAR", None,
         ["d < CAST('1994-01-01' AS DATE) + INTERVAL '1' YEAR"]),
        ("k BETWEEN 5 AND 5 + 19000", "k >= 5", ["k <= 5 + 19000"]),
        ("n >= 0.06 - 0.01", None, ["n >= 0.06 - 0.01"]),
        ("t > now() - INTERVAL 7 DAYS", None, ["t > NOW() - INTERVAL '7' DAYS"]),
        ("t >= current_timestamp() + (INTERVAL 1 DAY 2 HOURS) * 2", None,
         ["t >= CURRENT_TIMESTAMP() + (INTERVAL '1' DAY + INTERVAL '2' HOURS) * 2"]),
        ("k > 1 - 2 * 3 - 4 AND k > (1 - 2) * 3", None, ["k > 1 - 2 * 3 - 4", "k > (1 - 2) * 3"]),
        # Subtracting a sum: sqlglot writes it without parentheses.
        ("t >= now() - INTERVAL 1 DAY 2 HOURS", None, []),
        ("d >= current_date - 7", None, ["d >= CURRENT_DATE - 7"]),
        ("d >= date_sub(current_date(), 7)", None, ["d >= DATE_ADD(CURRENT_DATE, 7 * -1)"]),
        ("t >= date_trunc('day', now())", None, ["t >= DATE_TRUNC('DAY', NOW())"]),
        # C2: the statement runs later than the value is computed, and could need rows that the scan
        # leaves out.
        ("t < now()", None, []),
        ("t BETWEEN '2026-01-01' AND now()", None, ["t >= '2026-01-01'"]),
        ("d > current_date() AND d = current_date()", None, ["d > CURRENT_DATE"]),
        ("t > '2026-01-01' - (now() - TIMESTAMP '2026-01-01')", None, []),
        ("t > now() * 2", None, []),
        # C1: no columns, nothing that differs between two evaluations, and nothing that depends on a setting.
        ("k > rand()", None, []),
        ("k > k + 1", None, []),
        ("t > (SELECT max(t) FROM u)", None, []),
        ("t > 'a\\'b'", None, []),
        ("t > '2026\\-01-01'", None, []),  # another text with `spark.sql.parser.escapedStringLiterals`
        ("t > '#'", None, []),
        ("t < 'now' AND d < DATE 'today' AND t > TIMESTAMP ' yesterday'", None, []),
        ("t > current_timestamp(3)", None, []),
        ("k > 5 % 3", None, []),
        # Only terms that every row must satisfy.
        ("t > now() OR k = 1", None, []),
        ("NOT (t > now())", None, []),
        ("v > 'a' || 'b'", None, []),
        ("g > 1 + 1", None, []),
    ],
)  # fmt: skip
def test_constant_expressions_become_pending_terms(where: str, closed: str | None, opened: list[str]) -> None:
    (use,) = find_uses(f"SELECT k FROM t WHERE {where}", {**TABLES, ("u",): None}.get)
    assert use.where is None if closed is None else str(use.where) == closed
    assert [f"{term.column} {term.op} {term.text}" for term in use.pending] == opened
    assert all(term.type == T.field(term.column).type for term in use.pending)


def test_only_names_of_tables_are_replaced() -> None:
    """Braces in the text are no placeholders, and a table's name becomes its alias."""
    text = "SELECT t.v, '{x}' FROM t WHERE k IN (SELECT z.k FROM u AS z)"
    found = find_uses(text, TABLES.get)
    assert with_placeholders(text, found) == (
        "SELECT t.v, '{{x}}' FROM {nyala_0} AS `t` WHERE k IN (SELECT z.k FROM {nyala_1} AS z)"
    )


NO_SELECT = r"accepts only one SELECT \(SELECT \* FROM t instead of TABLE t\).* for statements without"
NOT_TAKEN = "table 't': TABLESAMPLE, PIVOT and time travel are not supported here; use a subquery, or at="
REFUSED = {
    "DELETE FROM t": NO_SELECT,
    "INSERT INTO t VALUES (1, 2)": NO_SELECT,
    "MERGE INTO t USING u ON t.k = u.k WHEN MATCHED THEN DELETE": NO_SELECT,
    "CREATE TABLE z AS SELECT * FROM t": NO_SELECT,
    "SELECT 1; SELECT 2": NO_SELECT,
    "TABLE t": NO_SELECT,
    "VALUES (1)": NO_SELECT,
    "SHOW TABLES": NO_SELECT,
    "EXPLAIN SELECT * FROM t": NO_SELECT,
    "": NO_SELECT,
    "SELEC k FROM t": "has a syntax error",
    "TABLE t LIMIT 3": "has a syntax error",
    "FROM t |> SET v = v + 1": "has a syntax error",
    "SELECT * FROM t TABLESAMPLE (10 PERCENT)": NOT_TAKEN,
    "SELECT * FROM t TABLESAMPLE (3 ROWS)": NOT_TAKEN,
    "SELECT k FROM t TABLESAMPLE (BUCKET 1 OUT OF 2)": NOT_TAKEN,
    "SELECT * FROM t PIVOT (sum(v) FOR k IN (1, 2))": NOT_TAKEN,
    "SELECT * FROM t VERSION AS OF 1": NOT_TAKEN,
    "SELECT * FROM t TIMESTAMP AS OF '2026-01-01'": NOT_TAKEN,
}


@pytest.mark.parametrize("text", REFUSED)
def test_only_a_select_is_accepted(text: str) -> None:
    """The message says what to use for other statements."""
    with pytest.raises(InvalidArgumentError, match=REFUSED[text]):
        find_uses(text, TABLES.get)


def test_syntax_errors_do_not_show_classes_of_the_parser() -> None:
    with pytest.raises(
        InvalidArgumentError, match="has a syntax error: Expected table name, line 1, at 'where'$"
    ):
        find_uses("SELECT k FROM where", TABLES.get)
    with pytest.raises(
        InvalidArgumentError, match="has a syntax error: Where is incomplete, line 1, at 'WHERE'$"
    ):
        find_uses("SELECT k FROM t WHERE", TABLES.get)


@pytest.mark.parametrize(
    ("where", "columns", "left"),
    [
        ("k BETWEEN -5 AND 60 AND d = DATE '2026-01-01'", "v", "TRUE AND TRUE"),
        ("(t.k > 5) AND v IN ('a', 'b') AND k IN (1,2 );", "v", "(TRUE) AND TRUE AND TRUE;"),
        ("k > 5 OR `k` < 3 GROUP BY v", "v", "TRUE GROUP BY v"),
        ("NOT (NOT (k = 5))", "v", "NOT (NOT (TRUE))"),
        # Spark orders NaN above all numbers. A scan does too, but such terms are not replaced.
        ("g < 3 AND k = 1", "v g", "g < 3 AND TRUE"),
        # Terms that the scan does not get, and terms whose text alone means something else.
        ("upper(v) = 'A' AND k = 1", "v", "upper(v) = 'A' AND TRUE"),
        ("NOT k > 5", "k v", None),
        ("NOT (k > 5)", "k v", None),
        ("k > +5 AND +5 < k", "k v", "TRUE AND +5 < k"),
        ("+k > 5", "k v d n t f g", None),
        ("(k > 5) OR (k < 3)", "k v", None),
        ("k IN(1,2)AND v = 'a'GROUP BY v", "v", "TRUE AND TRUE GROUP BY v"),
        ("d > CAST('2026-01-01' AS DATE)", "v d", None),
        ("k IS NULL", "k v", None),
        ("k > 5L", "k v", None),
        ("k = 1 QUALIFY row_number() OVER (ORDER BY v) = 1", "k v", None),
    ],
)
def test_terms_that_the_scan_applies_become_true(where: str, columns: str, left: str | None) -> None:
    """Such terms are replaced by TRUE (Q5), so statements that differ only in numbers have the same text."""
    text = f"SELECT v FROM t WHERE {where}"
    (use,) = find_uses(text, TABLES.get)
    assert " ".join(use.columns) == columns
    changed = f"SELECT v FROM {{nyala_0}} AS `t` WHERE {where if left is None else left}"
    assert with_placeholders(text, [use]) == changed


def test_a_statement_with_a_unary_plus_is_not_analysed() -> None:
    """sqlglot loses the sign, and in Spark `+v` is a number. A plus between values does no harm."""
    w = pa.schema(
        [("k", pa.int64()), ("v", pa.string()), ("time", pa.timestamp("us")), ("date", pa.date32())]
    )
    for text, where in (
        ("SELECT k FROM w WHERE time + INTERVAL 1 HOUR > now() AND date + k > date AND k = 1", "k = 1"),
        ("SELECT k + 1 FROM w WHERE (k)+k > +5 AND v = 'a'", "v = 'a'"),
        ("SELECT k FROM w WHERE +v = 'a'", None),
        ("SELECT + k FROM w WHERE v = 'a'", None),
        ("SELECT k FROM w WHERE v = +/* */('a')", None),
        ("SELECT k FROM w WHERE k = 1 AND NOT +v < 'a'", None),
    ):
        (use,) = find_uses(text, {("w",): w}.get)
        assert (None if use.where is None else str(use.where)) == where, text


def test_a_term_on_a_joined_side_is_not_replaced() -> None:
    """ON decides which rows match. WHERE may be applied only to a side that no outer join fills
    with NULL.
    """
    for text in (
        "SELECT t.v FROM t LEFT JOIN u ON t.k = u.k AND u.x = 1",
        "SELECT t.v FROM t LEFT JOIN u ON t.k = u.k WHERE u.x = 1",
        "SELECT t.v FROM t RIGHT JOIN u ON t.k = u.k WHERE t.k = 1",
    ):
        assert not any(use.applied for use in find_uses(text, TABLES.get)), text


def test_with_double_quoted_names_all_columns_are_read() -> None:
    """All columns are read if the session has double-quoted names.

    With `spark.sql.ansi.doubleQuotedIdentifiers`, "text" is a column.
    """
    text = 'SELECT k FROM t WHERE v = "w"'
    assert [str(use.where) for use in find_uses(text, TABLES.get)] == ["v = 'w'"]
    for _ in range(2):
        (use,) = find_uses(text, TABLES.get, double_quoted_names=True)
        assert (use.columns, use.where, use.applied) == (tuple(T.names), None, ())
