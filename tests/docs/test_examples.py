"""The examples of README and docs run and print what the pages say."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from pathlib import Path

import duckdb
import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python blocks of a page run in order, in one namespace and an empty folder.

    `print(…)   # text` must print this text. Blocks that name `spark` or `df` run in the tests with Spark.
    """
    if page.name == "sql.md" and duckdb.__version__.startswith("1."):
        pytest.skip("the page shows what DuckDB 2 asks a scan for")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for number, text in enumerate(blocks(page, "python")):
        ast.parse(text)
        if re.search(r"\bspark\b|\bdf\b", text):
            continue
        expected = [
            match[1].strip() for match in re.finditer(r"^\s*print\(.*\)\s+# (.*)$", text, re.MULTILINE)
        ]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(text, f"{page.name}[{number}]", "exec"), namespace)
        if expected:
            assert printed.getvalue().splitlines() == expected


def test_the_commands_of_the_readme_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in ("demo", "test"):
        assert f"make {command}" in (ROOT / "README.md").read_text()
        assert re.search(rf"^{command}:", makefile, re.MULTILINE)


def test_files_and_functions_named_in_prose_exist() -> None:
    missing = []
    for page in [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *PAGES[1:]]:
        text = page.read_text()
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            if not (page.parent / target).exists():
                missing.append((page.name, target))
        for path in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)(?:: (\w+))?`", text):
            file = ROOT / "src" / "nyala" / path[0]
            if not file.exists() and not (ROOT / path[0]).exists():
                missing.append((page.name, path[0]))
            elif path[1] and f"def {path[1]}(" not in file.read_text():
                missing.append((page.name, f"{path[0]}: {path[1]}"))
    assert missing == []
