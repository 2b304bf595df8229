"""LongColumn: a column of a batch that has too much text for one Arrow array.

An Arrow string array holds at most 2 GiB, because its offsets have 32 bits. For more text, pyarrow
raises an error, or even reads past the end of memory. So a LongColumn keeps the arrays that the
user gave, and converts one slice of `max_slice_bytes` at a time:

    given      the user's arrays of any size and layout; nothing is copied
    checked    slice by slice: each slice is converted, checked and freed
    written    `slice(begin, length).array()` converts the rows of each new file once more

A dictionary or run-end-encoded array is kept as its distinct entries, and the position of an entry
for each row.
`take`, `slice` and `joined` only compute positions. They read no text.

Invariants
    LC1 `array()` of a slice equals the same slice of the whole column after `cast_array`.
    LC2 The sources are the user's memory. A LongColumn itself needs 4 bytes per source value, and 8
        bytes per row after a `take`.
    LC3 A LongColumn is immutable, and any thread may read it.
Code that keeps rows after the user's call must copy them (`PreparedOperation.borrowed`).
Source: Apache Arrow columnar format, "Variable-size Binary Layout" and "Variable-size Binary View
Layout".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.errors import VALUE_TOO_LARGE
from nyala.schema.conversion.array_cast import Failure, cast_array, check_extension_type
from nyala.schema.limits import Limits
from nyala.schema.types import ColumnType

__all__ = ["TEXT_IDS", "Column", "LongColumn", "joined", "long_column", "row_slices", "slice_bounds"]

Rows: TypeAlias = npt.NDArray[np.int64]

# A larger value fails before it is converted.
_CELL_BYTES_MAX: Final = 1 << 30
_SIZE_MAX: Final = (1 << 32) - 1
_VIEW: Final = np.dtype("V16")
_NOWHERE: Final = -1

# Arrow's type id of extension types; pyarrow has no name for it.
_EXTENSION: Final = 31
_VIEWS: Final = (pa.lib.Type_STRING_VIEW, pa.lib.Type_BINARY_VIEW)
_OFFSETS: Final[Mapping[int, str]] = {
    pa.lib.Type_STRING: "<i4",
    pa.lib.Type_BINARY: "<i4",
    pa.lib.Type_LARGE_STRING: "<i8",
    pa.lib.Type_LARGE_BINARY: "<i8",
}
TEXT_IDS: Final = {
    *_VIEWS,
    *_OFFSETS,
    pa.lib.Type_FIXED_SIZE_BINARY,
    pa.lib.Type_DICTIONARY,
    pa.lib.Type_RUN_END_ENCODED,
    _EXTENSION,
}


class LongColumn:
    """A column of type `type` that may have more than 2 GiB of text.

    It has the methods of an Arrow array that writes use: `len`, `nbytes`, `take`, `slice`.
    """

    __slots__ = ("_begin", "_length", "_limits", "_rows", "_sizes", "_sources", "_starts", "type")

    def __init__(
        self, sources: Sequence[pa.Array], type: ColumnType, limits: Limits, rows: Rows | None = None
    ) -> None:
        """Create a column of type `type`.

        sources: arrays that `cast_array` accepts for `type`, but not dictionary or run-end-encoded
        arrays.
        rows:    for each row its position in the concatenated sources, or -1 for NULL. None: all
                 values in order.
        """
        self.type: Final = type
        self._sources: Final = tuple(sources)
        self._limits: Final = limits
        self._starts: Final = np.cumsum([0, *map(len, sources)])
        self._sizes: Final = np.concatenate([np.empty(0, np.uint32), *map(_sizes, sources)])
        self._rows: Rows | None = rows
        self._begin: int = 0
        self._length: int = int(self._starts[-1]) if rows is None else len(rows)

    def _with(self, rows: Rows | None, begin: int, length: int) -> LongColumn:
        made = object.__new__(LongColumn)
        for name in ("type", "_sources", "_limits", "_starts", "_sizes"):
            object.__setattr__(made, name, getattr(self, name))
        made._rows, made._begin, made._length = rows, begin, length
        return made

    def __len__(self) -> int:
        return self._length

    @property
    def nbytes(self) -> int:
        """The number of bytes that the column would take as one Arrow array."""
        return self.text_bytes(0, self._length) + 4 * self._length

    def text_bytes(self, lower: int, upper: int) -> int:
        """Return the approximate number of text bytes in the rows [lower, upper)."""
        return int(self._sizes_of(lower, upper).sum(dtype=np.int64))

    def _sizes_of(self, lower: int, upper: int) -> npt.NDArray[np.uint32]:
        if self._rows is None:
            return self._sizes[self._begin + lower : self._begin + upper]
        rows = self._rows[lower:upper]
        sizes = self._sizes.take(rows, mode="clip") if len(self._sizes) else np.zeros(len(rows), np.uint32)
        return np.where(rows < 0, np.uint32(0), sizes)

    def take(self, indices: Any) -> LongColumn:
        """Return a column of the rows at `indices`, which are integers without NULL."""
        places = np.asarray(indices, np.int64)
        rows = places + self._begin if self._rows is None else self._rows[places]
        return self._with(rows, 0, len(rows))

    def slice(self, offset: int, length: int | None = None) -> LongColumn:
        length = self._length - offset if length is None else min(length, self._length - offset)
        if self._rows is None:
            return self._with(None, self._begin + offset, length)
        return self._with(self._rows[offset : offset + length], 0, length)

    def parts(self) -> Iterator[LongColumn]:
        """Yield slices of at most `max_slice_bytes` of text. A row with more text is its own slice."""
        for lower, upper in slice_bounds(self._sizes_of(0, self._length), self._limits.max_slice_bytes):
            yield self.slice(lower, upper - lower)

    def array(self) -> pa.Array:
        """Convert the rows to one canonical array; failed values become NULL. The text must be less
        than 2 GiB.
        """
        if self._rows is None:
            end = self._begin + self._length
            parts = [
                self._cast(source, lower, upper)
                for source, lower, upper in self._source_slices(self._begin, end)
            ]
            return _concat(parts, self.type)
        wanted, back = np.unique(self._rows, return_inverse=True)
        has_null = bool(len(wanted)) and wanted[0] < 0
        wanted = wanted[int(has_null) :]
        parts = [
            self._cast(_take(self._sources[number], wanted[lower:upper] - self._starts[number]))
            for number, lower, upper in _source_ranges(np.searchsorted(wanted, self._starts))
        ]
        values = _concat(parts, self.type)
        if has_null:
            return values.take(pa.array(back - 1, mask=back == 0))
        return values if len(back) == len(wanted) and _ascends(self._rows) else values.take(pa.array(back))

    def converted(self) -> tuple[pa.Array, list[Failure]]:
        """Convert the user's text to one array of a type such as date; also return the failed rows.

        Not for text types. Not supported for a slice of a column.
        """
        values: list[pa.Array] = []
        failures = list(self._failures(values))
        array = _concat(values, self.type)
        if self._rows is not None:
            array = array.take(pa.array(self._rows, mask=self._rows < 0))
        return array, self._by_row(failures)

    def failures(self) -> list[Failure]:
        """Return the errors of the rows whose values cannot be converted to the column's type.

        Converts the whole column, and discards the converted values.
        Not supported for a slice of a column.
        """
        return self._by_row(list(self._failures(None)))

    def null_rows(self) -> Rows:
        """Return the positions of the rows that are NULL in the user's data."""
        if not any(source.null_count for source in self._sources):
            return np.empty(0, np.int64) if self._rows is None else np.flatnonzero(self._rows < 0)
        null = np.concatenate([source.is_null().to_numpy(zero_copy_only=False) for source in self._sources])
        if self._rows is None:
            return np.flatnonzero(null[self._begin : self._begin + self._length])
        return np.flatnonzero((self._rows < 0) | null.take(self._rows, mode="clip"))

    def _failures(self, values: list[pa.Array] | None) -> Iterator[Failure]:
        """Convert the user's arrays (the sources) slice by slice, and yield the rows that fail.

        The row numbers of a failure count the values of all sources, one source after another.

        values: receives the converted arrays; None discards them.
        """
        for number, source in enumerate(self._sources):
            start, end = self._starts[number], self._starts[number + 1]
            sizes = self._sizes[start:end]
            for lower, upper in slice_bounds(sizes, self._limits.max_slice_bytes):
                if self.type.is_variable and sizes[lower] > _CELL_BYTES_MAX:
                    yield Failure(
                        np.array([start + lower]), VALUE_TOO_LARGE, [self._too_large(source, lower)]
                    )
                    continue
                array, failures = self._converted(source, lower, upper)
                if values is not None:
                    values.append(array)
                for failure in failures:
                    yield Failure(failure.rows + (start + lower), failure.code, failure.messages)

    def _by_row(self, failures: list[Failure]) -> list[Failure]:
        rows = self._rows
        if rows is None or not failures:
            return failures
        found: list[Failure] = []
        for failure in failures:
            place = np.full(len(self._sizes), _NOWHERE)
            place[failure.rows] = np.arange(len(failure.rows))
            hit = np.where(rows < 0, _NOWHERE, place.take(rows, mode="clip"))
            at = np.flatnonzero(hit >= 0)
            if len(at):
                found.append(
                    Failure(at, failure.code, [failure.messages[number] for number in hit[at].tolist()])
                )
        return found

    def _too_large(self, source: pa.Array, row: int) -> str:
        return (
            f"the value has {_exact_size(source, row)} bytes, more than the limit of "
            f"{self._limits.max_cell_bytes} per cell (max_cell_bytes)"
        )

    def _source_slices(self, begin: int, end: int) -> Iterator[tuple[pa.Array, int, int]]:
        for number, source in enumerate(self._sources):
            start = int(self._starts[number])
            lower, upper = max(begin - start, 0), min(end - start, len(source))
            if lower < upper:
                yield source, lower, upper

    def _converted(self, source: pa.Array, lower: int, upper: int) -> tuple[pa.Array, list[Failure]]:
        piece = _with_offsets_from_0(source.slice(lower, upper - lower))
        return cast_array(piece, self.type, self._limits.max_cell_bytes)

    def _cast(self, source: pa.Array, lower: int = 0, upper: int | None = None) -> pa.Array:
        return self._converted(source, lower, len(source) if upper is None else upper)[0]


