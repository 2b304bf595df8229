"""The S3 server answers raw HTTP requests as S3 documents.

`tests/unit/objects` sends all of Nyala's requests to it.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
from collections.abc import Iterator

import pytest

from nyala.testing import S3Server
from nyala.testing.faulty_objects import Request, at


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


def send(
    server: S3Server, command: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(server.endpoint.removeprefix("http://"), timeout=20)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(command, path, body, named)
        reply = connection.getresponse()
        return reply.status, reply.read(), reply.msg
    finally:
        connection.close()


def test_conditions_are_kept(server: S3Server) -> None:
    assert send(server, "PUT", "/bucket/a", b"1", If_None_Match="*")[0] == 200
    status, body, _ = send(server, "PUT", "/bucket/a", b"2", If_None_Match="*")
    assert status == 412 and b"<Code>PreconditionFailed</Code>" in body
    tag = send(server, "HEAD", "/bucket/a")[2]["ETag"]
    assert tag == f'"{hashlib.md5(b"1").hexdigest()}"'
    assert send(server, "PUT", "/bucket/a", b"3", If_Match='"other"')[0] == 412
    assert send(server, "PUT", "/bucket/a", b"3", If_Match=tag)[0] == 200
    assert send(server, "PUT", "/bucket/b", b"3", If_Match=tag)[0] == 412
    assert server.bodies() == {"a": b"3"}


@pytest.mark.parametrize(
    ("range_", "status", "body"),
    [
        ("bytes=2-4", 206, b"234"), ("bytes=8-", 206, b"89"), ("bytes=-3", 206, b"789"), ("bytes=5-100", 206, b"56789"),
        ("bytes=10-12", 416, None), ("bytes=-0", 416, None), ("lines=1-2", 200, b"0123456789"),
    ],
)  # fmt: skip
def test_ranges(server: S3Server, range_: str, status: int, body: bytes | None) -> None:
    server.put("a", b"0123456789")
    found = send(server, "GET", "/bucket/a", Range=range_)
    assert found[0] == status
    if body is not None:
        assert found[1] == body


def test_bodies_are_checked_against_their_digests(server: S3Server) -> None:
    right, wrong = (base64.b64encode(hashlib.md5(body).digest()).decode() for body in (b"1", b"2"))
    assert send(server, "PUT", "/bucket/a", b"1", Content_MD5=right)[0] == 200
    assert send(server, "PUT", "/bucket/b", b"1", Content_MD5=wrong)[0] == 400
    assert send(server, "PUT", "/bucket/b", b"1", Content_MD5="?")[0] == 400
    sha = hashlib.sha256(b"2").hexdigest()
    assert send(server, "PUT", "/bucket/b", b"1", x_amz_content_sha256=sha)[0] == 400
    assert list(server.bodies()) == ["a"]


def test_chunked_bodies_are_decoded(server: S3Server) -> None:
    framed = b"3;chunk-signature=x\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n"
    assert send(server, "PUT", "/bucket/a", framed, Content_Encoding="aws-chunked")[0] == 200
    assert server.bodies() == {"a": b"abc0123456789"}
    for damaged in (framed[:9], b"5\r\nabc\r\n0\r\n", b"x\r\n", b""):
        assert send(server, "PUT", "/bucket/b", damaged, Content_Encoding="aws-chunked")[0] == 400


@pytest.mark.parametrize("length", ["99999999999", "-1", "x"])
def test_a_body_of_invalid_length_is_not_read(server: S3Server, length: str) -> None:
    assert send(server, "PUT", "/bucket/a", Content_Length=length)[0] == 400


@pytest.mark.parametrize(
    ("command", "path", "status"),
    [
        ("GET", "/elsewhere/a", 404), ("GET", "/bucket/a", 404), ("HEAD", "/bucket", 200), ("DELETE", "/bucket/a", 204),
        ("GET", "/bucket?list-type=2&delimiter=/", 501), ("POST", "/bucket/a", 501),
        ("GET", "/bucket?list-type=2&max-keys=x", 400), ("POST", "/bucket?delete", 400),
        ("PUT", "/bucket/a?partNumber=1&uploadId=none", 404), ("POST", "/bucket/a?uploadId=none", 400),
    ],
)  # fmt: skip
def test_other_requests_have_their_status(server: S3Server, command: str, path: str, status: int) -> None:
    assert send(server, command, path)[0] == status


def test_the_clock_moves_with_real_time_and_with_the_test(server: S3Server) -> None:
    server.put("a", b"")
    server.advance(3600)
    server.put("b", b"")
    times = [send(server, "HEAD", f"/bucket/{key}")[2]["Last-Modified"] for key in "ab"]
    assert times[0] != times[1] and times[0].endswith("GMT")


def test_faults_are_chosen_by_command_key_and_number(server: S3Server) -> None:
    seen: list[Request] = []

    def faults(request: Request) -> str | None:
        seen.append(request)
        return "503" if request.number == 2 else None

    server.faults = faults
    assert [send(server, "PUT", f"/bucket/{key}")[0] for key in "abc"] == [200, 503, 200]
    assert seen == [Request("PUT", key, number) for number, key in enumerate("abc", 1)]
    assert sorted(server.bodies()) == ["a", "c"]
    assert server.requests == {"PUT": 3}


@pytest.mark.parametrize(("fault", "stored"), [("drop before", False), ("drop after", True)])
def test_a_cut_connection(server: S3Server, fault: str, stored: bool) -> None:
    server.faults = at(1, fault)
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        send(server, "PUT", "/bucket/a", b"1")
    assert (server.bodies() == {"a": b"1"}) == stored


def test_half_a_reply(server: S3Server) -> None:
    server.put("a", bytes(1000))
    server.faults = at(1, "half")
    with pytest.raises(http.client.IncompleteRead):
        send(server, "GET", "/bucket/a")
    assert server.bytes_sent["GET"] == 500


def test_closing_ends_all_connections(server: S3Server) -> None:
    connection = http.client.HTTPConnection(server.endpoint.removeprefix("http://"), timeout=20)
    connection.request("HEAD", "/bucket")
    assert connection.getresponse().read() == b""
    server.close()
    server.close()
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        connection.request("HEAD", "/bucket")
        connection.getresponse()
    connection.close()
