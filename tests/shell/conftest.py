"""A small store for the shell."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import nyala


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shell") / "s"
    with nyala.connect(path) as db:
        metrics = db.create_table(
            "metrics",
            {
                "host": "string",
                "time": "int64",
                "value": nyala.column("double", default=0.5, comment="a share"),
            },
            ["host", "time"],
        )
        metrics.insert([("a", 1, 1.0), ("a", 2, 2.5), ("b", 1, None)])
        db.tag("before")
        metrics.upsert([("b", 2, 4.0)])
        numbers = db.create_table("numbers", {"n": "int64"}, "n")
        numbers.insert({"n": list(range(50))})
    return path


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    """Create a store with the tables `metrics` (host, time, value) and `numbers` (n: 0 to 49), and
    the tag `before`.
    """
    return Path(shutil.copytree(made, tmp_path / "s"))
