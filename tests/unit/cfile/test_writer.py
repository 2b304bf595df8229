"""The writer: how rows are divided into blocks, and unfinished files."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cfile.memory import MemoryFiles

from nyala.cfile import format
from nyala.cfile.column import BASE, ColumnKey, ColumnWriteSpec
from nyala.cfile.physical import physical
from nyala.cfile.reader import CFileReader
from nyala.cfile.writer import CFileWriter, rows_per_block_log2
from nyala.errors import CorruptionError, StorageError
from nyala.schema.types import parse_type

COLUMN = ColumnWriteSpec(ColumnKey(BASE, 0, 10), parse_type("int64"))


@pytest.mark.parametrize(
    ("type", "block_size", "rows"),
    [
        ("int64", 1 << 20, 1 << 17),
        ("int8", 1 << 20, 1 << 20),
        ("bool", 1 << 20, 1 << 20),  # the most rows that a block may have
        ("decimal(38,0)", 1 << 20, 1 << 16),
        ("int64", 1, 64),  # raised to 512 bytes
        ("int64", 1 << 40, 1 << 20),
    ],
)
def test_rows_per_block_of_fixed_width(type: str, block_size: int, rows: int) -> None:
    """The rows per block of fixed-width columns are powers of two, so blocks nest."""
    form = physical(parse_type(type))
    assert 1 << rows_per_block_log2(form, pa.nulls(5, form.arrow), block_size) == rows


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=100), st.integers(512, 5000))
def test_no_block_of_text_is_too_large(lengths: list[int], block_size: int) -> None:
    """A block of text has about the block size, so a look-up decodes little."""
    array = pa.array(["x" * length for length in lengths])
    rows = 1 << rows_per_block_log2(physical(parse_type("string")), array, block_size)
    sizes = [length + 1 for length in lengths]
    blocks = [sum(sizes[start : start + rows]) for start in range(0, len(sizes), rows)]
    crumbs = sum(sizes) / len(blocks) < block_size / 16
    assert rows == 1 or max(blocks) <= block_size or crumbs
    if 2 * rows <= len(sizes) and max(sizes) <= block_size:
        doubled = [sum(sizes[start : start + 2 * rows]) for start in range(0, len(sizes), 2 * rows)]
        assert max(doubled) > block_size, "a block of twice the rows would have fitted"


def test_a_few_long_texts_do_not_make_all_blocks_small() -> None:
    """A few cells of 64 KiB among short texts do not reduce every block to 16 rows."""
    array = pa.array(["short"] * 100_000 + ["x" * 65_536] * 20 + ["short"] * 100_000)
    rows = 1 << rows_per_block_log2(physical(parse_type("string")), array, 1 << 20)
    assert len(array) / rows <= 16 * (20 * 65_536 + 1_200_000) / (1 << 20) * 2
    largest = pa.array(["x" * 65_536] * 2000)
    rows = 1 << rows_per_block_log2(physical(parse_type("string")), largest, 1 << 30)
    assert rows * 65_537 <= format.BLOCK_SIZE_BYTES_MAX


def test_adjacent_long_texts_do_not_make_a_huge_block() -> None:
    """No block exceeds the limit that readers accept."""
    short = pa.array(["a"]).take(pa.array([0] * 650_000))
    array = pa.concat_arrays([short, pa.array(["x" * 65_536] * 320), short])
    rows = 1 << rows_per_block_log2(physical(parse_type("string")), array, 16 << 20)
    ends = [0, *pc.cumulative_sum(pc.binary_length(array).cast(pa.int64())).to_pylist()]
    borders = [*range(0, len(array), rows), len(array)]
    assert max(ends[b] - ends[a] for a, b in itertools.pairwise(borders)) <= format.BLOCK_SIZE_BYTES_MAX


def test_an_unfinished_file_is_refused(files: MemoryFiles) -> None:
    """A file whose writer did not finish cannot be opened."""
    writer = CFileWriter(files, "f")
    writer.append_column(COLUMN, pa.array(range(500_000)))
    with pytest.raises(CorruptionError):
        CFileReader(files, "f").columns()
    writer.abort()
    assert "f" not in files.content
    writer.abort()


def test_on_a_full_disk_the_file_is_removed(files: MemoryFiles) -> None:
    """If the disk is full, the writer removes its file."""
    files.fail_after_bytes = 1000
    with pytest.raises(StorageError, match="full"), CFileWriter(files, "f") as writer:
        writer.append_column(COLUMN, pa.array(np.random.default_rng(0).integers(0, 1 << 62, 500_000)))
        writer.finish()
    assert files.content == {}


def test_finish_syncs_once_or_not_at_all(files: MemoryFiles) -> None:
    """`finish` syncs the file once, or leaves that to its caller."""
    for sync, count in ((True, 1), (False, 1)):
        with CFileWriter(files, f"f-{sync}") as writer:
            writer.append_column(COLUMN, pa.array([1, 2]))
            written = writer.finish(sync)
        assert files.syncs == count
        assert files.content[f"f-{sync}"], "leaving the `with` block after finish() keeps the file"
        assert written.size_bytes == files.size(f"f-{sync}")


def test_small_files_are_one_write(files: MemoryFiles) -> None:
    """A small file is written with one system call."""
    with CFileWriter(files, "f") as writer:
        for column_id in range(20):
            spec = ColumnWriteSpec(ColumnKey(BASE, 0, column_id), parse_type("int64"))
            writer.append_column(spec, pa.array([1, None, 3]))
        writer.finish()
    assert len(files.appends) == 1


def test_a_name_is_used_once(files: MemoryFiles) -> None:
    """A second column with the same name is refused."""
    with CFileWriter(files, "f") as writer:
        writer.append_column(COLUMN, pa.array([1]))
        with pytest.raises(AssertionError, match="appended already"):
            writer.append_column(COLUMN, pa.array([1]))
