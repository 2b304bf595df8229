"""The lock holder's side: a thread that answers commits of other processes (`handover.commits`)."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from nyala.errors import StorageError
from nyala.handover.channel import ChannelServer
from nyala.tablet.store import Store


class HandoverServer:
    """Listens on the store's socket until `stop`."""

    def __init__(self, store: Store) -> None:
        self._store = weakref.ref(store)
        self._channel = ChannelServer(store.env, store.root_path, self._answer)

    def start(self) -> None:
        self._channel.start()

    def stop(self) -> None:
        self._channel.stop()

    def _answer(
        self, request: dict[str, Any], attachments: Sequence[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        from nyala.handover.commits import answer_request

        del attachments
        store = self._store()
        if store is None:
            raise StorageError("the store is being closed; try again")
        return answer_request(store, request)
