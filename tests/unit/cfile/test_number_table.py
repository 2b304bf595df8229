"""A table of numbers for a whole column: when it is written, that every kind of read gives what was written, and that
nothing is believed of it."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cfile.memory import MemoryFiles, same
from tests.unit.cfile.test_dense import sealed
from tests.unit.cfile.test_roundtrip import COLUMN, written

from nyala.cfile import BlockCache, CFileReader, CFileWriter, ColumnReader, ColumnWriteSpec, format, writer
from nyala.cfile.block import BlockHeader, encode_block
from nyala.cfile.dump import dump
from nyala.cfile.encoded_rows import picked
from nyala.cfile.encoding import FRAMES, auto
from nyala.cfile.encoding.frame import Frame
from nyala.cfile.encoding.number_table import probed_bits
from nyala.cfile.footer import ColumnFooter
from nyala.cfile.number_set import NumberSet
from nyala.cfile.physical import physical
from nyala.cfile.writer import column_bytes
from nyala.errors import CorruptionError, StorageError
from nyala.schema.constraint import NULL_ONLY, Constraint
from nyala.schema.types import parse_type

ROWS, DISTINCT = 20_000, 1_500
RANDOM = np.random.default_rng(55)
BLOCK = 4096  # bytes: many blocks
# Of each type so many numbers, far apart.
NUMBERS: dict[str, npt.NDArray[Any]] = {
    "int64": RANDOM.integers(-(1 << 62), 1 << 62, DISTINCT),
    "int32": RANDOM.integers(-(1 << 31), 1 << 31, DISTINCT).astype(np.int32),
    "timestamp": RANDOM.integers(0, 1 << 55, DISTINCT),
    "date": RANDOM.integers(-700_000, 2_900_000, DISTINCT).astype(np.int32),
    "decimal(9,2)": RANDOM.integers(-(10**9) + 1, 10**9, DISTINCT),
    "decimal(18,0)": RANDOM.integers(-(10**18) + 1, 10**18, DISTINCT),
    "double": np.append(RANDOM.normal(size=DISTINCT - 4), [np.nan, -0.0, np.inf, 5e-324]),
    "float": np.append(RANDOM.normal(size=DISTINCT - 3), [np.nan, -0.0, -np.inf]).astype(np.float32),
}


def column_of(type: str, null_share: float = 0.0, rows: int = ROWS) -> pa.Array:
    """Random ones of these numbers."""
    random = np.random.default_rng(7)
    numbers = NUMBERS[type][random.integers(0, len(NUMBERS[type]), rows)]
    arrow = parse_type(type).arrow
    if type.startswith("decimal"):
        made = pa.array(numbers).cast(pa.decimal128(19, 0)).to_pylist()
        values = pa.array([value.scaleb(-arrow.scale) for value in made], arrow)
    else:
        values = pa.array(numbers).cast(arrow)
    if not null_share:
        return values
    return pa.array(values.to_pylist(), arrow, mask=random.random(rows) < null_share)


def layouts(files: MemoryFiles, column: ColumnReader) -> set[int]:
    """Of the frames of a column that is neither compressed nor has NULLs."""
    (content,) = files.content.values()
    at = format.BLOCK_HEADER.size
    return {
        format.FOR_HEADER.unpack_from(content, offset + at)[3]
        for offset in column.footer.block_offsets.tolist()
    }


@pytest.mark.parametrize("null_share", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("type", NUMBERS)
def test_numbers_that_return_are_stored_once(type: str, null_share: float) -> None:
    """Ids of users took their 62 bits in each row that mentions one; and each way to read them gives them back."""
    array = column_of(type, null_share)
    column = written(files := MemoryFiles(), array, type, block_size_bytes=BLOCK, cache=BlockCache(1 << 22))
    footer = column.footer
    assert 0 < footer.table_length and footer.table_count <= DISTINCT and not footer.dictionary_length
    assert column.block_count > 15
    values = ROWS - array.null_count * footer.has_dense
    assert column.size_bytes - footer.table_length < values * 12 / 8 + ROWS / 8 + 220 * column.block_count
    assert f"table       {footer.table_count} numbers, offset" in "\n".join(dump(files, *files.content))
    for lower, upper in ((0, ROWS), (1, ROWS - 1), (700, 5000), (4095, 4096)):
        expected = array.slice(lower, upper - lower)
        for _ in range(2):
            for one in (column.read(lower, upper), column.read(lower, upper, scanning=True)):
                one.validate(full=True)
                assert same(one, expected)
        if type.startswith("decimal"):
            assert column.read_narrow(lower, upper).cast(array.type).equals(expected)
    rows = np.array([0, 5, 5000, 511, 512, ROWS - 1])
    assert same(column.singles.gather(rows), array.take(pa.array(rows)))
    assert column.singles.value(4096) == array[4096].as_py() or type in ("double", "float")
    # To be checked, to be shown, and once for all others.
    assert files.reads.count((footer.table_offset, footer.table_length)) == 3


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("each is there once", pa.array(RANDOM.permutation(ROWS) * (1 << 40))),
        ("one block", pa.array(NUMBERS["int64"][RANDOM.integers(0, DISTINCT, 500)])),
        ("few bits", pa.array(RANDOM.integers(0, 4096, ROWS))),
        ("one number", pa.array(np.full(ROWS, 1 << 40))),
        (
            "three times each",
            pa.array(RANDOM.permutation(np.repeat(RANDOM.integers(0, 1 << 62, ROWS // 3), 3))),
        ),
        ("sorted", pa.array(np.sort(NUMBERS["int64"][RANDOM.integers(0, DISTINCT, ROWS)] >> 40))),
        ("too many", pa.array((np.arange(300_000) * 7919 % (format.TABLE_COUNT_MAX + 1)) << 40)),
        ("NULL", pa.nulls(ROWS, pa.int64())),
    ],
)
def test_a_table_that_saves_little_is_not_written(name: str, array: pa.Array) -> None:
    """Each value would be looked up for nothing."""
    column = written(MemoryFiles(), array, "int64", block_size_bytes=BLOCK)
    assert column.footer.table_length == 0, name


@pytest.mark.parametrize("type", ["int64", "double", "date"])
@pytest.mark.parametrize("last", [[], [5]])
def test_a_probe_of_nothing(type: str, last: list[int]) -> None:
    """A large column of NULLs is judged by a probe of those that are none: the demo has one."""
    arrow = parse_type(type).arrow
    array = pa.concat_arrays([pa.nulls(200_000, arrow), pa.array(last, pa.int32()).cast(arrow)])
    column = written(MemoryFiles(), array, type)
    assert column.footer.table_length == 0 and column.read(0, len(array)).equals(array)


@pytest.mark.parametrize("count", [2, 3, 17, 256])
@pytest.mark.parametrize("encoding", ["auto", "for"])
@pytest.mark.parametrize("run", [1, 7])
def test_a_table_makes_no_column_larger(
    count: int, encoding: str, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small blocks are headers for the most part, which a table does not spare."""
    numbers = np.repeat(NUMBERS["int64"][RANDOM.integers(0, count, ROWS // 4)], run)
    sizes = []
    for returns in (4, 1 << 40):
        monkeypatch.setattr(auto, "_RETURNS_MIN", returns)
        column = written(MemoryFiles(), pa.array(numbers), "int64", encoding, block_size_bytes=512)
        sizes.append(column.size_bytes)
    assert sizes[0] <= sizes[1]


@pytest.mark.parametrize("period", [2003, 3001, 4500])
def test_what_compressing_makes_smaller_has_no_table(period: int) -> None:
    """Ids in one order, again and again: LZ4 finds them in a block of a megabyte, though hardly in a sample."""
    array = pa.array(RANDOM.integers(0, 1 << 62, period)[np.arange(400_000) % period])
    column = written(MemoryFiles(), array, "int64")
    assert 8 * column.size_bytes / len(array) < 3.5 and column.footer.table_length == 0


@pytest.mark.parametrize("period", [1_009, 10_007, 50_000])
def test_ids_in_one_order_are_found(period: int) -> None:
    """Every device each minute: a probe of rows in one distance never met one again, and they took 64 bits."""
    array = pa.array(RANDOM.integers(0, 1 << 62, period)[np.arange(500_000) % period])
    column = written(MemoryFiles(), array, "int64")
    assert 8 * column.size_bytes / len(array) < 23
    assert column.footer.table_count == (0 if period < 8192 else period), "of few, each block's own"


def test_the_largest_table() -> None:
    numbers = np.arange(format.TABLE_COUNT_MAX) << 40 | RANDOM.integers(0, 1 << 40, format.TABLE_COUNT_MAX)
    array = pa.array(RANDOM.permutation(np.repeat(numbers, 4)))
    column = written(MemoryFiles(), array, "int64")
    assert column.footer.table_count == format.TABLE_COUNT_MAX
    assert column.read(0, len(array)).equals(array)


@pytest.mark.parametrize("encoding", ["auto", "for"])
@pytest.mark.parametrize("compression", ["default", "zstd"])
def test_blocks_that_need_no_table_have_none(encoding: str, compression: str) -> None:
    """A stretch in which numbers rise, or one number, would be looked up as well."""
    ids = column_of("int64", rows=40 * BLOCK // 8).to_numpy()
    array = pa.array(np.concatenate([ids, np.arange(2048), np.full(2048, ids[3]), ids[:2048]]))
    column = written(files := MemoryFiles(), array, "int64", encoding, compression, BLOCK)
    assert column.footer.table_length and column.read(0, len(array)).equals(array)
    if compression == "default":
        assert layouts(files, column) == {format.FOR_LINE, format.FOR_SHARED}
        assert column_bytes(
            ColumnWriteSpec(COLUMN, parse_type("int64"), encoding, compression, BLOCK), array
        ) == (
            column.size_bytes - column.footer.table_length - column.place.length,
            column.footer.table_length,
            6,
            False,
        )


def test_a_block_spans_its_own_part_of_the_table_whatever_its_nulls_are() -> None:
    """A NULL would be number 0, and a block that has the last ones only would have as many bits as all."""
    numbers = np.sort(NUMBERS["int64"])
    random = np.random.default_rng(3)
    parts = [
        numbers[lower : lower + 60][random.integers(0, 60, 512)] for lower in (0, 1000, DISTINCT - 60) * 8
    ]
    mask = random.random(512 * len(parts)) < 0.1
    array = pa.array(np.concatenate(parts), mask=mask)
    column = written(files := MemoryFiles(), array, "int64", "for", "none", BLOCK)
    assert not column.footer.has_dense and column.read(0, len(array)).equals(array)
    found = []
    for offset in column.footer.block_offsets.tolist():
        block = files.content["file-0"][offset:]
        start = BlockHeader.unpack(block).values_start
        base, _, _, layout, bits, _, _ = format.FOR_HEADER.unpack_from(block, start)
        found.append((layout, bits, base > 0))
    assert (
        found
        == [(format.FOR_SHARED, 6, False), (format.FOR_SHARED, 6, True), (format.FOR_SHARED, 6, True)] * 8
    )


def test_floats_of_few_digits_stay_decimals_beside_others() -> None:
    """Eleven bits each, which a table of all would make thirteen."""
    digits = np.round(RANDOM.integers(0, 2000, 4096) / 10, 1)
    array = pa.array(np.concatenate([column_of("double").to_numpy(), digits]))
    column = written(files := MemoryFiles(), array, "double", "alp", "none", BLOCK)
    assert column.footer.table_length and same(column.read(0, len(array)), array)
    start = format.BLOCK_HEADER.size
    floats = [files.content["file-0"][offset + start] for offset in column.footer.block_offsets.tolist()]
    assert floats[:39] == [format.ALP_BITS] * 39 and floats[40:] == [format.ALP_DECIMALS] * 8


@pytest.mark.parametrize("type", ["int64", "string"])
@pytest.mark.parametrize("limit", [4 << 20, 100 << 10, 0])
def test_what_blocks_refer_to_lies_in_the_cache(type: str, limit: int) -> None:
    """Eight columns of ten rowsets kept 60 MB of tables, whatever the limit of memory was; so did words."""
    numbers = RANDOM.integers(0, 1 << 62, 40_000)[RANDOM.integers(0, 40_000, 300_000)]
    array = pa.array(numbers) if type == "int64" else pa.array(numbers).cast(pa.string())
    column = written(files := MemoryFiles(), array, type, cache=(cache := BlockCache(limit)))
    footer = column.footer
    place = (footer.table_offset, footer.table_length)
    if type == "string":
        place = (footer.dictionary_offset, footer.dictionary_length)
    assert place[1] > 64 << 10
    files.reads.clear()
    for _ in range(3):
        assert column.read(0, len(array), scanning=True).equals(array)
        assert column.singles.value(7) == array[7].as_py()
        cache.check()
    reads = files.reads.count(place)
    # Without room once for each call, and for a single text once more for its word.
    assert reads == 1 if limit == 4 << 20 else reads <= (6 if type == "int64" else 9)
    held = column.source._words if type == "string" else column.source._numbers
    assert held._held is None
    cache.resize(0)
    gc.collect()
    assert held._shared is not None and held._shared() is None, "nobody has it, so it is gone"
    small = written(MemoryFiles(), column_of("int64"), "int64", block_size_bytes=BLOCK, cache=BlockCache(0))
    small.read(0, ROWS)
    assert small.source._numbers._held is not None, "for what is small nobody asks the cache"


def test_frames_that_are_kept_and_the_column_share_one_table() -> None:
    """Frames in the cache would keep the one that went, beside the one that is read again."""
    numbers = RANDOM.integers(0, 1 << 62, 40_000)[RANDOM.integers(0, 40_000, 300_000)]
    column = written(files := MemoryFiles(), pa.array(numbers), "int64", cache=(cache := BlockCache(4 << 20)))
    frames = column.frames(0, 100_000)
    cache.resize(0)
    gc.collect()
    files.reads.clear()
    assert column.read(0, 300_000).equals(pa.array(numbers))
    assert files.reads.count((column.footer.table_offset, column.footer.table_length)) == 0
    del frames


@pytest.mark.parametrize(
    ("values", "bits"),
    [
        (np.append(np.arange(1024), np.full(976, 7)), 10),  # what returns comes last
        (np.append(np.full(1024, 7), np.arange(976)), 10),
        (np.arange(2000), None),
        (np.zeros(0, np.int64), None),
        (np.zeros(2000, np.int64), 0),
    ],
)
def test_a_probe_of_few_values_is_all_of_them(values: npt.NDArray[Any], bits: int | None) -> None:
    assert probed_bits(values) == bits


def test_a_check_reads_the_table_again() -> None:
    """What was damaged since it was read would be found by the next who opens the file."""
    column = written(files := MemoryFiles(), column_of("int64"), "int64", block_size_bytes=BLOCK)
    column.read(0, ROWS)
    content = bytearray(files.content["file-0"])
    content[column.footer.table_offset + 40] ^= 1
    files.content["file-0"] = bytes(content)
    assert column.read(0, ROWS).equals(column_of("int64"))
    with pytest.raises(CorruptionError, match=f"at offset {column.footer.table_offset}"):
        column.check()


@pytest.mark.parametrize("type", ["int64", "decimal(18,0)", "timestamp"])
@pytest.mark.parametrize("null_share", [0.0, 0.1, 0.6])
@given(data=st.data())
def test_rows_are_asked_of_a_table_as_of_others(type: str, null_share: float, data: st.DataObject) -> None:
    """A filter would find rows of other users."""
    array, column, constraint_of = asked_of(type, null_share)
    constraint = data.draw(constraint_of)
    lower = data.draw(st.sampled_from([0, 1, 900]))
    upper = data.draw(st.sampled_from([16_000, 15_999, 1000]))
    frames = column.frames(lower, upper)
    stored = physical(parse_type(type)).stored_array(array).slice(lower, upper - lower)
    is_admitted = {value: constraint.admits(value) for value in stored.unique().to_pylist()}
    expected = [is_admitted[value] for value in stored.to_pylist()]
    assert frames.matches(constraint).tolist() == expected
    kept = np.flatnonzero(expected)
    if len(kept):
        assert picked(frames, kept).cast(array.type).equals(array.slice(lower).take(pa.array(kept)))


@functools.cache
def asked_of(type: str, null_share: float) -> tuple[pa.Array, ColumnReader, st.SearchStrategy[Constraint]]:
    """A column, its reader, and what it may be asked."""
    array = column_of(type, null_share, 16_000)
    column = written(MemoryFiles(), array, type, "for", block_size_bytes=BLOCK)
    assert column.footer.table_length
    return array, column, constraints(physical(parse_type(type)).stored_array(array))


def constraints(stored: pa.Array) -> st.SearchStrategy[Constraint]:
    """Such as some of these values satisfy, or none, or all."""
    there = np.unique(stored.drop_null().to_numpy(zero_copy_only=False)).tolist()
    least, most = there[0] - 5, there[-1] + 5
    some = (
        st.sampled_from(there)
        | st.sampled_from(there).map(lambda value: value + 1)
        | st.integers(least, most)
    )
    ranges = st.tuples(some, some).map(lambda ends: Constraint(lower=min(ends), upper=max(ends), null="none"))
    return st.one_of(
        ranges,
        st.lists(some, min_size=1, max_size=30).map(Constraint.one_of),
        some.map(lambda value: Constraint(lower=value, null="none")),
        st.sampled_from([Constraint(null="none"), NULL_ONLY, Constraint(upper=least, null="none")]),
    )


@given(
    st.lists(st.integers(-20, 20), min_size=1, max_size=9),
    st.lists(st.integers(-20, 20), min_size=1, max_size=9, unique=True).map(sorted),
    st.booleans(),
)
def test_among_says_what_has_says(values: list[int], numbers: list[int], is_range: bool) -> None:
    constraint = Constraint(lower=min(values), upper=max(values)) if is_range else Constraint.one_of(values)
    asked, table = NumberSet.of(constraint), np.array(numbers)
    found = asked.among(table)
    if isinstance(found, tuple):
        told = np.zeros(len(table), np.bool_)
        if found:
            told[found[0] : found[1] + 1] = True
        found = told
    assert found.tolist() == asked.has(table).tolist()


# -- what a reader believes --------------------------------------------------------------------------------


def with_table(numbers: npt.NDArray[np.int64], monkeypatch: pytest.MonkeyPatch) -> ColumnReader:
    """A column whose blocks are right, over another table than they were written with."""

    def forged(*_: Any) -> Any:
        encoder = FRAMES.prepare(physical(parse_type("int64")), pa.array(numbers))
        assert encoder is not None
        block = encode_block(FRAMES, encoder, format.COMPRESSION_NONE, None, len(numbers))
        return None, writer._Beside(block, len(numbers))

    files = MemoryFiles()
    monkeypatch.setattr(writer, "_beside", forged)
    with CFileWriter(files, "f") as file:
        spec = ColumnWriteSpec(COLUMN, parse_type("int32"), "for", "none", BLOCK)
        file.append_column(spec, column_of("int32"))
        file.finish()
    column = CFileReader(files, "f").column(COLUMN)
    assert column is not None
    return column


RIGHT = np.unique(column_of("int32").to_numpy()).astype(np.int64)


@pytest.mark.parametrize(
    ("name", "numbers", "reason"),
    [
        ("descends", RIGHT[::-1].copy(), "numbers of int32 that ascend, found others"),
        ("one twice", np.append(RIGHT[:1], RIGHT[:-1]), "numbers of int32 that ascend, found others"),
        ("too large", np.append(RIGHT[:-1], 1 << 31), "numbers of int32 that ascend, found others"),
        ("too small", np.append(-(1 << 31) - 1, RIGHT[1:]), "numbers of int32 that ascend, found others"),
        ("one less", RIGHT[:-1], "numbers of a table of [0-9]+, found others from [0-9]+ on"),
    ],
)
def test_a_table_that_cannot_be_is_refused_though_its_crc_is_right(
    name: str, numbers: npt.NDArray[np.int64], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values that the type does not have, or of memory behind the table; and a filter would look for a number where it
    is not, as in a telephone book in no order."""
    column = with_table(numbers, monkeypatch)
    reads: list[Callable[[], Any]] = [
        lambda: column.read(0, ROWS),
        lambda: column.read(0, ROWS, scanning=True),
        lambda: column.frames(0, ROWS).matches(Constraint.one_of([5])),
        lambda: column.singles.gather(np.arange(0, ROWS, 64)),
        column.check,
    ]
    for read in reads:
        with pytest.raises(CorruptionError, match=reason):
            read()


@pytest.mark.parametrize(
    ("name", "fields", "reason"),
    [
        ("from behind the table", {"base": DISTINCT}, "expected numbers of a table of"),
        ("from before it", {"base": -1}, "expected numbers of a table of"),
        ("its end is passed", {"base": 50}, "expected numbers of a table of"),
        ("a step", {"step": 1}, "step 0, unit 1 and no references of its own, found [0-9]+ bits, step 1"),
        ("a unit", {"unit": 2}, "found [0-9]+ bits, step 0, unit 2"),
        ("another layout", {"layout": 6}, "found layout 6"),
    ],
)
def test_blocks_that_name_other_numbers_are_refused(name: str, fields: dict[str, int], reason: str) -> None:
    array = column_of("int64")
    column = written(files := MemoryFiles(), array, "int64", "for", "none", BLOCK)
    at = int(column.footer.block_offsets[1])
    block = files.content["file-0"][at : at + int(column.footer.block_lengths[1])]
    start = format.BLOCK_HEADER.size
    header = dict(
        zip(
            [of for of, *_ in format.FOR_HEADER.fields],
            format.FOR_HEADER.unpack_from(block, start),
            strict=True,
        )
    )
    assert header["layout"] == format.FOR_SHARED
    frame = format.FOR_HEADER.pack(*(header | fields).values())
    forged = sealed(BlockHeader.unpack(block), block[:start] + frame + block[start + len(frame) :])
    files.content["file-0"] = files.content["file-0"].replace(block, forged)
    found = CFileReader(files, "file-0").column(COLUMN)
    assert found is not None
    for read in (lambda: found.read(0, ROWS, scanning=True), lambda: found.singles.gather(np.array([600]))):
        with pytest.raises(CorruptionError, match=reason):
            read()


def footer_of(type: str, encoding: int, table: tuple[int, int, int]) -> bytes:
    """A footer without blocks, of a column with this table."""
    none = np.zeros(0, np.uint64), np.zeros(0, np.uint32)
    form = physical(parse_type(type))
    words = 0, 0, 0
    footer = ColumnFooter(
        COLUMN, form, encoding, 1, 9, 0, 0, *none, *words, None, None, ("", 0), False, *table
    )
    return footer.encode([], bytes(16).hex())


@pytest.mark.parametrize(
    ("type", "encoding", "table", "reason"),
    [
        ("int64", format.ENCODING_PLAIN, (64, 64, 9), "for encoding 1"),
        ("int64", format.ENCODING_RLE, (64, 64, 9), "for encoding 4"),
        ("string", format.ENCODING_DICTIONARY, (64, 64, 9), "for frames of string"),
        ("decimal(38,2)", format.ENCODING_FOR, (64, 64, 9), "for frames of decimal"),
        ("int64", format.ENCODING_FOR, (64, 64, 0), "found one of 0"),
        ("int64", format.ENCODING_FOR, (64, 64, format.TABLE_COUNT_MAX + 1), "found one of 131073"),
        ("int64", format.ENCODING_FOR, (64, 4096, 9), "expected the dictionary between"),
    ],
)
def test_footers_of_tables_that_cannot_be(
    type: str, encoding: int, table: tuple[int, int, int], reason: str
) -> None:
    with pytest.raises(CorruptionError, match=reason):
        ColumnFooter.decode(footer_of(type, encoding, table), COLUMN, "f", 1024)


def test_numbers_have_no_dictionary_of_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table without its flag would be read as text."""
    monkeypatch.setattr(format, "COLUMN_HAS_TABLE", 0)
    data = footer_of("int64", format.ENCODING_FOR, (64, 64, 9))
    monkeypatch.undo()
    with pytest.raises(CorruptionError, match="expected no dictionary of int64, found one of 9 words"):
        ColumnFooter.decode(data, COLUMN, "f", 1024)


def test_a_version_that_knows_no_tables_refuses_the_column(monkeypatch: pytest.MonkeyPatch) -> None:
    written(files := MemoryFiles(), column_of("int64"), "int64", block_size_bytes=BLOCK)
    monkeypatch.setattr(format, "COLUMN_INCOMPATIBLE_KNOWN", format.COLUMN_HAS_DENSE)
    with pytest.raises(StorageError, match="written by a newer version of Nyala"):
        CFileReader(files, "file-0").column(COLUMN)


def test_a_block_over_a_table_in_a_column_without_one() -> None:
    header = format.FOR_HEADER.pack(0, 0, 1, format.FOR_SHARED, 0, 0, bytes(4))
    with pytest.raises(ValueError, match="expected a table in the column's footer, found none"):
        Frame.parse(physical(parse_type("int64")), pa.py_buffer(header), 9)
