"""What a reader reads from the file: no more than it needs, in few reads."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.cfile.memory import MemoryFiles

from nyala.cfile.blocks.cache import BlockCache
from nyala.cfile.blocks.read_stats import ReadStats
from nyala.cfile.column import BASE, KEY, ColumnKey, ColumnPlace, ColumnWriteSpec
from nyala.cfile.column_reader import ColumnReader
from nyala.cfile.index.zone_map import Zone
from nyala.cfile.reader import CFileReader
from nyala.cfile.writer import CFileWriter
from nyala.errors import CorruptionError, StorageError
from nyala.schema.types import parse_type


@pytest.fixture
def places(files: MemoryFiles) -> tuple[ColumnPlace, ...]:
    with CFileWriter(files, "f") as writer:
        for column_id in (10, 11, 12):
            spec = ColumnWriteSpec(ColumnKey(BASE, 0, column_id), parse_type("int64"), "plain", "none", 1024)
            writer.append_column(spec, pa.array(np.arange(2000) * column_id))
        return writer.finish().columns


def column_of(reader: CFileReader, column_id: int) -> ColumnReader:
    column = reader.column(ColumnKey(BASE, 0, column_id))
    assert column is not None
    return column


def test_with_places_the_directory_is_not_read(files: MemoryFiles, places: tuple[ColumnPlace, ...]) -> None:
    """With the places from the catalogue, opening a file reads no directory and no unused footer."""
    reader = CFileReader(files, "f", places=places)
    assert (files.opens, files.reads) == (0, [])
    column = column_of(reader, 11)
    assert files.reads == [(places[1].offset, places[1].length)]
    column_of(reader, 11)
    assert len(files.reads) == 1
    assert column.decode(5, 7).to_pylist() == [55, 66]
    assert files.opens == 1
    assert reader.columns() == tuple(place.key for place in places)


def test_the_directory_has_the_same_places(files: MemoryFiles, places: tuple[ColumnPlace, ...]) -> None:
    """A file can be read without its catalogue: its directory has the same places."""
    reader = CFileReader(files, "f")
    assert [column_of(reader, number).place for number in (10, 11, 12)] == list(places)
    column = column_of(reader, 12)
    assert (column.row_count, column.rows_per_block, column.block_count) == (2000, 128, 16)
    assert (column.encoding, column.compression, str(column.type)) == ("plain", "none", "int64")
    assert column.size_bytes == 16 * (32 + 16) + 16_000 + places[2].length


def test_neighbouring_blocks_are_one_read(files: MemoryFiles, places: tuple[ColumnPlace, ...]) -> None:
    """Adjacent blocks are read with one system call."""
    column = column_of(CFileReader(files, "f", places=places), 10)
    stats = ReadStats()
    column.decode(0, 2000, stats=stats)
    assert (stats.reads, stats.blocks_read, stats.cache_hits) == (1, 16, 0)
    assert stats.bytes_read == 16 * (32 + 16) + 16_000
    stats = ReadStats()
    column.gather(np.array([0, 130, 1999, 131, 0]), stats=stats)
    assert (stats.reads, stats.blocks_read) == (2, 3), (
        "the first two blocks are adjacent, the last one is not"
    )


def test_reads_are_bounded(
    files: MemoryFiles, places: tuple[ColumnPlace, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read has a bounded size, so a scan does not hold all bytes of a large column."""
    monkeypatch.setattr("nyala.cfile.format.COALESCED_READ_BYTES_MAX", 3 * 1072)
    column = column_of(CFileReader(files, "f", places=places), 10)
    stats = ReadStats()
    assert column.decode(0, 2000, stats=stats).to_pylist() == list(range(0, 20_000, 10))
    assert (stats.reads, stats.blocks_read) == (6, 16)


def test_zones(files: MemoryFiles, places: tuple[ColumnPlace, ...]) -> None:
    """The zones of a column are read without its blocks."""
    column = column_of(CFileReader(files, "f", places=places), 10)
    assert column.zone(1) == Zone(1280, 2550, 0, 128)
    assert column.zone(15) == Zone(19_200, 19_990, 0, 80)
    assert len(column.zones) == 16
    assert column.column_zone() == Zone(0, 19_990, 0, 2000)


def test_key_index(files: MemoryFiles) -> None:
    """The key index has the encoded key at the first row of each block."""
    requested: list[list[int]] = []

    def first_keys(ordinals: np.ndarray) -> pa.Array:  # type: ignore[type-arg]
        requested.append(ordinals.tolist())
        return pa.array([ordinal.to_bytes(8, "big") for ordinal in ordinals.tolist()], pa.large_binary())

    keys = pa.array([number.to_bytes(12, "big") for number in range(20_000)], pa.large_binary())
    with CFileWriter(files, "f") as writer:
        values = pa.array(range(20_000))
        spec = ColumnWriteSpec(ColumnKey(BASE, 0, 10), parse_type("int64"))
        writer.append_column(spec, values, first_keys=first_keys)
        writer.append_column(ColumnWriteSpec(ColumnKey(BASE, 0, 11), parse_type("int64")), values)
        writer.append_column(ColumnWriteSpec(ColumnKey(KEY), parse_type("binary")), keys)
        writer.finish()
    reader = CFileReader(files, "f")
    reader.check()
    single, value, composite = column_of(reader, 10), column_of(reader, 11), reader.column(ColumnKey(KEY))
    assert composite is not None
    assert requested == [[0, 8192, 16_384]], "the writer requests the first keys once, for blocks of 64 KiB"
    index = single.block_first_keys()
    assert index is not None and index.type == pa.large_binary()
    assert index.to_pylist() == [number.to_bytes(8, "big") for number in requested[0]]
    assert value.block_first_keys() is None and value.block_count == 1
    index = composite.block_first_keys()
    assert index is not None and index.equals(keys.take(pa.array(range(0, 20_000, composite.rows_per_block))))
    assert composite.rows_per_block == 4096 and not composite.has_zones and single.has_zones


