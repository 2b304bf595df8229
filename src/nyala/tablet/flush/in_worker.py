"""Large flushes are written by a worker process, so that writes and scans keep the interpreter to themselves.

Only flushes of the background: a caller of `flush()` waits for it anyway, and a script that ends after it should not
wait for the start of a second Python. The process is not that of the compactions: a flush frees memory that writers
wait for, and never waits for a compaction.

If the process fails, is killed or cannot be started, the pieces are written in this process: without flushes all writes
would stop in the end.
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
from nyala.tablet.workers.process import JobFailedError, Worker
from nyala.tablet.workers.protocol import placed

logger = logging.getLogger("nyala.flush")

INLINE_BYTES: Final = 2 << 20
"""Vectors below this are written in less time than their way to another process takes."""


class FlushWorker:
    """A `Writer` of flushes with a worker process for the large ones. Any thread."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._worker = Worker()
        self.jobs = 0
        """Flushes that a worker process has written, since the store was opened."""

    def write(self, files: Files, root_path: str, pieces: Sequence[Piece]) -> list[Written]:
        """As `write_pieces`. Raises: StorageError, and JobCancelled after `stop`."""
        # A worker has the system's files and clock, so with others (in tests) it is no use.
        if not self._env.is_system or sum(piece.nbytes for piece in pieces) < INLINE_BYTES:
            return write_pieces(files, root_path, pieces)
        path = f"{pieces[0].paths[0]}.spill"
        try:
            job = spill(files, root_path, path, pieces)
            answer = self._worker.run("flush", placed(job, files, root_path))
            self.jobs += 1
            return decode_written(answer)
        except (StorageError, JobFailedError) as error:
            logger.warning("a flush is written here, not in a worker process: %s", error)
        finally:
            with contextlib.suppress(Error):
                files.unlink(os.path.join(root_path, path), missing_ok=True)
        for piece in pieces:
            for left in piece.paths:
                files.unlink(os.path.join(root_path, left), missing_ok=True)
        return write_pieces(files, root_path, pieces)

    def stop(self) -> None:
        """End what is being written elsewhere; its flush fails, and the log keeps what was to be flushed."""
        self._worker.close()
