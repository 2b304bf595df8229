"""How many rows a window of a scan has, and how many windows are decoded ahead, in a share of `memory_limit`.

    share      what the block cache may hold: a quarter of `memory_limit`
    ahead      as many windows as the share holds, or one
    window     `WINDOW_ROWS` rows; half of that, or half of the half …, where the decoded rows take more than the share

Footers of column files say how many bytes the rows of each block take when they are decoded. Windows are cut to
halves, so they nest, in one another and in blocks. A window is not cut where that would not help:

    one block        is decoded as a whole: a window that takes less than the largest block is not smaller for it,
                     unless many rowsets have one each, which are merged
    blocks again     each window decodes all blocks that it touches, unless they fit the cache. No window is so small
                     that more than `_AGAIN_MAX` times the bytes of the rows are decoded, or `_AGAIN_MERGED_MAX`
                     times where windows of several rowsets are held at once
    one row          always passes

Text of changes counts where a rowset has more than 256 MB of it, as if each file changed each row once.

Left out: other changes; rows that are in memory only, whose bytes are bounded when they are written.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from nyala.cfile.column_reader import ColumnReader
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.schema.conversion.convert import default_array
from nyala.schema.schema import ColumnSchema
from nyala.tablet.scan.window import ScanSpec, ScanUnit

__all__ = [
    "Fitting",
    "fit_together",
    "most_at_once",
    "share_bytes",
    "windows_that_fit",
]

# Of a reader without a cache, and so without a limit: what the default limit would give it.
_SHARE_BYTES: Final = 250_000_000
# Arrow's text has offsets of 32 bits; and so much of it is enough for one batch, whatever memory there is.
_SHARE_BYTES_MAX: Final = 1 << 30
_AGAIN_MAX: Final = 8.0
_AGAIN_MERGED_MAX: Final = 32.0
_CODE_BYTES: Final = 4.0


def share_bytes(units: Sequence[ScanUnit]) -> int:
    """What the windows of a scan may take together."""
    limits = {unit.rowset.cache_limit_bytes for unit in units if isinstance(unit.rowset, DiskRowSet)}
    return min([_SHARE_BYTES_MAX, *(limit or _SHARE_BYTES for limit in limits)])


def windows_that_fit(units: Sequence[ScanUnit], spec: ScanSpec, window_rows: int, most: int) -> int:
    """How many windows of the largest rowset fit the share: at least one, and at most `most`."""
    disk = [unit.rowset for unit in units if isinstance(unit.rowset, DiskRowSet)]
    if all(rowset.cache_limit_bytes is None for rowset in disk):
        return most
    largest = max(disk, key=lambda rowset: rowset.row_count)
    row_bytes = sum(largest.row_bytes(column) for column in _columns(spec, spec.columns))
    window_bytes = max(1, int(row_bytes * min(window_rows, largest.row_count)))
    return max(1, min(most, share_bytes(units) // window_bytes))


def fit_together(units: Sequence[ScanUnit], spec: ScanSpec) -> bool:
    """Whether all rows of these units, which are few, fit the share at once. Cost: the footers of the columns."""
    size = 0.0
    for unit in units:
        assert isinstance(unit.rowset, DiskRowSet)
        for column in spec.columns:
            reader = unit.rowset.base_column(column.id)
            if reader is None:
                size += default_array(column, 1, "read").nbytes * (unit.upper - unit.lower)
            else:
                size += float(reader.decoded_bytes(np.array([unit.lower, unit.upper]))[0])
    return size <= share_bytes(units)


class Fitting:
    """How many rows windows of one rowset have in one scan, so that each takes about `limit_bytes`.

    columns: those that are decoded besides the predicate's.
    at_once: of so many rowsets there is one window each, until their rows are merged.
    """

    def __init__(
        self,
        rowset: DiskRowSet,
        spec: ScanSpec,
        columns: Collection[ColumnSchema],
        limit_bytes: int,
        at_once: int = 1,
    ) -> None:
        self._at_once = at_once
        self._limit_bytes = limit_bytes
        self._per_row, self._readers = _parts(rowset, spec, columns)
        self._text = [reader for reader in self._readers if reader.type.is_variable]

    def rows(self, lower: int, upper: int, window_rows: int) -> int:
        """The row count of the windows that the rows [lower, upper) are to be read in: `window_rows`, halved until each
        fits. All of these rows are in one window of `window_rows`."""
        whole = np.array([lower, upper])
        largest = self._per_row * (upper - lower)
        largest += sum(float(reader.decoded_bytes(whole)[0]) for reader in self._text)
        if largest <= self._limit_bytes:
            return window_rows
        blocks = [reader.block_bytes_max(lower, upper) for reader in self._readers]
        enough = max(self._limit_bytes, 1.5 * max(blocks, default=0.0) / self._at_once)
        again_max = _AGAIN_MAX if self._at_once == 1 else _AGAIN_MERGED_MAX
        while window_rows > 1 and largest > enough:
            if largest <= _SHARE_BYTES_MAX and self._decoded_again(window_rows // 2) > again_max:
                break
            window_rows //= 2
            largest = self._largest(lower, upper, window_rows)
        return window_rows

    def _largest(self, lower: int, upper: int, rows: int) -> float:
        """Bytes of the largest window of the rows [lower, upper), where windows have `rows` rows."""
        borders = np.clip(np.arange(lower // rows, -(-upper // rows) + 1) * rows, lower, upper)
        sizes = self._per_row * np.diff(borders)
        for reader in self._text:
            sizes += reader.decoded_bytes(borders)
        return float(sizes.max())

    def _decoded_again(self, rows: int) -> float:
        """How often a byte is decoded where windows of so many rows find no block in the cache."""
        decoded = sum(max(_block_bytes(reader), reader.row_bytes * rows) for reader in self._readers)
        return decoded / max(1.0, sum(reader.row_bytes for reader in self._readers) * rows)


def _parts(
    rowset: DiskRowSet, spec: ScanSpec, columns: Collection[ColumnSchema]
) -> tuple[float, list[ColumnReader]]:
    """(bytes of a row in columns that take the same for each, readers of all columns that are read as values)."""
    per_row, readers = 0.0, []
    given = {column.name for column in columns} - spec.types.keys()
    # Columns whose predicate is evaluated on dictionary codes, or once for each entry.
    as_codes_only = {
        name
        for name, demand in spec.constraints.items()
        if demand.lower is not None or demand.upper is not None or demand.null == "only"
    }
    named = {column.name for column in columns}
    for column in _columns(spec, columns):
        reader = rowset.base_column(column.id)
        if rowset.changes.has_much_text(column.id, spec.snapshot):
            per_row += rowset.changes.text_row_bytes(column.id, spec.snapshot)
        if reader is None:
            per_row += default_array(column, 1, "read").nbytes
            continue
        as_codes = (
            reader.has_dictionary
            and column.name not in given
            and (column.name in named or column.name in as_codes_only)
            and reader.type == column.type
            and not rowset.has_changes(column.id, spec.snapshot)
        )
        if as_codes:
            per_row += _CODE_BYTES
            continue
        per_row += 0.0 if reader.type.is_variable else reader.row_bytes
        readers.append(reader)
    return per_row, readers


def _columns(spec: ScanSpec, columns: Collection[ColumnSchema]) -> list[ColumnSchema]:
    """The columns, and those of the predicate."""
    names = {column.name for column in columns}
    others = () if spec.predicate is None else sorted(spec.predicate.columns - names)
    return [*columns, *map(spec.schema.by_name, others)]


def _block_bytes(reader: ColumnReader) -> float:
    return reader.row_bytes * min(reader.rows_per_block, reader.row_count)


def most_at_once(units: Sequence[ScanUnit]) -> int:
    """How many rowsets on disk, at most, have rows between the same two keys."""
    metas = [unit.rowset.meta for unit in units if isinstance(unit.rowset, DiskRowSet)]
    begins = sorted(meta.key_min for meta in metas)
    ends = sorted(meta.key_max for meta in metas)
    most = ended = 0
    for begun, key in enumerate(begins, 1):
        while ends[ended] < key:
            ended += 1
        most = max(most, begun - ended)
    return max(most, 1)
