"""What a column gets that asked for nothing: by the data, the fastest to decode among the small."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.cfile.encoding.values import arrow_of, chosen, encoded, form_of, int64
from tests.unit.cfile.memory import TYPE_SPECS, MemoryFiles, make_values

from nyala.cfile import BASE, KEY, CFileReader, CFileWriter, ColumnKey, ColumnWriteSpec, format
from nyala.cfile.compression import compression_code
from nyala.cfile.encoding import auto, choose_encoding, encoding_by_code
from nyala.cfile.writer import column_bytes
from nyala.schema.schema import allowed_encodings
from nyala.schema.types import parse_type

RANDOM = np.random.default_rng(1)
N = 100_000
DAYS = RANDOM.integers(8000, 10_500, N).astype(np.int32)
ORDERS = np.repeat(np.arange(N), RANDOM.integers(1, 8, N))[:N] * 4
LATE = 60_000_000 * np.arange(N) + 1_000_000 * RANDOM.integers(0, 3, N)

COLUMNS = [
    ("rowids 0 to n-1", "int64", int64(np.arange(N)), "for"),
    ("random days", "date", pa.array(DAYS).view(pa.date32()), "for"),
    ("days, some NULL", "date", pa.array(DAYS, mask=RANDOM.random(N) < 0.1).view(pa.date32()), "for"),
    ("small numbers", "int32", pa.array(RANDOM.integers(0, 11, N).astype(np.int32)), "for"),
    ("discounts", "decimal(15,2)", arrow_of("decimal(15,2)", RANDOM.integers(0, 11, N).tolist()), "for"),
    ("foreign keys", "int64", int64(RANDOM.integers(0, 200_000, N)), "for"),
    ("timestamps of four batches", "int64", int64(RANDOM.choice(RANDOM.integers(0, 1 << 62, 4), N)), "for"),
    ("long runs", "int64", int64(np.repeat(RANDOM.integers(0, 1 << 40, N // 500), 500)), "rle"),
    ("order keys, one to seven times each", "int64", int64(ORDERS), "for"),
    ("times of every minute, up to two seconds late", "timestamp", arrow_of("timestamp", LATE.tolist()), "for"),
    ("0 to 63 again and again", "int64", int64(np.arange(N) % 64), "for"),
    ("random numbers", "int64", int64(RANDOM.integers(-(1 << 63), (1 << 63) - 1, N)), "plain"),
    ("few distinct floats", "double", pa.array(RANDOM.choice([0.1, 0.2, 0.7], N)), "alp"),
    ("distinct floats that return", "double", pa.array(RANDOM.choice(RANDOM.random(1000), N)), "alp"),
    ("many distinct floats that return", "double", pa.array(RANDOM.choice(RANDOM.random(9000), N)), "alp"),
    ("hashes that return", "int64", int64(RANDOM.choice(RANDOM.integers(-(1 << 62), 1 << 62, 5000), N)), "for"),
    ("floats, most of them 0", "double", pa.array(np.where(RANDOM.random(N) < 0.9, 0, RANDOM.random(N))), "alp"),
    ("measures", "double", pa.array(np.round(RANDOM.normal(20, 5, N), 1)), "alp"),
    ("a walk of floats", "double", pa.array(np.cumsum(RANDOM.random(N))), "bitshuffle"),
    ("random floats", "double", pa.array(RANDOM.random(N)), "plain"),
    ("all true", "bool", pa.array(np.ones(N, bool)), "rle"),
    ("coin tosses", "bool", pa.array(RANDOM.random(N) < 0.5), "plain"),
    ("few words", "string", pa.array(RANDOM.choice(["AIR", "SHIP", "TRUCK"], N)), "dictionary"),
    ("names that are alike", "string", pa.array([f"Customers/of/this/year/{n}" for n in range(N)]), "prefix"),
    ("numbered names of one length", "string", pa.array([f"Customer#{number:09}" for number in range(N)]), "pattern"),
    ("hashes", "string", pa.array([RANDOM.bytes(10).hex() for _ in range(N)]), "pattern"),
    ("comments", "string", pa.array([RANDOM.bytes(5 + n % 9).hex() for n in range(N)]), "plain"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "type", "array", "encoding"), COLUMNS, ids=[column[0] for column in COLUMNS]
)
def test_what_auto_takes(name: str, type: str, array: pa.Array, encoding: str) -> None:
    """Tables of which nothing was said would be large, or slow to scan."""
    assert chosen("auto", type, array) == encoding


@pytest.mark.parametrize(
    ("name", "type", "array", "encoding"), COLUMNS, ids=[column[0] for column in COLUMNS]
)
def test_what_auto_takes_for_a_column_of_a_composite_key(
    name: str, type: str, array: pa.Array, encoding: str
) -> None:
    """Each row's encoded key would be stored, as single numbers could not be had from their columns."""
    form = form_of(type)
    found = choose_encoding("auto", form, form.stored_array(array), single_values=True)[0].name
    is_number = type in ("int32", "int64", "date", "timestamp", "decimal(15,2)") and not array.null_count
    assert found in ("for", "rle") if is_number else found == encoding