Column: TypeAlias = pa.Array | LongColumn
"""A column of a batch during a write: an array of the canonical type, or a `LongColumn`."""


def long_column(data: pa.Array | pa.ChunkedArray, type: ColumnType, limits: Limits) -> LongColumn | None:
    """Return the data as a LongColumn; None if it has at most `max_slice_bytes` of text.

    Raises: SchemaError for an extension type, such as a UUID, that `type` cannot hold.
    Cost: one pass over the lengths of views and of dictionary entries; no pass for arrays with
    offsets.
    """
    if data.type.id not in TEXT_IDS:
        return None
    check_extension_type(data.type, type)
    chunks = data.chunks if isinstance(data, pa.ChunkedArray) else [data]
    if sum(map(_text_bytes, chunks)) <= limits.max_slice_bytes:
        return None
    made = _from_chunks(chunks, type, limits)
    # `_text_bytes` assumes the longest entry of a dictionary in every row, so the column may be
    # shorter.
    return made if made.text_bytes(0, len(made)) > limits.max_slice_bytes else None


def joined(columns: Sequence[Column], type: ColumnType, limits: Limits) -> LongColumn:
    """Concatenate LongColumns and canonical arrays to one LongColumn."""
    sources: list[pa.Array] = []
    rows: list[Rows] = []
    start = 0
    for column in columns:
        if isinstance(column, LongColumn):
            own = column._rows
            own = np.arange(column._begin, column._begin + len(column)) if own is None else own
            rows.append(np.where(own < 0, own, own + start))
            sources += column._sources
            start += int(column._starts[-1])
        else:
            rows.append(np.arange(start, start + len(column)))
            sources.append(column)
            start += len(column)
    return LongColumn(sources, type, limits, np.concatenate(rows))


