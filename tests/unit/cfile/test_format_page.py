"""docs/format/cfile.md matches the code: its tables, numbers and worked examples.

To renew the examples after a change of the format: `python -m tests.unit.cfile.test_format_page`.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from tests.unit.cfile.memory import TYPE_SPECS, MemoryFiles, make_values

from nyala.cfile import format
from nyala.cfile.column import BASE, KEY, ColumnKey, ColumnWriteSpec
from nyala.cfile.compression import compression_code, compression_name
from nyala.cfile.dump import dump
from nyala.cfile.encoding import encoding_by_code
from nyala.cfile.footer import _physical_by_code
from nyala.cfile.reader import CFileReader
from nyala.cfile.writer import CFileWriter
from nyala.errors import CorruptionError
from nyala.keys.codec import KeyCodec
from nyala.schema.types import parse_type
from nyala.testing import SeededRandomness

PAGE = Path(__file__).parents[3] / "docs" / "format" / "cfile.md"
EXAMPLE_PATH = "example.cfile"

Table = list[list[str]]


def tables(section: str) -> list[Table]:
    """Return the tables under a heading, up to the next heading of any kind, as lists of rows,
    header first.
    """
    text = re.split(rf"^#+ {re.escape(section)}$", PAGE.read_text(), flags=re.MULTILINE)[1]
    text = re.split(r"^#+ ", text, flags=re.MULTILINE)[0]
    found: list[Table] = []
    inside = False
    for line in text.splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not inside:
            found.append([])
        if set(line) - set("|-"):
            found[-1].append(cells)
        inside = True
    return found


@pytest.mark.parametrize(
    ("section", "layout"),
    [
        ("Head", format.HEAD),
        ("Block", format.BLOCK_HEADER),
        ("Encodings", format.BINARY_HEADER),
        ("Run length", format.RLE_HEADER),
        ("Prefix", format.PREFIX_HEADER),
        ("Dictionary", format.CODES_HEADER),
        ("Frame of reference", format.FOR_HEADER),
        ("ALP", format.ALP_HEADER),
        ("Column footer", format.FOOTER),
        ("Directory", format.DIRECTORY_ENTRY),
        ("Tail", format.TAIL),
    ],
)
def test_byte_tables(section: str, layout: format.Layout) -> None:
    """The tables of bytes on the page are the structures of the code."""
    (table,) = (table for table in tables(section) if table[0] == ["offset", "size", "field", "rule"])
    described = [(field, int(offset), int(size)) for offset, size, field, _ in table[1:]]
    assert described == list(layout.fields)
    assert sum(size for _, _, size in described) == layout.size


def numbered(section: str, head: str) -> dict[int, str]:
    (table,) = (table for table in tables(section) if table[0][0] == head)
    return {int(row[0]): row[1] for row in table[1:]}


def test_enumerations() -> None:
    """The enumerations on the page are those of the code."""
    assert numbered("Column footer", "role") == format.ROLES
    assert numbered("Column footer", "type") == format.TYPES
    compressions = numbered("Compression", "number")
    assert compressions == {number: compression_name(number) for number in range(6)}
    assert all(compression_code(name) == number for number, name in compressions.items())
    encodings = numbered("Encodings", "number")
    known = {number: encoding.name for number in range(256) if (encoding := encoding_by_code(number))}
    assert encodings == known
    layouts = numbered("Frame of reference", "layout")
    assert layouts == format.FOR_LAYOUTS
    assert numbered("ALP", "floats") == format.ALP_LAYOUTS
    assert numbered("Dictionary", "codes") == format.CODES
    flags = [int(row[0]) for row in tables("Zone map")[1][1:]]
    assert flags == [
        format.ZONE_HAS_MIN,
        format.ZONE_HAS_MAX,
        format.ZONE_HAS_NAN,
        format.ZONE_MIN_TRUNCATED,
        format.ZONE_MAX_TRUNCATED,
    ]
    assert sum(flags) == format.ZONE_FLAGS_KNOWN


def test_types_of_the_page_are_those_of_the_schema() -> None:
    """The page has a stored type for every column type of the schema."""
    for spec in TYPE_SPECS:
        with CFileWriter(files := MemoryFiles(), "f") as writer:
            writer.append_column(ColumnWriteSpec(ColumnKey(BASE), parse_type(spec)), make_values(spec, 1))
            writer.finish()
        column = CFileReader(files, "f").column(ColumnKey(BASE))
        assert column is not None and column.type == parse_type(spec)
        assert format.TYPES[column.code].rstrip("0123468") == parse_type(spec).name.rstrip("0123468")
        form = column.footer.form
        type = column.type
        assert _physical_by_code(form.code, type.precision or 0, type.scale or 0, type.length or 0) == form


NUMBERS = [
    ("HEAD_MAGIC", "`nyalacf\\n` (6e 79 61 6c 61 63 66 0a)"),
    ("TAIL_MAGIC", "`\\nfcalayn` (0a 66 63 61 6c 61 79 6e)"),
    ("FOOTER_MAGIC", "| magic | `NYcf` |"),
    ("FORMAT_VERSION", "| version | 4 |"),
    ("FILE_ID_BYTES", "**The file id** is 16 random bytes"),
    ("BLOCK_ALIGNMENT_BYTES", "at a multiple of 16 bytes"),
    ("ROWS_PER_BLOCK_LOG2_MAX", "at most 1,048,576 (2^20)"),
    ("BLOCK_VALUES_BYTES_MAX", "before compression; at most 67,108,864"),
    ("BLOCK_SIZE_BYTES_DEFAULT", "2,097,152 bytes unless the schema says otherwise"),
    ("KEY_BLOCK_SIZE_BYTES_DEFAULT", "65,536 for a column with first keys"),
    ("BLOCK_SIZE_BYTES_MIN", "512 bytes at the least"),
    ("BLOCK_SIZE_BYTES_MAX", "16,777,216 at the most"),
    ("DICTIONARY_BYTES_MAX", "the dictionary has 2,097,152 bytes at the most"),
    ("COMPRESSION_RATIO_MAX", "does not shrink to 0.9 of itself"),
    ("ZONE_BOUND_BYTES", "They are cut to 32 bytes"),
    ("PREFIX_GROUP_ROWS_LOG2", "4, so 16 rows"),
    ("PREFIX_GROUP_ROWS_LOG2_MAX", "a reader accepts up to 20"),
    ("CODES_BITS_MAX", "| bits | of a delta, 0 to 32 |"),
    ("SPARSE_KEY_ROWS_LOG2", "of every row (group 0), or of every 32nd, 64th or 128th (group 5, 6 or 7)"),
    (
        "SPARSE_WIDE_KEY_ROWS_LOG2",
        "of every row (group 0), or of every 32nd, 64th or 128th (group 5, 6 or 7)",
    ),
    (
        "SPARSE_TEXT_KEY_ROWS_LOG2",
        "of every row (group 0), or of every 32nd, 64th or 128th (group 5, 6 or 7)",
    ),
    ("ALP_EXPONENT_MAX", "| exponent | of decimals, 0 to 22;"),
    ("ALP_ALIGNMENT_BYTES", "each padded with zeros to a multiple of 8 bytes"),
    ("BLOOM_BLOCK_BYTES", "a column of 32-byte values"),
    ("BLOOM_ROWS_PER_BLOCK_LOG2", "in plain blocks of 2048"),
    ("BLOOM_BITS_PER_KEY", "8 to 16 bits a key"),
    ("BLOOM_BITS_PER_KEY_MIN", "8 to 16 bits a key"),
    ("COLUMN_HAS_ZONE_MAP", "| compatible flags | 1: has a zone map; 2: has first keys |"),
    ("COLUMN_HAS_FIRST_KEYS", "| compatible flags | 1: has a zone map; 2: has first keys |"),
    ("FILE_INCOMPATIBLE_KNOWN", "| incompatible flags | none yet |"),
    ("COLUMN_INCOMPATIBLE_KNOWN", "| incompatible flags | none yet |"),
    ("FILE_COMPATIBLE_KNOWN", "| compatible flags | none yet |"),
]


@pytest.mark.parametrize(("name", "words"), NUMBERS)
def test_numbers(name: str, words: str) -> None:
    """The limits and other numbers on the page are those of the code."""
    assert " ".join(words.split()) in " ".join(PAGE.read_text().split())
    value = getattr(format, name)
    if isinstance(value, bytes):
        assert value.decode().replace("\n", "\\n") in words
        return
    numbers = [float(number.replace(",", "")) for number in re.findall(r"[\d.,]*\d", words)]
    numbers += [2.0**20] if "2^20" in words else []
    if "LOG2" in name and not name.endswith("ROWS_LOG2_MAX"):
        value = 1 << value
    assert (value == 0 and "none yet" in words) or value in numbers


def test_every_constant_of_the_format_is_on_the_page() -> None:
    """The page gives the name of every constant of `format`."""
    tested = {name for name, _ in NUMBERS}
    prefixes = (
        "ROLE",
        "TYPE",
        "ENCODING_",
        "COMPRESSION_",
        "ZONE_",
        "CODES",
        "FOR_LINE",
        "ALP_PLAIN",
        "ALP_DECIMALS",
        "ALP_LAYOUTS",
    )  # tables, compared above
    elsewhere = {
        "BLOOM_SALT",
        "BLOCK_OFFSET_DTYPE",
        "BLOCK_LENGTH_DTYPE",
        "TEXT_SIZE_DTYPE",
        "BINARY_LENGTH_WIDTHS",
    }
    elsewhere |= {"COLUMN_COMPATIBLE_KNOWN"}  # the sum of the flags that it knows
    elsewhere |= {"RLE_LENGTH_WIDTHS", "FOR_WIDE", "FOR_LAYOUTS"}
    not_on_disk = {"COALESCED_READ_BYTES_MAX"}
    for name, value in vars(format).items():
        if name.isupper() and not isinstance(value, format.Layout) and not name.startswith(prefixes):
            assert name in tested | elsewhere | not_on_disk, name
    text = PAGE.read_text()
    assert " ".join(f"{multiplier:08x}" for multiplier in format.BLOOM_SALT) in text
    sizes = np.dtype(format.BLOCK_OFFSET_DTYPE).itemsize, np.dtype(format.BLOCK_LENGTH_DTYPE).itemsize
    assert "| block offsets | {} a block |".format(*sizes) in text
    assert "| block lengths | {1} a block |".format(*sizes) in text
    assert f"| text sizes | {np.dtype(format.TEXT_SIZE_DTYPE).itemsize} a block |" in text
    assert format.RLE_LENGTH_WIDTHS == (1, 2, 4) and "| length width | 1, 2 or 4: bytes of one run's" in text
    assert format.BINARY_LENGTH_WIDTHS == (0, 1, 2, 4) and "| length width | 1, 2 or 4: " in text


# -- the worked example ------------------------------------------------------------------------------------


def example() -> MemoryFiles:
    def first_keys(ordinals: npt.NDArray[np.int64]) -> pa.Array:
        first = ids.take(pa.array(ordinals)).to_pylist()
        return pa.array([(number + (1 << 63)).to_bytes(8, "big") for number in first], pa.large_binary())

    files = MemoryFiles()
    ids, names = pa.array([1, 2, 5]), pa.array(["ada", None, "grace"])
    with CFileWriter(files, EXAMPLE_PATH, SeededRandomness(7)) as writer:
        spec = ColumnWriteSpec(ColumnKey(BASE, 0, 10), parse_type("int64"), compression="none")
        writer.append_column(spec, ids, first_keys=first_keys)
        writer.append_column(ColumnWriteSpec(ColumnKey(BASE, 0, 11), parse_type("string")), names)
        writer.finish()
    return files


def examples_of_encodings() -> list[str]:
    """Return the block of each column of the page's second example, with its bytes."""
    columns: list[tuple[str, str, list[Any]]] = [
        ("rle", "int16", [7, 7, None, 7, -1, -1]),
        ("prefix", "string", ["key-001", "key-002", "key-01"]),
        ("for", "int32", [1000, 1001, 3000, 1500]),
        ("for", "int64", [10, 11, 12, 13]),
        ("for", "decimal(9,2)", [Decimal(12), Decimal(7), Decimal(7), Decimal(10)]),
        (
            "dictionary",
            "string",
            ["violet", "red", "violet", "violet", "blue", "red", "red", "blue", "violet"],
        ),
        ("for", "decimal(38,0)", [Decimal(10) ** 20, Decimal(-1)]),
        ("alp", "double", [20.1, 19.7, math.nan, 20.4, None, 20.1, 20.2, 20.2, 20.3, 20.3, 20.4, 20.4]),
        ("for", "int32", [None, None, 1500, None, None, None, 1501, None, None, 1503]),
        ("bitshuffle", "int32", [1, 2, 3, 4, 5, 6, 7, 8] * 8),
    ]
    files = MemoryFiles()
    with CFileWriter(files, EXAMPLE_PATH, SeededRandomness(7)) as writer:
        for number, (encoding, type, values) in enumerate(columns):
            spec = ColumnWriteSpec(ColumnKey(BASE, 0, 10 + number), parse_type(type), encoding, "none")
            writer.append_column(spec, pa.array(values, parse_type(type).arrow))
        writer.finish()
    blocks: list[str] = []
    for line in dump(files, EXAMPLE_PATH, bytes=True):
        if line.startswith("dictionary of") or (
            line.startswith("block 0 of") and not (blocks and blocks[-1].startswith(f"dictionary{line[7:]}"))
        ):
            blocks.append(line)
        elif line.startswith("footer of"):
            break
        elif blocks:
            blocks[-1] += "\n" + line
    assert len(blocks) == len(columns)
    return blocks


