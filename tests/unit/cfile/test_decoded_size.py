"""What a column says that its values take decoded is what they take, before any of them is decoded."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.cfile.memory import MemoryFiles

from nyala.cfile.column import BASE, ColumnKey, ColumnWriteSpec
from nyala.cfile.column_reader import ColumnReader
from nyala.cfile.decoded_size import STEP_ROWS
from nyala.cfile.read_stats import Access
from nyala.cfile.reader import CFileReader
from nyala.cfile.writer import CFileWriter
from nyala.schema.types import parse_type

ROWS = 10_000
RANDOM = np.random.default_rng(3)
VALUES: dict[str, list[Any]] = {
    "repeated": ["x" * 150 + str(i) for i in range(ROWS)],
    "random": [os.urandom(40).hex() for _ in range(ROWS)],
    "numbered": [f"Customer#{i:09d}" for i in range(ROWS)],
    "growing": ["x" * (i // 50) for i in range(ROWS)],
    "nulls": [None if i % 3 else "y" * 100 for i in range(ROWS)],
    "one wide word": ["w" * 2_000 if i >= ROWS // 2 else str(i % 1_000) for i in range(ROWS)],
}


KEY = ColumnKey(BASE, 0, 1)


def column_of(files: MemoryFiles, values: list[Any], encoding: str, compression: str) -> ColumnReader:
    writer = CFileWriter(files, "file")
    spec = ColumnWriteSpec(KEY, parse_type("string"), encoding, compression)
    writer.append_column(spec, pa.array(values, pa.string()))
    writer.finish(sync=False)
    column = CFileReader(files, "file").column(KEY)
    assert column is not None
    return column


@pytest.mark.parametrize("encoding", ["plain", "prefix", "dictionary"])
@pytest.mark.parametrize("compression", ["default", "none", "zstd"])
@pytest.mark.parametrize("name", VALUES)
def test_sizes_are_those_of_the_values(
    files: MemoryFiles, name: str, encoding: str, compression: str
) -> None:
    column = column_of(files, VALUES[name], encoding, compression)
    size = column.decoded_size
    steps, row_bytes = size.steps(0, ROWS), size.row_bytes
    array = column.decode(0, ROWS)
    assert len(steps) == -(-ROWS // STEP_ROWS)
    assert steps.sum() == pytest.approx(array.nbytes, rel=0.1)
    if name in ("repeated", "random", "numbered"):
        wrong = 4 if encoding == "prefix" else 1.1
        assert 1 / wrong <= row_bytes / (array.nbytes / ROWS) <= wrong
    # Blocks are taken to be as dense at their beginnings as at their ends.
    for lower in range(0, ROWS - 2048, 2048):
        found = steps[lower // STEP_ROWS : (lower + 2048) // STEP_ROWS].sum()
        true = array.slice(lower, 2048).nbytes
        assert found >= 0.6 * true
        assert size.bytes_max(lower, lower + 2048) >= 0.6 * true


def test_a_file_that_is_cut_has_a_size_all_the_same(files: MemoryFiles) -> None:
    column = column_of(files, VALUES["random"], "plain", "default")
    files.content["file"] = files.content["file"][:100]
    assert column.decoded_size.row_bytes > 0
    assert len(column.decoded_size.steps(0, ROWS)) == -(-ROWS // STEP_ROWS)


@pytest.mark.parametrize("encoding", ["plain", "prefix"])
def test_a_part_of_a_block_does_not_hold_the_block(files: MemoryFiles, encoding: str) -> None:
    values = [str(i % 50) + "z" * 300 for i in range(ROWS)]
    part = column_of(files, values, encoding, "default").decode(100, 1_100, access=Access.SCAN)
    assert part.to_pylist() == values[100:1_100]
    assert part.get_total_buffer_size() <= 1.3 * part.nbytes


def test_numbers_of_a_small_part_are_copied_out(files: MemoryFiles) -> None:
    writer = CFileWriter(files, "file")
    writer.append_column(ColumnWriteSpec(KEY, parse_type("double")), pa.array(np.arange(131_072.0)))
    writer.finish(sync=False)
    column = CFileReader(files, "file").column(KEY)
    assert column is not None
    assert column.decode(4_096, 8_192, access=Access.SCAN).get_total_buffer_size() == 8 * 4_096
    assert column.decode(16_384, 32_768, access=Access.SCAN).get_total_buffer_size() == 8 * 16_384, (
        "the least window"
    )
    assert column.decode(60_000, 131_072, access=Access.SCAN).get_total_buffer_size() == 8 * 131_072, (
        "no copy of much"
    )
