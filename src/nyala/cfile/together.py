"""Several columns of a window read at once: a few calls for all their blocks and all their values.

    cache        of all columns the blocks that are there           one call
    straight     columns that are whole blocks, of which none is    without the interpreter's lock, a call for each
                 there: read, CRCs compared, parsed, decoded        file: block by block through one piece of memory

    of the other columns
    fetch        blocks, their CRCs compared                        without the lock, a call for each file
    parse        each block                                         a few calls in Python
    fill         the values of all frames                           without the lock, one call

Read one by one, each block lets go of the lock three or four times, and each time another thread may have it and must
be waited for.

Of columns that lie in frames, or as codewords of a dictionary; others are read by `ColumnReader` alone. What is kept of
blocks is what `first_pass` says of scans; but two threads that want one block read it twice, which costs less than
to wait for one another.

Thread-safety: as `reader`.
Source: decisions 0040, 0043.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from nyala.cfile import straight
from nyala.cfile.column_reader import ColumnReader
from nyala.cfile.encoded_rows import EncodedRows, arrays_of
from nyala.cfile.encoding.frame import Frame
from nyala.cfile.read_stats import ReadStats
from nyala.cfile.straight import Asked

if TYPE_CHECKING:
    from nyala.cfile.reader import CFileReader

__all__ = ["FETCHED_BYTES_MAX", "arrays_together", "encoded_together"]

# Bytes of blocks that lie in memory beside the values that are made of them. A window of eight columns has two or three
# million; for one of hundreds a call for each so many is little.
FETCHED_BYTES_MAX: Final = 4 << 20


def arrays_together(
    asked: Sequence[Asked], lower: int, upper: int, stats: ReadStats | None
) -> list[pa.Array]:
    """Columns, each in a form that it `fills`: the ordinals [lower, upper), at least one, for a scan.

    Raises: CorruptionError.
    """
    arrays: list[pa.Array | None] = [None] * len(asked)
    kept = _kept(asked, lower, upper, stats)
    _read_straight(asked, kept, lower, upper, stats, arrays)
    left = [place for place, array in enumerate(arrays) if array is None]
    for part in _parts(asked, left, lower, upper):
        some = [asked[place] for place in part]
        frames = _frames(some, [kept[place] for place in part], lower, upper, stats)
        rows = [
            reader.filled(of, form, lower, upper) for (reader, form), of in zip(some, frames, strict=True)
        ]
        made = arrays_of(rows, [form == "narrow" for _, form in some])
        for place, (reader, form), array in zip(part, some, made, strict=True):
            finished = reader.finished(array, form)
            # Text of so many bytes is read block by block, where what is wrong is told.
            arrays[place] = (
                reader.read(lower, upper, stats=stats, scanning=True) if finished is None else finished
            )
    return arrays


def _read_straight(
    asked: Sequence[Asked],
    kept: Sequence[list[Any]],
    lower: int,
    upper: int,
    stats: ReadStats | None,
    arrays: list[pa.Array | None],
) -> None:
    """Put those of the columns into `arrays` that go straight and of which nothing is kept."""
    places = [
        place
        for place, (reader, _) in enumerate(asked)
        if reader.goes_straight(lower, upper) and not any(kept[place])
    ]
    found = straight.values_of([asked[place] for place in places], lower, upper, stats)
    for place, array in zip(places, found, strict=True):
        arrays[place] = array


def encoded_together(
    readers: Sequence[ColumnReader], lower: int, upper: int, stats: ReadStats | None
) -> list[EncodedRows]:
    """Columns, each of which `tells`: the same ordinals as they lie. Raises: CorruptionError."""
    asked: list[Asked] = [(reader, "frames") for reader in readers]
    frames = _frames(asked, _kept(asked, lower, upper, stats), lower, upper, stats)
    return [reader.encoded_of(of, lower, upper) for reader, of in zip(readers, frames, strict=True)]


def _parts(asked: Sequence[Asked], places: Sequence[int], lower: int, upper: int) -> Iterator[list[int]]:
    """The places, as many at a time as `FETCHED_BYTES_MAX` lets there be columns, one at least."""
    part: list[int] = []
    size = 0
    for place in places:
        its_size = asked[place][0].stored_bytes(lower, upper)
        if part and size + its_size > FETCHED_BYTES_MAX:
            yield part
            part, size = [], 0
        part.append(place)
        size += its_size
    if part:
        yield part


def _kept(asked: Sequence[Asked], lower: int, upper: int, stats: ReadStats | None) -> list[list[Any]]:
    """Of each column, of each block with these ordinals, the frame that the cache has of it, or None."""
    blocks = [reader.blocks_of(lower, upper) for reader, _ in asked]
    cache = asked[0][0].source.cache if asked else None
    if cache is None:
        return [[None] * len(of) for of in blocks]
    names = [reader.source.names("frames", of) for (reader, _), of in zip(asked, blocks, strict=True)]
    found = iter(cache.get_all(list(itertools.chain.from_iterable(names))))
    kept = [[next(found) for _ in of] for of in blocks]
    if stats is not None:
        stats.cache_hits += sum(frame is not None for of in kept for frame in of)
    return kept


def _frames(
    asked: Sequence[Asked], kept: Sequence[list[Any]], lower: int, upper: int, stats: ReadStats | None
) -> list[list[Frame]]:
    """Of each column the frames of its blocks with these ordinals: those that were `kept`, and the others read."""
    blocks = [(reader.source, form, reader.blocks_of(lower, upper)) for reader, form in asked]
    found = [list(of) for of in kept]
    missing: dict[CFileReader, list[tuple[int, int]]] = {}
    for column, (source, _, _) in enumerate(blocks):
        lacking = [(column, row) for row, frame in enumerate(found[column]) if frame is None]
        if lacking:
            missing.setdefault(source.file, []).extend(lacking)
    scan = (lower, upper)
    for file, places in missing.items():
        datas = file.fetch([blocks[column][0].place(blocks[column][2][row]) for column, row in places])
        for (column, row), data in zip(places, datas, strict=True):
            source, form, of = blocks[column]
            found[column][row] = source.landed(of[row], data, form, scan, stats)
    for source, form, of in blocks:
        source.passed(of, form, scan, stats)
    return found
