"""A footer has the bytes of text of each block, so they are known before the block is read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.cfile.memory import MemoryFiles
from tests.unit.cfile.test_roundtrip import written

from nyala.cfile.blocks.read_stats import Access
from nyala.cfile.errors import SummaryError
from nyala.cfile.reader import CFileReader

ROWS = 3_000
VALUES = {
    "alike": ["x" * 150 + str(i) for i in range(ROWS)],
    "growing": ["x" * (i // 50) for i in range(ROWS)],
    "few": [None if i % 3 else "y" * (i % 7) for i in range(ROWS)],
    "none": [None] * ROWS,
    "long at the end": ["w" * 2_000 if i >= ROWS // 2 else str(i % 1_000) for i in range(ROWS)],
}


@pytest.mark.parametrize("encoding", ["plain", "prefix", "dictionary"])
@pytest.mark.parametrize("name", VALUES)
def test_sizes_are_those_of_the_values(name: str, encoding: str) -> None:
    """The sizes in the footer are those of the decoded values, with every encoding."""
    array = pa.array(VALUES[name], pa.string())
    column = written(MemoryFiles(), array, "string", encoding, block_size_bytes=4096)
    lengths = np.array([len(value or "") for value in VALUES[name]])
    step = column.rows_per_block
    assert column.footer.text_sizes is not None
    assert column.footer.text_sizes.tolist() == np.add.reduceat(lengths, np.arange(0, ROWS, step)).tolist()
    assert column.text_bytes(0, ROWS) == lengths.sum()
    assert column.row_bytes == pytest.approx(4 + lengths.mean())
    borders = np.arange(0, ROWS, step)[:9]
    expected = [4 * step + int(lengths[lower : lower + step].sum()) for lower in borders[:-1].tolist()]
    assert column.decoded_bytes(borders).tolist() == pytest.approx(expected)


def test_a_check_compares_the_sizes(files: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check reports a wrong size."""
    monkeypatch.setattr("nyala.cfile.writer._text_sizes", lambda made: np.array([7], np.uint32))
    with pytest.raises(
        SummaryError, match="expected 7 bytes of text in this block, as the column's footer says, found 3"
    ):
        written(files, pa.array(["a", None, "bc"]), "string")
    with CFileReader(files, *files.content) as reader:
        column = reader.column(reader.columns()[0])
        assert column is not None and column.decode(0, 3).to_pylist() == ["a", None, "bc"]


@pytest.mark.parametrize("encoding", ["plain", "prefix"])
def test_a_slice_of_text_does_not_hold_its_block(encoding: str) -> None:
    """A small slice of text does not keep its large block in memory."""
    values = [str(i % 50) + "z" * 300 for i in range(ROWS)]
    column = written(MemoryFiles(), pa.array(values), "string", encoding)
    part = column.decode(100, 1_100, access=Access.SCAN)
    assert part.to_pylist() == values[100:1_100]
    assert part.get_total_buffer_size() <= 1.3 * part.nbytes


def test_a_small_slice_of_numbers_is_copied() -> None:
    """A small slice of numbers is copied out of its block. A large slice is not copied."""
    column = written(MemoryFiles(), pa.array(np.arange(131_072.0)), "double")
    for lower, upper, held in ((4_096, 8_192, 4_096), (16_384, 32_768, 16_384), (60_000, 131_072, 131_072)):
        assert column.decode(lower, upper, access=Access.SCAN).get_total_buffer_size() == 8 * held
