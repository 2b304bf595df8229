"""`BucketObjects`: which requests it sends, and how it handles errors and faults of obstore."""

from __future__ import annotations

import os
import pickle
import re
import select
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.objects.buckets import quick_env

from nyala.errors import StorageError
from nyala.objects.base import Objects
from nyala.objects.bucket import BucketObjects
from nyala.objects.bucket_errors import bucket_error
from nyala.objects.open import open_objects
from nyala.objects.settle import settle
from nyala.testing import S3Server
from nyala.testing.faulty_objects import Request, at
from nyala.testing.s3_server import WireFault

MB = 1 << 20


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def objects(server: S3Server) -> Iterator[Objects]:
    objects = open_objects(server.url, {**server.options, "timeout_s": 5})
    yield objects
    objects.close()


def impatient(server: S3Server) -> Objects:
    return open_objects(server.url, {**server.options, "timeout_s": 0.2})


def sent(server: S3Server, call: Callable[[], object]) -> dict[str, int]:
    """Return the requests that a call sends."""
    before = server.requests.copy()
    call()
    return dict(server.requests - before)


# ── create ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fault", ["503", "500", "drop before", "drop after"])
def test_create_sends_one_request_and_does_not_know_the_outcome(
    server: S3Server, objects: Objects, fault: WireFault
) -> None:
    """If obstore repeated the request, it would report its own object as one that existed before."""
    server.faults = at(1, fault)
    with pytest.raises(StorageError) as raised:
        objects.create("a", b"mine")
    assert raised.value.outcome == "unknown"
    assert server.requests == {"PUT": 1}
    assert (server.bodies() == {"store/a": b"mine"}) == (fault == "drop after")


def test_a_create_that_arrives_after_its_time_out_has_an_unknown_outcome(server: S3Server) -> None:
    objects = impatient(server)
    server.faults = at(1, 0.6)
    with pytest.raises(StorageError, match="did not answer in time") as raised:
        objects.create("a", b"mine")
    assert raised.value.outcome == "unknown"
    assert server.requests == {"PUT": 1}
    assert settle(quick_env(), objects, "a", b"mine") is None
    assert server.bodies() == {"store/a": b"mine"}


def test_after_a_conflict_settle_tries_again(server: S3Server, objects: Objects) -> None:
    """S3 answers 409 if another request for the key is running, and obstore reports "already exists"."""
    server.faults = at(1, "409")
    assert objects.create("a", b"mine") is False
    assert objects.get("a") is None
    server.faults = at(4, "409")
    assert settle(quick_env(), objects, "a", b"mine") is None


@pytest.mark.parametrize("fault", ["503", "500", "409", "drop before", "drop after", "half", 0.4])
def test_settle_creates_the_object_after_any_fault(server: S3Server, fault: WireFault) -> None:
    objects = impatient(server)
    server.faults = lambda request: fault if request.number <= 2 else None
    assert settle(quick_env(), objects, "a", b"mine") is None
    assert server.bodies() == {"store/a": b"mine"}
    assert settle(quick_env(), objects, "a", b"other") == b"mine"


# ── reads and uploads ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fault", ["503", "drop before", "drop after", "half"])
def test_a_read_is_repeated_and_never_cut_short(server: S3Server, objects: Objects, fault: WireFault) -> None:
    body = bytes(range(256)) * 4000
    objects.put("a", body)
    for call in (lambda: objects.get("a"), lambda: bytes(objects.get_ranges("a", [(0, len(body))])[0])):
        server.faults = at(server.requests.total() + 1, fault)
        assert call() == body


def test_near_ranges_share_a_request_and_far_ones_have_their_own(server: S3Server, objects: Objects) -> None:
    body = os.urandom(5 * MB)
    objects.put("a", body)
    near = [(n * 1000, n * 1000 + 10) for n in range(300)]
    far = [(4 * MB, 4 * MB + 10), (2 * MB, 2 * MB + 10)]
    before = server.bytes_sent["GET"]
    assert sent(server, lambda: objects.get_ranges("a", near + far)) == {"GET": 3}
    assert server.bytes_sent["GET"] - before < 300_100
    assert [bytes(memoryview(part)) for part in objects.get_ranges("a", near + far)] == [
        body[lower:upper] for lower, upper in near + far
    ]


