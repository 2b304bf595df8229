"""A column's footer and the directory: which of them a reader accepts."""

from __future__ import annotations

import dataclasses

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from tests.unit.cfile.memory import MemoryFiles, make_values

from nyala.cfile import format
from nyala.cfile.column import BASE, KEY, ColumnKey, ColumnWriteSpec
from nyala.cfile.footer import ColumnFooter
from nyala.cfile.index.zone_map import Zone
from nyala.cfile.reader import CFileReader
from nyala.cfile.writer import CFileWriter
from nyala.errors import CorruptionError, StorageError
from nyala.schema.types import parse_type

PATH = "f"
COLUMN = ColumnKey(BASE, 0, 10)


@pytest.fixture
def written(files: MemoryFiles) -> MemoryFiles:
    with CFileWriter(files, PATH) as writer:
        words = pa.array(["red", "green"] * 500)
        writer.append_column(ColumnWriteSpec(COLUMN, parse_type("string"), block_size_bytes=1024), words)
        writer.append_column(ColumnWriteSpec(ColumnKey(KEY), parse_type("binary")), pa.array([b"k"]))
        writer.finish()
    return files


def footer_of(files: MemoryFiles) -> tuple[bytes, int]:
    column = CFileReader(files, PATH).column(COLUMN)
    assert column is not None
    place = column.place
    return files.content[PATH][place.offset : place.offset + place.length], place.offset


def changed(footer: bytes, field: str, value: int) -> bytes:
    """Return the footer with another value in a field, or in a vector's first entry, and the right
    CRC.
    """
    starts = {name: (start, size) for name, start, size in format.FOOTER.fields}
    block_count = int.from_bytes(footer[starts["block count"][0] :][:4], "little")
    starts["block offset"] = (format.FOOTER.size, 8)
    starts["block length"] = (format.FOOTER.size + 8 * block_count, 4)
    start, size = starts[field]
    body = footer[:start] + value.to_bytes(size, "little") + footer[start + size : -format.CRC.size]
    return body + format.CRC.pack(google_crc32c.value(body))


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("magic", 0, "expected magic"),
        ("role", 3, "expected column 10 of the base data"),
        ("column id", 11, "expected column 10 of the base data"),
        ("type", 2, "expected the number of a column type, found 2"),
        ("type", format.TYPE_DECIMAL64, "expected the number of a column type, found 16"),
        ("type", format.TYPE_VARCHAR, "expected the number of a column type, found 19"),
        ("type", format.TYPE_BLOOM, "expected a type that a column of role base may have, found bloom"),
        ("type", format.TYPE_INT64, "expected the numbers of an encoding"),
        ("encoding", format.ENCODING_BITSHUFFLE, "expected the numbers of an encoding"),
        ("encoding", 200, "expected the numbers of an encoding"),
        ("compression", 200, "expected the numbers of an encoding and a compression"),
        ("rows per block log2", 21, r"at most 2\^20 rows"),
        ("rows per block log2", 3, "expected 125 blocks for 1000 rows"),
        ("null count", 1001, "no more NULLs than rows"),
        ("row count", 1 << 60, r"blocks for \d+ rows"),
        ("row count", 1001 + 512, r"blocks for \d+ rows"),
        ("block count", 0, r"blocks for \d+ rows"),
        ("zone map length", 1 << 31, r"expected the footer's parts to have \d+ bytes together"),
        ("first keys length", 16, r"expected the footer's parts to have \d+ bytes together"),
        ("compatible flags", format.COLUMN_HAS_ZONE_MAP | format.COLUMN_HAS_FIRST_KEYS, "expected a header"),
        ("dictionary offset", 0, "expected the dictionary between"),
        ("dictionary offset", 1 << 63, "expected the dictionary between"),
        ("dictionary length", (1 << 32) - 1, "expected the dictionary between"),
        ("dictionary count", 1 << 31, r"at most 2\^20 dictionary entries"),
        ("dictionary length", 0, "no dictionary entries without a dictionary, found 2"),
        ("compatible flags", 0, "encoded keys and bloom filters, found flags 0x0000"),
        ("block offset", 0, "expected blocks between"),
        ("block offset", 31, "expected blocks between"),
        ("block offset", (1 << 64) - 8, "expected blocks between"),
        ("block length", (1 << 32) - 1, "expected blocks between"),
    ],
)
def test_impossible_footers_are_refused(written: MemoryFiles, field: str, value: int, reason: str) -> None:
    """A forged footer is refused before memory is allocated or a block is read by it."""
    footer, offset = footer_of(written)
    assert ColumnFooter.decode(footer, COLUMN, PATH, offset).row_count == 1000
    with pytest.raises(CorruptionError, match=f"f at offset {offset}: column footer: .*{reason}"):
        ColumnFooter.decode(changed(footer, field, value), COLUMN, PATH, offset)