def test_a_footer_of_another_column_is_corruption(
    files: MemoryFiles, places: tuple[ColumnPlace, ...]
) -> None:
    """A place that points at another column's footer raises CorruptionError."""
    moved = ColumnPlace(places[0].key, places[1].offset, places[1].length)
    with pytest.raises(
        CorruptionError,
        match=r"f at offset \d+: .*expected column 10 of the base data, found column 11 of the base data",
    ):
        CFileReader(files, "f", places=[moved]).column(places[0].key)
    with pytest.raises(CorruptionError, match="catalogue"):
        CFileReader(files, "f", places=[moved]).check()


def test_a_block_at_another_place_is_corruption(files: MemoryFiles, places: tuple[ColumnPlace, ...]) -> None:
    """A good block that the disk wrote to a wrong place raises CorruptionError."""
    column = column_of(CFileReader(files, "f", places=places), 10)
    first, second = (int(offset) for offset in column.footer.block_offsets[:2])
    content = files.content["f"]
    length = second - first
    files.content["f"] = content[:second] + content[first:second] + content[second + length :]
    with pytest.raises(CorruptionError, match="expected the block of 128 rows from ordinal 128"):
        column.decode(128, 256)


def test_other_files_are_refused(files: MemoryFiles) -> None:
    """A file of another kind raises an error that says so."""
    for content, reason in (
        (b"", "file's end"),
        (b"PAR1" + bytes(100), "magic"),
        (b"nyalacf\n" + bytes(92), "CRC"),
    ):
        files.content["x"] = content
        with pytest.raises(CorruptionError, match=reason):
            CFileReader(files, "x").columns()


def test_files_of_a_newer_version_are_refused(files: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a newer version is refused, and the message advises to update Nyala."""

    def write(path: str) -> None:
        with CFileWriter(files, path) as writer:
            writer.append_column(
                ColumnWriteSpec(ColumnKey(BASE), parse_type("int8")), pa.array([1], pa.int8())
            )
            writer.finish()

    with monkeypatch.context() as patch:
        patch.setattr("nyala.cfile.format.FORMAT_VERSION", 99)
        write("newer")
    with pytest.raises(StorageError, match="version 99"):
        CFileReader(files, "newer").columns()


def test_check_finds_damage_that_reads_do_not(files: MemoryFiles, places: tuple[ColumnPlace, ...]) -> None:
    """The check finds bytes that no read covers."""
    reader = CFileReader(files, "f", places=places)
    reader.check()
    files.content["f"] = b"N" + files.content["f"][1:]
    with pytest.raises(CorruptionError, match="magic"):
        reader.check()


def test_a_closed_reader_closes_its_file(files: MemoryFiles, places: tuple[ColumnPlace, ...]) -> None:
    """A closed reader closes its file and drops its blocks from the cache."""
    with CFileReader(files, "f", places=places) as reader:
        column_of(reader, 10).decode(0, 1)
        assert reader._file is not None
    assert reader._file is None
    reader.close()


@pytest.mark.parametrize(
    ("type", "values", "bytes_per_row"),
    [
        ("decimal(15,2)", pa.array(range(50_000)).cast(pa.decimal128(38, 2)).cast(pa.decimal128(15, 2)), 8),
        ("string", pa.array(["one text of several", "another one of them"] * 25_000), 4),
    ],
)
def test_look_ups_cache_blocks_in_the_smallest_form(
    files: MemoryFiles, type: str, values: pa.Array, bytes_per_row: int
) -> None:
    """Random look-ups cache encoded blocks, so that the cache holds more of them."""
    with CFileWriter(files, "f") as writer:
        writer.append_column(ColumnWriteSpec(ColumnKey(BASE, 0, 7), parse_type(type)), values)
        writer.finish()
    cache = BlockCache(1 << 30)
    column = column_of(CFileReader(files, "f", cache), 7)
    rows = np.array([49_000, 3, 3])
    assert column.gather(rows).equals(values.take(pa.array(rows)))
    assert column.decode(100, 130).equals(values.slice(100, 30))
    assert cache.size_bytes < 50_000 * bytes_per_row + 2000
    stats = ReadStats()
    column.gather(rows, stats=stats)
    column.decode(100, 130, stats=stats)
    assert (stats.cache_hits, stats.reads) == (2, 0)
