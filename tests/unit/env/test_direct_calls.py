"""Only `nyala.env` opens, syncs and renames files, sleeps, reads a clock or draws randomness.

Otherwise, tests that cut the power, fill the disk or step the clock would not cover that code.
SQLite's own connection is the one exception; it uses none of these names.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src" / "nyala"

# `env/` itself, its replacements in tests, and code that shows users' own files.
OUTSIDE = {"env", "testing", "cli", "shell"}
# All other modules, so that a new module is included.
LAYERS = sorted(
    {path.relative_to(SOURCE).parts[0] for path in SOURCE.rglob("*.py")} - OUTSIDE,
)
EXEMPT = {
    # A socket is not durable; its address must be short, for which the temporary folder has a link.
    ("handover/channel.py", "tempfile"),
    ("handover/channel.py", "os.symlink"),
    # Files that may be lost in a power cut: the spill files of an SQL query.
    ("sql/select/connection.py", "tempfile"),
    ("sql/change/rows.py", "tempfile"),
    ("sql/change/rows.py", "mmap"),
    # Users' own files that COPY writes.
    *(
        ("sql/files/copy_to.py", name)
        for name in (
            "secrets",
            "os.open",
            "os.close",
            "os.fsync",
            "os.replace",
            "os.unlink",
            "os.path.isdir",
            "os.path.isfile",
            "os.path.exists",
        )
    ),
    # Which program a user's command would start.
    ("spark/cluster.py", "shutil"),
    # Descriptors of the process itself, and its rank among the processes that the system kills.
    *(("_worker.py", name) for name in ("open", "os.close", "os.open")),
}

MODULES = {"fcntl", "mmap", "random", "secrets", "shutil", "tempfile", "uuid"}
NAMES = {
    "os": {
        *(
            "open",
            "close",
            "read",
            "write",
            "pread",
            "preadv",
            "pwrite",
            "fsync",
            "fdatasync",
            "truncate",
            "ftruncate",
            "sync",
        ),
        *(
            "rename",
            "replace",
            "unlink",
            "remove",
            "link",
            "symlink",
            "mkdir",
            "makedirs",
            "rmdir",
            "removedirs",
        ),
        *("listdir", "scandir", "walk", "stat", "lstat", "statvfs", "urandom"),
    },
    "os.path": {"exists", "lexists", "isfile", "isdir", "getsize", "getmtime"},
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep"},
    "datetime.datetime": {"now", "utcnow", "today"},
    "datetime": {"now", "utcnow", "today"},
}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def direct_calls(source: str) -> list[tuple[int, str]]:
    """Return (line, name) of every call in a module that does not go through `env/`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [
                (node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] in MODULES
            ]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module.split(".")[0] in MODULES:
                found.append((node.lineno, module))
            found += [
                (node.lineno, f"{module}.{alias.name}")
                for alias in node.names
                if alias.name in NAMES.get(module, ()) and module != "datetime"
            ]
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            owner, _, last = name.rpartition(".")
            if name == "open" or last in NAMES.get(owner, ()):
                found.append((node.lineno, name))
    return found


@pytest.mark.parametrize("layer", LAYERS)
def test_modules_use_the_env(layer: str) -> None:
    """No module uses the disk, the clock or randomness directly."""
    path = SOURCE / layer
    files = [path] if path.suffix else sorted(path.rglob("*.py"))
    found = [
        f"{file.relative_to(SOURCE)}:{line}: {name}"
        for file in files
        for line, name in direct_calls(file.read_text())
        if (file.relative_to(SOURCE).as_posix(), name) not in EXEMPT
    ]
    assert not found, "use the Env: " + ", ".join(found)


def test_every_module_is_checked_and_every_exception_is_needed() -> None:
    """The check covers every module, and no exception is unused."""
    assert {"api", "handover", "sql", "tablet"} < set(LAYERS)
    for module, name in EXEMPT:
        assert name in {found for _, found in direct_calls((SOURCE / module).read_text())}, (module, name)


@pytest.mark.parametrize(
    "source",
    [
        "open('x')",
        "import os\nos.fsync(3)",
        "from time import sleep",
        "import random",
        "import os.path\nos.path.exists('x')",
    ],
)
def test_direct_calls_are_found(source: str) -> None:
    """The check above does find direct calls."""
    assert direct_calls(source)
