"""The only source of randomness, for unique names and ids."""

from __future__ import annotations

import os
from typing import Protocol


class Randomness(Protocol):
    """The interface of a source of randomness. Any thread may use it."""

    def token_hex(self, byte_count: int) -> str:
        """Return `byte_count` random bytes as hexadecimal digits, two for each byte."""
        ...


class SystemRandomness:
    """The randomness of this machine."""

    def token_hex(self, byte_count: int) -> str:
        return os.urandom(byte_count).hex()
