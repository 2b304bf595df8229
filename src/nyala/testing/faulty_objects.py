"""A bucket whose requests fail, arrive late, or end the process, as a test chooses.

A *fault* is what happens to one request. The functions `at` and `at_random` choose faults; a test
may pass any other function of the request. `nyala.testing.s3_server` breaks real connections
instead.

    fault           request is carried out?  the caller gets
    "503"           no                       an error with outcome="unknown"
    "drop before"   no                       the same error, as if the connection broke
    "drop after"    yes                      the same error, as if the reply was lost
    "late"          later                    the same error, as if the request timed out
    "409"           no                       False from `create`, as if the object existed; no effect elsewhere
    "crash before"  no                       SimulatedCrash, also from every later request
    "crash after"   yes                      SimulatedCrash, also from every later request
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
"""The requests that change the bucket. The others are get, get_ranges, head and list."""

_Result = TypeVar("_Result")
_Fault = TypeVar("_Fault")


@dataclass(frozen=True)
class Request:
    """One request to the bucket.

    verb: the name of the called method. key: the key of the object, or the prefix of a `list`.
    number: the position of the request in the test, counted from 1.
    """

    verb: str
    key: str
    number: int


Faults: TypeAlias = Callable[[Request], "Fault | None"]
"""Chooses the fault of a request; None: the request succeeds. Called by one thread at a time."""


def at(number: int, fault: _Fault) -> Callable[[Request], _Fault | None]:
    """Return a function that lets only the `number`-th request fail, counted from 1."""
    return lambda request: fault if request.number == number else None


def at_random(
    seed: int,
    share: float = 0.15,
    faults: Sequence[Fault] = ("503", "drop before", "drop after", "late", "409"),
) -> Faults:
    """Return a function that lets a random share of the requests fail.

    share: the probability of a fault, 0 to 1. faults: the faults to choose from. With one thread,
    the same requests fail in every run with the same seed.
    """
    chance = random.Random(seed)
    return lambda _: chance.choice(faults) if chance.random() < share else None


class FaultyObjects:
    """Wraps any `Objects`: records the requests, and lets those fail that `faults` chooses.

    faults: returns the fault of a request, or None:
        "503"                          the bucket refuses the request
        "drop before", "drop after"    the connection breaks before or after the execution
        "late"                         the connection breaks; the request is executed later
        "409"                          a `create` reports a conflict; other requests succeed
        "crash before", "crash after"  SimulatedCrash is raised before or after the execution, and
                                       by every later request
    late_s: a late request is carried out after a random time of at most this number of seconds.
        None: it waits until the test calls `deliver`.
    seed: for the random times.

    A `delete` of several keys counts as one request per key, because a bucket may delete only some
    of them. Thread-safe: `requests` has the requests of all threads.

    Examples
    --------
    >>> from nyala.objects.memory import MemoryObjects
    >>> bucket = MemoryObjects()
    >>> faulty = FaultyObjects(bucket, at(1, "drop after"))
    >>> faulty.create("log/0", b"mine")
    Traceback (most recent call last):
        ...
    nyala.errors.StorageError: cannot create memory://bucket/log/0: drop after (a fault of the test)
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
        """The number of late requests that wait for `deliver`."""
        return len(self._late)

    def deliver(self) -> None:
        """Carry out all requests with the fault "late", and wait until they have ended.

        If the constructor got `late_s`, each late request has a thread, which carries it out after a
        random time. Then `deliver` only waits for these threads.
        """
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
            f"cannot {verb} {self.url}/{key}: {fault} (a fault of the test)",
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
        """Return another client of the wrapped bucket. Its requests never fail on purpose."""
        return self._inner.client()

    def close(self) -> None:
        """Carry out the requests that a fault "late" has delayed, and close the wrapped objects."""
        self.deliver()
        self._inner.close()


def _carry_out(do: Callable[[], object]) -> None:
    try:
        do()
    except StorageError:
        pass  # no caller waits for the result of a late request
