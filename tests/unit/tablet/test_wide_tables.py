"""Tables of many columns: what is alike for all columns of a file is done once, not once for each column."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.support import open_database, rows

from nyala.cfile.encoding.frame_of_reference import FrameOfReference
from nyala.delta.delta_file import DeltaFile

COLUMNS = 30


def wide(count: int, value: int) -> pa.Table:
    numbers = pa.array([value + 7 * k % 11 for k in range(count)])
    return pa.table({"k": list(range(count)), **{f"c{number}": numbers for number in range(COLUMNS)}})


def test_a_compaction_reads_rowids_and_timestamps_once_for_all_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a thousand columns that were changed together, each would read and check the same two vectors."""
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", wide(1, 0).schema, primary_key="k")
        table.insert(wide(200, 0))
        table.flush()
        table.upsert(wide(100, 5))
        table.flush()
        table.upsert(wide(50, 9))
        table.flush()
        read: list[str] = []
        original = DeltaFile._read_window
        monkeypatch.setattr(
            DeltaFile, "_read_window", lambda file, *args: read.append(file.path) or original(file, *args)
        )
        table.compact()
        assert len(read) == len(set(read)) <= 3, "each file's once: one of UNDO, two of REDO"
        found = rows(table)
        assert found[0] == (0, *[9] * COLUMNS) and found[60] == (60, *[5 + 7 * 60 % 11] * COLUMNS)
        assert found[150] == (150, *[7 * 150 % 11] * COLUMNS)


def test_a_column_of_one_block_is_encoded_once_by_each_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush of a thousand short columns would encode each once to judge it, and once more to write it."""
    prepared: list[int] = []
    original = FrameOfReference.prepare
    monkeypatch.setattr(
        FrameOfReference,
        "prepare",
        lambda encoding, form, values: prepared.append(len(values)) or original(encoding, form, values),
    )
    with open_database(tmp_path / "s") as db:
        table = db.create_table("t", wide(1, 0).schema, primary_key="k")
        table.insert(wide(2000, 0))
        table.flush()
        assert (
            len([size for size in prepared if size == 2000]) <= COLUMNS + 5
        )  # and key, rowids and timestamps
