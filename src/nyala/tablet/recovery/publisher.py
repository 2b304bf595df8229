"""The writer's side of the position record (`wal/position.py`): how far reader processes may read.

Invariants
    PU1 The record never goes back: its content is computed and written under one lock.
    PU2 After `stop` nothing is written, because the record then belongs to another writer.

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

logger = logging.getLogger("nyala.store")


class Publisher:
    """Writes the record at `path`. Any thread."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._lock = threading.Lock()
        self._stopped = False
        self._named = False  # whether the record's name is known to be durable
        self.shown = 0
        """The timestamp last published to readers; 0: none yet."""

    def publish(self, record: Callable[[], PositionRecord], *, durably: bool = False) -> None:
        """Write the record that `record` returns.

        The batch is durable already, so a failed write is no failure of the batch: readers see it
        with the next record.

        durably: sync the record; used after a change of the catalogue. Damage at the end of the log
            would look like a torn tail. The record lets the next open detect that.
        """
        with self._lock:
            if self._stopped:
                return
            current = record()
            try:
                write_position(self._files, self._path, current, durably=durably)
                if durably and not self._named:
                    self._files.sync_dir(os.path.dirname(self._path))
                    self._named = True
                self.shown = current.timestamp
            except StorageError as error:
                logger.warning("reader processes see the newest batches later: %s", error)

    def stop(self) -> None:
        """Stop writing (PU2)."""
        with self._lock:
            self._stopped = True
