"""The channel to the writer: every request is done, refused, or of unknown outcome."""

from __future__ import annotations

import contextlib
import json
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
from typing import Any

import google_crc32c
import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from nyala import errors
from nyala.env import SYSTEM, MissingFileError
from nyala.handover import channel as handover_channel
from nyala.handover import frames
from nyala.handover.channel import HELLO, ChannelServer, NoWriter, OneRequest, send
from nyala.handover.frames import MAGIC

Serve = Callable[[frames.Handler], ChannelServer]


def echo(request: dict[str, Any], attachments: Sequence[bytes]) -> tuple[dict[str, Any], list[bytes]]:
    return {"request": request, "count": len(attachments)}, list(attachments)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    servers = []

    def start(handler: frames.Handler) -> ChannelServer:
        servers.append(ChannelServer(SYSTEM, str(tmp_path), lambda: OneRequest(handler)))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def ask(folder: Path, request: dict[str, Any], *attachments: bytes) -> tuple[dict[str, Any], list[bytes]]:
    return send(SYSTEM, str(folder), request, attachments, 20)


def test_request_and_answer_with_attachments(serve: Serve, tmp_path: Path) -> None:
    """A request and its answer arrive unchanged."""
    serve(echo)
    big = bytes(range(256)) * 20_000
    answer, attachments = ask(tmp_path, {"do": "commit", "ü": [1, None, 2.5]}, b"", big, b"\0x")
    assert answer == {"request": {"do": "commit", "ü": [1, None, 2.5]}, "count": 3}
    assert attachments == [b"", big, b"\0x"]
    assert ask(tmp_path, {}) == ({"request": {}, "count": 0}, [])