@pytest.mark.parametrize("type", TYPE_SPECS)
def test_what_is_asked_for_is_stored(type: str) -> None:
    """Who knows his data could not have his way."""
    array = make_values(type, 1000)
    for encoding in allowed_encodings(parse_type(type)):
        if encoding not in ("auto", "pattern"):  # of these values some are longer; see test_pattern
            assert chosen(encoding, type, array) == encoding


@pytest.mark.parametrize("type", TYPE_SPECS)
def test_auto_takes_what_the_schema_allows(type: str) -> None:
    """A column could not be declared as it is stored."""
    form = form_of(type)
    allowed = {name for name in allowed_encodings(parse_type(type)) if name != "auto"}
    handled = {one.name for code in range(256) if (one := encoding_by_code(code)) and one.handles(form)}
    assert handled == allowed
    assert {one.name for one in auto.candidates(form, encoding_by_code)} <= allowed


def test_no_candidate_a_quarter_larger_than_the_smallest_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule itself, with sizes that are given: in the order of speed, the first within the factor."""
    form = form_of("int64")
    encodings = auto.candidates(form, encoding_by_code)
    known = auto.choices(encodings, form, format.COMPRESSION_DEFAULT, N)
    assert [(one.encoding.name, one.compression) for one in known] == [
        ("plain", format.COMPRESSION_NONE),
        ("plain", format.COMPRESSION_LZ4),
        ("for", format.COMPRESSION_NONE),
        ("rle", format.COMPRESSION_LZ4),
        ("bitshuffle", format.COMPRESSION_NONE),
    ]
    for sizes, taken in [
        ((100, 100, 100, 100, 100), 0),
        ((125, 100, 100, 100, 100), 0),
        ((126, 100, 125, 100, 100), 2),
        ((999, 126, 126, 126, 100), 4),
        ((999, 126, 126, 100, 120), 3),
        ((999, 100, 126, 126, 126), 1),
        ((999, 100, 126, 126, 125), 4),  # what is inflated to half of plain's bytes or more is the slowest
        ((999, 100, 126, 100, 126), 1),
        ((999, 101, 126, 100, 126), 1),
    ]:
        shrank = 8 if sizes[1] < 125 else 1
        written = {
            choice: auto._Written(size, shrank if choice.compression != format.COMPRESSION_NONE else 0)
            for choice, size in zip(known, sizes, strict=True)
        }
        monkeypatch.setattr(auto, "_written", lambda choice, *_, written=written: written[choice])
        found, size, _ = auto.fastest_of(encodings, form, int64(np.arange(N)), format.COMPRESSION_DEFAULT, N)
        assert found == known[taken] and size == sizes[taken]


NAMES = pa.array([f"u{number}" for number in range(500_000)])
GAPS = int64(np.cumsum(RANDOM.integers(1, 100, 500_000)))
MINUTES = 60_000_000 * np.arange(30_000)
SENSORS = int64(np.concatenate([MINUTES + RANDOM.integers(0, 200_000, 30_000) for _ in range(18)]))


@pytest.mark.parametrize(
    ("type", "array", "compression"),
    [
        pytest.param(type, array, compression, id=f"{name}, {compression}")
        for name, type, array, compressions in (
            ("numbered names", "string", NAMES, ("default", "none", "lz4", "snappy", "zlib", "zstd")),
            ("sorted, with gaps", "int64", GAPS, ("default", "none", "lz4", "snappy", "zlib", "zstd")),
            ("times by sensor", "int64", SENSORS, ("default", "lz4", "snappy", "zstd")),
        )
        for compression in compressions
    ],
)
def test_auto_is_as_small(type: str, array: pa.Array, compression: str) -> None:
    """Zstd made a short stretch of the names ten times as small as it makes blocks: so they went plain, and were 1.4
    MB instead of 30 KB. And a frame of reference was half as large again as bitshuffle, where a stretch lies in the
    times of one sensor and each block in those of five."""

    def size(encoding: str) -> int:
        spec = ColumnWriteSpec(ColumnKey(BASE, 0, 10), parse_type(type), encoding, compression)
        return column_bytes(spec, array).blocks

    allowed = [name for name in allowed_encodings(parse_type(type)) if name != "auto"]
    assert size("auto") <= (4 if type == "string" else 1.25) * min(map(size, allowed))


def test_as_many_short_words_as_a_dictionary_holds_are_one() -> None:
    """Postal codes of five digits took 40 bits a row, in Parquet 21: a sample has hardly one twice, and codewords were
    thought to take four bytes."""
    codes = pa.array([f"{number:05}" for number in range(100_000)])
    rows = RANDOM.integers(0, 100_000, 800_000)
    assert chosen("auto", "string", codes.take(pa.array(rows))) == "dictionary"
    # Of longer ones a megabyte has fewer, and a sample tells that it would be too small.
    long = pa.array([f"{number}" + "x" * 30 for number in range(100_000)])
    assert chosen("auto", "string", long.take(pa.array(rows[:200_000]))) == "plain"


def test_plain_that_does_not_shrink_is_the_fastest_with_any_compression() -> None:
    """And what does shrink is inflated in its whole width, where an encoding leaves less to inflate."""
    for compression in ("lz4", "snappy", "zstd", "zlib"):
        code = compression_code(compression)
        assert chosen("auto", "int64", int64(RANDOM.integers(-(1 << 63), (1 << 63) - 1, N)), code) == "plain"
        assert chosen("auto", "int64", int64(RANDOM.integers(0, 200_000, N)), code) == "for"


def test_a_sample_decides_for_large_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every flush would write every column in every encoding."""
    seen: list[int] = []
    original = auto.compress
    monkeypatch.setattr(auto, "compress", lambda code, data: seen.append(data.size) or original(code, data))
    chosen("auto", "int64", int64(RANDOM.integers(0, 1 << 62, 1_000_000)))
    # Numbers at random have no runs, which is seen without writing them.
    assert len(seen) == 4 * 4 and max(seen) <= 2 * 8 * (1 << 13)
    # And from four places: the first half, or both ends, alone would be runs.
    halves = np.concatenate((np.zeros(500_000, np.int64), RANDOM.integers(0, 1 << 62, 500_000)))
    assert chosen("auto", "int64", int64(halves)) != "rle"
    ends = np.concatenate((np.zeros(300_000, np.int64), 7 * np.arange(400_000), np.zeros(300_000, np.int64)))
    assert chosen("auto", "int64", int64(ends)) == "for"