def examples_of_others() -> list[str]:
    """Return the blocks of the page's third example: compressed values, encoded keys, a bloom
    filter.
    """
    codec = KeyCodec([parse_type("string"), parse_type("int16")])
    keys = codec.encode([pa.array(["a", "a", "b"]), pa.array([-1, 2, 1], pa.int16())])
    files = MemoryFiles()
    with CFileWriter(files, EXAMPLE_PATH, SeededRandomness(7)) as writer:
        spec = ColumnWriteSpec(ColumnKey(BASE, 0, 10), parse_type("string"), "plain", "lz4")
        writer.append_column(spec, pa.array(["disk is full"] * 5))
        writer.append_column(
            ColumnWriteSpec(ColumnKey(KEY), parse_type("binary"), "plain", "none"), keys.to_binary()
        )
        writer.append_bloom(keys.hash64())
        writer.finish()
    text = "\n".join(dump(files, EXAMPLE_PATH, bytes=True))
    return re.findall(r"^(block 0 of .*?)\n(?=block|footer)", text, re.MULTILINE | re.DOTALL)


def shown(bytes: bool) -> str:
    return "\n".join(dump(example(), EXAMPLE_PATH, bytes=bytes))


@pytest.mark.parametrize("bytes", [False, True])
def test_worked_example(bytes: bool) -> None:
    """The writer writes exactly the page's worked example."""
    blocks = re.findall(r"```text\n(.*?)\n```", PAGE.read_text(), re.DOTALL)
    assert blocks[bytes] == shown(bytes)