def test_a_key_column_of_numbers_is_refused(files: MemoryFiles) -> None:
    """A key column must store bytes."""
    with CFileWriter(files, PATH) as writer:
        writer.append_column(ColumnWriteSpec(COLUMN, parse_type("int64")), pa.array([1]))
        writer.finish()
    footer, offset = footer_of(files)
    with pytest.raises(
        CorruptionError, match="expected a type that a column of role key may have, found int64"
    ):
        ColumnFooter.decode(changed(footer, "role", KEY), ColumnKey(KEY, 0, 10), PATH, offset)


def test_unknown_flags(written: MemoryFiles) -> None:
    """A file with an unknown incompatible flag is refused; unknown compatible flags are ignored."""
    footer, offset = footer_of(written)
    with pytest.raises(StorageError, match="newer version of Nyala .*0x0008"):
        ColumnFooter.decode(changed(footer, "incompatible flags", 8), COLUMN, PATH, offset)
    flags = format.COLUMN_HAS_ZONE_MAP | 0x8000
    assert (
        ColumnFooter.decode(changed(footer, "compatible flags", flags), COLUMN, PATH, offset).zone_map
        is not None
    )


def test_an_impossible_zone_map_is_reported_at_its_first_use(written: MemoryFiles) -> None:
    """A damaged zone map raises when it is used, and excludes no rows."""
    content, offset = footer_of(written)
    footer = ColumnFooter.decode(content, COLUMN, PATH, offset)
    assert footer.zone_bytes is not None
    for damaged in (footer.zone_bytes[:-1], footer.zone_bytes + b"\0", b""):
        with pytest.raises(CorruptionError, match=f"f at offset {offset}: column footer: expected"):
            _ = dataclasses.replace(footer, zone_bytes=damaged).zone_map


def test_the_same_footer_comes_back() -> None:
    """A footer that is written and read again has the same attributes."""
    for type in ("decimal(30,7)", "varchar(12)", "timestamp"):
        files = MemoryFiles()
        with CFileWriter(files, PATH) as writer:
            spec = ColumnWriteSpec(COLUMN, parse_type(type), "plain", "zstd", 600)
            writer.append_column(spec, make_values(type, 500, null_share=0.2))
            writer.finish()
        data, offset = footer_of(files)
        footer = ColumnFooter.decode(data, None, PATH, offset)
        assert footer.zone_map is not None
        zones = [footer.zone_map.zone(block) for block in range(footer.block_count)]
        id = data[format.FOOTER.size - format.FILE_ID_BYTES : format.FOOTER.size].hex()
        assert footer.encode(zones, id) == data
        assert (footer.form.type, footer.key, footer.row_count) == (parse_type(type), COLUMN, 500)


# -- directory and tail ------------------------------------------------------------------------------------


def with_directory(content: bytes, entries: list[bytes], more: bytes = b"", shift: int = 0) -> bytes:
    """Return the file with other directory entries, `more` bytes before them, and the right CRC."""
    tail = len(content) - format.TAIL.size
    offset, count, *_ = format.TAIL.unpack(content[tail:])
    covered = format.TAIL.pack(offset + shift, len(entries), format.FORMAT_VERSION, 0, 0, 0, 0, b"")[:20]
    directory = b"".join(entries)
    crc = format.CRC.pack(google_crc32c.value(directory + covered))
    assert count == 2
    return content[:offset] + more + directory + covered + crc + format.TAIL_MAGIC


def entries_of(content: bytes) -> list[bytes]:
    end, size = len(content) - format.TAIL.size, format.DIRECTORY_ENTRY.size
    return [content[start : start + size] for start in range(end - 2 * size, end, size)]


def test_impossible_directories_are_refused(written: MemoryFiles) -> None:
    """A directory with a repeated column, or with a footer at a wrong place, is refused."""
    content = written.content[PATH]
    entries = entries_of(content)
    assert with_directory(content, entries) == content
    end = len(content) - format.TAIL.size - len(entries) * format.DIRECTORY_ENTRY.size
    role, zero, group, column_id, length, _ = format.DIRECTORY_ENTRY.unpack(entries[0])
    for offset in (0, end - length + 1, 1 << 62):
        outside = format.DIRECTORY_ENTRY.pack(role, zero, group, column_id, length, offset)
        written.content[PATH] = with_directory(content, [outside, entries[1]])
        with pytest.raises(CorruptionError, match="expected one footer for column 1[01] of the base data"):
            CFileReader(written, PATH).columns()
    written.content[PATH] = with_directory(content, [entries[0], entries[0]])
    with pytest.raises(CorruptionError, match="expected one footer for column 1[01] of the base data"):
        CFileReader(written, PATH).columns()
    for shift in (-1, 1, 1 << 60):
        written.content[PATH] = with_directory(content, entries, shift=shift)
        with pytest.raises(CorruptionError, match="expected the directory of 2 columns"):
            CFileReader(written, PATH).columns()


