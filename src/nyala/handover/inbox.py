"""Commits of other processes in a bucket: requests and answers are objects.

    any process                                the writer
    puts inbox/<key>, the request
    puts news, with the key               ──►  gets news each second; if it changed, lists inbox/
    gets answers/<key> until it exists         executes the request
                                          ◄──  puts answers/<key>, deletes inbox/<key>
    deletes answers/<key>

If no writer lives, the sender deletes its request, takes over the store, and executes the request
itself. Whether a writer lives is a guess from an object that the writer renews (`living_writer`). A
wrong guess costs only time: the writer that seemed dead is fenced, so its commits fail with a known
outcome.

Invariants
    I1  Only the writer of the log can commit a request. The commit of a fenced writer fails, because
        its part of the log is sealed. The fenced writer then gives no answer, and the next writer
        finds the request in the inbox.
    I2  A request is executed twice if the writer crashes between the commit and the answer. The
        request's key makes the commit happen once (H1 of `commits`).
    I3  A sender that stops waiting deletes its request. It then reports the outcome "unknown".
    I4  `news` is put after the request. So a writer that gets a new key from `news`, and then lists
        the inbox, finds the request. A delayed PUT of another sender may put an older key back, so a
        sender that waits puts its key again from time to time.
    I5  The writer deletes requests and answers after a day, if their senders did not.

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
    execute,
    unpack_answer,
)
from nyala.objects.address import place_of
from nyala.objects.base import Objects
from nyala.tablet.media.bucket import living_writer
from nyala.tablet.state.store_folder import ANSWERS_PREFIX, INBOX_PREFIX, NEWS_KEY

logger = logging.getLogger("nyala.handover.commits")

POLL_S: Final = 1.0
# After a request the inbox is read more often, because a load sends three requests.
BUSY_POLL_S: Final = 0.1
_BUSY_POLLS: Final = 50
_ANSWER_POLL_S: Final = (0.05, 1.0)
_serving: Final[weakref.WeakValueDictionary[Hashable, InboxServer]] = weakref.WeakValueDictionary()
_lock = threading.Lock()
# The objects of another store may be below the prefix of this inbox. They do not match.
_REQUEST: Final = re.compile(rf"{INBOX_PREFIX}[0-9a-f]{{1,64}}")
# A sender checks at this interval whether the writer lives.
_LOOK_S: Final = 3.0


def ask(
    env: Env, objects: Objects, request: dict[str, Any], timeout_s: float
) -> tuple[dict[str, Any], list[bytes]]:
    """Let the writer execute a request; return the answer and its attachments.

    Raises the errors of the request, and:
        NoWriter: no writer seems to live. Nothing was sent.
        StorageError with outcome "unknown": the writer did not answer within `timeout_s`, or the
            bucket returned an error. It is a WriterEndedError if the writer ended.
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
        except StorageError as error:  # the writer may have executed the request by now (I3)
            error.outcome = "unknown"
            raise
    finally:
        with Uninterrupted(), contextlib.suppress(StorageError):  # I3
            objects.delete([f"{INBOX_PREFIX}{key}", f"{ANSWERS_PREFIX}{key}"])
    return unpack_answer(answer, returned)


def _answer_of(env: Env, objects: Objects, key: str, timeout_s: float) -> tuple[dict[str, Any], list[bytes]]:
    """Wait for the answer to the request `key`; return its JSON and attachments.

    Raises: WriterEndedError if the writer ends; StorageError with outcome "unknown" after
        `timeout_s`.
    """
    pause_s, pause_max_s = _ANSWER_POLL_S
    deadline_s, look_s = (env.clock.monotonic_s() + after_s for after_s in (timeout_s, _LOOK_S))
    while True:
        found = objects.get(f"{ANSWERS_PREFIX}{key}")
        if found is not None:
            try:
                return _content(found, ANSWER_MAX_BYTES)
            except BrokenFrame as error:
                raise StorageError(
                    f"the answer of the writer of {objects.url} cannot be read ({error}); it is not known whether the "
                    "request was done. Use the same version of Nyala in the writer and in this process",
                    path=f"{objects.url}/{ANSWERS_PREFIX}{key}",
                    outcome="unknown",
                ) from None
        now_s = env.clock.monotonic_s()
        if now_s > deadline_s:
            raise StorageError(
                f"the process that writes {objects.url} did not answer within {timeout_s:g} s; it is not known "
                "whether the request was done: check that before you repeat it",
                path=objects.url,
                outcome="unknown",
            )
        if now_s > look_s:
            if living_writer(objects) is None:
                raise WriterEndedError(
                    f"the process that wrote to {objects.url} gives no sign of life, and it is not known whether the "
                    "request was done: check that before you repeat it",
                    path=objects.url,
                )
            objects.put(NEWS_KEY, key.encode())  # another sender may have put an older key (I4)
            look_s = now_s + _LOOK_S
        env.clock.sleep_s(pause_s)
        pause_s = min(2 * pause_s, pause_max_s)


