"""How another process reaches the writer: one request and one answer over a Unix socket in the store's folder.

    client                                                      server (a thread of the lock's holder)
    connect writer.sock ─────────────────────────────────────►  accept
                         ◄──────────────────────────── "NYH1"   hello: somebody lives here, of this version
    frame: request       ─────────────────────────────────────►
                         ◄─────────────────────── status byte   ACCEPTED, before the handler is called
                                                                handler(request, attachments)
                         ◄───────────── frame: answer or error

A frame (little-endian; see docs/format/lease-and-lock.md):

    magic "NYH1" | u32 JSON length | u32 n | n × u64 attachment length | u32 CRC-32C of all that
    JSON | attachments | u32 CRC-32C of these

Invariants
    S1  The client knows whether its request may have been carried out: before ACCEPTED it certainly was not, and
        `send` raises NoWriter (or StorageError without outcome); after it, a connection that breaks is
        WriterEndedError, a StorageError with outcome "unknown". The status byte is sent before the handler is called,
        and what a Unix socket has taken is delivered even when the sender dies.
    S2  Errors of `nyala.errors` arrive as what they were, with their table of rows; any other exception of the
        handler is a StorageError of unknown outcome.
    S3  Nothing that a peer sends is executed or unpickled. Lengths are bounded, and memory is taken as bytes arrive,
        never for what a header announces.
    S4  Only the holder of the store's lock serves, so a socket file that it finds at its start is stale.
    S5  A server serves at most CONNECTIONS_MAX connections at a time; further clients wait in the system's queue. The
        requests of all of them take at most REQUESTS_MAX_BYTES. A request must be there REQUEST_TIMEOUT_S after the
        connection was accepted.
    S6  Only processes of the same user are served: the socket has mode 0600, whatever the umask is, before it listens,
        and where the system names a peer's user (Linux), others but root are turned away.

This module speaks to the system itself (sockets and, for a folder whose path is longer than a socket's address
may be, a symbolic link to it in the temporary folder, for the moment of binding or connecting).
Left out: file systems without Unix sockets (`start` raises; commits of other processes wait for the lock then).
Source: docs/design/processes-and-locks.md, "One writer, and commits of others".
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import selectors
import socket
import stat
import struct
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import google_crc32c
import pyarrow as pa

import nyala.errors
from nyala.catalog.format import SOCKET_NAME
from nyala.env import Env
from nyala.errors import CorruptionError, Error, StorageError, WriteError

__all__ = ["ChannelServer", "Handler", "NoWriter", "WriterEndedError", "send"]

logger = logging.getLogger("nyala.handover.commits")

Handler: TypeAlias = "Callable[[dict[str, Any], list[bytes]], tuple[dict[str, Any], Sequence[bytes]]]"
"""Carries out a request; called from a thread of its own, several at a time."""

# On the wire: never renumber. Another protocol has another magic.
MAGIC: Final = b"NYH1"
ACCEPTED: Final = 1
CLOSING: Final = 2
UNREADABLE: Final = 3
BUSY: Final = 4

_FIXED = struct.Struct("<4sII")
_CRC = struct.Struct("<I")
JSON_MAX_BYTES: Final = 32 << 20
JSON_VALUES_MAX: Final = 4 << 20
ATTACHMENT_COUNT_MAX: Final = 4096
# Of a request with its attachments, of all requests that are read or carried out at a time, and of an answer.
REQUEST_MAX_BYTES: Final = 48 << 20
REQUESTS_MAX_BYTES: Final = 64 << 20
ANSWER_MAX_BYTES: Final = 4 << 30
CONNECTIONS_MAX: Final = 64
_PIECE_BYTES: Final = 256 << 10

# macOS has room for 104 bytes with the closing NUL, Linux for 108.
_ADDRESS_MAX_BYTES: Final = 100
# The server closes the connection of a client that has not sent its whole request by then.
REQUEST_TIMEOUT_S: Final = 30.0
# The same of one that does not take its answer, for each part of that.
_ANSWER_TIMEOUT_S: Final = 60.0
_RETRY_S: Final = 0.01


class NoWriter(Exception):
    """Nobody took the request: no process has the store open for writing, or it is just closing it."""


class WriterEndedError(StorageError):
    """Whoever carried out the request is gone, without an answer: whether it was done, its successor knows."""


class _BrokenFrame(Exception):
    """What came is no frame."""


class _BusyError(Exception):
    """The requests of other connections take all memory that requests may."""


class _Room:
    """Memory that all requests of a server share. Threads: any."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self.taken_bytes = 0

    def take(self, byte_count: int) -> None:
        """Raises: _BusyError when there is not so much left."""
        with self._lock:
            if self.taken_bytes + byte_count > self._limit_bytes:
                raise _BusyError
            self.taken_bytes += byte_count

    def give_back(self, byte_count: int) -> None:
        with self._lock:
            self.taken_bytes -= byte_count


