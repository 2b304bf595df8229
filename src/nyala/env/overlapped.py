"""Runs the same work on many files in a few threads, so that their syncs overlap.

Several syncs at a time take hardly longer than one. The order of syncs that depend on each other
does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
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

    With other files than the system's (in tests), items are worked on one after another.
    Raises: the first error. No item is still being worked on then.
    """
    left = list(items)
    if min(threads, len(left)) < 2 or not isinstance(files, PosixFiles):
        return [work(item) for item in left]
    with ThreadPoolExecutor(min(threads, len(left)), "nyala-files") as pool:
        futures: list[Future[_Result]] = []
        try:
            for item in left:
                futures.append(pool.submit(work, item))
        except RuntimeError:  # the interpreter is ending and starts no more threads
            return [future.result() for future in futures] + [work(item) for item in left[len(futures) :]]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
