"""A vector of encoded primary keys, compared, sorted, searched and hashed by one call per vector.

    layout     when                                  stored as                                   compared by
    "int"      all columns fixed, <= 8 bytes         np.uint64, the key's big-endian value    integer
    "fixed"    all columns fixed, more than 8 bytes  NumPy S(width + 1), the last byte 0x01   memcmp
    "binary"   a column of variable length           Arrow large_binary                       memcmp

The *canonical bytes* of a key are Kudu's encoding (see `nyala.keys.codec`). They are written to
disk, and `to_binary`, `at`, `lower_bound` and `hash64` use them. In every layout, keys have the
order, equality and hash of their canonical bytes. The layout depends only on the key's column
types, so all keys of a table have the same layout. Mixing layouts is a bug.

Invariants
    K1  Order of keys = order of canonical bytes = column-wise order of the values.
    K2  A "fixed" key ends in 0x01, because NumPy drops trailing 0x00 of an S value. Otherwise two
        keys could become one.
    K3  Immutable: the bytes of a vector never change after its creation; slices share them.

Any thread may read.
Source: docs/design/keys-and-look-ups.md, "Keys as integers"; docs/design/kudu.md, "Key encoding".
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, Final, Literal, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala import compute as pc
from nyala.keys import hash64
from nyala.keys.arrow_memory import binary_view, large_binary_array
from nyala.keys.word_search import find_integers, sample_of
from nyala.schema.plain_arrays import array_of_bytes, array_of_numbers, booleans_of

Layout = Literal["int", "fixed", "binary"]
Side = Literal["left", "right"]
Bools = npt.NDArray[np.bool_]
Indexes = npt.NDArray[np.int64]

_INT_WIDTH_MAX: Final = 8
TAIL_WIDTH: Final = 8
"""The number of bytes at the end of a "fixed" key that serve as one integer, its tail. The bytes
before the tail are the key's head.
"""
_TERMINATOR: Final = 0x01


class EncodedKeys(abc.ABC):
    """A vector of encoded keys of one table. `nyala.keys.codec.KeyCodec` creates it.

    layout: "int", "fixed" or "binary": see the table in the module's docstring.
    width: the number of bytes of every key; None for layout "binary".
    Positions are int64 NumPy arrays. *Probes* are keys to search for. They must have the same
    layout and width.
    """

    __slots__ = ()

    layout: Layout
    width: int | None

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @property
    @abc.abstractmethod
    def nbytes(self) -> int:
        """The size of the keys in memory, in bytes. A slice counts only its own keys."""

    @abc.abstractmethod
    def take(self, indices: npt.NDArray[Any]) -> EncodedKeys:
        """Return the keys at `indices`, in that order."""

    @abc.abstractmethod
    def slice(self, offset: int, length: int | None = None) -> EncodedKeys:
        """Return the keys [offset, offset + length), or all from `offset` on. Memory is shared."""

    @staticmethod
    def concat(parts: Sequence[EncodedKeys]) -> EncodedKeys:
        """Return the concatenated keys of `parts`: at least one part, all with the same layout."""
        assert parts, "concat needs a vector: create an empty one with KeyCodec.empty()"
        if len(parts) == 1:
            return parts[0]
        assert len({(part.layout, part.width) for part in parts}) == 1, "K1: keys of different layouts"
        return parts[0]._concat(parts)

    @abc.abstractmethod
    def _concat(self, parts: Sequence[Any]) -> EncodedKeys: ...

    @abc.abstractmethod
    def is_ascending(self) -> bool:
        """Whether each key is >= the previous one."""

    @abc.abstractmethod
    def is_strictly_ascending(self) -> bool:
        """Whether each key is > the previous one, so that no key repeats."""

    def sort_indices(self) -> Indexes:
        """Return the positions that sort the keys. The sort is stable.

        Cost: only one comparison pass if the keys ascend already, as the keys of a file do.
        """
        if self.is_ascending():
            return np.arange(len(self), dtype=np.int64)
        return self._sort_indices()

    @abc.abstractmethod
    def _sort_indices(self) -> Indexes: ...

    @abc.abstractmethod
    def search(self, probes: EncodedKeys, side: Side = "left") -> Indexes:
        """Return, for each probe, the position at which to insert it into these ascending keys.

        side: "left" for the first position with a key >= the probe, "right" for the first position
              with a key > the probe.
        """

    def find(self, probes: EncodedKeys) -> Indexes:
        """Return the position of each probe, -1 if absent.

        The keys of `self` must ascend strictly.
        """
        if len(self) == 0:
            return np.full(len(probes), -1, dtype=np.int64)
        positions = self.search(probes)
        clipped = np.minimum(positions, len(self) - 1)
        return np.where(self.take(clipped).equal_to(probes), clipped, np.int64(-1))

    def prepare_search(self) -> None:  # noqa: B027
        """Make later searches faster: compute the last 8 bytes of each key as an integer.

        Slices that are made later share these integers.
        """

    def prepare_slices(self) -> None:  # noqa: B027
        """Make later searches for slices of these keys faster.

        Call this before the keys are cut into slices that are passed as `probes` to `search` or
        `find`. It remembers whether all keys differ only in their last 8 bytes. Then the searches
        compare only these bytes. The keys must ascend.
        """

    @abc.abstractmethod
    def lower_bound(self, bound: bytes) -> int:
        """Return the position of the first key whose bytes are >= `bound`. The keys must ascend.

        bound: a key as encoded bytes, or a prefix of them.
        """

    @abc.abstractmethod
    def equal_to(self, other: EncodedKeys) -> Bools:
        """Return one bool per key: whether self[i] == other[i]. Both must have the same length."""

    def equal_neighbours(self) -> Bools:
        """Return one bool per pair of neighbours: whether self[i] == self[i + 1]."""
        count = max(len(self) - 1, 0)
        return self.slice(0, count).equal_to(self.slice(len(self) - count, count))

    @abc.abstractmethod
    def to_hashable(self) -> list[Any]:
        """Return the keys as Python ints or bytes, for use as keys of a dict.

        The bytes may differ from those on disk.
        """

    @abc.abstractmethod
    def to_binary(self) -> pa.Array:
        """Return the keys as a large_binary array of encoded bytes, as they are written to disk."""

    @abc.abstractmethod
    def at(self, index: int) -> bytes:
        """Return one key as encoded bytes, as on disk. A negative index counts from the end."""

    @abc.abstractmethod
    def sizes(self) -> Indexes:
        """Return how many bytes each key has on disk."""

    @abc.abstractmethod
    def integers(self, suffix_bytes: int, width: int) -> npt.NDArray[np.uint64]:
        """Return the encoded values of one key column as integers, one per key.

        The integers have the order of the column's values. The column must have the same place in
        every key, counted from the key's end: no text or binary column may follow it.

        suffix_bytes: the number of bytes after the column in each key.
        width: the number of bytes of the column, at most 8.
        Returns: an array that the caller must not change.
        """

    @abc.abstractmethod
    def hash64(self) -> npt.NDArray[np.uint64]:
        """Return a 64-bit hash of each key's encoded bytes (see `nyala.keys.hash64`)."""

    def __repr__(self) -> str:
        return f"<{len(self)} encoded keys, layout {self.layout!r}, width {self.width}>"


