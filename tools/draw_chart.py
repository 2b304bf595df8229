#!/usr/bin/env python3
"""Draw docs/images/operations.svg from bench/RESULTS.md: run tools/draw_chart.py after a new run of
`ingest_lookup`.

The chart has a group of bars for each operation and a bar for each store, on a logarithmic scale of
time.
"""

import math
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "RESULTS.md"
CHART = ROOT / "docs" / "images" / "operations.svg"

# Steps of the table in RESULTS.md, and their names in the chart.
OPERATIONS = {
    "load": "load 6 million rows",
    "upsert of 1,000, uniform": "upsert 1,000 rows",
    "one column in 10,000 rows": "change 10,000 values",
    "delete of 1,000 keys": "delete 1,000 rows",
    "get, again": "get one row by key",
    "1,000 keys": "get 1,000 rows by key",
}
STORES = {  # column in RESULTS.md: name, color
    "nyala": ("Nyala", "#0b6e4f"),
    "sqlite": ("SQLite", "#8d99ae"),
    "duckdb": ("DuckDB", "#e0a030"),
    "deltalake": ("Delta Lake", "#5c7cba"),
}
MILLISECONDS = {"ms": 1.0, "s": 1000.0}
SHORTEST, LONGEST = 0.01, 100_000.0  # ends of the scale in milliseconds
WIDTH, LEFT, BAR, GAP, TOP, FOOT = 860, 225, 13, 14, 78, 34


def read_results(text):
    """Return (date and machine, {operation: {store: text such as "5.84 s"}}) of the part
    `ingest_lookup`.
    """
    part = re.search(r"<!-- ingest_lookup -->(.*?)<!-- end ingest_lookup -->", text, re.DOTALL)[1]
    when = re.search(r"^\d{4}-\d\d-\d\d.*$", part, re.MULTILINE)[0].rstrip(".")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line[:1] == "|"
    ]
    head, times = rows[0], {row[0]: row for row in rows[2:]}
    return when, {
        step: {store: times[step][head.index(store)].partition(" (")[0] for store in STORES}
        for step in OPERATIONS
    }


def draw(text):
    """Return the chart as SVG. text: that of RESULTS.md."""
    when, times = read_results(text)
    group = BAR * len(STORES) + GAP
    height = TOP + group * len(times) + FOOT
    scale = (WIDTH - LEFT - 80) / math.log10(LONGEST / SHORTEST)

    def place(milliseconds):
        return LEFT + scale * math.log10(milliseconds / SHORTEST)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#1f2933" role="img">',
        "<title>Time of operations in Nyala, SQLite, DuckDB and Delta Lake</title>",
        # An opaque background, so that the text can be read in dark mode.
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
        '<text x="16" y="26" font-size="16" font-weight="bold">'
        "Time of an operation on a table of 6 million rows</text>",
        f'<text x="16" y="46" fill="#52606d">Shorter is better. Logarithmic scale: each line is ten times the '
        f"one before. {when}.</text>",
    ]
    x = LEFT
    for name, color in STORES.values():
        out.append(f'<rect x="{x}" y="56" width="11" height="11" fill="{color}"/>')
        out.append(f'<text x="{x + 16}" y="66">{name}</text>')
        x += 100
    bottom = height - FOOT
    for power in range(round(math.log10(SHORTEST)), round(math.log10(LONGEST)) + 1):
        at = place(10**power)
        label = f"{10**power:g} ms" if power < 3 else f"{10 ** (power - 3):g} s"
        out.append(f'<path d="M{at:.1f} {TOP - 4}V{bottom}" stroke="#e4e7eb"/>')
        out.append(f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle" fill="#52606d">{label}</text>')
    y = TOP
    for step, of_stores in times.items():
        out.append(
            f'<text x="{LEFT - 10}" y="{y + BAR * 2 + 4}" text-anchor="end" font-size="13">{OPERATIONS[step]}</text>'
        )
        for store, shown in of_stores.items():
            number, unit = shown.split()
            end = place(float(number) * MILLISECONDS[unit])
            weight = ' font-weight="bold"' if store == "nyala" else ""
            out.append(
                f'<rect x="{LEFT}" y="{y}" width="{end - LEFT:.1f}" height="{BAR - 2}" fill="{STORES[store][1]}"/>'
            )
            out.append(f'<text x="{end + 5:.1f}" y="{y + 10}" font-size="11"{weight}>{shown}</text>')
            y += BAR
        y += GAP
    return "\n".join([*out, "</svg>"]) + "\n"


if __name__ == "__main__":
    CHART.write_text(draw(RESULTS.read_text()))
    print(f"drew {CHART.relative_to(ROOT)}")
