"""Cells of a CSV: what they mean in a column, which are bad, and what they probably mean."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.cli.csv_cells import read_cells, why
from nyala.schema.types import parse_type

GOOD = {
    "int64": {"5": 5, " -5 ": -5, "0x1F": 31, "9223372036854775807": 2**63 - 1},
    "double": {"1.5": 1.5, "-1e3": -1000.0, "inf": float("inf"), " 2": 2.0},
    "bool": {"true": True, "FALSE": False, "1": True, "0": False},
    "decimal(9,3)": {"1.5": 1.5, " 2 ": 2, "1e2": 100},
    "binary": {"00ff": b"\x00\xff", "": b"", "0x00": b"\x00"},
}
BAD = ["x", "1,5", "--1", "1.2.3", "é", "1 2", "n/a", "12\n", "zz"]


@given(st.sampled_from(sorted(GOOD)), st.data())
def test_each_cell_is_judged_by_itself(kind: str, data: Any) -> None:
    """A bad cell takes a good one with it, or is taken for a value."""
    cells = [*GOOD[kind], *BAD, None]
    texts = data.draw(st.lists(st.sampled_from(cells), max_size=100))
    batch = pa.RecordBatch.from_pydict(
        {"k": pa.array(texts, pa.string()), "other": pa.array(texts, pa.string())}
    )
    read, bad = read_cells(batch, {"k": parse_type(kind)})
    # `n/a` and the like are no value of any type; "12\n" is a number with space around it, but no hex.
    strip = kind != "binary"
    wanted = {text.strip() if strip else text: value for text, value in GOOD[kind].items()}
    if strip and kind != "bool":
        wanted["12"] = 12
    expected = [None if text is None else wanted.get(text.strip() if strip else text) for text in texts]
    known = [text is None or (text.strip() if strip else text) in wanted for text in texts]
    assert [
        float(v) if kind.startswith("dec") and v is not None else v for v in read.column("k").to_pylist()
    ] == expected
    assert [cell.row for cell in bad] == [row for row, good in enumerate(known) if not good]
    assert all(cell.column == "k" for cell in bad)
    assert read.column("other").to_pylist() == texts


def test_of_a_row_the_first_bad_cell_is_told() -> None:
    """One row is one error, in the order of the columns."""
    batch = pa.RecordBatch.from_pydict({"a": ["1", "x", "3"], "b": ["x", "x", "3"], "c": ["x", "x", "x"]})
    read, bad = read_cells(batch, {"a": parse_type("int8"), "b": parse_type("float")})
    assert [tuple(cell) for cell in bad] == [(0, "b"), (1, "a")]
    assert read.to_pydict() == {"a": [1, None, 3], "b": [None, None, 3.0], "c": ["x", "x", "x"]}


@pytest.mark.parametrize(
    ("text", "kind", "hint"),
    [
        ("", "int8", "NULL only where no quotes stand around it"),
        ("N/A", "int8", "if that means NULL: --null N/A"),
        ("-", "double", "if that means NULL: --null -"),
        ("#N/A", "double", "--null '#N/A'"),
        ("yes", "bool", "true or false, or 1 or 0"),
        ("zz", "binary", "hex, such as 00ff"),
        ("31.12.2026", "int64", "it looks like a date"),
        ("12/31/2026 10:00", "double", "it looks like a date"),
        ("2026-12-31", "decimal(9,2)", "it looks like a date"),
        ("1.5", "int32", "whole numbers only"),
        ("1e3", "int32", "whole numbers only"),
        ("99999999999999999999", "int64", "beyond 64 bits"),
        ("1" * 90, "decimal(9,2)", "more digits than can be read"),
        ("1,5", "double", "no decimal comma"),
        ("1.234,56", "decimal(9,2)", "no decimal comma"),
        ("1,234,567", "int64", "nothing between its thousands"),
        ("1 234", "int64", "nothing between its thousands"),
        ("5 kg", "double", "without its unit"),
        ("$5.20", "double", "without its unit"),
        ("12%", "int8", "without its unit"),
        ("Oslo", "int8", "--null Oslo reads it as NULL, and with --create, --type c=string makes"),
        ("two words", "int8", "--null 'two words' reads"),
        ("x" * 100, "int8", "--null WORD reads"),
    ],
)  # fmt: skip
def test_what_a_cell_probably_means(text: str, kind: str, hint: str) -> None:
    """The word for NULL is rarely what is wrong: a decimal comma, a date, a column of the wrong type."""
    said = why(text, parse_type(kind), "c")
    assert said.startswith("column 'c': '") and f" is no {kind}; " in said and hint in said
    assert len(said) < 250
