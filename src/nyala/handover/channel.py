"""The channel to the writer: requests and answers over a Unix socket in the store's folder.

    client                                                      server (a thread of the lock holder)
    connect writer.sock ─────────────────────────────────────►  accept
                         ◄──────────────────────────── "NYH2"   a server of this version is alive
    frame: request       ─────────────────────────────────────►
                         ◄─────────────────────── status byte   ACCEPTED, before the handler runs
                                                                session.answer(request, attachments)
                         ◄───────────── frame: answer or error
    another request, while the session holds something in the writer; otherwise the server closes

Frames and errors: `frames`.

Invariants
    S1  The client knows whether its request may have been executed. Before ACCEPTED it was
        certainly not: `Connection` raises NoWriter, or StorageError without outcome. After it, a
        broken connection raises WriterEndedError, a StorageError with outcome "unknown". The status
        byte is sent before the handler is called, and bytes in a Unix socket are delivered even if
        the sender dies.
    S2, S3  See `frames`.
    S4  Only the lock holder serves, so a socket file that it finds at its start is stale.
    S5  A server serves at most CONNECTIONS_MAX connections at a time; further clients wait in the
        system's queue. All requests together take at most REQUESTS_MAX_BYTES. A request must arrive
        within REQUEST_TIMEOUT_S after its connection was accepted.
    S6  Only processes of the same user are served. The socket has mode 0600, for any umask, before
        it listens. Where the system names a peer's user (Linux), others except root are rejected.
    S7  One thread serves a connection from its begin to its end, and then ends its session. So what
        a session holds, locks included, ends with the connection, and with the client's process.

This module uses the system directly: sockets, and a symbolic link in the temporary folder, during
bind and connect, if the folder's path is longer than a socket address may be.
Left out: file systems without Unix sockets. `start` raises there, and commits of others wait for
the lock.
Source: docs/design/processes-and-locks.md, "One writer, and commits of others".
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import selectors
import socket
import stat
import struct
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

from nyala.catalog.format import SOCKET_NAME
from nyala.env import Env
from nyala.errors import StorageError
from nyala.handover.frames import (
    ANSWER_MAX_BYTES,
    REQUEST_MAX_BYTES,
    BrokenFrame,
    Handler,
    decode_frame,
    encode_frame,
    executed,
    opened,
)

__all__ = ["ChannelServer", "Connection", "NoWriter", "OneRequest", "Session", "WriterEndedError", "send"]

logger = logging.getLogger("nyala.handover.commits")

# On the wire: never renumber. Another protocol gets another hello.
HELLO: Final = b"NYH2"
ACCEPTED: Final = 1
CLOSING: Final = 2
UNREADABLE: Final = 3
BUSY: Final = 4

# The limit of all requests in work.
REQUESTS_MAX_BYTES: Final = 64 << 20
CONNECTIONS_MAX: Final = 256
_RECEIVE_BYTES: Final = 256 << 10

# macOS has 104 bytes for an address with its closing NUL, Linux has 108.
_ADDRESS_MAX_BYTES: Final = 100
# The server closes a connection whose whole request has not arrived by then.
REQUEST_TIMEOUT_S: Final = 30.0
# The server closes a connection whose client does not take a part of its answer by then.
_ANSWER_TIMEOUT_S: Final = 60.0
_RETRY_S: Final = 0.01
# The longest wait that is passed to the system at once.
_WAIT_MAX_S: Final = 3600.0


class NoWriter(Exception):
    """No process took the request: none has the store open for writing, or it is closing it."""


class WriterEndedError(StorageError):
    """The executor of the request ended without an answer; its successor may know the outcome."""


class _BusyError(Exception):
    """The requests of other connections use all memory for requests."""


class _RequestMemory:
    """The memory that all requests of a server share. Any thread."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self.taken_bytes = 0

    def take(self, byte_count: int) -> None:
        """Raises: _BusyError if less is left."""
        with self._lock:
            if self.taken_bytes + byte_count > self._limit_bytes:
                raise _BusyError
            self.taken_bytes += byte_count

    def release(self, byte_count: int) -> None:
        with self._lock:
            self.taken_bytes -= byte_count


# --- client -----------------------------------------------------------------------------------------


