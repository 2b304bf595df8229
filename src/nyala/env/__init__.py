"""The only code that opens, syncs and renames files, sleeps, reads a clock or draws random numbers.

All other code receives an `Env`, one value with files, clock and randomness. Production passes
`SYSTEM`. Tests pass an `Env` that simulates a power cut or moves the clock.
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
    FileStatus,
    MissingFileError,
    RandomFile,
    storage_error,
)
from nyala.env.owner import is_gone, mark_of_ancestor, process_mark
from nyala.env.posix_files import PosixFiles, system_files
from nyala.env.randomness import Randomness, SystemRandomness
from nyala.env.reserve import Reserve, is_full
from nyala.errors import StorageError

__all__ = [
    "MAY_NOT_WRITE",
    "SYSTEM",
    "AppendFile",
    "Bytes",
    "Clock",
    "Env",
    "FileLock",
    "FileStatus",
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
]


_REMOVAL_PAUSES_S: Final = (0.02, 0.1, 0.5, 2.0)


@dataclass(frozen=True)
class Env:
    """Files, clock and randomness. Any thread may use every member."""

    files: Files
    clock: Clock
    randomness: Randomness

    @property
    def is_system(self) -> bool:
        """Whether other processes of this machine have the same files and clock; false in some tests."""
        return isinstance(self.files, PosixFiles) and self.clock is SYSTEM.clock

    @property
    def is_local(self) -> bool:
        """Whether the files are on this machine, and not in a bucket."""
        return not self.files.is_remote

    def bound(self, folder: str) -> Env:
        """Return an environment that uses this folder, even if another folder takes its path later.

        folder: the path of a store. See `Files.bind`.

        The caller must close `files` of the result.
        """
        return replace(self, files=self.files.bind(folder))

    def remove_busy_tree(self, path: str) -> None:
        """Remove a folder in which a cancelled task may still create files. Raises: StorageError.

        A file that is created meanwhile makes the removal fail. So the removal is repeated for some
        seconds.
        """
        for pause_s in _REMOVAL_PAUSES_S:
            try:
                return self.files.remove_tree(path)
            except StorageError:
                self.clock.sleep_s(pause_s)
        self.files.remove_tree(path)


SYSTEM: Final = Env(files=system_files(), clock=SystemClock(), randomness=SystemRandomness())