@pytest.mark.parametrize("there", [slice(0, 200_000), slice(300_000, 700_000), slice(990_000, 1_000_000)])
def test_a_column_that_is_null_in_most_places_is_judged_where_it_is_not(there: slice) -> None:
    """A column that was added later, or used for a while, would be plain for the NULLs that the sample saw."""
    missing = np.ones(1_000_000, np.bool_)
    missing[there] = False
    days = pa.array(RANDOM.integers(0, 500, len(missing)), mask=missing)
    assert chosen("auto", "int64", days) == "for"
    prices = pa.array(np.round(RANDOM.random(len(missing)), 2), mask=missing)
    assert chosen("auto", "double", prices) == "alp"


def test_numbers_without_runs_are_no_runs() -> None:
    """Runs of a row each, inflated first, are the slowest of all, and no smaller than plain with the same LZ4."""
    pieces = []  # of a few numbers, which LZ4 finds again, and others every 4,000 rows, too many for a table
    for _ in range(60):
        few = RANDOM.integers(0, 1 << 60, 1300)
        pieces += [few[at : at + 100] for at in RANDOM.integers(0, 1200, 40)]
    array = int64(np.concatenate(pieces))
    for compression in ("default", "lz4", "zstd"):
        assert chosen("auto", "int64", array, compression_code(compression)) == "plain"