class Connection:
    """A connection to the writer of the store at `directory`. Used by one thread at a time.

    What its requests hold in the writer ends with it. Not for a forked child, whose copy is closed.
    """

    def __init__(self, env: Env, directory: str, take_s: float) -> None:
        """Connect.

        take_s: how long the writer may take to answer the connection.
        Raises: NoWriter if no process listens; StorageError if the writer has another version or
            does not answer.
        """
        self._env = env
        self._directory = directory
        self._deadline_s = env.clock.monotonic_s() + take_s
        self._socket = _connect(env, directory, self._deadline_s)
        weakref.finalize(self, self._socket.close)
        self._wire = _Wire(self._socket, lambda: self._deadline_s - env.clock.monotonic_s())
        _connections.add(self)
        try:
            hello = self._wire.receive(len(HELLO))
        except TimeoutError as error:
            self.close()
            raise _not_answered(directory, f"did not take the request within {take_s:g} s", False) from error
        except (ConnectionError, EOFError) as error:
            self.close()
            raise NoWriter(str(error)) from error
        except BaseException:
            self.close()
            raise
        if hello != HELLO:
            self.close()
            raise StorageError(
                f"the process that writes {directory} runs another version of Nyala: close it, or use the same "
                "version in both",
                path=directory,
            )

    def request(
        self,
        request: dict[str, Any],
        attachments: Sequence[bytes] = (),
        timeout_s: float = 600.0,
        take_s: float | None = None,
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Let the writer execute `request`; returns its answer.

        timeout_s: for all steps together. take_s: until the writer has taken the request.
        Raises:    NoWriter if the writer is closing; nothing was done then. Errors of the handler.
                   StorageError: without outcome nothing was done; with outcome "unknown" the
                   request may have been executed, so repeat it only under the same idempotency key
                   (S1). WriterEndedError is one of these.
        """
        directory, wire = self._directory, self._wire
        began_s = self._env.clock.monotonic_s()
        take_s = timeout_s if take_s is None else min(take_s, timeout_s)
        self._deadline_s = began_s + take_s
        sent = False
        try:
            with contextlib.suppress(ConnectionError):  # the server may have sent the reason before
                wire.send_frame(request, attachments)
                sent = True
            (status,) = wire.receive(1)
        except TimeoutError as error:
            # Sent without a status so far; the status may be on its way.
            raise _not_answered(directory, f"did not take the request within {take_s:g} s", sent) from error
        except (ConnectionError, EOFError) as error:
            raise NoWriter(str(error)) from error
        if status == CLOSING:
            raise NoWriter("the writer is closing the store")
        if status == BUSY:
            raise NoWriter("the writer is reading the requests of other processes")
        if status != ACCEPTED:
            raise StorageError(
                f"the process that writes {directory} could not read the request; nothing was done. Use the same "
                "version of Nyala in both",
                path=directory,
            )
        self._deadline_s = began_s + timeout_s
        try:
            answer, returned = wire.receive_frame()
        except TimeoutError as error:
            what = f"did not answer within {timeout_s:g} s while it executed the request"
            raise _not_answered(directory, what, True) from error
        except (ConnectionError, EOFError, BrokenFrame) as error:
            raise WriterEndedError(
                f"the process that writes {directory} ended while it executed the request, and it is not known "
                "whether it was done: send it again with the same key",
                path=directory,
                outcome="unknown",
            ) from error
        return opened(answer, returned)

    def close(self) -> None:
        """Disconnect. May be called twice."""
        self._socket.close()


def send(
    env: Env,
    directory: str,
    request: dict[str, Any],
    attachments: Sequence[bytes] = (),
    timeout_s: float = 600.0,
    take_s: float | None = None,
) -> tuple[dict[str, Any], list[bytes]]:
    """Let the writer of the store at `directory` execute one request; returns its answer.

    Parameters and errors: as `Connection`. take_s: for the connection, and again for the request.
    """
    with contextlib.closing(
        Connection(env, directory, timeout_s if take_s is None else take_s)
    ) as connection:
        return connection.request(request, attachments, timeout_s, take_s)


def _not_answered(directory: str, what: str, maybe_done: bool) -> StorageError:
    advice = (
        "it is not known whether the request was done: send it again with the same key"
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
            # Linux: the server's queue is full, and the system cannot wait for space.
            connection.close()
            if left_s <= 0:
                raise _not_answered(directory, "is too busy to take the request", False) from None
            env.clock.sleep_s(_RETRY_S)
        except (FileNotFoundError, NotADirectoryError, ConnectionError, TimeoutError) as error:
            connection.close()
            raise NoWriter(f"no process listens in {directory}: {error}") from error
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


class Session(Protocol):
    """The server's side of one connection. Used by one thread, from its begin to its end (S7)."""

    def answer(
        self, request: dict[str, Any], attachments: list[bytes]
    ) -> tuple[dict[str, Any], Sequence[bytes]]:
        """Execute a request. Raises: errors for the client."""
        ...

    def waits_s(self) -> float:
        """Return how long the connection waits for another request; 0: it ends."""
        ...

    def end(self) -> None:
        """Give back what the session holds."""
        ...


class OneRequest:
    """A session of a single request, which `handler` executes."""

    def __init__(self, handler: Handler) -> None:
        self.answer = handler

    def waits_s(self) -> float:
        return 0.0

    def end(self) -> None:
        pass


class ChannelServer:
    """The server in the process that holds the lock of the store at `directory`.

    Between `start` and `stop` it answers the requests of other processes.
    """

    def __init__(self, env: Env, directory: str, begin: Callable[[], Session]) -> None:
        """begin: makes the session of a new connection."""
        self._env = env
        self._directory = directory
        self._path = os.path.join(directory, SOCKET_NAME)
        self._begin = begin
        self._listener: socket.socket | None = None
        self._waker: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # guards the next three
        self._stopping = False
        self._reading: set[socket.socket] = set()
        self._workers: set[threading.Thread] = set()
        self._memory = _RequestMemory(REQUESTS_MAX_BYTES)

    def start(self) -> None:
        """Begin to listen. Raises: StorageError if the file system has no Unix sockets."""
        assert self._thread is None, "already started"
        self._env.files.unlink(self._path, missing_ok=True)  # S4
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _address(self._directory) as address:
                listener.bind(address)
            self._env.files.check_bound()  # the address is a path
            os.chmod(self._path, stat.S_IRUSR | stat.S_IWUSR)  # no client can connect before `listen` (S6)
            listener.listen(CONNECTIONS_MAX)
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            raise StorageError(
                f"cannot listen at {self._path}: {error}; put the store on a local disk if other processes should "
                "write while this one has it open",
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
        """Accept no further request, and wait for accepted ones. May be called twice."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            self._stopping = True
            # Clients that are still sending a request learn that nothing of it was done.
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
                except OSError as error:  # the client is gone, or no descriptor is free
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
                        connection.close()  # without a hello: the client then knows that nothing was done
                        continue
                    self._workers.add(worker)
                    self._reading.add(connection)
                try:
                    worker.start()
                except RuntimeError as error:  # the system has no more threads now
                    logger.warning("cannot serve a connection at %s: %s", self._path, error)
                    with self._lock:
                        self._workers.discard(worker)
                        self._reading.discard(connection)
                    connection.close()  # without a hello
                    self._env.clock.sleep_s(_RETRY_S)

    def _serve(self, connection: socket.socket) -> None:
        wire = _Wire(connection, lambda: REQUEST_TIMEOUT_S, self._memory)
        try:
            with contextlib.closing(connection), contextlib.closing(_Ending(self._begin())) as ending:
                wire.send(HELLO)
                wait_s = REQUEST_TIMEOUT_S
                while wait_s > 0 and self._serve_request(wire, connection, ending.session, wait_s):
                    wait_s = ending.session.waits_s()
        except (OSError, EOFError) as error:
            logger.debug("a client at %s disconnected: %r", self._path, error)
        except Exception:
            logger.exception("a request at %s failed", self._path)
        finally:
            self._memory.release(wire.taken_bytes)
            with self._lock:
                self._reading.discard(connection)
                self._workers.discard(threading.current_thread())

    def _serve_request(self, wire: _Wire, connection: socket.socket, session: Session, wait_s: float) -> bool:
        """Answer the request that comes within `wait_s`. Returns whether another one may follow."""
        deadline_s = self._env.clock.monotonic_s() + wait_s
        wire.left_s = lambda: deadline_s - self._env.clock.monotonic_s()
        frame: tuple[dict[str, Any], list[bytes]] | None = None
        try:
            frame = wire.receive_frame(REQUEST_MAX_BYTES)
            status = ACCEPTED
        except _BusyError:
            status = BUSY
        except BrokenFrame as error:
            logger.warning("a request at %s cannot be read: %s", self._path, error)
            status = UNREADABLE
        except EOFError:
            status = CLOSING  # our side after `stop`; or the client's side, and then nobody reads this
        with self._lock:
            self._reading.discard(connection)
            if self._stopping:
                status = CLOSING
        wire.left_s = lambda: _ANSWER_TIMEOUT_S
        wire.send(bytes([status]))
        if status != ACCEPTED or frame is None:
            return False
        message, attachments = executed(session.answer, *frame)
        del frame
        wire.send_frame(message, attachments)
        self._memory.release(wire.taken_bytes)
        wire.taken_bytes = 0
        with self._lock:
            if not self._stopping:
                self._reading.add(connection)
            return not self._stopping


class _Ending:
    """Ends a session when it is closed."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def close(self) -> None:
        self.session.end()


def _is_ours(connection: socket.socket) -> bool:
    """Whether the peer belongs to this process's user or root, if the system says so (S6)."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    peer = struct.Struct("3i")  # pid, uid, gid
    _, uid, _ = peer.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, peer.size))
    return uid in (os.geteuid(), 0)


_servers: weakref.WeakSet[ChannelServer] = weakref.WeakSet()
_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _forget_in_child() -> None:
    """Close the sockets that a forked child inherited: it has no threads to serve them.

    The connections belong to the parent, and must end when the parent ends (S7).
    """
    for connection in list(_connections):
        connection.close()
    for server in _servers:
        for inherited in (server._listener, server._waker, *server._reading):
            if inherited is not None:
                inherited.close()
        server._thread = None


os.register_at_fork(after_in_child=_forget_in_child)


# --- frames -----------------------------------------------------------------------------------------


class _Wire:
    """Frames over a connected socket; `left_s` returns how long the next step may take.

    memory: received bytes are counted there as they arrive; the maker of the wire releases
    `taken_bytes`.
    """

    def __init__(
        self, connection: socket.socket, left_s: Callable[[], float], memory: _RequestMemory | None = None
    ) -> None:
        self._connection = connection
        self.left_s = left_s
        self._memory = memory
        self.taken_bytes = 0

    def send(self, part: bytes | memoryview) -> None:
        self._wait()
        self._connection.sendall(part)

    def receive(self, length: int) -> bytes:
        """Read `length` bytes. Raises: EOFError, TimeoutError, ConnectionError, _BusyError."""
        received = bytearray()
        while len(received) < length:
            self._wait()
            try:
                received_now = self._connection.recv(min(length - len(received), _RECEIVE_BYTES))
            except TimeoutError:
                continue  # `_wait` knows whether the time limit has passed
            if not received_now:
                raise EOFError("the other side closed the connection")
            if self._memory is not None:
                self._memory.take(len(received_now))
                self.taken_bytes += len(received_now)
            received += received_now
        return bytes(received)

    def send_frame(self, message: dict[str, Any], attachments: Sequence[bytes]) -> None:
        for part in encode_frame(message, attachments):
            self.send(part)

    def receive_frame(self, limit_bytes: int = ANSWER_MAX_BYTES) -> tuple[dict[str, Any], list[bytes]]:
        """Read a frame of bounded size. Raises: BrokenFrame; otherwise as `receive`."""
        return decode_frame(self.receive, limit_bytes)

    def _wait(self) -> None:
        left_s = self.left_s()
        if left_s <= 0:
            raise TimeoutError("the time limit has passed")
        self._connection.settimeout(min(left_s, _WAIT_MAX_S))


# --- addresses --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _address(directory: str) -> Iterator[str]:
    """A path to the socket that is short enough for the system, valid inside the `with`.

    Only the length of the address is limited, not that of the path behind it. So a symbolic link
    with a short name works, and both sides may make their own. The socket itself is always in the
    store's folder.
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
