"""The candidates that Tab offers, and when Enter runs the text."""

from __future__ import annotations

import pytest

from nyala.shell.completion import candidates
from nyala.shell.shell import is_complete

TABLES = {"metrics": ["host", "time", "value"], "Odd names": ["a b", "key"]}


@pytest.mark.parametrize(
    ("text", "word", "expected"),
    [
        ("SEL", "SEL", ["SELECT"]),
        ("sel", "sel", ["select"]),
        ("SELECT va", "va", ["value", "values"]),
        ("SELECT * FROM met", "met", ["metrics"]),
        ("SELECT metrics.", "", ["host", "time", "value"]),
        ("SELECT m.t| FROM metrics m", "t", ["time"]),
        ("SELECT m.t| FROM metrics AS m", "t", ["time"]),
        ("SELECT nothing.t", "t", []),
        ('SELECT a| FROM "Odd names"', "a", ['"a b"', "add", "all", "alter", "and", "as", "asc", "at"]),
        ("SELECT h| FROM metrics", "h", ["host", "having"]),
        (".t", ".t", [".tables", ".timing"]),
        (".schema m", "m", ["metrics"]),
        (".schema metrics ", "", []),
        (".mode j", "j", ["json"]),
        (".timing o", "o", ["on", "off"]),
        (".nothing m", "m", []),
    ],
)
def test_candidates(text: str, word: str, expected: list[str]) -> None:
    """Tab completes the word before the cursor with names that are possible there."""
    place = text.find("|") if "|" in text else len(text)
    assert candidates(text.replace("|", ""), place, lambda: TABLES) == (word, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("  \n", True),
        ("SELECT 1", False),
        ("SELECT 1;", True),
        ("SELECT 1;  \n", True),
        ("SELECT 1; SELECT", False),
        ("SELECT ';", False),
        ("SELECT ';';", True),
        ('SELECT ";', False),
        ("SELECT $$;", False),
        ("SELECT $$;$$;", True),
        ("SELECT (1;", False),
        ("SELECT /* ;", False),
        ("SELECT 1 -- ;", False),
        ("SELECT 1 -- ;\n;", True),
        (".mode csv", True),
        ("SELECT 1;\n.mode csv", True),
        ("SELECT 1 +\n.5", False),
    ],
)
def test_enter_runs_complete_statements(text: str, expected: bool) -> None:
    assert is_complete(text) is expected
