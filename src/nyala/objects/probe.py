"""Tests whether a bucket keeps the promises that a store needs.

Services with the protocol of S3 differ. Some ignore the header If-None-Match. Some compare and store
in two steps, so that two creators of one key both succeed. `probe` uses two clients of a bucket, and
removes its objects at the end.

Source: docs/design/object-storage.md, "Libraries and servers".
"""

from __future__ import annotations

import itertools
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from nyala.env import Env
from nyala.errors import StorageError
from nyala.objects.base import Objects
from nyala.objects.settle import settle

_CREATORS: Final = 8
_ROUNDS: Final = 20
_UPLOAD_PARTS: Final = 20
_PART_BYTES: Final = 1 << 20
# Most buckets have times in whole seconds.
_CLOCK_WAIT_S: Final = 1.1

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Finding:
    """The result of one test of `probe`: whether the bucket keeps one promise.

    promise: what the bucket must do, such as "a read sees every write".
    detail: what is wrong; "" if the promise is kept.
    request: the kind of the requests that were timed.
    p50_ms: the median time of the requests, in milliseconds.
    """

    promise: str
    kept: bool
    detail: str
    request: str
    p50_ms: float


@dataclass
class _Probe:
    """What the tests of one call of `probe` share, for example two clients of one bucket.

    under: the prefix of the objects that the tests write.
    races: how many times several threads try to create one object at the same time.
    """

    env: Env
    first: Objects
    second: Objects
    under: str
    races: int

    def key(self, name: str, number: int = 0) -> str:
        return f"{self.under}{name}/{number:06}"

    def timed(self, times: list[float], request: Callable[[], _Result]) -> _Result:
        begin_s = self.env.clock.monotonic_s()
        result = request()
        times.append((self.env.clock.monotonic_s() - begin_s) * 1000)
        return result


_Check = Callable[[_Probe, list[float]], str]
"""Tests one promise, and adds the times of its requests to the list. Returns what is wrong, or ""."""


def _refuses(probe: _Probe, times: list[float]) -> str:
    for number in range(_ROUNDS):
        key, mine, other = probe.key("create", number), b"first %d" % number, b"second"
        probe.timed(times, lambda key=key, mine=mine: probe.first.create(key, mine))  # type: ignore[misc]
        if probe.second.create(key, other) or probe.first.get(key) != mine:
            return "the second creator of a key overwrote the first: the bucket ignores If-None-Match"
    return ""


