"""Runs the same work on many files in a few threads.

Several syncs at the same time take hardly longer than one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from nyala.env.files import Files
from nyala.env.posix_files import PosixFiles

_THREADS: Final = 4

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def each(
    files: Files, work: Callable[[_Item], _Result], items: Iterable[_Item], threads: int = _THREADS
) -> list[_Result]:
    """Call `work` with each item, in several threads; return the results in the order of the items.

    The calling thread works too, so the work is done even if no other thread can be started. If
    `files` are a test's replacement of the system's files, the calling thread does all work.
    Raises: the first error, after every running call of `work` has ended.
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
        # The system, or an interpreter that is ending, may refuse to start a thread.
        with contextlib.suppress(RuntimeError):
            for _ in range(threads - 1):
                pool.submit(run)
        run()
    if errors:
        raise errors[0]
    return [results[index] for index in range(len(left))]
