"""The keys that a base file stores: the key of every row, or the first key of each group of rows.

    DenseKeys    One column has every key: the key column itself, or for a composite key a column of
                 encoded keys. A look-up decodes the block that may contain the key.

    SparseKeys   The column of encoded keys has the key of every 2^n-th row, for example of every
                 64th. These keys are *samples*. A group of rows begins at each sample. A look-up
                 finds the last sample up to the key, gathers the key columns of its group, encodes
                 them, and searches:

        samples       k0            k64           k128          k192
        key columns   ............. ............. ............. ....             all rows of the groups
        many groups   .   .   .   . .   ....                                     every eighth row, then seven more

The last line of the picture shows a look-up in many groups. It first gathers every eighth row of
each group. Two of these rows surround the key. Then only the rows between them are gathered.

Both kinds divide the rows into *segments*: blocks or groups. The first keys of the segments show
which segment may contain a key.

A file has sparse keys if single values of all its key columns can be gathered at little cost.
Sparse keys save space. The encoded keys of all rows would take a sixth of the file of the TPC-H
table lineitem. In a table with a long text as key they would take half of the file.
Source: docs/design/keys-and-look-ups.md, "Sparse keys"; docs/format/rowset.md; docs/design/kudu.md,
"Column files, indexes and bloom filters" (Kudu's composite index is dense).

Immutable except for the cache; any thread may use them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
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

Segments = npt.NDArray[np.int64]
SearchedKeys: TypeAlias = "EncodedKeys | ShortKeys"
"""Ascending keys in the form that is fastest to search and takes the least memory."""
StoredKeys: TypeAlias = "DenseKeys | SparseKeys"

# A look-up that needs most groups reads 2^17 rows at a time, to bound memory.
_READ_ROWS_LOG2: Final = 17
# Larger gathers cost three times as much per row, because the allocator returns their memory.
_GATHERED_ROWS: Final = 1 << 14
# From this number of groups on, a look-up first gathers every eighth row, and then seven more.
_NARROWED_MIN: Final = 256
# Gathering a group alone costs 2^1 times its share of reading all groups. If the gather decodes
# whole blocks, it costs 2^4 times.
_SINGLE_LOG2: Final = 1
_SINGLE_BY_BLOCKS_LOG2: Final = 4
# All keys are read after 1 / 2^4 of the groups were searched.
_SEARCHED_LOG2: Final = 4


class DenseKeys(LazyValues):
    """A column of keys: the key of every row of the file, or of every 2^n-th row.

    The position of a key in the column is its *ordinal*.
    """

    def __init__(
        self, path: str, column: ColumnReader, codec: KeyCodec, cache: BlockCache | None, owner: int
    ) -> None:
        """owner: a number for the cache, where block n of the keys is entry (owner, n)."""
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
        """The first key of every block."""
        first = self.column.block_first_keys()
        if first is None:
            raise CorruptionError(
                f"{self.column.key.in_words} has no key index", self._path, self.column.place.offset
            )
        return self._codec.from_binary(first)

    @property
    def nbytes_of_all(self) -> float:
        """About how many bytes all keys would take in memory. The real size may be larger."""
        return len(self) * _bytes_a_key(self.first_keys)

    @property
    def break_even_segments(self) -> int:
        """How many segments can be searched at the cost of reading all keys once.

        A segment is a range of rows. After this number of searches, the caller reads all keys.
        """
        return self.column.block_count

    def sample(self, count: int) -> tuple[EncodedKeys, Rowids]:
        """Return at least `count` evenly spaced keys, and their positions in the column.

        Fewer only if the column has fewer keys.
        """
        if len(self.first_keys) >= count:
            return self.first_keys, np.arange(len(self.first_keys)) * self.column.rows_per_block
        rowids = np.arange(0, len(self), max(1, len(self) // count))
        return self.gather(rowids), rowids

    @property
    def row_bytes(self) -> float:
        """About how many bytes a row's key and key columns take in memory."""
        first = self.column.block_first_keys()
        return max(self.column.row_bytes, 0.0 if first is None else first.nbytes / max(1, len(first)))

    def read(
        self, lower: int, upper: int, stats: ReadStats | None = None, *, access: Access = Access.LOOKUP
    ) -> EncodedKeys:
        return self._encoded(self.column.decode(lower, upper, stats=stats, access=access))

    def gather(self, ordinals: Rowids, stats: ReadStats | None = None) -> EncodedKeys:
        return self._encoded(self.column.gather(ordinals, stats=stats))

    def read_all(self, stats: ReadStats | None) -> SearchedKeys:
        """Return all keys, without filling the cache."""
        return self._searched(self.column.decode(0, len(self), stats=stats, access=Access.ONCE))

    @property
    def columns(self) -> Sequence[ColumnReader]:
        """The one column in which `find` searches keys."""
        return (self.column,)

    @property
    def segment_rows(self) -> int:
        return self.column.rows_per_block

    def ordinals_before_segments(self, keys: EncodedKeys) -> list[tuple[ColumnReader, int, int]]:
        """Return an empty list: the method `segments` reads nothing that could be prefetched."""
        return []

    def ordinals_of_bound(self, bound: bytes) -> list[tuple[ColumnReader, int, int]]:
        """Return a list of the parts to prefetch before `lower_bound` searches this bound.

        Each item is (column, lower, upper): the positions [lower, upper) in the column of keys.
        """
        return self._parts_of_blocks([self.first_keys.lower_bound(bound) - 1])

    def ordinals_of_segment(self, bound: bytes) -> list[tuple[ColumnReader, int, int]]:
        """Return an empty list, because this class needs only one prefetch before `lower_bound`.

        A caller prefetches for `lower_bound` in two steps: first the list that `ordinals_of_bound`
        returns, then the list that this method returns. Here the first list has everything. The
        second list is needed for `SparseKeys`, the other class with these methods.
        """
        return []

    def _parts_of_blocks(self, blocks: Iterable[int]) -> list[tuple[ColumnReader, int, int]]:
        step = self.column.rows_per_block
        return [(self.column, block * step, (block + 1) * step) for block in blocks if block >= 0]

    def segments(self, keys: EncodedKeys, stats: ReadStats | None = None) -> Segments:
        """Return, for each of these ascending keys, the number of the block that may contain it.

        -1: the key is below all keys of the column.
        """
        return self.first_keys.search(keys, side="right") - 1

    def find(self, keys: EncodedKeys, segments: Segments, stats: ReadStats | None) -> Rowids:
        """Return the ordinal of each of these ascending keys; -1 if the column does not have it.

        segments: for each key, the number of the block to search; -1: none.
        """
        found = np.full(len(keys), NO_ROWID, np.int64)
        for block, begin, end in _ranges_of(segments):
            first = block * self.column.rows_per_block
            positions = self._block(block, stats).find(keys.slice(begin, end - begin))
            found[begin:end] = np.where(positions >= 0, positions + first, NO_ROWID)
        return found

    def find_one(self, key: EncodedKeys, canonical: bytes, stats: ReadStats | None) -> int:
        """Return the ordinal of one key; -1 if the column does not have it.

        canonical: not used here; `SparseKeys` needs it.
        """
        return int(self.find(key, self.segments(key), stats)[0])

    def floor(self, keys: EncodedKeys, stats: ReadStats | None) -> Rowids:
        """Return, for each of these ascending keys, the last ordinal with a key <= it, or -1."""
        found = np.full(len(keys), NO_ROWID, np.int64)
        for block, begin, end in _ranges_of(self.segments(keys)):
            part, held = keys.slice(begin, end - begin), self._block(block, stats)
            found[begin:end] = _floor_of(held, part) + block * self.column.rows_per_block
        return found

    def lower_bound(self, bound: bytes, stats: ReadStats | None) -> int:
        """Return the first ordinal with a key >= `bound`. Cost: at most one block."""
        # The bound is in the block before the first block that begins at or above it.
        block = self.first_keys.lower_bound(bound) - 1
        if block < 0:
            return 0
        return block * self.column.rows_per_block + self._block(block, stats).lower_bound(bound)

    @property
    def offset(self) -> int:
        """The byte offset of the keys in the file, for error messages."""
        return self.column.place.offset

    def check(self, keys: EncodedKeys, lower: int) -> None:
        """Check that the key index has the first key of each block.

        keys: some keys of the column, from ordinal `lower` on. Their blocks are checked.
        Raises: SummaryError if the key index has other keys.
        """
        step = self.column.rows_per_block
        block = -(-lower // step)  # the first that begins here
        first = keys.take(np.arange(block * step - lower, len(keys), step))
        known = self.first_keys.slice(block, len(first))
        if not first.equal_to(known).all():
            raise SummaryError(
                "expected the first key of every block in the key index, found other keys",
                self._path,
                self.offset,
            )

    def _block(self, block: int, stats: ReadStats | None) -> SearchedKeys:
        """Return one block's keys, through the cache."""

        def load() -> SearchedKeys:
            first = block * self.column.rows_per_block
            upper = min(first + self.column.rows_per_block, len(self))
            return self._searched(self.column.decode(first, upper, stats=stats, access=Access.ONCE))

        return _through_cache(self._cache, self._owner, block, load, stats)

    def _searched(self, array: pa.Array) -> SearchedKeys:
        short = ShortKeys.from_binary(array, self._codec.width) if self.is_encoded else None
        return _searched(self._encoded(array)) if short is None else short

    def _encoded(self, array: pa.Array) -> EncodedKeys:
        return self._codec.from_binary(array) if self.is_encoded else self._codec.encode([array])


class SparseKeys:
    """Keys that are stored for every 2^n-th row, and encoded from key columns for other rows."""

    def __init__(
        self,
        path: str,
        samples: DenseKeys,
        columns: Sequence[ColumnReader],
        codec: KeyCodec,
        cache: BlockCache | None,
        owner: int,
    ) -> None:
        """path: the base file, for messages.
        samples: the stored keys: the key of every 2^n-th row.
        columns: the columns of the key, in key order, each with a value for every row.
        owner: the number by which the cache knows the entries of this object.
        """
        self._path = path
        self._cache = cache
        self._owner = owner
        self._samples = samples
        self._columns = columns
        self._codec = codec
        self._row_count = columns[0].row_count
        self._log2 = samples.column.key.group
        # In other columns, a gather decodes the whole block of each value.
        self._gathers_single_values = all(column.footer.gathers_single_values for column in columns)
        self._single_log2 = _SINGLE_LOG2 if self._gathers_single_values else _SINGLE_BY_BLOCKS_LOG2

    @property
    def nbytes_of_all(self) -> float:
        """About how many bytes all keys would take in memory. The real size may be larger."""
        return self._row_count * _bytes_a_key(self._samples.first_keys)

    @property
    def break_even_segments(self) -> int:
        """How many segments can be searched at the cost of reading all keys once.

        A segment is a range of rows. After this number of searches, the caller reads all keys.
        """
        return len(self._samples) >> _SEARCHED_LOG2

    def sample(self, count: int) -> tuple[EncodedKeys, Rowids]:
        if len(self._samples) >= count:
            keys, ordinals = self._samples.sample(count)
            return keys, ordinals << self._log2
        rowids = np.arange(0, self._row_count, max(1, self._row_count // count))
        return self.gather(rowids), rowids

    @property
    def row_bytes(self) -> float:
        """About how many bytes a row's key and key columns take in memory."""
        return max(sum(column.row_bytes for column in self._columns), self._samples.row_bytes)

    def read(
        self, lower: int, upper: int, stats: ReadStats | None = None, *, access: Access = Access.LOOKUP
    ) -> EncodedKeys:
        arrays = [column.decode(lower, upper, stats=stats, access=access) for column in self._columns]
        return self._codec.encode(arrays)

    def gather(self, rowids: Rowids, stats: ReadStats | None = None) -> EncodedKeys:
        return self._gather(Ordinals(rowids), stats) if len(rowids) else self._codec.empty()

    def read_all(self, stats: ReadStats | None) -> SearchedKeys:
        """Return all keys, without filling the cache."""
        return _searched(self.read(0, self._row_count, stats, access=Access.ONCE))

    @property
    def columns(self) -> Sequence[ColumnReader]:
        """The key columns. `find` compares a key with their values in one group of rows."""
        return self._columns

    @property
    def segment_rows(self) -> int:
        return 1 << self._log2

    def ordinals_before_segments(self, keys: EncodedKeys) -> list[tuple[ColumnReader, int, int]]:
        """Return what the method `segments` reads for these keys, for prefetching.

        Each item is (column, lower, upper): the positions [lower, upper) in the column of keys.
        """
        return self._samples._parts_of_blocks(np.unique(self._samples.segments(keys)).tolist())

    def ordinals_of_bound(self, bound: bytes) -> list[tuple[ColumnReader, int, int]]:
        """Return a list of the parts to prefetch before `lower_bound` searches this bound.

        Each item is (column, lower, upper): the positions [lower, upper) in the column of keys.
        """
        return self._samples.ordinals_of_bound(bound)

    def ordinals_of_segment(self, bound: bytes) -> list[tuple[ColumnReader, int, int]]:
        """Return a list of the parts of the key columns in which `lower_bound` searches this bound.

        The caller can prefetch these parts. Each item is (column, lower, upper): the rows [lower,
        upper) of a key column. These rows are a group, which begins with the last stored key before
        the bound. The list is empty if no stored key is before the bound.
        Cost: reads the block of stored keys that `ordinals_of_bound` returns.
        """
        group = self._samples.lower_bound(bound, None) - 1
        lower, upper = group << self._log2, (group + 1) << self._log2
        return [] if group < 0 else [(column, lower, upper) for column in self._columns]

    def segments(self, keys: EncodedKeys, stats: ReadStats | None = None) -> Segments:
        """Return, for each of these ascending keys, the number of the group that may contain it.

        A group is a range of rows that begins with a stored key. -1: the key is below all groups.
        Cost: reads blocks of stored keys.
        """
        return self._samples.floor(keys, stats)

    def find(self, keys: EncodedKeys, segments: Segments, stats: ReadStats | None) -> Rowids:
        """Return the rowid of each of these ascending keys; -1 if the file does not have it.

        segments: for each key, the number of the group of rows to search; -1: none.
        Cost: gathers the rows of each group. If many groups are in the same 131,072 rows, these
        rows are read as a whole. At most 131,072 keys are in memory at once.
        """
        begins = np.where(segments >= 0, segments << self._log2, NO_ROWID)
        dense = self._dense_ranges(segments)
        if not dense:
            return self._find_single(keys, begins, stats)
        found = np.full(len(keys), NO_ROWID, np.int64)
        is_single = segments >= 0
        for begin, end in dense:
            lower = int(segments[begin]) << self._log2
            upper = min((int(segments[end - 1]) + 1) << self._log2, self._row_count)
            held = _searched(self.read(lower, upper, stats, access=Access.SCAN))
            positions = held.find(keys.slice(begin, end - begin))
            found[begin:end] = np.where(positions >= 0, positions + lower, NO_ROWID)
            is_single[begin:end] = False
        at = np.flatnonzero(is_single)
        if len(at):
            found[at] = self._find_single(keys.take(at), begins[at], stats)
        return found

    def _dense_ranges(self, segments: Segments) -> list[tuple[int, int]]:
        """Return the ranges [begin, end) of keys for which `find` should read many rows as a whole.

        `find` searches each key in one group of rows, which begins with a stored key. The rows of
        the file are divided into windows of 131,072 rows, each with many groups. If the keys need
        many groups of one window, reading the whole window costs less than gathering the groups.

        segments: for each key, the number of its group of rows, ascending.
        """
        log2 = max(0, _READ_ROWS_LOG2 - self._log2)
        few = 1 << log2 >> self._single_log2
        if len(segments) <= few:
            return []
        groups, counts = np.unique(segments[_firsts(segments)] >> log2, return_counts=True)
        borders = segments.searchsorted(np.append(groups, groups[-1:] + 1) << log2).tolist()
        return [borders[index : index + 2] for index in np.flatnonzero(counts > few).tolist()]

    def _find_single(self, keys: EncodedKeys, begins: Rowids, stats: ReadStats | None) -> Rowids:
        """Return the rowid of each of these ascending keys; -1 if the file does not have it.

        begins: for each key, the first row of the group to search; -1: none.
        """
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
        search: Callable[[SearchedKeys, EncodedKeys], Segments],
        stats: ReadStats | None,
    ) -> Rowids:
        """Read the keys of some rows, search the given keys among them, and return a row per key.

        The result is the row that the function `search` chooses for the key. It is -1 if `search`
        chooses no row, or the key is not searched.

        keys:      the keys to search, ascending.
        begins:    for each key, the first row to read; -1: the key is not searched.
        size_log2: for each key, the rows to read are among the 2^size_log2 rows from `begins` on.
        step_log2: only the first and then every 2^step_log2-th of these rows is read.
        search:    called with (keys of the rows that were read, keys to search). For each key to
                   search, it returns a position among the rows that were read, or -1. `_find`
                   chooses the row with this key. `_floor` chooses the last row with a key <= it.
        """
        found = np.full(len(keys), NO_ROWID, np.int64)
        firsts, within = _firsts(begins), np.arange(0, 1 << size_log2, 1 << step_log2)
        few = max(1, _GATHERED_ROWS // len(within))
        for at in range(0, len(firsts), few):
            rows = (begins[firsts[at : at + few]][:, None] + within).reshape(-1)
            # The last group may be shorter.
            rows = rows[: len(rows) - int((rows[-len(within) :] >= self._row_count).sum())]
            first, last = int(firsts[at]), int(firsts[at + few]) if at + few < len(firsts) else len(keys)
            positions = search(
                _searched(self._gather(Ordinals(rows), stats)), keys.slice(first, last - first)
            )
            found[first:last] = np.where(positions >= 0, rows[positions], NO_ROWID)
        return found

    def find_one(self, key: EncodedKeys, canonical: bytes, stats: ReadStats | None) -> int:
        """Return the rowid of one key; -1 if the file does not have it.

        canonical: the same key as `bytes`.
        """
        # The first sample >= key + b"\0" is the first one above the key: no key is between the two.
        group = self._samples.lower_bound(canonical + b"\0", stats) - 1
        if group < 0:
            return NO_ROWID
        keys = self._group(group, stats)
        at = keys.lower_bound(canonical)
        return (group << self._log2) + at if at < len(keys) and keys.at(at) == canonical else NO_ROWID

    def lower_bound(self, bound: bytes, stats: ReadStats | None) -> int:
        """Return the first row with a key >= `bound`.

        Cost: reads a block of stored keys, and one group of rows of each key column.
        """
        group = self._samples.lower_bound(bound, stats) - 1
        return 0 if group < 0 else (group << self._log2) + self._group(group, stats).lower_bound(bound)

    @property
    def offset(self) -> int:
        """The byte offset of the keys in the file, for error messages."""
        return self._columns[0].place.offset

    def check(self, keys: EncodedKeys, lower: int) -> None:
        """Check the stored keys and the key index against the key columns.

        keys: the keys of the rows from `lower` on, as encoded from the key columns.

        Raises: CorruptionError if a stored key differs from the key columns (either may be wrong);
        KeysError if stored keys cannot be read; SummaryError if the key index differs from the
        stored keys.
        """
        sample = -(-lower >> self._log2)  # the first of these rows
        taken = keys.take(np.arange((sample << self._log2) - lower, len(keys), 1 << self._log2))
        try:
            samples = self._samples.read(sample, sample + len(taken), access=Access.ONCE)
        except CorruptionError as error:
            raise unreadable_keys(error) from error
        same = samples.equal_to(taken)
        if not same.all():
            row = (sample + int(np.argmin(same))) << self._log2
            raise CorruptionError(
                f"the stored key of row {row} differs from its key columns", self._path, self.offset
            )
        self._samples.check(samples, sample)

    def _group(self, group: int, stats: ReadStats | None) -> SearchedKeys:
        """Return the keys of one group of rows, through the cache."""

        def load() -> SearchedKeys:
            lower = group << self._log2
            upper = min(lower + (1 << self._log2), self._row_count)
            return _searched(self._gather(Ordinals(np.arange(lower, upper)), stats))

        return _through_cache(self._cache, self._owner, ("group", group), load, stats)

    def _gather(self, rows: Ordinals, stats: ReadStats | None) -> EncodedKeys:
        return self._codec.encode([column.gather(rows, stats=stats) for column in self._columns])


def _ranges_of(segments: Segments) -> list[tuple[int, int, int]]:
    """Return (segment, begin, end) for each distinct segment: it is at the positions [begin, end).

    segments: ascending numbers of segments. The number -1 means no segment, and is skipped.
    """
    borders = [0, *(np.flatnonzero(segments[1:] != segments[:-1]) + 1).tolist(), len(segments)]
    return [(int(segments[begin]), begin, end) for begin, end in pairwise(borders) if segments[begin] >= 0]


def _firsts(segments: Segments) -> Segments:
    """Return the first position of each distinct segment.

    segments: ascending numbers of segments. The number -1 means no segment, and is skipped.
    """
    return np.flatnonzero(np.diff(segments, prepend=NO_ROWID))


def _through_cache(
    cache: BlockCache | None,
    owner: int,
    name: Hashable,
    load: Callable[[], SearchedKeys],
    stats: ReadStats | None,
) -> SearchedKeys:
    """Return the cache's entry (owner, name). If it is missing, load it into the cache."""
    found: SearchedKeys | None = None if cache is None else cache.get(owner, name)
    if found is None:
        found = load()
        if cache is not None:
            cache.put(owner, name, found, found.nbytes)
    elif stats is not None:
        stats.cache_hits += 1
    return found


def _searched(keys: EncodedKeys) -> SearchedKeys:
    return ShortKeys.of(keys) or keys


def _find(among: SearchedKeys, keys: EncodedKeys) -> Segments:
    return among.find(keys)


def _floor(among: SearchedKeys, keys: EncodedKeys) -> Segments:
    """Return, for each of `keys`, the last position in `among` with a key <= it; 0 without one."""
    return np.maximum(_floor_of(among, keys), 0)


def _floor_of(among: SearchedKeys, keys: EncodedKeys) -> Segments:
    """Return, for each of `keys`, the last position in `among` with a key <= it, or -1."""
    return among.floor(keys) if isinstance(among, ShortKeys) else among.search(keys, side="right") - 1


def _bytes_a_key(some: EncodedKeys) -> float:
    """Return about how many bytes a key takes in memory. The real size may be larger.

    some: some of the keys. The result is computed from these.
    """
    return 8 if some.width is not None else 8 + float(some.sizes().mean())
