"""The fixture of all column file tests."""

from __future__ import annotations

import pytest
from tests.unit.cfile.memory import MemoryFiles


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()
