"""The README is short, and its chart and figures are those of bench/RESULTS.md."""

from __future__ import annotations

import importlib.util
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
RESULTS = (ROOT / "bench" / "RESULTS.md").read_text()


@pytest.fixture(scope="module")
def draw_chart() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_chart", ROOT / "tools" / "draw_chart.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_has_at_most_150_lines() -> None:
    assert len(README.splitlines()) <= 150


def test_the_chart_is_drawn_from_the_present_results(draw_chart: ModuleType) -> None:
    """After a new run of the benchmark, tools/draw_chart.py draws the chart again."""
    assert (ROOT / "docs" / "images" / "operations.svg").read_text() == draw_chart.draw(RESULTS)


def test_the_chart_has_each_time_and_the_date(draw_chart: ModuleType) -> None:
    """Each bar has its time from RESULTS.md, and a longer time has a longer bar."""
    chart = draw_chart.draw(RESULTS)
    when, times = draw_chart.read_results(RESULTS)
    shown = [time for of_stores in times.values() for time in of_stores.values()]
    assert re.findall(r">([\d.]+ m?s)</text>", chart)[-len(shown) :] == shown
    assert when in chart and "commit" in when
    bars = [float(width) for width in re.findall(r'width="([\d.]+)" height="11" fill="#[^f]', chart)][4:]
    seconds = [float(time.split()[0]) / (1000 if time.endswith("ms") else 1) for time in shown]
    ordered = [bar for _, bar in sorted(zip(seconds, bars, strict=True))]
    assert ordered == sorted(bars)


def test_ratios_in_the_readme_are_those_of_the_results() -> None:
    """The TPC-H ratios are the geometric means of the page, first warm, then cold."""
    means = re.search(r"^\| geometric mean \|  \| (.+?) \| (.+?) \|", RESULTS, re.MULTILINE)
    assert means is not None
    assert re.findall(r"\d\.\d\d ×", README) == [means[2], means[1]]


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "images").glob("*.svg")), ids=lambda path: path.name)
def test_pictures_have_a_title_and_a_background_and_load_nothing(path: Path) -> None:
    """The background makes them readable in dark mode, too."""
    root = ElementTree.parse(path).getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert root.findtext(f"{space}title")
    ground = root.find(f"{space}rect")
    assert ground is not None and ground.get("fill") in ("#ffffff", "#292929")
    assert "url(http" not in path.read_text()
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert any(f"images/{path.name})" in page.read_text() for page in pages)
