"""The lock that knows its owner; assertions of rules use it."""

from __future__ import annotations

import threading

import pytest

from nyala.tablet.state.locks import OwnedLock


def in_thread(work: object) -> None:
    thread = threading.Thread(target=work)  # type: ignore[arg-type]
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def test_a_lock_knows_the_thread_that_holds_it() -> None:
    """A thread must not take another thread's lock for its own."""
    lock = OwnedLock()
    assert not lock.held()
    seen: list[bool] = []
    with lock:
        assert lock.held()
        in_thread(lambda: seen.append(lock.held()))
    assert seen == [False] and not lock.held()


def test_the_owner_may_take_the_lock_again() -> None:
    """A direct commit flushes while it has the locks."""
    lock = OwnedLock()
    with lock:
        with lock:
            assert lock.held()
        assert lock.held()
        taken: list[bool] = []
        in_thread(lambda: taken.append(lock.acquire(timeout=0)))
        assert taken == [False]
    assert not lock.held()
    in_thread(lambda: taken.append(lock.acquire(timeout=0)))
    assert taken == [False, True]


def test_an_exception_releases_the_lock() -> None:
    lock = OwnedLock()
    with pytest.raises(ZeroDivisionError), lock:
        raise ZeroDivisionError
    assert not lock.held()
    assert lock.acquire(timeout=0)
    lock.release()


def test_only_one_thread_has_the_lock() -> None:
    lock, inside, most, total = OwnedLock(), [0], [0], [0]

    def work() -> None:
        for _ in range(200):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                total[0] += 1
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most[0], total[0]) == (1, 800)
