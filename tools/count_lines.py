"""Count lines of code without docstrings, comments and blank lines: python tools/count_lines.py src
tests
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path

_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def lines_of(source: str) -> int:
    """Return the number of lines of a Python source that have code."""
    text = set()
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                if isinstance(statement.value.value, str):
                    text |= set(range(statement.lineno, (statement.end_lineno or 0) + 1))
    code = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (*_NO_CODE, tokenize.ENDMARKER):
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - text)


def main() -> None:
    for folder in sys.argv[1:] or ["src", "tests"]:
        files = sorted(Path(folder).rglob("*.py"))
        print(
            f"{folder:<24} {sum(lines_of(file.read_text()) for file in files):>7,} lines, {len(files)} files"
        )


if __name__ == "__main__":
    main()
