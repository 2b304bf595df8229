"""Merges rows of several rowsets by key, for scans in key order and for change feeds."""

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
"""Keys in ascending order, and the rows that belong to them."""


class _Run:
    """The rows of one rowset in key order, read batch by batch."""

    def __init__(self, batches: Iterator[KeyedRows]) -> None:
        self._batches = batches
        self.keys: EncodedKeys | None = None
        self.batch: pa.RecordBatch | None = None

    def fill(self) -> bool:
        """Read on until there are rows; returns False at the end."""
        while self.keys is None or not len(self.keys):
            found = next(self._batches, None)
            if found is None:
                return False
            self.keys, self.batch = found
        return True

    def take(self, bound: bytes) -> KeyedRows:
        """Remove and return the rows with keys <= bound."""
        assert self.keys is not None and self.batch is not None
        at = _after(self.keys, bound)
        head = self.keys.slice(0, at), self.batch.slice(0, at)
        self.keys, self.batch = self.keys.slice(at, len(self.keys) - at), self.batch.slice(at)
        return head


def _after(keys: EncodedKeys, bound: bytes) -> int:
    """Count the keys that are <= bound; the keys ascend."""
    at = keys.lower_bound(bound)
    while at < len(keys) and keys.at(at) == bound:
        at += 1
    return at


def aligned_heads(
    sources: Sequence[tuple[bytes, Callable[[], Iterator[KeyedRows]]]],
) -> Iterator[list[KeyedRows]]:
    """Cut the rows of several rowsets at common keys; each list has all rows of one key range.

    Everything up to the smallest of the runs' last keys is complete: it is returned, then the runs
    read on.

    sources: per rowset a lower bound of its keys, and a function that starts reading it. Its
        batches must come in key order. Few rows have the same key, and one batch has all of them.
    Raises:  CorruptionError if keys do not ascend and therefore no row can be returned. Other
             disorder is not detected.
    Memory:  one batch per rowset that overlaps the current key.
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
        heads = [head for run in open_runs if len((head := run.take(bound))[0])]
        if not heads:  # the run whose last key is the bound has no row up to it
            raise CorruptionError(
                f"the rows of a rowset are not in key order: key {bound.hex()} comes after greater keys. "
                "Run `nyala check` to find the file"
            )
        yield heads


def merged_batches(
    heads: Sequence[pa.RecordBatch], order: npt.NDArray[np.int64], most_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all heads in merged order, in batches of about `most_bytes` bytes.

    Merging needs a second copy of the rows. Batches bound that copy where many rowsets overlap.

    order: for each row of the result, its index in the concatenation of all heads. It must keep the
           order of the rows within each head.
    """
    sizes = np.array([head.num_rows for head in heads])
    starts = np.cumsum(sizes) - sizes
    done = np.zeros(len(heads), np.int64)  # per head, the number of rows already returned
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
