"""Reads of a damaged column file give the right values, or an error with the file and the offset.

The first tests are about accidents: a byte is changed, or the file is cut. The CRCs find all of them.

The others are about forged files: bytes are changed, and the CRCs are corrected. Then only the checks of
lengths, counts and offsets protect the process. Values may be wrong, but a read must not crash, hang or
raise an error that is not of Nyala. A value may even be invalid for its type: text outside of
dictionaries that is not UTF-8, a decimal with too many digits, and a day outside the range of dates. If
such a value becomes a Python object, it raises an error (`ColumnReader.value`), and `check` finds all.
"""

from __future__ import annotations

import datetime as dt
import functools
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import google_crc32c
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import settings
from tests.sampled import every_nth, random_for
from tests.unit.cfile.memory import MemoryFiles

import nyala
from nyala.cfile import format
from nyala.cfile.blocks.block import read_header
from nyala.cfile.column import BASE, BLOOM, KEY, ColumnKey, ColumnPlace, ColumnWriteSpec
from nyala.cfile.column_reader import ColumnReader
from nyala.cfile.dump import dump
from nyala.cfile.reader import CFileReader
from nyala.cfile.writer import CFileWriter
from nyala.env import SYSTEM
from nyala.errors import CorruptionError, StorageError
from nyala.presentation.cells import json_columns
from nyala.schema.types import parse_type

