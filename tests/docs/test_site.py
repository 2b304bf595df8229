"""The documentation site has every page, and mkdocs builds it without warnings."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(page for page in listed if page.startswith("docs/")) == sorted(pages)
    assert [page for page in listed if not (ROOT / page).exists()] == []


def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    """mkdocs warns about broken links, and about names that the reference does not find."""
    built = subprocess.run(
        [sys.executable, "tools/docs", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    reference = (tmp_path / "docs" / "reference" / "python" / "index.html").read_text()
    assert 'id="nyala.Table.upsert"' in reference and 'id="nyala.connect"' in reference
