"""Each script of `sql/` prints what it says, and DuckDB's own tables agree: see `sql_runner`.

`--rewrite-scripts` writes the output into the files: review the difference before you commit it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.sql_runner import SqlRunner, parse, render
from tests.support import folder_in_memory

SCRIPTS = sorted((Path(__file__).parent / "sql").glob("*.txt"))
STATEMENTS_MIN = 300


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, request: pytest.FixtureRequest) -> None:
    """Each block prints the lines of the script, and each statement has DuckDB's outcome."""
    blocks = parse(path.read_text())
    with folder_in_memory() as folder:
        runner = SqlRunner(folder / "store")
        try:
            for block in blocks:
                printed = runner.run(block)
                if request.config.getoption("--rewrite-scripts"):
                    block.expected = printed
                else:
                    assert printed == (block.expected or []), "\n".join(block.lines)
            runner.check()
        finally:
            runner.close()
    if request.config.getoption("--rewrite-scripts"):
        path.write_text(render(blocks))


def test_there_are_enough_statements() -> None:
    """The scripts together have at least 300 statements."""
    texts = [
        text
        for path in SCRIPTS
        for block in parse(path.read_text())
        for kind, text in block.steps()
        if kind == "sql"
    ]
    assert len(texts) >= STATEMENTS_MIN
