"""docs/reference/sqlalchemy.md lists the parts of SQLAlchemy's suite that do not run, and why."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from tests.sqlalchemy_suite.exclusions import FEATURES, TESTS

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "sqlalchemy.md"


def test_the_page_lists_all_exclusions() -> None:
    """Each reason is a row, with the features and the tests that it excludes."""
    expected: defaultdict[str, set[str]] = defaultdict(set)
    for reason, names in FEATURES.items():
        expected[reason] |= set(names.split())
    for name, reason in TESTS.items():
        expected[reason].add(name)
    section = PAGE.read_text().partition("## SQLAlchemy's own tests")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")][2:]
    listed = {reason.strip(): set(re.findall("`([^`]+)`", names)) for reason, names in rows}
    assert listed == dict(expected)
