"""Writes large background flushes in a worker process, so that writes and scans run meanwhile.

In this process, a flush would often hold Python's global interpreter lock.

Only background flushes use the worker. A caller of `flush()` waits in any case, and a script that
ends soon should not start a second Python process. Compactions have another worker. Otherwise a
flush could wait for a compaction, and writers wait for the memory that the flush frees.

If the worker fails, is killed or cannot be started, this process writes the files. Without flushes,
all writes would stop when memory is full.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from typing import Final

from nyala.env import Env
from nyala.env.files import Files
from nyala.errors import Error, StorageError
from nyala.tablet.flush.file_jobs import Piece, Written, decode_written, spill, write_pieces
from nyala.tablet.workers.process import Worker
from nyala.tablet.workers.protocol import JobFailedError, placed

logger = logging.getLogger("nyala.flush")

INLINE_BYTES: Final = 2 << 20
"""Below this size, this process writes the files faster than another process could receive them."""


class FlushWorker:
    """Writes large flushes in a worker process, and smaller ones in this process. Thread-safe."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._worker = Worker()
        self.jobs = 0
        """The number of flushes that a worker process has written since the store was opened."""

    def write(self, files: Files, root_path: str, pieces: Sequence[Piece]) -> list[Written]:
        """Write the rowsets and delta files of a flush, as `write_pieces` does, and sync them.

        The worker process writes them if `pieces` have at least `INLINE_BYTES` together. Otherwise
        this process writes them.
        Raises: StorageError, and JobCancelled after `stop`.
        """
        # A worker uses the system's files and clock, so tests with other ones write here.
        if not self._env.is_system or sum(piece.nbytes for piece in pieces) < INLINE_BYTES:
            return write_pieces(files, root_path, pieces)
        path = f"{pieces[0].paths[0]}.spill"
        try:
            job = spill(files, root_path, path, pieces)
            answer = self._worker.run("flush", placed(job, files, root_path))
            self.jobs += 1
            return decode_written(answer)
        except (StorageError, JobFailedError) as error:
            logger.warning("the worker process failed, so this process writes the flush: %s", error)
        finally:
            with contextlib.suppress(Error):
                files.unlink(os.path.join(root_path, path), missing_ok=True)
        for piece in pieces:
            for left in piece.paths:
                files.unlink(os.path.join(root_path, left), missing_ok=True)
        return write_pieces(files, root_path, pieces)

    def stop(self) -> None:
        """End the worker process. A running flush fails; its rows stay in memory and in the log."""
        self._worker.close()
