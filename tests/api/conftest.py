"""Fixtures for one test: `path`, a path at which no store exists yet, and `db`, an open store."""

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