# --- client -----------------------------------------------------------------------------------------


def send(
    env: Env,
    directory: str,
    request: dict[str, Any],
    attachments: Sequence[bytes] = (),
    timeout_s: float = 600.0,
) -> tuple[dict[str, Any], list[bytes]]:
    """Have the writer of the store at `directory` carry out `request`; returns its answer.

    timeout_s: for everything together.
    Raises:    NoWriter when nobody listens or the writer is closing: nothing was done. What the handler raised.
               StorageError: without outcome nothing was done; with outcome "unknown" the request may have been
               carried out, so send it again only under the same idempotency key (S1). WriterEndedError is one of these.
    """
    deadline_s = env.clock.monotonic_s() + timeout_s
    with contextlib.closing(_connect(env, directory, deadline_s)) as connection:
        wire = _Wire(connection, lambda: deadline_s - env.clock.monotonic_s())
        sent = False
        try:
            if wire.receive(len(MAGIC)) != MAGIC:
                raise StorageError(
                    f"the process that writes {directory} runs another version of Nyala: close it, or use the "
                    "same version in both",
                    path=directory,
                )
            with contextlib.suppress(ConnectionError):  # then the server may have said why
                wire.send_frame(request, attachments)
                sent = True
            (status,) = wire.receive(1)
        except TimeoutError as error:
            # Sent, and no status yet: it may be on its way to us in this moment.
            raise _not_answered(
                directory, f"did not take the request within {timeout_s:g} s", sent
            ) from error
        except (ConnectionError, EOFError) as error:
            raise NoWriter(str(error)) from error
        if status == CLOSING:
            raise NoWriter("the writer is closing the store")
        if status == BUSY:
            raise NoWriter("the writer is reading the requests of other processes")
        if status != ACCEPTED:
            raise StorageError(
                f"the process that writes {directory} could not read the request; nothing was done",
                path=directory,
            )
        try:
            answer, returned = wire.receive_frame()
        except TimeoutError as error:
            what = f"did not answer within {timeout_s:g} s while it carried out the request"
            raise _not_answered(directory, what, True) from error
        except (ConnectionError, EOFError, _BrokenFrame) as error:
            raise WriterEndedError(
                f"the process that writes {directory} ended while it carried out the request; whether it was done is "
                "not known: send it again with the same key",
                path=directory,
                outcome="unknown",
            ) from error
    if "error" in answer:
        raise _decode_error(answer["error"], returned)
    return answer["answer"], returned


def _not_answered(directory: str, what: str, maybe_done: bool) -> StorageError:
    advice = (
        "whether it was done is not known: send it again with the same key"
        if maybe_done
        else "nothing was done: try again when it is less busy"
    )
    return StorageError(
        f"the process that writes {directory} {what}; {advice}",
        path=directory,
        outcome="unknown" if maybe_done else None,
    )


def _connect(env: Env, directory: str, deadline_s: float) -> socket.socket:
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            left_s = deadline_s - env.clock.monotonic_s()
            connection.settimeout(max(left_s, 0.001))
            with _address(directory) as address:
                connection.connect(address)
            return connection
        except BlockingIOError:
            # Linux: the server's queue is full. It does not let us wait for that.
            connection.close()
            if left_s <= 0:
                raise _not_answered(directory, "is too busy to take the request", False) from None
            env.clock.sleep_s(_RETRY_S)
        except (FileNotFoundError, NotADirectoryError, ConnectionError, TimeoutError) as error:
            connection.close()
            raise NoWriter(f"nobody listens in {directory}: {error}") from error
        except OSError as error:
            connection.close()
            if error.errno in (errno.ENOTSOCK, errno.EPROTOTYPE):
                raise NoWriter(f"{SOCKET_NAME} in {directory} is not a socket") from error
            raise StorageError(
                f"cannot connect to the process that writes {directory}: {error}; run as the same user as that "
                "process",
                path=directory,
                errno=error.errno,
            ) from error
        except BaseException:
            connection.close()
            raise


# --- server -----------------------------------------------------------------------------------------


