"""Fixtures of several modules: a folder in memory, and an open store in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import folder_in_memory, open_database

from nyala.api.database import Database
from nyala.testing.clock import ManualClock


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def db(folder: Path) -> Iterator[Database]:
    with open_database(folder / "s") as db:
        yield db
