"""Divides the rows of a load or a flush into rowsets of about the target size on disk.

The module encodes a sample of the rows, to find out how much space they take. Example:

    rows    |................................................|   180 bytes per row in memory
    sample      [....]                          [....]           34 bytes per row on disk
    ranges  |          1,000,000 |          1,000,000 |   ...    34 MB each on disk

If ranges were cut by bytes in memory, this example would give five times as many rowsets. Each
rowset makes look-ups and writes slower until a compaction merges it.

Source: docs/design/compaction.md, "Loads and flushes make rowsets of the same size";
docs/design/kudu.md, "Write path and flush".
Difference from Kudu: Kudu's writer begins another rowset once it has written the target size. Here
columns are written one after the other, so the cut must be known before writing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from nyala.cfile import format
from nyala.cfile.writer import column_bytes
from nyala.rowset import size as rowset_size
from nyala.rowset.image import RowSetImage
from nyala.rowset.size import DECODED_PER_TARGET
from nyala.rowset.writer import column_spec, encoded_keys, filter_bits_per_key
from nyala.schema.schema import Schema

# A sample is a run of neighbouring rows, because the encoding of a block depends on neighbours.
# There are two samples, because early rows may differ from late ones. Together they have at most a
# sixteenth of the rows.
_SAMPLES: Final = 2
_SAMPLE_ROWS_MAX: Final = 1 << 15
_SAMPLE_SHARE: Final = 16


def roll(image: RowSetImage, schema: Schema, target_bytes: int) -> Iterator[tuple[int, int]]:
    """Divide the rows into ranges of equal length, and yield the bounds [lower, upper) of each.

    A range takes about `target_bytes` on disk, or less if the rows take much memory or have much
    text.
    Cost: for an image larger than `target_bytes`, the encoding of at most a sixteenth of the rows.
    """
    count = image.row_count
    if not count:
        return
    in_memory = sum(array.nbytes for array in image.columns.values())
    rowsets = 1
    if in_memory > target_bytes:
        texts = (image.columns[column.id].nbytes for column in schema.columns if column.type.is_variable)
        rowsets = rowset_count(in_memory, disk_bytes(image, schema), target_bytes)
        rowsets = max(rowsets, round(max(texts, default=0) / rowset_size.TEXT_TARGET_BYTES))
    step = -(-count // rowsets)
    for lower in range(0, count, step):
        yield from text_ranges(image.text_bytes, lower, min(lower + step, count))


def text_ranges(text_bytes: Callable[[int, int], int], lower: int, upper: int) -> Iterator[tuple[int, int]]:
    """Halve [lower, upper) until the text of each range fits one Arrow array. Yield the ranges.

    A range with one row is not halved.
    text_bytes: returns the size of the text in the rows [lower, upper).
    """
    if upper - lower > 1 and text_bytes(lower, upper) > rowset_size.TEXT_TARGET_BYTES * 1.5:
        middle = (lower + upper) // 2
        yield from text_ranges(text_bytes, lower, middle)
        yield from text_ranges(text_bytes, middle, upper)
    else:
        yield lower, upper


def rowset_count(memory_bytes: int, on_disk_bytes: float, target_bytes: int) -> int:
    """Return how many rowsets to write for rows of this size in memory and on disk.

    A merge of the same rows writes the same number: see `compaction.plans.output_count`.
    """
    return max(1, round(max(on_disk_bytes, memory_bytes / DECODED_PER_TARGET) / target_bytes))


def disk_bytes(image: RowSetImage, schema: Schema) -> float:
    """Estimate the size in bytes of these rows on disk. `image` must have at least one row."""
    count = image.row_count
    rows = max(1, min(_SAMPLE_ROWS_MAX, count // (_SAMPLES * _SAMPLE_SHARE)))
    starts = [(count - rows) * (2 * place + 1) // (2 * _SAMPLES) for place in range(_SAMPLES)]
    blocks = dictionaries = 0
    sampled = 0
    for start in starts:
        before = blocks
        end = next(text_ranges(image.text_bytes, start, start + rows))[1]
        sample = image.piece(start, end)
        sampled += end - start
        key_rows_log2 = format.SPARSE_KEY_ROWS_LOG2
        for column in schema.columns:
            is_index = schema.key_count == 1 and column is schema.columns[0]
            spec = column_spec(column, schema)
            made = column_bytes(spec, sample.columns[column.id], is_index=is_index)
            blocks += made.blocks
            dictionaries += made.dictionary
            if column.id in schema.key_ids:
                key_rows_log2 = min(key_rows_log2, made.sparse_key_rows_log2)
        if schema.key_count > 1:
            keys = encoded_keys(sample.keys, key_rows_log2, (blocks - before) / (end - start))
            blocks += column_bytes(*keys).blocks
    # The size of blocks is proportional to the rows. The size of a dictionary is nearly constant.
    per_row = blocks / sampled
    per_row += filter_bits_per_key(per_row) / 8
    return per_row * count + dictionaries / _SAMPLES
