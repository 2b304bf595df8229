"""Counts the cases that the long tests try. `make test-long` writes the totals to docs/reliability.md.

Each process appends its counts to its own file in the folder NYALA_FIGURES. Without this variable, nothing
is written. `python -m tests.figures FOLDER` adds up the files, and writes a table between two comments of
the page.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

PAGE = Path(__file__).parent.parent / "docs" / "reliability.md"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


@contextmanager
def counted(what: str, unit: str) -> Iterator[list[int]]:
    """Count the cases and measure the seconds of a `with` block.

    Usage: `with counted("power cuts", "images") as tried:`, and `tried.append(1)` for each case.
    """
    tried: list[int] = []
    began_s = time.monotonic()
    try:
        yield tried
    finally:
        folder = os.environ.get("NYALA_FIGURES")
        if folder and tried:
            os.makedirs(folder, exist_ok=True)
            line = {"what": what, "unit": unit, "count": sum(tried), "seconds": time.monotonic() - began_s}
            with open(os.path.join(folder, f"{os.getpid()}.jsonl"), "a") as file:
                file.write(json.dumps(line) + "\n")


def table(folder: Path) -> str:
    """Return the Markdown table of one run."""
    totals: dict[tuple[str, str], tuple[int, float]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in map(json.loads, path.read_text().splitlines()):
            key = (line["what"], line["unit"])
            count, seconds = totals.get(key, (0, 0.0))
            totals[key] = count + line["count"], seconds + line["seconds"]
    versions = (
        f"Python {platform.python_version()}, pyarrow {pa.__version__}, "
        f"{os.cpu_count()} cores, {platform.system()} {platform.release().split('-')[0]}"
    )
    lines = [
        f"Seen on {dt.date.today().isoformat()} ({versions}):",
        "",
        "| what | tried | seconds |",
        "|---|---|---|",
    ]
    lines += [
        f"| {what} | {count:,} {unit} | {seconds:,.0f} |"
        for (what, unit), (count, seconds) in sorted(totals.items())
    ]
    return "\n".join(lines)


def write_page(folder: Path, page: Path = PAGE) -> None:
    """Replace the table in the page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{table(folder)}\n\n{END}{after}")


if __name__ == "__main__":
    write_page(Path(sys.argv[1]))
    print(table(Path(sys.argv[1])))
