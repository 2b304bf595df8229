"""The Spark examples of README and docs run as written, in the session of all tests."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if any(re.search(r"\bspark\b", text) for text in BLOCK.findall(page.read_text()))
]
# Spark resolves a relative path in the folder in which its JVM started, so the pages get absolute paths.
FOLDER = re.compile(r"""(['"])(store|shop|weather|backups|checkpoint)\1""")


def test_the_spark_page_and_the_readme_are_run() -> None:
    assert {"README.md", "first-table.md", "spark.md"} <= {page.name for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_page_run(
    spark: SparkSession, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All Python blocks of a page run, one after the other, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    code = "\n".join(BLOCK.findall(page.read_text()))
    output = [match[1].strip() for match in re.finditer(r"^\s*print\(.*\)\s+# (.*)$", code, re.MULTILINE)]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(FOLDER.sub(rf"\1{tmp_path}/\2\1", code), page.name, "exec"), {"spark": spark})
    spark.sql("DROP TABLE IF EXISTS r")  # Spark's catalogue keeps tables after the page
    assert printed.getvalue().splitlines() == output
