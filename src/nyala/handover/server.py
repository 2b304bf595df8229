"""The writer's side: a thread that answers commits of other processes (`handover.commits`)."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from nyala.errors import StorageError
from nyala.handover.channel import ChannelServer
from nyala.handover.inbox import InboxServer
from nyala.objects.address import bucket_of
from nyala.tablet.store import Store


class HandoverServer:
    """Answers requests until `stop`: at the store's socket, or in the inbox of a bucket."""

    def __init__(self, store: Store) -> None:
        self._store = weakref.ref(store)
        bucket = bucket_of(store.env)
        self._server: ChannelServer | InboxServer = (
            ChannelServer(store.env, store.root_path, self._answer)
            if bucket is None
            else InboxServer(store.env, bucket, self._answer)
        )

    def start(self) -> None:
        """Raises: StorageError if the file system has no Unix sockets."""
        self._server.start()

    def stop(self) -> None:
        """Accept no further request, and wait for accepted ones. May be called twice."""
        self._server.stop()

    def _answer(
        self, request: dict[str, Any], attachments: Sequence[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        from nyala.handover.commits import answer_request

        del attachments
        store = self._store()
        if store is None:
            raise StorageError("the store is being closed; try again")
        return answer_request(store, request)
