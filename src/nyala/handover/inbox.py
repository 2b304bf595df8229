"""Commits of other processes in a bucket: requests and answers are objects.

    any process                                        the writer
    put inbox/<key>         a request (`frames`)
    put news                its key               ──►  gets it once a second; a new one: lists inbox/
    get answers/<key>, again and again                 executes the request
                            its answer            ◄──  puts answers/<key>, deletes inbox/<key>
    delete answers/<key>

    no writer lives         takes the request back, takes over the store, and executes it itself

The hint of the writer shows whether it lives (`tablet.media.bucket.living_writer`). A wrong guess costs
time only: a living writer that seems dead is fenced, and its commits fail with a known outcome.

Invariants
    I1  Only the writer of the log can execute a request: if a fenced writer tries, its commit meets
        the seal and fails. Then it gives no answer, and its heir finds the request in the inbox.
    I2  A request may be executed twice: after a crash between the commit and the answer. Its key
        makes the commit happen once (H1 of `commits`).
    I3  A sender that stops waiting deletes its request. If it cannot, it reports that the outcome is
        unknown.
    I4  `news` is put after the request. So a writer that sees a new token, and then lists
        the inbox, sees the request. A delayed PUT of another sender may replace the token by an old
        one, so a sender that waits puts its token again from time to time.
    I5  The writer deletes requests and answers that nobody reads after a day, with other orphans.

Source: docs/design/object-storage.md, "Commits of other processes".
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import weakref
from collections.abc import Hashable, Sequence
from typing import Any, Final

from nyala.env import Env
from nyala.env.interrupts import Uninterrupted
from nyala.errors import FencedError, InvalidArgumentError, StorageError
from nyala.handover.channel import NoWriter, WriterEndedError
from nyala.handover.frames import (
    ANSWER_MAX_BYTES,
    REQUEST_MAX_BYTES,
    BrokenFrame,
    Handler,
    decode_error,
    decode_frame,
    encode_error,
    encode_frame,
    executed,
    opened,
)
from nyala.objects.address import place_of
from nyala.objects.base import Objects
from nyala.tablet.media.bucket import living_writer
from nyala.tablet.state.store_folder import ANSWERS_PREFIX, INBOX_PREFIX, NEWS_KEY

__all__ = ["InboxServer", "ask", "serving"]

logger = logging.getLogger("nyala.handover.commits")

POLL_S: Final = 1.0
# After a request the next one often follows soon: a load sends three.
BUSY_POLL_S: Final = 0.1
_BUSY_POLLS: Final = 50
_ANSWER_POLL_S: Final = (0.05, 1.0)
_serving: Final[weakref.WeakValueDictionary[Hashable, InboxServer]] = weakref.WeakValueDictionary()
_lock = threading.Lock()
# Another store may have the prefix `inbox` of this one: its objects are no requests.
_REQUEST: Final = re.compile(rf"{INBOX_PREFIX}[0-9a-f]{{1,64}}")
# How often a sender looks whether the writer lives.
_LOOK_S: Final = 3.0


def ask(
    env: Env, objects: Objects, request: dict[str, Any], timeout_s: float
) -> tuple[dict[str, Any], list[bytes]]:
    """Let the writer execute a request; returns its answer.

    Raises: NoWriter if no writer lives; nothing was sent then. Errors of the request. StorageError
        with outcome "unknown" if a living writer gives no answer within `timeout_s`, or the bucket
        fails or refuses a request meanwhile. WriterEndedError is one of these.
    """
    if living_writer(objects) is None:
        raise NoWriter(f"no process writes to {objects.url}")
    key = env.randomness.token_hex(16)
    body = b"".join(map(bytes, encode_frame(request, [])))
    try:
        objects.put(f"{INBOX_PREFIX}{key}", body)
        try:
            objects.put(NEWS_KEY, key.encode())  # I4
            answer, returned = _answer_of(env, objects, key, timeout_s)
        except StorageError as error:  # also of a refusal: the writer may have done it by now (I3)
            error.outcome = "unknown"
            raise
    finally:
        with Uninterrupted(), contextlib.suppress(StorageError):  # I3
            objects.delete([f"{INBOX_PREFIX}{key}", f"{ANSWERS_PREFIX}{key}"])
    return opened(answer, returned)


def _answer_of(env: Env, objects: Objects, key: str, timeout_s: float) -> tuple[dict[str, Any], list[bytes]]:
    """The frame of the answer. Raises: as `ask`."""
    pause_s, pause_max_s = _ANSWER_POLL_S
    deadline_s, look_s = (env.clock.monotonic_s() + after_s for after_s in (timeout_s, _LOOK_S))
    while True:
        found = objects.get(f"{ANSWERS_PREFIX}{key}")
        if found is not None:
            try:
                return _content(found, ANSWER_MAX_BYTES)
            except BrokenFrame as error:
                raise StorageError(
                    f"the answer of the writer of {objects.url} cannot be read ({error}): use the same version of "
                    "Nyala in both processes",
                    path=f"{objects.url}/{ANSWERS_PREFIX}{key}",
                    outcome="unknown",
                ) from None
        now_s = env.clock.monotonic_s()
        if now_s > deadline_s:
            raise StorageError(
                f"the process that writes {objects.url} did not answer within {timeout_s:g} s; it is not known "
                "whether the request was done: send it again with the same key",
                path=objects.url,
                outcome="unknown",
            )
        if now_s > look_s:
            if living_writer(objects) is None:
                raise WriterEndedError(
                    f"the process that wrote to {objects.url} gives no sign of life, and it is not known whether the "
                    "request was done: send it again with the same key",
                    path=objects.url,
                )
            objects.put(NEWS_KEY, key.encode())  # I4: a late request may have put back an old token
            look_s = now_s + _LOOK_S
        env.clock.sleep_s(pause_s)
        pause_s = min(2 * pause_s, pause_max_s)


def _content(data: bytes, limit_bytes: int) -> tuple[dict[str, Any], list[bytes]]:
    """Read a frame that is a whole object. Raises: BrokenFrame."""
    place = 0

    def receive(length: int) -> bytes:
        nonlocal place
        part = data[place : place + length]
        if len(part) < length:
            raise BrokenFrame(f"{len(data)} bytes, which end too early")
        place += length
        return part

    content = decode_frame(receive, limit_bytes)
    if place < len(data):
        raise BrokenFrame(f"{len(data) - place} bytes follow the frame")
    return content


def serving(objects: Objects) -> InboxServer | None:
    """Return the server of this store if this process is the writer: then a request needs no object."""
    with _lock:
        return _serving.get(_place_of(objects))


def _place_of(objects: Objects) -> Hashable:
    return place_of(objects.url, dict(objects.public_options))


class InboxServer:
    """Executes the requests of other processes in a thread, one after another, until `stop`."""

    def __init__(self, env: Env, objects: Objects, handler: Handler) -> None:
        self._env = env
        self._objects = objects
        self._handler = handler
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._news: bytes | None = b"look once"  # the last token after which all requests were served

    def start(self) -> None:
        with _lock:
            _serving[_place_of(self._objects)] = self
        self._thread = threading.Thread(target=self._run, name="nyala-inbox", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Execute no further request, and wait for the one in work. May be called twice."""
        with _lock:
            if _serving.get(_place_of(self._objects)) is self:
                del _serving[_place_of(self._objects)]
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            with contextlib.suppress(RuntimeError):  # in a forked child, whose thread does not exist
                thread.join()

    def _run(self) -> None:
        busy = 0
        while not self._env.clock.wait(self._stop, BUSY_POLL_S if busy else POLL_S):
            try:
                busy = _BUSY_POLLS if self.serve_news() else max(busy - 1, 0)
            except FencedError:
                return  # I1: the heir takes the requests
            except StorageError as error:  # the bucket may answer the next time
                logger.warning("the requests of other processes could not be read: %s", error)
                busy = 0

    def serve_news(self) -> int:
        """Do `serve` if there is something new; a GET costs a tenth of what a LIST costs."""
        news = self._objects.get(NEWS_KEY)
        if news == self._news:
            return 0
        served = self.serve()
        self._news = news
        return served

    def serve(self) -> int:
        """Execute the requests that are there; returns their number.

        Raises: FencedError if this process is not the writer any more; StorageError if the bucket
            fails, and then a request may be executed again later (I2).
        """
        infos = [info for info in self._objects.list(INBOX_PREFIX) if _REQUEST.fullmatch(info.key)]
        for info in infos:
            if self._stop.is_set():
                break
            key = info.key.removeprefix(INBOX_PREFIX)
            if info.size_bytes > REQUEST_MAX_BYTES:
                self._refuse(key, f"it has {info.size_bytes} bytes")
                continue
            data = self._objects.get(info.key)
            if data is None:
                continue  # its sender took it back
            try:
                request, attachments = _content(data, REQUEST_MAX_BYTES)
            except BrokenFrame as error:
                self._refuse(key, str(error))
                continue
            message, returned = executed(self._handler, request, attachments)
            if message.get("error", {}).get("class") == FencedError.__name__:
                raise decode_error(message["error"], returned)  # I1
            self._answer(key, message, returned)
        return len(infos)

    def answer_here(self, request: dict[str, Any]) -> tuple[dict[str, Any], Sequence[bytes]]:
        """Execute a request of this process, in this thread."""
        return self._handler(request, [])

    def _refuse(self, key: str, why: str) -> None:
        error = InvalidArgumentError(
            f"the writer of {self._objects.url} cannot read the request {key}: {why}. Use the same version of Nyala "
            "in both processes; nothing was done"
        )
        fields, attachments = encode_error(error)
        self._answer(key, {"error": fields}, attachments)

    def _answer(self, key: str, message: dict[str, Any], attachments: Sequence[bytes]) -> None:
        self._objects.upload(f"{ANSWERS_PREFIX}{key}", map(bytes, encode_frame(message, attachments)))
        self._objects.delete([f"{INBOX_PREFIX}{key}"])


def _forget_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    _serving.clear()


os.register_at_fork(after_in_child=_forget_in_child)