def _races(probe: _Probe, times: list[float]) -> str:
    """Test that exactly one of several threads succeeds if all create the same key at once.

    times: receives the duration of each request.
    """
    together = threading.Barrier(_CREATORS)
    won: list[set[int]] = [set() for _ in range(_CREATORS)]
    failures: list[BaseException] = []

    def create(creator: int) -> None:
        objects = (probe.first, probe.second)[creator % 2]
        try:
            for number in range(probe.races):
                together.wait()
                key, body = probe.key("race", number), b"creator %d" % creator
                if probe.timed(times, lambda k=key, b=body: settle(probe.env, objects, k, b)) is None:  # type: ignore[misc]
                    won[creator].add(number)
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:
            failures.append(error)
            together.abort()

    threads = [threading.Thread(target=create, args=(creator,)) for creator in range(_CREATORS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    wrong = 0
    for number in range(probe.races):
        winners = [creator for creator in range(_CREATORS) if number in won[creator]]
        found = probe.first.get(probe.key("race", number))
        wrong += len(winners) != 1 or found != b"creator %d" % winners[0]
    if wrong:
        return (
            f"{wrong} of {probe.races} races of {_CREATORS} creators did not have exactly one winner: the bucket "
            "compares and stores in two steps"
        )
    return ""


def _reads_writes(probe: _Probe, times: list[float]) -> str:
    key = probe.key("read")
    for number in range(_ROUNDS):
        probe.first.put(key, b"%d" % number)
        if probe.timed(times, lambda: probe.second.get(key)) != b"%d" % number:
            return "a read returned old bytes after a write"
    return ""


def _lists_writes(probe: _Probe, times: list[float]) -> str:
    under = f"{probe.under}list/"
    expected: list[str] = []
    for number in range(_ROUNDS):
        expected.append(probe.key("list", number))
        probe.first.put(expected[-1], b"")
        listed = probe.timed(times, lambda: probe.second.list(under))
        if [info.key for info in listed] != expected:
            return "a LIST did not have every object that was written before it"
    return ""


def _lists_after(probe: _Probe, times: list[float]) -> str:
    under, after = f"{probe.under}list/", probe.key("list", _ROUNDS // 2)
    listed = probe.timed(times, lambda: probe.first.list(under, after))
    if [info.key for info in listed] != [probe.key("list", n) for n in range(_ROUNDS // 2 + 1, _ROUNDS)]:
        return "a LIST after a key (start-after) does not return exactly the keys behind it"
    return ""


def _reads_ranges(probe: _Probe, times: list[float]) -> str:
    key, body = probe.key("ranges"), bytes(range(256)) * 16_000
    probe.first.put(key, body)
    ranges = [(0, 1), (100, 300), (3_000_000, 3_000_100), (len(body) - 5, len(body))]
    for _ in range(_ROUNDS // 4):
        parts = probe.timed(times, lambda: probe.second.get_ranges(key, ranges))
        if [bytes(memoryview(part)) for part in parts] != [body[lower:upper] for lower, upper in ranges]:
            return "a read of ranges returned other bytes"
    return ""


def _clock(probe: _Probe, times: list[float]) -> str:
    keys = [probe.key("clock", number) for number in range(3)]
    for key in keys:
        probe.first.put(key, b"")
        probe.env.clock.sleep_s(_CLOCK_WAIT_S)
    found = [probe.timed(times, lambda key=key: probe.second.head(key)) for key in keys]  # type: ignore[misc]
    modified = [info.modified_us for info in found if info is not None]
    if len(modified) < len(keys) or any(b <= a for a, b in itertools.pairwise(modified)):
        return "a later object is not newer: Last-Modified does not move forward"
    return ""


class _Stop(Exception):
    """Raised by an iterator of parts, to test that an upload that fails leaves no object."""


def _uploads(probe: _Probe, times: list[float]) -> str:
    part, key = bytes(range(256)) * (_PART_BYTES // 256), probe.key("upload")
    probe.timed(times, lambda: probe.first.upload(key, (part for _ in range(_UPLOAD_PARTS))))
    info = probe.second.head(key)
    if info is None or info.size_bytes != _UPLOAD_PARTS * _PART_BYTES:
        return "a multipart upload did not store all bytes"
    end = _UPLOAD_PARTS * _PART_BYTES
    if bytes(memoryview(probe.second.get_ranges(key, [(end - 256, end)])[0])) != part[-256:]:
        return "a multipart upload stored other bytes"

    def failing() -> Iterator[bytes]:
        yield from (part for _ in range(_UPLOAD_PARTS))
        raise _Stop

    try:
        probe.first.upload(probe.key("upload", 1), failing())
    except _Stop:
        pass
    if probe.second.head(probe.key("upload", 1)) is not None:
        return "a multipart upload that was aborted left an object"
    return ""


def _deletes(probe: _Probe, times: list[float]) -> str:
    keys = [probe.key("list", number) for number in range(_ROUNDS)]
    probe.timed(times, lambda: probe.first.delete(keys[1:]))
    if [info.key for info in probe.second.list(f"{probe.under}list/")] != keys[:1]:
        return "a LIST after a delete shows deleted objects, or lacks objects that exist"
    if probe.second.get(keys[1]) is not None:
        return "a read found a deleted object"
    return ""


_CHECKS: Final[tuple[tuple[str, str, _Check], ...]] = (
    ("put-if-absent refuses a key that exists", "create", _refuses),
    ("put-if-absent has one winner in a race", "create", _races),
    ("a read sees every write", "get", _reads_writes),
    ("a LIST sees every write", "list", _lists_writes),
    ("a LIST begins after a key", "list", _lists_after),
    ("ranges are read", "get ranges", _reads_ranges),
    ("Last-Modified moves forward", "head", _clock),
    ("multipart uploads are whole or absent", "upload", _uploads),
    ("deletes are seen", "delete", _deletes),
)
PROMISES: Final = tuple(promise for promise, _, _ in _CHECKS)
"""Every promise, in the order in which `probe` tests them."""


def probe(env: Env, clients: Sequence[Objects], *, races: int = 300) -> Iterator[Finding]:
    """Test whether a bucket is suitable for a store; yield a `Finding` per promise in PROMISES.

    A promise is one thing that the bucket must do, such as "a read sees every write". The test
    writes objects whose keys begin with "probe-", and removes them at the end, also after an error.

    clients: two clients of the same bucket.
    races: how many times several threads try to create one object at the same time.
    Raises: StorageError if the bucket cannot be used.

    Examples
    --------
    >>> from nyala.env import SYSTEM
    >>> from nyala.objects.folder import FolderObjects
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> findings = probe(SYSTEM, [FolderObjects(folder), FolderObjects(folder)], races=5)
    >>> all(finding.kept for finding in findings)
    True
    """
    first, second = clients
    running = _Probe(env, first, second, f"probe-{env.randomness.token_hex(8)}/", races)
    try:
        for promise, request, check in _CHECKS:
            times: list[float] = []
            detail = check(running, times)
            yield Finding(promise, not detail, detail, request, statistics.median(times))
    finally:
        _remove(first, running.under)


def _remove(objects: Objects, under: str) -> None:
    try:
        objects.delete([info.key for info in objects.list(under)])
    except StorageError:
        pass  # a bucket that cannot list has raised an error before