class ChannelServer:
    """Answers requests to the store at `directory` from `start` to `stop`. For the holder of the store's lock."""

    def __init__(self, env: Env, directory: str, handler: Handler) -> None:
        self._env = env
        self._directory = directory
        self._path = os.path.join(directory, SOCKET_NAME)
        self._handler = handler
        self._listener: socket.socket | None = None
        self._waker: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # guards the three below
        self._stopping = False
        self._reading: set[socket.socket] = set()
        self._workers: set[threading.Thread] = set()
        self._room = _Room(REQUESTS_MAX_BYTES)

    def start(self) -> None:
        """Begin to listen. Raises: StorageError when the file system has no Unix sockets."""
        assert self._thread is None, "started already"
        self._env.files.unlink(self._path, missing_ok=True)  # S4
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _address(self._directory) as address:
                listener.bind(address)
            self._env.files.check_bound()  # the address is a path
            os.chmod(self._path, stat.S_IRUSR | stat.S_IWUSR)  # nobody can connect before `listen` (S6)
            listener.listen(CONNECTIONS_MAX)
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            raise StorageError(
                f"cannot listen at {self._path}: {error}; put the store on a local disk if other processes are "
                "to write while this one has it open",
                path=self._path,
                errno=error.errno,
            ) from error
        self._listener = listener
        wakee, self._waker = socket.socketpair()
        self._thread = threading.Thread(
            target=self._accept, args=(listener, wakee), name="nyala-handover", daemon=True
        )
        _servers.add(self)
        self._thread.start()

    def stop(self) -> None:
        """Take no further request, finish those accepted, and go. May be called twice."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            self._stopping = True
            # Clients in the middle of their request: nothing of it was done, and they are told so.
            for connection in self._reading:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RD)
        assert self._waker is not None
        self._waker.close()
        thread.join()
        with contextlib.suppress(StorageError):  # the next writer replaces it
            self._env.files.unlink(self._path, missing_ok=True)
        while True:
            with self._lock:
                workers = [worker for worker in self._workers if worker is not threading.current_thread()]
            if not workers:
                return
            workers[0].join()

    def _accept(self, listener: socket.socket, wakee: socket.socket) -> None:
        with contextlib.closing(listener), contextlib.closing(wakee), selectors.DefaultSelector() as selector:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(wakee, selectors.EVENT_READ)
            while True:
                if len(self._workers) >= CONNECTIONS_MAX:  # S5
                    selector.unregister(listener)
                    while len(self._workers) >= CONNECTIONS_MAX and not selector.select(_RETRY_S):
                        pass
                    selector.register(listener, selectors.EVENT_READ)
                if any(key.fileobj is wakee for key, _ in selector.select()):
                    return
                try:
                    connection, _ = listener.accept()
                except OSError as error:  # gone again, or out of descriptors: others may have more luck later
                    if error.errno not in (errno.EAGAIN, errno.ECONNABORTED, errno.EINTR):
                        logger.warning("cannot accept a connection at %s: %s", self._path, error)
                        self._env.clock.sleep_s(_RETRY_S)
                    continue
                if not _is_ours(connection):
                    connection.close()
                    continue
                worker = threading.Thread(
                    target=self._serve, args=(connection,), name="nyala-handover-request", daemon=True
                )
                with self._lock:
                    if self._stopping:
                        connection.close()  # without a hello: the client knows that nothing was done
                        continue
                    self._workers.add(worker)
                    self._reading.add(connection)
                try:
                    worker.start()
                except RuntimeError as error:  # the system has no thread more; it may have one later
                    logger.warning("cannot serve a connection at %s: %s", self._path, error)
                    with self._lock:
                        self._workers.discard(worker)
                        self._reading.discard(connection)
                    connection.close()  # without a hello
                    self._env.clock.sleep_s(_RETRY_S)

    def _serve(self, connection: socket.socket) -> None:
        deadline_s = self._env.clock.monotonic_s() + REQUEST_TIMEOUT_S
        wire = _Wire(connection, lambda: deadline_s - self._env.clock.monotonic_s(), self._room)
        try:
            with contextlib.closing(connection):
                self._serve_request(wire, connection)
        except (OSError, EOFError) as error:
            logger.debug("a client at %s went away: %r", self._path, error)
        except Exception:
            logger.exception("a request at %s failed", self._path)
        finally:
            self._room.give_back(wire.taken_bytes)
            with self._lock:
                self._reading.discard(connection)
                self._workers.discard(threading.current_thread())

    def _serve_request(self, wire: _Wire, connection: socket.socket) -> None:
        wire.send(MAGIC)
        frame: tuple[dict[str, Any], list[bytes]] | None = None
        try:
            frame = wire.receive_frame(REQUEST_MAX_BYTES)
            status = ACCEPTED
        except _BusyError:
            status = BUSY
        except _BrokenFrame as error:
            logger.warning("a request at %s cannot be read: %s", self._path, error)
            status = UNREADABLE
        except EOFError:
            status = CLOSING  # ours, after `stop`; or the client's end, then nobody reads this
        with self._lock:
            self._reading.discard(connection)
            if self._stopping:
                status = CLOSING
        wire.left_s = lambda: _ANSWER_TIMEOUT_S
        wire.send(bytes([status]))
        if status != ACCEPTED or frame is None:
            return
        try:
            answer, attachments = self._handler(*frame)
            message: dict[str, Any] = {"answer": answer}
        except BaseException as error:
            if not isinstance(error, Error):
                logger.exception("a request of another process failed")
            fields, attachments = _encode_error(error)
            message = {"error": fields}
        wire.send_frame(message, attachments)


def _is_ours(connection: socket.socket) -> bool:
    """Whether the peer is of this process's user, or root, as far as the system says (S6)."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    peer = struct.Struct("3i")  # pid, uid, gid
    _, uid, _ = peer.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, peer.size))
    return uid in (os.geteuid(), 0)


