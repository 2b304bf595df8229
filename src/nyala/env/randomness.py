"""The only source of chance: names and identities that must differ from all others."""

from __future__ import annotations

import os
from typing import Protocol

__all__ = ["Randomness", "SystemRandomness"]


class Randomness(Protocol):
    """May be used from any thread."""

    def token_hex(self, byte_count: int) -> str:
        """`byte_count` random bytes as twice `byte_count` hexadecimal digits."""
        ...


class SystemRandomness:
    """`Randomness` of this machine."""

    def token_hex(self, byte_count: int) -> str:
        return os.urandom(byte_count).hex()
