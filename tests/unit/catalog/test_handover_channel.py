"""The channel to the writer: a client knows whether its request was executed (invariants S1 to S7)."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import google_crc32c
import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from nyala import errors
from nyala.env import SYSTEM, MissingFileError
from nyala.handover import channel as handover_channel
from nyala.handover import frames
from nyala.handover.channel import HELLO, ChannelServer, NoWriter, Session, send
from nyala.handover.frames import MAGIC

Serve = Callable[[frames.Handler], ChannelServer]


def one_request(handler: frames.Handler) -> Session:
    """Return a session that ends after one request."""
    session: Any = SimpleNamespace(answer=handler, waits_s=lambda: 0.0, end=lambda: None)
    return cast(Session, session)


def echo(request: dict[str, Any], attachments: Sequence[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    return {"request": request, "count": len(attachments)}, list(attachments)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    servers = []

    def start(handler: frames.Handler) -> ChannelServer:
        servers.append(ChannelServer(SYSTEM, str(tmp_path), lambda: one_request(handler)))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def call(folder: Path, request: dict[str, Any], *attachments: bytes) -> tuple[dict[str, Any], list[bytes]]:
    return send(SYSTEM, str(folder), request, attachments, 20)


def test_request_and_answer_with_attachments(serve: Serve, tmp_path: Path) -> None:
    """A request and its answer arrive unchanged."""
    serve(echo)
    big = bytes(range(256)) * 20_000
    answer, attachments = call(tmp_path, {"do": "commit", "ü": [1, None, 2.5]}, b"", big, b"\0x")
    assert answer == {"request": {"do": "commit", "ü": [1, None, 2.5]}, "count": 3}
    assert attachments == [b"", big, b"\0x"]
    assert call(tmp_path, {}) == ({"request": {}, "count": 0}, [])


def test_a_thread_that_cannot_be_started_costs_one_request(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the system cannot start a thread, one client gets NoWriter, and the server still works."""
    start, failures = threading.Thread.start, [1]

    def starting(thread: threading.Thread) -> None:
        if thread.name == "nyala-handover-request" and failures:
            failures.pop()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starting)
    server = serve(echo)
    with pytest.raises(NoWriter):
        call(tmp_path, {})
    assert call(tmp_path, {"again": 1})[0]["request"] == {"again": 1}
    server.stop()
    assert not server._workers and not server._reading


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=settings().max_examples)
@given(
    message=st.dictionaries(st.text(), json_values, max_size=4),
    attachments=st.lists(st.binary(max_size=300), max_size=4),
)
def test_any_frame_arrives_unchanged(message: dict[str, Any], attachments: list[bytes]) -> None:
    """The receiver gets the same JSON and the same attachments."""
    left, right = socket.socketpair()
    with left, right:
        handover_channel._Wire(left, lambda: 5.0).send_frame(message, attachments)
        assert handover_channel._Wire(right, lambda: 5.0).receive_frame() == (message, attachments)


ROWS = pa.table({"row": pa.array([3, 5]), "code": ["null", "null"], "host": ["a", None]})


@pytest.mark.parametrize(
    "error",
    [
        errors.DuplicateKeyError("two keys are taken", ROWS, 7),
        errors.InvalidValueError("no table", None),
        errors.WriteError("mixed", ROWS.slice(0, 0)),
        errors.TableNotFoundError("no table 'x'"),
        errors.SchemaError("column 'a': expected int8, got text"),
        errors.CorruptionError("CRC-32C differs", "data/1/2.base", 4096),
        errors.StorageError("disk full", path="wal/1", errno=28),
        errors.StorageError("sync failed", outcome="unknown"),
        errors.HistoryExpiredError("oldest is 7"),
    ],
    ids=str,
)
def test_S2_errors_arrive_with_class_and_rows(serve: Serve, tmp_path: Path, error: errors.Error) -> None:
    """A client catches the exception that the writer raised, with the same fields and rows."""

    def fail(*_: object) -> Any:
        raise error

    serve(fail)
    with pytest.raises(type(error)) as caught:
        call(tmp_path, {})
    assert type(caught.value) is type(error) and str(caught.value) == str(error)
    for name in ("applied", "path", "offset", "errno", "outcome"):
        assert getattr(caught.value, name, None) == getattr(error, name, None), name
    if isinstance(error, errors.WriteError):
        assert isinstance(caught.value, errors.WriteError)
        assert caught.value.errors == error.errors


