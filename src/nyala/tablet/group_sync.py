"""The thread that syncs the log for `durability="group"`, within 100 ms of each batch.

The thread does nothing else, so that no flush or compaction delays a sync. It also runs without
background maintenance. The sync of a batch begins at most `wal.writer.GROUP_SYNC_INTERVAL_S` plus
`POLL_S` seconds after the batch.

Source: docs/how-to/durability.md.
"""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TYPE_CHECKING, Final

from nyala.errors import Error

if TYPE_CHECKING:
    from nyala.tablet.store import Store

logger = logging.getLogger("nyala.store")

# The interval at which the thread looks for new batches.
POLL_S: Final = 0.02


class GroupSync:
    """A thread that syncs the log of one store, within 100 ms of each batch.

    It runs with `durability="group"`, where a write returns before its batch is synced.
    """

    def __init__(self, store: Store) -> None:
        self._store = weakref.ref(store)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="nyala-group-sync", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread. The log's `close` syncs the last batches."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _loop(self) -> None:
        while not self._stop.is_set():
            store = self._store()
            if store is None or store.closed:
                return
            try:
                left_s = store.sync_if_due()
            except Error as error:
                # `Store.sync_if_due` has made the store refuse writes (W3).
                logger.error("group syncs have stopped: %s", error)
                return
            store.env.clock.wait(self._stop, POLL_S if left_s is None else min(left_s, POLL_S))
            del store
