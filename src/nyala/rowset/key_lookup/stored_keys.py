"""The keys of a base file as they are stored: every one in a column, or the first of each stretch of rows.

    DenseKeys    a column has all keys: of a key of one column that column itself, of a composite key the column of
                 role KEY and group 0. A look-up decodes the block of the column that may hold the key.

    SparseKeys   the column of role KEY has the key of every 2^group-th row (docs/format/rowset.md). What stands
                 between two of them is gathered from the key columns, encoded, and searched:

        samples       k0            k64           k128          k192             12 bytes for 64 rows
        key columns   ............. ............. ............. ....             one call for all stretches of a look-up
        many keys     .   .   .   . .   ....                                     every eighth row, then the eighth

Both cut the rows into pieces (blocks of the column, stretches), whose first keys tell which piece may hold a key.

Sparse keys are for keys whose columns all are numbers in frames or runs, of which a single value costs the same
wherever it is, or text: the encoded keys of all rows would be a sixth of lineitem, and half of a table whose key is a
long text. Text in no dictionary is decompressed by the block, as encoded keys would be.
Source: docs/design/keys-and-look-ups.md, "Sparse keys"; docs/design/kudu.md, "Column files, indexes and bloom
filters" (its composite index is dense). Departure: the sparse form.

Immutable but for what the cache holds; any thread may use them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile.blocks.cache import BlockCache
from nyala.cfile.blocks.ordinals import Ordinals
from nyala.cfile.blocks.read_stats import Access, ReadStats
from nyala.cfile.column import KEY
from nyala.cfile.column_reader import ColumnReader
from nyala.cfile.errors import SummaryError, unreadable_keys
from nyala.delta.run import Rowids
from nyala.errors import CorruptionError
from nyala.keys.codec import KeyCodec
from nyala.keys.encoded_keys import EncodedKeys
from nyala.keys.short_keys import ShortKeys
from nyala.lazy_values import LazyValues, lazy_value
from nyala.rowset.meta import NO_ROWID

__all__ = ["DenseKeys", "SearchedKeys", "SparseKeys", "StoredKeys"]

Pieces = npt.NDArray[np.int64]
SearchedKeys: TypeAlias = "EncodedKeys | ShortKeys"
"""Ascending keys in the form in which they are quickest searched and take the least room."""
StoredKeys: TypeAlias = "DenseKeys | SparseKeys"

# A look-up may ask for a key of every stretch, and all keys of a rowset are no small thing: so many rows at a time.
_READ_ROWS_LOG2: Final = 17
# More of them, gathered, leave the memory that the allocator has at hand, and cost three times as much each.
_GATHERED_ROWS: Final = 1 << 14
# Fewer stretches are gathered whole: one call costs less than two.
_NARROWED_MIN: Final = 256
# A stretch alone costs 2^this times its part of what all cost together: where its rows are taken from blocks as these
# lie, and where blocks are decoded.
_ALONE_LOG2: Final = 1
_ALONE_BY_BLOCKS_LOG2: Final = 4
# All keys are read when so large a part of the stretches was asked for.
_ASKED_LOG2: Final = 4


class DenseKeys(LazyValues):
    """Keys that lie in one column, a value for each: of the file's rows, or of every 2^n-th of them.

    owner: whom the cache's entries belong to, by the numbers of their blocks.
    """

    def __init__(
        self, path: str, column: ColumnReader, codec: KeyCodec, cache: BlockCache | None, owner: int
    ) -> None:
        self._path = path
        self.column = column
        self._codec = codec
        self._cache = cache
        self._owner = owner
        self.is_encoded = column.key.role == KEY

    def __len__(self) -> int:
        return self.column.row_count

    @lazy_value
    def first_keys(self) -> EncodedKeys:
        """Of every block."""
        first = self.column.block_first_keys()
        if first is None:
            raise CorruptionError(
                f"column {self.column.key} carries no value index", self._path, self.column.place.offset
            )
        return self._codec.from_binary(first)

    @property
    def nbytes_of_all(self) -> float:
        """About what `read_all` would give, at the least."""
        return len(self) * _bytes_a_key(self.first_keys)

    @property
    def worth_reading_all(self) -> int:
        """After look-ups in so many pieces, to read all keys costs no more than those did."""
        return self.column.block_count

    def sample(self, count: int) -> tuple[EncodedKeys, Rowids]:
        """As `KeyIndex.sample`."""
        if len(self.first_keys) >= count:
            return self.first_keys, np.arange(len(self.first_keys)) * self.column.rows_per_block
        rowids = np.arange(0, len(self), max(1, len(self) // count))
        return self.gather(rowids), rowids

    @property
    def row_bytes(self) -> float:
        """About what a key takes in memory, encoded or not: on disk most of it may be gone."""
        first = self.column.block_first_keys()
        return max(self.column.row_bytes, 0.0 if first is None else first.nbytes / max(1, len(first)))

    def read(
        self, lower: int, upper: int, stats: ReadStats | None = None, *, access: Access = Access.LOOKUP
    ) -> EncodedKeys:
        return self._encoded(self.column.decode(lower, upper, stats=stats, access=access))

    def gather(self, ordinals: Rowids, stats: ReadStats | None = None) -> EncodedKeys:
        return self._encoded(self.column.gather(ordinals, stats=stats))

    def read_all(self, stats: ReadStats | None) -> SearchedKeys:
        """All keys, past the cache."""
        return self._searched(self.column.decode(0, len(self), stats=stats, access=Access.ONCE))

    def pieces(self, keys: EncodedKeys, stats: ReadStats | None = None) -> Pieces:
        """Of each key, which ascend, the block that may hold it; -1 for one below all. Reads nothing."""
        return self.first_keys.search(keys, side="right") - 1

    def find(self, keys: EncodedKeys, pieces: Pieces, stats: ReadStats | None) -> Rowids:
        """The ordinal of each key in its piece, or -1. Cost: the blocks that are named, each decoded once."""
        found = np.full(len(keys), NO_ROWID, np.int64)
        for block, begin, end in _pieces_of(pieces):
            first = block * self.column.rows_per_block
            places = self._block(block, stats).find(keys.slice(begin, end - begin))
            found[begin:end] = np.where(places >= 0, places + first, NO_ROWID)
        return found

    def find_one(self, key: EncodedKeys, canonical: bytes, stats: ReadStats | None) -> int:
        """`find` of one key, which is given in both forms."""
        return int(self.find(key, self.pieces(key), stats)[0])

    def floor(self, keys: EncodedKeys, stats: ReadStats | None) -> Rowids:
        """The last ordinal whose key is at or below each of these, which ascend; -1 below all. Cost: as `find`."""
        found = np.full(len(keys), NO_ROWID, np.int64)
        for block, begin, end in _pieces_of(self.pieces(keys)):
            part, held = keys.slice(begin, end - begin), self._block(block, stats)
            found[begin:end] = _floor_of(held, part) + block * self.column.rows_per_block
        return found

    def lower_bound(self, bound: bytes, stats: ReadStats | None) -> int:
        """The first ordinal whose key is >= `bound`. Cost: at most one block."""
        # The block before the first that begins at or above the bound is the only one that can hold both sides of it.
        block = self.first_keys.lower_bound(bound) - 1
        if block < 0:
            return 0
        return block * self.column.rows_per_block + self._block(block, stats).lower_bound(bound)

    @property
    def offset(self) -> int:
        """Where the file says what its keys are, for errors."""
        return self.column.place.offset

    def check(self, keys: EncodedKeys, lower: int) -> None:
        """keys: of the column, from the ordinal `lower` on. Raises: SummaryError when the value index has others."""
        step = self.column.rows_per_block
        block = -(-lower // step)  # the first that begins here
        first = keys.take(np.arange(block * step - lower, len(keys), step))
        known = self.first_keys.slice(block, len(first))
        if not first.equal_to(known).all():
            raise SummaryError(
                "expected the first key of every block in the value index, found others",
                self._path,
                self.offset,
            )

    def _block(self, block: int, stats: ReadStats | None) -> SearchedKeys:
        """One block's keys; kept as such, not as the array that they are made of."""
        known: SearchedKeys | None = None if self._cache is None else self._cache.get(self._owner, block)
        if known is not None:
            if stats is not None:
                stats.cache_hits += 1
            return known
        found = self._searched_block(block, stats)
        if self._cache is not None:
            self._cache.put(self._owner, block, found, found.nbytes)
        return found

    def _searched_block(self, block: int, stats: ReadStats | None) -> SearchedKeys:
        first = block * self.column.rows_per_block
        upper = min(first + self.column.rows_per_block, len(self))
        return self._searched(self.column.decode(first, upper, stats=stats, access=Access.ONCE))

    def _searched(self, array: pa.Array) -> SearchedKeys:
        short = ShortKeys.from_binary(array, self._codec.width) if self.is_encoded else None
        return _searched(self._encoded(array)) if short is None else short

    def _encoded(self, array: pa.Array) -> EncodedKeys:
        return self._codec.from_binary(array) if self.is_encoded else self._codec.encode([array])


