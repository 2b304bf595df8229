"""Nothing but `env/` opens, syncs, renames, sleeps, reads a clock or draws randomness.

A test that loses power, fills the disk or steps the clock proves nothing about code that goes another way to the disk.
SQLite's own connection is the one exception, and it is not made with any of these names.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src" / "nyala"

# The door itself; what puts something else in its place; what talks to people, about files of theirs.
OUTSIDE = {"env", "testing", "cli"}
# Everything else, so that a new module is among them.
LAYERS = sorted(
    {path.relative_to(SOURCE).parts[0] for path in SOURCE.rglob("*.py")} - OUTSIDE,
)
EXEMPT = {
    # A socket is no file that must survive: its address only has to be short enough, for which a link in the
    # temporary folder is made.
    ("handover/channel.py", "tempfile"),
    ("handover/channel.py", "os.symlink"),
    # Files that are worth nothing after a power cut: what an SQL query spills.
    ("sql/connection.py", "tempfile"),
    # Which program a user's command would start.
    ("spark/cluster.py", "shutil"),
    # Descriptors of the process itself, and its place among those that the system kills.
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


def trespasses(source: str) -> list[tuple[int, str]]:
    """(line, name) of every way around the door in a module."""
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
def test_a_layer_goes_through_the_door(layer: str) -> None:
    """A power cut, a full disk or a clock that steps back would meet code that no test ever brought there."""
    path = SOURCE / layer
    files = [path] if path.suffix else sorted(path.rglob("*.py"))
    found = [
        f"{file.relative_to(SOURCE)}:{line}: {name}"
        for file in files
        for line, name in trespasses(file.read_text())
        if (file.relative_to(SOURCE).as_posix(), name) not in EXEMPT
    ]
    assert not found, "use the Env: " + ", ".join(found)


def test_every_module_is_looked_at_and_every_exception_is_needed() -> None:
    """A module that nobody lists, or a word that excuses what is not there any more."""
    assert {"api", "handover", "sql", "tablet"} < set(LAYERS)
    for module, name in EXEMPT:
        assert name in {found for _, found in trespasses((SOURCE / module).read_text())}, (module, name)


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
def test_a_way_around_the_door_is_seen(source: str) -> None:
    """The test above would pass because it sees nothing."""
    assert trespasses(source)