@pytest.mark.parametrize("name", [name for name in errors.__all__ if isinstance(getattr(errors, name), type)])
def test_S2_every_error_class_arrives(serve: Serve, tmp_path: Path, name: str) -> None:
    """Each class of `nyala.errors` arrives, so a class that is added later arrives too."""
    error = getattr(errors, name)("what, where, what to do")

    def fail(*_: object) -> Any:
        raise error

    serve(fail)
    with pytest.raises(errors.Error) as caught:
        call(tmp_path, {})
    assert type(caught.value) is type(error) and str(caught.value) == str(error)


def test_S2_an_internal_error_has_an_unknown_outcome(serve: Serve, tmp_path: Path) -> None:
    """An exception that is not of `nyala.errors` arrives as StorageError with its name in the message."""
    raised: list[BaseException] = [
        ZeroDivisionError("division by zero"),
        MissingFileError("gone", path="x", errno=2),
    ]

    def fail(*_: object) -> Any:
        raise raised.pop(0)

    serve(fail)
    with pytest.raises(errors.StorageError, match="ZeroDivisionError: division by zero") as caught:
        call(tmp_path, {})
    assert caught.value.outcome == "unknown"
    with pytest.raises(errors.StorageError, match="gone") as caught:
        call(tmp_path, {})
    assert caught.value.outcome is None and caught.value.errno == 2


def test_S2_an_unknown_error_class_becomes_error() -> None:
    """The writer may run a newer version, which has more error classes."""
    assert type(frames.decode_error({"class": "ServerError", "message": "m"}, [])) is errors.Error
    assert type(frames.decode_error({"class": "ROW_ERROR_CODES", "message": "m"}, [])) is errors.Error


# --- no writer, or a writer that ends ---------------------------------------------------------------


def test_a_folder_without_a_writer(tmp_path: Path) -> None:
    """A client learns at once that no process listens."""
    with pytest.raises(NoWriter):
        call(tmp_path, {})
    with pytest.raises(NoWriter):
        call(tmp_path / "missing", {})
    (tmp_path / "writer.sock").write_bytes(b"")
    with pytest.raises(NoWriter):
        call(tmp_path, {})


SERVER_THAT_DIES = """
import os, signal, sys
from types import SimpleNamespace
from nyala.handover.channel import ChannelServer
from nyala.env import SYSTEM
def handler(request, attachments):
    if request.get("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"pid": os.getpid()}, []
session = SimpleNamespace(answer=handler, waits_s=lambda: 0.0, end=lambda: None)
ChannelServer(SYSTEM, sys.argv[1], lambda: session).start()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def child(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that serves the folder. The request `{"die": True}` kills it."""
    yield from start_child(SERVER_THAT_DIES, tmp_path)


