"""The encodings that `auto` chooses: examples of columns, and the rule that compares sizes."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.cfile.encoding.values import arrow_of, chosen, form_of, int64
from tests.unit.cfile.memory import TYPE_SPECS, MemoryFiles, make_values

from nyala.cfile import format
from nyala.cfile.column import BASE, KEY, ColumnKey, ColumnWriteSpec
from nyala.cfile.compression import compression_code
from nyala.cfile.encoding import encoding_by_code
from nyala.cfile.encoding.base import Candidate, ColumnSample
from nyala.cfile.encoding.choice import choose_encoding, fastest
from nyala.cfile.reader import CFileReader
from nyala.cfile.writer import CFileWriter
from nyala.schema.schema import allowed_encodings
from nyala.schema.types import parse_type

RANDOM = np.random.default_rng(1)
N = 100_000
DAYS = RANDOM.integers(8000, 10_500, N).astype(np.int32)
ORDERS = np.repeat(np.arange(N), RANDOM.integers(1, 8, N))[:N] * 4
LATE = 60_000_000 * np.arange(N) + 1_000_000 * RANDOM.integers(0, 3, N)


def discounts(hundredths: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Array:
    """Return decimal(15,2) values from non-negative unscaled integers, without an object for each."""
    words = np.stack([hundredths, np.zeros_like(hundredths)], axis=1)
    return pa.Array.from_buffers(pa.decimal128(15, 2), len(hundredths), [None, pa.py_buffer(words)])


def noise(sizes: list[int]) -> list[str]:
    """Return random hexadecimal texts of these numbers of bytes."""
    text, ends = RANDOM.bytes(sum(sizes)).hex(), np.cumsum(sizes) * 2
    return [text[end - 2 * size : end] for end, size in zip(ends.tolist(), sizes, strict=True)]


COLUMNS = [
    ("rowids 0 to n-1", "int64", int64(np.arange(N)), "for"),
    ("random days", "date", pa.array(DAYS).view(pa.date32()), "for"),
    ("days, some NULL", "date", pa.array(DAYS, mask=RANDOM.random(N) < 0.1).view(pa.date32()), "for"),
    ("small numbers", "int32", pa.array(RANDOM.integers(0, 11, N).astype(np.int32)), "for"),
    ("discounts", "decimal(15,2)", discounts(RANDOM.integers(0, 11, N)), "for"),
    ("foreign keys", "int64", int64(RANDOM.integers(0, 200_000, N)), "for"),
    ("timestamps of four batches", "int64", int64(RANDOM.choice(RANDOM.integers(0, 1 << 62, 4), N)), "plain"),
    ("long runs", "int64", int64(np.repeat(RANDOM.integers(0, 1 << 40, N // 500), 500)), "rle"),
    ("order keys, one to seven times each", "int64", int64(ORDERS), "plain"),
    ("times of every minute, up to two seconds late", "timestamp", arrow_of("timestamp", LATE.tolist()), "for"),
    ("0 to 63 again and again", "int64", int64(np.arange(N) % 64), "bitshuffle"),
    ("random numbers", "int64", int64(RANDOM.integers(-(1 << 63), (1 << 63) - 1, N)), "plain"),
    ("few distinct floats", "double", pa.array(RANDOM.choice([0.1, 0.2, 0.7], N)), "alp"),
    ("distinct floats that return", "double", pa.array(RANDOM.choice(RANDOM.random(1000), N)), "plain"),
    ("many distinct floats that return", "double", pa.array(RANDOM.choice(RANDOM.random(9000), N)), "plain"),
    ("hashes that return", "int64", int64(RANDOM.choice(RANDOM.integers(-(1 << 62), 1 << 62, 5000), N)), "plain"),
    ("floats, most of them 0", "double", pa.array(np.where(RANDOM.random(N) < 0.9, 0, RANDOM.random(N))), "alp"),
    ("measures", "double", pa.array(np.round(RANDOM.normal(20, 5, N), 1)), "alp"),
    ("a walk of floats", "double", pa.array(np.cumsum(RANDOM.random(N))), "bitshuffle"),
    ("random floats", "double", pa.array(RANDOM.random(N)), "plain"),
    ("all true", "bool", pa.array(np.ones(N, bool)), "rle"),
    ("coin tosses", "bool", pa.array(RANDOM.random(N) < 0.5), "plain"),
    ("few words", "string", pa.array(RANDOM.choice(["AIR", "SHIP", "TRUCK"], N)), "dictionary"),
    ("names that are alike", "string", pa.array([f"Customers/of/this/year/{n}" for n in range(N)]), "plain"),
    ("numbered names of one length", "string", pa.array([f"Customer#{number:09}" for number in range(N)]), "plain"),
    ("hashes", "string", pa.array(noise([10] * N)), "plain"),
    ("comments", "string", pa.array(noise([5 + n % 9 for n in range(N)])), "plain"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "type", "array", "encoding"), COLUMNS, ids=[column[0] for column in COLUMNS]
)
def test_the_choice_of_auto(name: str, type: str, array: pa.Array, encoding: str) -> None:
    """`auto` chooses the encoding of the table for each kind of column."""
    assert chosen("auto", type, array) == encoding


@pytest.mark.parametrize(
    ("name", "type", "array", "encoding"), COLUMNS, ids=[column[0] for column in COLUMNS]
)
def test_the_choice_for_a_column_of_a_composite_key(
    name: str, type: str, array: pa.Array, encoding: str
) -> None:
    """Columns of a composite key have encodings that gather single values, so no encoded keys are
    stored.
    """
    form = form_of(type)
    found = choose_encoding("auto", form, form.stored_array(array).drop_null(), single_values=True)[0].name
    is_number = type in ("int32", "int64", "date", "timestamp", "decimal(15,2)")
    assert found in ("for", "rle") if is_number else found == encoding


@pytest.mark.parametrize("type", TYPE_SPECS)
def test_the_schemas_encoding_is_used(type: str) -> None:
    """A column is stored with the encoding that the schema names."""
    array = make_values(type, 1000)
    for encoding in allowed_encodings(parse_type(type)):
        if encoding != "auto":
            assert chosen(encoding, type, array) == encoding


PLAIN, PACKED = (
    (format.ENCODING_PLAIN, format.COMPRESSION_NONE),
    (format.ENCODING_PLAIN, format.COMPRESSION_LZ4),
)
ZSTD, PREFIX = (
    (format.ENCODING_PLAIN, format.COMPRESSION_ZSTD),
    (format.ENCODING_PREFIX, format.COMPRESSION_LZ4),
)
FOR, SHUFFLED = (
    (format.ENCODING_FOR, format.COMPRESSION_NONE),
    (format.ENCODING_BITSHUFFLE, format.COMPRESSION_NONE),
)


@pytest.mark.parametrize(
    ("row_bytes", "expected"),
    [
        ({PLAIN: 8, FOR: 8, SHUFFLED: 8}, PLAIN),
        ({PLAIN: 8, FOR: 6.4, SHUFFLED: 6.4}, PLAIN),  # PLAIN is a quarter larger, so it is still chosen
        ({PLAIN: 8, FOR: 6.3, SHUFFLED: 6.3}, FOR),
        ({PLAIN: 8, FOR: 2, SHUFFLED: 1.7}, FOR),
        ({PLAIN: 8, FOR: 2, SHUFFLED: 1.5}, SHUFFLED),
        ({PLAIN: 8, FOR: 0.2, SHUFFLED: 0.1}, FOR),  # FOR is less than a bit per value larger
        ({PLAIN: 8, FOR: 0.3, SHUFFLED: 0.1}, SHUFFLED),
        ({PLAIN: 8, FOR: 4, SHUFFLED: 4, PACKED: 3}, PACKED),
        ({PLAIN: 8, FOR: 4, SHUFFLED: 4, PACKED: 8, ZSTD: 2.6}, FOR),
        ({PLAIN: 8, FOR: 4, SHUFFLED: 4, PACKED: 8, ZSTD: 2.4}, ZSTD),
        ({PACKED: 36, ZSTD: 24, PREFIX: 10}, PACKED),  # text
        ({PACKED: 36, ZSTD: 18, PREFIX: 10}, ZSTD),
        ({PACKED: 36, ZSTD: 18, PREFIX: 4}, PREFIX),
    ],
)
def test_the_fastest_unless_a_slower_one_is_much_smaller(
    row_bytes: dict[tuple[int, int], float], expected: tuple[int, int]
) -> None:
    """A slower encoding is chosen only if it is much smaller."""
    terms = {ZSTD: (1.55, 0.0), PREFIX: (4.0, 0.0), SHUFFLED: (1.25, 1 / 8)}
    given = [
        Candidate(*choice, size, cost, *terms.get(choice, (1.25, 0.0)))
        for cost, (choice, size) in enumerate(row_bytes.items())
    ]
    found = fastest(given[::-1])
    assert found is not None and found[:2] == expected


@pytest.mark.parametrize(
    ("name", "values", "bits"),
    [
        ("row numbers", np.arange(N), 0),
        ("one value", np.full(N, 7), 0),
        ("a range", RANDOM.integers(0, 1 << 18, N), 18),
        ("whole hundreds", 100 * RANDOM.integers(0, 1 << 10, N), 10),
        ("near a line", 1000 * np.arange(N) + RANDOM.integers(0, 16, N), 5),
        ("all of 64 bits", RANDOM.integers(-(1 << 63), (1 << 63) - 1, N), 64),
    ],
)
def test_frames_are_estimated_without_encoding_them(name: str, values: Any, bits: int) -> None:
    """The size of a frame is computed from statistics, without encoding the column twice."""
    encoding = encoding_by_code(format.ENCODING_FOR)
    assert encoding is not None
    column = ColumnSample(form_of("int64"), int64(values), None, 1 << 17, format.COMPRESSION_DEFAULT)
    (found,) = encoding.candidates(column)
    assert 8 * found.row_bytes == pytest.approx(bits, abs=0.1), name


def test_a_sample_has_parts_of_the_whole_column() -> None:
    """An unusual beginning does not decide the encoding of a large column."""
    halves = np.concatenate((np.zeros(500_000, np.int64), RANDOM.integers(0, 1 << 62, 500_000)))
    assert chosen("auto", "int64", int64(halves)) != "rle"


def test_many_short_texts_use_a_dictionary() -> None:
    """Short texts use a dictionary even if most occur once in the sample.

    Postal codes of five digits took 40 bits per row as plain, and 21 in Parquet.
    """
    codes = pa.array([f"{number:05}" for number in range(100_000)])
    rows = RANDOM.integers(0, 100_000, 800_000)
    assert chosen("auto", "string", codes.take(pa.array(rows))) == "dictionary"
    # A sample of long texts has fewer rows, and most occur once, so no dictionary is built.
    long = pa.array([f"{number}" + "x" * 30 for number in range(100_000)])
    assert chosen("auto", "string", long.take(pa.array(rows[:200_000]))) == "plain"


def test_incompressible_plain_counts_as_uncompressed() -> None:
    """Plain values that compression does not shrink count as uncompressed, and so as the fastest."""
    for compression in ("lz4", "snappy", "zstd", "zlib"):
        code = compression_code(compression)
        assert chosen("auto", "int64", int64(RANDOM.integers(-(1 << 63), (1 << 63) - 1, N)), code) == "plain"
        assert chosen("auto", "int64", int64(RANDOM.integers(0, 200_000, N)), code) == "for"


@pytest.mark.parametrize("there", [slice(0, 200_000), slice(300_000, 700_000), slice(990_000, 1_000_000)])
def test_a_mostly_null_column_is_chosen_by_its_values(there: slice) -> None:
    """The sample of a column that is mostly NULL has its values, not its NULLs."""
    missing = np.ones(1_000_000, np.bool_)
    missing[there] = False
    days = pa.array(RANDOM.integers(0, 500, len(missing)), mask=missing)
    assert chosen("auto", "int64", days) == "for"
    prices = pa.array(np.round(RANDOM.random(len(missing)), 2), mask=missing)
    assert chosen("auto", "double", prices) == "alp"


def test_numbers_without_runs_do_not_use_run_length() -> None:
    """Run length is not chosen for runs of one row: it is slower than plain, and not smaller."""
    # Slices of a few numbers repeat, so LZ4 compresses them. All numbers together are too many for a dictionary.
    pieces = []
    for _ in range(60):
        few = RANDOM.integers(0, 1 << 60, 1300)
        pieces += [few[at : at + 100] for at in RANDOM.integers(0, 1200, 40)]
    array = int64(np.concatenate(pieces))
    for compression in ("default", "lz4", "zstd"):
        assert chosen("auto", "int64", array, compression_code(compression)) == "plain"


def test_plain_numbers_chosen_by_auto_are_read_without_a_copy() -> None:
    """`auto` compresses plain numbers only if that saves more than a quarter.

    Uncompressed plain numbers are read without a copy.
    """
    mixed = int64(
        np.concatenate(
            (np.zeros(3000, np.int64), RANDOM.integers(-(1 << 63), 1 << 63, 17_000, endpoint=False))
        )
    )
    some = RANDOM.random(500)  # slices of 100 of these repeat
    returning = pa.array(np.concatenate([some[at : at + 100] for at in RANDOM.integers(0, 400, 200)]))
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


def test_columns_without_values_have_an_encoding() -> None:
    """A column with no values can be flushed."""
    for type in TYPE_SPECS:
        for count in (0, 100):
            nulls = pa.nulls(count, parse_type(type).arrow)
            assert chosen("auto", type, nulls) in allowed_encodings(parse_type(type))
    late = pa.concat_arrays([pa.nulls(200_000, pa.date32()), pa.array([datetime.date(2020, 1, 1)])])
    assert chosen("auto", "date", late) in allowed_encodings(parse_type("date"))


def test_text_keys_are_plain_by_default() -> None:
    """Text keys are plain by default, because a look-up would decode a whole block of prefixes."""
    names = pa.array([f"Customers/of/this/year/{number}" for number in range(5000)])

    def first_keys(ordinals: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
        return names.take(pa.array(ordinals)).cast(pa.large_binary())

    for encoding, stored, of_keys in (("auto", "plain", "plain"), ("prefix", "prefix", "prefix")):
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
