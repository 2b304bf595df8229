"""A bucket of each kind, for tests that run over all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import pytest
from tests.unit.objects.seaweedfs import find_weed

from nyala.env import SYSTEM, Env
from nyala.objects.base import Objects
from nyala.testing import ManualClock, SeededRandomness


@dataclass(frozen=True)
class Bucket:
    """A bucket. `client()` opens another client, as another process would."""

    kind: str
    client: Callable[[], Objects]
    advance: Callable[[float], None]
    """Moves the bucket's clock forward."""

    def keys_to_race(self, count: int) -> int:
        """Return a smaller number of keys for SeaweedFS, which takes seconds for each race."""
        return max(count // 30, 3) if self.kind == "seaweedfs" else count


def quick_env() -> Env:
    """Return an environment in which waiting takes no time."""
    return replace(SYSTEM, clock=ManualClock(), randomness=SeededRandomness())


KINDS: Final = ("memory", "folder", "s3") + (
    () if find_weed() is None else (pytest.param("seaweedfs", marks=pytest.mark.s3),)
)
