"""Commits of other processes to a store in a bucket: through the writer's inbox, or by becoming the writer."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

import nyala
from nyala.catalog import object_leases
from nyala.env import SYSTEM, Env
from nyala.handover import inbox
from nyala.handover.commits import commit_staged, discard_staging, new_staging
from nyala.objects.address import Address, address_of, bucket_of
from nyala.objects.base import Objects
from nyala.objects.open import open_objects
from nyala.objects.remote_files import RemoteFiles
from nyala.tablet.jobs.staged_files import write_staged
from nyala.tablet.media import bucket
from nyala.tablet.store import Store, StoreOptions
from nyala.testing.s3_server import S3Server
from nyala.wal.objects import take_over as take_over_module
from nyala.wal.objects.writer import ObjectLog

URL = "s3://bucket/store"
SCHEMA = pa.schema({"k": pa.int64(), "v": pa.string()})


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def env(server: S3Server, tmp_path: Path) -> Iterator[Env]:
    """Yield the environment of another process that uses the bucket."""
    env = replace(
        SYSTEM, files=RemoteFiles.over(open_objects(URL, server.options), SYSTEM, str(tmp_path), 1 << 26)
    )
    yield env
    env.files.close()


def connect(server: S3Server, **options: Any) -> nyala.Database:
    return nyala.connect(URL, storage_options=server.options, group_interval=0, **options)


def created(server: S3Server) -> None:
    with connect(server) as db:
        db.create_table("t", {"k": "int64", "v": "string"}, "k")


def staged(env: Env, rows: dict[int, str], operation: str = "insert") -> dict[str, Any]:
    """Stage rows in the bucket; return the job."""
    key, folder = new_staging(URL, 3600.0, env)
    batch = pa.record_batch([list(rows), list(rows.values())], schema=SCHEMA)
    write_staged(env, f"{folder}/part.arrow", SCHEMA, iter([batch]))
    return {"key": key, "table": "t", "operation": operation, "errors": "raise", "files": ["part.arrow"],
            "columns": SCHEMA.names}  # fmt: skip


def content(server: S3Server) -> dict[int, str]:
    with connect(server, read_only=True) as db:
        return {row["k"]: row["v"] for row in db["t"].to_arrow().to_pylist()}


def leftovers(server: S3Server) -> list[str]:
    """Return the keys of requests, answers and staged files."""
    return [
        key for key in server.bodies() if any(f"/{name}/" in key for name in ("inbox", "answers", "staging"))
    ]


WRITER = """
import json, os, sys, threading, time
import nyala
from nyala.handover import inbox
url, options, fault = json.loads(sys.argv[1])
db = nyala.connect(url, storage_options=options, group_interval=0)
answer = inbox.InboxServer._answer
def die(self, key, message, attachments):
    if fault == "before the answer":
        os._exit(9)
    answer(self, key, message, attachments)
    if fault == "after the answer":
        os._exit(9)
inbox.InboxServer._answer = die
print("open", flush=True)
sys.stdin.read()
db.close()
"""


@contextlib.contextmanager
def writer(server: S3Server, fault: str = "") -> Iterator[subprocess.Popen[str]]:
    """Start another process, which is the writer until its standard input is closed."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, json.dumps([URL, server.options, fault])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stdout.readline() == "open\n"
        yield process


def test_a_living_writer_commits_staged_rows(server: S3Server, env: Env) -> None:
    created(server)
    with writer(server) as process:
        job = staged(env, {1: "a", 2: "b"})
        answer = commit_staged(URL, job, env)
        assert answer["inserted"] == 2 and answer["errors"] is None
        assert commit_staged(URL, job, env) == answer, "a repeated commit has the same answer"
        with pytest.raises(nyala.DuplicateKeyError) as raised:
            commit_staged(URL, staged(env, {2: "again", 3: "c"}), env)
        assert raised.value.errors is not None and raised.value.errors["k"].to_pylist() == [2]
        assert content(server) == {1: "a", 2: "b"}
        discard_staging(URL, job["key"], env)
        assert process.poll() is None
        process.communicate("")
    assert process.returncode == 0, "it was not fenced"
    assert [key for key in leftovers(server) if "staging" not in key] == []


