"""Breaks one line of code at a time, and reports which broken lines no test finds.

    python tools/mutate.py --seed 1 --each 4 schema keys   four mutants of each of these layers
                                                           (default: of all)
    python tools/mutate.py --tests OTHER_CHECKOUT …        with the tests of another checkout
    python tools/mutate.py --only keys/codec.py:40 …       these mutants again

A mutant inverts a comparison, exchanges `and` and `or` or + and -, negates a condition, adds 1 to a
number, or removes a call. It is written to a copy of `src`, and the fast tests of its layer run. If
all pass, the mutant has survived.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# For each layer: the modules to break, and the tests under tests/ that must fail.
LAYERS = {
    "schema": ("schema/*", "unit/schema scripts/predicates scripts/null_and_nan scripts/schema"),
    "keys": ("keys/*", "unit/keys scripts/scan scripts/pruning"),
    "mvcc": ("mvcc/*", "unit/mvcc scripts/time_travel"),
    "partition": ("partition/*", "unit/partition scripts/partitions scripts/pruning"),
    "cfile": ("cfile/*", "unit/cfile scripts/scan scripts/predicates"),
    "delta": ("delta/*", "unit/delta scripts/time_travel scripts/compaction scripts/change_feed"),
    "rowset": ("rowset/*", "unit/rowset scripts/writes scripts/compaction scripts/pruning"),
    "wal": ("wal/*", "unit/wal scripts/recovery"),
    "catalog": ("catalog/*", "unit/catalog scripts/recovery"),
    "write": (
        "tablet/locate* tablet/resolve* tablet/write_path* tablet/where_writes* tablet/restore*",
        "unit/tablet/test_settle.py unit/tablet/test_w*.py scripts/writes",
    ),
    "compaction": (
        "tablet/compaction* tablet/merge_policy* tablet/history*",
        "unit/tablet/test_comp*.py scripts/compaction",
    ),
    "changes": ("tablet/diff_*", "unit/tablet/test_diff_scan.py scripts/change_feed scripts/time_travel"),
}
FLIPPED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add,
}  # fmt: skip


def breaks(node: ast.AST) -> bool:
    """Put one mistake into the node. Return False if nodes of this kind cannot be broken."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in FLIPPED:
        node.ops[0] = FLIPPED[type(node.ops[0])]()
    elif isinstance(node, (ast.BoolOp, ast.BinOp)) and type(node.op) in FLIPPED:
        node.op = FLIPPED[type(node.op)]()
    elif isinstance(node, ast.If):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        node.value += 1
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        node.value = ast.Constant(None)
    else:
        return False
    return True


def places(tree: ast.Module) -> Iterator[ast.AST]:
    """Return the nodes in functions that can be broken, without assertions, errors and annotations."""

    def walk(node: ast.AST, inside: bool) -> Iterator[ast.AST]:
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if not isinstance(child, ast.AST) or isinstance(
                    child, (ast.Assert, ast.Raise, ast.JoinedStr)
                ):
                    continue
                if inside and breaks(copy.deepcopy(child)):
                    yield child
                yield from walk(child, inside or isinstance(child, ast.FunctionDef))

    return walk(tree, False)


def mutant(path: Path, number: int) -> tuple[str, str]:
    """Return the source of `path` with its place `number` broken, and what was changed."""
    tree = ast.parse(path.read_text())
    node = list(places(tree))[number]
    before = ast.unparse(node).splitlines()[0]
    breaks(node)
    return ast.unparse(ast.fix_missing_locations(tree)), f"{node.lineno}: {before} -> {ast.unparse(node)}"


def modules(patterns: str) -> list[Path]:
    found = [path for pattern in patterns.split() for path in (ROOT / "src" / "nyala").glob(pattern)]
    return sorted(path for path in found if path.suffix == ".py" and path.name != "__init__.py")


def survives(package: Path, path: Path, source: str, tests: str, checkout: Path) -> bool:
    target = package / path.relative_to(ROOT / "src" / "nyala")
    kept = target.read_text()
    target.write_text(source)
    words = tests.split()
    files = [str(file) for word in words if "scripts/" not in word for file in checkout.glob(f"tests/{word}")]
    folders = " or ".join(word[8:] for word in words if word.startswith("scripts/"))
    command = [
        sys.executable,
        *"-m pytest -qx -p no:cacheprovider --hypothesis-seed=1 --timeout=120 -m".split(),
    ]
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    try:
        for chosen in (files, ["tests/scripts", "-k", folders]):
            given = {"cwd": checkout, "env": environment, "timeout": 600, "capture_output": True}
            if subprocess.run([*command, "not long", *chosen], **given).returncode not in (
                0,
                5,
            ):  # pytest's exit code 5: no test was selected
                return False
        return True
    except subprocess.TimeoutExpired:
        return False
    finally:
        target.write_text(kept)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("layers", nargs="*", default=list(LAYERS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--each", type=int, default=4, help="mutants of each layer")
    parser.add_argument("--tests", type=Path, default=ROOT, help="the checkout with the tests")
    parser.add_argument("--only", nargs="*", help="mutants, as this program prints them")
    options = parser.parse_args()
    alive = tried = 0
    with tempfile.TemporaryDirectory() as folder:
        package = Path(shutil.copytree(ROOT / "src", Path(folder) / "src")) / "nyala"
        for layer in options.layers:
            patterns, tests = LAYERS[layer]
            chance = random.Random(f"{options.seed} {layer}")
            counts = {path: len(list(places(ast.parse(path.read_text())))) for path in modules(patterns)}
            choices = [(path, number) for path, count in counts.items() for number in range(count)]
            for path, number in chance.sample(choices, min(options.each, len(choices))):
                name = f"{path.relative_to(ROOT / 'src' / 'nyala')}:{number}"
                if options.only is not None and name not in options.only:
                    continue
                source, done = mutant(path, number)
                lives = survives(package, path, source, tests, options.tests)
                alive, tried = alive + lives, tried + 1
                print(f"{'SURVIVED' if lives else 'killed  '} {layer:10} {name} {done}", flush=True)
    print(f"{tried - alive} of {tried} mutants were killed")


if __name__ == "__main__":
    main()
