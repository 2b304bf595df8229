"""Writes the position record (`wal/position.py`), which shows readers how far they may read.

Invariants
    PU1 The published position never goes back: each record is computed and written under one lock.
    PU2 After `stop` nothing is written, because the record then belongs to the next writer.

Thread-safe. Source: docs/design/rules.md, P1.
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
    """Writes the position record: the file `path`, which shows readers how far they may read.

    shown: the timestamp in the record that was written last; 0: no record was written.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._lock = threading.Lock()
        self._stopped = False
        self._named = False  # whether the file's name is durable
        self.shown = 0

    def publish(self, record: Callable[[], PositionRecord], *, durably: bool = False) -> None:
        """Write the position record that `record` returns, which shows readers how far they may read.

        If the write fails, no error is raised: the batches are durable, and readers see them with
        the next record.

        durably: also sync the record, as after a change of the catalogue. A durable record lets the
                 next open distinguish damage at the end of the log from a torn tail.
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
        """Make every later call of `publish` do nothing.

        The position record, which shows readers how far they may read, then belongs to the next
        writer.
        """
        with self._lock:
            self._stopped = True
