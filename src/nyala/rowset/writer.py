"""Write an image as a DiskRowSet: one base file, and one UNDO file when there is history.

    <id>.base         base columns · encoded keys (composite keys only) · bloom filter (but for rows that take next to
                      nothing) · LIVENESS when a row is dead
    <id>.base.undo    UNDO records; without it the rows would have been there for ever

Both files are complete and synced on return. Their names are not: the caller syncs the directory, once for all files of
a flush, before the catalogue names them.
Formats: docs/format/rowset.md, docs/format/cfile.md, docs/format/delta.md.
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

__all__ = ["WrittenRowSet", "column_spec", "encoded_keys", "filter_bits_per_key", "write_rowset"]

_ENCODED: Final = ColumnType("binary")
_SPARSE_KEY_BYTES_MAX: Final = 256
_FILTERED_ROW_BYTES_MIN: Final = 2
_SAMPLES_SHARE_MAX: Final = 1 / 24


@dataclass(frozen=True)
class WrittenRowSet:
    """Finished files. Paths are relative to the store's folder, as in the catalogue."""

    meta: RowSetMeta
    undo: WrittenDelta | None
    undo_path: str | None

    @property
    def paths(self) -> list[str]:
        """All files, for whoever has to remove them when the flush fails after all."""
        return [self.meta.path] if self.undo_path is None else [self.meta.path, self.undo_path]


def write_rowset(
    files: Files,
    root: str,
    directory: str,
    rowset_id: int,
    tablet_id: int,
    image: RowSetImage,
    schema: Schema,
    *,
    deltas_durable: int,
    name: str | None = None,
) -> WrittenRowSet:
    """Write the image's rows as the rowset `rowset_id`, into `directory` of the store in the folder `root`.

    name:           of the files, without suffix; by itself the rowset's id.
    deltas_durable: the moment of the image (rule R2): later changes of its rows are not in these files.
    Raises: StorageError; then no file of it is left, or one that nothing names and the next open removes.
    """
    count = image.row_count
    assert count, "a rowset without rows"
    path = f"{directory}/{rowset_id if name is None else name}.base"
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
            stretch_log2 = min(footers[column_id].sparse_key_rows_log2 for column_id in schema.key_ids)
            writer.append_column(*encoded_keys(image.keys, stretch_log2, writer.size_bytes / count))
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
    """How large the bloom filter of rows that take so much on disk shall be: an eighth of their bits, so as many as
    they have bytes, within its limits; 0: there shall be none.

    Rows of less than two bytes have keys that follow one another, as keys at random would take more by themselves: a
    search for one is cheap, those of a feed are mostly told by `key_bounds`, and a filter would be a third of the table
    or more.
    """
    if row_bytes < _FILTERED_ROW_BYTES_MIN:
        return 0
    return min(max(int(row_bytes), format.BLOOM_BITS_PER_KEY_MIN), format.BLOOM_BITS_PER_KEY)


def column_spec(column: ColumnSchema, schema: Schema) -> ColumnWriteSpec:
    """How the base of a column of the schema is to be stored."""
    return ColumnWriteSpec(
        ColumnKey(BASE, 0, column.id),
        column.type,
        column.encoding,
        column.compression,
        column.block_size_bytes,
        schema.key_count > 1 and column.id in schema.key_ids,
    )


def encoded_keys(
    keys: EncodedKeys, stretch_log2: int, row_bytes: float = math.inf
) -> tuple[ColumnWriteSpec, pa.LargeBinaryArray]:
    """The column of a composite key's encoded keys: of every row, or of the first of each stretch (see `stored_keys`).

    stretch_log2: of how many rows a stretch may be, as a power of two; 0: of one. Long keys are all stored even so: a
            stretch of them for each that is asked for would take more memory than blocks do.
    row_bytes: what the columns take of a row. Keys of numbers are stored of twice as long stretches where they would be
            more than a 24th of that: pairs of wide ids are five bytes a row, and the pair in 64 a quarter of one.
    """
    if not stretch_log2 or (keys.width is None and int(keys.sizes().max()) > _SPARSE_KEY_BYTES_MAX):
        return ColumnWriteSpec(ColumnKey(KEY), _ENCODED), keys.to_binary()
    if stretch_log2 == format.SPARSE_KEY_ROWS_LOG2 and keys.width is not None:
        if keys.width / (1 << stretch_log2) > row_bytes * _SAMPLES_SHARE_MAX:
            stretch_log2 = format.SPARSE_WIDE_KEY_ROWS_LOG2
    samples = keys.take(np.arange(0, len(keys), 1 << stretch_log2))
    return ColumnWriteSpec(ColumnKey(KEY, stretch_log2), _ENCODED), samples.to_binary()


def _first_keys(column: ColumnSchema, schema: Schema, keys: EncodedKeys) -> FirstKeys | None:
    """The value index of a single key column; None for any other column."""
    if schema.key_count > 1 or column.id != schema.columns[0].id:
        return None

    def at(ordinals: npt.NDArray[np.int64]) -> pa.LargeBinaryArray:
        return keys.take(ordinals).to_binary()

    return at
