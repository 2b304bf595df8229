"""`probe` and `nyala fs probe` find each promise that a bucket breaks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from tests.support import cli_runner
from tests.unit.objects.buckets import Bucket, quick_env

from nyala.cli.app import app
from nyala.env import Bytes, Env
from nyala.errors import StorageError
from nyala.objects.base import ObjectInfo
from nyala.objects.memory import MemoryObjects
from nyala.objects.probe import PROMISES, probe
from nyala.testing import FaultyObjects, ManualClock, S3Server


class BucketClock(ManualClock):
    """A clock whose sleeps move the bucket's clock, and take no time."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__()
        self._bucket = bucket

    def sleep_s(self, seconds: float) -> None:
        super().sleep_s(seconds)
        if seconds >= 1:
            self._bucket.advance(seconds)


def env_of(bucket: Bucket) -> Env:
    return replace(quick_env(), clock=BucketClock(bucket))


def test_every_kind_of_bucket_keeps_all_promises(bucket: Bucket) -> None:
    bucket.client().put("of-the-store", b"")
    findings = list(probe(env_of(bucket), [bucket.client(), bucket.client()], races=bucket.keys_to_race(20)))
    assert [finding.promise for finding in findings if finding.kept] == list(PROMISES), findings
    assert [info.key for info in bucket.client().list("")] == ["of-the-store"]


class Ignores(MemoryObjects):
    """Ignores If-None-Match, as some services do."""

    def create(self, key: str, body: Bytes) -> bool:
        self.put(key, body)
        return True


class Races(MemoryObjects):
    """Compares and stores in two steps."""

    def create(self, key: str, body: Bytes) -> bool:
        if self.get(key) is not None:
            return False
        time.sleep(0.0005)
        self.put(key, body)
        return True


class ReadsOld(MemoryObjects):
    def get(self, key: str) -> bytes | None:
        found = super().get(key)
        return b"0" if "read/" in key else found


class ListsOld(MemoryObjects):
    def list(self, under: str, after: str | None = None) -> list[ObjectInfo]:
        return super().list(under, after)[:5]


class IgnoresAfter(MemoryObjects):
    def list(self, under: str, after: str | None = None) -> list[ObjectInfo]:
        return super().list(under)


class IgnoresRanges(MemoryObjects):
    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        return super().get_ranges(key, [(0, upper - lower) for lower, upper in ranges])


class StandsStill(MemoryObjects):
    def advance(self, seconds: float) -> None:
        pass


class UploadsLess(MemoryObjects):
    def upload(self, key: str, parts: Iterable[Bytes]) -> int:
        return super().upload(key, list(parts)[:-1])


class UploadsInPart(MemoryObjects):
    def upload(self, key: str, parts: Iterable[Bytes]) -> int:
        for part in parts:
            size = super().upload(key, [part] * 20)
        return size


class KeepsDeleted(MemoryObjects):
    def delete(self, keys: Sequence[str]) -> None:
        super().delete(keys[:-1])


BROKEN = {
    "the second creator of a key overwrote the first": Ignores,
    "races of 8 creators did not have exactly one winner": Races,
    "a read returned old bytes": ReadsOld,
    "a LIST did not have every object": ListsOld,
    "a LIST after a key (start-after) does not return": IgnoresAfter,
    "a read of ranges returned other bytes": IgnoresRanges,
    "Last-Modified does not move forward": StandsStill,
    "did not store all bytes": UploadsLess,
    "was aborted left an object": UploadsInPart,
    "a LIST after a delete shows deleted objects": KeepsDeleted,
}


@pytest.mark.parametrize(("says", "kind"), BROKEN.items(), ids=[kind.__name__ for kind in BROKEN.values()])
def test_a_broken_promise_is_found(says: str, kind: type[MemoryObjects]) -> None:
    objects = kind()
    bucket = Bucket("memory", lambda: objects, objects.advance)
    findings = list(probe(env_of(bucket), [objects, objects], races=30))
    assert any(says in finding.detail for finding in findings if not finding.kept), findings


def test_objects_are_removed_if_the_probe_ends_early() -> None:
    memory = MemoryObjects()
    failing = FaultyObjects(memory, lambda request: "503" if request.verb == "get_ranges" else None)
    bucket = Bucket("memory", memory.client, memory.advance)
    with pytest.raises(StorageError):
        list(probe(env_of(bucket), [failing, failing], races=2))
    assert memory.list("") == []


def test_the_command_prints_a_line_for_each_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    with S3Server() as server:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test-key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
        where = ["--races", "5", "--option", f"endpoint={server.endpoint}", "--option", "allow_http=true"]
        done = cli_runner().invoke(app, ["fs", "probe", server.url, *where])
        assert done.exit_code == 0, done.output
        lines = done.stdout.splitlines()
        assert len(lines) == len(PROMISES)
        for line, promise in zip(lines, PROMISES, strict=True):
            assert line.startswith("kept") and promise in line and line.endswith(" ms (p50)")
        assert server.bodies() == {}


def test_the_command_fails_with_an_error_message(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = Ignores("s3://bucket/store")
    monkeypatch.setattr("nyala.objects.open.open_objects", lambda url, options: objects.client())
    monkeypatch.setattr("nyala.objects.memory.MemoryObjects.create", Ignores.create)
    done = cli_runner().invoke(app, ["fs", "probe", "s3://bucket/store", "--races", "5"])
    assert done.exit_code == 1
    assert "s3://bucket/store is not suitable for a store" in done.stderr
    assert "the bucket ignores If-None-Match" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["ftp://x"], "expected one of s3://"),
        (["s3://x", "--option", "region"], "expected name=value"),
        (["s3://x", "--option", "secret_access_key=very"], "is a secret"),
        (["s3://x", "--option", "allow_http=very"], "is not a valid value of allow_http"),
        (["s3://x", "--option", "regoin=very"], "did you mean 'region'"),
    ],
)
def test_the_command_rejects_invalid_arguments(words: list[str], says: str) -> None:
    done = cli_runner().invoke(app, ["fs", "probe", *words])
    assert done.exit_code in (1, 2)
    assert says in done.stderr and "=very" not in done.stderr  # the value is not shown
