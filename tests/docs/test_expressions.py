"""docs/how-to/expressions.md lists exactly the functions of the expression language."""

from __future__ import annotations

import re
from pathlib import Path

from nyala.schema.expressions.functions import FUNCTIONS

PAGE = Path(__file__).parent.parent.parent / "docs/how-to/expressions.md"


def test_the_page_lists_exactly_the_existing_functions() -> None:
    section = PAGE.read_text().split("## Functions")[1].split("\n## ")[0]
    cells = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    listed = {re.match(r"\w+", code)[0] for cell in cells for code in re.findall(r"`([^`]+)`", cell)}  # type: ignore[index]
    assert listed == set(FUNCTIONS)
