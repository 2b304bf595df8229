"""A store for one test: `path` is where it may be made, `db` is it, open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nyala.api.database import Database
from tests.support import open_database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.fixture
def db(path: Path) -> Iterator[Database]:
    database = open_database(path)
    yield database
    database.close()
