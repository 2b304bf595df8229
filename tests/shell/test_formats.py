"""The output modes: every type, NULL, special characters of a format, no rows, many batches."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from nyala.shell.formats import FORMATS


def printed(mode: str, rows: pa.Table, batch_rows: int = 1000) -> str:
    return "".join(FORMATS[mode](rows.schema, rows.to_batches(max_chunksize=batch_rows)))


VALUES: dict[str, tuple[Any, Any]] = {
    "text": (pa.string(), 'a "b", | c\nd'),
    "number": (pa.int64(), -5),
    "share": (pa.float64(), 0.1),
    "nan": (pa.float64(), float("nan")),
    "exact": (pa.decimal128(9, 2), Decimal("1.20")),
    "truth": (pa.bool_(), True),
    "day": (pa.date32(), dt.date(2026, 1, 2)),
    "time": (pa.timestamp("us", tz="UTC"), dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)),
    "bytes": (pa.binary(), b"\x00\xff"),
    "list": (pa.list_(pa.int64()), [1, None]),
    "struct": (pa.struct([("a", pa.decimal128(9, 2))]), {"a": Decimal("1.50")}),
    "span": (pa.month_day_nano_interval(), pa.MonthDayNano([1, 3, 500_000_000])),
    "empty": (pa.string(), ""),
}
ROWS = pa.table(
    {name: pa.array([value, None], type) for name, (type, value) in VALUES.items()},
)


def test_csv() -> None:
    """NULL is an empty field without quotes, and an empty text has quotes."""
    text = printed("csv", ROWS)
    assert text.splitlines()[-1] == "," * (len(VALUES) - 1)  # NULL has no quotes, an empty text has
    head, row, _ = csv.reader(io.StringIO(text))
    assert dict(zip(head, row, strict=True)) == {
        "text": 'a "b", | c\nd',
        "number": "-5",
        "share": "0.1",
        "nan": "nan",
        "exact": "1.20",
        "truth": "true",
        "day": "2026-01-02",
        "time": "2026-01-02T03:00:00Z",
        "bytes": "00ff",
        "list": "[1, null]",
        "struct": '{"a": "1.50"}',
        "span": "P1M3DT0.5S",
        "empty": "",
    }
    assert text.splitlines()[-2].endswith(',""')


def test_json() -> None:
    """Each row is an object, and NULL is null."""
    row, nulls = json.loads(printed("json", ROWS))
    assert nulls == dict.fromkeys(VALUES)
    assert row == {
        "text": 'a "b", | c\nd',
        "number": -5,
        "share": 0.1,
        "nan": "NaN",
        "exact": "1.20",
        "truth": True,
        "day": "2026-01-02",
        "time": "2026-01-02T03:00:00Z",
        "bytes": "00ff",
        "list": [1, None],
        "struct": {"a": "1.50"},
        "span": "P1M3DT0.5S",
        "empty": "",
    }


SMALL = ROWS.select(["text", "number", "list"])


def test_table() -> None:
    """Numbers are aligned right. A text of several lines takes several lines."""
    assert printed("table", SMALL).splitlines() == [
        "text        number  list",
        'a "b", | c      -5  [1, null]',
        "d",
        "NULL          NULL  NULL",
    ]


def test_markdown() -> None:
    """Special characters of Markdown tables are escaped."""
    assert printed("md", SMALL).splitlines() == [
        "| text | number | list |",
        "| --- | --: | --- |",
        '| a "b", \\| c\\nd | -5 | [1, null] |',
        "| NULL | NULL | NULL |",
    ]


def test_lines() -> None:
    """Each value is on its own line, and rows are separated by an empty line."""
    assert printed("line", SMALL).splitlines() == [
        '  text = a "b", | c',
        "         d",
        "number = -5",
        "  list = [1, null]",
        "",
        "  text = NULL",
        "number = NULL",
        "  list = NULL",
    ]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("table", "a  b\n"),
        ("csv", '"a","b"\n'),
        ("json", "[]\n"),
        ("md", "| a | b |\n| --: | --- |\n"),
        ("line", ""),
    ],
)
def test_no_rows(mode: str, expected: str) -> None:
    """Without rows, a mode prints its header, `[]` or nothing."""
    assert (
        printed(mode, pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.string())})) == expected
    )


@pytest.mark.parametrize("mode", FORMATS)
def test_batches_do_not_change_the_output(mode: str) -> None:
    rows = pa.table({"a": list(range(10, 99)), "b": ["x"] * 89})
    assert printed(mode, rows, 7) == printed(mode, rows)


def test_two_columns_with_one_name() -> None:
    """JSON gives them different names, as DuckDB does. The other modes show the name twice."""
    rows = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    assert printed("json", rows) == '[{"a": 1, "a_1": 2}]\n'
    assert printed("table", rows) == "a  a\n1  2\n"
    assert printed("csv", rows) == '"a","a"\n1,2\n'
    assert printed("md", rows) == "| a | a |\n| --: | --: |\n| 1 | 2 |\n"
    assert printed("line", rows) == "a = 1\na = 2\n"
    several = pa.Table.from_arrays(
        [pa.array([value]) for value in range(5)], names=["a", "a", "a_1", "a", "b"]
    )
    assert printed("json", several) == '[{"a": 0, "a_2": 1, "a_1": 2, "a_3": 3, "b": 4}]\n'


def test_a_text_of_several_lines() -> None:
    """Line breaks are kept. Other control characters are replaced, because they could move the
    cursor.
    """
    rows = pa.table({"plan": ["one\n  two\x1b\n", "three"], "n": [1, 2], "rest": ["x", "y\nz"]})
    assert printed("table", rows).splitlines() == [
        "plan       n  rest",
        "one        1  x",
        "  two\\x1b",
        "",
        "three      2  y",
        "              z",
    ]
    assert printed("line", rows.select(["plan", "n"])) == (
        "plan = one\n         two\\x1b\n       \n   n = 1\n\nplan = three\n   n = 2\n"
    )
    assert printed("table", pa.table({"create": ["a\n  b"]})) == "create\na\n  b\n"
