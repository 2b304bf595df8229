"""The channel to the writer: requests and answers over a Unix socket in the store's folder.

The server is a thread of the process that holds the store's lock. The clients are other processes.

    client                                                      server
    connect to writer.sock ──────────────────────────────────►  accept
                           ◄────────────────────────── "NYH2"   the server runs the same version
    frame: request         ──────────────────────────────────►
                           ◄───────────────────── status byte   ACCEPTED, before the request runs
                                                                session.answer(request, attachments)
                           ◄─────────── frame: answer or error
    further requests, while the session holds a lock or a pin; otherwise the server disconnects

`frames` describes frames and how errors are sent.

Invariants
    S1  The client knows whether its request may have been executed. Before the status ACCEPTED, the
        request was certainly not executed: `Connection` raises NoWriter, or a StorageError whose
        outcome is None. After ACCEPTED, a broken connection raises WriterEndedError, whose outcome
        is "unknown". This works for two reasons. The server sends the status before it executes the
        request, and a Unix socket delivers sent bytes even if the sender dies.
    S2, S3  See `frames`.
    S4  Only the lock holder serves, so a socket file that exists when it starts is stale.
    S5  A server serves at most CONNECTIONS_MAX connections at a time. Further clients wait in the
        system's queue. All requests together take at most REQUESTS_MAX_BYTES. A request must arrive
        within REQUEST_TIMEOUT_S after the server accepted its connection.
    S6  Only processes of the same user are served. The socket has mode 0600 before it listens, for
        any umask. Where the system names the client's user (Linux), a client of another user is
        rejected, except root.
    S7  One thread serves a connection from its beginning to its end, and then ends the session. So
        the locks and pins of a session end with its connection, and with the client's process.

This module calls the system's sockets directly, because `env` has no sockets. If the store's path
is too long for a socket address, it also creates a symbolic link in the temporary folder while it
binds or connects.

On a file system without Unix sockets `start` raises StorageError. Commits of other processes then
wait for the lock.

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
    decode_frame,
    encode_frame,
    execute,
    unpack_answer,
)

logger = logging.getLogger("nyala.handover.commits")

# The bytes that are sent. Never change their meaning: a new protocol needs a new HELLO.
HELLO: Final = b"NYH2"
ACCEPTED: Final = 1
CLOSING: Final = 2
UNREADABLE: Final = 3
BUSY: Final = 4

# The most memory for all requests that the server has received and not yet answered.
REQUESTS_MAX_BYTES: Final = 64 << 20
CONNECTIONS_MAX: Final = 256
_RECEIVE_BYTES: Final = 256 << 10

# A socket address may have 104 bytes on macOS and 108 on Linux, with a final zero byte.
_ADDRESS_MAX_BYTES: Final = 100
# A whole request must arrive within this time, or the server disconnects.
REQUEST_TIMEOUT_S: Final = 30.0
# The client must take each part of its answer within this time, or the server disconnects.
_ANSWER_TIMEOUT_S: Final = 60.0
_RETRY_S: Final = 0.01
# The longest timeout of one system call. Longer waits take several calls.
_WAIT_MAX_S: Final = 3600.0


class NoWriter(Exception):
    """No writer took the request: no process has the store open for writing, or the writer is closing it."""


class WriterEndedError(StorageError):
    """The process that executed the request ended without an answer. The next writer may know the outcome."""


class _BusyError(Exception):
    """The requests of other connections use all of REQUESTS_MAX_BYTES."""


class _RequestMemory:
    """Counts the bytes of all requests of a server. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self.taken_bytes = 0

    def take(self, byte_count: int) -> None:
        """Count the bytes of a request that is being read. Raises: _BusyError at the limit."""
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

    Its requests may take locks and pins in the writer (a pin keeps history). These locks and pins
    end with the connection. A forked child cannot use its parent's connection: the child's copy is
    closed.
    """

    def __init__(self, env: Env, directory: str, take_s: float) -> None:
        """Connect to the writer.

        take_s: how many seconds to wait at most until the writer accepts the connection.
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
        """Let the writer execute `request`; return the answer and its attachments.

        timeout_s: the time limit for everything.
        take_s: the time limit until the writer has taken the request. Default: timeout_s.

        Raises the errors of the request, and:
            NoWriter: the writer is closing the store, or is too busy. Nothing was done.
            StorageError with outcome None: nothing was done.
            StorageError with outcome "unknown", for example WriterEndedError: the request may have
                been executed. Repeat it only under the same idempotency key.
        """
        directory, wire = self._directory, self._wire
        began_s = self._env.clock.monotonic_s()
        take_s = timeout_s if take_s is None else min(take_s, timeout_s)
        self._deadline_s = began_s + take_s
        sent = False
        try:
            with contextlib.suppress(ConnectionError):  # the status may say why the server disconnected
                wire.send_frame(request, attachments)
                sent = True
            (status,) = wire.receive(1)
        except TimeoutError as error:
            # If the whole request was sent, the writer may have taken it: the status may be on its way.
            raise _not_answered(directory, f"did not take the request within {take_s:g} s", sent) from error
        except (ConnectionError, EOFError) as error:
            raise NoWriter(str(error)) from error
        if status == CLOSING:
            raise NoWriter("the writer is closing the store")
        if status == BUSY:
            raise NoWriter("the writer is busy with requests of other processes")
        if status != ACCEPTED:
            raise StorageError(
                f"the process that writes {directory} could not read the request; nothing was done. Use the same "
                "version of Nyala in that process and in this one",
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
                "whether the request was done: check that before you repeat it",
                path=directory,
                outcome="unknown",
            ) from error
        return unpack_answer(answer, returned)

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
    """Connect to the writer of the store at `directory`, and let it execute one request.

    timeout_s: the time limit for the request, in seconds.
    take_s: the time limit to connect, and again the time limit until the writer has taken the
        request. Default: timeout_s.
    Returns: the answer and its attachments.
    Raises: errors of the request; NoWriter if no process is the writer, or if it is closing or
        busy; StorageError, whose outcome is "unknown" if the request may have been executed.
    """
    with contextlib.closing(
        Connection(env, directory, timeout_s if take_s is None else take_s)
    ) as connection:
        return connection.request(request, attachments, timeout_s, take_s)