_servers: weakref.WeakSet[ChannelServer] = weakref.WeakSet()


def _forget_in_child() -> None:
    """A forked child has the parent's sockets, but not its threads: clients must not wait for it."""
    for server in _servers:
        for inherited in (server._listener, server._waker, *server._reading):
            if inherited is not None:
                inherited.close()
        server._thread = None


os.register_at_fork(after_in_child=_forget_in_child)


# --- frames -----------------------------------------------------------------------------------------


class _Wire:
    """Frames over a connected socket; `left_s` says how long the next step may take.

    room: what is received is taken from it, piece by piece as it arrives; who made the wire gives `taken_bytes` back.
    """

    def __init__(
        self, connection: socket.socket, left_s: Callable[[], float], room: _Room | None = None
    ) -> None:
        self._connection = connection
        self.left_s = left_s
        self._room = room
        self.taken_bytes = 0

    def send(self, part: bytes | memoryview) -> None:
        self._wait()
        self._connection.sendall(part)

    def receive(self, length: int) -> bytes:
        """Read exactly `length` bytes. Raises: EOFError, TimeoutError, ConnectionError, _BusyError."""
        received = bytearray()
        while len(received) < length:
            wanted = min(length - len(received), _PIECE_BYTES)
            self._wait()
            piece = self._connection.recv(wanted)
            if not piece:
                raise EOFError("the other side closed the connection")
            if self._room is not None:
                self._room.take(len(piece))
                self.taken_bytes += len(piece)
            received += piece
        return bytes(received)

    def send_frame(self, message: dict[str, Any], attachments: Sequence[bytes]) -> None:
        text = json.dumps(message, separators=(",", ":")).encode()
        views = [memoryview(attachment).cast("B") for attachment in attachments]
        lengths = struct.pack(f"<{len(views)}Q", *(view.nbytes for view in views))
        head = _FIXED.pack(MAGIC, len(text), len(views)) + lengths
        crc = google_crc32c.value(text)
        self.send(head + _CRC.pack(google_crc32c.value(head)) + text)
        for view in views:
            crc = google_crc32c.extend(crc, bytes(view))
            self.send(view)
        self.send(_CRC.pack(crc))

    def receive_frame(self, limit_bytes: int = ANSWER_MAX_BYTES) -> tuple[dict[str, Any], list[bytes]]:
        """Read a frame of bounded size.

        Raises: _BrokenFrame for anything that `send_frame` does not send; else like `receive`.
        """
        fixed = self.receive(_FIXED.size)
        magic, text_length, count = _FIXED.unpack(fixed)
        if magic != MAGIC:
            raise _BrokenFrame(f"magic {magic!r}, expected {MAGIC!r}")
        if text_length > JSON_MAX_BYTES or count > ATTACHMENT_COUNT_MAX:
            raise _BrokenFrame(f"{text_length} bytes of JSON and {count} attachments are too many")
        rest = self.receive(8 * count + _CRC.size)
        lengths = struct.unpack(f"<{count}Q", rest[: 8 * count])
        _check_crc(google_crc32c.value(fixed + rest[: 8 * count]), rest[8 * count :])
        if text_length + sum(lengths) > limit_bytes:
            raise _BrokenFrame(f"{text_length + sum(lengths)} bytes are too many: at most {limit_bytes}")
        text = self.receive(text_length)
        attachments = [self.receive(length) for length in lengths]
        crc = google_crc32c.value(text)
        for attachment in attachments:
            crc = google_crc32c.extend(crc, attachment)
        _check_crc(crc, self.receive(_CRC.size))
        # In memory an empty list takes twenty times its text.
        if sum(text.count(sign) for sign in (b"[", b"{", b",")) > JSON_VALUES_MAX:
            raise _BrokenFrame(f"more than {JSON_VALUES_MAX} values in the JSON are too many")
        try:
            message = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _BrokenFrame(f"the JSON is none: {error}") from error
        if not isinstance(message, dict):
            raise _BrokenFrame("the JSON is no object")
        return message, attachments

    def _wait(self) -> None:
        left_s = self.left_s()
        if left_s <= 0:
            raise TimeoutError("the time is over")
        self._connection.settimeout(left_s)