class NumpyKeys(EncodedKeys):
    """Keys of layout "int" or "fixed", in one NumPy array."""

    __slots__ = ("_head", "_sample", "_tails", "data", "layout", "width")

    width: int

    def __init__(
        self,
        data: npt.NDArray[Any],
        width: int,
        tails: npt.NDArray[np.uint64] | None = None,
        head: bytes | None = None,
    ) -> None:
        self.layout = "int" if width <= _INT_WIDTH_MAX else "fixed"
        assert data.dtype.itemsize == (8 if self.layout == "int" else width + 1)
        self.data = data
        self.width = width
        self._tails = tails
        self._head = head
        self._sample: npt.NDArray[np.uint64] | None = None  # for `find_integers`

    def __len__(self) -> int:
        return len(self.data)

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)

    @property
    def tails(self) -> npt.NDArray[np.uint64]:
        """The last 8 bytes (TAIL_WIDTH) of each key as an integer.

        If the keys differ only in these bytes, the integers sort like the keys. Only for layout
        "fixed": keys of the same length, above 8 bytes.
        """
        tails = self._tails
        if tails is None:
            assert self.layout == "fixed"
            tail_bytes = np.ascontiguousarray(self._matrix()[:, -TAIL_WIDTH:])
            tails = self._tails = tail_bytes.view(">u8").reshape(-1).astype(np.uint64)
        return tails

    def prepare_search(self) -> None:
        if self.layout == "fixed":
            _ = self.tails

    def head(self, index: int) -> bytes:
        """Return the head of one key: its bytes without the last 8.

        Only for layout "fixed": keys of the same length, above 8 bytes.
        """
        return bytes(self.data[index])[: self.width - TAIL_WIDTH]

    def prepare_slices(self) -> None:
        if self.layout == "fixed" and len(self.data):
            _ = self.common_head

    @property
    def common_head(self) -> bytes | None:
        """The bytes before the last 8 bytes of each key; None if they are not the same in all keys.

        If they are the same, searches compare only the last 8 bytes, as integers. The keys must
        ascend, and there must be at least one. Only for layout "fixed": keys of the same length,
        above 8 bytes. The result is cached, also for slices of the keys that are made later.
        """
        head = self._head
        if head is None:
            head = self.head(0)
            if head != self.head(-1):
                return None
            self._head = head
        return head

    def first_beyond(self, prefix: bytes) -> int:
        """Return the position of the first key greater than all keys that begin with `prefix`.

        The keys of `self` must ascend. If no key is greater, the result is the number of keys.
        """
        probe = prefix.ljust(self.width, b"\xff") + bytes([_TERMINATOR])
        return int(np.searchsorted(self.data, np.array(probe, self.data.dtype), side="right"))

    def take(self, indices: npt.NDArray[Any]) -> EncodedKeys:
        tails = self._tails
        return NumpyKeys(
            self.data[indices], self.width, None if tails is None else tails[indices], self._head
        )

    def slice(self, offset: int, length: int | None = None) -> EncodedKeys:
        part = slice(offset, None if length is None else offset + length)
        tails = self._tails
        return NumpyKeys(self.data[part], self.width, None if tails is None else tails[part], self._head)

    def _concat(self, parts: Sequence[Any]) -> EncodedKeys:
        return NumpyKeys(np.concatenate([part.data for part in parts]), self.width)

    def is_ascending(self) -> bool:
        return bool((self.data[:-1] <= self.data[1:]).all())

    def is_strictly_ascending(self) -> bool:
        return bool((self.data[:-1] < self.data[1:]).all())

    def _sort_indices(self) -> Indexes:
        if self.layout == "fixed":
            heads = self._matrix()[:, : self.width - TAIL_WIDTH]
            if (heads == heads[0]).all():  # sorting integers is several times as fast
                return np.argsort(self.tails, kind="stable")
        return np.argsort(self.data, kind="stable")

    def search(self, probes: EncodedKeys, side: Side = "left") -> Indexes:
        numbers = self._as_integers(probes)
        if numbers is not None:
            return np.searchsorted(*numbers, side=side)
        return np.searchsorted(self.data, self._same(probes).data, side=side)

    def find(self, probes: EncodedKeys) -> Indexes:
        numbers = self._as_integers(probes)
        if numbers is None or not len(self):
            return super().find(probes)
        if self._sample is None:
            self._sample = sample_of(numbers[0])
        return find_integers(numbers[0], self._sample, numbers[1])

    def _as_integers(
        self, probes: EncodedKeys
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]] | None:
        """Return (keys of `self`, probes) as integers that compare like the keys; None: impossible.

        Keys of up to 8 bytes (layout "int") are such integers. Longer keys (layout "fixed") must
        all have the same bytes before the last 8, and so must the probes. Then the integers are the
        last 8 bytes. The keys of `self` must ascend.

        Return None also if there are several long probes and the caller did not call
        `prepare_slices` on them before. This call finds out whether their first bytes are the same.
        A single probe does not need it.
        """
        other = self._same(probes)
        if self.layout == "int":
            return self.data, other.data
        if not len(self) or not len(other):
            return None
        head = other.head(0) if len(other) == 1 else other._head
        if head is None or head != self.common_head:
            return None
        return self.tails, other.tails

    def lower_bound(self, bound: bytes) -> int:
        # A shorter bound is padded with zeros, because every key that begins with it is >= it. A
        # longer bound is cut, and then only keys greater than its beginning are >= it.
        side: Side = "left" if len(bound) <= self.width else "right"
        probe = bound[: self.width].ljust(self.width, b"\0")
        if self.layout == "int":
            value: Any = np.uint64(int.from_bytes(probe, "big"))
        else:
            value = np.array(probe + bytes([_TERMINATOR]), dtype=self.data.dtype)
        return int(np.searchsorted(self.data, value, side=side))

    def equal_to(self, other: EncodedKeys) -> Bools:
        return cast(Bools, self.data == self._same(other).data)

    def to_hashable(self) -> list[Any]:
        return cast(list[Any], self.data.tolist())

    def _matrix(self) -> npt.NDArray[np.uint8]:
        """Return the encoded bytes as a matrix: one row of `width` bytes per key."""
        data = np.ascontiguousarray(self.data.astype(">u8") if self.layout == "int" else self.data)
        rows = data.view(np.uint8).reshape(len(data), data.dtype.itemsize)
        return rows[:, _INT_WIDTH_MAX - self.width :] if self.layout == "int" else rows[:, : self.width]

    def to_binary(self) -> pa.Array:
        offsets = np.arange(0, (len(self) + 1) * self.width, self.width, dtype=np.int64)
        return large_binary_array(offsets, np.ascontiguousarray(self._matrix()).reshape(-1))

    def at(self, index: int) -> bytes:
        if self.layout == "int":
            return int(self.data[index]).to_bytes(self.width, "big")
        return bytes(self.data[index])[: self.width]

    def sizes(self) -> Indexes:
        return np.full(len(self), self.width, dtype=np.int64)

    def integers(self, suffix_bytes: int, width: int) -> npt.NDArray[np.uint64]:
        if self.layout == "int":
            numbers = self.data >> np.uint64(8 * suffix_bytes) if suffix_bytes else self.data
            return numbers & _ones(width) if suffix_bytes + width < self.width else numbers
        if suffix_bytes + width <= TAIL_WIDTH and (self._tails is not None or width == TAIL_WIDTH):
            numbers = self.tails >> np.uint64(8 * suffix_bytes) if suffix_bytes else self.tails
            return numbers if width == TAIL_WIDTH else numbers & _ones(width)
        end = self.width - suffix_bytes
        return _as_words(self._matrix()[:, end - width : end])

    def hash64(self) -> npt.NDArray[np.uint64]:
        return hash64.hash_rows(self._matrix())

    def _same(self, other: EncodedKeys) -> NumpyKeys:
        assert isinstance(other, NumpyKeys) and other.width == self.width, "K1: keys of different layouts"
        return other


