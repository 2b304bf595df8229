"""Several columns of a window read at once: the values that each has by itself, by one call for all blocks, and damage
is told as it is anywhere."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.cfile.memory import MemoryFiles, count_fetches

from nyala.cfile import format, kernels, together
from nyala.cfile.block import BLOCK_BYTES_MIN
from nyala.cfile.block_source import BlockForm
from nyala.cfile.cache import BlockCache
from nyala.cfile.column import BASE, ColumnKey, ColumnWriteSpec
from nyala.cfile.column_reader import ColumnReader
from nyala.cfile.encoded_rows import rows_matching
from nyala.cfile.first_pass import PASSES
from nyala.cfile.read_stats import ReadStats
from nyala.cfile.reader import CFileReader
from nyala.cfile.together import arrays_together, encoded_together
from nyala.cfile.writer import CFileWriter
from nyala.env import PosixFiles
from nyala.errors import CorruptionError
from nyala.schema.constraint import Constraint
from nyala.schema.types import parse_type

ROWS = 1000
DAY = dt.date(2020, 1, 1)
COLUMNS: dict[str, tuple[str, str, int, list[Any]]] = {
    # type, encoding, bytes of a block, values: blocks of 16 to 1024 rows
    "number": ("int64", "for", 4096, [i**3 % 2999 - 1500 for i in range(ROWS)]),
    "small": ("int8", "for", 1024, [i % 7 for i in range(ROWS)]),
    "day": ("date", "for", 256, [DAY + dt.timedelta(i % 900) for i in range(ROWS)]),
    "price": ("decimal(15,2)", "for", 512, [Decimal(i * 37 % 9001 - 4000) / 100 for i in range(ROWS)]),
    "steps": ("int64", "for", 512, [i * i // 3 for i in range(ROWS)]),
    "word": ("string", "dictionary", 128, [f"word {i**2 % 11}" for i in range(ROWS)]),
    "maybe": ("int32", "for", 512, [None if i % 3 else i for i in range(ROWS)]),
    "text": ("string", "plain", 512, [f"text {i}" for i in range(ROWS)]),
}
FORMS: dict[str, list[BlockForm]] = {
    "number": ["plain"], "small": ["plain"], "day": ["plain"], "steps": ["plain"], "price": ["plain", "narrow"],
    "word": ["plain", "codes"], "maybe": [], "text": [],
}  # fmt: skip
EVERY: list[BlockForm] = ["plain", "codes", "narrow"]


def write(files: Any, path: str) -> None:
    with CFileWriter(files, path) as writer:
        for number, (spec, encoding, block_bytes, values) in enumerate(COLUMNS.values()):
            type = parse_type(spec)
            asked = ColumnWriteSpec(ColumnKey(BASE, 0, number), type, encoding, "none", block_bytes)
            writer.append_column(asked, pa.array(values, type.arrow))
        writer.finish()


@pytest.fixture(params=["one call", "block by block", "a file that is asked each time"])
def reader(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CFileReader:
    """Read in each of the ways that there are; its cache holds everything."""
    if request.param.startswith("a file"):
        memory: Any = MemoryFiles()
        write(memory, "f")
        return CFileReader(memory, "f", BlockCache(1 << 20))
    if request.param == "one call":
        if not kernels.CAN_FETCH:
            pytest.skip("nothing was compiled")
    else:
        monkeypatch.setattr(kernels, "CAN_FETCH", False)
    return on_disk(tmp_path)


def on_disk(folder: Path) -> CFileReader:
    path = os.fspath(folder / "f")
    write(PosixFiles(), path)
    return CFileReader(PosixFiles(), path, BlockCache(1 << 20))


def column(reader: CFileReader, name: str) -> ColumnReader:
    found = reader.column(ColumnKey(BASE, 0, list(COLUMNS).index(name)))
    assert found is not None
    return found


def all_that_fill(reader: CFileReader) -> list[tuple[ColumnReader, BlockForm]]:
    return [(column(reader, name), form) for name, forms in FORMS.items() for form in forms]


def read_alone(of: ColumnReader, form: BlockForm, lower: int, upper: int) -> pa.Array:
    if form == "codes":
        return of.read_codes(lower, upper)
    return of.read_narrow(lower, upper) if form == "narrow" else of.read(lower, upper)


def test_which_columns_are_written_from_frames(reader: CFileReader) -> None:
    """NULLs, and text that is no codeword, have no place in what one call writes."""
    for name, forms in FORMS.items():
        assert [form for form in EVERY if column(reader, name).fills(form)] == forms, name
    assert [name for name in COLUMNS if column(reader, name).tells] == [
        "number", "small", "day", "price", "steps", "word", "maybe",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "lower, upper", [(0, ROWS), (0, 1), (ROWS - 1, ROWS), (13, 700), (512, 640), (300, 301)]
)
def test_values_are_those_that_each_column_has_by_itself(reader: CFileReader, lower: int, upper: int) -> None:
    """A window whose columns are of different rows would be the worst of all errors."""
    asked = all_that_fill(reader)
    found = arrays_together(asked, lower, upper, None)
    for array, (of, form) in zip(found, asked, strict=True):
        array.validate(full=True)
        assert array.equals(read_alone(of, form, lower, upper)), (of.key, form)


def test_more_text_than_blocks_may_hold_is_damage(
    reader: CFileReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few bytes of codewords may name a long word a thousand times, and memory would be taken for all of them."""
    words = column(reader, "word")
    assert arrays_together([(words, "plain")], 0, ROWS, None)[0].to_pylist() == COLUMNS["word"][3]
    monkeypatch.setattr(format, "BLOCK_VALUES_BYTES_MAX", 90)
    with pytest.raises(CorruptionError, match="at most 90 bytes of values, found more"):
        arrays_together([(words, "plain")], 0, ROWS, None)
    assert arrays_together([(words, "codes")], 0, ROWS, None)[0].to_pylist() == COLUMNS["word"][3]