def _check_crc(found: int, stored: bytes) -> None:
    (expected,) = _CRC.unpack(stored)
    if found != expected:
        raise _BrokenFrame(f"CRC-32C {found:#010x}, expected {expected:#010x}")


# --- errors -----------------------------------------------------------------------------------------


def _encode_error(error: BaseException) -> tuple[dict[str, Any], list[bytes]]:
    """An exception as JSON, and the IPC stream of its table of rows if it has one (S2)."""
    if not isinstance(error, Error):
        error = StorageError(
            f"the process that writes the store failed on the request ({type(error).__name__}: {error}); whether "
            "it was done is not known",
            outcome="unknown",
        )
    fields: dict[str, Any] = {
        "class": next(cls.__name__ for cls in type(error).__mro__ if cls.__module__ == Error.__module__),
        "message": str(error),
    }
    attachments: list[bytes] = []
    if isinstance(error, WriteError):
        fields["applied"] = error.applied
        if error.errors is not None:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, error.errors.schema) as writer:
                writer.write_table(error.errors)
            attachments.append(sink.getvalue().to_pybytes())
    elif isinstance(error, CorruptionError):
        # Its constructor puts the place before the message; it must not stand there twice.
        fields |= {"message": error._message, "path": error.path, "offset": error.offset}
    elif isinstance(error, StorageError):
        fields |= {"path": error.path, "errno": error.errno, "outcome": error.outcome}
    return fields, attachments


def _decode_error(fields: dict[str, Any], attachments: Sequence[bytes]) -> Error:
    """The inverse of `_encode_error`. A class that only a newer version knows becomes `Error`."""
    name, message = str(fields["class"]), str(fields["message"])
    cls = getattr(nyala.errors, name, None) if name in nyala.errors.__all__ else None
    if not (isinstance(cls, type) and issubclass(cls, Error)):
        return Error(message)
    if issubclass(cls, WriteError):
        table = None
        if attachments:
            with pa.ipc.open_stream(pa.py_buffer(attachments[0])) as reader:
                table = reader.read_all()
        return cls(message, table, int(fields.get("applied", 0)))
    if issubclass(cls, CorruptionError):
        return cls(message, fields.get("path"), fields.get("offset"))
    if issubclass(cls, StorageError):
        return cls(message, path=fields.get("path"), errno=fields.get("errno"), outcome=fields.get("outcome"))
    return cls(message)


# --- addresses --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _address(directory: str) -> Iterator[str]:
    """A path to the socket that is short enough for the system, valid inside the `with`.

    The limit is on the text of the address, not on the path that it leads to: so a symbolic link with a short
    name will do, and both sides may make their own. The socket itself always lies in the store's folder.
    """
    path = os.path.join(os.path.abspath(directory), SOCKET_NAME)
    if len(os.fsencode(path)) <= _ADDRESS_MAX_BYTES:
        yield path
        return
    import tempfile

    base = tempfile.gettempdir()
    if len(os.fsencode(base)) > _ADDRESS_MAX_BYTES // 2:
        base = "/tmp"
    with tempfile.TemporaryDirectory(prefix="nyala-", dir=base) as folder:
        link = os.path.join(folder, "s")
        os.symlink(os.path.dirname(path), link)
        yield os.path.join(link, SOCKET_NAME)
