"""Runs the same work on many files in a few threads, so that their syncs overlap.

Several syncs at a time take hardly longer than one. Which files are synced, and before what, does not change.
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


def each(files: Files, work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Return what `work` returns for each item, in their order; up to four items are worked on at once.

    With other files than the system's (in tests) one item comes after the other.
    Raises: the first error. No item is worked on any more then.
    """
    left = list(items)
    if len(left) < 2 or not isinstance(files, PosixFiles):
        return [work(item) for item in left]
    with ThreadPoolExecutor(min(_THREADS, len(left)), "nyala-files") as pool:
        futures: list[Future[_Result]] = []
        try:
            for item in left:
                futures.append(pool.submit(work, item))
        except RuntimeError:  # the interpreter ends, and starts no thread any more
            return [future.result() for future in futures] + [work(item) for item in left[len(futures) :]]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