@pytest.mark.parametrize("fault", ["before the answer", "after the answer"])
def test_a_writer_that_dies_during_a_commit(server: S3Server, env: Env, fault: str) -> None:
    """The sender becomes the writer. By the key it finds out whether the rows were committed."""
    created(server)
    job = staged(env, {1: "a"})
    answers: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: answers.append(commit_staged(URL, job, env)))
    with writer(server, fault) as process:
        thread.start()
        assert process.wait(60) == 9
    server.advance(bucket.SILENT_MAX_US / 1e6 + 1)  # now the writer counts as dead
    thread.join(60)
    assert [answer["inserted"] for answer in answers] == [1]
    assert content(server) == {1: "a"}
    assert commit_staged(URL, job, env) == answers[0]


def test_without_a_writer_a_commit_is_done_at_once(server: S3Server, env: Env) -> None:
    created(server)
    assert commit_staged(URL, staged(env, {1: "a"}), env)["inserted"] == 1
    assert content(server) == {1: "a"}
    with connect(server) as db:  # the process of the commit is no longer the writer
        db["t"].insert({"k": [2], "v": ["b"]})


def test_many_processes_commit_without_a_writer(server: S3Server, tmp_path: Path) -> None:
    """They fence each other, or execute each other's requests. Each batch is committed once."""
    created(server)
    threads, answers = [], []

    def commit(number: int) -> None:
        objects = open_objects(URL, server.options)
        mine = replace(SYSTEM, files=RemoteFiles.over(objects, SYSTEM, str(tmp_path), 1 << 26))
        for k in range(number * 10, number * 10 + 3):
            answers.append(commit_staged(URL, staged(mine, {k: "x"}), mine)["inserted"])
        mine.files.close()

    for number in range(4):
        threads.append(threading.Thread(target=commit, args=(number,)))
        threads[-1].start()
    for thread in threads:
        thread.join(120)
    assert answers == [1] * 12
    assert len(content(server)) == 12
    assert [key for key in leftovers(server) if "staging" not in key] == []


def test_a_mistyped_url_does_not_become_a_store(server: S3Server, env: Env) -> None:
    with pytest.raises(nyala.StorageError, match="there is no Nyala store"):
        new_staging(URL, 60.0, env)
    with pytest.raises(nyala.StorageError, match="there is no Nyala store"):
        commit_staged(URL, {"key": "x"}, env)
    assert server.bodies() == {}


def opened_again(server: S3Server, folder: Path) -> Store:
    """Open the store again, as another process would."""
    client = open_objects(URL, server.options)
    env = replace(SYSTEM, files=RemoteFiles.over(client, SYSTEM, str(folder), 1 << 26))
    return Store.open_in_bucket(env, client, StoreOptions(maintenance=False), 0.0)


def test_I1_a_fenced_writer_leaves_requests_to_the_next(server: S3Server, env: Env, tmp_path: Path) -> None:
    """A fenced writer gives no answer, because the next writer can execute the request."""
    created(server)
    with connect(server) as old:
        served = inbox.serving(old._writer().objects)
        assert served is not None
        served.stop()  # this test serves the inbox instead
        successor = opened_again(server, tmp_path / "successor")
        job = staged(env, {1: "a"})
        objects = open_objects(URL, server.options)
        body = b"".join(map(bytes, inbox.encode_frame({"do": "commit", "job": job}, [])))
        objects.put("inbox/0123", body)
        late = inbox.InboxServer(env, objects, served._handler)
        with pytest.raises(nyala.FencedError):
            late.serve()
        assert objects.get("inbox/0123") == body and objects.get("answers/0123") is None
        from nyala.handover.commits import answer_request

        assert (
            inbox.InboxServer(env, objects, lambda request, _: answer_request(successor, request)).serve()
            == 1
        )
        assert objects.get("inbox/0123") is None and objects.get("answers/0123") is not None
        successor.close()
        objects.close()
        del old
    assert content(server) == {1: "a"}


