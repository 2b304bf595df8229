"""Chooses the size of splits and how many are decoded ahead, within a share of `memory_limit`.

    share      the memory that a scan may use: as much as the block cache, a quarter of
               `memory_limit`
    ahead      as many splits as fit the share, at least one
    split      `SPLIT_ROWS` rows, halved until the decoded rows fit the share

Footers of column files say how many bytes the rows of each block take when they are decoded. A
split that does not fit is not halved further in these cases:

    one block       The split takes at most 1.5 times the bytes of the largest block. A block is
                    always decoded as a whole. In a merge of n rowsets the limit is n times smaller,
                    because a split of each rowset is in memory.
    decoded again   Smaller splits would decode each byte more than `_AGAIN_MAX` times on average
                    (in a merge, `_AGAIN_MERGED_MAX` times), because without a cache a block is
                    decoded once for each split that needs it. Splits of more than 1 GiB are halved
                    all the same.
    one row         A split has at least one row.

The estimated size of a split does not include rows in memory and changes, because their size is
limited when they are written. There is one exception: if changes of a rowset gave a column more
than 256 MB of text, this text is included.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from nyala.cfile.column_reader import ColumnReader
from nyala.rowset.disk_rowset import DiskRowSet
from nyala.schema.conversion.convert import default_array
from nyala.schema.schema import ColumnSchema
from nyala.tablet.scan.split import ScanSpec, ScanUnit

# The share if there is no block cache: that of the default `memory_limit`.
_SHARE_BYTES: Final = 250_000_000
# Below 2 GiB, which is the most text that Arrow's 32-bit offsets can address.
_SHARE_BYTES_MAX: Final = 1 << 30
_AGAIN_MAX: Final = 8.0
_AGAIN_MERGED_MAX: Final = 32.0
_CODE_BYTES: Final = 4.0  # of a dictionary code


def share_bytes(units: Sequence[ScanUnit]) -> int:
    """Return the memory that all splits of one scan may take together, in bytes."""
    limits = {unit.rowset.cache_limit_bytes for unit in units if isinstance(unit.rowset, DiskRowSet)}
    return min([_SHARE_BYTES_MAX, *(limit or _SHARE_BYTES for limit in limits)])


def splits_that_fit(units: Sequence[ScanUnit], spec: ScanSpec, split_rows: int, most: int) -> int:
    """Return how many splits fit the scan's share of memory: at least one, at most `most`.

    Assumes that each split is as large as a split of the largest rowset.
    """
    disk = [unit.rowset for unit in units if isinstance(unit.rowset, DiskRowSet)]
    if all(rowset.cache_limit_bytes is None for rowset in disk):
        return most
    largest = max(disk, key=lambda rowset: rowset.row_count)
    row_bytes = sum(largest.row_bytes(column) for column in _columns(spec, spec.columns))
    split_bytes = max(1, int(row_bytes * min(split_rows, largest.row_count)))
    return max(1, min(most, share_bytes(units) // split_bytes))


class SplitSizer:
    """Chooses the row count of one rowset's splits, so that each takes about `limit_bytes`.

    columns: the columns that are decoded, besides those of the predicate.
    overlap: the number of rowsets that have a split in memory at once, because they are merged.
    """

    def __init__(
        self,
        rowset: DiskRowSet,
        spec: ScanSpec,
        columns: Collection[ColumnSchema],
        limit_bytes: int,
        overlap: int = 1,
    ) -> None:
        self._overlap = overlap
        self._limit_bytes = limit_bytes
        self._per_row, self._readers = _parts(rowset, spec, columns)
        self._text = [reader for reader in self._readers if reader.type.is_variable]

    def rows(self, lower: int, upper: int, split_rows: int) -> int:
        """Return the number of rows per split for the rows [lower, upper).

        This is `split_rows`, halved until each split takes about `limit_bytes` or less. The halving
        stops earlier if smaller splits would decode the same blocks too often. The range must be
        inside one split of `split_rows` rows.
        """
        whole = np.array([lower, upper])
        largest = self._per_row * (upper - lower)
        largest += sum(float(reader.decoded_bytes(whole)[0]) for reader in self._text)
        if largest <= self._limit_bytes:
            return split_rows
        blocks = [reader.footer.block_bytes_max(lower, upper) for reader in self._readers]
        enough = max(self._limit_bytes, 1.5 * max(blocks, default=0.0) / self._overlap)
        again_max = _AGAIN_MAX if self._overlap == 1 else _AGAIN_MERGED_MAX
        while split_rows > 1 and largest > enough:
            if largest <= _SHARE_BYTES_MAX and self._decoded_again(split_rows // 2) > again_max:
                break
            split_rows //= 2
            largest = self._largest(lower, upper, split_rows)
        return split_rows

    def _largest(self, lower: int, upper: int, rows: int) -> float:
        """Estimate how many bytes of memory the largest split of the rows [lower, upper) takes.

        rows: the number of rows per split.
        """
        borders = np.clip(np.arange(lower // rows, -(-upper // rows) + 1) * rows, lower, upper)
        sizes = self._per_row * np.diff(borders)
        for reader in self._text:
            sizes += reader.decoded_bytes(borders)
        return float(sizes.max())

    def _decoded_again(self, rows: int) -> float:
        """Return how many times a byte is decoded on average, if a split has `rows` rows.

        Without a cache, a block is decoded as a whole for each split that has some of its rows.
        """
        decoded = sum(max(_block_bytes(reader), reader.row_bytes * rows) for reader in self._readers)
        return decoded / max(1.0, sum(reader.row_bytes for reader in self._readers) * rows)


def _parts(
    rowset: DiskRowSet, spec: ScanSpec, columns: Collection[ColumnSchema]
) -> tuple[float, list[ColumnReader]]:
    """Return (bytes per row in memory, readers of the columns that the scan decodes).

    The caller adds the bytes of text in the base data, which it gets from the column readers. All
    other values count in the bytes per row, also text that was changed after the base data was
    written. A column that is read as dictionary codes has no reader, but its codes count.
    """
    per_row, readers = 0.0, []
    given = {column.name for column in columns} - spec.types.keys()
    # These conditions are evaluated on dictionary codes, or once per dictionary entry.
    as_codes_only = {
        name
        for name, constraint in spec.constraints.items()
        if constraint.lower is not None or constraint.upper is not None or constraint.null == "only"
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
    """Return all columns that the scan reads: `columns`, and those of its predicate."""
    names = {column.name for column in columns}
    others = () if spec.predicate is None else sorted(spec.predicate.columns - names)
    return [*columns, *map(spec.schema.by_name, others)]


def _block_bytes(reader: ColumnReader) -> float:
    return reader.row_bytes * min(reader.rows_per_block, reader.row_count)


def overlap_depth(units: Sequence[ScanUnit]) -> int:
    """Return the largest number of rowsets on disk whose key bounds contain the same key."""
    metas = [unit.rowset.meta for unit in units if isinstance(unit.rowset, DiskRowSet)]
    begins = sorted(meta.key_min for meta in metas)
    ends = sorted(meta.key_max for meta in metas)
    most = ended = 0
    for begun, key in enumerate(begins, 1):
        while ends[ended] < key:
            ended += 1
        most = max(most, begun - ended)
    return max(most, 1)