def test_a_thread_that_cannot_be_started_costs_one_request(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may have no thread left for a moment: the server would never answer again, and never be closed."""
    start, failures = threading.Thread.start, [1]

    def starting(thread: threading.Thread) -> None:
        if thread.name == "nyala-handover-request" and failures:
            failures.pop()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starting)
    server = serve(echo)
    with pytest.raises(NoWriter):
        ask(tmp_path, {})
    assert ask(tmp_path, {"again": 1})[0]["request"] == {"again": 1}
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
def test_any_frame_arrives_as_it_was(message: dict[str, Any], attachments: list[bytes]) -> None:
    """No text, number or byte is changed on the way."""
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
def test_S2_errors_arrive_as_what_they_were(serve: Serve, tmp_path: Path, error: errors.Error) -> None:
    """A job catches the same exception, with the same rows, as if it were the writer itself."""

    def fail(*_: object) -> Any:
        raise error

    serve(fail)
    with pytest.raises(type(error)) as caught:
        ask(tmp_path, {})
    assert type(caught.value) is type(error) and str(caught.value) == str(error)
    for name in ("applied", "path", "offset", "errno", "outcome"):
        assert getattr(caught.value, name, None) == getattr(error, name, None), name
    if isinstance(error, errors.WriteError):
        assert isinstance(caught.value, errors.WriteError)
        assert caught.value.errors == error.errors


@pytest.mark.parametrize("name", [name for name in errors.__all__ if isinstance(getattr(errors, name), type)])
def test_S2_every_error_class_crosses(serve: Serve, tmp_path: Path, name: str) -> None:
    """Also one that is added to `errors.py` some day."""
    error = getattr(errors, name)("what, where, what to do")

    def fail(*_: object) -> Any:
        raise error

    serve(fail)
    with pytest.raises(errors.Error) as caught:
        ask(tmp_path, {})
    assert type(caught.value) is type(error) and str(caught.value) == str(error)


def test_S2_what_is_no_error_of_ours(serve: Serve, tmp_path: Path) -> None:
    """An internal error of the writer arrives with its name and an unknown outcome."""
    raised: list[BaseException] = [
        ZeroDivisionError("division by zero"),
        MissingFileError("gone", path="x", errno=2),
    ]

    def fail(*_: object) -> Any:
        raise raised.pop(0)

    serve(fail)
    with pytest.raises(errors.StorageError, match="ZeroDivisionError: division by zero") as caught:
        ask(tmp_path, {})
    assert caught.value.outcome == "unknown"
    with pytest.raises(errors.StorageError, match="gone") as caught:
        ask(tmp_path, {})
    assert caught.value.outcome is None and caught.value.errno == 2


def test_S2_an_error_of_a_newer_version() -> None:
    assert type(frames.decode_error({"class": "ServerError", "message": "m"}, [])) is errors.Error
    assert type(frames.decode_error({"class": "ROW_ERROR_CODES", "message": "m"}, [])) is errors.Error


# --- nobody there -----------------------------------------------------------------------------------


def test_nobody_listens(tmp_path: Path) -> None:
    """Without a writer the caller learns it at once, and takes the lock himself."""
    with pytest.raises(NoWriter):
        ask(tmp_path, {})
    with pytest.raises(NoWriter):
        ask(tmp_path / "missing", {})
    (tmp_path / "writer.sock").write_bytes(b"")
    with pytest.raises(NoWriter):
        ask(tmp_path, {})


SERVER_THAT_DIES = """
import os, signal, sys
from nyala.handover.channel import ChannelServer, OneRequest
from nyala.env import SYSTEM
def handler(request, attachments):
    if request.get("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"pid": os.getpid()}, []
ChannelServer(SYSTEM, sys.argv[1], lambda: OneRequest(handler)).start()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def child(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that serves the folder; `{"die": True}` kills it at work."""
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
    """kill -9 leaves the socket file: clients find no writer, and the next one replaces it (S4)."""
    assert ask(tmp_path, {})[0] == {"pid": child.pid}
    child.kill()
    child.wait()
    assert stat.S_ISSOCK(os.stat(tmp_path / "writer.sock").st_mode)
    with pytest.raises(NoWriter):
        ask(tmp_path, {})
    serve(echo)
    assert ask(tmp_path, {})[0]["count"] == 0


@pytest.mark.usefixtures("child")
def test_S1_a_writer_that_dies_at_work_leaves_an_unknown_outcome(tmp_path: Path) -> None:
    """The batch may be in the log, so the error advises a retry under the same key."""
    with pytest.raises(errors.StorageError, match="ended while it executed .*same key") as caught:
        ask(tmp_path, {"die": True})
    assert caught.value.outcome == "unknown"


def test_S1_a_writer_that_hangs(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    """A stopped process accepts nothing: the call ends in time, and nothing was done."""
    child.send_signal(signal.SIGSTOP)
    with pytest.raises(
        errors.StorageError, match=r"did not take the request within 0\.3 s; nothing"
    ) as caught:
        send(SYSTEM, str(tmp_path), {}, [], 0.3)
    assert caught.value.outcome is None


def test_S1_an_answer_that_does_not_come(serve: Serve, tmp_path: Path) -> None:
    """A commit that takes longer than the caller waits may still happen."""
    release = threading.Event()

    def slow(*_: object) -> Any:
        release.wait(20)
        return {}, []

    serve(slow)
    with pytest.raises(errors.StorageError, match=r"did not answer within 0\.3 s") as caught:
        send(SYSTEM, str(tmp_path), {}, [], 0.3)
    assert caught.value.outcome == "unknown"
    release.set()


def test_stop_finishes_what_was_accepted(serve: Serve, tmp_path: Path) -> None:
    """Closing the database lets a job's running commit end, and the job gets its answer."""
    begun, release, done = threading.Event(), threading.Event(), threading.Event()

    def slow(*_: object) -> Any:
        begun.set()
        release.wait(20)
        done.set()
        return {"done": True}, []

    server = serve(slow)
    answers: list[Any] = []
    client = threading.Thread(target=lambda: answers.append(ask(tmp_path, {})))
    client.start()
    begun.wait(20)
    threading.Timer(0.1, release.set).start()
    server.stop()
    assert done.is_set(), "when stop() returns nobody works on the store any more"
    client.join()
    assert answers == [({"done": True}, [])]
    assert not (tmp_path / "writer.sock").exists()
    with pytest.raises(NoWriter):
        ask(tmp_path, {})


def test_S1_stop_refuses_what_was_not_accepted(serve: Serve, tmp_path: Path) -> None:
    """If the database closes during a request, nothing was done and the job may take the lock."""
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
    """Read in full, but the database is closing: refused, not done behind the back of close()."""
    server = serve(echo)
    receive_frame = handover_channel._Wire.receive_frame

    def closing(wire: handover_channel._Wire, limit_bytes: int) -> Any:
        frame = receive_frame(wire, limit_bytes)
        server._stopping = True
        return frame

    monkeypatch.setattr(handover_channel._Wire, "receive_frame", closing)
    with pytest.raises(NoWriter, match="closing"):
        ask(tmp_path, {})


def test_many_jobs_at_once(serve: Serve, tmp_path: Path) -> None:
    """Each gets its own answer; none waits for a client that is slow to speak."""
    serve(echo)
    idle = socket.socket(socket.AF_UNIX)
    idle.connect(str(tmp_path / "writer.sock"))
    answers: dict[int, Any] = {}

    def job(number: int) -> None:
        answers[number] = ask(tmp_path, {"n": number}, b"x" * number * 1000)

    jobs = [threading.Thread(target=job, args=(number,)) for number in range(30)]
    for thread in jobs:
        thread.start()
    for thread in jobs:
        thread.join()
    idle.close()
    assert all(answers[n] == ({"request": {"n": n}, "count": 1}, [b"x" * n * 1000]) for n in range(30))


# --- bad bytes --------------------------------------------------------------------------------------


def frame(text: bytes = b"{}", attachments: Sequence[bytes] = ()) -> bytes:
    """A frame in the layout of docs/format/lease-and-lock.md."""
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
        with contextlib.suppress(ConnectionResetError):  # it closed without reading all of ours
            while part := client.recv(65536):
                received += part
        return received


def test_S3_damaged_requests_are_refused_and_never_handled(serve: Serve, tmp_path: Path) -> None:
    """Bytes that are not a request change nothing and do not stop the service."""
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
    assert ask(tmp_path, {})[0] == {}


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
    """Wherever the server ends, the client knows whether its request may have been done."""
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
        ask(tmp_path, {"a": 1}, b"x" * 500_000)
    assert getattr(caught.value, "outcome", None) == outcome
    server.join()
    listener.close()


# --- what strangers send ----------------------------------------------------------------------------


def connected(folder: Path) -> socket.socket:
    """A client that has read the hello."""
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


def until(true: Callable[[], bool]) -> None:
    for _ in range(2000):
        if true():
            return
        time.sleep(0.005)
    raise AssertionError("it does not become true")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_header_takes_no_memory_for_what_it_announces(serve: Serve, tmp_path: Path) -> None:
    """28 bytes from each of 40 clients would take gigabytes of the writer's process."""
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
        until(lambda: len(server._workers) == 30)
        assert resident_mb() - before < 60
        assert ask(tmp_path, {"still": 1})[0]["request"] == {"still": 1}
    until(lambda: not server._workers and not server._memory.taken_bytes)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_json_of_many_values_takes_no_multiple_of_its_size(serve: Serve, tmp_path: Path) -> None:
    """A list takes three bytes of text and twenty times as much memory."""
    serve(echo)
    before = resident_mb()
    text = b'{"a":[' + b"[]," * 8_000_000 + b"0]}"
    with connected(tmp_path) as client:
        client.sendall(head_of(len(text)) + text + struct.pack("<I", google_crc32c.value(text)))
        assert client.recv(1) == bytes([handover_channel.UNREADABLE])
    assert resident_mb() - before < 200


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_requests_of_all_clients_share_one_bound(serve: Serve, tmp_path: Path) -> None:
    """Many clients, each within its own bound, must not exhaust memory.

    A client above the shared bound gets an error, tries again, and is served when memory is free.
    """
    server = serve(echo)
    before = resident_mb()
    sent = b" " * (24 << 20)
    clients = []
    for _ in range(6):
        client = connected(tmp_path)
        with contextlib.suppress(ConnectionError):
            client.sendall(head_of(30 << 20) + sent)
        clients.append(client)
    until(lambda: len(server._reading) <= 2)
    assert 24 << 20 <= server._memory.taken_bytes <= handover_channel.REQUESTS_MAX_BYTES
    statuses = []
    for client in clients:
        client.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            statuses.append(client.recv(1))
    assert statuses.count(bytes([handover_channel.BUSY])) >= 4
    assert resident_mb() - before < 250
    with pytest.raises(NoWriter, match="requests of other processes"):
        ask(tmp_path, {"a": "x" * (20 << 20)})
    for client in clients:
        client.close()
    until(lambda: not server._memory.taken_bytes)
    assert len(ask(tmp_path, {"a": "x" * (20 << 20)})[0]["request"]["a"]) == 20 << 20


def test_connections_are_bounded_and_others_wait(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection has a thread: a client in a loop would take all that the system has."""
    monkeypatch.setattr(handover_channel, "CONNECTIONS_MAX", 3)
    server = serve(echo)
    silent = [connected(tmp_path) for _ in range(3)]
    answers = []
    client = threading.Thread(target=lambda: answers.append(ask(tmp_path, {"a": 1})[0]))
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
    """The timeout is for the whole request, so a slow client cannot hold a connection for ever."""
    monkeypatch.setattr(handover_channel, "REQUEST_TIMEOUT_S", 0.5)
    server = serve(echo)
    with connected(tmp_path) as slow:
        slow.sendall(head_of(1000))
        with pytest.raises(OSError):
            for _ in range(2000):
                slow.sendall(b" ")
                time.sleep(0.01)
    until(lambda: not server._workers)


def test_only_the_same_user_can_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody on the machine could have files committed, under a umask that lets others write."""
    before = os.umask(0)
    try:
        server = ChannelServer(SYSTEM, str(tmp_path), lambda: OneRequest(echo))
        server.start()
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(tmp_path / "writer.sock").st_mode) == 0o600
    assert ask(tmp_path, {"a": 1})[0]["count"] == 0
    monkeypatch.setattr(handover_channel, "_is_ours", lambda connection: False)
    with pytest.raises(NoWriter):
        ask(tmp_path, {"a": 1})
    server.stop()


@pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="the system does not name a peer's user")
def test_another_users_process_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A passed descriptor or changed rights of the folder could let another user connect."""
    left, right = socket.socketpair()
    with left, right:
        assert handover_channel._is_ours(left)
        if os.geteuid() != 0:
            monkeypatch.setattr(os, "geteuid", lambda: 12345)
            assert not handover_channel._is_ours(left)


# --- surroundings -----------------------------------------------------------------------------------


def test_a_folder_with_a_long_path(tmp_path: Path) -> None:
    """A store deep down works as any other: the system's limit of about 100 bytes is not the user's."""
    folder = tmp_path / ("d" * 120) / "ü"
    folder.mkdir(parents=True)
    server = ChannelServer(SYSTEM, str(folder), lambda: OneRequest(echo))
    server.start()
    assert stat.S_ISSOCK(os.stat(folder / "writer.sock").st_mode)
    assert ask(folder, {"a": 1})[0]["request"] == {"a": 1}
    server.stop()
    assert os.listdir(folder) == []
    with pytest.raises(NoWriter):
        ask(folder, {})


def test_a_relative_path(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(echo)
    monkeypatch.chdir(tmp_path)
    assert send(SYSTEM, ".", {})[0]["count"] == 0


def test_a_forked_child_does_not_keep_clients_waiting(tmp_path: Path) -> None:
    """The writer forked and died: the child, which has no server thread, must not hold the socket open."""
    script = SERVER_THAT_DIES.replace(
        "sys.stdin.read()", "child = os.fork()\nif child: print(child, flush=True)\nsys.stdin.read()"
    )
    for parent in start_child(script, tmp_path):
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            assert ask(tmp_path, {})[0] == {"pid": parent.pid}
            parent.kill()
            parent.wait()
            with pytest.raises(NoWriter):
                ask(tmp_path, {})
        finally:
            os.kill(child, signal.SIGKILL)


def test_start_fails_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(errors.StorageError, match="cannot listen at"):
        ChannelServer(SYSTEM, str(tmp_path / "missing"), lambda: OneRequest(echo)).start()


def test_the_wire_holds_no_pickle() -> None:
    """S3, and that the answer is JSON that any tool reads."""
    left, right = socket.socketpair()
    with left, right:
        handover_channel._Wire(left, lambda: 5.0).send_frame({"a": 1}, [b"xy"])
        sent = right.recv(1000)
    assert sent == frame(b'{"a":1}', [b"xy"])
    assert json.loads(sent[24:31]) == {"a": 1}