def _content(data: bytes, limit_bytes: int) -> tuple[dict[str, Any], list[bytes]]:
    """Decode the bytes of an object, which are one frame; return its JSON and attachments.

    Raises: BrokenFrame, also if the frame is larger than `limit_bytes`.
    """
    place = 0

    def receive(length: int) -> bytes:
        nonlocal place
        part = data[place : place + length]
        if len(part) < length:
            raise BrokenFrame(f"the object ends after {len(data)} bytes, before the end of its content")
        place += length
        return part

    content = decode_frame(receive, limit_bytes)
    if place < len(data):
        raise BrokenFrame(f"the object has {len(data)} bytes, but its content ends after {place}")
    return content


def serving(objects: Objects) -> InboxServer | None:
    """Return the inbox server of the store in this bucket; None if this process is not its writer."""
    with _lock:
        return _serving.get(_place_of(objects))


def _place_of(objects: Objects) -> Hashable:
    return place_of(objects.url, dict(objects.public_options))


class InboxServer:
    """Executes the requests in a bucket's inbox, in one thread, between `start` and `stop`."""

    def __init__(self, env: Env, objects: Objects, handler: Handler) -> None:
        self._env = env
        self._objects = objects
        self._handler = handler
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._news: bytes | None = b"list once"  # the value of `news` when the inbox was listed last

    def start(self) -> None:
        with _lock:
            _serving[_place_of(self._objects)] = self
        self._thread = threading.Thread(target=self._run, name="nyala-inbox", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Begin no further request, and wait until the running one has ended. May be called twice."""
        with _lock:
            if _serving.get(_place_of(self._objects)) is self:
                del _serving[_place_of(self._objects)]
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            with contextlib.suppress(RuntimeError):  # in a forked child, which has no such thread
                thread.join()

    def _run(self) -> None:
        busy = 0
        while not self._env.clock.wait(self._stop, BUSY_POLL_S if busy else POLL_S):
            try:
                busy = _BUSY_POLLS if self.serve_news() else max(busy - 1, 0)
            except FencedError:
                return  # the next writer executes the requests (I1)
            except StorageError as error:  # the next attempt may succeed
                logger.warning("the requests of other processes could not be read: %s", error)
                busy = 0

    def serve_news(self) -> int:
        """Call `serve` if the object `news` changed; return the number of executed requests.

        A client writes the object `news` into the bucket after each request that it puts into the
        inbox. Reading `news` costs a tenth of what listing the inbox costs.
        """
        news = self._objects.get(NEWS_KEY)
        if news == self._news:
            return 0
        served = self.serve()
        self._news = news
        return served

    def serve(self) -> int:
        """Execute the requests in the inbox; return their number.

        Raises: FencedError if this process is no longer the writer; StorageError if the bucket
            returns an error. Then a request may be executed again later: its idempotency key makes
            the commit happen once.
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
                continue  # its sender deleted it
            try:
                request, attachments = _content(data, REQUEST_MAX_BYTES)
            except BrokenFrame as error:
                self._refuse(key, str(error))
                continue
            message, returned = execute(self._handler, request, attachments)
            if message.get("error", {}).get("class") == FencedError.__name__:
                raise decode_error(message["error"], returned)  # I1
            self._answer(key, message, returned)
        return len(infos)

    def answer_here(self, request: dict[str, Any]) -> tuple[dict[str, Any], Sequence[bytes]]:
        """Execute a request of this process in the calling thread.

        Returns: the answer and its attachments. No object is written to the bucket for the request.
        """
        return self._handler(request, [])

    def _refuse(self, key: str, why: str) -> None:
        error = InvalidArgumentError(
            f"the writer of {self._objects.url} cannot read the request {key}: {why}. Use the same version of Nyala "
            "in the writer and in the process that sent the request; nothing was done"
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
