"""Rules of every encoding: values come back, and invalid bytes are refused with a reason."""

from __future__ import annotations

import math

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.cfile.encoding.values import (
    ALLOWED,
    arrow_of,
    back,
    blocks,
    decoded,
    encoded,
    encoding_of,
    form_of,
)
from tests.unit.cfile.memory import MemoryFiles, make_values, same

from nyala.cfile import format
from nyala.cfile.column import BASE, ColumnKey, ColumnWriteSpec
from nyala.cfile.column_reader import ColumnReader
from nyala.cfile.reader import CFileReader
from nyala.cfile.writer import CFileWriter
from nyala.errors import CorruptionError
from nyala.schema.types import MAX_CELL_BYTES, parse_type

COLUMN = ColumnKey(BASE, 0, 10)
# The tests run for each type in each encoding, so each has few examples.
FEW = settings(max_examples=max(5, settings().max_examples // 10))


@pytest.mark.parametrize(("type", "encoding"), ALLOWED)
@FEW
@given(data=st.data())
def test_any_block_comes_back(type: str, encoding: str, data: st.DataObject) -> None:
    """Every value, NULL, sign of zero and NaN comes back bit by bit."""
    back(encoding, type, data.draw(blocks(type)))


EDGES = {
    "float": [float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1e-45],
    "double": [float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 5e-324],
    "string": ["", "é", "\U0001f992", "a\0", "a", "x" * MAX_CELL_BYTES, "x" * MAX_CELL_BYTES],
    "varchar(40)": ["", "é" * 40, "a\0", "a"],
    "binary": [b"", b"\0", b"\0\0", b"\xff" * MAX_CELL_BYTES, b"\xff" * (MAX_CELL_BYTES - 1)],
    "bool": [True, False],
}


@pytest.mark.parametrize(("type", "encoding"), ALLOWED)
def test_extremes_and_their_zones_come_back(type: str, encoding: str) -> None:
    """The first and last day, the longest cell and the greatest decimal come back."""
    column = parse_type(type)
    least, greatest = column.value_min, column.value_max
    values = EDGES.get(type) or [least, greatest, 0, 0, 1, -1, greatest, least]
    one = arrow_of(type, values[:1])
    for array in (one, pa.concat_arrays([one] * 17)):  # a single value
        back(encoding, type, array)
    for array in (arrow_of(type, values), arrow_of(type, [values[0], None, *values[1:], None])):
        back(encoding, type, array)
        files = MemoryFiles()
        zones = [written(files, array, type, name).zones for name in (encoding, "plain")]
        assert repr(zones[0]) == repr(zones[1])


@pytest.mark.parametrize(("type", "encoding"), ALLOWED)
def test_empty_columns_and_blocks_of_nulls(type: str, encoding: str) -> None:
    """A table without rows, and a column of NULLs only, can be flushed."""
    for count in (0, 1, 1000):
        nulls = pa.nulls(count, parse_type(type).arrow)
        column = written(MemoryFiles(), nulls, type, encoding)
        assert column.encoding == encoding and column.null_count == count
        assert column.decode(0, count).equals(nulls)
    sparse = pa.concat_arrays([nulls, make_values(type, 1000, null_share=0.5), nulls])
    column = written(MemoryFiles(), sparse, type, encoding, block_size_bytes=512)
    assert same(column.decode(0, 3000), sparse)


@pytest.mark.parametrize(("type", "encoding"), ALLOWED)
def test_slices_of_larger_arrays(type: str, encoding: str) -> None:
    """A slice of a larger array is encoded from its own offset."""
    array = make_values(type, 500, null_share=0.2)
    for lower, count in ((1, 99), (8, 492), (499, 1)):
        if array.slice(lower, count).null_count < count:
            back(encoding, type, array.slice(lower, count))


# -- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("type", "encoding"), ALLOWED)
@FEW
@given(data=st.data())
def test_random_bytes_are_refused_or_harmless(type: str, encoding: str, data: st.DataObject) -> None:
    """A decoder of random bytes raises CorruptionError or returns values. It never reads past the block."""
    array = make_values(
        type, data.draw(st.integers(1, 40)), null_share=data.draw(st.sampled_from([0.0, 0.5]))
    )
    content = data.draw(st.binary(max_size=200))
    check_refused_or_whole(encoding, type, content, array)


# Blocks of layouts that random values never have.
LAYOUTS = [
    ("for", "decimal(38,0)", arrow_of("decimal(38,0)", [1 << 90, 5, -3] * 9), format.FOR_WIDE),
    ("alp", "double", arrow_of("double", [n / 5 or math.nan for n in range(100)]), format.ALP_DECIMALS),
    ("alp", "float", arrow_of("float", [math.sin(n) * 10.0 ** (n % 17) for n in range(100)]), format.ALP_PLAIN),
    ("dictionary", "string", arrow_of("string", ["a", "bc", None, ""] * 25), format.CODES_PACKED),
    ("dictionary", "binary", arrow_of("binary", sorted([b"a", b"", b"bc"] * 99)), format.CODES_SHUFFLED),
]  # fmt: skip


@pytest.mark.parametrize(("type", "encoding"), ALLOWED)
def test_mutations_are_refused_or_harmless(type: str, encoding: str) -> None:
    """Bytes that differ little from valid ones raise CorruptionError or give values.

    Such bytes get further into a decoder than random ones.
    """
    array = make_values(type, 100, null_share=0.1)
    mutate(encoding, type, encoded(encoding, type, array).to_pybytes(), array)


@pytest.mark.parametrize(("encoding", "type", "array", "layout"), LAYOUTS)
def test_mutations_of_every_layout(encoding: str, type: str, array: pa.Array, layout: int) -> None:
    """Mutated blocks of each layout give an error or values."""
    array = array.drop_null()
    encoder = encoding_of(encoding).prepare(form_of(type), form_of(type).stored_array(array))
    assert encoder is not None
    content = encoder.encode(0, len(array)).to_pybytes()
    found = content[0] if encoding in ("dictionary", "alp") else format.FOR_HEADER.unpack_from(content)[3]
    assert found == layout
    dictionary = None if encoder.dictionary is None else encoder.dictionary.cast(array.type)
    assert same(decoded(encoding, type, content, array, dictionary), array)
    mutate(encoding, type, content, array, dictionary)


def mutate(
    encoding: str, type: str, content: bytes, array: pa.Array, dictionary: pa.Array | None = None
) -> None:
    """Cut `content`, the bytes of `array`, and change some bits and bytes of it."""
    random = np.random.default_rng(0)

    def refused_or_whole(changed: bytes) -> None:
        check_refused_or_whole(encoding, type, changed, array, dictionary)

    for cut in {*range(min(64, len(content))), len(content) - 1}:
        refused_or_whole(content[:cut])
        refused_or_whole(content[:cut] + b"\xff" + content[cut + 1 :])
        for bit in range(8):
            flipped = bytearray(content)
            flipped[cut] ^= 1 << bit
            refused_or_whole(bytes(flipped))
    for _ in range(200):
        broken = bytearray(content)
        for place in random.integers(0, len(content), random.integers(1, 5)):
            broken[place] = random.choice([0, 1, 0x7F, 0x80, 0xFF, int(random.integers(256))])
        refused_or_whole(bytes(broken))
    refused_or_whole(content + b"\0")


def check_refused_or_whole(
    encoding: str, type: str, content: bytes, array: pa.Array, dictionary: pa.Array | None = None
) -> None:
    try:
        found = decoded(encoding, type, content, array, dictionary)
    except ValueError as error:
        assert "expected" in str(error)
        return
    # Changed bytes may give other values, but the same number of them, of the type, in their
    # buffers.
    assert len(found) == len(array) - array.null_count and found.null_count == 0 and found.type == array.type
    found.validate()
    if encoding == "for" and type in ("decimal(9,2)", "decimal(18,0)"):
        found.validate(full=True)  # sums are proved to stay within the precision


@pytest.mark.parametrize(
    ("type", "encoding"), [pair for pair in ALLOWED if pair[1] not in ("plain", "bitshuffle")]
)
def test_invalid_bytes_with_a_right_crc_name_file_and_offset(type: str, encoding: str) -> None:
    """Invalid bytes with a right CRC raise a CorruptionError with the file and the offset."""
    files = MemoryFiles()
    column = written(files, make_values(type, 100), type, encoding, "none")
    offset, length = column.extents()[0]
    original = bytearray(files.content["f"])
    for place in range(offset + format.BLOCK_HEADER.size, offset + format.BLOCK_HEADER.size + 12):
        content = bytearray(original)
        content[place] = 0xEE
        body = bytes(content[offset : offset + length - format.CRC.size])
        content[offset + length - format.CRC.size : offset + length] = format.CRC.pack(
            google_crc32c.value(body)
        )
        files.content["f"] = bytes(content)
        broken = CFileReader(files, "f").column(COLUMN)
        assert broken is not None
        try:
            broken.decode(0, 100).validate()
        except CorruptionError as error:
            assert f"f at offset {offset}: expected" in str(error)


def written(
    files: MemoryFiles,
    array: pa.Array,
    type: str,
    encoding: str,
    compression: str = "default",
    block_size_bytes: int | None = None,
) -> ColumnReader:
    files.content.pop("f", None)
    with CFileWriter(files, "f") as writer:
        spec = ColumnWriteSpec(COLUMN, parse_type(type), encoding, compression, block_size_bytes)
        writer.append_column(spec, array)
        writer.finish()
    reader = CFileReader(files, "f")
    reader.check()
    column = reader.column(COLUMN)
    assert column is not None
    return column
