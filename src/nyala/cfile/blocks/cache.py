"""The block cache: decoded blocks in memory, within a limit of bytes.

An entry is of one of three kinds:

    probation  blocks that a scan read for the first time, in order of arrival. They may take a 32nd
               of the limit. An evicted block leaves its name in a list, the ghost list
    cheap      blocks that a look-up read, or that a scan read while their name was in the ghost
               list. The least recently used block is evicted first. It is cheap to decode the
               block again: this runs at gigabytes per second
    costly     values computed from several blocks (runs of changes, patches, encoded keys), and
               dictionaries, which all blocks of a column need. The least recently used value is
               evicted first

So the first scan of a large table evicts only blocks on probation. A second scan soon afterwards
adds the table's blocks as cheap entries, and later scans find them in the cache.

Cheap entries are evicted before costly ones, until the costly ones take more than seven eighths of
the limit. Without this order, a scan of more data than fits into the cache would evict both kinds,
and every scan would compute the costly values again.

If an entry is added again soon after its eviction from `cheap` or `costly`, the entries in use do
not all fit into the cache. If they are read in turn, evicting the least recently used entry would
always evict the one that is needed next. So an entry that comes back becomes the next one to be
evicted, and the other entries stay. If it is read before its eviction, it counts as recently used.
One in eight entries that come back counts as recently used at once, because the cached entries may
not be needed any more.

A cached block owns its memory: a slice of one long read would keep the whole read alive, and the
byte counts would be wrong. Each reader has a unique number (`new_owner`), and the cache keys of its
blocks contain this number. They do not contain the path, because a later file may have the same
path.

Thread safety: any thread may call every method. If two threads miss the same block, both decode it,
and the second result replaces the first, which is equal.
Source: T. Johnson and D. Shasha, "2Q", 1994 (probation and its ghost list); M. Qureshi et al.,
"Adaptive insertion policies for high performance caching", 2007 (bimodal insertion; here only for
blocks that come back). Kudu has a segmented LRU.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

_owners: Final = itertools.count(1)
_Entries: TypeAlias = "OrderedDict[tuple[int, Any], tuple[Any, int]]"
# The share of the limit that costly entries may take before they are evicted ahead of cheap ones.
_COSTLY_SHARE: Final = 7 / 8
_CHEAP, _COSTLY, _PROBATION = range(3)
_NONE: Final = object()

# The most names of evicted cheap and costly entries that are remembered.
# One in this many entries that come back counts as recently used at once.
_GHOSTS_MAX: Final = 1 << 14
_YOUNG_EVERY: Final = 8

# The share of the limit for blocks on probation, and the most names of evicted ones that are
# remembered.
_PROBATION_SHARE: Final = 1 / 32
_PROBATION_GHOSTS_MAX: Final = 1 << 16

# The dictionary entry, its key, and the Python and C++ objects of an array. Without this size, many
# tiny blocks would count as nothing.
_ENTRY_OVERHEAD_BYTES: Final = 512


def new_owner() -> int:
    """Return an owner number for `BlockCache`, which no other reader of this process has."""
    return next(_owners)


class BlockCache:
    """A cache of immutable values with a limit of bytes.

    A value is found by its owner and its key. The owner is the number of the reader object that
    added the value (`new_owner`). The key is any hashable object. The caller of `put` gives the
    size of the value.
    """

    def __init__(self, limit_bytes: int) -> None:
        assert limit_bytes >= 0
        self._lock = threading.Lock()
        # Indexed by kind: cheap, costly, probation. The next entry to be evicted comes first.
        self._entries: tuple[_Entries, _Entries, _Entries] = (OrderedDict(), OrderedDict(), OrderedDict())
        self._sizes_bytes = [0, 0, 0]
        self._limit_bytes = limit_bytes
        self._ghosts: OrderedDict[tuple[int, Any], None] = OrderedDict()  # evicted from cheap and costly
        self._returned = 0
        self._probation_ghosts: OrderedDict[tuple[int, Any], None] = OrderedDict()
        self._hits = 0
        self._misses = 0

    def get(self, owner: int, key: Any) -> Any | None:
        """Return the value of this owner and key, None if absent. Counts a hit or miss."""
        with self._lock:
            return self._found((owner, key))

    def get_all(self, names: Sequence[tuple[int, Any]]) -> list[Any | None]:
        """Return the value of each (owner, key), as `get` does. Takes the lock only once."""
        with self._lock:
            return [self._found(name) for name in names]

    def _found(self, name: tuple[int, Any]) -> Any | None:
        for kind, entries in enumerate(self._entries):
            entry = entries.get(name)
            if entry is not None:
                self._hits += 1
                if kind != _PROBATION:
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
        """Add `value` to the cache, and evict other entries until all fit.

        The new entry counts as recently used. But if it was in the cache before and was evicted a
        short time ago, it usually becomes the next entry to be evicted. The docstring of the module
        gives the reason. A value larger than the whole limit is not added.

        costly: computing the value again costs much more than decoding a block.
        by_scan: the value is a block that a scan read.
        """
        size_bytes += _ENTRY_OVERHEAD_BYTES
        name = (owner, key)
        with self._lock:
            self._drop(name)
            if size_bytes > self._limit_bytes:
                return
            is_on_probation = by_scan and name not in self._probation_ghosts
            kind = _COSTLY if costly else _PROBATION if is_on_probation else _CHEAP
            if kind != _PROBATION and self._ghosts.pop(name, _NONE) is None:
                self._returned += 1
                if self._returned % _YOUNG_EVERY:
                    # Make room first. Otherwise this entry, the next to be evicted, would be
                    # evicted at once.
                    self._shrink(size_bytes)
                    self._entries[kind][name] = (value, size_bytes)
                    self._entries[kind].move_to_end(name, last=False)
                    self._sizes_bytes[kind] += size_bytes
                    return
            self._entries[kind][name] = (value, size_bytes)
            self._sizes_bytes[kind] += size_bytes
            self._shrink()

    def discard(self, owner: int, key: Any) -> None:
        """Remove the value of this owner and key, if it is in the cache."""
        with self._lock:
            self._drop((owner, key))

    def drop_owner(self, owner: int) -> None:
        """Remove all entries of an owner, and the record of its evicted entries.

        Cost: one pass over the cache.
        """
        with self._lock:
            for entries in self._entries:
                for key in [key for key in entries if key[0] == owner]:
                    self._drop(key)
            for names in (self._ghosts, self._probation_ghosts):
                for name in [name for name in names if name[0] == owner]:
                    del names[name]

    def resize(self, limit_bytes: int) -> None:
        """Change the limit, and evict what exceeds it."""
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
        """Assert that sizes add up and are within the limits, and that no key is in the cache twice."""
        with self._lock:
            for size_bytes, entries in zip(self._sizes_bytes, self._entries, strict=True):
                assert size_bytes == sum(size for _, size in entries.values())
            assert self.size_bytes <= self._limit_bytes
            cheap, costly, probation = (entries.keys() for entries in self._entries)
            assert not cheap & costly and not cheap & probation and not costly & probation
            assert self._sizes_bytes[_PROBATION] <= self._limit_bytes * _PROBATION_SHARE
            assert len(self._ghosts) <= _GHOSTS_MAX
            assert len(self._probation_ghosts) <= _PROBATION_GHOSTS_MAX
            assert not any(entries.keys() & self._ghosts.keys() for entries in self._entries)

    def _drop(self, name: tuple[int, Any]) -> None:
        for kind, entries in enumerate(self._entries):
            entry = entries.pop(name, None)
            if entry is not None:
                self._sizes_bytes[kind] -= entry[1]

    def _shrink(self, more_bytes: int = 0) -> None:
        """Evict entries until the remaining ones plus `more_bytes` fit into the limit."""
        cheap, costly, _ = self._entries
        while self._sizes_bytes[_PROBATION] > self._limit_bytes * _PROBATION_SHARE:
            self._evict(_PROBATION)
        while self.size_bytes + more_bytes > self._limit_bytes:
            if cheap and self._sizes_bytes[_COSTLY] <= self._limit_bytes * _COSTLY_SHARE:
                self._evict(_CHEAP)
            elif costly:
                self._evict(_COSTLY)
            else:
                self._evict(_CHEAP if cheap else _PROBATION)

    def _evict(self, kind: int) -> None:
        """Evict the first entry of this kind, which is usually the least recently used one.

        Its name is added to a list of evicted entries (the ghost list).

        kind: `_PROBATION`, `_CHEAP` or `_COSTLY`.
        """
        name, (_, size_bytes) = self._entries[kind].popitem(last=False)
        self._sizes_bytes[kind] -= size_bytes
        ghosts, ghosts_max = self._ghosts, _GHOSTS_MAX
        if kind == _PROBATION:
            ghosts, ghosts_max = self._probation_ghosts, _PROBATION_GHOSTS_MAX
        ghosts[name] = None
        if len(ghosts) > ghosts_max:
            ghosts.popitem(last=False)


_Made = TypeVar("_Made")
# The most requests that a memo remembers. A scan makes one per column and split, so this is enough
# for many scans.
_REQUESTED_MAX: Final = 1 << 12


class Memo:
    """Caches computed values in a block cache, if they are requested more than once.

    A value has a name, and a *state*: what it was computed from. A request for a newer state
    computes the value again, and replaces the cached one of the same name. A value is cached at the
    second request for the same name and state. So a value that is used only once, such as a patch
    that the next write makes invalid, takes no space from blocks. Thread-safe.
    """

    def __init__(self, cache: BlockCache | None) -> None:
        self._cache = cache
        self._owner = new_owner()
        self._requested: dict[tuple[Hashable, Hashable], None] = {}

    def get(
        self, name: Hashable, state: Hashable, make: Callable[[bool], tuple[_Made, int]], *, costly: bool
    ) -> _Made:
        """Return the cached value for this name and state, or compute it by `make`.

        Threads that call at the same time may each compute the value.

        name: identifies the value in the cache.
        state: what the value is computed from. A cached value with another state is not used.
        make: computes (value, its size in bytes), only from what `name` and `state` identify. Its
        argument says whether the value will be cached.
        costly: computing the value again costs much more than decoding a block.
        """
        if self._cache is None or not self._was_requested(name, state):
            return make(False)[0]
        cached = self._cached(name, state)
        if cached is None:
            cached, size_bytes = make(True)
            self._cache.put(self._owner, name, (state, cached), size_bytes, costly=costly)
        made: _Made = cached
        return made

    def part(
        self, name: Hashable, state: Hashable, make: Callable[[], tuple[_Made, int]], *, is_last: bool
    ) -> _Made:
        """Return a value that one scan requests several times, for example once per split.

        The value is cached between these requests. The last request removes it from the cache. But
        if an earlier scan requested the same name and state, the value stays in the cache, because
        more scans may need it. Threads that call at the same time may each compute the value.

        name, state: what the value is, and what it is computed from.
        make: computes (value, its size in bytes). The value must not be None.
        is_last: whether this is the scan's last request.
        """
        if self._cache is None:
            return make()[0]
        cached = self._cached(name, state)
        if cached is None:
            cached, size_bytes = make()
            self._cache.put(self._owner, name, (state, cached), size_bytes, costly=True)
        if is_last and not self._was_requested(name, state):
            self._cache.discard(self._owner, name)
        made: _Made = cached
        return made

    def _cached(self, name: Hashable, state: Hashable) -> Any | None:
        assert self._cache is not None
        entry = self._cache.get(self._owner, name)
        return entry[1] if entry is not None and entry[0] == state else None

    def _was_requested(self, name: Hashable, state: Hashable) -> bool:
        """Record a request, and return whether it was made before with the same name and state."""
        if (name, state) in self._requested:
            return True
        if len(self._requested) >= _REQUESTED_MAX:
            self._requested = {}
        self._requested[name, state] = None
        return False

    def close(self) -> None:
        """Remove all values of this memo from the cache."""
        if self._cache is not None:
            self._cache.drop_owner(self._owner)
