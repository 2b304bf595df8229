"""Google Cloud Storage and Azure: `create` sends the header of each, and understands the refusal.

The server here executes only PUT and GET, with the headers and statuses in each provider's documentation.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.unit.objects.buckets import quick_env

from nyala.objects.base import Objects
from nyala.objects.open import open_objects
from nyala.objects.settle import settle


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes]

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        headers = {"ETag": '"1"', "x-goog-generation": "1", "Last-Modified": "Sat, 28 Nov 2026 12:00:00 GMT"}
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        google, azure = (
            self.headers["x-goog-if-generation-match"] == "0",
            self.headers["If-None-Match"] == "*",
        )
        if self.path in self.objects and google:
            return self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        if self.path in self.objects and azure:
            return self.answer(409, b"<Error><Code>BlobAlreadyExists</Code></Error>")
        self.objects[self.path] = body
        self.answer(201 if "x-ms-blob-type" in self.headers else 200)

    def do_GET(self) -> None:
        if self.path not in self.objects:
            return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        self.answer(200, self.objects[self.path])


@pytest.fixture
def endpoint() -> Iterator[str]:
    handler = type("Fresh", (Handler,), {"objects": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(params=["gs", "az"])
def objects(request: pytest.FixtureRequest, endpoint: str, tmp_path: Path) -> Iterator[Objects]:
    options: dict[str, Any]
    if request.param == "gs":
        unused = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        key = {"gcs_base_url": endpoint, "disable_oauth": True, **unused}
        (tmp_path / "key.json").write_text(json.dumps(key))
        options = {"service_account_path": str(tmp_path / "key.json"), "allow_http": True}
    else:
        options = {"account_name": "me", "account_key": "a2V5", "endpoint": endpoint, "allow_http": True}
    objects = open_objects(f"{request.param}://bucket/store", options)
    yield objects
    objects.close()


def test_create_stores_only_the_first_bytes(objects: Objects) -> None:
    assert objects.get("log/0") is None
    assert objects.create("log/0", b"first") is True
    assert objects.create("log/0", b"second") is False
    assert objects.get("log/0") == b"first"
    objects.put("log/0", b"third")
    assert objects.get("log/0") == b"third"
    assert settle(quick_env(), objects, "log/0", b"fourth") == b"third"
