"""Results as pages: bench/RESULTS.md has one block per part and scale; a new run replaces the block of its own.

Older figures are in the history of the file. Each block says when, where and with which versions it was measured.
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

Written by `make bench` and `make bench-spark`; what is measured, and how to read it, says [README.md](README.md). One
block for each part and scale, from its latest run. "×" is a ratio within that run.
"""
PROFILES: Final = (
    "Profiles: own time of functions under cProfile, which makes calls of Python slower than they are; what waits and "
    "engines take in brackets, before what took longest of the rest"
)


@dataclass
class Table:
    """Cells are text; the first column is aligned left, the others right."""

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
    """A figure that the project set itself, and what came out."""

    text: str
    figure: str
    met: bool | None

    def markdown(self) -> str:
        verdict = {True: "met", False: "**not met**", None: "not measured"}[self.met]
        return f"- {self.text}: {self.figure}: {verdict}"


@dataclass
class Report:
    """One part at one scale."""

    part: str
    scale: str
    title: str
    facts: list[str] = field(default_factory=list)
    aims: list[Aim] = field(default_factory=list)
    tables: list[tuple[str, Table]] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    profiles: dict[str, str] = field(default_factory=dict)  # of what: where its time goes
    plots: dict[str, str] = field(default_factory=dict)  # file name: SVG

    def markdown(self, machine: Sequence[str], now: dt.datetime) -> str:
        lines = [f"<!-- {self.part} {self.scale} -->", f"## {self.title}", ""]
        lines += [f"{now:%Y-%m-%d %H:%M} UTC.", *(f"{line}." for line in machine), ""]
        lines += [*(f"{fact}." for fact in self.facts), ""]
        if self.aims:
            lines += ["Aims:", "", *(aim.markdown() for aim in self.aims), ""]
        for heading, table in self.tables:
            lines += [f"{heading}:", "", table.markdown(), ""]
        if self.profiles:
            lines += [f"{PROFILES}:", "", *(f"- {what}: {text}" for what, text in self.profiles.items()), ""]
        for name in self.plots:
            lines += [f"![{self.title}]({name})", ""]
        lines += ["Settings:", "", *(f"- {name}: {text}" for name, text in self.settings.items()), ""]
        lines += [f"<!-- end {self.part} {self.scale} -->"]
        return "\n".join(lines)

    def text(self) -> str:
        lines = [self.title, *(f"  {fact}." for fact in self.facts)]
        for heading, table in self.tables:
            lines += ["", f"  {heading}:", table.text()]
        if self.profiles:
            lines += ["", f"  {PROFILES}:", *(f"  - {what}: {text}" for what, text in self.profiles.items())]
        lines += ["", *("  " + aim.markdown() for aim in self.aims)]
        return "\n".join(lines)


def save(report: Report, machine: Sequence[str], folder: Path = FOLDER) -> list[Path]:
    """Write the plots, and the block into RESULTS.md; the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, svg in report.plots.items():
        (folder / name).write_text(svg)
        written.append(folder / name)
    page = folder / "RESULTS.md"
    text = page.read_text() if page.exists() else TITLE
    block = report.markdown(machine, dt.datetime.now(dt.UTC))
    mark = re.escape(f"{report.part} {report.scale}")
    old = re.compile(rf"^<!-- {mark} -->\n.*?^<!-- end {mark} -->$", re.MULTILINE | re.DOTALL)
    if old.search(text):
        text = old.sub(lambda _: block, text, count=1)
    else:
        text = text.rstrip("\n") + "\n\n" + block
    page.write_text(text.rstrip("\n") + "\n")
    return [*written, page]


# ------------------------------------------------------------------------------------------- numbers as text


def seconds(value: float | None) -> str:
    """Three digits, in the unit that suits."""
    if value is None:
        return "–"
    if value < 1:
        return f"{value * 1e3:.3g} ms" if value < 0.9995 else "1 s"
    return f"{value:.3g} s" if value < 1000 else f"{value:,.0f} s"


def megabytes(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e6:,.1f} MB" if value < 1e9 else f"{value / 1e6:,.0f} MB"


def times(value: float | None) -> str:
    """A ratio."""
    return "–" if value is None else f"{value:.2f} ×" if value < 100 else f"{value:,.0f} ×"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.2f} %" if value < 0.1 else f"{value * 100:.0f} %"