def test_encoded_rows_are_those_that_each_column_has_by_itself(reader: CFileReader) -> None:
    """A predicate would be asked of other rows."""
    names = ["number", "word", "maybe"]
    constraints = [
        Constraint(lower=0, upper=700, null="none"), Constraint.one_of(["word 3", "word 5"]), Constraint(null="only"),
    ]  # fmt: skip
    for lower, upper in ((0, ROWS), (70, 333)):
        found = encoded_together([column(reader, name) for name in names], lower, upper, None)
        for name, rows, constraint in zip(names, found, constraints, strict=True):
            values = COLUMNS[name][3][lower:upper]
            assert rows.matches(constraint).tolist() == [constraint.admits(value) for value in values], name
        asked = [rows.questions(constraint) for rows, constraint in zip(found, constraints, strict=True)]
        assert asked[0] and asked[1] and asked[2] is None, "of NULLs a column is asked by itself"
        both = found[0].matches(constraints[0]) & found[1].matches(constraints[1])
        assert rows_matching(asked[0] + asked[1], upper - lower).tolist() == [
            row for row, wanted in enumerate(both) if wanted
        ]


def test_one_call_reads_the_blocks_of_all_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call is a turn at the interpreter's lock."""
    reader, calls = on_disk(tmp_path), count_fetches(monkeypatch)
    asked: list[tuple[ColumnReader, BlockForm]]
    asked = [(column(reader, name), forms[0]) for name, forms in FORMS.items() if forms]
    stats = ReadStats()
    arrays_together(asked, 0, 100, stats)
    blocks = [len(of.blocks_of(0, 100)) for of, _ in asked]
    assert calls == [sum(blocks)] and stats.blocks_read == sum(blocks) == len(stats.base_blocks)
    assert stats.reads == sum(blocks) + 1, "and the dictionary"


def test_blocks_of_many_columns_are_not_held_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window of 300 columns would take the memory of their blocks beside that of their values."""
    reader, calls = on_disk(tmp_path), count_fetches(monkeypatch)
    asked = all_that_fill(reader)
    monkeypatch.setattr(together, "FETCHED_BYTES_MAX", 1)
    arrays_together(asked, 1, ROWS, None)
    assert calls == [of.block_count for of, _ in asked], "one column at least"
    if kernels.CAN_FETCH:
        calls.clear()
        asked = [(of, form) for of, form in asked if of.key != column(reader, "small").key]
        arrays_together(asked, 0, ROWS, None)
        assert calls == [sum(of.block_count for of, _ in asked)], "whole blocks lie there one at a time"


def test_a_block_of_several_windows_is_read_once_and_then_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows are smaller than blocks of narrow values: each would read all of the block; and what a scan has read to
    its end is in the way of what look-ups need."""
    reader, calls = on_disk(tmp_path), count_fetches(monkeypatch)
    small = column(reader, "small")
    assert small.block_count == 1 and reader._cache is not None
    for _ in range(PASSES):
        calls.clear()
        assert small.is_new("plain", 0, ROWS)
        for lower in range(0, ROWS, 250):
            arrays_together([(small, "plain")], lower, lower + 250, None)
        assert calls == [1] and len(reader._cache) == 0
    assert not small.is_new("plain", 0, ROWS), "from now on its values are kept, by who reads it alone"
    assert small.is_new("narrow", 0, ROWS), "of another form it was no pass"


