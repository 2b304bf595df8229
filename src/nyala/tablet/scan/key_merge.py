"""Rows of several rowsets, each in key order, brought together by key: what scans in key order and change feeds do."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.errors import CorruptionError
from nyala.keys.encoded_keys import EncodedKeys
from nyala.schema.plain_arrays import array_of_numbers

__all__ = ["KeyedRows", "aligned_heads", "merged_batches"]

KeyedRows: TypeAlias = tuple[EncodedKeys, pa.RecordBatch]
"""Rows and their keys, which ascend."""


class _Run:
    """One rowset's rows in key order, a window at a time."""

    def __init__(self, pieces: Iterator[KeyedRows]) -> None:
        self._pieces = pieces
        self.keys: EncodedKeys | None = None
        self.batch: pa.RecordBatch | None = None

    def fill(self) -> bool:
        """Make sure that there are rows; False at the end."""
        while self.keys is None or not len(self.keys):
            piece = next(self._pieces, None)
            if piece is None:
                return False
            self.keys, self.batch = piece
        return True

    def split(self, bound: bytes) -> KeyedRows:
        """Take out the rows with keys <= bound."""
        assert self.keys is not None and self.batch is not None
        at = _after(self.keys, bound)
        head = self.keys.slice(0, at), self.batch.slice(0, at)
        self.keys, self.batch = self.keys.slice(at, len(self.keys) - at), self.batch.slice(at)
        return head


def _after(keys: EncodedKeys, bound: bytes) -> int:
    """How many of the ascending keys are <= bound."""
    at = keys.lower_bound(bound)
    return at + 1 if at < len(keys) and keys.at(at) == bound else at


def aligned_heads(
    sources: Sequence[tuple[bytes, Callable[[], Iterator[KeyedRows]]]],
) -> Iterator[list[KeyedRows]]:
    """Rows of several rowsets, cut so that each list has all rows of its range of keys, and the ranges ascend.

    sources: (no key is less than this, how to begin); pieces of one come in key order, each key once.
    Repeatedly, everything up to the smallest of the runs' last keys is complete and can go.
    Raises: CorruptionError where keys do not ascend and so nothing could go; what they hide otherwise is not noticed.
    Cost: memory is one piece per rowset that overlaps the place.
    """
    waiting = [(key_min, index, begin) for index, (key_min, begin) in enumerate(sources)]
    heapq.heapify(waiting)
    open_runs: list[_Run] = []
    while waiting or open_runs:
        open_runs = [run for run in open_runs if run.fill()]
        if not open_runs:
            if not waiting:
                return
            open_runs.append(_Run(heapq.heappop(waiting)[2]()))
            continue
        bound = min(run.keys.at(len(run.keys) - 1) for run in open_runs if run.keys is not None)
        if waiting and waiting[0][0] <= bound:
            open_runs.append(_Run(heapq.heappop(waiting)[2]()))
            continue
        heads = [head for run in open_runs if len((head := run.split(bound))[0])]
        if not heads:  # the run whose last key the bound is has no row up to it
            raise CorruptionError(
                f"expected the rows of a rowset in the order of their keys, found {bound.hex()} behind greater keys: "
                "`nyala check` says in which file"
            )
        yield heads


def merged_batches(
    heads: Sequence[pa.RecordBatch], order: npt.NDArray[np.int64], most_bytes: int
) -> Iterator[pa.RecordBatch]:
    """The rows of all heads in the order that merges them, in which each head's own stay as they are; in batches of
    about so many bytes at the most: windows of many rowsets are much together, and would be as much again.

    order: of each row that comes, its index in all heads, one behind the other.
    """
    sizes = np.array([head.num_rows for head in heads])
    starts = np.cumsum(sizes) - sizes
    done = np.zeros(len(heads), np.int64)  # of each head, the rows that were given out
    step = max(1, int(len(order) * most_bytes // max(1, sum(head.nbytes for head in heads))))
    for begin in range(0, len(order), step):
        chosen = order[begin : begin + step]
        of_head = np.searchsorted(starts, chosen, side="right") - 1
        counts = np.bincount(of_head, minlength=len(heads))
        parts = [head.slice(at, count) for head, at, count in zip(heads, done, counts, strict=True)]
        moved = starts + done - (np.cumsum(counts) - counts)
        rows = pa.Table.from_batches(parts).combine_chunks().take(array_of_numbers(chosen - moved[of_head]))
        yield from rows.to_batches()
        done += counts
