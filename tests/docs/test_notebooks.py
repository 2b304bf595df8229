"""The notebooks of examples/ run, print what they say, and are committed without outputs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.notebooks import EXAMPLES, read, run

NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def test_each_topic_has_a_notebook() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["cdc_feed", "first_steps", "spark", "time_travel_and_audit"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_have_no_outputs(path: Path) -> None:
    """Outputs would make the difference between two versions hard to read."""
    notebook = read(path)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["cells"][0]["cell_type"] == "markdown"
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(ids) == len(set(ids))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None), cell["id"]


@pytest.mark.parametrize(
    "path", [path for path in NOTEBOOKS if path.stem != "spark"], ids=lambda path: path.stem
)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All code cells run in order. The notebook with Spark runs in tests/spark."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run(path)