PATH = "store/data/rowset.cfile"
HASHES = np.array([1 << 40, 2 << 50, 3 << 60], np.uint64)
ROWS = 72
COLUMNS: dict[ColumnKey, tuple[str, str, str, pa.Array]] = {
    ColumnKey(BASE, 0, column_id): (type, encoding, compression, array)
    for column_id, (type, encoding, compression, array) in enumerate(
        [
            ("int64", "auto", "default", pa.array(range(ROWS))),
            ("int32", "auto", "default", pa.array([n if n % 3 else None for n in range(ROWS)], pa.int32())),
            ("bool", "auto", "lz4", pa.array([n < 60 for n in range(ROWS)])),
            ("double", "plain", "none", pa.array([n / 7 for n in range(ROWS)])),
            ("string", "dictionary", "default", pa.array(["red", "green", None] * (ROWS // 3))),
            ("string", "plain", "zstd", pa.array([f"text number {n}" for n in range(ROWS)])),
            ("binary", "plain", "none", pa.array([bytes(n % 5) for n in range(ROWS)])),
            (
                "decimal(30,2)",
                "auto",
                "default",
                pa.array([Decimal(n) for n in range(ROWS)], pa.decimal128(30, 2)),
            ),
            (
                "decimal(9,2)",
                "plain",
                "snappy",
                pa.array([Decimal(n) for n in range(ROWS)], pa.decimal128(9, 2)),
            ),
            ("date", "plain", "zlib", pa.array([n if n < 60 else None for n in range(ROWS)], pa.date32())),
        ],
        start=10,
    )
}
# More columns, with every encoding, for the tests with corrected CRCs, which get as far as the decoders.
MORE: dict[ColumnKey, tuple[str, str, str, pa.Array]] = {
    ColumnKey(BASE, 0, column_id): column
    for column_id, column in enumerate(
        [
            ("int16", "rle", "none", pa.array([n // 9 if n % 5 else None for n in range(ROWS)], pa.int16())),
            ("bool", "rle", "default", pa.array([n % 7 > 1 for n in range(ROWS)])),
            ("string", "prefix", "none", pa.array([f"name-{n:03}" for n in range(ROWS)])),
            ("binary", "prefix", "zlib", pa.array([b"\0" * (n % 9) for n in range(ROWS)])),
            (
                "int8",
                "bitshuffle",
                "none",
                pa.array([n % 11 if n % 4 else None for n in range(ROWS)], pa.int8()),
            ),
            ("float", "bitshuffle", "zlib", pa.array([n / 8 for n in range(ROWS)], pa.float32())),
            ("double", "alp", "none", pa.array([n / 100 if n % 9 else math.inf for n in range(ROWS)])),
            ("double", "alp", "none", pa.array([n / 7 for n in range(ROWS)])),  # plain
            (
                "float",
                "alp",
                "none",
                pa.array([n / 4 if n % 4 else None for n in range(ROWS)], pa.float32()),
            ),
            ("int32", "for", "none", pa.array([3 * n + n % 2 for n in range(ROWS)], pa.int32())),
            ("date", "for", "lz4", pa.array([n * n if n % 6 else None for n in range(ROWS)], pa.date32())),
            (
                "decimal(18,2)",
                "for",
                "default",
                pa.array([Decimal(n % 40) for n in range(ROWS)], pa.decimal128(18, 2)),
            ),
            (
                "decimal(38,0)",
                "for",
                "none",
                pa.array([Decimal(-n) * 10 ** (n // 3) for n in range(ROWS)], pa.decimal128(38, 0)),
            ),
            (
                "timestamp",
                "for",
                "none",
                pa.array([n * 1_000_000 for n in range(ROWS)], pa.timestamp("us", "UTC")),
            ),
            (
                "binary",
                "dictionary",
                "none",
                pa.array([(b"", b"a\0", None, b"bc")[n % 4] for n in range(ROWS)]),
            ),
            # Runs of some hundred entries, as in a key column, whose dictionary codes are bit-shuffled.
            ("string", "dictionary", "none", pa.array([chr(33 + n // 8) for n in range(512)])),
        ],
        start=100,
    )
}
EVERY = COLUMNS | MORE
LAYOUTS = {("for", layout, False) for layout in format.FOR_LAYOUTS.values()}
LAYOUTS |= {("alp", layout, False) for layout in format.ALP_LAYOUTS.values()} | {("alp", "decimals", True)}
LAYOUTS |= {("codes", layout, False) for layout in format.CODES.values()}
KEYS = pa.array([bytes([n, 0, 1]) for n in range(ROWS)], pa.large_binary())


@pytest.fixture(scope="module")
def written() -> tuple[bytes, tuple[ColumnPlace, ...]]:
    return write(COLUMNS)


@pytest.fixture(scope="module")
def every() -> tuple[bytes, tuple[ColumnPlace, ...]]:
    return write(EVERY)


def write(columns: dict[ColumnKey, tuple[str, str, str, pa.Array]]) -> tuple[bytes, tuple[ColumnPlace, ...]]:
    files = MemoryFiles()
    with CFileWriter(files, PATH) as writer:
        for key, (type, encoding, compression, array) in columns.items():
            size = 512 if len(array) < 2000 else 8192
            writer.append_column(ColumnWriteSpec(key, parse_type(type), encoding, compression, size), array)
        writer.append_column(ColumnWriteSpec(ColumnKey(KEY), parse_type("binary"), "plain", "none"), KEYS)
        writer.append_bloom(HASHES)
        places = writer.finish().columns
    return files.content[PATH], places


def reads(content: bytes, places: tuple[ColumnPlace, ...] | None) -> dict[ColumnKey, Callable[[], bool]]:
    """Return for each column a call that reads all of it and returns whether the values are right."""
    reader = CFileReader(MemoryFiles({PATH: content}), PATH, None, places)

    def right(key: ColumnKey, expected: pa.Array) -> bool:
        column = reader.column(key)
        if column is None or column.row_count != ROWS or not column.decode(0, ROWS).equals(expected):
            return False
        scattered = np.array([ROWS - 1, 0, 5, 64, 5])
        return column.gather(scattered).equals(expected.take(pa.array(scattered))) and right_footer(
            column, expected
        )

    def right_bloom() -> bool:
        bloom = reader.bloom()
        return bloom is not None and bool(bloom.may_contain(HASHES).all())

    calls: dict[ColumnKey, Callable[[], bool]] = {
        key: functools.partial(right, key, array) for key, (_, _, _, array) in COLUMNS.items()
    }
    return calls | {
        ColumnKey(KEY): functools.partial(right, ColumnKey(KEY), KEYS),
        ColumnKey(BLOOM): right_bloom,
    }


def right_footer(column: ColumnReader, expected: pa.Array) -> bool:
    index = column.block_first_keys()
    if index is not None:
        return bool(index.equals(expected.take(pa.array(range(0, ROWS, column.rows_per_block)))))
    zone = column.column_zone()
    return zone.null_count == column.null_count == expected.null_count and zone.row_count == ROWS


def outcome(read: Callable[[], bool]) -> str:
    """Return "right", "wrong", or "damage" for a CorruptionError with file and offset."""
    try:
        return "right" if read() else "wrong"
    except CorruptionError as error:
        says_where = error.path == PATH and error.offset is not None and PATH in str(error)
        return "damage" if says_where and "expected" in str(error) else f"damage without a place: {error}"


def owner_of_every_byte(content: bytes) -> list[ColumnKey | None]:
    """Return for each byte the column whose block or footer has it; None in head, directory and tail."""
    reader = CFileReader(MemoryFiles({PATH: content}), PATH)
    owners: list[ColumnKey | None] = [None] * len(content)
    for key in reader.columns():
        column = reader.column(key)
        assert column is not None
        for offset, length in [*column.extents(), (column.place.offset, column.place.length)]:
            owners[offset : offset + length] = [key] * length
    return owners


def test_the_file_is_right_and_small(written: tuple[bytes, tuple[ColumnPlace, ...]]) -> None:
    """Without this, the tests below would prove nothing."""
    content, places = written
    for by in (None, places):
        assert [outcome(read) for read in reads(content, by).values()] == ["right"] * len(places)
    assert len(content) < 20_000
    CFileReader(MemoryFiles({PATH: content}), PATH).check()


def layouts(content: bytes, places: tuple[ColumnPlace, ...]) -> set[tuple[str, str, bool]]:
    """Return (family, layout, whether it has exceptions) of each block whose values are not compressed."""
    reader = CFileReader(MemoryFiles({PATH: content}), PATH, None, places)
    found = set()
    for key in EVERY:
        column = reader.column(key)
        assert column is not None
        for offset, length in column.extents():
            block = pa.py_buffer(content[offset : offset + length])
            header = read_header(block, PATH, offset)
            values = block.to_pybytes()[header.values_start :][: header.values_length]
            if header.compression != format.COMPRESSION_NONE or not values:
                continue
            if header.encoding == format.ENCODING_FOR:
                *_, layout, _, _ = format.FOR_HEADER.unpack_from(values)
                found.add(("for", format.FOR_LAYOUTS[layout], False))
            elif header.encoding == format.ENCODING_ALP:
                layout, _, _, exceptions = format.ALP_HEADER.unpack_from(values)
                found.add(("alp", format.ALP_LAYOUTS[layout], exceptions > 0))
            elif header.encoding == format.ENCODING_DICTIONARY:
                found.add(("codes", format.CODES[values[0]], False))
    return found


def test_the_file_has_a_block_of_every_layout(every: tuple[bytes, tuple[ColumnPlace, ...]]) -> None:
    """So the tests with corrected CRCs reach the decoder of every layout."""
    content, places = every
    assert layouts(content, places) == LAYOUTS
    reader = CFileReader(MemoryFiles({PATH: content}), PATH, None, places)
    for key, (_, _, _, array) in EVERY.items():
        column = reader.column(key)
        assert column is not None and column.decode(0, column.row_count).equals(array)


@pytest.mark.parametrize("by_places", [False, True])
def test_every_byte_changed(
    written: tuple[bytes, tuple[ColumnPlace, ...]], by_places: bool, request: pytest.FixtureRequest
) -> None:
    """Flips bits of every byte. `make test` flips one in 12 bytes of the columns, and all other bytes."""
    content, places = written
    owners = owner_of_every_byte(content)
    assert (
        owners.count(None) == format.HEAD.size + format.TAIL.size + len(places) * format.DIRECTORY_ENTRY.size
    )
    keys = [place.key for place in places]
    # Flip one bit of a byte, and all bits of the next byte. CRC-32C finds each pattern for the same reason,
    # so there is no need to try all patterns of each byte.
    ends = [offset for offset, owner in enumerate(owners) if owner is None]
    of_columns = [offset for offset, owner in enumerate(owners) if owner is not None]
    for offset in [*ends, *every_nth(12, of_columns, request)]:
        owner = owners[offset]
        damaged = bytearray(content)
        damaged[offset] ^= 0xFF if offset % 2 else 1 << (offset // 2 % 8)
        reading = reads(bytes(damaged), places if by_places else None)
        if owner is None:
            # The ends of the file. A reader that was given the places does not read them.
            assert outcome(reading[keys[offset % len(keys)]]) == ("right" if by_places else "damage"), offset
        else:
            neighbour = keys[keys.index(owner) - 1]
            assert outcome(reading[owner]) == "damage", offset
            assert outcome(reading[neighbour]) == "right", offset
        if offset % 16 == 0:
            with pytest.raises(CorruptionError, match="expected"):
                CFileReader(MemoryFiles({PATH: bytes(damaged)}), PATH).check()


@pytest.mark.parametrize("by_places", [False, True])
def test_the_file_cut_at_every_length(
    written: tuple[bytes, tuple[ColumnPlace, ...]], by_places: bool, request: pytest.FixtureRequest
) -> None:
    """A file without its end is not read as a shorter file."""
    content, places = written
    owners = owner_of_every_byte(content)
    for length in every_nth(6, range(len(content)), request):
        reading = reads(content[:length], places if by_places else None)
        place = places[length % len(places)]
        cut = not by_places or place.offset + place.length > length
        assert outcome(reading[place.key]) == ("damage" if cut else "right"), length
        if (owner := owners[length]) is not None:
            assert outcome(reading[owner]) == "damage", length


def test_bytes_after_the_end(written: tuple[bytes, tuple[ColumnPlace, ...]]) -> None:
    """A reader finds the directory at the end of the file, so appended bytes are damage."""
    content, _ = written
    for more in (b"\0", bytes(100), content):
        for read in reads(content + more, None).values():
            assert outcome(read) == "damage"


# -- Forged files ------------------------------------------------------------------------------------------


def repaired(content: bytearray, places: tuple[ColumnPlace, ...], blocks: list[tuple[int, int]]) -> bytes:
    """Return the content with every CRC corrected for its bytes."""

    def crc(start: int, end: int, place: int, more: bytes = b"") -> None:
        struct.pack_into("<I", content, place, google_crc32c.value(bytes(content[start:end]) + more))

    crc(0, format.HEAD.size - 4, format.HEAD.size - 4)
    for offset, length in blocks:
        crc(offset, offset + length - 4, offset + length - 4)
    for place in places:
        crc(place.offset, place.offset + place.length - 4, place.offset + place.length - 4)
    tail = len(content) - format.TAIL.size
    directory = tail - len(places) * format.DIRECTORY_ENTRY.size
    crc(directory, tail + format.TAIL.size - 12, tail + format.TAIL.size - 12)
    return bytes(content)


def tolerated(read: Callable[[], object]) -> None:
    """Call `read`. It may raise only CorruptionError, or StorageError about a flag of a newer version."""
    try:
        read()
    except CorruptionError as error:
        assert error.path == PATH and "expected" in str(error), error
    except StorageError as error:
        assert "newer" in str(error), error


def whole(reader: CFileReader, key: ColumnKey) -> None:
    """Read all of a column by all operations. The returned arrays must be safe to use."""
    column = reader.column(key)
    if column is None or column.row_count > 1 << 22:
        return
    array = column.decode(0, column.row_count)
    # Wrong offsets or sizes of buffers would crash the process.
    array.validate(full=is_looked_at(column))
    assert len(array) == column.row_count
    if column.row_count:
        assert len(column.gather(np.array([0, column.row_count - 1, 0]))) == 3
        cheap = column.decode(0, column.row_count, column.cheap_type)
        cheap.validate(full=is_looked_at(column))
        for ordinal in {0, column.row_count // 2, column.row_count - 1}:
            column.value(ordinal)
    if column.has_zones:
        column.column_zone()
        column.zones  # noqa: B018
    column.block_first_keys()


def all_of_bloom(reader: CFileReader) -> None:
    bloom = reader.bloom()
    if bloom is not None:
        bloom.may_contain(HASHES)
        bloom.load_all()


def is_looked_at(column: ColumnReader) -> bool:
    """Whether the reader checks that all values of the column are valid for its type."""
    return column.has_dictionary or not (column.type.is_text or column.type.name == "decimal")


def exercise(content: bytes, places: tuple[ColumnPlace, ...] | None, keys: list[ColumnKey]) -> None:
    """Read these columns by all operations, and check and dump the file."""
    files = MemoryFiles({PATH: content})
    reader = CFileReader(files, PATH, None, places)
    for key in keys:
        tolerated(lambda key=key: whole(reader, key))  # type: ignore[misc]
    tolerated(lambda: all_of_bloom(reader))
    tolerated(lambda: reader.check())
    tolerated(lambda: list(dump(files, PATH)))
    tolerated(lambda: list(dump(files, PATH, bytes=True)))


@pytest.mark.parametrize("key", EVERY, ids=lambda key: " ".join([*EVERY[key][:3], str(key.column_id)]))
def test_every_flip_that_the_crc_does_not_see(
    every: tuple[bytes, tuple[ColumnPlace, ...]], key: ColumnKey, request: pytest.FixtureRequest
) -> None:
    """A flipped bit with a corrected CRC: reads give the same number of valid values, or an error with offset.

    Every bit of a block's header and of the encoding's own header is flipped, and one bit of each byte
    of the values. `make test` flips a ninth of these bits.
    """
    content, places = every
    original = CFileReader(MemoryFiles({PATH: content}), PATH).column(key)
    assert original is not None
    rows = original.row_count
    found = set()
    for offset, length in original.extents()[-2:]:  # the last block, and the dictionary where there is one
        body = length - format.CRC.size
        lower = original.rows_per_block * (original.block_count - 1)
        if (offset, length) != original.extents()[original.block_count - 1]:
            lower = 0  # this is the dictionary, which all blocks use
        expected = EVERY[key][3].slice(lower)
        last = np.array([lower, rows - 1])
        header = format.BLOCK_HEADER.size + 64
        flips = [(place, bit) for place in range(min(header, body)) for bit in range(8)]
        flips += [(place, place % 8) for place in range(header, body)]
        for place, bit in every_nth(9, flips, request):
            damaged = bytearray(content)
            damaged[offset + place] ^= 1 << bit
            crc = google_crc32c.value(bytes(damaged[offset : offset + body]))
            damaged[offset + body : offset + length] = format.CRC.pack(crc)
            column = CFileReader(MemoryFiles({PATH: bytes(damaged)}), PATH, None, places).column(key)
            assert column is not None
            for type in (column.arrow, column.cheap_type):
                try:
                    array = column.decode(lower, rows, type)
                    array.validate(full=is_looked_at(column))
                    assert len(array) == len(expected) and array.null_count == expected.null_count
                    column.gather(last)  # few rows are gathered from the encoded block
                    found.add("values")
                except CorruptionError as error:
                    assert error.path == PATH and error.offset == offset, (place, bit, error)
                    assert str(error).startswith(f"{PATH} at offset {offset}: expected"), (place, bit, error)
                    found.add("damage")
            tolerated(lambda column=column: column.value(rows - 1))  # type: ignore[misc]
    assert "damage" in found


@pytest.mark.parametrize("key", EVERY, ids=lambda key: " ".join([*EVERY[key][:3], str(key.column_id)]))
def test_every_flip_in_a_footer_that_the_crc_does_not_see(
    every: tuple[bytes, tuple[ColumnPlace, ...]], key: ColumnKey, request: pytest.FixtureRequest
) -> None:
    """Counts, lengths, offsets and bounds in a footer that contradict the blocks. `make test` tries a ninth."""
    content, places = every
    place = next(place for place in places if place.key == key)
    body = place.length - format.CRC.size
    flips = [(byte, bit) for byte in range(format.FOOTER.size) for bit in range(8)]
    flips += [(byte, byte % 8) for byte in range(format.FOOTER.size, body)]
    for byte, bit in every_nth(9, flips, request):
        damaged = bytearray(content)
        damaged[place.offset + byte] ^= 1 << bit
        crc = google_crc32c.value(bytes(damaged[place.offset : place.offset + body]))
        damaged[place.offset + body : place.offset + place.length] = format.CRC.pack(crc)
        reader = CFileReader(MemoryFiles({PATH: bytes(damaged)}), PATH, None, places)
        tolerated(lambda reader=reader: whole(reader, key))  # type: ignore[misc]


INTERESTING = (
    0,
    1,
    2,
    7,
    8,
    0x7F,
    0x80,
    0xFF,
    0xFFFF,
    0x7FFFFFFF,
    0xFFFFFFFF,
    1 << 40,
    (1 << 63) - 1,
    (1 << 64) - 1,
)


@pytest.mark.parametrize("part", ["footer", "block header", "block", "directory", "tail", "head"])
def test_absurd_bytes_under_a_right_crc(
    every: tuple[bytes, tuple[ColumnPlace, ...]], part: str, request: pytest.FixtureRequest
) -> None:
    """A forged file must not crash the process or use all its memory."""
    content, places = every
    owners = owner_of_every_byte(content)
    everything = [*EVERY, ColumnKey(KEY), ColumnKey(BLOOM)]
    reader = CFileReader(MemoryFiles({PATH: content}), PATH)
    blocks = [extent for key in reader.columns() for extent in reader.column(key).extents()]  # type: ignore[union-attr]
    tail = len(content) - format.TAIL.size
    areas = {
        "footer": [(place.offset, place.length - 4) for place in places],
        "block header": [(offset, format.BLOCK_HEADER.size) for offset, _ in blocks],
        "block": [(offset, length - 4) for offset, length in blocks],
        "directory": [(tail - 24 * len(places), 24 * len(places))],
        "tail": [(tail, 20)],
        "head": [(0, 28)],
    }[part]
    source = random_for(request)
    for _ in range(settings().max_examples):
        damaged = bytearray(content)
        for _ in range(source.choice((1, 1, 2, 3))):
            start, length = source.choice(areas)
            if source.random() < 0.5:
                damaged[start + source.randrange(length)] = source.randrange(256)
            else:
                width = min(source.choice((1, 2, 4, 8)), length)
                position = start + source.randrange(0, length - width + 1)
                position -= (position - start) % width if source.random() < 0.7 else 0
                value = source.choice(INTERESTING) + source.choice((-1, 0, 0, 0, 1))
                damaged[position : position + width] = (value % (1 << 8 * width)).to_bytes(width, "little")
        fixed = repaired(damaged, places, blocks)
        # A read of a column uses the column's own bytes, and the ends of the file if no places are given.
        by = None if source.random() < 0.5 else places
        changed = {owners[place] for place, byte in enumerate(fixed) if byte != content[place]}
        found = (
            everything if None in changed and by is None else [key for key in everything if key in changed]
        )
        exercise(fixed, by, found)


def forged_store(path: Path, column: nyala.ColumnSpec, values: list[Any], old: bytes, new: bytes) -> None:
    """Create a store with a table t(k, v). Replace bytes of v in its file, and correct the CRC."""
    with nyala.connect(path, maintenance=False) as db:
        db.create_table("t", {"k": "int64", "v": column}, "k").insert({"k": range(len(values)), "v": values})
        db.flush()
    (file,) = path.glob("data/*/*.base")
    content = bytearray(file.read_bytes())
    with CFileReader(SYSTEM.files, str(file)) as reader:
        column_reader = next(
            r
            for key in reader.columns()
            if (r := reader.column(key)) is not None and str(key.column_id) == "11"
        )
        extents = column_reader.extents()
    (offset, length) = next(extent for extent in extents if old in content[extent[0] : sum(extent)])
    at = content.index(old, offset)
    content[at : at + len(old)] = new
    body = bytes(content[offset : offset + length - 4])
    content[offset + length - 4 : offset + length] = format.CRC.pack(google_crc32c.value(body))
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("encoding", "old", "new"),
    [
        ("plain", b"word 7", b"\xc3ord 7"),
        ("prefix", b"7", b"\xff"),
        ("dictionary", b"word 7", b"\xc3ord 7"),
    ],
)
def test_text_that_is_not_utf8_raises_corruption_error(
    tmp_path: Path, encoding: str, old: bytes, new: bytes
) -> None:
    """Without the check, Python would raise UnicodeDecodeError, which does not name the file."""
    words = [f"word {n % 8}" for n in range(64)]
    column = nyala.column("string", encoding=encoding, compression="none")
    forged_store(tmp_path / "s", column, words, old, new)
    assert_corruption(tmp_path / "s", "UTF-8")


def test_impossible_days_raise_corruption_error(tmp_path: Path) -> None:
    """Without the check, `get` would raise OverflowError, and pandas ValueError."""
    days = [dt.date(2000, 1, 1 + n % 8) for n in range(64)]
    number = struct.pack("<i", (days[7] - dt.date(1970, 1, 1)).days)
    column = nyala.column("date", encoding="plain", compression="none")
    forged_store(tmp_path / "s", column, days, number, struct.pack("<i", 1 << 30))
    assert_corruption(tmp_path / "s", "years 1 to 9999")


def assert_corruption(path: Path, expected: str) -> None:
    """Assert that every way to get Python objects raises CorruptionError, and that `check` finds it."""
    with nyala.connect(path, read_only=True) as db:
        t = db["t"]
        ways: list[Callable[[], object]] = [
            lambda: [t.get({"k": k}) for k in range(64)],
            t.to_pandas,
            lambda: [t.scan(where=f"k >= {k}")._repr_html_() for k in (0, 10)],
            lambda: json_columns(t.scan().to_arrow()),
        ]
        for way in ways:
            with pytest.raises(CorruptionError, match=expected):
                way()
    assert not nyala.check(path).ok


def test_the_message_of_a_corruption_through_other_libraries(tmp_path: Path) -> None:
    """Other libraries raise the classes in docs/how-to/errors.md. Nyala's own methods raise CorruptionError."""
    with nyala.connect(tmp_path / "s", maintenance=False) as db:
        db.create_table("t", {"k": "int64"}, "k").insert({"k": range(100)})
        db.flush()
    (file,) = tmp_path.glob("s/data/*/*.base")
    content = bytearray(file.read_bytes())
    content[format.HEAD.size + 8] ^= 1
    file.write_bytes(content)
    with nyala.connect(tmp_path / "s", read_only=True) as db, duckdb.connect() as con:
        scan = db["t"].scan()
        foreign: list[tuple[type[Exception], Callable[[], object]]] = [
            (pa.ArrowInvalid, lambda: pa.table(scan)),
            (pl.exceptions.ComputeError, lambda: pl.DataFrame(scan)),
            (duckdb.InvalidInputException, lambda: scan.to_duckdb(con).fetchall()),
            (duckdb.InvalidInputException, lambda: (scan, con.sql("FROM scan").fetchall())),
        ]
        page = (Path(__file__).parents[2] / "docs" / "how-to" / "errors.md").read_text()
        older = int(pl.__version__.partition(".")[0]) < 2
        if older:  # polars 1 panics with the message
            del foreign[1]
        for kind, read in foreign:
            with pytest.raises(kind, match=f"{file} at offset {format.HEAD.size}: expected"):
                read()
            assert f".{kind.__name__}` |" in page
        lazily = scan.to_polars_lazy().collect
        ours: list[Callable[[], object]] = [
            scan.to_arrow,
            scan.to_reader().read_all,
            scan.to_pandas,
            scan.to_polars,
            lazily,
            db.sql("FROM t").fetchall,
            lambda: pa.table(db.sql("FROM t")),
        ]
        if older:  # polars 1 raises the message in its own class
            ours.remove(lazily)
        for read in ours:
            with pytest.raises(CorruptionError, match=f"at offset {format.HEAD.size}: expected"):
                read()
