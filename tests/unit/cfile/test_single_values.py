"""Single values of a block, taken from it as it lies: the same as all of them decoded, and as well guarded."""

from __future__ import annotations

import dataclasses
import decimal
import gc
import itertools
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.cfile.memory import TYPE_SPECS, MemoryFiles, make_values, same
from tests.unit.cfile.test_roundtrip import COLUMN, written

from nyala.cfile import format, kernels, memory, writer
from nyala.cfile.block import encode_block
from nyala.cfile.cache import BlockCache
from nyala.cfile.column import ColumnWriteSpec
from nyala.cfile.column_reader import ColumnReader
from nyala.cfile.encoded_rows import picked
from nyala.cfile.encoding import PLAIN, frame
from nyala.cfile.encoding.rle import Runs
from nyala.cfile.gathering import Cut, Ordinals, gathered, joined_columns, joined_picks
from nyala.cfile.physical import physical
from nyala.cfile.planes import pack_planes
from nyala.cfile.read_stats import ReadStats
from nyala.cfile.reader import CFileReader
from nyala.cfile.single_values import few_between, pick_all
from nyala.errors import CorruptionError
from nyala.schema.arrow_values import python_value
from nyala.schema.constraint import EMPTY, NULL_ONLY, Constraint
from nyala.schema.types import parse_type

ROWS = 3000
SOME = np.array([0, 1, 7, 511, 512, 1300, 1301, 2999])
ENCODINGS = ("auto", "plain", "bitshuffle", "dictionary", "rle", "for", "prefix", "alp")


def python(array: pa.Array, row: int) -> Any:
    try:
        return array[row].as_py()
    except (OverflowError, ValueError):  # a day or a time that Python has none for
        return array[row].value if pa.types.is_timestamp(array.type) else OverflowError


def told(column: ColumnReader, row: int) -> Any:
    try:
        return column.singles.value(row)
    except (OverflowError, ValueError):
        return OverflowError


def exactly(value: Any) -> Any:
    """Also the digits of a decimal, the sign of a zero, and NaN."""
    if isinstance(value, decimal.Decimal):
        return value.as_tuple()
    return repr(value)


