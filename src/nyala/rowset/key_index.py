"""From keys to rowids and back in one base file: bloom filter, value index, key blocks.

    keys ── bloom: surely absent? ── value index: which block ── block decoded: which row
            16 bits a key             first key of every block     64 KiB, from the block cache

A composite key has a column of encoded keys of its own (role KEY); a single key column is its own index, and its keys
are encoded when a block was read. Both carry the first key of every block in their footer.

A file whose blocks are asked for again and again (keys that come at random) has all its keys in one piece in the block
cache, if they take a small part of it: then keys cost one search, without filter, value index and blocks.

Immutable; may be used from any thread. Source: Kudu facts 3.3, 3.5, 5.1.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile.cache import BlockCache, new_owner
from nyala.cfile.column import BASE, KEY, ColumnKey
from nyala.cfile.reader import (
    CFileReader,
    ColumnReader,
    ReadStats,
    SummaryError,
    unreadable_bloom,
    unreadable_keys,
)
from nyala.delta.run import Rowids
from nyala.errors import CorruptionError
from nyala.keys.arrow_memory import large_binary_array
from nyala.keys.codec import KeyCodec
from nyala.keys.encoded_keys import EncodedKeys
from nyala.keys.key_range import KeyRange
from nyala.keys.short_keys import ShortKeys
from nyala.rowset.meta import NO_ROWID

__all__ = ["KeyIndex"]

# Of the block cache, for the keys of one rowset: many must fit beside the blocks.
_CACHE_SHARE: Final = 1 / 16


class KeyIndex:
    """The keys of one base file, whose rows stand in key order.

    key_column_id: of the single key column; None for a composite key.
    """

    def __init__(
        self,
        reader: CFileReader,
        codec: KeyCodec,
        key_column_id: int | None,
        row_count: int,
        cache: BlockCache | None = None,
    ) -> None:
        self._reader = reader
        self._codec = codec
        self._row_count = row_count
        self._single = key_column_id is not None
        self._cache = cache
        self._owner = new_owner()
        self._too_large = row_count * 4 > (0 if cache is None else cache.limit_bytes) * _CACHE_SHARE
        self._blocks_asked = 0  # since all keys were read last; about right is enough
        self._key = ColumnKey(KEY) if key_column_id is None else ColumnKey(BASE, 0, key_column_id)

    @cached_property
    def _column(self) -> ColumnReader:
        column = self._reader.column(self._key)
        if column is None:
            raise CorruptionError(
                f"the file has no column {self._key}: its keys are not there", self._reader.path
            )
        if column.row_count != self._row_count:
            raise CorruptionError(
                f"expected {self._row_count} keys, found {column.row_count}",
                self._reader.path,
                column.place.offset,
            )
        return column

    @cached_property
    def _first_keys(self) -> EncodedKeys:
        first = self._column.block_first_keys()
        if first is None:
            raise CorruptionError(
                f"column {self._key} carries no value index", self._reader.path, self._column.place.offset
            )
        return self._codec.from_binary(first)

    def sample(self, count: int) -> tuple[EncodedKeys, Rowids]:
        """Some keys at even distances, and their rowids: about `count` or more; row 0 is one of them.

        Cost: none where the value index alone has as many; else the blocks of as many keys.
        """
        if len(self._first_keys) >= count:
            rowids = np.arange(len(self._first_keys)) * self._column.rows_per_block
            return self._first_keys, rowids
        rowids = np.arange(0, self._row_count, max(1, self._row_count // count))
        return self.gather(rowids), rowids

    def read(self, lower: int, upper: int, stats: ReadStats | None = None) -> EncodedKeys:
        """The keys of the rows [lower, upper), ascending."""
        return self._encoded(self._column.read(lower, upper, stats=stats))

    def gather(self, rowids: Rowids, stats: ReadStats | None = None) -> EncodedKeys:
        """The keys of these rows, in their order."""
        return self._encoded(self._column.gather(rowids, stats=stats))

    def find(self, keys: EncodedKeys, stats: ReadStats | None = None) -> Rowids:
        """The rowid of each key, or -1. Keys ascend; a key may stand twice.

        Cost: of the file, the blocks that hold keys which pass the bloom filter, each decoded once.
        """
        if not len(keys) or not self._row_count:
            return np.full(len(keys), NO_ROWID, np.int64)
        known = self._known()
        if known is not None:  # a search in memory costs less than the filter that would spare it
            return known.find(keys)
        rowids = np.full(len(keys), NO_ROWID, np.int64)
        at: npt.NDArray[np.int64] | None = None  # places of the keys still in question; None: all
        bloom = self._reader.bloom()
        if bloom is not None:
            maybe = bloom.may_contain(keys.hash64())
            if not maybe.all():
                at = np.flatnonzero(maybe)
                if not len(at):
                    return rowids
                keys = keys.take(at)
        blocks = self._first_keys.search(keys, side="right") - 1
        found = np.full(len(keys), NO_ROWID, np.int64)
        borders = [0, *(np.flatnonzero(blocks[1:] != blocks[:-1]) + 1).tolist(), len(keys)]
        whole = self._whole(len(borders) - 1, stats)
        if whole is not None:
            found, borders = whole.find(keys), []
        for begin, end in pairwise(borders):
            block = int(blocks[begin])
            if block < 0:
                continue
            first = block * self._column.rows_per_block
            places = self._block(block, stats).find(keys.slice(begin, end - begin))
            found[begin:end] = np.where(places >= 0, places + first, NO_ROWID)
        if at is None:
            return found
        rowids[at] = found
        return rowids

    def find_one(self, key: EncodedKeys, canonical: bytes) -> int:
        """`find` of one key, which is given in both forms."""
        known = self._known()
        if known is None or not self._row_count:
            return int(self.find(key)[0])
        at = known.lower_bound(canonical)
        return at if at < len(known) and known.at(at) == canonical else NO_ROWID

    def _known(self) -> EncodedKeys | ShortKeys | None:
        """All keys, if they are in the cache."""
        known: EncodedKeys | ShortKeys | None = (
            None if self._cache is None else self._cache.get(self._owner, "keys")
        )
        return known

    def _whole(self, blocks: int, stats: ReadStats | None) -> EncodedKeys | ShortKeys | None:
        """All keys, for a look-up in so many blocks; None when they are not worth reading yet or take too much room.

        They are read once as many blocks were asked for as there are: so this costs no more than those did.
        """
        if self._cache is None or self._too_large:
            return None
        self._blocks_asked += blocks
        if self._blocks_asked < self._column.block_count:
            return None
        self._blocks_asked = 0
        found = self._searched(self._column.read(0, self._row_count, stats=stats, fill_cache=False))
        if found.nbytes > self._cache.limit_bytes * _CACHE_SHARE:
            self._too_large = True
            return None
        self._cache.put(self._owner, "keys", found, found.nbytes, dear=True)
        return found

    def close(self) -> None:
        """Forget what is cached."""
        if self._cache is not None:
            self._cache.drop_owner(self._owner)

    def range(self, key_range: KeyRange, stats: ReadStats | None = None) -> tuple[int, int]:
        """The rows [lower, upper) whose keys are in the range. Cost: at most one block for each bound."""
        if key_range.is_empty:
            return 0, 0
        lower = 0 if key_range.lower is None else self._lower_bound(key_range.lower, stats)
        upper = self._row_count if key_range.upper is None else self._lower_bound(key_range.upper, stats)
        return lower, max(lower, upper)

    def _lower_bound(self, bound: bytes, stats: ReadStats | None) -> int:
        """The first row whose key is >= `bound`."""
        known = self._known()
        if known is not None:
            return known.lower_bound(bound)
        # The block before the first that begins at or above the bound is the only one that can hold both sides of it.
        block = self._first_keys.lower_bound(bound) - 1
        if block < 0:
            return 0
        return block * self._column.rows_per_block + self._block(block, stats).lower_bound(bound)

    def _block(self, block: int, stats: ReadStats | None) -> EncodedKeys | ShortKeys:
        """One block's keys; kept as such, not as the array that they are made of."""
        known: EncodedKeys | ShortKeys | None = (
            None if self._cache is None else self._cache.get(self._owner, block)
        )
        if known is not None:
            if stats is not None:
                stats.cache_hits += 1
            return known
        found = self._searched_block(block, stats)
        if self._cache is not None:
            self._cache.put(self._owner, block, found, found.nbytes)
        return found

    def _searched_block(self, block: int, stats: ReadStats | None) -> EncodedKeys | ShortKeys:
        if self._single:
            first = block * self._column.rows_per_block
            upper = min(first + self._column.rows_per_block, self._row_count)
            return self._searched(
                self._column.read(first, upper, stats=stats, fill_cache=self._cache is None)
            )
        keys = self._column.read_keys(block, stats)
        if isinstance(keys, np.ndarray):
            short = ShortKeys.from_matrix(keys, self._codec.width)
            if short is not None:
                return short
            keys = large_binary_array(
                np.arange(0, keys.size + 1, keys.shape[1], dtype=np.int64), keys.reshape(-1)
            )
        return self._searched(keys)

    def _searched(self, array: pa.Array) -> EncodedKeys | ShortKeys:
        """Keys to be searched and kept: in the form that is quickest and takes the least room."""
        short = None if self._single else ShortKeys.from_binary(array, self._codec.width)
        if short is not None:
            return short
        keys = self._encoded(array)
        return ShortKeys.of(keys) or keys

    def _encoded(self, array: pa.Array) -> EncodedKeys:
        return self._codec.encode([array]) if self._single else self._codec.from_binary(array)

    def check(self) -> None:
        """Read all keys. Raises: CorruptionError when they do not ascend, SummaryError when one is not in the bloom
        filter or the value index has others, KeysError when those of several columns cannot be read."""
        try:
            keys = self.read(0, self._row_count)
        except CorruptionError as error:
            if self._single:
                raise
            raise unreadable_keys(error) from error
        if not keys.is_strictly_ascending():
            raise CorruptionError(
                "expected ascending keys, found others", self._reader.path, self._column.place.offset
            )
        first = keys.take(np.arange(0, self._row_count, self._column.rows_per_block))
        if len(first) != len(self._first_keys) or not first.equal_to(self._first_keys).all():
            raise SummaryError(
                "expected the first key of every block in the value index, found others",
                self._reader.path,
                self._column.place.offset,
            )
        try:
            bloom = self._reader.bloom()
        except CorruptionError as error:
            raise unreadable_bloom(error) from error
        if bloom is not None and not bloom.may_contain(keys.hash64()).all():
            raise SummaryError("expected every key in the bloom filter, one is not", self._reader.path)
