"""Names cannot leave the store's folder, files get the user's umask, and no data is unpickled."""

from __future__ import annotations

import ast
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import nyala
from tests.support import folder_in_memory, open_database, rows

SOURCE = Path(nyala.__file__).parent
SOURCES = (SOURCE, SOURCE.parent / "pyspark_nyala")
NAMES = [
    "..",
    ".",
    "../../outside",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "~",
    "$HOME",
    "-rf",
    "con",
    "wal",
    "x\ny",
    "'; DROP",
    "é",
]


def test_names_of_tables_and_columns_cannot_escape_the_folder() -> None:
    """Paths contain only numbers, never a user's text."""
    with folder_in_memory() as folder:
        with open_database(folder / "s", direct_commit_bytes=500) as db:
            for name in NAMES:
                table = db.create_table(name, {name: "int64", "v" + name: "string"}, name)
                table.insert({name: [1, 2], "v" + name: ["x", name]})
                table.flush()
                table.upsert({name: range(60), "v" + name: ["large " * 20] * 60})
                table.update({name: [1], "v" + name: [name]})
                table.compact()
            for name in NAMES:
                assert rows(db[name])[1] == (1, name)
                db.rename_table(name, name + "/..")
        assert os.listdir(folder) == ["s"]
        made = {path.name for path in (folder / "s").rglob("*")}
        assert all(set(name) <= set("0123456789abcdefghijklmnopqrstuvwxyz.-") for name in made), made
        assert {path.name for path in (folder / "s").iterdir()} <= {
            "nyala.json", "checkpoints", "data", "wal", "staging", "leases", "lock",
            "reserve",
        }  # fmt: skip
        with nyala.connect(folder / "s") as db:
            assert db.check().ok


def test_an_invalid_name_is_refused() -> None:
    with folder_in_memory() as folder, open_database(folder / "s") as db:
        for name in ("", "a\0b", "x" * 300):
            with pytest.raises(nyala.Error):
                db.create_table(name, {"k": "int64"}, "k")
            with pytest.raises(nyala.Error):
                db.create_table("t", {"k": "int64", name: "int64"}, "k")


MAKE = """
import os, sys, nyala
os.umask(int(sys.argv[2], 8))
with nyala.connect(sys.argv[1], maintenance=False) as db:
    table = db.create_table("t", {"k": "int64", "v": "int64"}, "k")
    table.insert({"k": [1], "v": [1]})
    db.flush()
    table.update({"k": [1], "v": [2]})
    db.flush()
    table.compact()
    with nyala.connect(sys.argv[1], read_only=True) as reader:
        reader["t"].count()
        for folder, folders, files in os.walk(sys.argv[1]):
            for name in [".", *files]:
                if not name.endswith(".sock"):
                    path = os.path.join(folder, name)
                    print(oct(os.stat(path).st_mode & 0o777), os.path.relpath(path, sys.argv[1]))
"""


@pytest.mark.parametrize(("umask", "file", "folder"), [("027", "0o640", "0o750"), ("077", "0o600", "0o700")])
def test_files_are_created_with_the_users_umask(umask: str, file: str, folder: str) -> None:
    with folder_in_memory() as place:
        done = subprocess.run(
            [sys.executable, "-c", MAKE, str(place / "s"), umask], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        for line in done.stdout.splitlines():
            mode, name = line.split(" ", 1)
            assert mode == (folder if name.endswith(".") or (place / "s" / name).is_dir() else file), line
        assert len(done.stdout.splitlines()) > 12


# Functions that create objects from bytes, or execute them. PySpark itself pickles objects between
# driver and worker, but Nyala does not read these bytes.
EXECUTES = {
    "pickle",
    "cPickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "marshal",
    "shelve",
    "joblib",
    "jsonpickle",
    "yaml",
}
CALLS = {"eval", "exec", "compile", "__import__"}


def executed(source: str) -> list[str]:
    """Return the imports and calls that could execute bytes as code."""
    found = []
    for node in ast.walk(ast.parse(source)):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        found += [name for name in modules if EXECUTES & set(name.split("."))]
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in CALLS:
                found.append(node.func.id)
            found += [keyword.arg for keyword in node.keywords if keyword.arg == "allow_pickle"]
            if isinstance(node.func, ast.Attribute) and node.func.attr in (
                "read_pickle",
                "to_pickle",
                "loads_pickle",
            ):
                found.append(node.func.attr)
    return found


def test_no_data_from_disk_or_network_is_unpickled() -> None:
    modules = [path for source in SOURCES for path in source.rglob("*.py")]
    assert {path.relative_to(SOURCE.parent).parts[0] for path in modules} == {"nyala", "pyspark_nyala"}
    found = {str(path): executed(path.read_text()) for path in modules}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from marshal import loads",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "eval('1')",
    ],
)
def test_the_search_finds_calls_that_execute_data(source: str) -> None:
    assert executed(source)


def test_removing_orphans_does_not_follow_links() -> None:
    with folder_in_memory() as folder:
        with open_database(folder / "s") as db:
            db.create_table("t", {"k": "int64"}, "k").insert({"k": [1]})
            db.flush()
        kept = folder / "kept"
        kept.mkdir()
        (kept / "file").write_text("mine")
        os.symlink(kept, folder / "s" / "staging" / "link")
        os.symlink(kept / "file", next((folder / "s" / "data").iterdir()) / "99.base")
        assert nyala.check(folder / "s", repair=True).ok
        with open_database(folder / "s") as db:
            assert rows(db["t"]) == [(1,)]
        assert (kept / "file").read_text() == "mine" and stat.S_ISDIR(kept.stat().st_mode)