def test_a_small_upload_is_one_request_and_a_large_one_has_parts(server: S3Server, objects: Objects) -> None:
    assert sent(server, lambda: objects.upload("a", [b"1"] * 1000)) == {"PUT": 1}
    assert sent(server, lambda: objects.upload("b", [bytes(MB)] * 20)) == {"PUT": 3, "POST": 2}
    assert server.upload_count == 0


class Stop(BaseException):
    pass


@pytest.mark.parametrize("error", [Stop, OSError, StorageError])
def test_an_upload_that_fails_is_aborted(
    server: S3Server, objects: Objects, error: type[BaseException]
) -> None:
    """Parts of an upload that is not aborted would cost money for ever. The caller's error is raised."""
    mine = error("of the caller")

    def parts() -> Iterator[bytes]:
        yield bytes(20 * MB)
        raise mine

    with pytest.raises(error) as raised:
        objects.upload("a", parts())
    assert raised.value is mine
    assert server.requests["POST"] == 1 and server.upload_count == 0
    assert server.bodies() == {}


@pytest.mark.parametrize(
    ("verb", "outcome", "stored"),
    [("PUT", None, False), ("POST", "unknown", True)],
    ids=["a part fails", "the reply to the last request is lost"],
)
def test_an_upload_that_fails_in_the_bucket(
    server: S3Server, objects: Objects, verb: str, outcome: str | None, stored: bool
) -> None:
    def faults(request: Request) -> WireFault | None:
        if request.verb != verb or server.requests["PUT"] < 3:
            return None
        return "503" if verb == "PUT" else "drop after"

    server.faults = faults
    with pytest.raises(StorageError) as raised:
        objects.upload("a", (bytes(8 * MB) for _ in range(30 if verb == "PUT" else 3)))
    assert raised.value.outcome == outcome
    assert bool(server.bodies()) == stored
    assert server.upload_count == 0


def test_lists_of_thousands_come_in_pages(server: S3Server, objects: Objects) -> None:
    for number in range(2_345):
        server.put(f"store/log/{number:06}", b"")
    server.put("store/other", b"")
    server.put("elsewhere/log/1", b"")
    listed: list[Any] = []
    assert sent(server, lambda: listed.extend(objects.list("log/"))) == {"GET": 3}
    assert [info.key for info in listed] == [f"log/{number:06}" for number in range(2_345)]
    assert sent(server, lambda: objects.list("log/", after="log/002000")) == {"GET": 1}
    objects.delete([info.key for info in listed])
    assert server.requests["POST"] == 3  # each request deletes at most 1,000 keys
    assert sorted(server.bodies()) == ["elsewhere/log/1", "store/other"]


def test_objects_of_other_programs_are_not_listed(server: S3Server, objects: Objects) -> None:
    for key in ("store/a", "store/with blank", "store/é", "store/.hidden"):
        server.put(key, b"")
    assert [info.key for info in objects.list("")] == ["a"]
    server.put("store/b//c", b"")  # obstore cannot list such a key
    with pytest.raises(StorageError, match="whose name has empty parts, '.' or '..'; remove it") as raised:
        objects.list("")
    assert raised.value.outcome is None


