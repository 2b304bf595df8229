"""A small S3 server for tests, which can delay requests and break connections.

    with S3Server() as server:
        objects = open_objects(server.url, server.options)

The server has one bucket, in memory. It knows the requests that Nyala sends: PUT, GET and HEAD of
objects with conditions and ranges, DELETE, batch delete, LIST version 2, and multipart uploads. It
checks the digests of bodies. It does not check signatures; `make test-s3` tests signatures with
another server.

A *fault* is what happens to one request. The attribute `faults` chooses it, as in `faulty_objects`:

    fault               request is carried out?  reply
    "503" "500" "403"   no                       this status
    "409"               no                       status 409, for PUT only; other requests succeed
    "page" "404 page"   no                       the HTML page of a proxy, with status 200 or 404
    "drop before"       no                       none: the connection is cut
    "drop after"        yes                      none: the connection is cut
    "half"              yes                      half of it, then the connection is cut
    a number            yes, after this number of seconds; if the client has given up by then, the
                        request arrives late
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from nyala.testing.faulty_objects import Request

__all__ = ["S3Server", "WireFault"]

WireFault: TypeAlias = (
    Literal["503", "500", "403", "409", "page", "404 page", "drop before", "drop after", "half"] | float
)

_STATUS: Final = {
    "503": (503, "SlowDown"),
    "500": (500, "InternalError"),
    "403": (403, "AccessDenied"),
}
_PAGE: Final = b"<!doctype html><html><head><title>Log in to the network</title></head></html>"
_BODY_MAX_BYTES: Final = 64 << 20
_LISTED_MAX: Final = 1000
_RANGE: Final = re.compile(r"bytes=(\d{1,18})?-(\d{1,18})?")
_HEX_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_REAL_TIME_MARGIN_S: Final = 10.0


class _Object:
    """An object of the bucket. modified_s: whole seconds, as in S3."""

    def __init__(self, body: bytes, modified_s: int) -> None:
        self.body = body
        self.modified_s = modified_s
        self.tag = f'"{hashlib.md5(body).hexdigest()}"'


class _Answer(Exception):
    """The reply to a request. Functions may also raise it to end the request early."""

    def __init__(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status)
        self.status = status
        self.body = body
        self.headers = dict(headers or {})


def _error(status: int, code: str, message: str = "") -> _Answer:
    xml = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message><RequestId>1</RequestId></Error>"
    return _Answer(status, xml.encode(), {"Content-Type": "application/xml"})


def _xml(name: str, content: str, **headers: str) -> _Answer:
    body = f'<?xml version="1.0" encoding="UTF-8"?><{name}>{content}</{name}>'
    return _Answer(200, body.encode(), {"Content-Type": "application/xml", **headers})


class S3Server:
    """An S3 server on a free port, with one empty bucket. By default only this machine can connect.

    A test may set `faults` and `delay_s` at any time. `faults` is a function that gets each request as a
    `Request(HTTP command, key, number)` and returns its fault (see the module), or None. `delay_s`
    delays every reply. `requests`, `bytes_received` and
    `bytes_sent` have the numbers for each HTTP command. Thread-safe.
    """

    def __init__(self, bucket: str = "bucket", prefix: str = "store", host: str = "127.0.0.1") -> None:
        self.faults: Callable[[Request], WireFault | str | None] | None = None
        self.delay_s = 0.0
        self.requests: Counter[str] = Counter()
        self.bytes_received: Counter[str] = Counter()
        self.bytes_sent: Counter[str] = Counter()
        self.bucket = bucket
        self.prefix = prefix
        self._lock = threading.Lock()
        self._objects: dict[str, _Object] = {}
        self._uploads: dict[str, dict[int, bytes]] = {}
        self._ahead_s = 0.0
        self._upload_count = 0
        self._server = _Server((host, 0), _Handler)
        self._server.owner = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}"

    @property
    def options(self) -> dict[str, Any]:
        """The `storage_options` of a client. The server accepts any access key."""
        return {
            "endpoint": self.endpoint,
            "allow_http": True,
            "region": "us-east-1",
            "access_key_id": "test-key",
            "secret_access_key": "test-secret",
        }

    @property
    def upload_count(self) -> int:
        """The number of multipart uploads that were neither completed nor aborted."""
        return len(self._uploads)

    def advance(self, seconds: float) -> None:
        """Move the clock of the bucket forwards. Without this call it shows the real time."""
        self._ahead_s += seconds

    def bodies(self) -> dict[str, bytes]:
        """Return the objects of the bucket by key. The keys include the prefix."""
        with self._lock:
            return {key: found.body for key, found in self._objects.items()}

    def put(self, key: str, body: bytes) -> None:
        """Store an object without a request, as another program might. `key` includes the prefix."""
        with self._lock:
            self._objects[key] = _Object(body, self._now_s())

    def close(self) -> None:
        """Cut all connections and stop. May be called twice."""
        self._server.shutdown()
        self._server.cut_connections()
        self._server.server_close()
        self._thread.join(_REAL_TIME_MARGIN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _now_s(self) -> int:
        return int(time.time() + self._ahead_s)

    def _count(self, command: str, key: str, received: int) -> WireFault | str | None:
        with self._lock:
            self.requests[command] += 1
            self.bytes_received[command] += received
            request = Request(command, key, self.requests.total())
            return None if self.faults is None else self.faults(request)

    def _answer(
        self, command: str, key: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> _Answer:
        """Carry out a request, and return the reply. Raises _Answer for some error replies."""
        if not key:
            if command == "GET" and query.get("list-type") == "2":
                return self._list(query)
            if command == "POST" and "delete" in query:
                return self._delete_batch(body)
            if command == "HEAD":
                return _Answer(200)
            return _error(501, "NotImplemented", f"{command} of the bucket")
        if command == "PUT" and "partNumber" in query:
            return self._put_part(query, body)
        if command == "PUT":
            return self._put(key, headers, body)
        if command == "POST" and "uploads" in query:
            with self._lock:
                self._upload_count += 1
                upload = f"upload-{self._upload_count}"
                self._uploads[upload] = {}
            place = f"<Bucket>{self.bucket}</Bucket><Key>{escape(key)}</Key>"
            return _xml("InitiateMultipartUploadResult", f"{place}<UploadId>{upload}</UploadId>")
        if command == "POST" and "uploadId" in query:
            return self._complete(key, query, headers, body)
        if command == "DELETE":
            with self._lock:
                if "uploadId" in query:
                    self._uploads.pop(query["uploadId"], None)
                else:
                    self._objects.pop(key, None)
            return _Answer(204)
        if command in ("GET", "HEAD"):
            return self._get(key, headers)
        return _error(501, "NotImplemented", command)

    def _put(self, key: str, headers: Mapping[str, str], body: bytes) -> _Answer:
        """Check the conditions and store the object, both under the lock."""
        source = headers.get("x-amz-copy-source")
        with self._lock:
            if source is not None:
                copied = self._objects.get(unquote(source).lstrip("/").removeprefix(f"{self.bucket}/"))
                if copied is None:
                    return _error(404, "NoSuchKey")
                body = copied.body
            stored = _Object(body, self._now_s())
            there = self._objects.get(key)
            if headers.get("if-none-match") == "*" and there is not None:
                return _error(412, "PreconditionFailed", "At least one of the pre-conditions did not hold")
            match = headers.get("if-match")
            if match is not None and (there is None or there.tag != match):
                return _error(412, "PreconditionFailed", "At least one of the pre-conditions did not hold")
            self._objects[key] = stored
        if source is not None:
            return _xml("CopyObjectResult", f"<ETag>{escape(stored.tag)}</ETag>")
        return _Answer(200, headers={"ETag": stored.tag})

    def _put_part(self, query: Mapping[str, str], body: bytes) -> _Answer:
        with self._lock:
            parts = self._uploads.get(query.get("uploadId", ""))
            if parts is None:
                return _error(404, "NoSuchUpload")
            parts[int(query["partNumber"])] = body
        return _Answer(200, headers={"ETag": f'"{hashlib.md5(body).hexdigest()}"'})

    def _complete(
        self, key: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> _Answer:
        listed = [element for element in ElementTree.fromstring(body).iter() if element.tag.endswith("Part")]
        numbers = [int(child.text or "0") for part in listed for child in part if "PartNumber" in child.tag]
        with self._lock:
            parts = self._uploads.get(query["uploadId"])
            if parts is None:
                return _error(404, "NoSuchUpload")
            if sorted(parts) != numbers:
                return _error(
                    400,
                    "InvalidPart",
                    f"the request names the parts {numbers}, the upload has {sorted(parts)}",
                )
            whole = b"".join(parts[number] for number in numbers)
        answer = self._put(key, headers, whole)
        if answer.status != 200:
            return answer
        with self._lock:
            self._uploads.pop(query["uploadId"], None)
        place = f"<Bucket>{self.bucket}</Bucket><Key>{escape(key)}</Key>"
        return _xml("CompleteMultipartUploadResult", f"{place}<ETag>{escape(answer.headers['ETag'])}</ETag>")

    def _delete_batch(self, body: bytes) -> _Answer:
        keys = [e.text or "" for e in ElementTree.fromstring(body).iter() if e.tag.endswith("Key")]
        if len(keys) > _LISTED_MAX:
            return _error(400, "MalformedXML", f"more than {_LISTED_MAX} keys")
        with self._lock:
            for key in keys:
                self._objects.pop(key, None)
        return _xml("DeleteResult", "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys))

    def _get(self, key: str, headers: Mapping[str, str]) -> _Answer:
        found = self._objects.get(key)
        if found is None:
            return _error(404, "NoSuchKey", "The specified key does not exist.")
        shown = {"ETag": found.tag, "Last-Modified": _http_date(found.modified_s), "Accept-Ranges": "bytes"}
        size = len(found.body)
        match = _RANGE.fullmatch(headers.get("range", ""))
        if match is None:
            return _Answer(200, found.body, shown)
        if match[1] is None:
            lower, upper = max(size - int(match[2] or 0), 0), size
        else:
            lower, upper = int(match[1]), size if match[2] is None else min(int(match[2]) + 1, size)
        if lower >= size or lower >= upper:
            return _error(416, "InvalidRange", "The requested range is not satisfiable")
        shown["Content-Range"] = f"bytes {lower}-{upper - 1}/{size}"
        return _Answer(206, found.body[lower:upper], shown)

    def _list(self, query: Mapping[str, str]) -> _Answer:
        if query.get("delimiter"):
            return _error(501, "NotImplemented", "a delimiter")
        under = query.get("prefix", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        most = min(int(query.get("max-keys", _LISTED_MAX)), _LISTED_MAX)
        with self._lock:
            keys = sorted(key for key in self._objects if key.startswith(under) and key > after)
            page = [(key, self._objects[key]) for key in keys[:most]]
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key>"
            f"<LastModified>{time.strftime('%Y-%m-%dT%H:%M:%S.000Z', time.gmtime(found.modified_s))}</LastModified>"
            f"<ETag>{escape(found.tag)}</ETag><Size>{len(found.body)}</Size></Contents>"
            for key, found in page
        )
        cut = len(keys) > most
        more = f"<NextContinuationToken>{escape(page[-1][0])}</NextContinuationToken>" if cut else ""
        return _xml(
            "ListBucketResult",
            f"<Name>{self.bucket}</Name><Prefix>{escape(under)}</Prefix><KeyCount>{len(page)}</KeyCount>"
            f"<MaxKeys>{most}</MaxKeys><IsTruncated>{str(cut).lower()}</IsTruncated>{rows}{more}",
        )


def _http_date(seconds: int) -> str:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(seconds))


def _checked_body(headers: Mapping[str, str], body: bytes) -> bytes:
    """Decode a body in the aws-chunked encoding. Raises _Answer if a digest does not match."""
    if "aws-chunked" in headers.get("content-encoding", "") or headers.get(
        "x-amz-content-sha256", ""
    ).startswith("STREAMING-"):
        body = _unchunked(body)
    digest = headers.get("x-amz-content-sha256", "")
    if _HEX_DIGEST.fullmatch(digest) and hashlib.sha256(body).hexdigest() != digest:
        raise _error(400, "XAmzContentSHA256Mismatch")
    md5 = headers.get("content-md5")
    if md5 is not None:
        try:
            matches = base64.b64decode(md5, validate=True) == hashlib.md5(body).digest()
        except binascii.Error:
            raise _error(400, "InvalidDigest") from None
        if not matches:
            raise _error(400, "BadDigest")
    return body


def _unchunked(body: bytes) -> bytes:
    """Join the data of a body in the aws-chunked encoding.

    Each chunk is `<hex size>[;…]\\r\\n<data>\\r\\n`. A chunk of size 0 is the end.
    """
    parts: list[bytes] = []
    at = 0
    while True:
        end = body.find(b"\r\n", at, at + 1024)
        size = body[at:end].partition(b";")[0] if end >= 0 else b""
        if not re.fullmatch(rb"[0-9a-fA-F]{1,8}", size):
            raise _error(400, "IncompleteBody")
        length = int(size, 16)
        if length == 0:
            return b"".join(parts)
        data = body[end + 2 : end + 2 + length]
        at = end + 2 + length + 2
        if len(data) != length or body[at - 2 : at] != b"\r\n":
            raise _error(400, "IncompleteBody")
        parts.append(data)


class _Server(ThreadingHTTPServer):
    """A server that can cut its open connections, and wait for their threads.

    The threads are daemons, so that a program that forgets `close` can still end.
    """

    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.owner: S3Server
        self._connections: set[socket.socket] = set()
        self._connections_lock = threading.Lock()
        self._workers: list[threading.Thread] = []
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        worker = threading.Thread(
            target=self.process_request_thread, args=(request, client_address), daemon=True
        )
        with self._connections_lock:
            self._connections.add(request)
            self._workers = [*(one for one in self._workers if one.is_alive()), worker]
        worker.start()

    def server_close(self) -> None:
        super().server_close()
        for worker in self._workers:
            worker.join(_REAL_TIME_MARGIN_S)

    def shutdown_request(self, request: Any) -> None:
        with self._connections_lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing when a client disconnects: tests do that on purpose."""

    def cut_connections(self) -> None:
        with self._connections_lock:
            for connection in self._connections:
                _cut(connection)


