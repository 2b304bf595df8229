"""Objects that fail: how the tests let requests to a bucket break, and end a process at each of them.

A *fault* is what happens to one request. The functions `at` and `at_random` choose it; a test may
pass any other function of the request. `nyala.testing.s3_server` does the same on the wire.

    "503"           not done; the caller gets an error with outcome="unknown"
    "drop before"   not done; the same error, as from a connection that broke
    "drop after"    done; the same error, because the reply was lost
    "late"          done later, by `deliver` or in a thread; the same error, as from a time-out
    "409"           `create` only: not done, and refused although there may be no object
    "crash before"  not done; SimulatedCrash, there and at every later request
    "crash after"   done; SimulatedCrash, there and at every later request
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, TypeVar, get_args

from nyala.env import Bytes
from nyala.errors import StorageError
from nyala.objects.base import ObjectInfo, Objects
from nyala.testing.faulty_files import SimulatedCrash

__all__ = ["CHANGES", "Fault", "Faults", "FaultyObjects", "Request", "at", "at_random"]

Fault: TypeAlias = Literal["503", "drop before", "drop after", "late", "409", "crash before", "crash after"]
CHANGES: Final = frozenset({"create", "put", "upload", "delete"})
"""The verbs of requests that change the bucket; the others are get, get_ranges, head and list."""

_Result = TypeVar("_Result")
_Fault = TypeVar("_Fault")


@dataclass(frozen=True)
class Request:
    """One request: its verb (the method's name), its key (of `list`: `under`), its number from 1."""

    verb: str
    key: str
    number: int


Faults: TypeAlias = Callable[[Request], "Fault | None"]
"""Chooses the fault of a request; None: it succeeds. Called by one thread at a time."""


def at(number: int, fault: _Fault) -> Callable[[Request], _Fault | None]:
    """Return faults that meet the `number`-th request only, counted from 1."""
    return lambda request: fault if request.number == number else None


def at_random(
    seed: int,
    share: float = 0.15,
    faults: Sequence[Fault] = ("503", "drop before", "drop after", "late", "409"),
) -> Faults:
    """Return faults that meet this share of the requests, the same ones in every run of one thread."""
    chance = random.Random(seed)
    return lambda _: chance.choice(faults) if chance.random() < share else None


class FaultyObjects:
    """Wraps any `Objects`: counts the requests, and lets those fail that `faults` chooses.

    A `delete` of several keys is one request for each key, so that it may be done by half, as in a
    bucket. `requests` has every request so far. Late requests wait in order until `deliver`; with
    `late_s`, a thread delivers each after a random time of at most that.
    Threads: any; the count is over all of them.

    Examples
    --------
    >>> from nyala.objects.memory import MemoryObjects
    >>> bucket = MemoryObjects()
    >>> faulty = FaultyObjects(bucket, at(1, "drop after"))
    >>> faulty.create("log/0", b"mine")
    Traceback (most recent call last):
        ...
    nyala.errors.StorageError: cannot create memory://bucket/log/0: drop after (a fault that the test asked for)
    >>> bucket.get("log/0")
    b'mine'
    """

    def __init__(
        self, inner: Objects, faults: Faults | None = None, *, late_s: float | None = None, seed: int = 0
    ) -> None:
        self._inner = inner
        self.faults = faults
        self.requests: list[Request] = []
        self._late: list[Callable[[], object]] = []
        self._late_s = late_s
        self._threads: list[threading.Thread] = []
        self._chance = random.Random(seed)
        self._crashed = False
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def public_options(self) -> tuple[tuple[str, Any], ...]:
        return self._inner.public_options

    @property
    def throttled(self) -> int:
        return self._inner.throttled

    @property
    def late_count(self) -> int:
        """The number of late requests that `deliver` would carry out."""
        return len(self._late)

    def deliver(self) -> None:
        """Carry out all late requests, and wait for those that threads carry out."""
        with self._lock:
            late, self._late = self._late, []
            threads, self._threads = self._threads, []
        for do in late:
            _carry_out(do)
        for thread in threads:
            thread.join()

    def _request(
        self, verb: str, key: str, do: Callable[[], _Result], refused: _Result | None = None
    ) -> _Result:
        with self._lock:
            request = Request(verb, key, len(self.requests) + 1)
            if self._crashed:
                raise SimulatedCrash(request)
            self.requests.append(request)
            fault = None if self.faults is None else self.faults(request)
            assert fault is None or fault in get_args(Fault), fault
            self._crashed = fault in ("crash before", "crash after")
            if fault == "late":
                self._keep(do)
        if fault is None or (fault == "409" and refused is None):
            return do()
        if fault == "409":
            assert refused is not None
            return refused
        if fault in ("drop after", "crash after"):
            do()
        if self._crashed:
            raise SimulatedCrash(request)
        raise StorageError(
            f"cannot {verb} {self.url}/{key}: {fault} (a fault that the test asked for)",
            path=f"{self.url}/{key}",
            outcome="unknown",
        )

    def _keep(self, do: Callable[[], object]) -> None:
        if self._late_s is None:
            self._late.append(do)
            return
        pause_s = self._chance.uniform(0, self._late_s)

        def after_a_pause() -> None:
            time.sleep(pause_s)
            _carry_out(do)

        thread = threading.Thread(target=after_a_pause, daemon=True)
        self._threads.append(thread)
        thread.start()

    def create(self, key: str, body: Bytes) -> bool:
        mine = bytes(memoryview(body))
        return self._request("create", key, lambda: self._inner.create(key, mine), refused=False)

    def put(self, key: str, body: Bytes) -> None:
        mine = bytes(memoryview(body))
        self._request("put", key, lambda: self._inner.put(key, mine))

    def upload(self, key: str, parts: Iterable[Bytes]) -> int:
        mine = [bytes(memoryview(part)) for part in parts]
        return self._request("upload", key, lambda: self._inner.upload(key, mine))

    def get(self, key: str) -> bytes | None:
        return self._request("get", key, lambda: self._inner.get(key))

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        return self._request("get_ranges", key, lambda: self._inner.get_ranges(key, ranges))

    def head(self, key: str) -> ObjectInfo | None:
        return self._request("head", key, lambda: self._inner.head(key))

    def list(self, under: str, after: str | None = None) -> list[ObjectInfo]:
        return self._request("list", under, lambda: self._inner.list(under, after))

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._request("delete", key, lambda key=key: self._inner.delete([key]))  # type: ignore[misc]

    def copy(self, key: str, new_key: str) -> None:
        self._request("copy", key, lambda: self._inner.copy(key, new_key))

    def client(self) -> Objects:
        """Return a client of the wrapped objects, without faults."""
        return self._inner.client()

    def close(self) -> None:
        """Carry out the delayed requests, and close the wrapped objects."""
        self.deliver()
        self._inner.close()


def _carry_out(do: Callable[[], object]) -> None:
    try:
        do()
    except StorageError:
        pass  # a late request has no caller that waits for its result
