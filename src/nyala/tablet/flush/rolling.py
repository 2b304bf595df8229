"""How many rowsets a load or a flush makes: each of about the target on disk, as a compaction makes them.

    image   |................................................|   180 bytes a row in memory
    sample      [....]                          [....]           encoded, thrown away: 34 bytes a row on disk
    roll    |          1,000,000 |          1,000,000 |   ...    each 34 MB on disk

Cut by their bytes in memory, rows that are a fifth of that on disk make five times the rowsets. Every look-up, every
write and every first scan of changes pays for each, until the background has read and written all of them again.

Source: docs/design/compaction.md, "Loads and flushes make rowsets of the same size"; docs/design/kudu.md, "Write path
and flush" (its writer begins another rowset when so many bytes are written). Departure: columns are written one after
the other here, so where rows are cut must be known before.
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

__all__ = ["disk_bytes", "piece_count", "roll", "text_pieces"]

# The sample: so many neighbours at so many places, and no more than a part of all rows. Neighbours, since what an
# encoding makes of a block depends on it; at several places, since what was written early may look otherwise.
_SAMPLES: Final = 2
_SAMPLE_ROWS_MAX: Final = 1 << 15
_SAMPLE_SHARE: Final = 16


def roll(image: RowSetImage, schema: Schema, target_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut an image into pieces of equal length: each about `target_bytes` on disk, or less where that is much in
    memory.

    Cost: nothing for an image that is no larger in memory; else the encoding of a sixteenth of it or less.
    """
    count = image.row_count
    if not count:
        return
    in_memory = sum(array.nbytes for array in image.columns.values())
    pieces = 1
    if in_memory > target_bytes:
        texts = (image.columns[column.id].nbytes for column in schema.columns if column.type.is_variable)
        pieces = piece_count(in_memory, disk_bytes(image, schema), target_bytes)
        pieces = max(pieces, round(max(texts, default=0) / rowset_size.TEXT_TARGET_BYTES))
    step = -(-count // pieces)
    for lower in range(0, count, step):
        yield from text_pieces(image.text_bytes, lower, min(lower + step, count))


def text_pieces(text_bytes: Callable[[int, int], int], lower: int, upper: int) -> Iterator[tuple[int, int]]:
    """The rows [lower, upper), halved until each piece has so little text that an array holds it, or is one row.

    text_bytes: bytes of text of rows [lower, upper).
    """
    if upper - lower > 1 and text_bytes(lower, upper) > rowset_size.TEXT_TARGET_BYTES * 1.5:
        middle = (lower + upper) // 2
        yield from text_pieces(text_bytes, lower, middle)
        yield from text_pieces(text_bytes, middle, upper)
    else:
        yield lower, upper


def piece_count(memory_bytes: int, on_disk_bytes: float, target_bytes: int) -> int:
    """Rowsets to make of so many bytes: as `compaction.plans.output_count` says it of a merge."""
    return max(1, round(max(on_disk_bytes, memory_bytes / DECODED_PER_TARGET) / target_bytes))


def disk_bytes(image: RowSetImage, schema: Schema) -> float:
    """About what the base files of these rows, of which there is one at least, would have in all."""
    count = image.row_count
    rows = max(1, min(_SAMPLE_ROWS_MAX, count // (_SAMPLES * _SAMPLE_SHARE)))
    starts = [(count - rows) * (2 * place + 1) // (2 * _SAMPLES) for place in range(_SAMPLES)]
    blocks = words = 0
    sampled = 0
    for start in starts:
        before = blocks
        end = next(text_pieces(image.text_bytes, start, start + rows))[1]
        piece = image.piece(start, end)
        sampled += end - start
        key_rows_log2 = format.SPARSE_KEY_ROWS_LOG2
        for column in schema.columns:
            is_index = schema.key_count == 1 and column is schema.columns[0]
            spec = column_spec(column, schema)
            made = column_bytes(spec, piece.columns[column.id], is_index=is_index)
            blocks += made.blocks
            words += made.dictionary
            if column.id in schema.key_ids:
                key_rows_log2 = min(key_rows_log2, made.sparse_key_rows_log2)
        if schema.key_count > 1:
            keys = encoded_keys(piece.keys, key_rows_log2, (blocks - before) / (end - start))
            blocks += column_bytes(*keys).blocks
    # More rows have more blocks, but hardly more words in a dictionary, or it would not be one.
    per_row = blocks / sampled
    per_row += filter_bits_per_key(per_row) / 8
    return per_row * count + words / _SAMPLES
