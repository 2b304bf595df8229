"""Finds rowids by key, and keys by rowid, in one base file.

A look-up of keys has four steps. Each leaves fewer keys for the next one:

    1. The bounds of single columns exclude keys (`key_bounds`).
    2. The bloom filter excludes keys. Files with very narrow rows have no filter.
    3. The keys of a file are divided into segments. The first keys of the segments show which
       segment may contain a key.
    4. The keys of this segment are searched (`stored_keys`).

After many look-ups of random keys, all keys of the file are kept in the block cache, if they take a
small share of the cache. Then a binary search replaces steps 2 to 4.

Immutable except for the cache; any thread may use it. Source: docs/design/kudu.md, "Column files,
indexes and bloom filters" and "Write path and flush".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from nyala.cfile import format
from nyala.cfile.blocks.cache import BlockCache, new_owner
from nyala.cfile.blocks.read_stats import Access, ReadStats
from nyala.cfile.column import BASE, BLOOM, KEY, ColumnKey
from nyala.cfile.errors import KeysError, SummaryError, unreadable_bloom, unreadable_keys
from nyala.cfile.memory import row_ranges
from nyala.cfile.reader import CFileReader
from nyala.delta.run import Rowids
from nyala.errors import CorruptionError
from nyala.keys.codec import KeyCodec
from nyala.keys.encoded_keys import EncodedKeys
from nyala.keys.hash64 import hash_one
from nyala.keys.key_range import KeyRange
from nyala.lazy_values import LazyValues, lazy_value
from nyala.rowset.key_lookup.key_bounds import KeyBounds
from nyala.rowset.meta import NO_ROWID

if TYPE_CHECKING:
    from nyala.cfile.column_reader import ColumnReader
    from nyala.rowset.key_lookup.stored_keys import DenseKeys, SearchedKeys, StoredKeys


# The share of the block cache that all keys of one rowset may take.
_CACHE_SHARE: Final = 1 / 16
# The most ranges that `rows_near` returns.
_RANGES_MAX: Final = 256
# The problems that `check` may find, the worst first.
_PROBLEMS: Final = ("order", "unreadable", "samples", "index", "bloom")


class KeyIndex(LazyValues):
    """The keys of one base file, whose rows are in key order."""

    def __init__(
        self,
        reader: CFileReader,
        codec: KeyCodec,
        key_column_ids: Sequence[int],
        row_count: int,
        cache: BlockCache | None = None,
    ) -> None:
        """key_column_ids: the columns of the key, in key order."""
        self._reader = reader
        self._codec = codec
        self._key_column_ids = key_column_ids
        self._row_count = row_count
        self._cache = cache
        self._owner = new_owner()
        self._too_large = False  # whether all keys exceed their share of the cache
        self._segments_searched = 0  # since all keys were last read; threads may lose a few

    @lazy_value
    def _stored(self) -> StoredKeys:
        """The object that reads the keys in the file.

        A file with a composite key has a column of encoded keys (each key as one binary value),
        besides the key columns.
        Raises: CorruptionError if a key column is missing or has a wrong number of values;
        KeysError if the column of encoded keys is missing or has a wrong number of values.
        """
        if len(self._key_column_ids) == 1:
            return self._dense(self._key_column(self._key_column_ids[0]))
        try:
            encoded = self._encoded_column()
            if not encoded.key.group:
                return self._dense(encoded)
            samples = self._dense(encoded)
        except CorruptionError as error:
            raise unreadable_keys(error) from error
        from nyala.rowset.key_lookup.stored_keys import SparseKeys

        columns = [self._key_column(column_id) for column_id in self._key_column_ids]
        return SparseKeys(self._reader.path, samples, columns, self._codec, self._cache, self._owner)

    def _key_column(self, column_id: int) -> ColumnReader:
        return self._column(ColumnKey(BASE, 0, column_id), self._row_count)

    def _encoded_column(self) -> ColumnReader:
        key = next((key for key in self._reader.columns() if key.role == KEY), ColumnKey(KEY))
        if key.group > format.ROWS_PER_BLOCK_LOG2_MAX:
            raise CorruptionError(
                f"expected encoded keys at most 2^{format.ROWS_PER_BLOCK_LOG2_MAX} rows apart, found them "
                f"2^{key.group} rows apart",
                self._reader.path,
            )
        return self._column(key, -(-self._row_count >> key.group))

    def _column(self, key: ColumnKey, count: int) -> ColumnReader:
        column = self._reader.column(key)
        if column is None:
            raise CorruptionError(
                f"the file lacks {key.in_words}, so rows cannot be found by key", self._reader.path
            )
        if column.row_count != count:
            raise CorruptionError(
                f"expected {count} keys, found {column.row_count}", self._reader.path, column.place.offset
            )
        return column

    def _dense(self, column: ColumnReader) -> DenseKeys:
        from nyala.rowset.key_lookup.stored_keys import DenseKeys

        return DenseKeys(self._reader.path, column, self._codec, self._cache, self._owner)

    @property
    def has_all_encoded(self) -> bool:
        """Whether the file stores an encoded key for each row, besides the key columns."""
        from nyala.rowset.key_lookup.stored_keys import DenseKeys

        return isinstance(self._stored, DenseKeys) and self._stored.is_encoded

    @property
    def row_bytes(self) -> float:
        """About how many bytes a row's key and key columns take in memory."""
        return self._stored.row_bytes

    def sample(self, count: int) -> tuple[EncodedKeys, Rowids]:
        """Return the keys and rowids of at least `count` evenly spaced rows.

        Fewer only if the file has fewer rows. Cost: reads no keys if the file's key index, which
        has the first key of each block, has `count` keys. Otherwise reads the blocks of the rows.
        """
        return self._stored.sample(count)

    def read(
        self, lower: int, upper: int, stats: ReadStats | None = None, *, access: Access = Access.LOOKUP
    ) -> EncodedKeys:
        """Return the keys of the rows [lower, upper)."""
        return self._stored.read(lower, upper, stats, access=access)

    def gather(self, rowids: Rowids, stats: ReadStats | None = None) -> EncodedKeys:
        """Return the keys of these rows, in the order of `rowids`."""
        return self._stored.gather(rowids, stats)

    def find(self, keys: EncodedKeys, stats: ReadStats | None = None) -> Rowids:
        """Return the rowid of each of these ascending keys; -1 for a key that is not in the file.

        Cost: reads each segment (range of rows) that may contain a key once. Reads nothing for keys
        that the bloom filter excludes. Also reads nothing for keys with a value below the least or
        above the greatest value of a key column.
        """
        if not len(keys):
            return np.empty(0, np.int64)
        outside = self._bounds.excluded(keys)
        if outside is not None:
            return _find_some(~outside, keys, lambda some: self._find(some, stats))
        return self._find(keys, stats)

    def _find(self, keys: EncodedKeys, stats: ReadStats | None) -> Rowids:
        """Return the rowid of each ascending key; -1 for a key that is not in the file.

        The caller has excluded keys by the least and greatest values of the key columns. This
        method excludes more keys by the bloom filter, and searches the other keys.
        """
        cached = self._cached_keys()
        if cached is not None:
            return cached.find(keys)
        bloom = self._reader.bloom()
        if bloom is not None:
            maybe = bloom.may_contain(keys.hash64())
            if not maybe.all():
                return _find_some(maybe, keys, lambda some: self._search(some, stats))
        return self._search(keys, stats)

    def _search(self, keys: EncodedKeys, stats: ReadStats | None) -> Rowids:
        """Search ascending keys in the file. Return the rowid of each; -1 if it is not in the file.

        The caller has excluded keys by the bloom filter, which costs less.
        """
        segments = self._stored.segments(keys, stats)
        all_keys = self._all_keys(1 + int((segments[1:] != segments[:-1]).sum()), stats)
        return self._stored.find(keys, segments, stats) if all_keys is None else all_keys.find(keys)

    def find_one(self, key: EncodedKeys, canonical: bytes) -> int:
        """Return the rowid of one key; -1 if it is not in the file.

        canonical: the same key as `bytes`.
        """
        if self._bounds.excludes_one(canonical):
            return NO_ROWID
        all_keys = self._cached_keys()
        if all_keys is None:
            bloom = self._reader.bloom()
            if bloom is not None and not bloom.may_contain_one(hash_one(canonical)):
                return NO_ROWID
            all_keys = self._all_keys(1, None)
            if all_keys is None:
                return self._stored.find_one(key, canonical, None)
        at = all_keys.lower_bound(canonical)
        return at if at < len(all_keys) and all_keys.at(at) == canonical else NO_ROWID

    # -- reading ahead (`rowset.read_ahead`) ---------------------------------------------------------------

    @property
    def columns(self) -> Sequence[ColumnReader]:
        """The columns in which a look-up searches keys: key columns, or a column of encoded keys."""
        return self._stored.columns

    def ordinals_of_search(self, keys: EncodedKeys) -> list[tuple[ColumnReader, int, int]]:
        """Return a list of the parts of columns to prefetch before `find` searches these keys.

        These are parts of the bloom filter, and of the stored keys. Each item is (column, lower,
        upper): the positions [lower, upper) in a column of the file.
        """
        keys = self._inside(keys)
        if not len(keys) or self._cached_keys() is not None:
            return []
        ordinals = self._stored.ordinals_before_segments(keys)
        bloom, column = self._reader.bloom(), self._reader.column(ColumnKey(BLOOM))
        if bloom is not None and column is not None:
            step = column.rows_per_block
            pages = bloom.missing_pages(keys.hash64())
            ordinals += [(column, page * step, (page + 1) * step) for page in pages]
        return ordinals

    def rows_near(self, keys: EncodedKeys) -> list[tuple[int, int]]:
        """Return the ranges of rows in which `find` searches these keys.

        If there are many ranges, one range covers them all.
        Cost: reads the data that `ordinals_of_search` lists.
        """
        keys = self._inside(keys)
        if not len(keys):
            return []
        cached = self._cached_keys()
        if cached is not None:
            found, step = cached.find(keys), 1
        else:
            bloom = self._reader.bloom()
            if bloom is not None:
                keys = keys.take(np.flatnonzero(bloom.may_contain(keys.hash64())))
            if not len(keys):
                return []
            found, step = self._stored.segments(keys), self._stored.segment_rows
        found = np.unique(found[found >= 0])
        if len(found) > _RANGES_MAX:
            return [(int(found[0]) * step, (int(found[-1]) + 1) * step)]
        return [(segment * step, (segment + 1) * step) for segment in found.tolist()]

    def _inside(self, keys: EncodedKeys) -> EncodedKeys:
        """Return the keys that the least and greatest values of the key columns do not exclude."""
        outside = self._bounds.excluded(keys)
        return keys if outside is None else keys.take(np.flatnonzero(~outside))

    def ordinals_of_bound(self, bound: bytes) -> list[tuple[ColumnReader, int, int]]:
        """Return a list of the parts of columns to prefetch before `range` searches `bound`.

        bound: the lower or upper bound of the key range.

        Each item is (column, lower, upper): the positions [lower, upper) in a column of the file.
        `ordinals_of_segment` returns the parts to prefetch after these.
        """
        return [] if self._cached_keys() is not None else self._stored.ordinals_of_bound(bound)

    def ordinals_of_segment(self, bound: bytes) -> list[tuple[ColumnReader, int, int]]:
        """Return a list of the parts of key columns in which `range` searches `bound`.

        The caller can prefetch these parts. But it should first prefetch the parts from
        `ordinals_of_bound`, because this method reads them.

        bound: the lower or upper bound of the key range.

        Each item is (column, lower, upper): the rows [lower, upper) of a key column. The list is
        empty if `range` needs only the parts from `ordinals_of_bound`.
        """
        return [] if self._cached_keys() is not None else self._stored.ordinals_of_segment(bound)

    @lazy_value
    def _bounds(self) -> KeyBounds:
        # Without the first column, which the rowset's least and greatest key bound already.
        indexes = [index for index, _, _ in self._codec.fixed_tail if index]
        columns = {index: self._key_column(self._key_column_ids[index]) for index in indexes}
        return KeyBounds(self._codec, {index: column.number_bounds() for index, column in columns.items()})

    def _cached_keys(self) -> SearchedKeys | None:
        """Return all keys of the file if they are in the cache; otherwise None."""
        cached: SearchedKeys | None = None if self._cache is None else self._cache.get(self._owner, "keys")
        return cached

    def _all_keys(self, segments: int, stats: ReadStats | None) -> SearchedKeys | None:
        """Read and cache all keys of the file if this pays off; otherwise return None.

        It pays off if look-ups so far have cost more than reading all keys, and if all keys fit a
        small share of the cache.
        segments: how many segments (ranges of rows) the present look-up searches.
        """
        if self._cache is None or self._too_large:
            return None
        self._segments_searched += segments
        if self._segments_searched < self._stored.break_even_segments:
            return None
        self._segments_searched = 0
        if self._stored.nbytes_of_all > self._cache.limit_bytes * _CACHE_SHARE:
            self._too_large = True
            return None
        keys = self._stored.read_all(stats)
        if keys.nbytes > self._cache.limit_bytes * _CACHE_SHARE:
            self._too_large = True
            return None
        self._cache.put(self._owner, "keys", keys, keys.nbytes, costly=True)
        return keys

    def close(self) -> None:
        """Drop the entries of this object from the cache."""
        if self._cache is not None:
            self._cache.drop_owner(self._owner)

    def range(self, key_range: KeyRange, stats: ReadStats | None = None) -> tuple[int, int]:
        """Return the rows [lower, upper) whose keys are in the range.

        Cost: searches at most one segment (range of rows) per bound.
        """
        if key_range.is_empty:
            return 0, 0
        lower = 0 if key_range.lower is None else self._lower_bound(key_range.lower, stats)
        upper = self._row_count if key_range.upper is None else self._lower_bound(key_range.upper, stats)
        return lower, max(lower, upper)

    def _lower_bound(self, bound: bytes, stats: ReadStats | None) -> int:
        """Return the first row with a key >= `bound`."""
        cached = self._cached_keys()
        return self._stored.lower_bound(bound, stats) if cached is None else cached.lower_bound(bound)

    def check(self) -> None:
        """Check all keys of the file, its key index and its bloom filter. Raise the worst problem.

        Reads one range of rows after the other. The problems, the worst first, are:
        1. CorruptionError: keys do not ascend.
        2. KeysError: encoded keys cannot be read.
        3. CorruptionError: encoded keys differ from the key columns.
        4. SummaryError: the key index is wrong.
        5. SummaryError: the bloom filter is wrong or cannot be read.
        """
        stored, path = self._stored, self._reader.path
        problems: dict[str, CorruptionError] = {}
        bloom = None
        try:
            bloom = self._reader.bloom()
            if bloom is not None:
                bloom.load_all()
        except CorruptionError as error:
            problems["bloom"], bloom = unreadable_bloom(error), None
        before: bytes | None = None
        for lower, keys in self._ranges():
            if not keys.is_strictly_ascending() or (before is not None and keys.at(0) <= before):
                problems["order"] = CorruptionError(
                    "expected ascending keys, found keys out of order", path, stored.offset
                )
            before = keys.at(-1)
            try:
                stored.check(keys, lower)
            except KeysError as error:
                problems.setdefault("unreadable", error)
            except SummaryError as error:
                problems.setdefault("index", error)
            except CorruptionError as error:
                problems.setdefault("samples", error)
            if bloom is not None and not bloom.may_contain(keys.hash64()).all():
                problems["bloom"] = SummaryError("the bloom filter does not contain every key", path)
        for kind in _PROBLEMS:
            if kind in problems:
                raise problems[kind]

    def _ranges(self) -> Iterator[tuple[int, EncodedKeys]]:
        """Yield (first row, keys) for ranges of rows, without filling the cache."""
        for lower, upper in row_ranges(self._row_count, self.row_bytes):
            try:
                keys = self._stored.read(lower, upper, access=Access.ONCE)
            except CorruptionError as error:
                if not self.has_all_encoded:
                    raise
                raise unreadable_keys(error) from error
            yield lower, keys


def _find_some(
    maybe: npt.NDArray[np.bool_], keys: EncodedKeys, find: Callable[[EncodedKeys], Rowids]
) -> Rowids:
    """Call `find` with the keys that `maybe` selects; return its rowids, and -1 for other keys."""
    rowids = np.full(len(keys), NO_ROWID, np.int64)
    at = np.flatnonzero(maybe)
    if len(at):
        rowids[at] = find(keys.take(at))
    return rowids