def test_worked_examples_of_encodings() -> None:
    """The encodings write exactly the bytes of the page's examples."""
    blocks = re.findall(r"```text\n(.*?)\n```", PAGE.read_text(), re.DOTALL)
    assert blocks[2:] == examples_of_encodings() + examples_of_others()


def test_the_dump_shows_every_byte_once() -> None:
    """The dump of a file covers each byte once."""
    files = example()
    position = 0
    data = b""
    for line in dump(files, EXAMPLE_PATH, bytes=True):
        if match := re.match(r" *(\d+)  ([0-9a-f]+)(?:  |$)", line):
            assert int(match[1]) == position
            data += bytes.fromhex(match[2])
            position = len(data)
    assert data == files.content[EXAMPLE_PATH]


def test_dump_of_long_parts_and_other_columns() -> None:
    """The dump shortens long parts, and shows every kind of column."""
    files = MemoryFiles()
    with CFileWriter(files, "f") as writer:
        spec = ColumnWriteSpec(ColumnKey(BASE, 0, 10), parse_type("string"), block_size_bytes=512)
        writer.append_column(spec, pa.array(["red", "blue", None, "x" * 40] * 1000))
        writer.append_column(ColumnWriteSpec(ColumnKey(1), parse_type("binary")), pa.array([b"k" * 40]))
        writer.append_bloom(np.arange(100, dtype=np.uint64))
        writer.finish()
    lines = list(dump(files, "f"))
    assert any(line.startswith("  dictionary  3 values, offset 48,") for line in lines)
    assert "  zone        'blue' … …'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxy', NULLs 1000" in lines
    assert "  type        bloom" in lines and any("first key 6b6b6b" in line for line in lines)
    lines = list(dump(files, "f", bytes=True))
    assert any(re.search(r"… and \d+ bytes more", line) for line in lines)
    assert any(re.search(r"… and \d+ more", line) for line in lines)


def test_dump_of_a_damaged_file_shows_the_parts_before_the_damage() -> None:
    """The dump of a damaged file shows the parts before the damage."""
    files = example()
    content = bytearray(files.content[EXAMPLE_PATH])
    content[156] ^= 1
    files.content[EXAMPLE_PATH] = bytes(content)
    lines = []
    with pytest.raises(CorruptionError, match="at offset 112"):
        for line in dump(files, EXAMPLE_PATH, bytes=True):
            lines.append(line)
    assert lines[-1] == "block 0 of base/0/11"


if __name__ == "__main__":
    text = PAGE.read_text()
    parts = re.split(r"(```text\n)(.*?)(\n```)", text, flags=re.DOTALL)
    parts[2::4] = [shown(False), shown(True), *examples_of_encodings(), *examples_of_others()]
    PAGE.write_text("".join(parts))
