"""Zone maps: the least and greatest value of every block, so that a predicate can skip blocks.

    Z-sound      every value of the block that is neither NULL nor NaN is in [min, max], also if the
                 bounds are shortened
    Z-none       min is None exactly if the block has only NULL and NaN
    Z-open       if only max is None, no upper bound is known

Bounds are canonical scalars (see `nyala.schema.types`). Bounds of text and binary are shortened to
32 bytes, text at a character border. A shortened upper bound is incremented, so that it stays above
the values. Bounds ignore NaN, which is greater than every other value: as an upper bound it would
exclude nothing. A flag says whether the block has a NaN. -0.0 and 0.0 are equal, and a bound may be
either.

If a block has changes in memory or in delta files, its zone map alone does not decide whether it
can be skipped (rule Z1 of `rowset`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala import compute as pc
from nyala.cfile import format
from nyala.cfile.physical import BYTES, FIXED, Physical
from nyala.schema.predicates.constraint import Constraint


@dataclass(frozen=True)
class Zone:
    """The bounds of some values, usually of one block, and the number of rows and of NULLs."""

    min: Any
    max: Any
    null_count: int
    row_count: int
    has_nan: bool = False
    min_truncated: bool = False  # min was shortened: it may be below the least value
    max_truncated: bool = False  # max was shortened: it may be above the greatest value, or None

    def merge(self, other: Zone) -> Zone:
        """Return one zone for the values of both: common bounds, and the sums of rows and NULLs."""
        if other.min is None:
            least, greatest = self, self
        elif self.min is None:
            least, greatest = other, other
        else:
            least = self if self.min <= other.min else other
            open_ended = self if self.max is None else other
            greatest = open_ended if open_ended.max is None else self if self.max >= other.max else other
        return Zone(
            least.min,
            greatest.max,
            self.null_count + other.null_count,
            self.row_count + other.row_count,
            self.has_nan or other.has_nan,
            least.min_truncated,
            greatest.max_truncated,
        )


def zone_of(form: Physical, stored: pa.Array) -> Zone:
    """Return the bounds of the values in `stored`, and the number of rows and of NULLs.

    form, stored: how the values are stored, and the values in this form (`Physical.stored_array`).
    """
    rows, nulls = len(stored), stored.null_count
    if nulls == rows:
        return Zone(None, None, nulls, rows)
    if form.code == format.TYPE_DECIMAL128:
        return Zone(*_decimal128_bounds(stored), nulls, rows)
    if form.kind == FIXED and not nulls:  # for small blocks, Arrow's calls would dominate
        values = form.fixed_values(stored)
        least, greatest = values.min().item(), values.max().item()
        if least == least:  # no NaN
            return Zone(least, greatest, nulls, rows)
    has_nan = False
    if form.type.is_floating:
        # Arrow's min_max ignores quiet NaNs, but a signalling NaN makes it forget the values before
        # it.
        is_nan = pc.is_nan(stored)
        has_nan = bool(pc.any(is_nan).as_py())
        if has_nan:
            stored = stored.filter(pc.invert(is_nan))
            if stored.null_count == len(stored):
                return Zone(None, None, nulls, rows, has_nan)
    bounds = pc.call_function("min_max", [stored])
    least, greatest = bounds["min"].as_py(), bounds["max"].as_py()
    if form.kind == BYTES:
        lower, upper = cut_lower(least, form.type.is_text), cut_upper(greatest, form.type.is_text)
        minimum: Any = lower.decode() if form.type.is_text else lower
        maximum: Any = upper.decode() if form.type.is_text and upper is not None else upper
        return Zone(minimum, maximum, nulls, rows, False, lower != least, upper != greatest)
    return Zone(least, greatest, nulls, rows, has_nan)


def _decimal128_bounds(stored: pa.Array) -> tuple[int, int]:
    stored = stored.drop_null() if stored.null_count else stored
    words = np.frombuffer(stored.buffers()[1], "<u8")[2 * stored.offset :][: 2 * len(stored)].reshape(-1, 2)
    low, high = words[:, 0], words[:, 1].view("<i8")
    # Compare the upper halves. Among equal ones compare the lower halves, which are unsigned.
    high_min, high_max = int(high.min()), int(high.max())
    return (
        (high_min << 64) + int(low[high == high_min].min()),
        (high_max << 64) + int(low[high == high_max].max()),
    )


def _character_border(text: bytes, cut: int) -> int:
    while cut > 0 and text[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut


def cut_lower(value: bytes, is_text: bool) -> bytes:
    """Return a lower bound of `value` with at most 32 bytes: its beginning."""
    if len(value) <= format.ZONE_BOUND_BYTES:
        return value
    cut = format.ZONE_BOUND_BYTES
    return value[: _character_border(value, cut) if is_text else cut]


def cut_upper(value: bytes, is_text: bool) -> bytes | None:
    """Return an upper bound of `value` with at most 32 bytes: its beginning, incremented.

    None if that is impossible, for example if all its bytes are 0xff.
    """
    if len(value) <= format.ZONE_BOUND_BYTES:
        return value
    cut = format.ZONE_BOUND_BYTES
    if not is_text:
        kept = value[:cut].rstrip(b"\xff")
        return kept[:-1] + bytes((kept[-1] + 1,)) if kept else None
    characters = value[: _character_border(value, cut)].decode()
    while characters:
        code_point = ord(characters[-1]) + 1
        if code_point == 0xD800:  # surrogates are not characters; skip them
            code_point = 0xE000
        if code_point <= 0x10FFFF:
            return (characters[:-1] + chr(code_point)).encode()
        characters = characters[:-1]
    return None


_Bounds: TypeAlias = "list[bytes] | npt.NDArray[Any]"
_BOOL_DTYPE: Final = np.dtype("<u1")
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True)
class ZoneMap:
    """The zones of a column's blocks, as one array per field. Immutable."""

    form: Physical
    row_counts: npt.NDArray[np.int64]
    null_counts: npt.NDArray[np.uint32]
    flags: npt.NDArray[np.uint8]
    mins: _Bounds  # in the stored form: NumPy values or bytes; undefined where a flag says that the bound is None
    maxs: _Bounds

    def __len__(self) -> int:
        return len(self.flags)

    def zone(self, block: int) -> Zone:
        flags = int(self.flags[block])
        return Zone(
            self._scalar(self.mins[block]) if flags & format.ZONE_HAS_MIN else None,
            self._scalar(self.maxs[block]) if flags & format.ZONE_HAS_MAX else None,
            int(self.null_counts[block]),
            int(self.row_counts[block]),
            bool(flags & format.ZONE_HAS_NAN),
            bool(flags & format.ZONE_MIN_TRUNCATED),
            bool(flags & format.ZONE_MAX_TRUNCATED),
        )

    def column_zone(self) -> Zone:
        """Return the least and greatest value, row count and NULL count of the whole column."""
        return functools.reduce(Zone.merge, map(self.zone, range(len(self))), Zone(None, None, 0, 0))

    def number_bounds(self) -> tuple[int, int] | None:
        """Return the least and the greatest value of all blocks, as stored integers.

        Return None if the column's type is not an integer, date, timestamp or decimal of 4 or 8
        bytes. Also return None if a block has no bounds, or if a damaged file has a minimum above
        the maximum.
        """
        if not self.form.holds_integers:
            return None
        assert isinstance(self.mins, np.ndarray) and isinstance(self.maxs, np.ndarray)
        both = format.ZONE_HAS_MIN | format.ZONE_HAS_MAX
        if not len(self) or (self.flags & both != both).any() or (self.mins > self.maxs).any():
            return None
        return int(self.mins.min()), int(self.maxs.max())

    def excluded(self, constraint: Constraint) -> npt.NDArray[np.bool_]:
        """Return one bool per block: True if no value in its zone can satisfy the constraint.

        The result is that of `Constraint.excludes_range` for each block.
        Cost: a few NumPy calls for numbers and times. For other types one call per block.
        """
        bounds = self._number_arrays(constraint)
        if bounds is None:
            zones = map(self.zone, range(len(self)))
            excludes = (
                constraint.excludes_range(z.min, z.max, z.null_count, z.row_count, z.has_nan) for z in zones
            )
            return np.fromiter(excludes, np.bool_, len(self))
        mins, maxs = bounds
        no_min, no_max = (self.flags & flag == 0 for flag in (format.ZONE_HAS_MIN, format.ZONE_HAS_MAX))
        if constraint.values is not None:
            values = np.array(constraint.values, mins.dtype)
            first = np.where(no_min, 0, np.searchsorted(values, mins, "left"))
            out: npt.NDArray[np.bool_] = first >= np.where(
                no_max, len(values), np.searchsorted(values, maxs, "right")
            )
        else:
            out = np.zeros(len(self), np.bool_)
            if constraint.lower is not None:
                below = np.less if constraint.lower_inclusive else np.less_equal
                out |= below(maxs, constraint.lower) & ~no_max
            if constraint.upper is not None:
                above = np.greater if constraint.upper_inclusive else np.greater_equal
                out |= above(mins, constraint.upper) & ~no_min
        out |= self.null_counts >= self.row_counts
        if constraint.null == "any":
            out &= self.null_counts == 0
        return out

    def _number_arrays(self, constraint: Constraint) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
        """Return the bounds (mins, maxs) of all blocks as int64, to compare them by NumPy.

        None if the bounds of the blocks or of the constraint are not 64-bit integers.
        """
        if not self.form.holds_integers or constraint.empty or constraint.null == "only":
            return None
        assert isinstance(self.mins, np.ndarray) and isinstance(self.maxs, np.ndarray)
        ends = (constraint.lower, constraint.upper)
        if any(end is not None and not _INT64_MIN <= end <= _INT64_MAX for end in ends):
            return None
        return self.mins.astype(np.int64), self.maxs.astype(np.int64)

    def _scalar(self, stored: Any) -> Any:
        if self.form.code == format.TYPE_DECIMAL128:
            return int.from_bytes(stored.tobytes(), "little", signed=True)
        if self.form.kind == BYTES:
            return stored.decode() if self.form.type.is_text else stored
        if self.form.kind == FIXED:
            return stored.item()
        return bool(stored)

    @staticmethod
    def encode(form: Physical, zones: Sequence[Zone]) -> bytes:
        """Return the bytes of a zone map: null counts (u32), flags (u8), lower and upper bounds."""
        flags = bytes(
            format.ZONE_HAS_MIN * (zone.min is not None)
            | format.ZONE_HAS_MAX * (zone.max is not None)
            | format.ZONE_HAS_NAN * zone.has_nan
            | format.ZONE_MIN_TRUNCATED * zone.min_truncated
            | format.ZONE_MAX_TRUNCATED * zone.max_truncated
            for zone in zones
        )
        counts = np.array([zone.null_count for zone in zones], "<u4").tobytes()
        mins = _encode_bounds(form, [zone.min for zone in zones])
        return counts + flags + mins + _encode_bounds(form, [zone.max for zone in zones])

    @classmethod
    def decode(cls, form: Physical, data: bytes, row_counts: npt.NDArray[np.int64]) -> ZoneMap:
        """Decode the bytes of `encode`. Raises ValueError if they are not a zone map of these blocks."""
        count = len(row_counts)
        if len(data) < 5 * count:
            raise ValueError(
                f"expected at least {5 * count} bytes, for a null count and flags of each of {count} blocks, found "
                f"{len(data)} bytes"
            )
        null_counts = np.frombuffer(data, "<u4", count)
        flags = np.frombuffer(data, np.uint8, count, 4 * count)
        if count and int(flags.max()) & ~format.ZONE_FLAGS_KNOWN:
            raise ValueError(
                f"expected zone flags below {format.ZONE_FLAGS_KNOWN + 1}, found {int(flags.max())}"
            )
        if np.any(null_counts > row_counts):
            raise ValueError("expected no more NULLs than rows in each zone, found more")
        mins, position = _decode_bounds(form, data, 5 * count, count)
        maxs, position = _decode_bounds(form, data, position, count)
        if position != len(data):
            raise ValueError(f"expected a zone map of {position} bytes, found {len(data)}")
        return cls(form, row_counts, null_counts, flags, mins, maxs)


