"""docs/how-to/expressions.md lists exactly the functions of the expression language."""

from __future__ import annotations

import re
from pathlib import Path

from nyala.schema.expressions.functions import FUNCTIONS

PAGE = Path(__file__).parent.parent.parent / "docs/how-to/expressions.md"


def test_every_function_is_listed_and_every_one_that_is_listed_exists() -> None:
    section = PAGE.read_text().split("## Functions")[1].split("\n## ")[0]
    cells = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    listed = {re.match(r"\w+", code)[0] for cell in cells for code in re.findall(r"`([^`]+)`", cell)}  # type: ignore[index]
    assert listed == set(FUNCTIONS)