def _cut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the connection is already closed


class _Handler(BaseHTTPRequestHandler):
    """Serves one connection: reads requests, applies faults, writes replies."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body in one packet
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Print no log."""

    def do(self) -> None:
        server = self.server.owner
        url = urlsplit(self.path)
        bucket, _, key = unquote(url.path).removeprefix("/").partition("/")
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > _BODY_MAX_BYTES or "Transfer-Encoding" in self.headers:
            rejected = _error(400, "EntityTooLarge", f"a body of {length[:20]} bytes")
            rejected.headers["Connection"] = "close"
            self._reply(rejected)
            return
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            return  # the client closed the connection
        fault = server._count(self.command, key, len(body))
        if fault == "drop before":
            self._cut()
            return
        pause_s = server.delay_s + (fault if isinstance(fault, int | float) else 0.0)
        if pause_s:
            time.sleep(pause_s)
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            if isinstance(fault, str) and fault in _STATUS:
                answer = _error(*_STATUS[fault], "a fault of the test")
            elif fault in ("page", "404 page"):
                answer = _Answer(
                    200 if fault == "page" else 404, _PAGE, {"Content-Type": "text/html; charset=utf-8"}
                )
            elif fault == "409" and self.command == "PUT" and key:
                answer = _error(409, "ConditionalRequestConflict", "a fault of the test")
            elif bucket != server.bucket:
                answer = _error(404, "NoSuchBucket", "The specified bucket does not exist")
            else:
                answer = server._answer(self.command, key, query, headers, _checked_body(headers, body))
        except _Answer as raised:
            answer = raised
        except (ElementTree.ParseError, KeyError, ValueError) as error:
            answer = _error(400, "InvalidRequest", str(error)[:200])
        if fault == "drop after":
            self._cut()
            return
        self._reply(answer, half=fault == "half")

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do

    def _reply(self, answer: _Answer, *, half: bool = False) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.status != 204:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            sent = answer.body[: len(answer.body) // 2] if half else answer.body
            self.wfile.write(sent)
            with self.server.owner._lock:
                self.server.owner.bytes_sent[self.command] += len(sent)
        self.wfile.flush()
        if half:
            self._cut()

    def _cut(self) -> None:
        _cut(self.connection)
