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
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.schema.plain_arrays import array_of_numbers
from nyala.tablet.state.root import AnyRowSet

KeyedRows: TypeAlias = tuple[EncodedKeys, pa.RecordBatch]
"""Keys in ascending order, and the rows that belong to them."""


class _Reader:
    """Reads the rows of one rowset in key order, batch by batch."""

    def __init__(self, batches: Iterator[KeyedRows]) -> None:
        self._batches = batches
        self.keys: EncodedKeys | None = None
        self.batch: pa.RecordBatch | None = None

    def fill(self) -> bool:
        """Read the next batch if all rows were taken. Return False at the end of the rowset."""
        while self.keys is None or not len(self.keys):
            found = next(self._batches, None)
            if found is None:
                return False
            self.keys, self.batch = found
        return True

    def take(self, bound: bytes) -> KeyedRows:
        """Remove and return the rows of the current batch with keys <= `bound`."""
        assert self.keys is not None and self.batch is not None
        at = self.keys.lower_bound(bound + b"\0")  # no key is between `bound` and this one
        head = self.keys.slice(0, at), self.batch.slice(0, at)
        self.keys, self.batch = self.keys.slice(at, len(self.keys) - at), self.batch.slice(at)
        return head


def least_key(rowset: AnyRowSet) -> bytes:
    """Return a lower bound of the rowset's keys, without reading them."""
    return rowset.meta.key_min if isinstance(rowset, DiskRowSet) else b""


def aligned_heads(
    sources: Sequence[tuple[bytes, Callable[[], Iterator[KeyedRows]]]],
) -> Iterator[list[KeyedRows]]:
    """Cut the rows of several rowsets at the same keys, so that the caller can merge them.

    Each list that this function yields has all rows of one range of keys, as one batch per rowset
    with rows in the range. The ranges ascend. A range ends at the smallest of the last keys of the
    batches in memory, because no rowset can have more rows up to this key.

    sources: for each rowset, a lower bound of its keys, and a function that starts to read it. The
             function returns batches in key order, with all rows of the same key in one batch.
    Raises:  CorruptionError if the keys of a rowset are not in order, so that a range would have no
             rows. Other wrong orders are not detected.
    Memory:  one batch per rowset that overlaps the current key.
    """
    waiting = [(key_min, index, begin) for index, (key_min, begin) in enumerate(sources)]
    heapq.heapify(waiting)
    readers: list[_Reader] = []
    while waiting or readers:
        readers = [reader for reader in readers if reader.fill()]
        if not readers:
            if not waiting:
                return
            readers.append(_Reader(heapq.heappop(waiting)[2]()))
            continue
        bound = min(reader.keys.at(len(reader.keys) - 1) for reader in readers if reader.keys is not None)
        if waiting and waiting[0][0] <= bound:
            readers.append(_Reader(heapq.heappop(waiting)[2]()))
            continue
        heads = [head for reader in readers if len((head := reader.take(bound))[0])]
        if not heads:  # `bound` is the last key of a batch, but searching the batch finds no key up to it
            raise CorruptionError(
                f"the rows of a rowset are not in key order: key {bound.hex()} comes after greater keys. "
                "Run `nyala fs check` to find the file"
            )
        yield heads


def merged_batches(
    heads: Sequence[pa.RecordBatch], order: npt.NDArray[np.int64], most_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Merge several batches, and yield their rows in batches of about `most_bytes` bytes.

    Each batch copies its rows, so the size of a batch bounds the memory of the copy.

    heads: the batches, as `aligned_heads` yields them.
    order: for each row of the result, its index in the concatenation of all heads. Rows of one head
           must keep their order.
    """
    sizes = np.array([head.num_rows for head in heads])
    starts = np.cumsum(sizes) - sizes
    done = np.zeros(len(heads), np.int64)  # the rows of each head that were returned
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
