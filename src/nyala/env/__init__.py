"""The outside world, as one value that is handed down: files, clock, randomness.

Only this package opens, syncs, renames, sleeps, reads a clock or draws randomness (SQLite opens its own
files). All other code is given an `Env`; production gives `SYSTEM`, tests give one that loses power or steps
the clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from nyala.env.clock import Clock, SystemClock
from nyala.env.files import (
    MAY_NOT_WRITE,
    AppendFile,
    Bytes,
    FileLock,
    Files,
    MissingFileError,
    RandomFile,
    storage_error,
)
from nyala.env.owner import is_gone, mark_of_ancestor, process_mark
from nyala.env.posix_files import PosixFiles, system_files
from nyala.env.randomness import Randomness, SystemRandomness
from nyala.env.reserve import Reserve, is_full, why_full

__all__ = [
    "MAY_NOT_WRITE",
    "SYSTEM",
    "AppendFile",
    "Bytes",
    "Clock",
    "Env",
    "FileLock",
    "Files",
    "MissingFileError",
    "PosixFiles",
    "RandomFile",
    "Randomness",
    "Reserve",
    "SystemClock",
    "SystemRandomness",
    "is_full",
    "is_gone",
    "mark_of_ancestor",
    "process_mark",
    "storage_error",
    "system_files",
    "why_full",
]


@dataclass(frozen=True)
class Env:
    """What a part of Nyala may know of the outside. Every member may be used from any thread."""

    files: Files
    clock: Clock
    randomness: Randomness

    @property
    def is_system(self) -> bool:
        """Whether another process on this machine has the same files and clock: not with the twins of tests."""
        return isinstance(self.files, PosixFiles) and self.clock is SYSTEM.clock

    def bound(self, folder: str) -> Env:
        """The same for one store only: see `Files.bind`. Close its files."""
        return replace(self, files=self.files.bind(folder))


SYSTEM: Final = Env(files=system_files(), clock=SystemClock(), randomness=SystemRandomness())
