from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stress.steps import make_origin
from tests.support import folder_in_memory


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    """Yield the path of a store that tests of a failing disk copy. Its folder has room for the copies."""
    with folder_in_memory() as folder:
        yield make_origin(str(folder / "origin"))
