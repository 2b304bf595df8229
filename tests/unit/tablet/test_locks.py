"""The lock that knows its owner; assertions of rules use it."""

from __future__ import annotations

import threading

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