def test_check_accounts_for_every_byte(written: MemoryFiles) -> None:
    """The check finds bytes that belong to no part of the file."""
    content = written.content[PATH]
    entries = entries_of(content)
    written.content[PATH] = with_directory(content, entries, more=bytes(16), shift=16)
    with pytest.raises(CorruptionError, match="expected the directory at"):
        CFileReader(written, PATH).check()
    written.content[PATH] = with_directory(content, entries[1:])
    with pytest.raises(CorruptionError, match="expected a block or footer at offset 48"):
        CFileReader(written, PATH).check()


def test_check_compares_redundant_facts(files: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check compares zone maps, counts and first keys with the values."""

    def check() -> None:
        files.content.clear()
        with CFileWriter(files, PATH) as writer:
            writer.append_column(ColumnWriteSpec(COLUMN, parse_type("int64")), pa.array([1, None, 3]))
            writer.append_column(ColumnWriteSpec(ColumnKey(KEY), parse_type("binary")), pa.array([b"k"]))
            writer.finish()
        CFileReader(files, PATH).check()

    check()
    encode = ColumnFooter.encode

    def with_wrong_fields(**changes: object) -> object:
        def encode_changed(self: ColumnFooter, zones: list | None, file_id: str) -> bytes:  # type: ignore[type-arg]
            applies = {name: value for name, value in changes.items() if getattr(self, name) is not None}
            return encode(dataclasses.replace(self, **applies), zones, file_id)

        return encode_changed

    monkeypatch.setattr(ColumnFooter, "encode", with_wrong_fields(null_count=0))
    with pytest.raises(CorruptionError, match="expected no NULLs, as the column's footer says, found 1"):
        check()
    monkeypatch.setattr(
        ColumnFooter, "encode", with_wrong_fields(first_keys=pa.array([b"j"], pa.large_binary()))
    )
    with pytest.raises(CorruptionError, match="first key"):
        check()
    monkeypatch.setattr(ColumnFooter, "encode", encode)
    monkeypatch.setattr("nyala.cfile.writer.zone_of", lambda form, stored: Zone(2, 3, 1, 3))
    with pytest.raises(CorruptionError, match=r"expected Zone\(min=2"):
        check()


def test_block_offsets_need_no_alignment(written: MemoryFiles) -> None:
    """Offsets of blocks are read right wherever the footer begins in the file."""
    data, offset = footer_of(written)
    footer = ColumnFooter.decode(data, COLUMN, PATH, offset)
    assert footer.block_count > 4
    ends = footer.block_offsets + footer.block_lengths
    assert np.array_equal(footer.block_offsets[1:], ends[:-1])
    assert footer.dictionary_offset + footer.dictionary_length == footer.block_offsets[0]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (ColumnKey(format.ROLE_BASE, 0, 10), "column 10 of the base data"),
        (ColumnKey(format.ROLE_BASE, 0, -1), "the LIVENESS column of the base data"),
        (ColumnKey(format.ROLE_KEY), "the column of encoded keys"),
        (ColumnKey(format.ROLE_KEY, 6), "the column with the encoded key of every 2^6-th row"),
        (ColumnKey(format.ROLE_BLOOM), "the column of the bloom filter"),
        (ColumnKey(format.ROLE_DELTA_ROWID, 1), "the rowids of the changes in column group 1"),
        (ColumnKey(format.ROLE_DELTA_TIMESTAMP, 1), "the timestamps of the changes in column group 1"),
        (ColumnKey(format.ROLE_DELTA_VALUE, 1, 10), "the changed values of column 10 in column group 1"),
        (ColumnKey(format.ROLE_BASE, 3, 10), "a column of role base, column group 3 and column id 10"),
        (ColumnKey(9, 3, 10), "a column of role number 9, column group 3 and column id 10"),
    ],
)
def test_messages_name_a_column_in_words(key: ColumnKey, words: str) -> None:
    """Messages describe a column by what it contains. Impossible keys show all their numbers."""
    assert key.in_words == words