class SparseKeys:
    """The keys of every 2^n-th row, and the key columns for those between."""

    def __init__(
        self,
        path: str,
        samples: DenseKeys,
        columns: Sequence[ColumnReader],
        codec: KeyCodec,
        cache: BlockCache | None,
        owner: int,
    ) -> None:
        """columns: of the key, in its order, each with a value for every row."""
        self._path = path
        self._cache = cache
        self._owner = owner
        self._samples = samples
        self._columns = columns
        self._codec = codec
        self._row_count = columns[0].row_count
        self._log2 = samples.column.key.group
        # Of other columns a value costs its block, however few are taken from it.
        self._gathers_single_values = all(column.gathers_single_values for column in columns)
        self._alone_log2 = _ALONE_LOG2 if self._gathers_single_values else _ALONE_BY_BLOCKS_LOG2

    @property
    def nbytes_of_all(self) -> float:
        """As of `DenseKeys`."""
        return self._row_count * _bytes_a_key(self._samples.first_keys)

    @property
    def worth_reading_all(self) -> int:
        """As of `DenseKeys`, or a little before: then look-ups cost next to nothing."""
        return len(self._samples) >> _ASKED_LOG2

    def sample(self, count: int) -> tuple[EncodedKeys, Rowids]:
        if len(self._samples) >= count:
            keys, ordinals = self._samples.sample(count)
            return keys, ordinals << self._log2
        rowids = np.arange(0, self._row_count, max(1, self._row_count // count))
        return self.gather(rowids), rowids

    @property
    def row_bytes(self) -> float:
        """As of `DenseKeys`."""
        return max(sum(column.row_bytes for column in self._columns), self._samples.row_bytes)

    def read(
        self, lower: int, upper: int, stats: ReadStats | None = None, *, access: Access = Access.LOOKUP
    ) -> EncodedKeys:
        arrays = [column.decode(lower, upper, stats=stats, access=access) for column in self._columns]
        return self._codec.encode(arrays)

    def _read(self, lower: int, upper: int, stats: ReadStats | None) -> EncodedKeys:
        """`read` of many, as scans do: blocks stay in the cache when they are asked for often."""
        arrays = [column.decode(lower, upper, stats=stats, access=Access.SCAN) for column in self._columns]
        return self._codec.encode(arrays)

    def gather(self, rowids: Rowids, stats: ReadStats | None = None) -> EncodedKeys:
        return self._gather(Ordinals(rowids), stats) if len(rowids) else self._codec.empty()

    def read_all(self, stats: ReadStats | None) -> SearchedKeys:
        """All keys, past the cache."""
        arrays = [
            column.decode(0, self._row_count, stats=stats, access=Access.ONCE) for column in self._columns
        ]
        return _searched(self._codec.encode(arrays))

    def pieces(self, keys: EncodedKeys, stats: ReadStats | None = None) -> Pieces:
        """Of each key, which ascend, the stretch that may hold it; -1 for one below all. Cost: blocks of samples."""
        return self._samples.floor(keys, stats)

    def find(self, keys: EncodedKeys, pieces: Pieces, stats: ReadStats | None) -> Rowids:
        """The rowid of each key in its piece, or -1. Cost: two gatherings, of a few rows of each stretch; where many of
        131,072 rows' stretches are asked for, a reading of these rows. No more keys than that are in memory at a
        time."""
        begins = np.where(pieces >= 0, pieces << self._log2, NO_ROWID)
        close = self._close_by(pieces)
        if not close:
            return self._find_alone(keys, begins, stats)
        found = np.full(len(keys), NO_ROWID, np.int64)
        is_alone = pieces >= 0
        for begin, end in close:
            part, lower, upper = keys.slice(begin, end - begin), int(pieces[begin]), int(pieces[end - 1]) + 1
            found[begin:end] = self._find_between(part, lower, upper, stats)
            is_alone[begin:end] = False
        at = np.flatnonzero(is_alone)
        if len(at):
            found[at] = self._find_alone(keys.take(at), begins[at], stats)
        return found

    def _close_by(self, pieces: Pieces) -> list[tuple[int, int]]:
        """[begin, end) of the keys of which it costs less to read all stretches of 131,072 rows than theirs alone."""
        window = max(0, _READ_ROWS_LOG2 - self._log2)
        few = 1 << window >> self._alone_log2
        if len(pieces) <= few:
            return []
        windows, counts = np.unique(pieces[_firsts(pieces)] >> window, return_counts=True)
        borders = pieces.searchsorted(np.append(windows, windows[-1:] + 1) << window).tolist()
        return [borders[place : place + 2] for place in np.flatnonzero(counts > few).tolist()]

    def _find_between(self, keys: EncodedKeys, lower: int, upper: int, stats: ReadStats | None) -> Rowids:
        """The rowid of each key in the stretches [lower, upper), which are read."""
        lower, upper = lower << self._log2, min(upper << self._log2, self._row_count)
        places = _searched(self._read(lower, upper, stats)).find(keys)
        return np.where(places >= 0, places + lower, NO_ROWID)

    def _find_alone(self, keys: EncodedKeys, begins: Rowids, stats: ReadStats | None) -> Rowids:
        """The rowid of each key in the stretch that begins at this row, or -1."""
        size_log2 = self._log2
        if self._gathers_single_values and len(_firsts(begins)) >= _NARROWED_MIN:
            begins = self._search(keys, begins, size_log2, size_log2 >> 1, _floor, stats)
            size_log2 >>= 1
        return self._search(keys, begins, size_log2, 0, _find, stats)

    def _search(
        self,
        keys: EncodedKeys,
        begins: Rowids,
        size_log2: int,
        step_log2: int,
        search: Callable[[SearchedKeys, EncodedKeys], Pieces],
        stats: ReadStats | None,
    ) -> Rowids:
        """Of each key, which ascend, the row that `search` finds among every 2^`step_log2`-th of the 2^`size_log2` rows
        that begin at this one; -1 for -1."""
        found = np.full(len(keys), NO_ROWID, np.int64)
        firsts, within = _firsts(begins), np.arange(0, 1 << size_log2, 1 << step_log2)
        few = max(1, _GATHERED_ROWS // len(within))
        for at in range(0, len(firsts), few):
            rows = (begins[firsts[at : at + few]][:, None] + within).reshape(-1)
            # Of the last piece what there is.
            rows = rows[: len(rows) - int((rows[-len(within) :] >= self._row_count).sum())]
            first, last = int(firsts[at]), int(firsts[at + few]) if at + few < len(firsts) else len(keys)
            places = search(_searched(self._gather(Ordinals(rows), stats)), keys.slice(first, last - first))
            found[first:last] = np.where(places >= 0, rows[places], NO_ROWID)
        return found

    def find_one(self, key: EncodedKeys, canonical: bytes, stats: ReadStats | None) -> int:
        """`find` of one key, which is given in both forms."""
        # What is not below this bound is above the key: no bytes lie between the two.
        stretch = self._samples.lower_bound(canonical + b"\0", stats) - 1
        if stretch < 0:
            return NO_ROWID
        keys = self._stretch(stretch, stats)
        at = keys.lower_bound(canonical)
        return (stretch << self._log2) + at if at < len(keys) and keys.at(at) == canonical else NO_ROWID

    def lower_bound(self, bound: bytes, stats: ReadStats | None) -> int:
        """The first row whose key is >= `bound`. Cost: a block of samples, a stretch of each key column."""
        stretch = self._samples.lower_bound(bound, stats) - 1
        return (
            0 if stretch < 0 else (stretch << self._log2) + self._stretch(stretch, stats).lower_bound(bound)
        )

    @property
    def offset(self) -> int:
        """As of `DenseKeys`."""
        return self._columns[0].place.offset

    def check(self, keys: EncodedKeys, lower: int) -> None:
        """keys: of the key columns, from row `lower` on. Raises: CorruptionError when the samples are others, of which
        neither is known to be right; SummaryError when the value index is not of the samples; KeysError when they
        cannot be read."""
        sample = -(-lower >> self._log2)  # the first of these rows
        taken = keys.take(np.arange((sample << self._log2) - lower, len(keys), 1 << self._log2))
        try:
            samples = self._samples.read(sample, sample + len(taken), access=Access.ONCE)
        except CorruptionError as error:
            raise unreadable_keys(error) from error
        same = samples.equal_to(taken)
        if not same.all():
            row = (sample + int(np.argmin(same))) << self._log2
            raise CorruptionError(f"row {row} has another key than its key columns", self._path, self.offset)
        self._samples.check(samples, sample)

    def _stretch(self, stretch: int, stats: ReadStats | None) -> SearchedKeys:
        """The keys of one stretch; kept, since single keys and bounds that come once come again."""
        name = ("stretch", stretch)
        known: SearchedKeys | None = None if self._cache is None else self._cache.get(self._owner, name)
        if known is not None:
            if stats is not None:
                stats.cache_hits += 1
            return known
        lower = stretch << self._log2
        upper = min(lower + (1 << self._log2), self._row_count)
        found = _searched(self._gather(Ordinals(np.arange(lower, upper)), stats))
        if self._cache is not None:
            self._cache.put(self._owner, name, found, found.nbytes)
        return found

    def _gather(self, rows: Ordinals, stats: ReadStats | None) -> EncodedKeys:
        return self._codec.encode([column.gather(rows, stats=stats) for column in self._columns])


def _pieces_of(pieces: Pieces) -> list[tuple[int, int, int]]:
    """Of pieces that ascend: (piece, begin, end) of each, those of -1 left out."""
    borders = [0, *(np.flatnonzero(pieces[1:] != pieces[:-1]) + 1).tolist(), len(pieces)]
    return [(int(pieces[begin]), begin, end) for begin, end in pairwise(borders) if pieces[begin] >= 0]


def _firsts(pieces: Pieces) -> Pieces:
    """Where each of these, which ascend, stands first; -1 left out."""
    return np.flatnonzero(np.diff(pieces, prepend=NO_ROWID))


def _searched(keys: EncodedKeys) -> SearchedKeys:
    return ShortKeys.of(keys) or keys


def _find(among: SearchedKeys, keys: EncodedKeys) -> Pieces:
    return among.find(keys)


def _floor(among: SearchedKeys, keys: EncodedKeys) -> Pieces:
    """`_floor_of` keys that are not below all, unless the file's samples are wrong."""
    return np.maximum(_floor_of(among, keys), 0)


def _floor_of(among: SearchedKeys, keys: EncodedKeys) -> Pieces:
    """Of each key the last place whose key is at or below it; -1 below all."""
    return among.floor(keys) if isinstance(among, ShortKeys) else among.search(keys, side="right") - 1


def _bytes_a_key(some: EncodedKeys) -> float:
    """In memory, at the least: an integer, or the bytes and where they end."""
    return 8 if some.width is not None else 8 + float(some.sizes().mean())
