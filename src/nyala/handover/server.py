"""The writer's side: threads that answer the requests of other processes."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nyala.errors import StorageError
from nyala.handover.channel import ChannelServer, Session
from nyala.handover.inbox import InboxServer
from nyala.objects.address import bucket_of

if TYPE_CHECKING:
    from nyala.handover.local_writer import LocalWriter

__all__ = ["HandoverServer"]


class HandoverServer:
    """Answers requests until `stop`: at the store's socket, or in the inbox of a bucket."""

    def __init__(self, writer: LocalWriter) -> None:
        self._writer = weakref.ref(writer)
        store = writer.store
        bucket = bucket_of(store.env)
        self._server: ChannelServer | InboxServer = (
            ChannelServer(store.env, store.root_path, self._session)
            if bucket is None
            else InboxServer(store.env, bucket, self._answer)
        )

    def start(self) -> None:
        """Raises: StorageError if the file system has no Unix sockets."""
        self._server.start()

    def stop(self) -> None:
        """Accept no further request, and wait for accepted ones. May be called twice."""
        self._server.stop()

    def _session(self) -> Session:
        from nyala.handover.writer_session import WriterSession

        return WriterSession(self._writer)

    def _answer(
        self, request: dict[str, Any], attachments: Sequence[bytes]
    ) -> tuple[dict[str, Any], list[bytes]]:
        from nyala.handover.commits import answer_request

        del attachments
        writer = self._writer()
        if writer is None:
            raise StorageError("the store is being closed; try again")
        return answer_request(writer.store, request)
