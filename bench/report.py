"""Writes results to bench/RESULTS.md, which has one block per part from its latest full run. Older
ones are in git.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
TITLE: Final = """\
# Results

`make bench` and `make bench-spark` write this page: one block per part, from its latest full run.
[README.md](README.md) says what is measured and how to read it. "×" is a ratio within that run.
"""


@dataclass
class Table:
    """A table of text cells. The first column is aligned left, the others right."""

    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)

    def markdown(self) -> str:
        head = "| " + " | ".join(self.columns) + " |"
        rule = "|---|" + "---:|" * (len(self.columns) - 1)
        return "\n".join([head, rule, *("| " + " | ".join(row) + " |" for row in self.rows)])

    def text(self) -> str:
        rows = [list(self.columns), *map(list, self.rows)]
        widths = [max(len(row[index]) for row in rows) for index in range(len(self.columns))]
        return "\n".join(
            "  "
            + "  ".join(
                cell.ljust(width) if index == 0 else cell.rjust(width)
                for index, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        )


@dataclass(frozen=True)
class Aim:
    """A figure that the project wants to reach, and the measured one. met: None if it was not
    measured.
    """

    text: str
    figure: str
    met: bool | None

    def markdown(self) -> str:
        verdict = {True: "met", False: "**missed**", None: "not measured"}[self.met]
        return f"- {self.text}: {self.figure} ({verdict})"


def at_most(text: str, figure: float | None, bound: float, shown: str | None = None) -> Aim:
    """Return the aim that a ratio is not above a bound. shown: text for the ratio."""
    return Aim(text, shown or times(figure), None if figure is None else figure <= bound)


@dataclass
class Report:
    """The result of one part: a note about the data, one table that fits a screen, and the aims."""

    part: str
    title: str
    note: str
    table: Table
    aims: list[Aim] = field(default_factory=list)

    def markdown(self, machine: Sequence[str], now: dt.datetime) -> str:
        lines = [f"<!-- {self.part} -->", f"## {self.title}", "", f"{now:%Y-%m-%d %H:%M} UTC. {self.note}."]
        lines += [
            f"{'. '.join(machine)}.",
            "",
            self.table.markdown(),
            "",
            *(aim.markdown() for aim in self.aims),
        ]
        return "\n".join([*lines, f"<!-- end {self.part} -->"])

    def text(self) -> str:
        aims = "\n".join("  " + aim.markdown() for aim in self.aims)
        return f"{self.title}\n  {self.note}.\n{self.table.text()}\n{aims}"


def save(report: Report, machine: Sequence[str], folder: Path = FOLDER) -> Path:
    """Write a block to RESULTS.md in place of the one of the last run. Return the page."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "RESULTS.md"
    text = page.read_text() if page.exists() else TITLE
    block = report.markdown(machine, dt.datetime.now(dt.UTC))
    old = re.compile(rf"^<!-- {report.part} -->\n.*?^<!-- end {report.part} -->$", re.MULTILINE | re.DOTALL)
    text = old.sub(lambda _: block, text) if old.search(text) else f"{text.rstrip()}\n\n{block}"
    page.write_text(text.rstrip("\n") + "\n")
    return page


# ── numbers as text


def seconds(value: float | None) -> str:
    """Format seconds with three digits, in a suitable unit."""
    if value is None:
        return "–"
    if value < 1:
        return f"{value * 1e3:.3g} ms" if value < 0.9995 else "1 s"
    return f"{value:.3g} s" if value < 1000 else f"{value:,.0f} s"


def megabytes(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e6:,.1f} MB" if value < 1e9 else f"{value / 1e6:,.0f} MB"


def times(value: float | None) -> str:
    """Format a ratio."""
    return "–" if value is None else f"{value:.2f} ×" if value < 100 else f"{value:,.0f} ×"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.2f} %" if value < 0.1 else f"{value * 100:.0f} %"
