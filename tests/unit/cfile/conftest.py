"""The fixture that all tests of the column file share."""

from __future__ import annotations

import pytest
from tests.unit.cfile.memory import MemoryFiles


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()
