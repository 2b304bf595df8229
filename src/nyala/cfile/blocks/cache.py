"""The block cache: blocks in memory within a limit of bytes.

    first    blocks that scans read, in the order of their arrival: a 32nd of the limit at most, since memory
             that is soon used again costs no page faults. A block stays for the columns of its window, and
             goes. Its name is remembered
    cheap    blocks that a look-up read, or that a scan read again after they had gone: least recently used
             first out. They are decoded again at gigabytes a second
    costly   what was computed from several blocks: runs of changes, patches, encoded keys; dictionaries,
             which all blocks of a column refer to. Least recently used first out

So one scan of a large table evicts nothing else, and a second one finds its blocks. Cheap entries go before
costly ones, until costly ones take more than seven eighths. Else a scan of more than the cache holds would
evict both, and make the costly ones again each time.

A block that was evicted from `cheap` and is put in again belongs to more blocks than the cache holds. Read in
turn, none of these would still be there at its next turn. So such a block is the next to go, unless somebody
uses it before, and the blocks that are in the cache stay. Every eighth of these blocks counts as new all the
same, for the blocks in the cache may not be used any more.

A cached block owns its memory. An array cut out of one long read would keep the whole read alive, and the count
of bytes would be wrong. A reader is named by a number of its own (`new_owner`), not by its path, so a path that
is used twice does not bring back another file's block.

Thread-safety: any thread may call every method. Two threads that miss the same block both decode it; the second
puts its result over the first's, which is equal.
Source: T. Johnson and D. Shasha, "2Q", 1994 (`first` and its names); M. Qureshi et al., "Adaptive insertion
policies for high performance caching", 2007 (its bimodal insertion, here for blocks that are known to come again
only). Kudu has a segmented LRU.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

__all__ = ["BlockCache", "Memo", "new_owner"]

_owners: Final = itertools.count(1)
_Entries: TypeAlias = "OrderedDict[tuple[int, Any], tuple[Any, int]]"
# Of the limit: what costly entries may take while there are cheap ones.
_COSTLY_SHARE: Final = 7 / 8
_CHEAP, _COSTLY, _FIRST = range(3)
_NONE: Final = object()

# Names of things that were dropped, which are remembered; and of how many that come again one is taken for young.
_DROPPED_MAX: Final = 1 << 14
_YOUNG_EVERY: Final = 8

# Of the limit: what blocks may take that a scan read for the first time. And how many of their names are
# remembered.
_FIRST_SHARE: Final = 1 / 32
_SCANNED_MAX: Final = 1 << 16

# A dictionary entry, its key and the Python and C++ sides of an array; so that very many tiny blocks count.
_ENTRY_OVERHEAD_BYTES: Final = 512


def new_owner() -> int:
    """A number that no other reader of this process has."""
    return next(_owners)


class BlockCache:
    """Keyed by (owner, anything). Values are immutable; sizes are given by who puts them in."""

    def __init__(self, limit_bytes: int) -> None:
        assert limit_bytes >= 0
        self._lock = threading.Lock()
        # cheap, costly, first: the next to go stands first.
        self._entries: tuple[_Entries, _Entries, _Entries] = (OrderedDict(), OrderedDict(), OrderedDict())
        self._sizes_bytes = [0, 0, 0]
        self._limit_bytes = limit_bytes
        self._dropped: OrderedDict[tuple[int, Any], None] = OrderedDict()  # for want of room
        self._came_again = 0
        self._scanned: OrderedDict[tuple[int, Any], None] = OrderedDict()  # out of `first`
        self._hits = 0
        self._misses = 0

    def get(self, owner: int, key: Any) -> Any | None:
        """What was put under the key, or None; counts a hit or a miss."""
        with self._lock:
            return self._found((owner, key))

    def get_all(self, names: Sequence[tuple[int, Any]]) -> list[Any | None]:
        """`get` of several (owner, key), at the cost of one wait for the lock."""
        with self._lock:
            return [self._found(name) for name in names]

    def _found(self, name: tuple[int, Any]) -> Any | None:
        for kind, entries in enumerate(self._entries):
            entry = entries.get(name)
            if entry is not None:
                self._hits += 1
                if kind != _FIRST:
                    entries.move_to_end(name)
                return entry[0]
        self._misses += 1
        return None

    def put(
        self,
        owner: int,
        key: Any,
        value: Any,
        size_bytes: int,
        *,
        costly: bool = False,
        by_scan: bool = False,
    ) -> None:
        """Keep `value` as the youngest, or as the oldest (see the module); older ones go until all fit.

        Too large for the whole cache: not kept.

        costly: whether it costs much more to make again than a block. by_scan: whether a scan read this block.
        """
        size_bytes += _ENTRY_OVERHEAD_BYTES
        name = (owner, key)
        with self._lock:
            self._drop(name)
            if size_bytes > self._limit_bytes:
                return
            kind = _COSTLY if costly else _FIRST if by_scan and name not in self._scanned else _CHEAP
            if kind != _FIRST and self._dropped.pop(name, _NONE) is None:
                self._came_again += 1
                if self._came_again % _YOUNG_EVERY:
                    # Room is made before it comes, so that it is the next to go and not the one that goes.
                    self._shrink(size_bytes)
                    self._entries[kind][name] = (value, size_bytes)
                    self._entries[kind].move_to_end(name, last=False)
                    self._sizes_bytes[kind] += size_bytes
                    return
            self._entries[kind][name] = (value, size_bytes)
            self._sizes_bytes[kind] += size_bytes
            self._shrink()

    def discard(self, owner: int, key: Any) -> None:
        """Forget what was put under the key, if anything was."""
        with self._lock:
            self._drop((owner, key))

    def drop_owner(self, owner: int) -> None:
        """Forget everything of a reader that was closed. Cost: one pass over the cache."""
        with self._lock:
            for entries in self._entries:
                for key in [key for key in entries if key[0] == owner]:
                    self._drop(key)
            for names in (self._dropped, self._scanned):
                for name in [name for name in names if name[0] == owner]:
                    del names[name]

    def resize(self, limit_bytes: int) -> None:
        """Another limit, at once."""
        with self._lock:
            self._limit_bytes = limit_bytes
            self._shrink()

    @property
    def limit_bytes(self) -> int:
        return self._limit_bytes

    @property
    def size_bytes(self) -> int:
        return sum(self._sizes_bytes)

    @property
    def hits(self) -> int:
        return self._hits

    @property
    def misses(self) -> int:
        return self._misses

    def __len__(self) -> int:
        return sum(map(len, self._entries))

    def check(self) -> None:
        """Every invariant: sizes add up, within the limit, and nothing is in it twice."""
        with self._lock:
            for size_bytes, entries in zip(self._sizes_bytes, self._entries, strict=True):
                assert size_bytes == sum(size for _, size in entries.values())
            assert self.size_bytes <= self._limit_bytes
            cheap, costly, first = (entries.keys() for entries in self._entries)
            assert not cheap & costly and not cheap & first and not costly & first
            assert self._sizes_bytes[_FIRST] <= self._limit_bytes * _FIRST_SHARE
            assert len(self._dropped) <= _DROPPED_MAX and len(self._scanned) <= _SCANNED_MAX
            assert not any(entries.keys() & self._dropped.keys() for entries in self._entries)

    def _drop(self, name: tuple[int, Any]) -> None:
        for kind, entries in enumerate(self._entries):
            entry = entries.pop(name, None)
            if entry is not None:
                self._sizes_bytes[kind] -= entry[1]

    def _shrink(self, more_bytes: int = 0) -> None:
        """Drop the oldest until the others, and so many bytes more, fit."""
        cheap, costly, _ = self._entries
        while self._sizes_bytes[_FIRST] > self._limit_bytes * _FIRST_SHARE:
            self._pop(_FIRST, self._scanned, _SCANNED_MAX)
        while self.size_bytes + more_bytes > self._limit_bytes:
            if cheap and self._sizes_bytes[_COSTLY] <= self._limit_bytes * _COSTLY_SHARE:
                self._pop(_CHEAP, self._dropped, _DROPPED_MAX)
            elif costly:
                self._pop(_COSTLY, self._dropped, _DROPPED_MAX)
            elif cheap:
                self._pop(_CHEAP, self._dropped, _DROPPED_MAX)
            else:
                self._pop(_FIRST, self._scanned, _SCANNED_MAX)

    def _pop(self, kind: int, names: OrderedDict[tuple[int, Any], None], names_max: int) -> None:
        """Drop the oldest of a kind, and remember its name."""
        name, (_, size_bytes) = self._entries[kind].popitem(last=False)
        self._sizes_bytes[kind] -= size_bytes
        names[name] = None
        if len(names) > names_max:
            names.popitem(last=False)


_Made = TypeVar("_Made")
# Names that were asked for once. A scan asks for a name per column and window, so this is many scans' worth.
_ASKED_MAX: Final = 1 << 12


class Memo:
    """Things that one owner works out and may be asked for again; kept in a block cache from the second time on:
    they cost more than a block does.

    A thing has a name and a state, and is right for as long as the state is the same: of each name the cache has one,
    and a newer state takes the place of an older. What is asked for in one state only (a scan of what the next write
    replaces) takes no room from the blocks.
    Thread-safe.
    """

    def __init__(self, cache: BlockCache | None) -> None:
        self._cache = cache
        self._owner = new_owner()
        self._asked: dict[tuple[Hashable, Hashable], None] = {}

    def get(
        self, name: Hashable, state: Hashable, make: Callable[[bool], tuple[_Made, int]], *, costly: bool
    ) -> _Made:
        """What `make` gives, as (value, bytes), for this name and state, which say all that the value depends on.

        make: receives whether the value will be kept. costly: as in `BlockCache.put`.
        Two threads that ask at once both work it out.
        """
        if self._cache is None or not self._was_asked(name, state):
            return make(False)[0]
        found = self._kept(name, state)
        if found is None:
            found, size_bytes = make(True)
            self._cache.put(self._owner, name, (state, found), size_bytes, costly=costly)
        made: _Made = found
        return made

    def part(
        self, name: Hashable, state: Hashable, make: Callable[[], tuple[_Made, int]], *, is_last: bool
    ) -> _Made:
        """The same of a thing that a scan asks for several times, for a part of it each time; never None.

        is_last: whether this is the last part. Until then it is kept, and from the second scan on it stays.
        Threads that ask at once all work it out.
        """
        if self._cache is None:
            return make()[0]
        found = self._kept(name, state)
        if found is None:
            found, size_bytes = make()
            self._cache.put(self._owner, name, (state, found), size_bytes, costly=True)
        if is_last and not self._was_asked(name, state):
            self._cache.discard(self._owner, name)
        made: _Made = found
        return made

    def _kept(self, name: Hashable, state: Hashable) -> Any | None:
        assert self._cache is not None
        entry = self._cache.get(self._owner, name)
        return entry[1] if entry is not None and entry[0] == state else None

    def _was_asked(self, name: Hashable, state: Hashable) -> bool:
        """Whether this was asked for in this state before; notes that it was now."""
        if (name, state) in self._asked:
            return True
        if len(self._asked) >= _ASKED_MAX:
            self._asked = {}
        self._asked[name, state] = None
        return False

    def close(self) -> None:
        """Forget everything."""
        if self._cache is not None:
            self._cache.drop_owner(self._owner)