def start_child(script: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_socket_of_a_killed_writer_is_stale(
    serve: Serve, tmp_path: Path, child: subprocess.Popen[bytes]
) -> None:
    """A killed writer leaves its socket file. Clients get NoWriter, and the next writer replaces it (S4)."""
    assert call(tmp_path, {})[0] == {"pid": child.pid}
    child.kill()
    child.wait()
    assert stat.S_ISSOCK(os.stat(tmp_path / "writer.sock").st_mode)
    with pytest.raises(NoWriter):
        call(tmp_path, {})
    serve(echo)
    assert call(tmp_path, {})[0]["count"] == 0


@pytest.mark.usefixtures("child")
def test_S1_a_writer_that_dies_during_a_request(tmp_path: Path) -> None:
    """The batch may be in the log, so the outcome is unknown and the error says: check before you repeat it."""
    with pytest.raises(
        errors.StorageError, match="ended while it executed .*check that before you repeat it"
    ) as caught:
        call(tmp_path, {"die": True})
    assert caught.value.outcome == "unknown"


def test_S1_a_stopped_writer(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    """A stopped process accepts no request: the call ends at its timeout, and nothing was done."""
    child.send_signal(signal.SIGSTOP)
    with pytest.raises(
        errors.StorageError, match=r"did not take the request within 0\.3 s; nothing"
    ) as caught:
        send(SYSTEM, str(tmp_path), {}, [], 0.3)
    assert caught.value.outcome is None


def test_S1_an_answer_after_the_timeout(serve: Serve, tmp_path: Path) -> None:
    """The writer may still execute a request after its client stopped waiting."""
    release = threading.Event()

    def slow(*_: object) -> Any:
        release.wait(20)
        return {}, []

    serve(slow)
    with pytest.raises(errors.StorageError, match=r"did not answer within 0\.3 s") as caught:
        send(SYSTEM, str(tmp_path), {}, [], 0.3)
    assert caught.value.outcome == "unknown"
    release.set()


def test_stop_waits_for_an_accepted_request(serve: Serve, tmp_path: Path) -> None:
    """`stop` returns after the request was executed, and the client gets the answer."""
    begun, release, done = threading.Event(), threading.Event(), threading.Event()

    def slow(*_: object) -> Any:
        begun.set()
        release.wait(20)
        done.set()
        return {"done": True}, []

    server = serve(slow)
    answers: list[Any] = []
    client = threading.Thread(target=lambda: answers.append(call(tmp_path, {})))
    client.start()
    begun.wait(20)
    threading.Timer(0.1, release.set).start()
    server.stop()
    assert done.is_set(), "stop() returned while a request was running"
    client.join()
    assert answers == [({"done": True}, [])]
    assert not (tmp_path / "writer.sock").exists()
    with pytest.raises(NoWriter):
        call(tmp_path, {})


def test_S1_stop_refuses_a_half_sent_request(serve: Serve, tmp_path: Path) -> None:
    """The client of a half sent request gets the status CLOSING, and the request is not executed."""
    handled: list[Any] = []

    def handler(request: dict[str, Any], attachments: Sequence[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        handled.append(request)
        return {}, []

    server = serve(handler)
    with socket.socket(socket.AF_UNIX) as half:
        half.connect(str(tmp_path / "writer.sock"))
        assert half.recv(4) == HELLO
        half.sendall(MAGIC + b"\x05")
        begin = time.monotonic()
        server.stop()
        assert time.monotonic() - begin < 10
        assert half.recv(1) == bytes([handover_channel.CLOSING])
    assert not handled


def test_S1_a_request_that_comes_as_the_server_stops(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that was read in full is refused if `stop` was called meanwhile."""
    server = serve(echo)
    receive_frame = handover_channel._Wire.receive_frame

    def closing(wire: handover_channel._Wire, limit_bytes: int) -> Any:
        frame = receive_frame(wire, limit_bytes)
        server._stopping = True
        return frame

    monkeypatch.setattr(handover_channel._Wire, "receive_frame", closing)
    with pytest.raises(NoWriter, match="closing"):
        call(tmp_path, {})


def test_many_clients_at_once(serve: Serve, tmp_path: Path) -> None:
    """Each client gets its own answer, and none waits for a client that sends nothing."""
    serve(echo)
    idle = socket.socket(socket.AF_UNIX)
    idle.connect(str(tmp_path / "writer.sock"))
    answers: dict[int, Any] = {}

    def job(number: int) -> None:
        answers[number] = call(tmp_path, {"n": number}, b"x" * number * 1000)

    jobs = [threading.Thread(target=job, args=(number,)) for number in range(30)]
    for thread in jobs:
        thread.start()
    for thread in jobs:
        thread.join()
    idle.close()
    assert all(answers[n] == ({"request": {"n": n}, "count": 1}, [b"x" * n * 1000]) for n in range(30))


# --- bad bytes --------------------------------------------------------------------------------------


def frame(text: bytes = b"{}", attachments: Sequence[bytes] = ()) -> bytes:
    """Return a frame in the layout of docs/format/lease-and-lock.md."""
    head = b"NYH1" + struct.pack("<II", len(text), len(attachments))
    head += b"".join(struct.pack("<Q", len(attachment)) for attachment in attachments)
    body = text + b"".join(attachments)
    crcs = [struct.pack("<I", google_crc32c.value(part)) for part in (head, body)]
    return head + crcs[0] + body + crcs[1]


def exchange(folder: Path, sent: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(str(folder / "writer.sock"))
        assert client.recv(4) == HELLO
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        received = b""
        with contextlib.suppress(ConnectionResetError):  # the server disconnected before it read all bytes
            while part := client.recv(65536):
                received += part
        return received


def test_S3_damaged_requests_are_refused(serve: Serve, tmp_path: Path) -> None:
    """The server does not execute bytes that are not a frame, and goes on to serve other clients."""
    handled: list[Any] = []

    def handler(request: dict[str, Any], attachments: Sequence[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        handled.append(request)
        return {}, []

    serve(handler)
    good = frame(b'{"a":1}', [b"12345"])
    assert exchange(tmp_path, good) == bytes([handover_channel.ACCEPTED]) + frame(b'{"answer":{}}')
    assert handled == [{"a": 1}]
    for offset in range(len(good)):
        damaged = bytearray(good)
        damaged[offset] ^= 0x41
        assert exchange(tmp_path, bytes(damaged)) in (
            bytes([handover_channel.UNREADABLE]), bytes([handover_channel.CLOSING])
        ), offset  # fmt: skip
    for other in (frame(b"[1]"), frame(b"{"), frame(b"\xff"), b"GET / HTTP/1.1\r\n\r\n"):
        assert exchange(tmp_path, other) == bytes([handover_channel.UNREADABLE])
    huge = b"NYH1" + struct.pack("<IIQ", 2, 1, 1 << 60)
    huge += struct.pack("<I", google_crc32c.value(huge))
    assert exchange(tmp_path, huge) == bytes([handover_channel.UNREADABLE])
    assert exchange(tmp_path, b"NYH1" + struct.pack("<II", 1 << 31, 0)) == bytes(
        [handover_channel.UNREADABLE]
    )
    assert len(handled) == 1
    assert call(tmp_path, {})[0] == {}


@pytest.mark.parametrize(
    ("reply", "error", "outcome"),
    [
        (b"", NoWriter, None),
        (b"NY", NoWriter, None),
        (b"NYH3", errors.StorageError, None),
        (b"NYH1", errors.StorageError, None),
        (b"NYH2", NoWriter, None),
        (b"NYH2\x02", NoWriter, None),
        (b"NYH2\x03", errors.StorageError, None),
        (b"NYH2\x01", errors.StorageError, "unknown"),
        (b"NYH2\x01" + frame(b'{"answer":{}}')[:-1], errors.StorageError, "unknown"),
        (b"NYH2\x01" + frame(b'{"answer":{}}')[:-1] + b"\0", errors.StorageError, "unknown"),
    ],
)
def test_S1_a_server_that_ends_at_any_point(
    tmp_path: Path, reply: bytes, error: type[Exception], outcome: str | None
) -> None:
    """Wherever the server's bytes end, the client knows whether its request may have been executed."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "writer.sock"))
    listener.listen()

    def play() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(reply)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass

    server = threading.Thread(target=play)
    server.start()
    with pytest.raises(error) as caught:
        call(tmp_path, {"a": 1}, b"x" * 500_000)
    assert getattr(caught.value, "outcome", None) == outcome
    server.join()
    listener.close()


# --- limits, and other users ------------------------------------------------------------------------


def connected(folder: Path) -> socket.socket:
    """Return a client that is connected and has received HELLO."""
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(20)
    client.connect(str(folder / "writer.sock"))
    assert client.recv(4) == HELLO
    return client


def head_of(text_length: int, *lengths: int) -> bytes:
    head = struct.pack(f"<4sII{len(lengths)}Q", MAGIC, text_length, len(lengths), *lengths)
    return head + struct.pack("<I", google_crc32c.value(head))


def resident_mb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 // 1024


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("the condition did not become true")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_header_allocates_no_memory(serve: Serve, tmp_path: Path) -> None:
    """The lengths in a header do not allocate memory: 30 headers could ask for gigabytes."""
    server = serve(echo)
    before = resident_mb()
    limit = frames.JSON_MAX_BYTES
    with contextlib.ExitStack() as stack:
        for lengths in [(limit,), (limit, 1), (limit, 1 << 20)] * 10:
            stack.enter_context(connected(tmp_path)).sendall(head_of(*lengths))
        for lengths in ((limit + 1,), (1, 1 << 40), (1, *[(1 << 64) - 1] * 3), (limit, 1 << 30)):
            refused = stack.enter_context(connected(tmp_path))
            refused.sendall(head_of(*lengths))
            assert refused.recv(1) == bytes([handover_channel.UNREADABLE])
        wait_until(lambda: len(server._workers) == 30)
        assert resident_mb() - before < 60
        assert call(tmp_path, {"still": 1})[0]["request"] == {"still": 1}
    wait_until(lambda: not server._workers and not server._memory.taken_bytes)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_json_of_too_many_values_is_refused(serve: Serve, tmp_path: Path) -> None:
    """Decoded JSON can take 20 times the memory of its text, so the number of values is limited."""
    serve(echo)
    before = resident_mb()
    text = b'{"a":[' + b"[]," * 8_000_000 + b"0]}"
    with connected(tmp_path) as client:
        client.sendall(head_of(len(text)) + text + struct.pack("<I", google_crc32c.value(text)))
        assert client.recv(1) == bytes([handover_channel.UNREADABLE])
    assert resident_mb() - before < 200


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_requests_of_all_clients_share_one_limit(serve: Serve, tmp_path: Path) -> None:
    """If all requests together are too large, a client gets NoWriter. It is served when memory is free."""
    server = serve(echo)
    before = resident_mb()
    sent = b" " * (24 << 20)
    clients = []
    for _ in range(6):
        client = connected(tmp_path)
        with contextlib.suppress(ConnectionError):
            client.sendall(head_of(30 << 20) + sent)
        clients.append(client)
    wait_until(lambda: len(server._reading) <= 2)
    assert 24 << 20 <= server._memory.taken_bytes <= handover_channel.REQUESTS_MAX_BYTES
    statuses = []
    for client in clients:
        client.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            statuses.append(client.recv(1))
    assert statuses.count(bytes([handover_channel.BUSY])) >= 4
    assert resident_mb() - before < 250
    with pytest.raises(NoWriter, match="requests of other processes"):
        call(tmp_path, {"a": "x" * (20 << 20)})
    for client in clients:
        client.close()
    wait_until(lambda: not server._memory.taken_bytes)
    assert len(call(tmp_path, {"a": "x" * (20 << 20)})[0]["request"]["a"]) == 20 << 20


def test_connections_above_the_limit_wait(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection has a thread, so their number is limited. A further client waits for its turn."""
    monkeypatch.setattr(handover_channel, "CONNECTIONS_MAX", 3)
    server = serve(echo)
    silent = [connected(tmp_path) for _ in range(3)]
    answers = []
    client = threading.Thread(target=lambda: answers.append(call(tmp_path, {"a": 1})[0]))
    client.start()
    client.join(0.3)
    assert client.is_alive() and len(server._workers) == 3
    silent[0].close()
    client.join(20)
    assert answers[0]["request"] == {"a": 1}
    for other in silent:
        other.close()


def test_a_server_full_of_silent_clients_can_be_stopped(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`close()` does not wait for clients that send nothing."""
    monkeypatch.setattr(handover_channel, "CONNECTIONS_MAX", 2)
    server = serve(echo)
    silent = [connected(tmp_path) for _ in range(2)]
    server.stop()
    for client in silent:
        assert client.recv(1) in (b"", bytes([handover_channel.CLOSING]))
        client.close()


def test_a_client_that_sends_byte_by_byte_is_dropped(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole request must arrive within the timeout, so a slow client is disconnected."""
    monkeypatch.setattr(handover_channel, "REQUEST_TIMEOUT_S", 0.5)
    server = serve(echo)
    with connected(tmp_path) as slow:
        slow.sendall(head_of(1000))
        with pytest.raises(OSError):
            for _ in range(2000):
                slow.sendall(b" ")
                time.sleep(0.01)
    wait_until(lambda: not server._workers)


def test_only_the_same_user_can_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket has mode 0600 under any umask, and a client of another user is disconnected (S6)."""
    before = os.umask(0)
    try:
        server = ChannelServer(SYSTEM, str(tmp_path), lambda: one_request(echo))
        server.start()
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(tmp_path / "writer.sock").st_mode) == 0o600
    assert call(tmp_path, {"a": 1})[0]["count"] == 0
    monkeypatch.setattr(handover_channel, "_is_ours", lambda connection: False)
    with pytest.raises(NoWriter):
        call(tmp_path, {"a": 1})
    server.stop()


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the system does not name a peer's user")
def test_the_user_of_a_client_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check compares the user ids of both processes."""
    left, right = socket.socketpair()
    with left, right:
        assert handover_channel._is_ours(left)
        if os.geteuid() != 0:
            monkeypatch.setattr(os, "geteuid", lambda: 12345)
            assert not handover_channel._is_ours(left)


# --- paths and forks --------------------------------------------------------------------------------


def test_a_folder_with_a_long_path(tmp_path: Path) -> None:
    """A store's path may be longer than a socket address may be (about 100 bytes)."""
    folder = tmp_path / ("d" * 120) / "ü"
    folder.mkdir(parents=True)
    server = ChannelServer(SYSTEM, str(folder), lambda: one_request(echo))
    server.start()
    assert stat.S_ISSOCK(os.stat(folder / "writer.sock").st_mode)
    assert call(folder, {"a": 1})[0]["request"] == {"a": 1}
    server.stop()
    assert os.listdir(folder) == []
    with pytest.raises(NoWriter):
        call(folder, {})


def test_a_relative_path(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(echo)
    monkeypatch.chdir(tmp_path)
    assert send(SYSTEM, ".", {})[0]["count"] == 0


def test_a_forked_child_closes_the_socket(tmp_path: Path) -> None:
    """If a writer forks and dies, clients do not wait for its child, which serves nobody."""
    script = SERVER_THAT_DIES.replace(
        "sys.stdin.read()", "child = os.fork()\nif child: print(child, flush=True)\nsys.stdin.read()"
    )
    for parent in start_child(script, tmp_path):
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            assert call(tmp_path, {})[0] == {"pid": parent.pid}
            parent.kill()
            parent.wait()
            with pytest.raises(NoWriter):
                call(tmp_path, {})
        finally:
            os.kill(child, signal.SIGKILL)


def test_start_in_a_missing_folder_raises(tmp_path: Path) -> None:
    with pytest.raises(errors.StorageError, match="cannot listen at"):
        ChannelServer(SYSTEM, str(tmp_path / "missing"), lambda: one_request(echo)).start()