def row_slices(columns: Mapping[str, Column], count: int) -> Iterator[tuple[int, int, dict[str, pa.Array]]]:
    """Divide a batch into slices whose columns fit into Arrow arrays.

    Yields (lower, upper, arrays by name) for each slice. A batch without a LongColumn is one slice.
    """
    long = {name: column for name, column in columns.items() if isinstance(column, LongColumn)}
    if not long:
        yield 0, count, dict(columns)
        return
    sizes = np.zeros(count, np.int64)
    for column in long.values():
        sizes += column._sizes_of(0, count)
    limit = next(iter(long.values()))._limits.max_slice_bytes
    for lower, upper in slice_bounds(sizes, limit):
        part = {name: column.slice(lower, upper - lower) for name, column in columns.items()}
        arrays = {
            name: piece.array() if isinstance(piece, LongColumn) else piece for name, piece in part.items()
        }
        yield lower, upper, arrays


def slice_bounds(sizes: npt.NDArray[Any], limit: int) -> Iterator[tuple[int, int]]:
    """Yield slices [lower, upper) of rows whose `sizes` have a sum of at most `limit`.

    A larger row is a slice of its own. Without rows, the function yields one empty slice.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    lower = reached = 0
    while True:
        upper = max(int(np.searchsorted(ends, reached + limit, side="right")), lower + 1)
        upper = min(upper, len(ends))
        yield lower, upper
        if upper == len(ends):
            return
        lower, reached = upper, int(ends[upper - 1])


# --- sources ----------------------------------------------------------------------------------------


def _text_bytes(array: pa.Array) -> int:
    """Return an upper bound for the number of text bytes in all rows."""
    id = array.type.id
    if id in _OFFSETS:
        ends = _offsets(array)
        return int(ends[-1]) - int(ends[0]) if len(ends) else 0
    if id in _VIEWS:
        return int(_sizes(array).sum(dtype=np.int64))
    if id == pa.lib.Type_FIXED_SIZE_BINARY:
        return int(array.type.byte_width * len(array))
    if id == _EXTENSION:
        return _text_bytes(array.storage)
    if id in (pa.lib.Type_DICTIONARY, pa.lib.Type_RUN_END_ENCODED):
        entries = array.dictionary if id == pa.lib.Type_DICTIONARY else array.values
        if isinstance(entries, pa.ExtensionArray):
            entries = entries.storage
        if entries.type.id not in TEXT_IDS or not len(entries):
            return 0
        longest = _sizes(entries).max() if entries.type.id in (*_OFFSETS, *_VIEWS) else _text_bytes(entries)
        return int(longest) * len(array)
    return 0


def _from_chunks(chunks: Sequence[pa.Array], type: ColumnType, limits: Limits) -> LongColumn:
    sources: list[pa.Array] = []
    rows: list[Rows] = []
    starts: dict[tuple[Any, ...], int] = {}
    start = 0
    is_plain = True
    for chunk in chunks:
        entries, positions = _entries(chunk)
        is_plain = is_plain and positions is None
        # Chunks often share a dictionary.
        known = (len(entries), entries.offset, *[part and part.address for part in entries.buffers()])
        if positions is None or known not in starts:
            starts[known] = start
            sources.append(entries)
            start += len(entries)
        if positions is None:
            positions = np.arange(len(entries))
        rows.append(np.where(positions < 0, positions, positions + starts[known]))
    return LongColumn(sources, type, limits, None if is_plain else np.concatenate(rows))


def _entries(array: pa.Array) -> tuple[pa.Array, Rows | None]:
    """Return the plain values of an array, and the position of each row's value in them.

    Plain values have no dictionary, runs or extension type. The positions are None if row i has
    value i.
    """
    id = array.type.id
    if id == _EXTENSION:
        return _entries(array.storage)
    if id == pa.lib.Type_DICTIONARY:
        codes = array.indices
        positions = (codes.fill_null(0) if codes.null_count else codes).to_numpy(zero_copy_only=False)
        positions = positions.astype(np.int64)
        if codes.null_count:
            positions[codes.is_null().to_numpy(zero_copy_only=False)] = _NOWHERE
        entries, inner = _entries(array.dictionary)
    elif id == pa.lib.Type_RUN_END_ENCODED:
        ordinals = np.arange(array.offset, array.offset + len(array))
        positions = np.searchsorted(array.run_ends.to_numpy(), ordinals, side="right")
        entries, inner = _entries(array.values)
    else:
        return array, None
    if inner is None:
        return entries, positions
    return entries, np.where(positions < 0, positions, inner.take(positions, mode="clip"))


def _offsets(array: pa.Array) -> npt.NDArray[Any]:
    buffer = array.buffers()[1]
    dtype = np.dtype(_OFFSETS[array.type.id])
    if buffer is None or not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(buffer, dtype, len(array) + 1, array.offset * dtype.itemsize)


def _sizes(array: pa.Array) -> npt.NDArray[np.uint32]:
    """Return the size of each value in bytes."""
    id = array.type.id
    if id in _OFFSETS:
        sizes = np.diff(_offsets(array))
        return (np.minimum(sizes, _SIZE_MAX) if sizes.itemsize == 8 else sizes).astype(np.uint32)
    if id in _VIEWS:
        lengths = _views(array)["length"]
        if array.null_count:  # the length of a NULL is undefined
            lengths = np.where(array.is_null().to_numpy(zero_copy_only=False), 0, lengths)
        return np.ascontiguousarray(lengths).view(np.uint32)
    width = array.type.byte_width if id == pa.lib.Type_FIXED_SIZE_BINARY else 0
    return np.full(len(array), width, np.uint32)


_LENGTH_FIRST: Final = np.dtype([("length", "<i4"), ("rest", "V12")])


def _views(array: pa.Array) -> npt.NDArray[Any]:
    buffer = array.buffers()[1]
    if buffer is None:
        return np.empty(0, _LENGTH_FIRST)
    return np.frombuffer(buffer, _LENGTH_FIRST, len(array), array.offset * _VIEW.itemsize)


def _exact_size(array: pa.Array, row: int) -> int:
    if array.type.id in _OFFSETS:
        return int(np.diff(_offsets(array.slice(row, 1)))[0])
    return int(_sizes(array.slice(row, 1))[0])


def _take(source: pa.Array, positions: Rows) -> pa.Array:
    """Return the values at these positions. pyarrow 26 has no `take` for view arrays."""
    if source.type.id not in _VIEWS:
        return source.take(pa.array(positions))
    validity, _, *data = source.buffers()
    if source.null_count:
        valid = source.is_valid().to_numpy(zero_copy_only=False)[positions]
        validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
    views = _views(source)[positions]
    return pa.Array.from_buffers(
        source.type, len(positions), [validity if source.null_count else None, pa.py_buffer(views), *data]
    )


def _with_offsets_from_0(array: pa.Array) -> pa.Array:
    """Return large text with offsets that begin at 0, without a copy of the text.

    pyarrow casts large text to string only if its last offset fits in 32 bits, also for a slice.
    """
    if array.type.id not in (pa.lib.Type_LARGE_STRING, pa.lib.Type_LARGE_BINARY) or not len(array):
        return array
    ends = _offsets(array)
    if ends[-1] < 1 << 31:
        return array
    validity = None
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
    data = array.buffers()[2].slice(int(ends[0]), int(ends[-1] - ends[0]))
    return pa.Array.from_buffers(array.type, len(array), [validity, pa.py_buffer(ends - ends[0]), data])


def _concat(parts: Sequence[pa.Array], type: ColumnType) -> pa.Array:
    if len(parts) == 1:
        return parts[0]
    return pa.concat_arrays(parts) if parts else pa.array([], type.arrow)


def _source_ranges(bounds: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Yield (i, bounds[i], bounds[i + 1]) for each source array i that has at least one wanted row.

    bounds: the wanted rows of source i are at the positions [bounds[i], bounds[i + 1]).
    """
    for number, (lower, upper) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        if lower < upper:
            yield number, lower, upper


def _ascends(rows: Rows) -> bool:
    return bool((rows[1:] > rows[:-1]).all())
