"""The writer's side of the position record (`wal/position.py`): how far reader processes may read.

Invariants
    PU1 The record never goes back: what it says is asked for, and written, under one lock.
    PU2 Behind `stop` nothing is written: the record is another writer's then.

Threads: any. Source: docs/design/rules.md, P1.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from nyala.env import Files
from nyala.errors import StorageError
from nyala.wal.position import PositionRecord, write_position

__all__ = ["Publisher"]

logger = logging.getLogger("nyala.store")


class Publisher:
    """Writes the record at `path`."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._lock = threading.Lock()
        self._stopped = False
        self._named = False  # whether the record's name is known to be durable
        self.shown = 0
        """The timestamp that readers were told last; 0: none yet."""

    def publish(self, tell: Callable[[], PositionRecord], *, durably: bool = False) -> None:
        """Write what `tell` says. It tells of what is durable already, so a record that cannot be written is no failure
        of the batch: readers see it with the next one.

        durably: after a transaction of the catalogue. Damage in SQLite's log makes its last transactions vanish without
                 a word; who opens the store after a power cut learns from the record that they were there.
        """
        with self._lock:
            if self._stopped:
                return
            record = tell()
            try:
                write_position(self._files, self._path, record, durably=durably)
                if durably and not self._named:
                    self._files.sync_dir(os.path.dirname(self._path))
                    self._named = True
                self.shown = record.timestamp
            except StorageError as error:
                logger.warning("reader processes see the newest batches later: %s", error)

    def stop(self) -> None:
        """Write no more (PU2)."""
        with self._lock:
            self._stopped = True
