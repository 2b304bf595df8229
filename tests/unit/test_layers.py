"""Imports follow the list of layers, no modules import each other in a circle, and folders are small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]


def test_imports_point_downwards() -> None:
    """`lint-imports` finds no import of a module in the same or a higher layer."""
    code = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    found = subprocess.run(
        [sys.executable, "-c", code, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_no_modules_import_each_other_in_a_circle() -> None:
    """No module imports itself through other modules, counting imports inside functions."""
    graph = grimp.build_graph("nyala", exclude_type_checking_imports=True, cache_dir=None)
    left = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    while free := {module for module, imported in left.items() if not imported & left.keys()}:
        left = {module: imported for module, imported in left.items() if module not in free}
    assert not left, f"in a circle, or importing one: {sorted(left)}"


def test_folders_are_small() -> None:
    """A folder has at most 16 modules, without `__init__.py`, so that a reader can survey it."""
    folders = {path.parent for path in (ROOT / "src").rglob("*.py")}
    counts = {str(folder.relative_to(ROOT)): len(list(folder.glob("[!_]*.py"))) for folder in folders}
    assert {name: count for name, count in counts.items() if count > 16} == {}
