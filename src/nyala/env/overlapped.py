"""Runs the same work on many files in a few threads, so that their syncs overlap.

Several syncs at a time take hardly longer than one. The order of syncs that depend on each other
does not change.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from nyala.env.files import Files
from nyala.env.posix_files import PosixFiles

__all__ = ["each"]

_THREADS: Final = 4

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def each(
    files: Files, work: Callable[[_Item], _Result], items: Iterable[_Item], threads: int = _THREADS
) -> list[_Result]:
    """Return what `work` returns for each item, in order; `threads` items are worked on at once.

    With fakes of the system's files (in tests), items are worked on one after another. The calling
    thread works too, so every item is worked on once, however many threads can be started.
    Raises: the first error. No item is still being worked on then.
    """
    left = list(items)
    threads = min(threads, len(left))
    if threads < 2 or not (isinstance(files, PosixFiles) or files.is_remote):
        return [work(item) for item in left]
    pending, lock = enumerate(left), threading.Lock()
    results: dict[int, _Result] = {}
    errors: list[BaseException] = []

    def run() -> None:
        try:
            while not errors:
                with lock:
                    found = next(pending, None)
                if found is None:
                    return
                results[found[0]] = work(found[1])
        except BaseException as error:
            errors.append(error)

    with ThreadPoolExecutor(threads - 1, "nyala-files") as pool:
        # The system may refuse a thread, as does an interpreter that is ending.
        with contextlib.suppress(RuntimeError):
            for _ in range(threads - 1):
                pool.submit(run)
        run()
    if errors:
        raise errors[0]
    return [results[index] for index in range(len(left))]