def _not_answered(directory: str, what: str, maybe_done: bool) -> StorageError:
    advice = (
        "it is not known whether the request was done: check that before you repeat it"
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
            # On Linux the server's queue is full, and the system does not wait until it has space.
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
    """Answers the requests of one connection, in the server. One thread uses it."""

    def answer(
        self, request: dict[str, Any], attachments: list[bytes]
    ) -> tuple[dict[str, Any], Sequence[bytes]]:
        """Execute a request; return the answer and its attachments. Raises: errors for the client."""
        ...

    def waits_s(self) -> float:
        """Return how many seconds the server waits for the next request. 0: it disconnects now."""
        ...

    def end(self) -> None:
        """Release the locks and pins of the session."""
        ...


class ChannelServer:
    """Answers the requests of other processes, between `start` and `stop`.

    It runs in the process that holds the lock of the store at `directory`.
    """

    def __init__(self, env: Env, directory: str, begin: Callable[[], Session]) -> None:
        """Create a server, not yet started. `begin` returns the session of a new connection."""
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
        self._env.files.unlink(self._path, missing_ok=True)  # stale (S4)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _address(self._directory) as address:
                listener.bind(address)
            self._env.files.check_bound()  # `bind` used a path, which may lead to another folder by now
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
        """Refuse further requests, and wait until the accepted ones are answered. May be called twice."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            self._stopping = True
            # End unfinished requests: their clients get the status CLOSING, so nothing was done.
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
                except OSError as error:  # the client disconnected, or this process has no free descriptor
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
                        connection.close()  # without HELLO, so the client knows that nothing was done
                        continue
                    self._workers.add(worker)
                    self._reading.add(connection)
                try:
                    worker.start()
                except RuntimeError as error:  # the system cannot start a thread now
                    logger.warning("cannot serve a connection at %s: %s", self._path, error)
                    with self._lock:
                        self._workers.discard(worker)
                        self._reading.discard(connection)
                    connection.close()  # without HELLO, so the client knows that nothing was done
                    self._env.clock.sleep_s(_RETRY_S)

    def _serve(self, connection: socket.socket) -> None:
        wire = _Wire(connection, lambda: REQUEST_TIMEOUT_S, self._memory)
        try:
            with contextlib.closing(connection), contextlib.ExitStack() as at_end:
                session = self._begin()
                at_end.callback(session.end)
                wire.send(HELLO)
                wait_s = REQUEST_TIMEOUT_S
                while wait_s > 0 and self._serve_request(wire, connection, session, wait_s):
                    wait_s = session.waits_s()
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
        """Answer the next request. Return whether the connection may send another one.

        wait_s: how many seconds at most to wait until the whole request has arrived.
        """
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
            status = CLOSING  # `stop` ended the request, or the client disconnected and reads no status
        with self._lock:
            self._reading.discard(connection)
            if self._stopping:
                status = CLOSING
        wire.left_s = lambda: _ANSWER_TIMEOUT_S
        wire.send(bytes([status]))
        if status != ACCEPTED or frame is None:
            return False
        message, attachments = execute(session.answer, *frame)
        del frame
        wire.send_frame(message, attachments)
        self._memory.release(wire.taken_bytes)
        wire.taken_bytes = 0
        with self._lock:
            if not self._stopping:
                self._reading.add(connection)
            return not self._stopping


def _is_ours(connection: socket.socket) -> bool:
    """Return whether the client runs as this process's user or as root.

    Also True on a system that does not name the client's user.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    peer = struct.Struct("3i")  # pid, uid, gid
    _, uid, _ = peer.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, peer.size))
    return uid in (os.geteuid(), 0)


_servers: weakref.WeakSet[ChannelServer] = weakref.WeakSet()
_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _forget_in_child() -> None:
    """Close the sockets that a forked child inherited from its parent.

    The child has no threads that answer requests. A connection must end when the parent ends,
    because its locks end with it. An open copy in the child would keep the connection open.
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
    """Sends and receives frames over a connected socket.

    left_s: returns for how many seconds the next call may still wait for the other side.
    memory: the server's count of the bytes of all its requests. Received bytes are added to it.
        None: nobody counts them.
    taken_bytes: the number of bytes that this object has added to `memory`. The caller must subtract
        them again (`memory.release`).
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
                continue  # `_wait` raises if the time limit has passed
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
        """Read a frame. Return its JSON and its attachments.

        limit_bytes: the most bytes of the JSON and the attachments together.
        Raises: BrokenFrame if the bytes are not a frame or the frame is too large; the errors that
            `receive` raises, such as EOFError.
        """
        return decode_frame(self.receive, limit_bytes)

    def _wait(self) -> None:
        left_s = self.left_s()
        if left_s <= 0:
            raise TimeoutError("the time limit for sending or receiving a request or an answer has passed")
        self._connection.settimeout(min(left_s, _WAIT_MAX_S))


# --- addresses --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _address(directory: str) -> Iterator[str]:
    """Yield a path to the store's socket that is short enough for a socket address.

    For a long path it is a path through a symbolic link, which exists inside the `with`. The client
    and the server may use different links. The socket itself is always in the store's folder.
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
