"""Writes rows with their history as a DiskRowSet: a base file, and an UNDO file if there is history.

The input is a `RowSetImage`: rows in memory, in key order, with their history.

    <name>.base         base columns; encoded keys (composite keys only); bloom filter (unless rows are
                        very narrow); LIVENESS if a row is dead
    <name>.base.undo    UNDO records. Without this file, the rows exist at every moment of the past.

When `write_rowset` returns, both files are complete and synced. The caller must sync their folder,
once for all files of a flush, before the catalogue names the files. Formats: docs/format/rowset.md,
docs/format/cfile.md, docs/format/delta.md.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.cfile import format
from nyala.cfile.column import BASE, KEY, ColumnKey, ColumnWriteSpec
from nyala.cfile.footer import ColumnFooter
from nyala.cfile.writer import CFileWriter, FirstKeys
from nyala.delta.delta_file import LIVENESS_TYPE, WrittenDelta, write_delta_file
from nyala.delta.run import LIVENESS
from nyala.env.files import Files
from nyala.keys.encoded_keys import EncodedKeys
from nyala.rowset.image import RowSetImage
from nyala.rowset.meta import RowSetMeta
from nyala.schema.schema import ColumnSchema, Schema
from nyala.schema.types import ColumnType

_ENCODED: Final = ColumnType("binary")
_SPARSE_KEY_BYTES_MAX: Final = 256
_FILTERED_ROW_BYTES_MIN: Final = 2
_KEYS_SHARE_MAX: Final = 1 / 24


@dataclass(frozen=True)
class WrittenRowSet:
    """The files of a rowset that was written. Paths are relative to the store's folder."""

    meta: RowSetMeta
    undo: WrittenDelta | None
    undo_path: str | None

    @property
    def paths(self) -> list[str]:
        """The base file, and the UNDO file if there is one."""
        return [self.meta.path] if self.undo_path is None else [self.meta.path, self.undo_path]


def write_rowset(
    files: Files,
    root: str,
    path: str,
    rowset_id: int,
    tablet_id: int,
    image: RowSetImage,
    schema: Schema,
    *,
    deltas_durable: int,
) -> WrittenRowSet:
    """Write the rows of the image as rowset `rowset_id` of the store in the folder `root`.

    path:           the base file, relative to `root`; a new name that ends in `.base`.
    deltas_durable: the moment of the image. The files have all changes up to it, and no later ones.
    Raises: StorageError. It may leave a file behind, which the next open of the store removes.
    """
    count = image.row_count
    assert count, "a rowset must have rows"
    writer = CFileWriter(files, os.path.join(root, path))
    try:
        footers: dict[int, ColumnFooter] = {
            column.id: writer.append_column(
                column_spec(column, schema),
                image.columns[column.id],
                first_keys=_first_keys(column, schema, image.keys),
            )
            for column in schema.columns
        }
        if schema.key_count > 1:
            key_rows_log2 = min(footers[column_id].sparse_key_rows_log2 for column_id in schema.key_ids)
            writer.append_column(*encoded_keys(image.keys, key_rows_log2, writer.size_bytes / count))
        if bits_per_key := filter_bits_per_key(writer.size_bytes / count):
            writer.append_bloom(image.keys.hash64(), bits_per_key)
        if image.liveness is not None:
            writer.append_column(ColumnWriteSpec(ColumnKey(BASE, 0, LIVENESS), LIVENESS_TYPE), image.liveness)
        base = writer.finish(sync=True)
    except BaseException:
        writer.abort()
        raise
    undo, undo_path = None, None
    runs = {column_id: run for column_id, run in image.undo.items() if len(run)}
    if runs:
        undo_path = f"{path}.undo"
        types: dict[int, ColumnType] = {column.id: column.type for column in schema.columns}
        try:
            undo = write_delta_file(files, os.path.join(root, undo_path), "undo", runs, types)
        except BaseException:
            files.unlink(os.path.join(root, path), missing_ok=True)
            raise
    meta = RowSetMeta(
        id=rowset_id,
        tablet_id=tablet_id,
        row_count=count,
        key_min=image.keys.at(0),
        key_max=image.keys.at(count - 1),
        deltas_durable=deltas_durable,
        path=path,
        file_id=base.file_id,
        columns=base.columns,
        size_bytes=base.size_bytes,
        schema_version=schema.version,
    )
    return WrittenRowSet(meta, undo, undo_path)


def filter_bits_per_key(row_bytes: float) -> int:
    """Return the number of bits per key for a rowset's bloom filter; 0: no filter.

    row_bytes: the average size of a row on disk.

    A filter has as many bits per key as a row has bytes, but at least 8 and at most 16. So for rows
    of 8 to 16 bytes, it adds an eighth to the size. Rows of less than two bytes get no filter,
    because 8 bits per key would add more than half. Such short rows have nearly consecutive keys,
    which are cheap to search without a filter.
    """
    if row_bytes < _FILTERED_ROW_BYTES_MIN:
        return 0
    return min(max(int(row_bytes), format.BLOOM_BITS_PER_KEY_MIN), format.BLOOM_BITS_PER_KEY)


def column_spec(column: ColumnSchema, schema: Schema) -> ColumnWriteSpec:
    """Return how to write the base values of a column to a file."""
    return ColumnWriteSpec(
        ColumnKey(BASE, 0, column.id),
        column.type,
        column.encoding,
        column.compression,
        column.block_size_bytes,
        schema.key_count > 1 and column.id in schema.key_ids,
    )


def encoded_keys(
    keys: EncodedKeys, key_rows_log2: int, row_bytes: float = math.inf
) -> tuple[ColumnWriteSpec, pa.LargeBinaryArray]:
    """Return (how to store the encoded keys of a composite key, the keys to store).

    The key of every row is stored, or the first key of each group of rows (see `stored_keys`).

    key_rows_log2: a group has 2^key_rows_log2 rows; 0: store every key. If some key has more than
        256 bytes, every key is stored, because reading a group of long keys needs much memory.
    row_bytes: the bytes of the other columns per row. If the stored keys would add more than a 24th
        to this size, groups of numeric keys become twice as large.
    """
    if not key_rows_log2 or (keys.width is None and int(keys.sizes().max()) > _SPARSE_KEY_BYTES_MAX):
        return ColumnWriteSpec(ColumnKey(KEY), _ENCODED), keys.to_binary()
    if key_rows_log2 == format.SPARSE_KEY_ROWS_LOG2 and keys.width is not None:
        if keys.width / (1 << key_rows_log2) > row_bytes * _KEYS_SHARE_MAX:
            key_rows_log2 = format.SPARSE_WIDE_KEY_ROWS_LOG2
    first_keys = keys.take(np.arange(0, len(keys), 1 << key_rows_log2))
    return ColumnWriteSpec(ColumnKey(KEY, key_rows_log2), _ENCODED), first_keys.to_binary()


def _first_keys(column: ColumnSchema, schema: Schema, keys: EncodedKeys) -> FirstKeys | None:
    """Return a function that `CFileWriter` calls to write the key index of `column`.

    The function gets an array of row positions, and returns the encoded keys of these rows. The
    result is None if `column` has no key index. Only a table's single key column has one. If the
    table has a composite key, the key index belongs to the file's column of encoded keys instead.

    keys: the encoded keys of all rows.
    """
    if schema.key_count > 1 or column.id != schema.columns[0].id:
        return None

    def at(ordinals: npt.NDArray[np.int64]) -> pa.LargeBinaryArray:
        return keys.take(ordinals).to_binary()

    return at