@pytest.mark.parametrize("type", TYPE_SPECS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_few_rows_are_what_all_of_them_are(files: MemoryFiles, type: str, encoding: str) -> None:
    """`get` and `get_many` would give other values than a scan does."""
    for compression, null_share in itertools.product(("default", "zstd"), (0.0, 0.3, 1.0)):
        array = make_values(type, ROWS, null_share=null_share)
        column = written(files, array, type, encoding, compression, 2048, BlockCache(1 << 24))
        expected = array.take(pa.array(SOME))
        for _ in range(2):  # from the file, and from the cache
            assert same(column.singles.gather(SOME), expected)
            assert same(joined_picks([column.singles.pick(Ordinals(SOME))]), expected)
            assert same(joined_picks(pick_all([column.singles], Ordinals(SOME), None)), expected)
            assert same(column.singles.gather(SOME[::-1]), array.take(pa.array(SOME[::-1])))
            for lower in (0, 500, min(column.rows_per_block, 2048) - 4, 2990):
                expected_rows = array.slice(lower, 9)
                assert same(column.read(lower, lower + 9), expected_rows)
                assert same(few_between([column.singles], lower, lower + 9, None)[0], expected_rows)
            for row in SOME.tolist():
                assert exactly(told(column, row)) == exactly(python(array, row))


LAYOUTS = {
    "small numbers": lambda n: n * 37 % 11,
    "of 18 bits": lambda n: n * n * 31 % 200_003 - 50_000,
    "of 63 bits": lambda n: n * 6_364_136_223_846_793_005 % (1 << 63),
    "below zero and above": lambda n: (-1) ** n * (1 << 62) + n,
    "one number": lambda n: -5,
    "whole hundreds": lambda n: n * 13 % 77 * 100,
    "a line": lambda n: 10 + 3 * n,
    "near a line": lambda n: 10 - 1000 * n + n * n % 7,
    "few numbers far apart": lambda n: (1, -(1 << 40), 1 << 50)[n % 3],
    "gaps of few sizes": lambda n: n + n // 7 * 20 - 1000,
    "gaps of some bits": lambda n: -60_000_000 * n + (n * n * 7 // 3 % 3) * 1_000_000,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_frames_of_every_layout(files: MemoryFiles, layout: str) -> None:
    """A plane, a unit or a step would be put together wrongly."""
    array = pa.array([LAYOUTS[layout](n) for n in range(ROWS)], pa.int64())
    column = written(files, array, "int64", "for", block_size_bytes=2048, cache=BlockCache(1 << 24))
    assert column.has_frames and column.block_count > 1
    assert column.singles.gather(SOME).equals(array.take(pa.array(SOME)))
    assert [column.singles.value(row) for row in range(ROWS)] == array.to_pylist()
    shift = column.rows_per_block
    for lower, upper in (
        (0, 9),
        (shift - 3, shift + 3),
        (shift // 2 - 2, shift // 2 + 3),
        (shift // 8, shift // 8 + 2),
    ):
        assert column.read(lower, upper).equals(array.slice(lower, upper - lower))


def test_long_runs_are_kept_as_runs(files: MemoryFiles) -> None:
    """Of a sensor's number, the same for thousands of rows, look-ups keep a run and not its rows."""
    numbers = np.repeat(np.arange(60) * 3 - 50, np.arange(60) + 20)
    array, cache = pa.array(numbers, pa.int32()), BlockCache(1 << 24)
    column = written(files, array, "int32", "rle", block_size_bytes=8192, cache=cache)
    assert column.has_runs and column.block_count > 1
    rows = np.array([0, 19, 20, 40, 41, 1023, 1024, len(array) - 1])
    assert column.singles.gather(rows).equals(array.take(pa.array(rows)))
    assert column.singles.gather(rows[::-1]).equals(array.take(pa.array(rows[::-1])))
    assert column.read(1020, 1030).equals(array.slice(1020, 10))
    assert [column.singles.value(row) for row in range(len(array))] == numbers.tolist()
    assert 0 < cache.size_bytes < array.nbytes / 2


def test_runs_beside_a_block_with_nulls() -> None:
    """A footer that knows of no NULL may be wrong of one block, and then values of all blocks are put together."""
    runs = Runs(physical(parse_type("int32")), np.array([5, 7], np.int32), np.array([3, 6]))
    cut = Cut([0, 1], [(0, 3), (3, 5)], np.array([2, 3, 5, 1, 0]), np.array([4, 0, 1, 2, 3]))
    found = gathered([runs, pa.array([1, None], pa.int32())], cut)
    found.validate(full=True)
    assert found.to_pylist() == [7, 7, None, 1, 5]
    assert found.null_count == 1 and found.slice(0, 2).null_count == 0
    assert runs.nbytes == 2 * 4 + 2 * 8, "what the cache counts"


@pytest.mark.parametrize(("run", "are_runs"), [(1, False), (2, False), (3, True), (8, True)])
def test_runs_are_kept_where_they_are_smaller_than_rows(files: MemoryFiles, run: int, are_runs: bool) -> None:
    """Order keys, four rows each: decoded, a look-up would keep eight bytes for each row."""
    array, cache = pa.array(np.repeat(np.arange(9000 // run), run)), BlockCache(1 << 24)
    column = written(files, array, "int64", "rle", cache=cache)
    rows = np.array([0, 1, 2, 3, 4, 5, 8000, len(array) - 1])
    assert column.singles.gather(rows).equals(array.take(pa.array(rows)))
    assert (cache.size_bytes < array.nbytes) == are_runs


@pytest.mark.parametrize("compiled", [True, False])
def test_frames_of_several_files_are_put_together_at_once(
    files: MemoryFiles, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    """Bits, units and steps of one file would be applied to another's; or a look-up pay for each file by itself."""
    monkeypatch.setattr(kernels, "COMPILED", compiled)
    arrays = [pa.array([LAYOUTS[layout](n) for n in range(ROWS)], pa.int64()) for layout in LAYOUTS]
    arrays += [pa.array([n * n * 37 % 200_003 + 9 for n in range(ROWS)], pa.int64())]
    columns = [written(files, array, "int64", "for", block_size_bytes=2048) for array in arrays]
    expected = pa.concat_arrays([array.take(pa.array(SOME)) for array in arrays])
    assert joined_picks([column.singles.pick(Ordinals(SOME)) for column in columns]).equals(expected)
    alike = [columns[1], columns[-1]]
    made = []
    module, name = (kernels, "fill") if compiled else (frame, "fetch_planes")
    call = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *given: made.append(1) or call(*given))
    joined_picks([column.singles.pick(Ordinals(SOME)) for column in alike])
    assert len(made) == 1


@pytest.mark.parametrize("compiled", [True, False])
def test_several_columns_are_the_same_as_each_by_itself(
    files: MemoryFiles, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    """Columns of frames are filled together, between others that are not; none may take another's place or type."""
    monkeypatch.setattr(kernels, "COMPILED", compiled)
    numbers = [n * n % 97 - 40 for n in range(ROWS)]
    kinds = {
        "int16": pa.array(numbers, pa.int16()),
        "string": pa.array([f"é{n}" for n in numbers]),
        "decimal(9,2)": pa.array([Decimal(n) / 100 for n in numbers], pa.decimal128(9, 2)),
        "date": pa.array(numbers, pa.int32()).view(pa.date32()),
        "double": pa.array(numbers, pa.float64()),
        "decimal(38,0)": pa.array([Decimal(n) for n in numbers], pa.decimal128(38, 0)),
        "timestamp": pa.array(numbers, pa.int64()).view(parse_type("timestamp").arrow),
    }
    for places, is_range in ((SOME, False), (np.arange(700, 760), True)):
        columns, expected = [], []
        for kind, array in kinds.items():
            encoding = "dictionary" if kind == "string" else "plain" if kind == "double" else "for"
            parts = [array, array.slice(0, 1000).take(pa.array(np.arange(1000)[::-1]))]
            readers = [written(files, part, kind, encoding, block_size_bytes=2048) for part in parts]
            rows = [Ordinals(places, is_range=is_range), Ordinals(np.array([5, 999]))]
            columns.append([reader.singles.pick(some) for reader, some in zip(readers, rows, strict=True)])
            expected.append(
                pa.concat_arrays([parts[0].take(pa.array(places)), parts[1].take(pa.array([5, 999]))])
            )
        found = joined_columns(columns)
        assert [array.type for array in found] == [array.type for array in expected]
        assert found == expected


@pytest.mark.parametrize("lower", [0, 700, 2040])  # the first: of one block of every column
def test_neighbouring_rows_of_several_columns(files: MemoryFiles, lower: int) -> None:
    """A key range reads them so: from the file, then from the cache, where all but the blocks' border is one call."""
    kinds = {"int16": "for", "string": "dictionary", "varchar(9)": "plain", "double": "plain", "int64": "rle"}
    kinds |= {"decimal(9,2)": "for", "bool": "rle", "timestamp": "for", "binary": "prefix"}
    cache = BlockCache(1 << 24)
    arrays = [make_values(kind, ROWS, null_share=0.3 * (kind == "double")) for kind in kinds]
    readers = [
        written(files, array, kind, kinds[kind], block_size_bytes=4096, cache=cache)
        for kind, array in zip(kinds, arrays, strict=True)
    ]
    for _ in range(2):
        stats = ReadStats()
        found = few_between([reader.singles for reader in readers], lower, lower + 50, stats)
        for array, expected in zip(found, arrays, strict=True):
            assert array.type == expected.type and same(array, expected.slice(lower, 50))
    borders = [lower // reader.rows_per_block != (lower + 49) // reader.rows_per_block for reader in readers]
    assert stats.reads == 0 and stats.cache_hits == len(stats.base_blocks) == len(readers) + sum(borders)
    assert any(borders) == (lower == 2040)


@pytest.mark.parametrize(
    "kind", ["int8", "int16", "int32", "int64", "date", "timestamp", "decimal(9,2)", "decimal(18,0)"]
)
def test_few_values_of_one_file_and_many_of_another(files: MemoryFiles, kind: str) -> None:
    """What is picked out of frames is signed, what lies decoded has no sign: NumPy joins the two to numbers of twice
    the width, and those of 8 bytes to floats."""
    type = parse_type(kind)
    values = [n * n % 97 - 40 for n in range(ROWS)]
    if type.name == "decimal":
        whole = pa.array([Decimal(value) for value in values], pa.decimal128(38, 0)).cast(type.arrow)
    else:
        whole = pa.array(values, f"int{type.arrow.bit_width}").view(type.arrow)
    for encodings in (("for", "for"), ("for", "plain"), ("bitshuffle", "for")):
        arrays = [whole, whole.slice(7, 20)]
        columns = [written(files, array, kind, code) for array, code in zip(arrays, encodings, strict=True)]
        for rows in (np.array([3, 900, 2999]), np.array([4])):
            expected = pa.concat_arrays([whole.take(pa.array(rows)), arrays[1]])
            picks = [
                columns[0].singles.pick(Ordinals(rows)),
                columns[1].singles.pick(Ordinals(np.arange(20))),
            ]
            found = joined_picks(picks)
            assert found.type == type.arrow and found.equals(expected), encodings
            assert joined_picks(picks[::-1]).equals(pa.concat_arrays([arrays[1], whole.take(pa.array(rows))]))


def test_text_of_several_files_is_cut_out_once(files: MemoryFiles) -> None:
    """Lengths would belong to another's bytes."""
    arrays = [pa.array([f"{prefix}{n}" * (n % 5) for n in range(ROWS)]) for prefix in ("é", "b")]
    columns = [written(files, array, "string", "plain", block_size_bytes=2048) for array in arrays]
    for rows in (SOME, np.arange(300, 500), np.array([2999, 0])):
        found = joined_picks([column.singles.pick(Ordinals(rows)) for column in columns])
        found.validate(full=True)
        assert found.equals(pa.concat_arrays([array.take(pa.array(rows)) for array in arrays]))


@pytest.fixture
def frozen() -> Iterator[None]:
    """The garbage collector looks through what the test makes, and not through all that the process has."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("nulls", [0.0, 0.3])
@pytest.mark.parametrize(
    ("type", "encoding"),
    [
        ("string", "plain"),
        ("string", "prefix"),
        ("string", "dictionary"),
        ("double", "plain"),
        ("int32", "for"),
    ],
)
@pytest.mark.parametrize("rows", [range(5_000, 5_001), range(5_000, 5_020), range(100, 30_000, 10_000)])
def test_what_was_picked_holds_no_block(
    files: MemoryFiles, type: str, encoding: str, nulls: float, rows: range
) -> None:
    """Rows of a hundred files would hold a block of each, until they are joined."""
    array = make_values(type, 40_000, null_share=nulls)
    column = written(files, array, type, encoding, "default", 1 << 16, BlockCache(1))
    ordinals = Ordinals(np.array(rows), is_range=len(rows) > 3)
    if encoding == "dictionary":
        column.read_codes(0, 1)
    pools = [memory.pool(), pa.default_memory_pool()]
    gc.collect()
    before = sum(pool.bytes_allocated() for pool in pools)
    picked = pick_all([column.singles], ordinals, None)
    gc.collect()
    held = sum(pool.bytes_allocated() for pool in pools) - before
    assert held < 1 << 13, f"{held} bytes for {len(rows)} values"
    assert joined_picks(picked).equals(array.take(pa.array(ordinals.places)))


@pytest.mark.parametrize(("type", "encoding"), [("string", "plain"), ("double", "plain"), ("int32", "for")])
def test_neighbouring_rows_hold_no_block(files: MemoryFiles, type: str, encoding: str) -> None:
    """A slice of what the cache has would be the block, however little is asked of it."""
    column = written(
        files, make_values(type, 40_000), type, encoding, "default", 1 << 16, BlockCache(1 << 24)
    )
    for _ in range(2):
        found = few_between([column.singles], 5_000, 5_020, None)
    blocks = [
        kept for kept in (column._source.kept(column.singles._few, n) for n in range(9)) if kept is not None
    ]
    places = [
        buffer.address for block in blocks if isinstance(block, pa.Array) for buffer in block.buffers()[1:]
    ]
    assert len(blocks) == 1 and (places or encoding == "for")
    assert all(buffer.size < 4096 and buffer.address not in places for buffer in found[0].buffers()[1:])


def test_a_look_up_keeps_blocks_as_small_as_they_lie(files: MemoryFiles) -> None:
    """Decoded, lineitem's columns took three times the room, and a look-up at memory_limit 1 GB found none of them."""
    numbers = pa.array(np.arange(100_000) * 7919 % 4000, pa.int64())
    words = pa.array([f"word {n % 7}" for n in range(100_000)])
    for type, encoding, array in (("int64", "for", numbers), ("string", "dictionary", words)):
        cache = BlockCache(1 << 26)
        column = written(files, array, type, encoding, cache=cache)
        column.singles.gather(SOME)
        assert 0 < cache.size_bytes <= 2 * len(array)  # of which Arrow's have 8 and 4 + words
        before = cache.size_bytes
        column.singles.value(9)
        column.read(5, 30)
        assert cache.size_bytes == before


def test_many_rows_of_a_block_are_decoded(files: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking half of a block's values one by one costs more than decoding it."""
    array = pa.array(np.arange(5000) * 7919 % 4000, pa.int64())
    column = written(files, array, "int64", "for")
    rows = np.arange(0, 5000, 2)
    monkeypatch.setattr(frame.Frame, "words", None)
    assert column.singles.gather(rows).equals(array.take(pa.array(rows)))


def test_a_footer_that_knows_of_no_null_is_not_believed(files: MemoryFiles) -> None:
    """The block has the NULLs; to take its array for a frame would be an AttributeError."""
    array = make_values("int64", ROWS, null_share=0.3)
    honest = written(files, array, "int64", "for", block_size_bytes=2048)
    footer = dataclasses.replace(honest.footer, null_count=0)
    column = ColumnReader(honest._source._reader, footer, honest.place)
    assert column.has_frames
    assert same(column.singles.gather(SOME), array.take(pa.array(SOME)))
    assert [column.singles.value(row) for row in SOME.tolist()] == array.take(pa.array(SOME)).to_pylist()


@pytest.mark.parametrize(
    ("type", "encoding"), [("int64", "for"), ("string", "dictionary"), ("string", "plain")]
)
def test_a_damaged_block_is_refused_before_a_value_is_taken_from_it(
    files: MemoryFiles, type: str, encoding: str
) -> None:
    """A flipped bit would be another value, or an IndexError."""
    column = written(files, make_values(type, 500), type, encoding, "none", 1024)
    path, whole = "file-0", files.content["file-0"]
    offset, length = column.extents()[0]
    for at in range(offset, offset + length, 7):
        files.content[path] = whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :]
        damaged = CFileReader(files, path, BlockCache(1 << 20)).column(COLUMN)
        assert damaged is not None
        for look_up in (
            lambda c: c.singles.value(3),
            lambda c: c.singles.gather(np.array([3])),
            lambda c: c.singles.pick(Ordinals(np.array([3]))),
        ):
            with pytest.raises(CorruptionError) as raised:
                look_up(damaged)
            assert (raised.value.path, raised.value.offset) == (path, offset)
    files.content[path] = whole


def with_values(block_path: str, files: MemoryFiles, column: ColumnReader, values: bytes) -> ColumnReader:
    """The column with other bytes for the values of its first block, as long as they were, and a CRC that is right."""
    import google_crc32c

    from nyala.cfile.block import read_header

    whole = files.content[block_path]
    offset, length = column.extents()[0]
    block = bytearray(whole[offset : offset + length])
    header = read_header(pa.py_buffer(bytes(block)), block_path, offset)
    assert header.values_length == len(values)
    block[header.values_start : header.values_start + len(values)] = values
    block[-4:] = format.CRC.pack(google_crc32c.value(bytes(block[:-4])))
    files.content[block_path] = whole[:offset] + bytes(block) + whole[offset + length :]
    reader = CFileReader(files, block_path, BlockCache(1 << 20)).column(COLUMN)
    assert reader is not None
    return reader


def test_what_no_encoder_writes_is_refused_though_its_crc_is_right(files: MemoryFiles) -> None:
    """Codewords beyond a dictionary would be IndexErrors, or other values."""
    codes = np.random.default_rng(7).integers(0, 7, 4096)
    words = pa.array([f"word {n}" for n in codes])
    column = written(files, words, "string", "dictionary", "none")
    header = format.CODEWORDS_HEADER.pack(format.CODEWORDS_PLANES, 3, bytes(2), 0)
    codes[-1] = 7
    broken = with_values("file-0", files, column, header + pack_planes(codes, 3))
    with pytest.raises(CorruptionError, match="expected codewords below 7, found 7"):
        broken.singles.value(0)


@pytest.mark.parametrize("nulls", [[0], [0, 2], [0, 1, 2]])
def test_a_dictionary_without_a_word_is_refused_though_its_crc_is_right(
    files: MemoryFiles, monkeypatch: pytest.MonkeyPatch, nulls: list[int]
) -> None:
    """Rows would be NULL in one form of the column and not in another, and their count not what the footer says."""

    def forged(made: Any) -> Any:
        words = made.encoder.dictionary
        there = np.ones(len(words), np.bool_)
        there[nulls] = False
        validity = pa.py_buffer(np.packbits(there, bitorder="little").tobytes())
        encoder = PLAIN.prepare(physical(parse_type("binary")), words)
        assert encoder is not None
        block = encode_block(PLAIN, encoder, format.COMPRESSION_NONE, validity, len(words))
        return writer._Words(block, len(words))

    monkeypatch.setattr(writer, "_dictionary", forged)
    made = writer.CFileWriter(files, "file-0")
    spec = ColumnWriteSpec(COLUMN, parse_type("string"), "dictionary", "none")
    made.append_column(spec, pa.array(["red", "blue", "green"] * 100))
    made.finish()
    column = CFileReader(files, "file-0").column(COLUMN)
    assert column is not None
    for look_up in (
        lambda: column.singles.value(0),
        lambda: column.read(0, 300),
        lambda: column.read_codes(0, 300, scanning=True),
        lambda: column.singles.gather(SOME[:3]),
        lambda: column.encoded(0, 300),
        lambda: column.check(),
    ):
        with pytest.raises(CorruptionError, match=f"expected 3 words, found {len(nulls)} NULLs") as raised:
            look_up()
        assert raised.value.path == "file-0"
        assert raised.value.offset == column.footer.dictionary_offset


def test_a_block_of_a_dictionary_has_codewords_and_the_nulls_that_the_footer_says(files: MemoryFiles) -> None:
    """Offsets of text would be taken for codewords, or a NULL for a word, where a file is put together of others."""
    words = pa.array([f"w{n % 3}" for n in range(40)])
    column = written(files, words, "string", "dictionary", "none")
    plain = written(files, words, "string", "plain", "none")
    block, footer = plain._source.read(0)[0], column.footer
    at = int(footer.block_offsets[0])
    files.content["file-0"] = files.content["file-0"][:at] + block.to_pybytes()
    forged = dataclasses.replace(footer, block_lengths=np.array([block.size], np.uint32))
    column._source._footer = forged
    for look_up in (
        lambda: column.singles.gather(np.array([0, 1, 2])),
        lambda: column.singles.value(1),
        lambda: column.singles.pick(Ordinals(np.array([1]))),
        lambda: column.read_codes(0, 40),
    ):
        with pytest.raises(
            CorruptionError, match="expected a block of codewords, found one of encoding plain"
        ):
            look_up()
    some = pa.array([None if n % 5 == 0 else f"w{n % 3}" for n in range(40)])
    numbers = pa.array([None if n % 5 == 0 else n for n in range(40)], pa.int64())
    stretches = pa.array([None if n // 20 % 2 else 7 for n in range(400)], pa.int64())
    for array, type, encoding in (some, "string", "dictionary"), (numbers, "int64", "for"):
        column = written(files, array, type, encoding, "none")
        column._footer = column._source._footer = column.singles._footer = dataclasses.replace(
            column.footer, null_count=0
        )
        with pytest.raises(CorruptionError, match="expected no NULLs, as the column's footer says, found 8"):
            column.encoded(0, 40)
    column = written(files, stretches, "int64", "rle", "none")
    column._source._footer = dataclasses.replace(column.footer, null_count=0)
    with pytest.raises(CorruptionError, match="expected no NULLs, as the column's footer says, found 10"):
        column.read_runs(0, 400)


@pytest.mark.parametrize(
    ("type", "encoding"),
    [("int64", "for"), ("date", "for"), ("decimal(9,2)", "for"), ("string", "dictionary"), ("binary", "dictionary")],
)  # fmt: skip
@pytest.mark.parametrize("share", [0.02, 0.5])
def test_rows_with_nulls_tell_as_they_lie_what_each_value_would(
    files: MemoryFiles, type: str, encoding: str, share: float
) -> None:
    """What lies where a NULL is would be taken for a value, or a NULL for what a constraint admits."""
    count, parsed = 20_000, parse_type(type)
    chance = np.random.default_rng(int(share * 100))
    rows = np.arange(count)
    missing = (chance.random(count) < share) | ((rows > 5000) & (rows < 15_000))  # and blocks of nothing else
    numbers = chance.integers(0, 200, count)
    if parsed.is_variable:
        array = pa.array([f"w{n:03}" for n in numbers.tolist()], mask=missing).cast(parsed.arrow)
    elif parsed.name == "decimal":
        array = pa.array([Decimal(n) / 100 for n in numbers.tolist()], parsed.arrow, mask=missing)
    else:
        array = pa.array(numbers, pa.int32(), mask=missing).cast(parsed.arrow)
    column = written(files, array, type, encoding, "default", 2048, BlockCache(1 << 24))
    assert column.block_count > 9
    values = [f"w{n:03}" for n in range(200)] if parsed.is_variable else list(range(200))
    if parsed.name == "binary":
        values = [value.encode() for value in values]
    given = [None if gone else values[n] for n, gone in zip(numbers.tolist(), missing.tolist(), strict=True)]
    every = [None, *values]
    ranges = [
        Constraint.one_of(values[7:8]),
        Constraint.one_of([values[3], values[9], values[40]]),
        Constraint.between(parsed, values[3], values[50]),
        Constraint.between(parsed, None, values[3]),
    ]
    constraints = [*ranges, NULL_ONLY, EMPTY, *(found.union(NULL_ONLY) for found in ranges)]
    for lower, upper in ((0, count), (4999, 15_003), (5, 6), (7000, 7001), (6001, 14_001)):
        for _ in range(2):  # from the file, and from the cache
            found = column.encoded(lower, upper)
            assert found is not None
            for constraint in constraints:
                is_admitted = {value: constraint.admits(value) for value in every}
                expected = np.array([is_admitted[value] for value in given[lower:upper]])
                assert np.array_equal(found.matches(constraint), expected), (lower, constraint)
                some = np.flatnonzero(expected)
                wanted = array.slice(lower, upper - lower).take(pa.array(some))
                for values in (picked(found, some), picked(found, some, satisfying=constraint)):
                    values = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
                    values.validate(full=True)
                    assert values.equals(wanted), (lower, constraint)


@pytest.mark.parametrize("words", [1, 3, 300])
@pytest.mark.parametrize("is_sorted", [False, True], ids=["planes", "shuffled"])
def test_codewords_as_they_lie_tell_what_the_words_would(
    files: MemoryFiles, words: int, is_sorted: bool
) -> None:
    """A filter by text leaves other rows out than the text says, or gives other text for those that it leaves."""
    count = 20_000
    numbers = np.random.default_rng(words).integers(0, words, count)
    texts = [f"w{number:03}" for number in (np.sort(numbers) if is_sorted else numbers).tolist()]
    column = written(files, pa.array(texts), "string", "dictionary", "none", 1 << 15, BlockCache(1 << 24))
    layouts = {column._source.read(block)[0][format.BLOCK_HEADER.size] for block in range(column.block_count)}
    assert column.block_count > 1
    assert (format.CODEWORDS_SHUFFLED in layouts) == (is_sorted and words > 1), "the case is what it says"
    text = parse_type("string")
    for lower, upper in ((0, count), (1000, 12_900), (5, 6)):
        rows = column.encoded(lower, upper)
        assert rows is not None
        for constraint in (
            Constraint.one_of(["w001"]),
            Constraint.one_of(["w000", "w002", "w299", "x"]),
            Constraint.one_of(["nothing"]),
            Constraint.between(text, "w001", "w100", upper_inclusive=False),
            Constraint.between(text, None, "w000"),
            Constraint.between(text, "w"),
        ):
            is_admitted = {word: constraint.admits(word) for word in set(texts)}
            expected = [is_admitted[word] for word in texts[lower:upper]]
            assert rows.matches(constraint).tolist() == expected
            some = np.flatnonzero(expected)
            wanted = [texts[lower + row] for row in some.tolist()]
            assert picked(rows, some).to_pylist() == wanted
            assert picked(rows, some, satisfying=constraint).to_pylist() == wanted


@pytest.mark.parametrize("is_sorted", [False, True], ids=["planes", "shuffled"])
def test_codewords_of_no_word_are_found_out_before_they_are_compared(
    files: MemoryFiles, is_sorted: bool
) -> None:
    """A damaged block answers a filter as if it had no such row."""
    numbers = np.random.default_rng(1).integers(0, 5, ROWS)
    texts = [f"w{number}" for number in (np.sort(numbers) if is_sorted else numbers).tolist()]
    column = written(files, pa.array(texts), "string", "dictionary", "none", 1 << 16)
    layout = column._source.read(0)[0][format.BLOCK_HEADER.size]
    assert (layout == format.CODEWORDS_SHUFFLED) == is_sorted, "the case is what it says"
    column._source._words._held = column._source.dictionary(None).slice(0, 4)
    with pytest.raises(CorruptionError, match="expected codewords below 4, found 4"):
        column.encoded(0, ROWS)


@pytest.mark.parametrize(
    "type", ["int8", "int64", "date", "timestamp", "decimal(9,2)", "decimal(18,18)", "decimal(5,0)"]
)
def test_numbers_become_what_arrow_makes_of_them(type: str) -> None:
    """`get` would give other digits, another day or another zone than `to_pylist`."""
    parsed = parse_type(type)
    make = python_value(parsed)
    assert parsed.value_min is not None and parsed.value_max is not None
    storage = {"date": pa.int32(), "timestamp": pa.int64()}.get(parsed.name)
    for number in (0, 1, -1, 7, 100, parsed.value_max, parsed.value_min):
        if parsed.name == "decimal":
            exact = decimal.Decimal(number).scaleb(-(parsed.scale or 0), decimal.Context(prec=50))
            array = pa.array([exact], parsed.arrow)
        else:
            array = pa.array([number], storage or parsed.arrow).cast(parsed.arrow)
        with decimal.localcontext(decimal.Context(prec=2)):  # a user's own context rounds nothing of ours
            try:
                expected = array[0].as_py()
            except (OverflowError, ValueError) as error:
                if parsed.name == "timestamp":  # which no datetime holds
                    assert make(number) == number
                else:
                    with pytest.raises(type_of(error)):
                        make(number)
            else:
                assert exactly(make(number)) == exactly(expected)


def type_of(error: BaseException) -> type[BaseException]:
    return error.__class__