@pytest.mark.parametrize(
    "body", [b"", b"NYH1", b"no frame at all" * 9, b"".join(map(bytes, inbox.encode_frame({}, []))) + b"more"]
)
def test_a_request_that_cannot_be_read_is_refused(server: S3Server, env: Env, body: bytes) -> None:
    created(server)
    objects = open_objects(URL, server.options)
    objects.put("inbox/0123", body)
    assert inbox.InboxServer(env, objects, lambda request, _: ({}, [])).serve() == 1
    answer = objects.get("answers/0123")
    assert answer is not None and b"use the same version of Nyala" in answer.replace(b"Use", b"use")
    assert objects.get("inbox/0123") is None
    objects.close()


def test_I3_an_interrupted_sender_deletes_its_request(
    server: S3Server, env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-C, no later writer executes the request."""
    created(server)
    monkeypatch.setattr(inbox, "living_writer", lambda objects: object())  # a writer that does nothing

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(env.clock), "sleep_s", interrupted)
    with pytest.raises(KeyboardInterrupt):
        commit_staged(URL, staged(env, {1: "a"}), env)
    assert [key for key in leftovers(server) if "inbox" in key] == []


def test_I3_an_error_while_waiting_has_an_unknown_outcome(
    server: S3Server, env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender's credentials expire, for example. The writer may still execute the request."""
    created(server)
    job = staged(env, {1: "a"})
    with connect(server):
        monkeypatch.setattr(inbox, "serving", lambda objects: None)
        monkeypatch.setattr("nyala.handover.commits.serving", lambda objects: None)
        server.faults = lambda request: "403" if "/answers/" in request.key else None
        with pytest.raises(nyala.StorageError, match="403") as raised:
            commit_staged(URL, job, env)
        assert raised.value.outcome == "unknown"
        server.faults = None
        assert commit_staged(URL, job, env)["inserted"] == 1


def test_after_a_dead_writer_an_error_has_an_unknown_outcome(
    server: S3Server, env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dead writer may have committed the request, so an error of the second attempt is not certain."""
    created(server)
    job = staged(env, {1: "a"})
    with writer(server, "before the answer") as process:
        monkeypatch.setattr(inbox, "_LOOK_S", 0.1)

        def later(*_: object) -> None:
            assert process.wait(60) == 9
            server.advance(bucket.SILENT_MAX_US / 1e6 + 1)
            monkeypatch.setattr(Store, "open_in_bucket", cannot_open)
            monkeypatch.setattr(type(env.clock), "sleep_s", sleep_s)

        def cannot_open(*_: object, **__: object) -> None:
            raise nyala.StorageError("the credentials have expired")

        sleep_s = type(env.clock).sleep_s
        monkeypatch.setattr(type(env.clock), "sleep_s", later)
        with pytest.raises(
            nyala.StorageError, match=r"sending the request again failed: the credentials"
        ) as raised:
            commit_staged(URL, job, env)
        assert raised.value.outcome == "unknown"
    monkeypatch.undo()
    assert content(server) == {1: "a"}, "the first attempt was committed"
    assert commit_staged(URL, job, env)["inserted"] == 1


def test_I4_a_request_is_found_although_news_has_an_old_key(
    server: S3Server, env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket stores a delayed PUT of `news` by another sender after the newer one."""
    created(server)
    monkeypatch.setattr(inbox, "_LOOK_S", 0.2)
    monkeypatch.setattr(inbox, "POLL_S", 0.05)
    objects = cast("Objects", bucket_of(env))
    with connect(server):
        monkeypatch.setattr("nyala.handover.commits.serving", lambda objects: None)
        commit_staged(URL, staged(env, {1: "a"}), env)
        old = objects.get("news")
        assert old is not None
        put, replaced = type(objects).put, []

        def put_and_delay(self: Objects, key: str, body: bytes) -> None:
            put(self, key, body if replaced or key != "news" else old)  # type: ignore[arg-type]
            replaced.extend([key] if key == "news" else [])

        monkeypatch.setattr(type(objects), "put", put_and_delay)
        monkeypatch.setattr("nyala.handover.commits._SEND_TIMEOUT_S", 10.0)
        assert commit_staged(URL, staged(env, {2: "b"}), env)["inserted"] == 1


@pytest.mark.parametrize(
    "answer",
    [{}, {"answer": 5}, {"error": 5}, {"error": {"class": "WriteError", "message": "", "applied": "x"}}],
)
def test_an_invalid_answer_is_a_storage_error(
    server: S3Server, env: Env, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any]
) -> None:
    created(server)
    monkeypatch.setattr(inbox, "living_writer", lambda objects: object())
    body = b"".join(map(bytes, inbox.encode_frame(answer, [])))
    kind = type(cast("Objects", bucket_of(env)))
    get = kind.get
    monkeypatch.setattr(
        kind, "get", lambda self, key: body if key.startswith("answers/") else get(self, key),
    )  # fmt: skip
    with pytest.raises(
        nyala.StorageError, match="the answer of the process that writes .* is invalid"
    ) as raised:
        commit_staged(URL, staged(env, {1: "a"}), env)
    assert raised.value.outcome == "unknown"


def test_one_url_on_two_servers_is_two_stores(server: S3Server, env: Env) -> None:
    """A process that writes to both sends the job to the right one."""
    with S3Server() as second, connect(server) as one:
        one.create_table("t", {"k": "int64", "v": "string"}, "k").insert({"k": [1], "v": ["one"]})
        with connect(second) as other:
            assert other.list_tables() == []
            other.create_table("t", {"k": "int64", "v": "string"}, "k")
            assert commit_staged(URL, staged(env, {2: "b"}), env)["inserted"] == 1
            assert (one["t"].count(), other["t"].count()) == (2, 0)
            with connect(second) as shared:
                assert shared._store is other._store


def test_all_spellings_of_a_url_are_one_store(server: S3Server) -> None:
    with connect(server) as db:
        db.create_table("t", {"k": "int64"}, "k")
        for url in ("S3://bucket/store", "s3://bucket//store//"):
            with nyala.connect(
                url, storage_options={**server.options, "profile": None}, group_interval=0
            ) as same:
                assert same._store is db._store
            assert Address.parse(url, {}, "") == Address(URL)


@pytest.mark.parametrize("timeout_s", [float("nan"), float("inf"), -1.0, 0, 1e300])
def test_an_invalid_timeout_is_refused(timeout_s: float) -> None:
    with pytest.raises(nyala.InvalidArgumentError, match="'timeout_s' must be positive, and at most"):
        open_objects(URL, {"timeout_s": timeout_s})


def test_old_requests_and_staged_files_are_deleted_after_a_day(
    server: S3Server, env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Staged files that belong to a living lease stay."""
    monkeypatch.setattr(bucket, "ORPHANS_FIRST_S", 0.0)
    monkeypatch.setattr(bucket, "ORPHANS_EVERY_S", 0.0)
    from nyala.handover.commits import remote_lease

    created(server)
    with connect(server, maintenance=False) as db:
        served = inbox.serving(db._writer().objects)
        assert served is not None
        served.stop()
        held = remote_lease(URL, 72 * 3600.0, env)
        kept = held.keep_file("a.token", b"kept")
        new_staging(URL, 60.0, env)
        key, folder = new_staging(URL, 60.0, env, None, held.name)
        env.files.write_atomic(f"{folder}/held", b"")
        _, alone = new_staging(URL, 60.0, env)
        env.files.write_atomic(f"{alone}/alone", b"")
        objects = cast("Objects", bucket_of(env))
        objects.put("inbox/0123", b"")
        objects.put("answers/4567", b"")
        db._writer().collect_garbage()
        assert len(leftovers(server)) == 4
        server.advance(25 * 3600)
        db._writer().collect_garbage()
        assert leftovers(server) == [f"store/staging/{key}/held"]
        assert env.files.read_all(kept) == b"kept"
        held.release()
        db._writer().collect_garbage()
        assert leftovers(server) == []


def test_a_fenced_database_opens_the_store_again_if_it_may(server: S3Server, tmp_path: Path) -> None:
    """With on_fenced="reopen", the interrupted call fails with a known outcome, and later calls work."""
    with connect(server, on_fenced="reopen") as db:
        db.create_table("t", {"k": "int64", "v": "string"}, "k")
        table = db["t"]
        table.insert({"k": [1], "v": ["a"]})
        scan, snapshot = table.scan(), db.snapshot()
        successor = opened_again(server, tmp_path / "successor")
        with pytest.raises(nyala.FencedError, match="nothing of this call was written"):
            table.insert({"k": [2], "v": ["lost"]})
        with pytest.raises(nyala.LockedError, match="writes to the store"):
            table.insert({"k": [2], "v": ["too early"]})
        with pytest.raises(nyala.LockedError):
            table.count()
        successor.close()
        table.insert({"k": [2], "v": ["b"]})
        assert table.count() == 2 and snapshot["t"].count() == 1
        with pytest.raises(nyala.StorageError, match="start the scan or feed again"):
            scan.to_arrow()
    with pytest.raises(nyala.StorageError, match="is closed"):
        table.count()
    with pytest.raises(nyala.InvalidArgumentError, match="on_fenced takes 'raise' or 'reopen'"):
        connect(server, on_fenced="again")
    with pytest.raises(nyala.InvalidArgumentError, match="on_fenced are for a store in a bucket"):
        nyala.connect(tmp_path / "folder", on_fenced="reopen")


def test_writers_that_stall_are_replaced_once_per_stall(server: S3Server, tmp_path: Path) -> None:
    """A writer without a sign of life counts as dead. A living writer is never replaced."""
    created(server)
    writers = [opened_again(server, tmp_path / "0")]

    def epochs() -> int:
        return sum("/log/" in key and key.endswith("0" * 12) for key in server.bodies())

    before, refused = epochs(), 0
    for turn in range(1, 5):
        for _ in range(3):  # nobody takes over from a living writer
            with pytest.raises(nyala.LockedError):
                connect(server)
            refused += 1
        writers[-1]._medium.lock.release()  # it gives no more signs of life
        server.advance(bucket.SILENT_MAX_US / 1e6 + 1)
        writers.append(opened_again(server, tmp_path / str(turn)))
    assert refused == 12 and epochs() - before <= 4 + 1
    for one in writers:
        one.close()
    with connect(server) as db:
        assert db["t"].count() == 0


def test_a_new_writer_is_not_fenced(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes find a closed store. The second sees the first one's seal, although not yet its hint."""
    created(server)
    first = opened_again(server, tmp_path / "first")
    first.close()
    seal = take_over_module._seal
    others: list[Store] = []

    def late(*arguments: Any) -> Any:
        if not others:  # after the hint was read, and before the seal
            monkeypatch.setattr(take_over_module, "_seal", seal)
            others.append(opened_again(server, tmp_path / "other"))
        return seal(*arguments)

    monkeypatch.setattr(take_over_module, "_seal", late)
    with pytest.raises(nyala.LockedError, match="writes to the store"):
        connect(server)
    other = nyala.Database(others[0])
    other["t"].insert({"k": [1], "v": ["not fenced"]})
    other.close()


def test_a_writer_that_died_before_its_hint_is_replaced(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created(server)
    monkeypatch.setattr(ObjectLog, "announce", lambda log: None)
    successor = opened_again(server, tmp_path / "successor")
    monkeypatch.undo()
    successor._medium.lock.release()
    monkeypatch.setattr(bucket, "_HINT_WAIT_S", 0.2)
    with connect(server) as db:
        db["t"].insert({"k": [1], "v": ["a"]})


EXIT = """
import json, sys, nyala
url, options = json.loads(sys.argv[1])
db = nyala.connect(url, storage_options=options, on_fenced="reopen")
db["t"].insert({"k": [1], "v": ["a"]})
"""


def test_a_program_that_ends_without_close_releases_the_store(server: S3Server) -> None:
    created(server)
    subprocess.run([sys.executable, "-c", EXIT, json.dumps([URL, server.options])], check=True, timeout=60)
    with connect(server) as db:
        assert db["t"].count() == 1


def test_a_wait_for_the_lock_can_be_interrupted(server: S3Server, tmp_path: Path) -> None:
    created(server)
    successor = opened_again(server, tmp_path / "successor")
    timer = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
    begun_s = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        connect(server, lock_timeout=300)
    assert time.monotonic() - begun_s < 100, "before the lock_timeout"
    successor.close()


def test_a_store_below_inbox_or_leases_of_another_store(
    server: S3Server, env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The objects of the inner store are neither requests nor leases of the outer store."""
    monkeypatch.setattr(object_leases, "GRACE_S", 0.0)
    monkeypatch.setattr(object_leases, "_LISTED_S", 0.0)
    created(server)
    for name in ("inbox", "leases"):
        with nyala.connect(f"{URL}/{name}", storage_options=server.options) as inner:
            inner.create_table("i", {"k": "int64"}, "k").insert([(1,)])
    server.advance(48 * 3600)
    with connect(server, maintenance=False) as db:
        objects = cast("Objects", bucket_of(env))
        assert inbox.InboxServer(env, objects, lambda request, _: ({}, [])).serve() == 0
        db["t"].insert({"k": [1], "v": ["a"]})
        db.flush()
        db._writer().collect_garbage()
        assert object_leases.ObjectLeases(env, objects, 5).oldest_needed() == 5
    for name in ("inbox", "leases"):
        with nyala.connect(f"{URL}/{name}", storage_options=server.options) as inner:
            assert inner["i"].count() == 1 and inner.check().ok


def test_lock_timeout_waits_until_a_dead_writer_is_replaced(server: S3Server, tmp_path: Path) -> None:
    created(server)
    successor = opened_again(server, tmp_path / "successor")
    successor._medium.lock.release()  # as if it was killed
    with pytest.raises(nyala.LockedError, match=r"the store is free in 1\d seconds: lock_timeout=20 waits"):
        connect(server)
    timer = threading.Timer(1.0, server.advance, [bucket.SILENT_MAX_US / 1e6])
    timer.start()
    with connect(server, lock_timeout=30) as db:
        assert db["t"].count() == 0
    timer.join()


def test_A1_an_address_has_no_secret(server: S3Server, env: Env) -> None:
    address = pickle.loads(pickle.dumps(address_of(env, URL)))
    assert "test-secret" not in repr(address) and "test-key" not in repr(address)
    assert dict(address.options) == {"allow_http": True, "endpoint": server.endpoint, "region": "us-east-1"}
    for name in ("secret_access_key", "access_key_id", "session_token", "account_key", "credential_provider"):
        with pytest.raises(nyala.InvalidArgumentError, match="Credentials are not allowed in options"):
            Address.parse(URL, {name: "test-secret"}, "storage.")
    with pytest.raises(nyala.InvalidArgumentError, match=r"did you mean storage\.region"):
        Address.parse(URL, {"regio": "x"}, "storage.")
    with pytest.raises(nyala.InvalidArgumentError, match="must be true or false"):
        Address.parse(URL, {"allow_http": "perhaps"}, "storage.")
    with pytest.raises(nyala.InvalidArgumentError, match="is for a store in a bucket"):
        Address.parse("/a/folder", {"region": "x"}, "storage.")


def test_credentials_in_a_file(server: S3Server, tmp_path: Path) -> None:
    """`credentials_file` gives the credentials, and errors show no text of the file."""
    public = {"endpoint": server.endpoint, "allow_http": True}
    secret = {"access_key_id": "file-key", "secret_access_key": "file-secret", "region": "us-east-1"}
    file = tmp_path / "s3.json"
    options = {**public, "credentials_file": str(file)}
    with pytest.raises(nyala.InvalidArgumentError, match="cannot read the credentials file .* on host"):
        nyala.connect(URL, storage_options=options)
    for text in ("not json: file-secret", "[]", '{"credentials_file": "x"}', '{"secret": "file-secret"}'):
        file.write_text(text)
        with pytest.raises(nyala.InvalidArgumentError, match="credentials file") as raised:
            nyala.connect(URL, storage_options=options)
        assert "file-secret" not in str(raised.value)
    file.write_text(json.dumps(secret))
    with nyala.connect(URL, storage_options=options) as db:
        assert db.list_tables() == []
