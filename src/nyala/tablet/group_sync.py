"""The thread for `durability="group"`: acknowledged batches are synced within 100 ms.

It does nothing else, so that no flush or compaction delays a sync, and it runs with or without
background maintenance. A batch waits at most `wal.writer.GROUP_SYNC_INTERVAL_S` plus one `POLL_S`
before its sync begins.

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

# How often the thread checks for new batches while none waits.
POLL_S: Final = 0.02


class GroupSync:
    """The sync thread of one store."""

    def __init__(self, store: Store) -> None:
        self._store = weakref.ref(store)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="nyala-group-sync", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Closing the log syncs the rest."""
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
                logger.error("group syncs have stopped: %s", error)  # the store takes no more writes (W3)
                return
            store.env.clock.wait(self._stop, POLL_S if left_s is None else min(left_s, POLL_S))
            del store
