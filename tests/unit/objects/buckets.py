"""Buckets of each kind for tests: where an `Objects` comes from, and another client of the same bucket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from nyala.env import SYSTEM, Env
from nyala.objects.base import Objects
from nyala.testing import ManualClock, SeededRandomness


@dataclass(frozen=True)
class Bucket:
    """A bucket: `client()` opens it once more, as another process would."""

    kind: str
    client: Callable[[], Objects]
    advance: Callable[[float], None]
    """Moves the bucket's clock forward."""


def quick_env() -> Env:
    """An environment in which waiting takes no time."""
    return replace(SYSTEM, clock=ManualClock(), randomness=SeededRandomness())


KINDS: Final = ("memory", "folder", "s3")