def test_delete_ignores_missing_objects(tmp_path: Path) -> None:
    """Google Cloud Storage and Azure answer 404 for a missing object. The others are still deleted."""
    from obstore.store import LocalStore  # LocalStore reports missing objects in the same way

    objects = BucketObjects("file:///here", lambda client_options, retry_config: LocalStore(str(tmp_path)))
    for key in ("a", "b", "c"):
        objects.put(key, b"")
    objects.delete(["missing", "a", "gone", "b"])
    assert [info.key for info in objects.list("")] == ["c"]
    objects.delete(["missing"])


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def every_call(objects: Objects) -> list[Callable[[], object]]:
    return [
        lambda: objects.create("a", b""),
        lambda: objects.put("a", b""),
        lambda: objects.upload("a", [b""]),
        lambda: objects.upload("a", [bytes(20 * MB)]),
        lambda: objects.get("a"),
        lambda: objects.get_ranges("a", [(0, 1)]),
        lambda: objects.head("a"),
        lambda: objects.list("a/"),
        lambda: objects.delete(["a"]),
    ]


def message_of(call: Callable[[], object]) -> tuple[str, str | None]:
    """Return the message and the outcome of the error, after checks that hold for every message."""
    with pytest.raises(StorageError) as raised:
        call()
    error, message = raised.value, str(raised.value)
    assert message.startswith("cannot ")
    assert error.path is not None and error.path.startswith("s3://") and error.path in message
    shown = "".join(traceback.format_exception(error))  # with its causes, as a user sees it
    assert len(message) < 400 and message.count(". ") <= 1 and "\n" not in message
    assert not re.search(r"Debug source|RetryError|reqwest|<Error>|<Code>|test-secret", shown)
    return message, error.outcome


def test_without_rights_the_error_names_the_missing_rights(server: S3Server, objects: Objects) -> None:
    server.faults = lambda _: "403"
    for call in every_call(objects):
        message, outcome = message_of(call)
        assert "403" in message and outcome is None
        assert "give these credentials the right to read, write, list and delete there" in message


def test_a_missing_bucket_is_an_error(server: S3Server) -> None:
    objects = open_objects("s3://elsewhere/store", server.options)
    for number, call in enumerate(every_call(objects)):
        if number == 6:
            continue  # the answer to HEAD has no body, so a missing bucket looks like a missing object
        message, outcome = message_of(call)
        assert "the bucket does not exist; check its name, the endpoint and the region" in message
        assert outcome is None


@pytest.mark.parametrize("fault", ["503", "drop before"])
def test_a_bucket_that_fails_leaves_an_unknown_outcome(
    server: S3Server, objects: Objects, fault: WireFault
) -> None:
    server.faults = lambda _: fault
    message, outcome = message_of(lambda: objects.create("a", b""))
    assert outcome == "unknown"
    assert ("503 SlowDown; the bucket is overloaded" if fault == "503" else "the connection broke") in message


def test_a_server_that_does_not_listen(server: S3Server, objects: Objects) -> None:
    server.close()
    message, outcome = message_of(lambda: objects.create("a", b""))
    assert message == (
        "cannot create s3://bucket/store/a: there is no connection to the server; check the endpoint and the network"
    )
    assert outcome == "unknown"


@pytest.mark.parametrize("fault", ["page", "404 page"])
def test_a_page_of_a_proxy_is_an_error(server: S3Server, objects: Objects, fault: WireFault) -> None:
    """The HTML of a proxy or log-in page is not taken for an object."""
    server.faults = lambda _: fault
    unseen = {7} if fault == "page" else {6}  # obstore takes a page for an empty list; HEAD has no body
    for number, call in enumerate(every_call(objects)):
        if number not in unseen:
            message, _ = message_of(call)
            assert "something other than the bucket answered, such as a proxy or a log-in page" in message


class Reported(Exception):
    pass


