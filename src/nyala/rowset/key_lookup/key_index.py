"""From keys to rowids and back in one base file: bounds of its key columns, bloom filter, the keys as they are stored.

    keys ── outside of what a ── bloom: surely absent? ── first keys: which piece ── the piece's keys: which row
            column spans?        8 to 16 bits a key,      of blocks or stretches     see `stored_keys`
            see `key_bounds`     none for narrow rows

A file whose pieces are asked for again and again (keys that come at random) has all its keys in one piece in the block
cache, if they take a small part of it: then keys cost one search, without filter, value index and blocks.

Immutable; may be used from any thread. Source: docs/design/kudu.md, "Column files, indexes and bloom filters" and
"Write path and flush".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from nyala.cfile import format
from nyala.cfile.blocks.cache import BlockCache, new_owner
from nyala.cfile.blocks.read_stats import Access, ReadStats
from nyala.cfile.column import BASE, KEY, ColumnKey
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

__all__ = ["KeyIndex"]

# Of the block cache, for the keys of one rowset: many must fit beside the blocks.
_CACHE_SHARE: Final = 1 / 16
# What `check` may find, the worst first; worse is only what cannot be read at all.
_WRONG: Final = ("order", "unreadable", "samples", "index", "bloom")


class KeyIndex(LazyValues):
    """The keys of one base file, whose rows stand in key order.

    key_column_ids: of the key, in its order.
    """

    def __init__(
        self,
        reader: CFileReader,
        codec: KeyCodec,
        key_column_ids: Sequence[int],
        row_count: int,
        cache: BlockCache | None = None,
    ) -> None:
        self._reader = reader
        self._codec = codec
        self._key_column_ids = key_column_ids
        self._row_count = row_count
        self._cache = cache
        self._owner = new_owner()
        self._too_large = False  # all keys, for their share of the cache
        self._pieces_asked = 0  # since all keys were read last; about right is enough

    @lazy_value
    def _stored(self) -> StoredKeys:
        """Raises: CorruptionError for a file without them, KeysError when only the encoded keys cannot be read."""
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
                f"expected a key of every 2^{format.ROWS_PER_BLOCK_LOG2_MAX}th row at the least, found column {key}",
                self._reader.path,
            )
        return self._column(key, -(-self._row_count >> key.group))

    def _column(self, key: ColumnKey, count: int) -> ColumnReader:
        column = self._reader.column(key)
        if column is None:
            raise CorruptionError(f"the file has no column {key}: its keys are not there", self._reader.path)
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
        """Whether the file has every row's encoded key beside its key columns: two witnesses of the same key."""
        from nyala.rowset.key_lookup.stored_keys import DenseKeys

        return isinstance(self._stored, DenseKeys) and self._stored.is_encoded

    @property
    def row_bytes(self) -> float:
        """About what a key and its columns take in memory."""
        return self._stored.row_bytes

    def sample(self, count: int) -> tuple[EncodedKeys, Rowids]:
        """Some keys at even distances, and their rowids: about `count` or more; row 0 is one of them.

        Cost: none where the value index alone has as many; else the blocks of as many keys.
        """
        return self._stored.sample(count)

    def read(
        self, lower: int, upper: int, stats: ReadStats | None = None, *, access: Access = Access.LOOKUP
    ) -> EncodedKeys:
        """The keys of the rows [lower, upper), ascending."""
        return self._stored.read(lower, upper, stats, access=access)

    def gather(self, rowids: Rowids, stats: ReadStats | None = None) -> EncodedKeys:
        """The keys of these rows, in their order."""
        return self._stored.gather(rowids, stats)

    def find(self, keys: EncodedKeys, stats: ReadStats | None = None) -> Rowids:
        """The rowid of each key, or -1. Keys ascend; a key may stand twice.

        Cost: of the file, the pieces that hold keys which pass the bloom filter, each decoded once.
        """
        if not len(keys):
            return np.empty(0, np.int64)
        outside = self._bounds.excluded(keys)
        if outside is not None:
            return _among(~outside, keys, lambda some: self._find(some, stats))
        return self._find(keys, stats)

    def _find(self, keys: EncodedKeys, stats: ReadStats | None) -> Rowids:
        """`find` of keys within the bounds."""
        known = self._known()
        if known is not None:  # a search in memory costs less than the filter that would spare it
            return known.find(keys)
        bloom = self._reader.bloom()
        if bloom is not None:
            maybe = bloom.may_contain(keys.hash64())
            if not maybe.all():
                return _among(maybe, keys, lambda some: self._search(some, stats))
        return self._search(keys, stats)

    def _search(self, keys: EncodedKeys, stats: ReadStats | None) -> Rowids:
        """`find` where the keys are."""
        pieces = self._stored.pieces(keys, stats)
        whole = self._whole(1 + int((pieces[1:] != pieces[:-1]).sum()), stats)
        return self._stored.find(keys, pieces, stats) if whole is None else whole.find(keys)

    def find_one(self, key: EncodedKeys, canonical: bytes) -> int:
        """`find` of one key, which is given in both forms. Cost: of a key that is not there, no call of NumPy's."""
        if self._bounds.excludes_one(canonical):
            return NO_ROWID
        known = self._known()
        if known is None:
            bloom = self._reader.bloom()
            if bloom is not None and not bloom.may_contain_one(hash_one(canonical)):
                return NO_ROWID
            known = self._whole(1, None)
            if known is None:
                return self._stored.find_one(key, canonical, None)
        at = known.lower_bound(canonical)
        return at if at < len(known) and known.at(at) == canonical else NO_ROWID

    @lazy_value
    def _bounds(self) -> KeyBounds:
        # What the first column spans, the rowset's least and greatest key tell.
        places = [index for index, _, _ in self._codec.fixed_tail if index]
        columns = {index: self._key_column(self._key_column_ids[index]) for index in places}
        return KeyBounds(self._codec, {index: column.number_bounds() for index, column in columns.items()})

    def _known(self) -> SearchedKeys | None:
        """All keys, if they are in the cache."""
        known: SearchedKeys | None = None if self._cache is None else self._cache.get(self._owner, "keys")
        return known

    def _whole(self, pieces: int, stats: ReadStats | None) -> SearchedKeys | None:
        """All keys, for a look-up in so many pieces; None when they are not worth reading yet or take too much room.

        They are read once so many pieces were asked for that this costs no more than those did.
        """
        if self._cache is None or self._too_large:
            return None
        self._pieces_asked += pieces
        if self._pieces_asked < self._stored.worth_reading_all:
            return None
        self._pieces_asked = 0
        if self._stored.nbytes_of_all > self._cache.limit_bytes * _CACHE_SHARE:
            self._too_large = True
            return None
        found = self._stored.read_all(stats)
        if found.nbytes > self._cache.limit_bytes * _CACHE_SHARE:
            self._too_large = True
            return None
        self._cache.put(self._owner, "keys", found, found.nbytes, costly=True)
        return found

    def close(self) -> None:
        """Forget what is cached."""
        if self._cache is not None:
            self._cache.drop_owner(self._owner)

    def range(self, key_range: KeyRange, stats: ReadStats | None = None) -> tuple[int, int]:
        """The rows [lower, upper) whose keys are in the range. Cost: at most one piece for each bound."""
        if key_range.is_empty:
            return 0, 0
        lower = 0 if key_range.lower is None else self._lower_bound(key_range.lower, stats)
        upper = self._row_count if key_range.upper is None else self._lower_bound(key_range.upper, stats)
        return lower, max(lower, upper)

    def _lower_bound(self, bound: bytes, stats: ReadStats | None) -> int:
        """The first row whose key is >= `bound`."""
        known = self._known()
        return self._stored.lower_bound(bound, stats) if known is None else known.lower_bound(bound)

    def check(self) -> None:
        """Read all keys, a window at a time. Raises: CorruptionError when they do not ascend, SummaryError when one is
        not in the bloom filter or what finds them has others, KeysError when the encoded ones of several columns cannot
        be read. Of several, what says most of the file, wherever in it that is: the first of `_WRONG`."""
        stored, path = self._stored, self._reader.path
        wrong: dict[str, CorruptionError] = {}
        bloom = None
        try:
            bloom = self._reader.bloom()
            if bloom is not None:
                bloom.load_all()
        except CorruptionError as error:
            wrong["bloom"], bloom = unreadable_bloom(error), None
        before: bytes | None = None
        for lower, keys in self._windows():
            if not keys.is_strictly_ascending() or (before is not None and keys.at(0) <= before):
                wrong["order"] = CorruptionError("expected ascending keys, found others", path, stored.offset)
            before = keys.at(-1)
            try:
                stored.check(keys, lower)
            except KeysError as error:
                wrong.setdefault("unreadable", error)
            except SummaryError as error:
                wrong.setdefault("index", error)
            except CorruptionError as error:
                wrong.setdefault("samples", error)
            if bloom is not None and not bloom.may_contain(keys.hash64()).all():
                wrong["bloom"] = SummaryError("expected every key in the bloom filter, one is not", path)
        for kind in _WRONG:
            if kind in wrong:
                raise wrong[kind]

    def _windows(self) -> Iterator[tuple[int, EncodedKeys]]:
        """(the first row, keys) of all rows, past the cache. Raises: as `check`."""
        for lower, upper in row_ranges(self._row_count, self.row_bytes):
            try:
                keys = self._stored.read(lower, upper, access=Access.ONCE)
            except CorruptionError as error:
                if not self.has_all_encoded:
                    raise
                raise unreadable_keys(error) from error
            yield lower, keys


def _among(maybe: npt.NDArray[np.bool_], keys: EncodedKeys, find: Callable[[EncodedKeys], Rowids]) -> Rowids:
    """What `find` finds of the keys that may be there; -1 for the others."""
    rowids = np.full(len(keys), NO_ROWID, np.int64)
    at = np.flatnonzero(maybe)
    if len(at):
        rowids[at] = find(keys.take(at))
    return rowids
