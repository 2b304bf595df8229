"""Line plots as SVG: panels under one another, a legend each, a linear or a logarithmic scale.

Written here because a plotting library would be the heaviest thing that the benchmarks install.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

COLOURS = ("#0b6e4f", "#c8553d", "#3f6fb5", "#8a5aa8", "#b58900", "#5b6770", "#d16ba5")
WIDTH, PANEL, LEFT, RIGHT, TOP, GAP, BOTTOM = 860, 210, 74, 190, 46, 62, 40


@dataclass(frozen=True)
class Series:
    """One line: its name, points, and whether it is drawn dashed."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    dashed: bool = False
    colour: int = 0


@dataclass(frozen=True)
class Panel:
    """One diagram. `aim`: a horizontal line with its text."""

    title: str
    series: Sequence[Series]
    log: bool = False
    aim: tuple[float, str] | None = None


def figure(title: str, x_label: str, panels: Sequence[Panel]) -> str:
    """The SVG as text."""
    height = TOP + len(panels) * (PANEL + GAP) + BOTTOM
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" font-weight="600">{escape(title)}</text>',
    ]
    xs = [x for panel in panels for line in panel.series for x in line.xs] or [0.0]
    for number, panel in enumerate(panels):
        out += _panel(panel, TOP + 18 + number * (PANEL + GAP), x_label, (min(xs), max(xs)))
    out.append("</svg>\n")
    return "\n".join(out)


def save(path: Path, text: str) -> None:
    path.write_text(text)


def _panel(panel: Panel, top: float, x_label: str, x_range: tuple[float, float]) -> list[str]:
    points = [(x, y) for line in panel.series for x, y in zip(line.xs, line.ys, strict=True)]
    ys = [y for _, y in points if not panel.log or y > 0] + ([panel.aim[0]] if panel.aim else [])
    if not points or not ys:
        return []
    x_min, x_max = x_range
    y_ticks = _log_ticks(min(ys), max(ys)) if panel.log else _ticks(min(0.0, *ys), max(ys))
    x_ticks = _ticks(x_min, x_max)
    x_max = max(x_max, x_min + 1e-9)
    y_low, y_high = y_ticks[0], y_ticks[-1]
    right, bottom = WIDTH - RIGHT, top + PANEL

    def place_x(x: float) -> float:
        return LEFT + (x - x_min) / (x_max - x_min) * (right - LEFT)

    def place_y(y: float) -> float:
        if panel.log:
            share = (math.log10(max(y, y_low)) - math.log10(y_low)) / (math.log10(y_high) - math.log10(y_low))
        else:
            share = (y - y_low) / (y_high - y_low)
        return bottom - share * PANEL

    out = [f'<text x="{LEFT}" y="{top - 8}" font-weight="600">{escape(panel.title)}</text>']
    for y in y_ticks:
        out.append(
            f'<path d="M{LEFT} {place_y(y):.1f}H{right}" stroke="#e3e6e8"/>'
            f'<text x="{LEFT - 8}" y="{place_y(y) + 4:.1f}" text-anchor="end" fill="#444">{_number(y)}</text>'
        )
    for x in x_ticks:
        if x_min <= x <= x_max:
            out.append(
                f'<text x="{place_x(x):.1f}" y="{bottom + 16}" text-anchor="middle" fill="#444">{_number(x)}</text>'
            )
    out.append(f'<text x="{right}" y="{bottom + 32}" text-anchor="end" fill="#444">{escape(x_label)}</text>')
    if panel.aim is not None:
        y = place_y(panel.aim[0])
        out.append(
            f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#111" stroke-dasharray="2 4"/>'
            f'<text x="{right - 4}" y="{y - 4:.1f}" text-anchor="end" fill="#111">{escape(panel.aim[1])}</text>'
        )
    for row, line in enumerate(panel.series):
        colour = COLOURS[line.colour % len(COLOURS)]
        dash = ' stroke-dasharray="5 4"' if line.dashed else ""
        drawn = [
            (place_x(x), place_y(y)) for x, y in zip(line.xs, line.ys, strict=True) if not panel.log or y > 0
        ]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in drawn)
        if path:
            out.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.6"{dash}/>')
        if len(drawn) <= 12:
            out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour}"/>' for x, y in drawn]
        y = top + 6 + row * 16
        out.append(
            f'<path d="M{right + 10} {y}h20" stroke="{colour}" stroke-width="2"{dash}/>'
            f'<text x="{right + 36}" y="{y + 4}">{escape(line.name)}</text>'
        )
    return out


def _ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers whose first and last enclose the range."""
    if high <= low:
        high = low + 1.0
    raw = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten that enclose the range."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.10g}"