REPORTS = [
    ("status code: 403 Forbidden: <Error><Code>SignatureDoesNotMatch</Code>", "the secret key is wrong", None),
    ("status code: 403 Forbidden: <Error><Code>RequestTimeTooSkewed</Code>", "the clock of this machine", None),
    ("status code: 400 Bad Request: <Error><Code>ExpiredToken</Code>", "the credentials have expired", None),
    ("status code: 301 Moved: <Error><Code>PermanentRedirect</Code>", "pass its 'region'", None),
    ("Received redirect without LOCATION, this normally indicates", "pass its 'region'", None),
    ("status code: 400 Bad Request: <Error><Code>AuthorizationHeaderMalformed</Code>", "'region'", None),
    ("status code: 404 Not Found: The specified bucket does not exist.", "the bucket does not exist", None),
    ("status code: 418 Teapot: ", "the bucket rejects the request", None),
    ("status code: 403 Forbidden: <!DOCTYPE html><html>", "a page of HTML: something other than the bucket", None),
    ("status code: 409 Conflict: ", "409", "unknown"),
    ("status code: 429 Too Many: ", "overloaded", "unknown"),
    ("status code: 502 Bad Gateway: <html>", "the bucket failed: try again later", "unknown"),
    ("PUT http://169.254.169.254/latest/api/token - HTTP error: kind: Connect", "no credentials were found", None),
    ("HTTP error: ConnectError( dns error", "cannot be resolved", "unknown"),
    ("kind: Connect, invalid peer certificate: UnknownIssuer", "certificate", None),
    ("something nobody has seen", "the connection broke", "unknown"),
]  # fmt: skip


@pytest.mark.parametrize(("report", "advice", "outcome"), REPORTS)
def test_each_report_has_an_advice_and_an_outcome(report: str, advice: str, outcome: str | None) -> None:
    error = bucket_error(Reported(report), "write", "s3://bucket/a")
    assert advice in str(error) and error.outcome == outcome


# ── credentials and forks ───────────────────────────────────────────────────────────────────────────────────────────


def test_credentials_are_never_shown(server: S3Server, objects: Objects) -> None:
    for text in (repr(objects), str(objects), objects.url, repr([objects])):
        assert "test-secret" not in text and "test-key" not in text
    assert repr(objects) == "BucketObjects('s3://bucket/store')"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(objects)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_new_client_in_a_forked_child_raises_too(server: S3Server, objects: Objects) -> None:
    """All clients of a process share obstore's threads. In a forked child each request would hang."""
    objects.put("a", b"")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            open_objects(server.url, server.options).get("a")
            os.write(writer, b"no error")
        except StorageError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answered = select.select([pipe], [], [], 20)[0]
        if not answered:
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert answered, "the forked child hangs"
        assert "this process was forked from one that had opened a bucket" in pipe.read().decode()


def test_the_credential_provider_is_called_and_its_error_is_shown(server: S3Server) -> None:
    calls = []

    def provider() -> dict[str, Any]:
        calls.append(1)
        return {"access_key_id": "k", "secret_access_key": "s", "token": None, "expires_at": None}

    where = {name: server.options[name] for name in ("endpoint", "allow_http", "region")}
    assert open_objects(server.url, {**where, "credential_provider": provider}).create("a", b"")
    assert calls

    def broken() -> dict[str, Any]:
        raise RuntimeError("the token service\nsays no: " + "x" * 5000)

    failing = open_objects(server.url, {**where, "credential_provider": broken})
    for call in every_call(failing):
        with pytest.raises(StorageError) as raised:
            call()
        message = str(raised.value)
        assert (
            "the function 'credential_provider' failed: RuntimeError: the token service says no: xxx"
            in message
        )
        assert len(message) < 450 and "Debug" not in message and raised.value.outcome is None


def test_without_obstore_the_message_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'nyala[s3]'")):
        open_objects("s3://bucket/store", {"access_key_id": "k", "secret_access_key": "s"})


def test_close_during_a_call_raises(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread closes the objects after the check of a call and before its request."""
    check = BucketObjects.check

    def close_after(objects: BucketObjects) -> None:
        check(objects)
        objects.close()

    for number in range(len(every_call(open_objects(server.url, server.options)))):
        objects = open_objects(server.url, server.options)
        with monkeypatch.context() as patch:
            patch.setattr(BucketObjects, "check", close_after)
            with pytest.raises(StorageError, match="is closed: connect"):
                every_call(objects)[number]()