class BinaryKeys(EncodedKeys):
    """Keys of layout "binary", in one Arrow large_binary array without NULLs."""

    __slots__ = ("data", "layout", "width")

    def __init__(self, data: pa.Array) -> None:
        assert data.type == pa.large_binary() and data.null_count == 0
        self.layout = "binary"
        self.width = None
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)

    def take(self, indices: npt.NDArray[Any]) -> EncodedKeys:
        return BinaryKeys(self.data.take(array_of_numbers(indices)))

    def slice(self, offset: int, length: int | None = None) -> EncodedKeys:
        return BinaryKeys(self.data.slice(offset, length))

    def _concat(self, parts: Sequence[Any]) -> EncodedKeys:
        return BinaryKeys(pa.concat_arrays([part.data for part in parts]))

    def _neighbours(self, compare: Any) -> bool:
        count = max(len(self.data) - 1, 0)
        pairs = compare(self.data.slice(0, count), self.data.slice(len(self.data) - count))
        return bool(pc.all(pairs, min_count=0).as_py())

    def is_ascending(self) -> bool:
        return self._neighbours(pc.less_equal)

    def is_strictly_ascending(self) -> bool:
        return self._neighbours(pc.less)

    def _sort_indices(self) -> Indexes:
        # Arrow documents its sort_indices as stable.
        return _int64(pc.sort_indices(self.data))

    def search(self, probes: EncodedKeys, side: Side = "left") -> Indexes:
        assert isinstance(probes, BinaryKeys), "K1: keys of different layouts"
        if hasattr(pc, "search_sorted"):  # since pyarrow 26.0
            return _int64(pc.search_sorted(self.data, probes.data, side=side))
        return binary_search(self.data, probes.data, side)

    def lower_bound(self, bound: bytes) -> int:
        return int(self.search(BinaryKeys(array_of_bytes([bound])))[0])

    def equal_to(self, other: EncodedKeys) -> Bools:
        assert isinstance(other, BinaryKeys), "K1: keys of different layouts"
        return booleans_of(pc.equal(self.data, other.data))

    def to_hashable(self) -> list[Any]:
        return cast(list[Any], self.data.to_pylist())

    def to_binary(self) -> pa.Array:
        return self.data

    def at(self, index: int) -> bytes:
        return cast(bytes, self.data[index].as_py())

    def sizes(self) -> Indexes:
        return np.diff(binary_view(self.data)[0])

    def integers(self, suffix_bytes: int, width: int) -> npt.NDArray[np.uint64]:
        offsets, data = binary_view(self.data)
        if len(data) < suffix_bytes + width:
            return np.zeros(len(self), np.uint64)
        # A key that is shorter than its columns is damaged, so its result does not matter.
        starts = np.maximum(offsets[1:] - (suffix_bytes + width), 0)
        return _as_words(data[starts[:, None] + np.arange(width)])

    def hash64(self) -> npt.NDArray[np.uint64]:
        return hash64.hash_variable(*binary_view(self.data))


