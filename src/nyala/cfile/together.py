"""Several columns of a window read at once: one call for all their blocks, and one for all their values.

    cache     of all columns the blocks that are there           one call
    fetch     the others, their CRCs compared                    without the interpreter's lock, a call for each file
    parse     each block                                         a few calls in Python
    fill      the values of all frames                           without the interpreter's lock, one call

Read one by one, each block lets go of the lock three or four times, and each time another thread may have it and must
be waited for.

Of columns that lie in frames, or as codewords of a dictionary; others are read by `ColumnReader` alone. What is kept of
blocks is what `first_pass` says of scans; but two threads that want one block read it twice, which costs less than
to wait for one another.

Thread-safety: as `reader`.
Source: decision 0040.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from nyala.cfile.block_source import BlockForm, ReadStats
from nyala.cfile.column_reader import ColumnReader
from nyala.cfile.encoded_rows import EncodedRows, arrays_of
from nyala.cfile.encoding.frame import Frame

if TYPE_CHECKING:
    from nyala.cfile.reader import CFileReader

__all__ = ["FETCHED_BYTES_MAX", "arrays_together", "encoded_together"]

# Bytes of blocks that lie in memory beside the values that are made of them. A window of eight columns has two or three
# million; for one of hundreds a call for each so many is little.
FETCHED_BYTES_MAX: Final = 4 << 20

Asked: TypeAlias = tuple[ColumnReader, BlockForm]


def arrays_together(
    asked: Sequence[Asked], lower: int, upper: int, stats: ReadStats | None
) -> list[pa.Array]:
    """Columns, each in a form that it `fills`: the ordinals [lower, upper), at least one, for a scan.

    Raises: CorruptionError.
    """
    arrays: list[pa.Array] = []
    for part in _parts(asked, lower, upper):
        frames = _frames(part, lower, upper, stats)
        rows = [
            reader.filled(of, form, lower, upper) for (reader, form), of in zip(part, frames, strict=True)
        ]
        made = arrays_of(rows, [form == "narrow" for _, form in part])
        arrays += [
            reader.worded(array) if form == "codes" else array
            for (reader, form), array in zip(part, made, strict=True)
        ]
    return arrays


def encoded_together(
    readers: Sequence[ColumnReader], lower: int, upper: int, stats: ReadStats | None
) -> list[EncodedRows]:
    """Columns, each of which `tells`: the same ordinals as they lie. Raises: CorruptionError."""
    frames = _frames([(reader, "frames") for reader in readers], lower, upper, stats)
    return [reader.encoded_of(of, lower, upper) for reader, of in zip(readers, frames, strict=True)]


def _parts(asked: Sequence[Asked], lower: int, upper: int) -> Iterator[Sequence[Asked]]:
    """As many columns at a time as `FETCHED_BYTES_MAX` lets there be, one at least."""
    part: list[Asked] = []
    size = 0
    for reader, form in asked:
        its_size = reader.stored_bytes(lower, upper)
        if part and size + its_size > FETCHED_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append((reader, form))
        size += its_size
    if part:
        yield part


def _frames(asked: Sequence[Asked], lower: int, upper: int, stats: ReadStats | None) -> list[list[Frame]]:
    """Of each column the frames of its blocks with these ordinals: from the cache, or read."""
    blocks = [(reader.source, form, reader.blocks_of(lower, upper)) for reader, form in asked]
    cache = asked[0][0].source.cache if asked else None
    names = [source.name("frames", block) for source, _, of in blocks for block in of]
    kept = iter([None] * len(names) if cache is None else cache.get_all(names))
    found: list[list[Any]] = [[next(kept) for _ in of] for _, _, of in blocks]
    missing: dict[CFileReader, list[tuple[int, int]]] = {}
    for column, (source, _, of) in enumerate(blocks):
        lacking = [(column, row) for row in range(len(of)) if found[column][row] is None]
        if lacking:
            missing.setdefault(source.file, []).extend(lacking)
        if stats is not None:
            stats.cache_hits += len(of) - len(lacking)
    scan = (lower, upper)
    for file, places in missing.items():
        datas = file.fetch([blocks[column][0].place(blocks[column][2][row]) for column, row in places])
        for (column, row), data in zip(places, datas, strict=True):
            source, form, of = blocks[column]
            found[column][row] = source.landed(of[row], data, form, scan, stats)
    for source, form, of in blocks:
        source.passed(of, form, scan, stats)
    return found
