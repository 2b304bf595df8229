"""Creates the server that answers the requests of other processes, in the writer's process."""

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


def server_of(writer: LocalWriter) -> ChannelServer | InboxServer:
    """Return the server of a writer, not yet started.

    It serves the socket in the store's folder, or the inbox in the store's bucket.
    """
    store, reference = writer.store, weakref.ref(writer)
    bucket = bucket_of(store.env)

    def begin_session() -> Session:
        from nyala.handover.writer_session import WriterSession

        return WriterSession(reference)

    def answer(
        request: dict[str, Any], attachments: Sequence[bytes]
    ) -> tuple[dict[str, Any], Sequence[bytes]]:
        from nyala.handover.commits import answer_request

        if (living := reference()) is None:
            raise StorageError("the store is being closed; try again")
        return answer_request(living.store, request)

    if bucket is None:
        return ChannelServer(store.env, store.root_path, begin_session)
    return InboxServer(store.env, bucket, answer)