def _ones(width: int) -> np.uint64:
    """Return a number with the low `width` bytes set."""
    return np.uint64((1 << 8 * width) - 1)


def _as_words(matrix: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Return each row of the matrix as a big-endian integer. A row has at most 8 bytes."""
    count, width = matrix.shape
    padded = np.zeros((count, 8), np.uint8)
    padded[:, 8 - width :] = matrix
    return padded.view(">u8").reshape(-1).astype(np.uint64)


def binary_search(keys: pa.Array, probes: pa.Array, side: Side) -> Indexes:
    """Return the position at which to insert each probe into ascending `keys`.

    side: as in `EncodedKeys.search`.
    The function replaces `pyarrow.compute.search_sorted`, which exists since pyarrow 26. Cost:
    log2(len(keys)) steps. Each step compares all probes in one call.
    """
    below = pc.less if side == "left" else pc.less_equal
    lower = np.zeros(len(probes), dtype=np.int64)
    upper = np.full(len(probes), len(keys), dtype=np.int64)
    for _ in range(len(keys).bit_length()):
        middle = (lower + upper) >> 1
        undecided = lower < upper
        # For a decided probe, middle may be len(keys). Its comparison does not matter.
        passed = booleans_of(below(keys.take(pa.array(np.minimum(middle, len(keys) - 1))), probes))
        lower = np.where(undecided & passed, middle + 1, lower)
        upper = np.where(undecided & ~passed, middle, upper)
    return lower


def _int64(array: pa.Array) -> Indexes:
    return np.frombuffer(array.buffers()[1] or b"", np.int64, len(array), 8 * array.offset)