def test_frames_that_are_asked_for_often_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dashboard's predicate would read its column from the file each time."""
    reader, calls = on_disk(tmp_path), count_fetches(monkeypatch)
    asked = [column(reader, "number"), column(reader, "day")]
    for _ in range(PASSES + 1):
        encoded_together(asked, 0, ROWS, None)
    assert len(calls) == PASSES + 1
    stats = ReadStats()
    encoded_together(asked, 0, ROWS, stats)
    assert len(calls) == PASSES + 1 and stats.cache_hits == sum(of.block_count for of in asked)


def test_columns_of_several_files_are_read_from_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A major delta compaction leaves a rowset's columns in several files."""
    (tmp_path / "other").mkdir()
    first, second = on_disk(tmp_path), on_disk(tmp_path / "other")
    calls = count_fetches(monkeypatch)
    asked: list[tuple[ColumnReader, BlockForm]] = [
        (column(first, "number"), "plain"), (column(second, "day"), "plain"), (column(first, "steps"), "plain"),
    ]  # fmt: skip
    found = arrays_together(asked, 40, 90, None)
    assert [array.to_pylist() for array in found] == [
        COLUMNS[name][3][40:90] for name in ("number", "day", "steps")
    ]
    assert len(calls) == 2


@pytest.fixture(params=[True, False], ids=["one call", "block by block"])
def ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param and not kernels.CAN_FETCH:
        pytest.skip("nothing was compiled")
    monkeypatch.setattr(kernels, "CAN_FETCH", request.param)
    yield


@pytest.mark.usefixtures("ways")
def test_a_flipped_bit_is_told_with_the_file_and_the_block(tmp_path: Path) -> None:
    """Damage would come out as numbers."""
    reader = on_disk(tmp_path)
    asked = all_that_fill(reader)
    for of, _ in asked:
        offset, length = of.source.place(of.block_count - 1)
        for at in (offset, offset + length // 2, offset + length - 1):
            flip(Path(reader.path), at)
            with pytest.raises(CorruptionError, match="expected a block of .* with CRC-32C") as raised:
                arrays_together(asked, 0, ROWS, None)
            assert (raised.value.path, raised.value.offset) == (reader.path, offset)
            flip(Path(reader.path), at)
    arrays_together(asked, 0, ROWS, None)


@pytest.mark.usefixtures("ways")
def test_a_file_that_is_cut_is_told(tmp_path: Path) -> None:
    """What was in the memory before would be taken for the block."""
    reader = on_disk(tmp_path)
    of, other = column(reader, "steps"), column(reader, "number")  # their footers are read
    offset, length = of.source.place(of.block_count - 1)
    os.truncate(reader.path, offset + length - 1)
    with pytest.raises(CorruptionError, match=f"expected {length} bytes, found the file's end") as raised:
        arrays_together([(of, "plain"), (other, "plain")], 0, ROWS, None)
    assert (raised.value.path, raised.value.offset) == (reader.path, offset)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 8
    path.write_bytes(data)


@pytest.mark.skipif(not kernels.CAN_FETCH, reason="nothing was compiled")
def test_the_kernel_says_which_block_is_not_whole(tmp_path: Path) -> None:
    """Of two damaged files the first would be told, whichever it is."""
    reader = on_disk(tmp_path)
    of = column(reader, "day")
    places = [of.source.place(block) for block in range(4)]

    def asked() -> list[tuple[int, pa.Buffer]]:
        return [(offset, pa.allocate_buffer(length)) for offset, length in places]

    descriptor = os.open(reader.path, os.O_RDONLY)
    try:
        wanted, whole = asked(), Path(reader.path).read_bytes()
        assert kernels.fetch(descriptor, wanted) == -1 and kernels.fetch(descriptor, []) == -1
        assert [data.to_pybytes() for _, data in wanted] == [whole[at : at + size] for at, size in places]
        flip(Path(reader.path), places[2][0] + 40)
        assert kernels.fetch(descriptor, asked()) == 2
        assert kernels.fetch(descriptor, [(len(whole) - 8, pa.allocate_buffer(9))]) == 0, "past the end"
        assert kernels.fetch(descriptor, [(1 << 60, pa.allocate_buffer(9))]) == 0
        for offset, size in ((0, 3), (-1, 64)):
            with pytest.raises(ValueError, match="expected blocks that end with their CRC"):
                kernels.fetch(descriptor, [(offset, pa.allocate_buffer(size))])
        with pytest.raises(BufferError):
            kernels.fetch(descriptor, [(0, pa.py_buffer(bytes(64)))])  # memory that is not to be written
    finally:
        os.close(descriptor)
    assert kernels.fetch(descriptor, asked()) == 0, "a descriptor of nothing"


def test_a_block_that_is_too_short_for_one_is_told(tmp_path: Path) -> None:
    """A forged footer may say of any number of bytes that they are a block."""
    reader = on_disk(tmp_path)
    with pytest.raises(CorruptionError, match="expected a block, found"):
        reader.fetch([(64, BLOCK_BYTES_MIN - 1)])