def _encode_bounds(form: Physical, bounds: Sequence[Any]) -> bytes:
    if form.kind == BYTES:
        encoded = [b"" if b is None else b.encode() if form.type.is_text else b for b in bounds]
        return bytes(map(len, encoded)) + b"".join(encoded)
    filled = [0 if b is None else b for b in bounds]
    if form.code == format.TYPE_DECIMAL128:
        return b"".join(b.to_bytes(16, "little", signed=True) for b in filled)
    return np.array(filled, form.dtype if form.kind == FIXED else _BOOL_DTYPE).tobytes()


def _decode_bounds(form: Physical, data: bytes, start: int, count: int) -> tuple[_Bounds, int]:
    if form.kind != BYTES:
        dtype = form.dtype if form.kind == FIXED else _BOOL_DTYPE
        assert dtype is not None
        if len(data) - start < count * dtype.itemsize:
            raise ValueError(
                f"expected {count} bounds of {dtype.itemsize} bytes, found {len(data) - start} bytes"
            )
        return np.frombuffer(data, dtype, count, start), start + count * dtype.itemsize
    if len(data) - start < count:
        raise ValueError(
            f"expected at least {count} bytes, for the length of each of {count} bounds, found "
            f"{len(data) - start} bytes"
        )
    ends = start + count + np.cumsum(np.frombuffer(data, np.uint8, count, start), dtype=np.int64)
    positions = [start + count, *ends.tolist()]
    bounds = [data[a:b] for a, b in itertools.pairwise(positions)]
    if form.type.is_text:
        for bound in bounds:
            try:
                bound.decode()
            except UnicodeDecodeError as error:
                raise ValueError(f"expected bounds in UTF-8, found {bound!r}") from error
    return bounds, positions[-1]
