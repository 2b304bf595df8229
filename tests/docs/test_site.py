"""The documentation site has every page, and mkdocs builds it without warnings."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(page for page in listed if page.startswith("docs/")) == sorted(pages)
    assert [page for page in listed if not (ROOT / page).exists()] == []


def _python_with_mkdocs() -> str | None:
    """Return the Python of `make docs`, or the Python of this process."""
    made = ROOT / ".venv-docs" / "bin" / "python"
    if made.exists():
        return str(made)
    return sys.executable if importlib.util.find_spec("mkdocs") else None


def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    """mkdocs warns about broken links, and about names that the reference does not find."""
    python = _python_with_mkdocs()
    if python is None:
        pytest.skip("mkdocs is not installed: make docs")
    built = subprocess.run([python, "tools/docs", str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    reference = (tmp_path / "docs" / "reference" / "python" / "index.html").read_text()
    assert 'id="nyala.Table.upsert"' in reference and 'id="nyala.connect"' in reference