def test_plain_numbers_chosen_by_auto_are_read_without_a_copy() -> None:
    """LZ4 would win an eighth of these numbers, and make reading them many times slower. Where it wins more than a
    quarter and all else wins less, they are compressed."""
    mixed = int64(
        np.concatenate(
            (np.zeros(3000, np.int64), RANDOM.integers(-(1 << 63), 1 << 63, 17_000, endpoint=False))
        )
    )
    some = RANDOM.random(1500)  # in pieces of 100, over and over
    returning = pa.array(np.concatenate([some[at : at + 100] for at in RANDOM.integers(0, 1400, 200)]))
    for array, encoding, compression, compressed in (
        (mixed, "auto", "default", False),
        (mixed, "plain", "default", True),
        (returning, "auto", "default", True),
    ):
        files = MemoryFiles()
        with CFileWriter(files, "f") as writer:
            spec = ColumnWriteSpec(ColumnKey(BASE, 0, 10), parse_type(str(array.type)), encoding, compression)
            writer.append_column(spec, array)
            writer.finish()
        column = CFileReader(files, "f").column(ColumnKey(BASE, 0, 10))
        assert column is not None and column.encoding == "plain"
        assert (column.size_bytes < 150_000) == compressed


def test_insertions_of_a_flush_take_two_bits_a_row() -> None:
    """The UNDO of a million inserts in four batches was 2.5 bytes a row before frames of reference."""
    rows = 131_072
    batches = int64(RANDOM.choice([7 << 50, (7 << 50) + 999_999_937, 7 << 51, 7 << 52], rows))
    assert encoded("for", "int64", int64(np.arange(rows))).size == format.FOR_HEADER.size
    assert encoded("for", "int64", batches).size == format.FOR_HEADER.size + 4 * 8 + rows * 2 // 8


def test_columns_without_values_have_an_encoding() -> None:
    """A sample of nothing would end the flush."""
    for type in TYPE_SPECS:
        for count in (0, 100):
            nulls = pa.nulls(count, parse_type(type).arrow)
            assert chosen("auto", type, nulls) in allowed_encodings(parse_type(type))
    late = pa.concat_arrays([pa.nulls(200_000, pa.date32()), pa.array([datetime.date(2020, 1, 1)])])
    assert chosen("auto", "date", late) in allowed_encodings(parse_type("date"))


@pytest.mark.parametrize("is_one_length", [False, True])
def test_keys_of_text_are_plain_or_a_pattern_unless_asked_otherwise(is_one_length: bool) -> None:
    """Each of a thousand look-ups would join the prefixes and suffixes of a whole block. Encoded keys of several
    columns are searched as they lie."""
    names = pa.array([f"Customers/of/this/year/{number + 10_000 * is_one_length}" for number in range(5000)])
    usual = "pattern" if is_one_length else "plain"

    def first_keys(ordinals: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
        return names.take(pa.array(ordinals)).cast(pa.large_binary())

    for encoding, stored, of_keys in (("auto", usual, "plain"), ("prefix", "prefix", "prefix")):
        files = MemoryFiles()
        with CFileWriter(files, "f") as writer:
            spec = ColumnWriteSpec(ColumnKey(BASE, 0, 10), parse_type("string"), encoding)
            writer.append_column(spec, names, first_keys=first_keys)
            key_spec = ColumnWriteSpec(ColumnKey(KEY), parse_type("binary"), encoding)
            writer.append_column(key_spec, names.cast(pa.binary()))
            writer.finish()
        reader = CFileReader(files, "f")
        for key in reader.columns():
            column = reader.column(key)
            assert column is not None and column.encoding == (of_keys if key.role == KEY else stored)
            if column.encoding == "pattern":  # of 28 bytes each: so many fill 256 KiB, and no fourth of it
                assert column.rows_per_block == 8192 > len(names)
