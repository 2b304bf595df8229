"""Reads and runs the notebooks of examples/, without Jupyter."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parent.parent / "examples"


def read(path: Path) -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(path.read_text())
    return notebook


def run(path: Path) -> None:
    """Run the code cells in one namespace. A line `print(…)  # text` must print `text`."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for cell in read(path)["cells"]:
        if cell["cell_type"] != "code":
            continue
        code = "".join(cell["source"])
        expected = [match[1] for match in re.finditer(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE)]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"{path.name}, {cell['id']}", "exec"), namespace)
        if expected:
            assert printed.getvalue().splitlines() == expected, cell["id"]
