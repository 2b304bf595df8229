"""The Spark examples of README and docs run as they are written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if any(re.search(r"\bspark\b", text) for text in BLOCK.findall(page.read_text()))
]
# A page that does not start Spark itself is given a session.
SESSION = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").getOrCreate()
"""


def test_the_pages_with_spark_are_known() -> None:
    """The page on Spark, and the README's taste of it, are among what is run."""
    assert {"README.md", "spark.md"} <= {page.name for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_runs_and_prints_what_it_says(page: Path, tmp_path: Path) -> None:
    """All Python blocks of a page, one after the other, in a new program and an empty folder."""
    code = "\n".join(BLOCK.findall(page.read_text()))
    if "getOrCreate" not in code:
        code = SESSION + code
    (tmp_path / "page.py").write_text(code)
    run = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=280
    )
    assert run.returncode == 0, run.stderr[-4000:]
    said = [match[1].strip() for match in re.finditer(r"^\s*print\(.*\)\s+# (.*)$", code, re.MULTILINE)]
    assert run.stdout.splitlines() == said
